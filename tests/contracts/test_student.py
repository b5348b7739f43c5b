"""A student as control variate: labels stay right whatever it says, and a good one makes a few values enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.contracts.test_estimators import Flat, smooth_game
from tests.contracts.test_tails import GAMES, most

import cortx
from cortx.errors import InputError
from cortx.estimators import block as blocks
from cortx.estimators.amortized import Refinement
from cortx.estimators.block import Block, Control, Prior
from cortx.explainer.calibration import noise_radius, noise_reach
from cortx.explainer.labels import refuse_shrunk
from cortx.games import Rows

Array = np.ndarray
Function = Callable[[Array], Array]


class OfFunction:
    """A student that answers by a function of the masked row; its Shapley values are enumerated."""

    def __init__(self, function: Function, reference: Array) -> None:
        self.function, self.reference = function, reference
        self.game = cortx.Game(function, reference=reference)
        self.asked: list[int] = []

    def values(self, rows: Rows, coalitions: Array) -> Array:
        masked = np.where(coalitions, rows.table.matrix[:, None, :], self.reference)
        self.asked.append(int(np.prod(masked.shape[:2])))
        found = np.asarray(self.function(masked.reshape(-1, masked.shape[2])))
        return found.reshape(*masked.shape[:2], -1)

    def shapley(self, rows: Rows) -> Array:
        found = cortx.shapley(self.game, rows.table.matrix, "exact", views=0, progress=False).values
        return found[..., None] if found.ndim == 2 else found


def of_table(values: Array) -> Function:
    n = len(values).bit_length() - 1
    return lambda rows: values[((rows != 0).astype(int) << np.arange(n)).sum(axis=1)]


def repeats(n: int, count: int) -> Array:
    """Rows of different content that are the same to a game of `of_table`."""
    return np.ones((count, n)) * np.arange(1, count + 1)[:, None]


def exact(function: Function, row: Array) -> Array:
    game = cortx.Game(function, reference=np.zeros(row.shape[-1]))
    return np.asarray(cortx.shapley(game, row[None], "exact", views=0, progress=False).values[0])


def students(values: Array) -> dict[str, Array]:
    n = len(values).bit_length() - 1
    members = ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(float)
    rng = np.random.default_rng(11)
    return {
        "the game itself": values,
        "nearly the game": values + 0.1 * np.sin(3 * members @ rng.normal(size=n)),
        "linear": members @ rng.normal(size=n) + 2.0,
        "useless": 3 * rng.normal(size=2**n),
    }


METHODS: dict[str, dict[str, Any]] = {
    "kernel": {}, "unbiased": {}, "permutation": {}, "amortized": {"explainer": Flat()},
    "amortized-unbiased": {"explainer": Flat(), "unbiased": True},
}  # fmt: skip


def label(game: cortx.Game, X: Array, method: str, row_budget: int, **options: Any) -> cortx.Explanation:
    options = {"views": 0, "progress": False, **METHODS[method], **options}
    return cortx.shapley(game, X, method.removesuffix("-unbiased"), row_budget=row_budget, **options)


@pytest.mark.parametrize("method", METHODS)
def test_a_perfect_student_leaves_nothing_open(method: str) -> None:
    n = 7
    values = smooth_game(n)
    game = cortx.Game(of_table(values), reference=np.zeros(n))
    X = repeats(n, 5)
    found = label(game, X, method, 100, student=OfFunction(of_table(values), np.zeros(n)))
    truth = exact(of_table(values), X[0])
    np.testing.assert_allclose(found.values, np.tile(truth, (5, 1)), atol=1e-9)
    assert np.nanmax(found.error_std) < 1e-2 * np.abs(truth).max()
    assert found.method == f"{method}-student"
    plain = label(game, X, method, 100)
    assert found.evaluations == plain.evaluations + 1  # v(none), which the game knows from then on


@pytest.mark.parametrize("method", ["unbiased", "permutation", "amortized-unbiased"])
@pytest.mark.parametrize("kind", ["nearly the game", "linear", "useless"])
def test_labels_are_right_on_average_whatever_the_student_says(kind: str, method: str) -> None:
    """A thousand repeats: no player is off by more than chance explains, and the totals are always right."""
    n, count = 7, 1000
    values = smooth_game(n, seed=3) + 0.3 * np.random.default_rng(3).normal(size=2**n)
    game = cortx.Game(of_table(values), reference=np.zeros(n))
    student = OfFunction(of_table(students(values)[kind]), np.zeros(n))
    found = label(game, repeats(n, count), method, 25, student=student, seed=1)
    away = found.values - exact(of_table(values), np.ones(n))
    standard = away.mean(axis=0) / (away.std(axis=0) / np.sqrt(count))
    assert np.abs(standard).max() < 3.3
    np.testing.assert_allclose(found.values.sum(axis=1), values[-1] - values[0], atol=1e-9)


@pytest.mark.parametrize("method", ["unbiased", "kernel", "amortized", "amortized-unbiased"])
def test_a_good_student_is_worth_many_evaluations(method: str) -> None:
    n, count = 9, 200
    values = smooth_game(n, seed=2)
    game = cortx.Game(of_table(values), reference=np.zeros(n))
    student = OfFunction(of_table(students(values)["nearly the game"]), np.zeros(n))
    truth = exact(of_table(values), np.ones(n))
    helped, plain = (
        float(np.square(label(game, repeats(n, count), method, 65, student=who).values - truth).mean())
        for who in (student, None)
    )
    assert helped < plain / 3


@pytest.mark.parametrize("method", ["unbiased", "kernel", "amortized-unbiased"])
@pytest.mark.parametrize("kind", GAMES)
def test_standard_errors_of_what_a_student_misses_hold(kind: str, method: str) -> None:
    """The residual is any of the games of test_tails.py, the student a smooth one."""
    n, pairs, count = 8, 33, 500
    reach = radius = 0.0
    for seed in range(3):
        missed = GAMES[kind](n, np.random.default_rng(seed))
        learned = smooth_game(n, seed=seed)
        game = cortx.Game(of_table(missed + learned), reference=np.zeros(n))
        student = OfFunction(of_table(learned), np.zeros(n))
        found = label(game, repeats(n, count), method, 1 + 2 * pairs, student=student, seed=seed)
        away, errors = np.abs(found.values - exact(of_table(missed + learned), np.ones(n))), found.error_std[..., None]
        assert np.isfinite(errors).all()
        reach += (away > noise_reach(errors)[..., 0] + 1e-9).any(axis=1).mean() / 3
        radius += (np.linalg.norm(away, axis=1) > noise_radius(errors)[:, 0] + 1e-9).mean() / 3
    assert max(reach, radius) <= most(3 * count)


class Refusing:
    """A student that must not be asked."""

    def values(self, rows: Rows, coalitions: Array) -> Array:
        raise AssertionError

    shapley = values  # type: ignore[assignment]


def test_rows_that_are_enumerated_need_no_student() -> None:
    n = 5
    values = smooth_game(n)
    game = cortx.Game(of_table(values), reference=np.zeros(n))
    whole, plain = (label(game, repeats(n, 3), "kernel", 32, student=who, views=4) for who in (Refusing(), None))
    np.testing.assert_array_equal(whole.values, plain.values)
    np.testing.assert_array_equal(whole.views.values, plain.views.values)  # type: ignore[union-attr]
    assert whole.exact is not None
    assert whole.exact.all()
    assert whole.method == "kernel"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("goal", [None, 0.02])
def test_players_at_the_reference_several_outputs_and_chunks(method: str, goal: float | None) -> None:
    """Rows with 0 to 8 active players: the small ones are enumerated, and no order or chunk changes a label."""
    n, rng = 8, np.random.default_rng(0)
    X = rng.normal(size=(40, n)) * (rng.random((40, n)) < np.linspace(0, 1, 40)[:, None])
    weights = rng.normal(size=(n, 2))
    student = OfFunction(lambda rows: np.tanh(rows @ weights) + 0.1 * np.cos(rows @ weights[::-1]), np.zeros(n))

    def make(rows: Array, **options: Any) -> cortx.Explanation:
        game = cortx.Game(lambda table: np.tanh(table @ weights), reference=np.zeros(n), **options)
        return label(game, rows, method, 61, student=student, seed=5, standard_error=goal)

    whole, order = make(X), rng.permutation(len(X))
    assert (whole.values[X == 0] == 0).all()
    np.testing.assert_allclose(whole.values.sum(axis=1), np.tanh(X @ weights) - np.tanh(0 * X @ weights), atol=1e-9)
    for other, index in ((make(X[order]), order), (make(X, memory_budget=2**20), np.arange(40))):
        np.testing.assert_allclose(other.values, whole.values[index], atol=1e-9)
        np.testing.assert_allclose(other.error_std, whole.error_std[index], atol=1e-9)
    truth = cortx.shapley(
        cortx.Game(lambda table: np.tanh(table @ weights), reference=np.zeros(n)), X, "exact", views=0, progress=False
    )
    few = (X != 0).sum(axis=1) <= 3
    np.testing.assert_allclose(whole.values[few], truth.values[few], atol=1e-9)
    if goal is None:
        assert whole.exact is not None
        assert whole.exact[few].all()


def test_the_student_is_asked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "STUDENT_ASKS", 100)
    n = 10
    values = smooth_game(n)
    game = cortx.Game(of_table(values), reference=np.zeros(n))
    student = OfFunction(of_table(students(values)["nearly the game"]), np.zeros(n))
    parts = label(game, repeats(n, 7), "unbiased", 301, student=student)
    assert max(student.asked) <= 100
    monkeypatch.undo()
    np.testing.assert_allclose(label(game, repeats(n, 7), "unbiased", 301, student=student).values, parts.values)


def refinement(game: cortx.Game, X: Array, student: Any, longest: int) -> Refinement:
    rows = game.rows(X)
    active = np.tile(np.arange(X.shape[1]), (len(X), 1))
    prior = Prior(np.zeros((*X.shape, 1)), np.full((*X.shape, 1), 0.1))
    spent = np.zeros(len(X), dtype=np.int64)
    control = Control.of(student, game, rows, 0, longest)
    block = Block(game, rows, active, game.full_values(rows), 7, prior=prior, spent=spent, control=control)
    return Refinement(block, longest)


@pytest.mark.parametrize("longest", [16, 10_000])
def test_growing_regressions_end_at_the_exact_values(longest: int) -> None:
    """Rounds start from the student, cost what they did before, and all coalitions leave nothing of it."""
    n = 8
    values = smooth_game(n, seed=1)
    game = cortx.Game(of_table(values), reference=np.zeros(n))
    X = repeats(n, 30)
    student = OfFunction(of_table(students(values)["nearly the game"]), np.zeros(n))
    growing, truth = refinement(game, X, student, longest), exact(of_table(values), X[0])
    start = float(np.square(student.shapley(game.rows(X[:1]))[0, :, 0] - truth).mean())
    first = growing.estimate(np.arange(30), 32)
    assert np.square(first.values[..., 0] - truth).mean() < start
    assert growing.block.counted.tolist() == [32] * 30
    last = growing.estimate(np.arange(30), 254)
    np.testing.assert_allclose(last.values[..., 0], np.tile(truth, (30, 1)), atol=1e-12)
    assert not last.errors.any()


class Broken(OfFunction):
    """A student whose answers are changed on their way."""

    def __init__(
        self, student: OfFunction, values: Callable[[Array], Array], shapley: Callable[[Array], Array]
    ) -> None:
        super().__init__(student.function, student.reference)
        self.change, self.change_shapley = values, shapley

    def values(self, rows: Rows, coalitions: Array) -> Array:
        return self.change(super().values(rows, coalitions))

    def shapley(self, rows: Rows) -> Array:
        return self.change_shapley(super().shapley(rows))


def same(array: Array) -> Array:
    return array


def test_what_a_student_must_not_say() -> None:
    n = 8
    values = smooth_game(n)
    game = cortx.Game(of_table(values), reference=np.zeros(n))
    good, X = OfFunction(of_table(values), np.zeros(n)), repeats(n, 2)
    partly = X.copy()
    partly[:, 0] = 0
    wrong: list[tuple[Any, Array, str]] = [
        ("network", X, r"methods values\(rows, coalitions\) and shapley\(rows\), got str"),
        (Broken(good, lambda v: v[..., 0], same), X, r"values have shape \(2, 2\).*expected.*\(2, 2, 1\)"),
        (Broken(good, lambda v: v * np.nan, same), X, "values have shape .* or are not finite"),
        (Broken(good, same, lambda v: v[:, :5]), X, r"Shapley values have shape \(2, 5, 1\).*\(2, 8, 1\)"),
        (Broken(good, same, lambda v: v + 1), X, r"miss its own v\(all\) - v\(none\)"),
        (Broken(good, same, lambda v: v + 1), partly, "players that equal the reference"),
    ]
    for student, rows, words in wrong:
        with pytest.raises(InputError, match=words):
            label(game, rows, "unbiased", 33, student=student)
    with pytest.raises(InputError, match=r"student= corrects Shapley values; method='banzhaf'"):
        cortx.shapley(game, X, "banzhaf", row_budget=33, student=good)


def test_labels_that_shrink_towards_a_student_are_refused() -> None:
    n = 8
    game = cortx.Game(of_table(smooth_game(n)), reference=np.zeros(n))
    student = OfFunction(of_table(smooth_game(n, seed=1)), np.zeros(n))
    shrunk = label(game, repeats(n, 3), "amortized", 33, student=student)
    with pytest.raises(InputError, match="method='amortized'"):
        refuse_shrunk(shrunk)
    refuse_shrunk(label(game, repeats(n, 3), "amortized-unbiased", 33, student=student))


def test_rounding_of_a_student_is_shared_out() -> None:
    """A student that computes in float32: labels still add up to the last digit."""
    n = 9
    values = smooth_game(n)
    game = cortx.Game(of_table(values), reference=np.zeros(n))
    good = OfFunction(of_table(values), np.zeros(n))
    rounded = Broken(good, lambda v: v.astype(np.float32), lambda v: v.astype(np.float32))
    found = label(game, repeats(n, 4), "unbiased", 41, student=rounded)
    np.testing.assert_allclose(found.values.sum(axis=1), values[-1] - values[0], atol=1e-12)
    np.testing.assert_allclose(found.values, np.tile(exact(of_table(values), np.ones(n)), (4, 1)), atol=1e-5)
