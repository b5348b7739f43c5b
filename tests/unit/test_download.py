"""Fetching a file from a real HTTP server that behaves, breaks off, lies, changes its mind or is not there."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from cortx.errors import CortxError, InputError
from cortx.paper.download import DownloadError, fetch

CONTENT = np.random.default_rng(0).bytes(300_000)
OTHER = np.random.default_rng(1).bytes(250_000)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Site(ThreadingHTTPServer):
    """A server of one file, with its faults as switches, and a record of what it was asked and what it sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag: str | None = '"one"'
        self.honours_range = True
        self.announces_length = True
        self.break_after: list[int] = []  # body bytes of the coming answers, then whole ones
        self.statuses: list[int] = []  # error codes of the coming answers
        self.wrong_start = 0  # how far a partial answer starts beside the place asked for
        self.redirect: str | None = None
        self.asked: list[dict[str, str]] = []
        self.sent: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/some/file.bin"


class Handler(BaseHTTPRequestHandler):
    server: Site

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        site = self.server
        site.asked.append({name.lower(): value for name, value in self.headers.items()})
        if site.redirect is not None and self.path != "/moved":
            self.send_response(302)
            self.send_header("Location", site.redirect)
            self.end_headers()
            return
        if site.statuses:
            self.send_error(site.statuses.pop(0))
            return
        asked, same = self.headers.get("Range"), self.headers.get("If-Range") in (None, site.etag)
        start = 0
        if asked and site.honours_range and same:
            start = int(asked.removeprefix("bytes=").removesuffix("-")) + site.wrong_start
            if start >= len(site.content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(site.content) - 1}/{len(site.content)}")
        else:
            self.send_response(200)
        body = site.content[start:]
        if site.etag is not None:
            self.send_header("ETag", site.etag)
        if site.announces_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if site.break_after:
            body = body[: site.break_after.pop(0)]
        site.sent.append(len(body))
        self.wfile.write(body)  # the connection closes after every answer (HTTP/1.0)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    site.shutdown()
    thread.join()
    site.server_close()


def leftovers(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir() if file != path)


def test_a_whole_file_arrives_and_leaves_nothing_else(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file.bin"
    assert fetch(site.url, path, sha256=sha256(CONTENT).upper(), pause=0) == path
    assert path.read_bytes() == CONTENT
    assert leftovers(path) == []
    assert "range" not in site.asked[0]


@pytest.mark.parametrize("etag", ['"one"', None])
def test_a_break_is_mended_within_one_call(site: Site, tmp_path: Path, etag: str | None) -> None:
    """With a version of the file the rest is asked for; without one, nothing says that the rest belongs to it."""
    site.etag, site.break_after = etag, [100_000, 50_000]
    path = fetch(site.url, tmp_path / "file.bin", sha256=sha256(CONTENT), pause=0)
    assert path.read_bytes() == CONTENT
    assert leftovers(path) == []
    assert site.sent == ([100_000, 50_000, 150_000] if etag else [100_000, 50_000, 300_000])
    assert [asked.get("range") for asked in site.asked] == (
        [None, "bytes=100000-", "bytes=150000-"] if etag else [None, None, None]
    )


def test_a_truncated_answer_is_an_error_that_a_second_call_resumes(site: Site, tmp_path: Path) -> None:
    site.break_after = [120_000]
    path = tmp_path / "file.bin"
    with pytest.raises(DownloadError, match=r"truncated: 120,000 of 300,000.*run the same command again") as caught:
        fetch(site.url, path, sha256=sha256(CONTENT), attempts=1)
    assert site.url in str(caught.value)
    assert isinstance(caught.value, CortxError)
    assert not path.exists()
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:120_000]
    fetch(site.url, path, sha256=sha256(CONTENT), attempts=1)
    assert path.read_bytes() == CONTENT
    assert site.sent == [120_000, 180_000]
    assert leftovers(path) == []


def test_a_server_without_ranges_starts_again(site: Site, tmp_path: Path) -> None:
    site.honours_range, site.break_after = False, [120_000]
    path = fetch(site.url, tmp_path / "file.bin", sha256=sha256(CONTENT), pause=0)
    assert site.asked[1]["range"] == "bytes=120000-"
    assert path.read_bytes() == CONTENT
    assert site.sent == [120_000, 300_000]


@pytest.mark.parametrize("checksum", [None, sha256(OTHER)])
def test_a_file_that_changed_in_between_is_not_patched_together(
    site: Site, tmp_path: Path, checksum: str | None
) -> None:
    site.break_after = [120_000]
    path = tmp_path / "file.bin"
    with pytest.raises(DownloadError):
        fetch(site.url, path, attempts=1)
    site.content, site.etag = OTHER, '"two"'
    fetch(site.url, path, sha256=checksum, attempts=1)
    assert site.asked[1]["if-range"] == '"one"'
    assert path.read_bytes() == OTHER


def test_a_part_longer_than_the_file_is_dropped(site: Site, tmp_path: Path) -> None:
    site.break_after = [280_000]
    path = tmp_path / "file.bin"
    with pytest.raises(DownloadError):
        fetch(site.url, path, attempts=1)
    site.content = OTHER  # shorter, and the server forgot to change its ETag
    fetch(site.url, path, sha256=sha256(OTHER), pause=0)
    assert path.read_bytes() == OTHER


def test_a_part_of_another_address_is_not_continued(site: Site, tmp_path: Path) -> None:
    site.break_after = [120_000]
    with pytest.raises(DownloadError):
        fetch(site.url, tmp_path / "file.bin", attempts=1)
    fetch(site.url + "?other", tmp_path / "file.bin", sha256=sha256(CONTENT), attempts=1)
    assert "range" not in site.asked[1]


@pytest.mark.parametrize("note", [None, "", "[]", '{"url": 3}', '{"url": "URL", "version": null}'])
def test_a_part_without_a_readable_note_is_not_continued(site: Site, tmp_path: Path, note: str | None) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"something else")
    if note is not None:
        (tmp_path / "file.bin.part.json").write_text(note.replace("URL", site.url))
    path = fetch(site.url, tmp_path / "file.bin", attempts=1)
    assert path.read_bytes() == CONTENT
    assert leftovers(path) == []


def test_a_piece_from_the_wrong_place_is_not_appended(site: Site, tmp_path: Path) -> None:
    site.break_after, site.wrong_start = [120_000], -1
    path = fetch(site.url, tmp_path / "file.bin", pause=0)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("there", [False, True])
def test_a_wrong_file_is_removed_and_refused(site: Site, tmp_path: Path, there: bool) -> None:
    path = tmp_path / "file.bin"
    if there:
        path.write_bytes(b"what was here before")
    with pytest.raises(DownloadError) as caught:
        fetch(site.url, path, sha256=sha256(OTHER))
    for part in (site.url, sha256(OTHER), sha256(CONTENT)):
        assert part in str(caught.value)
    assert len(site.asked) == 1  # the same file would only come again
    assert leftovers(path) == []
    assert (path.read_bytes() == b"what was here before") if there else not path.exists()


def test_a_wrong_beginning_is_found_by_the_checksum_and_gone_afterwards(site: Site, tmp_path: Path) -> None:
    site.break_after = [120_000]
    path = tmp_path / "file.bin"
    with pytest.raises(DownloadError):
        fetch(site.url, path, attempts=1)
    part = tmp_path / "file.bin.part"
    part.write_bytes(b"\0" + part.read_bytes()[1:])
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch(site.url, path, sha256=sha256(CONTENT), attempts=1)
    fetch(site.url, path, sha256=sha256(CONTENT), attempts=1)
    assert path.read_bytes() == CONTENT


def test_a_passing_failure_of_the_server_is_outlived(site: Site, tmp_path: Path) -> None:
    site.statuses = [500, 503]
    assert fetch(site.url, tmp_path / "file.bin", pause=0).read_bytes() == CONTENT


def test_a_lasting_failure_of_the_server_is_named(site: Site, tmp_path: Path) -> None:
    site.statuses = [500] * 9
    with pytest.raises(DownloadError, match=r"3 attempts: the server answered 500"):
        fetch(site.url, tmp_path / "file.bin", attempts=3, pause=0)
    assert len(site.asked) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_not_asked_for_twice(site: Site, tmp_path: Path) -> None:
    site.statuses = [404] * 9
    with pytest.raises(DownloadError, match="answered 404") as caught:
        fetch(site.url, tmp_path / "file.bin", pause=0)
    assert site.url in str(caught.value)
    assert len(site.asked) == 1


def test_no_server_at_all(tmp_path: Path) -> None:
    gone = Site()
    url = gone.url
    gone.server_close()
    with pytest.raises(DownloadError, match="2 attempts: no connection"):
        fetch(url, tmp_path / "file.bin", attempts=2, pause=0)


def test_a_server_that_says_nothing_is_left_after_the_timeout(tmp_path: Path) -> None:
    silent = Site()  # accepts connections (the backlog does) but nobody answers
    try:
        with pytest.raises(DownloadError, match="no connection"):
            fetch(silent.url, tmp_path / "file.bin", attempts=1, timeout=0.2)
    finally:
        silent.server_close()


def test_without_an_announced_length_the_checksum_decides(site: Site, tmp_path: Path) -> None:
    site.announces_length = False
    path = tmp_path / "file.bin"
    assert fetch(site.url, path, sha256=sha256(CONTENT)).read_bytes() == CONTENT
    path.unlink()
    site.break_after = [120_000]
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch(site.url, path, sha256=sha256(CONTENT))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("announced", [True, False])
def test_more_than_expected_is_not_taken(site: Site, tmp_path: Path, announced: bool) -> None:
    site.announces_length = announced
    with pytest.raises(DownloadError, match="expected"):
        fetch(site.url, tmp_path / "file.bin", most_bytes=100_000)
    assert list(tmp_path.iterdir()) == []


def test_a_redirect_is_followed_on_the_web_alone(site: Site, tmp_path: Path) -> None:
    site.redirect = "/moved"
    assert fetch(site.url, tmp_path / "file.bin").read_bytes() == CONTENT
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for target in (secret.as_uri(), "ftp://127.0.0.1/file"):
        site.redirect = target
        with pytest.raises(DownloadError):
            fetch(site.url, tmp_path / "other.bin", attempts=1)
        assert not (tmp_path / "other.bin").exists()


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://example.org/file", "data:,text", "adult.data"])
def test_only_the_web(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="http and https"):
        fetch(url, tmp_path / "file.bin")


def test_the_note_tells_address_and_version(site: Site, tmp_path: Path) -> None:
    site.break_after = [10]
    with pytest.raises(DownloadError):
        fetch(site.url, tmp_path / "file.bin", attempts=1)
    note = json.loads((tmp_path / "file.bin.part.json").read_text())
    assert note == {"url": site.url, "version": '"one"'}


def test_no_bar_where_there_is_no_terminal(site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fetch(site.url, tmp_path / "quiet.bin")
    assert capfd.readouterr() == ("", "")
    fetch(site.url, tmp_path / "shown.bin", progress=True)
    assert "shown.bin" in capfd.readouterr().err
