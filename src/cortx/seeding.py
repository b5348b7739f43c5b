"""One seed becomes independent named streams; a row's stream depends on its content, not on its place.

No global generator is read or set anywhere in cortx, but for peers that know no other (`rivals/peers.py`,
`rivals/gradients.py`); their state is put back.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError

if TYPE_CHECKING:
    import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


def whole_seed(seed: object) -> int:
    """A seed that a caller gave, checked."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise InputError(f"seed must be a whole number, got {seed!r}")
    return int(seed)


def stream_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream with these names; other names give an independent one."""
    text = "\x1f".join([str(whole_seed(seed)), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    return np.random.default_rng(stream_seed(seed, *names))


def torch_generator(seed: int, *names: str | int, device: str = "cpu") -> torch.Generator:
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(stream_seed(seed, *names))
    return generator


def mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014), on whole arrays; wraps on purpose."""
    with np.errstate(over="ignore"):
        words = np.asarray(words + _GOLDEN)  # a copy, changed in place: these arrays are large
        words ^= words >> np.uint64(30)
        words *= _MIX_A
        words ^= words >> np.uint64(27)
        words *= _MIX_B
        words ^= words >> np.uint64(31)
    return words


def text_word(text: str) -> np.uint64:
    """A 64-bit word for a text, the same in every process."""
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def row_uniforms(row_words: npt.NDArray[np.uint64], stream: int, start: int, count: int) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1) for every row, (rows, count)."""
    return uniforms_at(row_words[:, None], stream, np.arange(start, start + count))


def uniforms_at(words: npt.NDArray[np.uint64], stream: int, counters: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The numbers that the streams of `words` hold at places `counters` (broadcast): each can be drawn alone."""
    with np.errstate(over="ignore"):
        base = mix(words ^ mix(np.asarray([stream], dtype=np.uint64)))
        drawn = mix(base + counters.astype(np.uint64) * _GOLDEN)
    drawn >>= np.uint64(11)
    return drawn.astype(np.float64) * 2.0**-53


def uniforms_on(words: torch.Tensor, stream: int, count: int) -> torch.Tensor:
    """`row_uniforms` on the device of `words` (int64 with the bits of the row words), bit for bit: (rows, count)."""
    import torch

    if words.device.type == "cpu":
        return torch.from_numpy(row_uniforms(words.numpy().view(np.uint64), stream, 0, count))
    key = int(mix(np.asarray([stream], dtype=np.uint64)).view(np.int64)[0])
    base = _mix_tensor(words ^ key)
    counters = torch.arange(count, device=words.device) * int(_GOLDEN.view(np.int64))
    drawn = _mix_tensor(base[:, None] + counters)
    return _shifted(drawn, 11).to(torch.float64) * 2.0**-53


def _mix_tensor(words: torch.Tensor) -> torch.Tensor:
    """`mix` on int64 tensors, whose arithmetic wraps like that of unsigned ones."""
    words = words + int(_GOLDEN.view(np.int64))
    words = (words ^ _shifted(words, 30)) * int(_MIX_A.view(np.int64))
    words = (words ^ _shifted(words, 27)) * int(_MIX_B.view(np.int64))
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """A logical shift to the right."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
