"""The paper's image experiments: a classifier, its surrogate, explainers, rivals, and what each of them finds.

Every stage keeps what it made in a folder, so a study that was stopped goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cortx.errors import InputError
from cortx.estimators.shapley import shapley
from cortx.explainer.artifact import load
from cortx.explainer.explainer import CoRTX
from cortx.explanation import Explanation
from cortx.games import Game
from cortx.games.players import Patches
from cortx.metrics import importance_order, masking_curves, reference_fill, road_fill, throughput
from cortx.paper.cifar10 import load_cifar10, load_digits_images
from cortx.paper.classifier import accuracy, train_classifier
from cortx.paper.records import hardware, versions, write_json
from cortx.rivals.fastshap_images import ImageFastSHAP, ImageFastSHAPSettings
from cortx.rivals.gradients import DeepSHAP, GradCAM, IntegratedGradients, Saliency, SmoothGrad
from cortx.rivals.rise import RISE
from cortx.rivals.xrai import XRAI
from cortx.seeding import numpy_generator, stream_seed, torch_generator
from cortx.training.recipe import get_recipe
from cortx.training.resnet import ResNet18, settle
from cortx.training.surrogate import Surrogate, quality

Array = npt.NDArray[np.float64]
BATCH = 4_096
"""Images of a batch whose throughput is measured on the device."""
KERNEL = 2_048
"""Evaluations of a KernelSHAP label, in the paper."""


@dataclass(frozen=True)
class ImageScale:
    """How large a study is."""

    data: str
    images: int
    """Test images that all methods explain."""
    truths: int
    """Test images with converged labels, of `truth_budget` evaluations each."""
    truth_budget: int
    budget: int
    """Model evaluations of our explainer and of FastSHAP, everything included."""
    paper_labels: int
    """KernelSHAP labels of the paper's recipe: 5% of the training images."""
    epochs: int = 100
    surrogate_epochs: int = 40
    judge_epochs: int = 18
    width: int = 64
    fastshap: ImageFastSHAPSettings = field(default_factory=ImageFastSHAPSettings)
    """As published, to its own end (about 30 million evaluations on CIFAR-10)."""
    fastshap_equal: ImageFastSHAPSettings = field(default_factory=lambda: ImageFastSHAPSettings(samples=32))
    """With more coalitions in each step, so that it spends what ours does."""
    draws: tuple[int, int] = (20, 666)
    """Repetitions and images of the bootstrap."""
    shift: int = 4
    flip: bool = True
    recipe: str = "default"
    rise_masks: int = 2_048
    steps: int = 50
    """Of Integrated Gradients, SmoothGrad and XRAI."""
    paper_positives: int = 300
    precision: Any = "float16"
    train_images: int | None = None
    """Only the first so many training images."""
    more_seeds: tuple[int, ...] = ()
    """Further seeds of our explainer."""


FULL = ImageScale("cifar10", 1_000, 100, 131_072, 50_000_000, 2_500, more_seeds=(1, 2))
QUICK = ImageScale(
    "digits", 32, 8, 4_096, 80_000, 16, 8, 10, 5, 16, ImageFastSHAPSettings(samples=2, base_channels=8, epochs=4),
    ImageFastSHAPSettings(samples=8, base_channels=8, epochs=8), (20, 21), 0, False, "quick", 128, 8, 4, None,
)  # fmt: skip
METHODS = {
    "cortx": "CoRTX (default)",
    "cortx-paper": "CoRTX (paper's recipe)",
    "fastshap": "FastSHAP",
    "fastshap-equal": "FastSHAP (equal cost)",
    "kernel": "KernelSHAP",
    "saliency": "Saliency",
    "integrated-gradients": "Integrated Gradients",
    "smoothgrad": "SmoothGrad",
    "gradcam": "GradCAM",
    "deepshap": "DeepSHAP",
    "rise": "RISE",
    "xrai": "XRAI",
    "random": "random order",
}
LEARNED = ("cortx", "cortx-paper", "fastshap", "fastshap-equal")
OF_CLASSES = (*LEARNED, "kernel")
"""Methods that explain all classes at once, by the surrogate; the others explain one class of the classifier."""
JUDGES = ("surrogate", "target, zero", "target, ROAD", "retrained surrogate")


class Compiled(nn.Module):
    """A network that is compiled for batches of a few sizes (smaller ones are filled up), and as it is for others."""

    def __init__(self, network: nn.Module, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.network, self.sizes = network, sizes
        self._fast = [torch.compile(network, dynamic=False)]  # in a list: it shares the network's weights

    def forward(self, images: Tensor) -> Tensor:
        n = len(images)
        size = next((size for size in self.sizes if 0.75 * size < n <= size), None)
        if size is None:
            result: Tensor = self.network(images)
            return result
        if n < size:
            images = torch.cat([images, images.new_zeros(size - n, *images.shape[1:])])
        answer: Tensor = self._fast[0](images.to(memory_format=torch.channels_last))
        return answer[:n].clone()


@dataclass(frozen=True, eq=False)
class ImageStudy:
    """One study, in a folder."""

    folder: Path
    scale: ImageScale
    device: str
    seed: int = 0
    show: bool | None = None
    segments: Path | None = None
    """Segmentations of the test images for XRAI (`segment_images`), where scikit-image is not at hand."""

    # Data and networks ----------------------------------------------------------------------------------------

    @cached_property
    def data(self) -> tuple[Any, Any, Any, Any, str]:
        """Training images (uint8) and labels, test images and labels, and what they are called."""
        if self.scale.data == "digits":
            images, labels = load_digits_images()
            pixels = np.round(images * 255).astype(np.uint8)
            return pixels[:1_400], labels[:1_400], pixels[1_400:], labels[1_400:], "scikit-learn digits"
        found, some = load_cifar10(), slice(self.scale.train_images)
        return found.train_images[some], found.train_labels[some], found.test_images, found.test_labels, found.title

    @cached_property
    def images(self) -> npt.NDArray[np.float32]:
        """The test images that are explained, 0..1."""
        pixels: npt.NDArray[np.float32] = self.data[2][: self.scale.images].astype(np.float32)
        return pixels / np.float32(255)

    @cached_property
    def tensor(self) -> Tensor:
        return torch.from_numpy(self.images).to(self.device)

    def network(self, name: str) -> ResNet18:
        made = ResNet18(self.data[0].shape[1], 10, self.scale.width, generator=torch_generator(0, name))
        made.load_state_dict(
            {key: t.float() if t.is_floating_point() else t for key, t in load_file(self.path(name)).items()}
        )
        settle(made, self.device)
        return made.eval().requires_grad_(False)

    def path(self, name: str, suffix: str = "safetensors") -> Path:
        return self.folder / f"{name}.{suffix}"

    def game(self, name: str) -> Game:
        """The game of a network: 2x2 patches, zero where they are absent, the probabilities of all classes."""
        network: nn.Module = self.network(name)
        precision = self.scale.precision if self.device.startswith("cuda") else None
        budget = None
        if precision is not None:
            config = get_recipe("default", images=True).stream
            assert config is not None
            rivals = (self.scale.fastshap, self.scale.fastshap_equal)
            sizes = (*sorted(one.batch_size * (one.samples + 1) for one in rivals), config.step_evaluations)
            network, budget = Compiled(network, sizes), max(sizes) * 4 * 40 * self.images[0].size
        game = Game(
            network, "zero", players=Patches(2), output="probability", precision=precision, memory_budget=budget
        )
        game.rows(self.images[:2])
        return game

    @cached_property
    def surrogate(self) -> Game:
        return self.game("surrogate")

    @cached_property
    def target(self) -> Game:
        """The classifier itself, in its own precision: gradient methods need it."""
        game = Game(self.network("target"), "zero", players=Patches(2), output="probability")
        game.rows(self.images[:2])
        return game

    # Stages ---------------------------------------------------------------------------------------------------

    def run(self, stages: tuple[str, ...] = ()) -> None:
        """Makes what is missing, stage by stage."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = self.device.startswith("cuda")
        for name in stages or tuple(STAGES):
            self._once(name, getattr(self, STAGES[name]))

    def facts(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.path(name, "json").read_text(encoding="utf-8"))
        return found

    def _once(self, name: str, make: Callable[[], dict[str, Any]]) -> None:
        if self.path(name, "json").exists():
            kept = self.facts(name).get("scale")
            if kept != self._scale():
                raise InputError(
                    f"{self.folder} holds the stage {name!r} of another study (another size, seed or data); use "
                    "another folder, or delete this one"
                )
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        started = perf_counter()
        facts = make()
        about = {"stage_seconds": perf_counter() - started, "hardware": hardware(self.device), "versions": versions()}
        write_json(self.path(name, "json"), {**facts, **about, "scale": self._scale()})

    def _scale(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps({**asdict(self.scale), "seed": self.seed}))
        return found

    def make_target(self) -> dict[str, Any]:
        train, labels, test, answers, _ = self.data
        network = train_classifier(
            train, labels, epochs=self.scale.epochs, width=self.scale.width, seed=self.seed, device=self.device,
            shift=self.scale.shift, flip=self.scale.flip, batch=min(512, len(train) // 10), show=self.show,
        )  # fmt: skip
        self._keep("target", network)
        exact = torch.from_numpy(test).to(self.device).float() / 255
        found = accuracy(self.network("target"), exact, torch.from_numpy(answers).to(self.device))
        return {"accuracy": found, "images": len(test), "data": self.data[4], "epochs": self.scale.epochs}

    def _keep(self, name: str, network: nn.Module) -> None:
        """Half precision is kept and used from here on: rounding is part of the network."""
        state = {key: t.half() if t.is_floating_point() else t for key, t in network.state_dict().items()}
        save_file({key: t.cpu().contiguous() for key, t in state.items()}, self.path(name))

    def make_surrogate(self) -> dict[str, Any]:
        return self._surrogate("surrogate", self.scale.surrogate_epochs, self.seed)

    def make_judge(self) -> dict[str, Any]:
        return self._surrogate("retrained surrogate", self.scale.judge_epochs, self.seed + 1)

    def _surrogate(self, name: str, epochs: int, seed: int) -> dict[str, Any]:
        train, _, test, answers, _ = self.data
        size = min(512, len(train) // 10)
        made = Surrogate(
            epochs=epochs,
            width=self.scale.width,
            batch_size=size,
            flip=self.scale.flip,
            shift=self.scale.shift,
            seed=seed,
        ).fit(self.game("target"), train, progress=self.show)
        self._keep(name, made.network)
        network, target = self.network(name), self.game("target")
        rows = target.rows(test)
        found = quality(network, target, torch.from_numpy(rows.table.matrix).to(self.device), seed=seed)
        half = self._half_accuracy(network, test, answers)
        return {**made.costs_, "held_out": made.quality_, "test": found, "masked_accuracy": half, "epochs": epochs}

    def _half_accuracy(self, network: nn.Module, test: Any, answers: Any) -> float:
        """Accuracy on test images that lost a random half of their patches."""
        game, matrix = self.target, torch.from_numpy(self.target.rows(test).table.matrix).to(self.device)
        generator = torch_generator(self.seed, "half", device=self.device)
        place = torch.rand((len(matrix), game.n_players), generator=generator, device=self.device).argsort(1).argsort(1)
        masked = game.masked_images(matrix, place < game.n_players // 2)
        return accuracy(network, masked.view(len(matrix), *test.shape[1:]), torch.from_numpy(answers).to(self.device))

    def make_cortx(self) -> dict[str, Any]:
        explainer = self._ours(self.seed)
        explainer.save(self.folder / "cortx.explainer")
        return {"costs": explainer.costs_, "quality": explainer.quality_, "history": explainer.history_}

    def _ours(self, seed: int) -> CoRTX:
        explainer = CoRTX(self.scale.recipe, seed=seed, device=self.device)  # type: ignore[arg-type]
        return explainer.fit(self.surrogate, self.data[0], budget=self.scale.budget, progress=self.show)

    def make_seeds(self) -> dict[str, Any]:
        """Our explainer with other seeds, before every judge and against converged labels."""
        truth = np.load(self.path("truth", "npz"))
        fills = self._fills()
        facts: dict[str, Any] = {}
        for seed in self.scale.more_seeds:
            explainer = self._ours(seed)
            values = np.asarray(explainer.explain(self.images).values)
            judged = {}
            for judge, fill in fills.items():
                classes = self._classes(judge)
                order = importance_order(_of_class(values, classes))
                with torch.inference_mode():
                    curves = masking_curves(self._judge(judge), fill, order, classes)
                judged[judge] = {
                    "exclusion": float(curves.exclusion.auc("top1").mean()),
                    "inclusion": float(curves.inclusion.auc("top1").mean()),
                }
            facts[str(seed)] = {
                "judges": judged,
                **closeness(_of_class(values[: len(truth["values"])], truth["classes"]), truth["values"]),
                "costs": explainer.costs_,
            }
        return {"seeds": facts}

    def make_fastshap(self) -> dict[str, Any]:
        return self._fastshap("fastshap", self.scale.fastshap)

    def make_fastshap_equal(self) -> dict[str, Any]:
        return self._fastshap("fastshap-equal", self.scale.fastshap_equal)

    def _fastshap(self, name: str, settings: ImageFastSHAPSettings) -> dict[str, Any]:
        rival = ImageFastSHAP(settings, seed=self.seed, device=self.device)
        rival.fit(self.surrogate, self.data[0], budget=self.scale.budget, progress=self.show)
        return {"costs": rival.costs_, "history": rival.history_, **self._measured(name, rival.explain)}

    def make_paper(self) -> dict[str, Any]:
        """The paper's recipe: contrastive pre-training on all images, KernelSHAP labels for 5% of them."""
        train = self.data[0]
        chosen = numpy_generator(self.seed, "paper labels").choice(len(train), self.scale.paper_labels, replace=False)
        labels = shapley(self.surrogate, train[chosen], "kernel", row_budget=KERNEL, seed=self.seed, progress=self.show)
        recipe = get_recipe("paper", images=True)
        pretrain = replace(recipe.pretrain, n_positives=self.scale.paper_positives)
        if self.scale.recipe == "quick":
            pretrain = replace(pretrain, steps=20, batch_size=64)
            recipe = replace(
                recipe, encoder=replace(recipe.encoder, width=self.scale.width),
                attribution=replace(recipe.attribution, steps=100, batch_size=32),
            )  # fmt: skip
        explainer = CoRTX(replace(recipe, pretrain=pretrain), seed=self.seed, device=self.device)
        explainer.fit(self.surrogate, train, labels=labels, progress=self.show)
        error = np.linalg.norm(np.asarray(labels.error_std), axis=1) / np.linalg.norm(labels.values, axis=1)
        return {
            "costs": explainer.costs_,
            "quality": explainer.quality_,
            "label_relative_standard_error": float(np.nanmean(error)),
            **self._measured("cortx-paper", explainer.explain),
        }

    def make_truth(self) -> dict[str, Any]:
        """Converged labels of the first test images, for the class that the surrogate predicts."""
        images = self.images[: self.scale.truths]
        found = shapley(
            self.surrogate, images, "kernel", row_budget=self.scale.truth_budget,
            seed=stream_seed(self.seed, "truth"), progress=self.show,
        )  # fmt: skip
        classes = np.asarray(found.outputs).argmax(axis=1)
        values, errors = _of_class(found.values, classes), _of_class(found.error_std, classes)
        np.savez(self.path("truth", "npz"), values=values, errors=errors, classes=classes)
        relative = np.linalg.norm(errors, axis=1) / np.linalg.norm(values, axis=1)
        return {
            "images": len(images),
            "evaluations": found.evaluations,
            "budget": self.scale.truth_budget,
            "mean_relative_standard_error": float(relative.mean()),
        }

    def make_explanations(self) -> dict[str, Any]:
        """Our explainer, and the methods that need no training, on all test images; their speed and cost."""
        facts: dict[str, Any] = {}
        explainer = load(self.folder / "cortx.explainer", self.surrogate.model)
        explainer.to(self.device)
        facts["cortx"] = self._measured("cortx", explainer.explain)
        facts["cortx"] |= self._on_device(explainer)
        few = self.images[: max(2, len(self.images) // 20)]  # a first pass, so that no clock counts what is made once
        shapley(self.surrogate, few, "kernel", row_budget=KERNEL, seed=self.seed, progress=False)
        found = shapley(self.surrogate, self.images, "kernel", row_budget=KERNEL, seed=self.seed, progress=False)
        np.savez(self.path("values-kernel", "npz"), values=np.asarray(found.values, dtype=np.float32))
        facts["kernel"] = {
            "images_per_second": len(self.images) / found.seconds,
            "evaluations_per_image": found.evaluations / len(self.images),
        }
        generator = numpy_generator(self.seed, "random order")
        random = generator.normal(size=(len(self.images), self.surrogate.n_players))
        np.savez(self.path("values-random", "npz"), values=random)
        classes = {judge: self._classes(judge) for judge in JUDGES}
        for name, rival in self._rivals().items():
            game = rival.game
            if name != "xrai":
                rival.explain(few, classes=classes["target, zero"][: len(few)])
            started, spent = perf_counter(), game.evaluations
            arrays = {"target, zero": rival.explain(self.images, classes=classes["target, zero"]).values}
            seconds, evaluations = perf_counter() - started, game.evaluations - spent
            for judge in ("surrogate", "retrained surrogate"):
                # Only images of which this judge thinks otherwise are explained again.
                other = np.flatnonzero(classes[judge] != classes["target, zero"])
                values = arrays["target, zero"].copy()
                if len(other):
                    again = self._xrai(other) if name == "xrai" else rival
                    values[other] = again.explain(self.images[other], classes=classes[judge][other]).values
                arrays[judge] = values
            np.savez(self.path(f"values-{name}", "npz"), **{key.replace(", ", "-"): a for key, a in arrays.items()})
            facts[name] = {
                "images_per_second": len(self.images) / seconds,
                "evaluations_per_image": evaluations / len(self.images),
            }
        return facts

    def _rivals(self) -> dict[str, Any]:
        game, seed, scale = self.target, self.seed, self.scale
        return {
            "saliency": Saliency(game, seed=seed),
            "integrated-gradients": IntegratedGradients(game, steps=scale.steps, seed=seed),
            "smoothgrad": SmoothGrad(game, samples=scale.steps, seed=seed),
            "gradcam": GradCAM(game, seed=seed),
            "deepshap": DeepSHAP(game, seed=seed),
            "rise": RISE(self.game("target"), masks=scale.rise_masks, seed=seed),
            "xrai": self._xrai(np.arange(len(self.images))),
        }

    def _xrai(self, index: npt.NDArray[np.int64]) -> XRAI:
        """XRAI for some of the test images, whose segmentations may be at hand."""
        segments = None if self.segments is None else np.load(self.segments)["segments"][index]
        return XRAI(self.target, segments=segments, steps=self.scale.steps, seed=self.seed)

    def _classes(self, judge: str) -> npt.NDArray[np.int64]:
        """What a judge predicts of the whole images."""
        with torch.inference_mode():
            return self._judge(judge)(self.tensor).argmax(dim=1).cpu().numpy()

    def _judge(self, judge: str) -> Callable[[Tensor], Tensor]:
        network, on_gpu = (
            self.network("target" if judge.startswith("target") else judge),
            self.device.startswith("cuda"),
        )

        def logits(images: Tensor) -> Tensor:
            if on_gpu:
                images = images.to(memory_format=torch.channels_last)
            with torch.autocast(images.device.type, torch.float16, enabled=on_gpu):
                parts = [network(images[start : start + 4_096]) for start in range(0, len(images), 4_096)]
            return torch.cat(parts).float()

        return logits

    def make_curves(self) -> dict[str, Any]:
        """Inclusion and exclusion of every method, before every judge."""
        draws, size = self.scale.draws
        fills = self._fills()
        facts: dict[str, Any] = {}
        for judge in JUDGES:
            classes, logits = self._classes(judge), self._judge(judge)
            for name in METHODS:
                order = importance_order(self._values(name, judge, classes))
                with torch.inference_mode():
                    curves = masking_curves(logits, fills[judge], order, classes)
                facts.setdefault(judge, {})[name] = curves.summary(draws=draws, size=size, seed=self.seed)
        return facts

    def _fills(self) -> dict[str, Any]:
        """What is in the place of removed patches, for every judge."""
        pixel_player = self.surrogate.image_players.pixel_player
        fills = dict.fromkeys(JUDGES, reference_fill(self.tensor, 0, pixel_player))
        fills["target, ROAD"] = road_fill(self.tensor, pixel_player, seed=self.seed)
        return fills

    def _values(self, name: str, judge: str, classes: npt.NDArray[np.int64]) -> Any:
        arrays = np.load(self.path(f"values-{name}", "npz"))
        if name == "random":
            return arrays["values"]
        if name in OF_CLASSES:
            return _of_class(arrays["values"].astype(np.float64), classes)
        return arrays["target-zero" if judge.startswith("target") else judge]

    def make_errors(self) -> dict[str, Any]:
        """Distance to converged labels."""
        truth = np.load(self.path("truth", "npz"))
        wanted, classes = truth["values"], truth["classes"]
        facts = {}
        for name in OF_CLASSES:
            values = np.load(self.path(f"values-{name}", "npz"))["values"][: len(wanted)].astype(np.float64)
            facts[name] = closeness(_of_class(values, classes), wanted)
        return facts

    def keep_some(self, path: Path, count: int = 60) -> Path:
        """What every method says of the first images, and their classes: enough for pictures, without the images."""
        arrays: dict[str, Any] = {"classes": self._classes("surrogate")[:count]}
        for name in METHODS:
            if self.path(f"values-{name}", "npz").exists():
                found = np.load(self.path(f"values-{name}", "npz"))
                arrays |= {f"{name}|{key}": found[key][:count].astype(np.float32) for key in found.files}
        np.savez_compressed(path, **arrays)
        return path

    # Helpers --------------------------------------------------------------------------------------------------

    def _measured(self, name: str, explain: Callable[[Any], Explanation]) -> dict[str, Any]:
        spent = self._explain(name, explain)
        return {"images_per_second": self._speed(explain), "evaluations_per_image": spent / len(self.images)}

    def _on_device(self, explainer: CoRTX) -> dict[str, float]:
        """Images per second where nothing leaves the device, without and with the model's own output."""
        batch = self.tensor.repeat(-(-BATCH // len(self.tensor)), *[1] * (self.tensor.ndim - 1))[:BATCH]
        outputs = self.surrogate.values_of(batch.flatten(1), self._everyone(len(batch)))[:, 0]

        def wait(answer: Tensor) -> Tensor:
            if answer.device.type == "cuda":
                torch.cuda.synchronize()
            return answer

        return {
            "images_per_second_on_device": throughput(lambda X: wait(explainer.attribute(X, outputs)), batch, 5),
            "images_per_second_on_device_with_model": throughput(lambda X: wait(explainer.attribute(X)), batch, 5),
            "model_images_per_second": throughput(
                lambda X: wait(self.surrogate.values_of(X.flatten(1), self._everyone(len(X)))), batch, 5
            ),
        }

    def _everyone(self, count: int) -> Tensor:
        return torch.ones((count, 1, self.surrogate.n_players), dtype=torch.bool, device=self.device)

    def _explain(self, name: str, explain: Callable[[Any], Explanation]) -> int:
        found = explain(self.images)
        np.savez(self.path(f"values-{name}", "npz"), values=np.asarray(found.values, dtype=np.float32))
        return found.evaluations

    def _speed(self, explain: Callable[[Any], Explanation]) -> float:
        return throughput(explain, self.images, repeats=2)


STAGES = {
    "target": "make_target",
    "surrogate": "make_surrogate",
    "retrained surrogate": "make_judge",
    "cortx": "make_cortx",
    "truth": "make_truth",
    "explanations": "make_explanations",
    "cortx-paper": "make_paper",
    "fastshap-equal": "make_fastshap_equal",
    "fastshap": "make_fastshap",
    "curves": "make_curves",
    "errors": "make_errors",
    "seeds": "make_seeds",
}


def closeness(values: Array, truth: Array) -> dict[str, float]:
    """Mean cosine, relative l2 error and rank correlation (Spearman) of values with the truth, (images, players)."""
    length = np.linalg.norm(truth, axis=1)
    cosine = (values * truth).sum(axis=1) / (np.linalg.norm(values, axis=1) * length)
    ranks, right = (array.argsort(axis=1).argsort(axis=1).astype(np.float64) for array in (values, truth))
    ranks, right = (array - array.mean(axis=1, keepdims=True) for array in (ranks, right))
    spearman = (ranks * right).sum(axis=1) / np.sqrt(np.square(ranks).sum(axis=1) * np.square(right).sum(axis=1))
    measures = {
        "cosine": cosine,
        "relative_l2": np.linalg.norm(values - truth, axis=1) / length,
        "rank_correlation": spearman,
    }
    result: dict[str, float] = {}
    for name, each in measures.items():
        result[name], result[f"{name}_se"] = float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))
    return result


def _of_class(values: Any, classes: npt.NDArray[np.int64]) -> Any:
    """(images, players, outputs) -> (images, players): of one class each."""
    if values is None or values.ndim != 3:
        raise InputError("expected the values of all classes, (images, players, outputs)")
    return values[np.arange(len(values)), :, classes[: len(values)]]
