"""Trees that teach: the exact Shapley values of a game of trees label any row for nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.errors import InputError
from cortx.estimators.tree import PreparedTrees, TreeValues, masked_outputs, output_work, prepare_trees, row_work
from cortx.estimators.tree_paths import Paths
from cortx.estimators.tree_tables import divided
from cortx.games import Game, Rows
from cortx.games.forest import Forest
from cortx.games.game import table_of
from cortx.games.own_columns import on_own_columns
from cortx.games.tree_readers import NotTrees
from cortx.games.trees import read_trees
from cortx.tables import Schema, Table
from cortx.training.features import forest_steps

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
LABEL_WORK = 2**35
"""What all labels of a fit may take, in the unit of `TreeValues.work`: about a minute of one core. So may the choice of
its positives."""
LEAST_LABELLED = 10_000
"""Trees that label fewer rows than this in that time (deep ones, with a large background) teach nothing."""
CHEAP = 3
"""Labels of trees cost little: so many times what a recipe wants of a network are made."""
ASKED_WITH = 8
"""Rows of the background with which v(S) is asked for to choose positives, which need not be exact."""


@dataclass(frozen=True, eq=False)
class TreeTeacher:
    """The trees of a game as its teacher: they are the game itself, so nothing of it is missed."""

    prepared: PreparedTrees
    schema: Schema
    steps: dict[int, Array]
    """Thresholds of the splits by column of the game's table; empty where steps of a Pipeline hide them."""
    most_labels: int
    """Rows that `LABEL_WORK` allows."""

    def label_count(self, n_rows: int, most: int) -> int:
        """Rows that are labelled for an explainer, however many the table has."""
        del n_rows
        return min(CHEAP * most, self.most_labels)

    @property
    def most_asked(self) -> int:
        """Values v(S) that `LABEL_WORK` pays for."""
        return most_asked(self.prepared.trees.forest, min(ASKED_WITH, len(self.prepared.absent)))

    def _inputs(self, matrix: Array) -> Array:
        """Encoded rows of the game's table, (rows, columns), as the trees see them."""
        return self.prepared.trees.encode(Table(matrix, self.schema))

    def values(self, rows: Rows, coalitions: BoolArray) -> Array:
        """v(S), (rows, k, outputs), for coalitions (k, players) or (rows, k, players); with a background about that."""
        trees, absent = self.prepared.trees, self.prepared.absent
        if len(absent) > ASKED_WITH:
            absent = absent[np.linspace(0, len(absent) - 1, ASKED_WITH).astype(np.int64)]
        return masked_outputs(
            trees.forest, trees.column_player, self._inputs(table_of(rows, "a tree teacher").matrix), coalitions, absent
        )  # fmt: skip

    def labels(self, codes: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Shapley values, (rows, players, outputs), and v(all) - v(none), (rows, outputs); nothing is drawn."""
        del seed
        return exact_labels(self.prepared.values, self._inputs(codes.cpu().numpy()), codes.device)

    def totals(self, codes: Tensor) -> Tensor:
        """v(all) - v(none), (rows, outputs)."""
        outputs = self.prepared.trees.forest.outputs(self._inputs(codes.cpu().numpy()))
        return torch.from_numpy(outputs - self.prepared.values.base_values).to(codes.device, torch.float32)


def teachable(game: Game, rows: Rows) -> PreparedTrees | None:
    """The trees of a game whose exact values label many rows in little time, or None; the model is not asked."""
    if game.of_images or game.trees_are_slow:
        return None
    try:
        if game.prepared is None:  # tables of deep trees take long to make, so their size is asked for first
            trees = read_trees(game)
            blocks, _ = divided(Paths.of(trees.forest, trees.column_player), len(game.absent))
            work = row_work(trees.forest, blocks, len(game.absent))
            game.trees_are_slow = most_labels(work) < LEAST_LABELLED
            if game.trees_are_slow:
                return None
        prepared = prepare_trees(game, rows, most_checks=0)
    except InputError:  # no trees, or rows that they do not take
        return None
    return prepared if most_labels(prepared.values.work) >= LEAST_LABELLED else None


def tree_teacher(game: Game, rows: Rows) -> TreeTeacher:
    """The trees of a game as its teacher; raises `NotTrees` where the model does not agree with them.

    The comparison costs `trees.CHECKED` model evaluations, once for a game.
    """
    prepared = prepare_trees(game, rows)
    table = table_of(rows, "a fit to trees")
    try:
        steps = forest_steps(on_own_columns(game, prepared.trees, table)[0])
    except NotTrees:
        steps = {}
    return TreeTeacher(prepared, table.schema, steps, most_labels(prepared.values.work))


def exact_labels(values: TreeValues, inputs: Array, device: torch.device) -> tuple[Tensor, Tensor]:
    """Exact values of rows as the trees see them, (rows, players, outputs), and their sums, (rows, outputs)."""
    found = torch.from_numpy(values.values(inputs))
    return found.to(device, torch.float32), found.sum(dim=1).to(device, torch.float32)


def most_labels(row_work: int) -> int:
    """Rows that `LABEL_WORK` pays for."""
    return LABEL_WORK // max(1, row_work)


def most_asked(forest: Forest, n_background: int) -> int:
    """Values v(S) of a forest that `LABEL_WORK` pays for, each a mean over `n_background` rows."""
    return LABEL_WORK // (n_background * output_work(forest))
