"""The Open Inference Protocol V2: tensors in, named tensors out, as JSON or in its binary form.

A table's request has one tensor for each column, (rows,) or (rows, 1), or one tensor "rows" of numbers,
(rows, columns); images come as "images". The model's outputs may come as "outputs", (rows, outputs).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from cortx.interfaces.server.answers import Arrays
from cortx.interfaces.server.catalog import Version
from cortx.interfaces.server.http import JSON, SAFE, Header, HttpError, header, kind_of, parse_object
from cortx.interfaces.server.records import ColumnReader, ImageReader, RecordReader, Rows, beyond
from cortx.interfaces.server.requests import UNASKED, check_count, make_work
from cortx.interfaces.server.work import Work
from cortx.version import __version__

DTYPES = {
    "BOOL": np.dtype(np.bool_),
    **{f"{kind}INT{bits}": np.dtype(f"{kind.lower()}int{bits}") for kind in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
HEADER_LENGTH = b"inference-header-content-length"
FIELDS = frozenset({"id", "model_name", "parameters", "inputs", "outputs"})
INPUT_FIELDS = frozenset({"name", "shape", "datatype", "parameters", "data"})
OUTPUT_FIELDS = frozenset({"name", "parameters"})
MOST_AXES = 4
LARGEST_AXIS = 2**31 - 1
MOST_DIGITS = 12
"""Of a header that holds a length."""


def server_metadata() -> dict[str, Any]:
    return {"name": "cortx", "version": __version__, "extensions": ["binary_tensor_data"]}


def model_metadata(version: Version) -> dict[str, Any]:
    return {
        "name": version.name,
        "versions": [version.version],
        "platform": "cortx",
        "inputs": inputs_of(version),
        "outputs": outputs_of(version),
    }


def inputs_of(version: Version) -> list[dict[str, Any]]:
    """The tensors that a request must have."""
    reader = version.reader
    if isinstance(reader, ImageReader):
        return [{"name": "images", "datatype": "UINT8", "shape": [-1, *reader.shape]}]
    return [{"name": column.name, "datatype": _datatype(column), "shape": [-1, 1]} for column in reader.columns]


def _datatype(column: ColumnReader) -> str:
    """A type that holds all of a column's values; among numbers, NaN is a missing one."""
    if not column.column.coded:
        return "BOOL" if column.boolean else "FP64"
    missing = column.gap in column.known
    if column.kinds == {bool} and not missing:
        return "BOOL"
    if column.kinds == {int} and not missing:
        return "INT64"
    return "FP64" if column.kinds <= {int, float} else "BYTES"


def outputs_of(version: Version) -> list[dict[str, Any]]:
    """The tensors of an answer."""
    players, outputs = len(version.names.players), version.n_outputs
    shapes = {
        "values": [-1, players, outputs],
        "base_values": [-1, outputs],
        "prediction": [-1, outputs],
        "ranking": [-1, players, outputs],
        "order_by_magnitude": [-1, players, outputs],
    }
    if version.confidence is not None:
        shapes |= {
            "lower_bounds": [-1, players, outputs],
            "upper_bounds": [-1, players, outputs],
            "error_bound": [-1, outputs],
        }
    kinds = {"ranking": "INT64", "order_by_magnitude": "INT64"}
    return [{"name": name, "datatype": kinds.get(name, "FP64"), "shape": shape} for name, shape in shapes.items()]


@dataclass(frozen=True, slots=True)
class Asked:
    """How an answer is to be written."""

    id: str | None
    outputs: dict[str, bool] | None
    """The names that were asked for, and whether as bytes; None for all."""
    binary: bool


def read_infer(version: Version, body: bytes, headers: Iterable[Header], max_rows: int) -> tuple[Work, Asked]:
    """The work of an infer request, and how its answer is to be written."""
    length = header(headers, HEADER_LENGTH)
    data, rest = body, memoryview(b"")
    if length is not None:
        if not length.isdigit() or len(length) > MOST_DIGITS or int(length) > len(body):
            raise HttpError(400, "the header Inference-Header-Content-Length must be the length of the JSON part")
        data, rest = body[: int(length)], memoryview(body)[int(length) :]
    request = parse_object(data, FIELDS)
    # KServe's client repeats the name that the path has.
    if request.get("model_name") not in (None, version.name):
        raise HttpError(400, "the body's 'model_name' is not the model of the path; leave it out, or send the same")
    parameters = _parameters(request, "the request")
    tensors = _tensors(request, rest)
    outputs = tensors.pop("outputs", None) if "outputs" not in _names(version) else None
    rows = _rows(version, tensors, max_rows)
    known = None
    if outputs is not None:
        if outputs.dtype.kind not in "iuf" or outputs.shape != (len(rows), version.n_outputs):
            raise HttpError(
                400, f"the tensor 'outputs' has shape {list(outputs.shape)}, expected numbers of shape "
                f"[{len(rows)}, {version.n_outputs}]",
            )  # fmt: skip
        known = outputs.astype(np.float64)
        least, most = version.output_range
        if not ((known >= least) & (known <= most)).all():  # NaN is not either
            raise beyond("the tensor 'outputs'", version.output_range)
    work = make_work(version, "arrays", rows, known, parameters.get("confidence", UNASKED))
    return work, _asked(version, request, parameters)


def _names(version: Version) -> tuple[str, ...]:
    return version.reader.names if isinstance(version.reader, RecordReader) else ("images",)


def _parameters(item: dict[str, Any], what: str) -> dict[str, Any]:
    parameters = item.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise HttpError(400, f"'parameters' of {what} must be an object, got {kind_of(parameters)}")
    return parameters


def _listed(request: dict[str, Any], key: str, fields: frozenset[str]) -> list[dict[str, Any]]:
    """Objects with names that differ."""
    items = request.get(key)
    if not isinstance(items, list) or not items:
        raise HttpError(400, f"{key!r} must be a list of at least one tensor")
    names = set()
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise HttpError(400, f"each of {key!r} must be an object with a 'name'")
        if not item.keys() <= fields:
            raise HttpError(400, f"each of {key!r} may have the fields {', '.join(sorted(fields))}, and no others")
        if item["name"] in names:
            raise HttpError(400, f"{key!r} has two tensors of one name")
        names.add(item["name"])
    return items


def _tensors(request: dict[str, Any], rest: memoryview) -> dict[str, npt.NDArray[Any]]:
    """The request's tensors by name; numbers as arrays of their type, text as arrays of objects."""
    found: dict[str, npt.NDArray[Any]] = {}
    for item in _listed(request, "inputs", INPUT_FIELDS):
        name, shape, datatype = item["name"], item.get("shape"), item.get("datatype")
        called = repr(name[:60])
        if not isinstance(shape, list) or not 1 <= len(shape) <= MOST_AXES:
            raise HttpError(400, f"the tensor {called} must have a 'shape', a list of 1 to {MOST_AXES} whole numbers")
        if not all(type(size) is int and 1 <= size <= LARGEST_AXIS for size in shape):
            raise HttpError(400, f"the 'shape' of the tensor {called} must have whole numbers from 1 to {LARGEST_AXIS}")
        if not isinstance(datatype, str) or (datatype != "BYTES" and datatype not in DTYPES):
            raise HttpError(400, f"the tensor {called} must have a 'datatype' of BYTES, {', '.join(DTYPES)}")
        count = math.prod(shape)
        binary = _parameters(item, f"the tensor {called}").get("binary_data_size")
        if binary is not None:
            if type(binary) is not int or not 0 <= binary <= len(rest) or "data" in item:
                raise HttpError(400, f"the tensor {called} must have its bytes after the JSON part, as it says")
            array = _from_bytes(rest[:binary], datatype, count, called)
            rest = rest[binary:]
        else:
            array = _from_json(item.get("data"), datatype, shape, count, called)
        found[name] = array.reshape(shape)
    if len(rest):
        raise HttpError(400, f"{len(rest)} bytes came that belong to no tensor")
    return found


def _from_bytes(data: memoryview, datatype: str, count: int, called: str) -> npt.NDArray[Any]:
    if datatype != "BYTES":
        dtype = DTYPES[datatype]
        if len(data) != count * dtype.itemsize:
            raise HttpError(400, f"the tensor {called} has {len(data)} bytes, expected {count * dtype.itemsize}")
        return np.frombuffer(data, dtype=dtype)
    texts: list[bytes] = []
    place = 0
    while place + 4 <= len(data) and len(texts) < count:
        (length,) = struct.unpack_from("<I", data, place)
        texts.append(bytes(data[place + 4 : place + 4 + length]))
        place += 4 + length
    if len(texts) != count or place != len(data):
        raise HttpError(400, f"the tensor {called} does not hold {count} pieces of text with their lengths")
    try:
        return _objects([text.decode("utf-8") for text in texts])
    except UnicodeDecodeError:
        raise HttpError(400, f"the tensor {called} holds text that is not UTF-8") from None


def _from_json(data: Any, datatype: str, shape: list[int], count: int, called: str) -> npt.NDArray[Any]:
    """A list of all values in order, or lists nested as the shape says."""
    if not isinstance(data, list):
        raise HttpError(400, f"the tensor {called} must have 'data', a list, got {kind_of(data)}")
    flat: list[Any] = data
    for size in shape[1:]:
        if not flat or not isinstance(flat[0], list):
            break
        if not all(isinstance(part, list) and len(part) == size for part in flat):
            raise HttpError(400, f"the tensor {called} has lists that do not fit its shape")
        flat = [value for part in flat for value in part]
    if len(flat) != count:
        raise HttpError(400, f"the tensor {called} has {len(flat)} values, its shape says {count}")
    if datatype == "BYTES":
        if not all(isinstance(value, str) or value is None for value in flat):
            raise HttpError(400, f"the tensor {called} of datatype BYTES must hold text")
        return _objects(flat)
    wanted = (bool,) if datatype == "BOOL" else (int,) if "INT" in datatype else (int, float)
    if not all(type(value) in wanted or (value is None and "FP" in datatype) for value in flat):
        raise HttpError(400, f"the tensor {called} holds values that are not of its datatype {datatype}")
    try:
        with np.errstate(over="ignore"):
            array = np.array([np.nan if value is None else value for value in flat], dtype=DTYPES[datatype])
    except (OverflowError, ValueError):
        array = np.array([np.inf])
    if np.isinf(array).any():  # JSON has no infinity
        raise HttpError(400, f"the tensor {called} holds numbers beyond its datatype {datatype}")
    return array


def _objects(items: list[Any]) -> npt.NDArray[Any]:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def _rows(version: Version, tensors: dict[str, npt.NDArray[Any]], max_rows: int) -> Rows:
    reader = version.reader
    wanted = ("images",) if isinstance(reader, ImageReader) else reader.names
    if isinstance(reader, RecordReader) and set(tensors) == {"rows"} and "rows" not in wanted:
        table = tensors["rows"]
        if table.ndim != 2 or table.shape[1] != len(wanted):
            raise HttpError(400, f"the tensor 'rows' must have shape [rows, {len(wanted)}], got {list(table.shape)}")
        tensors = {name: table[:, j] for j, name in enumerate(wanted)}
    lacking = [name for name in wanted if name not in tensors]
    unknown = [name[:60] for name in tensors if name not in wanted]
    if lacking or unknown:
        words = f"lacks the tensor {lacking[0]!r}" if lacking else f"has the unknown tensor {unknown[0]!r}"
        raise HttpError(400, f"the request {words}; the model's metadata lists its inputs")
    lengths = {len(array) if array.ndim else 0 for array in tensors.values()}
    n_rows = lengths.pop()
    if lengths or not n_rows:
        raise HttpError(400, "the tensors must have one and the same number of rows, at least one")
    check_count([None] * min(n_rows, max_rows + 1), max_rows)
    if isinstance(reader, ImageReader):
        return reader.read_array(tensors["images"], "images")
    columns = []
    for column in reader.columns:
        name, array = column.name, tensors[column.name]
        if array.shape not in ((n_rows,), (n_rows, 1)):
            raise HttpError(400, f"the tensor {name!r} must have shape [rows] or [rows, 1], got {list(array.shape)}")
        columns.append(_cells(array.reshape(-1), column))
    return reader.from_columns(columns)


def _cells(array: npt.NDArray[Any], column: ColumnReader) -> list[Any]:
    """A column's values as JSON has them; NaN is a missing value, and text may spell a number or a boolean."""
    listed: list[Any] = array.tolist()
    if array.dtype.kind == "f":
        if np.isinf(array).any():
            raise HttpError(400, f"the tensor {column.name!r} holds infinite numbers")
        return [None if value != value else value for value in listed]
    if array.dtype.kind == "O" and column.others:
        return [column.spelled.get(value, value) for value in listed]
    return listed


def _asked(version: Version, request: dict[str, Any], parameters: dict[str, Any]) -> Asked:
    name = request.get("id")
    if name is not None and not isinstance(name, str):
        raise HttpError(400, f"'id' must be text, got {kind_of(name)}")
    binary = parameters.get("binary_data_output") is True
    if request.get("outputs") is None:
        return Asked(name, None, binary)
    known = {item["name"] for item in outputs_of(version)}
    wanted = {}
    for item in _listed(request, "outputs", OUTPUT_FIELDS):
        if item["name"] not in known:
            raise HttpError(400, f"there is no output {item['name'][:60]!r}; there are {', '.join(sorted(known))}")
        own = _parameters(item, "an output").get("binary_data")
        wanted[item["name"]] = binary if own is None else own is True
    return Asked(name, wanted, binary)


def write_infer(version: Version, arrays: Arrays, asked: Asked) -> tuple[bytes, tuple[Header, ...]]:
    """The answer's body, and its headers."""
    tensors: dict[str, npt.NDArray[Any] | None] = {
        "values": arrays.values,
        "base_values": arrays.base_values,
        "prediction": arrays.prediction,
        "ranking": arrays.ranking,
        "order_by_magnitude": arrays.order_by_magnitude(),
        "lower_bounds": arrays.lower,
        "upper_bounds": arrays.upper,
        "error_bound": arrays.error,
    }
    present = {name: array for name, array in tensors.items() if array is not None}
    wanted = dict.fromkeys(present, asked.binary) if asked.outputs is None else asked.outputs
    listed, raw = [], []
    for name, binary in wanted.items():
        if name not in present:
            raise HttpError(400, f"the output {name!r} needs bounds, and this request has none; ask for a confidence")
        array = np.ascontiguousarray(present[name])
        item: dict[str, Any] = {
            "name": name,
            "datatype": "INT64" if array.dtype.kind == "i" else "FP64",
            "shape": list(array.shape),
        }
        if binary:
            raw.append(array.tobytes())
            item["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            item["data"] = array.ravel()
        listed.append(item)
    answer: dict[str, Any] = {
        "model_name": version.name,
        "model_version": version.version,
        "parameters": {"outputs_known": arrays.known},
        "outputs": listed,
    }
    if asked.id is not None:
        answer["id"] = asked.id
    text = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if not raw:
        return text, JSON
    length = (HEADER_LENGTH, b"%d" % len(text))
    return b"".join([text, *raw]), ((b"content-type", b"application/octet-stream"), length, *SAFE)
