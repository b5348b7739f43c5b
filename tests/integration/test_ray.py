"""Ray itself: tasks, deaths and lost nodes, datasets, labels, and what Ray tells the world."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import make_model, make_tiny_recipe
from tests.engine_jobs import (
    Answers,
    CannotOpen,
    DieTogether,
    Squares,
    Unreadable,
    alive,
    attempts,
    makes_lambda,
    notes,
    pids,
    squares,
    tasks_of,
    thread_settings,
    until_error,
    wait_until,
)
from tests.guard import HANG

import cortx
from cortx.distributed.local import LocalEngine
from cortx.distributed.ray_engine import RayEngine, import_ray, ray_running
from cortx.distributed.work import MOST_DEATHS, Done, Job, Task
from cortx.errors import EngineError, InputError

pytest.importorskip("ray", reason="Ray is an extra")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.slow
ROOT = str(Path(__file__).resolve().parents[2])


# A Ray of our own ------------------------------------------------------------------------------------------------

SCRIPT = """
    import json, sys
    sys.path[:0] = [{root!r}]
    from cortx.distributed.ray_engine import RayEngine
    from tests.engine_jobs import Squares, squares, tasks_of

    if __name__ == "__main__":
        found, session = {{}}, None
        for done in RayEngine(workers=2).run(Squares({folder!r}), tasks_of(6)):
            import ray
            found |= squares([done])
            session = ray._private.worker._global_node.get_session_dir_path()
        print(json.dumps({{"squares": found, "session": session, "running": ray.is_initialized()}}))
"""


def run_alone(folder: Path, *before: str, **environment: str) -> dict[str, Any]:
    """Runs a few tasks on a Ray that the engine starts, in a process of its own."""
    path = folder / "driver.py"
    path.write_text(textwrap.dedent(SCRIPT).format(root=ROOT, folder=str(folder)))
    done = subprocess.run(
        [*before, sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=HANG,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["squares"] == {str(number): number * number for number in range(6)}
    assert not found["running"]
    assert wait_until(lambda: not any(alive(pid) for pid in pids(folder)))
    return dict(found)


class _Counting(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    do_GET = do_POST


def test_ray_starts_and_stops_with_the_run_and_reports_nothing(tmp_path: Path) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Counting)
    server.seen = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        found = run_alone(
            tmp_path,
            RAY_USAGE_STATS_REPORT_URL=f"http://127.0.0.1:{server.server_port}",
            RAY_USAGE_STATS_REPORT_INTERVAL_S="1",
            RAY_USAGE_STATS_ENABLED="1",  # a user's wish for all of Ray is not one for cortx
        )
    finally:
        server.shutdown()
        server.server_close()
    assert server.seen == []  # type: ignore[attr-defined]
    session = Path(found["session"])
    assert not list(session.rglob("usage_stats.json"))
    assert "Usage reporting is disabled" in (session / "logs" / "dashboard.log").read_text()


def test_ray_starts_offline(tmp_path: Path) -> None:
    cut_off = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip")
    if subprocess.run([*cut_off, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not cut a process off from the network")
    run_alone(tmp_path, *cut_off)


def test_an_address_where_nothing_is() -> None:
    with pytest.raises(EngineError, match=r"no Ray cluster to join at '127.0.0.1:9'.*ray start --head"):
        list(RayEngine(address="127.0.0.1:9").run(Answers(int), tasks_of(1)))
    with pytest.raises(EngineError, match=r"1000 GPUs"):
        list(RayEngine(workers=1, gpus_per_worker=1000).run(Answers(int), tasks_of(1)))
    assert not import_ray().is_initialized()
    assert list(RayEngine(address="127.0.0.1:9").run(Answers(int), [])) == []  # nothing to do needs nobody


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(InputError, match="workers"):
        RayEngine(workers=0)
    with pytest.raises(InputError, match="gpus_per_worker"):
        RayEngine(gpus_per_worker=-1)


# One node --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="class")
def one_node() -> Iterator[None]:
    with ray_running("local", 2):
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A small explainer in a folder, and a table with a column that it does not use."""
    rng = np.random.default_rng(0)
    table = pa.table({name: rng.normal(size=3000) for name in "abcdef"})
    game = cortx.Game(make_model(), reference=table, output="probability")
    folder = tmp_path_factory.mktemp("explainer") / "tiny.cortx"
    cortx.CoRTX(seed=0, recipe=make_tiny_recipe()).fit(game, table, n_labels=60).save(folder)
    return folder, table.append_column("id", pa.array([f"row {number}" for number in range(3000)]))


@pytest.mark.usefixtures("one_node")
class TestOneNode:
    def test_every_task_is_done_once_by_actors_that_live_long(self, tmp_path: Path) -> None:
        dones = list(RayEngine(workers=2).run(Squares(str(tmp_path), together=2), tasks_of(12)))
        assert squares(dones) == {number: number * number for number in range(12)}
        assert [attempts(tmp_path, number) for number in range(12)] == [1] * 12
        assert len(set(pids(tmp_path))) == len(pids(tmp_path)) == 2
        assert {done.result["pid"] for done in dones} == set(pids(tmp_path))
        assert wait_until(lambda: not any(alive(pid) for pid in pids(tmp_path)))
        assert import_ray().is_initialized()  # it was not ours to stop

    def test_each_actor_has_one_thread_and_functions_travel(self) -> None:
        assert [done.result for done in RayEngine(workers=1).run(Answers(thread_settings), tasks_of(1))] == ["1"]
        assert [done.result for done in RayEngine(workers=1).run(Answers(makes_lambda()), tasks_of(1))] == [1]
        with pytest.raises(EngineError, match=r"ModuleNotFoundError: No module named 'notebook_only'.*every node"):
            list(RayEngine(workers=1).run(Answers(Unreadable()), tasks_of(1)))  # type: ignore[arg-type]
        with pytest.raises(EngineError, match=r"cannot pickle.*by name"):
            list(RayEngine(workers=1).run(Answers(threading.Lock()), tasks_of(1)))  # type: ignore[arg-type]
        with pytest.raises(EngineError, match=r"batch 0: .*lock"):
            list(RayEngine(workers=1).run(Answers(threading.Lock), tasks_of(1)))

    def test_the_address_of_another_ray_is_refused(self) -> None:
        there = import_ray().get_runtime_context().gcs_address
        with pytest.raises(InputError, match=rf"'127.0.0.1:9', but this process has joined the Ray at '{there}'"):
            list(RayEngine(address="127.0.0.1:9").run(Answers(int), tasks_of(1)))
        for address in (there, "auto"):
            assert [done.result for done in RayEngine(address, workers=1).run(Answers(int), tasks_of(1))] == [0]

    def test_gpus_that_this_ray_does_not_have(self) -> None:
        engine = RayEngine(gpus_per_worker=1000)
        with pytest.raises(EngineError, match="wants 1000 GPUs, but Ray finds"):
            list(engine.run(Answers(int), tasks_of(1)))
        with pytest.raises(EngineError, match="wants 1000 GPUs, but Ray finds"):
            _ = engine.workers

    def test_an_error_of_whoever_makes_the_tasks_comes_after_what_is_being_done(self, tmp_path: Path) -> None:
        def tasks() -> Iterator[Task]:
            yield from tasks_of(6)
            raise FileNotFoundError("the table")

        found, error = until_error(RayEngine(workers=2).run(Squares(str(tmp_path), 0.3), tasks()))
        assert isinstance(error, FileNotFoundError)
        assert found
        assert {int(parts[1]) for parts in notes(tmp_path, "attempt")} == set(squares(found))

    def test_more_workers_than_there_is_room_for(self, tmp_path: Path) -> None:
        dones = RayEngine(workers=50).run(Squares(str(tmp_path)), tasks_of(60))
        assert squares(dones) == {number: number * number for number in range(60)}

    def test_an_actor_that_is_killed_costs_only_what_it_was_doing(self, tmp_path: Path) -> None:
        run = RayEngine(workers=2).run(Squares(str(tmp_path), 0.1), tasks_of(20))
        first = next(run)
        os.kill(first.result["pid"], signal.SIGKILL)
        assert squares([first, *run]) == {number: number * number for number in range(20)}
        assert sum(attempts(tmp_path, number) for number in range(20)) <= 21

    def test_a_task_that_kills_its_worker_now_and_then(self, tmp_path: Path) -> None:
        dones = RayEngine(workers=2).run(Squares(str(tmp_path)), tasks_of(10, dies_once=(2, 7)))
        assert squares(dones) == {number: number * number for number in range(10)}
        assert [attempts(tmp_path, number) for number in range(10)] == [1, 1, 2, 1, 1, 1, 1, 2, 1, 1]

    def test_a_task_that_no_worker_survives_ends_the_run(self, tmp_path: Path) -> None:
        found, error = until_error(RayEngine(workers=2).run(Squares(str(tmp_path)), tasks_of(8, dies=(3,))))
        assert isinstance(error, EngineError)
        assert str(error).startswith("batch 3: ")
        assert "worker process has died" in str(error)
        assert "actor_id" not in str(error)
        assert attempts(tmp_path, 3) == MOST_DEATHS
        assert set(squares(found)) <= set(range(8)) - {3}

    @pytest.mark.parametrize(
        ("trouble", "kind", "text"),
        [
            ("raises", EngineError, "batch 2: ZeroDivisionError: the model divided by zero"),
            ("refuses", InputError, "batch 2: column 'age' is missing"),
            ("starves", EngineError, "batch 2: the worker ran out of memory"),
        ],
    )
    def test_a_task_that_raises_ends_the_run(
        self, trouble: str, kind: type[Exception], text: str, tmp_path: Path
    ) -> None:
        found, error = until_error(RayEngine(workers=2).run(Squares(str(tmp_path)), tasks_of(40, **{trouble: (2,)})))
        assert type(error) is kind
        assert str(error).startswith(text)
        assert "make_trouble" in "".join(error.__notes__)
        # Whatever was begun was finished and yielded, but for the one that failed.
        assert {int(parts[1]) for parts in notes(tmp_path, "attempt")} == {2, *squares(found)}

    def test_a_job_that_cannot_be_opened(self) -> None:
        with pytest.raises(InputError, match="there is no such model"):
            list(RayEngine(workers=2).run(CannotOpen("input"), tasks_of(3)))
        with pytest.raises(EngineError, match="could not begin: KeyError: 'weights'"):
            list(RayEngine(workers=2).run(CannotOpen("other"), tasks_of(3)))
        with pytest.raises(EngineError, match=r"died before they could begin.*worker process has died"):
            list(RayEngine(workers=2).run(CannotOpen("death"), tasks_of(3)))

    def test_closing_a_run_kills_its_actors(self, tmp_path: Path) -> None:
        run = RayEngine(workers=2).run(Squares(str(tmp_path), 0.2, together=2), tasks_of(50))
        next(run)
        run.close()  # type: ignore[attr-defined]
        assert wait_until(lambda: not any(alive(pid) for pid in pids(tmp_path)))
        assert len(notes(tmp_path, "attempt")) < 10

    def test_a_dataset_is_explained_in_order(self, saved: tuple[Path, Any]) -> None:
        ray = import_ray()
        folder, table = saved
        expected = cortx.distributed.explain(folder, table, model=make_model())
        pieces = [table.slice(0, 700), table.slice(700, 0), table.slice(700, 10), table.slice(710)]
        dataset = ray.data.from_arrow(pieces)
        explained = cortx.ray.explain(dataset, folder, model=make_model(), concurrency=2, batch_rows=256)
        assert_same(table_of(explained), expected)
        assert not ray.data.DataContext.get_current().execution_options.preserve_order
        assert not dataset.context.execution_options.preserve_order
        assert explained.context.execution_options.preserve_order
        with pytest.raises(InputError, match="'a'"):
            cortx.ray.explain(dataset.drop_columns(["a"]), folder)
        with pytest.raises(InputError, match=r"expected a ray\.data\.Dataset"):
            cortx.ray.explain(table, folder)

    def test_a_row_that_cannot_be_explained_is_numbered_within_its_batch(self, saved: tuple[Path, Any]) -> None:
        folder, table = saved
        column = table.column("a").to_numpy().copy()
        column[301] = np.inf
        bad = table.set_column(table.schema.get_field_index("a"), "a", pa.array(column))
        explained = cortx.ray.explain(import_ray().data.from_arrow(bad), folder, concurrency=1, batch_rows=250)
        with pytest.raises(Exception, match=r"in a batch of 250 rows, whose first is row 0: .*'a', row 51"):
            explained.materialize()

    def test_a_dataset_of_pandas_frames(self, saved: tuple[Path, Any]) -> None:
        folder, table = saved
        frame = table.to_pandas()
        dataset = import_ray().data.from_pandas([frame[:1000], frame[1000:]])
        explained = cortx.ray.explain(dataset, folder, top=2)
        assert_same(table_of(explained), cortx.distributed.explain(folder, table, top=2))

    def test_a_folder_is_explained_as_by_the_local_engine(self, saved: tuple[Path, Any], tmp_path: Path) -> None:
        folder, table = saved
        (tmp_path / "rows").mkdir()
        for number in range(4):
            pq.write_table(table.slice(750 * number, 750), tmp_path / "rows" / f"{number}.parquet")
        for name, engine in (("local", LocalEngine(2)), ("ray", RayEngine(workers=2))):
            cortx.distributed.explain(folder, tmp_path / "rows", tmp_path / name, engine=engine)
        assert_same(pq.read_table(tmp_path / "ray"), pq.read_table(tmp_path / "local"))
        assert pq.read_table(tmp_path / "ray").column("id").equals(table.column("id"))

    def test_a_dataset_is_labelled_as_by_the_local_engine(self, saved: tuple[Path, Any], tmp_path: Path) -> None:
        table = saved[1].drop_columns(["id"])
        settings: dict[str, Any] = {"budget": 64 * 80, "rows": 80, "seed": 3, "frame": "numpy"}
        cortx.distributed.label(SCORE, table, tmp_path / "local", engine=LocalEngine(2), **settings)
        mixed = import_ray().data.from_arrow([table.slice(2000), table.slice(0, 500), table.slice(500, 1500)])
        cortx.ray.label(mixed, SCORE, tmp_path / "ray", **settings)
        assert_same_labels(tmp_path / "ray", tmp_path / "local")


SCORE = "tests.engine_jobs:score"
LABELS: dict[str, Any] = {"budget": 64 * 120, "rows": 120, "seed": 3, "frame": "numpy"}


def assert_same_labels(found: Path, expected: Path) -> None:
    """The same rows with the same labels at the same cost, in whatever order they were written."""
    one, other = (cortx.distributed.LabelFolder.open(folder).read() for folder in (found, expected))
    assert one.evaluations == other.evaluations
    for left, right in zip(sorted_labels(one), sorted_labels(other), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-9)


def sorted_labels(labels: cortx.Explanation) -> tuple[Any, Any]:
    rows = np.asarray(labels.data, dtype=np.float64)
    order = np.lexsort(rows.T)
    return rows[order], labels.values[order]


def table_of(dataset: Any) -> Any:
    return pa.concat_tables(dataset.iter_batches(batch_size=None, batch_format="pyarrow"))


def assert_same(found: Any, expected: Any) -> None:
    """The same columns and rows in the same order; numbers up to the rounding of floats."""
    assert found.schema.names == expected.schema.names
    assert found.num_rows == expected.num_rows
    for name in expected.schema.names:
        one, other = found.column(name).to_numpy(), expected.column(name).to_numpy()
        if other.dtype == object:
            assert one.tolist() == other.tolist(), name
        else:
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9, err_msg=name)


# Three nodes -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="class")
def cluster() -> Iterator[Any]:
    """Three simulated nodes with a processor each; the driver is at the first."""
    ray = import_ray()
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            made.add_node(num_cpus=1)
        made.wait_for_nodes()
        connect(made)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def connect(cluster: Any) -> None:
    import_ray().init(address=cluster.address, log_to_driver=False, logging_level="ERROR")


def restore(cluster: Any) -> None:
    """Three nodes again, where one was lost."""
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()


class LosesANode:
    """Takes a node away in the middle of a run, without asking."""

    name = "ray"

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.engine, self.lost = cluster, RayEngine(), False
        self.workers = self.engine.workers

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        for number, done in enumerate(self.engine.run(job, tasks)):
            if number == 8:
                self.cluster.remove_node(next(iter(self.cluster.worker_nodes)), allow_graceful=False)
                self.lost = True
            yield done


def slow_model() -> torch.nn.Module:
    """The model, slow enough for something to happen while it works."""

    class Slow(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            time.sleep(0.2)
            return rows

    return torch.nn.Sequential(Slow(), *make_model())


@pytest.fixture(scope="module")
def folders(saved: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the local engine makes of the table: explanations of `rows` in `explained`, labels in `labels`."""
    explainer, table = saved
    home = tmp_path_factory.mktemp("local")
    (home / "rows").mkdir()
    for number in range(24):
        pq.write_table(table.slice(125 * number, 125), home / "rows" / f"{number:02d}.parquet")
    engine = LocalEngine(0)
    cortx.distributed.explain(explainer, home / "rows", home / "explained", model=make_model(), engine=engine)
    cortx.distributed.label(SCORE, table.drop_columns(["id"]), home / "labels", engine=engine, **LABELS)
    return home


class TestThreeNodes:
    def test_a_cluster_is_joined_for_the_time_of_a_run(self, cluster: Any, tmp_path: Path) -> None:
        ray = import_ray()
        ray.shutdown()
        try:
            for address in (cluster.address, "auto"):
                engine = RayEngine(address=address)
                assert engine.workers == 3
                assert not ray.is_initialized()
                assert squares(engine.run(Squares(str(tmp_path)), tasks_of(6))) == {n: n * n for n in range(6)}
                assert not ray.is_initialized()
                assert cluster.remaining_processes_alive()
        finally:
            connect(cluster)

    def test_explanations_and_labels_are_the_same(
        self, cluster: Any, saved: tuple[Path, Any], folders: Path, tmp_path: Path
    ) -> None:
        explainer, table = saved
        engine = RayEngine()
        assert engine.workers == len(cluster.list_all_nodes()) == 3
        cortx.distributed.explain(explainer, folders / "rows", tmp_path / "ray", model=make_model(), engine=engine)
        assert_same(pq.read_table(tmp_path / "ray"), pq.read_table(folders / "explained"))
        cortx.distributed.label(SCORE, table.drop_columns(["id"]), tmp_path / "labels", engine=engine, **LABELS)
        assert_same_labels(tmp_path / "labels", folders / "labels")

    def test_actors_that_die_together_before_they_begin_are_one_misfortune(self, cluster: Any, tmp_path: Path) -> None:
        dones = RayEngine(workers=MOST_DEATHS).run(DieTogether(str(tmp_path), MOST_DEATHS), tasks_of(8))
        assert squares(dones) == {number: number * number for number in range(8)}
        assert len(pids(tmp_path)) > MOST_DEATHS

    def test_tasks_are_done_on_all_nodes_and_one_may_be_lost(self, cluster: Any, tmp_path: Path) -> None:
        engine = RayEngine()
        run = engine.run(Squares(str(tmp_path), 0.3, together=3), tasks_of(40))
        dones = [next(run)]
        assert engine.workers == 3
        dones += [next(run) for _ in range(8)]
        assert len({done.result["node"] for done in dones}) == 3
        lost = next(iter(cluster.worker_nodes))
        cluster.remove_node(lost, allow_graceful=False)
        dones += run
        assert squares(dones) == {number: number * number for number in range(40)}
        assert {done.result["node"] for done in dones[-10:]} < {done.result["node"] for done in dones}

    def test_explanations_are_the_same_when_a_node_is_lost(
        self, cluster: Any, saved: tuple[Path, Any], folders: Path, tmp_path: Path
    ) -> None:
        restore(cluster)
        engine = LosesANode(cluster)
        assert engine.workers == 3
        model = slow_model()
        report = cortx.distributed.explain(saved[0], folders / "rows", tmp_path / "ray", model=model, engine=engine)
        assert engine.lost
        assert report.files == 24
        assert_same(pq.read_table(tmp_path / "ray"), pq.read_table(folders / "explained"))

    def test_labels_are_the_same_when_a_node_is_lost(
        self, cluster: Any, saved: tuple[Path, Any], folders: Path, tmp_path: Path
    ) -> None:
        restore(cluster)
        table = saved[1].drop_columns(["id"])

        def lose_a_node() -> None:
            assert wait_until(lambda: bool(list((tmp_path / "ray").rglob("*.parquet"))))
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

        losing = threading.Thread(target=lose_a_node)
        losing.start()
        cortx.distributed.label(SCORE, table, tmp_path / "ray", engine=RayEngine(), **LABELS)
        losing.join()
        assert len(cluster.worker_nodes) == 1
        assert_same_labels(tmp_path / "ray", folders / "labels")
