"""Many workers: what a second one brings, what engines cost, what a large table needs.

    python -m benchmarks.distributed [labels] [explain] [stream] [choose]

Run it in the folder of the repository: workers import the model from `benchmarks.scored`. Rates are taken after
start-up, from the moment when as many tasks are finished as there are workers; engines take turns, round by round.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import cortx
from benchmarks.records import record, write
from benchmarks.scored import model
from benchmarks.speed import PLAYERS
from cortx import distributed
from cortx.distributed.engines import make_engine
from cortx.distributed.local import THREAD_SETTINGS
from cortx.distributed.sampling import choose_rows
from cortx.distributed.source import ParquetSource
from cortx.distributed.work import Done, Engine, Job, Task
from cortx.training.recipe import get_recipe

ROUNDS = 3
LABELLED = (("model", 128, 1_500), ("slow", 512, 240))
"""The model's name, its width, and how many rows are labelled."""
EXPLAINED = 1_000_000
STREAMED, STREAM_FILES = 20_000_000, 40
CHOSEN, CHOSEN_FROM = 10_000, 4_000_000
COLUMNS = [f"x{j}" for j in range(PLAYERS)]


class Clocked:
    """An engine, and when each of its tasks was finished."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self.workers = engine, engine.name, engine.workers
        self.finished: list[tuple[float, Done]] = []
        self.started = perf_counter()

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        self.started = perf_counter()
        for done in self.engine.run(job, tasks):
            self.finished.append((perf_counter(), done))
            yield done

    @property
    def rows_per_second(self) -> float:
        """After start-up: from the end of the first task of each worker, about, to the end of the last task."""
        begin = self.finished[self.workers - 1][0]
        rows = sum(done.rows for _, done in self.finished[self.workers :])
        return rows / (self.finished[-1][0] - begin)

    @property
    def start_up(self) -> float:
        """Seconds until the first task was finished, without the time that it took itself."""
        when, done = self.finished[0]
        return when - self.started - done.seconds


def table(rows: int, seed: int = 0) -> Any:
    """Generated rows: an identity and a text that no model takes, 13 features, and the model's output."""
    matrix = np.random.default_rng(seed).normal(size=(rows, PLAYERS)).astype(np.float32)
    with torch.inference_mode():
        score = model(torch.from_numpy(matrix)).numpy().ravel().astype(np.float64)
    columns: dict[str, Any] = {"id": pa.array(np.arange(rows) + seed * rows), "branch": pa.array(["north"] * rows)}
    columns |= {name: pa.array(matrix[:, j]) for j, name in enumerate(COLUMNS)}
    return pa.table(columns | {"score": pa.array(score)})


def write_table(folder: Path, rows: int, files: int) -> Path:
    folder.mkdir(parents=True)
    for number in range(files):
        pq.write_table(table(rows // files, number), folder / f"part-{number:05d}.parquet", row_group_size=2**17)
    return folder


def save_explainer(folder: Path) -> Path:
    """A network of the default recipe's size; how well it explains does not change its speed."""
    recipe = get_recipe("default")
    recipe = replace(
        recipe, pretrain=replace(recipe.pretrain, steps=1), attribution=replace(recipe.attribution, steps=20)
    )
    rows = table(2_000).select(COLUMNS)
    game = cortx.Game(lambda frame: model(torch.from_numpy(np.stack([frame[name].to_numpy() for name in COLUMNS], 1))).
                      detach().numpy(), reference=rows, output="raw")  # fmt: skip
    return cortx.CoRTX(recipe).fit(game, rows, n_labels=50, progress=False).save(folder)


ENGINES = {"local, 1 worker": ("local", 1), "local, 2 workers": ("local", 2), "ray, 2 workers": ("ray", 2),
           "spark, 2 workers": ("spark", 2)}  # fmt: skip


def engine_of(kind: str, workers: int) -> Engine:
    """Spark's workers are the cores of its master."""
    return make_engine(kind, address=f"local[{workers}]") if kind == "spark" else make_engine(kind, workers=workers)


def in_rounds(experiment: str, setting: str, run: Any, goals: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Runs all engines in turns; records each one's rate, and its ratio to the local pool's in the same round."""
    rates: dict[str, list[float]] = {}
    starts: dict[str, list[float]] = {}
    for round_ in range(ROUNDS):
        for name, (kind, workers) in ENGINES.items():
            clocked = Clocked(engine_of(kind, workers))
            run(clocked)
            rates.setdefault(name, []).append(clocked.rows_per_second)
            starts.setdefault(name, []).append(clocked.start_up)
            print(
                f"{experiment}, round {round_}, {name}: {rates[name][-1]:,.0f} rows/s, start {starts[name][-1]:.1f} s"
            )
    pool, alone = rates["local, 2 workers"], rates["local, 1 worker"]
    made = []
    for name, found in rates.items():
        facts = {"rounds": found, "median": median(found), "start_up_seconds": median(starts[name])}
        made.append(record(experiment, setting, name, "rows per second after start-up", found, **facts))
        ratios = [one / other for one, other in zip(found, pool, strict=True)]
        if name == "local, 2 workers":
            ratios = [one / other for one, other in zip(pool, alone, strict=True)]
        metric = "rate / rate of one worker" if name == "local, 2 workers" else "rate / rate of the local pool"
        if name != "local, 1 worker":
            made.append(record(experiment, setting, name, metric, ratios, rounds=ratios, median=median(ratios),
                               **goals.get(name, {})))  # fmt: skip
            print(f"{experiment}, {name}: {metric} {median(ratios):.3f}")
    return made


def labels(work: Path) -> None:
    """Exact labels of two networks in torch: what a worker does is asking the model."""
    made = []
    for name, width, count in LABELLED:
        rows = work / f"{name}.parquet"
        pq.write_table(table(count).select(COLUMNS), rows)

        def run(engine: Engine, name: str = name, rows: Path = rows, count: int = count) -> None:
            shutil.rmtree(work / "labels", ignore_errors=True)
            distributed.label(f"benchmarks.scored:{name}", rows, work / "labels", budget=count * 2**PLAYERS, rows=count,
                              reference="zero", output="raw", engine=engine, progress=False)  # fmt: skip

        setting = f"{count:,} exact labels, 13 features, a network of 13-{width}-{width}-1 in torch, one thread each"
        goals = {"local, 2 workers": {"expected_at_least": 1.7}, "ray, 2 workers": {"expected_at_least": 0.85},
                 "spark, 2 workers": {"expected_at_least": 0.85}}  # fmt: skip
        made += in_rounds("labelling", setting, run, goals)
        size = sum(path.stat().st_size for path in (work / "labels").rglob("*.parquet"))
        made.append(record("labelling", setting, "label folder", "bytes per label", size / count))
    write("distributed-labels", made)


def explain(work: Path) -> None:
    """A million rows from Parquet to Parquet, outputs in a column."""
    source, explainer = write_table(work / "rows", EXPLAINED, 16), save_explainer(work / "explainer.cortx")

    def run(engine: Engine) -> None:
        shutil.rmtree(work / "explained", ignore_errors=True)
        distributed.explain(explainer, source, work / "explained", outputs="score", engine=engine, progress=False)

    setting = f"{EXPLAINED:,} rows, 13 features, Parquet to Parquet, outputs given, default recipe, one thread each"
    made = in_rounds("explaining", setting, run, {"local, 2 workers": {"expected_at_least": 1.7}})
    made += frames(work, source, explainer, setting)
    for name, folder in (("source", source), ("explained", work / "explained")):
        size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
        made.append(record("explaining", setting, name, "bytes per row", size / EXPLAINED))
    write("distributed-explain", made)


def frames(work: Path, source: Path, explainer: Path, setting: str) -> list[dict[str, Any]]:
    """The engines' own frames, from Parquet to Parquet; start-up of the engine aside, not that of its workers."""
    import ray
    from pyspark.sql import SparkSession

    found: dict[str, list[float]] = {"ray.data": [], "spark frame": []}
    # One place more than there are actors: reading and writing need one too.
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        for _ in range(3):
            started = perf_counter()
            rows = ray.data.read_parquet(str(source))
            cortx.ray.explain(rows, explainer, outputs=("score",), concurrency=2).write_parquet(str(work / "ray"))
            found["ray.data"].append(EXPLAINED / (perf_counter() - started))
            started = perf_counter()
            frame = cortx.spark.explain(spark.read.parquet(str(source)), explainer, outputs=("score",))
            frame.write.mode("overwrite").parquet(str(work / "spark"))
            found["spark frame"].append(EXPLAINED / (perf_counter() - started))
            shutil.rmtree(work / "ray")
    finally:
        ray.shutdown()
        spark.stop()
    for name, rates in found.items():
        print(f"explaining, {name}: {median(rates):,.0f} rows/s")
    return [record("explaining", setting, f"{name}, 2 workers", "rows per second, start of workers included", rates,
                   rounds=rates, median=median(rates)) for name, rates in found.items()]  # fmt: skip


def stream(work: Path) -> None:
    """Twenty million rows: rate, and the most memory that a worker ever had."""
    started = perf_counter()
    source, explainer = write_table(work / "rows", STREAMED, STREAM_FILES), save_explainer(work / "explainer.cortx")
    print(f"generated {STREAMED:,} rows in {perf_counter() - started:.0f} s")
    clocked, peaks, over = Clocked(make_engine("local", workers=2)), {}, threading.Event()

    def watch() -> None:
        while not over.is_set():
            peaks.update(peak_of_children())
            sleep(0.5)

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = perf_counter()
    try:
        distributed.explain(explainer, source, work / "explained", outputs="score", engine=clocked)
    finally:
        over.set()
        watcher.join()
    seconds = perf_counter() - before
    files = sorted((work / "explained").rglob("*.parquet"))
    assert sum(pq.read_metadata(path).num_rows for path in files) == STREAMED
    halves = [rate_between(clocked, *ends) for ends in ((0.05, 0.5), (0.5, 0.95))]
    setting = f"{STREAMED:,} generated rows, 13 features, {STREAM_FILES} Parquet files to Parquet, 2 workers"
    facts = {"seconds": seconds, "bytes_in": sum(p.stat().st_size for p in source.iterdir()),
             "bytes_out": sum(p.stat().st_size for p in files)}  # fmt: skip
    made = [
        record("streaming", setting, "local", "rows per second", STREAMED / seconds, **facts),
        record("streaming", setting, "local", "rate of the second half / first half", halves[1] / halves[0]),
        record("streaming", setting, "local", "GiB of the largest worker", max(peaks.values()) / 2**30,
               expected_at_most=2, workers=sorted(peaks.values())),
    ]  # fmt: skip
    for one in made:
        print(f"{one['metric']}: {one['value']:,.3f}")
    write("distributed-stream", made)


def choose(work: Path) -> None:
    """The pass that chooses the rows to label."""
    source = write_table(work / "rows", CHOSEN_FROM, 8)
    rates = []
    for seed in range(3):
        started = perf_counter()
        sample = choose_rows(ParquetSource(source), COLUMNS, CHOSEN, seed=seed)
        rates.append(CHOSEN_FROM / (perf_counter() - started))
        assert len(sample.rows) == CHOSEN
    setting = f"{CHOSEN:,} of {CHOSEN_FROM:,} generated rows, 13 features, one process"
    made = record("choosing", setting, "driver", "rows per second", rates, seeds=range(3), median=median(rates))
    print(f"choosing: {made['value']:,.0f} rows/s")
    write("distributed-choose", [made])


def rate_between(clocked: Clocked, low: float, high: float) -> float:
    first, last = (int(share * (len(clocked.finished) - 1)) for share in (low, high))
    rows = sum(done.rows for _, done in clocked.finished[first + 1 : last + 1])
    return rows / (clocked.finished[last][0] - clocked.finished[first][0])


def peak_of_children() -> dict[int, int]:
    """Process -> the most memory it ever had, in bytes, of this process's children."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        if int(lines["PPid"]) == os.getpid() and "VmHWM" in lines:
            found[int(path.parent.name)] = int(lines["VmHWM"].split()[0]) * 1024
    return found


STAGES = {"labels": labels, "explain": explain, "stream": stream, "choose": choose}


def main() -> None:
    torch.set_num_threads(1)
    os.environ.update(dict.fromkeys(THREAD_SETTINGS, "1"))  # a lone worker would take both cores
    for name in sys.argv[1:] or STAGES:
        with tempfile.TemporaryDirectory(prefix="cortx-") as work:
            STAGES[name](Path(work))


if __name__ == "__main__":
    main()
