"""The explainer network as an ONNX graph: from encoded rows and the model's outputs to values and bounds.

Written node by node, in milliseconds: `torch.onnx.export` takes seconds for the same graph, too long for a first
`explain`. What a module computes is said once more here, so every kind of layer is compared with torch in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from cortx.errors import InputError, need
from cortx.explainer.possible import HALVINGS
from cortx.games.absent import own_image
from cortx.images import ImageSchema
from cortx.training.attention import AttentionBlock, GridAttention
from cortx.training.decoder import DecoderHead
from cortx.training.difficulty import FAINT, LEAST_STRANGE, Difficulty
from cortx.training.encoders import ResidualBlock
from cortx.training.features import TableFeatures
from cortx.training.heads import Head
from cortx.training.image_network import ImageFeatures, ImageNetwork
from cortx.training.network import ExplainerNetwork
from cortx.training.path_gradients import PathGradients
from cortx.training.resnet import PIXEL_SCALE, STAGES, Block

Array = npt.NDArray[Any]
Factors = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

OPSET, IR_VERSION = 18, 9
FLOAT, INT32, INT64, BOOL, DOUBLE = 1, 6, 7, 9, 11
"""TensorProto's own numbers, which never change."""


class Graph:
    """Nodes in the order they are called for; an array among the inputs becomes a constant."""

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError as error:
            raise need("onnx", "an explainer as an ONNX graph", "onnx") from error
        self._onnx: Any = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._count = 0
        self.layers: list[str] = []
        """Names of the nodes that hold the network's own weights: those that int8 is for."""

    def __call__(self, operation: str, *inputs: str | Array, **attributes: Any) -> str:
        return self.several(operation, 1, *inputs, **attributes)[0]

    def several(self, operation: str, outputs: int, *inputs: str | Array, **attributes: Any) -> list[str]:
        """A node with more than one output."""
        name = f"{operation.lower()}_{self._count}"
        self._count += 1
        names = [name, *(f"{name}_{k}" for k in range(1, outputs))]
        given = [self.constant(item, f"{name}.{i}") if not isinstance(item, str) else item
                 for i, item in enumerate(inputs)]  # fmt: skip
        self._nodes.append(self._onnx.helper.make_node(operation, given, names, name=name, **attributes))
        return names

    def inner(self, make: Callable[..., Sequence[tuple[str, int]]], *inputs: tuple[int, list[Any]]) -> Any:
        """A graph inside a node (If, Loop): `make` is given the names of its inputs, which are described by kind and
        shape, and returns its outputs with their kinds."""
        outer, self._nodes = self._nodes, []
        names = [f"inner_{self._count}_{k}" for k in range(len(inputs))]
        self._count += 1
        info = self._onnx.helper.make_tensor_value_info
        takes = [info(name, kind, shape) for name, (kind, shape) in zip(names, inputs, strict=True)]
        gives = [info(self("Identity", value), kind, None) for value, kind in make(*names)]
        nodes, self._nodes = self._nodes, outer
        return self._onnx.helper.make_graph(nodes, f"inner_{self._count}", takes, gives)

    def layer(self, operation: str, *inputs: str | Array, **attributes: Any) -> str:
        """A node with weights of the network."""
        name = self(operation, *inputs, **attributes)
        self.layers.append(name)
        return name

    def constant(self, array: Array, name: str) -> str:
        self._constants.append(self.tensor(array, name))
        return name

    def tensor(self, array: Array, name: str = "") -> Any:
        """An array as attributes of nodes take it."""
        return self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)

    def input(self, name: str, kind: int, *shape: int | str, default: Array | None = None) -> str:
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, list(shape)))
        return name if default is None else self.constant(default, name)

    def output(self, name: str, value: str, kind: int, *shape: int | str) -> None:
        """Gives a value the name that callers know it by."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(self._onnx.helper.make_tensor_value_info(name, kind, list(shape)))

    def model(self, about: dict[str, str]) -> Any:
        """An onnx.ModelProto."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, "cortx", self._inputs, self._outputs, self._constants)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="cortx")
        helper.set_model_props(model, about)
        return model


def make_graph(
    network: ExplainerNetwork,
    base_values: npt.NDArray[np.float64] | None,
    *,
    factors: Factors | None = None,
    inside: bool = False,
    most: float | None = None,
) -> Graph:
    """Inputs "rows" (n, columns) and "outputs" (n, outputs); output "values" (n, players, outputs), float64.

    Without base values there is a third input "empty" (n, outputs), the model's output for each row's own reference,
    and an output "references" (n, numbers). With `factors` (of a row's distance, of its bands) come "lower_bounds",
    "upper_bounds" and "error_bound"; they are the defaults of the inputs "row_factor" and "band_factor", (outputs,)
    each. `inside` gives what `CoRTX` itself needs instead: "active" (n, players), typical errors, and the
    "ranking_logits" (n, positions, players, outputs) of a ranking head. Values and bounds are cut to what is possible
    within -most..most (`explainer.possible`).
    """
    graph, n_outputs = Graph(), network.n_outputs
    shape = ("n", network.n_players, n_outputs)
    of_images = isinstance(network, ImageNetwork)
    columns = len(network.player_of)
    rows = graph.input("rows", FLOAT if of_images else DOUBLE, "n", columns)
    outputs = graph.input("outputs", DOUBLE, "n", n_outputs)
    empty: str | Array = graph.input("empty", DOUBLE, "n", n_outputs) if base_values is None else base_values
    total = graph("Sub", outputs, empty)
    own = _own_images(graph, network.features, rows) if base_values is None else None
    active = (_active_parts if of_images else _active)(graph, network, rows, own)
    if of_images:
        hidden, scores = _image_answer(graph, network, rows, total)
    else:
        hidden, scores = _table_answer(graph, network, rows, total, active, inside=inside)
    if not network.attribution.config.missing_is_zero:
        active = graph("Or", active, np.array(True))
    share = graph("Unsqueeze", graph("Cast", active, to=DOUBLE), np.array([2]))  # (n, players, 1)
    count = graph("ReduceSum", share, np.array([1]))  # (n, 1, 1)
    scored = values = _efficient(graph, scores, total, share, count)
    limit = None
    if most is not None:
        limit = graph("Unsqueeze", graph("Max", graph("Abs", total), np.array(most)), np.array([1]))  # (n, 1, outputs)
        values = _possible(graph, scored, total, share, limit)
    graph.output("values", values, DOUBLE, *shape)
    if own is not None:
        graph.output("references", own, FLOAT, "n", columns)
    if inside:
        graph.output("active", active, BOOL, "n", network.n_players)
    if inside or factors is not None:
        typical, typical_row = _typical(graph, network, hidden, scored)
        if inside:
            graph.output("typical", typical, DOUBLE, *shape)
            graph.output("typical_row", typical_row, DOUBLE, "n", n_outputs)
    if factors is not None:
        row_factor = graph.input("row_factor", DOUBLE, n_outputs, default=factors[0])
        band_factor = graph.input("band_factor", DOUBLE, n_outputs, default=factors[1])
        # One player alone takes the whole total, and nobody takes nothing: there is nothing to be wrong about.
        open_ = graph("Cast", graph("Greater", count, np.array(1.0)), to=DOUBLE)  # (n, 1, 1)
        reach = graph("Mul", graph("Mul", typical, band_factor), graph("Mul", share, open_))
        error = graph("Mul", graph("Mul", typical_row, row_factor), graph("Squeeze", open_, np.array([2])))
        lower, upper = graph("Sub", values, reach), graph("Add", values, reach)
        if limit is not None:
            lower, upper = graph("Max", lower, graph("Neg", limit)), graph("Min", upper, limit)
            far = graph("Mul", graph("Add", graph("Abs", values), limit), share)
            error = graph("Min", error, graph("ReduceL2", far, np.array([1]), keepdims=0))
        graph.output("lower_bounds", lower, DOUBLE, *shape)
        graph.output("upper_bounds", upper, DOUBLE, *shape)
        graph.output("error_bound", error, DOUBLE, "n", n_outputs)
    return graph


# Layers -------------------------------------------------------------------------------------------------------


def _layers(graph: Graph, module: nn.Module, x: str) -> str:
    """A torch module on x."""
    match module:
        case nn.Sequential():
            for part in module:
                x = _layers(graph, part, x)
            return x
        case nn.Linear():
            # Not Gemm, which int8 does not know; onnxruntime joins the two.
            return graph("Add", graph.layer("MatMul", x, _array(module.weight).T), _array(module.bias))
        case nn.ELU():
            return graph("Elu", x, alpha=float(module.alpha))
        case nn.SiLU():
            return graph("Mul", x, graph("Sigmoid", x))
        case nn.ReLU():
            return graph("Relu", x)
        case nn.Identity():
            return x
        case ResidualBlock():
            return graph("Add", x, _layers(graph, nn.Sequential(module.first, module.activation, module.second), x))
        case nn.Conv2d():
            bias = [] if module.bias is None else [_array(module.bias)]
            (tall, wide), strides = (int(n) for n in module.padding), [int(n) for n in module.stride]
            return graph.layer("Conv", x, _array(module.weight), *bias, strides=strides, pads=[tall, wide, tall, wide])
        case nn.BatchNorm2d():
            parts = (module.weight, module.bias, module.running_mean, module.running_var)
            return graph("BatchNormalization", x, *map(_array, parts), epsilon=float(module.eps))
        case nn.LayerNorm():
            return graph("LayerNormalization", x, _array(module.weight), _array(module.bias), epsilon=float(module.eps))
        case AttentionBlock():
            return _attention_block(graph, module, x)
        case Block():
            both = graph("Add", _layers(graph, module.second, _layers(graph, module.first, x)),
                         _layers(graph, module.short, x))  # fmt: skip
            return _layers(graph, module.last, both)
    raise InputError(f"a {type(module).__qualname__} has no ONNX form yet; explain with torch")


def _array(tensor: Any) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array


# Tables -------------------------------------------------------------------------------------------------------


def _table_answer(
    graph: Graph, network: ExplainerNetwork, rows: str, total: str, active: str, *, inside: bool
) -> tuple[str, str]:
    """The last hidden layer and scores (n, players, outputs)."""
    *first, to_latent = network.encoder
    assert isinstance(to_latent, nn.Linear)
    inputs = _features(graph, network.features, rows)
    x = _layers(graph, nn.Sequential(*first), inputs)
    if inside and "ranking" in network.heads:
        players = network.n_players
        _, logits = _head(graph, network.head("ranking"), x, to_latent, total, players, players)
        graph.output("ranking_logits", logits, FLOAT, "n", players, players, network.n_outputs)
    if network.path is None:
        return _scored(graph, network, x, to_latent, total)
    guess, seen = _path(graph, network.path, inputs, active)
    hidden, scores = _scored(graph, network, x, to_latent, total, seen)
    return hidden, graph("Add", guess, scores)


def _scored(
    graph: Graph, network: ExplainerNetwork, x: str, to_latent: nn.Linear | None, total: str, seen: str | None = None
) -> tuple[str, str]:
    """The last hidden layer and scores (n, players, outputs), from what the latent explanation is made of."""
    head = network.attribution
    hidden, logits = _head(graph, head, x, to_latent, total, network.n_players, seen=seen)
    return hidden, graph("Mul", logits, _array(head.label_scale))


def _path(graph: Graph, path: PathGradients, inputs: str, active: str) -> tuple[str, str]:
    """`PathGradients`: the first guess (n, players, outputs), and what the head sees of it."""
    first, blocks, last = path.parts
    own, presence = np.split(_array(first.weight), [len(path.base)], axis=1)
    base, points = _array(path.base), _array(path.points)
    away = graph("Sub", inputs, base)
    whole = graph("MatMul", away, own.T)
    if path.averaged:
        present = graph("Cast", active, to=FLOAT)
        away = graph("Mul", away, graph("MatMul", present, _array(path.members).T))
        whole = graph("Add", graph("MatMul", away, own.T), graph("MatMul", present, presence.T))
    # One block of rows for each point: (k, n, width).
    sums = graph("Add", graph("Mul", graph("Unsqueeze", whole, np.array([0])), points[:, None, None]),
                 own @ base + _array(first.bias))  # fmt: skip
    hidden = _silu(graph, sums, path.sharpness)[0] if path.sharp else sums
    slopes = []
    for block in blocks:
        inner, slope = _silu(graph, _linear_alone(graph, block.first, hidden), path.sharpness)
        slopes.append(slope)
        hidden = graph("Add", hidden, _linear_alone(graph, block.second, inner))
    slope = graph("Unsqueeze", _silu(graph, hidden, path.sharpness)[1], np.array([0]))
    gradient = graph("Mul", slope, _array(last.weight)[:, None, None, :])  # (outputs, k, n, width)
    for block, of_block in zip(reversed(blocks), reversed(slopes), strict=True):
        back = graph("Mul", graph("MatMul", gradient, _array(block.second.weight)), of_block)
        gradient = graph("Add", gradient, graph("MatMul", back, _array(block.first.weight)))
    if path.sharp:
        slope = graph("Unsqueeze", _silu(graph, sums, path.sharpness)[1], np.array([0]))
        gradient = graph("Mul", gradient, slope)
    added = graph("MatMul", graph("Mul", graph("MatMul", gradient, own), away), _array(path.members))
    if path.averaged:
        added = graph("Add", added, graph("Mul", graph("MatMul", gradient, presence), present))
    added = graph("Mul", graph("Transpose", added, perm=[2, 1, 3, 0]), _array(path.scale))  # (n, k, players, outputs)
    guess = graph("ReduceSum", graph("Mul", added, _array(path.weights)[:, None, None]), np.array([1]), keepdims=0)
    flat = graph("Reshape", graph("Div", added, _array(path.unit)), np.array([-1, path.width]))
    return guess, flat


def _linear_alone(graph: Graph, layer: nn.Linear, x: str) -> str:
    """A layer that keeps its float weights where others become int8: gradients need them."""
    return graph("Add", graph("MatMul", x, _array(layer.weight).T), _array(layer.bias))


def _silu(graph: Graph, x: str, sharpness: float) -> tuple[str, str]:
    """x sigmoid(sharpness x) and its derivative; onnxruntime leaves out what nothing uses."""
    one = np.array(1, dtype=np.float32)
    steep = x if sharpness == 1 else graph("Mul", x, np.array(sharpness, dtype=np.float32))
    share = graph("Sigmoid", steep)
    slope = graph("Mul", share, graph("Add", one, graph("Mul", steep, graph("Sub", one, share))))
    return graph("Mul", x, share), slope


def _head(
    graph: Graph, head: Head, x: str, to_latent: nn.Linear | None, total: str, *shape: int, seen: str | None = None
) -> tuple[str, str]:
    """The last hidden layer and the logits of a head, (n, *shape, outputs); `seen` is read beside the latent."""
    *layers, last = head.layers
    if to_latent is not None and layers:
        layers[0] = _as_one(to_latent, layers[0])
    elif to_latent is not None:
        x = _layers(graph, to_latent, x)
    if seen is not None:
        x = graph("Concat", x, seen, axis=1)
    if head.config.sees_total:
        x = graph("Concat", x, _scaled_total(graph, head.total_scale, total), axis=1)
    hidden = _layers(graph, nn.Sequential(*layers), x)
    return hidden, graph("Reshape", _layers(graph, last, hidden), np.array([-1, *shape, head.n_outputs]))


def _as_one(to_latent: nn.Linear, first: nn.Module) -> nn.Linear:
    """The layer to the latent explanation and a head's first: nothing is between them, so they are one layer."""
    assert isinstance(first, nn.Linear)
    weights, latent = first.weight.double(), to_latent.out_features
    of_latent = weights[:, :latent]
    weight = torch.cat([of_latent @ to_latent.weight.double(), weights[:, latent:]], dim=1)  # then the rest
    both = nn.Linear(weight.shape[1], weight.shape[0], device="meta").to_empty(device="cpu").requires_grad_(False)
    both.weight.copy_(weight)
    both.bias.copy_(first.bias.double() + of_latent @ to_latent.bias.double())
    return both


def _scaled_total(graph: Graph, scale: torch.Tensor, total: str) -> str:
    return graph("Div", graph("Cast", total, to=FLOAT), _array(scale))


def _features(graph: Graph, features: TableFeatures, rows: str) -> str:
    """`TableFeatures` in ONNX."""
    columns = len(features.reference)

    def pick(positions: torch.Tensor) -> str:
        places = _array(positions)
        return rows if np.array_equal(places, np.arange(columns)) else graph("Gather", rows, places, axis=1)

    parts = []
    if len(features.numbers):
        numbers = graph("Div", graph("Sub", pick(features.numbers), _array(features.centre)), _array(features.scale))
        numbers = graph("Where", graph("IsNaN", numbers), np.array(0.0), numbers)
        if features.has_tail:
            numbers = _with_tail(graph, numbers, _array(features.tail))
        farthest = float(features.farthest)
        if np.isfinite(farthest):
            numbers = graph("Clip", numbers, np.array(-farthest), np.array(farthest))
        parts.append(graph("Cast", numbers, to=FLOAT))
    if len(features.missing):
        parts.append(graph("Cast", graph("IsNaN", pick(features.missing)), to=FLOAT))
    if features.has_one_hot and len(features.known_column):
        known = graph("Equal", pick(features.known_column), _array(features.known_value))
        parts.append(graph("Cast", known, to=FLOAT))
    if features.has_steps:
        above = graph("Greater", pick(features.step_column), _array(features.step_value))
        parts.append(graph("Sub", graph("Cast", above, to=FLOAT), np.array(0.5, dtype=np.float32)))
    return parts[0] if len(parts) == 1 else graph("Concat", *parts, axis=1)


def _with_tail(graph: Graph, numbers: str, tail: Array) -> str:
    """Numbers that grow with the logarithm beyond `tail`."""
    size = graph("Abs", numbers)
    beyond = graph("Max", graph("Sub", size, tail), np.array(0.0))
    size = graph("Add", graph("Min", size, tail), graph("Log", graph("Add", beyond, np.array(1.0))))
    return graph("Mul", graph("Sign", numbers), size)


def _active(graph: Graph, network: ExplainerNetwork, rows: str, own: str | None) -> str:
    """(n, players): whether any column of a player differs from its reference; NaN is its own equal."""
    assert own is None
    reference = _array(network.features.reference)
    same = graph("Equal", rows, reference)
    if np.isnan(reference).any():
        same = graph("Or", same, graph("And", graph("IsNaN", rows), np.isnan(reference)))
    changed = graph("Not", same)
    if network.n_players == len(reference):
        return changed
    return _any_member(graph, graph("Cast", changed, to=FLOAT), network.player_of, network.n_players)


def _any_member(graph: Graph, flags: str, player_of: torch.Tensor, n_players: int) -> str:
    """Flags of columns or pixels, 0 or 1, as flags of players."""
    return graph("Greater", graph("MatMul", flags, _members(player_of, n_players)), np.array(0, dtype=np.float32))


def _members(player_of: torch.Tensor, n_players: int) -> Array:
    """(columns, players): one where a column is a player's."""
    belongs: Array = _array(player_of)[:, None] == np.arange(n_players)
    return belongs.astype(np.float32)


# Images -------------------------------------------------------------------------------------------------------


def _image_answer(graph: Graph, network: ExplainerNetwork, rows: str, total: str) -> tuple[str, str]:
    schema, head = _image_features(network).schema, network.attribution
    trunk: Any = network.encoder
    scale = np.array(PIXEL_SCALE, dtype=np.float32)
    x = _layers(graph, trunk.stem, graph("Mul", _channels_first(graph, rows, schema), scale))
    maps = []
    for stage in range(STAGES):
        x = _layers(graph, trunk.get_submodule(f"layer{stage + 1}"), x)
        maps.append(x)
    if not isinstance(head, DecoderHead):
        return _scored(graph, network, _mean_of_map(graph, x), None, total)
    (tall, wide), stride = schema.size, trunk.settings["stride"]
    hidden = _decode(graph, head, maps, (-(-tall // stride), -(-wide // stride)), total)
    return _mean_of_map(graph, hidden), _part_scores(graph, head, hidden)


def _image_features(network: ExplainerNetwork) -> ImageFeatures:
    features: Any = network.features
    assert isinstance(features, ImageFeatures)
    return features


def _channels_first(graph: Graph, rows: str, schema: ImageSchema) -> str:
    """(n, numbers) to (n, channels, height, width)."""
    if schema.grey:
        return graph("Reshape", rows, np.array([-1, 1, *schema.shape]))
    shaped = graph("Reshape", rows, np.array([-1, *schema.shape]))
    return shaped if schema.channels == "first" else graph("Transpose", shaped, perm=[0, 3, 1, 2])


def _active_parts(graph: Graph, network: ExplainerNetwork, rows: str, own: str | None) -> str:
    """(n, players): whether any pixel of a part differs from its reference."""
    features, head = _image_features(network), network.attribution
    schema = features.schema
    same = graph("Equal", rows, _array(features.reference) if own is None else own)
    changed = _channels_first(graph, graph("Cast", graph("Not", same), to=FLOAT), schema)
    pixels = graph("ReduceMax", changed, np.array([1]))  # (n, 1, height, width)
    if isinstance(head, DecoderHead) and not len(head.part_of):
        patch = [size // parts for size, parts in zip(schema.size, head.grid, strict=True)]
        parts = graph("MaxPool", pixels, kernel_shape=patch, strides=patch)
        flat = graph("Reshape", parts, np.array([-1, network.n_players]))
        return graph("Greater", flat, np.array(0, dtype=np.float32))
    flat = graph("Reshape", pixels, np.array([-1, len(features.pixel_player)]))
    return _any_member(graph, flat, features.pixel_player, network.n_players)


def _own_images(graph: Graph, features: Any, rows: str) -> str:
    """`games.absent.own_image` in ONNX, (n, numbers); in float64, so that one colour stays that colour."""
    schema: ImageSchema = features.schema
    images = _channels_first(graph, rows, schema)
    if features.own_reference == "mean":
        mean = graph("ReduceMean", graph("Cast", images, to=DOUBLE), np.array([2, 3]))
        own = graph("Expand", graph("Cast", mean, to=FLOAT), np.array([1, schema.n_channels, *schema.size]))
    else:
        blurred = _along_both(graph, graph("Cast", images, to=DOUBLE), _blur(features.own_reference, schema.size))
        own = graph("Cast", blurred, to=FLOAT)
    if not schema.grey and schema.channels == "last":
        own = graph("Transpose", own, perm=[0, 2, 3, 1])
    return graph("Reshape", own, np.array([-1, schema.n_numbers]))


def _blur(how: str, size: tuple[int, int]) -> list[torch.Tensor]:
    """A blur is linear, along one axis and then the other: the matrix of each, read off images of one stripe."""
    matrices = []
    for axis, n in enumerate(size):
        stripes = torch.eye(n, dtype=torch.float64).unsqueeze(2 - axis).expand(n, *size)
        blurred = own_image(how, stripes.reshape(n, -1), ImageSchema(size)).view(n, *size)
        matrices.append(blurred.select(2 - axis, 0))
    return matrices


def _decode(graph: Graph, head: DecoderHead, maps: Sequence[str], size: tuple[int, int], total: str) -> str:
    """`DecoderHead.decode` in ONNX; `size` is that of the finest maps."""
    x: str | None = None
    for stage, (tap, one) in enumerate(zip(head.taps, maps, strict=True)):
        size = size if stage == 0 else (-(-size[0] // 2), -(-size[1] // 2))  # every later stage has stride 2
        if size[0] > head.grid[0]:
            one = _layers(graph, tap, _pooled(graph, one, size, head.grid))
        else:
            one = _resized(graph, _layers(graph, tap, one), size, head.grid)
        x = one if x is None else graph("Add", x, one)
    assert x is not None
    if head.of_total is not None:
        seen = _layers(graph, head.of_total, _scaled_total(graph, head.total_scale, total))
        x = graph("Add", x, graph("Unsqueeze", seen, np.array([2, 3])))
    x = _layers(graph, nn.Sequential(head.start, head.blocks), x)
    return _attention(graph, head.attention, x, head.grid) if isinstance(head.attention, GridAttention) else x


def _attention(graph: Graph, module: GridAttention, x: str, grid: tuple[int, int]) -> str:
    """`GridAttention` in ONNX."""
    coarse = x if module.grid == grid else _pooled(graph, x, grid, module.grid)
    tokens = graph("Transpose", graph("Reshape", coarse, np.array([0, 0, -1])), perm=[0, 2, 1])
    tokens = _layers(graph, module.blocks, graph("Add", tokens, _array(module.place)))
    seen = graph("Reshape", graph("Transpose", tokens, perm=[0, 2, 1]), np.array([0, 0, *module.grid]))
    if module.grid == grid:
        return seen
    return graph("Add", x, _resized(graph, graph("Sub", seen, coarse), module.grid, grid))


def _attention_block(graph: Graph, block: AttentionBlock, x: str) -> str:
    heads, width = block.n_heads, block.join.in_features
    parts = _layers(graph, nn.Sequential(block.before, block.mix), x)
    parts = graph("Reshape", parts, np.array([0, 0, 3, heads, width // heads]))
    parts = graph("Transpose", parts, perm=[2, 0, 3, 1, 4])  # (3, n, heads, places, channels)
    query, key, value = (
        graph("Squeeze", part, np.array([0])) for part in graph.several("Split", 3, parts, num_outputs=3)
    )
    scale = np.array((width // heads) ** -0.5, dtype=np.float32)
    near = graph("MatMul", graph("Mul", query, scale), graph("Transpose", key, perm=[0, 1, 3, 2]))
    seen = graph("Transpose", graph("MatMul", graph("Softmax", near, axis=-1), value), perm=[0, 2, 1, 3])
    x = graph("Add", x, _layers(graph, block.join, graph("Reshape", seen, np.array([0, 0, -1]))))
    return graph("Add", x, _layers(graph, nn.Sequential(block.between, block.wide, block.activation, block.narrow), x))


def _part_scores(graph: Graph, head: DecoderHead, hidden: str) -> str:
    maps = _layers(graph, head.last, hidden)  # (n, outputs, rows, columns)
    if not len(head.part_of):
        flat = graph("Reshape", maps, np.array([0, 0, -1]))
    else:
        pixels = graph("Reshape", _resized(graph, maps, head.grid, head.image_size), np.array([0, 0, -1]))
        flat = graph("MatMul", pixels, _members(head.part_of, head.n_players))
    return graph("Mul", graph("Transpose", flat, perm=[0, 2, 1]), _array(head.label_scale))


def _mean_of_map(graph: Graph, x: str) -> str:
    return graph("ReduceMean", x, np.array([2, 3]), keepdims=0)


def _pooled(graph: Graph, x: str, size: tuple[int, int], grid: tuple[int, int]) -> str:
    """Adaptive average pooling."""
    if size[0] % grid[0] == 0 and size[1] % grid[1] == 0:
        patch = [size[0] // grid[0], size[1] // grid[1]]
        return graph("AveragePool", x, kernel_shape=patch, strides=patch)
    each = [F.adaptive_avg_pool1d(torch.eye(n)[None], m)[0] for n, m in zip(size, grid, strict=True)]
    return _along_both(graph, x, each)


def _resized(graph: Graph, x: str, size: tuple[int, int], grid: tuple[int, int]) -> str:
    """Bilinear interpolation."""
    if tuple(size) == tuple(grid):
        return x
    each = [F.interpolate(torch.eye(n)[None], m, mode="linear", align_corners=False)[0]
            for n, m in zip(size, grid, strict=True)]  # fmt: skip
    return _along_both(graph, x, each)


def _along_both(graph: Graph, x: str, each: Sequence[torch.Tensor]) -> str:
    """A linear map of each axis of an image, (from, to) matrices."""
    return graph("MatMul", _array(each[0].T), graph("MatMul", x, _array(each[1])))


# Answers ------------------------------------------------------------------------------------------------------


def _efficient(graph: Graph, scores: str, total: str, share: str, count: str) -> str:
    """`missingness`, then `efficiency`, in float64: (n, players, outputs)."""
    values = graph("Mul", graph("Cast", scores, to=DOUBLE), share)
    gap = graph("Sub", graph("Unsqueeze", total, np.array([1])), graph("ReduceSum", values, np.array([1])))
    spread = graph("Mul", graph("Div", gap, graph("Max", count, np.array(1.0))), share)
    return graph("Add", values, spread)


def _possible(graph: Graph, values: str, total: str, share: str, limit: str) -> str:
    """`possible.possible_values` in ONNX; the search for the shift runs only where some value is impossible."""
    total = graph("Unsqueeze", total, np.array([1]))
    far = graph("Cast", graph("Greater", graph("Abs", values), limit), to=FLOAT)
    wrong = graph("Greater", graph("ReduceMax", far, np.array([1])), np.array(0, dtype=np.float32))  # (n, 1, outputs)

    def cut(shift: str) -> str:
        shifted = graph("Sub", values, shift)
        return graph("Mul", graph("Max", graph("Min", shifted, limit), graph("Neg", limit)), share)

    def halve(_turn: str, go_on: str, shift: str, step: str) -> list[tuple[str, int]]:
        above = graph("Greater", graph("ReduceSum", cut(shift), np.array([1])), total)
        moved = graph("Add", shift, graph("Where", above, step, graph("Neg", step)))
        return [(go_on, BOOL), (moved, DOUBLE), (graph("Mul", step, np.array(0.5)), DOUBLE)]

    def project() -> list[tuple[str, int]]:
        start = graph("Mul", total, np.array(0.0))
        step = graph("Add", graph("ReduceMax", graph("Abs", values), keepdims=0), graph("ReduceMax", limit, keepdims=0))
        body = graph.inner(halve, (INT64, []), (BOOL, [1]), (DOUBLE, ["n", 1, "outputs"]), (DOUBLE, [1]))
        step = graph("Reshape", step, np.array([1]))
        shift, _ = graph.several("Loop", 2, np.array(HALVINGS), np.array([True]), start, step, body=body)
        return [(graph("Where", wrong, cut(shift), values), DOUBLE)]

    some = graph("Greater", graph("ReduceMax", far, keepdims=0), np.array(0, dtype=np.float32))
    as_they_are = graph.inner(lambda: [(values, DOUBLE)])
    return graph("If", some, then_branch=graph.inner(project), else_branch=as_they_are)


def _typical(graph: Graph, network: ExplainerNetwork, hidden: str, values: str) -> tuple[str, str]:
    """`Difficulty` in ONNX: typical errors of values (n, players, outputs) and of rows (n, outputs), float64."""
    difficulty: Difficulty = network.difficulty
    scale = _array(network.attribution.label_scale)
    square = graph("ReduceSumSquare", graph("MatMul", hidden, _root(difficulty.inverse)), np.array([1]))  # (n, 1)
    least = np.array(LEAST_STRANGE, dtype=np.float32)
    strange = graph("Sub", graph("Log", graph("Max", square, least)), _array(difficulty.centre))

    def in_powers(weights: Array) -> str:
        bent = graph("Mul", graph("Add", graph("Mul", strange, weights[2]), weights[1]), strange)
        return graph("Add", bent, weights[0])

    def size_of(log: str) -> str:
        return graph("Cast", graph("Mul", graph("Exp", log), scale), to=DOUBLE)

    value, faint = _array(difficulty.value), np.array(FAINT, dtype=np.float32)
    magnitude = graph("Abs", graph("Div", graph("Cast", values, to=FLOAT), scale))
    by_magnitude = graph("Mul", graph("Log", graph("Add", magnitude, faint)), value[3])
    by_value = graph("Add", graph("Unsqueeze", in_powers(value), np.array([1])), by_magnitude)
    by_value = graph("Add", by_value, _array(difficulty.player))
    return size_of(by_value), size_of(in_powers(_array(difficulty.row)))


def _root(inverse: torch.Tensor) -> Array:
    """R with h' M^-1 h = |h R|^2: a sum of squares, in which nothing cancels, so that float32 is enough."""
    sizes, directions = np.linalg.eigh(_array(inverse).astype(np.float64))
    root: Array = directions * np.sqrt(np.maximum(sizes, 0.0))
    return root.astype(np.float32)
