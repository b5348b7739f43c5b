"""Attention between the places of a map: against plain loops, bounded, and the same in ONNX."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from cortx.errors import InputError
from cortx.explainer.onnx_graph import FLOAT, Graph, _attention
from cortx.training.attention import MOST_PLACES, AttentionBlock, GridAttention, attended
from cortx.training.encoders import HeadConfig


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normalised(x: Tensor, layer: nn.LayerNorm) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + layer.eps).sqrt() * layer.weight + layer.bias


def slow_block(block: AttentionBlock, x: Tensor) -> Tensor:
    """One image, (places, width), place by place and head by head."""
    places, width = x.shape
    each = width // block.n_heads
    mixed = [block.mix(normalised(place, block.before)) for place in x]
    result = []
    for i in range(places):
        seen = []
        for head in range(block.n_heads):
            part = slice(head * each, (head + 1) * each)
            query = mixed[i][:width][part]
            near = torch.stack([query @ mixed[j][width : 2 * width][part] / each**0.5 for j in range(places)])
            share = near.exp() / near.exp().sum()
            seen.append(sum(share[j] * mixed[j][2 * width :][part] for j in range(places)))
        y = x[i] + block.join(torch.cat([torch.as_tensor(one) for one in seen]))
        wide = block.wide(normalised(y, block.between))
        result.append(y + block.narrow(wide / (1 + (-wide).exp())))
    return torch.stack(result)


@pytest.mark.parametrize(("width", "heads"), [(8, 1), (64, 2), (36, 1), (96, 3)])
def test_a_block_is_what_loops_say(width: int, heads: int) -> None:
    block, x = AttentionBlock(width, generator()), torch.randn(2, 5, width, generator=generator(1))
    assert block.n_heads == heads
    with torch.no_grad():
        for image, found in zip(x, block(x), strict=True):
            torch.testing.assert_close(found, slow_block(block, image), atol=1e-5, rtol=1e-4)


def test_heads_divide_any_width() -> None:
    for width in range(1, 130):
        assert width % AttentionBlock(width, generator()).n_heads == 0


def test_memory_of_large_maps_is_bounded() -> None:
    for grid in ((4, 4), (16, 16), (32, 32), (33, 32), (33, 33), (112, 112), (7, 900)):
        rows, columns = attended(grid)
        assert rows * columns <= MOST_PLACES
        assert (rows, columns) == grid or grid[0] * grid[1] > MOST_PLACES
        assert rows * columns > MOST_PLACES / 3 or (rows, columns) == grid  # no coarser than it must be
    module = GridAttention(8, 1, (112, 112), generator())
    assert module(torch.zeros(1, 8, 112, 112)).shape == (1, 8, 112, 112)


@pytest.mark.parametrize("grid", [(3, 5), (40, 30)])
def test_the_graph_says_the_same(grid: tuple[int, int]) -> None:
    module = GridAttention(8, 2, grid, generator()).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator(2)))
    x = torch.randn(2, 8, *grid, generator=generator(3))
    graph = Graph()
    given = graph.input("x", FLOAT, "n", 8, *grid)
    graph.output("y", _attention(graph, module, given, grid), FLOAT, "n", 8, *grid)
    session = onnxruntime.InferenceSession(graph.model({}).SerializeToString())
    with torch.no_grad():
        expected = module(x).numpy()
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, atol=2e-5)
    assert np.abs(expected - x.numpy()).max() > 0.1  # it does something


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "decoder", "attention": -1}, {"kind": "decoder", "attention": 1.5}, {"kind": "mlp", "attention": 2}],
)
def test_settings_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="attention is the number of attention blocks"):
        HeadConfig(**wrong)  # type: ignore[arg-type]
