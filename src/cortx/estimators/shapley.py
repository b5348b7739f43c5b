"""`shapley`: labels for rows, with standard errors, cost and progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import BudgetError, InputError
from cortx.estimators import ESTIMATORS, Block, Estimate, Estimator
from cortx.estimators.amortized import Amortized, Refinement
from cortx.estimators.block import (
    MOST_PLAYERS,
    BlockViews,
    Control,
    HasPrior,
    Prior,
    Student,
    coalition_count,
    enumerable,
)
from cortx.estimators.coalitions import CHUNK
from cortx.estimators.interactions import Pairs, screen
from cortx.estimators.kernel_shap import KernelShap
from cortx.estimators.odd_shap import POOL, OddShap, Sample
from cortx.estimators.tree import tree_labels
from cortx.estimators.unbiased import Unbiased
from cortx.explanation import Explanation, Views
from cortx.games import Game, Rows
from cortx.games.tree_readers import NotTrees
from cortx.images import ImageSchema
from cortx.progress import Advance, progress_bar
from cortx.seeding import stream_seed

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

DEFAULT_BUDGET = 2_048
"""Enough to enumerate 11 players."""
LONGEST_BUDGET = 65_536
"""Enough to enumerate 16 players, where a tolerance says when to stop."""
LONGEST_ROUNDS = 61_440
"""The default when a standard error says when to stop: too few to enumerate 16 players, for which rounds would be given
up at once, as they would make the enumeration unaffordable."""
FIRST_OF_STUDENT, OF_STUDENT = 512, 0.1
"""With a standard error a student is asked as if for so many values first, then for four times as many, until its own
variance is no more than this share of the square of that error."""
VIEWS_MEMORY = 64 * 2**20
MOST_VIEWS = 256
AUTO = ("auto", "auto-kernel")
WITH_STUDENT = "-student"
"""The end of a method's name where it corrected a student."""


def shapley(
    game: Game,
    X: Any,
    method: str | Estimator = "auto",
    *,
    budget: int | None = None,
    row_budget: int | None = None,
    standard_error: float | None = None,
    views: int | None = None,
    seed: int = 0,
    explainer: Any = None,
    unbiased: bool = False,
    student: Student | None = None,
    progress: bool | None = None,
) -> Explanation:
    """Shapley labels of rows.

    Parameters
    ----------
    method:
        ``"exact"``, ``"odd"`` (the most precise at equal evaluations: KernelSHAP without the noise of interactions),
        ``"kernel"``, ``"permutation"``, ``"banzhaf"`` (paper Eq. 1), ``"amortized"`` (kernel that starts
        from the prediction of `explainer`), ``"tree"`` (exact values from the leaves of trees, see below), an
        estimator object, or ``"auto"``: tree where the model allows it, else exact for the rows whose budget covers
        all coalitions of the players that differ from the reference, else odd (of images kernel; with a `student`
        "unbiased", random pairs of coalitions, where the budget is too small for standard errors of the regression).
        ``"auto-kernel"`` is auto with kernel instead of odd: a row's values then depend on its own content alone.
    budget:
        Model evaluations of the whole call, at most: every row may cost an equal share of it, and what a row does not
        need is not spent.
    row_budget:
        Instead of `budget`: model evaluations of each row, at most, its own output included (and its own v(none), where
        an image is its own reference); the game's v(none) comes on top, once. Default: 2,048 for sampling methods
        (times the rows of a background), all of them for "exact". A call that would pass either budget is never made.
    standard_error:
        Stop a row early once its largest standard error is this small; a budget (by default a `row_budget` of 61,440)
        still holds.
    views:
        Masked copies of each row to label besides. Rows whose coalitions are all enumerated give these labels for
        free, and `CoRTX.fit` learns a lot from them. Default: as many as 64 MiB hold, at most 256; 0 for none.
    seed:
        The draws of a row depend on this and on the row's own content: not on its place, its chunk or its neighbours.
        Only "odd" learns from a few rows of the call what to look for in all; the order of the rows does not matter.
    explainer:
        For "amortized": a fitted `CoRTX`, or any object with a method `prior(rows, outputs)` (`HasPrior`).
    unbiased:
        For "amortized": right on average whatever the explainer predicts, at the price of larger errors.
    student:
        A copy of the game that costs no model evaluation, as a control variate: ``explainer.student_``, or any object
        with methods `values` and `shapley` (`cortx.estimators.block.Student`). What is estimated is the game minus the
        student's, and the student's own Shapley values are added, so a good student leaves little to be uncertain
        about and a bad one costs precision, never truth. It must not have learned from the values v(S) that are drawn
        here. Rows that are enumerated do not need it. The student of a fit knows its own Shapley values exactly for up
        to 13 players that differ from the reference; for more it samples them, which standard errors count
        (`SampledStudent`). Where an object of your own has only `shapley`, what that misses stays in the values, and
        standard errors do not count it.

    Notes
    -----
    "tree" is for XGBoost, LightGBM, CatBoost and scikit-learn's trees and forests, alone or after the steps of a
    Pipeline that treat each column by itself, where the output is a sum over leaves: regression, margins, log-odds of
    two classes, probabilities of forests and single trees. It gives exact values for any number of players, groups,
    references and backgrounds, and evaluates no coalition: its cost is `Explanation.tree_passes`. The first call for
    a game compares the trees with the model on 16 masked rows, which are its only model evaluations. Such a model
    needs no learned explainer.
    """
    if not isinstance(game, Game):
        raise InputError(
            f"the first argument is a {type(game).__qualname__}; expected a cortx.Game, such as "
            "cortx.Game(model, reference=X)"
        )
    for name, number in (("budget", budget), ("row_budget", row_budget), ("seed", seed)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, (int, np.integer))):
            raise InputError(f"{name} must be a whole number, got {number!r}")
    rows = game.rows(X)
    if views is not None and views < 0:
        raise InputError(f"views must not be negative, got {views}")
    alone = explainer is None and not unbiased  # exact values need no student either
    if method == "tree" or (method in AUTO and alone and not game.of_images):
        if not alone or (method == "tree" and student is not None):
            raise InputError("method='tree' is exact; leave explainer=, unbiased= and student= out")
        checks = budget if budget is not None else None if row_budget is None else row_budget * len(rows)
        spent = game.evaluations
        try:
            return tree_labels(game, rows, views=views or 0, seed=seed, most_checks=checks, progress=progress)
        except NotTrees:
            if method == "tree":
                raise
        if budget is not None:
            budget -= game.evaluations - spent  # the model did not agree with its trees
    estimator = _choose(method, explainer, unbiased, game.of_images)
    _check_student(student, estimator)
    if standard_error is not None and not standard_error > 0:
        raise InputError(f"standard_error must be positive, got {standard_error}")
    copies = game.evaluations_per_value
    if budget is not None:
        if row_budget is not None:
            raise InputError("budget= is for the whole call and row_budget= for each row; give one of them")
        row_budget = _share(int(budget), game, len(rows))
    elif row_budget is None:
        row_budget = copies * (DEFAULT_BUDGET if standard_error is None else LONGEST_ROUNDS)
        if estimator.name == "exact":
            row_budget = copies * 2**MOST_PLAYERS
    ends = _ends(game, explainer)
    per_row = int(row_budget) // copies - ends
    counts = rows.active.sum(axis=1)
    if method in AUTO and student is not None and per_row < estimator.least_known(int(counts.max())):
        estimator = Unbiased()  # with so few values the regression has no standard errors
    words = f"row_budget={row_budget:,}"
    if budget is not None:
        words = f"budget={budget:,} for {len(rows):,} rows, {max(0, row_budget):,} each (row_budget= is for each row)"
    _check(estimator, int(counts.max()), per_row, words, copies, ends)
    base = 0 if game.knows_base_values else game.base_evaluations
    with game.spending(len(rows) * int(row_budget) + base if budget is None else int(budget)):
        work = _Work.start(game, rows, estimator, views, seed, explainer)
        if student is not None:
            work = replace(work, control=_Controls.of(student, work, per_row, standard_error))
        return _labels(work, method, per_row, standard_error, progress)


def _ends(game: Game, explainer: Any) -> int:
    """Values of each row that are asked for beside the estimator's: v(all), and v(none) where it is the row's own.

    Any other v(none) is evaluated once for the whole game. An explainer whose prior is asked for asks for a row's own
    v(none) again.
    """
    if game.own_reference is None:
        return 1
    return 2 if explainer is None else 3


def _labels(
    work: _Work, method: str | Estimator, per_row: int, standard_error: float | None, progress: bool | None
) -> Explanation:
    """The labels, from at most `per_row` values v(S) of each row beside its ends."""
    game, rows, estimator = work.game, work.rows, work.estimator
    counts = rows.active.sum(axis=1)
    values = np.zeros((len(rows), game.n_players, game.n_outputs))
    errors, exact = np.zeros_like(values), counts == 0
    variance: Array | None = np.zeros_like(values)
    with progress_bar(f"labels ({estimator.name})", len(rows), show=progress) as advance:
        for n in np.unique(counts[counts > 0]):
            index = np.flatnonzero(counts == n)
            most = int(min(per_row, estimator.most(int(n))))
            estimate = work.until(index, most, standard_error, advance)
            place = index[:, None], work.active(index)
            values[place], errors[place], exact[index] = estimate.values, estimate.errors, _exact_rows(estimate)
            if variance is not None and estimate.variance is not None:
                variance[place] = estimate.variance
            else:
                variance = None
    single = game.n_outputs == 1
    full, empty = work.full, work.empty
    return Explanation(
        values=values[..., 0] if single else values,
        base_values=empty.copy()[..., 0 if single else slice(None)],
        feature_names=game.players.names,
        data=rows.data,
        output_names=game.output_names,
        error_std=errors[..., 0] if single else errors,
        outputs=full[..., 0] if single else full,
        evaluations=game.evaluations - work.evaluations_before,
        row_evaluations=work.spent,
        seconds=perf_counter() - work.started,
        method="exact" if method in AUTO and exact.all() else _method_name(estimator, work.control is not None),
        exact=exact,
        views=work.all_views(),
        variance=variance[..., 0] if single and variance is not None else variance,
    )


def views_per_row(game: Game, n_rows: int, wanted: int | None = None) -> int:
    """Free masked copies of each row that are worth keeping: as many as wanted, or as memory holds."""
    if game.evaluations_per_value > 1 or game.own_reference is not None or game.removes:
        return 0  # a copy that is averaged over a background, or filled from its own image or not at all, is not a row
    if wanted is not None:
        return wanted
    # A copy of an image is learned from as an image.
    more = 4 * game.schema.n_numbers if isinstance(game.schema, ImageSchema) else 0
    return views_in_memory(game.n_players, game.n_outputs, n_rows, more)


def views_in_memory(n_players: int, n_outputs: int, n_rows: int, more_bytes: int = 0) -> int:
    """Masked copies of each row that `VIEWS_MEMORY` holds, at most `MOST_VIEWS`."""
    bytes_each = n_players * (1 + 8 * n_outputs) + 8 * n_outputs + 8 + more_bytes
    return min(MOST_VIEWS, VIEWS_MEMORY // (bytes_each * n_rows))


def check_method(method: object) -> None:
    """Raises `InputError` for what is neither a name nor an estimator."""
    if not isinstance(method, (str, Estimator)):
        raise InputError(f"method must be the name of an estimator or an Estimator, got {type(method).__name__}")


def _choose(method: str | Estimator, explainer: Any, unbiased: bool, of_images: bool) -> Estimator:
    check_method(method)
    # Either enumerates wherever its budget allows, row by row: that is what "auto" means.
    name = {"auto": "kernel" if of_images else "odd", "auto-kernel": "kernel"}.get(str(method), method)
    if not isinstance(name, Estimator) and name not in ESTIMATORS:
        known = ", ".join(map(repr, [*ESTIMATORS, "tree", *AUTO]))
        raise InputError(f"unknown estimator {name!r}; expected one of {known}")
    estimator = name if isinstance(name, Estimator) else ESTIMATORS[name]()
    if not isinstance(estimator, Amortized):
        if explainer is not None or unbiased:
            argument = "unbiased=" if explainer is None else "explainer="
            raise InputError(f"{argument} belongs to method='amortized'; got method={method!r}")
        return estimator
    if not isinstance(explainer, HasPrior):
        raise InputError(
            "method='amortized' needs explainer=: a fitted cortx.CoRTX, or an object with a method "
            f"prior(rows, outputs); got {'none' if explainer is None else type(explainer).__qualname__}"
        )
    return Amortized(unbiased=True) if unbiased else estimator


def _check_student(student: Any, estimator: Estimator) -> None:
    if student is None:
        return
    if not isinstance(student, Student):
        raise InputError(
            "student= takes an object with methods values(rows, coalitions) and shapley(rows), "
            f"got {type(student).__qualname__}"
        )
    if not estimator.efficient:
        raise InputError(f"student= corrects Shapley values; method={estimator.name!r} estimates others")


def _ask(explainer: HasPrior, data: Any, full: Array, n_players: int) -> Prior:
    """What the explainer knows of all rows and players, checked."""
    values, scales = (np.asarray(part, dtype=np.float64) for part in explainer.prior(data, full))
    expected = (len(full), n_players, full.shape[1])
    for name, part in (("values", values), ("scales", scales)):
        if part.shape != expected:
            raise InputError(
                f"the explainer's prior {name} have shape {part.shape}, expected {expected}: rows, players, outputs; "
                "was it fitted for another game?"
            )
        if not np.isfinite(part).all() or (name == "scales" and (part < 0).any()):
            raise InputError(f"the explainer's prior {name} hold NaN, infinity or, as scales, negative numbers")
    return Prior(values, scales)


def _share(budget: int, game: Game, n_rows: int) -> int:
    """What each row may cost so that all together, with the game's v(none), cost at most `budget`."""
    return (budget - game.base_evaluations) // n_rows


def _check(estimator: Estimator, most: int, per_row: int, given: str, copies: int, ends: int) -> None:
    """Refuses a budget (`given`, in words) that is too small for rows with so many active players."""
    least = estimator.least(most) if most > 1 else 0
    each = f" for each of {copies} background rows" if copies > 1 else ""
    if estimator.name == "exact" and most > 1 and not enumerable(most, per_row):
        raise BudgetError(
            f"exact needs 2**{most} evaluations per row{each}, got {given}, and the most it does is "
            f"2**{MOST_PLAYERS}; use 'kernel' or 'permutation'"
        )
    if per_row < least:
        raise BudgetError(
            f"{estimator.name} needs at least {least + ends:,} evaluations per row for {most} players{each}, "
            f"got {given}"
        )


@dataclass(frozen=True, eq=False)
class _Controls:
    """What a student says of those rows that are not enumerated."""

    control: Control
    place: IntArray
    """(rows,) where each row of the table stands in `control`; -1 where it does not."""

    @staticmethod
    def of(student: Student, work: _Work, per_row: int, standard_error: float | None) -> _Controls | None:
        """None if all rows are enumerated, with `per_row` values of each.

        With a `standard_error` rows may stop early, so they are sampled first even where all coalitions could be paid
        for, and the student's own values are sampled until they take up little of it.
        """
        game, rows = work.game, work.rows
        counts = rows.active.sum(axis=1)
        sampled = np.zeros(game.n_players + 1, dtype=bool)
        for n in np.unique(counts[counts > 1]).tolist():
            sampled[n] = standard_error is not None or not enumerable(n, int(min(per_row, work.estimator.most(n))))
        index = np.flatnonzero(sampled[counts])
        if len(index) == 0:
            return None
        place = np.full(len(rows), -1, dtype=np.int64)
        place[index] = np.arange(len(index))
        some, values = rows.take(index), per_row if standard_error is None else min(per_row, FIRST_OF_STUDENT)
        control = Control.of(student, game, some, work.stream, values)
        while standard_error is not None and values < per_row:
            if control.variance.max() <= OF_STUDENT * standard_error**2:
                break
            values = min(per_row, 4 * values)
            control = Control.of(student, game, some, work.stream, values)
        return _Controls(control, place)

    def take(self, rows: IntArray) -> Control | None:
        """None where rows are enumerated."""
        place = self.place[rows]
        return None if (place < 0).any() else self.control.take(place)


@dataclass(frozen=True, eq=False)
class _Work:
    """Rows of a game on their way to labels."""

    game: Game
    rows: Rows
    full: Array
    empty: Array
    estimator: Estimator
    seed: int
    n_views: int
    prior: Prior | None
    spent: IntArray
    """Model evaluations of each row, (rows,)."""
    started: float
    evaluations_before: int
    """Of the game, before anything was asked for."""
    control: _Controls | None = None
    views: list[Views] = field(default_factory=list)

    @classmethod
    def start(
        cls, game: Game, rows: Rows, estimator: Estimator, views: int | None, seed: int, explainer: HasPrior | None
    ) -> _Work:
        """Asks the model for the ends of the rows, and the explainer for what it expects of them."""
        started, before = perf_counter(), game.evaluations
        full, empty = game.full_values(rows), game.empty_values(rows)
        prior = None if explainer is None else _ask(explainer, rows.data, full, game.n_players)
        spent = np.full(len(rows), _ends(game, explainer), dtype=np.int64)
        n_views = views_per_row(game, len(rows), views)
        return cls(game, rows, full, empty, estimator, seed, n_views, prior, spent, started, before)

    @property
    def stream(self) -> int:
        """The seed of this estimator: two of them never share their draws, but "odd" has the pairs of "kernel"."""
        return stream_seed(self.seed, "kernel" if isinstance(self.estimator, KernelShap) else self.estimator.name)

    def all_views(self) -> Views | None:
        return Views.concatenate(self.views) if self.views else None

    def active(self, index: IntArray) -> IntArray:
        """The active players of rows that have equally many of them, (rows, n)."""
        return np.nonzero(self.rows.active[index])[1].reshape(len(index), -1)

    def prior_of(self, index: IntArray) -> Prior | None:
        """The prior of their active players, (rows, n, outputs)."""
        if self.prior is None:
            return None
        place = index[:, None], self.active(index)
        return Prior(self.prior.values[place], self.prior.scales[place])

    def until(self, index: IntArray, budget: int, standard_error: float | None, advance: Advance) -> Estimate:
        """One estimate with the whole budget, or rounds until the standard errors are small enough."""
        n = self.active(index[:1]).shape[1]
        least = self.estimator.least(n)
        if n == 1:
            values = (self.full[index] - self.empty[index])[:, None, :]
            return Estimate.enumerated(values)
        if standard_error is None or least >= coalition_count(n):
            return self.estimate(index, budget, 0, self.prior_of(index), advance)
        if self.estimator.refines:
            return self._refined(index, budget, standard_error, advance)
        values = np.zeros((len(index), n, self.full.shape[1]))
        # What is uncertain of the student's own values is the same in all rounds, so that no round averages it out.
        common = self._student_variance(index)
        variance, exact = np.zeros_like(values), np.zeros(len(index), dtype=bool)
        waiting, spent, round_ = np.arange(len(index)), 0, 0
        # The pilot is large enough for an honest standard error; every further round doubles what was spent.
        ask = min(budget, max(8 * least, 64))
        while len(waiting):
            # A round that would leave too little to enumerate is not worth it.
            if enumerable(n, budget - spent) and (
                2 * ask >= coalition_count(n) or not enumerable(n, budget - spent - ask)
            ):
                ask = coalition_count(n)
            new = self.estimate(index[waiting], ask, round_, self.prior_of(index[waiting]))
            # Independent rounds are averaged by what they cost; an enumeration makes the others needless.
            share = 1.0 if enumerable(n, ask) else ask / (spent + ask)
            values[waiting] = (1 - share) * values[waiting] + share * new.values
            exact[waiting] = _exact_rows(new)
            common[exact] = 0.0
            variance[waiting] = (1 - share) ** 2 * variance[waiting] + share**2 * (new.errors**2 - common[waiting])
            spent, round_ = spent + ask, round_ + 1
            ask = min(budget - spent, spent)
            reached = (variance + common)[waiting].max(axis=(1, 2)) <= standard_error**2
            done = reached | exact[waiting] | (ask < max(2 * least, self.estimator.least_known(n)))
            advance(int(done.sum()), "")
            waiting = waiting[~done]
        return Estimate(values, np.sqrt(variance + common), exact=exact)

    def _student_variance(self, index: IntArray) -> Array:
        """Of the student's own values, (rows, n, outputs), for rows with equally many active players."""
        control = None if self.control is None else self.control.take(index)
        if control is None:
            return np.zeros((len(index), self.active(index[:1]).shape[1], self.full.shape[1]))
        return np.take_along_axis(control.variance, self.active(index)[..., None], axis=1)

    def _refined(self, index: IntArray, budget: int, standard_error: float, advance: Advance) -> Estimate:
        """One regression for each row that grows, twice as many values a round, until its deviations are small."""
        n = self.active(index[:1]).shape[1]
        every = coalition_count(n)
        sizes, size = [], min(budget, 64)
        while size < budget and 2 * size < every:
            sizes.append(size)
            size = 2 * size
        sizes.append(every if enumerable(n, budget) else budget // 2 * 2)
        values = np.zeros((len(index), n, self.full.shape[1]))
        errors, exact = np.zeros_like(values), np.zeros(len(index), dtype=bool)
        for members in self._blocks(index, sizes[-1]):
            refinement = Refinement(self._block(index[members], 0, self.prior_of(index[members])), sizes[-1] // 2)
            left = np.arange(len(members))
            for size in sizes:
                found = refinement.estimate(left, size)
                here = members[left]
                values[here], errors[here], exact[here] = found.values, found.errors, _exact_rows(found)
                left = left[found.errors.max(axis=(1, 2)) > standard_error]
                if len(left) == 0:
                    break
            self.spent[index[members]] += refinement.block.counted
            advance(len(members), f"{self.game.evaluations:,} evaluations")
        return Estimate(values, errors, exact=exact)

    def _block(self, rows: IntArray, round_: int, prior: Prior | None) -> Block:
        return Block(
            self.game, self.rows.take(rows), self.active(rows), self.full[rows], self.stream, round_, self.n_views,
            prior, None if self.game.own_reference is None else self.empty[rows], np.zeros(len(rows), dtype=np.int64),
            None if self.control is None else self.control.take(rows),
        )  # fmt: skip

    def estimate(
        self, index: IntArray, budget: int, round_: int, prior: Prior | None, advance: Advance | None = None
    ) -> Estimate:
        """The estimator on rows with equally many active players, in blocks that fit the memory budget."""
        n, parts = self.active(index[:1]).shape[1], []
        if isinstance(self.estimator, OddShap) and self.estimator.screens(n, budget):
            estimates = self._screened(self.estimator, index, budget, round_)
        else:
            estimates = self._plain(index, budget, round_, prior)
        for members, estimate in estimates:
            parts.append((members, estimate))
            if advance is not None:
                advance(len(members), f"{self.game.evaluations:,} evaluations")
        order = np.argsort(np.concatenate([members for members, _ in parts]))
        variances = [part.variance for _, part in parts if part.variance is not None]
        return Estimate(
            np.concatenate([part.values for _, part in parts])[order],
            np.concatenate([part.errors for _, part in parts])[order],
            exact=np.concatenate([_exact_rows(part) for _, part in parts])[order],
            variance=None if len(variances) < len(parts) else np.concatenate(variances)[order],
        )

    def _plain(
        self, index: IntArray, budget: int, round_: int, prior: Prior | None
    ) -> Iterator[tuple[IntArray, Estimate]]:
        """Positions in `index` and their estimates, block by block."""
        for members in self._blocks(index, budget):
            rows = index[members]
            some = None if prior is None else Prior(prior.values[members], prior.scales[members])
            block = self._block(rows, round_, some)
            estimate = block.completed(self.estimator.estimate(block, budget))
            self.spent[rows] += block.counted
            if estimate.views is not None:
                self.views.append(_wide(estimate.views, rows, block.active, self.game.n_players))
            yield members, estimate

    def _screened(self, odd: OddShap, index: IntArray, budget: int, round_: int) -> Iterator[tuple[IntArray, Estimate]]:
        """The same, where a few rows say what matters to all: those with the smallest hash of their content."""
        words = self.rows.words[index]
        chosen, first = np.unique(words, return_index=True)
        chosen, pool = chosen[:POOL], np.sort(first[:POOL])

        def sampled(positions: IntArray) -> Iterator[tuple[IntArray, Block, Sample]]:
            for members in self._blocks(index[positions], budget) if len(positions) else ():
                block = self._block(index[positions[members]], round_, None)
                sample = odd.sample(block, budget)
                self.spent[index[positions[members]]] += block.counted
                yield positions[members], block, sample

        known = list(sampled(pool))
        order = np.argsort(words[pool])  # whatever order the rows have, they are learned from in this one
        found = screen(Pairs.concatenate([sample.pairs for _, _, sample in known]).rows(order))
        rest = np.setdiff1d(np.arange(len(index)), pool)
        for members, block, sample in chain(known, sampled(rest)):
            taught = np.isin(words[members], chosen)
            yield members, block.completed(odd.solve(sample, found, taught))

    def _blocks(self, index: IntArray, budget: int) -> Iterator[IntArray]:
        """Positions in `index`: rows that are enumerated come by pattern, and share their coalitions."""
        n, n_players, n_outputs = self.active(index[:1]).shape[1], self.game.n_players, self.full.shape[1]
        spends = self.estimator.spends(n, budget)
        if enumerable(n, budget):
            patterns = np.packbits(self.rows.active[index], axis=1)
            _, pattern, sizes = np.unique(patterns, axis=0, return_inverse=True, return_counts=True)
            groups = np.split(np.argsort(pattern.ravel(), kind="stable"), np.cumsum(sizes)[:-1])
            # A few megabytes at a time: the transforms of a row's values then stay in the processor's cache.
            row_bytes = min(spends, CHUNK) * 24 * n_outputs * max(1, self.game.memory_budget // (8 * 2**20))
        else:
            groups = [np.arange(len(index))]
            # For every coalition: its mask a few times over, sort keys, and the outputs.
            row_bytes = spends * (32 * n_players + 24 * n_outputs + 16)
        size = max(1, self.game.memory_budget // row_bytes)
        for group in groups:
            yield from (group[start : start + size] for start in range(0, len(group), size))


def _method_name(estimator: Estimator, corrects: bool) -> str:
    """What labels say of their method: those pulled towards an explainer, or that correct a student, say so."""
    unbiased = isinstance(estimator, Amortized) and estimator.unbiased
    return f"{estimator.name}{'-unbiased' if unbiased else ''}{WITH_STUDENT if corrects else ''}"


def _exact_rows(estimate: Estimate) -> npt.NDArray[np.bool_]:
    return np.zeros(len(estimate.values), dtype=bool) if estimate.exact is None else estimate.exact


def _wide(views: BlockViews, rows: IntArray, active: IntArray, n_players: int) -> Views:
    """The views of a block in terms of all players and of the whole table's rows."""
    n_rows, copies, _, n_outputs = views.values.shape
    kept = np.zeros((n_rows, copies, n_players), dtype=bool)
    values = np.zeros((n_rows, copies, n_players, n_outputs))
    place = np.broadcast_to(active[:, None, :], views.kept.shape)
    np.put_along_axis(kept, place, views.kept, axis=2)
    np.put_along_axis(values, np.broadcast_to(place[..., None], views.values.shape), views.values, axis=2)
    flat = n_rows * copies
    return Views(
        rows=np.repeat(rows, copies),
        kept=kept.reshape(flat, n_players),
        values=values.reshape(flat, n_players, n_outputs),
        outputs=views.outputs.reshape(flat, n_outputs),
    )


__all__ = ["shapley"]
