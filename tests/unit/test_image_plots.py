"""Pictures of explained images: that every pixel shows its player's value, what is written, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cortx import metrics, plots
from cortx.errors import InputError
from cortx.explanation import Explanation
from cortx.games.players import Patches, Segments
from cortx.images import ImageSchema
from cortx.interfaces import image_plots
from cortx.interfaces.image_plots import enlarge, moving_average

pytest.importorskip("matplotlib")
from matplotlib.image import imread
from matplotlib.text import Text

pytestmark = pytest.mark.filterwarnings("error")

CLASSES = ("cat", "dog", "ship")
FRACTIONS = [0.0, 0.25, 0.5, 1.0]
CURVES = {
    "CoRTX": {"fractions": FRACTIONS, "exclusion": [0.9, 0.3, 0.1, 0.1], "inclusion": [0.1, 0.8, 0.9, 0.9]},
    "FastSHAP": {"fractions": FRACTIONS, "exclusion": [0.9, 0.5, 0.2, 0.1], "inclusion": [0.1, 0.9, 0.9, 0.9]},
}
SPLIT = np.where(np.arange(8)[:, None] + np.arange(12) < 9, 0, np.where(np.arange(12) % 5 == 0, 2, 1))  # (8, 12)


def pixels(kind: str, n: int = 3) -> Any:
    """n random images of 8 x 12 pixels."""
    generator = np.random.default_rng(1)
    colour = generator.random((n, 3, 8, 12))
    return {
        "float": colour,
        "float32": colour.astype(np.float32),
        "bytes": (255 * colour).astype(np.uint8),
        "last": np.moveaxis(colour, 1, 3),
        "grey": colour[:, 0],
        "one channel": colour[:, :1],
        "alpha": generator.random((n, 8, 12, 4)),
        "two channels": colour[:, :2],
        "standardized": (colour - 0.45) / 0.22,
        "sixteen": (16 * colour[:, 0]).astype(np.int64),
        "flat": np.full((n, 8, 12), 7.0),
        "tensor": torch.tensor(colour, requires_grad=True),
    }[kind]


KINDS = (
    "float", "float32", "bytes", "last", "grey", "one channel", "alpha", "two channels", "standardized", "sixteen",
    "flat", "tensor",
)  # fmt: skip


def patches(rows: int = 4, columns: int = 6) -> tuple[str, ...]:
    return tuple(f"patch {i},{j}" for i in range(rows) for j in range(columns))


def explain(n: int = 3, outputs: int | None = 3, seed: int = 0, **more: Any) -> Explanation:
    generator = np.random.default_rng(seed)
    names = more.pop("feature_names", patches())
    each = () if outputs is None else (outputs,)
    values = generator.normal(size=(n, len(names), *each))
    facts: dict[str, Any] = {}
    if outputs is not None:
        facts = {"outputs": generator.dirichlet(np.ones(outputs), n), "output_names": CLASSES[:outputs]}
    return Explanation(values, np.zeros((n, *each)), names, **(facts | more))


def drawn(axes: Any) -> Any:
    """The uppermost picture of some axes."""
    return axes.get_images()[-1]


def at_pixel(artist: Any, row: int, column: int) -> float:
    """What a picture shows at the centre of a pixel, by where it lies on its axes."""
    array = artist.get_array()
    left, right, bottom, top = artist.get_extent()
    i = int((row - top) / (bottom - top) * array.shape[0])
    j = int((column - left) / (right - left) * array.shape[1])
    return float(array[i, j])


def texts(figure: Any) -> list[str]:
    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def assert_picture(path: Path) -> None:
    """A picture of some size and many colours, with nothing cut off at its edges."""
    found = imread(path)[:, :, :3]
    assert min(found.shape[:2]) > 300
    inked = (found < 0.9).any(axis=2)
    assert not any(edge.any() for edge in (inked[0], inked[-1], inked[:, 0], inked[:, -1]))
    assert len(np.unique((found * 15).astype(int) @ [256, 16, 1])) > 20
    assert [other.name for other in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_image_is_drawn(kind: str) -> None:
    figure = plots.image(pixels(kind, 1), explain(1))
    figure.draw_without_rendering()
    grey = kind in ("grey", "one channel", "two channels", "sixteen", "flat")
    shown = drawn(figure.axes[0]).get_array()
    assert shown.shape == ((8, 12) if grey else (8, 12, 3))
    assert shown.min() >= 0
    assert shown.max() <= 1


@pytest.mark.parametrize("smooth", [True, False, 5])
@pytest.mark.parametrize("overlay", [True, False])
def test_every_option_is_drawn(smooth: bool | int, overlay: bool) -> None:
    for kind in ("bytes", "grey"):
        figure = plots.image(pixels(kind, 1), explain(1), smooth=smooth, overlay=overlay)
        assert [len(axes.get_images()) for axes in figure.axes[:2]] == [1, 2 if overlay else 1]
    explanations = {"a": explain(1), "b": explain(1, outputs=None)}
    compared = plots.compare_images(pixels("last", 1), explanations, smooth=smooth, overlay=overlay)
    compared.draw_without_rendering()
    assert [len(axes.get_images()) for axes in compared.axes[:3]] == [1, *[2 if overlay else 1] * 2]


def test_pictures_show_the_pixels_that_came() -> None:
    expected = np.moveaxis(pixels("float"), 1, 3)
    for kind in ("float", "last", "tensor"):
        figure = plots.image(pixels(kind), explain())
        for picture, axes in zip(expected, figure.axes[:3], strict=True):
            np.testing.assert_allclose(drawn(axes).get_array(), picture)
    bytes_shown = drawn(plots.image(pixels("bytes"), explain()).axes[0]).get_array()
    np.testing.assert_allclose(bytes_shown, expected[0], atol=1 / 255)
    sixteen = pixels("sixteen")
    shown = drawn(plots.image(sixteen, explain(), pixels=(0, 32)).axes[1]).get_array()
    np.testing.assert_allclose(shown, sixteen[1] / 32)
    stretched = [drawn(axes).get_array() for axes in plots.image(pixels("standardized"), explain()).axes[:3]]
    assert min(map(np.min, stretched)) == 0
    assert max(map(np.max, stretched)) == 1


def test_a_pixel_shows_the_value_of_its_patch() -> None:
    explanation = explain()
    figure = plots.image(pixels("bytes"), explanation, smooth=False, output="ship")
    for i, axes in enumerate(figure.axes[3:6]):
        for row in range(8):
            for column in range(12):
                player = explanation.feature_names.index(f"patch {row // 2},{column // 2}")
                assert at_pixel(drawn(axes), row, column) == explanation.values[i, player, 2]


def test_patches_may_come_in_any_order() -> None:
    order = np.random.default_rng(3).permutation(24)
    explanation = explain(outputs=None)
    shuffled = explain(outputs=None, feature_names=tuple(patches()[j] for j in order))
    shuffled = replace(shuffled, values=explanation.values[:, order])
    first, second = (plots.image(pixels("grey"), e, smooth=False).axes[3] for e in (explanation, shuffled))
    np.testing.assert_array_equal(drawn(first).get_array(), drawn(second).get_array())


@pytest.mark.parametrize("as_map", [False, True])
def test_a_pixel_shows_the_value_of_its_segment(as_map: bool) -> None:
    players: Any = SPLIT if as_map else Segments(SPLIT).players(ImageSchema((3, 8, 12)))
    explanation = explain(outputs=None, feature_names=("sky", "sea", "land"))
    figure = plots.image(pixels("float"), explanation, smooth=False, players=players)
    for i, axes in enumerate(figure.axes[3:6]):
        np.testing.assert_array_equal(drawn(axes).get_array(), explanation.values[i][SPLIT])
    plots.image(pixels("last"), explanation, smooth=3, players=players).draw_without_rendering()


def test_players_of_a_game_give_the_same_picture_as_their_names() -> None:
    players = Patches((2, 2)).players(ImageSchema((3, 8, 12)))
    assert players.names == patches()
    for smooth in (False, True, 5):
        named = plots.image(pixels("float"), explain(), smooth=smooth)
        given = plots.image(pixels("float"), explain(), smooth=smooth, players=players)
        for one, other in zip(named.axes[3:6], given.axes[3:6], strict=True):
            np.testing.assert_array_equal(drawn(one).get_array(), drawn(other).get_array())


def test_players_say_where_the_channels_are() -> None:
    images = np.random.default_rng(0).random((1, 4, 4, 4))
    images[:, :, :, 3] = 0
    explanation = explain(1, None, feature_names=("a", "b"))
    wide = np.zeros((4, 4), dtype=int)
    assert drawn(plots.image(images, explanation, players=wide).axes[0]).get_array().shape == (4, 4, 3)
    tall = np.zeros((5, 2), dtype=int)
    shown = drawn(plots.image(np.zeros((1, 5, 2, 3)), explanation, players=tall).axes[0]).get_array()
    assert shown.shape == (5, 2, 3)
    shown = drawn(plots.image(np.zeros((1, 3, 5, 2)), explanation, players=tall).axes[0]).get_array()
    assert shown.shape == (5, 2, 3)


@pytest.mark.parametrize("window", [1, 3, 5, 31])
@pytest.mark.parametrize("shape", [(4, 6), (1, 1), (1, 7), (16, 16)])
def test_the_moving_average_is_a_mean_of_what_lies_around(window: int, shape: tuple[int, int]) -> None:
    cells = np.random.default_rng(0).normal(size=shape)
    averaged = moving_average(cells, window)
    for i in range(shape[0]):
        for j in range(shape[1]):
            around = [
                cells[a, b]
                for a in range(shape[0])
                for b in range(shape[1])
                if abs(a - i) <= window // 2 and abs(b - j) <= window // 2
            ]
            assert averaged[i, j] == pytest.approx(np.mean(around))


def test_smoothing_preserves_constants_and_stays_inside() -> None:
    for window in (True, 1, 5):
        flat = replace(explain(1, None), values=np.full((1, 24), -0.7))
        heat = drawn(plots.image(pixels("grey", 1), flat, smooth=window).axes[1]).get_array()
        np.testing.assert_allclose(heat, -0.7)
    cells = np.random.default_rng(0).normal(size=(4, 6))
    large = enlarge(cells, (4 * 5, 6 * 5))
    np.testing.assert_allclose(large[2::5, 2::5], cells)
    assert large.min() >= cells.min()
    assert large.max() <= cells.max()
    between = enlarge(np.array([[0.0, 1.0]]), (1, 4))
    np.testing.assert_allclose(between, [[0, 0.25, 0.75, 1]])


def test_a_smoothed_patch_shows_its_average_at_its_centre() -> None:
    explanation = explain(1, None, feature_names=patches(3, 4))
    figure = plots.image(np.zeros((1, 9, 12)), explanation, smooth=3)
    expected = moving_average(explanation.values[0].reshape(3, 4), 3)
    for i in range(3):
        for j in range(4):
            # A fine picture may have no point exactly at the centre of the patch.
            assert at_pixel(drawn(figure.axes[1]), 3 * i + 1, 3 * j + 1) == pytest.approx(expected[i, j], abs=0.02)


def test_the_scale_is_symmetric_and_robust() -> None:
    names = patches(16, 16)
    values = np.random.default_rng(0).normal(size=(2, 256))
    values[0, 7] = 40.0
    values[1] *= 0.01
    explanation = Explanation(values, np.zeros(2), names)
    figure = plots.image(np.zeros((2, 32, 32)), explanation, smooth=False)
    limits = [drawn(axes).get_clim() for axes in figure.axes[2:4]]
    assert all(low == -high for low, high in limits)
    assert limits[0][1] <= 10
    assert np.percentile(np.abs(values[1]), 90) < limits[1][1] <= np.abs(values[1]).max()
    colours = drawn(figure.axes[2]).cmap
    weakest, strongest = colours(0.5), (colours(0.0), colours(1.0))
    assert weakest[3] < 0.05
    assert strongest[0][2] > strongest[0][0]  # blue lowers
    assert strongest[1][0] > strongest[1][2]  # red raises
    lonely = replace(explanation, values=np.eye(2, 256))
    assert drawn(plots.image(np.zeros((2, 32, 32)), lonely, smooth=False).axes[2]).get_clim()[1] > 0
    nothing = replace(explanation, values=np.zeros((2, 256)))
    assert texts(plots.image(np.zeros((2, 32, 32)), nothing)).count("all zero") == 2


def test_each_image_shows_the_class_with_the_largest_output() -> None:
    explanation = explain(outputs=3, output_names=None)
    outputs = np.array([[0.1, 0.7, 0.2], [0.9, 0.05, 0.05], [0.0, 0.0, 1.0]])
    explanation = replace(explanation, outputs=outputs)
    figure = plots.image(pixels("float"), explanation, smooth=False, names=CLASSES, labels=[1, "bird", np.int64(2)])
    for i, k in enumerate((1, 0, 2)):
        assert at_pixel(drawn(figure.axes[3 + i]), 0, 0) == explanation.values[i, 0, k]
    assert [axes.get_title() for axes in figure.axes[:3]] == [
        "dog: 70%\ntrue: dog", "cat: 90%\ntrue: bird", "ship: 100%\ntrue: ship",
    ]  # fmt: skip
    for axes, said in zip(figure.axes[3:6], ("for dog: 70%", "for cat: 90%", "for ship: 100%"), strict=True):
        assert re.fullmatch(rf"{said}\n±[\d.]+", axes.get_title())
    unnamed = plots.image(pixels("float"), replace(explanation, outputs=outputs * 3 - 2), smooth=False)
    assert [axes.get_title() for axes in unnamed.axes[:3]] == ["class 1: 0.1", "class 0: 0.7", "class 2: 1"]


@pytest.mark.parametrize(
    "output", [1, -2, "dog", np.int64(1), ["dog", 1, "dog"], np.array([1, 1, 1]), torch.tensor([1, 1, 1])]
)
def test_output_chooses_the_class(output: Any) -> None:
    explanation = replace(explain(), outputs=None)
    figure = plots.image(pixels("float"), explanation, output=output, smooth=False)
    for i in range(3):
        assert at_pixel(drawn(figure.axes[3 + i]), 0, 0) == explanation.values[i, 0, 1]


def test_the_explained_class_is_named_with_its_own_output() -> None:
    explanation = replace(explain(1), outputs=np.array([[0.1, 0.7, 0.2]]))
    figure = plots.image(pixels("float", 1), explanation, output="ship")
    assert figure.axes[0].get_title() == "dog: 70%"
    assert figure.axes[1].get_title().startswith("for ship: 20%\n±")
    unknown = plots.image(pixels("float", 1), replace(explanation, outputs=None), output="ship")
    assert unknown.axes[1].get_title().startswith("for ship\n±")
    compared = plots.compare_images(pixels("float", 1), {"a": explanation, "b": explanation}, output="ship")
    assert compared.axes[0].get_ylabel() == "dog: 70%\nmaps for ship: 20%"


def test_the_legend_says_what_is_raised_and_by_how_much() -> None:
    shares = replace(explain(2), outputs=np.array([[0.1, 0.7, 0.2], [0.9, 0.05, 0.05]]))
    written = texts(plots.image(pixels("float", 2), shares))
    assert {"lowers", "0", "raises"} <= set(written)
    assert "the probability (0 to 1) of the class\n(full colour: the ± above each map)" in written
    scores = replace(shares, outputs=shares.outputs * 3 - 2)
    assert any(
        text.startswith("the model's output for the class\n") for text in texts(plots.image(pixels("float", 2), scores))
    )
    figure = plots.image(pixels("float", 1), shares[0], smooth=False)
    scale = f"{drawn(figure.axes[1]).get_clim()[1]:.2g}"
    assert {f"lowers\n\u2212{scale}", f"raises\n+{scale}", "the probability (0 to 1) of the class"} <= set(
        texts(figure)
    )
    assert "the model's output" in texts(plots.image(pixels("float", 1), explain(1, None)))


def bounded(explanation: Explanation, half: float = 1.0) -> Explanation:
    values = explanation.values
    return replace(explanation, lower_bounds=values - half, upper_bounds=values + half, confidence=0.9)


def striped(axes: Any) -> np.ndarray:
    """Where some axes are hatched, for each pixel of an image of 8 x 12."""
    opacity = drawn(axes).get_array()[:, :, 3]
    finer = opacity.shape[0] // 8
    return np.asarray(opacity.reshape(8, finer, 12, finer).max(axis=(1, 3)) > 0)


@pytest.mark.parametrize("n", [1, 3, 4, 9])
@pytest.mark.parametrize("outputs", [3, None])
@pytest.mark.parametrize("smooth", [True, False])
def test_parts_whose_sign_is_open_are_hatched(n: int, outputs: int | None, smooth: bool) -> None:
    explanation = bounded(explain(n, outputs))
    figure = plots.image(pixels("float", n), explanation, smooth=smooth, output=None if outputs is None else "ship")
    maps = [axes for axes in figure.axes if len(axes.get_images()) == 2]
    sure = [axes for axes in figure.axes if len(axes.get_images()) == 3]
    assert len(maps) == len(sure) == n
    for i in range(n):
        own = explanation.values[i] if outputs is None else explanation.values[i, :, 2]
        colours = sure[i].get_images()[1]
        assert colours.get_clim() == drawn(maps[i]).get_clim()
        stripes = striped(sure[i])
        for row in range(8):
            for column in range(12):
                value = own[explanation.feature_names.index(f"patch {row // 2},{column // 2}")]
                certain = value - 1 > 0 or value + 1 < 0
                assert at_pixel(colours, row, column) == (value if certain else 0)
                assert stripes[row, column] == (not certain)
        assert sure[i].get_title() == f"sign certain:\n{sum(abs(own) > 1)} of 24 parts"
    assert "may raise or lower it (bounds at 90% hold zero)" in [text.get_text() for text in figure.findobj(Text)]
    assert not any("bounds" in text for text in texts(plots.image(pixels("float", n), explain(n))))


def test_what_is_certainly_nothing_is_not_hatched_and_colours_obey_the_bounds() -> None:
    names = ("patch 0,0", "patch 0,1", "patch 0,2", "patch 0,3")
    values = np.array([[0.0, 0.5, 0.5, -0.2]])
    lower, upper = np.array([[0.0, -0.4, 0.0, -0.9]]), np.array([[0.0, -0.1, 0.6, np.inf]])
    explanation = Explanation(values, np.zeros(1), names, lower_bounds=lower, upper_bounds=upper)
    figure = plots.image(np.full((1, 8, 12), 0.5), explanation, smooth=False)
    sure = figure.axes[2]
    assert [at_pixel(sure.get_images()[1], 4, 3 * k) for k in range(4)] == [0, -0.1, 0, 0]
    assert striped(sure)[4, ::3].tolist() == [False, False, True, True]
    assert sure.get_title() == "sign certain:\n1 of 4 parts"
    assert "may raise or lower it (bounds hold zero)" in texts(figure)


def test_hatching_fits_segments() -> None:
    explanation = bounded(explain(2, None, feature_names=("sky", "sea", "land")), half=0.3)
    figure = plots.image(pixels("float", 2), explanation, players=SPLIT)
    for i, axes in enumerate([figure.axes[2], figure.axes[5]]):
        np.testing.assert_array_equal(striped(axes), np.abs(explanation.values[i][SPLIT]) <= 0.3)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 10])
@pytest.mark.parametrize("bounds", [False, True])
def test_long_names_neither_overlap_nor_are_cut(n: int, bounds: bool, tmp_path: Path) -> None:
    names = ("Staffordshire bull terrier dog", "a cat", "WWWWWWW WWWWWWW WWWWWWWWWW")
    explanation = bounded(explain(n)) if bounds else explain(n)
    figure = plots.image(
        pixels("float", n), explanation, names=names, output=[i % 3 for i in range(n)], labels=[0] * n,
        path=tmp_path / "long.png",
    )  # fmt: skip
    assert_picture(tmp_path / "long.png")
    figure.draw_without_rendering()
    titles = [axes.title for axes in figure.axes if axes.get_title()]
    assert len(titles) == (3 if bounds else 2) * n
    boxes = [title.get_window_extent() for title in titles]
    boxes += [axes.get_window_extent() for axes in figure.axes if axes.get_images()]
    boxes += [figure.axes[-1].get_tightbbox()] + [legend.get_window_extent() for legend in figure.legends]
    for i, one in enumerate(boxes):
        assert all(one.x1 <= other.x0 + 1 or other.x1 <= one.x0 + 1 or one.y1 <= other.y0 + 1 or other.y1 <= one.y0 + 1
                   for other in boxes[:i])  # fmt: skip


def test_one_output_needs_no_class() -> None:
    explanation = explain(outputs=None)
    figure = plots.image(pixels("grey"), explanation)
    assert figure.axes[0].get_title() == ""
    known = replace(explanation, outputs=np.array([0.25, -1.5, 3.0]))
    titles = [axes.get_title() for axes in plots.image(pixels("grey"), known, output=0, labels=[4, 5, 6]).axes[:3]]
    assert titles == ["output 0.25\ntrue: 4", "output −1.5\ntrue: 5", "output 3\ntrue: 6"]
    single = replace(explain(outputs=1), outputs=None)
    assert plots.image(pixels("grey"), single).axes[3].get_title().startswith("for cat")


@pytest.mark.parametrize("n", [1, 9])
def test_writes_a_picture(n: int, tmp_path: Path) -> None:
    plots.image(pixels("float", n), explain(n), labels=[0] * n, path=tmp_path / "heat.png")
    assert_picture(tmp_path / "heat.png")


@pytest.mark.parametrize(("n", "methods"), [(1, 1), (2, 5)])
def test_writes_a_comparison(n: int, methods: int, tmp_path: Path) -> None:
    explanations = {f"a method called {k}": explain(n, seed=k) for k in range(methods)}
    plots.compare_images(pixels("float", n), explanations, labels=[0] * n, path=str(tmp_path / "all.png"))
    assert_picture(tmp_path / "all.png")


def test_comparison_is_a_line_an_image_and_a_column_a_method() -> None:
    explanations = {
        "Saliency": explain(outputs=None, seed=1),
        "FastSHAP": replace(explain(seed=2), outputs=None),
        "CoRTX": explain(seed=3),
    }
    figure = plots.compare_images(pixels("float"), explanations, smooth=False, labels=["cat", "cat", "dog"])
    grid = np.array(figure.axes[:12]).reshape(3, 4)
    assert [axes.get_title() for axes in grid[0]] == ["image", "Saliency", "FastSHAP", "CoRTX"]
    outputs = explanations["CoRTX"].outputs
    assert outputs is not None
    for i in range(3):
        k = int(np.argmax(outputs[i]))
        values = explanations["Saliency"].values[i], *(explanations[m].values[i, :, k] for m in ("FastSHAP", "CoRTX"))
        for axes, expected in zip(grid[i, 1:], values, strict=True):
            assert at_pixel(drawn(axes), 7, 11) == expected[-1]
            low, high = drawn(axes).get_clim()
            assert -low == high <= np.abs(expected).max()
        assert grid[i, 0].get_ylabel().startswith(f"{CLASSES[k]}: {100 * outputs[i, k]:.0f}%\ntrue: ")
    chosen = plots.compare_images(pixels("float"), explanations, smooth=False, output="cat")
    assert at_pixel(drawn(chosen.axes[2]), 0, 0) == explanations["FastSHAP"].values[0, 0, 0]
    assert at_pixel(drawn(chosen.axes[1]), 0, 0) == explanations["Saliency"].values[0, 0]


def test_methods_may_have_patches_of_their_own() -> None:
    coarse = explain(feature_names=patches(2, 3))
    figure = plots.compare_images(pixels("float"), {"fine": explain(), "coarse": coarse}, smooth=False, output=0)
    assert at_pixel(drawn(figure.axes[2]), 7, 11) == coarse.values[0, 5, 0]


@pytest.mark.parametrize(
    ("images", "explanation", "more", "message"),
    [
        (pixels("float")[:2], explain(), {}, "2 images but 3 explained rows"),
        (pixels("float")[0], explain(1), {}, r"3 images but 1 explained rows; one image is images\[None\]"),
        (pixels("float")[0, 0], explain(1), {}, "one image is images"),
        ("photo.png", explain(), {}, "got str"),
        (np.full((3, 8, 12), "a"), explain(), {}, "images must be an array"),
        (np.full((3, 8, 12), np.nan), explain(), {}, "NaN or infinite"),
        (np.zeros((0, 8, 12)), explain(0), {}, "1 to 64 images"),
        (np.zeros((65, 8, 12)), explain(65), {}, "1 to 64 images"),
        (np.zeros((3, 9, 12)), explain(), {}, "4 x 6 patches, which do not divide images of 9 x 12"),
        (pixels("float"), replace(explain(), outputs=None), {}, "3 classes and does not know the model's outputs; say"),
        (pixels("float"), explain(), {"output": "bird"}, "unknown output 'bird'; expected one of cat, dog, ship"),
        (pixels("float"), explain(), {"output": 3}, "there are 3 outputs"),
        (pixels("float"), explain(), {"output": 0.5}, "output"),
        (pixels("float"), explain(), {"output": True}, "out of range"),
        (pixels("float"), explain(), {"output": [0, 1]}, "one for each of the 3 images, got 2"),
        (pixels("float"), explain(outputs=None), {"output": 1}, "one output alone"),
        (pixels("float"), explain(outputs=None), {"output": "cat"}, "one output alone"),
        (pixels("float"), explain(), {"smooth": 2}, "odd whole number"),
        (pixels("float"), explain(), {"smooth": -1}, "odd whole number"),
        (pixels("float"), explain(), {"smooth": 1.5}, "odd whole number"),
        (pixels("float"), explain(), {"names": ("cat", "dog")}, "names must name the 3 classes"),
        (pixels("float"), explain(), {"labels": [0, 1]}, "labels must hold the true class of each of the 3"),
        (pixels("float"), explain(), {"labels": [0, 1, 7]}, "7 is out of range"),
        (pixels("float"), explain(), {"pixels": (1, 0)}, r"pixels must be \(black, white\)"),
        (pixels("float"), explain(), {"path": "heat.jpg"}, "must end in .png"),
        (pixels("float"), explain(feature_names=("a", "b")), {}, "cannot tell where 'a'.*players=game.players"),
        (pixels("float"), explain(feature_names=("patch 0,0", "patch 1,1")), {}, "no whole grid"),
        (pixels("float"), explain(feature_names=("patch 0,0", "patch 0,0")), {}, "no whole grid"),
        (pixels("float"), explain(), {"players": SPLIT[:4]}, r"map \(8, 12\) of whole numbers"),
        (pixels("float"), explain(), {"players": SPLIT / 2}, "whole numbers"),
        (pixels("float"), explain(feature_names=("a", "b")), {"players": SPLIT}, "parts 0 to 2, but the expl"),
        (pixels("float"), replace(explain(), values=np.full((3, 24, 3), np.inf)), {}, "NaN or infinite"),
    ],
)  # fmt: skip
def test_refuses(images: Any, explanation: Explanation, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plots.image(images, explanation, **more)


@pytest.mark.parametrize(
    ("explanations", "message"),
    [
        ({}, "at least one method"),
        (explain(), "at least one method"),
        ({"a": explain(), "b": explain(2)}, "b has 2 rows for 3 images"),
        ({"a": explain(), "b": explain().values}, "b must be an Explanation, got ndarray"),
        ({"a": explain(), "b": explain(outputs=2)}, "different numbers of classes"),
        ({str(k): explain(outputs=None) for k in range(200)}, "too many to see"),
    ],
)
def test_comparison_refuses(explanations: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plots.compare_images(pixels("float"), explanations)


def test_curves_are_drawn_best_first_with_their_areas() -> None:
    figure = plots.masking_curves(json.loads(json.dumps(CURVES)), highlight="CoRTX")
    for axes, kind, order in zip(
        figure.axes, ("exclusion", "inclusion"), (["CoRTX", "FastSHAP"], ["FastSHAP", "CoRTX"]), strict=True
    ):
        legend = [text.get_text() for text in axes.get_legend().get_texts()]
        for line, method, written in zip(axes.lines, order, legend, strict=True):
            heights = CURVES[method][kind]
            np.testing.assert_allclose(line.get_xdata(), [0, 25, 50, 100])
            np.testing.assert_allclose(line.get_ydata(), heights)
            area = sum((FRACTIONS[k + 1] - FRACTIONS[k]) * (heights[k] + heights[k + 1]) / 2 for k in range(3))
            assert written == f"{area:.3f}  {method}"
        widths = {method: line.get_linewidth() for method, line in zip(order, axes.lines, strict=True)}
        assert widths["CoRTX"] > widths["FastSHAP"]
    assert {"exclusion (less is better)", "inclusion (more is better)", "top-1 accuracy"} <= set(texts(figure))


def test_a_summary_brings_its_own_areas() -> None:
    def of(auc: float) -> dict[str, Any]:
        return {"delta_log_odds": {"curve": [0.0, 1.0, 2.0, 3.0], "auc": auc, "auc_std": 0.0125}}

    curves = {
        "worse": {"fractions": FRACTIONS, "exclusion": of(1.0), "inclusion": of(-2.0)},
        "better": {"fractions": FRACTIONS, "exclusion": of(2.0), "inclusion": of(-3.0)},
    }
    figure = plots.masking_curves(curves, metric="delta_log_odds")
    written = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert written[0] == ["2.000 ± 0.013  better", "1.000 ± 0.013  worse"]
    assert written[1] == ["−3.000 ± 0.013  better", "−2.000 ± 0.013  worse"]
    assert {"exclusion (more is better)", "inclusion (less is better)", "delta log-odds"} <= set(texts(figure))


def test_measured_curves_are_drawn() -> None:
    images = torch.as_tensor(pixels("float32"))
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(images[0].numel(), 3)).eval()
    players = Patches(2).players(ImageSchema((3, 8, 12)))
    classes = [0, 1, 2]
    order = metrics.importance_order(explain(), classes)
    found = metrics.masking_curves(net, metrics.reference_fill(images, 0, players.pixel_player), order, classes)
    for metric in ("top1", "log_odds", "delta_log_odds"):
        figure = plots.masking_curves({"CoRTX": json.loads(json.dumps(found.summary(size=2)))}, metric=metric)
        np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), found.exclusion.mean(metric))
        np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), found.inclusion.mean(metric))


def test_the_legend_of_many_methods_covers_no_line(tmp_path: Path) -> None:
    curves = {f"method number {k}": CURVES["CoRTX"] for k in range(12)}
    figure = plots.masking_curves(curves, path=tmp_path / "curves.png")
    assert_picture(tmp_path / "curves.png")
    figure.draw_without_rendering()
    first, second = (axes.get_window_extent() for axes in figure.axes)
    legends = [axes.get_legend().get_window_extent() for axes in figure.axes]
    assert first.x1 <= legends[0].x0
    assert legends[0].x1 <= second.x0
    assert second.x1 <= legends[1].x0
    assert legends[1].x1 <= figure.bbox.x1
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in figure.axes[0].lines}
    assert len(looks) == 12


@pytest.mark.parametrize(
    ("curves", "more", "message"),
    [
        ({}, {}, "at least one method"),
        ({"a": {"fractions": [0, 1]}}, {}, "a lacks exclusion, inclusion; it has fractions"),
        ({"a": CURVES["CoRTX"] | {"fractions": [0, 0.5, 0.5, 1]}}, {}, "must ascend between 0 and 1"),
        ({"a": CURVES["CoRTX"] | {"fractions": [0, 20, 50, 100]}}, {}, "must ascend between 0 and 1"),
        ({"a": CURVES["CoRTX"] | {"fractions": [0.0]}}, {}, "must ascend"),
        ({"a": CURVES["CoRTX"] | {"exclusion": [1, 0]}}, {}, "exclusion of a has 2 points for 4 fractions"),
        ({"a": CURVES["CoRTX"] | {"exclusion": ["x"] * 4}}, {}, "exclusion of a must be a list of numbers"),
        ({"a": CURVES["CoRTX"] | {"inclusion": [1, 0, np.nan, 1]}}, {}, "inclusion of a must be a list of finite"),
        ({"a": CURVES["CoRTX"] | {"inclusion": {"top1": {}}}}, {"metric": "log_odds"}, "has no 'log_odds'"),
        (CURVES, {"highlight": "IG"}, "'IG' is no method; expected one of CoRTX, FastSHAP"),
        (CURVES, {"metric": "accuracy"}, "metric must be one of top1, log_odds, delta_log_odds"),
        (CURVES, {"path": "curves.svg"}, "must end in .png"),
    ],
)  # fmt: skip
def test_curves_refuse(curves: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plots.masking_curves(curves, **more)


def test_few_patches_are_not_smoothed_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blurred, a map of four patches a side would show nothing."""
    averaged: list[tuple[int, ...]] = []

    def seen(cells: np.ndarray, window: int) -> np.ndarray:
        averaged.append((*cells.shape, window))
        return cells

    monkeypatch.setattr(image_plots, "moving_average", seen)
    for side, wanted in ((4, []), (8, [(8, 8, 3)])):
        averaged.clear()
        values = np.random.default_rng(0).normal(size=(1, side * side))
        made = Explanation(
            values,
            np.zeros(1),
            tuple(f"patch {i // side},{i % side}" for i in range(side * side)),
            outputs=values.sum(axis=1),
        )
        image_plots.image(np.zeros((1, 2 * side, 2 * side), dtype=np.float32), made)
        assert averaged == wanted
