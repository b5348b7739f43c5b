"""Tasks on Spark: each is a Spark job of its own, so that it reports, fails and is given up by its own name."""

from __future__ import annotations

import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cortx.distributed.todo import attempt, not_opened
from cortx.distributed.work import MOST_DEATHS, Done, Job, Task, Work, died, failed
from cortx.errors import CortxError, EngineError, InputError, need
from cortx.threads import available_cpus

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext
    from pyspark.sql import SparkSession

Outcome = Done | CortxError
LOOPBACK = "127.0.0.1"
MOST_THREADS = 4096
"""Threads of the driver, each of which waits for one task; only as many are started as tasks wait."""


class SparkEngine:
    """Does tasks in the Python workers of Spark's executors, which load the model once each.

    `session` is used as it is; without one the active session is, and without that too one is started at `master`
    (by default all cores of this machine) and stopped when the run is over. At most `workers` tasks are under way at
    a time; by default twice as many as there are cores, so that no core waits for the driver, and a cluster that
    grows on demand sees what for.
    """

    name = "spark"

    def __init__(
        self, session: SparkSession | None = None, master: str | None = None, workers: int | None = None
    ) -> None:
        if session is not None and master is not None:
            raise InputError("a session has its master already; give session= or master=, not both")
        if workers is not None and workers < 1:
            raise InputError(f"workers must be 1 or more, got {workers}")
        self.session, self.master, self.most = session, master, workers

    @property
    def workers(self) -> int:
        """How many tasks can be done at a time, as far as that is known before executors are there."""
        if self.most is not None:
            return self.most
        session = self._there()
        return available_cpus() if session is None else int(_context(session).defaultParallelism)

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        """Yields each task as it is finished, whatever the order."""
        with self._open() as session, ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="cortx-spark") as threads:
            context = _context(session)
            run = SparkRun.start(context, job)
            do = _inheriting(session, run.do)
            feed, under_way, most = iter(tasks), set[Future[Outcome]](), 1
            failure: Exception | None = None
            try:
                while True:
                    with suppress(Exception):  # where Spark is gone, the tasks say so, by name
                        most = self.most or 2 * context.defaultParallelism
                    try:
                        while failure is None and len(under_way) < most and (task := next(feed, None)) is not None:
                            under_way.add(threads.submit(do, task))
                    except Exception as error:  # of whoever makes the tasks; what is being done is finished first
                        failure = error
                    if not under_way:
                        break
                    finished, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                    for outcome in (future.result() for future in finished):
                        if isinstance(outcome, Done):
                            yield outcome
                        else:
                            failure = failure or outcome
            finally:
                run.stop(cancel=bool(under_way))
            if failure is not None:
                raise failure

    def _there(self) -> SparkSession | None:
        """The session that was given, or the one that this process has."""
        session = self.session or _active_session()
        if session is not None and self.master is not None and _context(session).master != self.master:
            raise InputError(
                f"master={self.master!r}, but this process has a Spark session at {_context(session).master!r}; "
                "stop it first, or leave master= out"
            )
        return session

    @contextmanager
    def _open(self) -> Iterator[SparkSession]:
        session = self._there()
        if session is not None:
            yield session
            return
        session = start_session(self.master, self.most)
        try:
            yield session
        finally:
            with suppress(Exception):  # it may be gone; whatever the run has to say is more important
                session.stop()


@dataclass(frozen=True)
class SparkRun:
    """One job on its way through Spark, as the driver holds it."""

    context: SparkContext
    group: str
    worker: Worker
    tries: int
    """How often a task is submitted: as long as it takes for `MOST_DEATHS` workers to die at it."""
    deaths: int
    """How many have died at it then."""

    @classmethod
    def start(cls, context: SparkContext, job: Job) -> SparkRun:
        group = f"cortx-{uuid.uuid4()}"
        worker = Worker(group, context.broadcast(pack_for_spark(job)))
        each = _deaths_of_a_spark_job(context)
        tries = -(-MOST_DEATHS // each)
        return cls(context, group, worker, tries, deaths=tries * each)

    def do(self, task: Task) -> Outcome:
        """The task's receipt, or the error that ends the run."""
        self.context.setJobGroup(self.group, f"cortx: {task.name}", interruptOnCancel=True)
        for left in reversed(range(self.tries)):
            try:
                outcome: Outcome = self.context.parallelize([task], 1).mapPartitions(self.worker).collect()[0]
                return outcome
            except Exception as error:  # py4j's, PySpark's own, or of the socket: a driver that is gone has many names
                if not _death(error):
                    return failed(task, EngineError(f"Spark could not do it: {_reason(error)}"))
                if not left:
                    return died(task, _reason(error), self.deaths)
        raise AssertionError("a task is tried at least once")

    def stop(self, *, cancel: bool) -> None:
        with suppress(Exception):  # Spark may be gone; whatever the run has to say is more important
            if cancel:
                self.context.cancelJobGroup(self.group)
            self.worker.job.destroy()


@dataclass(frozen=True)
class Worker:
    """What a task does on an executor. Errors come back as values: Spark would try a task that raises again."""

    run: str
    job: Broadcast[bytes]

    def __call__(self, tasks: Iterator[Task]) -> Iterator[Outcome]:
        try:
            work = self._opened(task_device())
        except Exception as error:
            yield not_opened(error)
            return
        for task in tasks:
            yield attempt(work, task)

    def _opened(self, device: str) -> Work:
        key = (self.run, device)
        if key not in _OPEN:
            _OPEN.clear()
            _OPEN[key] = unpack_from_spark(self.job.value).open(device)
        return _OPEN[key]


_OPEN: dict[tuple[str, str], Work] = {}
"""The job that this Python worker has opened: Spark gives its workers one task after the other."""


def pack_for_spark(what: Any) -> bytes:
    """As Spark packs functions: its broadcasts alone do not take what a notebook defines."""
    from pyspark.serializers import CloudPickleSerializer

    try:
        return bytes(CloudPickleSerializer().dumps(what))
    except Exception as error:  # what cannot be packed raises whatever it likes
        raise EngineError(
            f"this cannot travel to Spark's executors ({type(error).__name__}: {error}); give the model by name "
            "('package.module:object', or the path of an .onnx file)"
        ) from error


def unpack_from_spark(packed: bytes) -> Any:
    from pyspark.serializers import CloudPickleSerializer

    return CloudPickleSerializer().loads(packed)


def task_device() -> str:
    """The GPU that Spark has given to the running task, or ``cpu``."""
    from pyspark import TaskContext

    context = TaskContext.get()
    gpu = None if context is None else context.resources().get("gpu")
    return f"cuda:{gpu.addresses[0]}" if gpu is not None else "cpu"


@contextmanager
def needs_pyspark(why: str = "the Spark engine") -> Iterator[None]:
    """Says which extra to install where imports fail."""
    try:
        yield
    except ImportError as error:
        raise need("pyspark", why, "spark") from error


def start_session(master: str | None = None, workers: int | None = None) -> SparkSession:
    """A Spark session without its web page; a local one is bound to the loopback device and uses this Python."""
    with needs_pyspark():
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession

    settings = {"spark.app.name": "cortx", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    environment = {}
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit has chosen the master already
        master = f"local[{workers or available_cpus()},{MOST_DEATHS}]"
    if master is not None:
        settings["spark.master"] = master
    if master is not None and master.startswith("local"):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        environment = {"SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
    with _environment(environment):
        try:
            session = SparkSession.builder.config(map=settings).getOrCreate()
        except PySparkRuntimeError as error:
            raise EngineError(f"Spark needs Java 17 or newer: {_java()} ({error})") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        return f"JAVA_HOME is {home}, and Spark could not start with it; set it to the folder of a JDK or JRE"
    found = shutil.which("java")
    if found:
        return f"it could not start with {found}; `java -version` says which that is"
    return "there is no `java` on the PATH and JAVA_HOME is not set; install a JDK or JRE, for example openjdk-17-jre"


@contextmanager
def _environment(names: dict[str, str]) -> Iterator[None]:
    """Variables that Spark reads as it starts, where the user has not set them."""
    added = [name for name in names if name not in os.environ]
    os.environ.update({name: names[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _active_session() -> SparkSession | None:
    with needs_pyspark():
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:  # of another thread
        active = SparkSession.builder.getOrCreate()
    return active


def _context(session: SparkSession) -> SparkContext:
    try:
        return session.sparkContext
    except Exception as error:
        raise EngineError(
            "tasks need a classic Spark session, and this one is of Spark Connect, which has no RDDs; "
            "run in the driver of the cluster, or use cortx.spark.explain, which needs none"
        ) from error


def _inheriting(session: SparkSession, do: Callable[[Task], Outcome]) -> Callable[[Task], Outcome]:
    """In another thread, with the scheduler pool and tags that the caller has set in this one."""
    from pyspark import inheritable_thread_target

    wrapped: Callable[[Task], Outcome] = inheritable_thread_target(session)(do)

    def safely(task: Task) -> Outcome:
        try:
            return wrapped(task)
        except Exception as error:  # Spark is gone, before it could be told of the task
            return failed(task, EngineError(f"Spark could not do it: {_reason(error)}"))

    return safely


def _deaths_of_a_spark_job(context: SparkContext) -> int:
    """How many workers die at a task before Spark gives it up: with a local master it does not try again."""
    conf, master = context.getConf(), context.master
    if master.startswith("local") and not master.startswith("local-cluster"):
        _, comma, failures = master.rstrip("]").partition(",")
        return int(failures) if comma else 1
    return int(conf.get("spark.task.maxFailures", "4") or 4)


_DEATHS = ("Python worker exited unexpectedly", "ExecutorLostFailure", "Python worker failed to connect back")


def _death(error: Any) -> bool:
    """Whether a worker was lost, and did not answer with an error of its own."""
    return any(words in str(error) for words in _DEATHS)


def _reason(error: Any) -> str:
    """The one line of a Spark failure that says what happened."""
    text: str = str(error)
    raised: list[str] = re.findall(r"^(\w+(?:Error|Exception): .*)$", text, re.MULTILINE)
    if "PythonException" in text and raised:
        missing = "No module named" in raised[-1]
        return raised[-1] + ("; the Python of the executors (PYSPARK_PYTHON) must have cortx too" if missing else "")
    last = re.search(r"most recent failure: (?:Lost task \S+ in stage \S+ )?(.*)", text)
    if last is not None:
        return str(last[1]).partition(" Consider setting ")[0].replace("org.apache.spark.SparkException: ", "")
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
