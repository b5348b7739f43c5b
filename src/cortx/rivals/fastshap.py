"""FastSHAP (Jethani et al. 2022): a network that learns Shapley values from values of coalitions, without labels."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cortx.errors import BudgetError, InputError, NotFittedError
from cortx.estimators.block import Block, coalition_count, enumerable
from cortx.estimators.coalitions import all_coalitions, random_subsets
from cortx.estimators.kernel_shap import draw_pairs, expected_pairs, pair_weights
from cortx.explanation import Explanation
from cortx.games import Game, Rows
from cortx.games.game import table_of
from cortx.progress import progress_bar
from cortx.rivals.base import Account, Rival, full_values
from cortx.seeding import numpy_generator, row_uniforms, stream_seed, torch_generator
from cortx.threads import work
from cortx.training.axioms import efficiency, exact_total, missingness
from cortx.training.encoders import EncoderConfig, HeadConfig, linear
from cortx.training.features import FeatureConfig, TableFeatures, fit_features
from cortx.training.finetune import rate
from cortx.training.network import ExplainerNetwork
from cortx.training.step import Step, make_optimizer, set_rate

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Form = Literal["published", "strong"]

ROWS_AT_A_TIME = 4_096
NOISY = 4


@dataclass(frozen=True)
class PublishedSettings:
    """Network and schedule of the authors' Census notebook and the defaults of their code."""

    width: int = 128
    batch_size: int = 32
    samples: int = 32
    """Fresh coalitions for each row of a batch."""
    epochs: int = 200
    learning_rate: float = 2e-4
    smallest_rate: float = 1e-5
    rate_factor: float = 0.5
    """What the rate is multiplied with after `lookback` // 2 epochs that were no better."""
    lookback: int = 5
    """Training ends after so many epochs that were no better."""
    validation_rows: int = 100
    validation_samples: int = 128
    efficiency_weight: float = 0.0
    """Of the squared efficiency gap in the loss; their `eff_lambda`."""

    def __post_init__(self) -> None:
        whole = (self.width, self.batch_size, self.samples, self.epochs, self.lookback, self.validation_rows)
        _check_settings((*whole, self.validation_samples), self.learning_rate, self.efficiency_weight)


@dataclass(frozen=True)
class StrongSettings:
    """The default recipe's inputs, network and schedule for FastSHAP's loss, searched on training rows of Census."""

    features: FeatureConfig = field(default_factory=FeatureConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    steps: int = 6_000
    noisy_steps: int = 2_500
    """The most steps where fewer than `NOISY` coalitions for each player are known of a row: noise is learned late."""
    batch_size: int = 256
    """Rows; a step sees all coalitions that were paid for of each."""
    learning_rate: float = 2e-3
    weight_decay: float = 0.3
    clip: float = 1.0
    """Largest norm of a gradient."""
    validations: int = 40
    """How often the validation loss is looked at; the best moment is kept."""
    validation_share: float = 0.05
    replacement: bool = False
    """Whether a pair may be drawn twice for a row; if not, weights keep the loss right on average."""
    efficiency_weight: float = 0.0
    memory: int = 2**30
    """Bytes of stored values; fewer rows are used where they would not fit."""

    def __post_init__(self) -> None:
        whole = (self.steps, self.noisy_steps, self.batch_size, self.validations, self.memory)
        _check_settings(whole, self.learning_rate, self.efficiency_weight)
        if not 0 < self.validation_share < 1 or self.clip <= 0 or self.weight_decay < 0:
            raise InputError("validation_share lies between 0 and 1, clip is positive, weight_decay not negative")


def _check_settings(whole: tuple[int, ...], learning_rate: float, efficiency_weight: float) -> None:
    if min(whole) < 1 or learning_rate <= 0 or efficiency_weight < 0:
        raise InputError("FastSHAP's counts must be at least 1, its rates positive, its weights not negative")


Settings = PublishedSettings | StrongSettings


class FastSHAP(Rival):
    """Minimises E_x E_S (v(S) - v(none) - sum of phi(x) over S)^2, S drawn from the Shapley kernel.

    p(S) is proportional to (n-1) / (C(n,s) s (n-s)). A game has a fixed reference, so it is its own imputer and no
    surrogate is needed.

    Parameters
    ----------
    form:
        ``"published"`` is the authors' network and schedule on the table's standardized numbers, with fresh coalitions
        in every step. ``"strong"`` has cortx's inputs, network, axioms and schedule: coalitions of the players that
        differ from the reference only, paid for once and learned from in many steps.
    normalization:
        Additive efficient normalization of the predictions, inside the loss and in `explain`. Without it values need
        not add up; ``efficiency_weight`` of the settings is then a penalty.
    paired:
        Whether the complement of every coalition is drawn too.
    samples:
        Coalitions for each row: in each epoch (published), or stored (strong; by default as many as the budget pays
        for over all rows).
    settings:
        `PublishedSettings` or `StrongSettings`, as the form is.

    After `fit`: ``costs_`` (evaluations, seconds, rows, samples) and ``history_``, the validation losses: mean squared
    residuals of coalitions of rows that train nothing.
    """

    name: ClassVar[str] = "fastshap"

    def __init__(
        self,
        form: Form = "strong",
        *,
        normalization: bool = True,
        paired: bool = True,
        samples: int | None = None,
        settings: Settings | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        if form not in ("published", "strong"):
            raise InputError(f"form must be 'published' or 'strong', got {form!r}")
        expected = PublishedSettings if form == "published" else StrongSettings
        self.settings: Settings = expected() if settings is None else settings
        if not isinstance(self.settings, expected):
            raise InputError(f"the {form} form takes {expected.__name__}, got {type(settings).__name__}")
        if samples is not None and (samples < 1 or (paired and samples % 2)):
            raise InputError(f"samples must be positive, and even when they are paired, got {samples}")
        self.form, self.normalization, self.paired, self.samples = form, normalization, paired, samples
        self.seed, self.device = int(seed), device
        self.costs_: dict[str, Any] = {}
        self.history_: list[float] = []
        self._game: Game | None = None
        self._features: TableFeatures
        self._network: nn.Module

    # Learning -----------------------------------------------------------------------------------------------

    @work(large=False)
    def fit(
        self,
        game: Game,
        X: Any,
        budget: int | None = None,
        *,
        validation: Any = None,
        progress: bool | None = None,
    ) -> FastSHAP:
        """Learns from rows; `budget` counts every model evaluation: v(none), v(all), validation and training.

        `validation` are rows that choose the best moment by the loss; by default some of X, which then train nothing.
        The published form runs to its own end where no budget stops it.
        """
        if game.of_images:
            raise InputError("FastSHAP learns from tables, and this is a game of images; use ImageFastSHAP")
        started, before = perf_counter(), game.evaluations
        rows = game.rows(X)
        given = None if validation is None else game.rows(validation)
        if budget is not None and budget < game.evaluations_per_value:
            raise _too_small(budget, game.evaluations_per_value)
        _ = game.base_values
        left = None if budget is None else int(budget) - (game.evaluations - before)
        learn = self._learn_published if isinstance(self.settings, PublishedSettings) else self._learn_strong
        facts = learn(game, rows, given, left, progress)
        self._network.eval().requires_grad_(False)
        self._game = game
        spent = game.evaluations - before
        assert budget is None or spent <= budget
        self.costs_ = {"evaluations": spent, "seconds": perf_counter() - started, **facts}
        return self

    def _split(self, rows: Rows, given: Rows | None, count: int) -> tuple[Rows, Rows]:
        """Rows that train and rows that validate, in a random order."""
        order = numpy_generator(self.seed, "fastshap", "rows").permutation(len(rows))
        if given is not None:
            return rows.take(order), given
        if len(rows) < 2:
            raise InputError(f"FastSHAP needs at least two rows, one of them to validate, got {len(rows)}")
        count = min(count, len(rows) // 2)
        return rows.take(order[count:]), rows.take(order[:count])

    def _learn_published(
        self, game: Game, rows: Rows, given: Rows | None, left: int | None, show: bool | None
    ) -> dict[str, Any]:
        settings = self.settings
        assert isinstance(settings, PublishedSettings)
        samples = settings.samples if self.samples is None else self.samples
        train, held = self._split(rows, given, settings.validation_rows)
        batch_size = min(settings.batch_size, len(train))
        per_epoch = len(train) // batch_size
        step_cost = batch_size * samples * game.evaluations_per_value
        fixed = len(train) + len(held) * (1 + settings.validation_samples * game.evaluations_per_value)
        if left is not None and left < fixed + step_cost:
            raise _too_small(left, fixed + step_cost)
        most = settings.epochs * per_epoch if left is None else (left - fixed) // step_cost

        table = table_of(train, "FastSHAP")
        columns = tuple(replace(column, categorical=False) for column in table.schema.columns)
        self._features = fit_features(table.matrix, columns, game.absent, FeatureConfig()).to(self.device)
        self._network = _three_layers(
            self._features.width,
            settings.width,
            game.n_players * game.n_outputs,
            torch_generator(self.seed, "fastshap"),
        ).to(self.device)
        learner, judge = self._inputs(game, train), self._inputs(game, held)
        checks = self._coalitions(held, settings.validation_samples, "validation", paired=True)
        checked = self._tensor(game.values(held, checks, distinct=True) - game.base_values)
        optimizer = make_optimizer(self._network, settings.learning_rate)

        def loss_of(inputs: Tensor, total: Tensor, active: Tensor, kept: Tensor, values: Tensor) -> Tensor:
            part = _Inputs(inputs, total, active)
            raw = self._raw(part)
            loss = squared_residuals(self._settled(part, raw), kept, values) + self._penalty(part, raw)
            return game.n_players * loss

        do = Step(loss_of, optimizer)
        # The schedule of an optimizer that trains nothing: what it says is copied, whatever kind of number a rate is.
        pace = torch.optim.SGD([torch.zeros(1)], lr=settings.learning_rate)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
            pace, factor=settings.rate_factor, patience=settings.lookback // 2, min_lr=settings.smallest_rate
        )
        best, best_epoch, self.history_ = copy.deepcopy(self._network.state_dict()), -1, []
        epochs = min(settings.epochs, -(-most // per_epoch))
        epoch = 0
        with progress_bar("FastSHAP (published)", epochs, show=show) as advance:
            for epoch in range(epochs):
                steps = min(per_epoch, most - epoch * per_epoch)
                order = numpy_generator(self.seed, "fastshap", "epoch", epoch).permutation(len(train))
                order = order[: steps * batch_size]  # the rest is left to the next epoch, as published
                for index, kept, values in self._fresh(game, train, order, batch_size, samples, f"epoch {epoch}"):
                    do([*learner.take(torch.from_numpy(index).to(self.device)).tensors, kept, values])
                with torch.no_grad():
                    loss = squared_residuals(self._predict(judge), self._tensor(checks), checked)
                value = game.n_players * float(loss)
                schedule.step(value)
                set_rate(optimizer, pace.param_groups[0]["lr"])
                if value < min(self.history_, default=np.inf):
                    best, best_epoch = copy.deepcopy(self._network.state_dict()), epoch
                self.history_.append(value)
                advance(1, f"validation {value:.3g}")
                if epoch - best_epoch == settings.lookback:
                    break
        self._network.load_state_dict(best)
        return {"rows": len(train), "samples": samples, "epochs": epoch + 1}

    def _fresh(
        self, game: Game, rows: Rows, order: IntArray, batch_size: int, samples: int, stream: str
    ) -> Iterator[tuple[IntArray, Tensor, Tensor]]:
        """The batches of an epoch: positions, coalitions (batch, samples, players), and v(S) - v(none)."""
        # Values do not depend on the network: many batches are evaluated in one call.
        together = max(1, 2**21 // (batch_size * samples * game.n_players))
        for start in range(0, len(order), together * batch_size):
            index = order[start : start + together * batch_size]
            chosen = rows.take(index)
            kept = self._coalitions(chosen, samples, stream, paired=self.paired)
            values = self._tensor(game.values(chosen, kept, distinct=True) - game.base_values)
            masks = self._tensor(kept)
            for first in range(0, len(index), batch_size):
                part = slice(first, first + batch_size)
                yield index[part], masks[part], values[part]

    def _coalitions(self, rows: Rows, samples: int, stream: str, *, paired: bool) -> BoolArray:
        return kernel_coalitions(
            rows.words, rows.active.shape[1], samples, stream_seed(self.seed, "fastshap", stream), paired=paired
        )

    def _learn_strong(
        self, game: Game, rows: Rows, given: Rows | None, left: int | None, show: bool | None
    ) -> dict[str, Any]:
        settings = self.settings
        assert isinstance(settings, StrongSettings)
        if left is None and self.samples is None:
            raise InputError("the strong form pays for coalitions once; give budget= (model evaluations) or samples=")
        train, held = self._split(rows, given, max(1, round(settings.validation_share * len(rows))))
        train, held, samples = self._plan(game, train, held, left)
        table = table_of(train, "FastSHAP")
        features = fit_features(table.matrix, table.schema.columns, game.absent, settings.features)
        network = ExplainerNetwork(
            features,
            torch.from_numpy(game.players.column_player),
            game.n_outputs,
            encoder=settings.encoder,
            head=settings.head,
            heads=("attribution",),
            seed=self.seed,
        ).to(self.device)
        self._features, self._network = network.features, network
        learner, judge = self._inputs(game, train), self._inputs(game, held)
        form, check = (self._stored(game, part, samples) for part in (train, held))
        self._set_scales(network, learner.total)
        scale = network.attribution.label_scale
        trained = nn.ModuleList([network.encoder, network.attribution])
        optimizer = make_optimizer(trained, settings.learning_rate, settings.weight_decay, betas=(0.9, 0.98))

        def loss_of(inputs: Tensor, total: Tensor, active: Tensor, *forms: Tensor) -> Tensor:
            part = _Inputs(inputs, total, active)
            raw = self._raw(part)
            loss = Quadratic(*forms)(self._settled(part, raw)).div(scale.square()).mean()
            return loss + self._penalty(part, raw, scale)

        do = Step(loss_of, optimizer, settings.clip)
        generator = torch_generator(self.seed, "fastshap", "batches")
        best, self.history_ = copy.deepcopy(network.state_dict()), []
        noisy = samples < NOISY * game.n_players
        steps = min(settings.steps, settings.noisy_steps) if noisy else settings.steps
        every = max(1, steps // settings.validations)
        with progress_bar("FastSHAP (strong)", steps, show=show) as advance:
            for step in range(1, steps + 1):
                set_rate(optimizer, settings.learning_rate * rate((step - 1) / steps, "one-cycle"))
                index = torch.randint(len(train), (settings.batch_size,), generator=generator).to(self.device)
                taken = form.take(index)
                do([*learner.take(index).tensors, taken.A, taken.b, taken.c])
                if step % every == 0 or step == steps:
                    with torch.no_grad():
                        value = float(check(self._predict(judge)).mean())
                    if value < min(self.history_, default=np.inf):
                        best = copy.deepcopy(network.state_dict())
                    self.history_.append(value)
                advance(1, f"validation {self.history_[-1]:.3g}" if self.history_ else "")
        network.load_state_dict(best)
        return {"rows": len(train), "samples": samples, "validation_rows": len(held), "steps": steps}

    def _plan(self, game: Game, train: Rows, held: Rows, left: int | None) -> tuple[Rows, Rows, int]:
        """As many rows as memory and budget allow, and how many coalitions of each are paid for."""
        assert isinstance(self.settings, StrongSettings)
        unit = 2 if self.paired else 1
        share = len(held) / (len(train) + len(held))
        fits = self.settings.memory // (4 * game.n_players * (game.n_players + game.n_outputs))
        if left is not None:
            least = 1 + game.evaluations_per_value * (unit if self.samples is None else self.samples)
            fits = min(fits, left // least)
            if fits < 2:
                raise _too_small(left, 2 * least)
        n_held = min(len(held), max(1, round(share * fits)))
        train, held = train.take(np.arange(min(len(train), fits - n_held))), held.take(np.arange(n_held))
        if self.samples is not None or left is None:
            assert self.samples is not None
            return train, held, self.samples
        counts = np.concatenate([train.active, held.active]).sum(axis=1)
        most = np.array([coalition_count(n) if 1 < n < 40 else 0 if n < 2 else 2**40 for n in counts.tolist()])
        affordable = (left - len(counts)) // game.evaluations_per_value
        low, high = 1, max(1, int(most.max()) // unit)
        while low < high:  # the most pairs (or coalitions) of each row that are paid for, where rows have so many
            middle = (low + high + 1) // 2
            low, high = (middle, high) if np.minimum(most, unit * middle).sum() <= affordable else (low, middle - 1)
        return train, held, unit * low

    def _stored(self, game: Game, rows: Rows, samples: int) -> Quadratic:
        """The loss of every row over its own coalitions, drawn from the row's own seed, among its active players."""
        assert isinstance(self.settings, StrongSettings)
        n_players, n_outputs = game.n_players, game.n_outputs
        forms = Quadratic(
            torch.zeros(len(rows), n_players, n_players),
            torch.zeros(len(rows), n_players, n_outputs),
            torch.zeros(len(rows), n_outputs),
        )
        counts = rows.active.sum(axis=1)
        seed = stream_seed(self.seed, "fastshap", "stored")
        size = max(1, game.memory_budget // (samples * (48 * n_players + 24 * n_outputs + 16)))
        for n in np.unique(counts[counts > 1]):
            same = np.flatnonzero(counts == n)
            for start in range(0, len(same), size):
                index = same[start : start + size]
                part = rows.take(index)
                active = np.nonzero(part.active)[1].reshape(len(index), -1)
                block = Block(game, part, active, np.zeros((len(index), n_outputs)), seed)
                kept, weights = _weighted(block, samples, paired=self.paired, replacement=self.settings.replacement)
                distinct = kept.ndim == 2 or (self.paired and not self.settings.replacement)
                values = block.values(kept, distinct=distinct) - game.base_values
                forms.put(index, active, kept, weights, values)
        return forms.to(self.device)

    @staticmethod
    def _set_scales(network: ExplainerNetwork, total: Tensor) -> None:
        """Nobody knows the attributions: what their sum is on average, over the players, is their size."""
        size = total.square().mean(dim=0).sqrt().clamp(min=1e-12)
        network.attribution.total_scale.copy_(size)
        network.attribution.label_scale.copy_(size / network.n_players)

    # Predicting ---------------------------------------------------------------------------------------------

    def _inputs(self, game: Game, rows: Rows, outputs: Any = None) -> _Inputs:
        """Rows as the network sees them; costs v(all) of each row unless outputs are known."""
        full = full_values(game, rows, outputs)
        codes = torch.from_numpy(rows.table.matrix).to(self.device)
        starts = range(0, len(codes), ROWS_AT_A_TIME)
        inputs = torch.cat([self._features(codes[start : start + ROWS_AT_A_TIME]) for start in starts])
        active = torch.from_numpy(rows.active).to(self.device)
        return _Inputs(inputs, self._tensor(full - game.base_values), active)

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device, torch.float32)

    def _sharers(self, active: Tensor) -> Tensor:
        """Who may get something: the active players in the strong form, everybody as published."""
        return active if self.form == "strong" else torch.ones_like(active)

    def _raw(self, rows: _Inputs) -> Tensor:
        """Before normalization, (rows, players, outputs)."""
        if isinstance(self._network, ExplainerNetwork):
            head = self._network.attribution
            scores = head.scores(head.hidden(self._network.encoder(rows.inputs), rows.total))
        else:
            scores = self._network(rows.inputs).view(len(rows.inputs), rows.active.shape[1], -1)
        return missingness(scores, self._sharers(rows.active))

    def _predict(self, rows: _Inputs) -> Tensor:
        """All rows, in chunks, (rows, players, outputs)."""
        starts = range(0, len(rows.inputs), ROWS_AT_A_TIME)
        parts = [rows.take(slice(start, start + ROWS_AT_A_TIME)) for start in starts]
        return torch.cat([self._settled(part, self._raw(part)) for part in parts])

    def _settled(self, rows: _Inputs, raw: Tensor) -> Tensor:
        return efficiency(raw, rows.total, self._sharers(rows.active)) if self.normalization else raw

    def _penalty(self, rows: _Inputs, raw: Tensor, scale: Tensor | float = 1.0) -> Tensor | float:
        """The mean squared gap between the total and what is predicted before normalization, with its weight."""
        if not self.settings.efficiency_weight:
            return 0.0
        return self.settings.efficiency_weight * ((rows.total - raw.sum(dim=1)) / scale).square().mean()

    def explain(self, X: Any, outputs: Any = None) -> Explanation:
        """One forward pass, and v(all) of every row where `outputs` does not give it."""
        if self._game is None:
            raise NotFittedError("this FastSHAP is not fitted; call fit(game, X, budget=...) first")
        game = self._game
        rows = game.rows(X)
        account = Account(game)
        full = full_values(game, rows, outputs)
        seen = self._inputs(game, rows, full)
        with torch.inference_mode():
            values = self._predict(seen)
            if self.normalization:
                total = torch.from_numpy(full - game.base_values).to(self.device)
                values = exact_total(values, total, self._sharers(seen.active))
        return account.close(rows, values.double().cpu().numpy(), full, f"fastshap ({self.form})")


@dataclass(frozen=True, eq=False)
class _Inputs:
    """Rows as the network sees them: inputs (rows, width), total (rows, outputs), active (rows, players)."""

    inputs: Tensor
    total: Tensor
    active: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.inputs, self.total, self.active

    def take(self, index: Tensor | slice) -> _Inputs:
        return _Inputs(self.inputs[index], self.total[index], self.active[index])


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The mean over a row's coalitions of (v(S) - v(none) - sum of phi over S)^2, as phi'A phi - 2 phi'b + c.

    A (rows, players, players), b (rows, players, outputs), c (rows, outputs): a step then costs the same, however many
    coalitions were paid for.
    """

    A: Tensor
    b: Tensor
    c: Tensor

    def __call__(self, phi: Tensor) -> Tensor:
        """(rows, players, outputs) to (rows, outputs)."""
        return (phi * (self.A @ phi - 2 * self.b)).sum(dim=1) + self.c

    def take(self, index: Tensor) -> Quadratic:
        return Quadratic(self.A[index], self.b[index], self.c[index])

    def to(self, device: str) -> Quadratic:
        return Quadratic(self.A.to(device), self.b.to(device), self.c.to(device))

    def put(self, index: IntArray, active: IntArray, kept: BoolArray, weights: Array, values: Array) -> None:
        """Sets rows `index`, whose `active` players (rows, n) made the coalitions `kept`, ([rows,] k, n).

        `weights` ([rows,] k) add up to one on average; `values` (rows, k, outputs) are v(S) - v(none).
        """
        weighted = kept * weights[..., None]
        place = torch.from_numpy(index)[:, None], torch.from_numpy(active)
        A = np.broadcast_to(np.swapaxes(weighted, -1, -2) @ kept.astype(np.float64), (*active.shape, active.shape[1]))
        b = np.swapaxes(weighted, -1, -2) @ values
        c = (np.broadcast_to(weights, values.shape[:2])[..., None] * values**2).sum(axis=1)
        self.A[place[0][..., None], place[1][:, :, None], place[1][:, None, :]] = torch.from_numpy(A.copy()).float()
        self.b[place] = torch.from_numpy(b).float()
        self.c[place[0][:, 0]] = torch.from_numpy(c).float()


def squared_residuals(phi: Tensor, kept: Tensor, values: Tensor) -> Tensor:
    """The mean of (v(S) - v(none) - sum of phi over S)^2 over rows, coalitions and outputs.

    phi (rows, players, outputs), `kept` (rows, k, players) as numbers, `values` = v(S) - v(none), (rows, k, outputs).
    """
    return (values - kept @ phi).square().mean()


def size_probabilities(n_players: int) -> Array:
    """How often a coalition of 1, 2, ..., n-1 players is drawn: C(n,s) p(S), proportional to 1 / (s (n-s))."""
    sizes = np.arange(1, n_players)
    mass = 1 / (sizes * (n_players - sizes))
    return np.asarray(mass / mass.sum())


def kernel_coalitions(
    words: npt.NDArray[np.uint64], n_players: int, count: int, stream: int, *, paired: bool
) -> BoolArray:
    """Independent draws from the Shapley kernel for every row, (rows, count, players), from the row's own words.

    In pairs, every odd one is the complement of the one before it.
    """
    if n_players < 2:
        raise InputError(f"the Shapley kernel needs at least two players, got {n_players}")
    drawn = -(-count // 2) if paired else count
    uniforms = row_uniforms(words, stream, 0, drawn * (n_players + 1)).reshape(len(words), drawn, n_players + 1)
    edges = np.cumsum(size_probabilities(n_players))[:-1]
    sizes = 1 + np.searchsorted(edges, uniforms[..., 0], side="right")
    kept = random_subsets(uniforms[..., 1:], sizes)
    if paired:
        kept = np.stack([kept, ~kept], axis=2).reshape(len(words), 2 * drawn, n_players)[:, :count]
    return kept


def _weighted(block: Block, samples: int, *, paired: bool, replacement: bool) -> tuple[BoolArray, Array]:
    """Coalitions of a block's active players, ([rows,] k, n), and their weights in the loss, ([rows,] k).

    Without replacement a pair is drawn with probability min(1, c q) and weighs the inverse, so that the loss is right
    on average; with all coalitions at hand it is the expectation itself.
    """
    n = block.n_players
    if enumerable(n, samples) and not replacement:
        kept = np.concatenate(list(all_coalitions(n)))
        sizes = kept.sum(axis=1)
        there_are = np.bincount(sizes, minlength=n)
        return kept, size_probabilities(n)[sizes - 1] / there_are[sizes]
    if paired and not replacement:
        expected = expected_pairs(n, samples // 2, "kernel")
        kept = draw_pairs(block, expected, samples // 2)
        half = pair_weights(n, expected)[kept.sum(axis=2) - 1] / (1 / (np.arange(1, n) * np.arange(n - 1, 0, -1))).sum()
        return np.concatenate([kept, ~kept], axis=1), np.concatenate([half, half], axis=1)
    kept = kernel_coalitions(block.rows.words, n, samples, block.seed, paired=paired)
    return kept, np.full(kept.shape[:2], 1 / samples)


def _three_layers(inputs: int, width: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    return nn.Sequential(
        linear(inputs, width, generator),
        nn.ReLU(),
        linear(width, width, generator),
        nn.ReLU(),
        linear(width, outputs, generator),
    )


def _too_small(budget: int, least: int) -> BudgetError:
    return BudgetError(f"FastSHAP needs at least {least:,} model evaluations here, {budget:,} are left of the budget")
