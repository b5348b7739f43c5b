"""What a folder of explanations says of itself, so that a later run goes on with the same and refuses anything else."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from cortx.distributed.explain_job import SLICE_ROWS, OpenExplainer, Slice, check_names, comes_of, slices_of
from cortx.distributed.places import Place, write_whole
from cortx.distributed.source import ParquetSource
from cortx.errors import InputError, StorageError
from cortx.version import __version__

RECORD = "_explained.json"
"""Readers of Parquet folders skip names that start so."""


def check_record(opened: OpenExplainer, source: ParquetSource, folder: Place, done: set[str]) -> list[Slice]:
    """Refuses a folder that was made otherwise, writes what this run makes of it, and returns all slices, in order."""
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
    there, before = folder / RECORD, None
    if there.exists():
        before = _read_record(there)
        why = _differences(before, record)
        if why:
            raise InputError(f"{folder} holds explanations that were made otherwise: {why}; choose another folder")
        record["slice_rows"] = int(before["slice_rows"])
        _check_files(before["files"], source, folder, done)
        record["files"] = before["files"] | record["files"]
    elif done:
        raise InputError(f"{folder} has files but no {RECORD}, so it was not made by cortx; choose another folder")
    slices = [part for file in source.files for part in slices_of(file, record["slice_rows"])]
    check_names(slices)
    if record != before:
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        write_whole(there, lambda stream: stream.write(text.encode()))
    return slices


def _read_record(there: Place) -> dict[str, Any]:
    """What an earlier run wrote; everything that is asked of it later is there."""
    try:
        record: dict[str, Any] = {**json.loads(there.read_bytes())}
        ours = record["format"] == "cortx-explained"
        if ours:
            _ = record["with_model"], [record["explainer"][name] for name in ("folder", "manifest")]
            record["settings"] = {**record["settings"]}
            record["files"] = {name: [int(rows), str(digest)] for name, (rows, digest) in record["files"].items()}
            record["slice_rows"] = int(record["slice_rows"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{there} is damaged ({type(error).__name__}: {error}); choose another folder") from error
    if not ours:
        raise StorageError(f"{there} is not a record of explanations; choose another folder")
    return record


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
        made = sorted(out for out in done if comes_of(out, name))
        if made:
            gone = "is not in the table any more" if file is None else "has changed since it was explained"
            raise InputError(
                f"{folder} holds explanations of another table: {name} {gone}; choose another folder, or remove "
                f"{', '.join(made[:4])}{' and so on' if len(made) > 4 else ''} from it"
            )
