"""Addresses such as s3://bucket/x where a local path is meant are refused before any work, everywhere."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.conftest import make_model, make_tiny_recipe

import cortx
import cortx.distributed
import cortx.portable
from cortx.distributed.places import place
from cortx.errors import InputError
from cortx.interfaces import cli
from cortx.interfaces.options import option_name
from cortx.storage import local_path

FAR = "s3://bucket/x"
PATHS_IN_TEXT = {
    "fit": {"model", "reference"},
    "explain": {"table", "out", "model"},
    "evaluate": {"model"},
    "label": {"model", "data", "reference"},
    "serve": {"model", "examples"},
}
"""Options that take text which may be a path."""
HONOURED = {("explain", "table"), ("explain", "out"), ("label", "data")}
"""Options that take addresses; --out does only where TABLE is a folder."""
WORDS = {
    "fit": {"target", "output", "group", "categorical", "drop", "recipe", "heads", "unseen", "frame", "device"},
    "explain": {"outputs", "exclude", "direction", "output", "engine", "address", "device"},
    "evaluate": {"method", "slices", "device"},
    "label": {"output", "target", "group", "categorical", "drop", "frame", "engine", "address"},
    "serve": {"host"},
    "census": {"device"},
    "bankruptcy": {"device"},
    "cifar10": {"device"},
    "download": {"name"},
}
"""Options whose text is no path."""


def commands() -> dict[str, Callable[..., Any]]:
    found = {}
    for app in (cli.app, *(group.typer_instance for group in cli.app.registered_groups)):
        for info in app.registered_commands:
            found[info.name or info.callback.__name__] = info.callback
    return found


def parts(annotation: Any) -> set[Any]:
    """The types in an annotation, however deep."""
    inner = set(typing.get_args(annotation))
    return {annotation} | {kind for item in inner for kind in parts(item)}


def parameters(kind: type) -> Iterator[tuple[str, str]]:
    for command, function in commands().items():
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
            found = parts(parameter.annotation)
            literal = any(typing.get_origin(part) is typing.Literal for part in found)
            if kind in found or (kind is str and literal):
                yield command, name


PATHS = sorted(parameters(Path))
TEXTS = sorted(pair for pair in parameters(str) if pair not in HONOURED and pair[1] in PATHS_IN_TEXT.get(pair[0], ()))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a table and a model that must not be asked."""
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"a": [0.5, 1.0], "b": [2.0, 3.0]}).to_csv("rows.csv", index=False)
    (tmp_path / "spied.py").write_text(
        "from pathlib import Path\ndef model(rows):\n    Path('asked').touch()\n    return rows.sum(axis=1)\n"
    )
    return tmp_path


REQUIRED: dict[str, list[str]] = {
    "fit": ["spied:model", "rows.csv", "--out", "out.cortx"],
    "explain": ["e.cortx", "rows.csv", "--out", "why.csv"],
    "evaluate": ["e.cortx", "rows.csv", "--model", "spied:model"],
    "label": ["--model", "spied:model", "--data", "rows.parquet", "--out", "labels", "--budget", "100"],
    "export": ["e.cortx", "portable"],
    "serve": ["e.cortx"],
    "download": ["census"],
}
ARGUMENTS = {
    ("fit", "model"): 0, ("fit", "table"): 1, ("explain", "explainer"): 0, ("explain", "table"): 1,
    ("evaluate", "explainer"): 0, ("evaluate", "table"): 1, ("export", "artifact"): 0, ("export", "folder"): 1,
    ("serve", "artifacts"): 0,
}  # fmt: skip


def argv(command: str, name: str, value: str) -> list[str]:
    """The command line with this value for one parameter, and something for all it requires."""
    given = list(REQUIRED.get(command, []))
    if (command, name) in ARGUMENTS:
        given[ARGUMENTS[command, name]] = value
    else:
        option = option_name(commands()[command], name)
        if option in given:
            given[given.index(option) + 1] = value
        else:
            given += [option, value]
    group = [] if any(info.callback is commands()[command] for info in cli.app.registered_commands) else ["paper"]
    return ["cortx", *group, command, *given]


def refused(line: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    before = sorted(path.name for path in folder.iterdir())
    monkeypatch.setattr("sys.argv", line)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert [name for name in sorted(path.name for path in folder.iterdir()) if name != "__pycache__"] == before
    return str(capsys.readouterr().err)


def test_all_texts_are_known() -> None:
    """A new option of text must be put into one of the lists above."""
    for command, name in parameters(str):
        assert name in PATHS_IN_TEXT.get(command, set()) | WORDS.get(command, set()), (command, name)


@pytest.mark.parametrize("pair", [*PATHS, *TEXTS], ids="-".join)
def test_every_path_option_refuses_an_address(
    pair: tuple[str, str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    told = refused(argv(*pair, FAR), here, monkeypatch, capsys)
    if pair[1] != "model":  # commands may look for the explainer first
        assert "an address; give a local path" in told


def test_a_single_file_is_not_written_to_an_address(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert "--out is 's3://bucket/x.csv', an address" in refused(
        argv("explain", "out", f"{FAR}.csv"), here, monkeypatch, capsys
    )


def test_the_library_refuses_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    asked = []

    class Spied(torch.nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            asked.append(len(batch))
            return batch.sum(dim=1, keepdim=True)

    game = cortx.Game(Spied(), reference="zero", output="raw")
    explainer = cortx.CoRTX(make_tiny_recipe(steps=2)).fit(game, rows, n_labels=12)
    explanation = explainer.explain(rows[:2])
    asked.clear()

    def fresh() -> cortx.CoRTX:
        return cortx.CoRTX(make_tiny_recipe(steps=2))

    calls: list[Callable[[Any], Any]] = [
        explainer.save,
        explainer.to_onnx,
        cortx.load,
        cortx.portable.load,
        lambda far: fresh().fit(game, rows, n_labels=12, checkpoint=far),
        lambda far: fresh().fit(game, rows, labels=far),
        lambda far: cortx.distributed.label(make_model(4), rows, far, budget=1_000),
        cortx.distributed.LabelFolder.open,
        lambda far: cortx.distributed.explain(far, rows),
        lambda far: cortx.plots.waterfall(explanation[:1], path=far),
    ]
    for far in (FAR, Path(FAR), "gs://bucket/x.png", "https://example.org/x.png"):
        for call in calls:
            with pytest.raises(InputError, match=r"is .*an address; give a local path"):
                call(far)
    assert asked == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_address_stays_a_path(tmp_path: Path) -> None:
    for text in ("a/b", "/a/b", "C:/a", "C:\\a", "c://a", "run:1/a", "a b", "~/x"):
        assert local_path(text) == Path(text)
    assert local_path("file:///a/b%20c") == local_path("file://localhost/a/b%20c") == Path("/a/b c")
    assert local_path(Path("file:///a/b")) == Path("/a/b")
    assert place("file:///a/b%20c").path == "/a/b c"
    for text in ("file://elsewhere/a", "S3://b", "abfs+x://c@h/p", "hdfs:///a", ""):
        with pytest.raises(InputError):
            local_path(text)
    with pytest.raises(InputError, match="before it became a Path"):
        place(Path(FAR))
