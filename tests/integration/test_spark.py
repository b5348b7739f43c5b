"""Spark, in real sessions: two executors that are killed at work, errors that name their task, and nobody called."""

from __future__ import annotations

import datetime
import decimal
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import make_tiny_recipe
from tests.engine_jobs import (
    Answers,
    CannotOpen,
    Squares,
    attempts,
    notes,
    pids,
    squares,
    tasks_of,
    torch_threads,
    until_error,
)
from tests.guard import HANG

import cortx
from cortx.distributed.explaining import explain as explain_folder
from cortx.distributed.local import LocalEngine
from cortx.distributed.spark_engine import SparkEngine, start_session
from cortx.distributed.work import Done, Job, NamedModel, Task
from cortx.errors import EngineError, InputError
from cortx.explainer.label_folder import LabelFolder, priorities
from cortx.spark import DataFrameSource
from cortx.tables import read_table

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pyspark = pytest.importorskip("pyspark")

REPOSITORY = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, and there is no `java` on the PATH"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
SCORING = """
import time

import numpy as np


def model(frame):
    age, income = np.asarray(frame["age.years"], dtype=float), np.asarray(frame["income"], dtype=float)
    female = np.asarray(frame["sex:code"]) == "f"
    return 1 / (1 + np.exp(-(age / 10 * np.where(female, 1, -1) + income / 5)))


def slow(frame):
    time.sleep(0.25)
    return model(frame)
"""
FEATURES = ["age.years", "sex:code", "income"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Spark's home in a temporary folder: a local cluster keeps the folders of its executors there."""
    folder = tmp_path_factory.mktemp("spark")
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":
            (folder / part.name).symlink_to(part)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(folder))
        patch.setenv("PYTHONPATH", str(REPOSITORY))  # for tests.engine_jobs
        yield folder


@pytest.fixture(scope="module")
def spark(home: Path) -> Iterator[Any]:
    session = start_session("local-cluster[2,1,1024]")
    yield session
    session.stop()
    end_java()


def end_java() -> None:
    """Ends the JVM that PySpark keeps for the next session."""
    context = pyspark.SparkContext
    gateway = context._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(HANG)
    context._gateway = context._jvm = None


def executors(session: Any) -> list[int]:
    """The processes of the executors."""
    return processes("CoarseGrainedExecutorBackend", session.sparkContext.applicationId)


def processes(*words: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if all(word in command for word in words):
            found.append(int(folder.name))
    return sorted(found)


class KillsAnExecutor:
    """Kills one of the executors when the second task is finished."""

    name = "spark"

    def __init__(self, session: Any) -> None:
        self.session, self.engine, self.killed = session, SparkEngine(session), 0
        self.workers = self.engine.workers

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        for number, done in enumerate(self.engine.run(job, tasks)):
            if number == 1:
                self.killed = executors(self.session)[0]
                os.kill(self.killed, signal.SIGKILL)
            yield done


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "scoring_on_spark.py").write_text(SCORING)
    return folder


@pytest.fixture(scope="module")
def table() -> Any:
    rng, n = np.random.default_rng(0), 1200
    start = datetime.datetime(2024, 2, 28, 23, tzinfo=datetime.UTC)
    return pa.table(
        {
            "id": np.arange(n),
            "age.years": rng.normal(size=n) * 10,
            "sex:code": rng.choice(["f", "m"], n).tolist(),
            "income": rng.normal(size=n),
            "when": pa.array([start + datetime.timedelta(hours=i) for i in range(n)], pa.timestamp("us", "UTC")),
            "money": pa.array([decimal.Decimal(i).scaleb(-2) for i in range(n)], pa.decimal128(10, 2)),
            "note": pa.array([None if i % 3 else "ü" * (i % 7) for i in range(n)], pa.string()),
            "tags": pa.array([[str(i)] * (i % 3) for i in range(n)], pa.list_(pa.string())),
            "place": pa.array([{"x.y": i} for i in range(n)]),
        }
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, scoring: Path, table: Any) -> Path:
    model = NamedModel("scoring_on_spark:model", folder=str(scoring)).load()
    frame = table.select(FEATURES).to_pandas()
    game = cortx.Game(model, reference=frame)
    folder = tmp_path_factory.mktemp("explainer") / "credit.cortx"
    cortx.CoRTX(make_tiny_recipe()).fit(game, frame, budget=6_000).save(folder)
    return folder


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory, table: Any) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for part in range(10):
        pq.write_table(table.slice(120 * part, 120), folder / f"part-{part}.parquet")
    return folder


def rows_of(folder: Path) -> dict[str, Any]:
    """The files of a folder as its readers see it: what a killed writer left is hidden by its name."""
    return {path.name: pq.read_table(path) for path in sorted(folder.glob("[!.]*.parquet"))}


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for name, one in ours.items():
        assert one.schema.equals(theirs[name].schema)
        for column in one.column_names:
            if pa.types.is_floating(one.schema.field(column).type):
                np.testing.assert_allclose(one[column].to_numpy(), theirs[name][column].to_numpy(), rtol=1e-6)
            else:
                assert one[column].equals(theirs[name][column])


# DataFrames -------------------------------------------------------------------------------------------------------


def test_a_dataframe_is_explained_as_its_rows_are_locally(spark: Any, saved: Path, table: Any) -> None:
    df = spark.createDataFrame(table).repartition(5)
    explained = cortx.spark.explain(df, saved)
    assert explained.schema.fields[: len(df.columns)] == df.schema.fields
    found = explained.toArrow().sort_by("id")
    local = cortx.load(saved).explain(table.select(FEATURES))
    values = np.stack([found[f"attribution_{name}"].to_numpy() for name in FEATURES], axis=1)
    np.testing.assert_allclose(values, local.values, rtol=1e-6)
    np.testing.assert_allclose(found["base_value"].to_numpy(), local.base_values, rtol=1e-6)
    came = df.toArrow().sort_by("id")
    for name in table.column_names:
        assert found[name].equals(came[name]), name


def test_the_model_travels_by_name_or_as_it_is(spark: Any, saved: Path, scoring: Path, table: Any) -> None:
    named = NamedModel("scoring_on_spark:model", folder=str(scoring))
    df = spark.createDataFrame(table.select(["id", *FEATURES])).repartition(3)
    model = named.load()
    for given in (named, lambda frame: model(frame)):
        found = cortx.spark.explain(df, saved, model=given, confidence=0.9).toArrow().sort_by("id")
        outputs = model(table.select(FEATURES).to_pandas())
        np.testing.assert_allclose(found["model_output"].to_numpy(), outputs, rtol=1e-6)
        total = sum(found[f"attribution_{name}"].to_numpy() for name in FEATURES) + found["base_value"].to_numpy()
        np.testing.assert_allclose(total, outputs, atol=1e-5)
        assert np.all(found["lower_income"].to_numpy() <= found["upper_income"].to_numpy())
    strongest = cortx.spark.explain(df, saved, top=1).toArrow()
    assert set(strongest["feature_1"].to_pylist()) <= set(FEATURES)


def test_the_explainer_travels(spark: Any, saved: Path, table: Any, tmp_path: Path) -> None:
    df = spark.createDataFrame(table.select(["id", *FEATURES])).repartition(4)
    elsewhere = tmp_path / "driver-only.cortx"
    shutil.copytree(saved, elsewhere)
    explained = cortx.spark.explain(df, elsewhere)
    shutil.rmtree(elsewhere)
    assert explained.toArrow().num_rows == table.num_rows


def test_what_cannot_be_explained_is_said_at_once(spark: Any, saved: Path, table: Any) -> None:
    df = spark.createDataFrame(table.select(["id", *FEATURES]))
    with pytest.raises(InputError, match="lacks the column 'income'"):
        cortx.spark.explain(df.drop("income"), saved)
    with pytest.raises(InputError, match="expected a Spark DataFrame"):
        cortx.spark.explain(table, saved)
    with pytest.raises(InputError, match="'base_value'"):
        cortx.spark.explain(cortx.spark.explain(df, saved), saved)
    infinite = table.select(["id", *FEATURES]).to_pylist()
    infinite[3]["income"] = float("inf")
    bad = cortx.spark.explain(spark.createDataFrame(pa.Table.from_pylist(infinite)).coalesce(1), saved)
    with pytest.raises(pyspark.errors.PythonException, match=r"partition 0: .*'income', row 3"):
        bad.toArrow()


# Tasks ------------------------------------------------------------------------------------------------------------


def test_tasks_come_back_as_they_are_finished_from_workers_that_opened_once(spark: Any, tmp_path: Path) -> None:
    job = Squares(str(tmp_path), seconds=0.2, together=2)
    seen, begun = {}, []
    for done in SparkEngine(spark).run(job, iter(tasks_of(12))):
        seen |= squares([done])
        begun.append(len(notes(tmp_path, "attempt")))
    assert seen == {number: number**2 for number in range(12)}
    assert begun[0] < 12  # some had not been begun when the first came back
    assert len(pids(tmp_path)) == len(set(pids(tmp_path))) == 2


def test_one_thread_each(spark: Any) -> None:
    (done,) = SparkEngine(spark).run(Answers(torch_threads), tasks_of(1))
    assert done.result == 1


def test_no_more_tasks_at_a_time_than_workers(spark: Any, tmp_path: Path) -> None:
    engine = SparkEngine(spark, workers=1)
    assert engine.workers == 1
    started = []
    for done in engine.run(Squares(str(tmp_path)), tasks_of(4)):
        started.append(len(notes(tmp_path, "attempt")))
        assert done.result["number"] == len(started) - 1
    assert started == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("trouble", "kind", "words"),
    [
        ("refuses", InputError, "batch 3: column 'age' is missing"),
        ("raises", EngineError, "batch 3: ZeroDivisionError: the model divided by zero"),
        ("starves", EngineError, "batch 3: the worker ran out of memory"),
    ],
)
def test_a_task_that_raises_ends_the_run(spark: Any, tmp_path: Path, trouble: str, kind: type, words: str) -> None:
    finished: list[Done] = []
    run = SparkEngine(spark).run(Squares(str(tmp_path), seconds=0.1), tasks_of(30, **{trouble: (3,)}))
    with pytest.raises(kind, match=re.escape(words)):
        finished.extend(run)
    begun = {int(number) for _, number, _ in notes(tmp_path, "attempt")}
    assert begun == {*squares(finished), 3}  # what was under way is finished, and told
    assert {0, 1, 2} <= begun < set(range(30))
    assert attempts(tmp_path, 3) == 1


def test_a_job_that_cannot_be_opened(spark: Any) -> None:
    with pytest.raises(InputError, match="there is no such model"):
        list(SparkEngine(spark).run(CannotOpen("input"), tasks_of(2)))
    with pytest.raises(EngineError, match="could not begin: KeyError"):
        list(SparkEngine(spark).run(CannotOpen("other"), tasks_of(2)))


def test_a_model_that_cannot_travel(spark: Any) -> None:
    with pytest.raises(EngineError, match=r"cannot travel to Spark's executors .*give the model by name"):
        list(SparkEngine(spark).run(Answers(threading.Lock().locked), tasks_of(1)))


def test_a_worker_that_dies_once_costs_only_its_task(spark: Any, tmp_path: Path) -> None:
    found = squares(SparkEngine(spark).run(Squares(str(tmp_path)), tasks_of(8, dies_once=(2, 5))))
    assert found == {number: number**2 for number in range(8)}
    assert [attempts(tmp_path, number) for number in range(8)] == [1, 1, 2, 1, 1, 2, 1, 1]


def test_a_task_that_no_worker_survives_is_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"batch 1: \d+ workers died at it.*exited unexpectedly") as raised:
        list(SparkEngine(spark).run(Squares(str(tmp_path)), tasks_of(3, dies=(1,))))
    assert f" {attempts(tmp_path, 1)} workers died" in str(raised.value)
    assert attempts(tmp_path, 0) == attempts(tmp_path, 2) == 1


def test_an_error_of_whoever_makes_the_tasks_comes_after_what_is_being_done(spark: Any, tmp_path: Path) -> None:
    def tasks() -> Iterator[Task]:
        yield from tasks_of(2, seconds={1: 1.0})
        raise FileNotFoundError("the table")

    found, error = until_error(SparkEngine(spark).run(Squares(str(tmp_path)), tasks()))
    assert isinstance(error, FileNotFoundError)
    assert squares(found) == {0: 0, 1: 1}


def test_a_run_that_is_left_cancels_what_is_under_way(spark: Any, tmp_path: Path) -> None:
    run = SparkEngine(spark).run(Squares(str(tmp_path), seconds=0.5), tasks_of(40))
    next(run)
    run.close()
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    assert len(notes(tmp_path, "attempt")) < 40


def test_an_executor_is_killed_in_the_middle(spark: Any, tmp_path: Path) -> None:
    engine = KillsAnExecutor(spark)
    found = squares(engine.run(Squares(str(tmp_path), seconds=0.3), tasks_of(16)))
    assert found == {number: number**2 for number in range(16)}
    assert engine.killed
    assert engine.killed not in executors(spark)


# Folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_is_explained_as_the_local_engine_does(spark: Any, saved: Path, parquet: Path, tmp_path: Path) -> None:
    explain_folder(saved, parquet, tmp_path / "local", engine=LocalEngine(workers=0), progress=False)
    report = explain_folder(saved, parquet, tmp_path / "spark", engine=SparkEngine(spark), progress=False)
    assert report.rows == 1200
    assert_same(rows_of(tmp_path / "spark"), rows_of(tmp_path / "local"))


def test_an_executor_is_killed_in_the_middle_of_explaining(
    spark: Any, saved: Path, scoring: Path, parquet: Path, tmp_path: Path
) -> None:
    slow, fast = (NamedModel(f"scoring_on_spark:{name}", folder=str(scoring)) for name in ("slow", "model"))
    explain_folder(saved, parquet, tmp_path / "local", model=fast, engine=LocalEngine(workers=0), progress=False)
    engine = KillsAnExecutor(spark)
    report = explain_folder(saved, parquet, tmp_path / "spark", model=slow, engine=engine, progress=False)
    assert engine.killed
    assert report.files == 10
    assert_same(rows_of(tmp_path / "spark"), rows_of(tmp_path / "local"))


# Labels -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local_labels(tmp_path_factory: pytest.TempPathFactory, scoring: Path, table: Any) -> Any:
    model = NamedModel("scoring_on_spark:model", folder=str(scoring))
    folder = tmp_path_factory.mktemp("labels") / "local"
    engine = LocalEngine(workers=0)
    cortx.distributed.label(model, table.select(FEATURES), folder, **LABELS, engine=engine, progress=False)
    return labels_of(folder)


LABELS: dict[str, Any] = {"budget": 600, "rows": 60, "seed": 5, "frame": "pandas"}


def labels_of(folder: Path) -> Any:
    """Values in the order of their priority; evaluations in that of their content."""
    store = LabelFolder.open(folder)
    return store.read().values, store.spent().evaluations


@pytest.mark.parametrize("partitions", [1, 7])
def test_labels_of_a_dataframe_are_those_of_the_local_engine(
    spark: Any, scoring: Path, table: Any, local_labels: Any, tmp_path: Path, partitions: int
) -> None:
    model = NamedModel("scoring_on_spark:model", folder=str(scoring))
    df = spark.createDataFrame(table).orderBy("income").repartition(partitions)
    report = cortx.spark.label(df, model, tmp_path / "spark", **LABELS, columns=FEATURES, progress=False)
    assert report.rows == 60
    values, evaluations = labels_of(tmp_path / "spark")
    np.testing.assert_allclose(values, local_labels[0], rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(evaluations, local_labels[1])


def test_an_executor_is_killed_in_the_middle_of_labelling(
    spark: Any, scoring: Path, table: Any, local_labels: Any, tmp_path: Path
) -> None:
    slow = NamedModel("scoring_on_spark:slow", folder=str(scoring))
    engine, df = KillsAnExecutor(spark), spark.createDataFrame(table)
    cortx.spark.label(df, slow, tmp_path / "spark", **LABELS, columns=FEATURES, engine=engine, progress=False)
    assert engine.killed
    values, evaluations = labels_of(tmp_path / "spark")
    np.testing.assert_allclose(values, local_labels[0], rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(evaluations, local_labels[1])


def test_a_dataframe_as_a_stream(spark: Any, table: Any) -> None:
    source = DataFrameSource(spark.createDataFrame(table).repartition(3))
    assert source.n_rows == table.num_rows
    assert source.schema.names == table.column_names
    batches = list(source.batches(["income", "age.years"], batch_rows=100))
    assert max(map(len, batches)) <= 100
    found = pa.Table.from_batches(batches).sort_by("income")
    assert found.equals(table.select(["income", "age.years"]).sort_by("income"))
    with pytest.raises(InputError, match="lacks the column 'nothing'"):
        next(source.batches(["nothing"]))


@pytest.mark.parametrize("repeats", [1, 40])
def test_the_first_rows_by_priority_are_found_where_they_lie(spark: Any, table: Any, repeats: int) -> None:
    """Also where most rows are equal, so that a first guess sends too few different ones."""
    different = table.select(FEATURES).slice(0, table.num_rows // repeats)
    df = spark.createDataFrame(pa.concat_tables([different] * repeats)).repartition(4)
    every = priorities(read_table(different).row_words(), 3)
    for count in (5, len(different) + 1):
        sent = pa.Table.from_batches(DataFrameSource(df).first_rows(FEATURES, count, 3))
        came = priorities(read_table(sent).row_words(), 3)
        assert set(np.sort(every)[:count]) <= set(came)
        assert count > len(different) or len(sent) < df.count()


# The session ------------------------------------------------------------------------------------------------------


def test_nobody_but_this_machine_is_called(spark: Any) -> None:
    list(SparkEngine(spark).run(Answers(torch_threads), tasks_of(2)))
    java = processes("org.apache.spark.deploy.SparkSubmit", "pyspark-shell")
    assert java
    addresses = set[str]()
    for pid in [*java, *executors(spark)]:
        addresses |= peers(pid)
    assert addresses
    assert {address for address in addresses if not address.startswith("127.")} == set()


def peers(pid: int) -> set[str]:
    """The addresses at the other end of a process's TCP connections, and those it listens at."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            link = os.readlink(descriptor)
        except OSError:
            continue
        inodes |= set(re.findall(r"^socket:\[(\d+)\]$", link))
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            _, local, remote, state = line.split()[:4]
            if line.split()[9] in inodes:
                listens = state == "0A"
                found.add(readable((local if listens else remote).split(":")[0]))
    return found


def readable(address: str) -> str:
    """An address as the kernel writes it (words of hexadecimal digits, little-endian); IPv4 also in IPv6's clothes."""
    packed = b"".join(bytes.fromhex(address[start : start + 8])[::-1] for start in range(0, len(address), 8))
    return socket.inet_ntoa(packed[-4:]) if packed[:-4] in (b"", b"\0" * 10 + b"\xff\xff") else packed.hex()


def test_a_master_beside_a_session_is_refused(spark: Any) -> None:
    with pytest.raises(InputError, match="not both"):
        SparkEngine(spark, master="local[1]")
    with pytest.raises(InputError, match="has a Spark session at 'local-cluster"):
        list(SparkEngine(master="local[1]").run(Answers(torch_threads), tasks_of(1)))
    assert len(list(SparkEngine().run(Answers(torch_threads), tasks_of(1)))) == 1  # the session that is there


OWN = """
import sys

from cortx.distributed.spark_engine import SparkEngine
from tests.engine_jobs import Squares, squares, tasks_of
import pyspark

if "lo" in sys.argv:  # a new network has not even a loopback device that is up
    import fcntl, socket, struct
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))

if __name__ == "__main__":
    print(sorted(squares(SparkEngine(workers=2).run(Squares(sys.argv[1]), tasks_of(4, dies_once=(2,))))))
    assert pyspark.SparkContext._active_spark_context is None
"""


def run_alone(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command], capture_output=True, text=True, timeout=HANG, cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
    )  # fmt: skip


def test_an_engine_of_its_own_starts_without_a_network_and_stops(tmp_path: Path) -> None:
    alone = [] if run_alone("unshare", "-rn", "true").returncode else ["unshare", "-rn"]
    if not alone:
        pytest.skip("a network namespace needs rights that this user lacks")
    ended = run_alone(*alone, sys.executable, "-c", OWN, str(tmp_path), "lo")
    assert ended.stdout.strip().endswith("[0, 1, 2, 3]"), ended.stderr[-3000:]
    assert attempts(tmp_path, 2) == 2  # a local master gives a task up at once; the engine does not


GONE = """
import os, signal, sys

from cortx.distributed.spark_engine import SparkEngine
from tests.engine_jobs import Squares, tasks_of, until_error
import pyspark

if __name__ == "__main__":
    run = SparkEngine().run(Squares(sys.argv[1], seconds=0.5), tasks_of(40))
    next(run)
    os.kill(pyspark.SparkContext._gateway.proc.pid, signal.SIGKILL)
    error = until_error(run)[1]
    print(f"{type(error).__name__}: {error}")
"""


def test_when_spark_itself_is_gone_the_task_is_named(tmp_path: Path) -> None:
    ended = run_alone(sys.executable, "-c", GONE, str(tmp_path))
    assert re.match(r"EngineError: batch \d+: Spark could not do it: ", ended.stdout), ended.stderr[-3000:]


def test_without_java_it_says_so(tmp_path: Path) -> None:
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if tool.name != "java" and not (tmp_path / tool.name).exists():
                (tmp_path / tool.name).symlink_to(tool)
    environment = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    ended = run_alone(sys.executable, "-c", OWN, str(tmp_path), **environment)
    assert "EngineError: Spark needs Java 17 or newer: there is no `java`" in ended.stderr
    ended = run_alone(sys.executable, "-c", OWN, str(tmp_path), JAVA_HOME=str(tmp_path))
    assert f"EngineError: Spark needs Java 17 or newer: JAVA_HOME is {tmp_path}" in ended.stderr


def test_without_pyspark_it_names_the_extra(tmp_path: Path) -> None:
    without = "import sys; sys.modules['pyspark'] = None\n" + OWN.replace("import pyspark\n", "")
    ended = run_alone(sys.executable, "-c", without, str(tmp_path))
    assert "cortx-explain[spark]" in ended.stderr
