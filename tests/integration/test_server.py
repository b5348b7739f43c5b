"""A real server in a process of its own, asked over loopback by clients that nobody here wrote, and by rude ones."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.guard import HANG
from tests.integration.test_server_world import Running, World, ask, read_answer, request_bytes, serving

import cortx

pytestmark = pytest.mark.slow
MANY = 1_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[Running]:
    with serving(world, "--max-body", "200000", "--max-rows", "200") as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=HANG) as made:
        yield made
        assert made.get("/v2/health/ready").status_code == 200, "the next request is served"


def check_answer(world: World, record: dict[str, Any], item: dict[str, Any]) -> None:
    """The answer is this record's: its prediction, and attributions that add up to it."""
    for value, (name, predicted) in zip(world.outputs(record), item["prediction"].items(), strict=True):
        assert predicted == pytest.approx(value, abs=1e-9)
        total = sum(item["attributions"][name].values())
        assert item["base_values"][name] + total == pytest.approx(predicted, abs=1e-6)


# Answers ------------------------------------------------------------------------------------------------------


def test_friendly_answers_are_the_librarys(world: World, client: httpx.Client) -> None:
    records = [world.record(i) for i in range(7)]
    answer = client.post("/explain", json={"records": records, "confidence": 0.8, "top": 2, "output": "1"}).json()
    expected = world.explainer.explain(world.module.wines[:7], confidence=0.8)
    names = expected.feature_names
    assert answer["model"] == "wine"
    for i, item in enumerate(answer["explanations"]):
        check_answer(world, records[i], item)
        for k in range(3):
            values = [item["attributions"][str(k)][name] for name in names]
            np.testing.assert_allclose(values, expected.values[i, :, k], atol=1e-6)
            bounds = np.array([item["bounds"][str(k)][name] for name in names])
            assert expected.lower_bounds is not None
            np.testing.assert_allclose(bounds[:, 0], expected.lower_bounds[i, :, k], atol=1e-5)
            assert item["ranking"][str(k)] == sorted(names, key=item["attributions"][str(k)].get, reverse=True)
            magnitudes = [abs(item["attributions"][str(k)][name]) for name in item["order_by_magnitude"][str(k)]]
            assert magnitudes == sorted(magnitudes, reverse=True)
        assert item["confidence"] == 0.8
        assert item["outputs_known"] is True
        reasons = expected[i].reason_codes(2, output=1)[0]
        assert [reason["feature"] for reason in item["reasons"]] == [reason.feature for reason in reasons]
        assert item["reasons"][0]["text"] in expected[i].reason_codes(2, output=1).text(0)


def test_kserve_v1(world: World, client: httpx.Client) -> None:
    record = world.record(3)
    assert client.get("/v1/models").json() == {"models": ["wine"]}
    assert client.get("/v1/models/wine").json() == {"name": "wine", "ready": True}
    as_list = list(record.values())
    answer = client.post("/v1/models/wine:explain", json={"instances": [record, as_list]}).json()["explanations"]
    check_answer(world, record, answer[0])
    assert answer[0] == answer[1]
    predicted = client.post("/v1/models/wine:predict", json={"instances": [record]}).json()["predictions"]
    assert predicted == [pytest.approx(world.outputs(record))]


def kserve_request(world: World, count: int) -> dict[str, Any]:
    """What KServe's V2 client sends for the first rows of the world: it repeats the model's name in the body."""
    records = [world.record(i) for i in range(1, 1 + count)]
    inputs = [
        {
            "name": name,
            "shape": [count, 1],
            "datatype": "BYTES" if name == "colour" else "FP64",
            "data": [record[name] if name == "colour" else float(record[name]) for record in records],
        }
        for name in records[0]
    ]
    return {"id": "8c1f3a52-5a3f-4d0b-9a55-8d9c3f9f0a11", "model_name": "wine", "inputs": inputs}


def test_requests_as_kserves_client_sends_them(world: World, client: httpx.Client) -> None:
    request = kserve_request(world, 4)
    answer = client.post("/v2/models/wine/infer", json=request)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model_name"] == "wine"
    assert answer.json()["id"] == request["id"]
    assert client.post("/v2/models/wine/infer", json={**request, "model_name": None}).status_code == 200
    other = client.post("/v2/models/wine/infer", json={**request, "model_name": "secret"})
    assert other.status_code == 400
    assert "'model_name'" in other.json()["error"]
    assert "secret" not in other.text
    assert client.post("/v2/models/wine/infer", json={**request, "model_name": ["wine"]}).status_code == 400
    for accept in ("*/*", "application/json"):
        alive = client.get("/", headers={"accept": accept})
        assert alive.headers["content-type"] == "application/json"
        assert alive.json() == {"status": "alive"}
    with urllib.request.urlopen(str(client.base_url), timeout=HANG) as answered:  # without the header
        assert json.load(answered) == {"status": "alive"}


KSERVE_CLIENT = """
import asyncio, json, sys
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig


async def main(url, request, record):
    found = {}
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        found["v2"] = [await client.is_server_live(url), await client.is_server_ready(url),
                       await client.is_model_ready(url, "wine"), await client.is_model_ready(url, "beer")]
        for form in ("json", "binary"):
            inputs = []
            for item in request["inputs"]:
                tensor = InferInput(item["name"], item["shape"], item["datatype"])
                kind = np.object_ if item["datatype"] == "BYTES" else np.float64
                array = np.array(item["data"], dtype=kind).reshape(item["shape"])
                tensor.set_data_from_numpy(array, binary_data=form == "binary")
                inputs.append(tensor)
            answer = await client.infer(url, InferRequest("wine", inputs), model_name="wine")
            values = next(output for output in answer.outputs if output.name == "values")
            found[form] = values.as_numpy().tolist()
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        found["v1"] = [await client.is_server_live(url), await client.is_model_ready(url, "wine")]
        found["predictions"] = (await client.infer(url, {"instances": [record]}, model_name="wine"))["predictions"]
        found["explanations"] = (await client.explain(url, "wine", {"instances": [record]}))["explanations"]
    print(json.dumps(found))


asyncio.run(main(sys.argv[1], *json.loads(sys.argv[2])))
"""


@pytest.mark.skipif("CORTX_KSERVE_PYTHON" not in os.environ, reason="CORTX_KSERVE_PYTHON names no interpreter")
def test_kserves_own_client(world: World, server: Running) -> None:
    record = world.record(3)
    asked = json.dumps([kserve_request(world, 4), record])
    command = [os.environ["CORTX_KSERVE_PYTHON"], "-c", KSERVE_CLIENT, server.url, asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["v2"] == [True, True, True, False]
    assert found["v1"] == [True, True]
    expected = world.explainer.explain(world.module.wines[1:5])
    np.testing.assert_allclose(found["json"], expected.values, atol=1e-6)
    np.testing.assert_allclose(found["binary"], expected.values, atol=1e-6)
    assert found["predictions"] == [pytest.approx(world.outputs(record))]
    check_answer(world, record, found["explanations"][0])


def test_outputs_that_come_along_are_taken(world: World, client: httpx.Client) -> None:
    outputs = [[0.2, 0.3, 0.5]]
    answer = client.post("/explain", json={"records": [world.record()], "outputs": outputs}).json()
    assert list(answer["explanations"][0]["prediction"].values()) == outputs[0]
    wrong = client.post("/explain", json={"records": [world.record()], "outputs": [[0.2]]})
    assert wrong.status_code == 400
    assert "[1, 3]" in wrong.json()["error"]


def test_description(world: World, client: httpx.Client) -> None:
    about = client.get("/models/wine").json()
    columns = {column["name"]: column for column in about["columns"]}
    assert columns["colour"]["kind"] == "category"
    assert set(columns["colour"]["categories"]) == {"dark", "light", "pale"}
    assert columns["bottles"]["whole"] is True
    assert columns["ash"]["missing"] is True
    assert columns["alcohol"]["missing"] is False
    assert columns["alcohol"]["low"] == pytest.approx(world.module.wines["alcohol"][:130].min())
    assert about["players"] == list(world.module.wines.columns)
    assert about["confidence"]["highest"] < 1
    example = about["examples"][0]["record"]
    assert client.post("/explain", json={"records": [example]}).status_code == 200


def test_tritonclient(world: World, server: Running) -> None:
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("wine")
        assert not client.is_model_ready("beer")
        version = client.get_model_metadata("wine")["versions"][0]
        assert client.is_model_ready("wine", version)
        metadata = client.get_model_metadata("wine")
        rows = world.module.wines[1:6]
        for binary in (True, False):
            inputs = []
            for item in metadata["inputs"]:
                kind = object if item["datatype"] == "BYTES" else np.float64
                array = rows[[item["name"]]].to_numpy(dtype=kind)
                tensor = triton.InferInput(item["name"], list(array.shape), item["datatype"])
                tensor.set_data_from_numpy(array, binary_data=binary)
                inputs.append(tensor)
            wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("values", "ranking")]
            result = client.infer("wine", inputs, outputs=wanted, request_id="seven")
            expected = world.explainer.explain(rows)
            assert result.get_response()["id"] == "seven"
            np.testing.assert_allclose(result.as_numpy("values"), expected.values, atol=1e-6)
            assert result.as_numpy("ranking").shape == expected.values.shape
            everything = client.infer("wine", inputs, model_version=version)
            assert everything.as_numpy("lower_bounds").shape == expected.values.shape
            np.testing.assert_allclose(everything.as_numpy("prediction"), world.module.model(rows), atol=1e-9)
        with pytest.raises(InferenceServerException, match="no model"):
            client.infer("beer", inputs)
        with pytest.raises(InferenceServerException, match="lacks the tensor"):
            client.infer("wine", inputs[:2])
        with pytest.raises(InferenceServerException, match="not served"):
            client.infer("wine", inputs, model_version="2")


def _fit_outputs(body: Any, *, given: bool) -> bool:
    """Gives outputs as many rows as there are records, which a schema cannot say; whether there are outputs.

    With `given` requests without outputs get those of three classes: what is drawn may never have any.
    """
    rows = body.get("records", body.get("instances")) if isinstance(body, dict) else None
    if not isinstance(rows, list):
        return False
    if given and body.get("outputs") is None:
        body["outputs"] = [[0.2, 0.3, 0.5]]
    if not isinstance(body.get("outputs"), list):
        return False
    body["outputs"] = [body["outputs"][i % len(body["outputs"])] for i in range(len(rows))]
    return True


def _try(operation: Any, mode: Any, checks: list[Any], settings: Any) -> tuple[int, int]:
    """Requests of one kind to one route, all of whose answers must pass; how many there were, and with outputs."""
    import hypothesis

    count = fitted = 0
    try:
        strategy = operation.as_strategy(generation_mode=mode)

        @settings
        @hypothesis.given(case=strategy)
        def conforms(case: Any) -> None:
            nonlocal count, fitted
            count += 1
            if mode.value == "positive":
                fitted += _fit_outputs(case.body, given=operation.path.endswith("explain") and count % 4 == 0)
            case.call_and_validate(checks=checks)

        conforms()
    except hypothesis.errors.Unsatisfiable:  # a route with nothing to negate
        pass
    return count, fitted


def test_openapi_document_holds(server: Running) -> None:
    import hypothesis
    import schemathesis
    from schemathesis import checks

    # Too many rows are refused with 413, which is not among the statuses that it expects by itself.
    rejected = {"negative_data_rejection": {"expected-statuses": [400, 404, 405, 413]}}
    config = schemathesis.Config.from_dict({"checks": rejected})
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)
    chosen = [
        checks.not_a_server_error,
        *(check for check in schemathesis.checks.CHECKS.get_all() if check.__name__ in {
            "status_code_conformance", "content_type_conformance", "response_schema_conformance",
            "negative_data_rejection", "positive_data_acceptance", "unsupported_method",
        }),
    ]  # fmt: skip
    settings = hypothesis.settings(
        max_examples=40, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    operations = [item.ok() for item in schema.get_all_operations()]
    tried: dict[tuple[str, str], tuple[int, int]] = {}
    for operation in operations:
        # The data of a tensor must fit its shape, which a schema cannot say.
        excluded = {"positive_data_acceptance"} if operation.path.endswith("/infer") else set()
        wanted = [check for check in chosen if check.__name__ not in excluded]
        for mode in schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE:
            tried[operation.path, mode.value] = _try(operation, mode, wanted, settings)
    for path in ("/explain", "/v1/models/wine:explain", "/v1/models/wine:predict", "/v2/models/wine/infer"):
        assert tried[path, "positive"][0] > 10
        assert tried[path, "negative"][0] > 10
        assert (tried[path, "positive"][1] > 0) == path.endswith("explain")


# Rude clients -------------------------------------------------------------------------------------------------


ROUTES = {"records": "/explain", "instances": "/v1/models/wine:explain", "inputs": "/v2/models/wine/infer"}
Bad = dict[str, tuple[bytes, int, str]]


def bad_bodies(world: World, key: str) -> Bad:
    """Bodies that no route takes, with `key` for the rows: their status, and a part of their error."""

    def body(rows: Any, **more: Any) -> bytes:
        return json.dumps({key: rows, **more}).encode()

    bad: Bad = {
        "nothing": (b"", 400, "not JSON"),
        "half": (b'{"%s": [' % key.encode(), 400, "not JSON"),
        "no utf-8": (b'{"%s": ["\xff"]}' % key.encode(), 400, "not JSON"),
        "infinity": (b'{"%s": [{"acid": 1e999}]}' % key.encode(), 400, "not JSON"),
        "deep": (b"[" * 100_000, 400, "not JSON"),
        "a list": (b"[]", 400, "object"),
        "unknown field": (b'{"rows": []}', 400, "'rows'"),
        "no rows": (body([]), 400, "at least one"),
        "null rows": (body(None), 400, key),
        "text rows": (body("secret"), 400, key),
        "a row of null": (body([None]), 400, key),
        "bytes": (b" " * 200_001, 413, "larger than 200,000 bytes"),
    }
    return bad | (bad_tensors(world) if key == "inputs" else bad_records(world, body))


def bad_records(world: World, body: Callable[..., bytes]) -> Bad:
    def changed(**changes: Any) -> bytes:
        return body([world.record(**changes)])

    record = world.record()
    lacking = {name: value for name, value in record.items() if name != "acid"}
    return {
        "NaN": (changed(acid=math.nan), 400, "not JSON"),
        "deep value": (changed(acid=[[[[1]]]]), 400, "'acid'"),
        "text for a number": (changed(acid="secret"), 400, "'acid' must be a number, got text"),
        "true for a number": (changed(acid=True), 400, "'acid'"),
        "number for a category": (changed(colour=7), 400, "'colour'"),
        "true for a category": (changed(colour=True), 400, "'colour'"),
        "unseen category": (changed(colour="secret"), 400, "never saw"),
        "missing": (changed(acid=None), 400, "'acid' is missing"),
        "huge whole number": (changed(bottles=2**60), 400, "'bottles'"),
        "no whole number": (changed(bottles=1.5), 400, "'bottles'"),
        "lacks a column": (body([lacking]), 400, "lacks the column 'acid'"),
        "unknown column": (changed(vintage=1990), 400, "'vintage'"),
        "confidence": (body([record], confidence=0.9999), 400, "confidence"),
        "top": (body([record], top=-1), 400, "top"),
        "output": (body([record], output="4"), 400, "output"),
        "rows": (body([record] * 201), 413, "201 rows"),
        "few outputs": (body([record], outputs=[[0.5]]), 400, "'outputs'"),
        "text among outputs": (body([record], outputs=[[0.5, 0.5, "secret"]]), 400, "'outputs'"),
        "wide text among outputs": (body([record], outputs=[[0.5, 0.5, "secret" * 10_000]]), 400, "'outputs'"),
        "huge outputs": (body([record], outputs=[[1e39, 0, 0]]), 400, "'outputs'"),
    }


def tensor_body(world: World, *more: dict[str, Any], **changes: Any) -> bytes:
    """One row's tensors; a change gives fields of one of them."""
    items = []
    for name, value in world.record(1).items():
        kind = "BYTES" if name == "colour" else "INT64" if name == "bottles" else "FP64"
        items.append({"name": name, "datatype": kind, "shape": [1], "data": [value], **changes.get(name, {})})
    return json.dumps({"inputs": [*items, *more]}).encode()


def bad_tensors(world: World) -> Bad:
    def changed(**fields: Any) -> bytes:
        return tensor_body(world, acid=fields)

    def outputs(data: list[Any]) -> bytes:
        return tensor_body(world, {"name": "outputs", "datatype": "FP64", "shape": [1, len(data)], "data": data})

    return {
        "no tensor": (b'{"inputs": [{}]}', 400, "'name'"),
        "lacks a column": (json.dumps({"inputs": json.loads(tensor_body(world))["inputs"][1:]}).encode(), 400, "lacks"),
        "unknown column": (changed(name="vintage"), 400, "'acid'"),
        "twice": (changed(name="ash"), 400, "one name"),
        "many axes": (changed(shape=[1] * 100), 400, "1 to 4"),
        "very many axes": (changed(shape=[2**31 - 1] * 10_000), 400, "1 to 4"),
        "huge axes": (changed(shape=[2**31 - 1] * 4), 400, "values"),
        "an axis beyond": (changed(shape=[2**63]), 400, "whole numbers"),
        "no axis": (changed(shape=[]), 400, "1 to 4"),
        "no rows in it": (changed(shape=[0], data=[]), 400, "whole numbers"),
        "odd type": (changed(datatype=["FP64"]), 400, "datatype"),
        "text for a number": (changed(datatype="BYTES", data=["secret"]), 400, "'acid'"),
        "number as text": (changed(data=["1.5"]), 400, "'acid'"),
        "FP16 overflow": (changed(datatype="FP16", data=[1e6]), 400, "beyond"),
        "INT8 overflow": (changed(datatype="INT8", data=[300]), 400, "beyond"),
        "missing": (changed(data=[None]), 400, "'acid' is missing"),
        "unseen category": (tensor_body(world, colour={"data": ["secret"]}), 400, "never saw"),
        "number for a category": (tensor_body(world, colour={"datatype": "INT64", "data": [7]}), 400, "'colour'"),
        "no whole number": (tensor_body(world, bottles={"datatype": "FP64", "data": [1.5]}), 400, "'bottles'"),
        "bytes that are not there": (changed(data=None, parameters={"binary_data_size": 8}), 400, "bytes"),
        "rows": (changed(shape=[201], data=[1.5] * 201), 400, "one and the same"),
        "few outputs": (outputs([0.5]), 400, "'outputs'"),
        "huge outputs": (outputs([1e39, 0, 0]), 400, "'outputs'"),
    }


@pytest.mark.parametrize("key", list(ROUTES))
def test_bad_bodies_are_refused_and_the_next_is_served(world: World, client: httpx.Client, key: str) -> None:
    cases = bad_bodies(world, key)
    if key == "records":
        for name, model in (("unknown model", "beer"), ("traversal", "../wine.cortx")):
            cases[name] = (json.dumps({"model": model, "records": [world.record()]}).encode(), 404, "no model")
        cases["images"] = (b'{"images": [[[1]]]}', 400, "records")
    good = {"records": [world.record(5)]}
    for name, (body, status, text) in cases.items():
        answer = client.post(ROUTES[key], content=body)
        assert answer.status_code == status, (name, answer.text)
        assert text in answer.json()["error"], (name, answer.text)
        assert "secret" not in answer.text
        assert "/" not in answer.json()["error"].replace("GET /models", ""), "no path leaks"
        check_answer(world, world.record(5), client.post("/explain", json=good).json()["explanations"][0])


def test_the_worst_outputs_that_are_taken_are_explained(world: World, client: httpx.Client) -> None:
    for impossible in (1e30, -0.2, 1.2):  # the model gives probabilities
        body = {"records": [world.record()], "outputs": [[impossible, 0.5, 0.5]]}
        assert client.post("/explain", json=body).status_code == 400
    body = {"records": [world.record()], "outputs": [[1.0, 0.0, 1.0]]}
    item = client.post("/explain", json=body).json()["explanations"][0]
    for name, output in zip(item["prediction"], body["outputs"][0], strict=True):
        total = item["base_values"][name] + sum(item["attributions"][name].values())
        assert total == pytest.approx(output, abs=1e-6)
        assert all(None not in pair for pair in item["bounds"][name].values())


def test_bad_bytes_are_refused(world: World, client: httpx.Client) -> None:
    """The protocol's binary form: JSON of a length that a header tells, then the tensors' bytes."""

    def ask_with(column: str, size: Any, tail: bytes, length: str | None = None) -> httpx.Response:
        item = {"shape": [1], "parameters": {"binary_data_size": size}}
        data = json.loads(tensor_body(world, **{column: item}))
        for tensor in data["inputs"]:
            if tensor["name"] == column:
                del tensor["data"]
        text = json.dumps(data).encode()
        headers = {"inference-header-content-length": str(len(text)) if length is None else length}
        return client.post(ROUTES["inputs"], content=text + tail, headers=headers)

    number, dark = np.float64(2.5).tobytes(), b"\x04\0\0\0dark"
    assert ask_with("acid", 8, number).status_code == 200
    assert ask_with("colour", 8, dark).status_code == 200
    for answer in (
        ask_with("acid", 7, number), ask_with("acid", 8, number[:7]), ask_with("acid", 8, number + b"x"),
        ask_with("acid", -8, number), ask_with("acid", 2**62, number), ask_with("acid", "8", number),
        ask_with("acid", 8, np.float64(np.inf).tobytes()), ask_with("acid", 8, number, "9" * 5_000),
        ask_with("acid", 8, number, "-1"), ask_with("acid", 8, number, "99999999"), ask_with("acid", 8, number, "1"),
        ask_with("colour", 7, dark[:7]), ask_with("colour", 8, b"\xff\xff\xff\xffdark"),
        ask_with("colour", 3, b"\0\0\0"),
        ask_with("colour", 8, b"\x04\0\0\0\xff\xfe\xff\xfe"), ask_with("colour", 10, b"\x06\0\0\0secret"),
    ):  # fmt: skip
        assert answer.status_code == 400, answer.text
        assert "secret" not in answer.text


def test_huge_bodies_without_a_length(client: httpx.Client) -> None:
    answer = client.post("/explain", content=(b" " * 50_000 for _ in range(20)))
    assert answer.status_code == 413


def test_wrong_methods_and_paths(client: httpx.Client) -> None:
    for path in ("/explain", "/v1/models/wine:explain", "/v2/models/wine/infer"):
        answer = client.get(path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "POST"
    assert client.post("/models").status_code == 405
    assert client.get("/nowhere").json().keys() == {"error"}
    for name in ("beer", "..%2f..%2fetc%2fpasswd", "%2e%2e%2fwine.cortx", "wine.cortx", "wine%2f..%2fwine"):
        for path in (f"/models/{name}", f"/v1/models/{name}", f"/v2/models/{name}", f"/page/{name}"):
            assert client.get(path).status_code == 404, path
        assert client.post(f"/v1/models/{name}:explain", json={}).status_code == 404
        assert client.post(f"/v2/models/{name}/infer", json={}).status_code == 404
    for path in ("/page/../../settings.py", "/page/..", "/models/..", "/v1/models/../../wine"):  # clients tidy these up
        with socket.create_connection(("127.0.0.1", client.base_url.port), HANG) as plain:
            plain.sendall(request_bytes(path, b"", "GET"))
            assert b" 404 " in plain.recv(4_096), path


def test_rude_connections(world: World) -> None:
    with serving(world, "--body-seconds", "1.5") as hasty:
        be_rude_to(hasty, world)


def be_rude_to(server: Running, world: World) -> None:
    whole = request_bytes("/explain", {"records": [world.record()]})
    for start in (b"", b"POST /explain HTTP/1.1\r\nhost: local", whole[:-20]):
        with socket.create_connection(("127.0.0.1", server.port), HANG) as slow:
            slow.sendall(start)
            slow.settimeout(HANG)
            heard = slow.recv(4_096)
            assert (b" 408 " in heard) if start else (heard == b"")
            assert b"traceback" not in heard.lower()
    for part in (whole[:30], whole[:-20], whole):  # gone before the answer, or before the request is whole
        with socket.create_connection(("127.0.0.1", server.port), HANG) as gone:
            gone.sendall(part)
    for garbage in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 200_000):
        with socket.create_connection(("127.0.0.1", server.port), HANG) as rude:
            rude.sendall(garbage)
            rude.settimeout(HANG)
            first = rude.recv(4_096)
            assert first[9:12] in (b"400", b"431", b"408")
    answer = httpx.post(f"{server.url}/explain", json={"records": [world.record()]}, timeout=HANG)
    assert answer.status_code == 200


def test_pipelined_requests_are_answered_in_order(world: World, server: Running) -> None:
    records = [world.record(i) for i in range(20)]

    async def pipelined() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"".join(request_bytes("/explain", {"records": [record]}) for record in records))
        for record in records:
            status, answer = await read_answer(reader)
            assert status == 200
            check_answer(world, record, answer["explanations"][0])
        writer.close()

    asyncio.run(pipelined())


def test_headers_metrics_logs_and_documents(world: World, server: Running, client: httpx.Client) -> None:
    client.post("/explain", json={"records": [world.record(alcohol=12.3456789)]})
    text = client.get("/metrics").text
    assert 'request_explain_seconds_bucket{le="+Inf",model="wine"}' in text
    for name in ("cortx_batch_rows_count", "cortx_queue_rows", "cortx_rejected_total", "cortx_model_evaluations_total",
                 "cortx_model_version{", "request_predict_seconds_count"):  # fmt: skip
        assert name in text
    assert "12.3456789" not in server.errors.read_text()
    assert all("event" in line for line in server.logs())
    page = client.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["vary"] == "Accept"
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    docs = client.get("/docs").text
    assert "/v1/models/{name}:explain" in docs
    assert "wine" not in docs
    assert "http://" not in docs.replace("http://HOST:PORT", "")
    assert "https://" not in docs
    # A name that leads here from a foreign page is not answered to.
    assert client.get("/models", headers={"host": "evil.example"}).status_code == 403


def test_the_models_failure_is_its_own(world: World, client: httpx.Client, server: Running) -> None:
    answer = client.post("/explain", json={"records": [world.record(alcohol=world.module.FAILS)]})
    assert answer.status_code == 500
    assert "ValueError" in answer.json()["error"]
    assert "secret" not in answer.text
    assert "secret" not in server.errors.read_text()
    assert any(line["event"] == "model_failed" for line in server.logs())


def test_deadlines(world: World, client: httpx.Client) -> None:
    """A request is refused at its deadline, and health answered, while the model is still busy with it."""
    hang, hanging = world.folder / "hang", {"records": [world.record(alcohol=world.module.HANGS)]}
    assert client.post("/explain", json=hanging, headers={"x-deadline": "soon"}).status_code == 400
    for i in range(100):  # until it counts as a fast model
        assert client.post("/explain", json={"records": [world.record(i)]}).status_code == 200

    async def both(port: int) -> tuple[int, int]:
        hang.touch()
        try:
            refused, _ = await ask(port, "/explain", hanging, "X-Deadline: 0.3\r\n")
            behind = asyncio.ensure_future(ask(port, "/explain", hanging))
            async with httpx.AsyncClient(base_url=client.base_url, timeout=HANG) as other:
                assert (await other.get("/v2/health/live")).status_code == 200
            assert not behind.done()
        finally:
            hang.unlink()
        return refused, (await behind)[0]

    assert asyncio.run(both(client.base_url.port or 0)) == (504, 200)


def wait_until(holds: Callable[[], Any]) -> None:
    """Waits for what must come, however slow the machine is."""
    until = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_hung_model_takes_nobody_else_down_and_comes_back(world: World) -> None:
    other = shutil.copytree(world.artifact, world.folder / "neighbour.cortx")
    models = ("--model", "wine=wine_model:model", "--model", "neighbour=wine_model:model")
    hang, hanging = world.folder / "hang", world.record(alcohol=world.module.HANGS)
    served: dict[str, Any] = {"artifacts": (world.artifact, other), "model": False}
    with (
        serving(world, *models, "--stall", "0.5", "--max-queue", "3", **served) as server,
        httpx.Client(base_url=server.url, timeout=HANG) as client,
    ):

        def ask_for(name: str, record: dict[str, Any], deadline: str = "30") -> int:
            body = {"model": name, "records": [record]}
            return client.post("/explain", json=body, headers={"x-deadline": deadline}).status_code

        def is_well(path: str) -> bool:
            return client.get(path).status_code == 200

        hang.touch()
        assert ask_for("wine", hanging, "0.05") == 504
        statuses = []
        while is_well("/v2/health/ready"):
            statuses.append(ask_for("wine", world.record(), "0.05"))
        statuses += [ask_for("wine", world.record()) for _ in range(10)]
        assert set(statuses) <= {503, 504}
        assert statuses[-1] == 503
        assert not is_well("/v2/models/wine/ready")
        assert not is_well("/v1/models/wine")
        assert is_well("/v2/models/neighbour/ready")
        assert ask_for("neighbour", world.record()) == 200
        wait_until(lambda: not is_well("/v2/health/live"))
        hang.unlink()
        wait_until(lambda: is_well("/v2/health/ready"))
        assert is_well("/v2/health/live")
        assert ask_for("wine", world.record()) == 200
        stalled = [line for line in server.logs() if line["event"] == "model_stalled"]
        assert [line["model"] for line in stalled] == ["wine"]


# Many at once -------------------------------------------------------------------------------------------------


def many_records(world: World, n: int = MANY) -> list[dict[str, Any]]:
    """Rows that no two requests share."""
    return [world.record(i, alcohol=11 + 4 * i / n) for i in range(n)]


async def ask_all(port: int, bodies: list[Any], paths: list[str], between: Any = None) -> list[Any]:
    """Each on a connection of its own, all written before any answer is read."""
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in bodies]
    for (_, writer), body, path in zip(opened, bodies, paths, strict=True):
        writer.write(request_bytes(path, body))
    reading = [asyncio.ensure_future(read_answer(reader)) for reader, _ in opened]
    if between is not None:
        await between()
    answers = await asyncio.gather(*reading, return_exceptions=True)
    for _, writer in opened:
        writer.close()
    return answers


def test_a_thousand_in_flight_while_the_model_raises(world: World, server: Running) -> None:
    records = many_records(world)
    for i in range(0, MANY, 50):
        records[i]["alcohol"] = world.module.FAILS
    answers = asyncio.run(ask_all(server.port, [{"records": [r]} for r in records], ["/explain"] * MANY))
    for i, (record, (status, answer)) in enumerate(zip(records, answers, strict=True)):
        if i % 50 == 0:
            assert status == 500
            assert "ValueError" in answer["error"]
        else:
            assert status == 200, answer
            check_answer(world, record, answer["explanations"][0])


def test_mixed_requests_get_their_own_answers(world: World, server: Running) -> None:
    records = many_records(world, 300)
    bodies: list[Any] = []
    for i, record in enumerate(records):
        level = (None, 0.5, 0.8)[i % 3]
        bodies.append(
            {"instances": [record]} if i % 4 == 1 else {"records": [record], "confidence": level, "top": i % 5}
        )
    paths = ["/v1/models/wine:predict" if i % 4 == 1 else "/explain" for i in range(300)]
    answers = asyncio.run(ask_all(server.port, bodies, paths))
    for i, (record, (status, answer)) in enumerate(zip(records, answers, strict=True)):
        assert status == 200
        if i % 4 == 1:
            assert answer["predictions"][0] == pytest.approx(world.outputs(record))
            continue
        item = answer["explanations"][0]
        check_answer(world, record, item)
        assert item["confidence"] == bodies[i]["confidence"]
        assert (item["bounds"] is None) == (bodies[i]["confidence"] is None)
        assert len(item["reasons"]) == min(i % 5, 6)


def test_a_thousand_in_flight_when_sigterm_comes(world: World) -> None:
    hang = world.folder / "hang"
    records = [{**record, "alcohol": world.module.HANGS} for record in many_records(world)]
    hang.touch()
    with serving(world, "--drain", "600") as server:

        async def stop() -> None:
            await queue_holds(server.url, MANY)
            server.terminate()
            while "draining" not in events(server):
                await asyncio.sleep(0.02)
            hang.unlink()

        answers = asyncio.run(ask_all(server.port, [{"records": [r]} for r in records], ["/explain"] * MANY, stop))
        assert server.stop() == 0
    lost = [answer for answer in answers if isinstance(answer, BaseException)]
    assert not lost, f"{len(lost)} of {MANY} were lost: {lost[:3]!r}"
    for record, (status, answer) in zip(records, answers, strict=True):
        assert status == 200, answer
        check_answer(world, record, answer["explanations"][0])
    assert [line["event"] for line in server.logs()][-1] == "stopped"


def events(server: Running) -> list[str]:
    return [line["event"] for line in server.logs()]


def test_after_sigterm_the_door_stays_open_until_the_linger_ends(world: World) -> None:
    """A long linger, ended by a second signal, so that the order of events does not depend on the clock."""
    body, hang = {"records": [world.record()]}, world.folder / "hang"
    hanging = {"records": [world.record(alcohol=world.module.HANGS)]}
    with serving(world, "--linger", "600") as server:

        async def stop() -> tuple[int, int]:
            hang.touch()
            in_flight = asyncio.ensure_future(ask(server.port, "/explain", hanging))
            async with httpx.AsyncClient(base_url=server.url, timeout=HANG) as client:

                async def status_of(path: str) -> int:
                    return (await client.get(path, headers={"connection": "close"})).status_code

                async def queued(rows: float) -> None:
                    while f'cortx_queue_rows{{model="wine"}} {rows}' not in (await client.get("/metrics")).text:
                        await asyncio.sleep(0.02)

                await queued(1.0)
                server.terminate()
                while await status_of("/v2/health/ready") == 200:
                    await asyncio.sleep(0.02)
                for _ in range(5):  # each on a connection of its own
                    assert await status_of("/v2/health/live") == 200
                    assert await status_of("/v2/models/wine/ready") == 503
                    assert await status_of("/v1/models/wine") == 503
                assert "draining" not in events(server)
                waiting = asyncio.ensure_future(ask(server.port, "/explain", body))  # behind the one that hangs
                await queued(2.0)
            server.terminate()
            while "draining" not in events(server):
                await asyncio.sleep(0.02)
            hang.unlink()
            return (await in_flight)[0], (await waiting)[0]

        assert asyncio.run(stop()) == (200, 200), "what was accepted before and after the first signal is answered"
        assert server.process.wait(HANG) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), 10).close()
    assert [event for event in events(server) if event in ("stopping", "draining", "stopped")] == [
        "stopping", "draining", "stopped",
    ]  # fmt: skip


def test_ctrl_c_does_not_linger_and_a_second_one_ends_the_drain(world: World) -> None:
    hang = world.folder / "hang"
    with serving(world, "--linger", "600", "--drain", "600") as server:

        async def stop() -> tuple[int, Any]:
            hang.touch()
            asked = asyncio.ensure_future(
                ask(server.port, "/explain", {"records": [world.record(alcohol=world.module.HANGS)]})
            )
            async with httpx.AsyncClient(base_url=server.url, timeout=HANG) as client:
                while 'cortx_queue_rows{model="wine"} 1.0' not in (await client.get("/metrics")).text:
                    await asyncio.sleep(0.02)
            server.terminate(signal.SIGINT)
            while "draining" not in events(server):
                await asyncio.sleep(0.02)
            server.terminate(signal.SIGINT)
            return await asked

        status, answer = asyncio.run(stop())
        hang.unlink()
        assert status == 503
        assert "stopped" in answer["error"]
        assert server.process.wait(HANG) == 0


def test_a_drain_is_bounded(world: World) -> None:
    hang = world.folder / "hang"
    with serving(world, "--drain", "1") as server:

        async def stuck() -> tuple[int, Any]:
            hang.touch()
            asked = asyncio.ensure_future(
                ask(server.port, "/explain", {"records": [world.record(alcohol=world.module.HANGS)]})
            )
            await queue_holds(server.url, 1)
            server.terminate()
            return await asked

        status, answer = asyncio.run(stuck())
        hang.unlink()
        assert status == 503
        assert "stopped" in answer["error"]
        assert server.stop() == 0


async def queue_holds(url: str, rows: int, model: str = "wine") -> None:
    """Waits until so many rows of the model wait or are worked on."""
    async with httpx.AsyncClient(base_url=url, timeout=HANG) as client:
        while f'cortx_queue_rows{{model="{model}"}} {rows:.1f}' not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.02)


def test_a_thousand_requests_while_an_artifact_is_replaced(world: World) -> None:
    folder = world.folder / "swapped.cortx"
    shutil.copytree(world.artifact, folder)
    newer = world.make("newer.cortx", seed=1)
    explainers = [world.explainer, cortx.load(newer, world.module.model)]
    records = many_records(world)
    with serving(world, artifacts=(folder,)) as server, httpx.Client(base_url=server.url) as client:
        before = client.get("/models").json()["models"][0]["version"]
        answers: list[tuple[int, Any]] = [(0, None)] * MANY
        swapped_at = MANY // 4

        async def some(start: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for i in range(start, MANY, 50):
                if i // 50 == swapped_at // 50 and start == 0:
                    cortx.load(newer).save(folder)
                writer.write(request_bytes("/explain", {"records": [records[i]]}))
                answers[i] = await read_answer(reader)
                await asyncio.sleep(0.2)
            writer.close()

        async def everything() -> None:
            await asyncio.gather(*(some(start) for start in range(50)))

        asyncio.run(everything())
        after = client.get("/models").json()["models"][0]["version"]
        assert after != before
        assert f'version="{after}"' in client.get("/metrics").text
        assert any(line["event"] == "swapped" for line in server.logs())
    assert {answer["version"] for _, answer in answers} == {before, after}
    for record, (status, answer) in zip(records, answers, strict=True):
        assert status == 200
        check_answer(world, record, answer["explanations"][0])
    for version, explainer in zip((before, after), explainers, strict=True):
        own = [i for i, (_, answer) in enumerate(answers) if answer["version"] == version]
        check_values(world, explainer, [records[i] for i in own], [answers[i][1] for i in own])


def check_values(world: World, explainer: cortx.CoRTX, records: list[Any], answers: list[Any]) -> None:
    """Answers of one record each are what this explainer says of them."""
    frame = world.module.wines[:0].reindex(range(len(records)))
    for column in frame.columns:
        frame[column] = [record[column] for record in records]
    frame = frame.astype({"alcohol": float, "acid": float, "ash": float, "alkalinity": float})
    found = [
        [[answer["explanations"][0]["attributions"][str(k)][name] for k in range(3)] for name in frame.columns]
        for answer in answers
    ]
    outputs = world.module.probabilities(frame)
    np.testing.assert_allclose(found, explainer.explain(frame, outputs).values, atol=1e-6)


def test_a_thousand_in_flight_while_an_artifact_is_replaced(world: World) -> None:
    """They keep the version that accepted them, and a thousand more get the new one, before any is answered."""
    folder = world.folder / "held.cortx"
    shutil.copytree(world.artifact, folder)
    newer = world.make("newest.cortx", seed=2)
    records = many_records(world)
    first, second = ([{**record, "ash": ash} for record in records] for ash in (2.0, 3.0))
    hang, slow = world.folder / "hang", {"records": [world.record(alcohol=world.module.HANGS)]}  # holds its batch

    async def everything(port: int, url: str) -> tuple[list[Any], list[Any], list[str]]:
        versions: list[str] = []
        later: list[list[Any]] = []

        async def release() -> None:
            hang.unlink()

        async def replace_it() -> None:
            async with httpx.AsyncClient(base_url=url, timeout=HANG) as client:

                async def in_flight() -> float:
                    text = (await client.get("/metrics")).text
                    return float(re.search(r'^cortx_queue_rows\{model="held"\} (\S+)', text, re.M)[1])  # type: ignore[index]

                async def version() -> str:
                    return str((await client.get("/models")).json()["models"][0]["version"])

                while await in_flight() < MANY:
                    await asyncio.sleep(0.02)
                versions.append(await version())
                cortx.load(newer).save(folder)
                while (now := await version()) == versions[0]:
                    await asyncio.sleep(0.02)
                versions.append(now)
                assert await in_flight() >= MANY
            later.append(await ask_all(port, [{"records": [r]} for r in second], ["/explain"] * MANY, release))

        hang.touch()
        held = asyncio.ensure_future(ask(port, "/explain", slow))
        await queue_holds(url, 1, "held")
        bodies = [slow, *({"records": [r]} for r in first)]
        found = await ask_all(port, bodies, ["/explain"] * len(bodies), replace_it)
        await held
        return found[1:], later[0], versions

    with serving(world, artifacts=(folder,)) as server:
        found, later, (before, after) = asyncio.run(everything(server.port, server.url))
    for sent, answers, version, of in ((first, found, before, world.artifact), (second, later, after, newer)):
        assert [status for status, _ in answers] == [200] * MANY
        assert {answer["version"] for _, answer in answers} == {version}
        for record, (_, answer) in zip(sent, answers, strict=True):
            check_answer(world, record, answer["explanations"][0])
        check_values(world, cortx.load(of), sent, [answer for _, answer in answers])


def test_a_broken_version_is_not_served(world: World) -> None:
    folder = world.folder / "broken.cortx"
    shutil.copytree(world.artifact, folder)
    with serving(world, artifacts=(folder,)) as server, httpx.Client(base_url=server.url, timeout=HANG) as client:
        before = client.get("/models").json()["models"][0]

        def wait_for(found: Any) -> None:
            until = time.monotonic() + HANG
            while not found():
                assert time.monotonic() < until
                time.sleep(0.2)

        text = (folder / "manifest.json").read_text()
        (folder / "manifest.json").write_text(text[: len(text) // 2])
        wait_for(lambda: client.get("/models").json()["models"][0]["failure"])
        now = client.get("/models").json()["models"][0]
        assert now["version"] == before["version"]
        assert str(folder) not in now["failure"]
        assert 'cortx_failed_versions_total{model="broken"} 1.0' in client.get("/metrics").text
        assert client.post("/explain", json={"records": [world.record()]}).status_code == 200
        # Another model's artifact is refused by its fingerprint.
        other = world.make("other.cortx", seed=0, function="single")
        for file in other.iterdir():
            shutil.copy(file, folder / file.name)
        wait_for(lambda: 'cortx_failed_versions_total{model="broken"} 1.0' not in client.get("/metrics").text)
        assert client.get("/models").json()["models"][0]["version"] == before["version"]
        (folder / "manifest.json").write_text(text)
        wait_for(lambda: client.get("/models").json()["models"][0]["failure"] is None)
        assert client.post("/explain", json={"records": [world.record()]}).status_code == 200


def test_a_full_queue_refuses(world: World) -> None:
    hang = world.folder / "hang"
    hang.touch()
    with serving(world, "--max-queue", "20") as server:
        records = [world.record(i, alcohol=world.module.HANGS) for i in range(100)]

        async def release() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=HANG) as client:
                while 'reason="queue"} 80.0' not in (await client.get("/metrics")).text:
                    await asyncio.sleep(0.02)
            hang.unlink()

        answers = asyncio.run(ask_all(server.port, [{"records": [r]} for r in records], ["/explain"] * 100, release))
        statuses = [status for status, _ in answers]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) == 20
        for record, (status, answer) in zip(records, answers, strict=True):
            if status == 200:
                check_answer(world, record, answer["explanations"][0])
            else:
                assert "wait" in answer["error"]
        with httpx.Client(base_url=server.url, timeout=HANG) as client:
            assert 'cortx_rejected_total{model="wine",reason="queue"}' in client.get("/metrics").text
            assert client.post("/explain", json={"records": [world.record()]}).status_code == 200


# Who may ask --------------------------------------------------------------------------------------------------


def test_tokens(world: World, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# for the page\nfirst-token\nsecond-token\n")
    body = {"records": [world.record()]}
    with serving(world, "--token-file", str(file), tokens="third-token") as server:
        with httpx.Client(base_url=server.url) as client:
            for token in ("first-token", "second-token", "third-token"):
                bearer = {"authorization": f"Bearer {token}"}
                assert client.post("/explain", json=body, headers=bearer).status_code == 200
            refused = [
                {},
                {"authorization": "Bearer wrong-token"},
                {"authorization": "Bearer first-token2"},
                {"authorization": "Bearer first-toke"},
                {"authorization": "Bearer"},
                {"authorization": "first-token"},
                {"authorization": "Basic first-token"},
                {"cookie": "token=first-token; authorization=Bearer first-token"},
                {"x-authorization": "Bearer first-token"},
            ]
            for headers in refused:
                for path in ("/explain?token=first-token&access_token=first-token", "/v1/models/wine:explain"):
                    answer = client.post(path, json=body, headers=headers)
                    assert answer.status_code == 401, headers
                    assert answer.headers["www-authenticate"].startswith("Bearer")
                    assert "token" in answer.json()["error"] or "Bearer" in answer.json()["error"]
                for path in ("/models", "/models/wine", "/metrics", "/openapi.json", "/v2", "/v2/models/wine",
                             "/v1/models", "/nowhere", "/models/beer"):  # fmt: skip
                    assert client.get(path, headers=headers).status_code == 401, path
            for path in ("/", "/docs", "/v2/health/live", "/v2/health/ready"):
                assert client.get(path).status_code == 200
            twice = [("authorization", "Bearer first-token"), ("authorization", "Bearer wrong-token")]
            assert client.post("/explain", json=body, headers=twice).status_code == 401
            document = client.get("/openapi.json", headers={"authorization": "Bearer first-token"}).json()
            assert document["paths"]["/explain"]["post"]["security"] == [{"token": []}]
        assert "first-token" not in server.errors.read_text()


def test_without_a_model_outputs_are_guessed_or_given(world: World) -> None:
    with serving(world, model=False) as server, httpx.Client(base_url=server.url) as client:
        record = world.record()
        guessed = client.post("/explain", json={"records": [record]}).json()["explanations"][0]
        assert guessed["outputs_known"] is False
        assert guessed["bounds"] is None
        known = client.post("/explain", json={"records": [record], "outputs": [world.outputs(record)]}).json()
        check_answer(world, record, known["explanations"][0])
        assert known["explanations"][0]["outputs_known"] is True
        assert known["explanations"][0]["bounds"] is not None
        assert client.post("/explain", json={"records": [record], "confidence": 0.5}).status_code == 400
        assert client.post("/v1/models/wine:predict", json={"instances": [record]}).status_code == 400
        assert client.get("/models/wine").json()["has_model"] is False
