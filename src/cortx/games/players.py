"""Players: single features, or groups of features that come and go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.seeding import mix
from cortx.tables import column_position

Groups = Mapping[str, Sequence[str | int]]


@dataclass(frozen=True, eq=False)
class Players:
    """The names of the players, and for each column the player it belongs to."""

    names: tuple[str, ...]
    column_player: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)

    def columns(self, coalitions: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Coalitions of players, (..., players), as present columns, (..., columns)."""
        if len(self) == len(self.column_player):
            return coalitions
        return coalitions[..., self.column_player]

    def any_column(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Flags of columns, (rows, columns), as flags of players: true where any of its columns is."""
        if len(self) == len(self.column_player):
            return flags
        member = np.arange(len(self)) == self.column_player[:, None]  # (columns, players)
        result: npt.NDArray[np.bool_] = flags @ member
        return result


def make_players(column_names: Sequence[str], groups: Groups | None) -> Players:
    """Every column is a player, unless `groups` (name -> columns) joins several; order follows the columns."""
    if not groups:
        return Players(tuple(column_names), np.arange(len(column_names)))
    owner: dict[int, str] = {}
    for name, members in groups.items():
        if isinstance(members, str) or len(members) == 0:
            raise InputError(f"group {name!r} must list its columns, got {members!r}")
        for member in members:
            position = column_position(member, column_names)
            if position in owner:
                raise InputError(
                    f"column {column_names[position]!r} is in two groups: {owner[position]!r} and {name!r}"
                )
            owner[position] = name
    singles = {column_names[j] for j in range(len(column_names)) if j not in owner}
    clash = singles & set(groups)
    if clash:
        raise InputError(f"a group has the name of a column outside it: {sorted(clash)}; rename the group")
    names: list[str] = []
    column_player = np.empty(len(column_names), dtype=np.int64)
    for j, column in enumerate(column_names):
        name = owner.get(j, column)
        if name not in names:
            names.append(name)
        column_player[j] = names.index(name)
    # Players are ordered by their first column, so ungrouped games keep the table's order.
    return Players(tuple(names), column_player)


def coalition_words(coalitions: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """One word for each coalition, (..., players) -> (...): its bits up to 64 players, beyond that a hash of them."""
    packed = np.packbits(coalitions, axis=-1)
    padded = np.zeros((*packed.shape[:-1], -(-packed.shape[-1] // 8) * 8), dtype=np.uint8)
    padded[..., : packed.shape[-1]] = packed
    parts = padded.view(np.uint64)  # (..., players / 64)
    words: npt.NDArray[np.uint64] = parts[..., 0]
    for j in range(1, parts.shape[-1]):
        words = mix(words) ^ parts[..., j]
    return words
