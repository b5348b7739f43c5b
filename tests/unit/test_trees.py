"""Exact values of trees: against their definition in plain loops, against enumeration, and against shap."""

from __future__ import annotations

from itertools import combinations
from math import factorial
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import shap
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import cortx
from cortx.errors import InputError
from cortx.estimators import tree_deep, tree_tables
from cortx.estimators.tree import TreeValues
from cortx.games.forest import Forest, ForestBuilder
from cortx.games.tree_readers import NotTrees

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 6))
Y = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + (X[:, 3] > 0.3) * X[:, 4]
CLASSES = np.digitize(Y, [-0.5, 0.5])


# The definition, in plain loops ----------------------------------------------------------------------------


def walk(forest: Forest, row: np.ndarray) -> np.ndarray:
    """The output of one row, split by split."""
    total = forest.offset.copy()
    for node in forest.roots:
        while forest.column[node] >= 0:
            number = row[forest.column[node]]
            if np.isnan(number):
                left = forest.missing_left[node]
            elif forest.categories[node] >= 0:
                left = forest.category_left[forest.categories[node]][int(number)]
            else:
                left = number <= forest.threshold[node]
            node = forest.left[node] if left else forest.right[node]
        total += forest.value[node]
    return total


def by_definition(forest: Forest, column_player: np.ndarray, n: int, row: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """Shapley values, (players, outputs), from all coalitions, each an average over the sample."""

    def v(members: tuple[int, ...]) -> np.ndarray:
        present = np.isin(column_player, members)
        return np.mean([walk(forest, np.where(present, row, absent)) for absent in sample], axis=0)

    result = np.zeros((n, forest.n_outputs))
    for player in range(n):
        others = [i for i in range(n) if i != player]
        for size in range(n):
            weight = factorial(size) * factorial(n - size - 1) / factorial(n)
            for members in combinations(others, size):
                result[player] += weight * (v((*members, player)) - v(members))
    return result


def random_forest(rng: np.random.Generator, n_columns: int, depth: int, n_outputs: int) -> Forest:
    """Trees of random form, with category splits on the last column and missing values going either way."""
    builder = ForestBuilder(n_outputs)
    for _ in range(2):
        nodes: list[list[Any]] = []
        grow(builder, nodes, rng, n_columns, depth)
        column, threshold, missing, sets, left, right = (list(part) for part in zip(*nodes, strict=True))
        builder.add(column, threshold, (left, right), missing, rng.normal(size=(len(nodes), n_outputs)), sets)
    return builder.build(rng.normal(size=n_outputs))


def grow(builder: ForestBuilder, nodes: list[list[Any]], rng: np.random.Generator, n_columns: int, depth: int) -> int:
    """Adds a random subtree of at most `depth` levels to `nodes`; returns its place there."""
    here = len(nodes)
    leaf = depth == 0 or (here > 0 and rng.random() < 0.3)
    column = -1 if leaf else int(rng.integers(n_columns))
    categories = builder.category_set(rng.random(3) < 0.5, other_left=False) if column == n_columns - 1 else -1
    nodes.append([column, rng.integers(-2, 3) / 2, rng.random() < 0.5, categories, -1, -1])
    if not leaf:
        nodes[here][4:] = [grow(builder, nodes, rng, n_columns, depth - 1) for _ in range(2)]
    return here


def random_rows(rng: np.random.Generator, n: int, n_columns: int) -> np.ndarray:
    rows = rng.integers(-2, 3, size=(n, n_columns)) / 2
    rows[:, -1] = rng.integers(0, 3, size=n)
    return np.where(rng.random(rows.shape) < 0.15, np.nan, rows)


@given(st.integers(0, 10**6))
@settings(max_examples=40, derandomize=True)
def test_random_trees_equal_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_columns, n_outputs = int(rng.integers(1, 6)), int(rng.integers(1, 3))
    forest = random_forest(rng, n_columns, int(rng.integers(0, 6)), n_outputs)
    column_player = rng.integers(0, 4, size=n_columns)
    sample, rows = random_rows(rng, int(rng.integers(1, 5)), n_columns), random_rows(rng, 3, n_columns)
    expected = np.stack([by_definition(forest, column_player, 4, row, sample) for row in rows])
    found = TreeValues(forest, column_player, 4, sample).values(rows)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(forest.outputs(rows), [walk(forest, row) for row in rows], atol=1e-12)


@pytest.mark.parametrize("numbers", [0, 40, 10**9])
@pytest.mark.parametrize("absent", [1, 4, tree_deep.FEW_REFERENCES + 1])
def test_tables_and_single_leaves_agree(monkeypatch: pytest.MonkeyPatch, absent: int, numbers: int) -> None:
    """However little room tables are given, and whatever part of the leaves is then explained one by one."""
    rng = np.random.default_rng(5)
    forest = random_forest(rng, 5, 7, 2)
    sample, rows = random_rows(rng, absent, 5), random_rows(rng, 9, 5)
    expected = TreeValues(forest, np.arange(5), 5, sample).values(rows)
    monkeypatch.setattr(tree_tables, "TABLE_NUMBERS", numbers)
    values = TreeValues(forest, np.arange(5), 5, sample)
    assert (len(values.deep.leaves) > 0) == (numbers < 100)
    np.testing.assert_allclose(values.values(rows), expected, atol=1e-12)


def one_leaf_after_the_other(forest: Forest, rows: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """The formula of docs/decisions/0011-trees.md in plain loops, of a forest with numbers alone, one output."""
    result = np.zeros(rows.shape)
    for i, row in enumerate(rows):
        for absent in sample:
            todo = [(root, frozenset(), frozenset()) for root in forest.roots]  # who fails which players on the way
            while todo:
                node, ours, theirs = todo.pop()
                column = forest.column[node]
                if column < 0:
                    a, b = len(theirs), len(ours)
                    if a + b and not ours & theirs:
                        value = forest.value[node, 0] / factorial(a + b) / len(sample)
                        for player in theirs:
                            result[i, player] += value * factorial(a - 1) * factorial(b)
                        for player in ours:
                            result[i, player] -= value * factorial(a) * factorial(b - 1)
                    continue
                for child, goes_left in ((forest.left[node], True), (forest.right[node], False)):
                    fail = [
                        {column} if (x[column] <= forest.threshold[node]) != goes_left else set() for x in (row, absent)
                    ]
                    todo.append((child, ours | fail[0], theirs | fail[1]))
    return result


@pytest.mark.parametrize("players", [14, 20, 40])
@pytest.mark.parametrize("absent", [1, 3, 60])
@pytest.mark.parametrize("small", [False, True], ids=["at once", "in small parts"])
def test_long_paths(monkeypatch: pytest.MonkeyPatch, players: int, absent: int, small: bool) -> None:
    """A path on which every split has a player of its own: sets of 16, 32 and 64 bits."""
    if small:
        for name in ("PAIRS", "MASKS", "MEETINGS", "KEPT_SETS", "FEW_SETS", "FEW_ROWS"):
            monkeypatch.setattr(tree_deep, name, 2)
    rng = np.random.default_rng(players)
    column = [part for player in range(players) for part in (player, -1)] + [-1]
    left, right = (
        [child if own >= 0 else -1 for child, own in zip(range(at, at + 100), column, strict=False)] for at in (1, 2)
    )
    builder = ForestBuilder(1)
    builder.add(
        column, rng.normal(size=len(column)), (left, right), [True] * len(column), rng.normal(size=(len(column), 1))
    )
    forest = builder.build(np.zeros(1))
    rows, sample = rng.normal(size=(30, players)), rng.normal(size=(absent, players))
    values = TreeValues(forest, np.arange(players), players, sample)
    assert len(values.deep.leaves) > 0
    found = values.values(rows)
    np.testing.assert_allclose(found[..., 0], one_leaf_after_the_other(forest, rows, sample), atol=1e-12)
    np.testing.assert_allclose(values.values(rows[:1]), found[:1], atol=1e-14)


def test_the_same_whatever_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    forest = random_forest(rng, 5, 6, 1)
    sample, rows = random_rows(rng, 3, 5), random_rows(rng, 50, 5)
    values = TreeValues(forest, np.arange(5), 5, sample)
    whole = values.values(rows)
    one_by_one = np.concatenate([values.values(row[None]) for row in rows])
    np.testing.assert_allclose(one_by_one, whole, atol=1e-14)
    monkeypatch.setattr(tree_tables, "FEW_NUMBERS", 100)
    np.testing.assert_allclose(values.values(rows), whole, atol=1e-14)


# Libraries --------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"n_estimators": 12, "max_depth": 4, "random_state": 0}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "xgboost": (xgboost.XGBRegressor(**SMALL), Y, {}),
    "xgboost-binary": (xgboost.XGBClassifier(**SMALL), Y > 0, {"output": "raw"}),
    "xgboost-log-odds": (xgboost.XGBClassifier(**SMALL), Y > 0, {"output": "log-odds", "target": 0}),
    "xgboost-classes": (xgboost.XGBClassifier(**SMALL), CLASSES, {"output": "raw"}),
    "xgboost-vector": (
        xgboost.XGBClassifier(**SMALL, multi_strategy="multi_output_tree"), CLASSES, {"output": "raw"}
    ),
    "xgboost-dart": (xgboost.XGBRegressor(**SMALL, booster="dart", rate_drop=0.3), Y, {}),
    "xgboost-forest": (xgboost.XGBRFRegressor(**SMALL), Y, {}),
    "lightgbm": (lightgbm.LGBMRegressor(n_estimators=12, num_leaves=15, verbose=-1, n_jobs=1), Y, {}),
    "lightgbm-binary": (lightgbm.LGBMClassifier(n_estimators=12, verbose=-1, n_jobs=1), Y > 0, {"output": "log-odds"}),
    "lightgbm-classes": (
        lightgbm.LGBMClassifier(n_estimators=6, verbose=-1, n_jobs=1), CLASSES, {"output": "raw", "target": 1}
    ),
    "lightgbm-forest": (
        lightgbm.LGBMRegressor(n_estimators=5, boosting_type="rf", bagging_fraction=0.7, bagging_freq=1, verbose=-1,
                               n_jobs=1), Y, {}
    ),
    "tree": (DecisionTreeRegressor(max_depth=6, random_state=0), Y, {}),
    "tree-classes": (DecisionTreeClassifier(max_depth=5, random_state=0), CLASSES, {}),
    "forest": (RandomForestRegressor(**SMALL), Y, {}),
    "forest-deep": (RandomForestRegressor(5, random_state=0), Y, {}),
    "forest-binary": (RandomForestClassifier(**SMALL), Y > 0, {}),
    "forest-classes": (RandomForestClassifier(**SMALL), CLASSES, {"target": "all"}),
    "extra": (ExtraTreesRegressor(**SMALL), Y, {}),
    "boosting": (GradientBoostingRegressor(**SMALL), Y, {}),
    "boosting-classes": (GradientBoostingClassifier(**SMALL), CLASSES, {"output": "raw"}),
    "boosting-binary": (GradientBoostingClassifier(**SMALL), Y > 0, {"output": "log-odds"}),
    "histogram": (HistGradientBoostingRegressor(max_iter=12), Y, {}),
    "histogram-binary": (HistGradientBoostingClassifier(max_iter=12), Y > 0, {"output": "raw"}),
    "histogram-classes": (HistGradientBoostingClassifier(max_iter=6), CLASSES, {"output": "raw"}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_enumeration_for_every_library(name: str) -> None:
    model, y, settings = MODELS[name]
    model.fit(X, y)
    game = cortx.Game(model, background=X[:7], categorical=(), **settings)
    found = cortx.shapley(game, X[50:60], "tree")
    expected = cortx.shapley(game, X[50:60], "exact")
    # Margins of boosters are float32; the trees are added in float64.
    np.testing.assert_allclose(found.values, expected.values, atol=2e-6)
    np.testing.assert_allclose(found.base_values, expected.base_values, atol=2e-6)
    np.testing.assert_allclose(found.outputs, expected.outputs, atol=5e-6)
    assert found.output_names == expected.output_names
    assert found.method == "tree"
    assert found.exact is not None
    assert found.exact.all()
    assert found.error_std is not None
    assert not found.error_std.any()
    total = found.values.sum(axis=1) + found.base_values
    np.testing.assert_allclose(total, found.outputs, atol=1e-9)


@pytest.mark.parametrize(
    "name", ["xgboost", "xgboost-binary", "lightgbm", "forest", "forest-deep", "boosting", "histogram"]
)
@pytest.mark.parametrize("size", [1, 40])
def test_equal_to_shap(name: str, size: int) -> None:
    model, y, settings = MODELS[name]
    model.fit(X, y)
    # Rows that lie on no threshold: shap reads those of scikit-learn's histograms in another precision.
    rows, absent = np.random.default_rng(1).normal(size=(50, 6)), np.random.default_rng(2).normal(size=(size, 6))
    sample = shap.maskers.Independent(absent, max_samples=size)
    explainer = shap.TreeExplainer(model, sample, feature_perturbation="interventional")
    expected = explainer.shap_values(rows, check_additivity=False)
    found = cortx.shapley(cortx.Game(model, background=absent, categorical=(), **settings), rows, "tree")
    np.testing.assert_allclose(found.values, expected, atol=1e-5)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_native_boosters(library: str) -> None:
    if library == "xgboost":
        booster: Any = xgboost.train({"max_depth": 3, "objective": "binary:logistic"}, xgboost.DMatrix(X, Y > 0), 8)
    else:
        booster = lightgbm.train(
            {"objective": "binary", "verbose": -1, "num_threads": 1}, lightgbm.Dataset(X, Y > 0), 8
        )
    game = cortx.Game(booster, reference=X, output="log-odds", categorical=())
    found, expected = (cortx.shapley(game, X[:20], method) for method in ("tree", "exact"))
    np.testing.assert_allclose(found.values, expected.values, atol=2e-6)


def test_rounds_beyond_the_best_one_are_left_out() -> None:
    stopped = xgboost.XGBRegressor(n_estimators=60, max_depth=3, early_stopping_rounds=2, learning_rate=1.0)
    stopped.fit(X, Y, eval_set=[(X[:40], RNG.normal(size=40))], verbose=False)
    lightened = lightgbm.LGBMRegressor(n_estimators=60, learning_rate=1.0, verbose=-1, n_jobs=1)
    lightened.fit(X, Y, eval_set=[(X[:40], RNG.normal(size=40))], callbacks=[lightgbm.early_stopping(2, verbose=False)])
    assert stopped.best_iteration < 50
    for model in (stopped, lightened):
        game = cortx.Game(model, reference=X, categorical=())
        found, expected = (cortx.shapley(game, X[:5], method) for method in ("tree", "exact"))
        np.testing.assert_allclose(found.values, expected.values, atol=5e-6)


# Missing values, categories, groups, pipelines ----------------------------------------------------------------


def frame(n: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": rng.normal(40, 10, n),
            "colour": pd.Categorical(rng.choice(["red", "green", "blue", "grey"], n)),
            "size": rng.normal(size=n),
            "kind": pd.Categorical(rng.choice(["a", "b", "c"], n), categories=["c", "b", "a"]),
            "weight": rng.normal(size=n),
        }
    )
    table.loc[rng.random(n) < 0.2, "size"] = np.nan
    table.loc[rng.random(n) < 0.1, "colour"] = None
    return table


def target(table: pd.DataFrame) -> np.ndarray:
    size = table["size"].fillna(2.0)
    colour = table["colour"].astype(object).fillna("none").map({"red": 1, "green": 2, "blue": -1, "grey": 0, "none": 3})
    return np.asarray(colour * size + (table["kind"] == "a") * table["weight"] + table["age"] / 20, dtype=float)


@pytest.mark.parametrize(
    "model",
    [
        xgboost.XGBRegressor(n_estimators=15, max_depth=4, enable_categorical=True, max_cat_to_onehot=1),
        lightgbm.LGBMRegressor(n_estimators=15, min_data_per_group=5, cat_smooth=1, verbose=-1, n_jobs=1),
        HistGradientBoostingRegressor(max_iter=15, categorical_features="from_dtype"),
    ],
    ids=["xgboost", "lightgbm", "histogram"],
)
@pytest.mark.parametrize("players", [None, {"look": ["colour", "size"], "rest": ["kind", "age"]}])
def test_categories_and_missing_values(model: Any, players: Any) -> None:
    table = frame()
    model.fit(table, target(table))
    game = cortx.Game(model, background=table.iloc[:6], players=players)
    found, expected = (cortx.shapley(game, table.iloc[100:130], method) for method in ("tree", "exact"))
    np.testing.assert_allclose(found.values, expected.values, atol=5e-6)
    assert found.evaluations < 20


def test_categories_in_another_order_than_the_model_knows() -> None:
    """The frame's own codes are not the model's."""
    table = frame()
    model = lightgbm.LGBMRegressor(n_estimators=15, min_data_per_group=5, verbose=-1, n_jobs=1).fit(
        table, target(table)
    )
    other = table.assign(colour=table["colour"].cat.reorder_categories(["red", "grey", "blue", "green"]))
    game = cortx.Game(model, reference=other.iloc[:1])
    found, expected = (cortx.shapley(game, other.iloc[10:40], method) for method in ("tree", "exact"))
    np.testing.assert_allclose(found.values, expected.values, atol=1e-9)


def text_frame() -> pd.DataFrame:
    table = frame()
    return table.assign(colour=table["colour"].astype(object).where(table["colour"].notna(), "none").astype(str),
                        kind=table["kind"].astype(str))  # fmt: skip


def prepared(*, dense: bool, bins: bool = True) -> ColumnTransformer:
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    return ColumnTransformer(
        [
            ("numbers", numbers, ["size", "age"]),
            ("colours", OneHotEncoder(handle_unknown="ignore", sparse_output=not dense), ["colour"]),
            ("kinds", OrdinalEncoder(), ["kind"]),
            ("bins", KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf") if bins else "drop", ["weight"]),
            ("roots", FunctionTransformer(np.cbrt), ["weight"]),
        ],
        sparse_threshold=0.0 if dense else 1.0,
    )


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize(
    "model",
    [
        xgboost.XGBRegressor(n_estimators=15, max_depth=4),
        RandomForestRegressor(5, max_depth=5, random_state=0),
        lightgbm.LGBMRegressor(n_estimators=10, verbose=-1, n_jobs=1),
    ],
    ids=["xgboost", "forest", "lightgbm"],
)
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_pipelines_of_single_columns(model: Any, dense: bool) -> None:
    table = text_frame()
    pipeline = Pipeline([("prepare", prepared(dense=dense)), ("model", model)]).fit(table, target(table))
    for players in (None, {"both": ["colour", "weight"]}):
        game = cortx.Game(pipeline, background=table.iloc[:5], players=players)
        found, expected = (cortx.shapley(game, table.iloc[100:115], method) for method in ("tree", "exact"))
        np.testing.assert_allclose(found.values, expected.values, atol=2e-6)


@pytest.mark.parametrize(
    ("step", "words"), [(PCA(3), "'pca'"), (KNNImputer(), "'knnimputer'"), (Normalizer(), "'normalizer'")]
)
def test_a_step_that_mixes_columns_is_named(step: Any, words: str) -> None:
    pipeline = make_pipeline(step, RandomForestRegressor(3, max_depth=3, random_state=0)).fit(X, Y)
    game = cortx.Game(pipeline, reference=X, categorical=())
    with pytest.raises(InputError, match=words):
        cortx.shapley(game, X[:5], "tree")
    assert cortx.shapley(game, X[:5]).method == "exact"  # "auto" enumerates instead


@pytest.mark.parametrize(
    ("model", "y", "settings", "words"),
    [
        (xgboost.XGBClassifier(n_estimators=3), Y > 0, {}, "output='probability'"),
        (xgboost.XGBClassifier(n_estimators=3), CLASSES, {"output": "log-odds"}, "output='raw'"),
        (xgboost.XGBRegressor(n_estimators=3, objective="count:poisson"), np.abs(Y), {}, "count:poisson"),
        (xgboost.XGBRegressor(n_estimators=3, booster="gblinear"), Y, {}, "gblinear"),
        (lightgbm.LGBMRegressor(n_estimators=3, linear_tree=True, verbose=-1, n_jobs=1), Y, {}, "linear_tree"),
        (lightgbm.LGBMRegressor(n_estimators=3, zero_as_missing=True, verbose=-1, n_jobs=1), Y, {}, "zero_as_missing"),
        (HistGradientBoostingRegressor(max_iter=3, loss="poisson"), np.abs(Y), {}, "poisson"),
        (RandomForestClassifier(3), Y > 0, {"output": "log-odds"}, "averages probabilities"),
        (GradientBoostingRegressor(n_estimators=3, init=LinearRegression()), Y, {}, "LinearRegression"),
        (LinearRegression(), Y, {}, "LinearRegression"),
    ],
)
def test_what_is_no_sum_of_leaves_is_refused(model: Any, y: Any, settings: dict[str, Any], words: str) -> None:
    game = cortx.Game(model.fit(X, y), reference=X, categorical=(), **settings)
    with pytest.raises(NotTrees, match=words):
        cortx.shapley(game, X[:5], "tree")


def test_a_model_that_does_more_than_its_trees_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Squared(xgboost.XGBRegressor):
        def predict(self, X: Any, **settings: Any) -> Any:
            return super().predict(X, **settings) ** 2

    own = cortx.Game(Squared(n_estimators=3).fit(X, Y), reference=X, categorical=())
    with pytest.raises(NotTrees, match="a predict of its own"):
        cortx.shapley(own, X[:5], "tree")
    plain = xgboost.XGBModel.predict
    monkeypatch.setattr(xgboost.XGBModel, "predict", lambda self, X, **settings: plain(self, X, **settings) ** 2)
    other = cortx.Game(xgboost.XGBRegressor(n_estimators=3).fit(X, Y), reference=X, categorical=())
    with pytest.raises(NotTrees, match="computes something"):
        cortx.shapley(other, X[:5], "tree")
    assert {cortx.shapley(game, X[:5]).method for game in (own, other)} == {"exact"}


# Costs ------------------------------------------------------------------------------------------------------


def test_costs_are_tree_passes() -> None:
    model = RandomForestRegressor(4, max_depth=3, random_state=0).fit(X, Y)
    game = cortx.Game(model, background=X[:50], categorical=())
    first = cortx.shapley(game, X[:30])
    assert first.method == "tree"
    assert first.evaluations == game.evaluations == 16
    assert first.tree_passes == 30 * 4
    assert "120 tree passes" in repr(first)
    assert first[:10].tree_passes == 40
    second = cortx.shapley(game, X[:30])
    assert second.evaluations == 0
    assert game.evaluations == 16
    assert cortx.shapley(cortx.Game(model, reference=X, categorical=()), X[:5], "tree", budget=3).evaluations == 3


def test_copies_are_labelled_too() -> None:
    model = RandomForestRegressor(4, max_depth=4, random_state=0).fit(X, Y)
    game = cortx.Game(model, reference=X, categorical=())
    labels = cortx.shapley(game, X[:8], "tree", views=5)
    assert labels.views is not None
    assert len(labels.views) == 40
    copies = np.where(labels.views.kept, X[:8][labels.views.rows], game.absent)
    expected = cortx.shapley(game, copies, "exact")
    np.testing.assert_allclose(labels.views.values[..., 0], expected.values, atol=1e-9)
    np.testing.assert_allclose(labels.views.outputs[:, 0], expected.outputs, atol=1e-9)


def test_missing_values_that_the_model_refuses() -> None:
    model = GradientBoostingRegressor(n_estimators=3).fit(X, Y)
    game = cortx.Game(model, reference=X, categorical=())
    cortx.shapley(game, X[:5], "tree")
    with pytest.raises(InputError, match="missing values"):
        cortx.shapley(game, np.full((1, 6), np.nan), "tree")
