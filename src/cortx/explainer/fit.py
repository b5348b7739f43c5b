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
from cortx.explainer.labels import Labels, given_labels, make_labels
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
logger = logging.getLogger("cortx")
N_PROBES = 32


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit leaves behind."""

    network: ExplainerNetwork
    spec: GameSpec
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
    rows = game.rows(X)
    if len(rows) < 2:
        raise InputError(f"the table has {len(rows)} row; an explainer needs at least 2, better thousands")
    given = None if labels is None else given_labels(labels, game, rows)
    checkpoint = Checkpoint(checkpoint_folder, _key(game, rows, given, recipe, heads, n_labels, seed))
    if given is None:
        given = make_labels(game, rows, n_labels, seed=seed, checkpoint=checkpoint, show=show)
    costs: dict[str, Any] = {"labels": _cost(given.evaluations, given.seconds, rows=len(given), source=given.source)}

    started, spent = perf_counter(), game.evaluations
    outputs = game.full_values(rows)
    costs["outputs"] = _cost(game.evaluations - spent, perf_counter() - started, rows=len(rows))
    totals = torch.from_numpy(outputs - game.base_values)

    # Labelled rows may hold categories that the table does not: the explainer knows the union.
    labelled = read_table(given.data, schema=rows.table.schema, what="the labelled table")
    both = np.concatenate([rows.table.matrix, labelled.matrix])
    features = fit_features(both, labelled.schema.columns, game.absent.mean(axis=0), recipe.features)
    network = ExplainerNetwork(
        features,
        torch.from_numpy(game.players.column_player),
        game.n_outputs,
        encoder=recipe.encoder,
        head=recipe.head,
        heads=heads,
        seed=seed,
    )
    network.total_scale.copy_(totals.square().mean(dim=0).sqrt().clamp(min=1e-12))

    started, spent = perf_counter(), game.evaluations
    history = {
        "pretraining": pretrain(network, game, rows, outputs, recipe.pretrain, seed=seed, checkpoint=checkpoint, show=show)
    }
    costs["pretraining"] = _cost(game.evaluations - spent, perf_counter() - started, rows=len(rows))

    started = perf_counter()
    train, validation = _split(_label_set(labelled.matrix, given, game, network), recipe.validation_share, seed)
    for name in heads:
        config = recipe.attribution if name == "attribution" else recipe.ranking
        history[name] = finetune(
            network, name, train, validation, config, seed=seed, checkpoint=checkpoint, show=show
        )
    _fit_total_model(network, torch.from_numpy(rows.table.matrix), totals, seed)
    costs["finetuning"] = _cost(0, perf_counter() - started, rows=len(train), validation_rows=len(validation))
    costs["total_evaluations"] = sum(part["evaluations"] for part in costs.values())

    network.eval().requires_grad_(False)
    probe = _probe_rows(rows.table.matrix, seed)
    fingerprint = game.fingerprint(probe, rows.table.schema)
    checkpoint.clear()
    quality = _quality(network, validation)
    logger.info("fitted: %s model evaluations in all, validation l2 %.3g", costs["total_evaluations"], quality["l2"])
    return Fitted(network, game.spec(labelled.schema), costs, quality, history, probe, fingerprint)


def _cost(evaluations: int, seconds: float, **facts: Any) -> dict[str, Any]:
    return {"evaluations": int(evaluations), "seconds": round(seconds, 3), **facts}


def _key(
    game: Game, rows: Rows, given: Labels | None, recipe: Recipe, heads: tuple[str, ...], n_labels: int | None, seed: int
) -> str:
    """A hash of everything a fit depends on; a checkpoint is used only for the same."""
    parts = hashlib.sha256(json.dumps([recipe.to_json(), heads, n_labels, seed, game.players.names]).encode())
    for array in (rows.words, game.absent, game.base_values, *([] if given is None else [given.values])):
        parts.update(np.ascontiguousarray(array).tobytes())
    return parts.hexdigest()


def _label_set(matrix: Array, labels: Labels, game: Game, network: ExplainerNetwork) -> LabelSet:
    codes = torch.from_numpy(matrix)
    total = torch.from_numpy(labels.outputs - game.base_values).to(torch.float32)
    return LabelSet(codes, total, network.active(codes), torch.from_numpy(labels.values).to(torch.float32))


def _split(labels: LabelSet, share: float, seed: int) -> tuple[LabelSet, LabelSet]:
    """A random part of the labels for validation, the rest for training."""
    order = torch.from_numpy(numpy_generator(seed, "validation split").permutation(len(labels)))
    n_validation = max(2, round(share * len(labels)))
    return labels.take(order[n_validation:]), labels.take(order[:n_validation])


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
        loss.backward()
        optimizer.step()


@torch.no_grad()
def _quality(network: ExplainerNetwork, validation: LabelSet) -> dict[str, float]:
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
        ascending = np.flip(answer.ranking.numpy(), axis=1)
        order = np.argsort(truth, axis=1, kind="stable")
        weights = 1 / np.arange(1, truth.shape[1] + 1)
        hits = (ascending == order) * weights[:, None]
        quality["ranking_head_rank_accuracy"] = float(hits.sum(axis=1).mean() / weights.sum())
    return quality


def _probe_rows(matrix: Array, seed: int) -> Array:
    """Each column drawn on its own from the training rows, so that no real row is stored."""
    generator = numpy_generator(seed, "probes")
    index = generator.integers(0, len(matrix), size=(min(N_PROBES, len(matrix)), matrix.shape[1]))
    return np.take_along_axis(matrix, index, axis=0)
