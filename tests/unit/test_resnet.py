"""ResNet-18 for small images, beside the same network written with plain functions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cortx.training.resnet import ResNet18, conv, inference_copy


def make(seed: int = 0, **settings: int) -> ResNet18:
    return ResNet18(**settings, generator=torch.Generator().manual_seed(seed))


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def shake(net: ResNet18) -> ResNet18:
    """Statistics and scales of their own for every normalization, as training gives them."""
    generator = torch.Generator().manual_seed(2)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_mean is not None
            assert part.running_var is not None
            for tensor, low in (
                (part.weight, 0.5),
                (part.bias, -0.3),
                (part.running_mean, -0.3),
                (part.running_var, 0.5),
            ):
                tensor.data.uniform_(low, low + 0.9, generator=generator)
    return net.eval()


def plain_resnet(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network from its weights, stage after stage."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, variance, scale, shift = (
            state[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / torch.sqrt(variance + 1e-5) * scale + shift

    x = norm(F.conv2d(4 * x, state["stem.0.weight"], padding=1), "stem.1").clamp(min=0)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            short = x
            if f"{name}.short.0.weight" in state:
                short = norm(F.conv2d(x, state[f"{name}.short.0.weight"], stride=stride), f"{name}.short.1")
            y = norm(F.conv2d(x, state[f"{name}.first.0.weight"], stride=stride, padding=1), f"{name}.first.1")
            y = norm(F.conv2d(y.clamp(min=0), state[f"{name}.second.0.weight"], padding=1), f"{name}.second.1")
            x = (y + short).clamp(min=0)
    return x.mean(dim=(2, 3)) @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize("n_channels", [1, 3])
def test_it_computes_what_the_plain_network_computes(n_channels: int) -> None:
    net = shake(make(n_channels=n_channels, n_outputs=5, width=8))
    net.head.bias.data.uniform_(-1, 1, generator=torch.Generator().manual_seed(3))
    batch = images(2, n_channels, 16, 12)
    with torch.no_grad():
        found, expected = net(batch), plain_resnet(net.state_dict(), batch)
    assert found.shape == (2, 5)
    assert (found[0] - found[1]).abs().max() > 1e-4
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_its_size_is_that_of_the_published_form() -> None:
    assert sum(parameter.numel() for parameter in make().parameters()) == 11_173_962
    convolutions = [part for part in make().modules() if isinstance(part, nn.Conv2d)]
    assert len([part for part in convolutions if part.kernel_size == (3, 3)]) == 17  # and the head: 18 layers
    assert len([part for part in convolutions if part.kernel_size == (1, 1)]) == 3
    assert all(part.bias is None for part in convolutions)


def test_stages_halve_the_size_and_double_the_width() -> None:
    net = make(width=4).eval()
    maps = net.stages(images(2, 3, 32, 24))
    assert [tuple(part.shape) for part in maps] == [(2, 4, 32, 24), (2, 8, 16, 12), (2, 16, 8, 6), (2, 32, 4, 3)]
    assert [part.shape[1] for part in maps] == list(net.widths)
    torch.testing.assert_close(net.head(maps[-1].mean(dim=(2, 3))), net(images(2, 3, 32, 24)))
    assert [tuple(part.shape[2:]) for part in net.stages(images(1, 3, 8, 8))] == [(8, 8), (4, 4), (2, 2), (1, 1)]


def test_grey_images_have_one_channel() -> None:
    net = make(n_channels=1, width=4).eval()
    batch = images(3, 8, 8)
    torch.testing.assert_close(net(batch), net(batch[:, None]))


def test_the_generator_decides_and_the_global_one_is_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = make(seed=5, width=4).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1)
    again, other = make(seed=5, width=4).state_dict(), make(seed=6, width=4).state_dict()
    for name in first:
        assert torch.equal(first[name], again[name])
    differ = {name for name in first if not torch.equal(first[name], other[name])}
    assert differ == {name for name, tensor in first.items() if tensor.ndim > 1}
    assert all(tensor.isfinite().all() for tensor in first.values())
    assert all(tensor.device.type == "cpu" for tensor in first.values())


def test_first_weights_keep_the_spread_of_signals() -> None:
    layer = conv(16, 64, 3, torch.Generator().manual_seed(0))
    outgoing = 64 * 3 * 3  # numbers that one input reaches
    assert float(layer.weight.detach().std()) == pytest.approx((2 / outgoing) ** 0.5, rel=0.05)
    assert layer.bias is None
    biased = conv(4, 6, 1, torch.Generator().manual_seed(0), bias=True)
    assert biased.bias is not None
    assert biased.bias.abs().max() == 0
    assert biased(images(1, 4, 5, 7)).shape == (1, 6, 5, 7)
    assert conv(4, 6, 3, torch.Generator().manual_seed(0), 2)(images(1, 4, 8, 8)).shape == (1, 6, 4, 4)


def test_absent_pixels_of_zero_send_no_signal() -> None:
    net = make(width=4).eval()
    assert net.stem[0](torch.zeros(1, 3, 8, 8)).abs().max() == 0
    batch = images(1, 3, 8, 8)
    batch[..., 4:] = 0
    seen: list[Tensor] = []
    handle = net.stem[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    net(batch)
    handle.remove()
    assert seen[0][..., 4:].abs().max() == 0
    assert seen[0][..., :4].abs().max() > 0


def test_its_settings_build_it_again() -> None:
    net = make(n_channels=1, n_outputs=4, width=6)
    again = make(seed=9, **net.settings)
    again.load_state_dict(net.state_dict())
    batch = images(2, 1, 8, 8)
    torch.testing.assert_close(again.eval()(batch), net.eval()(batch))


def test_every_relu_is_used_once_and_every_weight_learns() -> None:
    net = make(width=4)
    used: dict[nn.Module, int] = {part: 0 for part in net.modules() if isinstance(part, nn.ReLU)}

    def count(part: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        used[part] += 1

    for part in used:
        part.register_forward_hook(count)
    net(images(4, 3, 8, 8)).square().sum().backward()
    assert set(used.values()) == {1}
    assert len(used) == 1 + 2 * 8
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert sum(bool((p.grad != 0).any()) for p in net.parameters() if p.grad is not None) == len(list(net.parameters()))


def test_images_do_not_influence_each_other_in_use() -> None:
    net = shake(make(width=4))
    batch = images(5, 3, 8, 8)
    torch.testing.assert_close(net(batch)[3:4], net(batch[3:4]), atol=1e-5, rtol=1e-5)


def test_a_copy_inference_copy_says_the_same() -> None:
    """Its normalizations are part of its convolutions; the network that it is made of stays as it was."""
    generator = torch.Generator().manual_seed(0)
    network = ResNet18(3, 4, 8, generator=generator)
    network.train()
    for _ in range(3):  # so that running means are not those of a new network
        network(torch.rand(6, 3, 16, 16, generator=generator))
    network.eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    made = inference_copy(network, torch.float64)
    images = torch.rand(5, 3, 16, 16, generator=generator)
    with torch.no_grad():
        torch.testing.assert_close(made(images.double()).float(), network(images), atol=1e-5, rtol=1e-4)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in made.modules())
    assert {p.dtype for p in made.parameters()} == {torch.float64}
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.dtype == before[name].dtype
