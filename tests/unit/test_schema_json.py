"""Saved columns: the same table again, without a library of frames until one is needed, and nothing else by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import cortx
from cortx.errors import ArtifactError
from cortx.schema_json import schema_from_json, schema_to_json
from cortx.tables import KINDS, read_table, write_table

ROOT = Path(__file__).parents[2]
FIRST = ROOT / "tests" / "compat" / "first_version" / "frame"

PANDAS = pd.DataFrame(
    {
        "whole": np.arange(4, dtype=np.int16),
        "gaps": pd.array([1, None, 3, 4], dtype="Int64"),
        "share": np.array([0.5, np.nan, 1.5, 2.0], dtype=np.float32),
        "flag": [True, False, True, True],
        "maybe": pd.array([True, None, False, True], dtype="boolean"),
        "text": ["a", "b", "a", "c"],
        "object": pd.Series(["a", None, "a", "c"], dtype=object),
        "string": pd.array(["x", None, "y", "x"], dtype="string"),
        "grade": pd.Categorical(["lo", "hi", "lo", "hi"], categories=["lo", "hi", "top"], ordered=True),
        "number": pd.Categorical([1, 2, 1, 2]),
        "arrow": pd.array([1.5, 2.5, None, 1.0], dtype="double[pyarrow]"),
    }
)
POLARS = pl.DataFrame(
    {
        "whole": pl.Series([1, None, 3], dtype=pl.Int8),
        "flag": [True, False, True],
        "text": ["a", None, "b"],
        "grade": pl.Series(["lo", "hi", "lo"], dtype=pl.Enum(["lo", "hi"])),
        "free": pl.Series(["x", "y", "x"], dtype=pl.Categorical),
    }
)
ARROW = pa.table(
    {
        "whole": pa.array([1, 2, None], pa.uint8()),
        "share": pa.array([0.5, 1.0, 2.0], pa.float32()),
        "text": pa.array(["a", "b", None], pa.large_string()),
        "grade": pa.array(["lo", "hi", "lo"]).dictionary_encode(),
    }
)


def equal(found: Any, expected: Any) -> None:
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected)
    else:
        assert found.equals(expected)


@pytest.mark.parametrize("frame", [PANDAS, POLARS, ARROW], ids=["pandas", "polars", "pyarrow"])
def test_a_table_comes_back_through_json(frame: Any) -> None:
    table = read_table(frame)
    text = json.dumps(schema_to_json(table.schema), allow_nan=False)
    loaded = schema_from_json(json.loads(text))
    equal(write_table(table.matrix, loaded), frame)
    assert json.dumps(schema_to_json(loaded)) == text, "saving what was loaded changes nothing"
    again = read_table(frame, schema=loaded)
    np.testing.assert_array_equal(again.matrix, table.matrix)
    assert {column["type"] for column in json.loads(text)["columns"]} <= set(KINDS)


def test_columns_have_a_neutral_type() -> None:
    columns = schema_to_json(read_table(PANDAS).schema)["columns"]
    assert {column["name"]: column["type"] for column in columns} == {
        "whole": "integer", "gaps": "integer", "share": "float", "flag": "boolean", "maybe": "boolean", "text": "text",
        "object": "text", "string": "text", "grade": "category", "number": "category", "arrow": "float",
    }  # fmt: skip


def test_arrays_of_any_order_of_bytes_come_back() -> None:
    for dtype in (">f4", "<i8", "uint8", "bool", "float16"):
        array = np.ones((2, 2), dtype=dtype)
        table = read_table(array)
        found = write_table(table.matrix, schema_from_json(json.loads(json.dumps(schema_to_json(table.schema)))))
        assert found.dtype == array.dtype


@pytest.mark.parametrize(
    ("frame", "dtype"),
    [
        ("polars", "read_csv"),
        ("polars", "Config"),
        ("polars", "Datetime"),
        ("polars", "int64"),
        ("polars", "__class__"),
        ("polars", "Int64\n"),
        ("polars", {"dictionary": "string"}),
        ("pandas", "datetime64[ns]"),
        ("pandas", "int64; import os"),
        ("pyarrow", "extension<x>"),
        ("pyarrow", {"dictionary": "no such type"}),
        ("pyarrow", {}),
        ("numpy", "O"),
        ("numpy", "i4,i4"),
        ("os", "system"),
        ("polars", None),
        ("polars", 3),
    ],
)
def test_other_names_are_refused_and_never_looked_up(
    frame: str, dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(pl, "read_csv", lambda *given: called.append("read_csv"))
    monkeypatch.setattr(pl, "Config", lambda *given: called.append("Config"))
    folder = tmp_path / "artifact"
    folder.mkdir()
    for path in (FIRST / "artifact").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["table"]["frame"] = frame
    for column in manifest["table"]["columns"]:
        column["dtype"] = dtype
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError):
        cortx.load(folder)
    assert called == []


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "polars", "pyarrow"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Blocked())
import json
from pathlib import Path
import numpy as np
import cortx, cortx.portable
from cortx.interfaces.server.records import make_reader
first, target, records = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
kept = np.load(first / "answers.npz")
near = lambda found, name: np.testing.assert_allclose(found, kept[name], rtol=1e-4, atol=1e-6)

def rows_of(explainer):
    reader = make_reader(explainer.seen)
    return reader.join([reader.read(records)])

explainer = cortx.load(first / "artifact")
rows = rows_of(explainer)
answer = explainer.explain(rows, kept["outputs"], confidence=0.9)
near(answer.values, "values")
near(answer.lower_bounds, "lower")
portable = cortx.portable.load(explainer.to_onnx(target / "portable"))
near(portable.explain(rows, kept["outputs"], confidence=0.9).values, "values")
again = cortx.load(explainer.save(target / "again"))  # as this version saves it
near(again.explain(rows_of(again), kept["outputs"]).values, "values")
old = cortx.portable.load(first / "portable")
near(old.explain(rows, kept["outputs"]).values, "values")
try:
    cortx.load(first / "artifact", model=lambda table: np.zeros(len(table)))
except cortx.CortxError as error:
    assert "pandas" in str(error), error
else:
    raise AssertionError("a model of frames cannot be asked without their library")
print("explained", len(rows))
"""


def test_an_explainer_of_a_frame_works_where_no_frames_are(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from tests.compat import samples

    records = samples.frame().head(20).to_dict("records")
    source = str(Path(cortx.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BLOCKED, str(FIRST), str(tmp_path), json.dumps(records)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["explained", "20"]
