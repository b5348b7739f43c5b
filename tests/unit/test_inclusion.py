"""Inclusion and exclusion curves, restated in plain loops over images, points and classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cortx.errors import InputError, ModelError
from cortx.explanation import Explanation
from cortx.metrics import bootstrap, importance_order, masking_curves, reference_fill, road_fill
from cortx.metrics.inclusion import MaskingCurves, Score, class_log_odds

N_IMAGES, N_CLASSES, SIDE = 5, 4, 6
PLAYERS = np.array([[3 * (i // 2) + j // 2 for j in range(SIDE)] for i in range(SIDE)])  # 9 patches of 2 x 2
PATCH = np.array([[4 * (i // 2) + j // 2 for j in range(8)] for i in range(8)])  # 16 patches of 2 x 2
BETTER: tuple[tuple[Score, int], ...] = (("top1", 1), ("log_odds", 1), ("delta_log_odds", -1))


class Net(torch.nn.Module):
    """A small network with an answer for every image, also of float64."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(2 * SIDE * SIDE, N_CLASSES, generator=generator))
        self.seen: list[int] = []
        self.eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(images))
        return torch.tanh(images.flatten(1) - 0.5) @ self.weight.to(images.dtype)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(N_IMAGES, 2, SIDE, SIDE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def order() -> np.ndarray:
    return np.stack([np.random.default_rng(k).permutation(9) for k in range(N_IMAGES)])


CLASSES = [0, 3, 1, 1, 2]


def slow_log_odds(logits: list[float], k: int) -> float:
    top = max(logits)
    total = sum(math.exp(x - top) for x in logits)
    p = math.exp(logits[k] - top) / total
    return math.log(p / (1 - p))


def slow_masked(image: np.ndarray, kept: set[int], absent: np.ndarray) -> np.ndarray:
    masked = image.copy()
    for i in range(SIDE):
        for j in range(SIDE):
            if PLAYERS[i, j] not in kept:
                masked[:, i, j] = absent[:, i, j]
    return masked


def slow_curve(
    net: Net, image: np.ndarray, absent: np.ndarray, order: list[int], k: int, numbers: list[int], inclusion: bool
) -> tuple[list[float], list[float]]:
    """Hits and log-odds of one image."""
    hits, odds = [], []
    for number in numbers:
        kept = set(order[:number]) if inclusion else set(order) - set(order[:number])
        with torch.no_grad():
            logits = net(torch.as_tensor(slow_masked(image, kept, absent))[None])[0].tolist()
        hits.append(float(max(range(N_CLASSES), key=logits.__getitem__) == k))
        odds.append(slow_log_odds(logits, k))
    return hits, odds


def slow_area(x: list[float], y: list[float]) -> float:
    return sum((x[i + 1] - x[i]) * (y[i] + y[i + 1]) / 2 for i in range(len(x) - 1))


@pytest.mark.parametrize("chunk", [None, 1, 7])
@pytest.mark.parametrize(("points", "numbers"), [(4, [0, 3, 6, 9]), (10, list(range(10))), (2, [0, 9])])
def test_equals_plain_loops(
    images: torch.Tensor, order: np.ndarray, points: int, numbers: list[int], chunk: int | None
) -> None:
    net, absent = Net(), 1 - images  # a reference of its own for every image
    curves = masking_curves(net, reference_fill(images, absent, PLAYERS), order, CLASSES, points=points, chunk=chunk)
    assert sum(net.seen) == curves.evaluations == N_IMAGES * (2 * len(numbers) - 2)
    fractions = [number / 9 for number in numbers]
    whole = [slow_log_odds(net(image[None])[0].tolist(), k) for image, k in zip(images, CLASSES, strict=True)]
    for inclusion, curve in ((False, curves.exclusion), (True, curves.inclusion)):
        np.testing.assert_allclose(curve.fractions, fractions)
        all_hits = []
        for i, k in enumerate(CLASSES):
            hits, odds = slow_curve(net, images[i].numpy(), absent[i].numpy(), order[i].tolist(), k, numbers, inclusion)
            delta = [whole[i] - x for x in odds]
            all_hits.append(hits)
            np.testing.assert_array_equal(curve.values("top1")[i], hits)
            np.testing.assert_allclose(curve.values("log_odds")[i], odds)
            np.testing.assert_allclose(curve.values("delta_log_odds")[i], delta, atol=1e-12)
            for score, line in (("top1", hits), ("log_odds", odds), ("delta_log_odds", delta)):
                np.testing.assert_allclose(curve.auc(score)[i], slow_area(fractions, line), atol=1e-12)  # type: ignore[arg-type]
        np.testing.assert_allclose(
            curve.mean("top1"), [sum(column) / N_IMAGES for column in zip(*all_hits, strict=True)]
        )


def test_points_are_spread_evenly_and_never_twice(images: torch.Tensor, order: np.ndarray) -> None:
    fill = reference_fill(images, 0, PLAYERS)
    assert (masking_curves(Net(), fill, order, CLASSES).exclusion.fractions == np.arange(10) / 9).all()
    few = masking_curves(Net(), fill, order, CLASSES, points=5).inclusion.fractions * 9
    assert len(few) == 5
    assert all(abs(number - share * 9) <= 0.5 for number, share in zip(few, (0, 0.25, 0.5, 0.75, 1), strict=True))


def test_the_ends_are_shared(images: torch.Tensor, order: np.ndarray) -> None:
    curves = masking_curves(Net(), reference_fill(images, 0, PLAYERS), order, CLASSES)
    assert (curves.exclusion.log_odds[:, 0] == curves.inclusion.log_odds[:, -1]).all()
    assert (curves.exclusion.log_odds[:, -1] == curves.inclusion.log_odds[:, 0]).all()
    assert (curves.exclusion.values("delta_log_odds")[:, 0] == 0).all()


@pytest.mark.parametrize("absent", [0.25, np.full((2, 1, 1), 0.25), torch.full((2, SIDE, SIDE), 0.25)])
def test_references(images: torch.Tensor, absent: Any) -> None:
    kept = torch.rand(N_IMAGES, 9, generator=torch.Generator().manual_seed(2)) < 0.5
    masked = reference_fill(images, absent, PLAYERS)(kept, torch.arange(N_IMAGES)).numpy()
    for i in range(N_IMAGES):
        present = {p for p in range(9) if kept[i, p]}
        assert (masked[i] == slow_masked(images[i].numpy(), present, np.full((2, SIDE, SIDE), 0.25))).all()


def test_grey_images_and_segments() -> None:
    images = torch.rand(3, 2, 3)
    segments = [[0, 0, 2], [1, 0, 2]]
    own = torch.rand(3, 2, 3)
    kept = torch.tensor([[True, False, True], [False, False, True]])
    masked = reference_fill(images, own, segments)(kept, torch.tensor([2, 0]))
    expected = images[[2, 0]].clone()
    expected[0, 1, 0] = own[2, 1, 0]
    for i, j in ((0, 0), (0, 1), (1, 1), (1, 0)):
        expected[1, i, j] = own[0, i, j]
    assert torch.equal(masked, expected)


def test_log_odds_of_sure_answers() -> None:
    """p rounds to 1 here, and log(p / (1 - p)) would be infinite."""
    logits = torch.tensor([[200.0, 0.0, 0.0], [0.0, -300.0, 10.0]])
    expected = [200 - math.log(2), -300 - math.log(1 + math.exp(10))]
    np.testing.assert_allclose(class_log_odds(logits, torch.tensor([0, 1])).numpy(), expected, rtol=1e-6)
    half = class_log_odds(logits.to(torch.bfloat16), torch.tensor([0, 1]))
    assert half.dtype == torch.float32
    np.testing.assert_allclose(half.numpy(), expected, rtol=1e-2)


def planted(seed: int) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, np.ndarray]:
    """A model whose first logit is a weighted sum of the means of 16 patches, and what each is worth in each image."""
    rng = np.random.default_rng(seed)
    worth = np.concatenate([rng.uniform(1, 6, 5), rng.uniform(-3, -1, 3), np.zeros(8)])
    weights = torch.as_tensor(worth[PATCH] / 4, dtype=torch.float32)
    images = torch.as_tensor(rng.uniform(0.2, 1, (20, 1, 8, 8)), dtype=torch.float32)

    def predict(batch: torch.Tensor) -> torch.Tensor:
        first = (batch[:, 0] * weights).sum(dim=(1, 2)) - 4
        return torch.stack([first, torch.zeros_like(first)], dim=1)

    shares = images[:, 0].numpy() * worth[PATCH] / 4
    return predict, images, np.stack([shares[:, p == PATCH].sum(axis=1) for p in range(16)], axis=1)


def gaps(best: MaskingCurves, other: MaskingCurves, score: Score, sign: int) -> list[np.ndarray]:
    """By how much each image's AUCs are better, in both directions."""
    return [
        sign * (other.exclusion.auc(score) - best.exclusion.auc(score)),
        sign * (best.inclusion.auc(score) - other.inclusion.auc(score)),
    ]


def test_the_planted_order_is_best() -> None:
    """With an additive model the order by worth is the best for every single image."""
    predict, images, worth = planted(0)
    fill, classes = reference_fill(images, 0, PATCH), np.zeros(20, dtype=int)
    best = masking_curves(predict, fill, importance_order(worth), classes)
    rng = np.random.default_rng(1)
    others = [np.stack([rng.permutation(16) for _ in range(20)]) for _ in range(3)] + [importance_order(-worth)]
    for order in others:
        other = masking_curves(predict, fill, order, classes)
        for score, sign in BETTER:
            for gap in gaps(best, other, score, sign):
                assert gap.mean() > 0
                assert (gap > -1e-6).all()


def test_the_planted_spots_are_found_with_road() -> None:
    """Bright spots on a dark ground: once they are gone, the ground tells nothing of them."""
    rng = np.random.default_rng(0)
    apart = [np.array(spots) for spots in ([0, 7, 13], [2, 8, 15], [5, 3, 12])]
    bright = np.zeros((12, 16))
    for i in range(12):
        bright[i, apart[i % 3]] = rng.uniform(0.6, 1, 3)
    images = torch.as_tensor(bright[:, PATCH] + 0.05, dtype=torch.float32)[:, None]

    def predict(batch: torch.Tensor) -> torch.Tensor:
        light = batch.mean(dim=(1, 2, 3)) * 60 - 6
        return torch.stack([light, torch.zeros_like(light)], dim=1)

    fill, classes = road_fill(images, PATCH, empty=[0.0]), np.zeros(12, dtype=int)
    best = masking_curves(predict, fill, importance_order(bright), classes)
    for order in (np.stack([rng.permutation(16) for _ in range(12)]), importance_order(-bright)):
        other = masking_curves(predict, fill, order, classes)
        for score, sign in BETTER:
            for gap in gaps(best, other, score, sign):
                assert gap.mean() > 0


def test_order_highest_first_with_ties_by_column() -> None:
    values = np.array([[0.0, 2.0, -1.0, 2.0], [1.0, 1.0, 1.0, 1.0], [-0.0, 0.0, -5.0, 3.0]])
    expected = [[j for _, j in sorted((-x, j) for j, x in enumerate(row))] for row in values.tolist()]
    assert importance_order(values).tolist() == expected
    assert importance_order(torch.as_tensor(values, dtype=torch.bfloat16).requires_grad_()).tolist() == expected
    assert importance_order(Explanation(values, np.zeros(3), ("a", "b", "c", "d"))).tolist() == expected


def test_order_of_the_class_of_each_image() -> None:
    values = np.random.default_rng(0).normal(size=(4, 6, 3))
    classes = [2, 0, 0, 1]
    expected = [importance_order(values[i : i + 1, :, k])[0].tolist() for i, k in enumerate(classes)]
    assert importance_order(values, classes).tolist() == expected
    ranking = np.argsort(np.random.default_rng(1).normal(size=(4, 6, 3)), axis=1)
    said = Explanation(values, np.zeros((4, 3)), tuple("abcdef"), predicted_ranking=ranking)
    assert importance_order(said, torch.tensor(classes)).tolist() == [
        ranking[i, :, k].tolist() for i, k in enumerate(classes)
    ]
    with pytest.raises(InputError, match="need classes"):
        importance_order(values)
    with pytest.raises(InputError, match="classes must be 0 to 2"):
        importance_order(values, [0, 1, 2, 3])
    with pytest.raises(InputError, match="NaN"):
        importance_order([[math.nan, 1.0]])


def test_bootstrap() -> None:
    scores = np.random.default_rng(0).normal(3, 1, 1000)
    mean, std = bootstrap(scores)
    # Means of 666 of 1000, drawn without replacement, spread by sqrt((1 - 666 / 1000) / 666) of the deviation.
    spread = scores.std() * math.sqrt((1 - 666 / 1000) / 666)
    assert abs(mean - scores.mean()) < 5 * spread / math.sqrt(20)
    assert 0.5 * spread < std < 1.7 * spread
    assert bootstrap(scores) == (mean, std)
    assert bootstrap(scores, seed=1) != (mean, std)
    assert bootstrap(scores, size=1000)[1] < 1e-12
    many_mean, many_std = bootstrap(scores, draws=4000, size=100)
    assert many_mean == pytest.approx(scores.mean(), abs=0.01)
    assert many_std == pytest.approx(scores.std() * math.sqrt(0.9 / 100), rel=0.06)


@pytest.mark.parametrize("settings", [{"size": 4}, {"size": 0}, {"size": 2, "draws": 1}])
def test_bootstrap_refuses(settings: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be"):
        bootstrap([1.0, 2.0, 3.0], **settings)
    with pytest.raises(InputError, match="finite"):
        bootstrap([1.0, math.nan], size=1)


def test_summary(images: torch.Tensor, order: np.ndarray) -> None:
    curves = masking_curves(Net(), reference_fill(images, 0, PLAYERS), order, CLASSES, points=4)
    record = curves.summary(size=3, seed=2)
    assert record["evaluations"] == 6 * N_IMAGES
    assert len(curves) == record["images"] == N_IMAGES
    mean, std = bootstrap(curves.inclusion.auc("log_odds"), size=3, seed=2)
    assert record["inclusion"]["log_odds"] == {
        "curve": curves.inclusion.mean("log_odds").tolist(),
        "auc": mean,
        "auc_std": std,
    }
    assert set(record["exclusion"]) == {"top1", "log_odds", "delta_log_odds"}


def test_any_function_can_fill(order: np.ndarray) -> None:
    """A game of bits: the number of kept players among the first `index` + 1 decides."""

    def fill(kept: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return kept.float() * (torch.arange(9) <= index[:, None])

    def predict(bits: torch.Tensor) -> torch.Tensor:
        return torch.stack([bits.sum(dim=1), torch.full((len(bits),), 0.5)], dim=1)

    curves = masking_curves(predict, fill, torch.as_tensor(order), np.zeros(N_IMAGES, dtype=int))
    for i in range(N_IMAGES):
        for number in range(10):
            removed = sum(player > i for player in order[i, number:].tolist())
            left = (9 - number) - removed
            assert curves.exclusion.log_odds[i, number] == pytest.approx(left - 0.5, abs=1e-6)
            assert curves.exclusion.hits[i, number] == (left > 0)


def test_refuses_orders(images: torch.Tensor, order: np.ndarray) -> None:
    fill = reference_fill(images, 0, PLAYERS)
    twice = order.copy()
    twice[3, 0] = twice[3, 1]
    for bad, match in (
        (twice, "each player 0..8 once; 1 do not, first row 3"),
        (order + 1, "each player 0..8 once; 5 do not"),
        (order[:3], r"\(5, 9\) as in fill, got \(3, 9\)"),
        (order[:, :4], "as in fill"),
        (order[0], "shape"),
        (order.astype(float), "importance_order"),
    ):
        with pytest.raises(InputError, match=match):
            masking_curves(Net(), fill, bad, CLASSES)


def test_refuses_classes(images: torch.Tensor, order: np.ndarray) -> None:
    fill = reference_fill(images, 0, PLAYERS)
    for bad, match in (
        ([0, 3, 1, 1, 4], "classes must be 0 to 3"),
        ([0, 3, 1, 1, -1], "0 or more, got -1"),
        ([0, 3, 1], r"shape \(5,\)"),
        ([0.0, 3.0, 1.0, 1.0, 1.0], "whole numbers"),
    ):
        with pytest.raises(InputError, match=match):
            masking_curves(Net(), fill, order, bad)


def test_refuses_settings_and_models(images: torch.Tensor, order: np.ndarray) -> None:
    fill = reference_fill(images, 0, PLAYERS)
    with pytest.raises(InputError, match="points"):
        masking_curves(Net(), fill, order, CLASSES, points=1)
    with pytest.raises(InputError, match="chunk"):
        masking_curves(Net(), fill, order, CLASSES, chunk=0)
    with pytest.raises(InputError, match="training mode"):
        masking_curves(Net().train(), fill, order, CLASSES)
    with pytest.raises(InputError, match="score must be one of"):
        masking_curves(Net(), fill, order, CLASSES).exclusion.auc("accuracy")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="2 or more classes"):
        masking_curves(lambda batch: batch.flatten(1)[:, :1], fill, order, CLASSES)
    with pytest.raises(ModelError, match="no finite log-odds"):
        masking_curves(lambda batch: batch.flatten(1)[:, :4] * math.nan, fill, order, CLASSES)


def test_refuses_images(images: torch.Tensor) -> None:
    for bad, players, match in (
        (images.numpy(), PLAYERS, "tensor of float32"),
        ((images * 255).byte(), PLAYERS, "uint8"),
        (images[0, 0], PLAYERS, "must have shape"),
        (images.permute(0, 2, 3, 1), PLAYERS, "channels must come first"),
        (images, PLAYERS[:4], "pixel_player must be"),
        (images, PLAYERS + 1, "only 9 players have pixels"),
        (images, PLAYERS - 1, "from 0"),
        (images, PLAYERS / 2, "whole numbers"),
        (images * math.inf, PLAYERS, "NaN or infinity"),
    ):
        with pytest.raises(InputError, match=match):
            reference_fill(bad, 0, players)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=match):
            road_fill(bad, players)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="absent must be"):
        reference_fill(images, torch.zeros(3), PLAYERS)
    with pytest.raises(InputError, match="kept must be"):
        reference_fill(images, 0, PLAYERS)(torch.ones(2, 4, dtype=torch.bool), torch.tensor([0, 1]))
