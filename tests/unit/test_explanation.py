"""The one result type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortx import Explanation
from cortx.errors import InputError

VALUES = np.array([[1.0, -3.0, 2.0], [0.0, 0.0, -1.0], [4.0, 5.0, 6.0]])
NAMES = ("a", "b", "c")
ATTRIBUTIONS = [f"attribution_{name}" for name in NAMES]
FRAME = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [0.1, 0.2, 0.3]}, index=[10, 20, 30])


def single(data: Any = None, **more: Any) -> Explanation:
    return Explanation(VALUES, np.array([0.5, 0.5, 0.5]), NAMES, data=data, evaluations=9, seconds=1.0, **more)


def banded(width: float = 0.25, **more: Any) -> Explanation:
    bounds = {"lower_bounds": VALUES - width, "upper_bounds": VALUES + width, "error_bound": np.arange(3.0)}
    return single(**bounds, confidence=0.9, refined=np.array([True, False, True]), **more)


def several(data: Any = None) -> Explanation:
    values = np.stack([VALUES, -VALUES], axis=2)
    return Explanation(values, np.tile([0.1, 0.9], (3, 1)), NAMES, data=data, output_names=("no", "yes"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": np.ones(3)}, r"\(rows, players\) or \(rows, players, outputs\), got \(3,\)"),
        ({"base_values": np.ones(2)}, r"base_values must have shape \(3,\), got \(2,\)"),
        ({"feature_names": ("a",)}, "3 players but there are 1 feature_names"),
        ({"error_std": np.ones((3, 2))}, r"error_std must have shape \(3, 3\)"),
        ({"outputs": np.ones((3, 2))}, r"outputs must have shape \(3,\)"),
        ({"lower_bounds": np.ones((3, 2))}, r"lower_bounds must have shape \(3, 3\), got \(3, 2\)"),
        ({"upper_bounds": np.ones(3)}, r"upper_bounds must have shape \(3, 3\)"),
        ({"lower_bounds": VALUES}, "lower_bounds came without upper_bounds; give both"),
        ({"upper_bounds": VALUES}, "upper_bounds came without lower_bounds"),
        ({"lower_bounds": VALUES + np.eye(3)[1], "upper_bounds": VALUES}, "they do in row 0 for 'b'"),
        ({"error_bound": np.ones((3, 3))}, r"error_bound must have shape \(3,\)"),
        ({"refined": np.ones(2, dtype=bool)}, r"refined must have shape \(3,\)"),
        ({"refined": np.ones(3)}, "True or False for each row, got dtype float64"),
        ({"confidence": 90}, "above 0 and at most 1, got 90"),
    ],
)
def test_shapes_are_checked(changes: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"values": VALUES, "base_values": np.ones(3), "feature_names": NAMES}
    with pytest.raises(InputError, match=message):
        Explanation(**(settings | changes))


def test_ranking_is_descending_with_ties_in_descending_column_order() -> None:
    assert single().ranking.tolist() == [[2, 0, 1], [1, 0, 2], [2, 1, 0]]
    assert several().ranking[0, :, 1].tolist() == [1, 0, 2]
    given = np.array([[0, 1, 2]] * 3)
    assert single(predicted_ranking=given).ranking is given
    assert single().order_by_magnitude.tolist() == [[1, 2, 0], [2, 0, 1], [2, 1, 0]]
    np.testing.assert_array_equal(several().order_by_magnitude, several().top(3))


def test_top() -> None:
    assert single().top(2).tolist() == [[1, 2], [2, 0], [2, 1]]
    assert single().top(1, by="value").tolist() == [[2], [1], [2]]
    with pytest.raises(InputError, match="by must be 'value' or 'magnitude', got 'size'"):
        single().top(1, by="size")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="k must be at least 1, got 0"):
        single().top(0)


@pytest.mark.parametrize("data", [FRAME, pl.from_pandas(FRAME), pa.Table.from_pandas(FRAME), VALUES, None])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (1, [1]),
        (-1, [2]),
        (slice(1, None), [1, 2]),
        (slice(None, None, -1), [2, 1, 0]),
        ([2, 0], [2, 0]),
        (np.array([-1, 0]), [2, 0]),
        (np.array([True, False, True]), [0, 2]),
        ([True, False, True], [0, 2]),
        ([], []),
    ],
)
def test_rows_are_taken_from_everything(data: Any, rows: Any, expected: list[int]) -> None:
    whole = single(data, error_std=VALUES / 10, outputs=np.arange(3.0))
    part = whole[rows]
    np.testing.assert_array_equal(part.values, VALUES[expected])
    assert part.error_std is not None
    assert part.outputs is not None
    np.testing.assert_array_equal(part.error_std, VALUES[expected] / 10)
    np.testing.assert_array_equal(part.outputs, np.array(expected, dtype=float))
    share = len(expected) / len(whole)  # some rows carry their share of the cost
    assert (part.evaluations, part.seconds) == (round(whole.evaluations * share), whole.seconds * share)
    if isinstance(data, pd.DataFrame):
        pd.testing.assert_frame_equal(part.data, FRAME.iloc[expected])
    elif isinstance(data, pl.DataFrame):
        assert part.data["a"].to_list() == [expected_row + 1 for expected_row in expected]
    elif isinstance(data, pa.Table):
        assert part.data["a"].to_pylist() == [expected_row + 1 for expected_row in expected]
    elif data is not None:
        np.testing.assert_array_equal(part.data, VALUES[expected])


def test_iteration_and_bounds() -> None:
    rows = list(single())
    assert [row.values.shape for row in rows] == [(1, 3)] * 3
    assert len(single()) == 3
    with pytest.raises(IndexError):
        single()[3]
    with pytest.raises(IndexError):
        single()[-4]


def test_to_frame_comes_in_the_kind_of_the_rows() -> None:
    frame = single(FRAME).to_frame()
    assert frame.columns.tolist() == [*ATTRIBUTIONS, "base_value"]
    assert frame.index.tolist() == [10, 20, 30]
    assert frame.loc[10].tolist() == [1.0, -3.0, 2.0, 0.5]
    assert isinstance(single(pl.from_pandas(FRAME)).to_frame(), pl.DataFrame)
    assert isinstance(single(pa.Table.from_pandas(FRAME)).to_frame(), pa.Table)
    assert isinstance(single(VALUES).to_frame(), pd.DataFrame)
    assert isinstance(single().to_frame(), pd.DataFrame)


def test_to_frame_of_several_outputs() -> None:
    explanation = several(pl.from_pandas(FRAME))
    assert explanation.to_frame().columns[:5] == [
        *(f"{name}:no" for name in (*ATTRIBUTIONS, "base_value")),
        "attribution_a:yes",
    ]
    for output in ("yes", 1, -1):
        frame = explanation.to_frame(output=output)
        assert frame.columns == [*ATTRIBUTIONS, "base_value"]
        assert frame.row(0) == (-1.0, 3.0, -2.0, 0.9)
    with pytest.raises(InputError, match="unknown output 'maybe'; expected one of no, yes"):
        explanation.to_frame(output="maybe")
    with pytest.raises(InputError, match="output 2 is out of range; there are 2 outputs"):
        explanation.to_frame(output=2)
    with pytest.raises(InputError, match="has one output"):
        single().to_frame(output=0)


def test_rows_carry_their_bounds() -> None:
    part = banded()[[2, 0]]
    assert part.lower_bounds is not None
    assert part.upper_bounds is not None
    assert part.error_bound is not None
    assert part.refined is not None
    np.testing.assert_array_equal(part.lower_bounds, VALUES[[2, 0]] - 0.25)
    np.testing.assert_array_equal(part.upper_bounds, VALUES[[2, 0]] + 0.25)
    assert part.error_bound.tolist() == [2, 0]
    assert part.refined.tolist() == [True, True]
    assert part.confidence == 0.9


def test_to_frame_with_bounds() -> None:
    frame = banded().to_frame(bounds=True)
    more = [f"{end}_{name}" for name in NAMES for end in ("lower", "upper")]
    assert frame.columns.tolist() == [*ATTRIBUTIONS, "base_value", *more, "error_bound"]
    assert frame.loc[1].tolist() == [0, 0, -1, 0.5, -0.25, 0.25, -0.25, 0.25, -1.25, -0.75, 1]
    assert banded().to_frame().columns.tolist() == [*ATTRIBUTIONS, "base_value"]
    without = single(lower_bounds=VALUES, upper_bounds=VALUES).to_frame(bounds=True)
    assert without.columns.tolist() == [*ATTRIBUTIONS, "base_value", *more]
    with pytest.raises(InputError, match=r"to_frame\(bounds=True\) needs bounds.*explain with confidence="):
        single().to_frame(bounds=True)


def test_to_frame_with_bounds_of_several_outputs() -> None:
    values = np.stack([VALUES, -VALUES], axis=2)
    both = np.zeros((3, 2))
    explanation = Explanation(
        values, both, NAMES, lower_bounds=values - 1, upper_bounds=values + 1, error_bound=np.add(both, [5, 6])
    )
    frame = explanation.to_frame(bounds=True)
    assert frame["upper_b:1"].tolist() == [4, 1, -4]
    assert frame["error_bound:0"].tolist() == [5, 5, 5]
    assert explanation.to_frame(output=1, bounds=True)["error_bound"].tolist() == [6, 6, 6]


def test_to_frame_loses_no_column_to_a_name() -> None:
    names = ("a", "lower_a", "error_bound")
    explanation = Explanation(
        VALUES, np.zeros(3), names, lower_bounds=VALUES - 1, upper_bounds=VALUES + 1, error_bound=np.zeros(3)
    )
    frame = explanation.to_frame(bounds=True)
    assert frame.shape == (3, 3 + 1 + 6 + 1)
    np.testing.assert_array_equal(frame[[f"attribution_{name}" for name in names]], VALUES)
    assert frame["lower_a"].tolist() == [0, -1, 3]
    twice = Explanation(np.zeros((1, 2, 2)), np.zeros((1, 2)), ("a", "a:b"), output_names=("b:c", "c"))
    with pytest.raises(InputError, match="would both be the column 'attribution_a:b:c'; rename"):
        twice.to_frame()


def slow_stable(order: Any, lower: Any, upper: Any) -> list[bool]:
    """The definition for one row: everyone before lies above, everyone after below, equal points never matter."""

    def above(i: int, j: int) -> bool:
        return bool(lower[i] > upper[j]) or bool(lower[i] == upper[i] == lower[j] == upper[j])

    places = range(len(order))
    return [
        all(above(order[s], order[t]) for s in places if s < t)
        and all(above(order[t], order[s]) for s in places if s > t)
        for t in places
    ]


def slow_magnitude(lower: float, upper: float) -> tuple[float, float]:
    ends = sorted([abs(lower), abs(upper)])
    return (0.0 if lower <= 0 <= upper else ends[0]), ends[1]


# Few distinct ends, so that bands touch, coincide and shrink to points often.
LATTICE_ROW = st.lists(
    st.tuples(st.integers(-3, 3), st.integers(0, 1), st.integers(0, 1)).map(lambda t: (t[0] - t[1], t[0], t[0] + t[2])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(row=LATTICE_ROW, data=st.data())
def test_stable_ranks_are_what_the_bands_say(row: list[tuple[int, int, int]], data: st.DataObject) -> None:
    lower, values, upper = (np.array([ends], dtype=float) for ends in zip(*row, strict=True))
    names = tuple(f"x{j}" for j in range(len(row)))
    order = data.draw(st.none() | st.permutations(range(len(row))))
    explanation = Explanation(
        np.stack([values, -values], axis=2),
        np.zeros((1, 2)),
        names,
        lower_bounds=np.stack([lower, -upper], axis=2),
        upper_bounds=np.stack([upper, -lower], axis=2),
        predicted_ranking=None if order is None else np.stack([[order], [order]], axis=2),
    )
    assert explanation.stable_ranks.shape == explanation.ranking.shape
    for k, (low, high) in enumerate([(lower[0], upper[0]), (-upper[0], -lower[0])]):
        assert explanation.stable_ranks[0, :, k].tolist() == slow_stable(explanation.ranking[0, :, k], low, high)
        sizes = [slow_magnitude(*ends) for ends in zip(low, high, strict=True)]
        by_magnitude = explanation.top(len(row), by="magnitude")[0, :, k]
        expected = slow_stable(by_magnitude, *zip(*sizes, strict=True))
        assert explanation.stable(by="magnitude")[0, :, k].tolist() == expected


@settings(max_examples=100, deadline=None)
@given(row=LATTICE_ROW, shares=st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_stable_ranks_hold_for_every_truth_inside_the_bands(row: list[Any], shares: list[float]) -> None:
    lower, values, upper = (np.array([ends], dtype=float) for ends in zip(*row, strict=True))
    names = tuple(f"x{j}" for j in range(len(row)))
    explanation = Explanation(values, np.zeros(1), names, lower_bounds=lower, upper_bounds=upper)
    truth = Explanation(lower + (upper - lower) * shares[: len(row)], np.zeros(1), names)
    sure = explanation.stable_ranks
    np.testing.assert_array_equal(explanation.ranking[sure], truth.ranking[sure])
    sure = explanation.stable(by="magnitude")
    np.testing.assert_array_equal(explanation.top(9)[sure], truth.top(9)[sure])


def test_stable_ranks_of_bands_without_ends() -> None:
    lower, upper = np.array([[3.0, -np.inf, 0.0]]), np.array([[3.5, np.nan, 0.5]])
    explanation = Explanation(
        np.array([[3.2, 2.0, 0.2]]), np.zeros(1), NAMES, lower_bounds=lower, upper_bounds=upper, confidence=0.9
    )
    assert not explanation.stable_ranks.any()
    one = Explanation(np.ones((1, 1)), np.zeros(1), ("a",), lower_bounds=lower[:, 1:2], upper_bounds=upper[:, 1:2])
    assert one.stable_ranks.tolist() == [[True]]


def test_stable_ranks_need_bounds_and_an_order() -> None:
    with pytest.raises(InputError, match="needs bounds, and this explanation has none; explain with confidence="):
        _ = single().stable_ranks
    with pytest.raises(InputError, match="by must be 'value' or 'magnitude', got 'size'"):
        banded().stable(by="size")  # type: ignore[arg-type]
    assert banded(0.25).stable_ranks.tolist() == [[True] * 3, [False, False, True], [True] * 3]
    assert banded(0.0).stable_ranks.all()


def test_to_shap() -> None:
    shap = pytest.importorskip("shap")
    converted = several(FRAME).to_shap()
    assert isinstance(converted, shap.Explanation)
    assert converted.values.shape == (3, 3, 2)
    assert list(converted.feature_names) == list(NAMES)
    np.testing.assert_array_equal(converted[..., 1].values, -VALUES)
    assert single(VALUES).to_shap().data.shape == (3, 3)
