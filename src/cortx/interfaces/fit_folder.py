"""``cortx fit`` on a folder of Parquet files and a folder of labels: in one process, or in many under torchrun."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cortx.errors import InputError
from cortx.interfaces.show import show_fit
from cortx.named import load_model
from cortx.tables import Schema

if TYPE_CHECKING:
    from cortx.explainer.explainer import CoRTX
    from cortx.games.calls import Calls


def fit_folder(
    model: str | Any,
    folder: str | Path,
    out: str | Path,
    *,
    labels: str | Path,
    recipe: Any = "default",
    heads: tuple[str, ...] = ("attribution",),
    unseen: Any = "error",
    seed: int = 0,
    checkpoint: str | Path | None = None,
    calibration_share: float | None = None,
    device: str = "cpu",
    progress: bool | None = None,
    buffer_rows: int | None = None,
    threads: int | None = None,
    calls: Calls | None = None,
) -> CoRTX:
    """Fits an explainer to the Parquet files of a folder, calibrates its bounds and saves it.

    What is explained (reference, output, class, groups) is what the labels are of. A share of the labels (15%),
    decided by their rows, makes the bounds, and these rows teach nothing, wherever they stand in the folder; with
    `calibration_share` 0 all labels teach, and there are no bounds. A table of no more rows than pre-training takes is
    read into memory, which costs far fewer model evaluations; of a larger one, on a terminal, it says what pre-training
    may cost before it is paid. Under torchrun all processes train together, and the first one saves and reports.
    """
    from cortx.distributed.parquet_rows import BUFFER_ROWS, ParquetRows
    from cortx.explainer.explainer import CoRTX
    from cortx.explainer.label_folder import CALIBRATION_SHARE, LabelFolder
    from cortx.explainer.labels import LEAST_LABELS
    from cortx.explainer.material import stream_words
    from cortx.images import read_like
    from cortx.training.parallel import processes

    share = CALIBRATION_SHARE if calibration_share is None else calibration_share
    if not 0 <= share < 1:
        raise InputError(f"the share of labels for calibration must lie between 0 and 1, got {share}")
    rows = ParquetRows(folder, buffer_rows=buffer_rows or BUFFER_ROWS)
    opened = LabelFolder.open(labels)
    game = opened.game(load_model(model) if isinstance(model, str) else model, calls=calls)
    learned, kept_aside = opened.split(share) if share else (opened.read(), None)
    if kept_aside is not None and len(kept_aside) < LEAST_LABELS:
        raise InputError(
            f"{len(kept_aside)} of the {len(learned) + len(kept_aside):,} labels in {labels} fall to calibration; it "
            f"takes at least {LEAST_LABELS}; label more rows (`cortx label`), raise --calibration-share, or fit "
            "without bounds (--calibration-share 0)"
        )
    explainer = CoRTX(recipe, heads=heads, unseen=unseen, seed=seed, device=device, threads=threads)
    small = len(rows) <= explainer.resolved_recipe().pretrain.most_rows
    table = rows.sample(len(rows), seed, game.schema.names) if small and isinstance(game.schema, Schema) else rows
    with processes(device) as together:
        if together.first and not small and sys.stderr.isatty():  # elsewhere the log has it
            typer.echo(stream_words(game, len(rows), explainer.resolved_recipe()), err=True)
        explainer.fit(game, table, labels=learned, leave_out=kept_aside, checkpoint=checkpoint, progress=progress)
        if together.first:
            explainer.save(out)  # a calibration that is refused must not cost the training
            if kept_aside is not None:
                # A category that only these rows have is one that the explainer refuses.
                read = read_like(kept_aside.data, explainer.fitted.spec.schema, "the labels")
                explainer.calibrate(kept_aside[explainer.seen.explainable(read)]).save(out)
            show_fit(explainer, Path(out), learned.data, n_rows=len(rows))
    return explainer
