"""Portable explainers in a real environment without torch: numpy, narwhals and onnxruntime, and polars for text."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestRegressor
from tests.conftest import make_tiny_recipe

from cortx import CoRTX, Game, Patches, TreeExplainer
from cortx.paper.cifar10 import load_digits_images
from cortx.training.recipe import Recipe, get_recipe

ROOT = Path(__file__).parents[2]
LIBRARIES = ("numpy", "narwhals", "onnxruntime", "polars")

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
import numpy as np, polars as pl
import cortx
from cortx import portable

folder = sys.argv[1]
for module in ("torch", "pandas", "sklearn", "onnx"):
    try:
        __import__(module)
    except ImportError:
        continue
    raise SystemExit(f"{module} is here")

def check(name, rows):
    expected = np.load(f"{folder}/{name}.npz")
    explainer = portable.load(f"{folder}/{name}")
    found = explainer.explain(rows, expected["outputs"], confidence=0.8)
    assert type(found) is cortx.Explanation
    for field in ("values", "base_values", "lower_bounds", "upper_bounds", "error_bound"):
        away = np.abs(getattr(found, field) - expected[field]).max()
        assert away < 1e-5, (name, field, away)
    assert np.abs(found.values.sum(axis=1) + found.base_values - expected["outputs"]).max() < 1e-12
    print(name, len(found), found.reason_codes(2, output=None if found.values.ndim == 2 else 0)[0])
    return explainer, expected["outputs"]

table = pl.read_ipc(f"{folder}/rows.arrow")
explainer, outputs = check("table", table)
for bad in (table.drop("sex"), table.with_columns(sex=pl.lit("x")), table.with_columns(bmi=None)):
    try:
        explainer.explain(bad, outputs)
    except cortx.CortxError as error:
        print(error)
check("trees", table.select("bmi", "bp", "s5", "s6"))
check("digits", np.load(f"{folder}/images.npy"))
assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with cortx and the few libraries that a portable explainer needs."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    inside = home / "bin" / "python"
    for wanted in (["-c", ROOT / "constraints.txt", *LIBRARIES], ["--no-deps", ROOT]):
        command = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "CI" not in os.environ:
            pytest.skip(f"pip cannot install {wanted[-1]} here: {done.stderr.strip().splitlines()[-1:]}")
        assert done.returncode == 0, done.stderr
    return inside


def table_with_text() -> pl.DataFrame:
    data = load_diabetes(as_frame=True, scaled=False).data
    ages = np.array(["young", "middle", "old"])
    return pl.DataFrame(
        {
            "sex": np.where(data["sex"] == 1, "f", "m"),
            "age": ages[np.digitize(data["age"], [40, 60])],
            **{name: data[name].to_numpy() for name in ("bmi", "bp", "s5", "s6")},
        }
    )


def numbers(rows: pl.DataFrame) -> np.ndarray:
    return rows.with_columns(
        sex=(pl.col("sex") == "f").cast(pl.Float64),
        age=pl.col("age").replace_strict({"young": 0.0, "middle": 1.0, "old": 2.0}, return_dtype=pl.Float64),
    ).to_numpy()


def brightness(images: np.ndarray) -> np.ndarray:
    """Three numbers that depend on where an image is bright."""
    flat = images.reshape(len(images), 8, 8).astype(np.float64)
    return np.stack([flat[:, :4].mean((1, 2)), flat[:, :, 4:].mean((1, 2)) ** 2, flat[:, 2:6, 2:6].max((1, 2))], axis=1)


def small_images() -> Recipe:
    recipe = get_recipe("quick", images=True)
    assert recipe.stream is not None
    return replace(
        recipe,
        encoder=replace(recipe.encoder, width=8),
        pretrain=replace(recipe.pretrain, steps=10, batch_size=32),
        stream=replace(recipe.stream, pairs=2, batch_size=32, imitation_steps=50, validations=3, shift=1),
    )


def keep(explainer: CoRTX, rows: Any, folder: Path, name: str) -> None:
    explainer.to_onnx(folder / name)
    table = explainer._read(rows)
    known, empty = explainer._outputs(table, None)[0], explainer._empty(table)[0]
    assert known is not None
    torch = explainer._torch_answer(table, known, empty, errors=True)
    bounds = torch.bounds(*explainer.calibration.factors(0.8))
    single = known.shape[1] == 1
    arrays = {
        "values": torch.values,
        "outputs": known,
        "base_values": empty,
        "lower_bounds": bounds.lower,
        "upper_bounds": bounds.upper,
        "error_bound": bounds.error,
    }
    np.savez(folder / f"{name}.npz", **{key: array[..., 0] if single else array for key, array in arrays.items()})


def keep_trees(rows: pl.DataFrame, target: Any, folder: Path) -> None:
    forest = RandomForestRegressor(5, max_depth=5, random_state=0).fit(rows, target)
    explainer = TreeExplainer(Game(forest, reference=rows), rows)
    explainer.to_onnx(folder / "trees")
    expected = explainer.explain(rows, confidence=0.8)
    names = ("values", "outputs", "base_values", "lower_bounds", "upper_bounds", "error_bound")
    np.savez(folder / "trees.npz", **{name: getattr(expected, name) for name in names})


def test_torch_and_the_model_are_not_needed(python: Path, tmp_path: Path) -> None:
    rows = table_with_text()
    target = load_diabetes().target
    forest = RandomForestRegressor(20, max_depth=6, random_state=0).fit(numbers(rows), target)
    game = Game(lambda frame: forest.predict(numbers(frame)) / 100, reference=rows)
    explainer = CoRTX(make_tiny_recipe()).fit(game, rows[:300], budget=30_000)
    keep(explainer, rows, tmp_path, "table")
    rows.write_ipc(tmp_path / "rows.arrow")
    keep_trees(rows.select("bmi", "bp", "s5", "s6"), target, tmp_path)
    images = load_digits_images()[0]
    of_images = CoRTX(small_images()).fit(Game(brightness, "zero", players=Patches(2)), images[:300], budget=60_000)
    keep(of_images, images, tmp_path, "digits")
    np.save(tmp_path / "images.npy", images)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", SCRIPT, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"table {len(rows)} ")
    assert lines[-2].startswith(f"trees {len(rows)} ")
    assert lines[-1].startswith(f"digits {len(images)} ")
    text = "\n".join(lines)
    assert "it lacks 'sex'" in text
    assert "categories that training never saw: 'x'" in text
    assert "column 'bmi' is missing (NaN) in row 0" in text
