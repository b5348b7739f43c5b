"""``cortx paper`` as a user runs it: real processes, real files, a real kill."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from tests.guard import HANG

from cortx.paper.census import load_census
from cortx.paper.grid import grid, missing_cells, select
from cortx.paper.study import tasks

COMMAND = (sys.executable, "-m", "cortx.interfaces.cli", "paper")
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def environment(**changes: str | None) -> dict[str, str]:
    """This process's own, with a plain terminal; None takes a variable away."""
    names: dict[str, str | None] = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", **changes}
    return {name: value for name, value in names.items() if value is not None}


def paper(*arguments: object, folder: Path, code: int = 0, **changes: str | None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], cwd=folder, env=environment(**changes), capture_output=True, text=True,
        timeout=HANG, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


# Without the data ----------------------------------------------------------------------------------------------------


def assert_says_what_to_do(done: subprocess.CompletedProcess[str], data: str, folder: Path) -> None:
    assert done.stdout == ""
    (message,) = done.stderr.splitlines()
    assert message.startswith("error: ")
    assert str(folder) in message
    assert "CORTX_DATA" in message
    assert f"`cortx paper download {data}`" in message


@pytest.mark.parametrize("data", ["census", "bankruptcy"])
def test_one_message_where_the_folder_has_no_data(data: str, tmp_path: Path) -> None:
    empty, here = tmp_path / "empty", tmp_path / "here"
    empty.mkdir()
    here.mkdir()
    done = paper(data, "--quick", folder=here, code=2, CORTX_DATA=str(empty))
    assert_says_what_to_do(done, data, empty)
    assert not list(here.iterdir())
    assert not list(empty.iterdir())


@pytest.mark.parametrize("cache", [True, False], ids=["XDG_CACHE_HOME", "HOME"])
def test_one_message_where_no_folder_is_named(cache: bool, tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    done = paper(
        "census", "--quick", folder=here, code=2, CORTX_DATA=None, HOME=str(home),
        XDG_CACHE_HOME=str(tmp_path / "cache") if cache else None,
    )  # fmt: skip
    assert_says_what_to_do(done, "census", (tmp_path / "cache" if cache else home / ".cache") / "cortx")
    assert "not set" in done.stderr
    assert not list(here.iterdir())


def test_help_says_what_there_is(tmp_path: Path) -> None:
    said = paper("--help", folder=tmp_path).stdout
    for word in ("census", "bankruptcy", "download", "--quick"):
        assert word in said
    said = paper("download", "--help", folder=tmp_path).stdout
    for word in ("--to", "CORTX_DATA", "census", "bankruptcy"):
        assert word in said


@pytest.mark.parametrize("command", [("download", "iris"), ("iris",)])
def test_another_data_set_is_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    done = paper(*command, folder=tmp_path, code=2, CORTX_DATA=str(tmp_path))
    assert "iris" in done.stderr
    if command[0] == "download":
        assert "census" in done.stderr
        assert "bankruptcy" in done.stderr
    assert not list(tmp_path.iterdir())


def test_bad_options_are_refused(benchmark_data: Path, tmp_path: Path) -> None:
    for option, value, word in (("--workers", "0", "--workers"), ("--device", "abacus", "abacus")):
        done = paper("census", "--quick", option, value, folder=tmp_path, code=2)
        assert word in done.stderr


# The quick study, killed once and then finished ----------------------------------------------------------------------


def results_in(out: Path) -> dict[Path, int]:
    """The files of finished tasks, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in out.glob("work/results/**/*.json")}


def kill_in_the_middle(out: Path, folder: Path) -> None:
    """Starts the study and kills it, with all its processes, once it has done some tasks."""
    with open(folder / "killed.txt", "w") as log:
        running = subprocess.Popen(
            [*COMMAND, "census", "--quick", "--out", str(out)],
            cwd=folder, env=environment(), stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            until = time.monotonic() + HANG
            while len(results_in(out)) < 2 and running.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    assert running.returncode == -signal.SIGKILL, (folder / "killed.txt").read_text()


@pytest.fixture(scope="module")
def finished(benchmark_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Path, int]]:
    """The folder of a study that was killed in the middle, then finished; and what the killed one had done."""
    folder = tmp_path_factory.mktemp("paper")
    out = folder / "out"
    kill_in_the_middle(out, folder)
    before = results_in(out)
    assert not (out / "census.json").exists()
    done = paper("census", "--quick", "--out", out, folder=folder)
    for name in ("census.json", "census.md"):
        assert str(out / name) in re.sub(r"\s+", " ", done.stdout)
    return out, before


def read_strictly(path: Path) -> Any:
    """JSON as the standard has it: without NaN and infinity."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{path} holds {word}")

    return json.loads(path.read_text(), parse_constant=refuse)


@pytest.fixture(scope="module")
def records(finished: tuple[Path, dict[Path, int]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_strictly(finished[0] / "census.json")
    return found


@pytest.mark.slow
def test_a_killed_study_goes_on_where_it_was(finished: tuple[Path, dict[Path, int]]) -> None:
    out, before = finished
    after = results_in(out)
    assert 2 <= len(before) < len(after) == len(tasks("census", quick=True))
    assert {path: after[path] for path in before} == before
    for path in after:
        assert read_strictly(path)["task"]["data"] == "census"


@pytest.mark.slow
def test_no_cell_is_missing(finished: tuple[Path, dict[Path, int]], records: list[dict[str, Any]]) -> None:
    assert missing_cells(records, "census", quick=True) == []
    text = (finished[0] / "census.md").read_text(encoding="utf-8")
    assert "missing" not in text
    for setting in grid("census", quick=True).settings:
        assert setting in text


@pytest.mark.slow
def test_every_record_says_where_it_comes_from(records: list[dict[str, Any]]) -> None:
    assert len({(r["experiment"], r["setting"], r["method"], r["metric"], r["at"]) for r in records}) == len(records)
    for record in records:
        assert record["data"] == "census"
        assert record["device"] == ("cpu" if "NVIDIA" not in record["hardware"] else "cuda")
        assert record["seeds"] == [0]
        assert record["seconds"] > 0
        assert "core" in record["hardware"]
        named = {part.split()[0] for part in record["versions"].split(",")}
        assert {"python", "torch", "numpy", "cortx-explain"} <= named
        assert record["target"]["model"] == "AutoInt"


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["labels", "evaluations", "ablation", "l2x", "theorems"])
def test_what_was_learned_says_what_it_cost(records: list[dict[str, Any]], experiment: str) -> None:
    here = [record for record in records if record["experiment"] == experiment]
    assert here
    for record in here:
        assert record["evaluations"] > 0
        if experiment == "evaluations":
            assert record["evaluations"] <= record["at"]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["throughput", "permutations"])
def test_what_samples_says_what_a_row_cost(records: list[dict[str, Any]], experiment: str) -> None:
    here = [r for r in records if r["experiment"] == experiment and r["method"] in ("kernel", "permutation")]
    assert here
    for record in here:
        assert 0 < record["evaluations"] <= record["at"]


@pytest.mark.slow
def test_numbers_are_those_of_the_quantities_they_name(records: list[dict[str, Any]]) -> None:
    for record in records:
        value = record["value"]
        if value is None:
            assert record["reason"]
        elif record["metric"] in ("rank_accuracy", "holds", "assumption_holds"):
            assert 0 <= value <= 1
        elif record["metric"] == "faithfulness":
            assert -1 <= value <= 1
        elif record["metric"] in ("l2", "squared_l2"):
            assert value >= 0
        elif record["metric"] in ("rows_per_second", "seconds_per_row"):
            assert value > 0


@pytest.mark.slow
def test_short_trainings_teach_too(records: list[dict[str, Any]]) -> None:
    """They prove nothing about methods, but must beat an explainer that always answers with zero."""
    nothing = float(np.linalg.norm(load_census().labels_test, axis=1).mean())
    errors = {(r["method"], r["at"]): r["value"] for r in select(records, experiment="labels", metric="l2")}
    for method in ("cortx", "supervised-strong"):
        assert errors[method, 0.25] < errors[method, 0.05] < 0.7 * nothing


@pytest.mark.slow
def test_figures_are_pictures(finished: tuple[Path, dict[Path, int]]) -> None:
    from matplotlib.image import imread

    pictures = sorted(finished[0].glob("*.png"))
    shown = {"throughput", "labels", "evaluations", "ablation", "permutations", "theorems"}
    assert shown <= {path.stem for path in pictures}
    for path in pictures:
        assert path.read_bytes()[:8] == SIGNATURE
        assert path.stat().st_size > 10_000
        pixels = imread(path)
        assert min(pixels.shape[:2]) > 300
        assert pixels[..., :3].std() > 0.02
    assert not [path for path in finished[0].rglob("*") if ".tmp" in path.name and path.parent == finished[0]]


@pytest.mark.slow
def test_a_finished_study_does_nothing_again_but_what_was_lost(finished: tuple[Path, dict[Path, int]]) -> None:
    out, _ = finished
    records, before = read_strictly(out / "census.json"), results_in(out)
    labels = {path: path.stat().st_mtime_ns for path in out.glob("work/labels/*/*")}
    assert labels
    paper("census", "--quick", "--out", out, folder=out.parent)
    assert results_in(out) == before
    assert {path: path.stat().st_mtime_ns for path in out.glob("work/labels/*/*")} == labels
    assert sorted(read_strictly(out / "census.json"), key=str) == sorted(records, key=str)

    names = ("fit-supervised-mse-0.05-", "sampling-kernel-32-")
    lost = [path for path in before if path.name.startswith(names)]
    assert len(lost) == 2
    for path in lost:
        path.unlink()
    paper("census", "--quick", "--out", out, folder=out.parent)
    after = results_in(out)
    assert set(after) == set(before)
    assert {path for path in after if after[path] != before[path]} == set(lost)
    assert missing_cells(read_strictly(out / "census.json"), "census", quick=True) == []
