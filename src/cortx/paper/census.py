"""Census: the public table in the paper's encoding, and the target, split and labels as its authors published them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.paper.autoint import CATEGORICAL, AutoInt, load_autoint
from cortx.paper.download import file_sha256
from cortx.paper.sources import Table, default_folder, find, source, split_rows

Array = npt.NDArray[np.float32]
Cells = npt.NDArray[np.str_]

COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)
DENSE = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
"""Numeric features; `fnlwgt`, a sampling weight, is left out as in the paper."""


@dataclass(frozen=True, eq=False)
class PublishedCensus:
    """Rows (label-encoded categories first, then numbers scaled to 0..1), the model, and the published labels."""

    model: AutoInt
    feature_names: tuple[str, ...]
    x_train: Array
    x_test: Array
    y_train: npt.NDArray[np.int8]
    y_test: npt.NDArray[np.int8]
    labels_train: Array
    """The authors' Shapley values of sigmoid(output), zero reference."""
    labels_test: Array
    outputs_train: Array
    outputs_test: Array

    @property
    def categorical(self) -> range:
        """Positions of the categorical columns."""
        return range(len(CATEGORICAL))


def load_adult(folder: str | Path | None = None) -> Table:
    """`adult.data` as the authors used it: 26,048 training and 6,513 test rows of 13 features; float32.

    Eight columns of category codes (the place among the sorted words), then five numbers scaled to 0..1. Rows and their
    order equal the published `census.npz` in every bit. A file other than the public one is refused.
    """
    path, wanted = find("census", folder), source("census")
    if (found := file_sha256(path)) != wanted.sha256:
        raise InputError(
            f"{path} is not the public adult.data: its SHA-256 is {found}, expected {wanted.sha256}; "
            "run: cortx paper download census"
        )
    lines = path.read_text(encoding="ascii").splitlines()
    cells = np.array([line.split(", ") for line in lines if line])
    columns = dict(zip(COLUMNS, cells.T, strict=True))
    train, test = split_rows(len(cells))
    x = encode(columns, train)
    y = (columns["income"] == ">50K").astype(np.int8)
    names = (*(name for name, _ in CATEGORICAL), *DENSE)
    return Table("census", x[train], x[test], y[train], y[test], names, tuple(range(len(CATEGORICAL))))


def encode(columns: Mapping[str, Cells], train: npt.NDArray[np.intp]) -> Array:
    """Text columns as (rows, 13) numbers; the least and the greatest number are those of the rows `train`.

    The list of words is that of all rows, as the authors' is: one country occurs in a test row alone.
    """
    encoded: list[npt.NDArray[np.float64]] = []
    for name, _ in CATEGORICAL:
        _, codes = np.unique(columns[name], return_inverse=True)
        encoded.append(codes.astype(np.float64))
    for name in DENSE:
        numbers = columns[name].astype(np.float64)
        least, most = numbers[train].min(), numbers[train].max()
        encoded.append((numbers - least) / (most - least))
    return np.stack(encoded, axis=1).astype(np.float32)


def data_folder() -> Path:
    """The folder named by CORTX_DATA; where that is not set, the user's cache if it holds the published target."""
    named, folder = os.environ.get("CORTX_DATA"), default_folder()
    if not (folder.is_dir() if named else (folder / "census-autoint").is_dir()):
        raise InputError(
            f"the benchmark data are read from the folder named by CORTX_DATA, which is {named or 'not set'}; "
            "set it to a folder that holds census-autoint/"
        )
    return folder


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
        y_train=table["y_train"],
        y_test=table["y_test"],
        labels_train=labels["train"],
        labels_test=labels["test"],
        outputs_train=outputs["train"],
        outputs_test=outputs["test"],
    )
