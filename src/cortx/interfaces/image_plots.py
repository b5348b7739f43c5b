"""Pictures of explained images. Each function returns a matplotlib ``Figure`` and, given a `path`, saves it as PNG.

Images come as an image game takes them: (images, channels, height, width), channels last, or grey
(images, height, width); uint8 or floats. Red parts raise the output, blue parts lower it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cortx.drawing import INK, PALE, finished, new_figure, one_line, tidy
from cortx.errors import InputError
from cortx.explanation import Explanation
from cortx.tables import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["compare_images", "heat_maps", "image", "masking_curves"]

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Labels = Sequence[int | str] | npt.NDArray[Any]
Output = int | str | Labels | None

# From weak to strong; red and blue stay apart for colour-blind people.
LOWERS, RAISES = ("#3d8fd6", "#0a4a94"), ("#ef5a4c", "#a80f20")
STRONGEST = 99  # percent of |values| that the colours tell apart; the few beyond share the last colour
OPACITY = 0.9
PALEST, CONTRAST = 0.98, 0.36  # the grey picture below a heat map, so that colours are not lost in dark parts
SHARP = 256  # pixels of a smoothed heat map or of hatching, at least
STRIPES, STRIPE = 22, "#4a4f55"  # across a hatched panel
TITLE, SMALL_TITLE = 9.5, 8.5  # points of type
MOST_IMAGES, A_LINE, MOST_CELLS = 64, 8, 400
FEW = 3  # images, up to which the three panels of explanations with bounds stand side by side

DIRECTIONS = ("exclusion", "inclusion")
METRICS = {"top1": "top-1 accuracy", "log_odds": "log-odds", "delta_log_odds": "delta log-odds"}
HIGHLIGHT = "#d55e00"
LOOKS = (
    ("#0072b2", "s"), ("#009e73", "X"), ("#cc79a7", "h"), ("#56b4e9", "^"), ("#8c6d00", "v"), ("#7b3294", "D"),
    ("#4d4d4d", "P"), ("#15305b", "d"), ("#e69f00", "<"), ("#b39c7d", ">"), ("#00664b", "*"),
)  # fmt: skip
COARSE = 8
"""Patches a side below which smoothing would hide more than it shows."""
LINES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))


def image(
    images: Any,
    explanation: Explanation,
    *,
    output: Output = None,
    smooth: bool | int | None = None,
    names: Sequence[str] | None = None,
    labels: Labels | None = None,
    overlay: bool = True,
    players: Any = None,
    pixels: tuple[float, float] | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Each image with what the model says of it, and the heat map of its attributions over the image in grey.

    `output` is the class to explain: a number, a name, one of these for each image, or None for the class with the
    largest model output. `smooth` averages each patch with its neighbours (True: 3 x 3, or the width of the window) and
    blends between patches; False draws the attributions as they are; None smooths where there are eight patches a side
    or more. Without `overlay` the heat map stands alone.
    `names` are the names of the classes, `labels` the true classes of the images, `pixels` the numbers of black and
    white. `players` is ``game.players`` or a map (height, width) of the player of each pixel; explanations of patches
    do without it. Every heat map has its own scale, symmetric about zero, to the 99th percentile of |value|; it is
    titled with the class it explains, the model's output for that class, and the end of its scale.

    An explanation with bounds has a second heat map for each image. Parts whose bounds exclude zero have the colour of
    the first, on the same scale; those that may raise or lower the output are hatched. It answers what readers ask of
    a map, which parts they may believe, with the colours that they know already; a map of the widths of the bounds
    would need a second scale, and readers would have to compare two colours for each part. It is never smoothed,
    because bounds hold for parts and not for what is blended between them.
    """
    window = _window(smooth)
    pictures = _pictures(images, len(explanation), players, pixels)
    scene = _Scene.of(pictures, {"the explanation": explanation}, output, names, labels, players)
    [layer] = scene.layers
    figure, grid, width = _panels(pictures, scene, 2 if layer.bounds is None else 3)
    scales = []
    for i, picture in enumerate(pictures):
        first, second = grid[i, :2]
        _draw_picture(first, picture)
        _title(first, scene.about(i), TITLE, width)
        scales.append(_draw_heat(second, picture, layer.cells(i), window, overlay))
        _title(second, _caption(scene.explained(i), scales[i]), SMALL_TITLE, width)
        if layer.bounds is not None:
            n_certain = _draw_certain(grid[i, 2], picture, layer, i, scales[i], overlay)
            said = ["sign certain:", f"{n_certain} of {layer.values.shape[1]} parts"]
            _title(grid[i, 2], said, SMALL_TITLE, width)
    what = scene.what if len(pictures) == 1 else f"{scene.what}\n(full colour: the ± above each map)"
    hatched = None if layer.bounds is None else _hatch_meaning(explanation.confidence)
    _colour_key(figure, grid, what, scales[0] if len(pictures) == 1 else None, hatched)
    return finished(figure, path)


def compare_images(
    images: Any,
    explanations: Mapping[str, Explanation],
    *,
    output: Output = None,
    smooth: bool | int | None = None,
    names: Sequence[str] | None = None,
    labels: Labels | None = None,
    overlay: bool = True,
    players: Any = None,
    pixels: tuple[float, float] | None = None,
    path: str | Path | None = None,
) -> Figure:
    """A line for each image: the picture, then the heat map of every method (paper fig:cifardemo, fig:cifarapx).

    `explanations` maps the name of a method to its explanation, of all classes or of one. All methods show the same
    class: `output`, or by default the one with the largest model output that any of the explanations knows (the first
    that does); it is named where it is another one. Every heat map has its own scale. The other arguments are those
    of `image`.
    """
    window = _window(smooth)
    if not isinstance(explanations, Mapping) or len(explanations) == 0:
        raise InputError("explanations must map at least one method to its Explanation, as in {'CoRTX': explanation}")
    first = next(iter(explanations.values()))
    pictures = _pictures(images, len(first), players, pixels)
    scene = _Scene.of(pictures, explanations, output, names, labels, players)
    n_lines, n_columns = len(pictures), 1 + len(explanations)
    if n_lines * n_columns > MOST_CELLS:
        raise InputError(f"{n_lines} images of {n_columns - 1} methods are too many to see; choose some: images[:8]")
    cell = 1.3
    figure = new_figure("compare_images()", (max(n_columns * cell + 1.2, 4.0), n_lines * cell + 1.2))
    grid = figure.subplots(n_lines, n_columns, squeeze=False)
    for i, picture in enumerate(pictures):
        for axes in grid[i]:
            _blank(axes)
        _draw_picture(grid[i, 0], picture)
        grid[i, 0].set_ylabel(
            "\n".join([*scene.about(i), *scene.other_class(i)]),
            rotation=0, ha="right", va="center", labelpad=6, fontsize=9, color=INK,
        )  # fmt: skip
        for axes, layer in zip(grid[i, 1:], scene.layers, strict=True):
            _draw_heat(axes, picture, layer.cells(i), window, overlay)
    for axes, method in zip(grid[0], ("image", *explanations), strict=True):
        axes.set_title(_wrapped(method), fontsize=10, color=INK)
    _colour_key(figure, grid, f"{scene.what}\n(each heat map has its own scale)")
    return finished(figure, path)


def heat_maps(
    values: Mapping[str, npt.ArrayLike],
    grid: tuple[int, int],
    *,
    labels: Sequence[str] | None = None,
    smooth: bool | int | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Heat maps without their images: a line for each image, a column for each method.

    `values` maps a method to (images, players), where the players are patches that fill a `grid` (rows, columns) line
    by line; `labels` say what each image shows. Every heat map has its own scale.
    """
    window = _window(smooth)
    if not isinstance(values, Mapping) or len(values) == 0:
        raise InputError("values must map at least one method to its attributions, (images, players)")
    arrays = {method: np.asarray(given, dtype=np.float64) for method, given in values.items()}
    n_lines, n_columns = len(next(iter(arrays.values()))), len(arrays)
    for method, array in arrays.items():
        if array.shape != (n_lines, grid[0] * grid[1]) or not np.isfinite(array).all():
            raise InputError(
                f"{method} must have finite values of shape {(n_lines, grid[0] * grid[1])}, (images, players) of "
                f"{grid[0]} x {grid[1]} patches, got shape {array.shape}"
            )
    if not 1 <= n_lines * n_columns <= MOST_CELLS:
        raise InputError(f"can draw 1 to {MOST_CELLS} heat maps, got {n_lines} x {n_columns}; choose some images")
    if labels is not None and len(labels) != n_lines:
        raise InputError(f"labels must say what each of the {n_lines} images shows, got {len(labels)}")
    cell = 1.3
    figure = new_figure("heat_maps()", (max(n_columns * cell + 1.2, 4.0), n_lines * cell + 1.2))
    axes_grid = figure.subplots(n_lines, n_columns, squeeze=False)
    nothing = np.ones(grid)
    for i, line in enumerate(axes_grid):
        for axes, array in zip(line, arrays.values(), strict=True):
            _blank(axes)
            _draw_heat(axes, nothing, array[i].reshape(grid), window, overlay=False)
            axes.add_patch(_frame(nothing))
        if labels is not None:
            line[0].set_ylabel(
                one_line(labels[i]), rotation=0, ha="right", va="center", labelpad=6, fontsize=9, color=INK
            )
    for axes, method in zip(axes_grid[0], arrays, strict=True):
        axes.set_title(_wrapped(method), fontsize=10, color=INK)
    _colour_key(figure, axes_grid, "the output (each heat map has its own scale)")
    return finished(figure, path)


def masking_curves(
    curves: Mapping[str, Mapping[str, Any]],
    *,
    metric: str = "top1",
    highlight: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Exclusion and inclusion curves of all methods, the best first in each legend with its area (paper fig:exin).

    `curves` maps a method to {"fractions": ..., "exclusion": ..., "inclusion": ...}: the share of the patches that are
    removed or put back, most important first, and lists of the `metric` there ("top1", "log_odds" or
    "delta_log_odds"). ``cortx.metrics.masking_curves(...).summary()`` is such a mapping too, and brings its own areas;
    else they are trapezoids. The method `highlight`, by default the first, stands out.
    """
    if metric not in METRICS:
        raise InputError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
    read = _read_curves(curves, metric)
    if highlight is None:
        highlight = next(iter(read))
    if highlight not in read:
        raise InputError(f"highlight {highlight!r} is no method; expected one of {', '.join(read)}")
    others = [method for method in read if method != highlight]
    figure = new_figure("masking_curves()", (13.5, max(3.9, 1.6 + 0.25 * len(read))))
    for k, (axes, verb) in enumerate(zip(figure.subplots(1, 2), ("removed", "put back"), strict=True)):
        # Delta log-odds is what masking takes away: there exclusion should be large.
        more_is_better = (k == 1) != (metric == "delta_log_odds")
        pair = {method: both[k] for method, both in read.items()}
        for method in sorted(pair, key=lambda method: pair[method].area * (-1 if more_is_better else 1)):
            curve = pair[method]
            label = f"{curve.written}  {one_line(method)}"
            if method == highlight:
                axes.plot(100 * curve.x, curve.y, color=HIGHLIGHT, linewidth=3.0, label=label, zorder=5)
                continue
            place = others.index(method)
            colour, marker = LOOKS[place % len(LOOKS)]
            every = max(1, len(curve.x) // 8)
            axes.plot(
                100 * curve.x, curve.y, color=colour, linestyle=LINES[place % len(LINES)], linewidth=1.4, label=label,
                zorder=3, marker=marker, markersize=5, markevery=(place % every, every), markeredgecolor="white",
                markeredgewidth=0.5,
            )  # fmt: skip
        axes.set_xlabel(f"% of the patches {verb}, most important first")
        axes.set_ylabel(METRICS[metric])
        kind, better = DIRECTIONS[k], "more" if more_is_better else "less"
        axes.set_title(f"{kind} ({better} is better)", fontsize=11, color=INK)
        axes.margins(x=0.01)
        if metric == "top1":
            axes.set_ylim(-0.02, 1.02)
        tidy(axes)
        key = axes.legend(
            title="AUC", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9, labelcolor=INK,
            handlelength=3.0, alignment="left",
        )  # fmt: skip
        key.get_title().set(color=INK, fontsize=9)
        for text in key.get_texts():
            if text.get_text().endswith(f"  {one_line(highlight)}"):
                text.set_fontweight("bold")
    return finished(figure, path)


# What the pictures read from images and explanations ---------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    """The attributions of one method, for the class that each image shows."""

    values: Array
    """(images, players)"""
    cell_player: IntArray
    """The player of each patch of a grid, or of each pixel where players are segments, (rows, columns)."""
    bounds: tuple[Array, Array] | None
    """Below and above `values`, (images, players) each, where they are known."""

    def cells(self, i: int) -> Array:
        """The attributions of one image on the grid of patches or pixels, (rows, columns)."""
        return np.asarray(self.values[i][self.cell_player])

    def certain(self, i: int) -> tuple[Array, BoolArray, BoolArray]:
        """One image's values, where the bounds exclude zero, and where they hold it and more; (players,) each."""
        assert self.bounds is not None
        lower, upper = self.bounds[0][i], self.bounds[1][i]
        certain = (lower > 0) | (upper < 0)
        # A value may lie outside its bounds; a colour must not contradict them.
        inside = np.where(certain, np.clip(self.values[i], lower, upper), 0)
        return inside, certain, ~certain & (lower != upper)


@dataclass(frozen=True)
class _Scene:
    """What is drawn and written: a layer for each method, and what is known of each image."""

    layers: tuple[_Layer, ...]
    predicted: tuple[str, ...] | None
    labels: tuple[str, ...] | None
    classes: tuple[str, ...] | None
    """The explained class of each image and the model's output for it, where there are several outputs."""
    what: str
    """What parts raise and lower."""

    def about(self, i: int) -> list[str]:
        """What to write at image i."""
        said = [] if self.predicted is None else [self.predicted[i]]
        return said if self.labels is None else [*said, f"true: {self.labels[i]}"]

    def explained(self, i: int) -> list[str]:
        """The class that image i shows, where there are several."""
        return [] if self.classes is None else [f"for {self.classes[i]}"]

    def other_class(self, i: int) -> list[str]:
        """The same, where it is not the one that the model says."""
        said = None if self.predicted is None else self.predicted[i]
        return [] if self.classes is None or self.classes[i] == said else [f"maps for {self.classes[i]}"]

    @staticmethod
    def of(
        pictures: Array,
        explanations: Mapping[str, Explanation],
        output: Output,
        names: Sequence[str] | None,
        labels: Labels | None,
        players: Any,
    ) -> _Scene:
        for method, explanation in explanations.items():
            if not isinstance(explanation, Explanation):
                raise InputError(f"{method} must be an Explanation, got {type(explanation).__name__}")
            if len(explanation) != len(pictures):
                raise InputError(f"{method} has {len(explanation)} rows for {len(pictures)} images; give one each")
            if not np.isfinite(explanation.values).all():
                raise InputError(f"{method} has values that are NaN or infinite; leave their images out")
        several = {method: e for method, e in explanations.items() if e.values.ndim == 3}
        class_names = _class_names(several, names)
        outputs = next((e.outputs for e in several.values() if e.outputs is not None), None)
        chosen = _chosen(several, output, outputs, class_names, len(pictures))
        layers = tuple(
            _Layer(
                _of_class(e.values, chosen),
                _cell_player(method, e, players, (pictures.shape[1], pictures.shape[2])),
                _bounds(e, chosen),
            )
            for method, e in explanations.items()
        )
        given = None if labels is None else _label_names(labels, names or class_names, len(pictures))
        predicted = _predictions(explanations, outputs, class_names)
        if not several:
            return _Scene(layers, predicted, given, None, "the model's output")
        what = "the probability (0 to 1) of the class"
        what = what if _are_shares(outputs) else "the model's output for the class"
        return _Scene(layers, predicted, given, _outputs_said(outputs, chosen, class_names), what)


def _of_class(values: npt.NDArray[Any], chosen: IntArray) -> Array:
    """The chosen class of each image, or the only output; (images, players[, outputs]) -> (images, players)."""
    array = np.asarray(values, dtype=np.float64)
    return array if array.ndim == 2 else array[np.arange(len(array)), :, chosen]


def _bounds(explanation: Explanation, chosen: IntArray) -> tuple[Array, Array] | None:
    if explanation.lower_bounds is None or explanation.upper_bounds is None:
        return None
    return _of_class(explanation.lower_bounds, chosen), _of_class(explanation.upper_bounds, chosen)


def _pictures(
    images: Any, n_rows: int, players: Any, pixels: tuple[float, float] | None
) -> Array:  # (images, height, width) or (images, height, width, 3)
    """The images as matplotlib draws them, from 0 to 1; other numbers of channels than 1, 3 and 4 become their mean."""
    array = plain(images)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "buif" or array.ndim not in (3, 4):
        got = f"shape {array.shape} of {array.dtype}" if isinstance(array, np.ndarray) else type(images).__name__
        raise InputError(
            "images must be an array or a tensor (images, channels, height, width), (images, height, width, channels) "
            f"or (images, height, width), got {got}; one image is images[None]"
        )
    if len(array) != n_rows:
        raise InputError(f"there are {len(array)} images but {n_rows} explained rows; one image is images[None]")
    if not 1 <= len(array) <= MOST_IMAGES or array.size == 0:
        raise InputError(f"can draw 1 to {MOST_IMAGES} images, got shape {array.shape}; choose some: images[:8]")
    if not np.isfinite(array).all():
        raise InputError("the images have pixels that are NaN or infinite; leave those images out")
    shown = _zero_to_one(array, pixels)
    if shown.ndim == 3:
        return shown
    if _channels_first(array.shape, players):
        shown = np.moveaxis(shown, 1, 3)
    return shown[..., :3] if shown.shape[3] in (3, 4) else np.asarray(shown.mean(axis=3))


def _channels_first(shape: tuple[int, ...], players: Any) -> bool:
    size = None if players is None else np.shape(getattr(players, "pixel_player", players))
    if size is not None and (shape[2:] == size) != (shape[1:3] == size):
        return bool(shape[2:] == size)
    return shape[1] <= shape[3]  # an image has fewer channels than pixels in a line


def _zero_to_one(array: npt.NDArray[Any], pixels: tuple[float, float] | None) -> Array:
    """uint8 over 255; other numbers between `pixels`, by default 0..1, or all they reach where they go beyond that."""
    if pixels is not None and (len(pixels) != 2 or not pixels[0] < pixels[1]):
        raise InputError(f"pixels must be (black, white), got {pixels!r}")
    if array.dtype == np.uint8 and pixels is None:
        pixels = 0.0, 255.0
    numbers = array.astype(np.float64)
    low, high = float(numbers.min()), float(numbers.max())
    if pixels is None:
        pixels = (0.0, 1.0) if low >= -1e-3 and high <= 1 + 1e-3 else (low, high if high > low else low + 1)
    return np.asarray(np.clip((numbers - pixels[0]) / (pixels[1] - pixels[0]), 0, 1))


def _cell_player(method: str, explanation: Explanation, players: Any, size: tuple[int, int]) -> IntArray:
    """Which player lies where, (rows, columns): from `players`, or from names such as "patch 3,12"."""
    n_players = explanation.shape[1]
    if players is not None:
        pixel_player = np.asarray(getattr(players, "pixel_player", players))
        if pixel_player.dtype.kind not in "iu" or pixel_player.shape != size:
            raise InputError(
                f"players must be game.players of an image game, or a map {size} of whole numbers, the player of each "
                f"pixel; got shape {pixel_player.shape} of {pixel_player.dtype}"
            )
        if pixel_player.min() < 0 or pixel_player.max() >= n_players:
            raise InputError(
                f"players has the parts {pixel_player.min()} to {pixel_player.max()}, but {method} has {n_players}"
            )
        rows, columns = getattr(players, "grid", None) or size
        return pixel_player[:: size[0] // rows, :: size[1] // columns].astype(np.int64)
    found = [re.fullmatch(r"patch\s+(\d+)\s*,\s*(\d+)", name) for name in explanation.feature_names]
    places = [(int(match[1]), int(match[2])) for match in found if match is not None]
    if len(places) < n_players:
        lost = explanation.feature_names[[match is None for match in found].index(True)]
        raise InputError(f"cannot tell where {lost!r} of {method} lies; give players=game.players")
    rows, columns = (max(place) + 1 for place in zip(*places, strict=True))
    if len(set(places)) < n_players or rows * columns != n_players:
        raise InputError(f"the patches of {method} are no whole grid; give players=game.players")
    if size[0] % rows or size[1] % columns:
        raise InputError(
            f"{method} has {rows} x {columns} patches, which do not divide images of {size[0]} x {size[1]} pixels; "
            "give the images that were explained"
        )
    grid = np.empty((rows, columns), dtype=np.int64)
    for player, place in enumerate(places):
        grid[place] = player
    return grid


def _class_names(several: Mapping[str, Explanation], names: Sequence[str] | None) -> tuple[str, ...]:
    """The classes of the explanations that have several; () where none has."""
    counts = {method: explanation.shape[2] for method, explanation in several.items()}
    if len(set(counts.values())) > 1:
        raise InputError(f"the methods explain different numbers of classes: {counts}; leave out those that differ")
    if not several:
        return ()
    [n_classes] = set(counts.values())
    if names is not None:
        if isinstance(names, str) or len(names) != n_classes:
            raise InputError(f"names must name the {n_classes} classes, got {names!r:.200}")
        return tuple(map(str, names))
    known = (e.output_names for e in several.values() if e.output_names is not None)
    return next(known, tuple(f"class {k}" for k in range(n_classes)))


def _chosen(
    several: Mapping[str, Explanation],
    output: Output,
    outputs: npt.NDArray[Any] | None,
    class_names: tuple[str, ...],
    n_images: int,
) -> IntArray:
    """The number of the class that each image shows, (images,)."""
    if not several:
        # One output is all there is; to ask for another would be answered wrongly.
        if output is not None and not (isinstance(output, (int, np.integer)) and output in (0, -1)):
            raise InputError(f"there is one output alone, so output must be None or 0, got {output!r}")
        return np.zeros(n_images, dtype=np.int64)
    if output is None:
        if len(class_names) == 1:
            return np.zeros(n_images, dtype=np.int64)
        if outputs is None:
            raise InputError(
                f"the explanation has {len(class_names)} classes and does not know the model's outputs; say which "
                "class to show: output= a number, a name, or one of these for each image"
            )
        return np.asarray(np.argmax(outputs, axis=1), dtype=np.int64)
    given: Any = output.tolist() if hasattr(output, "tolist") else output
    asked = [given] * n_images if np.ndim(given) == 0 else list(given)
    if len(asked) != n_images:
        raise InputError(f"output must be one class, or one for each of the {n_images} images, got {len(asked)}")
    return np.array([_class_number(one, class_names) for one in asked], dtype=np.int64)


def _class_number(asked: Any, class_names: tuple[str, ...]) -> int:
    if isinstance(asked, str):
        if asked not in class_names:
            raise InputError(f"unknown output {asked!r}; expected one of {', '.join(class_names)}")
        return class_names.index(asked)
    whole = isinstance(asked, (int, np.integer)) and not isinstance(asked, bool)
    if not whole or not -len(class_names) <= asked < len(class_names):
        raise InputError(f"output {asked!r} is out of range; there are {len(class_names)} outputs, counted from 0")
    return int(asked) % len(class_names)


def _label_names(labels: Labels, names: Sequence[str], n_images: int) -> tuple[str, ...]:
    labels = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(labels, str) or len(labels) != n_images:
        raise InputError(f"labels must hold the true class of each of the {n_images} images, got {labels!r:.200}")
    return tuple(
        one_line(label if isinstance(label, str) or not names else names[_class_number(label, tuple(names))])
        for label in labels
    )


def _predictions(
    explanations: Mapping[str, Explanation], outputs: npt.NDArray[Any] | None, class_names: tuple[str, ...]
) -> tuple[str, ...] | None:
    """What the model says of each image: the class with the largest output, as a percentage where it is one."""
    if outputs is None:
        single = next((e.outputs for e in explanations.values() if e.outputs is not None), None)
        return None if single is None else tuple(f"output {_number(float(value))}" for value in np.ravel(single))
    return _outputs_said(outputs, np.argmax(outputs, axis=1), class_names)


def _outputs_said(outputs: npt.NDArray[Any] | None, chosen: IntArray, class_names: tuple[str, ...]) -> tuple[str, ...]:
    """A class for each image, with the model's output where it is known: as a percentage where it is one."""
    said = [one_line(class_names[k]) for k in chosen]
    if outputs is None:
        return tuple(said)
    shares = _are_shares(outputs)
    sizes = outputs[np.arange(len(outputs)), chosen]
    written = [f"{100 * size:.0f}%" if shares else _number(float(size)) for size in sizes]
    return tuple(f"{name}: {size}" for name, size in zip(said, written, strict=True))


def _are_shares(outputs: npt.NDArray[Any] | None) -> bool:
    """Whether outputs, (images, classes), are probabilities of classes that exclude each other."""
    if outputs is None or outputs.shape[1] < 2:
        return False
    return bool((outputs > -1e-6).all() and np.allclose(outputs.sum(axis=1), 1, atol=1e-3))


def _window(smooth: bool | int | None) -> int | None:
    """The width of the moving average in patches; 0 for none; None where the number of patches decides."""
    if smooth is None:
        return None
    if isinstance(smooth, (bool, np.bool_)):
        return 3 if smooth else 0
    if not isinstance(smooth, (int, np.integer)) or smooth < 1 or smooth % 2 == 0:
        raise InputError(f"smooth must be True, False or an odd whole number of patches, got {smooth!r}")
    return int(smooth)


@dataclass(frozen=True)
class _Curve:
    """A curve, (points,), with its area and the standard deviation of that where it is known."""

    x: Array
    y: Array
    area: float
    spread: float | None

    @property
    def written(self) -> str:
        area = f"{self.area:.3f}".replace("-", "−")
        return area if self.spread is None else f"{area} ± {self.spread:.3f}"


def _read_curves(curves: Mapping[str, Mapping[str, Any]], metric: str) -> dict[str, tuple[_Curve, ...]]:
    """The exclusion and the inclusion curve of each method."""
    keys = ("fractions", *DIRECTIONS)
    if not isinstance(curves, Mapping) or len(curves) == 0:
        raise InputError(f"curves must map at least one method to its {', '.join(keys)}")
    read = {}
    for method, given in curves.items():
        missing = [key for key in keys if key not in given]
        if missing:
            raise InputError(f"{method} lacks {', '.join(missing)}; it has {', '.join(map(str, given))}")
        x = _numbers(given["fractions"], f"fractions of {method}")
        if len(x) < 2 or (np.diff(x) <= 0).any() or x[0] < 0 or x[-1] > 1:
            raise InputError(f"fractions of {method} must ascend between 0 and 1, got {given['fractions']!r:.200}")
        read[str(method)] = tuple(_read_curve(given[kind], x, f"{kind} of {method}", metric) for kind in DIRECTIONS)
    return read


def _read_curve(given: Any, x: Array, what: str, metric: str) -> _Curve:
    """A list of heights, or {metric: {"curve": ..., "auc": ..., "auc_std": ...}}."""
    known: Mapping[str, Any] = {"curve": given}
    if isinstance(given, Mapping):
        if metric not in given:
            raise InputError(f"{what} has no {metric!r}; it has {', '.join(map(str, given))}")
        known = given[metric]
    y = _numbers(known["curve"], what)
    if len(y) != len(x):
        raise InputError(f"{what} has {len(y)} points for {len(x)} fractions; give one each")
    area = float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))
    spread = known.get("auc_std")
    return _Curve(x, y, float(known.get("auc", area)), None if spread is None else float(spread))


def _numbers(given: Any, what: str) -> Array:
    try:
        numbers = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must be a list of numbers, got {given!r:.200}") from error
    if numbers.ndim != 1 or not np.isfinite(numbers).all():
        raise InputError(f"{what} must be a list of finite numbers, got {given!r:.200}")
    return numbers


# How the pictures look ---------------------------------------------------------------------------------------


def moving_average(cells: Array, window: int) -> Array:
    """Each cell's mean over a window around it, of as many cells as lie inside, (rows, columns)."""
    reach = window // 2
    rows, columns = cells.shape
    total, count = np.zeros_like(cells), np.zeros_like(cells)
    for down in range(-min(reach, rows - 1), min(reach, rows - 1) + 1):
        for right in range(-min(reach, columns - 1), min(reach, columns - 1) + 1):
            here = np.s_[max(0, -down) : rows - max(0, down), max(0, -right) : columns - max(0, right)]
            there = np.s_[max(0, down) : rows + min(0, down), max(0, right) : columns + min(0, right)]
            total[here] += cells[there]
            count[here] += 1
    return np.asarray(total / count)


def enlarge(cells: Array, size: tuple[int, int]) -> Array:
    """Blends bilinearly between the centres of cells, (rows, columns) -> size; constant beyond the outer centres."""
    down, right = ((np.arange(n) + 0.5) * cells.shape[axis] / n - 0.5 for axis, n in enumerate(size))
    tall = np.stack([np.interp(down, np.arange(len(column)), column) for column in cells.T], axis=1)
    return np.stack([np.interp(right, np.arange(len(row)), row) for row in tall])


def _draw_picture(axes: Axes, picture: Array) -> None:
    axes.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest", extent=_extent(picture))


def _panels(pictures: Array, scene: _Scene, n_panels: int) -> tuple[Figure, Any, float]:
    """A figure, its axes, (images, panels), and their width; few images with three panels have them side by side."""
    n_images, height, width = pictures.shape[:3]
    beside = n_panels > 2 and n_images <= FEW
    n_columns = n_panels if beside else min(n_images, A_LINE)
    n_lines = n_images if beside else -(-n_images // A_LINE)
    cell = 1.7 if n_columns > 4 else 2.4
    above = 0.16 + 0.17 * max(len(_broken(scene.about(i), TITLE, cell)) for i in range(n_images))
    captions = [_broken(["±", *scene.explained(i)], SMALL_TITLE, cell) for i in range(n_images)]
    between = 0.12 + 0.16 * max(map(len, captions))
    panel = cell * min(1.5, max(0.4, height / width))
    tall = panel + max(above, between) if beside else n_panels * panel + above + (n_panels - 1) * between
    size = max(n_columns * cell, 3.8), n_lines * tall + (1.1 if n_panels > 2 else 0.8)
    figure = new_figure("image()", size)
    rows = n_lines if beside else n_panels * n_lines
    grid = figure.subplots(rows, n_columns, squeeze=False)
    for axes in grid.flat:
        _blank(axes)
    if not beside:  # (lines, panels, columns) -> (lines, columns, panels)
        grid = grid.reshape(n_lines, n_panels, n_columns).swapaxes(1, 2).reshape(-1, n_panels)
    return figure, grid, cell


def _draw_heat(axes: Axes, picture: Array, cells: Array, window: int | None, overlay: bool) -> float:
    """The heat map, over the greyed picture or alone; gives back the end of its scale."""
    if window is None:
        window = 3 if min(cells.shape) >= COARSE else 0
    if window:
        cells = moving_average(cells, window)
        height, width = picture.shape[:2]
        finer = _finer(picture)
        heat = enlarge(cells, (finer * height, finer * width))
    else:
        heat = _on_pixels(cells, picture)
    largest = float(np.abs(cells).max())
    # Where hardly any patch counts, the percentile is nothing beside the largest and all colours would be the last.
    scale = max(float(np.percentile(np.abs(cells), STRONGEST)), largest / 4)
    _draw_layer(axes, picture, heat, scale, overlay)
    return scale


def _draw_certain(axes: Axes, picture: Array, layer: _Layer, i: int, scale: float, overlay: bool) -> int:
    """The heat map of the parts whose sign is certain, the others hatched; gives back how many are certain."""
    values, certain, unsure = layer.certain(i)
    _draw_layer(axes, picture, _on_pixels(values[layer.cell_player], picture), scale, overlay)
    finer = _finer(picture)
    hatched = np.kron(_on_pixels(unsure[layer.cell_player], picture), np.ones((finer, finer), dtype=bool))
    axes.imshow(_stripes(hatched), interpolation="nearest", extent=_extent(picture))
    return int(certain.sum())


def _draw_layer(axes: Axes, picture: Array, heat: Array, scale: float, overlay: bool) -> None:
    if overlay:
        grey = picture if picture.ndim == 2 else picture @ np.array([0.299, 0.587, 0.114])
        _draw_picture(axes, PALEST - CONTRAST * (1 - grey))
    axes.imshow(
        heat, cmap=_colour_map(), vmin=-(scale or 1.0), vmax=scale or 1.0, interpolation="nearest",
        extent=_extent(picture),
    )  # fmt: skip


def _stripes(hatched: BoolArray) -> Array:
    """Diagonal stripes where something is hatched, and nothing elsewhere, (rows, columns, 4)."""
    from matplotlib.colors import to_rgb

    rows, columns = hatched.shape
    wave = np.sin(2 * np.pi * STRIPES / max(hatched.shape) * np.add.outer(np.arange(rows), np.arange(columns)))
    opacity = 0.7 * np.clip(0.1 + 2 * wave, 0, 1) * hatched
    return np.concatenate([np.broadcast_to(to_rgb(STRIPE), (rows, columns, 3)), opacity[:, :, None]], axis=2)


def _finer(picture: Array) -> int:
    """How many points stand for a pixel, along each side, where a drawing needs more than the picture has."""
    return -(-SHARP // int(max(picture.shape[:2])))


def _on_pixels(cells: npt.NDArray[Any], picture: Array) -> npt.NDArray[Any]:
    """What stands in each cell, for each pixel."""
    height, width = picture.shape[:2]
    return np.repeat(np.repeat(cells, height // cells.shape[0], axis=0), width // cells.shape[1], axis=1)


def _frame(picture: Array) -> Any:
    """A thin line around a heat map, which has no edge of its own."""
    from matplotlib.patches import Rectangle

    left, right, bottom, top = _extent(picture)
    return Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=PALE, linewidth=0.8)


def _extent(picture: Array) -> tuple[float, float, float, float]:
    """Pixel (row, column) has its centre at x = column, y = row, whatever is drawn over it."""
    height, width = picture.shape[:2]
    return -0.5, width - 0.5, height - 0.5, -0.5


def _colour_map() -> Any:
    """Blue, through nothing at all, to red: what has no weight lets the picture through."""
    from matplotlib.colors import ListedColormap, to_rgb

    strength = np.linspace(0, 1, 128)[:, None]
    halves = []
    for weak, strong in (LOWERS, RAISES):
        colours = (1 - strength) * np.array(to_rgb(weak)) + strength * np.array(to_rgb(strong))
        halves.append(np.concatenate([colours, OPACITY * strength**1.25], axis=1))
    return ListedColormap(np.concatenate([halves[0][::-1], halves[1]]), "lowers_to_raises")


def _colour_key(figure: Figure, grid: Any, what: str, scale: float | None = None, hatched: str | None = None) -> None:
    """A bar of the colours below all axes, 2.6 inches wide, with what they do to `what`; below it the hatching."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Patch

    bar = figure.colorbar(
        ScalarMappable(Normalize(-1, 1), _colour_map()), ax=list(grid.flat), location="bottom",
        shrink=min(0.9, 2.6 / figure.get_figwidth()), aspect=20, pad=0.02,
    )  # fmt: skip
    ends = ("", "") if not scale else (f"\n−{_number(scale)}", f"\n+{_number(scale)}")
    bar.set_ticks([-1, 0, 1], labels=[f"lowers{ends[0]}", "0", f"raises{ends[1]}"])
    bar.ax.tick_params(length=0, labelsize=9, labelcolor=INK)
    bar.outline.set_visible(False)
    bar.set_label(what, fontsize=9, color=INK)
    if hatched is not None:
        swatch = Patch(facecolor="white", edgecolor=STRIPE, hatch="/////", linewidth=0)
        figure.legend(
            [swatch], [hatched], loc="outside lower center", frameon=False, fontsize=9, labelcolor=INK, handlelength=2.2
        )


def _hatch_meaning(confidence: float | None) -> str:
    level = "" if confidence is None else f" at {100 * confidence:.4g}%"
    return f"may raise or lower it (bounds{level} hold zero)"


def _blank(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _caption(explained: list[str], scale: float) -> list[str]:
    return [*explained, f"±{_number(scale)}" if scale > 0 else "all zero"]


def _title(axes: Axes, lines: Sequence[str], size: float, width: float) -> None:
    axes.set_title("\n".join(_broken(lines, size, width)), fontsize=size, color=INK)


def _broken(lines: Sequence[str], size: float, width: float) -> list[str]:
    """Lines that are no longer than some inches in type of a size."""
    import textwrap

    from matplotlib.textpath import TextPath

    found = []
    for line in lines:
        letter = TextPath((0, 0), line, size=size).get_extents().width / len(line)
        found += textwrap.wrap(line, max(1, int(0.94 * 72 * width / letter)))
    return found


def _wrapped(text: str, longest: int = 13) -> str:
    """A name over at most two lines."""
    import textwrap

    lines = textwrap.wrap(one_line(text, 2 * longest), longest) or [""]
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.2g}".replace("-", "−")
