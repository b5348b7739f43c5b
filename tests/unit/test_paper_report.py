"""Tables and figures of the study, from records made up for every cell of its grid."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cortx.errors import InputError
from cortx.paper import figures, tables
from cortx.paper.grid import (
    AMORTIZED,
    AUTHORS,
    GRID,
    LABELLED,
    METHODS,
    OF_VALUES,
    QUICK,
    WORDS,
    Cell,
    grid,
    missing_cells,
)

Records = list[dict[str, Any]]


def made_up(cell: Cell, data: str, **changes: Any) -> dict[str, Any]:
    """A record for a cell: any positive number, the same in every run; what it cost is the same for all metrics."""
    value = 0.01 + zlib.crc32(repr(cell).encode()) / 2**33
    cost = 10**6 + zlib.crc32(repr((cell.setting, cell.method, cell.at)).encode()) % 10**8
    record = {
        "experiment": cell.experiment, "setting": cell.setting, "method": cell.method, "metric": cell.metric,
        "value": value, "spread": value / 20, "seeds": [0, 1, 2], "evaluations": cost,
        "seconds": 3.5, "hardware": "a machine", "versions": "torch 9", "data": data, "at": cell.at, "device": "cpu",
    }  # fmt: skip
    return record | changes


def full(data: str, quick: bool = False) -> Records:
    return [made_up(cell, data) for cell in grid(data, quick=quick).cells()]


@pytest.fixture(scope="module")
def records() -> Records:
    return full("census") + full("bankruptcy")


# The grid ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", list(GRID))
@pytest.mark.parametrize("quick", [False, True])
def test_a_full_set_of_records_misses_nothing_and_an_empty_one_everything(data: str, quick: bool) -> None:
    assert missing_cells(full(data, quick), data, quick=quick) == []
    cells = list(grid(data, quick=quick).cells())
    assert missing_cells([], data, quick=quick) == cells
    assert len(set(cells)) == len(cells)


@pytest.mark.parametrize("experiment", ["labels", "throughput", "ablation", "l2x", "permutations", "theorems"])
def test_each_single_hole_is_found(experiment: str) -> None:
    everything = full("census")
    for i, record in enumerate(everything):
        if record["experiment"] == experiment:
            hole = missing_cells(everything[:i] + everything[i + 1 :], "census")
            assert [(cell.method, cell.metric, cell.at) for cell in hole if cell.experiment == experiment] == [
                (record["method"], record["metric"], record["at"])
            ]


def test_too_few_seeds_and_numbers_without_a_reason_are_holes() -> None:
    everything = full("census")
    for changes, is_hole in (
        ({"seeds": [0, 1]}, True),
        ({"value": None}, True),
        ({"value": math.nan}, True),
        ({"value": None, "reason": "too few evaluations", "seeds": [0]}, False),
        ({"data": "bankruptcy"}, True),
    ):
        changed = [{**everything[0], **changes}, *everything[1:]]
        assert bool(missing_cells(changed, "census")) is is_hole


def test_the_grid_is_the_one_of_the_paper() -> None:
    """Appendix baseline_detail and tab:exp_ps2, by powers and numbers as printed."""
    census, bankruptcy = GRID["census"], GRID["bankruptcy"]
    assert [math.log2(budget) for budget in census.kernel] == [5, 6, 7, 8, 9, 10]
    assert [math.log2(budget) for budget in census.permutation] == [4, 5, 6, 7, 8, 9, 10]
    assert [math.log2(budget) for budget in bankruptcy.kernel] == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [math.log2(budget) for budget in bankruptcy.permutation] == [3, 4, 5, 6, 7, 8, 9, 10]
    assert census.permutations == (300, 2000, 4000, 6000, 8000)
    assert census.least_seeds >= 3
    assert set(QUICK["census"].shares) <= set(census.shares)
    with pytest.raises(InputError, match="'census', 'bankruptcy', got 'iris'"):
        grid("iris")


def test_a_ranking_has_no_distance() -> None:
    for data in GRID:
        for cell in GRID[data].cells():
            assert not (cell.method.endswith("-ce") and cell.metric in OF_VALUES)


def test_methods_look_different_from_each_other() -> None:
    looks = [METHODS[method] for method in AMORTIZED]
    assert len({look.colour for look in looks}) == len({look.marker for look in looks}) == len(looks)
    assert len({look.name for look in METHODS.values()}) == len(METHODS)


# Tables ------------------------------------------------------------------------------------------------------


def cells_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]


def test_every_number_of_the_labels_stands_in_its_place(records: Records) -> None:
    shares = GRID["census"].shares[AUTHORS]
    head, _, *lines = cells_of(tables.labels_table(records, "census", AUTHORS, "rank_accuracy"))
    assert head[1 : 1 + len(shares)] == [f"{share:.0%}" for share in shares]
    for line in lines:
        method = next(key for key, look in METHODS.items() if look.name == line[0])
        for share, text in zip(shares, line[1:], strict=False):
            value = made_up(Cell("labels", AUTHORS, method, "rank_accuracy", share), "census")["value"]
            shown = text.strip("*").split(" ± ")[0]
            assert (shown == "") if method not in LABELLED else float(shown) == pytest.approx(value, rel=0.01)


def test_the_best_of_a_column_is_bold(records: Records) -> None:
    shares = GRID["census"].shares[WORDS]
    for metric, better in (("l2", min), ("rank_accuracy", max)):
        lines = cells_of(tables.labels_table(records, "census", WORDS, metric))[2:]
        for k, share in enumerate(shares):
            methods = [m for m in LABELLED if metric == "rank_accuracy" or not m.endswith("-ce")]
            values = {m: made_up(Cell("labels", WORDS, m, metric, share), "census")["value"] for m in methods}
            bold = [line[0] for line in lines if line[1 + k].startswith("**")]
            assert bold == [METHODS[better(values, key=values.__getitem__)].name]


def test_the_papers_numbers_stand_beside_ours(records: Records) -> None:
    text = tables.l2x_table(records, "census", AUTHORS)
    for printed in ("0.0847 ± 0.0011", "0.542", "0.6368 ± 0.0067", "0.835", "0.7680 ± 0.0031"):
        assert printed in text
    text = tables.permutations_table(records, "census", AUTHORS)
    for printed in ("0.0189", "0.0038", "0.0018", "1.3089", "0.0171", "0.00020", "0.00017", "0.2222", "0.00015"):
        assert f"| {printed} |" in text
    assert "0.7680 ± 0.0031" in tables.labels_table(records, "census", AUTHORS, "rank_accuracy")
    assert "0.7680 ± 0.0031" not in tables.labels_table(records, "census", WORDS, "rank_accuracy")


def test_a_hole_is_visible_and_a_reason_is_a_note() -> None:
    everything = full("bankruptcy")
    assert "missing" not in tables.render(everything)
    low = [r for r in everything if r["experiment"] == "throughput" and r["method"] == "kernel" and r["at"] == 8]
    for record in low:
        record |= {"value": None, "spread": None, "reason": "KernelSHAP needs 191 evaluations"}
    text = tables.render(everything)
    assert "| KernelSHAP | 8 | - (a) | - (a) | - (a) |" in text
    assert "\n(a) KernelSHAP needs 191 evaluations" in text
    assert "missing" not in text
    holes = [r for r in everything if r["method"] != "supervised-strong"]
    assert "**missing**" in tables.render(holes)
    absent = missing_cells(holes, "bankruptcy")
    assert f"**{len(absent)} of {len(list(GRID['bankruptcy'].cells()))} cells are missing.**" in tables.render(holes)


def test_speeds_of_two_devices_are_two_columns(records: Records) -> None:
    timed = [r for r in full("bankruptcy") if r["metric"] == "rows_per_second" and r["method"] in AMORTIZED]
    faster = [{**r, "device": "cuda", "value": 9e6, "spread": None} for r in timed]
    head, _, *lines = cells_of(tables.throughput_table([*records, *faster], "bankruptcy", "log-odds, mean reference"))
    assert head[2:4] == ["rows per second (cpu)", "rows per second (cuda)"]
    assert {line[3] for line in lines} == {"9,000,000", ""}


def test_a_section_says_where_its_numbers_come_from(records: Records) -> None:
    text = tables.render(records, "census")
    for words in ("a machine", "torch 9", "fig:ablpos", "tab:l2xcomp", "tab:exp_ps2", AUTHORS, WORDS):
        assert words in text
    with pytest.raises(InputError, match="data="):
        tables.render(records)


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (0.63684, 0.00673, "0.637 ± 0.007"),
        (0.00544, 0.00021, "0.00544 ± 0.00021"),
        (5.41e-5, 3.2e-6, "(5.41 ± 0.32)e-5"),
        (0.5, None, "0.500"),
        (0.0, None, "0.00"),
        (1234567.0, 34567.0, "1,230,000 ± 30,000"),
        (0.15, 0.000004, "0.150 ± 0.000004"),
        (12.0, 30.0, "12 ± 30"),
        (4.2e10, None, "4.20e10"),
    ],
)
def test_numbers_have_sensible_digits(value: float, spread: float | None, text: str) -> None:
    assert tables.with_spread(value, spread) == text


def test_only_the_text_between_the_markers_changes(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    before, after = "# Results\n\nwords\n\n<!-- begin: census -->", "<!-- end: census -->\n\n<!-- begin: b -->x"
    page.write_text(f"{before}\nold\n{after}")
    for text in ("new | table", "newer"):
        tables.update(page, "census", text)
        assert page.read_text() == f"{before}\n\n{text}\n\n{after}"
    assert list(tmp_path.iterdir()) == [page]
    with pytest.raises(InputError, match="begin: bankruptcy"):
        tables.update(page, "bankruptcy", "text")


# Figures -----------------------------------------------------------------------------------------------------


def lines_of(axes: Any, method: str) -> list[Any]:
    return [line for line in axes.get_lines() if line.get_label() == METHODS[method].name]


@pytest.mark.slow
def test_everything_that_the_records_allow_is_drawn(records: Records, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = figures.draw_all(records, tmp_path)
    assert sorted(path.stem for path in paths) == sorted(
        ["throughput", "labels", "evaluations", "ablation", "permutations", "supervised", "theorems"]
        + [f"{name}-census-linear-output-mean-reference" for name in ("throughput", "labels", "evaluations")]
    )
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_pictures_are_written_whole_and_only_those_that_have_records(records: Records, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    some = [r for r in records if r["experiment"] == "theorems" and r["setting"] == WORDS]
    assert figures.draw_all(some, tmp_path / "new") == [tmp_path / "new" / "theorems.png"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["theorems.png"]
    assert figures.draw_all([], tmp_path / "none") == []


def test_curves_show_the_records_and_a_method_looks_the_same_everywhere(records: Records) -> None:
    pytest.importorskip("matplotlib")
    pictures = [figures.labels(records), figures.throughput(records), figures.evaluations(records)]
    for picture in pictures:
        assert len(picture.axes) == 4
        assert all(any(axes.get_xlabel() for axes in picture.axes[k::2]) for k in (0, 1))
        assert [bool(axes.get_ylabel()) for axes in picture.axes] == [True, False, True, False]
        for axes in picture.axes:
            for method in AMORTIZED:
                assert {line.get_color() for line in lines_of(axes, method)} <= {METHODS[method].colour}
    rank, error = pictures[0].axes[0], pictures[0].axes[2]
    for axes, metric in ((rank, "rank_accuracy"), (error, "l2")):
        [line] = lines_of(axes, "cortx")
        shares = GRID["census"].shares[AUTHORS]
        values = [made_up(Cell("labels", AUTHORS, "cortx", metric, share), "census")["value"] for share in shares]
        np.testing.assert_allclose(line.get_xdata(), shares)
        np.testing.assert_allclose(line.get_ydata(), values)
        [level] = lines_of(axes, "fastshap")
        assert len(set(level.get_ydata())) == 1
    assert (rank.get_xscale(), rank.get_yscale(), error.get_yscale()) == ("log", "linear", "log")
    [kernel] = lines_of(pictures[1].axes[0], "kernel")
    assert len(kernel.get_xdata()) == len(GRID["census"].kernel)


def test_speeds_of_one_device_are_drawn(records: Records) -> None:
    pytest.importorskip("matplotlib")
    faster = [{**r, "device": "cuda", "value": 9e6} for r in records if r["metric"] == "rows_per_second"]
    for device, expected in ((None, {9e6}), ("cuda", {9e6})):
        axes = figures.throughput([*records, *faster], device=device).axes[0]
        assert set(lines_of(axes, "cortx")[0].get_xdata()) == expected
    slower = figures.throughput([*records, *faster], device="cpu").axes[0]
    assert set(lines_of(slower, "cortx")[0].get_xdata()) != {9e6}


def test_what_cannot_be_drawn_says_why(records: Records, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="'ablation'; run it first"):
        figures.ablation([])
    with pytest.raises(InputError, match="no records for"):
        figures.labels(records, [("census", "another setting")])
    with pytest.raises(InputError, match="png"):
        figures.save(figures.labels(records), tmp_path / "picture.jpg")


def test_records_that_went_through_json_are_the_same(records: Records) -> None:
    again = json.loads(json.dumps(records))
    assert tables.render(again, "census") == tables.render(records, "census")
