"""The student: a network that learns v(S) itself from values that were paid for, and answers for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cortx.errors import InputError
from cortx.estimators.block import adding_up, coalition_count
from cortx.estimators.crossed import CrossedDesign, crossed_design, crossed_pairs
from cortx.estimators.free import Interactions, design_size, fit_interactions, make_design, random_pairs
from cortx.games import GameSpec, Rows
from cortx.games.game import table_of
from cortx.progress import progress_bar
from cortx.seeding import stream_seed, torch_generator
from cortx.tables import Schema
from cortx.training.encoders import make_network
from cortx.training.features import TableFeatures, differs
from cortx.training.finetune import rate
from cortx.training.heads.head import scale_of
from cortx.training.orthogonal import Muon
from cortx.training.step import Step, set_rate

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
CACHE_BYTES, GPU_BYTES = 8 * 2**20, 512 * 2**20
"""Activations of masked copies at a time: what a processor's cache holds, and what keeps a GPU busy."""
PRECISE_VALUES = 8_192
"""Its own Shapley values as a control variate are enumerated up to so many coalitions, as up to 13 players have."""
MOST_DESIGNS = 128
"""Those of rows with more players are the mean over several crossed designs, at most so many."""
DESIGN_BYTES = 64 * 2**20
"""Memory for designs that are kept, each for rows with the same active players; one is kept whatever it takes."""
INPUT_BYTES, ENCODED_ROWS = 256 * 2**20, 16_384
"""Memory for the inputs of all rows that a student learns from; and how many are encoded at a time."""
SCREENED_ROWS, ACTIVE_ROWS, SCREENED_FROM = 48, 6, 4_096
"""Rows that say how much players interact; in how many of them each player is active, where there are so many; and from
how many rows they are chosen."""
SCREENING_PAIRS, SCREENING_WORK = 600, 2e9
"""Pairs of coalitions that such rows are asked for, at most, k; rows with different active players take as many
inversions of matrices, and k^3 times their number stays below this."""
FEWEST_VALUES, FEW_PLAYERS = 160, 16
"""The fewest values v(S) of a label; and up to how many players precise labels teach more than labels of more rows
(docs/decisions/0014-student.md)."""


@dataclass(frozen=True)
class StudentConfig:
    """How the student learns v(S), and how much it labels."""

    width: int = 128
    depth: int = 2
    """Residual blocks."""
    steps: int = 8_000
    batch_size: int = 512
    """Masked copies of a step; half of them are the complements of the others."""
    learning_rate: float = 6e-3
    """Of `Muon`."""
    weight_decay: float = 1e-2
    label_values: int = 24
    """Values v(S) for each player from which the label of a row with few players is made, at least 160 in all."""
    most_values: int = 320
    """The most of them."""
    many_players_values: int = 160
    """Values v(S) from which the label of a row with many players is made, whatever their number."""
    label_rows: int = 125_000
    """Rows that are labelled for the explainer, made-up ones included, at most."""
    label_asks: int = 20_000_000
    """Values v(S) of the student that all these labels may take; the rows of the table come first."""
    trees: bool = True
    """Whether boosted trees teach where they predict unseen values better than the network."""
    sharp: bool = False
    """Whether the network has sharp bends (`SharpSiLU`): functions with kinks need them, smooth ones are learned better
    without. Where a smooth one misses much both are trained, and the better one teaches; a refit keeps its kind."""
    path_points: int = 3
    """Points at which the explainer asks the student for its gradients (`PathGradients`); 0: it does not."""

    def __post_init__(self) -> None:
        least = {
            "width": 1, "depth": 1, "steps": 1, "batch_size": 2, "label_values": 1, "most_values": 1,
            "many_players_values": 1, "label_rows": 1, "label_asks": 1, "path_points": 0,
        }  # fmt: skip
        for name, at_least in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
                raise InputError(f"a student's {name} must be a whole number of at least {at_least}, got {value!r}")
        for name in ("trees", "sharp"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"a student's {name} must be True or False, got {getattr(self, name)!r}")
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            raise InputError(
                "a student's learning_rate must be positive and its weight_decay not negative, got "
                f"{self.learning_rate!r} and {self.weight_decay!r}"
            )

    def values_per_label(self, n_players: int) -> int:
        """Values v(S) from which the label of a row is made.

        With many players few values and more rows are better: the explainer's training averages over rows.
        """
        if n_players > FEW_PLAYERS:
            return self.many_players_values
        return min(max(FEWEST_VALUES, self.label_values * n_players), self.most_values)


@dataclass(frozen=True, eq=False)
class ValueSet:
    """Values v(S) - v(none) of coalitions and their complements that were paid for.

    codes (rows, columns) are rows; `row` (pairs,) says whose a pair is; `kept` (pairs, bytes) has the bits of the
    players in S; values (pairs, 2, outputs) are those of S and of its complement.
    """

    codes: Tensor
    row: Tensor
    kept: Tensor
    values: Tensor

    def __len__(self) -> int:
        return len(self.row)

    def masks(self, index: Tensor, active: Tensor) -> Tensor:
        """Coalitions and complements of some pairs, (index, 2, players) bool; `active` (rows, players)."""
        bits = torch.arange(7, -1, -1, device=self.kept.device)
        some = (self.kept[index, :, None] >> bits & 1).flatten(1)[:, : active.shape[1]].bool()
        return torch.stack([some, active[self.row[index]] & ~some], dim=1)


class StudentNetwork(nn.Module):
    """v(S) - v(none) of masked rows.

    Absent players have the inputs of the reference. With a background they have none, and who is present is an input.
    """

    player_of: Tensor
    input_player: Tensor
    base: Tensor
    scale: Tensor
    single: Tensor
    related: Tensor
    joint: Tensor

    def __init__(
        self,
        features: TableFeatures,
        player_of: Tensor,
        absent: Tensor,
        n_outputs: int,
        config: StudentConfig,
        seed: int,
    ) -> None:
        super().__init__()
        self.features, self.config = features, config
        self.n_players, self.n_outputs = int(player_of.max()) + 1, n_outputs
        self.averaged = len(absent) > 1
        inputs = features(absent[:1])[0]
        believed = Interactions.unknown(self.n_players)
        buffers = {
            "player_of": player_of,
            "input_player": player_of[features.columns],
            "base": torch.zeros_like(inputs) if self.averaged else inputs,
            "scale": torch.ones(n_outputs),
            "single": believed.single,
            "related": believed.related,
            "joint": believed.joint,
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)
        width = features.width + (self.n_players if self.averaged else 0)
        generator = torch_generator(seed, "student")
        self.layers = make_network(
            "sharp" if config.sharp else "residual", width, config.width, config.depth, n_outputs, generator
        )
        self._designs: dict[tuple[bytes, int], CrossedDesign] = {}

    @property
    def device(self) -> torch.device:
        return self.base.device

    def active(self, codes: Tensor) -> Tensor:
        """(rows, players): whether any column of a player differs from its reference."""
        changed = differs(codes, self.features.reference).to(torch.int64)
        result = torch.zeros(len(codes), self.n_players, dtype=torch.int64, device=codes.device)
        return result.index_add_(1, self.player_of, changed) > 0

    def forward(self, inputs: Tensor, kept: Tensor) -> Tensor:
        """Inputs of rows, (n, inputs), and coalitions, (n, players), to v(S) - v(none) in scales, (n, outputs)."""
        present = kept.to(inputs.dtype)
        masked = self.base + (inputs - self.base) * present[:, self.input_player]
        if self.averaged:
            masked = torch.cat([masked, present], dim=1)
        result: Tensor = self.layers(masked)
        return result - self.nothing()

    def nothing(self) -> Tensor:
        """What the layers say of nobody, (outputs,)."""
        inputs = torch.cat([self.base, self.base.new_zeros(self.n_players)]) if self.averaged else self.base
        result: Tensor = self.layers(inputs[None])[0]
        return result

    def asked(self, codes: Tensor, coalitions: Tensor, players: Tensor | None = None) -> Tensor:
        """v(S) - v(none), (rows, k, outputs), for coalitions (k, n) of all rows or (rows, k, n), as float32.

        The n players are all, or those that `players`, (rows, n), names for each row. The first layer is a sum over the
        present players, so a masked copy costs one product.
        """
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        own, presence = first.weight.T[: self.features.width], first.weight.T[self.features.width :]
        away = self.features(codes) - self.base
        added = away.new_zeros(len(codes), self.n_players, own.shape[1])
        added.index_add_(1, self.input_player, away[:, :, None] * own)
        if self.averaged:
            added = added + presence
        if players is not None:
            added = torch.gather(added, 1, players[..., None].expand(-1, -1, added.shape[2]))
        hidden = F.linear(self.base, own.T, first.bias) + coalitions @ added  # (rows, k, width)
        flat = hidden.flatten(0, 1)
        for layer in list(self.layers)[1:]:
            flat = layer(flat)
        result: Tensor = (flat.view(*hidden.shape[:2], -1) - self.nothing()) * self.scale
        return result

    def rows_at_a_time(self, k: int) -> int:
        """Rows whose `k` masked copies are asked for at a time, by their activations and the first layer's products."""
        room = CACHE_BYTES if self.device.type == "cpu" else GPU_BYTES
        return max(1, room // (4 * self.config.width * max(k, self.features.width, self.n_players)))

    @torch.inference_mode()
    def totals(self, codes: Tensor) -> Tensor:
        """v(all) - v(none), (rows, outputs)."""
        result, size = codes.new_empty(len(codes), self.n_outputs, dtype=torch.float32), self.rows_at_a_time(1)
        for start in range(0, len(codes), size):
            part = codes[start : start + size]
            result[start : start + size] = self.asked(part, self.active(part).float()[:, None])[:, 0]
        return result

    @torch.inference_mode()
    def labels(self, codes: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Shapley values of its own game, (rows, players, outputs), and their totals, (rows, outputs).

        Rows of few active players are enumerated. Of others some coalitions are asked for, the same for all rows of a
        chunk, which depend on the order of rows.
        """
        values = self.config.values_per_label(self.n_players)
        active = self.active(codes)
        counts = active.sum(dim=1)
        result = codes.new_zeros(len(codes), self.n_players, self.n_outputs, dtype=torch.float32)
        total = codes.new_zeros(len(codes), self.n_outputs, dtype=torch.float32)
        for n in torch.unique(counts[counts > 0]).tolist():
            index = torch.nonzero(counts == n)[:, 0]
            patterns = np.packbits(active[index].cpu().numpy(), axis=1)  # rows of one pattern come together
            index = index[torch.from_numpy(np.lexsort(patterns.T)).to(index.device)]
            for number, some in enumerate(torch.split(index, self.rows_at_a_time(design_size(n, values)))):
                players = torch.nonzero(active[some])[:, 1].view(len(some), n)
                believed = self.interactions.of(players.cpu().numpy())
                design = make_design(n, values, stream_seed(seed, "student", n, number), believed)
                masks, weights = design.on(self.device)
                answers = self.asked(codes[some], masks, players)
                result[some[:, None], players] = torch.einsum("ik,rko->rio", weights, answers)
                total[some] = answers[:, -1]
        return result, total

    @torch.inference_mode()
    def precise(self, codes: Tensor, seed: int, among: Tensor, values: int) -> tuple[Array, Array]:
        """Shapley values of its own game, right on average, and their variance, (rows, players, outputs) float64.

        Players that are not `among`, (rows, players), are never present. Rows of few active players are enumerated. Of
        others `values` coalitions or some more are asked for, as far as `MOST_DESIGNS` go: the same for all rows with
        the same active players, whatever their order.
        """
        active = self.active(codes) & among
        counts = active.sum(dim=1)
        result, variance = np.zeros((2, len(codes), self.n_players, self.n_outputs))
        for n in torch.unique(counts[counts > 0]).tolist():
            index = torch.nonzero(counts == n)[:, 0]
            if coalition_count(n) <= PRECISE_VALUES:
                design = make_design(n, PRECISE_VALUES, seed)
                weights = torch.from_numpy(design.weights).to(self.device)
                for some, answers in self._answers(codes, active, index, design.coalitions):
                    result[some] = torch.einsum("ik,rko->rio", weights, answers.double()).cpu().numpy()
                continue
            patterns, of_row = torch.unique(active[index], dim=0, return_inverse=True)
            count = min(MOST_DESIGNS, -(-max(1, values) // (4 * crossed_pairs(n))))
            for number in range(len(patterns) * count):
                crossed = self._crossed(patterns[number // count], stream_seed(seed, "precise", n, number % count))
                alike = index[of_row == number // count]
                for some, answers in self._answers(codes, active, alike, crossed.coalitions):
                    found, noise = crossed.of(answers)
                    result[some] += found.cpu().numpy() / count
                    variance[some] += noise.cpu().numpy() / count**2
        return result, variance

    def _answers(
        self, codes: Tensor, active: Tensor, index: Tensor, coalitions: BoolArray
    ) -> Iterator[tuple[tuple[Any, Any], Tensor]]:
        """For some of the rows `index` at a time, where their active players stand in (rows, players), and `asked`."""
        masks = torch.from_numpy(coalitions).to(self.device, torch.float32)
        for some in torch.split(index, self.rows_at_a_time(len(coalitions))):
            players = torch.nonzero(active[some])[:, 1].view(len(some), -1)
            yield (some.cpu().numpy()[:, None], players.cpu().numpy()), self.asked(codes[some], masks, players)

    def _crossed(self, active: Tensor, seed: int) -> CrossedDesign:
        """The design of all rows with these active players, (players,); made once."""
        players = np.flatnonzero(active.cpu().numpy())
        key = players.tobytes(), seed
        kept = self._designs  # never changed, but replaced: several threads may ask
        found = kept.get(key)
        if found is None:
            found = crossed_design(len(players), seed, self.interactions.of(players[None]))
            if sum(design.nbytes for design in kept.values()) + found.nbytes > DESIGN_BYTES:
                kept = {}
            self._designs = {**kept, key: found}
        return found

    @property
    def interactions(self) -> Interactions:
        """How much its players interact."""
        return Interactions(self.single.cpu(), self.related.cpu(), self.joint.cpu())

    @torch.inference_mode()
    def screen(self, codes: Tensor, seed: int) -> None:
        """Learns how much players interact, from its own values of a few of these rows."""
        n = self.n_players
        self._designs = {}
        active = self.active(codes).cpu().numpy()
        sampled = [design_size(m, self.config.values_per_label(n)) != 2**m - 1 for m in range(n + 1)]
        rows = np.flatnonzero(np.asarray(sampled)[active.sum(axis=1)])
        if not len(rows):
            return  # all coalitions of a row are asked for
        coalitions = random_pairs(n, min(6 * n, SCREENING_PAIRS), stream_seed(seed, "interactions"))
        rows = rows[telling_rows(active[rows], most_patterns=int(SCREENING_WORK // len(coalitions) ** 3))]
        both = torch.from_numpy(np.concatenate([coalitions, ~coalitions])).to(self.device, torch.float32)
        parts = torch.split(codes[torch.from_numpy(rows).to(codes.device)], self.rows_at_a_time(len(both)))
        values = torch.cat([self.asked(part, both) for part in parts]).double().cpu().numpy()  # (rows, 2 k, outputs)
        odd = (values[:, : len(coalitions)] - values[:, len(coalitions) :]).transpose(0, 2, 1) / 2
        with torch.inference_mode(mode=False), torch.enable_grad():
            each = np.repeat(active[rows], self.n_outputs, axis=0)
            found = fit_interactions(coalitions, odd.reshape(-1, len(coalitions)), each)
        self.single.copy_(found.single)
        self.related.copy_(found.related)
        self.joint.copy_(found.joint)


def telling_rows(active: BoolArray, most_patterns: int) -> npt.NDArray[np.int64]:
    """Which rows, (rows, players), say how much players interact: first those that show rare players, then any.

    The rows of a random order are taken as they come, but for those that show players which few others show.
    """
    wanted = np.minimum(ACTIVE_ROWS, active.sum(axis=0))
    chosen: list[int] = []
    while len(chosen) < min(SCREENED_ROWS, len(active)):
        missing = active[chosen].sum(axis=0) < wanted
        gain = (active & missing).sum(axis=1)
        gain[chosen] = -1
        chosen.append(int(gain.argmax()))
    patterns = np.unique(active[chosen], axis=0, return_inverse=True)[1].ravel()
    first = np.unique(patterns, return_index=True)[1]
    allowed = patterns[np.sort(first)[: max(1, most_patterns)]]
    return np.asarray(chosen)[np.isin(patterns, allowed)]


class _Inputs:
    """The inputs of rows; encoded once for all, where they fit into `INPUT_BYTES`."""

    @torch.no_grad()
    def __init__(self, features: TableFeatures, codes: Tensor) -> None:
        self.features, self.codes = features, codes
        self.whole: Tensor | None = None
        if 4 * features.width * len(codes) <= INPUT_BYTES:
            self.whole = torch.cat([features(part) for part in torch.split(codes, ENCODED_ROWS)])

    @torch.no_grad()
    def of(self, rows: Tensor) -> Tensor:
        """(rows, width)."""
        if self.whole is None:
            found: Tensor = self.features(self.codes[rows])
            return found
        return self.whole[rows]


def train_student(
    student: StudentNetwork, values: ValueSet, steps: int, *, seed: int, screen: bool = True, show: bool | None = None
) -> None:
    """Trains in place on the values, and with `screen` learns how much players interact: labels need to know."""
    config = student.config
    optimizer = Muon(student.layers, config.learning_rate, config.weight_decay, betas=(0.9, 0.98))
    generator = torch_generator(seed, "student", len(values))
    student.scale.copy_(scale_of(values.values, (0, 1)))
    inputs = _Inputs(student.features, values.codes)
    active = student.active(values.codes)

    def loss(inputs: Tensor, kept: Tensor, target: Tensor) -> Tensor:
        twice = inputs.repeat_interleave(2, dim=0)
        error: Tensor = student(twice, kept.flatten(0, 1)) - target.flatten(0, 1) / student.scale
        return error.square().mean()

    do = Step(loss, optimizer, clip=1.0)
    size = min(config.batch_size // 2, len(values))
    student.train()
    with progress_bar("training the student", steps, show=show) as advance:
        for step in range(steps):
            set_rate(optimizer, config.learning_rate * rate(step / steps, "one-cycle"))
            index = torch.randint(len(values), (size,), generator=generator).to(values.row.device)
            masks, target = values.masks(index, active), values.values[index].to(torch.float32)
            do([inputs.of(values.row[index]), masks, target])
            advance(1, "")
    student.eval()
    if not screen:
        return
    rows = torch.unique(values.row)
    chosen = torch.randperm(len(rows), generator=generator)[:SCREENED_FROM].to(rows.device)
    student.screen(values.codes[rows[chosen]], seed)


@dataclass(frozen=True, eq=False)
class NetworkStudent:
    """A trained student as estimators ask it (`estimators.block.Student`); `base_values` are v(none), (outputs,)."""

    kind: ClassVar[str] = "network"

    network: StudentNetwork
    schema: Schema
    """Of the table that it learned from: what its codes of categories mean."""
    base_values: Array
    seed: int

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `from_tensors` makes the same student of: tensors on the CPU, and facts as JSON types."""
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in self.network.state_dict().items()}
        return tensors, {"config": asdict(self.network.config), "seed": self.seed}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], facts: dict[str, Any], spec: GameSpec) -> NetworkStudent:
        """The student of saved tensors; raises `ValueError` where the facts describe another network than these."""
        config = StudentConfig(**facts["config"])
        blocks = len({name.split(".")[1] for name in tensors if name.startswith("layers.") and ".first." in name})
        if tensors["layers.0.weight"].shape[0] != config.width or blocks != config.depth:
            raise ValueError("the student's settings do not fit its weights")
        begin = "features."
        features = TableFeatures({name[len(begin) :]: t for name, t in tensors.items() if name.startswith(begin)})
        players, absent = torch.from_numpy(spec.players.column_player), torch.from_numpy(spec.absent)
        network = StudentNetwork(features, players, absent, len(spec.base_values), config, 0)
        network.load_state_dict(tensors)
        assert isinstance(spec.schema, Schema)
        return cls(network.eval().requires_grad_(False), spec.schema, spec.base_values, int(facts["seed"]))

    @property
    def most_asked(self) -> int | None:
        """None: any number of values takes little beside its own training."""
        return None

    def label_count(self, n_rows: int, most: int) -> int:
        """Rows that it labels for an explainer, made-up ones included: all of the table's `n_rows` come first."""
        config = self.network.config
        return min(most, max(n_rows, config.label_asks // config.values_per_label(self.network.n_players)))

    def labels(self, codes: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Shapley values, (rows, players, outputs), and v(all) - v(none), (rows, outputs), of encoded rows."""
        return self.network.labels(codes, seed)

    def totals(self, codes: Tensor) -> Tensor:
        """v(all) - v(none), (rows, outputs)."""
        return self.network.totals(codes)

    def _codes(self, rows: Rows) -> Tensor:
        return torch.from_numpy(table_of(rows, "a student").coded_like(self.schema)).to(self.network.device)

    @torch.inference_mode()
    def values(self, rows: Rows, coalitions: BoolArray) -> Array:
        """v(S), (rows, k, outputs), for coalitions (k, players) or (rows, k, players)."""
        coalitions = np.broadcast_to(coalitions, (len(rows), *coalitions.shape[-2:])) & rows.active[:, None, :]
        masks = torch.from_numpy(coalitions).to(self.network.device, torch.float32)
        size, codes = self.network.rows_at_a_time(masks.shape[-2]), self._codes(rows)
        # One array for all: small results between large intermediate ones would keep the heap from using these again.
        result = np.empty((*masks.shape[:2], self.network.n_outputs))
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            result[part] = self.network.asked(codes[part], masks[part]).double().cpu().numpy()
        return result + self.base_values

    def shapley(self, rows: Rows) -> Array:
        """Shapley values of the student's game, (rows, players, outputs): enumerated, or from many coalitions."""
        return self.sampled_shapley(rows, self.seed, 1)[0]

    def sampled_shapley(self, rows: Rows, seed: int, values: int) -> tuple[Array, Array]:
        """Its Shapley values from `values` coalitions or some more, drawn by `seed`, and their variance.

        Right on average, and exact up to 13 active players; both are (rows, players, outputs).
        """
        among = torch.from_numpy(rows.active).to(self.network.device)  # the game may have another reference by now
        found, variance = self.network.precise(self._codes(rows), seed, among, values)
        # What float32 rounds off is shared out, or rows near the reference would not add up.
        ends = self.values(rows, np.stack([np.zeros_like(rows.active), rows.active], axis=1))
        return adding_up(found, ends[:, 1] - ends[:, 0], rows.active), variance
