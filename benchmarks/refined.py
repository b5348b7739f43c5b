"""Do the bounds of refined rows hold, whenever refinement stops? Random splits of rows that no fit has seen.

    CORTX_DATA=... python -m benchmarks.refined [--seeds 0 1 2]

A tanh network, boosted trees and the published Census target, with exact labels. For each of 100 random splits the
calibration rows give one factor for all rounds together; of the other rows, the share is counted whose errors stay
within their bounds in every round at once, and where a tolerance makes each row stop. Where the explainer has a
student, rows refined with and without it are compared.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

import cortx
from benchmarks.budgets import game_of
from benchmarks.coverage import CALIBRATION, CONFIDENCE, SPLITS, hours
from benchmarks.records import RESULTS, over_seeds, write
from cortx.explainer.calibration import Calibration
from cortx.explainer.refine import LONGEST_ROUND, Refinable, round_sizes, row_deviation

EVALUATIONS = 65
"""Of a row, its own output included, where a student is compared with none."""
TOLERANCES = (0.5, 0.25, 0.1)
"""Of the median bound without refinement."""


@dataclass(frozen=True)
class Rounds:
    """Of every row and round (the first is the network's answer): (rounds, rows); rows that are exact by then have 0.

    away: the l2 error; row: its typical size; band: the largest error of a value over its typical size.
    """

    away: np.ndarray
    row: np.ndarray
    band: np.ndarray
    values: np.ndarray
    """Values v(S) asked for, (rounds, rows)."""


def rounds_of(explainer: cortx.CoRTX, labels: cortx.Explanation) -> Rounds:
    """Every round that refinement could stop at, in the library's own way."""
    game = explainer.game
    assert game is not None
    rows, outputs = game.rows(labels.data), labels.outputs.reshape(len(labels), -1)
    table = explainer._read(labels.data)
    empty = explainer._empty(table)[0]
    answer = explainer._answer(table, outputs, empty, errors=True)
    truth = labels.values.reshape(answer.values.shape)
    most = len(round_sizes(63, LONGEST_ROUND))
    away, row, band, values = (np.zeros((most + 1, len(rows))) for _ in range(4))
    residual = truth - answer.values
    away[0], row[0] = np.linalg.norm(residual[..., 0], axis=1), answer.typical_row[:, 0]
    band[0] = np.where(answer.active, np.abs(residual / answer.typical)[..., 0], 0.0).max(axis=1)
    fitted = explainer.fitted
    some = Refinable(game, rows, outputs, empty, answer, fitted.seed, fitted.student)
    for index, refinement in some.blocks(np.arange(len(rows)), LONGEST_ROUND):
        place = index[:, None], refinement.block.active
        for number, size in enumerate(round_sizes(refinement.block.n_players, LONGEST_ROUND), start=1):
            estimate = refinement.estimate(np.arange(len(index)), size)
            residual = truth[place] - estimate.values
            away[number, index] = np.linalg.norm(residual[..., 0], axis=1)
            row[number, index] = row_deviation(estimate.errors)[:, 0]
            band[number, index] = np.abs(residual / estimate.errors)[..., 0].max(axis=1)
            values[number, index] = size
    return Rounds(away, row, band, values)


def student_scores(explainer: cortx.CoRTX, labels: cortx.Explanation) -> dict[str, float]:
    """Squared errors of rows refined with the explainer's student and without, from the same values; {} without one."""
    game, student = explainer.game, explainer.fitted.student
    if game is None or student is None:
        return {}
    scores: dict[str, float] = {}
    for name, unbiased in (("", False), (", unbiased", True)):
        with_student, without = (
            float(
                np.square(
                    cortx.shapley(
                        game, labels.data, "amortized", row_budget=EVALUATIONS, explainer=explainer, unbiased=unbiased,
                        student=who, views=0, progress=False,
                    ).values - labels.values
                ).sum(axis=1).mean()
            )
            for who in (student, None)
        )  # fmt: skip
        scores[f"squared error after {EVALUATIONS} evaluations{name}"] = with_student
        scores[f"squared error after {EVALUATIONS} evaluations{name}, without the student"] = without
        scores[f"squared error without the student over that with it{name}"] = without / with_student
    return scores


def study(rounds: Rounds, n_calibration: int = CALIBRATION, splits: int = SPLITS) -> dict[str, float]:
    generator = np.random.default_rng(0)
    row = np.where(rounds.row > 0, rounds.away / np.where(rounds.row > 0, rounds.row, 1.0), 0.0)
    results = []
    for _ in range(splits):
        order = generator.permutation(row.shape[1])
        old, fresh = order[:n_calibration], order[n_calibration:]
        joint = [scores[:, old].max(axis=0)[:, None] for scores in (row, rounds.band)]
        made = Calibration(*joint, noise_risk=0.0, mean_l2=np.zeros(1), evaluations=0)
        row_factor, band_factor = (float(factor[0]) for factor in made.factors(CONFIDENCE))
        held, inside = row[:, fresh] <= row_factor, rounds.band[:, fresh] <= band_factor
        found = {
            "all rounds jointly, rows": held.all(axis=0).mean(),
            "all rounds jointly, bands": inside.all(axis=0).mean(),
            "factor of rows": row_factor,
            "factor of bands": band_factor,
        }
        bound = rounds.row[:, fresh] * row_factor  # (rounds, rows): zero where exact
        for share in TOLERANCES:
            tolerance = share * np.median(bound[0])
            stop = (bound <= tolerance).argmax(axis=0)  # the first round that meets it, or where the row is exact
            at = stop, np.arange(len(fresh))
            name = f"at the stop, tolerance {share:g} of the median bound"
            found[f"{name}, rows"] = held[at].mean()
            found[f"{name}, bands"] = inside[at].mean()
        results.append(found)
    means = {name: float(np.mean([result[name] for result in results])) for name in results[0]}
    means["largest error over its bound, any round"] = float(row.max() / means["factor of rows"])
    return means


# Games -----------------------------------------------------------------------------------------------------------


def tanh_network() -> tuple[cortx.Game, Any]:
    generator = torch.Generator().manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(11, 24), torch.nn.Tanh(), torch.nn.Linear(24, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)
    rows = np.random.default_rng(1).normal(size=(8_000, 11)).astype(np.float32)
    return cortx.Game(model, reference=rows, output="raw"), rows


def census() -> tuple[cortx.Game, Any]:
    game, data = game_of("zero")
    return game, data.x_train


def census_mean() -> tuple[cortx.Game, Any]:
    game, data = game_of("mean")
    return game, data.x_train


DATA: dict[str, tuple[Callable[[], tuple[cortx.Game, Any]], int]] = {
    "tanh network (11 features)": (tanh_network, 400_000),
    "boosted trees (hours per week, 10 features)": (hours, 400_000),
    "Census target (13 features)": (census, 700_000),
    "Census target, linear output, mean reference (13 features)": (census_mean, 65_000),
}


def take(rows: Any, index: np.ndarray) -> Any:
    return rows[index] if isinstance(rows, np.ndarray) else rows.iloc[index].reset_index(drop=True)


def one(job: tuple[str, int, int]) -> tuple[dict[str, float], int, float]:
    """Scores of one game and seed, the evaluations and the seconds of its fit."""
    name, seed, size = job
    torch.set_num_threads(1)
    make, budget = DATA[name]
    game, rows = make()
    order = np.random.default_rng(seed).permutation(len(rows))
    held, training = take(rows, order[:size]), take(rows, order[size:])
    started = perf_counter()
    explainer = cortx.CoRTX("quick", seed=seed, unseen="ignore").fit(game, training, budget=budget, progress=False)
    seconds = perf_counter() - started
    labels = cortx.shapley(game, held, "exact", views=0, progress=False)
    scores = {**study(rounds_of(explainer, labels)), **student_scores(explainer, labels)}
    # And with the calibration of the fit itself, through `explain`.
    plain = explainer.explain(held, confidence=CONFIDENCE)
    tolerance = float(np.median(plain.error_bound)) / 4
    shown = explainer.explain(held, confidence=CONFIDENCE, tolerance=tolerance)
    error = np.linalg.norm(labels.values - shown.values, axis=1)
    scores["explain with a tolerance of a quarter of the median bound: errors within bounds"] = float(
        (error <= shown.error_bound + 1e-12).mean()
    )
    scores["explain with a tolerance: evaluations per row"] = shown.evaluations / len(held)
    print(f"{name}, seed {seed}: {scores}", flush=True)
    return scores, explainer.costs_["total_evaluations"], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--pool", type=int, default=1_000)
    parser.add_argument("--only", nargs="*", default=list(DATA))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    jobs = [(name, seed, arguments.pool) for name in arguments.only for seed in arguments.seeds]
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        done = dict(zip(jobs, pool.map(one, jobs, chunksize=1), strict=True))
    records = []
    for name in arguments.only:
        found, evaluations, seconds = zip(*(done[name, seed, arguments.pool] for seed in arguments.seeds), strict=True)
        records += over_seeds(
            "refined", f"{name}, {CONFIDENCE:.0%}, {SPLITS} splits", "cortx quick", found, seeds=arguments.seeds,
            evaluations=float(np.mean(evaluations)), seconds=float(np.mean(seconds)),
            calibration_rows=CALIBRATION, fresh_rows=arguments.pool - CALIBRATION,
        )  # fmt: skip
    write("refined", records, arguments.out)


if __name__ == "__main__":
    main()
