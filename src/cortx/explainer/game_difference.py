"""What tells two games apart, in words: why labels of one are none of the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cortx.games import GameSpec
from cortx.tables import Schema, Table

Array = npt.NDArray[np.float64]
CLOSE = 1e-9
"""Relative: the mean of the same rows in another order."""
MOST_SHOWN = 3


def game_difference(kept: GameSpec, now: GameSpec, *, reference: bool = True) -> str | None:
    """The first thing in which a game, its model aside, differs from the one that was kept; None if it is the same.

    Without `reference` what replaces absent features may be another one.
    """
    assert isinstance(kept.schema, Schema)
    assert isinstance(now.schema, Schema)
    for differs in (_columns(kept.schema, now.schema), _players(kept, now), _output(kept, now)):
        if differs is not None:
            return differs
    return _absent(kept, now) if reference else None


def name_difference(kept: Sequence[str], now: Sequence[str]) -> str | None:
    """The same for the names of columns alone."""
    gone, new = ([name for name in a if name not in b] for a, b in ((kept, now), (now, kept)))
    if not gone and not new:
        return None
    parts = [f"without {', '.join(map(repr, gone))}"] if gone else []
    parts += [f"with {', '.join(map(repr, new))}"] if new else []
    return f"the columns: they are now {' and '.join(parts)}"


def category_difference(kept: Schema, now: Schema) -> str | None:
    """The same for the categories of columns of the same names, in their order: what the codes in a table mean."""
    values = {column.name: column.values if column.coded else () for column in now.columns}
    for column in kept.columns:
        was, is_ = column.values if column.coded else (), values[column.name]
        if was == is_:
            continue
        gone, new = ([value for value in a if value not in b] for a, b in ((was, is_), (is_, was)))
        parts = [f"without {_some(gone)}"] if gone else []
        parts += [f"with {_some(new)}"] if new else []
        return f"the categories of {column.name!r}: they are now {' and '.join(parts) or 'in another order'}"
    return None


def _some(values: Sequence[object]) -> str:
    shown = ", ".join(map(repr, values[:MOST_SHOWN]))
    return shown if len(values) <= MOST_SHOWN else f"{shown} and {len(values) - MOST_SHOWN:,} more"


def frame_difference(kept: GameSpec, frame: str | None, allowed: Sequence[str]) -> str | None:
    """The same for the kind of table a model is given that takes the `allowed` ones; None asks for none."""
    assert isinstance(kept.schema, Schema)
    was = kept.frame or (kept.schema.frame if kept.schema.frame in allowed else allowed[0])
    if frame is None or frame == was:
        return None
    return f"the kind of table the model is given: it was {was!r}, now {frame!r}"


def _columns(kept: Schema, now: Schema) -> str | None:
    if (names := name_difference(kept.names, now.names)) is not None:
        return names
    flags = {column.name: column.categorical for column in now.columns}
    for column in kept.columns:
        if flags[column.name] != column.categorical:
            was, is_ = ("categories", "numbers") if column.categorical else ("numbers", "categories")
            return f"the column {column.name!r}: it held {was}, now {is_}"
    return None


def _players(kept: GameSpec, now: GameSpec) -> str | None:
    was, is_ = _owners(kept), _owners(now)
    for column, player in was.items():
        if is_[column] != player:
            return f"the players: column {column!r} belonged to {player!r}, now to {is_[column]!r}"
    if kept.players.names != now.players.names:
        return f"the order of the players: it was {list(kept.players.names)}, now {list(now.players.names)}"
    return None


def _owners(spec: GameSpec) -> dict[str, str]:
    names = spec.players.names
    return {column: names[p] for column, p in zip(spec.schema.names, spec.players.column_player, strict=True)}


def _output(kept: GameSpec, now: GameSpec) -> str | None:
    if kept.output != now.output:
        return f"the output: it was {kept.output!r}, now {now.output!r}"
    if kept.target != now.target:
        return f"the target: it was {kept.target!r}, now {now.target!r}"
    return None


def _absent(kept: GameSpec, now: GameSpec) -> str | None:
    """The reference, or the background, whose order does not matter."""
    counts = len(kept.absent), len(now.absent)
    if counts[0] != counts[1]:
        was, is_ = ("one reference row" if n == 1 else f"a background of {n:,} rows" for n in counts)
        return f"what replaces an absent feature: it was {was}, now {is_}"
    assert isinstance(kept.schema, Schema)
    assert isinstance(now.schema, Schema)
    words = [Table(spec.absent, spec.schema).row_words() for spec in (kept, now) if isinstance(spec.schema, Schema)]
    other = ~np.isin(words[1], words[0])
    if not other.any():
        return None
    if counts[0] > 1:
        return f"the background: {int(other.sum()):,} of its {counts[0]:,} rows are others"
    for j, column in enumerate(kept.schema.columns):
        i = now.schema.names.index(column.name)
        was, is_ = kept.absent[0, j], now.absent[0, i]
        if column.coded or now.schema.columns[i].coded:
            before, after = (
                spec.values[int(code)] if spec.coded else code
                for spec, code in ((column, was), (now.schema.columns[i], is_))
            )
            if before != after:
                return f"the reference: {column.name!r} was {before!r}, now {after!r}"
        elif not np.isclose(was, is_, rtol=CLOSE, atol=0, equal_nan=True):
            return f"the reference: {column.name!r} was {was:.6g}, now {is_:.6g} (by {abs(is_ - was):.3g})"
    return None
