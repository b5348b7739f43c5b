"""Speed as ratios in one run: labels against the model's own forward passes and against shap; explaining against GEMM.

python -m benchmarks.speed
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch

import cortx
from benchmarks.records import record, write
from cortx.training.recipe import get_recipe

PLAYERS = 13


def best_of(function: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the fastest of several runs, after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        started = perf_counter()
        function()
        times.append(perf_counter() - started)
    return min(times)


def best_of_both(first: Callable[[], Any], second: Callable[[], Any], repeats: int = 9) -> tuple[float, float]:
    """`best_of` for two functions that take turns, so that a slow moment of the machine meets both."""
    times = [(best_of(first, 1), best_of(second, 1)) for _ in range(repeats)]
    return min(time for time, _ in times), min(time for _, time in times)


def make_model(width: int = 128) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(PLAYERS, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 1),
    )
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                layer.weight.copy_(
                    torch.randn(layer.weight.shape, generator=generator) * (2 / layer.in_features) ** 0.5
                )
                layer.bias.zero_()
    return model.eval()


def labelling(model: torch.nn.Module, records: list[dict[str, Any]]) -> None:
    rows = np.random.default_rng(0).normal(size=(256, PLAYERS)).astype(np.float32)
    game = cortx.Game(model, reference="zero")
    labels = cortx.shapley(game, rows, "exact")
    chunk = game.model.pass_rows  # type: ignore[attr-defined]
    batch = torch.from_numpy(np.resize(rows, (chunk, PLAYERS)))

    def forward() -> None:
        with torch.inference_mode():
            for start in range(0, labels.evaluations, chunk):
                model(batch[: min(chunk, labels.evaluations - start)])

    setting = f"MLP 13-128-128-1, {len(rows)} rows, {PLAYERS} players, passes of {chunk} rows"
    for name, views in (("cortx exact", 0), ("cortx exact, with 256 free views of every row", None)):
        ours, own = best_of_both(lambda v=views: cortx.shapley(game, rows, "exact", views=v), forward)  # type: ignore[misc]
        records.append(record("speed", setting, name, "seconds / seconds of the forward passes", ours / own,
                              evaluations=labels.evaluations, seconds=ours, expected_at_most=1.3))  # fmt: skip
        print(f"{name}: {ours / own:.2f} x the model's own forward passes")
    shap_rivals(model, game, rows, records)


def shap_rivals(model: torch.nn.Module, game: cortx.Game, rows: np.ndarray, records: list[dict[str, Any]]) -> None:
    import shap

    logging.getLogger("shap").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")

    def predict(matrix: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(np.asarray(matrix, dtype=np.float32)))[:, 0].numpy()

    reference = np.zeros((1, PLAYERS), dtype=np.float32)
    truth = cortx.shapley(game, rows, "exact").values
    setting = f"MLP 13-128-128-1, {PLAYERS} players, zero reference"
    few = rows[:8]
    exact = shap.explainers.Exact(predict, shap.maskers.Independent(reference))
    seconds, ours = best_of_both(lambda: exact(few), lambda: cortx.shapley(game, rows[:64], "exact", views=0), 5)
    seconds, exact_seconds = seconds / len(few), ours / 64
    difference = float(np.abs(exact(few).values - truth[: len(few)]).max())
    records.append(record("speed", setting, "shap exact / cortx exact", "seconds per row / seconds per row",
                          seconds / exact_seconds, seconds=seconds, largest_difference=difference,
                          expected_at_least=3))  # fmt: skip
    print(
        f"shap exact takes {seconds / exact_seconds:.1f} x as long as cortx exact (values differ by {difference:.1e})"
    )
    kernel = shap.KernelExplainer(predict, reference)
    for samples in (300, 1_000):
        theirs = kernel.shap_values(few, nsamples=samples, silent=True)
        error = float(((theirs - truth[: len(few)]) ** 2).sum(axis=1).mean())
        rival = best_of(lambda n=samples: kernel.shap_values(few, nsamples=n, silent=True), 2) / len(few)  # type: ignore[misc]
        for method in ("kernel", "permutation"):
            budget, ours = equal_error(game, rows, truth, method, error)
            time = best_of(lambda m=method, b=budget: cortx.shapley(game, rows, m, row_budget=b, views=0), 3) / len(
                rows
            )  # type: ignore[misc]
            records.append(record("speed", f"{setting}, at the error of shap's KernelExplainer with {samples} samples",
                                  f"shap kernel / cortx {method}", "seconds per row / seconds per row", rival / time,
                                  evaluations=budget, seconds=time, squared_error=ours, rival_squared_error=error,
                                  rival_evaluations=samples, expected_at_least=10))  # fmt: skip
            print(f"shap kernel {samples} takes {rival / time:.0f} x as long as cortx {method} {budget} "
                  f"(squared error {error:.2e} and {ours:.2e})")  # fmt: skip


def equal_error(game: cortx.Game, rows: np.ndarray, truth: np.ndarray, method: str, error: float) -> tuple[int, float]:
    """The smallest budget (in steps of a fifth) with at most this mean squared error per row."""
    budget = 32.0
    while True:
        labels = cortx.shapley(game, rows, method, row_budget=int(budget), views=0)
        ours = float(((labels.values - truth) ** 2).sum(axis=1).mean())
        if ours <= error:
            return int(budget), ours
        budget *= 1.2


def explaining(model: torch.nn.Module, records: list[dict[str, Any]]) -> None:
    """The explainer's own speed: it is a small network, so the machine's matrix product rate is the limit."""
    from dataclasses import replace

    generator = np.random.default_rng(1)
    rows = generator.normal(size=(20_000, PLAYERS)).astype(np.float32)
    game = cortx.Game(model, reference="zero")
    for name in ("default", "quick"):
        recipe = get_recipe(name)  # type: ignore[arg-type]
        untrained = replace(
            recipe, pretrain=replace(recipe.pretrain, steps=0), attribution=replace(recipe.attribution, steps=1)
        )
        explainer = cortx.CoRTX(untrained).fit(game, rows[:500], n_labels=20)
        outputs = explainer.explain(rows).outputs
        seconds = best_of(lambda e=explainer, o=outputs: e.explain(rows, outputs=o)) / len(rows)  # type: ignore[misc]
        single = best_of(lambda e=explainer, o=outputs: e.explain(rows[:1], outputs=o[:1]), 50)  # type: ignore[misc]
        network = explainer.fitted.network
        weights = sum(p.numel() for p in network.encoder.parameters()) + sum(
            p.numel() for p in network.heads.parameters()
        )
        gemm = gemm_rate()
        share = 2 * weights / seconds / gemm
        exact = cortx.shapley(game, rows[:64], "exact", views=0)
        setting = f"{PLAYERS} features, recipe {name}, outputs given"
        records.append(record("speed", setting, "cortx explain", "rows per second", 1 / seconds, seconds=seconds))
        records.append(record("speed", setting, "cortx explain", "share of the GEMM rate", share, seconds=seconds))
        records.append(record("speed", setting, "cortx explain", "seconds for a single row", single, seconds=single))
        records.append(record("speed", setting, "cortx exact / cortx explain", "seconds per row / seconds per row",
                              exact.seconds / 64 / seconds, evaluations=exact.evaluations / 64))  # fmt: skip
        print(
            f"explain ({name}): {1 / seconds:,.0f} rows/s, {share:.2f} of the GEMM rate, one row {single * 1e6:.0f} us"
        )


def gemm_rate(size: int = 1_024) -> float:
    """Floating point operations per second of a float32 matrix product."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / best_of(lambda: a @ b, 10)


def main() -> None:
    model, records = make_model(), []  # type: ignore[var-annotated]
    labelling(model, records)
    explaining(model, records)
    write("speed", records)


if __name__ == "__main__":
    main()
