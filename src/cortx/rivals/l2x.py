"""L2X (Chen et al. 2018): which k features tell most about the model's output. Its scores are no Shapley values."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cortx.errors import BudgetError, InputError, NotFittedError
from cortx.explanation import Explanation
from cortx.games import Game, Rows
from cortx.games.game import table_of
from cortx.progress import progress_bar
from cortx.rivals.base import Account, Rival, full_values
from cortx.seeding import numpy_generator, torch_generator
from cortx.threads import work
from cortx.training.encoders import mlp
from cortx.training.features import FeatureConfig, TableFeatures, fit_features

Family = Literal["bernoulli", "categorical", "gaussian"]
ROWS_AT_A_TIME = 4_096


@dataclass(frozen=True)
class L2XSettings:
    """Widths, temperature, batch and rate of the authors' synthetic experiments; inputs are cortx's."""

    selector_width: int = 100
    predictor_width: int = 200
    temperature: float = 0.1
    """Of the relaxed draws: smaller is closer to a choice."""
    steps: int = 2_000
    batch_size: int = 1_000
    learning_rate: float = 1e-3
    validations: int = 40
    """How often the held-out loss is looked at; the best moment is kept."""
    validation_share: float = 0.1

    def __post_init__(self) -> None:
        whole = (self.selector_width, self.predictor_width, self.steps, self.batch_size, self.validations)
        if min(whole) < 1 or self.learning_rate <= 0 or self.temperature <= 0 or not 0 < self.validation_share < 1:
            raise InputError(
                "L2X's counts must be at least 1, its rate and temperature positive, validation_share between 0 and 1"
            )


class L2X(Rival):
    """Maximises E log q(f(x) | x_S) over a selector of k features S(x) and a variational network q.

    S is relaxed: the largest, feature by feature, of k draws from a Gumbel-softmax of the selector's logits; x_S mixes
    the row and the reference. q is the model's own distribution: Bernoulli or categorical for probabilities, else
    Gaussian of fixed width, whose loss is the squared error of standardized outputs.

    `explain` gives the chance of each feature to be among the k draws, 1 - (1 - softmax of the logits)^k: never
    negative, not adding up to f(x), the same for all outputs. They order features by how much they tell, which is not
    the order of Shapley values. Learning costs one evaluation of the model for each row, explaining none.

    After `fit`: ``costs_`` (evaluations, seconds) and ``history_``, held-out losses with the k likeliest features, less
    the entropy of the outputs: the divergence of q from f, zero for a perfect q.
    """

    name: ClassVar[str] = "l2x"

    def __init__(self, k: int = 1, *, settings: L2XSettings | None = None, seed: int = 0, device: str = "cpu") -> None:
        if isinstance(k, bool) or k < 1:
            raise InputError(f"k, the number of features that are selected, must be at least 1, got {k!r}")
        self.k, self.seed, self.device = int(k), int(seed), device
        self.settings = L2XSettings() if settings is None else settings
        self.costs_: dict[str, Any] = {}
        self.history_: list[float] = []
        self._game: Game | None = None
        self._features: TableFeatures
        self._selector: nn.Sequential

    @work(large=False)
    def fit(self, game: Game, X: Any, budget: int | None = None, *, progress: bool | None = None) -> L2X:
        """Learns from rows and the model's outputs for them; with a smaller `budget`, from so many of the rows."""
        started, before = perf_counter(), game.evaluations
        rows = game.rows(X)
        table_of(rows, "L2X")
        if self.k > game.n_players:
            raise InputError(f"k={self.k} features cannot be selected from {game.n_players}")
        _ = game.base_values
        left = len(rows) if budget is None else int(budget) - (game.evaluations - before)
        order = numpy_generator(self.seed, "l2x", "rows").permutation(len(rows))[: max(0, left)]
        if len(order) < 2:
            raise BudgetError(f"L2X needs at least two rows and an evaluation of each, got {len(order)}")
        rows = rows.take(order)
        n_held = min(len(rows) // 2, max(1, round(self.settings.validation_share * len(rows))))
        self._learn(game, rows, n_held, progress)
        self._game = game
        self.costs_ = {"evaluations": game.evaluations - before, "seconds": perf_counter() - started, "rows": len(rows)}
        return self

    def _learn(self, game: Game, rows: Rows, n_held: int, show: bool | None) -> None:
        settings = self.settings
        outputs = game.full_values(rows)
        family = _family(game, outputs)
        if family == "gaussian":
            outputs = (outputs - outputs.mean(axis=0)) / np.maximum(outputs.std(axis=0), 1e-12)
        target = torch.from_numpy(outputs).to(self.device, torch.float32)
        table = table_of(rows, "L2X")
        features = fit_features(table.matrix, table.schema.columns, game.absent, FeatureConfig())
        self._features = features.to(self.device)
        inputs = self._inputs(rows)
        absent = self._features(torch.from_numpy(game.absent).to(self.device)).mean(dim=0)
        player_of = self._player_of(game)
        width = self._features.width
        self._selector = mlp(
            [width, settings.selector_width, settings.selector_width, game.n_players],
            torch_generator(self.seed, "l2x", "selector"),
        ).to(self.device)
        predictor = mlp(
            [width, settings.predictor_width, settings.predictor_width, game.n_outputs],
            torch_generator(self.seed, "l2x", "predictor"),
        ).to(self.device)

        def loss_of(index: Tensor, chosen: Tensor) -> Tensor:
            masked = absent + chosen[:, player_of] * (inputs[index] - absent)
            return variational_loss(predictor(masked), target[index], family)

        both = nn.ModuleList([self._selector, predictor])
        optimizer = torch.optim.Adam(both.parameters(), lr=settings.learning_rate)
        batches, noise = (torch_generator(self.seed, "l2x", name) for name in ("batches", "gumbel"))
        held = torch.arange(n_held, device=self.device)
        floor = entropy(target[held], family)
        best, self.history_ = copy.deepcopy(self._selector.state_dict()), []
        every = max(1, settings.steps // settings.validations)
        with progress_bar("L2X", settings.steps, show=show) as advance:
            for step in range(1, settings.steps + 1):
                drawn = torch.randint(n_held, len(inputs), (settings.batch_size,), generator=batches)
                uniforms = torch.rand(settings.batch_size, self.k, game.n_players, generator=noise)
                index = drawn.to(self.device)
                logits = self._selector(inputs[index])
                loss = loss_of(index, relaxed_subset(logits, uniforms.to(self.device), settings.temperature))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                if step % every == 0 or step == settings.steps:
                    with torch.no_grad():
                        value = float(loss_of(held, likeliest(self._selector(inputs[held]), self.k))) - floor
                    if value < min(self.history_, default=np.inf):
                        best = copy.deepcopy(self._selector.state_dict())
                    self.history_.append(value)
                advance(1, f"validation {self.history_[-1]:.4f}" if self.history_ else "")
        self._selector.load_state_dict(best)
        self._selector.eval().requires_grad_(False)

    def _inputs(self, rows: Rows) -> Tensor:
        codes = torch.from_numpy(rows.table.matrix).to(self.device)
        starts = range(0, len(codes), ROWS_AT_A_TIME)
        return torch.cat([self._features(codes[start : start + ROWS_AT_A_TIME]) for start in starts])

    def _player_of(self, game: Game) -> Tensor:
        """The player that each input of the network belongs to, (width,)."""
        seen = self._features
        columns = torch.cat([seen.numbers, seen.missing, seen.known_column if seen.one_hot else seen.missing[:0]])
        return torch.from_numpy(game.players.column_player).to(self.device)[columns]

    def explain(self, X: Any, outputs: Any = None) -> Explanation:
        """The selector's scores; `outputs`, if they are given, are only passed on."""
        if self._game is None:
            raise NotFittedError("this L2X is not fitted; call fit(game, X) first")
        game = self._game
        rows = game.rows(X)
        account = Account(game)
        full = np.zeros((len(rows), game.n_outputs)) if outputs is None else full_values(game, rows, outputs)
        with torch.inference_mode():
            first = torch.softmax(self._selector(self._inputs(rows)).double(), dim=1)
            scores = (1 - (1 - first) ** self.k).cpu().numpy()
        values = np.repeat(scores[..., None], game.n_outputs, axis=2)
        explanation = account.close(rows, values, full, "l2x (selection scores)")
        return explanation if outputs is not None else replace(explanation, outputs=None)


def relaxed_subset(logits: Tensor, uniforms: Tensor, temperature: float) -> Tensor:
    """About k features, (rows, players) in 0..1: the largest, player by player, of k Gumbel-softmax draws.

    `logits` (rows, players), `uniforms` (rows, k, players) in [0, 1).
    """
    tiny = torch.finfo(uniforms.dtype).tiny
    gumbel = -torch.log(-torch.log(uniforms.clamp(min=tiny)))
    # A float's largest uniform below one gives a finite Gumbel number; zero is lifted to the smallest positive one.
    return torch.softmax((logits[:, None, :] + gumbel) / temperature, dim=2).amax(dim=1)


def likeliest(logits: Tensor, k: int) -> Tensor:
    """1 for the k features with the largest logits, 0 elsewhere, (rows, players)."""
    return torch.zeros_like(logits).scatter_(1, logits.topk(k, dim=1).indices, 1.0)


def variational_loss(predicted: Tensor, target: Tensor, family: Family) -> Tensor:
    """-E log q, up to a constant: logits or means `predicted`, probabilities or outputs `target`, (rows, outputs)."""
    if family == "bernoulli":
        return F.binary_cross_entropy_with_logits(predicted, target)
    if family == "categorical":
        return F.cross_entropy(predicted, target)
    return F.mse_loss(predicted, target)


def entropy(target: Tensor, family: Family) -> float:
    """The smallest `variational_loss` there is."""
    if family == "gaussian":
        return 0.0
    if family == "categorical":
        return float(torch.special.entr(target).sum(dim=1).mean())
    return float((torch.special.entr(target) + torch.special.entr(1 - target)).mean())


def _family(game: Game, outputs: Any) -> Family:
    """Probabilities of one class, of all classes, or numbers."""
    if game.model.output != "probability":
        return "gaussian"
    if game.n_outputs == 1:
        return "bernoulli"
    return "categorical" if np.allclose(outputs.sum(axis=1), 1, atol=1e-4) else "gaussian"
