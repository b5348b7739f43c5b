"""The paths of a forest in terms of players, and what a background does on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import factorial

import numpy as np
import numpy.typing as npt

from cortx.games.forest import ROUTED, Array, BoolArray, Forest, IntArray
from cortx.games.tree_readers import NotTrees

Masks = npt.NDArray[np.uint64]
MOST_ON_A_PATH = 60
"""Different players on the way to one leaf: sets of them are bits of a 64-bit word."""


@dataclass(frozen=True, eq=False)
class Paths:
    """For each node of a forest the players that splits on the way to it look at, numbered in order: its *slots*.

    A row *fails* a slot if one of its columns would leave the path at a split of that player.
    """

    forest: Forest
    parent: IntArray
    """(nodes,); -1 for roots."""
    is_left: BoolArray
    """(nodes,) whether the node is its parent's left child."""
    slot: IntArray
    """(nodes,) the slot of the split's own player on the path to its children."""
    count: IntArray
    """(nodes,) how many slots the path to a node has."""
    players: npt.NDArray[np.int32]
    """(nodes, most slots) the player of each slot; -1 beyond `count`."""

    @staticmethod
    def of(forest: Forest, column_player: IntArray) -> Paths:
        n = forest.n_nodes
        parent, slot, count = np.full(n, -1), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        is_left = np.zeros(n, dtype=bool)
        players = np.full((n, 1), -1, dtype=np.int32)
        for splits in forest.levels():
            own = column_player[forest.column[splits]]
            same = players[splits] == own[:, None]
            new = ~same.any(axis=1)
            slot[splits] = np.where(new, count[splits], same.argmax(axis=1))
            if slot[splits].max() >= players.shape[1]:
                players = np.pad(players, ((0, 0), (0, players.shape[1])), constant_values=-1)
            for children, left in ((forest.left[splits], True), (forest.right[splits], False)):
                parent[children], is_left[children] = splits, left
                count[children] = count[splits] + new
                players[children] = players[splits]
                players[children, slot[splits]] = own
        most = int(count.max(initial=0))
        if most > MOST_ON_A_PATH:
            raise NotTrees(
                f"a tree asks for {most} different players on the way to one leaf; exact tree values need at most "
                f"{MOST_ON_A_PATH}. Limit the depth of the trees, or use 'kernel' or 'permutation'"
            )
        return Paths(forest, parent, is_left, slot, count, players[:, : max(1, most)])

    @cached_property
    def below(self) -> IntArray:
        """(nodes,) how many splits the tree under a node has, itself included."""
        splits = (self.forest.column >= 0).astype(np.int64)
        for level in reversed(list(self.forest.levels())):
            splits[level] += splits[self.forest.left[level]] + splits[self.forest.right[level]]
        return splits

    def failed(self, goes_left: BoolArray, nodes: IntArray) -> Masks:
        """The slots that rows fail on the way to nodes, as bits, (nodes, rows); `goes_left` is the forest's."""
        masks = np.zeros((len(nodes), goes_left.shape[1]), dtype=np.uint64)
        here, places = nodes, np.arange(len(nodes))
        while True:
            inner = self.parent[here] >= 0
            here, places = here[inner], places[inner]
            if len(here) == 0:
                return masks
            above = self.parent[here]
            fails = goes_left[self.forest.place[above]] != self.is_left[here][:, None]
            masks[places] |= fails.astype(np.uint64) << self.slot[above].astype(np.uint64)[:, None]
            here = above


def in_parts(rows: Array, numbers_each: int, most: int = ROUTED) -> Iterator[Array]:
    """Rows, (rows, columns), in parts that need at most so many numbers, or are single rows."""
    step = max(1, most // max(1, numbers_each))
    return (rows[start : start + step] for start in range(0, len(rows), step))


def bits_set(masks: npt.NDArray[np.unsignedinteger]) -> IntArray:
    """How many bits of each mask are set."""
    counts: IntArray = np.bitwise_count(masks).astype(np.int64)
    return counts


def joining_weights(most: int) -> tuple[Array, Array]:
    """What a leaf gives one player, where a players satisfy it only by the row and b only by the reference.

    With value one: a player of the row gets (a-1)! b! / (a+b)!, one of the reference minus a! (b-1)! / (a+b)!.
    Returns both as positive tables, (most + 1, most + 1).
    """
    row, reference = np.zeros((most + 1, most + 1)), np.zeros((most + 1, most + 1))
    for a in range(most + 1):
        for b in range(most + 1 - a):
            if a:
                row[a, b] = factorial(a - 1) * factorial(b) / factorial(a + b)
            if b:
                reference[a, b] = factorial(a) * factorial(b - 1) / factorial(a + b)
    return row, reference
