"""A folder of labels that only grows: Parquet files, each written whole, and the game and model they belong to.

Every label knows its row by content, its round and what it cost. Rounds of a row are independent of each other and are
merged when the folder is read. Nothing is ever replaced, so a killed run loses only what was not finished.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx import lease
from cortx.errors import ArtifactError, FingerprintError, InputError, StorageError
from cortx.estimators.shapley import views_in_memory
from cortx.explainer.game_difference import frame_difference, game_difference, name_difference
from cortx.explainer.game_json import game_arrays, game_facts, game_spec
from cortx.explainer.label_part import COLUMNS, LabelPart, arrow
from cortx.explainer.store import in_order_of_rows, merged
from cortx.explanation import Explanation, Views
from cortx.games import Game, GameSpec
from cortx.games.calls import Calls
from cortx.games.fingerprint import difference
from cortx.seeding import mix, stream_seed
from cortx.storage import MOST_JSON, TEMPORARY, local_path, read_whole, remove_unfinished, write_whole
from cortx.tables import Schema, write_table
from cortx.version import __version__

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
logger = logging.getLogger("cortx")
FORMAT, FORMAT_VERSION = "cortx-labels", 1
MANIFEST = "labels.json"
COPIES = "copies.safetensors"
CALIBRATION_SHARE = 0.15
FREQUENT_SHARE = 0.01
"""Of the data: a row with as many copies is learned from and calibrated with (`Explanation.frequent`)."""
FREQUENT_COPIES = 30
"""Fewer copies do not show that a row comes again and again."""
KEYS = ["word", "round", "evaluations"]


@dataclass(frozen=True, eq=False)
class Spent:
    """What was paid for each labelled row: evaluations in all, and those of its dearest round, (rows,) each."""

    words: Words
    rounds: IntArray
    """The number of the next round: one behind the last, also where the file of an earlier one was deleted."""
    evaluations: IntArray
    dearest: IntArray

    @staticmethod
    def none() -> Spent:
        empty = np.zeros(0, dtype=np.int64)
        return Spent(np.zeros(0, dtype=np.uint64), empty, empty, empty)

    def __len__(self) -> int:
        return len(self.words)

    def of(self, words: Words) -> Spent:
        """The same for these rows, in their order; zero where there is nothing."""
        if len(self) == 0:
            none = np.zeros(len(words), dtype=np.int64)
            return Spent(words, none, none, none)
        place = np.minimum(np.searchsorted(self.words, words), len(self) - 1)
        known = self.words[place] == words
        return Spent(words, *(np.where(known, part[place], 0) for part in self._counts))

    @property
    def _counts(self) -> tuple[IntArray, IntArray, IntArray]:
        return self.rounds, self.evaluations, self.dearest


@dataclass(frozen=True, eq=False)
class _Found:
    """Files of labels, how many each has, and what identifies these, (labels,) each."""

    paths: tuple[Path, ...]
    lengths: tuple[int, ...]
    words: Words
    rounds: IntArray
    evaluations: IntArray

    @cached_property
    def kept(self) -> IntArray:
        """Places of the labels that count: one a row and round, in their order."""
        return _once(self.words, self.rounds, self.evaluations)

    @property
    def most_rounds(self) -> int:
        """Labels that count, of the row that has most."""
        return int(np.unique(self.words[self.kept], return_counts=True)[1].max(initial=0))

    def spent(self) -> Spent:
        """What was paid for each row."""
        unique, place = np.unique(self.words[self.kept], return_inverse=True)
        cost = self.evaluations[self.kept]
        rounds, total, dearest = (np.zeros(len(unique), dtype=np.int64) for _ in range(3))
        np.maximum.at(rounds, place, self.rounds[self.kept] + 1)
        np.add.at(total, place, cost)
        np.maximum.at(dearest, place, cost)
        return Spent(unique, rounds, total, dearest)


@dataclass(frozen=True, eq=False)
class LabelFolder:
    """Labels of one game, model and seed. What was labelled once is never paid for again."""

    path: Path
    spec: GameSpec
    seed: int
    probe: Array
    """Rows by which the model is recognised, in the codes of the spec's schema, and its outputs there."""
    probe_outputs: Array
    fingerprints: dict[str, str]
    """Of "game" and "model": every file names both."""

    # Opening ------------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: str | os.PathLike[str], game: Game, schema: Schema, probe: Array, seed: int) -> LabelFolder:
        """A new folder for the labels of this game; its base value is evaluated.

        `schema` is that of the rows and of `probe`, (probes, columns).
        """
        path = folder_path(folder)
        refuse_foreign(path)
        spec = game.spec(schema)
        outputs = np.ascontiguousarray(game.fingerprint(probe, schema))
        from safetensors.numpy import save

        kept = save({**game_arrays(spec), "probe.rows": np.ascontiguousarray(probe), "probe.outputs": outputs})
        digest = hashlib.sha256(kept).hexdigest()
        facts = game_facts(spec)
        asked = [facts["table"], facts["players"], spec.output, spec.target, seed]
        prints = {
            "game": _sha(asked, spec.absent.tobytes(), spec.players.column_player.tobytes()),
            "model": _sha(outputs.tobytes(), spec.base_values.tobytes()),
        }
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "seed": seed,
            "fingerprints": prints,
            **facts,
            "arrays": {"file": f"game-{digest[:12]}.safetensors", "sha256": digest},
            "versions": {"cortx": __version__},
        }
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / str(manifest["arrays"]["file"]), kept)
        write_whole(path / MANIFEST, (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode())
        return cls.open(path)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> LabelFolder:
        """The folder with what lies there."""
        path = folder_path(folder)
        manifest = _read_manifest(path)
        try:
            entry = manifest["arrays"]
            arrays = _read_arrays(path / Path(entry["file"]).name, entry["sha256"])
            return cls(
                path=path,
                spec=game_spec(manifest, arrays),
                seed=int(manifest["seed"]),
                probe=arrays["probe.rows"],
                probe_outputs=arrays["probe.outputs"],
                fingerprints={name: str(manifest["fingerprints"][name]) for name in ("game", "model")},
            )
        except (KeyError, TypeError, ValueError, InputError) as error:
            raise ArtifactError(f"{path / MANIFEST} is damaged ({error!r}); restore it from a copy") from error

    def __repr__(self) -> str:
        return f"LabelFolder({str(self.path)!r}, {len(self.parts())} files, seed {self.seed})"

    # The game -----------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        assert isinstance(self.spec.schema, Schema)
        return self.spec.schema

    def game(self, model: Any, memory_budget: int | None = None, calls: Calls | None = None) -> Game:
        """The labels' game, with its model again; another model is refused. Nothing of this is counted."""
        game = Game.from_spec(model, self.spec, memory_budget, known_base=True, calls=calls)
        self.check_model(game)
        return game

    def check_names(self, columns: Sequence[str], seed: int) -> None:
        """Raises `ArtifactError` with the reason if rows with these columns, or labels of this seed, are others."""
        seeds = None if seed == self.seed else f"the seed: it was {self.seed}, now {seed}"
        self._refuse(seeds or name_difference(self.schema.names, columns))

    def check_frame(self, frame: str | None, game: Game) -> None:
        """The same for the kind of table that was asked for, None: as before; `game` has the model."""
        self._refuse(frame_difference(self.spec, frame, game.model.frames))

    def check(self, game: Game) -> None:
        """Raises `ArtifactError` with the reason if labels of this game do not belong here."""
        differs: str | None = "the game: it is now one of images"
        if not game.of_images:
            now = replace(
                self.spec, schema=game.schema, absent=game.absent, players=game.players, output=game.model.output,
                target=game.target,
            )  # fmt: skip
            differs = game_difference(self.spec, now)
        self._refuse(differs)
        self.check_model(game)

    def _refuse(self, differs: str | None) -> None:
        if differs is not None:
            raise ArtifactError(
                f"the labels in {self.path} belong to another game, which may not be mixed with them. What differs "
                f"is {differs}. Use the same settings, or another folder"
            )

    def check_model(self, game: Game, where: str = "") -> None:
        """Raises `FingerprintError` if the model does not give the outputs that were kept; `where`: on what host."""
        table = game.rows(_like(game, write_table(self.probe, self.schema), self.probe)).table
        outputs = game.fingerprint(table.matrix, table.schema)
        if outputs.shape != self.probe_outputs.shape:
            raise FingerprintError(
                f"the model{where} gives {outputs.shape[1]} outputs, the labels in {self.path} are of "
                f"{self.probe_outputs.shape[1]}"
            )
        found = difference(outputs, self.probe_outputs, game.precision)
        if not found.same:
            raise FingerprintError(
                f"the model{where} is not the one of the labels in {self.path}: on {len(self.probe)} probe rows the "
                f"outputs differ by up to {found.largest:.3g} (their spread is {found.spread:.3g}); use that model, or "
                "another folder"
            )

    @property
    def base_evaluations(self) -> int:
        """What v(none) cost, once for all labels."""
        return len(self.spec.absent)

    # Writing ------------------------------------------------------------------------------------------------------

    def part_name(self, words: Words, round: int, values: int) -> str:
        """The file of these rows, this round and so many values v(S) each: the same work has the same name."""
        return f"part-{round:03d}-{_sha(words.tobytes(), values)[:20]}.parquet"

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def append(self, part: LabelPart, values: int) -> str:
        """Writes labels as a new file, whole or not at all; labels that are there already stay as they are."""
        name = self.part_name(part.words, part.round, values)
        if self.has(name):
            return name
        pa = arrow()
        facts = {
            "format": FORMAT, "format_version": FORMAT_VERSION, **self.fingerprints, "round": part.round,
            "values": values, "seconds": round(part.seconds, 3), "cortx": __version__,
        }  # fmt: skip
        table = part.to_arrow().replace_schema_metadata({"cortx": json.dumps(facts)})
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(table, sink, compression="zstd", write_page_checksum=True)
        write_whole(self.path / name, sink.getvalue())
        return name

    def note_copies(self, words: Words, copies: IntArray, seen: int) -> None:
        """Keeps how often the data has each row, (rows,), and how many rows it has; what was kept before is replaced.

        Rows that are not among these, because the data no longer has them, count once.
        """
        from safetensors.numpy import save

        arrays = {"words": words, "copies": np.asarray(copies, dtype=np.int64), "seen": np.array([seen])}
        content = save({name: np.ascontiguousarray(part) for name, part in arrays.items()})
        path = self.path / COPIES
        if not path.exists() or path.read_bytes() != content:
            write_whole(path, content)

    def copies(self, words: Words) -> tuple[IntArray, int] | None:
        """How often the data had each row, (rows,), and its rows; None in folders of versions that did not count."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            kept = load((self.path / COPIES).read_bytes())
            order = np.argsort(kept["words"])
            known, counts, seen = kept["words"][order], kept["copies"][order], int(kept["seen"][0])
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError, IndexError) as error:
            raise StorageError(
                f"{self.path / COPIES} is damaged ({error}); delete it, and run cortx label again with the same data"
            ) from error
        if len(known) == 0:
            return np.ones(len(words), dtype=np.int64), seen
        place = np.minimum(np.searchsorted(known, words), len(known) - 1)
        return np.where(known[place] == words, counts[place], 1), seen

    def remove_unfinished(self) -> None:
        """Removes what killed writers left behind."""
        remove_unfinished(self.path)

    # Reading ------------------------------------------------------------------------------------------------------

    def parts(self) -> list[Path]:
        return sorted(path for path in self.path.glob("*.parquet") if not path.name.startswith("."))

    def spent(self) -> Spent:
        """What was paid for each labelled row."""
        return self._found().spent()

    def read(self) -> Explanation:
        """All labels: rounds merged, rows in the order in which they are chosen, with the views that came free."""
        return self._read(self._found())

    def _read(self, found: _Found) -> Explanation:
        spent = found.spent()
        if len(spent) == 0:
            raise InputError(f"there are no labels in {self.path} yet; make some with cortx label")
        order = np.argsort(priorities(spent.words, self.seed))
        place_of = np.empty(len(order), dtype=np.int64)
        place_of[order] = np.arange(len(order))
        n, n_players, n_outputs = len(spent), len(self.spec.players), len(self.spec.base_values)
        n_rounds = found.most_rounds
        values = np.zeros((n_rounds, n, n_players, n_outputs))
        errors, costs = np.zeros_like(values), np.zeros((n_rounds, n))
        outputs, next_round = np.zeros((n, n_outputs)), np.zeros(n, dtype=np.int64)
        exact, exact_in = np.zeros(n, dtype=bool), np.zeros((n_rounds, n), dtype=bool)
        tables, positions, views, seconds = [], [], [], 0.0
        for part, fresh in self._read_parts(found, views_in_memory(n_players, n_outputs, n)):
            place = place_of[np.searchsorted(spent.words, part.words[fresh])]
            at = next_round[place], place
            values[at], errors[at], costs[at] = part.values[fresh], part.errors[fresh], part.evaluations[fresh]
            exact_in[at] = part.exact[fresh]
            first = next_round[place] == 0
            outputs[place[first]] = part.outputs[fresh][first]
            tables.append(part.rows.take(np.flatnonzero(fresh)[first]))
            positions.append(place[first])
            some = None if part.views is None else part.views.of_rows(np.flatnonzero(fresh))
            if some is not None:
                new = ~exact[place][some.rows]
                if new.any():
                    views.append(Views(place[some.rows][new], some.kept[new], some.values[new], some.outputs[new]))
            exact[place] |= part.exact[fresh]
            next_round[place] += 1
            seconds += part.seconds * float(fresh.mean())
        single = n_outputs == 1
        each: Any = np.s_[..., 0] if single else np.s_[:]
        label, error = (values[0], errors[0]) if n_rounds == 1 else merged(values, errors, costs, exact_in)
        evaluations = costs.sum(axis=0).astype(np.int64)
        rows = arrow().concat_tables(tables, promote_options="permissive")
        return Explanation(
            values=label[each],
            base_values=np.tile(self.spec.base_values, (n, 1))[each],
            feature_names=self.spec.players.names,
            data=as_given(rows.take(np.argsort(np.concatenate(positions))), self.schema),
            output_names=self.spec.output_names,
            error_std=error[each],
            outputs=outputs[each],
            evaluations=int(evaluations.sum()) + self.base_evaluations,
            row_evaluations=evaluations,
            seconds=seconds,
            method="+".join(sorted({"exact" if one else "kernel" for one in np.unique(exact)})),
            views=in_order_of_rows(views),
            exact=exact,
        )

    def split(self, calibration_share: float = CALIBRATION_SHARE) -> tuple[Explanation, Explanation]:
        """Labels to learn from, and others for `CoRTX.calibrate`: ``fit(..., labels=a, leave_out=b).calibrate(b)``.

        The role of a row depends on its content and the seed alone: a folder that has grown keeps them all. The second
        part has ``weights``: how many rows of the data each row stands for. Rows that make up 1% of the data or more
        are in both parts, marked ``frequent`` in the second: what comes again and again is worth learning, and its
        error is known.
        """
        if not 0 < calibration_share < 1:
            raise InputError(f"calibration_share must lie between 0 and 1, got {calibration_share}")
        found = self._found()
        labels = self._read(found)
        words = found.spent().words
        order = priorities(words, self.seed)
        words, order = words[np.argsort(order)], np.sort(order)  # one for each label, in their order
        drawn = mix(order ^ np.uint64(stream_seed(self.seed, "calibration")))
        calibrates = drawn < np.uint64(int(calibration_share * 2**64))
        counted = self.copies(words)
        if counted is None:
            logger.warning(
                "%s does not say how often the data has each row (an earlier version wrote it): in calibration every "
                "different row counts once; run cortx label again with the same data to count them",
                self.path,
            )
            return _of_rows(labels, ~calibrates, self.base_evaluations), _of_rows(labels, calibrates, 0)
        copies, seen = counted
        if (copies == 1).all():
            return _of_rows(labels, ~calibrates, self.base_evaluations), _of_rows(labels, calibrates, 0)
        frequent = copies >= max(FREQUENT_COPIES, FREQUENT_SHARE * seen)
        labels = replace(labels, weights=_stands_for(copies, seen, calibrates, frequent), frequent=frequent)
        learn = _of_rows(labels, ~calibrates | frequent, self.base_evaluations)
        rest = _of_rows(labels, calibrates | frequent, 0)
        assert rest.row_evaluations is not None
        assert rest.frequent is not None
        paid = int(rest.row_evaluations[~rest.frequent].sum())  # the others are paid for in the first part
        return replace(learn, weights=None, frequent=None), replace(rest, evaluations=paid)

    def _found(self) -> _Found:
        """The files that are there now: others may be added while they are read."""
        paths = self.parts()
        keys = [self._columns(path, KEYS)[0] for path in paths]
        return _Found(tuple(paths), tuple(map(len, keys)), *_joined(keys))

    def _read_parts(self, found: _Found, most_views: int) -> Iterator[tuple[LabelPart, npt.NDArray[np.bool_]]]:
        """Every part in the order of rounds, with a flag for each label that counts: one a row and round."""
        counts = np.zeros(len(found.words), dtype=bool)
        counts[found.kept] = True
        start = 0
        for path, length in zip(found.paths, found.lengths, strict=True):
            here = counts[start : start + length]
            start += length
            if here.any():
                table, facts = self._columns(path, None)
                yield LabelPart.from_arrow(table, len(self.spec.players), float(facts["seconds"]), most_views), here

    def _columns(self, path: Path, names: list[str] | None) -> tuple[Any, dict[str, Any]]:
        """Columns of a part, checked: that it is whole, ours, and of this game and model."""
        pa = arrow()
        try:
            with pa.OSFile(str(path)) as file:
                opened = pa.parquet.ParquetFile(file, page_checksum_verification=True)
                text = (opened.schema_arrow.metadata or {}).get(b"cortx")
                facts = {} if text is None else json.loads(text)
                table = opened.read(names) if facts else None
                if table is not None:
                    table.select(COLUMNS if names is None else names)
        except (OSError, pa.ArrowException, ValueError, KeyError) as error:
            raise StorageError(
                f"{path} is damaged ({error}); restore it from a copy, or delete it: its labels will be made again"
            ) from error
        if facts.get("format") != FORMAT:
            raise ArtifactError(f"{path} is no file of labels; move it out of the folder")
        for what, words in (("game", "the reference, players, output or seed"), ("model", "the model")):
            if facts.get(what) != self.fingerprints[what]:
                raise ArtifactError(
                    f"{path} holds labels of another {what} ({words} differ from what {MANIFEST} says); move it out of "
                    "the folder"
                )
        return table, facts


def _stands_for(
    copies: IntArray, seen: int, calibrates: npt.NDArray[np.bool_], frequent: npt.NDArray[np.bool_]
) -> Array:
    """How many rows of the data each calibration row stands for, (rows,): frequent ones for their own copies.

    The others are a random part of the different rows that are not frequent, and stand for all of these.
    """
    weights = copies.astype(np.float64)
    light = calibrates & ~frequent
    if light.any():
        weights[light] *= max(1.0, (seen - weights[frequent].sum()) / weights[light].sum())
    return weights


def priorities(words: Words, seed: int) -> Words:
    """The order in which rows are labelled, smallest first: random, and a property of the row's content alone."""
    return mix(words ^ mix(np.asarray([stream_seed(seed, "labelled rows")], dtype=np.uint64)))


def as_given(rows: Any, schema: Schema) -> Any:
    """Rows of an Arrow table in a kind that a game of this schema reads: an array has no names to match."""
    if schema.frame != "numpy":
        return with_categories(rows, schema)
    matrix = np.stack([column.to_numpy() for column in rows.columns], axis=1)
    return matrix.astype(schema.columns[0].dtype) if matrix.dtype.kind != "f" else matrix


def with_categories(rows: Any, schema: Schema) -> Any:
    """An Arrow table whose columns are dictionaries where the schema has categories and they are numbers or booleans.

    Frames may keep such values as categories or as objects, which Arrow does not.
    """
    types = arrow().types
    coded = {column.name for column in schema.columns if column.coded}
    for j, field in enumerate(rows.schema):
        number = types.is_boolean(field.type) or types.is_integer(field.type) or types.is_floating(field.type)
        if number and field.name in coded:
            rows = rows.set_column(j, field.name, rows.column(j).dictionary_encode())
    return rows


def _like(game: Game, frame: Any, matrix: Array) -> Any:
    """Probe rows in a kind that leaves the game as it is."""
    return matrix if isinstance(game.schema, Schema) and game.schema.frame == "numpy" else frame


def _joined(keys: list[Any]) -> tuple[Words, IntArray, IntArray]:
    """The columns `KEYS` of all parts."""
    words, rounds, evaluations = (
        np.concatenate([np.zeros(0, dtype=kind), *(table[name].to_numpy().astype(kind) for table in keys)])
        for name, kind in zip(KEYS, (np.uint64, np.int64, np.int64), strict=True)
    )
    return words, rounds, evaluations


def _once(words: Words, rounds: IntArray, evaluations: IntArray) -> IntArray:
    """Places of one label for each row and round, in their order; of two that are there, the dearer one counts.

    Two are there when somebody thought that a worker was dead, and it was not: they come from the same draws.
    """
    order = np.lexsort((-evaluations, rounds, words))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (words[order][1:] != words[order][:-1]) | (rounds[order][1:] != rounds[order][:-1])
    return np.sort(order[new])


def _of_rows(labels: Explanation, chosen: npt.NDArray[np.bool_], base_evaluations: int) -> Explanation:
    """Some of the labels with exactly what they cost."""
    part = labels[chosen]
    assert part.row_evaluations is not None
    return replace(part, evaluations=int(part.row_evaluations.sum()) + base_evaluations)


# Files ---------------------------------------------------------------------------------------------------------------


def folder_path(folder: str | os.PathLike[str]) -> Path:
    """A folder of labels lies on a file system that all workers see, not at an address."""
    return Path(
        os.path.abspath(local_path(folder, "the folder of labels, on a file system that all workers see,").expanduser())
    )


def _sha(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else json.dumps(part).encode())
    return digest.hexdigest()


def refuse_foreign(path: Path) -> None:
    """Raises `ArtifactError` if a folder with other things is there.

    Files without a manifest that a killed run may have left are ours.
    """
    if path.exists() and not path.is_dir():
        raise ArtifactError(f"{path} is a file; give a folder for the labels")
    ours = (TEMPORARY, "game-", lease.NAME)
    if path.exists() and any(not item.name.startswith(ours) for item in path.iterdir()):
        raise ArtifactError(f"{path} exists and is not a folder of labels: it has no {MANIFEST}; choose another folder")


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ArtifactError(f"there is no folder of labels at {path}")
    if not (path / MANIFEST).is_file():
        raise ArtifactError(f"{path} is not a folder of labels: it has no {MANIFEST}")
    try:
        manifest = json.loads(read_whole(path / MANIFEST, MOST_JSON).decode())
    except (ValueError, OSError, RecursionError) as error:
        raise ArtifactError(f"{path / MANIFEST} is damaged ({error}); restore it from a copy") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"{path} is not a folder of labels: its {MANIFEST} does not say {FORMAT!r}")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise ArtifactError(
            f"the labels in {path} were written in format {manifest.get('format_version')}, this cortx reads "
            f"{FORMAT_VERSION}; use the cortx version named in {MANIFEST}"
        )
    return manifest


def _read_arrays(path: Path, sha256: str) -> dict[str, npt.NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        content = read_whole(path)
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error}); copy the whole folder") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ArtifactError(f"{path} is damaged: its checksum is not the one in {MANIFEST}; restore it from a copy")
    try:
        arrays: dict[str, npt.NDArray[Any]] = load(content)
    except SafetensorError as error:
        raise ArtifactError(f"{path} is damaged ({error}); restore it from a copy") from error
    return arrays
