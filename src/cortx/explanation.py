"""`Explanation`: the one result type of explainers, estimators and rivals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError, need
from cortx.explained import added_columns, named_values, suffixes
from cortx.reasons import (
    Direction,
    ReasonCodes,
    backend_of,
    certain_places,
    find_reasons,
    magnitude_band,
    usable_backend,
)

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]
BoolArray = npt.NDArray[np.bool_]
Order = Literal["value", "magnitude"]
PER_ROW = ("refined", "row_evaluations", "exact", "weights", "frequent")
"""Fields of an `Explanation` with one number or flag for each row, or None."""


@dataclass(frozen=True, eq=False)
class Views:
    """Labels of masked copies of rows, which came free when the rows were enumerated.

    Copy i is row ``rows[i]`` with only the players ``kept[i]`` present; ``values`` is (copies, players, outputs)
    and ``outputs``, the model's output for the copy, (copies, outputs).
    """

    rows: IntArray
    kept: npt.NDArray[np.bool_]
    values: FloatArray
    outputs: FloatArray

    def __len__(self) -> int:
        return len(self.rows)

    @staticmethod
    def concatenate(parts: Sequence[Views]) -> Views:
        return Views(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.kept for part in parts]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.outputs for part in parts]),
        )

    def of_rows(self, chosen: IntArray) -> Views | None:
        """The copies of some rows, whose positions are counted anew."""
        position = np.full(int(max(self.rows.max(initial=-1), chosen.max(initial=-1))) + 1, -1)
        position[chosen] = np.arange(len(chosen))
        rows = position[self.rows]
        kept = rows >= 0
        return Views(rows[kept], self.kept[kept], self.values[kept], self.outputs[kept]) if kept.any() else None


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Attributions of a table of rows, with what they cost and how sure they are.

    Shapes: one output gives ``values`` (rows, players) and ``base_values`` (rows,); several outputs give
    (rows, players, outputs) and (rows, outputs). The names follow ``shap.Explanation``.
    """

    values: FloatArray
    base_values: FloatArray
    feature_names: tuple[str, ...]
    data: Any = field(default=None, repr=False)
    output_names: tuple[str, ...] | None = None
    error_std: FloatArray | None = None
    """Standard errors of ``values``; zero where they are exact, NaN where they are not known. From few draws they are
    larger than the spread over repeats (``variance`` is its square), so that twice of them holds all the same."""
    outputs: FloatArray | None = None
    """The model's own output for each row, when it was known; shaped like ``base_values``."""
    evaluations: int = 0
    """Model evaluations spent to make this explanation."""
    seconds: float = 0.0
    method: str = ""
    predicted_ranking: IntArray | None = field(default=None, repr=False)
    """What a ranking head said; `ranking` prefers it over the order of ``values``."""
    views: Views | None = field(default=None, repr=False)
    """Labels of masked copies that came free with these."""
    lower_bounds: FloatArray | None = None
    upper_bounds: FloatArray | None = None
    """Bands that hold the true values of all players of a row at once; shaped like ``values``."""
    error_bound: FloatArray | None = None
    """A bound on the l2 distance between a row's values and the true ones; shaped like ``base_values``."""
    confidence: float | None = None
    """The level at which the bands and ``error_bound`` hold."""
    refined: BoolArray | None = None
    """The rows that were refined with the model, (rows,)."""
    row_evaluations: IntArray | None = field(default=None, repr=False)
    """What each row took of ``evaluations``, (rows,), where it was counted; the base value belongs to no row."""
    exact: BoolArray | None = field(default=None, repr=False)
    """The rows whose coalitions were all evaluated, (rows,): a standard error of zero alone does not say so."""
    weights: FloatArray | None = field(default=None, repr=False)
    """How many rows of the data each row stands for, (rows,), in any unit; None: all for equally many."""
    frequent: BoolArray | None = field(default=None, repr=False)
    """Rows so common in the data that they are learned from and calibrated with, (rows,).

    Their copies in later data have the very error that is measured, so nothing is lost by learning from them.
    """
    tree_passes: int = 0
    """Rows times trees that exact tree values went through, which are no model evaluations."""
    variance: FloatArray | None = field(default=None, repr=False)
    """The variance of ``values`` over repeats, shaped like them, where the method estimates it without bias: zero where
    they are exact. ``error_std`` is larger than its root, so that bounds may be read from it."""

    def __post_init__(self) -> None:
        if self.values.ndim not in (2, 3):
            raise InputError(
                f"values must have shape (rows, players) or (rows, players, outputs), got {self.values.shape}"
            )
        expected = self.values.shape[:1] + self.values.shape[2:]
        if self.base_values.shape != expected:
            raise InputError(f"base_values must have shape {expected}, got {self.base_values.shape}")
        if self.values.shape[1] != len(self.feature_names):
            raise InputError(
                f"values have {self.values.shape[1]} players but there are {len(self.feature_names)} feature_names"
            )
        if self.error_std is not None and self.error_std.shape != self.values.shape:
            raise InputError(f"error_std must have shape {self.values.shape}, got {self.error_std.shape}")
        if self.variance is not None and self.variance.shape != self.values.shape:
            raise InputError(f"variance must have shape {self.values.shape}, got {self.variance.shape}")
        if self.outputs is not None and self.outputs.shape != expected:
            raise InputError(f"outputs must have shape {expected}, got {self.outputs.shape}")
        if self.output_names is not None and (self.values.ndim, len(self.output_names)) != (3, self.values.shape[-1]):
            raise InputError(f"{len(self.output_names)} output_names do not fit values of shape {self.values.shape}")
        if self.data is not None and hasattr(self.data, "__len__") and len(self.data) != len(self.values):
            raise InputError(f"data has {len(self.data)} rows, values have {len(self.values)}")
        if self.predicted_ranking is not None and self.predicted_ranking.shape != self.values.shape:
            raise InputError(
                f"predicted_ranking must have shape {self.values.shape}, got {self.predicted_ranking.shape}"
            )
        self._check_bounds(expected)

    def _check_bounds(self, per_row: tuple[int, ...]) -> None:
        shapes = {"lower_bounds": self.shape, "upper_bounds": self.shape, "error_bound": per_row}
        shapes |= dict.fromkeys(PER_ROW, self.shape[:1])
        for name, shape in shapes.items():
            given = getattr(self, name)
            if given is not None and given.shape != shape:
                raise InputError(f"{name} must have shape {shape}, got {given.shape}")
        if (self.lower_bounds is None) != (self.upper_bounds is None):
            given, absent = ("upper", "lower") if self.lower_bounds is None else ("lower", "upper")
            raise InputError(f"{given}_bounds came without {absent}_bounds; give both")
        if self.lower_bounds is not None and self.upper_bounds is not None:
            crossed = np.argwhere(self.lower_bounds > self.upper_bounds)
            if len(crossed):
                row, player = crossed[0, :2]
                name = self.feature_names[player]
                raise InputError(f"lower_bounds must not exceed upper_bounds; they do in row {row} for {name!r}")
        for name in ("refined", "exact", "frequent"):
            flags = getattr(self, name)
            if flags is not None and flags.dtype != bool:
                raise InputError(f"{name} must be True or False for each row, got dtype {flags.dtype}")
        if self.weights is not None and not (np.isfinite(self.weights) & (self.weights > 0)).all():
            raise InputError("weights must be positive, finite numbers, one for each row")
        if self.confidence is not None and not 0 < self.confidence <= 1:
            raise InputError(f"confidence must be above 0 and at most 1, got {self.confidence}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @cached_property
    def ranking(self) -> IntArray:
        """Players from the highest value to the lowest, (rows, players) or (rows, players, outputs).

        Always a permutation. Exactly tied players come in descending column order, so that the reverse of a
        row is the stable ascending order that the paper's Rank ACC compares (`cortx.metrics.rank_accuracy`).
        """
        if self.predicted_ranking is not None:
            return self.predicted_ranking
        return highest_first(self.values)

    @cached_property
    def order_by_magnitude(self) -> IntArray:
        """Players from the largest absolute value to the smallest, shaped like `ranking`; ties in column order."""
        return strongest_first(self.values)

    def top(self, k: int, by: Order = "magnitude") -> IntArray:
        """The k strongest players of each row, strongest first: by ``"magnitude"``, or by signed ``"value"``."""
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        if by not in ("value", "magnitude"):
            raise InputError(f"by must be 'value' or 'magnitude', got {by!r}")
        if by == "value":
            return self.ranking[:, :k]
        return self.order_by_magnitude[:, :k]

    @cached_property
    def stable_ranks(self) -> BoolArray:
        """Where `ranking` is certain, shaped like it; see `stable`."""
        return self.stable()

    def stable(self, by: Order = "value") -> BoolArray:
        """Where the bands make an order certain: of `ranking`, or with ``"magnitude"`` of `order_by_magnitude`.

        True at a position when all players before its player lie above it and all after it below, whatever the true
        values inside the bands; (rows, positions) or (rows, positions, outputs). Bands that are one and the same
        point are an exact tie and do not make each other uncertain.
        """
        order = self.top(max(1, self.shape[1]), by)
        lower, upper = self._bands("stable()")
        return certain_places(order, *(magnitude_band(lower, upper) if by == "magnitude" else (lower, upper)))

    def reason_codes(
        self,
        k: int = 4,
        exclude: Iterable[str] = (),
        direction: Direction = "both",
        output: int | str | None = None,
    ) -> ReasonCodes:
        """The k strongest reasons of each row: features that raise the output (``"up"``), lower it, or either.

        Features named in `exclude` are never named, not even in a remark on ties; features with an attribution of
        exactly zero are no reasons. Several outputs need `output`, a name or a position.
        """
        named: str | int | None = None
        each: Any = np.s_[:]
        if self.values.ndim == 2:
            _refuse_output(output)
        else:
            names = self._outputs_by_name()
            if output is None:
                raise InputError(
                    f"this explanation has {len(names)} outputs; choose one with output=: {', '.join(names)}"
                )
            position = _position(output, names)
            named, each = names[position] if self.output_names else position, np.s_[..., position]
        bands = None
        if self.lower_bounds is not None and self.upper_bounds is not None:
            bands = self.lower_bounds[each], self.upper_bounds[each]
        return find_reasons(
            self.values[each],
            self.feature_names,
            data=self.data,
            bands=bands,
            confidence=self.confidence,
            output=named,
            k=k,
            exclude=exclude,
            direction=direction,
        )

    def _bands(self, what: str) -> tuple[FloatArray, FloatArray]:
        if self.lower_bounds is None or self.upper_bounds is None:
            raise InputError(f"{what} needs bounds, and this explanation has none; explain with confidence=...")
        return self.lower_bounds, self.upper_bounds

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def __repr__(self) -> str:
        outputs = "" if self.values.ndim == 2 else f", {self.values.shape[2]} outputs"
        bounds = "" if self.confidence is None else f", bounds at {100 * self.confidence:.4g}%"
        cost = f"{self.evaluations:,} evaluations"
        cost += f", {self.tree_passes:,} tree passes" if self.tree_passes else ""
        return (
            f"Explanation({len(self):,} rows, {self.values.shape[1]} players{outputs}, {self.method!r}{bounds}, {cost})"
        )

    def __iter__(self) -> Iterator[Explanation]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, rows: int | slice | Sequence[int] | IntArray | npt.NDArray[np.bool_]) -> Explanation:
        """The explanation of some rows; an integer keeps the row axis."""
        if isinstance(rows, (int, np.integer)):
            position = int(rows) + len(self) if rows < 0 else int(rows)
            if not 0 <= position < len(self):
                raise IndexError(f"row {rows} of {len(self)}")
            rows = slice(position, position + 1)
        # Positions that every kind of frame understands; an empty list has no dtype of its own.
        index = np.arange(len(self))[rows if isinstance(rows, slice) or len(rows) else slice(0)]

        def pick(array: Any) -> Any:
            return None if array is None else array[index]

        return replace(
            self,
            values=self.values[index],
            base_values=self.base_values[index],
            data=take_rows(self.data, index),
            error_std=pick(self.error_std),
            variance=pick(self.variance),
            outputs=pick(self.outputs),
            predicted_ranking=pick(self.predicted_ranking),
            views=None if self.views is None else self.views.of_rows(index),
            lower_bounds=pick(self.lower_bounds),
            upper_bounds=pick(self.upper_bounds),
            error_bound=pick(self.error_bound),
            **{name: pick(getattr(self, name)) for name in PER_ROW},
            evaluations=round(self.evaluations * len(index) / max(1, len(self))),
            tree_passes=round(self.tree_passes * len(index) / max(1, len(self))),
            seconds=self.seconds * len(index) / max(1, len(self)),
        )

    def to_frame(self, output: int | str | None = None, bounds: bool = False) -> Any:
        """A frame of the kind the rows came in (pandas otherwise): ``attribution_NAME`` of each player, ``base_value``.

        With `bounds` come ``lower_NAME`` and ``upper_NAME``, and ``error_bound`` where it is known. Several outputs
        give these columns for each output, named ``attribution_NAME:OUTPUT`` and so on; `output` picks one.
        """
        if bounds:
            self._bands("to_frame(bounds=True)")
        endings, first = suffixes(None, None), 0
        if self.values.ndim == 2:
            _refuse_output(output)
        elif output is None:
            endings = suffixes(self.output_names, self.values.shape[2])
        else:
            first = _position(output, self._outputs_by_name())
        added = [
            column._replace(output=column.output + first)
            for column in added_columns(self.feature_names, endings, bounds=bounds)
            if column.part != "error_bound" or self.error_bound is not None
        ]
        return _build_frame(named_values(self, added), like=self.data)

    def _outputs_by_name(self) -> tuple[str, ...]:
        return self.output_names or tuple(str(k) for k in range(self.values.shape[2]))

    def player_data(self) -> Any:
        """The rows' values in the order of the players, (rows, players); None where players are groups of columns."""
        if self.data is None or isinstance(self.data, np.ndarray):
            same = self.data is not None and self.data.shape[1] == len(self.feature_names)
            return self.data if same else None
        import narwhals as nw

        frame = nw.from_native(self.data, eager_only=True)
        places = {str(name): name for name in frame.columns}
        if any(name not in places for name in self.feature_names):
            return None
        return frame.select([places[name] for name in self.feature_names]).to_numpy()

    def to_shap(self) -> Any:
        """The same explanation as a ``shap.Explanation``, for shap's plots."""
        try:
            import shap
        except ImportError as error:
            raise need("shap", "to_shap()", "shap") from error
        return shap.Explanation(
            values=np.asarray(self.values),
            base_values=np.asarray(self.base_values),
            data=self.player_data(),
            feature_names=list(self.feature_names),
            output_names=None if self.output_names is None else list(self.output_names),
            error_std=self.error_std,
        )


def _refuse_output(output: int | str | None) -> None:
    if output is not None:
        raise InputError("this explanation has one output; leave output= out")


def _position(output: int | str, names: tuple[str, ...]) -> int:
    if isinstance(output, str):
        if output not in names:
            raise InputError(f"unknown output {output!r}; expected one of {', '.join(names)}")
        return names.index(output)
    if not -len(names) <= output < len(names):
        raise InputError(f"output {output} is out of range; there are {len(names)} outputs")
    return output % len(names)


def highest_first(values: FloatArray) -> IntArray:
    """Players from the highest value to the lowest, of the shape of `values`; tied ones in descending column order."""
    return np.flip(np.argsort(values, axis=1, kind="stable"), axis=1)


def strongest_first(values: FloatArray) -> IntArray:
    """Players from the largest absolute value to the smallest, of the shape of `values`; tied ones in column order."""
    return np.argsort(-np.abs(values), axis=1, kind="stable")


def take_rows(data: Any, index: Any) -> Any:
    """Some rows of an array or frame, in its own kind."""
    if data is None:
        return None
    if isinstance(data, np.ndarray):
        return data[index]
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True)
    return frame[index].to_native()


def _build_frame(columns: dict[str, Any], like: Any) -> Any:
    import narwhals as nw

    backend = backend_of(like)
    frame = nw.from_dict(columns, backend=backend or usable_backend("to_frame()")).to_native()
    if backend is not None and backend.is_pandas():
        frame.index = like.index
    return frame
