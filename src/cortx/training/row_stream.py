"""Pre-training on a table that does not fit into memory: rows come in random order, the model is asked as they do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from cortx.estimators.permutation import Permutation, walk_values
from cortx.estimators.shapley import shapley
from cortx.games import Game, Rows
from cortx.seeding import numpy_generator, stream_seed, torch_generator
from cortx.tables import Schema, read_table
from cortx.training.finetune import LabelSet
from cortx.training.network import ExplainerNetwork
from cortx.training.parallel import ALONE, Processes
from cortx.training.pretrain import Batch, PretrainConfig, masked_copies, positives_of


@runtime_checkable
class RowStream(Protocol):
    """A table that is never in memory as a whole. The same seed gives the same rows in the same order."""

    @property
    def n_rows(self) -> int: ...

    @property
    def identity(self) -> str:
        """What tells its content from another's."""
        ...

    def sample(self, count: int, seed: int, columns: Sequence[str] | None = None) -> Any:
        """At most `count` random rows as a frame, of the named columns or of all."""
        ...

    def shuffled(
        self, size: int, seed: int, columns: Sequence[str] | None = None, start: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Frames of `size` rows without end, from batch number `start` on, each with the number of its pass.

        Every pass has all rows once, in another random order; a batch may hold the end of one and the start of another.
        """
        ...


class StreamFeed:
    """Batches of a `RowStream`. Each process reads them all, and asks the model about its own share.

    `schema` is what the network knows of the columns, `silent` the words of rows that must teach nothing, `spare` rows
    that may stand in where a batch holds hardly any others. Later passes draw anew.
    """

    even = False

    def __init__(
        self,
        network: ExplainerNetwork,
        game: Game,
        stream: RowStream,
        schema: Schema,
        silent: npt.NDArray[np.uint64],
        spare: Rows,
        config: PretrainConfig,
        seed: int,
        together: Processes = ALONE,
    ) -> None:
        self.network, self.game, self.stream, self.schema = network, game, stream, schema
        self.silent, self.spare = silent, spare
        self.config, self.seed, self.together = config, seed, together
        self.labelled = config.rough_pairs > 0
        self._batches: Iterator[tuple[int, Any]] | None = None

    def batch(self, step: int, generator: torch.Generator) -> Batch:
        del generator
        if self._batches is None:
            size = min(self.config.batch_size, self.stream.n_rows)
            self._batches = self.stream.shuffled(size, self.seed, self.schema.names, start=step)
        pass_, frame = next(self._batches)
        rows = self._learners(self.game.rows(read_table(frame, schema=self.schema)), step)
        share = self.together.share(len(rows))
        pick = torch.randint(
            len(self.game.absent), (len(rows),), generator=torch_generator(self.seed, "background", step)
        )
        own = rows.take(np.arange(len(rows))[share])
        matrix = torch.from_numpy(own.table.matrix).to(self.network.device)
        outputs, labels = self._ask(own, matrix, pass_)
        kept = positives_of(self.game, own, outputs, self.config, seed=self.seed, round_=pass_)
        return Batch(len(rows), matrix, masked_copies(self.game, matrix, kept, pick[share]), labels)

    def _learners(self, rows: Rows, step: int) -> Rows:
        """The rows that may teach; where there are too few of them for all processes, spare ones."""
        index = np.flatnonzero(~np.isin(rows.words, self.silent))
        if len(index) == len(rows):
            return rows
        if len(index) >= max(2, self.together.world):
            return rows.take(index)
        return self.spare.take(numpy_generator(self.seed, "spare rows", step).permutation(len(self.spare))[: len(rows)])

    def _ask(self, rows: Rows, matrix: torch.Tensor, pass_: int) -> tuple[npt.NDArray[np.float64], LabelSet | None]:
        """f(x), (rows, outputs), and rough labels."""
        game, device = self.game, matrix.device
        if not self.labelled:
            return game.full_values(rows), None
        seed = self.seed if pass_ == 0 else stream_seed(self.seed, "pass", pass_)
        pairs = self.config.rough_pairs
        budget = game.evaluations_per_value * (1 + walk_values(game.n_players, pairs))
        made = shapley(game, rows.table, Permutation(pairs), row_budget=budget, views=0, seed=seed, progress=False)
        outputs = np.asarray(made.outputs, dtype=np.float64).reshape(len(rows), game.n_outputs)
        values = np.asarray(made.values).reshape(len(rows), game.n_players, game.n_outputs)
        labels = LabelSet(
            matrix,
            torch.from_numpy(outputs - game.base_values).to(device, torch.float32),
            self.network.active(matrix),
            torch.from_numpy(values).to(device, torch.float32),
        )
        return outputs, labels
