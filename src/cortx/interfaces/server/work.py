"""What a batch does: ask the model once for all rows that lack its output, explain them, and write the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import CortxError, ModelError
from cortx.explainer.exact import OtherOutputs
from cortx.interfaces.server.answers import Arrays, Wish, explanations
from cortx.interfaces.server.http import HttpError
from cortx.interfaces.server.records import Rows

if TYPE_CHECKING:
    from cortx.interfaces.server.catalog import Version

Array = npt.NDArray[np.float64]
Kind = Literal["explanations", "arrays", "predictions"]
USUAL = Wish()
LATE = HttpError(504, "the deadline passed before this request was answered", (), "deadline")


@dataclass(slots=True, eq=False)
class Work:
    """One request, read and checked against the version that answers it."""

    version: Version
    kind: Kind
    rows: Rows
    outputs: Array | None = None
    confidence: float | None = None
    wish: Wish = USUAL
    until: float = float("inf")
    """When nobody waits for it any more, by `monotonic`."""
    audited: bool = True
    """Whether the audit may choose its rows."""

    @property
    def computes(self) -> bool:
        """Whether answering it runs nobody's code but ours, torch's and onnxruntime's: it cannot wait for anything."""
        return self.outputs is not None or self.version.computes


class Runner:
    """Works on batches of one model; `failed` is told of exceptions, `evaluated` of evaluations of the model."""

    def __init__(self, failed: Callable[[Exception, str], None], evaluated: Callable[[int], None]) -> None:
        self._failed, self._evaluated = failed, evaluated

    def __call__(self, batch: Sequence[Work]) -> list[Any]:
        """An answer or an exception for each."""
        versions = {id(work.version): work.version for work in batch}
        if len(versions) == 1:
            return self._answers(next(iter(versions.values())), batch)
        results: list[Any] = [None] * len(batch)
        for key, version in versions.items():
            places = [i for i, work in enumerate(batch) if id(work.version) == key]
            for i, answer in zip(places, self._answers(version, [batch[i] for i in places]), strict=True):
                results[i] = answer
        return results

    def _answers(self, version: Version, batch: Sequence[Work]) -> list[Any]:
        try:
            return self._together(version, batch)
        except Exception as error:
            if len(batch) == 1:
                return [self._own_error(error, batch[0])]
        # Somebody's rows cannot be worked on: halves are tried until only those fail. A model that fails late, after a
        # time-out of its own, must not be asked for those who have gone.
        now = monotonic()
        waiting = [i for i, work in enumerate(batch) if work.until > now]
        results: list[Any] = [LATE] * len(batch)
        for half in (waiting[: len(waiting) // 2], waiting[len(waiting) // 2 :]):
            if half:
                for i, result in zip(half, self._answers(version, [batch[i] for i in half]), strict=True):
                    results[i] = result
        return results

    def _own_error(self, error: Exception, work: Work) -> HttpError:
        if isinstance(error, OtherOutputs) and work.outputs is not None:
            return HttpError(400, "'outputs' are not those of this artifact's trees; leave them out")
        self._failed(error, work.version.name)
        kind = type(error.__cause__ or error).__name__
        if isinstance(error, CortxError):
            return HttpError(500, f"the model or its explainer failed on these rows ({kind})", (), "model")
        return HttpError(500, f"these rows could not be explained ({kind})", (), "internal")

    def _together(self, version: Version, batch: Sequence[Work]) -> list[Any]:
        explainer, reader = version.explainer, version.reader
        table = reader.join([work.rows for work in batch])
        ends = np.cumsum([len(work.rows) for work in batch]).tolist()
        places = [slice(end - len(work.rows), end) for work, end in zip(batch, ends, strict=True)]
        outputs = self._outputs(version, table, batch, places)
        results: list[Any] = [None] * len(batch)
        groups: dict[tuple[bool, float | None], list[int]] = {}
        for i, work in enumerate(batch):
            if work.kind == "predictions":
                assert outputs[i] is not None
                results[i] = outputs[i]
            else:
                groups.setdefault((outputs[i] is not None, work.confidence), []).append(i)
        for (known, confidence), members in groups.items():
            everything = len(members) == len(batch)
            rows = table if everything else reader.join([batch[i].rows for i in members])
            given = np.concatenate([outputs[i] for i in members]) if known else None
            explanation = explainer.explain(rows, given, confidence=confidence)
            if version.explainer.game is not None:
                self._evaluated(explanation.evaluations)
            arrays = Arrays.of(explanation)
            if not np.isfinite(arrays.values).all():
                raise ModelError("the explanation is not finite")
            version.audit(arrays, rows, [batch[i].audited for i in members for _ in range(len(batch[i].rows))])
            self._write(version, arrays, [batch[i] for i in members], members, results)
        return results

    def _outputs(
        self, version: Version, table: Any, batch: Sequence[Work], places: Sequence[slice]
    ) -> list[Array | None]:
        """The model's outputs for each request, (rows, outputs): as they came, or asked for all at once."""
        game = version.explainer.game
        asked = [i for i, work in enumerate(batch) if work.outputs is None]
        found: list[Array | None] = [work.outputs for work in batch]
        if game is None or not asked:
            return found
        rows = table if len(asked) == len(batch) else version.reader.join([batch[i].rows for i in asked])
        answers = game.outputs_of(version.as_rows(rows))
        self._evaluated(len(answers))
        start = 0
        for i in asked:
            size = places[i].stop - places[i].start
            found[i] = answers[start : start + size]
            start += size
        return found

    def _write(
        self, version: Version, arrays: Arrays, works: Sequence[Work], members: list[int], results: list[Any]
    ) -> None:
        starts, start = [], 0
        for work in works:
            starts.append(start)
            start += len(work.rows)
        friendly = [k for k, work in enumerate(works) if work.kind == "explanations"]
        if friendly:
            kept = arrays
            if len(friendly) < len(works):
                rows = np.concatenate([np.arange(starts[k], starts[k] + len(works[k].rows)) for k in friendly])
                kept = arrays.take(rows)
            cells: list[Any] = []
            wishes: list[Wish] = []
            for k in friendly:
                own = works[k].rows
                cells += [None] * len(own) if own.cells is None else own.cells
                wishes += [works[k].wish] * len(own)
            items = explanations(version.names, kept, cells, wishes)
            start = 0
            for k in friendly:
                results[members[k]] = items[start : start + len(works[k].rows)]
                start += len(works[k].rows)
        for k, work in enumerate(works):
            if work.kind == "arrays":
                results[members[k]] = arrays.take(slice(starts[k], starts[k] + len(work.rows)))
