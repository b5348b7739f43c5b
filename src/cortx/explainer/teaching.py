"""A student learns v(S) from values that are bought for it; what it says of rows then teaches the explainer."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.estimators.block import Student
from cortx.explainer.pairs import ValuePairs
from cortx.games import Game, GameSpec, Rows
from cortx.games.value_store import ValueStore
from cortx.progress import progress_bar
from cortx.seeding import numpy_generator, stream_seed
from cortx.tables import Schema
from cortx.threads import work
from cortx.training.features import TableFeatures, forest_steps, with_steps
from cortx.training.finetune import LabelSet
from cortx.training.forest_student import LEARNED_BYTES, LEARNED_ROWS, ROUNDS, ForestStudent, can_grow, grow
from cortx.training.heads.head import scale_of
from cortx.training.network import ExplainerNetwork
from cortx.training.student import NetworkStudent, StudentConfig, StudentNetwork, ValueSet, train_student
from cortx.training.tree_teacher import LEAST_LABELLED

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
logger = logging.getLogger("cortx")
HELD_OUT, LEAST_HELD_OUT, MOST_HELD_OUT = 0.04, 10, 1_000
"""The share of the rows, and how many at least and at most, whose pairs the student never learns from: they say how
good it is. Of small tables not more than a quarter of the rows."""
LABEL_BYTES = 256 * 2**20
"""Memory for the rows that the student labels."""
PART = 8_192
"""Pairs that are asked for at a time."""
LABELLED_PART = 4_096
"""Rows that are labelled at a time; each part draws its coalitions by a seed of its own."""
SETTLED = 0.01
"""No more values are bought once a short training leaves this share of unseen values unexplained (a root mean square):
the explainer that learns from the student is farther off than that."""
POOR = 0.5
"""A fit warns of a student that leaves this share unexplained: no other labels of the same price teach more."""
ROUNDS_FROM = 20_000
"""Pairs from which a quarter of them is tried before a half: below, that says little."""
TRIAL, LEAST_TRIAL = 8, 300
"""Trials train for one of so many steps, and for so many at least."""
ROUGH, ROUGH_DECAY = 0.05, 0.3
"""Where a network leaves this share of unseen values unexplained one with sharp bends is trained too, with this weight
decay in place of the recipe's."""
GENTLE = 3
"""A student that starts from an earlier one learns at one of so many parts of the rate."""
MIXED, MASKED = 0.3, 0.3
"""Made-up rows: how much of a row comes from another one on average, and how many are masked copies besides."""
KEPT = 0.8
"""The chance of a player to stay in a made-up masked copy."""
MOVED = 0.02
"""Made-up rows for functions with steps: how far numbers are moved among those of their column, as a share of these."""
CONTINUOUS = 50
"""Different values of a column from which there are values between them."""
TRIED_ROUNDS, TRIED_PAIRS = 100, 20_000
"""Trees are first tried with so few rounds of boosting and pairs..."""
FAR_BEHIND = 1.5
"""... and given up where they miss so many times what the network misses."""


@runtime_checkable
class StorableStudent(Student, Protocol):
    """A student that a saved explainer takes along."""

    kind: ClassVar[str]
    """Its name in `artifact.STUDENTS`."""

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Its tensors by name, on the CPU, and the facts, as JSON types, that `from_tensors` needs beside them."""

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], facts: dict[str, Any], spec: GameSpec) -> Student:
        """The same student again; refuses facts that describe something larger than the tensors."""


class Teacher(Protocol):
    """What an explainer learns from: a copy of the game, or the game itself, that labels any row for nothing."""

    def values(self, rows: Rows, coalitions: BoolArray) -> Array:
        """v(S), (rows, k, outputs), for coalitions (k, players) or (rows, k, players): it chooses positives."""

    @property
    def most_asked(self) -> int | None:
        """Values v(S) that it answers in about a minute; None: no limit."""

    def label_count(self, n_rows: int, most: int) -> int:
        """How many rows it labels, made-up ones included, where the table has `n_rows` and a recipe wants `most`."""

    def labels(self, codes: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Shapley values, (rows, players, outputs), and v(all) - v(none), (rows, outputs), of encoded rows."""

    def totals(self, codes: Tensor) -> Tensor:
        """v(all) - v(none), (rows, outputs)."""


@dataclass(frozen=True, eq=False)
class Taught:
    """A teacher, the inputs that suit it, how well it predicts values that it never saw, and what it learned from."""

    teacher: Teacher
    features: TableFeatures
    unexplained: float
    """The root mean square of what it misses of the difference between a coalition and its complement, of rows that it
    never saw, as a share of that of the difference; infinite where no such values tell."""
    pairs: int
    student: StorableStudent | None = None
    """The teacher as a control variate of later labels; None where it is the game itself."""
    network: StudentNetwork | None = None
    """The student's network, where it has one of the same inputs: the explainer starts from its gradients."""

    @property
    def poor(self) -> bool:
        return self.unexplained > POOR


def teach(
    game: Game,
    rows: Rows,
    pairs: ValuePairs,
    store: ValueStore,
    features: TableFeatures,
    config: StudentConfig,
    *,
    seed: int,
    device: str,
    show: bool | None,
    start: StudentNetwork | None = None,
    inputs: TableFeatures | None = None,
) -> Taught:
    """Buys the values of pairs and trains a student on them; where there are many, in rounds until more do not help.

    Its weights start from those of `start`, the student of an earlier model, where it is given, and are then trained
    for half as many steps. The explainer's inputs are `inputs`, where these are given, or else those that suit the
    student best.
    """
    if start is not None:  # at the full rate it would forget what it starts from
        config = replace(
            config, steps=max(1, config.steps // 2), learning_rate=config.learning_rate / GENTLE,
            sharp=start.config.sharp, weight_decay=start.config.weight_decay,
        )  # fmt: skip
    lesson = _Lesson(game, rows, pairs, store, features, config, seed, device, show, start, inputs)
    count = len(pairs)
    for share in (4, 2) if count >= ROUNDS_FROM else (2,):
        steps = min(config.steps, max(LEAST_TRIAL, config.steps // TRIAL))
        tried = lesson.better(count // share, steps, last=False)
        if tried.unexplained < SETTLED:
            logger.info(
                "stopped at %s of %s pairs of values: on unseen ones the student's relative error is %.2g%%, and more "
                "hardly help",
                f"{tried.pairs:,}", f"{count:,}", 100 * tried.unexplained,
            )  # fmt: skip
            count = tried.pairs
            break
    return lesson.better(count, config.steps)


class _Lesson:
    """Buys values, and trains students on any beginning of them."""

    def __init__(
        self,
        game: Game,
        rows: Rows,
        pairs: ValuePairs,
        store: ValueStore,
        features: TableFeatures,
        config: StudentConfig,
        seed: int,
        device: str,
        show: bool | None,
        start: StudentNetwork | None = None,
        inputs: TableFeatures | None = None,
    ) -> None:
        self.game, self.rows, self.pairs, self.store, self.show = game, rows, pairs, store, show
        self.start, self.inputs = start, inputs
        self.features, self.config, self.seed, self.device = features, config, seed, device
        named, self.place = np.unique(pairs.row, return_inverse=True)  # a large table has many rows without pairs
        self.codes = torch.from_numpy(rows.table.matrix[named]).to(device)
        assert isinstance(rows.table.schema, Schema)
        self.schema = rows.table.schema
        self.values = np.zeros((len(pairs), 2, game.n_outputs), dtype=np.float32)
        self.bought = 0
        self.tries_trees = config.trees and can_grow()
        # Of rows that nothing else is learned from, as far as pairs are of different rows.
        self.held_out = np.zeros(len(pairs), dtype=bool)
        first = pairs.row[: len(named)]
        least = min(LEAST_HELD_OUT, max(2, len(first) // 4))
        n_held = min(MOST_HELD_OUT, max(least, int(HELD_OUT * len(first))))
        chosen = numpy_generator(seed, "held-out values").choice(first, size=min(n_held, len(first) - 1), replace=False)
        self.held_out[np.isin(pairs.row, chosen)] = True

    def buy(self, count: int) -> None:
        """Asks for the values of the first `count` pairs, as far as they are not there."""
        with progress_bar("values for the student", count - self.bought, show=self.show) as advance:
            for start in range(self.bought, count, PART):
                part = slice(start, min(start + PART, count))
                masks = self.pairs.masks(part, self.rows.active)
                values = self.store.values(self.game, self.rows.take(self.pairs.row[part]), masks)
                self.values[part] = values - self.game.base_values
                advance(part.stop - part.start, f"{self.game.evaluations:,} evaluations")
        self.bought = count

    def train(self, count: int, steps: int, *, last: bool = True, config: StudentConfig | None = None) -> Taught:
        """A student of the first `count` pairs; only the `last` one labels rows."""
        config = config or self.config
        self.buy(count)
        absent = torch.from_numpy(self.game.absent)
        players = torch.from_numpy(self.game.players.column_player)
        own_inputs = deepcopy(self.features)  # each network moves to the device alone
        network = StudentNetwork(own_inputs, players, absent, self.game.n_outputs, config, self.seed)
        if self.start is not None:
            network.layers.load_state_dict(self.start.layers.state_dict())
        network.to(self.device)
        with work(large=False):
            values = self._learned(count)
            train_student(network, values, max(1, steps), seed=self.seed, screen=last, show=self.show)
        network.requires_grad_(False)
        student = NetworkStudent(network, self.schema, self.game.base_values, self.seed)
        inputs = self.inputs or self.features
        guesses = network if inputs is self.features else None  # gradients are those of the explainer's own inputs
        return Taught(student, inputs, self._unexplained(student, count), count, student, guesses)

    def better(self, count: int, steps: int, *, last: bool = True) -> Taught:
        """The student of the first `count` pairs that predicts values better which neither saw: a network or trees.

        Trees are grown in full only at `last`, and no longer tried once they are far behind.
        """
        network = self.train(count, steps, last=last)
        smooth = not self.config.sharp
        if last and smooth and self.start is None and ROUGH < network.unexplained < np.inf:
            network = self._smooth_or_sharp(network, steps)
        if not self.tries_trees or network.unexplained < SETTLED or np.isinf(network.unexplained):
            return network  # good enough, or nothing to compare by
        trees = self.grow(min(count, TRIED_PAIRS), TRIED_ROUNDS, count)
        slow = trees.teacher.label_count(len(self.rows), self.config.label_rows) < min(LEAST_LABELLED, len(self.rows))
        if slow or trees.unexplained > FAR_BEHIND * network.unexplained:
            self.tries_trees = False
            return network
        if last:
            trees = self.grow(count, ROUNDS, count)
            logger.info(
                "on values that they never saw, boosted trees have a relative error of %.2g%% and a network one of "
                "%.2g%%: the better one teaches",
                100 * trees.unexplained, 100 * network.unexplained,
            )  # fmt: skip
        return trees if trees.unexplained < network.unexplained else network

    def _smooth_or_sharp(self, smooth: Taught, steps: int) -> Taught:
        """The better one of a smooth network and one with sharp bends, which is trained now."""
        sharp = self.train(smooth.pairs, steps, config=replace(self.config, sharp=True, weight_decay=ROUGH_DECAY))
        logger.info(
            "on values that they never saw, a network with sharp bends has a relative error of %.2g%% and a smooth one "
            "of %.2g%%: the better one is the student", 100 * sharp.unexplained, 100 * smooth.unexplained,
        )  # fmt: skip
        return min(smooth, sharp, key=lambda taught: taught.unexplained)

    def grow(self, learned: int, rounds: int, count: int) -> Taught:
        """Boosted trees that learn from the first `learned` pairs, judged by those held out of the first `count`."""
        game, players = self.game, self.game.players.column_player
        most = max(1, min(LEARNED_BYTES // (16 * len(players)), LEARNED_ROWS // (2 * game.n_outputs)))
        chosen = np.flatnonzero(~self.held_out[:learned])[:most]
        absent = game.absent if len(game.absent) == 1 else np.full((1, len(players)), np.nan)
        present = self.pairs.masks(chosen, self.rows.active)[..., players]  # (pairs, 2, columns)
        masked = np.where(present, self.rows.table.matrix[self.pairs.row[chosen], None, :], absent)
        # Players that never differ from the background are always absent, and trees refuse a column of nothing.
        masked[..., np.isnan(masked).all(axis=(0, 1))] = 0.0
        targets = self.values[chosen].reshape(-1, game.n_outputs)
        seed = stream_seed(self.seed, "boosted trees")
        forest = grow(masked.reshape(len(targets), -1), targets, rounds, seed)
        reference = self.features.reference.cpu().numpy()
        student = ForestStudent(forest, players, absent, reference, self.schema, game.base_values)
        inputs = self.inputs or with_steps(self.features, forest_steps(forest))
        return Taught(student, inputs, self._unexplained(student, count), count, student)

    def _learned(self, count: int) -> ValueSet:
        """What students learn from of the first `count` pairs."""
        chosen = np.flatnonzero(~self.held_out[:count])
        arrays = (self.place[chosen], self.pairs.kept[chosen], self.values[chosen])
        row, kept, values = (torch.from_numpy(array).to(self.device) for array in arrays)
        return ValueSet(self.codes, row, kept, values)

    def _unexplained(self, student: Student, count: int) -> float:
        chosen = np.flatnonzero(self.held_out[:count])
        if not len(chosen):
            return np.inf  # nothing says that it is good
        scale = scale_of(torch.from_numpy(self.values[:count]), (0, 1)).numpy()
        missed = total = 0.0
        for start in range(0, len(chosen), PART):
            some = chosen[start : start + PART]
            rows = self.rows.take(self.pairs.row[some])
            answers = student.values(rows, self.pairs.masks(some, self.rows.active)) - self.game.base_values
            truth = np.diff(self.values[some] / scale, axis=1)
            odd = truth - np.diff(answers / scale, axis=1)
            missed, total = missed + float(np.square(odd).sum()), total + float(np.square(truth).sum())
        if total > 0:
            return float(np.sqrt(missed / total))
        # Nothing happens in the rows held out: that says nothing, unless nothing happens at all.
        return np.inf if self.values[:count].any() else 0.0


def label_rows(
    teacher: Teacher,
    network: ExplainerNetwork,
    game: Game,
    rows: Rows,
    learners: IntArray,
    config: StudentConfig,
    *,
    seed: int,
    show: bool | None,
) -> LabelSet:
    """Rows that `network` learns from, with the teacher's labels: those of the table first, then made-up ones."""
    said = 0 if network.path is None else network.path.width  # what gradients say beside each label
    row_bytes = 4 * (game.n_players * game.n_outputs + said) + 8 * rows.table.matrix.shape[1]
    count = min(max(1, LABEL_BYTES // row_bytes), teacher.label_count(len(learners), config.label_rows))
    generator = numpy_generator(seed, "made-up rows")
    real = rows.table.matrix[learners if len(learners) <= count else generator.choice(learners, count, replace=False)]
    made = made_up(game, real, count - len(real), generator)
    if network.features.has_steps:
        made = moved(made, real, rows.table.schema, game.absent, generator)
    matrix = np.concatenate([real, made])
    codes = torch.from_numpy(matrix).to(network.device)
    labels = codes.new_empty(len(codes), game.n_players, game.n_outputs, dtype=torch.float32)
    totals = codes.new_empty(len(codes), game.n_outputs, dtype=torch.float32)
    with progress_bar("labels to learn from", len(codes), show=show) as advance, work(large=True):
        for number, start in enumerate(range(0, len(codes), LABELLED_PART)):
            part = slice(start, start + LABELLED_PART)
            labels[part], totals[part] = teacher.labels(codes[part], stream_seed(seed, "labels", number))
            advance(len(codes[part]), "")
    return LabelSet(codes, totals, network.active(codes), labels)


def made_up(game: Game, real: npt.NDArray[Any], count: int, generator: np.random.Generator) -> Array:
    """Rows that mix two rows player by player, (count, columns); with one reference some are masked copies too."""
    if count <= 0:
        return np.zeros((0, real.shape[1]))
    owner, n_players = game.players.column_player, game.n_players
    rows = real[np.arange(count) % len(real)]
    others = real[generator.integers(len(real), size=count)]
    share = 2 * MIXED * generator.random((count, 1))
    mixed = np.where((generator.random((count, n_players)) < share)[:, owner], others, rows)
    if game.evaluations_per_value > 1:
        return mixed
    masked = generator.random((count, 1)) < MASKED
    gone = (generator.random((count, n_players)) >= KEPT)[:, owner]
    return np.where(masked & gone, game.absent[0], mixed)


def moved(made: Array, real: npt.NDArray[Any], schema: Any, absent: Array, generator: np.random.Generator) -> Array:
    """Made-up rows with numbers between those of the table; functions with steps change there too.

    Columns of categories or of few different numbers stay, and so does what equals a single reference.
    """
    assert isinstance(schema, Schema)
    result = made.copy()
    for j, column in enumerate(schema.columns):
        ordered = np.sort(real[~np.isnan(real[:, j]), j])
        shift = MOVED * len(ordered) * generator.standard_normal(len(made))
        if column.categorical or len(np.unique(ordered)) < CONTINUOUS:
            continue
        place = np.clip(np.searchsorted(ordered, made[:, j]) + shift, 0, len(ordered) - 1)
        numbers = np.interp(place, np.arange(len(ordered)), ordered)
        if (ordered == np.rint(ordered)).all():
            numbers = np.rint(numbers)
        stays = np.isnan(made[:, j]) | ((made[:, j] == absent[0, j]) if len(absent) == 1 else False)
        result[:, j] = np.where(stays, made[:, j], numbers)
    return result
