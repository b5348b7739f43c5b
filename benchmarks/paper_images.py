"""The paper's image experiments: from the stages' results to the committed ones, and the pages and pictures of docs.

    python -m benchmarks.paper_images FOLDER [--digits FOLDER]

FOLDER holds the JSON of every stage of a study (the `work` folder of ``cortx paper cifar10``), and `few.npz` where heat
maps are wanted. Photographs stay where the data are: docs show heat maps alone, and whole pictures of scikit-learn's
digits, from the `work` folder of ``cortx paper cifar10 --quick``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.records import write
from cortx.interfaces.image_plots import compare_images, heat_maps
from cortx.interfaces.paper import draw_curves
from cortx.paper import image_report, tables
from cortx.paper.image_study import QUICK, STAGES, ImageStudy

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = DOCS / "images" / "results"
LINES = 8


def read_facts(folder: Path) -> dict[str, dict[str, Any]]:
    """The JSON of every stage that is there: one file each, or all together."""
    if (folder / "facts.json").exists():
        together: dict[str, dict[str, Any]] = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        return together
    paths = {stage: folder / f"{stage}.json" for stage in STAGES}
    return {stage: json.loads(path.read_text(encoding="utf-8")) for stage, path in paths.items() if path.exists()}


def draw_heat_maps(path: Path, few: Path, data: str) -> Path:
    """What every method finds in the first image of each of some classes, without the photograph."""
    with np.load(few) as arrays:
        values, classes = image_report.heat({name: arrays[name] for name in arrays.files})
    chosen = np.sort(np.unique(classes, return_index=True)[1])[:LINES]
    players = len(next(iter(values.values()))[0])
    side = round(players**0.5)
    names = image_report.class_names(data)
    heat_maps(
        {method: array[chosen] for method, array in values.items()}, (side, side), path=path,
        labels=[names[k] for k in classes[chosen]],
    )  # fmt: skip
    return path


def draw_digits(path: Path, folder: Path) -> Path:
    study, some = ImageStudy(folder, QUICK, "cpu"), slice(0, LINES)
    compare_images(
        study.images[some], image_report.explanations(study, some), path=path, labels=study.data[3][some],
        names=image_report.class_names(study.data[4]), players=study.surrogate.image_players,
    )  # fmt: skip
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--digits", type=Path)
    arguments = parser.parse_args()
    records = image_report.records(read_facts(arguments.folder))
    write("paper-cifar10", records)
    tables.update(DOCS / "results.md", "cifar10", image_report.render(records))
    print(f"cifar10: {len(image_report.missing_cells(records))} cells are missing")
    found = draw_curves(records, PICTURES)
    if (arguments.folder / "few.npz").exists():
        few = arguments.folder / "few.npz"
        found.append(draw_heat_maps(PICTURES / "heat-maps.png", few, str(records[0]["data"])))
    if arguments.digits is not None:
        found.append(draw_digits(PICTURES / "digits.png", arguments.digits))
    for path in found:
        print(path)


if __name__ == "__main__":
    main()
