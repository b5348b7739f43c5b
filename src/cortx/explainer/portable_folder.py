"""The folder of a portable explainer: an ONNX graph and, as JSON, what its tensors mean. Read without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import ArtifactError, InputError
from cortx.explainer.calibration import Calibration
from cortx.explainer.exact import ExactTrees, NoError
from cortx.explainer.generations import PORTABLE
from cortx.explainer.profile import Profile
from cortx.explainer.reading import Seen, check_players
from cortx.images import ImageSchema
from cortx.schema_json import schema_from_json, schema_to_json
from cortx.storage import TEMPORARY, local_path
from cortx.tables import Schema
from cortx.version import __version__

FORMAT_VERSION = 1

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shown:
    """What a server shows of an explainer of a table besides its answers."""

    profile: Profile
    reference: Array | None
    """(columns,) what replaces absent columns; None with a background."""
    quality: dict[str, float]
    """As `CoRTX.quality_`; in JSON null stands for NaN."""
    evaluations: int

    def to_json(self) -> dict[str, Any]:
        reference = None if self.reference is None else [_finite(number) for number in self.reference.tolist()]
        quality = {name: _finite(number) for name, number in self.quality.items()}
        return {
            "profile": self.profile.to_json(), "reference": reference, "quality": quality,
            "evaluations": self.evaluations,
        }  # fmt: skip

    @staticmethod
    def from_json(data: dict[str, Any], n_columns: int) -> Shown:
        profile, reference = Profile.from_json(data["profile"]), None
        if data["reference"] is not None:
            reference = np.array([_number(number) for number in data["reference"]])
        if len(profile.columns) != n_columns or (reference is not None and reference.shape != (n_columns,)):
            raise ValueError(f"the table has {n_columns} columns, and what is shown of it others")
        quality = {str(name): _number(number) for name, number in data["quality"].items()}
        return Shown(profile, reference, quality, int(data["evaluations"]))


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def _number(number: float | None) -> float:
    """The number that `_finite` wrote."""
    return np.nan if number is None else float(number)


@dataclass(frozen=True, eq=False)
class Facts:
    """What a portable explainer must know besides its graph."""

    seen: Seen
    players: tuple[str, ...]
    columns: tuple[int, ...]
    """The player of each column; of each number of an image."""
    output: str
    output_names: tuple[str, ...] | None
    base_values: Array
    """v(none), (outputs,); where every image is its own reference, those of none."""
    own_reference: str | None
    calibration: Calibration | None
    """What bounds at any confidence rest on, if the graph has them."""
    confidence: float | None
    """What the graph's own bounds hold for."""
    int8: dict[str, Any] | None
    """What int8 costs, as it was measured; None for float32."""
    exact: ExactTrees | None = None
    """Of trees; None where the graph is a network that predicts values."""
    shown: Shown | None = None
    """None for images, and in folders of older versions."""

    def to_json(self) -> dict[str, Any]:
        schema = self.seen.schema
        return {
            "table": schema.to_json() if isinstance(schema, ImageSchema) else schema_to_json(schema),
            "players": list(self.players),
            "player_of_column": list(self.columns),
            "explains": {
                "output": self.output,
                "output_names": None if self.output_names is None else list(self.output_names),
                "base_values": self.base_values.tolist(),
                "own_reference": self.own_reference,
            },
            "seen": {
                "missing": sorted(self.seen.missing),
                "known_codes": {str(j): codes.tolist() for j, codes in self.seen.known.items()},
                "unseen": "ignore" if self.seen.ignore else "error",
                "ranges": _ranges_to_json(self.seen.ranges),
            },
            "confidence": self.confidence,
            "calibration": None if self.calibration is None or self.exact else _calibration_to_json(self.calibration),
            "int8": self.int8,
            "exact": None if self.exact is None else {"scale": self.exact.scale.tolist(), "trees": self.exact.trees},
            "shown": None if self.shown is None else self.shown.to_json(),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Facts:
        table, explains, seen = data["table"], data["explains"], data["seen"]
        names, calibration = explains["output_names"], data["calibration"]
        schema = ImageSchema.from_json(table) if "image" in table else schema_from_json(table)
        check_players(np.array(data["player_of_column"], dtype=np.int64), len(data["players"]), schema)
        output, base_values = explains["output"], np.array(explains["base_values"], dtype=np.float64)
        output_names, players = None if names is None else tuple(names), tuple(data["players"])
        if base_values.ndim != 1 or (explains["own_reference"] is None and not np.isfinite(base_values).all()):
            raise ValueError(f"the base values {explains['base_values']!r} are no list of finite numbers")
        exact = None
        if data.get("exact") is not None:  # folders of older versions have no such entry
            scale, trees = np.array(data["exact"]["scale"], dtype=np.float64), int(data["exact"]["trees"])
            if scale.shape != base_values.shape:
                raise ValueError(f"there are {scale.size} scales for {base_values.size} outputs")
            exact = ExactTrees(players, output, output_names, base_values, scale, trees)
        known = None if calibration is None else _calibration_from_json(calibration, len(base_values))
        if exact is not None:
            known = None if data["confidence"] is None else NoError.of(len(base_values))
        return Facts(
            seen=replace(_seen_from_json(seen, schema), of_trees=exact is not None),
            players=players,
            columns=tuple(data["player_of_column"]),
            output=output,
            output_names=output_names,
            base_values=base_values,
            own_reference=explains["own_reference"],
            calibration=known,
            confidence=data["confidence"],
            int8=data["int8"],
            exact=exact,
            shown=None if data.get("shown") is None else Shown.from_json(data["shown"], len(data["player_of_column"])),
        )


def _seen_from_json(data: dict[str, Any], schema: Schema | ImageSchema) -> Seen:
    """What training saw; `ValueError` where it is not of the columns of `schema`."""
    seen = Seen(
        schema=schema,
        missing=frozenset(int(j) for j in data["missing"]),
        known={int(j): np.array(codes, dtype=np.float64) for j, codes in data["known_codes"].items()},
        ignore=data["unseen"] == "ignore",
        ranges=_ranges_from_json(data.get("ranges")),
    )
    if isinstance(schema, ImageSchema):
        return seen
    columns = schema.columns
    if seen.known.keys() != {j for j, column in enumerate(columns) if column.categorical}:
        raise ValueError("the known categories are not those of the categorical columns")
    for j, codes in seen.known.items():
        if codes.ndim != 1 or (columns[j].coded and not np.isin(codes, np.arange(len(columns[j].values))).all()):
            raise ValueError(f"column {columns[j].name!r} has no category for some of its known codes")
    if seen.ranges is not None and seen.ranges.shape != (2, len(columns)):
        raise ValueError(f"there are ranges of {seen.ranges.shape[-1]} columns, the table has {len(columns)}")
    return seen


def _ranges_to_json(ranges: Array | None) -> list[list[float] | None] | None:
    """The least and the most of each column; null for categories."""
    return None if ranges is None else [None if np.isnan(low) else [low, high] for low, high in ranges.T.tolist()]


def _ranges_from_json(data: list[list[float] | None] | None) -> Array | None:
    if data is None:
        return None
    return np.array([[np.nan, np.nan] if ends is None else ends for ends in data], dtype=np.float64).T


def _calibration_to_json(calibration: Calibration) -> dict[str, Any]:
    """Infinite scores, of labels that may be wrong by any amount, are null."""

    def scores(array: Array) -> list[list[float | None]]:
        return [[value if np.isfinite(value) else None for value in row] for row in array.tolist()]

    return {
        "rows": scores(calibration.rows),
        "bands": scores(calibration.bands),
        "noise_risk": calibration.noise_risk,
        "mean_l2": calibration.mean_l2.tolist(),
        "evaluations": calibration.evaluations,
        "weights": None if calibration.weights is None else calibration.weights.tolist(),
        "fresh": calibration.fresh,
    }


def _calibration_from_json(data: dict[str, Any], n_outputs: int) -> Calibration:
    """What bounds rest on; `ValueError` where its arrays are not of the same rows and of `n_outputs` outputs."""

    def scores(lists: list[list[float | None]]) -> Array:
        return np.array([[np.inf if value is None else value for value in row] for row in lists], dtype=np.float64)

    weights = data.get("weights")  # folders written before copies were counted have none
    found = Calibration(
        rows=scores(data["rows"]),
        bands=scores(data["bands"]),
        noise_risk=float(data["noise_risk"]),
        mean_l2=np.array(data["mean_l2"], dtype=np.float64),
        evaluations=int(data["evaluations"]),
        weights=None if weights is None else np.array(weights, dtype=np.float64),
        fresh=float(data.get("fresh", 1.0)),
    )
    shape = len(found), n_outputs
    if found.rows.shape != shape or found.bands.shape != shape or found.mass.shape != shape[:1]:
        raise ValueError("the scores and weights of the calibration are not of the same rows and outputs")
    if np.isnan(found.rows).any() or np.isnan(found.bands).any() or not np.isfinite(found.mass).all():
        raise ValueError("the calibration holds numbers that are none")
    return found


def check_target(target: Path) -> None:
    """Refuses to write over anything but a portable explainer, and into a folder with other things."""
    PORTABLE.check_target(target)
    names = [path.name for path in target.iterdir()] if target.exists() else []
    if not all(name == PORTABLE.document or name.startswith(TEMPORARY) or PORTABLE.is_ours(name) for name in names):
        raise ArtifactError(f"{target} exists and is not a portable explainer; choose another folder, or remove it")


def write_folder(folder: str | Path, graph: bytes, facts: Facts) -> Path:
    """Writes the folder so that it is there whole or not at all; see `Generations`."""
    check_target(Path(folder))
    head = {"format": PORTABLE.format, "format_version": FORMAT_VERSION, "cortx": __version__, PORTABLE.entry: None}
    return PORTABLE.write(Path(folder), graph, {**head, **facts.to_json()})


def read_folder(folder: str | Path) -> tuple[bytes, Facts]:
    """The graph and the facts; `ArtifactError` says what is wrong with any other folder."""
    path = local_path(folder, "the portable explainer's folder")
    if (path / "manifest.json").is_file():
        raise ArtifactError(
            f"{path} is an explainer that cortx.load reads; cortx.load(folder).to_onnx(...) makes a portable one"
        )
    data, graph = PORTABLE.read_content(path, _checked(path, PORTABLE.read_document(path)))
    try:
        return graph, Facts.from_json(_checked(path, data))
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, InputError) as error:
        raise ArtifactError(f"{path / PORTABLE.document} is damaged ({error!r}); copy or export the folder") from error


def _checked(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    if data.get("format") != PORTABLE.format:
        raise ArtifactError(
            f"{path} is not a portable explainer: its {PORTABLE.document} does not say {PORTABLE.format!r}"
        )
    if data.get("format_version") != FORMAT_VERSION:
        raise ArtifactError(
            f"{path} was written in format {data.get('format_version')} by cortx {data.get('cortx')}, this cortx "
            f"({__version__}) reads format {FORMAT_VERSION}; use that version, or export again"
        )
    return data
