"""`TreeExplainer`: exact values of a model of trees, saved and served like a learned explainer; nothing is learned."""

from __future__ import annotations

import platform
from dataclasses import fields
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save as save_tensors
from torch import nn

from cortx.errors import ArtifactError, InputError
from cortx.estimators.tree import TreeValues, prepare_trees
from cortx.explainer.exact import ExactTrees, NoError, spread
from cortx.explainer.explainer import CoRTX
from cortx.explainer.fit import Fitted
from cortx.explainer.game_json import GAME_ARRAYS, game_arrays, game_facts, game_spec
from cortx.explainer.generations import EXPLAINER
from cortx.explainer.profile import Profile, profile_of
from cortx.explainer.reading import Seen
from cortx.explanation import Explanation
from cortx.games import Game, GameSpec
from cortx.games.fingerprint import probe_rows
from cortx.games.forest import Forest
from cortx.games.game import table_of
from cortx.games.own_columns import on_own_columns
from cortx.storage import local_path
from cortx.tables import Schema, Table, plain
from cortx.training.features import FeatureConfig, TableFeatures, fit_features
from cortx.training.recipe import get_recipe
from cortx.version import __version__

KIND = "tree"
"""What the manifest of such a folder says it is."""
FEATURES = ("missing", "known_column", "known_value")

Array = npt.NDArray[np.float64]


class TreeExplainer(CoRTX):
    """Exact Shapley values of a game of trees, without its model: an explainer that needs no fit and has no error.

    ``TreeExplainer(game, X)`` reads the trees of the game's model (see ``cortx.shapley(method="tree")`` for what that
    may be) and writes them in terms of the game's own columns, the steps of a Pipeline included. It explains, saves,
    loads, serves and exports (`to_onnx`) like a fitted `CoRTX`; bounds at any confidence are the values themselves.

    Parameters
    ----------
    game:
        A game whose output is a sum over the leaves of trees; `InputError` says why another one is not.
    X:
        Typical rows, such as the training table: which categories there are, and what columns look like. Their
        values do not change any explanation.
    threads:
        As for `CoRTX`; explaining uses one.
    """

    is_exact = True

    def __init__(self, game: Game | None = None, X: Any = None, *, threads: int | None = None) -> None:
        super().__init__(threads=threads)
        if game is None:  # a loaded one
            return
        if not isinstance(game, Game) or X is None:
            raise InputError("a TreeExplainer is made of a cortx.Game and a table: TreeExplainer(game, X)")
        started, spent = perf_counter(), game.evaluations
        rows = game.rows(X)
        prepared = prepare_trees(game, rows)
        table = table_of(rows, "a TreeExplainer")
        forest, may_miss = on_own_columns(game, prepared.trees, table)
        spec = game.spec(table.schema, prepared.values.base_values)
        features = fit_features(table.matrix, table.schema.columns, game.absent, FeatureConfig(codes=False))
        features.missing = torch.from_numpy(np.flatnonzero(may_miss))
        probe = probe_rows(table.matrix, 0, None)
        evaluations = game.evaluations - spent
        costs = {
            "trees": {"evaluations": evaluations, "seconds": perf_counter() - started, "rows": len(table)},
            "total_evaluations": evaluations,
        }
        self._use(forest, spec, features, profile_of(table.matrix, table.schema), probe, costs)
        self._game = game

    def _use(
        self, forest: Forest, spec: GameSpec, features: TableFeatures, profile: Profile, probe: Array,
        costs: dict[str, Any],
    ) -> None:  # fmt: skip
        self.forest = forest
        self._values = TreeValues(forest, spec.players.column_player, len(spec.players), spec.absent)
        outputs = forest.outputs(probe)
        self._exact = ExactTrees(
            spec.players.names, spec.output, spec.output_names, spec.base_values, spread(outputs), len(forest.roots)
        )
        fitted = Fitted(
            network=cast(Any, TreeNetwork(features)), spec=spec, recipe=get_recipe("default"), heads=("attribution",),
            seed=0, costs=costs, quality={"l2": 0.0, "relative_l2": 0.0}, history={}, probe=probe,
            probe_outputs=outputs, curve=[], profile=profile, calibration=NoError.of(forest.n_outputs),
        )  # fmt: skip
        self._attach(fitted, None)

    @property
    def seen(self) -> Seen:
        """Categories that the trees know, and columns that may be missing; numbers may be any."""
        schema, features = self.fitted.spec.schema, self.fitted.network.features
        assert isinstance(schema, Schema)
        columns, values = features.known_column.numpy(), features.known_value.numpy()
        known = {j: np.sort(values[columns == j]) for j, column in enumerate(schema.columns) if column.categorical}
        return Seen(schema, frozenset(features.missing.tolist()), known, ignore=False, of_trees=True)

    def explain(
        self,
        X: Any,
        outputs: Any = None,
        *,
        confidence: float | None = None,
        tolerance: float | None = None,
        row_budget: int | None = None,
        progress: bool | None = None,
    ) -> Explanation:
        """Exact attributions of rows; the model is never asked.

        `outputs`, where they are given, must be the trees' own, or `InputError` says by how much they differ.
        With `confidence`, ``lower_bounds`` and ``upper_bounds`` are the values and ``error_bound`` is zero.
        There is nothing for `tolerance` and `row_budget` to refine.
        """
        del row_budget, progress
        started = perf_counter()
        X = plain(X)
        table = self._read(X)
        confidence = 0.9 if confidence is None and tolerance is not None else confidence
        if confidence is not None:
            self.calibration.factors(confidence)  # refuses what is no confidence
        assert isinstance(table, Table)
        return self._exact.explanation(self._values.values(table.matrix), X, outputs, confidence, started)

    def save(self, folder: str | Path) -> Path:
        """Writes the trees as a folder that ``cortx.load`` reads: arrays, a readable manifest, no pickle."""
        fitted, features = self.fitted, self.fitted.network.features
        arrays = {
            **{f"forest.{part.name}": np.array(getattr(self.forest, part.name)) for part in _forest_arrays()},
            **{f"features.{name}": getattr(features, name).numpy() for name in FEATURES},
            **game_arrays(fitted.spec),
            "probe.rows": fitted.probe,
        }
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        manifest = {
            "format_version": FORMAT_VERSION,
            "kind": KIND,
            **game_facts(fitted.spec),
            "trees": {"trees": len(self.forest.roots), "leaves": len(self.forest.leaves)},
            "quality": fitted.quality,
            "costs": fitted.costs,
            "profile": fitted.profile.to_json(),
            "versions": {"cortx": __version__, "python": platform.python_version()},
        }
        return EXPLAINER.write(local_path(folder, "the explainer's folder"), save_tensors(tensors), manifest)

    def to(self, device: str) -> TreeExplainer:
        """Trees are explained on the CPU, so this changes nothing."""
        del device
        return self

    def fit(self, *args: Any, **named: Any) -> NoReturn:
        del args, named
        raise InputError("a TreeExplainer is exact and learns nothing; make one with TreeExplainer(game, X)")

    def refit(self, *args: Any, **named: Any) -> NoReturn:
        self.fit(*args, **named)

    def calibrate(self, *args: Any, **named: Any) -> NoReturn:
        del args, named
        raise InputError("a TreeExplainer is exact: its bounds are its values, and there is nothing to calibrate")

    def to_onnx(
        self, folder: str | Path, *, confidence: float | None = 0.9, int8: bool = False, rows: Any = None
    ) -> Path:
        """Writes the trees as an ONNX graph and a JSON file, as `CoRTX.to_onnx` does: the same inputs and outputs.

        Values are those of `explain`, computed in float64; "lower_bounds" and "upper_bounds" are the values and
        "error_bound" is zero at any `confidence`; None leaves them out. The input "outputs" changes nothing. Trees
        with many features on their paths (more than 8 to 12, where tables would exceed 128 MiB) are refused. There
        are no weights for `int8`.
        """
        from cortx.explainer.onnx_export import export_trees

        del rows
        if int8:
            raise InputError(
                "int8 is for the weights of a network, and a TreeExplainer has none; export it without int8"
            )
        return export_trees(self, self._values, self._exact, folder, confidence=confidence)

    def evaluate(self, *args: Any, **named: Any) -> NoReturn:
        del args, named
        raise InputError(
            "a TreeExplainer is exact, so there is no error to measure; whether the model is still the one whose trees "
            "it holds is checked whenever it is loaded with a model, as by cortx explain --model"
        )

    def prior(self, *args: Any, **named: Any) -> NoReturn:
        del args, named
        raise InputError("a TreeExplainer is exact, so there is nothing left to sample; call explain(X)")

    def latent(self, X: Any) -> NoReturn:
        del X
        raise InputError("a TreeExplainer has no encoder, so rows have no latent explanation")

    def __repr__(self) -> str:
        if self._fitted is None:
            return "TreeExplainer()"
        players = len(self._fitted.spec.players)
        return f"TreeExplainer({len(self.forest.roots):,} trees, {players} players)"


class TreeNetwork(nn.Module):
    """Stands where a learned explainer has its network: what is known of the columns, and no weights."""

    def __init__(self, features: TableFeatures) -> None:
        super().__init__()
        self.features = features


FORMAT_VERSION = 2


def _forest_arrays() -> list[Any]:
    return [part for part in fields(Forest) if part.name not in ("single", "allows_missing")]


def load_trees(path: Path, manifest: dict[str, Any], tensors: dict[str, torch.Tensor]) -> TreeExplainer:
    """The explainer of a folder that `TreeExplainer.save` wrote, without its model; `ArtifactError` if damaged."""
    try:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        spec = game_spec(manifest, {name: arrays[name] for name in GAME_ARRAYS})
        assert isinstance(spec.schema, Schema)
        parts: dict[str, Any] = {part.name: arrays[f"forest.{part.name}"] for part in _forest_arrays()}
        forest = Forest(**parts)
        forest.check()
        n_columns = len(spec.schema.columns)
        if forest.n_columns > n_columns or arrays["probe.rows"].shape[1:] != (n_columns,):
            raise ValueError(f"the trees look at {forest.n_columns} columns, the table has {n_columns}")
        if spec.base_values.shape != forest.offset.shape:
            raise ValueError(f"there are {len(spec.base_values)} base values for {len(forest.offset)} outputs")
        profile = Profile.from_json(manifest["profile"])
        known = TableFeatures(
            {**{name: tensors[f"features.{name}"] for name in FEATURES}, "one_hot": torch.tensor(False)}
        )
        explainer = TreeExplainer()
        explainer._use(forest, spec, known, profile, arrays["probe.rows"], manifest["costs"])
    except (KeyError, IndexError, TypeError, ValueError, AssertionError, InputError) as error:
        raise ArtifactError(f"the explainer in {path} cannot be rebuilt ({error}); save it again") from error
    return explainer
