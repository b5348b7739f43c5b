"""The one kernel of explaining: Arrow record batches in, the same rows with their explanations out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.explained import FEATURE, Added, added_columns, column_values, refuse_taken, suffixes
from cortx.storage import arrow
from cortx.tables import Column, RowError, Schema

if TYPE_CHECKING:
    from cortx.explainer.explainer import CoRTX


@dataclass(frozen=True)
class ExplainSettings:
    """What is added to each row. `outputs` names the columns that hold the model's output, if some do."""

    outputs: tuple[str, ...] = ()
    confidence: float | None = None
    """Adds bounds that hold for at least this share of fresh rows."""
    top: int | None = None
    """Only so many of the strongest players, by name and value."""

    def __post_init__(self) -> None:
        given: str | Sequence[str] | None = self.outputs
        object.__setattr__(self, "outputs", (given,) if isinstance(given, str) else tuple(given or ()))
        if self.top is not None and (isinstance(self.top, bool) or self.top < 1):
            raise InputError(f"top must be at least 1, got {self.top!r}")
        if self.confidence is not None and not 0 < self.confidence < 1:
            raise InputError(f"confidence must lie between 0 and 1, got {self.confidence!r}")


def explained_schema(
    explainer: CoRTX, schema: Any, settings: ExplainSettings, *, with_model: bool | None = None
) -> Any:
    """The Arrow schema of what `explain_batches` makes of batches with this schema, without computing anything.

    Refuses columns that are missing or cannot be read, and names that are taken. `with_model` says whether the model
    will be there, where it is not attached yet.
    """
    pa = arrow()
    known = bool(settings.outputs) or (explainer.game is not None if with_model is None else with_model)
    if settings.outputs and (explainer.game is not None or with_model):
        raise InputError("the model and outputs= both give the model's output; use one of them")
    needed_columns(explainer, schema, settings)
    if settings.confidence is not None:
        explainer.calibration.factors(settings.confidence)
        if not known:
            raise InputError(
                "bounds hold for explanations that add up to the model's output; give model=..., or outputs=..., the "
                "columns that hold it"
            )
    added = columns_of(explainer, settings, known)
    refuse_taken((column.name for column in added), schema.names)
    fields = [pa.field(c.name, pa.string() if c.part == FEATURE else pa.float64()) for c in added]
    return pa.schema([*schema, *fields], schema.metadata)


def needed_columns(explainer: CoRTX, schema: Any, settings: ExplainSettings) -> tuple[str, ...]:
    """The columns that explaining reads; a missing one, or one of another type, is named."""
    pa = arrow()
    table = table_schema(explainer)
    names = schema.names
    missing = [name for name in (*table.names, *settings.outputs) if name not in names]
    if missing:
        hint = " (the explainer was fitted on an array, whose columns go by these names)" * (table.frame == "numpy")
        raise InputError(
            f"the table lacks the column {', '.join(map(repr, missing[:8]))}{hint}; it has "
            f"{', '.join(map(repr, names[:20]))}"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"the table has columns of the same name: {', '.join(map(repr, twice))}")
    for column in table.columns:
        _check_type(column, schema.field(column.name).type)
    for name in settings.outputs:
        kind = schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise InputError(f"column {name!r} is to hold the model's output, but its type is {kind}; give numbers")
    return (*table.names, *(name for name in settings.outputs if name not in table.names))


def table_schema(explainer: CoRTX) -> Schema:
    """The columns that the explainer was fitted on."""
    schema = explainer.fitted.spec.schema
    if not isinstance(schema, Schema):
        raise InputError("this explainer is for images; tables of many rows are explained by explainers of tables")
    return schema


def explain_batches(
    explainer: CoRTX, batches: Iterable[Any], settings: ExplainSettings, *, first_row: int = 0
) -> Iterator[Any]:
    """Explains record batches: the same rows in the same order, with the columns of `explained_schema`.

    Errors number rows from the first batch on, which starts at `first_row`.
    """
    pa = arrow()
    reader, row = None, first_row
    for batch in batches:
        if reader is None or not reader.schema.equals(batch.schema, check_metadata=True):
            reader = _Reader(explainer, batch.schema, settings)
        added = reader.explain(batch, row) if len(batch) else reader.nothing()
        yield pa.RecordBatch.from_arrays([*batch.columns, *added], schema=reader.explained)
        row += len(batch)


class _Reader:
    """What explaining batches of one schema takes."""

    def __init__(self, explainer: CoRTX, schema: Any, settings: ExplainSettings) -> None:
        self.explainer, self.schema, self.settings = explainer, schema, settings
        self.explained = explained_schema(explainer, schema, settings)
        known = bool(settings.outputs) or explainer.game is not None
        self.added = columns_of(explainer, settings, known)
        self.players = arrow().array(explainer.fitted.spec.players.names, arrow().string())

    def explain(self, batch: Any, row: int) -> list[Any]:
        """The added columns; errors count rows from `row` on."""
        pa = arrow()
        columns = {}
        for column in table_schema(self.explainer).columns:
            with _reading(f"column {column.name!r}", row, len(batch)):
                columns[column.name] = readable(batch.column(column.name), column)
        outputs = self._outputs(batch, row)
        try:
            with _reading("the table", row, len(batch)):
                explanation = self.explainer.explain(pa.table(columns), outputs, confidence=self.settings.confidence)
        except RowError as error:
            raise error.counted_from(row) from error
        values = column_values(explanation, self.added, self.settings.top)
        return [
            self.players.take(pa.array(numbers)) if column.part == FEATURE else pa.array(numbers)
            for column, numbers in zip(self.added, values, strict=True)
        ]

    def nothing(self) -> list[Any]:
        pa = arrow()
        return [pa.array([], pa.string() if column.part == FEATURE else pa.float64()) for column in self.added]

    def _outputs(self, batch: Any, row: int) -> npt.NDArray[np.float64] | None:
        """The model's outputs that came with the rows, (rows, outputs)."""
        if not self.settings.outputs:
            return None
        pa = arrow()
        outputs = np.empty((len(batch), len(self.settings.outputs)))
        for k, name in enumerate(self.settings.outputs):
            with _reading(f"column {name!r}, the model's output,", row, len(batch)):
                outputs[:, k] = batch.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False)
            bad = np.flatnonzero(~np.isfinite(outputs[:, k]))
            if len(bad):
                found = "a missing value" if np.isnan(outputs[bad[0], k]) else "infinity"
                raise RowError(f"column {name!r}, the model's output, holds {found} in row ", int(bad[0]) + row, "")
        return outputs


@contextmanager
def _reading(what: str, row: int, rows: int) -> Iterator[None]:
    """Arrow's errors about values as `InputError`s that name the rows; memory that is refused is no fault of theirs."""
    pa = arrow()
    try:
        yield
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        raise InputError(f"{what} cannot be read in rows {row:,} to {row + rows - 1:,}: {error}") from error


def columns_of(explainer: CoRTX, settings: ExplainSettings, known: bool) -> tuple[Added, ...]:
    """The columns that explaining adds to a table; `known` says whether the model's outputs will be."""
    spec = explainer.fitted.spec
    n_outputs = None if len(spec.base_values) == 1 else len(spec.base_values)
    return added_columns(
        spec.players.names,
        suffixes(spec.output_names, n_outputs),
        top=settings.top,
        bounds=settings.confidence is not None,
        known=known,
    )


def _check_type(column: Column, kind: Any) -> None:
    """Refuses Arrow types that no batch could be read from."""
    types = arrow().types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    numbers = types.is_integer(inner) or types.is_floating(inner) or types.is_decimal(inner) or types.is_boolean(inner)
    if types.is_null(inner) or (numbers if not column.coded else _is_text(inner) or _holds(column, inner)):
        return
    wanted = f"categories like {column.values[0]!r}" if column.coded else "numbers"
    raise InputError(f"column {column.name!r} has the type {kind}, but the explainer expects {wanted}; convert it")


def _is_text(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _holds(column: Column, kind: Any) -> bool:
    """Whether the column's categories include booleans, or numbers, where the Arrow type is that."""
    types = arrow().types
    if types.is_boolean(kind):
        return any(isinstance(value, (bool, np.bool_)) for value in column.values)
    if types.is_integer(kind) or types.is_floating(kind):
        return any(isinstance(value, (int, float)) and not isinstance(value, bool) for value in column.values)
    return False


def readable(array: Any, column: Column) -> Any:
    """An Arrow column as `cortx.tables` reads it: categories as text or a dictionary, numbers as numbers."""
    pa = arrow()
    types, kind = pa.types, array.type
    if types.is_dictionary(kind):
        return array if column.coded else array.dictionary_decode()
    if types.is_string_view(kind):
        return array.cast(pa.large_string())
    if column.coded:
        return array if _is_text(kind) or types.is_null(kind) else array.dictionary_encode()
    if types.is_decimal(kind) or types.is_float16(kind):
        return array.cast(pa.float64())
    return array
