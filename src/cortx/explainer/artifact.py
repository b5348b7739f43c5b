"""A saved explainer: a folder with safetensors, a readable manifest and the model's fingerprint; never pickle."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from cortx.errors import ArtifactError, FingerprintError, InputError
from cortx.explainer.calibration import Calibration
from cortx.explainer.fingerprint import ModelDifference, difference
from cortx.explainer.fit import Fitted
from cortx.explainer.game_json import GAME_ARRAYS, game_arrays, game_facts, game_spec
from cortx.explainer.profile import Profile
from cortx.games import Game, GameSpec
from cortx.games.players import ImagePlayers
from cortx.images import ImageSchema
from cortx.training.features import TableFeatures
from cortx.training.image_network import ImageFeatures, ImageNetwork
from cortx.training.network import ExplainerNetwork
from cortx.training.recipe import Recipe
from cortx.version import __version__

if TYPE_CHECKING:
    from cortx.explainer.explainer import CoRTX

FORMAT, FORMAT_VERSION = "cortx-explainer", 2
MANIFEST = "manifest.json"


def save(explainer: CoRTX, folder: str | Path) -> Path:
    """Writes the folder so that it is there whole or not at all.

    A new folder is written beside its place and renamed in. One that exists gets new weights under a name of their
    own; replacing its manifest, one rename, is what makes them count.
    """
    target = Path(folder)
    fitted = explainer.fitted
    if target.exists() and not (target / MANIFEST).is_file() and not (target.is_dir() and not any(target.iterdir())):
        raise ArtifactError(f"{target} exists and is not a cortx explainer; choose another folder, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        save_file(_tensors(fitted), temporary / "weights")
        digest = _sha256(temporary / "weights")
        weights = f"weights-{digest[:12]}.safetensors"
        os.replace(temporary / "weights", temporary / weights)
        manifest = _manifest(explainer, fitted, weights, digest)
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if not target.exists():
            os.replace(temporary, target)
            return target
        os.replace(temporary / weights, target / weights)
        os.replace(temporary / MANIFEST, target / MANIFEST)
        for old in target.glob("weights-*.safetensors"):
            if old.name != weights:
                old.unlink()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def load(folder: str | Path, model: Any = None) -> CoRTX:
    """Reads a saved explainer. With `model`, it is attached if it is the one the explainer was fitted for.

    Raises `ArtifactError` for a missing, foreign or damaged folder and `FingerprintError` for another model.
    """
    from cortx.explainer.explainer import CoRTX

    path = Path(folder)
    manifest = _read_manifest(path)
    tensors = _read_weights(path, manifest)
    try:
        settings = manifest["settings"]
        spec = game_spec(manifest, {name: tensors[name].numpy() for name in GAME_ARRAYS})
        recipe, profile = Recipe.from_json(manifest["recipe"]), Profile.from_json(manifest["profile"])
        network = _network(manifest, tensors, spec, recipe, int(settings["seed"]))
        calibration, curve = _calibration(manifest, tensors), manifest["learning_curve"]
    except (KeyError, TypeError, ValueError, RuntimeError, InputError) as error:
        raise ArtifactError(f"the explainer in {path} cannot be rebuilt ({error}); save it again") from error
    explainer = CoRTX(
        recipe,
        heads=tuple(settings["heads"]),
        unseen=settings["unseen"],
        seed=int(settings["seed"]),
    )
    probe, probe_outputs = tensors["probe.rows"].numpy(), tensors["probe.outputs"].numpy()
    fitted = Fitted(
        network=network,
        spec=spec,
        recipe=recipe,
        heads=explainer.heads,
        seed=explainer.seed,
        costs=manifest["costs"],
        quality=manifest["quality"],
        history=manifest["history"],
        probe=probe,
        probe_outputs=probe_outputs,
        curve=curve,
        calibration=calibration,
        profile=profile,
    )
    game = None
    if model is not None:
        game = Game.from_spec(model, spec)
        _check_model(game, fitted, path)
    explainer._attach(fitted, game)
    return explainer


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
    return {**tensors, **{name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}}


def _manifest(explainer: CoRTX, fitted: Fitted, weights: str, digest: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **game_facts(fitted.spec),
        "settings": {"heads": list(fitted.heads), "unseen": explainer.unseen, "seed": fitted.seed},
        "quality": fitted.quality,
        "calibration": _calibration_facts(fitted.calibration),
        "learning_curve": fitted.curve,
        "profile": fitted.profile.to_json(),
        "costs": fitted.costs,
        "recipe": fitted.recipe.to_json(),
        "history": fitted.history,
        "weights": {"file": weights, "sha256": digest},
        "versions": {
            "cortx": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in ("torch", "numpy", "safetensors")},
        },
    }


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
    }


def _calibration(manifest: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Calibration | None:
    facts = manifest["calibration"]
    if facts is None:
        return None
    weights = tensors.get("calibration.weights")
    return Calibration(
        rows=tensors["calibration.rows"].numpy(),
        bands=tensors["calibration.bands"].numpy(),
        noise_risk=float(facts["noise_risk"]),
        mean_l2=np.array(facts["mean_l2"], dtype=np.float64),
        evaluations=int(facts["evaluations"]),
        weights=None if weights is None else weights.numpy(),
        fresh=float(facts.get("fresh", 1.0)),  # explainers saved before copies were counted have neither
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ArtifactError(f"there is no explainer at {path}")
    if not (path / MANIFEST).is_file():
        raise ArtifactError(f"{path} is not a cortx explainer: it has no {MANIFEST}")
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ArtifactError(f"{path / MANIFEST} is damaged ({error}); restore or save the explainer again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"{path} is not a cortx explainer: its manifest does not say {FORMAT!r}")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise ArtifactError(
            f"{path} was written in format {manifest.get('format_version')}, this cortx reads {FORMAT_VERSION}; "
            "load it with the cortx version named in its manifest"
        )
    return manifest


def _read_weights(path: Path, manifest: dict[str, Any]) -> dict[str, torch.Tensor]:
    entry = manifest.get("weights")
    if not isinstance(entry, dict) or Path(str(entry.get("file"))).name != entry.get("file"):
        raise ArtifactError(f"{path / MANIFEST} is damaged: it does not name its weights; save the explainer again")
    weights = path / entry["file"]
    if not weights.is_file():
        raise ArtifactError(f"{path} lacks {weights.name}; copy the whole folder")
    if _sha256(weights) != entry.get("sha256"):
        raise ArtifactError(
            f"{weights} is damaged: its checksum is not the one in the manifest; copy or save the explainer again"
        )
    try:
        return load_file(weights)
    except SafetensorError as error:
        raise ArtifactError(f"{weights} is damaged ({error}); copy or save the explainer again") from error


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
    start = "network.features."
    state = {name[len(start) :]: value for name, value in tensors.items() if name.startswith(start)}
    features = TableFeatures(state)
    network = ExplainerNetwork(
        features,
        tensors["game.column_player"],
        len(spec.base_values),
        encoder=recipe.encoder,
        head=recipe.head,
        heads=tuple(manifest["settings"]["heads"]),
        seed=seed,
    )
    return _loaded(network, tensors)


def _loaded(network: ExplainerNetwork, tensors: dict[str, torch.Tensor]) -> ExplainerNetwork:
    start = "network."
    network.load_state_dict({name[len(start) :]: value for name, value in tensors.items() if name.startswith(start)})
    return network.eval().requires_grad_(False)


def compare_model(game: Game, fitted: Fitted, called: str = "the explainer") -> ModelDifference:
    """Runs the model on the probe rows; the output that differs most, measured by its spread, counts."""
    outputs, expected = game.fingerprint(fitted.probe, fitted.spec.schema), fitted.probe_outputs
    if outputs.shape != expected.shape:
        raise FingerprintError(
            f"the model gives {outputs.shape[1]} outputs, {called} was fitted for {expected.shape[1]}"
        )
    return difference(outputs, expected, game.precision)


def _check_model(game: Game, fitted: Fitted, path: Path) -> None:
    """The model must give the fingerprint's outputs on the probe rows."""
    try:
        found = compare_model(game, fitted, f"the explainer in {path}")
    except FingerprintError:
        raise
    except Exception as error:
        raise FingerprintError(
            f"this is not the model that the explainer in {path} was fitted for: it cannot be run on the probe rows "
            f"({error}); load the explainer with the model it was fitted for"
        ) from error
    if not found.same:
        raise FingerprintError(
            f"this is not the model that the explainer in {path} was fitted for: on its {len(fitted.probe)} probe rows "
            f"the outputs differ by up to {found.largest:.3g} (their spread is {found.spread:.3g}); load it with that "
            "model, or fit again"
        )
