"""One file from the web, whole and checked or not at all: resumed after a break, verified, then renamed into place."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from cortx.errors import CortxError, InputError
from cortx.progress import progress_bar
from cortx.version import __version__

CHUNK = 1 << 16
WORTH_RETRYING = (408, 425, 429, 500, 502, 503, 504)


class DownloadError(CortxError):
    """A file that could not be fetched, or is not the one that was asked for."""


class _Broken(Exception):
    """One attempt failed in a way that another attempt may mend."""


@dataclass(frozen=True)
class _Part:
    """The beginning of a file, and beside it which version of the file it is the beginning of."""

    file: Path
    note: Path

    @classmethod
    def of(cls, path: Path) -> _Part:
        return cls(path.with_name(path.name + ".part"), path.with_name(path.name + ".part.json"))

    def resumable(self, url: str) -> tuple[int, str] | None:
        """(bytes here, version), or None where nothing says what the bytes are the beginning of."""
        try:
            note = json.loads(self.note.read_text())
            size, version = self.file.stat().st_size, note["version"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return (size, version) if size and isinstance(version, str) and note.get("url") == url else None

    def begin(self, url: str, version: str | None) -> None:
        """Forgets what was here; the note comes first, so that no bytes lie beside the note of another version."""
        self.remove()
        temporary = self.note.with_name(self.note.name + ".new")
        temporary.write_text(json.dumps({"url": url, "version": version}))
        os.replace(temporary, self.note)

    def remove(self) -> None:
        self.file.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def fetch(
    url: str,
    path: str | Path,
    *,
    sha256: str | None = None,
    progress: bool | None = None,
    attempts: int = 4,
    timeout: float = 30.0,
    pause: float = 1.0,
    most_bytes: int = 1 << 30,
) -> Path:
    """Fetches `url` into `path`, which appears only when the file is complete and its SHA-256 is right.

    Bytes collect in ``<path>.part``. A broken connection is taken up again where it broke, now or in a later
    call, if the server still has the same version of the file (If-Range); otherwise from the beginning.
    ``progress=None`` shows a bar on a terminal only. `timeout` and `pause` are in seconds.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise InputError(f"only http and https addresses can be fetched, got {url!r}")
    if attempts < 1 or timeout <= 0 or pause < 0 or most_bytes < 1:
        raise InputError("fetch needs attempts >= 1, timeout > 0, pause >= 0 and most_bytes >= 1")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _Part.of(path)
    for attempt in range(attempts):
        try:
            _attempt(url, part, progress, timeout, most_bytes)
            break
        except _Broken as broken:
            if attempt + 1 == attempts:
                kept = part.file.stat().st_size if part.file.exists() else 0
                raise DownloadError(
                    f"{url} could not be fetched in {attempts} attempts: {broken}. {kept:,} bytes are kept in "
                    f"{part.file}; run the same command again to go on from there"
                ) from broken
            time.sleep(pause * 2**attempt)
    found = file_sha256(part.file)
    if sha256 is not None and found != sha256.lower():
        part.remove()
        raise DownloadError(
            f"{url} gave a file with SHA-256 {found}, expected {sha256.lower()}; it was removed. The file at that "
            "address is not the one asked for: it changed, or something on the way replaced it"
        )
    os.replace(part.file, path)
    part.note.unlink(missing_ok=True)
    return path


def file_sha256(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _attempt(url: str, part: _Part, progress: bool | None, timeout: float, most_bytes: int) -> None:
    """Leaves the whole file in `part`, or raises."""
    resume = part.resumable(url)
    headers = {"User-Agent": f"cortx/{__version__}", "Accept-Encoding": "identity"}
    if resume:
        headers |= {"Range": f"bytes={resume[0]}-", "If-Range": resume[1]}
    with _open(url, headers, part, timeout) as response:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if response.status == 206 and not (resume and span and int(span[1]) == resume[0]):
            part.remove()
            raise _Broken("the server sent another piece than the one asked for")
        if response.status == 206 and span and resume:
            start, length = resume[0], span[2]
        else:
            start, length = 0, response.headers.get("Content-Length", "")
            part.begin(url, _version(response.headers))
        total = int(length) if length.isdigit() else None
        if (total or 0) > most_bytes:
            part.remove()
            raise DownloadError(f"{url} announces {total:,} bytes; at most {most_bytes:,} were expected")
        _receive(url, response, part, start, total, progress, most_bytes)


def _open(url: str, headers: dict[str, str], part: _Part, timeout: float) -> Any:
    try:
        return _opener().open(Request(url, headers=headers), timeout=timeout)
    except HTTPError as error:
        with error:
            if error.code == 416:  # the part is longer than the file: it cannot be a beginning of it
                part.remove()
                raise _Broken("the file on the server is shorter than the part that was here") from error
            if error.code in WORTH_RETRYING:
                raise _Broken(f"the server answered {error.code} {error.reason}") from error
            raise DownloadError(f"{url} answered {error.code} {error.reason}; nothing was fetched") from error
    except (OSError, HTTPException) as error:  # URLError is an OSError
        reason = error.reason if isinstance(error, URLError) else error
        raise _Broken(f"no connection ({reason or type(error).__name__})") from error


def _receive(
    url: str, response: IO[bytes], part: _Part, start: int, total: int | None, progress: bool | None, most_bytes: int
) -> None:
    size = start
    with (
        open(part.file, "ab") as file,
        progress_bar(f"fetching {part.file.stem}", total or most_bytes, show=progress) as advance,
    ):
        advance(start, "")
        while True:
            try:
                chunk = response.read(CHUNK)
            except (OSError, HTTPException) as error:
                raise _Broken(f"the connection broke after {size:,} bytes ({error or type(error).__name__})") from error
            if not chunk:
                break
            file.write(chunk)
            size += len(chunk)
            advance(len(chunk), f"{size / 1e6:.1f} MB")
            if size > most_bytes:
                part.remove()
                raise DownloadError(f"{url} gave more than the {most_bytes:,} bytes expected; stopped")
    if total is not None and size < total:
        raise _Broken(f"the answer was truncated: {size:,} of {total:,} bytes")
    if total is not None and size > total:
        part.remove()
        raise _Broken(f"the answer was too long: {size:,} instead of {total:,} bytes")


def _opener() -> OpenerDirector:
    """Speaks http and https alone, so that a redirect cannot lead to a local file or to ftp."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler,
        HTTPHandler,
        HTTPSHandler,
        HTTPRedirectHandler,
        HTTPDefaultErrorHandler,
        HTTPErrorProcessor,
        UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _version(headers: HTTPMessage) -> str | None:
    """What If-Range may carry: a strong ETag, else the date of the last change."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")
