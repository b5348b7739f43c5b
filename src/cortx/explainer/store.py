"""Labels that were paid for, kept by the content of their rows: in memory, and in a folder where one is given."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import ArtifactError, BudgetError, ModelError
from cortx.estimators import ESTIMATORS, Estimator
from cortx.estimators.block import Student, enumerable
from cortx.estimators.permutation import Permutation, walk_values
from cortx.estimators.shapley import shapley
from cortx.explainer.labels import Labels, exact_rows, label_facts, pack_labels, unpack_labels
from cortx.explanation import Explanation, Views, take_rows
from cortx.games import Game, Rows
from cortx.games.fingerprint import difference, game_key
from cortx.games.value_store import N_CHECKED, ValueStore, consolation
from cortx.progress import progress_bar
from cortx.seeding import stream_seed
from cortx.training.checkpoint import Checkpoint

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
MOST_AT_RISK = 500_000
"""Evaluations that a kill or a failing model may cost: labels are kept in parts of about this size."""
SLOW_AT_RISK = 2_000
"""The same for a model that is called by `Calls`; one label is the least."""


@dataclass(frozen=True)
class Ask:
    """A kind of label: the same ask gives the same row the same label."""

    method: str
    values: int
    """Values v(S) of each row, v(all) included, at most."""
    round: int = 0
    """Rounds are independent of each other, so that their labels can be averaged."""
    pairs: int | None = None
    """For "permutation": antithetic pairs of each row, however few of its players are active."""
    corrects: bool = False
    """Whether labels correct a student's answers: they are made anew for every student."""

    @classmethod
    def walk(cls, n_players: int, pairs: int, round: int = 0) -> Ask:
        """So many antithetic pairs of permutations for each row of a game with `n_players`."""
        return cls("permutation", 2 * pairs * max(1, n_players - 1) + 1, round, pairs)

    @property
    def name(self) -> str:
        if self.pairs is None:
            return self.filling_name
        return f"{self.method}-pairs-{self.pairs}-{self.round}"

    @property
    def filling_name(self) -> str:
        """The name of the ask that spends `values` on every row."""
        return f"{self.method}-{self.values}-{self.round}{'-corrects' if self.corrects else ''}"

    @property
    def estimator(self) -> str | Estimator:
        """What labels such a row: a kept label depends on its own row alone."""
        if self.pairs is not None:
            return Permutation(self.pairs)
        return "auto-kernel" if self.method == "auto" else self.method

    def costs(self, active: IntArray, game: Game) -> Array:
        """Model evaluations of rows with so many active players, (rows,), at most.

        Permutations and unbiased pairs may cost less, where several of a row ask for the same coalition.
        """
        estimator = ESTIMATORS["kernel"]() if self.method == "auto" else self.estimator
        if isinstance(estimator, str):
            estimator = ESTIMATORS[estimator]()
        ends, costs = 1 if game.own_reference is None else 2, np.zeros(game.n_players + 1)
        for n in np.unique(active[active > 1]):
            costs[n] = estimator.spends(int(n), int(min(self.values - ends, estimator.most(int(n)))))
        return np.asarray(ends + game.evaluations_per_value * costs[active])

    def like_filling(self, active: IntArray) -> npt.NDArray[np.bool_]:
        """(rows,): whether rows with so many active players got the same label when each was given all `values`.

        The first version asked so: rows with few active players then had more pairs, or all coalitions.
        """
        if self.pairs is None:
            return np.zeros(len(active), dtype=bool)
        known = {int(n): self._same(int(n)) for n in np.unique(active)}
        return np.array([known[int(n)] for n in active], dtype=bool)

    def _same(self, n: int) -> bool:
        assert self.pairs is not None
        if n < 2:
            return True
        given, walk = self.values - 1, walk_values(n, self.pairs)
        if enumerable(n, given) or enumerable(n, walk):
            return enumerable(n, given) and enumerable(n, walk)
        return given // (2 * (n - 1)) == self.pairs


@dataclass(frozen=True, eq=False)
class _Part:
    words: npt.NDArray[np.uint64]
    labels: Explanation
    """The first version did not note what each row has cost."""


@dataclass(eq=False)
class LabelStore:
    """Labels of one game and seed. What was labelled once is never paid for again."""

    key: str
    folder: Path | None = None
    _parts: dict[int, _Part] = field(default_factory=dict)
    _places: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By the name of the ask and the row: its part, and its place therein."""
    _checked: bool = True

    @staticmethod
    def key_of(game: Game, seed: int) -> str:
        """A hash of the game and the seed; the model is recognised by its outputs (`belongs_to`)."""
        return game_key(game, seed)

    @classmethod
    def open(cls, folder: str | Path | None, game: Game, seed: int) -> LabelStore:
        """The store of a folder, with what lies there; labels of another game are refused."""
        store = cls(cls.key_of(game, seed), None if folder is None else Path(folder))
        if store.folder is None:
            return store
        shelf = Checkpoint(store.folder, store.key)
        for path in sorted(store.folder.glob("kept-*.safetensors")):
            kept = shelf.load(path.stem)
            assert kept is not None
            tensors, facts = kept
            words = tensors.pop("words").numpy().view(np.uint64)
            store._append(facts["ask"], _Part(words, unpack_labels(tensors, facts, game=game, data=None)))
            store._checked = False
        return store

    def __len__(self) -> int:
        return sum(len(part.words) for part in self._parts.values())

    @property
    def evaluations(self) -> int:
        """Everything that was paid for the labels in here."""
        return sum(part.labels.evaluations for part in self._parts.values())

    def check_again(self) -> None:
        """Before a new fit: the model may have changed since."""
        self._checked = len(self) == 0

    def knows(self, ask: Ask, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        places = self._places.get(ask.name, {})
        return np.fromiter((int(word) in places for word in words), dtype=bool, count=len(words))

    def costs(self, ask: Ask, game: Game, rows: Rows, index: IntArray) -> Array:
        """Model evaluations that the kept labels of rows `index` have cost, (index,)."""
        costs = ask.costs(rows.active[index].sum(axis=1), game)
        places = self._places.get(ask.name, {})
        for i, word in enumerate(rows.words[index]):
            number, position = places[int(word)]
            noted = self._parts[number].labels.row_evaluations
            if noted is not None:
                costs[i] = noted[position]
        return costs

    def check(self, game: Game, rows: Rows) -> None:
        """Raises `ArtifactError` if the labels of the folder are of another model; in memory they are forgotten."""
        if self._checked:
            return
        if not self.belongs_to(game, rows):
            if self.folder is not None:
                raise ArtifactError(
                    f"the labels kept in {self.folder} belong to another model (its outputs for the same rows were "
                    "others); use another checkpoint folder, or delete this one"
                )
            self._parts.clear()
            self._places.clear()
            self._checked = True
            return
        self._checked = len(self.to_check(rows)) > 0  # labels of none of these rows: the next ones tell

    def to_check(self, rows: Rows) -> IntArray:
        """Rows, at most `N_CHECKED`, whose outputs tell whether the kept labels are of this model."""
        # Labels that correct a student are made anew with each: nothing is learned from the kept ones.
        names = [name for name, places in self._places.items() if places and not name.endswith("-corrects")]
        each = max(1, N_CHECKED // max(1, len(names)))
        chosen = [self._known(name, rows)[:each] for name in names]
        return np.unique(np.concatenate(chosen))[:N_CHECKED] if chosen else np.zeros(0, dtype=np.int64)

    def belongs_to(self, game: Game, rows: Rows) -> bool:
        """Whether the model still gives the outputs that were kept, as far as the rows of this table tell."""
        index = self.to_check(rows)
        if len(index) == 0:
            return True
        now = game.fingerprint(rows.table.matrix[index], rows.table.schema)
        for name in self._places:
            here = np.flatnonzero(np.isin(index, self._known(name, rows)))
            if len(here) == 0:
                continue
            kept = self._gather(name, rows, index[here]).outputs
            if now[here].shape != kept.shape or not difference(now[here], kept, game.precision).same:
                return False
        return True

    def _known(self, name: str, rows: Rows) -> IntArray:
        """Positions of the table's rows that have such a label."""
        known = np.fromiter(self._places[name], dtype=np.uint64)
        return np.flatnonzero(np.isin(rows.words, known))

    def adopt(self, ask: Ask, rows: Rows, index: IntArray) -> None:
        """Labels of rows `index` that the first version kept under another name, where they mean the same."""
        filling = self._places.get(ask.filling_name, {}) if ask.pairs is not None else {}
        if not filling:
            return
        places = self._places.setdefault(ask.name, {})
        same = ask.like_filling(rows.active[index].sum(axis=1))
        for word in rows.words[index[same]]:
            if int(word) in filling:
                places.setdefault(int(word), filling[int(word)])

    def labels(
        self,
        game: Game,
        rows: Rows,
        index: IntArray,
        ask: Ask,
        *,
        views: int,
        seed: int,
        show: bool | None,
        title: str,
        student: Student | None = None,
    ) -> Labels:
        """Labels of rows `index`: kept ones, and new ones for the rest, which are kept part by part.

        The `student` is for asks that correct one.
        """
        assert ask.corrects == (student is not None)
        self.check(game, rows)
        self.adopt(ask, rows, index)
        fresh = index[~self.knows(ask, rows.words[index])]
        _, first = np.unique(rows.words[fresh], return_index=True)  # equal rows are labelled once
        fresh = fresh[np.sort(first)]
        stream = seed if ask.round == 0 else stream_seed(seed, "round", ask.round)
        with progress_bar(title, len(fresh), show=show) as advance:
            budget = game.evaluations_per_value * ask.values
            slow = game.calls is not None
            size = int(np.clip((SLOW_AT_RISK if slow else MOST_AT_RISK) // budget, 1 if slow else 16, 1_024))
            for start in range(0, len(fresh), size):
                some = fresh[start : start + size]
                data = take_rows(rows.data, some)
                try:
                    part = shapley(
                        game, data, ask.estimator, row_budget=budget, views=views, seed=stream, progress=False,
                        student=student,
                    )  # fmt: skip
                except (ModelError, BudgetError) as error:
                    kept = "" if ask.corrects else self._consolation(error)  # of those the values are kept
                    raise type(error)(f"{error}{kept}") from error
                self._keep(ask, _Part(rows.words[some], replace(part, data=None)))
                advance(len(some), f"{game.evaluations:,} evaluations")
        return self._gather(ask.name, rows, index)

    def _consolation(self, error: Exception) -> str:
        if not len(self):
            return ""
        return consolation(f"{len(self):,} labels ({self.evaluations:,} evaluations)", self.folder, error, "call fit")

    def forget(self, ask: Ask) -> None:
        """Drops labels of an ask from memory; those of another ask that means the same stay."""
        gone = {part for part, _ in self._places.pop(ask.name, {}).values()}
        used = {part for places in self._places.values() for part, _ in places.values()} if gone else set()
        for part in gone - used:
            del self._parts[part]

    def _keep(self, ask: Ask, part: _Part) -> None:
        self._append(ask.name, part)
        # What corrects a student is made again for the next one, from values that are kept themselves.
        if self.folder is not None and not ask.corrects:
            tensors = {**pack_labels(part.labels), "words": torch.from_numpy(part.words.view(np.int64))}
            # Named by its rows, so that no part ever replaces another one.
            name = f"kept-{ask.name}-{hashlib.sha256(part.words.tobytes()).hexdigest()[:16]}"
            Checkpoint(self.folder, self.key).save(name, tensors, ask=ask.name, **label_facts(part.labels))

    def _append(self, name: str, part: _Part) -> None:
        places = self._places.setdefault(name, {})
        number = max(self._parts, default=-1) + 1
        places.update({int(word): (number, i) for i, word in enumerate(part.words)})
        self._parts[number] = part

    def _gather(self, name: str, rows: Rows, index: IntArray) -> Labels:
        """The kept labels of rows, in the order of `index`; rows that are equal cost once."""
        places = np.array([self._places[name][int(word)] for word in rows.words[index]]).reshape(-1, 2)
        used = np.unique(places[:, 0]).tolist()
        first = self._parts[used[0]].labels
        n_outputs = 1 if first.values.ndim == 2 else first.values.shape[2]
        values = np.empty((len(index), first.values.shape[1], n_outputs))
        errors, outputs = np.empty_like(values), np.empty((len(index), n_outputs))
        variance = np.empty_like(values)
        exact = np.zeros(len(index), dtype=bool)
        views: list[Views] = []
        evaluations = seconds = 0.0
        for number in used:
            part = self._parts[number].labels
            here = np.flatnonzero(places[:, 0] == number)
            position = places[here, 1]
            assert part.outputs is not None
            assert part.error_std is not None
            values[here] = part.values[position].reshape(len(here), -1, n_outputs)
            errors[here] = part.error_std[position].reshape(len(here), -1, n_outputs)
            exact[here] = exact_rows(part)[position]
            spread = np.full_like(part.values, np.nan) if part.variance is None else part.variance
            variance[here] = spread[position].reshape(len(here), -1, n_outputs)
            outputs[here] = part.outputs[position].reshape(len(here), n_outputs)
            share = len(np.unique(position)) / len(part)
            evaluations, seconds = evaluations + part.evaluations * share, seconds + part.seconds * share
            some = None if part.views is None else part.views.of_rows(position)
            if some is not None:
                views.append(replace(some, rows=here[some.rows]))
        return Labels(
            data=take_rows(rows.data, index),
            values=values,
            outputs=outputs,
            evaluations=round(evaluations),
            seconds=seconds,
            source="+".join(sorted({self._parts[number].labels.method for number in used})),
            views=in_order_of_rows(views),
            errors=errors,
            exact=exact,
            variance=variance if np.isfinite(variance).all() else None,
        )


@dataclass(frozen=True, eq=False)
class Paid:
    """All that one game has been asked before: labels, and values v(S) for a student."""

    labels: LabelStore
    values: ValueStore

    @classmethod
    def open(cls, folder: str | Path | None, game: Game, seed: int) -> Paid:
        """What lies in a folder, or nothing; what belongs to another game is refused."""
        folders = (None, None) if folder is None else (Path(folder) / "labels", Path(folder) / "values")
        return cls(LabelStore.open(folders[0], game, seed), ValueStore.open(folders[1], game))

    def begin(self) -> None:
        """Before a new fit: the model may have changed since."""
        self.labels.check_again()
        self.values.begin()

    def check_cost(self, game: Game, rows: Rows) -> int:
        """Evaluations that `check` asks for."""
        return len(self.labels.to_check(rows)) + self.values.check_cost(game, rows)

    def check(self, game: Game, rows: Rows) -> None:
        """Raises `ArtifactError` if what lies in the folder is of another model; in memory it is forgotten."""
        self.labels.check(game, rows)
        self.values.check(game, rows)


def in_order_of_rows(parts: list[Views]) -> Views | None:
    """The same order however the labels were divided into parts: training draws from it."""
    if not parts:
        return None
    views = Views.concatenate(parts)
    order = np.argsort(views.rows, kind="stable")
    return Views(views.rows[order], views.kept[order], views.values[order], views.outputs[order])


def averaged(rounds: list[Labels], asks: tuple[Ask, ...]) -> Labels:
    """One label for each row from independent rounds, weighted by cost; an exact one makes the others needless."""
    if len(rounds) == 1:
        return rounds[0]
    values = np.stack([labels.values for labels in rounds])
    errors = np.stack([_known_errors(labels) for labels in rounds])
    costs = np.repeat(np.array([[ask.values] for ask in asks], dtype=np.float64), values.shape[1], axis=1)
    exact = np.stack([_known_exact(labels) for labels in rounds])
    values, errors = merged(values, errors, costs, exact)
    return replace(
        rounds[0],
        values=values,
        errors=errors,
        variance=None,
        exact=np.asarray(exact.any(axis=0)),
        evaluations=sum(labels.evaluations for labels in rounds),
        seconds=sum(labels.seconds for labels in rounds),
        views=None,
    )


def merged(values: Array, errors: Array, costs: Array, exact: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """The same on arrays: (rounds, rows, players, outputs) twice, and what each round cost each row, (rounds, rows).

    `exact` (rounds, rows) says which rounds enumerated a row; errors of zero alone do not make the others needless. A
    round that a row has not had costs nothing, and adds nothing.
    """
    exact = exact & (costs > 0)
    shares = np.where(exact.any(axis=0), exact, costs)
    shares = (shares / shares.sum(axis=0))[..., None, None]
    # What has no share adds nothing, not even the error that nobody knows.
    squared = np.where(shares > 0, np.square(shares * errors), 0.0).sum(axis=0)
    return (shares * values).sum(axis=0), np.sqrt(squared)


def _known_exact(labels: Labels) -> npt.NDArray[np.bool_]:
    return np.zeros(len(labels), dtype=bool) if labels.exact is None else labels.exact


def _known_errors(labels: Labels) -> Array:
    assert labels.errors is not None
    return labels.errors
