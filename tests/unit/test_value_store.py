"""Values that were paid for are kept, in memory and in a folder, and never paid for again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cortx
from cortx.errors import ArtifactError, BudgetError, InputError, ModelError
from cortx.games import value_store
from cortx.games.calls import Calls
from cortx.games.game import Game, Rows
from cortx.games.value_store import ValueStore

BACKGROUND = np.random.default_rng(9).normal(size=(3, 6))


class Paid:
    """A model that counts its rows, and fails once it was asked about so many."""

    def __init__(self, most: int | None = None, scale: float = 1.0) -> None:
        self.count, self.most, self.scale = 0, most, scale
        self.sizes: list[int] = []

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        if self.most is not None and self.count + len(rows) > self.most:
            raise ConnectionError("out of credit")
        self.count += len(rows)
        self.sizes.append(len(rows))
        first = np.tanh(rows).sum(axis=1) + rows[:, 0] * rows[:, 1]
        return self.scale * np.stack([first, rows[:, 2] - rows[:, 3] * rows[:, 4]], axis=1)


def table(n_rows: int = 12, seed: int = 0) -> np.ndarray:
    """Rows with columns that equal the reference, and rows that are equal."""
    rng = np.random.default_rng(seed)
    made = rng.normal(size=(n_rows, 6)) * (rng.random((n_rows, 6)) < 0.7)
    made[-1] = made[0]
    return made


def coalitions(n_rows: int, k: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((n_rows, k, 6)) < 0.5


def game_of(model: Any, **settings: Any) -> Game:
    settings = settings or {"reference": "zero"}
    return cortx.Game(model, output="raw", target="all", **settings)


SETTINGS: dict[str, dict[str, Any]] = {
    "reference": {"reference": "zero"},
    "background": {"background": BACKGROUND},
    "groups": {"reference": "zero", "players": {"a": [0, 3], "b": [1, 2, 5]}},
    "calls": {"reference": "zero", "calls": Calls(workers=3, batch=4)},
    "calls-background": {"background": BACKGROUND, "calls": Calls(workers=2, batch=5)},
    "calls-large-background": {"background": BACKGROUND, "calls": Calls(workers=2, batch=2)},
}


@pytest.fixture(params=SETTINGS)
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SETTINGS[request.param]


def different(game: Game, rows: Rows, asked: np.ndarray) -> set[tuple[bytes, bytes]]:
    """A plain restatement: masked copies by the content of row and coalition, v(none) left out."""
    found = set()
    for row, active, several in zip(rows.table.matrix, rows.active, asked, strict=True):
        for coalition in several:
            kept = coalition & active
            if kept.any():
                found.add((row.tobytes(), kept.tobytes()))
    return found


def cost(game: Game, rows: Rows, pairs: set[tuple[bytes, bytes]]) -> int:
    whole = {(row.tobytes(), active.tobytes()) for row, active in zip(rows.table.matrix, rows.active, strict=True)}
    return sum(1 if pair in whole else game.evaluations_per_value for pair in pairs)


# Values and costs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_folder", [True, False])
def test_only_what_is_not_kept_is_asked_for(settings: dict[str, Any], in_folder: bool, tmp_path: Path) -> None:
    model, plain = Paid(), game_of(Paid(), **settings)
    game = game_of(model, **settings)
    rows, folder = game.rows(table()), tmp_path if in_folder else None
    before = len(game.base_values) and model.count
    store, known = ValueStore.open(folder, game), set()
    for seed in (0, 1, 0, 2):
        asked = coalitions(len(rows), 4, seed)[:, :, : game.n_players]
        asked = asked[0] if seed == 2 else asked
        each = np.broadcast_to(asked, (len(rows), 4, game.n_players))
        new = different(game, rows, each) - known
        assert store.missing(game, rows, asked) == cost(game, rows, new)
        found = store.values(game, rows, asked)
        np.testing.assert_allclose(found, plain.values(plain.rows(table()), asked), atol=1e-12)
        known |= new
        assert model.count - before == game.evaluations - before == store.bought == cost(game, rows, known)
    assert len(store) == len(known)
    if in_folder:
        again = ValueStore.open(folder, game)
        checked = again.check_cost(game, rows)
        assert 0 < checked <= 32 * game.evaluations_per_value
        np.testing.assert_array_equal(again.values(game, rows, asked), found)
        assert model.count - before == cost(game, rows, known) + checked


def test_what_is_kept_is_in_one_order_whatever_was_asked_first(tmp_path: Path) -> None:
    asked = coalitions(12, 9, 0)
    whole = []
    for name, order in (("a", [0, 1, 2]), ("b", [2, 0, 1])):
        game = game_of(Paid(), reference="zero")
        rows = game.rows(table())
        store = ValueStore.open(tmp_path / name, game)
        for part in order:
            store.values(game, rows, asked[:, part * 3 : part * 3 + 3])
            store.everything()
        whole += [store.everything(), ValueStore.open(tmp_path / name, game).everything()]
    assert (np.diff(whole[0].keys.astype(object)) > 0).all()
    for other in whole[1:]:
        for name in ("keys", "rows", "coalitions", "values"):
            np.testing.assert_array_equal(getattr(other, name), getattr(whole[0], name))


def test_kept_values_of_a_table_are_found_by_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_store, "PAIRS", 17)
    game = game_of(Paid())
    everyone, some = game.rows(table(20)), game.rows(table(20)[[4, 11, 4, 2]])
    store = ValueStore.open(None, game)
    store.values(game, everyone, coalitions(20, 6, 0))
    seen = set()
    for index, kept, values in store.of_rows(some):
        assert set(index.tolist()) <= {0, 1, 3}  # of equal rows the first
        np.testing.assert_allclose(values, game.pair_values(some, index, kept), atol=1e-12)
        seen |= {(some.table.matrix[i].tobytes(), mask.tobytes()) for i, mask in zip(index, kept, strict=True)}
    assert seen == different(game, everyone.take(np.array([4, 11, 2])), coalitions(20, 6, 0)[[4, 11, 2]])
    assert list(ValueStore.open(None, game).of_rows(some)) == []


def test_kept_values_count_against_a_budget_once() -> None:
    model = Paid()
    game = game_of(model, background=BACKGROUND)
    rows, asked = game.rows(table()), coalitions(12, 5, 0)
    store = ValueStore.open(None, game)
    store.values(game, rows, asked)
    paid, asked_for = store.bought, model.count
    with game.spending(None) as ledger:
        store.values(game, rows, asked)
        assert ledger.spent == 0  # this fit paid for them
    store.begin()
    checked = store.check_cost(game, rows)
    with game.spending(None) as ledger:
        for _ in range(2):
            store.values(game, rows, asked)
            assert ledger.spent == paid + checked
    assert store.reused == paid
    assert store.bought == 0
    assert model.count == game.evaluations == asked_for + checked
    store.begin()
    with game.spending(paid + checked - 1), pytest.raises(BudgetError):
        store.values(game, rows, asked)


# Failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [None, Calls(workers=1, batch=8), Calls(workers=3, batch=8)])
def test_a_model_that_fails_loses_nothing_it_answered(calls: Calls | None, tmp_path: Path) -> None:
    model = Paid(most=150)
    game = game_of(model, reference="zero", calls=calls)
    rows, asked = game.rows(table(30)), coalitions(30, 15, 0)
    store = ValueStore.open(tmp_path, game)
    with pytest.raises(ModelError, match=r"out of credit.* values .* kept: call again .* once the model"):
        store.values(game, rows, asked)
    answered = model.count - 1  # v(none) aside
    assert answered > 50
    model.most = None
    again = ValueStore.open(tmp_path, game)
    assert len(again) == len(store) == answered
    checked = again.check_cost(game, rows)
    again.values(game, rows, asked)
    assert model.count - 1 - checked == len(different(game, rows, asked))


@pytest.mark.parametrize("calls", [None, Calls(workers=2, batch=8)])
def test_a_budget_that_ends_loses_nothing_it_paid_for(calls: Calls | None) -> None:
    model = Paid()
    game = game_of(model, reference="zero", calls=calls)
    rows, asked = game.rows(table(30)), coalitions(30, 15, 0)
    store = ValueStore.open(None, game)
    with (
        game.spending(200),
        pytest.raises(BudgetError, match="kept: call again on this explainer with a larger budget"),
    ):
        store.values(game, rows, asked)
    assert 100 < len(store) == model.count - 1 < 200
    store.values(game, rows, asked)
    assert model.count - 1 == len(different(game, rows, asked))


@pytest.mark.parametrize("calls", [None, Calls(workers=2, batch=2), Calls(workers=2, batch=8)])
def test_a_value_that_cannot_be_paid_for_as_a_whole_is_not_begun(calls: Calls | None) -> None:
    model = Paid()
    game = game_of(model, background=BACKGROUND, calls=calls)
    rows = game.rows(table(30))
    store, none = ValueStore.open(None, game), len(game.base_values) and model.count
    asked = coalitions(30, 15, 0) & (np.arange(6) < 5)
    with game.spending(100), pytest.raises(BudgetError, match=r"of 100 .* are kept: call again"):
        store.values(game, rows, asked)
    whole = sum(int((mask == active).all()) for index, masks, _ in store.of_rows(rows)
                for mask, active in zip(masks, rows.active[index], strict=True))  # fmt: skip
    assert model.count - none == 3 * (len(store) - whole) + whole <= 100
    assert len(store) > 15


def test_an_interrupt_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    model = Paid()
    game = game_of(model)
    rows = game.rows(table(30))

    def interrupted(batch: np.ndarray) -> np.ndarray:
        if model.count > 100:
            raise KeyboardInterrupt
        return Paid.__call__(model, batch)

    game.model.function = interrupted  # type: ignore[attr-defined]
    store = ValueStore.open(tmp_path, game)
    with pytest.raises(KeyboardInterrupt):
        store.values(game, rows, coalitions(30, 15, 0))
    assert len(ValueStore.open(tmp_path, game)) == model.count - 1 > 0


# Batches and files ------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds_a_call", "seconds_a_row"), [(0.0, 0.0), (1e-3, 1e-5), (0.0, 0.02), (0.0, 5.0), (3.0, 1e-3)]
)
def test_batches_suit_the_speed_of_the_model(seconds_a_call: float, seconds_a_row: float, tmp_path: Path) -> None:
    """By a clock that only the model moves: a slow one is asked little at a time, and each batch is written."""
    clock, model = Clock(), Paid()
    unwritten: list[float] = []
    sizes: list[int] = []
    written = [0.0]

    def slow(rows: np.ndarray) -> np.ndarray:
        unwritten.append(clock.now - written[-1])
        sizes.append(len(rows))
        clock.now += seconds_a_call + seconds_a_row * len(rows)
        return Paid.__call__(model, rows)

    game = game_of(slow)
    rows = game.rows(table(200))
    _ = game.base_values
    store = ValueStore(game, tmp_path, clock)
    write_part = store._write_part

    def noted(kept: Any) -> Any:
        written.append(clock.now)
        return write_part(kept)

    store._write_part = noted  # type: ignore[method-assign]
    written[:], sizes[:], unwritten[:] = [clock.now], [], []
    store.values(game, rows, coalitions(200, 3, 0) | (np.arange(6) == 0))
    longest = max(seconds_a_call + seconds_a_row * size for size in sizes)
    assert max(unwritten) <= value_store.SECONDS_AT_RISK + longest
    if seconds_a_row >= 0.02:
        assert seconds_a_row * max(sizes) <= max(2 * value_store.SECONDS_AT_RISK, 8 * seconds_a_row)
    else:  # whatever the clock says, and also where the calls themselves take the time
        assert sizes[:-1] == [4 * 2**i for i in range(len(sizes) - 1)]


def test_files_are_joined_and_hold_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_store, "MOST_SMALL_PARTS", 5)
    monkeypatch.setattr(value_store, "SMALL_PART", 60)
    game = game_of(Paid(), reference="zero", calls=Calls(workers=1, batch=3))
    rows, asked = game.rows(table(25)), coalitions(25, 12, 0)
    store = ValueStore.open(tmp_path, game)
    store.values(game, rows, asked)
    files = list(tmp_path.glob("values-*.safetensors"))
    assert len(files) < len(store) / 15
    assert len(list(tmp_path.iterdir())) == len(files)
    again = ValueStore.open(tmp_path, game)
    np.testing.assert_array_equal(again.everything().values, store.everything().values)
    np.testing.assert_array_equal(again.everything().keys, store.everything().keys)
    more = coalitions(25, 12, 1)
    again.values(game, rows, more)  # files of the run before are joined too
    assert len(list(tmp_path.glob("values-*.safetensors"))) <= 5 + len(again) / 60
    assert len(ValueStore.open(tmp_path, game)) == len(different(game, rows, np.concatenate([asked, more], axis=1)))


def test_a_kill_between_joining_and_removing_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_store, "MOST_SMALL_PARTS", 3)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # as if it never came to that
    game = game_of(Paid(), reference="zero", calls=Calls(workers=1, batch=3))
    rows, asked = game.rows(table(9)), coalitions(9, 5, 0)
    store = ValueStore.open(tmp_path, game)
    store.values(game, rows, asked)
    assert len(ValueStore.open(tmp_path, game)) == len(store) == len(different(game, rows, asked))


def test_two_runs_in_one_folder_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_store, "MOST_SMALL_PARTS", 4)
    game = game_of(Paid(), reference="zero", calls=Calls(workers=1, batch=3))
    rows = game.rows(table())
    one, other = ValueStore.open(tmp_path, game), ValueStore.open(tmp_path, game)
    every = [coalitions(12, 4, seed) for seed in range(6)]
    for number, asked in enumerate(every):
        (one if number % 2 else other).values(game, rows, asked)
    third = ValueStore.open(tmp_path, game)
    assert len(third) == len(different(game, rows, np.concatenate(every, axis=1)))


def test_files_that_vanish_while_they_are_read_are_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = game_of(Paid(), reference="zero", calls=Calls(workers=1, batch=3))
    rows, asked = game.rows(table()), coalitions(12, 4, 0)
    store = ValueStore.open(tmp_path, game)
    store.values(game, rows, asked)
    read = value_store.read_whole
    first = iter([True])

    def joined_meanwhile(path: Path) -> bytes:
        if next(first, False):
            with monkeypatch.context() as eager:
                eager.setattr(value_store, "MOST_SMALL_PARTS", 1)
                store.values(game, rows, coalitions(12, 4, 1))
        return read(path)

    monkeypatch.setattr(value_store, "read_whole", joined_meanwhile)
    assert len(ValueStore.open(tmp_path, game)) >= len(different(game, rows, asked))


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Game]:
    game = game_of(Paid())
    rows = game.rows(table())
    ValueStore.open(tmp_path, game).values(game, rows, coalitions(12, 4, 0))
    return tmp_path, game


@pytest.mark.parametrize("damage", [b"", b"x" * 50, None])
def test_damaged_files_are_called_out(kept: tuple[Path, Game], damage: bytes | None) -> None:
    folder, game = kept
    file = next(folder.glob("values-*"))
    content = file.read_bytes()
    file.write_bytes(content[:-9] if damage is None else damage)
    with pytest.raises(ArtifactError, match=r"are damaged \(.*\); delete the file, and they are asked for again"):
        ValueStore.open(folder, game)


def test_values_of_another_game_or_model_are_refused(kept: tuple[Path, Game], tmp_path_factory: Any) -> None:
    folder, game = kept
    with pytest.raises(ArtifactError, match="belong to another game"):
        ValueStore.open(folder, game_of(Paid(), reference=np.ones(6)))
    other = game_of(Paid(scale=1.01))
    rows, asked = other.rows(table()), coalitions(12, 4, 0)
    with pytest.raises(ArtifactError, match="belong to another model"):
        ValueStore.open(folder, other).values(other, rows, asked)
    shifted = game_of(lambda batch: Paid()(batch) + 1)  # known by v(none), also where no row is known
    unknown = shifted.rows(table(5, seed=3))
    with pytest.raises(ArtifactError, match="belong to another model"):
        ValueStore.open(folder, shifted).values(shifted, unknown, asked[:5])
    copied = tmp_path_factory.mktemp("copy") / "values"
    shutil.copytree(folder, copied)
    ValueStore.open(copied, game).values(game, game.rows(table()), asked)


def test_one_value_is_enough_to_recognise_a_model_that_rounds(tmp_path: Path) -> None:
    """As a network in float32 does, whose outputs depend on what else is in the batch."""
    for noise, same in ((1e-7, True), (0.1, False)):
        folder = tmp_path / str(same)
        game = game_of(Paid())
        rows = game.rows(table()[:1])
        ValueStore.open(folder, game).values(game, rows, rows.active[:, None, :])
        rounding = game_of(lambda batch, noise=noise: Paid()(batch) * (1 + noise))
        rows = rounding.rows(table()[:1])
        assert ValueStore.open(folder, rounding).belongs_to(rounding, rows) == same


def test_in_memory_the_values_of_another_model_are_forgotten() -> None:
    game, changed = game_of(Paid()), Paid(scale=2.0)
    rows, asked = game.rows(table()), coalitions(12, 4, 0)
    store = ValueStore.open(None, game)
    store.values(game, rows, asked)
    store.begin()
    other = game_of(changed)
    found = store.values(other, other.rows(table()), asked)
    np.testing.assert_allclose(found, game.values(rows, asked) * 2)


# A game that keeps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["exact", "kernel", "permutation"])
def test_estimators_pay_once_for_what_is_kept(method: str, tmp_path: Path) -> None:
    model = Paid()
    game = game_of(model)
    store = ValueStore.open(tmp_path, game) if game.rows(table()) else None
    assert store is not None
    truth = cortx.shapley(game_of(Paid()), table(), method, row_budget=64, seed=1)
    counts = []
    for _ in range(2):
        with game.keeping(store):
            labels = cortx.shapley(game, table(), method, row_budget=64, seed=1)
        np.testing.assert_allclose(labels.values, truth.values, atol=1e-10)
        np.testing.assert_array_equal(labels.row_evaluations, truth.row_evaluations)
        counts.append(model.count)
    assert counts[1] == counts[0] <= truth.evaluations
    before = model.count
    game.full_values(game.rows(table()))  # outside the block the model is asked again
    assert model.count == before + 12


def test_values_of_images_are_not_kept() -> None:
    game = Game(lambda images: images.mean(axis=(1, 2)), "zero", players=cortx.Patches(2), output="raw")
    game.rows(np.random.default_rng(0).random((5, 4, 4)).astype(np.float32))
    with pytest.raises(InputError, match="games of tables"), game.keeping(ValueStore.open(None, game)):
        pass


def test_values_of_another_model_are_noticed_by_the_first_rows_that_have_some() -> None:
    """Rows without kept values say nothing of the model: their turn must not count as a check."""
    table = np.random.default_rng(0).normal(size=(40, 4))
    none = np.zeros((1, 4))
    old, new = (cortx.Game(lambda x, k=k: x @ np.full(4, k), reference=none, categorical=()) for k in (1.0, 2.0))
    first, second = old.rows(table[:20]), old.rows(table[20:])
    coalitions = np.array([[True, True, False, False], [True, True, True, False]])
    store = ValueStore.open(None, old)
    store.values(old, first, coalitions)
    store.begin()
    bought = store.values(new, second, coalitions)
    np.testing.assert_allclose(store.values(new, first, coalitions)[:, 0, 0], 2 * table[:20, :2].sum(axis=1))
    spent = new.evaluations
    np.testing.assert_array_equal(store.values(new, second, coalitions), bought)  # what was paid for now is still there
    assert new.evaluations == spent


def test_games_whose_references_differ_in_a_text_have_other_keys() -> None:
    """The codes of two references may be alike: what they stand for is not."""
    import pandas as pd

    table = pd.DataFrame({"kind": list("abcabcabcabc"), "size": np.arange(12.0)})

    def model(rows: Any) -> np.ndarray:
        return np.where(rows["kind"] == "a", 3.0, 0.0) + rows["size"].to_numpy()

    games = [cortx.Game(model, reference=pd.DataFrame({"kind": [kind], "size": [0.0]})) for kind in ("a", "b", "a")]
    stores = [ValueStore.open(None, game) for game in games if game.rows(table)]
    assert stores[0].key == stores[2].key != stores[1].key
    again = cortx.Game(model, reference=pd.DataFrame({"size": [0.0], "kind": ["a"]})[["kind", "size"]])
    again.rows(table.iloc[::-1])  # categories in another order
    assert ValueStore.open(None, again).key == stores[0].key


def test_other_threads_pay_for_themselves() -> None:
    from threading import Thread

    game, rows_of = game_of(Paid()), table()
    rows, asked = game.rows(rows_of), coalitions(12, 5, seed=1)
    store = ValueStore.open(None, game)
    found: list[np.ndarray] = []
    with game.keeping(store), game.spending(None) as ledger:
        thread = Thread(target=lambda: found.append(game.values(rows, asked)))
        thread.start()
        thread.join()
        assert (len(store), store.bought, ledger.spent) == (0, 0, 0)
        np.testing.assert_allclose(game.values(rows, asked), found[0])
        assert len(store) > 0
    assert store.bought == ledger.spent
