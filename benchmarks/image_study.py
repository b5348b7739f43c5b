"""The stages of the paper's image experiments, one after another, where only torch, NumPy and safetensors are at hand.

    CORTX_DATA=... python -m benchmarks.image_study FOLDER [--stages target surrogate ...] [--device cuda] [--copy OUT]

The same as ``cortx paper cifar10`` without its report: every stage leaves a JSON file in FOLDER. OUT gets them together
as `facts.json`, and `few.npz` for heat maps; `python -m benchmarks.paper_images OUT` makes results and documents.
XRAI needs scikit-image, or `--segments`, made by `--make-segments` where that is installed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from cortx.paper.image_study import FULL, QUICK, STAGES, ImageStudy
from cortx.paper.records import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--copy", type=Path)
    parser.add_argument("--segments", type=Path)
    parser.add_argument("--make-segments", action="store_true")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    study = ImageStudy(arguments.folder, scale, arguments.device, show=False, segments=arguments.segments)
    if arguments.make_segments:
        if arguments.segments is None:
            parser.error("--make-segments writes to the file that --segments names")
        from cortx.rivals.xrai import segment_images

        np.savez_compressed(arguments.segments, segments=segment_images(study.images))
        return
    for stage in arguments.stages:
        started = time.perf_counter()
        study.run((stage,))
        print(f"{stage}: {time.perf_counter() - started:.1f} s", flush=True)
        if arguments.copy is not None:
            facts = {name: study.facts(name) for name in STAGES if study.path(name, "json").exists()}
            write_json(arguments.copy / "facts.json", facts)
            if study.path("surrogate").exists():
                study.keep_some(arguments.copy / "few.npz")


if __name__ == "__main__":
    main()
