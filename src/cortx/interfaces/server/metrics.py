"""Prometheus metrics of one server, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)
AUDITED = {
    "audited": "Requests that were explained again.",
    "judged": "Audited requests whose bounds could be checked.",
    "mean_l2": "Mean l2 error of audited explanations.",
    "expected_l2": "Mean l2 error that the artifact promised.",
    "coverage": "Share of audited explanations within their bounds.",
    "rank_agreement": "Agreement of audited rankings.",
}
STATES = (
    ("alarm", "alarm", "1 when the audit calls for attention."),
    ("reports_only", "reports", "1 when the explainer is not calibrated, so that its errors raise no alarm."),
)
"""Names of gauges, the state in which each is 1, and what it means."""


class ModelMetrics:
    """What is counted for one model; labels are looked up once."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._metrics, self._name = metrics, name
        self.explain_seconds = metrics.explain_seconds.labels(name)
        self.predict_seconds = metrics.predict_seconds.labels(name)
        self.batch_rows = metrics.batch_rows.labels(name)
        self.queue_rows = metrics.queue_rows.labels(name)
        self.busy_seconds = metrics.busy_seconds.labels(name)
        self.evaluations = metrics.evaluations.labels(name)
        self.rows = metrics.rows.labels(name)
        self.failed_versions = metrics.failed_versions.labels(name)

    def version(self, version: str, before: str | None = None) -> None:
        """Says which version is served."""
        if before is not None and before != version:
            self._metrics.versions.remove(self._name, before)
        self._metrics.versions.labels(self._name, version).set(1)


class Metrics:
    """Everything that ``/metrics`` shows."""

    def __init__(self, audits: Callable[[], Mapping[str, Mapping[str, Any]]] | None = None) -> None:
        self.registry = registry = CollectorRegistry()
        self.explain_seconds = Histogram(
            "request_explain_seconds", "Seconds from a request to its explanation.", ["model"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.predict_seconds = Histogram(
            "request_predict_seconds", "Seconds from a request to its prediction.", ["model"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.batch_rows = Histogram(
            "cortx_batch_rows", "Rows that were worked on together.", ["model"], buckets=ROWS, registry=registry
        )
        self.queue_rows = Gauge("cortx_queue_rows", "Rows that wait or are worked on.", ["model"], registry=registry)
        self.busy_seconds = Gauge(
            "cortx_busy_seconds", "Seconds that the running batch has taken so far.", ["model"], registry=registry
        )
        self.rows = Counter("cortx_rows", "Rows that were answered.", ["model"], registry=registry)
        self.evaluations = Counter("cortx_model_evaluations", "Evaluations of the model.", ["model"], registry=registry)
        self.rejected = Counter("cortx_rejected", "Requests that were refused.", ["model", "reason"], registry=registry)
        self.versions = Gauge(
            "cortx_model_version", "1 for the version that is served.", ["model", "version"], registry=registry
        )
        self.failed_versions = Counter(
            "cortx_failed_versions", "New versions of an artifact that could not be served.", ["model"],
            registry=registry,
        )  # fmt: skip
        ProcessCollector(registry=registry)
        if audits is not None:
            registry.register(_Audits(audits))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Audits:
    """The audit of each model, read when metrics are asked for."""

    def __init__(self, audits: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._audits = audits

    def collect(self) -> Iterable[GaugeMetricFamily]:
        found = self._audits()
        for key, text in AUDITED.items():
            family = GaugeMetricFamily(f"cortx_audit_{key}", text, labels=["model"])
            for name, audit in found.items():
                if isinstance(audit.get(key), (int, float)):
                    family.add_metric([name], audit[key])
            yield family
        for name, state, text in STATES:
            family = GaugeMetricFamily(f"cortx_audit_{name}", text, labels=["model"])
            for model, audit in found.items():
                family.add_metric([model], float(audit.get("state") == state))
            yield family
