"""The folder of labels: what it keeps, how it refuses damaged and foreign files, and how a fit reads it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cortx
from cortx.distributed.labelling import label
from cortx.distributed.local import LocalEngine
from cortx.errors import ArtifactError, FingerprintError, InputError, StorageError
from cortx.explainer import label_folder
from cortx.explainer.label_folder import LabelFolder, priorities
from cortx.explainer.label_part import LabelPart
from cortx.training.recipe import Recipe

HERE = LocalEngine(workers=0)


def loans(rows: int = 260) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {
            "amount": rng.normal(size=rows),
            "purpose": rng.choice(["car", "house", "ö=,;", None], rows),
            "term": rng.integers(1, 6, rows),
            "fixed": rng.random(rows) < 0.5,
            "rate": rng.normal(size=rows),
        }
    )
    frame.loc[::9, "rate"] = np.nan
    return frame


def default(frame: pd.DataFrame) -> Any:
    rate = frame["rate"].fillna(-1).to_numpy(dtype=float)
    car = (frame["purpose"] == "car").to_numpy(dtype=float)
    missing = frame["purpose"].isna().to_numpy(dtype=float)
    fixed = frame["fixed"].to_numpy(dtype=float)
    return np.tanh(frame["amount"].to_numpy(dtype=float) * rate) + car * rate + fixed * 0.3 - missing * frame["term"]


def worse(frame: pd.DataFrame) -> Any:
    return default(frame) * 1.1


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "labels"
    label(default, loans(), folder, budget=4_000, engine=HERE)
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "labels"))


# What is kept --------------------------------------------------------------------------------------------------------


def test_rows_come_back_as_they_were(made: Path) -> None:
    labels = LabelFolder.open(made).read()
    rows = labels.data.to_pandas()
    known = loans()
    both = rows.merge(known.drop_duplicates(), how="left", indicator=True)
    assert (both["_merge"] == "both").all()
    assert rows["purpose"].isna().any()
    assert rows["rate"].isna().any()
    assert labels.data.schema.field("fixed").type == pa.bool_()
    assert labels.data.schema.field("term").type == pa.int64()
    np.testing.assert_allclose(np.asarray(default(rows)), labels.outputs)
    np.testing.assert_allclose(labels.values.sum(axis=1) + labels.base_values, labels.outputs)
    words = cortx.Game(default, reference=known).rows(labels.data).words
    assert (np.diff(priorities(words, 0).astype(object)) > 0).all()


def test_every_file_says_what_it_belongs_to(made: Path) -> None:
    manifest = json.loads((made / "labels.json").read_text())
    assert manifest["format"] == "cortx-labels"
    for path in made.glob("part-*.parquet"):
        table = pq.read_table(path)
        facts = json.loads(table.schema.metadata[b"cortx"])
        assert {name: facts[name] for name in ("game", "model")} == manifest["fingerprints"]
        assert table.schema.field("word").type == pa.uint64()
        assert table.column("row").type.num_fields == 5
        assert set(table.column("method").to_pylist()) == {"exact"}
        assert set(table.column("round").to_pylist()) == {0}


def test_the_game_comes_back_with_its_model_only(made: Path) -> None:
    folder = LabelFolder.open(made)
    game = folder.game(default)
    assert game.evaluations == len(folder.probe)  # which recognises the model
    labels = folder.read()
    again = cortx.shapley(game, labels.data)
    np.testing.assert_allclose(again.values, labels.values, atol=1e-12)
    assert again.evaluations == labels.evaluations - 1  # the base value was known
    with pytest.raises(FingerprintError, match=r"outputs differ by up to 0\.\d+"):
        folder.game(worse)


def test_free_views_are_those_of_shapley(made: Path) -> None:
    folder = LabelFolder.open(made)
    labels, game = folder.read(), folder.game(default)
    assert labels.views is not None
    table = game.rows(labels.data)
    for copy in range(0, len(labels.views), 997):
        row, kept = labels.views.rows[copy], labels.views.kept[copy]
        value = game.values(table.take(np.array([row])), kept[None, :])[0, 0]
        np.testing.assert_allclose(labels.views.outputs[copy], value)
        total = labels.views.values[copy].sum(axis=0)
        np.testing.assert_allclose(total, value - game.base_values, atol=1e-6)
        assert (labels.views.values[copy][~kept] == 0).all()


def test_a_part_survives_the_way_through_arrow() -> None:
    game = cortx.Game(default, reference=loans())
    some = pa.Table.from_pandas(loans(17), preserve_index=False)
    labels = cortx.shapley(game, some, row_budget=2**5, views=7, seed=4)
    words = game.rows(some).words
    part = LabelPart.of(labels, words, some, round=2, seed=9)
    assert part.exact.all()
    back = LabelPart.from_arrow(part.to_arrow(), 5, 0.5, most_views=5)
    for name in ("words", "values", "errors", "outputs", "base", "evaluations", "exact"):
        np.testing.assert_array_equal(getattr(back, name), getattr(part, name))
    assert (back.round, back.seed, back.seconds) == (2, 9, 0.5)
    assert back.rows.equals(some)
    assert back.views is not None
    assert labels.views is not None
    assert np.bincount(back.views.rows).max() == 5
    first = np.concatenate([np.flatnonzero(labels.views.rows == row)[:5] for row in range(17)])
    np.testing.assert_array_equal(back.views.kept, labels.views.kept[first])
    np.testing.assert_allclose(back.views.values, labels.views.values[first], rtol=1e-6)


def test_a_label_that_was_made_twice_counts_once(copied: Path) -> None:
    folder = LabelFolder.open(copied)
    before = folder.read()
    path = folder.parts()[0]
    shutil.copy(path, path.with_name("part-000-again.parquet"))
    after = LabelFolder.open(copied).read()
    assert after.evaluations == before.evaluations
    np.testing.assert_array_equal(after.values, before.values)
    assert label(default, loans(), copied, budget=4_000, engine=HERE).evaluations == 0


def test_files_that_are_added_while_others_are_read_wait(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = LabelFolder.open(copied).parts()[0]
    aside = late.rename(copied.parent / late.name)
    before, split = LabelFolder.open(copied).read(), LabelFolder.open(copied).split(0.3)
    parts = LabelFolder.parts

    def then_one_more(self: LabelFolder) -> list[Path]:
        found = parts(self)
        if aside.exists():
            aside.rename(late)
        return found

    monkeypatch.setattr(LabelFolder, "parts", then_one_more)
    after = LabelFolder.open(copied).read()
    late.rename(aside)
    for one, two in zip((before, *split), (after, *LabelFolder.open(copied).split(0.3)), strict=True):
        np.testing.assert_array_equal(one.values, two.values)
        assert one.evaluations == two.evaluations
    assert len(LabelFolder.open(copied).read()) > len(before)


def test_files_are_never_overwritten(copied: Path) -> None:
    folder = LabelFolder.open(copied)
    path = folder.parts()[0]
    facts = json.loads(pq.read_schema(path).metadata[b"cortx"])
    part = LabelPart.from_arrow(pq.read_table(path), 5, 1.0, most_views=3)
    before = path.read_bytes()
    assert folder.append(replace(part, values=part.values + 1), facts["values"]) == path.name
    assert path.read_bytes() == before


def test_what_killed_writers_left_is_ignored_and_removed(copied: Path) -> None:
    import os

    old, new = copied / ".tmp-abc-part-1.parquet", copied / ".tmp-def-part-2.parquet"
    for path in (old, new):
        path.write_bytes(b"PAR1 half a file")
    os.utime(old, (1, 1))
    label(default, loans(), copied, budget=4_000, engine=HERE)
    assert not old.exists()
    assert new.exists()  # somebody may still be writing it
    assert len(LabelFolder.open(copied).read()) > 0


def test_splits_are_stable_when_the_folder_grows(tmp_path: Path) -> None:
    def roles(budget: int) -> tuple[set[int], set[int], int]:
        label(default, loans(), tmp_path / "labels", budget=budget, engine=HERE)
        folder = LabelFolder.open(tmp_path / "labels")
        learn, calibrate = folder.split(0.3)
        assert learn.evaluations + calibrate.evaluations == folder.read().evaluations
        assert learn.evaluations == learn.row_evaluations.sum() + 1
        game = folder.game(default)
        one, two = (set(game.rows(part.data).words.tolist()) for part in (learn, calibrate))
        assert not one & two
        assert len(one | two) == len(folder.read())
        return one, two, len(folder.read())

    learn, calibrate, few = roles(2_000)
    more_learn, more_calibrate, many = roles(10**6)
    assert learn < more_learn
    assert calibrate < more_calibrate
    assert few < many
    assert 0.2 * many < len(more_calibrate) < 0.4 * many
    with pytest.raises(InputError, match="calibration_share"):
        LabelFolder.open(tmp_path / "labels").split(1.5)


# What is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["short", "bits", "text"])
def test_a_damaged_file_is_named(copied: Path, damage: str) -> None:
    path = LabelFolder.open(copied).parts()[0]
    content = bytearray(path.read_bytes())
    if damage == "short":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "text":
        path.write_text("not a table")
    else:
        group = pq.ParquetFile(path).metadata.row_group(0)
        values = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema.startswith("values"))
        content[(values.dictionary_page_offset or values.data_page_offset) + values.total_compressed_size - 5] ^= 0x01
        path.write_bytes(content)
    with pytest.raises(StorageError, match=path.name):
        LabelFolder.open(copied).read()


def test_foreign_files_are_named(copied: Path, tmp_path: Path) -> None:
    loans().to_parquet(copied / "table.parquet")
    with pytest.raises(ArtifactError, match=r"table\.parquet is no file of labels"):
        LabelFolder.open(copied).read()
    (copied / "table.parquet").unlink()
    for name, settings, what in (("model", {}, "another model"), ("seed", {"seed": 1}, "another game")):
        label(worse if name == "model" else default, loans(), tmp_path / name, budget=500, engine=HERE, **settings)
        stranger = LabelFolder.open(tmp_path / name).parts()[0]
        shutil.copy(stranger, copied / stranger.name)
        with pytest.raises(ArtifactError, match=f"{stranger.name} holds labels of {what}"):
            LabelFolder.open(copied).read()
        (copied / stranger.name).unlink()


def test_foreign_folders_are_refused(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no folder of labels at"):
        LabelFolder.open(tmp_path / "nowhere")
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    for attempt in (LabelFolder.open, lambda path: label(default, loans(), path, budget=900, engine=HERE)):
        with pytest.raises(ArtifactError, match=r"not a folder of labels: it has no labels\.json"):
            attempt(other)
    manifest = copied / "labels.json"
    whole = manifest.read_text()
    for text, message in (
        (whole[:100], "damaged"),
        (whole.replace("cortx-labels", "cortx-letters"), "does not say 'cortx-labels'"),
        (whole.replace('"format_version": 1', '"format_version": 7'), "written in format 7"),
    ):
        manifest.write_text(text)
        with pytest.raises(ArtifactError, match=message):
            LabelFolder.open(copied)
    manifest.write_text(whole)
    arrays = next(copied.glob("game-*.safetensors"))
    arrays.write_bytes(arrays.read_bytes()[:-1] + b"?")
    with pytest.raises(ArtifactError, match="checksum"):
        LabelFolder.open(copied)


def test_an_empty_folder_becomes_one_of_labels(tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "game-0123.safetensors").write_bytes(b"left by a kill before the manifest was there")
    label(default, loans(), tmp_path / "labels", budget=700, engine=HERE)
    assert len(LabelFolder.open(tmp_path / "labels").read()) > 0


# A fit reads it ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fit_on_a_folder_is_a_fit_on_its_labels(made: Path, tiny_recipe: Recipe) -> None:
    folder = LabelFolder.open(made)
    table = loans()
    fits = []
    for labels in (str(made), folder.read()):
        explainer = cortx.CoRTX(tiny_recipe, seed=1).fit(folder.game(default), table, labels=labels)
        fits.append(explainer.explain(table).values)
    np.testing.assert_array_equal(*fits)


@pytest.mark.slow
def test_a_fit_with_bounds(made: Path, tiny_recipe: Recipe) -> None:
    folder = LabelFolder.open(made)
    learn, calibrate = folder.split(0.4)
    explainer = cortx.CoRTX(tiny_recipe, seed=1).fit(folder.game(default), loans(), labels=learn)
    explained = explainer.calibrate(calibrate).explain(loans(), confidence=0.8)
    assert explained.lower_bounds is not None
    assert explainer.costs_["calibration"]["evaluations"] >= calibrate.evaluations


def repeated() -> pd.DataFrame:
    """260 rows, of which 20 stand there three times, and a strange one that makes up 60% of the table."""
    rows = loans()
    strange = rows.iloc[[0]].assign(amount=6.0, rate=-4.0, purpose="car", term=5)
    return pd.concat([rows, rows.iloc[:20], rows.iloc[:20], *[strange] * 450], ignore_index=True)


def test_copies_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    label(default, repeated(), tmp_path / "labels", budget=3_500, engine=HERE)
    folder = LabelFolder.open(tmp_path / "labels")
    learn, rest = folder.split(0.4)
    assert rest.weights is not None
    assert rest.frequent is not None
    frames = [part.data.to_pandas() for part in (learn, rest)]
    for part, frame in zip((learn, rest), frames, strict=True):  # it is learned from and calibrated with
        assert (frame["amount"] == 6.0).sum() == 1
        np.testing.assert_allclose(part.outputs, default(frame))
    strange = (frames[1]["amount"] == 6.0).to_numpy()
    assert (rest.frequent == strange).all()
    assert rest.weights[strange].tolist() == [450.0]
    assert rest.weights.sum() == pytest.approx(750)
    known = repeated().groupby(list(loans().columns), dropna=False).size().rename("copies").reset_index()
    copies = frames[1].merge(known, how="left")["copies"].to_numpy()
    light = rest.weights[~strange] / copies[~strange]
    np.testing.assert_allclose(light, light[0])  # as often as the table has them, and for all that are not here
    assert set(copies[~strange]) == {1, 3}
    assert learn.evaluations + rest.evaluations == folder.read().evaluations
    assert learn.weights is None
    (tmp_path / "labels" / label_folder.COPIES).unlink()
    assert "counts once" not in caplog.text
    assert folder.split(0.4)[1].weights is None
    assert "every different row counts once" in caplog.text
    (tmp_path / "labels" / label_folder.COPIES).write_bytes(b"broken")
    with pytest.raises(StorageError, match="delete it"):
        folder.split(0.4)


def test_without_repeats_all_rows_weigh_the_same(made: Path) -> None:
    assert all(part.weights is None and part.frequent is None for part in LabelFolder.open(made).split())


@pytest.mark.slow
def test_bounds_hold_for_the_traffic_of_a_table_with_repeats(tmp_path: Path, tiny_recipe: Recipe) -> None:
    """Six draws of the labelled rows and their roles, where the hardest row makes up 60% of the table."""
    rows, game = loans(), cortx.Game(default, reference=loans())
    truth = cortx.shapley(game, rows, "exact", views=0)
    explainer = cortx.CoRTX(tiny_recipe, seed=1).fit(game, loans(400).iloc[260:], n_labels=60)
    hardest = int(explainer.calibrate(truth).calibration.rows[:, 0].argmax())
    table = pd.concat([rows, *[rows.iloc[[hardest]]] * 390], ignore_index=True)
    traffic = np.where(np.arange(len(rows)) == hardest, 391.0, 1.0)
    shares: dict[str, list[float]] = {"by copies": [], "once each": []}
    for seed in range(6):
        label(default, table, tmp_path / str(seed), budget=3_500, reference=loans(), seed=seed, engine=HERE)
        _, rest = LabelFolder.open(tmp_path / str(seed)).split(0.4)
        for how, labels in (("by copies", rest), ("once each", replace(rest, weights=None, frequent=None))):
            shown = explainer.calibrate(labels).explain(rows, confidence=0.8)
            covered = np.linalg.norm(shown.values - truth.values, axis=1) <= shown.error_bound + 1e-9
            shares[how].append(float(np.average(covered, weights=traffic)))
    assert np.mean(shares["by copies"]) >= 0.8, shares
    assert np.mean(shares["once each"]) < 0.5, shares  # what it was before copies were counted


@pytest.mark.slow
def test_a_fit_learns_from_frequent_rows_and_is_calibrated_with_them(tmp_path: Path, tiny_recipe: Recipe) -> None:
    label(default, repeated(), tmp_path / "labels", budget=3_500, engine=HERE)
    folder = LabelFolder.open(tmp_path / "labels")
    learn, rest = folder.split(0.4)
    explainer = cortx.CoRTX(tiny_recipe).fit(folder.game(default), repeated(), labels=learn, leave_out=rest)
    explainer.calibrate(rest)
    assert explainer.calibration.weights is not None
    assert explainer.calibration.effective_rows > len(rest)


@pytest.mark.slow
def test_a_fit_refuses_labels_of_another_game(made: Path, tiny_recipe: Recipe) -> None:
    table = loans()
    explainer = cortx.CoRTX(tiny_recipe)
    with pytest.raises(ArtifactError, match="the reference: 'amount' was"):
        explainer.fit(cortx.Game(default, reference=table.iloc[:100]), table, labels=made)
    with pytest.raises(FingerprintError, match="not the one of the labels"):
        explainer.fit(cortx.Game(worse, reference=table), table, labels=made)
    with pytest.raises(ArtifactError, match="the target"):
        explainer.fit(cortx.Game(default, reference=table, target="all"), table, labels=made)
    with pytest.raises(ArtifactError, match="no folder of labels"):
        explainer.fit(cortx.Game(default, reference=table), table, labels="nowhere")
    explainer.fit(
        cortx.Game(default, reference=table), table, labels=LabelFolder.open(made)
    )  # the mean of the same rows


def test_views_are_held_to_memory(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LabelFolder.open(made).read()
    monkeypatch.setattr(label_folder, "views_in_memory", lambda *_: 3)
    few = LabelFolder.open(made).read()
    assert few.views is not None
    assert whole.views is not None
    assert np.bincount(few.views.rows).max() == 3
    first = np.concatenate([np.flatnonzero(whole.views.rows == row)[:3] for row in range(len(whole))])
    np.testing.assert_array_equal(few.views.kept, whole.views.kept[first])


# Counting ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "exact", "kernel", "permutation", "unbiased", "banzhaf"])
@pytest.mark.parametrize("background", [False, True])
def test_what_rows_spend_adds_up(method: str, background: bool) -> None:
    table = loans(40)
    for budget in (14, 20, 32):
        if budget < {"exact": 32, "banzhaf": 18}.get(method, 0):
            continue
        absent: dict[str, Any] = {"background": table.iloc[:3]} if background else {"reference": table}
        game = cortx.Game(default, **absent)
        copies = game.evaluations_per_value
        labels = cortx.shapley(game, table, method, row_budget=budget * copies, seed=budget)
        assert labels.row_evaluations is not None
        assert labels.row_evaluations.sum() + copies == labels.evaluations == game.evaluations
        assert labels.row_evaluations.max() <= budget * copies
        each = [
            cortx.shapley(game, table.iloc[[row]], method, row_budget=budget * copies, seed=budget) for row in (0, 7)
        ]
        assert [labels.row_evaluations[row] for row in (0, 7)] == [one.evaluations for one in each]
        np.testing.assert_array_equal(labels[5:9].row_evaluations, labels.row_evaluations[5:9])


def test_early_stops_are_counted_by_row() -> None:
    table = np.random.default_rng(0).normal(size=(30, 10))
    game = cortx.Game(lambda x: np.abs(x).prod(axis=1) + x[:, 0], reference="zero")
    labels = cortx.shapley(game, table, "kernel", standard_error=0.05, row_budget=600)
    assert labels.row_evaluations is not None
    assert labels.row_evaluations.sum() + 1 == labels.evaluations
    assert len(set(labels.row_evaluations.tolist())) > 1
