"""Exact Shapley values of trees by tables: what a small part of a tree gives each player, for all rows there can be.

A *block* is a subtree and the path to it. What its leaves give the players depends on few bits of a row: which slots
of the path it fails, and which way it goes at the splits of the subtree. So a table with one entry for each pattern of
bits, made once for a reference or a background, answers for any row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortx.estimators.tree_paths import Paths, bits_set, in_parts, joining_weights
from cortx.games.forest import Array, BoolArray, IntArray

Bits = npt.NDArray[np.uint16]
MERGED_BITS = 7
"""Bits of a row up to which subtrees of any form are one block: larger tables leave the processor's cache."""
MOST_BITS = 12
"""Bits of a row that the table of a block is made for, at most, if its subtree has no more than `FEW_SPLITS`."""
FEW_SPLITS = 3
TABLE_NUMBERS = 2**24
"""Numbers in all tables together, at most: 128 MiB."""
WORKING_NUMBERS = 2**20
"""Numbers in temporary arrays while tables are made, about."""
FEW_NUMBERS = 2**16
"""Numbers in temporary arrays while rows are explained: what stays in a processor's own cache."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """A division of a forest's leaves into blocks; leaves with too many players on their path are in none."""

    paths: Paths
    roots: IntArray
    """(blocks,) their nodes."""
    bits: IntArray
    """(blocks,)."""
    of_node: IntArray
    """(nodes,) the block of each node in one; else -1."""
    bit: IntArray
    """(nodes,) for splits in a block, the bit that says which way a row goes there."""

    @staticmethod
    def of(paths: Paths, most_bits: int) -> Blocks:
        forest = paths.forest
        bits = paths.count + paths.below
        of_node = np.full(forest.n_nodes, -1)
        fits = bits <= np.where(paths.below <= FEW_SPLITS, most_bits, min(most_bits, MERGED_BITS))
        at_root = np.zeros(forest.n_nodes, dtype=bool)
        at_root[forest.roots] = fits[forest.roots]
        levels = list(forest.levels())
        for splits in levels:
            open_ = splits[~fits[splits]]
            for children in (forest.left[open_], forest.right[open_]):
                at_root[children] = fits[children]
        roots = np.flatnonzero(at_root)
        roots = roots[np.argsort(-paths.below[roots], kind="stable")]  # those with most splits first
        of_node[roots] = np.arange(len(roots))
        bit = np.zeros(forest.n_nodes, dtype=np.int64)
        used = paths.count[roots].copy()
        for splits in levels:
            inside = splits[of_node[splits] >= 0]
            block = of_node[inside]
            order = np.argsort(block, kind="stable")
            inside, block = inside[order], block[order]
            start = np.searchsorted(block, block)
            bit[inside] = used[block] + np.arange(len(block)) - start
            np.add.at(used, block, 1)
            for children in (forest.left[inside], forest.right[inside]):
                of_node[children] = block
        return Blocks(paths, roots, bits[roots], of_node, bit)

    def leaves(self) -> IntArray:
        """The leaves in blocks."""
        leaves = self.paths.forest.leaves
        return leaves[self.of_node[leaves] >= 0]

    def slots(self) -> Slots:
        """All pairs of a block and a number that it adds to."""
        forest, paths, leaves = self.paths.forest, self.paths, self.leaves()
        leaf, output = np.nonzero(forest.value[leaves])
        counts = paths.count[leaves[leaf]]
        leaf, output = np.repeat(leaf, counts), np.repeat(output, counts)
        place = np.arange(len(leaf)) - np.repeat(np.cumsum(counts) - counts, counts)
        target = paths.players[leaves[leaf], place].astype(np.int64) * forest.n_outputs + output
        n_blocks = max(1, len(self.roots))
        pairs, column = np.unique(target * n_blocks + self.of_node[leaves[leaf]], return_inverse=True)
        targets, blocks = np.divmod(pairs, n_blocks)
        size = np.int64(1) << self.bits[blocks]
        base = np.cumsum(size) - size
        return Slots(targets, blocks, base, int(size.sum()), leaves[leaf], output, place, np.ravel(column))


@dataclass(frozen=True, eq=False)
class Slots:
    """Columns of tables: each adds the entry at a block's bits to one number of the answer."""

    target: IntArray
    """(columns,) ascending: player x outputs + output."""
    block: IntArray
    """(columns,)."""
    base: IntArray
    """(columns,) where the column starts among the numbers of all tables."""
    size: int
    leaf: IntArray
    """(entries,): the leaf, output, slot and column of every number that a leaf adds to."""
    leaf_output: IntArray
    leaf_slot: IntArray
    leaf_column: IntArray


def divided(paths: Paths, n_background: int) -> tuple[Blocks, Slots]:
    """The division of a forest with the most bits whose tables fit `TABLE_NUMBERS`.

    Of one reference a row reaches few leaves: where most leaves are too deep for tables, none gets one.
    """
    leaves = paths.forest.leaves
    for most_bits in range(MOST_BITS, -1, -1):
        blocks = Blocks.of(paths, most_bits)
        slots = blocks.slots()
        if slots.size <= TABLE_NUMBERS:
            break
    if n_background == 1 and (blocks.of_node[leaves] < 0).mean() > 0.5:
        blocks = Blocks.of(paths, 0)
        slots = blocks.slots()
    return blocks, slots


class TreeTables:
    """Tables for the blocks of a forest, made for the rows of a background (one row: a reference)."""

    def __init__(self, blocks: Blocks, slots: Slots, numbers: Array) -> None:
        self.blocks, self.numbers = blocks, numbers
        self.block, self.base = slots.block, slots.base[:, None]
        self.targets, self.starts = np.unique(slots.target, return_index=True)
        self.descents = list(_descents(blocks))
        """The levels of the splits above all blocks."""
        self.inside = list(_inside(blocks))
        """For the first, second, ... split of each block that has so many: places in `goes_left`, and bits."""

    @staticmethod
    def of(paths: Paths, background: Array) -> TreeTables:
        """The tables of the `divided` forest; `background` is (rows, tree columns)."""
        blocks, slots = divided(paths, len(background))
        return TreeTables(blocks, slots, _fill(blocks, slots, background))

    def add_to(self, goes_left: BoolArray, total: Array) -> None:
        """Adds the values of rows to `total`, (targets, rows); `goes_left` is the forest's."""
        if len(self.block) == 0:
            return
        patterns = self._patterns(goes_left).astype(np.int64)
        n_columns, n_rows = len(self.block), goes_left.shape[1]
        if n_columns * n_rows <= FEW_NUMBERS:
            total[self.targets] += np.add.reduceat(self._gives(patterns, slice(None)), self.starts, axis=0)
            return
        step = max(1, FEW_NUMBERS // n_rows)
        ends = [*self.starts[1:].tolist(), n_columns]
        for target, start, end in zip(self.targets.tolist(), self.starts.tolist(), ends, strict=True):
            for first in range(start, end, step):
                gives = self._gives(patterns, slice(first, min(first + step, end)))
                total[target] += np.ones(len(gives)) @ gives  # faster than a sum over the first axis

    def _gives(self, patterns: IntArray, columns: slice) -> Array:
        """The entries of some columns at the bits of rows, (columns, rows)."""
        index = patterns.take(self.block[columns], axis=0)
        index += self.base[columns]
        return self.numbers.take(index)

    def _patterns(self, goes_left: BoolArray) -> Bits:
        """The bits of rows in each block, (blocks, rows)."""
        n_rows = goes_left.shape[1]
        patterns = np.zeros((len(self.blocks.roots), n_rows), dtype=np.uint16)
        masks = np.zeros((0, n_rows), dtype=np.uint16)
        for step in self.descents:
            if len(masks) == 0:
                masks = np.zeros((len(step.splits), n_rows), dtype=np.uint16)
            goes = goes_left.take(step.splits, axis=0).astype(np.uint16) << step.shift
            children = np.concatenate([masks | (goes ^ step.flip), masks | goes])
            patterns[step.blocks] = children[step.to_blocks]
            masks = children[step.to_splits]
        for splits, shift in self.inside:
            patterns[: len(splits)] |= goes_left.take(splits, axis=0).astype(np.uint16) << shift
        return patterns


class _Descent(NamedTuple):
    """One level of the splits above all blocks: `splits`, and which of their children, left ones first, go where."""

    splits: IntArray
    """Their places in `Forest.goes_left`."""
    shift: Bits
    """(splits, 1) the slot of each split's player."""
    flip: Bits
    """(splits, 1) its bit: a row that goes left fails the right child."""
    blocks: IntArray
    to_blocks: IntArray
    """Children that are the roots of `blocks`."""
    to_splits: IntArray
    """Children that are the splits of the next level."""


def _descents(blocks: Blocks) -> Iterator[_Descent]:
    forest, paths = blocks.paths.forest, blocks.paths
    splits = forest.roots[(blocks.of_node[forest.roots] < 0) & (forest.column[forest.roots] >= 0)]
    while len(splits):
        children = np.concatenate([forest.left[splits], forest.right[splits]])
        in_block = blocks.of_node[children] >= 0
        to_splits = np.flatnonzero(~in_block & (forest.column[children] >= 0))
        shift = paths.slot[splits].astype(np.uint16)[:, None]
        to_blocks = np.flatnonzero(in_block)
        yield _Descent(
            forest.place[splits], shift, np.uint16(1) << shift,
            blocks.of_node[children[to_blocks]], to_blocks, to_splits,
        )  # fmt: skip
        splits = children[to_splits]


def _inside(blocks: Blocks) -> Iterator[tuple[IntArray, Bits]]:
    """The first, second, ... splits of blocks that have so many, in their order: places in `goes_left`, and bits."""
    splits = np.flatnonzero((blocks.of_node >= 0) & (blocks.paths.forest.column >= 0))
    rank = blocks.bit[splits] - blocks.paths.count[blocks.roots[blocks.of_node[splits]]]
    for number in range(int(rank.max(initial=-1)) + 1):
        chosen = splits[rank == number]
        chosen = chosen[np.argsort(blocks.of_node[chosen])]
        yield blocks.paths.forest.place[chosen], blocks.bit[chosen].astype(np.uint16)[:, None]


# Filling the tables -----------------------------------------------------------------------------------------


def _fill(blocks: Blocks, slots: Slots, background: Array) -> Array:
    """The numbers of all tables, (slots.size,)."""
    numbers = np.zeros(slots.size)
    forest, count = blocks.paths.forest, blocks.paths.count
    leaves = blocks.leaves()
    if slots.size == 0:
        return numbers
    bits = blocks.bits[blocks.of_node[leaves]]
    shares, start_of = _shares(blocks.paths, leaves, background)
    # Leaves of one kind at a time: equally many players, equally many bits of their block.
    kinds, kind = np.unique(np.stack([count[leaves], bits]), axis=1, return_inverse=True)
    entry = np.argsort(slots.leaf, kind="stable")
    first = np.searchsorted(slots.leaf[entry], leaves)
    last = np.searchsorted(slots.leaf[entry], leaves, side="right")
    for number, (n_players, n_bits) in enumerate(kinds.T.tolist()):
        members = np.flatnonzero(np.ravel(kind) == number)
        step = max(1, WORKING_NUMBERS // (2**n_bits * (n_players + 2) + 2**n_players * (n_players + 1) ** 2))
        for start in range(0, len(members), step):
            some = members[start : start + step]
            tables = leaf_tables(
                shares[start_of[some][:, None] + np.arange(2**n_players)]
            )  # (leaves, patterns, players)
            masks = _leaf_masks(blocks, leaves[some], n_bits)
            entries = entry[_ranges(first[some], last[some])]
            owner = np.repeat(np.arange(len(some)), last[some] - first[some])
            gives = tables[owner[:, None], masks[owner], slots.leaf_slot[entries][:, None]]
            gives *= forest.value[slots.leaf[entries], slots.leaf_output[entries]][:, None]
            places = slots.base[slots.leaf_column[entries]][:, None] + np.arange(2**n_bits)
            np.add.at(numbers, places, gives)  # leaves of one block add to the same column
    return numbers


def _ranges(first: IntArray, last: IntArray) -> IntArray:
    """The numbers from first up to last, for one pair after the other."""
    sizes = last - first
    numbers: IntArray = np.arange(int(sizes.sum())) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
    return numbers


def _shares(paths: Paths, leaves: IntArray, background: Array) -> tuple[Array, IntArray]:
    """The share of the background that fails each set of a leaf's players, and where each leaf's 2**players start."""
    sizes = np.int64(1) << paths.count[leaves]
    base = np.cumsum(sizes) - sizes
    counts = np.zeros(int(sizes.sum()))
    for part in in_parts(background, paths.forest.n_nodes + 8 * len(leaves)):
        masks = paths.failed(paths.forest.goes_left(part), leaves).astype(np.int64)
        masks += base[:, None]
        counts += np.bincount(masks.ravel(), minlength=len(counts))
    return counts / len(background), base


def leaf_tables(shares: Array) -> Array:
    """What a leaf of value one gives each of its n players, for every set of players that a row fails.

    `shares` is (leaves, 2**n): how much of the background fails exactly the set. Returns (leaves, 2**n, n).
    """
    n = shares.shape[1].bit_length() - 1
    patterns = np.arange(2**n)
    size = bits_set(patterns.astype(np.uint16))
    # S_a(T): the share of the background whose failed set has a players and lies inside T.
    inside = np.where(size == np.arange(n + 1)[:, None], shares[:, None, :], 0.0)  # (leaves, n + 1, 2**n)
    for j in range(n):
        halves = inside.reshape(len(shares), n + 1, -1, 2, 2**j)
        halves[..., 1, :] += halves[..., 0, :]
    # A row that fails M meets only background rows that fail none of M: those inside its complement.
    meets = inside[..., ::-1]
    row, reference = joining_weights(n)
    kept = np.einsum("lam,am->lm", meets, row[:, size])
    lost = np.einsum("lam,am->lm", meets, reference[:, size])
    tables = np.empty((len(shares), 2**n, n))
    for j in range(n):
        fails = (patterns >> j) & 1 == 1
        without = np.einsum("lam,am->lm", meets[..., patterns | (1 << j)], row[:, size])
        tables[..., j] = np.where(fails, -lost, kept - without)
    return tables


def _leaf_masks(blocks: Blocks, leaves: IntArray, n_bits: int) -> IntArray:
    """For each pattern of the bits of a leaf's block, the slots of the leaf that a row fails, (leaves, 2**bits)."""
    paths = blocks.paths
    patterns = np.arange(2**n_bits)
    block = blocks.of_node[leaves]
    masks: IntArray = patterns & ((np.int64(1) << paths.count[blocks.roots[block]]) - 1)[:, None]
    here, places = leaves, np.arange(len(leaves))
    while True:
        below = here != blocks.roots[blocks.of_node[here]]
        here, places = here[below], places[below]
        if len(here) == 0:
            return masks
        above = paths.parent[here]
        goes_left = (patterns >> blocks.bit[above][:, None]) & 1 == 1
        masks[places] |= (goes_left != paths.is_left[here][:, None]).astype(np.int64) << paths.slot[above][:, None]
        here = above
