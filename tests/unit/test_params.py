"""An explainer's settings survive save and load; its results are absent before the fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from tests.compat.samples import frame
from tests.conftest import make_tiny_recipe

import cortx
from cortx.errors import CortxError, InputError, NotFittedError
from cortx.training import recipe as recipes
from cortx.training.recipe import get_recipe

FIRST = Path(__file__).parents[1] / "compat" / "first_version"


def saved(tmp_path: Path, name: str = "frame", **params: Any) -> cortx.CoRTX:
    """A fitted explainer with other settings, saved to ``tmp_path / "one.cortx"``."""
    explainer = cortx.load(FIRST / name / "artifact").set_params(**params)
    explainer.save(tmp_path / "one.cortx")
    return explainer


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"recipe": "quick", "positives": "random", "seed": 7},
        {"recipe": "paper", "unseen": "error", "heads": ("attribution", "ranking")},
        {"recipe": make_tiny_recipe(steps=7), "positives": "farthest"},
    ],
)
def test_settings_survive_save_and_load(tmp_path: Path, params: dict[str, Any]) -> None:
    explainer = saved(tmp_path, **params)
    again = cortx.load(tmp_path / "one.cortx")
    assert again.get_params() == explainer.get_params()
    for each in (explainer, again):
        copied = clone(each)
        assert copied.get_params() == explainer.get_params()
        assert not hasattr(copied, "costs_")
    # What was fitted stays what it was, whatever the settings say of the next fit.
    assert again.fitted.heads == explainer.fitted.heads
    assert again.fitted.seed == explainer.fitted.seed
    assert (again.explain(frame()).values == explainer.explain(frame()).values).all()


def test_settings_of_an_image_explainer_survive(tmp_path: Path) -> None:
    explainer = saved(tmp_path, "pictures", recipe="quick")
    assert cortx.load(tmp_path / "one.cortx").get_params() == explainer.get_params()


def test_a_recipe_that_has_changed_since_comes_as_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, recipe="quick")
    before = get_recipe("quick")
    changed = replace(before, encoder=replace(before.encoder, width=before.encoder.width + 8))
    monkeypatch.setitem(recipes._NAMED, "quick", lambda: changed)
    assert cortx.load(tmp_path / "one.cortx").recipe == before


def test_explainers_of_the_first_version_have_settings_too() -> None:
    explainer = cortx.load(FIRST / "frame" / "artifact")
    settings = json.loads((FIRST / "frame" / "artifact" / "manifest.json").read_text())["settings"]
    params = explainer.get_params()
    assert params["recipe"] == explainer.fitted.recipe
    assert {name: params[name] for name in settings} == {**settings, "heads": tuple(settings["heads"])}


@pytest.mark.parametrize("device", ["cuda:99", "meta", "warp"])
def test_a_device_that_is_not_here(tmp_path: Path, device: str) -> None:
    saved(tmp_path)
    manifest = tmp_path / "one.cortx" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["params"]["device"] = device
    manifest.write_text(json.dumps(content))
    assert cortx.load(tmp_path / "one.cortx").device == "cpu"
    with pytest.raises(InputError, match=f"device must be a device that torch can use here, .*{device!r}"):
        cortx.load(tmp_path / "one.cortx", device=device)


@pytest.mark.parametrize(
    "name", ["costs_", "quality_", "history_", "learning_curve_", "feature_names_in_", "n_features_in_", "fitted"]
)
def test_results_are_absent_before_the_fit(name: str) -> None:
    assert not hasattr(cortx.CoRTX(), name)
    with pytest.raises(NotFittedError, match=r"not fitted; call fit\(game, X\)"):
        getattr(cortx.CoRTX(), name)


def test_not_fitted_is_what_scikit_learn_says_it_is() -> None:
    for kind in (CortxError, AttributeError, ValueError):
        with pytest.raises(kind):
            cortx.CoRTX().explain(frame())


def test_documented_parts_are_there() -> None:
    for name in ("distributed", "estimators", "metrics", "plots", "portable", "ray", "rivals", "spark"):
        assert getattr(cortx, name).__name__.startswith("cortx.")
    assert "fastshap" in cortx.rivals.RIVALS


@pytest.mark.parametrize("seed", ["a", "1", 1.5, None, True])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    table = np.random.default_rng(0).normal(size=(200, 3))
    game = cortx.Game(lambda x: x[:, 0], reference=table, categorical=())
    with pytest.raises(InputError, match="seed must be a whole number"):
        cortx.CoRTX("quick", seed=seed).fit(game, table, budget=5_000, progress=False)
    with pytest.raises(InputError, match="seed must be a whole number"):
        cortx.shapley(game, table[:2], "permutation", row_budget=20, seed=seed, progress=False)


def test_places_that_cannot_be_written_are_refused_before_anything_is_paid(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from cortx.interfaces import cli

    (tmp_path / "scoring.py").write_text("def model(table):\n    raise AssertionError('the model was asked')\n")
    (tmp_path / "rows.csv").write_text("a,b\n" + "1,2\n3,4.5\n" * 100)
    for place in (tmp_path / "rows.csv" / "x.cortx", Path("/proc/x.cortx")):
        arguments = ["fit", f"{tmp_path / 'scoring.py'}:model", str(tmp_path / "rows.csv"), "--out", str(place)]
        result = CliRunner().invoke(cli.app, arguments)
        assert result.exit_code != 0
        assert "--out" in str(result.exception)
        assert "nothing can be written in" in str(result.exception)


def test_a_checkpoint_is_a_folder(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(200, 3))
    game = cortx.Game(lambda x: x[:, 0], reference=table, categorical=())
    (tmp_path / "file").write_text("")
    for wrong, words in (
        (5, "must be the path of a file or folder, got 5"),
        (tmp_path / "file", "a file; give a folder"),
    ):
        with pytest.raises(InputError, match=words):
            cortx.CoRTX("quick").fit(game, table, budget=5_000, checkpoint=wrong, progress=False)
    assert game.evaluations == 0
