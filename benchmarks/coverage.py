"""Do 90% bounds cover 90% of fresh rows? Random splits of rows that no fit has seen.

    CORTX_DATA=... python -m benchmarks.coverage [--seeds 0 1 2]

Three data sets beside the published Census target (which `benchmarks.budgets` scores in the same way): a regression,
several classes, and groups of columns, each with labels that are exact; and one with 30 features, where labels are
sampled and their noise must be accounted for.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

import cortx
from benchmarks.records import over_seeds, write
from cortx.explainer.calibration import Calibration, calibrate, calibrate_seen
from cortx.explainer.control import METHOD
from cortx.explainer.fit import seen_residuals
from cortx.explainer.labels import Labels
from cortx.explainer.noise import Seen
from cortx.explainer.refine import Predicted, Refinable
from cortx.explanation import take_rows
from cortx.paper.census import data_folder
from cortx.seeding import stream_seed

SPLITS, CONFIDENCE, CALIBRATION = 100, 0.9, 200


@dataclass(frozen=True)
class Pool:
    """Rows that no fit has seen: what the explainer says, how far off it is, and labels of the first of them.

    typical: (rows, players, outputs); typical_row: (rows, outputs); active: (rows, players). Those that calibrate are
    drawn from the first rows, which are labelled: residual, errors, known and seen are theirs.
    """

    residual: np.ndarray
    errors: np.ndarray
    typical: np.ndarray
    typical_row: np.ndarray
    active: np.ndarray
    truth: np.ndarray
    """What coverage is judged by: the labels' values, or more precise ones."""
    predicted: np.ndarray
    known: np.ndarray | None = None
    """Where labels are noisy by a known variance: the part of the residuals without noise, and `seen` the rest."""
    seen: Seen | None = None

    def __len__(self) -> int:
        return len(self.truth)

    def calibrated(self, rows: np.ndarray, *, weighted: bool = True) -> Calibration:
        """What the library makes of the labels of these rows."""
        typical, typical_row = self.typical[rows], self.typical_row[rows]
        if not weighted:
            typical, typical_row = np.ones_like(typical), np.ones_like(typical_row)
        if self.seen is None or self.known is None:
            active = self.active[rows]
            return calibrate(self.residual[rows], self.errors[rows], typical, typical_row, active, evaluations=0)
        seen = self.seen.take(rows)
        return calibrate_seen(self.known[rows], seen, typical, typical_row, evaluations=0, seed=0)


def pool_of(explainer: cortx.CoRTX, labels: cortx.Explanation, truth: np.ndarray | None = None) -> Pool:
    """`labels` calibrate; `truth`, if it is given, is more precise and judges."""
    n_rows, n_players = labels.values.shape[:2]
    shape = (n_rows, n_players, -1)
    outputs = labels.outputs.reshape(n_rows, -1)
    table = explainer._read(labels.data)
    answer = explainer._answer(table, outputs, explainer._empty(table)[0], errors=True)
    precise = labels.values.reshape(shape)
    return Pool(
        residual=precise - answer.values,
        errors=labels.error_std.reshape(shape),
        typical=answer.typical,
        typical_row=answer.typical_row,
        active=answer.active,
        truth=precise if truth is None else truth.reshape(shape),
        predicted=answer.values,
    )


def pool_by_student(explainer: cortx.CoRTX, rows: Any, truth: np.ndarray, labelled: int, values: int) -> Pool:
    """The first rows have labels as those that calibrate a fit have: `values` values v(S), corrected by its student.

    `truth`, (rows, players, outputs), judges all rows.
    """
    game, fitted = explainer.game, explainer.fitted
    assert game is not None
    assert fitted.student is not None
    table = explainer._read(rows)
    outputs, empty = game.outputs_of(game.rows(rows).table), explainer._empty(table)[0]
    answer = explainer._answer(table, outputs, empty, errors=True)
    some = take_rows(rows, np.arange(labelled))
    budget = game.evaluations_per_value * (values + (1 if game.own_reference is None else 2))
    seed = stream_seed(fitted.seed, "drawn again")
    found = cortx.shapley(
        game, some, METHOD, row_budget=budget, views=0, seed=seed, student=fitted.student, progress=False
    )
    labels = Labels.of(found, game)
    assert labels.errors is not None
    first = Predicted(*(None if part is None else part[:labelled] for part in (
        answer.values, None, answer.typical, answer.typical_row, answer.active)))  # fmt: skip
    known, seen = None, None
    if labels.variance is not None and (labels.variance > 0).any():
        judged = Refinable(game, game.rows(some), outputs[:labelled], empty[:labelled], first, 0, fitted.student)
        known, seen = seen_residuals(judged, labels.values, labels.variance)
    return Pool(
        residual=labels.values - first.values,
        errors=labels.errors,
        typical=answer.typical,
        typical_row=answer.typical_row,
        active=answer.active,
        truth=truth.reshape(answer.values.shape),
        predicted=answer.values,
        known=known,
        seen=seen,
    )


def study(pool: Pool, n_calibration: int = CALIBRATION, splits: int = SPLITS) -> dict[str, float]:
    """Coverage and width over random splits into calibration and fresh rows, with the library's own calibration.

    Fresh are all rows but those that calibrate. Bounds that are not weighted by what the network says of its errors are
    compared where labels have no noise of known variance.
    """
    generator = np.random.default_rng(0)
    error = np.sqrt(np.square(pool.truth - pool.predicted).sum(axis=1))  # (rows, outputs)
    worst = np.abs(pool.truth - pool.predicted)
    kinds = {"": True} if pool.seen is not None else {"": True, "unweighted ": False}
    results = []
    for _ in range(splits):
        order = generator.permutation(len(pool.residual))
        old, fresh = order[:n_calibration], np.concatenate([order[n_calibration:], np.arange(len(order), len(pool))])
        hardest = pool.typical_row[fresh] >= np.quantile(pool.typical_row[fresh], 0.9, axis=0)
        found: dict[str, Any] = {}
        for name, weighted in kinds.items():
            rows, bands = pool.calibrated(old, weighted=weighted).factors(CONFIDENCE)
            typical, typical_row = (pool.typical, pool.typical_row) if weighted else (1.0, 1.0)
            bound = np.broadcast_to(typical_row * rows, error.shape)[fresh]
            reach = np.broadcast_to(typical * bands, worst.shape)[fresh]
            covered = error[fresh] <= bound
            inside = ((worst[fresh] <= reach) | ~pool.active[fresh, :, None]).all(axis=1)
            found[f"{name}coverage, rows"] = covered.mean()
            found[f"{name}coverage, bands"] = inside.mean()
            found[f"{name}coverage of the hardest tenth, rows"] = covered[hardest].mean()
            found[f"{name}coverage of the hardest tenth, bands"] = inside[hardest].mean()
            found[f"{name}median bound, rows"] = np.median(bound)
            found[f"{name}median half-width, bands"] = np.median(reach[np.broadcast_to(
                pool.active[fresh, :, None], reach.shape)])  # fmt: skip
        results.append(found)
    means = {name: float(np.mean([result[name] for result in results])) for name in results[0]}
    if len(kinds) > 1:
        for name in ("median bound, rows", "median half-width, bands"):
            means[f"{name}, over the unweighted"] = means[name] / means[f"unweighted {name}"]
    return means


# Data sets -------------------------------------------------------------------------------------------------------

COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
]  # fmt: skip


def adult() -> Any:
    import pandas as pd

    path = data_folder() / "adult" / "adult.data"
    return pd.read_csv(path, names=COLUMNS, skipinitialspace=True).dropna().drop(columns=["fnlwgt", "education-num"])


def pipeline(frame: Any, estimator: Any) -> Any:
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    text = frame.select_dtypes(exclude="number").columns
    encode = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return make_pipeline(make_column_transformer((encode, text), remainder="passthrough"), estimator)


def hours(*, black_box: bool = False) -> tuple[cortx.Game, Any]:
    """How many hours people work: gradient boosting, text categories as they are; `black_box` hides the trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    frame = adult()
    rows, target = frame.drop(columns=["hours-per-week", "native-country", "income"]), frame["hours-per-week"]
    model = pipeline(rows, HistGradientBoostingRegressor(max_iter=60, random_state=0)).fit(rows, target)
    return cortx.Game((lambda table: model.predict(table)) if black_box else model, reference=rows), rows


def occupation() -> tuple[cortx.Game, Any]:
    """Which of four kinds of work people do: XGBoost, probabilities of every class."""
    from xgboost import XGBClassifier

    frame = adult()
    kinds = {
        "Exec-managerial": 0, "Prof-specialty": 0, "Adm-clerical": 1, "Sales": 1, "Tech-support": 1,
        "Craft-repair": 2, "Machine-op-inspct": 2, "Transport-moving": 2, "Handlers-cleaners": 2,
    }  # fmt: skip
    target = frame["occupation"].map(kinds).fillna(3).astype(int)
    rows = frame.drop(columns=["occupation", "native-country", "relationship"])
    model = pipeline(rows, XGBClassifier(n_estimators=40, max_depth=4, random_state=0, n_jobs=1)).fit(rows, target)
    return cortx.Game(model, reference=rows, target="all"), rows


def bankruptcy() -> tuple[cortx.Game, Any]:
    """Whether a company fails: a neural network on 95 ratios, explained as eleven groups of columns."""
    import pandas as pd
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import QuantileTransformer

    frame = pd.read_csv(data_folder() / "bankruptcy" / "data.csv")
    rows, target = frame.drop(columns=["Bankrupt?"]), frame["Bankrupt?"]
    rows.columns = [name.strip() for name in rows.columns]
    model = make_pipeline(
        QuantileTransformer(output_distribution="normal", random_state=0),
        MLPClassifier((32,), alpha=1.0, max_iter=60, random_state=0),
    ).fit(rows, target)
    names = list(rows.columns)
    groups = {f"ratios {start + 1} to {min(start + 9, 95)}": names[start : start + 9] for start in range(0, 95, 9)}
    return cortx.Game(model, reference=rows, players=groups, output="log-odds"), rows


def breast_cancer() -> tuple[cortx.Game, Any]:
    """Thirty measurements of a tumour: too many to enumerate, so labels are sampled."""
    import pandas as pd
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows, target = load_breast_cancer(return_X_y=True, as_frame=True)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.05, max_iter=1_000)).fit(rows, target)
    # Rows near the real ones, so that there are enough: each a mean of two, with a little noise.
    generator = np.random.default_rng(0)
    one, two = generator.integers(0, len(rows), size=(2, 4_000))
    mixed = (rows.to_numpy()[one] + rows.to_numpy()[two]) / 2
    mixed += 0.1 * rows.std().to_numpy() * generator.normal(size=mixed.shape)
    return cortx.Game(model, reference=rows), pd.DataFrame(mixed, columns=rows.columns)


DATA: dict[str, tuple[Callable[[], tuple[cortx.Game, Any]], int]] = {
    "regression (hours per week, 10 features)": (hours, 1_000_000),
    "four classes (occupation, 9 features)": (occupation, 500_000),
    "groups (bankruptcy, 95 columns in 11 groups)": (bankruptcy, 1_000_000),
    "sampled labels (breast cancer, 30 features)": (breast_cancer, 1_000_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--pool", type=int, default=1_000)
    parser.add_argument("--only", nargs="*", default=list(DATA))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    for name in arguments.only:
        make, budget = DATA[name]
        game, rows = make()
        found, evaluations, seconds = [], [], []
        for seed in arguments.seeds:
            order = np.random.default_rng(seed).permutation(len(rows))
            held, training = rows.iloc[order[: arguments.pool]], rows.iloc[order[arguments.pool :]]
            started = perf_counter()
            explainer = cortx.CoRTX("quick", seed=seed, unseen="ignore")
            explainer.fit(game, training.reset_index(drop=True), budget=budget, progress=False)
            seconds.append(perf_counter() - started)
            evaluations.append(explainer.costs_["total_evaluations"])
            held = held.reset_index(drop=True)
            labels = cortx.shapley(game, held, row_budget=2_100, views=0, seed=seed, progress=False)
            truth = None
            if labels.error_std.any():
                truth = cortx.shapley(game, held, row_budget=20_000, views=0, seed=seed + 1, progress=False).values
            pool = pool_of(explainer, labels, truth)
            scores = study(pool)
            # And the calibration that the fit made itself, on rows it has not seen.
            shown = explainer.explain(held, confidence=CONFIDENCE)
            error = np.linalg.norm(pool.truth - pool.predicted, axis=1)
            scores["coverage of the fit's own calibration, rows"] = float(
                (error <= shown.error_bound.reshape(error.shape)).mean()
            )
            scores["mean l2 over the labels' norm"] = float(error.mean() / np.linalg.norm(pool.truth, axis=1).mean())
            found.append(scores)
            print(f"{name}, seed {seed}: {scores}", flush=True)
        records += over_seeds(
            "coverage", f"{name}, {CONFIDENCE:.0%}, {SPLITS} splits", "cortx quick", found, seeds=arguments.seeds,
            evaluations=float(np.mean(evaluations)), seconds=float(np.mean(seconds)),
            calibration_rows=CALIBRATION, fresh_rows=arguments.pool - CALIBRATION,
        )  # fmt: skip
    write("coverage", records)


if __name__ == "__main__":
    main()
