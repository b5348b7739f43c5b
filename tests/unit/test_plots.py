"""The pictures: what they show, that they are written, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cortx.errors import InputError, MissingDependencyError
from cortx.explanation import Explanation
from cortx.interfaces import plots

image = pytest.importorskip("matplotlib.image")

RECORDS = [
    {"method": "exact", "l2": 0.0, "microseconds": 8.2e5},
    {"method": "kernel", "l2": 0.003, "microseconds": 4e4},
    {"method": "ours", "l2": 0.002, "microseconds": 3.0},
]

CURVE = [{"labels": n, "evaluations": 5_000 + 130 * n, "l2": 0.9 / n**0.5} for n in (200, 400, 600, 1_200, 6_000)]


def explain(rows: int = 30, players: int = 5, **more: Any) -> Explanation:
    generator = np.random.default_rng(0)
    values = generator.normal(size=(rows, players))
    names = tuple(f"x{j}" for j in range(players))
    return Explanation(values, np.full(rows, 0.5), names, **more)


def banded(width: float = 0.2, **more: Any) -> Explanation:
    values = explain().values
    return explain(lower_bounds=values - width, upper_bounds=values + width, **more)


def report(rows: int = 60, bounds: bool = True, outputs: int = 1, **changes: Any) -> Any:
    """What plots read of a quality report: rows, errors, bounds and coverage, here without an explainer."""
    generator = np.random.default_rng(0)
    difficulty = generator.lognormal(-3, 0.5, size=(rows, outputs))
    errors = difficulty * generator.lognormal(0, 0.4, size=(rows, outputs))
    missed = errors > 1.6 * difficulty
    levels = [
        SimpleNamespace(confidence=c, bound=c - 0.02, bands=c + 0.01, low=c - 0.1, high=min(1, c + 0.1))
        for c in (0.5, 0.7, 0.9, 0.95)
    ]
    facts: dict[str, Any] = {
        "measures": {"rows": rows},
        "verdict": "fits",
        "fits": True,
        "confidence": 0.9,
        "errors": errors,
        "difficulty": difficulty,
        "bounds": 1.6 * difficulty if bounds else None,
        "missed": missed if bounds else None,
        "levels": levels if bounds else [],
        "coverage": SimpleNamespace(bound=0.88, bands=0.91) if bounds else None,
    }
    return SimpleNamespace(**(facts | changes))


def texts(figure: Any) -> list[str]:
    """Every text of a drawn figure."""
    import matplotlib.text

    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def assert_picture(path: Path) -> None:
    pixels = image.imread(path)[:, :, :3]
    assert path.read_bytes().startswith(b"\x89PNG")
    assert min(pixels.shape[:2]) > 200
    inked = (pixels < 0.95).any(axis=2)
    assert 0.01 < inked.mean() < 0.8
    # A picture that is cut off has ink on its edge.
    edges = [inked[0], inked[-1], inked[:, 0], inked[:, -1]]
    assert not any(edge.any() for edge in edges)
    assert len(np.unique((pixels * 15).astype(int).reshape(-1, 3), axis=0)) > 20


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: plots.waterfall(explain(), path=path),
        lambda path: plots.waterfall(explain(players=40), path=path),
        lambda path: plots.waterfall(explain(players=1), row=-1, path=str(path)),
        lambda path: plots.summary(explain(), path=path),
        lambda path: plots.summary(explain(rows=3000, players=20, data=np.ones((3000, 20))), path=path),
        lambda path: plots.agreement(explain(), explain(), path=path),
        lambda path: plots.agreement(np.ones((1, 2)), np.ones((1, 2)), path=path),
        lambda path: plots.comparison(RECORDS, highlight="ours", title="Census", path=path),
        lambda path: plots.comparison(RECORDS[:1], path=path),
        lambda path: plots.waterfall(banded(3.0, confidence=0.9), path=path),
        lambda path: plots.learning_curve(CURVE, target=0.02, title="Census", path=path),
        lambda path: plots.learning_curve(CURVE[:1], path=path),
        lambda path: plots.quality(report(), title="credit.cortx", path=path),
        lambda path: plots.quality(report(rows=3, bounds=False, fits=False, verdict="error grew"), path=path),
    ],
)
@pytest.mark.filterwarnings("error")
def test_writes_a_picture(draw: Any, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    figure = draw(path)
    assert type(figure).__name__ == "Figure"
    assert_picture(path)


def test_waterfall_walks_from_base_to_output() -> None:
    explanation = Explanation(np.array([[0.25, -1.0, 0.5]]), np.array([2.0]), ("a", "b", "c"))
    axes = plots.waterfall(explanation).axes[0]
    walked = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert walked == [(2.0, 0.25), (2.25, 0.5), (2.75, -1.0)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "c", "b"]
    assert len({bar.get_facecolor() for bar in axes.patches}) == 2
    assert "output = 1.75" in axes.get_title()


def test_waterfall_joins_the_rest() -> None:
    explanation = explain(players=9)
    for most in range(1, 9):
        axes = plots.waterfall(explanation, row=4, max_players=most).axes[0]
        assert len(axes.patches) == most
        end = axes.patches[-1].get_x() + axes.patches[-1].get_width()
        assert end == pytest.approx(0.5 + explanation.values[4].sum())
        label = axes.get_yticklabels()[0].get_text()
        assert label == ("all 9 players" if most == 1 else f"{10 - most} others")
    assert len(plots.waterfall(explanation, max_players=9).axes[0].patches) == 9


@pytest.mark.parametrize("module", ["numpy", "pandas", "polars", "pyarrow"])
def test_waterfall_shows_the_features(module: str) -> None:
    library = pytest.importorskip(module)
    columns = {"age": [30.0, 41.0], "rate": [0.1234567, -2.5]}
    data: Any
    if module == "numpy":
        data = np.column_stack(list(columns.values()))
    else:
        data = (library.table if module == "pyarrow" else library.DataFrame)(columns | {"job": ["a", "b"]})
    names = tuple(columns) if module == "numpy" else (*columns, "job")
    explanation = Explanation(np.ones((2, len(names))), np.zeros(2), names, data=data)
    shown = texts(plots.waterfall(explanation, row=1))
    assert {"age = 41", "rate = −2.5"} <= set(shown)
    assert ("job = b" in shown) == (module != "numpy")


def test_waterfall_of_groups_and_missing_features() -> None:
    pd = pytest.importorskip("pandas")
    data = pd.DataFrame({"red": [1], "blue": [0], "age": [np.nan], "member": [True]})
    explanation = Explanation(np.ones((1, 3)), np.zeros(1), ("colour", "age", "member"), data=data)
    assert {"colour", "age = missing", "member = yes"} <= set(texts(plots.waterfall(explanation)))


def test_frame_rows_of_a_game_with_unnamed_columns_go_by_position() -> None:
    pd = pytest.importorskip("pandas")
    explanation = Explanation(np.ones((1, 2)), np.zeros(1), ("x0", "x1"), data=pd.DataFrame({"a": [1], "b": [7]}))
    assert {"x0 = 1", "x1 = 7"} <= set(texts(plots.waterfall(explanation)))


def test_waterfall_is_honest_about_gaps_and_errors() -> None:
    explanation = Explanation(
        np.array([[1.0, 2.0]]), np.zeros(1), ("a", "b"), outputs=np.array([4.0]), error_std=np.array([[0.0, 0.25]])
    )
    shown = texts(plots.waterfall(explanation))
    assert {"+1", "+2 ± 0.25"} <= set(shown)
    assert any("base + attributions = 3, model output = 4" in text for text in shown)


def test_labels_do_not_leave_the_waterfall() -> None:
    generator = np.random.default_rng(1)
    for scale in (1e-6, 1.0, 1e5):
        values = generator.normal(size=(1, 8)) * scale
        names = tuple("a long feature name " * (j % 3 + 1) for j in range(8))
        figure = plots.waterfall(Explanation(values, np.zeros(1), names, error_std=np.abs(values) / 7))
        figure.draw_without_rendering()
        axes = figure.axes[0]
        frame = axes.get_window_extent()
        for label in axes.texts:
            extent = label.get_window_extent()
            assert frame.x0 <= extent.x0
            assert extent.x1 <= frame.x1


def whiskers_of(axes: Any) -> list[list[float]]:
    """The ends of the horizontal lines on bars, from the lowest bar up."""
    lines = [line.get_xydata() for line in axes.lines]
    found = [line for line in lines if len(line) == 2 and line[0, 1] == line[1, 1] and line[0, 1] % 1 == 0]
    return [line[:, 0].tolist() for line in sorted(found, key=lambda line: float(line[0, 1]))]


def test_waterfall_shows_the_bands() -> None:
    values = np.array([[0.25, -1.0, 0.5]])
    explanation = Explanation(
        values,
        np.array([2.0]),
        ("a", "b", "c"),
        lower_bounds=np.array([[0.25, -1.5, 0.0]]),
        upper_bounds=np.array([[0.25, -0.75, 2.0]]),
        confidence=0.9,
    )
    figure = plots.waterfall(explanation)
    axes = figure.axes[0]
    # From the bottom: a is exact, c starts at 2.25, b at 2.75.
    assert whiskers_of(axes) == [[2.25, 4.25], [1.25, 2.0]]
    assert axes.get_xlim()[0] < 1.25 < 4.25 < axes.get_xlim()[1]
    assert "with 90% confidence" in axes.get_xlabel()
    joined = plots.waterfall(explanation, max_players=2).axes[0]
    assert len(whiskers_of(joined)) == 1
    assert whiskers_of(plots.waterfall(explain()).axes[0]) == []
    assert "whisker" not in plots.waterfall(explain()).axes[0].get_xlabel()


def test_bands_without_ends_are_not_drawn() -> None:
    explanation = Explanation(
        np.ones((1, 2)),
        np.zeros(1),
        ("a", "b"),
        lower_bounds=np.array([[-np.inf, 0.5]]),
        upper_bounds=np.array([[2.0, 1.5]]),
    )
    axes = plots.waterfall(explanation).axes[0]
    assert len(whiskers_of(axes)) == 1
    assert "bands of the true values" in axes.get_xlabel()


def test_labels_stand_clear_of_the_whiskers() -> None:
    figure = plots.waterfall(banded(2.0, confidence=0.9))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    frame = axes.get_window_extent()
    for label, (low, high) in zip(axes.texts, whiskers_of(axes), strict=True):
        extent = label.get_window_extent()
        start, end = axes.transData.transform([(low, 0), (high, 0)])[:, 0]
        assert extent.x1 < start or extent.x0 > end
        assert frame.x0 <= extent.x0
        assert extent.x1 <= frame.x1


def test_columns_may_be_named_by_numbers() -> None:
    pd = pytest.importorskip("pandas")
    data = pd.DataFrame([[3.0, 7.0]], columns=[4, 5])
    explanation = Explanation(np.ones((1, 2)), np.zeros(1), ("5", "4"), data=data)
    assert {"5 = 7", "4 = 3"} <= set(texts(plots.waterfall(explanation)))


def test_learning_curve_draws_error_against_evaluations() -> None:
    figure = plots.learning_curve(CURVE[::-1], target=0.02)
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    line = axes.lines[0].get_xydata()
    np.testing.assert_allclose(line, [[point["evaluations"], point["l2"]] for point in CURVE])
    shown = set(texts(figure))
    assert {"200 labels", "6,000", "target 0.02", "50,000", "model evaluations (log scale)"} <= shown
    assert "l2 from 0.0636 to 0.0116 with 785,000 evaluations" in shown
    low, high = axes.get_ylim()
    assert low < CURVE[-1]["l2"] < CURVE[0]["l2"] < high


def test_learning_curve_labels_do_not_overlap() -> None:
    many = [{"labels": 10 * n, "evaluations": 1_000 * n, "l2": 1 / n} for n in range(1, 60)]
    figure = plots.learning_curve(many)
    figure.draw_without_rendering()
    extents = [label.get_window_extent() for label in figure.axes[0].texts]
    assert len(extents) >= 5
    for i, first in enumerate(extents):
        assert not any(first.overlaps(second) for second in extents[i + 1 :])


def test_quality_shows_coverage_and_errors() -> None:
    found = report(outputs=2)
    figure = plots.quality(found)
    left, right = figure.axes
    bounds, bands = left.lines[1:]
    np.testing.assert_allclose(bounds.get_xydata(), [[level.confidence, level.bound] for level in found.levels])
    np.testing.assert_allclose(bands.get_ydata(), [level.bands for level in found.levels])
    assert (right.get_xscale(), right.get_yscale()) == ("log", "log")
    dots, missed = (part.get_offsets() for part in right.collections)
    expected = np.stack([found.bounds.ravel(), found.errors.ravel()], axis=1)
    np.testing.assert_allclose(dots, expected[~found.missed.ravel()])
    np.testing.assert_allclose(missed, expected[found.missed.ravel()])
    line = right.lines[0].get_xydata()
    np.testing.assert_allclose(line[:, 0], line[:, 1])
    shown = texts(figure)
    assert "verdict: fits (60 fresh rows)" in shown
    assert "at 90%: bounds held for 88.0%, bands for 91.0%" in shown
    assert f"missed ({found.missed.sum()})" in shown
    for axes in figure.axes:
        for collection in axes.collections:
            inside = axes.viewLim.get_points()
            assert (collection.get_datalim(axes.transData).get_points() >= inside[0]).all()


def test_quality_without_bounds_or_with_exact_rows() -> None:
    found = report(bounds=False)
    figure = plots.quality(found)
    assert len(figure.axes) == 1
    np.testing.assert_allclose(figure.axes[0].collections[0].get_offsets()[:, 0], found.difficulty.ravel())
    for errors in (np.zeros((60, 1)), np.where(np.arange(60)[:, None] < 30, 0, found.errors)):
        figure = plots.quality(report(errors=errors, missed=np.zeros((60, 1), dtype=bool)))
        assert len(figure.axes[1].collections[0].get_offsets()) == np.count_nonzero(errors)
        figure.draw_without_rendering()


def test_one_of_several_outputs() -> None:
    values = np.stack([np.zeros((4, 3)), np.ones((4, 3))], axis=2)
    names = ("no", "yes")
    explanation = Explanation(values, np.zeros((4, 2)), ("a", "b", "c"), output_names=names, outputs=np.zeros((4, 2)))
    for output in ("yes", 1, -1):
        figure = plots.waterfall(explanation, output=output)
        assert [bar.get_width() for bar in figure.axes[0].patches] == [1, 1, 1]
        assert "model output for yes" in texts(figure)
        assert "true attribution for yes" in texts(plots.agreement(values, explanation, output=output))
        assert [bar.get_width() for bar in plots.summary(explanation, output=output).axes[0].patches] == [1, 1, 1]
    with pytest.raises(InputError, match="expected one of no, yes"):
        plots.summary(explanation, output="maybe")
    with pytest.raises(InputError, match="there are 2 outputs"):
        plots.waterfall(explanation, output=2)


def test_summary_orders_by_mean_magnitude() -> None:
    explanation = Explanation(np.array([[1.0, -3.0, 0.0], [-1.0, -1.0, 0.5]]), np.zeros(2), ("a", "b", "c"))
    bars = plots.summary(explanation, max_players=2).axes[0]
    assert [bar.get_width() for bar in bars.patches] == [2.0, 1.0]
    assert [label.get_text() for label in bars.get_yticklabels()] == ["b", "a"]


def test_summary_colours_numbers_only() -> None:
    pd = pytest.importorskip("pandas")
    data = pd.DataFrame({"x0": ["a", "b", "c"], "x1": ["d", "e", "f"]})
    assert len(plots.summary(explain(3, 2, data=data)).axes) == 2
    assert len(plots.summary(explain(3, 2, data=data.assign(x1=[1.0, np.nan, 3.0]))).axes) == 3
    assert len(plots.summary(explain(3, 2)).axes) == 2


def test_agreement_states_the_metrics() -> None:
    predicted, truth = np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[1.0, 5.0], [1.0, 2.0]])
    title = plots.agreement(predicted, truth).axes[0].get_title()
    assert f"mean l2 = {(3 + 2**0.5) / 2:.3g}" in title
    assert "Rank ACC = 0.500" in title


def test_comparison_is_logarithmic() -> None:
    figure = plots.comparison(RECORDS)
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "log"]
    ends = [bar.get_x() + bar.get_width() for bar in figure.axes[1].patches]
    assert ends == pytest.approx([8.2e5, 4e4, 3.0])
    assert [bar.get_x() + bar.get_width() for bar in figure.axes[0].patches] == pytest.approx([0.003, 0.002])
    assert {"820,000", "40,000", "0.003"} <= set(texts(figure))


@pytest.mark.filterwarnings("error")
def test_names_are_never_formulas(tmp_path: Path) -> None:
    explanation = Explanation(np.ones((1, 1)), np.zeros(1), (r"$\frac$ of $",))
    plots.waterfall(explanation, path=tmp_path / "a.png")
    plots.summary(explanation, path=tmp_path / "b.png")
    plots.comparison([{"method": "$^$", "l2": 1, "microseconds": 1}], title="$_$", path=tmp_path / "c.png")
    plots.learning_curve(CURVE, title="$_$", path=tmp_path / "d.png")
    plots.quality(report(), title="$_$", path=tmp_path / "e.png")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.waterfall(explain(), row=30), "row 30 is out of range; there are 30 rows"),
        (lambda: plots.waterfall(explain(), max_players=0), "at least 1, got 0"),
        (lambda: plots.summary(explain(), max_players=2.5), "got 2.5"),  # type: ignore[arg-type]
        (lambda: plots.summary(explain(rows=0)), "no rows"),
        (lambda: plots.agreement(np.zeros((0, 2)), np.zeros((0, 2))), "no rows"),
        (lambda: plots.agreement(explain(), explain(players=4)), "the same players"),
        (lambda: plots.agreement([[np.nan]], [[1.0]]), "predicted has values that are NaN"),
        (lambda: plots.waterfall(Explanation(np.array([[np.nan]]), np.zeros(1), ("a",))), "NaN"),
        (lambda: plots.waterfall(explain(), path="picture.svg"), r"must end in \.png"),
        (lambda: plots.comparison([]), "records is empty"),
        (lambda: plots.comparison([{"method": "a", "l2": 1.0}]), "record 0 lacks microseconds"),
        (lambda: plots.comparison([{"method": "a", "l2": -1.0, "microseconds": 1}]), "'a' has -1.0"),
        (lambda: plots.comparison([{"method": "a", "l2": "?", "microseconds": 1}]), "l2 must be a number"),
        (lambda: plots.learning_curve([]), "curve is empty"),
        (lambda: plots.learning_curve([{"labels": 1, "l2": 1.0}]), "point 0 lacks evaluations; it has labels, l2"),
        (
            lambda: plots.learning_curve([CURVE[0] | {"l2": 0.0}]),
            r"l2 must be above 0 on a log scale; point 0 has 0\.0",
        ),
        (lambda: plots.learning_curve([CURVE[0] | {"labels": "?"}]), "labels must be a number in every point"),
        (lambda: plots.learning_curve(CURVE, target=-1.0), r"target must be a number above 0, got -1\.0"),
        (lambda: plots.learning_curve(CURVE, path="picture.svg"), r"must end in \.png"),
        (lambda: plots.quality(report(), path="picture.svg"), r"must end in \.png"),
        (lambda: plots.comparison(RECORDS, highlight="theirs"), "one of exact, kernel, ours"),
    ],
)
def test_refuses(draw: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw()


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"waterfall\(\) needs matplotlib.*cortx-explain\[plots\]"):
        plots.waterfall(explain())


def test_import_is_light_and_pyplot_is_never_used(tmp_path: Path) -> None:
    code = f"""
import sys
import numpy as np
from cortx.interfaces import plots
assert not {{"torch", "matplotlib"}} & set(sys.modules)
plots.agreement(np.ones((1, 2)), np.ones((1, 2)), path={str(tmp_path / "a.png")!r})
assert "matplotlib.pyplot" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
