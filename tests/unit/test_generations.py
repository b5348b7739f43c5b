"""Folders that are replaced while others read and write them; files with ordinary modes that nothing keeps mapped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import make_model, make_tiny_recipe

import cortx
from cortx import storage
from cortx.errors import ArtifactError, StorageError
from cortx.explainer import generations
from cortx.explainer.generations import EXPLAINER, PORTABLE
from cortx.storage import read_whole, write_whole
from cortx.training.checkpoint import Checkpoint

ROWS = np.random.default_rng(0).normal(size=(120, 6)).astype(np.float32)
SAVES = 40


@pytest.fixture(scope="module")
def explainer() -> cortx.CoRTX:
    game = cortx.Game(make_model(), reference=ROWS, output="probability")
    return cortx.CoRTX(make_tiny_recipe(steps=5)).fit(game, ROWS, n_labels=20)


@pytest.fixture
def umask() -> Iterator[int]:
    """A umask that lets the group read and others not."""
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def test_files_get_the_mode_of_any_new_file(explainer: cortx.CoRTX, umask: int, tmp_path: Path) -> None:
    Checkpoint(tmp_path / "checkpoint", "key").save("stage", {"a": torch.zeros(3)})
    folders = [explainer.save(tmp_path / "saved"), explainer.to_onnx(tmp_path / "portable")]
    for folder in (*folders, *folders):  # new ones, then replaced ones
        files = [*folder.iterdir(), *(tmp_path / "checkpoint").iterdir()]
        assert len(files) >= 3
        assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~umask}
        assert folder.stat().st_mode & 0o777 == 0o777 & ~umask
        explainer.save(tmp_path / "saved")
        explainer.to_onnx(tmp_path / "portable")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_a_loaded_explainer_does_not_need_its_files(explainer: cortx.CoRTX, tmp_path: Path) -> None:
    folder = explainer.save(tmp_path / "saved")
    loaded = cortx.load(folder)
    assert str(folder) not in Path("/proc/self/maps").read_text(), "cutting a mapped file kills the process"
    for path in folder.iterdir():
        os.truncate(path, 0)
    outputs = explainer.explain(ROWS).outputs
    np.testing.assert_array_equal(loaded.explain(ROWS, outputs).values, explainer.explain(ROWS).values)
    checkpoint = Checkpoint(tmp_path / "checkpoint", "key")
    checkpoint.save("stage", {"a": torch.arange(5)}, step=3)
    kept = checkpoint.load("stage")
    assert kept is not None
    os.truncate(tmp_path / "checkpoint" / "stage.safetensors", 0)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert kept[0]["a"].tolist() == list(range(5))
    assert kept[1] == {"key": "key", "step": 3}


def test_two_fits_may_share_a_checkpoint(tmp_path: Path) -> None:
    """The one that ends first takes its stages along; the other one goes on, and ends as well."""
    folder = tmp_path / "checkpoint"
    first, second = Checkpoint(folder, "key"), Checkpoint(folder, "key")
    first.save("a", {"x": torch.zeros(1)})
    assert second.load("a") is not None
    first.clear()
    assert second.load("a") is None
    second.clear()  # the folder is gone
    second.save("b", {"x": torch.ones(1)})
    first.clear()  # the folder is not empty
    assert second.load("b") is not None
    second.clear()
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["EXPLAINER", "PORTABLE"])
def test_writers_and_a_reader_at_once(kind: str, tmp_path: Path) -> None:
    """The content names its own facts: a reader sees whether both belong together."""
    head = f"""
import sys, os, json
from pathlib import Path
from cortx.explainer.generations import {kind} as folder
target, who, saves = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
"""
    write = """
for number in range(saves):
    folder.write(target, f"{who} {number % 2}".encode() * 1000, {"of": f"{who} {number % 2}"})
"""
    read = """
found = 0
while not (target.parent / "stop").exists():
    if target.exists():
        facts, content = folder.read_content(target, folder.read_document(target))
        assert content == facts["of"].encode() * 1000, facts
        found += 1
print(found)
"""
    target = tmp_path / "folder"

    def start(code: str, who: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", head + code, str(target), who, str(SAVES)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    reader = start(read, "reader")
    writers = [start(write, who) for who in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    (tmp_path / "stop").touch()
    found, _ = reader.communicate()
    assert reader.returncode == 0
    assert int(found) > 0
    folder = EXPLAINER if kind == "EXPLAINER" else PORTABLE
    facts, content = folder.read_content(target, folder.read_document(target))
    assert content == facts["of"].encode() * 1000
    assert [path.name for path in tmp_path.iterdir() if path.name != "stop"] == ["folder"]


def test_a_writer_between_its_two_files_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others save the same content three times just before the document of the first is replaced."""
    target = tmp_path / "folder"
    EXPLAINER.write(target, b"one", {"of": "one"})
    real, waiting = generations.write_whole, [True]

    def interrupted(path: Path, content: bytes) -> None:
        if path.name == EXPLAINER.document and waiting:
            waiting.clear()
            for text in ("two", "three", "one"):
                EXPLAINER.write(target, text.encode(), {"of": text})
        real(path, content)

    monkeypatch.setattr(generations, "write_whole", interrupted)
    EXPLAINER.write(target, b"one", {"of": "first"})
    facts, content = EXPLAINER.read_content(target, EXPLAINER.read_document(target))
    assert (facts["of"], content) == ("first", b"one")


def test_a_reader_with_the_old_document_finds_its_file(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    EXPLAINER.write(target, b"one", {"of": "one"})
    old = EXPLAINER.read_document(target)
    EXPLAINER.write(target, b"two", {"of": "two"})
    assert EXPLAINER.read_content(target, old) == (old, b"one")
    EXPLAINER.write(target, b"three", {"of": "three"})
    facts, content = EXPLAINER.read_content(target, old)
    assert (facts["of"], content) == ("three", b"three"), "what is gone is read anew"


def test_a_save_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "folder"
    EXPLAINER.write(target, b"one", {"of": "one"})
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    real = os.replace

    def fails(source: str, there: Path) -> None:
        if Path(there).name == EXPLAINER.document:
            raise OSError(28, "No space left on device")
        real(source, there)

    monkeypatch.setattr(storage.os, "replace", fails)
    with pytest.raises(StorageError, match="the disk is full"):
        EXPLAINER.write(target, b"two", {"of": "two"})
    with pytest.raises(StorageError, match="the disk is full"):
        EXPLAINER.write(tmp_path / "new", b"two", {"of": "two"})
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_an_interrupt_just_after_the_rename_leaves_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "folder"
    EXPLAINER.write(target, b"one", {"of": "one", "loss": float("nan")})
    real = generations.write_whole

    def interrupted(path: Path, content: bytes) -> None:
        real(path, content)
        if path.name == EXPLAINER.document:
            raise KeyboardInterrupt

    monkeypatch.setattr(generations, "write_whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        EXPLAINER.write(target, b"two", {"of": "two", "loss": float("nan")})
    facts, content = EXPLAINER.read_content(target, EXPLAINER.read_document(target))
    assert (facts["of"], content) == ("two", b"two")
    (target / facts["weights"]["file"]).unlink()
    with pytest.raises(ArtifactError, match="lacks weights"):
        EXPLAINER.read_content(target, EXPLAINER.read_document(target))


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match="could not be written"):
        write_whole(tmp_path / "file" / "below", b"x")
    assert (tmp_path / "file").read_text() == "mine"


def test_files_that_nobody_names_go_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "folder"
    EXPLAINER.write(target, b"one", {})
    fresh, lost = target / "weights-of-somebody.safetensors", target / "weights-lost.safetensors"
    for path in (fresh, lost):
        path.write_bytes(b"x")
    os.utime(lost, (1, 1))
    monkeypatch.setattr(generations, "SECONDS_UNFINISHED", -1)
    EXPLAINER.write(target, b"two", {})
    assert fresh.exists()
    assert not lost.exists()


def test_a_document_cannot_have_other_files_read_or_removed(tmp_path: Path) -> None:
    target, secret = tmp_path / "folder", tmp_path / "secret.safetensors"
    secret.write_bytes(b"mine")
    EXPLAINER.write(target, b"one", {})
    document = EXPLAINER.read_document(target)
    for name in ("../secret.safetensors", str(secret), "manifest.json", "weights-/../../secret.safetensors", 3, None):
        (target / EXPLAINER.document).write_text(
            json.dumps({**document, "weights": {"file": name, "sha256": "0", "previous": name}})
        )
        with pytest.raises(ArtifactError, match="does not name its weights"):
            EXPLAINER.read_content(target, EXPLAINER.read_document(target))
        EXPLAINER.write(target, b"two", {})
        assert secret.read_bytes() == b"mine"


def test_a_folder_of_another_program_with_a_manifest_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a web page", "start_url": "/"}')
    with pytest.raises(ArtifactError, match="is not a cortx explainer"):
        EXPLAINER.write(tmp_path, b"one", {})


def test_files_of_absurd_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)  # it has no content, and takes no room
    with pytest.raises(StorageError, match=r"has 1,099,511,627,776 bytes; at most"):
        read_whole(path)
    write_whole(path, b"12345")
    assert read_whole(path, 5) == b"12345"
    with pytest.raises(StorageError, match="has 5 bytes; at most 4"):
        read_whole(path, 4)


def test_a_portable_folder_says_what_it_is_for(tmp_path: Path) -> None:
    exported = tmp_path / "e.portable"
    PORTABLE.write(exported, b"graph", {})
    with pytest.raises(ArtifactError, match=r"it is a portable explainer, for cortx.portable.load and cortx serve"):
        cortx.load(exported)
    with pytest.raises(ArtifactError, match=r"it has no manifest.json$"):
        cortx.load(tmp_path)
