"""The columns that an explanation adds to a table: their names, their order, their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cortx.explanation import Explanation, strongest_first
from cortx.reasons import backend_of, usable_backend

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
    prefix: str = "attribution_",
) -> tuple[Added, ...]:
    """All columns, output by output: every player's, or the `top` strongest by name and value; `known`: the outputs."""
    added: list[Added] = []
    for k, end in enumerate(endings):
        if top is None:
            added += [Added(f"{prefix}{name}{end}", "values", j, k) for j, name in enumerate(players)]
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
    return tuple(added)


def column_values(explanation: Explanation, added: Sequence[Added], top: int | None = None) -> list[npt.NDArray[Any]]:
    """The columns' numbers, each (rows,) and contiguous; those of `FEATURE` are positions among the players."""
    n_rows, n_players = explanation.values.shape[:2]
    wanted = {column.part for column in added}
    shape = (n_rows, n_players, -1) if n_rows else (0, n_players, *(explanation.values.shape[2:] or (1,)))
    order: npt.NDArray[Any] | None = None
    if top is not None:
        order = strongest_first(explanation.values.reshape(shape))[:, :top]
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


def explanation_frame(explanation: Explanation, top: int | None = None) -> Any:
    """One row for each explained row: all attributions, or the `top` strongest features by name and value."""
    import narwhals as nw

    bounds, known = explanation.lower_bounds is not None, explanation.outputs is not None
    n_outputs = None if explanation.values.ndim == 2 else explanation.values.shape[2]
    added = added_columns(
        explanation.feature_names,
        suffixes(explanation.output_names, n_outputs),
        top=top,
        bounds=bounds,
        known=known,
    )
    columns: dict[str, Any] = {}
    if top is None:
        frame = nw.from_native(explanation.to_frame(bounds=bounds), eager_only=True)
        columns = {name: frame[name].to_numpy() for name in frame.columns}
        added = tuple(column for column in added if column.part == "outputs")
    names = np.array(explanation.feature_names)
    for column, values in zip(added, column_values(explanation, added, top), strict=True):
        columns[column.name] = names[values].tolist() if column.part == FEATURE else values
    backend = backend_of(explanation.data) or usable_backend("a table of explanations")
    return nw.from_dict(columns, backend=backend).to_native()
