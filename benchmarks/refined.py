"""Do the bounds of refined rows hold, whenever refinement stops? And what is a student worth in it?

    CORTX_DATA=... python -m benchmarks.refined                                        # all runs here, one by one
    CORTX_DATA=... python -m benchmarks.refined run --problem tanh --seed 0 --out FOLDER
    python -m benchmarks.refined jobs
    python -m benchmarks.refined collect FOLDER

A tanh network, boosted trees and the published Census target, with exact labels. For each of 100 random splits the
calibration rows give factors that hold for the answer and all rounds together; of the other rows, the share is counted
whose errors stay within their bounds in every round at once, and where a tolerance makes each row stop. Where the
explainer has a student, rows refined with and without it are compared (`benchmarks.taught` does so for fits of the
default recipe, and compares the mean over 1,000 repeats of the unbiased mode with exact values). One run is one fit in
a process of its own, on one thread, and leaves one JSON file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

import cortx
from benchmarks.budgets import game_of
from benchmarks.census import CACHE
from benchmarks.coverage import CALIBRATION, CONFIDENCE, SPLITS, hours
from benchmarks.records import RESULTS, hardware, over_seeds, versions, write
from cortx.explainer.calibration import Calibration, RoundScores
from cortx.explainer.refine import LONGEST_ROUND, Refinable, round_sizes, row_deviation
from cortx.paper.records import write_json
from cortx.training.recipe import Recipe, get_recipe

EVALUATIONS = 65
"""Of a row, its own output included, where a student is compared with none."""
TOLERANCES = (0.5, 0.25, 0.1)
"""Of the median bound without refinement."""
REPEATED_ROWS = 8
"""Of the unbiased mode."""
SEEDS = (0, 1, 2)


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
    truth = labels.values.reshape(len(labels), -1)
    for name, unbiased in (("", False), (", unbiased", True)):
        with_student, without = (
            float(
                np.square(
                    cortx.shapley(
                        game, labels.data, "amortized", row_budget=EVALUATIONS, explainer=explainer, unbiased=unbiased,
                        student=who, views=0, progress=False,
                    ).values - truth
                ).sum(axis=1).mean()
            )
            for who in (student, None)
        )  # fmt: skip
        scores[f"squared error after {EVALUATIONS} evaluations{name}"] = with_student
        scores[f"squared error after {EVALUATIONS} evaluations{name}, without the student"] = without
        scores[f"squared error without the student over that with it{name}"] = without / with_student
    return scores


def unbiased_scores(explainer: cortx.CoRTX, labels: cortx.Explanation, repeats: int) -> dict[str, float]:
    """How far the mean over repeats of the unbiased mode is from exact values, in standard errors of that mean.

    Without bias the root mean square is near 1, and of some hundred values the largest is seldom above 4.
    """
    game, student = explainer.game, explainer.fitted.student
    if game is None or student is None or repeats < 2:
        return {}
    some = take(labels.data, np.arange(REPEATED_ROWS))
    drawn = np.stack([
        cortx.shapley(
            game, some, "amortized", row_budget=EVALUATIONS, explainer=explainer, unbiased=True, student=student,
            views=0, seed=seed, progress=False,
        ).values
        for seed in range(repeats)
    ])  # fmt: skip
    spread = drawn.std(axis=0, ddof=1) / np.sqrt(repeats)
    truth = labels.values[:REPEATED_ROWS].reshape(len(some), -1)
    away = (drawn.mean(axis=0) - truth)[spread > 0] / spread[spread > 0]
    name = f"unbiased mode, mean of {repeats:,} repeats: difference to exact values in standard errors"
    return {
        f"{name}, root mean square": float(np.sqrt(np.square(away).mean())),
        f"{name}, largest": float(np.abs(away).max()),
    }


def study(rounds: Rounds, n_calibration: int = CALIBRATION, splits: int = SPLITS) -> dict[str, float]:
    generator = np.random.default_rng(0)
    row = np.where(rounds.row > 0, rounds.away / np.where(rounds.row > 0, rounds.row, 1.0), 0.0)
    results = []
    for _ in range(splits):
        order = generator.permutation(row.shape[1])
        old, fresh = order[:n_calibration], order[n_calibration:]
        rows, bands = (scores[:, old, None] for scores in (row, rounds.band))  # (rounds, calibration rows, 1)
        tried = RoundScores(rows[1:].max(axis=0), bands[1:].max(axis=0), LONGEST_ROUND)
        made = Calibration(rows[0], bands[0], noise_risk=0.0, mean_l2=np.zeros(1), evaluations=0, rounds=tried)
        of_answer, of_rounds = made.factors(CONFIDENCE, refined=True), made.round_factors(CONFIDENCE)
        row_factor, band_factor = (
            np.concatenate([answer, np.repeat(refined, len(row) - 1)])[:, None]
            for answer, refined in zip(of_answer, of_rounds, strict=True)
        )  # (rounds, 1)
        held, inside = row[:, fresh] <= row_factor, rounds.band[:, fresh] <= band_factor
        found = {
            "all rounds jointly, rows": held.all(axis=0).mean(),
            "all rounds jointly, bands": inside.all(axis=0).mean(),
            "factor of rows": row_factor[0, 0],
            "factor of bands": band_factor[0, 0],
            "factor of rows, refined": row_factor[1, 0],
            "factor of bands, refined": band_factor[1, 0],
        }
        bound = rounds.row[:, fresh] * row_factor  # (rounds, rows): zero where exact
        found["largest error over its bound, any round"] = (row[:, fresh] / row_factor).max()
        for share in TOLERANCES:
            tolerance = share * np.median(bound[0])
            stop = (bound <= tolerance).argmax(axis=0)  # the first round that meets it, or where the row is exact
            at = stop, np.arange(len(fresh))
            name = f"at the stop, tolerance {share:g} of the median bound"
            found[f"{name}, rows"] = held[at].mean()
            found[f"{name}, bands"] = inside[at].mean()
        results.append(found)
    return {name: float(np.mean([result[name] for result in results])) for name in results[0]}


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


@dataclass(frozen=True)
class Case:
    """A game, and how it is fitted."""

    name: str
    make: Callable[[], tuple[cortx.Game, Any]]
    budget: int
    recipe: str = "quick"


PROBLEMS = {
    "tanh": Case("tanh network (11 features)", tanh_network, 400_000),
    "hours": Case("boosted trees (hours per week, 10 features)", partial(hours, black_box=True), 400_000),
    "census-zero": Case("Census target (13 features)", census, 700_000),
}


def take(rows: Any, index: np.ndarray) -> Any:
    return rows[index] if isinstance(rows, np.ndarray) else rows.iloc[index].reset_index(drop=True)


def run(problem: str, seed: int, folder: Path, *, pool: int = 1_000, tiny: bool = False) -> None:
    """One fit, its scores, and the part that keeps them."""
    torch.set_num_threads(1)
    case = PROBLEMS[problem]
    recipe, budget = get_recipe(case.recipe), case.budget  # type: ignore[arg-type]
    game, rows = case.make()
    order = np.random.default_rng(seed).permutation(len(rows))
    if tiny:
        recipe, budget, pool, order = _shortened(recipe), 20_000, 300, order[:2_000]
    held, training = take(rows, order[:pool]), take(rows, order[pool:])
    started = perf_counter()
    explainer = cortx.CoRTX(recipe, seed=seed, unseen="ignore").fit(game, training, budget=budget, progress=False)
    seconds = perf_counter() - started
    labels = cortx.shapley(game, held, "exact", views=0, progress=False)
    scores = study(rounds_of(explainer, labels), min(CALIBRATION, pool // 2))
    scores |= student_scores(explainer, labels)
    # And with the calibration of the fit itself, through `explain`.
    plain = explainer.explain(held, confidence=CONFIDENCE)
    tolerance = float(np.median(plain.error_bound)) / 4
    shown = explainer.explain(held, confidence=CONFIDENCE, tolerance=tolerance)
    error = np.linalg.norm(labels.values - shown.values, axis=1)
    scores["explain with a tolerance of a quarter of the median bound: errors within bounds"] = float(
        (error <= shown.error_bound + 1e-12).mean()
    )
    scores["explain with a tolerance: evaluations per row"] = shown.evaluations / len(held)
    evaluations = explainer.costs_["total_evaluations"]
    part = {
        "problem": problem, "seed": seed, "tiny": tiny, "pool": pool, "scores": scores, "evaluations": evaluations,
        "seconds": seconds, "hardware": hardware(), "versions": versions(),
    }  # fmt: skip
    write_json(folder / "parts" / f"{problem}-{seed}.json", part)
    print(f"{problem}, seed {seed}: {evaluations:,} evaluations, {seconds:.0f} s, {scores}", flush=True)


def _shortened(recipe: Recipe) -> Recipe:
    from benchmarks.taught import shortened

    return shortened(recipe)


def collect(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of all parts: means over seeds."""
    records = []
    for problem, case in PROBLEMS.items():
        found = sorted((part for part in parts if part["problem"] == problem), key=lambda part: part["seed"])
        if not found:
            continue
        scores = [part["scores"] for part in found]
        records += over_seeds(
            "refined", f"{case.name}, {CONFIDENCE:.0%}, {SPLITS} splits", f"cortx {case.recipe}", scores,
            seeds=[part["seed"] for part in found],
            evaluations=float(np.mean([part["evaluations"] for part in found])),
            seconds=float(np.mean([part["seconds"] for part in found])),
            budget=case.budget, calibration_rows=CALIBRATION, fresh_rows=found[0]["pool"] - CALIBRATION,
            hardware=found[0]["hardware"], versions=found[0]["versions"],
        )  # fmt: skip
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    command = commands.add_parser("run", help="one fit")
    command.add_argument("--problem", choices=PROBLEMS, required=True)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--out", type=Path, required=True, help="the folder of parts")
    command.add_argument("--tiny", action="store_true", help="few rows, next to no training")
    commands.add_parser("jobs", help="print the arguments of all runs")
    command = commands.add_parser("collect", help="make the records of all parts")
    command.add_argument("folder", type=Path)
    command.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    jobs = [(problem, seed) for problem in reversed(PROBLEMS) for seed in SEEDS]
    if given.command == "run":
        run(given.problem, given.seed, given.out, tiny=given.tiny)
    elif given.command == "jobs":
        print("\n".join(f"--problem {problem} --seed {seed}" for problem, seed in jobs))
    else:
        folder = CACHE / "refined" if given.command is None else given.folder
        if given.command is None:
            for job in jobs:
                run(*job, folder)
        parts = [json.loads(path.read_text()) for path in sorted((folder / "parts").glob("*.json"))]
        if any(part.get("tiny") for part in parts) and (given.command is None or given.out == RESULTS):
            raise SystemExit("these are parts of --tiny runs, which are no results; collect them with --out FOLDER")
        write("refined", collect(parts), RESULTS if given.command is None else given.out)


if __name__ == "__main__":
    main()
