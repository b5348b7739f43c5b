"""`cortx serve` of a portable folder answers what it answers of the explainer that the folder was exported from."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import lightgbm
import numpy as np
import pandas as pd
import pytest
from tests.conftest import make_tiny_recipe
from tests.unit.test_trees import frame, target

import cortx
from cortx.errors import ArtifactError, InputError
from cortx.interfaces.server.app import App
from cortx.interfaces.server.catalog import Catalog, load_version, served_name
from cortx.interfaces.server.logs import Log
from cortx.interfaces.server.settings import Settings

pytest.importorskip("onnxruntime")
RECORDS = [
    {"age": 41.0, "colour": "red", "size": None, "kind": "a", "weight": 0.5},
    {"age": 18.5, "colour": None, "size": -1.25, "kind": "c", "weight": 2.0},
]


def score(rows: pd.DataFrame) -> np.ndarray:
    return rows["x"].to_numpy() * rows["y"].to_numpy() + rows["z"].to_numpy()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trees and networks, one of a constant model, saved and portable."""
    folder, table = tmp_path_factory.mktemp("portable"), frame()
    model = lightgbm.LGBMRegressor(n_estimators=5, min_data_per_group=5, verbose=-1, n_jobs=1)
    game = cortx.Game(model.fit(table, target(table)), reference=table.iloc[[0]], players={"look": ["colour", "size"]})
    trees = cortx.TreeExplainer(game, table)
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 3)), columns=["x", "y", "z"])
    network, constant = (
        cortx.CoRTX(make_tiny_recipe(10)).fit(cortx.Game(model, reference=rows), rows, budget=2_000)
        for model in (score, lambda rows: np.full(len(rows), 3.0))
    )
    for name, explainer in (("trees", trees), ("network", network), ("constant", constant)):
        explainer.save(folder / "saved" / f"{name}.cortx")
        explainer.to_onnx(folder / "portable" / f"{name}.portable")
    return folder


class Server(NamedTuple):
    app: App
    loop: asyncio.Runner


@pytest.fixture(scope="module")
def servers(folders: Path) -> Iterator[list[Server]]:
    """Of the saved explainers, and of the portable ones; each on a loop of its own."""
    made = []
    for kind in ("saved", "portable"):
        settings, log = Settings(), Log(io.StringIO())
        catalog = Catalog(sorted((folders / kind).iterdir()), {}, settings, log)
        made.append(Server(App(catalog, settings, log), asyncio.Runner()))
    yield made
    for server in made:
        server.app.catalog.close()
        server.loop.close()


def ask(server: Server, path: str, body: Any) -> tuple[int, Any]:
    async def main() -> tuple[int, Any]:
        transport = httpx.ASGITransport(server.app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await (client.get(path) if body is None else client.post(path, json=body))
            return answer.status_code, answer.json()

    return server.loop.run(main())


def near(found: Any, expected: Any) -> bool:
    """Whether two answers say the same, numbers to 1e-9."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(near(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(near, found, expected))
    if isinstance(expected, float):
        return bool(abs(found - expected) <= 1e-9 * max(1.0, abs(expected)))
    return bool(found == expected)


def both(servers: list[Server], path: str, body: Any) -> tuple[int, Any]:
    """The answer of the portable explainer, once it is known to be that of the saved one."""
    (status, expected), (same_status, found) = (ask(server, path, body) for server in servers)
    for answer in (expected, found):
        answer.pop("version", None)
    assert status == same_status
    assert near(found, expected), json.dumps([found, expected], indent=1)
    return same_status, found


def test_trees_are_answered_without_outputs_and_with_bounds_of_zero(servers: list[Server]) -> None:
    status, answer = both(servers, "/explain", {"model": "trees", "records": RECORDS})
    assert status == 200
    for item in answer["explanations"]:
        assert item["outputs_known"]
        assert item["confidence"] == 0.9
        assert item["error_bound"] == {"output": 0.0}
        for player, value in item["attributions"]["output"].items():
            assert item["bounds"]["output"][player] == [value, value]
        total = sum(item["attributions"]["output"].values()) + item["base_values"]["output"]
        assert abs(total - item["prediction"]["output"]) < 1e-9


@pytest.mark.parametrize(
    "body",
    [
        {"records": RECORDS, "confidence": 0.99, "top": 1},
        {"records": RECORDS, "confidence": None},
        {"records": RECORDS, "confidence": 1.5},
        {"records": RECORDS, "outputs": [1e3, 2e3]},
        {"records": [{**RECORDS[0], "colour": "purple"}]},
        {"records": [{**RECORDS[0], "age": "old"}]},
        {"records": [{"age": 1.0}]},
        {"records": []},
    ],
)
def test_wishes_and_refusals_are_the_same(servers: list[Server], body: dict[str, Any]) -> None:
    assert both(servers, "/explain", {"model": "trees", **body})[0] in (200, 400)


def test_other_protocols_and_the_description_are_the_same(servers: list[Server]) -> None:
    assert both(servers, "/v1/models/trees:explain", {"instances": RECORDS})[0] == 200
    tensors = [
        {"name": name, "shape": [1], "datatype": kind, "data": [value]}
        for name, kind, value in [("age", "FP64", 30.0), ("colour", "BYTES", "red"), ("size", "FP64", 0.5),
                                  ("kind", "BYTES", "a"), ("weight", "FP64", 1.0)]
    ]  # fmt: skip
    body = {"inputs": tensors}
    (status, expected), (_, found) = (ask(server, "/v2/models/trees/infer", body) for server in servers)
    assert status == 200
    assert near(found["outputs"], expected["outputs"])
    for name in ("trees", "network", "constant"):
        status, described = both(servers, f"/models/{name}", None)
        assert status == 200
    assert described["quality"]["relative_l2"] is None  # labels of zero have no relative error


def test_a_network_needs_outputs(servers: list[Server]) -> None:
    records = [{"x": 0.5, "y": 1.0, "z": -1.0}]
    assert both(servers, "/explain", {"model": "network", "records": records, "outputs": [-0.5]})[0] == 200
    status, answer = ask(servers[1], "/explain", {"model": "network", "records": records})
    assert status == 400
    assert "outputs" in json.dumps(answer)


def test_a_new_export_takes_over(folders: Path, tmp_path: Path) -> None:
    explainer = cortx.load(folders / "saved" / "trees.cortx")
    folder = explainer.to_onnx(tmp_path / "trees.portable")
    catalog = Catalog([folder], {}, Settings(), Log(io.StringIO()))
    entry = catalog.get("trees")
    before = entry.current.version
    catalog.look(entry, catalog.swap)
    assert entry.current.version == before
    explainer.to_onnx(folder)
    catalog.look(entry, catalog.swap)
    assert entry.current.version != before
    assert entry.failure is None
    catalog.close()


def test_models_audits_and_old_folders_are_refused(folders: Path, tmp_path: Path) -> None:
    folder = folders / "portable" / "trees.portable"
    assert served_name(folder) == "trees"
    with pytest.raises(InputError, match="leave --model out"):
        load_version("trees", folder, score, None, Settings())
    with pytest.raises(InputError, match="leave --audit out"):
        load_version("trees", folder, None, None, Settings(audit=0.1))
    facts = json.loads((folder / "explainer.json").read_text())
    (tmp_path / "explainer.onnx").write_bytes((folder / facts["graph"]["file"]).read_bytes())
    wrong = {**facts["shown"], "reference": [1.0]}
    for shown, told in ((None, "export it again"), (wrong, "damaged"), ({}, "damaged")):
        (tmp_path / "explainer.json").write_text(json.dumps({**facts, "shown": shown}))
        with pytest.raises(ArtifactError, match=told):
            load_version("trees", tmp_path, None, None, Settings())
