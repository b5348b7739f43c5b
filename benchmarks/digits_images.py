"""Images on two cores: from scikit-learn's digits to explanations, and how near they are to converged values.

    python -m benchmarks.digits_images [--out FOLDER] [--pictures]

The whole path of a user: a classifier, its surrogate, an explainer of the recipe `quick` with 150,000 evaluations, and
maps of all test images. Seconds are those of the processor, of all threads together. Apart from these, labels of the
first test images by enumeration of all 65,536 coalitions say how good the maps are, for the class that the surrogate
predicts. `--pictures` draws the maps of 20 test images beside the exact ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch

import cortx
from benchmarks.records import RESULTS, over_seeds, write
from cortx.explanation import Explanation
from cortx.interfaces.image_plots import compare_images
from cortx.paper.cifar10 import load_digits_images
from cortx.paper.classifier import train_classifier
from cortx.paper.image_study import closeness

SEEDS, TRAIN, TRUTHS, BUDGET = (0, 1, 2), 1_400, 40, 150_000
WIDTH, EPOCHS, SURROGATE_EPOCHS = 16, 20, 15
DRAWN = 20
DOCS = Path(__file__).parents[1] / "docs" / "images" / "results"


class Shown(NamedTuple):
    """What a picture needs: test images, maps of all of them, and exact ones of the first."""

    images: Any
    maps: Explanation
    exact: Explanation
    players: Any


def draw(path: Path, shown: Shown) -> Path:
    """The maps of some test images beside the exact ones, for the class that the surrogate predicts."""
    some = slice(DRAWN)
    compare_images(
        shown.images[some], {"CoRTX (quick)": first(shown.maps), "all coalitions": first(shown.exact)}, path=path,
        players=shown.players,
    )  # fmt: skip
    return path


def first(explanation: Explanation) -> Explanation:
    values, outputs, bases = (
        np.asarray(part)[:DRAWN] for part in (explanation.values, explanation.outputs, explanation.base_values)
    )
    return Explanation(values, bases, explanation.feature_names, outputs=outputs, output_names=explanation.output_names)


def one_path(seed: int) -> tuple[dict[str, float], Shown]:
    images, classes = load_digits_images()
    train, test = images[:TRAIN], images[TRAIN:]
    started = process_time()
    pixels = np.round(train * 255).astype(np.uint8)
    model = train_classifier(
        pixels, classes[:TRAIN], epochs=EPOCHS, width=WIDTH, seed=seed, shift=0, flip=False, batch=100
    )
    game = cortx.Game(model, "zero", players=cortx.Patches(2), output="probability")
    surrogate = cortx.Surrogate(
        epochs=SURROGATE_EPOCHS, width=WIDTH, batch_size=100, flip=False, shift=0, seed=seed
    ).fit(game, train, progress=False)
    learned = process_time()
    explainer = cortx.CoRTX("quick", seed=seed).fit(surrogate.game, train, budget=BUDGET, progress=False)
    fitted = process_time()
    explanation = explainer.explain(test, confidence=0.9)
    explained = process_time()
    exact = cortx.shapley(surrogate.game, test[:TRUTHS], "exact", progress=False)
    chosen = np.asarray(exact.outputs).argmax(axis=1)
    rows = np.arange(TRUTHS)
    values, truth = np.asarray(explanation.values)[rows, :, chosen], np.asarray(exact.values)[rows, :, chosen]
    near = closeness(values, truth)
    inside = (np.asarray(explanation.lower_bounds)[rows, :, chosen] <= truth) & (
        truth <= np.asarray(explanation.upper_bounds)[rows, :, chosen]
    )
    found = {
        "processor_seconds": explained - started,
        "processor_seconds_model_and_surrogate": learned - started,
        "processor_seconds_fit": fitted - learned,
        "processor_milliseconds_per_image": 1_000 * (explained - fitted) / len(test),
        "accuracy": float(
            (np.asarray(game.outputs_of(game.rows(test).table)).argmax(axis=1) == classes[TRAIN:]).mean()
        ),
        **{f"surrogate_{name}": surrogate.quality_[name] for name in ("agreement", "masked_agreement")},
        "evaluations": float(explainer.costs_["total_evaluations"]),
        **{name: near[name] for name in ("cosine", "relative_l2", "rank_correlation")},
        "bands_hold": float(inside.all(axis=1).mean()),
    }
    return found, Shown(test, explanation, exact, surrogate.game.image_players)


def main() -> None:
    torch.set_num_threads(1)  # what is this small is no faster with more
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--pictures", action="store_true")
    arguments = parser.parse_args()
    found = []
    for seed in SEEDS:
        scores, shown = one_path(seed)
        if arguments.pictures and seed == SEEDS[0]:
            print(draw(DOCS / "digits-maps.png", shown))
        print(seed, {name: round(value, 3) for name, value in scores.items()}, flush=True)
        found.append(scores)
    write(
        "digits_images",
        over_seeds(
            "digits", f"{TRUTHS} test images, all coalitions", "CoRTX (quick)", found, seeds=list(SEEDS),
            data="scikit-learn digits", images=TRUTHS,
        ),
        arguments.out,
    )  # fmt: skip


if __name__ == "__main__":
    main()
