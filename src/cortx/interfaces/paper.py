"""``cortx paper``: the paper's tabular experiments from one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Data = Literal["census", "bankruptcy"]
Download = Literal["census", "bankruptcy", "cifar10"]
MOST_WORKERS = 16

app = typer.Typer(
    name="paper",
    help="Rerun the paper's tabular experiments, with its rivals: JSON, tables and figures.\n\n"
    "[bold]--quick[/bold] is a check of the machinery in a few minutes on two cores: few rows, short trainings, one "
    "seed. The whole study takes about half an hour on one GPU with 16 cores. A study that was stopped goes on "
    "where it was.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

OutOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="The folder to write to; by default paper-census, ...", show_default=False),
]
QuickOption = Annotated[bool, typer.Option("--quick", help="Few rows, short trainings, one seed.")]
DeviceOption = Annotated[str, typer.Option(help="Where models and networks run: auto, cpu, cuda.")]
WorkersOption = Annotated[
    int | None, typer.Option(help="Processes; by default one for each core, at most 16.", show_default=False, min=1)
]


@app.command()
def census(
    out: OutOption = None, quick: QuickOption = False, device: DeviceOption = "auto", workers: WorkersOption = None
) -> None:
    """Census: 13 features, exact labels, the published AutoInt (or one trained here from adult.data)."""
    _study("census", out, quick, device, workers)


@app.command()
def bankruptcy(
    out: OutOption = None, quick: QuickOption = False, device: DeviceOption = "auto", workers: WorkersOption = None
) -> None:
    """Bankruptcy: 95 features, sampled labels, an MLP trained here."""
    _study("bankruptcy", out, quick, device, workers)


@app.command()
def download(
    name: Annotated[Download, typer.Argument(help="The data set.", show_default=False)],
    to: Annotated[
        Path | None,
        typer.Option(
            help="The data folder; by default the one named by CORTX_DATA, else your cache.", show_default=False
        ),
    ] = None,
) -> None:
    """Fetch a public data set into the data folder, checked; goes on after an interruption."""
    from cortx.paper.sources import default_folder, download, source

    folder = default_folder() if to is None else to
    path = download(name, folder)
    about = source(name)
    typer.echo(f"{path} is complete. {about.citation}. Licence: {about.licence}.")
    if to is not None and to != default_folder():
        typer.echo(f"Set CORTX_DATA={to} so that it is found.")


def _study(data: Data, out: Path | None, quick: bool, device: str, workers: int | None) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    from cortx.paper import tables
    from cortx.paper.grid import grid
    from cortx.paper.records import cores
    from cortx.paper.run import check_libraries, run_study, write_results

    out = Path(f"paper-{data}{'-quick' if quick else ''}") if out is None else out
    workers = min(MOST_WORKERS, cores()) if workers is None else workers
    where = _device(device)
    check_libraries(data, quick=quick)
    records = run_study(data, out / "work", quick=quick, device=where, workers=workers)
    written = write_results(records, data, out, quick=quick)
    console = Console()
    for metric in ("l2", "rank_accuracy"):
        setting = grid(data, quick=quick).settings[0]
        console.print(Markdown(tables.labels_table(records, data, setting, metric, quick=quick)))
    console.print(f"Wrote {', '.join(str(path) for path in written)}", soft_wrap=True)


def _device(name: str) -> str:
    import torch

    from cortx.explainer.explainer import usable_device

    return usable_device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
