"""What people and pages want to know of a served artifact: columns, ranges, examples, quality."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cortx.explainer.profile import Numbers
from cortx.games.players import ImagePlayers
from cortx.images import ImageSchema
from cortx.interfaces.server.records import ColumnReader, Reader, RecordReader
from cortx.interfaces.server.settings import Settings
from cortx.tables import read_table

if TYPE_CHECKING:
    from cortx.explainer.explainer import CoRTX
    from cortx.games.game import GameSpec
    from cortx.interfaces.server.portable_artifact import PortableArtifact

    Served = CoRTX | PortableArtifact

MOST_EXAMPLES = 100


def output_names(spec: GameSpec) -> tuple[str, ...]:
    """Names of the outputs; one without a name is called "output"."""
    if spec.output_names is not None:
        return spec.output_names
    n = len(spec.base_values)
    return ("output",) if n == 1 else tuple(str(k) for k in range(n))


def describe(
    name: str, version: str, explainer: Served, reader: Reader, examples: Any, settings: Settings
) -> dict[str, Any]:
    """``GET /models/{name}``, without what changes while it is served."""
    fitted = explainer.fitted
    spec = fitted.spec
    table = isinstance(reader, RecordReader)
    return {
        "name": name,
        "version": version,
        "kind": "table" if table else "image",
        "output": spec.output,
        "output_names": list(output_names(spec)),
        "base_values": None if spec.own_reference is not None else spec.base_values.tolist(),
        "columns": _columns(explainer, reader) if isinstance(reader, RecordReader) else [],
        "players": list(spec.players.names),
        "groups": _groups(spec, reader) if isinstance(reader, RecordReader) else {},
        "image": None if table else _image(spec),
        "confidence": _confidence(explainer, settings),
        "examples": _examples(explainer, reader, examples) if isinstance(reader, RecordReader) else [],
        "quality": _quality(explainer),
        "has_model": explainer.game is not None,
    }


def _columns(explainer: Served, reader: RecordReader) -> list[dict[str, Any]]:
    fitted = explainer.fitted
    absent = fitted.spec.absent
    found = []
    for j, (column, known) in enumerate(zip(reader.columns, fitted.profile.columns, strict=True)):
        numbers = isinstance(known, Numbers) and len(known.grid) > 0
        found.append(
            {
                "name": column.name,
                "kind": "category" if column.column.categorical else "number",
                "whole": column.whole,
                "low": known.grid[0] if isinstance(known, Numbers) and numbers else None,
                "high": known.grid[-1] if isinstance(known, Numbers) and numbers else None,
                "categories": column.categories if column.column.categorical else [],
                "missing": column.gap in column.known if column.column.coded else column.may_miss,
                # With a background there is no row whose values replace absent ones.
                "reference": column.decode(absent[0, j]) if len(absent) == 1 else None,
            }
        )
    return found


def _groups(spec: GameSpec, reader: RecordReader) -> dict[str, list[str]]:
    """The columns of players that are not one column of the same name."""
    found = {}
    for player, name in enumerate(spec.players.names):
        members = [reader.names[j] for j in np.flatnonzero(spec.players.column_player == player)]
        if members != [name]:
            found[name] = members
    return found


def _image(spec: GameSpec) -> dict[str, Any]:
    schema, players = spec.schema, spec.players
    assert isinstance(schema, ImageSchema)
    assert isinstance(players, ImagePlayers)
    height, width = schema.size
    facts = {"height": height, "width": width, "channels": schema.n_channels}
    if players.grid is not None:
        return {**facts, "grid": list(players.grid)}
    return {**facts, "grid": None, "parts": players.pixel_player.tolist()}  # the part of each pixel


def _confidence(explainer: Served, settings: Settings) -> dict[str, float] | None:
    if explainer.fitted.calibration is None:
        return None
    highest = explainer.calibration.most_confident
    return {"default": min(settings.confidence or 0.9, highest), "highest": highest}


def _quality(explainer: Served) -> dict[str, Any]:
    calibration = explainer.fitted.calibration
    facts: dict[str, Any] = {name: float(value) for name, value in explainer.quality_.items()}
    if calibration is not None:
        facts |= {"calibration_rows": len(calibration), "mean_l2": calibration.mean_l2.tolist()}
    facts["evaluations"] = int(explainer.costs_.get("total_evaluations", 0))
    return {key: None if isinstance(v, float) and not np.isfinite(v) else v for key, v in facts.items()}


def _examples(explainer: Served, reader: RecordReader, examples: Any) -> list[dict[str, Any]]:
    if examples is None:
        return [{"name": "a typical row", "record": _typical(explainer, reader)}]
    known = [name for name in examples.columns if str(name) in set(reader.names)]
    table = read_table(examples[known][:MOST_EXAMPLES], schema=reader.schema, what="the examples")
    return [{"name": f"row {i + 1}", "record": reader.decode(row)} for i, row in enumerate(table.matrix)]


def _typical(explainer: Served, reader: RecordReader) -> dict[str, Any]:
    """The median of each number and the most frequent category, as training had them."""
    record: dict[str, Any] = {}
    for column, known in zip(reader.columns, explainer.fitted.profile.columns, strict=True):
        if isinstance(known, Numbers):
            record[column.name] = column.decode(known.median) if known.grid else None
        else:
            record[column.name] = _category(column, known.values[0]) if known.values else None
    return record


def _category(column: ColumnReader, value: Any) -> Any:
    """A category of the profile, where numbers and booleans are floats, as JSON."""
    return value if column.column.coded else column.decode(float(value))
