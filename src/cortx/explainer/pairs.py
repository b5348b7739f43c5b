"""Which values v(S) the student learns from: pairs of a coalition and its complement, evenly over rows and sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortx.games import Rows
from cortx.games.players import coalition_words
from cortx.seeding import mix, row_uniforms, stream_seed

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
ROWS_AT_A_TIME = 4_096
MOST_OF = 0.9
"""Once this share of a row's possible pairs is drawn, no more are drawn of it."""
MOST_PAIRS, MOST_NUMBERS = 2_500_000, 20_000_000
"""More pairs no student learns anything from, and more outputs of pairs would take more than some 400 MB of memory."""


@dataclass(frozen=True, eq=False)
class ValuePairs:
    """Pairs in the order in which they are asked for; any beginning is spread evenly.

    row (pairs,) are positions in the table; kept (pairs, bytes) the bits of the players in S, without those that equal
    their reference; single (pairs,) is true where S has all active players, so that the complement costs nothing.
    """

    row: IntArray
    kept: npt.NDArray[np.uint8]
    single: BoolArray

    def __len__(self) -> int:
        return len(self.row)

    def costs(self, copies: int) -> IntArray:
        """Model evaluations of each pair, (pairs,), where v(S) costs `copies` and v(all) costs one."""
        return np.where(self.single, 1, 2 * copies)

    def head(self, count: int) -> ValuePairs:
        return ValuePairs(self.row[:count], self.kept[:count], self.single[:count])

    def within(self, evaluations: float, copies: int) -> ValuePairs:
        """As many of them as so many evaluations pay for."""
        return self.head(int(np.searchsorted(np.cumsum(self.costs(copies)), evaluations, side="right")))

    def masks(self, part: slice | IntArray, active: BoolArray) -> BoolArray:
        """The coalitions and their complements of some pairs, (part, 2, players); `active` (rows, players)."""
        chosen = np.unpackbits(self.kept[part], axis=1, count=active.shape[1]).astype(bool)
        return np.stack([chosen, active[self.row[part]] & ~chosen], axis=1)


def draw_pairs_of(
    rows: Rows, index: IntArray, evaluations: float, copies: int, seed: int, n_outputs: int = 1
) -> ValuePairs:
    """Different pairs of rows `index`, round by round, until `evaluations` pay for no more or all are there.

    The sizes of S are even between 1 and all of a row's active players. The draws of a row are its own.
    """
    index = index[rows.active[index].any(axis=1)]
    _, first = np.unique(rows.words[index], return_index=True)
    index = index[np.sort(first)]
    every = 2.0 ** np.minimum(rows.active.sum(axis=1) - 1, 60)  # pairs that a row has
    found = _none(rows.active.shape[1])
    most = min(MOST_PAIRS, MOST_NUMBERS // n_outputs)
    drawn, rounds = 0, 1
    while len(index) and len(found) < most and found.costs(copies).sum() < evaluations:
        parts = [part for number in range(drawn, drawn + rounds) for part in _round(rows, index, seed, number)]
        new = (np.concatenate(part) for part in zip((found.row, found.kept, found.single), *parts, strict=True))
        found = _different(ValuePairs(*new), rows)
        drawn, rounds = drawn + rounds, max(1, drawn + rounds)
        # Rows of which hardly a pair is left are not drawn from again.
        has = np.bincount(found.row, minlength=len(rows))
        index = index[has[index] < np.ceil(MOST_OF * every[index])]
    return found.head(most).within(evaluations, copies)


def _none(n_players: int) -> ValuePairs:
    kept = np.zeros((0, -(-n_players // 8)), dtype=np.uint8)
    return ValuePairs(np.zeros(0, dtype=np.int64), kept, np.zeros(0, dtype=bool))


def _round(
    rows: Rows, index: IntArray, seed: int, number: int
) -> Iterator[tuple[IntArray, npt.NDArray[np.uint8], BoolArray]]:
    """One pair of every row, in parts."""
    n_players = rows.active.shape[1]
    stream = stream_seed(seed, "values of the student", number)
    for start in range(0, len(index), ROWS_AT_A_TIME):
        some = index[start : start + ROWS_AT_A_TIME]
        active = rows.active[some]
        draws = row_uniforms(rows.words[some], stream, 0, n_players + 1)
        count = active.sum(axis=1)
        size = 1 + np.floor(draws[:, 0] * count).astype(np.int64)
        keys = np.where(active, draws[:, 1:], 2.0)
        largest = np.take_along_axis(np.sort(keys, axis=1), size[:, None] - 1, axis=1)
        yield some, np.packbits(keys <= largest, axis=1), size == count


def _different(pairs: ValuePairs, rows: Rows) -> ValuePairs:
    """Without those that stand earlier, as S or as its complement."""
    keys = np.empty(len(pairs), dtype=np.uint64)
    for start in range(0, len(pairs), 65_536):
        part = slice(start, start + 65_536)
        words = coalition_words(pairs.masks(part, rows.active))
        keys[part] = mix(rows.words[pairs.row[part]]) ^ words.min(axis=1)
    _, first = np.unique(keys, return_index=True)
    first.sort()
    return ValuePairs(pairs.row[first], pairs.kept[first], pairs.single[first])
