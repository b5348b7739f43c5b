"""Tables with twenty columns or more that no setting of the library was tuned for, with models that are not trees.

* `meters`: 24 numbers, hours and months among them; a neural network of two layers (scikit-learn's MLPRegressor).
* `cells`: 28 numbers, skewed; a Gaussian process (scikit-learn's GaussianProcessRegressor, 1,500 rows).
* `orders`: 12 numbers and 10 columns of text; a Pipeline of one-hot codes and a neural network, log-odds.

True values of the test rows cost nobody anything. Those of the Gaussian process are exact: its kernel is a product over
columns (`benchmarks.slow_model`). Those of the networks are sampled; how precise they are is part of the result.
Tables that have chosen a setting are replaced by others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import cortx
from benchmarks.slow_model import product_values

Array = npt.NDArray[np.float64]
TEST_ROWS = 200
TRUTH_SEED = 1_000_003


@dataclass(frozen=True, eq=False)
class Unseen:
    """A game, rows to learn from, and rows to explain."""

    game: cortx.Game
    train: Any
    test: Any
    truth_values: int
    """Values v(S) of each test row from which its true values are estimated; 0: they are exact by `exact`."""
    exact: Any = None
    """A function from the test rows to their Shapley values, (rows, players)."""

    def truth(self, part: int = 1) -> tuple[Array, float]:
        """Shapley values of the test rows, (rows, players), and the mean relative standard error; no evaluation counts.

        `part`: one of so many values is asked for, for a quick look.
        """
        if self.exact is not None:
            return self.exact(self.test), 0.0
        spent = self.game.evaluations
        found = cortx.shapley(
            self.game, self.test, "odd", row_budget=self.game.evaluations_per_value * (self.truth_values // part),
            views=0, seed=TRUTH_SEED, progress=False,
        )  # fmt: skip
        self.game.evaluations = spent
        size = np.linalg.norm(found.values, axis=1).mean()
        return found.values, float(np.linalg.norm(found.error_std, axis=1).mean() / size)


def meters() -> Unseen:
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(501)
    n = 10_000
    rows = rng.normal(size=(n, 24)) + 0.5 * rng.normal(size=(n, 4))[:, np.arange(24) % 4]
    rows[:, 0], rows[:, 1] = rng.integers(24, size=n), rng.integers(1, 13, size=n)
    rows[:, 2:6] = np.abs(rows[:, 2:6]) * 10
    x = rows.T
    target = 5 * np.sin(x[0] * np.pi / 12) * (1 + 0.3 * np.cos(x[1] * np.pi / 6)) + 0.2 * x[2] * (x[6] > 0)
    target += np.maximum(x[7] * x[8], -1) + 2 * np.tanh(x[9]) * x[10] + 0.1 * x[3] - 0.5 * x[11] ** 2
    target += 0.4 * x[12:].sum(axis=0) + 0.5 * rng.normal(size=n)
    train, test = rows[:-TEST_ROWS], rows[-TEST_ROWS:]
    network = MLPRegressor(hidden_layer_sizes=(64, 64), early_stopping=True, random_state=5)
    model = make_pipeline(StandardScaler(), network).fit(train, target[:-TEST_ROWS])
    return Unseen(cortx.Game(model, reference=train, categorical=()), train, test, 24_000)


def cells() -> Unseen:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    rng = np.random.default_rng(502)
    n = 6_000
    latent = rng.normal(size=(n, 5)) @ rng.normal(size=(5, 28)) / np.sqrt(5)
    rows = np.log1p(np.exp(latent + 0.7 * rng.normal(size=(n, 28))))
    x = rows.T
    target = x[0] * x[1] - x[2] * x[3] / (1 + x[4]) + np.cos(2 * x[5]) + np.sqrt(x[6] + x[7]) - x[8] * (x[9] > 1)
    target += 0.2 * x[10:20].sum(axis=0) + 0.2 * rng.normal(size=n)
    train, test = rows[:-TEST_ROWS], rows[-TEST_ROWS:]
    length = 4.0
    kernel = RBF(length) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(train[:1_500], target[:1_500])
    reference = train.mean(axis=0)

    def exact(rows: Array) -> Array:
        def factors(at: Array) -> Array:
            return np.asarray(np.exp(-0.5 * np.square((model.X_train_ - at) / length)))

        weights, absent = model.alpha_ * target[:1_500].std(), factors(reference)
        return np.stack([product_values(factors(row), absent, weights) for row in rows])

    game = cortx.Game(lambda table: model.predict(np.asarray(table)), reference=reference)
    return Unseen(game, train, test, 0, exact)


LEVELS = {
    "shop": 25,
    "brand": 16,
    "carrier": 6,
    "channel": 4,
    "payment": 5,
    "region": 12,
    "segment": 3,
    "size": 6,
    "voucher": 2,
    "weekday": 7,
}
NUMBERS = (
    "price", "discount", "items", "weight", "distance", "age", "orders", "returns", "visits", "delay", "margin",
    "rating",
)  # fmt: skip


def orders() -> Unseen:
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(503)
    n = 9_000
    numbers = rng.normal(size=(n, len(NUMBERS))) + 0.5 * rng.normal(size=(n, 1))
    score = numbers[:, 0] * numbers[:, 1] + np.abs(numbers[:, 2]) - numbers[:, 3] * (numbers[:, 4] > 0)
    score += 0.3 * numbers[:, 5:].sum(axis=1)
    frame = pd.DataFrame(numbers, columns=list(NUMBERS))
    frame["price"] = np.exp(frame["price"])
    frame["items"] = 1 + rng.poisson(np.exp(0.5 * numbers[:, 2]))
    for k, (name, levels) in enumerate(LEVELS.items()):
        code = np.minimum(rng.geometric(2 / (levels + 1), size=n) - 1, levels - 1)  # few are frequent, many rare
        score += 0.7 * rng.normal(size=levels)[code] * (1 + 0.5 * numbers[:, k])
        frame[name] = np.array([f"{name} {level}" for level in range(levels)])[code]
    returned = score + rng.logistic(size=n) > np.median(score)
    train, test = frame.iloc[:-TEST_ROWS], frame.iloc[-TEST_ROWS:].reset_index(drop=True)
    codes = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = make_column_transformer((codes, list(LEVELS)), (StandardScaler(), list(NUMBERS)))
    network = MLPClassifier((32,), early_stopping=True, random_state=7)
    model = make_pipeline(columns, network).fit(train, returned[:-TEST_ROWS])
    return Unseen(cortx.Game(model, reference=train, output="log-odds", categorical=()), train, test, 24_000)


TABLES = {"meters": meters, "cells": cells, "orders": orders}
WHAT = {
    "meters": "24 numbers, neural network",
    "cells": "28 numbers, Gaussian process",
    "orders": "12 numbers and 10 columns of text, Pipeline of a neural network",
}
