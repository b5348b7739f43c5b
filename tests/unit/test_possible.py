"""Values and bounds stay within what a probability allows, in torch, ONNX and portable folders alike."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compat import samples
from tests.conftest import make_model, make_tiny_recipe

import cortx
import cortx.portable
from cortx.errors import InputError, StrangeRows
from cortx.explainer import onnx_export
from cortx.explainer.possible import possible_bounds, possible_values
from cortx.explainer.reading import given_outputs

FIRST = Path(__file__).parents[1] / "compat" / "first_version"


def slow_projection(values: np.ndarray, total: float) -> np.ndarray:
    """One row, one output: by Dykstra's alternating projections onto the box and onto the plane of the sum."""
    free = values != 0
    x, p = values[free].astype(float), np.zeros(free.sum())
    for _ in range(3_000):
        boxed = np.clip(x + p, -1, 1)
        p = x + p - boxed
        x = boxed + (total - boxed.sum()) / len(boxed)
    result = np.zeros(len(values))
    result[free] = x
    return result


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000))
def test_the_projection_is_the_nearest_possible_point(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(3, 5, 2)) * generator.choice([0.1, 3.0])
    values[:, 2] = 0.0
    total = generator.uniform(-1, 1, size=(3, 2))
    free = (values != 0).sum(axis=1)
    values += np.where(values != 0, ((total - values.sum(axis=1)) / free)[:, None, :], 0.0)
    found = possible_values(values, total, 1.0)
    assert (np.abs(found) <= 1).all()
    assert (found[:, 2] == 0).all()
    np.testing.assert_allclose(found.sum(axis=1), total, atol=1e-12)
    for row in range(3):
        for k in range(2):
            expected = slow_projection(values[row, :, k], total[row, k])
            np.testing.assert_allclose(found[row, :, k], expected, atol=1e-6)
    by_torch = possible_values(torch.from_numpy(values), torch.from_numpy(total), 1.0)
    np.testing.assert_allclose(by_torch.numpy(), found, atol=1e-12)


def test_possible_values_stay_as_they_are() -> None:
    values = np.random.default_rng(0).uniform(-0.2, 0.2, size=(4, 5, 1))
    assert possible_values(values, values.sum(axis=1), 1.0) is values
    mixed = values.copy()
    mixed[0, :2] += np.array([[3.0], [-3.0]])
    found = possible_values(mixed, mixed.sum(axis=1), 1.0)
    np.testing.assert_array_equal(found[1:], mixed[1:])
    assert possible_values(mixed, mixed.sum(axis=1), None) is mixed


def test_a_total_beyond_the_range_is_kept() -> None:
    values = np.array([[[4.0], [-2.5], [0.0]]])
    found = possible_values(values, np.array([[1.5]]), 1.0)
    np.testing.assert_allclose(found[0, :, 0], [1.5, 0.0, 0.0], atol=1e-12)


def test_bounds_are_cut() -> None:
    values = np.array([[[0.9], [-0.4], [0.0]]])
    wide = np.array([[[5.0], [5.0], [0.0]]])
    lower, upper, error = possible_bounds(values - wide, values + wide, np.array([[9.0]]), values, values.sum(1), 1.0)
    np.testing.assert_array_equal(lower[0, :, 0], [-1, -1, 0])
    np.testing.assert_array_equal(upper[0, :, 0], [1, 1, 0])
    assert error[0, 0] == pytest.approx(np.hypot(1.9, 1.4))


# The explainer ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted() -> tuple[cortx.CoRTX, np.ndarray]:
    """An explainer whose last layer shouts, so that many of its values are impossible."""
    torch.set_num_threads(1)
    table = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    game = cortx.Game(make_model(6, 3), reference=table, output="probability", target="all")
    explainer = cortx.CoRTX(make_tiny_recipe(steps=20)).fit(game, table, budget=20_000)
    with torch.no_grad():
        explainer.fitted.network.attribution.layers[-1].weight *= 30
    return explainer, table[:40]


def check(answer: Any, *, several: bool = True) -> None:
    values, lower, upper = answer.values, answer.lower_bounds, answer.upper_bounds
    assert (np.abs(values) <= 1).all()
    np.testing.assert_allclose(values.sum(axis=1), answer.outputs - answer.base_values, atol=1e-9)
    assert (lower >= -1).all()
    assert (upper <= 1).all()
    assert ((lower <= values) & (values <= upper)).all()
    assert (answer.error_bound <= np.linalg.norm(1 + np.abs(values), axis=1) + 1e-9).all()
    assert several == (np.abs(values) == 1).any()


def test_every_way_to_explain_gives_possible_values(fitted: Any, tmp_path: Path, monkeypatch: Any) -> None:
    explainer, rows = fitted
    raw = explainer._torch_answer(
        explainer._read(rows), explainer.explain(rows).outputs, explainer.explain(rows).base_values, errors=False
    )
    assert (np.abs(raw.values) > 1).any()
    inside = explainer.explain(rows, confidence=0.8)
    check(inside)
    with monkeypatch.context() as patched:
        patched.setattr(onnx_export, "runs_inside", lambda network: False)
        explainer._session = None
        by_torch = explainer.explain(rows, confidence=0.8)
        explainer._session = None
    check(by_torch)
    portable = cortx.portable.load(explainer.to_onnx(tmp_path / "portable")).explain(
        rows, inside.outputs, confidence=0.8
    )
    check(portable)
    for other in (by_torch, portable):
        for part in ("values", "lower_bounds", "upper_bounds", "error_bound"):
            np.testing.assert_allclose(getattr(other, part), getattr(inside, part), rtol=1e-4, atol=1e-5)
    guessed = explainer._answer(explainer._read(rows), None, inside.base_values, errors=False)
    assert (np.abs(guessed.values) <= 1).all()
    assert (np.abs(guessed.values.sum(axis=1) + inside.base_values - 0.5) <= 0.5 + 1e-9).all()


def test_the_graph_itself_is_cut(fitted: Any, tmp_path: Path) -> None:
    """As any other ONNX runtime has it: without what cortx.portable does behind it; in int8 too."""
    onnxruntime = pytest.importorskip("onnxruntime")
    explainer, rows = fitted
    outputs = explainer.explain(rows).outputs
    feeds = {"rows": rows.astype(np.float64), "outputs": outputs}
    expected = explainer.explain(rows).values
    for int8 in (False, True):
        folder = explainer.to_onnx(tmp_path / str(int8), int8=int8)
        session = onnxruntime.InferenceSession(str(folder / "explainer.onnx"), providers=["CPUExecutionProvider"])
        values = session.run(["values"], feeds)[0]
        assert (np.abs(values) <= 1).all()
        np.testing.assert_allclose(values.sum(axis=1), outputs - explainer.fitted.spec.base_values, atol=1e-9)
        if not int8:
            np.testing.assert_allclose(values, expected, atol=1e-5)


def test_old_portable_folders_are_cut_behind_their_graph() -> None:
    pytest.importorskip("onnxruntime")
    far = np.full((3, 6), 15.0)
    far[1] *= -1
    portable = cortx.portable.load(FIRST / "numbers" / "portable")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = portable.explain(far, np.array([0.9, 0.1, 0.5]), confidence=0.9)
        direct = cortx.load(FIRST / "numbers" / "artifact").explain(far, np.array([0.9, 0.1, 0.5]), confidence=0.9)
    for found in (answer, direct):
        assert (np.abs(found.values) <= 1).all()
        np.testing.assert_allclose(found.values.sum(axis=1), found.outputs - found.base_values, atol=1e-9)
        assert (found.lower_bounds >= -1).all()
        assert (found.upper_bounds <= 1).all()
    np.testing.assert_allclose(answer.values, direct.values, atol=1e-5)


def test_images_on_their_device_are_cut() -> None:
    explainer = cortx.load(FIRST / "pictures" / "artifact")
    with torch.no_grad():
        explainer.fitted.network.attribution.last.weight *= 200
    images = torch.from_numpy(samples.pictures()[:5])
    outputs = torch.tensor([[0.7]] * 5)
    values = explainer.attribute(images, outputs)
    assert float(values.abs().max()) <= 1
    assert float(values.abs().max()) > 0.999
    base = torch.from_numpy(explainer.fitted.spec.base_values).float()
    torch.testing.assert_close(values.sum(dim=1), outputs - base, rtol=0, atol=1e-4)


# Rows unlike training -----------------------------------------------------------------------------------------------


def test_rows_outside_of_what_training_saw_are_said_once(fitted: Any, tmp_path: Path) -> None:
    explainer, rows = fitted
    again = cortx.load(explainer.save(tmp_path / "saved"))
    portable = cortx.portable.load(explainer.to_onnx(tmp_path / "portable"))
    outputs = explainer.explain(rows).outputs
    far = rows.copy()
    far[:10, 3] = 15.0
    for one in (again, portable):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            one.explain(rows, outputs)
        with pytest.warns(StrangeRows, match=r"10 of 40 rows \(25.0%\).*'x3'") as told:
            one.explain(far, outputs)
        assert told[0].filename == __file__  # the line that asked
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            one.explain(far, outputs)


def test_what_counts_as_outside(tmp_path: Path) -> None:
    explainer = cortx.load(FIRST / "frame" / "artifact")  # unseen="ignore"
    frame = samples.frame().head(4)
    low, high = samples.frame()["income"].min(), samples.frame()["income"].max()
    frame["income"] = [low - 0.2 * (high - low), high + 0.2 * (high - low), high + 0.3 * (high - low), low]
    table = explainer._read(frame)
    np.testing.assert_array_equal(explainer.seen.strange(table).any(axis=1), [False, False, True, False])
    frame = samples.frame().head(4)
    frame["job"] = ["clerk", "astronaut", "cook", "pilot"]
    with pytest.warns(StrangeRows, match=r"1 of 4 rows.*'job'"):
        explainer.explain(frame, np.zeros(4))


def test_images_unlike_training_are_said() -> None:
    explainer = cortx.load(FIRST / "pictures" / "artifact")
    dark = np.zeros_like(samples.pictures()[:5])
    with pytest.warns(StrangeRows, match=r"5 of 5 rows \(100.0%\).*'brightness'"):
        explainer.explain(dark, np.full(5, 0.5))


def test_folders_without_ranges_say_nothing() -> None:
    portable = cortx.portable.load(FIRST / "frame" / "portable")
    frame = pd.concat([samples.frame().head(2)])
    frame["income"] = 1e9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        portable.explain(frame, np.zeros(2))


def test_given_outputs_must_be_probabilities_where_these_are_explained() -> None:
    for outputs in ([0.2, 1.5], [-0.4, 0.5]):
        with pytest.raises(InputError, match="between 0 and 1"):
            given_outputs(outputs, (2, 1), "probability")
    np.testing.assert_array_equal(given_outputs([0.0, 1.0 + 1e-6], (2, 1), "probability")[:, 0], [0.0, 1.0 + 1e-6])
    assert given_outputs([-3.0, 7.0], (2, 1), "log-odds").tolist() == [[-3.0], [7.0]]
