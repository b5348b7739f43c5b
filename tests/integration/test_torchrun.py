"""Two processes under torchrun train the explainer that one trains alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from tests.conftest import make_model
from tests.guard import HANG

import cortx

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
NAMES = tuple("abcdef")
N_ROWS, N_LABELS = 301, 77
SCORING = """
import os
import numpy as np, torch
from tests.conftest import make_model

network, left = make_model(), [10**9]


def model(table):
    left[0] -= len(table)
    if left[0] < 0:
        raise RuntimeError("the model went away in process " + os.environ["RANK"])
    with torch.inference_mode():
        return network(torch.from_numpy(np.asarray(table, dtype=np.float32)))[:, 0].numpy()
"""
BEGIN = """
import json, os, sys
from dataclasses import replace
from pathlib import Path
import numpy as np, pandas as pd, torch
import cortx
from cortx.distributed.parquet_rows import ParquetRows
from cortx.training.checkpoint import Checkpoint
from tests.conftest import make_tiny_recipe
import scoring

torch.set_num_threads(1)
folder = Path(sys.argv[1])
rank = int(os.environ.get("RANK", "0"))
frame = pd.read_parquet(folder / "table")
# Batches that two processes cannot share evenly.
recipe = make_tiny_recipe(batch_size=61, rounds=2, n_positives=5)
recipe = replace(recipe, attribution=replace(recipe.attribution, batch_size=33))
labelled = cortx.shapley(cortx.Game(scoring.model, reference=frame), frame.iloc[:77], seed=3)
game = cortx.Game(scoring.model, reference=frame)
"""
FIT = """
# What was kept for a kill stays: the losses of every step are in it.
Checkpoint.clear = lambda self: None


def fit(kind, checkpoint):
    game = cortx.Game(scoring.model, reference=frame)
    some = recipe if kind != "paper" else replace(recipe, pretrain=replace(recipe.pretrain, rough_pairs=0, steps=30))
    rows = ParquetRows(folder / "table", buffer_rows=100) if kind == "stream" else frame
    labels = replace(labelled, outputs=None) if kind == "paper" else labelled
    explainer = cortx.CoRTX(some, heads=("attribution", "ranking"))
    if "touched" in sys.argv and rank == 1:
        _ = game.base_values  # what one process knows already is nothing that others wait for
    explainer.fit(game, rows, labels=labels, checkpoint=checkpoint)
    return explainer, {
        "evaluations": {stage: cost["evaluations"] for stage, cost in explainer.costs_.items() if "total" not in stage},
        "asked": game.evaluations,
        "history": explainer.history_,
        "losses": losses_of(checkpoint),
        "values": explainer.explain(frame.iloc[:50]).values.tolist(),
    }
"""
EVERY_KIND = """
facts = {}
for kind in ("table", "stream", "paper"):
    explainer, facts[kind] = fit(kind, folder / f"{sys.argv[2]}-{kind}")
    state = explainer.fitted.network.state_dict()
    np.savez(folder / f"{sys.argv[2]}-{kind}-{rank}.npz", **{name: tensor.numpy() for name, tensor in state.items()})
explainer.save(folder / f"{sys.argv[2]}-saved-by-{rank}")
(folder / f"{sys.argv[2]}-{rank}.json").write_text(json.dumps(facts))
"""
ONE_KIND = """
import signal

kind, name, stage, last = sys.argv[2:6]
saved, save = [], Checkpoint.save


def save_and_die(self, what, tensors, **facts):
    save(self, what, tensors, **facts)
    saved.append(what)
    if saved.count(stage) == int(last) and rank == int(os.environ.get("WORLD_SIZE", "1")) - 1:
        os.kill(os.getpid(), signal.SIGKILL)


Checkpoint.save = save_and_die
Checkpoint.__init__.__defaults__ = (0.0,)  # keeps its progress at every step
_, facts = fit(kind, folder / name)
(folder / f"{name}-{rank}.json").write_text(json.dumps(facts))
"""
LOSSES = """
from safetensors import safe_open


def losses_of(checkpoint):
    with safe_open(checkpoint / "pretrain.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["cortx"])["losses"]
"""
RAISE = """
scoring.left[0] = 4_000 if rank == 1 else 10**9
cortx.CoRTX(recipe).fit(game, ParquetRows(folder / "table"), labels=labelled)
"""
REFUSE = """
said = []
for options in ({"labels": labelled, "seed": rank}, {"budget": 50_000}, {"n_labels": 50}):
    try:
        cortx.CoRTX(recipe, seed=options.pop("seed", 0)).fit(game, frame, **options)
    except cortx.CortxError as error:
        said.append(str(error))
(folder / f"said-{rank}.json").write_text(json.dumps([*said, game.evaluations]))
"""
FOLDER = """
from cortx.interfaces.fit_folder import fit_folder

fit_folder("scoring:model", folder / "table", folder / sys.argv[2], labels=folder / "labels", recipe=recipe)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where: Path = tmp_path_factory.mktemp("torchrun")
    numbers = np.random.default_rng(0).normal(size=(N_ROWS, len(NAMES)))
    (where / "table").mkdir()
    table = pa.table(dict(zip(NAMES, numbers.T, strict=True)))
    pq.write_table(table.slice(0, 200), where / "table" / "a.parquet", row_group_size=60)
    pq.write_table(table.slice(200), where / "table" / "b.parquet", row_group_size=60)
    (where / "scoring.py").write_text(SCORING)
    return where


def run(folder: Path, script: str, *arguments: str, processes: int) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(script)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    environment = {name: text for name, text in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *launch, str(path), str(folder), *arguments],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=HANG, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def fitted(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What one process found, and what each of two did."""
    for processes, name in ((1, "one"), (2, "two")):
        done = run(folder, BEGIN + LOSSES + FIT + EVERY_KIND, name, processes=processes)
        assert done.returncode == 0, done.stderr
    read = [json.loads((folder / f"{name}.json").read_text()) for name in ("one-0", "two-0", "two-1")]
    return read[0], read[1:]


every_kind = pytest.mark.parametrize("kind", ["table", "stream", "paper"])


@every_kind
def test_the_loss_curves_are_those_of_one_process(fitted: Any, kind: str) -> None:
    alone, together = fitted[0][kind], [one[kind] for one in fitted[1]]
    assert len(alone["losses"]) > 20
    for found in together:
        np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-4)
        assert found["history"].keys() == alone["history"].keys() == {"pretraining", "attribution", "ranking"}
        for stage, curve in alone["history"].items():
            np.testing.assert_allclose(found["history"][stage], curve, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(found["values"], alone["values"], atol=1e-4)


@every_kind
def test_the_weights_are_those_of_one_process(folder: Path, fitted: Any, kind: str) -> None:
    del fitted
    alone, first, second = (
        dict(np.load(folder / f"{name}.npz")) for name in (f"one-{kind}-0", f"two-{kind}-0", f"two-{kind}-1")
    )
    for name, weights in alone.items():
        np.testing.assert_array_equal(first[name], second[name])
        # Adam makes roundings of small gradients larger, once in a while.
        np.testing.assert_allclose(first[name], weights, rtol=2e-3, atol=2e-3, err_msg=name)


@every_kind
def test_two_processes_ask_the_model_no_more_than_one(fitted: Any, kind: str) -> None:
    alone, together = fitted[0][kind], [one[kind] for one in fitted[1]]
    for found in together:
        assert found["evaluations"] == alone["evaluations"]
    assert sum(found["asked"] for found in together) == alone["asked"]
    assert max(found["asked"] for found in together) < 0.6 * alone["asked"]


def test_one_of_the_processes_saves_what_all_have(folder: Path, fitted: Any) -> None:
    del fitted
    assert (folder / "two-saved-by-0" / "manifest.json").is_file()
    assert not (folder / "two-saved-by-1").exists()
    alone, together = (cortx.load(folder / f"{name}-saved-by-0") for name in ("one", "two"))
    rows = pq.read_table(folder / "table").to_pandas()
    np.testing.assert_allclose(together.explain(rows).values, alone.explain(rows).values, atol=1e-4)


def steps_done(checkpoint: Path) -> int:
    with safe_open(checkpoint / "pretrain.safetensors", framework="pt") as file:
        return len(json.loads(file.metadata()["cortx"])["losses"])


def test_processes_that_were_killed_go_on_where_they_were(folder: Path, fitted: Any) -> None:
    """Killed while pre-training, and again while a head learns."""
    script, kind, name = BEGIN + LOSSES + FIT + ONE_KIND, "stream", "killed"
    undisturbed = fitted[1][0][kind]
    done = run(folder, script, kind, name, "pretrain", "15", processes=2)
    assert done.returncode != 0
    assert 14 <= steps_done(folder / name) < len(undisturbed["losses"])
    assert not (folder / name / "finetune-attribution.safetensors").exists()
    done = run(folder, script, kind, name, "finetune-attribution", "3", processes=2)
    assert done.returncode != 0
    assert steps_done(folder / name) == len(undisturbed["losses"])
    assert not (folder / name / "finetune-ranking.safetensors").exists()
    done = run(folder, script, kind, name, "never", "1", "touched", processes=2)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        found = json.loads((folder / f"{name}-{rank}.json").read_text())
        np.testing.assert_allclose(found["losses"], undisturbed["losses"], rtol=1e-4)
        for stage, curve in undisturbed["history"].items():
            np.testing.assert_allclose(found["history"][stage], curve, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(found["values"], undisturbed["values"], atol=1e-4)
        assert found["evaluations"] == undisturbed["evaluations"]


def test_a_process_that_fails_ends_the_run_with_its_message(folder: Path) -> None:
    done = run(folder, BEGIN + RAISE, processes=2)
    assert done.returncode != 0
    assert "the model went away in process 1" in done.stderr


def test_processes_that_cannot_train_together_say_why(folder: Path) -> None:
    done = run(folder, BEGIN + REFUSE, processes=2)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        seeds, budget, n_labels, asked = json.loads((folder / f"said-{rank}.json").read_text())
        assert seeds.startswith(f"process {rank} of 2: the processes were given different tables")
        assert "make them first" in budget
        assert "make them first" in n_labels
        assert asked == 0


def test_a_folder_and_its_labels_become_an_explainer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitted alone and by two processes: the same explainer, with bounds, that only the first one saves and shows."""
    monkeypatch.chdir(folder)
    model = make_model()

    def score(table: Any) -> np.ndarray:
        import torch

        with torch.inference_mode():
            return model(torch.from_numpy(np.asarray(table, dtype=np.float32)))[:, 0].numpy()

    from cortx.distributed.labelling import label
    from cortx.distributed.local import LocalEngine

    label(score, folder / "table", folder / "labels", budget=20_000, rows=220, engine=LocalEngine(workers=0))
    shown = []
    for processes, name in ((1, "one.cortx"), (2, "two.cortx")):
        done = run(folder, BEGIN + FOLDER, name, processes=processes)
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
        assert done.stdout.count("Saved to") == 1
        assert f"{N_ROWS:,}" in done.stdout
    rows = pq.read_table(folder / "table").to_pandas()
    one, two = (cortx.load(folder / name, model=score) for name in ("one.cortx", "two.cortx"))
    np.testing.assert_allclose(two.explain(rows).values, one.explain(rows).values, atol=1e-4)
    assert two.costs_["total_evaluations"] == one.costs_["total_evaluations"]
    bounded = two.explain(rows, confidence=0.9)
    truth = cortx.shapley(two.game, rows, "exact").values  # type: ignore[arg-type]
    assert bounded.error_bound is not None
    assert (np.linalg.norm(bounded.values - truth, axis=1) <= bounded.error_bound).mean() > 0.8
