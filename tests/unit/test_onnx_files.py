"""What an ONNX model may read: itself, and for a user's own model the files of its own folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import cortx
from cortx import portable
from cortx.errors import ArtifactError, InputError
from cortx.explainer.generations import PORTABLE
from cortx.explainer.session import Session
from cortx.games.models import adapt
from cortx.onnx_files import NESTED, check_own_folder, external_locations

SECRET = np.array([3.0, 1.0, 4.0, 1.5], dtype=np.float32)


def external(location: str | None, name: str = "w") -> TensorProto:
    """A tensor of four numbers that are in a file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    facts = {"location": location, "offset": "0", "length": "16"}
    for key, value in facts.items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    return tensor


def graph_of(nodes: list[Any], initializers: list[TensorProto], name: str = "g", **more: Any) -> Any:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    return helper.make_graph(nodes, name, [x], [y], initializers, **more)


def model_of(graph: Any, **more: Any) -> Any:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, **more)


def adding(tensor: TensorProto) -> bytes:
    """x + w"""
    graph = graph_of([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])
    return bytes(model_of(graph).SerializeToString())


def hidden(place: str, tensor: TensorProto) -> bytes:
    """A model with the tensor where only few look."""
    inner = graph_of([helper.make_node("Constant", [], ["y"], value=tensor)], [], "inner")
    node = helper.make_node("Constant", [], ["c"], value=tensor)
    function = helper.make_function("own", "f", ["x"], ["c"], [node], [helper.make_opsetid("", 18)])
    sparse = onnx.SparseTensorProto(values=tensor, dims=[4])
    condition = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    made = {
        "a constant": lambda: model_of(graph_of([node], [])),
        "a branch": lambda: model_of(graph_of([condition], [])),
        "a function": lambda: model_of(graph_of([], []), functions=[function]),
        "a sparse tensor": lambda: model_of(graph_of([], [], sparse_initializer=[sparse])),
        "a list of tensors": lambda: model_of(graph_of([helper.make_node("Own", [], ["y"], many=[tensor])], [])),
        "a list of graphs": lambda: model_of(graph_of([helper.make_node("Own", [], ["y"], many=[inner])], [])),
    }[place]()
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    "place", ["a constant", "a branch", "a function", "a sparse tensor", "a list of tensors", "a list of graphs"]
)
def test_external_data_are_found_everywhere(place: str) -> None:
    assert set(external_locations(hidden(place, external("../secret")))) == {"../secret"}
    with pytest.raises(InputError, match=r"'\.\./secret' \(external data\)"):
        Session(hidden(place, external("../secret")), images=False)
    own = helper.make_tensor("w", TensorProto.FLOAT, [4], SECRET)
    assert external_locations(hidden(place, own)) == []


def test_the_fields_are_those_of_onnx() -> None:
    """All ways from a model to a tensor, found by following the messages of the onnx package."""
    found: dict[str, dict[int, str]] = {}
    todo, seen = [onnx.ModelProto.DESCRIPTOR], set()
    while todo:
        message = todo.pop()
        seen.add(message.name)
        for field in message.fields:
            if field.message_type is not None:
                found.setdefault(message.name, {})[field.number] = field.message_type.name
                if field.message_type.name not in seen:
                    todo.append(field.message_type)
    leads = {"TensorProto"}
    while len(leads) < len(leads := leads | {name for name, kinds in found.items() if leads & set(kinds.values())}):
        pass
    leads.discard("TensorProto")
    wanted = {
        name: {number: kind for number, kind in found[name].items() if kind in leads | {"TensorProto"}}
        for name in leads
    }
    assert wanted == NESTED


def test_a_tensor_that_says_that_its_numbers_are_its_own_is_not_external() -> None:
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [4], SECRET)
    tensor.data_location = TensorProto.DEFAULT
    assert external_locations(adding(tensor)) == []
    assert external_locations(adding(external(None))) == [""]


@pytest.mark.parametrize("junk", [b"\x0a", b"\x0a\xff\xff\xff\xff\x7f", b"\xff" * 40, b"\x0b\x0c", b"\x00\x00", b"ok?"])
def test_bytes_that_are_no_model_are_refused(junk: bytes) -> None:
    with pytest.raises(ValueError, match="not an ONNX model"):
        external_locations(junk)


def test_a_field_that_another_parser_may_take_for_a_tensor_is_refused() -> None:
    """Five bytes of a field's number, of which 32 bits count for some: field 7, the graph, and 2**32 more."""
    graph = adding(external("../secret"))
    assert external_locations(b"\x3a\x00" + graph) == ["../secret"]
    with pytest.raises(ValueError, match="not an ONNX model"):
        external_locations(b"\xba\x80\x80\x80\x10\x00" + graph)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.conftest import make_model, make_tiny_recipe

    rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    game = cortx.Game(make_model(4), reference=rows, output="raw")
    explainer = cortx.CoRTX(make_tiny_recipe(20)).fit(game, rows, n_labels=20, progress=False)
    return explainer.to_onnx(tmp_path_factory.mktemp("portable") / "it.portable")


@pytest.mark.parametrize("location", ["../secret", "beside", "/etc/hostname", "*/_ORT_MEM_ADDR_/*"])
def test_a_portable_folder_reads_no_other_file(exported: Path, tmp_path: Path, location: str) -> None:
    """Even one whose checksum is right: whoever writes the graph writes the checksum too."""
    folder = tmp_path / "it.portable"
    folder.mkdir()
    for file in (tmp_path / "secret", folder / "beside"):
        file.write_bytes(SECRET.tobytes())
    facts = json.loads((exported / PORTABLE.document).read_text())
    model = onnx.load_model_from_string((exported / facts["graph"]["file"]).read_bytes())
    model.graph.initializer.append(external(location))
    graph = model.SerializeToString()
    facts["graph"]["sha256"] = hashlib.sha256(graph).hexdigest()
    (folder / facts["graph"]["file"]).write_bytes(graph)
    (folder / PORTABLE.document).write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match=r"the graph in .* is not opened.*external data"):
        portable.load(folder)
    assert portable.load(exported).players


def test_onnxruntimes_own_format_is_refused() -> None:
    with pytest.raises(InputError, match=r"\.ort"):
        Session(b"\x08\x00\x00\x00ORTM" + b"\x00" * 64, images=False)


def outputs_of(path: Path) -> np.ndarray:
    return np.asarray(adapt(path, "raw").outputs(torch.zeros(3, 4)))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The path of a model in a folder with weights beside it, below a folder with a secret."""
    folder = tmp_path / "models"
    (folder / "weights").mkdir(parents=True)
    for file in (tmp_path / "secret", folder / "beside", folder / "weights" / "w.bin"):
        file.write_bytes(SECRET.tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    return folder / "model.onnx"


@pytest.mark.parametrize("location", ["beside", "weights/w.bin", "./beside"])
def test_a_users_model_may_have_weights_in_its_folder(place: Path, location: str) -> None:
    place.write_bytes(adding(external(location)))
    np.testing.assert_array_equal(outputs_of(place), np.tile(SECRET, (3, 1)))


@pytest.mark.parametrize(
    "location",
    ["../secret", "weights/../../secret", "link", "nowhere", "", "weights", "C:\\secret", "..\\secret", "a\0b",
     "ABSOLUTE"],
)  # fmt: skip
def test_a_users_model_reads_nothing_outside_its_folder(place: Path, location: str) -> None:
    location = str(place.parent.parent / "secret") if location == "ABSOLUTE" else location
    place.write_bytes(adding(external(location)))
    with pytest.raises(InputError, match="own folder"):
        outputs_of(place)


def test_a_model_in_a_store_of_links_is_taken_with_its_weights(place: Path) -> None:
    """As the cache of Hugging Face keeps them: links to files that are beside each other elsewhere."""
    store, shown = place.parent.parent / "blobs", place.parent.parent / "snapshot"
    store.mkdir()
    shown.mkdir()
    (store / "1").write_bytes(adding(external("weights.bin")))
    (store / "2").write_bytes(SECRET.tobytes())
    (shown / "model.onnx").symlink_to(store / "1")
    (shown / "weights.bin").symlink_to(store / "2")
    assert check_own_folder(shown / "model.onnx", (shown / "model.onnx").read_bytes())
