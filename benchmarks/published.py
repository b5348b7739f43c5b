"""The explainer that the paper's authors published for Census, on all test rows.

    CORTX_DATA=... python -m benchmarks.published WEIGHTS

WEIGHTS is the folder adult/weight of https://github.com/ynchuang/CoRTX-720. Its files are pickled networks: here only
their tensors are read, and every class or function that they name is replaced by one that does nothing. The truth is
the authors' own exact labels; `scored` follows their evaluation (cortx/shap_evaluation.py).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.records import RESULTS, record, write
from cortx import metrics
from cortx.paper.census import load_census

ATTRIBUTION, RANKING = "REG_model_adult_CoRTX_0.25.pth.tar", "RANK_model_adult_CoRTX_0.25.pth.tar"
NAMES = (
    "cortx.cortx_model.tab_mlp",
    "torch.nn.modules.linear.Linear",
    "torch.nn.modules.container.ModuleList",
    "torch.nn.functional.elu",
    "torch._C._VariableFunctionsClass",
    "numpy.core.multiarray.scalar",
    "numpy.dtype",
    "builtins.getattr",
)
"""All that the two files refer to besides tensors."""

# What the authors' run_adult.sh asks for: exact labels for a quarter of the training rows; in each of 199 epochs the
# output of every training row and of its 30 masked copies.
LABEL_SHARE, EPOCHS, COPIES = 0.25, 199, 30


class Inert:
    """Stands for whatever a file names: it is made, and keeps its attributes, but does nothing."""

    def __new__(cls, *arguments: object) -> Inert:
        del arguments
        return super().__new__(cls)

    def __init__(self, *arguments: object) -> None:
        del arguments

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


def layers(network: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weights and biases of a `tab_mlp`, from the first layer to the last."""
    each = network._modules["mlp"]._modules.values()
    return [(layer._parameters["weight"].detach(), layer._parameters["bias"].detach()) for layer in each]


def read(path: Path) -> dict[str, Any]:
    stand_ins: Any = [(Inert, name) for name in NAMES]
    with torch.serialization.safe_globals(stand_ins):
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return found


def forward(found: dict[str, Any], rows: torch.Tensor, activation: Any) -> np.ndarray:
    """Encoder and head, each with the activation between its layers."""
    for network in (layers(found[name]) for name in ("pred_model", "head_linear_model")):
        for place, (weight, bias) in enumerate(network):
            rows = torch.nn.functional.linear(rows, weight, bias)
            rows = rows if place == len(network) - 1 else activation(rows)
    return rows.double().numpy()


def scored(weights: Path) -> dict[str, float]:
    census, regression = load_census(), read(weights / ATTRIBUTION)
    # The networks take the columns as they come in the original table; they answer in the order of the labels.
    order = [list(census.feature_names).index(name) for name in regression["column_data"]]
    rows, truth = torch.from_numpy(census.x_test[:, order]), census.labels_test.astype(np.float64)
    said = forward(regression, rows, torch.relu)
    n = said.shape[1]
    # As the authors evaluate it: what is missing to the model's output is shared by all features.
    values = said + (truth.sum(axis=1) - said.sum(axis=1))[:, None] / n
    logits = forward(read(weights / RANKING), rows, torch.nn.functional.elu).reshape(-1, n, n)
    right = logits.argmax(axis=2) == np.argsort(truth, axis=1, kind="stable")
    weight = 1 / np.arange(n, 0, -1)
    return {
        "l2": float(metrics.l2_distance(values, truth).mean()),
        "l2, answers as they come": float(metrics.l2_distance(said, truth).mean()),
        "rank_accuracy": float(metrics.rank_accuracy(values, truth).mean()),
        "rank_accuracy_ranking_head": float((right * weight).sum(axis=1).mean() / weight.sum()),
        "length of a label": float(np.sqrt(np.square(truth).sum(axis=1)).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    n_rows, n_players = load_census().x_train.shape
    evaluations = int(LABEL_SHARE * n_rows) * 2**n_players + EPOCHS * (COPIES + 1) * n_rows
    setting = "sigmoid output, zero reference, 25% exact labels, all test rows"
    records = [
        record("published", setting, "the authors' explainer", metric, [value], seeds=[], evaluations=evaluations)
        for metric, value in scored(arguments.weights).items()
    ]
    for item in records:
        print(f"{item['metric']}: {item['value']:.4f}, {item['evaluations']:,} evaluations")
    write("published", records, arguments.out)


if __name__ == "__main__":
    main()
