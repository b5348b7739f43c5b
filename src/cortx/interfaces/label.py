"""`cortx label`: the labels of a large table, by many workers, into a folder that only grows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cortx.errors import InputError
from cortx.interfaces.files import read_file
from cortx.interfaces.options import (
    AddressOption,
    BackgroundOption,
    CallRateOption,
    CallRowsOption,
    CallsOption,
    CallTimeoutOption,
    CategoricalOption,
    DropOption,
    EngineName,
    Frame,
    GpusOption,
    GroupOption,
    OutputOption,
    RetriesOption,
    TargetOption,
    WorkersOption,
    log_to_stderr,
    read_calls,
    read_categorical,
    read_groups,
    read_target,
)
from cortx.storage import local_path


def label(
    model: Annotated[
        str,
        typer.Option(
            help="The model: [bold]package.module:object[/bold], or the path of an ONNX file. Every worker imports it "
            "for itself.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str, typer.Option(help="A Parquet file, a folder of them, or a URI such as s3://...", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The folder for the labels; all workers must see it.", show_default=False),
    ],
    budget: Annotated[
        int,
        typer.Option(
            help="Model evaluations that all labels in the folder may cost, earlier runs included.", show_default=False
        ),
    ],
    rows: Annotated[
        int | None,
        typer.Option(
            help="Rows to label; by default as many as the budget pays for at a precise label each.", show_default=False
        ),
    ] = None,
    reference: Annotated[
        str,
        typer.Option(
            help="What replaces an absent feature: 'table' (mean and mode of the data; in a folder with labels, what "
            "they were made with), 'zero', or a FILE (a single row stands for itself, several for their mean and mode)."
        ),
    ] = "table",
    background: BackgroundOption = None,
    output: OutputOption = "auto",
    target: TargetOption = None,
    group: GroupOption = None,
    categorical: CategoricalOption = None,
    drop: DropOption = None,
    frame: Annotated[
        Frame | None, typer.Option(help="The kind of table the model takes; by default pandas.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses the rows and the draws of their labels.")] = 0,
    engine: Annotated[EngineName, typer.Option(help="Who does the work: the cores of this machine, Ray, or Spark.")] = (
        "local"
    ),
    workers: WorkersOption = None,
    address: AddressOption = None,
    gpus_per_worker: GpusOption = 0.0,
    calls: CallsOption = None,
    rows_per_call: CallRowsOption = None,
    calls_per_second: CallRateOption = None,
    retries: RetriesOption = None,
    call_timeout: CallTimeoutOption = None,
) -> None:
    """Label rows of a large table with Shapley values, for a fit.

    The plan says before anything is spent which rows are labelled and what they cost. Rows and labels depend on the
    data, the seed and the budget alone: not on the order of the files, the engine or the number of workers. A run that
    was killed loses only the batches in flight: run the same command again, and it goes on. With a larger --budget it
    adds precision, or more rows, to the labels that are there. Labels of another model or reference are refused.
    Calls are those of each worker; --calls-per-second is shared by all of them.

    [bold]Example[/bold]

    cortx label --model scoring:model --data train/ --drop default --out labels/ --budget 2000000

    cortx label --model scoring:model --data s3://bucket/train/ --out /shared/labels/ --budget 50000000
    --engine ray --address auto
    """
    from cortx.distributed.engines import make_engine

    groups, dropped = read_groups(group or []), tuple(drop or ())
    absent = _absent(reference, background)
    how = read_calls(calls, rows_per_call, calls_per_second, retries, call_timeout)
    log_to_stderr()
    made = make_engine(engine, workers=workers, address=address, gpus_per_worker=gpus_per_worker)
    from cortx.distributed.labelling import label as label_table

    report = label_table(
        model, data, out, budget=budget, rows=rows, **absent, output=output, target=read_target(target), players=groups,
        categorical=read_categorical(categorical), drop=dropped, frame=frame, seed=seed, engine=made, calls=how,
        announce=_say if sys.stderr.isatty() else None,
    )  # fmt: skip
    typer.echo(str(report), err=True)


def _absent(reference: str, background: Path | None) -> dict[str, Any]:
    if background is not None:
        if reference != "table":
            raise InputError("--reference and --background both say what replaces an absent feature; use one of them")
        return {"background": read_file(background)}
    if reference in ("table", "zero"):
        return {} if reference == "table" else {"reference": "zero"}
    path = local_path(reference, "--reference")
    if not path.is_file():
        raise InputError(f"--reference must be 'table', 'zero' or a file, and there is no file {reference!r}")
    return {"reference": read_file(path)}


def _say(text: str) -> None:
    """On a terminal the plan is shown; elsewhere the log has it."""
    typer.echo(text, err=True)
