"""The explainer: axioms by construction, its inputs and its settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tests.conftest import make_model, make_tiny_recipe

import cortx
from cortx import metrics
from cortx.errors import ArtifactError, InputError, NotFittedError
from cortx.training.features import FeatureConfig


@pytest.fixture
def explainer(game: cortx.Game, table: np.ndarray) -> cortx.CoRTX:
    return cortx.CoRTX(make_tiny_recipe()).fit(game, table, n_labels=60)


def test_it_learns_to_explain(game: cortx.Game, table: np.ndarray) -> None:
    """A second of training must beat both no explanation and the even split of the total, on rows it never saw."""
    fresh = np.random.default_rng(1).normal(size=(100, 6)).astype(np.float32)
    truth = cortx.shapley(game, fresh, "exact").values
    explainer = cortx.CoRTX(make_tiny_recipe(steps=400)).fit(game, table, n_labels=100)
    values = explainer.explain(fresh).values
    even = np.repeat(truth.sum(axis=1, keepdims=True) / 6, 6, axis=1)
    error = metrics.l2_distance(values, truth).mean()
    assert error < 0.5 * metrics.l2_distance(even, truth).mean()
    assert error < 0.3 * np.linalg.norm(truth, axis=1).mean()


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("known", ["model", "outputs"])
def test_attributions_add_up(table: np.ndarray, n_outputs: int, known: str) -> None:
    model = make_model(n_outputs=n_outputs)
    game = cortx.Game(model, reference=table, output="probability")
    explainer = cortx.CoRTX(make_tiny_recipe()).fit(game, table, n_labels=40)
    with torch.inference_mode():
        logits = model(torch.from_numpy(table))
        outputs = (torch.sigmoid(logits)[:, 0] if n_outputs == 1 else torch.softmax(logits, 1)).double().numpy()
    explanation = explainer.explain(table, outputs=outputs if known == "outputs" else None)
    assert explanation.values.shape == (300, 6) + ((3,) if n_outputs == 3 else ())
    total = explanation.values.sum(axis=1) + explanation.base_values
    np.testing.assert_allclose(total, outputs, atol=1e-7)
    assert explanation.evaluations == (0 if known == "outputs" else len(table))


def test_a_feature_that_equals_its_reference_gets_zero(
    explainer: cortx.CoRTX, game: cortx.Game, table: np.ndarray
) -> None:
    rows = table.astype(np.float64)
    rows[::2, 1] = game.absent[0, 1]
    rows[1::3, [0, 4]] = game.absent[0, [0, 4]]
    values = explainer.explain(rows).values
    equal = rows == game.absent[0]
    assert equal.any()
    assert (values[equal] == 0).all()
    assert (values[~equal] != 0).all()
    nothing = explainer.explain(game.absent).values
    assert (nothing == 0).all()


def test_without_model_or_outputs_it_still_explains(
    explainer: cortx.CoRTX, table: np.ndarray, tmp_path: pytest.TempPathFactory
) -> None:
    loaded = cortx.load(explainer.save(tmp_path / "e.cortx"))  # type: ignore[operator]
    assert loaded.game is None
    explanation = loaded.explain(table)
    assert explanation.outputs is None
    assert explanation.evaluations == 0
    with_model = explainer.explain(table)
    gap = np.abs(explanation.values.sum(axis=1) + explanation.base_values - with_model.outputs)
    spread = np.ptp(with_model.outputs)
    assert gap.mean() < 0.1 * spread  # a guess, but an educated one


def test_same_seed_same_explainer_other_seed_another(game: cortx.Game, table: np.ndarray) -> None:
    def values(seed: int) -> np.ndarray:
        return cortx.CoRTX(make_tiny_recipe(), seed=seed).fit(game, table, n_labels=40).explain(table[:20]).values

    np.testing.assert_array_equal(values(0), values(0))
    assert np.abs(values(0) - values(1)).max() > 1e-4


def test_no_global_generator_is_touched(game: cortx.Game, table: np.ndarray) -> None:
    torch.manual_seed(7)
    np.random.seed(7)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    cortx.CoRTX(make_tiny_recipe()).fit(game, table, n_labels=40)
    assert torch.equal(before[0], torch.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])


def test_ranking_is_always_a_permutation(game: cortx.Game, table: np.ndarray) -> None:
    explainer = cortx.CoRTX(make_tiny_recipe(steps=10), heads=("attribution", "ranking")).fit(game, table, n_labels=40)
    explanation = explainer.explain(table)
    assert explanation.predicted_ranking is not None
    np.testing.assert_array_equal(np.sort(explanation.ranking, axis=1), np.tile(np.arange(6), (300, 1)))
    assert "ranking_head_rank_accuracy" in explainer.quality_


def test_ranking_head_learns(game: cortx.Game, table: np.ndarray) -> None:
    explainer = cortx.CoRTX(make_tiny_recipe(steps=400), heads=("attribution", "ranking")).fit(
        game, table, n_labels=200
    )
    truth = cortx.shapley(game, table, "exact").values
    chance = (1 / 6) * np.ones(len(table))
    assert metrics.rank_accuracy(explainer.explain(table), truth).mean() > 2 * chance.mean()


def test_an_attribution_head_is_not_changed_by_a_ranking_head(game: cortx.Game, table: np.ndarray) -> None:
    alone = cortx.CoRTX(make_tiny_recipe()).fit(game, table, n_labels=40).explain(table).values
    both = cortx.CoRTX(make_tiny_recipe(), heads=("attribution", "ranking")).fit(game, table, n_labels=40)
    np.testing.assert_array_equal(both.explain(table).values, alone)


def test_costs_are_counted(table: np.ndarray) -> None:
    calls = []

    def model(rows: np.ndarray) -> np.ndarray:
        calls.append(len(rows))
        return np.tanh(rows).sum(axis=1)

    game = cortx.Game(model, reference=table)
    explainer = cortx.CoRTX(make_tiny_recipe()).fit(game, table, n_labels=40)
    costs = explainer.costs_
    assert sum(calls) == costs["total_evaluations"] == game.evaluations
    assert costs["checks"]["evaluations"] == len(explainer.fitted.probe)
    assert costs["labels"]["evaluations"] == 40 * (2**6 - 1)
    assert costs["labels"]["rows"] == 40
    assert costs["outputs"]["evaluations"] == 300 + 1  # f(x) of every row, and of the reference


def test_positives_are_an_option_and_random_ones_are_free(game: cortx.Game, table: np.ndarray) -> None:
    recipe = make_tiny_recipe(rough_pairs=0)
    costs = {}
    for how in ("compact", "random", "farthest"):
        explainer = cortx.CoRTX(recipe, positives=how).fit(game, table, n_labels=40)  # type: ignore[arg-type]
        costs[how] = explainer.costs_["pretraining"]["evaluations"]
    assert costs["random"] == 0
    assert costs["compact"] == costs["farthest"] > 0
    with pytest.raises(InputError, match="'compact', 'random', 'farthest'"):
        cortx.CoRTX(recipe, positives="nearest").fit(game, table)  # type: ignore[arg-type]


def test_labels_as_explanation_pair_and_own(game: cortx.Game, table: np.ndarray) -> None:
    index = np.arange(50)
    labels = cortx.shapley(game, table[index], "exact", views=0)
    one = cortx.CoRTX(make_tiny_recipe()).fit(game, table, labels=labels)
    two = cortx.CoRTX(make_tiny_recipe()).fit(game, table, labels=(index, labels.values))
    # Outputs of another batch differ in their last digits, and training carries that on.
    np.testing.assert_allclose(one.explain(table).values, two.explain(table).values, atol=1e-5)
    assert one.costs_["labels"]["evaluations"] == labels.evaluations
    assert two.costs_["labels"] == {"evaluations": 0, "seconds": 0.0, "rows": 50, "source": "given"}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (5, "a pair"),
        ((np.arange(3), np.zeros((3, 6))), "at least 10"),
        ((np.arange(20), np.zeros((20, 5))), r"shape \(20, 5, 1\)"),
        ((np.arange(290, 310), np.zeros((20, 6))), "X has 300 rows"),
        ((np.arange(20.0), np.zeros((20, 6))), "whole numbers"),
        ((np.arange(20), np.full((20, 6), np.nan)), "NaN or infinity"),
        ((np.arange(20), np.zeros((19, 6))), "expected"),
    ],
)
def test_bad_labels(game: cortx.Game, table: np.ndarray, labels: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cortx.CoRTX(make_tiny_recipe()).fit(game, table, labels=labels)


def test_a_text_is_the_folder_of_labels(game: cortx.Game, table: np.ndarray) -> None:
    with pytest.raises(ArtifactError, match=r"no folder of labels at .*wrong"):
        cortx.CoRTX(make_tiny_recipe()).fit(game, table, labels="wrong")


def test_bad_settings_and_bad_rows(explainer: cortx.CoRTX, game: cortx.Game, table: np.ndarray) -> None:
    with pytest.raises(NotFittedError, match="not fitted"):
        cortx.CoRTX().explain(table)
    with pytest.raises(InputError, match="'default', 'quick', 'thorough', 'paper'"):
        cortx.CoRTX("best").fit(game, table)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown head 'shape'"):
        cortx.CoRTX(heads=("attribution", "shape")).fit(game, table)
    with pytest.raises(InputError, match="must hold 'attribution'"):
        cortx.CoRTX(heads=("ranking",)).fit(game, table)
    with pytest.raises(InputError, match="between 10 and the 300 rows"):
        cortx.CoRTX(make_tiny_recipe()).fit(game, table, n_labels=5)
    with pytest.raises(InputError, match="no rows"):
        explainer.explain(table[:0])
    with pytest.raises(InputError, match="expected 6"):
        explainer.explain(table[:, :5])
    spoiled = table.copy()
    spoiled[3, 2] = np.nan
    with pytest.raises(InputError, match=r"'x2' is missing .* in row 3"):
        explainer.explain(spoiled)
    spoiled[3, 2] = np.inf
    with pytest.raises(InputError, match="infinite values: column 'x2', row 3"):
        explainer.explain(spoiled)
    with pytest.raises(InputError, match=r"outputs= has shape \(3,\), expected \(300, 1\)"):
        explainer.explain(table, outputs=np.zeros(3))


def test_unseen_categories() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"colour": generator.choice(["red", "blue"], 200), "size": generator.normal(size=200)})

    def model(rows: pd.DataFrame) -> np.ndarray:
        return (rows["colour"] == "red").to_numpy() * np.tanh(rows["size"].to_numpy())

    game = cortx.Game(model, reference=frame)
    fresh = pd.DataFrame({"colour": ["red", "green"], "size": [0.5, 0.5]})
    strict = cortx.CoRTX(make_tiny_recipe()).fit(game, frame, n_labels=40)
    with pytest.raises(InputError, match=r"'colour' has categories that training never saw: 'green'.*row 1"):
        strict.explain(fresh)
    lenient = cortx.CoRTX(make_tiny_recipe(), unseen="ignore").fit(game, frame, n_labels=40)
    explanation = lenient.explain(fresh)
    np.testing.assert_allclose(explanation.values.sum(axis=1) + explanation.base_values, model(fresh), atol=1e-9)


def test_columns_are_matched_by_name(explainer: cortx.CoRTX, table: np.ndarray) -> None:
    names = [f"f{j}" for j in range(6)]
    frame = pd.DataFrame(table.astype(np.float64), columns=names)
    model = make_model()

    def on_frame(rows: pd.DataFrame) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(rows[names].to_numpy(np.float32)))[:, 0].numpy()

    named = cortx.CoRTX(make_tiny_recipe()).fit(cortx.Game(on_frame, reference=frame), frame, n_labels=40)
    shuffled = frame[names[::-1]]
    np.testing.assert_array_equal(named.explain(shuffled).values, named.explain(frame).values)
    with pytest.raises(InputError, match="lacks 'f0'"):
        named.explain(frame.drop(columns="f0"))
    with pytest.raises(InputError, match="unknown 'other'"):
        named.explain(frame.assign(other=1.0))
    assert list(named.feature_names_in_) == names
    assert named.n_features_in_ == 6


def test_latent_and_scikit_learn_manners(explainer: cortx.CoRTX, table: np.ndarray) -> None:
    latent = explainer.latent(table)
    assert latent.shape == (300, 32)
    assert np.isfinite(latent).all()
    assert explainer(table[:3]).values.shape == (3, 6)
    assert cortx.CoRTX(seed=3).get_params()["seed"] == 3
    assert cortx.CoRTX().set_params(seed=4).seed == 4
    with pytest.raises(InputError, match="no parameter 'sede'"):
        cortx.CoRTX().set_params(sede=4)


def test_groups_and_backgrounds_are_explained(table: np.ndarray) -> None:
    groups = {"first": [0, 1], "last": [4, 5]}
    grouped = cortx.Game(make_model(), reference=table, players=groups)
    explanation = cortx.CoRTX(make_tiny_recipe()).fit(grouped, table, n_labels=40).explain(table)
    assert explanation.feature_names == ("first", "x2", "x3", "last")
    np.testing.assert_allclose(explanation.values.sum(1) + explanation.base_values, explanation.outputs, atol=1e-7)
    averaged = cortx.Game(make_model(), background=table[:5])
    explanation = cortx.CoRTX(make_tiny_recipe()).fit(averaged, table, n_labels=40).explain(table)
    np.testing.assert_allclose(explanation.values.sum(1) + explanation.base_values, explanation.outputs, atol=1e-7)


def test_the_paper_recipe_is_frozen_raw_and_normalized(game: cortx.Game, table: np.ndarray) -> None:
    from cortx.training.recipe import get_recipe

    paper = get_recipe("paper")
    assert paper.features.raw
    assert not paper.attribution.tune_encoder
    assert paper.pretrain.rough_pairs == 0
    assert (paper.pretrain.n_positives, paper.pretrain.keep_probability) == (30, 0.5)
    assert (paper.pretrain.temperature, paper.pretrain.batch_size, paper.pretrain.learning_rate) == (0.02, 1024, 5e-3)
    small = replace(
        paper,
        pretrain=replace(paper.pretrain, steps=5, rounds=1),
        attribution=replace(paper.attribution, steps=5),
        ranking=replace(paper.ranking, steps=5),
    )
    explainer = cortx.CoRTX(small, heads=("attribution", "ranking")).fit(game, table, n_labels=40)
    explanation = explainer.explain(table)
    np.testing.assert_allclose(explanation.values.sum(1) + explanation.base_values, explanation.outputs, atol=1e-7)


def test_missing_values_seen_in_training_are_explained() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(200, 3))
    rows[generator.random(rows.shape) < 0.2] = np.nan

    def model(matrix: np.ndarray) -> np.ndarray:
        return np.tanh(np.nan_to_num(matrix, nan=-1.0)).sum(axis=1)

    game = cortx.Game(model, reference=rows)
    explanation = cortx.CoRTX(make_tiny_recipe()).fit(game, rows, n_labels=40).explain(rows)
    np.testing.assert_allclose(explanation.values.sum(1) + explanation.base_values, model(rows), atol=1e-9)


def test_validation_rows_train_nothing(table: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither rough labels nor views nor precise labels of a validation row reach a training loop."""
    from cortx.explainer import learn as module

    seen: dict[str, list[np.ndarray]] = {"train": [], "validation": []}
    original = module.finetune

    def spy(network, name, train, views, rough, validation, *rest, **more):  # type: ignore[no-untyped-def]
        seen["train"] += [train.codes.numpy(), rough.codes.numpy()]
        seen["validation"].append(validation.codes.numpy())
        return original(network, name, train, views, rough, validation, *rest, **more)

    monkeypatch.setattr(module, "finetune", spy)
    cortx.CoRTX(make_tiny_recipe(steps=5)).fit(cortx.Game(make_model(), reference=table), table, n_labels=100)
    validation = {row.tobytes() for row in np.concatenate(seen["validation"])}
    assert len(validation) == 10
    assert not validation & {row.tobytes() for row in np.concatenate(seen["train"])}


def test_a_background_row_is_no_reference(table: np.ndarray) -> None:
    """A value that equals the background's mean still makes a difference; one that all of it shares does not."""
    background = np.array([[0.0, 0.0, 7.0], [2.0, 4.0, 7.0]])
    rows = np.random.default_rng(0).normal(size=(120, 3))
    rows[:, 2] = 7.0

    def model(matrix: np.ndarray) -> np.ndarray:
        return matrix[:, 0] ** 2 + matrix[:, 1] * matrix[:, 2]

    explainer = cortx.CoRTX(make_tiny_recipe()).fit(cortx.Game(model, background=background), rows, n_labels=40)
    values = explainer.explain(np.array([[1.0, 2.0, 7.0]])).values
    assert values[0, 0] != 0
    assert values[0, 1] != 0
    assert values[0, 2] == 0


def test_a_model_that_changes_its_input_changes_nothing_else() -> None:
    rows = np.random.default_rng(0).normal(size=(80, 3))
    kept = rows.copy()

    def clean(matrix: np.ndarray) -> np.ndarray:
        return (np.maximum(matrix * 2, 0) ** 2).sum(axis=1)

    def rude(matrix: np.ndarray) -> np.ndarray:
        matrix *= 2
        matrix[matrix < 0] = 0
        return (matrix**2).sum(axis=1)

    expected = cortx.shapley(cortx.Game(clean, reference=rows), rows, "exact").values
    np.testing.assert_allclose(cortx.shapley(cortx.Game(rude, reference=rows), rows, "exact").values, expected)
    explainer = cortx.CoRTX(make_tiny_recipe(steps=5)).fit(cortx.Game(rude, reference=rows), rows, n_labels=20)
    explanation = explainer.explain(rows)
    np.testing.assert_array_equal(rows, kept)
    np.testing.assert_allclose(explanation.values.sum(1) + explanation.base_values, clean(rows), atol=1e-12)


def test_labels_of_another_game_are_refused(game: cortx.Game, table: np.ndarray) -> None:
    other = cortx.Game(make_model(seed=5), reference=table, output="probability")
    with pytest.raises(InputError, match="belong to another game"):
        cortx.CoRTX(make_tiny_recipe()).fit(game, table, labels=cortx.shapley(other, table[:20]))
    with pytest.raises(InputError, match="Banzhaf"):
        cortx.CoRTX(make_tiny_recipe()).fit(game, table, labels=cortx.shapley(game, table[:20], "banzhaf"))


def test_missing_categories_and_numpy_settings() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "flag": pd.array(generator.choice([True, False, None], 120), dtype="boolean"),
            "code": np.where(generator.random(120) < 0.2, np.nan, generator.integers(0, 3, 120)),
            "word": generator.choice(["a", "b", None], 120),
        }
    )

    def model(rows: pd.DataFrame) -> np.ndarray:
        flag = rows["flag"].astype("Float64").fillna(0.5).to_numpy(np.float64)
        return flag * rows["code"].fillna(-1).to_numpy(np.float64) + (rows["word"] == "a").to_numpy()

    game = cortx.Game(model, reference=frame, categorical=["code"])
    for recipe in (make_tiny_recipe(), replace(make_tiny_recipe(), features=FeatureConfig(raw=True))):
        explainer = cortx.CoRTX(recipe, seed=np.int64(1)).fit(game, frame, n_labels=np.int64(30))  # type: ignore[arg-type]
        explanation = explainer.explain(frame)
        np.testing.assert_allclose(explanation.values.sum(1) + explanation.base_values, model(frame), atol=1e-9)
        strange = frame.assign(code=9.0)
        with pytest.raises(InputError, match="'code' has categories that training never saw: 9"):
            explainer.explain(strange)


def test_lists_and_tensors_are_rows_too(explainer: cortx.CoRTX, table: np.ndarray) -> None:
    expected = explainer.explain(table[:3]).values
    for rows in (table[:3].tolist(), torch.from_numpy(table[:3])):
        explanation = explainer.explain(rows)
        np.testing.assert_allclose(explanation.values, expected, atol=1e-6)
        assert len(explanation.to_frame()) == 3
        assert len(explanation[0]) == 1


def test_some_labels_keep_their_share_of_the_cost_and_may_lose_their_views(game: cortx.Game, table: np.ndarray) -> None:
    labels = cortx.shapley(game, table[:40], "exact")
    half = labels[:20]
    assert half.evaluations == pytest.approx(labels.evaluations / 2, abs=1)
    assert half.views is not None
    assert labels.views is not None
    assert len(half.views) == len(labels.views) // 2
    np.testing.assert_array_equal(np.unique(half.views.rows), np.arange(20))
    explainer = cortx.CoRTX(make_tiny_recipe(steps=5)).fit(game, table, labels=half)
    assert explainer.costs_["labels"]["evaluations"] == half.evaluations


def test_views_are_exact_labels_of_masked_rows(game: cortx.Game, table: np.ndarray) -> None:
    labels = cortx.shapley(game, table[:5], "exact", views=4)
    views = labels.views
    assert views is not None
    assert len(views) == 20
    masked = np.where(views.kept, table[views.rows], game.absent[0])
    truth = cortx.shapley(game, masked, "exact", views=0)
    np.testing.assert_allclose(views.values[..., 0], truth.values, atol=1e-6)
    np.testing.assert_allclose(views.outputs[:, 0], truth.outputs, atol=1e-6)
