"""A forest whose splits ask for the game's own columns, so that it explains rows without the model and its Pipeline.

A split asks whether g(x) is at most t, where g is what the steps of a Pipeline and the library make of a column. Where
g only rises or only falls, that is one threshold of x itself, found to the last digit by bisection; for a column of
categories it is a set of its values.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cortx.errors import CortxError
from cortx.games.forest import Array, BoolArray, Forest, IntArray
from cortx.games.game import Game
from cortx.games.tree_readers import NotTrees
from cortx.games.trees import TreeGame
from cortx.tables import Table

FAR = 1e30
"""Numbers of a column are taken to lie between minus this and this."""
MOST_CODES = 4_096
"""Different values of a column of categories, at most."""
COMPARED = 2_000
"""Rows on which the new forest must say exactly what the old one says."""
MOST_VALUES, AT_A_TIME = 20_000, 4_096
"""Different values of a column on which each of its splits must say what it said, at most; and how many at a time."""
NOT_MONOTONE = (
    "a step of the Pipeline neither rises nor falls with {}, so the trees cannot be told without it; use "
    "shapley(game, X, method='tree') with the model"
)


def on_own_columns(game: Game, trees: TreeGame, table: Table) -> tuple[Forest, BoolArray]:
    """The forest on encoded rows of the game's table, and the columns that may be missing, (columns,).

    `table` has typical rows and all known categories. Raises `NotTrees` where a column goes through a step that
    neither rises nor falls, or where numbers count as missing and are not told from others by a threshold.
    """
    if trees.missing_number is not None:
        raise NotTrees(
            f"the model takes {trees.missing_number:g} for missing (missing={trees.missing_number:g}), which is no "
            "threshold of a column; train it with missing values as NaN, or use shapley(game, X, method='tree') with "
            "the model"
        )
    made = _Rewriting(game, trees, table)
    for j in range(len(table.schema.columns)):
        made.rewrite(j)
    forest = made.forest()
    _compare(game, trees, forest, table)
    return forest, made.may_miss


class _Rewriting:
    def __init__(self, game: Game, trees: TreeGame, table: Table) -> None:
        self.trees, self.table, self.absent, self.start = trees, table, game.absent, game.absent[0]
        old = trees.forest
        self.column, self.threshold, self.missing_left = (
            old.column.copy(),
            old.threshold.copy(),
            old.missing_left.copy(),
        )
        self.left, self.right, self.categories = old.left.copy(), old.right.copy(), np.full(old.n_nodes, -1)
        self.sets: list[BoolArray] = []
        self.may_miss = np.zeros(len(table.schema.columns), dtype=bool)

    def forest(self) -> Forest:
        codes = max((len(known) for known in self.sets), default=0)
        category_left = np.zeros((len(self.sets), codes), dtype=bool)
        for place, known in enumerate(self.sets):
            category_left[place, : len(known)] = known
        return replace(
            self.trees.forest, column=self.column, threshold=self.threshold, missing_left=self.missing_left,
            left=self.left, right=self.right, categories=self.categories, category_left=category_left,
            other_left=np.zeros(len(self.sets), dtype=bool), single=False, allows_missing=True,
        )  # fmt: skip

    def rewrite(self, j: int) -> None:
        """Makes the splits that a column of the table decides ask for that column."""
        old, trees = self.trees.forest, self.trees
        splits = old.splits[trees.sources[old.column[old.splits]] == j]
        self.column[splits] = j
        column = self.table.schema.columns[j]
        swapped = np.zeros(len(splits), dtype=bool)
        if column.coded or column.categorical:
            self._sets(j, splits)
        elif (old.categories[splits] >= 0).any():
            raise NotTrees(f"column {column.name!r} is a category for the trees alone; name it in categorical=[...]")
        else:
            swapped = self._thresholds(j, splits)
        if not column.coded:  # else a missing value is one of the categories
            self.missing_left[splits] = self._missing(j, splits) ^ swapped

    def _inputs(self, j: int, numbers: Array) -> Array:
        """What the trees see of rows that differ in one column alone, (numbers, tree columns)."""
        rows = np.tile(self.start, (len(numbers), 1))
        rows[:, j] = numbers
        return self.trees.encode(Table(rows, self.table.schema))

    def _missing(self, j: int, splits: IntArray) -> BoolArray:
        """Which way a missing value goes; notes the columns where the model or its steps take none."""
        try:
            answers = self.trees.forest.goes_left(self._inputs(j, np.array([np.nan])))
        except CortxError:
            return np.zeros(len(splits), dtype=bool)
        self.may_miss[j] = True
        goes_left: BoolArray = answers[self.trees.forest.place[splits], 0]
        return goes_left

    def _sets(self, j: int, splits: IntArray) -> None:
        column, old = self.table.schema.columns[j], self.trees.forest
        if column.coded:
            codes = np.arange(len(column.values), dtype=np.float64)
        else:
            known = np.append(self.table.matrix[:, j], self.start[j])
            codes = np.unique(known[~np.isnan(known)])
        if len(codes) == 0:
            return
        if codes[0] < 0 or codes[-1] >= MOST_CODES or (codes != np.rint(codes)).any():
            raise NotTrees(f"column {column.name!r} has codes of categories that are not 0, 1, 2, ... {MOST_CODES - 1}")
        answers = old.goes_left(self._inputs(j, codes))[old.place[splits]]  # (splits, codes)
        wide = np.zeros((len(splits), int(codes[-1]) + 1), dtype=bool)
        wide[:, codes.astype(np.int64)] = answers
        unique, place = np.unique(wide, axis=0, return_inverse=True)
        self.categories[splits] = len(self.sets) + np.ravel(place)
        self.sets += list(unique)

    def _thresholds(self, j: int, splits: IntArray) -> BoolArray:
        """Finds the thresholds of the column itself; where the steps make it fall, left and right change places."""
        old = self.trees.forest
        if len(splits) == 0:
            return np.zeros(0, dtype=bool)
        kinds, first, place = np.unique(
            np.stack([old.column[splits].astype(np.float64), old.threshold[splits]]),
            axis=1, return_index=True, return_inverse=True,
        )  # fmt: skip
        some = splits[first]
        zero, beside = np.isnan(self._inputs(j, np.array([0.0, 5e-324])))
        if (zero > beside).any():
            raise NotTrees(
                f"column {self.table.schema.columns[j].name!r} becomes a sparse matrix, whose zeros XGBoost takes as "
                "missing; let the steps give dense ones (sparse_output=False, sparse_threshold=0)"
            )
        ends, missing_beyond = self._ends(j)
        low, high = (np.full(kinds.shape[1], end) for end in ends)
        at_low, at_high = (old.answers(some, self._inputs(j, ends)) for ends in (low, high))
        for beyond, answers in zip(missing_beyond, (at_low, at_high), strict=True):
            if beyond and (self._missing(j, some) != answers).any():
                raise NotTrees(
                    f"a step of the Pipeline makes numbers of column {self.table.schema.columns[j].name!r} missing "
                    "that lie outside of the table's, and the trees send missing values another way than the numbers "
                    "beside them; let the step clip such numbers, or use shapley(game, X, method='tree') with the model"
                )
        below, above = _ordered(low), _ordered(high)
        while (below + 1 < above).any():
            middle = below // 2 + above // 2 + (below % 2 + above % 2) // 2  # their sum may be too large
            same = old.answers(some, self._inputs(j, _number(middle))) == at_low
            below, above = np.where(same, middle, below), np.where(same, above, middle)
        rises = at_low & ~at_high
        falls = ~at_low & at_high
        threshold = np.where(rises | falls, _number(below), np.where(at_low, np.inf, -np.inf))
        place = np.ravel(place)
        self._check_thresholds(j, some, threshold, falls)
        self.threshold[splits] = threshold[place]
        swapped = splits[falls[place]]
        self.left[swapped], self.right[swapped] = self.right[swapped], self.left[swapped]
        return falls[place]

    def _check_thresholds(self, j: int, splits: IntArray, threshold: Array, falls: BoolArray) -> None:
        """Refuses thresholds, (splits,), that say something else of a value of the column, however rare it is."""
        numbers = np.concatenate([self.table.matrix[:, j], self.absent[:, j]])
        known = np.unique(numbers[~np.isnan(numbers)])
        if len(known) > MOST_VALUES:
            known = known[np.linspace(0, len(known) - 1, MOST_VALUES).astype(np.int64)]
        old = self.trees.forest
        for start in range(0, len(known), AT_A_TIME):
            values = known[start : start + AT_A_TIME]
            inputs = self._inputs(j, values)
            for column in np.unique(old.column[splits]):
                here = np.flatnonzero(old.column[splits] == column)
                numbers = inputs[:, column].astype(np.float32) if old.single else inputs[:, column]
                # A split of a column of numbers: answers of the trees, and of the new thresholds, (splits, values).
                left = numbers <= old.thresholds_of(splits[here])[:, None]
                left = np.where(np.isnan(numbers), old.missing_left[splits[here], None], left)
                if ((values <= threshold[here, None]) ^ falls[here, None] != left).any():
                    name = self.table.schema.columns[j].name
                    raise NotTrees(
                        f"{NOT_MONOTONE.format(f'its column {name!r}')}; or, if it is a category, name it in "
                        "categorical=[...]"
                    )

    def _ends(self, j: int) -> tuple[tuple[float, float], tuple[bool, bool]]:
        """The least and the most number to ask for, and whether those beyond become missing.

        Some steps, such as a logarithm, do not take any number.
        """
        numbers = np.append(self.table.matrix[:, j], self.start[j])
        known = numbers[~np.isnan(numbers)]
        ends, missing = [], []
        for far, near in ((-FAR, known.min(initial=0.0)), (FAR, known.max(initial=0.0))):
            try:
                with np.errstate(all="ignore"):
                    there, here = np.isnan(self._inputs(j, np.array([far, near])))
                fine = bool((there <= here).all())  # NaN only where a number of the table gives NaN too
                missing.append(not fine)
            except CortxError:
                fine = False
                missing.append(False)
            ends.append(far if fine else float(near))
        return (ends[0], ends[1]), (missing[0], missing[1])


def _ordered(numbers: Array) -> IntArray:
    """Whole numbers in the order of float64 numbers, neighbours to neighbours."""
    bits = numbers.view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)


def _number(ordered: IntArray) -> Array:
    """The float64 numbers back."""
    return np.where(ordered < 0, np.int64(-(2**63)) - ordered, ordered).view(np.float64)


def _compare(game: Game, trees: TreeGame, forest: Forest, table: Table) -> None:
    """Both forests must agree on rows of the table, the reference, and mixtures of both."""
    rng = np.random.default_rng(0)
    rows = table.matrix[rng.permutation(len(table))[:COMPARED]]
    absent = game.absent[rng.integers(0, len(game.absent), len(rows))]
    mixed = np.where(game.players.columns(rng.random((len(rows), game.n_players)) < 0.5), rows, absent)
    for matrix in (rows, absent, mixed):
        expected = trees.outputs(Table(matrix, table.schema))
        if not np.allclose(forest.outputs(matrix), expected, rtol=0, atol=1e-9 * (1 + np.abs(expected).max())):
            raise NotTrees(NOT_MONOTONE.format("its column"))
