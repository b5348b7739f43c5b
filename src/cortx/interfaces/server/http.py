"""Plain ASGI: reading a body within limits, and answering in JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import orjson

Message = dict[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

SAFE: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)
JSON: tuple[Header, ...] = ((b"content-type", b"application/json"), *SAFE)
CLOSE: Header = (b"connection", b"close")
SLOW = "cortx.slow"
"""In the scope of a request whose body did not arrive in time."""


class HttpError(Exception):
    """An answer other than the one that was hoped for; its text is for the caller and holds nothing private."""

    def __init__(self, status: int, text: str, headers: tuple[Header, ...] = (), reason: str = "") -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers
        self.model = ""
        self.reason = reason or {400: "bad_request", 401: "token", 404: "unknown", 413: "too_large"}.get(status, "")


class Disconnected(Exception):
    """The client went away before its request was whole."""


def error_body(text: str) -> bytes:
    return orjson.dumps({"error": text})


async def respond(
    send: Send, status: int, body: bytes, headers: Iterable[Header] = JSON, more: tuple[Header, ...] = ()
) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, (b"content-length", b"%d" % len(body)), *more],
        }
    )
    await send({"type": "http.response.body", "body": body})


def header(headers: Iterable[Header], wanted: bytes) -> bytes | None:
    for name, value in headers:
        if name == wanted:
            return value
    return None


class Bodies:
    """Reads bodies: none larger than `largest`, and not too many bytes at a time.

    The connection keeps the time: it marks the scope of a request that did not arrive whole (`SLOW`).
    """

    def __init__(self, largest: int, together: int | None = None) -> None:
        self.largest = largest
        self.together = 16 * largest if together is None else together
        self._held = 0

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        length = header(scope["headers"], b"content-length")
        if length is not None and int(length) > self.largest:
            raise self._too_large()
        message = await receive()
        if message["type"] != "http.request":
            raise Disconnected
        body: bytes = message["body"]
        return await self._rest(body, scope, receive) if message["more_body"] else self._checked(body)

    async def _rest(self, first: bytes, scope: Scope, receive: Receive) -> bytes:
        parts, size = [first], len(first)
        self._held += size
        try:
            while True:
                if SLOW in scope:
                    raise HttpError(408, "the request did not arrive whole in time", (CLOSE,), "slow")
                if size > self.largest:
                    raise self._too_large()
                if self._held > self.together:
                    raise HttpError(
                        429, "too many large requests are arriving; send it again later", ((b"retry-after", b"1"),),
                        "bodies",
                    )  # fmt: skip
                message = await receive()
                if message["type"] != "http.request":
                    raise Disconnected
                parts.append(message["body"])
                size += len(parts[-1])
                self._held += len(parts[-1])
                if not message["more_body"]:
                    return self._checked(b"".join(parts))
        finally:
            self._held -= size

    def _checked(self, body: bytes) -> bytes:
        if len(body) > self.largest:
            raise self._too_large()
        return body

    def _too_large(self) -> HttpError:
        return HttpError(413, f"the body is larger than {self.largest:,} bytes; send fewer rows at a time")


def parse_object(body: bytes, allowed: frozenset[str]) -> dict[str, Any]:
    """A body that must be one JSON object with known keys."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # Its message names places, never what stands there.
        raise HttpError(400, f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    if not isinstance(data, dict):
        raise HttpError(400, f"the body must be a JSON object, got {kind_of(data)}")
    if not data.keys() <= allowed:
        unknown = ", ".join(repr(key[:40]) for key in sorted(data.keys() - allowed)[:3])
        raise HttpError(400, f"the body has unknown fields: {unknown}; known are {', '.join(sorted(allowed))}")
    return data


def kind_of(value: Any) -> str:
    """What a JSON value is, in words that do not repeat it."""
    if value is None:
        return "null"
    names = {bool: "true or false", str: "text", dict: "an object", list: "a list", int: "a number", float: "a number"}
    return names.get(type(value), "something else")
