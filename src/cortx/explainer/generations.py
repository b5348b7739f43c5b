"""A folder of two files: a JSON document, and the large file that it names. Replaced as a whole or not at all.

Every save writes its large file under a name of its own; replacing the document, one rename, is what makes it count.
The large file of the save before stays, for readers that have read the older document. Several writers may save at
once: the last document counts, and the file that it names is there.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cortx.errors import ArtifactError, StorageError
from cortx.storage import (
    MOST_BYTES,
    MOST_JSON,
    SECONDS_UNFINISHED,
    TEMPORARY,
    is_old,
    read_whole,
    remove_unfinished,
    replace_whole,
    sync_names,
    temporary_beside,
    write_whole,
)

MOST_READS = 100
"""How often a reader starts again because the folder was replaced while it read."""


@dataclass(frozen=True)
class Generations:
    """How the two files of one kind of folder are called."""

    document: str
    """The name of the JSON file."""
    format: str
    """What it says under "format"."""
    entry: str
    """Where it names the large file: {"file", "sha256", "previous"}."""
    stem: str
    ending: str
    """Large files are called stem-...ending."""
    what: str
    """What such a folder is, in messages: "a cortx explainer"."""
    fixed: str | None = None
    """The name of the large file in a new folder, and of a copy of the newest one in a folder that was replaced: other
    programs may know it by this name alone."""
    finite: bool = False
    """Whether the document may hold finite numbers alone, as other readers of JSON want it."""

    def is_ours(self, name: Any) -> bool:
        """Whether a large file is called so; a document from elsewhere must not name any other file."""
        if not isinstance(name, str):
            return False
        return name == self.fixed or bool(
            re.fullmatch(rf"{re.escape(self.stem)}-[\w.-]+{re.escape(self.ending)}", name, re.ASCII)
        )

    # Writing ------------------------------------------------------------------------------------------------------

    def check_target(self, target: Path) -> None:
        """Refuses to write over anything but such a folder, also one that a killed save has left."""
        if not target.exists():
            self._check_place(target)
            return
        if (target / self.document).is_file():
            ours = self._format(target) in (None, self.format)
        else:
            ours = target.is_dir() and all(
                item.name.startswith(TEMPORARY) or self.is_ours(item.name) for item in target.iterdir()
            )
        if not ours:
            raise ArtifactError(f"{target} exists and is not {self.what}; choose another folder, or remove it")

    def _check_place(self, target: Path) -> None:
        """Refuses a place where no folder can be made."""
        there = next((parent for parent in target.absolute().parents if parent.exists()), Path("/"))
        try:
            os.rmdir(tempfile.mkdtemp(prefix=TEMPORARY, dir=there))
        except OSError as error:
            raise ArtifactError(
                f"{target} cannot be made: nothing can be written in {there} ({error.strerror or error}); choose "
                "another folder"
            ) from error

    def write(self, target: Path, content: bytes, facts: dict[str, Any]) -> Path:
        """Writes the large file and the document of `facts`, to which the entry of the large file is added."""
        self.check_target(target)
        digest = hashlib.sha256(content).hexdigest()
        # The same content gets a new name too: another writer may be about to remove the old one.
        name = f"{self.stem}-{digest[:12]}-{secrets.token_hex(4)}{self.ending}"
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() or not self._moved_in(target, self.fixed or name, digest, content, facts):
            self._replaced(target, name, digest, content, facts)
            if self.fixed is not None:
                replace_whole(target / self.fixed, lambda other: _same_file(target / name, other, content))
        return target

    def _document(self, name: str, digest: str, previous: str | None, facts: dict[str, Any]) -> bytes:
        whole = {"format": self.format, **facts, self.entry: {"file": name, "sha256": digest, "previous": previous}}
        return (json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=not self.finite) + "\n").encode()

    def _moved_in(self, target: Path, name: str, digest: str, content: bytes, facts: dict[str, Any]) -> bool:
        """A new folder is written beside its place and renamed in; False if somebody else was faster."""
        for left in target.parent.glob(f"{TEMPORARY}{'[0-9a-f]' * 12}-{glob.escape(target.name)}"):
            if is_old(left):
                shutil.rmtree(left, ignore_errors=True)
        temporary = temporary_beside(target)
        temporary.mkdir()
        try:
            write_whole(temporary / name, content)
            write_whole(temporary / self.document, self._document(name, digest, None, facts))
            os.rename(temporary, target)
            sync_names(target.parent)
        except StorageError:
            raise
        except OSError:
            if not target.exists():
                raise
            return False
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return True

    def _replaced(self, target: Path, name: str, digest: str, content: bytes, facts: dict[str, Any]) -> None:
        """Of an existing folder the document is replaced last; then what nobody can need any more is removed."""
        before, older = (None if file == self.fixed else file for file in self._named(target))
        write_whole(target / name, content)
        try:
            write_whole(target / self.document, self._document(name, digest, before, facts))
        except BaseException:
            if self._named(target)[0] != name:  # an interrupt may come just after the rename
                (target / name).unlink(missing_ok=True)
            raise
        # Another writer may have written its large file, and not yet its document. So only files go that were replaced
        # twice, and those that nobody names and that are too old for that.
        gone = [target / older] if older not in (None, before) else []
        gone += [path for path in target.iterdir() if self._is_lost(path, {name, before, self.fixed})]
        for path in gone:
            path.unlink(missing_ok=True)
        remove_unfinished(target)

    def _named(self, target: Path) -> tuple[str | None, str | None]:
        """The large file that the document names now, and the one before; None for none."""
        try:
            entry = json.loads(read_whole(target / self.document, MOST_JSON))[self.entry]
            before, older = entry["file"], entry.get("previous")
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None, None  # what cannot be read is replaced
        return (before if self.is_ours(before) else None), (older if self.is_ours(older) else None)

    def _format(self, target: Path) -> Any:
        """What the document says it is; None if it is damaged."""
        try:
            return self.read_document(target).get("format", "")
        except ArtifactError:
            return None

    def _is_lost(self, path: Path, named: set[str | None]) -> bool:
        if path.name in named or not self.is_ours(path.name) or not is_old(path):
            return False
        try:  # a copy may have an old time of writing, but not of its entry in the folder
            return time.time() - path.stat().st_ctime > SECONDS_UNFINISHED
        except OSError:
            return False

    # Reading ------------------------------------------------------------------------------------------------------

    def read_document(self, folder: Path) -> dict[str, Any]:
        """The document of a folder; `ArtifactError` for anything else."""
        path = folder / self.document
        if not folder.exists():
            raise ArtifactError(f"there is no {self.what.removeprefix('a ').removeprefix('cortx ')} at {folder}")
        if folder.is_file():
            raise ArtifactError(f"{folder} is a file; {self.what} is a folder: give the one that was written")
        if not path.is_file():
            raise ArtifactError(f"{folder} is not {self.what}: it has no {self.document}{_other_kind(folder)}")
        try:
            document = json.loads(read_whole(path, MOST_JSON).decode())
        except (ValueError, OSError, RecursionError) as error:
            raise ArtifactError(f"{path} is damaged ({error}); copy the folder, or write it again") from error
        return document if isinstance(document, dict) else {}

    def names(self, folder: Path) -> tuple[str, str]:
        """The two files that count: the document, and the large file that it names."""
        return self.document, str(self.read_document(folder)[self.entry]["file"])

    def read_content(self, folder: Path, document: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """The large file that `document` names, read once: these bytes have the digest that is told.

        Comes with the document that it belongs to: a newer one, if the folder was replaced meanwhile.
        """
        for _ in range(MOST_READS):
            wrong = self._wrong(folder, document)
            if isinstance(wrong, bytes):
                return document, wrong
            newer = self.read_document(folder)
            if newer.get(self.entry) == document.get(self.entry):
                raise ArtifactError(wrong)
            document = newer
        raise ArtifactError(f"{folder} is replaced all the time; read it when nobody writes to it")

    def _wrong(self, folder: Path, document: dict[str, Any]) -> bytes | str:
        """The large file's bytes, or what is wrong with it."""
        entry = document.get(self.entry)
        if not isinstance(entry, dict) or not self.is_ours(entry.get("file")):
            return f"{folder / self.document} is damaged: it does not name its {self.entry}; write the folder again"
        path = folder / str(entry["file"])
        try:
            content = read_whole(path, MOST_BYTES)
        except FileNotFoundError:
            return f"{folder} lacks {path.name}; copy the whole folder"
        except OSError as error:
            return f"{path} cannot be read ({error}); let this user read it, or copy the folder again"
        if hashlib.sha256(content).hexdigest() != entry.get("sha256"):
            return (
                f"{path} is damaged: its checksum is not the one in {self.document}; copy the folder, or write it again"
            )
        return content


def _same_file(path: Path, other: Path, content: bytes) -> None:
    """A second name for a file with this content, or a copy where the file system has no second names."""
    try:
        os.link(path, other)
    except OSError:
        other.write_bytes(content)


EXPLAINER = Generations("manifest.json", "cortx-explainer", "weights", "weights", ".safetensors", "a cortx explainer")
PORTABLE = Generations(
    "explainer.json", "cortx-portable", "graph", "explainer", ".onnx", "a portable explainer", "explainer.onnx",
    finite=True,
)  # fmt: skip


def is_portable(folder: Path) -> bool:
    """Whether a folder holds a portable explainer, and not a saved one."""
    return (folder / PORTABLE.document).is_file() and not (folder / EXPLAINER.document).exists()


def _other_kind(folder: Path) -> str:
    """What to do with a portable explainer where a saved one is wanted; nothing for any other folder."""
    if not is_portable(folder):
        return ""
    return (
        "; it is a portable explainer, for cortx.portable.load and cortx serve: give the one that it was exported from"
    )
