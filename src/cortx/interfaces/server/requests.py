"""Bodies of ``/explain``, ``:explain`` and ``:predict`` to work that was checked before it joins a batch."""

from __future__ import annotations

from typing import Any

from cortx.errors import CortxError
from cortx.interfaces.server.answers import Wish
from cortx.interfaces.server.catalog import Version
from cortx.interfaces.server.http import HttpError, kind_of
from cortx.interfaces.server.records import ImageReader, Rows, read_outputs
from cortx.interfaces.server.work import Kind, Work

MOST_REASONS = 100
EXPLAIN_FIELDS = frozenset({"model", "records", "images", "outputs", "confidence", "top", "output"})
V1_FIELDS = frozenset({"instances", "outputs", "confidence", "top", "output"})
PREDICT_FIELDS = frozenset({"instances"})
UNASKED = object()
"""A request that does not speak of confidence; null means no bounds."""


def read_explain(version: Version, data: dict[str, Any], max_rows: int) -> Work:
    """The work of a body of ``POST /explain``."""
    wanted, other = ("images", "records") if version.kind == "image" else ("records", "images")
    if wanted not in data or other in data:
        raise HttpError(400, f"this model explains {wanted}: give them as {wanted!r}, and no {other!r}")
    check_count(data[wanted], max_rows)
    return _work(version, version.reader.read(data[wanted], wanted), data)


def read_v1_explain(version: Version, data: dict[str, Any], max_rows: int) -> Work:
    return _work(version, _instances(version, data, max_rows), data)


def read_v1_predict(version: Version, data: dict[str, Any], max_rows: int) -> Work:
    if not version.has_model:
        raise HttpError(400, "this artifact is served without its model, so there are no predictions")
    return Work(version, "predictions", _instances(version, data, max_rows))


def _instances(version: Version, data: dict[str, Any], max_rows: int) -> Rows:
    if "instances" not in data:
        raise HttpError(400, "the body must have 'instances', a list of records")
    check_count(data["instances"], max_rows)
    return version.reader.read(data["instances"], "instances")


def check_count(items: Any, max_rows: int) -> None:
    if isinstance(items, list) and len(items) > max_rows:
        raise HttpError(413, f"{len(items):,} rows came, at most {max_rows:,} may; send them in several requests")


def _work(version: Version, rows: Rows, data: dict[str, Any]) -> Work:
    outputs = data.get("outputs")
    known = None if outputs is None else read_outputs(outputs, len(rows), version.n_outputs, version.output_range)
    return make_work(
        version, "explanations", rows, known, data.get("confidence", UNASKED),
        Wish(_top(data.get("top", 3)), _output(version, data.get("output"))),
    )  # fmt: skip


def make_work(
    version: Version, kind: Kind, rows: Rows, outputs: Any, confidence: Any, wish: Wish | None = None
) -> Work:
    """Work with the bounds that were asked for, or that are usual."""
    if outputs is None and version.needs_outputs:
        raise HttpError(400, "a portable explainer of a network needs 'outputs': what the model gave for these rows")
    if outputs is None and not version.has_model and isinstance(version.reader, ImageReader):
        own = version.explainer.fitted.spec.own_reference
        if own is not None:
            raise HttpError(400, f"the reference {own!r} needs the model, and none is served with this artifact")
    level = _confidence(version, confidence, known=outputs is not None or version.knows_outputs)
    return Work(version, kind, rows, outputs, level, wish or Wish())


def _confidence(version: Version, asked: Any, *, known: bool) -> float | None:
    if asked is UNASKED:
        return version.confidence[0] if version.confidence is not None and known and version.bounds else None
    if asked is None:
        return None
    if isinstance(asked, bool) or not isinstance(asked, (int, float)):
        raise HttpError(400, f"'confidence' must be a number or null, got {kind_of(asked)}")
    if version.confidence is None:
        raise HttpError(400, "this artifact is not calibrated, so it has no bounds; leave 'confidence' out")
    if not known:
        raise HttpError(400, "bounds need the model's outputs; give 'outputs', or leave 'confidence' out")
    try:
        version.explainer.calibration.factors(float(asked))
    except CortxError:
        text = f"'confidence' must be above 0 and at most {version.confidence[1]:.4g} for this artifact"
        raise HttpError(400, text) from None
    return float(asked)


def _top(top: Any) -> int:
    if isinstance(top, float) and top.is_integer():
        top = int(top)
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= MOST_REASONS:
        raise HttpError(400, f"'top' must be a whole number from 0 to {MOST_REASONS}")
    return top


def _output(version: Version, output: Any) -> int | None:
    """The position of an output given by its name or position."""
    names = version.names.outputs
    if output is None:
        return None
    if isinstance(output, str) and output in names:
        return names.index(output)
    if isinstance(output, float) and output.is_integer():
        output = int(output)
    if isinstance(output, int) and not isinstance(output, bool) and 0 <= output < len(names):
        return output
    shown = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
    raise HttpError(400, f"'output' must be a name or a position of {shown}")
