"""`Explanation`: the one result type of explainers, estimators and rivals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError, need

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]
Order = Literal["value", "magnitude"]


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


@dataclass(frozen=True, eq=False)
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
    """Standard errors of ``values``; zero where they are exact, NaN where they are not known."""
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
        return np.flip(np.argsort(self.values, axis=1, kind="stable"), axis=1)

    def top(self, k: int, by: Order = "magnitude") -> IntArray:
        """The k strongest players of each row, strongest first: by ``"magnitude"``, or by signed ``"value"``."""
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        if by not in ("value", "magnitude"):
            raise InputError(f"by must be 'value' or 'magnitude', got {by!r}")
        if by == "value":
            return self.ranking[:, :k]
        return np.argsort(-np.abs(self.values), axis=1, kind="stable")[:, :k]

    def __len__(self) -> int:
        return int(self.values.shape[0])

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
            outputs=pick(self.outputs),
            predicted_ranking=pick(self.predicted_ranking),
            views=None if self.views is None else self.views.of_rows(index),
            evaluations=round(self.evaluations * len(index) / max(1, len(self))),
            seconds=self.seconds * len(index) / max(1, len(self)),
        )

    def to_frame(self, output: int | str | None = None) -> Any:
        """A frame of the kind the rows came in (pandas otherwise): one column a player, plus ``base_value``.

        Several outputs give one column for each player and output, named ``player:output``; `output` picks one.
        """
        columns: dict[str, FloatArray] = {}
        if self.values.ndim == 2:
            if output is not None:
                raise InputError("this explanation has one output; leave output= out")
            columns.update({name: self.values[:, j] for j, name in enumerate(self.feature_names)})
            columns[self._base_name()] = self.base_values
        else:
            names = self.output_names or tuple(str(k) for k in range(self.values.shape[2]))
            chosen = range(len(names)) if output is None else [_position(output, names)]
            for k in chosen:
                suffix = f":{names[k]}" if output is None else ""
                for j, name in enumerate(self.feature_names):
                    columns[f"{name}{suffix}"] = self.values[:, j, k]
                columns[f"{self._base_name()}{suffix}"] = self.base_values[:, k]
        return _build_frame(columns, like=self.data)

    def _base_name(self) -> str:
        return "base_value" if "base_value" not in self.feature_names else "base_value (of the explanation)"

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


def _position(output: int | str, names: tuple[str, ...]) -> int:
    if isinstance(output, str):
        if output not in names:
            raise InputError(f"unknown output {output!r}; expected one of {', '.join(names)}")
        return names.index(output)
    if not -len(names) <= output < len(names):
        raise InputError(f"output {output} is out of range; there are {len(names)} outputs")
    return output % len(names)


def take_rows(data: Any, index: Any) -> Any:
    """Some rows of an array or frame, in its own kind."""
    if data is None:
        return None
    if isinstance(data, np.ndarray):
        return data[index]
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True)
    return frame[index].to_native()


def _build_frame(columns: dict[str, FloatArray], like: Any) -> Any:
    import narwhals as nw

    if like is not None and not isinstance(like, np.ndarray):
        backend = nw.from_native(like, eager_only=True).implementation
        frame = nw.from_dict(columns, backend=backend).to_native()
        if backend.is_pandas():
            frame.index = like.index
        return frame
    for backend_name in ("pandas", "polars", "pyarrow"):
        try:
            __import__(backend_name)
        except ImportError:
            continue
        return nw.from_dict(columns, backend=backend_name).to_native()
    raise need("pandas (or polars, or pyarrow)", "to_frame()", "tables")
