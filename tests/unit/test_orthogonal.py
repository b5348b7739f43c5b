"""The optimiser of students."""

import pytest
import torch

from cortx.training.encoders import make_network
from cortx.training.orthogonal import Muon, orthogonal
from cortx.training.step import Step


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 20, 70), (2, 70, 20)])
def test_singular_values_of_very_different_sizes_come_near_one(shape: tuple[int, int, int]) -> None:
    left, _, right = torch.linalg.svd(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    sizes = torch.zeros(shape)
    few = min(shape[1:])
    sizes[:, range(few), range(few)] = torch.logspace(0, -1.3, few)
    after = torch.linalg.svdvals(orthogonal(left @ sizes @ right))
    assert after.min() > 0.6
    assert after.max() < 1.3


def test_singular_vectors_stay() -> None:
    matrices = torch.randn((1, 24, 24), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrices[0])
    found = left.T @ orthogonal(matrices)[0] @ right.T
    assert float((found - torch.diag(torch.diag(found))).abs().max()) < 1e-6
    assert bool((torch.diag(found) > 0).all())


def test_a_step_moves_matrices_like_adam_and_leaves_the_first_and_last_layers_to_it() -> None:
    layers = make_network("residual", 40, 32, 2, 3, torch.Generator().manual_seed(0))
    optimizer = Muon(layers, 1e-2, 0.0, (0.9, 0.98))
    moved_together = {tuple(matrix.shape) for group in optimizer.param_groups[1:] for matrix in group["params"]}
    assert moved_together == {(32, 32)}
    before = [parameter.detach().clone() for parameter in layers.parameters()]
    x = torch.randn(64, 40, generator=torch.Generator().manual_seed(3))
    Step(lambda x: layers(x).square().mean(), optimizer, clip=1.0)([x])
    for old, new in zip(before, layers.parameters(), strict=True):
        typical = float((new - old).detach().square().mean().sqrt())
        assert 0.1e-2 < typical < 1.3e-2, new.shape
