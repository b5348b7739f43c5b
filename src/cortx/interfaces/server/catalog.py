"""The served artifacts: loaded from the named folders alone, watched, and swapped whole between two batches."""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from cortx.errors import ArtifactError, FingerprintError, InputError
from cortx.explainer.generations import EXPLAINER, PORTABLE, is_portable
from cortx.explainer.reading import output_range
from cortx.images import Images, ImageSchema
from cortx.interfaces.server.answers import Arrays, Names
from cortx.interfaces.server.batcher import Batcher
from cortx.interfaces.server.http import HttpError
from cortx.interfaces.server.logs import Log
from cortx.interfaces.server.metrics import Metrics, ModelMetrics
from cortx.interfaces.server.portable_artifact import PortableArtifact
from cortx.interfaces.server.records import ImageReader, Reader, make_reader
from cortx.interfaces.server.settings import Settings
from cortx.interfaces.server.work import Runner, Work
from cortx.tables import Table

if TYPE_CHECKING:
    from cortx.interfaces.server.describe import Served

MAX_BATCH = 1_024
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, eq=False)
class Version:
    """One loaded artifact, ready to answer."""

    name: str
    version: str
    explainer: Served
    reader: Reader
    names: Names
    confidence: tuple[float, float] | None
    """The level of bounds unless a request says otherwise, and the highest; None without a calibration."""
    description: dict[str, Any]
    bounds: bool = True
    """Whether answers have bounds unless a request says otherwise."""
    auditor: Any = None

    @property
    def kind(self) -> str:
        return "image" if isinstance(self.reader, ImageReader) else "table"

    @property
    def has_model(self) -> bool:
        return self.explainer.game is not None

    @property
    def knows_outputs(self) -> bool:
        """Whether rows that come without outputs have them all the same: from the model, or from exact trees."""
        return self.has_model or self.explainer.is_exact

    @property
    def needs_outputs(self) -> bool:
        """Whether rows cannot be explained without outputs, not even by a guess."""
        return isinstance(self.explainer, PortableArtifact) and not self.explainer.is_exact

    @property
    def n_outputs(self) -> int:
        return len(self.names.outputs)

    @property
    def output_range(self) -> tuple[float, float]:
        """What outputs in a request may be, the least and the most."""
        return output_range(self.explainer.fitted.spec.output)

    @property
    def computes(self) -> bool:
        """Whether its model is a network in this process, which computes and waits for nothing."""
        from cortx.games.models import OnnxModel, TorchModel

        game = self.explainer.game
        return game is None or isinstance(game.model, (TorchModel, OnnxModel))

    def as_rows(self, rows: Any) -> Table | Images:
        """Joined rows in the library's own type."""
        if isinstance(rows, Table):
            return rows
        schema = self.explainer.fitted.spec.schema
        assert isinstance(schema, ImageSchema)
        return Images(rows.reshape(len(rows), -1), schema)

    def audit(self, arrays: Arrays, rows: Any, wanted: Sequence[bool]) -> None:
        """Offers answered rows, (rows, columns) encoded, to the audit, which takes its share of those it may."""
        if self.auditor is None or not arrays.known:
            return
        table = self.as_rows(rows)
        if table.schema is not self.explainer.fitted.spec.schema:
            return  # categories that the schema lacks have no code of their own
        for i in np.flatnonzero(wanted):
            self.auditor.offer(table.matrix[i], arrays.values[i], arrays.prediction[i])

    def audit_state(self) -> dict[str, Any] | None:
        return None if self.auditor is None else dict(self.auditor.state())

    def close(self) -> None:
        if self.auditor is not None:
            self.auditor.close()


@dataclass(eq=False)
class Entry:
    """One served name: its folder, its model, the version of now and the queue in front of it."""

    name: str
    folder: Path
    model: Any
    examples: Any
    current: Version
    metrics: ModelMetrics
    batcher: Batcher[Work]
    failure: str | None = None
    """Why the newest version in the folder is not served."""
    seen: Any = field(default=None, repr=False)
    pause: float = 0.0
    """Seconds until a version that failed is tried again; its reason may pass."""
    retry_at: float = math.inf


class Catalog:
    """All served artifacts by name."""

    def __init__(
        self,
        folders: Sequence[Path],
        models: Mapping[str, Any],
        settings: Settings,
        log: Log,
        *,
        examples: Mapping[str, Any] | None = None,
    ) -> None:
        self.settings, self.log = settings, log
        self.metrics = Metrics(self.audits)
        self._entries: dict[str, Entry] = {}
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self.generation = 0
        """Grows with every swap."""
        for folder in folders:
            name = served_name(folder)
            if name in self._entries:
                raise InputError(f"two artifacts are called {name!r}; rename one of the folders")
            # Where a folder leads is settled now; a relative name must not follow a later change of place.
            self._add(name, folder.absolute(), models.get(name), (examples or {}).get(name))
        self.fallback = next(iter(self._entries.values())) if len(self._entries) == 1 else None

    def _add(self, name: str, folder: Path, model: Any, examples: Any) -> None:
        metrics = ModelMetrics(self.metrics, name)
        seen = folder_state(folder)
        current = load_version(name, folder, model, examples, self.settings, self.log, metrics)
        runner = Runner(self._failed, metrics.evaluations.inc)

        def on_batch(rows: int) -> None:
            metrics.batch_rows.observe(rows)
            metrics.rows.inc(rows)

        batcher: Batcher[Work] = Batcher(
            runner,
            max_queue=self.settings.max_queue,
            max_batch=MAX_BATCH,
            name=name,
            on_batch=on_batch,
            may_inline=lambda work: work.computes,
            stall=self.settings.stall_seconds,
            on_stall=lambda seconds: self.log.write("model_stalled", model=name, seconds=round(seconds, 3)),
        )
        metrics.queue_rows.set_function(lambda: batcher.queued_rows)
        metrics.busy_seconds.set_function(lambda: batcher.busy_seconds)
        metrics.version(current.version)
        self._entries[name] = Entry(name, folder, model, examples, current, metrics, batcher, seen=seen)
        self.log.write("loaded", model=name, version=current.version, has_model=model is not None)

    def _failed(self, error: Exception, name: str) -> None:
        self.log.failure("model_failed", error, model=name)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> Entry:
        """The entry of a name; it is looked up among the served ones, never on the disk."""
        entry = self._entries.get(name)
        if entry is None:
            raise HttpError(404, "there is no model of this name; GET /models lists them")
        return entry

    def choose(self, name: Any) -> Entry:
        """The entry of a request that may leave the name out where there is one model alone."""
        if name is None:
            if self.fallback is None:
                raise HttpError(400, 'several models are served; name one in "model", GET /models lists them')
            return self.fallback
        if not isinstance(name, str):
            raise HttpError(400, '"model" must be text')
        return self.get(name)

    @property
    def stalled(self) -> bool:
        """Whether a model hangs."""
        return any(entry.batcher.stalled for entry in self)

    @property
    def dead(self) -> bool:
        """Whether a model has hung for so long that a new process should take over."""
        return any(entry.batcher.busy_seconds > self.settings.dead_seconds for entry in self)

    def audits(self) -> dict[str, dict[str, Any]]:
        states = {entry.name: entry.current.audit_state() for entry in self}
        return {name: state for name, state in states.items() if state is not None}

    # New versions ---------------------------------------------------------------------------------------------

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks at the folders in a thread of its own; new versions are put in their place on the loop."""
        self._watcher = threading.Thread(target=self._watch, args=(loop,), name="cortx-watch", daemon=True)
        self._watcher.start()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopping.wait(self.settings.watch_seconds):
            for entry in self:
                try:
                    self.look(entry, lambda entry, new: loop.call_soon_threadsafe(self.swap, entry, new))
                except RuntimeError:  # the loop is closed
                    return

    def look(self, entry: Entry, swap: Callable[[Entry, Version], Any]) -> None:
        """Loads what is new in a folder, aside; a version that cannot be served is told of, and the old one stays."""
        state = folder_state(entry.folder)
        is_new = state != entry.seen
        if not is_new and monotonic() < entry.retry_at:
            return
        entry.seen, entry.retry_at = state, math.inf
        try:
            if manifest_version(entry.folder) == entry.current.version:
                entry.failure = None
                return
            new = load_version(
                entry.name, entry.folder, entry.model, entry.examples, self.settings, self.log, entry.metrics
            )
        except Exception as error:
            kind = type(error).__name__
            entry.failure = f"a newer version is in its folder, but it cannot be served ({kind}); see the server's log"
            entry.pause = 1.0 if is_new else min(2 * entry.pause, LONGEST_PAUSE)
            entry.retry_at = monotonic() + entry.pause
            if is_new:
                entry.metrics.failed_versions.inc()
                # What a model says of the rows it was asked for may hold their values.
                spoke = isinstance(error, FingerprintError) and error.__cause__ is not None
                told = isinstance(error, ArtifactError) and not spoke
                self.log.write("version_refused", model=entry.name, error=kind, text=str(error) if told else None)
            return
        swap(entry, new)

    def swap(self, entry: Entry, new: Version) -> None:
        """What is accepted from now on is answered by the new version; what was accepted keeps the old one."""
        old = entry.current
        entry.current, entry.failure = new, None
        entry.metrics.version(new.version, old.version)
        self.generation += 1
        self.log.write("swapped", model=entry.name, version=new.version, before=old.version)
        old.close()

    def abort(self, error: Exception) -> None:
        for entry in self:
            entry.batcher.abort(error)

    def close(self) -> None:
        self._stopping.set()
        for entry in self:
            entry.batcher.close()
            entry.current.close()


def served_name(folder: Path) -> str:
    """A folder's name without ".cortx" or ".portable"."""
    name = folder.absolute().name.removesuffix(".cortx").removesuffix(".portable")
    if not name or name in (".", "..") or not name.isprintable():
        raise InputError(f"{folder} has no name to serve it by; name the artifact's folder, such as credit.cortx")
    return name


def folder_state(folder: Path) -> Any:
    """What changes when the files of a folder do."""
    try:
        files = sorted(folder.iterdir())
        stats = [(file.name, file.stat()) for file in files if not file.name.startswith(".")]
    except OSError:
        return None
    return tuple((name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def manifest_version(folder: Path) -> str:
    """A version's name: the start of its manifest's digest; the manifest holds the digest of the weights."""
    document = PORTABLE.document if is_portable(folder) else EXPLAINER.document
    try:
        return hashlib.sha256((folder / document).read_bytes()).hexdigest()[:12]
    except OSError as error:
        if not folder.exists():
            raise ArtifactError(f"there is no explainer at {folder}") from error
        raise ArtifactError(f"{folder} is not a cortx explainer: its {document} cannot be read ({error})") from error


def load_version(
    name: str,
    folder: Path,
    model: Any,
    examples: Any,
    settings: Settings,
    log: Log | None = None,
    metrics: ModelMetrics | None = None,
) -> Version:
    """Loads an artifact, checks the model against its fingerprint, and explains one row to be ready."""
    from cortx.interfaces.server.describe import describe, output_names

    version = manifest_version(folder)
    explainer = _load(folder, model, settings)
    if manifest_version(folder) != version:
        raise ArtifactError(f"{folder} changed while it was read")
    spec = explainer.fitted.spec
    reader = make_reader(explainer.seen)
    confidence = None
    if explainer.fitted.calibration is not None:
        highest = explainer.calibration.most_confident
        default = 0.9 if settings.confidence is None else settings.confidence
        confidence = (min(default, highest), highest)
    columns = dict.fromkeys(range(len(spec.players.names)))
    if not isinstance(reader, ImageReader):
        for player in columns:
            members = np.flatnonzero(spec.players.column_player == player)
            columns[player] = int(members[0]) if len(members) == 1 else None
    names = Names(
        players=tuple(spec.players.names),
        outputs=output_names(spec),
        columns=tuple(columns.values()),
        image=isinstance(reader, ImageReader),
    )
    made = Version(
        name=name,
        version=version,
        explainer=explainer,
        reader=reader,
        names=names,
        confidence=confidence,
        description=describe(name, version, explainer, reader, examples, settings),
        bounds=settings.confidence is not None,
    )
    _warm_up(made)
    return replace(made, auditor=_auditor(name, explainer, settings, log, metrics))


def _load(folder: Path, model: Any, settings: Settings) -> Served:
    if is_portable(folder):
        return PortableArtifact.load(folder, model, settings.threads)
    from cortx.explainer.artifact import load

    explainer = load(folder, model, device="cpu").set_params(threads=None)  # --threads counts, not what a fit was given
    module = None if explainer.game is None else getattr(explainer.game.model, "module", None)
    if module is not None:
        module.eval()  # batches and the audit ask from threads of their own, and must not switch modes under each other
    return explainer


def _warm_up(version: Version) -> None:
    """Answers one row, so that the first request does not pay for what is made once."""
    fitted = version.explainer.fitted
    if len(fitted.probe) == 0:
        return  # a portable explainer is ready once it is open
    probe = fitted.probe[:1]
    schema = fitted.spec.schema
    rows = probe.reshape(1, *schema.shape) if isinstance(schema, ImageSchema) else Table(probe, schema)
    if fitted.spec.own_reference is None or version.has_model:
        version.explainer.explain(
            rows, fitted.probe_outputs[:1], confidence=None if version.confidence is None else version.confidence[0]
        )


def _auditor(name: str, explainer: Served, settings: Settings, log: Log | None, metrics: ModelMetrics | None) -> Any:
    if settings.audit <= 0:
        return None
    if isinstance(explainer, PortableArtifact):
        raise InputError(f"{name!r} is a portable explainer, which has no model to explain again with; serve the "
                         "explainer that it was exported from, or leave --audit out")  # fmt: skip
    if explainer.game is None:
        raise InputError("--audit explains again with the model; give --model too")
    if explainer.is_exact:
        raise InputError(f"{name!r} is an explainer of trees, which is exact; serve it without --audit")
    from cortx.interfaces.server.audit import Auditor

    confidence = 0.9 if settings.confidence is None else settings.confidence
    return Auditor(
        explainer, share=settings.audit, cpu=settings.audit_cpu, confidence=confidence,
        on_evaluations=None if metrics is None else metrics.evaluations.inc,
        on_alarm=None if log is None else lambda text: log.write("audit_alarm", model=name, text=text),
    )  # fmt: skip
