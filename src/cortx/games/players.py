"""Players: single features, groups of features that come and go together, or parts of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import InputError
from cortx.images import Channels, ImageSchema
from cortx.seeding import mix
from cortx.tables import column_position, plain

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


@dataclass(frozen=True)
class Patches:
    """Rectangles of pixels as the players of an image game.

    `size` is the height and width of a patch, or one number for both. `channels` says where the images have their
    channel axis, `pixels` between which numbers their floats lie.
    """

    size: int | tuple[int, int] = 2
    channels: Channels = field(default="first", kw_only=True)
    pixels: tuple[float, float] = field(default=(0.0, 1.0), kw_only=True)

    def __post_init__(self) -> None:
        sizes = self.both if isinstance(self.size, (int, np.integer, tuple, list)) else ()
        if len(sizes) != 2 or any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1 for n in sizes):
            raise InputError(f"a patch is a positive whole number of pixels, or (height, width), got {self.size!r}")
        _check_layout(self.channels, self.pixels)

    @property
    def both(self) -> tuple[int, int]:
        return (self.size, self.size) if isinstance(self.size, (int, np.integer)) else self.size

    def players(self, schema: ImageSchema) -> ImagePlayers:
        (height, width), (tall, wide) = schema.size, self.both
        if height % tall or width % wide:
            raise InputError(
                f"images of {height} x {width} pixels cannot be divided into patches of {tall} x {wide}; choose a "
                f"patch height that divides {height} and a width that divides {width}, or pad the images"
            )
        grid = height // tall, width // wide
        rows, columns = np.indices((height, width))
        names = tuple(f"patch {i},{j}" for i in range(grid[0]) for j in range(grid[1]))
        return ImagePlayers.of(names, rows // tall * grid[1] + columns // wide, schema, grid)


@dataclass(frozen=True, eq=False)
class Segments:
    """A segmentation as the players of an image game: `map`, (height, width), holds the number of each pixel's part."""

    map: Any
    channels: Channels = field(default="first", kw_only=True)
    pixels: tuple[float, float] = field(default=(0.0, 1.0), kw_only=True)

    def __post_init__(self) -> None:
        array = np.array(plain(self.map))  # a copy, which nobody changes
        if array.ndim != 2 or array.size == 0 or array.dtype.kind not in "iu":
            raise InputError(
                f"a segmentation is a map of whole numbers, (height, width), got shape {array.shape} of {array.dtype}"
            )
        numbers = np.unique(array)
        if not np.array_equal(numbers, np.arange(len(numbers))):
            raise InputError(
                f"the parts of a segmentation are numbered 0, 1, 2, ... without gaps, got {len(numbers)} numbers from "
                f"{numbers[0]} to {numbers[-1]}; np.unique(map, return_inverse=True) renumbers them"
            )
        object.__setattr__(self, "map", array.astype(np.int64))
        _check_layout(self.channels, self.pixels)

    def players(self, schema: ImageSchema) -> ImagePlayers:
        if self.map.shape != schema.size:
            raise InputError(
                f"the segmentation is {self.map.shape}, the images are {schema.size} pixels; both must agree"
            )
        return ImagePlayers.of(tuple(f"segment {i}" for i in range(self.map.max() + 1)), self.map, schema, None)


def _check_layout(channels: str, pixels: tuple[float, float]) -> None:
    if channels not in ("first", "last"):
        raise InputError(f"channels must be 'first' or 'last', got {channels!r}")
    numbers = isinstance(pixels, (tuple, list)) and all(isinstance(end, (int, float, np.number)) for end in pixels)
    if not numbers or len(pixels) != 2 or not -np.inf < pixels[0] < pixels[1] < np.inf:
        raise InputError(f"pixels must be (lowest, highest), got {pixels!r}")


@dataclass(frozen=True, eq=False)
class ImagePlayers(Players):
    """Parts of an image; a "column" is one number of it.

    `pixel_player` (height, width) is the part of each pixel, `grid` the rows and columns of patches.
    """

    pixel_player: npt.NDArray[np.int64]
    grid: tuple[int, int] | None

    @staticmethod
    def of(
        names: tuple[str, ...], pixel_player: npt.NDArray[np.int64], schema: ImageSchema, grid: tuple[int, int] | None
    ) -> ImagePlayers:
        return ImagePlayers(names, schema.of_pixels(pixel_player), pixel_player, grid)

    def columns(self, coalitions: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return coalitions[..., self.column_player]

    def any_column(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        counts = torch.zeros(len(flags), len(self))
        counts.index_add_(1, torch.from_numpy(self.column_player), torch.from_numpy(flags).to(torch.float32))
        result: npt.NDArray[np.bool_] = (counts > 0).numpy()
        return result


def coalition_words(coalitions: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """One word for each coalition, (..., players) -> (...): its bits up to 64 players, beyond that a hash of them."""
    return packed_words(np.packbits(coalitions, axis=-1))


def packed_words(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """The same for coalitions as `numpy.packbits` packs them, (..., bytes) -> (...)."""
    padded = np.zeros((*packed.shape[:-1], -(-packed.shape[-1] // 8) * 8), dtype=np.uint8)
    padded[..., : packed.shape[-1]] = packed
    parts = padded.view(np.uint64)  # (..., players / 64)
    words: npt.NDArray[np.uint64] = parts[..., 0]
    for j in range(1, parts.shape[-1]):
        words = mix(words) ^ parts[..., j]
    return words
