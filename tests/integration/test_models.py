"""Real models of real libraries, labelled end to end and compared with an enumeration in plain pandas."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
import xgboost
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import LinearSVC

from cortx import Game, shapley
from cortx.errors import InputError, ModelError

RNG = np.random.default_rng(0)
N = 240
MIXED = pd.DataFrame(
    {
        "age": RNG.integers(18, 80, N),
        "income": np.where(RNG.random(N) < 0.2, np.nan, RNG.normal(50, 10, N)),
        "city": RNG.choice(["Rome", "Oslo", "Lima", None], N),
        "member": RNG.random(N) < 0.4,
    }
)
NUMERIC = pd.DataFrame(
    {
        "a": RNG.normal(size=N),
        "b": np.where(RNG.random(N) < 0.2, np.nan, RNG.normal(size=N)),
        "c": RNG.integers(0, 5, N),
    }
)
CATEGORIES = NUMERIC.assign(kind=pd.Categorical(RNG.choice(["u", "v", "w"], N), categories=["w", "v", "u"]))
LABEL = ((MIXED["age"] > 45) ^ (MIXED["city"] == "Rome") ^ (MIXED["income"] > 55)).to_numpy().astype(int)
SIGN = (NUMERIC["a"] + NUMERIC["c"] + np.nan_to_num(NUMERIC["b"]) > 2).to_numpy().astype(int)
BY_KIND = np.where(CATEGORIES["kind"] == "u", 1 - SIGN, SIGN)
THREE = pd.cut(NUMERIC["a"] + NUMERIC["c"], 3, labels=["high", "low", "mid"]).to_numpy().astype(str)


def brute_force(predict: Callable[[pd.DataFrame], Any], X: pd.DataFrame, reference: pd.DataFrame) -> np.ndarray:
    """Shapley values by their definition, one masked frame after the other, (rows, players, ...)."""
    names = list(X.columns)
    n = len(names)

    def value(members: tuple[str, ...]) -> np.ndarray:
        frame = pd.concat([reference] * len(X), ignore_index=True)
        for name in members:
            frame[name] = X[name].to_numpy() if name != "kind" else X[name].array
        return np.asarray(predict(frame), dtype=np.float64)

    result = []
    for name in names:
        others = [other for other in names if other != name]
        total = 0.0
        for size in range(n):
            for members in combinations(others, size):
                total = total + (value((*members, name)) - value(members)) / (n * comb(n - 1, size))
        result.append(total)
    return np.stack(result, axis=1)


def check(
    model: Any, predict: Callable[[pd.DataFrame], Any], X: pd.DataFrame, kinds: str = "pandas polars", **settings: Any
) -> np.ndarray:
    """The labels of pandas, polars and Arrow rows equal the enumeration, and each other."""
    rows, reference = X.iloc[1:9].reset_index(drop=True), X.iloc[[0]]
    expected = brute_force(predict, rows, reference)
    convert: dict[str, Callable[[pd.DataFrame], Any]] = {
        "pandas": lambda frame: frame,
        "polars": pl.from_pandas,
        "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    }
    found = np.empty(0)
    for kind in kinds.split():
        game = Game(model, reference=convert[kind](reference), **settings)
        explanation = shapley(game, convert[kind](rows), "exact")
        assert explanation.method == "exact"
        np.testing.assert_allclose(explanation.values, expected, atol=1e-5, err_msg=kind)
        if len(found):
            np.testing.assert_allclose(explanation.values, found, atol=1e-9, err_msg=kind)
        found = explanation.values
        # The reference says what the model is given, so rows may come in any other kind; trees are read here.
        game = Game(model, reference=reference, **settings)
        np.testing.assert_allclose(shapley(game, convert[kind](rows)).values, expected, atol=1e-5, err_msg=kind)
    return found


def pipeline() -> Any:
    transform = ColumnTransformer(
        [
            ("numbers", SimpleImputer(), ["age", "income"]),
            ("text", OneHotEncoder(handle_unknown="ignore"), ["city"]),
            ("rest", "passthrough", ["member"]),
        ]
    )
    return make_pipeline(transform, LogisticRegression(max_iter=1000))


def test_scikit_learn_pipeline_fitted_on_pandas() -> None:
    model = pipeline().fit(MIXED, LABEL)
    check(model, lambda frame: model.predict_proba(frame)[:, 1], MIXED, "pandas polars arrow", frame="pandas")
    check(model, lambda frame: model.decision_function(frame), MIXED, frame="pandas", output="raw")
    check(model, lambda frame: model.decision_function(frame), MIXED, frame="pandas", output="log-odds")


def test_scikit_learn_pipeline_fitted_on_polars() -> None:
    """Then missing text is None, not NaN: the model must be given polars, whatever the rows are."""
    model = pipeline().fit(pl.from_pandas(MIXED), LABEL)
    rows, reference = MIXED.iloc[1:9].reset_index(drop=True), MIXED.iloc[[0]]
    expected = brute_force(lambda frame: model.predict_proba(pl.from_pandas(frame))[:, 1], rows, reference)
    game = Game(model, reference=pl.from_pandas(reference))
    np.testing.assert_allclose(shapley(game, pl.from_pandas(rows)).values, expected, atol=1e-9)
    np.testing.assert_allclose(shapley(game, rows).values, expected, atol=1e-9)


def test_an_unseen_text_reaches_the_pipeline() -> None:
    model = pipeline().fit(MIXED, LABEL)
    rows = MIXED.iloc[[1]].assign(city="Atlantis").reset_index(drop=True)
    expected = brute_force(lambda frame: model.predict_proba(frame)[:, 1], rows, MIXED.iloc[[0]])
    np.testing.assert_allclose(shapley(Game(model, reference=MIXED.iloc[[0]]), rows).values, expected, atol=1e-9)


def test_scikit_learn_regressor_and_bare_margins() -> None:
    numbers = NUMERIC.fillna(0)
    forest = RandomForestRegressor(10, random_state=0).fit(numbers, SIGN)
    check(forest, forest.predict, numbers)
    machine = LinearSVC().fit(numbers, SIGN)  # a classifier without probabilities
    check(machine, machine.decision_function, numbers)
    with pytest.raises(InputError, match="needs predict_proba, which LinearSVC does not have"):
        Game(machine, reference=numbers, output="probability")


def test_mean_and_mode_of_a_table() -> None:
    model = pipeline().fit(MIXED, LABEL)
    reference = MIXED.iloc[[0]].assign(
        age=MIXED["age"].mean(),
        income=MIXED["income"].mean(),
        city=MIXED["city"].mode()[0],
        member=MIXED["member"].mode()[0],
    )
    rows = MIXED.iloc[:5]
    expected = brute_force(lambda frame: model.predict_proba(frame)[:, 1], rows, reference)
    np.testing.assert_allclose(shapley(Game(model, reference=MIXED), rows).values, expected, atol=1e-9)


def test_xgboost_with_missing_values() -> None:
    model = xgboost.XGBClassifier(n_estimators=8, max_depth=3, n_jobs=1).fit(NUMERIC, SIGN)
    check(model, lambda frame: model.predict_proba(frame)[:, 1], NUMERIC, "pandas polars arrow")
    check(model, lambda frame: model.predict(frame, output_margin=True), NUMERIC, output="raw")


def test_xgboost_with_categories() -> None:
    model = xgboost.XGBClassifier(n_estimators=8, max_depth=3, enable_categorical=True, n_jobs=1)
    model.fit(CATEGORIES, BY_KIND)
    found = check(model, lambda frame: model.predict_proba(frame)[:, 1], CATEGORIES, "pandas polars arrow")
    assert np.abs(found[:, 3]).max() > 0.01
    booster = model.get_booster()
    check(booster, lambda frame: model.predict_proba(frame)[:, 1], CATEGORIES, "pandas polars arrow")


@pytest.mark.parametrize("objective", ["binary:logistic", "binary:logitraw", "multi:softmax", "multi:softprob"])
def test_xgboost_booster(objective: str) -> None:
    matrix = xgboost.DMatrix(NUMERIC, SIGN)
    classes = {"num_class": 2} if objective.startswith("multi") else {}
    booster = xgboost.train({"objective": objective, "max_depth": 3, "nthread": 1, **classes}, matrix, 6)

    def probability(frame: pd.DataFrame) -> np.ndarray:
        margin = booster.predict(xgboost.DMatrix(frame), output_margin=True).astype(np.float64)
        if margin.ndim == 1:
            return 1 / (1 + np.exp(-margin))
        return np.exp(margin) / np.exp(margin).sum(axis=1, keepdims=True)

    if classes:
        check(booster, probability, NUMERIC, target="all")
        check(booster, lambda frame: probability(frame)[:, 1], NUMERIC)  # two classes: the positive one
    else:
        check(booster, probability, NUMERIC)
    check(booster, lambda frame: booster.predict(xgboost.DMatrix(frame), output_margin=True), NUMERIC, output="raw")


def test_xgboost_regression_booster_has_no_probabilities() -> None:
    booster = xgboost.train({"objective": "reg:squarederror", "nthread": 1}, xgboost.DMatrix(NUMERIC, SIGN), 4)
    check(booster, lambda frame: booster.predict(xgboost.DMatrix(frame)), NUMERIC)
    with pytest.raises(InputError, match="needs a classifier, but the objective is 'reg:squarederror'"):
        Game(booster, reference=NUMERIC, output="probability")


def test_lightgbm() -> None:
    """It takes neither polars nor Arrow categories: rows of those kinds are given to it as pandas."""
    model = lightgbm.LGBMClassifier(n_estimators=10, min_child_samples=5, verbose=-1, n_jobs=1)
    model.fit(CATEGORIES, BY_KIND)
    found = check(model, lambda frame: model.predict_proba(frame)[:, 1], CATEGORIES, "pandas polars arrow")
    assert np.abs(found[:, 3]).max() > 0.01
    check(model.booster_, model.booster_.predict, CATEGORIES, "pandas polars arrow")
    raw = brute_force(lambda f: model.predict(f, raw_score=True), CATEGORIES.iloc[1:3], CATEGORIES.iloc[[0]])
    game = Game(model, reference=CATEGORIES.iloc[[0]], output="raw")
    np.testing.assert_allclose(shapley(game, CATEGORIES.iloc[1:3]).values, raw, atol=1e-9)
    reloaded = lightgbm.Booster(model_str=model.booster_.model_to_string())
    assert Game(reloaded, reference=CATEGORIES).model.output == "probability"


def test_several_classes() -> None:
    model = lightgbm.LGBMClassifier(n_estimators=5, min_child_samples=5, verbose=-1, n_jobs=1).fit(NUMERIC, THREE)
    values = check(model, model.predict_proba, NUMERIC)
    assert values.shape == (8, 3, 3)
    np.testing.assert_allclose(values.sum(axis=2), 0, atol=1e-9)  # probabilities add up to one
    explanation = shapley(Game(model, reference=NUMERIC.iloc[[0]]), NUMERIC.iloc[1:9])
    assert explanation.output_names == ("high", "low", "mid")
    for k, name in enumerate(("high", "low", "mid")):
        one = shapley(Game(model, reference=NUMERIC.iloc[[0]], target=name), NUMERIC.iloc[1:9])
        np.testing.assert_array_equal(one.values, explanation.values[..., k])
        np.testing.assert_array_equal(one.base_values, explanation.base_values[:, k])
        assert one.output_names is None
    linear = LogisticRegression(max_iter=500).fit(NUMERIC.fillna(0).to_numpy(), THREE)
    arrays = NUMERIC.fillna(0).to_numpy()
    assert shapley(Game(linear, reference=arrays), arrays[:4]).values.shape == (4, 3, 3)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = torch.nn.Parameter(torch.randn(3, 8, generator=generator))
        self.second = torch.nn.Parameter(torch.randn(8, 1, generator=generator))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.tanh(rows @ self.first) @ self.second


def test_torch_module() -> None:
    numbers, model = NUMERIC.fillna(0), Network()

    def logits(frame: pd.DataFrame) -> np.ndarray:
        return model(torch.tensor(frame.to_numpy(), dtype=torch.float32))[:, 0].detach().numpy().astype(np.float64)

    check(model, logits, numbers, "pandas polars arrow")
    check(model, lambda frame: 1 / (1 + np.exp(-logits(frame))), numbers, output="probability")
    with pytest.raises(ModelError, match="returned NaN or infinity"):
        shapley(Game(model, reference=NUMERIC), NUMERIC)


def test_onnx_file_from_torch(tmp_path: Path) -> None:
    numbers, model, path = NUMERIC.fillna(0), Network().eval(), tmp_path / "model.onnx"
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(model, (torch.zeros(2, 3),), path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False)

    def logits(frame: pd.DataFrame) -> np.ndarray:
        return model(torch.tensor(frame.to_numpy(), dtype=torch.float32))[:, 0].detach().numpy().astype(np.float64)

    for source in (path, str(path)):
        check(source, logits, numbers, "pandas polars arrow")
    check(path, lambda frame: 1 / (1 + np.exp(-logits(frame))), numbers, output="probability")


def test_onnx_file_with_one_input_for_each_column(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    inputs = [
        helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", 1]),
        helper.make_tensor_value_info("c", TensorProto.DOUBLE, ["n", 1]),
    ]
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n", 1]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 1]),
    ]
    nodes = [
        helper.make_node("Cast", ["c"], ["c32"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["a", "c32"], ["product"]),
        helper.make_node("Sigmoid", ["product"], ["probabilities"]),
        helper.make_node("Cast", ["probabilities"], ["label"], to=TensorProto.INT64),
    ]
    graph = helper.make_graph(nodes, "columns", inputs, outputs)
    path = tmp_path / "columns.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    X = NUMERIC[["c", "a"]]  # in another order
    check(path, lambda frame: 1 / (1 + np.exp(-frame["a"] * frame["c"])), X, "pandas polars arrow")
    assert Game(path, reference=X).model.output == "probability"
    with pytest.raises(InputError, match=r"asks for the columns \['c'\]"):
        _ = Game(path, reference=X[["a"]]).base_values
    with pytest.raises(InputError, match="one input for each column; give a frame"):
        _ = Game(path, reference=X.to_numpy()).base_values


def test_a_file_that_is_no_onnx_model(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_text("nothing")
    with pytest.raises(InputError, match=r"broken.onnx' is not a readable ONNX model"):
        Game(path, reference=NUMERIC)


def test_functions_on_frames_and_arrays() -> None:
    def on_pandas(frame: pd.DataFrame) -> pd.Series:
        return frame["age"] * frame["city"].map({"Rome": 1.0, "Oslo": 2.0}).fillna(0.5) + frame["member"]

    def on_polars(frame: pl.DataFrame) -> pl.Series:
        city = frame["city"].replace_strict({"Rome": 1.0, "Oslo": 2.0}, default=0.5)
        return frame["age"] * city + frame["member"]

    check(on_pandas, on_pandas, MIXED, "pandas polars arrow", frame="pandas")
    rows, reference = MIXED.iloc[1:9], MIXED.iloc[[0]]
    expected = brute_force(on_pandas, rows.reset_index(drop=True), reference)
    game = Game(on_polars, reference=pl.from_pandas(reference))
    np.testing.assert_allclose(shapley(game, pl.from_pandas(rows)).values, expected, atol=1e-9)

    def on_arrays(rows: np.ndarray) -> np.ndarray:
        assert isinstance(rows, np.ndarray)
        return np.where(np.isnan(rows[:, 1]), -1, rows[:, 1]) * rows[:, 0] + rows[:, 2]

    check(
        on_arrays, lambda frame: on_arrays(frame.to_numpy(dtype=float)), NUMERIC, "pandas polars arrow", frame="numpy"
    )
    plain = shapley(Game(on_arrays, reference=NUMERIC.to_numpy()[0]), NUMERIC.to_numpy()[1:9]).values
    rows, reference = NUMERIC.iloc[1:9].reset_index(drop=True), NUMERIC.iloc[[0]]
    expected = brute_force(lambda frame: on_arrays(frame.to_numpy(dtype=float)), rows, reference)
    np.testing.assert_allclose(plain, expected, atol=1e-9)


@pytest.mark.parametrize("method", ["kernel", "permutation", "banzhaf"])
def test_sampled_labels_do_not_depend_on_the_kind_of_frame(method: str) -> None:
    rng = np.random.default_rng(1)
    X = pd.DataFrame({f"f{j}": rng.normal(size=12) for j in range(8)}).assign(s=rng.choice(["p", "q", None], 12))

    def model(frame: pd.DataFrame) -> Any:
        return np.tanh(frame.drop(columns="s").sum(axis=1)) * (1 + (frame["s"] == "p")) + frame["f0"] * frame["f1"]

    game = Game(model, reference=X.iloc[[0]])
    found = [
        shapley(game, rows, method, row_budget=100).values for rows in (X, pl.from_pandas(X), pa.Table.from_pandas(X))
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    game = Game(model, reference=pl.from_pandas(X.iloc[[0]]), frame="pandas")
    np.testing.assert_array_equal(shapley(game, pl.from_pandas(X), method, row_budget=100).values, found[0])
