"""What processes compute together is what one of them computes alone."""

from __future__ import annotations

import gc
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import make_tiny_recipe
from torch import Tensor, nn

import cortx
from cortx.errors import InputError
from cortx.explainer.fit import _shared_outputs
from cortx.explainer.labels import Labels
from cortx.explainer.material import labels_as_given
from cortx.training import parallel
from cortx.training.contrastive_loss import Similarity, contrastive_loss
from cortx.training.finetune import part_of_mean
from cortx.training.parallel import ALONE, Processes, processes
from cortx.training.step import Step, make_optimizer

every_similarity = pytest.mark.parametrize("similarity", ["cosine", "dot"])
every_world = pytest.mark.parametrize("world", [1, 2, 3, 5])
ROWS, WORLD = 11, 2
TEMPERATURE = 0.3


class Simulated(Processes):
    """A process of several that live in one: it is given what the others would have sent."""

    def __init__(self, rank: int, world: int, everyone: list[Tensor]) -> None:
        super().__init__(rank, world)
        object.__setattr__(self, "everyone", everyone)

    def gather(self, own: Tensor, whole: int) -> Tensor:
        rows = torch.cat(self.everyone)  # type: ignore[attr-defined]
        assert len(rows) == whole
        torch.testing.assert_close(rows[self.share(whole)], own)
        return rows


def make_latents() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    anchors, positives = (torch.randn(ROWS, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    return anchors.requires_grad_(), positives.requires_grad_()


def by_hand(anchors: Tensor, positives: Tensor, similarity: Similarity) -> float:
    """The definition in plain loops: the positive of a row against the anchors of all other rows."""
    if similarity == "cosine":
        anchors, positives = (part / part.norm(dim=1, keepdim=True) for part in (anchors, positives))
    total = 0.0
    for i in range(ROWS):
        match = math.exp(float(anchors[i] @ positives[i]) / TEMPERATURE)
        others = sum(math.exp(float(anchors[i] @ anchors[j]) / TEMPERATURE) for j in range(ROWS) if j != i)
        total -= math.log(match / (match + others))
    return total / ROWS


@every_world
def test_shares_cover_a_batch_and_differ_by_one_row(world: int) -> None:
    for whole in range(23):
        shares = [list(range(whole))[Processes(rank, world).share(whole)] for rank in range(world)]
        assert [row for share in shares for row in share] == list(range(whole))
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


@every_similarity
@every_world
def test_the_losses_of_shares_add_up_to_that_of_the_batch(similarity: Similarity, world: int) -> None:
    anchors, positives = make_latents()
    whole = contrastive_loss(anchors, positives, TEMPERATURE, similarity)
    assert whole.item() == pytest.approx(by_hand(anchors.detach(), positives.detach(), similarity), rel=1e-12)
    expected = torch.autograd.grad(whole, [anchors, positives])

    seen = anchors if similarity == "dot" else anchors / anchors.norm(dim=1, keepdim=True)
    members = [Processes(rank, world) for rank in range(world)]
    everyone = [seen[member.share(ROWS)] for member in members]
    total = torch.zeros((), dtype=torch.float64)
    for member in members:
        share, together = member.share(ROWS), Simulated(member.rank, world, everyone)
        total = total + contrastive_loss(
            seen[share], positives[share], TEMPERATURE, similarity, together if world > 1 else ALONE, ROWS
        )
    torch.testing.assert_close(total, whole, rtol=1e-12, atol=0)
    for found, wanted in zip(torch.autograd.grad(total, [anchors, positives]), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-14)


@every_world
def test_parts_of_a_mean_add_up(world: int) -> None:
    numbers = torch.randn(7, dtype=torch.float64)
    parts = [numbers[Processes(rank, world).share(7)] for rank in range(world)]
    total = sum(part_of_mean(part.mean(), len(part), 7) for part in parts)
    torch.testing.assert_close(total, numbers.mean())


def test_a_process_without_rows_adds_nothing() -> None:
    nothing = part_of_mean(torch.zeros(0).mean(), 0, 5)
    assert nothing.item() == 0.0
    torch.autograd.backward(nothing)  # its step goes on like that of the others


def test_alone_nothing_is_asked_of_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with processes() as together:
        assert together == ALONE
        assert together.first
        assert not together.several
    tensor = torch.randn(3, 2)
    assert ALONE.gather(tensor, 3) is tensor
    assert (ALONE.total(7), ALONE.sum(0.5), ALONE.share(9)) == (7, 0.5, slice(0, 9))
    assert ALONE.own_device("cuda") == "cuda"
    ALONE.same("anything", "never raised")


class Telling(Processes):
    """A process that keeps what it would have sent."""

    def gather_array(self, own: Any, whole: int) -> Any:
        del whole
        return own


@every_world
def test_outputs_are_shared_among_more_processes_than_rows(game: cortx.Game, table: np.ndarray, world: int) -> None:
    index = np.array([7, 2, 5])
    parts = [_shared_outputs(game, game.rows(table), index, Telling(rank, world)) for rank in range(world)]
    assert {part.shape[1:] for part in parts} == {(1,)}
    wanted = game.full_values(game.rows(table[index]))
    np.testing.assert_allclose(np.concatenate(parts), wanted, rtol=1e-6)


def test_every_process_needs_a_row_to_pre_train_on(game: cortx.Game, table: np.ndarray) -> None:
    """Said by all of them alike, from the rows that remain: others validate, or are left out."""
    given = Labels.of(cortx.shapley(game, table[:12], "exact"), game)
    rows, outputs, recipe = game.rows(table[:30]), game.full_values(game.rows(table[:30])), make_tiny_recipe()
    left_out = rows.words[12:27]
    material = labels_as_given(game, rows, outputs, given, recipe, 0, left_out=left_out, least=11)
    validating = game.rows(material.validation.data).words
    assert len(material.pretraining) == 30 - 15 - len(validating) == 11
    assert not np.isin(rows.words[material.pretraining], [*left_out, *validating]).any()
    with pytest.raises(InputError, match=r"30 rows; 11 of them remain beside the 19 .* takes at least 12"):
        labels_as_given(game, rows, outputs, given, recipe, 0, left_out=left_out, least=12)


# Two real processes -------------------------------------------------------------------------------------------------


def make_network() -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return network


def train(together: Processes) -> tuple[list[float], Tensor]:
    """A few clipped steps on a contrastive loss and a mean over rows: the losses, and the weights at the end."""
    network = make_network()
    if not together.first:
        with torch.no_grad():
            network[0].weight.add_(1.0)  # what the first process has counts
    together.follow_first(network)
    optimizer = make_optimizer(network, 0.01, 0.1)

    def loss(rows: Tensor, matches: Tensor) -> Tensor:
        latent = network(rows)
        error = part_of_mean(latent.square().sum(dim=1).mean(), len(rows), ROWS)
        return contrastive_loss(latent, network(matches), TEMPERATURE, "cosine", together, ROWS) + 0.1 * error

    step = Step(loss, optimizer, clip=0.5, together=together)
    assert step.record is (together.world == 1)
    generator = torch.Generator().manual_seed(2)
    share, losses = together.share(ROWS), []
    for _ in range(12):
        rows, matches = torch.randn(2, ROWS, 3, generator=generator, dtype=torch.float64)
        losses.append(float(step([rows[share], matches[share]])))
    return losses, torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def gloo_threads() -> int:
    """How many threads of this process are gloo's, where the system tells."""
    tasks = Path("/proc/self/task")
    names = [(task / "comm").read_text() for task in tasks.iterdir()] if tasks.exists() else []
    return sum("gloo" in name for name in names)


def leave_a_cycle(meeting: str) -> tuple[int, int]:
    """A group of torchrun's that ends with references to it in a cycle: gloo's threads inside and after."""
    parallel._store = lambda: torch.distributed.FileStore(meeting, WORLD)  # no port that others may take
    with processes() as together:
        cycle: list[object] = [torch.distributed.group.WORLD]
        cycle.append(cycle)
        together.total(1)
        inside = gloo_threads()
        del cycle
    return inside, gloo_threads()


def member(rank: int, folder: str) -> None:
    """What one of two processes does and writes down."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD))
    threads = leave_a_cycle(f"{folder}/first store")
    store = torch.distributed.FileStore(f"{folder}/store", WORLD)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    try:
        with processes() as together:
            assert (together.rank, together.world) == (rank, WORLD)
            losses, weights = train(together)
            share = together.share(ROWS)
            rows = torch.arange(2.0 * ROWS).reshape(ROWS, 2)[share].requires_grad_()
            everyone = together.gather(rows, ROWS)
            # Each process looks at all rows in its own way; a row hears of both.
            torch.autograd.backward((everyone * (rank + 1) * torch.arange(2.0 * ROWS).reshape(ROWS, 2)).sum())
            flags = together.gather_array(np.arange(ROWS)[share] % 3 == 0, ROWS)
            together.same("the same", "never raised")
            try:
                together.same(f"rank {rank}", "they differ")
                said = ""
            except InputError as error:
                said = str(error)
            try:
                together.own_device("cuda:0")
                crowded = ""
            except InputError as error:
                crowded = str(error)
            own_device = together.own_device(f"cuda:{rank}")
            assert rows.grad is not None
            np.savez(
                f"{folder}/{rank}.npz", losses=losses, weights=weights, everyone=everyone.detach(), gradient=rows.grad,
                flags=flags, said=said, total=together.total(rank + 5), sum=together.sum(0.5 + rank),
                crowded=crowded, own_device=own_device, device=together.own_device("cpu"),
                told=together.numbers_of_first(lambda: np.array([1.5, rank + 2.0])), threads=threads,
            )  # fmt: skip
        assert torch.distributed.is_initialized()  # who started it ends it
    finally:
        torch.distributed.destroy_process_group()
        gc.collect()  # as `processes` does: gloo's threads must not outlive Python


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(member, args=(str(folder),), nprocs=WORLD)
    return [dict(np.load(Path(folder) / f"{rank}.npz")) for rank in range(WORLD)]


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(written: list[dict[str, np.ndarray]]) -> None:
    losses, weights = train(ALONE)
    for found in written:
        np.testing.assert_allclose(found["losses"], losses, rtol=1e-9)
        np.testing.assert_allclose(found["weights"], weights.numpy(), rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(written[0]["weights"], written[1]["weights"])


@pytest.mark.slow
def test_rows_are_gathered_and_gradients_find_their_way_back(written: list[dict[str, np.ndarray]]) -> None:
    rows = np.arange(2.0 * ROWS).reshape(ROWS, 2)
    for rank, found in enumerate(written):
        np.testing.assert_array_equal(found["everyone"], rows)
        np.testing.assert_array_equal(found["gradient"], (1 + 2) * rows[Processes(rank, WORLD).share(ROWS)])
        np.testing.assert_array_equal(found["flags"], np.arange(ROWS) % 3 == 0)
        assert (int(found["total"]), float(found["sum"])) == (5 + 6, 0.5 + 1.5)
        np.testing.assert_array_equal(found["told"], [1.5, 2.0])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to count threads")
def test_no_thread_outlives_the_group(written: list[dict[str, np.ndarray]]) -> None:
    for found in written:
        inside, after = found["threads"].tolist()
        assert inside > 0
        assert after == 0


@pytest.mark.slow
def test_no_two_processes_train_on_one_gpu(written: list[dict[str, np.ndarray]]) -> None:
    for rank, found in enumerate(written):
        assert str(found["crowded"]).startswith("2 processes cannot all train on cuda:0; device='cuda' gives each")
        assert (str(found["own_device"]), str(found["device"])) == (f"cuda:{rank}", "cpu")


@pytest.mark.slow
def test_processes_that_differ_all_say_so(written: list[dict[str, np.ndarray]]) -> None:
    assert [str(found["said"]) for found in written] == [f"process {rank} of 2: they differ" for rank in range(WORLD)]
