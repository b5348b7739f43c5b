"""The server under load: single-row requests over loopback against a bare echo of the same stack, latency, memory.

    CORTX_DATA=... python -m benchmarks.serving [--rounds 5] [--seconds 2] [--long 60]

A small network on Census is served (scikit-learn's table of tumours where Census is not there) with an explainer of
the default recipe, both kept in the cache. Server and load generator are processes of their own, each on one core,
the same for all. Rates are measured in short rounds in turns, so that a slow moment of the machine meets everybody.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.census import CACHE
from benchmarks.records import RESULTS, record, write

BUDGET = 700_000
CONNECTIONS = 64
N_BODIES = 512
"""Different rows that are sent in turn."""
SHARE = 0.7
"""Of the full rate, at which latency is measured."""
SMALL_QUEUE = 16
SERVER_CORE, LOAD_CORE = 0, 1
ECHO = "bare echo"
MODULE = """import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1  # more of them would spin on the core of the load generator
model = onnxruntime.InferenceSession({!r}, options, providers=["CPUExecutionProvider"])
"""


# What is served -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """An artifact, the module of its model, and rows to ask for."""

    setting: str
    artifact: Path
    model: str
    records: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return self.artifact.name.removesuffix(".cortx")


def load_table() -> Any:
    from cortx.errors import InputError
    from cortx.paper.census import load_adult
    from cortx.paper.sources import Table

    try:
        return load_adult()
    except InputError as error:
        print(f"Census is not there, so tumours are served: {error}")
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    x, y = data.data.astype(np.float32), data.target.astype(np.int8)
    names = tuple(map(str, data.feature_names))
    return Table("tumours", x[:400], x[400:], y[:400], y[400:], names)


def make_served(folder: Path = CACHE) -> Served:
    """Trains a network of 13-64-64-1 and its explainer, unless they lie in the cache."""
    import pandas as pd

    import cortx

    table = load_table()
    artifact, model = folder / f"serving-{table.name}-{BUDGET}.cortx", folder / f"serving-{table.name}.onnx"
    module = folder / f"serving_{table.name}.py"
    rows = pd.DataFrame(table.x_train.astype(np.float64), columns=list(table.feature_names))
    if not model.exists():
        train_network(table, model)
    if not artifact.exists():
        categorical = [table.feature_names[j] for j in table.categorical]
        game = cortx.Game(str(model), reference=rows, output="probability", categorical=categorical)
        explainer = cortx.CoRTX(unseen="ignore").fit(game, rows, budget=BUDGET, progress=False)
        explainer.save(artifact)
    asked = pd.DataFrame(table.x_test[:N_BODIES].astype(np.float64), columns=list(table.feature_names))
    module.write_text(MODULE.format(str(model)), encoding="utf-8")
    setting = f"{table.name}, {len(table.feature_names)} columns, one row a request"
    return Served(setting, artifact, f"{module.stem}:model", asked.to_dict(orient="records"))


def train_network(table: Any, path: Path, epochs: int = 8) -> None:
    """A network on scaled columns, written as an ONNX file that gives a probability."""
    import onnx
    import torch
    from onnx import helper, numpy_helper
    from torch import nn

    from cortx.seeding import stream_seed, torch_generator

    x, y = torch.from_numpy(table.x_train), torch.from_numpy(table.y_train).float()
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(0, "network"))
        layers = [nn.Linear(x.shape[1], 64), nn.Linear(64, 64), nn.Linear(64, 1)]
    scale = x.std(dim=0).clamp_min(1e-6)
    network = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2], nn.Flatten(0))
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    generator = torch_generator(0, "order")
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=generator).split(256):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(network(x[part] / scale), y[part]).backward()
            optimizer.step()
    with torch.no_grad():
        layers[0].weight /= scale  # the file takes columns as they are
    nodes, weights, name = [], [], "rows"
    for i, layer in enumerate(layers):
        for key, tensor in (("weight", layer.weight), ("bias", layer.bias)):
            weights.append(numpy_helper.from_array(tensor.detach().numpy(), f"{key}{i}"))
        nodes.append(helper.make_node("Gemm", [name, f"weight{i}", f"bias{i}"], [f"sum{i}"], transB=1))
        name = f"hidden{i}" if i < 2 else "probability"
        nodes.append(helper.make_node("Relu" if i < 2 else "Sigmoid", [f"sum{i}"], [name]))
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "network", [helper.make_tensor_value_info("rows", kind, [None, x.shape[1]])],
        [helper.make_tensor_value_info("probability", kind, [None, 1])], weights,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(f".tmp{os.getpid()}")
    temporary.write_bytes(made.SerializeToString())
    temporary.replace(path)


def bodies_of(served: Served) -> dict[str, tuple[str, list[Any]]]:
    """Each kind of request: its path and its bodies, one row each."""
    rows = served.records
    name, columns = served.name, list(rows[0])

    def friendly(**more: Any) -> list[Any]:
        return [{"records": [row], **more} for row in rows]

    table = [
        {"inputs": [{"name": "rows", "shape": [1, len(columns)], "datatype": "FP64", "data": list(row.values())}]}
        for row in rows
    ]
    v1 = [{"instances": [row]} for row in rows]
    return {
        ECHO: ("/", friendly()),
        "/explain": ("/explain", friendly()),
        "/explain without bounds": ("/explain", friendly(confidence=None)),
        "/explain without reasons": ("/explain", friendly(top=0)),
        "/explain with neither": ("/explain", friendly(confidence=None, top=0)),
        "V1 :explain": (f"/v1/models/{name}:explain", v1),
        "V1 :predict": (f"/v1/models/{name}:predict", v1),
        "V2 infer": (f"/v2/models/{name}/infer", table),
    }


# Processes ----------------------------------------------------------------------------------------------------


def echo() -> None:
    """A server of the same parts, settings and connections, whose every route answers the JSON that it was sent."""
    import gc

    import orjson
    import uvicorn

    from cortx.interfaces.server.serve import Server
    from cortx.interfaces.server.settings import Settings

    headers = [(b"content-type", b"application/json")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        answer = orjson.dumps(orjson.loads(body))
        length = (b"content-length", b"%d" % len(answer))
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": answer})

    class Echo(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            gc.collect()
            gc.freeze()
            await super().startup(sockets)
            print(f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}/ (", flush=True)

    Echo(Server(app, Settings(port=0)).config).run()  # type: ignore[arg-type]


class Process:
    """A server on its core; it prints its address when it is ready."""

    def __init__(self, *arguments: str, core: int = SERVER_CORE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CORTX_TOKENS": "", "PYTHONPATH": str(CACHE)},
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "http://" not in line:
            raise RuntimeError(f"{arguments} did not start: {line}")
        self.url = "http://127.0.0.1:" + line.rpartition("/ (")[0].rpartition(":")[2]

    def resident(self) -> int:
        """Bytes of memory that the process holds now."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def busy_seconds(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def waited_seconds(self) -> float:
        """Time so far that its threads were ready to run while somebody else had the core."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[1]) for thread in threads) / 1e9

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(40)
        finally:
            if self.process.poll() is None:
                self.process.kill()


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[Process]:
    process = Process(*arguments)
    try:
        yield process
    finally:
        process.stop()


def serve_arguments(served: Served, *more: str) -> tuple[str, ...]:
    return (
        "cortx.interfaces.cli",
        "serve",
        str(served.artifact),
        "--model",
        served.model,
        "--port",
        "0",
        "--linger",
        "0",
        *more,
    )


class Asker:
    """Sends loads from a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, url: str, bodies: Sequence[Any], *, while_it_runs: Callable[[], None] | None = None, **options: Any
    ) -> dict[str, Any]:
        file = self._folder / f"bodies-{os.getpid()}.jsonl"
        file.write_text("\n".join(json.dumps(body) for body in bodies), encoding="utf-8")
        words = [sys.executable, "-m", "benchmarks.load", url, "--bodies", str(file), "--core", str(LOAD_CORE)]
        for name, value in options.items():
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while while_it_runs is not None and process.poll() is None:
                while_it_runs()
                time.sleep(0.5)
            report: dict[str, Any] = json.loads(process.stdout.read())
        file.unlink()
        return report


def failures(report: dict[str, Any]) -> int:
    """Requests that were not answered as they should be; a refusal with 429 is an answer."""
    wrong = sum(count for status, count in report["statuses"].items() if status not in ("200", "429"))
    return int(wrong + report["connections_lost"] + report["unanswered"])


# Measurements -------------------------------------------------------------------------------------------------


class Bench:
    """An echo and a server that wait for loads; `take` makes records of what came out."""

    def __init__(self, served: Served, ask: Asker, echo: Process, server: Process) -> None:
        self.served, self.ask, self.echo, self.server = served, ask, echo, server
        self.kinds = bodies_of(served)
        self.records: list[dict[str, Any]] = []

    def load(self, kind: str, **options: Any) -> dict[str, Any]:
        process = self.echo if kind == ECHO else self.server
        path, bodies = self.kinds[kind]
        before, waited = process.busy_seconds(), process.waited_seconds()
        report = self.ask(process.url + path, bodies, **options)
        report["busy"] = (process.busy_seconds() - before) / max(1, report["sent"])
        report["waited"] = (process.waited_seconds() - waited) / report["seconds"]
        return report

    def take(self, what: str, method: str, metric: str, values: Any, **facts: Any) -> None:
        self.records.append(record("serving", f"{self.served.setting}, {what}", method, metric, values, **facts))

    def rates(self, rounds: int, seconds: float) -> dict[str, float]:
        """Requests a second of every kind at full load, in turns; medians, and ratios within each round."""
        seen: dict[str, list[dict[str, Any]]] = {kind: [] for kind in self.kinds}
        for _ in range(rounds):
            for kind, reports in seen.items():
                reports.append(self.load(kind, connections=CONNECTIONS, seconds=seconds))
        found = {}
        what = f"{CONNECTIONS} connections, closed loop"
        for kind, reports in seen.items():
            rates = [report["per_second"] for report in reports]
            ratios = [
                report["per_second"] / bare["per_second"] for report, bare in zip(reports, seen[ECHO], strict=True)
            ]
            busy = [report["busy"] for report in reports]
            costs = median(bare["busy"] for bare in seen[ECHO]) / median(busy)
            found[kind] = median(rates)
            wrong = sum(map(failures, reports))
            facts = {"per_second": rates, "median": median(rates), "failures": wrong,
                     "busy_microseconds": round(1e6 * median(busy), 1),
                     "waited_for_the_core": [round(report["waited"], 3) for report in reports],
                     "bytes_per_answer": round(reports[0]["bytes_per_answer"])}  # fmt: skip
            self.take(what, kind, "requests per second", rates, **facts)
            self.take(what, kind, "requests per second / of the bare echo", ratios, median=median(ratios),
                      of_processor_seconds=costs)  # fmt: skip
            print(f"{kind:26} {median(rates):8,.0f} a second ({min(rates):,.0f} to {max(rates):,.0f}), "
                  f"{1e6 * median(busy):4.0f} us of the core; {median(ratios):.2f} of the echo "
                  f"({costs:.2f} by processor time), {wrong} wrong", flush=True)  # fmt: skip
        return found

    def latencies(self, full: float, rounds: int, seconds: float) -> None:
        """Of a lone client, and of an open loop at a share of the full rate."""
        loads: dict[str, dict[str, Any]] = {
            "1 connection, closed loop": {"connections": 1},
            f"{SHARE:.0%} of the full rate, open loop, independent clients": {"rate": SHARE * full, "connections": 256},
            f"{SHARE:.0%} of the full rate, open loop, even steps": {
                "rate": SHARE * full, "connections": 256, "even": True},
        }  # fmt: skip
        seen: dict[str, list[dict[str, Any]]] = {what: [] for what in loads}
        for turn in range(rounds):
            for what, options in loads.items():
                seen[what].append(self.load("/explain", seconds=seconds, seed=turn, **options))
        lone = median(report["latency"]["p50"] for report in seen["1 connection, closed loop"])
        for what, reports in seen.items():
            p50, p99 = ([report["latency"][name] for report in reports] for name in ("p50", "p99"))
            wrong = sum(failures(report) + report["unsent"] for report in reports)
            waits = [round(report["waited"], 3) for report in reports]
            facts = {"failures": wrong, "per_second": [report["per_second"] for report in reports],
                     "waited_for_the_core": waits}  # fmt: skip
            self.take(what, "/explain", "seconds, median", p50, median=median(p50), **facts)
            self.take(what, "/explain", "seconds, 99th percentile", p99, median=median(p99),
                      unloaded_medians=median(p99) / lone, **facts)  # fmt: skip
            print(f"{what}: median {1e3 * median(p50):.2f} ms, p99 {1e3 * median(p99):.2f} ms "
                  f"({min(p99) * 1e3:.2f} to {max(p99) * 1e3:.2f}), {median(p99) / lone:.1f} unloaded medians, "
                  f"{wrong} wrong; the server waited for its core for {waits} of the time", flush=True)  # fmt: skip

    def memory(self, seconds: float) -> None:
        """A long time at full load: errors, and the server's resident memory."""
        sizes: list[tuple[float, int]] = []
        started = time.monotonic()
        report = self.load(
            "/explain", connections=CONNECTIONS, seconds=seconds, requests=10_000_000,
            while_it_runs=lambda: sizes.append((time.monotonic() - started, self.server.resident())),
        )  # fmt: skip
        times, held = np.array(sizes).T
        late = times > min(10.0, seconds / 3)  # what is made once is there by then
        slope = float(np.polyfit(times[late], held[late], 1)[0])
        grown = float(held[late][-5:].mean() - held[late][:5].mean())
        what = f"{CONNECTIONS} connections, closed loop, {seconds:g} s"
        shown = held[:: max(1, len(held) // 30)] / 2**20
        facts = {"statuses": report["statuses"], "connections_lost": report["connections_lost"],
                 "unanswered": report["unanswered"], "per_second": report["per_second"],
                 "resident_mib": [round(size, 2) for size in shown.tolist()]}  # fmt: skip
        self.take(what, "/explain", "errors other than 429", failures(report), **facts)
        self.take(what, "/explain", "bytes of memory a second (least squares, after 10 s)", slope)
        self.take(what, "/explain", "bytes of memory, last - first (after 10 s)", grown)
        print(f"{seconds:g} s: {report['statuses']}, {failures(report)} wrong, {report['per_second']:,.0f} a second; "
              f"memory {held[0] / 2**20:.1f} to {held[-1] / 2**20:.1f} MiB, {slope * 60 / 2**20:+.2f} MiB a minute, "
              f"{grown / 2**10:+.0f} KiB last - first", flush=True)  # fmt: skip

    def refusals(self, seconds: float) -> None:
        """More connections than a small queue has places for."""
        with running(*serve_arguments(self.served, "--max-queue", str(SMALL_QUEUE))) as small:
            path, bodies = self.kinds["/explain"]
            report = self.ask(small.url + path, bodies, connections=CONNECTIONS, seconds=seconds)
        count = report["statuses"]
        answered = count.get("200", 0) / report["seconds"]
        self.take(
            f"{CONNECTIONS} connections, closed loop, --max-queue {SMALL_QUEUE}", "/explain",
            "errors other than 429", failures(report), statuses=count, with_retry_after=report["retry_after"],
            answered_per_second=answered, refused_per_second=count.get("429", 0) / report["seconds"],
            p99_seconds=report["latency"]["p99"],
        )  # fmt: skip
        print(f"--max-queue {SMALL_QUEUE}: {count}, {report['retry_after']} with Retry-After, {answered:,.0f} answers "
              f"a second, {failures(report)} wrong", flush=True)  # fmt: skip


def measure(rounds: int, seconds: float, long: float, folder: Path) -> list[dict[str, Any]]:
    served = make_served()
    ask = Asker(CACHE)
    with running("benchmarks.serving", "--echo") as bare, running(*serve_arguments(served)) as server:
        bench = Bench(served, ask, bare, server)
        full = bench.rates(rounds, seconds)["/explain"]
        bench.latencies(full, max(3, rounds // 2), 2 * seconds)
        bench.memory(long)
        bench.refusals(2 * seconds)
    write("serving", bench.records, folder)
    return bench.records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one load")
    parser.add_argument("--long", type=float, default=60.0, help="seconds at full load for errors and memory")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.echo:
        echo()
    elif len(os.sched_getaffinity(0)) < 2:
        print("left out the serving benchmark: it needs a core for the server and one for the load")
    else:
        measure(given.rounds, given.seconds, given.long, given.results)


if __name__ == "__main__":
    main()
