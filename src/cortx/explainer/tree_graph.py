"""Trees as an ONNX graph: from encoded rows to exact Shapley values, by the tables of `estimators.tree_tables`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.estimators.tree import TreeValues
from cortx.estimators.tree_tables import MOST_BITS, TABLE_NUMBERS, TreeTables
from cortx.explainer.onnx_graph import DOUBLE, INT32, Graph
from cortx.explainer.session import ROWS_AT_A_TIME
from cortx.games.forest import Forest, IntArray

COLUMNS_TOGETHER = 2**12
"""Columns of tables that one node looks up, about."""
NUMBERS_TOGETHER = 2**20
"""Numbers that a node makes of all rows of one run, about."""
NO_BITS: npt.NDArray[Any] = np.array(0, dtype=np.int32)


class TreeGraph:
    """The graph of a forest: inputs "rows" (n, columns) and "outputs" (n, outputs); output "values" (n, players,
    outputs), float64.

    "outputs" changes nothing: it is there because other explainers need it. With `bounds` come "lower_bounds" and
    "upper_bounds", the values again, and "error_bound" (n, outputs), zeros. All comparisons are made in float64.
    """

    def __init__(self, values: TreeValues, n_columns: int, *, bounds: bool) -> None:
        check_size(values)
        self.graph, self._width = Graph(), 1
        graph, n_outputs = self.graph, values.forest.n_outputs
        shape = ("n", values.n_players, n_outputs)
        rows = graph.input("rows", DOUBLE, "n", n_columns)
        graph.input("outputs", DOUBLE, "n", n_outputs)
        self._count = graph("Slice", graph("Shape", rows), np.array([0]), np.array([1]))  # (1,): n
        found = self._values(values, rows)  # (n, players x outputs)
        found = graph("Reshape", found, np.array([0, values.n_players, n_outputs]))
        graph.output("values", found, DOUBLE, *shape)
        if bounds:
            graph.output("lower_bounds", found, DOUBLE, *shape)
            graph.output("upper_bounds", found, DOUBLE, *shape)
            zeros = graph("Transpose", self._zeros(n_outputs, DOUBLE), perm=[1, 0])
            graph.output("error_bound", zeros, DOUBLE, "n", n_outputs)

    @property
    def rows_at_a_time(self) -> int:
        """How many rows one run may have for its memory to stay small."""
        return max(1, min(ROWS_AT_A_TIME, NUMBERS_TOGETHER // self._width))

    def _zeros(self, lines: int, kind: int) -> str:
        """(lines, n) zeros."""
        dtype = np.float64 if kind == DOUBLE else np.int32
        shape = self.graph("Concat", np.array([lines]), self._count, axis=0)
        return self.graph("ConstantOfShape", shape, value=self.graph.tensor(np.zeros(1, dtype=dtype)))

    def _wide(self, lines: int) -> None:
        """Notes that a node makes so many numbers of each row."""
        self._width = max(self._width, lines)

    def _values(self, values: TreeValues, rows: str) -> str:
        """(n, players x outputs)."""
        graph, tables = self.graph, values.tables
        nothing = self._zeros(1, DOUBLE)
        place = np.zeros(values.n_players * values.forest.n_outputs, dtype=np.int64)  # where its sum is, (targets,)
        parts = [nothing]
        self._wide(len(place))
        if len(tables.block):
            patterns = self._patterns(tables, *self._goes_left(values.forest, rows))
            numbers = graph.constant(np.append(tables.numbers, 0.0), "tables")
            done = 1
            for targets, columns in rectangles(tables):
                parts.append(self._sums(tables, patterns, numbers, columns))
                place[tables.targets[targets]] = np.arange(done, done + len(targets))
                done += len(targets)
        return graph("Transpose", graph("Gather", graph("Concat", *parts, axis=0), place), perm=[1, 0])

    def _goes_left(self, forest: Forest, rows: str) -> tuple[str, IntArray]:
        """Answers of splits, (answers, n), and for each of `Forest.splits` its place among them: many ask the same."""
        graph = self.graph
        by_column = graph("Transpose", rows, perm=[1, 0])
        place = np.empty(len(forest.splits), dtype=np.int64)
        parts: list[str] = []
        done = 0
        column, by_category = forest.column[forest.splits], forest.categories[forest.splits] >= 0
        for j in np.unique(column).tolist():
            numbers = graph("Gather", by_column, np.array([j]))  # (1, n)
            missing = graph("IsNaN", numbers)
            for kind in (False, True):
                here = np.flatnonzero((column == j) & (by_category == kind))
                if len(here):
                    make = self._in_categories if kind else self._at_most
                    answers, which = make(forest, forest.splits[here], numbers, missing)
                    parts.append(answers)
                    place[here] = done + which
                    done += int(which.max()) + 1
        self._wide(done)
        return graph("Concat", *parts, axis=0), place

    def _at_most(self, forest: Forest, splits: IntArray, numbers: str, missing: str) -> tuple[str, IntArray]:
        """Answers of splits with thresholds of one column, (answers, n), and the answer of each split."""
        asked, which = np.unique(
            np.stack([forest.threshold[splits], forest.missing_left[splits]]), axis=1, return_inverse=True
        )
        answers = self.graph("LessOrEqual", numbers, asked[0][:, None])
        if asked[1].any():
            lost = self.graph("And", missing, asked[1][:, None] > 0)
            answers = self.graph("Or", answers, lost)
        return answers, np.ravel(which)

    def _in_categories(self, forest: Forest, splits: IntArray, numbers: str, missing: str) -> tuple[str, IntArray]:
        """As `_at_most`, for splits by categories: a look-up with one entry for each code."""
        graph, sets = self.graph, forest.categories[splits]
        codes = forest.category_left.shape[1]
        other, lost = forest.other_left[sets][:, None], forest.missing_left[splits][:, None]
        # Below all codes, the codes, above all codes, missing.
        asked, which = np.unique(
            np.concatenate([other, forest.category_left[sets], other, lost], axis=1), axis=0, return_inverse=True
        )
        known = graph("Min", graph("Max", numbers, np.array(-1.0)), np.array(float(codes)))
        known = graph("Where", missing, np.array(float(codes + 1)), known)
        place = graph("Add", graph("Cast", known, to=INT32), np.array(1, dtype=np.int32))
        return graph("Gather", asked, graph("Squeeze", place, np.array([0])), axis=1), np.ravel(which)

    def _patterns(self, tables: TreeTables, goes_left: str, place: IntArray) -> str:
        """The bits of rows in each block, (blocks + 1, n), as `TreeTables` makes them, and zeros at the end."""
        graph, n_blocks = self.graph, len(tables.blocks.roots)
        parts, position = [self._zeros(1, INT32)], np.zeros(n_blocks + 1, dtype=np.int64)
        masks, done = "", 1
        for step in tables.descents:
            goes = graph("Gather", goes_left, place[step.splits])
            weight = step.flip.astype(np.int32)
            fails = [graph("Where", goes, *pair) for pair in ((NO_BITS, weight), (weight, NO_BITS))]
            if masks:
                fails = [graph("BitwiseOr", masks, side) for side in fails]
            children = graph("Concat", *fails, axis=0)
            self._wide(2 * len(step.splits))
            if len(step.to_blocks):
                parts.append(graph("Gather", children, step.to_blocks))
                position[step.blocks] = np.arange(done, done + len(step.blocks))
                done += len(step.blocks)
            if len(step.to_splits):
                masks = graph("Gather", children, step.to_splits)
        self._wide(n_blocks + 1)
        patterns = graph("Gather", graph("Concat", *parts, axis=0), position)
        inner = ""
        sizes = [n_blocks + 1, *(len(splits) for splits, _ in tables.inside)]
        for (splits, shift), longer in zip(reversed(tables.inside), reversed(sizes[:-1]), strict=True):
            goes = graph("Gather", goes_left, place[splits])
            bits = graph("Where", goes, np.int32(1) << shift.astype(np.int32), NO_BITS)
            inner = bits if not inner else graph("Add", inner, bits)
            inner = graph("Pad", inner, np.array([0, 0, longer - len(splits), 0]))
        return graph("Add", patterns, inner) if inner else patterns

    def _sums(self, tables: TreeTables, patterns: str, numbers: str, columns: IntArray) -> str:
        """The sums of columns, (targets, columns each), -1 for none, at the bits of rows, (targets, n)."""
        graph = self.graph
        self._wide(columns.size)
        block = np.where(columns < 0, len(tables.blocks.roots), tables.block[columns])
        base = np.where(columns < 0, len(tables.numbers), tables.base[columns, 0])
        index = graph("Add", graph("Gather", patterns, block), base.astype(np.int32)[:, :, None])
        # Not Gather, which takes ten times as long for single numbers.
        found = graph("GatherElements", numbers, graph("Reshape", index, np.array([-1])))
        return graph("ReduceSum", graph("Reshape", found, np.array([*columns.shape, -1])), np.array([1]), keepdims=0)


def rectangles(tables: TreeTables) -> Iterator[tuple[IntArray, IntArray]]:
    """Targets (places in `TreeTables.targets`) in groups, with their columns, (targets, columns each), -1 for none.

    Targets of a group have about equally many columns, so that little is added up in vain.
    """
    ends = np.append(tables.starts[1:], len(tables.block))
    counts = ends - tables.starts
    order = np.argsort(-counts, kind="stable")
    start = 0
    while start < len(order):
        width = int(counts[order[start]])
        most = max(1, COLUMNS_TOGETHER // width)
        similar = int((counts[order[start : start + most]] > width // 2).sum())
        targets = order[start : start + similar]
        columns = tables.starts[targets][:, None] + np.arange(width)
        yield targets, np.where(columns < ends[targets][:, None], columns, -1)
        start += similar


def check_size(values: TreeValues) -> None:
    """Refuses trees that are too deep for tables; such leaves are visited one by one, which no graph can do."""
    deep = values.deep.leaves
    if len(deep):
        most = int(values.deep.paths.count[deep].max())
        raise InputError(
            f"{len(deep):,} of {len(values.forest.leaves):,} leaves are too deep for an ONNX graph (up to {most} "
            f"features on their path): their tables would have more than {TABLE_NUMBERS:,} numbers, or more than "
            f"{MOST_BITS} features each. Save the explainer instead, which cortx.load and cortx serve read without the "
            "model; or fit a cortx.CoRTX to the same game, which learns from its exact values, and export that; or "
            "limit the depth of the trees"
        )
