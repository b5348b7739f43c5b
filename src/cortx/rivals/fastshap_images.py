"""FastSHAP for images (Jethani et al. 2022): a U-Net that learns the values of all patches and classes at once."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cortx.errors import InputError, NotFittedError
from cortx.explanation import Explanation
from cortx.games import Game
from cortx.games.absent import channels_first
from cortx.images import ImageSchema
from cortx.progress import progress_bar
from cortx.rivals.base import Account, Rival, full_values
from cortx.rivals.fastshap import _too_small, size_probabilities, squared_residuals
from cortx.seeding import torch_generator
from cortx.threads import limited
from cortx.training.augment import augmented
from cortx.training.axioms import efficiency, exact_total
from cortx.training.step import Step, make_optimizer, set_rate

MAPS_AT_A_TIME = 8
"""How many float32 maps of the base width, as large as the image, the U-Net holds for each image, about."""


@dataclass(frozen=True)
class ImageFastSHAPSettings:
    """Network and schedule of the authors' CIFAR-10 notebook and the defaults of their code."""

    batch_size: int = 128
    samples: int = 2
    """Fresh coalitions for each image of a batch, in pairs of complements."""
    epochs: int = 200
    learning_rate: float = 2e-4
    smallest_rate: float = 1e-5
    rate_factor: float = 0.5
    """What the rate is multiplied with after `lookback` // 2 epochs that were no better."""
    lookback: int = 10
    """Training ends after so many epochs that were no better."""
    efficiency_weight: float = 1e-2
    """Of the squared efficiency gap in the loss; their `eff_lambda`."""
    validation_images: int = 500
    """At most a fifth of the images that are given."""
    validation_samples: int = 4
    flip: bool = True
    """Whether half of the images of a batch are mirrored, left to right."""
    shift: int = 4
    """By how many pixels the images of a batch are moved, at most; black comes in."""
    base_channels: int = 64

    def __post_init__(self) -> None:
        whole = (self.batch_size, self.samples, self.epochs, self.lookback, self.validation_images)
        if min(*whole, self.validation_samples, self.base_channels) < 1 or self.shift < 0:
            raise InputError("ImageFastSHAP's counts must be at least 1, and its shift not negative")
        if self.samples % 2 or self.batch_size < 2:
            raise InputError(
                f"samples come in pairs and a batch has at least two images, got samples={self.samples}, "
                f"batch_size={self.batch_size}"
            )
        if not 0 < self.smallest_rate <= self.learning_rate or not 0 < self.rate_factor < 1:
            raise InputError("0 < smallest_rate <= learning_rate and 0 < rate_factor < 1 must hold")
        if self.efficiency_weight < 0:
            raise InputError(f"efficiency_weight must not be negative, got {self.efficiency_weight}")


class ImageFastSHAP(Rival):
    """Minimises n E_x E_S mean over outputs of (v(S) - v(none) - sum of phi(x) over S)^2, S from the Shapley kernel.

    `FastSHAP` of games of images whose players are patches, with the authors' network: a U-Net whose output has one
    place for each patch. Images are moved and mirrored at random, so v(all) is asked anew with every batch: a step
    costs batch_size * (samples + 1) evaluations (one more for each image where it is its own reference).

    Parameters
    ----------
    settings:
        `ImageFastSHAPSettings`; by default as published.
    normalization:
        Additive efficient normalization of the predictions, inside the loss and in `explain`. Without it values need
        not add up.
    device:
        Where the U-Net is; by default where the game's model is, so that nothing travels.

    After `fit`: ``costs_`` (evaluations, seconds, rows, samples, epochs, steps) and ``history_``, the validation loss
    after every epoch; the best epoch is kept.
    """

    name: ClassVar[str] = "fastshap-images"

    def __init__(
        self,
        settings: ImageFastSHAPSettings | None = None,
        *,
        normalization: bool = True,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        self.settings = ImageFastSHAPSettings() if settings is None else settings
        self.normalization, self.seed, self.device = normalization, int(seed), device
        self.costs_: dict[str, Any] = {}
        self.history_: list[float] = []
        self._game: Game | None = None
        self._network: UNet

    # Learning -----------------------------------------------------------------------------------------------

    @limited()
    def fit(
        self,
        game: Game,
        images: Any,
        budget: int | None = None,
        *,
        validation: Any = None,
        progress: bool | None = None,
    ) -> ImageFastSHAP:
        """Learns from images; `budget` counts every model evaluation: v(none), v(all), validation and training.

        `validation` are images that choose the best epoch by the loss; by default some of `images`, which then train
        nothing. The published schedule runs to its own end where no budget stops it; a budget for more than
        ``settings.epochs`` epochs is only spent with more ``settings.samples``.
        """
        started, before = perf_counter(), game.evaluations
        if not game.of_images:
            raise InputError("ImageFastSHAP explains games of images, this is one of tables; use FastSHAP")
        if budget is not None and budget < 1:
            raise _too_small(budget, 1)
        rows = game.rows(images)
        self._check(game)
        given = None if validation is None else game.rows(validation)
        _ = game.base_values
        left = None if budget is None else int(budget) - (game.evaluations - before)

        n_held = 0 if given is not None else min(self.settings.validation_images, max(1, len(rows) // 5))
        if len(rows) - n_held < 2:
            raise InputError(
                f"ImageFastSHAP needs at least two images to learn from and one to validate, got {len(rows)}"
            )
        matrix = torch.from_numpy(rows.table.matrix).to(game.device)
        order = torch.randperm(len(rows), generator=self._generator(game, "split"), device=game.device)
        held = matrix[order[:n_held]] if given is None else torch.from_numpy(given.table.matrix).to(game.device)
        facts = self._learn(game, matrix, order[n_held:], held, left, progress)
        self._network.eval().requires_grad_(False)
        self._game = game
        spent = game.evaluations - before
        assert budget is None or spent <= budget
        self.costs_ = {"evaluations": spent, "seconds": perf_counter() - started, **facts}
        return self

    def _check(self, game: Game) -> None:
        if game.image_players.grid is None:
            raise InputError(
                "ImageFastSHAP's network has one place for each patch of a grid, and this game has segments; make it "
                "with players=cortx.Patches(...)"
            )
        if game.n_players < 2:
            raise InputError("the Shapley kernel needs at least two players; choose smaller patches")
        size = _schema(game).size
        if self.settings.shift >= min(size):
            raise InputError(
                f"shift={self.settings.shift} moves images of {size[0]} x {size[1]} pixels out of sight; give less"
            )

    def _learn(
        self, game: Game, matrix: Tensor, train: Tensor, held: Tensor, left: int | None, show: bool | None
    ) -> dict[str, Any]:
        settings = self.settings
        batch_size = min(settings.batch_size, len(train))
        per_epoch = len(train) // batch_size
        ends = 1 if game.own_reference is None else 2  # v(all), and v(none) where every image has its own
        step_cost = batch_size * (settings.samples + ends)
        fixed = len(held) * (settings.validation_samples + ends)
        if left is not None and left < fixed + step_cost:
            raise _too_small(left, fixed + step_cost)
        most = settings.epochs * per_epoch if left is None else (left - fixed) // step_cost
        epochs = min(settings.epochs, -(-most // per_epoch))

        self._network = network = self._build(game, matrix)
        place = network.mean.device
        sizes = torch.from_numpy(size_probabilities(game.n_players)).to(game.device)
        draws = self._generator(game, "validation")
        empty = torch.from_numpy(game.base_values).to(game.device, torch.float32)
        checks = draw_coalitions(len(held), settings.validation_samples, sizes, draws)
        check = _Batch(held, checks, *_ask(game, held, checks, empty)).to(place)
        optimizer = make_optimizer(network, settings.learning_rate)

        def loss_of(flat: Tensor, kept: Tensor, values: Tensor, total: Tensor) -> Tensor:
            return self._loss(network(flat), kept, values, total)

        do = Step(loss_of, optimizer, state=network.buffers())
        # The schedule of an optimizer that trains nothing: what it says is copied, whatever kind of number a rate is.
        pace = torch.optim.SGD([torch.zeros(1)], lr=settings.learning_rate)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
            pace, factor=settings.rate_factor, patience=settings.lookback // 2, min_lr=settings.smallest_rate
        )
        draws = self._generator(game, "training")
        best, best_epoch, self.history_ = copy.deepcopy(network.state_dict()), -1, []
        epoch, done = 0, 0
        with progress_bar("FastSHAP (images)", epochs, show=show) as advance, _repeatable():
            for epoch in range(epochs):
                network.train()
                order = train[torch.randperm(len(train), generator=draws, device=game.device)]
                for start in range(0, min(per_epoch, most - done) * batch_size, batch_size):
                    flat = self._moved(matrix[order[start : start + batch_size]], _schema(game), draws)
                    kept = draw_coalitions(batch_size, settings.samples, sizes, draws)
                    do(_Batch(flat, kept, *_ask(game, flat, kept, empty)).to(place).tensors)
                    done += 1
                network.eval()
                value = self._validation_loss(game, check)
                schedule.step(value)
                set_rate(optimizer, pace.param_groups[0]["lr"])
                if value < min(self.history_, default=np.inf):
                    best, best_epoch = copy.deepcopy(network.state_dict()), epoch
                self.history_.append(value)
                advance(1, f"validation {value:.3g}")
                if epoch - best_epoch == settings.lookback:
                    break
        network.load_state_dict(best)
        facts = {"rows": len(train), "samples": settings.samples, "validation_rows": len(held)}
        return {**facts, "epochs": epoch + 1, "steps": done}

    def _loss(self, raw: Tensor, kept: Tensor, values: Tensor, total: Tensor) -> Tensor:
        """n times the mean squared residual, and efficiency gap of what was predicted, `raw` (n, players, outputs)."""
        gap = (total - raw.sum(dim=1)).square().mean()
        loss = squared_residuals(self._settled(raw, total), kept.to(raw.dtype), values)
        return raw.shape[1] * (loss + self.settings.efficiency_weight * gap)

    def _build(self, game: Game, matrix: Tensor) -> UNet:
        schema, grid = _schema(game), game.image_players.grid
        assert grid is not None
        spread, mean = (channels_first(part[None], schema) for part in torch.var_mean(matrix, dim=0, correction=0))
        network = UNet(
            schema,
            grid,
            game.n_outputs,
            base_channels=self.settings.base_channels,
            generator=torch_generator(self.seed, "fastshap-images", "network"),
        )
        network.mean.copy_(mean.mean(dim=(2, 3), keepdim=True))
        spread = spread + (mean - network.mean.to(mean.device)).square()
        network.deviation.copy_(spread.mean(dim=(2, 3), keepdim=True).sqrt().clamp(min=1e-3))
        # Channels last are what convolutions like best, most of all in reduced precision.
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        network.to(game.device if self.device is None else self.device)
        return network

    def _moved(self, flat: Tensor, schema: ImageSchema, draws: torch.Generator) -> Tensor:
        """Images of a batch, (images, numbers), each moved and mirrored at random."""
        settings = self.settings
        return augmented(flat, schema, flip=settings.flip, shift=settings.shift, generator=draws, fill=schema.pixels[0])

    def _generator(self, game: Game, name: str) -> torch.Generator:
        return torch_generator(self.seed, "fastshap-images", name, device=str(game.device))

    # Predicting ---------------------------------------------------------------------------------------------

    def _settled(self, raw: Tensor, total: Tensor) -> Tensor:
        """Everybody shares the gap, as published: (images, players, outputs), (images, outputs)."""
        return efficiency(raw, total, _everybody(raw)) if self.normalization else raw

    def _chunk(self, game: Game) -> int:
        """Images that go through the U-Net at a time."""
        height, width = _schema(game).size
        bytes_each = 4 * MAPS_AT_A_TIME * self.settings.base_channels * height * width
        return max(1, game.memory_budget // bytes_each)

    @torch.inference_mode()
    def _validation_loss(self, game: Game, check: _Batch) -> float:
        size, total = self._chunk(game), torch.zeros((), device=check.flat.device, dtype=torch.float64)
        for start in range(0, len(check.flat), size):
            part = check.take(slice(start, start + size))
            values = self._settled(self._network(part.flat), part.total)
            total += len(part.flat) * squared_residuals(values, part.kept.to(values.dtype), part.values)
        return game.n_players * float(total) / len(check.flat)

    def explain(self, X: Any, outputs: Any = None) -> Explanation:
        """One forward pass for all outputs, and v(all) of every image where `outputs` does not give it."""
        if self._game is None:
            raise NotFittedError("this ImageFastSHAP is not fitted; call fit(game, images, budget=...) first")
        game = self._game
        rows = game.rows(X)
        account = Account(game)
        full, empty = full_values(game, rows, outputs), game.empty_values(rows)
        place = self._network.mean.device
        total = torch.from_numpy(full - empty).to(place)
        flat = torch.from_numpy(rows.table.matrix)
        values = np.empty((len(rows), game.n_players, game.n_outputs))
        size = self._chunk(game)
        with torch.inference_mode():
            for start in range(0, len(rows), size):
                part = slice(start, start + size)
                raw = self._network(flat[part].to(place))
                if self.normalization:
                    raw = exact_total(raw, total[part], _everybody(raw))
                values[part] = raw.cpu().numpy()
        return account.close(rows, values, full, self.name, empty)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Images and what was asked of them.

    `flat` (n, numbers), `kept` (n, k, players), `values` = v(S) - v(none), (n, k, outputs), `total` = v(all) - v(none),
    (n, outputs).
    """

    flat: Tensor
    kept: Tensor
    values: Tensor
    total: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.flat, self.kept, self.values, self.total

    def to(self, device: torch.device) -> _Batch:
        return _Batch(*(tensor.to(device) for tensor in self.tensors))

    def take(self, part: slice) -> _Batch:
        return _Batch(*(tensor[part] for tensor in self.tensors))


def _ask(game: Game, flat: Tensor, kept: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
    """v(S) - v(none), (n, k, outputs), and v(all) - v(none), (n, outputs), of images (n, numbers), in one call.

    `empty` (outputs,) is v(none), unless each image is its own reference.
    """
    n, k, n_players = kept.shape
    asked = [kept, kept.new_ones((n, 1, n_players))]
    if game.own_reference is not None:
        asked.append(kept.new_zeros((n, 1, n_players)))
    # A GPU is not waited for in every step; a loss that is not finite shows at the end of the epoch.
    answers = game.values_of(flat, torch.cat(asked, dim=1), check=flat.device.type == "cpu")
    answers = answers - (empty if game.own_reference is None else answers[:, k + 1 :])
    return answers[:, :k], answers[:, k]


def draw_coalitions(n: int, count: int, sizes: Tensor, generator: torch.Generator) -> Tensor:
    """Draws from the Shapley kernel, (n, count, players) bool: every odd one is the complement of the one before it.

    `sizes` (players - 1,) says how often a coalition of 1, 2, ... players is drawn; all of one size are equally likely.
    """
    drawn, n_players, device = -(-count // 2), len(sizes) + 1, sizes.device
    edges = sizes.cumsum(0)[:-1]
    place = torch.rand((n, drawn, 1), generator=generator, device=device, dtype=edges.dtype)
    size = 1 + torch.searchsorted(edges, place, right=True)
    order = torch.rand((n, drawn, n_players), generator=generator, device=device).argsort(dim=2)
    first = torch.arange(n_players, device=device) < size
    kept = torch.empty_like(first).scatter_(2, order, first)
    return torch.stack([kept, ~kept], dim=2).flatten(1, 2)[:, :count]


class UNet(nn.Module):
    """Flat images, (images, numbers), to one number for each patch and output, (images, players, outputs).

    Three convolutions at every scale, with batch normalization; max pooling on the way down, bilinear stretching and a
    skip connection on the way up, until a place stands for a patch. With patches of 2 x 2 pixels this is the authors'
    network: two levels down, one up. What a patch holds beyond a power of two is averaged at the end.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        schema: ImageSchema,
        grid: tuple[int, int],
        n_outputs: int,
        *,
        base_channels: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.schema = schema
        down, up, self.rest = levels(schema.size, grid)
        sizes = [(schema.size[0] >> level, schema.size[1] >> level) for level in range(down + 1)]
        # The deepest level is no wider than the one above it, as both meet on the way up.
        widths = [base_channels << min(level, max(down - 1, 0)) for level in range(down + 1)]
        self.first = _convolutions(schema.n_channels, widths[0], widths[0], generator)
        self.down = nn.ModuleList(_convolutions(a, b, b, generator) for a, b in pairwise(widths))
        self.up = nn.ModuleList()
        width = widths[-1]
        for level in range(down - 1, down - 1 - up, -1):
            is_last = level == down - up
            outputs = widths[level] if is_last else widths[level] // 2
            self.up.append(_Up(sizes[level + 1], sizes[level], width + widths[level], outputs, generator))
            width = outputs
        self.last = _conv(width, n_outputs, 1, generator, bias=True)
        self.register_buffer("mean", torch.zeros(1, schema.n_channels, 1, 1))
        self.register_buffer("deviation", torch.ones(1, schema.n_channels, 1, 1))

    def reduced(self) -> AbstractContextManager[Any]:
        """Reduced precision on a GPU: bfloat16 to learn, float16 to answer."""
        kind = torch.bfloat16 if self.training else torch.float16
        return torch.autocast(self.mean.device.type, kind, enabled=self.mean.device.type == "cuda")

    def forward(self, flat: Tensor) -> Tensor:
        images = (channels_first(flat, self.schema) - self.mean) / self.deviation
        images = images.contiguous(memory_format=torch.channels_last)
        with self.reduced():
            maps = [self.first(images)]
            for block in self.down:
                maps.append(block(F.max_pool2d(maps[-1], 2)))
            x = maps.pop()
            for block in self.up:
                x = block(x, maps.pop())
        places = F.avg_pool2d(self.last(x.float()), self.rest)  # (images, outputs, rows, columns)
        return places.flatten(2).transpose(1, 2)


class _Up(nn.Module):
    """Stretches a map and joins it to a finer one."""

    tall: Tensor
    wide: Tensor

    def __init__(
        self, small: tuple[int, int], large: tuple[int, int], inputs: int, outputs: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.join = _convolutions(inputs, inputs // 2, outputs, generator)
        self.register_buffer("tall", stretch(small[0], large[0]), persistent=False)
        self.register_buffer("wide", stretch(small[1], large[1]), persistent=False)

    def forward(self, x: Tensor, finer: Tensor) -> Tensor:
        # Two products with the weights of bilinear interpolation, along axes as they lie in memory with channels last:
        # the gradient of torch's own is not repeatable on a GPU.
        x = x.permute(0, 2, 3, 1)
        x = (self.tall @ x.flatten(2)).view(len(x), -1, *x.shape[2:])
        joined: Tensor = self.join(torch.cat([finer, (self.wide @ x).permute(0, 3, 1, 2)], dim=1))
        return joined


def stretch(small: int, large: int) -> Tensor:
    """The weights of linear interpolation from `small` places to `large`, (large, small), their ends in line."""
    place = torch.arange(large) * ((small - 1) / max(large - 1, 1))
    return (1 - (place[:, None] - torch.arange(small)).abs()).clamp(min=0)


def levels(size: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int, tuple[int, int]]:
    """Levels down, levels up, and what is averaged at the end, so that images of `size` come out at `grid`."""
    patch = size[0] // grid[0], size[1] // grid[1]
    halvings = 0
    while patch[0] % 2 == 0 and patch[1] % 2 == 0:
        patch, halvings = (patch[0] // 2, patch[1] // 2), halvings + 1
    down = min(max(2, halvings + 1), min(size).bit_length() - 1)
    return down, down - halvings, patch


def _convolutions(inputs: int, middle: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    widths = (inputs, middle, middle, outputs)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        # No bias: batch normalization would take it away again.
        layers += [_conv(before, after, 3, generator, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def _conv(inputs: int, outputs: int, size: int, generator: torch.Generator, *, bias: bool) -> nn.Conv2d:
    """A convolution that keeps the size, with PyTorch's usual uniform weights, from a given generator."""
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=bias, device="meta").to_empty(device="cpu")
    bound = 1 / sqrt(inputs * size * size)
    with torch.no_grad():
        for weights in layer.parameters():
            weights.uniform_(-bound, bound, generator=generator)
    return layer


@contextmanager
def _repeatable() -> Iterator[None]:
    """The same seed gives the same network: cuDNN leaves out what depends on who comes first."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def _schema(game: Game) -> ImageSchema:
    assert isinstance(game.schema, ImageSchema)
    return game.schema


def _everybody(values: Tensor) -> Tensor:
    return torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
