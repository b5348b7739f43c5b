"""A step is what a plain training loop does; recorded on a GPU, it is still that."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from cortx.training.checkpoint import pack, unpack
from cortx.training.step import Step, make_optimizer, set_rate

RATES = (1e-2, 1e-2, 3e-3, 2e-2, 5e-3, 1e-3, 8e-3, 4e-3)
DECAY = 0.05
BETAS = (0.9, 0.98)
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU on this machine")
every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
every_clip = pytest.mark.parametrize("clip", [None, 0.05])
Batch = tuple[Tensor, Tensor, Tensor]


def make_network(device: str = "cpu") -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    network = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return network.to(device, torch.float64 if device == "cpu" else torch.float32)


def batches(network: nn.Module, count: int = len(RATES)) -> list[Batch]:
    """A weight, which stays on the CPU, inputs and targets; the later ones are larger, so that clipping matters."""
    generator = torch.Generator().manual_seed(2)
    some = next(network.parameters())
    made = []
    for i in range(count):
        inputs, targets = torch.randn(32, 5, generator=generator), (1 + i) * torch.randn(32, 2, generator=generator)
        made.append((torch.tensor(0.5 + i), inputs.to(some), targets.to(some)))
    return made


def weighted_error(network: nn.Module, weight: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    answers: Tensor = network(inputs)
    return weight * (answers - targets).square().mean()


def by_hand(network: nn.Module, given: Sequence[Batch], clip: float | None) -> tuple[list[float], list[list[Tensor]]]:
    """The plain loop: losses before each step, and the weights after it."""
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=RATES[0], weight_decay=DECAY, betas=BETAS, fused=False, foreach=False
    )
    losses, weights = [], []
    for rate, batch in zip(RATES, given, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = weighted_error(network, *batch)
        torch.autograd.backward(loss)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
        weights.append([parameter.detach().clone() for parameter in network.parameters()])
    return losses, weights


def new_step(network: nn.Module, clip: float | None) -> Step:
    optimizer = make_optimizer(network, 1.0, DECAY, BETAS)  # the first `set_rate` comes before the first step
    return Step(lambda *batch: weighted_error(network, *batch), optimizer, clip)


def assert_same(network: nn.Module, expected: Sequence[Tensor]) -> None:
    """Up to rounding: 53 bits on the CPU, 24 on a GPU, where Adam can make a rounding of small gradients larger."""
    for found, wanted in zip(network.parameters(), expected, strict=True):
        precise = found.dtype == torch.float64
        torch.testing.assert_close(
            found.detach(), wanted, rtol=1e-9 if precise else 1e-3, atol=1e-11 if precise else 1e-5
        )


@every_device
@every_clip
def test_each_step_is_that_of_a_plain_loop(device: str, clip: float | None) -> None:
    network = make_network(device)
    given = batches(network)
    losses, weights = by_hand(copy.deepcopy(network), given, clip)
    step = new_step(network, clip)
    for rate, batch, loss, expected in zip(RATES, given, losses, weights, strict=True):
        set_rate(step.optimizer, rate)
        found = step(batch)
        assert not found.requires_grad
        assert float(found) == pytest.approx(loss, rel=1e-9 if device == "cpu" else 1e-4)
        assert_same(network, expected)


def test_clipping_and_the_rate_matter() -> None:
    """Otherwise the tests above would show nothing about them."""
    network = make_network()
    given = batches(network)
    _, clipped = by_hand(copy.deepcopy(network), given, 0.05)
    _, free = by_hand(copy.deepcopy(network), given, None)
    assert (clipped[-1][0] - free[-1][0]).abs().max() > 1e-3
    first = weighted_error(network, *given[0])
    gradients = torch.autograd.grad(first, list(network.parameters()))
    assert torch.stack([gradient.norm() for gradient in gradients]).norm() > 0.05
    before = copy.deepcopy(network)
    step = new_step(network, None)
    set_rate(step.optimizer, 0.0)
    step(given[0])
    assert_same(network, list(before.parameters()))


@every_device
def test_loss_is_the_one_before_the_step(device: str) -> None:
    network = make_network(device)
    step = new_step(network, None)
    set_rate(step.optimizer, 0.05)
    batch = batches(network)[3]
    for _ in range(4):
        before = weighted_error(network, *batch).item()
        assert float(step(batch)) == pytest.approx(before, rel=1e-5)
        assert weighted_error(network, *batch).item() < before


@every_device
def test_gradients_from_elsewhere_are_forgotten(device: str) -> None:
    network = make_network(device)
    given = batches(network)
    _, weights = by_hand(copy.deepcopy(network), given, 0.05)
    for parameter in network.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    step = new_step(network, 0.05)
    for rate, batch, expected in zip(RATES, given, weights, strict=True):
        set_rate(step.optimizer, rate)
        step(batch)
        assert_same(network, expected)


@every_device
def test_inputs_are_left_as_they_were(device: str) -> None:
    network = make_network(device)
    given = batches(network)
    copies = copy.deepcopy(given)
    step = new_step(network, 0.05)
    for batch in given:
        step(batch)
    for batch, old in zip(given, copies, strict=True):
        for tensor, kept in zip(batch, old, strict=True):
            assert torch.equal(tensor, kept)


@every_device
def test_two_steps_take_turns_with_one_optimizer(device: str) -> None:
    """As in fine-tuning, where rough labels fade out: the second takes over in the middle of the training."""
    network = make_network(device)
    given = batches(network)
    _, weights = by_hand(copy.deepcopy(network), given, 0.05)
    first = new_step(network, 0.05)
    second = Step(first.loss, first.optimizer, first.clip)
    turns = (first, first, first, second, second, first, second, first)
    for step, rate, batch, expected in zip(turns, RATES, given, weights, strict=True):
        set_rate(step.optimizer, rate)
        step(batch)
        assert_same(network, expected)


@every_device
@pytest.mark.parametrize("done", [1, 4])
def test_resumed_training_goes_on_as_if_nothing_had_happened(device: str, done: int) -> None:
    network = make_network(device)
    given = batches(network)
    _, weights = by_hand(copy.deepcopy(network), given, 0.05)
    step = new_step(network, 0.05)
    for rate, batch in zip(RATES[:done], given, strict=False):
        set_rate(step.optimizer, rate)
        step(batch)
    kept = {name: tensor.detach().cpu().clone() for name, tensor in pack("all", network, step.optimizer).items()}

    other = make_network(device)
    step = new_step(other, 0.05)
    unpack("all", kept, other, step.optimizer)
    assert_same(other, weights[done - 1])
    for rate, batch, expected in zip(RATES[done:], given[done:], weights[done:], strict=True):
        set_rate(step.optimizer, rate)
        step(batch)
        assert_same(other, expected)


@every_device
def test_running_means_are_those_of_a_plain_loop(device: str) -> None:
    """Also where the step is tried out before it is recorded."""
    plain = nn.Sequential(make_network(device), nn.BatchNorm1d(2).to(device, torch.float32))
    plain.to(next(plain.parameters()).dtype)
    network = copy.deepcopy(plain)
    given = batches(network)
    by_hand(plain, given, None)
    optimizer = make_optimizer(network, 1.0, DECAY, BETAS)
    step = Step(lambda *batch: weighted_error(network, *batch), optimizer, state=network.buffers())
    for rate, batch in zip(RATES, given, strict=True):
        set_rate(optimizer, rate)
        step(batch)
    for found, wanted in zip(network.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
