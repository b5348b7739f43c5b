"""`cortx explain` for tables that are larger than memory: folders of Parquet files, on an engine."""

from __future__ import annotations

from pathlib import Path

import typer


def explain_folder(
    explainer: Path,
    table: Path | str,
    out: Path | str,
    *,
    model: str | None = None,
    outputs: list[str] | None = None,
    confidence: float | None = None,
    top: int | None = None,
    engine: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    gpus_per_worker: float = 0.0,
) -> None:
    """Explains all Parquet files below `table`, a path or URI, into the folder `out`, and says what that came to.

    Run again after a stop, it goes on. `engine` is "local" (all cores, the default), "ray" or "spark".
    """
    from cortx.distributed.engines import make_engine
    from cortx.distributed.explaining import explain
    from cortx.errors import InputError

    if model is not None and outputs:
        raise InputError("--model and --outputs both give the model's output; use one of them")
    made = make_engine(engine or "local", workers, address, gpus_per_worker)
    report = explain(
        explainer, str(table), str(out), model=model, outputs=outputs, confidence=confidence, top=top, engine=made
    )
    typer.echo(str(report), err=True)
    if model is None and not outputs:
        typer.echo("The model's outputs were not given, so the explainer guessed them (--model, --outputs).", err=True)
