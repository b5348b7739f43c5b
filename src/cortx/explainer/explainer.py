"""`CoRTX`: learn once, then explain every prediction in one forward pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import InputError, NotFittedError
from cortx.explainer.fit import Fitted, Request, fit_explainer
from cortx.explainer.store import LabelStore
from cortx.explanation import Explanation
from cortx.games import Game
from cortx.tables import Table, plain, read_table
from cortx.training.axioms import exact_total
from cortx.training.heads import HEADS
from cortx.training.positives import Positives
from cortx.training.recipe import Recipe, RecipeName, get_recipe

Array = npt.NDArray[np.float64]
ROWS_AT_A_TIME = 8_192


class CoRTX:
    """A real-time explainer (Chuang et al., ICLR 2023).

    Parameters
    ----------
    recipe:
        ``"default"`` (the best we can make), ``"quick"`` (the same in small, for a first look), ``"paper"`` (as the
        paper writes it), or a `Recipe`.
    heads:
        ``("attribution",)``, or ``("attribution", "ranking")`` for a trained ranking on the same encoder.
    positives:
        ``"compact"`` (paper Eq. 4), ``"random"`` or ``"farthest"``; by default what the recipe says.
    unseen:
        What to do with a category that training never saw: ``"error"``, or ``"ignore"`` to explain the row as if
        the category were none of the known ones.
    seed:
        The same seed, data and model give the same explainer on one machine.
    """

    def __init__(
        self,
        recipe: RecipeName | Recipe = "default",
        *,
        heads: tuple[str, ...] = ("attribution",),
        positives: Positives | None = None,
        unseen: Literal["error", "ignore"] = "error",
        seed: int = 0,
    ) -> None:
        self.recipe = recipe
        self.heads = heads
        self.positives = positives
        self.unseen = unseen
        self.seed = seed
        self._fitted: Fitted | None = None
        self._game: Game | None = None
        self._store: LabelStore | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn's tools expect them."""
        del deep
        return {name: getattr(self, name) for name in ("recipe", "heads", "positives", "unseen", "seed")}

    def set_params(self, **params: Any) -> CoRTX:
        for name, value in params.items():
            if name not in self.get_params():
                raise InputError(f"CoRTX has no parameter {name!r}; it has {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def fit(
        self,
        game: Game,
        X: Any,
        *,
        budget: int | None = None,
        labels: Any = None,
        n_labels: int | None = None,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> CoRTX:
        """Learns to explain the game from a table of rows.

        Parameters
        ----------
        budget:
            Model evaluations that the fit may spend, everything included: it decides what to label and how
            precisely, says so before it spends (`cortx.plan`), keeps some labels aside for the bounds of
            ``explain(confidence=...)``, and stops when more would not help (`learning_curve_`). By default 100 for
            each row, between 500,000 and 5 million. Labels are kept: fitting again with a larger budget goes on.
        labels:
            Instead of a budget: an `Explanation` (it carries its rows), or a pair: indices into X, and their values.
            All of them train or validate; `calibrate` with others gives bounds.
        n_labels:
            Instead of a budget: label so many random rows, again without bounds.
        checkpoint:
            A folder in which the fit keeps its progress; after a kill, the same call goes on from there. Training is
            removed from it when it is done; labels of a budget stay, and a larger budget starts from them.
        progress:
            Bars on stderr; by default only on a terminal.
        """
        recipe = self.resolved_recipe()
        if self.unseen not in ("error", "ignore"):
            raise InputError(f"unseen must be 'error' or 'ignore', got {self.unseen!r}")
        heads = tuple(self.heads)
        for name in heads:
            _ = HEADS[name]
        if "attribution" not in heads or len(set(heads)) != len(heads):
            raise InputError(f"heads must hold 'attribution', and each head once, got {heads}")
        if sum(given is not None for given in (budget, labels, n_labels)) > 1:
            raise InputError("budget=, labels= and n_labels= each say what to learn from; give one of them")
        request = Request(
            recipe=recipe,
            heads=heads,
            n_labels=None if n_labels is None else int(n_labels),
            budget=budget,
            seed=int(self.seed),
            folder=None if checkpoint is None else Path(checkpoint),
            show=progress,
        )
        self._attach(fit_explainer(game, X, labels, request, lambda: self._open_store(game, request)), game)
        return self

    def _open_store(self, game: Game, request: Request) -> LabelStore:
        """Labels of a folder, or those that this explainer has already paid for."""
        if request.folder is not None:
            return LabelStore.open(request.folder / "labels", game, request.seed)
        if self._store is None or self._store.key != LabelStore.key_of(game, request.seed):
            self._store = LabelStore.open(None, game, request.seed)
        self._store.check_again()
        return self._store

    def resolved_recipe(self) -> Recipe:
        """The recipe with this explainer's own choices in it."""
        recipe = get_recipe(self.recipe)
        if self.positives is None:
            return recipe
        return replace(recipe, pretrain=replace(recipe.pretrain, positives=self.positives))

    def _attach(self, fitted: Fitted, game: Game | None) -> None:
        self._fitted, self._game = fitted, game

    # What a fitted explainer knows ----------------------------------------------------------------------------

    @property
    def fitted(self) -> Fitted:
        if self._fitted is None:
            raise NotFittedError("this explainer is not fitted; call fit(game, X), or cortx.load(folder)")
        return self._fitted

    @property
    def game(self) -> Game | None:
        """The game with its model, or None when the explainer was loaded without one."""
        return self._game

    @property
    def costs_(self) -> dict[str, Any]:
        """Model evaluations and seconds of each stage."""
        return self.fitted.costs

    @property
    def quality_(self) -> dict[str, float]:
        """Error on the validation labels, which trained nothing but chose the epoch."""
        return self.fitted.quality

    @property
    def history_(self) -> dict[str, list[float]]:
        """Losses of each stage."""
        return self.fitted.history

    @property
    def feature_names_in_(self) -> npt.NDArray[np.str_]:
        return np.array(self.fitted.spec.schema.names)

    @property
    def n_features_in_(self) -> int:
        return len(self.fitted.spec.schema.columns)

    # Explaining -----------------------------------------------------------------------------------------------

    def __call__(self, X: Any, outputs: Any = None) -> Explanation:
        return self.explain(X, outputs)

    def explain(self, X: Any, outputs: Any = None) -> Explanation:
        """Attributions and rankings of rows in one forward pass.

        Attributions add up to f(x) - f(reference) when the model's output is known: from `outputs` (what the game's
        model gave for these rows), or from the model itself (one evaluation a row). With neither, the explainer
        guesses the output, and ``explanation.outputs`` is None.
        """
        started = perf_counter()
        X = plain(X)
        table, spec = self._read(X), self.fitted.spec
        known, evaluations = self._outputs(table, outputs)
        n_rows, single = len(table), len(spec.base_values) == 1
        network = self.fitted.network
        values = np.empty((n_rows, network.n_players, network.n_outputs))
        ranking = np.empty(values.shape, dtype=np.int64) if "ranking" in network.heads else None
        with torch.inference_mode():
            for start in range(0, n_rows, ROWS_AT_A_TIME):
                part = slice(start, start + ROWS_AT_A_TIME)
                codes = torch.from_numpy(table.matrix[part])
                if known is None:
                    answer = network(codes, network.guess_total(codes))
                    values[part] = answer.values.numpy()
                else:
                    total = torch.from_numpy(known[part] - spec.base_values)
                    answer = network(codes, total.to(torch.float32))
                    values[part] = exact_total(
                        answer.values, total, network.attribution.sharers(network.active(codes))
                    ).numpy()
                if ranking is not None and answer.ranking is not None:
                    ranking[part] = answer.ranking.numpy()
        every = (slice(None), slice(None), 0) if single else (slice(None),)
        return Explanation(
            values=values[every],
            base_values=np.broadcast_to(
                spec.base_values[0] if single else spec.base_values, values[:, 0][every[1:]].shape
            ),
            feature_names=spec.players.names,
            data=X,
            output_names=spec.output_names,
            outputs=None if known is None else known[:, 0] if single else known,
            evaluations=evaluations,
            seconds=perf_counter() - started,
            method="cortx",
            predicted_ranking=None if ranking is None else ranking[every],
        )

    def latent(self, X: Any) -> npt.NDArray[np.float32]:
        """The latent explanation of rows, (rows, latent); it needs neither the model nor its outputs."""
        codes = torch.from_numpy(self._read(X).matrix)
        starts = range(0, len(codes), ROWS_AT_A_TIME)
        with torch.inference_mode():
            parts = [self.fitted.network.latent(codes[start : start + ROWS_AT_A_TIME]) for start in starts]
            return torch.cat(parts).numpy()

    def _read(self, X: Any) -> Table:
        """Rows in the explainer's own codes, checked against what training saw."""
        spec = self.fitted.spec
        table = read_table(X, schema=spec.schema, what="the table")
        if len(table) == 0:
            raise InputError("the table has no rows; give at least one")
        features = self.fitted.network.features
        may_miss = set(features.missing.tolist())
        for j, column in enumerate(spec.schema.columns):
            numbers = table.matrix[:, j]
            gaps = np.flatnonzero(np.isnan(numbers))
            if len(gaps) and j not in may_miss:
                raise InputError(
                    f"column {column.name!r} is missing (NaN) in row {gaps[0]}, but no training row missed it; "
                    "fill it as you do for the model, or fit again with rows that miss it"
                )
            if column.categorical and self.unseen == "error":
                unseen = np.flatnonzero(~np.isin(numbers, _known_values(self.fitted, j)) & ~np.isnan(numbers))
                if len(unseen):
                    raise _unseen(table, j, unseen)
        return table

    def _outputs(self, table: Table, outputs: Any) -> tuple[Array | None, int]:
        """The model's outputs, (rows, outputs), if anybody knows them, and what they cost."""
        spec = self.fitted.spec
        if outputs is not None:
            known = np.asarray(outputs, dtype=np.float64)
            known = known[:, None] if known.ndim == 1 else known
            if known.shape != (len(table), len(spec.base_values)):
                raise InputError(
                    f"outputs= has shape {np.shape(outputs)}, expected ({len(table)}, {len(spec.base_values)}): "
                    f"the model's {spec.output} for each row"
                )
            if not np.isfinite(known).all():
                raise InputError("outputs= holds NaN or infinity")
            return known, 0
        if self._game is None:
            return None, 0
        spent = self._game.evaluations
        known = self._game.outputs_of(table)
        return known, self._game.evaluations - spent

    def save(self, folder: str | Path) -> Path:
        """Writes the explainer as a folder: weights, a readable manifest, the model's fingerprint. No pickle."""
        from cortx.explainer.artifact import save

        return save(self, folder)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"CoRTX({settings})"


def _known_values(fitted: Fitted, column: int) -> Array:
    features = fitted.network.features
    values: Array = features.known_value[features.known_column == column].numpy()
    return values


def _unseen(table: Table, j: int, rows: npt.NDArray[np.intp]) -> InputError:
    column = table.schema.columns[j]
    codes = np.unique(table.matrix[rows, j])[:5]
    names = [repr(column.values[int(code)]) if column.coded else f"{code:g}" for code in codes]
    return InputError(
        f"column {column.name!r} has categories that training never saw: {', '.join(names)} (first in row {rows[0]}, "
        f"{len(rows)} rows in all); fit again with them, or use CoRTX(unseen='ignore')"
    )
