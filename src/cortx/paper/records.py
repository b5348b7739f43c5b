"""The one form of all results: a JSON list of flat records."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from cortx.threads import available_cpus
from cortx.version import __version__

LIBRARIES = ("torch", "numpy", "shap", "captum", "shapiq", "scikit-learn", "pandas")


def hardware(device: str = "cpu") -> str:
    """The processor, and the accelerator where one was used."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _cpu_lines() if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    processor = f"{model}, {available_cpus()} cores"
    import torch

    if torch.device(device).type != "cuda":
        return processor
    return f"{torch.cuda.get_device_name(device)}; {processor}"


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


@cache
def versions() -> str:
    found = [f"python {platform.python_version()}", f"cortx-explain {__version__}"]
    for name in LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def record(
    experiment: str,
    setting: str,
    method: str,
    metric: str,
    values: Sequence[float] | float,
    *,
    seeds: Sequence[int] = (0,),
    evaluations: float | None = None,
    seconds: float | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """One flat record; several values become their mean and sample standard deviation."""
    array = np.atleast_1d(np.asarray(values, dtype=np.float64))
    return {
        "experiment": experiment,
        "setting": setting,
        "method": method,
        "metric": metric,
        "value": float(array.mean()),
        "spread": float(array.std(ddof=1)) if len(array) > 1 else None,
        "seeds": list(seeds),
        "evaluations": None if evaluations is None else round(float(evaluations)),
        "seconds": None if seconds is None else round(float(seconds), 4),
        "hardware": hardware(),
        "versions": versions(),
        **facts,
    }


def write_json(path: Path, content: Any) -> Path:
    return write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: Path, text: str) -> Path:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".tmp{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
