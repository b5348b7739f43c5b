"""A saved explainer: a folder with safetensors, a readable manifest and the model's fingerprint; never pickle."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from cortx.errors import ArtifactError, FingerprintError, InputError
from cortx.estimators.block import Student
from cortx.explainer.calibration import Calibration, RoundScores
from cortx.explainer.fit import Fitted
from cortx.explainer.game_json import GAME_ARRAYS, game_arrays, game_facts, game_spec
from cortx.explainer.generations import EXPLAINER
from cortx.explainer.profile import Profile
from cortx.explainer.teaching import StorableStudent
from cortx.games import Game, GameSpec
from cortx.games.calls import Calls
from cortx.games.fingerprint import ModelDifference, difference
from cortx.games.players import ImagePlayers
from cortx.images import ImageSchema
from cortx.registry import Registry
from cortx.storage import local_path
from cortx.training.encoders import at_most
from cortx.training.features import TableFeatures
from cortx.training.image_network import ImageFeatures, ImageNetwork
from cortx.training.network import ExplainerNetwork
from cortx.training.path_gradients import PathGradients
from cortx.training.recipe import Recipe, get_recipe
from cortx.version import __version__

if TYPE_CHECKING:
    from cortx.explainer.explainer import CoRTX

FORMAT_VERSION = 2
STUDENT = "student."
"""How the names of a student's tensors begin."""
SLACK, SMALL = 2, 2**20
"""A network may be built with twice the weights and layers that were saved, and a few more: parts that older versions
lacked. A manifest that describes more is refused before memory is taken."""


STUDENTS: Registry[StorableStudent] = Registry(
    "kind of student",
    {
        "network": "cortx.training.student:NetworkStudent",
        "trees": "cortx.training.forest_student:ForestStudent",
    },
)
"""Kinds of students that explainers are saved with, as ``"package.module:Class"``."""


def save(explainer: CoRTX, folder: str | Path) -> Path:
    """Writes the folder so that it is there whole or not at all; see `Generations`."""
    target, fitted = local_path(folder, "the explainer's folder"), explainer.fitted
    return EXPLAINER.write(target, save_tensors(_tensors(fitted)), _manifest(explainer, fitted))


def load(folder: str | Path, model: Any = None, *, device: str | None = None, calls: Calls | None = None) -> CoRTX:
    """Reads a saved explainer. With `model`, it is attached if it is the one the explainer was fitted for.

    `device` is where it explains; by default where it did when it was saved, if torch can compute there, else "cpu".
    `calls` says how a slow or remote model is called, as for `Game`.
    Raises `ArtifactError` for a missing, foreign or damaged folder and `FingerprintError` for another model.
    """
    from cortx.explainer.explainer import CoRTX, can_use, usable_device

    path = local_path(folder, "the explainer's folder")
    manifest, tensors = _read(path)
    if manifest.get("kind") == "tree":
        from cortx.explainer.tree_explainer import load_trees

        exact = load_trees(path, manifest, tensors)
        if model is not None:
            exact._game = Game.from_spec(model, exact.fitted.spec, calls=calls, known_base=True)
            _check_model(exact._game, exact.fitted, path, "make another TreeExplainer(game, X)")
        return exact
    try:
        settings = manifest["settings"]
        spec = game_spec(manifest, {name: tensors[name].numpy() for name in GAME_ARRAYS})
        recipe, profile = _recipe(manifest, spec), Profile.from_json(manifest["profile"])
        own = [tensor.numel() for name, tensor in tensors.items() if name.startswith("network.")]
        with at_most(SLACK * sum(own) + SMALL, SLACK * len(own)):
            network = _network(manifest, tensors, spec, recipe, int(settings["seed"]))
        calibration, curve = _calibration(manifest, tensors), manifest["learning_curve"]
        student = _student(manifest, tensors, spec)
        params = _params(manifest, recipe, images=isinstance(spec.schema, ImageSchema))
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RuntimeError, InputError) as error:
        raise ArtifactError(f"the explainer in {path} cannot be rebuilt ({error}); save it again") from error
    device = (params["device"] if can_use(params["device"]) else "cpu") if device is None else usable_device(device)
    explainer = CoRTX(**{**params, "device": device})
    probe, probe_outputs = tensors["probe.rows"].numpy(), tensors["probe.outputs"].numpy()
    fitted = Fitted(
        network=network,
        spec=spec,
        recipe=recipe,
        heads=tuple(settings["heads"]),
        seed=int(settings["seed"]),
        costs=manifest["costs"],
        quality=manifest["quality"],
        history=manifest["history"],
        probe=probe,
        probe_outputs=probe_outputs,
        curve=curve,
        calibration=calibration,
        profile=profile,
        student=student,
    )
    game = None
    if model is not None:
        game = Game.from_spec(model, spec, calls=calls)
        _check_model(game, fitted, path)
    explainer._attach(fitted, game)
    return explainer if device == "cpu" else explainer.to(device)


def _tensors(fitted: Fitted) -> dict[str, torch.Tensor]:
    tensors = {
        f"network.{name}": tensor.cpu().contiguous().clone() for name, tensor in fitted.network.state_dict().items()
    }
    arrays = {
        **game_arrays(fitted.spec),
        "probe.rows": fitted.probe,
        "probe.outputs": fitted.probe_outputs,
    }
    if fitted.calibration is not None:
        arrays["calibration.rows"] = fitted.calibration.rows
        arrays["calibration.bands"] = fitted.calibration.bands
        if fitted.calibration.weights is not None:
            arrays["calibration.weights"] = fitted.calibration.weights
        if fitted.calibration.rounds is not None:
            arrays["calibration.rounds.rows"] = fitted.calibration.rounds.rows
            arrays["calibration.rounds.bands"] = fitted.calibration.rounds.bands
    tensors |= {f"{STUDENT}{name}": tensor for name, tensor in _storable(fitted.student)[0].items()}
    return {**tensors, **{name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}}


def _manifest(explainer: CoRTX, fitted: Fitted) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        **game_facts(fitted.spec),
        "settings": {"heads": list(fitted.heads), "unseen": explainer.unseen, "seed": fitted.seed},
        "params": _params_json(explainer, images=isinstance(fitted.spec.schema, ImageSchema)),
        "quality": fitted.quality,
        "calibration": _calibration_facts(fitted.calibration),
        "learning_curve": fitted.curve,
        "profile": fitted.profile.to_json(),
        "costs": fitted.costs,
        "recipe": fitted.recipe.to_json(),
        "history": fitted.history,
        **({} if fitted.student is None else {"student": _storable(fitted.student)[1]}),
        "versions": {
            "cortx": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in ("torch", "numpy", "safetensors")},
        },
    }


def _params_json(explainer: CoRTX, *, images: bool) -> dict[str, Any]:
    """The constructor's arguments; a recipe with its content, so that a later version sees if a name still fits."""
    params = explainer.get_params()
    recipe = get_recipe(explainer.recipe, images=images).to_json()
    named = explainer.recipe if isinstance(explainer.recipe, str) else None
    return {
        **params,
        "heads": list(explainer.heads),
        "seed": int(explainer.seed),
        "device": str(explainer.device),
        "recipe": [named, recipe],
    }


def _params(manifest: dict[str, Any], fitted: Recipe, *, images: bool) -> dict[str, Any]:
    """What `CoRTX.get_params` gave when the explainer was saved."""
    given, settings = manifest.get("params"), manifest["settings"]
    if given is None:  # saved before these were kept: what is known of them
        recipe, given = fitted, {"positives": None, "device": "cpu", **settings}
    else:
        named, content = given["recipe"]
        recipe = Recipe.from_json(content)
        if _is_still(named, recipe, images=images):
            recipe = named
    return {
        "recipe": recipe,
        "heads": tuple(given["heads"]),
        "positives": given["positives"],
        "unseen": given["unseen"],
        "seed": int(given["seed"]),
        "device": str(given["device"]),
        "threads": given.get("threads"),
    }


def _is_still(name: str | None, recipe: Recipe, *, images: bool) -> bool:
    """Whether the recipe of that name is still this one; it may have changed since, or be gone: then content counts."""
    try:
        return name is not None and get_recipe(name, images=images) == recipe  # type: ignore[arg-type]
    except InputError:
        return False


def _calibration_facts(calibration: Calibration | None) -> dict[str, Any] | None:
    """What people want to read of a calibration; its scores lie with the network's weights."""
    if calibration is None:
        return None
    return {
        "rows": len(calibration),
        "effective_rows": calibration.effective_rows,
        "fresh": calibration.fresh,
        "most_confident": calibration.most_confident,
        "noise_risk": calibration.noise_risk,
        "mean_l2": calibration.mean_l2.tolist(),
        "evaluations": calibration.evaluations,
        "longest_round": None if calibration.rounds is None else calibration.rounds.longest,
    }


def _calibration(manifest: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Calibration | None:
    facts = manifest["calibration"]
    if facts is None:
        return None
    weights, longest = tensors.get("calibration.weights"), facts.get("longest_round")
    rounds = None
    if longest is not None:  # older versions did not try refinement on calibration rows
        rows, bands = (tensors[f"calibration.rounds.{name}"].numpy() for name in ("rows", "bands"))
        rounds = RoundScores(rows, bands, int(longest))
    return Calibration(
        rows=tensors["calibration.rows"].numpy(),
        bands=tensors["calibration.bands"].numpy(),
        noise_risk=float(facts["noise_risk"]),
        mean_l2=np.array(facts["mean_l2"], dtype=np.float64),
        evaluations=int(facts["evaluations"]),
        weights=None if weights is None else weights.numpy(),
        fresh=float(facts.get("fresh", 1.0)),  # explainers saved before copies were counted have neither
        rounds=rounds,
    )


def _storable(student: Student | None) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What a student is saved as: tensors by name, and facts as JSON types, its kind among them."""
    if student is None:
        return {}, {}
    if not isinstance(student, StorableStudent):
        raise InputError(
            f"the explainer's student, a {type(student).__qualname__}, cannot be saved: it has no to_tensors(). Bounds "
            "of refined rows depend on it, so the explainer cannot be saved without it"
        )
    tensors, facts = student.to_tensors()
    return tensors, {**facts, "kind": student.kind}


def _student(manifest: dict[str, Any], tensors: dict[str, torch.Tensor], spec: GameSpec) -> Student | None:
    facts = manifest.get("student")  # explainers without one, and all of earlier versions, have none
    if facts is None:
        return None
    return STUDENTS[facts["kind"]].from_tensors(_with_prefix(tensors, STUDENT), facts, spec)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The manifest and its tensors, which are copies in memory: the file may be replaced or cut at any time."""
    manifest, content = EXPLAINER.read_content(path, _checked(path, EXPLAINER.read_document(path)))
    try:
        return _checked(path, manifest), load_tensors(content)
    except (SafetensorError, ValueError) as error:
        raise ArtifactError(f"the weights in {path} are damaged ({error}); copy or save the explainer again") from error


def _checked(path: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    if manifest.get("format") != EXPLAINER.format:
        raise ArtifactError(f"{path} is not a cortx explainer: its manifest does not say {EXPLAINER.format!r}")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise ArtifactError(
            f"{path} was written in format {manifest.get('format_version')}, this cortx reads {FORMAT_VERSION}; "
            "load it with the cortx version named in its manifest"
        )
    return manifest


def _recipe(manifest: dict[str, Any], spec: GameSpec) -> Recipe:
    """What the explainer was fitted by; encoders of images that were saved without a stride have none."""
    recipe = Recipe.from_json(manifest["recipe"])
    if not isinstance(spec.schema, ImageSchema):
        return recipe
    return replace(recipe, encoder=replace(recipe.encoder, stride=recipe.encoder.stride or 1))


def _network(
    manifest: dict[str, Any], tensors: dict[str, torch.Tensor], spec: GameSpec, recipe: Recipe, seed: int
) -> ExplainerNetwork:
    if isinstance(spec.schema, ImageSchema):
        assert isinstance(spec.players, ImagePlayers)
        of_images = ImageFeatures(spec.schema, spec.players, torch.from_numpy(spec.absent), spec.own_reference)
        made = ImageNetwork(
            of_images, spec.players, len(spec.base_values), encoder=recipe.encoder, head=recipe.head, seed=seed
        )
        return _loaded(made, tensors)
    path = _with_prefix(tensors, "network.path.")  # explainers without a student have none
    network = ExplainerNetwork(
        TableFeatures(_with_prefix(tensors, "network.features.")),
        tensors["game.column_player"],
        len(spec.base_values),
        encoder=recipe.encoder,
        head=recipe.head,
        heads=tuple(manifest["settings"]["heads"]),
        seed=seed,
        path=PathGradients.from_tensors(path) if path else None,
    )
    return _loaded(network, tensors)


def _with_prefix(tensors: dict[str, torch.Tensor], start: str) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with `start`, by the rest of their names."""
    return {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}


def _loaded(network: ExplainerNetwork, tensors: dict[str, torch.Tensor]) -> ExplainerNetwork:
    network.load_state_dict(_with_prefix(tensors, "network."))
    return network.eval().requires_grad_(False)


def compare_model(game: Game, fitted: Fitted, called: str = "the explainer") -> ModelDifference:
    """Runs the model on the probe rows; the output that differs most, measured by its spread, counts."""
    outputs, expected = game.fingerprint(fitted.probe, fitted.spec.schema), fitted.probe_outputs
    if outputs.shape != expected.shape:
        raise FingerprintError(
            f"the model gives {outputs.shape[1]} outputs, {called} was fitted for {expected.shape[1]}"
        )
    return difference(outputs, expected, game.precision)


def _check_model(game: Game, fitted: Fitted, path: Path, again: str = "fit again") -> None:
    """The model must give the fingerprint's outputs on the probe rows; `again` says how another one is explained."""
    if fitted.student is not None:
        again = "if it was trained again, load the explainer without it and call refit(game, X)"
    try:
        found = compare_model(game, fitted, f"the explainer in {path}")
    except FingerprintError:
        raise
    except Exception as error:
        raise FingerprintError(
            f"this may not be the model that the explainer in {path} was fitted for: it cannot be run on the probe "
            f"rows ({error}); see that it answers, or load the explainer with the model it was fitted for"
        ) from error
    if not found.same:
        raise FingerprintError(
            f"this is not the model that the explainer in {path} was fitted for: on its {len(fitted.probe)} probe rows "
            f"the outputs differ by up to {found.largest:.3g} (their spread is {found.spread:.3g}); load it with that "
            f"model, or {again}"
        )
