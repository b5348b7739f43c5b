"""The whole method: a plan, what teaches and what judges, the network, bounds."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import InputError
from cortx.estimators.block import Control, Student
from cortx.estimators.tree import tree_labels
from cortx.explainer.budget import Plan, make_plan, total_budget
from cortx.explainer.calibration import Calibration, RoundScores, calibrate, calibrate_seen
from cortx.explainer.labels import Labels, given_labels, make_labels
from cortx.explainer.learn import Learned, learn, trial
from cortx.explainer.material import (
    NONE,
    IntArray,
    Material,
    PlannedLabels,
    Words,
    cost,
    labels_as_given,
    rough_labels,
    stream_words,
)
from cortx.explainer.noise import Seen
from cortx.explainer.possible import largest_value, possible_values
from cortx.explainer.profile import Profile, profile_of
from cortx.explainer.refine import FIRST_ROUND, Predicted, Refinable, has_trees, longest_round, round_scores
from cortx.explainer.store import Paid
from cortx.explainer.teaching import Taught, teach
from cortx.explanation import Explanation, take_rows
from cortx.games import Game, GameSpec, Rows
from cortx.games.fingerprint import probe_rows
from cortx.games.ledger import Ledger
from cortx.games.tree_readers import NotTrees
from cortx.games.value_store import ValueStore
from cortx.images import described, read_like
from cortx.metrics import l2_distance, rank_accuracy
from cortx.seeding import stream_seed
from cortx.tables import Schema
from cortx.threads import work
from cortx.training.axioms import exact_total
from cortx.training.checkpoint import Checkpoint
from cortx.training.features import fit_features, replace_reference
from cortx.training.finetune import LabelSet
from cortx.training.image_network import ImageNetwork
from cortx.training.network import ExplainerNetwork
from cortx.training.parallel import ALONE, Processes
from cortx.training.recipe import Recipe
from cortx.training.row_stream import RowStream
from cortx.training.student import NetworkStudent
from cortx.training.tree_teacher import TreeTeacher, tree_teacher

Array = npt.NDArray[np.float64]
logger = logging.getLogger("cortx")
KEPT_WORDS = "; what was paid for is kept: fit again with a larger budget, and it goes on from that"
LEAST_GAIN = 0.05
"""Labels are no longer bought once doubling them is likely to bring less than this share of the error."""
NEAR, NEAR_NOISE = 0.03, 1.2
"""Only where the validation error is this share of the labels' norm, or this multiple of their own standard errors."""
NOTHING = 1e-13
"""Labels that are not larger, beside the model's outputs, are rounding errors."""
FEW_UNDECIDED = 20
"""Fewer calibration rows that can be wrong are worth a warning: 95% bounds need 19."""
STUDENT_VALUES = 2**17
"""A student's own Shapley values of calibration rows are sampled as for so many values v(S) of the game in all."""
ROUNDING = 1e-5
"""Of the labels' norm: an error that is nothing but float32's rounding."""
LEAST_TO_STOP = 400
"""With fewer training labels than this, more always help."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit leaves behind."""

    network: ExplainerNetwork
    spec: GameSpec
    recipe: Recipe
    heads: tuple[str, ...]
    seed: int
    costs: dict[str, Any]
    quality: dict[str, float]
    history: dict[str, list[float]]
    probe: Array
    """Rows that mix the columns of training rows, (probes, columns): the model's outputs there are its fingerprint."""
    probe_outputs: Array
    curve: list[dict[str, float]]
    """Validation error by training labels and evaluations, as the budget was spent."""
    calibration: Calibration | None
    profile: Profile
    """What the columns of the training table looked like."""
    student: Student | None = None
    """A copy of the game by which labels are corrected, where the fit learned one."""


@dataclass(frozen=True, eq=False)
class Request:
    """What a fit was asked for."""

    recipe: Recipe
    heads: tuple[str, ...]
    n_labels: int | None
    budget: int | None
    seed: int
    device: str
    folder: Path | None
    show: bool | None
    leave_out: Any = None
    """Rows, or an `Explanation` with its rows, that must teach nothing."""
    together: Processes = ALONE
    start: Fitted | None = None
    """An explainer of an earlier model with a student, from which both networks start."""


def fit_explainer(game: Game, X: Any, labels: Any, request: Request, paid: Callable[[], Paid]) -> Fitted:
    """Labels rows (or takes what is given), trains the network, and calibrates its bounds if labels were planned."""
    together = request.together
    source = X if isinstance(X, RowStream) else None
    if source is not None:
        X = _part_of(source, game, labels, request)
    rows, asked, repeated = game.rows(X), game.evaluations, game.repeated_calls
    left_out = _left_out(game, request.leave_out)
    if together.several:
        _check_processes(game, rows, labels, left_out, request)
    planned = labels is None and request.n_labels is None
    limit = total_budget(game, rows, request.budget, request.recipe) if planned else None
    with game.spending(limit, KEPT_WORDS if planned else "") as ledger:
        if planned:
            fitted, checkpoint = _fit_planned(game, rows, request, paid(), ledger)
        else:
            material, checkpoint = _as_told(game, rows, labels, left_out, request, source)
            fitted = _fitted(game, material, checkpoint, request, ledger, [])
    checkpoint.clear()
    total, quality = fitted.costs["total_evaluations"], fitted.quality
    kept = max(0, total - together.total(game.evaluations - asked))
    logger.log(
        logging.INFO if together.first else logging.DEBUG,
        "fitted: %s model evaluations in all%s, validation l2 %.3g, %s%s",
        f"{total:,}",
        f" ({kept:,} of them paid for before)" if kept > 0.01 * total else "",
        quality["l2"],
        f"{100 * quality['relative_l2']:.3g}% of the labels' norm ({quality['label_norm']:.3g})"
        if quality["label_norm"]
        else "and the labels are zero",
        f", of which {quality['label_noise']:.3g} may be the labels' own noise" if quality.get("label_noise") else "",
    )
    if game.repeated_calls > repeated:
        logger.info("%s calls of the model failed and were repeated", f"{game.repeated_calls - repeated:,}")
    return fitted


def _fit_planned(game: Game, rows: Rows, request: Request, paid: Paid, ledger: Ledger) -> tuple[Fitted, Checkpoint]:
    """Spends a budget as planned; the ledger refuses what would pass it."""
    spent = game.evaluations
    if game.knows_base_values:
        ledger.add(game.base_evaluations)  # paid for before, and used
        spent -= game.base_evaluations
    plan, trees = _planned(game, rows, request, paid, ledger)
    paid.check(game, rows)
    checks = game.evaluations - spent
    curve: list[dict[str, float]] = []
    if trees is not None:
        material, checkpoint = _learn_trees(game, rows, plan, trees, request)
        return _fitted(game, material, checkpoint, request, ledger, curve, checks), checkpoint
    planned = PlannedLabels(game, rows, plan, paid.labels, request.seed, request.show, ledger)
    if game.of_images:
        material, checkpoint = _stream(game, rows, plan, planned, request)
    elif plan.pairs is not None:
        return _fit_taught(game, rows, plan, planned, paid.values, request, curve, checks)
    else:
        material, checkpoint = _buy_labels(game, rows, plan, planned, request, curve)
    return _fitted(game, material, checkpoint, request, ledger, curve, checks), checkpoint


def _planned(game: Game, rows: Rows, request: Request, paid: Paid, ledger: Ledger) -> tuple[Plan, TreeTeacher | None]:
    """The plan of a fit; and the trees that teach, where the model agrees with them."""
    while True:
        plan = make_plan(game, rows, request.budget, request.recipe, request.seed, paid.check_cost(game, rows))
        logger.info(str(plan))
        ledger.planned = plan.total
        if plan.mode != "trees":
            return plan, None
        try:
            return plan, tree_teacher(game, rows)
        except NotTrees as error:  # the game remembers it, so the next plan is one without trees
            logger.warning("labels do not come from the model's trees: %s", error)


def _learn_trees(
    game: Game, rows: Rows, plan: Plan, trees: TreeTeacher, request: Request
) -> tuple[Material, Checkpoint]:
    """Exact labels of all rows, of those that judge too; steps of the trees are inputs of the network."""
    table = rows.table
    assert isinstance(table.schema, Schema)
    scaled_by = np.delete(table.matrix, plan.calibration, axis=0)
    features = fit_features(
        table.matrix, table.schema.columns, game.absent, request.recipe.features, scaled_by, trees.steps
    )
    if request.start is not None:  # its weights need the inputs that they were learned with
        features = replace_reference(request.start.network.features, features.reference)
    validation, calibration = (
        replace(Labels.of(tree_labels(game, rows.take(index), progress=False), game), data=take_rows(rows.data, index))
        for index in (plan.validation, plan.calibration)
    )
    material = Material(rows, validation, validation, plan.train, validation.outputs)
    material.taught = Taught(trees, features, unexplained=0.0, pairs=0)
    material.calibration, material.kept_aside = calibration, plan.calibration
    material.longest_round = plan.longest_round
    material.costs = {
        "labels": cost(0, validation.seconds, rows=len(validation), source=validation.source),
        "calibration": cost(0, calibration.seconds, rows=len(calibration)),
    }
    key = _key(game, rows, None, None, request, np.concatenate([validation.values.ravel(), calibration.values.ravel()]))
    return material, _checkpoint(request, key)


def _fit_taught(
    game: Game,
    rows: Rows,
    plan: Plan,
    planned: PlannedLabels,
    store: ValueStore,
    request: Request,
    curve: list[dict[str, float]],
    checks: int,
) -> tuple[Fitted, Checkpoint]:
    """Tables with a student: it teaches the explainer, and labels of other rows judge both."""
    assert planned.ledger is not None
    with game.keeping(store):
        taught, costs = _teach(game, rows, plan, store, request)
        if math.isinf(taught.unexplained):
            logger.warning(
                "nothing says how good the student is: no row is left to test it on, or the model's output never "
                "changes on those that are; explanations may be far off: see quality_ and the bounds; more different "
                "rows help"
            )
        elif taught.poor:
            logger.warning(
                "the student predicts values that it never saw with a relative error of %.0f%%, so explanations may be "
                "far off: see quality_ and the bounds; a larger budget or recipe may help%s", 100 * taught.unexplained,
                "" if request.start is None else ", or a fit from the beginning",
            )  # fmt: skip
        material, checkpoint = _judge(game, rows, plan, planned, taught, request)
        material.costs = {**costs, **material.costs}
        return _fitted(game, material, checkpoint, request, planned.ledger, curve, checks), checkpoint


def _buy_labels(
    game: Game, rows: Rows, plan: Plan, planned: PlannedLabels, request: Request, curve: list[dict[str, float]]
) -> tuple[Material, Checkpoint]:
    """Tables without a student: labels of as many rows as help."""
    request = replace(request, start=None)  # nothing of an earlier explainer is used
    material = _spend(game, rows, plan, planned, request, curve)
    key = _key(game, rows, material.outputs, material.train, request, material.validation.values)
    return material, _checkpoint(request, key)


def _fitted(
    game: Game,
    material: Material,
    checkpoint: Checkpoint,
    request: Request,
    ledger: Ledger,
    curve: list[dict[str, float]],
    checks: int = 0,
) -> Fitted:
    """Trains the network, calibrates its bounds if labels were kept aside, and notes how to recognise the model.

    `checks` are evaluations that were spent on checks before.
    """
    rows, together = material.rows, request.together
    with work(large=game.of_images and game.large):
        learned = learn(
            game, material, request.recipe, request.heads,
            seed=request.seed, device=request.device, checkpoint=checkpoint, show=request.show, together=together,
            start=None if request.start is None or material.taught is None else request.start.network,
        )  # fmt: skip
    student = None if material.taught is None else material.taught.student
    calibration, spent = None, ledger.spent
    if material.calibration is not None:
        calibration = calibrate_network(
            learned.network, game, learned.schema, material.calibration, request.seed, material.longest_round, student
        )
        material.costs["calibration"]["evaluations"] += ledger.spent - spent
    parts = game.players.column_player if game.of_images else None
    probe, shown = probe_rows(rows.table.matrix, request.seed, parts), described(rows.table)
    started, spent = perf_counter(), game.evaluations
    asked = together.numbers_of_first(lambda: game.fingerprint(probe, rows.table.schema).ravel())
    probe_outputs = asked.reshape(len(probe), -1)
    checks += together.total(game.evaluations - spent)
    costs = {**material.costs, **learned.costs, "checks": cost(checks, perf_counter() - started, rows=len(probe))}
    costs["total_evaluations"] = sum(part["evaluations"] for part in costs.values())
    size = max(float(np.abs(game.base_values).max()), float(np.abs(probe_outputs).max()))
    quality = _quality(learned, game.players.names, size)
    if material.validation.variance is not None:
        quality["label_noise"] = float(np.sqrt(material.validation.variance.sum(axis=1)).mean())
    if calibration is not None:
        learned_from = material.pretraining if material.stream or material.taught else material.train
        curve.append(_point(len(learned_from), costs["total_evaluations"], quality["l2"], quality["label_norm"]))
    return Fitted(
        network=learned.network,
        spec=game.spec(learned.schema),
        recipe=_as_built(request.recipe, learned.network),
        heads=request.heads,
        seed=request.seed,
        costs=costs,
        quality=quality,
        history=learned.history,
        probe=probe,
        probe_outputs=probe_outputs,
        curve=curve,
        calibration=calibration,
        profile=profile_of(shown.matrix, shown.schema),
        student=student,
    )


def _as_built(recipe: Recipe, network: ExplainerNetwork) -> Recipe:
    """The recipe with what the size of the images has settled."""
    if not isinstance(network, ImageNetwork):
        return recipe
    return replace(recipe, encoder=replace(recipe.encoder, stride=network.stride))


def _part_of(source: RowStream, game: Game, labels: Any, request: Request) -> Any:
    """A random part of a table that is too large: what inputs, profile and outputs are learned from."""
    if game.of_images:
        raise InputError("a table of Parquet files holds no images; give the images as an array")
    if labels is None:
        raise InputError(
            "a table that is read as a stream is learned from with labels=: make labels first (`cortx label`, or "
            "cortx.distributed.label) and give their folder; budget= and n_labels= need the table in memory"
        )
    if isinstance(labels, (tuple, list)):
        raise InputError(
            "labels= of a table that is read as a stream must be an Explanation or a folder of labels: "
            "its rows have no fixed places that indices could mean"
        )
    return source.sample(request.recipe.pretrain.most_rows, request.seed, _columns(game))


def _columns(game: Game) -> tuple[str, ...] | None:
    """The columns that the game takes, as far as it knows their names."""
    try:
        schema = game.schema
    except InputError:  # reference='zero' takes those of the table
        return None
    return schema.names if isinstance(schema, Schema) and schema.frame != "numpy" else None


def _check_processes(game: Game, rows: Rows, labels: Any, left_out: Words, request: Request) -> None:
    """What several processes cannot do together, said before any of them asks the model."""
    together, recipe = request.together, request.recipe
    if game.of_images:
        raise InputError("training across processes is for tables; start the fit of images without torchrun")
    if labels is None:
        raise InputError(
            f"{together.world} processes train one explainer on labels that are there: make them first (`cortx label`, "
            "or cortx.distributed.label) and give labels=; budget= and n_labels= are for one process"
        )
    least = min(len(rows), recipe.pretrain.batch_size, recipe.attribution.batch_size, recipe.ranking.batch_size)
    if least < together.world:
        raise InputError(
            f"{together.world} processes cannot share batches and tables of {least} rows; start fewer processes"
        )
    together.same(
        _key(game, rows, None, None, request, left_out=left_out),
        "the processes were given different tables, references, recipes, seeds or rows to leave out; all must make the "
        "same call",
    )


def calibrate_network(
    network: ExplainerNetwork,
    game: Game,
    schema: Any,
    labels: Labels,
    seed: int,
    most: int | None = None,
    student: Student | None = None,
) -> Calibration:
    """Bounds from labels that trained nothing, of answers and of their refinements.

    Refinement is tried on these rows too, with up to `most` values v(S) of each, by default what the labels can judge;
    it starts from the `student`, where there is one. Noise of the labels is taken out of the scores where its variance
    is known (`calibrate_seen`), and allowed for elsewhere. Rows that cannot be wrong (`Predicted.decided`) say nothing
    of the others and are left out, unless there are no others.
    """
    table = read_like(labels.data, schema, "the calibration table")
    codes, empty = torch.from_numpy(table.matrix).to(network.device), game.empty_of(table)
    total = torch.from_numpy(labels.outputs - empty).to(network.device)
    with torch.inference_mode():
        answer = network.in_parts(codes, total.to(torch.float32))
        typical, typical_row = network.typical_errors(answer)
        sharers = network.attribution.sharers(network.active(codes))
        values = exact_total(answer.values, total, sharers)
    values = possible_values(values, total, largest_value(game.model.output))
    sizes = typical.double().cpu().numpy(), typical_row.double().cpu().numpy()
    predicted = Predicted(values.cpu().numpy(), None, *sizes, sharers.cpu().numpy())
    undecided = np.flatnonzero(~predicted.decided)
    if 2 <= len(undecided) < len(labels):
        part = _undecided(labels, undecided, game)
        found = calibrate_network(network, game, schema, part, seed, most, student)
        return replace(found, evaluations=labels.evaluations)
    errors = np.full_like(labels.values, np.nan) if labels.errors is None else labels.errors
    some = Refinable(game, game.rows(labels.data), labels.outputs, empty, predicted, seed, student)
    # Labels without standard errors have too few draws to know their variance.
    variance = labels.variance if labels.weights is None and np.isfinite(errors).all() else None
    if variance is not None and (variance > 0).any():
        known, seen = seen_residuals(some, labels.values, variance)
        found = calibrate_seen(known, seen, *sizes, labels.evaluations, seed)
    else:
        variance = None
        found = calibrate(
            labels.values - predicted.values, errors, *sizes, predicted.active, labels.evaluations,
            labels.weights, labels.frequent,
        )  # fmt: skip
    if (most is None or most >= FIRST_ROUND) and has_trees(some):
        most = 0  # rows that are not precise enough get their exact values from the trees
    if most is None:
        # Labels of frequent rows were paid for as training labels.
        paid = len(labels) if labels.frequent is None else max(1, int((~labels.frequent).sum()))
        label_values = labels.evaluations / (paid * game.evaluations_per_value)
        exact = labels.exact is not None and bool(labels.exact.all())
        most = longest_round(label_values, exact=exact, noise_known=variance is not None)
    rounds = RoundScores(*round_scores(some, labels.values, errors, most, variance), most)
    return replace(found, rounds=rounds)


def _undecided(labels: Labels, index: IntArray, game: Game) -> Labels:
    """The labels of rows `index`, with what they cost alone: the model was asked for the outputs of all others."""
    if len(index) < FEW_UNDECIDED <= len(labels):
        logger.warning(
            "%d of %d calibration rows differ from the reference in more than one feature; the others cannot be "
            "wrong, so bounds rest on these alone: calibrate(X) with more rows of that kind makes them surer",
            len(index), len(labels),
        )  # fmt: skip
    outputs = (len(labels) - len(index)) * game.evaluations_per_value
    return replace(labels.take(index), evaluations=max(0, labels.evaluations - outputs))


def seen_residuals(some: Refinable, labels: Array, variance: Array) -> tuple[Array, Seen]:
    """The residuals of the network's answers: their part that is known, and the rest with the labels' noise on it.

    How far the network is from a student is known for nothing, so that only what the student misses is seen through
    noise. Beside each other, rows in which labels vary a lot are those of which it misses a lot; in a row, it misses
    most where the network expects its own errors. How large its errors are in all is told by the network's alone.
    """
    answer = some.answer
    assert answer.typical is not None
    if some.student is None:
        return np.zeros_like(labels), Seen(labels - answer.values, variance, answer.typical, answer.active)
    # What a sampled student's values are off by is in both parts, with opposite signs: it is no noise of the labels'.
    asked = -(-STUDENT_VALUES // max(1, len(labels)))
    learned = Control.of(some.student, some.game, some.rows, stream_seed(some.seed, "seen"), asked).shapley
    noise, expected = (_mean_square(part, answer.active) for part in (variance, np.square(answer.typical)))
    more = np.divide(noise, expected, out=np.ones_like(noise), where=(noise > 0) & (expected > 0))
    sizes = answer.typical * np.sqrt(more)[:, None, :]
    sizes = np.where(sizes > 0, sizes, 1.0)  # where no errors are expected, in games of one player
    return learned - answer.values, Seen(labels - learned, variance, sizes, answer.active, np.sqrt(expected))


def _mean_square(squares: Array, active: npt.NDArray[np.bool_]) -> Array:
    """The mean over active players, (rows, outputs), of (rows, players, outputs)."""
    total = np.where(active[..., None], squares, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(1, active.sum(axis=1))[:, None])


def _teach(
    game: Game, rows: Rows, plan: Plan, store: ValueStore, request: Request
) -> tuple[Taught, dict[str, dict[str, Any]]]:
    """A student that learns v(S) from what the plan lists, and what that costs."""
    config, table = request.recipe.student, rows.table
    assert config is not None
    assert plan.pairs is not None
    assert isinstance(table.schema, Schema)
    scaled_by = np.delete(table.matrix, plan.calibration, axis=0)
    features = fit_features(table.matrix, table.schema.columns, game.absent, request.recipe.features, scaled_by)
    start = inputs = None
    if request.start is not None:
        # Weights mean what they meant only with the inputs that they were learned with.
        inputs = replace_reference(request.start.network.features, features.reference)
        if isinstance(request.start.student, NetworkStudent):
            start = request.start.student.network
            same = start.features.has_steps == inputs.has_steps
            features = inputs if same else replace_reference(start.features, features.reference)
    started = perf_counter()
    taught = teach(
        game, rows, plan.pairs, store, features, config, seed=request.seed, device=request.device, show=request.show,
        start=start, inputs=inputs,
    )  # fmt: skip
    assert taught.student is not None
    facts = {
        "rows": len(np.unique(plan.pairs.row[: taught.pairs])),
        "pairs": taught.pairs,
        "unexplained": taught.unexplained,
        "kind": taught.student.kind,
    }
    return taught, {"student": cost(store.reused + store.bought, perf_counter() - started, **facts)}


def _judge(
    game: Game, rows: Rows, plan: Plan, planned: PlannedLabels, taught: Taught, request: Request
) -> tuple[Material, Checkpoint]:
    """What a student teaches, and labels of other rows that judge it: the student's own, corrected by the model."""
    assert taught.student is not None
    validation = planned.precise(plan.validation, "validation", taught.student)
    calibration = planned.precise(plan.calibration, "calibration", taught.student)
    material = Material(rows, validation, validation, plan.train, validation.outputs)
    material.taught, material.calibration, material.kept_aside = taught, calibration, plan.calibration
    material.longest_round = plan.longest_round
    material.costs = {
        "labels": cost(validation.evaluations, validation.seconds, rows=len(validation), source=validation.source),
        "calibration": cost(calibration.evaluations, calibration.seconds, rows=len(calibration)),
    }
    # Other students teach something else, whatever the labels that judge.
    tensors = taught.student.to_tensors()[0]
    weights = np.concatenate([tensors[name].double().numpy().ravel() for name in sorted(tensors)])
    key = _key(game, rows, None, None, request, np.concatenate([validation.values.ravel(), weights]))
    return material, _checkpoint(request, key)


def _stream(
    game: Game, rows: Rows, plan: Plan, planned: PlannedLabels, request: Request
) -> tuple[Material, Checkpoint]:
    """Images: precise labels for validation and calibration; what is left of the budget is learned from as it comes."""
    started = perf_counter()
    validation = planned.precise(plan.validation, "validation")
    calibration = planned.precise(plan.calibration, "calibration")
    seconds = perf_counter() - started
    assert plan.stream is not None
    outputs = game.full_values(rows.take(plan.train))
    material = Material(rows, validation, validation, plan.train, outputs)
    material.unlabelled_evaluations = len(plan.train)
    material.calibration, material.kept_aside, material.stream = calibration, plan.calibration, plan.stream
    material.longest_round = plan.longest_round
    share = len(validation) / (len(validation) + len(calibration))
    material.costs = {
        "labels": cost(validation.evaluations, seconds * share, rows=len(validation), source=validation.source),
        "calibration": cost(calibration.evaluations, seconds * (1 - share), rows=len(calibration)),
    }
    # The model is known by labels that are kept: in reduced precision its outputs need not repeat bit for bit.
    schedule = json.dumps([asdict(plan.stream), torch.device(request.device).type]).encode()
    key = hashlib.sha256(_key(game, rows, None, None, request, validation.values).encode() + schedule).hexdigest()
    return material, _checkpoint(request, key)


def _spend(
    game: Game, rows: Rows, plan: Plan, planned: PlannedLabels, request: Request, curve: list[dict[str, float]]
) -> Material:
    """Buys what the plan lists: validation and calibration first, then training labels until more would not help."""
    validation = planned.precise(plan.validation, "validation")
    calibration = planned.precise(plan.calibration, "calibration")
    count = len(plan.train)
    steps = [count] if count < LEAST_TO_STOP else [count // 4, count // 2, count]
    errors: list[Array] = []
    seconds = 0.0
    for step in steps:
        train = planned.train(step)
        material = Material(rows, train, validation, *planned.unlabelled(train))
        material.noisy, material.kept_aside = plan.mode == "sample", plan.calibration
        if step == count:
            break
        started = perf_counter()
        errors.append(
            trial(game, material, request.recipe, seed=request.seed, device=request.device, show=request.show)
        )
        seconds += perf_counter() - started
        spent = validation.evaluations + calibration.evaluations + train.evaluations + material.unlabelled_evaluations
        point = _point(step, spent, float(errors[-1].mean()), _norm(validation))
        curve.append(point)
        learned = point["l2"] <= ROUNDING * _norm(validation)
        if len(errors) > 1 and (learned or (not _worth_more(errors[-2], errors[-1]) and _near(point, validation))):
            logger.info(
                "stopped at %s of %s training labels: the validation l2 is %.3g, %.3g%% of the labels' norm, %s",
                f"{step:,}", f"{count:,}", point["l2"], 100 * point["relative_l2"],
                "no more than rounding" if learned
                else f"and twice as many labels brought less than {LEAST_GAIN:.0%} of it",
            )  # fmt: skip
            break
    material.calibration, material.longest_round = calibration, plan.longest_round
    seen = len(train) + len(validation)
    material.costs = {
        "labels": cost(
            train.evaluations + validation.evaluations,
            train.seconds + validation.seconds,
            rows=seen,
            source=train.source,
        ),
        "calibration": cost(calibration.evaluations, calibration.seconds, rows=len(calibration)),
        "trials": cost(0, seconds, rows=len(train) if errors else 0),
    }
    return material


def _worth_more(before: Array, after: Array) -> bool:
    """Whether twice the labels lowered the validation errors, (rows,), by a share that is worth the next doubling."""
    if not before.any():
        return False
    ratio = after.mean() / before.mean()
    uncertainty = (after - ratio * before).std() / (before.mean() * np.sqrt(len(before)))
    return bool(1 - ratio + uncertainty >= LEAST_GAIN)


def _near(point: dict[str, float], validation: Labels) -> bool:
    """Whether the error is so small, or so near the noise of the validation labels, that little is left to learn."""
    errors = np.zeros_like(validation.values) if validation.errors is None else np.nan_to_num(validation.errors)
    noise = float(np.linalg.norm(errors, axis=1).mean())
    return point["l2"] <= max(NEAR * _norm(validation), NEAR_NOISE * noise)


def _norm(labels: Labels) -> float:
    """The mean l2 norm of labels."""
    return float(np.linalg.norm(labels.values, axis=1).mean())


def _point(labels: int, evaluations: int, l2: float, norm: float) -> dict[str, float]:
    """A point of the learning curve."""
    return {"labels": labels, "evaluations": evaluations, "l2": l2, "relative_l2": _relative(l2, norm)}


def _relative(l2: float, norm: float) -> float:
    """An error as a share of the labels' norm; NaN where labels are zero, as those of a constant model are."""
    return l2 / norm if norm else math.nan


def _as_told(
    game: Game, rows: Rows, labels: Any, left_out: Words, request: Request, source: RowStream | None
) -> tuple[Material, Checkpoint]:
    """Labels that the caller gives, or so many of our own."""
    recipe, seed, show, together = request.recipe, request.seed, request.show, request.together
    started, spent = perf_counter(), game.evaluations
    if together.several:  # asked for once, not by each process
        game.base_values = together.numbers_of_first(lambda: game.base_values)
    teach = np.flatnonzero(~np.isin(rows.words, left_out))
    outputs = np.full((len(rows), game.n_outputs), np.nan)  # of those that teach nothing nobody needs them
    outputs[teach] = _shared_outputs(game, rows, teach, together)
    if together.several and isinstance(labels, Explanation) and labels.outputs is None and labels.data is not None:
        of_labels = _shared_outputs(game, game.rows(labels.data), np.arange(len(labels)), together)
        labels = replace(labels, outputs=of_labels.reshape(labels.base_values.shape))
    given = None if labels is None else given_labels(labels, game, rows, outputs)
    asked = cost(together.total(game.evaluations - spent), perf_counter() - started, rows=len(teach))
    key = _key(game, rows, outputs, given, request, source=source, left_out=left_out)
    together.same(key, "the processes were given different labels; all must make the same call")
    checkpoint = Checkpoint(request.folder, key)
    checkpoint.writes = together.first
    if given is None:
        assert request.n_labels is not None
        given = make_labels(game, rows, request.n_labels, seed=seed, checkpoint=checkpoint, show=show)
    least = max(2, together.world)
    material = labels_as_given(game, rows, outputs, given, recipe, seed, left_out=left_out, least=least)
    material.costs, material.source = {"outputs": asked, **material.costs}, source
    if source is not None and together.first:
        logger.info(stream_words(game, source.n_rows, recipe))
    if recipe.pretrain.rough_pairs and recipe.pretrain.steps and source is None:
        some = take_rows(rows.data, material.pretraining)
        material.rough = rough_labels(game, some, recipe.pretrain.rough_pairs, seed, checkpoint, show, together)
        material.unlabelled_evaluations = material.rough.evaluations
    return material, checkpoint


def _left_out(game: Game, rows: Any) -> Words:
    """The words of the rows that must teach nothing; frequent ones may (`Explanation.frequent`)."""
    if rows is None:
        return NONE
    if isinstance(rows, Explanation):
        frequent, rows = rows.frequent, rows.data
        if rows is None:
            raise InputError("leave_out= is an Explanation without its rows; give the rows themselves")
        if frequent is not None:
            rows = take_rows(rows, np.flatnonzero(~frequent))
            if frequent.all():
                return NONE
    return game.rows(rows).words


def _shared_outputs(game: Game, rows: Rows, index: IntArray, together: Processes) -> Array:
    """f(x) of some rows, (index, outputs), `index` ascending; each process asks about its share, which may be none."""
    share = index[together.share(len(index))]
    own = np.zeros((0, game.n_outputs))
    if len(share):
        own = game.full_values(rows if len(share) == len(rows) else rows.take(share))
    gathered: Array = together.gather_array(own, len(index))
    return gathered


def _checkpoint(request: Request, key: str) -> Checkpoint:
    """Where the training of a planned fit is kept, beside the labels and values of its folder."""
    return Checkpoint(None if request.folder is None else request.folder / f"training-{key[:12]}", key)


def _key(
    game: Game,
    rows: Rows,
    outputs: Array | None,
    labels: Labels | None,
    request: Request,
    validation: Array | None = None,
    source: RowStream | None = None,
    left_out: Words = NONE,
) -> str:
    """A hash of everything a fit depends on, the model through its outputs; a checkpoint is used only for the same."""
    settings = [request.recipe.to_json(), request.heads, request.n_labels, request.seed, game.players.names]
    parts = hashlib.sha256(json.dumps([*settings, game.model.output]).encode())
    model = [] if outputs is None else [outputs, game.base_values]
    arrays: list[Any] = [rows.words, *model, game.absent, game.players.column_player]
    if game.own_reference is not None:
        parts.update(game.own_reference.encode())
    if source is not None:
        parts.update(source.identity.encode())
    if request.start is not None:
        arrays += [tensor.detach().cpu().numpy() for _, tensor in sorted(request.start.network.state_dict().items())]
    if validation is not None:
        arrays.append(validation)
    if len(left_out):
        arrays.append(np.sort(left_out))
    if labels is not None:
        arrays += [labels.values, labels.outputs, game.rows(labels.data).words]
        if labels.views is not None:
            arrays += [labels.views.rows, labels.views.kept, labels.views.values]
    for array in arrays:
        parts.update(np.ascontiguousarray(array).tobytes())
    return parts.hexdigest()


@torch.no_grad()
def _quality(learned: Learned, names: tuple[str, ...], size: float) -> dict[str, float]:
    """How close the explainer comes to the validation labels, which trained nothing but may have chosen the epoch.

    `size` is that of the model's outputs: beside it, labels that are rounding errors count as zero.
    """
    validation: LabelSet = learned.validation
    answer = learned.network.in_parts(validation.codes, validation.total)
    values, truth = answer.values.double().cpu().numpy(), validation.labels.double().cpu().numpy()
    l2, norm = float(l2_distance(values, truth).mean()), float(np.linalg.norm(truth, axis=1).mean())
    if norm <= NOTHING * size:
        norm = 0.0
    quality = {
        "rows": float(len(truth)),
        "l2": l2,
        "label_norm": norm,
        "relative_l2": _relative(l2, norm),
        "rank_accuracy": float(rank_accuracy(values, truth).mean()),
    }
    if answer.ranking is not None:
        predicted = Explanation(values, truth.sum(axis=1), names, predicted_ranking=answer.ranking.cpu().numpy())
        quality["ranking_head_rank_accuracy"] = float(rank_accuracy(predicted, truth).mean())
    return quality
