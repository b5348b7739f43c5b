"""Sizes that a file or a request names are compared with what is there before memory is taken for them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from safetensors.torch import load_file, save_file
from tests.conftest import make_model, make_tiny_recipe

import cortx
from cortx import portable
from cortx.errors import ArtifactError
from cortx.explainer.game_json import game_arrays, game_facts, game_spec
from cortx.explainer.generations import EXPLAINER, PORTABLE
from cortx.games.players import Patches

DOUBLE = onnx.TensorProto.DOUBLE
HUGE = 20_000
"""As a width of a network it takes gigabytes, which this machine may well have: nothing but a check refuses it."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved explainer and a portable one."""
    folder = tmp_path_factory.mktemp("sizes")
    rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    game = cortx.Game(make_model(4), reference=rows, output="raw")
    explainer = cortx.CoRTX(make_tiny_recipe(20)).fit(game, rows, n_labels=20, progress=False)
    return {"saved": explainer.save(folder / "it.cortx"), "portable": explainer.to_onnx(folder / "it.portable")}


def changed(folder: Path, to: Path, document: str, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy of a folder with another JSON document."""
    shutil.copytree(folder, to)
    data = json.loads((to / document).read_text())
    change(data)
    (to / document).write_text(json.dumps(data))
    return to


@pytest.mark.parametrize(
    ("part", "setting", "size"),
    [("encoder", "width", HUGE), ("encoder", "width", 10**15), ("encoder", "latent", 10**8),
     ("encoder", "depth", 10**9), ("head", "width", HUGE), ("head", "depth", 10**9)],
)  # fmt: skip
def test_a_manifest_cannot_describe_more_than_its_weights(
    made: dict[str, Path], tmp_path: Path, part: str, setting: str, size: int
) -> None:
    def change(data: dict[str, Any]) -> None:
        data["recipe"][part][setting] = size

    folder = changed(made["saved"], tmp_path / "it.cortx", EXPLAINER.document, change)
    with pytest.raises(ArtifactError, match="larger network than the saved weights"):
        cortx.load(folder)
    cortx.load(made["saved"])


@pytest.mark.parametrize("position", [10**9, 4, -1])
def test_a_position_of_a_player_cannot_be_larger_than_their_number(
    made: dict[str, Path], tmp_path: Path, position: int
) -> None:
    folder = changed(made["saved"], tmp_path / "it.cortx", EXPLAINER.document, lambda data: None)
    manifest = json.loads((folder / EXPLAINER.document).read_text())
    file = folder / manifest[EXPLAINER.entry]["file"]
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    tensors["game.column_player"][0] = position
    save_file(tensors, file)
    manifest[EXPLAINER.entry]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / EXPLAINER.document).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="beyond the 4 that have names"):
        cortx.load(folder)


@pytest.mark.parametrize("change", [
    {"player_of_column": [0, 1, 2, 10**9]}, {"player_of_column": [0, 1, 2, 10**30]}, {"player_of_column": [0, 1]},
    {"table": {"image": [10**6, 10**6, 3], "channels": "last", "pixels": [0, 1]}},
    {"table": {"image": [2**32, 2**32, 4], "channels": "last", "pixels": [0, 1]}, "player_of_column": []},
    {"players": []},
])  # fmt: skip
def test_facts_of_a_portable_explainer_must_fit_each_other(
    made: dict[str, Path], tmp_path: Path, change: dict[str, Any]
) -> None:
    folder = changed(made["portable"], tmp_path / "it.portable", PORTABLE.document, lambda data: data.update(change))
    with pytest.raises(ArtifactError, match="damaged"):
        portable.load(folder)


def test_a_graph_cannot_say_that_it_gives_more_than_the_facts(made: dict[str, Path], tmp_path: Path) -> None:
    """A graph whose sizes no runtime can work out says that it gives a thousand million values for each row."""
    nodes = [
        helper.make_node("Cast", ["rows"], ["numbers"], to=onnx.TensorProto.FLOAT),
        helper.make_node("NonZero", ["numbers"], ["places"]),
        helper.make_node("Reshape", ["places", "all"], ["sizes"]),
        helper.make_node("Reshape", ["rows", "sizes"], ["values"]),
    ]
    inputs = [helper.make_tensor_value_info(name, DOUBLE, ["n", size]) for name, size in (("rows", 4), ("outputs", 1))]
    values = helper.make_tensor_value_info("values", DOUBLE, ["n", 10**9, 1])
    everything = helper.make_tensor("all", onnx.TensorProto.INT64, [1], [-1])
    graph = helper.make_graph(nodes, "g", inputs, [values], [everything])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()
    digest = hashlib.sha256(model).hexdigest()
    folder = changed(
        made["portable"], tmp_path / "it.portable", PORTABLE.document, lambda data: data["graph"].update(sha256=digest)
    )
    file = json.loads((folder / PORTABLE.document).read_text())["graph"]["file"]
    (folder / file).write_bytes(model)
    with pytest.raises(ArtifactError, match=r"'values' has shape \['n', 1000000000, 1\], expected \['n', 4, 1\]"):
        portable.load(folder)


def test_a_grid_of_patches_must_have_as_many_as_there_are_players() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    game = cortx.Game(model, "zero", players=Patches(2))
    spec = game.spec(game.rows(np.zeros((2, 4, 4), np.float32)).table.schema)
    facts, arrays = game_facts(spec), game_arrays(spec)
    assert game_spec(facts, arrays).players.names == spec.players.names
    facts["explains"]["patch_grid"] = [10**6, 10**6]
    with pytest.raises(ValueError, match="grid of patches"):
        game_spec(facts, arrays)
    facts["table"]["image"] = [10**6, 10**6]
    with pytest.raises(ValueError, match="reshape"):
        game_spec(facts, arrays)
