"""How often the live audit alarms by mistake, and how soon when something is wrong, on simulated traffic.

    python -m benchmarks.audit

Explainers are honest: their calibration rows are drawn from the requests that they serve, with repeats. What is
simulated is which rows come and how large their scores are (error over expected error); how they are weighed is the
audit's own code. All audited rows of a stream are looked at, one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from benchmarks.records import record, write
from cortx.explainer.calibration import Calibration
from cortx.interfaces.server.audit_row import ALARM_RISK
from cortx.interfaces.server.evidence import Evidence, Visits, most_misses

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

STREAMS, ROWS = 1_000, 2_000
SIZES, CONFIDENCES = (50, 200, 500), (0.9, 0.95)
DELAY_STREAMS, DELAY_ROWS = 200, 1_000
DELAY_SIZES, SHARES, GOOD = (100, 200, 1_000), (0.4, 0.5, 0.7, 0.9), (0, 2_000, 20_000)


@dataclass(frozen=True)
class Traffic:
    """Requests: some common rows, drawn again and again, and rare ones that are new each time.

    A row comes in bursts of geometric lengths; several clients send theirs in turn. Where `hard`, every rare row has a
    higher score than every common one, so that bounds hold for the common rows alone.
    """

    name: str
    common: int = 20
    share: float = 0.0
    """The share of requests that are for common rows."""
    common_burst: float = 1.0
    rare_burst: float = 1.0
    """Mean lengths of bursts."""
    clients: int = 1
    hard: bool = True
    levels: int | None = None
    """How many different scores there are: ties."""

    def score(self, common: npt.NDArray[np.bool_], uniform: Array) -> Array:
        score = uniform if self.levels is None else np.floor(uniform * self.levels) / self.levels
        return np.where(common | (not self.hard), score, score + 1)


TRAFFIC = (
    Traffic("every row is new"),
    Traffic("every row is new, scores of 30 levels", levels=30),
    Traffic("20 rows make 90%, the others are hard", share=0.9),
    Traffic("3 rows make 90%, the others are hard, scores of 4 levels", common=3, share=0.9, levels=4),
    Traffic("20 rows make 50%, bursts of 20", share=0.5, common_burst=20, rare_burst=20, hard=False),
    Traffic("20 rows make 90%, these in bursts of 10, the others are hard", share=0.9, common_burst=10),
    Traffic("20 rows make 90%, the others are hard and come in bursts of 20", share=0.9, rare_burst=20),
    Traffic("8 clients, bursts of 50, the others are hard", share=0.9, common_burst=50, rare_burst=50, clients=8),
    Traffic("bursts of 500, scores of 30 levels", rare_burst=500, levels=30),
)


def requests(
    traffic: Traffic, streams: int, rows: int, calibration_rows: int, generator: np.random.Generator
) -> tuple[IntArray, Array, Array]:
    """Names of the rows that come, their scores, (rows, streams) each, and calibration scores, (n, streams)."""
    each = np.arange(streams)
    often = generator.dirichlet(np.ones(traffic.common), streams).cumsum(axis=1)  # (streams, common)
    scores = traffic.score(np.ones(often.shape, bool), generator.random(often.shape))
    one_of = lambda: (generator.random((streams, 1)) > often[:, :-1]).sum(axis=1)  # noqa: E731
    bursts = np.array([(1 - traffic.share) / traffic.rare_burst, traffic.share / traffic.common_burst])
    chance = bursts[1] / bursts.sum()  # of a burst of a common row
    names, found = np.zeros((rows, streams), np.int64), np.zeros((rows, streams))
    row, score, left = (np.zeros((traffic.clients, streams), kind) for kind in (np.int64, np.float64, np.int64))
    new = np.full(streams, traffic.common)
    for t in range(rows):
        client = generator.integers(traffic.clients, size=streams)
        over = left[client, each] == 0
        common, which = generator.random(streams) < chance, one_of()
        length = generator.geometric(1 / np.where(common, traffic.common_burst, traffic.rare_burst))
        rare = traffic.score(np.zeros(streams, bool), generator.random(streams))
        where = client[over], each[over]
        row[where] = np.where(common, which, new)[over]
        score[where] = np.where(common, scores[each, which], rare)[over]
        left[where] = length[over]
        new += over & ~common
        left[client, each] -= 1
        names[t], found[t] = row[client, each], score[client, each]
    calibration = np.empty((calibration_rows, streams))
    for i in range(calibration_rows):  # at random from all requests, whose time is forgotten
        common = generator.random(streams) < traffic.share
        rare = traffic.score(np.zeros(streams, bool), generator.random(streams))
        calibration[i] = np.where(common, scores[each, one_of()], rare)
    return names, found, calibration


def visits(names: IntArray) -> tuple[IntArray, IntArray]:
    """What the audit finds of repeats in each stream, (rows, streams) each."""
    turns, longest = np.empty_like(names), np.empty_like(names)
    for stream in range(names.shape[1]):
        found = Visits()
        both = np.array([found.next(name) for name in names[:, stream].tolist()])
        turns[:, stream], longest[:, stream] = both.T
    return turns, longest


def bounds(calibration: Array, confidence: float) -> tuple[Array, float]:
    """The score up to which rows lie within their bounds, (streams,), and the share of misses that the audit allows."""
    ranks = np.arange(1.0, len(calibration) + 1)[:, None]
    law = Calibration(ranks, ranks, 0.0, np.ones(1), 0)
    return np.sort(calibration, axis=0)[law.rank(confidence) - 1], most_misses(law, confidence, ALARM_RISK / 2)


def first_alarms(
    missed: Array, most: Array, turns: IntArray, longest: IntArray, *, start: int = 0, risk: float = ALARM_RISK / 4
) -> IntArray:
    """The first row, from 1, at which each stream alarms after `start` rows; 0 if none."""
    evidence, first = Evidence(most), np.zeros(missed.shape[1], np.int64)
    for t, (numbers, *visit) in enumerate(zip(missed, turns, longest, strict=True)):
        evidence.add(numbers, *visit)
        if t >= start:
            first[(first == 0) & (evidence.capital >= 1 / risk)] = t + 1 - start
    return first


def false_alarms(traffic: Traffic, seed: int) -> list[dict[str, object]]:
    generator, started = np.random.default_rng(seed), perf_counter()
    names, scores, calibration = requests(traffic, STREAMS, ROWS, max(SIZES), generator)
    turns, longest = visits(names)
    records = []
    for n in SIZES:
        for confidence in CONFIDENCES:
            highest, most = bounds(calibration[:n], confidence)
            missed = (scores > highest).astype(np.float64)
            alarmed = first_alarms(missed, np.full(STREAMS, most), turns, longest) > 0
            records.append(
                record(
                    "audit", f"{traffic.name}; {n} calibration rows, {confidence:.0%} bounds", "live audit",
                    "share of honest streams that alarm", float(alarmed.mean()), seeds=[seed],
                    seconds=perf_counter() - started, streams=STREAMS, rows=ROWS, misses=float(missed.mean()),
                    expected_at_most=ALARM_RISK,
                )
            )  # fmt: skip
            started = perf_counter()
    return records


def delays(n: int, share: float, good: int, seed: int) -> dict[str, object]:
    """Rows until the alarm when bounds suddenly fail for a share of the rows, which are all different."""
    generator, started = np.random.default_rng((seed, n, good, round(100 * share))), perf_counter()
    _, most = bounds(np.zeros((n, 1)), 0.9)
    chances = np.repeat([0.1, share], [good, DELAY_ROWS])[:, None]
    missed = (generator.random((len(chances), DELAY_STREAMS)) < chances).astype(np.float64)
    turns, longest = visits(np.arange(len(missed))[:, None])
    first = first_alarms(missed, np.full(DELAY_STREAMS, most), turns, longest, start=good)
    return record(
        "audit", f"after {good} good rows 90% bounds fail for {share:.0%}; {n} calibration rows", "live audit",
        "audited rows until the alarm, 95% of streams", float(np.quantile(np.where(first == 0, np.inf, first), 0.95)),
        seeds=[seed], seconds=perf_counter() - started, streams=DELAY_STREAMS,
    )  # fmt: skip


def main() -> None:
    records = [found for seed, traffic in enumerate(TRAFFIC) for found in false_alarms(traffic, seed)]
    records += [delays(n, share, good, 0) for n in DELAY_SIZES for share in SHARES for good in GOOD]
    for found in records:
        print(f"{found['setting']}: {found['value']:.4g}")
    write("audit", records)


if __name__ == "__main__":
    main()
