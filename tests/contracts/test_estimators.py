"""What every estimator promises, checked on games that hypothesis draws and against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import cortx
from cortx import Game
from cortx.errors import BudgetError, InputError
from cortx.estimators import ESTIMATORS, Estimator
from cortx.estimators.amortized import Amortized
from cortx.estimators.kernel_shap import KernelShap
from cortx.games.synthetic import interaction_game, interaction_shapley, table_game

MAKERS: dict[str, Callable[[], Estimator]] = {name: ESTIMATORS[name] for name in ESTIMATORS}
MAKERS["kernel-weights"] = lambda: KernelShap("kernel")
MAKERS["amortized-unbiased"] = lambda: Amortized(unbiased=True)
SAMPLERS = [name for name in MAKERS if name != "exact"]
# A prior or a choice of interactions depends on the values themselves: test_amortized.py, test_odd.py.
LINEAR = [name for name in MAKERS if not name.startswith(("amortized", "odd"))]
every_estimator = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS.keys())
every_sampler = pytest.mark.parametrize("maker", [MAKERS[name] for name in SAMPLERS], ids=SAMPLERS)
linear_estimators = pytest.mark.parametrize("maker", [MAKERS[name] for name in LINEAR], ids=LINEAR)
few = settings(max_examples=25, deadline=None, derandomize=True)


class Flat:
    """An explainer that knows nothing: even shares, and the same scale for everybody."""

    def prior(self, rows: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shape = (*rows.shape, outputs.shape[1])
        return np.zeros(shape), np.ones(shape)


def shapley(game: Any, X: Any, method: Any = "auto", **options: Any) -> Any:
    """`cortx.shapley`, with an explainer for the estimator that needs one."""
    if isinstance(method, Amortized):
        options.setdefault("explainer", Flat())
    return cortx.shapley(game, X, method, **options)


# Slow oracles ---------------------------------------------------------------------------------------------


def code(members: Any) -> int:
    return sum(2**i for i in members)


def shapley_by_permutations(values: np.ndarray) -> np.ndarray:
    n = len(values).bit_length() - 1
    result = np.zeros((n, *values.shape[1:]))
    orders = list(permutations(range(n)))
    for order in orders:
        for place, player in enumerate(order):
            result[player] += values[code(order[: place + 1])] - values[code(order[:place])]
    return result / len(orders)


def banzhaf_by_subsets(values: np.ndarray) -> np.ndarray:
    n = len(values).bit_length() - 1
    result = np.zeros((n, *values.shape[1:]))
    for player in range(n):
        others = [i for i in range(n) if i != player]
        for size in range(n):
            for members in combinations(others, size):
                result[player] += values[code((*members, player))] - values[code(members)]
    return result / 2 ** (n - 1)


def oracle(estimator: Estimator, values: np.ndarray) -> np.ndarray:
    return banzhaf_by_subsets(values) if estimator.name == "banzhaf" else shapley_by_permutations(values)


# Games ----------------------------------------------------------------------------------------------------

numbers = st.floats(-10, 10, allow_nan=False, width=32)


@st.composite
def games(draw: Any, least: int = 2, most: int = 6) -> np.ndarray:
    n = draw(st.integers(least, most))
    return draw(arrays(np.float64, 2**n, elements=numbers))


def explain(values: np.ndarray, estimator: Estimator, budget: int | None = None, **options: Any) -> Any:
    n = len(values).bit_length() - 1
    return shapley(table_game(values), np.ones((1, n)), estimator, row_budget=budget, **options)


def replicas(values: np.ndarray, count: int) -> tuple[Game, np.ndarray]:
    """The same game in many rows of different content, so that their draws are independent."""
    n = len(values).bit_length() - 1

    def model(rows: np.ndarray) -> np.ndarray:
        return values[((rows != 0).astype(int) << np.arange(n)).sum(axis=1)]

    return Game(model, reference=np.zeros(n)), np.ones((count, n)) * np.arange(1, count + 1)[:, None]


def smooth_game(n: int, seed: int = 0) -> np.ndarray:
    """A game like those of models: main effects, interactions, saturation."""
    rng = np.random.default_rng(seed)
    coalitions = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    hidden = np.tanh(coalitions @ rng.normal(size=(n, 8)) / np.sqrt(n) * 2 + rng.normal(size=8))
    return hidden @ rng.normal(size=8)


def some_budget(estimator: Estimator, n: int, share: float) -> int:
    least, most = estimator.least(n) + 1, 2**n - 1
    return least + int(share * (most - least))


class Counting:
    """A game's model that counts the rows it is asked for, call by call."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.calls = values, list[int]()

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        self.calls.append(len(rows))
        n = len(self.values).bit_length() - 1
        return self.values[((rows != 0).astype(int) << np.arange(n)).sum(axis=1)]


# Axioms ---------------------------------------------------------------------------------------------------


@every_estimator
@given(values=games())
@few
def test_full_budget_is_exact(maker: Callable[[], Estimator], values: np.ndarray) -> None:
    estimator = maker()
    explanation = explain(values, estimator, budget=len(values))
    np.testing.assert_allclose(explanation.values[0], oracle(estimator, values), atol=1e-9)
    assert not explanation.error_std.any()


@every_estimator
@given(values=games(), share=st.floats(0, 1))
@few
def test_efficiency(maker: Callable[[], Estimator], values: np.ndarray, share: float) -> None:
    estimator = maker()
    explanation = explain(values, estimator, budget=some_budget(estimator, len(values).bit_length() - 1, share))
    if estimator.efficient:
        assert explanation.values.sum() == pytest.approx(values[-1] - values[0], abs=1e-9)
    assert explanation.base_values[0] == values[0]
    assert explanation.outputs[0] == values[-1]


@linear_estimators
@given(
    pair=st.integers(2, 6).flatmap(
        lambda n: st.tuples(*[arrays(np.float64, 2**n, elements=numbers) for _ in range(2)])
    ),
    factors=st.tuples(numbers, numbers),
    share=st.floats(0, 1),
)
@few
def test_linearity(maker: Callable[[], Estimator], pair: Any, factors: Any, share: float) -> None:
    """With one seed the draws are the same, so the estimates are linear too, not only what they estimate."""
    estimator = maker()
    budget = some_budget(estimator, len(pair[0]).bit_length() - 1, share)
    single = [explain(values, estimator, budget=budget).values for values in pair]
    both = explain(factors[0] * pair[0] + factors[1] * pair[1], estimator, budget=budget).values
    np.testing.assert_allclose(both, factors[0] * single[0] + factors[1] * single[1], atol=1e-7)


@every_estimator
@given(values=games(most=5))
@few
def test_symmetry_of_full_budget(maker: Callable[[], Estimator], values: np.ndarray) -> None:
    """Players 0 and 1 are made equals: coalitions with either one of them are worth the same."""
    codes = np.arange(len(values))
    only_second = (codes & 3) == 2
    values = values.copy()
    values[only_second] = values[codes[only_second] ^ 3]
    result = explain(values, maker(), budget=len(values)).values[0]
    assert result[0] == pytest.approx(result[1], abs=1e-9)


@every_sampler
def test_symmetry_on_average(maker: Callable[[], Estimator]) -> None:
    estimator, values = maker(), smooth_game(6, seed=1)
    codes = np.arange(64)
    only_second = (codes & 3) == 2
    values[only_second] = values[codes[only_second] ^ 3]
    game, X = replicas(values, 400)
    difference = np.diff(shapley(game, X, estimator, row_budget=32).values[:, :2], axis=1)[:, 0]
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(len(X))


@every_estimator
@given(values=games(least=2, most=5), position=st.integers(0, 5), share=st.floats(0, 1))
@few
def test_null_player(maker: Callable[[], Estimator], values: np.ndarray, position: int, share: float) -> None:
    """A player that the model ignores, although it differs from the reference; sampled regressions: below."""
    estimator, n = maker(), len(values).bit_length()
    position = min(position, n - 1)
    codes = np.arange(2**n)
    low, high = codes & (2**position - 1), codes >> (position + 1)
    wide = values[low | (high << position)]
    budget = some_budget(estimator, n, share)
    value = explain(wide, estimator, budget=budget).values[0, position]
    if estimator.name in ("exact", "permutation") or budget >= 2**n - 1:
        assert value == pytest.approx(0, abs=1e-9)


@every_sampler
def test_null_player_within_standard_errors(maker: Callable[[], Estimator]) -> None:
    game, X = replicas(np.concatenate([smooth_game(7), smooth_game(7)]), 300)  # the last player does nothing
    explanation = shapley(game, X, maker(), row_budget=120)
    covered = np.abs(explanation.values[:, 7]) <= 2 * explanation.error_std[:, 7] + 1e-12
    assert covered.mean() > 0.9


@every_estimator
def test_players_equal_to_their_reference_get_zero_for_nothing(maker: Callable[[], Estimator]) -> None:
    values = smooth_game(5)
    X = np.array([[1, 1, 1, 0, 1], [0, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=float)
    game = table_game(values)
    explanation = shapley(game, X, maker(), row_budget=32)
    assert (explanation.values[X == 0] == 0).all()
    assert (explanation.error_std[X == 0] == 0).all()
    # v(none) once; v(all) of four rows; the other coalitions of 4 and of 2 players.
    assert explanation.evaluations == 1 + 4 + 14 + 2


# Estimates ------------------------------------------------------------------------------------------------


@every_sampler
def test_converges(maker: Callable[[], Estimator]) -> None:
    estimator, values = maker(), smooth_game(9, seed=2)
    game, X = replicas(values, 60)
    exact = shapley(game, X[:1], estimator, row_budget=512).values
    errors = [
        np.sqrt(((shapley(game, X, estimator, row_budget=b).values - exact) ** 2).mean()) for b in (40, 120, 360, 512)
    ]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-9


@every_sampler
@pytest.mark.parametrize(("n", "budget"), [(6, 50), (8, 140), (10, 260)])
def test_standard_errors_are_honest(maker: Callable[[], Estimator], n: int, budget: int) -> None:
    estimator, values = maker(), smooth_game(n, seed=n)
    game, X = replicas(values, 500)
    exact = shapley(game, X[:1], estimator, row_budget=2**n).values
    explanation = shapley(game, X, estimator, row_budget=budget)
    miss, error = explanation.values - exact, explanation.error_std
    few = estimator.name == "permutation" and budget // (2 * (n - 1)) < 8
    if few or (maker is MAKERS["amortized-unbiased"] and budget // 2 < 32):  # too few to say anything of their spread
        assert np.isnan(error).all()
        return
    assert (np.abs(miss) <= 2 * error + 1e-12).mean() >= 0.90
    # Errors from few draws are made larger, so that their tails hold (test_tails.py): never smaller.
    assert 0.05 < (miss**2).mean() / (error**2).mean() < 1.3


@pytest.mark.parametrize("name", ["unbiased", "permutation", "banzhaf"])
def test_standard_errors_from_many_draws_are_plain(name: str) -> None:
    values = smooth_game(12, seed=1)
    game, X = replicas(values, 100)
    exact = shapley(game, X[:1], name, row_budget=2**12).values
    explanation = shapley(game, X, name, row_budget=4_000)
    assert 0.6 < ((explanation.values - exact) ** 2).mean() / (explanation.error_std**2).mean() < 1.3


def test_standard_errors_say_when_they_do_not_know() -> None:
    game, X = replicas(smooth_game(8), 5)
    assert np.isnan(shapley(game, X, "permutation", row_budget=16).error_std).all()  # one pair of orders has no spread
    assert np.isnan(shapley(game, X, "unbiased", row_budget=3).error_std).all()  # nor has one of coalitions
    few_pairs = shapley(game, X, "kernel", row_budget=17).error_std  # 8 pairs for 7 unknowns
    assert (np.isnan(few_pairs) | (few_pairs > 0)).all()
    assert np.isnan(few_pairs).any()


@pytest.mark.parametrize("name", ["unbiased", "permutation", "banzhaf"])
def test_unbiased(name: str) -> None:
    values = smooth_game(6, seed=3) + np.random.default_rng(3).normal(size=64)
    game, X = replicas(values, 4000)
    found = shapley(game, X, name, row_budget=17).values
    standard = (found.mean(axis=0) - oracle(ESTIMATORS[name](), values)) / (found.std(axis=0) / np.sqrt(len(X)))
    assert np.abs(standard).max() < 4


@pytest.mark.parametrize("weights", ["leverage", "kernel"])
@pytest.mark.parametrize("n", [3, 4, 5, 6, 7])
def test_a_regression_on_all_coalitions_is_exact(weights: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cortx.estimators.kernel_shap.enumerable", lambda n_players, budget: False)
    values = np.random.default_rng(n).normal(size=2**n)
    explanation = explain(values, KernelShap(weights), budget=2**n - 1)
    np.testing.assert_allclose(explanation.values[0], shapley_by_permutations(values), atol=1e-9)
    np.testing.assert_allclose(explanation.error_std, 0, atol=1e-9)  # nothing was left to chance


@pytest.mark.parametrize("weights", ["leverage", "kernel"])
@pytest.mark.parametrize("n", [6, 7])
def test_every_size_has_its_weight_in_a_regression(weights: Any, n: int) -> None:
    """Games that live on one size only: a regression is not unbiased, but its bias is smaller than its error."""
    coalitions = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    for size in range(1, n // 2 + 1):
        noise = np.random.default_rng(size).normal(size=2**n)
        values = np.where(coalitions.sum(axis=1) == size, noise, 0.0)
        game, X = replicas(values, 1500)
        found = shapley(game, X, KernelShap(weights), row_budget=2**n * 3 // 4, views=0).values
        spread = found.std(axis=0).mean()
        bias = np.abs(found.mean(axis=0) - shapley_by_permutations(values)).max()
        assert bias < 0.5 * spread + 1e-9


@pytest.mark.parametrize("name", ["unbiased", "permutation", "banzhaf"])
def test_rounds_waste_nothing(name: str) -> None:
    """Rounds towards a standard error that is out of reach are as good as one run with the same budget."""
    values = smooth_game(12, seed=6)
    game, X = replicas(values, 250)
    exact = shapley(game, X[:1], name, row_budget=4096).values
    once = shapley(game, X, name, row_budget=705).values - exact
    rounds = shapley(game, X, name, row_budget=705, standard_error=1e-9).values - exact
    assert 0.85 < np.sqrt((rounds**2).mean() / (once**2).mean()) < 1.2


def test_known_answers_of_many_players() -> None:
    terms = {(0,): 1.0, (1, 2): -2.0, (3, 4, 5): 3.0, (10, 30): 1.5}
    game = interaction_game(40, terms)
    for name in ("kernel", "unbiased", "permutation"):
        explanation = shapley(game, np.ones((1, 40)), name, row_budget=4000)
        miss = np.abs(explanation.values[0] - interaction_shapley(40, terms))
        assert (miss <= 5 * explanation.error_std[0] + 1e-9).all()
        assert miss.max() < 0.3


@every_sampler
@pytest.mark.parametrize("n", [70, 1100])
def test_hundreds_of_players(maker: Callable[[], Estimator], n: int) -> None:
    """Beyond 64 players coalitions have no word of their own, beyond 1,000 their number no float."""
    weights = np.linspace(-1, 1, n)
    game = Game(lambda rows: rows @ weights, reference=np.zeros(n))
    estimator = maker()
    explanation = shapley(game, np.ones((1, n)), estimator, row_budget=2 * n + 20)
    assert np.isfinite(explanation.values).all()
    if maker in (MAKERS["unbiased"], MAKERS["amortized-unbiased"]):
        # Unbiased means no inverse, so even an additive game is left to the draws.
        assert (np.abs(explanation.values[0] - weights) <= 2 * explanation.error_std[0]).mean() > 0.9
    elif estimator.efficient:
        # An additive game leaves a regression or an order no choice.
        np.testing.assert_allclose(explanation.values[0], weights, atol=1e-8)


# Budget and cost ------------------------------------------------------------------------------------------


@every_estimator
@given(values=games(), share=st.floats(0, 1), rows=st.integers(1, 3))
@few
def test_budget_is_never_exceeded(maker: Callable[[], Estimator], values: np.ndarray, share: float, rows: int) -> None:
    estimator, model, n = maker(), Counting(values), len(values).bit_length() - 1
    budget = some_budget(estimator, n, share)
    game = Game(model, reference=np.zeros(n))
    X = np.ones((rows, n)) * np.arange(1, rows + 1)[:, None]
    explanation = shapley(game, X, estimator, row_budget=budget)
    assert explanation.evaluations == sum(model.calls) == game.evaluations
    assert explanation.evaluations <= rows * budget + 1  # v(none) is paid once for the game
    again = shapley(game, X, estimator, row_budget=budget)
    assert again.evaluations == explanation.evaluations - 1


@every_sampler
@pytest.mark.parametrize(("goal", "budget"), [(0.2, None), (0.03, None), (0.01, 300), (1e-6, 300), (1e-6, 2000)])
def test_standard_error_is_reached_or_the_budget_spent(
    maker: Callable[[], Estimator], goal: float, budget: int | None
) -> None:
    estimator, values, n = maker(), smooth_game(10, seed=4), 10
    model = Counting(values)
    game = Game(model, reference=np.zeros(n))
    X = np.ones((20, n)) * np.arange(1, 21)[:, None]
    explanation = shapley(game, X, estimator, standard_error=goal, row_budget=budget)
    assert explanation.evaluations == sum(model.calls)
    assert explanation.evaluations <= len(X) * (budget or 65_536) + 1
    reached = explanation.error_std.max(axis=1) <= goal
    assert reached.all() or (budget == 300 and explanation.evaluations > 20 * 150)
    exact = shapley(game, X[:1], estimator, row_budget=1024).values
    assert (np.abs(explanation.values - exact) <= 5 * explanation.error_std + 1e-9).mean() > 0.97


def test_a_loose_standard_error_is_cheap() -> None:
    game, X = replicas(smooth_game(12, seed=5), 5)
    loose = shapley(game, X, "kernel", standard_error=0.5)
    assert loose.evaluations <= 5 * 200  # of 4,096 coalitions
    assert loose.error_std.max() <= 0.5


@every_estimator
def test_too_small_a_budget_is_refused(maker: Callable[[], Estimator]) -> None:
    estimator, (game, X) = maker(), replicas(smooth_game(8), 2)
    with pytest.raises(BudgetError, match=r"needs .* evaluations per row"):
        shapley(game, X, estimator, row_budget=estimator.least(8))
    assert game.evaluations == 0
    shapley(game, X, estimator, row_budget=estimator.least(8) + 1)


@every_estimator
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("spare", [0, 1, 300])
def test_budget_is_the_total_of_the_call(maker: Callable[[], Estimator], copies: int, spare: int) -> None:
    n, n_rows = 6, 7
    weights = np.linspace(-1, 1, n)
    game = Game(lambda rows: np.tanh(rows @ weights), background=np.zeros((copies, n)))
    X = np.random.default_rng(0).normal(size=(n_rows, n))
    estimator = maker()
    # v(none) of every background row once, and for each row as many values as it needs at least, v(all) among them.
    least = copies + n_rows * copies * (estimator.least(n) + 1)
    with pytest.raises(BudgetError, match=r"got budget=[\d,]+ for 7 rows, [\d,]+ each \(row_budget= is for each row\)"):
        shapley(game, X, estimator, budget=least - 1)
    assert game.evaluations == 0
    total = shapley(game, X, estimator, budget=least + spare)
    assert total.evaluations == game.evaluations <= least + spare
    each = shapley(game, X, estimator, row_budget=(least + spare - copies) // n_rows)
    np.testing.assert_array_equal(total.values, each.values)


def test_a_budget_is_said_once() -> None:
    game, X = replicas(smooth_game(3), 1)
    with pytest.raises(InputError, match=r"budget= is for the whole call and row_budget= for each row; give one"):
        shapley(game, X, budget=100, row_budget=100)
    with pytest.raises(InputError, match=r"budget must be a whole number, got True"):
        shapley(game, X, budget=True)


def test_exact_refuses_what_would_explode() -> None:
    game = Game(lambda rows: rows.sum(axis=1), reference=np.zeros(25))
    with pytest.raises(BudgetError, match=r"exact needs 2\*\*25 .* 2\*\*24; use 'kernel' or 'permutation'"):
        shapley(game, np.ones((1, 25)), "exact")
    with pytest.raises(BudgetError, match=r"exact needs 2\*\*12 .* got row_budget=100"):
        shapley(Game(lambda rows: rows.sum(axis=1), reference=np.zeros(12)), np.ones((1, 12)), "exact", row_budget=100)


def test_auto_is_exact_where_the_budget_covers_all_coalitions() -> None:
    weights = np.linspace(1, 2, 14)
    game = Game(lambda rows: np.tanh(rows @ weights / 9), reference=np.zeros(14))
    short, long = np.zeros(14), np.ones(14)
    short[:11] = 1
    alone = shapley(game, short[None])
    together = shapley(game, np.stack([short, long]))
    assert (alone.method, together.method) == ("exact", "odd")
    assert not alone.error_std.any()
    np.testing.assert_array_equal(alone.values[0], together.values[0])
    assert together.error_std[1].min() > 0


def test_unknown_method_and_settings() -> None:
    game, X = replicas(smooth_game(3), 1)
    with pytest.raises(InputError, match=r"unknown estimator 'kernelshap'; expected one of 'exact', 'kernel'"):
        shapley(game, X, "kernelshap")
    with pytest.raises(InputError, match=r"unknown estimator 'trees'; .*'tree', 'auto'"):
        shapley(game, X, "trees")
    with pytest.raises(InputError, match="standard_error must be positive, got -1"):
        shapley(game, X, standard_error=-1)
    with pytest.raises(InputError, match="weights must be 'leverage' or 'kernel', got 'both'"):
        KernelShap("both")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"row_budget must be a whole number, got 100.5"):
        shapley(game, X, row_budget=100.5)
    with pytest.raises(InputError, match=r"seed must be a whole number, got 'a'"):
        shapley(game, X, seed="a")
    with pytest.raises(InputError, match=r"first argument is a ndarray; expected a cortx.Game"):
        shapley(X, X)
    assert "kernel" in ESTIMATORS
    assert "shap" not in ESTIMATORS


# Reproducibility ------------------------------------------------------------------------------------------


@every_estimator
@pytest.mark.parametrize("goal", [None, 0.05])
def test_labels_depend_on_the_row_alone(maker: Callable[[], Estimator], goal: float | None) -> None:
    """Not on the order of rows, their neighbours, the chunks or the memory."""
    estimator, n = maker(), 9
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, n)) * (rng.random((40, n)) < 0.9)
    weights = rng.normal(size=(n, 6))

    def game(**options: Any) -> Game:
        return Game(lambda rows: np.tanh(rows @ weights).sum(axis=1), reference=np.zeros(n), **options)

    def label(rows: np.ndarray, **options: Any) -> Any:
        return shapley(game(**options), rows, estimator, row_budget=511 if estimator.name == "exact" else 100,
                       standard_error=goal, seed=7)  # fmt: skip

    whole = label(X)
    order = rng.permutation(len(X))
    np.testing.assert_allclose(label(X[order]).values, whole.values[order], atol=1e-12)
    alone = np.concatenate([label(X[i : i + 1]).values for i in range(6)])
    np.testing.assert_allclose(alone, whole.values[:6], atol=1e-12)
    small = label(X, memory_budget=2**20)
    np.testing.assert_allclose(small.values, whole.values, atol=1e-12)
    np.testing.assert_allclose(small.error_std, whole.error_std, atol=1e-9)
    assert small.evaluations == whole.evaluations


@every_sampler
def test_other_seeds_give_other_labels(maker: Callable[[], Estimator]) -> None:
    values = smooth_game(8)
    results = [explain(values, maker(), budget=60, seed=seed).values for seed in (0, 1, -5, 2**70)]
    assert all(np.abs(a - b).max() > 1e-9 for a, b in combinations(results, 2))
    np.testing.assert_array_equal(results[1], explain(values, maker(), budget=60, seed=1).values)


@every_estimator
@pytest.mark.parametrize("goal", [None, 1e-6])
def test_several_outputs_equal_the_outputs_one_by_one(maker: Callable[[], Estimator], goal: float | None) -> None:
    columns = [smooth_game(6, seed=k) for k in range(3)]
    options = {"row_budget": 63 if goal or maker().name == "exact" else 40, "standard_error": goal}
    X = np.ones((1, 6))
    joint = shapley(table_game(np.stack(columns, axis=1)), X, maker(), **options)
    assert joint.values.shape == (1, 6, 3)
    assert joint.base_values.shape == (1, 3)
    for k, values in enumerate(columns):
        single = shapley(table_game(values), X, maker(), **options)
        np.testing.assert_allclose(joint.values[..., k], single.values, atol=1e-12)
        np.testing.assert_allclose(joint.error_std[..., k], single.error_std, atol=1e-9)
        assert joint.base_values[0, k] == single.base_values[0]


def test_a_background_multiplies_the_cost_of_a_value() -> None:
    rng = np.random.default_rng(1)
    background, X = rng.normal(size=(5, 4)), rng.normal(size=(3, 4))
    game = Game(lambda rows: np.tanh(rows.sum(axis=1)) * rows[:, 0], background=background)
    explanation = shapley(game, X)
    assert explanation.method == "exact"
    assert explanation.evaluations == 5 + 3 + 3 * 14 * 5
    with pytest.raises(BudgetError, match="for each of 5 background rows"):
        shapley(game, X, "kernel", row_budget=30)
    limited = shapley(game, X, "kernel", row_budget=50)
    assert limited.evaluations <= 3 * 50


@pytest.mark.parametrize("name", ["permutation", "kernel", "unbiased"])
@pytest.mark.parametrize("row_budget", [1_100, 1_500, 2_040])
def test_a_standard_error_costs_no_row_its_enumeration(name: str, row_budget: int) -> None:
    """Where a budget pays for all coalitions, rounds that miss the goal end in them, and not in a worse answer."""
    table = np.random.default_rng(0).normal(size=(3, 10))
    game = Game(lambda x: np.tanh(x @ np.arange(10)), reference=np.zeros((1, 10)), categorical=())
    found = shapley(game, table, name, row_budget=row_budget, standard_error=1e-9)
    assert found.exact.all()
    assert found.evaluations <= 3 * row_budget + 1
    np.testing.assert_allclose(found.values, shapley(game, table, "exact").values, atol=1e-9)


@pytest.mark.parametrize("n", [14, 15, 16, 17])
def test_rounds_stop_early_whatever_the_number_of_players(n: int) -> None:
    """By default no row is enumerated where few values are precise enough."""
    weights = np.random.default_rng(0).normal(size=n)
    game = cortx.Game(lambda x: x @ weights + 0.1 * x[:, 0] * x[:, 1], reference=np.zeros(n), categorical=())
    labels = cortx.shapley(game, np.ones((3, n)), standard_error=0.05, views=0, progress=False)
    assert labels.evaluations < 3 * 1_000
