"""KernelSHAP and permutation sampling with many evaluations: error and time (the paper's tab:exp_ps1, tab:exp_ps2).

The paper's "number of permutations" is read as model evaluations for each instance: KS-300 asks the model 300 times.
Its l2-error is the mean SQUARED distance, as in the published code, and stands beside ``squared_l2`` here. A row whose
coalitions the budget covers is enumerated by our estimators and by shap's KernelSHAP: it is then exact, at fewer
evaluations than the budget (``evaluations_per_row`` says how many were made). Rank ACC asks for exact ties of features
that equal the reference: the regressions of captum and shapiq give them tiny numbers, and lose by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter, process_time
from typing import Any

import numpy as np

from cortx.errors import InputError
from cortx.explanation import Explanation
from cortx.games import Game
from cortx.paper.grid import PEERS, SAMPLING
from cortx.paper.problems import closeness
from cortx.rivals import RIVALS, Rival
from cortx.rivals.sampled import Sampled

BUDGETS = (300, 2_000, 4_000, 6_000, 8_000)
LEAST_SECONDS = 0.25
"""What is faster is timed again until this much time has passed: a mean that a short disturbance does not spoil."""


def run(
    game: Game,
    rows: Any,
    truth: Any,
    *,
    budgets: Sequence[int] = BUDGETS,
    methods: Sequence[str] = (*SAMPLING, *PEERS),
    seeds: Sequence[int] = (0, 1, 2),
    rows_timed: int = 10,
) -> list[dict[str, Any]]:
    """One record for each method, budget (``"at"``) and seed.

    Time is measured on the first `rows_timed` rows, given at once to one method after the other, for each seed and
    budget, so that all meet the same machine; each method has explained a row before. ``"processor_seconds_per_row"``
    (all threads) shows where a busy machine made somebody wait. Errors and evaluations of our estimators are those of
    all rows; those of the peers, which are slow, of the timed rows (``"rows"``: how many; ``"squared_l2_timed"`` is the
    error on these rows for every method). `truth` are the exact values, an `Explanation` or (rows, players).
    """
    exact = truth.values if isinstance(truth, Explanation) else np.asarray(truth)
    if len(exact) != len(rows) or not 1 <= rows_timed <= len(rows):
        raise InputError(
            f"got {len(rows)} rows, {len(exact)} rows of truth and rows_timed={rows_timed}; "
            "give the truth of every row, and time at least one row and at most all"
        )
    timed = rows[:rows_timed]
    for method in methods:
        _rival(method, game, min(budgets), 0).explain(rows[:1])
    records = []
    for seed in seeds:
        for budget in budgets:
            for method in methods:
                rival = _rival(method, game, budget, seed)
                seconds, processor, explanation = _timed(rival, timed)
                record = {"method": method, "at": budget, "seed": seed, "seconds_per_row": seconds / rows_timed}
                record["processor_seconds_per_row"] = processor / rows_timed
                record["squared_l2_timed"] = _scores(explanation, exact)["squared_l2"]
                if isinstance(rival, Sampled) and rows_timed < len(rows):
                    explanation = rival.explain(rows)
                records.append(record | _scores(explanation, exact) | {"rows_timed": rows_timed})
    return records


def _rival(method: str, game: Game, budget: int, seed: int) -> Rival:
    build: Any = RIVALS[method]
    rival: Rival = build(game, row_budget=budget, seed=seed)
    return rival


def _timed(rival: Rival, rows: Any) -> tuple[float, float, Explanation]:
    """Seconds that explaining the rows takes, on the clock and of the processor, and the explanation."""
    started, busy, repeats = perf_counter(), process_time(), 0
    while repeats == 0 or perf_counter() - started < LEAST_SECONDS:
        explanation, repeats = rival.explain(rows), repeats + 1
    return (perf_counter() - started) / repeats, (process_time() - busy) / repeats, explanation


def _scores(explanation: Explanation, exact: Any) -> dict[str, Any]:
    n_rows = len(explanation)
    costs = {"evaluations_per_row": explanation.evaluations / n_rows, "rows": n_rows}
    return closeness(explanation, exact[:n_rows]) | costs
