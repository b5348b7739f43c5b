"""A test that may be looked at after every row: evidence against a mean, gathered by betting."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from cortx.explainer.calibration import Calibration
from cortx.tails import NOISE_RISK

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

BETS = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9])
"""The shares of a stake that are bet against each row: small ones notice small changes, large ones large ones soon."""
PATIENCE = 0.2
"""How fast the stakes of later rows shrink: the t-th has t**-PATIENCE - (t + 1)**-PATIENCE of the first capital."""
RICH = 1e100

GAP = 16
"""A row that comes again within so many audited rows continues its visit."""
MOST_TURNS = 64
"""The longest visits for which bets are made smaller."""
FIRST_TURNS = 20
"""The length that visits are taken to have until `RECENT_ROWS` audited rows have shown theirs."""
RECENT_ROWS = 100


class Visits:
    """Which audited rows repeat an earlier one: a visit is one row, coming again within `GAP` audited rows each time.

    Requests often come in bursts of one row (polling, retries, several clients at a time). The rows of a visit are in
    or out of their bounds together, so that they are not as many independent observations.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._open: dict[Hashable, tuple[int, int, int]] = {}  # row -> turn, longest, when it last came
        self._turns = deque([FIRST_TURNS] * RECENT_ROWS, maxlen=RECENT_ROWS)

    def next(self, row: Hashable) -> tuple[int, int]:
        """The turn of the next row within its visit, from 1, and the longest visit that was known when that began."""
        self._rows += 1
        while self._open and self._rows - next(iter(self._open.values()))[2] > GAP:
            del self._open[next(iter(self._open))]
        turn, longest, _ = self._open.pop(row, (0, min(MOST_TURNS, max(self._turns)), 0))
        self._open[row] = turn + 1, longest, self._rows
        self._turns.append(turn + 1)
        return turn + 1, longest


class Evidence:
    """Capital won by betting that numbers, none below 0, exceed a mean of at most `most`, (streams,).

    A bet of the share b multiplies a stake by 1 + b (x / most - 1), by 1 on average or less where E[x] <= most. At
    every row t a new stake w_t is put in, sum w_t = 1, so that the capital

        C_t = sum_{s > t} w_s + sum_{s <= t} w_s mean_b prod_{s <= i <= t} (1 + b (x_i / most - 1))

    is a supermartingale that starts at 1: it ever reaches 1 / risk with a chance of at most `risk` (Ville 1939),
    whenever and however often it is looked at. Late stakes see a late change that early ones, long lost, do not.

    Rows of one visit (`Visits`) gain once and lose every time: with the bet b / `longest`, a visit of k numbers below
    the mean multiplies a stake by 1 - k (b / longest) (1 - x / most), k <= longest, one above it as a single row
    does. This is never more than the product above, so independent rows that happen to repeat keep the guarantee.
    Independent visits have it too: of any length, if that does not depend on the numbers, and up to `longest` rows
    however it does, since then E[sum over a visit of (x / most - 1)] <= 0.
    """

    def __init__(self, most: Array) -> None:
        self.most = most
        self.rows = 0
        self._stakes = np.zeros((len(BETS), len(most)))

    def add(self, numbers: Array, turn: IntArray | int = 1, longest: IntArray | int = 1) -> None:
        """The next number of each stream, with its turn and the longest visit as `Visits.next` gives them."""
        self.rows += 1
        stake = self.rows**-PATIENCE - (self.rows + 1) ** -PATIENCE
        away = numbers / self.most - 1
        away = np.where(np.asarray(turn) > 1, np.minimum(away, 0.0), away)
        bets = BETS[:, None] / longest * away
        before = (np.asarray(turn) - 1) % longest
        won = (self._stakes + stake) * (1 + bets * (before + 1)) / (1 + bets * before)
        self._stakes = np.minimum(won, RICH)  # after an alarm it would grow without end

    @property
    def capital(self) -> Array:
        """C_t of each stream."""
        return np.asarray(self._stakes.mean(axis=0) + (self.rows + 1) ** -PATIENCE)

    def beyond(self, risk: float) -> bool:
        """Whether all streams together, of which the mean is a supermartingale too, speak against the means."""
        return bool(self.capital.mean() >= 1 / risk)


def most_misses(calibration: Calibration, confidence: float, risk: float) -> float:
    """The highest share of rows beyond their bounds that the luck of the calibration rows explains.

    The share of rows above the r-th of n scores is Beta(n + 1 - r, r) distributed (Vovk 2012), and exceeds p with the
    chance that a Binomial(n, p) is at most n - r; `risk` is shared by the outputs. Noisy labels add their own.
    """
    n, rank = calibration.effective_rows, calibration.rank(confidence)
    risk /= calibration.rows.shape[1]
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(n - rank, n, middle) > risk else (low, middle)
    return min(1.0, high + calibration.noise_risk + NOISE_RISK)


def _at_most(k: int, n: int, p: float) -> float:
    """The chance that a Binomial(n, p) is at most k."""
    if not 0 < p < 1:
        return float(p <= 0 or k >= n)
    logs = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p)
        for i in range(k + 1)
    ]
    return float(np.exp(logs).sum())
