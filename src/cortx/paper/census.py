"""The Census target as its authors published it: model, split and labels, read from a folder of safe files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.paper.autoint import CATEGORICAL, AutoInt, load_autoint

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class PublishedCensus:
    """Rows (label-encoded categories first, then numbers scaled to 0..1), the model, and the published labels."""

    model: AutoInt
    feature_names: tuple[str, ...]
    x_train: Array
    x_test: Array
    labels_train: Array
    """The authors' Shapley values of sigmoid(output), zero reference."""
    labels_test: Array
    outputs_train: Array
    outputs_test: Array

    @property
    def categorical(self) -> range:
        """Positions of the categorical columns."""
        return range(len(CATEGORICAL))


def data_folder() -> Path:
    """The folder named by the environment variable CORTX_DATA."""
    folder = os.environ.get("CORTX_DATA")
    if not folder or not Path(folder).is_dir():
        raise InputError(
            f"the benchmark data are read from the folder named by CORTX_DATA, which is {folder or 'not set'}; "
            "set it to a folder that holds census-autoint/"
        )
    return Path(folder)


def load_census() -> PublishedCensus:
    folder = data_folder() / "census-autoint"
    if not (folder / "autoint.safetensors").is_file():
        raise InputError(f"{folder} lacks the published Census target (autoint.safetensors, census.npz, ...)")
    table = np.load(folder / "census.npz", allow_pickle=False)
    labels = np.load(folder / "published_labels.npz", allow_pickle=False)
    outputs = np.load(folder / "published_outputs.npz", allow_pickle=False)
    return PublishedCensus(
        model=load_autoint(folder / "autoint.safetensors"),
        feature_names=tuple(map(str, table["feature_names"])),
        x_train=table["x_train"],
        x_test=table["x_test"],
        labels_train=labels["train"],
        labels_test=labels["test"],
        outputs_train=outputs["train"],
        outputs_test=outputs["test"],
    )
