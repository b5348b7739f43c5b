"""Engines by name, for the command line."""

from __future__ import annotations

import importlib
import math
from typing import Any

from cortx.distributed.local import LocalEngine
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
    `gpus_per_worker` may be a part of one: with 0.5, two workers share a GPU.
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
    if name == "local" and gpus_per_worker:
        import torch

        devices = shares(torch.cuda.device_count(), gpus_per_worker)
        return LocalEngine(None if workers is None else min(workers, len(devices)), devices)
    if name == "spark" and gpus_per_worker:
        raise InputError(
            "on Spark the cluster's own settings give GPUs to workers (spark.task.resource.gpu.amount); start the "
            "session with them, and leave gpus_per_worker out"
        )
    engine: Engine = (
        kind(workers=workers)
        if name == "local"
        else kind(address=address, workers=workers, gpus_per_worker=gpus_per_worker)
        if name == "ray"
        else kind(master=address, workers=workers)
    )
    return engine


def shares(found: int, gpus_per_worker: float) -> tuple[str, ...]:
    """The device of each worker, for as many workers as `found` GPUs allow: first one on every GPU, then a second."""
    if gpus_per_worker < 0:
        raise InputError(f"gpus_per_worker must be 0 or more (0.5 lets two share one), got {gpus_per_worker!r}")
    apart = math.ceil(gpus_per_worker)
    firsts = [f"cuda:{number}" for number in range(0, found - apart + 1, apart)]
    if not firsts:
        raise InputError(
            f"a worker wants {gpus_per_worker:g} GPUs, but torch sees {found} CUDA devices on this machine; use "
            "gpus_per_worker=0"
        )
    return tuple(firsts * max(1, int(1 / gpus_per_worker + 1e-9)))
