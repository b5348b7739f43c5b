"""Inclusion and exclusion curves: how the model's answer follows when players go, or come, by importance.

order = importance_order(explanation, classes)
masking_curves(net, reference_fill(images, 0, players), order, classes)        # the model, zero masking
masking_curves(net, road_fill(images, players, seed=0), order, classes)        # the model, ROAD's imputation
masking_curves(surrogate, reference_fill(images, 0, players), order, classes)  # a surrogate
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.errors import InputError, ModelError
from cortx.metrics.inputs import Array, Attributions, as_explanation, finite_values
from cortx.seeding import numpy_generator

Score = Literal["top1", "log_odds", "delta_log_odds"]
SCORES: tuple[Score, ...] = ("top1", "log_odds", "delta_log_odds")
Predict = Callable[[Tensor], Tensor]
"""Images (m, ...) -> logits (m, classes)."""
Fill = Callable[[Tensor, Tensor], Tensor]
"""Kept players (m, players) bool, and which image each mask is for, (m,) -> the masked images (m, ...)."""
# Numbers in a chunk of masked images: the imputation is fastest where its vectors stay in a processor's cache.
CHUNK_NUMBERS_CPU, CHUNK_NUMBERS_GPU = 2**18, 2**23


@dataclass(frozen=True, eq=False)
class ImageFill:
    """Images that lose players; `impute(images, present, index)` says what stands where they were.

    It sees the images (m, channels, height, width), which of their pixels are present, (m, height, width), and
    which images they are, (m,).
    """

    images: Tensor
    """(images, channels, height, width), or (images, height, width) for grey ones."""
    pixel_player: Tensor
    """(height, width): the player of each pixel."""
    impute: Callable[[Tensor, Tensor, Tensor], Tensor]

    @cached_property
    def n_players(self) -> int:
        return int(self.pixel_player.max()) + 1

    def __call__(self, kept: Tensor, index: Tensor) -> Tensor:
        device = self.images.device
        kept, index = kept.to(device), index.to(device)
        if kept.ndim != 2 or kept.shape[1] != self.n_players or kept.dtype != torch.bool:
            raise InputError(
                f"kept must be truth values of shape (masks, {self.n_players}), got {kept.dtype} of shape "
                f"{tuple(kept.shape)}"
            )
        present = kept[:, self.pixel_player]  # (m, height, width)
        images = self.images[index]
        colour = images if images.ndim == 4 else images[:, None]
        return self.impute(colour, present, index).reshape(images.shape)


def reference_fill(images: Tensor, absent: Any, pixel_player: npt.ArrayLike | Tensor) -> ImageFill:
    """Removed pixels become `absent`: a number, one image, or one for each, shaped as `images`.

    `images` (images, channels, height, width) or (images, height, width); `pixel_player` (height, width).
    """
    images, players = checked_images(images, pixel_player)
    reference = torch.as_tensor(absent, dtype=images.dtype, device=images.device)
    own = reference.ndim == images.ndim
    try:
        reference = reference.expand(images.shape if own else images.shape[1:])
    except RuntimeError as error:
        raise InputError(
            f"absent must be a number, one image {tuple(images.shape[1:])} or one for each, {tuple(images.shape)}, "
            f"got shape {tuple(reference.shape)}"
        ) from error

    def impute(batch: Tensor, present: Tensor, index: Tensor) -> Tensor:
        instead = reference[index] if own else reference[None]
        return torch.where(present[:, None], batch, instead.reshape(-1, *batch.shape[1:]))

    return ImageFill(images, players, impute)


def checked_images(images: Tensor, pixel_player: npt.ArrayLike | Tensor) -> tuple[Tensor, Tensor]:
    """The images, and the players of their pixels on the same device, refused where they do not fit together."""
    if not isinstance(images, Tensor) or images.dtype not in (torch.float32, torch.float64):
        kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise InputError(
            f"images must be a tensor of float32 or float64, got {kind}; uint8 pixels: images.float() / 255"
        )
    if images.ndim not in (3, 4) or len(images) == 0:
        raise InputError(
            "images must have shape (images, channels, height, width) or (images, height, width), at least one, got "
            f"{tuple(images.shape)}"
        )
    if not bool(images.isfinite().all()):
        raise InputError("images hold NaN or infinity; every pixel needs a number")
    players = torch.as_tensor(pixel_player, device=images.device)
    if players.shape != images.shape[-2:]:
        advice = "; the channels must come first: images.permute(0, 3, 1, 2)"
        raise InputError(
            f"pixel_player must be (height, width) = {tuple(images.shape[-2:])} as the images, got "
            f"{tuple(players.shape)}{advice if players.shape == images.shape[1:3] else ''}"
        )
    if players.is_floating_point() or players.dtype == torch.bool or int(players.min()) < 0:
        raise InputError("pixel_player must be whole numbers from 0: the player of each pixel")
    present = torch.unique(players)
    if len(present) != int(players.max()) + 1:
        raise InputError(f"pixel_player names player {int(players.max())}, but only {len(present)} players have pixels")
    return images.detach(), players.long()


def importance_order(
    attributions: Attributions | Tensor, classes: npt.ArrayLike | Tensor | None = None
) -> npt.NDArray[np.int64]:
    """Players from the highest value to the lowest, (images, players); tied players stand in column order.

    Attributions of several outputs, (images, players, outputs), need `classes` (images,): the output that counts.
    What a ranking head said counts instead of its values.
    """
    if isinstance(attributions, Tensor):
        attributions = attributions.detach().double().cpu().numpy()
    explanation = as_explanation(attributions, "attributions")
    if explanation.predicted_ranking is not None:
        return np.asarray(_of_class(explanation.predicted_ranking, classes), dtype=np.int64)
    values = _of_class(finite_values(explanation, "attributions"), classes)
    return np.argsort(-values, axis=1, kind="stable").astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Curve:
    """What the model said of every image while its players went, or came, from the most important on."""

    fractions: Array
    """(points,): the share of players removed (exclusion) or kept (inclusion)."""
    hits: npt.NDArray[np.bool_]
    """(images, points): whether the class was the model's first choice."""
    log_odds: Array
    """(images, points): log(p / (1 - p)) of the class."""
    original: Array
    """(images,): the log-odds of the whole image."""

    def values(self, score: Score) -> Array:
        """A score for every image and point, (images, points); delta log-odds = original - masked log-odds."""
        if score not in SCORES:
            raise InputError(f"score must be one of {', '.join(SCORES)}, got {score!r}")
        if score == "top1":
            return self.hits.astype(np.float64)
        return self.log_odds if score == "log_odds" else self.original[:, None] - self.log_odds

    def mean(self, score: Score) -> Array:
        """The mean over images, (points,)."""
        return np.asarray(self.values(score).mean(axis=0))

    def auc(self, score: Score) -> Array:
        """The area under the curve of each image over the fractions 0..1, by the trapezoid rule, (images,)."""
        return np.asarray(np.trapezoid(self.values(score), self.fractions, axis=1))


@dataclass(frozen=True, eq=False)
class MaskingCurves:
    """The curves of one method on one model; better: exclusion falls early, inclusion rises early."""

    exclusion: Curve
    """The k most important players removed."""
    inclusion: Curve
    """Only the k most important players kept."""
    evaluations: int
    """How many masked images the model saw."""

    def __len__(self) -> int:
        return len(self.exclusion.original)

    def summary(self, *, draws: int = 20, size: int = 666, seed: int = 0) -> dict[str, Any]:
        """For JSON: for both directions and each score the mean curve, the AUC and its spread under `bootstrap`."""
        result: dict[str, Any] = {
            "fractions": self.exclusion.fractions.tolist(),
            "images": len(self),
            "evaluations": self.evaluations,
        }
        for name, curve in (("exclusion", self.exclusion), ("inclusion", self.inclusion)):
            result[name] = {}
            for score in SCORES:
                mean, std = bootstrap(curve.auc(score), draws=draws, size=size, seed=seed)
                result[name][score] = {"curve": curve.mean(score).tolist(), "auc": mean, "auc_std": std}
        return result


def masking_curves(
    predict: Predict,
    fill: Fill,
    order: npt.ArrayLike | Tensor,
    classes: npt.ArrayLike | Tensor,
    *,
    points: int = 33,
    chunk: int | None = None,
) -> MaskingCurves:
    """Exclusion and inclusion curves (paper table:exin, tab:deltalogodds, tab:exp_sorrogate).

    `order` (images, players) from the most to the least important player, as `importance_order` gives it;
    `classes` (images,) the explained class. At most `points` numbers of players k, evenly spaced from none to all.
    `predict` sees `chunk` masked images at a time and 2 (points - 1) for each image in all: the two ends of both
    curves are the same.
    """
    if isinstance(predict, torch.nn.Module) and any(part.training for part in predict.modules()):
        raise InputError(
            "the model is in training mode, where its answers depend on the batch; call model.eval() first"
        )
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:
        raise InputError(f"points must be a whole number of at least 2 (none and all players), got {points!r}")
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise InputError(f"chunk must be a whole number of at least 1, got {chunk!r}")
    places = _places(order, fill)  # (images, players)
    n_images, n_players = places.shape
    wanted = _checked_classes(classes, n_images).to(places.device)
    steps = np.unique(np.rint(np.linspace(0, n_players, points)).astype(np.int64))
    # Every k of the exclusion, then the inclusion without its ends, which are the exclusion's in reverse.
    counts = torch.as_tensor(np.concatenate([steps, steps[1:-1]]), device=places.device)
    excluding = torch.arange(len(counts), device=places.device) < len(steps)
    hits, log_odds = [], []
    n_tasks = len(counts) * n_images
    at_a_time = chunk or _chunk_images(fill)
    for start in range(0, n_tasks, at_a_time):
        task = torch.arange(start, min(start + at_a_time, n_tasks), device=places.device)
        step, index = task // n_images, task % n_images
        kept = (places[index] < counts[step, None]) ^ excluding[step, None]
        with torch.no_grad():
            logits = predict(fill(kept, index))
        hit, odds = _scores(logits, wanted[index])
        hits.append(hit)
        log_odds.append(odds)
    hit_table = torch.cat(hits).view(-1, n_images).T.cpu().numpy()  # (images, counts)
    odds_table = torch.cat(log_odds).view(-1, n_images).T.cpu().double().numpy()
    if not np.isfinite(odds_table).all():
        bad = int(np.argmax(~np.isfinite(odds_table).all(axis=1)))
        raise ModelError(f"the model's logits give no finite log-odds, first for image {bad}; it must return logits")
    original = odds_table[:, 0]
    exclusion, inclusion = (
        Curve(steps / n_players, hit_table[:, columns], odds_table[:, columns], original)
        for columns in _columns(len(steps))
    )
    return MaskingCurves(exclusion, inclusion, n_tasks)


def class_log_odds(logits: Tensor, classes: Tensor) -> Tensor:
    """log(p / (1 - p)) of each row's class, (m, classes), (m,) -> (m,): its logit - logsumexp of the others."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    own = classes[:, None]
    return (logits.gather(1, own) - logits.scatter(1, own, -torch.inf).logsumexp(1, keepdim=True)).squeeze(1)


def bootstrap(per_image: npt.ArrayLike, *, draws: int = 20, size: int = 666, seed: int = 0) -> tuple[float, float]:
    """Mean and standard deviation of the means of `draws` random selections of `size` images, none taken twice.

    One seed selects the same images for all methods, so that they can be compared.
    """
    scores = np.asarray(per_image, dtype=np.float64)
    if scores.ndim != 1 or not np.isfinite(scores).all():
        raise InputError(f"per_image must be finite numbers of shape (images,), got shape {scores.shape}")
    if not 1 <= size <= len(scores):
        raise InputError(f"size must be 1 to {len(scores)} (the images), got {size}")
    if draws < 2:
        raise InputError(f"draws must be at least 2, got {draws}")
    generator = numpy_generator(seed, "bootstrap")
    means = [scores[generator.choice(len(scores), size, replace=False)].mean() for _ in range(draws)]
    return float(np.mean(means)), float(np.std(means, ddof=1))


def _of_class(values: npt.NDArray[Any], classes: npt.ArrayLike | Tensor | None) -> npt.NDArray[Any]:
    """(images, players) of the class of each image."""
    if values.ndim == 2:
        return values
    if classes is None:
        raise InputError(f"attributions of several outputs, shape {values.shape}, need classes, (images,)")
    wanted = _checked_classes(classes, len(values)).cpu().numpy()
    if wanted.max(initial=0) >= values.shape[2]:
        raise InputError(f"classes must be 0 to {values.shape[2] - 1} (the outputs), got {wanted.max()}")
    return values[np.arange(len(values)), :, wanted]


def _places(order: npt.ArrayLike | Tensor, fill: Fill) -> Tensor:
    """The place of each player in the order, (images, players), where the images are."""
    order = torch.as_tensor(order)
    if order.ndim != 2 or 0 in order.shape or order.is_floating_point():
        raise InputError(
            f"order must be whole numbers of shape (images, players), got {order.dtype} of shape {tuple(order.shape)}; "
            "attributions become one by importance_order"
        )
    if isinstance(fill, ImageFill):
        expected = (len(fill.images), fill.n_players)
        if order.shape != expected:
            raise InputError(f"order must be (images, players) = {expected} as in fill, got {tuple(order.shape)}")
        order = order.to(fill.images.device)
    sorted_players, places = order.long().sort(dim=1)
    wrong = (sorted_players != torch.arange(order.shape[1], device=order.device)).any(dim=1)
    if bool(wrong.any()):
        raise InputError(
            f"every row of order must hold each player 0..{order.shape[1] - 1} once; {int(wrong.sum())} do not, first "
            f"row {int(wrong.int().argmax())}"
        )
    return places


def _checked_classes(classes: npt.ArrayLike | Tensor, n_images: int) -> Tensor:
    wanted = torch.as_tensor(classes)
    if wanted.shape != (n_images,) or wanted.is_floating_point() or wanted.dtype == torch.bool:
        raise InputError(
            f"classes must be whole numbers of shape ({n_images},), one for each image, got {wanted.dtype} of shape "
            f"{tuple(wanted.shape)}"
        )
    if n_images and int(wanted.min()) < 0:
        raise InputError(f"classes must be 0 or more, got {int(wanted.min())}")
    return wanted.long()


def _chunk_images(fill: Fill) -> int:
    if not isinstance(fill, ImageFill):
        return 256
    numbers = CHUNK_NUMBERS_CPU if fill.images.device.type == "cpu" else CHUNK_NUMBERS_GPU
    return max(1, numbers // fill.images[0].numel())


def _scores(logits: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the class comes first, and its log-odds, (m,) each."""
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(classes) or logits.shape[1] < 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ModelError(f"predict must return logits of shape ({len(classes)}, 2 or more classes), got {shape}")
    classes = classes.to(logits.device)
    if int(classes.max()) >= logits.shape[1]:
        raise InputError(f"classes must be 0 to {logits.shape[1] - 1} (the model's outputs), got {int(classes.max())}")
    return logits.argmax(dim=1) == classes, class_log_odds(logits, classes)


def _columns(n_steps: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the points of the exclusion and of the inclusion stand among the evaluated ones."""
    exclusion = np.arange(n_steps)
    between = np.arange(n_steps, 2 * n_steps - 2)
    return exclusion, np.concatenate([exclusion[-1:], between, exclusion[:1]])
