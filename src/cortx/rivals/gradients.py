"""Methods that follow the gradient of a class to the pixels, through captum; and what all methods for images share."""

from __future__ import annotations

import importlib
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cortx.errors import InputError, ModelError, need
from cortx.explanation import Explanation
from cortx.games import Game, Rows
from cortx.games.absent import own_image
from cortx.games.models import TorchModel, evaluating
from cortx.images import Images, ImageSchema
from cortx.rivals.base import Array, Rival, full_values
from cortx.seeding import stream_seed


class Logits(nn.Module):
    """The network as captum sees it: images to the logits of the game's outputs, (n, outputs), counted."""

    def __init__(self, game: Game, target: int | str | None) -> None:
        super().__init__()
        assert isinstance(game.model, TorchModel)
        self.network, self.game, self.target = game.model.module, game, target

    def forward(self, images: Tensor) -> Tensor:
        self.game.count(len(images))
        logits = self.network(images)
        if not isinstance(logits, Tensor) or logits.ndim not in (1, 2):
            raise ModelError(f"the network must return logits, (images, classes), got {_kind(logits)}")
        return self.columns(logits[:, None] if logits.ndim == 1 else logits)

    def columns(self, outputs: Tensor) -> Tensor:
        """Those of the network's outputs that the game explains."""
        if self.game.n_outputs > 1:
            if outputs.shape[1] != self.game.n_outputs:
                raise InputError("the network has one logit for two classes; leave target= out of the game")
            return outputs
        if self.target is None:
            return outputs[:, -1:]  # of two classes a game explains the second
        if outputs.shape[1] == 1:
            raise InputError("the network has one logit for two classes; leave target= out of the game")
        return outputs[:, [int(self.target)]]


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images on the network's device, what replaces them, and which output of the game is explained of each."""

    net: Logits
    schema: ImageSchema
    images: Tensor
    """(n, *schema.shape), as the network takes them."""
    absent: Tensor
    """Of the same shape: the reference of each image."""
    classes: Tensor
    """(n,): positions among the game's outputs."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def game(self) -> Game:
        return self.net.game

    def parts(self, size: int) -> Iterator[Pictures]:
        """At most `size` images at a time."""
        for start in range(0, len(self), max(1, size)):
            part = slice(start, start + max(1, size))
            yield replace(self, images=self.images[part], absent=self.absent[part], classes=self.classes[part])


class ImageRival(Rival):
    """A method that explains one class of each image, by its pixels.

    `explain(images, outputs, classes=)`: `classes`, (n,), says which class of each image, by default the one with the
    highest output. `values` are (n, players); `base_values` and `outputs`, (n,), are v(none) and v(all) of that class
    under the game. The values need not add up to them: what these methods explain is the logit of the class (RISE: its
    probability), whatever the output of the game.

    An evaluation is one image that passes through the network, forward alone or forward and backward; the game counts
    them with its own. `batch` is how many images, or changed copies of images, go through in one pass: by default 64 on
    a CPU and 1,024 elsewhere. Weights and images are used in the network's own precision. The network is put in
    evaluation mode, and back.
    """

    library: ClassVar[str | None] = None
    default_batch: ClassVar[tuple[int, int]] = (64, 1_024)
    per_player: ClassVar[Literal["sum", "mean"]] = "sum"
    """Of the attributions of a player's pixels (and channels)."""

    def __init__(self, game: Game, *, batch: int | None = None, seed: int = 0) -> None:
        if self.library is not None:
            try:
                importlib.import_module(self.library)
            except ImportError as error:
                raise need(self.library, f"the rival {self.name!r}", "peers") from error
        if not game.of_images or not isinstance(game.model, TorchModel):
            what = type(game.model).__name__ if game.of_images else "a game of tables"
            raise InputError(
                f"{self.name} explains images with a torch module, got {what}; make the game with "
                "players=cortx.Patches(...) or Segments(...), of a torch.nn.Module"
            )
        if game.removes:
            raise InputError(
                f"{self.name} looks at whole or mixed images, and this game's model removes absent parts by itself "
                "(reference='removed'); make the game with reference='zero', 'mean', 'blur' or an image"
            )
        self.game, self.seed = game, seed
        self.batch = self.default_batch[game.device.type != "cpu"] if batch is None else whole(batch, "batch")

    @abstractmethod
    def maps(self, pictures: Pictures) -> Tensor:
        """Attributions of all numbers of the images, (n, *shape), or of their pixels, (n, height, width)."""

    def explain(self, X: Any, outputs: Any = None, *, classes: Any = None) -> Explanation:
        game = self.game
        rows = game.rows(X)
        started, spent = perf_counter(), game.evaluations
        full = full_values(game, rows, outputs)
        empty = game.empty_values(rows)
        target = game.spec(rows.table.schema).target
        chosen = _chosen(classes, full, target)
        assert isinstance(game.model, TorchModel)
        with evaluating(game.model.module):
            maps = self.maps(_pictures(game, rows, target, chosen))
        values = to_players(maps.detach(), game, self.per_player)
        each = np.arange(len(rows)), chosen
        return Explanation(
            values=values.double().cpu().numpy(),
            base_values=np.array(empty[each]),
            feature_names=game.players.names,
            data=rows.data,
            outputs=full[each],
            evaluations=game.evaluations - spent,
            seconds=perf_counter() - started,
            method=self.name,
        )


class Gradient(ImageRival):
    """What the methods from captum share."""

    library: ClassVar[str | None] = "captum"

    copies: int = 1
    """Of each image, in the network at a time."""

    def maps(self, pictures: Pictures) -> Tensor:
        self.prepare(pictures)
        parts = []
        for part in pictures.parts(self.batch // self.copies):
            part.images.requires_grad_()
            parts.append(self.attribute(part).detach())
        return torch.cat(parts)

    def prepare(self, pictures: Pictures) -> None:
        """Once, before the images."""

    @abstractmethod
    def attribute(self, part: Pictures) -> Tensor:
        """captum on images that fit one batch."""


class Saliency(Gradient):
    """Saliency (Simonyan et al. 2013): the absolute gradients of the logit. One evaluation for each image."""

    name: ClassVar[str] = "saliency"

    def attribute(self, part: Pictures) -> Tensor:
        from captum.attr import Saliency as Method

        maps: Tensor = Method(part.net).attribute(part.images, target=part.classes)
        return maps


class IntegratedGradients(Gradient):
    """Integrated gradients (Sundararajan et al. 2017) from the game's reference to the image; they add up in the logit.

    `steps` evaluations for each image, at the points of a Gauss-Legendre rule.
    """

    name: ClassVar[str] = "integrated-gradients"

    def __init__(self, game: Game, *, steps: int = 50, batch: int | None = None, seed: int = 0) -> None:
        super().__init__(game, batch=batch, seed=seed)
        self.steps = self.copies = whole(steps, "steps")

    def attribute(self, part: Pictures) -> Tensor:
        return integrated(part, part.absent, self.steps, self.batch)


class SmoothGrad(Gradient):
    """SmoothGrad (Smilkov et al. 2017): the mean saliency of `samples` copies with Gaussian noise.

    `noise` is its deviation as a share of the range of the pixels; the authors advise 0.1 to 0.2, and 50 copies. The
    noise comes from torch's global generator of the network's device, the only one that captum knows: it is seeded for
    each batch and put back. The draws of an image depend on its place in its batch.
    """

    name: ClassVar[str] = "smoothgrad"

    def __init__(
        self, game: Game, *, samples: int = 50, noise: float = 0.15, batch: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(game, batch=batch, seed=seed)
        if not noise > 0:
            raise InputError(f"noise must be a positive share of the range of the pixels, got {noise!r}")
        self.samples = self.copies = whole(samples, "samples")
        self.noise = float(noise)

    def maps(self, pictures: Pictures) -> Tensor:
        with _global_generator(self.game.device, stream_seed(self.seed, self.name)):
            return super().maps(pictures)

    def attribute(self, part: Pictures) -> Tensor:
        from captum.attr import NoiseTunnel
        from captum.attr import Saliency as Method

        low, high = part.schema.pixels
        maps: Tensor = NoiseTunnel(Method(part.net)).attribute(
            part.images,
            target=part.classes,
            nt_samples=self.samples,
            nt_samples_batch_size=min(self.samples, self.batch),
            stdevs=self.noise * (high - low),
        )
        return maps


class GradCAM(Gradient):
    """GradCAM (Selvaraju et al. 2017): the channels of a layer, weighted by their mean gradients and added.

    `layer` is the name of a layer in ``net.named_modules()``; by default the last whose output has four axes and more
    than one place, found with one evaluation. Its map is stretched to the pixels bilinearly. As in captum it is signed;
    ``positive=True`` cuts it at zero, as its authors do. One evaluation for each image.
    """

    name: ClassVar[str] = "gradcam"

    def __init__(
        self,
        game: Game,
        *,
        layer: str | None = None,
        positive: bool = False,
        batch: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(game, batch=batch, seed=seed)
        assert isinstance(game.model, TorchModel)
        self.layer, self.positive = layer, positive
        self._layers = dict(game.model.module.named_modules())
        if layer is not None and layer not in self._layers:
            names = [name for name in self._layers if name]
            raise InputError(f"the network has no layer {layer!r}; its layers are {', '.join(names)}")
        self._used = layer

    def prepare(self, pictures: Pictures) -> None:
        if self.layer is None:
            spatial = [name for name, output in _trace(pictures, self._layers) if _is_map(output)]
            if not spatial:
                raise InputError(
                    "gradcam needs a layer whose output is (images, channels, height, width), and the network has none"
                )
            self._used = spatial[-1]

    def attribute(self, part: Pictures) -> Tensor:
        from captum.attr import LayerGradCam

        assert self._used is not None
        method = LayerGradCam(part.net, self._layers[self._used])
        maps = method.attribute(part.images, target=part.classes, relu_attributions=self.positive)
        if not isinstance(maps, Tensor) or not _is_map(maps):
            raise InputError(
                f"the layer {self._used!r} gives {_kind(maps)}; gradcam needs (images, channels, height, width)"
            )
        return nn.functional.interpolate(maps.detach(), part.schema.size, mode="bilinear", align_corners=False)[:, 0]


class DeepSHAP(Gradient):
    """DeepSHAP (Lundberg and Lee 2017): captum's DeepLift, rescale rule, with the game's reference as the one baseline.

    Two evaluations for each image, and one for a check. They add up in the logit as long as every nonlinearity is a
    module of its own (ReLU, ELU, LeakyReLU, Sigmoid, Tanh, Softplus): captum takes functions, such as ``torch.relu``,
    for linear, and behind MaxPool modules the sums are only near, because where inputs of one do not differ from
    the reference captum takes the gradient of the first image in the batch. Modules that work in place or are used more
    than once are refused.
    """

    name: ClassVar[str] = "deepshap"
    copies = 2

    def prepare(self, pictures: Pictures) -> None:
        from captum.attr._core.deep_lift import SUPPORTED_NON_LINEAR

        kinds = tuple(SUPPORTED_NON_LINEAR)
        modules = {name: part for name, part in pictures.net.network.named_modules() if isinstance(part, kinds)}
        inside = [name for name, part in modules.items() if getattr(part, "inplace", False)]
        if inside:
            raise InputError(
                f"deepshap cannot follow modules that work in place: {_few(inside)}; build the network with "
                "inplace=False"
            )
        used = [name for name, _ in _trace(pictures, modules)]
        again = sorted({name for name in used if used.count(name) > 1})
        if again:
            raise InputError(
                f"deepshap cannot follow modules that are used more than once in a pass: {_few(again)}; give each use "
                "a module of its own"
            )

    def attribute(self, part: Pictures) -> Tensor:
        from captum.attr import DeepLift

        with warnings.catch_warnings():
            # That hooks are set and removed again.
            warnings.filterwarnings("ignore", r"\s*Setting forward, backward hooks", UserWarning)
            maps: Tensor = DeepLift(part.net).attribute(part.images, baselines=part.absent, target=part.classes)
        return maps


def integrated(part: Pictures, start: Tensor, steps: int, batch: int) -> Tensor:
    """Integrated gradients of the logit along the line from `start` to the images, in passes of about `batch`."""
    from captum.attr import IntegratedGradients as Method

    # captum cuts the steps, not the images.
    size = max(batch, len(part)) if steps * len(part) > batch else None
    maps: Tensor = Method(part.net).attribute(
        part.images, baselines=start, target=part.classes, n_steps=steps, internal_batch_size=size
    )
    return maps


def to_players(maps: Tensor, game: Game, how: Literal["sum", "mean"]) -> Tensor:
    """Attributions of numbers or pixels, (n, ...), joined by players: (n, players)."""
    players = game.image_players
    flat = maps.reshape(len(maps), -1)
    owner = players.column_player if flat.shape[1] == len(players.column_player) else players.pixel_player.ravel()
    index = torch.from_numpy(owner).to(flat.device)
    sums = flat.new_zeros(len(flat), len(players)).index_add(1, index, flat)
    return sums if how == "sum" else sums / torch.bincount(index, minlength=len(players))


def whole(number: Any, name: str, least: int = 1) -> int:
    """A setting that counts something."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < least:
        raise InputError(f"{name} must be a whole number, at least {least}, got {number!r}")
    return int(number)


def _chosen(classes: Any, full: Array, target: int | str | None) -> npt.NDArray[np.int64]:
    """The position among the game's outputs that is explained of each image, (n,)."""
    n, n_outputs = full.shape
    if classes is None:
        highest: npt.NDArray[np.int64] = full.argmax(axis=1)
        return highest
    array = np.asarray(classes.cpu() if isinstance(classes, Tensor) else classes)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise InputError(
            f"classes must be {n} whole numbers, one for each image, got shape {array.shape} of {array.dtype}"
        )
    if n_outputs == 1:
        if target is None or (array != target).any():
            raise InputError("the game explains one output; leave classes= out, or the game's target= if it has one")
        return np.zeros(n, dtype=np.int64)
    if array.min() < 0 or array.max() >= n_outputs:
        raise InputError(f"classes must be 0..{n_outputs - 1}, got {array.min()} to {array.max()}")
    return array.astype(np.int64)


def _pictures(game: Game, rows: Rows, target: int | str | None, chosen: npt.NDArray[np.int64]) -> Pictures:
    table = rows.table
    assert isinstance(table, Images)
    schema = table.schema
    matrix = torch.from_numpy(table.matrix).to(game.device)
    absent = torch.from_numpy(game.absent).to(game.device).expand_as(matrix)
    if game.own_reference is not None:
        absent = own_image(game.own_reference, matrix, schema)
    shape, dtype = (len(matrix), *schema.shape), game.model.dtype
    # A copy, because gradients are asked of it.
    images = matrix.reshape(shape).to(dtype, copy=True)
    classes = torch.from_numpy(chosen).to(game.device)
    return Pictures(Logits(game, target), schema, images, absent.reshape(shape).to(dtype), classes)


def _trace(pictures: Pictures, modules: dict[str, nn.Module]) -> list[tuple[str, Any]]:
    """The names of modules in the order in which they finish, with their outputs, in a pass of one image."""
    seen: list[tuple[str, Any]] = []
    hooks = []
    for name, module in modules.items():

        def note(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
            seen.append((name, output))

        hooks.append(module.register_forward_hook(note))
    try:
        with torch.no_grad():
            pictures.net(pictures.images[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return seen


@contextmanager
def _global_generator(device: torch.device, seed: int) -> Iterator[None]:
    """torch's global generators of the CPU and of the device, seeded; afterwards as they were."""
    gpu = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpu):
        torch.default_generator.manual_seed(seed)
        if gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _is_map(output: Any) -> bool:
    return isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] * output.shape[3] > 1


def _kind(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _few(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
