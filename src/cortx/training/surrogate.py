"""`Surrogate`: a network that answers for masked images as the model does for whole ones.

A model that never saw masked images says little that is sensible about them. The surrogate learns, from images with
random parts removed, what the model says of the whole image (Frye et al. 2021; Jethani et al. 2022), and then stands
in for it in the game: v(S) is what can be expected of the model when only S is seen.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cortx.errors import InputError, NotFittedError
from cortx.games import Game
from cortx.games.absent import channels_first
from cortx.games.models import TorchModel
from cortx.images import ImageSchema
from cortx.progress import progress_bar
from cortx.seeding import numpy_generator, torch_generator
from cortx.threads import limited
from cortx.training.augment import augmented
from cortx.training.checkpoint import Checkpoint
from cortx.training.finetune import rate
from cortx.training.heads.head import scale_of
from cortx.training.resnet import ResNet18, settle, stem_stride
from cortx.training.stream import StreamConfig

AT_A_TIME, NUMBERS_AT_A_TIME = 1_024, 2**22
"""Images of one pass, and their numbers, at most: 1,024 images of CIFAR-10, 27 of 224 x 224 pixels in colour."""


class Surrogate:
    """A ResNet-18 distilled from a game's model on masked images.

    Parameters
    ----------
    epochs:
        How often every image is seen, each time with other parts removed.
    width:
        Channels of the first stage. Where the model is a `ResNet18` of this width itself, for images of this size,
        learning starts from its weights.
    flip, shift:
        Images are also learned from mirrored, and moved by up to so many pixels: the model is asked about these too.
    device:
        Where it learns; by default where the model is.

    After `fit`: ``game``, to explain; ``network``, the module; ``quality_`` on images that were held out; ``costs_``.
    """

    def __init__(
        self,
        *,
        epochs: int = 40,
        width: int = 64,
        batch_size: int = 512,
        learning_rate: float = 2e-3,
        weight_decay: float = 1e-2,
        flip: bool = True,
        shift: int = 4,
        validation_share: float = 0.05,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        if min(epochs, width, batch_size) < 1 or learning_rate <= 0 or not 0 < validation_share < 1 or shift < 0:
            raise InputError(
                "a surrogate needs epochs, width, batch_size >= 1, learning_rate > 0, 0 < validation_share < 1 and "
                "shift >= 0"
            )
        self.epochs, self.width, self.batch_size = epochs, width, batch_size
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.flip, self.shift, self.validation_share = flip, shift, validation_share
        self.seed, self.device = int(seed), device
        self.costs_: dict[str, Any] = {}
        self.quality_: dict[str, float] = {}
        self.history_: list[float] = []
        self._network: ResNet18 | None = None
        self._game: Game | None = None

    @property
    def network(self) -> ResNet18:
        if self._network is None:
            raise NotFittedError("this surrogate is not fitted; call fit(game, images)")
        return self._network

    @property
    def game(self) -> Game:
        """The game of the surrogate: the same parts and reference, its probabilities."""
        if self._game is None:
            raise NotFittedError("this surrogate is not fitted; call fit(game, images)")
        return self._game

    @limited()
    def fit(self, game: Game, images: Any, *, progress: bool | None = None) -> Surrogate:
        """Distils the model of an image game whose outputs are the probabilities of all classes."""
        if not isinstance(game, Game) or not game.of_images:
            raise InputError("a surrogate needs an image game: cortx.Game(model, reference, players=cortx.Patches(2))")
        started, before = perf_counter(), game.evaluations
        rows = game.rows(images)
        schema = game.schema
        assert isinstance(schema, ImageSchema)
        if game.model.output != "probability" or game.n_outputs < 2:
            raise InputError(
                "a surrogate learns the probabilities of all classes; make the game with output='probability' and "
                f"without target= (this one has output={game.model.output!r} and {game.n_outputs} outputs)"
            )
        device = torch.device(self.device or game.device)
        order = numpy_generator(self.seed, "surrogate", "rows").permutation(len(rows))
        n_held = max(1, round(self.validation_share * len(rows)))
        if len(rows) - n_held < 2:
            raise InputError(f"a surrogate needs at least a few images, got {len(rows)}")
        matrix = torch.from_numpy(rows.table.matrix).to(device)
        held, learned = (torch.from_numpy(part).to(device) for part in (order[:n_held], order[n_held:]))
        network = ResNet18(
            schema.n_channels, game.n_outputs, self.width, stem_stride(schema.size),
            generator=torch_generator(self.seed, "surrogate"),
        )  # fmt: skip
        start_from(network, game)
        settle(network, device)
        self._learn(network, game, matrix, learned, progress)
        network.eval().requires_grad_(False)
        last = schema.channels == "last" and not schema.grey
        self._network = network
        self._game = game.with_model(torch.nn.Sequential(ChannelsFirst(), network) if last else network)
        self.quality_ = quality(network, game, matrix[held], seed=self.seed)
        self.costs_ = {
            "evaluations": game.evaluations - before,
            "seconds": perf_counter() - started,
            "rows": len(learned),
        }
        return self

    def _learn(self, network: ResNet18, game: Game, matrix: Tensor, rows: Tensor, show: bool | None) -> None:
        device, size = matrix.device, min(self.batch_size, len(rows))
        per_epoch = len(rows) // size
        steps, step = self.epochs * per_epoch, 0
        optimizer = torch.optim.AdamW(
            network.parameters(), self.learning_rate, weight_decay=self.weight_decay, fused=True
        )
        generator = torch_generator(self.seed, "surrogate", "batches", device=str(device))
        schema = game.schema
        assert isinstance(schema, ImageSchema)
        self.history_ = []
        losses: list[Tensor] = []
        with progress_bar("learning from masked images", steps, show=show) as advance:
            for _ in range(self.epochs):
                shuffled = rows[torch.randperm(len(rows), generator=generator, device=device)]
                for number in range(per_epoch):
                    index = shuffled[number * size : (number + 1) * size]
                    whole = augmented(matrix[index], schema, flip=self.flip, shift=self.shift, generator=generator)
                    target = whole_outputs(game, whole)
                    kept = even_coalitions(size, game.n_players, generator, device)
                    for group in optimizer.param_groups:
                        group["lr"] = self.learning_rate * rate(step / steps, "one-cycle")
                    network.train()
                    logits = predict(network, game.masked_images(whole, kept), schema)
                    loss = F.kl_div(F.log_softmax(logits, dim=1), target, reduction="batchmean")
                    optimizer.zero_grad()
                    torch.autograd.backward(loss)
                    optimizer.step()
                    losses.append(loss.detach())
                    step += 1
                    advance(1, f"{game.evaluations:,} evaluations")
                self.history_.append(float(torch.stack(losses).mean()))
                losses.clear()


class ChannelsFirst(torch.nn.Module):
    """(images, height, width, channels) to (images, channels, height, width)."""

    def forward(self, images: Tensor) -> Tensor:
        return images.permute(0, 3, 1, 2)


def start_from(network: ResNet18, game: Game) -> bool:
    """Copies the weights of the model's own ResNet-18, if it holds exactly one of the same shape."""
    found = own_resnet(game, **network.settings)
    if found is not None:
        network.load_state_dict(found.state_dict())
    return found is not None


def own_resnet(game: Game, **settings: int) -> ResNet18 | None:
    """The one ResNet-18 with these settings inside the model, if there is one."""
    module = game.model.module if isinstance(game.model, TorchModel) else None
    found = [] if module is None else [part for part in module.modules() if isinstance(part, ResNet18)]
    # Modules that were pickled before stems had a stride do not name it.
    same = len(found) == 1 and {"stride": 1, **found[0].settings} == {"stride": 1, **settings}
    return found[0] if same else None


def whole_outputs(game: Game, matrix: Tensor) -> Tensor:
    """v(all), (images, outputs), on the device of the images."""
    everyone = torch.ones((len(matrix), 1, game.n_players), dtype=torch.bool, device=game.device)
    return game.values_of(matrix.to(game.device), everyone)[:, 0].clone().to(matrix.device)


def even_coalitions(count: int, n_players: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Random coalitions, (count, players): every size from none to all equally often."""
    size = torch.randint(n_players + 1, (count, 1), generator=generator, device=device)
    place = torch.rand((count, n_players), generator=generator, device=device).argsort(dim=1).argsort(dim=1)
    return place < size


def predict(network: torch.nn.Module, matrix: Tensor, schema: ImageSchema) -> Tensor:
    """Logits (images, outputs) of flat images; on a GPU in reduced precision."""
    on_gpu = matrix.device.type == "cuda"
    images = channels_first(matrix, schema)
    images = images.to(memory_format=torch.channels_last) if on_gpu else images
    with torch.autocast(matrix.device.type, torch.bfloat16, enabled=on_gpu):
        logits: Tensor = network(images)
    return logits.float()


@torch.no_grad()
def quality(network: torch.nn.Module, game: Game, matrix: Tensor, *, seed: int) -> dict[str, float]:
    """How often a surrogate says what the model says of the whole image, and how far off it is, on held-out images.

    ``agreement`` for whole images, ``masked_agreement`` with half of the parts removed at random, and for comparison
    ``model_masked_agreement``: how often the model itself keeps its mind on these.
    """
    schema = game.schema
    assert isinstance(schema, ImageSchema)
    generator = torch_generator(seed, "surrogate", "quality", device=str(matrix.device))
    sums = torch.zeros(4, device=matrix.device)
    size = min(AT_A_TIME, max(1, NUMBERS_AT_A_TIME // schema.n_numbers))
    for start in range(0, len(matrix), size):
        whole = matrix[start : start + size]
        half = torch.rand((len(whole), game.n_players), generator=generator, device=matrix.device)
        half = half.argsort(dim=1).argsort(dim=1) < game.n_players // 2
        target = whole_outputs(game, whole)
        best = target.argmax(dim=1)
        masked = game.masked_images(whole, half)
        logits, logits_masked = predict(network, whole, schema), predict(network, masked, schema)
        kept = game.values_of(whole.to(game.device), half[:, None].to(game.device))[:, 0].to(matrix.device)
        parts = [(one.argmax(dim=1) == best).sum() for one in (logits, logits_masked, kept)]
        divergence = F.kl_div(F.log_softmax(logits_masked, dim=1), target, reduction="sum")
        sums += torch.stack([*(part.float() for part in parts), divergence])
    shares = (sums / len(matrix)).tolist()
    names = ("agreement", "masked_agreement", "model_masked_agreement", "masked_divergence")
    return {"images": float(len(matrix)), **dict(zip(names, shares, strict=True))}


def imitate(
    network: ResNet18,
    game: Game,
    matrix: Tensor,
    steps: int,
    config: StreamConfig,
    *,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None = None,
) -> list[float]:
    """Teaches a network what any image game says of masked images, v(S) itself: where an encoder starts from.

    The loss is the squared distance over the variance of each output. Returns its means by hundreds of steps.
    """
    kept_before = checkpoint.load("imitation")
    if kept_before is not None:
        network.load_state_dict({name.removeprefix("network."): tensor for name, tensor in kept_before[0].items()})
        return [float(one) for one in kept_before[1]["history"]]
    schema, device, size = game.schema, matrix.device, min(config.batch_size, len(matrix))
    assert isinstance(schema, ImageSchema)
    generator = torch_generator(seed, "imitation", device=str(device))
    optimizer = torch.optim.AdamW(
        network.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    scale: Tensor | None = None
    losses: list[Tensor] = []
    network.train()
    with progress_bar("learning to see masked images", steps, show=show) as advance:
        for step in range(steps):
            index = torch.randint(len(matrix), (size,), generator=generator, device=device)
            whole = augmented(matrix[index], schema, flip=config.flip, shift=config.shift, generator=generator)
            kept = even_coalitions(size, game.n_players, generator, device)
            values = game.values_of(whole.to(game.device), kept[:, None].to(game.device))[:, 0].clone().to(device)
            if scale is None:
                centre = values.mean(dim=0)
                scale = scale_of(values - centre)
                scale = scale.clamp(min=1e-6 * float(scale.max()))
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * rate(step / steps, "one-cycle")
            logits = predict(network, game.masked_images(whole, kept), schema)
            loss = (logits - (values - centre) / scale).square().mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
            advance(1, f"{game.evaluations:,} evaluations")
    network.eval()
    history = [float(torch.stack(losses[first : first + 100]).mean()) for first in range(0, len(losses), 100)]
    checkpoint.save(
        "imitation", {f"network.{name}": tensor for name, tensor in network.state_dict().items()}, history=history
    )
    return history
