"""ONNX models that read nothing but what they are given: where a model keeps tensors in other files, and which may be.

A tensor of an ONNX model may name a file, an offset and a length instead of its numbers ("external data"), and the
runtime reads that file when it opens the model. The model is looked through before any runtime sees it. Only the wire
format of protocol buffers is read here, so that no library is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from cortx.errors import InputError

NESTED: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto", 6: "GraphProto", 10: "TensorProto", 11: "GraphProto",
        22: "SparseTensorProto", 23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
}  # fmt: skip
"""For each message of ONNX the numbers of the fields that lead to tensors, and what is in them."""
EXTERNAL_DATA, DATA_LOCATION = 13, 14
"""Fields of a tensor: where its numbers are, and whether they are elsewhere."""
LARGEST_FIELD = 2**29 - 1
"""The largest number that a field may have. Some parsers drop the bits beyond, and would read another field."""
KEY, VALUE = 1, 2
"""Fields of an entry of the first."""
ORT_FORMAT = slice(4, 8), b"ORTM"
"""onnxruntime's own format, which it recognizes by these bytes; it is not looked through here."""


def check_self_contained(model: bytes) -> None:
    """Refuses a model that would read other files, with `InputError`."""
    locations = external_locations(model)
    if locations:
        raise InputError(
            f"the ONNX graph would read the file {locations[0]!r} (external data); only graphs that hold all of their "
            "numbers themselves are opened"
        )


def check_own_folder(path: Path, model: bytes) -> bool:
    """Refuses a model in the file `path` that would read a file outside its own folder; whether it reads any.

    Large models keep their weights beside themselves. A location must be relative, lead upwards nowhere, and be a file
    in the folder, symbolic links resolved.
    """
    locations = external_locations(model)
    own = {path.parent.resolve(), path.resolve().parent}
    for location in locations:
        parts = PurePosixPath(location), PureWindowsPath(location)
        fixed = any(part.is_absolute() or part.anchor or ".." in part.parts for part in parts)
        found = None if fixed or "\0" in location else (path.parent / location).resolve()
        if found is None or not found.is_file() or not any(found.is_relative_to(folder) for folder in own):
            raise InputError(
                f"{str(path)!r} would read {location!r} (external data); the files of an ONNX model must be in its own "
                "folder, named by a relative path"
            )
    return bool(locations)


def external_locations(model: bytes) -> list[str]:
    """The files that a model's tensors name; an empty name where a tensor gives none.

    Raises `ValueError` for bytes that are no ONNX model.
    """
    part, word = ORT_FORMAT
    if model[part] == word:
        raise InputError("this model is in onnxruntime's own format (.ort); give the ONNX model that it was made from")
    found: list[str] = []
    todo = [("ModelProto", memoryview(model))]
    while todo:
        kind, message = todo.pop()
        if kind == "TensorProto":
            found += _locations(message)
            continue
        for number, value in _fields(message):
            if number in NESTED[kind] and isinstance(value, memoryview):
                todo.append((NESTED[kind][number], value))
    return found


def _locations(tensor: memoryview) -> list[str]:
    """What one tensor names: any sign of external data counts."""
    named: list[str] = []
    external = False
    for number, value in _fields(tensor):
        if number == DATA_LOCATION:
            external = external or value != 0  # whatever else it may be taken for
        elif number == EXTERNAL_DATA and isinstance(value, memoryview):
            external = True
            entry = {key: bytes(text) for key, text in _fields(value) if isinstance(text, memoryview)}
            if entry.get(KEY) == b"location":
                named.append(entry.get(VALUE, b"").decode("utf-8", "replace"))
    return named or [""] * external


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """The fields of a message: their numbers, and the bytes of those that have a length, or a whole number."""
    place, end = 0, len(message)
    while place < end:
        tag, place = _varint(message, place)
        number, wire = tag >> 3, tag & 7
        value: memoryview | int = 0
        if wire == 2:
            length, place = _varint(message, place)
            value = message[place : place + length]
            place += length
        elif wire == 0:
            value, place = _varint(message, place)
        else:
            place += {1: 8, 5: 4}.get(wire, end + 1)
        if place > end or not 0 < number <= LARGEST_FIELD:
            raise ValueError("this is not an ONNX model, or it is damaged")
        yield number, value


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and the place after it."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("this is not an ONNX model, or it is damaged")
