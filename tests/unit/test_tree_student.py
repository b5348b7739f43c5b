"""The margins of boosted trees as a student of their probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost
from sklearn.linear_model import LogisticRegression

import cortx
from cortx.errors import InputError
from cortx.estimators.block import Student
from cortx.estimators.coalitions import all_coalitions
from cortx.estimators.exact import Exact
from cortx.estimators.tree_student import TreeStudent

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 8))
Y = X[:, 0] * X[:, 1] + X[:, 2] + np.sin(2 * X[:, 3]) > 0.3


def make_game(n_background: int = 1) -> cortx.Game:
    model = xgboost.XGBClassifier(n_estimators=30, max_depth=3, learning_rate=0.15, n_jobs=1).fit(X, Y)
    return cortx.Game(model, background=X[:n_background], categorical=())


@pytest.mark.parametrize("n_background", [1, 3])
def test_its_shapley_values_are_those_of_its_own_game(n_background: int) -> None:
    game = make_game(n_background)
    rows = game.rows(X[:4])
    student = TreeStudent.of(game, game.rows(X), evaluations=300)
    assert isinstance(student, Student)
    assert game.evaluations <= 300

    def own(table: np.ndarray) -> np.ndarray:
        return student.values(game.rows(table), np.ones((1, 8), dtype=bool))[:, 0]

    same = cortx.Game(own, background=X[:n_background], categorical=())
    np.testing.assert_allclose(student.shapley(rows)[..., 0], cortx.shapley(same, X[:4], Exact()).values, atol=1e-9)
    (coalitions,) = all_coalitions(8)
    expected = same.values(same.rows(X[:4]), coalitions)
    np.testing.assert_allclose(student.values(rows, coalitions), expected, atol=1e-9)


def test_it_lowers_the_error_of_sampling() -> None:
    game = make_game()
    truth = cortx.shapley(game, X[:60], "exact").values
    student = TreeStudent.of(game, game.rows(X))
    errors = {
        name: np.square(cortx.shapley(game, X[:60], "permutation", row_budget=70, student=given).values - truth).sum()
        for name, given in (("without", None), ("with", student))
    }
    assert errors["with"] < 0.8 * errors["without"]


def test_what_has_no_trees_is_refused() -> None:
    game = cortx.Game(LogisticRegression().fit(X, Y), reference=X, categorical=())
    with pytest.raises(InputError, match="LogisticRegression"):
        TreeStudent.of(game, game.rows(X))
    wide = make_game(100)
    with pytest.raises(InputError, match="at least 8"):
        TreeStudent.of(wide, wide.rows(X))
