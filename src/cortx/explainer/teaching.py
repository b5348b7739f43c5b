"""A student learns v(S) from values that are bought for it; what it says of rows then teaches the explainer."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.estimators.block import Student
from cortx.explainer.pairs import ValuePairs
from cortx.games import Game, Rows
from cortx.games.value_store import ValueStore
from cortx.progress import progress_bar
from cortx.seeding import numpy_generator, stream_seed
from cortx.threads import work
from cortx.training.features import TableFeatures
from cortx.training.finetune import LabelSet
from cortx.training.network import ExplainerNetwork
from cortx.training.student import NetworkStudent, StudentConfig, StudentNetwork, ValueSet, train_student

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
logger = logging.getLogger("cortx")
HELD_OUT, MOST_HELD_OUT = 0.04, 1_000
"""The share of the pairs that the student never learns from, and their number at most: they say how good it is."""
LABEL_BYTES = 256 * 2**20
"""Memory for the rows that the student labels."""
PART = 8_192
"""Pairs that are asked for at a time."""
SETTLED = 0.01
"""No more values are bought once a short training leaves this share of unseen values unexplained (a root mean square):
the explainer that learns from the student is farther off than that."""
POOR = 0.5
"""A student that leaves this share unexplained teaches nothing: labels come from the model instead."""
ROUNDS_FROM = 20_000
"""Pairs from which a quarter of them is tried before a half: below, that says little."""
TRIAL, LEAST_TRIAL = 8, 500
"""Trials train for one of so many steps, and for so many at least."""
MIXED, MASKED = 0.3, 0.3
"""Made-up rows: how much of a row comes from another one on average, and how many are masked copies besides."""
KEPT = 0.8
"""The chance of a player to stay in a made-up masked copy."""


class Teacher(Student, Protocol):
    """What an explainer learns from: a copy of the game, or the game itself, that labels any row for nothing."""

    def label_count(self, n_rows: int) -> int:
        """How many rows it labels in reasonable time, made-up ones included, where the table has `n_rows`."""

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
    never saw, as a share of that of the difference."""
    pairs: int
    seconds: float
    student: Student | None = None
    """The teacher as a control variate of later labels; None where it is the game itself."""
    network: StudentNetwork | None = None
    """The student's network, where it has one: the explainer starts from its gradients."""

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
) -> Taught:
    """Buys the values of pairs and trains a student on them; where there are many, in rounds until more do not help.

    Its weights start from those of `start`, the student of an earlier model, where it is given.
    """
    lesson = _Lesson(game, rows, pairs, store, features, config, seed, device, show, start)
    count = len(pairs)
    for share in (4, 2) if count >= ROUNDS_FROM else (2,):
        tried = lesson.train(count // share, min(config.steps, max(LEAST_TRIAL, config.steps // TRIAL)))
        if tried.poor:
            return tried  # what is left of the budget may be spent better
        if tried.unexplained < SETTLED:
            logger.info(
                "stopped at %s of %s pairs of values: the student misses %.2g%% of unseen ones, and more hardly help",
                f"{tried.pairs:,}", f"{count:,}", 100 * tried.unexplained,
            )  # fmt: skip
            count = tried.pairs
            break
    return lesson.train(count, config.steps)


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
        start: StudentNetwork | None,
    ) -> None:
        self.game, self.rows, self.pairs, self.store, self.show = game, rows, pairs, store, show
        self.start = start
        self.features, self.config, self.seed, self.device = features, config, seed, device
        self.codes = torch.from_numpy(rows.table.matrix).to(device)
        self.values = np.zeros((len(pairs), 2, game.n_outputs), dtype=np.float32)
        self.bought = 0
        self.seconds = 0.0
        # Of rows that nothing else is learned from, as far as pairs are of different rows.
        self.held_out = np.zeros(len(pairs), dtype=bool)
        first = pairs.row[: min(len(pairs), len(np.unique(pairs.row)))]
        n_held = min(MOST_HELD_OUT, max(2, int(HELD_OUT * len(first))))
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

    def train(self, count: int, steps: int) -> Taught:
        """A student of the first `count` pairs."""
        self.buy(count)
        started = perf_counter()
        absent = torch.from_numpy(self.game.absent)
        players = torch.from_numpy(self.game.players.column_player)
        inputs = deepcopy(self.features)  # each network moves to the device alone
        network = StudentNetwork(inputs, players, absent, self.game.n_outputs, self.config, self.seed)
        if self.start is not None:
            network.layers.load_state_dict(self.start.layers.state_dict())
        network.to(self.device)
        with work(large=False):
            train_student(network, self._set(count, held_out=False), max(1, steps), seed=self.seed, show=self.show)
        network.requires_grad_(False)
        self.seconds += perf_counter() - started
        student = NetworkStudent(network, self.game.base_values, self.seed)
        return Taught(student, self.features, self._unexplained(network, count), count, self.seconds, student, network)

    def _set(self, count: int, *, held_out: bool) -> ValueSet:
        chosen = np.flatnonzero(self.held_out[:count] == held_out)
        arrays = (self.pairs.row[chosen], self.pairs.kept[chosen], self.values[chosen])
        row, kept, values = (torch.from_numpy(array).to(self.device) for array in arrays)
        return ValueSet(self.codes, row, kept, values)

    @torch.inference_mode()
    def _unexplained(self, network: StudentNetwork, count: int) -> float:
        unseen = self._set(count, held_out=True)
        active = network.active(unseen.codes)
        missed = total = 0.0
        for index in torch.split(torch.arange(len(unseen), device=self.device), 4_096):
            inputs = network.features(unseen.codes[unseen.row[index]]).repeat_interleave(2, dim=0)
            answers = network(inputs, unseen.masks(index, active).flatten(0, 1))
            truth = unseen.values[index] / network.scale
            odd = (truth - answers.view(truth.shape)).diff(dim=1)
            missed, total = missed + float(odd.square().sum()), total + float(truth.diff(dim=1).square().sum())
        return float(np.sqrt(missed / total)) if total > 0 else 0.0


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
    numbers = (1 + config.path_points) * game.n_players * game.n_outputs  # labels, and what gradients say beside them
    most = min(config.label_rows, max(1, LABEL_BYTES // (4 * numbers + 8 * rows.table.matrix.shape[1])))
    count = min(most, teacher.label_count(len(learners)))
    generator = numpy_generator(seed, "made-up rows")
    real = rows.table.matrix[learners if len(learners) <= count else generator.choice(learners, count, replace=False)]
    matrix = np.concatenate([real, made_up(game, real, count - len(real), generator)])
    codes = torch.from_numpy(matrix).to(network.device)
    labels, totals = [], []
    with progress_bar("labels to learn from", len(codes), show=show) as advance, work(large=True):
        for number, part in enumerate(torch.split(codes, 4_096)):
            some, total = teacher.labels(part, stream_seed(seed, "labels", number))
            labels.append(some)
            totals.append(total)
            advance(len(part), "")
    return LabelSet(codes, torch.cat(totals), network.active(codes), torch.cat(labels))


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
