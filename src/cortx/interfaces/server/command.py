"""``cortx serve``: options of the command line to a running server."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cortx.errors import InputError, need

LIBRARIES = ("fastapi", "httptools", "orjson", "prometheus_client", "uvicorn", "uvloop")


def serve(
    artifacts: Annotated[
        list[Path],
        typer.Argument(
            metavar="ARTIFACT",
            help="Folders that [bold]cortx fit[/bold] or [bold]cortx export[/bold] wrote; credit.cortx or "
            "credit.portable is served as credit.",
            show_default=False,
        ),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]MODEL",
            help="The model an artifact was fitted for: package.module:object, or an ONNX file. With several artifacts "
            "NAME= says whose. Without it requests must bring the model's outputs, or explanations are guesses; "
            "trees are exact without. Not for portable folders.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; any but loopback needs tokens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65_535)] = 8080,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="Bearer tokens that requests must bring, one a line (also: the variable CORTX_TOKENS).",
            show_default=False,
        ),
    ] = None,
    allow_public: Annotated[
        bool, typer.Option("--allow-public", help="Serve a public address without tokens, to everybody.")
    ] = False,
    examples: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]TABLE", help="Rows that the page offers to start from (.csv, .parquet).", show_default=False
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Of the bounds, unless a request says otherwise; 0 for none.", min=0, max=1)
    ] = 0.9,
    max_queue: Annotated[int, typer.Option(help="Rows of a model that may wait; past them 429.", min=1)] = 8_192,
    max_rows: Annotated[int, typer.Option(help="Rows of one request; past them 413.", min=1)] = 1_024,
    max_body: Annotated[int, typer.Option(help="Bytes of one request; past them 413.", min=1_024)] = 8 * 2**20,
    deadline: Annotated[float, typer.Option(help="Seconds in which a request is answered, or refused with 504.")] = 30,
    stall: Annotated[
        float | None,
        typer.Option(
            help="Seconds past which a call of the model counts as hung: its requests get 503, and readiness fails "
            "until it returns; past twice as long liveness fails too. By default twice --deadline.",
            show_default=False,
        ),
    ] = None,
    body_seconds: Annotated[float, typer.Option(help="Seconds in which a request must arrive whole.")] = 10,
    linger: Annotated[
        float,
        typer.Option(
            help="Seconds after SIGTERM in which new requests are answered while readiness already fails.", min=0
        ),
    ] = 5,
    drain: Annotated[float, typer.Option(help="Seconds after that to answer what was accepted.")] = 20,
    audit: Annotated[
        float,
        typer.Option(help="The share of requests to explain again in the background, such as 0.01.", min=0, max=1),
    ] = 0.0,
    audit_cpu: Annotated[float, typer.Option(help="The share of one core that the audit may take.")] = 0.1,
    threads: Annotated[int, typer.Option(help="Threads of one forward pass.", min=1)] = 1,
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="Log every request, without its values.")
    ] = False,
) -> None:
    """Serve explanations over HTTP: open the page it prints, or send records.

    Requests that arrive together are explained together. A new version that is saved into a folder is picked up
    without dropping a request. Answers: POST /explain, KServe's V1 (:explain, :predict), the Open Inference Protocol
    V2, /metrics for Prometheus, /docs for all routes. Needs the extra: pip install 'cortx-explain\\[serve]'.

    [bold]Example[/bold]

    cortx serve credit.cortx --model scoring:model --examples customers.csv

    curl -s localhost:8080/explain -d '{"records": \\[{"age": 39, "workclass": "Private"}]}'
    """
    from cortx.interfaces.server.settings import Settings, read_tokens

    settings = Settings(
        host=host, port=port, tokens=read_tokens(token_file, os.environ.get("CORTX_TOKENS")),
        allow_public=allow_public, confidence=confidence or None, max_queue=max_queue, max_rows=max_rows,
        max_body=max_body, deadline=deadline, stall=stall, body_seconds=body_seconds, linger=linger,
        drain_seconds=drain, audit=audit, audit_cpu=audit_cpu, threads=threads, log_requests=log_requests,
    )  # fmt: skip
    _check_libraries()
    from cortx.interfaces.files import read_file
    from cortx.interfaces.server.catalog import served_name
    from cortx.interfaces.server.serve import run
    from cortx.named import load_model
    from cortx.storage import local_path

    names = [served_name(folder) for folder in artifacts]
    tables = by_name(examples or [], names, "--examples", lambda text: read_file(local_path(text, "--examples")))
    models = by_name(model or [], names, "--model", load_model)

    def tell(port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"Serving {', '.join(names)}: open http://{shown}:{port}/ (routes: /docs; stop: Ctrl+C)")

    run(artifacts, models, settings, examples=tables, on_start=tell)


def by_name(texts: Sequence[str], names: Sequence[str], option: str, read: Callable[[str], Any]) -> dict[str, Any]:
    """What an option gives to each served name: ``name=text``, or the text alone where one artifact is served."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        if not equals or name not in names:
            if len(names) > 1:
                raise InputError(f"{option} {text}: several artifacts are served; write {option} NAME=..., NAME one of "
                                 f"{', '.join(names)}")  # fmt: skip
            name, rest = names[0], text
        if name in found:
            raise InputError(f"{option} is given twice for {name!r}")
        found[name] = read(rest)
    return found


def _check_libraries() -> None:
    from importlib.util import find_spec

    lacking = [name for name in LIBRARIES if find_spec(name) is None]
    if lacking:
        raise need(", ".join(lacking), "cortx serve", "serve")
