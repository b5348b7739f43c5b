"""The Open Inference Protocol V2: which tensors are taken, and that nothing malformed gets past the reading."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pytest
from tests.conftest import make_tiny_recipe

import cortx
from cortx.interfaces.server.catalog import Version, load_version
from cortx.interfaces.server.http import HttpError
from cortx.interfaces.server.openapi import _explain, _infer, _model_paths
from cortx.interfaces.server.protocol_v2 import inputs_of, read_infer
from cortx.interfaces.server.settings import Settings

MOST = 20


def frame(n_rows: int = 80) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": draw.integers(18, 90, n_rows),
            "debt": draw.normal(size=n_rows),
            "job": draw.choice(["cook", "smith"], n_rows),
            "grade": pd.Categorical(draw.integers(1, 4, n_rows)),
            "rate": pd.Categorical(draw.choice([0.5, 2.0], n_rows)),
            "owner": pd.Categorical(draw.choice([True, False], n_rows)),
            "mixed": pd.Series(list("ab") * (n_rows // 2), dtype=object).where(np.arange(n_rows) % 3 > 0, 1),
        }
    )


def score(rows: pd.DataFrame) -> np.ndarray:
    p = 1 / (1 + np.exp(-rows["debt"].to_numpy(float)))
    return np.stack([p, 1 - p], axis=1)


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Version:
    rows = frame()
    game = cortx.Game(score, reference=rows, output="probability", target="all")
    explainer = cortx.CoRTX(make_tiny_recipe(5), seed=0).fit(game, rows, n_labels=20, progress=False)
    folder = explainer.save(tmp_path_factory.mktemp("protocol") / "debts.cortx")
    return load_version("debts", folder, score, None, Settings())


GOOD: dict[str, tuple[str, list[Any]]] = {
    "age": ("INT64", [30, 40]),
    "debt": ("FP64", [0.5, 1]),
    "job": ("BYTES", ["cook", "smith"]),
    "grade": ("INT64", [1, 3]),
    "rate": ("FP64", [0.5, 2]),
    "owner": ("BOOL", [True, False]),
    "mixed": ("BYTES", ["a", "1"]),
}


def tensors(**changes: Any) -> list[dict[str, Any]]:
    """A good request's tensors; a change gives fields of one of them."""
    made: list[dict[str, Any]] = [
        {"name": name, "datatype": kind, "shape": [2], "data": data} for name, (kind, data) in GOOD.items()
    ]
    return [{key: value for key, value in (item | changes.get(item["name"], {})).items() if value is not None}
            for item in made]  # fmt: skip


def read(version: Version, inputs: Any, tail: bytes = b"", length: bytes | None = None, **more: Any) -> Any:
    text = orjson.dumps({"inputs": inputs, **more})
    counted = str(len(text)).encode() if length is None else length
    headers = [(b"inference-header-content-length", counted)] if tail or length is not None else []
    return read_infer(version, text + tail, headers, MOST)[0]


def refusal(version: Version, *arguments: Any, **settings: Any) -> str:
    with pytest.raises(HttpError) as caught:
        read(version, *arguments, **settings)
    assert caught.value.status == 400
    assert len(caught.value.text) < 400
    return caught.value.text


def test_the_metadata_names_types_that_are_taken(version: Version) -> None:
    kinds = {item["name"]: item["datatype"] for item in inputs_of(version)}
    assert kinds == {name: kind for name, (kind, _) in GOOD.items()} | {"age": "FP64"}
    work = read(version, tensors(age={"datatype": "FP64", "data": [30.0, 40.0]}))
    record = dict(zip(GOOD, work.rows.cells[1], strict=True))
    assert record == {"age": 40, "debt": 1, "job": "smith", "grade": 3, "rate": 2, "owner": False, "mixed": 1}
    reader: Any = version.reader
    decoded = reader.decode(np.array(work.rows.numbers[1]))
    assert decoded == record
    assert type(decoded["owner"]) is bool


@pytest.mark.parametrize("name", ["grade", "owner", "rate"])
def test_text_may_spell_a_category(version: Version, name: str) -> None:
    texts = [str(value) for value in (2.0 if value == 2 and name == "rate" else value for value in GOOD[name][1])]
    spelled = read(version, tensors(**{name: {"datatype": "BYTES", "data": texts}}))
    assert spelled.rows.numbers == read(version, tensors()).rows.numbers
    assert repr(name) in refusal(version, tensors(**{name: {"datatype": "BYTES", "data": ["none", "such"]}}))


def text(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def binary(size: Any, **more: Any) -> dict[str, Any]:
    return {"data": None, "parameters": {"binary_data_size": size}, **more}


def test_bytes_are_taken(version: Version) -> None:
    tail = np.array([0.5, 1.0]).tobytes() + text(b"cook", b"smith")
    work = read(version, tensors(debt=binary(16), job=binary(len(text(b"cook", b"smith")))), tail)
    assert work.rows.numbers == read(version, tensors()).rows.numbers


@pytest.mark.parametrize("shape", [
    [1] * 100, [2, *[1] * 99], [2, 1, 1, 1, 1], [1] * 20_000, [2**31 - 1] * 500, [2**31 - 1] * 4,
    [0, 2**31 - 1, 2**31 - 1, 2**31 - 1], [], [0],
    [-1], [2**31], [2**63], [2.0], [True], ["2"], [None], 2, "2", {}, [[2]], [3], [2, 2], [1, 1], [2**62, 4],
])  # fmt: skip
@pytest.mark.parametrize("tail", [b"", np.array([0.5, 1.0]).tobytes()])
def test_shapes(version: Version, shape: Any, tail: bytes) -> None:
    own = binary(len(tail)) if tail else {}
    refusal(version, tensors(debt={**own, "shape": shape}), tail)


def test_many_axes_are_refused_before_they_are_multiplied(version: Version) -> None:
    inputs = tensors(debt={"shape": [2**31 - 1] * 20_000})
    steps = 0

    def counted(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(counted)
    try:
        refusal(version, inputs)
    finally:
        sys.setprofile(None)
    assert steps < 2_000  # not one for each axis


def test_sizes_cost_nothing_before_they_are_checked(version: Version) -> None:
    """Requests of a few hundred bytes that speak of up to 2**124 values."""
    tail = np.array([0.5, 1.0]).tobytes()
    most = 2**31 - 1
    requests: list[tuple[Any, bytes]] = []
    for shape in ([most], [1, most], [most] * 4):
        for kind in ("FP64", "BOOL", "BYTES"):
            requests.append((tensors(debt={"shape": shape, "datatype": kind}), b""))
            requests.append((tensors(debt={"shape": shape, "datatype": kind, **binary(len(tail))}), tail))
    requests.append((tensors(debt={"shape": [2], **binary(2**40)}), tail))
    tracemalloc.start()
    try:
        for inputs, more in requests:
            refusal(version, inputs, more)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("change", [
    {"datatype": None}, {"datatype": []}, {"datatype": {}}, {"datatype": 7}, {"datatype": "FP8"}, {"datatype": "fp64"},
    {"data": None}, {"data": {}}, {"data": "ab"}, {"data": [1]}, {"data": [1, 2, 3]}, {"data": [[1, 2]]},
    {"data": [[1], 2]}, {"data": [1, [2]]}, {"data": ["1", "2"]}, {"data": [True, False]}, {"data": [1, {}]},
    {"datatype": "FP16", "data": [1e6, 0]}, {"datatype": "FP32", "data": [1e39, 0]},
    {"datatype": "INT8", "data": [128, 0]},
    {"datatype": "UINT8", "data": [-1, 0]}, {"datatype": "INT64", "data": [1.5, 0]},
    {"datatype": "UINT64", "data": [-1, 0]},
    {"datatype": "BYTES", "data": ["a", "b"]}, {"datatype": "BYTES", "data": [1, 2]},
    {"datatype": "BOOL", "data": [1, 0]},
    {"datatype": "BOOL", "data": [True, False]}, {"name": "depth"}, {"name": "job"}, {"name": 7}, {"name": None},
    {"extra": 1}, {"parameters": 7}, {"parameters": []}, {"parameters": {"binary_data_size": 16}},
    {"shape": [1], "data": [1]},
    {"data": [None, 1]}, {"shape": [0], "data": []}, {"shape": [0, *[2**31 - 1] * 3], "data": []},
])  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_tensors(version: Version, change: dict[str, Any]) -> None:
    refusal(version, tensors(debt=change))


FLOATS = np.array([0.5, 1.0]).tobytes()


@pytest.mark.parametrize(("change", "tail"), [
    (binary(16), FLOATS[:15]), (binary(16), FLOATS + b"x"), (binary(15), FLOATS), (binary(8), FLOATS),
    (binary(17), FLOATS),
    (binary(-1), FLOATS), (binary(2**63), FLOATS), (binary("16"), FLOATS), (binary(16.0), FLOATS),
    (binary(True), FLOATS),
    (binary([]), FLOATS), (binary(16, data=[1, 2]), FLOATS), (binary(16, datatype="FP32"), FLOATS), ({}, FLOATS),
    (binary(16), np.array([0.5, np.inf]).tobytes()), (binary(16), np.array([0.5, np.nan]).tobytes()),
    (binary(4, datatype="FP16"), np.array([1, np.inf], dtype=np.float16).tobytes()),
])  # fmt: skip
def test_bytes_of_numbers(version: Version, change: dict[str, Any], tail: bytes) -> None:
    refusal(version, tensors(debt=change), tail)


@pytest.mark.parametrize("tail", [
    text(b"cook"), text(b"cook", b"smith", b"cook"), text(b"cook", b"smith")[:-1], text(b"cook", b"smith") + b"x",
    text(b"cook") + b"\xff\xff\xff\xff", text(b"cook") + struct.pack("<I", 2**32 - 1) + b"smith", b"\0\0\0",
    text(b"cook", b"\xff"), text(b"cook", b"\xed\xa0\x80"), text(b"cook", b""), text(b"cook", b"tailor"),
])  # fmt: skip
def test_bytes_of_text(version: Version, tail: bytes) -> None:
    refusal(version, tensors(job=binary(len(tail))), tail)


@pytest.mark.parametrize(
    "length", [b"9" * 5_000, b"1" * 13, b"-1", b"+5", b"", b"x", b"1.0", b"9999", "²".encode(), b"5"]
)
def test_the_header(version: Version, length: bytes) -> None:
    refusal(version, tensors(), length=length)


def outputs(shape: Any, data: Any, kind: str = "FP64") -> dict[str, Any]:
    return {"name": "outputs", "datatype": kind, "shape": shape, "data": data}


def test_outputs(version: Version) -> None:
    work = read(version, [*tensors(), outputs([2, 2], [0.25, 0.75, 1, 0])])
    np.testing.assert_array_equal(work.outputs, [[0.25, 0.75], [1, 0]])
    # The model's outputs are probabilities.
    for item in (
        outputs([4], [0, 0, 0, 0]), outputs([1, 2], [0, 0]), outputs([2, 2], [0, 0, 0, 1.5]),
        outputs([2, 2], [0, 0, 0, -1e39]), outputs([2, 2], [0, 0, 0, None]), outputs([2, 2], ["a"] * 4, "BYTES"),
        outputs([2, 2], [True] * 4, "BOOL"),
    ):  # fmt: skip
        assert "outputs" in refusal(version, [*tensors(), item])


def test_the_document_names_what_may_come(version: Version) -> None:
    settings = Settings()
    bodies = [_explain([version], settings), _model_paths(version, settings)["/v1/models/debts:explain"]["post"]]
    for body in bodies:
        schema = body["requestBody"]["content"]["application/json"]["schema"]
        assert "outputs" not in schema["required"]
        given = schema["properties"]["outputs"]["anyOf"][0]
        assert given["maxItems"] == settings.max_rows
        assert given["items"]["minItems"] == given["items"]["maxItems"] == version.n_outputs
        number = given["items"]["items"]
        for value in (number["minimum"], number["maximum"]):
            read(version, [*tensors(), outputs([2, 2], [value] * 4)])
            refusal(version, [*tensors(), outputs([2, 2], [2 * value] * 4)])
        rows = schema["properties"].get("records", schema["properties"].get("instances"))
        age = rows["items"]["properties"]["age"]
        assert age["type"] == "integer"
        read(version, tensors(age={"data": [age["minimum"], age["maximum"]]}))
    infer = _infer(version)["requestBody"]["content"]["application/json"]["schema"]["properties"]["inputs"]["items"]
    assert set(infer["properties"]["name"]["enum"]) == {*GOOD, "rows", "outputs"}
