"""What every rival that samples promises: right values, honest cost, no trace in the global generators."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import make_model

import cortx
from cortx import Game
from cortx.errors import BudgetError, InputError, MissingDependencyError
from cortx.paper import permutations as experiment
from cortx.paper.tables import PAPER
from cortx.rivals import IMAGE_RIVALS, RIVALS, Rival

N = 5
LEARNED = ("fastshap", "fastshap-images", "supervised", "l2x")
OURS = ("kernel", "permutation")
EXACT = ("kernel", "permutation", "shap-kernel", "shap-exact", "shapiq-kernel")
"""Those that enumerate when the budget allows."""
COMPILED = ("shap-permutation", "shap-exact")
"""Those whose first call compiles for seconds."""
SAMPLERS = [name for name in RIVALS if name not in (*LEARNED, *IMAGE_RIVALS)]
PEERS = [name for name in SAMPLERS if name not in OURS]


def each(names: Any, *slow: str) -> Any:
    marks = {name: [pytest.mark.slow] if name in slow else [] for name in names}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks[name]) for name in names])


every_rival, every_peer = each(SAMPLERS, *COMPILED), each(PEERS, *COMPILED)


def build(name: str, game: Game, **settings: Any) -> Rival:
    maker: Any = RIVALS[name]
    return maker(game, **settings)


def product(rows: np.ndarray) -> np.ndarray:
    """Interactions of two and of three features."""
    return rows[:, 0] * rows[:, 1] + np.tanh(rows[:, 2] * rows[:, 3] * rows[:, 4]) - rows[:, 3]


REFERENCE = np.array([0.5, -0.25, 0.0, 1.0, 0.25])
KINDS = ("torch", "function")


def game_of(kind: str) -> Game:
    if kind == "torch":
        return Game(make_model(N), reference=REFERENCE, output="probability")
    return Game(product, reference=REFERENCE)


@cache
def table() -> np.ndarray:
    rows = np.random.default_rng(3).normal(size=(3, N))
    rows[1, 2] = REFERENCE[2]  # one feature that cannot matter
    rows[2] = REFERENCE  # and a row with none that could
    return rows


@cache
def orders(kind: str) -> np.ndarray:
    """Marginal contributions in every order of the features, (orders, rows, features), by the definition."""
    game, found = game_of(kind), []
    for order in permutations(range(N)):
        marginals = np.zeros((len(table()), N))
        for i, row in enumerate(table()):
            masked = REFERENCE.copy()
            before = value(game, masked)
            for j in order:
                masked[j] = row[j]
                after = value(game, masked)
                marginals[i, j], before = after - before, after
        found.append(marginals)
    return np.array(found)


@cache
def memo(kind: str) -> dict[bytes, float]:
    return {}


def value(game: Game, row: np.ndarray) -> float:
    known = memo(type(game.model).__name__)
    key = row.tobytes()
    if key not in known:
        known[key] = float(game.full_values(game.rows(row[None]))[0, 0])
    return known[key]


# Right values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@each(SAMPLERS, *COMPILED, "captum-kernel")
def test_a_large_budget_gives_the_shapley_value(name: str, kind: str) -> None:
    budget = 1_500
    explanation = build(name, game_of(kind), row_budget=budget, seed=1).explain(table())
    truth = orders(kind).mean(axis=0)
    exact = cortx.shapley(game_of(kind), table(), "exact", views=0, progress=False)
    np.testing.assert_allclose(exact.values, truth, atol=1e-6)
    # Five standard errors of plain order sampling at this price, for the feature that is hardest to tell.
    spread = orders(kind).std(axis=0).max(axis=1, keepdims=True) / np.sqrt(budget / N)
    tolerance = 1e-6 if name in EXACT else 5 * spread + 1e-6
    assert (np.abs(explanation.values - truth) <= tolerance).all()


@pytest.mark.parametrize("kind", KINDS)
@every_rival
def test_values_add_up(name: str, kind: str) -> None:
    budget = 200 if name == "shap-exact" else 16
    explanation = build(name, game_of(kind), row_budget=budget).explain(table())
    assert explanation.outputs is not None
    gap = explanation.values.sum(axis=1) - (explanation.outputs - explanation.base_values)
    # captum's and shapiq's regressions weigh the two ends heavily instead of holding them fast.
    assert np.abs(gap).max() < 1e-5
    assert (explanation.values[2] == 0).all()


@every_rival
def test_the_result_says_what_it_is(name: str) -> None:
    game = game_of("function")
    explanation = build(name, game, row_budget=200).explain(table())
    assert explanation.method == name
    assert explanation.feature_names == game.players.names
    assert explanation.data is table()
    assert explanation.seconds > 0
    np.testing.assert_allclose(explanation.base_values, product(REFERENCE[None])[0])
    np.testing.assert_allclose(explanation.outputs, product(table()))


@each(("shap-kernel", "captum-sampling", "shapiq-kernel"))
def test_columns_of_text(name: str) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0], "colour": ["red", "blue", "red"], "age": [5.0, 6.0, 7.0]})

    def price(rows: Any) -> np.ndarray:
        return rows["size"].to_numpy() * (rows["colour"] == "blue").to_numpy() + rows["age"].to_numpy()

    game = Game(price, reference=frame.iloc[:1])
    truth = cortx.shapley(game, frame, "exact", views=0, progress=False)
    explanation = build(name, game, row_budget=600).explain(frame)
    np.testing.assert_allclose(explanation.values, truth.values, atol=0.2)
    assert np.abs(truth.values).max() > 1


@each(("shap-kernel", "captum-kernel", "captum-sampling"))
def test_the_class_that_the_game_explains(name: str) -> None:
    model = make_model(N, n_outputs=2)
    second = build(name, Game(model, reference=REFERENCE, output="probability"), row_budget=100).explain(table())
    first = build(name, Game(model, reference=REFERENCE, output="probability", target=0), row_budget=100).explain(
        table()
    )
    np.testing.assert_allclose(first.values, -second.values, atol=1e-5)
    assert np.abs(second.values).max() > 0.01


@each(("shap-kernel", "captum-sampling"))
def test_a_module_is_evaluated_as_for_use_and_left_as_it_was(name: str) -> None:
    model = torch.nn.Sequential(make_model(N), torch.nn.Dropout(0.5))
    model[0].eval()
    model.training = model[1].training = True
    game = Game(model, reference=REFERENCE, output="log-odds")
    explanation = build(name, game, row_budget=100).explain(table())
    again = build(name, game, row_budget=100).explain(table())
    np.testing.assert_array_equal(explanation.values, again.values)
    assert [part.training for part in model.modules()] == [True, False, False, False, False, True]


# Cost and randomness --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@every_rival
def test_evaluations_are_counted_and_within_the_budget(name: str, kind: str) -> None:
    seen = 0

    def count(rows: Any) -> Any:
        nonlocal seen
        seen += len(rows)

    model = make_model(N)
    model.register_forward_pre_hook(lambda _, inputs: count(inputs[0]))
    if kind == "torch":
        game = Game(model, reference=REFERENCE)
    else:
        game = Game(lambda rows: (count(rows), product(rows))[1], reference=REFERENCE)
    budget = 40
    explanation = build(name, game, row_budget=budget).explain(table())
    assert explanation.evaluations == game.evaluations == seen
    assert seen <= budget * len(table()) + 2  # the reference, which the game and the peer ask for once
    assert seen >= 2**4


@every_peer
def test_outputs_that_are_known_are_not_asked_for(name: str) -> None:
    rival = build(name, game_of("function"), row_budget=40)
    asked = rival.explain(table())
    given = rival.explain(table(), product(table()))
    np.testing.assert_array_equal(given.values, asked.values)
    assert given.outputs is not None
    np.testing.assert_array_equal(given.outputs, product(table()))
    assert given.evaluations < asked.evaluations
    with pytest.raises(InputError, match=r"outputs have shape \(2,\); expected .*\(3, 1\)"):
        rival.explain(table(), [1.0, 2.0])


@every_rival
def test_seeds_decide_and_the_global_generators_are_left_alone(name: str) -> None:
    rows = table()[:2]
    np.random.seed(5)
    torch.manual_seed(5)
    before, torch_before = np.random.get_state(), torch.get_rng_state()
    settings = {"row_budget": 16 if name != "shap-exact" else 40}
    first = build(name, game_of("function"), seed=1, **settings).explain(rows).values
    after = np.random.get_state()
    assert isinstance(before, tuple)
    assert isinstance(after, tuple)
    assert before[0] == after[0]
    assert before[2:] == after[2:]
    np.testing.assert_array_equal(before[1], after[1])
    assert torch.equal(torch_before, torch.get_rng_state())
    np.random.seed(6)
    torch.manual_seed(6)
    np.testing.assert_array_equal(first, build(name, game_of("function"), seed=1, **settings).explain(rows).values)
    others = [build(name, game_of("function"), seed=seed, **settings).explain(rows).values for seed in (2, 3, 4)]
    assert any((first != other).any() for other in others) == (name != "shap-exact")


# Several outputs, and what is refused ---------------------------------------------------------------------


@each(OURS)
def test_several_outputs_are_explained_at_once(name: str) -> None:
    game = Game(make_model(N, n_outputs=3), reference=REFERENCE, output="probability")
    explanation = build(name, game, row_budget=200).explain(table())
    exact = cortx.shapley(game, table(), "exact", views=0, progress=False)
    assert explanation.shape == (3, N, 3)
    np.testing.assert_allclose(explanation.values, exact.values, atol=1e-9)


@each(PEERS)
def test_games_that_peers_differ_in_are_refused(name: str) -> None:
    rows = table()
    groups = {"pair": [0, 1]}
    for game, given, message in (
        (Game(product, background=rows), rows, "one reference row, and the game has a background of 3 rows"),
        (Game(product, reference=REFERENCE, players=groups), rows, "leave players= out"),
        (
            Game(make_model(N, n_outputs=3), reference=REFERENCE),
            rows,
            "one output, and the game has 3; give it target=",
        ),
        (Game(product, reference=REFERENCE), np.where(rows == rows[0, 0], np.nan, rows), "missing values"),
        (Game(lambda x: x[:, 0], reference=np.zeros(1)), rows[:, :1], "at least 2 features"),
    ):
        with pytest.raises(InputError, match=message):
            build(name, game).explain(given)
    with pytest.raises(BudgetError, match="at least 12 evaluations for 5 features, got 11"):
        build(name, game_of("function"), row_budget=11).explain(rows)
    with pytest.raises(InputError, match="row_budget must be a whole number"):
        build(name, game_of("function"), row_budget=0.5)


def test_an_enumeration_that_is_too_dear_is_refused() -> None:
    with pytest.raises(BudgetError, match="needs 33 evaluations for a row, and the budget is 32"):
        build("shap-exact", game_of("function"), row_budget=32).explain(table())


@each(PEERS)
def test_a_library_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name.partition("-")[0], None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'cortx-explain\[peers\]'"):
        build(name, game_of("function"))


def test_an_unknown_rival() -> None:
    with pytest.raises(InputError, match="unknown rival 'shap'; expected one of 'kernel', 'permutation'"):
        RIVALS["shap"]


@pytest.mark.slow
def test_peers_are_imported_only_when_they_are_used() -> None:
    code = "import sys, cortx.rivals.peers; print({'shap', 'captum', 'shapiq', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# The experiment -------------------------------------------------------------------------------------------


def test_the_experiment_has_a_record_for_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "LEAST_SECONDS", 0.0)
    game, rows = game_of("function"), np.random.default_rng(0).normal(size=(4, N))
    truth = cortx.shapley(game, rows, "exact", views=0, progress=False)
    methods = ("kernel", "permutation", "shap-kernel", "captum-sampling")
    records = experiment.run(game, rows, truth, budgets=(16, 40), methods=methods, seeds=(0, 1), rows_timed=2)
    cells = {(record["method"], record["at"], record["seed"]): record for record in records}
    assert len(records) == len(cells) == 4 * 2 * 2
    for (method, budget, seed), record in cells.items():
        n_rows = 4 if method in OURS else 2
        explanation = build(method, game, row_budget=budget, seed=seed).explain(rows[:n_rows])
        squares = [sum((a - b) ** 2) for a, b in zip(explanation.values, truth.values, strict=False)]
        assert record["rows"] == n_rows
        assert record["rows_timed"] == 2
        assert record["squared_l2"] == pytest.approx(sum(squares) / n_rows)
        assert record["l2"] == pytest.approx(sum(square**0.5 for square in squares) / n_rows)
        assert record["squared_l2_timed"] == pytest.approx(sum(squares[:2]) / 2)
        assert record["evaluations_per_row"] == explanation.evaluations / n_rows
        assert 0 <= record["rank_accuracy"] <= 1
        assert record["seconds_per_row"] > 0
        assert record["processor_seconds_per_row"] > 0
        if method != "captum-sampling":  # 40 evaluations cover all 32 coalitions
            assert (record["squared_l2"] < 1e-12) == (budget == 40)
    with pytest.raises(InputError, match="got 4 rows, 3 rows of truth"):
        experiment.run(game, rows, truth.values[:3])


def test_the_printed_numbers_cover_the_budgets() -> None:
    printed = {(method, at) for kind, method, _, at in PAPER if kind == "permutations" and at}
    assert printed == {(method, budget) for method in OURS for budget in experiment.BUDGETS}
