"""`shapley`: labels for rows, with standard errors, cost and progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import BudgetError, InputError
from cortx.estimators import ESTIMATORS, Block, Estimate, Estimator
from cortx.explanation import Explanation
from cortx.games import Game, Rows
from cortx.progress import progress_bar

Array = npt.NDArray[np.float64]

DEFAULT_BUDGET = 2_048
EXACT_UP_TO = 11
"""Active players up to which "auto" enumerates: 2,048 evaluations."""


def shapley(
    game: Game,
    X: Any,
    method: str | Estimator = "auto",
    *,
    budget: int | None = None,
    standard_error: float | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Explanation:
    """Shapley labels of rows.

    Parameters
    ----------
    method:
        ``"exact"``, ``"kernel"``, ``"permutation"``, ``"banzhaf"`` (paper Eq. 1), an estimator object, or
        ``"auto"``: exact where a row has few players that differ from the reference, else kernel.
    budget:
        Model evaluations for each row, at most. Default: 2,048 for sampling methods, all of them for "exact".
    standard_error:
        Stop a row early once its largest standard error is this small; `budget` (then 65,536 unless given) still holds.
    seed:
        The draws of a row depend on this and on the row's own content: not on its place, its chunk or its neighbours.
    """
    rows = game.rows(X)
    estimator = _choose(method, rows)
    if standard_error is not None and not standard_error > 0:
        raise InputError(f"standard_error must be positive, got {standard_error}")
    if budget is None:
        budget = DEFAULT_BUDGET if standard_error is None else 65_536
        if estimator.name == "exact":
            budget = 2**62
    started, spent = perf_counter(), game.evaluations
    values = np.zeros((len(rows), game.n_players, game.n_outputs))
    errors = np.zeros_like(values)
    copies = game.evaluations_per_value
    # v(all) is part of a row's budget; v(none) is evaluated once for the whole game.
    per_row = budget // copies - 1
    _check(estimator, rows, per_row, budget, copies)
    full = game.full_values(rows)
    with progress_bar(f"labels ({estimator.name})", len(rows), show=progress) as advance:
        for index, block in _blocks(game, rows, full, estimator, per_row, seed):
            estimate = _until(block, estimator, per_row, standard_error)
            targets = index[:, None], block.active
            values[targets] = estimate.values
            errors[targets] = estimate.errors
            advance(len(index), f"{game.evaluations - spent:,} evaluations")
    single = game.n_outputs == 1
    return Explanation(
        values=values[..., 0] if single else values,
        base_values=np.broadcast_to(game.base_values, full.shape).copy()[..., 0 if single else slice(None)],
        feature_names=game.players.names,
        data=rows.data,
        output_names=game.output_names,
        error_std=errors[..., 0] if single else errors,
        outputs=full[..., 0] if single else full,
        evaluations=game.evaluations - spent,
        seconds=perf_counter() - started,
        method=estimator.name,
    )


def _choose(method: str | Estimator, rows: Rows) -> Estimator:
    if isinstance(method, Estimator):
        return method
    if method == "auto":
        method = "exact" if rows.active.sum(axis=1).max() <= EXACT_UP_TO else "kernel"
    return ESTIMATORS[method]()


def _check(estimator: Estimator, rows: Rows, per_row: int, budget: int, copies: int) -> None:
    most = int(rows.active.sum(axis=1).max())
    least = estimator.least(most)
    if most > 1 and per_row < least:
        if estimator.name == "exact":
            raise BudgetError(
                f"exact needs 2**{most} evaluations per row, more than the budget of {budget:,}; "
                "use 'kernel' or 'permutation'"
            )
        background = f" (each value averages over {copies} background rows)" if copies > 1 else ""
        raise BudgetError(
            f"{estimator.name} needs at least {(least + 1) * copies:,} evaluations per row for {most} players{background}, "
            f"got budget={budget:,}"
        )
    if estimator.name == "exact" and most > 24:
        raise BudgetError(f"exact needs 2**{most} evaluations per row; use 'kernel' or 'permutation' above 20 players")


def _blocks(
    game: Game, rows: Rows, full: Array, estimator: Estimator, per_row: int, seed: int
) -> Iterator[tuple[npt.NDArray[np.int64], Block]]:
    """Rows in blocks with the same number (or pattern) of active players, small enough for the memory budget."""
    counts = rows.active.sum(axis=1)
    if estimator.shares_coalitions:
        _, group = np.unique(np.packbits(rows.active, axis=1), axis=0, return_inverse=True)
    else:
        group = counts
    for label in np.unique(group):
        members = np.flatnonzero(group == label)
        n = int(counts[members[0]])
        if n == 0:
            continue
        spends = estimator.spends(n, per_row)
        at_once = min(spends, 2**14) if estimator.shares_coalitions else spends
        # For every row and coalition: its mask a few times over, sort keys, and the outputs.
        row_bytes = at_once * (
            4 * game.n_players * (0 if estimator.shares_coalitions else 8) + 24 * game.n_outputs + 16
        )
        size = max(1, game.memory_budget // max(1, row_bytes))
        for start in range(0, len(members), size):
            index = members[start : start + size]
            active = np.nonzero(rows.active[index])[1].reshape(len(index), n)
            yield index, Block(game, rows.take(index), active, full[index], seed)


def _until(block: Block, estimator: Estimator, per_row: int, standard_error: float | None) -> Estimate:
    """One estimate with the whole budget, or rounds until the standard errors are small enough."""
    n = block.n_players
    if n == 1:
        values = block.total[:, None, :].copy()
        return Estimate(values, np.zeros_like(values))
    if standard_error is None or estimator.spends(n, per_row) >= 2**n - 2:
        return estimator.estimate(block, per_row)
    values = np.zeros((len(block.rows), n, block.full.shape[1]))
    variance = np.full_like(values, np.inf)
    spent = np.zeros(len(block.rows), dtype=np.int64)
    # The pilot is large enough for an honest standard error: several times the least.
    ask = min(per_row, max(4 * estimator.least(n), 64))
    waiting = np.arange(len(block.rows))
    for round_ in range(64):
        part = replace(
            block,
            rows=block.rows.take(waiting),
            active=block.active[waiting],
            full=block.full[waiting],
            round=round_,
        )
        estimate = estimator.estimate(part, ask)
        # Independent rounds are averaged by what they cost; an enumeration makes the others needless.
        share = 1.0 if ask >= 2**n - 2 or round_ == 0 else ask / (spent[waiting] + ask)
        share = np.broadcast_to(share, len(waiting))[:, None, None]
        previous = np.where(share < 1, variance[waiting], 0.0)
        values[waiting] = (1 - share) * values[waiting] + share * estimate.values
        variance[waiting] = (1 - share) ** 2 * previous + share**2 * estimate.errors**2
        spent[waiting] += ask
        largest = np.sqrt(variance[waiting]).max(axis=(1, 2))
        still = ~(largest <= standard_error)
        waiting, largest = waiting[still], largest[still]
        left = per_row - int(spent.max())
        if len(waiting) == 0 or left < estimator.least(n):
            break
        needed = float(np.median(spent[waiting] * ((largest / standard_error) ** 2 - 1)))
        ask = int(min(left, max(estimator.least(n), min(needed, 4 * spent.max()))))
    return Estimate(values, np.sqrt(variance))


__all__ = ["shapley"]
