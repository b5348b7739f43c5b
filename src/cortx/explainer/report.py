"""What an evaluation found, as numbers, as strict JSON and in words."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cortx.explainer.profile import ColumnDrift
from cortx.games.fingerprint import FINGERPRINT_TOLERANCE, ModelDifference

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Verdict = Literal["fits", "model changed", "data drifted", "bounds fail", "error grew", "too few rows", "not judged"]
UNJUDGED: tuple[Verdict, ...] = ("too few rows", "not judged")
"""Nothing was found, because nothing could have been."""


@dataclass(frozen=True)
class Level:
    """The share of rows for which bounds held at one confidence, and the range in which chance puts it (95%)."""

    confidence: float
    bound: float
    bands: float
    low: float
    high: float


@dataclass(frozen=True)
class Coverage:
    """How the bounds did, averaged over the outputs. A row is missed when it is outside by more than its label's noise.

    `bound` is of the rows' l2 errors, `bands` of all values of a row at once.
    """

    bound: float
    bands: float
    labels_in_bound: float
    labels_in_bands: float
    """The same for the labels as they are: noise in them lowers it."""
    median_bound: float
    median_width: float
    """Of the bands of players that can have a value other than zero."""
    hardest_rows: int
    hardest_bound: float
    """Coverage of the tenth of rows that the explainer expects to be hardest."""
    stable_ranks: float
    """The share of ranks that the bands make certain, and of these the share that is wrong."""
    stable_wrong: float | None
    p_value: float
    """The chance of so few covered rows if the bounds hold, the smallest over bound, bands and outputs.

    Rows of equal content are covered or missed together, so each chance is the larger of two: of all rows, and of one
    of each content.
    """
    worst_output: str | None
    worst_bound: float


@dataclass(frozen=True)
class WorstRow:
    """A row far from its label: its position in the table, and the feature that differs most."""

    row: int
    l2: float
    bound: float | None
    covered: bool | None
    output: str | None
    feature: str
    predicted: float
    label: float


@dataclass(frozen=True)
class Slice:
    """The rows of one part of a column."""

    column: str
    part: str
    rows: int
    l2: float
    coverage: float | None
    median_bound: float | None


@dataclass(frozen=True)
class Check:
    """One thing that was checked: the problem it found, if any ("not judged": why none could be), and the words."""

    problem: Verdict | None
    words: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class QualityReport:
    """What `evaluate` found. Print it; `reasons` say why the verdict is what it is.

    `verdict` is the first problem that was found; else "too few rows" or "not judged", if the labels could not have
    shown one; else "fits".
    """

    confidence: float
    measures: dict[str, Any]
    """Rows, distances, rank agreement, the labels' noise, and costs."""
    coverage: Coverage | None
    """None when the explainer is not calibrated."""
    levels: tuple[Level, ...]
    worst: tuple[WorstRow, ...]
    slices: tuple[Slice, ...]
    drift: tuple[ColumnDrift, ...]
    model: ModelDifference
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    errors: Array = field(repr=False)
    """l2 distances to the labels, (rows, outputs); shaped like all that follow."""
    difficulty: Array = field(repr=False)
    """What the explainer expects these distances to be."""
    bounds: Array | None = field(repr=False)
    missed: BoolArray | None = field(repr=False)

    @property
    def problems(self) -> tuple[Verdict, ...]:
        """All that keeps it from "fits", what was found before what could not be judged."""
        found = (check.problem for check in self.checks if check.problem is not None)
        return tuple(dict.fromkeys(sorted(found, key=lambda problem: problem in UNJUDGED)))

    @property
    def verdict(self) -> Verdict:
        return self.problems[0] if self.problems else "fits"

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def reasons(self) -> list[str]:
        """The problems that were found; where there are none, what could not be judged and then what held."""
        found = self.verdict != "fits" and self.verdict not in UNJUDGED
        checks = sorted(self.checks, key=lambda check: check.problem is None)
        return [words for check in checks if check.problem or not found for words in check.words]

    def to_json(self) -> dict[str, Any]:
        """Strict JSON types; what is not defined is None."""
        whole = {
            **self.measures,
            "verdict": self.verdict,
            "fits": self.fits,
            "problems": list(self.problems),
            "reasons": self.reasons,
            "notes": list(self.notes),
            "confidence": self.confidence,
            "coverage": None if self.coverage is None else asdict(self.coverage),
            "coverage_by_confidence": [asdict(level) for level in self.levels],
            "worst_rows": [asdict(row) for row in self.worst],
            "slices": [asdict(part) for part in self.slices],
            "drift": [column.to_json() for column in self.drift],
            "model": {**asdict(self.model), "tolerance": FINGERPRINT_TOLERANCE, "same": self.model.same},
        }
        cleaned: dict[str, Any] = _strict(whole)
        return cleaned

    def __str__(self) -> str:
        head = f"verdict: {self.verdict} ({self.measures['rows']:,} fresh rows, labels: {self.measures['method']})"
        return "\n".join([head, *(f"- {words}" for words in (*self.reasons, *self.notes))])


def _strict(value: Any) -> Any:
    """Without NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
