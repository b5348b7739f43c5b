"""A model that takes 20 ms a row, explained in minutes: error and seconds of a whole fit, the model's own included.

    python -m benchmarks.slow_model [--budget 20000] [--seeds 0 1 2] [--kept model.npz]   # half an hour
    python -m benchmarks.slow_model --tiny --out FOLDER

Times mean something only where nothing else runs. The model is a committee of 900 kernel ridge regressions
(scikit-learn, Laplacian kernel, 2,500 rows of 20 columns each): 2.25 million kernels a row, about 20 ms of one core,
also in batches; the measured time a row, in calls of 64, stands with the results. It is called by `cortx.Calls`, two
calls at a time. The clock runs from the game to the finished explainer.

The truth, on 50 rows that no fit has seen, is exact and costs no evaluation: a Laplacian kernel is a product over
columns, and the Shapley values of a product game v(S) = prod_S a * prod_rest b are
(a_j - b_j) * integral over t in [0, 1] of the other columns' b + t (a - b), a polynomial of degree 19 that ten nodes of
Gauss and Legendre integrate exactly.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.records import RESULTS, over_seeds, write

Array = npt.NDArray[np.float64]
COLUMNS, MEMBER_ROWS, GAMMA, PENALTY = 20, 2_500, 0.03, 0.02
TABLE_ROWS, TRUTH_ROWS, CALL_ROWS = 4_000, 50, 64


def table(n_rows: int, seed: int) -> Array:
    """Columns that depend on each other, each between -2 and 2 or so."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n_rows, 4))
    return 0.5 * common[:, np.arange(COLUMNS) % 4] + 0.8 * rng.normal(size=(n_rows, COLUMNS))


def target(rows: Array, seed: int) -> Array:
    """Waves, products and steps of half of the columns, weak effects of the others, and noise."""
    x, rng = rows.T, np.random.default_rng(seed)
    strong = 2 * np.sin(1.5 * x[0]) + 1.5 * x[1] * x[2] + x[3] ** 2 + 2 * np.tanh(3 * x[4]) + x[5] * np.abs(x[6])
    medium = np.where(x[7] > 0, x[8], -x[9])
    made: Array = strong + medium + 0.2 * x[10:].sum(axis=0) + 0.3 * rng.normal(size=len(rows))
    return made


class Committee:
    """The mean of kernel ridge regressions, each of its own rows."""

    def __init__(self, centres: Array, weights: Array) -> None:
        """`centres` is (members, rows, columns), `weights` (members, rows)."""
        from sklearn.kernel_ridge import KernelRidge

        self.centres, self.weights, self.members = centres, weights, []
        for rows, dual in zip(centres, weights, strict=True):
            member = KernelRidge(kernel="laplacian", gamma=GAMMA)
            member.X_fit_, member.dual_coef_, member.n_features_in_ = rows, dual, COLUMNS
            self.members.append(member)

    @classmethod
    def fitted(cls, n_members: int) -> Committee:
        from sklearn.kernel_ridge import KernelRidge

        centres = np.stack([table(MEMBER_ROWS, 1_000 + i) for i in range(n_members)])

        def dual(i: int) -> Array:
            model = KernelRidge(kernel="laplacian", gamma=GAMMA, alpha=PENALTY)
            found: Array = model.fit(centres[i], target(centres[i], 1_000 + i)).dual_coef_
            return found

        with ThreadPoolExecutor(2) as pool:
            return cls(centres, np.stack(list(pool.map(dual, range(n_members)))))

    def predict(self, rows: Array) -> Array:
        total: Array = np.mean([member.predict(rows) for member in self.members], axis=0)
        return total


def product_values(present: Array, absent: Array, weights: Array) -> Array:
    """Shapley values of a weighted sum of product games, (players,).

    present, absent: (terms, players), each term's factor with and without a player, none of them near zero; weights:
    (terms,).
    """
    nodes, shares = np.polynomial.legendre.leggauss((present.shape[1] + 1) // 2)
    values = np.zeros(present.shape[1])
    for node, share in zip((nodes + 1) / 2, shares / 2, strict=True):
        between = absent + node * (present - absent)
        # Kernels of a moderate width are far from zero, so a product may be divided by one of its factors.
        others = between.prod(axis=1)[:, None] / between
        values += share * (weights[:, None] * (present - absent) * others).sum(axis=0)
    return values


def exact_values(model: Committee, row: Array, reference: Array) -> Array:
    """The Shapley values of one row, (columns,), by the integral over the product game of each centre."""
    values = np.zeros(COLUMNS)
    for centres, weights in zip(model.centres, model.weights, strict=True):
        present, absent = (np.exp(-GAMMA * np.abs(centres - at)) for at in (row, reference))  # (rows, columns)
        values += product_values(present, absent, weights)
    return values / len(model.centres)


def check_truth(model: Committee, row: Array, reference: Array) -> None:
    """Efficiency: the values add up to the model's own difference."""
    difference = np.diff(model.predict(np.stack([reference, row])))[0]
    np.testing.assert_allclose(exact_values(model, row, reference).sum(), difference, rtol=1e-6, atol=1e-8)


def one_fit(model: Committee, truth: Array, test: Array, seed: int, given: Any) -> dict[str, float]:
    import cortx
    from cortx.metrics import l2_distance, rank_accuracy

    rows = table(given.rows, 1)
    started, work = perf_counter(), process_time()
    calls = cortx.Calls(workers=given.workers, batch=CALL_ROWS)
    game = cortx.Game(model, reference=rows, output="raw", calls=calls)
    explainer = cortx.CoRTX(given.recipe, seed=seed).fit(game, rows, budget=given.budget, progress=False)
    seconds, work = perf_counter() - started, process_time() - work
    values = explainer.explain(test).values
    scores = {
        "relative l2": float(l2_distance(values, truth).mean() / np.linalg.norm(truth, axis=1).mean()),
        "rank accuracy": float(rank_accuracy(values, truth).mean()),
        "seconds": seconds,
        "processor seconds": work,
        "evaluations": float(explainer.costs_["total_evaluations"]),
    }
    print(f"seed {seed}: {scores}", flush=True)
    return scores


def seconds_a_row(model: Committee) -> float:
    """Of one core, in calls of 64 rows."""
    rows = table(CALL_ROWS, 3)
    model.predict(rows)
    started = perf_counter()
    model.predict(rows)
    return (perf_counter() - started) / CALL_ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--members", type=int, default=900)
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--kept", type=Path, help="An .npz file for the trained model, made if it is not there.")
    parser.add_argument("--rows", type=int, default=TABLE_ROWS, help="rows that the explainer learns from")
    parser.add_argument("--tiny", action="store_true", help="a small committee, the quick recipe, one seed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.tiny:
        if given.out == RESULTS:
            parser.error("--tiny is a trial: give --out FOLDER")
        given.members, given.budget, given.recipe, given.seeds, given.rows = 2, 6_000, "quick", [0], 600
    model = _model(given)
    test, reference = table(TRUTH_ROWS, 4), table(given.rows, 1).mean(axis=0)
    check_truth(model, test[0], reference)
    fresh = table(256, 2)
    known = np.corrcoef(model.predict(fresh), target(fresh, 2))[0, 1] ** 2
    each = seconds_a_row(model)
    print(
        f"{len(model.members)} members, R2 {known:.3f}, {1_000 * each:.1f} ms a row in calls of {CALL_ROWS}", flush=True
    )
    with ThreadPoolExecutor(2) as pool:
        truth = np.stack(list(pool.map(lambda row: exact_values(model, row, reference), test)))
    setting = f"{len(model.members)} kernel ridge regressions, {COLUMNS} columns, {given.budget:,} evaluations"
    found: list[dict[str, float]] = []
    for seed in given.seeds:
        found.append(one_fit(model, truth, test, seed, given))
        write(
            "slow_model",
            over_seeds(
                "slow model", setting, f"CoRTX ({given.recipe})", found, seeds=given.seeds[: len(found)],
                evaluations=float(np.mean([scores["evaluations"] for scores in found])),
                seconds=float(np.mean([scores["seconds"] for scores in found])),
                seconds_a_row=each, r2=float(known), workers=given.workers, test_rows=TRUTH_ROWS,
            ),
            given.out,
        )  # fmt: skip


def _model(given: Any) -> Committee:
    """The kept model, or one that is trained now and kept."""
    if given.kept is not None and given.kept.exists():
        kept = np.load(given.kept, allow_pickle=False)
        return Committee(kept["centres"], kept["weights"])
    model = Committee.fitted(given.members)
    if given.kept is not None:
        np.savez(given.kept, centres=model.centres, weights=model.weights)
    return model


if __name__ == "__main__":
    main()
