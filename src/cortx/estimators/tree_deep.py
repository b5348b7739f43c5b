"""Exact Shapley values from the leaves of deep paths, one by one: those that have too many players for tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from cortx.estimators.tree_paths import Masks, Paths, bits_set, in_parts, joining_weights
from cortx.games.forest import Array, BoolArray, IntArray

PAIRS = 2**19
"""Pairs of a row and a node, or triples with a background row, that are held at a time, about."""


class DeepLeaves:
    """The leaves that no block has, for the rows of a background (one row: a reference)."""

    def __init__(self, paths: Paths, leaves: IntArray, background: Array) -> None:
        self.paths, self.leaves = paths, leaves
        self.leads = np.zeros(paths.forest.n_nodes, dtype=bool)
        here = leaves
        while len(here):
            self.leads[here] = True
            here = paths.parent[here]
            here = np.unique(here[here >= 0])
        self.row_weights, self.reference_weights = joining_weights(paths.players.shape[1])
        if len(leaves):
            self._read(background)

    def _read(self, background: Array) -> None:
        """What sets of players the background fails: at each node those that all of it fails, at leaves every one."""
        paths, leaves = self.paths, self.leaves
        self.always = np.full(paths.forest.n_nodes, ~np.uint64(0), dtype=np.uint64)
        nodes = np.flatnonzero(self.leads)
        parts = []
        for part in in_parts(background, 9 * paths.forest.n_nodes):
            masks = paths.failed(paths.forest.goes_left(part), nodes)
            self.always[nodes] &= np.bitwise_and.reduce(masks, axis=1)
            mine = masks[np.searchsorted(nodes, leaves)]
            parts.append(_counted(np.repeat(np.arange(len(leaves)), mine.shape[1]), mine.ravel(), None))
        leaf, failed, count = (np.concatenate(column) for column in zip(*parts, strict=True))
        leaf, self.failed, count = _counted(leaf, failed, count)
        self.share = count / len(background)
        place = np.full(paths.forest.n_nodes, -1)
        place[leaves] = np.arange(len(leaves))
        self.first = np.searchsorted(leaf, np.arange(len(leaves)))
        self.last = np.searchsorted(leaf, np.arange(len(leaves)), side="right")
        self.place = place

    def add_to(self, goes_left: BoolArray, total: Array) -> None:
        """Adds the values of rows to `total`, (targets, rows); `goes_left` is the forest's."""
        if len(self.leaves) == 0:
            return
        for row, leaf, mask in self._reached(goes_left):
            sizes = (self.last - self.first)[self.place[leaf]]
            ends = np.cumsum(sizes)
            start = 0
            while start < len(row):
                stop = max(start + 1, int(np.searchsorted(ends, (ends[start - 1] if start else 0) + PAIRS)))
                part = slice(start, stop)
                self._meet(row[part], leaf[part], mask[part], total)
                start = stop

    def _reached(self, goes_left: BoolArray) -> Iterator[tuple[IntArray, IntArray, Masks]]:
        """Pairs of a row and a leaf that mixtures of it with the background can reach, with the slots the row fails."""
        forest, n_rows = self.paths.forest, goes_left.shape[1]
        roots = forest.roots[self.leads[forest.roots]]
        start = np.zeros(len(roots) * n_rows, dtype=np.uint64)
        todo = [(np.tile(np.arange(n_rows), len(roots)), np.repeat(roots, n_rows), start)]
        while todo:
            row, node, mask = todo.pop()
            if len(row) > PAIRS:
                half = len(row) // 2
                todo += [(row[half:], node[half:], mask[half:]), (row[:half], node[:half], mask[:half])]
                continue
            at_leaf = forest.column[node] < 0
            if at_leaf.any():
                yield row[at_leaf], node[at_leaf], mask[at_leaf]
                row, node, mask = row[~at_leaf], node[~at_leaf], mask[~at_leaf]
            if len(row):
                todo.append(self._step(row, node, mask, goes_left))

    def _step(
        self, row: IntArray, node: IntArray, mask: Masks, goes_left: BoolArray
    ) -> tuple[IntArray, IntArray, Masks]:
        forest = self.paths.forest
        bit = np.uint64(1) << self.paths.slot[node].astype(np.uint64)
        goes = goes_left[forest.place[node], row]
        parts = []
        for child, fails in ((forest.left[node], ~goes), (forest.right[node], goes)):
            now = np.where(fails, mask | bit, mask)
            alive = self.leads[child] & ((now & self.always[child]) == 0)
            parts.append((row[alive], child[alive], now[alive]))
        (r1, c1, m1), (r2, c2, m2) = parts
        return np.concatenate([r1, r2]), np.concatenate([c1, c2]), np.concatenate([m1, m2])

    def _meet(self, row: IntArray, leaf: IntArray, mask: Masks, total: Array) -> None:
        """Adds what pairs of rows and leaves give, over all sets that the background fails there."""
        place = self.place[leaf]
        sizes = self.last[place] - self.first[place]
        pair = np.repeat(np.arange(len(row)), sizes)
        entry = np.arange(len(pair)) - np.repeat(np.cumsum(sizes) - sizes - self.first[place], sizes)
        meets = (self.failed[entry] & mask[pair]) == 0
        pair, entry = pair[meets], entry[meets]
        a, b = bits_set(self.failed[entry]), bits_set(mask)[pair]
        share = self.share[entry]
        lost = np.bincount(pair, share * self.reference_weights[a, b], minlength=len(row))
        gain = share * self.row_weights[a, b]
        outputs = self.paths.forest.value[leaf]
        n_outputs, n_rows = outputs.shape[1], total.shape[1]
        for slot in range(int(self.paths.count[leaf].max(initial=0))):
            here = np.flatnonzero(self.paths.count[leaf] > slot)
            bit = np.uint64(slot)
            fails = (mask >> bit) & np.uint64(1) == 1
            with_slot = (self.failed[entry] >> bit) & np.uint64(1) == 1
            kept = np.bincount(pair[with_slot], gain[with_slot], minlength=len(row))
            gives = np.where(fails, -lost, kept)[here]
            player = self.paths.players[leaf[here], slot].astype(np.int64)
            for output in range(n_outputs):
                target = (player * n_outputs + output) * n_rows + row[here]
                weights = gives * outputs[here, output]
                total += np.bincount(target, weights, minlength=total.size).reshape(total.shape)


def _counted(
    leaf: IntArray, failed: Masks, count: npt.NDArray[np.float64] | None
) -> tuple[IntArray, Masks, npt.NDArray[np.float64]]:
    """Equal pairs of leaf and set once, with how often they came; sorted by leaf."""
    order = np.lexsort((failed, leaf))
    leaf, failed = leaf[order], failed[order]
    new = np.ones(len(leaf), dtype=bool)
    new[1:] = (leaf[1:] != leaf[:-1]) | (failed[1:] != failed[:-1])
    group = np.cumsum(new) - 1
    weights = None if count is None else count[order]
    return leaf[new], failed[new], np.bincount(group, weights).astype(np.float64)
