"""Which rows of a large table are labelled: a random sample by content, found in one pass with bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.explainer.label_folder import FREQUENT_COPIES, FREQUENT_SHARE, priorities
from cortx.progress import progress_bar
from cortx.storage import arrow
from cortx.tables import RowError, read_table

Words = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.int64]
LEAST_SLACK = 65_536
"""Rows beyond those wanted that are held before the worst are dropped."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Different rows in the order of their priority."""

    rows: Any
    """An Arrow table; categories as the values they stand for."""
    words: Words
    positions: IntArray
    """Where each was first seen in the source."""
    copies: IntArray
    """How often the source has each."""
    seen: int
    """Rows of the source."""
    whole: bool
    """Whether every different row of the source is here."""
    categories: dict[str, tuple[Any, ...]]
    """Of the columns that the source keeps as categories (Arrow dictionaries): all that occur, sorted."""

    def __len__(self) -> int:
        return len(self.words)


def choose_rows(source: Any, columns: Sequence[str], count: int, seed: int, *, show: bool | None = None) -> Sample:
    """The `count` different rows that come first by priority, from anything with ``batches(columns)``.

    A row's priority depends on its content and the seed alone, so neither order nor partitioning of the source
    matters, and a larger count only adds rows at the end.
    """
    pa = arrow()
    best = _Best(count)
    categories: dict[str, set[Any]] = {}
    seen = 0
    first_rows = getattr(source, "first_rows", None)  # a source that lies elsewhere leaves most rows where they are
    batches = source.batches(list(columns)) if first_rows is None else first_rows(list(columns), count, seed)
    what = "the data" if first_rows is None else "a part of the data"
    with progress_bar("choosing rows", source.n_rows, show=show) as advance:
        for batch in batches:
            if len(batch) == 0:
                continue
            rows = _decoded(pa.Table.from_batches([batch]), categories)
            try:
                words = read_table(rows, what=what).row_words()
            except RowError as error:
                raise error.counted_from(seen) from error
            best.offer(rows, words, priorities(words, seed), np.arange(seen, seen + len(rows)))
            seen += len(rows)
            advance(len(rows), f"{seen:,} rows")
    if seen == 0:
        raise InputError("the data has no rows; give at least one")
    best.prune()
    held, here = best.held[0], seen
    seen = here if first_rows is None else source.n_rows
    known = {name: tuple(sorted(values)) for name, values in categories.items()}
    rows = held.rows.combine_chunks()
    return Sample(rows, held.words, held.positions, held.copies, seen, best.whole and here == seen, known)


def frequent_first(sample: Sample) -> Sample:
    """The same rows, those first that make up 1% of the data or more: what comes again and again must be labelled."""
    frequent = sample.copies >= max(FREQUENT_COPIES, FREQUENT_SHARE * sample.seen)
    if not frequent.any():
        return sample
    order = np.argsort(~frequent, kind="stable")
    return replace(
        sample, rows=sample.rows.take(order), words=sample.words[order], positions=sample.positions[order],
        copies=sample.copies[order],
    )  # fmt: skip


def _decoded(table: Any, categories: dict[str, set[Any]]) -> Any:
    """Dictionary columns as plain ones; what occurs in them is added to `categories`."""
    pa = arrow()
    for j, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            plain = table.column(j).cast(column.type.value_type)
            categories.setdefault(column.name, set()).update(v for v in plain.unique().to_pylist() if v is not None)
            table = table.set_column(j, column.name, plain)
    return table


@dataclass(frozen=True, eq=False)
class _Held:
    rows: Any
    words: Words
    priorities: Words
    positions: IntArray
    copies: IntArray


@dataclass(eq=False)
class _Best:
    """The rows with the smallest priorities so far, and some more.

    Of a row that is here at the end no copy was ever turned away: their number is exact.
    """

    count: int
    held: list[_Held] = field(default_factory=list)
    n_held: int = 0
    worst: int = 2**64 - 1
    whole: bool = True
    """Whether no row was turned away yet."""

    def offer(self, rows: Any, words: Words, order: Words, positions: IntArray) -> None:
        chosen = np.flatnonzero(order <= np.uint64(self.worst))
        self.whole &= len(chosen) == len(order)
        if len(chosen) == 0:
            return
        once = np.ones(len(chosen), dtype=np.int64)
        self.held.append(_Held(rows.take(chosen), words[chosen], order[chosen], positions[chosen], once))
        self.n_held += len(chosen)
        if self.n_held > self.count + max(self.count, LEAST_SLACK):
            self.prune()

    def prune(self) -> None:
        """Keeps one of equal rows, and of different ones the first `count`."""
        words, order, positions, copies = (
            np.concatenate([getattr(held, name) for held in self.held])
            for name in ("words", "priorities", "positions", "copies")
        )
        # Sorted; equal priorities are equal words.
        _, first, place = np.unique(order, return_index=True, return_inverse=True)
        total = np.zeros(len(first), dtype=np.int64)
        np.add.at(total, place, copies)
        self.whole &= len(first) <= self.count
        first, total = first[: self.count], total[: self.count]
        rows = arrow().concat_tables([held.rows for held in self.held]).take(first)
        self.held = [_Held(rows, words[first], order[first], positions[first], total)]
        self.n_held = len(first)
        if len(first) == self.count:
            self.worst = int(order[first[-1]])
