"""What the command line refuses is said in its own words: options, not arguments of Python."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tests.compat.samples import frame, score
from typer.testing import CliRunner

from cortx.errors import CortxError, InputError
from cortx.explainer.label_folder import LabelFolder
from cortx.games.calls import Calls
from cortx.interfaces.cli import app
from cortx.interfaces.wording import in_options, options_of

FIRST = Path(__file__).parents[1] / "compat" / "first_version"
ONE, THREE = FIRST / "frame" / "artifact", FIRST / "outputs" / "artifact"
MODEL = "tests.compat.samples:score"
FIT, LABEL = ("fit", MODEL, "rows.csv", "--out", "x.cortx"), ("label", "--model", MODEL, "--out", "labels")
EXPLAIN, EVALUATE = ("explain", str(ONE), "rows.csv", "--out", "why.csv"), ("evaluate", str(ONE), "rows.csv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("commands")
    frame().assign(score=0.0, member=lambda rows: rows["member"].astype(str)).to_csv(made / "rows.csv", index=False)
    (made / "parts").mkdir()
    frame().to_parquet(made / "parts" / "rows.parquet", index=False)
    return made


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((*FIT, "--budget", "100"), "--budget 100 is too small"),
        ((*FIT, "--budget", "-3"), "budget"),
        ((*FIT, "--labels", "1"), "label"),
        ((*FIT, "--budget", "9", "--labels", "9"), "--budget and --labels"),
        ((*FIT, "--device", "warp"), "device"),
        ((*FIT, "--heads", "ranking"), "heads"),
        ((*FIT, "--heads", "attribution,taste"), "taste"),
        ((*FIT, "--target", "7"), "target"),
        ((*FIT, "--group", "a=nothing"), "nothing"),
        ((*FIT, "--categorical", "height"), "height"),
        ((*FIT, "--reference", "nowhere"), "--reference"),
        ((*FIT, "--output", "log-odds"), "log-odds"),
        ((*FIT, "--output", "probability"), "probability"),
        ((*FIT, "--calibration-share", "0.1"), "--labels-from"),
        ((*FIT, "--labels-from", str(FIRST / "labels"), "--budget", "9"), "--budget"),
        ((*FIT, "--calls-per-second", "0"), "--calls-per-second must be more than 0"),
        ((*FIT, "--calls", "0"), "--calls"),
        ((*EVALUATE, "--model", MODEL, "--call-timeout", "0"), "--call-timeout"),
        (("explain", str(ONE), "parts", "--out", "done", "--calls", "3"), "--calls is for a single file"),
        ((*EXPLAIN, "--model", MODEL, "--confidence", "0.9999"), "--confidence 0.9999 needs more"),
        ((*EXPLAIN, "--confidence", "0.9"), "--outputs, or load the explainer with --model"),
        ((*EXPLAIN, "--tolerance", "0.1"), "--tolerance refines rows with the model"),
        ((*EXPLAIN, "--model", MODEL, "--tolerance", "-1"), "tolerance"),
        ((*EXPLAIN, "--row-budget", "9"), "--tolerance"),
        ((*EXPLAIN, "--device", "warp"), "device"),
        ((*EXPLAIN, "--outputs", "job"), "job"),
        ((*EXPLAIN, "--model", MODEL, "--reasons", "2", "--output", "yes"), "--output"),
        ((*EXPLAIN, "--model", "tests.compat.samples:frame"), "model"),
        (("explain", str(THREE), "rows.csv", "--out", "why.csv", "--reasons", "2"), "column"),
        (("explain", str(ONE), "parts", "--out", "done", "--confidence", "0.9", "--workers", "0"), "--outputs"),
        ((*EVALUATE, "--model", MODEL, "--row-budget", "2"), "--row-budget 2"),
        ((*EVALUATE, "--model", MODEL, "--method", "exact", "--row-budget", "3"), "--row-budget 3"),
        ((*EVALUATE, "--model", MODEL, "--method", "amortized"), "amortized"),
        ((*EVALUATE, "--model", MODEL, "--method", "guess"), "guess"),
        ((*EVALUATE, "--model", MODEL, "--confidence", "2"), "confidence"),
        ((*LABEL, "--data", "rows.csv", "--budget", "9"), "rows.csv"),
        ((*LABEL, "--data", "parts", "--budget", "9"), "--budget 9 is too small"),
        ((*LABEL, "--data", "parts", "--budget", "9000", "--drop", "height"), "height"),
        ((*LABEL, "--data", "parts", "--budget", "9000", "--rows", "0"), "rows"),
    ],
)
def test_errors_name_options(
    folder: Path, command: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, command)
    assert done.exit_code != 0
    text = done.output
    if isinstance(done.exception, CortxError):
        text += str(done.exception)
    assert words in text, text
    # The command line's own usage errors quote nothing of Python either.
    assert re.findall(r"(?<!['\"/\w])[a-z_]\w*=", text) == []


def words_of(command: str, text: str) -> str:
    group = typer.main.get_command(app)
    return in_options(text, options_of(group.commands[command], group))  # type: ignore[attr-defined, arg-type]


def test_errors_about_rows_keep_their_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made of several parts, of which the number of the row is one."""
    monkeypatch.chdir(folder)
    rows = frame().assign(member=lambda rows: rows["member"].astype(str))
    rows.assign(age=np.where(np.arange(len(rows)) == 3, np.inf, rows["age"])).to_csv("wild.csv", index=False)
    done = CliRunner().invoke(app, ["explain", str(ONE), "wild.csv", "--model", MODEL, "--out", "why.csv"])
    assert isinstance(done.exception, CortxError)
    assert "row 3" in str(done.exception)


def test_hints_are_said_in_options(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    codes = frame().assign(age=lambda rows: rows["age"] % 5, member=lambda rows: rows["member"].astype(str))
    codes.to_csv("codes.csv", index=False)
    command = ["fit", MODEL, "codes.csv", "--out", "x.cortx", "--budget", "100"]
    said, silent = (CliRunner().invoke(app, [*command, *more]).stderr for more in ([], ["--categorical", "none"]))
    assert "hint: " in said
    assert "--categorical none says so" in said
    assert "categorical=" not in said
    assert "hint: " not in silent


def test_arguments_become_the_options_of_the_command() -> None:
    assert words_of("fit", "fit with n_labels=..., not labels=...") == "fit with --labels, not --labels-from"
    assert words_of("evaluate", "load it with model=...") == "load it with --model"
    assert words_of("fit", "load it with model=...") == "load it with MODEL"
    assert words_of("fit", "drop=['a', 'b'] and row_budget=1,000;") == "--drop ['a', 'b'] and --row-budget 1,000;"
    assert words_of("fit", "once; Calls(retries=...) repeats") == "once; --retries repeats"
    assert words_of("explain", "needs explainer=: any; views= are others") == "needs EXPLAINER: any; views are others"


@pytest.mark.parametrize("text", ["got 'budget=3'", 'got "labels=..."', "rows in in/labels=3/budget=4/x", "x.model=3"])
def test_the_users_own_words_stay(text: str) -> None:
    assert words_of("fit", text) == text


# Calls ------------------------------------------------------------------------------------------------------------

SLOW = (
    "--calls",
    "3",
    "--rows-per-call",
    "7",
    "--calls-per-second",
    "1000000",
    "--retries",
    "2",
    "--call-timeout",
    "60",
)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the calls of `MODEL`, of which the second one fails."""
    sizes: list[int] = []

    def asked(table: Any) -> np.ndarray:
        sizes.append(len(table))
        if len(sizes) == 2:
            raise ConnectionError("try again")
        return score(table)

    monkeypatch.setattr("tests.compat.samples.score", asked)
    monkeypatch.setattr("cortx.games.calls.Calls.delay", lambda calls, repetition, uniform: 0.0)
    return sizes


def test_evaluate_calls_a_slow_model_as_told(folder: Path, flaky: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    command = ["evaluate", str(ONE), "rows.csv", "--model", MODEL, "--rows", "9", "--row-budget", "20"]
    slow = CliRunner().invoke(app, [*command, *SLOW, "--json", "slow.json"], catch_exceptions=False)
    assert slow.exit_code == 0
    assert max(flaky) == 7
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    CliRunner().invoke(app, [*command, "--json", "fast.json"], catch_exceptions=False)
    told, other = (json.loads(Path(name).read_text()) for name in ("slow.json", "fast.json"))
    assert told["worst_rows"] == other["worst_rows"]
    assert told["model"]["same"]


def test_explain_calls_a_slow_model_as_told(folder: Path, flaky: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, [*EXPLAIN, "--model", MODEL, *SLOW], catch_exceptions=False)
    assert done.exit_code == 0
    assert max(flaky) == 7
    assert (done.exit_code, sum(flaky)) == (0, len(frame()) + 32 + 7)  # rows, those that recognise it, one call again


def test_label_calls_a_slow_model_as_told(folder: Path, flaky: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    command = ["label", "--model", MODEL, "--data", "parts", "--budget", "900", "--workers", "0"]
    done = CliRunner().invoke(app, [*command, *SLOW, "--out", "slow"], catch_exceptions=False)
    assert done.exit_code == 0
    assert max(flaky) == 7
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    CliRunner().invoke(app, [*command, "--out", "fast"], catch_exceptions=False)
    slow, fast = (LabelFolder.open(name).read() for name in ("slow", "fast"))
    np.testing.assert_allclose(slow.values, fast.values, atol=1e-12)


@pytest.mark.parametrize("options", [SLOW, ("--retries", "2"), ()])
def test_fit_calls_a_slow_model_as_told(
    folder: Path, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    seen: list[Calls | None] = []

    def fit(explainer: Any, game: Any, *args: Any, **named: Any) -> Any:
        seen.append(game.calls)
        raise InputError("enough")

    monkeypatch.setattr("cortx.explainer.explainer.CoRTX.fit", fit)
    CliRunner().invoke(app, [*FIT, *options])
    told = Calls(workers=3, batch=7, per_second=1e6, retries=2, timeout=60)
    assert seen == [{SLOW: told, (): None}.get(options, Calls(retries=2))]
