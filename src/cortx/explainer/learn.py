"""From labels to a trained network: inputs, encoder, heads, and what it knows of its own errors."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cortx.explainer.budget import KNOWN
from cortx.explainer.labels import Labels
from cortx.explainer.material import Material, cost
from cortx.explainer.noise import pooled
from cortx.explainer.teaching import Teacher, label_rows
from cortx.games import Game
from cortx.images import ImageSchema, read_like
from cortx.metrics import l2_distance
from cortx.seeding import torch_generator
from cortx.tables import Schema, Table
from cortx.threads import work
from cortx.training.axioms import efficiency
from cortx.training.checkpoint import Checkpoint
from cortx.training.difficulty import fit_difficulty
from cortx.training.features import fit_features
from cortx.training.finetune import LabelSet, finetune
from cortx.training.heads.head import scale_of
from cortx.training.image_network import ImageFeatures, ImageNetwork
from cortx.training.network import ExplainerNetwork
from cortx.training.parallel import ALONE, Processes
from cortx.training.path_gradients import PathGradients
from cortx.training.pretrain import Feed, PretrainConfig, TableFeed, pretrain
from cortx.training.recipe import Recipe
from cortx.training.resnet import settle
from cortx.training.row_stream import StreamFeed
from cortx.training.stream import fitting_augmentation, scout, train_on_stream
from cortx.training.surrogate import imitate, start_from

Array = npt.NDArray[np.float64]
NOISY_DECAY = 1.0
"""Weight decay where labels are noisy (docs/decisions/0005-budgets.md)."""
PART = 4_096
"""Rows whose gradients are asked for at a time; the first of them say how much a first guess misses."""
GUESSED_STEPS, GUESSED_PRETRAINING = 0.75, 0.3
"""Shares of a recipe's steps that are done where an explainer starts from a student's gradients: more change nothing,
and the time is better spent on labels of more rows."""
LEAST_MISSED = 1e-3
"""A first guess is not trusted further than to this share of the labels' scale."""


@dataclass(frozen=True, eq=False)
class Learned:
    """A trained network, and the validation labels that judged it (without a student they chose its epoch)."""

    network: ExplainerNetwork
    schema: Schema | ImageSchema
    validation: LabelSet
    history: dict[str, list[float]]
    costs: dict[str, Any]


def learn(
    game: Game,
    material: Material,
    recipe: Recipe,
    heads: tuple[str, ...],
    *,
    seed: int,
    device: str,
    checkpoint: Checkpoint,
    show: bool | None,
    together: Processes = ALONE,
    start: ExplainerNetwork | None = None,
) -> Learned:
    """Pre-trains the encoder, trains the heads, and learns where the network errs.

    With `start` the encoder starts from its weights and is not pre-trained. Heads start from its heads where both see
    the same inputs, and are then trained for half as many steps.
    """
    network, schema = _network(game, material, recipe, heads, seed)
    if start is not None:
        network.encoder.load_state_dict(start.encoder.state_dict())
        recipe = replace(recipe, pretrain=replace(recipe.pretrain, steps=0))
        if (start.path is None) == (network.path is None):
            network.heads.load_state_dict(start.heads.state_dict())
            steps = max(1, recipe.attribution.steps // 2)
            recipe = replace(recipe, attribution=replace(recipe.attribution, steps=steps))
    settle(network, device)
    if isinstance(network, ImageNetwork) and material.stream is not None:
        return _learn_from_stream(network, game, material, recipe, schema, seed, checkpoint, show)
    if material.taught is not None:
        return _learn_from_teacher(network, game, material, recipe, heads, schema, seed, checkpoint, show)
    return _learn_from_labels(network, game, material, recipe, heads, schema, seed, checkpoint, show, together)


def _learn_from_labels(
    network: ExplainerNetwork,
    game: Game,
    material: Material,
    recipe: Recipe,
    heads: tuple[str, ...],
    schema: Schema | ImageSchema,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None,
    together: Processes,
) -> Learned:
    """Contrastive pre-training, with rough labels where there are any, then labels of the model's own game."""
    absent, spent = game.absent[0], game.evaluations
    train, validation = (_label_set(network, game, labels, schema) for labels in (material.train, material.validation))
    views = _view_set(network, game, material.train, schema, absent)
    rough = None if material.rough is None else _label_set(network, game, material.rough, schema)
    for name in heads:
        network.head(name).set_scales(train.total, train.labels)
    totals = _totals(network, game, material)
    references = game.evaluations - spent  # v(none) of images that are their own references
    history: dict[str, list[float]] = {}
    costs: dict[str, Any] = {}

    started = perf_counter()
    index = material.pretraining
    feed = _feed(network, game, material, rough, recipe, schema, seed, together)
    history["pretraining"], evaluations = pretrain(
        network, game, feed, recipe.pretrain, seed=seed, checkpoint=checkpoint, show=show, together=together
    )
    n_rows, rough_cost = len(index), 0 if material.rough is None else material.rough.evaluations
    if material.source is not None:
        n_rows = min(material.source.n_rows, recipe.pretrain.steps * recipe.pretrain.batch_size)
    costs["pretraining"] = cost(
        material.unlabelled_evaluations + references + evaluations,
        perf_counter() - started,
        rows=n_rows,
        rough_labels=rough_cost,
    )

    started = perf_counter()
    for name in heads:
        config = recipe.attribution if name == "attribution" else recipe.ranking
        if name == "attribution" and material.noisy:
            # The mean of noisy labels is right, and squared error finds means. Noise must not be learned by heart:
            # half the steps and a strong decay halved the error here.
            steps = max(1, config.steps // 2)
            config = replace(config, loss="own", steps=steps, weight_decay=NOISY_DECAY)
        history[name] = finetune(
            network, name, train, views, rough if name == "attribution" else None, validation, config,
            seed=seed, checkpoint=checkpoint, show=show, together=together,
        )  # fmt: skip
    _fit_total_model(network, torch.from_numpy(material.rows.table.matrix[index]).to(network.device), totals, seed)
    known = [train] if views is None else [train, views]
    fit_difficulty(network, known, validation, _errors(material.validation))
    costs["finetuning"] = cost(0, perf_counter() - started, rows=len(train), validation_rows=len(validation))
    network.eval().requires_grad_(False)
    return Learned(network, schema, validation, history, costs)


def _learn_from_teacher(
    network: ExplainerNetwork,
    game: Game,
    material: Material,
    recipe: Recipe,
    heads: tuple[str, ...],
    schema: Schema | ImageSchema,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None,
) -> Learned:
    """Contrastive pre-training with positives that the teacher chooses, then its labels of real and made-up rows."""
    assert material.taught is not None
    assert recipe.student is not None
    label_config = recipe.student
    if network.path is not None:
        recipe = _with_fewer_steps(recipe)
    teacher = material.taught.teacher
    history: dict[str, list[float]] = {}
    costs: dict[str, Any] = {}
    started = perf_counter()
    validation = _label_set(network, game, material.validation, schema)
    taught = label_rows(teacher, network, game, material.rows, material.pretraining, label_config, seed=seed, show=show)
    network.total_scale.copy_(scale_of(taught.total))
    for name in heads:
        network.head(name).set_scales(taught.total, taught.labels)
    if network.path is not None:
        taught = _with_guesses(network, network.path, taught)
    # What judges is left out of the choice of the best moment: the teacher's labels of these rows choose it.
    choosing = replace(validation, labels=teacher.labels(validation.codes, seed)[0])
    costs["labels to learn from"] = cost(0, perf_counter() - started, rows=len(taught))

    started = perf_counter()
    some = material.pretraining[: _pretrained_rows(teacher, recipe.pretrain)]
    rows = material.rows.take(some)
    totals = teacher.totals(torch.from_numpy(rows.table.matrix).to(network.device))
    outputs = game.base_values + totals.double().cpu().numpy()
    feed = TableFeed(network, game, rows, outputs, None, recipe.pretrain, seed, asked=teacher.values)
    history["pretraining"], _ = pretrain(
        network, game, feed, recipe.pretrain, seed=seed, checkpoint=checkpoint, show=show
    )
    costs["pretraining"] = cost(0, perf_counter() - started, rows=len(rows))

    started = perf_counter()
    for name in heads:
        config = recipe.attribution if name == "attribution" else recipe.ranking
        history[name] = finetune(
            network, name, taught, None, None, choosing, config, seed=seed, checkpoint=checkpoint, show=show
        )
    _fit_total_model(network, taught.codes, taught.total.double(), seed)
    fit_difficulty(network, [taught], validation, _errors(material.validation))
    costs["finetuning"] = cost(0, perf_counter() - started, rows=len(taught), validation_rows=len(validation))
    network.eval().requires_grad_(False)
    return Learned(network, schema, validation, history, costs)


def _with_fewer_steps(recipe: Recipe) -> Recipe:
    """What is left to learn where a student's gradients are a first guess."""
    pretrain = replace(recipe.pretrain, steps=int(GUESSED_PRETRAINING * recipe.pretrain.steps))
    attribution = replace(recipe.attribution, steps=max(1, int(GUESSED_STEPS * recipe.attribution.steps)))
    return replace(recipe, pretrain=pretrain, attribution=attribution)


def _pretrained_rows(teacher: Teacher, config: PretrainConfig) -> int:
    """Rows to pre-train on, at most: as many as the teacher chooses positives for in about a minute."""
    if teacher.most_asked is None or config.positives == "random":
        return config.most_rows
    each = config.rounds * config.n_positives
    return min(config.most_rows, max(config.batch_size, teacher.most_asked // each))


@torch.no_grad()
def _with_guesses(network: ExplainerNetwork, path: PathGradients, taught: LabelSet) -> LabelSet:
    """The labels with what the student's gradients say of their rows; sets what both are measured by.

    Contributions are measured by the labels' scale, and the head's scores by what the first guess misses.
    """
    head = network.attribution
    path.unit.copy_(head.label_scale)
    seen = torch.cat(
        [path(network.features(part.codes), part.active) for part in taught.parts(min(PART, network.rows_at_a_time))]
    )
    some = taught.take(slice(PART))
    missed = efficiency(path.guess(seen[:PART]), some.total, some.active) - some.labels
    head.label_scale.copy_(torch.maximum(scale_of(missed, (0, 1)), LEAST_MISSED * head.label_scale))
    return replace(taught, seen=seen)


def _learn_from_stream(
    network: ImageNetwork,
    game: Game,
    material: Material,
    recipe: Recipe,
    schema: Schema | ImageSchema,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None,
) -> Learned:
    """Images: contrastive pre-training, then fresh labels in every step."""
    config, stream = recipe.stream, material.stream
    assert config is not None
    assert stream is not None
    history: dict[str, list[float]] = {}
    costs: dict[str, Any] = {}
    started, spent = perf_counter(), game.evaluations
    validation = _label_set(network, game, material.validation, schema)
    totals = _totals(network, game, material)
    rows = material.rows.take(material.pretraining)
    matrix = torch.from_numpy(rows.table.matrix).to(network.device)

    outputs = torch.from_numpy(material.outputs).to(network.device)
    sizes = scout(network, game, matrix, config, seed=seed)
    config = fitting_augmentation(replace(config, pairs=stream.pairs), game, matrix, outputs, seed=seed)
    asked = game.evaluations - spent
    warm = start_from(network.encoder, game)
    if not warm:
        steps = stream.imitation_steps
        asked += steps * min(config.batch_size, len(matrix))  # before a kill or now
        history["imitation"] = imitate(
            network.encoder, game, matrix, steps, config, seed=seed, checkpoint=checkpoint, show=show
        )
    history["pretraining"], evaluations = pretrain(
        network, game, TableFeed(network, game, rows, material.outputs, None, recipe.pretrain, seed), recipe.pretrain,
        seed=seed, checkpoint=checkpoint, show=show,
    )  # fmt: skip
    asked += evaluations + material.unlabelled_evaluations
    costs["pretraining"] = cost(asked, perf_counter() - started, rows=len(rows), from_the_model_itself=warm)

    started = perf_counter()
    history["attribution"], evaluations = train_on_stream(
        network, game, matrix, stream.batches, sizes, validation, config, seed=seed, checkpoint=checkpoint, show=show
    )
    _fit_total_model(network, matrix, totals, seed)
    spent = game.evaluations
    known = torch.from_numpy(material.outputs[:KNOWN] - game.empty_of(rows.table.take(slice(KNOWN))))
    known_set = LabelSet(
        matrix[:KNOWN],
        known.to(network.device, torch.float32),
        network.active(matrix[:KNOWN]),
        torch.zeros(len(known), game.n_players, game.n_outputs, device=network.device),
    )
    fit_difficulty(network, [known_set], validation, _errors(material.validation))
    costs["labels to learn from"] = cost(
        evaluations + game.evaluations - spent,
        perf_counter() - started,
        rows=len(rows),
        batches=stream.batches,
        pairs=config.pairs,
        mirrored=config.flip,
    )
    network.eval().requires_grad_(False)
    return Learned(network, schema, validation, history, costs)


def _feed(
    network: ExplainerNetwork,
    game: Game,
    material: Material,
    rough: LabelSet | None,
    recipe: Recipe,
    schema: Schema | ImageSchema,
    seed: int,
    together: Processes,
) -> Feed:
    """Rows to pre-train on: those in memory, or all that a stream has."""
    config = recipe.pretrain
    if material.source is None:
        rows = material.rows.take(material.pretraining)
        return TableFeed(network, game, rows, material.outputs, rough, config, seed, together)
    assert isinstance(schema, Schema)
    assert material.silent is not None
    spare = material.rows.take(material.pretraining)
    return StreamFeed(network, game, material.source, schema, material.silent, spare, config, seed, together)


def _totals(network: ExplainerNetwork, game: Game, material: Material) -> torch.Tensor:
    """f(x) - f(reference) of the rows to pre-train on, (rows, outputs); sets what they are measured by."""
    empty = game.empty_of(material.rows.table.take(material.pretraining))
    totals = torch.from_numpy(material.outputs - empty).to(network.device)
    network.total_scale.copy_(scale_of(totals))
    return totals


def trial(game: Game, material: Material, recipe: Recipe, *, seed: int, device: str, show: bool | None) -> Array:
    """The validation errors, (rows,), that a short training on these labels reaches: it asks the model for nothing."""
    short = replace(
        recipe,
        pretrain=replace(recipe.pretrain, steps=0),
        attribution=replace(recipe.attribution, steps=max(1, recipe.attribution.steps // 3), tune_encoder=True),
    )
    unkept = Checkpoint(None, "")
    with work(large=game.of_images and game.large):
        learned = learn(game, material, short, ("attribution",), seed=seed, device=device, checkpoint=unkept, show=show)
    with torch.no_grad():
        values = learned.network(learned.validation.codes, learned.validation.total).values
    distance = l2_distance(values.double().cpu().numpy(), learned.validation.labels.double().cpu().numpy())
    return np.asarray(distance.reshape(len(values), -1).mean(axis=1))


def _network(
    game: Game, material: Material, recipe: Recipe, heads: tuple[str, ...], seed: int
) -> tuple[ExplainerNetwork, Schema | ImageSchema]:
    """Untrained. Labelled rows may hold categories that the table does not: the explainer knows the union."""
    rows = material.rows
    if isinstance(rows.table.schema, ImageSchema):
        features = ImageFeatures(
            rows.table.schema, game.image_players, torch.from_numpy(game.absent), game.own_reference
        )
        made = ImageNetwork(
            features, game.image_players, game.n_outputs, encoder=recipe.encoder, head=recipe.head, seed=seed
        )
        return made, rows.table.schema
    matrices, schema = [rows.table.matrix], rows.table.schema
    for labels in (material.train, material.validation):
        table = read_like(labels.data, schema, "the labelled table")
        assert isinstance(table, Table)
        matrices.append(table.matrix)
        schema = table.schema
    learnt_from = None
    if material.kept_aside is not None:
        learnt_from = np.delete(rows.table.matrix, material.kept_aside, axis=0)
    path = None
    if material.taught is not None:
        student, inputs = material.taught.network, deepcopy(material.taught.features)  # each network moves alone
        if student is not None and student.config.path_points:
            path = PathGradients.of(student)
    else:
        inputs = fit_features(np.concatenate(matrices), schema.columns, game.absent, recipe.features, learnt_from)
    network = ExplainerNetwork(
        inputs,
        torch.from_numpy(game.players.column_player),
        game.n_outputs,
        encoder=recipe.encoder,
        head=recipe.head,
        heads=heads,
        seed=seed,
        path=path,
    )
    return network, schema


def _label_set(network: ExplainerNetwork, game: Game, labels: Labels, schema: Schema | ImageSchema) -> LabelSet:
    table = read_like(labels.data, schema, "the labelled table")
    return _as_set(network, table.matrix, labels.outputs - game.empty_of(table), labels.values)


def _as_set(network: ExplainerNetwork, matrix: Any, totals: Any, values: Any) -> LabelSet:
    codes = torch.from_numpy(matrix).to(network.device)
    return LabelSet(
        codes,
        torch.from_numpy(totals).to(network.device, torch.float32),
        network.active(codes),
        torch.from_numpy(values).to(network.device, torch.float32),
    )


def _view_set(
    network: ExplainerNetwork, game: Game, labels: Labels, schema: Schema | ImageSchema, absent: Array
) -> LabelSet | None:
    """The free masked copies of training rows, if there are any."""
    views = labels.views
    if views is None:
        return None
    matrix = read_like(labels.data, schema, "the labelled table").matrix
    masked = np.where(game.players.columns(views.kept), matrix[views.rows], absent)
    return _as_set(network, masked, views.outputs - game.base_values, views.values)


def _errors(labels: Labels) -> torch.Tensor:
    """Standard deviations of the labels' noise, in their shape; zero where they are not known.

    Where the variance is known, its root: standard errors are larger, and errors would be taken for noise.
    """
    errors = np.zeros_like(labels.values) if labels.errors is None else labels.errors
    if labels.variance is not None:
        errors = np.sqrt(pooled(labels.variance))
    return torch.from_numpy(np.nan_to_num(errors, nan=0.0)).to(torch.float32)


def _fit_total_model(network: ExplainerNetwork, matrix: torch.Tensor, totals: torch.Tensor, seed: int) -> None:
    """Learns f(x) - f(reference) from the inputs, for callers who explain without giving outputs or a model."""
    optimizer = torch.optim.Adam(network.total_model.parameters(), lr=2e-3)
    target = (totals / network.total_scale).to(torch.float32)
    generator = torch_generator(seed, "total model")
    seen: torch.Tensor | None = None
    if isinstance(network, ImageNetwork):  # its inputs are dear: each image is looked at once
        with torch.no_grad():
            seen = torch.cat([network.total_inputs(part) for part in torch.split(matrix, network.rows_at_a_time)])
    for _ in range(1_000):
        index = torch.randint(len(matrix), (min(512, len(matrix)),), generator=generator).to(matrix.device)
        with torch.no_grad():
            inputs = network.total_inputs(matrix[index]) if seen is None else seen[index]
        loss = (network.total_model(inputs) - target[index]).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
