"""Explaining where there is neither torch nor the model: a folder of `CoRTX.to_onnx` in onnxruntime.

explainer = cortx.portable.load("credit.portable")
explanation = explainer.explain(rows, outputs)
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import ArtifactError, InputError, MissingDependencyError
from cortx.explainer.portable_folder import Facts, read_folder
from cortx.explainer.possible import largest_value, possible_bounds, possible_values
from cortx.explainer.reading import given_outputs
from cortx.explainer.session import Session
from cortx.explanation import Explanation
from cortx.images import Images, ImageSchema
from cortx.tables import Schema, Table, plain

__all__ = ["Portable", "load"]

Array = npt.NDArray[np.float64]
ONE_REFERENCE = "empty= is for images that are their own references; this explainer has one for all"


def load(folder: str | Path, *, threads: int = 0) -> Portable:
    """Reads what `CoRTX.to_onnx` wrote; `threads` is what one call may use, by default one for each available CPU.

    Raises `ArtifactError` for a missing, foreign, damaged or newer folder.
    """
    graph, facts = read_folder(folder)
    try:
        session = Session(graph, images=isinstance(facts.seen.schema, ImageSchema), threads=threads)
    except MissingDependencyError:
        raise
    except InputError as error:
        raise ArtifactError(f"the graph in {folder} is not opened: {error}") from error
    except Exception as error:
        raise ArtifactError(
            f"onnxruntime cannot open the graph in {folder} ({error}); update onnxruntime, or export again"
        ) from error
    _check_shapes(session, facts, folder)
    return Portable(session, facts)


def _check_shapes(session: Session, facts: Facts, folder: str | Path) -> None:
    """The graph must have the sizes that the facts tell: what it says is taken as large as that."""
    columns, players, outputs = len(facts.columns), len(facts.players), len(facts.base_values)
    found = session.shapes
    by_row, by_value = (outputs,), (players, outputs)
    expected: dict[str, tuple[int, ...]] = {
        "rows": (columns,), "outputs": by_row, "values": by_value, "lower_bounds": by_value, "upper_bounds": by_value,
        "error_bound": by_row, "empty": by_row, "references": (columns,),
    }  # fmt: skip
    for name, shape in expected.items():
        got = found.get(name, ())
        if got[1:] != shape and (got or name in ("rows", "outputs", "values")):
            raise ArtifactError(
                f"the graph in {folder} does not fit its facts: {name!r} has shape {list(got)}, expected "
                f"{['n', *shape]}; copy or export the folder again"
            )


class Portable:
    """A fitted explainer without torch: the same numbers, checks and errors as `CoRTX.explain`."""

    def __init__(self, session: Session, facts: Facts) -> None:
        self._session = session
        self.facts = facts
        self._told_of_strange = False

    @property
    def schema(self) -> Schema | ImageSchema:
        """The columns of the table, or the axes of images."""
        return self.facts.seen.schema

    @property
    def players(self) -> tuple[str, ...]:
        return self.facts.players

    @property
    def output_names(self) -> tuple[str, ...] | None:
        return self.facts.output_names

    @property
    def base_values(self) -> Array:
        """v(none), (outputs,)."""
        return self.facts.base_values

    def __call__(
        self, X: Any, outputs: Any = None, *, empty: Any = None, confidence: float | None = None
    ) -> Explanation:  # fmt: skip
        return self.explain(X, outputs, empty=empty, confidence=confidence)

    def explain(
        self, X: Any, outputs: Any = None, *, empty: Any = None, confidence: float | None = None
    ) -> Explanation:
        """Attributions of rows whose outputs the model gave; they add up to outputs - base values.

        A `cortx.errors.StrangeRows` warns once of rows outside of what training saw, as in `CoRTX.explain`.

        Parameters
        ----------
        X:
            Rows as for `CoRTX.explain`: a frame or an array in the columns of the fit, or images.
        outputs:
            What the model gave for these rows, (rows,) or (rows, outputs). A `TreeExplainer` computes them itself, so
            they may be left out; those of another model are refused.
        empty:
            Only where every image is its own reference ("mean", "blur"): what the model gave for `references`.
        confidence:
            Bounds that hold for at least this share of fresh rows, as in `CoRTX.explain`.
        """
        started = perf_counter()
        facts, X = self.facts, plain(X)
        table = facts.seen.read(X)
        self._told_of_strange = self._told_of_strange or facts.seen.warn_of_strange(table)
        if facts.exact is not None:
            return self._exact(table, X, outputs, empty, confidence, started)
        shape = len(table), len(facts.base_values)
        if outputs is None:
            raise InputError("explaining needs outputs=: what the model gave for these rows")
        feeds: dict[str, npt.NDArray[Any]] = {"rows": table.matrix}
        feeds["outputs"] = known = given_outputs(outputs, shape, facts.output)
        base = np.broadcast_to(facts.base_values, shape)
        if facts.own_reference is not None:
            feeds["empty"] = base = self._given_empty(empty, shape)
        elif empty is not None:
            raise InputError(ONE_REFERENCE)
        names = ["values"]
        if confidence is not None:
            feeds["row_factor"], feeds["band_factor"] = self._factors(confidence)
            names += ["lower_bounds", "upper_bounds", "error_bound"]
        single = shape[1] == 1
        found = self._session.run(names, feeds)
        # Graphs of the first version are not cut to what is possible; those of today stay as they are.
        most, total = largest_value(facts.output), known - base
        found[0] = possible_values(found[0], total, most)
        if confidence is not None:
            found[1:] = possible_bounds(found[1], found[2], found[3], found[0], total, most)
        results = [array[..., 0] if single else array for array in found]
        values, lower, upper, error = results if confidence is not None else (results[0], None, None, None)
        return Explanation(
            values=values,
            base_values=base[..., 0] if single else base,
            feature_names=facts.players,
            data=X,
            output_names=facts.output_names,
            outputs=known[..., 0] if single else known,
            seconds=perf_counter() - started,
            method="cortx",
            lower_bounds=lower,
            upper_bounds=upper,
            error_bound=error,
            confidence=confidence,
            refined=None if confidence is None else np.zeros(len(values), dtype=bool),
        )

    def _exact(
        self, table: Table | Images, X: Any, outputs: Any, empty: Any, confidence: float | None, started: float
    ) -> Explanation:
        assert self.facts.exact is not None
        if empty is not None:
            raise InputError(ONE_REFERENCE)
        if confidence is not None:
            self._factors(confidence)  # refuses what is no confidence
        nothing = np.zeros((len(table), len(self.facts.base_values)))
        values = self._session.run(["values"], {"rows": table.matrix, "outputs": nothing})[0]
        return self.facts.exact.explanation(values, X, outputs, confidence, started)

    def references(self, X: Any) -> npt.NDArray[np.float32]:
        """What every image is compared with, in the shape of the images: ask the model for its output there."""
        facts, images = self.facts, self.facts.seen.read(plain(X))
        if facts.own_reference is None or not isinstance(facts.seen.schema, ImageSchema):
            raise InputError("only images that are their own references have them; here base_values stand for all")
        nothing = np.zeros((len(images), len(facts.base_values)))
        feeds = {"rows": images.matrix, "outputs": nothing, "empty": nothing}
        made: npt.NDArray[np.float32] = self._session.run(["references"], feeds)[0]
        return made.reshape(len(images), *facts.seen.schema.shape)

    def _given_empty(self, empty: Any, shape: tuple[int, int]) -> Array:
        if empty is None:
            raise InputError(
                f"the reference {self.facts.own_reference!r} is made from each image, so explaining needs empty=: "
                "the model's outputs for explainer.references(images)"
            )
        return given_outputs(empty, shape, f"{self.facts.output} of references", "empty")

    def _factors(self, confidence: float) -> tuple[Array, Array]:
        if self.facts.calibration is None:
            why = "was exported without bounds"
            if self.facts.int8 is not None:
                why = "is int8, and bounds are calibrated for float32"
            raise InputError(f"this portable explainer {why}; export a calibrated one with to_onnx(folder)")
        return self.facts.calibration.factors(confidence)

    def __repr__(self) -> str:
        kind = "images" if isinstance(self.schema, ImageSchema) else f"{len(self.schema.columns)} columns"
        return f"Portable({kind}, {len(self.players)} players, {len(self.base_values)} outputs)"
