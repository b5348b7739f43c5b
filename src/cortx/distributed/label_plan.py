"""A budget for labels in a folder becomes a plan: which rows get how many evaluations, beside those paid for before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortx.errors import BudgetError
from cortx.estimators.block import MOST_PLAYERS
from cortx.explainer.label_folder import Spent
from cortx.explainer.labels import LABEL_BUDGET, LEAST_LABELS

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
HELD_ROWS = 100_000
"""Rows of a sample, unless the budget pays for more of the dearest."""
WORTH = 4
"""A further round is worth it from this part of what a row has cost."""


@dataclass(frozen=True, eq=False)
class Ask:
    """Rows, by their places in the sample, that get the same round with the same budget."""

    round: int
    values: int
    """Values v(S) of each row, v(all) included, at most."""
    index: IntArray
    costs: IntArray
    """Model evaluations of each row, (rows,): exactly."""


@dataclass(frozen=True, eq=False)
class LabelPlan:
    """What a run will spend, and what was spent before."""

    budget: int
    rows: int
    """The rows that are to have labels."""
    seen: int
    allowance: int
    """Model evaluations of one row in all rounds, at most."""
    spent: int
    """What the labels in the folder have cost, the base value included."""
    labelled: int
    asks: tuple[Ask, ...]
    words: Words
    exact_costs: Array
    """Of the sample's rows, in the order of `words`: what enumerating them takes."""

    @property
    def total(self) -> int:
        """Model evaluations that this run will spend."""
        return sum(int(ask.costs.sum()) for ask in self.asks)

    def exact_rows(self, spent: Spent) -> int:
        """Rows of the sample whose labels are exact."""
        return int((spent.of(self.words).dearest == self.exact_costs).sum())

    def __str__(self) -> str:
        """The plan in words."""
        lines = [f"plan for {self.budget:,} model evaluations, for {self.rows:,} of {self.seen:,} rows:"]
        lines.append(f"  {self.spent:>12,}  paid for: {self.labelled:,} rows are labelled")
        for ask in self.asks:
            what = "labels" if ask.round == 0 else f"round {ask.round + 1}"
            exact = int((ask.costs == self.exact_costs[ask.index]).sum())
            how = f"at most {int(ask.costs.max()):,} each, {exact:,} of them exact"
            lines.append(f"  {int(ask.costs.sum()):>12,}  {what} of {len(ask.index):,} rows ({how})")
        left = self.budget - self.spent - self.total
        if left > 0.02 * self.budget:
            why = "not needed: every label is exact" if self._all_exact else "too little for another round"
            lines.append(f"  {left:>12,}  {why}")
        return "\n".join(lines)

    @property
    def _all_exact(self) -> bool:
        return bool((self.allowance >= self.exact_costs[: self.rows]).all())


def most_rows(budget: int, n_columns: int) -> int:
    """Rows that a sample holds when nobody says how many to label."""
    dearest = min(LABEL_BUDGET, 2**n_columns)
    return int(max(HELD_ROWS, budget // dearest))


def exact_costs(active: IntArray, copies: int) -> Array:
    """Evaluations that enumerating rows with so many active players takes; infinite where nobody would."""
    counts = np.minimum(active, MOST_PLAYERS)
    costs: Array = 1 + copies * np.maximum(0.0, 2.0**counts - 2)
    return np.where(active <= MOST_PLAYERS, costs, np.inf)


def plan_labels(
    active: IntArray,
    words: Words,
    spent: Spent,
    *,
    budget: int,
    rows: int | None,
    seen: int,
    copies: int,
    n_players: int,
) -> LabelPlan:
    """Decides what each row of a sample gets; `active` and `words` are (rows,), in the order of priority.

    The allowance A is the largest for which all rows may spend min(A, what an exact label takes) and the budget still
    holds. A row that is finished never changes it: however often a run is killed, the next one finds the same A.
    """
    exact = exact_costs(active, copies)
    paid = int(spent.evaluations.sum()) + copies  # the base value
    if rows is None:
        precise = max(LABEL_BUDGET, copies * (4 * n_players + 2))
        known = spent.of(words)
        for_these = budget - (paid - int(known.evaluations.sum()))  # labels of rows that are no longer here stay
        affordable = int(np.searchsorted(np.cumsum(np.minimum(exact, precise)), for_these, side="right"))
        rows = max(affordable, LEAST_LABELS, int((known.rounds > 0).sum()))
    rows = min(rows, len(words))
    before = spent.of(words[:rows])
    exact_here, active = exact[:rows], active[:rows]
    elsewhere = paid - int(before.evaluations.sum())
    done = (before.rounds > 0) & (before.dearest == exact_here)
    allowance = _allowance(budget - elsewhere, before.evaluations, exact_here, done)
    left = np.where(done, 0, np.maximum(0, allowance - before.evaluations))
    # With fewer values than these the standard errors are not worth having.
    least = np.minimum(exact_here, 1 + copies * (6.0 * active + 5))
    fresh = before.rounds == 0
    if fresh.any() and least[fresh].max() > allowance:
        needed = int(least[fresh].max())
        enough = elsewhere + _total(needed, before.evaluations, exact_here, done)
        raise BudgetError(
            f"budget={budget:,} is too small: it leaves {allowance:,} evaluations for each of {rows:,} rows, and a "
            f"label needs {needed:,}; give a budget of {int(enough):,} or more, or ask for fewer rows"
        )
    worth = (left >= least) & ((left * WORTH >= before.evaluations) | (left >= exact_here)) & (left > 0)
    values = 1 + (left - 1) // copies
    sampled = 1 + copies * ((values - 1) // 2 * 2)
    costs = np.where(left >= exact_here, exact_here, sampled).astype(np.int64)
    keys = np.stack([before.rounds, values])[:, worth]
    asks = []
    for round_, value in np.unique(keys, axis=1).T:
        index = np.flatnonzero(worth & (before.rounds == round_) & (values == value))
        asks.append(Ask(int(round_), int(value), index, costs[index]))
    plan = LabelPlan(budget, rows, seen, allowance, paid, len(spent), tuple(asks), words, exact)
    assert plan.total == 0 or paid + plan.total <= budget
    return plan


def _allowance(budget: int, spent: IntArray, exact: Array, done: npt.NDArray[np.bool_]) -> int:
    """The largest allowance for which the budget holds."""
    low, high = 0, max(0, budget)
    while low < high:
        middle = (low + high + 1) // 2
        holds = _total(middle, spent, exact, done) <= budget
        low, high = (middle, high) if holds else (low, middle - 1)
    return low


def _total(allowance: int, spent: IntArray, exact: Array, done: npt.NDArray[np.bool_]) -> float:
    """Sum of max(spent, min(allowance, spent + exact)); of rows whose labels are exact, what they have spent."""
    open_ = np.maximum(spent, np.minimum(allowance, spent + exact))
    return float(np.where(done, spent, open_).sum())
