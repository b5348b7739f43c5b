"""Numbers of any size and shape: constants, wild values, outputs of 1e19 and 1e-12, log-odds beyond any probability."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.conftest import make_model, make_tiny_recipe

import cortx
from cortx.errors import CategoricalHint, ClippedOutputs
from cortx.metrics import l2_distance
from cortx.tables import Column, read_table, reference_row
from cortx.training.features import FeatureConfig, fit_features, robust_scale

N_ROWS = 300


def rows(seed: int = 0, n: int = N_ROWS) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 6))


# Constant columns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "Float64", "Int64"])
@pytest.mark.parametrize("n", [3, 7, 10, 1001])
def test_the_mean_of_a_constant_column_is_that_constant(dtype: str, n: int) -> None:
    for constant in (0.1, 1 / 3, -2.7, 1e10 + 0.1, 7.0):
        value = float(int(constant)) if "int" in dtype.lower() else constant
        table = read_table(pd.DataFrame({"same": pd.Series([value] * n).astype(dtype), "other": np.arange(float(n))}))
        assert reference_row(table)[0, 0] == table.matrix[0, 0]
        weighted = reference_row(table, np.arange(1, n + 1))
        assert weighted[0, 0] == table.matrix[0, 0]


def test_missing_values_aside_a_column_is_still_constant() -> None:
    column = np.array([0.1, np.nan, 0.1, 0.1, np.nan])
    assert reference_row(read_table(column[:, None]))[0, 0] == 0.1
    assert np.isnan(reference_row(read_table(np.full((4, 1), np.nan)))[0, 0])


def test_a_constant_column_is_no_player() -> None:
    table = np.column_stack([rows(), np.full(N_ROWS, 0.1)])
    game = cortx.Game(lambda x: np.asarray(x).sum(axis=1), reference=table)
    read = game.rows(table)
    assert read.active[:, :6].all()
    assert not read.active[:, 6].any()
    assert cortx.shapley(game, table[:1], "exact").evaluations <= 2**6 + 1


# Inputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wild", [[1e10], [1e10, -1e10], [1e300], [np.nan, 1e10]])
def test_one_wild_value_does_not_change_how_a_column_is_seen(wild: list[float]) -> None:
    plain = np.random.default_rng(0).normal(3.0, 2.0, size=500)
    spoilt = np.concatenate([plain, wild])
    columns = (Column("x", False, np.dtype(float)),)
    absent = np.zeros((1, 1))
    clean, robust = (fit_features(c[:, None], columns, absent, FeatureConfig()) for c in (plain, spoilt))
    some = torch.from_numpy(plain[:50, None])
    torch.testing.assert_close(clean(some)[:, :1], robust(some)[:, :1], rtol=0.1, atol=0.1)
    seen = robust(torch.tensor([[1e10], [1e5]], dtype=torch.float64))[:, 0]
    assert 5 < seen[1] <= seen[0] < 20  # large, but not so large that nothing else counts
    assert robust(torch.tensor([[50.0]], dtype=torch.float64))[0, 0] < seen[1]


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1.0, 1e12, 1e300])
def test_the_scale_of_a_column_follows_its_size(size: float) -> None:
    numbers = np.random.default_rng(1).normal(5, 2, size=200)
    centre, scale = robust_scale(size * numbers)
    np.testing.assert_allclose([centre / size, scale / size], [numbers.mean(), numbers.std()], rtol=1e-9)


def test_scales_of_columns_that_are_mostly_one_value() -> None:
    assert robust_scale(np.full(7, 0.1)) == (0.1, 1.0)
    mostly_zero = np.concatenate([np.zeros(900), np.random.default_rng(2).gamma(2.0, 1000.0, 100)])
    centre, scale = robust_scale(np.append(mostly_zero, 1e12))
    assert abs(centre - mostly_zero.mean()) < 0.5 * mostly_zero.std()
    assert 0.5 < scale / mostly_zero.std() < 2.0


# Fits -----------------------------------------------------------------------------------------------------------


def scaled(factor: float) -> Any:
    model = make_model().double()

    def outputs(table: Any) -> np.ndarray:
        with torch.no_grad():
            return factor * model(torch.as_tensor(np.asarray(table, dtype=np.float64)))[:, 0].numpy()

    return outputs


def relative_error(factor: float, budget: int = 20_000) -> tuple[float, cortx.Explanation, cortx.CoRTX]:
    game = cortx.Game(scaled(factor), reference=rows())
    explainer = cortx.CoRTX(make_tiny_recipe()).fit(game, rows(), budget=budget)
    fresh = rows(1, 40)
    found, truth = explainer.explain(fresh, confidence=0.9), cortx.shapley(game, fresh)
    error = l2_distance(found.values, truth.values).mean() / np.linalg.norm(truth.values, axis=1).mean()
    return float(error), found, explainer


@pytest.fixture(scope="module")
def usual_error() -> float:
    return relative_error(1.0)[0]


@pytest.mark.parametrize("factor", [1e19, 1e-12, 1e-20])
def test_outputs_of_any_size_are_explained_as_well(factor: float, usual_error: float) -> None:
    error, found, explainer = relative_error(factor)
    assert error < 1.1 * usual_error
    for part in (found.values, found.lower_bounds, found.upper_bounds, found.error_bound):
        assert np.isfinite(part).all()
    truth = cortx.shapley(explainer.game, rows(1, 40)).values
    inside = ((found.lower_bounds <= truth) & (truth <= found.upper_bounds)).all(axis=1)
    assert inside.mean() > 0.6
    by_torch = explainer._torch_answer(
        explainer._read(rows(1, 40)), found.outputs[:, None], found.base_values[:, None], errors=True
    )
    np.testing.assert_allclose(found.values, by_torch.values[..., 0], rtol=1e-5, atol=1e-5 * factor)


def test_another_model_of_tiny_outputs_is_recognised(tmp_path: Any) -> None:
    game = cortx.Game(scaled(1e-12), reference=rows())
    explainer = cortx.CoRTX(make_tiny_recipe(steps=2)).fit(game, rows(), n_labels=40)
    explainer.save(tmp_path / "tiny")
    cortx.load(tmp_path / "tiny", model=scaled(1e-12))
    with pytest.raises(cortx.errors.FingerprintError):
        cortx.load(tmp_path / "tiny", model=scaled(1.1e-12))


def test_wild_values_do_not_spoil_a_fit() -> None:
    def waves(x: Any) -> np.ndarray:
        a, b, c, d = np.clip(np.asarray(x, dtype=float), -4, 4).T
        return 2 * np.sin(1.5 * c) + 2 * np.cos(1.5 * d) * a + a + 0.5 * b

    table = rows()[:, :4]
    spoilt = table.copy()
    spoilt[17, 2], spoilt[40, 3] = 1e10, -1e10
    game = cortx.Game(waves, reference=np.zeros((1, 4)))
    fresh = rows(1, 100)[:, :4]
    truth = cortx.shapley(game, fresh).values
    explainers = [cortx.CoRTX(make_tiny_recipe(steps=300)).fit(game, given, budget=5_000) for given in (table, spoilt)]
    errors = [l2_distance(explainer.explain(fresh).values, truth).mean() for explainer in explainers]
    assert errors[1] < 1.5 * errors[0]


# Log-odds -------------------------------------------------------------------------------------------------------


def separable() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, two classes, three classes: so clear that probabilities round to 0 and 1."""
    table = rows(3, 400)
    score = table[:, 0] + table[:, 1]
    return table, (score > 0).astype(int), np.digitize(score, [-1, 1])


def classifiers() -> dict[str, Any]:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    boosted = {"n_estimators": 60, "learning_rate": 1.0, "max_depth": 3}
    found = {
        "logistic": LogisticRegression(C=1e8, max_iter=2000),
        "pipeline": make_pipeline(StandardScaler(), LogisticRegression(C=1e8, max_iter=2000)),
        "boosting": GradientBoostingClassifier(**boosted, random_state=0),
        "histogram boosting": HistGradientBoostingClassifier(max_iter=60, learning_rate=1.0, random_state=0),
        "discriminant": LinearDiscriminantAnalysis(),
    }
    try:
        from xgboost import XGBClassifier

        found["xgboost"] = XGBClassifier(**boosted, n_jobs=1, reg_lambda=0.0, min_child_weight=0.0)
        found["xgboost in a pipeline"] = make_pipeline(StandardScaler(), XGBClassifier(**boosted, n_jobs=1))
    except ImportError:
        pass
    try:
        from lightgbm import LGBMClassifier

        found["lightgbm"] = LGBMClassifier(
            n_estimators=60, learning_rate=1.0, min_child_samples=2, n_jobs=1, verbose=-1
        )
        found["lightgbm, steep"] = LGBMClassifier(n_estimators=20, sigmoid=2.0, n_jobs=1, verbose=-1)
    except ImportError:
        pass
    return found


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", classifiers())
def test_log_odds_are_the_margins_of_the_model(name: str, classes: int) -> None:
    table, two, three = separable()
    model = classifiers()[name].fit(table, two if classes == 2 else three)
    probability = model.predict_proba(table).astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ClippedOutputs)
        game = cortx.Game(model, reference=table, output="log-odds", target="all")
        outputs = game.full_values(game.rows(table))
    assert outputs.shape == (len(table), classes)
    clear = (probability > 1e-4) & (probability < 1 - 1e-4)
    expected = np.log(probability[clear] / (1 - probability[clear]))
    np.testing.assert_allclose(outputs[clear], expected, rtol=2e-3, atol=2e-3)
    if name in ("logistic", "boosting", "xgboost", "lightgbm"):
        assert np.abs(outputs).max() > 16.2


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_native_boosters_give_their_margins_too() -> None:
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    table, two, three = separable()
    settings = {
        "objective": "multi:softmax",
        "num_class": 3,
        "eta": 1.0,
        "lambda": 0.0,
        "min_child_weight": 0.0,
        "nthread": 1,
    }
    boosters = [
        xgboost.train(settings, xgboost.DMatrix(table, three), 60),
        lightgbm.train(
            {"objective": "multiclassova", "num_class": 3, "num_threads": 1, "verbose": -1},
            lightgbm.Dataset(table, three),
        ),
        lightgbm.train(
            {"objective": "binary", "sigmoid": 3.0, "num_threads": 1, "verbose": -1}, lightgbm.Dataset(table, two)
        ),
    ]
    for booster in boosters:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ClippedOutputs)
            odds = cortx.Game(booster, reference=table, output="log-odds")
            found = odds.full_values(odds.rows(table))
        game = cortx.Game(booster, reference=table, output="probability")
        probability = game.full_values(game.rows(table))
        clear = (probability > 1e-4) & (probability < 1 - 1e-4)
        np.testing.assert_allclose(
            found[clear], np.log(probability[clear] / (1 - probability[clear])), rtol=2e-3, atol=2e-3
        )


def test_clipped_log_odds_are_said_once() -> None:
    table = rows()

    def certain(x: Any) -> np.ndarray:
        return np.where(np.asarray(x)[:, 0] > 0, 1.0, 0.3)

    game = cortx.Game(certain, reference=np.full((1, 6), -1.0), output="log-odds")
    share = (table[:, 0] > 0).mean()
    with pytest.warns(ClippedOutputs, match=f"{share:.1%} of 300 probabilities"):
        outputs = game.full_values(game.rows(table))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        game.full_values(game.rows(table))
    assert np.isfinite(outputs).all()


# Numbers that may be codes ----------------------------------------------------------------------------------------


def coded_table(n: int = 400) -> pd.DataFrame:
    generator = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "size": generator.normal(size=n),
            "colour": generator.integers(0, 6, n),
            "age": generator.integers(0, 100, n),
            "flag": generator.integers(0, 2, n),
            "price": generator.integers(1, 6, n) / 4,
        }
    )


def by_colour(table: Any) -> np.ndarray:
    effects = np.array([0.0, 3.0, -2.0, 1.0, -3.0, 2.0, 0.0])
    colour = np.rint(table["colour"].to_numpy(float)).astype(int)
    return np.asarray(effects[colour] * (1 + 0.3 * table["size"].to_numpy(float)) + table["flag"].to_numpy(float))


def test_codes_of_categories_raise_a_hint_that_names_them() -> None:
    table = coded_table()
    with pytest.warns(CategoricalHint, match=r"'colour'\..*categorical=\[\.\.\.\].*categorical=\(\)") as caught:
        cortx.Game(by_colour, reference=table)
    assert "'age'" not in str(caught[0].message)
    with pytest.warns(CategoricalHint, match="'colour'"):
        cortx.Game(by_colour, background=table)
    later = cortx.Game(by_colour, reference=table.iloc[[0]])
    with pytest.warns(CategoricalHint, match="'colour'"):
        later.rows(table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        later.rows(table)  # once
        cortx.Game(by_colour, reference=table, categorical=())
        cortx.Game(by_colour, reference=table, categorical=["colour"])
        cortx.Game(by_colour, reference=table.head(30)).rows(table.head(30))  # too few rows to tell


def test_a_saved_game_raises_no_hint(tmp_path: Any) -> None:
    table = coded_table()
    game = cortx.Game(by_colour, reference=table, categorical=())
    explainer = cortx.CoRTX(make_tiny_recipe(steps=2)).fit(game, table, n_labels=40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = cortx.load(explainer.save(tmp_path / "coded"), model=by_colour)
        known = loaded.explain(table.head(70))
        new = table.head(3).assign(colour=[6, 2, 3])  # a number that training never saw is still a number
        assert np.isfinite(loaded.explain(new).values).all()
    by_torch = loaded._torch_answer(
        loaded._read(table.head(70)), known.outputs[:, None], known.base_values[:, None], errors=False
    )
    np.testing.assert_allclose(known.values, by_torch.values[..., 0], atol=1e-5)


def test_codes_are_inputs_of_their_own() -> None:
    matrix = coded_table().to_numpy(float)
    columns = tuple(Column(name, False, np.dtype(float)) for name in coded_table())
    width = {
        name: fit_features(matrix, columns, matrix[:1], config).width
        for name, config in (("default", FeatureConfig()), ("plain", FeatureConfig(codes=False)))
    }
    assert width == {"default": 5 + 6, "plain": 5}
    assert fit_features(matrix, columns, matrix[:1], FeatureConfig(raw=True)).width == 5


# What replaces an absent feature ------------------------------------------------------------------------------------


def test_the_repr_and_the_plan_say_what_replaces_an_absent_feature() -> None:
    table = rows()
    model = scaled(1.0)
    games = {
        "one row, the mean of 300 rows (categories: the mode); 1 evaluation for each v(S). "
        "An average over rows is background=": cortx.Game(model, reference=table),
        "one row; 1 evaluation for each v(S)": cortx.Game(model, reference=table[:1]),
        "zeros; 1 evaluation for each v(S)": cortx.Game(model, reference="zero"),
        "an average over 7 background rows; 7 evaluations for each v(S)": cortx.Game(model, background=table[:7]),
    }
    for words, game in games.items():
        assert words in repr(game)
        assert f"absent features are replaced by {words}" in str(cortx.CoRTX().plan(game, table, 200_000))
        assert words in repr(game)  # also after it has seen a table
