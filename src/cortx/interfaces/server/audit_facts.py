"""What the audit shows: counts, means of recent rows, and a history."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from cortx.explainer.evaluation import LEAST_ROWS
from cortx.interfaces.server.audit_row import Result

RECENT = 500
"""Audited rows over which means are taken."""
MOST_DROPPED = 0.1
"""The share of chosen rows that may be dropped before the message says so."""
POINTS, MOST_TOGETHER = 120, 16
"""Points of the history, and the audited rows that one of them stands for at most."""


class Facts:
    """Counts, means of recent rows, and the history.

    The state is "waiting", "good" or "alarm"; without calibration (`confidence` is None) "reports" stands for the first
    two.
    """

    def __init__(self, expected_l2: float, confidence: float | None) -> None:
        self.expected_l2, self.confidence = expected_l2, confidence
        self.audited = self.judged = self.failed = self.dropped = self.other_outputs = 0
        self.failure = ""
        self.alarm: str | None = None
        self.recent: deque[tuple[float, float | None, float]] = deque(maxlen=RECENT)
        self.history = _History()

    def fail(self, kind: str) -> None:
        self.failed += 1
        self.failure = kind

    def add(self, result: Result | None) -> None:
        """One more audited row, or one whose outputs were not the model's."""
        self.audited += 1
        if result is None:
            self.other_outputs += 1
            return
        l2, covered, agreement = (result[name] for name in ("l2", "covered", "rank_agreement"))
        assert l2 is not None
        assert agreement is not None
        self.judged += covered is not None
        self.recent.append((l2, covered, agreement))
        self.history.add(self.audited, l2, covered)

    def to_json(self) -> dict[str, Any]:
        l2, covered, agreement = zip(*self.recent, strict=True) if self.recent else ((), (), ())
        coverage = _mean(covered)
        state = self._state()
        return {
            "audited": self.audited,
            "judged": self.judged,
            "state": state,
            "message": self._message(state, _mean(l2[-LEAST_ROWS:]), coverage),
            "mean_l2": _mean(l2),
            "expected_l2": self.expected_l2,
            "coverage": coverage,
            "confidence": self.confidence,
            "rank_agreement": _mean(agreement),
            "history": self.history.to_json(),
            "failed": self.failed,
            "dropped": self.dropped,
            "other_outputs": self.other_outputs,
        }

    def _state(self) -> str:
        if self.alarm:
            return "alarm"
        if self.confidence is None:
            return "reports"
        return "waiting" if self.judged < LEAST_ROWS else "good"

    def _message(self, state: str, latest: float | None, coverage: float | None) -> str:
        words = self.alarm or ""
        if state == "waiting":
            words = self._waits_for()
        elif state == "reports":
            words = f"the explainer is not calibrated, so its errors raise no alarm: {self.audited:,} rows audited"
            if latest is not None:
                words += f", mean error of the latest {latest:.3g} (at validation: {self.expected_l2:.3g})"
            words += "; fit with a budget, or call calibrate(), for an alarm"
        elif state == "good":
            words = f"no sign of explanations that are worse than measured ({self.audited:,} rows audited"
            if coverage is not None and self.confidence is not None:
                words += (
                    f"; the {100 * self.confidence:.4g}% bounds hold for {coverage:.1%} of the last {len(self.recent)}"
                )
            words += ")"
        elif latest is not None:
            words += f" (mean error of the latest rows: {latest:.3g}; expected: {self.expected_l2:.3g})"
        if self.failed:
            words += f"; {self.failed:,} rows could not be audited (the last: {self.failure})"
        if self.dropped > MOST_DROPPED * (self.audited + self.failed + self.dropped):
            words += (
                f"; {self.dropped:,} chosen rows were dropped because others waited, so the audited ones may not be "
                "like all requests: lower --audit"
            )
        return words

    def _waits_for(self) -> str:
        words = f"{self.judged} rows judged so far; {LEAST_ROWS} are needed to say something"
        if self.audited > self.judged:
            words += f" ({self.audited:,} audited; rows with other outputs or labels of unknown noise cannot be judged)"
        return words


class _History:
    """Means of neighbouring audited rows: of single ones at first, then of up to `MOST_TOGETHER`; the latest stay."""

    def __init__(self) -> None:
        self._together = 1
        self._points: list[tuple[int, list[float], list[float | None]]] = []

    def add(self, audited: int, l2: float, covered: float | None) -> None:
        self._points.append((audited, [l2], [covered]))
        if len(self._points) > 1 and len(self._points[-2][1]) < self._together:
            self._join(len(self._points) - 2)
        if len(self._points) <= POINTS:
            return
        if self._together == MOST_TOGETHER:
            del self._points[0]
            return
        self._together *= 2
        for i in range(len(self._points) // 2):
            self._join(i)

    def _join(self, i: int) -> None:
        """Joins a point and its successor."""
        (_, l2, covered), (audited, more_l2, more_covered) = self._points[i], self._points.pop(i + 1)
        self._points[i] = audited, l2 + more_l2, covered + more_covered

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"audited": audited, "mean_l2": _mean(l2), "coverage": _mean(covered)}
            for audited, l2, covered in self._points
        ]


def _mean(numbers: Any) -> float | None:
    known = [number for number in numbers if number is not None]
    return math.fsum(known) / len(known) if known else None
