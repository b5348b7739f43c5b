"""``cortx paper``: the paper's experiments from one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cortx.errors import InputError
from cortx.interfaces.options import App

if TYPE_CHECKING:
    from cortx.paper.image_study import ImageStudy

Data = Literal["census", "bankruptcy"]
Download = Literal["census", "bankruptcy", "cifar10"]
MOST_WORKERS = 16
LINES = 8
"""Images of a picture that compares methods."""

app = App(
    name="paper",
    help="Rerun the paper's experiments, with its rivals: JSON, tables and figures.\n\n"
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
def cifar10(out: OutOption = None, quick: QuickOption = False, device: DeviceOption = "auto") -> None:
    """CIFAR-10: 256 patches, a ResNet-18 and its surrogate, twelve methods; --quick takes scikit-learn's digits."""
    from rich.console import Console
    from rich.markdown import Markdown

    from cortx.paper import image_report
    from cortx.paper.image_study import FULL, QUICK, ImageStudy
    from cortx.paper.records import write_json, write_text

    out = Path(f"paper-cifar10{'-quick' if quick else ''}") if out is None else out
    # Digits are too small for a GPU to be of use.
    where = "cpu" if quick and device == "auto" else _device(device)
    if not quick and where == "cpu":
        raise InputError(
            "the whole image study needs a GPU, got device cpu; on a CPU run: cortx paper cifar10 --quick, which does "
            "the same in small, with digits"
        )
    image_report.check_libraries(quick=quick)
    study = ImageStudy(out / "work", QUICK if quick else FULL, where)
    study.run()
    records = image_report.records(image_report.facts_of(study))
    written = [write_json(out / "cifar10.json", records), write_text(out / "report.md", image_report.render(records))]
    written += draw_curves(records, out) + draw_comparisons(study, out, LINES // 2 if quick else LINES)
    console = Console()
    console.print(Markdown(image_report.main_table(records)))
    console.print(f"Wrote {', '.join(str(path) for path in written)}", soft_wrap=True)


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
    from cortx.paper.run import check_libraries, run_study, write_results
    from cortx.threads import available_cpus

    out = Path(f"paper-{data}{'-quick' if quick else ''}") if out is None else out
    workers = min(MOST_WORKERS, available_cpus()) if workers is None else workers
    where = _device(device)
    check_libraries(data, quick=quick)
    records = run_study(data, out / "work", quick=quick, device=where, workers=workers)
    written = write_results(records, data, out, quick=quick)
    console = Console()
    for metric in ("l2", "rank_accuracy"):
        setting = grid(data, quick=quick).settings[0]
        console.print(Markdown(tables.labels_table(records, data, setting, metric, quick=quick)))
    console.print(f"Wrote {', '.join(str(path) for path in written)}", soft_wrap=True)


def draw_curves(records: list[dict[str, Any]], out: Path) -> list[Path]:
    """Exclusion and inclusion curves of all methods (fig:exin): top-1 by each judge, log-odds of the classifier."""
    from cortx.interfaces.image_plots import masking_curves
    from cortx.paper.image_report import curves_of
    from cortx.paper.image_study import JUDGES

    wanted = [(judge, "top1") for judge in JUDGES]
    wanted += [("target, ROAD", metric) for metric in ("log_odds", "delta_log_odds")]
    found = []
    for judge, metric in wanted:
        name = f"curves-{judge}-{metric}".lower().replace(", ", "-").replace(" ", "-").replace("_", "-")
        masking_curves(curves_of(records, judge), metric=metric, path=out / f"{name}.png")
        found.append(out / f"{name}.png")
    return found


def draw_comparisons(study: ImageStudy, out: Path, lines: int) -> list[Path]:
    """Images beside the heat maps of all methods, smoothed and raw: fig:cifardemo, fig:cifarapx, fig:baseapx."""
    from cortx.interfaces.image_plots import compare_images
    from cortx.paper.image_report import class_names, explanations
    from cortx.paper.image_study import METHODS

    labels, names = study.data[3], class_names(study.data[4])
    few = tuple(METHODS[method] for method in ("cortx", "rise", "xrai"))
    wanted = {
        "comparison": (slice(0, lines), None),
        "comparison-more": (slice(lines, 2 * lines), None),
        "comparison-rise-xrai": (slice(0, lines), few),
    }
    found = []
    for name, (some, methods) in wanted.items():
        every = explanations(study, some)
        shown = every if methods is None else {method: every[method] for method in methods}
        for smooth in (True, False):
            path = out / f"{name}{'' if smooth else '-raw'}.png"
            compare_images(
                study.images[some], shown, smooth=smooth, names=names, labels=labels[some], path=path,
                players=study.surrogate.image_players,
            )  # fmt: skip
            found.append(path)
    return found


def _device(name: str) -> str:
    import torch

    from cortx.explainer.explainer import usable_device

    return usable_device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
