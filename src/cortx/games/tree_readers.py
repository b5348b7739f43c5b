"""Trees of XGBoost, LightGBM and scikit-learn as a `Forest` of their raw outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.games.forest import Array, Forest, ForestBuilder, one_output


class NotTrees(InputError):
    """A model or game whose values do not follow from the leaves of trees, with the reason."""


# XGBoost ------------------------------------------------------------------------------------------------------

LOGISTIC = ("binary:logistic", "binary:logitraw", "reg:logistic")
LOGARITHMIC = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft")


def xgboost_json(booster: Any) -> dict[str, Any]:
    """What an XGBoost model saves as JSON, the part about the learner."""
    learner: dict[str, Any] = json.loads(bytes(booster.save_raw("json")))["learner"]
    return learner


def read_xgboost(learner: dict[str, Any], rounds: int | None) -> Forest:
    """The margins of an XGBoost model; `rounds` of boosting are used, None for all."""
    part = learner["gradient_booster"]
    name = part["name"]
    if name not in ("gbtree", "dart"):
        raise NotTrees(f"booster={name!r} of XGBoost is not made of trees; use 'gbtree' or 'dart'")
    model = part["gbtree"]["model"] if name == "dart" else part["model"]
    facts = learner["learner_model_param"]
    n_outputs = max(1, int(facts["num_class"]), int(facts.get("num_target", 1)))
    builder = ForestBuilder(n_outputs, single=True)
    trees, groups = model["trees"], model["tree_info"]
    last = len(trees)
    if rounds is not None and "iteration_indptr" in model:
        last = int(model["iteration_indptr"][rounds])
    weights = part.get("weight_drop") or [1.0] * len(trees)
    for tree, group, weight in zip(trees[:last], groups[:last], weights[:last], strict=True):
        _add_xgboost(builder, tree, int(group), float(weight))
    scores = np.array(str(facts["base_score"]).strip("[]").split(","), dtype=np.float64)
    objective = learner["objective"]["name"]
    if objective in LOGISTIC:
        scores = np.log(scores) - np.log1p(-scores)
    elif objective in LOGARITHMIC:
        scores = np.log(scores)
    return builder.build(np.broadcast_to(scores, (n_outputs,)))


def _add_xgboost(builder: ForestBuilder, tree: dict[str, Any], group: int, weight: float) -> None:
    left = np.array(tree["left_children"])
    leaf = left < 0
    right = np.array(tree["right_children"])
    conditions = np.array(tree["split_conditions"], dtype=np.float32)
    width = int(tree["tree_param"]["size_leaf_vector"])
    if width > 1:
        vectors = np.array(tree.get("leaf_weights") or tree["base_weights"]).reshape(-1, width)
        # Newer versions store the vectors of leaves alone, and where a leaf's vector is in place of a right child.
        value = vectors[np.where(leaf, right, 0)] if "leaf_weights" in tree else vectors
    else:
        value = one_output(np.where(leaf, conditions, 0.0), group, builder.n_outputs)
    categories = np.full(len(left), -1)
    sizes = zip(tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True)
    for node, start, size in sizes:
        goes_right = np.array(tree["categories"][start : start + size], dtype=np.int64)
        known = np.ones(int(goes_right.max(initial=-1)) + 1, dtype=bool)
        known[goes_right] = False
        categories[node] = builder.category_set(known, other_left=True)
    # "less than a float32" is "at most the float32 before it".
    threshold = np.nextafter(conditions, np.float32(-np.inf))
    builder.add(
        np.where(leaf, -1, tree["split_indices"]), threshold, (left, right), tree["default_left"], weight * value,
        categories,
    )  # fmt: skip


# LightGBM -----------------------------------------------------------------------------------------------------


def read_lightgbm(booster: Any) -> Forest:
    """The raw scores of a LightGBM model, up to its best iteration where it stopped early."""
    model = booster.dump_model()
    n_outputs = int(model["num_tree_per_iteration"])
    builder = ForestBuilder(n_outputs)
    trees = model["tree_info"]
    share = n_outputs / len(trees) if model.get("average_output") and trees else 1.0
    for number, tree in enumerate(trees):
        _add_lightgbm(builder, tree["tree_structure"], number % n_outputs, share)
    return builder.build(np.zeros(n_outputs))


def _add_lightgbm(builder: ForestBuilder, root: dict[str, Any], output: int, share: float) -> None:
    nodes: list[dict[str, Any]] = [root]
    children: list[tuple[int, int]] = []
    for node in nodes:  # grows while it is read
        if "split_feature" in node:
            children.append((len(nodes), len(nodes) + 1))
            nodes += [node["left_child"], node["right_child"]]
        else:
            children.append((-1, -1))
            if node.get("leaf_coeff"):
                raise NotTrees("linear_tree=True of LightGBM has linear models in its leaves")
    column = np.array([node.get("split_feature", -1) for node in nodes])
    threshold, missing_left = np.zeros(len(nodes)), np.zeros(len(nodes), dtype=bool)
    categories = np.full(len(nodes), -1)
    for place, node in enumerate(nodes):
        if "split_feature" not in node:
            continue
        if node["decision_type"] == "==":
            codes = np.array([int(code) for code in str(node["threshold"]).split("||")])
            known = np.zeros(codes.max() + 1, dtype=bool)
            known[codes] = True
            categories[place] = builder.category_set(known, other_left=False)
        else:
            threshold[place], missing_left[place] = _lightgbm_threshold(node)
    value = one_output([share * node.get("leaf_value", 0.0) for node in nodes], output, builder.n_outputs)
    left, right = np.array(children).T
    builder.add(column, threshold, (left, right), missing_left, value, categories)


def _lightgbm_threshold(node: dict[str, Any]) -> tuple[float, bool]:
    """The threshold of a split, and whether missing values go left."""
    threshold = float(node["threshold"])
    kind = node["missing_type"]
    if kind == "Zero":
        raise NotTrees("zero_as_missing=True of LightGBM is not supported: zeros would go their own way at every split")
    # Where training saw no missing values, LightGBM reads them as zero.
    return threshold, bool(node["default_left"]) if kind == "NaN" else threshold >= 0.0


# scikit-learn -------------------------------------------------------------------------------------------------


def read_sklearn_average(estimator: Any) -> Forest:
    """A decision tree, or the mean over a forest of them: predictions, or probabilities of all classes."""
    trees = [member.tree_ for member in getattr(estimator, "estimators_", [estimator])]
    classes = getattr(estimator, "classes_", None)
    if trees[0].n_outputs > 1 and classes is not None:
        raise NotTrees(f"{type(estimator).__name__} has several classification targets; wrap one of them in a function")
    n_outputs = trees[0].n_outputs if classes is None else len(classes)
    builder = ForestBuilder(n_outputs, single=True, allows_missing=_allows_missing(estimator))
    for tree in trees:
        value = tree.value[:, :, 0] if classes is None else tree.value[:, 0, :]
        if classes is not None:  # proportions, or counts in old versions
            value = value / value.sum(axis=1, keepdims=True)
        _add_sklearn(builder, tree, value / len(trees))
    return builder.build(np.zeros(n_outputs))


def read_sklearn_boosting(estimator: Any) -> Forest:
    """The raw predictions of GradientBoostingRegressor and GradientBoostingClassifier."""
    n_outputs = int(estimator.estimators_.shape[1])
    initial = estimator.init_
    constant = isinstance(initial, str) or type(initial).__name__ in ("DummyClassifier", "DummyRegressor")
    if not constant:
        raise NotTrees(f"init={type(initial).__name__}(...) of {type(estimator).__name__} is a model that is no tree")
    start = np.asarray(estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_)))).reshape(n_outputs)
    builder = ForestBuilder(n_outputs, single=True, allows_missing=False)
    for members in estimator.estimators_:
        for output, member in enumerate(members):
            value = one_output(estimator.learning_rate * member.tree_.value[:, 0, 0], output, n_outputs)
            _add_sklearn(builder, member.tree_, value)
    return builder.build(start)


def _add_sklearn(builder: ForestBuilder, tree: Any, value: Array) -> None:
    nodes = tree.__getstate__()["nodes"]
    goes_left = nodes["missing_go_to_left"] if "missing_go_to_left" in nodes.dtype.names else np.zeros(len(nodes))
    leaf = tree.children_left < 0
    children = tree.children_left, tree.children_right
    builder.add(np.where(leaf, -1, tree.feature), tree.threshold, children, goes_left, value)


def _allows_missing(estimator: Any) -> bool:
    try:
        from sklearn.utils import get_tags

        return bool(get_tags(estimator).input_tags.allow_nan)
    except ImportError:  # before 1.6
        return False


def read_sklearn_histogram(estimator: Any) -> Forest:
    """The raw predictions of HistGradientBoostingRegressor and HistGradientBoostingClassifier."""
    n_outputs = int(estimator.n_trees_per_iteration_)
    builder = ForestBuilder(n_outputs)
    known, place = estimator._bin_mapper.make_known_categories_bitsets()
    for members in estimator._predictors:
        for output, member in enumerate(members):
            nodes = member.nodes
            leaf = nodes["is_leaf"].astype(bool)
            categories = np.full(len(nodes), -1)
            for split in np.flatnonzero(nodes["is_categorical"].astype(bool) & ~leaf):
                node = nodes[split]
                left = _bits(member.raw_left_cat_bitsets[node["bitset_idx"]])
                seen = _bits(known[place[node["feature_idx"]]])
                missing = bool(node["missing_go_to_left"])
                categories[split] = builder.category_set(np.where(seen, left, missing), other_left=missing)
            builder.add(
                np.where(leaf, -1, nodes["feature_idx"].astype(np.int64)), nodes["num_threshold"],
                (nodes["left"].astype(np.int64), nodes["right"].astype(np.int64)), nodes["missing_go_to_left"],
                one_output(nodes["value"], output, n_outputs), categories,
            )  # fmt: skip
    return builder.build(np.asarray(estimator._baseline_prediction).reshape(n_outputs))


def _bits(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """A bitset of 32-bit words as flags."""
    return np.unpackbits(np.ascontiguousarray(words, dtype="<u4").view(np.uint8), bitorder="little").astype(bool)


AVERAGES = (
    *("DecisionTreeClassifier", "DecisionTreeRegressor", "ExtraTreeClassifier", "ExtraTreeRegressor"),
    *("RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier", "ExtraTreesRegressor"),
)
SKLEARN: dict[str, Callable[[Any], Forest]] = {
    **dict.fromkeys(AVERAGES, read_sklearn_average),
    **dict.fromkeys(("GradientBoostingClassifier", "GradientBoostingRegressor"), read_sklearn_boosting),
    **dict.fromkeys(("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"), read_sklearn_histogram),
}
"""How scikit-learn's models are read, by the name of their class."""
