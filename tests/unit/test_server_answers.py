"""Answers say of each row what the library says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from cortx.explanation import Explanation
from cortx.interfaces.server.answers import Arrays, Names, Wish, explanations

PLAYERS = ("age", "height", "job", "home")
NAMES = Names(PLAYERS, ("no", "yes"), (0, 1, 2, None), image=False)


def make_explanation(seed: int, bounds: bool) -> Explanation:
    generator = np.random.default_rng(seed)
    # Few different values, so that ties and zeros come often.
    values = generator.integers(-2, 3, size=(40, 4, 2)) / 4
    width = generator.choice([0.0, 0.1, 0.6], size=values.shape)
    base = generator.random((40, 2))
    return Explanation(
        values=values,
        base_values=base,
        feature_names=PLAYERS,
        output_names=("no", "yes"),
        outputs=base + values.sum(axis=1),
        lower_bounds=values - width if bounds else None,
        upper_bounds=values + width if bounds else None,
        error_bound=generator.random((40, 2)) if bounds else None,
        confidence=0.9 if bounds else None,
        data=None,
    )


def written(*arguments: Any) -> list[dict[str, Any]]:
    """The answers as whoever reads their JSON has them."""
    items: list[dict[str, Any]] = orjson.loads(orjson.dumps(explanations(*arguments)))
    return items


@pytest.mark.parametrize("bounds", [False, True])
def test_reasons_are_those_of_the_library(bounds: bool) -> None:
    for seed in range(8):
        whole = make_explanation(seed, bounds)
        arrays = Arrays.of(whole)
        for k, name in enumerate(NAMES.outputs):
            items = written(NAMES, arrays, [None] * 40, [Wish(3, k)] * 40)
            codes = whole.reason_codes(3, output=name)
            for row, item in enumerate(items):
                expected = codes[row]
                assert [r["feature"] for r in item["reasons"]] == [r.feature for r in expected]
                assert [r["certain"] for r in item["reasons"]] == [r.certain for r in expected]
                lines = [f"{i + 1}. {r['text']}" for i, r in enumerate(item["reasons"])]
                if lines:
                    assert "\n".join(lines) == codes.text(row)
                else:
                    assert not expected


def test_an_answer_has_every_number_under_its_name() -> None:
    whole = make_explanation(0, True)
    cells = [[30 + i, None, "cook"] for i in range(40)]
    items = written(NAMES, Arrays.of(whole), cells, [Wish(4)] * 40)
    assert whole.outputs is not None
    assert whole.lower_bounds is not None
    assert whole.error_bound is not None
    for row, item in enumerate(items):
        for k, output in enumerate(NAMES.outputs):
            assert item["prediction"][output] == whole.outputs[row, k]
            assert item["error_bound"][output] == whole.error_bound[row, k]
            for j, player in enumerate(PLAYERS):
                assert item["attributions"][output][player] == whole.values[row, j, k]
                assert item["bounds"][output][player][0] == whole.lower_bounds[row, j, k]
            assert item["ranking"][output] == [PLAYERS[j] for j in whole.ranking[row, :, k]]
            assert item["order_by_magnitude"][output] == [PLAYERS[j] for j in whole.order_by_magnitude[row, :, k]]
            ranked = [item["attributions"][output][player] for player in item["ranking"][output]]
            assert ranked == sorted(ranked, reverse=True)
            strengths = [abs(item["attributions"][output][player]) for player in item["order_by_magnitude"][output]]
            assert strengths == sorted(strengths, reverse=True)
        highest = "no" if item["prediction"]["no"] >= item["prediction"]["yes"] else "yes"
        for reason in item["reasons"]:
            assert reason["contribution"] == item["attributions"][highest][reason["feature"]]
            if reason["feature"] == "age":
                assert f"age = {30 + row} " in reason["text"]
            elif reason["feature"] == "height":
                assert reason["value"] is None
                assert "height = missing " in reason["text"]
            elif reason["feature"] == "home":  # a group of columns has no single value
                assert reason["value"] is None
                assert reason["text"].startswith(("home raises", "home lowers"))


def test_the_ranking_is_that_of_the_ranking_head() -> None:
    whole = make_explanation(2, False)
    said = np.flip(whole.ranking, axis=1)
    item = written(NAMES, Arrays.of(replace(whole, predicted_ranking=said)).take(slice(3, 4)), [None], [Wish(1)])[0]
    for k, output in enumerate(NAMES.outputs):
        assert item["ranking"][output] == [PLAYERS[j] for j in said[3, :, k]]


def test_without_outputs_the_prediction_is_what_the_parts_add_up_to() -> None:
    whole = make_explanation(1, False)
    guessed = Explanation(whole.values, whole.base_values, PLAYERS, output_names=("no", "yes"))
    item = written(NAMES, Arrays.of(guessed), [None] * 40, [Wish(0)] * 40)[7]
    assert item["outputs_known"] is False
    assert item["reasons"] == []
    assert item["bounds"] is None
    for output in NAMES.outputs:
        total = item["base_values"][output] + sum(item["attributions"][output].values())
        assert item["prediction"][output] == pytest.approx(total)
