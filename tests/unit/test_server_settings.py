"""Addresses, tokens and limits of a server, and how the command line names models."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from cortx.errors import InputError
from cortx.interfaces.server.auth import Guard
from cortx.interfaces.server.catalog import served_name
from cortx.interfaces.server.command import by_name
from cortx.interfaces.server.http import HttpError
from cortx.interfaces.server.logs import Log
from cortx.interfaces.server.metrics import Metrics, ModelMetrics
from cortx.interfaces.server.settings import Settings, read_tokens


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_a_public_address_needs_tokens(host: str) -> None:
    with pytest.raises(InputError, match="--token-file"):
        Settings(host=host)
    Settings(host=host, tokens=("a-long-token",))
    Settings(host=host, allow_public=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_loopback_needs_none(host: str) -> None:
    assert Settings(host=host).loopback


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_rows": 0},
        {"deadline": 0.0},
        {"audit": 1.5},
        {"confidence": 1.0},
        {"port": 70_000},
        {"max_body": 10},
        {"stall": 0.0},
        {"linger": -1.0},
        {"linger": float("nan")},
    ],
)
def test_limits_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="--"):
        Settings(**wrong)  # type: ignore[arg-type]


def test_tokens_of_a_file_and_of_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# people\nfirst-token\n\n second-token \n")
    assert read_tokens(file, "third-token, first-token") == ("first-token", "second-token", "third-token")
    assert read_tokens(None, None) == ()
    assert "first-token" not in repr(Settings(tokens=("first-token",)))
    for text in ("", "# nothing\n", "short\n", "with space\n"):
        file.write_text(text)
        with pytest.raises(InputError):
            read_tokens(file, None)
    with pytest.raises(InputError):
        read_tokens(tmp_path / "nowhere", None)


def test_only_the_right_header_opens() -> None:
    guard = Guard(Settings(tokens=("first-token", "second-token")))
    for token in (b"first-token", b"second-token"):
        guard.check([(b"authorization", b"Bearer " + token)])
        guard.check([(b"host", b"anything"), (b"authorization", b"bearer " + token)])
    for headers in (
        [],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer first-token second-token")],
        [(b"authorization", b"Bearer \xff\xfe")],
        [(b"authorization", b"Basic first-token")],
        [(b"cookie", b"first-token")],
        [(b"authorization", b"Bearer first-token")] * 2,
    ):
        with pytest.raises(HttpError) as caught:
            guard.check(headers)
        assert caught.value.status == 401
        assert caught.value.headers[0][0] == b"www-authenticate"


def test_loopback_answers_to_its_own_names() -> None:
    guard = Guard(Settings())
    for host in (b"localhost:8080", b"127.0.0.1", b"[::1]:80", b"LOCALHOST"):
        guard.check([(b"host", host)])
    for host in (b"evil.example", b"localhost.evil.example:80", b"10.0.0.1", b"[fe80::1]"):
        with pytest.raises(HttpError) as caught:
            guard.check([(b"host", host)])
        assert caught.value.status == 403


def test_options_by_name() -> None:
    assert by_name(["m:f"], ["a"], "--model", str.upper) == {"a": "M:F"}
    assert by_name(["b=m:f", "a=x=y"], ["a", "b"], "--model", str) == {"b": "m:f", "a": "x=y"}
    for texts, names in ((["m:f"], ["a", "b"]), (["a=x", "a=y"], ["a", "b"]), (["c=x"], ["a", "b"])):
        with pytest.raises(InputError, match="--model"):
            by_name(texts, names, "--model", str)


def test_served_names() -> None:
    assert served_name(Path("models/credit.cortx")) == "credit"
    assert served_name(Path("models/plain/")) == "plain"
    with pytest.raises(InputError):
        served_name(Path("/"))


def test_logs_hold_no_exception_text() -> None:
    stream = io.StringIO()
    log = Log(stream)
    try:
        raise ValueError("secret-value")
    except ValueError as error:
        for _ in range(5):
            log.failure("failed", error, model="credit")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == 1, "masses are written once a second"
    assert lines[0]["error"] == "ValueError"
    assert "secret-value" not in stream.getvalue()


def test_metrics_have_a_registry_of_their_own() -> None:
    audit = {"state": "alarm", "mean_l2": 0.5, "coverage": None}
    plain = {"state": "reports", "audited": 7, "coverage": None}
    first, second = Metrics(lambda: {"credit": audit, "plain": plain}), Metrics()
    ModelMetrics(first, "credit").version("one")
    ModelMetrics(first, "credit").version("two", before="one")
    text = first.text().decode()
    assert 'cortx_model_version{model="credit",version="two"} 1.0' in text
    assert '"one"' not in text
    assert 'cortx_audit_alarm{model="credit"} 1.0' in text
    assert 'cortx_audit_mean_l2{model="credit"} 0.5' in text
    for model, alarm, reports in (("credit", 1.0, 0.0), ("plain", 0.0, 1.0)):
        assert f'cortx_audit_alarm{{model="{model}"}} {alarm}' in text
        assert f'cortx_audit_reports_only{{model="{model}"}} {reports}' in text
    assert "credit" not in second.text().decode()
