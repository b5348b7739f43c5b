"""Labels from few draws: what their standard errors promise holds, and only enumeration makes them exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.contracts.test_estimators import Flat

import cortx
from cortx.errors import InputError
from cortx.explainer.calibration import noise_radius, noise_reach
from cortx.explainer.labels import Labels, exact_rows, label_facts, pack_labels, unpack_labels
from cortx.explainer.store import Ask, LabelStore, averaged, merged
from cortx.explanation import Explanation
from cortx.tails import student_tail

Array = np.ndarray
RISK = 0.002


def members(n: int) -> Array:
    return ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(bool)


def of_trees(n: int, rng: np.random.Generator) -> Array:
    values = np.zeros(2**n)
    for _ in range(5):
        values += rng.normal(size=8)[members(n)[:, rng.permutation(n)[:3]] @ [1, 2, 4]]
    return values


def threshold(n: int, rng: np.random.Generator) -> Array:
    present = members(n)
    return (present @ rng.normal(size=n) + ((present @ rng.normal(size=(n, n))) * present).sum(axis=1) / 2 > 0).astype(
        float
    )


GAMES: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "three-way AND": lambda n, rng: members(n)[:, :3].all(axis=1).astype(float),
    "five-way AND": lambda n, rng: members(n)[:, :5].all(axis=1).astype(float),
    "threshold": threshold,
    "trees": of_trees,
    "tanh": lambda n, rng: np.tanh(members(n) @ rng.normal(size=(n, 4))).sum(axis=1),
    "noise": lambda n, rng: rng.normal(size=2**n),
}


def replicas(values: Array, count: int) -> tuple[cortx.Game, Array, Array]:
    """A game, many rows of different content in which it is the same, and its true values."""
    n = len(values).bit_length() - 1

    def model(rows: Array) -> Array:
        return values[((rows != 0).astype(int) << np.arange(n)).sum(axis=1)]

    game = cortx.Game(model, reference=np.zeros(n))
    X = np.ones((count, n)) * np.arange(1, count + 1)[:, None]
    return game, X, np.asarray(cortx.shapley(game, X[:1], "exact", views=0).values)


def shares_beyond(kind: str, n: int, method: str, row_budget: int, count: int = 1000) -> tuple[float, float, float]:
    """Of rows of three games: the share without standard errors, and those beyond their reach and their radius."""
    unknown = reach = radius = 0.0
    for seed in range(3):
        game, X, truth = replicas(GAMES[kind](n, np.random.default_rng(seed)), count)
        options = {"explainer": Flat(), "unbiased": True} if method == "amortized" else {}
        labels = cortx.shapley(game, X, method, row_budget=row_budget, views=0, seed=seed, progress=False, **options)
        assert labels.exact is not None
        assert labels.error_std is not None
        assert not labels.exact.any()
        away, errors = np.abs(labels.values - truth), labels.error_std[..., None]
        unknown += np.isnan(labels.error_std).any(axis=1).mean() / 3
        reach += (away > noise_reach(errors)[..., 0] + 1e-12).any(axis=1).mean() / 3
        radius += (np.linalg.norm(away, axis=1) > noise_radius(errors)[:, 0] + 1e-12).mean() / 3
    return unknown, reach, radius


def most(count: int) -> float:
    """The share of so many rows that a risk of `RISK` each stays below, but for one chance in a thousand."""
    return RISK + 3.3 * np.sqrt(RISK / count)


@pytest.mark.parametrize("pairs", [2, 5, 7, 8, 11, 16])
@pytest.mark.parametrize("kind", GAMES)
def test_few_orders_promise_no_more_than_holds(kind: str, pairs: int) -> None:
    n = 8
    unknown, reach, radius = shares_beyond(kind, n, "permutation", 1 + pairs * 2 * (n - 1))
    assert unknown == (pairs < 8)
    assert max(reach, radius) <= most(3000)


@pytest.mark.parametrize("method", ["kernel", "odd", "unbiased", "amortized"])
@pytest.mark.parametrize("kind", GAMES)
def test_few_coalitions_promise_no_more_than_holds(kind: str, method: str) -> None:
    for n, pairs in ((8, 16), (8, 24), (9, 33)):
        unknown, reach, radius = shares_beyond(kind, n, method, 1 + 2 * pairs, 500)
        assert max(reach, radius) <= most(1500), (n, pairs)
        assert unknown == 0 or pairs < (32 if method == "amortized" else 2 * n + 6)


def test_the_tails_are_students() -> None:
    scipy = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 7, 8, 31, 200):
        for t in (0.0, 0.5, 3.0, 9.0):
            assert student_tail(t, freedom) == pytest.approx(scipy.t.sf(t, freedom), rel=1e-6)


# Exact is what was enumerated -----------------------------------------------------------------------------------------


def test_only_rows_whose_coalitions_were_all_asked_are_exact() -> None:
    game, X, _ = replicas(GAMES["tanh"](6, np.random.default_rng(0)), 7)
    X[0], X[1, 1:], X[2, 3:] = 0, 0, 0  # nobody, one and three active players
    for method in ("auto", "kernel", "permutation", "unbiased", "banzhaf"):
        for options in ({"row_budget": 40}, {"row_budget": 40, "standard_error": 1e-9}):
            labels = cortx.shapley(game, X, method, views=0, **options)
            assert labels.exact is not None
            assert labels.exact.tolist() == [True, True, True, False, False, False, False], (method, options)
            whole = cortx.shapley(game, X, method, views=0, row_budget=63)
            assert whole.exact is not None
            assert whole.exact.all()
            assert not whole.error_std.any()


def test_agreement_is_not_enumeration() -> None:
    """An additive game: all orders agree, and the flag still says that they were drawn."""
    game = cortx.Game(lambda rows: rows.sum(axis=1), reference=np.zeros(8))
    labels = cortx.shapley(game, np.ones((2, 8)), "permutation", row_budget=1 + 8 * 14)
    assert np.abs(labels.error_std).max() < 1e-12
    assert labels.exact is not None
    assert not labels.exact.any()


def rounds(exact: Array, zero: Array) -> tuple[Array, Array, Array]:
    """Two rounds of three rows: values, errors and costs."""
    values = np.stack([np.full((3, 4, 1), 1.0), np.full((3, 4, 1), 3.0)])
    errors = np.where(zero[:, :, None, None] | exact[:, :, None, None], 0.0, np.full(values.shape, 0.5))
    return values, errors, np.array([[10.0] * 3, [30.0] * 3])


def test_an_exact_round_replaces_the_others_and_a_zero_error_does_not() -> None:
    exact = np.array([[False, True, False], [False, False, False]])
    zero = np.array([[True, False, False], [False, False, False]])
    values, errors = merged(*rounds(exact, zero), exact)
    np.testing.assert_allclose(values[:, 0, 0], [2.5, 1.0, 2.5])  # a quarter of 1 and three of 3, by cost
    np.testing.assert_allclose(errors[:, 0, 0], [0.375, 0.0, np.hypot(0.125, 0.375)])


def test_averaged_labels_keep_the_flag() -> None:
    exact = np.array([[True, False, False], [False, False, True]])
    values, errors, _ = rounds(exact, ~exact & False)
    parts = [
        Labels(None, values[k], np.zeros((3, 1)), 0, 0.0, "kernel", errors=errors[k], exact=exact[k]) for k in range(2)
    ]
    both = averaged(parts, (Ask("auto", 10), Ask("auto", 30, 1)))
    assert both.exact is not None
    assert both.exact.tolist() == [True, False, True]
    assert both.values[:, 0, 0].tolist() == [1.0, 2.5, 3.0]


def test_the_flag_survives_a_checkpoint_and_old_ones_claim_little() -> None:
    game, X, _ = replicas(GAMES["tanh"](6, np.random.default_rng(0)), 5)
    X[0, 2:] = 0
    labels = cortx.shapley(game, X, row_budget=30, views=3)
    facts = label_facts(labels)
    back = unpack_labels(pack_labels(labels), facts, game=game, data=None)
    assert back.exact is not None
    assert back.exact.tolist() == exact_rows(back).tolist() == [True, False, False, False, False]
    old = {name: tensor for name, tensor in pack_labels(labels).items() if name != "exact"}
    assert exact_rows(unpack_labels(old, facts, game=game, data=None)).tolist() == [True] + 4 * [False]  # by its views
    unseen = {name: tensor for name, tensor in old.items() if not name.startswith("views.")}
    assert not exact_rows(unpack_labels(unseen, facts, game=game, data=None)).any()
    whole = {**facts, "method": "exact"}
    assert exact_rows(unpack_labels(unseen, whole, game=game, data=None)).all()


def test_the_flag_survives_a_store(tmp_path: Path) -> None:
    game, X, _ = replicas(GAMES["tanh"](6, np.random.default_rng(0)), 6)
    X[:2, 3:] = 0
    rows, options = game.rows(X), {"views": 0, "seed": 0, "show": False, "title": ""}
    for _ in range(2):  # the second one reads what the first kept
        store = LabelStore.open(tmp_path, game, 0)
        labels = store.labels(game, rows, np.arange(6), Ask("auto", 20), **options)  # type: ignore[arg-type]
        assert labels.exact is not None
        assert labels.exact.tolist() == [True, True, False, False, False, False]


def test_the_flag_is_one_for_each_row() -> None:
    plain = Explanation(np.zeros((3, 2)), np.zeros(3), ("a", "b"), exact=np.array([True, False, True]))
    assert plain[[2, 1]].exact.tolist() == [True, False]  # type: ignore[union-attr]
    with pytest.raises(InputError, match="exact must be True or False"):
        replace(plain, exact=np.ones(3))
    with pytest.raises(InputError, match=r"exact must have shape \(3,\)"):
        replace(plain, exact=np.ones(2, dtype=bool))
