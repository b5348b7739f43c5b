"""Labels of large tables: the same whatever the order, the files, the batches and the history of kills."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.guard import HANG

import cortx
from cortx.distributed import label_plan, labelling, sampling
from cortx.distributed.label_plan import Ask, LabelPlan, exact_costs, most_rows, plan_labels
from cortx.distributed.labelling import label
from cortx.distributed.local import LocalEngine
from cortx.distributed.places import place
from cortx.distributed.sampling import Sample, choose_rows
from cortx.distributed.source import FrameSource
from cortx.distributed.work import Done, Job, Task
from cortx.errors import ArtifactError, BudgetError, FingerprintError, InputError, ModelError, StorageError
from cortx.explainer.label_folder import LabelFolder, Spent
from cortx.interfaces.label import label as label_command

HERE = LocalEngine(workers=0)


def people(rows: int = 200, seed: int = 0) -> pd.DataFrame:
    """Numbers, text categories, whole numbers, missing values of each kind."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, rows),
            "income": rng.lognormal(size=rows),
            "job": rng.choice(["baker", "nurse", "pilot", None], rows),
            "debt": rng.normal(size=rows),
            "score": rng.normal(size=rows),
            "home": rng.choice(["own", "rent"], rows),
            "years": rng.integers(0, 5, rows).astype(float),
        }
    )
    frame.loc[rng.random(rows) < 0.15, "income"] = np.nan
    return frame


def risk(frame: pd.DataFrame) -> Any:
    income = frame["income"].fillna(0.5).to_numpy(dtype=float)
    job = frame["job"].map({"baker": 1.0, "nurse": -0.5}).fillna(0.25).to_numpy(dtype=float)
    age, debt, score = (frame[name].to_numpy(dtype=float) for name in ("age", "debt", "score"))
    rent = (frame["home"] == "rent").to_numpy(dtype=float)
    return np.tanh(income * job + debt * score) + 0.01 * age * rent + 0.1 * frame["years"].to_numpy(dtype=float) * debt


def other_risk(frame: pd.DataFrame) -> Any:
    return risk(frame) + 0.2 * frame["debt"].to_numpy(dtype=float)


def numbers(rows: int = 120) -> Any:
    return np.random.default_rng(5).normal(size=(rows, 9))


def wavy(rows: Any) -> Any:
    return np.sin(rows[:, 0] * rows[:, 1]) + np.tanh(rows[:, 2:6].prod(axis=1)) + rows[:, 6] * rows[:, 7] * rows[:, 8]


class Backwards:
    """An engine that does the last task first, half of them twice, and forgets to say so."""

    name, workers = "backwards", 3

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        work = job.open("cpu")
        listed = list(tasks)[::-1]
        for task in listed[::2]:
            work(task)
        yield from map(work, listed)


def contents(folder: Path) -> cortx.Explanation:
    return LabelFolder.open(folder).read()


def assert_same(one: cortx.Explanation, two: cortx.Explanation) -> None:
    """The same rows and costs exactly, values up to rounding."""
    frames = [pa.table(part.data).to_pandas() if isinstance(part.data, pa.Table) else part.data for part in (one, two)]
    if isinstance(frames[0], pd.DataFrame):
        pd.testing.assert_frame_equal(*frames, check_dtype=False)
    else:
        np.testing.assert_array_equal(*frames)
    np.testing.assert_array_equal(one.row_evaluations, two.row_evaluations)
    assert one.evaluations == two.evaluations
    scale = np.abs(one.values).max()
    np.testing.assert_allclose(one.values, two.values, rtol=1e-6, atol=1e-6 * scale)
    np.testing.assert_allclose(one.error_std, two.error_std, rtol=1e-6, atol=1e-6 * scale)
    np.testing.assert_allclose(one.outputs, two.outputs, rtol=1e-6)
    assert (one.views is None) == (two.views is None)
    if one.views is not None and two.views is not None:
        order, other = (np.argsort(part.views.rows, kind="stable") for part in (one, two))
        np.testing.assert_array_equal(one.views.rows[order], two.views.rows[other])
        np.testing.assert_array_equal(one.views.kept[order], two.views.kept[other])
        np.testing.assert_allclose(one.views.values[order], two.views.values[other], rtol=1e-5, atol=1e-6 * scale)
        np.testing.assert_allclose(one.views.outputs[order], two.views.outputs[other], rtol=1e-6, atol=1e-9)


# What labels are -----------------------------------------------------------------------------------------------------


def test_exact_labels_are_those_of_shapley(tmp_path: Path) -> None:
    table = people()
    report = label(risk, table, tmp_path / "labels", budget=5_000, engine=HERE)
    labels = contents(tmp_path / "labels")
    game = cortx.Game(risk, reference=table)
    direct = cortx.shapley(game, labels.data, row_budget=8_192)
    assert labels.method == direct.method == "exact"
    assert direct.row_evaluations.sum() + 1 == direct.evaluations == game.evaluations
    assert_same(labels, direct)
    assert report.total_evaluations == labels.evaluations == report.evaluations <= 5_000
    assert report.rows == report.exact_rows == len(labels)
    assert labels.views is not None


def test_sampled_labels_are_those_of_shapley(tmp_path: Path) -> None:
    table = people()
    report = label(risk, table, tmp_path / "labels", budget=80 * 60, rows=60, engine=HERE, seed=3)
    labels = contents(tmp_path / "labels")
    game = cortx.Game(risk, reference=table)
    direct = cortx.shapley(game, labels.data, "kernel", row_budget=report.plan.allowance, seed=3)
    assert_same(labels, direct)
    assert (np.asarray(labels.error_std) > 0).any()
    assert len(labels) == 60
    assert labels.evaluations <= 80 * 60


def test_several_outputs_groups_and_zero(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(80, 6))
    X[::3, 2] = 0.0

    def model(rows: Any) -> Any:
        return np.stack([rows[:, 0] * rows[:, 1], rows.sum(axis=1), rows[:, 2] * rows[:, 5]], axis=1)

    groups = {"front": [0, 1], "back": [4, 5]}
    label(model, X, tmp_path / "labels", budget=600, rows=40, reference="zero", players=groups, engine=HERE)
    labels = contents(tmp_path / "labels")
    assert isinstance(labels.data, np.ndarray)
    game = cortx.Game(model, "zero", players=groups)
    assert_same(labels, cortx.shapley(game, labels.data))
    assert labels.values.shape == (40, 4, 3)
    assert labels.feature_names == game.players.names


@pytest.mark.parametrize("each", [120, 700])
def test_a_background_is_paid_for_and_counted(tmp_path: Path, each: int) -> None:
    table = people(60)[["age", "debt", "score", "home"]]

    def model(frame: pd.DataFrame) -> Any:
        return frame["debt"].to_numpy() * frame["score"].to_numpy() + (frame["home"] == "own") * 0.1

    background = table.iloc[:7]
    report = label(model, table, tmp_path / "labels", budget=each * 20 + 7, rows=20, background=background, engine=HERE)
    labels = contents(tmp_path / "labels")
    game = cortx.Game(model, background=background)
    values = 1 + (report.plan.allowance - 1) // 7
    assert_same(labels, cortx.shapley(game, labels.data, row_budget=7 * values))
    assert labels.evaluations == report.total_evaluations <= each * 20 + 7
    assert labels.views is None


@pytest.mark.parametrize("players", [4, 20, 300])
@pytest.mark.parametrize("copies", [1, 7, 100, 3_000])
@pytest.mark.parametrize("before", ["nothing", "few rows, and dear"])
def test_a_budget_that_is_asked_for_is_enough(players: int, copies: int, before: str) -> None:
    words = np.arange(3_000, dtype=np.uint64)
    active = np.full(len(words), players)
    spent, least = Spent.none(), 0
    if before != "nothing":
        known = words[::400]
        dear = np.full(len(known), 40 * copies * players)
        spent, least = Spent(known, np.ones_like(dear), dear, dear), int(dear.sum())
    settings: dict[str, Any] = {"rows": None, "seen": len(words), "copies": copies, "n_players": players}
    for budget in (least + 1_000, least + 2_000_000, least + 50_000_000):
        try:
            plan = plan_labels(active, words, spent, budget=budget, **settings)
        except BudgetError as error:
            enough = int(re.findall(r"give a budget of ([\d,]+)", str(error))[0].replace(",", ""))
            plan = plan_labels(active, words, spent, budget=enough, **settings)
            budget = enough
        assert plan.spent + plan.total <= budget
        assert plan.total > 0


def test_players_not_columns_decide_how_many_rows_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_plan, "HELD_ROWS", 10)
    each = 2**3 - 1
    assert most_rows(1_000 * each, 3) == 1_000
    X = np.random.default_rng(0).normal(size=(300, 20))
    groups = {"a": list(range(8)), "b": list(range(8, 15)), "c": list(range(15, 20))}
    settings: dict[str, Any] = {"reference": "zero", "engine": HERE}
    budget = 100 * each + 1
    report = label(lambda x: x.prod(axis=1), X, tmp_path / "groups", budget=budget, players=groups, **settings)
    assert report.rows == report.exact_rows == 100


def test_the_plan_says_why_something_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_plan, "HELD_ROWS", 10)
    X = np.zeros((300, 20))
    X[:, :2] = np.random.default_rng(0).normal(size=(300, 2))
    settings: dict[str, Any] = {"budget": 2_000, "reference": "zero", "engine": HERE}
    few = label(lambda x: x[:, 0] * x[:, 1], X, tmp_path / "few", **settings)
    assert few.rows == 10
    assert "the sample has no further rows" in str(few.plan)
    more = label(lambda x: x[:, 0] * x[:, 1], X, tmp_path / "few", rows=300, **settings)
    assert more.rows == more.exact_rows == 300
    assert "every label is exact" in str(more.plan)
    assert "sample" not in str(more.plan)
    whole = label(lambda x: x[:, 0] * x[:, 1], X[:10], tmp_path / "whole", **settings)
    assert "not needed: every label is exact" in str(whole.plan)


def test_batches_are_bounded_by_rows_and_by_evaluations() -> None:
    cheap, dear = 90_000, 1_000
    costs = np.concatenate([np.full(cheap, 3), np.full(dear, 8_000)])
    n = len(costs)
    words = np.arange(n, dtype=np.uint64)
    ask = Ask(0, 8_000, np.arange(n), costs)
    plan = LabelPlan(10**9, n, n, 8_000, 0, 0, (ask,), words, np.full(n, np.inf))
    sample = Sample(pa.table({"row": np.arange(n)}), words, np.arange(n), np.ones(n, dtype=np.int64), n, True, {})
    for workers in (1, 2, 50):
        tasks = labelling._tasks(plan, sample, workers)
        ends = np.cumsum([task.rows for task in tasks])
        assert ends[-1] == n
        each = np.diff(np.cumsum(costs)[ends - 1], prepend=0)
        most = min(labelling.MOST_BATCH_EVALUATIONS, costs.sum() / (labelling.BATCHES_EACH * workers))
        assert each.max() <= most + costs.max()
        assert max(task.rows for task in tasks) <= labelling.MOST_BATCH_ROWS
        assert len(tasks) >= labelling.BATCHES_EACH * workers


def test_the_plan_is_kept_to_exactly(tmp_path: Path) -> None:
    told: list[str] = []
    report = label(risk, people(), tmp_path / "labels", budget=6_000, rows=80, engine=HERE, announce=told.append)
    assert report.plan.total + 1 == report.evaluations == report.total_evaluations
    assert told == [str(report.plan)]
    assert "80 of 200 rows" in told[0]
    assert "6,000" in told[0]
    active = cortx.Game(risk, reference=people()).rows(people()).active.sum(axis=1)
    plain = [1 + max(0, 2 ** int(n) - 2) for n in active]
    np.testing.assert_array_equal(exact_costs(active, 1), plain)


# What they do not depend on ------------------------------------------------------------------------------------------


def write_parts(table: pd.DataFrame, folder: Path, cuts: list[int], **settings: Any) -> Path:
    for number, part in enumerate(np.split(np.arange(len(table)), cuts)):
        path = folder / f"day={number % 2}" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pandas(table.iloc[part], preserve_index=False), path, **settings)
    return folder


def test_neither_order_nor_files_nor_duplicates_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = people()
    reference = table.iloc[:50]
    settings: dict[str, Any] = {"budget": 4_000, "rows": 45, "reference": reference, "engine": HERE}
    label(risk, table, tmp_path / "plain", **settings)
    shuffled = table.sample(frac=1.0, random_state=1)
    twice = pd.concat([shuffled, table.iloc[::2]], ignore_index=True)
    files = write_parts(twice, tmp_path / "files", [13, 14, 120], row_group_size=17)
    label(risk, files, tmp_path / "files-labels", **settings)
    monkeypatch.setattr(labelling, "MOST_BATCH_EVALUATIONS", 300)
    label(
        risk,
        pa.Table.from_pandas(twice, preserve_index=False),
        tmp_path / "arrow",
        **{**settings, "engine": Backwards()},
    )
    plain = contents(tmp_path / "plain")
    assert len(LabelFolder.open(tmp_path / "arrow").parts()) > len(LabelFolder.open(tmp_path / "plain").parts())
    for other in ("files-labels", "arrow"):
        assert_same(plain, contents(tmp_path / other))


def test_the_default_reference_does_not_depend_on_order_either(tmp_path: Path) -> None:
    table = people()
    for name, rows in (("a", table), ("b", table.iloc[::-1])):
        files = write_parts(rows, tmp_path / f"{name}-files", [60])
        label(risk, files, tmp_path / name, budget=2_000, engine=HERE)
    one, two = (LabelFolder.open(tmp_path / name) for name in "ab")
    np.testing.assert_array_equal(one.spec.absent, two.spec.absent)
    np.testing.assert_allclose(one.spec.absent[0, 0], table["age"].mean())
    assert_same(one.read(), two.read())


def test_the_default_reference_is_that_of_all_rows(tmp_path: Path) -> None:
    """Also where most rows are equal: of the different ones alone, mean and mode are others."""
    different = people(40)
    often = different[different["job"].notna() & (different["job"] != different["job"].mode()[0])].iloc[:3]
    table = pd.concat([different, *[often] * 100], ignore_index=True).sample(frac=1.0, random_state=0)
    files = write_parts(table, tmp_path / "data", [60, 200])
    for name, data in (("frame", table), ("files", files)):
        label(risk, data, tmp_path / name, budget=2_000, engine=HERE)
        spec = LabelFolder.open(tmp_path / name).spec
        wanted = cortx.Game(risk, reference=table)
        for j, column in enumerate(spec.schema.columns):
            code, other = spec.absent[0, j], wanted.absent[0, j]
            if column.coded:
                assert column.values[int(code)] == wanted.schema.columns[j].values[int(other)]
            else:
                np.testing.assert_allclose(code, other)
        LabelFolder.open(tmp_path / name).check(wanted)


@pytest.mark.parametrize("count", [1, 7, 30, 60])
def test_copies_of_chosen_rows_are_counted(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "LEAST_SLACK", 3)  # rows are dropped again and again
    different = people(50).assign(id=np.arange(50.0))
    drawn = np.random.default_rng(1).integers(0, 50, 600) // 2
    table = pa.Table.from_pandas(different.iloc[drawn], preserve_index=False)

    class Small(FrameSource):
        def batches(self, columns: Any = None, batch_rows: int = 11) -> Iterator[Any]:
            return super().batches(columns, 11)

    sample = choose_rows(Small(table), table.column_names, count, seed=4)
    ids = sample.rows["id"].to_numpy().astype(int)
    np.testing.assert_array_equal(sample.copies, np.bincount(drawn, minlength=50)[ids])
    assert len(sample) == min(count, 25)
    assert sample.whole == (count >= 25)
    np.testing.assert_array_equal(drawn[sample.positions], ids)


def test_categories_that_arrow_takes_for_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "grade": pd.Categorical(rng.integers(0, 4, 60)),
            "half": pd.Categorical(rng.choice([0.5, 1.5, np.nan], 60)),
            "member": rng.choice(np.array([True, False, None], dtype=object), 60),
            "x": rng.normal(size=60),
        }
    )
    given = set()

    def model(frame: pd.DataFrame) -> Any:
        given.add(tuple(map(str, frame.dtypes)))
        grade, half = frame["grade"].cat.codes.to_numpy(), frame["half"].astype(float).fillna(-1).to_numpy()
        member = frame["member"].map({True: 1.0, False: -1.0}).fillna(0.3).to_numpy(dtype=float)
        return grade * frame["x"].to_numpy() + half * member

    for budget in (200, 400):
        report = label(model, table, tmp_path / "labels", budget=budget, engine=HERE)
        assert report.evaluations > 0
    assert label(model, table, tmp_path / "labels", budget=400, engine=HERE).evaluations == 0
    assert given == {("category", "category", "object", "float64")}
    labels = contents(tmp_path / "labels")
    assert_same(labels, cortx.shapley(cortx.Game(model, reference=table), labels.data))
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    for budget in (200, 400):
        label(model, arrow, tmp_path / "arrow", budget=budget, frame="pandas", reference=table, engine=HERE)
    some = contents(tmp_path / "arrow")
    assert_same(some, cortx.shapley(cortx.Game(model, reference=table), some.data))

    def of_arrow(given: pa.Table) -> Any:
        assert pa.types.is_dictionary(given.schema.field("grade").type)
        return given["grade"].to_pandas().astype(float).to_numpy() * given["x"].to_numpy()

    for budget in (200, 400):
        label(of_arrow, arrow, tmp_path / "only-arrow", budget=budget, engine=HERE)
    some = contents(tmp_path / "only-arrow")
    assert_same(some, cortx.shapley(cortx.Game(of_arrow, reference=arrow), some.data))


def test_categories_of_a_model_do_not_depend_on_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = people(120)
    table["job"] = table["job"].astype("category")

    def coded(frame: pd.DataFrame) -> Any:
        return frame["job"].cat.codes.to_numpy() * frame["debt"].to_numpy() + frame["score"].to_numpy()

    names = ["job", "debt", "score"]
    for name, cuts in (("a", []), ("b", [3, 50, 90])):
        files = write_parts(table.iloc[:: 1 if name == "a" else -1][names], tmp_path / f"{name}-files", cuts)
        monkeypatch.setattr(labelling, "MOST_BATCH_EVALUATIONS", 10_000 if name == "a" else 16)
        label(coded, files, tmp_path / name, budget=400, engine=HERE)
    assert_same(contents(tmp_path / "a"), contents(tmp_path / "b"))


def test_more_rows_are_a_longer_list(tmp_path: Path) -> None:
    table = people()
    for rows in (20, 50):
        label(risk, table, tmp_path / f"{rows}", budget=127 * rows + 1, rows=rows, engine=HERE)
    few, many = contents(tmp_path / "20"), contents(tmp_path / "50")
    assert_same(few, _rows(many, 20))


def _rows(labels: cortx.Explanation, count: int) -> cortx.Explanation:
    from dataclasses import replace

    part = labels[:count]
    return replace(part, evaluations=int(part.row_evaluations.sum()) + 1)


# Going on ------------------------------------------------------------------------------------------------------------


def test_the_same_budget_costs_nothing_again(tmp_path: Path) -> None:
    first = label(risk, people(), tmp_path / "labels", budget=4_000, rows=50, engine=HERE)
    # The folder's own time changes with the lease of the run.
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    again = label(risk, people(), tmp_path / "labels", budget=4_000, rows=50, engine=HERE)
    assert again.evaluations == 0
    assert again.total_evaluations == first.total_evaluations
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_larger_budget_adds_precision(tmp_path: Path) -> None:
    table, folder = numbers(), tmp_path / "labels"
    spent, errors = [], []
    for budget in (70 * 50, 140 * 50, 350 * 50):
        report = label(wavy, table, folder, budget=budget, rows=50, engine=HERE)
        spent.append(report.evaluations)
        labels = contents(folder)
        errors.append(float(np.sqrt(np.square(labels.error_std).mean())))
        assert labels.evaluations == sum(spent) == report.total_evaluations <= budget
        assert len(labels) == 50
        assert labels.method == "kernel"
    assert errors[0] > errors[1] > errors[2] > 0
    assert min(spent) > 0
    truth = cortx.shapley(cortx.Game(wavy, reference=table), labels.data, "exact")
    assert (np.abs(labels.values - truth.values) <= 5 * np.asarray(labels.error_std) + 1e-9).mean() > 0.97
    report = label(wavy, table, folder, budget=10**6, rows=50, engine=HERE)  # an exact label makes all others needless
    assert report.evaluations == 50 * (2**9 - 1)
    np.testing.assert_allclose(contents(folder).values, truth.values, atol=1e-12)


def test_rounds_are_independent_and_weighted_by_cost(tmp_path: Path) -> None:
    table, folder = numbers(), tmp_path / "labels"
    for budget in (70 * 30, 140 * 30, 350 * 30):
        label(wavy, table, folder, budget=budget, rows=30, engine=HERE)
    labels = contents(folder)
    files = LabelFolder.open(folder).parts()
    columns = ["word", "round", "evaluations", "values", "errors", "seed"]
    frame = pa.concat_tables([pq.read_table(path, columns=columns) for path in files]).to_pandas()
    assert sorted(frame["round"].unique()) == [0, 1, 2]
    assert len({tuple(np.round(value, 9)) for value in frame["values"]}) == 90  # other draws in every round
    assert frame["seed"].nunique() == 3
    words = cortx.Game(wavy, reference=table).rows(labels.data).words
    for row, word in enumerate(words):
        part = frame[frame["word"] == word]
        share = part["evaluations"].to_numpy() / part["evaluations"].sum()
        np.testing.assert_allclose(labels.values[row], share @ np.stack(part["values"]))
        np.testing.assert_allclose(
            labels.error_std[row], np.sqrt(np.square(share) @ np.square(np.stack(part["errors"])))
        )


def test_exact_rows_are_not_paid_for_again(tmp_path: Path) -> None:
    table, folder = people(), tmp_path / "labels"
    label(risk, table, folder, budget=3_000, engine=HERE)
    few = contents(folder)
    report = label(risk, table, folder, budget=9_000, engine=HERE)
    many = contents(folder)
    assert len(many) > len(few)
    assert (many.error_std == 0).all()
    assert report.evaluations == many.evaluations - few.evaluations
    np.testing.assert_array_equal(many.row_evaluations[: len(few)], few.row_evaluations)
    all_rows = label(risk, table, folder, budget=10**9, engine=HERE)
    assert all_rows.rows == len(table)
    assert label(risk, table, folder, budget=2 * 10**9, engine=HERE).evaluations == 0


def test_a_deleted_file_is_made_up_for(tmp_path: Path) -> None:
    """Its rows get another round, which has other draws than those that are left, and so counts."""
    table, folder = numbers(), tmp_path / "labels"
    for budget in (70 * 50, 140 * 50):
        label(wavy, table, folder, budget=budget, rows=50, engine=HERE)
    before = contents(folder)
    next(path for path in LabelFolder.open(folder).parts() if path.name.startswith("part-000")).unlink()
    left = contents(folder).evaluations
    assert left < before.evaluations
    report = label(wavy, table, folder, budget=140 * 50, rows=50, engine=HERE)
    assert report.evaluations > 0
    after = contents(folder)
    assert after.evaluations == left + report.evaluations == report.total_evaluations
    np.testing.assert_allclose(after.row_evaluations, before.row_evaluations, atol=2)
    assert label(wavy, table, folder, budget=140 * 50, rows=50, engine=HERE).evaluations == 0


def test_rows_that_were_added_later_join(tmp_path: Path) -> None:
    table, folder = people(), tmp_path / "labels"
    label(risk, table, folder, budget=3_000, engine=HERE)
    before = contents(folder)
    label(risk, people(300, seed=1), folder, budget=6_000, engine=HERE)  # the reference stays the labels' own
    after = contents(folder)
    assert after.evaluations <= 6_000
    assert len(after) > len(before)
    assert after.base_values[0] == before.base_values[0]


SCRIPT = """
import sys, time, numpy as np, pandas as pd
def model(frame):
    time.sleep(0.03)
    x = frame.to_numpy(dtype=float)
    return np.tanh(x[:, 0] * x[:, 1] + x[:, 2]) + x[:, 3] * x[:, 4] * x[:, 5] + np.sin(x[:, 6] * x[:, 7])
"""
RUN = """
import sys, torch
torch.set_num_threads(1)
from cortx.distributed import labelling
from cortx.distributed.local import LocalEngine
if __name__ == "__main__":
    labelling.MOST_BATCH_EVALUATIONS = 1000
    data, folder, workers, *budgets = sys.argv[1:]
    for budget in budgets:
        engine = LocalEngine(int(workers))
        report = labelling.label("slowly:model", data, folder, budget=int(budget), rows=40, engine=engine)
    print(report.total_evaluations, flush=True)
"""


def _start(cwd: Path, *arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "run.py", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, start_new_session=True
    )


SMALL, LARGE = 60 * 40, 150 * 40


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a slow model, and labels of a run that nobody killed."""
    folder = tmp_path_factory.mktemp("kills")
    (folder / "slowly.py").write_text(SCRIPT)
    (folder / "run.py").write_text(RUN)
    columns = {f"c{j}": np.random.default_rng(j).normal(size=150) for j in range(8)}
    pq.write_table(pa.table(columns), folder / "data.parquet")
    calm = _start(folder, "data.parquet", "calm", 0, SMALL, LARGE)
    told, _ = calm.communicate(timeout=HANG)
    assert int(told) == contents(folder / "calm").evaluations
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_kills_at_random_points_change_nothing(undisturbed: Path, workers: int) -> None:
    chance = random.Random(workers)
    kills = 0
    folder = undisturbed / f"stormy-{workers}"
    for budget in (SMALL, LARGE):
        for attempt in range(3):
            process = _start(undisturbed, "data.parquet", folder.name, workers, budget)
            here = len(list(folder.glob("part-*")))
            more = here + chance.randint(1, 3) if attempt < (2 if workers == 0 else 1) else 10**6
            while process.poll() is None and len(list(folder.glob("part-*"))) < more:
                time.sleep(0.01)
            if process.poll() is None:
                time.sleep(chance.random() * 0.2)
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
            process.communicate(timeout=HANG)
            if process.returncode == 0:
                break
        assert process.returncode == 0
    assert kills >= 2
    assert_same(contents(undisturbed / "calm"), contents(folder))


# What is refused -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "labels"
    label(risk, people(), folder, budget=2_000, reference=people().iloc[:40], engine=HERE)
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seed": 1}, "the seed: it was 0, now 1"),
        ({"reference": people().iloc[:41]}, "the reference: '"),
        ({"reference": people().iloc[:40].assign(home="rent")}, "the reference: 'home' was "),
        ({"reference": None, "background": people().iloc[:5]}, "one reference row, now a background of 5 rows"),
        ({"players": {"both": ["age", "debt"]}}, "the players: column 'age' belonged to 'age', now to 'both'"),
        ({"categorical": ["years"]}, "the column 'years': it held numbers, now categories"),
        ({"target": "all"}, "the target: it was None, now 'all'"),
        ({"drop": ["years"]}, "without 'years'"),
        ({"frame": "polars"}, "the kind of table the model is given: it was 'pandas', now 'polars'"),
    ],
)
def test_other_settings_are_refused_by_name(made: Path, change: dict[str, Any], reason: str) -> None:
    settings: dict[str, Any] = {"budget": 3_000, "reference": people().iloc[:40], "engine": HERE, **change}
    before = sorted(made.iterdir())
    with pytest.raises(ArtifactError, match=reason):
        label(risk, people(), made, **settings)
    assert sorted(made.iterdir()) == before


def test_the_same_kind_of_table_may_be_asked_for(made: Path) -> None:
    settings: dict[str, Any] = {"reference": people().iloc[:40], "engine": HERE}
    assert label(risk, people(), made, budget=2_000, frame="pandas", **settings).evaluations == 0


def test_another_model_is_refused_with_how_much(made: Path) -> None:
    with pytest.raises(FingerprintError, match=r"outputs differ by up to 0\.\d+ \(their spread is"):
        label(other_risk, people(), made, budget=3_000, engine=HERE)


def test_another_output_is_refused(tmp_path: Path) -> None:
    import torch

    X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 1)
    label(module, X, tmp_path / "labels", budget=500, output="probability", engine=HERE)
    with pytest.raises(ArtifactError, match="the output: it was 'probability', now 'raw'"):
        label(module, X, tmp_path / "labels", budget=900, output="raw", engine=HERE)


class Changed:
    """An engine on whose workers the model is another one."""

    name, workers = "changed", 1

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        from dataclasses import replace

        from cortx.distributed.work import NamedModel

        return LocalEngine(workers=0).run(replace(job, model=NamedModel.of(other_risk)), tasks)  # type: ignore[type-var]


def test_a_worker_with_another_model_is_named(tmp_path: Path) -> None:
    import socket

    with pytest.raises(FingerprintError, match=f"the worker on {socket.gethostname()}"):
        label(risk, people(), tmp_path / "labels", budget=2_000, engine=Changed())


class Elsewhere:
    """An engine whose workers write to a folder of their own."""

    name, workers = "elsewhere", 1

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        for task in tasks:
            yield Done(task.name, task.rows, result="part-000-nowhere.parquet")


def test_a_folder_that_is_not_shared_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelling, "SECONDS_TO_APPEAR", 0.1)
    with pytest.raises(StorageError, match=r"batch 1 of \d+ .*file system that all machines share"):
        label(risk, people(), tmp_path / "labels", budget=2_000, engine=Elsewhere())


def test_a_model_that_fails_costs_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelling, "MOST_BATCH_EVALUATIONS", 500)
    calls = {"left": 12}

    def moody(frame: pd.DataFrame) -> Any:
        calls["left"] -= 1
        return risk(frame) * (np.nan if calls["left"] < 0 else 1.0)

    with pytest.raises(ModelError, match=r"batch \d+ of \d+ .*are kept in .*run again"):
        label(moody, people(), tmp_path / "labels", budget=6_000, engine=HERE)
    kept = contents(tmp_path / "labels")
    assert len(kept) > 0
    calls["left"] = 10**9
    report = label(moody, people(), tmp_path / "labels", budget=6_000, engine=HERE)
    assert report.evaluations == report.total_evaluations - kept.evaluations
    label(risk, people(), tmp_path / "calm", budget=6_000, engine=HERE)
    assert_same(contents(tmp_path / "labels"), contents(tmp_path / "calm"))


def test_budgets_that_are_too_small_spend_nothing(tmp_path: Path) -> None:
    asked = []

    def counted(frame: pd.DataFrame) -> Any:
        asked.append(len(frame))
        return risk(frame)

    with pytest.raises(
        BudgetError, match=r"leaves 9 evaluations for each of 100 rows.*give a budget of [\d,]+ or more"
    ):
        label(counted, people(), tmp_path / "labels", budget=1_000, rows=100, engine=HERE)
    assert not asked
    assert not (tmp_path / "labels").exists()
    for wrong in (0, -5, 2.5, True):
        with pytest.raises(InputError, match="budget must be a positive whole number"):
            label(risk, people(), tmp_path / "labels", budget=wrong, engine=HERE)  # type: ignore[arg-type]


def test_columns_and_data_are_checked(tmp_path: Path) -> None:
    table = people()
    with pytest.raises(InputError, match="no column 'wealth'"):
        label(risk, table, tmp_path / "labels", budget=2_000, drop=["wealth"], engine=HERE)
    with pytest.raises(InputError, match="the reference lacks the column 'years'"):
        label(risk, table, tmp_path / "l", budget=2_000, reference=table.drop(columns="years"), engine=HERE)
    with pytest.raises(InputError, match="infinite values: column 'debt'"):
        label(risk, table.assign(debt=np.inf), tmp_path / "labels", budget=2_000, engine=HERE)
    with pytest.raises(InputError, match="no rows"):
        label(risk, table.iloc[:0], tmp_path / "labels", budget=2_000, engine=HERE)
    with pytest.raises(InputError, match="file system"):
        label(risk, table, "s3://bucket/labels", budget=2_000, engine=HERE)
    extra = table.assign(id=np.arange(len(table)), label=1)
    label(risk, extra, tmp_path / "labels", budget=2_000, drop=["id", "label"], engine=HERE)
    label(risk, extra, tmp_path / "others", budget=2_000, columns=list(table.columns), engine=HERE)
    assert_same(contents(tmp_path / "labels"), contents(tmp_path / "others"))


@pytest.mark.parametrize("lacking", [0, 2])
def test_a_file_without_a_column_is_named(tmp_path: Path, lacking: int) -> None:
    table = people()
    files = write_parts(table, tmp_path / "files", [40, 90])
    path = sorted(files.rglob("*.parquet"))[lacking]
    pq.write_table(pq.read_table(path).drop_columns(["years"]), path)
    for columns in (None, list(table.columns)):
        with pytest.raises(InputError, match=f"{path.name} lacks the column 'years'"):
            label(risk, files, tmp_path / "labels", budget=2_000, columns=columns, engine=HERE)
    assert not (tmp_path / "labels").exists()
    label(lambda frame: frame["debt"] * 2, files, tmp_path / "labels", budget=500, drop=["years"], engine=HERE)
    assert contents(tmp_path / "labels").feature_names == tuple(table.columns[:-1])


@pytest.mark.parametrize("damage", ["short", "pages"])
def test_an_unreadable_file_is_named(tmp_path: Path, damage: str) -> None:
    files = write_parts(people(), tmp_path / "files", [40, 90])
    path = sorted(files.rglob("*.parquet"))[1]
    content = bytearray(path.read_bytes())
    if damage == "short":
        content = content[: len(content) // 2]
    else:
        column = pq.ParquetFile(path).metadata.row_group(0).column(3)
        start = column.dictionary_page_offset or column.data_page_offset
        content[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(content)
    with pytest.raises(StorageError, match=str(path)):
        label(risk, files, tmp_path / "labels", budget=2_000, engine=HERE)
    assert not (tmp_path / "labels").exists()


def test_an_infinite_number_is_found_by_its_row(tmp_path: Path) -> None:
    X = np.zeros((70_000, 2))
    X[69_003, 1] = np.inf
    with pytest.raises(InputError, match="the data has infinite values: column 'x1', row 69003 "):
        label(lambda x: x[:, 0], X, tmp_path / "labels", budget=2_000, engine=HERE)


def test_what_the_model_is_given_for_parquet_files(tmp_path: Path) -> None:
    """Pandas, unless the reference or the background is a frame of another kind."""
    table = people()[["age", "debt", "score"]]
    files = write_parts(table, tmp_path / "files", [60])
    array = table.iloc[:5].to_numpy(dtype=float)
    kinds: list[str] = []

    def model(frame: Any) -> Any:
        kinds.append(type(frame).__module__.split(".")[0])
        return np.asarray(frame["debt"]) * np.asarray(frame["score"])

    frame = pa.Table.from_pandas(table.iloc[:5], preserve_index=False)
    for number, (data, absent, kind) in enumerate(
        (
            (files, {}, "pandas"),
            (place(files), {}, "pandas"),
            (files, {"reference": array}, "pandas"),
            (files, {"background": array}, "pandas"),
            (files, {"background": array.tolist()}, "pandas"),
            (files, {"reference": frame}, "pyarrow"),
            (files, {"background": frame}, "pyarrow"),
        )
    ):
        kinds.clear()
        label(model, data, tmp_path / f"{number}", budget=1_000, engine=HERE, **absent)
        assert set(kinds) == {kind}
    with pytest.raises(InputError, match="the background lacks the column 'age'"):
        label(model, files, tmp_path / "x", budget=1_000, background=table[["debt", "score"]], engine=HERE)


FULL = """
import resource, sys, numpy as np
from cortx.distributed.labelling import label
from cortx.distributed.local import LocalEngine
from cortx.errors import StorageError
X = np.random.default_rng(0).normal(size=(400, 8))
model = lambda x: x[:, 0] * x[:, 1] + x[:, 2:].prod(axis=1)
label(model, X, "labels", budget=2000, engine=LocalEngine(0))
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
try:
    label(model, X, "labels", budget=60000, engine=LocalEngine(0))
except StorageError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_full_disk_names_the_file_and_keeps_the_rest(tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL)
    done = subprocess.run([sys.executable, "full.py"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert "the disk is full" in done.stdout
    assert "part-000-" in done.stdout
    assert contents(tmp_path / "labels").evaluations <= 2_000
    assert not list((tmp_path / "labels").glob(".tmp-*"))


# The command line ----------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import typer
    from typer.testing import CliRunner

    app = typer.Typer(rich_markup_mode="rich")
    app.command()(label_command)
    monkeypatch.chdir(tmp_path)
    columns = {f"c{j}": np.random.default_rng(j).normal(size=90) for j in range(8)}
    write_parts(pd.DataFrame(columns).assign(y=1), tmp_path / "train", [30])
    (tmp_path / "quickly.py").write_text(SCRIPT.replace("time.sleep(0.03)", "pass"))
    arguments = ["--model", "quickly:model", "--data", "train", "--drop", "y", "--out", "labels", "--rows", "20"]
    for budget, more in ((2_000, []), (4_000, ["--workers", "0"])):
        result = CliRunner().invoke(app, [*arguments, "--budget", str(budget), *(more or ["--workers", "0"])])
        assert result.exit_code == 0, result.output
        assert f"of {budget:,} in all" in result.output
    labels = contents(tmp_path / "labels")
    assert len(labels) == 20
    assert labels.feature_names == tuple(columns)
    assert json.loads((tmp_path / "labels" / "labels.json").read_text())["explains"]["model_frame"] == "pandas"
    help_text = CliRunner().invoke(app, ["--help"]).output
    assert "--budget" in help_text
    assert "cortx label --model" in help_text
