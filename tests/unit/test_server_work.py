"""What a batch does: every request its own version's answer, and a failing model asked for nobody who has gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import orjson
import pytest
from tests.guard import HANG
from tests.integration.test_server_world import World

import cortx
from cortx.interfaces import server
from cortx.interfaces.server.catalog import Version, load_version
from cortx.interfaces.server.http import HttpError
from cortx.interfaces.server.metrics import Metrics
from cortx.interfaces.server.requests import read_explain
from cortx.interfaces.server.settings import Settings
from cortx.interfaces.server.work import Runner, Work


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


class Counting:
    """The world's model, and how it was asked."""

    def __init__(self, world: World) -> None:
        self.world, self.calls = world, list[int]()

    def __call__(self, frame: Any) -> Any:
        self.calls.append(len(frame))
        return self.world.module.model(frame)


def version_of(world: World, folder: Path, model: Any = None) -> Version:
    return load_version("wine", folder, model or world.module.model, None, Settings())


def work_of(version: Version, record: dict[str, Any], **changes: Any) -> Work:
    work = read_explain(version, {"records": [record]}, 10)
    for name, value in changes.items():
        setattr(work, name, value)
    return work


def answered(result: Any) -> Any:
    return orjson.loads(orjson.dumps(result))[0]


def runner(seen: list[str] | None = None) -> Runner:
    return Runner(lambda error, name: None if seen is None else seen.append(type(error).__name__), lambda count: None)


def check(explainer: cortx.CoRTX, world: World, records: Sequence[dict[str, Any]], answers: Sequence[Any]) -> None:
    """Numbers come from the library."""
    import pandas as pd

    frame = pd.DataFrame(list(records)).astype({"alcohol": float, "acid": float, "ash": float, "alkalinity": float})
    frame["bottles"] = frame["bottles"].astype(world.module.wines["bottles"].dtype)
    frame = frame[list(world.module.wines.columns)]
    expected = explainer.explain(frame, world.module.probabilities(frame)).values
    found = [[[answer["attributions"][str(k)][name] for k in range(3)] for name in frame.columns] for answer in answers]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_versions_that_meet_in_one_batch_answer_their_own(world: World) -> None:
    newer = world.make("other.cortx", seed=5)
    versions = [version_of(world, world.artifact), version_of(world, newer)]
    records = [world.record(i, alcohol=12 + i / 10) for i in range(12)]
    works = [work_of(versions[i % 2], record) for i, record in enumerate(records)]
    answers = [answered(result) for result in runner()(works)]
    for k, folder in enumerate((world.artifact, newer)):
        check(cortx.load(folder), world, records[k::2], answers[k::2])


def test_only_those_fail_for_whom_the_model_does(world: World) -> None:
    model, seen = Counting(world), list[str]()
    version = version_of(world, world.artifact, model)
    records = [world.record(i, alcohol=world.module.FAILS if i == 37 else 12 + i / 50) for i in range(64)]
    model.calls.clear()
    results = runner(seen)([work_of(version, record) for record in records])
    assert [i for i, result in enumerate(results) if isinstance(result, HttpError)] == [37]
    assert results[37].status == 500
    assert len(seen) == 1
    good = [i for i in range(64) if i != 37]
    check(cortx.load(world.artifact), world, [records[i] for i in good], [answered(results[i]) for i in good])
    assert len(model.calls) == 2 * 6 + 1  # halves: log2(64) times two, and all at once


def test_nobody_who_has_gone_is_asked_for_again(world: World) -> None:
    model = Counting(world)
    version = version_of(world, world.artifact, model)
    bad = world.record(0, alcohol=world.module.FAILS)
    gone = [work_of(version, bad, until=monotonic() - 1) for _ in range(50)]
    works = [*gone, work_of(version, world.record(3))]
    model.calls.clear()
    results = runner()(works)
    assert [result.status for result in results[:50]] == [504] * 50
    check(cortx.load(world.artifact), world, [world.record(3)], [answered(results[50])])
    assert model.calls == [51, 1]


def test_an_answer_that_is_no_number_is_refused(world: World) -> None:
    version = version_of(world, world.artifact)
    works = [
        work_of(version, world.record(0), outputs=np.array([[1e300, 0.0, 0.0]])),
        work_of(version, world.record(1)),
    ]
    first, second = runner()(works)
    assert isinstance(first, HttpError)
    assert first.status == 500
    check(cortx.load(world.artifact), world, [world.record(1)], [answered(second)])


def test_what_may_run_where_requests_are_read(world: World) -> None:
    """A function may wait for anything; with the outputs given, or no model, nothing foreign is run."""
    version = version_of(world, world.artifact)
    assert not work_of(version, world.record(0)).computes
    assert work_of(version, world.record(0), outputs=np.zeros((1, 3))).computes
    assert work_of(load_version("wine", world.artifact, None, None, Settings()), world.record(0)).computes


def test_rows_that_do_not_want_to_be_audited_are_not(world: World) -> None:
    version = load_version("wine", world.artifact, world.module.model, None, Settings(audit=1.0, audit_cpu=1.0))
    try:
        works = [work_of(version, world.record(i), audited=i % 2 == 0) for i in range(8)]
        runner()(works)
        assert version.auditor.wait(HANG)
        assert version.audit_state()["audited"] == 4  # type: ignore[index]
        runner()(works)  # the same rows again are as many requests
        assert version.auditor.wait(HANG)
        assert version.audit_state()["audited"] == 8  # type: ignore[index]
    finally:
        version.close()


def test_the_audit_of_an_uncalibrated_explainer_reports_only(world: World, tmp_path: Path) -> None:
    explainer = cortx.load(world.artifact, world.module.model)
    explainer._attach(replace(explainer.fitted, calibration=None), explainer.game)
    folder = explainer.save(tmp_path / "plain.cortx")
    version = load_version("wine", folder, world.module.model, None, Settings(audit=1.0, audit_cpu=1.0))
    try:
        runner()([work_of(version, world.record(i)) for i in range(8)])
        assert version.auditor.wait(HANG)
        state = version.audit_state()
        assert state is not None
        assert (state["state"], state["audited"], state["judged"]) == ("reports", 8, 0)
        assert "raise no alarm" in state["message"]
        text = Metrics(lambda: {"wine": state}).text().decode()
    finally:
        version.close()
    assert 'cortx_audit_reports_only{model="wine"} 1.0' in text
    assert 'cortx_audit_alarm{model="wine"} 0.0' in text
    assert 'cortx_audit_audited{model="wine"} 8.0' in text


def test_the_page_has_a_word_and_a_colour_for_every_state_of_the_audit() -> None:
    page = Path(server.__file__).parent / "page"
    words, colours = ((page / name).read_text(encoding="utf-8") for name in ("quality.js", "style.css"))
    for state, word in (("waiting", "Waiting"), ("good", "Good"), ("reports", "Reports only"), ("alarm", "Alarm")):
        assert f'{state}: "{word}"' in words
        assert f".dot-{state}" in colours


def test_a_model_that_leaves_its_trees_is_not_blamed_on_the_client(tmp_path: Path) -> None:
    """Outputs that a request brings are the client's; those that the served model gives are a failure of ours."""
    from sklearn.ensemble import RandomForestRegressor

    rows = np.random.default_rng(0).normal(size=(80, 3))
    forest = RandomForestRegressor(5, max_depth=3, random_state=0).fit(rows, rows[:, 0] * rows[:, 1])
    cortx.TreeExplainer(cortx.Game(forest, reference=rows), rows).save(tmp_path / "trees.cortx")
    shift = 0.0

    def served(table: Any) -> Any:
        return forest.predict(np.asarray(table)) + shift

    version = load_version("trees", tmp_path / "trees.cortx", served, None, Settings())
    record = dict(zip(("x0", "x1", "x2"), rows[0].tolist(), strict=True))
    seen: list[str] = []
    (answer,) = runner(seen)([work_of(version, record, outputs=np.array([[9.0]]))])
    assert isinstance(answer, HttpError)
    assert (answer.status, seen) == (400, [])
    shift = 9.0
    (answer,) = runner(seen)([work_of(version, record)])
    assert isinstance(answer, HttpError)
    assert (answer.status, seen) == (500, ["OtherOutputs"])
