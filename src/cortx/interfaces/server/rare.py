"""Routes that are asked now and then, in FastAPI: what is served, health, metrics, documents and the page."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response

from cortx.interfaces.server import protocol_v2
from cortx.interfaces.server.catalog import Catalog, Entry
from cortx.interfaces.server.http import SAFE, HttpError, error_body
from cortx.interfaces.server.openapi import ANY_OBJECT, TEXT, Responses, document, errors, is_open, ok
from cortx.interfaces.server.settings import Settings
from cortx.version import __version__

PAGE = Path(__file__).parent / "page"
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
PAGE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
         ".png": "image/png", ".json": "application/json", ".ico": "image/x-icon", ".woff2": "font/woff2"}  # fmt: skip
DATA_HEADERS = {name.decode(): value.decode() for name, value in SAFE}
OBJECT = ok(ANY_OBJECT)


def as_json(data: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, DATA_HEADERS, "application/json")


def named(catalog: Catalog) -> dict[str, Any]:
    """The parameter of routes about one model."""
    names = sorted(entry.name for entry in catalog)
    return {
        "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string", "enum": names}}]
    }


def make_rare(catalog: Catalog, settings: Settings, needs_token: bool, draining: Callable[[], bool]) -> FastAPI:
    app = FastAPI(title="cortx", version=__version__, openapi_url=None, docs_url=None, redoc_url=None,
                  redirect_slashes=False)  # fmt: skip
    one = named(catalog)
    guarded = errors(401, 403, 405)
    _add_errors(app)

    @app.get("/models", tags=["models"], summary="What is served.", responses=ok({
        "type": "object", "required": ["models"], "properties": {"models": {"type": "array", "items": {
            "type": "object", "required": ["name", "version", "kind"],
            "properties": {"name": TEXT, "version": TEXT, "kind": {"enum": ["table", "image"]}}}}},
    }) | guarded)  # fmt: skip
    async def models() -> Response:
        return as_json({"models": [_listed(entry) for entry in catalog]})

    @app.get("/models/{name}", tags=["models"], summary="Columns, examples and quality of one model.",
             openapi_extra=one, responses=OBJECT | guarded | errors(404))  # fmt: skip
    async def model(request: Request) -> Response:
        entry = catalog.get(request.path_params["name"])
        version = entry.current
        return as_json({**version.description, "audit": version.audit_state(), "failure": entry.failure})

    @app.get("/models/{name}/audit", tags=["models"], summary="What the audit found.", openapi_extra=one,
             responses=ok({"type": ["object", "null"]}) | guarded | errors(404))  # fmt: skip
    async def audit(request: Request) -> Response:
        return as_json(catalog.get(request.path_params["name"]).current.audit_state())

    @app.get("/v1/models", tags=["KServe V1"], summary="Names of what is served.", responses=OBJECT | guarded)
    async def v1_models() -> Response:
        return as_json({"models": [entry.name for entry in catalog]})

    @app.get("/v1/models/{name}", tags=["KServe V1"], summary="Whether a model is ready.", openapi_extra=one,
             responses=OBJECT | guarded | errors(404, 503))  # fmt: skip
    async def v1_model(request: Request) -> Response:
        entry = catalog.get(request.path_params["name"])
        check_ready(draining(), entry.batcher.stalled)  # 503, as KServe's own server says it: probes read no body
        return as_json({"name": entry.name, "ready": True})

    _add_v2(app, catalog, one, guarded, draining)

    @app.get("/metrics", tags=["server"], summary="Prometheus metrics.", responses={
        200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": TEXT}}}, **guarded,
    })  # fmt: skip
    async def metrics() -> Response:
        return Response(catalog.metrics.text(), 200, DATA_HEADERS, "text/plain; version=0.0.4; charset=utf-8")

    made: dict[int, tuple[bytes, str]] = {}

    def described() -> tuple[bytes, str]:
        """The document as JSON and as a page, made once for each set of versions: it takes long."""
        if catalog.generation not in made:
            rare = get_openapi(title="cortx", version=__version__, routes=app.routes)
            whole = document(catalog, settings, rare, needs_token)
            made.clear()
            made[catalog.generation] = orjson.dumps(whole), docs_page(whole)
        return made[catalog.generation]

    @app.get("/openapi.json", tags=["server"], summary="This document.", responses=OBJECT | guarded)
    async def openapi() -> Response:
        return Response(described()[0], 200, DATA_HEADERS, "application/json")

    _add_pages(app, catalog, described)
    return app


def _listed(entry: Entry) -> dict[str, Any]:
    version = entry.current
    return {"name": entry.name, "version": version.version, "kind": version.kind, "failure": entry.failure}


def _add_errors(app: FastAPI) -> None:
    """All errors have one form."""

    async def refused(request: Request, error: Any) -> Response:
        del request
        headers = {name.decode(): value.decode() for name, value in error.headers}
        return Response(error_body(error.text), error.status, DATA_HEADERS | headers, "application/json")

    async def failed(request: Request, error: Any) -> Response:
        del request
        text = {404: "there is nothing here; GET /docs lists the routes", 405: "this route knows another method"}
        body = error_body(text.get(error.status_code, str(error.detail)))
        return Response(body, error.status_code, DATA_HEADERS | dict(error.headers or {}), "application/json")

    app.add_exception_handler(HttpError, refused)
    app.add_exception_handler(HTTPException, failed)


def _add_v2(
    app: FastAPI, catalog: Catalog, one: dict[str, Any], guarded: Responses, draining: Callable[[], bool]
) -> None:
    tags: list[Any] = ["Open Inference Protocol V2"]

    @app.get("/v2", tags=tags, summary="The server.", responses=OBJECT | guarded)
    async def server() -> Response:
        return as_json(protocol_v2.server_metadata())

    @app.get("/v2/health/live", tags=tags, summary="Whether the server lives.", responses=OBJECT | errors(405, 503))
    async def live() -> Response:
        check_alive(catalog)
        return as_json({"live": True})

    @app.get("/v2/health/ready", tags=tags, summary="Whether it takes requests.", responses=OBJECT | errors(405, 503))
    async def ready() -> Response:
        check_ready(draining(), catalog.stalled)
        return as_json({"ready": True})

    def found(request: Request) -> Entry:
        entry = catalog.get(request.path_params["name"])
        check_version(entry, request.path_params.get("version"))
        return entry

    about = OBJECT | guarded | errors(404)
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        shown = not path.endswith("{version}")

        @app.get(path, tags=tags, summary="Tensors of a model.", openapi_extra=one, responses=about,
                 include_in_schema=shown)  # fmt: skip
        async def metadata(request: Request) -> Response:
            return as_json(protocol_v2.model_metadata(found(request).current))

        @app.get(f"{path}/ready", tags=tags, summary="Whether a model is ready.", openapi_extra=one,
                 responses=about | errors(503), include_in_schema=shown)  # fmt: skip
        async def model_ready(request: Request) -> Response:
            entry = found(request)
            check_ready(draining(), entry.batcher.stalled)
            return as_json({"name": entry.name, "ready": True})


def check_ready(draining: bool, stalled: bool) -> None:
    """Raises 503 unless requests are taken."""
    if draining:
        raise HttpError(503, "the server is stopping")
    if stalled:
        raise HttpError(503, "a model has not returned from its last call", (), "stalled")


def check_alive(catalog: Catalog) -> None:
    """Raises 503 where only a new process can help."""
    if catalog.dead:
        raise HttpError(503, "a model has hung for so long that the server should be started again", (), "stalled")


def check_version(entry: Entry, version: str | None) -> None:
    """A version that is named must be the one that is served."""
    if version is not None and version != entry.current.version:
        raise HttpError(404, "this version of the model is not served")


def _add_pages(app: FastAPI, catalog: Catalog, described: Callable[[], tuple[bytes, str]]) -> None:
    # Read once, by the names that are there: a request never reaches the disk.
    files = {file.name: file.read_bytes() for file in PAGE.glob("*") if file.is_file()} if PAGE.is_dir() else {}

    def page(name: str) -> Response:
        kind = KINDS.get(Path(name).suffix)
        if name not in files or kind is None:
            raise HTTPException(404)
        return Response(files[name], 200, PAGE_HEADERS, kind)

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        """The page for browsers; for everybody else whether the server lives, where KServe's V1 looks for that."""
        if "text/html" not in request.headers.get("accept", ""):
            check_alive(catalog)
            answer = as_json({"status": "alive"})
        elif "index.html" in files:
            answer = page("index.html")
        else:
            answer = Response(described()[1], 200, PAGE_HEADERS, "text/html")
        answer.headers["Vary"] = "Accept"
        return answer

    @app.get("/page/{name}", include_in_schema=False)
    async def file(request: Request) -> Response:
        return page(request.path_params["name"])

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(described()[1], 200, PAGE_HEADERS, "text/html")

    @app.get("/docs.css", include_in_schema=False)
    async def style() -> Response:
        return Response(DOCS_CSS, 200, PAGE_HEADERS, "text/css")


def docs_page(described: dict[str, Any]) -> str:
    """The routes as a page of our own. It may be open to all, so it names no model and no column."""
    rows: dict[str, str] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            general, summary = _general(path), operation.get("summary", "")
            if general != path and not path.startswith("/models"):
                summary = summary.split(" of ")[0].split(" with ")[0].rstrip(".") + "."
                summary = {"What": "What the model gives."}.get(summary.split(" ")[0], summary)
            token = "" if is_open(path) or "security" not in operation else "<td>token</td>"
            rows[f"{method} {general}"] = (
                f"<tr><td><code>{method.upper()}</code></td><td><code>{html.escape(general)}</code></td>"
                f"<td>{html.escape(summary)}</td>{token}</tr>"
            )
    return DOCS_PAGE.replace("ROUTES", "\n".join(rows[key] for key in sorted(rows, key=lambda key: key.split(" ")[1])))


def _general(path: str) -> str:
    """A path without a model's own name."""
    for start, ends in (("/v1/models/", (":explain", ":predict")), ("/v2/models/", ("/infer",))):
        for end in ends:
            if path.startswith(start) and path.endswith(end):
                return f"{start}{{name}}{end}"
    return path


DOCS_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>cortx: routes</title><link rel="stylesheet" href="/docs.css"></head>
<body><main>
<h1>Routes of this server</h1>
<p>Requests and answers are JSON. Errors are <code>{"error": "text"}</code> with the right status.
The machine-readable description, with every column, is <a href="/openapi.json">/openapi.json</a>.</p>
<pre>curl -s http://HOST:PORT/explain -d '{"records": [{"column": "value"}]}'</pre>
<p>With tokens, add <code>-H "Authorization: Bearer TOKEN"</code>. <code>X-Deadline: 0.5</code> asks for an answer
within half a second.</p>
<table><tbody>
ROUTES
</tbody></table>
</main></body></html>
"""
DOCS_CSS = """:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
pre { padding: .8rem; overflow-x: auto; border: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
"""
