"""Saved explainers: bit-equal in a new process, and a clear error for everything that is not the real thing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from tests.conftest import make_model, make_tiny_recipe

import cortx
from cortx.errors import ArtifactError, FingerprintError, InputError


@pytest.fixture
def saved(game: cortx.Game, table: np.ndarray, tmp_path: Path) -> Path:
    explainer = cortx.CoRTX(make_tiny_recipe(), heads=("attribution", "ranking")).fit(game, table, n_labels=40)
    np.savez(
        tmp_path / "expected.npz", values=explainer.explain(table).values, ranking=explainer.explain(table).ranking
    )
    np.save(tmp_path / "table.npy", table)
    return explainer.save(tmp_path / "credit.cortx")


def test_a_new_process_explains_bit_equal(saved: Path) -> None:
    script = """
import sys, numpy as np, torch, cortx
from pathlib import Path
torch.set_num_threads(1)
from tests.conftest import make_model
folder = Path(sys.argv[1]).parent
table, expected = np.load(folder / "table.npy"), np.load(folder / "expected.npz")
explanation = cortx.load(sys.argv[1], model=make_model()).explain(table)
assert (explanation.values == expected["values"]).all(), np.abs(explanation.values - expected["values"]).max()
assert (explanation.ranking == expected["ranking"]).all()
"""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", script, str(saved)], check=True, env=environment, cwd=root)


def test_the_manifest_is_readable(saved: Path, game: cortx.Game) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    assert [column["name"] for column in manifest["table"]["columns"]] == [f"x{j}" for j in range(6)]
    assert manifest["recipe"]["name"] == "tiny"
    assert manifest["settings"]["seed"] == 0
    assert manifest["costs"]["total_evaluations"] > 0
    assert 0 < manifest["quality"]["l2"] < manifest["quality"]["label_norm"]
    assert manifest["explains"]["base_values"] == game.base_values.tolist()
    assert set(manifest["versions"]) >= {"cortx", "torch", "python"}
    assert sorted(path.name for path in saved.iterdir()) == ["manifest.json", manifest["weights"]["file"]]


def test_no_training_row_is_stored(saved: Path, table: np.ndarray) -> None:
    probes = cortx.load(saved).fitted.probe
    same = (probes[:, None, :] == table[None].astype(np.float64)).all(axis=2)
    assert not same.any()


def test_another_model_is_refused(saved: Path, table: np.ndarray) -> None:
    with pytest.raises(FingerprintError, match=r"not the model that the explainer in .* was fitted for"):
        cortx.load(saved, model=make_model(seed=1))
    slightly = make_model()
    with torch.no_grad():
        slightly[2].bias += 0.05
    with pytest.raises(FingerprintError, match="differ by up to"):
        cortx.load(saved, model=slightly)
    with pytest.raises(FingerprintError, match="3 outputs"):
        cortx.load(saved, model=make_model(n_outputs=3))
    with pytest.raises(FingerprintError, match="it cannot be run on the probe rows"):
        cortx.load(saved, model=make_model(n_columns=5))

    def gone(rows: object) -> object:
        raise ConnectionError("the service is down")

    with pytest.raises(FingerprintError, match=r"may not be the model .*the service is down\); see that it answers"):
        cortx.load(saved, model=gone)
    np.testing.assert_array_equal(
        cortx.load(saved, model=make_model()).explain(table).values, np.load(saved.parent / "expected.npz")["values"]
    )


def test_damage_and_foreign_folders(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no explainer"):
        cortx.load(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    with pytest.raises(ArtifactError, match=r"no manifest\.json"):
        cortx.load(tmp_path / "other")
    (tmp_path / "other" / "manifest.json").write_text('{"format": "something"}')
    with pytest.raises(ArtifactError, match="is not a cortx explainer"):
        cortx.load(tmp_path / "other")
    (tmp_path / "other" / "manifest.json").write_text("{")
    with pytest.raises(ArtifactError, match="damaged"):
        cortx.load(tmp_path / "other")
    (weights,) = saved.glob("weights-*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match="checksum"):
        cortx.load(saved)
    flipped = bytearray(content)
    flipped[-100] ^= 1
    weights.write_bytes(bytes(flipped))
    with pytest.raises(ArtifactError, match="checksum"):
        cortx.load(saved)
    weights.unlink()
    with pytest.raises(ArtifactError, match="lacks weights"):
        cortx.load(saved)


def test_a_newer_format_is_named(saved: Path) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    with pytest.raises(ArtifactError, match="format 99"):
        cortx.load(saved)


def test_saving_never_overwrites_what_is_not_ours(game: cortx.Game, table: np.ndarray, tmp_path: Path) -> None:
    explainer = cortx.CoRTX(make_tiny_recipe(steps=5)).fit(game, table, n_labels=20)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="is not a cortx explainer"):
        explainer.save(tmp_path / "precious")
    assert (tmp_path / "precious" / "notes.txt").read_text() == "mine"
    first = explainer.save(tmp_path / "e.cortx")
    before = sorted(path.name for path in first.iterdir())
    other = cortx.CoRTX(make_tiny_recipe(steps=6)).fit(game, table, n_labels=20)
    other.save(first)  # replacing one's own is fine
    after = {path.name for path in first.iterdir()}
    assert set(before) < after, "readers that have the old manifest still find its weights"
    assert (len(before), len(after)) == (2, 3)
    other.save(first)
    assert len(list(first.iterdir())) == 3, "only one older generation stays"
    assert not {name for name in before if name.startswith("weights")} & {path.name for path in first.iterdir()}
    np.testing.assert_array_equal(cortx.load(first).latent(table), other.latent(table))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.cortx", "precious"]


def _frame(n_rows: int = 200) -> pd.DataFrame:
    generator = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "grade": pd.Categorical(
                generator.choice(["a", "b", "c"], n_rows), categories=["a", "b", "c"], ordered=True
            ),
            "town": generator.choice(["Rome", "Oslo"], n_rows),
            "old": generator.random(n_rows) < 0.4,
            "count": generator.integers(0, 5, n_rows),
            "share": generator.normal(size=n_rows),
        }
    )


def model_on_frame(rows: pd.DataFrame) -> np.ndarray:
    """Fails unless it is given back the dtypes it was made for."""
    assert str(rows["grade"].dtype) == "category"
    assert rows["grade"].cat.ordered
    assert rows["old"].dtype == bool
    score = rows["grade"].cat.codes * 0.3 + (rows["town"] == "Oslo") * rows["share"] - rows["old"] * 0.5
    return np.tanh(score + 0.1 * rows["count"]).to_numpy()


def test_frames_with_dtypes_come_back(tmp_path: Path) -> None:
    frame = _frame()
    game = cortx.Game(model_on_frame, reference=frame)
    explainer = cortx.CoRTX(make_tiny_recipe()).fit(game, frame, n_labels=40)
    loaded = cortx.load(explainer.save(tmp_path / "frame.cortx"), model=model_on_frame)
    np.testing.assert_array_equal(loaded.explain(frame).values, explainer.explain(frame).values)
    reordered = frame[frame.columns[::-1]]
    np.testing.assert_array_equal(loaded.explain(reordered).values, explainer.explain(frame).values)
    with pytest.raises(InputError, match="lacks 'town'"):
        loaded.explain(frame.rename(columns={"town": "city"}))


def test_polars_frames_come_back(tmp_path: Path) -> None:
    frame = pl.from_pandas(_frame().astype({"grade": str}))

    def model(rows: pl.DataFrame) -> np.ndarray:
        assert isinstance(rows, pl.DataFrame)
        return np.tanh((rows["town"] == "Oslo").to_numpy() * rows["share"].to_numpy() + rows["count"].to_numpy() * 0.1)

    explainer = cortx.CoRTX(make_tiny_recipe()).fit(cortx.Game(model, reference=frame), frame, n_labels=40)
    loaded = cortx.load(explainer.save(tmp_path / "polars.cortx"), model=model)
    np.testing.assert_array_equal(loaded.explain(frame).values, explainer.explain(frame).values)


def test_the_fingerprint_looks_at_every_output(table: np.ndarray, tmp_path: Path) -> None:
    def model(rows: np.ndarray) -> np.ndarray:
        return np.stack([1e6 * rows[:, 0], rows[:, 1]], axis=1)

    def other(rows: np.ndarray) -> np.ndarray:
        return np.stack([1e6 * rows[:, 0], -50 * rows[:, 2]], axis=1)

    explainer = cortx.CoRTX(make_tiny_recipe(steps=5)).fit(cortx.Game(model, reference=table), table, n_labels=20)
    saved = explainer.save(tmp_path / "two.cortx")
    assert cortx.load(saved, model=model).game is not None
    with pytest.raises(FingerprintError, match="not the model"):
        cortx.load(saved, model=other)


def test_what_is_saved_is_what_was_fitted(game: cortx.Game, table: np.ndarray, tmp_path: Path) -> None:
    explainer = cortx.CoRTX(make_tiny_recipe(steps=5)).fit(game, table, n_labels=20)
    values = explainer.explain(table).values
    explainer.set_params(recipe="default", seed=9)
    loaded = cortx.load(explainer.save(tmp_path / "e.cortx"), model=make_model())
    np.testing.assert_array_equal(loaded.explain(table).values, values)
