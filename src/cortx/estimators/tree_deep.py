"""Exact Shapley values from the leaves of deep paths, one by one: those that have too many players for tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortx.estimators.tree_paths import Masks, Paths, bits_set, in_parts, joining_weights
from cortx.games.forest import Array, BoolArray, IntArray

PAIRS = 2**19
"""Pairs of a row and a node, or triples with a background row, that are held at a time, about."""
MASKS = 2**21
"""Pairs of a leaf and a background row that are looked at together."""
KEPT_SETS = 2**22
"""Sets that the background fails which are kept for the next rows; beyond that they are found again."""


class FailedSets(NamedTuple):
    """The sets of slots that rows of the background fail on the way to leaves, one after the other."""

    leaves: IntArray
    failed: Masks
    """(sets,) ordered by leaf."""
    share: Array
    """(sets,) of the background."""
    first: IntArray
    """(leaves,) where the sets of each leaf start, and where they end."""
    last: IntArray


class DeepLeaves:
    """The leaves that no block has, for the rows of a background (one row: a reference)."""

    def __init__(self, paths: Paths, leaves: IntArray, background: Array) -> None:
        self.paths, self.leaves, self.background = paths, leaves, background
        self.row_weights, self.reference_weights = joining_weights(paths.players.shape[1])
        self.always = self._always()
        step = max(1, MASKS // len(background))
        self._groups = [leaves[start : start + step] for start in range(0, len(leaves), step)]
        self._kept: dict[int, FailedSets] = {}
        self._room = KEPT_SETS

    def _leads(self, leaves: IntArray) -> BoolArray:
        """(nodes,) whether a node lies on the way to one of the leaves."""
        leads = np.zeros(self.paths.forest.n_nodes, dtype=bool)
        here = leaves
        while len(here):
            leads[here] = True
            here = self.paths.parent[here]
            here = np.unique(here[here >= 0])
        return leads

    def _always(self) -> Masks:
        """(nodes,) the slots on the way to a node that the whole background fails."""
        always = np.full(self.paths.forest.n_nodes, ~np.uint64(0), dtype=np.uint64)
        nodes = np.flatnonzero(self._leads(self.leaves))
        for part in in_parts(self.background, 8 * self.paths.forest.n_nodes if len(nodes) else 1):
            if len(nodes):
                masks = self.paths.failed(self.paths.forest.goes_left(part), nodes)
                always[nodes] &= np.bitwise_and.reduce(masks, axis=1)
        return always

    def _sets(self, group: int) -> FailedSets:
        """What sets of slots the background fails at some of the leaves; kept while there is room for them."""
        if group in self._kept:
            return self._kept[group]
        leaves, parts = self._groups[group], []
        for part in in_parts(self.background, self.paths.forest.n_nodes):
            masks = self.paths.failed(self.paths.forest.goes_left(part), leaves)
            parts.append(_counted(np.repeat(np.arange(len(leaves)), masks.shape[1]), masks.ravel(), None))
        leaf, failed, count = _counted(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        places = np.arange(len(leaves))
        found = FailedSets(
            leaves, failed, count / len(self.background),
            np.searchsorted(leaf, places), np.searchsorted(leaf, places, side="right"),
        )  # fmt: skip
        if len(failed) <= self._room:
            self._room -= len(failed)
            self._kept[group] = found
        return found

    def add_to(self, goes_left: BoolArray, total: Array) -> None:
        """Adds the values of rows to `total`, (targets, rows); `goes_left` is the forest's."""
        place = np.full(self.paths.forest.n_nodes, -1)
        for group, leaves in enumerate(self._groups):
            sets = self._sets(group)
            place[leaves] = np.arange(len(leaves))
            for row, leaf, mask in self._reached(goes_left, self._leads(leaves)):
                self._add_pairs(sets, place[leaf], row, mask, total)

    def _add_pairs(self, sets: FailedSets, place: IntArray, row: IntArray, mask: Masks, total: Array) -> None:
        """Adds what leaves (their places among those of `sets`) give to rows that fail `mask` there."""
        inverse = None
        if len(self.background) > 1:  # rows that fail the same are worked on once
            place, mask, inverse = _distinct(place, mask)
        shares = np.empty((len(place), self.paths.players.shape[1]))
        ends = np.cumsum(sets.last[place] - sets.first[place])
        start = 0
        while start < len(place):
            stop = max(start + 1, int(np.searchsorted(ends, (ends[start - 1] if start else 0) + PAIRS)))
            shares[start:stop] = self._shares(sets, place[start:stop], mask[start:stop])
            start = stop
        if inverse is not None:
            place, shares = place[inverse], shares[inverse]
        leaf = sets.leaves[place]
        count, outputs = self.paths.count[leaf], self.paths.forest.value[leaf]
        n_outputs, n_rows = outputs.shape[1], total.shape[1]
        for slot in range(int(count.max(initial=0))):
            here = np.flatnonzero((count > slot) & (shares[:, slot] != 0))
            player = self.paths.players[leaf[here], slot].astype(np.int64)
            for output in range(n_outputs):
                target = (player * n_outputs + output) * n_rows + row[here]
                weights = shares[here, slot] * outputs[here, output]
                total += np.bincount(target, weights, minlength=total.size).reshape(total.shape)

    def _reached(self, goes_left: BoolArray, leads: BoolArray) -> Iterator[tuple[IntArray, IntArray, Masks]]:
        """Pairs of a row and a leaf that mixtures of it with the background can reach, with the slots the row fails."""
        forest, n_rows = self.paths.forest, goes_left.shape[1]
        roots = forest.roots[leads[forest.roots]]
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
                todo.append(self._step(row, node, mask, goes_left, leads))

    def _step(
        self, row: IntArray, node: IntArray, mask: Masks, goes_left: BoolArray, leads: BoolArray
    ) -> tuple[IntArray, IntArray, Masks]:
        forest = self.paths.forest
        bit = np.uint64(1) << self.paths.slot[node].astype(np.uint64)
        goes = goes_left[forest.place[node], row]
        parts = []
        for child, fails in ((forest.left[node], ~goes), (forest.right[node], goes)):
            now = np.where(fails, mask | bit, mask)
            alive = leads[child] & ((now & self.always[child]) == 0)
            parts.append((row[alive], child[alive], now[alive]))
        (r1, c1, m1), (r2, c2, m2) = parts
        return np.concatenate([r1, r2]), np.concatenate([c1, c2]), np.concatenate([m1, m2])

    def _shares(self, sets: FailedSets, place: IntArray, mask: Masks) -> Array:
        """What a leaf of value one gives each of its slots, where a row fails `mask`: (pairs, slots)."""
        sizes = sets.last[place] - sets.first[place]
        pair = np.repeat(np.arange(len(place)), sizes)
        entry = np.arange(len(pair)) - np.repeat(np.cumsum(sizes) - sizes - sets.first[place], sizes)
        meets = (sets.failed[entry] & mask[pair]) == 0
        pair, entry = pair[meets], entry[meets]
        failed, share = sets.failed[entry], sets.share[entry]
        a, b = bits_set(failed), bits_set(mask)[pair]
        lost = np.bincount(pair, share * self.reference_weights[a, b], minlength=len(place))
        gain = share * self.row_weights[a, b]
        result = np.empty((len(place), self.paths.players.shape[1]))
        for slot in range(result.shape[1]):
            fails = (mask >> np.uint64(slot)) & np.uint64(1) == 1
            with_slot = np.flatnonzero((failed >> np.uint64(slot)) & np.uint64(1))
            kept = np.bincount(pair[with_slot], gain[with_slot], minlength=len(place))
            result[:, slot] = np.where(fails, -lost, kept)
        return result


def _distinct(place: IntArray, mask: Masks) -> tuple[IntArray, Masks, IntArray]:
    """Equal pairs once, and where each of the given ones is among them."""
    order = np.lexsort((mask, place))
    place, mask = place[order], mask[order]
    new = np.ones(len(place), dtype=bool)
    new[1:] = (place[1:] != place[:-1]) | (mask[1:] != mask[:-1])
    inverse = np.empty(len(place), dtype=np.int64)
    inverse[order] = np.cumsum(new) - 1
    return place[new], mask[new], inverse


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
