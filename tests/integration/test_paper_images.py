"""``cortx paper cifar10`` as a user runs it: a real process, digits, two cores."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from tests.guard import HANG

from cortx.paper.image_report import missing_cells
from cortx.paper.image_study import JUDGES, METHODS, OF_CLASSES, QUICK, STAGES, ImageStudy

COMMAND = (sys.executable, "-m", "cortx.interfaces.cli", "paper", "cifar10")
SIGNATURE = b"\x89PNG\r\n\x1a\n"
PICTURES = (
    "comparison", "comparison-raw", "comparison-more", "comparison-more-raw", "comparison-rise-xrai",
    "comparison-rise-xrai-raw", "curves-surrogate-top1", "curves-target-zero-top1", "curves-target-road-top1",
    "curves-retrained-surrogate-top1", "curves-target-road-log-odds", "curves-target-road-delta-log-odds",
)  # fmt: skip


def paper(*arguments: object, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    # Threads that wait for each other must not keep busy the cores that other processes need.
    quiet = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "OMP_WAIT_POLICY": "passive"}
    names = {**os.environ, **quiet}
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=folder,
        env=names,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


# Before any work -----------------------------------------------------------------------------------------------------


def test_the_whole_study_refuses_a_cpu(tmp_path: Path) -> None:
    done = paper("--device", "cpu", folder=tmp_path, code=2)
    (message,) = done.stderr.splitlines()
    assert message.startswith("error: ")
    assert "needs a GPU" in message
    assert "cortx paper cifar10 --quick" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "name"),
    [("matplotlib", "matplotlib"), ("captum", "captum"), ("skimage", "scikit-image"), ("sklearn", "scikit-learn")],
)
def test_one_message_where_a_library_is_missing(module: str, name: str, tmp_path: Path) -> None:
    """A finder that knows no such module stands before all others, as where it was never installed."""
    hide = (
        "import sys, importlib.util as u\n"
        "found = u.find_spec\n"
        f"u.find_spec = lambda name, package=None: None if name == {module!r} else found(name, package)\n"
        "from cortx.interfaces.cli import main\n"
        "sys.argv = ['cortx', 'paper', 'cifar10', '--quick']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hide], cwd=tmp_path, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 2, done.stderr
    (message,) = done.stderr.splitlines()
    assert f"needs {name}, which is not installed" in message
    assert "pip install 'cortx-explain[" in message
    assert not list(tmp_path.iterdir())


# A whole quick study -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    done = paper("--quick", "--out", folder / "out", folder=folder)
    for name in METHODS.values():
        assert name in done.stdout
    for name in ("cifar10.json", "report.md"):
        assert str(folder / "out" / name) in re.sub(r"\s+", " ", done.stdout)
    return folder / "out"


@pytest.fixture(scope="module")
def records(out: Path) -> list[dict[str, Any]]:
    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"cifar10.json holds {word}")

    found: list[dict[str, Any]] = json.loads((out / "cifar10.json").read_text(), parse_constant=refuse)
    return found


@pytest.mark.slow
def test_everything_is_written(out: Path, records: list[dict[str, Any]]) -> None:
    assert {path.name for path in out.iterdir()} == {
        "work",
        "cifar10.json",
        "report.md",
        *(f"{n}.png" for n in PICTURES),
    }
    for name in PICTURES:
        assert (out / f"{name}.png").read_bytes().startswith(SIGNATURE)
    assert {path.stem for path in (out / "work").glob("*.json")} == set(STAGES)
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "missing" not in report
    assert "scikit-learn digits" in report
    assert missing_cells(records) == []


@pytest.mark.slow
def test_every_method_stands_before_every_judge(records: list[dict[str, Any]]) -> None:
    found = {(r["setting"], r["method"]) for r in records if r["experiment"] == "curves" and r["metric"] != "points"}
    assert found == {(judge, method) for judge in JUDGES for method in METHODS}
    for one in records:
        assert "core" in one["hardware"]
        assert "torch" in one["versions"]
        assert one["data"] == "scikit-learn digits"


@pytest.mark.slow
@pytest.mark.parametrize("judge", ["surrogate", "retrained surrogate"])
def test_ours_is_better_than_a_random_order(records: list[dict[str, Any]], judge: str) -> None:
    def area(method: str, direction: str) -> float:
        wanted = (judge, method, f"{direction} top1")
        (one,) = [r for r in records if (r["setting"], r["method"], r["metric"]) == wanted]
        return float(one["value"])

    assert area("cortx", "exclusion") < area("random", "exclusion") - 0.1
    assert area("cortx", "inclusion") > area("random", "inclusion") + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("method", OF_CLASSES)
def test_values_add_up_to_the_surrogates_output(out: Path, method: str) -> None:
    study = ImageStudy(out / "work", QUICK, "cpu")
    images = torch.from_numpy(study.images)
    with torch.inference_mode():
        whole, empty = (study.network("surrogate")(x).double().softmax(dim=1) for x in (images, 0 * images[:1]))
    values = np.load(out / "work" / f"values-{method}.npz")["values"]
    assert values.shape == (len(images), (images.shape[2] // 2) * (images.shape[3] // 2), 10)
    np.testing.assert_allclose(values.sum(axis=1), (whole - empty).numpy(), atol=1e-4)


@pytest.mark.slow
def test_a_finished_study_is_not_done_again(out: Path, records: list[dict[str, Any]]) -> None:
    lost = out / "work" / "errors.json"
    before = {path: path.stat().st_mtime_ns for path in (out / "work").glob("*.json")}
    lost.unlink()
    paper("--quick", "--out", out, folder=out.parent)
    after = {path: path.stat().st_mtime_ns for path in (out / "work").glob("*.json")}
    assert {path for path in before if after[path] != before[path]} == {lost}
    assert json.loads((out / "cifar10.json").read_text()) == records
