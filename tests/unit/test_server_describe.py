"""What a server tells of an artifact: nothing that is not so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.conftest import make_tiny_recipe
from tests.unit.test_image_explainer import tiny
from torch import nn

import cortx
from cortx.interfaces.server.describe import describe
from cortx.interfaces.server.records import make_reader
from cortx.interfaces.server.settings import Settings

SEGMENTS = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 2, 1], [2, 2, 2, 1]])


def table(n_rows: int) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {"age": generator.integers(18, 90, n_rows), "job": generator.choice(["cook", "smith"], n_rows), "debt": 1.5}
    )


def score(rows: Any) -> Any:
    return (rows["age"] * (rows["job"] == "cook") / 90 + rows["debt"]).to_numpy()


def described(explainer: cortx.CoRTX, examples: Any = None) -> dict[str, Any]:
    reader = make_reader(explainer.seen)
    return describe("it", "1", explainer, reader, examples, Settings())


@pytest.mark.parametrize("background", [False, True])
def test_a_reference_is_told_of_where_there_is_one(background: bool) -> None:
    rows = table(80)
    reference = pd.DataFrame({"age": [40], "job": ["smith"], "debt": [1.5]})
    game = cortx.Game(score, background=rows[:5]) if background else cortx.Game(score, reference=reference)
    info = described(cortx.CoRTX(make_tiny_recipe(5)).fit(game, rows, n_labels=30), rows[:2])
    found = {column["name"]: column for column in info["columns"]}
    wanted = {"age": None, "job": None, "debt": None} if background else {"age": 40, "job": "smith", "debt": 1.5}
    assert {name: column["reference"] for name, column in found.items()} == wanted
    assert (found["age"]["low"], found["age"]["high"]) == (rows["age"].min(), rows["age"].max())
    assert sorted(found["job"]["categories"]) == ["cook", "smith"]
    assert [example["record"] for example in info["examples"]] == rows[:2].to_dict("records")
    assert info["confidence"] is None  # not calibrated
    assert info["image"] is None


class Bright(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.stack([images[:, 0, :2].mean(dim=(1, 2)), images.mean(dim=(1, 2, 3))], dim=1)


@pytest.mark.parametrize("parts", ["patches", "segments"])
def test_a_page_can_place_the_parts_of_an_image(parts: str) -> None:
    images = np.random.default_rng(0).uniform(size=(120, 1, 4, 4)).astype(np.float32)
    players = cortx.Patches(2) if parts == "patches" else cortx.Segments(SEGMENTS)
    game = cortx.Game(Bright(), reference="zero", players=players, output="raw")
    info = described(cortx.CoRTX(tiny()).fit(game, images, n_labels=30))
    assert (info["image"]["height"], info["image"]["width"], info["image"]["channels"]) == (4, 4, 1)
    assert info["image"]["grid"] == ([2, 2] if parts == "patches" else None)
    assert info["image"].get("parts") == (None if parts == "patches" else SEGMENTS.tolist())
    assert len(info["players"]) == (4 if parts == "patches" else 3)
