"""A budget for labels in a folder becomes a plan: which rows get how many evaluations, beside those paid for before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortx.errors import BudgetError
from cortx.estimators.block import MOST_PLAYERS
from cortx.explainer.label_folder import Spent
from cortx.explainer.labels import LABEL_BUDGET, LEAST_LABELS, least_values, precise_budget

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
    sample_ends: bool = False
    """Whether the budget would pay for more rows, and the data may have them, but the sample does not."""

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
            lines.append(f"  {left:>12,}  {self._why_left()}")
        return "\n".join(lines)

    def _why_left(self) -> str:
        if not (self.allowance >= self.exact_costs[: self.rows]).all():
            return "too little for another round"
        if self.sample_ends:
            return "left: every label is exact, and the sample has no further rows; ask for more rows"
        return "not needed: every label is exact"


def most_rows(budget: int, n_players: int) -> int:
    """Rows that a sample holds when nobody says how many to label."""
    dearest = min(LABEL_BUDGET, int(exact_costs(np.array([min(n_players, MOST_PLAYERS)]), 1)[0]))
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
    more: bool = False,
) -> LabelPlan:
    """Decides what each row of a sample gets; `active` and `words` are (rows,), in the order of priority.

    `more` says that the data has, or may have, rows that are not in the sample.

    The allowance A is the largest for which all rows may spend min(A, what an exact label takes) and the budget still
    holds. A row that is finished never changes it: however often a run is killed, the next one finds the same A.
    """
    exact = exact_costs(active, copies)
    paid = int(spent.evaluations.sum()) + copies  # the base value
    sample_ends = False
    if rows is None:
        known = spent.of(words)
        after = _costs(precise_budget(n_players, copies), known.evaluations, exact, _is_exact(known, exact))
        affordable = int(np.searchsorted(np.cumsum(after - known.evaluations), budget - paid, side="right"))
        rows = max(affordable, LEAST_LABELS, int((known.rounds > 0).sum()))
        sample_ends = more and rows >= len(words)
    rows = min(rows, len(words))
    before = spent.of(words[:rows])
    exact_here, active = exact[:rows], active[:rows]
    elsewhere = paid - int(before.evaluations.sum())
    done = _is_exact(before, exact_here)
    allowance = _allowance(budget - elsewhere, before.evaluations, exact_here, done)
    left = np.where(done, 0, np.maximum(0, allowance - before.evaluations))
    least = np.minimum(exact_here, 1 + copies * (least_values(active) - 1.0))
    fresh = before.rounds == 0
    if fresh.any() and least[fresh].max() > allowance:
        needed = int(least[fresh].max())
        enough = elsewhere + _costs(needed, before.evaluations, exact_here, done).sum()
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
    plan = LabelPlan(budget, rows, seen, allowance, paid, len(spent), tuple(asks), words, exact, sample_ends)
    assert plan.total == 0 or paid + plan.total <= budget
    return plan


def _allowance(budget: int, spent: IntArray, exact: Array, done: npt.NDArray[np.bool_]) -> int:
    """The largest allowance for which the budget holds."""
    low, high = 0, max(0, budget)
    while low < high:
        middle = (low + high + 1) // 2
        holds = _costs(middle, spent, exact, done).sum() <= budget
        low, high = (middle, high) if holds else (low, middle - 1)
    return low


def _costs(allowance: int, spent: IntArray, exact: Array, done: npt.NDArray[np.bool_]) -> Array:
    """max(spent, min(allowance, spent + exact)), (rows,); of rows whose labels are exact, what they have spent."""
    open_ = np.maximum(spent, np.minimum(allowance, spent + exact))
    costs: Array = np.where(done, spent, open_)
    return costs


def _is_exact(spent: Spent, exact: Array) -> npt.NDArray[np.bool_]:
    """(rows,): whether a round enumerated the row, which takes `exact`."""
    enumerated: npt.NDArray[np.bool_] = (spent.rounds > 0) & (spent.dearest == exact)
    return enumerated
