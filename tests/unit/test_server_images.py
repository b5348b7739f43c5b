"""An artifact of images, served: nested numbers in, a number for each part out."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.unit.test_image_explainer import BUDGET, function, tiny

import cortx
from cortx.interfaces.server.app import App
from cortx.interfaces.server.catalog import Catalog
from cortx.interfaces.server.logs import Log
from cortx.interfaces.server.settings import Settings
from cortx.paper.cifar10 import load_digits_images


def ask(app: App, requests: list[tuple[str, str, Any]]) -> list[httpx.Response]:
    async def main() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.request(method, path, json=body) for method, path, body in requests]

    return asyncio.run(main())


@pytest.mark.slow
def test_images(tmp_path: Path) -> None:
    pixels = (load_digits_images()[0][:130] * 255).round().astype(np.uint8)
    game = cortx.Game(function, "zero", output="probability", target="all", players=cortx.Patches(4))
    explainer = cortx.CoRTX(tiny(), seed=0).fit(game, pixels, budget=BUDGET, progress=False)
    folder = explainer.save(tmp_path / "digits.cortx")
    settings = Settings()
    app = App(Catalog([folder], {"digits": function}, settings, Log(io.StringIO())), settings, Log(io.StringIO()))
    shape = pixels.shape[1:]
    listed = (pixels[:3] if len(shape) == 2 else np.moveaxis(pixels[:3], 1, -1)).tolist()
    about, answer, wrong, tensors = ask(app, [
        ("GET", "/models/digits", None),
        ("POST", "/explain", {"images": listed, "confidence": None, "top": 2}),
        ("POST", "/explain", {"images": [[[1, 2], [3]]]}),
        ("POST", "/v2/models/digits/infer", {
            "inputs": [{"name": "images", "datatype": "UINT8", "shape": list(np.shape(listed)), "data": listed}],
            "outputs": [{"name": "values"}],
        }),
    ])  # fmt: skip
    assert about.json()["kind"] == "image"
    assert about.json()["image"]["grid"] == [2, 2]
    assert about.json()["image"]["height"] == 8
    assert wrong.status_code == 400
    expected = cortx.load(folder, function).explain(pixels[:3])
    names = list(answer.json()["explanations"][0]["attributions"])
    for i, item in enumerate(answer.json()["explanations"]):
        found = np.array([item["attributions"][name] for name in names]).T
        np.testing.assert_allclose(found, expected.values[i], atol=1e-6)
        for k, name in enumerate(names):
            total = item["base_values"][name] + sum(item["attributions"][name])
            assert total == pytest.approx(item["prediction"][name], abs=1e-5)
            assert item["prediction"][name] == pytest.approx(
                function(pixels[i : i + 1] / np.float32(255))[0, k], abs=1e-5
            )
        assert len(item["reasons"]) == 2
    values = tensors.json()["outputs"][0]
    np.testing.assert_allclose(np.reshape(values["data"], values["shape"]), expected.values, atol=1e-6)
