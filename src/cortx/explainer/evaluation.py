"""An explainer against fresh labels: how close, how honest its bounds, and whether it still fits model and data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.estimators import ESTIMATORS, Estimator
from cortx.estimators.amortized import Amortized
from cortx.estimators.shapley import check_method, shapley
from cortx.explainer.artifact import compare_model
from cortx.explainer.calibration import Calibration, noise_radius, noise_reach
from cortx.explainer.explainer import CoRTX
from cortx.explainer.fit import Fitted
from cortx.explainer.game_difference import game_difference
from cortx.explainer.profile import ColumnDrift, drift
from cortx.explainer.refine import Predicted
from cortx.explainer.report import Check, Coverage, Level, QualityReport, Slice, WorstRow
from cortx.explanation import Explanation, take_rows
from cortx.games import Game
from cortx.games.fingerprint import ModelDifference
from cortx.images import described, read_like
from cortx.metrics import summary, throughput, top_k_agreement
from cortx.seeding import numpy_generator
from cortx.tables import Schema, Table, column_position, plain

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Slices = Iterable[str] | Mapping[str, Any]

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Confidences at which coverage is measured besides the one asked for."""
FALSE_ALARM = 0.01
"""The chance that bounds which hold are said to fail."""
GROWN = 2.0
"""An error this many times that of the fit is too much, if it is also beyond chance."""
CHANCE = 3.0
"""Standard errors that chance is given."""
LEAST_ROWS = 30
"""Fewer labelled rows of different content show no failure, and no fitness either."""
MOST_BLURRED = 0.5
"""The share of rows whose labels' noise may exceed their bounds; beyond it bounds are not judged."""
MOST_REFUSED = 0.01
"""The share of rows that may be refused before the data are called drifted."""
UNKNOWN_NOISE = (
    "some labels have no standard error, so nobody knows how far off they are; give a larger row budget, or the method "
    "'exact'"
)
WORST_ROWS = 5
MOST_PARTS = 8


def evaluate(
    explainer: CoRTX,
    X: Any,
    *,
    game: Game | None,
    rows: int,
    method: str | Estimator,
    row_budget: int | None,
    confidence: float,
    slices: Slices,
    seed: int,
    progress: bool | None,
) -> QualityReport:
    """`CoRTX.evaluate`, which says what the options mean."""
    fitted = explainer.fitted
    game = explainer.game if game is None else game
    if game is None:
        raise InputError("evaluate() labels rows with the model; give game=..., or load the explainer with model=...")
    if isinstance(rows, bool) or not isinstance(rows, (int, np.integer)) or rows < 1:
        raise InputError(f"rows must be a whole number of at least 1, got {rows!r}")
    if isinstance(confidence, (bool, str)) or not 0 < confidence < 1:
        raise InputError(f"confidence must be a number between 0 and 1, got {confidence!r}")
    if method == "amortized" or isinstance(method, Amortized):
        raise InputError(
            "method='amortized' starts from an explainer's answers and stays near them, so it cannot judge one; use "
            "'auto', 'exact', 'kernel' or 'permutation'"
        )
    check_method(method)
    if not _efficient(method):
        raise InputError(
            f"method={method!r} gives values that do not add up to the output, and an explainer learns Shapley values; "
            "use 'auto', 'exact', 'kernel' or 'permutation'"
        )
    calibration = fitted.calibration
    if calibration is not None:
        calibration.factors(confidence)  # refuses what so few rows do not support
    X = plain(X)
    table = read_like(X, fitted.spec.schema, "the table")
    if len(table) == 0:
        raise InputError("the table has no rows; give at least one")
    by = _slice_values(slices, described(table))
    spent = game.evaluations
    model = compare_model(game, fitted)
    if game.n_players != len(fitted.spec.players):
        raise InputError(
            f"the game has {game.n_players} players, the explainer was fitted for {len(fitted.spec.players)}; give the "
            "game the same players="
        )
    drifts = drift(fitted.profile, described(table))
    possible = np.flatnonzero(explainer._explainable(table))
    if len(possible) == 0:
        explainer._read(X)  # says what is wrong with them
    left_out = len(table) - len(possible)
    # Rows that cannot be explained wrongly say nothing of the others.
    undecided = possible[game.rows(take_rows(X, possible)).undecided]
    decided = len(possible) - len(undecided) if len(undecided) > 1 else 0
    possible = undecided if decided else possible
    count = min(int(rows), len(possible))
    chosen = possible[np.sort(numpy_generator(seed, "rows to evaluate").choice(len(possible), count, replace=False))]
    some = take_rows(X, chosen)

    student = fitted.student if method != "tree" else None
    truth = shapley(game, some, method, row_budget=row_budget, views=0, seed=seed, student=student, progress=progress)
    attached = copy(explainer)
    attached._attach(fitted, game)
    predicted = attached.explain(some, confidence=None if calibration is None else confidence)
    truth = replace(truth, output_names=predicted.output_names)  # a changed model may call its outputs otherwise
    seen = compare(attached, predicted, truth)
    # The model is not asked for the sake of a clock, unless its outputs are of another kind than the explainer's.
    known = predicted.outputs if game.model.output == fitted.spec.output else None
    seconds = 1 / throughput(partial(attached.explain, outputs=known), some)
    measures = _measures(predicted, truth, seen, seconds, game.evaluations - spent)
    # The first row of each content.
    different = np.unique(table.take(chosen).row_words(), return_index=True)[1]
    coverage = bounds = covered = None
    levels: tuple[Level, ...] = ()
    if calibration is not None:
        coverage, levels = _coverage(seen, calibration, confidence, predicted, different)
        bounds = seen.answer.bounds(*calibration.factors(confidence)).error
        covered = seen.inside(*calibration.factors(confidence))[0]
    notes = _notes(coverage, confidence, seen, left_out, decided, len(table))
    if isinstance(fitted.spec.schema, Schema) and isinstance(table.schema, Schema):
        differs = game_difference(fitted.spec, game.spec(game.rows(some).table.schema))
        if differs is not None:
            notes.append(f"this game is not the one that the explainer was fitted for; it differs in {differs}")
    return QualityReport(
        confidence=float(confidence),
        measures=measures,
        coverage=coverage,
        levels=levels,
        worst=_worst_rows(seen, chosen, bounds, covered),
        slices=_slices(by, chosen, seen.distance, bounds, covered),
        drift=tuple(drifts),
        model=model,
        checks=(
            _check_model(model, fitted),
            _check_data(drifts, len(table), left_out),
            *_check_answers(explainer, coverage, confidence, seen, len(different)),
        ),
        notes=tuple(notes),
        errors=seen.distance,
        difficulty=seen.typical_row,
        bounds=bounds,
        missed=None if covered is None else ~covered,
    )


def _efficient(method: str | Estimator) -> bool:
    """Whether values of a method add up to the output."""
    if isinstance(method, str):
        return method not in ESTIMATORS or ESTIMATORS[method].efficient
    return method.efficient


def usual_bound(explainer: CoRTX, X: Any, confidence: float) -> float:
    """The median error bound of rows, for which the model is not asked: its outputs are guessed."""
    table = explainer._read(plain(X))
    answer = explainer._answer(table, None, explainer._empty(table)[0], errors=True)
    assert answer.typical_row is not None
    return float(np.median(answer.typical_row * explainer.calibration.factors(confidence)[0]))


# What is measured ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Compared:
    """Labels beside answers: values (rows, players, outputs), distances and radii of the labels' noise (rows, outputs).

    `reach` bounds the noise of every value of a row at once; where nobody knows the noise it is taken as none.
    `outputs` are the model's, (rows, outputs).
    """

    answer: Predicted
    outputs: Array
    typical_row: Array
    labels: Array
    distance: Array
    variance: Array
    radius: Array
    reach: Array
    feature_names: tuple[str, ...]
    output_names: tuple[str, ...] | None
    noise_known: bool

    @property
    def noisy(self) -> bool:
        return bool((self.radius > 0).any())

    def inside(self, row_factor: Array, band_factor: Array, *, lenient: bool = True) -> tuple[BoolArray, BoolArray]:
        """Rows whose distance, and rows whose values all, lie within the bounds, (rows, outputs) each."""
        bounds = self.answer.bounds(row_factor, band_factor)
        radius, reach = (self.radius, self.reach) if lenient else (0.0, 0.0)
        # Values that are exact on both sides still differ in their last digits, or in those of the outputs.
        slack = 1e-9 * np.abs(self.labels).sum(axis=1) + 1e-15 * np.abs(self.outputs)
        held = self.distance - radius <= bounds.error + slack
        ends = slack[:, None, :] + reach
        bands = ((self.labels >= bounds.lower - ends) & (self.labels <= bounds.upper + ends)).all(axis=1)
        return held, bands


def compare(attached: CoRTX, predicted: Explanation, truth: Explanation) -> Compared:
    outputs = np.asarray(predicted.outputs, dtype=np.float64).reshape(len(predicted), -1)
    table = attached._read(predicted.data)
    answer = attached._answer(table, outputs, attached._empty(table)[0], errors=True)
    assert answer.typical_row is not None
    labels = np.asarray(truth.values, dtype=np.float64).reshape(answer.values.shape)
    errors = np.asarray(truth.error_std, dtype=np.float64).reshape(labels.shape)
    known = bool(np.isfinite(errors).all())
    errors = np.nan_to_num(errors, posinf=0.0)
    # Standard errors are larger than the noise is: their squares would take errors for noise.
    variance = np.square(errors) if truth.variance is None else np.asarray(truth.variance).reshape(labels.shape)
    return Compared(
        answer=answer,
        outputs=outputs,
        typical_row=answer.typical_row,
        labels=labels,
        distance=np.sqrt(np.square(labels - answer.values).sum(axis=1)),
        variance=np.nan_to_num(variance, posinf=0.0).sum(axis=1),
        radius=noise_radius(errors),
        reach=noise_reach(errors),
        feature_names=predicted.feature_names,
        output_names=predicted.output_names,
        noise_known=known,
    )


def _measures(
    predicted: Explanation, truth: Explanation, seen: Compared, seconds: float, evaluations: int
) -> dict[str, Any]:
    count = len(truth)
    errors = np.asarray(truth.error_std, dtype=np.float64)
    return {
        "rows": count,
        "method": truth.method,
        **summary(predicted, truth),
        "top_1_agreement": float(top_k_agreement(predicted, truth, 1).mean()),
        "label_norm": float(np.linalg.norm(truth.values, axis=1).mean()),
        "label_standard_error": float(np.sqrt(np.square(errors).reshape(count, -1).sum(axis=1)).mean()),
        "label_evaluations": truth.evaluations,
        "label_seconds_per_row": truth.seconds / count,
        "explain_evaluations": predicted.evaluations,
        "explain_seconds_per_row": seconds,
        "expected_l2": float(seen.typical_row.mean()),
        "evaluations": evaluations,
    }


def _coverage(
    seen: Compared,
    calibration: Calibration,
    confidence: float,
    predicted: Explanation,
    different: npt.NDArray[np.intp],
) -> tuple[Coverage, tuple[Level, ...]]:
    count = len(seen.distance)
    levels = []
    for level in sorted({*LEVELS, float(confidence)}):
        if level > calibration.most_confident:
            continue
        held, bands = seen.inside(*calibration.factors(level))
        low, high = chance_range(count, calibration.effective_rows, calibration.rank(level))
        levels.append(Level(level, float(held.mean()), float(bands.mean()), low, high))
    factors = calibration.factors(confidence)
    held, bands = seen.inside(*factors)
    plain_held, plain_bands = seen.inside(*factors, lenient=False)
    bounds = seen.answer.bounds(*factors)
    inside = np.concatenate([held, bands], axis=1)  # (rows, 2 outputs)
    chances = [_chances(part.sum(axis=0), len(part), calibration, confidence) for part in (inside, inside[different])]
    hardest = np.argsort(-seen.typical_row.mean(axis=1), kind="stable")[: max(1, count // 10)]
    widths = (bounds.upper - bounds.lower)[seen.answer.active]  # (active players of all rows, outputs)
    certain, wrong = _stable(predicted, seen)
    by_output = held.mean(axis=0)
    worst = int(by_output.argmin())
    names = seen.output_names or tuple(map(str, range(len(by_output))))
    coverage = Coverage(
        bound=float(held.mean()),
        bands=float(bands.mean()),
        labels_in_bound=float(plain_held.mean()),
        labels_in_bands=float(plain_bands.mean()),
        median_bound=float(np.median(bounds.error)),
        median_width=float(np.median(widths)) if len(widths) else 0.0,
        hardest_rows=len(hardest),
        hardest_bound=float(held[hardest].mean()),
        stable_ranks=certain,
        stable_wrong=wrong,
        p_value=float(np.maximum(*chances).min()),
        worst_output=names[worst] if len(by_output) > 1 else None,
        worst_bound=float(by_output[worst]),
    )
    return coverage, tuple(levels)


def _chances(covered: npt.NDArray[np.intp], count: int, calibration: Calibration, confidence: float) -> Array:
    """The chances of at most so many covered rows of `count` if the bounds hold, shaped like `covered`."""
    law = beta_binomial(count, calibration.effective_rows, calibration.rank(confidence))
    return np.asarray(np.cumsum(law)[covered])


def beta_binomial(count: int, n: int, rank: int) -> Array:
    """Chances that 0..count of fresh rows score at most the rank-th of n calibration scores, (count + 1,).

    The share of all rows that do is Beta(rank, n + 1 - rank) distributed, whatever the scores (Vovk 2012).
    """
    a, b = rank, n + 1 - rank
    chances = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + math.lgamma(k + a) + math.lgamma(count - k + b) - math.lgamma(count + a + b)
        + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        for k in range(count + 1)
    ]  # fmt: skip
    return np.exp(np.array(chances, dtype=np.float64))


def chance_range(count: int, n: int, rank: int) -> tuple[float, float]:
    """The shares of covered rows between which chance puts 95%."""
    cumulative = np.cumsum(beta_binomial(count, n, rank))
    low, high = (int(np.searchsorted(cumulative, share)) for share in (0.025, 0.975))
    return low / count, min(high, count) / count


def _stable(predicted: Explanation, seen: Compared) -> tuple[float, float | None]:
    """The share of certain ranks, and of these the share that the labels contradict by more than their noise."""
    shape = seen.labels.shape
    order, certain = predicted.ranking.reshape(shape), predicted.stable_ranks.reshape(shape)
    low, high = (np.take_along_axis(part, order, 1) for part in (seen.labels - seen.reach, seen.labels + seen.reach))
    wrong = np.zeros(shape, dtype=bool)
    wrong[:, 1:] |= np.minimum.accumulate(high, axis=1)[:, :-1] < low[:, 1:]
    wrong[:, :-1] |= np.maximum.accumulate(low[:, ::-1], axis=1)[:, ::-1][:, 1:] > high[:, :-1]
    return float(certain.mean()), float(wrong[certain].mean()) if certain.any() else None


def _worst_rows(
    seen: Compared, chosen: npt.NDArray[np.intp], bounds: Array | None, covered: BoolArray | None
) -> tuple[WorstRow, ...]:
    found = []
    for i in np.argsort(-seen.distance.max(axis=1), kind="stable")[:WORST_ROWS]:
        k = int(seen.distance[i].argmax())
        j = int(np.abs(seen.labels[i, :, k] - seen.answer.values[i, :, k]).argmax())
        found.append(
            WorstRow(
                row=int(chosen[i]),
                l2=float(seen.distance[i, k]),
                bound=None if bounds is None else float(bounds[i, k]),
                covered=None if covered is None else bool(covered[i, k]),
                output=None if seen.output_names is None else seen.output_names[k],
                feature=seen.feature_names[j],
                predicted=float(seen.answer.values[i, j, k]),
                label=float(seen.labels[i, j, k]),
            )
        )
    return tuple(found)


# Slices -------------------------------------------------------------------------------------------------------


def _slice_values(slices: Slices, table: Table) -> dict[str, npt.NDArray[Any]]:
    """One value for each row of the table, for each column to report by."""
    if isinstance(slices, str):
        raise InputError(f"slices must list columns, got {slices!r}; use [{slices!r}]")
    found: dict[str, npt.NDArray[Any]] = {}
    if isinstance(slices, Mapping):
        for name, values in slices.items():
            found[str(name)] = np.asarray(values)
            if found[str(name)].shape != (len(table),):
                raise InputError(
                    f"slice {name!r} has shape {found[str(name)].shape}, expected one value for each of the "
                    f"{len(table)} rows"
                )
        return found
    for item in slices:
        j = column_position(item, table.schema.names)
        column, numbers = table.schema.columns[j], table.matrix[:, j]
        if column.coded:
            found[column.name] = np.array(column.values, dtype=object)[numbers.astype(np.int64)]
        else:
            found[column.name] = numbers.astype(object) if column.categorical else numbers
    return found


def _parts(values: npt.NDArray[Any]) -> list[tuple[str, BoolArray]]:
    """Names and rows of a column's parts: its values, or quarters where it holds many numbers; then what is missing."""
    missing = np.array([value is None or value != value or type(value).__name__ == "NAType" for value in values])
    parts: list[tuple[str, BoolArray]] = []
    texts = np.array([_text(value) for value in values], dtype=object)
    names, counts = np.unique(texts[~missing].astype(str), return_counts=True)
    if values.dtype.kind in "fiu" and len(names) > MOST_PARTS:
        ends = np.unique(np.quantile(values[~missing].astype(np.float64), [0.25, 0.5, 0.75]))
        place = np.searchsorted(ends, values, side="left")
        for k in range(len(ends) + 1):
            low = "" if k == 0 else f"{ends[k - 1]:.4g} < "
            high = "" if k == len(ends) else f" <= {ends[k]:.4g}"
            parts.append((f"{low}x{high}", (place == k) & ~missing))
    else:
        kept = names[np.argsort(-counts, kind="stable")][:MOST_PARTS]
        parts += [(str(name), (texts == name) & ~missing) for name in kept]
        parts.append(("others", ~np.isin(texts.astype(str), kept) & ~missing))
    parts.append(("missing", missing))
    return [(name, rows) for name, rows in parts if rows.any()]


def _slices(
    by: dict[str, npt.NDArray[Any]],
    chosen: npt.NDArray[np.intp],
    distance: Array,
    bounds: Array | None,
    covered: BoolArray | None,
) -> tuple[Slice, ...]:
    return tuple(
        Slice(
            column=name,
            part=part,
            rows=int(rows.sum()),
            l2=float(distance[rows].mean()),
            coverage=None if covered is None else float(covered[rows].mean()),
            median_bound=None if bounds is None else float(np.median(bounds[rows])),
        )
        for name, values in by.items()
        for part, rows in _parts(values[chosen])
    )


# What it means ------------------------------------------------------------------------------------------------


def _check_model(model: ModelDifference, fitted: Fitted) -> Check:
    probes = len(fitted.probe)
    by = f"up to {model.largest:.3g} (their spread: {model.spread:.3g})"
    if model.same:
        return Check(None, (f"the model is that of the fit: on its {probes} probe rows the outputs differ by {by}",))
    again = "fit again" if fitted.student is None else "fit again, or refit(game, X) if it was trained again"
    words = f"this is not the model of the fit: on {probes} probe rows the outputs differ by {by}; {again}"
    return Check("model changed", (words,))


def _too_few(count: int, different: int) -> Check:
    which = f"{count} labelled rows" if different == count else f"{count} labelled rows, of which {different} differ,"
    return Check("too few rows", (f"{which} are too few to say; give {LEAST_ROWS} or more",))


def _check_data(drifts: list[ColumnDrift], rows: int, refused: int) -> Check:
    moved = sorted((column for column in drifts if column.drifted), key=lambda column: -column.distance)
    words = tuple(map(str, moved))
    if refused > MOST_REFUSED * rows:
        words += (f"{refused / rows:.1%} of the rows hold categories or missing values that training never saw",)
    if words:
        return Check("data drifted", words)
    most = max(drifts, key=lambda column: column.distance)
    calm = (
        f"no column has drifted: over {rows:,} rows {most.column!r} differs most from the training table, by "
        f"{most.distance:.2f} (chance allows {min(1.0, most.allowed):.2f})"
    )
    return Check(None, (calm,))


def _check_answers(
    explainer: CoRTX, coverage: Coverage | None, confidence: float, seen: Compared, different: int
) -> list[Check]:
    """Whether the bounds hold, and whether the error is that of the fit; `different` contents are among the rows."""
    checks = [_check_error(explainer, seen, different)]
    if coverage is not None:
        checks.insert(0, _check_bounds(explainer.calibration, coverage, confidence, seen, different))
    few = different < LEAST_ROWS
    if few or (coverage is not None and checks[0].problem is None):
        # That rows are too few says it all; and bounds that hold say more than an error that could not be compared.
        checks = [replace(check, problem=None) if check.problem == "not judged" else check for check in checks]
    return [*checks, *([_too_few(len(seen.distance), different)] if few else [])]


def _check_bounds(
    calibration: Calibration, coverage: Coverage, confidence: float, seen: Compared, different: int
) -> Check:
    count, n_outputs = seen.distance.shape
    each = f", least for {coverage.worst_output} ({coverage.worst_bound:.1%})" if coverage.worst_output else ""
    words = (
        f"the {100 * confidence:.4g}% bounds held for {coverage.bound:.1%} of {count:,} rows{each}, "
        f"the bands for {coverage.bands:.1%}"
    )
    if not seen.noise_known:
        return Check("not judged", (f"{words}, which says nothing: {UNKNOWN_NOISE}",))
    # A bound and bands for each output: as many chances to be unlucky.
    limit = FALSE_ALARM / (2 * n_outputs)
    if coverage.p_value < limit:
        rare = max(coverage.p_value, 1e-6)
        words += f": honest bounds do so badly at most once in {1 / rare:,.0f} times; calibrate() with rows like these"
        return Check("bounds fail", (words,))
    blurred = float((seen.radius > seen.answer.bounds(*calibration.factors(confidence)).error).mean())
    if blurred > MOST_BLURRED:
        words += (
            f", which says little: for {blurred:.0%} of the rows the noise of the label is larger than the bound; "
            "give a larger row budget"
        )
        return Check("not judged", (words,))
    half = np.array([math.floor(different * confidence / 2)])
    if _chances(half, different, calibration, confidence)[0] >= limit:
        words += (
            f", which says little: after a calibration with {len(calibration)} rows, bounds that hold half as often as "
            "they should could be bad luck; calibrate() with more rows"
        )
        return Check("not judged", (words,))
    return Check(None, (words,))


def _check_error(explainer: CoRTX, seen: Compared, different: int) -> Check:
    calibration, quality = explainer.fitted.calibration, explainer.quality_
    if calibration is None:
        before, n_before, where = float(quality["l2"]), float(quality["rows"]), "validation"
    else:
        before, n_before, where = float(calibration.mean_l2.mean()), float(calibration.effective_rows), "calibration"
    # Without the labels' own noise, which may be larger than that of the fit's labels.
    error = np.sqrt(np.maximum(0, np.square(seen.distance) - seen.variance)).mean(axis=1)  # (rows,)
    mean, spread, noise = float(error.mean()), float(error.std()), float(np.sqrt(seen.variance).mean())
    words = f"the mean error is {mean:.3g}, at {where} it was {before:.3g}"
    if not seen.noise_known:
        return Check("not judged", (f"{words}, which says nothing: {UNKNOWN_NOISE}",))
    # The rows of the fit are given the relative spread of these.
    spread_before = before * spread / max(mean, 1e-300)
    chance = CHANCE * math.hypot(spread / math.sqrt(different), spread_before / math.sqrt(max(n_before, 1.0)))
    # What is left of noise that is larger than the error is not the error.
    if mean > GROWN * (noise if noise > before else before) and mean - before > chance:
        return Check("error grew", (f"{words}: more than chance explains; fit again",))
    if noise > before:
        words += f", but the labels' noise is {noise:.3g}; give a larger row budget"
        return Check("not judged", (words,))
    if not chance <= GROWN * before:
        words += f", but chance allows {before + chance:.3g}: give more rows, or calibrate() with more"
        return Check("not judged", (words,))
    return Check(None, (words,))


def _notes(
    coverage: Coverage | None, confidence: float, seen: Compared, refused: int, decided: int, rows: int
) -> list[str]:
    notes = []
    if coverage is None:
        notes.append("not calibrated, so there are no bounds to check: fit with a budget, or call calibrate()")
    elif seen.noisy:
        notes.append(
            f"the labels are noisy, which lowers coverage: {coverage.labels_in_bound:.1%} of them lie within the "
            f"{100 * confidence:.4g}% bounds as they are; a row counts as missed only beyond its label's noise"
        )
    if refused:
        notes.append(
            f"{refused:,} of {rows:,} rows cannot be explained and were left out: they hold categories or missing "
            "values that training never saw"
        )
    if decided:
        notes.append(
            f"{decided:,} of {rows:,} rows differ from the reference in one feature at most, so their values cannot be "
            "wrong; they were left out"
        )
    return notes


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (float, np.floating)) else str(value)
