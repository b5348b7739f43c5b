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
