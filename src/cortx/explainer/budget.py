"""A budget of model evaluations becomes a plan: who is labelled, how precisely, and what is kept aside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import BudgetError, InputError
from cortx.estimators.coalitions import CHUNK
from cortx.explainer.labels import least_values
from cortx.explainer.store import Ask
from cortx.games import Game, Rows
from cortx.images import ImageSchema
from cortx.seeding import numpy_generator
from cortx.training.recipe import Recipe
from cortx.training.stream import SCOUTS
from cortx.training.surrogate import own_resnet

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Mode = Literal["enumerate", "sample", "stream"]

PER_ROW, DEFAULT_BUDGETS = 100, (500_000, 5_000_000)
"""The default budget: so many evaluations for each row, within limits; a background multiplies it."""
PER_IMAGE, IMAGE_BUDGETS = 1_000, (500_000, 50_000_000)
IMAGE_PRECISE = 512
"""The most that one precise label of an image may cost, for each of its parts."""
LEAST_STEPS = 50
"""Fewer steps teach nothing."""
IMITATION_SHARE = 0.2
LEAST_CALIBRATION, MOST_CALIBRATION = 50, 500
LEAST_TRAINING, LEAST_VALIDATION = 50, 10
CALIBRATION_SHARE, IMAGE_CALIBRATION_SHARE = 0.15, 0.06
PRETRAINING_SHARE = 0.4
PRECISE = 8_192
"""The most that one precise label may cost: enough to enumerate 13 players."""
ENUMERATE_ROWS = 100
"""Rows are enumerated if the budget pays for so many beside rough labels for others; else many are sampled."""


@dataclass(frozen=True)
class Stream:
    """How long an image explainer learns from fresh labels, and before that from masked images."""

    steps: int
    imitation_steps: int


@dataclass(frozen=True, eq=False)
class Plan:
    """How a fit spends its evaluations. Rows are positions in the table; no row has two of the three roles."""

    budget: int
    mode: Mode
    """"enumerate": few rows, all coalitions, free masked copies; "sample": many rows, noisy but unbiased labels;
    "stream" (images): such labels for all rows, fresh in every step of the training."""
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
    n_rows: int
    """Rows of the table."""
    stream: Stream | None = None
    """For images: how long to learn from fresh labels."""

    @property
    def total(self) -> int:
        return sum(self.expected.values())

    def __str__(self) -> str:
        """The plan in words."""
        kind = "sampled" if self.mode == "sample" else "fresh in every step"
        each = self.expected["training"] // len(self.train)
        how = "all coalitions" if self.mode == "enumerate" else f"{kind}, {each:,} each"
        checks = "see where it errs" if self.mode == "stream" else "choose the best moment"
        parts = {
            "pretraining": f"pre-training on {len(self.pretraining):,} rows",
            "training": f"labels of {len(self.train):,} rows to learn from ({how})",
            "validation": f"precise labels of {len(self.validation):,} rows to {checks}",
            "calibration": f"precise labels of {len(self.calibration):,} rows for the bounds",
        }
        lines = [f"plan for {self.budget:,} model evaluations:"]
        lines += [f"  {self.expected[stage]:>12,}  {words}" for stage, words in parts.items()]
        left = self.budget - self.total
        if left > 0.02 * self.budget:
            lines.append(f"  {left:>12,}  {self._why_left()}")
        return "\n".join(lines)

    def _why_left(self) -> str:
        labelled = len(self.train) + len(self.validation) + len(self.calibration)
        if labelled < self.n_rows:
            return "left over"
        return "not needed: every row is labelled" if self.mode == "enumerate" else "too little for another round"


def make_plan(game: Game, rows: Rows, budget: int | None, recipe: Recipe, seed: int) -> Plan:
    """Decides how to spend the budget, before any of it is spent.

    A larger budget keeps the roles of rows: labels made for a smaller one are used again.
    """
    if budget is None:
        each, limits = (PER_IMAGE, IMAGE_BUDGETS) if game.of_images else (PER_ROW, DEFAULT_BUDGETS)
        budget = game.evaluations_per_value * int(np.clip(each * len(rows), *limits))
    if isinstance(budget, bool) or not isinstance(budget, (int, np.integer)) or budget < 1:
        raise InputError(f"budget must be a positive whole number of model evaluations, got {budget!r}")
    least_rows = max(LEAST_CALIBRATION + LEAST_TRAINING, game.n_outputs)
    if len(rows) < least_rows:
        raise InputError(
            f"the table has {len(rows)} rows and the model {game.n_outputs} outputs; a fit with a budget needs at "
            f"least {least_rows} rows, {LEAST_CALIBRATION} of them for calibration; give more rows, or use n_labels="
        )
    planner = _Planner(game, rows, int(budget), recipe, numpy_generator(seed, "roles").permutation(len(rows)))
    if game.of_images:
        return planner.stream()
    return planner.enumerate() or planner.sample()


@dataclass(frozen=True, eq=False)
class _Planner:
    """Rows in a random order: calibration takes them from its end, labels to learn from at its start."""

    game: Game
    rows: Rows
    budget: int
    recipe: Recipe
    order: IntArray

    @property
    def copies(self) -> int:
        return self.game.evaluations_per_value

    @cached_property
    def exact(self) -> Array:
        """Evaluations that enumerating each row takes, (rows,)."""
        return 1 + self.copies * coalition_counts(self.rows)

    @property
    def calibration_share(self) -> float:
        return IMAGE_CALIBRATION_SHARE if self.game.of_images else CALIBRATION_SHARE

    @property
    def most_precise(self) -> int:
        return max(PRECISE, 2 * self.least_precise, IMAGE_PRECISE * self.game.n_players if self.game.of_images else 0)

    @property
    def least_values(self) -> int:
        """Values v(S) that give KernelSHAP standard errors worth having."""
        return int(least_values(self.game.n_players))

    @property
    def least_precise(self) -> int:
        return self.copies * self.least_values

    def enumerate(self) -> Plan | None:
        """A part of the table with all coalitions, and free masked copies; None if too few rows can be paid for."""
        exact, most = self.exact, int(self.rows.active.sum(axis=1).max())
        if 2**most > CHUNK:  # without free copies, many rough labels teach more
            return None
        n_calibration = self._calibration_rows(float(exact.mean()))
        calibration, learners = self.order[-n_calibration:], self.order[:-n_calibration]
        each = self._pretraining_cost()
        wanted = min(self.recipe.pretrain.most_rows, len(learners), PRETRAINING_SHARE * self.budget / each)
        n_pretraining = max(2, int(wanted))
        left = self.budget - exact[calibration].sum() - n_pretraining * each
        affordable = int(np.searchsorted(np.cumsum(exact[learners]), left, side="right"))
        if affordable < min(ENUMERATE_ROWS, len(learners)):
            return None
        # The first few rows and then every tenth (or what the share says) validate: more rows never change their roles.
        place = np.arange(affordable)
        validates = (place < LEAST_VALIDATION) | (place % max(2, round(1 / self.recipe.validation_share)) == 0)
        train, validation = learners[:affordable][~validates], learners[:affordable][validates]
        pretraining = np.setdiff1d(learners[len(learners) - n_pretraining :], validation)
        ask = Ask("auto", 2**most)
        spending = {"pretraining": len(pretraining) * each, "training": exact[train].sum()}
        return self._plan("enumerate", (train, validation, calibration, pretraining), (ask,), ask, exact, spending)

    def sample(self) -> Plan:
        """Noisy but unbiased labels for as many rows as the budget pays for, then for all of them again."""
        precise, costs, calibration, validation, learners = self._precise_rows()
        reserved = float(costs[calibration].sum() + costs[validation].sum())
        pair = self._walk_cost(1)
        positives = self._positives_cost()
        left = self.budget - reserved
        train = learners[: max(0, int(left / (pair + positives)))]
        if len(train) < LEAST_TRAINING - LEAST_VALIDATION:
            least = reserved + LEAST_TRAINING * (pair + positives)
            raise BudgetError(
                f"budget={self.budget:,} is too small: {len(calibration)} precise labels for calibration alone cost "
                f"about {costs[calibration].sum():,.0f} evaluations; give at least "
                f"{_round_up(max(least, 1.2 * self.budget)):,}, or fit with n_labels= and without bounds"
            )
        asks: tuple[Ask, ...] = (Ask("permutation", walk_values(self.game, 1)),)
        each, pairs = pair, 1
        # More than every row once: further rounds, a quarter of what was spent so far, make each label firmer.
        while len(train) == len(learners) and each < self.exact.max():
            more = max(1, pairs // 4)
            if len(train) * (each + self._walk_cost(more) + positives) > left:
                break
            asks = (*asks, Ask("permutation", walk_values(self.game, more), round=len(asks)))
            each, pairs = each + self._walk_cost(more), pairs + more
        pretraining = train[: self.recipe.pretrain.most_rows]
        spending = {"pretraining": len(pretraining) * positives, "training": len(train) * each}
        roles = (train, validation, calibration, pretraining)
        return self._plan("sample", roles, asks, Ask("auto", precise), costs, spending)

    def _precise_rows(self) -> tuple[int, Array, IntArray, IntArray, IntArray]:
        """Values v(S) of a precise label, what it costs each row, and who calibrates, validates and learns."""
        n_calibration = self._calibration_rows(float(np.minimum(self.exact, self.most_precise).mean()))
        affordable = np.clip(
            self.calibration_share * self.budget / n_calibration, self.least_precise, self.most_precise
        )
        # In powers of two, so that a slightly larger budget finds the same labels.
        precise = max(2 ** int(np.log2(affordable / self.copies)), self.least_values)
        costs = np.minimum(self.exact, 1 + self.copies * (precise - 1))
        n_validation = max(LEAST_VALIDATION, n_calibration // 5)
        calibration, learners = self.order[-n_calibration:], self.order[:-n_calibration]
        return precise, costs, calibration, learners[:n_validation], learners[n_validation:]

    def stream(self) -> Plan:
        """Images: what precise labels and pre-training leave is spent on fresh labels, a batch in every step."""
        config = self.recipe.stream
        if config is None:
            raise InputError(
                f"the recipe {self.recipe.name!r} does not say how to spend a budget on images; give labels= or "
                "n_labels=, or use the recipe 'default'"
            )
        if self.game.n_players < 2:
            raise InputError(
                "an image of one part has nothing to share out; give at least two parts, smaller patches say"
            )
        precise, costs, calibration, validation, learners = self._precise_rows()
        # Images that are their own references: v(none) is asked for with each label, and when it is learned from.
        own = 1 if self.game.own_reference else 0
        costs = costs + 2 * own
        reserved = float(costs[calibration].sum() + costs[validation].sum())
        scouting = SCOUTS * (config.step_evaluations + own * config.batch_size)
        pretraining = len(learners) * (1 + self._positives_cost() + 2 * own) + scouting
        each = min(config.batch_size, len(learners)) * (2 * config.pairs + 1 + own)
        left = self.budget - reserved - pretraining - 1  # the base value
        schema, width = self.game.schema, self.recipe.encoder.width
        assert isinstance(schema, ImageSchema)
        settings = {"n_channels": schema.n_channels, "n_outputs": self.game.n_outputs, "width": width}
        knows = own_resnet(self.game, **settings) is not None
        imitation = 0 if knows else int(min(config.imitation_steps, IMITATION_SHARE * left / config.batch_size))
        steps = int((left - max(0, imitation) * config.batch_size) // each)
        if steps < LEAST_STEPS:
            least = reserved + pretraining + LEAST_STEPS * each / (1.0 if knows else 1 - IMITATION_SHARE)
            raise BudgetError(
                f"budget={self.budget:,} is too small: {len(calibration) + len(validation)} precise labels cost about "
                f"{reserved:,.0f} evaluations and pre-training {pretraining:,.0f}; give at least "
                f"{_round_up(max(least, 1.2 * self.budget)):,}, or fit with n_labels= and without bounds"
            )
        spending = {"pretraining": pretraining + imitation * config.batch_size, "training": float(steps * each)}
        roles = (np.sort(learners), validation, calibration, learners)
        plan = self._plan("stream", roles, (), Ask("auto", precise), costs, spending)
        return replace(plan, stream=Stream(steps, imitation))

    def _plan(
        self,
        mode: Mode,
        roles: tuple[IntArray, IntArray, IntArray, IntArray],
        train_asks: tuple[Ask, ...],
        precise: Ask,
        precise_costs: Array,
        spending: dict[str, float],
    ) -> Plan:
        """Training rows keep their order, which says who is labelled first; `precise_costs` is (rows,)."""
        train, validation, calibration, pretraining = roles
        spending |= {"validation": precise_costs[validation].sum(), "calibration": precise_costs[calibration].sum()}
        return Plan(
            budget=self.budget,
            mode=mode,
            train=train,
            validation=np.sort(validation),
            calibration=np.sort(calibration),
            pretraining=np.sort(pretraining),
            train_asks=train_asks,
            precise=precise,
            expected={stage: round(cost) for stage, cost in spending.items()},
            n_rows=len(self.order),
        )

    def _calibration_rows(self, each: float) -> int:
        """Calibration comes first: without it nothing can be promised."""
        most = max(LEAST_CALIBRATION, min(MOST_CALIBRATION, len(self.order) // 4))
        return int(np.clip(self.calibration_share * self.budget / each, LEAST_CALIBRATION, most))

    def _positives_cost(self) -> float:
        """Evaluations for the positives of each row."""
        config = self.recipe.pretrain
        asks = config.steps > 0 and config.positives != "random"
        return float(self.copies * config.n_positives * config.rounds) if asks else 0.0

    def _pretraining_cost(self) -> float:
        """Evaluations for each row: its output, its positives, its rough label."""
        pairs = self.recipe.pretrain.rough_pairs if self.recipe.pretrain.steps else 0
        return self._positives_cost() + (self._walk_cost(pairs) if pairs else 1.0)

    def _walk_cost(self, pairs: int) -> float:
        """Evaluations for each row and so many antithetic pairs of permutations, its own output included."""
        walk = 2.0 * pairs * np.maximum(0, self.rows.active.sum(axis=1) - 1)
        return float(1 + self.copies * np.minimum(walk, coalition_counts(self.rows)).mean())


def walk_values(game: Game, pairs: int) -> int:
    """Values v(S) that so many antithetic pairs of permutations ask for, v(all) included."""
    return 2 * pairs * max(1, game.n_players - 1) + 1


def coalition_counts(rows: Rows) -> Array:
    """All coalitions of each row's active players but the empty and the full one, (rows,)."""
    counts: Array = np.maximum(0.0, 2.0 ** np.minimum(rows.active.sum(axis=1), 60) - 2)
    return counts


def _round_up(number: float) -> int:
    digits = 10 ** max(0, len(str(int(number))) - 2)
    return int(-(-number // digits) * digits)
