"""Tables with twenty columns or more that no setting of the library was tuned for, with models that are not trees.

* `sensors`: 24 numbers, some of them skewed or yes and no; a neural network (scikit-learn's MLPClassifier), log-odds.
* `digits`: the 40 pixels of scikit-learn's digits that vary most; a support vector machine with a Gaussian kernel.
* `customers`: 16 numbers and 8 columns of text; a Pipeline of one-hot codes, Nystroem's kernel features and a logistic
  regression, log-odds.

True values of the test rows cost nobody anything. Those of the support vector machine are exact: a Gaussian kernel is a
product over columns (`benchmarks.slow_model`). The others are sampled; how precise they are is part of the result.
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


def sensors() -> Unseen:
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(11)
    common = rng.normal(size=(8_000, 5))
    rows = common @ rng.normal(size=(5, 24)) * 0.5 + rng.normal(size=(8_000, 24))
    rows[:, 12:18] = np.exp(0.6 * rows[:, 12:18])
    rows[:, 18:22] = rows[:, 18:22] > 0.4
    x = rows.T
    score = x[0] * x[1] + np.sin(2 * x[2]) + np.abs(x[3]) - np.log(x[12]) * x[18] + np.tanh(x[13] - x[4])
    score += 0.5 * x[5] * (x[19] - x[20]) + 0.3 * x[6:12].sum(axis=0) + 0.2 * (x[14] - x[15])
    target = score - np.median(score) + rng.logistic(size=len(rows)) > 0
    model = make_pipeline(StandardScaler(), MLPClassifier((64, 64), alpha=0.01, max_iter=40, random_state=0))
    train, test = rows[:-TEST_ROWS], rows[-TEST_ROWS:]
    model.fit(train, target[:-TEST_ROWS])
    return Unseen(cortx.Game(model, reference=train, output="log-odds"), train, test, 16_000)


def digits() -> Unseen:
    from sklearn.datasets import load_digits
    from sklearn.svm import SVC

    rows, digit = load_digits(return_X_y=True)
    order = np.random.default_rng(12).permutation(len(rows))
    rows, digit = rows[order] / 16, digit[order]
    rows = rows[:, np.sort(np.argsort(-rows.std(axis=0), kind="stable")[:40])]
    train, test = rows[:-TEST_ROWS], rows[-TEST_ROWS:]
    model = SVC(C=2.0, gamma=0.1).fit(train, digit[:-TEST_ROWS] >= 5)
    reference = train.mean(axis=0)
    game = cortx.Game(model.decision_function, reference=reference, output="raw")
    weights = model.dual_coef_[0]

    def exact(rows: Array) -> Array:
        def kernel(at: Array) -> Array:
            return np.asarray(np.exp(-0.1 * np.square(model.support_vectors_ - at)))

        return np.stack([product_values(kernel(row), kernel(reference), weights) for row in rows])

    return Unseen(game, train, test, 0, exact)


WORDS = {"region": 12, "channel": 4, "plan": 5, "device": 6, "work": 9, "housing": 3, "purpose": 8, "school": 5}
NUMBERS = (
    "age", "income", "balance", "limit", "months", "calls", "visits", "payments", "late", "savings", "children",
    "rooms", "distance", "score", "orders", "returns",
)  # fmt: skip


def customers() -> Unseen:
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(13)
    n = 8_000
    common = rng.normal(size=(n, 4))
    numbers = 0.7 * common[:, np.arange(16) % 4] + 0.7 * rng.normal(size=(n, 16))
    codes = {
        name: np.clip((common[:, k % 4] + rng.normal(size=n) + 2) * levels / 4, 0, levels - 1).astype(int)
        for k, (name, levels) in enumerate(WORDS.items())
    }
    effect = {name: rng.normal(size=levels) for name, levels in WORDS.items()}
    told = {name: effect[name][code] for name, code in codes.items()}
    score = numbers[:, 0] * told["plan"] + told["region"] + told["work"] * told["channel"] + np.abs(numbers[:, 1])
    score += np.sin(2 * numbers[:, 2]) + numbers[:, 3] * numbers[:, 4] + 0.3 * numbers[:, 5:].sum(axis=1)
    target = score - np.median(score) + rng.logistic(size=n) > 0
    frame = pd.DataFrame({name: np.exp(0.4 * column) if k % 3 == 1 else column
                          for k, (name, column) in enumerate(zip(NUMBERS, numbers.T, strict=True))})  # fmt: skip
    for name, code in codes.items():
        frame[name] = [f"{name} {letter}" for letter in np.array(list("abcdefghijkl"))[code]]
    frame, held = frame.iloc[:-TEST_ROWS], frame.iloc[-TEST_ROWS:].reset_index(drop=True)
    model = make_pipeline(
        make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore", sparse_output=False), list(WORDS)),
            (StandardScaler(), list(NUMBERS)),
        ),
        Nystroem(gamma=0.03, n_components=300, random_state=0),
        LogisticRegression(C=30.0, max_iter=2_000),
    ).fit(frame, target[:-TEST_ROWS])
    return Unseen(cortx.Game(model, reference=frame, output="log-odds"), frame, held, 8_000)


TABLES = {"sensors": sensors, "digits": digits, "customers": customers}
WHAT = {
    "sensors": "24 numbers, neural network",
    "digits": "40 pixels, support vector machine",
    "customers": "16 numbers and 8 columns of text, Pipeline of kernel features",
}
