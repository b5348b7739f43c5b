"""`TreeStudent`: the margins of boosted trees as a free copy of the game of their probabilities."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cortx.errors import InputError
from cortx.estimators.tree import TreeValues, masked_outputs
from cortx.games import Game, Rows
from cortx.games.forest import Array, BoolArray
from cortx.games.game import table_of
from cortx.games.models import BoosterModel, EstimatorModel
from cortx.games.trees import TreeGame, read_trees
from cortx.seeding import numpy_generator
from cortx.tables import Table


@dataclass(frozen=True, eq=False)
class TreeStudent:
    """A copy v(S) = intercept + slope x margin(S) of a game of probabilities (`cortx.estimators.block.Student`).

    The margin is a sum over leaves, so its values and its exact Shapley values cost no model evaluation. With
    ``cortx.shapley(game, X, method, student=student)`` only what a straight line of the margin misses of the
    probability is estimated: about a third less squared error at equal evaluations, no bias.
    """

    trees: TreeGame
    margins: TreeValues
    absent: Array
    """What replaces absent columns as the trees see it, (sample, tree columns)."""
    slope: Array
    """(outputs,)."""
    intercept: Array

    @classmethod
    def of(cls, game: Game, rows: Rows, evaluations: int = 512, seed: int = 0) -> TreeStudent:
        """Reads the trees, and fits slope and intercept to the values v(S) that so many model evaluations buy.

        Raises `InputError` where the game's margins are no sum over leaves, or the evaluations buy fewer than 8 values.
        """
        table = table_of(rows, "a TreeStudent")
        model = game.model
        if not isinstance(model, (EstimatorModel, BoosterModel)):
            raise InputError(f"a TreeStudent is for boosted trees; got a {type(model).__name__}")
        inner = model.estimator if isinstance(model, EstimatorModel) else model.booster
        nothing = np.zeros(1)
        margin = Game.from_spec(inner, replace(game.spec(table.schema, nothing), output="raw"))
        trees = read_trees(margin)
        absent = trees.encode(Table(game.absent, table.schema))
        margins = TreeValues(trees.forest, trees.column_player, game.n_players, absent)
        count = evaluations // game.evaluations_per_value - (0 if game.knows_base_values else 1)
        if count < 8:
            raise InputError(f"{evaluations} evaluations buy {count} values v(S) of this game; a line needs at least 8")
        rng = numpy_generator(seed, "tree student")
        some = rows.take(rng.integers(0, len(rows), count))
        # Sizes of coalitions come evenly.
        coalitions = (rng.random((count, game.n_players)) < rng.random((count, 1)))[:, None, :]
        raw = cls(trees, margins, absent, np.ones(margins.forest.n_outputs), np.zeros(margins.forest.n_outputs))
        x, y = raw.values(some, coalitions)[:, 0], game.values(some, coalitions)[:, 0]
        if x.shape != y.shape:
            raise InputError(f"the game has {y.shape[1]} outputs, its margins {x.shape[1]}; explain target='all'")
        centred = x - x.mean(axis=0)
        spread = (centred**2).sum(axis=0)
        slope = np.where(spread > 0, (centred * y).sum(axis=0) / np.where(spread > 0, spread, 1.0), 0.0)
        return replace(raw, slope=slope, intercept=y.mean(axis=0) - slope * x.mean(axis=0))

    def values(self, rows: Rows, coalitions: BoolArray) -> Array:
        """The copy's v(S), (rows, k, outputs), for coalitions (rows, k, players) or (k, players)."""
        inputs = self.trees.encode(table_of(rows, "a TreeStudent"))
        masked = masked_outputs(self.trees.forest, self.trees.column_player, inputs, coalitions, self.absent)
        return self.intercept + self.slope * masked

    def shapley(self, rows: Rows) -> Array:
        """The copy's exact Shapley values, (rows, players, outputs)."""
        return self.slope * self.margins.values(self.trees.encode(table_of(rows, "a TreeStudent")))
