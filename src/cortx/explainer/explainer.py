"""`CoRTX`: learn once, then explain every prediction in one forward pass."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import InputError, NotFittedError
from cortx.estimators.block import Student
from cortx.estimators.shapley import shapley
from cortx.estimators.tree import trees_of
from cortx.explainer.budget import Plan, make_plan, total_budget
from cortx.explainer.calibration import Calibration
from cortx.explainer.control import METHOD as CONTROL
from cortx.explainer.control import control_budget
from cortx.explainer.fit import Fitted, Request, calibrate_network, fit_explainer
from cortx.explainer.game_difference import category_difference, game_difference, name_difference
from cortx.explainer.labels import enough_labels, given_labels, label_budget, refuse_shrunk
from cortx.explainer.material import cost
from cortx.explainer.possible import largest_value, possible_bounds, possible_outputs, possible_values
from cortx.explainer.reading import Seen, given_outputs
from cortx.explainer.refine import Bounds, Predicted, Refinable, refine
from cortx.explainer.session import Session
from cortx.explainer.store import LabelStore, Paid
from cortx.explanation import Explanation
from cortx.games import Game
from cortx.images import Images, ImageSchema
from cortx.seeding import whole_seed
from cortx.storage import local_path
from cortx.tables import Schema, Table, plain
from cortx.threads import limited, torch_threads
from cortx.training.axioms import exact_total
from cortx.training.heads import HEADS
from cortx.training.heads.ranking import RankingHead
from cortx.training.parallel import processes
from cortx.training.positives import Positives
from cortx.training.recipe import Recipe, RecipeName, get_recipe
from cortx.training.resnet import settle
from cortx.training.student import NetworkStudent

if TYPE_CHECKING:
    from cortx.explainer.evaluation import Slices
    from cortx.explainer.report import QualityReport

logger = logging.getLogger("cortx")
Array = npt.NDArray[np.float64]
ROWS_AT_A_TIME = 8_192
REFIT_SHARE = 4
"""`refit` spends one of so many parts of what `fit` would."""
EARLIER = "earlier calibration"
"""In `costs_`: what calibrations cost that `calibrate` has replaced."""
P = ParamSpec("P")
T = TypeVar("T")


def _on_its_threads(method: Callable[Concatenate[CoRTX, P], T]) -> Callable[Concatenate[CoRTX, P], T]:
    """A method that computes with the threads that the explainer was given."""

    @wraps(method)
    def limited_to_them(explainer: CoRTX, /, *args: P.args, **named: P.kwargs) -> T:
        with limited(explainer.threads):
            return method(explainer, *args, **named)

    return limited_to_them


class CoRTX:
    """A real-time explainer (Chuang et al., ICLR 2023).

    Parameters
    ----------
    recipe:
        ``"default"`` (the best that a CPU makes in minutes), ``"quick"`` (the same in small, for a first look),
        ``"thorough"`` (tables: the same in large, for a GPU), ``"paper"`` (as the paper writes it), or a `Recipe`.
    heads:
        ``("attribution",)``, or ``("attribution", "ranking")`` for a trained ranking on the same encoder.
    positives:
        ``"compact"`` (paper Eq. 4), ``"random"`` or ``"farthest"``; by default what the recipe says.
    unseen:
        What to do with a category that training never saw: ``"error"``, or ``"ignore"`` to explain the row as if
        the category were none of the known ones.
    seed:
        The same seed, data and model give the same explainer on one machine, whatever the chunks in which the model is
        asked. Where a model's outputs themselves depend on the chunk (float32 rounds differently), so does the
        explainer. On a GPU, which adds in any order, it is the same up to rounding.
    device:
        Where the network is trained and explains: "cpu", or another name that torch knows, such as "cuda". The model
        stays where it is. `to` moves a fitted explainer.
    threads:
        Threads that fitting and explaining use; by default CORTX_THREADS, or else as many as there are CPUs (affinity,
        the container's quota), at most OMP_NUM_THREADS and what ``torch.set_num_threads`` says, and one for work in
        small operations, such as training on a table. Numbers differ by rounding at most. Servers and workers
        have their own.
    """

    def __init__(
        self,
        recipe: RecipeName | Recipe = "default",
        *,
        heads: tuple[str, ...] = ("attribution",),
        positives: Positives | None = None,
        unseen: Literal["error", "ignore"] = "error",
        seed: int = 0,
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        self.recipe = recipe
        self.heads = heads
        self.positives = positives
        self.unseen = unseen
        self.seed = seed
        self.device = device
        self.threads = threads
        self._fitted: Fitted | None = None
        self._game: Game | None = None
        self._paid: Paid | None = None
        self._paid_by: tuple[Game, Fitted | None] | None = None
        """The game whose values and labels are kept, and the fit that a refit started from."""
        self._writes = True
        self._session: tuple[tuple[Any, ...], Session | None] | None = None
        self._seen: tuple[tuple[Any, ...], Seen] | None = None
        self._told_of_strange = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # an open session cannot be copied; it is made again when asked for

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn's tools expect them."""
        del deep
        return {
            name: getattr(self, name)
            for name in ("recipe", "heads", "positives", "unseen", "seed", "device", "threads")
        }

    def set_params(self, **params: Any) -> CoRTX:
        for name, value in params.items():
            if name not in self.get_params():
                raise InputError(f"CoRTX has no parameter {name!r}; it has {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    @_on_its_threads
    def fit(
        self,
        game: Game,
        X: Any,
        *,
        budget: int | None = None,
        labels: Any = None,
        leave_out: Any = None,
        n_labels: int | None = None,
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> CoRTX:
        """Learns to explain the game from a table of rows.

        Under torchrun all processes make the same call: each computes its share of every batch, and each ends up with
        the same explainer, of which `save` writes one. Labels must be there already (`labels`).

        Parameters
        ----------
        X:
            The table. With `labels` also a `cortx.distributed.ParquetRows`, which is never in memory as a whole: a
            random part of it gives scales, categories and profile, and pre-training sees the rows as they come.
        budget:
            Model evaluations that the fit may spend, everything included (also the base value and the probe rows by
            which the model is recognised): it says before it spends what for (`plan`). Most of it are values v(S) from
            which a student learns the game; its labels of these and of made-up rows teach the explainer. Some rows are
            kept aside for the bounds of ``explain(confidence=...)``. A call that would pass the budget is never made:
            `BudgetError`, and what was paid for stays. A fit ends sooner only where more values would not help. By
            default 4 for each row, between 50,000 and a million (recipes without a student: 100, between 500,000 and
            5 million), times the rows of a background: 100 of these make 5 million of 50,000. All values are kept:
            fitting again with a larger budget goes on, and what it uses again counts as spent.
            A model of trees whose exact values are free (``shapley(method="tree")``) teaches by these, and only checks
            are paid for. It needs no learning (`cortx.TreeExplainer`); a network may still be wanted for tiny latency,
            or in place of a huge forest.
            Images: by default 1,000 for each, up to 50 million; all of it is spent, on fresh labels in every step.
        labels:
            Instead of a budget: an `Explanation` (it carries its rows), a folder that `cortx.distributed.label` wrote,
            or a pair: indices into X, and their values. All of them train or validate; `calibrate` with others gives
            bounds.
        leave_out:
            With `labels`: rows that must teach nothing, wherever they stand in X: a table, or an `Explanation` with its
            rows. Those that `calibrate` is given later belong here, or bounds are too narrow for fresh rows:
            ``learn, rest = folder.split()``, ``fit(game, X, labels=learn, leave_out=rest)``, ``calibrate(rest)``.
        n_labels:
            Instead of a budget: label so many random rows, again without bounds.
        checkpoint:
            A folder in which the fit keeps its progress; after a kill, the same call goes on from there, under torchrun
            in as many processes as before (another number is refused if it changes how the model rounds). Training is
            removed from it when it is done; labels and values of a budget stay, and a larger budget starts from them. A
            student is trained again after a kill, from its values: that repeats computation, and the model is asked
            only for what recognises it (its base value, and a few values that are kept).
        progress:
            Bars on stderr; by default only on a terminal.
        """
        _check_game(game)
        recipe = self.resolved_recipe(images=game.of_images)
        if self.unseen not in ("error", "ignore"):
            raise InputError(f"unseen must be 'error' or 'ignore', got {self.unseen!r}")
        heads = tuple(self.heads)
        for name in heads:
            _ = HEADS[name]
        if "attribution" not in heads or len(set(heads)) != len(heads):
            raise InputError(f"heads must hold 'attribution', and each head once, got {heads}")
        if game.of_images and heads != ("attribution",):
            raise InputError(f"an explainer of images has the head 'attribution' alone, got {heads}")
        if sum(given is not None for given in (budget, labels, n_labels)) > 1:
            raise InputError("budget=, labels= and n_labels= each say what to learn from; give one of them")
        if leave_out is not None and labels is None:
            raise InputError("leave_out= belongs to labels=; a budget keeps its own rows aside")
        kept_in = _checkpoint_folder(checkpoint)
        if isinstance(labels, (str, os.PathLike)):
            labels = local_path(labels, "labels=")
        if trees_of(game):
            logger.warning(
                "this model needs no learned explainer: cortx.shapley(game, X, method='tree') gives its exact values "
                "at once, and cortx.TreeExplainer(game, X) saves, serves and exports them. What is fitted now is a "
                "network that imitates them, for tiny latency or in place of a huge forest"
            )
        self._fit(game, X, labels, recipe, heads, budget, n_labels, kept_in, leave_out, progress)
        return self

    @_on_its_threads
    def refit(
        self, game: Game, X: Any, *, budget: int | None = None, checkpoint: str | Path | None = None,
        progress: bool | None = None,
    ) -> CoRTX:  # fmt: skip
        """Learns the game of a model that was trained again, starting from what this explainer and its student know.

        Columns, players and outputs must be those of the fit, and no category may be new; the reference
        may have moved. The inputs keep their scales. Networks that start from known ones are trained for
        half as many steps, without pre-training. Bounds, costs and quality are measured anew, and nothing of the old
        model's values is used (those in a checkpoint folder are compared with the model first).

        Parameters
        ----------
        budget:
            Model evaluations, everything included; by default a quarter of what `fit` would spend.
        """
        fitted = self.fitted
        _check_game(game)
        recipe = self.resolved_recipe(images=game.of_images)
        if fitted.student is not None and (tuple(self.heads), recipe) != (fitted.heads, fitted.recipe):
            raise InputError(
                "refit() goes on with the networks of the fit, and recipe= or heads= of this explainer were set anew "
                "since; call fit(game, X)"
            )
        if fitted.student is None or recipe.student is None:
            raise InputError(
                "refit() starts from the student of a fit with budget=, and this explainer has none (a fit to trees "
                "needs none, and buys nothing); call fit(game, X)"
            )
        assert isinstance(fitted.spec.schema, Schema)
        game.take_codes(fitted.spec.schema)
        rows = game.rows(X)
        assert isinstance(rows.table.schema, Schema)
        names = fitted.spec.schema.names
        differs = name_difference(names, rows.table.schema.names)
        if differs is None and names != rows.table.schema.names:
            differs = f"the order of columns: it was {', '.join(names)}"
        if differs is None:
            differs = game_difference(fitted.spec, game.spec(rows.table.schema), reference=False)
        if differs is None and (len(game.absent) > 1) != (len(fitted.spec.absent) > 1):
            differs = "whether absent features have one reference or a background"
        if differs is None:
            differs = category_difference(fitted.spec.schema, rows.table.schema)
        if differs is not None or game.n_outputs != len(fitted.spec.base_values):
            raise InputError(
                f"refit() is for the same game with another model, and this one differs in "
                f"{differs or 'the number of outputs'}; call fit(game, X)"
            )
        if budget is None:
            budget = -(-total_budget(game, rows, None, recipe) // REFIT_SHARE)
        kept_in = _checkpoint_folder(checkpoint)
        self._fit(game, X, None, recipe, tuple(self.heads), budget, None, kept_in, None, progress, start=fitted)
        return self

    def _fit(
        self,
        game: Game,
        X: Any,
        labels: Any,
        recipe: Recipe,
        heads: tuple[str, ...],
        budget: int | None,
        n_labels: int | None,
        folder: Path | None,
        leave_out: Any,
        progress: bool | None,
        start: Fitted | None = None,
    ) -> None:
        with processes(self.device) as together:
            request = Request(
                recipe=recipe,
                heads=heads,
                n_labels=None if n_labels is None else int(n_labels),
                budget=budget,
                seed=whole_seed(self.seed),
                device=usable_device(together.own_device(self.device)),
                folder=folder,
                show=progress if together.first else False,
                leave_out=leave_out,
                together=together,
                start=start,
            )
            self._attach(fit_explainer(game, X, labels, request, lambda: self._paid_for(game, request)), game)
            self._writes = together.first

    def _paid_for(self, game: Game, request: Request) -> Paid:
        """What lies in a folder, or what this explainer has already paid for."""
        if request.folder is not None:
            return Paid.open(request.folder, game, request.seed)
        if self._paid is None or not self._is_paid(game, request.seed, request.start):
            self._paid = Paid.open(None, game, request.seed)
        self._paid_by = (game, request.start)
        self._paid.begin()
        return self._paid

    def _is_paid(self, game: Game, seed: int, start: Fitted | None = None) -> bool:
        """Whether what is kept may be this game's. A refit goes on from a refit of its own that was cut off, alone."""
        if self._paid is None or self._paid_by is None or self._paid.labels.key != LabelStore.key_of(game, seed):
            return False
        before, before_start = self._paid_by
        return game.same_model(before) and (start is None or start is before_start)

    def plan(self, game: Game, X: Any, budget: int | None = None) -> Plan:
        """How `fit` would spend a budget; print it. It asks the model for its base value only."""
        _check_game(game)
        recipe = self.resolved_recipe(images=game.of_images)
        rows = game.rows(X)
        seed, paid = whole_seed(self.seed), self._paid
        kept = self._is_paid(game, seed)
        if paid is not None and kept:
            paid.begin()
        n_checked = paid.check_cost(game, rows) if paid is not None and kept else 0
        return make_plan(game, rows, budget, recipe, seed, n_checked)

    @_on_its_threads
    def calibrate(self, rows: Any, *, row_budget: int | None = None, progress: bool | None = None) -> CoRTX:
        """Makes the bounds of ``explain(confidence=...)`` from rows that the fit has not seen, and keeps them.

        Parameters
        ----------
        rows:
            An `Explanation` with its rows and standard errors (from `cortx.shapley`; not method "amortized", whose
            labels lie too near to the explainer, unless unbiased), or a table to label here, with the model. Bounds
            hold for rows like these, so take recent ones: new rows give new bounds. Rows of the training table count
            as unseen if the fit was told to `leave_out` them. `Explanation.weights` say how many rows each stands for.
        row_budget:
            Model evaluations for the label of each row of a table: with a student by default 257 and 33 at least,
            without one 8,192, or more with a large background. Trying refinement on the rows comes on top: up
            to 2,048 values of each, or a quarter of those of a sampled label (with a student as many as of the label).
        """
        fitted, game = self.fitted, self._game
        if game is None:
            raise InputError("calibrate() needs the model; load the explainer with model=...")
        if isinstance(rows, Explanation):
            refuse_shrunk(rows)
            if rows.data is not None:
                self._read(plain(rows.data))
        else:
            rows = plain(rows)
            enough_labels(len(self._read(rows)))
            if fitted.student is not None:
                row_budget = control_budget(game, rows, row_budget)
            elif row_budget is None:
                row_budget = label_budget(game)
            rows = shapley(
                game, rows, "auto" if fitted.student is None else CONTROL, row_budget=row_budget, views=0,
                seed=self.seed, student=fitted.student, progress=progress,
            )  # fmt: skip
        spent = game.evaluations
        labels = given_labels(rows, game, None, None)
        calibration = calibrate_network(
            fitted.network, game, fitted.spec.schema, labels, fitted.seed, student=fitted.student
        )
        spent = labels.evaluations + game.evaluations - spent
        costs = {**fitted.costs, "calibration": cost(spent, labels.seconds, rows=len(labels))}
        before = [fitted.costs[name] for name in ("calibration", EARLIER) if name in fitted.costs]
        if before:
            asked, seconds = (sum(part[fact] for part in before) for fact in ("evaluations", "seconds"))
            costs[EARLIER] = cost(asked, seconds)
        costs["total_evaluations"] = sum(part["evaluations"] for part in costs.values() if isinstance(part, dict))
        self._fitted = replace(fitted, calibration=calibration, costs=costs)
        return self

    def resolved_recipe(self, *, images: bool = False) -> Recipe:
        """The recipe with this explainer's own choices in it, for tables or for images."""
        recipe = get_recipe(self.recipe, images=images)
        if self.positives is None:
            return recipe
        return replace(recipe, pretrain=replace(recipe.pretrain, positives=self.positives))

    def to(self, device: str) -> CoRTX:
        """Moves the network to another device, such as "cuda"; it explains there from now on."""
        settle(self.fitted.network, usable_device(device))
        if isinstance(self.fitted.student, NetworkStudent):
            self.fitted.student.network.to(usable_device(device))
        self.device, self._session = device, None
        return self

    def _attach(self, fitted: Fitted, game: Game | None) -> None:
        self._fitted, self._game, self._told_of_strange = fitted, game, False

    # What a fitted explainer knows ----------------------------------------------------------------------------

    @property
    def fitted(self) -> Fitted:
        if self._fitted is None:
            raise NotFittedError("this explainer is not fitted; call fit(game, X), or cortx.load(folder)")
        return self._fitted

    is_exact = False
    """Whether it computes values instead of predicting them (`cortx.TreeExplainer`)."""

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
        """Error on the validation labels, which trained nothing; without a student these labels chose the epoch.

        ``l2`` is the mean distance, ``relative_l2`` the same as a share of the labels' mean norm, ``label_norm``:
        NaN where that is zero, as for a constant model. Portable folders and the server have null instead. With a
        student the labels are sampled, and their own mean error, ``label_noise``, is a part of the distance.
        """
        return self.fitted.quality

    @property
    def student_(self) -> Student | None:
        """The student of a fit with a budget, for ``cortx.shapley(..., student=)``; None without one."""
        return self.fitted.student

    @property
    def history_(self) -> dict[str, list[float]]:
        """Losses of each stage."""
        return self.fitted.history

    @property
    def learning_curve_(self) -> list[dict[str, float]]:
        """Validation error by training labels and evaluations, as a budget was spent (`cortx.plots.learning_curve`).

        From 400 training labels on it has points on the way, from short trainings; the last is the fit itself. Each
        has ``labels``, ``evaluations``, ``l2`` and ``relative_l2``, a share of the validation labels' norm (NaN where
        that is zero).
        """
        return self.fitted.curve

    @property
    def calibration(self) -> Calibration:
        """What the bounds rest on."""
        if self.fitted.calibration is None:
            raise InputError(
                "this explainer is not calibrated, so it has no bounds: fit it with budget=..., or call "
                "calibrate(rows) with rows that the fit has not seen"
            )
        return self.fitted.calibration

    @property
    def feature_names_in_(self) -> npt.NDArray[np.str_]:
        """The columns of the table; for images, their parts."""
        spec = self.fitted.spec
        return np.array(spec.players.names if isinstance(spec.schema, ImageSchema) else spec.schema.names)

    @property
    def n_features_in_(self) -> int:
        schema = self.fitted.spec.schema
        return schema.n_numbers if isinstance(schema, ImageSchema) else len(schema.columns)

    # Explaining -----------------------------------------------------------------------------------------------

    def __call__(self, X: Any, outputs: Any = None, *, confidence: float | None = None) -> Explanation:
        return self.explain(X, outputs, confidence=confidence)

    @_on_its_threads
    def explain(
        self,
        X: Any,
        outputs: Any = None,
        *,
        confidence: float | None = None,
        tolerance: float | None = None,
        row_budget: int | None = None,
        progress: bool | None = None,
    ) -> Explanation:
        """Attributions and rankings of rows in one forward pass.

        Attributions add up to f(x) - f(reference) when the model's output is known: from `outputs` (what the game's
        model gave for these rows), or from the model itself (one evaluation a row). With neither, the explainer
        guesses the output, and ``explanation.outputs`` is None. Attributions of a probability lie between -1 and 1.

        A `cortx.errors.StrangeRows` warns, once for each explainer, with the share of rows outside of what training
        saw: a number beyond the training values by more than a quarter of their range, or a category that training
        never had (``unseen="ignore"``); of images, such brightness, contrast or colour.

        Parameters
        ----------
        confidence:
            Bounds that hold for at least this share of fresh rows: ``error_bound`` on a row's l2 error,
            ``lower_bounds`` and ``upper_bounds`` on all its values at once, and from these ``stable_ranks``. Needs
            a calibrated explainer (`fit` with a budget, or `calibrate`) and the model's output. For several outputs
            they hold for each.
        tolerance:
            Rows whose error bound is larger are refined with the model (``refined`` says which), starting from the
            explainer's answer, until it no longer is or nothing more is allowed; a warning says how many stay above.
            No bound of a refined row is narrower than the rounding of the model's outputs.
            ``explanation.evaluations`` is the price. Bounds hold with the same confidence (then 0.9 unless given)
            whenever a row stops. A row is refined as far as calibration reached, and beyond that only by asking for
            all coalitions, if `row_budget` pays for them.
        row_budget:
            Model evaluations that refining one row may cost, at most, its own output aside; by default 65,536 (times
            the rows of a background).
        """
        started = perf_counter()
        X = plain(X)
        table, spec = self._read(X), self.fitted.spec
        self._told_of_strange = self._told_of_strange or self.seen.warn_of_strange(table, calls=2)
        if tolerance is not None:
            confidence = 0.9 if confidence is None else confidence
            if isinstance(tolerance, (bool, str)) or not tolerance > 0:
                raise InputError(f"tolerance must be positive, got {tolerance!r}")
            if row_budget is not None and (
                isinstance(row_budget, bool) or not isinstance(row_budget, (int, np.integer))
            ):
                raise InputError(f"row_budget must be a whole number of model evaluations, got {row_budget!r}")
            if self._game is None:
                raise InputError(
                    "tolerance= refines rows with the model, and none is attached; load the explainer with model=..."
                )
        elif row_budget is not None:
            raise InputError(
                "row_budget= limits what tolerance= may spend on a row; give tolerance= too, or leave it out"
            )
        factors = None
        if confidence is not None:
            factors = self.calibration.factors(confidence, refined=tolerance is not None)
        known, evaluations = self._outputs(table, outputs)
        if factors is not None and known is None:
            raise InputError(
                "bounds hold for explanations that add up to the model's output; give outputs=..., or load the "
                "explainer with model=..."
            )
        empty, asked = self._empty(table)
        evaluations += asked
        answer = self._answer(table, known, empty, errors=factors is not None)
        bounds = None if factors is None else answer.bounds(*factors)
        if tolerance is not None and bounds is not None:
            assert self._game is not None
            assert known is not None
            assert confidence is not None
            assert self.calibration.rounds is not None
            spent = self._game.evaluations
            fitted = self.fitted
            some = Refinable(self._game, self._game.rows(X), known, empty, answer, fitted.seed, fitted.student)
            answer, bounds = refine(
                some, bounds, self.calibration.round_factors(confidence), self.calibration.rounds.longest,
                tolerance=float(tolerance), row_budget=row_budget, show=progress,
            )  # fmt: skip
            evaluations += self._game.evaluations - spent
        if bounds is not None and known is not None:
            answer, bounds = _possible(answer, bounds, known - empty, largest_value(spec.output))
        single = len(spec.base_values) == 1

        def shown(array: Any) -> Any:
            """Without the axis of outputs where there is one."""
            return None if array is None else array[..., 0] if single else array

        return Explanation(
            values=shown(answer.values),
            base_values=shown(empty),
            feature_names=spec.players.names,
            data=X,
            output_names=spec.output_names,
            outputs=shown(known),
            evaluations=evaluations,
            seconds=perf_counter() - started,
            method="cortx",
            predicted_ranking=shown(answer.ranking),
            lower_bounds=None if bounds is None else shown(bounds.lower),
            upper_bounds=None if bounds is None else shown(bounds.upper),
            error_bound=None if bounds is None else shown(bounds.error),
            confidence=confidence,
            refined=None if bounds is None else bounds.refined,
        )

    @_on_its_threads
    def attribute(self, images: torch.Tensor, outputs: torch.Tensor | None = None) -> torch.Tensor:
        """Attributions of images that are on the explainer's device already: a tensor, (images, players, outputs).

        For pipelines in which nothing leaves the device: float images in the fitted shape and range, which are not
        looked at; `outputs`, (images, outputs), as the model gave them. Without them the attached model is asked,
        and without one they are guessed. The sums agree to float32.
        """
        network, spec = self.fitted.network, self.fitted.spec
        if not isinstance(spec.schema, ImageSchema):
            raise InputError("attribute() is for explainers of images; explain() takes tables")
        if tuple(images.shape[1:]) != spec.schema.shape or not images.is_floating_point():
            raise InputError(
                f"images are {images.dtype} of shape {tuple(images.shape)}, expected floats of shape (images, "
                f"{', '.join(map(str, spec.schema.shape))})"
            )
        images = images.to(network.device)
        if outputs is not None and tuple(outputs.shape) != (len(images), len(spec.base_values)):
            raise InputError(
                f"outputs have shape {tuple(outputs.shape)}, expected ({len(images)}, {len(spec.base_values)})"
            )
        flat, game = images.flatten(1), self._game
        if game is not None and (outputs is None or spec.own_reference is not None):
            ends = torch.ones((len(flat), 2, game.n_players), dtype=torch.bool, device=game.device)
            ends[:, 1] = False
            ends = ends if spec.own_reference is not None else ends[:, :1]
            asked = game.values_of(flat.to(game.device), ends).to(network.device)
            outputs = asked[:, 0] if outputs is None else outputs
        if spec.own_reference is None:
            empty = torch.from_numpy(spec.base_values).to(network.device, torch.float32)
        elif game is None:
            raise InputError(f"the reference {spec.own_reference!r} needs the model; load the explainer with model=...")
        else:
            empty = asked[:, 1]
        with torch.inference_mode():
            if outputs is None:
                outputs = possible_outputs(network.guess_total(flat) + empty, spec.output)
            total = outputs.to(network.device, torch.float32) - empty
            values: torch.Tensor = possible_values(network(flat, total).values, total, largest_value(spec.output))
            return values

    @_on_its_threads
    def prior(self, X: Any, outputs: Any) -> tuple[Array, Array]:
        """Attributions and how far off each usually is, (rows, players, outputs): where an estimator may start.

        ``cortx.shapley(game, X, method="amortized", explainer=explainer)`` asks for it.
        """
        table = self._read(plain(X))
        known, _ = self._outputs(table, outputs)
        answer = self._answer(table, known, self._empty(table)[0], errors=True)
        assert answer.typical is not None
        return answer.values, answer.typical

    def _empty(self, table: Table | Images) -> tuple[Array, int]:
        """v(none) of rows, (rows, outputs), and what it cost: images that are their own references need the model."""
        spec = self.fitted.spec
        if spec.own_reference is None:
            return np.broadcast_to(spec.base_values, (len(table), len(spec.base_values))), 0
        if self._game is None:
            raise InputError(
                f"the reference {spec.own_reference!r} is made from each image, so explaining needs the model; load "
                "the explainer with model=..."
            )
        spent = self._game.evaluations
        return self._game.empty_of(table), self._game.evaluations - spent

    def _answer(self, table: Table | Images, known: Array | None, empty: Array, *, errors: bool) -> Predicted:
        """The network on all rows, in chunks; `errors` asks how far off it may be.

        In onnxruntime on a CPU where it is installed, which is faster (benchmarks/runtime.py), else in torch.
        """
        outputs = self._guess_outputs(table, empty) if known is None else known
        session, most = self._onnxruntime(), largest_value(self.fitted.spec.output)
        if session is None:
            return self._torch_answer(table, outputs, empty, errors=errors, most=most)
        answer = self._session_answer(session, table, outputs, errors=errors)
        return replace(answer, values=possible_values(answer.values, outputs - empty, most))

    def _session_answer(
        self, session: Session, table: Table | Images, outputs: Array, *, errors: bool
    ) -> Predicted:  # fmt: skip
        names = ["values", "active", *(("typical", "typical_row") if errors else ())]
        if "ranking" not in self.fitted.heads:
            values, active, *sizes = session.run(names, {"rows": table.matrix, "outputs": outputs})
            typical, typical_row = sizes or (None, None)
            return Predicted(values, None, typical, typical_row, active)
        parts = []
        for start in range(0, len(table), self._at_a_time):  # the logits of all rows at once would need much memory
            part = slice(start, start + self._at_a_time)
            feeds = {"rows": table.matrix[part], "outputs": outputs[part]}
            logits, *found = session.run(["ranking_logits", *names], feeds)
            parts.append((RankingHead.ranking(torch.from_numpy(logits)).numpy(), *found))
        ranking, values, active, *sizes = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        typical, typical_row = sizes or (None, None)
        return Predicted(values, ranking, typical, typical_row, active)

    def _onnxruntime(self) -> Session | None:
        """The network in onnxruntime, made at the first call: it takes milliseconds. None where torch must do."""
        fitted = self.fitted
        threads = torch_threads(self.threads)
        key = (fitted.network, threads)
        if self._session is None or self._session[0] != key:
            from cortx.explainer.onnx_export import session_for

            self._session = key, session_for(fitted.network, fitted.spec.base_values, threads)
        return self._session[1]

    def _guess_outputs(self, table: Table | Images, empty: Array) -> Array:
        """The model's outputs as far as the network knows them, (rows, outputs)."""
        network, size = self.fitted.network, self._at_a_time
        with torch.inference_mode():
            parts = [
                network.guess_total(torch.from_numpy(table.matrix[start : start + size]).to(network.device))
                for start in range(0, len(table), size)
            ]
            guessed: Array = torch.cat(parts).to(torch.float64).cpu().numpy() + empty
        return np.asarray(possible_outputs(guessed, self.fitted.spec.output))

    def _torch_answer(
        self, table: Table | Images, outputs: Array, empty: Array, *, errors: bool, most: float | None = None
    ) -> Predicted:
        network = self.fitted.network
        shape = (len(table), network.n_players, network.n_outputs)
        values = np.empty(shape)
        ranking = np.empty(shape, dtype=np.int64) if "ranking" in network.heads else None
        typical, typical_row = (np.empty(shape), np.empty((shape[0], shape[2]))) if errors else (None, None)
        active = np.empty(shape[:2], dtype=bool)
        with torch.inference_mode():
            for start in range(0, len(table), self._at_a_time):
                part = slice(start, start + self._at_a_time)
                codes = torch.from_numpy(table.matrix[part]).to(network.device)
                sharers = network.attribution.sharers(network.active(codes))
                active[part] = sharers.cpu().numpy()
                total = torch.from_numpy(outputs[part] - empty[part]).to(network.device)
                answer = network(codes, total.to(torch.float32))
                settled = possible_values(exact_total(answer.values, total, sharers), total, most)
                torch.from_numpy(values[part]).copy_(settled)
                if ranking is not None:
                    ranking[part] = answer.ranking.cpu().numpy()
                if typical is not None and typical_row is not None:
                    by_value, by_row = network.typical_errors(answer)
                    typical[part], typical_row[part] = by_value.cpu().numpy(), by_row.cpu().numpy()
        return Predicted(values, ranking, typical, typical_row, active)

    @_on_its_threads
    def latent(self, X: Any) -> npt.NDArray[np.float32]:
        """The latent explanation of rows, (rows, latent); it needs neither the model nor its outputs."""
        network = self.fitted.network
        codes = torch.from_numpy(self._read(X).matrix).to(network.device)
        with torch.inference_mode():
            parts = [
                network.latent(codes[start : start + self._at_a_time])
                for start in range(0, len(codes), self._at_a_time)
            ]
            return torch.cat(parts).cpu().numpy()

    @property
    def _at_a_time(self) -> int:
        """Rows of a forward pass: what a processor's cache holds, or what keeps an accelerator busy."""
        on_cpu = self.fitted.network.device.type == "cpu"
        if isinstance(self.fitted.spec.schema, ImageSchema):
            return self.fitted.network.rows_at_a_time
        return ROWS_AT_A_TIME if on_cpu else 32 * ROWS_AT_A_TIME

    @property
    def seen(self) -> Seen:
        """What the training rows held; `explain` refuses what is unlike them."""
        key = (self.fitted.network, self.unseen)
        if self._seen is None or self._seen[0] != key:
            self._seen = key, _seen(self.fitted, ignore=self.unseen == "ignore")
        return self._seen[1]

    def _read(self, X: Any) -> Table | Images:
        """Rows in the explainer's own codes, checked against what training saw."""
        return self.seen.read(X)

    def _explainable(self, table: Table | Images) -> npt.NDArray[np.bool_]:
        """Rows that `explain` does not refuse, (rows,)."""
        return self.seen.explainable(table)

    def _outputs(self, table: Table | Images, outputs: Any) -> tuple[Array | None, int]:
        """The model's outputs, (rows, outputs), if anybody knows them, and what they cost."""
        spec = self.fitted.spec
        if outputs is not None:
            known = given_outputs(outputs, (len(table), len(spec.base_values)), spec.output)
            return known, 0
        if self._game is None:
            return None, 0
        spent = self._game.evaluations
        known = self._game.outputs_of(table)
        return known, self._game.evaluations - spent

    def save(self, folder: str | Path) -> Path:
        """Writes the explainer as a folder: weights, a readable manifest, the model's fingerprint. No pickle.

        Of the copies of an explainer that several processes have fitted together, the first process's is written; in
        the others this does nothing, and does not wait.
        """
        from cortx.explainer.artifact import save

        return save(self, folder) if self._writes else local_path(folder, "the explainer's folder")

    def to_onnx(
        self, folder: str | Path, *, confidence: float | None = 0.9, int8: bool = False, rows: Any = None
    ) -> Path:
        """Writes the explainer as an ONNX graph and a JSON file: it runs with neither torch nor the model.

        `cortx.portable.load` reads the folder, and any ONNX runtime the graph: inputs "rows" (encoded as the JSON
        says) and "outputs", (rows, outputs), as the model gave them; output "values", (rows, players, outputs). A
        ranking head stays behind.

        Parameters
        ----------
        confidence:
            Of the bounds that a calibrated explainer takes along ("lower_bounds", "upper_bounds", "error_bound");
            `cortx.portable` can ask for others. None leaves them out.
        int8:
            Smaller and often faster, but less exact: ``int8`` in the JSON says by how much, and bounds, which were
            calibrated for float32, are left out.
        rows:
            What the loss of int8 is measured on; by default the probe rows that every explainer keeps.
        """
        from cortx.explainer.onnx_export import export

        return export(self, folder, confidence=confidence, int8=int8, rows=rows)

    @_on_its_threads
    def evaluate(
        self,
        X: Any,
        *,
        game: Game | None = None,
        rows: int = 200,
        method: str = "auto",
        row_budget: int | None = None,
        confidence: float = 0.9,
        slices: Slices = (),
        seed: int = 0,
        progress: bool | None = None,
    ) -> QualityReport:
        """Labels random fresh rows and says whether the explainer still fits the model and the data; print it.

        The verdict is "fits" only if the labels could have shown that it does not; else it is "too few rows" or "not
        judged", and `reasons` say what to do: more rows, a larger `row_budget`, more calibration rows.

        Parameters
        ----------
        X:
            Rows that the fit has not seen, as they come today. All are compared with the training table; `rows` of
            them are labelled with ``cortx.shapley(game, X, method, row_budget=row_budget)``. Rows that differ from the
            reference in one feature at most cannot be explained wrongly, and are left out where there are others.
        method:
            A name or an estimator; not "amortized", nor one whose values do not add up to the output ("banzhaf").
        row_budget:
            Model evaluations of each labelled row, at most; by default 2,048 (times the rows of a background), which
            for 200 rows may be many times the price of the fit. A paid model may be judged by
            ``rows=50, row_budget=66``; where that is too noisy the verdict says so, and ``row_budget=257`` often
            suffices.
        game:
            The model of today; by default the explainer's own.
        confidence:
            The bounds that are checked, if the explainer is calibrated.
        slices:
            Columns of X to report by (categories, or quarters of a number), or a mapping of names to one value for
            each row of X, for columns that the model does not take.
        """
        from cortx.explainer.evaluation import evaluate

        return evaluate(
            self, X, game=game, rows=rows, method=method, row_budget=row_budget, confidence=confidence,
            slices=slices, seed=seed, progress=progress,
        )  # fmt: skip

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"CoRTX({settings})"


def usable_device(name: str) -> str:
    """The name, if torch can compute there."""
    if not can_use(name):
        raise InputError(f"device must be a device that torch can use here, such as 'cpu', got {name!r}")
    return name


def can_use(device: str) -> bool:
    """Whether torch can compute there; rows are held in float64, which not every device has."""
    try:
        torch.zeros(1, device=device, dtype=torch.float64).item()  # "meta" makes tensors, but holds no numbers
    except (RuntimeError, AssertionError, TypeError):
        return False
    return True


def _possible(answer: Predicted, bounds: Bounds, total: Array, most: float | None) -> tuple[Predicted, Bounds]:
    """Refined values and all bounds, cut to what the output allows."""
    values = possible_values(answer.values, total, most)
    lower, upper, error = possible_bounds(bounds.lower, bounds.upper, bounds.error, values, total, most)
    return replace(answer, values=values), replace(bounds, lower=lower, upper=upper, error=error)


def _seen(fitted: Fitted, *, ignore: bool) -> Seen:
    schema, features = fitted.spec.schema, fitted.network.features
    if isinstance(schema, ImageSchema):
        return Seen(schema, frozenset(), {}, ignore, fitted.profile.ranges)
    columns, values = features.known_column.cpu().numpy(), features.known_value.cpu().numpy()
    known = {j: np.sort(values[columns == j]) for j, column in enumerate(schema.columns) if column.categorical}
    return Seen(schema, frozenset(features.missing.tolist()), known, ignore, fitted.profile.ranges)


def _checkpoint_folder(checkpoint: str | Path | None) -> Path | None:
    folder = None if checkpoint is None else local_path(checkpoint, "checkpoint=")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise InputError(f"checkpoint= is {str(folder)!r}, a file; give a folder, which is made if it is not there")
    return folder


def _check_game(game: object) -> None:
    if not isinstance(game, Game):
        raise InputError(
            f"the first argument is a {type(game).__qualname__}; expected a cortx.Game, such as "
            "cortx.Game(model, reference=X)"
        )
