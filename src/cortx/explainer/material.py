"""What a fit learns from: labelled rows with their roles, and rows without precise labels."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.estimators.block import Student
from cortx.estimators.permutation import Permutation, walk_values
from cortx.estimators.shapley import shapley, views_per_row
from cortx.explainer.budget import Plan, Stream
from cortx.explainer.labels import Labels, label_facts, pack_labels, unpack_labels
from cortx.explainer.store import Ask, LabelStore, averaged
from cortx.explainer.teaching import Taught
from cortx.explanation import Explanation, take_rows
from cortx.games import Game, Rows
from cortx.games.ledger import Ledger
from cortx.seeding import numpy_generator
from cortx.training.checkpoint import Checkpoint
from cortx.training.finetune import ELSEWHERE
from cortx.training.parallel import ALONE, Processes
from cortx.training.recipe import Recipe
from cortx.training.row_stream import RowStream

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
NONE: Words = np.zeros(0, dtype=np.uint64)
logger = logging.getLogger("cortx")


@dataclass(eq=False)
class Material:
    """Rows and labels of a fit; `costs` grow as they are made."""

    rows: Rows
    train: Labels
    validation: Labels
    pretraining: IntArray
    """Positions in the table; their outputs are `outputs`, (rows, outputs), and their rough labels `rough`."""
    outputs: Array
    unlabelled_evaluations: int = 0
    """What these outputs and rough labels cost, beside training labels."""
    rough: Labels | None = None
    calibration: Labels | None = None
    longest_round: int | None = None
    """Values v(S) of each calibration row up to which refinement is tried on it; None: as far as its label judges."""
    kept_aside: IntArray | None = None
    """Positions of the calibration rows: nothing may be learned from them, not even the scale of a column."""
    silent: Words | None = None
    """Of a table that is only partly in memory: the words of all rows that must teach nothing."""
    noisy: bool = False
    """Whether the training labels are sampled, right on average only."""
    stream: Stream | None = None
    """Instead of training labels: fresh ones in every step."""
    taught: Taught | None = None
    """Instead of training labels: a teacher that labels rows of the table and made-up ones."""
    source: RowStream | None = None
    """The whole table, where `rows` are only a part of it: all of it pre-trains."""
    costs: dict[str, Any] = field(default_factory=dict)


def cost(evaluations: int, seconds: float, **facts: Any) -> dict[str, Any]:
    return {"evaluations": int(evaluations), "seconds": round(seconds, 3), **facts}


def labels_as_given(
    game: Game,
    rows: Rows,
    outputs: Array,
    given: Labels,
    recipe: Recipe,
    seed: int,
    *,
    left_out: Words = NONE,
    least: int = 2,
) -> Material:
    """Labels that came or were made by count: a random part validates, and every other row may pre-train.

    `left_out` are the words of rows that must teach nothing; `least` rows to pre-train on must remain.
    """
    order = numpy_generator(seed, "validation split").permutation(len(given))
    # A handful of rows chooses nothing: at least ten, but never more than a third.
    n_validation = max(round(recipe.validation_share * len(given)), min(10, len(given) // 3))
    validation = given.take(order[:n_validation])
    validating = game.rows(validation.data).words
    taught = np.isin(game.rows(given.data).words, left_out)
    if taught.any():
        raise InputError(
            f"{taught.sum():,} of the {len(given):,} labels are of rows that leave_out= keeps from teaching; take them "
            "out of one of the two"
        )
    silent = np.concatenate([validating, left_out])
    some = _pretraining_rows(game, rows, silent, recipe.pretrain.most_rows, seed, least)
    costs = {"labels": cost(given.evaluations, given.seconds, rows=len(given), source=given.source)}
    material = Material(rows, given.take(order[n_validation:]), validation, some, outputs[some], costs=costs)
    material.silent = silent
    if len(left_out):
        material.kept_aside = np.flatnonzero(np.isin(rows.words, left_out))
    return material


def _pretraining_rows(game: Game, rows: Rows, silent: Words, most: int, seed: int, least: int) -> IntArray:
    """The rows to pre-train on: a random part of a large table, and never a row that validates or is left out."""
    if game.evaluations_per_value > 1:  # every value costs the whole background, so fewer rows are asked
        most = min(most, max(500, most // game.evaluations_per_value))
    allowed = np.flatnonzero(~np.isin(rows.words, silent))
    if len(allowed) < least:
        raise InputError(
            f"the table has {len(rows)} rows; {len(allowed)} of them remain beside the {len(silent)} that validate or "
            f"are left out, and it takes at least {least}; give more"
        )
    if len(allowed) <= most:
        return allowed
    return np.sort(numpy_generator(seed, "pre-training rows").choice(allowed, size=most, replace=False))


def rough_labels(
    game: Game,
    data: Any,
    pairs: int,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None,
    together: Processes = ALONE,
) -> Labels:
    """A noisy but unbiased label for every row, from a few antithetic permutations; each process makes its share."""
    kept = checkpoint.load("rough")
    together.same(f"rough labels: {kept is None}", ELSEWHERE)
    if kept is None:
        budget, n_rows = game.evaluations_per_value * (1 + walk_values(game.n_players, pairs)), len(data)
        own = data if not together.several else take_rows(data, np.arange(n_rows)[together.share(n_rows)])
        labels = shapley(game, own, Permutation(pairs), row_budget=budget, views=0, seed=seed, progress=show)
        labels = _gathered(labels, data, together)
        checkpoint.save("rough", pack_labels(labels), **label_facts(labels))
    else:
        labels = unpack_labels(*kept, game=game, data=data)
    return Labels.of(labels, game)


def stream_words(game: Game, n_rows: int, recipe: Recipe) -> str:
    """What pre-training on a stream of rows will read and ask for, in words."""
    read = recipe.pretrain.steps * min(recipe.pretrain.batch_size, n_rows)
    return (
        f"pre-training reads {read:,} rows of a table of {n_rows:,}, and asks for "
        f"{stream_evaluations(game, n_rows, recipe):,} model evaluations at most"
    )


def stream_evaluations(game: Game, n_rows: int, recipe: Recipe) -> int:
    """What pre-training on a stream of rows asks the model, at most: output, rough label and positives of each."""
    config = recipe.pretrain
    walk = walk_values(game.n_players, config.rough_pairs)
    positives = 0 if config.positives == "random" else config.n_positives
    each = 1 + game.evaluations_per_value * (walk + positives)
    return config.steps * min(config.batch_size, n_rows) * each


def _gathered(labels: Explanation, data: Any, together: Processes) -> Explanation:
    """The labels of all processes, in the order of the rows."""
    if not together.several:
        return labels
    names = ("values", "base_values", "error_std", "outputs", "row_evaluations", "exact")
    parts = {name: getattr(labels, name) for name in names}
    whole = {name: together.gather_array(part, len(data)) for name, part in parts.items() if part is not None}
    return replace(labels, data=data, evaluations=together.total(labels.evaluations), variance=None, **whole)


class PlannedLabels:
    """Carries out a plan, through a store that never pays twice."""

    def __init__(
        self,
        game: Game,
        rows: Rows,
        plan: Plan,
        store: LabelStore,
        seed: int,
        show: bool | None,
        ledger: Ledger | None = None,
    ) -> None:
        self.game, self.rows, self.plan, self.store = game, rows, plan, store
        self.seed, self.show = seed, show
        self._outputs: Array | None = None
        self.n_views = views_per_row(game, len(plan.train)) if plan.mode == "enumerate" else 0
        self.ledger = ledger
        self._pays: dict[str, dict[int, str]] = {}
        """By ask and row: the stage that pays for its label, which is the first that uses it."""

    def precise(self, index: IntArray, what: str, student: Student | None = None) -> Labels:
        """Labels that judge; with a student they are its own values, and an estimate of what it misses."""
        started, spent = perf_counter(), self.game.evaluations
        labels = self._labels(index, self.plan.precise, what, f"labels for {what}", student=student)
        spent = self.game.evaluations - spent
        if what == "validation" and spent > 1_000 and student is None:
            speed = spent / (perf_counter() - started)
            logger.info(
                "the model gives %s evaluations/s: about %.0f s for the rest of the plan, training aside",
                f"{speed:,.0f}",
                (self.plan.total - spent) / speed,
            )
        return labels

    def train(self, count: int) -> Labels:
        """Labels of the first `count` training rows, every round of them."""
        some = self.plan.train[:count]
        rounds = [
            self._labels(some, ask, "training", "labels to learn from", self.n_views) for ask in self.plan.train_asks
        ]
        return averaged(rounds, self.plan.train_asks)

    def unlabelled(self, train: Labels) -> tuple[IntArray, Array, int]:
        """The rows to pre-train on, their outputs, (rows, outputs), and what these cost beside training labels."""
        pretraining = self.plan.pretraining
        if self.plan.mode == "sample":  # rows with training labels, so their outputs are there
            chosen = np.flatnonzero(np.isin(self.plan.train[: len(train)], pretraining))
            return self.plan.train[chosen], train.outputs[chosen], 0
        if self._outputs is None:
            self._outputs = self.game.full_values(self.rows.take(pretraining))
        return pretraining, self._outputs, len(pretraining)

    def _labels(
        self, index: IntArray, ask: Ask, stage: str, title: str, views: int = 0, student: Student | None = None
    ) -> Labels:
        """Labels of rows; their `evaluations` are those that this stage pays, kept labels included."""
        self.store.check(self.game, self.rows)
        self.store.adopt(ask, self.rows, index)
        if ask.corrects and not self._pays.get(ask.name):
            self.store.forget(ask)
        pays = self._pays.setdefault(ask.name, {})
        words, first = np.unique(self.rows.words[index], return_index=True)
        different = index[first]
        new = np.array([int(word) not in pays for word in words], dtype=bool)
        if self.ledger is not None:
            kept = different[new & self.store.knows(ask, words)]
            self.ledger.add(round(self.store.costs(ask, self.game, self.rows, kept).sum()))
        labels = self.store.labels(
            self.game, self.rows, index, ask, views=views, seed=self.seed, show=self.show, title=title,
            student=student,
        )  # fmt: skip
        pays.update(dict.fromkeys(map(int, words[new]), stage))
        own = different[[pays[int(word)] == stage for word in words]]
        return replace(labels, evaluations=round(self.store.costs(ask, self.game, self.rows, own).sum()))
