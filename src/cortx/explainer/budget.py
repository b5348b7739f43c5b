"""A budget of model evaluations becomes a plan: who is labelled, how precisely, and what is kept aside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import BudgetError, InputError
from cortx.estimators.block import enumerable
from cortx.estimators.coalitions import CHUNK
from cortx.estimators.kernel_shap import expected_pairs, population, size_mass
from cortx.estimators.permutation import expected_walk_values, walk_values
from cortx.explainer.labels import least_values
from cortx.explainer.pairs import ValuePairs, draw_pairs_of
from cortx.explainer.refine import longest_round, rounds_cost
from cortx.explainer.store import Ask
from cortx.games import Game, Rows
from cortx.games.fingerprint import N_PROBES
from cortx.games.trees import CHECKED
from cortx.games.value_store import N_CHECKED, checked_values
from cortx.images import ImageSchema
from cortx.seeding import numpy_generator
from cortx.training.positives import count_values
from cortx.training.recipe import Recipe
from cortx.training.resnet import stem_stride
from cortx.training.stream import SCOUTS, mirrored_evaluations
from cortx.training.surrogate import own_resnet
from cortx.training.tree_teacher import teachable

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
Mode = Literal["trees", "student", "enumerate", "sample", "stream"]

TAUGHT_PER_ROW, TAUGHT_BUDGETS = 4, (50_000, 1_000_000)
"""The default budget with a student: so many values v(S) for each row, within limits; a background multiplies it."""
PER_ROW, DEFAULT_BUDGETS = 100, (500_000, 5_000_000)
"""The same without a student."""
PER_IMAGE, IMAGE_BUDGETS = 1_000, (500_000, 50_000_000)
IMAGE_PRECISE = 512
"""The most that one precise label of an image may cost, for each of its parts."""
KNOWN = 2_000
"""Images that say what the network knows well (`Difficulty`)."""
LEAST_BATCHES, ENOUGH_BATCHES = 50, 200
"""Fewer batches teach nothing; and as long as there are fewer than enough, each image is asked about less often."""
FEWEST_PAIRS = 2
IMITATION_SHARE = 0.2
LEAST_CALIBRATION, MOST_CALIBRATION = 50, 500
LEAST_TRAINING, LEAST_VALIDATION = 50, 10
CALIBRATION_SHARE, IMAGE_CALIBRATION_SHARE = 0.15, 0.06
PRETRAINING_SHARE = 0.4
PRECISE = 8_192
"""The most values v(S) of one precise label: enough to enumerate 13 players."""
JUDGED_SHARE, LEAST_JUDGED, WELL_JUDGED = 0.4, 32, 256
"""With a student: the share of the budget for validation and calibration rows (half for their labels, half for trying
refinement on them), the fewest values v(S) of a label, and the number of values from which on more rows are labelled
instead: noise that is larger than what it hides cannot be taken out well."""
EVEN = 10
"""With one calibration row fewer than a multiple of this, 90% bounds hold for just 90% of fresh rows: the rank of the
score that decides need not be rounded up."""
LEAST_PAIRS = 200
"""Fewer pairs of values teach a student nothing."""
MOST_ADVICE = 30
"""How often a budget is tried before it is advised."""
WITHOUT_BOUNDS = ", or fit with n_labels= and without bounds"
ENUMERATE_ROWS = 100
"""Rows are enumerated if the budget pays for so many; else many are sampled."""


@dataclass(frozen=True)
class Stream:
    """How an image explainer learns from fresh labels, and for how long from masked images before that."""

    batches: int
    """Batches of images that the model is asked about."""
    pairs: int
    """Pairs of coalitions of each of their images."""
    imitation_steps: int


@dataclass(frozen=True, eq=False)
class Plan:
    """How a fit spends its evaluations. Rows are positions in the table; no row has two of the three roles."""

    budget: int
    mode: Mode
    """"trees": exact labels of all rows, from the leaves of the model's trees, for nothing; "student": values v(S) of
    many rows, from which a student learns the game; "enumerate": few rows, all coalitions,
    free masked copies; "sample": many rows, noisy but unbiased labels; "stream" (images): such labels for all rows,
    fresh in every step of the training."""
    train: IntArray
    validation: IntArray
    calibration: IntArray
    pretraining: IntArray
    train_asks: tuple[Ask, ...]
    """Independent rounds whose labels are averaged."""
    precise: Ask
    """How validation and calibration rows are labelled."""
    expected: dict[str, int]
    """Model evaluations of each stage: what will be spent, but for a stop before all training labels are bought.

    Kept labels of an earlier fit are in it, and rows with equal content once. "checks" are the base value and the
    outputs that recognise the model, for a saved explainer and for kept labels. Where pairs of permutations may visit a
    coalition twice, the mean; and with a student too, where labels and refinement may.
    """
    n_rows: int
    """Rows of the table."""
    longest_round: int
    """Values v(S) of each calibration row up to which refinement is tried on it."""
    stream: Stream | None = None
    """For images: how long to learn from fresh labels."""
    absent: str = ""
    """What replaces an absent feature, and what a v(S) costs, in words."""
    pairs: ValuePairs | None = None
    """For a student: the values that it learns from."""
    kept_back: int = 0
    """Evaluations that labels and refinement need only if they happen to ask for different coalitions."""

    @property
    def total(self) -> int:
        return sum(self.expected.values())

    def __repr__(self) -> str:
        return str(self)  # what a notebook shows

    def __str__(self) -> str:
        """The plan in words."""
        checks = "choose the best moment" if self.mode in ("enumerate", "sample") else "see where it errs"
        kind, refined, compared = "precise labels", ", and refining them", ""
        if self.mode == "student":
            kind = f"labels of up to {self.precise.values:,} values"
        elif self.mode == "trees":
            kind, refined, compared = "exact labels", "", "comparing trees with the model, "
        parts = {
            **self._learned_words(),
            "validation": f"{kind} of {len(self.validation):,} rows to {checks}",
            "calibration": f"{kind} of {len(self.calibration):,} rows for the bounds{refined}",
            "checks": f"the base value, {compared}and outputs that recognise the model",
        }
        lines = [f"plan for {self.budget:,} model evaluations:"]
        lines += [f"  {self.expected[stage]:>12,}  {words}" for stage, words in parts.items()]
        left = self.budget - self.total - self.kept_back
        if self.kept_back > 0.005 * self.budget:
            lines.append(f"  {self.kept_back:>12,}  reserved: spent only where labels ask for no coalition twice")
        if left > 0.02 * self.budget:
            lines.append(f"  {left:>12,}  {self._why_left()}")
        if self.absent:
            lines.append(f"absent features are replaced by {self.absent}")
        return "\n".join(lines)

    def _learned_words(self) -> dict[str, str]:
        """What the explainer learns from, stage by stage."""
        if self.mode == "trees":
            return {"training": f"exact labels of {len(self.train):,} rows and made-up ones, from the model's trees"}
        if self.pairs is not None:
            n_rows = len(np.unique(self.pairs.row))
            learned = f"values of {n_rows:,} row{'s' if n_rows > 1 else ''} from which a student learns the game"
            return {"student": f"{learned}, to label rows of the table and made-up ones"}
        kind = "sampled" if self.mode == "sample" else "fresh in every step"
        each = self.expected["training"] // len(self.train)
        how = "all coalitions" if self.mode == "enumerate" else f"{kind}, {each:,} each"
        return {
            "pretraining": f"pre-training on {len(self.pretraining):,} rows",
            "training": f"labels of {len(self.train):,} rows to learn from ({how})",
        }

    def _why_left(self) -> str:
        if self.mode == "trees":
            return "not needed: trees tell their Shapley values for nothing"
        if self.pairs is not None:
            return "not needed: the student learns from all that helps it"
        labelled = len(self.train) + len(self.validation) + len(self.calibration)
        if labelled < self.n_rows:
            return "left over"
        return "not needed: every row is labelled" if self.mode == "enumerate" else "too little for another round"


def total_budget(game: Game, rows: Rows, budget: int | None, recipe: Recipe) -> int:
    """The budget of a fit, checked; the default where none is given. It asks the model for nothing."""
    if budget is None:
        each, limits = (PER_ROW, DEFAULT_BUDGETS) if recipe.student is None else (TAUGHT_PER_ROW, TAUGHT_BUDGETS)
        if game.of_images:
            each, limits = PER_IMAGE, IMAGE_BUDGETS
        budget = game.evaluations_per_value * int(np.clip(each * len(rows), *limits))
    if isinstance(budget, bool) or not isinstance(budget, (int, np.integer)) or budget < 1:
        raise InputError(f"budget must be a positive whole number of model evaluations, got {budget!r}")
    return int(budget)


def make_plan(game: Game, rows: Rows, budget: int | None, recipe: Recipe, seed: int, n_checked: int = 0) -> Plan:
    """Decides how to spend the budget, before any of it is spent but for the base value.

    A larger budget keeps the roles of rows: labels made for a smaller one are used again. (With a student some rows
    that taught may judge then, and the values paid for them teach no longer.) `n_checked` is the number of rows whose
    outputs will be compared with those of kept labels; it changes no role.
    """
    budget = total_budget(game, rows, budget, recipe)
    least_rows = max(LEAST_CALIBRATION + LEAST_TRAINING, game.n_outputs)
    if len(rows) < least_rows:
        raise InputError(
            f"the table has {len(rows)} rows and the model {game.n_outputs} outputs; a fit with a budget needs at "
            f"least {least_rows} rows, {LEAST_CALIBRATION} of them for calibration; give more rows, or use n_labels="
        )
    try:
        return _plan_of(game, rows, budget, recipe, seed, n_checked)
    except _TooSmall as refused:
        why, enough = refused, _round_up(refused.least)
    for _ in range(MOST_ADVICE):  # a larger budget may have other plans, which cost more
        try:
            _plan_of(game, rows, enough, recipe, seed, n_checked)
            break
        except _TooSmall as refused:
            enough = _round_up(max(refused.least, 1.2 * enough))
    raise BudgetError(f"budget={budget:,} is too small: {why}; give at least {enough:,}{why.instead}") from None


def _shared_out(order: IntArray, undecided: BoolArray) -> IntArray:
    """Rows in an order whose first ones validate, whose last ones calibrate, and whose middle is learned from.

    Rows that are not `undecided`, (rows,), judge nothing as long as there are others, of which half are learned from.
    """
    some, decided = order[undecided[order]], order[~undecided[order]]
    if len(decided) == 0:
        return order
    eighth, half = len(some) // 8, len(decided) // 2
    validate, learn, calibrate = np.split(some, [eighth, 5 * eighth])
    return np.concatenate([validate, decided[:half], learn, decided[half:], calibrate])


class _TooSmall(BudgetError):
    """A budget too small for a plan, and what would pay for that plan."""

    def __init__(self, why: str, least: float, instead: str = "") -> None:
        super().__init__(why)
        self.least, self.instead = least, instead


def _plan_of(game: Game, rows: Rows, budget: int, recipe: Recipe, seed: int, n_checked: int) -> Plan:
    """The plan for a budget; `_TooSmall` where it pays for none."""
    order = numpy_generator(seed, "roles").permutation(len(rows))
    planner = _Planner(game, rows, budget, recipe, order, seed, n_checked)
    if game.of_images:
        plan = planner.stream()
    else:
        taught = None
        if recipe.student is not None:
            trees = teachable(game, rows)
            shared = replace(planner, order=_shared_out(order, rows.undecided))
            taught = shared.student() if trees is None else shared.trees(0 if trees.checked else CHECKED)
        planner = replace(planner, recipe=replace(recipe, student=None))  # what follows buys labels alone
        plan = taught or planner.enumerate() or planner.sample()
    return replace(plan, absent=game.absent_words)


@dataclass(frozen=True, eq=False)
class _Planner:
    """Rows in a random order: calibration takes them from its end, labels to learn from at its start."""

    game: Game
    rows: Rows
    budget: int
    recipe: Recipe
    order: IntArray
    seed: int
    n_checked: int = 0

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

    @property
    def checks(self) -> int:
        """Evaluations for the base value and for the outputs that recognise the model."""
        return self.game.base_evaluations + min(N_PROBES, len(self.rows))

    @property
    def spendable(self) -> int:
        """What is left beside checks; those of kept labels are always reserved, so that they change no plan."""
        values = self.copies * checked_values(self.copies) if self.recipe.student is not None else 0
        return self.budget - self.checks - N_CHECKED - values

    def trees(self, n_compared: int) -> Plan:
        """Labels from the model's trees: all rows learn, but for as many as can judge; only checks are paid for."""
        n_calibration, n_validation = self._judges(np.inf)
        calibration, learners = self.order[-n_calibration:], self.order[:-n_calibration]
        validation, learners = learners[:n_validation], learners[n_validation:]
        unlike = learners[self._unlike(learners, np.concatenate([validation, calibration]))]
        learners = unlike if len(unlike) > 1 else learners
        roles = (learners, validation, calibration, learners)
        plan = self._plan("trees", roles, (), Ask("tree", 0), np.zeros(len(self.rows)), {"training": 0.0})
        plan.expected["checks"] += n_compared
        if plan.total > self.budget:
            raise _TooSmall(
                f"comparing the trees with the model and recognising it later takes {plan.total:,} evaluations",
                plan.total,
            )
        return plan

    def student(self) -> Plan | None:
        """Values of pairs of coalitions, evenly over all rows; some rows are kept aside to judge what is learned.

        None where rows and players are so few that all their pairs teach a student nothing.
        """
        judged = JUDGED_SHARE * self.budget / self.copies / 2  # the other half refines these rows
        n_calibration, n_validation = self._judges(judged)
        each = _power_of_two(judged / (n_calibration + n_validation), PRECISE)
        ask = Ask("unbiased", each + 1, corrects=True)
        costs = ask.costs(self.rows.active.sum(axis=1), self.game)
        calibration, learners = self.order[-n_calibration:], self.order[:-n_calibration]
        validation, learners = learners[:n_validation], learners[n_validation:]
        learners = learners[self._unlike(learners, np.concatenate([validation, calibration]))]
        spending = self._precise_spending(costs, validation, calibration)
        left = self.spendable - sum(spending.values())
        pairs = draw_pairs_of(self.rows, learners, left, self.copies, self.seed, self.game.n_outputs)
        if len(pairs) < LEAST_PAIRS and left - pairs.costs(self.copies).sum() >= 2 * self.copies:
            return None
        if len(pairs) < LEAST_PAIRS:
            least = self.budget - left + 2 * self.copies * LEAST_PAIRS
            raise _TooSmall(
                f"labels of {n_calibration + n_validation} rows that judge the explainer cost about "
                f"{sum(spending.values()):,.0f} evaluations",
                least,
            )
        spending["student"] = float(pairs.costs(self.copies).sum())
        roles = (learners, validation, calibration, learners)
        plan = self._plan("student", roles, (), ask, costs, spending)
        refined = plan.longest_round
        twice = {
            "validation": self._asked_twice(each, 0, validation),
            "calibration": self._asked_twice(each, refined, calibration, validation),
        }
        expected = {stage: round(cost - twice.get(stage, 0.0)) for stage, cost in plan.expected.items()}
        return replace(plan, pairs=pairs, expected=expected, kept_back=plan.total - sum(expected.values()))

    def _asked_twice(self, values: int, refined: int, index: IntArray, *before: IntArray) -> float:
        """Evaluations that labels of `values` values v(S) and refinement up to `refined` of them spare on average.

        Unbiased pairs are drawn with replacement, evenly over sizes; refinement draws different ones.
        """
        spared = np.zeros(self.game.n_players + 1)
        active = self.rows.active[index[self._new(index, *before)]].sum(axis=1)
        for n in np.unique(active[active > 1]):
            rounds = int(rounds_cost(np.array([n]), refined)[0])
            if enumerable(int(n), values):
                spared[n] = rounds
                continue
            most, pairs = population(int(n)), values // 2
            missed = pairs * 2 / (n - 1) * size_mass(int(n)) * np.log1p(-1 / np.maximum(most, 1 + 1e-12))
            with np.errstate(divide="ignore"):  # a size of which all are asked for
                missed += np.log1p(-np.minimum(1.0, expected_pairs(int(n), rounds // 2, "leverage") / most))
            spared[n] = 2 * pairs + rounds - 2 * float((-np.expm1(missed) * most).sum())
        return float(self.copies * np.maximum(0.0, spared)[active].sum())

    def _judges(self, values: float) -> tuple[int, int]:
        """How many rows calibrate and validate, given so many values v(S) for both: three of four calibrate."""
        least = LEAST_CALIBRATION + LEAST_VALIDATION
        undecided = int(self.rows.undecided.sum())
        most = max(least, min(MOST_CALIBRATION * 4 // 3, len(self.order) // 3, undecided // 2))
        count = int(np.clip(values / _power_of_two(values / least, WELL_JUDGED), least, most))
        wanted = count - max(LEAST_VALIDATION, min(count // 4, count - LEAST_CALIBRATION))
        even = EVEN * max(round((wanted + 1) / EVEN), LEAST_CALIBRATION // EVEN + 1) - 1
        n_calibration = even if even <= count - LEAST_VALIDATION else wanted
        return n_calibration, count - n_calibration

    def enumerate(self) -> Plan | None:
        """A part of the table with all coalitions, and free masked copies; None if too few rows can be paid for."""
        exact, most = self.exact, int(self.rows.active.sum(axis=1).max())
        if 2**most > CHUNK:  # without free copies, many noisy labels teach more
            return None
        n_calibration = self._calibration_rows(float(exact.mean()))
        calibration, learners = self.order[-n_calibration:], self.order[:-n_calibration]
        last = learners[::-1][: self.recipe.pretrain.most_rows]
        costs = np.cumsum(1.0 + self._positives_costs(last))
        n_pretraining = max(2, int(np.searchsorted(costs, PRETRAINING_SHARE * self.budget, side="right")))
        left = self.spendable - self._calibration_spending(exact, calibration) - costs[n_pretraining - 1]
        label_costs = np.where(self._new(learners, calibration), exact[learners], 0.0)
        affordable = int(np.searchsorted(np.cumsum(label_costs), left, side="right"))
        if affordable < min(ENUMERATE_ROWS, len(learners)):
            return None
        # The first few rows and then every tenth (or what the share says) validate: more rows never change their roles.
        place = np.arange(affordable)
        validates = (place < LEAST_VALIDATION) | (place % max(2, round(1 / self.recipe.validation_share)) == 0)
        train, validation = learners[:affordable][~validates], learners[:affordable][validates]
        others = np.setdiff1d(last[:n_pretraining], validation)
        unlike = others[self._unlike(others, validation)]
        pretraining = unlike if len(unlike) > 1 else others
        ask = Ask("auto", 2**most)
        spending = {
            "pretraining": len(pretraining) + self._positives_costs(pretraining).sum(),
            "training": self._spending(exact, train, validation, calibration),
        }
        return self._plan("enumerate", (train, validation, calibration, pretraining), (ask,), ask, exact, spending)

    def sample(self) -> Plan:
        """Noisy but unbiased labels for as many rows as the budget pays for, then for all of them again."""
        precise, costs, calibration, validation, learners = self._precise_rows()
        reserved = sum(self._precise_spending(costs, validation, calibration).values())
        left = self.spendable - reserved
        new = self._new(learners)
        # Rows that are equal to one that validates teach nothing, unless nearly all are.
        unlike = self._unlike(learners, validation)
        if unlike[: LEAST_TRAINING - LEAST_VALIDATION].sum() < 2:
            unlike[:] = True
        pretrains = unlike & (np.cumsum(unlike) <= self.recipe.pretrain.most_rows)
        positives = np.zeros(len(learners))
        positives[pretrains] = self._positives_costs(learners[pretrains])
        pair = np.where(new, self._walk_costs(learners, 1, walk_values), 0.0)
        after = np.cumsum(pair + positives)
        count = int(np.searchsorted(after, left, side="right"))
        if count < LEAST_TRAINING - LEAST_VALIDATION:
            least = self.budget - left + after[:LEAST_TRAINING][-1]
            raise _TooSmall(
                f"{len(calibration)} precise labels for calibration alone cost about "
                f"{self._spending(costs, calibration):,.0f} evaluations",
                least,
                WITHOUT_BOUNDS,
            )
        train, new = learners[:count], new[:count]
        n_players, n_rows = self.game.n_players, len(train)
        asks: tuple[Ask, ...] = (Ask.walk(n_players, 1),)
        most, mean, pairs = after[count - 1], pair[:count].sum(), 1
        # More than every row once: further rounds, a quarter of what was spent so far, make each label firmer.
        while n_rows == len(learners) and mean / n_rows < self.exact.max():
            more = max(1, pairs // 4)
            most += self._walk_costs(train, more, walk_values)[new].sum()
            if most > left:
                break
            asks = (*asks, Ask.walk(n_players, more, round=len(asks)))
            mean, pairs = mean + self._walk_costs(train, more, expected_walk_values)[new].sum(), pairs + more
        spending = {"pretraining": positives[:count].sum(), "training": mean}
        roles = (train, validation, calibration, train[pretrains[:count]])
        return self._plan("sample", roles, asks, Ask("auto", precise), costs, spending)

    def _precise_rows(self) -> tuple[int, Array, IntArray, IntArray, IntArray]:
        """Values v(S) of a precise label, what it costs each row, and who calibrates, validates and learns."""
        n_calibration = self._calibration_rows(float(np.minimum(self.exact, self.most_precise).mean()))
        affordable = np.clip(
            self.calibration_share * self.budget / n_calibration, self.least_precise, self.most_precise
        )
        # In powers of two, so that a slightly larger budget finds the same labels.
        precise = max(2 ** int(np.log2(affordable / self.copies)), self.least_values)
        costs = Ask("auto", precise).costs(self.rows.active.sum(axis=1), self.game)
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
        again = own * len(calibration)
        reserved = sum(self._precise_spending(costs, validation, calibration).values()) + again
        size = min(config.batch_size, len(learners))
        known = own * min(KNOWN, len(learners))
        pretraining = (1 + own) * len(learners) + own * len(validation)
        pretraining += SCOUTS * size * (2 * config.pairs + 1 + own)
        pretraining += mirrored_evaluations(config, len(learners)) + int(self._positives_costs(learners).sum())
        left = self.spendable - reserved - pretraining - known
        schema, encoder = self.game.schema, self.recipe.encoder
        assert isinstance(schema, ImageSchema)
        settings = {
            "n_channels": schema.n_channels,
            "n_outputs": self.game.n_outputs,
            "width": encoder.width,
            "stride": encoder.stride or stem_stride(schema.size),
        }
        knows = own_resnet(self.game, **settings) is not None
        imitation = 0 if knows else max(0, int(min(config.imitation_steps, IMITATION_SHARE * left / size)))
        pairs, each = config.pairs, size * (2 * config.pairs + 1 + own)
        while pairs > FEWEST_PAIRS and left - imitation * size < ENOUGH_BATCHES * each:
            pairs = max(FEWEST_PAIRS, pairs // 2)
            each = size * (2 * pairs + 1 + own)
        batches = int((left - imitation * size) // each)
        if batches < LEAST_BATCHES:
            least = self.budget - left + LEAST_BATCHES * each / (1.0 if knows else 1 - IMITATION_SHARE)
            raise _TooSmall(
                f"{len(calibration) + len(validation)} precise labels cost about {reserved:,.0f} evaluations and "
                f"pre-training {pretraining:,.0f}",
                least,
                WITHOUT_BOUNDS,
            )
        spending = {"pretraining": pretraining + imitation * size, "training": float(batches * each + known)}
        roles = (np.sort(learners), validation, calibration, learners)
        plan = self._plan("stream", roles, (), Ask("auto", precise), costs, spending)
        plan.expected["calibration"] += again
        return replace(plan, stream=Stream(batches, pairs, imitation))

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
        spending |= self._precise_spending(precise_costs, validation, calibration)
        spending["checks"] = self.checks + self.n_checked
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
            longest_round=self._longest_round(precise_costs, calibration),
        )

    def _calibration_rows(self, each: float) -> int:
        """Calibration comes first: without it nothing can be promised."""
        most = max(LEAST_CALIBRATION, min(MOST_CALIBRATION, len(self.order) // 4))
        return int(np.clip(self.calibration_share * self.budget / each, LEAST_CALIBRATION, most))

    def _precise_spending(self, costs: Array, validation: IntArray, calibration: IntArray) -> dict[str, float]:
        """Evaluations of the two stages that are labelled precisely; `costs` of each row of the table, (rows,)."""
        return {
            "validation": self._spending(costs, validation),
            "calibration": self._calibration_spending(costs, calibration, validation),
        }

    def _calibration_spending(self, costs: Array, calibration: IntArray, *before: IntArray) -> float:
        """Evaluations for the labels of calibration rows, and for their refinement."""
        refined = calibration[self._new(calibration)]
        values = rounds_cost(self.rows.active[refined].sum(axis=1), self._longest_round(costs, calibration))
        return self._spending(costs, calibration, *before) + self.copies * float(values.sum())

    def _longest_round(self, costs: Array, calibration: IntArray) -> int:
        """Values v(S) of the longest round that the labels of calibration rows can judge."""
        if not costs.any():  # nothing is left to refine by asking the model
            return 0
        undecided = self.rows.undecided[calibration]  # the others have nothing to refine
        calibration = calibration[undecided] if undecided.any() else calibration
        values = float(costs[calibration].mean()) / self.copies
        exact = bool((costs >= self.exact)[calibration].all())
        return longest_round(values, exact=exact, noise_known=self.recipe.student is not None)

    def _spending(self, costs: Array, index: IntArray, *before: IntArray) -> float:
        """What labels of rows `index` cost, where those of `before` are there; rows with equal content cost once."""
        return float(costs[index][self._new(index, *before)].sum())

    def _new(self, index: IntArray, *before: IntArray) -> BoolArray:
        """(index,): whether no row with the same content stands earlier in `index`, or in `before`."""
        words = self.rows.words[index]
        new = np.zeros(len(index), dtype=bool)
        new[np.unique(words, return_index=True)[1]] = True
        for others in before:
            new &= self._unlike(index, others)
        return new

    def _unlike(self, index: IntArray, others: IntArray) -> BoolArray:
        """(index,): whether no row of `others` has the same content."""
        return ~np.isin(self.rows.words[index], self.rows.words[others])

    def _positives_costs(self, index: IntArray) -> Array:
        """Evaluations for the positives of each row, (index,)."""
        config = self.recipe.pretrain
        if config.steps == 0 or len(index) == 0:
            return np.zeros(len(index))
        values = count_values(
            self.game, self.rows.take(index), how=config.positives, count=config.n_positives,
            keep=config.keep_probability, seed=self.seed, rounds=min(config.rounds, config.steps),
        )  # fmt: skip
        return np.asarray(self.copies * values, dtype=np.float64)

    def _walk_costs(self, index: IntArray, pairs: int, walk: Walk) -> Array:
        """Evaluations for each row, (index,), and so many antithetic pairs of permutations, its own output included."""
        active = self.rows.active[index].sum(axis=1)
        values = np.zeros(self.game.n_players + 1)
        for n in np.unique(active[active > 1]):
            values[n] = walk(int(n), pairs)
        return np.asarray(1 + self.copies * values[active])


Walk = Callable[[int, int], float]
"""Values v(S) for a number of active players and of pairs: `walk_values` at most, `expected_walk_values` on average."""


def coalition_counts(rows: Rows) -> Array:
    """All coalitions of each row's active players but the empty and the full one, (rows,)."""
    counts: Array = np.maximum(0.0, 2.0 ** np.minimum(rows.active.sum(axis=1), 60) - 2)
    return counts


def _round_up(number: float) -> int:
    digits = 10 ** max(0, len(str(int(number))) - 2)
    return int(-(-number // digits) * digits)


def _power_of_two(values: float, most: int) -> int:
    """Values v(S) of a label that judges: rounds of refinement double, so a power of two wastes none."""
    return max(LEAST_JUDGED, 1 << int(min(max(1.0, values), most)).bit_length() - 1)
