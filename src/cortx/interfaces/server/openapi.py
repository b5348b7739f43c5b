"""The OpenAPI document of what is served now: records are described column by column."""

from __future__ import annotations

from typing import Any

from cortx.interfaces.server.catalog import Catalog, Version
from cortx.interfaces.server.protocol_v2 import DTYPES, LARGEST_AXIS, MOST_AXES, inputs_of, outputs_of
from cortx.interfaces.server.records import ColumnReader, ImageReader, RecordReader
from cortx.interfaces.server.requests import MOST_REASONS
from cortx.interfaces.server.settings import Settings
from cortx.version import __version__

Schema = dict[str, Any]
Responses = dict[int | str, dict[str, Any]]
WISHES = ("confidence", "top", "output", "outputs")
TEXTS = {
    400: "The request cannot be understood; the text says what and where.",
    401: "A token is needed, or this one is not known.",
    403: "The server answers to localhost alone.",
    404: "There is no such model, or no such version of it.",
    405: "The route knows another method.",
    408: "The request did not arrive in time.",
    413: "The body is too large, or has too many rows.",
    429: "Too much is waiting; try again after Retry-After seconds.",
    500: "The model failed on these rows.",
    503: "The server is stopping, or not ready.",
    504: "The deadline passed.",
}
NUMBER: Schema = {"type": "number"}
NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
TEXT: Schema = {"type": "string"}
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number"}
ANY_OBJECT: Schema = {"type": "object"}


def errors(*statuses: int) -> Responses:
    """Responses in the one form that all errors have."""
    return {
        str(status): {
            "description": TEXTS[status],
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for status in statuses
    }


def ok(schema: Schema, text: str = "The answer.") -> Responses:
    return {"200": {"description": text, "content": {"application/json": {"schema": schema}}}}


ASKED = errors(400, 401, 403, 404, 405, 408, 413, 429, 500, 503, 504)
DEADLINE = (
    " The header X-Deadline, a number of seconds, says how long an answer is of use; past them the request is refused "
    "with 504."
)


def document(catalog: Catalog, settings: Settings, rare: dict[str, Any], needs_token: bool) -> dict[str, Any]:
    """The whole document: the rare routes describe themselves, the hot ones are described here."""
    versions = [entry.current for entry in catalog]
    paths: dict[str, Any] = dict(rare.get("paths", {}))
    paths["/explain"] = {"post": _explain(versions, settings)}
    for version in versions:
        paths |= _model_paths(version, settings)
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "cortx",
            "version": __version__,
            "description": "Explanations at prediction latency: attributions, their bounds and the reasons in words.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": _object({"error": TEXT}), "Explanation": _explanation()}},
    }
    if needs_token:
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, methods in paths.items():
            if not is_open(path):
                for operation in methods.values():
                    operation["security"] = [{"token": []}]
    return described


def is_open(path: str) -> bool:
    """Routes that need no token: whether it lives, and pages that hold no data."""
    return path in ("/", "/docs", "/docs.css", "/favicon.ico") or path.startswith(("/v2/health/", "/page/"))


def _object(properties: dict[str, Schema], *, optional: tuple[str, ...] = (), closed: bool = False) -> Schema:
    made: Schema = {"type": "object", "properties": properties}
    required = [name for name in properties if name not in optional]
    if required:
        made["required"] = required
    return made | {"additionalProperties": False} if closed else made


def _list(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    made: Schema = {"type": "array", "items": items}
    if least:
        made["minItems"] = least
    return made if most is None else made | {"maxItems": most}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _explanation() -> Schema:
    by_player: Schema = {"anyOf": [_map(NUMBER), _list(NUMBER)]}
    reason = _object(
        {
            "feature": TEXT,
            "value": {"type": ["number", "string", "boolean", "null"]},
            "contribution": NUMBER,
            "certain": {"type": ["boolean", "null"]},
            "text": TEXT,
        }
    )
    return _object(
        {
            "prediction": _map(NUMBER),
            "base_values": _map(NUMBER),
            "attributions": _map(by_player),
            "ranking": {**_map(_list(TEXT)), "description": "From the highest attribution to the lowest."},
            "order_by_magnitude": {
                **_map(_list(TEXT)),
                "description": "From the largest absolute attribution to the smallest.",
            },
            "bounds": {"anyOf": [_map(_map(_list(NUMBER_OR_NULL, 2, 2))), {"type": "null"}]},
            "error_bound": {"anyOf": [_map(NUMBER_OR_NULL), {"type": "null"}]},
            "confidence": NUMBER_OR_NULL,
            "outputs_known": {"type": "boolean"},
            "reasons": _list(reason),
        }
    )


def record_schema(reader: RecordReader) -> Schema:
    """One record, column by column."""
    return _object({column.name: _column(column) for column in reader.columns}, closed=True)


def _column(column: ColumnReader) -> Schema:
    missing = column.gap in column.known if column.column.coded else column.may_miss
    if column.column.categorical and not column.ignores:
        return {"enum": [*column.categories, *([None] if missing else [])]}
    if column.column.coded and column.possible is not None:
        return {"enum": [value for _, value in column.possible] + ([None] if missing else [])}
    if column.column.coded:
        kinds = [name for kind, name in KINDS.items() if kind in column.kinds]
    else:
        kinds = ["boolean" if column.boolean else "integer" if column.whole else "number"]
    kinds += ["null"] if missing else []
    made: Schema = {"type": kinds[0] if len(kinds) == 1 else kinds}
    if column.whole:
        made |= {"minimum": column.least, "maximum": column.most}
    return made


def _rows_schema(version: Version) -> Schema:
    reader = version.reader
    if isinstance(reader, ImageReader):
        made: Schema = {"type": "number", "minimum": 0, "maximum": 255}
        for size in reversed(reader.shape):
            made = _list(made, size, size)
        return made
    return record_schema(reader)


def _wishes(version: Version, settings: Settings) -> dict[str, Schema]:
    """What a request may leave out."""
    known: Schema = {"type": "null"}
    if version.confidence is not None:
        known = {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": version.confidence[1]}, known]}
    names = list(version.names.outputs)
    return {
        "confidence": known | {"description": "Of the bounds; null for none."},
        "top": {"type": "integer", "minimum": 0, "maximum": MOST_REASONS, "description": "How many reasons."},
        "output": {
            "anyOf": [{"enum": names}, {"type": "integer", "minimum": 0, "maximum": len(names) - 1}, {"type": "null"}],
            "description": "Whose reasons; by default the highest output's.",
        },
        "outputs": _outputs_given(version, settings),
    }


def _outputs_given(version: Version, settings: Settings) -> Schema:
    least, largest = version.output_range
    number: Schema = {"type": "number", "minimum": least, "maximum": largest}
    most = settings.max_rows
    choices = [_list(_list(number, version.n_outputs, version.n_outputs), 1, most), {"type": "null"}]
    if version.n_outputs == 1:
        choices.append(_list(number, 1, most))
    return {
        "anyOf": choices,
        "description": "What the model gave for each row, as many as there are rows; the model is then not asked.",
    }


def _body(schema: Schema, example: Any = None) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schema}
    if example is not None:
        content["example"] = example
    return {"required": True, "content": {"application/json": content}}


def _example(version: Version) -> Any:
    examples = version.description["examples"]
    return examples[0]["record"] if examples else None


def _explain(versions: list[Version], settings: Settings) -> dict[str, Any]:
    choices = []
    for version in versions:
        key = "images" if version.kind == "image" else "records"
        properties = {
            "model": {"enum": [version.name]},
            key: _list(_rows_schema(version), 1, settings.max_rows),
            **_wishes(version, settings),
        }
        optional = (*(("model",) if len(versions) == 1 else ()), *WISHES)
        choices.append(_object(properties, optional=optional, closed=True))
    answer = _object(
        {"model": TEXT, "version": TEXT, "explanations": _list({"$ref": "#/components/schemas/Explanation"})}
    )
    example = None
    if versions and _example(versions[0]) is not None:
        example = {"model": versions[0].name, "records": [_example(versions[0])]}
    return {
        "operationId": "explain",
        "summary": "Explain records: attributions, bounds and reasons.",
        "description": DEADLINE.strip(),
        "requestBody": _body(choices[0] if len(choices) == 1 else {"oneOf": choices}, example),
        "responses": ok(answer) | ASKED,
    }


def _model_paths(version: Version, settings: Settings) -> dict[str, Any]:
    name = version.name
    instances = _list(_rows_schema(version), 1, settings.max_rows)
    example = _example(version)
    shown = None if example is None else {"instances": [example]}
    return {
        f"/v1/models/{name}:explain": {
            "post": {
                "operationId": f"v1_explain_{name}",
                "summary": f"Explain instances of {name} (KServe V1).",
                "description": DEADLINE.strip(),
                        "requestBody": _body(
                    _object({"instances": instances, **_wishes(version, settings)}, optional=WISHES, closed=True),
                    shown,
                ),
                "responses": ok(_object({"explanations": _list({"$ref": "#/components/schemas/Explanation"})})) | ASKED,
            }
        },
        f"/v1/models/{name}:predict": {
            "post": {
                "operationId": f"v1_predict_{name}",
                "summary": f"What {name}'s model gives (KServe V1).",
                "description": DEADLINE.strip(),
                        "requestBody": _body(_object({"instances": instances}, closed=True), shown),
                "responses": ok(_object({"predictions": _list({"anyOf": [NUMBER, _list(NUMBER)]})})) | ASKED,
            }
        },
        f"/v2/models/{name}/infer": {"post": _infer(version)},
    }  # fmt: skip


def _infer(version: Version) -> dict[str, Any]:
    parameters: Schema = {"type": "object"}
    others = ("outputs",) if version.kind == "image" else ("rows", "outputs")
    given = _object(
        {
            "name": {"enum": list(dict.fromkeys([*(item["name"] for item in inputs_of(version)), *others]))},
            "shape": _list({"type": "integer", "minimum": 1, "maximum": LARGEST_AXIS}, 1, MOST_AXES),
            "datatype": {"enum": ["BYTES", *DTYPES]},
            "data": {"type": "array"},
            "parameters": parameters,
        },
        optional=("parameters", "data"),
        closed=True,
    )
    wanted = _object(
        {"name": {"enum": [item["name"] for item in outputs_of(version)]}, "parameters": parameters},
        optional=("parameters",), closed=True,
    )  # fmt: skip
    answered = _object(
        {
            "name": TEXT,
            "shape": _list({"type": "integer"}),
            "datatype": {"enum": ["FP64", "INT64"]},
            "data": _list(NUMBER_OR_NULL),
            "parameters": parameters,
        },
        optional=("parameters", "data"),
    )
    return {
        "operationId": f"v2_infer_{version.name}",
        "summary": f"Explain tensors with {version.name} (Open Inference Protocol V2).",
        "description": "Tensors may also come in the protocol's binary form. The request's parameter 'confidence' "
        "chooses the bounds." + DEADLINE,
        "requestBody": _body(
            _object(
                {"id": TEXT, "model_name": {"enum": [version.name, None]}, "parameters": parameters,
                 "inputs": _list(given, 1), "outputs": _list(wanted, 1)},
                optional=("id", "model_name", "parameters", "outputs"), closed=True,
            )
        ),
        "responses": ok(
            _object(
                {"model_name": TEXT, "model_version": TEXT, "id": TEXT, "parameters": parameters,
                 "outputs": _list(answered)},
                optional=("id", "parameters"),
            )
        )
        | ASKED,
    }  # fmt: skip
