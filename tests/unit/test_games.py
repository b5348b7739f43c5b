"""A model and a reference become v(S)."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn

from cortx import Game, shapley
from cortx.errors import CortxError, InputError, ModelError
from cortx.games.game import MIB

RNG = np.random.default_rng(0)


class Counting:
    """A function on arrays that counts the rows it sees."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        self.calls.append(len(rows))
        return np.tanh(rows.sum(axis=1)) + rows[:, 0] * rows[:, 1]


def coalitions(n: int) -> np.ndarray:
    return np.array(list(product([False, True], repeat=n)))


# What replaces the absent -----------------------------------------------------------------------------------


def test_a_table_gives_its_mean_and_mode() -> None:
    frame = pd.DataFrame({"n": [1.0, 2.0, np.nan], "s": ["b", "a", "b"], "flag": [True, False, False]})
    seen: list[pd.DataFrame] = []
    game = Game(lambda rows: seen.append(rows) or rows["n"], reference=frame)  # type: ignore[func-returns-value]
    assert game.base_values.tolist() == [1.5]
    assert seen[0].iloc[0].tolist() == [1.5, "b", False]
    assert seen[0].dtypes.tolist() == frame.dtypes.tolist()


@pytest.mark.parametrize(
    "reference",
    [
        np.array([1.0, 2.0]),
        np.array([[1.0, 2.0]]),
        [1.0, 2.0],
        torch.tensor([1.0, 2.0]),
        pd.DataFrame({"a": [1.0], "b": [2.0]}),
        pd.Series({"a": 1.0, "b": 2.0}),
        pl.DataFrame({"a": [1.0], "b": [2.0]}),
    ],
)
def test_a_row_stands_for_itself(reference: Any) -> None:
    assert Game(lambda rows: np.zeros(len(rows)), reference=reference).absent.tolist() == [[1.0, 2.0]]


def test_a_row_of_mixed_kinds_may_be_a_series() -> None:
    frame = pd.DataFrame({"n": [1, 2], "s": ["b", "a"]})
    game = Game(lambda rows: rows["n"] * (rows["s"] == "a"), reference=frame.iloc[0])
    assert shapley(game, frame.iloc[[1]]).values.tolist() == [[0.5, 1.5]]


def test_zero() -> None:
    game = Game(lambda rows: rows.sum(axis=1), reference="zero")
    with pytest.raises(InputError, match="learns its columns from the first table"):
        _ = game.n_players
    assert shapley(game, pd.DataFrame({"a": [1], "b": [2.5]})).values.tolist() == [[1.0, 2.5]]
    assert game.players.names == ("a", "b")
    with pytest.raises(InputError, match=r"no meaning for text columns \['s'\]"):
        Game(lambda rows: rows, reference="zero").rows(pd.DataFrame({"s": ["a"]}))


def test_an_array_reference_takes_the_names_of_the_first_frame() -> None:
    game = Game(lambda rows: rows["a"] * rows["b"], reference=np.array([1.0, 1.0]))
    explanation = shapley(game, pl.DataFrame({"a": [3], "b": [2]}))
    assert explanation.feature_names == ("a", "b")
    np.testing.assert_allclose(explanation.values, [[3.0, 2.0]])
    np.testing.assert_allclose(shapley(game, pl.DataFrame({"b": [2], "a": [3]})).values, [[3.0, 2.0]])
    np.testing.assert_allclose(shapley(game, np.array([[3.0, 2.0]])).values, [[3.0, 2.0]])


def test_background_averages_over_its_rows() -> None:
    background, X = RNG.normal(size=(7, 3)), RNG.normal(size=(2, 3))
    model = Counting()
    game = Game(model, background=background)
    found = game.values(game.rows(X), coalitions(3))
    function = Counting()
    for i in range(2):
        for k, present in enumerate(coalitions(3)):
            copies = [[X[i, j] if present[j] else row[j] for j in range(3)] for row in background]
            assert found[i, k, 0] == pytest.approx(np.mean([function(np.array([copy]))[0] for copy in copies]))
    assert game.base_values[0] == pytest.approx(function(background).mean())
    assert game.evaluations == sum(model.calls)


def test_one_column_that_equals_every_background_row_is_inactive() -> None:
    game = Game(Counting(), background=np.array([[1.0, 0.0], [1.0, 2.0]]))
    assert game.rows(np.array([[1.0, 0.0], [2.0, 5.0]])).active.tolist() == [[False, True], [True, True]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give either reference= .* or background="),
        ({"reference": np.zeros(2), "background": np.zeros((1, 2))}, "give either reference= .* or background="),
        ({"reference": "mean"}, "reference must be a table, a row or 'zero', got 'mean'"),
        ({"reference": np.zeros((0, 2))}, "has no rows"),
        ({"background": np.zeros((0, 2))}, "the background has no rows"),
        ({"reference": np.zeros(2), "frame": "spark"}, "frame must be one of numpy, pandas, polars, pyarrow"),
        ({"reference": np.zeros(2), "categorical": "x0"}, r"categorical must list columns, got 'x0'; use \['x0'\]"),
        ({"reference": np.zeros(2), "memory_budget": 64}, "memory_budget is in bytes and at least 1048576, got 64"),
        ({"reference": np.zeros(2), "output": "odds"}, "output must be one of 'auto', 'probability'.* got 'odds'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Game(lambda rows: rows, **settings)


def test_rows_are_checked() -> None:
    game = Game(lambda rows: rows, reference=np.zeros(2))
    with pytest.raises(InputError, match="the table has no rows"):
        game.rows(np.zeros((0, 2)))
    with pytest.raises(InputError, match="has 3 columns, expected 2"):
        game.rows(np.zeros((1, 3)))


# Players ----------------------------------------------------------------------------------------------------


def test_a_one_hot_block_is_one_player() -> None:
    colours = ["red", "green", "blue"]
    raw = pd.DataFrame({"size": [1.0, 2.0, 3.0, 2.5], "colour": ["red", "blue", "green", "green"], "age": [4, 3, 2, 1]})
    hot = pd.get_dummies(raw, columns=["colour"])[["size", *[f"colour_{c}" for c in colours], "age"]]
    worth = {"red": 1.0, "green": -2.0, "blue": 0.5}

    def on_raw(rows: pd.DataFrame) -> Any:
        return rows["size"] * rows["colour"].map(worth) + np.sqrt(rows["age"] + rows["size"])

    def on_hot(rows: pd.DataFrame) -> Any:
        colour = sum(rows[f"colour_{c}"] * worth[c] for c in colours)
        return rows["size"] * colour + np.sqrt(rows["age"] + rows["size"])

    expected = shapley(Game(on_raw, reference=raw.iloc[:1]), raw)
    groups = {"colour": [f"colour_{c}" for c in colours]}
    found = shapley(Game(on_hot, reference=hot.iloc[:1], players=groups), hot)
    assert found.feature_names == ("size", "colour", "age")
    np.testing.assert_allclose(found.values, expected.values, atol=1e-12)
    by_number = shapley(Game(on_hot, reference=hot.iloc[:1], players={"colour": [1, 2, 3]}), hot)
    np.testing.assert_array_equal(by_number.values, found.values)


def test_boolean_columns_are_numbers_for_a_matrix_model() -> None:
    model = nn.Linear(2, 1)
    frame = pd.DataFrame({"a": [0.5, 1.0], "flag": [True, False]})
    found = shapley(Game(model, reference=frame.iloc[1:]), frame).values
    weight = model.weight.detach().numpy()[0]
    np.testing.assert_allclose(found, [[-0.5 * weight[0], weight[1]], [0, 0]], atol=1e-6)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"g": ["a", "z"]}, "has no column 'z'"),
        ({"g": [7]}, "has no column number 7"),
        ({"g": []}, r"group 'g' must list its columns, got \[\]"),
        ({"g": "ab"}, "group 'g' must list its columns, got 'ab'"),
        ({"g": ["a"], "h": ["a"]}, "column 'a' is in two groups: 'g' and 'h'"),
        ({"b": ["a"]}, r"name of a column outside it: \['b'\]"),
    ],
)
def test_groups_are_checked(groups: Any, message: str) -> None:
    game = Game(lambda rows: rows, reference=pd.DataFrame({"a": [1], "b": [1]}), players=groups)
    with pytest.raises(InputError, match=message):
        _ = game.players


# Outputs ----------------------------------------------------------------------------------------------------


def outputs(model: Any, **settings: Any) -> np.ndarray:
    game = Game(model, reference=np.zeros(3), **settings)
    return game.full_values(game.rows(np.arange(6.0).reshape(2, 3) / 3))


def test_torch_outputs_of_one_logit() -> None:
    model = nn.Linear(3, 1)
    logits = model(torch.arange(6.0).reshape(2, 3) / 3).detach().double().numpy()
    probability = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(outputs(model), logits, atol=1e-6)
    np.testing.assert_allclose(outputs(model, output="raw"), logits, atol=1e-6)
    np.testing.assert_allclose(outputs(model, output="log-odds"), logits, atol=1e-6)
    np.testing.assert_allclose(outputs(model, output="probability"), probability, atol=1e-6)
    both = np.concatenate([1 - probability, probability], axis=1)
    np.testing.assert_allclose(outputs(model, output="probability", target="all"), both, atol=1e-6)
    np.testing.assert_allclose(outputs(model, output="probability", target=0), 1 - probability, atol=1e-6)
    np.testing.assert_allclose(outputs(model, output="log-odds", target=0), -logits, atol=1e-6)


def test_torch_outputs_of_several_logits() -> None:
    model = nn.Linear(3, 4)
    logits = model(torch.arange(6.0).reshape(2, 3) / 3).detach().double().numpy()
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs(model), logits, atol=1e-6)
    np.testing.assert_allclose(outputs(model, output="probability"), probability, atol=1e-6)
    odds = np.log(probability / (1 - probability))
    np.testing.assert_allclose(outputs(model, output="log-odds"), odds, atol=1e-5)
    np.testing.assert_allclose(outputs(model, output="probability", target=2), probability[:, [2]], atol=1e-6)
    with pytest.raises(InputError, match=r"target must be 'all' or one of 0..3, got 4"):
        outputs(model, target=4)


class Classifier:
    """Just enough of a scikit-learn classifier."""

    def __init__(self, classes: list[Any]) -> None:
        self.classes_ = np.array(classes)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return self.classes_[self.predict_proba(rows).argmax(axis=1)]

    def predict_proba(self, rows: np.ndarray) -> np.ndarray:
        scores = np.exp(rows.sum(axis=1)[:, None] * np.linspace(-1, 1, len(self.classes_)))
        return scores / scores.sum(axis=1, keepdims=True)


def test_classes_are_chosen_by_label_or_number() -> None:
    rows = np.arange(6.0).reshape(2, 3) / 3
    animals = Classifier(["ant", "bee", "cat"])
    expected = animals.predict_proba(rows)
    np.testing.assert_allclose(outputs(animals), expected)
    np.testing.assert_allclose(outputs(animals, target="bee"), expected[:, [1]])
    np.testing.assert_allclose(outputs(animals, target=1), expected[:, [1]])
    with pytest.raises(InputError, match="target must be 'all' or one of ant, bee, cat, got 'dog'"):
        outputs(animals, target="dog")
    numbered = Classifier([1, 2, 3])
    np.testing.assert_allclose(outputs(numbered, target=1), expected[:, [0]])  # the label, not the position
    with pytest.raises(InputError, match="one of 1, 2, 3, got 0"):
        outputs(numbered, target=0)
    binary = Classifier(["no", "yes"])
    np.testing.assert_allclose(outputs(binary), binary.predict_proba(rows)[:, 1:])
    np.testing.assert_allclose(outputs(binary, target="all"), binary.predict_proba(rows))
    assert Game(binary, reference=np.zeros(3), target="all").output_names == ("no", "yes")
    assert Game(binary, reference=np.zeros(3)).output_names is None


def test_outputs_that_a_model_does_not_have() -> None:
    class Regressor:
        def predict(self, rows: np.ndarray) -> np.ndarray:
            return rows[:, 0]

    np.testing.assert_allclose(outputs(Regressor()), [[0.0], [1.0]])
    with pytest.raises(InputError, match="needs predict_proba, which Regressor does not have; use output='raw'"):
        outputs(Regressor(), output="probability")
    with pytest.raises(InputError, match="output='raw' needs decision_function, which Classifier does not have"):
        outputs(Classifier(["a", "b"]), output="raw")
    with pytest.raises(InputError, match=r"expects probabilities, but the model returned numbers from 0 to 5"):
        outputs(lambda rows: rows * 3, output="probability")
    with pytest.raises(InputError, match=r"cannot explain a builtins.int; expected a torch module"):
        outputs(3)
    with pytest.raises(InputError, match=r"the model is the class Linear; give a fitted instance"):
        outputs(nn.Linear)
    with pytest.raises(InputError, match=r"there is no ONNX file 'nowhere.onnx'"):
        outputs("nowhere.onnx")


# What can go wrong in a model ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda rows: 1 / 0, "the model raised ZeroDivisionError on a batch of 1 masked rows: division by zero"),
        (lambda rows: rows[:, 0] * np.nan, "returned NaN or infinity for 1 of 1 masked rows"),
        (lambda rows: rows[:, 0] - np.inf, "returned NaN or infinity"),
        (lambda rows: np.ones(7), r"returned shape \(7,\) for 1 rows; expected \(1,\) or \(1, outputs\)"),
        (lambda rows: np.ones((len(rows), 2, 2)), r"returned shape \(1, 2, 2\)"),
        (lambda rows: np.ones((len(rows), 0)), r"returned shape \(1, 0\)"),
        (lambda rows: np.ones((1, 1, 1)), r"returned shape \(1, 1, 1\) for 1 rows"),
        (lambda rows: ["yes"] * len(rows), "returned list, expected numbers"),
        (lambda rows: {"a": rows}, "returned dict, expected numbers"),
        (lambda rows: None, "the model returned"),
    ],
)
def test_a_bad_model_is_named(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        _ = Game(model, reference=np.zeros(2)).base_values


def test_a_bad_module_is_named() -> None:
    class Twins(nn.Module):
        def forward(self, rows: torch.Tensor) -> Any:
            return rows, rows

    with pytest.raises(ModelError, match="the module returned tuple, expected a tensor"):
        _ = Game(Twins(), reference=np.zeros(2)).base_values
    with pytest.raises(ModelError, match="the model raised RuntimeError"):
        _ = Game(nn.Linear(5, 1), reference=np.zeros(2)).base_values
    with pytest.raises(InputError, match=r"takes one matrix of numbers, but these columns hold categories: \['s'\]"):
        _ = Game(nn.Linear(1, 1), reference=pd.DataFrame({"s": ["a"]})).base_values
    with pytest.raises(CortxError):
        _ = Game(nn.Linear(5, 1), reference=np.zeros(2)).base_values


@pytest.mark.parametrize("returned", [pd.Series, pd.DataFrame, list, torch.tensor, pl.Series, np.float32])
def test_what_models_may_return(returned: Any) -> None:
    assert Game(lambda rows: returned(rows[:, 0]), reference=np.array([2.0, 1.0])).base_values.tolist() == [2.0]


def test_half_precision_and_double_modules() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        model = nn.Linear(2, 1).to(dtype)
        assert np.isfinite(shapley(Game(model, reference=np.zeros(2)), np.ones((3, 2))).values).all()


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_is_restored(training: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)).train(training)
    model[1].eval()  # frozen, as in fine-tuning
    model[2].train()
    before = [part.training for part in model.modules()]
    statistics = model[1].running_mean.clone()
    game = Game(model, reference=np.zeros(2))
    first, second = (shapley(game, np.ones((2, 2))).values for _ in range(2))
    np.testing.assert_array_equal(first, second)  # no dropout
    assert [part.training for part in model.modules()] == before
    assert torch.equal(model[1].running_mean, statistics)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_training_mode_is_restored_after_an_error() -> None:
    model = nn.Linear(5, 1).train()
    with pytest.raises(ModelError):
        _ = Game(model, reference=np.zeros(2)).base_values
    assert model.training


# Cost and memory -----------------------------------------------------------------------------------------------


def test_values_are_the_model_on_masked_rows() -> None:
    X, reference = RNG.normal(size=(4, 5)), RNG.normal(size=5)
    game = Game(Counting(), reference=reference)
    masks = RNG.random((4, 9, 5)) < 0.5
    expected = Counting()(np.where(masks, X[:, None], reference).reshape(36, 5)).reshape(4, 9, 1)
    for distinct in (False, True):
        np.testing.assert_allclose(game.values(game.rows(X), masks, distinct=distinct), expected)
        np.testing.assert_allclose(game.values(game.rows(X), masks[0], distinct=distinct)[0], expected[0])


@pytest.mark.parametrize("n", [3, 70, 200])
def test_duplicates_are_evaluated_once(n: int) -> None:
    model = Counting()
    game = Game(model, reference=np.zeros(n))
    X = np.ones((2, n)) * [[1], [2]]
    X[1, -1] = 0  # inactive in the second row
    masks = RNG.random((2, 6, n)) < 0.5
    masks[..., -1] = [False] * 3 + [True] * 3
    masks[:, 3:, :-1] = masks[:, :3, :-1]
    distinct = sum(len({tuple(m & (x != 0)) for m in row}) for row, x in zip(masks, X, strict=True))
    found = game.values(game.rows(X), masks)
    assert sum(model.calls) == distinct + 1  # and one for the number of outputs
    np.testing.assert_allclose(found[..., 0], Counting()((masks * X[:, None]).reshape(12, n)).reshape(2, 6))


@pytest.mark.parametrize("method", ["exact", "kernel", "permutation", "banzhaf"])
def test_calls_never_exceed_the_memory_budget(method: str) -> None:
    model = Counting()
    game = Game(model, reference=np.zeros(12), memory_budget=MIB)
    most = MIB // (12 * 8)  # the masked numbers alone would fill the budget
    shapley(game, RNG.normal(size=(20, 12)), method, row_budget=5000)
    assert max(model.calls) <= most
    assert len(model.calls) > 5
    big = Game(model, background=RNG.normal(size=(5000, 12)), memory_budget=MIB)
    model.calls.clear()
    _ = big.base_values
    assert max(model.calls) <= most


def test_the_base_value_is_evaluated_once() -> None:
    model = Counting()
    game = Game(model, reference=np.zeros(4))
    for _ in range(3):
        _ = game.base_values, game.n_outputs
    assert model.calls == [1]
    assert shapley(game, np.ones((1, 4))).evaluations == 15


def test_fingerprints_are_counted() -> None:
    game = Game(Counting(), reference=np.zeros(4))
    rows = game.rows(np.ones((3, 4)))
    prints = game.fingerprint(rows.table.matrix, rows.table.schema)
    assert game.evaluations == 3
    np.testing.assert_array_equal(prints, game.full_values(rows))


def test_a_game_comes_back_from_its_spec() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0.5, 2.0, 1.0], "c": [3.0, 1.0, 2.0]})

    def model(rows: pd.DataFrame) -> Any:
        return rows["a"] * rows["b"] + rows["c"]

    for groups in (None, {"bc": ["b", "c"]}):
        game = Game(model, reference=frame, players=groups)
        spec = game.spec(game.rows(frame).table.schema)
        again = Game.from_spec(model, spec)
        assert again.players.names == game.players.names
        np.testing.assert_array_equal(shapley(again, frame).values, shapley(game, frame).values)


def test_the_model_is_given_the_kind_of_table_that_was_asked_for() -> None:
    X = pd.DataFrame({"a": [1, 2], "b": [0.5, 0.25]})
    for frame, kind in (("numpy", np.ndarray), ("pandas", pd.DataFrame), ("polars", pl.DataFrame)):
        seen: list[Any] = []

        def model(rows: Any, seen: list[Any] = seen) -> np.ndarray:
            seen.append(rows)
            return np.asarray(rows).sum(axis=1)

        game = Game(model, reference=np.zeros(2), frame=frame)
        np.testing.assert_allclose(shapley(game, X).values, X.to_numpy())
        assert all(isinstance(rows, kind) for rows in seen)


def test_a_model_returns_as_many_outputs_for_any_rows() -> None:
    game = Game(lambda rows: np.ones((len(rows), 1 + (len(rows) > 4))), reference=np.zeros((1, 3)), categorical=())
    rows = game.rows(np.ones((2, 3)))
    game.full_values(rows)
    with pytest.raises(ModelError, match="returned 2 outputs for each row, and 1 in its first call"):
        game.values(rows, np.eye(3, dtype=bool))
