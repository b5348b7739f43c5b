"""A model is known by its outputs, up to what its precision can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cortx.games.fingerprint import difference, probe_rows

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


def sparse(columns: int, share: float, rows: int = 4_000) -> Any:
    rng = np.random.default_rng(columns)
    return np.where(rng.random((rows, columns)) < share, np.abs(rng.normal(size=(rows, columns))) + 0.5, 0.0)


@pytest.mark.parametrize(("columns", "share"), [(8, 0.02), (40, 0.05), (300, 0.03)])
def test_probes_show_rare_values_and_look_like_rows(columns: int, share: float) -> None:
    table = sparse(columns, share)
    probes = probe_rows(table, seed=0)
    assert (probes != 0).any(axis=0).sum() >= min(columns, 16)
    usual = np.quantile((table != 0).sum(axis=1), 0.99)
    assert (probes != 0).sum(axis=1).mean() <= max(2, usual)


def test_models_of_sparse_tables_are_told_apart() -> None:
    """A change of a fifth of every row's output that outputs of rows unlike the table's would have hidden."""
    table, weights = sparse(300, 0.03), np.random.default_rng(1).normal(size=300)
    probes = probe_rows(table, seed=0)
    before = np.exp(0.5 * probes @ weights)[:, None]
    assert difference(before, before).same
    assert not difference(1.2 * before, before).same
    one = weights.copy()
    one[np.flatnonzero((probes != 0).any(axis=0))[0]] += 1
    assert not difference(np.exp(0.5 * probes @ one)[:, None], before).same
