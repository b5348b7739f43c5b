"""New versions in a folder: one that fails is told of without its values, and tried again."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_server_world import World

import cortx
from cortx.interfaces.server.catalog import Catalog, Entry, Version
from cortx.interfaces.server.logs import Log
from cortx.interfaces.server.settings import Settings


class Backend:
    """The world's model behind something that can be down."""

    def __init__(self, world: World) -> None:
        self.world, self.down = world, False

    def __call__(self, frame: Any) -> Any:
        if self.down:
            raise RuntimeError("no such customer: 4711")
        return self.world.module.model(frame)


def test_a_version_that_failed_is_tried_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    folder = shutil.copytree(world.artifact, tmp_path / "served.cortx")
    newer, model, stream = world.make("newer.cortx", seed=3), Backend(world), io.StringIO()
    catalog = Catalog([folder], {"served": model}, Settings(), Log(stream))
    entry = catalog.get("served")
    before, swapped = entry.current.version, list[str]()

    def swap(entry: Entry, new: Version) -> None:
        swapped.append(new.version)
        catalog.swap(entry, new)

    model.down = True
    cortx.load(newer).save(folder)
    catalog.look(entry, swap)
    assert (entry.current.version, swapped) == (before, [])
    assert entry.failure is not None
    model.down = False
    entry.retry_at = 0.0  # its time has come
    catalog.look(entry, swap)
    assert swapped == [entry.current.version]
    assert entry.current.version != before
    assert entry.failure is None
    catalog.look(entry, swap)
    assert len(swapped) == 1
    catalog.close()
    refused = [line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == "version_refused"]
    assert [line["error"] for line in refused] == ["FingerprintError"]
    assert "4711" not in stream.getvalue()


@pytest.mark.parametrize("damage", ["not json", '{"format": "other"}'])
def test_a_damaged_version_is_told_of_once_and_asked_for_more_and_more_rarely(tmp_path: Path, damage: str) -> None:
    world, stream = World(tmp_path), io.StringIO()
    catalog = Catalog([world.artifact], {"wine": world.module.model}, Settings(), Log(stream))
    entry = catalog.get("wine")
    (world.artifact / "manifest.json").write_text(damage, encoding="utf-8")
    pauses = []
    for _ in range(10):
        catalog.look(entry, lambda entry, new: pytest.fail("it was served"))
        pauses.append(entry.pause)
        entry.retry_at = 0.0
    catalog.close()
    assert pauses == sorted(pauses)
    assert pauses[-1] > 10 * pauses[0]
    refused = [line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == "version_refused"]
    assert len(refused) == 1
    assert "manifest.json" in refused[0]["text"] or "not a cortx explainer" in refused[0]["text"]
