"""What an estimator sees: a few rows of a game, reduced to the players that matter for them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.games import Game, Rows
from cortx.seeding import row_uniforms, stream_seed, uniforms_at

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class Prior(NamedTuple):
    """What is known of the values before any v(S): a guess and how far off it typically is (a standard deviation)."""

    values: Array
    """(rows, players, outputs)."""
    scales: Array
    """(rows, players, outputs), not negative."""


@runtime_checkable
class HasPrior(Protocol):
    """Anything that guesses values from rows and the model's outputs for them, without evaluating the model."""

    def prior(self, rows: Any, outputs: Array) -> tuple[Array, Array]:
        """Values and scales, both (rows, players, outputs), for the caller's rows and their outputs (rows, outputs)."""


@runtime_checkable
class Student(Protocol):
    """A learned copy of a game v(S) that is asked without evaluating the model."""

    def values(self, rows: Rows, coalitions: BoolArray) -> Array:
        """About v(S), (rows, k, outputs), for coalitions (k, players) of all rows, or (rows, k, players)."""

    def shapley(self, rows: Rows) -> Array:
        """The Shapley values of its own game, (rows, players, outputs), up to rounding.

        What they miss is missing from every label that is corrected by the student.
        """


@runtime_checkable
class SampledStudent(Protocol):
    """A student that knows its own Shapley values from samples alone."""

    def sampled_shapley(self, rows: Rows, seed: int, values: int) -> tuple[Array, Array]:
        """Unbiased Shapley values of its own game and their variance, (rows, players, outputs) each.

        They come from about `values` values v(S) or more, drawn by `seed`: draws of two seeds are independent.
        """


STUDENT_ASKS = 2**14
"""Masked rows that a student is asked about at a time, at most."""
ASKED_FOR_EACH = 4
"""Values v(S) that a sampled student is asked for, for each one of the game."""
ROUNDING = 1e-12
"""Of v(all) and v(none): what is lost where one is taken from the other, and no student can help."""
ADDS_UP = 1e-3
"""How far a student's Shapley values may miss its own total, as a share of all they give and take."""


@dataclass(frozen=True, eq=False)
class Control:
    """A student's own game on some rows, which serves as a control variate: estimators see the model's game minus it.

    full, empty: its values of all players and of none, (rows, outputs); shapley and variance: its Shapley values and
    how far off they are where they are sampled (`SampledStudent`), (rows, players, outputs).
    """

    student: Student
    full: Array
    empty: Array
    shapley: Array
    variance: Array

    @staticmethod
    def of(student: Student, game: Game, rows: Rows, seed: int, values: int) -> Control:
        """Asks the student about the ends and its Shapley values, and checks what it says.

        Sampled Shapley values are drawn by `seed`, from more values than the `values` v(S) that the game is asked for.
        Rounding that keeps its values from adding up is shared out evenly. Raises `InputError` where the shapes do not
        fit the game, players that equal the reference have a value, or values do not add up.
        """
        shape = (len(rows), game.n_players, game.n_outputs)
        ends = np.stack([np.zeros_like(rows.active), rows.active], axis=1)
        empty, full = student_values(student, game, rows, ends).transpose(1, 0, 2)
        if isinstance(student, SampledStudent):
            shapley, variance = student.sampled_shapley(rows, stream_seed(seed, "student"), ASKED_FOR_EACH * values)
        else:
            shapley = np.array(student.shapley(rows), dtype=np.float64)
            variance = np.zeros_like(shapley)
        if shapley.shape != shape or not np.isfinite(shapley).all():
            raise InputError(
                f"the student's Shapley values have shape {shapley.shape} or are not finite, expected finite numbers "
                f"of shape {shape}: rows, players, outputs; was it made for another game?"
            )
        active = rows.active[..., None]
        allowed = ADDS_UP * (np.abs(shapley).sum(axis=1) + np.abs(full - empty))  # (rows, outputs)
        allowed += ROUNDING * (np.abs(full) + np.abs(empty))
        if (np.abs(np.where(active, 0.0, shapley)).sum(axis=1) > allowed).any():
            raise InputError(
                "the student gives a value to players that equal the reference, for whom masked rows are the same; its "
                "values must depend on the masked row alone"
            )
        shapley = np.where(active, shapley, 0.0)
        gap = full - empty - shapley.sum(axis=1)
        if (np.abs(gap) > allowed).any():
            raise InputError(
                f"the student's Shapley values miss its own v(all) - v(none) by up to {np.abs(gap).max():.3g}; "
                "shapley(rows) must give the Shapley values of values(rows, coalitions)"
            )
        return Control(student, full, empty, adding_up(shapley, full - empty, rows.active), variance)

    def take(self, index: npt.NDArray[np.int64]) -> Control:
        return Control(self.student, self.full[index], self.empty[index], self.shapley[index], self.variance[index])


def adding_up(values: Array, total: Array, active: BoolArray) -> Array:
    """Values, (rows, players, outputs), that add up to `total`, (rows, outputs): what is missing is shared evenly.

    `active` (rows, players) are those that share it.
    """
    share = (total - values.sum(axis=1)) / np.maximum(1, active.sum(axis=1))[:, None]
    return np.asarray(values + active[..., None] * share[:, None, :])


def student_values(student: Student, game: Game, rows: Rows, coalitions: BoolArray) -> Array:
    """What a student says of coalitions, (rows, k, outputs) float64, asked in parts that fit the memory budget.

    `coalitions` (k, players) or (rows, k, players).
    """
    n_rows, k = len(rows), coalitions.shape[-2]
    columns = rows.table.matrix.shape[1]
    most = max(1, min(STUDENT_ASKS, game.memory_budget // (64 * columns)))
    result = np.empty((n_rows, k, game.n_outputs))
    at_once = max(1, most // max(1, k))
    for start in range(0, n_rows, at_once):
        index = np.arange(start, min(start + at_once, n_rows))
        some = rows if len(index) == n_rows else rows.take(index)
        for first in range(0, k, most):
            part = slice(first, first + most)
            asked = coalitions[part] if coalitions.ndim == 2 else coalitions[index, part]
            values = np.asarray(student.values(some, asked), dtype=np.float64)
            expected = (len(index), asked.shape[-2], game.n_outputs)
            if values.shape != expected or not np.isfinite(values).all():
                raise InputError(
                    f"the student's values have shape {values.shape} or are not finite, expected finite numbers of "
                    f"shape {expected}: rows, coalitions, outputs; was it made for another game?"
                )
            result[index, part] = values
    return result


@dataclass(frozen=True, eq=False)
class Block:
    """Rows with the same number of active players; the other players are null and already known to get zero.

    With a `control`, `values`, `full`, `empty` and `total` are those of the game minus the student's: what an estimator
    finds out is then what the student misses (`completed` adds the rest).
    """

    game: Game
    rows: Rows
    active: npt.NDArray[np.int64]
    """(rows, n) the active players of each row."""
    outputs: Array
    """The model's own v(all), (rows, outputs)."""
    seed: int
    round: int = 0
    n_views: int = 0
    """Masked copies of every row whose labels are wanted too, if they cost nothing."""
    prior: Prior | None = None
    """Of the active players, (rows, n, outputs), where somebody gave one."""
    own_empty: Array | None = None
    """v(none) of each row, (rows, outputs), where rows have references of their own."""
    spent: npt.NDArray[np.int64] | None = None
    """Where somebody counts: model evaluations of each row, (rows,), to which every question adds."""
    control: Control | None = None
    """What a student says of the same rows, where one is given."""

    @property
    def plain(self) -> Block:
        """The same rows without the student: the game itself."""
        return self if self.control is None else replace(self, control=None)

    @property
    def n_players(self) -> int:
        return int(self.active.shape[1])

    @property
    def counted(self) -> npt.NDArray[np.int64]:
        """`spent`, where somebody counts."""
        assert self.spent is not None
        return self.spent

    @property
    def full(self) -> Array:
        """v(all), (rows, outputs)."""
        return self.outputs if self.control is None else self.outputs - self.control.full

    @property
    def empty(self) -> Array:
        """v(none), (rows, outputs)."""
        empty = np.broadcast_to(self.game.base_values, self.outputs.shape) if self.own_empty is None else self.own_empty
        return empty if self.control is None else empty - self.control.empty

    @property
    def total(self) -> Array:
        """v(all) - v(none), (rows, outputs): what the attributions share."""
        return self.full - self.empty

    def take(self, index: npt.NDArray[np.int64]) -> Block:
        """Some of the rows. What they cost is not added to `spent` of this block."""
        prior = None if self.prior is None else Prior(self.prior.values[index], self.prior.scales[index])
        return replace(
            self, rows=self.rows.take(index), active=self.active[index], outputs=self.outputs[index], prior=prior,
            own_empty=None if self.own_empty is None else self.own_empty[index],
            spent=None if self.spent is None else np.zeros(len(index), dtype=np.int64),
            control=None if self.control is None else self.control.take(index),
        )  # fmt: skip

    def values(self, coalitions: BoolArray, *, distinct: bool) -> Array:
        """v(S), (rows, k, outputs), for coalitions of active players, (k, n) or (rows, k, n)."""
        wide = self._wide(coalitions)
        values = self.game.values(self.rows, wide, distinct=distinct, spent=self.spent)
        if self.control is not None:
            values -= student_values(self.control.student, self.game, self.rows, wide)
        return values

    def of_student(self, coalitions: BoolArray) -> Array:
        """What the student says of coalitions, as `values`."""
        assert self.control is not None
        return student_values(self.control.student, self.game, self.rows, self._wide(coalitions))

    def completed(self, estimate: Estimate) -> Estimate:
        """An estimate of this block with the student's share and its variance; enumerated rows have neither."""
        if self.control is None:
            return estimate
        known, noise = (
            np.take_along_axis(part, self.active[..., None], axis=1)
            for part in (self.control.shapley, self.control.variance)
        )
        if estimate.exact is not None:
            known[estimate.exact] = noise[estimate.exact] = 0.0
        return replace(
            estimate,
            values=estimate.values + known,
            errors=np.sqrt(np.square(estimate.errors) + noise),
            variance=None if estimate.variance is None else estimate.variance + noise,
        )

    def _wide(self, coalitions: BoolArray) -> BoolArray:
        """Coalitions of active players as coalitions of all of them, (k, players) or (rows, k, players)."""
        n_rows = len(self.rows)
        if coalitions.ndim == 2 and (self.active == self.active[0]).all():
            wide = np.zeros((coalitions.shape[0], self.game.n_players), dtype=bool)
            wide[:, self.active[0]] = coalitions
            return wide
        k = coalitions.shape[-2]
        wide = np.zeros((n_rows, k, self.game.n_players), dtype=bool)
        index = np.broadcast_to(self.active[:, None, :], (n_rows, k, self.n_players))
        np.put_along_axis(wide, index, np.broadcast_to(coalitions, index.shape), axis=2)
        return wide

    def uniforms(self, count: int, stream: int) -> Array:
        """Uniform draws, (rows, count): each row's own, whatever block it sits in; other streams are independent."""
        return row_uniforms(self.rows.words, stream_seed(self.seed, self.round, stream), 0, count)

    def uniforms_at(self, row: npt.NDArray[np.int64], counters: npt.NDArray[np.int64], stream: int) -> Array:
        """Some of the draws of a stream: `row` (m,) and their places `counters`, (m, count)."""
        return uniforms_at(self.rows.words[row][:, None], stream_seed(self.seed, self.round, stream), counters)


@dataclass(frozen=True, eq=False)
class BlockViews:
    """Labels of masked copies: their players `kept` (rows, copies, n), `values` (rows, copies, n, outputs) and v."""

    kept: BoolArray
    values: Array
    outputs: Array


@dataclass(frozen=True, eq=False)
class Estimate:
    """Values and their standard errors, (rows, n, outputs); NaN where not known."""

    values: Array
    errors: Array
    views: BlockViews | None = None
    exact: BoolArray | None = None
    """Rows whose coalitions were all evaluated, (rows,): errors of zero alone do not say so. None: none."""
    variance: Array | None = None
    """The plain variance of the values, where a method gives an unbiased estimate of it: `errors` are made larger, so
    that their tails hold."""

    @staticmethod
    def enumerated(values: Array, views: BlockViews | None = None) -> Estimate:
        """What all coalitions give."""
        zeros = np.zeros_like(values)
        return Estimate(values, zeros, views, np.ones(len(values), dtype=bool), zeros)


MOST_PLAYERS = 24
"""Players up to which all coalitions are enumerated: 16.8 million."""


def enumerable(n_players: int, budget: int) -> bool:
    """Whether `budget` values v(S) are all there are (v(all) and v(none) aside)."""
    return n_players <= MOST_PLAYERS and budget >= coalition_count(n_players)


def coalition_count(n_players: int) -> int:
    """All coalitions but the empty and the full one."""
    return int(2**n_players) - 2


class Estimator(ABC):
    """Turns games into labels. Settings go to the constructor; a new estimator is one file and one line."""

    name: ClassVar[str]
    efficient: ClassVar[bool] = True
    """Whether the values of a row always add up to v(all) - v(none)."""
    refines: bool = False
    """Whether rounds are one regression that grows (`Refinement`), instead of independent estimates to average."""

    @abstractmethod
    def least(self, n_players: int) -> int:
        """The fewest values v(S) of a row (v(all) and v(none) aside) that give an estimate."""

    def least_known(self, n_players: int) -> int:
        """The fewest values v(S) of a row whose estimate has standard errors."""
        return self.least(n_players)

    def most(self, n_players: int) -> float:
        """The most values v(S) of a row that its settings let it ask for; infinite where only the budget limits it."""
        del n_players
        return math.inf

    @abstractmethod
    def spends(self, n_players: int, budget: int) -> int:
        """How many values v(S) of a row it would ask for, given at most `budget` of them."""

    @abstractmethod
    def estimate(self, block: Block, budget: int) -> Estimate:
        """The estimate from at most `budget` values v(S) of each row (v(all) and v(none) aside).

        A budget that is enough to enumerate (`enumerable`) gives the exact values; the rows of the block then have
        the same active players.
        """
