"""CatBoost's trees: against enumeration, against CatBoost's own outputs and leaves, and against shap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import shap
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler
from tests.unit.test_trees import CLASSES, X, Y, frame, prepared, target, text_frame

import cortx
from cortx.errors import InputError
from cortx.estimators.tree_student import TreeStudent
from cortx.games.tree_readers import NotTrees
from cortx.games.trees import read_trees

catboost = pytest.importorskip("catboost")

SMALL: dict[str, Any] = {
    "iterations": 12, "depth": 4, "learning_rate": 0.3, "random_seed": 0, "thread_count": 1, "verbose": False,
    "allow_writing_files": False,
}  # fmt: skip
ONE_HOT = {**SMALL, "one_hot_max_size": 10}
HOLED = np.where(np.random.default_rng(3).random(X.shape) < 0.15, np.nan, X)


def regressor(**settings: Any) -> Any:
    return catboost.CatBoostRegressor(**{**SMALL, **settings})


def classifier(**settings: Any) -> Any:
    return catboost.CatBoostClassifier(**{**SMALL, **settings})


MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "regression": (regressor(), Y, {}),
    "quantile": (regressor(loss_function="Quantile:alpha=0.7"), Y, {}),
    "outputs": (regressor(loss_function="MultiRMSE"), np.stack([Y, X[:, 0] * Y], axis=1), {}),
    "depthwise": (regressor(grow_policy="Depthwise"), Y, {}),
    "lossguide": (regressor(grow_policy="Lossguide", max_leaves=9), Y, {}),
    "binary": (classifier(), Y > 0, {"output": "raw"}),
    "log-odds": (classifier(), Y > 0, {"output": "log-odds", "target": 0}),
    "classes": (classifier(), CLASSES, {"output": "raw"}),
    "one-class": (classifier(), CLASSES, {"output": "raw", "target": 1}),
    "classes-lossguide": (classifier(grow_policy="Lossguide"), CLASSES, {"output": "raw"}),
    "one-versus-all": (classifier(loss_function="MultiClassOneVsAll"), CLASSES, {"output": "log-odds", "target": 1}),
    "base": (catboost.CatBoost({**SMALL, "loss_function": "RMSE"}), Y, {}),
    "ranker": (catboost.CatBoostRanker(**SMALL, loss_function="QueryRMSE"), Y, {}),
}


def agree(game: cortx.Game, rows: Any) -> cortx.Explanation:
    """Both ways, compared; returns what the trees say."""
    found, expected = (cortx.shapley(game, rows, method) for method in ("tree", "exact"))
    np.testing.assert_allclose(found.values, expected.values, atol=1e-6)
    np.testing.assert_allclose(found.base_values, expected.base_values, atol=1e-6)
    np.testing.assert_allclose(found.outputs, expected.outputs, atol=1e-6)
    assert found.output_names == expected.output_names
    return found


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_enumeration(name: str) -> None:
    model, y, settings = MODELS[name]
    model.fit(X, y, **({"group_id": np.arange(len(X)) // 10} if name == "ranker" else {}))
    game = cortx.Game(model, background=X[:7], categorical=(), **settings)
    found = agree(game, X[50:60])
    assert np.abs(found.values).max() > 0.05
    assert cortx.shapley(game, X[50:60]).method == "tree"


def test_loaded_summed_and_scaled_models(tmp_path: Path) -> None:
    model = regressor().fit(X, Y)
    model.save_model(str(tmp_path / "model.cbm"))
    loaded = catboost.CatBoostRegressor().load_model(str(tmp_path / "model.cbm"))
    summed = catboost.sum_models([model, regressor(depth=2).fit(X, -Y)], weights=[0.3, 0.7])
    scaled = regressor().fit(X, Y)
    scaled.set_scale_and_bias(2.5, -3.0)
    for each in (loaded, summed, scaled):
        agree(cortx.Game(each, reference=X, categorical=()), X[50:55])


@pytest.mark.parametrize("size", [1, 40])
@pytest.mark.parametrize("name", ["regression", "binary"])
def test_equal_to_shap(name: str, size: int) -> None:
    model, y, settings = MODELS[name]
    model.fit(X, y)
    sample = shap.maskers.Independent(X[:size], max_samples=size)
    explainer = shap.TreeExplainer(model, sample, feature_perturbation="interventional")
    expected = explainer.shap_values(X[100:150], check_additivity=False)
    found = cortx.shapley(cortx.Game(model, background=X[:size], categorical=(), **settings), X[100:150], "tree")
    np.testing.assert_allclose(found.values, expected, atol=1e-5)


def test_a_number_on_a_border_goes_where_catboost_sends_it() -> None:
    model = regressor().fit(X, Y)
    borders = np.concatenate([np.float32(borders) for borders in model.get_borders().values()])
    numbers = np.concatenate([borders, np.nextafter(borders, np.float32(9)), np.nextafter(borders, np.float32(-9))])
    rows = np.repeat(numbers[:, None].astype(np.float64), 6, axis=1)
    trees = read_trees(cortx.Game(model, reference=X, categorical=()))
    np.testing.assert_allclose(trees.forest.outputs(rows)[:, 0], model.predict(rows), atol=1e-9)


@pytest.mark.parametrize("mode", ["Min", "Max"])
@pytest.mark.parametrize("policy", ["SymmetricTree", "Depthwise"])
@pytest.mark.parametrize("players", [None, {"first": [0, 3], "last": [2, 4, 5]}])
def test_missing_values_go_where_catboost_sends_them(mode: str, policy: str, players: Any) -> None:
    model = regressor(nan_mode=mode, grow_policy=policy).fit(HOLED, Y)
    rows = np.concatenate([HOLED[40:60], np.full((1, 6), np.nan)])
    agree(cortx.Game(model, background=HOLED[:5], categorical=(), players=players), rows)


def test_missing_values_that_training_did_not_see() -> None:
    agree(cortx.Game(regressor().fit(X, Y), background=X[:5], categorical=()), HOLED[40:60])


def categories() -> pd.DataFrame:
    """Texts, a pandas category and whole numbers as categories; missing numbers."""
    table = text_frame()
    return table.assign(kind=frame()["kind"], count=np.random.default_rng(4).integers(-2, 4, len(table)))


NAMES = ["colour", "kind", "count"]


@pytest.mark.parametrize("players", [None, {"look": ["colour", "size"], "rest": ["kind", "age"]}])
def test_categories(players: Any) -> None:
    table = categories()
    y = target(table) + (table["count"] == 1) * table["age"] / 20
    model = catboost.CatBoostRegressor(**ONE_HOT, cat_features=NAMES).fit(table, y)
    splits = read_trees(cortx.Game(model, reference=table.iloc[:1])).forest
    assert set(splits.column[splits.categories >= 0].tolist()) == {table.columns.get_loc(name) for name in NAMES}
    found = agree(cortx.Game(model, background=table.iloc[:5], players=players), table.iloc[100:130])
    assert found.evaluations == 16


def test_categories_that_training_did_not_see() -> None:
    table = categories()
    model = catboost.CatBoostRegressor(**ONE_HOT, cat_features=NAMES).fit(table, target(table))
    new = table.iloc[:20].assign(colour="purple", count=77)
    agree(cortx.Game(model, reference=new.iloc[:1].assign(colour="red")), new)


def test_categories_that_no_split_asks_for() -> None:
    table = text_frame()[["age", "colour", "kind"]]
    model = catboost.CatBoostRegressor(**ONE_HOT, cat_features=["colour", "kind"]).fit(table, table["age"] > 40)
    agree(cortx.Game(model, reference=table.iloc[:1]), table.iloc[100:110])


def test_missing_categories_are_refused() -> None:
    table = categories()
    model = catboost.CatBoostRegressor(**ONE_HOT, cat_features=NAMES).fit(table, target(table))
    game = cortx.Game(model, reference=table.iloc[:1])
    agree(game, table.iloc[:5])
    with pytest.raises(InputError, match="'kind'"):
        cortx.shapley(game, table.iloc[:5].assign(kind=pd.Categorical([None] * 5, categories=["c", "b", "a"])), "tree")


def test_a_pipeline() -> None:
    table = text_frame()
    model = make_pipeline(prepared(dense=True), regressor()).fit(table, target(table))
    for players in (None, {"both": ["colour", "weight"]}):
        agree(cortx.Game(model, background=table.iloc[:5], players=players), table.iloc[100:115])
    binary = make_pipeline(StandardScaler(), classifier()).fit(X, Y > 0)
    agree(cortx.Game(binary, background=X[:5], output="log-odds", categorical=()), X[50:60])


@pytest.mark.parametrize(
    ("model", "y", "settings", "words"),
    [
        (classifier(), Y > 0, {}, "output='probability'"),
        (classifier(), CLASSES, {"output": "log-odds"}, "output='raw'"),
        (regressor(loss_function="Poisson"), np.abs(Y), {}, "Poisson"),
        (regressor(loss_function="RMSEWithUncertainty"), Y, {}, "RMSEWithUncertainty"),
    ],
)
def test_what_is_no_sum_of_leaves_is_refused(model: Any, y: Any, settings: dict[str, Any], words: str) -> None:
    game = cortx.Game(model.fit(X, y), reference=X, categorical=(), **settings)
    with pytest.raises(NotTrees, match=words):
        cortx.shapley(game, X[:5], "tree")
    assert cortx.shapley(game, X[:5]).method == "exact"


def test_statistics_of_categories_are_refused() -> None:
    table = categories()
    y = target(table)
    counted = catboost.CatBoostRegressor(**SMALL, one_hot_max_size=1, cat_features=NAMES).fit(table, y)
    leafwise = catboost.CatBoostRegressor(**ONE_HOT, cat_features=NAMES, grow_policy="Depthwise").fit(table, y)
    codes = OrdinalEncoder(dtype=np.int64).set_output(transform="pandas")
    piped = make_pipeline(codes, catboost.CatBoostRegressor(**ONE_HOT, cat_features=[0, 1]))
    texts = table[["colour", "kind"]].astype(str)
    for model, rows, words in [
        (counted, table, "OnlineCtr.*one_hot_max_size"),
        (leafwise, table, "Depthwise"),
        (piped.fit(texts, y), texts, "after the steps"),
    ]:
        game = cortx.Game(model, reference=rows.iloc[:1])
        with pytest.raises(NotTrees, match=words):
            cortx.shapley(game, rows.iloc[:5], "tree")
        assert cortx.shapley(game, rows.iloc[:5]).method == "exact"


def test_an_explainer_without_the_model(tmp_path: Path) -> None:
    table = categories()
    table["count"] += 2  # codes of an explainer start at zero
    model = catboost.CatBoostRegressor(**ONE_HOT, cat_features=NAMES).fit(table, target(table))
    game = cortx.Game(model, background=table.iloc[:4], players={"look": ["colour", "size"]}, categorical=NAMES)
    cortx.TreeExplainer(game, table).save(tmp_path / "categories.cortx")
    expected = cortx.shapley(game, table, "tree")
    found = cortx.load(tmp_path / "categories.cortx", model).explain(table)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-9)
    classes = cortx.Game(classifier().fit(HOLED, CLASSES), background=X[:4], output="raw", categorical=())
    cortx.TreeExplainer(classes, HOLED).save(tmp_path / "classes.cortx")
    found = cortx.load(tmp_path / "classes.cortx").explain(HOLED[:50])
    np.testing.assert_allclose(found.values, cortx.shapley(classes, HOLED[:50], "tree").values, atol=1e-9)


def test_outputs_are_catboosts_own() -> None:
    for model, y, settings, expected in [
        (classifier(), CLASSES, {"output": "raw"}, lambda m: m.predict(X, prediction_type="RawFormulaVal")),
        (classifier(), CLASSES, {"target": "all"}, lambda m: m.predict_proba(X)),
        (regressor(), Y, {}, lambda m: m.predict(X)),
    ]:
        game = cortx.Game(model.fit(X, y), reference=X, categorical=(), **settings)
        np.testing.assert_allclose(np.squeeze(game.full_values(game.rows(X))), expected(model), atol=1e-12)


def test_margins_are_a_student_of_probabilities() -> None:
    game = cortx.Game(classifier().fit(X, Y > 0), background=X[:3], categorical=())
    student = TreeStudent.of(game, game.rows(X), evaluations=300)
    coalitions = np.random.default_rng(0).random((20, 6)) < 0.5
    rows = game.rows(X[:30])
    missed = game.values(rows, coalitions) - student.values(rows, coalitions)
    assert missed.std() < 0.5 * game.values(rows, coalitions).std()
