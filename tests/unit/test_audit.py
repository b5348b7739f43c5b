"""The live audit: silent on a good model, loud on a swapped one, and never in anybody's way."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from benchmarks.audit import TRAFFIC, Traffic, bounds, first_alarms, requests, visits
from scipy.stats import beta
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from tests.conftest import make_tiny_recipe
from tests.guard import HANG

import cortx
from cortx.errors import InputError
from cortx.explainer.calibration import Calibration
from cortx.explainer.evaluation import compare
from cortx.interfaces.server.audit import MOST_WAITING, Auditor
from cortx.interfaces.server.audit_facts import MOST_TOGETHER, POINTS, Facts
from cortx.interfaces.server.audit_row import ALARM_RISK
from cortx.interfaces.server.evidence import BETS, GAP, MOST_TURNS, PATIENCE, RECENT_ROWS, Evidence, Visits, most_misses
from cortx.interfaces.server.pace import ClosedError, Pace

COLUMNS = 6
LEARN, REST = slice(0, 1_200), slice(2_400, None)
X, Y = make_classification(6_000, COLUMNS, n_informative=5, n_redundant=0, random_state=3)


class Deployed:
    """A model behind the server: what it answers with can change while the server runs."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.remembered: Any = None
        """Rows that are answered by the first model whatever happens, so that no fingerprint tells."""
        self.first = model
        self.broken = False
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        self.gate.wait()
        if self.broken:
            raise KeyError(f"no such customer: {rows[0]}")
        answers = self.model.predict_proba(rows)[:, 1]
        if self.remembered is not None:
            known = (rows[:, None] == self.remembered[None]).all(axis=2).any(axis=1)
            if known.any():
                answers[known] = self.first.predict_proba(rows[known])[:, 1]
        return answers


@dataclass
class Service:
    """An explainer, its model, another model for the same columns, and what the audit heard."""

    explainer: cortx.CoRTX
    deployed: Deployed
    other: Any
    fresh: np.ndarray
    auditor: Auditor | None = None
    heard: list[dict[str, Any]] = field(default_factory=list)

    def audit(self, **options: Any) -> Auditor:
        self.auditor = Auditor(
            self.explainer, **{"share": 1.0, "cpu": 1.0, "on_result": self.heard.append, **options}
        )  # fmt: skip
        return self.auditor

    def serve(self, rows: np.ndarray) -> None:
        """Explains rows as the server does, and offers them."""
        assert self.auditor is not None
        for start in range(0, len(rows), MOST_WAITING):
            part = rows[start : start + MOST_WAITING]
            explanation = self.explainer.explain(part)
            assert explanation.outputs is not None
            for row, values, output in zip(part, explanation.values, explanation.outputs, strict=True):
                self.auditor.offer(row, values[:, None], np.array([output]))
            assert self.auditor.wait(HANG)

    def rows_until_alarm(self, rows: np.ndarray) -> int:
        assert self.auditor is not None
        for count in range(len(rows)):
            self.serve(rows[count : count + 1])
            if self.auditor.state()["state"] == "alarm":
                return count + 1
        raise AssertionError(f"no alarm: {self.auditor.state()}")


def make_service(recipe: Any, model: Any, other: Any, **fit: Any) -> Service:
    deployed = Deployed(model)
    game = cortx.Game(deployed, X[LEARN], output="probability")
    explainer = cortx.CoRTX(recipe).fit(game, X[LEARN], **fit)
    return Service(explainer, deployed, other, X[REST])


def make_models() -> tuple[Any, Any]:
    """Two of one kind: the second learned from other rows, of which a third have the other label."""
    flipped = Y.copy()
    flipped[::3] ^= 1
    return LogisticRegression().fit(X[:1_200], Y[:1_200]), LogisticRegression().fit(
        X[1_200:2_400], flipped[1_200:2_400]
    )


@pytest.fixture(scope="module")
def fitted() -> Service:
    service = make_service(make_tiny_recipe(60), *make_models(), n_labels=150)
    service.explainer.calibrate(X[1_200:1_400])
    return service


@pytest.fixture(scope="module")
def uncalibrated(fitted: Service) -> Service:
    explainer = cortx.CoRTX()
    explainer._attach(replace(fitted.explainer.fitted, calibration=None), fitted.explainer.game)
    return Service(explainer, fitted.deployed, fitted.other, fitted.fresh)


@pytest.fixture
def service(fitted: Service) -> Iterator[Service]:
    yield from _fresh(fitted)


@pytest.fixture
def plain_service(uncalibrated: Service) -> Iterator[Service]:
    yield from _fresh(uncalibrated)


def _fresh(service: Service) -> Iterator[Service]:
    service.heard.clear()
    yield service
    deployed = service.deployed
    deployed.model, deployed.remembered, deployed.broken = deployed.first, None, False
    deployed.gate.set()
    if service.auditor is not None:
        service.auditor.close(wait=HANG)
        assert service.auditor._thread is None or not service.auditor._thread.is_alive()


# What it finds ------------------------------------------------------------------------------------------------


def test_a_good_model_is_called_good(service: Service) -> None:
    auditor = service.audit()
    assert auditor.state()["state"] == "waiting"
    service.serve(service.fresh[:20])
    assert auditor.state()["state"] == "waiting"
    service.serve(service.fresh[20:200])
    state = auditor.state()
    assert (state["state"], state["audited"], state["failed"], state["dropped"]) == ("good", 200, 0, 0)
    assert json.loads(json.dumps(state, allow_nan=False)) == state


def test_its_facts_are_those_of_exact_labels(service: Service) -> None:
    auditor, rows = service.audit(), service.fresh[:40]
    service.serve(rows)
    game = service.explainer.game
    assert game is not None
    explained = service.explainer.explain(rows, confidence=0.9)
    truth = cortx.shapley(game, rows, "exact")
    l2 = [float(np.sqrt(sum((a - b) ** 2))) for a, b in zip(explained.values, truth.values, strict=True)]
    assert [fact["l2"] for fact in service.heard] == pytest.approx(l2)
    assert explained.error_bound is not None
    covered = [error <= bound for error, bound in zip(l2, explained.error_bound, strict=True)]
    assert [fact["covered"] for fact in service.heard] == covered
    weights = np.array([1 / (1 + place) for place in range(COLUMNS)])
    same = np.array([np.argsort(-a) == np.argsort(-b) for a, b in zip(explained.values, truth.values, strict=True)])
    state = auditor.state()
    assert state["mean_l2"] == pytest.approx(np.mean(l2))
    assert state["coverage"] == pytest.approx(np.mean(covered))
    assert state["rank_agreement"] == pytest.approx(float((same @ weights / weights.sum()).mean()))
    assert state["expected_l2"] == pytest.approx(float(service.explainer.calibration.mean_l2.mean()))
    assert [point["audited"] for point in state["history"]] == list(range(1, 41))
    assert [point["mean_l2"] for point in state["history"]] == pytest.approx(l2)


def test_a_swapped_model_is_recognised_by_its_fingerprint(service: Service) -> None:
    alarms: list[str] = []
    auditor = service.audit(on_alarm=alarms.append)
    service.serve(service.fresh[:60])
    service.deployed.model = service.other
    assert service.rows_until_alarm(service.fresh[60:260]) <= 10
    state = auditor.state()
    assert "not the one that this explainer was fitted for" in state["message"]
    assert "fit the explainer again" in state["message"]
    assert len(alarms) == 1
    service.deployed.model = service.deployed.first
    service.serve(service.fresh[:40])
    assert auditor.state()["state"] == "alarm"  # it stays until somebody looks


def test_a_model_that_changed_where_no_probe_is_fails_its_bounds(service: Service) -> None:
    service.audit()
    service.serve(service.fresh[:100])
    service.deployed.remembered, service.deployed.model = service.explainer.fitted.probe, service.other
    assert service.rows_until_alarm(service.fresh[100:300]) <= 200
    assert service.auditor is not None
    state = service.auditor.state()
    assert "the 90% bounds fail" in state["message"]
    assert state["other_outputs"] == 0


def test_without_calibration_errors_are_reported_and_raise_no_alarm(plain_service: Service) -> None:
    service, auditor = plain_service, plain_service.audit()
    assert auditor.state()["state"] == "reports"
    service.serve(service.fresh[:50])
    state = auditor.state()
    assert (state["state"], state["coverage"], state["confidence"], state["judged"]) == ("reports", None, None, 0)
    assert state["expected_l2"] == pytest.approx(service.explainer.quality_["l2"])
    service.deployed.remembered, service.deployed.model = service.explainer.fitted.probe, service.other
    service.serve(service.fresh[50:250])
    state = auditor.state()
    assert state["mean_l2"] > 2 * state["expected_l2"]
    assert state["state"] == "reports"
    assert "not calibrated, so its errors raise no alarm: 250 rows audited" in state["message"]
    assert f"at validation: {state['expected_l2']:.3g}" in state["message"]
    service.deployed.remembered = None
    assert service.rows_until_alarm(service.fresh[250:270]) <= 10  # another model is a fact, not a guess
    assert "not the one that this explainer was fitted for" in auditor.state()["message"]


def test_requests_for_the_same_rows_count_as_often_as_they_come(service: Service) -> None:
    """Of the requests 90% are for 20 rows, to which calibration gives their share; the others are hard."""
    pool = service.fresh[:400]
    game = service.explainer.game
    assert game is not None
    seen = compare(service.explainer, service.explainer.explain(pool), cortx.shapley(game, pool, "exact"))
    order = np.argsort((seen.distance / seen.typical_row)[:, 0])
    common, hard = pool[order[:20]], pool[order[-150:]]
    generator = np.random.default_rng(1)

    def traffic(rows: int) -> np.ndarray:
        often = generator.random(rows)[:, None] < 0.9
        return np.where(often, common[generator.integers(20, size=rows)], hard[generator.integers(150, size=rows)])

    explainer = cortx.CoRTX()
    explainer._attach(service.explainer.fitted, game)
    served = replace(service, explainer=explainer.calibrate(traffic(200)), auditor=None)
    auditor = served.audit()
    served.serve(traffic(300))
    state = auditor.state()
    auditor.close(wait=HANG)
    assert (state["state"], state["audited"], state["judged"]) == ("good", 300, 300)
    missed = np.mean([fact["covered"] == 0 for fact in service.heard])
    assert 0.02 <= missed <= 0.2  # nearly all of them hard rows


def test_outputs_of_another_model_are_told_from_errors(service: Service) -> None:
    """Clients may send outputs; those of a model that is not attached are no error of the explainer."""
    auditor = service.audit()
    rows = service.fresh[:40]
    outputs = service.other.predict_proba(rows)[:, 1]
    values = service.explainer.explain(rows, outputs).values
    for row, value, output in zip(rows, values, outputs, strict=True):
        auditor.offer(row, value[:, None], np.array([output]))
    assert auditor.wait(HANG)
    state = auditor.state()
    assert state["state"] == "alarm"
    assert "clients and server" in state["message"]
    assert (state["other_outputs"], state["mean_l2"]) == (40, None)
    # Outputs that were rounded on their way are the model's own.
    auditor = service.audit()
    explanation = service.explainer.explain(rows)
    assert explanation.outputs is not None
    for row, value, output in zip(rows, explanation.values, explanation.outputs, strict=True):
        auditor.offer(row, value[:, None], np.array([round(float(output), 4)]))
    assert auditor.wait(HANG)
    assert auditor.state()["other_outputs"] == 0


def test_noisy_labels_are_given_their_noise(service: Service) -> None:
    """Three quarters of the coalitions: labels are estimated, with standard errors."""
    rows, budget = service.fresh[:150], 3 * 2**COLUMNS // 4
    auditor = service.audit()
    service.serve(rows)
    exact = auditor.state()["coverage"]
    service.heard.clear()
    auditor = service.audit(row_budget=budget)
    service.serve(rows)
    assert min(fact["evaluations"] for fact in service.heard) <= budget + 1
    state = auditor.state()
    assert state["state"] == "good"
    assert state["coverage"] >= exact - 3 / len(rows)  # noise hides misses, and makes one in 500 rows


def test_a_model_that_raises_is_counted_and_outlived(service: Service) -> None:
    auditor = service.audit()
    service.serve(service.fresh[:40])
    explanation = service.explainer.explain(service.fresh[50:55])
    service.deployed.broken = True
    for row, values, output in zip(service.fresh[50:55], explanation.values, explanation.outputs, strict=True):
        auditor.offer(row, values[:, None], np.array([output]))
    assert auditor.wait(HANG)
    state = auditor.state()
    assert (state["failed"], state["audited"], state["state"]) == (5, 40, "good")
    assert "5 rows could not be audited (the last: KeyError)" in state["message"]
    assert "customer" not in json.dumps(state)  # what a model says of a row stays with it
    service.deployed.broken = False
    service.serve(service.fresh[40:50])
    assert auditor.state()["audited"] == 50


def test_who_listens_may_fail(service: Service) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("no")

    auditor = service.audit(on_result=fail, on_alarm=fail)
    service.serve(service.fresh[:5])
    service.deployed.model = service.other
    service.serve(service.fresh[5:25])
    state = auditor.state()
    assert (state["audited"], state["failed"], state["state"]) == (25, 0, "alarm")


# The thread, the queue and the share --------------------------------------------------------------------------


def test_a_full_queue_drops_rows_and_never_blocks(service: Service) -> None:
    auditor, n = service.audit(), 3 * MOST_WAITING
    explanation = service.explainer.explain(service.fresh[:n])
    assert explanation.outputs is not None
    service.deployed.gate.clear()  # the model does not answer
    for row, values, output in zip(service.fresh[:n], explanation.values, explanation.outputs, strict=True):
        auditor.offer(row, values[:, None], np.array([output]))
    # One row may be in work already.
    assert auditor.state()["dropped"] in (n - MOST_WAITING, n - MOST_WAITING - 1)
    service.deployed.gate.set()
    assert auditor.wait(HANG)
    state = auditor.state()
    assert state["audited"] + state["dropped"] == n


def test_the_share_is_drawn_from_the_seed(service: Service) -> None:
    def heard(seed: int) -> list[float]:
        service.heard.clear()
        service.audit(share=0.25, seed=seed)
        service.serve(service.fresh[:200])
        return [fact["l2"] for fact in service.heard]

    first, again, other = heard(0), heard(0), heard(1)
    assert first == again
    assert first != other
    assert 22 <= len(first) <= 82  # a quarter of them gives more or fewer once in a million times
    assert 22 <= len(other) <= 82


def test_closing_ends_a_resting_audit(service: Service) -> None:
    auditor = service.audit(cpu=1e-6)  # a millisecond of work is paid for with a quarter of an hour
    explanation = service.explainer.explain(service.fresh[:10])
    assert explanation.outputs is not None
    for row, values, output in zip(service.fresh[:10], explanation.values, explanation.outputs, strict=True):
        auditor.offer(row, values[:, None], np.array([output]))
    auditor.close(wait=HANG)
    assert auditor._thread is not None
    assert not auditor._thread.is_alive()
    auditor.close()
    auditor.offer(service.fresh[0], explanation.values[0][:, None], explanation.outputs[:1])
    assert auditor.wait(0)
    assert auditor.state()["audited"] < 10


def test_an_auditor_of_no_rows_starts_no_thread(service: Service) -> None:
    before = threading.active_count()
    auditor = service.audit()
    assert threading.active_count() == before
    auditor.close(wait=1)


def test_serving_counts_its_own_evaluations(service: Service) -> None:
    game = service.explainer.game
    assert game is not None
    service.audit()
    before = game.evaluations
    service.serve(service.fresh[:30])
    assert game.evaluations - before == 30
    assert all(fact["evaluations"] >= 2**COLUMNS for fact in service.heard)


def test_wrong_settings_are_refused(service: Service) -> None:
    for options in ({"share": 0.0}, {"share": 1.5}, {"cpu": 0.0}, {"cpu": 2.0}):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            service.audit(**options)
    bare = cortx.CoRTX()
    bare._attach(service.explainer.fitted, None)
    with pytest.raises(InputError, match="model="):
        Auditor(bare, share=0.5)


def test_confidence_beyond_the_calibration_is_lowered(service: Service) -> None:
    state = service.audit(confidence=0.9999).state()
    assert state["confidence"] == service.explainer.calibration.most_confident


class Time:
    """A clock that only work and sleep move."""

    def __init__(self) -> None:
        self.now = self.worked = 0.0

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds

    def sleep(self, seconds: float) -> bool:
        self.now += seconds
        return False


def test_the_pace_keeps_work_below_its_share() -> None:
    time, generator = Time(), np.random.default_rng(0)
    pace = Pace(0.1, lambda: time.now, time.sleep)
    for row in range(200):
        pace.start()
        for seconds in generator.exponential(0.003, size=5):
            time.work(seconds)
            pace.rest()
        pace.rest(all_of_it=True)
        assert time.worked <= 0.1 * time.now + 1e-9
        if row % 10 == 0:
            time.sleep(1.0)  # nothing to do: this is not saved up
    ending = Pace(0.1, lambda: time.now, lambda seconds: True)
    time.work(1.0)
    with pytest.raises(ClosedError):
        ending.rest()


# Evidence -----------------------------------------------------------------------------------------------------


def test_capital_is_what_the_stakes_have_won() -> None:
    numbers, most = np.random.default_rng(1).exponential(1.0, size=12), 0.7
    evidence = Evidence(np.array([most]))
    for t, number in enumerate(numbers, start=1):
        evidence.add(np.array([number]))
        stakes = [s**-PATIENCE - (s + 1) ** -PATIENCE for s in range(1, t + 1)]
        capital = 1 - sum(stakes)
        for start, stake in enumerate(stakes):
            for bet in BETS:
                won = stake / len(BETS)
                for x in numbers[start:t]:
                    won *= 1 + bet * (x / most - 1)
                capital += won
        assert evidence.capital[0] == pytest.approx(capital)


def ever_beyond(numbers: np.ndarray, most: np.ndarray, risk: float) -> np.ndarray:
    """Which of many streams, (rows, streams), ever reach 1 / risk, looked at after every row."""
    evidence = Evidence(most)
    beyond = np.zeros(numbers.shape[1], dtype=bool)
    for row in numbers:
        evidence.add(row)
        beyond |= evidence.capital >= 1 / risk
    return beyond


@pytest.mark.parametrize("law", ["misses", "exponential", "heavy"])
def test_false_alarms_are_rare_however_often_one_looks(law: str) -> None:
    """4,000 streams of 2,000 rows at the very limit of what is allowed, at a risk large enough to be seen."""
    generator, shape, risk = np.random.default_rng(7), (2_000, 4_000), 0.05
    numbers = {
        "misses": lambda: (generator.random(shape) < 0.15).astype(np.float64),
        "exponential": lambda: generator.exponential(0.15, shape),
        "heavy": lambda: 0.15 * generator.lognormal(-2.0, 2.0, shape),  # mean exp(-2 + 4 / 2) = 1
    }[law]()
    share = ever_beyond(numbers, np.full(shape[1], 0.15), risk).mean()
    assert share <= risk
    assert share > 0  # the test can see alarms


def sorted_scores(n: int) -> Calibration:
    scores = np.arange(1.0, n + 1)[:, None]
    return Calibration(scores, scores, 0.0, np.ones(1), 0)


def test_the_luck_of_calibration_rows_is_allowed_for() -> None:
    for n, confidence, risk in ((30, 0.9, 5e-4), (200, 0.9, 5e-4), (1_000, 0.8, 0.01)):
        calibration = sorted_scores(n)
        rank = int(calibration.factors(confidence)[0][0])  # the score is its own rank
        allowed = most_misses(calibration, confidence, risk)
        noise = 0.002
        assert allowed - noise == pytest.approx(float(beta(n + 1 - rank, rank).isf(risk)), rel=1e-6)
    # Explainers calibrated on 50 rows each: most are a bit better than they say, some a lot worse.
    n, generator = 50, np.random.default_rng(11)
    rank = int(sorted_scores(n).factors(0.9)[0][0])
    misses = 1 - np.sort(generator.random((3_000, n)), axis=1)[:, rank - 1]
    assert (misses > 0.15).sum() > 100
    rows = (generator.random((2_000, len(misses))) < misses).astype(np.float64)
    allowed = most_misses(sorted_scores(n), 0.9, ALARM_RISK / 2)
    assert ever_beyond(rows, np.full(len(misses), allowed), ALARM_RISK / 4).mean() <= ALARM_RISK


@pytest.mark.parametrize("good", [0, 2_000, 20_000])
def test_bounds_that_hold_for_half_of_the_rows_alarm_within_200(good: int) -> None:
    """However long all was well before, with 200 calibration rows: in at least 95 of 100 streams."""
    generator, streams = np.random.default_rng(good), 100
    evidence = Evidence(np.full(streams, most_misses(sorted_scores(200), 0.9, ALARM_RISK / 2)))
    seen = Visits()
    for row in range(good):
        evidence.add((generator.random(streams) < 0.1).astype(np.float64), *seen.next(row))
    beyond = np.zeros(streams, dtype=bool)
    for row in range(good, good + 200):
        evidence.add((generator.random(streams) < 0.5).astype(np.float64), *seen.next(row))
        beyond |= evidence.capital >= 4 / ALARM_RISK
    assert beyond.mean() >= 0.95


# Repeats, ties, bursts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("traffic", TRAFFIC, ids=lambda traffic: traffic.name)
def test_honest_streams_with_repeats_ties_and_bursts_do_not_alarm(traffic: Traffic) -> None:
    """1,000 explainers, calibrated on 50 to 500 rows of their traffic; benchmarks/audit.py has longer streams."""
    streams, rows = 1_000, 250
    names, scores, calibration = requests(traffic, streams, rows, 1_000, np.random.default_rng(5))
    found = visits(names)
    parts = np.arange(streams) % 4
    highest, most = np.empty(streams), np.empty(streams)
    for part, (n, confidence) in enumerate(((50, 0.9), (200, 0.9), (200, 0.95), (500, 0.95))):
        own = parts == part
        highest[own], most[own] = bounds(calibration[:n, own], confidence)
    missed = (scores > highest).astype(np.float64)
    assert missed.mean() > 0.01
    assert (first_alarms(missed, most, *found) > 0).mean() <= ALARM_RISK
    # The same where no room is left for the luck of calibration rows, at a risk large enough to be seen.
    share = (calibration[500:] > highest).mean(axis=0) + 0.01
    assert (first_alarms(missed, share, *found, risk=0.05) > 0).mean() <= 0.05


def test_the_same_streams_alarm_when_the_model_is_swapped() -> None:
    """All rows new, or 100 of them 90% of the traffic: bounds fail for nine rows in ten."""
    for traffic in (TRAFFIC[0], Traffic("100 rows make 90%", common=100, share=0.9)):
        generator = np.random.default_rng(6)
        names, *_ = requests(traffic, 100, 200, 1, generator)
        fails = generator.random((100, names.max() + 1)) < 0.9
        missed = np.take_along_axis(fails, names.T, axis=1).T.astype(np.float64)
        most = np.full(100, bounds(np.zeros((200, 1)), 0.9)[1])
        assert (first_alarms(missed, most, *visits(names)) > 0).mean() >= 0.95


def test_a_visit_is_one_row_with_few_others_between() -> None:
    seen, generator = Visits(), np.random.default_rng(2)
    rows = [int(row) for row in generator.integers(8, size=300)] + [9] * 200 + list(range(10, 200)) + [9]
    turns: list[int] = []
    began: list[int] = []
    for t, row in enumerate(rows):
        turn, longest = seen.next(row)
        before = next((i for i in range(t - 1, max(-1, t - GAP - 1), -1) if rows[i] == row), None)
        assert turn == (1 if before is None else turns[before] + 1)
        if before is None and t >= RECENT_ROWS:
            assert longest == min(MOST_TURNS, max(turns[-RECENT_ROWS:]))
        elif before is not None:
            assert longest == began[before]  # what a visit began with stays
        turns.append(turn)
        began.append(longest)
    assert max(turns) >= 200
    assert (turns[-1], began[-1]) == (1, 1)  # all different for long: bets are large again
    assert len(seen._open) <= GAP + 1


def test_a_visit_gains_once_and_loses_in_proportion_to_its_length() -> None:
    most, longest = 0.2, 10

    def capital(numbers: list[float], turns: list[int]) -> float:
        """Of the first stake alone, averaged over the bets."""
        evidence = Evidence(np.array([most]))
        evidence.rows = 10**12  # later stakes are nothing
        evidence._stakes[:] = 1.0
        for number, turn in zip(numbers, turns, strict=True):
            evidence.add(np.array([number]), turn, longest)
        return float(evidence._stakes.mean())

    bets = np.array(BETS) / longest
    for length in range(1, longest + 1):
        turns = list(range(1, length + 1))
        assert capital([0.0] * length, turns) == pytest.approx(float(np.mean(1 - length * bets)))
        assert capital([1.0] * length, turns) == pytest.approx(float(np.mean(1 + bets * (1 / most - 1))))
    twice = capital([0.0] * (2 * longest), list(range(1, 2 * longest + 1)))
    assert twice == pytest.approx(float(np.mean((1 - longest * bets) ** 2)))


def test_what_could_not_be_judged_is_not_called_good() -> None:
    facts = Facts(expected_l2=1.0, confidence=0.9)
    for covered in [1.0] * 20 + [None] * 40:
        facts.add({"l2": 1.0, "covered": covered, "rank_agreement": 1.0})
    state = facts.to_json()
    assert (state["state"], state["audited"], state["judged"]) == ("waiting", 60, 20)
    assert "20 rows judged so far; 30 are needed" in state["message"]
    assert "unknown noise" in state["message"]
    for _ in range(10):
        facts.add({"l2": 1.0, "covered": 1.0, "rank_agreement": 1.0})
    assert facts.to_json()["state"] == "good"
    facts.dropped = 5
    assert "dropped" not in facts.to_json()["message"]
    facts.dropped = 50
    assert "50 chosen rows were dropped" in facts.to_json()["message"]


def test_the_history_is_bounded_and_keeps_the_latest() -> None:
    facts = Facts(expected_l2=1.0, confidence=0.9)
    n = 5_000
    for i in range(n):
        facts.add({"l2": float(i), "covered": float(i % 2), "rank_agreement": 1.0})
        assert i % 50 or len(facts.history.to_json()) <= POINTS
    points = facts.to_json()["history"]
    assert points[-1]["audited"] == n
    assert len(points) > POINTS // 2
    for before, after in pairwise(points[:-1]):
        assert after["audited"] - before["audited"] == MOST_TOGETHER
        assert after["mean_l2"] == np.mean(np.arange(before["audited"], after["audited"]))
        assert after["coverage"] == 0.5


# The claims, at full length -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("fit", [{"budget": 100_000}, {"n_labels": 300}], ids=["calibrated", "uncalibrated"])
def test_2000_good_rows_are_silent_and_a_swap_alarms_within_200(fit: dict[str, Any], tmp_path: Any) -> None:
    """Without calibration only the fingerprint tells; errors are reported."""
    models = [MLPClassifier((16,), random_state=seed, max_iter=200) for seed in (0, 1)]
    old, other = (model.fit(X[part], Y[part]) for model, part in zip(models, (LEARN, slice(1_200, 2_400)), strict=True))
    service = make_service("quick", old, other, **fit)
    service.explainer.save(tmp_path / "audited.cortx")
    service.explainer = cortx.load(tmp_path / "audited.cortx", service.deployed)
    calibrated = "budget" in fit
    for fingerprint in (True, False):
        auditor = service.audit()
        service.serve(service.fresh[:2_000])
        silent = "good" if calibrated else "reports"
        assert (auditor.state()["state"], auditor.state()["audited"]) == (silent, 2_000)
        if not fingerprint:
            service.deployed.remembered = service.explainer.fitted.probe
        service.deployed.model = other
        if calibrated or fingerprint:
            assert service.rows_until_alarm(service.fresh[2_000:]) <= 200
        else:
            service.serve(service.fresh[2_000:2_200])
            assert auditor.state()["state"] == "reports"
        auditor.close(wait=HANG)
        service.deployed.model = old
