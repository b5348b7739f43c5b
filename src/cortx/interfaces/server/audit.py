"""The live audit: some served rows are explained again with the model, and an alarm tells when answers do not fit."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.explainer.explainer import CoRTX
from cortx.interfaces.server.audit_facts import Facts
from cortx.interfaces.server.audit_row import Judge, Result
from cortx.interfaces.server.pace import ClosedError, Pace
from cortx.seeding import numpy_generator

Array = npt.NDArray[np.float64]

MOST_WAITING = 64
"""Rows that may wait for the audit; further ones are dropped."""
EXIT_SECONDS = 1.0
"""What a label in the making is waited for at exit, for each model: linger, drain and this fit into half a minute."""


class Auditor:
    """Audits one served model in a background thread.

    Every request has the same chance to be audited, also one for a row that was audited before: bounds hold for rows as
    they come, and calibration rows repeat as often. An explainer that is not calibrated is reported on: its errors
    raise no alarm, because nothing says how large they may be.

    Parameters
    ----------
    explainer:
        With the model that it explains.
    share:
        The share of offered rows that is audited, chosen by a stream of `seed`.
    cpu:
        The share of one core that the audit may take.
    confidence:
        The level of the bounds that are checked, or the highest that the calibration supports.
    on_result, on_alarm, on_evaluations:
        Called in the audit's thread: with the facts of each audited row (l2, covered, rank_agreement, evaluations,
        seconds), once with the message of the alarm, and with what each row cost, audited or failed.
    row_budget:
        Model evaluations for each audited row; by default what labels of a fit cost.
    """

    def __init__(
        self,
        explainer: CoRTX,
        *,
        share: float,
        cpu: float = 0.1,
        confidence: float = 0.9,
        seed: int = 0,
        on_result: Callable[[Result], None] | None = None,
        on_alarm: Callable[[str], None] | None = None,
        on_evaluations: Callable[[int], None] | None = None,
        row_budget: int | None = None,
    ) -> None:
        if explainer.game is None:
            raise InputError("the audit explains rows again with the model; load the explainer with model=...")
        for name, number in (("share", share), ("cpu", cpu)):
            if not 0 < number <= 1:
                raise InputError(f"the {name} of the audit must be above 0 and at most 1, got {number!r}")
        self.share = float(share)
        self._on_result, self._on_alarm, self._on_evaluations = on_result, on_alarm, on_evaluations
        self._closing = threading.Event()
        self._pace = Pace(cpu, perf_counter, self._closing.wait)
        self._judge = Judge(explainer, self._pace, confidence, seed, row_budget)
        self._draws = numpy_generator(seed, "audited rows")
        self._skip = int(self._draws.geometric(self.share))
        self._change = threading.Condition()
        self._waiting: deque[tuple[Any, Array, Array]] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._facts = Facts(expected_l2=self._judge.expected_l2, confidence=self._judge.confidence)

    def offer(self, matrix_row: Any, values: Array, outputs: Array) -> None:
        """An explained row: its codes (columns,), the served values (players, outputs), the model's outputs (outputs,).

        Returns at once; it is audited if it is chosen, and if not too many wait.
        """
        with self._change:
            self._skip -= 1
            if self._skip > 0 or self._closing.is_set():
                return
            self._skip = int(self._draws.geometric(self.share))
            if len(self._waiting) >= MOST_WAITING:
                self._facts.dropped += 1
                return
            # Copies, because a batch must not live as long as one of its rows waits.
            self._waiting.append((np.array(matrix_row), np.array(values, float), np.array(outputs, float)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cortx-audit", daemon=True)
                # A thread that is inside the model when the interpreter goes down can take the process with it.
                atexit.register(self.close, EXIT_SECONDS)
                self._thread.start()
            self._change.notify_all()

    def state(self) -> dict[str, Any]:
        """What the audit knows now, as JSON types."""
        with self._change:
            return {"share": self.share, **self._facts.to_json()}

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until every chosen row is audited; False if that takes longer."""
        with self._change:
            return self._change.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def close(self, wait: float = 0.0) -> None:
        """Ends the thread at its next pause, and waits so many seconds for that; what waits is not audited."""
        with self._change:
            self._closing.set()
            self._waiting.clear()
            self._change.notify_all()
        if self._thread is not None and wait > 0:
            self._thread.join(wait)

    # The audit's own thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while (row := self._next()) is not None:
            try:
                self._attempt(*row)
                self._pace.rest(all_of_it=True)
            except ClosedError:
                break
        with self._change:
            self._busy = False
            self._change.notify_all()
        atexit.unregister(self.close)

    def _next(self) -> tuple[Any, Array, Array] | None:
        with self._change:
            self._busy = False
            self._change.notify_all()
            self._change.wait_for(lambda: self._waiting or self._closing.is_set())
            if self._closing.is_set():
                return None
            self._busy = True
            return self._waiting.popleft()

    def _attempt(self, matrix_row: Any, values: Array, outputs: Array) -> None:
        """Audits a row; a model that raises costs this row alone, and only the kind of its error is kept."""
        self._pace.start()
        try:
            result = self._judge(matrix_row, values, outputs)
            with self._change:
                self._facts.add(result)
        except ClosedError:
            raise
        except Exception as error:
            result = None
            with self._change:
                self._facts.fail(type(error.__cause__ or error).__name__)
        if self._on_evaluations is not None:
            with suppress(Exception):
                self._on_evaluations(self._judge.game.evaluations)
        if result is not None and self._on_result is not None:
            with suppress(Exception):  # the audit outlives who listens to it
                self._on_result(result)
        if self._judge.alarm is not None and self._facts.alarm is None:
            with self._change:
                self._facts.alarm = self._judge.alarm
            if self._on_alarm is not None:
                with suppress(Exception):
                    self._on_alarm(self._judge.alarm)
