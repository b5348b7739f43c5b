"""The training table's profile: what it keeps, which differences it calls drift, and that chance is not among them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from cortx.explainer.profile import LARGE, ColumnDrift, Profile, drift, profile_of
from cortx.tables import Table, read_table


def some_table(rows: int, generator: np.random.Generator) -> pd.DataFrame:
    """Smooth, heavy-tailed, whole and nearly constant numbers; few, many and unique categories; missing values."""
    frame = pd.DataFrame(
        {
            "normal": generator.normal(size=rows),
            "heavy": generator.standard_cauchy(size=rows),
            "whole": generator.integers(0, 4, size=rows),
            "spike": np.where(generator.random(rows) < 0.9, 0.0, generator.random(rows)),
            "gaps": np.where(generator.random(rows) < 0.3, np.nan, generator.normal(size=rows)),
            "colour": generator.choice(["red", "blue", None], p=[0.6, 0.3, 0.1], size=rows),
            "city": np.array([f"c{k}" for k in range(200)])[generator.integers(0, 200, size=rows)],
            "zipf": np.minimum(generator.zipf(1.6, size=rows), 10**6).astype(str),
            "name": generator.integers(0, 10**9, size=rows).astype(str),
            "member": generator.random(rows) < 0.2,
        }
    )
    return frame.astype({"colour": object})


def profiled(frame: pd.DataFrame) -> tuple[Profile, Table]:
    table = read_table(frame)
    return profile_of(table.matrix, table.schema), table


def compared(before: pd.DataFrame, now: pd.DataFrame) -> dict[str, ColumnDrift]:
    profile, table = profiled(before)
    return {found.column: found for found in drift(profile, read_table(now, schema=table.schema))}


def test_it_keeps_quantiles_and_shares() -> None:
    frame = pd.DataFrame({"a": [3.0, 1.0, 2.0, np.nan], "b": ["x", "y", "x", None], "c": [True, False, True, True]})
    profile, _ = profiled(frame)
    numbers, texts, flags = profile.columns
    assert (numbers.name, numbers.missing) == ("a", 0.25)
    assert numbers.grid == (1.0, 2.0, 3.0)  # type: ignore[union-attr]
    np.testing.assert_allclose(numbers.below, [0, 1 / 3, 2 / 3])  # type: ignore[union-attr]
    np.testing.assert_allclose(numbers.up_to, [1 / 3, 2 / 3, 1])  # type: ignore[union-attr]
    assert numbers.median == 2  # type: ignore[union-attr]
    assert (texts.values, texts.missing) == (("x", "y"), 0.25)  # type: ignore[union-attr]
    np.testing.assert_allclose(texts.shares, [2 / 3, 1 / 3])  # type: ignore[union-attr]
    assert flags.values == (1.0, 0.0)  # type: ignore[union-attr]


def test_a_grid_is_small_and_made_of_the_columns_own_values() -> None:
    numbers = np.random.default_rng(0).normal(size=(5_000, 1))
    profile, _ = profiled(pd.DataFrame(numbers, columns=["a"]))
    grid = np.array(profile.columns[0].grid)  # type: ignore[union-attr]
    assert len(grid) == 21
    assert np.isin(grid, numbers).all()
    assert (grid[0], grid[-1]) == (numbers.min(), numbers.max())
    np.testing.assert_allclose(profile.columns[0].up_to[1:], np.linspace(0.05, 1, 20), atol=2e-3)  # type: ignore[union-attr]


def test_json_and_back() -> None:
    profile, table = profiled(some_table(300, np.random.default_rng(0)))
    text = json.dumps(profile.to_json(), allow_nan=False)
    assert Profile.from_json(json.loads(text)) == profile
    again = drift(Profile.from_json(json.loads(text)), table)
    assert max(found.distance for found in again) < 1e-12
    for found in again:
        json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize(("before", "now"), [(1_000, 50), (150, 50), (200, 2_000), (2_000, 2_000), (100, 5)])
def test_chance_raises_no_alarm(before: int, now: int) -> None:
    generator = np.random.default_rng(before + now)
    repeats = 60
    alarms = 0
    for _ in range(repeats):
        found = compared(some_table(before, generator), some_table(now, generator))
        alarms += any(column.drifted for column in found.values())
    # One alarm in a hundred is allowed; more than two of sixty would have a chance of 0.02.
    assert alarms <= 2


def test_without_the_rule_of_size_chance_is_still_rare() -> None:
    generator = np.random.default_rng(5)
    alarms = 0
    for _ in range(40):
        for column in compared(some_table(4_000, generator), some_table(4_000, generator)).values():
            change = abs(column.missing - column.missing_before)
            alarms += column.distance > column.allowed or column.largest > column.largest_allowed
            alarms += change > column.missing_allowed
    assert alarms <= 1


def test_the_statistics_are_what_they_are_called() -> None:
    generator = np.random.default_rng(1)
    before, now = some_table(2_000, generator), some_table(700, generator)
    now["normal"] += 0.4
    now.loc[:300, "colour"] = "red"
    found = compared(before, now)
    points = np.concatenate([before["normal"], now["normal"]])
    kolmogorov = max(abs((before["normal"] <= x).mean() - (now["normal"] <= x).mean()) for x in points)
    assert kolmogorov - 0.05 <= found["normal"].distance <= kolmogorov + 1e-12
    shares = [frame["colour"].value_counts(normalize=True) for frame in (before, now)]
    assert found["colour"].distance == pytest.approx(sum(abs(shares[0] - shares[1])) / 2)
    assert found["gaps"].missing == pytest.approx(now["gaps"].isna().mean())


@pytest.mark.parametrize("rows", [120, 3_000])
def test_shifts_are_called_out_by_name(rows: int) -> None:
    generator = np.random.default_rng(2)
    before, now = some_table(2_000, generator), some_table(rows, generator)
    now["normal"] = now["normal"] + 2
    now["whole"] = 9
    now["gaps"] = now["gaps"].fillna(0.0)
    now["colour"] = np.where(generator.random(rows) < 0.5, "green", now["colour"])
    found = compared(before, now)
    assert {name for name, column in found.items() if column.drifted} == {"normal", "whole", "gaps", "colour"}
    assert "median" in found["normal"].words
    assert "100.0% above 3, the most in training" in found["whole"].words
    assert "are new to it: 'green'" in found["colour"].words
    assert "missing in" in found["gaps"].words
    assert str(found["whole"]).startswith("column 'whole': median")
    assert "(distance 1.00, chance allows" in str(found["whole"])


def test_a_new_category_among_many_is_seen() -> None:
    generator = np.random.default_rng(3)
    before, now = some_table(2_000, generator)[["city"]], some_table(400, generator)[["city"]]
    now.loc[:100, "city"] = "atlantis"
    column = compared(before, now)["city"]
    assert column.distance < column.allowed  # 200 cities: chance alone explains such a sum
    assert column.drifted
    assert "'atlantis'" in column.words


def test_constant_columns_move_either_way() -> None:
    before = pd.DataFrame({"a": np.full(200, 5.0)})
    assert not compared(before, pd.DataFrame({"a": np.full(100, 5.0)}))["a"].drifted
    for value in (4.0, 6.0):
        assert compared(before, pd.DataFrame({"a": np.full(100, value)}))["a"].drifted


def test_sure_but_small_is_no_drift() -> None:
    generator = np.random.default_rng(4)
    before = pd.DataFrame({"a": generator.normal(size=50_000)})
    column = compared(before, before + 0.15)["a"]
    assert column.allowed < column.distance < LARGE
    assert not column.drifted


def test_columns_without_values_do_not_break_it() -> None:
    before = pd.DataFrame({"a": [1.0, 2.0] * 50, "b": ["x", "y"] * 50})
    gone = pd.DataFrame({"a": [np.nan] * 100, "b": [None] * 100}).astype({"b": object})
    found = compared(before, gone)
    assert found["a"].drifted
    assert found["b"].drifted
    back = compared(gone.assign(b=["x", None] * 50), before)
    assert back["a"].drifted
