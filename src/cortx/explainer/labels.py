"""The labels of a fit: given by the caller, or made here."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import InputError
from cortx.estimators.shapley import shapley
from cortx.explanation import Explanation, take_rows
from cortx.games import Game, Rows
from cortx.seeding import numpy_generator
from cortx.training.checkpoint import Checkpoint

Array = npt.NDArray[np.float64]
logger = logging.getLogger("cortx")

LEAST_LABELS = 10
"""Fewer labels than this leave nothing to validate on."""
LABELS_AT_A_TIME = 256


@dataclass(frozen=True, eq=False)
class Labels:
    """Labelled rows, their values (rows, players, outputs), the model's outputs there, and what they cost."""

    data: Any
    values: Array
    outputs: Array
    evaluations: int
    seconds: float
    source: str

    def __len__(self) -> int:
        return len(self.values)


def given_labels(labels: Any, game: Game, rows: Rows) -> Labels:
    """Reads ``labels=``: an `Explanation` with its rows, or a pair (indices into the table, values)."""
    if isinstance(labels, Explanation):
        if labels.data is None:
            raise InputError("labels= is an Explanation without its rows; give (indices, values) instead")
        if labels.feature_names != game.players.names:
            raise InputError(
                f"the labels explain the players {labels.feature_names}, but the game has {game.players.names}"
            )
        data, values, outputs = labels.data, labels.values, labels.outputs
        evaluations, seconds, source = labels.evaluations, labels.seconds, labels.method
    else:
        try:
            indices, values = labels
        except (TypeError, ValueError) as error:
            raise InputError("labels= takes an Explanation, or a pair: indices into X, and their values") from error
        index = np.asarray(indices)
        if index.ndim != 1 or index.dtype.kind not in "iu":
            raise InputError(f"the label indices must be whole numbers, got dtype {index.dtype}, shape {index.shape}")
        if len(index) and (index.min() < 0 or index.max() >= len(rows)):
            raise InputError(f"the label indices run from {index.min()} to {index.max()}, but X has {len(rows)} rows")
        # Imported rows keep the table's own kind, so that they can be read like any other rows.
        data, outputs = take_rows(rows.data, index), None
        evaluations, seconds, source = 0, 0.0, "given"
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 2:
        array = array[..., None]
    wanted = (len(array), game.n_players, game.n_outputs)
    if array.shape != wanted or (not isinstance(labels, Explanation) and len(array) != len(index)):
        raise InputError(f"the labels have shape {array.shape}, expected (rows, players, outputs) = {wanted}")
    if not np.isfinite(array).all():
        raise InputError("the labels hold NaN or infinity")
    if outputs is None:
        outputs = game.full_values(game.rows(data))
    outputs = np.asarray(outputs, dtype=np.float64).reshape(len(array), game.n_outputs)
    return _enough(Labels(data, array, outputs, evaluations, seconds, source))


def make_labels(
    game: Game, rows: Rows, count: int | None, *, seed: int, checkpoint: Checkpoint, show: bool | None
) -> Labels:
    """Labels a random part of the table (5%, at least 200 rows, at most 2,000, unless `count` says otherwise).

    Rows are labelled a few at a time, and a checkpoint keeps what is done.
    """
    n_rows = len(rows)
    if count is None:
        count = min(n_rows, max(200, min(2_000, round(0.05 * n_rows))))
    if not LEAST_LABELS <= count <= n_rows:
        raise InputError(f"n_labels must lie between {LEAST_LABELS} and the {n_rows} rows of the table, got {count}")
    index = np.sort(numpy_generator(seed, "labelled rows").choice(n_rows, size=count, replace=False))
    started, spent = perf_counter(), game.evaluations
    values = np.empty((count, game.n_players, game.n_outputs))
    outputs = np.empty((count, game.n_outputs))
    done, earlier = 0, 0
    kept = checkpoint.load("labels")
    if kept is not None:
        done, earlier = len(kept[0]["values"]), int(kept[1]["evaluations"])
        values[:done], outputs[:done] = kept[0]["values"].numpy(), kept[0]["outputs"].numpy()
    # One method for all rows: what "auto" would take for the row with the most active players.
    most = int(rows.active[index].sum(axis=1).max())
    method = "exact" if most <= 11 else "kernel"
    logger.info("labelling %s of %s rows with the %s estimator", f"{count:,}", f"{n_rows:,}", method)
    while done < count:
        part = slice(done, min(done + LABELS_AT_A_TIME, count))
        labels = shapley(game, take_rows(rows.data, index[part]), method, seed=seed, progress=show)
        values[part] = labels.values.reshape(values[part].shape)
        assert labels.outputs is not None
        outputs[part] = labels.outputs.reshape(outputs[part].shape)
        done = part.stop
        tensors = {"values": torch.from_numpy(values[:done]), "outputs": torch.from_numpy(outputs[:done])}
        checkpoint.save("labels", tensors, evaluations=earlier + game.evaluations - spent)
    evaluations = earlier + game.evaluations - spent
    seconds = perf_counter() - started
    logger.info("labels: %s rows, %s model evaluations, %.1f s", f"{count:,}", f"{evaluations:,}", seconds)
    return Labels(take_rows(rows.data, index), values, outputs, evaluations, seconds, method)


def _enough(labels: Labels) -> Labels:
    if len(labels) < LEAST_LABELS:
        raise InputError(f"there are {len(labels)} labels; give at least {LEAST_LABELS}")
    return labels
