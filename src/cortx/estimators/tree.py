"""Exact Shapley values of trees, from their leaves: no coalition is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from cortx.errors import InputError
from cortx.estimators.exact import VIEW_KEEP
from cortx.estimators.tree_deep import FEW_REFERENCES, DeepLeaves
from cortx.estimators.tree_paths import Paths, in_parts
from cortx.estimators.tree_tables import Blocks, TreeTables
from cortx.explanation import Explanation, Views
from cortx.games import Game, Rows
from cortx.games.forest import ROUTED, Array, BoolArray, Forest, IntArray
from cortx.games.game import table_of
from cortx.games.tree_readers import NotTrees
from cortx.games.trees import TreeGame, check_trees, read_trees
from cortx.progress import progress_bar
from cortx.seeding import row_uniforms, stream_seed
from cortx.tables import Table

MASKED_NUMBERS = 2**20
"""Numbers of masked rows that are held at a time, about."""
MOST_ROWS = 1024
"""Rows that are explained at a time: enough for the work around them not to matter."""
REFERENCE_WORK, SETS_WORK, SET_WORK = 2.5, 80, 0.1
"""What a leaf that is visited takes for a row, in terms of a node of the others: for each of few references; or for a
background, and for each of its rows."""
DEEP_ROUTED = 2**25
"""Answers of splits that are held at a time where rows that fail the same set at a leaf are worked on once."""
STEP_WORK = 7
"""What a level of a tree takes on a row's way to its leaf, in the unit of `row_work`."""
ROWS_AT_A_TIME = 8_192
"""Rows, with their masked copies, that are turned into what trees see at a time."""


class TreeValues:
    """A forest and what replaces absent columns, made ready to explain any row.

    `background` is (sample, tree columns): one row for a reference; v(S) is the mean over the sample.
    """

    def __init__(self, forest: Forest, column_player: IntArray, n_players: int, background: Array) -> None:
        self.forest, self.n_players = forest, n_players
        paths = Paths.of(forest, column_player)
        self.tables = TreeTables.of(paths, background)
        leaves = forest.leaves
        self.deep = DeepLeaves(paths, leaves[self.tables.blocks.of_node[leaves] < 0], background)
        self.base_values: Array = forest.outputs(background).mean(axis=0)
        """v(none), (outputs,)."""

    def values(self, inputs: Array) -> Array:
        """The Shapley values of rows, (rows, players, outputs), in bounded memory; `inputs` is (rows, tree columns)."""
        n_outputs = self.forest.n_outputs
        parts = []
        most = DEEP_ROUTED if len(self.deep.leaves) else ROUTED
        for part in in_parts(inputs, max(self.forest.n_nodes, most // MOST_ROWS), most):
            goes_left = self.forest.goes_left(part)
            total = np.zeros((self.n_players * n_outputs, len(part)))
            self.tables.add_to(goes_left, total)
            self.deep.add_to(goes_left, total)
            parts.append(total.T.reshape(len(part), self.n_players, n_outputs))
        return np.concatenate(parts)

    @property
    def work(self) -> int:
        """What explaining a row takes (`row_work`)."""
        return row_work(self.forest, self.tables.blocks, len(self.deep.background))


def row_work(forest: Forest, blocks: Blocks, n_background: int) -> int:
    """What explaining a row takes, in units of about two nanoseconds: leaves in no block take it one by one.

    A leaf counts once for each output that it adds to, so that one model for each class costs its own trees alone.
    """
    adds = np.maximum(1, np.count_nonzero(forest.value[forest.leaves], axis=1))
    deep = int(adds[blocks.of_node[forest.leaves] < 0].sum())
    few = n_background <= FEW_REFERENCES
    each = REFERENCE_WORK * n_background if few else SETS_WORK + SET_WORK * n_background
    return round(forest.n_nodes * float(adds.mean()) + each * deep)


def output_work(forest: Forest) -> int:
    """What the outputs of a row take, in the unit of `row_work`."""
    return STEP_WORK * len(forest.roots) * max(1, sum(1 for _ in forest.levels()))


def masked_outputs(
    forest: Forest, column_player: IntArray, inputs: Array, coalitions: BoolArray, background: Array
) -> Array:
    """A forest's v(S), (rows, k, outputs): the mean over a background, (sample, columns), that replaces absent players.

    `inputs` (rows, columns); `coalitions` (k, players) of all rows, or (rows, k, players).
    """
    n, k = len(inputs), coalitions.shape[-2]
    result = np.zeros((n, k, forest.n_outputs))
    step = max(1, MASKED_NUMBERS // max(1, k * inputs.shape[1]))
    for start in range(0, n, step):
        part = slice(start, start + step)
        present = (coalitions if coalitions.ndim == 2 else coalitions[part])[..., column_player]
        for absent in background:
            masked = np.where(present, inputs[part, None, :], absent)
            result[part] += forest.outputs(masked.reshape(-1, inputs.shape[1])).reshape(result[part].shape)
    return result / len(background)


@dataclass(eq=False)
class PreparedTrees:
    """A game's trees and values, made once for a game; `checked` once they agreed with the model."""

    trees: TreeGame
    values: TreeValues
    absent: Array
    """What replaces absent columns as the trees see it, (sample, tree columns)."""
    checked: bool = False

    @property
    def n_trees(self) -> int:
        return len(self.trees.forest.roots)


def prepare_trees(game: Game, rows: Rows, most_checks: int | None = None) -> PreparedTrees:
    """The game's trees, ready for its rows; raises `NotTrees` where exact tree values cannot be had.

    The first call compares the trees with the model's outputs on `CHECKED` masked rows or, if that is fewer,
    `most_checks` of them: these are model evaluations.
    """
    if isinstance(game.prepared, NotTrees):
        raise game.prepared
    try:
        if game.prepared is None:
            trees = read_trees(game)
            absent = trees.encode(Table(game.absent, table_of(rows, "method='tree'").schema))
            game.prepared = PreparedTrees(
                trees, TreeValues(trees.forest, trees.column_player, game.n_players, absent), absent
            )
        prepared: PreparedTrees = game.prepared
        if not prepared.checked:
            prepared.checked = check_trees(game, prepared.trees, table_of(rows, "method='tree'"), most_checks)
    except NotTrees as error:
        game.prepared = error
        raise
    return prepared


def trees_of(game: Game) -> TreeGame | None:
    """The trees of a game, or None; the model is not asked whether it agrees with them."""
    try:
        return game.prepared.trees if isinstance(game.prepared, PreparedTrees) else read_trees(game)
    except InputError:  # no trees, or a game that does not know its columns yet
        return None


def tree_labels(
    game: Game, rows: Rows, *, views: int = 0, seed: int = 0, most_checks: int | None = None,
    progress: bool | None = None,
) -> Explanation:  # fmt: skip
    """Exact labels of rows, with `views` masked copies of each where the game has one reference."""
    started, spent = perf_counter(), game.evaluations
    prepared = prepare_trees(game, rows, most_checks)
    table = table_of(rows, "method='tree'")
    n_outputs, n_trees = prepared.trees.forest.n_outputs, prepared.n_trees
    values = np.empty((len(rows), game.n_players, n_outputs))
    copies: list[Views] = []
    n_views = views if game.evaluations_per_value == 1 else 0
    step = max(1, ROWS_AT_A_TIME // (1 + n_views))
    with progress_bar("labels (tree)", len(rows), show=progress) as advance:
        for start in range(0, len(rows), step):
            part = slice(start, min(start + step, len(rows)))
            inputs = prepared.trees.encode(table.take(part))
            values[part] = np.where(rows.active[part][:, :, None], prepared.values.values(inputs), 0.0)
            if n_views:
                copies.append(_views(prepared, game, rows, part, inputs, n_views, seed))
            advance(part.stop - part.start, "")
    base = np.tile(prepared.values.base_values, (len(rows), 1))
    outputs = base + values.sum(axis=1)  # exact values add up: the trees need not be asked again
    one = n_outputs == 1
    return Explanation(
        values=values[..., 0] if one else values,
        base_values=base[..., 0] if one else base,
        feature_names=game.players.names,
        data=rows.data,
        output_names=game.names_of(n_outputs),
        error_std=np.zeros(values.shape[:2] if one else values.shape),
        outputs=outputs[..., 0] if one else outputs,
        evaluations=game.evaluations - spent,
        row_evaluations=np.zeros(len(rows), dtype=np.int64),
        seconds=perf_counter() - started,
        method="tree",
        exact=np.ones(len(rows), dtype=bool),
        views=Views.concatenate(copies) if copies else None,
        tree_passes=len(rows) * n_trees * (1 + n_views),
    )


def _views(
    prepared: PreparedTrees, game: Game, rows: Rows, part: slice, inputs: Array, n_views: int, seed: int
) -> Views:
    """Masked copies of some rows, which are rows themselves where there is one reference."""
    words, n_players = rows.words[part], game.n_players
    draws = row_uniforms(words, stream_seed(seed, "tree views"), 0, n_views * n_players)
    kept = draws.reshape(len(words) * n_views, n_players) < VIEW_KEEP
    kept &= np.repeat(rows.active[part], n_views, axis=0)
    masked = np.where(kept[:, prepared.trees.column_player], np.repeat(inputs, n_views, axis=0), prepared.absent)
    return Views(
        rows=np.repeat(np.arange(part.start, part.stop), n_views),
        kept=kept,
        values=np.where(kept[:, :, None], prepared.values.values(masked), 0.0),
        outputs=prepared.trees.forest.outputs(masked),
    )
