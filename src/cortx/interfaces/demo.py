"""``cortx demo``: two models explained from start to end, beside shap, with pictures."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table

from cortx.errors import need
from cortx.estimators.shapley import shapley
from cortx.explainer.explainer import CoRTX
from cortx.explanation import Explanation
from cortx.games import Game
from cortx.interfaces import plots
from cortx.metrics import l2_distance, rank_accuracy
from cortx.training.recipe import Recipe, quick_recipe

Array = npt.NDArray[np.float64]
OURS = "CoRTX, one pass"
SLOW_ROWS = 8
"""Test rows for a method that takes long for each."""
BUDGET = 20_000
"""Model evaluations that a fit may spend."""


@dataclass(frozen=True)
class Case:
    """A fitted model, its rows, and the one row that stands for absent features."""

    short: str
    name: str
    model: Any
    train: Any
    test: Any
    reference: Any
    accuracy: float


@dataclass(frozen=True)
class Measured:
    """One line of the table."""

    method: str
    rows: int
    l2: float
    rank_accuracy: float
    microseconds: float
    evaluations: float


def run(folder: Path, *, fast: bool = False, console: Console | None = None) -> Path:
    """Explains both cases, prints one table and writes the pictures; returns their folder."""
    console = console or Console()
    started = perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    results: list[tuple[Case, list[Measured]]] = []
    notes: list[str] = []
    with_shap = _has("shap")
    try:
        cases: tuple[Callable[[], Case], ...] = (numbers_case, categories_case)
        made = [make() for make in cases]
    except ImportError as error:
        raise need("scikit-learn and pandas", "the demo", "demo") from error
    for number, case in enumerate(made, 1):
        console.print(f"\n[bold]{number}. {case.name.capitalize()}[/bold]")
        console.print(
            f"   {len(case.train)} training rows, {case.test.shape[1]} columns, "
            f"accuracy {case.accuracy:.1%} on {len(case.test)} test rows",
            highlight=False,
        )
        if fast:
            case = replace(case, test=case.test.iloc[:20])
        measured, note = _explain(case, fast, with_shap, folder / f"{number}", console)
        results.append((case, measured))
        notes.append(note)
    console.print()
    console.print(_table(results, with_shap))
    for note in notes:
        console.print(note, highlight=False)
    if not with_shap:
        console.print("shap is not installed, so its lines are left out; pip install 'cortx-explain[demo]' adds them.")
    _what_you_see(console, folder, perf_counter() - started)
    return folder


# The two cases -----------------------------------------------------------------------------------------------


def numbers_case() -> Case:
    """Ten measurements of a cell nucleus, all numbers, and a neural network."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data = load_breast_cancer(as_frame=True)
    rows = data.data.iloc[:, :10]
    train, test, y_train, y_test = train_test_split(rows, data.target, random_state=0)
    network = MLPClassifier((32, 32), alpha=1.0, max_iter=500, random_state=0)
    model = make_pipeline(StandardScaler(), network).fit(train, y_train)
    return Case(
        "neural network",
        "a neural network on numbers",
        model,
        train,
        test,
        _typical_row(train),
        model.score(test, y_test),
    )


def categories_case() -> Case:
    """The same patients with four columns as text and some values missing, and a forest behind an encoder."""
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.datasets import load_breast_cancer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    data = load_breast_cancer(as_frame=True)
    words = {
        "size": ("mean area", ["small", "middle", "large"]),
        "texture": ("mean texture", ["fine", "middle", "coarse"]),
        "border": ("mean concave points", ["smooth", "wavy", "notched", "ragged"]),
        "symmetry": ("mean symmetry", ["low", "middle", "high"]),
    }
    numbers = ["mean smoothness", "mean compactness", "mean concavity", "worst fractal dimension", "area error"]
    columns = {
        name: pd.qcut(data.data[column], len(values), labels=values).astype(str)
        for name, (column, values) in words.items()
    }
    rows = pd.DataFrame({**columns, **{name: data.data[name] for name in numbers}})
    generator = np.random.default_rng(0)
    for name in ("border", "mean smoothness", "mean concavity"):
        rows.loc[generator.random(len(rows)) < 0.1, name] = None if name in words else np.nan
    encoder = ColumnTransformer(
        [
            ("text", make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), list(words)),
            ("numbers", SimpleImputer(), numbers),
        ]
    )
    train, test, y_train, y_test = train_test_split(rows, data.target, random_state=0)
    forest = RandomForestClassifier(100, min_samples_leaf=5, random_state=0)
    model = make_pipeline(encoder, forest).fit(train, y_train)
    name = "a forest on text categories and missing values"
    return Case("forest", name, model, train, test, _typical_row(train), model.score(test, y_test))


def _typical_row(train: Any) -> Any:
    """Means of numbers, most frequent words: one row, so that every method plays the same game."""
    import pandas as pd

    return pd.DataFrame(
        {
            name: [train[name].mean() if pd.api.types.is_numeric_dtype(train[name]) else train[name].mode()[0]]
            for name in train.columns
        }
    )


# Methods -----------------------------------------------------------------------------------------------------


def _explain(case: Case, fast: bool, with_shap: bool, stem: Path, console: Console) -> tuple[list[Measured], str]:
    """Fits, explains, compares and draws one case."""
    game = Game(case.model, reference=case.reference, output="probability")
    truth, seconds = _timed(lambda rows: shapley(game, rows, "exact", views=0), case.test)
    explainer = CoRTX(_recipe(fast), seed=0)
    budget = BUDGET // 4 if fast else BUDGET
    for line in str(explainer.plan(game, case.train, budget)).splitlines():
        console.print(f"   {line}", highlight=False, soft_wrap=True)
    started = perf_counter()
    explainer.fit(game, case.train, budget=budget)
    fit_seconds = perf_counter() - started
    console.print(
        f"   fitted once: {explainer.costs_['total_evaluations']:,} model evaluations, {fit_seconds:.1f} s "
        f"(exact labels of all training rows: {_price(game, case.train):,} evaluations)",
        highlight=False,
        soft_wrap=True,
    )
    explanation, own_seconds = _timed(explainer.explain, case.test)
    measured = [
        _measure(OURS, explanation.values, truth, own_seconds, explanation.evaluations),
        _measure("cortx exact", truth.values, truth, seconds, truth.evaluations),
    ]
    if with_shap:
        console.print("   comparing with shap ...")
        measured += _shap_lines(case, truth, fast)
    bounded = _bounded(explainer, case, truth, console)
    plots.waterfall(bounded, row=_telling_row(truth), path=f"{stem}-waterfall.png")
    plots.summary(explanation, path=f"{stem}-summary.png")
    plots.agreement(explanation, truth, path=f"{stem}-agreement.png")
    records = [{"method": line.method, "l2": line.l2, "microseconds": line.microseconds} for line in measured]
    plots.comparison(records, highlight=OURS, title=case.name.capitalize(), path=f"{stem}-comparison.png")
    norm = float(np.linalg.norm(truth.values, axis=1).mean())
    exact = min((line for line in measured[1:] if line.method.endswith("exact")), key=lambda line: line.microseconds)
    even = fit_seconds / max(1e-9, (exact.microseconds - measured[0].microseconds) / 1e6)
    note = (
        f"- {case.name.capitalize()}: CoRTX is off by {measured[0].l2 / norm:.1%} of the exact values' norm. The fit "
        f"took {fit_seconds:.0f} s, as long as '{exact.method}' takes for {even:,.0f} rows: it pays beyond that."
    )
    return measured, note


def _bounded(explainer: CoRTX, case: Case, truth: Explanation, console: Console) -> Explanation:
    """Bounds that the fit has paid for, checked on all test rows, and the reasons of one row."""
    shown = explainer.explain(case.test, confidence=CONFIDENCE)
    assert shown.error_bound is not None
    held = np.linalg.norm(shown.values - truth.values, axis=1) <= shown.error_bound
    console.print(f"   its {CONFIDENCE:.0%} bounds held for {held.sum()} of {len(held)} test rows", highlight=False)
    row = _telling_row(truth)
    console.print(f"   the strongest reasons of row {row}:", highlight=False)
    for line in shown.reason_codes(k=3).text(row).splitlines():
        console.print(f"     {line}", highlight=False, soft_wrap=True)
    return shown


CONFIDENCE = 0.9


def _recipe(fast: bool) -> Recipe:
    """The quick recipe with fewer steps: there are a few hundred rows."""
    recipe = quick_recipe()
    assert recipe.student is not None
    student = replace(recipe.student, steps=50 if fast else 1_000, label_rows=300 if fast else 10_000)
    return replace(
        recipe,
        pretrain=replace(recipe.pretrain, steps=20 if fast else 300),
        attribution=replace(recipe.attribution, steps=100 if fast else 1_000),
        student=student,
    )


def _price(game: Game, rows: Any) -> int:
    """Evaluations that exact labels of rows take: all coalitions of the players that differ from the reference."""
    return int((2.0 ** game.rows(rows).active.sum(axis=1)).sum())


def _shap_lines(case: Case, truth: Explanation, fast: bool) -> list[Measured]:
    """shap's explainers on the same game: the same model, and the reference row as its whole background."""
    import shap

    coder = _Coder(case.train)
    calls = _Counted(lambda matrix: case.model.predict_proba(coder.rows(matrix))[:, 1])
    reference, every = coder.matrix(case.reference), coder.matrix(case.test)
    some = every[: 3 if fast else SLOW_ROWS]

    def explain_with(algorithm: str) -> Callable[[Array], Any]:
        explainer = shap.Explainer(calls, shap.maskers.Independent(reference), algorithm=algorithm)
        # As large as all coalitions of a row: small batches would make shap look slower than it is.
        return lambda rows: explainer(rows, silent=True, batch_size=2 ** every.shape[1]).values

    kernel = shap.KernelExplainer(calls, reference)
    lines = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, explain, rows in (
            ("shap exact", explain_with("exact"), every),
            ("shap kernel", lambda rows: kernel.shap_values(rows, silent=True), some),
            ("shap permutation", explain_with("permutation"), some),
        ):
            values, seconds = _timed(explain, rows, calls)
            lines.append(_measure(name, values, truth, seconds, calls.rows))
    return lines


class _Counted:
    """A function of rows that counts them."""

    def __init__(self, function: Callable[[Array], Array]) -> None:
        self.function = function
        self.rows = 0

    def __call__(self, matrix: Array) -> Array:
        self.rows += len(matrix)
        return self.function(matrix)


class _Coder:
    """Frames as numbers and back, for shap's maskers, which take no text."""

    def __init__(self, frame: Any) -> None:
        import pandas as pd

        self.columns = list(frame.columns)
        text = [name for name in self.columns if not pd.api.types.is_numeric_dtype(frame[name])]
        # The last code, -1, is a missing word.
        self.words = {
            name: pd.array([*sorted(frame[name].dropna().unique()), None], dtype=frame[name].dtype) for name in text
        }

    def matrix(self, frame: Any) -> Array:
        columns = []
        for name in self.columns:
            if name in self.words:
                code = {word: float(position) for position, word in enumerate(self.words[name][:-1])}
                columns.append([code.get(word, -1.0) for word in frame[name]])
            else:
                columns.append(frame[name].to_numpy(dtype=np.float64))
        return np.column_stack(columns)

    def rows(self, matrix: Array) -> Any:
        import pandas as pd

        return pd.DataFrame(
            {
                name: self.words[name][matrix[:, j].astype(np.int64)] if name in self.words else matrix[:, j]
                for j, name in enumerate(self.columns)
            }
        )


def _timed(explain: Callable[[Any], Any], rows: Any, calls: _Counted | None = None) -> tuple[Any, float]:
    """The answer and the seconds it took, after a warm-up on two rows; what is over at once is timed five times."""
    explain(rows[:2])
    times: list[float] = []
    while not times or (times[0] < 0.2 and len(times) < 5):
        if calls is not None:
            calls.rows = 0
        started = perf_counter()
        answer = explain(rows)
        times.append(perf_counter() - started)
    return answer, min(times)


def _measure(method: str, values: Array, truth: Explanation, seconds: float, evaluations: int) -> Measured:
    count = len(values)
    exact = np.asarray(truth.values[:count])
    # Values that agree to rounding errors are equal: these would decide the order of tied players by chance.
    close = np.where(np.abs(values - exact) < 1e-9, exact, values)
    return Measured(
        method=method,
        rows=count,
        l2=float(l2_distance(close, exact).mean()),
        rank_accuracy=float(rank_accuracy(close, exact).mean()),
        microseconds=1e6 * seconds / count,
        evaluations=evaluations / count,
    )


def _telling_row(truth: Explanation) -> int:
    """The row whose attributions are largest in all: there is most to see."""
    return int(np.abs(truth.values).sum(axis=1).argmax())


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


# What is shown -----------------------------------------------------------------------------------------------


def _table(results: list[tuple[Case, list[Measured]]], with_shap: bool) -> Table:
    base = "shap exact" if with_shap else "cortx exact"
    table = Table(
        title="The same game for every method: error to exact values, cost of a row",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption=f"Error: mean l2 distance of a row. Speed-up: against '{base}'. Time: the model's own included.",
        caption_justify="left",
    )
    table.add_column("method", no_wrap=True)
    for name in ("rows", "l2\nerror", "Rank\nACC", "µs per\nrow", "speed-up", "evaluations\nper row"):
        table.add_column(name, justify="right", no_wrap=True)
    for case, measured in results:
        slow = next(line for line in measured if line.method == base)
        table.add_row(f"[bold]{case.short}[/bold]")
        for line in measured:
            ours = line.method == OURS
            table.add_row(
                f"  {line.method}",
                str(line.rows),
                "0" if line.l2 == 0 else f"{line.l2:.2g}",
                f"{line.rank_accuracy:.3f}",
                f"{line.microseconds:,.0f}",
                _times(slow.microseconds / line.microseconds),
                f"{line.evaluations:,.0f}",
                style="bold red" if ours else None,
            )
        table.add_section()
    return table


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.1f}×" if ratio >= 0.1 else f"{ratio:.2f}×"


def _what_you_see(console: Console, folder: Path, seconds: float) -> None:
    lines = (
        ("waterfall", "one patient: from the typical output to this one"),
        ("summary", "all test rows: which features matter, and which way"),
        ("agreement", "predicted against exact values; right is on the line"),
        ("comparison", "error and time of every method, on log scales"),
    )
    console.print(f"\n[bold]Pictures[/bold] (1- is the network, 2- the forest), in {folder.resolve()}:", soft_wrap=True)
    for name, meaning in lines:
        console.print(f"  *-{name + '.png':<15} {meaning}", highlight=False)
    console.print(f"Done in {seconds:.0f} s.", highlight=False)
