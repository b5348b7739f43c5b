"""`TreeGame`: a game whose v(S) is a sum over the leaves of trees, so that its Shapley values need no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from cortx.games.catboost_trees import CategoryCodes, catboost_json, read_catboost
from cortx.games.forest import Array, Forest, IntArray
from cortx.games.game import Game
from cortx.games.models import BoosterModel, EstimatorModel, Link, found_estimator, library_of, objective_words
from cortx.games.single_columns import sources_after
from cortx.games.tree_readers import (
    AVERAGES,
    SKLEARN,
    NotTrees,
    read_lightgbm,
    read_sklearn_average,
    read_xgboost,
    xgboost_json,
)
from cortx.images import ImageSchema
from cortx.tables import Column, Schema, Table, dtype_kind, listed_categories

CHECKED = 16
"""Masked rows on which the trees must agree with the model's own outputs before they are believed."""
RARE_AMONG, RARE_NUMBERS, FEW_VALUES = 100_000, 10_000_000, 64
"""Rows, and numbers in them, among which rare values are looked for, at most, and the most different values of a column
that has such."""
AGREES = 1e-4
"""How far they may differ, as a share of the outputs' own size: libraries add leaves in float32."""
IDENTITY = (
    *("reg:squarederror", "reg:linear", "reg:squaredlogerror", "reg:pseudohubererror", "reg:absoluteerror"),
    *("reg:quantileerror", "reg:expectileerror", "rank:pairwise", "rank:ndcg", "rank:map", "binary:logitraw"),
    *("regression", "regression_l1", "huber", "fair", "quantile", "mape", "lambdarank", "rank_xendcg", "custom", ""),
    *("squared_error", "absolute_error", "lad", "ls"),
    *("RMSE", "MAE", "Quantile", "MAPE", "RMSPE", "Lq", "Huber", "Expectile", "LogCosh", "MultiRMSE", "MultiQuantile"),
    *("MultiRMSEWithMissingValues", "YetiRank", "YetiRankPairwise", "PairLogit", "PairLogitPairwise", "QueryRMSE"),
    *("QuerySoftMax", "PythonUserDefinedPerObject"),
)
"""Objectives of regressors whose predictions are the sum of the leaves."""

LIBRARIES = "XGBoost, LightGBM, CatBoost or scikit-learn's trees"

Encode = Callable[[Table], Array]


@dataclass(frozen=True, eq=False)
class TreeGame:
    """The trees of a game's model, and how the game's rows become the columns they look at."""

    forest: Forest
    """Its outputs are the game's."""
    encode: Encode
    """Rows as the trees see them, (rows, tree columns)."""
    column_player: IntArray
    """(tree columns,) the player that each belongs to."""
    sources: IntArray
    """(tree columns,) the column of the game's table that each comes from."""
    missing_number: np.float32 | None = None
    """A number that means missing, as XGBoost's models may have one."""

    def outputs(self, table: Table) -> Array:
        """The game's outputs of rows, (rows, outputs), from the trees alone."""
        return self.forest.outputs(self.encode(table))


def read_trees(game: Game) -> TreeGame:
    """The trees of a game; raises `NotTrees` with the reason where its values do not follow from leaves."""
    if game.of_images or isinstance(game.schema, ImageSchema):
        raise NotTrees("exact tree values are for tables; got images")
    model = game.model
    if isinstance(model, EstimatorModel):
        steps, last = _steps(found_estimator(model.estimator))
        last = found_estimator(last)
        forest = _estimator_forest(last, model)
    elif isinstance(model, BoosterModel):
        steps, last = [], model.booster
        forest = _booster_forest(model)
    else:
        raise NotTrees(f"exact tree values need a model of {LIBRARIES}; got a {type(model).__name__}")
    if type(last).__name__.startswith("HistGradientBoosting") and last._preprocessor is not None:
        steps = [*steps, ("its own encoder", last._preprocessor)]
    named = [column.name for column in game.schema.columns] if _is_named(game) else None
    sources: Sequence[int] = range(len(game.schema.columns))
    for name, step in steps:
        sources, named = sources_after(step, name, sources, named), None
    encode = _encoder(game, steps, last, forest, len(sources))
    if forest.n_columns > len(sources):
        raise NotTrees(f"the trees look at {forest.n_columns} columns, the table has {len(sources)}")
    made_of = np.asarray(sources, dtype=np.int64)
    players = game.players.column_player[made_of]
    return TreeGame(_selected(forest, game), encode, players, made_of, missing_number(last))


def check_trees(game: Game, trees: TreeGame, table: Table, most: int | None = None) -> bool:
    """Compares the trees with the model on `CHECKED` masked rows, or as many as may be; raises `NotTrees`.

    The rows are model evaluations. Returns whether all of them were compared.
    """
    count = CHECKED if most is None else min(most, CHECKED)
    if count < 1:
        return False
    rng = np.random.default_rng(0)
    rows = table.matrix[_checked_rows(table, count)]
    absent = game.absent[np.linspace(0, len(game.absent) - 1, count).astype(np.int64)]
    # Whole players come and go: half of them on average, in the first rows, which are rare ones, nearly all.
    present = game.players.columns(rng.random((count, game.n_players)) < np.linspace(1, 0.3, count)[:, None] ** 3 + 0.2)
    mixed = Table(np.where(present, rows, absent), table.schema)
    expected, got = game.outputs_of(mixed), trees.outputs(mixed)
    if expected.shape != got.shape:
        raise NotTrees(f"the model has outputs of shape {expected.shape}, its trees {got.shape}")
    scale = np.abs(trees.forest.value).max(initial=0.0) + np.abs(expected - expected.mean(axis=0)).max()
    off = np.abs(expected - got) - AGREES * scale - 1e-6 * np.abs(expected)
    if (off > 0).any():
        row, output = np.unravel_index(off.argmax(), off.shape)
        raise NotTrees(
            f"the sum over the leaves is {got[row, output]:.6g} where the model says {expected[row, output]:.6g}; "
            "this model computes something that its trees do not tell. Use 'kernel' or 'permutation'"
        )
    return count == CHECKED


def _checked_rows(table: Table, count: int) -> IntArray:
    """Rows that show the rarest values of columns with few of them, the rarest first; else rows from all over."""
    matrix = table.matrix[: max(1, min(RARE_AMONG, RARE_NUMBERS // table.matrix.shape[1]))]
    rare: list[tuple[int, int]] = []
    for column in matrix.T:
        _, first, counts = np.unique(column, return_index=True, return_counts=True)
        if len(counts) <= FEW_VALUES:
            rare += [(int(n), int(row)) for n, row in zip(counts, first, strict=True) if 2 * n < len(matrix)]
    chosen = list(dict.fromkeys(row for _, row in sorted(rare)))[: count // 2]
    even = np.linspace(0, len(table) - 1, count - len(chosen)).astype(np.int64)
    return np.concatenate([np.array(chosen, dtype=np.int64), even])


# What the model's outputs are in terms of its leaves -------------------------------------------------------


def _estimator_forest(last: Any, model: EstimatorModel) -> Forest:
    name, library = type(last).__name__, library_of(last)
    averages = library == "sklearn" and name in AVERAGES
    if library not in ("xgboost", "lightgbm", "catboost") and not (library == "sklearn" and name in SKLEARN):
        raise NotTrees(f"exact tree values need a model of {LIBRARIES}; got {name}")
    for method in ("predict", "predict_proba"):
        home = next((base for base in type(last).__mro__ if method in vars(base)), None)
        if method in vars(last) or (home is not None and home.__module__.partition(".")[0] != library):
            raise NotTrees(
                f"{name} has a {method} of its own, which may do more than its trees tell. Use 'kernel' or "
                "'permutation'"
            )
    if averages:
        if model.class_names is not None and model.output != "probability":
            raise NotTrees(
                f"{name} averages probabilities, so tree values are for output='probability'; got {model.output!r}"
            )
        return read_sklearn_average(last)
    if model.class_names is not None:
        factor = _factor(model.output, model.link, name)
    else:
        factor = 1.0
        objective = objective_words(last)
        if objective.partition(" ")[0] not in IDENTITY or " sqrt" in objective:
            advice = "give its booster with output='raw' to explain the sum itself"
            if library in ("catboost", "sklearn"):
                advice = "use 'kernel' or 'permutation'"
            raise NotTrees(f"{name} predicts a function of the sum of its leaves ({objective!r}); {advice}")
    return _scaled(_forest_of(last, library, name), factor)


def _booster_forest(model: BoosterModel) -> Forest:
    factor = _factor(model.output, model.link, "the booster")
    if model.library == "xgboost":
        return _scaled(read_xgboost(xgboost_json(model.booster), None), factor)
    return _scaled(read_lightgbm(model.booster), factor)


def _factor(output: str, link: Link | None, name: str) -> float:
    """What the raw score is multiplied with to be the game's output."""
    if output == "raw":
        return 1.0
    if output == "log-odds" and link is not None and link.kind == "sigmoid":
        return link.factor
    allowed = "'raw' or 'log-odds'" if link is not None and link.kind == "sigmoid" else "'raw'"
    instead = (
        "; probabilities are sampled by method='auto', and learned by CoRTX.fit" if output == "probability" else ""
    )
    raise NotTrees(
        f"output={output!r} of {name} is no sum over its leaves; exact tree values are for output={allowed}{instead}"
    )


def _forest_of(last: Any, library: str, name: str) -> Forest:
    if library == "xgboost":
        best = getattr(last, "best_iteration", None)
        return read_xgboost(xgboost_json(last.get_booster()), None if best is None else int(best) + 1)
    if library == "lightgbm":
        return read_lightgbm(last.booster_)
    if library == "catboost":
        return read_catboost(catboost_json(last))
    return SKLEARN[name](last)


def _scaled(forest: Forest, factor: float) -> Forest:
    if factor == 1.0:
        return forest
    return replace(forest, value=factor * forest.value, offset=factor * forest.offset)


def _selected(forest: Forest, game: Game) -> Forest:
    """The outputs that the game explains."""
    if forest.n_outputs == 1 and game.model.output == "probability":
        raise NotTrees("the model knows a single class")
    value = game.select_outputs(forest.value)
    return replace(forest, value=np.ascontiguousarray(value), offset=game.select_outputs(forest.offset[None])[0])


# What the trees see of a row --------------------------------------------------------------------------------


def _steps(estimator: Any) -> tuple[list[tuple[str, Any]], Any]:
    """The steps before the last one, and the last one; Pipelines in Pipelines are opened."""
    steps: list[tuple[str, Any]] = []
    while type(estimator).__name__ == "Pipeline":
        steps += [(name, step) for name, step in estimator.steps[:-1] if step not in (None, "passthrough")]
        estimator = estimator.steps[-1][1]
    return steps, estimator


def _encoder(game: Game, steps: list[tuple[str, Any]], last: Any, forest: Forest, n_columns: int) -> Encode:
    catboost = library_of(last) == "catboost"
    if steps and catboost and (forest.categories >= 0).any():
        raise NotTrees(
            "CatBoost has categories of its own after the steps of a Pipeline, and they cannot be told there; "
            "encode them as numbers, or give the columns to CatBoost without steps"
        )
    if steps:
        return _Through(game, steps, last, n_columns)
    assert isinstance(game.schema, Schema)
    return CategoryCodes.of(game, game.schema, last, forest) if catboost else _AsGiven.of(last, game.schema)


def _is_named(game: Game) -> bool:
    assert isinstance(game.schema, Schema)
    return game.model_schema(game.schema).frame != "numpy"


@dataclass(frozen=True, eq=False)
class _Through:
    """Rows through the steps of a Pipeline; the steps are no model, so nothing is counted."""

    game: Game
    steps: list[tuple[str, Any]]
    last: Any
    n_columns: int

    def __call__(self, table: Table) -> Array:
        batch = self.game.model_table(table.matrix.copy(), table.schema)
        for name, step in self.steps:
            try:
                batch = step.transform(batch)
            except Exception as error:
                raise NotTrees(f"step {name!r} of the Pipeline raised {type(error).__name__}: {error}") from error
        # What a sparse matrix does not store is missing for XGBoost, zero for the others.
        matrix = _dense(batch, np.nan if library_of(self.last) == "xgboost" else 0.0)
        if matrix.shape[1] != self.n_columns:
            raise NotTrees(f"the steps of the Pipeline made {matrix.shape[1]} columns, expected {self.n_columns}")
        return _own_missing(matrix, self.last)


def _dense(batch: Any, gaps: float) -> Array:
    if hasattr(batch, "tocoo"):
        sparse = batch.tocoo()
        matrix = np.full(sparse.shape, gaps)
        matrix[sparse.row, sparse.col] = sparse.data
        return matrix
    try:
        return np.asarray(batch, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise NotTrees(f"the steps of the Pipeline do not end in numbers ({error})") from error


def missing_number(last: Any) -> np.float32 | None:
    """XGBoost's scikit-learn models may have a number of their own that means missing; it compares in float32."""
    missing = getattr(last, "missing", None) if library_of(last) == "xgboost" else None
    is_number = isinstance(missing, (int, float, np.number)) and missing == missing
    return np.float32(cast(float, missing)) if is_number else None


def _own_missing(matrix: Array, last: Any) -> Array:
    number = missing_number(last)
    with np.errstate(over="ignore"):
        return matrix if number is None else np.where(matrix.astype(np.float32) == number, np.nan, matrix)


@dataclass(frozen=True, eq=False)
class _AsGiven:
    """Rows as the library reads them from a frame: numbers as they are, categories as its own codes."""

    last: Any
    categories: dict[int, list[Any]]
    """The categories of columns, by their positions, as the model knows them; others as the frame lists them."""

    @staticmethod
    def of(last: Any, schema: Schema) -> _AsGiven:
        library = library_of(last)
        coded = [j for j, column in enumerate(schema.columns) if column.coded]
        if library == "lightgbm":
            booster = last if type(last).__name__ == "Booster" else last.booster_
            return _AsGiven(last, dict(zip(coded, booster.pandas_categorical or (), strict=False)))
        if library == "xgboost":
            booster = last if type(last).__name__ == "Booster" else last.get_booster()
            return _AsGiven(last, _xgboost_categories(xgboost_json(booster)))
        return _AsGiven(last, {})

    def __call__(self, table: Table) -> Array:
        matrix = table.matrix.copy()
        for j, column in enumerate(table.schema.columns):
            if column.coded:
                matrix[:, j] = _codes(column, self.categories.get(j))[matrix[:, j].astype(np.int64)]
        return _own_missing(matrix, self.last)


def _xgboost_categories(learner: dict[str, Any]) -> dict[int, list[Any]]:
    part = learner["gradient_booster"]
    model = part.get("gbtree", part).get("model", {})
    found: dict[int, list[Any]] = {}
    for j, entry in enumerate(model.get("cats", {}).get("enc", [])):
        values = entry.get("values", [])
        if "offsets" in entry and len(entry["offsets"]):
            ends = entry["offsets"]
            texts = bytes(byte % 256 for byte in values)
            found[j] = [texts[a:b].decode() for a, b in pairwise(ends)]
        elif values:
            found[j] = list(values)
    return found


def _codes(column: Column, known: list[Any] | None) -> npt.NDArray[np.float64]:
    """The library's code of each of a column's values; NaN for a missing one and for one it does not know."""
    listed = known if known is not None else list(listed_categories(column.dtype) or ())
    if not listed or dtype_kind(column.dtype) != "category":
        raise NotTrees(
            f"column {column.name!r} holds {column.dtype}, and the model does not say how it reads it; "
            "exact tree values need a category column, or a Pipeline that encodes it"
        )
    place = {value: code for code, value in enumerate(listed)}
    return np.array([np.nan if value is None else place.get(value, np.nan) for value in column.values])
