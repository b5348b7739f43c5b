"""The whole method on one screen: labels, encoder, heads."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import InputError
from cortx.estimators.shapley import shapley
from cortx.explainer.labels import Labels, given_labels, label_facts, make_labels, pack_labels, unpack_labels
from cortx.explanation import Explanation, FloatArray, Views, take_rows
from cortx.games import Game, GameSpec, Rows
from cortx.metrics import l2_distance, rank_accuracy
from cortx.seeding import numpy_generator, torch_generator
from cortx.tables import read_table
from cortx.training.checkpoint import Checkpoint
from cortx.training.features import fit_features
from cortx.training.finetune import LabelSet, finetune
from cortx.training.network import ExplainerNetwork
from cortx.training.pretrain import pretrain
from cortx.training.recipe import Recipe

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
logger = logging.getLogger("cortx")
N_PROBES = 32


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


def fit_explainer(
    game: Game,
    X: Any,
    labels: Any,
    recipe: Recipe,
    heads: tuple[str, ...],
    *,
    n_labels: int | None,
    seed: int,
    checkpoint_folder: Any,
    show: bool | None,
) -> Fitted:
    """Pre-trains the encoder on all rows, then the heads on the labelled ones."""
    started, spent = perf_counter(), game.evaluations
    rows = game.rows(X)
    outputs = game.full_values(rows)
    given = None if labels is None else given_labels(labels, game, rows, outputs)
    totals = torch.from_numpy(outputs - game.base_values)
    costs: dict[str, Any] = {"outputs": _cost(game.evaluations - spent, perf_counter() - started, rows=len(rows))}

    checkpoint = Checkpoint(checkpoint_folder, _key(game, rows, outputs, given, recipe, heads, n_labels, seed))
    if given is None:
        given = make_labels(game, rows, n_labels, seed=seed, checkpoint=checkpoint, show=show)
    costs["labels"] = _cost(given.evaluations, given.seconds, rows=len(given), source=given.source)

    # Labelled rows may hold categories that the table does not: the explainer knows the union.
    labelled = read_table(given.data, schema=rows.table.schema, what="the labelled table")
    both = np.concatenate([rows.table.matrix, labelled.matrix])
    network = ExplainerNetwork(
        fit_features(both, labelled.schema.columns, game.absent, recipe.features),
        torch.from_numpy(game.players.column_player),
        game.n_outputs,
        encoder=recipe.encoder,
        head=recipe.head,
        heads=heads,
        seed=seed,
    )
    network.total_scale.copy_(totals.square().mean(dim=0).sqrt().clamp(min=1e-12))

    split = _Split(len(given), recipe.validation_share, seed)
    precise = _label_set(network, labelled.matrix, given.outputs - game.base_values, given.values)
    train, validation = precise.take(split.train), precise.take(split.validation)
    views = None if given.views is None else _view_set(network, game, labelled.matrix, given.views, split.train)
    for name in heads:
        network.head(name).set_scales(train.total, train.labels)

    started = perf_counter()
    some = _pretraining_rows(game, rows, labelled.row_words()[split.validation], recipe.pretrain.most_rows, seed)
    rough, rough_evaluations = None, 0
    if recipe.pretrain.rough_pairs and recipe.pretrain.steps:
        rough, rough_evaluations = _rough_labels(
            network, game, rows.data, some, recipe.pretrain.rough_pairs, seed, checkpoint, show
        )
    history: dict[str, list[float]] = {}
    history["pretraining"], evaluations = pretrain(
        network, game, rows.take(some), outputs[some], rough, recipe.pretrain,
        seed=seed, checkpoint=checkpoint, show=show,
    )  # fmt: skip
    costs["pretraining"] = _cost(
        rough_evaluations + evaluations, perf_counter() - started, rows=len(some), rough_labels=rough_evaluations
    )

    started = perf_counter()
    for name in heads:
        config = recipe.attribution if name == "attribution" else recipe.ranking
        history[name] = finetune(
            network, name, train, views, rough if name == "attribution" else None, validation, config,
            seed=seed, checkpoint=checkpoint, show=show,
        )  # fmt: skip
    _fit_total_model(network, torch.from_numpy(rows.table.matrix), totals, seed)
    costs["finetuning"] = _cost(0, perf_counter() - started, rows=len(train), validation_rows=len(validation))
    costs["total_evaluations"] = sum(part["evaluations"] for part in costs.values())

    network.eval().requires_grad_(False)
    probe = _probe_rows(rows.table.matrix, seed)
    fitted = Fitted(
        network=network,
        spec=game.spec(labelled.schema),
        recipe=recipe,
        heads=heads,
        seed=seed,
        costs=costs,
        quality=_quality(network, validation, game.players.names),
        history=history,
        probe=probe,
        probe_outputs=game.fingerprint(probe, rows.table.schema),
    )
    checkpoint.clear()
    logger.info(
        "fitted: %s model evaluations in all, validation l2 %.3g (labels: %.3g)",
        f"{costs['total_evaluations']:,}",
        fitted.quality["l2"],
        fitted.quality["label_norm"],
    )
    return fitted


def _cost(evaluations: int, seconds: float, **facts: Any) -> dict[str, Any]:
    return {"evaluations": int(evaluations), "seconds": round(seconds, 3), **facts}


def _key(
    game: Game,
    rows: Rows,
    outputs: Array,
    given: Labels | None,
    recipe: Recipe,
    heads: tuple[str, ...],
    n_labels: int | None,
    seed: int,
) -> str:
    """A hash of everything a fit depends on, the model through its outputs; a checkpoint is used only for the same."""
    settings = [recipe.to_json(), heads, n_labels, seed, game.players.names, game.model.output]
    parts = hashlib.sha256(json.dumps(settings).encode())
    arrays: list[Any] = [rows.words, outputs, game.absent, game.base_values, game.players.column_player]
    if given is not None:
        arrays += [given.values, given.outputs, game.rows(given.data).words]
        if given.views is not None:
            arrays += [given.views.rows, given.views.kept, given.views.values]
    for array in arrays:
        parts.update(np.ascontiguousarray(array).tobytes())
    return parts.hexdigest()


def _label_set(network: ExplainerNetwork, matrix: Array, total: FloatArray, values: FloatArray) -> LabelSet:
    codes = torch.from_numpy(matrix)
    return LabelSet(
        codes,
        torch.from_numpy(total).to(torch.float32),
        network.active(codes),
        torch.from_numpy(values).to(torch.float32),
    )


def _view_set(
    network: ExplainerNetwork, game: Game, matrix: Array, views: Views, training_rows: torch.Tensor
) -> LabelSet | None:
    """The free views of training rows, if there are any; views of validation rows would give them away."""
    chosen = np.isin(views.rows, training_rows.numpy())
    if not chosen.any():
        return None
    present = game.players.columns(views.kept[chosen])
    masked = np.where(present, matrix[views.rows[chosen]], game.absent[0])
    return _label_set(network, masked, views.outputs[chosen] - game.base_values, views.values[chosen])


def _pretraining_rows(
    game: Game, rows: Rows, validation_words: npt.NDArray[np.uint64], most: int, seed: int
) -> IntArray:
    """The rows to pre-train on: a random part of a large table, and never a row that validates."""
    if game.evaluations_per_value > 1:  # every value costs the whole background, so fewer rows are asked
        most = min(most, max(500, most // game.evaluations_per_value))
    allowed = np.flatnonzero(~np.isin(rows.words, validation_words))
    if len(allowed) < 2:
        raise InputError(
            f"the table has {len(rows)} rows, too few beside the {len(validation_words)} that validate; give more"
        )
    if len(allowed) <= most:
        return allowed
    return np.sort(numpy_generator(seed, "pre-training rows").choice(allowed, size=most, replace=False))


def _rough_labels(
    network: ExplainerNetwork,
    game: Game,
    data: Any,
    index: IntArray,
    pairs: int,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None,
) -> tuple[LabelSet, int]:
    """A noisy but unbiased label for every row, from a few antithetic permutations, and what they cost."""
    some = take_rows(data, index)
    kept = checkpoint.load("rough")
    if kept is None:
        budget = game.evaluations_per_value * (2 * pairs * max(1, game.n_players - 1) + 1)
        labels = shapley(game, some, "permutation", budget=budget, views=0, seed=seed, progress=show)
        checkpoint.save("rough", pack_labels(labels), **label_facts(labels))
    else:
        labels = unpack_labels(*kept, game=game, data=some)
    assert labels.outputs is not None
    total = labels.outputs.reshape(len(index), -1) - game.base_values
    values = labels.values.reshape(len(index), game.n_players, -1)
    return _label_set(network, game.rows(some).table.matrix, total, values), labels.evaluations


class _Split:
    """A random part of the labels for validation, the rest for training."""

    def __init__(self, n_labels: int, share: float, seed: int) -> None:
        order = torch.from_numpy(numpy_generator(seed, "validation split").permutation(n_labels))
        # A handful of rows chooses nothing: at least ten, but never more than a third.
        n_validation = max(round(share * n_labels), min(10, n_labels // 3))
        self.train, self.validation = order[n_validation:], order[:n_validation]


def _fit_total_model(network: ExplainerNetwork, matrix: torch.Tensor, totals: torch.Tensor, seed: int) -> None:
    """Learns f(x) - f(reference) from the inputs, for callers who explain without giving outputs or a model."""
    optimizer = torch.optim.Adam(network.total_model.parameters(), lr=2e-3)
    target = (totals / network.total_scale).to(torch.float32)
    generator = torch_generator(seed, "total model")
    for _ in range(1_000):
        index = torch.randint(len(matrix), (min(512, len(matrix)),), generator=generator)
        with torch.no_grad():
            inputs = network.features(matrix[index])
        loss = (network.total_model(inputs) - target[index]).square().mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


@torch.no_grad()
def _quality(network: ExplainerNetwork, validation: LabelSet, names: tuple[str, ...]) -> dict[str, float]:
    """How close the explainer comes to the validation labels, which trained nothing but chose the epoch."""
    answer = network(validation.codes, validation.total)
    values, truth = answer.values.double().numpy(), validation.labels.double().numpy()
    quality = {
        "rows": float(len(truth)),
        "l2": float(l2_distance(values, truth).mean()),
        "label_norm": float(np.linalg.norm(truth, axis=1).mean()),
        "rank_accuracy": float(rank_accuracy(values, truth).mean()),
    }
    if answer.ranking is not None:
        predicted = Explanation(values, truth.sum(axis=1), names, predicted_ranking=answer.ranking.numpy())
        quality["ranking_head_rank_accuracy"] = float(rank_accuracy(predicted, truth).mean())
    return quality


def _probe_rows(matrix: Array, seed: int) -> Array:
    """Each column drawn on its own from the training rows, so that no real row is stored."""
    generator = numpy_generator(seed, "probes")
    index = generator.integers(0, len(matrix), size=(min(N_PROBES, len(matrix)), matrix.shape[1]))
    return np.take_along_axis(matrix, index, axis=0)
