"""The paper's tabular data sets: where they come from, how they are found and fetched, and the form they are loaded in.

`adult.data` is checked by the SHA-256 of the public file. Of the public zip of Bankruptcy no checksum is known here,
and its copies differ in how many digits they write; so its content is checked instead (`bankruptcy.read_bankruptcy`).
"""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.paper.download import DownloadError, fetch, file_sha256

VARIABLE = "CORTX_DATA"
SPLIT_SEED = 2021
"""The seed of the authors' Census split, found by trying: it gives exactly the rows they published."""


@dataclass(frozen=True)
class Source:
    """One data set: a file at a public address, alone or as a member of a zip."""

    name: str
    title: str
    path: str
    """Where the file lies in the data folder."""
    url: str
    sha256: str | None
    """Of what the address gives; None where it is not known."""
    member: str | None
    """The file's name in the zip."""
    most_bytes: int
    """More than the file can have: the limit for what is fetched or unpacked."""
    citation: str
    licence: str


SOURCES = {
    source.name: source
    for source in (
        Source(
            name="census",
            title="Adult (Census Income)",
            path="adult/adult.data",
            url="https://archive.ics.uci.edu/ml/machine-learning-databases/adult/adult.data",
            sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            member=None,
            most_bytes=16 << 20,
            citation='B. Becker and R. Kohavi, "Adult", UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20',
            licence="CC BY 4.0",
        ),
        Source(
            name="bankruptcy",
            title="Taiwanese Bankruptcy Prediction",
            path="bankruptcy/data.csv",
            url="https://archive.ics.uci.edu/static/public/572/taiwanese+bankruptcy+prediction.zip",
            sha256=None,
            member="data.csv",
            most_bytes=64 << 20,
            citation='"Taiwanese Bankruptcy Prediction", UCI Machine Learning Repository, 2020, doi:10.24432/C5004D; '
            'D. Liang, C.-C. Lu, C.-F. Tsai and G.-A. Shih, "Financial ratios and corporate governance indicators in '
            'bankruptcy prediction: A comprehensive study", European Journal of Operational Research 252(2), 2016',
            licence="CC BY 4.0",
        ),
    )
}


@dataclass(frozen=True, eq=False)
class Table:
    """A data set ready to learn from: float32 rows (rows, features), labels 0 or 1 (rows,), split in two."""

    name: str
    x_train: npt.NDArray[np.float32]
    x_test: npt.NDArray[np.float32]
    y_train: npt.NDArray[np.int8]
    y_test: npt.NDArray[np.int8]
    feature_names: tuple[str, ...]
    categorical: tuple[int, ...] = ()
    """Positions of the columns that hold codes of categories."""


def split_rows(rows: int, seed: int = SPLIT_SEED) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Row numbers of the training and the test part: of a random order, the first fifth (rounded up) tests.

    The published split was drawn by NumPy's legacy generator, so this is the one place that needs it (an own
    instance: the global one is neither read nor set).
    """
    order = np.random.RandomState(seed).permutation(rows)
    tests = -(-rows // 5)
    return order[tests:], order[:tests]


def source(name: str) -> Source:
    if name not in SOURCES:
        raise InputError(f"there is no data set {name!r}; there are: {', '.join(sorted(SOURCES))}")
    return SOURCES[name]


def default_folder() -> Path:
    """The folder named by CORTX_DATA; where that is not set, the user's cache (XDG_CACHE_HOME or ~/.cache)."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cortx"


def find(name: str, folder: str | Path | None = None) -> Path:
    """The file of a data set, in `folder` or the default folder; one error says all there is to do where it is not."""
    wanted = source(name)
    looked = Path(folder) if folder is not None else default_folder()
    if not (looked / wanted.path).is_file():
        named = os.environ.get(VARIABLE)
        raise InputError(
            f"the data set {wanted.title} is not in the folder {looked}, as {wanted.path}; fetch it with "
            f"`cortx paper download {name}`, or set {VARIABLE} (now {named or 'not set'}) to a folder that holds it"
        )
    return looked / wanted.path


def download(
    name: str, folder: str | Path | None = None, *, url: str | None = None, progress: bool | None = None
) -> Path:
    """Fetches one data set into `folder` (or the default folder), checks it and returns its file.

    A file that is there and right is left alone; another one is replaced, but only by the right one. `url` is
    another address of the same file, for a mirror.
    """
    wanted = source(name)
    path = (Path(folder) if folder is not None else default_folder()) / wanted.path
    if path.is_file() and _complaint(wanted, path) is None:
        return path
    url = url or wanted.url
    if wanted.member is None:
        return fetch(url, path, sha256=wanted.sha256, progress=progress, most_bytes=wanted.most_bytes)
    archive = path.with_suffix(".zip")
    fetch(url, archive, sha256=wanted.sha256, progress=progress, most_bytes=wanted.most_bytes)
    unpacked = path.with_name(path.name + ".new")
    try:
        _unpack(archive, wanted.member, unpacked, wanted.most_bytes)
        if complaint := _complaint(wanted, unpacked):
            raise DownloadError(f"{url} holds another {wanted.member} than {wanted.title}: {complaint}; it was removed")
        os.replace(unpacked, path)
    finally:
        archive.unlink(missing_ok=True)
        unpacked.unlink(missing_ok=True)
    return path


def _complaint(wanted: Source, path: Path) -> str | None:
    """What is wrong with a file of a data set, or None."""
    if wanted.member is None:
        found = file_sha256(path)
        return None if found == wanted.sha256 else f"its SHA-256 is {found}, expected {wanted.sha256}"
    from cortx.paper.bankruptcy import parse  # lazy: that module finds its file by this one

    try:
        parse(path.read_text(encoding="utf-8-sig", errors="replace"))
    except InputError as error:
        return str(error)
    return None


def _unpack(archive: Path, member: str, path: Path, most_bytes: int) -> None:
    """One member of a zip, by its exact name, into a file that we name, and no more of it than expected."""
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(member) as packed, open(path, "wb") as file:
            size = 0
            while chunk := packed.read(1 << 16):  # reading to the end checks the CRC
                size += len(chunk)
                if size > most_bytes:
                    raise DownloadError(f"{member} in {archive} unpacks to more than {most_bytes:,} bytes; refused")
                file.write(chunk)
    except KeyError as error:
        raise DownloadError(f"{archive} has no member {member}; it was removed") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DownloadError(
            f"{archive} is not a whole zip file ({error}); it was removed, run the command again"
        ) from error
