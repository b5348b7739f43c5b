"""`ValueStore`: every value v(S) that was paid for, in memory and, where one is given, in a folder."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cortx.errors import ArtifactError, BudgetError, ModelError, StorageError
from cortx.games.fingerprint import difference, game_key
from cortx.games.game import Game, Rows
from cortx.games.players import packed_words
from cortx.seeding import mix
from cortx.storage import read_whole, remove_unfinished, write_whole

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
FORMAT = 1
SECONDS_AT_RISK = 1.0
"""Values that took longer than this to ask for are written to the folder before more are asked for."""
FIRST_BATCH, MOST_BATCH = 4, 16_384
"""Evaluations of a batch, the first and at most, where the model is not called by `Calls`."""
WORTH_GROWING = 1.5
"""Batches that take long are still doubled where that takes less than so many times as long."""
PAIRS = 65_536
"""Pairs of a row and a coalition that are looked up at a time."""
N_CHECKED = 32
"""Evaluations, about, that tell whether what is kept belongs to a model."""
SMALL_PART, MOST_SMALL_PARTS = 16_384, 64
"""Files with fewer values than this are joined once there are so many of them."""


@dataclass(frozen=True, eq=False)
class Kept:
    """Values v(S), in the order of their keys."""

    keys: Words
    """(n,): a hash of row and coalition."""
    rows: Words
    """(n,): `Rows.words` of each value's row."""
    coalitions: Bytes
    """(n, players / 8): the coalition, as `numpy.packbits` packs it; players that equal their reference are absent."""
    values: Array
    """(n, outputs)"""

    @classmethod
    def of(cls, rows: Words, coalitions: Bytes, values: Array) -> Kept:
        kept = cls(keys_of(rows, packed_words(coalitions)), rows, coalitions, values)
        return kept.take(np.argsort(kept.keys, kind="stable"))

    def take(self, index: IntArray | slice) -> Kept:
        return Kept(self.keys[index], self.rows[index], self.coalitions[index], self.values[index])

    def __len__(self) -> int:
        return len(self.keys)


def joined(parts: list[Kept]) -> Kept:
    """One block of several; what several of them hold is held once."""
    whole = Kept(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.coalitions for part in parts]),
        np.concatenate([part.values for part in parts]),
    )
    order = np.argsort(whole.keys, kind="stable")  # fast: the parts are sorted
    keys = whole.keys[order]
    return whole.take(order[np.concatenate([[True], keys[1:] != keys[:-1]])])


def keys_of(rows: Words, coalitions: Words) -> Words:
    """Words of rows and of their coalitions as keys: two of a million share one with a probability of 3e-8."""
    keys: Words = mix(rows) ^ coalitions
    return keys


def checked_values(evaluations_per_value: int) -> int:
    """Values v(S) that are compared with kept ones, at most."""
    return max(4, N_CHECKED // evaluations_per_value)


def consolation(kept: str, folder: Path | None, error: Exception, call: str = "call") -> str:
    """What follows an error in the middle of paid work: that `kept`, in words, is not lost."""
    where = "on this explainer" if folder is None else "with the same checkpoint folder"
    when = "with a larger budget" if isinstance(error, BudgetError) else "once the model answers"
    return f"; {kept} are kept: {call} again {where} {when}, and it goes on from there"


@dataclass(eq=False)
class _Part:
    path: Path
    values: int


class ValueStore:
    """Values v(S) of one game. What is kept is never paid for again.

    A value is known by its row's content and its coalition, without players that equal their reference: copies of a row
    that are masked alike are one value, whatever the seed. Each takes ``players / 8 + 8 * outputs + 17`` bytes, and
    twice as much while blocks are joined. In a folder answers are written once a second, or after each batch if that
    takes longer; with `Game.calls` before their workers make another call. So a kill costs one batch: a second's
    answers, or the calls under way.
    """

    def __init__(self, game: Game, folder: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.key, self.folder, self._clock = game_key(game), folder, clock
        self._blocks: list[tuple[Kept, BoolArray]] = []
        """Each at least twice as long as the next; with each value, whether it counts as spent already."""
        self._unwritten: list[Kept] = []
        self._parts: list[_Part] = []
        self._base: Array | None = None
        self._checked = True
        self._unused: Words | None = None
        """Rows whose values were neither used nor bought since `begin`, ascending; more than those once some are."""
        self._written, self._ramp = clock(), _Ramp(clock)
        self.bought = self.reused = 0
        """Evaluations since `begin`: asked for now, and paid for earlier and used."""

    @classmethod
    def open(cls, folder: str | Path | None, game: Game) -> ValueStore:
        """The store of a folder, with what lies there; values of another game are refused (`ArtifactError`).

        None keeps values in memory alone.
        """
        store = cls(game, None if folder is None else Path(folder))
        if store.folder is not None and store.folder.is_dir():
            remove_unfinished(store.folder)
            parts = store._read()
            if parts:
                kept = joined(parts)
                store._blocks = [(kept, np.zeros(len(kept), dtype=bool))]
                store._checked = False
        return store

    def __len__(self) -> int:
        return sum(len(kept) for kept, _ in self._blocks)

    def begin(self) -> None:
        """Before a new fit: what is kept counts as spent once it is used again, and the model may have changed."""
        self._blocks = [(kept, np.zeros(len(kept), dtype=bool)) for kept, _ in self._blocks]
        self._checked, self.bought, self.reused = len(self) == 0, 0, 0
        self._unused = None

    # Asking -------------------------------------------------------------------------------------------------------

    def values(self, game: Game, rows: Rows, coalitions: BoolArray) -> Array:
        """v(S) of rows, (rows, k, outputs), of coalitions (k, players) or (rows, k, players).

        Only what is not kept is asked for. Evaluations that were paid for before `begin` count against budgets
        (`Game.count_kept`) when they are first used, v(all) as one evaluation and v(none) as nothing.
        """
        self.check(game, rows)
        asked = _Asked(game, rows, coalitions)
        missing: list[IntArray] = []
        reused = 0
        for part in asked.parts():
            keys, costs = asked.keys(part), asked.costs(part)
            block, place = self._find(keys)
            reused += self._use(block, place, costs)
            missing.append(part.start + np.flatnonzero((block < 0) & (costs > 0)))
        game.count_kept(reused)
        self.reused += reused
        self._buy(asked, np.concatenate(missing))
        result = np.empty((asked.n_pairs, game.n_outputs))
        for part in asked.parts():
            block, place = self._find(asked.keys(part))
            assert ((block >= 0) | (asked.costs(part) == 0)).all()
            result[part] = game.base_values  # v(none)
            for number, (kept, _) in enumerate(self._blocks):
                here = np.flatnonzero(block == number)
                result[part.start + here] = kept.values[place[here]]
        return result.reshape(len(rows), -1, game.n_outputs)

    def missing(self, game: Game, rows: Rows, coalitions: BoolArray) -> int:
        """Evaluations that `values` would ask the model for."""
        asked = _Asked(game, rows, coalitions)
        keys, costs = [], []
        for part in asked.parts():
            cost = asked.costs(part)
            new = (self._find(asked.keys(part))[0] < 0) & (cost > 0)
            keys.append(asked.keys(part)[new])
            costs.append(cost[new])
        _, first = np.unique(np.concatenate(keys), return_index=True)
        return int(np.concatenate(costs)[first].sum())

    def _use(self, block: IntArray, place: IntArray, costs: IntArray) -> int:
        """Marks kept values as spent; returns what those that were not cost."""
        total = 0
        for number, (_, spent) in enumerate(self._blocks):
            here = np.flatnonzero(block == number)
            places, first = np.unique(place[here], return_index=True)
            total += int(costs[here[first]][~spent[places]].sum())
            spent[places] = True
        return total

    def _buy(self, asked: _Asked, pairs: IntArray) -> None:
        """Asks for pairs and keeps each as soon as it is answered, also if a later one fails."""
        pairs = asked.different(pairs)
        self._base = asked.game.base_values
        before = asked.game.evaluations
        try:
            for some in np.split(pairs, range(PAIRS, len(pairs), PAIRS)):
                for index, values in asked.answers(some, self._ramp):
                    self._keep(asked, index, values)
                    if asked.game.calls is not None or self._clock() - self._written > SECONDS_AT_RISK:
                        self._write()
        except (ModelError, BudgetError) as error:
            raise type(error)(f"{error}{self._consolation(error)}") from error
        finally:
            self.bought += asked.game.evaluations - before
            self._write()

    def _keep(self, asked: _Asked, pairs: IntArray, values: Array) -> None:
        if not self._unwritten:
            self._written = self._clock()
        kept = Kept.of(asked.row_words(pairs), np.packbits(asked.masks(pairs), axis=1), values)
        if self.folder is not None:
            self._unwritten.append(kept)
        spent, blocks = np.ones(len(kept), dtype=bool), list(self._blocks)
        while blocks and len(blocks[-1][0]) < 2 * len(kept):
            last, last_spent = blocks.pop()
            order = np.argsort(np.concatenate([last.keys, kept.keys]), kind="stable")
            kept, spent = joined([last, kept]), np.concatenate([last_spent, spent])[order]
        self._blocks = [*blocks, (kept, spent)]  # at once, so that an interrupt loses nothing

    def _find(self, keys: Words) -> tuple[IntArray, IntArray]:
        """The block of each key, -1 if it is not kept, and its place there."""
        block, place = np.full(len(keys), -1), np.zeros(len(keys), dtype=np.int64)
        for number, (kept, _) in enumerate(self._blocks):
            found = np.minimum(np.searchsorted(kept.keys, keys), len(kept) - 1)
            here = kept.keys[found] == keys
            block[here], place[here] = number, found[here]
        return block, place

    def _consolation(self, error: Exception) -> str:
        if not len(self):
            return ""
        return consolation(f"{len(self):,} values that were paid for", self.folder, error)

    # What is kept -------------------------------------------------------------------------------------------------

    def everything(self) -> Kept:
        """All values, in the order of their keys: the same whatever the order in which they were asked for."""
        if len(self._blocks) > 1:
            kept = joined([kept for kept, _ in self._blocks])
            spent = np.zeros(len(kept), dtype=bool)
            for block, marks in self._blocks:
                spent[np.searchsorted(kept.keys, block.keys[marks])] = True
            self._blocks = [(kept, spent)]
        if self._blocks:
            return self._blocks[0][0]
        none = np.zeros(0, dtype=np.uint64)
        return Kept(none, none, np.zeros((0, 0), dtype=np.uint8), np.zeros((0, 0)))

    def of_rows(self, rows: Rows, *, unused: bool = False) -> Iterator[tuple[IntArray, BoolArray, Array]]:
        """The kept values of these rows in parts: positions (n,), coalitions (n, players), values (n, outputs).

        With `unused` those alone that were neither used nor bought since `begin`.
        """
        kept = self.everything()
        words, first = np.unique(rows.words, return_index=True)
        for start in range(0, len(kept), PAIRS):
            part = slice(start, start + PAIRS)
            found = np.minimum(np.searchsorted(words, kept.rows[part]), len(words) - 1)
            chosen = words[found] == kept.rows[part]
            here = np.flatnonzero(chosen & ~self._blocks[0][1][part] if unused else chosen)
            coalitions = np.unpackbits(kept.coalitions[part][here], axis=1, count=rows.active.shape[1]).astype(bool)
            if len(here):
                yield first[found[here]], coalitions, kept.values[part][here]

    # The model they belong to -------------------------------------------------------------------------------------

    def check(self, game: Game, rows: Rows) -> None:
        """Raises `ArtifactError` if the values of the folder are of another model; in memory they are forgotten.

        Where nothing of these rows is kept only v(none) can be compared, and the next rows are checked again.
        """
        if self._checked:
            return
        if self.belongs_to(game, rows):
            self._checked = self._to_check(game, rows) is not None
            return
        if self.folder is not None:
            raise ArtifactError(
                f"the values kept in {self.folder} belong to another model (its outputs for the same rows were "
                "others); use another checkpoint folder, or delete this one"
            )
        bought = [(kept.take(np.flatnonzero(spent)), spent[spent]) for kept, spent in self._blocks]
        self._blocks = [(kept, spent) for kept, spent in bought if len(kept)]
        self._checked = True

    def belongs_to(self, game: Game, rows: Rows) -> bool:
        """Whether the model still gives the values that were kept, as far as some rows of this table tell."""
        if self._base is not None and (
            self._base.shape != game.base_values.shape or not game.has_base_values(self._base[None])
        ):
            return False
        chosen = self._to_check(game, rows)
        if chosen is None:
            return True
        index, coalitions, kept = chosen
        now = game.pair_values(rows, index, coalitions)
        if now.shape != kept.shape:
            return False
        # With v(none), so that also a single value has something to be measured by.
        before, after = (np.concatenate([game.base_values[None], values]) for values in (kept, now))
        return difference(after, before, game.precision).same

    def check_cost(self, game: Game, rows: Rows) -> int:
        """Evaluations that the next `check` asks for, v(none) aside."""
        chosen = None if self._checked else self._to_check(game, rows)
        return 0 if chosen is None else game.evaluations_per_value * len(chosen[0])

    def _to_check(self, game: Game, rows: Rows) -> tuple[IntArray, BoolArray, Array] | None:
        """Values of rows of this table, with coalitions of many players, where models differ."""
        if self._unused is None:
            kept, spent = self.everything(), self._blocks[0][1] if self._blocks else np.zeros(0, dtype=bool)
            self._unused = np.unique(kept.rows[~spent])
        if not np.isin(rows.words, self._unused).any():
            return None
        most = checked_values(game.evaluations_per_value)
        for index, coalitions, values in self.of_rows(rows, unused=True):
            order = np.argsort(-coalitions.sum(axis=1), kind="stable")
            _, first = np.unique(index[order], return_index=True)  # one of each row
            some = order[np.sort(first)][:most]
            return index[some], coalitions[some], values[some]
        return None

    # The folder ---------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Writes what is new as one file, and joins small files."""
        if self._unwritten and self.folder is not None:
            self._parts.append(self._write_part(joined(self._unwritten)))
            small = [part for part in self._parts if part.values < SMALL_PART]
            if len(small) > MOST_SMALL_PARTS:
                whole = self._write_part(
                    joined([kept for part in small if (kept := self._load(part.path)) is not None])
                )
                for part in small:
                    if part.path != whole.path:
                        part.path.unlink(missing_ok=True)
                self._parts = [part for part in self._parts if part not in small] + [whole]
        self._unwritten, self._written = [], self._clock()

    def _write_part(self, kept: Kept) -> _Part:
        assert self.folder is not None
        assert self._base is not None
        facts = {"format": FORMAT, "key": self.key, "base": self._base.tolist()}
        tensors: dict[str, npt.NDArray[Any]] = {
            "rows": kept.rows.view(np.int64),
            "coalitions": kept.coalitions,
            "values": kept.values,
        }
        # Named by what it holds, so that no file ever replaces another one.
        name = f"values-{hashlib.sha256(kept.keys.tobytes()).hexdigest()[:20]}.safetensors"
        write_whole(self.folder / name, save(tensors, {"cortx": json.dumps(facts)}))
        return _Part(self.folder / name, len(kept))

    def _read(self) -> list[Kept]:
        """What lies in the folder; another process may join files meanwhile."""
        assert self.folder is not None
        found: dict[Path, Kept] = {}
        while True:
            paths = sorted(self.folder.glob("values-*.safetensors"))
            new = [path for path in paths if path not in found]
            if not new:
                break
            for path in new:
                kept = self._load(path)
                if kept is not None:
                    found[path] = kept
        self._parts = [_Part(path, len(found[path])) for path in paths]
        return [kept for kept in found.values() if len(kept)]

    def _load(self, path: Path) -> Kept | None:
        """The values of a file; None if it is gone."""
        try:
            content = read_whole(path)
            tensors, facts = load(content), _facts(content)
            rows, coalitions, values = (tensors[name] for name in ("rows", "coalitions", "values"))
            kept = Kept.of(rows.view(np.uint64), coalitions, values)
            if values.dtype != np.float64 or values.ndim != 2 or not np.isfinite(values).all():
                raise ValueError("its values are no finite numbers")
            base = np.array(facts["base"], dtype=np.float64)
        except FileNotFoundError:
            return None
        except (SafetensorError, StorageError, ValueError, KeyError, TypeError, IndexError) as error:
            raise ArtifactError(
                f"the values in {path} are damaged ({error}); delete the file, and they are asked for again"
            ) from error
        if facts.get("key") != self.key:
            raise ArtifactError(
                f"the values in {path} belong to another game (other columns, reference, groups or output); give "
                "another checkpoint folder, or delete this one"
            )
        self._base = base
        return kept


def _facts(content: bytes) -> dict[str, Any]:
    """What the head of a safetensors file says."""
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    facts = json.loads(head.get("__metadata__", {}).get("cortx", "{}"))
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    return facts


class _Asked:
    """Pairs of a row and a coalition, numbered row by row."""

    def __init__(self, game: Game, rows: Rows, coalitions: BoolArray) -> None:
        self.game, self.rows = game, rows
        self.coalitions = np.asarray(coalitions, dtype=bool)
        shape = self.coalitions.shape if self.coalitions.ndim == 3 else (len(rows), *self.coalitions.shape)
        game.check_coalitions(shape, len(rows))
        self.k = shape[1]
        self.n_pairs = len(rows) * self.k

    def parts(self) -> Iterator[slice]:
        return (slice(start, min(start + PAIRS, self.n_pairs)) for start in range(0, max(1, self.n_pairs), PAIRS))

    def masks(self, pairs: slice | IntArray) -> BoolArray:
        """Coalitions without players that equal their reference, (pairs, players)."""
        row_of, column_of = self._places(pairs)
        chosen = self.coalitions[column_of] if self.coalitions.ndim == 2 else self.coalitions[row_of, column_of]
        return chosen & self.rows.active[row_of]

    def _places(self, pairs: slice | IntArray) -> tuple[IntArray, IntArray]:
        numbers = np.arange(pairs.start, pairs.stop) if isinstance(pairs, slice) else pairs
        row_of, column_of = np.divmod(numbers, max(1, self.k))
        return row_of, column_of

    def row_words(self, pairs: slice | IntArray) -> Words:
        return self.rows.words[self._places(pairs)[0]]

    def keys(self, pairs: slice | IntArray) -> Words:
        return keys_of(self.row_words(pairs), packed_words(np.packbits(self.masks(pairs), axis=1)))

    def costs(self, pairs: slice | IntArray) -> IntArray:
        """Evaluations of each pair: none of v(none), unless each image is its own reference; one of v(all)."""
        masks = self.masks(pairs)
        costs = np.full(len(masks), self.game.evaluations_per_value)
        costs[(masks == self.rows.active[self._places(pairs)[0]]).all(axis=1)] = 1
        if self.game.own_reference is None:
            costs[~masks.any(axis=1)] = 0
        return costs

    def different(self, pairs: IntArray) -> IntArray:
        """The pairs without those that are masked as an earlier one is."""
        keys = [self.keys(some) for some in np.split(pairs, range(PAIRS, len(pairs), PAIRS))]
        _, first = np.unique(np.concatenate(keys), return_index=True)
        return pairs[np.sort(first)]

    def answers(self, pairs: IntArray, ramp: _Ramp) -> Iterator[tuple[IntArray, Array]]:
        """Pairs and their values, (pairs, outputs), as the model answers."""
        game = self.game
        whole = self.costs(pairs) < game.evaluations_per_value
        yield from self._in_batches(pairs[whole], self._outputs, 1, ramp)
        if game.calls is not None:  # the game itself divides the work, and answers call by call
            yield from self._values(pairs[~whole])
        else:
            yield from self._in_batches(pairs[~whole], self._values, game.evaluations_per_value, ramp)

    def _in_batches(
        self,
        pairs: IntArray,
        ask: Callable[[IntArray], Iterator[tuple[IntArray, Array]]],
        cost: int,
        ramp: _Ramp,
    ) -> Iterator[tuple[IntArray, Array]]:
        calls, start = self.game.calls, 0
        while start < len(pairs):
            size = ramp.size if calls is None else calls.workers * calls.batch
            part = pairs[start : start + max(1, size // cost)]
            with ramp.timed(full=len(part) * cost >= size):
                yield from ask(part)
            start += len(part)

    def _outputs(self, pairs: IntArray) -> Iterator[tuple[IntArray, Array]]:
        """v(all) of a game with a background: the model's own output."""
        yield pairs, self.game.outputs_of(self.rows.table.take(self._places(pairs)[0]))

    def _values(self, pairs: IntArray) -> Iterator[tuple[IntArray, Array]]:
        with closing(self.game.answered(self.rows, self._places(pairs)[0], self.masks(pairs))) as answered:
            for arrived in answered:
                yield (
                    np.concatenate([pairs[part] for part, _ in arrived]),
                    np.concatenate([values for _, values in arrived]),
                )


class _Ramp:
    """The evaluations of a batch: doubled while a batch is fast, or twice as many take little longer.

    Only a slow model is asked in batches that depend on its speed.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.size, self._before = clock, FIRST_BATCH, (FIRST_BATCH, 0.0)

    @contextmanager
    def timed(self, *, full: bool) -> Iterator[None]:
        """Around a batch; one that is not full tells nothing."""
        begun = self._clock()
        yield
        if full:
            self._took(self._clock() - begun)

    def _took(self, seconds: float) -> None:
        size, before = self._before
        grown = self.size > size and seconds < WORTH_GROWING * before
        first = before == 0.0
        self._before = self.size, seconds
        if seconds < SECONDS_AT_RISK or grown or first:
            self.size = min(MOST_BATCH, 2 * self.size)
