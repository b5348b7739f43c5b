"""Positives of images are chosen where the model is: the same ones as in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cortx import Game, Patches
from cortx.seeding import row_uniforms, stream_seed, torch_generator
from cortx.training import positives
from cortx.training.positives import Positives, choose_positives

COUNT = 6


def image_game(reference: str = "zero", size: int = 2, memory_budget: int | None = None) -> Game:
    generator = torch_generator(1, "network")
    net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 12 * 12, 4))
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return Game(net, reference=reference, players=Patches(size), output="probability", memory_budget=memory_budget)


def images(count: int = 9) -> np.ndarray:
    X = np.random.default_rng(2).random((count, 1, 12, 12)).astype(np.float32)
    X[::2, :, :4, :4] = 0  # some players equal a reference of zeros
    return X


def chosen(game: Game, how: Positives, keep: float = 0.5) -> np.ndarray:
    rows = game.rows(images())
    return choose_positives(game, rows, game.full_values(rows), how=how, count=COUNT, keep=keep, seed=7, round_=2)


@pytest.mark.parametrize("how", ["compact", "farthest", "random"])
@pytest.mark.parametrize("reference", ["zero", "mean"])
def test_the_choice_is_that_of_a_plain_loop(how: Positives, reference: str) -> None:
    game = image_game(reference)  # 36 players
    found = chosen(game, how)
    rows = game.rows(images())
    outputs = game.full_values(rows)
    count = 1 if how == "random" else COUNT
    for i in range(len(rows)):
        draws = row_uniforms(rows.words[i : i + 1], stream_seed(7, "positives", 2), 0, count * 36)[0]
        copies = [draws[36 * k : 36 * (k + 1)] < 0.5 for k in range(count)]
        one = rows.take(np.array([i]))
        away = [float(np.linalg.norm(game.values(one, copy[None])[0, 0] - outputs[i])) for copy in copies]
        best = {"compact": int(np.argmin(away)), "farthest": int(np.argmax(away)), "random": 0}[how]
        assert found[i].tolist() == copies[best].tolist()


@pytest.mark.parametrize("how", ["compact", "farthest", "random"])
def test_both_ways_choose_the_same(how: Positives, monkeypatch: pytest.MonkeyPatch) -> None:
    on_device = chosen(image_game(), how, keep=0.7)
    monkeypatch.setattr(positives, "REPEATING", 1000)
    np.testing.assert_array_equal(chosen(image_game(), how, keep=0.7), on_device)


def test_memory_changes_nothing_and_every_copy_is_counted() -> None:
    small, large = image_game(memory_budget=2**20), image_game()
    np.testing.assert_array_equal(chosen(small, "compact"), chosen(large, "compact"))
    assert small.evaluations == large.evaluations == 1 + 9 * (1 + COUNT)  # v(none) once, v(all), the copies


def test_a_random_copy_costs_nothing() -> None:
    game = image_game()
    rows = game.rows(images())
    outputs = game.full_values(rows)
    spent = game.evaluations
    choose_positives(game, rows, outputs, how="random", count=COUNT, keep=0.5, seed=7, round_=2)
    assert game.evaluations <= spent + 1  # v(none), if nobody has asked for it yet


def test_copies_of_few_players_that_coincide_are_evaluated_once() -> None:
    game = image_game(size=6)  # 4 players: 16 copies at most
    rows = game.rows(images())
    outputs = game.full_values(rows)
    spent = game.evaluations
    choose_positives(game, rows, outputs, how="compact", count=200, keep=0.5, seed=7, round_=2)
    assert game.evaluations - spent <= 16 * len(rows) + 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_chooses_the_same() -> None:
    on_cpu = image_game()
    on_gpu = image_game()
    on_gpu.model.module.cuda()  # type: ignore[attr-defined]
    same = (chosen(on_cpu, "compact") == chosen(on_gpu, "compact")).all(axis=1)
    assert same.mean() > 0.8  # sums in another order may change the order of copies that are as close
