"""Which column each output of scikit-learn's preparing steps comes from, where it comes from a single one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from cortx.games.tree_readers import NotTrees

ONE_TO_ONE = (
    *("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler", "QuantileTransformer", "PowerTransformer"),
    *("Binarizer", "OrdinalEncoder"),
)
"""Steps that turn each column into one column, whatever the other columns are."""


def sources_after(step: Any, name: str, sources: Sequence[int], names: Sequence[str] | None = None) -> list[int]:
    """The column that each output of a fitted step comes from.

    `sources` has the original column of each of the step's inputs, `names` their names, where the step sees names.
    Raises `NotTrees` with the step's name where an output may depend on several columns, or nobody knows.
    """
    if step is None or isinstance(step, str):
        return list(sources) if step != "drop" else []
    kind = type(step).__name__
    if not any(base.__module__.startswith("sklearn.") for base in type(step).__mro__):
        raise _refused(name, kind, "is not one of scikit-learn's steps")
    if kind == "Pipeline":
        for inner, part in step.steps:
            sources, names = sources_after(part, f"{name}/{inner}", sources, names), None
        return list(sources)
    if kind == "FeatureUnion":
        parts = [sources_after(part, f"{name}/{inner}", sources, names) for inner, part in step.transformer_list]
        return [source for part in parts for source in part]
    if kind == "ColumnTransformer":
        return _of_column_transformer(step, name, sources, names)
    return _of_simple(step, name, kind, sources)


def _of_column_transformer(step: Any, name: str, sources: Sequence[int], names: Sequence[str] | None) -> list[int]:
    if names is not None and hasattr(step, "feature_names_in_"):  # it finds its columns by name, in any order
        sources = [sources[list(names).index(column)] for column in step.feature_names_in_]
    places = [step.output_indices_[inner] for inner, *_ in step.transformers_]
    result = [-1] * max((place.stop for place in places), default=0)
    for (inner, part, _), place in zip(step.transformers_, places, strict=True):
        inputs = [sources[i] for i in step._transformer_to_input_indices[inner]]
        found = sources_after(part, f"{name}/{inner}", inputs)
        if len(found) != place.stop - place.start:
            raise _refused(f"{name}/{inner}", type(part).__name__, "has another number of outputs than expected")
        result[place] = found
    return result


def _of_simple(step: Any, name: str, kind: str, sources: Sequence[int]) -> list[int]:
    """A step that is made of no others."""
    columns = np.asarray(sources, dtype=np.int64)
    if kind in ONE_TO_ONE or (kind == "FunctionTransformer" and _is_elementwise(step.func)):
        return list(sources)
    if kind == "OneHotEncoder":
        return _repeated(columns, step._n_features_outs)
    if kind == "KBinsDiscretizer":
        return list(sources) if step.encode == "ordinal" else _repeated(columns, step.n_bins_)
    if kind == "SplineTransformer":
        return _repeated(columns, [step.n_features_out_ // max(1, len(columns))] * len(columns))
    if kind == "TargetEncoder" and step.target_type_ != "multiclass":
        return list(sources)
    if kind == "SimpleImputer":
        empty = np.array([number != number for number in step.statistics_], dtype=bool)
        dropped = empty & (step.strategy != "constant") & (not step.keep_empty_features)
        flags = step.indicator_.features_ if step.add_indicator else np.zeros(0, dtype=np.int64)
        return [*columns[~dropped].tolist(), *columns[flags].tolist()]
    if kind == "MissingIndicator":
        return [sources[i] for i in step.features_]
    if hasattr(step, "get_support"):
        return [sources[i] for i in step.get_support(indices=True)]
    raise _refused(name, kind, "may mix several columns into one")


def _repeated(columns: Any, counts: Any) -> list[int]:
    repeated: list[int] = np.repeat(columns, np.asarray(counts, dtype=np.int64)).tolist()
    return repeated


def _is_elementwise(function: Any) -> bool:
    """The identity, a NumPy function of single numbers, or the check that scikit-learn itself puts in this place."""
    checks = isinstance(function, partial) and function.func.__name__ == "check_array"
    return function is None or isinstance(function, np.ufunc) or checks


def _refused(name: str, kind: str, why: str) -> NotTrees:
    return NotTrees(f"step {name!r} of the Pipeline, {kind}, {why}; exact tree values need steps of single columns")
