"""The peers' own implementations (shap, captum, shapiq) on a `Game`, each in the way its documentation advises."""

from __future__ import annotations

import importlib
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import BudgetError, InputError, need
from cortx.estimators.shapley import DEFAULT_BUDGET
from cortx.explanation import Explanation
from cortx.games import Game, Rows
from cortx.games.game import table_of
from cortx.games.models import TorchModel, evaluating, log_odds_from_logits, probability_from_logits
from cortx.rivals.base import Account, Array, Rival, full_values
from cortx.seeding import stream_seed
from cortx.tables import Table


class Problem:
    """Rows, reference and model as the peers take them, in NumPy or in torch; every row the model sees is counted."""

    def __init__(self, game: Game, rows: Rows) -> None:
        table = table_of(rows, "this rival")
        self.game, self.matrix, self.absent = game, table.matrix, game.absent
        self.most_active = int(rows.active.sum(axis=1).max())
        self._schema = table.schema
        # Adapters of other kinds, and which column a target is, are the game's business.
        model = game.model
        self._torch: TorchModel | None = None
        if type(model) is TorchModel and game.spec(self._schema).target is None:
            self._torch = model

    def function(self, matrix: Array) -> Array:
        """Encoded rows, (rows, columns), to the game's one output, (rows,)."""
        if self._torch is not None:
            return self.forward(self.tensor(matrix)).double().cpu().numpy()
        return self.game.outputs_of(Table(matrix, self._schema))[:, 0]

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The same on tensors: a torch module is called as it is, with no detour that its peer would not make."""
        model = self._torch
        if model is None:
            return torch.from_numpy(self.function(batch.double().cpu().numpy())).to(batch.device)
        self.game.count(len(batch))
        with torch.inference_mode():
            parts = [model.module(part).reshape(len(part), -1) for part in torch.split(batch, model.pass_rows)]
            outputs = parts[0] if len(parts) == 1 else torch.cat(parts)
            if model.output == "probability":
                outputs = probability_from_logits(outputs)
            elif model.output == "log-odds":
                outputs = log_odds_from_logits(outputs)
            return outputs[:, -1]  # of two classes a game explains the second

    def tensor(self, matrix: Array) -> torch.Tensor:
        return torch.from_numpy(matrix).to(self.game.model.device, self.game.model.dtype)


class Peer(Rival):
    """A peer's explainer with a game's model, reference row and output.

    `row_budget` is what a row costs at most, in model evaluations (v(none) aside, once for a call). One of them gives
    v(all) for the result, as in `cortx.shapley`; how a peer spends the others stands at its class. The peers draw from
    the global generators of NumPy and torch, which are seeded for them and restored, one row after another: unlike in
    `cortx.shapley` the draws of a row depend on its place. There are no standard errors.

    Not for a background, groups of columns, missing values or several outputs: the peers differ in these.
    """

    library: ClassVar[str]

    def __init__(self, game: Game, *, row_budget: int | None = None, seed: int = 0) -> None:
        try:
            importlib.import_module(self.library)
        except ImportError as error:
            raise need(self.library, f"the rival {self.name!r}", "peers") from error
        if row_budget is not None and (isinstance(row_budget, bool) or not isinstance(row_budget, (int, np.integer))):
            raise InputError(f"row_budget must be a whole number of model evaluations for each row, got {row_budget!r}")
        self.game, self.row_budget, self.seed = game, DEFAULT_BUDGET if row_budget is None else int(row_budget), seed

    @abstractmethod
    def attributions(self, problem: Problem) -> Array:
        """The peer's values, (rows, players)."""

    def explain(self, X: Any, outputs: Any = None) -> Explanation:
        game = self.game
        rows = game.rows(X)
        account = Account(game)
        table_of(rows, self.name)
        self._check(rows)
        full = full_values(game, rows, outputs)
        values = np.zeros((len(rows), game.n_players))
        # A row that is the reference has nothing to share, and some peers fail on it.
        index = np.flatnonzero(rows.active.any(axis=1))
        if len(index):
            with _global_generators(stream_seed(self.seed, self.name)), evaluating(_module(game)):
                values[index] = self.attributions(Problem(game, rows.take(index)))
        return account.close(rows, values[..., None], full, self.name)

    def _check(self, rows: Rows) -> None:
        game, n = self.game, self.game.n_players
        if game.evaluations_per_value > 1:
            raise InputError(
                f"{self.name} is compared on one reference row, and the game has a background of "
                f"{game.evaluations_per_value} rows; give the game reference= instead"
            )
        if n != rows.table.matrix.shape[1]:
            raise InputError(
                f"{self.name} explains columns, and the game's players are groups of them; leave players= out"
            )
        if n < 2:
            raise InputError(f"{self.name} needs at least 2 features, got {n}")
        if np.isnan(rows.table.matrix).any() or np.isnan(game.absent).any():
            raise InputError(f"{self.name} cannot mask missing values; fill them in the rows and in the reference")
        if game.n_outputs > 1:
            raise InputError(f"{self.name} explains one output, and the game has {game.n_outputs}; give it target=")
        if self.row_budget < 2 * n + 2:
            raise BudgetError(
                f"{self.name} needs at least {2 * n + 2} evaluations for {n} features, got {self.row_budget}"
            )


class ShapKernel(Peer):
    """``shap.KernelExplainer``: two evaluations are v(all), the others its ``nsamples``.

    Without its selection of 10 features, which would leave out others. Enumerates where nsamples allow.
    """

    name: ClassVar[str] = "shap-kernel"
    library: ClassVar[str] = "shap"

    def attributions(self, problem: Problem) -> Array:
        import shap

        explainer = shap.KernelExplainer(problem.function, problem.absent)
        values: Array = explainer.shap_values(problem.matrix, nsamples=self.row_budget - 2, l1_reg=False, silent=True)
        return values


class ShapPermutation(Peer):
    """``shap.PermutationExplainer``: ``max_evals``, of which each antithetic pair of orders takes 2n + 1."""

    name: ClassVar[str] = "shap-permutation"
    library: ClassVar[str] = "shap"

    def attributions(self, problem: Problem) -> Array:
        import shap

        masker = shap.maskers.Independent(problem.absent)
        explainer = shap.PermutationExplainer(problem.function, masker, seed=_seed32(self.seed, self.name))
        return _one_by_one(explainer, problem, self.row_budget - 1)


class ShapExact(Peer):
    """``shap.ExactExplainer``: all 2**n coalitions of the features that differ from the reference.

    `row_budget`, by default 100,000 as in shap, only says what is too much.
    """

    name: ClassVar[str] = "shap-exact"
    library: ClassVar[str] = "shap"

    def __init__(self, game: Game, *, row_budget: int | None = None, seed: int = 0) -> None:
        super().__init__(game, row_budget=100_001 if row_budget is None else row_budget, seed=seed)

    def attributions(self, problem: Problem) -> Array:
        import shap

        needs = 2**problem.most_active + 1
        if needs > self.row_budget:
            raise BudgetError(
                f"{self.name} needs {needs:,} evaluations for a row, and the budget is {self.row_budget:,}"
            )
        explainer = shap.ExactExplainer(problem.function, shap.maskers.Independent(problem.absent))
        return _one_by_one(explainer, problem, self.row_budget - 1)


class CaptumKernel(Peer):
    """``captum.attr.KernelShap``, a row at a time as it advises: ``n_samples``, v(all) and v(none) among them.

    All samples of a row are in one forward pass.
    """

    name: ClassVar[str] = "captum-kernel"
    library: ClassVar[str] = "captum"

    def attributions(self, problem: Problem) -> Array:
        from captum.attr import KernelShap

        inputs, absent = problem.tensor(problem.matrix), problem.tensor(problem.absent)
        method, n_samples = KernelShap(problem.forward), self.row_budget - 1
        parts = [
            method.attribute(row[None], baselines=absent, n_samples=n_samples, perturbations_per_eval=n_samples)
            for row in inputs
        ]
        return torch.cat(parts).double().cpu().numpy()


class CaptumSampling(Peer):
    """``captum.attr.ShapleyValueSampling``: v(none), then ``n_samples`` orders of n evaluations each.

    All rows go through together, the n masked copies of an order in one forward pass; they share their orders.
    """

    name: ClassVar[str] = "captum-sampling"
    library: ClassVar[str] = "captum"

    def attributions(self, problem: Problem) -> Array:
        from captum.attr import ShapleyValueSampling

        inputs, absent = problem.tensor(problem.matrix), problem.tensor(problem.absent)
        method, n = ShapleyValueSampling(problem.forward), inputs.shape[1]
        n_samples = (self.row_budget - 2) // n
        parts = [
            method.attribute(part, baselines=absent, n_samples=n_samples, perturbations_per_eval=n)
            for part in torch.split(inputs, max(1, self.game.model.chunk_rows // n))
        ]
        return torch.cat(parts).double().cpu().numpy()


class ShapiqKernel(Peer):
    """``shapiq.KernelSHAP`` with its pairing trick: its ``budget``, v(all) and v(none) among them."""

    name: ClassVar[str] = "shapiq-kernel"
    library: ClassVar[str] = "shapiq"

    def attributions(self, problem: Problem) -> Array:
        import shapiq

        n, seed = problem.matrix.shape[1], _seed32(self.seed, self.name)
        approximator = shapiq.KernelSHAP(n=n, pairing_trick=True, random_state=seed)
        parts = []
        with warnings.catch_warnings():
            # Budgets near 2**n: it enumerated, or its sampler was slow. Neither is news to who set the budget.
            warnings.filterwarnings("ignore", "Not all budget is required|Sampling might be inefficient", UserWarning)
            for row in problem.matrix:

                def game(coalitions: npt.NDArray[np.bool_], row: Array = row) -> Array:
                    return problem.function(np.where(coalitions, row, problem.absent))

                parts.append(approximator.approximate(self.row_budget - 1, game).get_n_order_values(1))
        return np.stack(parts)


def _seed32(seed: int, name: str) -> int:
    return stream_seed(seed, name) % 2**32


@contextmanager
def _global_generators(seed: int) -> Iterator[None]:
    """The global generators of NumPy and torch (CPU), seeded; afterwards as they were."""
    before = np.random.get_state()  # noqa: NPY002, the peers offer no other
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002


def _module(game: Game) -> torch.nn.Module:
    """The torch module, or one that does nothing where the model is none."""
    return game.model.module if isinstance(game.model, TorchModel) else torch.nn.Identity()


def _one_by_one(explainer: Any, problem: Problem, max_evals: int) -> Array:
    """A shap explainer on each row alone: from the second row of a table on, it would pay for main effects too."""
    rows = [problem.matrix[i : i + 1] for i in range(len(problem.matrix))]
    return np.concatenate([explainer(row, max_evals=max_evals, silent=True).values for row in rows])
