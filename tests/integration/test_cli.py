"""The command line as a user runs it: real processes, real files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import make_tiny_recipe
from tests.guard import HANG

MODELS = '''
import numpy as np

class Scores:
    """Two interacting columns, one that matters a little, one with text."""
    classes_ = np.array(["no", "yes"])

    def predict_proba(self, frame):
        text = np.where(frame["colour"].to_numpy() == "red", 1.0, 0.0)
        z = frame["a"].to_numpy() * (1 + text) - 0.5 * frame["b"].to_numpy()
        yes = 1 / (1 + np.exp(-z))
        return np.stack([1 - yes, yes], axis=1)

    def predict(self, frame):
        return self.predict_proba(frame).argmax(axis=1)

class Registry:
    best = Scores()

model = Scores()
registry = Registry()

def other(frame):
    return 0.5 + 0.4 * np.sin(frame["a"].to_numpy())

def three(frame):
    return np.full((len(frame), 3), 1 / 3)

def broken(frame):
    raise RuntimeError("out of order")
'''


ATTRIBUTIONS = ["attribution_a", "attribution_b", "attribution_colour"]
TEST_COLUMNS = ["a", "b", "colour", "bought", "score"]


def cortx(*arguments: object, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "cortx.interfaces.cli", *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    if code == 2:
        assert "Traceback" not in done.stderr
    return done


def some_rows(count: int, seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "a": generator.normal(size=count),
            "b": generator.normal(size=count),
            "colour": generator.choice(["red", "blue"], size=count),
            "bought": generator.integers(0, 2, size=count),
        }
    )


def model_outputs(rows: pd.DataFrame) -> np.ndarray:
    z = rows["a"] * (1 + (rows["colour"] == "red")) - 0.5 * rows["b"]
    return (1 / (1 + np.exp(-z))).to_numpy()


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, tables, and an explainer that the command line fitted."""
    folder = tmp_path_factory.mktemp("workshop")
    (folder / "scoring.py").write_text(MODELS)
    some_rows(80, seed=0).to_csv(folder / "train.csv", index=False)
    test = some_rows(12, seed=1).assign(score=lambda rows: model_outputs(rows))
    test.to_csv(folder / "test.csv", index=False)
    test.to_parquet(folder / "test.parquet", index=False)
    done = cortx("fit", "scoring:model", "train.csv", "--drop", "bought", "--recipe", "quick", "--labels", 40,
                 "--out", "credit.cortx", folder=folder)  # fmt: skip
    assert "What the fit cost" in done.stdout
    assert "model evaluations" in done.stdout
    assert "Saved to credit.cortx" in done.stdout
    assert "labelling 40 of 80 rows" in done.stderr
    return folder


@pytest.fixture(scope="session")
def bounded(workshop: Path) -> Path:
    """The workshop with a calibrated explainer, of one output and of two, and fresh rows as they were and shifted."""
    import cortx as library

    names: dict[str, Any] = {}
    exec(MODELS, names)
    rows = some_rows(400, seed=0).drop(columns="bought")
    for name, target in (("bounded.cortx", None), ("both.cortx", "all")):
        game = library.Game(names["model"], reference=rows, target=target)
        library.CoRTX(make_tiny_recipe()).fit(game, rows, budget=8_000).save(workshop / name)
    fresh = some_rows(150, seed=5).assign(region=np.where(np.arange(150) % 3, "north", "[south]"))
    fresh.to_csv(workshop / "fresh.csv", index=False)
    fresh.assign(b=fresh["b"] - 2).to_csv(workshop / "shifted.csv", index=False)
    return workshop


# Without an explainer: quick ---------------------------------------------------------------------------------


def test_help_teaches_with_an_example(tmp_path: Path) -> None:
    assert "cortx demo" in cortx("--help", folder=tmp_path).stdout
    for command in ("fit", "explain", "evaluate", "demo"):
        text = cortx(command, "--help", folder=tmp_path).stdout
        assert "Example" in text
        assert f"cortx {command}" in text


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; import cortx.interfaces.cli; "
        "print([m for m in ('torch', 'numpy', 'pandas', 'polars', 'matplotlib', 'narwhals') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version(tmp_path: Path) -> None:
    import cortx as library

    assert cortx("--version", folder=tmp_path).stdout.strip() == f"cortx {library.__version__}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("scoring", "rows.csv"), ["package.module:object", "'scoring'"]),
        (("nowhere:model", "rows.csv"), ["no module 'nowhere'"]),
        (("scoring:modle", "rows.csv"), ["no 'modle'", "registry"]),
        (("scoring:registry.worst", "rows.csv"), ["no 'worst'", "best"]),
        (("missing.onnx", "rows.csv"), ["no ONNX file 'missing.onnx'"]),
        (("scoring:model", "nothing.csv"), ["no file 'nothing.csv'"]),
        (("scoring:model", "scoring.py"), [".csv", ".parquet"]),
        (("scoring:model", "empty.csv"), ["'empty.csv'", "no rows"]),
        (("scoring:model", "broken.parquet"), ["not a readable Parquet file"]),
        (("scoring:model", "rows.csv", "--drop", "label"), ["--drop label", "it has a, b, colour"]),
        (("scoring:model", "rows.csv", "--group", "both"), ["'name=col1,col2'", "'both'"]),
        (("scoring:model", "rows.csv", "--recipe", "cake"), ["cake", "default"]),
        (("scoring:model", "rows.csv", "--labels", "10", "--budget", "10"), ["--budget and --labels", "one of them"]),
        (("scoring:model", "rows.csv", "--plot", "curve.svg"), [".png"]),
    ],
)
def test_fit_says_what_is_wrong(tmp_path: Path, arguments: tuple[str, ...], words: list[str]) -> None:
    (tmp_path / "scoring.py").write_text(MODELS)
    some_rows(20, seed=0).drop(columns="bought").to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "empty.csv").write_text("a,b\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing more")
    done = cortx("fit", *arguments, "--out", "x.cortx", folder=tmp_path, code=2)
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "x.cortx").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("scoring:model", "rows.csv", "--group", "g=a,z"), ["'z'"]),
        (("scoring:model", "rows.csv", "--reference", "ground"), ["'table', 'zero' or a file", "'ground'"]),
        (("scoring:model", "rows.csv", "--reference", "zero", "--background", "rows.csv"), ["use one of them"]),
        (("scoring:model", "rows.csv", "--heads", "crystal"), ["'crystal'", "'attribution'"]),
        (("scoring:model", "rows.csv", "--target", "maybe"), ["'maybe'", "no, yes"]),
        (("scoring:model", "rows.csv", "--labels", "3"), ["n_labels", "3"]),
        (("scoring:broken", "rows.csv"), ["RuntimeError", "out of order"]),
        (("scoring:model", "rows.csv", "--budget", "10000"), ["20 rows", "at least 100 rows"]),
    ],
)
def test_fit_says_what_the_library_refuses(tmp_path: Path, arguments: tuple[str, ...], words: list[str]) -> None:
    test_fit_says_what_is_wrong(tmp_path, arguments, words)


def test_fit_refuses_to_replace_a_foreign_folder_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text.txt").write_text("years of work")
    done = cortx("fit", "scoring:model", "rows.csv", "--out", "thesis", folder=tmp_path, code=2)
    assert "not a cortx explainer" in done.stderr
    assert (tmp_path / "thesis" / "text.txt").read_text() == "years of work"


def test_an_error_inside_the_users_module_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "scoring.py").write_text("import a_library_nobody_has\n")
    done = cortx("fit", "scoring:model", "rows.csv", "--out", "x.cortx", folder=tmp_path, code=1)
    assert "Traceback" in done.stderr
    assert "a_library_nobody_has" in done.stderr


# With an explainer -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("table", "out"), [("test.csv", "why.csv"), ("test.parquet", "why.parquet")])
def test_explain_adds_up_to_the_models_output(workshop: Path, tmp_path: Path, table: str, out: str) -> None:
    done = cortx("explain", "credit.cortx", table, "--model", "scoring:model", "--out", tmp_path / out, folder=workshop)
    assert "Explained 12 rows" in done.stderr
    assert "12 model evaluations" in done.stderr
    frame = (pd.read_csv if out.endswith("csv") else pd.read_parquet)(tmp_path / out)
    assert list(frame.columns) == [*TEST_COLUMNS, *ATTRIBUTIONS, "base_value", "model_output"]
    expected = model_outputs(some_rows(12, seed=1))
    np.testing.assert_allclose(frame["model_output"], expected, atol=1e-9)
    np.testing.assert_allclose(frame[[*ATTRIBUTIONS, "base_value"]].sum(axis=1), expected, atol=1e-9)
    assert os.listdir(tmp_path) == [out]


@pytest.mark.slow
def test_what_is_only_copied_does_not_change(workshop: Path, tmp_path: Path) -> None:
    """Leading zeros, gaps, words that look like gaps, whole numbers that no float holds: files and folders alike."""
    rows = some_rows(4, seed=1)
    texts = rows.astype(str).assign(id=["007", "", "NA", "9007199254740993"], day=["2026-01-02", "1e3", "0.10", "x,y"])
    texts.to_csv(tmp_path / "in.csv", index=False)
    common = ("--model", "scoring:model", "--out")
    cortx("explain", "credit.cortx", tmp_path / "in.csv", *common, tmp_path / "why.csv", folder=workshop)
    read = {"dtype": str, "keep_default_na": False}
    after = pd.read_csv(tmp_path / "why.csv", **read)
    pd.testing.assert_frame_equal(after[texts.columns], pd.read_csv(tmp_path / "in.csv", **read))
    assert list(after.columns) == [*texts.columns, *ATTRIBUTIONS, "base_value", "model_output"]
    kept = pa.Table.from_pandas(rows, preserve_index=False).append_column(
        "id", pa.array([None, 9007199254740993, 3, 4], pa.int64())
    )
    (tmp_path / "in").mkdir()
    pq.write_table(kept, tmp_path / "in" / "rows.parquet")
    cortx("explain", "credit.cortx", tmp_path / "in" / "rows.parquet", *common, tmp_path / "file.parquet",
          folder=workshop)  # fmt: skip
    cortx("explain", "credit.cortx", tmp_path / "in", *common, tmp_path / "out", "--workers", 0, folder=workshop)
    one, many = pq.read_table(tmp_path / "file.parquet"), pq.read_table(tmp_path / "out" / "rows.parquet")
    assert one.column_names == many.column_names == [*kept.column_names, *ATTRIBUTIONS, "base_value", "model_output"]
    assert one.column("id").equals(kept.column("id"))
    assert many.column("id").equals(kept.column("id"))
    for name in ("attribution_a", "base_value", "model_output"):
        np.testing.assert_allclose(one.column(name), many.column(name), atol=1e-9)
    taken = rows.assign(attribution_a=1.0)
    taken.to_csv(tmp_path / "taken.csv", index=False)
    done = cortx(
        "explain", "credit.cortx", tmp_path / "taken.csv", *common, tmp_path / "no.csv", folder=workshop, code=2
    )
    assert "'attribution_a'; rename or drop" in done.stderr


@pytest.mark.slow
def test_explain_with_outputs_of_a_column_equals_the_model(workshop: Path, tmp_path: Path) -> None:
    for name, option in (("model", ("--model", "scoring:model")), ("column", ("--outputs", "score"))):
        cortx("explain", "credit.cortx", "test.csv", *option, "--out", tmp_path / f"{name}.csv", folder=workshop)
    first, second = pd.read_csv(tmp_path / "model.csv"), pd.read_csv(tmp_path / "column.csv")
    assert list(first.columns) == list(second.columns)
    for name in (*ATTRIBUTIONS, "base_value", "model_output"):
        np.testing.assert_allclose(first[name], second[name], atol=1e-9)


@pytest.mark.slow
def test_explain_without_model_says_that_it_guessed(workshop: Path, tmp_path: Path) -> None:
    done = cortx("explain", "credit.cortx", "test.csv", "--out", tmp_path / "why.csv", folder=workshop)
    assert "guessed" in done.stderr
    assert "model_output" not in pd.read_csv(tmp_path / "why.csv").columns


@pytest.mark.slow
def test_explain_top_and_plot(workshop: Path, tmp_path: Path) -> None:
    cortx("explain", "credit.cortx", "test.csv", "--model", "scoring:model", "--out", tmp_path / "all.csv",
          folder=workshop)  # fmt: skip
    cortx("explain", "credit.cortx", "test.csv", "--model", "scoring:model", "--out", tmp_path / "top.csv",
          "--top", 2, "--plot", tmp_path / "why.png", folder=workshop)  # fmt: skip
    every, top = pd.read_csv(tmp_path / "all.csv"), pd.read_csv(tmp_path / "top.csv")
    names = ["feature_1", "value_1", "feature_2", "value_2", "base_value", "model_output"]
    assert list(top.columns) == [*TEST_COLUMNS, *names]
    for i, row in top.iterrows():
        order = every.loc[i, ATTRIBUTIONS].abs().sort_values(ascending=False).index
        assert [f"attribution_{row[name]}" for name in ("feature_1", "feature_2")] == list(order[:2])
        assert row["value_1"] == pytest.approx(every.loc[i, order[0]])
    assert (tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_failed_explain_leaves_the_old_file_alone(workshop: Path, tmp_path: Path) -> None:
    out = tmp_path / "why.csv"
    out.write_text("old")
    bad = some_rows(3, seed=2).assign(colour="green")
    bad.to_csv(tmp_path / "bad.csv", index=False)
    done = cortx("explain", "credit.cortx", tmp_path / "bad.csv", "--out", out, folder=workshop, code=2)
    assert "'green'" in done.stderr
    assert out.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["bad.csv", "why.csv"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("credit.cortx", "test.csv", "--out", "why.xlsx"), [".csv or .parquet"]),
        (("credit.cortx", "test.csv", "--out", "why.csv", "--plot", "why.svg"), [".png"]),
        (("nothing.cortx", "test.csv", "--out", "why.csv"), ["no explainer at nothing.cortx"]),
        (("credit.cortx", "test.csv", "--out", "why.csv", "--outputs", "cost"), ["--outputs cost", "score"]),
        (("credit.cortx", "test.csv", "--out", "why.csv", "--outputs", "colour"), ["must hold numbers"]),
        (("credit.cortx", "test.csv", "--out", "why.csv", "--model", "scoring:other"), ["not the model"]),
        (("credit.cortx", "narrow.csv", "--out", "why.csv"), ["lacks 'b'"]),
    ],
)
def test_explain_says_what_is_wrong(workshop: Path, arguments: tuple[str, ...], words: list[str]) -> None:
    some_rows(3, seed=2).drop(columns="b").to_csv(workshop / "narrow.csv", index=False)
    done = cortx("explain", *arguments, folder=workshop, code=2)
    for word in words:
        assert word in done.stderr
    assert not (workshop / "why.csv").exists()


@pytest.mark.slow
def test_evaluate_measures_against_fresh_labels(workshop: Path, tmp_path: Path) -> None:
    done = cortx("evaluate", "credit.cortx", "test.csv", "--model", "scoring:registry.best", "--rows", 10,
                 "--json", tmp_path / "quality.json", folder=workshop)  # fmt: skip
    assert "Rank ACC" in done.stdout
    assert "labels: exact" in done.stdout
    assert "model evaluations" in done.stdout
    result = json.loads((tmp_path / "quality.json").read_text())
    assert result["rows"] == 10
    assert result["label_standard_error"] == 0
    assert result["explain_evaluations"] == 10
    assert 0 < result["label_evaluations"] <= 10 * 2**3
    assert result["l2"] < 0.5 * result["label_norm"]
    assert sorted(os.listdir(tmp_path)) == ["quality.json"]


@pytest.mark.slow
def test_evaluate_without_calibration_still_gives_a_verdict(workshop: Path, tmp_path: Path) -> None:
    done = cortx("evaluate", "credit.cortx", "test.csv", "--model", "scoring:model", "--plot", tmp_path / "q.png",
                 folder=workshop)  # fmt: skip
    assert "not calibrated" in done.stdout
    assert "VERDICT" in done.stdout
    assert (tmp_path / "q.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_evaluate_says_that_it_fits(bounded: Path, tmp_path: Path) -> None:
    done = cortx("evaluate", "bounded.cortx", "fresh.csv", "--model", "scoring:model", "--slice", "region",
                 "--slice", "a", "--confidence", 0.8, "--json", tmp_path / "q.json", "--plot", tmp_path / "q.png",
                 "--strict", folder=bounded)  # fmt: skip
    for words in ("Bounds at 80% confidence", "The rows farthest from their labels", "By part of a column", "[south]",
                  "Columns against the training table", "VERDICT: fits"):  # fmt: skip
        assert words in done.stdout
    assert "VERDICT" in done.stdout[-1_500:]
    result = json.loads((tmp_path / "q.json").read_text())
    assert (result["verdict"], result["fits"], result["rows"]) == ("fits", True, 150)
    assert {part["column"] for part in result["slices"]} == {"region", "a"}
    assert 0.7 <= result["coverage"]["bound"] <= 0.9
    assert (tmp_path / "q.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir(tmp_path)) == ["q.json", "q.png"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "model", "verdict", "words"),
    [
        ("shifted.csv", "scoring:model", "data drifted", "column 'b': median"),
        ("fresh.csv", "scoring:other", "model changed", "this is not the model of the fit"),
    ],
)
def test_evaluate_calls_out_what_changed(bounded: Path, table: str, model: str, verdict: str, words: str) -> None:
    done = cortx("evaluate", "both.cortx", table, "--model", model, folder=bounded)
    assert f"VERDICT: {verdict}" in done.stdout
    assert words in done.stdout
    again = cortx("evaluate", "bounded.cortx", table, "--model", model, "--strict", folder=bounded, code=1)
    assert f"VERDICT: {verdict}" in again.stdout
    assert "Traceback" not in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bounded.cortx", "fresh.csv", "--model", "scoring:broken"), ["out of order"]),
        (("bounded.cortx", "fresh.csv", "--model", "scoring:three"), ["3 outputs", "fitted for 1"]),
        (("bounded.cortx", "fresh.csv", "--model", "scoring:model", "--slice", "planet"), ["--slice planet", "region"]),
        (("bounded.cortx", "fresh.csv", "--model", "scoring:model", "--confidence", "2"), ["between 0 and 1"]),
        (("bounded.cortx", "fresh.csv", "--model", "scoring:model", "--plot", "q.pdf"), [".png"]),
    ],
)
def test_evaluate_says_what_is_wrong(bounded: Path, arguments: tuple[str, ...], words: list[str]) -> None:
    done = cortx("evaluate", *arguments, folder=bounded, code=2)
    for word in words:
        assert word in done.stderr


@pytest.mark.slow
def test_explain_with_bounds(bounded: Path, tmp_path: Path) -> None:
    common = ("explain", "bounded.cortx", "fresh.csv", "--model", "scoring:model", "--confidence", 0.9)
    cortx(*common, "--out", tmp_path / "all.csv", folder=bounded)
    frame = pd.read_csv(tmp_path / "all.csv")
    bands = [f"{end}_{name}" for name in ("a", "b", "colour") for end in ("lower", "upper")]
    before = list(pd.read_csv(bounded / "fresh.csv").columns)
    assert list(frame.columns) == [*before, *ATTRIBUTIONS, "base_value", *bands, "error_bound", "model_output"]
    assert (frame["lower_a"] <= frame["attribution_a"]).all()
    assert (frame["attribution_a"] <= frame["upper_a"]).all()
    cortx(*common, "--top", 1, "--out", tmp_path / "top.csv", folder=bounded)
    top = pd.read_csv(tmp_path / "top.csv")
    names = ["feature_1", "value_1", "lower_1", "upper_1", "base_value", "error_bound", "model_output"]
    assert list(top.columns) == [*before, *names]
    for i, row in top.iterrows():
        assert row["upper_1"] == pytest.approx(frame.loc[i, f"upper_{row['feature_1']}"])
    np.testing.assert_allclose(top["error_bound"], frame["error_bound"])


@pytest.mark.slow
def test_explain_refines_to_a_tolerance(bounded: Path, tmp_path: Path) -> None:
    common = ("explain", "bounded.cortx", "fresh.csv", "--model", "scoring:model", "--tolerance", 0.001)
    done = cortx(*common, "--out", tmp_path / "all.csv", folder=bounded)
    last = done.stderr.strip().splitlines()[-1]
    assert "of 150 rows were refined, 0 still exceed the tolerance of 0.001." in last
    frame = pd.read_csv(tmp_path / "all.csv")
    assert (frame["error_bound"] <= 0.001).all()
    done = cortx(*common, "--row-budget", 1, "--out", tmp_path / "none.csv", folder=bounded)
    wide = (pd.read_csv(tmp_path / "none.csv")["error_bound"] > 0.001).sum()
    assert wide > 0
    assert f"0 of 150 rows were refined, {wide} still exceed" in done.stderr
    assert "(" in last
    assert "model evaluations" in last


@pytest.mark.slow
def test_explain_writes_reason_codes(bounded: Path, tmp_path: Path) -> None:
    common = ("explain", "both.cortx", "fresh.csv", "--model", "scoring:model", "--reasons", 2, "--exclude", "b",
              "--direction", "up", "--output", "yes")  # fmt: skip
    cortx(*common, "--out", tmp_path / "why.csv", folder=bounded)
    frame = pd.read_csv(tmp_path / "why.csv")
    assert list(frame.columns[:6]) == ["row", "rank", "feature", "value", "attribution", "direction"]
    assert set(frame["feature"]) <= {"a", "colour"}
    assert (frame["attribution"] > 0).all()
    cortx(*common, "--confidence", 0.9, "--out", tmp_path / "why.json", folder=bounded)
    reasons = json.loads((tmp_path / "why.json").read_text())
    assert len(reasons) == 150
    assert reasons[0]["output"] == "yes"
    assert sum(len(row["reasons"]) for row in reasons) == len(frame)
    assert {"lower", "upper", "certain"} <= set(next(row for row in reasons if row["reasons"])["reasons"][0])
    assert sorted(os.listdir(tmp_path)) == ["why.csv", "why.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("credit.cortx", "--confidence", "0.9"), ["not calibrated"]),
        (("bounded.cortx", "--confidence", "0.999"), ["needs more calibration rows"]),
        (("bounded.cortx", "--row-budget", "9"), ["--tolerance"]),
        (("bounded.cortx", "--exclude", "a"), ["--exclude", "--reasons K"]),
        (("bounded.cortx", "--direction", "up"), ["--direction", "--reasons K"]),
        (("bounded.cortx", "--reasons", "2", "--top", "2"), ["--top and --reasons"]),
        (("bounded.cortx", "--reasons", "2", "--exclude", "planet"), ["planet"]),
        (("both.cortx", "--reasons", "2"), ["2 outputs", "no, yes"]),
    ],
)
def test_explain_says_what_bounds_and_reasons_need(
    bounded: Path, tmp_path: Path, arguments: tuple[str, ...], words: list[str]
) -> None:
    explainer, *options = arguments
    done = cortx("explain", explainer, "fresh.csv", "--model", "scoring:model", "--out", tmp_path / "why.csv", *options,
                 folder=bounded, code=2)  # fmt: skip
    for word in words:
        assert word in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_fit_with_a_budget_plans_spends_and_calibrates(workshop: Path, tmp_path: Path) -> None:
    some_rows(120, seed=0).to_csv(tmp_path / "train.csv", index=False)
    done = cortx("fit", "scoring:model", tmp_path / "train.csv", "--drop", "bought", "--recipe", "quick", "--budget",
                 9_000, "--out", tmp_path / "new.cortx", "--plot", tmp_path / "curve.png", folder=workshop)  # fmt: skip
    assert done.stderr.count("plan for 9,000 model evaluations") == 1
    assert "calibration" in done.stdout
    words = " ".join(done.stdout.split())
    assert "Calibrated on 50 rows, up to a confidence of 0.980; the median 90% bound on a row's error is" in words
    # So few labels are bought at once: there is no curve to draw.
    assert "There is no learning curve" in done.stderr
    assert not (tmp_path / "curve.png").exists()
    explained = ("explain", tmp_path / "new.cortx", "test.csv", "--model", "scoring:model", "--confidence", 0.95)
    cortx(*explained, "--out", tmp_path / "why.csv", folder=workshop)
    assert "error_bound" in pd.read_csv(tmp_path / "why.csv").columns


@pytest.mark.slow
def test_groups_background_target_and_ranking(tmp_path: Path) -> None:
    (tmp_path / "scoring.py").write_text(MODELS)
    rows = some_rows(40, seed=0).drop(columns="bought")
    rows.to_parquet(tmp_path / "rows.parquet", index=False)
    rows.head(2).to_csv(tmp_path / "background.csv", index=False)
    cortx("fit", "scoring:model", "rows.parquet", "--group", "numbers=a,b", "--background", "background.csv",
          "--target", "no", "--output", "log-odds", "--heads", "attribution,ranking", "--recipe", "quick",
          "--labels", 20, "--checkpoint", "progress", "--out", "sub/groups.cortx", folder=tmp_path)  # fmt: skip
    cortx("explain", "sub/groups.cortx", "rows.parquet", "--model", "scoring:model", "--out", "why.csv",
          folder=tmp_path)  # fmt: skip
    frame = pd.read_csv(tmp_path / "why.csv")
    added = ["attribution_numbers", "attribution_colour", "base_value"]
    assert list(frame.columns) == ["a", "b", "colour", *added, "model_output"]
    yes = model_outputs(rows)
    np.testing.assert_allclose(frame["model_output"], np.log1p(-yes) - np.log(yes), atol=1e-6)
    np.testing.assert_allclose(frame[added].sum(axis=1), frame["model_output"], atol=1e-9)


@pytest.mark.slow
def test_the_demo_runs_from_start_to_end(tmp_path: Path) -> None:
    done = cortx("demo", "--fast", "--out", "pictures", folder=tmp_path)
    text = " ".join(done.stdout.split())  # lines may break anywhere
    for words in (
        "CoRTX, one pass",
        "shap exact",
        "shap kernel",
        "shap permutation",
        "evaluations",
        "it pays beyond",
        "plan for 5,000 model evaluations",
        "exact labels of all training rows",
        "bounds held for",
    ):
        assert words in text
    assert str(tmp_path / "pictures") in done.stdout
    names = sorted(os.listdir(tmp_path / "pictures"))
    kinds = ("agreement", "comparison", "summary", "waterfall")
    assert names == [f"{case}-{kind}.png" for case in (1, 2) for kind in kinds]


@pytest.mark.slow
def test_the_demo_without_shap_leaves_its_lines_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from cortx.interfaces import demo

    monkeypatch.setattr(demo, "_has", lambda module: False)
    with (tmp_path / "log.txt").open("w") as log:
        demo.run(tmp_path / "pictures", fast=True, console=Console(file=log, width=120))
    text = (tmp_path / "log.txt").read_text()
    assert "shap is not installed" in text
    assert "shap kernel" not in text
    assert "cortx exact" in text


# Folders -----------------------------------------------------------------------------------------------------


def write_parts(folder: Path) -> None:
    folder.mkdir()
    for part in range(3):
        some_rows(20, seed=part).drop(columns="bought").to_parquet(folder / f"{part}.parquet", index=False)


@pytest.mark.parametrize(
    "option",
    [
        ("--plot", "why.png"),
        ("--tolerance", "0.1"),
        ("--row-budget", "100"),
        ("--reasons", "2"),
        ("--exclude", "a"),
        ("--direction", "up"),
        ("--output", "yes"),
    ],
)
def test_explain_of_a_folder_refuses_what_is_for_files(tmp_path: Path, option: tuple[str, str]) -> None:
    write_parts(tmp_path / "in")
    done = cortx("explain", "x.cortx", "in", "--out", "out", *option, folder=tmp_path, code=2)
    assert f"{option[0]} is for a single file" in done.stderr
    assert not (tmp_path / "out").exists()


def on_a_terminal(*arguments: object, folder: Path) -> str:
    """What the command writes to a terminal."""
    import pty

    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "TERM": "xterm"}
    command = [sys.executable, "-m", "cortx.interfaces.cli", *map(str, arguments)]
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                some = os.read(ours, 65_536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not some:
                break
            written += some
        os.close(ours)
    text = written.decode()
    assert process.returncode == 0, text
    return text


@pytest.mark.slow
def test_a_folder_shows_how_far_it_is(workshop: Path, tmp_path: Path) -> None:
    write_parts(tmp_path / "in")
    shown = on_a_terminal("explain", workshop / "credit.cortx", "in", "--out", "shown", folder=tmp_path)
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))
    time = r"(?:\d+:\d\d:\d\d|-:--:--)"
    bars = [found for line in lines if (found := re.match(rf"explaining +━+ +(\d+)% ({time}) ({time}) (.*)", line))]
    assert bars
    assert int(bars[0][1]) < 100
    assert (bars[-1][1], bars[-1][3]) == ("100", "0:00:00")  # nothing is left
    assert "rows/s" in bars[-1][4]
    assert "Explained 60 rows" in shown
    silent = cortx("explain", workshop / "credit.cortx", "in", "--out", "silent", folder=tmp_path)
    assert silent.stdout == ""
    assert "Explained 60 rows" in silent.stderr
    for sign in ("━", "%", "\x1b", "explaining"):
        assert sign not in silent.stderr
