"""The columns that an explanation adds to a table: their names, their order, their values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError

if TYPE_CHECKING:
    from cortx.explanation import Explanation

FEATURE = "feature"
"""The part that names players; all others are numbers."""


class Added(NamedTuple):
    """One column: the part of the explanation it shows, of which player (or place among the strongest) and output."""

    name: str
    part: str
    player: int
    output: int


def suffixes(output_names: Sequence[str] | None, n_outputs: int | None) -> tuple[str, ...]:
    """What ends the names of the columns of each output; `n_outputs` is None where the axis of outputs is left out."""
    if n_outputs is None:
        return ("",)
    return tuple(f":{name}" for name in output_names or range(n_outputs))


def added_columns(
    players: Sequence[str],
    endings: Sequence[str],
    *,
    top: int | None = None,
    bounds: bool = False,
    known: bool = False,
) -> tuple[Added, ...]:
    """All columns, output by output: every player's, or the `top` strongest by name and value; `known`: the outputs."""
    added: list[Added] = []
    for k, end in enumerate(endings):
        if top is None:
            added += [Added(f"attribution_{name}{end}", "values", j, k) for j, name in enumerate(players)]
            added.append(Added(f"base_value{end}", "base_values", 0, k))
            for j, name in enumerate(players if bounds else ()):
                added.append(Added(f"lower_{name}{end}", "lower_bounds", j, k))
                added.append(Added(f"upper_{name}{end}", "upper_bounds", j, k))
        else:
            for j in range(min(top, len(players))):
                added.append(Added(f"feature_{j + 1}{end}", FEATURE, j, k))
                added.append(Added(f"value_{j + 1}{end}", "values", j, k))
                if bounds:
                    added.append(Added(f"lower_{j + 1}{end}", "lower_bounds", j, k))
                    added.append(Added(f"upper_{j + 1}{end}", "upper_bounds", j, k))
            added.append(Added(f"base_value{end}", "base_values", 0, k))
        if bounds:
            added.append(Added(f"error_bound{end}", "error_bound", 0, k))
    added += [Added(f"model_output{end}", "outputs", 0, k) for k, end in enumerate(endings) if known]
    names = [column.name for column in added]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two features and outputs would both be the column {twice!r}; rename one of them")
    return tuple(added)


def refuse_taken(added: Iterable[str], present: Iterable[str]) -> None:
    """Raises where a table has columns already that explaining would add."""
    taken = sorted(set(added) & set(present))
    if taken:
        raise InputError(
            f"the table has columns already that explaining would add: {', '.join(map(repr, taken))}; "
            "rename or drop them"
        )


def column_values(explanation: Explanation, added: Sequence[Added], top: int | None = None) -> list[npt.NDArray[Any]]:
    """The columns' numbers, each (rows,) and contiguous; those of `FEATURE` are positions among the players."""
    n_rows, n_players = explanation.values.shape[:2]
    wanted = {column.part for column in added}
    shape = (n_rows, n_players, -1) if n_rows else (0, n_players, *(explanation.values.shape[2:] or (1,)))
    order: npt.NDArray[Any] | None = None
    if top is not None:
        order = explanation.order_by_magnitude.reshape(shape)[:, :top]
    parts: dict[str, npt.NDArray[Any]] = {}
    for part in wanted:
        if part == FEATURE:
            assert order is not None
            array = order
        elif part in ("values", "lower_bounds", "upper_bounds"):
            array = getattr(explanation, part).reshape(shape)
            array = array if order is None else np.take_along_axis(array, order, axis=1)
        else:
            array = getattr(explanation, part).reshape(n_rows, 1, shape[2])
        parts[part] = np.ascontiguousarray(array.transpose(2, 1, 0))  # (outputs, players, rows)
    return [parts[column.part][column.output, column.player] for column in added]


def explained_columns(explanation: Explanation, top: int | None = None) -> dict[str, Any]:
    """Everything that an explanation says of its rows, column by column, each (rows,); see `added_columns`."""
    added = added_columns(
        explanation.feature_names,
        suffixes(explanation.output_names, None if explanation.values.ndim == 2 else explanation.values.shape[2]),
        top=top,
        bounds=explanation.lower_bounds is not None,
        known=explanation.outputs is not None,
    )
    return named_values(
        explanation, [c for c in added if c.part == FEATURE or getattr(explanation, c.part) is not None], top
    )


def named_values(explanation: Explanation, added: Sequence[Added], top: int | None = None) -> dict[str, Any]:
    """The columns by name; those of `FEATURE` hold the players' names."""
    names = np.array(explanation.feature_names)
    return {
        column.name: names[values].tolist() if column.part == FEATURE else values
        for column, values in zip(added, column_values(explanation, added, top), strict=True)
    }
