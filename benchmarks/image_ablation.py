"""What each part of an image explainer earns, on validation images: its surrogate, the same budget, one part changed.

    CORTX_DATA=... python -m benchmarks.image_ablation FOLDER [--budget 12000000] [--variants default ...] [--out OUT]

FOLDER is that of a study (`python -m benchmarks.image_study FOLDER --stages target surrogate`). The last 1,000
training images teach nothing: labels of many evaluations of some of them say how near the maps are, and their patches
are removed and put back. Nothing here looks at test images. `--quick` does the same with digits on a CPU, to try it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cortx
from benchmarks.records import RESULTS, over_seeds, write
from cortx.metrics import importance_order, masking_curves, reference_fill
from cortx.paper.image_study import FULL, QUICK, ImageStudy, closeness
from cortx.training.recipe import Recipe, get_recipe

HELD, TRUTHS, TRUTH_BUDGET = 1_000, 96, 65_536
QUICK_HELD, QUICK_TRUTHS, QUICK_TRUTH_BUDGET = 100, 16, 4_096
ALL_ALIKE = 1e6


def stream(**settings: Any) -> Callable[[Recipe], Recipe]:
    def changed(recipe: Recipe) -> Recipe:
        assert recipe.stream is not None
        return replace(recipe, stream=replace(recipe.stream, **settings))

    return changed


def head(**settings: Any) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(recipe, head=replace(recipe.head, **settings))


VARIANTS: dict[str, Callable[[Recipe], Recipe]] = {
    "default": lambda recipe: recipe,
    "all images count alike": stream(evenness=ALL_ALIKE),
    "evenness 0.02": stream(evenness=0.02),
    "evenness 0.5": stream(evenness=0.5),
    "each value learned from once": stream(replays=0),
    "replays 3": stream(replays=3),
    "no attention": head(attention=0),
    "attention 3": head(attention=3),
    "wide": head(width=256, attention=8),
    "no pre-training": lambda recipe: replace(recipe, pretrain=replace(recipe.pretrain, steps=0)),
    "pairs 8": stream(pairs=8),
    "small batches": stream(batch_size=256),
    "fast": stream(learning_rate=3e-3),
    "no augmentation": stream(flip=False, shift=0),
}


class Held:
    """Validation images of a study, with labels of many evaluations."""

    def __init__(self, study: ImageStudy, held: int, truths: int, budget: int) -> None:
        self.study = study
        self.train, images = study.data[0][:-held], study.data[0][-held:]
        self.images = images.astype(np.float32) / np.float32(255)
        found = cortx.shapley(study.surrogate, self.images[:truths], "kernel", row_budget=budget, progress=False)
        self.classes = study.surrogate.full_values(study.surrogate.rows(self.images)).argmax(axis=1)
        self.truth = np.asarray(found.values)[np.arange(truths), :, self.classes[:truths]]
        self.evaluations = found.evaluations

    def scores(self, explainer: cortx.CoRTX) -> dict[str, float]:
        values = np.asarray(explainer.explain(self.images).values)
        values = values[np.arange(len(values)), :, self.classes]
        pixels = torch.from_numpy(self.images).to(self.study.device)
        zero = reference_fill(pixels, 0, self.study.surrogate.image_players.pixel_player)

        def outputs(images: torch.Tensor) -> torch.Tensor:
            everyone = torch.ones((len(images), 1, self.study.surrogate.n_players), dtype=torch.bool)
            flat = images.flatten(1)
            return self.study.surrogate.values_of(flat, everyone.to(flat.device))[:, 0].clamp(min=1e-9).log()

        with torch.inference_mode():
            curves = masking_curves(outputs, zero, importance_order(values), self.classes)
        near = closeness(values[: len(self.truth)], self.truth)
        return {
            **{name: near[name] for name in ("cosine", "relative_l2", "rank_correlation")},
            "squared_error": float(
                np.square(values[: len(self.truth)] - self.truth).sum() / np.square(self.truth).sum()
            ),
            "exclusion": float(curves.exclusion.auc("top1").mean()),
            "inclusion": float(curves.inclusion.auc("top1").mean()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget", type=int, default=12_000_000)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    study = ImageStudy(arguments.folder, QUICK if arguments.quick else FULL, arguments.device, show=False)
    sizes = (QUICK_HELD, QUICK_TRUTHS, QUICK_TRUTH_BUDGET) if arguments.quick else (HELD, TRUTHS, TRUTH_BUDGET)
    held = Held(study, *sizes)
    records: list[dict[str, Any]] = []
    for name in arguments.variants:
        recipe = VARIANTS[name](get_recipe(study.scale.recipe, images=True))  # type: ignore[arg-type]
        found, costs = [], []
        for seed in arguments.seeds:
            explainer = cortx.CoRTX(recipe, seed=seed, device=arguments.device)
            explainer.fit(study.surrogate, held.train, budget=arguments.budget, progress=False)
            found.append(held.scores(explainer))
            costs.append(explainer.costs_)
        seconds = [sum(part["seconds"] for part in cost.values() if isinstance(part, dict)) for cost in costs]
        print(
            name,
            json.dumps({**{k: round(v, 4) for k, v in found[0].items()}, "seconds": round(seconds[0])}),
            flush=True,
        )
        records += over_seeds(
            "image ablation", study.data[4], name, found, seeds=arguments.seeds,
            evaluations=float(np.mean([cost["total_evaluations"] for cost in costs])), seconds=float(np.mean(seconds)),
            images=len(held.truth), budget=arguments.budget, recipe=asdict(recipe),
        )  # fmt: skip
        write("image_ablation", records, arguments.out)


if __name__ == "__main__":
    main()
