"""Explainers of images: fitted, explained, saved, judged; in small."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.guard import HANG
from torch import Tensor

import cortx
from cortx import CoRTX, Explanation, Game, Patches, Segments
from cortx.errors import ArtifactError, BudgetError, FingerprintError, InputError
from cortx.paper.cifar10 import load_digits_images
from cortx.seeding import torch_generator
from cortx.training.checkpoint import Checkpoint, pack, unpack
from cortx.training.encoders import EncoderConfig, HeadConfig
from cortx.training.image_network import ImageFeatures, ImageNetwork
from cortx.training.recipe import Recipe, get_recipe
from cortx.training.resnet import ResNet18, inference_copy

BUDGET = 7_000
PARTS = np.array([0, 0, 0, 1, 1, 2, 2, 2])[:, None] + 3 * np.array([0, 0, 0, 0, 1, 1, 1, 1])[None, :]
"""Six segments of an image of 8 x 8."""


def tiny(name: Any = "quick") -> Recipe:
    """A recipe with everything in it, of each as little as can be."""
    recipe = get_recipe(name, images=True)
    stream = recipe.stream
    if stream is not None:
        stream = replace(stream, pairs=2, batch_size=16, imitation_steps=20, validations=3, shift=1)
    return replace(
        recipe,
        encoder=replace(recipe.encoder, width=4),
        head=replace(recipe.head, width=8),
        pretrain=replace(recipe.pretrain, steps=4, batch_size=16, n_positives=2),
        attribution=replace(recipe.attribution, steps=20, batch_size=32, validations=4),
        stream=stream,
    )


def make_net(n_channels: int = 1, seed: int = 0, width: int = 4) -> ResNet18:
    """A network with three outputs that differ from image to image."""
    net = ResNet18(n_channels, 3, width, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        net.head.weight.mul_(100)
    return net.eval()


def function(images: np.ndarray) -> np.ndarray:
    """Probabilities of three classes from the brightness of three regions."""
    flat = images.reshape(len(images), 8, -1).astype(np.float64)
    logits = 20 * np.stack(
        [flat[:, :3].mean(axis=(1, 2)), flat[:, 3:5].mean(axis=(1, 2)), flat[:, 5:].mean(axis=(1, 2))], 1
    )
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    return chances / chances.sum(axis=1, keepdims=True)


def adds_up(explained: Explanation) -> None:
    assert explained.outputs is not None
    np.testing.assert_allclose(explained.values.sum(axis=1) + explained.base_values, explained.outputs, atol=1e-9)


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return load_digits_images()[0][:300]


@pytest.fixture(scope="module")
def images(digits: np.ndarray) -> np.ndarray:
    """What an explainer is fitted on; the others are fresh."""
    return digits[:130]


@pytest.fixture(scope="module")
def fresh(digits: np.ndarray) -> np.ndarray:
    return digits[130:200]


@pytest.fixture(scope="module")
def game() -> Game:
    return Game(make_net(), "zero", players=Patches(4), output="probability")


@pytest.fixture(scope="module")
def explainer(game: Game, images: np.ndarray) -> CoRTX:
    return CoRTX(tiny()).fit(game, images, budget=BUDGET)


@pytest.fixture(scope="module")
def folder(explainer: CoRTX, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return explainer.save(tmp_path_factory.mktemp("explainers") / "digits")


# Fitted with a budget -----------------------------------------------------------------------------------------


def test_a_budget_is_kept_and_told(explainer: CoRTX, images: np.ndarray) -> None:
    game = Game(make_net(), "zero", players=Patches(4), output="probability")
    again = CoRTX(tiny())
    plan = again.plan(game, images, BUDGET)
    assert game.evaluations == 1  # v(none)
    assert plan.total <= BUDGET
    costs = explainer.costs_
    assert costs["total_evaluations"] <= BUDGET
    assert costs["total_evaluations"] > 0.9 * plan.total
    assert costs["total_evaluations"] == sum(part["evaluations"] for part in costs.values() if isinstance(part, dict))
    assert costs["labels to learn from"]["evaluations"] == plan.expected["training"]
    assert costs["pretraining"]["from_the_model_itself"]
    assert "imitation" not in explainer.history_
    assert explainer.quality_["rows"] == len(plan.validation)
    assert len(explainer.calibration) == len(plan.calibration)
    roles = np.concatenate([plan.train, plan.validation, plan.calibration])
    assert len(np.unique(roles)) == len(roles) == len(images)


def test_the_plan_is_printed(game: Game, images: np.ndarray) -> None:
    lines = str(CoRTX(tiny()).plan(game, images, BUDGET)).splitlines()
    assert lines[0] == f"plan for {BUDGET:,} model evaluations:"
    assert "fresh in every step" in lines[2]
    assert [line.split()[1] for line in lines[1:5]] == ["pre-training", "labels", "precise", "precise"]
    assert str(CoRTX("default").plan(game, images)).startswith("plan for 500,000 model evaluations")


def test_too_small_a_budget_names_one_that_is_enough(images: np.ndarray) -> None:
    for net in (make_net(), function):
        game = Game(net, "mean", players=Patches(4), output="probability" if net is not function else "raw")
        with pytest.raises(BudgetError, match=r"budget=500 is too small.*or fit with n_labels=") as caught:
            CoRTX(tiny()).plan(game, images, 500)
        named = int(str(caught.value).split("give at least ")[1].split(", or")[0].replace(",", ""))
        plan = CoRTX(tiny()).plan(game, images, named)
        assert plan.total <= named
        assert named < 30_000


@pytest.mark.slow
def test_a_named_budget_is_enough_for_a_fit(images: np.ndarray) -> None:
    game = Game(make_net(), "zero", players=Patches(4), output="probability")
    with pytest.raises(BudgetError) as caught:
        CoRTX(tiny()).fit(game, images, budget=100)
    named = int(str(caught.value).split("give at least ")[1].split(", or")[0].replace(",", ""))
    fitted = CoRTX(tiny()).fit(game, images, budget=named)
    assert fitted.costs_["total_evaluations"] <= named


def test_explanations_add_up(explainer: CoRTX, fresh: np.ndarray, game: Game) -> None:
    spent = game.evaluations
    explained = explainer.explain(fresh)
    assert explained.values.shape == (70, 4, 3)
    assert explained.evaluations == 70 == game.evaluations - spent
    assert explained.feature_names == ("patch 0,0", "patch 0,1", "patch 1,0", "patch 1,1")
    adds_up(explained)
    np.testing.assert_allclose(explained.outputs, game.full_values(game.rows(fresh)), atol=1e-6)
    given = explainer.explain(fresh, explained.outputs)
    assert given.evaluations == 0
    np.testing.assert_allclose(given.values, explained.values, atol=1e-6)
    one = np.concatenate([explainer.explain(image[None]).values for image in fresh[:5]])
    np.testing.assert_allclose(one, explained.values[:5], atol=1e-5)
    assert explainer.latent(fresh).shape == (70, 32)


def test_absent_parts_get_nothing(explainer: CoRTX, fresh: np.ndarray) -> None:
    masked = fresh[:5].copy()
    masked[:, :, :4, 4:] = 0
    explained = explainer.explain(masked)
    assert (explained.values[:, 1] == 0).all()
    adds_up(explained)
    nothing = explainer.explain(np.zeros_like(fresh[:1]))
    assert (nothing.values == 0).all()
    np.testing.assert_allclose(nothing.outputs, nothing.base_values, atol=1e-6)


def test_tensors_and_bytes_are_images_too(explainer: CoRTX, fresh: np.ndarray) -> None:
    values = explainer.explain(fresh[:6]).values
    for same in (torch.from_numpy(fresh[:6]), torch.from_numpy(fresh[:6]).to(torch.bfloat16), fresh[:6].tolist()):
        np.testing.assert_allclose(explainer.explain(same).values, values, atol=1e-5)  # sixteenths fit bfloat16
    whole = (fresh[:6] * 255).round().astype(np.uint8)
    np.testing.assert_allclose(
        explainer.explain(whole).values, explainer.explain((whole / 255).astype(np.float32)).values, atol=1e-5
    )


def test_attribute_is_explain_on_tensors(explainer: CoRTX, fresh: np.ndarray, folder: Path) -> None:
    explained = explainer.explain(fresh)
    images = torch.from_numpy(fresh)
    found = explainer.attribute(images)
    assert isinstance(found, Tensor)
    np.testing.assert_allclose(found, explained.values, atol=1e-5)
    outputs = torch.from_numpy(np.asarray(explained.outputs))
    np.testing.assert_allclose(explainer.attribute(images, outputs), explained.values, atol=1e-5)
    alone = cortx.load(folder)
    np.testing.assert_allclose(alone.attribute(images, outputs), explained.values, atol=1e-5)
    np.testing.assert_allclose(alone.attribute(images), alone.explain(fresh).values, atol=1e-5)
    with pytest.raises(InputError, match=r"of shape \(70, 8, 8\), expected floats"):
        explainer.attribute(images[:, 0])


def test_bounds_and_their_shapes(explainer: CoRTX, fresh: np.ndarray) -> None:
    explained = explainer.explain(fresh, confidence=0.8)
    assert explained.confidence == 0.8
    lower, upper, bound = explained.lower_bounds, explained.upper_bounds, explained.error_bound
    assert lower is not None
    assert upper is not None
    assert bound is not None
    assert lower.shape == upper.shape == (70, 4, 3)
    assert bound.shape == (70, 3)
    assert (lower <= explained.values).all()
    assert (upper >= explained.values).all()
    truth = cortx.shapley(explainer.game, fresh, "exact", views=0)
    distance = np.linalg.norm(truth.values - explained.values, axis=1)
    assert ((distance <= bound).mean(axis=0) > 0.65).all()
    wider = explainer.explain(fresh, confidence=0.95).error_bound
    assert wider is not None
    assert (wider >= bound).all()


def test_a_tolerance_is_kept(explainer: CoRTX, fresh: np.ndarray) -> None:
    some = fresh[:8]
    bounds = explainer.explain(some, confidence=0.95).error_bound
    assert bounds is not None
    tolerance = float(np.median(bounds.max(axis=1))) / 2
    explained = explainer.explain(some, tolerance=tolerance)
    assert explained.refined is not None
    assert explained.error_bound is not None
    assert explained.refined.any()
    assert (explained.error_bound <= tolerance).all()
    assert explained.evaluations > len(some)
    truth = cortx.shapley(explainer.game, some, "exact", views=0).values
    refined = explained.refined
    assert np.linalg.norm(truth - explained.values, axis=1)[refined].max() <= tolerance
    adds_up(explained)


def test_it_is_a_prior_for_an_estimator(explainer: CoRTX, game: Game, fresh: np.ndarray) -> None:
    amortized = cortx.shapley(game, fresh[:3], method="amortized", explainer=explainer, row_budget=12)
    adds_up(amortized)


# Without a model, and on disk ---------------------------------------------------------------------------------


def test_without_a_model_the_output_is_guessed(explainer: CoRTX, folder: Path, fresh: np.ndarray) -> None:
    alone = cortx.load(folder)
    guessed = alone.explain(fresh)
    assert guessed.outputs is None
    assert guessed.evaluations == 0
    assert np.isfinite(guessed.values).all()
    with pytest.raises(InputError, match="give outputs="):
        alone.explain(fresh, confidence=0.8)
    with pytest.raises(InputError, match="none is attached"):
        alone.explain(fresh, tolerance=0.1)
    outputs = explainer.explain(fresh).outputs
    np.testing.assert_array_equal(alone.explain(fresh, outputs).values, explainer.explain(fresh, outputs).values)


SCRIPT = """
import sys
import numpy as np, torch
import cortx
from cortx.training.resnet import ResNet18, inference_copy
folder, work = sys.argv[1:]
torch.set_num_threads(1)
images = np.load(f"{work}/images.npy")
net = ResNet18(1, 3, 4, generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    net.head.weight.mul_(100)
explainer = cortx.load(folder, model=net.eval())
explained = explainer.explain(images, confidence=0.9)
np.savez(f"{work}/found.npz", values=explained.values, outputs=explained.outputs, bound=explained.error_bound,
         guessed=cortx.load(folder).explain(images).values)
"""


def test_a_saved_explainer_says_the_same_elsewhere(
    explainer: CoRTX, folder: Path, fresh: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "images.npy", fresh)
    subprocess.run([sys.executable, "-c", SCRIPT, str(folder), str(tmp_path)], check=True, timeout=HANG)
    with np.load(tmp_path / "found.npz") as found:
        explained = explainer.explain(fresh, confidence=0.9)
        np.testing.assert_array_equal(found["outputs"], explained.outputs)
        np.testing.assert_array_equal(found["values"], explained.values)
        np.testing.assert_array_equal(found["bound"], explained.error_bound)
        np.testing.assert_array_equal(found["guessed"], cortx.load(folder).explain(fresh).values)


def test_another_model_is_refused(folder: Path) -> None:
    for other in (make_net(seed=1), function, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))):
        with pytest.raises(FingerprintError):
            cortx.load(folder, model=other)


def test_a_damaged_folder_is_refused(explainer: CoRTX, tmp_path: Path) -> None:
    place = explainer.save(tmp_path / "broken")
    manifest = place / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"resnet18"', '"resnet99"'))
    with pytest.raises(ArtifactError, match="cannot be rebuilt"):
        cortx.load(place)


# What is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x[:, :, :6, :6], r"expected \(images, 1, 8, 8\)"),
        (lambda x: x.transpose(0, 2, 3, 1), "the channels must come first"),
        (lambda x: np.repeat(x, 3, axis=1), r"expected \(images, 1, 8, 8\)"),
        (lambda x: x[:, 0], "becomes one with channels"),
        (lambda x: x[0], r"one image; give a batch, images\[None\]"),
        (lambda x: x * 16, "outside 0..1; divide by 255"),
        (lambda x: x - 0.5, "outside 0..1; put the standardization inside the model"),
        (lambda x: x[:0], "there is no image"),
        (lambda x: np.where(x > 0.9, np.nan, x), "NaN or infinity"),
        (lambda x: x.astype(str), "must be an array or a tensor of numbers"),
        (lambda x: x.reshape(len(x), -1), r"expected \(images, 1, 8, 8\)"),
    ],
)
def test_images_of_the_wrong_kind(explainer: CoRTX, fresh: np.ndarray, change: Any, words: str) -> None:
    for ask in (explainer.explain, explainer.latent, explainer.evaluate, explainer.calibrate):
        with pytest.raises(InputError, match=words):
            ask(change(fresh))


def test_what_a_fit_on_images_refuses(game: Game, images: np.ndarray) -> None:
    with pytest.raises(InputError, match="has the head 'attribution' alone"):
        CoRTX(tiny(), heads=("attribution", "ranking")).fit(game, images, budget=BUDGET)
    with pytest.raises(InputError, match=r"encoder 'residual'.*not for images.*get_recipe\('default', images=True\)"):
        CoRTX(get_recipe("quick")).fit(game, images, budget=BUDGET)
    table = Game(torch.nn.Linear(4, 1), "zero")
    with pytest.raises(InputError, match=r"encoder 'resnet18'.*not for tables.*get_recipe\('default', images=False\)"):
        CoRTX(tiny()).fit(table, np.zeros((200, 4), dtype=np.float32))
    with pytest.raises(InputError, match="does not say how to spend a budget on images; give labels= or n_labels="):
        CoRTX("paper").fit(game, images, budget=BUDGET)
    with pytest.raises(InputError, match="at least 100 rows"):
        CoRTX(tiny()).fit(game, images[:60], budget=BUDGET)
    one = Game(make_net(), "zero", players=Patches(8), output="probability")
    with pytest.raises(InputError, match="at least two parts"):
        CoRTX(tiny()).fit(one, images, budget=BUDGET)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"players": ["a", "b"]}, r"players must be groups of columns.*cortx.Patches\(2\).*got \['a', 'b'\]"),
        ({"players": Patches}, "players must be groups of columns.*got <class"),
        ({"players": 2}, "players must be groups of columns.*got 2"),
        ({"players": Patches(2), "frame": "pandas"}, "frame='pandas' is about tables"),
        ({"players": Patches(2), "categorical": ["a"]}, r"categorical=\['a'\] is about tables"),
        ({"players": Patches(2), "categorical": "a"}, "categorical must list columns"),
    ],
)
def test_games_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Game(make_net(), "zero", **settings)


def test_coalitions_of_another_game(game: Game, fresh: np.ndarray) -> None:
    rows = game.rows(fresh[:2])
    for shape in ((3, 5), (2, 3, 5), (3, 3, 4), (4,)):
        for distinct in (False, True):
            with pytest.raises(InputError, match=r"expected \(rows, coalitions, players\) = \(2, any, 4\)"):
                game.values(rows, np.ones(shape, dtype=bool), distinct=distinct)
    matrix = torch.from_numpy(rows.table.matrix)
    for shape in ((2, 3, 5), (1, 3, 4), (3, 4)):
        with pytest.raises(InputError, match="the coalitions have shape"):
            game.values_of(matrix, torch.ones(shape, dtype=torch.bool))


def test_images_in_a_game_of_tables() -> None:
    game = Game(torch.nn.Linear(64, 1), "zero")
    for shape in ((5, 8, 8), (5, 1, 8, 8)):
        with pytest.raises(InputError, match=r"for images say players=cortx.Patches\(2\)"):
            game.rows(np.zeros(shape, dtype=np.float32))
    with pytest.raises(InputError, match=r"for a single row use row.reshape\(1, -1\)"):
        game.rows(np.zeros(64, dtype=np.float32))


@pytest.mark.parametrize("name", ["l2x", "supervised", "fastshap", "shap-kernel", "captum-sampling", "shapiq-kernel"])
def test_rivals_for_tables_say_so(name: str, images: np.ndarray) -> None:
    from cortx.rivals import RIVALS

    game = Game(make_net(), "zero", players=Patches(4), output="probability", target=0)
    ways: dict[str, Any] = {
        "l2x": lambda rival: rival().fit(game, images),
        "supervised": lambda rival: rival().fit(game, images, labels=(np.arange(20), np.zeros((20, 4)))),
        "fastshap": lambda rival: rival().fit(game, images, budget=1_000),
    }
    ask = ways.get(name, lambda rival: rival(game).explain(images))
    with pytest.raises(InputError, match=r"is for tables; got images|learns from tables, and this is a game of images"):
        ask(RIVALS[name])


@pytest.mark.parametrize("reference", ["mean", "blur"])
def test_the_account_of_a_rival_has_the_reference_of_each_image(reference: str, fresh: np.ndarray) -> None:
    from cortx.rivals.base import Account, full_values

    game = Game(make_net(), reference, players=Patches(4), output="probability")
    rows = game.rows(fresh[:5])
    empty, _ = game.empty_values(rows), game.base_values
    account = Account(game)
    closed = account.close(rows, np.zeros((5, 4, 3)), full_values(game, rows), "nothing")
    np.testing.assert_allclose(closed.base_values, empty, atol=1e-6)
    assert np.ptp(closed.base_values, axis=0).max() > 1e-4
    assert closed.evaluations == 10


# Other ways to fit --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_given_labels_teach_the_papers_recipe(game: Game, images: np.ndarray, fresh: np.ndarray) -> None:
    labels = cortx.shapley(game, images[:40], "exact")
    explainer = CoRTX(tiny("paper")).fit(game, images, labels=labels)
    adds_up(explainer.explain(fresh))
    assert explainer.fitted.calibration is None
    with pytest.raises(InputError, match="not calibrated"):
        explainer.explain(fresh, confidence=0.9)
    explainer.calibrate(images[60:120])
    assert explainer.explain(fresh, confidence=0.8).error_bound is not None
    pair = CoRTX(tiny("paper")).fit(game, images, labels=(np.arange(40), labels.values))
    assert pair.quality_["rows"] == 10
    adds_up(pair.explain(fresh))
    other = Game(make_net(), images.max(axis=0), players=Patches(4), output="probability")
    with pytest.raises(InputError, match="another game"):
        CoRTX(tiny("paper")).fit(other, images, labels=labels)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["quick", "paper"])
def test_a_number_of_labels(recipe: str, images: np.ndarray, fresh: np.ndarray) -> None:
    game = Game(make_net(), "zero", players=Patches(4), output="probability")
    explainer = CoRTX(tiny(recipe)).fit(game, images, n_labels=30)
    adds_up(explainer.explain(fresh))
    assert explainer.costs_["total_evaluations"] == game.evaluations - len(fresh)
    assert explainer.costs_["labels"]["rows"] == 30


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["blur", "mean"])
def test_images_that_are_their_own_references(
    reference: str, images: np.ndarray, fresh: np.ndarray, tmp_path: Path
) -> None:
    net = make_net()
    game = Game(net, reference, players=Patches(4), output="probability")
    explainer = CoRTX(tiny()).fit(game, images, budget=BUDGET)
    assert explainer.costs_["total_evaluations"] == game.evaluations
    assert explainer.costs_["total_evaluations"] <= BUDGET
    explained = explainer.explain(fresh, confidence=0.8)
    adds_up(explained)
    assert explained.evaluations == 2 * len(fresh)
    np.testing.assert_allclose(explained.base_values, game.empty_values(game.rows(fresh)), atol=1e-6)
    assert np.ptp(explained.base_values, axis=0).max() > 1e-4
    np.testing.assert_allclose(explainer.attribute(torch.from_numpy(fresh)), explained.values, atol=1e-5)

    folder = explainer.save(tmp_path / "own")
    alone = cortx.load(folder)
    for ask in (alone.explain, lambda x: alone.explain(x, explained.outputs)):
        with pytest.raises(InputError, match=f"the reference '{reference}' is made from each image.*model="):
            ask(fresh)
    with pytest.raises(InputError, match=f"the reference '{reference}' needs the model"):
        alone.attribute(torch.from_numpy(fresh))
    attached = cortx.load(folder, model=net).explain(fresh)
    np.testing.assert_array_equal(attached.values, explained.values)
    adds_up(attached)
    labels = cortx.shapley(game, images[:30], "exact")
    spent = game.evaluations
    told = CoRTX(tiny("paper")).fit(game, images, labels=labels)
    assert told.costs_["total_evaluations"] == game.evaluations - spent + labels.evaluations
    adds_up(told.explain(fresh))


@pytest.mark.slow
def test_segments(images: np.ndarray, fresh: np.ndarray, tmp_path: Path) -> None:
    net = make_net()
    game = Game(net, images[3], players=Segments(PARTS), output="probability", target=1)
    explainer = CoRTX(tiny()).fit(game, images, budget=8_000)
    explained = explainer.explain(fresh, confidence=0.8)
    assert explained.values.shape == (70, 6)
    assert explained.feature_names[-1] == "segment 5"
    adds_up(explained)
    loaded = cortx.load(explainer.save(tmp_path / "segments"), model=net)
    np.testing.assert_array_equal(loaded.explain(fresh).values, explained.values)
    np.testing.assert_array_equal(loaded.game.image_players.pixel_player, PARTS)  # type: ignore[union-attr]
    same = images[3:4]
    assert (explainer.explain(same).values == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["last", "grey"])
def test_functions_of_images_in_other_layouts(layout: str, images: np.ndarray, fresh: np.ndarray) -> None:
    def shaped(x: np.ndarray) -> np.ndarray:
        return x[:, 0] if layout == "grey" else np.repeat(x[:, 0, :, :, None], 3, axis=3)

    channels: Any = "last" if layout == "last" else "first"
    seen: list[tuple[int, ...]] = []

    def model(x: np.ndarray) -> np.ndarray:
        seen.append(x.shape[1:])
        return function(x)

    game = Game(model, "zero", players=Patches(4, channels=channels), output="raw")
    explainer = CoRTX(tiny()).fit(game, shaped(images), budget=BUDGET)
    assert len(explainer.history_["imitation"]) == 1
    assert not explainer.costs_["pretraining"]["from_the_model_itself"]
    assert explainer.costs_["total_evaluations"] <= BUDGET
    explained = explainer.explain(shaped(fresh), confidence=0.8)
    adds_up(explained)
    assert set(seen) == {shaped(fresh).shape[1:]}
    np.testing.assert_allclose(explained.outputs, function(shaped(fresh)), atol=1e-6)
    if layout == "last":
        with pytest.raises(InputError, match="the channels must come last"):
            explainer.explain(shaped(fresh).transpose(0, 3, 1, 2))


@pytest.mark.slow
def test_a_killed_fit_goes_on(images: np.ndarray, fresh: np.ndarray, tmp_path: Path) -> None:
    class Mortal(Game):
        left = 10**9

        def values_of(self, matrix: Tensor, coalitions: Tensor, **settings: Any) -> Tensor:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return super().values_of(matrix, coalitions, **settings)

    def mortal() -> Mortal:
        return Mortal(function, "zero", players=Patches(4), output="raw")

    whole = mortal()
    expected = CoRTX(tiny()).fit(whole, images, budget=BUDGET)
    doomed = mortal()
    doomed.left = 10**9 - whole.left - 30  # within the last steps
    with pytest.raises(KeyboardInterrupt):
        CoRTX(tiny()).fit(doomed, images, budget=BUDGET, checkpoint=tmp_path)
    assert {path.stem for path in tmp_path.glob("training-*/*.safetensors")} >= {"imitation", "pretrain"}
    revived = mortal()
    explainer = CoRTX(tiny()).fit(revived, images, budget=BUDGET, checkpoint=tmp_path)
    # Once more the outputs of kept labels' rows are looked at.
    checked = explainer.costs_["checks"]["evaluations"] - expected.costs_["checks"]["evaluations"]
    assert 0 < checked <= 32
    assert explainer.costs_["total_evaluations"] - checked == expected.costs_["total_evaluations"] == whole.evaluations
    outputs = function(fresh)
    np.testing.assert_array_equal(explainer.explain(fresh, outputs).values, expected.explain(fresh, outputs).values)
    assert revived.evaluations < whole.evaluations
    assert not list(tmp_path.glob("training-*"))


# Judged -------------------------------------------------------------------------------------------------------


def test_evaluate_finds_nothing_wrong_and_then_darkness(explainer: CoRTX, digits: np.ndarray) -> None:
    fresh = digits[130:]
    report = explainer.evaluate(fresh, rows=40, confidence=0.8)
    assert report.measures["rows"] == 40
    assert {drift.column for drift in report.drift} == {"brightness", "contrast"}
    assert "data drifted" not in str(report)
    dark = explainer.evaluate(fresh * 0.4, rows=40, confidence=0.8)
    moved = {drift.column for drift in dark.drift if drift.drifted}
    assert "brightness" in moved
    assert "brightness" in str(dark)
    assert "data drifted" in str(dark)


def test_evaluate_notices_another_model(explainer: CoRTX, fresh: np.ndarray) -> None:
    other = Game(make_net(seed=1), "zero", players=Patches(4), output="probability")
    assert "model changed" in str(explainer.evaluate(fresh, game=other, rows=30))
    finer = Game(make_net(), "zero", players=Patches(2), output="probability")
    with pytest.raises(InputError, match="has 16 players, the explainer was fitted for 4"):
        explainer.evaluate(fresh, game=finer)


# What only a GPU does, as far as a CPU can tell -----------------------------------------------------------------


@pytest.mark.parametrize("patch", [2, 8])
def test_reduced_precision_learns_on_fine_and_coarse_grids(patch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    game = Game(ResNet18(1, 3, 4, generator=torch_generator(0, "net")), "zero", players=Patches(patch))
    rows = game.rows(np.random.default_rng(0).random((6, 1, 16, 16), dtype=np.float32))
    features = ImageFeatures(game.schema, game.image_players, torch.from_numpy(game.absent), None)  # type: ignore[arg-type]
    network = ImageNetwork(
        features, game.image_players, 3, encoder=EncoderConfig("resnet18", 4), head=HeadConfig("decoder", 8, 1), seed=0
    )
    monkeypatch.setattr(ImageNetwork, "reduced", lambda self: torch.autocast("cpu", torch.bfloat16))
    codes, total = torch.from_numpy(rows.table.matrix), torch.ones(6, 3)
    output = network.for_loss("attribution", codes, total, network.active(codes))
    assert output.dtype == torch.float32
    assert output.shape == (6, game.n_players, 3)
    torch.autograd.backward(output.square().sum())
    assert network(codes, total).values.shape == output.shape


@pytest.mark.parametrize("attention", [0, 1])
def test_copies_for_inference_say_the_same(attention: int, monkeypatch: pytest.MonkeyPatch) -> None:
    game = Game(ResNet18(1, 3, 4, generator=torch_generator(0, "net")), "zero", players=Patches(2))
    rows = game.rows(np.random.default_rng(0).random((6, 1, 16, 16), dtype=np.float32))
    features = ImageFeatures(game.schema, game.image_players, torch.from_numpy(game.absent), None)  # type: ignore[arg-type]
    network = ImageNetwork(
        features, game.image_players, 3, encoder=EncoderConfig("resnet18", 8),
        head=HeadConfig("decoder", 32, 1, attention=attention), seed=0,
    ).eval().requires_grad_(False)  # fmt: skip
    codes, total = torch.from_numpy(rows.table.matrix), torch.ones(6, 3)
    expected = network(codes, total)
    made = tuple(inference_copy(part, torch.bfloat16) for part in (network.encoder, network.attribution))
    monkeypatch.setattr(ImageNetwork, "_for_inference", lambda self: made)
    monkeypatch.setattr(ImageNetwork, "reduced", lambda self: torch.autocast("cpu", torch.bfloat16))
    answer = network(codes, total)
    assert answer.values.dtype == torch.float32
    away = (answer.values - expected.values).norm() / expected.values.norm()
    assert float(away) < 0.02  # of bfloat16
    torch.testing.assert_close(answer.values.sum(dim=1), total, atol=1e-4, rtol=0)


def test_whatever_learns_does_so_in_the_wider_range(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch, "autocast", lambda device, kind, enabled: asked.append(kind))
    game = Game(ResNet18(1, 3, 4, generator=torch_generator(0, "net")), "zero", players=Patches(2))
    game.rows(np.zeros((1, 1, 8, 8), dtype=np.float32))
    features = ImageFeatures(game.schema, game.image_players, torch.from_numpy(game.absent), None)  # type: ignore[arg-type]
    network = ImageNetwork(
        features, game.image_players, 3, encoder=EncoderConfig("resnet18", 4), head=HeadConfig("decoder", 8, 1), seed=0
    ).eval()
    network.reduced()
    network.encoder.train()
    network.reduced()
    network.eval()
    network.heads["attribution"].train()
    network.reduced()
    assert asked == [torch.float16, torch.bfloat16, torch.bfloat16]


def test_a_resumed_optimizer_keeps_the_order_of_its_parameters_in_memory(tmp_path: Path) -> None:
    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        layer = torch.nn.Conv2d(3, 8, 3)
        layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.AdamW(layer.parameters())
        torch.autograd.backward(layer(torch.rand(2, 3, 8, 8)).sum())
        optimizer.step()
        return layer, optimizer

    layer, optimizer = made()
    Checkpoint(tmp_path, "key").save("stage", pack("trained", layer, optimizer))
    kept = Checkpoint(tmp_path, "key").load("stage")
    assert kept is not None
    other, resumed = made()
    unpack("trained", kept[0], other, resumed)
    for parameter, again in zip(layer.parameters(), other.parameters(), strict=True):
        for name, tensor in resumed.state[again].items():
            assert torch.equal(tensor, optimizer.state[parameter][name])
            if tensor.shape == again.shape:
                assert tensor.stride() == again.stride()
