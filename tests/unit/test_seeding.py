"""Streams, and what depends on what."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from cortx.seeding import (
    _mix_tensor,
    _shifted,
    mix,
    numpy_generator,
    row_uniforms,
    stream_seed,
    text_word,
    torch_generator,
    uniforms_on,
)


def test_named_streams_differ_and_repeat() -> None:
    names = [(0,), (0, "a"), (0, "b"), (0, "a", 1), (0, "a1"), (1, "a"), (-1, "a")]
    seeds = [stream_seed(*name) for name in names]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [stream_seed(*name) for name in names]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert numpy_generator(3, "x").random() == numpy_generator(3, "x").random()
    assert torch.equal(
        torch.rand(3, generator=torch_generator(3, "x")), torch.rand(3, generator=torch_generator(3, "x"))
    )


def test_streams_are_the_same_in_every_process() -> None:
    script = "from cortx.seeding import stream_seed, text_word; print(stream_seed(5, 'a', 2), text_word('b'))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert found == [str(stream_seed(5, "a", 2)), str(text_word("b"))]


def test_global_generators_are_left_alone() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1]
    torch.rand(2, generator=torch_generator(0, "a"))
    numpy_generator(0, "a").random(2)
    row_uniforms(np.arange(3, dtype=np.uint64), 1, 0, 4)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()


def test_mix_is_splitmix64() -> None:
    """The published first outputs of SplitMix64 from the seed 1234567."""
    state = np.uint64(1234567)
    step = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        found = [int(mix(np.asarray([state + np.uint64(k) * step]))[0]) for k in range(3)]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_row_uniforms_are_uniform_and_independent() -> None:
    words = np.arange(300, dtype=np.uint64)  # neighbouring words are the hardest case
    draws = row_uniforms(words, 7, 0, 200)
    assert draws.shape == (300, 200)
    assert ((draws >= 0) & (draws < 1)).all()
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    expected = draws.size / 20
    assert ((counts - expected) ** 2 / expected).sum() < 45  # chi-square, 19 degrees of freedom: p = 0.001
    other = row_uniforms(words, 8, 0, 200)
    for a, b in [(draws[:-1], draws[1:]), (draws[:, :-1], draws[:, 1:]), (draws, other)]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 4 / np.sqrt(a.size)


def test_row_uniforms_can_be_drawn_in_slices() -> None:
    words = np.array([5, 2**63, 11], dtype=np.uint64)
    whole = row_uniforms(words, 1, 0, 10)
    np.testing.assert_array_equal(row_uniforms(words, 1, 4, 3), whole[:, 4:7])
    np.testing.assert_array_equal(row_uniforms(words[1:2], 1, 0, 10), whole[1:2])


HARD_WORDS = np.array([0, 1, 5, 2**31, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1], dtype=np.uint64)


def test_uniforms_on_the_cpu_are_those_of_the_rows() -> None:
    for stream in (0, 7, 2**63 - 1):
        found = uniforms_on(torch.from_numpy(HARD_WORDS.view(np.int64)), stream, 33)
        np.testing.assert_array_equal(found, row_uniforms(HARD_WORDS, stream, 0, 33))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_uniforms_on_a_gpu_are_those_of_the_rows() -> None:
    for stream in (0, 7, 2**63 - 1):
        found = uniforms_on(torch.from_numpy(HARD_WORDS.view(np.int64)).cuda(), stream, 5000)
        np.testing.assert_array_equal(found.cpu(), row_uniforms(HARD_WORDS, stream, 0, 5000))


def test_signed_tensors_are_mixed_like_unsigned_words() -> None:
    """What uniforms on other devices are made of."""
    words = np.concatenate([HARD_WORDS, mix(np.arange(1000, dtype=np.uint64))])
    tensor = torch.from_numpy(words.view(np.int64))
    np.testing.assert_array_equal(_mix_tensor(tensor).numpy().view(np.uint64), mix(words))
    for bits in (1, 11, 30, 63):
        np.testing.assert_array_equal(_shifted(tensor, bits).numpy().view(np.uint64), words >> np.uint64(bits))
