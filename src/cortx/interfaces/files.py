"""Tables in files, for the command line: read with clear errors, written whole or not at all."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cortx.errors import InputError, need
from cortx.storage import local_path, replace_whole

TABLE_ENDINGS = (".csv", ".parquet")


def read_file(path: Path) -> Any:
    """A CSV or Parquet file as a pandas frame, or a polars one where pandas is not installed."""
    path = local_path(path, "the table")
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}")
    name = path.name.lower()
    is_csv = name.endswith((".csv", ".csv.gz"))
    if not is_csv and not name.endswith(".parquet"):
        raise InputError(f"{str(path)!r} must end in .csv, .csv.gz or .parquet")
    if not is_csv and find_spec("pyarrow") is not None:
        from cortx.distributed.places import place, refuse_part_of_table

        refuse_part_of_table(place(path))
    library = _frame_library()
    read = library.read_csv if is_csv else library.read_parquet
    try:
        table = read(path)
    except ImportError as error:
        raise need("pyarrow", f"reading {path.name}", "tables") from error
    except Exception as error:
        kind = "CSV" if is_csv else "Parquet"
        raise InputError(f"{str(path)!r} is not a readable {kind} file: {error}") from error
    if len(table) == 0:
        raise InputError(f"{str(path)!r} has no rows; give at least one")
    return table


def stored_columns(path: Path, rows: Any, out: Path) -> Any:
    """All columns of a file as they stand in it, for copying beside new ones into the file `out`.

    `rows` is what `read_file` made of it. A frame may read 007 as 7, and whole numbers beside gaps as floats: what is
    only copied must not change, so text stays text from CSV to CSV, and Parquet's types stay what they are.
    """
    library = _frame_library()
    is_pandas = library.__name__ == "pandas"
    if path.name.lower().endswith(".parquet"):
        if not is_pandas:
            return rows
        import pyarrow.parquet as pq

        return pq.ParquetFile(path).read().replace_schema_metadata(None).to_pandas(types_mapper=library.ArrowDtype)
    if out.suffix.lower() != ".csv":
        return rows
    if is_pandas:
        return library.read_csv(path, dtype=str, keep_default_na=False)
    return library.read_csv(path, infer_schema=False, missing_utf8_is_empty_string=True)


def beside(frame: Any, columns: dict[str, Any]) -> Any:
    """A pandas or polars frame with more columns, each (rows,)."""
    library = _frame_library()
    added = library.DataFrame(columns)
    if library.__name__ == "pandas":
        return library.concat([frame.reset_index(drop=True), added], axis=1)
    return frame.hstack(added)


def _frame_library() -> Any:
    for name in ("pandas", "polars"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise need("pandas or polars", "reading a table", "tables")


def write_file(frame: Any, path: Path) -> None:
    """Writes a frame whole or not at all: under another name first, then renamed."""
    path = local_path(path, "the table")
    csv = path.suffix.lower() == ".csv"

    def write(temporary: Path) -> None:
        if type(frame).__module__.startswith("polars"):
            (frame.write_csv if csv else frame.write_parquet)(temporary)
        elif csv:
            frame.to_csv(temporary, index=False)
        else:
            frame.to_parquet(temporary, index=False)

    replace_whole(path, write)
