"""What the first version saved is still read, and answers as it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cortx
import cortx.portable
from cortx.distributed import LabelFolder
from cortx.explainer.store import LabelStore
from tests.compat import samples
from tests.conftest import make_model

FIRST = Path(__file__).parent / "first_version"
MODELS: dict[str, Any] = {
    "numbers": make_model,
    "outputs": lambda: make_model(6, 3, seed=5),
    "frame": lambda: samples.score,
    "pictures": samples.picture_model,
}
ROWS: dict[str, Any] = {
    "numbers": lambda: samples.numbers()[:20],
    "outputs": lambda: samples.numbers()[:20],
    "frame": lambda: samples.frame().head(20),
    "pictures": lambda: samples.pictures()[:5],
}


def near(found: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("attached", [True, False], ids=["with the model", "without"])
def test_a_saved_explainer_is_read(name: str, attached: bool) -> None:
    explainer = cortx.load(FIRST / name / "artifact", model=MODELS[name]() if attached else None)
    kept = np.load(FIRST / name / "answers.npz")
    bounded = "lower" in kept
    answer = explainer.explain(ROWS[name](), None if attached else kept["outputs"], confidence=0.9 if bounded else None)
    near(answer.values, kept["values"])
    if bounded:
        near(answer.lower_bounds, kept["lower"])
        near(answer.upper_bounds, kept["upper"])
        near(answer.error_bound, kept["error"])


@pytest.mark.parametrize("name", ["numbers", "frame"])
def test_a_portable_folder_is_read(name: str) -> None:
    pytest.importorskip("onnxruntime")
    kept = np.load(FIRST / name / "answers.npz")
    answer = cortx.portable.load(FIRST / name / "portable").explain(ROWS[name](), kept["outputs"], confidence=0.9)
    near(answer.values, kept["values"])
    near(answer.lower_bounds, kept["lower"])
    near(answer.error_bound, kept["error"])


def test_a_folder_of_labels_is_read() -> None:
    pytest.importorskip("pyarrow")
    folder = LabelFolder.open(FIRST / "labels")
    labels = folder.read()
    game = cortx.Game(samples.score, reference=samples.frame(), output="raw")
    folder.check(game)
    again = cortx.shapley(game, labels.data)
    near(labels.values, np.asarray(again.values))


def test_kept_labels_of_a_checkpoint_are_read() -> None:
    game = cortx.Game(make_model(), reference=samples.numbers(), output="probability")
    rows = game.rows(samples.numbers())
    store = LabelStore.open(FIRST / "checkpoint" / "labels", game, 1)
    assert len(store) > 100
    assert store.belongs_to(game, rows)
