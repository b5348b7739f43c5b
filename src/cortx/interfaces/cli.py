"""The command line. Heavy libraries are imported inside the commands, so that ``cortx --help`` answers at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cortx import __version__
from cortx.errors import ArtifactError, CortxError, InputError
from cortx.interfaces import paper
from cortx.interfaces.explain_folder import explain_folder
from cortx.interfaces.export import export
from cortx.interfaces.files import TABLE_ENDINGS, beside, read_file, stored_columns, write_file
from cortx.interfaces.label import label
from cortx.interfaces.options import (
    AddressOption,
    App,
    BackgroundOption,
    CallRateOption,
    CallRowsOption,
    CallsOption,
    CallTimeoutOption,
    CategoricalOption,
    DeviceOption,
    DropOption,
    EngineName,
    Frame,
    GpusOption,
    GroupOption,
    OutputName,
    OutputOption,
    RetriesOption,
    TargetOption,
    ThreadsOption,
    WorkersOption,
    log_to_stderr,
    read_calls,
    read_categorical,
    read_device,
    read_groups,
    read_target,
)
from cortx.interfaces.server.command import serve
from cortx.interfaces.show import show_evaluation, show_fit
from cortx.interfaces.wording import Group
from cortx.named import load_model
from cortx.storage import local_path, replace_whole

if TYPE_CHECKING:
    from cortx.explainer.explainer import CoRTX
    from cortx.explanation import Explanation
    from cortx.games.calls import Calls
    from cortx.games.game import Game

RecipeChoice = Literal["default", "quick", "thorough", "paper"]
Unseen = Literal["error", "ignore"]
Direction = Literal["up", "down", "both"]

app = App(
    name="cortx",
    cls=Group,
    help="Explain every prediction of any tabular model in one forward pass.\n\n"
    "Start with [bold]cortx demo[/bold], then [bold]fit[/bold] an explainer for your own model, "
    "[bold]explain[/bold] tables with it, [bold]evaluate[/bold] how close it is, and [bold]serve[/bold] it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(paper.app)

MODEL_HELP = (
    "The model: [bold]package.module:object[/bold] (an installed module, or one in the current folder), or the path of "
    "an ONNX file. The object is a fitted scikit-learn, XGBoost, LightGBM or CatBoost model, a torch module, or a "
    "function."
)
TABLE_HELP = "A CSV (.csv, .csv.gz) or Parquet (.parquet) file."
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
TableArgument = Annotated[Path, typer.Argument(metavar="TABLE", help=TABLE_HELP, show_default=False)]
ExplainerArgument = Annotated[
    Path, typer.Argument(metavar="EXPLAINER", help="The folder that [bold]cortx fit[/bold] wrote.", show_default=False)
]


def main() -> None:
    """Runs the command line; what cortx refuses is one message on stderr and exit code 2."""
    try:
        app()
    except CortxError as error:
        from rich.console import Console
        from rich.text import Text

        message = Text.assemble(("error: ", "bold red"), (str(error), "red"))
        Console(stderr=True).print(message, soft_wrap=True)
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cortx {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


# Commands ----------------------------------------------------------------------------------------------------


@app.command()
def fit(
    model: ModelArgument,
    table: TableArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write the explainer to.", show_default=False)],
    target: TargetOption = None,
    output: OutputOption = "auto",
    reference: Annotated[
        str,
        typer.Option(
            help="What replaces an absent feature: 'table' (mean and mode of TABLE), 'zero', or a FILE "
            "(a single row stands for itself, several for their mean and mode)."
        ),
    ] = "table",
    background: BackgroundOption = None,
    group: GroupOption = None,
    categorical: CategoricalOption = None,
    drop: DropOption = None,
    recipe: Annotated[
        RecipeChoice,
        typer.Option(help="default: good in minutes; quick: a first look; thorough: for a GPU; paper: as published."),
    ] = "default",
    heads: Annotated[str, typer.Option(help="'attribution', or 'attribution,ranking'.")] = "attribution",
    budget: Annotated[
        int | None,
        typer.Option(
            help="Model evaluations that the whole fit may spend; by default 4 for each row of TABLE, between "
            "50,000 and a million (times the rows of --background). Some of them calibrate the bounds of "
            "explain --confidence.",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        int | None,
        typer.Option(help="Instead of --budget: rows to label, all to learn from, without bounds.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed, table and model give the same explainer.")] = 0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A folder to keep progress in; run again after a kill to go on.", show_default=False),
    ] = None,
    unseen: Annotated[
        Unseen, typer.Option(help="A category that TABLE does not have, when explaining: refuse it or ignore it.")
    ] = "error",
    frame: Annotated[
        Frame | None,
        typer.Option(help="The kind of table the model takes; by default the kind that was read.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the learning curve, if there is one, as .png.", show_default=False)
    ] = None,
    labels_from: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --budget: the folder that [bold]cortx label[/bold] wrote. TABLE may then be a folder of "
            "Parquet files of any size; what is explained, and against which reference, is what the labels say.",
            show_default=False,
        ),
    ] = None,
    calibration_share: Annotated[
        float | None,
        typer.Option(
            help="Share of --labels-from that teaches nothing and calibrates the bounds of explain --confidence; 0 for "
            "none.",
            min=0.0,
            max=1.0,
            show_default="0.15",
        ),
    ] = None,
    threads: ThreadsOption = None,
    device: DeviceOption = None,
    calls: CallsOption = None,
    rows_per_call: CallRowsOption = None,
    calls_per_second: CallRateOption = None,
    retries: RetriesOption = None,
    call_timeout: CallTimeoutOption = None,
) -> None:
    """Fit an explainer for a model, and save it as a folder.

    TABLE holds rows like those the model was trained on (their labels are not needed; --drop that column).
    The model is asked about masked rows, --budget times at most; a student learns the model from its answers, and the
    explainer learns from the student. The plan says before the fit how the evaluations will be spent.

    [bold]Example[/bold]

    cortx fit scoring:model customers.csv --drop default --budget 50000 --out credit.cortx

    cortx fit remote:predict customers.csv --budget 20000 --calls 8 --calls-per-second 20 --retries 5
    --checkpoint kept/ --out credit.cortx

    torchrun --nproc-per-node 8 -m cortx.interfaces.cli fit scoring:model train/ --labels-from labels/
    --out credit.cortx
    """
    # What is cheap to check comes first: torch is imported only then.
    if budget is not None and labels is not None:
        raise InputError("--budget and --labels both say what to learn from; use one of them")
    if calibration_share is not None and labels_from is None:
        raise InputError("--calibration-share is a share of given labels; give --labels-from too")
    _check_endings((plot, (".png",)))
    if os.environ.get("RANK", "0") == "0":  # under torchrun one process speaks for all
        log_to_stderr()
    _check_target_folder(out)
    how = read_calls(calls, rows_per_call, calls_per_second, retries, call_timeout)
    if reference not in ("table", "zero"):
        reference = str(local_path(reference, "--reference"))
    chosen = tuple(part.strip() for part in heads.split(","))
    if labels_from is not None:
        told = {"--budget": budget, "--labels": labels, "--background": background, "--group": group, "--drop": drop,
                "--categorical": categorical, "--target": target, "--frame": frame, "--plot": plot,
                "--reference": None if reference == "table" else reference,
                "--output": None if output == "auto" else output}  # fmt: skip
        given = [option for option, value in told.items() if value]
        if budget:
            raise InputError(
                f"--budget is for labels that are made here; those in {labels_from} are paid for, and the log says "
                "what pre-training asks of the model; leave it out"
            )
        if given:
            raise InputError(f"{given[0]} is decided by the labels in {labels_from}; leave it out")
        from cortx.interfaces.fit_folder import fit_folder

        fit_folder(
            model, table, out, labels=labels_from, recipe=recipe, heads=chosen, unseen=unseen, seed=seed,
            checkpoint=checkpoint, calibration_share=calibration_share, threads=threads, device=read_device(device),
            calls=how,
        )  # fmt: skip
        return
    if table.is_dir():
        raise InputError(
            f"{table} is a folder; make labels of it first (cortx label --data {table} ...) and fit with "
            "--labels-from, or give a file"
        )
    groups, place = read_groups(group or []), read_device(device)
    loaded = load_model(model)
    rows = _drop(read_file(table), drop or [], table)
    from cortx.explainer.explainer import CoRTX

    game = _game(loaded, rows, reference, background, drop or [], output=output, target=read_target(target),
                 groups=groups, categorical=read_categorical(categorical), frame=frame, calls=how)  # fmt: skip
    explainer = CoRTX(recipe, heads=chosen, unseen=unseen, seed=seed, threads=threads, device=place)
    if labels is None and sys.stderr.isatty():  # elsewhere the log has it
        typer.echo(str(explainer.plan(game, rows, budget)), err=True)
    explainer.fit(game, rows, budget=budget, n_labels=labels, checkpoint=checkpoint)
    explainer.save(out)
    show_fit(explainer, out, rows)
    if plot is not None:
        _plot_curve(explainer, plot)


@app.command()
def explain(
    explainer: ExplainerArgument,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help=f"{TABLE_HELP[:-1]}, or of any size: a folder of Parquet files, or a URI such as s3://...",
            show_default=False,
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            help="The .csv or .parquet file to write (--reasons: or .json); the folder, where TABLE is one.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model the explainer was fitted for; with it (one evaluation a row) attributions add up.",
            show_default=False,
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead of --model: the column of TABLE with the model's output. Repeat for several outputs.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Write only the K strongest features of each row, by name.", min=1, show_default=False),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Also draw a .png: a waterfall of one row, or a summary of many.", show_default=False),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="Also write bounds that hold for this share of rows, such as 0.9.", show_default=False),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Refine rows with the model until their error bound is this small.", show_default=False),
    ] = None,
    row_budget: Annotated[
        int | None,
        typer.Option(help="Model evaluations that --tolerance may spend on one row.", min=1, show_default=False),
    ] = None,
    reasons: Annotated[
        int | None,
        typer.Option(help="Write the K strongest reasons of each row, one a line.", min=1, show_default=False),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="A feature that --reasons must not name. Repeat for more.", show_default=False),
    ] = None,
    direction: Annotated[
        Direction | None,
        typer.Option(help="Reasons that raise the output (up), lower it (down), or both.", show_default="both"),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="The output that --reasons are about, if there are several.", show_default=False)
    ] = None,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="Of a folder: who does the work, by default the cores of this machine.", show_default=False),
    ] = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
    gpus_per_worker: GpusOption = 0.0,
    threads: ThreadsOption = None,
    device: DeviceOption = None,
    calls: CallsOption = None,
    rows_per_call: CallRowsOption = None,
    calls_per_second: CallRateOption = None,
    retries: RetriesOption = None,
    call_timeout: CallTimeoutOption = None,
) -> None:
    """Explain every row of a table.

    All columns of TABLE stay, also those that the model does not take. Added are attribution_NAME of each feature,
    base_value, and model_output where it is known: base_value plus the attributions is then model_output.
    --confidence adds lower_NAME and upper_NAME of every attribution, and error_bound of the row.

    A folder of Parquet files becomes a folder of Parquet files with the same columns; rows keep their order. Any number
    of rows needs the same memory. Stopped, the same command goes on.

    [bold]Example[/bold]

    cortx explain credit.cortx new.parquet --model scoring:model --out why.csv --plot why.png

    cortx explain credit.cortx new.parquet --model scoring:model --out why.json --reasons 3 --confidence 0.9

    cortx explain credit.cortx warehouse/ --outputs score --out explained/ --engine ray --address auto
    """
    if table.startswith("file:"):
        table = str(local_path(table, "TABLE"))
    if engine is not None or "://" in table or Path(table).is_dir():
        for option, value in (
            ("--plot", plot), ("--tolerance", tolerance), ("--row-budget", row_budget), ("--reasons", reasons),
            ("--exclude", exclude), ("--direction", direction), ("--output", output), ("--threads", threads),
            ("--device", device), ("--calls", calls), ("--rows-per-call", rows_per_call),
            ("--calls-per-second", calls_per_second), ("--retries", retries), ("--call-timeout", call_timeout),
        ):  # fmt: skip
            if value not in (None, []):
                raise InputError(f"{option} is for a single file; leave it out, or explain a file without --engine")
        explain_folder(
            explainer, table, out, model=model, outputs=outputs, confidence=confidence, top=top, engine=engine,
            workers=workers, address=address, gpus_per_worker=gpus_per_worker,
        )  # fmt: skip
        return
    if workers is not None or address is not None or gpus_per_worker:
        raise InputError("--workers, --address and --gpus-per-worker are for folders; give --engine too")
    _explain_file(
        explainer, local_path(table, "TABLE"), local_path(out, "--out"), model, outputs, top, plot, confidence,
        tolerance, row_budget, reasons, exclude, direction, output, threads, device,
        read_calls(calls, rows_per_call, calls_per_second, retries, call_timeout),
    )  # fmt: skip


def _explain_file(
    explainer: Path,
    table: Path,
    out: Path,
    model: str | None,
    outputs: list[str] | None,
    top: int | None,
    plot: Path | None,
    confidence: float | None,
    tolerance: float | None,
    row_budget: int | None,
    reasons: int | None,
    exclude: list[str] | None,
    direction: Direction | None,
    output: str | None,
    threads: int | None,
    device: str | None,
    calls: Calls | None,
) -> None:
    """A table that fits into memory, into one file."""
    from cortx.distributed.kernel import ExplainSettings, columns_of
    from cortx.explained import explained_columns, refuse_taken
    from cortx.explainer.artifact import load

    _check_endings((out, TABLE_ENDINGS if reasons is None else (*TABLE_ENDINGS, ".json")), (plot, (".png",)))
    if model is not None and outputs:
        raise InputError("--model and --outputs both give the model's output; use one of them")
    _check_explain_options(top, reasons, tolerance, row_budget, exclude, direction, output)
    known_model = None if model is None else load_model(model)
    loaded = load(explainer, known_model, device=device, calls=calls).set_params(threads=threads)
    rows = read_file(table)
    known = _output_columns(rows, outputs, table)
    stored = stored_columns(table, rows, out)
    if reasons is None:
        settings = ExplainSettings(confidence=0.9 if tolerance is not None else confidence, top=top)
        added = columns_of(loaded, settings, known is not None or model is not None)
        refuse_taken((column.name for column in added), map(str, stored.columns))
    if reasons is not None and confidence is None and (known is not None or model is not None):
        # Reasons say how sure they are, if anybody knows.
        confidence = None if loaded.fitted.calibration is None else min(0.9, loaded.calibration.most_confident)
    explanation = loaded.explain(
        _known_columns(rows, loaded), known, confidence=confidence, tolerance=tolerance, row_budget=row_budget
    )
    if reasons is None:
        write_file(beside(stored, explained_columns(explanation, top)), out)
    else:
        codes = explanation.reason_codes(reasons, exclude or (), direction or "both", output)
        if out.suffix.lower() == ".json":
            replace_whole(out, lambda path: path.write_text(codes.to_json() + "\n", encoding="utf-8"))
        else:
            write_file(codes.to_frame(), out)
    wrote = str(out)
    if plot is not None:
        _plot(explanation, plot)
        wrote += f" and {plot}"
    typer.echo(
        f"Explained {len(explanation):,} rows in {explanation.seconds:.3g} s "
        f"({_microseconds(explanation)} per row, {explanation.evaluations:,} model evaluations) into {wrote}."
        + _refined_words(explanation, tolerance),
        err=True,
    )
    if explanation.outputs is None:
        typer.echo("The model's outputs were not given, so the explainer guessed them (--model, --outputs).", err=True)


@app.command()
def evaluate(
    explainer: ExplainerArgument,
    table: TableArgument,
    model: Annotated[str, typer.Option(help=MODEL_HELP, show_default=False)],
    rows: Annotated[int, typer.Option(help="Random rows to label afresh.", min=1)] = 200,
    method: Annotated[
        str,
        typer.Option(
            help="auto (tree where the model allows it, exact where the budget does, else odd), tree, exact, odd, "
            "kernel, permutation."
        ),
    ] = "auto",
    row_budget: Annotated[
        int | None,
        typer.Option(
            help="Model evaluations for each of --rows, at most; by default 2,048. Less for paid models, such as 66.",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="The bounds to check, if the explainer is calibrated.")] = 0.9,
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice",
            help="A column of TABLE to report by, also one that the model does not take. Repeat for more.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses the rows and the draws of the labels.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the numbers as JSON.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw coverage and errors as .png.", show_default=False)
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Leave with exit code 1 unless the verdict is 'fits'.")
    ] = False,
    device: DeviceOption = None,
    calls: CallsOption = None,
    rows_per_call: CallRowsOption = None,
    calls_per_second: CallRateOption = None,
    retries: RetriesOption = None,
    call_timeout: CallTimeoutOption = None,
) -> None:
    """Measure an explainer on fresh rows, and say whether it still fits the model and the data.

    Give rows that the fit did not see, as they come today. All are compared with the training table; random ones
    are labelled with Shapley values and compared with what the explainer says of them. A model that changed, columns
    that drifted, bounds that fail and errors that grew are called out. Where labels could not have shown a failure, the
    verdict is "too few rows" or "not judged", with what to do.

    [bold]Example[/bold]

    cortx evaluate credit.cortx holdout.csv --model scoring:model --slice region --plot quality.png --strict
    """
    from cortx.explainer.artifact import load
    from cortx.games.game import Game

    _check_endings((plot, (".png",)))
    log_to_stderr()
    # Without its model: another one is to be called out, not refused.
    loaded = load(explainer, device=device)
    how = read_calls(calls, rows_per_call, calls_per_second, retries, call_timeout)
    game = Game.from_spec(load_model(model), loaded.fitted.spec, calls=how)
    every = read_file(table)
    parts = {name: every[name].to_numpy() for name in _present(every, slices or [], "--slice", table)}
    report = loaded.evaluate(
        _known_columns(every, loaded), game=game, rows=rows, method=method, row_budget=row_budget,
        confidence=confidence, slices=parts, seed=seed,
    )  # fmt: skip
    show_evaluation(report, explainer)
    if json_file is not None:
        import json

        text = json.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        replace_whole(json_file, lambda path: path.write_text(text, encoding="utf-8"))
    if plot is not None:
        from cortx.interfaces import plots

        replace_whole(plot, lambda path: plots.quality(report, title=explainer.name, path=path))
    if strict and not report.fits:
        raise typer.Exit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the pictures.")] = Path("demo-output"),
    fast: Annotated[bool, typer.Option("--fast", help="Fewer rows and steps: seconds instead of a minute.")] = False,
) -> None:
    """Watch two models get explained, beside shap, with pictures.

    Uses the breast cancer data inside scikit-learn: numbers for a neural network, then text categories and missing
    values for a forest. Needs the extra: pip install 'cortx-explain[demo]'.

    [bold]Example[/bold]

    cortx demo --out demo-output
    """
    from cortx.interfaces.demo import run

    run(out, fast=fast)


app.command()(label)
app.command()(export)
app.command()(serve)


# Columns -----------------------------------------------------------------------------------------------------


def _present(rows: Any, columns: list[str], option: str, path: Path) -> list[str]:
    """The columns, all of which the table must have."""
    for name in columns:
        if name not in rows.columns:
            have = ", ".join(map(str, rows.columns))
            raise InputError(f"{option} {name}: {path} has no such column; it has {have}")
    return columns


def _drop(rows: Any, columns: list[str], path: Path) -> Any:
    _present(rows, columns, "--drop", path)
    return _keep(rows, [name for name in rows.columns if name not in columns])


def _keep(rows: Any, columns: list[Any]) -> Any:
    return rows[columns]  # pandas and polars agree here


def _known_columns(rows: Any, explainer: CoRTX) -> Any:
    """The explainer's own columns; `explain` says so if one is missing."""
    known = set(explainer.feature_names_in_.tolist())
    return _keep(rows, [name for name in rows.columns if str(name) in known])


def _output_columns(rows: Any, columns: list[str] | None, path: Path) -> Any:
    if not columns:
        return None
    import numpy as np

    _present(rows, columns, "--outputs", path)
    try:
        return np.stack([np.asarray(rows[name].to_numpy(), dtype=np.float64) for name in columns], axis=1)
    except (TypeError, ValueError) as error:
        raise InputError(f"--outputs {', '.join(columns)}: the column must hold numbers ({error})") from error


# Options as the library takes them ---------------------------------------------------------------------------


def _game(
    model: Any,
    rows: Any,
    reference: str,
    background: Path | None,
    drop: list[str],
    *,
    output: OutputName,
    target: int | str | None,
    groups: dict[str, list[str]] | None,
    categorical: list[str] | None,
    frame: Frame | None,
    calls: Calls | None,
) -> Game:
    from cortx.games.game import Game

    absent: dict[str, Any]
    if background is not None:
        if reference != "table":
            raise InputError("--reference and --background both say what replaces an absent feature; use one of them")
        absent = {"background": _without(read_file(background), drop)}
    elif reference == "table":
        absent = {"reference": rows}
    elif reference == "zero":
        absent = {"reference": "zero"}
    elif Path(reference).is_file():
        absent = {"reference": _without(read_file(Path(reference)), drop)}
    else:
        raise InputError(f"--reference must be 'table', 'zero' or a file, and there is no file {reference!r}")
    return Game(
        model, **absent, output=output, target=target, players=groups, categorical=categorical, frame=frame, calls=calls
    )


def _without(rows: Any, columns: list[str]) -> Any:
    return _keep(rows, [name for name in rows.columns if name not in columns])


def _check_endings(*files: tuple[Path | None, tuple[str, ...]]) -> None:
    for path, allowed in files:
        if path is not None and path.suffix.lower() not in allowed:
            raise InputError(f"{path} must end in {' or '.join(allowed)}")


def _check_explain_options(
    top: int | None,
    reasons: int | None,
    tolerance: float | None,
    row_budget: int | None,
    exclude: list[str] | None,
    direction: Direction | None,
    output: str | None,
) -> None:
    """Options that only mean something beside another one."""
    if top is not None and reasons is not None:
        raise InputError("--top and --reasons both choose what is written; use one of them")
    if row_budget is not None and tolerance is None:
        raise InputError("--row-budget limits what --tolerance spends; give --tolerance too")
    for option, value in (("--exclude", exclude), ("--direction", direction), ("--output", output)):
        if value and reasons is None:
            raise InputError(f"{option} belongs to reason codes; give --reasons K too")


def _check_target_folder(out: Path) -> None:
    """Says at once what `save` would refuse after a long fit."""
    from cortx.explainer.generations import EXPLAINER

    try:
        EXPLAINER.check_target(out)
    except ArtifactError as error:
        raise InputError(f"--out: {error}") from error


# What is shown -----------------------------------------------------------------------------------------------


def _plot(explanation: Explanation, path: Path) -> None:
    from cortx.interfaces import plots

    draw = plots.waterfall if len(explanation) == 1 else plots.summary
    replace_whole(path, lambda temporary: draw(explanation, path=temporary))


def _microseconds(explanation: Explanation) -> str:
    return f"{1e6 * explanation.seconds / max(1, len(explanation)):,.0f} µs"


def _refined_words(explanation: Explanation, tolerance: float | None) -> str:
    """What refining brought, where it was asked for."""
    if tolerance is None or explanation.refined is None or explanation.error_bound is None:
        return ""
    wide = (explanation.error_bound.reshape(len(explanation), -1) > tolerance).any(axis=1)
    refined = f"{int(explanation.refined.sum()):,} of {len(explanation):,} rows were refined"
    return f" {refined}, {int(wide.sum()):,} still exceed the tolerance of {tolerance:g}."


def _plot_curve(explainer: CoRTX, path: Path) -> None:
    from cortx.interfaces import plots

    curve = explainer.learning_curve_
    if len(curve) > 1:
        replace_whole(path, lambda temporary: plots.learning_curve(curve, path=temporary))
    else:
        typer.echo(f"There is no learning curve, so {path} was not written: it takes a larger --budget.", err=True)


if __name__ == "__main__":
    main()
