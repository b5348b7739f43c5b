"""`Forest`: trees of any library as flat arrays, and which way rows go at each of their splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ROUTED = 2**22
"""Answers of splits, splits x rows, that are held at a time when whole tables go through a forest."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees as flat arrays over all their nodes; the output of a row is `offset` plus the values of its leaves.

    A split sends a row to `left` if its column is at most `threshold`, a category split if the column's code, a whole
    number, is one of its categories. A missing value goes where `missing_left` says.
    """

    column: IntArray
    """(nodes,) the column a split looks at; -1 for a leaf."""
    threshold: Array
    """(nodes,)."""
    left: IntArray
    """(nodes,) positions of children; -1 for a leaf."""
    right: IntArray
    missing_left: BoolArray
    """(nodes,)."""
    value: Array
    """(nodes, outputs) what a leaf adds to the outputs; zeros for splits."""
    roots: IntArray
    """(trees,)."""
    offset: Array
    """(outputs,)."""
    categories: IntArray
    """(nodes,) for a category split the row of `category_left` that lists its categories; else -1."""
    category_left: BoolArray
    """(sets, codes): the codes that go left."""
    other_left: BoolArray
    """(sets,): whether codes that the set does not know go left."""
    single: bool = False
    """Whether the library compares columns as float32."""
    allows_missing: bool = True
    """Whether the model takes missing values."""

    @property
    def n_nodes(self) -> int:
        return len(self.column)

    @property
    def n_outputs(self) -> int:
        return int(self.value.shape[1])

    @cached_property
    def n_columns(self) -> int:
        """The columns that splits look at, at least."""
        return int(self.column.max(initial=-1)) + 1

    @cached_property
    def leaves(self) -> IntArray:
        """(leaves,) their nodes, those that a root reaches."""
        reached = [child[splits] for splits in self.levels() for child in (self.left, self.right)]
        nodes = np.sort(np.concatenate([self.roots, *reached]))
        leaves: IntArray = nodes[self.column[nodes] < 0]
        return leaves

    @cached_property
    def splits(self) -> IntArray:
        """(splits,) their nodes in the order of `goes_left`: those with thresholds by column, then category splits."""
        return np.concatenate([nodes for _, nodes in self._by_column])

    @cached_property
    def place(self) -> IntArray:
        """(nodes,) where `goes_left` answers for a split; 0 for leaves."""
        place = np.zeros(self.n_nodes, dtype=np.int64)
        place[self.splits] = np.arange(len(self.splits))
        return place

    @cached_property
    def _by_column(self) -> list[tuple[int, IntArray]]:
        """For each column its splits that have a threshold; last, as column -1, all category splits."""
        plain = np.flatnonzero((self.column >= 0) & (self.categories < 0))
        plain = plain[np.argsort(self.column[plain], kind="stable")]
        columns, starts = np.unique(self.column[plain], return_index=True)
        groups = np.split(plain, starts[1:]) if len(plain) else []
        return [*zip(columns.tolist(), groups, strict=True), (-1, np.flatnonzero(self.categories >= 0))]

    @cached_property
    def _thresholds(self) -> npt.NDArray[np.floating[Any]]:
        """(splits,) in the precision of the columns: a float32 is at most t if it is at most the float32 below t."""
        exact = self.threshold[self.splits]
        if not self.single:
            return exact
        nearest = exact.astype(np.float32)
        with np.errstate(over="ignore"):  # CatBoost has splits at the least float32
            below = np.nextafter(nearest, np.float32(-np.inf))
        return np.where(nearest.astype(np.float64) > exact, below, nearest)

    def goes_left(self, inputs: Array) -> BoolArray:
        """Which way rows, (rows, columns), go at every one of `splits`, (splits, rows): true for left."""
        if not self.allows_missing and np.isnan(inputs).any():
            raise InputError("the rows or the reference hold missing values, which this model does not take")
        columns = np.ascontiguousarray(inputs.T, dtype=np.float32 if self.single else np.float64)
        answers = np.empty((len(self.splits), len(inputs)), dtype=bool)
        thresholds, start = self._thresholds, 0
        for column, nodes in self._by_column[:-1]:
            numbers, here = columns[column], slice(start, start + len(nodes))
            np.less_equal(numbers, thresholds[here, None], out=answers[here])
            missing = np.isnan(numbers)
            if missing.any():
                answers[here, missing] = self.missing_left[nodes][:, None]
            start += len(nodes)
        for place, split in enumerate(self._by_column[-1][1].tolist(), start):
            answers[place] = self._in_categories(split, columns[self.column[split]].astype(np.float64))
        return answers

    def _in_categories(self, split: int, numbers: Array) -> BoolArray:
        place = int(self.categories[split])
        known = self.category_left[place]
        missing = np.isnan(numbers)
        codes = np.where(missing, -1, np.trunc(numbers)).astype(np.int64)
        inside = (codes >= 0) & (codes < len(known))
        answers = np.where(inside, known[np.where(inside, codes, 0)], self.other_left[place])
        result: BoolArray = np.where(missing, self.missing_left[split], answers)
        return result

    def outputs(self, inputs: Array) -> Array:
        """The forest's own outputs of rows, (rows, outputs), in bounded memory."""
        result = np.empty((len(inputs), self.n_outputs))
        step = max(1, ROUTED // max(1, self.n_nodes))
        for start in range(0, len(inputs), step):
            part = inputs[start : start + step]
            result[start : start + step] = self._outputs(self.goes_left(part))
        return result

    def _outputs(self, goes_left: BoolArray) -> Array:
        n = goes_left.shape[1]
        here = np.broadcast_to(self.roots[:, None], (len(self.roots), n)).copy()  # (trees, rows)
        rows = np.arange(n)
        while True:
            moving = self.column[here] >= 0
            if not moving.any():
                break
            child = np.where(goes_left[self.place[here], rows], self.left[here], self.right[here])
            here = np.where(moving, child, here)
        total = np.tile(self.offset, (n, 1))
        for leaves in here:
            total += self.value[leaves]
        return total

    def thresholds_of(self, splits: IntArray) -> npt.NDArray[Any]:
        """Thresholds of splits as inputs are compared with them."""
        return self._thresholds[self.place[splits]]

    def answers(self, splits: IntArray, inputs: Array) -> BoolArray:
        """Whether row i goes left at ``splits[i]``, (rows,): for splits with thresholds."""
        numbers = inputs[np.arange(len(splits)), self.column[splits]]
        numbers = numbers.astype(np.float32) if self.single else numbers
        left: BoolArray = numbers <= self.thresholds_of(splits)
        return np.where(np.isnan(numbers), self.missing_left[splits], left)

    def check(self) -> None:
        """Refuses arrays that are no trees, with `ValueError`: what a damaged file may hold."""
        n = self.n_nodes
        inner = np.flatnonzero(self.column >= 0)
        children = np.concatenate([self.left[inner], self.right[inner]])
        sizes = {len(part) for part in (self.threshold, self.left, self.right, self.missing_left, self.value,
                                        self.categories)}  # fmt: skip
        if sizes != {n} or self.value.shape != (n, len(self.offset)) or len(self.roots) == 0:
            raise ValueError("the arrays of the trees have different sizes")
        for places, most in ((children, n), (self.roots, n), (self.categories + 1, len(self.category_left) + 1)):
            if len(places) and not (places.min() >= 0 and places.max() < most):
                raise ValueError("a node of the trees names another one that does not exist")
        # With one parent at most, and none for a root, nothing that a root reaches is a circle.
        parents = np.bincount(children, minlength=n)
        if parents.max(initial=0) > 1 or parents[self.roots].any() or len(set(self.roots.tolist())) < len(self.roots):
            raise ValueError("the nodes of the trees form no trees")
        if not (np.isfinite(self.value).all() and np.isfinite(self.offset).all()):
            raise ValueError("the values of the trees are not finite")

    def levels(self) -> Iterator[IntArray]:
        """The splits, level by level from the roots."""
        here = self.roots
        while True:
            here = here[self.column[here] >= 0]
            if len(here) == 0:
                return
            yield here
            here = np.concatenate([self.left[here], self.right[here]])


@dataclass
class ForestBuilder:
    """Collects trees, each as arrays over its own nodes, into a `Forest`."""

    n_outputs: int
    single: bool = False
    allows_missing: bool = True
    _parts: list[dict[str, npt.NDArray[np.generic]]] = field(default_factory=list)
    _roots: list[int] = field(default_factory=list)
    _sets: list[tuple[BoolArray, bool]] = field(default_factory=list)
    _size: int = 0

    def category_set(self, left: BoolArray, *, other_left: bool) -> int:
        """Registers the codes that go left at a category split; returns the number of the set."""
        self._sets.append((left, other_left))
        return len(self._sets) - 1

    def add(
        self,
        column: npt.ArrayLike,
        threshold: npt.ArrayLike,
        children: tuple[npt.ArrayLike, npt.ArrayLike],
        missing_left: npt.ArrayLike,
        value: Array,
        categories: npt.ArrayLike | None = None,
    ) -> None:
        """One tree; node 0 is its root. `column` and children are -1 at leaves; `value` is (nodes, outputs)."""
        columns = np.asarray(column, dtype=np.int64)
        leaf = columns < 0
        left, right = (np.where(leaf, -1, np.asarray(child, dtype=np.int64) + self._size) for child in children)
        part = {
            "column": np.where(leaf, -1, columns),
            "threshold": np.where(leaf, 0.0, np.asarray(threshold, dtype=np.float64)),
            "left": left,
            "right": right,
            "missing_left": np.asarray(missing_left, dtype=bool),
            "value": np.where(leaf[:, None], value, 0.0),
            "categories": np.full(len(columns), -1) if categories is None else np.asarray(categories, dtype=np.int64),
        }
        self._parts.append(part)
        self._roots.append(self._size)
        self._size += len(columns)

    def build(self, offset: Array) -> Forest:
        if not self._parts:  # a model without trees is its offset
            self.add([-1], [0.0], ([-1], [-1]), [False], np.zeros((1, self.n_outputs)))
        whole = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        codes = max((len(left) for left, _ in self._sets), default=0)
        category_left = np.zeros((len(self._sets), codes), dtype=bool)
        for place, (left, other) in enumerate(self._sets):
            category_left[place] = other
            category_left[place, : len(left)] = left
        return Forest(
            **whole,
            roots=np.array(self._roots, dtype=np.int64),
            offset=np.asarray(offset, dtype=np.float64).reshape(self.n_outputs),
            category_left=category_left,
            other_left=np.array([other for _, other in self._sets], dtype=bool),
            single=self.single,
            allows_missing=self.allows_missing,
        )


def one_output(numbers: Sequence[float] | Array, output: int, n_outputs: int) -> Array:
    """Values of nodes that belong to one output, as (nodes, outputs)."""
    value = np.zeros((len(numbers), n_outputs))
    value[:, output] = numbers
    return value
