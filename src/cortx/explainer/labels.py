"""The labels of a fit: given by the caller, or made here."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import InputError
from cortx.estimators.shapley import WITH_STUDENT, shapley, views_per_row
from cortx.explanation import Explanation, Views, take_rows
from cortx.games import Game, Rows
from cortx.progress import progress_bar
from cortx.seeding import numpy_generator
from cortx.training.checkpoint import Checkpoint

Array = npt.NDArray[np.float64]
logger = logging.getLogger("cortx")

LEAST_LABELS = 10
"""Fewer labels than this leave nothing to validate on."""
LABELS_AT_A_TIME = 256
LABEL_BUDGET = 8_192
"""Evaluations for each row a fit labels itself: enough to enumerate 13 players. A large background may need more."""


PER_ROW = ("exact", "weights", "frequent")
"""Fields of `Labels` that an `Explanation` has too: one number or flag for each row, or None."""


@dataclass(frozen=True, eq=False)
class Labels:
    """Labelled rows, their values (rows, players, outputs), the model's outputs there, and what they cost."""

    data: Any
    values: Array
    outputs: Array
    evaluations: int
    seconds: float
    source: str
    views: Views | None = None
    """Masked copies of these rows whose labels came free."""
    errors: Array | None = None
    """Standard errors of the values; NaN or None where nobody knows them."""
    exact: npt.NDArray[np.bool_] | None = None
    """Rows whose coalitions were all evaluated, (rows,); None: nobody knows."""
    weights: Array | None = None
    frequent: npt.NDArray[np.bool_] | None = None
    """As in `Explanation`, (rows,) each."""
    variance: Array | None = None
    """As in `Explanation`, (rows, players, outputs)."""

    def __len__(self) -> int:
        return len(self.values)

    @staticmethod
    def of(labels: Explanation, game: Game) -> Labels:
        """What an estimator gave."""
        shape, errors = (len(labels), game.n_players, game.n_outputs), labels.error_std
        assert labels.outputs is not None
        return Labels(
            data=labels.data,
            values=np.asarray(labels.values, dtype=np.float64).reshape(shape),
            outputs=np.asarray(labels.outputs, dtype=np.float64).reshape(len(labels), -1),
            evaluations=labels.evaluations,
            seconds=labels.seconds,
            source=labels.method,
            views=labels.views,
            errors=None if errors is None else np.asarray(errors, dtype=np.float64).reshape(shape),
            variance=_shaped(labels.variance, shape),
            **per_row(labels),
        )

    def take(self, index: npt.NDArray[np.int64]) -> Labels:
        """Some of the labels, with their share of the cost."""
        share = len(index) / max(1, len(self))
        return replace(
            self,
            data=take_rows(self.data, index),
            values=self.values[index],
            outputs=self.outputs[index],
            evaluations=round(self.evaluations * share),
            seconds=self.seconds * share,
            views=None if self.views is None else self.views.of_rows(index),
            errors=None if self.errors is None else self.errors[index],
            variance=None if self.variance is None else self.variance[index],
            **{name: part[index] for name in PER_ROW if (part := getattr(self, name)) is not None},
        )


def given_labels(labels: Any, game: Game, rows: Rows | None, outputs_of_rows: Array | None) -> Labels:
    """Reads ``labels=``: an `Explanation` with its rows, a folder of labels, or a pair (indices into X, values)."""
    from cortx.explainer.label_folder import LabelFolder  # it builds on this module

    outputs: Any
    if isinstance(labels, (str, os.PathLike)):
        labels = LabelFolder.open(labels)
    if isinstance(labels, LabelFolder):
        labels.check(game)
        labels = labels.read()
    if isinstance(labels, Explanation):
        if labels.data is None:
            raise InputError("labels= is an Explanation without its rows; give (indices, values) instead")
        if labels.feature_names != game.players.names:
            raise InputError(
                f"the labels explain the players {labels.feature_names}, but the game has {game.players.names}"
            )
        if "cortx" in _methods(labels):
            raise InputError(
                "the labels are an explainer's own answers (method 'cortx'), not Shapley values of the model; make "
                "labels with cortx.shapley"
            )
        if "banzhaf" in _methods(labels):
            raise InputError("the labels are Banzhaf values, which do not add up; fit on Shapley labels")
        bases = np.asarray(labels.base_values, dtype=np.float64).reshape(len(labels), -1)
        if bases.shape[1] != game.n_outputs or not game.has_base_values(bases):
            raise InputError(
                f"the labels belong to another game: their base value is {bases[:1].tolist()}, this game's "
                f"{game.base_values.tolist()} (another model, output, class or reference)"
            )
        data, values, outputs = labels.data, labels.values, labels.outputs
        evaluations, seconds, source, views = labels.evaluations, labels.seconds, labels.method, labels.views
        errors, others = labels.error_std, per_row(labels)
        others["variance"] = _shaped(labels.variance, (len(labels), game.n_players, game.n_outputs))
    else:
        try:
            indices, values = labels
        except (TypeError, ValueError) as error:
            raise InputError(
                "labels= takes an Explanation, a folder of labels, or a pair: indices into X, and their values"
            ) from error
        assert rows is not None
        assert outputs_of_rows is not None
        index = np.asarray(indices)
        if index.ndim != 1 or index.dtype.kind not in "iu":
            raise InputError(f"the label indices must be whole numbers, got dtype {index.dtype}, shape {index.shape}")
        if len(index) and (index.min() < 0 or index.max() >= len(rows)):
            raise InputError(f"the label indices run from {index.min()} to {index.max()}, but X has {len(rows)} rows")
        # Imported rows keep the table's own kind, so that they can be read like any other rows.
        data, outputs = take_rows(rows.data, index), outputs_of_rows[index]
        evaluations, seconds, source, views, errors, others = 0, 0.0, "given", None, None, {}
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
    if errors is not None:
        errors = np.asarray(errors, dtype=np.float64).reshape(array.shape)
    return _enough(Labels(data, array, outputs, evaluations, seconds, source, views, errors, **others))


def refuse_shrunk(labels: Explanation) -> None:
    """Raises `InputError` if labels lie nearer to an explainer's answers than the truth does.

    To judge or calibrate with them would find the explainer better than it is. Rows that were enumerated are exact
    whatever the method.
    """
    enumerated = labels.exact is not None and bool(labels.exact.all())
    if "amortized" in _methods(labels) and not enumerated:
        raise InputError(
            "the labels were made with method='amortized', which starts from an explainer's answers and stays near "
            "them: bounds from such labels are too narrow. Give labels that know nothing of an explainer: "
            "cortx.shapley(game, rows), or method='amortized' with unbiased=True"
        )


def _methods(labels: Explanation) -> set[str]:
    """The methods of labels, of which there may be several: "exact+kernel"; whether they had a student aside."""
    return {method.removesuffix(WITH_STUDENT) for method in labels.method.split("+")}


def per_row(labels: Explanation) -> dict[str, Any]:
    """What `Labels` take over from an explanation row by row."""
    return {name: getattr(labels, name) for name in PER_ROW}


def exact_rows(labels: Explanation) -> npt.NDArray[np.bool_]:
    """Rows whose coalitions were all evaluated, (rows,).

    Labels kept by a version that did not note it count as exact where all of them were enumerated, or where their
    masked copies came free: only enumeration gives these.
    """
    if labels.exact is not None:
        return np.asarray(labels.exact)
    exact = np.full(len(labels), labels.method == "exact")
    if labels.views is not None:
        exact[labels.views.rows] = True
    return exact


def make_labels(game: Game, rows: Rows, count: int, *, seed: int, checkpoint: Checkpoint, show: bool | None) -> Labels:
    """Labels `count` random rows of the table.

    Rows are labelled a few at a time, and a checkpoint keeps what is done.
    """
    n_rows = len(rows)
    if not LEAST_LABELS <= count <= n_rows:
        raise InputError(f"n_labels must lie between {LEAST_LABELS} and the {n_rows} rows of the table, got {count}")
    index = np.sort(numpy_generator(seed, "labelled rows").choice(n_rows, size=count, replace=False))
    logger.info("labelling %s of %s rows", f"{count:,}", f"{n_rows:,}")
    # All parts take as many free views as the whole would.
    n_views = views_per_row(game, count)
    budget = label_budget(game)
    parts: list[Explanation] = []
    seconds, evaluations = 0.0, 0
    with progress_bar("labels", count, show=show) as advance:
        for start in range(0, count, LABELS_AT_A_TIME):
            data = take_rows(rows.data, index[start : start + LABELS_AT_A_TIME])
            kept = checkpoint.load(f"labels-{start}")
            if kept is None:
                part = shapley(game, data, "auto-kernel", row_budget=budget, views=n_views, seed=seed, progress=False)
                checkpoint.save(f"labels-{start}", pack_labels(part), **label_facts(part))
            else:
                part = unpack_labels(*kept, game=game, data=data)
            parts.append(part)
            seconds, evaluations = seconds + part.seconds, evaluations + part.evaluations
            advance(len(part), f"{evaluations:,} evaluations")
    logger.info("labels: %s rows, %s model evaluations, %.1f s", f"{count:,}", f"{evaluations:,}", seconds)
    shape = (count, game.n_players, game.n_outputs)
    return Labels(
        data=take_rows(rows.data, index),
        values=np.concatenate([part.values for part in parts]).reshape(shape),
        outputs=np.concatenate([part.outputs for part in parts if part.outputs is not None]).reshape(count, -1),
        evaluations=evaluations,
        seconds=seconds,
        source="+".join(sorted({part.method for part in parts})),
        views=_joined_views(parts),
        errors=np.concatenate([part.error_std for part in parts if part.error_std is not None]).reshape(shape),
        exact=np.concatenate([exact_rows(part) for part in parts]),
    )


def label_budget(game: Game) -> int:
    """Evaluations for one precise label, unless somebody says otherwise."""
    return precise_budget(game.n_players, game.evaluations_per_value)


def precise_budget(n_players: int, copies: int) -> int:
    """The same for so many players, where a value v(S) costs `copies` evaluations."""
    return max(LABEL_BUDGET, int(copies * least_values(n_players)))


def least_values(n_players: int | npt.NDArray[np.int64]) -> Any:
    """Values v(S) of a label, v(all) included: with fewer its standard errors are not worth having."""
    return 6 * n_players + 6


def _joined_views(parts: list[Explanation]) -> Views | None:
    views, start = [], 0
    for part in parts:
        if part.views is not None:
            views.append(replace(part.views, rows=part.views.rows + start))
        start += len(part)
    return Views.concatenate(views) if views else None


def pack_labels(labels: Explanation) -> dict[str, torch.Tensor]:
    """Labels as named tensors, for a checkpoint."""
    assert labels.outputs is not None
    arrays: dict[str, npt.NDArray[Any]] = {
        "values": labels.values, "outputs": labels.outputs, "bases": labels.base_values
    }  # fmt: skip
    if labels.error_std is not None:
        arrays["errors"] = labels.error_std
    if labels.variance is not None:
        arrays["variance"] = labels.variance
    if labels.exact is not None:
        arrays["exact"] = labels.exact
    if labels.row_evaluations is not None:
        arrays["row_evaluations"] = labels.row_evaluations
    if labels.views is not None:
        arrays |= {f"views.{name}": getattr(labels.views, name) for name in ("rows", "kept", "values", "outputs")}
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def label_facts(labels: Explanation) -> dict[str, Any]:
    """What a checkpoint notes beside the tensors."""
    return {"method": labels.method, "evaluations": labels.evaluations, "seconds": labels.seconds}


def unpack_labels(tensors: dict[str, torch.Tensor], facts: dict[str, Any], *, game: Game, data: Any) -> Explanation:
    """The opposite of `pack_labels`."""
    outputs = tensors["outputs"].numpy()
    views = None
    if "views.rows" in tensors:
        views = Views(**{name: tensors[f"views.{name}"].numpy() for name in ("rows", "kept", "values", "outputs")})
    return Explanation(
        values=tensors["values"].numpy(),
        base_values=tensors["bases"].numpy(),
        feature_names=game.players.names,
        data=data,
        error_std=tensors["errors"].numpy() if "errors" in tensors else None,
        outputs=outputs,
        evaluations=int(facts["evaluations"]),
        row_evaluations=tensors["row_evaluations"].numpy() if "row_evaluations" in tensors else None,
        seconds=float(facts["seconds"]),
        method=str(facts["method"]),
        views=views,
        exact=tensors["exact"].numpy() if "exact" in tensors else None,
        variance=tensors["variance"].numpy() if "variance" in tensors else None,
    )


def _shaped(array: Any, shape: tuple[int, int, int]) -> Array | None:
    return None if array is None else np.asarray(array, dtype=np.float64).reshape(shape)


def _enough(labels: Labels) -> Labels:
    enough_labels(len(labels))
    return labels


def enough_labels(count: int) -> None:
    """Raises `InputError` where labels, or rows to be labelled, are too few for anything."""
    if count < LEAST_LABELS:
        raise InputError(f"there are {count} labels; give at least {LEAST_LABELS}")
