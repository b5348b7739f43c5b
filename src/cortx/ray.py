"""Ray: datasets with their explanations, labels of datasets, and tasks on a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cortx.distributed.explain_job import OpenExplainer
from cortx.distributed.kernel import ExplainSettings, explained_schema
from cortx.distributed.ray_engine import RayEngine, import_ray
from cortx.distributed.source import BATCH_ROWS
from cortx.distributed.work import Task, failed
from cortx.errors import CortxError, InputError, need

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["RayEngine", "explain", "label"]

logger = logging.getLogger("cortx")


def explain(
    dataset: Dataset,
    explainer: str | os.PathLike[str],
    *,
    model: Any = None,
    outputs: str | Sequence[str] = (),
    confidence: float | None = None,
    top: int | None = None,
    concurrency: int | tuple[int, int] | None = None,
    gpus_per_worker: float = 0.0,
    batch_rows: int = BATCH_ROWS,
) -> Dataset:
    """The dataset with explanations: the same rows in the same order, computed when the result is used.

    `explainer` is the folder of a saved explainer, which every node must see. The other arguments and the columns that
    are added are those of `cortx.distributed.explain`. Actors load the explainer once; `concurrency` says how many
    there are, or at least and at most how many, by default as many as there is room for. Missing columns are said at
    once; rows that cannot be explained when they are reached, by their number in a batch of at most `batch_rows`.
    """
    import_ray()
    data = _ray_data()
    if not isinstance(dataset, data.Dataset):
        raise InputError(f"dataset is a {type(dataset).__qualname__}; expected a ray.data.Dataset")
    if batch_rows < 1:
        raise InputError(f"batch_rows must be at least 1, got {batch_rows}")
    settings = ExplainSettings(outputs=outputs, confidence=confidence, top=top)  # type: ignore[arg-type]
    opened = OpenExplainer.of(explainer, model, settings)
    schema = _arrow_schema(dataset.schema(fetch_if_missing=False))
    if schema is not None:  # a missing column is said now, not by a worker later
        explained_schema(replace(opened, model=None).load(), schema, settings, with_model=opened.model is not None)
    _warn_of_a_full_cluster(concurrency)
    explained = dataset.map_batches(
        _Explain,
        fn_constructor_args=(replace(opened, device="cuda:0" if gpus_per_worker else "cpu"),),
        compute=_pool(data, concurrency),
        batch_size=batch_rows,
        batch_format="pyarrow",
        num_cpus=1,
        num_gpus=gpus_per_worker or None,
    )
    explained = data.Dataset.copy(explained, _deep_copy=True)  # with a context that is not the caller's
    explained.context.execution_options.preserve_order = True
    return explained


def label(dataset: Dataset, model: Any, folder: str | os.PathLike[str], **settings: Any) -> Any:
    """Labels rows of a dataset into a folder that only grows, as `cortx.distributed.label` does, on the same Ray.

    `folder` must be seen by every node. `settings` are the other arguments of `cortx.distributed.label`; its `engine`
    is by default a `RayEngine`.
    """
    from cortx.distributed.labelling import label as label_source

    import_ray()
    if not isinstance(dataset, _ray_data().Dataset):
        raise InputError(f"dataset is a {type(dataset).__qualname__}; expected a ray.data.Dataset")
    engine = settings.pop("engine", None)
    return label_source(model, DatasetSource(dataset), folder, engine=engine or RayEngine(), **settings)


class DatasetSource:
    """A Ray dataset as a stream of record batches; it is computed again each time it is asked for."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    @cached_property
    def schema(self) -> Any:
        schema = _arrow_schema(self.dataset.schema())
        if schema is not None:
            return schema
        for table in self.dataset.iter_batches(batch_size=BATCH_ROWS, batch_format="pyarrow"):  # of pandas frames
            return table.schema
        raise InputError("the dataset is empty")

    @cached_property
    def n_rows(self) -> int:
        return int(self.dataset.count())

    def batches(self, columns: Sequence[str] | None = None, batch_rows: int = BATCH_ROWS) -> Iterator[Any]:
        """Record batches of the named columns, by default all, of at most `batch_rows` rows."""
        import pyarrow as pa

        names = list(self.schema.names if columns is None else columns)
        missing = [name for name in names if name not in self.schema.names]
        if missing:
            raise InputError(
                f"the dataset lacks the column {', '.join(map(repr, missing))}; it has {', '.join(self.schema.names)}"
            )
        wanted = pa.schema([self.schema.field(name) for name in names])
        chosen = self.dataset if columns is None else self.dataset.select_columns(names)
        for table in chosen.iter_batches(batch_size=batch_rows, batch_format="pyarrow"):
            yield from table.select(names).cast(wanted).combine_chunks().to_batches()


class _Explain:
    """What an actor of Ray Data does with each batch."""

    def __init__(self, opened: OpenExplainer) -> None:
        self.opened = opened
        opened.load()

    def __call__(self, table: Any) -> Any:
        import pyarrow as pa

        try:
            schema = explained_schema(self.opened.load(), table.schema, self.opened.settings)
            batches = table.combine_chunks().to_batches() if len(table) else []
            return pa.Table.from_batches(list(self.opened.explain(batches)), schema)
        except CortxError as error:
            called = f"in a batch of {len(table):,} rows, whose first is row 0"  # Ray says no more of where it lies
            raise failed(Task(called, len(table)), error) from error


def _pool(data: Any, concurrency: int | tuple[int, int] | None) -> Any:
    match concurrency:
        case None:
            return data.ActorPoolStrategy(min_size=1)
        case (least, most):
            return data.ActorPoolStrategy(min_size=least, max_size=most)
        case _:
            return data.ActorPoolStrategy(size=concurrency)


def _warn_of_a_full_cluster(concurrency: int | tuple[int, int] | None) -> None:
    """Actors that hold all CPUs leave none to read the dataset with, and Ray Data then waits without a word."""
    import ray

    least = concurrency[0] if isinstance(concurrency, tuple) else concurrency or 1
    there = ray.cluster_resources().get("CPU", 0.0)
    if least >= there:
        logger.warning(
            "%d actors take all of the %g CPUs of this Ray, and reading needs one too: unless the cluster grows, the "
            "run waits; use a smaller concurrency=",
            least,
            there,
        )


def _ray_data() -> Any:
    try:
        from ray import data
    except ImportError as error:
        raise need("ray[data]", "working on Ray datasets", "ray") from error
    return data


def _arrow_schema(schema: Any) -> Any:
    """The Arrow schema of a Ray schema, where Ray has one: not of pandas blocks, nor before anything is read."""
    import pyarrow as pa

    base = getattr(schema, "base_schema", None)
    return base if isinstance(base, pa.Schema) else None
