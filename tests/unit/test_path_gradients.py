"""The first guess of an explainer: integrated gradients of its student."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import make_tiny_recipe

import cortx
from cortx.errors import ArtifactError, InputError
from cortx.explainer import artifact
from cortx.training.features import FeatureConfig, fit_features
from cortx.training.path_gradients import PathGradients
from cortx.training.student import StudentConfig, StudentNetwork

COLUMNS = 4


def make_student(n_outputs: int = 2, background: int = 1, points: int = 3, *, sharp: bool = False) -> StudentNetwork:
    """Of 4 columns and 3 players, with weights that are drawn and not trained."""
    rows = np.random.default_rng(0).normal(size=(50, COLUMNS))
    schema = cortx.Game(lambda x: x.sum(axis=1), background=rows).rows(rows).table.schema
    absent = rows[:background]
    features = fit_features(rows, schema.columns, absent, FeatureConfig())
    config = StudentConfig(width=16, depth=2, path_points=points, sharp=sharp)
    student = StudentNetwork(
        features, torch.tensor([0, 1, 1, 2]), torch.from_numpy(absent), n_outputs, config, seed=0
    ).requires_grad_(False)
    student.scale.copy_(torch.arange(1, n_outputs + 1))
    return student


def contributions(student: StudentNetwork, codes: torch.Tensor, t: float) -> torch.Tensor:
    """What autograd says each player adds where all are present to the share t: (rows, players, outputs)."""
    present = torch.full((len(codes), student.n_players), t, requires_grad=True)
    answers = student(student.features(codes), present) * student.scale
    parts = [torch.autograd.grad(column.sum(), present, retain_graph=True)[0] for column in answers.T]
    return torch.stack(parts, dim=-1)


@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize("background", [1, 3])
def test_gradients_are_those_of_the_student(background: int, sharp: bool) -> None:
    student = make_student(background=background, points=5, sharp=sharp)
    codes = torch.from_numpy(np.random.default_rng(1).normal(size=(7, COLUMNS)))
    path = PathGradients.of(student)
    seen = path(student.features(codes), student.active(codes))
    guess = path.guess(seen)
    expected = torch.stack([contributions(student, codes, float(t)) for t in path.points], dim=1)
    torch.testing.assert_close(seen.view(expected.shape), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(guess, torch.einsum("k,rkpo->rpo", path.weights, expected), rtol=1e-4, atol=1e-5)
    total = student.asked(codes, torch.ones(1, student.n_players))[:, 0]
    if not sharp:
        torch.testing.assert_close(guess.sum(dim=1), total, rtol=1e-2, atol=1e-2)  # five points: nearly efficient


def test_players_that_change_nothing_get_nothing() -> None:
    for background in (1, 3):
        student = make_student(background=background)
        codes = torch.from_numpy(np.random.default_rng(2).normal(size=(4, COLUMNS)))
        codes[:, 1:3] = student.features.reference[1:3] if background == 1 else codes[:, 1:3]
        active = student.active(codes)
        if background == 3:
            active[:, 1] = False
        path = PathGradients.of(student)
        guess = path.guess(path(student.features(codes), active))
        assert not guess[:, 1].any()
        assert guess[:, 0].any()


@pytest.mark.parametrize("sharp", [False, True])
def test_a_saved_state_gives_the_same_guess(sharp: bool) -> None:
    student = make_student(sharp=sharp)
    path = PathGradients.of(student)
    path.unit.fill_(0.5)
    again = PathGradients.from_tensors(dict(path.state_dict()))
    again.load_state_dict(path.state_dict())
    codes = torch.from_numpy(np.random.default_rng(3).normal(size=(5, COLUMNS)))
    asked = student.features(codes), student.active(codes)
    assert torch.equal(path(*asked), again(*asked))
    assert torch.equal(path.guess(path(*asked)), again.guess(again(*asked)))


def test_many_outputs_are_asked_at_one_point() -> None:
    for n_outputs, points in ((2, 3), (8, 1)):
        path = PathGradients.of(make_student(n_outputs))
        assert len(path.points) == points
        assert path.width == points * 3 * n_outputs


@pytest.fixture(scope="module", params=["reference", "background", "sharp"])
def fitted(request: pytest.FixtureRequest) -> tuple[cortx.CoRTX, np.ndarray, Any]:
    rows = np.random.default_rng(0).normal(size=(400, 6))

    def model(x: np.ndarray) -> np.ndarray:
        return np.stack([np.tanh(x[:, 0] + x[:, 1] * x[:, 2]), x.sum(axis=1)], axis=1)

    given = {"background": rows[:5]} if request.param == "background" else {"reference": np.zeros(6)}
    game = cortx.Game(model, players={"pair": [2, 3]}, **given)
    config = StudentConfig(width=32, depth=1, steps=300, label_rows=600, sharp=request.param == "sharp")
    recipe = replace(make_tiny_recipe(), student=config)
    return cortx.CoRTX(recipe=recipe, seed=0).fit(game, rows, budget=20_000), rows, model


def test_every_form_of_an_explainer_says_the_same(fitted: Any, tmp_path: Any) -> None:
    explainer, rows, model = fitted
    path = explainer.fitted.network.path
    assert path is not None
    shown = explainer.explain(rows[:20])
    codes = torch.from_numpy(rows[:20])
    total = torch.from_numpy(model(rows[:20]) - shown.base_values).float()
    torch.testing.assert_close(
        explainer.fitted.network(codes, total).values.double(), torch.from_numpy(shown.values), rtol=1e-4, atol=1e-5
    )
    explainer.save(tmp_path / "kept.cortx")
    again = cortx.load(tmp_path / "kept.cortx", model)
    np.testing.assert_array_equal(again.explain(rows[:20]).values, shown.values)


def test_an_explainer_without_a_path_asks_no_gradients() -> None:
    with pytest.raises(InputError, match="whole number of at least 0"):
        StudentConfig(path_points=-1)
    rows = np.random.default_rng(0).normal(size=(100, 3))
    game = cortx.Game(lambda x: x[:, 0] * x[:, 1] + x[:, 2], reference=np.zeros(3))
    recipe = replace(make_tiny_recipe(), student=StudentConfig(width=16, steps=100, label_rows=200, path_points=0))
    explainer = cortx.CoRTX(recipe=recipe, seed=0).fit(game, rows, budget=2_000)
    assert explainer.fitted.network.path is None


@pytest.mark.parametrize("name", ["network.features.numbers", "network.path.base", "network.path.layers.0.weight"])
def test_a_folder_that_lacks_a_part_is_refused(
    fitted: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fitted[0].save(tmp_path / "kept.cortx")
    manifest, tensors = artifact._read(tmp_path / "kept.cortx")
    del tensors[name]
    monkeypatch.setattr(artifact, "_read", lambda path: (manifest, tensors))
    with pytest.raises(ArtifactError, match="cannot be rebuilt"):
        cortx.load(tmp_path / "kept.cortx")
