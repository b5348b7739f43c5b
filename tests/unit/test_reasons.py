"""Reason codes: the right features, honest about ties, and silent about what is excluded."""

from __future__ import annotations

import json
import sys
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
from cortx.reasons import Reason, ReasonCodes, number_text, value_text

NAMES = ("age", "gain", "job", "sex", "hours")
FRAME = pd.DataFrame(
    {
        "age": [39.0, np.nan, 51.25],
        "gain": [0, 48213, 7],
        "job": pd.Categorical(["clerk", "sales", None]),
        "sex": ["female", "male", "male"],
        "hours": [True, False, True],
    },
    index=["ann", "bob", "eve"],
)
COLUMNS = ["row", "rank", "feature", "value", "attribution", "direction", "certain", "tied_with"]
VALUES = np.array([[0.05, -0.0812, 0.045, -0.3, 0.0], [0.2, 0.0, -0.2, 0.5, 0.1], [0.0, 0.0, 0.0, 0.4, 0.0]])
WIDTH = np.array([[0.004, 0.005, 0.004, 0.01, 0.0], [0.01, 0.0, 0.02, 0.01, 0.15], [0.0, 0.0, 0.01, 0.0, 0.0]])


def plain(data: Any = None, **more: Any) -> Explanation:
    return Explanation(VALUES, np.zeros(3), NAMES, data=data, **more)


def banded(data: Any = None, **more: Any) -> Explanation:
    more = {"confidence": 0.9} | more
    return plain(data, lower_bounds=VALUES - WIDTH, upper_bounds=VALUES + WIDTH, **more)


def features(reasons: list[Reason]) -> list[str]:
    return [reason.feature for reason in reasons]


def test_strongest_first() -> None:
    codes = plain().reason_codes()
    assert features(codes[0]) == ["sex", "gain", "age", "job"]
    assert features(codes[1]) == ["sex", "age", "job", "hours"]
    assert features(codes[2]) == ["sex"]
    assert [reason.rank for reason in codes[0]] == [1, 2, 3, 4]
    assert [reason.direction for reason in codes[0]] == ["down", "down", "up", "up"]
    assert features(plain().reason_codes(direction="up")[0]) == ["age", "job"]
    assert features(plain().reason_codes(direction="down")[0]) == ["sex", "gain"]
    assert features(plain().reason_codes(k=2, exclude=["sex"])[0]) == ["gain", "age"]
    assert plain().reason_codes(exclude=["sex"])[2] == []


def test_rows_are_a_sequence() -> None:
    codes = banded(FRAME).reason_codes()
    assert len(codes) == 3
    assert list(codes) == [codes[0], codes[1], codes[2]]
    assert codes[-1] == codes[2] == codes[np.int64(2)]  # type: ignore[index]
    for row in (3, -4):
        with pytest.raises(IndexError, match=f"row {row} of 3"):
            codes[row]
    with pytest.raises(TypeError):
        codes["ann"]  # type: ignore[index]
    assert repr(codes) == "ReasonCodes(3 rows, k=4, direction='both')"


def test_a_reason_holds_what_is_known() -> None:
    first = banded(FRAME).reason_codes(exclude="sex")[0][0]
    assert first == Reason(1, "gain", 0, -0.0812, "down", -0.0812 - 0.005, -0.0812 + 0.005, True, ())
    without = plain().reason_codes(exclude=("sex",))[0][0]
    assert without == Reason(1, "gain", None, -0.0812, "down", None, None, None, ())


def test_the_order_of_close_features_is_not_certain() -> None:
    codes = banded(FRAME).reason_codes(exclude=("sex",))
    gain, age, job = codes[0]
    assert (gain.certain, age.certain, job.certain) == (True, False, False)
    assert (gain.tied_with, age.tied_with, job.tied_with) == ((), ("job",), ("age",))
    age, job, hours = codes[1]
    assert age.tied_with == ("job", "hours")
    # hours could be anywhere from -0.05 to 0.25; gain is exactly zero and never a reason.
    assert hours.tied_with == ("age", "job")
    assert not hours.certain
    # With k=1 the reasons beyond it are still told.
    assert banded().reason_codes(k=1, exclude=("sex",))[1][0].tied_with == ("job", "hours")


def test_equal_strength_is_told_without_bands() -> None:
    codes = plain().reason_codes(k=2)
    assert [reason.tied_with for reason in codes[1]] == [(), ("job",)]
    assert [reason.certain for reason in codes[1]] == [None, None]
    assert plain().reason_codes(direction="up")[1][1].tied_with == ()


def test_equal_points_are_tied() -> None:
    values = np.array([[0.5, 0.5, 0.0]])
    codes = Explanation(values, np.zeros(1), NAMES[:3], lower_bounds=values, upper_bounds=values).reason_codes()
    assert [(reason.tied_with, reason.certain) for reason in codes[0]] == [(("gain",), False), (("age",), False)]


def test_text_reads_well() -> None:
    codes = banded(FRAME).reason_codes(exclude=("sex",))
    assert codes.text(0) == (
        "1. gain = 0 lowers the output by 0.0812 (between 0.0762 and 0.0862, certain at 90%)\n"
        "2. age = 39 raises the output by 0.05 (between 0.046 and 0.054 at 90%); could change places with job\n"
        "3. job = clerk raises the output by 0.045 (between 0.041 and 0.049 at 90%); could change places with age"
    )
    assert codes.text(1).splitlines()[0] == (
        "1. age = missing raises the output by 0.2 (between 0.19 and 0.21 at 90%); "
        "could change places with job and hours"
    )
    assert codes.text(1).splitlines()[2] == (
        "3. hours = no raises the output by 0.1 (from -0.05 to 0.25 at 90%, so it could also lower it); "
        "could change places with age and job"
    )
    assert codes.text(2) == "none of the 4 features considered moves the output"
    # The bands of `sex` in the last row are one point.
    assert banded(FRAME).reason_codes().text(2) == "1. sex = male raises the output by 0.4 (exact)"


def test_text_without_bands() -> None:
    assert plain().reason_codes(k=2).text(1) == (
        "1. sex raises the output by 0.5\n2. age raises the output by 0.2; as strong as job"
    )
    assert plain().reason_codes(direction="down").text(2) == "none of the 5 features considered lowers the output"


def one(value: float, lower: float, upper: float, confidence: float | None = 0.95) -> str:
    bounds = {"lower_bounds": np.array([[lower]]), "upper_bounds": np.array([[upper]])}
    explanation = Explanation(np.array([[value]]), np.zeros(1), ("debt",), confidence=confidence, **bounds)  # type: ignore[arg-type]
    return explanation.reason_codes().text(0)


@pytest.mark.parametrize(
    ("band", "words"),
    [
        ((-2, -3, -1), "lowers the output by 2 (between 1 and 3, certain at 95%)"),
        ((-2, -3, 1), "lowers the output by 2 (from -3 to 1 at 95%, so it could also raise it)"),
        ((2, 0, 3), "raises the output by 2 (from 0 to 3 at 95%, so it could also do nothing)"),
        ((2, -3, -1), "raises the output by 2 (from -3 to -1 at 95%, so it could also lower it)"),
        ((2, np.nan, np.nan), "raises the output by 2 (how far is not known)"),
        ((2, 1, np.inf), "raises the output by 2 (between 1 and inf, certain at 95%)"),
        ((-2, -2, -2), "lowers the output by 2 (exact)"),
        ((1234.567, 1000, 2000), "raises the output by 1235 (between 1000 and 2000, certain at 95%)"),
    ],
)
def test_bands_in_words(band: tuple[float, float, float], words: str) -> None:
    assert one(*band) == f"1. debt {words}"


def test_a_level_is_said_only_if_known() -> None:
    assert one(2, 1, 3, confidence=None) == "1. debt raises the output by 2 (between 1 and 3, certain)"
    assert one(2, 1, 3, confidence=0.999) == "1. debt raises the output by 2 (between 1 and 3, certain at 99.9%)"


def test_many_ties_are_counted() -> None:
    explanation = Explanation(np.ones((1, 6)), np.zeros(1), tuple("abcdef"))
    assert explanation.reason_codes(k=1).text(0) == "1. a raises the output by 1; as strong as b, c, d and 2 more"
    assert explanation.reason_codes(k=1)[0][0].tied_with == tuple("bcdef")


def test_all_rows_abridged() -> None:
    assert str(plain().reason_codes(k=1)).splitlines()[:3] == ["row 0", "1. sex lowers the output by 0.3", "row 1"]
    long = Explanation(np.ones((1_005, 1)), np.zeros(1_005), ("a",)).reason_codes()
    assert str(long).splitlines()[-1] == "... and 1,000 more rows"
    assert len(str(long)) < 500


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (0.123456, "0.1235"),
        (48213.0, "48213"),
        (48213.7, "48214"),
        (-1234.56, "-1235"),
        (0.00001234567, "1.235e-05"),
        (10**18, "1000000000000000000"),
        (True, "yes"),
        ("a\n b", "a b"),
        ("x" * 70, "x" * 59 + "…"),
        (float("nan"), "missing"),
        (None, None),
    ],
)
def test_values_in_words(value: Any, text: str | None) -> None:
    assert value_text(value) == text


def test_numbers_keep_their_whole_part() -> None:
    assert [number_text(x, 3) for x in (0.08123, 99.96, 100.4, 123456.7, 2e20)] == [
        "0.0812",
        "100",
        "100",
        "123457",
        "2e+20",
    ]


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_frames_of_every_kind(kind: str) -> None:
    data = {"pandas": FRAME, "polars": pl.from_pandas(FRAME), "pyarrow": pa.Table.from_pandas(FRAME)}[kind]
    codes = banded(data).reason_codes(exclude=("sex",), k=3)
    expected = banded(FRAME).reason_codes(exclude=("sex",), k=3)
    assert [codes.text(row) for row in range(3)] == [expected.text(row) for row in range(3)]
    frame = codes.to_frame()
    assert type(frame) is type(data)
    names = frame.column_names if kind == "pyarrow" else list(frame.columns)
    assert names == [*COLUMNS[:6], "lower", "upper", *COLUMNS[6:]]
    if kind == "pandas":
        assert frame.index.tolist() == ["ann"] * 3 + ["bob"] * 3
        rows = frame.to_dict("records")
    else:
        rows = frame.to_pylist() if kind == "pyarrow" else frame.to_dicts()
    assert [row["feature"] for row in rows] == ["gain", "age", "job", "age", "job", "hours"]
    assert [row["value"] for row in rows] == ["0", "39", "clerk", "missing", "sales", "no"]
    assert [row["certain"] for row in rows] == [True, False, False, False, False, False]
    assert [row["tied_with"] for row in rows] == ["", "job", "age", "job, hours", "age, hours", "age, job"]
    assert rows[0]["attribution"] == -0.0812


def test_frames_of_arrays_and_without_rows_data() -> None:
    codes = plain(np.arange(15.0).reshape(3, 5)).reason_codes(k=1)
    frame = codes.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame["value"].tolist() == ["3", "8", "13"]
    assert frame["certain"].isna().all()
    assert frame.columns.tolist() == COLUMNS
    assert plain().reason_codes(k=1).to_frame()["value"].isna().all()
    assert plain(np.ones((3, 2))).reason_codes()[0][0].value is None


@pytest.mark.parametrize("data", [FRAME, pl.from_pandas(FRAME), pa.Table.from_pandas(FRAME), None])
def test_nothing_to_say(data: Any) -> None:
    explanation = Explanation(np.zeros((3, 5)), np.zeros(3), NAMES, data=data)
    for codes in (explanation.reason_codes(), plain(data).reason_codes(exclude=NAMES), plain(data)[[]].reason_codes()):
        assert all(reasons == [] for reasons in codes)
        assert len(codes.to_frame()) == 0
        assert [entry["reasons"] for entry in json.loads(codes.to_json())] == [[]] * len(codes)
        assert isinstance(str(codes), str)
        assert (codes.players == -1).all()
    if isinstance(data, pl.DataFrame):
        types = explanation.reason_codes().to_frame().schema
        assert (types["row"], types["value"], types["certain"]) == (pl.Int64, pl.String, pl.Boolean)


def test_json_is_strict_and_plain() -> None:
    data = FRAME.assign(gain=pd.to_datetime(["2020-01-02", "2021-01-02", None]), hours=np.array([1, 2, 3], np.int8))
    bounds = {"lower_bounds": np.full((3, 5), -np.inf), "upper_bounds": np.full((3, 5), np.nan)}
    explanation = plain(data, confidence=0.5, **bounds)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(explanation.reason_codes(k=2, exclude=("sex",)).to_json(), parse_constant=refuse)
    assert [entry["row"] for entry in found] == [0, 1, 2]
    assert found[0]["confidence"] == 0.5
    assert found[0]["output"] is None
    assert found[0]["reasons"][0] == {
        "rank": 1,
        "feature": "gain",
        "value": "2020-01-02 00:00:00",
        "attribution": -0.0812,
        "direction": "down",
        "lower": None,
        "upper": None,
        "certain": False,
        "tied_with": ["age", "job", "hours"],
    }
    assert found[1]["reasons"][0]["value"] is None
    assert found[2]["reasons"] == []


def test_missing_values_of_every_kind() -> None:
    data = pd.DataFrame(
        {
            "age": pd.array([None], dtype="Int64"),
            "gain": pd.to_datetime([None]),
            "job": [None],
            "sex": pd.Categorical([None], categories=["f"]),
            "hours": [np.nan],
        }
    )
    explanation = Explanation(np.ones((1, 5)), np.zeros(1), NAMES, data=data)
    for rows in (explanation, Explanation(np.ones((1, 5)), np.zeros(1), NAMES, data=pl.from_pandas(data))):
        assert all(np.isnan(reason.value) for reason in rows.reason_codes(k=5)[0])
        assert rows.reason_codes().text(0).count("= missing") == 4


def test_groups_have_no_value() -> None:
    data = pd.DataFrame({"red": [1], "blue": [0], "age": [40]})
    codes = Explanation(np.array([[2.0, 1.0]]), np.zeros(1), ("colour", "age"), data=data).reason_codes()
    assert codes.text(0) == "1. colour raises the output by 2\n2. age = 40 raises the output by 1"
    assert codes[0][0].value is None
    assert codes.to_frame()["value"].isna().tolist() == [True, False]


def test_players_without_names_go_by_position_and_labels_may_be_numbers() -> None:
    unnamed = Explanation(np.array([[2.0, 1.0]]), np.zeros(1), ("x0", "x1"), data=pd.DataFrame({"a": [1], "b": [7]}))
    assert [reason.value for reason in unnamed.reason_codes()[0]] == [1, 7]
    numbered = Explanation(np.array([[2.0, 1.0]]), np.zeros(1), ("5", "4"), data=pd.DataFrame([[3, 8]], columns=[4, 5]))
    assert [reason.value for reason in numbered.reason_codes()[0]] == [8, 3]


def test_several_outputs() -> None:
    values = np.stack([VALUES, 2 * VALUES[:, ::-1]], axis=2)
    bands = {"lower_bounds": values - 0.001, "upper_bounds": values + 0.001, "confidence": 0.9}
    explanation = Explanation(values, np.zeros((3, 2)), NAMES, output_names=("no", "yes"), **bands)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has 2 outputs; choose one with output=: no, yes"):
        explanation.reason_codes()
    with pytest.raises(InputError, match="unknown output 'maybe'; expected one of no, yes"):
        explanation.reason_codes(output="maybe")
    for output in ("yes", 1, -1):
        codes = explanation.reason_codes(k=1, output=output)
        assert codes.text(0) == "1. gain lowers the output for yes by 0.6 (between 0.599 and 0.601, certain at 90%)"
        assert json.loads(codes.to_json())[0]["output"] == "yes"
    unnamed = Explanation(values, np.zeros((3, 2)), NAMES)
    assert unnamed.reason_codes(k=1, output=0).text(0) == "1. sex lowers output 0 by 0.3"
    with pytest.raises(InputError, match="has one output; leave output= out"):
        plain().reason_codes(output=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k must be a whole number of at least 1, got 0"),
        ({"k": True}, "got True"),
        ({"k": 2.0}, r"got 2\.0"),
        ({"direction": "left"}, "direction must be 'both', 'up' or 'down', got 'left'"),
        ({"exclude": ("sex", "Sex")}, "exclude names unknown features: 'Sex'; they are age, gain, job, sex, hours"),
        ({"exclude": "gender"}, "unknown features: 'gender'"),
        ({"exclude": [3]}, "unknown features: 3"),
    ],
)
def test_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plain().reason_codes(**settings)


def test_refuses_values_that_are_no_numbers() -> None:
    values = np.where(np.arange(15).reshape(3, 5) == 12, np.nan, VALUES)
    with pytest.raises(InputError, match="row 2 has values that are NaN or infinite"):
        Explanation(values, np.zeros(3), NAMES).reason_codes()


def test_one_name_may_come_alone() -> None:
    assert features(plain().reason_codes(exclude="sex")[1]) == ["age", "job", "hours"]


# Properties ---------------------------------------------------------------------------------------------------


@st.composite
def explanations(draw: st.DrawFn) -> Explanation:
    """Few distinct numbers, so that there are ties, zeros, points and touching bands; values may leave their bands."""
    rows, players = draw(st.integers(1, 3)), draw(st.integers(1, 6))

    def numbers(low: int, high: int) -> Any:
        cells = draw(st.lists(st.integers(low, high), min_size=rows * players, max_size=rows * players))
        return np.array(cells, dtype=float).reshape(rows, players) / 2

    values = numbers(-3, 3)
    bands: dict[str, Any] = {}
    if draw(st.booleans()):
        middle = values if draw(st.booleans()) else numbers(-3, 3)
        bands = {"lower_bounds": middle - numbers(0, 2), "upper_bounds": middle + numbers(0, 2), "confidence": 0.9}
    names = tuple(f"<{letter}>" for letter in "abcdef"[:players])
    cells = draw(st.lists(st.sampled_from(["u", "v", None]), min_size=rows * players, max_size=rows * players))
    table = {name: cells[j * rows : (j + 1) * rows] for j, name in enumerate(names)}
    kinds: list[Any] = [
        None,
        np.arange(rows * players).reshape(rows, players),
        pd.DataFrame(table),
        pl.DataFrame(table),
    ]
    return Explanation(values, np.zeros(rows), names, data=draw(st.sampled_from(kinds)), **bands)


def slow_reasons(explanation: Explanation, row: int, k: int, exclude: set[str], direction: str) -> list[Any]:
    """(feature, certain, tied with) by the definition, one pair of features at a time."""
    allowed = [j for j, name in enumerate(explanation.feature_names) if name not in exclude]

    def strength(x: float) -> float:
        return {"both": abs(x), "up": max(x, 0.0), "down": max(-x, 0.0)}[direction]

    def ends(j: int) -> tuple[float, float]:
        if explanation.lower_bounds is None or explanation.upper_bounds is None:
            return strength(explanation.values[row, j]), strength(explanation.values[row, j])
        low, high = float(explanation.lower_bounds[row, j]), float(explanation.upper_bounds[row, j])
        # Strength falls up to zero and rises from it, or is monotone: its extremes are at the ends or at zero.
        at = [strength(x) for x in (low, high, *([0.0] if low <= 0 <= high else []))]
        return min(at), max(at)

    ordered = sorted(allowed, key=lambda j: (-strength(explanation.values[row, j]), j))
    found = []
    for place, j in enumerate(ordered):
        value = explanation.values[row, j]
        if place >= k or strength(value) == 0:
            break
        tied = []
        for other in allowed:
            if other == j or ends(other)[1] == 0:
                continue
            first, second = (other, j) if ordered.index(other) < place else (j, other)
            if not ends(first)[0] > ends(second)[1]:
                tied.append(explanation.feature_names[other])
        certain = None
        if explanation.lower_bounds is not None and explanation.upper_bounds is not None:
            low, high = explanation.lower_bounds[row, j], explanation.upper_bounds[row, j]
            certain = not tied and bool(low > 0 if value > 0 else high < 0)
        found.append((explanation.feature_names[j], certain, tuple(tied)))
    return found


@settings(max_examples=250, deadline=None)
@given(explanation=explanations(), data=st.data())
def test_reasons_are_what_the_definition_says(explanation: Explanation, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, 7))
    exclude = data.draw(st.sets(st.sampled_from(explanation.feature_names)))
    direction: Any = data.draw(st.sampled_from(["both", "up", "down"]))
    codes = explanation.reason_codes(k=k, exclude=exclude, direction=direction)
    frame = codes.to_frame()
    flat = []
    for row, reasons in enumerate(codes):
        expected = slow_reasons(explanation, row, k, exclude, direction)
        assert [(reason.feature, reason.certain, reason.tied_with) for reason in reasons] == expected
        positions = [explanation.feature_names.index(name) for name, _, _ in expected]
        assert codes.players[row].tolist() == positions + [-1] * (codes.players.shape[1] - len(positions))
        if codes.certain is not None:
            assert codes.certain[row, : len(expected)].tolist() == [certain for _, certain, _ in expected]
            assert not codes.certain[row, len(expected) :].any()
        for rank, reason in enumerate(reasons, start=1):
            value = float(explanation.values[row, explanation.feature_names.index(reason.feature)])
            assert (reason.rank, reason.attribution, reason.direction) == (rank, value, "up" if value > 0 else "down")
            flat.append((row, rank, reason.feature, value_text(reason.value), ", ".join(reason.tied_with)))
    lists = [frame[name].to_list() for name in ("row", "rank", "feature", "value", "tied_with")]
    lists[3] = [text if isinstance(text, str) else None for text in lists[3]]
    assert list(zip(*lists, strict=True)) == flat


@settings(max_examples=150, deadline=None)
@given(explanation=explanations(), data=st.data())
def test_excluded_features_are_never_named(explanation: Explanation, data: st.DataObject) -> None:
    exclude = data.draw(st.sets(st.sampled_from(explanation.feature_names), min_size=1))
    frame_of = explanation.data
    if isinstance(frame_of, pd.DataFrame) and data.draw(st.booleans()):
        frame_of = frame_of.set_index(sorted(exclude)[0], drop=False)
    if isinstance(frame_of, (pd.DataFrame, pl.DataFrame)):
        secret = {name: ["secret"] * len(explanation) for name in exclude}
        frame_of = (
            frame_of.assign(**secret)
            if isinstance(frame_of, pd.DataFrame)
            else frame_of.with_columns(**{name: pl.Series(column) for name, column in secret.items()})
        )
    explanation = Explanation(
        explanation.values,
        explanation.base_values,
        explanation.feature_names,
        data=frame_of,
        lower_bounds=explanation.lower_bounds,
        upper_bounds=explanation.upper_bounds,
    )
    codes = explanation.reason_codes(k=9, exclude=sorted(exclude), direction=data.draw(st.sampled_from(["both", "up"])))
    said = [str(codes), repr(codes), codes.to_json(), str(list(codes)), _csv(codes)]
    said += [codes.text(row) for row in range(len(codes))]
    for words in said:
        assert "secret" not in words
        assert not any(name in words for name in exclude)


def _csv(codes: ReasonCodes) -> str:
    frame = codes.to_frame()
    return str(frame.to_csv() if isinstance(frame, pd.DataFrame) else frame.write_csv())


@settings(max_examples=100, deadline=None)
@given(explanation=explanations())
def test_certain_reasons_stand_where_the_magnitudes_are_stable(explanation: Explanation) -> None:
    codes = explanation.reason_codes(k=9)
    if codes.certain is not None:
        assert not (codes.certain & ~explanation.stable(by="magnitude")).any()


def test_large_tables_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = banded(FRAME).reason_codes()
    monkeypatch.setattr("cortx.reasons.CELLS_AT_A_TIME", 20)
    codes = banded(FRAME).reason_codes()
    assert codes.to_json() == expected.to_json()
    pd.testing.assert_frame_equal(codes.to_frame(), expected.to_frame())


def test_arrays_of_many_rows_need_no_loop_over_rows() -> None:
    values = np.random.default_rng(0).normal(size=(100_000, 13))
    names = tuple(f"x{j}" for j in range(13))
    data = pd.DataFrame(values, columns=names).assign(x0="text")
    explanation = Explanation(
        values, np.zeros(len(values)), names, data=data, lower_bounds=values - 0.01, upper_bounds=values + 0.01
    )
    calls: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda _frame, event, _about: calls.append(event) if event in ("call", "c_call") else None)
    try:
        codes = explanation.reason_codes()
    finally:
        sys.setprofile(before)
    assert codes.players.shape == (100_000, 4)
    assert codes.certain is not None
    assert 0.5 < codes.certain.mean() < 1
    assert len(codes[99_999]) == 4
    assert len(calls) < len(values)  # nothing is called for each row


def test_what_rounding_leaves_is_no_reason() -> None:
    """Refined rows hold a few 1e-18 where the true value is zero."""
    values = np.array([[0.3, 7.8e-18, -0.2, -1.7e-18]])
    explanation = Explanation(values, np.zeros(1), ("a", "b", "c", "d"))
    assert [reason.feature for reason in explanation.reason_codes(k=4)[0]] == ["a", "c"]
    tiny = Explanation(values[:, [1, 3]], np.zeros(1), ("b", "d"))  # small, but all there is
    assert len(tiny.reason_codes(k=2)[0]) == 2
