"""Trees of CatBoost as a `Forest` of their raw outputs, from the JSON form that CatBoost saves."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cortx.errors import InputError
from cortx.games.forest import Array, Forest, ForestBuilder, IntArray
from cortx.games.game import Game
from cortx.games.tree_readers import NotTrees
from cortx.tables import Schema, Table

AT_ONCE = 1_024
"""New values of a column that are looked up at a time."""
Split = tuple[int, float, bool, int]
"""The column, the threshold, whether missing values go left, and the set of categories or -1."""
LEAF: Split = (-1, 0.0, False, -1)


def catboost_json(model: Any) -> dict[str, Any]:
    """What a CatBoost model saves as JSON."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        try:
            model.save_model(str(path), format="json")
        except Exception as error:
            raise NotTrees(f"CatBoost does not save this model as JSON: {error}") from error
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def read_catboost(document: dict[str, Any]) -> Forest:
    """The raw values of a CatBoost model; the code of a category is its place in the list that the JSON form has."""
    scale, bias = document["scale_and_bias"]
    reader = _Reader(document["features_info"], ForestBuilder(len(bias), single=True), float(scale))
    for tree in document.get("oblivious_trees") or ():
        reader.add_symmetric(tree)
    for tree in document.get("trees") or ():
        reader.add_other(tree)
    return reader.builder.build(np.array(bias, dtype=np.float64))


class _Reader:
    def __init__(self, features: dict[str, Any], builder: ForestBuilder, scale: float) -> None:
        self.builder, self.scale = builder, scale
        self.numbers = {entry["feature_index"]: entry for entry in features.get("float_features") or ()}
        self.categories = {entry["feature_index"]: entry for entry in features.get("categorical_features") or ()}
        self.sets: dict[int, int] = {}

    def split(self, split: dict[str, Any]) -> Split:
        kind = split["split_type"]
        if kind == "FloatFeature":
            feature = self.numbers[split["float_feature_index"]]
            # "AsIs" is for columns without missing values in training: no comparison with one is true.
            missing_left = feature["nan_value_treatment"] != "AsTrue"
            return int(feature["flat_feature_index"]), float(split["border"]), missing_left, -1
        if kind == "OneHotFeature":
            feature = self.categories[split["cat_feature_index"]]
            code = feature["values"].index(split["value"])
            return int(feature["flat_feature_index"]), 0.0, True, self._all_but(code)
        raise NotTrees(
            f"a split of the CatBoost model is of type {kind!r}, computed from statistics of categories, texts or "
            "embeddings; exact tree values need numbers and categories of at most one_hot_max_size values: raise it, "
            "or encode the column in a Pipeline"
        )

    def _all_but(self, code: int) -> int:
        if code not in self.sets:
            left = np.ones(code + 1, dtype=bool)
            left[code] = False
            self.sets[code] = self.builder.category_set(left, other_left=True)
        return self.sets[code]

    def add_symmetric(self, tree: dict[str, Any]) -> None:
        """A tree with one split for each level; bit i of a leaf's number says whether split i holds."""
        splits = [self.split(split) for split in reversed(tree.get("splits") or ())]
        depth = len(splits)
        inner = 2**depth - 1  # children of node k are 2k + 1 and 2k + 2, so that leaves come last, by number
        leaves = np.array(tree["leaf_values"], dtype=np.float64).reshape(inner + 1, self.builder.n_outputs)
        value = np.zeros((2 * inner + 1, self.builder.n_outputs))
        value[inner:] = self.scale * leaves
        levels = [[split] * 2**level for level, split in enumerate(splits)]
        nodes = np.arange(2 * inner + 1)
        self._add([*chain(*levels), *[LEAF] * (inner + 1)], (2 * nodes + 1, 2 * nodes + 2), value)

    def add_other(self, root: dict[str, Any]) -> None:
        """A tree of nodes with children, as grow_policy 'Depthwise' and 'Lossguide' make them."""
        nodes: list[dict[str, Any]] = [root]
        children: list[tuple[int, int]] = []
        for node in nodes:  # grows while it is read
            inner = "split" in node
            children.append((len(nodes), len(nodes) + 1) if inner else (-1, -1))
            nodes += [node["left"], node["right"]] if inner else []
        value = np.zeros((len(nodes), self.builder.n_outputs))
        for place, node in enumerate(nodes):
            if "split" not in node:
                value[place] = self.scale * np.asarray(node["value"], dtype=np.float64)
        splits = [self.split(node["split"]) if "split" in node else LEAF for node in nodes]
        left, right = np.array(children).T
        self._add(splits, (left, right), value)

    def _add(self, nodes: list[Split], children: tuple[IntArray, IntArray], value: Array) -> None:
        column, threshold, missing_left, categories = zip(*nodes, strict=True)
        self.builder.add(column, threshold, children, missing_left, value, categories)


# Categories -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CategoryCodes:
    """Rows as the trees see them: numbers as they are, categories as their codes in `read_catboost`.

    The JSON form has hashes of categories alone. Which value has which hash is told by the leaves that CatBoost itself
    finds for rows with that value (`calc_leaf_indexes`): no output is computed, so nothing is counted.
    """

    game: Game
    model: Any
    places: dict[int, dict[int, tuple[int, int]]]
    """For a column of categories, by their codes, a tree and the bit of its leaf numbers that is set for the code."""
    known: dict[int, dict[Any, float]] = field(default_factory=dict)
    """Codes found so far, by columns and values."""

    @staticmethod
    def of(game: Game, schema: Schema, model: Any, forest: Forest) -> CategoryCodes:
        splits = forest.splits
        as_numbers = set(forest.column[splits[forest.categories[splits] < 0]].tolist())
        for j, column in enumerate(schema.columns):
            if column.coded and j in as_numbers:
                raise NotTrees(f"column {column.name!r} holds {column.dtype}, which CatBoost reads as numbers")
        return CategoryCodes(game, model, _places(catboost_json(model)) if (forest.categories >= 0).any() else {})

    def __call__(self, table: Table) -> Array:
        matrix = table.matrix.copy()
        for j in self.places:
            column = table.schema.columns[j]
            numbers, place = np.unique(matrix[:, j], return_inverse=True)
            keys = [column.values[int(number)] if column.coded else number for number in numbers.tolist()]
            known = self.known.setdefault(j, {})
            new = [i for i, key in enumerate(keys) if key not in known]
            for start in range(0, len(new), AT_ONCE):
                part = new[start : start + AT_ONCE]
                codes = self._codes(j, numbers[part], table)
                known.update({keys[i]: code for i, code in zip(part, codes.tolist(), strict=True)})
            matrix[:, j] = np.array([known[key] for key in keys])[np.ravel(place)]
        return matrix

    def _codes(self, j: int, numbers: Array, table: Table) -> Array:
        """The codes of a column's values, (values,); NaN for those that no split knows."""
        rows = np.tile(table.matrix[0], (len(numbers), 1))
        rows[:, j] = numbers
        try:
            leaves = self.model.calc_leaf_indexes(self.game.model_table(rows, table.schema))
        except Exception as error:
            name = table.schema.columns[j].name
            raise InputError(f"CatBoost refuses a value of the column of categories {name!r}: {error}") from error
        codes = np.full(len(numbers), np.nan)
        for code, (tree, bit) in self.places[j].items():
            codes[(np.asarray(leaves)[:, tree].astype(np.int64) >> bit) & 1 == 1] = code
        return codes


def _places(document: dict[str, Any]) -> dict[int, dict[int, tuple[int, int]]]:
    features = {entry["feature_index"]: entry for entry in document["features_info"].get("categorical_features") or ()}
    if "trees" in document:
        raise NotTrees(
            "the categories of a CatBoost model with grow_policy 'Depthwise' or 'Lossguide' cannot be told; use "
            "'SymmetricTree', or encode them in a Pipeline"
        )
    found: dict[int, dict[int, tuple[int, int]]] = {}
    for number, tree in enumerate(document.get("oblivious_trees") or ()):
        for bit, split in enumerate(tree.get("splits") or ()):
            if split["split_type"] == "OneHotFeature":
                feature = features[split["cat_feature_index"]]
                places = found.setdefault(int(feature["flat_feature_index"]), {})
                places.setdefault(feature["values"].index(split["value"]), (number, bit))
    return found
