"""Makes the saved samples of one version: ``python -m tests.compat.samples FOLDER``, run once with that version.

Later versions must read them; `test_compat.py` says how. All data are drawn from a seed here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import cortx
import cortx.distributed
from tests.conftest import make_model, make_tiny_recipe

ROWS = 200


def numbers() -> np.ndarray:
    return np.random.default_rng(7).normal(size=(ROWS, 6)).astype(np.float32)


def frame() -> pd.DataFrame:
    generator = np.random.default_rng(8)
    return pd.DataFrame(
        {
            "age": generator.integers(18, 90, ROWS),
            "income": generator.gamma(2.0, 20_000.0, ROWS).round(2),
            "job": generator.choice(["clerk", "cook", "pilot"], ROWS),
            "member": generator.random(ROWS) < 0.4,
            "region": pd.Categorical(generator.choice(["north", "south"], ROWS)),
        }
    )


def score(table: Any) -> np.ndarray:
    """A model of the frame, of columns and categories by name."""
    table = table if isinstance(table, pd.DataFrame) else table.to_pandas()
    pay = {"clerk": 0.2, "cook": -0.1, "pilot": 0.9}
    job = table["job"].map(pay).to_numpy(float)
    value = 0.02 * table["age"].to_numpy(float) + 1e-5 * table["income"].to_numpy(float) + job
    value = value + 0.5 * table["member"].to_numpy(float) * job + 0.3 * (table["region"].astype(str) == "north")
    return np.asarray(np.tanh(value - 1.5), dtype=float)


def pictures() -> np.ndarray:
    return np.random.default_rng(9).random(size=(120, 1, 8, 8)).astype(np.float32)


def picture_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), make_model(64, 2, seed=3))


def make(folder: Path) -> None:
    torch.set_num_threads(1)
    recipe = make_tiny_recipe()
    game = cortx.Game(make_model(), reference=numbers(), output="probability")
    explainer = cortx.CoRTX(recipe, heads=("attribution", "ranking"), seed=1)
    explainer.fit(game, numbers(), budget=20_000, checkpoint=folder / "checkpoint")
    keep(folder, "numbers", explainer, numbers()[:20], portable=True)

    several = cortx.Game(make_model(6, 3, seed=5), reference="zero", output="raw", target="all")
    keep(folder, "outputs", cortx.CoRTX(recipe, seed=2).fit(several, numbers(), budget=20_000), numbers()[:20])

    of_frame = cortx.Game(score, reference=frame(), output="raw")
    explainer = cortx.CoRTX(recipe, unseen="ignore", seed=3).fit(of_frame, frame(), budget=20_000)
    keep(folder, "frame", explainer, frame().head(20), portable=True)

    of_pictures = cortx.Game(picture_model(), "zero", players=cortx.Patches(2), output="probability")
    labels = cortx.shapley(of_pictures, pictures(), row_budget=64, seed=4)
    small = cortx.CoRTX("quick", seed=4).resolved_recipe(images=True)
    keep_pictures(folder, small, of_pictures, labels)
    cortx.distributed.label("tests.compat.samples:score", frame(), folder / "labels", reference=frame(), budget=3_000)


def keep_pictures(folder: Path, recipe: Any, game: cortx.Game, labels: cortx.Explanation) -> None:
    from dataclasses import replace

    tune = replace(recipe.attribution, steps=10, batch_size=32, validations=2)
    tiny = replace(
        recipe,
        encoder=replace(recipe.encoder, width=4),
        pretrain=replace(recipe.pretrain, steps=0),
        attribution=tune,
    )
    explainer = cortx.CoRTX(tiny, seed=4).fit(game, pictures(), labels=labels)
    keep(folder, "pictures", explainer, pictures()[:5])


def keep(folder: Path, name: str, explainer: cortx.CoRTX, rows: Any, *, portable: bool = False) -> None:
    """The artifact, its portable folder, and what they answered."""
    explainer.save(folder / name / "artifact")
    bounded = explainer.fitted.calibration is not None
    answer = explainer.explain(rows, confidence=0.9 if bounded else None)
    found = {"values": answer.values, "outputs": answer.outputs}
    if bounded:
        found |= {"lower": answer.lower_bounds, "upper": answer.upper_bounds, "error": answer.error_bound}
    np.savez(folder / name / "answers.npz", **{key: np.asarray(value) for key, value in found.items()})
    if portable:
        explainer.to_onnx(folder / name / "portable")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
