"""What `explain` takes: rows like those of training, and outputs that belong to them. Needs no torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError, StrangeRows
from cortx.images import Images, ImageSchema, described, read_like
from cortx.tables import RowError, Schema, Table

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
LARGEST_OUTPUT = 1e30
"""Of a model's outputs: the network computes with them in float32, which ends at 3e38."""
MARGIN = 0.25
"""How far outside the training values a number may lie, as a share of their range, before it counts as strange."""
NAMES_IN_TEXT = 3


@dataclass(frozen=True, eq=False)
class Seen:
    """What the training rows held: the columns that missed values, and the known codes of categorical columns."""

    schema: Schema | ImageSchema
    missing: frozenset[int]
    known: Mapping[int, Array]
    """Column -> its codes in ascending order; columns of numbers are not in it."""
    ignore: bool
    """Whether a category that is not known is let through."""
    ranges: Array | None = None
    """(2, columns): the least and the most of each column's training values, NaN for categories; of images, of their
    statistics. Portable folders of the first version do not know them."""
    of_trees: bool = False
    """Whether a `TreeExplainer` reads the rows, which learned nothing and knows the categories of its table."""

    def read(self, X: Any) -> Table | Images:
        """Rows in the explainer's own codes; what no training row was like is refused."""
        table = read_like(X, self.schema, "the table")
        if isinstance(table, Images):
            return table
        if len(table) == 0:
            raise InputError("the table has no rows; give at least one")
        for j in self._checked(table):
            gaps, unseen = (np.flatnonzero(found) for found in self.unknown(table, j))
            if len(gaps):
                raise RowError(
                    f"column {table.schema.columns[j].name!r} is missing (NaN) in row ",
                    int(gaps[0]),
                    ", but no training row missed it; fill it as you do for the model, or fit again with rows that "
                    "miss it",
                )
            if len(unseen):
                raise _unseen(table, j, unseen, of_trees=self.of_trees)
        return table

    def explainable(self, table: Table | Images) -> BoolArray:
        """Rows that `read` does not refuse, (rows,)."""
        refused = np.zeros(len(table), dtype=bool)
        if isinstance(table, Images):
            return ~refused
        for j in self._checked(table):
            for found in self.unknown(table, j):
                refused |= found
        return ~refused

    def unknown(self, table: Table, j: int) -> tuple[BoolArray, BoolArray]:
        """Rows where column j misses a value, or has a category, as no training row did, (rows,) each."""
        numbers = table.matrix[:, j]
        missing: BoolArray = np.isnan(numbers)
        nowhere = np.zeros(len(table), dtype=bool)
        gaps = nowhere if j in self.missing else missing
        if j not in self._categories:
            return gaps, nowhere
        column = table.schema.columns[j]
        if not column.coded:
            return gaps, ~np.isin(numbers, self.known[j]) & ~missing
        known = np.zeros(len(column.values), dtype=bool)  # a look-up is many times faster than np.isin
        known[self.known[j].astype(np.intp)] = True
        return gaps, ~known[numbers.astype(np.intp)]

    def strange(self, table: Table | Images) -> BoolArray:
        """(rows, columns): where a value is outside of what training saw.

        A number is, if it lies farther outside the least and the most training value than `MARGIN` times their
        distance; a category, if no training row had it (and `ignore` lets it through).
        """
        described_ = described(table)
        found = np.zeros(described_.matrix.shape, dtype=bool)
        if self.ranges is not None:
            reach = MARGIN * (self.ranges[1] - self.ranges[0])
            low, high = self.ranges[0] - reach, self.ranges[1] + reach
            found |= (described_.matrix < low) | (described_.matrix > high)  # NaN is neither
        if self.ignore and isinstance(table, Table):
            strict = replace(self, ignore=False)
            for j in self.known:
                found[:, j] |= strict.unknown(table, j)[1]
        return found

    def warn_of_strange(self, table: Table | Images, calls: int = 1) -> bool:
        """Warns if any row is outside of what training saw, with the share of such rows; whether it did.

        `calls` lie between this one and the user's line, which the warning names.
        """
        found = self.strange(table)
        if not found.any():
            return False
        rows, columns = int(found.any(axis=1).sum()), np.flatnonzero(found.any(axis=0))
        order = columns[np.argsort(-found.sum(axis=0)[columns], kind="stable")][:NAMES_IN_TEXT]
        names = ", ".join(repr(described(table).schema.columns[j].name) for j in order)
        more = f" and {len(columns) - len(order)} more" if len(columns) > len(order) else ""
        warnings.warn(
            f"{rows:,} of {len(found):,} rows ({rows / len(found):.1%}) lie outside of what training saw, in "
            f"{names}{more}: the explainer guesses there, and bounds promise nothing; see explainer.evaluate(X), or "
            "fit again with such rows (said once)",
            StrangeRows,
            stacklevel=2 + calls,
        )
        return True

    @cached_property
    def _categories(self) -> frozenset[int]:
        return frozenset() if self.ignore else frozenset(self.known)

    def _checked(self, table: Table) -> list[int]:
        """The columns in which something can be unknown: usually those of categories alone."""
        if not np.isnan(table.matrix).any():
            return sorted(self._categories)
        return list(range(len(table.schema.columns)))


def check_players(column_player: npt.NDArray[Any], n_players: int, schema: Schema | ImageSchema) -> None:
    """Refuses sizes of a file that contradict each other, with `ValueError`: before anything is made that large."""
    n_columns = schema.n_numbers if isinstance(schema, ImageSchema) else len(schema.columns)
    if column_player.shape != (n_columns,):
        raise ValueError(f"there are {n_columns} columns, but the players of {column_player.size}")
    if not ((column_player >= 0) & (column_player < n_players)).all():
        raise ValueError(f"columns belong to players beyond the {n_players} that have names")


ROUNDING = 1e-4
"""Probabilities may be beyond 0 and 1 by this much, as those of models in reduced precision are."""


def output_range(output: str) -> tuple[float, float]:
    """What outputs of this kind may be given as: the least and the most."""
    return (-ROUNDING, 1 + ROUNDING) if output == "probability" else (-LARGEST_OUTPUT, LARGEST_OUTPUT)


def given_outputs(outputs: Any, shape: tuple[int, int], what: str, argument: str = "outputs") -> Array:
    """Outputs that came with rows, as (rows, outputs) float64; `what` they are is for the message."""
    known = np.ascontiguousarray(outputs, dtype=np.float64)
    known = known[:, None] if known.ndim == 1 else known
    if known.shape != shape:
        raise InputError(
            f"{argument}= has shape {np.shape(outputs)}, expected ({shape[0]}, {shape[1]}): "
            f"the model's {what} for each row"
        )
    if not (np.abs(known) <= LARGEST_OUTPUT).all():
        if np.isfinite(known).all():
            raise InputError(
                f"{argument}= holds numbers beyond {LARGEST_OUTPUT:g}, which cannot be explained; rescale them"
            )
        raise InputError(f"{argument}= holds NaN or infinity")
    least, most = output_range(what)
    if len(known) and not (known.min() >= least and known.max() <= most):
        raise InputError(
            f"{argument}= holds numbers from {known.min():.4g} to {known.max():.4g}, but the explainer explains "
            "probabilities, between 0 and 1; give what the game's model returned for these rows"
        )
    return known


def _unseen(table: Table, j: int, rows: npt.NDArray[np.intp], *, of_trees: bool) -> RowError:
    column = table.schema.columns[j]
    codes = np.unique(table.matrix[rows, j])[:5]
    names = [repr(column.values[int(code)]) if column.coded else f"{code:g}" for code in codes]
    advice = "fit again with them, or let the explainer guess: explainer.set_params(unseen='ignore')"
    if of_trees:
        advice = "make the TreeExplainer again with rows that have them: TreeExplainer(game, X)"
    return RowError(
        f"column {column.name!r} has categories that training never saw: {', '.join(names)} (first in row ",
        int(rows[0]),
        f", {len(rows)} rows in all); {advice}",
    )
