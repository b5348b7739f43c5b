"""The command line. Heavy libraries are imported inside the commands, so that ``cortx --help`` answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cortx import __version__
from cortx.errors import CortxError, InputError
from cortx.interfaces.files import TABLE_ENDINGS, load_model, read_file, replace_whole, write_file

if TYPE_CHECKING:
    from cortx.explainer.explainer import CoRTX
    from cortx.explanation import Explanation
    from cortx.games.game import Game

OutputName = Literal["auto", "probability", "log-odds", "raw"]
RecipeChoice = Literal["default", "quick", "paper"]
Unseen = Literal["error", "ignore"]
Frame = Literal["numpy", "pandas", "polars", "pyarrow"]

app = typer.Typer(
    name="cortx",
    help="Explain every prediction of any tabular model in one forward pass.\n\n"
    "Start with [bold]cortx demo[/bold], then [bold]fit[/bold] an explainer for your own model, "
    "[bold]explain[/bold] tables with it, and [bold]evaluate[/bold] how close it is.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

MODEL_HELP = (
    "The model: [bold]package.module:object[/bold] (imported with the current folder on the path), or the path of an "
    "ONNX file. The object is a fitted scikit-learn, XGBoost or LightGBM model, a torch module, or a function."
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
    target: Annotated[
        str | None, typer.Option(help="The class to explain (its label or number), or 'all'.", show_default=False)
    ] = None,
    output: Annotated[
        OutputName, typer.Option(help="What is explained; auto is probability for classifiers, else raw.")
    ] = "auto",
    reference: Annotated[
        str,
        typer.Option(
            help="What replaces an absent feature: 'table' (mean and mode of TABLE), 'zero', or a FILE "
            "(a single row stands for itself, several for their mean and mode)."
        ),
    ] = "table",
    background: Annotated[
        Path | None,
        typer.Option(
            help="Instead of a reference: a FILE of rows to average over. Costs so many times more.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(help="Columns explained as one: 'name=col1,col2'. Repeat for more groups.", show_default=False),
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(help="A numeric column that holds categories. Repeat for more.", show_default=False),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="A column the model does not take, such as the label. Repeat for more.", show_default=False),
    ] = None,
    recipe: Annotated[
        RecipeChoice, typer.Option(help="default: best quality; quick: a first look; paper: as published.")
    ] = "default",
    heads: Annotated[str, typer.Option(help="'attribution', or 'attribution,ranking'.")] = "attribution",
    labels: Annotated[
        int | None,
        typer.Option(help="Rows to label; by default 5% of the table, between 200 and 2,000.", show_default=False),
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
) -> None:
    """Fit an explainer for a model, and save it as a folder.

    TABLE holds rows like those the model was trained on (their labels are not needed; --drop that column).
    A few rows are labelled with Shapley values by asking the model many times; the explainer learns from these.

    [bold]Example[/bold]

    cortx fit scoring:model customers.csv --drop default --output probability --out credit.cortx
    """
    # What is cheap to check comes first: torch is imported only then.
    _log_to_stderr()
    _check_target_folder(out)
    groups = _groups(group or [])
    loaded = load_model(model)
    rows = _drop(read_file(table), drop or [], table)
    from cortx.explainer.explainer import CoRTX

    game = _game(loaded, rows, reference, background, drop or [], output=output, target=_target(target),
                 groups=groups, categorical=categorical or [], frame=frame)  # fmt: skip
    explainer = CoRTX(recipe, heads=tuple(part.strip() for part in heads.split(",")), unseen=unseen, seed=seed)
    explainer.fit(game, rows, n_labels=labels, checkpoint=checkpoint)
    explainer.save(out)
    _show_fit(explainer, out, len(rows))


@app.command()
def explain(
    explainer: ExplainerArgument,
    table: TableArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .csv or .parquet file to write.", show_default=False)],
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
) -> None:
    """Explain every row of a table.

    Writes one column for each feature, base_value, and model_output where it is known: base_value plus the
    attributions is then model_output. Columns that the explainer does not know are left aside.

    [bold]Example[/bold]

    cortx explain credit.cortx new.parquet --model scoring:model --out why.csv --plot why.png
    """
    from cortx.explainer.artifact import load

    for path, allowed in ((out, TABLE_ENDINGS), (plot, (".png",))):
        if path is not None and path.suffix.lower() not in allowed:
            raise InputError(f"{path} must end in {' or '.join(allowed)}")
    if model is not None and outputs:
        raise InputError("--model and --outputs both give the model's output; use one of them")
    loaded = load(explainer, None if model is None else load_model(model))
    rows = read_file(table)
    known = _output_columns(rows, outputs, table)
    explanation = loaded.explain(_known_columns(rows, loaded), outputs=known)
    write_file(explanation_frame(explanation, top), out)
    wrote = str(out)
    if plot is not None:
        _plot(explanation, plot)
        wrote += f" and {plot}"
    typer.echo(
        f"Explained {len(explanation):,} rows in {explanation.seconds:.3g} s "
        f"({_microseconds(explanation)} per row, {explanation.evaluations:,} model evaluations) into {wrote}.",
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
        str, typer.Option(help="auto (exact where the budget allows, else kernel), exact, kernel, permutation.")
    ] = "auto",
    budget: Annotated[
        int | None, typer.Option(help="Model evaluations for each row; by default 2,048.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses the rows and the draws of the labels.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the numbers as JSON.", show_default=False)
    ] = None,
) -> None:
    """Measure an explainer against fresh Shapley labels of random rows.

    Give rows that the fit did not see: on its own rows an explainer looks better than it is.

    [bold]Example[/bold]

    cortx evaluate credit.cortx holdout.csv --model scoring:model --rows 500 --json quality.json
    """
    import numpy as np

    from cortx.estimators.shapley import shapley
    from cortx.explainer.artifact import load
    from cortx.explanation import take_rows
    from cortx.metrics import summary, throughput
    from cortx.seeding import numpy_generator

    _log_to_stderr()
    loaded = load(explainer, load_model(model))
    game = loaded.game
    assert game is not None
    every = _known_columns(read_file(table), loaded)
    count = min(rows, len(every))
    chosen = np.sort(numpy_generator(seed, "rows to evaluate").choice(len(every), size=count, replace=False))
    some = take_rows(every, chosen)
    truth = shapley(game, some, method, budget=budget, views=0, seed=seed)
    predicted = loaded.explain(some)
    scores = summary(predicted, truth)
    errors = np.asarray(truth.error_std, dtype=np.float64)
    noise = float(np.sqrt(np.square(errors).reshape(count, -1).sum(axis=1)).mean())
    seconds = 1 / throughput(loaded.explain, some)
    result = {
        "rows": count,
        "method": truth.method,
        **scores,
        "label_norm": float(np.linalg.norm(truth.values, axis=1).mean()),
        "label_standard_error": noise,
        "label_evaluations": truth.evaluations,
        "label_seconds_per_row": truth.seconds / count,
        "explain_evaluations": predicted.evaluations,
        "explain_seconds_per_row": seconds,
    }
    _show_evaluation(result, explainer)
    if json_file is not None:
        import json

        replace_whole(json_file, lambda path: path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8"))


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


# Columns -----------------------------------------------------------------------------------------------------


def _drop(rows: Any, columns: list[str], path: Path) -> Any:
    missing = [name for name in columns if name not in rows.columns]
    if missing:
        raise InputError(f"--drop {missing[0]}: {path} has no such column; it has {', '.join(map(str, rows.columns))}")
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

    missing = [name for name in columns if name not in rows.columns]
    if missing:
        raise InputError(
            f"--outputs {missing[0]}: {path} has no such column; it has {', '.join(map(str, rows.columns))}"
        )
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
    categorical: list[str],
    frame: Frame | None,
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
    return Game(model, **absent, output=output, target=target, players=groups, categorical=categorical, frame=frame)


def _without(rows: Any, columns: list[str]) -> Any:
    return _keep(rows, [name for name in rows.columns if name not in columns])


def _target(text: str | None) -> int | str | None:
    if text is not None and text.lstrip("-").isdigit() and str(int(text)) == text:
        return int(text)
    return text


def _groups(texts: list[str]) -> dict[str, list[str]] | None:
    groups: dict[str, list[str]] = {}
    for text in texts:
        name, equals, columns = text.partition("=")
        members = [column.strip() for column in columns.split(",") if column.strip()]
        if not (name.strip() and equals and members):
            raise InputError(f"--group must look like 'name=col1,col2', got {text!r}")
        if name.strip() in groups:
            raise InputError(f"--group {name.strip()!r} is given twice; list all its columns in one")
        groups[name.strip()] = members
    return groups or None


def _check_target_folder(out: Path) -> None:
    """Says at once what `save` would refuse after a long fit."""
    if out.exists() and not (out / "manifest.json").is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"--out {out} exists and is not a cortx explainer; choose another folder, or remove it")


# What is shown -----------------------------------------------------------------------------------------------


def explanation_frame(explanation: Explanation, top: int | None = None) -> Any:
    """One row for each explained row: all attributions, or the `top` strongest features by name and value."""
    import narwhals as nw
    import numpy as np

    frame = nw.from_native(explanation.to_frame(), eager_only=True)
    values = explanation.values.reshape(*explanation.values.shape[:2], -1)
    n_outputs = values.shape[2]
    suffixes = [""] if explanation.values.ndim == 2 else [f":{name}" for name in explanation.output_names or ()]
    suffixes = suffixes or [f":{k}" for k in range(n_outputs)]
    columns: dict[str, Any] = {}
    if top is not None:
        names = np.array(explanation.feature_names)
        for k, suffix in enumerate(suffixes):
            order = np.argsort(-np.abs(values[:, :, k]), axis=1, kind="stable")[:, :top]
            for place in range(order.shape[1]):
                columns[f"feature_{place + 1}{suffix}"] = names[order[:, place]].tolist()
                columns[f"value_{place + 1}{suffix}"] = values[np.arange(len(values)), order[:, place], k]
            columns[f"base_value{suffix}"] = frame[f"base_value{suffix}"].to_numpy()
    else:
        columns = {name: frame[name].to_numpy() for name in frame.columns}
    if explanation.outputs is not None:
        known = explanation.outputs.reshape(len(values), -1)
        columns |= {f"model_output{suffix}": known[:, k] for k, suffix in enumerate(suffixes)}
    return nw.from_dict(columns, backend=frame.implementation).to_native()


def _plot(explanation: Explanation, path: Path) -> None:
    from cortx.interfaces import plots

    draw = plots.waterfall if len(explanation) == 1 else plots.summary
    replace_whole(path, lambda temporary: draw(explanation, path=temporary))


def _log_to_stderr() -> None:
    """Where no progress bar is shown, the steps of long work are written as lines."""
    if sys.stderr.isatty():
        return
    import logging

    logger = logging.getLogger("cortx")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _microseconds(explanation: Explanation) -> str:
    return f"{1e6 * explanation.seconds / max(1, len(explanation)):,.0f} µs"


def _table(title: str, *columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left")
    return table


def _show_fit(explainer: CoRTX, out: Path, n_rows: int) -> None:
    from rich.console import Console

    costs, quality = explainer.costs_, explainer.quality_
    table = _table("What the fit cost", "stage", "rows", "model evaluations", "seconds")
    for stage, cost in costs.items():
        if isinstance(cost, dict):
            name = f"labels ({cost['source']})" if stage == "labels" else stage
            table.add_row(name, f"{cost['rows']:,}", f"{cost['evaluations']:,}", f"{cost['seconds']:.1f}")
    seconds = sum(cost["seconds"] for cost in costs.values() if isinstance(cost, dict))
    table.add_row("total", f"{n_rows:,}", f"{costs['total_evaluations']:,}", f"{seconds:.1f}", style="bold")
    console = Console()
    console.print(table)
    share = quality["l2"] / quality["label_norm"] if quality["label_norm"] else float("nan")
    console.print(
        f"On {quality['rows']:,.0f} labels kept aside: mean l2 distance {quality['l2']:.3g} "
        f"({share:.1%} of the labels' norm), Rank ACC {quality['rank_accuracy']:.3f}.",
        highlight=False,
    )
    console.print(f"Saved to {out}.", highlight=False, soft_wrap=True)


EVALUATION_WORDS = {
    "l2": "mean l2 distance to the labels",
    "relative_l2": "the same over the labels' norm",
    "squared_l2": "mean squared distance",
    "rank_accuracy": "Rank ACC",
    "kendall_tau": "Kendall's tau",
    "top_3_agreement": "agreement on the 3 strongest",
    "label_standard_error": "standard error of the labels (l2)",
}


def _show_evaluation(result: dict[str, Any], explainer: Path) -> None:
    from rich.console import Console

    console = Console()
    table = _table(f"{explainer} on {result['rows']:,} rows, labels: {result['method']}", "measure", "value")
    for key, words in EVALUATION_WORDS.items():
        table.add_row(words, f"{result[key]:.4g}")
    console.print(table)
    rows = result["rows"]
    cost = _table("What a row costs", "way", "model evaluations", "microseconds")
    for way, key in ((f"labels ({result['method']})", "label"), ("explainer", "explain")):
        seconds = result[f"{key}_seconds_per_row"]
        cost.add_row(way, f"{result[f'{key}_evaluations'] / rows:,.4g}", f"{1e6 * seconds:,.0f}")
    console.print(cost)
    if result["label_standard_error"] > 0.5 * result["l2"]:
        console.print("The labels' own error is a large part of the distance; raise --budget for a sharper look.")


if __name__ == "__main__":
    main()
