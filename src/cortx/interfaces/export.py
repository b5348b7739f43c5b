"""`cortx export`: an explainer as a folder that runs with neither torch nor the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cortx.interfaces.files import read_file


def export(
    artifact: Annotated[
        Path,
        typer.Argument(
            metavar="EXPLAINER",
            help="The folder that [bold]cortx fit[/bold] or TreeExplainer.save wrote.",
            show_default=False,
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write it.", show_default=False)],
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="Weights in int8: smaller, often faster, less exact, without bounds; not for trees."
        ),
    ] = False,
    confidence: Annotated[float, typer.Option(help="Of the bounds that a calibrated explainer takes along.")] = 0.9,
    table: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Rows on which the loss of int8 is measured; by default those that the explainer keeps.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write an explainer as an ONNX graph that needs neither torch nor the model."""
    from cortx.explainer.artifact import load
    from cortx.portable import load as load_portable

    rows = None if table is None else read_file(table)
    path = load(artifact, device="cpu").to_onnx(folder, confidence=confidence, int8=int8, rows=rows)
    facts = load_portable(path).facts
    typer.echo(f"wrote {path}; read it with cortx.portable.load({str(path)!r})")
    if facts.int8 is not None:
        typer.echo(
            f"int8 differs from float32 by {facts.int8['relative_error']:.2%} of the values' size "
            f"({facts.int8['rows']} rows); bounds hold for float32 only and are left out"
        )
    elif facts.exact is not None:
        typer.echo("exact: bounds at any confidence are the values themselves")
    elif facts.calibration is None:
        typer.echo("without bounds: the explainer is not calibrated")
    else:
        typer.echo(f"with bounds at {facts.confidence:.0%}, and at any up to {facts.calibration.most_confident:.1%}")
