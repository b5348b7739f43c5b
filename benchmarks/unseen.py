"""Tables with twenty columns or more that no setting of the library was tuned for, with models that are not trees.

* `loans`: 26 numbers, some of them skewed, counts, or yes and no; a neural network of three layers (scikit-learn's
  MLPClassifier), log-odds.
* `spectra`: 32 numbers, neighbours alike; kernel ridge regression with a Laplacian kernel.
* `claims`: 13 numbers and 9 columns of text; a Pipeline of one-hot codes and a support vector machine.

True values of the test rows cost nobody anything. Those of the kernel models are exact: their kernels are products over
columns (`benchmarks.slow_model`). Those of the network are sampled; how precise they are is part of the result.
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


def loans() -> Unseen:
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(401)
    n = 9_000
    common = rng.normal(size=(n, 6))[:, rng.integers(6, size=26)]
    rows = common * rng.uniform(0.2, 0.9, size=26) + rng.normal(size=(n, 26))
    rows[:, 8:14] = np.expm1(0.5 * rows[:, 8:14])
    rows[:, 14:18] = rng.poisson(np.exp(0.5 * rows[:, 14:18]))
    rows[:, 18:21] = rows[:, 18:21] > 0.7
    x = rows.T
    score = x[0] * x[8] - np.sqrt(1 + x[14]) * (1 + x[18]) + np.cos(x[1] + x[2]) + np.maximum(x[3], 0.5 * x[4])
    score += x[19] * x[5] - 0.4 * x[9] + 0.3 * np.minimum(x[15], 3) * x[20] + 0.25 * x[21:].sum(axis=0)
    target = score - np.median(score) + rng.logistic(size=n) > 0
    train, test = rows[:-TEST_ROWS], rows[-TEST_ROWS:]
    network = MLPClassifier((48, 48, 24), alpha=0.003, max_iter=50, random_state=3)
    model = make_pipeline(StandardScaler(), network).fit(train, target[:-TEST_ROWS])
    return Unseen(cortx.Game(model, reference=train, output="log-odds"), train, test, 24_000)


def spectra() -> Unseen:
    from sklearn.kernel_ridge import KernelRidge

    rng = np.random.default_rng(402)
    walk = rng.normal(size=(6_000, 38))
    rows = sum(walk[:, k : k + 32] for k in range(7)) / np.sqrt(7) * 0.8 + 0.3 * rng.normal(size=(6_000, 32))
    x = rows.T
    peak = np.exp(x[4:9]).sum(axis=0) / np.exp(x[20:25]).sum(axis=0)
    target = np.log(peak) + x[12] * x[28] + np.abs(x[16]) + 0.1 * rng.normal(size=len(rows))
    train, test = rows[:-TEST_ROWS], rows[-TEST_ROWS:]
    gamma, reference = 0.04, train.mean(axis=0)
    model = KernelRidge(kernel="laplacian", gamma=gamma, alpha=0.05).fit(train[:2_000], target[:2_000])

    def exact(rows: Array) -> Array:
        def kernel(at: Array) -> Array:
            return np.asarray(np.exp(-gamma * np.abs(model.X_fit_ - at)))

        return np.stack([product_values(kernel(row), kernel(reference), model.dual_coef_) for row in rows])

    return Unseen(cortx.Game(model, reference=reference, output="raw"), train, test, 0, exact)


LEVELS = {
    "brand": 14,
    "colour": 7,
    "country": 20,
    "dealer": 11,
    "fuel": 4,
    "gear": 2,
    "use": 5,
    "cover": 3,
    "agent": 30,
}
NUMBERS = (
    "age", "power", "weight", "value", "years", "mileage", "claims", "bonus", "income", "density", "doors", "seats",
    "length",
)  # fmt: skip


def claims() -> Unseen:
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.svm import SVR

    rng = np.random.default_rng(403)
    n = 7_000
    numbers = rng.normal(size=(n, 13)) + 0.6 * rng.normal(size=(n, 1))
    score = numbers[:, 0] * numbers[:, 1] + np.tanh(numbers[:, 2]) * numbers[:, 3] + 0.3 * numbers[:, 4:].sum(axis=1)
    frame = pd.DataFrame(numbers, columns=list(NUMBERS))
    frame["value"] = np.exp(0.5 * frame["value"])
    for k, (name, levels) in enumerate(LEVELS.items()):
        code = np.minimum(rng.geometric(2 / (levels + 1), size=n) - 1, levels - 1)  # few are frequent, many rare
        score += rng.normal(size=levels)[code] * (1 + 0.6 * numbers[:, k])
        frame[name] = np.array([f"{name} {level}" for level in range(levels)])[code]
    train, test = frame.iloc[:-TEST_ROWS], frame.iloc[-TEST_ROWS:].reset_index(drop=True)
    codes = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = make_column_transformer((codes, list(LEVELS)), (StandardScaler(), list(NUMBERS)))
    gamma = 0.03
    model = make_pipeline(columns, SVR(gamma=gamma, C=10.0)).fit(train[:2_500], score[:2_500])
    means, words = train[list(NUMBERS)].mean(), train[list(LEVELS)].mode().iloc[0]
    reference = pd.DataFrame([{**means, **words}])[train.columns]
    game = cortx.Game(model, reference=reference, output="raw")
    owner = np.concatenate([np.full(len(found), k) for k, found in enumerate(columns.transformers_[0][1].categories_)])
    owner = np.concatenate([owner, len(LEVELS) + np.arange(13)])  # the column that each input is made of
    names = [*LEVELS, *NUMBERS]

    def exact(rows: Any) -> Array:
        support = model[-1].support_vectors_

        def kernel(at: Array) -> Array:
            squares = np.square(support - at)  # (vectors, inputs), added up column by column
            return np.exp(-gamma * np.stack([squares[:, owner == k].sum(axis=1) for k in range(len(names))], axis=1))

        absent = kernel(columns.transform(reference))
        weights = model[-1].dual_coef_[0]
        found = np.stack([product_values(kernel(at), absent, weights) for at in columns.transform(rows)])
        return found[:, [names.index(name) for name in train.columns]]

    return Unseen(game, train, test, 0, exact)


TABLES = {"loans": loans, "spectra": spectra, "claims": claims}
WHAT = {
    "loans": "26 numbers, neural network",
    "spectra": "32 numbers, kernel ridge regression",
    "claims": "13 numbers and 9 columns of text, Pipeline of a support vector machine",
}
