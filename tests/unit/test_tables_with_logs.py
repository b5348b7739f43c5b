"""Delta, Iceberg and Hudi tables keep deleted rows in their Parquet files: every reader of files refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cortx.distributed
from cortx.distributed import ParquetRows
from cortx.distributed.places import Place, place, write_whole
from cortx.distributed.source import ParquetSource
from cortx.errors import InputError
from cortx.interfaces import cli
from cortx.interfaces.files import read_file

LOGS = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Iceberg": "metadata/00000-9c6a.metadata.json",
}
ROWS = pa.table({"a": np.arange(5.0), "b": np.arange(5.0)})


def fill(table: Place, log: str | None) -> None:
    """Parquet files in two folders, and the file of a log."""
    for part in ("day=1", "day=2"):
        write_whole(table / f"{part}/part-0.parquet", lambda stream: pq.write_table(ROWS, stream))
    if log is not None:
        write_whole(table / log, lambda stream: stream.write(b"{}"))


@pytest.mark.parametrize("root", ["local", "mock:///lake"])
@pytest.mark.parametrize("kind", LOGS)
def test_tables_with_a_log_are_refused(kind: str, root: str, tmp_path: Path) -> None:
    lake = place(tmp_path if root == "local" else f"{root}-{kind}")
    fill(lake / "table", LOGS[kind])
    fill(lake / "plain", None)
    for inside in ("", "table", "table/day=1", "table/day=1/part-0.parquet"):
        where = lake / inside if inside else lake
        with pytest.raises(InputError, match=rf"belongs to a {kind} table .*write the rows of now to a folder"):
            ParquetSource(where)
    assert ParquetSource(lake / "plain").n_rows == 10
    write_whole(lake / "plain/metadata/notes.json", lambda stream: stream.write(b"{}"))  # not Iceberg's
    assert ParquetSource(lake / "plain").n_rows == 10


def test_an_empty_log_and_a_link_into_a_table_count(tmp_path: Path) -> None:
    fill(place(tmp_path / "table"), None)
    (tmp_path / "table" / "_delta_log").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "table" / "day=1")
    for where in (tmp_path / "table", tmp_path / "link"):
        with pytest.raises(InputError, match="belongs to a Delta table"):
            ParquetSource(where)


def sum_of_rows(rows: Any) -> Any:
    raise AssertionError("the model must not be asked")


@pytest.mark.parametrize(
    "read",
    [
        lambda table, out: ParquetRows(table),
        lambda table, out: cortx.distributed.label(sum_of_rows, str(table), out / "labels", budget=1_000),
        lambda table, out: read_file(table / "day=1" / "part-0.parquet"),
    ],
    ids=["rows of a fit", "labels", "a file of the command line"],
)
def test_every_reader_refuses(read: Callable[[Path, Path], Any], tmp_path: Path) -> None:
    fill(place(tmp_path / "table"), LOGS["Delta"])
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="belongs to a Delta table"):
        read(tmp_path / "table", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_explaining_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    fill(place(tmp_path / "table"), LOGS["Delta"])
    explainer = Path(__file__).parents[1] / "compat" / "first_version" / "numbers" / "artifact"
    line = ["cortx", "explain", str(explainer), str(tmp_path / "table"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", [*line, "--workers", "0"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "belongs to a Delta table" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
