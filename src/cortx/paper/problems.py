"""What the study explains: a data set, a target model, a reference and an output; and the labels of its rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import nn

from cortx.errors import InputError
from cortx.explainer.labels import Labels
from cortx.explainer.store import Ask, LabelStore, averaged
from cortx.explanation import Explanation
from cortx.games import Game
from cortx.metrics import l2_distance, rank_accuracy, single_drops, squared_l2
from cortx.paper.bankruptcy import load_bankruptcy
from cortx.paper.census import load_adult, load_census
from cortx.paper.grid import AUTHORS, LOG_ODDS, WORDS
from cortx.paper.sources import Table, default_folder
from cortx.paper.targets import load_or_train_autoint, load_or_train_mlp, roc_auc
from cortx.seeding import numpy_generator

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Part = Literal["train", "test"]

PILOT = 2_048
"""Evaluations of each row that tell how many more the labels of Bankruptcy need."""
RELATIVE_ERROR = 0.01
"""Their mean relative standard error, at most."""
PILOT_ROWS = 512


@dataclass(frozen=True, eq=False)
class Problem:
    """One data set in one setting. Labels are kept in `folder` under a name that depends on data, model and setting."""

    data: str
    setting: str
    model: nn.Module
    game: Game
    x_train: npt.NDArray[Any]
    x_test: npt.NDArray[Any]
    target: Mapping[str, Any]
    """The model: where it comes from, and how well it predicts."""
    folder: Path

    @cached_property
    def key(self) -> str:
        """A hash of the rows and of the model's weights."""
        parts = hashlib.sha256(f"{self.data}\n{self.setting}".encode())
        weights = [tensor.cpu().numpy() for tensor in self.model.state_dict().values()]
        for array in (self.x_train, self.x_test, *weights):
            parts.update(np.ascontiguousarray(array).tobytes())
        return parts.hexdigest()[:16]

    def rows(self, part: Part) -> npt.NDArray[Any]:
        return self.x_train if part == "train" else self.x_test

    def chosen(self, share: float, seed: int) -> IntArray:
        """The labelled training rows of a share: random, and part of those of any larger share."""
        order = numpy_generator(seed, "labelled rows").permutation(len(self.x_train))
        return order[: round(share * len(order))]

    def labels(self, part: Part, index: IntArray | None = None, *, show: bool | None = False) -> Labels:
        """Precise labels, kept on disk; a killed run goes on from the parts that are there.

        Census: exact. Bankruptcy: antithetic permutations, so many that the mean relative standard error is below 1%.
        Nobody's cost: `Labels.evaluations` says what they cost.
        """
        rows = self.game.rows(self.rows(part))
        index = np.arange(len(rows)) if index is None else index
        spent, asks = self.game.evaluations, self._asks
        store = self._store(part)
        rounds = [
            store.labels(self.game, rows, index, ask, views=0, seed=0, show=show, title=f"labels of {part} rows")
            for ask in asks
        ]
        self.game.evaluations = spent
        return averaged(rounds, asks)

    def _store(self, part: Part) -> LabelStore:
        self.game.rows(self.x_test[:1])  # a zero reference learns its columns from the first rows
        return LabelStore.open(self.folder / "labels" / f"{self.data}-{self.key}-{part}", self.game, seed=0)

    @cached_property
    def _asks(self) -> tuple[Ask, ...]:
        """What a precise label takes: all coalitions; or a pilot, and as much more as the errors of some rows say."""
        if self.data == "census":
            return (Ask("exact", 2**self.game.n_players),)
        pilot = Ask("permutation", PILOT)
        rows, some = self.game.rows(self.x_test), np.arange(min(PILOT_ROWS, len(self.x_test)))
        store = self._store("test")
        # Two pilots, for standard errors of few draws are made large enough for bounds, several times too large here.
        one, two = (
            store.labels(self.game, rows, some, ask, views=0, seed=0, show=False, title="labels of a pilot").values
            for ask in (pilot, replace(pilot, round=2))
        )
        # Errors fall with the root of the cost; a little more than that, since these are estimates from few rows.
        total = 1.1 * PILOT * (relative_noise(one, two) / RELATIVE_ERROR) ** 2
        return pilot, Ask("permutation", max(PILOT, int(total) - PILOT), round=1)

    @cached_property
    def truth(self) -> Array:
        """The labels of all test rows, (rows, players)."""
        return self.labels("test").values[..., 0]

    @cached_property
    def drops(self) -> Array:
        """What the output of each test row loses without each player, for faithfulness; not counted as cost."""
        spent = self.game.evaluations
        drops = single_drops(self.game, self.x_test)
        self.game.evaluations = spent
        return drops


def closeness(shown: Explanation | Array, truth: Array) -> dict[str, float]:
    """Means over rows of the distances to labels, and of Rank ACC."""
    return {
        "l2": float(l2_distance(shown, truth).mean()),
        "squared_l2": float(squared_l2(shown, truth).mean()),
        "rank_accuracy": float(rank_accuracy(shown, truth).mean()),
    }


def relative_noise(one: Array, two: Array) -> float:
    """The mean over rows of |error| / |values|, from two independent labels of each row, (rows, players, outputs)."""
    size = np.linalg.norm((one + two) / 2, axis=1)
    return float((np.linalg.norm(one - two, axis=1) / np.sqrt(2) / np.maximum(size, 1e-12)).mean())


def relative_error(labels: Labels) -> float:
    """The mean over rows of |standard errors| / |values|."""
    assert labels.errors is not None
    size = np.linalg.norm(labels.values, axis=1)
    return float((np.linalg.norm(labels.errors, axis=1) / np.maximum(size, 1e-12)).mean())


def make_problem(
    data: str,
    setting: str,
    folder: str | Path,
    *,
    train_rows: int | None = None,
    test_rows: int | None = None,
    device: str = "cpu",
) -> Problem:
    """Loads the data and the target; `folder` keeps trained targets and labels. Fewer rows are a random part."""
    folder = Path(folder)
    if data == "census" and setting in (AUTHORS, WORDS):
        model, table, facts = _census(folder)
    elif data == "bankruptcy" and setting == LOG_ODDS:
        model, table, facts = _bankruptcy(folder)
    else:
        raise InputError(f"there is no setting {setting!r} of {data!r}")
    x_train, x_test = (
        rows if most is None else rows[numpy_generator(0, "part", name).choice(len(rows), most, replace=False)]
        for name, rows, most in (("train", table.x_train, train_rows), ("test", table.x_test, test_rows))
    )
    reference = "zero" if setting == AUTHORS else table.x_train.astype(np.float64).mean(axis=0)
    output: Any = "probability" if setting == AUTHORS else "raw"
    game = Game(model.to(device), reference=reference, output=output, categorical=table.categorical)
    return Problem(data, setting, model, game, x_train, x_test, facts, folder)


def _census(folder: Path) -> tuple[nn.Module, Table, dict[str, Any]]:
    """The published AutoInt where its files are; else one that is trained here from the public table."""
    if (default_folder() / "census-autoint" / "autoint.safetensors").is_file():
        found = load_census()
        table = Table(
            "census", found.x_train, found.x_test, found.y_train, found.y_test, found.feature_names,
            tuple(found.categorical),
        )  # fmt: skip
        auc = roc_auc(table.y_test, found.outputs_test)
        return found.model, table, {"model": "AutoInt", "weights": "published", "auc_test": auc}
    table = load_adult()
    trained = load_or_train_autoint(table, folder / "targets")
    return trained.model, table, {"model": "AutoInt", "weights": "trained here", **asdict(trained.report)}


def _bankruptcy(folder: Path) -> tuple[nn.Module, Table, dict[str, Any]]:
    table = load_bankruptcy()
    trained = load_or_train_mlp(table, folder / "targets")
    return trained.model, table, {"model": "MLP", "weights": "trained here", **asdict(trained.report)}
