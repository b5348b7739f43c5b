"""Labels and explanations of tables that are too large for one process: on all cores, on Ray, on Spark.

cortx.distributed.label("scoring:model", "train/", "labels/", budget=2_000_000)
explainer = cortx.CoRTX().fit(game, cortx.distributed.ParquetRows("train/"), labels="labels/")
cortx.distributed.explain("credit.cortx", "warehouse/", "explained/", model="scoring:model")

Engines: `LocalEngine` (all cores, the default), `cortx.ray.RayEngine`, `cortx.spark.SparkEngine`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cortx.distributed.explaining import explain as explain
    from cortx.distributed.labelling import label as label
    from cortx.distributed.local import LocalEngine as LocalEngine
    from cortx.distributed.parquet_rows import ParquetRows as ParquetRows
    from cortx.explainer.label_folder import LabelFolder as LabelFolder

_LAZY = {
    "LabelFolder": "cortx.explainer.label_folder",
    "LocalEngine": "cortx.distributed.local",
    "ParquetRows": "cortx.distributed.parquet_rows",
    "explain": "cortx.distributed.explaining",
    "label": "cortx.distributed.labelling",
}

__all__ = ["LabelFolder", "LocalEngine", "ParquetRows", "explain", "label"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'cortx.distributed' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
