"""What an estimator sees: a few rows of a game, reduced to the players that matter for them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True, eq=False)
class Block:
    """Rows with the same number of active players; the other players are null and already known to get zero."""

    game: Game
    rows: Rows
    active: npt.NDArray[np.int64]
    """(rows, n) the active players of each row."""
    full: Array
    """v(all), (rows, outputs)."""
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

    @property
    def n_players(self) -> int:
        return int(self.active.shape[1])

    @property
    def counted(self) -> npt.NDArray[np.int64]:
        """`spent`, where somebody counts."""
        assert self.spent is not None
        return self.spent

    @property
    def empty(self) -> Array:
        """v(none), (rows, outputs)."""
        return np.broadcast_to(self.game.base_values, self.full.shape) if self.own_empty is None else self.own_empty

    @property
    def total(self) -> Array:
        """v(all) - v(none), (rows, outputs): what the attributions share."""
        return self.full - self.empty

    def take(self, index: npt.NDArray[np.int64]) -> Block:
        """Some of the rows. What they cost is not added to `spent` of this block."""
        prior = None if self.prior is None else Prior(self.prior.values[index], self.prior.scales[index])
        return replace(
            self, rows=self.rows.take(index), active=self.active[index], full=self.full[index], prior=prior,
            own_empty=None if self.own_empty is None else self.own_empty[index],
            spent=None if self.spent is None else np.zeros(len(index), dtype=np.int64),
        )  # fmt: skip

    def values(self, coalitions: BoolArray, *, distinct: bool) -> Array:
        """v(S), (rows, k, outputs), for coalitions of active players, (k, n) or (rows, k, n)."""
        n_rows = len(self.rows)
        if coalitions.ndim == 2 and (self.active == self.active[0]).all():
            wide = np.zeros((coalitions.shape[0], self.game.n_players), dtype=bool)
            wide[:, self.active[0]] = coalitions
            return self.game.values(self.rows, wide, distinct=distinct, spent=self.spent)
        k = coalitions.shape[-2]
        wide = np.zeros((n_rows, k, self.game.n_players), dtype=bool)
        index = np.broadcast_to(self.active[:, None, :], (n_rows, k, self.n_players))
        np.put_along_axis(wide, index, np.broadcast_to(coalitions, index.shape), axis=2)
        return self.game.values(self.rows, wide, distinct=distinct, spent=self.spent)

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

    @staticmethod
    def enumerated(values: Array, views: BlockViews | None = None) -> Estimate:
        """What all coalitions give."""
        return Estimate(values, np.zeros_like(values), views, np.ones(len(values), dtype=bool))


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
