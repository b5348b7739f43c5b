"""The portable runtime on the published Census target: against the machine's matrix products, bare onnxruntime, shap.

    CORTX_DATA=... python -m benchmarks.runtime

The explainer is the default recipe with a budget of 2.7 million evaluations (of `benchmarks.budgets`, kept in its
cache). Every claim is a ratio of two times that were measured in turns in one run.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

import cortx
from benchmarks.budgets import game_of, one_fit, place
from benchmarks.census import CACHE, exact_values
from benchmarks.records import record, write
from benchmarks.speed import best_of
from cortx import metrics, portable

BUDGET = 2_700_000
N_ROWS = 100_000
SETTING = "Census, published target, sigmoid output, zero reference, default recipe"
GEMMS = ((1_024, 1_024, 1_024), (2_048, 2_048, 2_048), (512, 256, 256))
"""Matrix products that the machine's rate is the best of: square ones, and the network's own layers."""
SHAP_ROWS, SHAP_SAMPLES, SCORED_ROWS = 16, 300, 200


def in_turns(functions: dict[str, Callable[[], Any]], turns: int, *, twice: bool = False) -> dict[str, float]:
    """Seconds of the fastest run of each, after one to warm up; they take turns, so a slow moment meets them all.

    `twice` runs each once more right before it is timed: none finds the processor's cache filled by its neighbour.
    """
    for function in functions.values():
        function()
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(turns):
        for name, function in functions.items():
            if twice:
                function()
            started = perf_counter()
            function()
            best[name] = min(best[name], perf_counter() - started)
    return best


def gemm_seconds(turns: int = 3) -> float:
    """Seconds for one floating point operation of a float32 matrix product, at its best."""
    rates = []
    for n, k, m in GEMMS:
        a, b = torch.randn(n, k), torch.randn(k, m)
        repeats = max(1, round(2e9 / (2 * n * k * m)))

        def product(a: torch.Tensor = a, b: torch.Tensor = b, repeats: int = repeats) -> None:
            for _ in range(repeats):
                torch.mm(a, b)

        rates.append(best_of(product, turns) / (repeats * 2 * n * k * m))
    return min(rates)


def operations(explainer: Any, *, joined: bool = False) -> int:
    """Multiply-adds of the network for one row, times two: its weight matrices, nothing else.

    `joined` counts the layer to the latent explanation and the head's first as the one that the graph makes of them.
    """
    network = explainer.fitted.network
    modules = [*network.encoder.modules(), *network.attribution.modules()]
    weights = sum(module.weight.numel() for module in modules if isinstance(module, torch.nn.Linear))
    latent, width = network.encoder[-1].weight.shape
    saved = latent * width + (latent - width) * network.attribution.layers[0].out_features
    return 2 * (weights - joined * saved)


def many_rows(explainer: Any, rows: np.ndarray, outputs: np.ndarray, threads: int) -> list[dict[str, Any]]:
    """`explain` on 100,000 rows, outputs given, and what it spends its time on."""
    torch.set_num_threads(threads)
    table = explainer._read(rows)
    known, empty = explainer._outputs(table, outputs)[0], explainer._empty(table)[0]
    session = explainer._onnxruntime()
    feeds = {"rows": table.matrix, "outputs": known}
    parts: dict[str, Callable[[], Any]] = {
        "explain": lambda: explainer.explain(rows, outputs=outputs),
        "explain with bounds": lambda: explainer.explain(rows, outputs=outputs, confidence=0.9),
        "reading and checking the table": lambda: explainer._read(rows),
        "the graph, in chunks": lambda: session.run(["values", "active"], feeds),
        "torch instead of onnxruntime": lambda: explainer._torch_answer(table, known, empty, errors=False),
    }
    seconds: dict[str, float] = {}
    rate = 0.0
    for _ in range(4):  # the matrix products take their turns too
        rate = max(rate, 1 / gemm_seconds(1))
        for name, found in in_turns(parts, 1).items():
            seconds[name] = min(found, seconds.get(name, found))
    needed, in_graph = operations(explainer), operations(explainer, joined=True)
    setting = f"{SETTING}, {len(rows):,} rows, outputs given, {threads} thread{'s' * (threads > 1)}"
    facts = {"operations_per_row": needed, "operations_per_row_of_the_graph": in_graph, "gemm_gflops": rate / 1e9}
    made = []
    for name, found in seconds.items():
        limit = {"expected_at_least": 0.7} if name == "explain" else {}
        of_all = name.startswith(("explain", "torch", "the graph"))
        metric = "share of the GEMM rate" if of_all else "share of explain's time"
        value = needed * len(rows) / rate / found if of_all else found / seconds["explain"]
        more = {"share_counting_the_graphs_operations": value * in_graph / needed} if of_all else {}
        made.append(record("runtime", setting, name, metric, value, seconds=found, **facts, **more, **limit))
        print(f"{threads} thread(s), {name}: {found:.3f} s, {value:.3f} {metric}")
    return made


def one_row(explainer: Any, rows: np.ndarray, outputs: np.ndarray) -> list[dict[str, Any]]:
    """A single row: what cortx adds to a bare call of the same graph for the same outputs."""
    torch.set_num_threads(1)
    row, output = rows[:1], outputs[:1]
    table = explainer._read(row)
    known, empty = explainer._outputs(table, output)[0], explainer._empty(table)[0]
    session = explainer._onnxruntime()
    bare, options = session._session, session._needed
    feeds = {"rows": table.matrix, "outputs": known}
    with tempfile.TemporaryDirectory() as folder:
        loaded = portable.load(explainer.to_onnx(Path(folder) / "p"), threads=1)
    names = ["values", "active"]
    seconds = in_turns(
        {
            "bare onnxruntime": lambda: bare.run(names, feeds, options),
            "explain's core, encoded row": lambda: explainer._answer(table, known, empty, errors=False),
        },
        2_000,
    )
    seconds |= in_turns(
        {
            "encoding and checking the row": lambda: explainer._read(row),
            "explain, whole": lambda: explainer.explain(row, outputs=output),
            "explain, whole, with bounds": lambda: explainer.explain(row, outputs=output, confidence=0.9),
            "portable.explain, whole": lambda: loaded.explain(row, output),
            "torch instead of onnxruntime, encoded row": lambda: explainer._torch_answer(
                table, known, empty, errors=False
            ),
        },
        500,
        twice=True,
    )
    made = []
    for name, found in seconds.items():
        limit = {"expected_at_most": 1.5} if name.startswith("explain's core") else {}
        ratio = found / seconds["bare onnxruntime"]
        made.append(record("runtime", f"{SETTING}, 1 row, 1 thread", name,
                           "seconds / seconds of a bare onnxruntime call", ratio, microseconds=found * 1e6,
                           **limit))  # fmt: skip
        print(f"one row, {name}: {found * 1e6:.0f} us, {ratio:.2f} x bare onnxruntime")
    return made


def against_shap(
    explainers: dict[str, Any], game: Any, census: Any, rows: np.ndarray, outputs: np.ndarray
) -> list[Any]:
    """Explanations per second and error, on the same model, rows and machine; shap gets the threads it likes best."""
    import shap

    logging.getLogger("shap").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    model = census.model

    def predict(matrix: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return torch.sigmoid(model(torch.from_numpy(np.asarray(matrix, dtype=np.float32)))).numpy().ravel()

    scored = census.x_test[np.random.default_rng(0).choice(len(census.x_test), SCORED_ROWS, replace=False)]
    np.testing.assert_allclose(predict(scored), game.outputs_of(game.rows(scored).table)[:, 0], atol=1e-6)
    truth, known = exact_values(game, scored), predict(scored)
    torch.set_num_threads(1)
    kernel = shap.KernelExplainer(predict, np.zeros((1, scored.shape[1]), dtype=np.float32))
    rival_error = float(
        metrics.l2_distance(kernel.shap_values(scored, nsamples=SHAP_SAMPLES, silent=True), truth).mean()
    )
    few = scored[:SHAP_ROWS]

    def rival(threads: int) -> None:
        torch.set_num_threads(threads)
        kernel.shap_values(few, nsamples=SHAP_SAMPLES, silent=True)

    def ours(explainer: Any, given: Any) -> None:
        torch.set_num_threads(2)
        explainer.explain(rows, given) if given is not None else explainer.explain(rows)

    calls: dict[str, Callable[[], Any]] = {f"shap {n}": lambda n=n: rival(n) for n in (1, 2)}  # type: ignore[misc]
    for name, explainer in explainers.items():
        calls[name] = lambda explainer=explainer: ours(explainer, outputs)  # type: ignore[misc]
    first = next(iter(explainers.values()))
    asked = f"{next(iter(explainers))}, the model asked too"
    calls[asked] = lambda: ours(first, None)
    seconds = in_turns(calls, 3)
    rival_seconds = min(seconds["shap 1"], seconds["shap 2"]) / len(few)
    setting = f"{SETTING}, {len(rows):,} rows, 2 threads, shap's KernelExplainer(nsamples={SHAP_SAMPLES})"
    made = []
    for name in [*explainers, asked]:
        explainer = explainers.get(name, first)
        error = float(metrics.l2_distance(explainer.explain(scored, known).values, truth).mean())
        ratio = rival_seconds / (seconds[name] / len(rows))
        facts = {"l2": error, "rival_l2": rival_error, "scored_rows": len(scored)}
        limit = {} if name == asked else {"expected_at_least": 1_000}
        made.append(record("runtime", setting, f"cortx {name} / shap kernel",
                           "explanations per second / explanations per second", ratio, seconds=seconds[name],
                           rival_seconds_per_row=rival_seconds, **facts, **limit))  # fmt: skip
        made.append(record("runtime", setting, f"cortx {name} / shap kernel", "mean l2 error / mean l2 error",
                           error / rival_error, **facts, expected_at_most=1))  # fmt: skip
        print(
            f"{name}: {ratio:,.0f} x shap ({len(rows) / seconds[name]:,.0f} against {1 / rival_seconds:,.0f} rows/s), "
            f"l2 error {error:.2e} against {rival_error:.2e}"
        )
    return made


def int8(explainer: Any, game: Any, census: Any, outputs: np.ndarray, rows: np.ndarray) -> list[dict[str, Any]]:
    """What int8 gains and loses."""
    scored = census.x_test
    truth, known = exact_values(game, scored), game.outputs_of(game.rows(scored).table)[:, 0]
    with tempfile.TemporaryDirectory() as folder:
        full = explainer.to_onnx(Path(folder) / "full")
        small = explainer.to_onnx(Path(folder) / "small", int8=True, rows=census.x_train[:2_000])
        sizes = [(path / "explainer.onnx").stat().st_size for path in (full, small)]
        both = [portable.load(path, threads=1) for path in (full, small)]
    seconds = in_turns({"full": lambda: both[0].explain(rows, outputs), "small": lambda: both[1].explain(rows, outputs),
                        "full, one": lambda: both[0].explain(rows[:1], outputs[:1]),
                        "small, one": lambda: both[1].explain(rows[:1], outputs[:1])}, 3)  # fmt: skip
    values = [loaded.explain(scored, known).values for loaded in both]
    errors = [float(metrics.l2_distance(found, truth).mean()) for found in values]
    away = metrics.l2_distance(values[1], values[0]).mean() / np.linalg.norm(values[0], axis=1).mean()
    assert both[1].facts.int8 is not None
    facts = {
        "l2": errors[1], "l2_float32": errors[0], "relative_error_on_test_rows": float(away),
        "relative_error_stated": both[1].facts.int8["relative_error"],
        "bytes": sizes[1], "bytes_float32": sizes[0],
    }  # fmt: skip
    made = []
    for name, what in (("", f"{len(rows):,} rows"), (", one", "1 row")):
        ratio = seconds[f"full{name}"] / seconds[f"small{name}"]
        made.append(record("runtime", f"{SETTING}, {what}, 1 thread", "int8 / float32",
                           "explanations per second / explanations per second", ratio, **facts))  # fmt: skip
        print(f"int8, {what}: {ratio:.2f} x as fast as float32")
    print(f"int8: {away:.2%} away from float32 on test rows, l2 error {errors[1]:.2e} against {errors[0]:.2e}")
    return made


def preparing(explainer: Any, row: np.ndarray, output: np.ndarray) -> list[dict[str, Any]]:
    """What the first call pays for the graph and its session, imports left out."""
    torch.set_num_threads(1)

    def first() -> None:
        explainer._session = None
        explainer.explain(row, outputs=output)

    found = best_of(first, 5)
    print(f"the first explain: {found * 1e3:.0f} ms")
    return [record("runtime", f"{SETTING}, 1 row, 1 thread", "the first explain: graph and session made", "seconds",
                   found, seconds=found)]  # fmt: skip


def quick(game: Any, census: Any) -> Any:
    """An explainer of the recipe "quick", kept in the cache."""
    path = CACHE / f"runtime-quick-{BUDGET}.cortx"
    if not path.exists():
        explainer = cortx.CoRTX("quick", unseen="ignore").fit(game, census.x_train, budget=BUDGET, progress=False)
        explainer.save(path)
    return cortx.load(path, model=census.model)


def main() -> None:
    one_fit(("zero", BUDGET, 0, CACHE))
    game, census = game_of("zero")
    explainer = cortx.load(place("zero", BUDGET, 0, CACHE), model=census.model)
    rows = np.resize(census.x_train, (N_ROWS, census.x_train.shape[1]))
    outputs = game.outputs_of(game.rows(rows).table)[:, 0]
    records: list[dict[str, Any]] = []
    records += preparing(explainer, rows[:1], outputs[:1])
    records += one_row(explainer, rows, outputs)
    for threads in (1, 2):
        records += many_rows(explainer, rows, outputs, threads)
    records += int8(explainer, game, census, outputs, rows)
    with tempfile.TemporaryDirectory() as folder:
        small = portable.load(explainer.to_onnx(Path(folder) / "small", int8=True), threads=2)
    explainers = {"explain, default recipe": explainer, "explain, default recipe in int8": small}
    records += against_shap(explainers | {"explain, quick recipe": quick(game, census)}, game, census, rows, outputs)
    write("runtime", records)


if __name__ == "__main__":
    main()
