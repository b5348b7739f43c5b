"""The truth of `benchmarks.slow_model` is exact."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import slow_model

import cortx


def test_the_truth_of_a_product_kernel_is_that_of_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_model, "MEMBER_ROWS", 60)
    model = slow_model.Committee.fitted(2)
    reference, row = slow_model.table(2, 1)
    slow_model.check_truth(model, row, reference)
    row = np.where(np.arange(slow_model.COLUMNS) % 2, row, reference)  # few enough to enumerate
    labels = cortx.shapley(cortx.Game(model, reference, output="raw"), row[None], "exact")
    np.testing.assert_allclose(slow_model.exact_values(model, row, reference), labels.values[0], atol=1e-10)
