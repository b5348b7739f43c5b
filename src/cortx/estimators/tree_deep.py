"""Exact Shapley values from leaves whose path has too many players for tables.

A leaf of value one, a row that fails the set M of its slots and a background row that fails the set T: where M and T
share a slot, nobody gets anything. Else, with a = |T| and b = |M|, each slot of T gets (a-1)! b! / (a+b)! and each of M
minus a! (b-1)! / (a+b)!. Over a whole background the latter is what the slots of T get together, plus the share of the
background that fails nothing, divided by b.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from cortx.estimators.tree_paths import Masks, Paths, bits_set, in_parts, joining_weights
from cortx.games.forest import Array, BoolArray, IntArray
from cortx.threads import work

Sets = npt.NDArray[np.unsignedinteger[Any]]
"""Sets of slots as the bits of numbers that are no wider than the paths need."""
FEW_REFERENCES = 24
"""Backgrounds of so many rows are taken as so many references."""
PAIRS = 2**19
"""Pairs of a row and a node that are held at a time, about."""
MASKS = 2**21
"""Pairs of a leaf and a row whose failed sets are held at a time."""
MEETINGS = 2**18
"""Pairs of sets, of rows and of the background, that are compared at a time."""
FEW_SETS = 8
"""Sets of rows at a leaf for which those of the background that share no slot with any are picked out first."""
FEW_ROWS = 16
"""Rows for which all leaves are added up at once, instead of one after the other."""
KEPT_SETS = 2**24
"""Sets that the background fails which are kept for the next rows; beyond that they are found again."""


class DeepLeaves:
    """The leaves that no block has, for the rows of a background (one row: a reference)."""

    def __init__(self, paths: Paths, leaves: IntArray, background: Array) -> None:
        self.paths, self.leaves, self.background = paths, leaves, background
        self._parts: list[_Reference | _Background] = []
        if len(leaves) and len(background) <= FEW_REFERENCES:
            self._parts = [_Reference(paths, leaves, row[None]) for row in background]
        elif len(leaves):
            self._parts = [_Background(paths, leaves, background)]

    def add_to(self, goes_left: BoolArray, total: Array) -> None:
        """Adds the values of rows to `total`, (targets, rows); `goes_left` is the forest's."""
        own = np.zeros_like(total)
        for part in self._parts:
            part.add_to(goes_left, own)
        total += own / max(1, len(self._parts))


class _Reference:
    """Leaves and one row that replaces absent players: only leaves that mixtures with it reach are visited."""

    def __init__(self, paths: Paths, leaves: IntArray, reference: Array) -> None:
        self.paths = paths
        self.leads = np.zeros(paths.forest.n_nodes, dtype=bool)
        here = leaves
        while len(here):
            self.leads[here] = True
            here = paths.parent[here]
            here = np.unique(here[here >= 0])
        self.failed = np.zeros(paths.forest.n_nodes, dtype=np.uint64)
        """(nodes,) the slots that the reference fails on the way to a node."""
        nodes = np.flatnonzero(self.leads)
        self.failed[nodes] = paths.failed(paths.forest.goes_left(reference), nodes)[:, 0]
        self.gain, self.loss = joining_weights(paths.players.shape[1])

    def add_to(self, goes_left: BoolArray, total: Array) -> None:
        values, n_rows = self.paths.forest.value, total.shape[1]
        for row, leaf, mask in self._reached(goes_left):
            theirs = self.failed[leaf]
            a, b = bits_set(theirs), bits_set(mask)
            gain, loss = self.gain[a, b], self.loss[a, b]
            targets, weights, leaves = [], [], []
            for slot in range(int(self.paths.count[leaf].max())):
                bit = np.uint64(1 << slot)
                here = np.flatnonzero((theirs | mask) & bit)
                weights.append(np.where(theirs[here] & bit, gain[here], -loss[here]))
                targets.append(
                    self.paths.players[leaf[here], slot].astype(np.int64) * (values.shape[1] * n_rows) + row[here]
                )
                leaves.append(leaf[here])
            target, weight, at = np.concatenate(targets), np.concatenate(weights), np.concatenate(leaves)
            for output in range(values.shape[1]):
                sums = np.bincount(target + output * n_rows, weight * values[at, output], minlength=total.size)
                total += sums.reshape(total.shape)

    def _reached(self, goes_left: BoolArray) -> Iterator[tuple[IntArray, IntArray, Masks]]:
        """Pairs of a row and a leaf that mixtures of it with the reference can reach, with the slots the row fails."""
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
        """The children of nodes that mixtures still reach."""
        forest = self.paths.forest
        bit = np.uint64(1) << self.paths.slot[node].astype(np.uint64)
        goes = goes_left[forest.place[node], row]
        parts = []
        for child, fails in ((forest.left[node], ~goes), (forest.right[node], goes)):
            now = mask | (bit * fails)
            alive = self.leads[child] & ((now & self.failed[child]) == 0)
            parts.append((row[alive], child[alive], now[alive]))
        (r1, c1, m1), (r2, c2, m2) = parts
        return np.concatenate([r1, r2]), np.concatenate([c1, c2]), np.concatenate([m1, m2])


class _FailedSets(NamedTuple):
    """The different sets of slots that a background fails on the way to some leaves, one leaf after the other."""

    sets: Sets
    share: Array
    """(sets,) of the background."""
    first: IntArray
    """(leaves,) where the sets of each leaf start."""
    size: IntArray
    """(leaves,) how many there are."""


class _Background:
    """Leaves and many rows that replace absent players: each different set of a row meets each of the background's."""

    def __init__(self, paths: Paths, leaves: IntArray, background: Array) -> None:
        self.paths, self.background = paths, background
        self.gain, _ = joining_weights(paths.players.shape[1])
        leaves = leaves[np.argsort(paths.count[leaves], kind="stable")]
        step = max(1, MASKS // len(background))
        self._groups = [leaves[start : start + step] for start in range(0, len(leaves), step)]
        self._kept: dict[int, _FailedSets] = {}
        self._room = KEPT_SETS

    def add_to(self, goes_left: BoolArray, total: Array) -> None:
        for number, leaves in enumerate(self._groups):
            theirs = self._failed(number)
            step = max(1, MASKS // goes_left.shape[1])
            with work(large=False):  # many small products, which NumPy's BLAS would share between all cores
                for start in range(0, len(leaves), step):
                    part = slice(start, start + step)
                    some = theirs._replace(first=theirs.first[part], size=theirs.size[part])
                    self._add(leaves[part], some, goes_left, total)

    def _failed(self, group: int) -> _FailedSets:
        """What sets of slots the background fails at some of the leaves; kept while there is room for them."""
        if group in self._kept:
            return self._kept[group]
        leaves, forest = self._groups[group], self.paths.forest
        masks = np.concatenate(
            [
                self._narrow(self.paths.failed(forest.goes_left(part), leaves), leaves)
                for part in in_parts(self.background, forest.n_nodes)
            ],
            axis=1,
        )
        masks.sort(axis=1)
        new = _changes(masks)
        start = np.flatnonzero(new)
        share = np.diff(start, append=masks.size) / masks.shape[1]
        size = new.sum(axis=1)
        found = _FailedSets(masks[new], share, np.cumsum(size) - size, size)
        if len(share) <= self._room:
            self._room -= len(share)
            self._kept[group] = found
        return found

    def _narrow(self, masks: Masks, leaves: IntArray) -> Sets:
        """The same sets in numbers of as many bits as the leaves have slots; all bits set is none of them."""
        most = int(self.paths.count[leaves].max()) + 1
        return masks.astype(next(kind for kind in (np.uint16, np.uint32, np.uint64) if np.iinfo(kind).bits >= most))

    def _add(self, leaves: IntArray, theirs: _FailedSets, goes_left: BoolArray, total: Array) -> None:
        """Adds what some leaves give."""
        masks = self._narrow(self.paths.failed(goes_left, leaves), leaves)
        order = np.argsort(masks, axis=1, kind="stable")
        masks = np.take_along_axis(masks, order, axis=1)
        ranks = np.cumsum(_changes(masks), axis=1) - 1  # which of a leaf's different sets
        sizes = ranks[:, -1] + 1
        place = np.empty_like(ranks)
        np.put_along_axis(place, order, ranks, axis=1)
        # Leaves with about as many sets are worked on together, all as if they had as many as the largest of them.
        by_size = np.lexsort((sizes, np.rint(4 * np.log2(theirs.size))))
        start = 0
        while start < len(leaves):
            stop = start + 1
            most, width = sizes[by_size[start]], theirs.size[by_size[start]]
            while stop < len(leaves):
                most, width = max(most, sizes[by_size[stop]]), max(width, theirs.size[by_size[stop]])
                if (stop + 1 - start) * most * width > MEETINGS:
                    break
                stop += 1
            some = by_size[start:stop]
            ours = np.full((len(some), int(sizes[some].max())), np.iinfo(masks.dtype).max, dtype=masks.dtype)
            ours[np.arange(len(some))[:, None], ranks[some]] = masks[some]
            n_slots = int(self.paths.count[leaves[some]].max())
            step = max(1, MEETINGS // (len(some) * int(width)))  # a single leaf may have more pairs of sets than that
            parts = [ours[:, first : first + step] for first in range(0, ours.shape[1], step)]
            gives = np.concatenate([self._gives(part, theirs, some, n_slots) for part in parts], axis=1)
            self._spread(leaves[some], gives, place[some], total)
            start = stop

    def _gives(self, ours: Sets, theirs: _FailedSets, leaves: IntArray, n_slots: int) -> Array:
        """What leaves of value one give each slot, (leaves, sets, slots), for the sets `ours` that rows fail."""
        entry = theirs.first[leaves][:, None] + np.arange(theirs.size[leaves].max())
        there = entry < (theirs.first + theirs.size)[leaves][:, None]
        entry = np.where(there, entry, 0)
        sets = theirs.sets[entry]
        share = np.where(there, theirs.share[entry], 0.0)
        nothing = np.where(sets == 0, share, 0.0).sum(axis=1)
        meets = (ours[:, :, None] & sets[:, None, :]) == 0
        b = np.minimum(bits_set(ours), n_slots)
        if ours.shape[1] <= FEW_SETS:  # most sets of the background meet none of so few
            used = meets.any(axis=1)
            first = np.argsort(~used, axis=1, kind="stable")[:, : max(1, int(used.sum(axis=1).max()))]
            sets, share = np.take_along_axis(sets, first, axis=1), np.take_along_axis(share, first, axis=1)
            meets = np.take_along_axis(meets, first[:, None, :], axis=2)
            weights = self.gain[bits_set(sets)[:, None, :], b[:, :, None]] * share[:, None, :]
        else:  # every number of failed slots at once, (leaves, numbers, their sets), and then that of each of ours
            every = np.swapaxes(self.gain[bits_set(sets)][..., : n_slots + 1], 1, 2) * share[:, None, :]
            number = b + (n_slots + 1) * np.arange(len(leaves))[:, None]
            weights = every.reshape(-1, sets.shape[1]).take(number.ravel(), axis=0).reshape(meets.shape)
        weights *= meets
        slots = np.arange(n_slots, dtype=sets.dtype)
        has = ((sets[:, :, None] >> slots) & 1).astype(np.float64)
        kept = torch.bmm(torch.from_numpy(weights), torch.from_numpy(has)).numpy()
        lost = (kept.sum(axis=2) + nothing[:, None]) / np.maximum(b, 1)
        return np.where((ours[:, :, None] >> slots) & 1, -lost[:, :, None], kept)

    def _spread(self, leaves: IntArray, gives: Array, place: IntArray, total: Array) -> None:
        """Adds to rows what leaves give for their sets, which stand at `place`, (leaves, rows)."""
        values, n_rows = self.paths.forest.value[leaves], place.shape[1]
        n_outputs, n_slots = values.shape[1], gives.shape[2]
        targets = self.paths.players[leaves, :n_slots].astype(np.int64) * n_outputs
        used = targets >= 0
        for output in range(n_outputs):
            if n_rows <= FEW_ROWS:
                numbers = np.take_along_axis(gives, place[:, :, None], axis=1) * values[:, output, None, None]
                target = (targets + output)[:, None, :] * n_rows + np.arange(n_rows)[:, None]
                there = np.broadcast_to(used[:, None, :], numbers.shape)
                total += np.bincount(target[there], numbers[there], minlength=total.size).reshape(total.shape)
                continue
            for leaf in np.flatnonzero(values[:, output]).tolist():
                numbers = gives[leaf][:, used[leaf]].T * values[leaf, output]
                total[targets[leaf, used[leaf]] + output] += numbers.take(place[leaf], axis=1)


def _changes(masks: Sets) -> BoolArray:
    """Where a sorted row has another number than before."""
    new = np.ones(masks.shape, dtype=bool)
    np.not_equal(masks[:, 1:], masks[:, :-1], out=new[:, 1:])
    return new
