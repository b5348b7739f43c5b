"""The one result type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from cortx import Explanation
from cortx.errors import InputError

VALUES = np.array([[1.0, -3.0, 2.0], [0.0, 0.0, -1.0], [4.0, 5.0, 6.0]])
NAMES = ("a", "b", "c")
FRAME = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [0.1, 0.2, 0.3]}, index=[10, 20, 30])


def single(data: Any = None, **more: Any) -> Explanation:
    return Explanation(VALUES, np.array([0.5, 0.5, 0.5]), NAMES, data=data, evaluations=9, seconds=1.0, **more)


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
    assert frame.columns.tolist() == ["a", "b", "c", "base_value"]
    assert frame.index.tolist() == [10, 20, 30]
    assert frame.loc[10].tolist() == [1.0, -3.0, 2.0, 0.5]
    assert isinstance(single(pl.from_pandas(FRAME)).to_frame(), pl.DataFrame)
    assert isinstance(single(pa.Table.from_pandas(FRAME)).to_frame(), pa.Table)
    assert isinstance(single(VALUES).to_frame(), pd.DataFrame)
    assert isinstance(single().to_frame(), pd.DataFrame)


def test_to_frame_of_several_outputs() -> None:
    explanation = several(pl.from_pandas(FRAME))
    assert explanation.to_frame().columns[:5] == ["a:no", "b:no", "c:no", "base_value:no", "a:yes"]
    for output in ("yes", 1, -1):
        frame = explanation.to_frame(output=output)
        assert frame.columns == ["a", "b", "c", "base_value"]
        assert frame.row(0) == (-1.0, 3.0, -2.0, 0.9)
    with pytest.raises(InputError, match="unknown output 'maybe'; expected one of no, yes"):
        explanation.to_frame(output="maybe")
    with pytest.raises(InputError, match="output 2 is out of range; there are 2 outputs"):
        explanation.to_frame(output=2)
    with pytest.raises(InputError, match="has one output"):
        single().to_frame(output=0)


def test_to_shap() -> None:
    shap = pytest.importorskip("shap")
    converted = several(FRAME).to_shap()
    assert isinstance(converted, shap.Explanation)
    assert converted.values.shape == (3, 3, 2)
    assert list(converted.feature_names) == list(NAMES)
    np.testing.assert_array_equal(converted[..., 1].values, -VALUES)
    assert single(VALUES).to_shap().data.shape == (3, 3)
