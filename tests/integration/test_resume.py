"""A fit that is killed, at any point, leaves nothing half-written and goes on where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import make_model, make_tiny_recipe
from tests.guard import HANG

import cortx
from cortx.errors import ArtifactError

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np, torch
import cortx
from cortx.training import checkpoint, finetune, pretrain
from tests.conftest import make_model, make_tiny_recipe

torch.set_num_threads(1)
folder = Path(sys.argv[1])
table = np.load(folder / "table.npy")
original = checkpoint.Checkpoint.save


def announced(self, stage, tensors, **facts):
    original(self, stage, tensors, **facts)
    with (folder / "log").open("a") as log:
        log.write(stage + "\\n")
    time.sleep(0.05)


checkpoint.Checkpoint.save = announced
init = checkpoint.Checkpoint.__init__
checkpoint.Checkpoint.__init__ = lambda self, where, key, every_seconds=0.0: init(self, where, key, every_seconds)
from cortx.explainer import labels, store
labels.LABELS_AT_A_TIME = 10
store.MOST_AT_RISK = 1_000
model = make_model()
game = cortx.Game(model, reference=table, output="probability")
explainer = cortx.CoRTX(make_tiny_recipe(), heads=("attribution", "ranking"))
options = {"n_labels": 40} if len(sys.argv) < 3 else {"budget": int(sys.argv[2])}
explainer.fit(game, table, checkpoint=folder / "checkpoint", **options)
explainer.save(folder / "done.cortx")
"""


def _start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), *arguments], env=environment, cwd=ROOT)


def _wait_for(process: subprocess.Popen[bytes], log: Path, stage: str) -> None:
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline and process.poll() is None:
        if log.exists() and stage in log.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"the fit never reached {stage!r}; exit code {process.poll()}")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["labels-10", "rough", "pretrain", "finetune-attribution", "finetune-ranking"])
def test_a_killed_fit_goes_on_and_gives_the_same_explainer(
    tmp_path: Path, table: np.ndarray, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortx.explainer.labels.LABELS_AT_A_TIME", 10)
    np.save(tmp_path / "table.npy", table)
    process = _start(tmp_path)
    _wait_for(process, tmp_path / "log", stage)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "done.cortx").exists()
    before = (tmp_path / "log").read_text().splitlines()
    again = _start(tmp_path)
    assert again.wait(timeout=HANG) == 0
    after = (tmp_path / "log").read_text().splitlines()[len(before) :]
    # What was finished before the kill is not done again.
    finished = {name for name in before if name != before[-1] and name != stage}
    assert finished.isdisjoint(name for name in after if not name.startswith(("pretrain", "finetune")))
    assert not (tmp_path / "checkpoint").exists()
    game = cortx.Game(make_model(), reference=table, output="probability")
    straight = cortx.CoRTX(make_tiny_recipe(), heads=("attribution", "ranking")).fit(game, table, n_labels=40)
    resumed = cortx.load(tmp_path / "done.cortx", model=make_model())
    np.testing.assert_array_equal(resumed.explain(table).values, straight.explain(table).values)
    np.testing.assert_array_equal(resumed.explain(table).ranking, straight.explain(table).ranking)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "budget"),
    [("kept-auto", 18_000), ("kept-permutation", 10_000), ("pretrain", 18_000), ("finetune-attribution", 18_000)],
)
def test_a_killed_budget_goes_on_without_paying_twice(
    tmp_path: Path, table: np.ndarray, stage: str, budget: int
) -> None:
    """A small budget buys sampled labels, a larger one enumerates."""
    np.save(tmp_path / "table.npy", table)
    process = _start(tmp_path, str(budget))
    _wait_for(process, tmp_path / "log", stage)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "done.cortx").exists()
    before = (tmp_path / "log").read_text().splitlines()
    assert _start(tmp_path, str(budget)).wait(timeout=HANG) == 0
    after = (tmp_path / "log").read_text().splitlines()[len(before) :]
    kept = {name for name in before if name.startswith("kept")}
    assert kept
    assert kept.isdisjoint(after)
    assert {path.name for path in (tmp_path / "checkpoint").iterdir()} == {"labels"}
    game = cortx.Game(make_model(), reference=table, output="probability")
    straight = cortx.CoRTX(make_tiny_recipe(), heads=("attribution", "ranking")).fit(game, table, budget=budget)
    resumed = cortx.load(tmp_path / "done.cortx", model=make_model())
    np.testing.assert_allclose(resumed.explain(table).values, straight.explain(table).values, atol=1e-5)
    np.testing.assert_allclose(resumed.calibration.bands, straight.calibration.bands, rtol=1e-3)


def test_a_checkpoint_of_another_fit_is_refused(game: cortx.Game, table: np.ndarray, tmp_path: Path) -> None:
    import torch

    from cortx.training.checkpoint import Checkpoint

    Checkpoint(tmp_path, "another fit").save("pretrain", {"a": torch.zeros(1)}, losses=[])
    with pytest.raises(ArtifactError, match="belongs to another fit"):
        cortx.CoRTX(make_tiny_recipe()).fit(game, table, n_labels=20, checkpoint=tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    from cortx.training.checkpoint import Checkpoint

    (tmp_path / "labels.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(ArtifactError, match="damaged"):
        Checkpoint(tmp_path, "key").load("labels")


def test_a_model_that_fails_half_way_keeps_the_labels(table: np.ndarray, tmp_path: Path) -> None:
    """The model raises after the labels: fixed, the same call goes on without paying for them again."""
    good = make_model()
    calls = {"rows": 0, "limit": 3_000}

    def flaky(rows: np.ndarray) -> np.ndarray:
        import torch

        calls["rows"] += len(rows)
        if calls["rows"] > calls["limit"]:
            raise RuntimeError("the model went away")
        with torch.inference_mode():
            return good(torch.from_numpy(rows.astype(np.float32)))[:, 0].numpy()

    def fit() -> cortx.CoRTX:
        game = cortx.Game(flaky, reference=table)
        return cortx.CoRTX(make_tiny_recipe()).fit(game, table, n_labels=40, checkpoint=tmp_path / "checkpoint")

    with pytest.raises(cortx.CortxError, match="the model went away"):
        fit()
    calls.update(rows=0, limit=10**9)
    explainer = fit()
    assert explainer.costs_["labels"]["evaluations"] > 40 * 60  # remembered from the first try
    assert calls["rows"] < explainer.costs_["total_evaluations"]


def test_a_checkpoint_folder_keeps_what_is_not_ours(game: cortx.Game, table: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").write_bytes(b"precious")
    cortx.CoRTX(make_tiny_recipe(steps=5)).fit(game, table, n_labels=20, checkpoint=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.safetensors"]


def test_a_checkpoint_is_not_used_for_another_model(table: np.ndarray, tmp_path: Path) -> None:
    """Both models are zero at the reference, so only their outputs tell them apart."""
    weights = np.random.default_rng(0).normal(size=(2, 6))
    limit = [2_000]

    def first(rows: np.ndarray) -> np.ndarray:
        limit[0] -= len(rows)
        if limit[0] < 0:
            raise RuntimeError("stop here")
        return rows @ weights[0]

    def fit(model: object) -> cortx.CoRTX:
        game = cortx.Game(model, reference="zero")
        return cortx.CoRTX(make_tiny_recipe(steps=5)).fit(game, table, n_labels=20, checkpoint=tmp_path / "c")

    with pytest.raises(cortx.CortxError, match="stop here"):
        fit(first)
    assert list((tmp_path / "c").iterdir())
    with pytest.raises(ArtifactError, match="belongs to another fit"):
        fit(lambda rows: rows @ weights[1])
