"""What tests share: a recipe that trains in a second, small real models, and the benchmark data where they exist."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

import cortx
from cortx.training.encoders import EncoderConfig, HeadConfig
from cortx.training.finetune import FinetuneConfig
from cortx.training.pretrain import PretrainConfig
from cortx.training.recipe import Recipe

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_tiny_recipe(steps: int = 120, **pretrain: object) -> Recipe:
    settings: dict[str, object] = {"steps": 40, "batch_size": 64, **pretrain}
    tune = FinetuneConfig(steps=steps, batch_size=64, validations=6)
    return Recipe(
        name="tiny",
        encoder=EncoderConfig(width=32, depth=1, latent=32),
        head=HeadConfig(width=32, depth=1),
        pretrain=PretrainConfig(**settings),  # type: ignore[arg-type]
        attribution=tune,
        ranking=FinetuneConfig(steps=steps, batch_size=64, validations=6, tune_encoder=False, loss="own"),
    )


@pytest.fixture
def tiny_recipe() -> Recipe:
    return make_tiny_recipe()


def make_model(n_columns: int = 6, n_outputs: int = 1, seed: int = 0) -> torch.nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(n_columns, 16), torch.nn.Tanh(), torch.nn.Linear(16, n_outputs))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.6)
    return model


@pytest.fixture
def model() -> torch.nn.Sequential:
    return make_model()


@pytest.fixture
def table() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)


@pytest.fixture
def game(model: torch.nn.Module, table: np.ndarray) -> cortx.Game:
    return cortx.Game(model, reference=table, output="probability")


@pytest.fixture(scope="session")
def benchmark_data() -> Path:
    folder = os.environ.get("CORTX_DATA")
    if not folder or not (Path(folder) / "census-autoint").is_dir():
        pytest.skip("CORTX_DATA does not name a folder with the benchmark data (census-autoint/)")
    return Path(folder)
