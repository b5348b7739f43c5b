"""Explainers as ONNX graphs: the numbers of torch, the errors of `CoRTX`, folders that are whole or refused."""

from __future__ import annotations

import copy
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
import typer
from tests.conftest import make_model, make_tiny_recipe
from tests.guard import HANG
from torch import nn
from typer.testing import CliRunner

import cortx
from cortx import CoRTX, Game, Patches, Segments, portable
from cortx.errors import ArtifactError, InputError
from cortx.explainer.onnx_graph import Graph, _layers, make_graph
from cortx.explainer.session import Session
from cortx.images import ImageSchema
from cortx.interfaces.export import export
from cortx.paper.cifar10 import load_digits_images
from cortx.seeding import torch_generator
from cortx.tables import Column, write_table
from cortx.training.axioms import exact_total
from cortx.training.encoders import make_network
from cortx.training.features import fit_features
from cortx.training.image_network import ImageFeatures, ImageNetwork
from cortx.training.network import ExplainerNetwork
from cortx.training.recipe import get_recipe
from cortx.training.resnet import Block

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

PARTS = np.arange(8)[:, None] // 3 + 3 * (np.arange(8)[None, :] // 4)
"""Six segments of an image of 8 x 8."""


def frame(n_rows: int, seed: int = 0) -> pd.DataFrame:
    """Text with gaps, categories, booleans, numbers with gaps."""
    generator = np.random.default_rng(seed)
    share = generator.normal(size=n_rows)
    share[generator.random(n_rows) < 0.2] = np.nan
    return pd.DataFrame(
        {
            "town": generator.choice(np.array(["Rome", "Oslo", "Bonn", None], dtype=object), n_rows),
            "grade": pd.Categorical(generator.choice(["a", "b", "c"], n_rows)),
            "old": generator.random(n_rows) < 0.4,
            "count": generator.integers(0, 5, n_rows),
            "share": share,
            "size": generator.normal(size=n_rows),
        }
    )


def three_outputs(rows: pd.DataFrame) -> np.ndarray:
    town = rows["town"].map({"Rome": 0.5, "Oslo": -0.3}).fillna(0.1).to_numpy(dtype=float)
    share = rows["share"].fillna(0.7).to_numpy()
    size, grade = rows["size"].to_numpy(), (rows["grade"] == "b").to_numpy(dtype=float)
    count, old = rows["count"].to_numpy(), rows["old"].to_numpy(dtype=float)
    return np.stack([town * size + share, grade * count / 3 - old, np.tanh(size + share) * (1 + town)], axis=1)


def categories_case() -> tuple[CoRTX, Any]:
    rows = frame(300)
    game = Game(three_outputs, reference=rows, players={"who": ["town", "old"]})
    return CoRTX(make_tiny_recipe(40)).fit(game, rows, budget=8_000), frame(700, seed=1)


def numbers_case() -> tuple[CoRTX, Any]:
    rows = np.random.default_rng(0).normal(size=(1_000, 6)).astype(np.float32)
    game = Game(make_model(), reference=rows[:300], output="probability")
    explainer = CoRTX(make_tiny_recipe(20), heads=("attribution", "ranking"))
    return explainer.fit(game, rows[:300], n_labels=40), rows


CASES = {"categories, gaps, groups and three outputs": categories_case, "numbers": numbers_case}


@pytest.fixture(scope="module")
def made() -> dict[str, tuple[CoRTX, Any]]:
    """Explainers and fresh rows."""
    return {name: make() for name, make in CASES.items()}


@pytest.fixture
def case(request: pytest.FixtureRequest, made: dict[str, tuple[CoRTX, Any]]) -> tuple[CoRTX, Any]:
    return made[getattr(request, "param", next(iter(CASES)))]


@pytest.fixture
def folder(case: tuple[CoRTX, Any], tmp_path: Path) -> Path:
    return case[0].to_onnx(tmp_path / "portable")


def in_torch(explainer: CoRTX, rows: Any, outputs: Any) -> Any:
    """The network's own answer."""
    table = explainer._read(rows)
    known, _ = explainer._outputs(table, outputs)
    return explainer._torch_answer(table, known, explainer._empty(table)[0], errors=True)


def shaped(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    return values.reshape(like.shape)


# The same numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_values_are_those_of_torch_and_add_up(case: tuple[CoRTX, Any], folder: Path) -> None:
    explainer, rows = case
    explained = explainer.explain(rows)
    expected = in_torch(explainer, rows, explained.outputs)
    found = portable.load(folder, threads=torch.get_num_threads()).explain(rows, explained.outputs)
    np.testing.assert_allclose(shaped(found.values, expected.values), expected.values, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.values.sum(axis=1) + found.base_values, explained.outputs, rtol=0, atol=1e-12)
    assert (found.feature_names, found.output_names) == (explained.feature_names, explained.output_names)
    np.testing.assert_array_equal(found.base_values, explained.base_values)
    np.testing.assert_array_equal(found.values, explained.values)  # explain itself runs the same nodes


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_explain_uses_onnxruntime_and_agrees_with_torch(case: tuple[CoRTX, Any]) -> None:
    explainer, rows = case
    assert explainer._onnxruntime() is not None
    explained = explainer.explain(rows)
    expected = in_torch(explainer, rows, explained.outputs)
    table = explainer._read(rows)
    empty, _ = explainer._empty(table)
    found = explainer._answer(table, explainer._outputs(table, explained.outputs)[0], empty, errors=True)
    np.testing.assert_allclose(found.values, expected.values, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(found.active, expected.active)
    np.testing.assert_allclose(found.typical, expected.typical, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.typical_row, expected.typical_row, rtol=1e-3, atol=1e-5)
    if expected.ranking is None:
        assert found.ranking is None
    else:  # near ties may fall either way
        assert (found.ranking == expected.ranking).mean() > 0.99
    guessed = explainer._answer(table, None, empty, errors=False)
    outputs = explainer._guess_outputs(table, empty)
    np.testing.assert_allclose(
        guessed.values, explainer._torch_answer(table, outputs, empty, errors=False).values, rtol=0, atol=1e-5
    )


def test_bounds_at_any_confidence(case: tuple[CoRTX, Any], folder: Path) -> None:
    explainer, rows = case
    loaded = portable.load(folder)
    outputs = explainer.explain(rows).outputs
    for confidence in (0.5, 0.9):
        expected = in_torch(explainer, rows, outputs).bounds(*explainer.calibration.factors(confidence))
        found = loaded.explain(rows, outputs, confidence=confidence)
        assert found.confidence == confidence
        for name, bound in (("lower", expected.lower), ("upper", expected.upper)):
            np.testing.assert_allclose(getattr(found, f"{name}_bounds"), bound, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.error_bound, expected.error, rtol=1e-4, atol=1e-5)
    assert loaded.explain(rows, outputs).lower_bounds is None
    few = len(explainer.calibration)
    with pytest.raises(InputError, match=rf"confidence=0.9999 needs more calibration rows: {few} support"):
        loaded.explain(rows, outputs, confidence=0.9999)


def test_bare_onnxruntime_gives_the_bounds_of_the_export(case: tuple[CoRTX, Any], tmp_path: Path) -> None:
    explainer, rows = case
    path = explainer.to_onnx(tmp_path / "p", confidence=0.8)
    session = onnxruntime.InferenceSession(path / "explainer.onnx")
    assert [item.name for item in session.get_inputs()] == ["rows", "outputs"]
    names = [item.name for item in session.get_outputs()]
    assert names == ["values", "lower_bounds", "upper_bounds", "error_bound"]
    explained = explainer.explain(rows, confidence=0.8)
    matrix = explainer._read(rows).matrix
    for some in (slice(0, 1), slice(5, 8), slice(0, 700)):
        found = session.run(names, {"rows": matrix[some], "outputs": explained.outputs[some]})
        expected = [explained.values, explained.lower_bounds, explained.upper_bounds, explained.error_bound]
        for array, same in zip(found, expected, strict=True):
            np.testing.assert_allclose(array, same[some], rtol=1e-4, atol=1e-5)


def test_a_row_that_is_its_reference_but_for_one_player_has_no_doubt(case: tuple[CoRTX, Any], folder: Path) -> None:
    explainer, _ = case
    game = explainer.game
    assert game is not None
    reference = write_table(game.absent, explainer._read(frame(5)).schema)
    one = reference.assign(size=3.0)
    both = pd.concat([reference, one], ignore_index=True)
    found = portable.load(folder).explain(both, three_outputs(both), confidence=0.9)
    assert (found.values[0] == 0).all()
    assert (found.error_bound == 0).all()
    np.testing.assert_array_equal(found.lower_bounds, found.values)
    np.testing.assert_allclose(found.values[1].sum(axis=0), three_outputs(one)[0] - found.base_values[1], atol=1e-12)


def test_frames_of_another_kind(case: tuple[CoRTX, Any], folder: Path) -> None:
    _, rows = case
    outputs, loaded = three_outputs(rows), portable.load(folder)
    other = pl.from_pandas(rows[rows.columns[::-1]])
    np.testing.assert_array_equal(loaded.explain(other, outputs).values, loaded.explain(rows, outputs).values)


# Networks of tables as training may leave them ---------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["default", "paper"])
@pytest.mark.parametrize("kind", ["one reference", "a background", "groups", "one layer"])
def test_table_graphs_are_those_of_torch(recipe: Any, kind: str) -> None:
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 4, size=(50, 5)).astype(np.float64)
    rows[::5, 3] = np.nan
    rows[7] = [1e9, 2, 1, np.nan, 0]  # far beyond training
    absent = rows[5:6].copy()
    if kind == "a background":  # columns in which it has one value, several, and none
        absent = np.repeat(absent, 3, axis=0)
        absent[:, 0], absent[:, 3] = [0, 1, 2], np.nan
    columns = tuple(Column(f"x{j}", j in (1, 3), np.dtype(float)) for j in range(5))
    settings = get_recipe(recipe)
    if kind == "one layer":
        plain: Any = {"kind": "mlp", "depth": 1}
        settings = replace(settings, encoder=replace(settings.encoder, **plain), head=replace(settings.head, **plain))
    features = fit_features(rows[10:], columns, absent, settings.features)
    player_of = torch.tensor([0, 1, 0, 2, 1] if kind == "groups" else [0, 1, 2, 3, 4])
    network = ExplainerNetwork(
        features,
        player_of,
        2,
        encoder=replace(settings.encoder, width=8, latent=8),
        head=replace(settings.head, width=8),
        heads=("attribution",),
        seed=0,
    )
    network.eval().requires_grad_(False)
    network.attribution.label_scale.copy_(torch.tensor([0.5, 0.2]))
    network.attribution.total_scale.copy_(torch.tensor([0.3, 2.0]))
    compare(network, rows, generator.normal(size=(50, 2)), generator.normal(size=2))


def compare(network: ExplainerNetwork, rows: np.ndarray, outputs: np.ndarray, empty: np.ndarray) -> None:
    """A graph against its network; `empty` (outputs,) for all rows, or (rows, outputs) for each."""
    graph = make_graph(network, None if empty.ndim == 2 else empty, inside=True)
    feeds = {"rows": rows, "outputs": outputs} | ({"empty": empty} if empty.ndim == 2 else {})
    session = Session(graph.model({}).SerializeToString(), images=rows.dtype == np.float32, threads=2)
    values, active, typical, typical_row = session.run(["values", "active", "typical", "typical_row"], feeds)
    with torch.inference_mode():
        codes, total = torch.from_numpy(rows), torch.from_numpy(outputs - empty)
        answer = network(codes, total.to(torch.float32))
        sharers = network.attribution.sharers(network.active(codes))
        expected = exact_total(answer.values, total, sharers)
        sizes = network.typical_errors(answer)
    np.testing.assert_array_equal(active, sharers.numpy())
    size = max(1.0, float(expected.abs().max()))
    np.testing.assert_allclose(values, expected.numpy(), rtol=0, atol=1e-5 * size)
    for found, wanted in zip((typical, typical_row), sizes, strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-6)


# Images -------------------------------------------------------------------------------------------------------


def image_network(players: Any, schema: ImageSchema, recipe: str, own: str | None, seed: int = 0) -> ImageNetwork:
    """A small network with weights, running means and scales that are not what they start as."""
    settings = get_recipe(recipe, images=True)  # type: ignore[arg-type]
    parts = players.players(schema)
    absent = torch.full((1, schema.n_numbers), 0.25) if own is None else torch.zeros(1, schema.n_numbers)
    network = ImageNetwork(
        ImageFeatures(schema, parts, absent, own),
        parts,
        2,
        encoder=replace(settings.encoder, width=4),
        head=replace(settings.head, width=8),
        seed=seed,
    )
    generator = torch_generator(seed, "test")
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.2, 0.2, generator=generator)
                module.running_var.uniform_(0.5, 2.0, generator=generator)
        network.attribution.label_scale.copy_(torch.tensor([0.5, 0.2]))
        network.attribution.total_scale.copy_(torch.tensor([0.3, 2.0]))
        network.difficulty.value.uniform_(-0.1, 0.1, generator=generator)
        network.difficulty.row.uniform_(-0.1, 0.1, generator=generator)
    return network.eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("players", "schema", "recipe", "own"),
    [
        (Patches(2), ImageSchema((8, 8)), "default", None),
        (Patches((2, 4)), ImageSchema((3, 8, 12)), "default", None),
        (Patches((3, 5), channels="last"), ImageSchema((9, 10, 3), "last"), "default", None),
        (Patches(1), ImageSchema((1, 6, 6)), "quick", "mean"),
        (Patches(4, channels="last"), ImageSchema((8, 16, 3), "last"), "quick", "blur"),
        (Segments(PARTS), ImageSchema((3, 8, 8)), "default", None),
        (Segments(PARTS), ImageSchema((8, 8)), "default", "blur"),
        (Patches(4), ImageSchema((3, 8, 8)), "paper", None),
    ],
)
def test_image_graphs_are_those_of_torch(players: Any, schema: ImageSchema, recipe: str, own: str | None) -> None:
    network = image_network(players, schema, recipe, own)
    generator = np.random.default_rng(0)
    images = generator.random((7, schema.n_numbers), dtype=np.float32)
    images[:, ::3] = 0.25
    images[0] = 0.0 if own == "blur" else 0.25  # nothing differs from the reference
    outputs, empty = generator.normal(size=(7, 2)), generator.normal(size=(7, 2))
    compare(network, images, outputs, empty[0] if own is None else empty)


@pytest.fixture(scope="module")
def blurred() -> tuple[CoRTX, np.ndarray]:
    images = load_digits_images()[0][:220]
    game = Game(brightness, "blur", players=Patches(4))
    recipe = get_recipe("quick", images=True)
    assert recipe.stream is not None
    recipe = replace(
        recipe,
        encoder=replace(recipe.encoder, width=4),
        head=replace(recipe.head, width=8),
        pretrain=replace(recipe.pretrain, steps=2, batch_size=16, n_positives=2),
        stream=replace(recipe.stream, pairs=2, batch_size=16, imitation_steps=5, validations=2, shift=1),
    )
    return CoRTX(recipe).fit(game, images[:120], budget=8_000), images[120:]


def brightness(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), 8, 8).astype(np.float64)
    return np.stack([flat[:, :4].mean(axis=(1, 2)) ** 2, flat[:, :, 4:].mean(axis=(1, 2))], axis=1)


def test_images_that_are_their_own_reference(blurred: tuple[CoRTX, np.ndarray], tmp_path: Path) -> None:
    explainer, images = blurred
    assert explainer._onnxruntime() is None
    loaded = portable.load(explainer.to_onnx(tmp_path / "p", confidence=0.5))
    expected = explainer.explain(images, confidence=0.5)
    empty = brightness(loaded.references(images))
    np.testing.assert_allclose(empty, expected.base_values, rtol=0, atol=1e-5)
    found = loaded.explain(images, expected.outputs, empty=expected.base_values, confidence=0.5)
    for name in ("values", "base_values", "lower_bounds", "upper_bounds", "error_bound"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"'blur' is made from each image, so explaining needs empty="):
        loaded.explain(images, expected.outputs)
    with pytest.raises(InputError, match=r"empty= has shape \(100, 1\), expected \(100, 2\)"):
        loaded.explain(images, expected.outputs, empty=empty[:, :1])


@pytest.mark.parametrize("kind", ["mlp", "residual"])
@pytest.mark.parametrize("depth", [1, 3])
def test_layers_of_tables(kind: Any, depth: int) -> None:
    module = make_network(kind, 5, 7, depth, 3, torch_generator(0, kind))
    rows = torch.randn(9, 5, generator=torch_generator(0, "rows"))
    check_layers(module, rows)


def test_layers_of_images() -> None:
    generator = torch_generator(0, "block")
    images = torch.randn(3, 4, 9, 7, generator=generator)
    for block in (Block(4, 4, 1, generator), Block(4, 6, 2, generator)):
        check_layers(block.eval(), images)


def check_layers(module: nn.Module, x: torch.Tensor) -> None:
    graph = Graph()
    shape = ["n", *x.shape[1:]]
    graph.output("y", _layers(graph, module, graph.input("rows", 1, *shape)), 1, *[None] * x.ndim)  # type: ignore[list-item]
    session = onnxruntime.InferenceSession(graph.model({}).SerializeToString())
    with torch.inference_mode():
        np.testing.assert_allclose(session.run(["y"], {"rows": x.numpy()})[0], module(x).numpy(), rtol=0, atol=1e-6)


def test_a_layer_without_an_onnx_form_is_named() -> None:
    with pytest.raises(InputError, match="a Tanhshrink has no ONNX form"):
        _layers(Graph(), nn.Sequential(nn.Tanhshrink()), "x")


# The same errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.drop(columns="town"),
        lambda rows: rows.assign(more=1.0),
        lambda rows: rows.assign(size=np.nan),
        lambda rows: rows.assign(size=np.where(np.arange(len(rows)) == 3, np.nan, rows["size"])),
        lambda rows: rows.assign(size=np.inf),
        lambda rows: rows.assign(size="large"),
        lambda rows: rows.assign(town="Paris"),
        lambda rows: rows.assign(grade=1.5),
        lambda rows: rows.iloc[:0],
        lambda rows: rows.to_numpy(),
        lambda rows: rows.iloc[0].to_dict(),
        lambda rows: rows.iloc[0],
    ],
)
def test_rows_are_refused_with_the_words_of_cortx(
    change: Callable[[pd.DataFrame], Any], case: tuple[CoRTX, Any], folder: Path
) -> None:
    explainer, rows = case
    bad, outputs = change(rows), np.zeros((len(rows), 3))
    with pytest.raises(InputError) as theirs:
        explainer.explain(bad, outputs=outputs)
    with pytest.raises(InputError) as ours:
        portable.load(folder).explain(bad, outputs)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "outputs",
    [np.zeros(5), np.zeros((4, 3)), np.full((5, 3), np.nan), np.zeros((5, 3, 1)), np.full((5, 3), -1e39)],
)
def test_outputs_are_refused_with_the_words_of_cortx(
    outputs: np.ndarray, case: tuple[CoRTX, Any], folder: Path
) -> None:
    explainer, rows = case
    with pytest.raises(InputError) as theirs:
        explainer.explain(rows[:5], outputs=outputs)
    with pytest.raises(InputError) as ours:
        portable.load(folder).explain(rows[:5], outputs)
    assert str(ours.value) == str(theirs.value)


def test_unseen_categories_can_be_ignored(case: tuple[CoRTX, Any], tmp_path: Path) -> None:
    explainer, rows = copy.copy(case[0]), case[1].assign(town="Paris")
    explainer.unseen = "ignore"
    outputs = three_outputs(rows)
    loaded = portable.load(explainer.to_onnx(tmp_path / "p"))
    np.testing.assert_array_equal(loaded.explain(rows, outputs).values, explainer.explain(rows, outputs=outputs).values)


def test_no_bounds_without_a_calibration(made: dict[str, Any], tmp_path: Path) -> None:
    explainer, rows = made["numbers"]
    loaded = portable.load(explainer.to_onnx(tmp_path / "p"))
    with pytest.raises(InputError, match="was exported without bounds; export a calibrated one"):
        loaded.explain(rows, explainer.explain(rows).outputs, confidence=0.9)
    with pytest.raises(InputError, match="empty= is for images"):
        loaded.explain(rows, explainer.explain(rows).outputs, empty=np.zeros(len(rows)))
    with pytest.raises(InputError, match="base_values stand for all"):
        loaded.references(rows)


# The folder ---------------------------------------------------------------------------------------------------


def test_the_json_says_what_the_tensors_mean(case: tuple[CoRTX, Any], folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["explainer.json", "explainer.onnx"]
    facts = json.loads((folder / "explainer.json").read_text())
    assert facts["cortx"] == cortx.__version__
    assert [column["name"] for column in facts["table"]["columns"]] == list(case[1].columns)
    assert facts["players"] == ["who", "grade", "count", "share", "size"]
    assert facts["player_of_column"] == [0, 1, 0, 2, 3, 4]
    assert len(facts["calibration"]["rows"]) == len(case[0].calibration)
    assert facts["int8"] is None
    loaded = portable.load(folder)
    assert loaded.players == tuple(facts["players"])
    assert repr(loaded) == "Portable(6 columns, 5 players, 3 outputs)"


def test_a_folder_that_is_not_ours_gets_its_own_error(case: tuple[CoRTX, Any], folder: Path, tmp_path: Path) -> None:
    facts, graph = folder / "explainer.json", folder / "explainer.onnx"
    text, content = facts.read_text(), graph.read_bytes()
    document = json.loads(text)

    def refused(words: str, path: Path = folder) -> None:
        with pytest.raises(ArtifactError, match=words):
            portable.load(path)
        facts.write_text(text)
        graph.write_bytes(content)

    refused("there is no portable explainer at", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    refused("has no explainer.json", tmp_path / "empty")
    refused("an explainer that cortx.load reads", case[0].save(tmp_path / "saved"))
    facts.write_text(text[:100])
    refused("explainer.json is damaged")
    facts.write_text('{"format": "another"}')
    refused("does not say 'cortx-portable'")
    facts.write_text("[]")
    refused("does not say 'cortx-portable'")
    facts.write_text(json.dumps({**document, "format_version": 99, "cortx": "9.9"}))
    refused("written in format 99 by cortx 9.9")
    facts.write_text(json.dumps({key: value for key, value in document.items() if key != "seen"}))
    refused(r"damaged \(KeyError\('seen'\)\)")
    for part, wrong, words in (
        ("known_codes", {"0": [99.0]}, "known categories are not those"),
        (
            "known_codes",
            {j: [99.0] for j in document["seen"]["known_codes"]},
            "no category for some of its known codes",
        ),
        ("ranges", [], "ranges of 0 columns"),
        ("ranges", document["seen"]["ranges"][:-1], "ranges of 5 columns"),
    ):
        facts.write_text(json.dumps({**document, "seen": {**document["seen"], part: wrong}}))
        refused(words)
    scores = document["calibration"]["rows"]
    for part, name, wrong, words in (
        ("explains", "base_values", True, "no list of finite numbers"),
        ("explains", "base_values", [float("nan")] * 3, "no list of finite numbers"),
        ("calibration", "rows", scores[:-1], "not of the same rows"),
        ("calibration", "bands", [row[:1] for row in scores], "not of the same rows"),
        ("calibration", "weights", [1.0], "not of the same rows"),
        ("calibration", "bands", [[float("nan")] * 3, *scores[1:]], "numbers that are none"),
    ):
        facts.write_text(json.dumps({**document, part: {**document[part], name: wrong}}))
        refused(words)
    number = next(j for j, column in enumerate(document["table"]["columns"]) if column["kind"] == "numeric")
    document["table"]["columns"][number]["coded"] = True
    facts.write_text(json.dumps(document))
    refused("coded=True")
    graph.write_bytes(content[:-1])
    refused("checksum")
    graph.unlink()
    refused("lacks explainer.onnx")
    portable.load(folder)


def test_a_graph_that_onnxruntime_cannot_open(folder: Path) -> None:
    import hashlib

    graph = b"no graph"
    document = json.loads((folder / "explainer.json").read_text())
    document["graph"]["sha256"] = hashlib.sha256(graph).hexdigest()
    (folder / "explainer.json").write_text(json.dumps(document))
    (folder / "explainer.onnx").write_bytes(graph)
    with pytest.raises(ArtifactError, match=r"onnxruntime cannot open the graph in .*portable"):
        portable.load(folder)


def test_only_a_portable_explainer_is_replaced(case: tuple[CoRTX, Any], folder: Path, tmp_path: Path) -> None:
    explainer, _ = case
    before = (folder / "explainer.onnx").read_bytes()
    explainer.to_onnx(folder, confidence=0.5)
    assert (folder / "explainer.onnx").read_bytes() != before
    assert portable.load(folder).facts.confidence == 0.5
    assert [path.name for path in tmp_path.iterdir()] == ["portable"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="exists and is not a portable explainer"):
        explainer.to_onnx(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ArtifactError, match="exists and is not a portable explainer"):
        explainer.to_onnx(tmp_path / "file")


def test_a_failed_export_leaves_nothing(case: tuple[CoRTX, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs more calibration rows"):
        case[0].to_onnx(tmp_path / "p", confidence=0.99999)
    assert list(tmp_path.iterdir()) == []


# Processes and threads ----------------------------------------------------------------------------------------


def test_values_do_not_depend_on_the_threads(case: tuple[CoRTX, Any], folder: Path) -> None:
    rows = case[1]
    found = [portable.load(folder, threads=n).explain(rows, three_outputs(rows)).values for n in (1, 2, 5)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork here")
def test_a_forked_process_explains_too(case: tuple[CoRTX, Any], folder: Path) -> None:
    """Servers load once and fork: threads of the parent are gone in the child."""
    rows = case[1]
    outputs, loaded = three_outputs(rows), portable.load(folder, threads=2)
    expected = loaded.explain(rows, outputs).values
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=lambda: answers.put(np.array_equal(loaded.explain(rows, outputs).values, expected)))
    child.start()
    child.join(HANG)
    if child.is_alive():
        child.kill()
    assert child.exitcode == 0
    assert answers.get()


# The command --------------------------------------------------------------------------------------------------


def test_the_command(case: tuple[CoRTX, Any], tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(export)
    case[0].save(tmp_path / "saved")
    case[1].to_csv(tmp_path / "rows.csv", index=False)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, [str(tmp_path / "saved"), *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    said = run(str(tmp_path / "p"), "--confidence", "0.8")
    assert "with bounds at 80%" in said
    assert portable.load(tmp_path / "p").facts.confidence == 0.8
    said = run(str(tmp_path / "small"), "--int8", "--table", str(tmp_path / "rows.csv"))
    loss = portable.load(tmp_path / "small").facts.int8
    assert loss is not None
    assert f"int8 differs from float32 by {loss['relative_error']:.2%}" in said
    assert loss["rows"] == len(case[1])


# int8 ---------------------------------------------------------------------------------------------------------


def test_int8_states_its_loss(case: tuple[CoRTX, Any], tmp_path: Path) -> None:
    explainer, rows = case
    outputs = three_outputs(rows)
    full = portable.load(explainer.to_onnx(tmp_path / "full")).explain(rows, outputs)
    loaded = portable.load(explainer.to_onnx(tmp_path / "small", int8=True, rows=rows))
    small = loaded.explain(rows, outputs)
    away = [np.sqrt(((a - b) ** 2).sum(axis=0)) for a, b in zip(small.values, full.values, strict=True)]
    size = [np.sqrt((b**2).sum(axis=0)) for b in full.values]
    assert loaded.facts.int8 is not None
    assert loaded.facts.int8["relative_error"] == pytest.approx(np.mean(away) / np.mean(size), rel=1e-6)
    assert 0 < loaded.facts.int8["relative_error"] < 0.2
    assert loaded.facts.int8["rows"] == len(rows)
    np.testing.assert_allclose(small.values.sum(axis=1) + small.base_values, outputs, rtol=0, atol=1e-12)
    assert (tmp_path / "small" / "explainer.onnx").stat().st_size < (
        tmp_path / "full" / "explainer.onnx"
    ).stat().st_size
    with pytest.raises(InputError, match="is int8, and bounds are calibrated for float32"):
        loaded.explain(rows, outputs, confidence=0.9)


def test_int8_is_measured_on_the_probe_rows_by_default(case: tuple[CoRTX, Any], tmp_path: Path) -> None:
    facts = portable.load(case[0].to_onnx(tmp_path / "small", int8=True)).facts
    assert facts.int8 is not None
    assert facts.int8["rows"] == len(case[0].fitted.probe)


# Inside CoRTX -------------------------------------------------------------------------------------------------


def test_the_session_follows_the_network(made: dict[str, tuple[CoRTX, Any]]) -> None:
    explainer, rows = copy.copy(made["numbers"][0]), made["numbers"][1]
    before = explainer.explain(rows).values
    first = explainer._onnxruntime()
    assert first is explainer._onnxruntime()
    twin = copy.deepcopy(explainer)
    np.testing.assert_array_equal(twin.explain(rows).values, before)
    assert twin._onnxruntime() is not first
    changed = copy.deepcopy(explainer.fitted)
    changed.network.attribution.label_scale.mul_(1.5)
    explainer._attach(changed, explainer.game)
    assert explainer._onnxruntime() is not first
    after = explainer.explain(rows).values
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, in_torch(explainer, rows, None).values[..., 0], rtol=0, atol=1e-5)
    second = explainer._onnxruntime()
    assert explainer.to("cpu")._onnxruntime() is not second


@pytest.mark.slow
def test_without_onnxruntime_torch_explains(made: dict[str, tuple[CoRTX, Any]], tmp_path: Path) -> None:
    explainer, rows = made["numbers"]
    explainer.save(tmp_path / "saved")
    expected = explainer.explain(rows)
    np.savez(tmp_path / "rows.npz", rows=rows, outputs=expected.outputs, values=expected.values)
    script = """
import sys
sys.modules["onnx"] = sys.modules["onnxruntime"] = None
import numpy as np, cortx
explainer, data = cortx.load(sys.argv[1] + "/saved"), np.load(sys.argv[1] + "/rows.npz")
found = explainer.explain(data["rows"], outputs=data["outputs"])
assert explainer._onnxruntime() is None
assert np.abs(found.values - data["values"]).max() < 1e-5
try:
    explainer.to_onnx(sys.argv[1] + "/portable")
except cortx.CortxError as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "an explainer as an ONNX graph needs onnx, which is not installed; run: pip install 'cortx-explain[onnx]'\n"
    )
    assert not (tmp_path / "portable").exists()
