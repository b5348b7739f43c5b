"""A `TreeExplainer` as an ONNX graph: the same numbers, errors and bounds from onnxruntime, without torch and model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor
from tests.unit.test_tree_explainer import wide_rows
from tests.unit.test_trees import (
    CLASSES,
    X,
    Y,
    by_definition,
    frame,
    prepared,
    random_forest,
    random_rows,
    target,
    text_frame,
)
from typer.testing import CliRunner

import cortx
from cortx import portable
from cortx.errors import ArtifactError, InputError
from cortx.estimators.tree import TreeValues
from cortx.explainer import tree_graph
from cortx.explainer.session import Session
from cortx.explainer.tree_graph import TreeGraph
from cortx.games.forest import ForestBuilder
from cortx.interfaces.cli import app

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
FIELDS = ("values", "base_values", "outputs", "error_std", "lower_bounds", "upper_bounds", "error_bound")


def same(found: cortx.Explanation, expected: cortx.Explanation) -> None:
    for name in FIELDS:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=0, atol=1e-9, err_msg=name)
    for name in ("feature_names", "output_names", "method", "confidence", "evaluations", "tree_passes"):
        assert getattr(found, name) == getattr(expected, name), name
    for name in ("exact", "refined", "row_evaluations"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def in_onnxruntime(values: TreeValues, rows: np.ndarray) -> np.ndarray:
    graph = TreeGraph(values, rows.shape[1], bounds=False).graph.model({}).SerializeToString()
    feeds = {"rows": rows, "outputs": np.zeros((len(rows), values.forest.n_outputs))}
    found: np.ndarray = Session(graph, images=False, threads=1).run(["values"], feeds)[0]
    return found


# The same numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", ["reference", "background"])
@pytest.mark.parametrize(
    ("model", "y", "settings"),
    [
        (xgboost.XGBRegressor(n_estimators=10, max_depth=4), Y, {}),
        (xgboost.XGBClassifier(n_estimators=6, max_depth=3), CLASSES, {"output": "raw", "players": {"ab": [0, 1]}}),
        (lightgbm.LGBMRegressor(n_estimators=10, verbose=-1, n_jobs=1), Y, {}),
        (lightgbm.LGBMClassifier(n_estimators=4, verbose=-1, n_jobs=1), CLASSES, {"output": "raw"}),
        (RandomForestClassifier(5, max_depth=5, random_state=0), CLASSES, {}),
        (make_pipeline(StandardScaler(), RandomForestRegressor(4, max_depth=5, random_state=0)), Y, {}),
    ],
)
def test_numbers_are_those_of_the_explainer(
    model: Any, y: Any, settings: dict[str, Any], absent: str, tmp_path: Path
) -> None:
    game = cortx.Game(model.fit(X, y), categorical=(), **{absent: X[:5]}, **settings)
    explainer = cortx.TreeExplainer(game, X)
    loaded = portable.load(explainer.to_onnx(tmp_path / "trees.portable"))
    rows = np.concatenate([X, wide_rows()])  # more than one run
    expected = explainer.explain(rows, confidence=0.95)
    same(loaded.explain(rows, confidence=0.95), expected)
    same(loaded.explain(rows, expected.outputs, confidence=0.95), expected)
    np.testing.assert_allclose(loaded(rows[:1]).values, expected.values[:1], rtol=0, atol=1e-12)
    exact = cortx.shapley(game, rows[:4], "exact").values
    np.testing.assert_allclose(loaded(rows[:4]).values, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["xgboost", "histogram", "lightgbm", "catboost", "pipeline"])
def test_categories_missing_values_groups_and_pipelines(kind: str, tmp_path: Path) -> None:
    table = text_frame() if kind in ("pipeline", "catboost") else frame()
    models: dict[str, Any] = {
        "xgboost": lambda: xgboost.XGBRegressor(
            n_estimators=10, max_depth=4, enable_categorical=True, max_cat_to_onehot=1
        ),
        "histogram": lambda: HistGradientBoostingRegressor(max_iter=10, categorical_features="from_dtype"),
        "lightgbm": lambda: lightgbm.LGBMRegressor(n_estimators=10, min_data_per_group=5, verbose=-1, n_jobs=1),
        "catboost": lambda: pytest.importorskip("catboost").CatBoostRegressor(
            iterations=10, depth=4, cat_features=["colour", "kind"], one_hot_max_size=10, thread_count=1, verbose=0,
            allow_writing_files=False,
        ),
        "pipeline": lambda: make_pipeline(
            prepared(dense=True, bins=False), xgboost.XGBRegressor(n_estimators=10, max_depth=4)
        ),
    }  # fmt: skip
    model = models[kind]().fit(table, target(table))
    game = cortx.Game(model, background=table.iloc[:4], players={"look": ["colour", "size"]})
    explainer = cortx.TreeExplainer(game, table)
    loaded = portable.load(explainer.to_onnx(tmp_path / "trees.portable"))
    same(loaded.explain(table, confidence=0.9), explainer.explain(table, confidence=0.9))
    np.testing.assert_allclose(
        loaded.explain(table.iloc[:5]).values, cortx.shapley(game, table.iloc[:5], "exact").values, rtol=0, atol=1e-5
    )
    for wrong in (table.iloc[:1].assign(colour="purple"), table.iloc[:1].drop(columns="kind")):
        with pytest.raises(InputError) as told:
            explainer.explain(wrong)
        with pytest.raises(InputError) as here:
            loaded.explain(wrong)
        assert str(here.value) == str(told.value)


@pytest.mark.parametrize("library", ["lightgbm", "forest", "histogram"])
def test_missing_values_are_taken_or_refused_as_the_explainer_does(library: str, tmp_path: Path) -> None:
    """Of models that never saw any: some take them as zero, some send them one way, some refuse them."""
    models: dict[str, Any] = {
        "lightgbm": lightgbm.LGBMRegressor(n_estimators=3, verbose=-1, n_jobs=1),
        "forest": RandomForestRegressor(2, max_depth=3, random_state=0),
        "histogram": HistGradientBoostingRegressor(max_iter=3),
    }
    explainer = cortx.TreeExplainer(cortx.Game(models[library].fit(X, Y), reference=X, categorical=()), X)
    loaded = portable.load(explainer.to_onnx(tmp_path / "trees.portable"))
    gaps = np.where(np.arange(6) == 2, np.nan, X[:2])
    results = []
    for made in (explainer, loaded):
        try:
            results.append(made.explain(gaps).values.round(9).tolist())
        except InputError as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_a_number_on_a_threshold_goes_where_the_model_sends_it(tmp_path: Path) -> None:
    """Rows that lie on thresholds, and the next float32 and float64 numbers on both sides of them."""
    single = X.astype(np.float32)
    model = xgboost.XGBRegressor(n_estimators=4, max_depth=3).fit(single, Y)
    explainer = cortx.TreeExplainer(cortx.Game(model, reference=single, categorical=()), single)
    loaded = portable.load(explainer.to_onnx(tmp_path / "trees.portable"))
    splits = explainer.forest.splits
    rows = np.repeat(X[:1], len(splits), axis=0)
    rows[np.arange(len(splits)), explainer.forest.column[splits]] = explainer.forest.threshold[splits]
    near = [rows, np.nextafter(rows, np.inf), np.nextafter(rows, -np.inf)]
    middle = rows.astype(np.float32)
    near += [middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))]
    for some in near:
        np.testing.assert_allclose(loaded.explain(some).outputs, model.predict(some), rtol=0, atol=1e-5)
        np.testing.assert_allclose(loaded.explain(some).values, explainer.explain(some).values, rtol=0, atol=1e-12)


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_any_forest(seed: int) -> None:
    """Random trees with categories, codes that no set knows, missing values both ways, groups, several outputs."""
    rng = np.random.default_rng(seed)
    n_columns, n_outputs = int(rng.integers(2, 7)), int(rng.integers(1, 3))
    forest = random_forest(rng, n_columns, int(rng.integers(0, 6)), n_outputs)
    n_players = int(rng.integers(1, n_columns + 1))
    player = np.concatenate([np.arange(n_players), rng.integers(0, n_players, n_columns - n_players)])
    rows = random_rows(rng, 9, n_columns)
    values = TreeValues(forest, player, n_players, random_rows(rng, int(rng.integers(1, 4)), n_columns))
    rows[0, :-1] = rng.choice([-np.inf, np.inf, 1e300, 5e-324], n_columns - 1)
    rows[:3, -1] = [-0.5, -7.0, 1e9]  # the column of categories
    np.testing.assert_allclose(in_onnxruntime(values, rows), values.values(rows), rtol=0, atol=1e-12)


def test_a_tiny_forest_by_the_definition() -> None:
    rng = np.random.default_rng(3)
    forest, player, sample = random_forest(rng, 4, 4, 2), np.array([0, 1, 1, 2]), random_rows(rng, 3, 4)
    rows = random_rows(rng, 4, 4)
    found = in_onnxruntime(TreeValues(forest, player, 3, sample), rows)
    for row, values in zip(rows, found, strict=True):
        np.testing.assert_allclose(values, by_definition(forest, player, 3, row, sample), rtol=0, atol=1e-12)


def test_a_model_without_splits_gives_nobody_anything() -> None:
    values = TreeValues(ForestBuilder(2).build(np.array([1.0, 2.0])), np.arange(3), 3, np.zeros((1, 3)))
    np.testing.assert_array_equal(in_onnxruntime(values, np.ones((4, 3))), np.zeros((4, 3, 2)))


def test_neither_groups_of_columns_nor_rows_of_a_run_change_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = lightgbm.LGBMRegressor(n_estimators=10, verbose=-1, n_jobs=1).fit(X, Y)
    explainer = cortx.TreeExplainer(cortx.Game(model, background=X[:3], categorical=()), X)
    expected = explainer.explain(X).values
    monkeypatch.setattr(tree_graph, "COLUMNS_TOGETHER", 16)
    monkeypatch.setattr(tree_graph, "NUMBERS_TOGETHER", 2**10)
    loaded = portable.load(explainer.to_onnx(tmp_path / "trees.portable"), threads=2)
    assert 1 <= loaded._session._at_a_time < len(X) // 10
    np.testing.assert_allclose(loaded.explain(X).values, expected, rtol=0, atol=1e-12)


# The folder -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def explainer() -> cortx.TreeExplainer:
    model = RandomForestRegressor(4, max_depth=4, random_state=0).fit(X, Y)
    return cortx.TreeExplainer(cortx.Game(model, reference=X, categorical=()), X)


def test_bare_onnxruntime_takes_what_other_explainers_take(explainer: cortx.TreeExplainer, tmp_path: Path) -> None:
    path = explainer.to_onnx(tmp_path / "trees.portable")
    session = onnxruntime.InferenceSession(path / "explainer.onnx")
    assert [item.name for item in session.get_inputs()] == ["rows", "outputs"]
    names = [item.name for item in session.get_outputs()]
    assert names == ["values", "lower_bounds", "upper_bounds", "error_bound"]
    expected = explainer.explain(X, confidence=0.9)
    found = session.run(names, {"rows": X, "outputs": np.zeros((len(X), 1))})
    for array, name in zip(found, names, strict=True):
        np.testing.assert_allclose(array[..., 0], getattr(expected, name), rtol=0, atol=1e-12)
    onnx.checker.check_model(onnx.load(path / "explainer.onnx"), full_check=True)
    document = json.loads((path / "explainer.json").read_text())
    assert document["exact"]["trees"] == 4
    np.testing.assert_allclose(document["explains"]["base_values"], expected.base_values[:1])


def test_what_is_refused_is_what_the_explainer_refuses(explainer: cortx.TreeExplainer, tmp_path: Path) -> None:
    loaded = portable.load(explainer.to_onnx(tmp_path / "trees.portable"))
    outputs = explainer.explain(X[:3]).outputs
    for arguments, named in [
        ((X[:3], outputs + 1.0), {}),
        ((X[:3], outputs[:2]), {}),
        ((X[:3],), {"confidence": 1.0}),
        ((X[:3],), {"confidence": 0.99999}),
        ((X[:3, :4],), {}),
    ]:
        with pytest.raises(InputError) as told:
            explainer.explain(*arguments, **named)
        with pytest.raises(InputError) as here:
            loaded.explain(*arguments, **named)
        assert str(here.value) == str(told.value)
    with pytest.raises(InputError, match="empty="):
        loaded.explain(X[:3], empty=outputs)


def test_without_bounds_and_without_int8(explainer: cortx.TreeExplainer, tmp_path: Path) -> None:
    loaded = portable.load(explainer.to_onnx(tmp_path / "trees.portable", confidence=None))
    assert loaded.explain(X[:3]).lower_bounds is None
    with pytest.raises(InputError, match="without bounds"):
        loaded.explain(X[:3], confidence=0.9)
    with pytest.raises(InputError, match="int8"):
        explainer.to_onnx(tmp_path / "int8", int8=True)
    with pytest.raises(InputError, match="between 0 and 1"):
        explainer.to_onnx(tmp_path / "no", confidence=2.0)


def test_trees_that_are_too_deep_are_refused_with_what_to_do(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 30))
    model = DecisionTreeRegressor(splitter="random", max_features=1, random_state=0).fit(rows, rng.normal(size=400))
    explainer = cortx.TreeExplainer(cortx.Game(model, reference=rows, categorical=()), rows)
    with pytest.raises(InputError, match=r"leaves are too deep .* Save the explainer .* fit a cortx.CoRTX"):
        explainer.to_onnx(tmp_path / "trees.portable")
    assert not (tmp_path / "trees.portable").exists()


def test_a_damaged_folder_is_refused(explainer: cortx.TreeExplainer, tmp_path: Path) -> None:
    path = explainer.to_onnx(tmp_path / "trees.portable")
    document = path / "explainer.json"
    facts = json.loads(document.read_text())
    for wrong in ({"scale": [1.0, 2.0], "trees": 4}, {"trees": 4}, {"scale": [1.0], "trees": "four"}, 7):
        document.write_text(json.dumps({**facts, "exact": wrong}))
        with pytest.raises(ArtifactError, match="damaged"):
            portable.load(path)
    graph = onnx.load(path / "explainer.onnx")
    next(entry for entry in graph.metadata_props if "rows" in entry.key).value = "many"
    content = graph.SerializeToString()
    (path / "explainer.onnx").write_bytes(content)
    document.write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match="checksum"):
        portable.load(path)
    facts["graph"]["sha256"] = hashlib.sha256(content).hexdigest()
    document.write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match="cannot open the graph"):
        portable.load(path)


def test_the_command_line_exports_a_saved_explainer(explainer: cortx.TreeExplainer, tmp_path: Path) -> None:
    explainer.save(tmp_path / "trees.cortx")
    command = ["export", str(tmp_path / "trees.cortx"), str(tmp_path / "trees.portable")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "exact: bounds at any confidence are the values" in done.output
    found = portable.load(tmp_path / "trees.portable").explain(X)
    np.testing.assert_allclose(found.values, explainer.explain(X).values, rtol=0, atol=1e-12)
    done = CliRunner().invoke(app, [*command, "--int8"])
    assert done.exit_code != 0
