"""The ASGI root: hot routes by hand, everything else to FastAPI."""

from __future__ import annotations

import asyncio
from time import monotonic, perf_counter
from typing import Any

import orjson

from cortx.interfaces.server import protocol_v2
from cortx.interfaces.server.auth import Guard
from cortx.interfaces.server.catalog import Catalog, Entry
from cortx.interfaces.server.http import (
    CLOSE,
    JSON,
    Bodies,
    Disconnected,
    Header,
    HttpError,
    Message,
    Receive,
    Scope,
    Send,
    error_body,
    header,
    parse_object,
    respond,
)
from cortx.interfaces.server.logs import Log
from cortx.interfaces.server.openapi import is_open
from cortx.interfaces.server.rare import check_version, make_rare
from cortx.interfaces.server.requests import (
    EXPLAIN_FIELDS,
    PREDICT_FIELDS,
    V1_FIELDS,
    read_explain,
    read_v1_explain,
    read_v1_predict,
)
from cortx.interfaces.server.settings import Settings
from cortx.interfaces.server.work import Work

Answer = tuple[bytes, tuple[Header, ...]]
ALLOW_POST: Header = (b"allow", b"POST")


class App:
    """Answers requests; `draining` says that the server is about to stop."""

    def __init__(self, catalog: Catalog, settings: Settings, log: Log) -> None:
        self.catalog, self.settings, self.log = catalog, settings, log
        self.guard = Guard(settings)
        self.bodies = Bodies(settings.max_body)
        self.draining = False
        self.started = 0
        """Requests so far; a stopping server waits until no new ones come."""
        self._rare = make_rare(catalog, settings, self.guard.needs_token, lambda: self.draining)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this server does not speak {scope['type']}")
        self.started += 1
        started = perf_counter()
        path: str = scope["path"]
        model, status = "", 200
        try:
            headers = scope["headers"]
            if is_open(path):
                self.guard.check_name(headers)
            else:
                self.guard.check(headers)
            route = self._route(path)
            if route is None:
                status = await self._answer_rarely(scope, receive, send)
            else:
                kind, entry, version = route
                if scope["method"] != "POST":
                    raise HttpError(405, "this route takes POST", (ALLOW_POST,))
                model = "" if entry is None else entry.name
                body = await self.bodies.read(scope, receive)
                answer, model = await self._answer(kind, entry, version, body, headers, started)
                await respond(send, 200, answer[0], answer[1], (CLOSE,) if self.draining else ())
        except HttpError as error:
            status = error.status
            model = model or error.model
            self._refused(error, model)
            more = (*error.headers, CLOSE) if self.draining and CLOSE not in error.headers else error.headers
            await respond(send, status, error_body(error.text), JSON, more)
        except Disconnected:
            status = 499
        except asyncio.CancelledError:
            raise
        except Exception as error:
            status = 500
            self.log.failure("internal_error", error, model=model)
            await respond(send, 500, error_body("something went wrong inside the server"), JSON, (CLOSE,))
        if self.settings.log_requests:
            self.log.write("request", method=scope["method"], path=path[:200], status=status, model=model,
                           milliseconds=round(1e3 * (perf_counter() - started), 3))  # fmt: skip

    def _route(self, path: str) -> tuple[str, Entry | None, str | None] | None:
        """The hot route of a path, its model and the version that it names."""
        if path == "/explain":
            return "explain", None, None
        if path.startswith("/v1/models/"):
            name, colon, verb = path[len("/v1/models/") :].rpartition(":")
            if colon and verb in ("explain", "predict"):
                return f"v1_{verb}", self.catalog.get(name), None
        elif path.startswith("/v2/models/") and path.endswith("/infer"):
            name, _, version = path[len("/v2/models/") : -len("/infer")].partition("/versions/")
            entry = self.catalog.get(name)
            check_version(entry, version or None)
            return "v2_infer", entry, version or None
        return None

    async def _answer(
        self, kind: str, entry: Entry | None, version: str | None, body: bytes, headers: Any, started: float
    ) -> tuple[Answer, str]:
        """Reads a request and answers it; also the name of its model."""
        most = self.settings.max_rows
        if kind == "explain":
            data = parse_object(body, EXPLAIN_FIELDS)
            entry = self.catalog.choose(data.get("model"))
            try:
                return await self._finish(kind, entry, read_explain(entry.current, data, most), headers, started)
            except HttpError as error:
                error.model = entry.name  # the path did not say it
                raise
        assert entry is not None
        if kind == "v2_infer":
            check_version(entry, version)  # it may have been swapped while the body came
            work, asked = protocol_v2.read_infer(entry.current, body, headers, most)
        else:
            fields, read = (V1_FIELDS, read_v1_explain) if kind == "v1_explain" else (PREDICT_FIELDS, read_v1_predict)
            work, asked = read(entry.current, parse_object(body, fields), most), None
        return await self._finish(kind, entry, work, headers, started, asked)

    async def _finish(
        self,
        kind: str,
        entry: Entry,
        work: Work,
        headers: Any,
        started: float,
        asked: protocol_v2.Asked | None = None,
    ) -> tuple[Answer, str]:
        """Waits for the work's batch, and writes its answer."""
        deadline = self._deadline(headers)
        work.until, work.audited = monotonic() + deadline, header(headers, b"x-audit") != b"no"
        result = await entry.batcher.submit(work, len(work.rows), deadline)
        seconds = entry.metrics.predict_seconds if kind == "v1_predict" else entry.metrics.explain_seconds
        if asked is not None:
            answer = protocol_v2.write_infer(work.version, result, asked)
        else:
            answer = orjson.dumps(_named_answer(kind, work, result)), JSON
        seconds.observe(perf_counter() - started)
        return answer, entry.name

    def _deadline(self, headers: Any) -> float:
        given = header(headers, b"x-deadline")
        if given is None:
            return self.settings.deadline
        try:
            seconds = float(given)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= 3600:
            raise HttpError(400, "the header X-Deadline must be a number of seconds, above 0 and at most 3600")
        return min(seconds, self.settings.deadline)

    async def _answer_rarely(self, scope: Scope, receive: Receive, send: Send) -> int:
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.draining:
                    message["headers"] = [*message.get("headers", ()), CLOSE]
            await send(message)

        await self._rare(scope, receive, watched)  # type: ignore[arg-type]
        return status

    def _refused(self, error: HttpError, model: str) -> None:
        reason = error.reason or str(error.status)
        self.catalog.metrics.rejected.labels(model, reason).inc()
        self.log.often("refused", f"{model} {reason}", status=error.status, reason=reason, model=model)


def _named_answer(kind: str, work: Work, result: Any) -> dict[str, Any]:
    if kind == "v1_predict":
        return {"predictions": result[:, 0].tolist() if result.shape[1] == 1 else result.tolist()}
    if kind == "v1_explain":
        return {"explanations": result}
    return {"model": work.version.name, "version": work.version.version, "explanations": result}
