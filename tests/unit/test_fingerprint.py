"""A model is known by its outputs, up to what its precision can hold."""

from __future__ import annotations

import numpy as np
import pytest

from cortx.games.fingerprint import difference

GENERATOR = np.random.default_rng(0)
BEFORE = GENERATOR.uniform(size=(32, 3)) * [1.0, 0.01, 100.0]


@pytest.mark.parametrize(
    ("share", "precision", "same"),
    [
        (1e-5, None, True),
        (3e-3, None, False),
        (3e-3, "float16", True),
        (3e-3, "bfloat16", True),
        (0.1, "float16", False),
    ],
)
def test_a_model_is_the_same_up_to_its_precision(share: float, precision: str | None, same: bool) -> None:
    now = BEFORE.copy()
    now[5, 1] += share * np.ptp(BEFORE[:, 1])
    found = difference(now, BEFORE, precision)
    assert found.same == same
    assert found.largest == pytest.approx(share * found.spread)
