"""Labels of one batch of rows as an Arrow table, and back: what a Parquet file of a label folder holds.

A label is a row of the table: ``word`` (the row's identity), ``row`` (the row itself), ``values`` and ``errors``
(players x outputs), ``outputs`` and ``base``, ``evaluations``, ``round``, ``method``, ``seed``; and, where all
coalitions were evaluated, its free views: ``views_kept`` (bits of the players that stay), ``views_values`` (of the
players that stay, float32) and ``views_outputs``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx import storage
from cortx.explanation import Explanation, Views

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


_VIEW_COLUMNS = ("views_kept", "views_values", "views_outputs")
_ROW_COLUMNS = ("word", "row", "values", "errors", "outputs", "base", "evaluations", "round", "method", "seed")
COLUMNS = [*_ROW_COLUMNS, *_VIEW_COLUMNS]


def arrow() -> Any:
    """The module pyarrow, with its Parquet part."""
    found = storage.arrow("a folder of labels")
    importlib.import_module("pyarrow.parquet")  # so that `found.parquet` is there
    return found


@dataclass(frozen=True, eq=False)
class LabelPart:
    """Labels of rows in one round, with the rows as an Arrow table."""

    words: Words
    rows: Any
    values: Array
    """(rows, players, outputs), like `errors`."""
    errors: Array
    outputs: Array
    """(rows, outputs), like `base`."""
    base: Array
    evaluations: IntArray
    round: int
    seed: int
    exact: npt.NDArray[np.bool_]
    """(rows,): whether all coalitions were evaluated."""
    views: Views | None = None
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.words)

    @staticmethod
    def of(labels: Explanation, words: Words, rows: Any, *, round: int, seed: int) -> LabelPart:
        """What an estimator gave for these rows."""
        n, n_players = labels.values.shape[:2]
        assert labels.error_std is not None
        assert labels.outputs is not None
        assert labels.exact is not None
        assert labels.row_evaluations is not None
        return LabelPart(
            words=words,
            rows=rows,
            values=np.asarray(labels.values, dtype=np.float64).reshape(n, n_players, -1),
            errors=np.asarray(labels.error_std, dtype=np.float64).reshape(n, n_players, -1),
            outputs=np.asarray(labels.outputs, dtype=np.float64).reshape(n, -1),
            base=np.asarray(labels.base_values, dtype=np.float64).reshape(n, -1),
            evaluations=np.asarray(labels.row_evaluations, dtype=np.int64),
            round=round,
            seed=seed,
            exact=labels.exact,
            views=labels.views,
            seconds=labels.seconds,
        )

    def to_arrow(self) -> Any:
        pa = arrow()
        n = len(self)
        columns = {
            "word": pa.array(self.words),
            "row": _struct(self.rows),
            "values": _fixed(self.values.reshape(n, -1)),
            "errors": _fixed(self.errors.reshape(n, -1)),
            "outputs": _fixed(self.outputs),
            "base": _fixed(self.base),
            "evaluations": pa.array(self.evaluations),
            "round": pa.array(np.full(n, self.round, dtype=np.int32)),
            "method": pa.array(np.where(self.exact, "exact", "kernel").tolist(), pa.string()),
            "seed": pa.array(np.full(n, self.seed, dtype=np.int64)),
            **_pack_views(self.views, n),
        }
        return pa.table(columns)

    @staticmethod
    def from_arrow(table: Any, n_players: int, seconds: float, most_views: int) -> LabelPart:
        """The opposite, with at most `most_views` views of each row."""
        pa, n = arrow(), len(table)
        outputs = _matrix(table["outputs"], n)
        shape = n, n_players, outputs.shape[1]
        return LabelPart(
            words=table["word"].to_numpy(),
            rows=pa.Table.from_struct_array(table["row"]),
            values=_matrix(table["values"], n).reshape(shape),
            errors=_matrix(table["errors"], n).reshape(shape),
            outputs=outputs,
            base=_matrix(table["base"], n),
            evaluations=table["evaluations"].to_numpy(),
            round=int(table["round"][0].as_py()),
            seed=int(table["seed"][0].as_py()),
            exact=np.array([method == "exact" for method in table["method"].to_pylist()], dtype=bool),
            views=_unpack_views(table, n_players, outputs.shape[1], most_views),
            seconds=seconds,
        )


def _struct(rows: Any) -> Any:
    """The rows as one column; categories as the values they stand for."""
    pa = arrow()
    arrays = []
    for column in rows.columns:
        whole = column.combine_chunks()
        whole = whole if not isinstance(whole, pa.ChunkedArray) else pa.concat_arrays(whole.chunks)
        arrays.append(whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole)
    return pa.StructArray.from_arrays(arrays, names=rows.column_names)


def _fixed(matrix: Array) -> Any:
    pa = arrow()
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(matrix).ravel()), matrix.shape[1])


def _matrix(column: Any, n: int) -> Array:
    flat: Array = np.concatenate([chunk.flatten().to_numpy() for chunk in column.chunks])
    return flat.reshape(n, -1)


def _pack_views(views: Views | None, n: int) -> dict[str, Any]:
    """Of each row the copies one after the other; of each copy only the values of players that stay."""
    pa = arrow()
    if views is None:
        return {
            "views_kept": pa.nulls(n, pa.binary()),
            "views_values": pa.nulls(n, pa.list_(pa.float32())),
            "views_outputs": pa.nulls(n, pa.list_(pa.float64())),
        }
    order = np.argsort(views.rows, kind="stable")
    rows, kept = views.rows[order], views.kept[order]
    copies = np.bincount(rows, minlength=n)
    members = np.bincount(rows, weights=kept.sum(axis=1), minlength=n).astype(np.int64)
    n_outputs = views.values.shape[2]
    bits = np.packbits(kept, axis=1)
    return {
        "views_kept": pa.array([part.tobytes() for part in np.split(bits, np.cumsum(copies)[:-1])], pa.binary()),
        "views_values": _lists(views.values[order][kept].astype(np.float32), members * n_outputs),
        "views_outputs": _lists(np.asarray(views.outputs[order], dtype=np.float64), copies * n_outputs),
    }


def _lists(numbers: npt.NDArray[Any], lengths: IntArray) -> Any:
    pa = arrow()
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(numbers).ravel()))


def _unpack_views(table: Any, n_players: int, n_outputs: int, most: int) -> Views | None:
    if most < 1 or table["views_kept"].null_count == len(table):
        return None
    parts = []
    width = -(-n_players // 8)
    columns = (table[name].to_pylist() if name == "views_kept" else table[name] for name in _VIEW_COLUMNS)
    for row, (bits, numbers, outputs) in enumerate(zip(*columns, strict=True)):
        if not bits:
            continue
        packed = np.frombuffer(bits, dtype=np.uint8).reshape(-1, width)[:most]
        kept = np.unpackbits(packed, axis=1, count=n_players).astype(bool)
        values = np.zeros((*kept.shape, n_outputs))
        known = numbers.values.to_numpy()
        values[kept] = known[: int(kept.sum()) * n_outputs].reshape(-1, n_outputs)
        whole = outputs.values.to_numpy()[: len(kept) * n_outputs].reshape(-1, n_outputs)
        parts.append(Views(np.full(len(kept), row), kept, values, whole))
    return Views.concatenate(parts) if parts else None
