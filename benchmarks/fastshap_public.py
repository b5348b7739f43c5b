"""Our FastSHAP in its published form beside its authors' implementation, on the published Census target.

    git clone https://github.com/iancovert/fastshap
    CORTX_DATA=... python -m benchmarks.fastshap_public --checkout fastshap [--epochs 100] [--device cuda] [--workers 6]

Both see the same rows, game (sigmoid output, zero reference) and settings, and ask the model equally often. Their
schedule is 200 epochs at most; `--epochs` cuts both at the same place. The explainer networks standardize the table's
numbers, as the authors' Census notebook does. All test rows are scored, and nothing is chosen with them.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.census import exact_values
from benchmarks.records import RESULTS, record, write

VALIDATION_ROWS = 100
METHODS = ("public implementation", "ours, published form")
SETTING = "sigmoid output, zero reference, all test rows"


class ZeroImputer:
    """The game as the public implementation asks for it: rows and masks, (rows, players), to values, (rows, 1)."""

    def __init__(self, model: nn.Module, num_players: int) -> None:
        self.model, self.num_players, self.evaluations = model, num_players, 0

    def __call__(self, x: Tensor, S: Tensor) -> Tensor:
        self.evaluations += len(x)
        with torch.no_grad():
            return torch.sigmoid(self.model(x * S))[:, None]


class Standardize(nn.Module):
    def __init__(self, rows: np.ndarray) -> None:
        super().__init__()
        deviation = rows.std(axis=0)
        self.register_buffer("centre", torch.from_numpy(rows.mean(axis=0)).float())
        self.register_buffer("scale", torch.from_numpy(np.where(deviation > 0, deviation, 1.0)).float())

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.centre) / self.scale


@contextmanager
def as_it_was() -> Iterator[None]:
    """PyTorch as the public code knew it: its scheduler took `verbose`, and the global generator may be seeded."""
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau

    def with_verbose(*arguments: Any, verbose: bool = False, **settings: Any) -> Any:
        return scheduler(*arguments, **settings)

    torch.optim.lr_scheduler.ReduceLROnPlateau = with_verbose  # type: ignore[misc, assignment]
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*pin_memory.*")
            yield
    finally:
        torch.optim.lr_scheduler.ReduceLROnPlateau = scheduler  # type: ignore[misc]


def theirs(public: Any, census: Any, train: np.ndarray, held: np.ndarray, settings: Any, seed: int) -> dict[str, Any]:
    n = train.shape[1]
    device = next(census.model.parameters()).device
    imputer = ZeroImputer(census.model, n)
    started = perf_counter()
    with as_it_was():
        torch.manual_seed(seed)
        explainer = nn.Sequential(
            Standardize(train.astype(np.float64)),
            nn.Linear(n, settings.width),
            nn.ReLU(),
            nn.Linear(settings.width, settings.width),
            nn.ReLU(),
            nn.Linear(settings.width, n),
        ).to(device)
        fastshap = public.FastSHAP(explainer, imputer, normalization="additive")
        fastshap.train(
            train,
            held,
            batch_size=settings.batch_size,
            num_samples=settings.samples,
            max_epochs=settings.epochs,
            lr=settings.learning_rate,
            min_lr=settings.smallest_rate,
            lr_factor=settings.rate_factor,
            lookback=settings.lookback,
            validation_samples=settings.validation_samples,
            training_seed=seed,
            validation_seed=seed,
        )
    seconds, spent = perf_counter() - started, imputer.evaluations
    # Its shap_values takes one row at a time; what it does is done here for all rows at once.
    x = torch.from_numpy(census.x_test).to(device)
    with torch.no_grad():
        grand = imputer(x, torch.ones_like(x))
        values = public.evaluate_explainer(
            explainer, fastshap.normalization, x, grand, fastshap.null, n, inference=True
        )
    return {"values": values[..., 0].double().cpu().numpy(), "evaluations": spent, "seconds": seconds,
            "epochs": len(fastshap.loss_list)}  # fmt: skip


def ours(game: Any, census: Any, train: np.ndarray, held: np.ndarray, settings: Any, seed: int) -> dict[str, Any]:
    from cortx.rivals.fastshap import FastSHAP

    fitted = FastSHAP("published", settings=settings, seed=seed, device=str(game.model.device))
    fitted.fit(game, train, validation=held, progress=False)
    costs = fitted.costs_
    return {
        "values": fitted.explain(census.x_test).values,
        **{k: costs[k] for k in ("evaluations", "seconds", "epochs")},
    }


def one_fit(job: tuple[str, int, argparse.Namespace]) -> tuple[str, dict[str, Any]]:
    method, seed, arguments = job
    import cortx
    from cortx import metrics
    from cortx.paper.census import load_census
    from cortx.rivals.fastshap import PublishedSettings

    torch.set_num_threads(arguments.threads)
    sys.path.insert(0, str(arguments.checkout))
    census = load_census()
    census.model.to(arguments.device)
    settings = replace(PublishedSettings(), epochs=arguments.epochs)
    order = np.random.default_rng(seed).permutation(len(census.x_train))
    train, held = census.x_train[order[VALIDATION_ROWS:]], census.x_train[order[:VALIDATION_ROWS]]
    game = cortx.Game(census.model, reference="zero", output="probability", categorical=census.categorical)
    if method == "public implementation":
        result = theirs(importlib.import_module("fastshap.fastshap"), census, train, held, settings, seed)
    else:
        result = ours(game, census, train, held, settings, seed)
    truth, values = exact_values(game, census.x_test), result.pop("values")
    result["scores"] = {
        "l2": float(metrics.l2_distance(values, truth).mean()),
        "squared_l2": float(metrics.squared_l2(values, truth).mean()),
        "rank_accuracy": float(metrics.rank_accuracy(values, truth).mean()),
    }
    print(f"{method}, seed {seed}: {result}", flush=True)
    return method, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="a clone of the public implementation")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if not (arguments.checkout / "fastshap" / "fastshap.py").is_file():
        parser.error(f"{arguments.checkout} holds no fastshap/fastshap.py; clone https://github.com/iancovert/fastshap")
    jobs = [(method, seed, arguments) for method in METHODS for seed in arguments.seeds]
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        results = pool.map(one_fit, jobs, chunksize=1)
    done = {method: [result for name, result in results if name == method] for method in METHODS}
    records = [
        record(
            "fastshap_public",
            SETTING,
            method,
            metric,
            [fit["scores"][metric] for fit in fits],
            seeds=arguments.seeds,
            evaluations=float(np.mean([fit["evaluations"] for fit in fits])),
            seconds=float(np.mean([fit["seconds"] for fit in fits])),
            threads=arguments.threads,
            device=arguments.device,
            epochs=[fit["epochs"] for fit in fits],
            most_epochs=arguments.epochs,
            each=[fit["scores"][metric] for fit in fits],
        )
        for method, fits in done.items()
        for metric in ("l2", "squared_l2", "rank_accuracy")
    ]
    write("fastshap_public", records, arguments.out)


if __name__ == "__main__":
    main()
