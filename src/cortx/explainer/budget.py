"""A budget of model evaluations becomes a plan: who is labelled, how precisely, and what is kept aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import BudgetError, InputError
from cortx.explainer.store import Ask
from cortx.games import Game, Rows
from cortx.seeding import numpy_generator
from cortx.training.recipe import Recipe

IntArray = npt.NDArray[np.int64]

PER_ROW, DEFAULT_BUDGETS = 100, (500_000, 5_000_000)
"""The default budget: so many evaluations for each row, within limits; a background multiplies it."""
LEAST_CALIBRATION, MOST_CALIBRATION = 50, 500
LEAST_TRAINING, LEAST_VALIDATION = 50, 10
CALIBRATION_SHARE = 0.15
PRETRAINING_SHARE = 0.4
PRECISE = 8_192
"""The most that one precise label may cost: enough to enumerate 13 players."""
ENUMERATE_ROWS = 100
"""Rows are enumerated if the budget pays for so many beside rough labels for others; else many are sampled."""


@dataclass(frozen=True, eq=False)
class Plan:
    """How a fit spends its evaluations. Rows are positions in the table; no row has two of the three roles."""

    budget: int
    mode: Literal["enumerate", "sample"]
    """"enumerate": few rows, all coalitions, free masked copies; "sample": many rows, noisy but unbiased labels."""
    train: IntArray
    validation: IntArray
    calibration: IntArray
    pretraining: IntArray
    train_asks: tuple[Ask, ...]
    """Independent rounds whose labels are averaged."""
    precise: Ask
    """How validation and calibration rows are labelled."""
    expected: dict[str, int]
    """Evaluations of each stage, as far as they can be known before."""

    @property
    def total(self) -> int:
        return sum(self.expected.values())

    def __str__(self) -> str:
        return self.describe()

    def describe(self, evaluations_per_second: float | None = None) -> str:
        """The plan in words."""
        how = "all coalitions" if self.mode == "enumerate" else f"{sum(ask.budget for ask in self.train_asks):,} each"
        parts = {
            "pretraining": f"pre-training on {len(self.pretraining):,} rows",
            "training": f"labels of {len(self.train):,} rows to learn from ({how})",
            "validation": f"precise labels of {len(self.validation):,} rows to choose the best moment",
            "calibration": f"precise labels of {len(self.calibration):,} rows for the bounds",
        }
        lines = [f"plan for {self.budget:,} model evaluations:"]
        lines += [f"  {self.expected[stage]:>12,}  {words}" for stage, words in parts.items()]
        left = self.budget - self.total
        if left > 0.02 * self.budget:
            lines.append(f"  {left:>12,}  left unspent")
        if evaluations_per_second:
            lines.append(f"  about {self.total / evaluations_per_second:,.0f} s of the model's time, training aside")
        return "\n".join(lines)


def make_plan(game: Game, rows: Rows, budget: int | None, recipe: Recipe, seed: int) -> Plan:
    """Decides how to spend the budget, before any of it is spent.

    A larger budget keeps the roles of rows: labels made for a smaller one are used again.
    """
    if budget is None:
        budget = game.evaluations_per_value * int(np.clip(PER_ROW * len(rows), *DEFAULT_BUDGETS))
    if isinstance(budget, bool) or not isinstance(budget, (int, np.integer)) or budget < 1:
        raise InputError(f"budget must be a positive whole number of model evaluations, got {budget!r}")
    n_rows, copies, n_players = len(rows), game.evaluations_per_value, game.n_players
    least_rows = max(LEAST_CALIBRATION + LEAST_TRAINING, game.n_outputs)
    if n_rows < least_rows:
        raise InputError(
            f"the table has {n_rows} rows and the model {game.n_outputs} outputs; a fit with a budget needs at least "
            f"{least_rows} rows, {LEAST_CALIBRATION} of them for calibration; give more rows, or use n_labels="
        )
    order = numpy_generator(seed, "roles").permutation(n_rows)
    exact = exact_costs(game, rows)
    cheap = 2 * n_players + 2  # the fewest evaluations that give KernelSHAP standard errors worth having
    most_precise = max(PRECISE, copies * (2 * cheap + 1))
    precise_cost = float(np.minimum(exact, most_precise).mean())

    # Calibration, and validation beside it, come first: without them nothing can be promised.
    wanted = int(np.clip(CALIBRATION_SHARE * budget / precise_cost, 0, min(MOST_CALIBRATION, n_rows // 4)))
    per_precise = most_precise
    if wanted < LEAST_CALIBRATION:
        per_precise = int(CALIBRATION_SHARE * budget / LEAST_CALIBRATION)
        wanted = LEAST_CALIBRATION
    least_precise = copies * (2 * cheap) + 1
    precise_costs = np.minimum(exact, max(per_precise, least_precise))
    n_calibration = wanted
    calibration = np.sort(order[n_rows - n_calibration :])

    pre_cost = _pretraining_cost(game, rows, recipe)
    spent = float(precise_costs[calibration].sum())
    left = budget - spent
    learners = order[: n_rows - n_calibration]

    # Enumerating a row gives free labels of its masked copies too, but only if enough rows can be paid.
    share = PRETRAINING_SHARE * budget / pre_cost if pre_cost else 0
    n_pretraining = int(min(recipe.pretrain.most_rows, len(learners), share))
    cumulative = np.cumsum(exact[learners])
    affordable = int(np.searchsorted(cumulative, left - n_pretraining * pre_cost, side="right"))
    enumerate_ = bool(exact.max() <= most_precise) and affordable >= min(ENUMERATE_ROWS, len(learners))
    asks: tuple[Ask, ...]
    if enumerate_:
        mode: Literal["enumerate", "sample"] = "enumerate"
        labelled = learners[:affordable]
        precise = Ask("auto", int(exact.max()) + 1)
        asks = (precise,)
        train, validation = _split(labelled, recipe.validation_share)
        train_cost, validation_cost = float(exact[train].sum()), float(exact[validation].sum())
        pretraining = np.sort(learners[::-1][:n_pretraining]) if n_pretraining else np.sort(learners)[:0]
        pretraining = np.setdiff1d(pretraining, validation)
    else:
        mode = "sample"
        precise = Ask("auto", max(per_precise, least_precise))
        n_validation = max(LEAST_VALIDATION, n_calibration // 4)
        validation, rest = learners[:n_validation], learners[n_validation:]
        validation_cost = float(precise_costs[validation].sum())
        left -= validation_cost
        per_row = copies * 2 * max(1, n_players - 1) + 1  # one antithetic pair of permutations
        positives = recipe.pretrain.n_positives * copies if _asks_for_positives(recipe) else 0
        train = rest[: max(0, int(left / (per_row + positives)))]
        asks = (Ask("permutation", per_row),)
        train_cost = len(train) * per_row
        # More than every row once: further rounds, a quarter of what was spent so far, make each label firmer.
        while len(train) == len(rest):
            pairs = max(1, sum(ask.budget // per_row for ask in asks) // 4)
            if train_cost + len(train) * (pairs * per_row + positives) > left:
                break
            asks += (Ask("permutation", pairs * per_row, round=len(asks)),)
            train_cost += len(train) * pairs * per_row
        pretraining = np.sort(train[: recipe.pretrain.most_rows])
        pre_cost = positives
    if len(train) < LEAST_TRAINING - LEAST_VALIDATION:
        least = spent + validation_cost + LEAST_TRAINING * (copies * cheap + 1 + pre_cost)
        raise BudgetError(
            f"budget={budget:,} is too small: {n_calibration} precise labels for calibration alone cost about "
            f"{spent:,.0f} evaluations; give at least {_round_up(max(least, 1.2 * budget)):,}, or fit with n_labels= "
            "and without bounds"
        )
    return Plan(
        budget=int(budget),
        mode=mode,
        train=train,
        validation=np.sort(validation),
        calibration=calibration,
        pretraining=pretraining,
        train_asks=asks,
        precise=precise,
        expected={
            "pretraining": round(len(pretraining) * pre_cost),
            "training": round(train_cost),
            "validation": round(validation_cost),
            "calibration": round(spent),
        },
    )


def exact_costs(game: Game, rows: Rows) -> npt.NDArray[np.float64]:
    """Evaluations that enumerating each row takes, (rows,)."""
    n_active = rows.active.sum(axis=1)
    costs: npt.NDArray[np.float64] = 1 + game.evaluations_per_value * np.maximum(0.0, 2.0**n_active - 2)
    return costs


def _asks_for_positives(recipe: Recipe) -> bool:
    return recipe.pretrain.steps > 0 and recipe.pretrain.positives != "random"


def _pretraining_cost(game: Game, rows: Rows, recipe: Recipe) -> float:
    """Evaluations for each row: its output, its positives, its rough label."""
    if recipe.pretrain.steps == 0:
        return 1.0
    copies, n_active = game.evaluations_per_value, rows.active.sum(axis=1)
    positives = recipe.pretrain.n_positives * recipe.pretrain.rounds if _asks_for_positives(recipe) else 0
    walk = 2.0 * recipe.pretrain.rough_pairs * np.maximum(0, n_active - 1)
    rough = (
        1 + copies * np.minimum(walk, np.maximum(0.0, 2.0**n_active - 2)).mean() if recipe.pretrain.rough_pairs else 0
    )
    return float(1 + copies * positives + rough)


def _split(rows: IntArray, share: float) -> tuple[IntArray, IntArray]:
    """The first few rows and then every tenth (or what the share says) validate: more rows never change their roles."""
    place = np.arange(len(rows))
    validates = (place < LEAST_VALIDATION) | (place % max(2, round(1 / share)) == 0)
    return rows[~validates], rows[validates]


def _round_up(number: float) -> int:
    digits = 10 ** max(0, len(str(int(number))) - 2)
    return int(-(-number // digits) * digits)
