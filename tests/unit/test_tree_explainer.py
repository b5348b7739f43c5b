"""A `TreeExplainer` explains what `shapley` does, without the model: after saving, on the command line and served."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from safetensors.numpy import load_file, save_file
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, QuantileTransformer, StandardScaler
from tests.unit.test_trees import CLASSES, X, Y, frame, prepared, target, text_frame
from typer.testing import CliRunner

import cortx
from cortx.errors import ArtifactError, FingerprintError, InputError
from cortx.interfaces.cli import app
from cortx.interfaces.server.catalog import load_version
from cortx.interfaces.server.settings import Settings


def wide_rows(n: int = 60) -> np.ndarray:
    """Rows far beyond those of training, too."""
    return np.random.default_rng(8).normal(scale=3.0, size=(n, 6))


@pytest.mark.parametrize(
    ("model", "y", "settings"),
    [
        (xgboost.XGBRegressor(n_estimators=10, max_depth=4), Y, {}),
        (xgboost.XGBClassifier(n_estimators=6, max_depth=3), CLASSES, {"output": "raw"}),
        (lightgbm.LGBMRegressor(n_estimators=10, verbose=-1, n_jobs=1), Y, {}),
        (RandomForestClassifier(5, max_depth=5, random_state=0), CLASSES, {}),
        (make_pipeline(StandardScaler(), RandomForestRegressor(4, max_depth=5, random_state=0)), Y, {}),
        (make_pipeline(QuantileTransformer(n_quantiles=20), xgboost.XGBRegressor(n_estimators=6)), Y, {}),
        (make_pipeline(FunctionTransformer(np.negative), xgboost.XGBRegressor(n_estimators=6)), Y, {}),
    ],
)
def test_saved_and_loaded_it_is_exact(model: Any, y: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    game = cortx.Game(model.fit(X, y), background=X[:5], categorical=(), **settings)
    made = cortx.TreeExplainer(game, X)
    assert game.evaluations == 16
    made.save(tmp_path / "trees.cortx")
    loaded = cortx.load(tmp_path / "trees.cortx")
    rows = np.concatenate([X[:40], wide_rows()])
    expected = cortx.shapley(game, rows, "tree")
    for explainer in (made, loaded):
        found = explainer.explain(rows, confidence=0.95)
        np.testing.assert_allclose(found.values, expected.values, atol=1e-9)
        np.testing.assert_allclose(found.outputs, expected.outputs, atol=1e-9)
        np.testing.assert_allclose(found.base_values, expected.base_values, atol=1e-9)
        np.testing.assert_array_equal(found.lower_bounds, found.values)
        np.testing.assert_array_equal(found.upper_bounds, found.values)
        assert not np.any(found.error_bound)
        assert found.output_names == expected.output_names
        assert found.evaluations == 0
        assert found.tree_passes == expected.tree_passes


@pytest.mark.parametrize("kind", ["categories", "histogram", "lightgbm", "pipeline"])
def test_categories_missing_values_and_pipelines(kind: str, tmp_path: Path) -> None:
    table = text_frame() if kind == "pipeline" else frame()
    models: dict[str, Any] = {
        "categories": xgboost.XGBRegressor(n_estimators=10, max_depth=4, enable_categorical=True, max_cat_to_onehot=1),
        "histogram": HistGradientBoostingRegressor(max_iter=10, categorical_features="from_dtype"),
        "lightgbm": lightgbm.LGBMRegressor(n_estimators=10, min_data_per_group=5, verbose=-1, n_jobs=1),
        "pipeline": make_pipeline(prepared(dense=True, bins=False), xgboost.XGBRegressor(n_estimators=10, max_depth=4)),
    }
    model = models[kind].fit(table, target(table))
    game = cortx.Game(model, background=table.iloc[:4], players={"look": ["colour", "size"]})
    cortx.TreeExplainer(game, table).save(tmp_path / "trees.cortx")
    loaded = cortx.load(tmp_path / "trees.cortx", model)
    expected = cortx.shapley(game, table, "tree")
    np.testing.assert_allclose(loaded.explain(table).values, expected.values, atol=1e-9)
    with pytest.raises(InputError, match=r"never saw.*TreeExplainer\(game, X\)"):
        loaded.explain(table.iloc[:1].assign(colour="purple"))


def test_a_step_that_neither_rises_nor_falls_is_refused() -> None:
    table = text_frame()
    model = make_pipeline(prepared(dense=False), xgboost.XGBRegressor(n_estimators=10, max_depth=4))
    sparse = cortx.Game(model.fit(table, target(table)), reference=table.iloc[[0]])
    with pytest.raises(InputError, match="zeros XGBoost takes as missing"):
        cortx.TreeExplainer(sparse, table)
    rounded = np.round(X)
    pipeline = make_pipeline(OneHotEncoder(handle_unknown="ignore"), RandomForestRegressor(3, random_state=0))
    game = cortx.Game(pipeline.fit(rounded, Y), reference=rounded[:1], categorical=())
    assert cortx.shapley(game, rounded[:3]).method == "tree"
    with pytest.raises(InputError, match="rises nor falls"):
        cortx.TreeExplainer(game, rounded)


def test_another_model_and_other_outputs_are_refused(tmp_path: Path) -> None:
    model = RandomForestRegressor(4, max_depth=4, random_state=0).fit(X, Y)
    explainer = cortx.TreeExplainer(cortx.Game(model, reference=X, categorical=()), X)
    explainer.save(tmp_path / "trees.cortx")
    assert explainer.explain(X[:5], model.predict(X[:5])).exact is not None
    with pytest.raises(InputError, match="another model"):
        explainer.explain(X[:5], model.predict(X[:5]) + 1.0)
    other = RandomForestRegressor(4, max_depth=4, random_state=1).fit(X, Y)
    with pytest.raises(FingerprintError, match=r"make another TreeExplainer\(game, X\)"):
        cortx.load(tmp_path / "trees.cortx", other)
    assert cortx.load(tmp_path / "trees.cortx", model).game is not None
    for call in (explainer.fit, explainer.refit, explainer.calibrate, explainer.evaluate, explainer.prior):
        with pytest.raises(InputError, match="TreeExplainer"):
            call(X)
    linear = cortx.Game(LinearRegression().fit(X, Y), reference=X, categorical=())
    with pytest.raises(InputError, match="Linear"):
        cortx.TreeExplainer(linear, X)


def test_damaged_trees_are_refused(tmp_path: Path) -> None:
    model = RandomForestRegressor(2, max_depth=3, random_state=0).fit(X, Y)
    cortx.TreeExplainer(cortx.Game(model, reference=X, categorical=()), X).save(tmp_path / "trees.cortx")
    weights = next((tmp_path / "trees.cortx").glob("*.safetensors"))
    arrays = load_file(weights)
    for name, place, wrong in [("left", 0, 10**6), ("left", 1, 0), ("roots", 0, -1), ("column", 0, 77)]:
        damaged = {key: array.copy() for key, array in arrays.items()}
        damaged[f"forest.{name}"][place] = wrong
        save_file(damaged, weights)
        document = tmp_path / "trees.cortx" / "manifest.json"
        manifest = json.loads(document.read_text())
        manifest["weights"]["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
        document.write_text(json.dumps(manifest))
        with pytest.raises(ArtifactError, match="cannot be rebuilt"):
            cortx.load(tmp_path / "trees.cortx")


def test_it_is_served(tmp_path: Path) -> None:
    table = frame()
    model = lightgbm.LGBMRegressor(n_estimators=5, min_data_per_group=5, verbose=-1, n_jobs=1)
    game = cortx.Game(model.fit(table, target(table)), reference=table.iloc[[0]])
    explainer = cortx.TreeExplainer(game, table)
    explainer.save(tmp_path / "trees.cortx")
    version = load_version("trees", tmp_path / "trees.cortx", None, None, Settings())
    assert version.confidence is not None
    assert version.description["confidence"]["highest"] > 0.999
    assert [column["name"] for column in version.description["columns"]] == list(table.columns)
    record = {"age": 41.0, "colour": "red", "size": None, "kind": "a", "weight": 0.5}
    rows = version.reader.read([record])
    answer = version.explainer.explain(version.reader.join([rows]), confidence=0.9)
    same = pd.DataFrame([record]).astype({"size": float})
    same = same.astype({name: table[name].dtype for name in ("colour", "kind")})
    np.testing.assert_allclose(answer.values, cortx.shapley(game, same, "tree").values, atol=1e-9)


class Begun(Exception):
    """Raised where a fit begins to work."""


def test_the_command_line_explains(tmp_path: Path) -> None:
    table = pd.DataFrame(X, columns=list("abcdef"))
    model = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1).fit(table, Y)
    game = cortx.Game(model, reference=table, categorical=())
    cortx.TreeExplainer(game, table).save(tmp_path / "trees.cortx")
    table.iloc[:20].to_csv(tmp_path / "new.csv", index=False)
    explain = ["explain", str(tmp_path / "trees.cortx"), str(tmp_path / "new.csv"), "--confidence", "0.9"]
    done = CliRunner().invoke(app, [*explain, "--out", str(tmp_path / "why.csv")])
    assert done.exit_code == 0, done.output
    why = pd.read_csv(tmp_path / "why.csv")
    expected = cortx.shapley(game, table.iloc[:20], "tree")
    np.testing.assert_allclose(why[[f"attribution_{name}" for name in "abcdef"]], expected.values, atol=1e-9)
    np.testing.assert_allclose(why["lower_a"], why["upper_a"])
    np.testing.assert_allclose(why["model_output"], model.predict(table.iloc[:20]), atol=1e-9)


def test_a_fit_says_that_it_is_not_needed(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: Any) -> None:
        raise Begun

    monkeypatch.setattr("cortx.explainer.explainer.fit_explainer", begin)
    model = RandomForestRegressor(3, max_depth=3, random_state=0).fit(X, Y)
    game = cortx.Game(model, reference=X, categorical=())
    with caplog.at_level(logging.WARNING, logger="cortx"), pytest.raises(Begun):
        cortx.CoRTX().fit(game, X)
    assert sum("needs no learned explainer" in record.message for record in caplog.records) == 1
    caplog.clear()
    linear = cortx.Game(lambda rows: rows.sum(axis=1), reference=X, categorical=())
    with caplog.at_level(logging.WARNING, logger="cortx"), pytest.raises(Begun):
        cortx.CoRTX().fit(linear, X)
    assert not caplog.records
