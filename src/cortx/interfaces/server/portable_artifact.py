"""A portable folder as the server sees an explainer: onnxruntime answers, and no model is attached."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from cortx import portable
from cortx.errors import ArtifactError, InputError
from cortx.explainer.calibration import Calibration
from cortx.explainer.portable_folder import Facts
from cortx.explainer.profile import Profile
from cortx.explanation import Explanation
from cortx.games.game import GameSpec
from cortx.games.models import Output
from cortx.games.players import Players
from cortx.tables import Schema

if TYPE_CHECKING:
    from cortx.games.game import Game

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PortableFitted:
    """The part of a fitted explainer that is shown and asked for."""

    spec: GameSpec
    calibration: Calibration | None
    profile: Profile
    probe: Array
    """(0, columns): a portable folder has no rows to recognise a model by."""
    probe_outputs: Array


class PortableArtifact:
    """What `cortx serve` asks of an explainer, answered by a portable folder of a table's explainer.

    Where it is exact (trees) rows need no outputs; else requests must bring what the model gave for them.
    """

    game: Game | None = None

    def __init__(self, explainer: portable.Portable, facts: Facts, schema: Schema) -> None:
        assert facts.shown is not None
        self._portable, self.seen = explainer, facts.seen
        self.is_exact = facts.exact is not None
        columns = len(schema.columns)
        absent = np.zeros((0, columns)) if facts.shown.reference is None else facts.shown.reference[None]
        players = Players(facts.players, np.array(facts.columns, dtype=np.int64))
        spec = GameSpec(
            schema, absent, players, cast(Output, facts.output), None, None, facts.base_values, facts.output_names
        )  # fmt: skip
        nothing = np.zeros((0, columns)), np.zeros((0, len(facts.base_values)))
        self.fitted = PortableFitted(spec, facts.calibration, facts.shown.profile, *nothing)
        self.quality_: dict[str, float] = facts.shown.quality
        self.costs_: dict[str, Any] = {"total_evaluations": facts.shown.evaluations}

    @property
    def calibration(self) -> Calibration:
        if self.fitted.calibration is None:
            raise InputError("this portable explainer was exported without bounds")
        return self.fitted.calibration

    def explain(self, X: Any, outputs: Any = None, *, confidence: float | None = None) -> Explanation:
        """As `cortx.portable.Portable.explain`."""
        return self._portable.explain(X, outputs, confidence=confidence)

    @staticmethod
    def load(folder: Path, model: Any, threads: int) -> PortableArtifact:
        """Reads a folder of `CoRTX.to_onnx`; `InputError` with a model, which nothing in it could recognise."""
        if model is not None:
            raise InputError(
                f"{folder} is a portable explainer, which cannot tell whether a model is its own; serve the explainer "
                "that it was exported from, or leave --model out"
            )
        explainer = portable.load(folder, threads=threads)
        facts = explainer.facts
        if not isinstance(facts.seen.schema, Schema):
            raise ArtifactError(f"{folder} is a portable explainer of images; serve the one that it was exported from")
        if facts.shown is None:
            raise ArtifactError(
                f"{folder} was exported by an older version, which left out what a server shows; export it again"
            )
        return PortableArtifact(explainer, facts, facts.seen.schema)
