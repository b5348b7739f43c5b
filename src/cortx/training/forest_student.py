"""A student of boosted trees: it learns v(S) of functions with steps, and its Shapley values are exact."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.estimators.block import adding_up
from cortx.estimators.tree import TreeValues, masked_outputs
from cortx.games import GameSpec, Rows
from cortx.games.forest import Forest
from cortx.games.game import table_of
from cortx.games.tree_readers import read_sklearn_histogram
from cortx.tables import Schema
from cortx.threads import openmp
from cortx.training.tree_teacher import CHEAP, exact_labels, most_asked, most_labels

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
ROUNDS, LEAVES, DEPTH, RATE = 300, 31, 8, 0.1
"""Rounds of boosting, leaves and depth of a tree at most, and the learning rate. Paths of 8 players have tables."""
LEARNED_BYTES, LEARNED_ROWS = 128 * 2**20, 400_000
"""Memory for the masked rows that trees learn from, and how many they are at most, those of all outputs together."""


@dataclass(frozen=True, eq=False)
class ForestStudent:
    """Boosted trees on masked rows (`cortx.estimators.block.Student`), where absent players have the reference.

    With a background absent players are missing. Players that equal their reference count as absent.
    """

    kind: ClassVar[str] = "trees"

    forest: Forest
    """Of encoded rows."""
    column_player: IntArray
    absent: Array
    """(1, columns): the reference; with a background all is missing."""
    reference: Array
    """(columns,) what makes no difference in a column; infinity if everything does."""
    schema: Schema
    """Of the table that it learned from: what its codes of categories mean."""
    base_values: Array
    """v(none) of the game, (outputs,)."""

    @cached_property
    def n_players(self) -> int:
        return int(self.column_player.max()) + 1

    @cached_property
    def explained(self) -> TreeValues:
        """Its trees, ready to explain rows."""
        return TreeValues(self.forest, self.column_player, self.n_players, self.absent)

    def _inputs_of(self, rows: Rows) -> Array:
        matrix = table_of(rows, "a student").coded_like(self.schema)
        # The game may have another reference by now.
        return self._inputs(np.where(rows.active[:, self.column_player], matrix, self.absent))

    def _inputs(self, matrix: Array) -> Array:
        """Rows in which players that equal their reference are absent."""
        changed = (matrix != self.reference) & ~(np.isnan(matrix) & np.isnan(self.reference))
        order = np.argsort(self.column_player, kind="stable")
        starts = np.searchsorted(self.column_player[order], np.arange(self.n_players))
        active = np.logical_or.reduceat(changed[:, order], starts, axis=1)
        return np.where(active[:, self.column_player], matrix, self.absent)

    def values(self, rows: Rows, coalitions: BoolArray) -> Array:
        """v(S), (rows, k, outputs), for coalitions (k, players) or (rows, k, players)."""
        found = masked_outputs(self.forest, self.column_player, self._inputs_of(rows), coalitions, self.absent)
        return self.base_values + found - self.explained.base_values

    def shapley(self, rows: Rows) -> Array:
        """Exact Shapley values of its own game, (rows, players, outputs)."""
        found = self.explained.values(self._inputs_of(rows))
        # Rounding is shared out, or rows near the reference would not add up.
        ends = self.values(rows, np.stack([np.zeros_like(rows.active), rows.active], axis=1))
        return adding_up(np.where(rows.active[..., None], found, 0.0), ends[:, 1] - ends[:, 0], rows.active)

    def label_count(self, n_rows: int, most: int) -> int:
        """Rows that are labelled for an explainer, however many the table has."""
        del n_rows
        return max(1, min(CHEAP * most, most_labels(self.explained.work)))

    @property
    def most_asked(self) -> int:
        """Values v(S) that it answers in about a minute."""
        return most_asked(self.forest, 1)

    def labels(self, codes: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Shapley values, (rows, players, outputs), and v(all) - v(none), (rows, outputs); nothing is drawn."""
        del seed
        return exact_labels(self.explained, self._inputs(codes.cpu().numpy()), codes.device)

    def totals(self, codes: Tensor) -> Tensor:
        """v(all) - v(none), (rows, outputs)."""
        found = self.forest.outputs(self._inputs(codes.cpu().numpy())) - self.explained.base_values
        return torch.from_numpy(found).to(codes.device, torch.float32)

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `from_tensors` makes the same student of: tensors on the CPU, and facts as JSON types."""
        arrays = {f"forest.{name}": np.array(getattr(self.forest, name)) for name in _FOREST_ARRAYS}
        arrays["reference"] = self.reference
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}, {}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], facts: dict[str, Any], spec: GameSpec) -> ForestStudent:
        """The student of saved tensors; raises `ValueError` where they are no trees of this game."""
        del facts
        arrays: dict[str, Any] = {name: tensors[f"forest.{name}"].numpy() for name in _FOREST_ARRAYS}
        forest = Forest(**arrays)
        forest.check()
        columns = len(spec.players.column_player)
        if forest.n_columns > columns or forest.n_outputs != len(spec.base_values):
            raise ValueError("the trees of the student are not of this game")
        absent = spec.absent if len(spec.absent) == 1 else np.full((1, columns), np.nan)
        reference = tensors["reference"].numpy()
        if reference.shape != (columns,):
            raise ValueError("the reference of the student has another number of columns")
        assert isinstance(spec.schema, Schema)
        return cls(forest, spec.players.column_player, absent, reference, spec.schema, spec.base_values)


_FOREST_ARRAYS = tuple(part.name for part in fields(Forest) if part.name not in ("single", "allows_missing"))


def can_grow() -> bool:
    """Whether scikit-learn, whose trees learn, is installed."""
    try:
        import sklearn.ensemble  # noqa: F401
    except ImportError:
        return False
    return True


def grow(inputs: Array, targets: npt.NDArray[np.floating[Any]], rounds: int, seed: int) -> Forest:
    """Boosted trees of masked rows, (n, columns), and their targets, (n, outputs): one model for each output."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    forests = []
    for target in targets.T:
        model = HistGradientBoostingRegressor(
            max_iter=rounds, max_leaf_nodes=LEAVES, max_depth=DEPTH, learning_rate=RATE, early_stopping=False,
            random_state=seed % 2**32,
        )  # fmt: skip
        with openmp():
            model.fit(inputs, target)
        forests.append(read_sklearn_histogram(model))
    return _side_by_side(forests)


def _side_by_side(forests: list[Forest]) -> Forest:
    """Forests of one output each, without category splits, as one forest of several outputs."""
    starts = np.cumsum([0, *(forest.n_nodes for forest in forests)])

    def joined(name: str, *, moved: bool = False) -> npt.NDArray[Any]:
        parts = [getattr(forest, name) for forest in forests]
        if moved:
            parts = [np.where(part < 0, part, part + start) for part, start in zip(parts, starts, strict=False)]
        return np.concatenate(parts)

    value = np.zeros((starts[-1], len(forests)))
    for output, forest in enumerate(forests):
        value[starts[output] : starts[output + 1], output] = forest.value[:, 0]
    arrays: dict[str, Any] = {
        **{name: joined(name) for name in ("column", "threshold", "missing_left", "categories", "offset")},
        **{name: joined(name, moved=True) for name in ("left", "right", "roots")},
    }
    return replace(forests[0], value=value, **arrays)
