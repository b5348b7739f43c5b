"""Numbers that count as missing: XGBoost's own one, and those that a step of a Pipeline makes missing."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from xgboost import XGBRegressor

import cortx
from cortx.errors import CortxError


def by_orders(predict: Any, row: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Shapley values, by the mean over all orders."""
    found = np.zeros(len(row))
    orders = list(permutations(range(len(row))))
    for order in orders:
        masked = np.repeat(reference[None], len(row) + 1, axis=0)
        for place, player in enumerate(order):
            masked[place + 1 :, player] = row[player]
        found[list(order)] += np.diff(predict(masked))
    return found / len(orders)


@pytest.mark.parametrize("number", [-99.9, 0.1, -999.0])
def test_a_number_that_means_missing_is_compared_as_xgboost_compares_it(number: float) -> None:
    rng = np.random.default_rng(4)
    table = rng.normal(size=(1_500, 4))
    table[rng.random(1_500) < 0.05, 2] = number
    target = table[:, 0] * table[:, 1] + 3 * (table[:, 2] == number)
    model = XGBRegressor(n_estimators=12, max_depth=3, missing=number).fit(table, target)
    game = cortx.Game(model, reference=np.median(table, axis=0)[None], categorical=())
    rows = np.concatenate([table[table[:, 2] == number][:3], table[:3]])
    found = cortx.shapley(game, rows, "tree")
    for row, values in zip(rows, found.values, strict=True):
        np.testing.assert_allclose(values, by_orders(model.predict, row, np.median(table, axis=0)), atol=1e-5)
    with pytest.raises(CortxError, match="for missing"):  # a single number is no threshold
        cortx.TreeExplainer(game, table)


def test_numbers_that_a_step_makes_missing_are_refused_or_right() -> None:
    rng = np.random.default_rng(5)
    table = np.abs(rng.normal(size=(800, 3)))
    gone = np.where(rng.random(800) < 0.2, -1.0, table[:, 0])  # the square root of these is NaN
    learned = np.column_stack([gone, table[:, 1:]])
    target = np.where(gone < 0, 4.0, gone) + table[:, 1] * table[:, 2]
    with np.errstate(invalid="ignore"):
        model = make_pipeline(FunctionTransformer(np.sqrt), XGBRegressor(n_estimators=10, max_depth=3))
        model.fit(learned, target)
        game = cortx.Game(model, reference=table, categorical=())
        with pytest.raises(CortxError, match="clip such numbers"):
            cortx.TreeExplainer(game, table)
        row = np.array([-0.5, 1.0, 1.0])
        found = cortx.shapley(game, row[None], "tree").values[0]
        np.testing.assert_allclose(found, by_orders(model.predict, row, table.mean(axis=0)), atol=1e-5)


def test_a_rare_value_that_a_step_tells_from_both_its_neighbours_is_refused() -> None:
    """One row of 10,000 has it: a sample of rows would not show it."""
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder
    from sklearn.tree import DecisionTreeRegressor

    rng = np.random.default_rng(0)
    table = np.stack([np.zeros(20_000), rng.normal(size=20_000)], axis=1)
    table[[7, 9_000], 0], table[[5, 70], 0] = 1, 2
    target = 100 * (table[:, 0] == 1) + 50 * (table[:, 0] == 2) + table[:, 1]
    steps = make_column_transformer(
        (OneHotEncoder(drop="first", handle_unknown="ignore", sparse_output=False), [0]), remainder="passthrough"
    )
    model = make_pipeline(steps, DecisionTreeRegressor(max_depth=6)).fit(table, target)
    game = cortx.Game(model, reference=np.zeros((1, 2)), categorical=())
    with pytest.raises(CortxError, match=r"neither rises nor falls with its column .*categorical=\[\.\.\.\]"):
        cortx.TreeExplainer(game, table)
    known = cortx.Game(model, reference=np.zeros((1, 2)), categorical=[0])
    values = cortx.TreeExplainer(known, table).explain(table[[7, 5, 1]]).values
    for row, found in zip(table[[7, 5, 1]], values, strict=True):
        np.testing.assert_allclose(found, by_orders(model.predict, row, np.zeros(2)), atol=1e-9)


class Guarded(XGBRegressor):
    """A user's own class: a rule on top of the trees."""

    def predict(self, X: Any, **options: Any) -> Any:
        return super().predict(X, **options) + 100.0 * (np.asarray(X)[:, 2] == 1)


def test_a_model_that_does_more_than_its_trees_is_found_out_however_rarely() -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(5_000, 3))
    table[:, 2] = np.arange(5_000) % 200 == 3
    model = Guarded(n_estimators=5, max_depth=3).fit(table, table[:, 0] * table[:, 1])
    game = cortx.Game(model, reference=np.zeros((1, 3)), categorical=())
    with pytest.raises(CortxError, match="a predict of its own"):
        cortx.shapley(game, table[:3], "tree")
    rows = table[table[:, 2] == 1][:3]
    found = cortx.shapley(game, rows)
    assert found.method != "tree"
    np.testing.assert_allclose(found.values[:, 2], 100.0, atol=1e-3)


def test_rows_that_check_a_model_show_rare_values() -> None:
    from cortx.games.trees import _checked_rows
    from cortx.tables import read_table

    matrix = np.random.default_rng(2).normal(size=(3_000, 3))
    matrix[:, 2] = 0
    matrix[1_234, 2] = 1
    table = read_table(matrix, what="the table")
    chosen = _checked_rows(table, 16)
    assert (len(chosen), chosen[0]) == (16, 1_234)
    assert len(_checked_rows(read_table(matrix[:, :2], what="the table"), 5)) == 5
