"""CIFAR-10 from its pickles without unpickling, from JPEG, and not at all from what is neither; and the digits."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import pickletools
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cortx.errors import InputError, MissingDependencyError
from cortx.paper import cifar10
from cortx.paper.cifar10 import load_cifar10, load_digits_images, read_batch

FEW = 3


def pictures(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


def batch(n: int = FEW, **changes: object) -> dict[str, object]:
    return {
        "batch_label": "training batch 1 of 5",
        "labels": [i % 10 for i in range(n)],
        "data": pictures(n),
        "filenames": [f"leptodactylus_pentadactylus_s_{i:06}.png" for i in range(n)],
        **changes,
    }


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes as Python 2 did: both kinds of string as its `str`, and NumPy under the name it had."""

    dispatch: ClassVar[dict[type, Callable[..., None]]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: str | bytes) -> None:
        packed = value.encode("latin-1") if isinstance(value, str) else value
        short = len(packed) < 256
        self.write((b"U" + bytes([len(packed)]) if short else b"T" + struct.pack("<i", len(packed))) + packed)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string

    def save_global(self, obj: Any, name: str | None = None) -> None:
        module = obj.__module__.replace("numpy._core", "numpy.core")
        self.write(f"c{module}\n{name or obj.__qualname__}\n".encode())
        self.memoize(obj)


def python_2(value: object) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    return file.getvalue()


def by_hand(images: np.ndarray, labels: list[int], fortran: bytes = b"\x89") -> bytes:
    """A batch opcode by opcode, as Python 2's cPickle lays it out."""

    def string(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    count = b"M" + struct.pack("<H", len(images))
    return (
        b"\x80\x02}q\x01("
        + (string(b"batch_label") + b"q\x02" + string(b"training batch 1 of 5") + b"q\x03")
        + (string(b"labels") + b"q\x04]q\x05(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e")
        + (string(b"data") + b"q\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08")
        + (b"K\x00\x85q\x09" + string(b"b") + b"q\x0a\x87q\x0bRq\x0c(K\x01" + count + b"M\x00\x0c\x86q\x0d")
        + (b"cnumpy\ndtype\nq\x0e" + string(b"u1") + b"q\x0fK\x00K\x01\x87q\x10Rq\x11(K\x03" + string(b"|") + b"q\x12")
        + (b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x13b" + fortran)
        + (b"T" + struct.pack("<i", images.size) + images.tobytes("F" if fortran == b"\x88" else "C") + b"q\x14tq\x15b")
        + (string(b"filenames") + b"q\x16]q\x17(" + string(b"a.png") + b"q\x18h\x18h\x18eu.")
    )


def read(packed: bytes, folder: Path, n: int = FEW) -> tuple[np.ndarray, np.ndarray]:
    path = folder / "data_batch_1"
    path.write_bytes(packed)
    return read_batch(path, n)


# Batches as they are


@pytest.mark.parametrize("fortran", [b"\x89", b"\x88"])
def test_a_batch_opcode_by_opcode(tmp_path: Path, fortran: bytes) -> None:
    expected = pictures(FEW)
    packed = by_hand(expected, [7, 0, 9], fortran)
    pickletools.dis(packed, io.StringIO())  # a pickle: its stack and memo are in order
    images, labels = read(packed, tmp_path)
    assert (images.dtype, images.shape, labels.dtype) == (np.uint8, (FEW, 3, 32, 32), np.int64)
    assert labels.tolist() == [7, 0, 9]
    assert images.flags.writeable
    for i, channel, row, column in [(0, 0, 0, 0), (1, 2, 31, 5), (2, 1, 0, 31)]:
        assert images[i, channel, row, column] == expected[i, channel * 1024 + row * 32 + column]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("write", [python_2, lambda value: pickle.dumps(value, protocol=2)])
def test_a_batch_that_a_pickler_wrote(tmp_path: Path, write: Callable[[object], bytes], order: Any) -> None:
    """1,200 images: lists in several pieces, and a memo beyond one byte."""
    data = np.array(pictures(1_200), order=order)
    images, labels = read(write(batch(1_200, data=data)), tmp_path, 1_200)
    np.testing.assert_array_equal(images.reshape(1_200, 3072), data)
    assert labels.tolist() == [i % 10 for i in range(1_200)]


# Batches that are something else


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds a list"),
        (batch(data=pictures(2)), r"has shape \(2, 3072\), expected 3 images"),
        (batch(data=pictures(FEW)[:, :100].copy()), r"has shape \(3, 100\)"),
        (batch(data="pixels"), "'data' is not there"),
        (batch(data=pictures(FEW).astype(np.int8)), "calls a function in another way"),
        (batch(data=pictures(FEW).astype(np.float32)), "calls a function in another way"),
        (batch(data=pictures(FEW).ravel()), "fills an object in another way"),
        (batch(labels=[1, 2]), "'labels' has 2, expected 3"),
        (batch(labels=None), "'labels' is not there"),
        (batch(labels=[1, 2, 10]), "label is not a whole number from 0 to 9"),
        (batch(labels=[1, 2, -1]), "label is not a whole number"),
        (batch(labels=[1, 2, True]), "label is not a whole number"),
        (batch(labels=[1, 2, "3"]), "label is not a whole number"),
        (batch(labels=[1, 2, 3.0]), "opcode BINFLOAT"),
        ({**batch(), "more": {3: 4}}, "key of its dictionary is no text"),
    ],
)
def test_a_pickle_of_something_else(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(InputError, match=f"data_batch_1 is not a batch.*{message}.*cortx paper download cifar10"):
        read(python_2(content), tmp_path)


@pytest.mark.parametrize("protocol", [0, 1, 3, 4, 5])
def test_other_protocols_are_named(tmp_path: Path, protocol: int) -> None:
    expected = f"protocol {protocol}, expected at most 2" if protocol > 2 else "the opcode"
    with pytest.raises(InputError, match=expected):
        read(pickle.dumps(batch(), protocol=protocol), tmp_path)


def test_a_batch_cut_anywhere_or_followed_by_anything(tmp_path: Path) -> None:
    packed = by_hand(pictures(FEW), [7, 0, 9])
    places = [*range(0, 300, 3), *range(300, len(packed) - 60, 997), *range(len(packed) - 60, len(packed))]
    for place in places:
        with pytest.raises(InputError):
            read(packed[:place], tmp_path)
    with pytest.raises(InputError, match="has more than that"):
        read(packed + b"\n", tmp_path)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # pickletools, reading a text opcode
def test_damage_never_ends_in_another_error(tmp_path: Path) -> None:
    packed = by_hand(pictures(FEW), [7, 0, 9])
    frame = [i for i in range(len(packed)) if not 230 < i < len(packed) - 60]  # the pixels may be anything
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        changed = bytearray(packed)
        for i in generator.choice(frame, size=generator.integers(1, 4)):
            changed[i] = generator.integers(256)
        try:
            images, labels = read(bytes(changed), tmp_path)
            assert images.shape == (FEW, 3, 32, 32)
            assert ((labels >= 0) & (labels < 10)).all()
        except InputError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b".",
        b"<html>Down for maintenance</html>",
        b"\x80\x02]q\x00h\x00a.",  # a list in itself
        b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",  # lists in lists
        b"\x80\x02" + b")" * 10 + b".",
        b"\x80\x02}U\x06labelsh\x07s.",  # a memo that is not there
        b"\x80\x02}(U\x01au.",  # a key without a value
        b"\x80\x02K\x01K\x02a.",  # a number filled like a list
        b"\x80\x02e.",
        b"\x80\x02\x87.",
    ],
)
def test_pickles_that_make_no_sense(tmp_path: Path, packed: bytes) -> None:
    with pytest.raises(InputError, match="is not a batch of CIFAR-10"):
        read(packed, tmp_path)


def test_files_that_are_not_there_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_batch(tmp_path / "data_batch_1")
    with open(tmp_path / "data_batch_1", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(InputError, match="1,073,741,824 bytes, expected at most"):
        read_batch(tmp_path / "data_batch_1")


# Batches that would do something


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def the_shell(trace: Path) -> Call:
    return Call(os.system, f"echo run > '{trace}'")


def the_interpreter(trace: Path) -> Call:
    return Call(builtins.eval, f"open({str(trace)!r}, 'w').close()")


def shell_line(trace: Path) -> bytes:
    return b'echo run > "' + os.fsencode(trace) + b'"'


EVIL: dict[str, Callable[[Path], bytes]] = {
    **{f"shell {p}": lambda trace, p=p: pickle.dumps(the_shell(trace), protocol=p) for p in range(6)},  # type: ignore[misc]
    "eval": lambda trace: python_2(the_interpreter(trace)),
    "in the labels": lambda trace: python_2(batch(labels=[1, 2, the_shell(trace)])),
    "in place of the array": lambda trace: python_2(batch(data=the_interpreter(trace))),
    "in an entry that nobody reads": lambda trace: python_2(batch(more=[{"deep": (the_interpreter(trace),)}])),
    "called by the name that is allowed": lambda trace: python_2(
        batch(data=Call(np.dtype, Call(eval, f"open({str(trace)!r}, 'w').close() or 'u1'")))
    ),
    "INST": lambda trace: b"(S'" + shell_line(trace) + b"'\nios\nsystem\n.",
    "OBJ": lambda trace: b"(cos\nsystem\nS'" + shell_line(trace) + b"'\no.",
    "STACK_GLOBAL": lambda trace: b"X\x02\0\0\0osX\x06\0\0\0system\x93(S'" + shell_line(trace) + b"'\ntR.",
}


@pytest.mark.parametrize("kind", EVIL)
def test_what_a_pickle_would_run_is_not_run(tmp_path: Path, kind: str) -> None:
    trace = tmp_path / "trace"
    packed = EVIL[kind](trace)
    unpickle = "import pickle, sys; pickle.load(sys.stdin.buffer, encoding='latin1')"
    subprocess.run([sys.executable, "-c", unpickle], input=packed, capture_output=True)
    assert trace.exists()  # it would
    trace.unlink()
    with pytest.raises(InputError, match="nothing in it was executed"):
        read(packed, tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (python_2(Call(os.system, "true")), r"names '(posix|nt)\.system'"),
        (python_2(Call(eval, "1")), r"names 'builtins\.eval'"),
        (b"\x80\x02c__builtin__\neval\n.", r"names '__builtin__\.eval'"),
        (b"\x80\x02cnumpy.core.multiarray\nfromfile\n.", r"names 'numpy\.core\.multiarray\.fromfile'"),
        (b"\x80\x02cnumpy\nndarray.tofile\n.", r"names 'numpy\.ndarray\.tofile'"),
        (b"\x80\x02cnumpy\nload\n.", r"names 'numpy\.load'"),
        (b"(S'true'\nios\nsystem\n.", "opcode STRING"),
        (b"(ios\nsystem\n.", r"opcode INST \('os system'\)"),
        (b"\x80\x02cnumpy\ndtype\n)\x81.", "opcode EMPTY_TUPLE"),
        (b"\x80\x02\x82\x01.", "opcode EXT1"),
        (b"Pname\n.", r"opcode PERSID \('name'\)"),
        (python_2(np.dtype("O")), "calls a function in another way"),
        (python_2(np.array([None])), "calls a function in another way"),
        (pickle.dumps(np.dtype([("a", "u1")]), protocol=2), "calls a function in another way"),
        (b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x05\0\0\0rot13\x86R.", "calls a function in another way"),
        (b"\x80\x02K\x01K\x02\x85R.", "calls a function in another way"),
        (b"\x80\x02}}U\x01aK\x01sb.", "fills an object in another way"),
    ],
)
def test_what_is_refused_is_named(tmp_path: Path, packed: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(packed, tmp_path)


# The whole folder


@pytest.fixture
def originals(tmp_path: Path) -> Iterator[Path]:
    """Six whole batches of made-up pictures, 184 MB."""
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        images = np.full((10_000, 3072), number, dtype=np.uint8)
        images[:, 0] = np.arange(10_000) % 251
        (folder / name).write_bytes(by_hand(images, [(i + number) % 10 for i in range(10_000)]))
    yield folder
    shutil.rmtree(folder)


def test_the_original_folder(originals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORTX_DATA", str(originals.parent))
    (originals.parent / "cifar-10-jpeg").mkdir()  # the original comes first
    data = load_cifar10()
    assert (data.title, data.source, data.class_names[6]) == ("CIFAR-10", "original", "frog")
    assert (data.train_images.shape, data.test_images.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert (data.train_images.dtype, data.train_labels.dtype) == (np.uint8, np.int64)
    for number in range(5):
        part = data.train_images[number * 10_000 : (number + 1) * 10_000]
        assert (part[:, 2] == number).all()
        assert part[300:302, 0, 0, 0].tolist() == [300 % 251, 301 % 251]
        assert data.train_labels[number * 10_000 + 4] == (4 + number) % 10
    assert (data.test_images[:, 1:] == 5).all()
    assert data.test_labels[:3].tolist() == [5, 6, 7]
    with pytest.raises(InputError, match="the original pixels"):
        _ = data.jpeg_test_images
    (originals / "test_batch").write_bytes(by_hand(np.zeros((10_000, 3072), np.uint8), [1] * 10_000))
    with pytest.raises(InputError, match=r"\[0, 10000, 0.*expected 1,000 of each"):
        load_cifar10()
    (originals / "data_batch_4").unlink()
    with pytest.raises(InputError, match=r"data_batch_4 is not a batch.*no such file.*cortx paper download cifar10"):
        load_cifar10(originals.parent)


# JPEG


def jpeg(colour: tuple[int, int, int], size: tuple[int, int] = (32, 32), mode: str = "RGB") -> bytes:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", size, colour).convert(mode).save(file, "JPEG", quality=75)
    return file.getvalue()


COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250), (128, 128, 128)]


def write_jpegs(folder: Path, files: list[bytes] | None = None, **changes: np.ndarray) -> Path:
    """Twenty training and eight test images in JPEG, and four exact test images."""
    files = files or [jpeg(COLOURS[i % 4]) for i in range(20)]
    parts = {}
    for part, chosen in (("train", files), ("test", files[:8])):
        parts[f"{part}_bytes"] = np.frombuffer(b"".join(chosen), dtype=np.uint8)
        parts[f"{part}_offsets"] = np.cumsum([0, *map(len, chosen)])
        parts[f"{part}_labels"] = (np.arange(len(chosen)) % 10).astype(np.uint8)
    (folder / "cifar-10-jpeg").mkdir(parents=True)
    np.savez(folder / "cifar-10-jpeg" / "cifar10_jpeg.npz", **{**parts, **changes})
    exact = {"images": pictures(4).reshape(4, 3, 32, 32), "labels": np.arange(4, dtype=np.uint8)}
    np.savez(folder / "cifar-10-jpeg" / "cifar10_exact_test.npz", **{k: changes.get(k, exact[k]) for k in exact})
    return folder


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "TRAIN", 20)
    monkeypatch.setattr(cifar10, "EXACT_TEST", 4)


@pytest.mark.usefixtures("few")
def test_the_jpeg_form(tmp_path: Path) -> None:
    data = load_cifar10(write_jpegs(tmp_path))
    assert (data.title, data.source) == ("CIFAR-10 (JPEG-trained)", "jpeg")
    assert (data.train_images.dtype, data.train_images.shape) == (np.uint8, (20, 3, 32, 32))
    for i, image in enumerate(data.train_images):
        for channel in range(3):
            assert np.abs(image[channel].astype(int) - COLOURS[i % 4][channel]).max() <= 4
    assert data.train_labels.tolist() == [*range(10), *range(10)]
    np.testing.assert_array_equal(data.test_images, pictures(4).reshape(4, 3, 32, 32))
    assert data.test_labels.tolist() == [0, 1, 2, 3]
    assert data.train_labels.dtype == data.test_labels.dtype == np.int64
    np.testing.assert_array_equal(data.jpeg_test_images, data.train_images[:8])
    assert data.jpeg_test_images is data.jpeg_test_images
    assert data.jpeg_test_labels.tolist() == list(range(8))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([jpeg(COLOURS[0])] * 19 + [b"no image"], "train image 19 .* is damaged"),
        ([jpeg(COLOURS[0])] * 4 + [jpeg(COLOURS[0])[:-200]] + [jpeg(COLOURS[0])] * 15, "train image 4 .* is damaged"),
        ([jpeg(COLOURS[0], (32, 31))] * 20, r"train image 0 is RGB \(32, 31\), expected RGB \(32, 32\)"),
        ([jpeg(COLOURS[0], mode="L")] * 20, r"train image 0 is L \(32, 32\)"),
        ([jpeg(COLOURS[0])] * 10, "expected 2 of each"),
    ],
)
def test_jpegs_that_are_not_those(tmp_path: Path, files: list[bytes], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_cifar10(write_jpegs(tmp_path, files))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": np.arange(19)}, "19 train labels for 20 images"),
        ({"train_labels": np.full(20, 11)}, "expected 2 of each"),
        ({"train_labels": np.array([None] * 20)}, "cannot be read.*cortx paper download cifar10"),
        ({"images": np.zeros((4, 32, 32, 3), np.uint8)}, r"images \(4, 32, 32, 3\) of uint8"),
        ({"images": np.zeros((4, 3, 32, 32), np.float32)}, "of float32"),
        ({"labels": np.arange(5)}, "5 labels, expected 4 images"),
        ({"labels": np.array([0, 1, 2, 10])}, "a label"),
    ],
)
def test_arrays_that_are_not_those(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_cifar10(write_jpegs(tmp_path, **changes))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", ["cifar10_jpeg.npz", "cifar10_exact_test.npz"])
@pytest.mark.parametrize("damage", ["gone", "no zip", "truncated"])
def test_files_that_cannot_be_read(tmp_path: Path, name: str, damage: str) -> None:
    path = write_jpegs(tmp_path) / "cifar-10-jpeg" / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"no zip" if damage == "no zip" else path.read_bytes()[:-100])
    with pytest.raises(InputError, match=f"{name} cannot be read"):
        load_cifar10(tmp_path)


@pytest.mark.slow
def test_the_exact_test_images_are_the_first_of_the_jpegs() -> None:
    folder = os.environ.get("CORTX_DATA")
    if not folder or not (Path(folder) / "cifar-10-jpeg").is_dir() or (Path(folder) / "cifar-10-batches-py").is_dir():
        pytest.skip("CORTX_DATA does not name a folder with CIFAR-10 in JPEG alone (cifar-10-jpeg/)")
    pytest.importorskip("PIL")
    data = load_cifar10()
    assert data.title == "CIFAR-10 (JPEG-trained)"
    assert (data.train_images.shape, data.test_images.shape) == ((50_000, 3, 32, 32), (1_017, 3, 32, 32))
    assert np.bincount(data.train_labels).tolist() == [5_000] * 10
    assert len(data.jpeg_test_images) == len(data.jpeg_test_labels) == 10_000
    np.testing.assert_array_equal(data.jpeg_test_labels[:1_017], data.test_labels)
    apart = np.abs(data.jpeg_test_images[:1_017].astype(int) - data.test_images).mean(axis=(1, 2, 3))
    assert apart.mean() < 7  # grey levels; two different pictures are about 70 apart
    assert apart.max() < 15


# Digits, and what need not be there


def test_digits_are_small_grey_images() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = load_digits_images()
    assert (images.shape, images.dtype, labels.shape, labels.dtype) == ((1797, 1, 8, 8), np.float32, (1797,), np.int64)
    assert (images.min(), images.max()) == (0, 1)
    expected = datasets.load_digits()
    np.testing.assert_array_equal(images[:, 0] * 16, expected.images)
    np.testing.assert_array_equal(labels, expected.target)


@pytest.mark.usefixtures("few")
def test_libraries_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_jpegs(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependencyError, match="needs Pillow"):
        load_cifar10(folder)
    with pytest.raises(MissingDependencyError, match="needs scikit-learn"):
        load_digits_images()


@pytest.mark.usefixtures("few")
def test_nothing_but_numpy_and_pillow_is_loaded(tmp_path: Path) -> None:
    program = f"""
import sys
for name in ("sklearn", "pandas", "scipy", "shap", "captum", "matplotlib", "rich", "typer", "narwhals", "safetensors"):
    sys.modules[name] = None
from cortx.paper import cifar10
cifar10.TRAIN, cifar10.EXACT_TEST = 20, 4
data = cifar10.load_cifar10({str(write_jpegs(tmp_path))!r})
print(data.train_images.shape)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.strip() == "(20, 3, 32, 32)", said.stderr
