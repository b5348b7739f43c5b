"""The paper's data sets: where they come from, how they are found and fetched, and the form the tables are loaded in.

`adult.data` and the archive of CIFAR-10 are checked by the SHA-256 of the public file. Of the public zip of Bankruptcy
no checksum is known here, and its copies differ in how many digits they write; so its content is checked instead
(`bankruptcy.read_bankruptcy`).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.paper.download import DownloadError, fetch, file_sha256

VARIABLE = "CORTX_DATA"
SPLIT_SEED = 2021
"""The seed of the authors' Census split, found by trying: it gives exactly the rows they published."""


@dataclass(frozen=True)
class Source:
    """One data set: a file at a public address, alone or as a member of a zip; or the files of a tar.gz."""

    name: str
    title: str
    path: str
    """Where the file, or the folder of the files, lies in the data folder."""
    url: str
    sha256: str | None
    """Of what the address gives; None where it is not known."""
    member: str | None
    """The file's name in the zip."""
    most_bytes: int
    """More than the file can have: the limit for what is fetched or unpacked."""
    citation: str
    licence: str
    files: tuple[tuple[str, str], ...] = ()
    """Names in the tar.gz, each with the MD5 by which public readers know the file."""


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
        Source(
            name="cifar10",
            title="CIFAR-10",
            path="cifar-10-batches-py",
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            member=None,
            most_bytes=256 << 20,
            citation='A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", technical report, '
            "University of Toronto, 2009",
            licence="none stated by the authors",
            files=(
                ("cifar-10-batches-py/data_batch_1", "c99cafc152244af753f735de768cd75f"),
                ("cifar-10-batches-py/data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
                ("cifar-10-batches-py/data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
                ("cifar-10-batches-py/data_batch_4", "634d18415352ddfa80567beed471001a"),
                ("cifar-10-batches-py/data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
                ("cifar-10-batches-py/test_batch", "40351d587109b95175f43aff81a1287e"),
                ("cifar-10-batches-py/batches.meta", "5ff9c542aee3614f3951f8cda6e48888"),
            ),
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
    """The file (or folder of files) of a data set, in `folder` or the default folder.

    Where it is not, one error says all there is to do.
    """
    wanted = source(name)
    looked = Path(folder) if folder is not None else default_folder()
    path = looked / wanted.path
    if not (path.is_dir() if wanted.files else path.is_file()):
        named = os.environ.get(VARIABLE)
        raise InputError(
            f"the data set {wanted.title} is not in the folder {looked}, as {wanted.path}; fetch it with "
            f"`cortx paper download {name}`, or set {VARIABLE} (now {named or 'not set'}) to a folder that holds it"
        )
    return path


def download(
    name: str, folder: str | Path | None = None, *, url: str | None = None, progress: bool | None = None
) -> Path:
    """Fetches one data set into `folder` (or the default folder), checks it and returns its file or folder.

    What is there and right is left alone; another file is replaced, but only by the right one. `url` is another
    address of the same file, for a mirror.
    """
    wanted = source(name)
    path = (Path(folder) if folder is not None else default_folder()) / wanted.path
    if path.exists() and _complaint(wanted, path) is None:
        return path
    url = url or wanted.url
    if wanted.member is None and not wanted.files:
        return fetch(url, path, sha256=wanted.sha256, progress=progress, most_bytes=wanted.most_bytes)
    archive = path.with_suffix(".tar.gz" if wanted.files else ".zip")
    fetch(url, archive, sha256=wanted.sha256, progress=progress, most_bytes=wanted.most_bytes)
    unpacked = path.with_name(path.name + ".new")
    try:
        _remove(unpacked)
        _unpack(wanted, archive, unpacked)
        if complaint := _complaint(wanted, unpacked):
            what = f"another {wanted.member}" if wanted.member else "other files"
            raise DownloadError(f"{url} holds {what} than {wanted.title}: {complaint}; it was removed")
        _move(unpacked, path)
    finally:
        archive.unlink(missing_ok=True)
        _remove(unpacked)
    return path


def _complaint(wanted: Source, path: Path) -> str | None:
    """What is wrong with the file or the folder of a data set, or None."""
    if wanted.files:
        for name, expected in wanted.files:
            if not (file := path / PurePosixPath(name).name).is_file():
                return f"{file.name} is not there"
            if (found := _md5(file)) != expected:
                return f"the MD5 of {file.name} is {found}, expected {expected}"
        return None
    if not path.is_file():
        return "it is no file"
    if wanted.member is None:
        found = file_sha256(path)
        return None if found == wanted.sha256 else f"its SHA-256 is {found}, expected {wanted.sha256}"
    from cortx.paper.bankruptcy import parse  # lazy: that module finds its file by this one

    try:
        parse(path.read_text(encoding="utf-8-sig", errors="replace"))
    except InputError as error:
        return str(error)
    return None


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _unpack(wanted: Source, archive: Path, path: Path) -> None:
    """What is wanted of an archive, by its exact names, into places that we name, and no more than expected."""
    kind = "tar.gz" if wanted.files else "zip"
    try:
        if wanted.files:
            _unpack_tar(wanted, archive, path)
        elif wanted.member is not None:
            with zipfile.ZipFile(archive) as opened, opened.open(wanted.member) as packed:
                _write(packed, path, wanted.most_bytes, f"{wanted.member} in {archive}")
    except KeyError as error:
        raise DownloadError(f"{archive} has no member {wanted.member}; it was removed") from error
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        gzip.BadGzipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise DownloadError(
            f"{archive} is not a whole {kind} file ({error}); it was removed, run the command again"
        ) from error


def _unpack_tar(wanted: Source, archive: Path, folder: Path) -> None:
    """The names in the archive are compared and never become paths; links are not followed."""
    folder.mkdir()
    missing = {name for name, _ in wanted.files}
    left = wanted.most_bytes
    with tarfile.open(archive, "r:gz") as opened:
        for member in opened:
            if not 0 <= member.size <= left:  # also of what is only passed over: it is unpacked on the way
                raise DownloadError(f"{archive} unpacks to more than {wanted.most_bytes:,} bytes; refused")
            left -= member.size
            if member.name in missing and member.isreg() and (packed := opened.extractfile(member)):
                missing.remove(member.name)
                with packed:
                    _write(packed, folder / PurePosixPath(member.name).name, member.size, f"{member.name} in {archive}")
            if not missing:
                return
    raise DownloadError(f"{archive} has no file {', '.join(sorted(missing))}; it was removed")


def _write(packed: IO[bytes], path: Path, most_bytes: int, what: str) -> None:
    size = 0
    with open(path, "wb") as file:
        while chunk := packed.read(1 << 16):  # reading to the end checks the CRC of a zip
            size += len(chunk)
            if size > most_bytes:
                raise DownloadError(f"{what} unpacks to more than {most_bytes:,} bytes; refused")
            file.write(chunk)


def _move(new: Path, path: Path) -> None:
    """Into place at once; into a folder that is there already file by file, so that other files in it stay."""
    if new.is_dir() and path.is_dir():
        for file in new.iterdir():
            os.replace(file, path / file.name)
    else:
        os.replace(new, path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
