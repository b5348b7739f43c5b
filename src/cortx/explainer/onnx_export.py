"""A fitted explainer as a folder that needs neither torch nor the model: `CoRTX.to_onnx`."""

from __future__ import annotations

import logging
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cortx.errors import need
from cortx.estimators.tree import TreeValues
from cortx.explainer.calibration import Calibration
from cortx.explainer.exact import ExactTrees
from cortx.explainer.onnx_graph import Graph, make_graph
from cortx.explainer.portable_folder import Facts, Shown, check_target, write_folder
from cortx.explainer.possible import largest_value
from cortx.explainer.session import ROWS_OF_A_RUN, Session
from cortx.explainer.tree_graph import TreeGraph
from cortx.images import ImageSchema
from cortx.storage import local_path
from cortx.tables import plain
from cortx.training.image_network import ImageNetwork
from cortx.training.network import ExplainerNetwork
from cortx.version import __version__

if TYPE_CHECKING:
    from cortx.explainer.explainer import CoRTX

Array = npt.NDArray[np.float64]
logger = logging.getLogger("cortx")


def export(explainer: CoRTX, folder: str | Path, *, confidence: float | None, int8: bool, rows: Any) -> Path:
    """`CoRTX.to_onnx`, which says what the options mean."""
    fitted, spec = explainer.fitted, explainer.fitted.spec
    folder = local_path(folder, "the portable explainer's folder")
    check_target(folder)
    # Bounds were calibrated for the float32 values; what int8 adds to their error no calibration has seen.
    calibration = None if int8 or confidence is None else fitted.calibration
    factors = None if calibration is None or confidence is None else calibration.factors(confidence)
    base_values = spec.base_values if spec.own_reference is None else None
    graph = make_graph(fitted.network, base_values, factors=factors, most=largest_value(spec.output))
    content: bytes = _model(graph).SerializeToString()
    loss = None
    if int8:
        small = _quantized(graph)
        loss = _loss(content, small, *_measured_on(explainer, rows))
        content = small
        logger.info(
            "int8: values differ from float32 by %.2g of their size (mean l2 distance on %d rows); no bounds",
            loss["relative_error"],
            loss["rows"],
        )
    return write_folder(folder, content, _facts(explainer, calibration, confidence, int8=loss))


def export_trees(
    explainer: CoRTX, values: TreeValues, exact: ExactTrees, folder: str | Path, *, confidence: float | None
) -> Path:
    """`TreeExplainer.to_onnx`."""
    folder = local_path(folder, "the portable explainer's folder")
    check_target(folder)
    calibration = None if confidence is None else explainer.calibration
    if calibration is not None and confidence is not None:
        calibration.factors(confidence)  # refuses what is no confidence
    made = TreeGraph(values, explainer.n_features_in_, bounds=calibration is not None)
    about = {"cortx": __version__, ROWS_OF_A_RUN: str(made.rows_at_a_time)}
    content: bytes = made.graph.model(about).SerializeToString()
    return write_folder(folder, content, _facts(explainer, calibration, confidence, exact=exact))


def _facts(
    explainer: CoRTX,
    calibration: Calibration | None,
    confidence: float | None,
    *,
    int8: dict[str, Any] | None = None,
    exact: ExactTrees | None = None,
) -> Facts:
    spec = explainer.fitted.spec
    return Facts(
        seen=explainer.seen,
        players=spec.players.names,
        columns=tuple(int(player) for player in spec.players.column_player),
        output=spec.output,
        output_names=spec.output_names,
        base_values=spec.base_values,
        own_reference=spec.own_reference,
        calibration=calibration,
        confidence=None if calibration is None else confidence,
        int8=int8,
        exact=exact,
        shown=None if isinstance(spec.schema, ImageSchema) else _shown(explainer),
    )


def _shown(explainer: CoRTX) -> Shown:
    fitted, absent = explainer.fitted, explainer.fitted.spec.absent
    return Shown(
        profile=fitted.profile,
        reference=absent[0] if len(absent) == 1 else None,
        quality=dict(fitted.quality),
        evaluations=int(fitted.costs.get("total_evaluations", 0)),
    )


def session_for(network: ExplainerNetwork, base_values: Array, threads: int) -> Session | None:
    """The network in onnxruntime for `CoRTX` itself, or None where torch must do: see `runs_inside`."""
    if not runs_inside(network):
        return None
    graph = make_graph(network, base_values, inside=True)
    images = isinstance(network, ImageNetwork)
    return Session(_model(graph).SerializeToString(), images=images, threads=threads)


def runs_inside(network: ExplainerNetwork) -> bool:
    """Whether onnxruntime can answer: on a CPU, where it is installed, and not for images that are their own reference.

    Whether a pixel equals a reference that is computed from its image hangs on the last digit; torch decides there.
    """
    own = getattr(network.features, "own_reference", None)
    return network.device.type == "cpu" and own is None and _installed()


@cache
def _installed() -> bool:
    return find_spec("onnxruntime") is not None and find_spec("onnx") is not None


def _model(graph: Graph) -> Any:
    return graph.model({"cortx": __version__})


def _quantized(graph: Graph) -> bytes:
    """Weights of layers in int8, one scale for each of their outputs; what enters them is quantized as it comes."""
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise need("onnxruntime", "int8", "onnx") from error
    root = logging.getLogger()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        level = root.level
        root.setLevel(logging.ERROR)  # it advises on the root logger to pre-process, which changes nothing here
        try:
            quantize_dynamic(
                _model(graph), path, per_channel=True, weight_type=QuantType.QInt8, nodes_to_quantize=graph.layers
            )
        finally:
            root.setLevel(level)
        return path.read_bytes()


def _measured_on(explainer: CoRTX, rows: Any) -> tuple[npt.NDArray[Any], Array, Array, str]:
    """Rows, outputs and outputs of the empty coalition to compare on: those given, or else the artifact's probes."""
    fitted, spec = explainer.fitted, explainer.fitted.spec
    if rows is None:
        dtype = np.float32 if isinstance(spec.schema, ImageSchema) else np.float64
        outputs = fitted.probe_outputs
        empty = np.broadcast_to(spec.base_values, outputs.shape)
        return fitted.probe.astype(dtype), outputs, empty, "the artifact's probe rows"
    table = explainer._read(plain(rows))
    (known, _), (empty, _) = explainer._outputs(table, None), explainer._empty(table)
    outputs = explainer._guess_outputs(table, empty) if known is None else known
    return table.matrix, outputs, empty, "given rows"


def _loss(exact: bytes, small: bytes, rows: npt.NDArray[Any], outputs: Array, empty: Array, source: str) -> Any:
    """What int8 costs: mean l2 distance of the values over their mean l2 norm, and how often the strongest differs."""
    sessions = [Session(content, images=rows.dtype == np.float32) for content in (exact, small)]
    feeds = {"rows": rows, "outputs": np.ascontiguousarray(outputs)}
    if "references" in sessions[0].outputs:
        feeds["empty"] = np.ascontiguousarray(empty)
    before, after = (session.run(["values"], feeds)[0] for session in sessions)
    size = np.linalg.norm(before, axis=1).mean()
    same = np.abs(before).argmax(axis=1) == np.abs(after).argmax(axis=1)
    return {
        "relative_error": float(np.linalg.norm(after - before, axis=1).mean() / max(size, 1e-300)),
        "same_strongest_player": float(same.mean()),
        "rows": len(before),
        "measured_on": source,
    }
