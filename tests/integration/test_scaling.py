"""The three commands of docs/scaling.md, one after the other, as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.guard import HANG

SCORING = """
import numpy as np

def model(frame):
    risk = 0.04 * frame["age"] - 0.5 * frame["income"] + 0.7 * (frame["region"] == "north") * frame["income"]
    return 1 / (1 + np.exp(-np.asarray(risk, dtype=float)))
"""


def write_customers(folder: Path, files: int, rows: int, seed: int) -> None:
    folder.mkdir()
    generator = np.random.default_rng(seed)
    for number in range(files):
        table = pa.table(
            {
                "customer": np.arange(rows) + number * rows,
                "age": generator.integers(18, 80, rows),
                "income": generator.normal(size=rows),
                "region": generator.choice(["north", "south", "west"], rows),
                "tenure": generator.exponential(size=rows),
                "default": generator.integers(0, 2, rows),
            }
        )
        pq.write_table(table, folder / f"part-{number}.parquet")


def cortx(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cortx.interfaces.cli", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG)


@pytest.mark.slow
def test_label_fit_explain(tmp_path: Path) -> None:
    (tmp_path / "scoring.py").write_text(SCORING)
    write_customers(tmp_path / "train", files=3, rows=200, seed=0)
    write_customers(tmp_path / "warehouse", files=2, rows=500, seed=1)
    label = ("label", "--model", "scoring:model", "--data", "train/", "--drop", "default", "--drop", "customer",
             "--out", "labels/", "--rows", "200", "--output", "raw", "--workers", "2")  # fmt: skip

    done = cortx(tmp_path, *label, "--budget", "4000")
    assert done.returncode == 0, done.stderr
    assert "labels of 200 rows" in done.stderr
    again = cortx(tmp_path, *label, "--budget", "4000")
    assert again.returncode == 0, again.stderr
    assert "0 model evaluations now" in again.stderr

    fit = ("fit", "scoring:model", "train/", "--labels-from", "labels/", "--recipe", "quick", "--out", "credit.cortx")
    done = cortx(tmp_path, *fit)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "credit.cortx" / "manifest.json").read_text())["calibration"]["rows"] >= 10

    explain = ("explain", "credit.cortx", "warehouse/", "--model", "scoring:model", "--out", "explained/")
    done = cortx(tmp_path, *explain, "--confidence", "0.8", "--workers", "2", "--engine", "local")
    assert done.returncode == 0, done.stderr
    before = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "warehouse").iterdir()))
    after = pq.read_table(tmp_path / "explained")
    assert after.select(before.column_names).equals(before)
    names = ("age", "income", "region", "tenure")
    total = sum(after[f"attribution_{name}"].to_numpy() for name in names) + after["base_value"].to_numpy()
    np.testing.assert_allclose(total, after["model_output"].to_numpy(), atol=1e-9)
    assert (after["lower_income"].to_numpy() <= after["attribution_income"].to_numpy()).all()

    refused = cortx(tmp_path, *explain)
    assert refused.returncode == 2
    assert "confidence" in refused.stderr
