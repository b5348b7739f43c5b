"""A table's schema as plain JSON, so that a saved explainer can hand its model the same kind of table again.

A column's "type" is one of integer, float, decimal, boolean, text and category, which need no library; its "dtype" is
what the caller's library calls it. Reading imports none of these libraries, and looks nothing up in them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cortx.errors import ArtifactError
from cortx.tables import FRAMES, NOT_AVAILABLE, POLARS_NAMES, Column, Dtype, Schema, dtype_kind, listed_categories


def schema_to_json(schema: Schema) -> dict[str, Any]:
    return {"frame": schema.frame, "columns": [_column_to_json(column, schema.frame) for column in schema.columns]}


def schema_from_json(data: dict[str, Any]) -> Schema:
    try:
        return Schema(tuple(_column_from_json(item, data["frame"]) for item in data["columns"]), data["frame"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"the saved columns cannot be read: {error!r}") from error


def _column_to_json(column: Column, frame: str) -> dict[str, Any]:
    dtype = _dtype_to_json(column.dtype, frame)
    return {
        "name": column.name,
        "kind": "categorical" if column.categorical else "numeric",
        "coded": column.coded,
        "type": "category" if isinstance(dtype, dict) else dtype_kind(dtype),
        "dtype": dtype,
        "values": [value.item() if isinstance(value, np.generic) else value for value in column.values],
        "label": column.label.item() if isinstance(column.label, np.generic) else column.label,
        "missing": _missing_to_json(column.missing),
    }


def _column_from_json(item: dict[str, Any], frame: str) -> Column:
    categorical, coded = item["kind"] == "categorical", item["coded"]
    if not isinstance(coded, bool) or (coded and not categorical):
        raise ArtifactError(f"the saved columns cannot be read: column {item['name']!r} has coded={coded!r}")
    return Column(
        name=item["name"],
        categorical=categorical,
        dtype=_dtype_from_json(item["dtype"], frame),
        coded=coded,
        values=tuple(item["values"]),
        label=item["label"],
        missing=_missing_from_json(item["missing"]),
    )


def _missing_to_json(value: Any) -> str | None:
    """What stands for a missing category: None, NaN or pandas.NA."""
    if value is None:
        return None
    return "NaN" if isinstance(value, float) else "NA"


def _missing_from_json(name: str | None) -> Any:
    if name == "NA":
        return NOT_AVAILABLE
    return None if name is None else float("nan")


def _dtype_to_json(dtype: Any, frame: str) -> Any:
    categories = listed_categories(dtype)
    if categories is not None:
        plain = [value.item() if isinstance(value, np.generic) else value for value in categories]
        return {"categories": plain, "ordered": bool(dtype.ordered)} if frame == "pandas" else {"categories": plain}
    if frame == "pyarrow" and str(dtype).startswith("dictionary"):
        return {"dictionary": dtype.values if isinstance(dtype, Dtype) else str(dtype.value_type)}
    return type(dtype).__name__ if frame == "polars" and not isinstance(dtype, Dtype) else str(dtype)


def _dtype_from_json(data: Any, frame: str) -> Any:
    """A dtype by its name, one of those in `KINDS`: a name from elsewhere must not reach a library."""
    if frame not in FRAMES:
        raise ArtifactError(f"the saved columns are of a {frame!r} table; known are {', '.join(FRAMES)}")
    if isinstance(data, dict) and "categories" in data and frame in ("pandas", "polars"):
        name = "category" if frame == "pandas" else "Enum"
        return Dtype(frame, name, tuple(data["categories"]), bool(data.get("ordered", False)))
    if isinstance(data, dict) and frame == "pyarrow":
        values = data["dictionary"]
        if dtype_kind(values) in (None, "category"):
            raise ArtifactError(f"the saved columns have values of an unknown type {values!r}")
        return Dtype(frame, f"dictionary<values={values}, indices=int32, ordered=0>", values=values)
    kind = dtype_kind(data) if isinstance(data, str) else None
    if kind is None or (frame == "polars" and data not in POLARS_NAMES):
        raise ArtifactError(f"the saved columns have the unknown dtype {data!r}; save the explainer again")
    if frame == "numpy":
        return np.dtype(data)
    return Dtype(frame, data)
