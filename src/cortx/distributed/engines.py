"""Engines by name, for the command line."""

from __future__ import annotations

import importlib
from typing import Any

from cortx.distributed.work import Engine
from cortx.errors import InputError, need
from cortx.registry import Registry

ENGINES: Registry[Any] = Registry(
    "engine",
    {
        "local": "cortx.distributed.local:LocalEngine",
        "ray": "cortx.distributed.ray_engine:RayEngine",
        "spark": "cortx.distributed.spark_engine:SparkEngine",
    },
)

NEEDED = {"ray": "ray", "spark": "pyspark"}
"""What must be installed; the extras have the names of the engines."""


def make_engine(
    name: str, workers: int | None = None, address: str | None = None, gpus_per_worker: float = 0.0
) -> Engine:
    """The engine of this name; options that do not belong to it are refused.

    `address` is a Ray cluster (``auto``, ``host:port``) or a Spark master (``spark://host:port``, ``yarn``).
    """
    kind = ENGINES[name]
    if name in NEEDED:
        try:
            importlib.import_module(NEEDED[name])
        except ImportError as error:
            raise need(NEEDED[name], f"the engine {name!r}", name) from error
    if name == "local" and address is not None:
        raise InputError(
            f"the engine 'local' is this machine and has no address, got {address!r}; use 'ray' or 'spark'"
        )
    if name != "ray" and gpus_per_worker:
        raise InputError(f"the engine {name!r} gives no GPUs to workers; use the engine 'ray'")
    engine: Engine = (
        kind(workers=workers)
        if name == "local"
        else kind(address=address, workers=workers, gpus_per_worker=gpus_per_worker)
        if name == "ray"
        else kind(master=address, workers=workers)
    )
    return engine
