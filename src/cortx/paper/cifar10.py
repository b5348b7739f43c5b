"""CIFAR-10: the public batches, read without unpickling them, or their JPEG re-encoding; and scikit-learn's digits.

The public files are pickles, and a pickle may call anything. So they are never given to `pickle`: their opcodes are
walked here, and only those of a dictionary with numbers, text and one array of bytes mean something.
"""

from __future__ import annotations

import pickletools
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError, need
from cortx.paper.sources import default_folder, find

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

BATCHES, JPEG = "cifar-10-batches-py", "cifar-10-jpeg"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
TRAIN, TEST, EXACT_TEST, PER_BATCH = 50_000, 10_000, 1_017, 10_000
MOST_BYTES = 64 << 20
"""A batch has half of that."""


@dataclass(frozen=True, eq=False)
class Cifar10:
    """Images (images, 3, 32, 32) of bytes (red, green, blue) and labels 0..9 (images,), in the order of the batches."""

    title: str
    """For tables and figures: numbers of a JPEG-trained target are not those of CIFAR-10."""
    source: Literal["original", "jpeg"]
    train_images: Images
    train_labels: Labels
    test_images: Images
    """All 10,000, or of the JPEG re-encoding the 1,017 that are known with their original pixels."""
    test_labels: Labels
    folder: Path
    class_names: tuple[str, ...] = CLASSES

    @cached_property
    def jpeg_test_images(self) -> Images:
        """The 10,000 test images of the JPEG re-encoding, decoded when asked for.

        The first 1,017 show the same pictures as `test_images`: nothing may be chosen by them.
        """
        return _jpeg_images(self._jpeg(), "test")

    @cached_property
    def jpeg_test_labels(self) -> Labels:
        return _jpeg_labels(self._jpeg(), "test")

    def _jpeg(self) -> dict[str, npt.NDArray[Any]]:
        if self.source != "jpeg":
            raise InputError(f"{self.folder} holds the original pixels; test_images are all there is")
        return _arrays(self.folder / "cifar10_jpeg.npz", "test_bytes", "test_offsets", "test_labels")


def load_cifar10(folder: str | Path | None = None) -> Cifar10:
    """The original images from ``cifar-10-batches-py``; where that is not, ``cifar-10-jpeg``.

    Of the JPEG form the training images are decoded with Pillow, and only the 1,017 test images with their original
    pixels are tested on.
    """
    looked = Path(folder) if folder is not None else default_folder()
    if (looked / JPEG).is_dir() and not (looked / BATCHES).is_dir():
        return _from_jpeg(looked / JPEG)
    return _from_batches(find("cifar10", folder))


def load_digits_images() -> tuple[npt.NDArray[np.float32], Labels]:
    """scikit-learn's digits: images (1797, 1, 8, 8) in 0..1 and labels 0..9 (1797,)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise need("scikit-learn", "the data set digits", "demo") from error
    images, labels = load_digits(return_X_y=True)
    return (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32), labels.astype(np.int64)


# The original batches


def _from_batches(folder: Path) -> Cifar10:
    names = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    batches = [read_batch(folder / name) for name in names]
    train_labels = np.concatenate([labels for _, labels in batches[:5]])
    test_images, test_labels = batches[5]
    _check_classes(folder, train_labels, TRAIN)
    _check_classes(folder, test_labels, TEST)
    train_images = np.concatenate([images for images, _ in batches[:5]])
    return Cifar10("CIFAR-10", "original", train_images, train_labels, test_images, test_labels, folder)


def read_batch(path: str | Path, n_images: int = PER_BATCH) -> tuple[Images, Labels]:
    """Images (n_images, 3, 32, 32) and labels (n_images,) of one public batch; nothing in the file is executed."""
    path = Path(path)
    try:
        if not path.is_file():
            raise InputError("there is no such file")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise InputError(f"it has {size:,} bytes, expected at most {MOST_BYTES:,}")
        return _images_and_labels(read_pickle(path.read_bytes()), n_images)
    except InputError as error:
        raise InputError(
            f"{path} is not a batch of CIFAR-10: {error}; nothing in it was executed; run: cortx paper download cifar10"
        ) from error


class _Known(Enum):
    """What a batch may name, and the one dtype that may come of it."""

    RECONSTRUCT = "numpy.core.multiarray _reconstruct"
    NDARRAY = "numpy ndarray"
    DTYPE = "numpy dtype"
    ENCODE = "_codecs encode"
    UINT8 = "uint8"


NAMES = {known.value: known for known in _Known if known is not _Known.UINT8}
NAMES["numpy._core.multiarray _reconstruct"] = _Known.RECONSTRUCT  # its name since NumPy 2


@dataclass(eq=False)
class _Array:
    """An array of bytes; its content stays text until it is wanted, so that no pickle can have it copied often."""

    shape: tuple[int, int] = (0, 0)
    fortran: bool = False
    text: str = ""

    def numbers(self) -> Images:
        try:
            flat = np.frombuffer(self.text.encode("latin-1"), dtype=np.uint8)
            return np.array(flat.reshape(self.shape, order="F" if self.fortran else "C"), order="C")
        except ValueError as error:  # also what cannot be encoded
            raise InputError(f"its array {self.shape} does not fit its bytes") from error


_MARK = object()


def read_pickle(packed: bytes) -> object:
    """What a pickle of plain values and uint8 arrays holds: built here, without importing or calling what it names.

    Understood are the opcodes that Python 2 (and 3, with protocol 2) writes for a batch of CIFAR-10. A string of bytes
    is text of the characters 0 to 255. Anything else is an InputError that names it.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    end = -1
    try:
        for opcode, argument, position in pickletools.genops(packed):
            _step(opcode.name, argument, stack, memo)
            end = position or 0
    except InputError:
        raise
    except (IndexError, KeyError, ValueError) as error:
        raise InputError(f"it is no whole pickle ({str(error)[:80]})") from error
    if end + 1 != len(packed) or len(stack) != 1:
        raise InputError("it is no single pickle, or has more than that")
    return stack[0]


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """One opcode; an IndexError or KeyError where the stack or the memo lacks what it needs."""
    match name:
        case "PROTO":
            if argument > 2:
                raise InputError(f"it is a pickle of protocol {argument}, expected at most 2")
        case "BININT" | "BININT1" | "BININT2" | "LONG1" | "SHORT_BINSTRING" | "BINSTRING" | "BINUNICODE":
            stack.append(argument)
        case "NONE" | "NEWTRUE" | "NEWFALSE":
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        case "MARK":
            stack.append(_MARK)
        case "EMPTY_LIST":
            stack.append([])
        case "EMPTY_DICT":
            stack.append({})
        case "TUPLE":
            stack.append(tuple(_since_mark(stack)))
        case "TUPLE1" | "TUPLE2" | "TUPLE3":
            stack.append(tuple([stack.pop() for _ in range(int(name[-1]))][::-1]))
        case "APPEND" | "APPENDS":
            items = [stack.pop()] if name == "APPEND" else _since_mark(stack)
            _top(stack, list).extend(items)
        case "SETITEM" | "SETITEMS":
            items = [stack.pop(), stack.pop()][::-1] if name == "SETITEM" else _since_mark(stack)
            if len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
                raise InputError("a key of its dictionary is no text")
            _top(stack, dict).update(zip(items[::2], items[1::2], strict=True))
        case "BINPUT" | "LONG_BINPUT":
            memo[argument] = stack[-1]
        case "BINGET" | "LONG_BINGET":
            stack.append(memo[argument])
        case "GLOBAL":
            if argument not in NAMES:
                raise InputError(f"it names {argument[:80].replace(' ', '.')!r}, which has no place in it")
            stack.append(NAMES[argument])
        case "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_reduced(function, arguments))
        case "BUILD":
            state = stack.pop()
            _build(stack[-1], state)
        case "STOP":
            pass
        case _:
            what = f"{name} ({argument[:80]!r})" if isinstance(argument, str) else name
            raise InputError(f"it uses the opcode {what}, which has no place in it")


def _since_mark(stack: list[Any]) -> list[Any]:
    items: list[Any] = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]


def _top(stack: list[Any], kind: type) -> Any:
    if type(stack[-1]) is not kind:
        raise InputError(f"it fills a {type(stack[-1]).__name__} as if it were a {kind.__name__}")
    return stack[-1]


def _reduced(function: object, arguments: object) -> object:
    """What the call would give: an array to be filled, the dtype of bytes, or text as the bytes it stands for."""
    match function, arguments:
        case _Known.RECONSTRUCT, (_Known.NDARRAY, (0,), "b"):
            return _Array()
        case _Known.DTYPE, ("u1", 0, 1):
            return _Known.UINT8
        case _Known.ENCODE, (str() as text, "latin1"):
            return text
    raise InputError("it calls a function in another way than an array of bytes needs")


def _build(target: object, state: object) -> None:
    match target, state:
        case _Known.UINT8, (int(), "|", None, None, None, -1, -1, *_):
            pass
        case _Array(), (1, (int() as rows, int() as columns), _Known.UINT8, bool() as fortran, str() as text):
            target.shape, target.fortran, target.text = (rows, columns), fortran, text
        case _:
            raise InputError("it fills an object in another way than an array of bytes needs")


def _images_and_labels(batch: object, n_images: int) -> tuple[Images, Labels]:
    if not isinstance(batch, dict):
        raise InputError(f"it holds a {type(batch).__name__}, expected a dictionary")
    data, labels = batch.get("data"), batch.get("labels")
    n_bytes = int(np.prod(SHAPE))
    if not isinstance(data, _Array) or data.shape != (n_images, n_bytes):
        found = f"has shape {data.shape}" if isinstance(data, _Array) else "is not there"
        raise InputError(f"the array 'data' {found}, expected {n_images:,} images of {n_bytes:,} bytes")
    if not isinstance(labels, list) or len(labels) != n_images:
        found = f"has {len(labels):,}" if isinstance(labels, list) else "is not there"
        raise InputError(f"the list 'labels' {found}, expected {n_images:,}")
    if not all(type(label) is int and 0 <= label < len(CLASSES) for label in labels):
        raise InputError("a label is not a whole number from 0 to 9")
    return data.numbers().reshape(n_images, *SHAPE), np.array(labels, dtype=np.int64)


# The JPEG re-encoding


def _from_jpeg(folder: Path) -> Cifar10:
    coded = _arrays(folder / "cifar10_jpeg.npz", "train_bytes", "train_offsets", "train_labels")
    exact = _arrays(folder / "cifar10_exact_test.npz", "images", "labels")
    test_images, test_labels = exact["images"], exact["labels"]
    shapes = test_images.shape, test_labels.shape
    if test_images.dtype != np.uint8 or shapes != ((EXACT_TEST, *SHAPE), (EXACT_TEST,)):
        raise InputError(
            f"{folder / 'cifar10_exact_test.npz'} holds images {test_images.shape} of {test_images.dtype} and "
            f"{test_labels.size:,} labels, expected {EXACT_TEST:,} images of {SHAPE} bytes with their labels"
        )
    if not np.isin(test_labels, range(len(CLASSES))).all():
        raise InputError(f"{folder / 'cifar10_exact_test.npz'} has a label that is not from 0 to 9")
    train_labels = _jpeg_labels(coded, "train")
    _check_classes(folder, train_labels, TRAIN)
    return Cifar10(
        "CIFAR-10 (JPEG-trained)",
        "jpeg",
        _jpeg_images(coded, "train"),
        train_labels,
        test_images,
        test_labels.astype(np.int64),
        folder,
    )


def _arrays(path: Path, *names: str) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read as a part of CIFAR-10 in JPEG, with the arrays {', '.join(names)} ({error}); "
            "get the original images instead: cortx paper download cifar10"
        ) from error


def _jpeg_images(coded: Mapping[str, npt.NDArray[Any]], part: str) -> Images:
    """Decodes image i from the bytes offsets[i] to offsets[i + 1]; (images, 3, 32, 32).

    One after another: Pillow holds the interpreter for most of so small an image, and threads were slower.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise need("Pillow", "CIFAR-10 in JPEG", "plots") from error
    content, offsets = coded[f"{part}_bytes"].tobytes(), coded[f"{part}_offsets"].tolist()
    images = np.empty((len(offsets) - 1, *SHAPE), dtype=np.uint8)
    for i, (start, stop) in enumerate(pairwise(offsets)):
        try:
            with Image.open(BytesIO(content[start:stop]), formats=("JPEG",)) as image:
                if (image.mode, image.size) != ("RGB", SHAPE[1:]):
                    raise InputError(f"{part} image {i} is {image.mode} {image.size}, expected RGB {SHAPE[1:]}")
                images[i] = np.asarray(image).transpose(2, 0, 1)
        except (OSError, Image.DecompressionBombError) as error:  # an unknown or broken image is an OSError
            raise InputError(f"{part} image {i} of CIFAR-10 in JPEG is damaged ({error})") from error
    return images


def _jpeg_labels(coded: Mapping[str, npt.NDArray[Any]], part: str) -> Labels:
    labels, images = coded[f"{part}_labels"], len(coded[f"{part}_offsets"]) - 1
    if labels.shape != (images,):
        raise InputError(f"CIFAR-10 in JPEG has {len(labels):,} {part} labels for {images:,} images")
    return labels.astype(np.int64)


def _check_classes(folder: Path, labels: Labels, n_images: int) -> None:
    """The classes are equally large."""
    counts = np.bincount(labels, minlength=len(CLASSES))
    if len(labels) != n_images or (counts != n_images // len(CLASSES)).any():
        raise InputError(
            f"{folder} has {counts.tolist()} images of the classes, expected {n_images // len(CLASSES):,} of each; "
            "run: cortx paper download cifar10"
        )
