"""What a folder of explanations says of itself, so that a later run goes on with the same and refuses anything else."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from cortx.distributed.explain_job import SLICE_ROWS, OpenExplainer
from cortx.distributed.places import Place, write_whole
from cortx.distributed.source import ParquetSource
from cortx.errors import InputError, StorageError
from cortx.version import __version__

RECORD = "_explained.json"
"""Readers of Parquet folders skip names that start so."""


def check_record(opened: OpenExplainer, source: ParquetSource, folder: Place, done: set[str]) -> int:
    """Refuses a folder that was made otherwise, writes what this run makes of it, and returns the rows of a slice."""
    settings = asdict(opened.settings) | {"outputs": list(opened.settings.outputs)}
    record: dict[str, Any] = {
        "format": "cortx-explained",
        "cortx": __version__,
        "explainer": {"folder": opened.explainer, "manifest": opened.digest},
        "with_model": opened.model is not None,
        "settings": settings,
        "source": str(source.place),
        "slice_rows": SLICE_ROWS,
        "files": {file.relative: [file.rows, file.digest] for file in source.files},
    }
    there = folder / RECORD
    if there.exists():
        before = _read_record(there)
        why = _differences(before, record)
        if why:
            raise InputError(f"{folder} holds explanations that were made otherwise: {why}; choose another folder")
        record["slice_rows"] = int(before["slice_rows"])
        _check_files(before["files"], source, folder, done)
        record["files"] = before["files"] | record["files"]
        if record == before:
            return int(record["slice_rows"])
    elif done:
        raise InputError(f"{folder} has files but no {RECORD}, so it was not made by cortx; choose another folder")
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    write_whole(there, lambda stream: stream.write(text.encode()))
    return int(record["slice_rows"])


def _read_record(there: Place) -> dict[str, Any]:
    try:
        record = json.loads(there.read_bytes())
        known = record["format"] == "cortx-explained" and {"explainer", "with_model", "settings", "files"} <= set(
            record
        )
        _ = int(record["slice_rows"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{there} is damaged ({error}); choose another folder") from error
    if not known:
        raise StorageError(f"{there} is not a record of explanations; choose another folder")
    return dict(record)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What was otherwise, in words."""
    found = []
    if before["explainer"]["manifest"] != now["explainer"]["manifest"]:
        found.append(f"by another explainer ({before['explainer']['folder']}, or it has changed since)")
    if before["with_model"] != now["with_model"]:
        found.append(f"{'with' if before['with_model'] else 'without'} the model")
    for name, value in now["settings"].items():
        if before["settings"].get(name) != value:
            found.append(f"with {name}={before['settings'].get(name)!r}, not {value!r}")
    return ", ".join(found)


def _check_files(before: dict[str, Any], source: ParquetSource, folder: Place, done: set[str]) -> None:
    """What is finished must come from the files of today; new files are fine, and changed ones that nothing came of."""
    now = {file.relative: file for file in source.files}
    for name, (rows, digest) in before.items():
        file = now.get(name)
        if file is not None and [file.rows, file.digest] == [rows, digest]:
            continue
        made = sorted(out for out in done if out == name or out.startswith(f"{name}-"))
        if made:
            gone = "is not in the table any more" if file is None else "has changed since it was explained"
            raise InputError(
                f"{folder} holds explanations of another table: {name} {gone}; choose another folder, or remove "
                f"{', '.join(made[:4])}{' and so on' if len(made) > 4 else ''} from it"
            )
