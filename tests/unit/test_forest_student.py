"""Boosted trees as a student: what they say, when they teach, and what becomes of them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import threadpoolctl
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from tests.conftest import make_tiny_recipe

import cortx
from cortx.errors import ArtifactError
from cortx.explainer import teaching
from cortx.explainer.teaching import moved
from cortx.games.tree_readers import read_sklearn_histogram
from cortx.threads import limited
from cortx.training import forest_student
from cortx.training.forest_student import ForestStudent, _side_by_side
from cortx.training.recipe import Recipe
from cortx.training.student import NetworkStudent, StudentConfig

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 5))
X[RNG.random(X.shape) < 0.03] = np.nan


def steps(x: Any) -> np.ndarray:
    """Of two outputs; no network learns it at once."""
    x = np.nan_to_num(np.asarray(x, dtype=np.float64), nan=0.1)
    first = np.where(x[:, 0] > 0.2, 1.0, -1.0) * (x[:, 1] > -0.3) + 0.5 * (x[:, 2] > 0.5)
    return np.stack([first, (x[:, 3] > 0) * 1.0 - 2.0 * (x[:, 4] > 0.7) * (x[:, 0] > 0)], axis=1)


def smooth(x: Any) -> np.ndarray:
    x = np.nan_to_num(np.asarray(x, dtype=np.float64))
    return 0.5 * x @ np.arange(1.0, 6.0) + np.tanh(x[:, 0] * x[:, 1])


def recipe() -> Recipe:
    student = StudentConfig(width=16, depth=1, steps=100, batch_size=64, label_rows=300)
    return replace(make_tiny_recipe(steps=20), student=student)


def settings(kind: str) -> dict[str, Any]:
    players = {"pair": [0, 3]} if kind == "groups" else None
    given = {"background": X[:4]} if kind == "background" else {"reference": np.zeros(5)}
    return {**given, "players": players, "categorical": ()}


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teaching, "ROUNDS", 40)
    monkeypatch.setattr(teaching, "TRIED_ROUNDS", 15)


@pytest.fixture(scope="module")
def fits() -> dict[str, tuple[cortx.CoRTX, cortx.Game]]:
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teaching, "ROUNDS", 40)
        patch.setattr(teaching, "TRIED_ROUNDS", 15)
        for kind, budget in (("reference", 6_000), ("background", 20_000), ("groups", 4_000)):
            game = cortx.Game(steps, **settings(kind))
            found[kind] = cortx.CoRTX(recipe()).fit(game, X, budget=budget, progress=False), game
    return found


@pytest.mark.parametrize("kind", ["reference", "background", "groups"])
def test_trees_teach_functions_with_steps(fits: dict[str, Any], kind: str) -> None:
    explainer, game = fits[kind]
    student = explainer.fitted.student
    assert isinstance(student, ForestStudent)
    assert explainer.costs_["student"]["kind"] == "trees"
    assert explainer.costs_["total_evaluations"] == game.evaluations
    assert explainer.fitted.network.features.has_steps
    exact = cortx.shapley(game, X[:30], "exact", views=0).values
    own = student.shapley(game.rows(X[:30]))
    assert np.linalg.norm(own - exact) < 0.4 * np.linalg.norm(exact)


@pytest.mark.parametrize("kind", ["reference", "background", "groups"])
def test_its_shapley_values_are_those_of_its_own_game(fits: dict[str, Any], kind: str) -> None:
    """By enumeration of what it says of coalitions."""
    explainer, game = fits[kind]
    student, rows = explainer.fitted.student, game.rows(X[:12])
    n = game.n_players
    coalitions = ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(bool)
    values = student.values(rows, coalitions & np.ones((len(rows), 1, 1), dtype=bool))
    np.testing.assert_allclose(values[:, 0], np.tile(game.base_values, (12, 1)))
    np.testing.assert_allclose(values, student.values(rows, coalitions))

    def asked(x: np.ndarray) -> np.ndarray:
        return values[x[:, -1].astype(int), (x[:, :-1] @ 2 ** np.arange(n)).astype(int)]

    for number in range(len(rows)):
        one = cortx.Game(lambda x, i=number: asked(np.c_[x, np.full(len(x), i)]), reference="zero", categorical=())
        by_definition = cortx.shapley(one, np.ones((1, n)), "exact", views=0).values
        np.testing.assert_allclose(student.shapley(rows)[number], by_definition[0], atol=1e-9)
    codes = torch.from_numpy(rows.table.matrix)
    labels, totals = student.labels(codes, 0)
    np.testing.assert_allclose(labels, student.shapley(rows), atol=1e-5)
    np.testing.assert_allclose(totals, student.totals(codes), atol=1e-5)
    np.testing.assert_allclose(totals, values[:, -1] - values[:, 0], atol=1e-5)


def test_a_network_teaches_smooth_functions(caplog: pytest.LogCaptureFixture) -> None:
    game = cortx.Game(smooth, reference=np.zeros(5), categorical=())
    explainer = cortx.CoRTX(recipe()).fit(game, X, budget=4_000, progress=False)
    assert isinstance(explainer.fitted.student, NetworkStudent)
    assert not explainer.fitted.network.features.has_steps


def test_without_scikit_learn_a_network_teaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.ensemble", None)
    assert not forest_student.can_grow()
    game = cortx.Game(steps, reference=np.zeros(5), categorical=())
    tiny = replace(recipe(), student=StudentConfig(width=8, depth=1, steps=20, batch_size=32, label_rows=300))
    explainer = cortx.CoRTX(tiny).fit(game, X, budget=4_000, progress=False)
    assert not isinstance(explainer.fitted.student, ForestStudent)


def test_it_is_saved_and_corrects_labels(fits: dict[str, Any], tmp_path: Path) -> None:
    for kind in ("reference", "background"):
        explainer, game = fits[kind]
        explainer.save(tmp_path / kind)
        again = cortx.load(tmp_path / kind, steps)
        rows = game.rows(X[:20])
        np.testing.assert_array_equal(again.fitted.student.shapley(rows), explainer.fitted.student.shapley(rows))
        coalitions = np.random.default_rng(0).random((20, 6, 5)) < 0.5
        np.testing.assert_array_equal(
            again.fitted.student.values(rows, coalitions), explainer.fitted.student.values(rows, coalitions)
        )
        np.testing.assert_array_equal(again.explain(X[:20]).values, explainer.explain(X[:20]).values)
        refined = again.explain(X[:20], confidence=0.9, tolerance=1e-6)
        exact = cortx.shapley(game, X[:20], "exact", views=0).values
        np.testing.assert_allclose(refined.values, exact, atol=1e-6)  # five players: enumerated


def test_damaged_trees_are_refused(fits: dict[str, Any]) -> None:
    explainer, _ = fits["reference"]
    student, spec = explainer.fitted.student, explainer.fitted.spec
    tensors, facts = student.to_tensors()
    bad = {**tensors, "forest.left": torch.full_like(tensors["forest.left"], 10**6)}
    with pytest.raises(ValueError, match="does not exist"):
        ForestStudent.from_tensors(bad, facts, spec)
    with pytest.raises(ValueError, match="columns"):
        ForestStudent.from_tensors({**tensors, "reference": torch.zeros(2)}, facts, spec)
    with pytest.raises(ValueError, match="not of this game"):
        ForestStudent.from_tensors(tensors, facts, replace(spec, base_values=np.zeros(1)))
    assert issubclass(ArtifactError, Exception)


def test_refit_starts_from_an_explainer_that_trees_taught(
    fits: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fits["reference"][0].save(tmp_path / "x")
    explainer = cortx.load(tmp_path / "x")
    inputs = explainer.fitted.network.features.width
    game = cortx.Game(lambda x: steps(x) + 0.2 * (np.nan_to_num(x[:, :1]) > 1), reference=np.zeros(5), categorical=())
    with caplog.at_level(logging.INFO, logger="cortx"):
        explainer.refit(game, X, budget=3_000, progress=False)
    assert explainer.fitted.network.features.width == inputs
    assert explainer.fitted.student is not None


def test_forests_side_by_side_say_what_each_says() -> None:
    models = [
        HistGradientBoostingRegressor(max_iter=4, max_leaf_nodes=4).fit(X, steps(X)[:, output]) for output in (0, 1)
    ]
    both = _side_by_side([read_sklearn_histogram(model) for model in models])
    both.check()
    np.testing.assert_allclose(both.outputs(X), np.stack([model.predict(X) for model in models], axis=1))


def test_moved_rows_lie_between_those_of_the_table() -> None:
    table = np.random.default_rng(0).normal(size=(200, 3))
    table[:, 1] = np.round(20 * table[:, 1])  # many whole numbers
    table[:, 2] = np.arange(200) % 3  # few
    game = cortx.Game(smooth, reference=np.full(3, 0.5), categorical=())
    schema = game.rows(table).table.schema
    made = np.concatenate([table, [[0.5, np.nan, 1.0]]])
    found = moved(made, table, schema, game.absent, np.random.default_rng(1))
    np.testing.assert_array_equal(found[:, 2], made[:, 2])
    np.testing.assert_array_equal(found[-1], made[-1])
    assert (found[:-1, 0] != made[:-1, 0]).mean() > 0.9
    assert not np.isin(found[:-1, 0], table[:, 0]).all()
    assert (found[:-1, 1] == np.rint(found[:-1, 1])).all()
    for j in (0, 1):
        assert table[:, j].min() <= found[:-1, j].min() <= found[:-1, j].max() <= table[:, j].max()
        ranks = np.abs(np.argsort(np.argsort(found[:-1, j])) - np.argsort(np.argsort(table[:, j])))
        assert np.median(ranks) < 12


def test_a_column_that_never_differs_from_the_background() -> None:
    """It is missing in every masked row."""
    table = np.nan_to_num(X.copy())
    table[:, 4] = 1.0
    game = cortx.Game(lambda x: steps(x)[:, 0], background=table[:3])
    explainer = cortx.CoRTX(recipe()).fit(game, table, budget=9_000, progress=False)
    assert not explainer.explain(table[:5]).values[:, 4].any()
    assert isinstance(explainer.fitted.student, ForestStudent)


def test_boosting_keeps_to_the_threads_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.utils._openmp_helpers import _openmp_effective_n_threads as threads_of_openmp

    seen: list[int] = []
    fit = HistGradientBoostingRegressor.fit

    def noted(self: Any, *arguments: Any) -> Any:
        seen.append(threads_of_openmp(n_threads=None, only_physical_cores=False))
        return fit(self, *arguments)

    monkeypatch.setattr(HistGradientBoostingRegressor, "fit", noted)
    torch.get_num_threads()  # the first call in a thread sets OpenMP's number
    with limited(1), threadpoolctl.threadpool_limits(2, user_api="openmp"):
        before = threads_of_openmp(n_threads=None, only_physical_cores=False)
        forest_student.grow(np.nan_to_num(X), steps(X), 2, 0)
        assert threads_of_openmp(n_threads=None, only_physical_cores=False) == before
    assert seen == [1, 1]


def test_chunks_change_no_bit_of_trees_and_explainer(fits: dict[str, Any]) -> None:
    whole, game = fits["reference"][0], cortx.Game(steps, **settings("reference"))
    game.model.chunk_rows = 7
    explainer = cortx.CoRTX(recipe()).fit(game, X, budget=6_000, progress=False)
    mine, other = (one.fitted.student.to_tensors()[0] for one in (explainer, whole))
    for name, tensor in other.items():
        np.testing.assert_array_equal(mine[name].numpy(), tensor.numpy(), err_msg=name)
    np.testing.assert_array_equal(explainer.explain(X[:20]).values, whole.explain(X[:20]).values)
