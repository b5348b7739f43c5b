"""The metrics against their definitions, restated in plain loops on arrays with many ties."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cortx import metrics
from cortx.errors import InputError
from cortx.explanation import Explanation
from cortx.games.synthetic import interaction_game, table_game

ALL_PAIRWISE = [
    metrics.l2_distance,
    metrics.squared_l2,
    metrics.relative_l2,
    metrics.rank_accuracy,
    metrics.kendall_tau,
    lambda a, b: metrics.top_k_agreement(a, b, 1),
    metrics.faithfulness,
    metrics.summary,
]


def explain(values: Any, names: tuple[str, ...] | None = None, **more: Any) -> Explanation:
    values = np.asarray(values, dtype=float)
    names = names or tuple(f"x{j}" for j in range(values.shape[1]))
    return Explanation(values, np.zeros(values.shape[:1] + values.shape[2:]), names, **more)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one shape, of few different values, so that ties are common."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 6)))
    numbers = st.one_of(st.integers(-2, 2).map(float), st.floats(-100, 100, allow_subnormal=False))
    return draw(hnp.arrays(np.float64, shape, elements=numbers)), draw(hnp.arrays(np.float64, shape, elements=numbers))


def ascending(row: list[float]) -> list[int]:
    return [j for _, j in sorted((value, j) for j, value in enumerate(row))]


def slow_distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def slow_rank_accuracy(r_hat: list[int], r: list[int]) -> float:
    hits = total = 0.0
    for j in range(1, len(r) + 1):
        total += 1 / j
        if r_hat[j - 1] == r[j - 1]:
            hits += 1 / j
    return hits / total


def slow_tau(a: list[float], b: list[float]) -> float:
    concordant = discordant = only_a = only_b = 0
    for i in range(len(a)):
        for j in range(i):
            product = (a[i] > a[j]) - (a[i] < a[j]), (b[i] > b[j]) - (b[i] < b[j])
            if product[0] and product[1]:
                concordant += product[0] == product[1]
                discordant += product[0] != product[1]
            else:
                only_a += product[0] != 0
                only_b += product[1] != 0
    untied = (concordant + discordant + only_a) * (concordant + discordant + only_b)
    return (concordant - discordant) / math.sqrt(untied) if untied else math.nan


def slow_top(row: list[float], k: int, by: str) -> set[int]:
    if by == "magnitude":  # the first column wins a tie
        return {j for _, j in sorted((-abs(value), j) for j, value in enumerate(row))[:k]}
    return set(ascending(row)[-k:])


def slow_pearson(a: list[float], b: list[float]) -> float:
    if len(set(a)) == 1 or len(set(b)) == 1:
        return 0.0
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    together = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    alone = [math.sqrt(math.fsum((x - m) ** 2 for x in row)) for row, m in ((a, mean_a), (b, mean_b))]
    return together / (alone[0] * alone[1])


# Against the oracles ---------------------------------------------------------------------------------------


@given(pairs())
def test_distances(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    slow = np.array([slow_distance(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)])
    norms = np.array([slow_distance(y, [0.0] * len(y)) for y in b.tolist()])
    np.testing.assert_allclose(metrics.l2_distance(a, b), slow, rtol=1e-12)
    np.testing.assert_allclose(metrics.squared_l2(a, b), slow**2, rtol=1e-12)
    expected = [d / n if n else math.nan for d, n in zip(slow, norms, strict=True)]
    np.testing.assert_allclose(metrics.relative_l2(a, b), expected, rtol=1e-12)


@given(pairs())
def test_rank_accuracy(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    orders = [(ascending(x), ascending(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    lowest = [slow_rank_accuracy(x, y) for x, y in orders]
    highest = [slow_rank_accuracy(x[::-1], y[::-1]) for x, y in orders]
    np.testing.assert_allclose(metrics.rank_accuracy(a, b), highest, rtol=1e-12)
    np.testing.assert_allclose(metrics.rank_accuracy(a, b, first="lowest"), lowest, rtol=1e-12)
    np.testing.assert_allclose(metrics.rank_accuracy(explain(a), explain(b)), highest, rtol=1e-12)


@given(pairs())
def test_kendall_tau(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    slow = [slow_tau(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_allclose(metrics.kendall_tau(a, b), slow, atol=1e-12)


def test_kendall_tau_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 6, (2, 40, 12)).astype(float)
    expected = [stats.kendalltau(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(metrics.kendall_tau(a, b), expected, atol=1e-12)


@given(pairs(), st.data())
def test_top_k_agreement(pair: tuple[np.ndarray, np.ndarray], data: st.DataObject) -> None:
    a, b = pair
    k = data.draw(st.integers(1, a.shape[1]))
    by = data.draw(st.sampled_from(["magnitude", "value"]))
    slow = [len(slow_top(x, k, by) & slow_top(y, k, by)) / k for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_allclose(metrics.top_k_agreement(a, b, k, by), slow, rtol=1e-12)


@given(
    hnp.arrays(np.float64, (3, 5), elements=st.integers(-4, 4).map(float)),
    hnp.arrays(np.float64, (3, 5), elements=st.integers(0, 4).map(float)),
    st.sampled_from([1e-200, 0.1, 1.0, 1e200]),
)
def test_faithfulness(values: np.ndarray, drops: np.ndarray, scale: float) -> None:
    slow = [slow_pearson(x, y) for x, y in zip(np.abs(values).tolist(), drops.tolist(), strict=True)]
    np.testing.assert_allclose(metrics.faithfulness(values * scale, drops), slow, atol=1e-9)


@given(pairs())
def test_summary_is_the_mean_of_the_parts(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    k = 3 if a.shape[1] >= 3 else a.shape[1]
    parts = {
        "l2": metrics.l2_distance(a, b),
        "squared_l2": metrics.squared_l2(a, b),
        "relative_l2": metrics.relative_l2(a, b),
        "rank_accuracy": metrics.rank_accuracy(a, b),
        "kendall_tau": metrics.kendall_tau(a, b),
        "top_3_agreement": metrics.top_k_agreement(a, b, k),
    }
    result = metrics.summary(a, b)
    assert list(result) == list(parts)
    for name, scores in parts.items():
        defined = [float(score) for score in scores if not math.isnan(score)]
        expected = sum(defined) / len(defined) if defined else math.nan
        assert result[name] == pytest.approx(expected, nan_ok=True), name
        assert type(result[name]) is float


# Properties ------------------------------------------------------------------------------------------------


@given(pairs())
def test_agreement_with_itself_is_perfect(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, _ = pair
    assert (metrics.l2_distance(a, a) == 0).all()
    np.testing.assert_allclose(metrics.rank_accuracy(a, a), 1)
    tau = metrics.kendall_tau(a, a)
    np.testing.assert_allclose(tau[~np.isnan(tau)], 1)
    assert (metrics.top_k_agreement(a, a, 1) == 1).all()


@settings(max_examples=25)
@given(pairs())
def test_every_output_is_measured_alone(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    stacked = np.stack([a, b], axis=2), np.stack([b, b], axis=2)
    for metric in ALL_PAIRWISE[:-1]:
        scores = metric(*stacked)
        assert scores.shape == (a.shape[0], 2)
        np.testing.assert_allclose(scores[:, 0], metric(a, b), atol=1e-12)
        np.testing.assert_allclose(scores[:, 1], metric(b, b), atol=1e-12)


def test_known_rank_accuracy() -> None:
    # Ascending orders (1, 0, 2) and (0, 1, 2) agree on the highest alone; the exact tie goes by column.
    total = 1 + 1 / 2 + 1 / 3
    assert metrics.rank_accuracy([[2.0, 1.0, 3.0]], [[1.0, 1.0, 3.0]]) == pytest.approx(1 / total)
    lowest = metrics.rank_accuracy([[2.0, 1.0, 3.0]], [[1.0, 1.0, 3.0]], first="lowest")
    assert lowest == pytest.approx((1 / 3) / total)
    with pytest.raises(InputError, match="'highest' or 'lowest', got 'middle'"):
        metrics.rank_accuracy([[1.0]], [[1.0]], first="middle")  # type: ignore[arg-type]
    assert metrics.rank_accuracy([[5.0]], [[-5.0]]) == 1


def test_what_a_ranking_head_said_counts() -> None:
    truth = explain([[0.1, 0.2, 0.3]])
    head = explain([[0.3, 0.2, 0.1]], predicted_ranking=np.array([[2, 1, 0]]))
    assert metrics.rank_accuracy(head, truth) == pytest.approx(1)
    assert metrics.kendall_tau(head, truth) == pytest.approx(1)
    assert metrics.top_k_agreement(head, truth, 1, by="value") == 1
    assert metrics.top_k_agreement(head, truth, 1, by="magnitude") == 0
    assert metrics.rank_accuracy(head.values, truth) < 1
    silent = explain([[np.nan] * 3], predicted_ranking=np.array([[2, 1, 0]]))
    assert metrics.rank_accuracy(silent, truth) == pytest.approx(1)
    with pytest.raises(InputError, match="NaN"):
        metrics.top_k_agreement(silent, truth, 1, by="magnitude")


def test_undefined_scores() -> None:
    zeros, some = np.zeros((1, 3)), np.array([[1.0, 2.0, 3.0]])
    assert np.isnan(metrics.relative_l2(some, zeros)).all()
    assert metrics.relative_l2(zeros, some) == 1
    assert np.isnan(metrics.kendall_tau(some, zeros)).all()
    assert np.isnan(metrics.kendall_tau([[1.0]], [[2.0]])).all()
    assert metrics.faithfulness(some, zeros) == 0
    # 0.1 three times has a mean that is not 0.1: rounding must not become a correlation.
    assert metrics.faithfulness(np.full((1, 3), 0.1), some) == 0
    assert math.isnan(metrics.summary(some, zeros)["relative_l2"])


def test_no_rows() -> None:
    nothing = np.zeros((0, 3))
    for metric in ALL_PAIRWISE[:-1]:
        assert metric(nothing, nothing).shape == (0,)
    with pytest.raises(InputError, match="no rows"):
        metrics.summary(nothing, nothing)


def test_single_precision_and_tensors_are_welcome() -> None:
    torch = pytest.importorskip("torch")
    a, b = np.float32([[1.0, 2.0]]), np.float32([[1.0, 4.0]])
    assert metrics.l2_distance(a, b).dtype == np.float64
    assert metrics.l2_distance(torch.from_numpy(a), torch.from_numpy(b)) == 2


# Single drops ----------------------------------------------------------------------------------------------


def test_single_drops_by_hand() -> None:
    game = interaction_game(3, {(0,): 1.0, (1,): -2.0, (0, 2): 4.0})
    rows = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    drops = metrics.single_drops(game, rows)
    np.testing.assert_allclose(drops, [[5.0, 2.0, 4.0], [1.0, 0.0, 0.0]])
    assert (drops[1, 1:] == 0).all()


def test_single_drops_are_counted_and_the_reference_is_free() -> None:
    game = interaction_game(3, {(0,): 1.0})
    _ = game.base_values
    before = game.evaluations
    metrics.single_drops(game, np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]))
    assert game.evaluations - before == (1 + 3) + (1 + 1)


def test_single_drops_of_several_outputs() -> None:
    table = np.random.default_rng(0).normal(size=(8, 2))
    drops = metrics.single_drops(table_game(table), np.ones((1, 3)))
    for j in range(3):
        for k in range(2):
            assert drops[0, j, k] == pytest.approx(abs(table[7, k] - table[7 - 2**j, k]))
    assert metrics.faithfulness(drops, drops) == pytest.approx(np.ones((1, 2)))


def test_drops_of_a_named_explanation() -> None:
    drops = np.array([[3.0, 1.0, 2.0]])
    assert metrics.faithfulness(explain(-2 * drops, ("a", "b", "c")), drops) == pytest.approx(1)
    with pytest.raises(InputError, match=r"explanation has shape \(1, 3\) but drops has \(1, 2\).*same players"):
        metrics.faithfulness(explain(drops), drops[:, :2])


# Throughput ------------------------------------------------------------------------------------------------


def test_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    now = [0.0]
    module = sys.modules["cortx.metrics.throughput"]  # the function of that name hides it
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])

    def slow_explain(X: Any) -> None:
        calls.append(len(X))
        # The warm-up and the first repeat are slower; the best of three does not see them.
        now[0] += 0.25 if len(calls) < 3 else 0.125

    speed = metrics.throughput(slow_explain, np.zeros((20, 2)))
    assert calls == [20] * 4
    assert speed == 20 / 0.125
    assert math.isfinite(metrics.throughput(len, [1], repeats=1))


def test_throughput_refuses() -> None:
    with pytest.raises(InputError, match="at least 1, got 0"):
        metrics.throughput(len, [1], repeats=0)
    with pytest.raises(InputError, match="no rows"):
        metrics.throughput(len, [])


# Refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ALL_PAIRWISE)
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.zeros((2, 3)), np.zeros((1, 3)), "the same rows"),
        (np.zeros((2, 3)), np.zeros((2, 4)), "the same players"),
        (np.zeros((2, 3, 2)), np.zeros((2, 3, 1)), "the same outputs"),
        (np.zeros((2, 3)), np.zeros((2, 3, 1)), "the same outputs"),
        (np.zeros(3), np.zeros(3), r"got \(3,\); one row is values\[None, :\]"),
        (np.zeros((2, 0)), np.zeros((2, 0)), "no players"),
        ([["a"]], [["b"]], "array of numbers"),
        ([[1.0, np.nan]], [[1.0, 2.0]], "NaN or infinite in 1 of 1 rows"),
        ([[1.0, 2.0], [1.0, 3.0]], [[1.0, 2.0], [1.0, np.inf]], "first in row 1"),
    ],
)
def test_refuses(metric: Any, first: Any, second: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metric(first, second)


@pytest.mark.parametrize("metric", ALL_PAIRWISE)
def test_refuses_other_names(metric: Any) -> None:
    values = [[1.0, 2.0]]
    with pytest.raises(InputError, match="in another order: number 0 is 'a' and 'b'"):
        metric(explain(values, ("a", "b")), explain(values, ("b", "a")))
    with pytest.raises(InputError, match=r"not the same.*\.values"):
        metric(explain(values, ("a", "b")), explain(values, ("a", "c")))
    outputs = np.ones((1, 2, 2))
    with pytest.raises(InputError, match="outputs of"):
        metric(explain(outputs, output_names=("no", "yes")), explain(outputs, output_names=("yes", "no")))
    metric(explain(values, ("a", "b")), values)


@pytest.mark.parametrize("k", [0, 3, -1, 1.0, True])
def test_refuses_k(k: Any) -> None:
    with pytest.raises(InputError, match="from 1 to 2"):
        metrics.top_k_agreement([[1.0, 2.0]], [[1.0, 2.0]], k)


def test_refuses_by() -> None:
    with pytest.raises(InputError, match="by must be"):
        metrics.top_k_agreement([[1.0, 2.0]], [[1.0, 2.0]], 1, by="size")  # type: ignore[arg-type]


def test_import_needs_only_numpy() -> None:
    code = "import sys, cortx.metrics; sys.exit(bool({'torch', 'matplotlib', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names() -> None:
    assert metrics.__all__ == sorted(metrics.__all__)
    assert all(callable(getattr(metrics, name)) for name in metrics.__all__)
