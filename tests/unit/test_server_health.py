"""Readiness and liveness: which fails when, told by the routes themselves without a server around them."""

from __future__ import annotations

import asyncio
import io
import shutil
from collections.abc import Iterator

import httpx
import pytest
from tests.integration.test_server_world import World

from cortx.interfaces.server import serve
from cortx.interfaces.server.app import App
from cortx.interfaces.server.catalog import Catalog
from cortx.interfaces.server.logs import Log
from cortx.interfaces.server.settings import Settings

HEALTH = ("/v2/health/ready", "/v2/models/wine/ready", "/v2/models/other/ready", "/v2/health/live")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    world = World(tmp_path_factory.mktemp("health"))
    other = shutil.copytree(world.artifact, world.folder / "other.cortx")
    settings, log = Settings(stall=10), Log(io.StringIO())
    models = {"wine": world.module.model, "other": world.module.model}
    catalog = Catalog([world.artifact, other], models, settings, log)
    yield App(catalog, settings, log)
    catalog.close()


def client_of(app: App) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")  # type: ignore[arg-type]


def health(app: App, wine_busy: float = 0.0) -> list[int]:
    """The statuses of `HEALTH` while the batch of "wine" has been running for so many seconds."""

    async def main() -> list[int]:
        batcher = app.catalog.get("wine").batcher
        batcher._loop = asyncio.get_running_loop()
        batcher._since = batcher._loop.time() - wine_busy if wine_busy else float("inf")
        async with client_of(app) as client:
            statuses = [(await client.get(path)).status_code for path in HEALTH]
            assert (await client.get("/v1/models/wine")).status_code == statuses[1]
            return statuses

    return asyncio.run(main())


def test_readiness_fails_before_liveness_and_both_recover(app: App) -> None:
    assert health(app, 5) == [200, 200, 200, 200]
    assert health(app, 15) == [503, 503, 200, 200], "not ready, but no reason for a restart yet"
    assert health(app, 25) == [503, 503, 200, 503]
    assert health(app) == [200, 200, 200, 200]


def test_a_stopping_server_lives_and_is_not_ready(app: App) -> None:
    app.draining = True
    try:
        assert health(app) == [503, 503, 503, 200]
    finally:
        app.draining = False


def test_a_batch_may_take_longer_than_its_deadline_before_it_counts_as_hung() -> None:
    usual = Settings()
    assert usual.deadline < usual.stall_seconds < usual.dead_seconds
    patient = Settings(deadline=300)
    assert patient.deadline < patient.stall_seconds < patient.dead_seconds
    assert Settings(stall=7).stall_seconds == 7


def test_a_stop_fits_into_the_half_minute_that_kubernetes_gives() -> None:
    usual = Settings()
    stages = (usual.linger, usual.drain_seconds, serve.MOST_QUIET_SECONDS, serve.LAST_SECONDS)
    assert sum(stages) < 30
    assert usual.linger > 0
