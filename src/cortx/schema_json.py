"""A table's schema as plain JSON, so that a saved explainer can hand its model the same kind of table again."""

from __future__ import annotations

from typing import Any

import numpy as np

from cortx.errors import ArtifactError
from cortx.tables import Column, Schema


def schema_to_json(schema: Schema) -> dict[str, Any]:
    return {"frame": schema.frame, "columns": [_column_to_json(column, schema.frame) for column in schema.columns]}


def schema_from_json(data: dict[str, Any]) -> Schema:
    try:
        return Schema(tuple(_column_from_json(item, data["frame"]) for item in data["columns"]), data["frame"])
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"the saved columns cannot be read: {error!r}") from error


def _column_to_json(column: Column, frame: str) -> dict[str, Any]:
    return {
        "name": column.name,
        "kind": "categorical" if column.categorical else "numeric",
        "coded": column.coded,
        "dtype": _dtype_to_json(column.dtype, frame),
        "values": [value.item() if isinstance(value, np.generic) else value for value in column.values],
        "label": column.label.item() if isinstance(column.label, np.generic) else column.label,
        "missing": _missing_to_json(column.missing),
    }


def _column_from_json(item: dict[str, Any], frame: str) -> Column:
    return Column(
        name=item["name"],
        categorical=item["kind"] == "categorical",
        dtype=_dtype_from_json(item["dtype"], frame),
        coded=item["coded"],
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
        import pandas as pd

        return pd.NA
    return None if name is None else float("nan")


def _dtype_to_json(dtype: Any, frame: str) -> Any:
    if frame == "pandas" and str(dtype) == "category":
        return {"categories": dtype.categories.tolist(), "ordered": bool(dtype.ordered)}
    if frame == "polars" and type(dtype).__name__ == "Enum":
        return {"categories": dtype.categories.to_list()}
    if frame == "pyarrow" and str(dtype).startswith("dictionary"):
        return {"dictionary": str(dtype.value_type)}
    return type(dtype).__name__ if frame == "polars" else str(dtype)


def _dtype_from_json(data: Any, frame: str) -> Any:
    if frame == "numpy":
        return np.dtype(data)
    if frame == "pandas":
        import pandas as pd

        if isinstance(data, dict):
            return pd.CategoricalDtype(data["categories"], ordered=data["ordered"])
        return pd.api.types.pandas_dtype(data)
    if frame == "polars":
        import polars as pl

        return pl.Enum(data["categories"]) if isinstance(data, dict) else getattr(pl, data)()
    import pyarrow as pa

    if isinstance(data, dict):
        return pa.dictionary(pa.int32(), pa.type_for_alias(data["dictionary"]))
    return pa.type_for_alias(data)
