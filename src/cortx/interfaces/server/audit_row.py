"""One audited row: explained again with the model, compared with what was served, and weighed."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import FingerprintError
from cortx.estimators.shapley import shapley
from cortx.explainer.artifact import compare_model
from cortx.explainer.evaluation import compare
from cortx.explainer.explainer import CoRTX
from cortx.explainer.labels import label_budget
from cortx.explanation import Explanation
from cortx.games.fingerprint import difference
from cortx.images import Images, ImageSchema
from cortx.interfaces.server.evidence import Evidence, Visits, most_misses
from cortx.interfaces.server.pace import Pace, Paced
from cortx.metrics import l2_distance, rank_accuracy
from cortx.seeding import stream_seed
from cortx.tables import Table

Array = npt.NDArray[np.float64]
Result = dict[str, float | None]

ALARM_RISK = 1e-3
"""The chance, over the draw of the calibration rows and all time, that rows like these ever raise the alarm."""
OTHER_OUTPUTS = 0.1
"""The share of requests that may come with outputs which are not the model's own."""
PROBE_EVERY = 10
"""Audited rows between two looks at the model's fingerprint."""
CHECK_MODEL = "Check which model is deployed; if the new one is meant, fit the explainer again"
FIT_AGAIN = "Check the model; if it is the right one, calibrate with recent rows, or fit again where errors stay large"
OUTPUTS_DIFFER = (
    f"more than {OTHER_OUTPUTS:.0%} of the requests were explained for outputs that the attached model does not give. "
    "Check that clients and server use the same model, and that the same row always gets the same output"
)


class Judge:
    """Explains rows again, and weighs what that says; `alarm` stays once it is raised."""

    def __init__(self, explainer: CoRTX, pace: Pace, confidence: float, seed: int, row_budget: int | None) -> None:
        assert explainer.game is not None
        fitted, game = explainer.fitted, copy(explainer.game)  # a copy: it counts its evaluations on its own
        game.model = Paced(game.model, pace)
        self.game, self.explainer = game, copy(explainer)
        self.explainer._attach(fitted, game)
        self.seed = stream_seed(seed, "audit")
        self.row_budget = label_budget(game) if row_budget is None else int(row_budget)
        self.alarm: str | None = None
        self.count = 0
        calibration = fitted.calibration
        self.confidence: float | None = None
        self.factors: tuple[Array, Array] | None = None
        self.errors: Evidence | None = None
        if calibration is None:
            self.expected_l2 = float(explainer.quality_["l2"])
        else:
            self.confidence = min(float(confidence), calibration.most_confident)
            self.factors = calibration.factors(self.confidence)
            self.expected_l2 = float(calibration.mean_l2.mean())
            misses = most_misses(calibration, self.confidence, ALARM_RISK / 2)
            self.errors = Evidence(np.full(calibration.rows.shape[1], misses))
        self.visits = Visits()
        self.others = Evidence(np.array([OTHER_OUTPUTS]))

    def __call__(self, matrix_row: Any, values: Array, outputs: Array) -> Result | None:
        """The facts of a row; None where it was explained for outputs that the model does not give."""
        started, game = perf_counter(), self.game
        game.evaluations = 0
        # v(none) is asked for anew: what is remembered may be another model's.
        game.__dict__.pop("base_values", None)
        if self.alarm is None and self.count % PROBE_EVERY == 0:
            self.alarm = self._fingerprint()
        truth = shapley(
            game,
            self._data(matrix_row),
            row_budget=self.row_budget,
            views=0,
            seed=self.seed,
            progress=False,
            student=self.explainer.fitted.student,
        )
        self.count += 1
        result = self._weigh(truth, matrix_row, values, outputs)
        if self.alarm is None:
            self.alarm = self._suspicion()
        if result is not None:
            result |= {"evaluations": float(game.evaluations), "seconds": perf_counter() - started}
        return result

    def _data(self, matrix_row: Any) -> Any:
        schema = self.explainer.fitted.spec.schema
        if isinstance(schema, ImageSchema):
            return np.asarray(matrix_row, np.float32).reshape(1, *schema.shape)
        return Table(np.asarray(matrix_row, np.float64)[None], schema)

    def _word(self, matrix_row: Any) -> int:
        """A number that depends on the content of the row alone."""
        schema = self.explainer.fitted.spec.schema
        if isinstance(schema, ImageSchema):
            return int(Images(np.asarray(matrix_row, np.float32).reshape(1, -1), schema).row_words()[0])
        return int(Table(np.asarray(matrix_row, np.float64)[None], schema).row_words()[0])

    def _fingerprint(self) -> str | None:
        """The check that loading an artifact makes, again."""
        fitted = self.explainer.fitted
        try:
            found = compare_model(self.game, fitted)
        except FingerprintError as error:
            return f"{error}. {CHECK_MODEL}"
        if found.same:
            return None
        return (
            f"the model is not the one that this explainer was fitted for: on {len(fitted.probe)} probe rows its "
            f"outputs differ by up to {found.largest:.3g} (their spread: {found.spread:.3g}). {CHECK_MODEL}"
        )

    def _weigh(self, truth: Explanation, matrix_row: Any, values: Array, outputs: Array) -> Result | None:
        """The facts of a row (None: other outputs), which also count as evidence."""
        rounding = self._rounding(np.asarray(truth.outputs, dtype=np.float64).reshape(-1), outputs)
        missed, result = None, None
        if rounding is not None:  # else it is not an error of the explainer: it was told another output
            missed, result = self._compared(truth, values, outputs, rounding)
        # A row that is answered otherwise than before is news, so what was found is a part of the visit's name.
        found = None if missed is None else missed.tobytes()
        visit = self.visits.next((self._word(matrix_row), rounding is None, found))
        self.others.add(np.array([float(rounding is None)]), *visit)
        if self.errors is not None and missed is not None:
            self.errors.add(missed, *visit)
        return result

    def _compared(
        self, truth: Explanation, values: Array, outputs: Array, rounding: Array
    ) -> tuple[Array | None, Result]:
        """Which outputs lie outside their bounds, (outputs,), None if that cannot be judged; and the facts of a row."""
        if self.explainer.fitted.spec.own_reference is None:
            more = self._rounding(
                np.asarray(truth.base_values, np.float64).reshape(-1), self.explainer.fitted.spec.base_values
            )
            rounding = rounding if more is None else rounding + more
        single = len(outputs) == 1
        served = replace(
            truth,
            values=values[None, :, 0] if single else values[None],
            outputs=outputs if single else outputs[None],
            error_std=None,
        )
        seen = compare(self.explainer, served, truth)
        distance = np.asarray(l2_distance(served, truth)).reshape(1, -1)
        seen = replace(seen, distance=np.maximum(distance - rounding, 0.0))
        missed = None
        if seen.noise_known and self.factors is not None:
            missed = 1.0 - seen.inside(*self.factors)[0][0]
        return missed, {
            "l2": float(distance.mean()),
            "covered": None if missed is None else float(1 - missed.mean()),
            "rank_agreement": float(np.mean(rank_accuracy(served, truth))),
        }

    def _rounding(self, now: Array, before: Array) -> Array | None:
        """How far outputs differ, (outputs,), which one model's may in batches of two sizes; None if it is another's.

        Measured, as the fingerprint is, by the outputs' spread on the probe rows.
        """
        probed = self.explainer.fitted.probe_outputs
        found = difference(np.vstack([probed, now]), np.vstack([probed, before]), self.game.precision)
        return np.abs(now - before) if found.same else None

    def _suspicion(self) -> str | None:
        """What the evidence so far amounts to."""
        if self.others.beyond(ALARM_RISK / 4):
            return OUTPUTS_DIFFER
        if self.errors is None or self.confidence is None or not self.errors.beyond(ALARM_RISK / 4):
            return None
        return (
            f"the {100 * self.confidence:.4g}% bounds fail for more rows than chance explains: the model or the rows "
            f"have changed. {FIT_AGAIN}"
        )
