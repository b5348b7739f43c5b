"""A graph of `onnx_graph` in onnxruntime: any number of rows, in parts that a processor's cache holds. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import need
from cortx.onnx_files import check_self_contained
from cortx.threads import available_threads

ROWS_AT_A_TIME = 256
"""Rows of a table in one run, at most."""
ROWS_OF_A_RUN = "cortx_rows_of_a_run"
"""Where a graph says, among its metadata, that fewer keep its memory small."""
NUMBERS_AT_A_TIME = 2**18
"""Numbers of images in one run: about 85 images of CIFAR-10."""
PER_ROW = ("rows", "outputs", "empty")
"""The inputs that have one line for each row; the others are the same for all."""
DTYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(bool)": np.bool_}

Feeds = Mapping[str, npt.NDArray[Any]]


class Session:
    """An open graph. `threads` is what one call may use: by default `available_threads`.

    Parts of a table run side by side, each on one thread: they wait for nobody, and the numbers do not depend on how
    many threads there are. The layers of an image network are large enough to be shared by the threads.
    """

    def __init__(self, graph: bytes, *, images: bool, threads: int = 0) -> None:
        check_self_contained(graph)
        self._graph, self._images = graph, images
        self._threads = threads or available_threads()
        self._open()

    def _open(self) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise need("onnxruntime", "the portable runtime", "onnx") from error
        self._process = os.getpid()
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        settings.intra_op_num_threads = self._threads if self._images else 1
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it takes cores from others
        self._session: Any = onnxruntime.InferenceSession(self._graph, settings, providers=["CPUExecutionProvider"])
        self._outputs = {output.name: output for output in self._session.get_outputs()}
        self._needed: Any = onnxruntime.RunOptions()
        self._needed.only_execute_path_to_fetches = True
        self._pool: ThreadPoolExecutor | None = None
        if self._images:
            self._at_a_time = max(1, NUMBERS_AT_A_TIME // int(self._session.get_inputs()[0].shape[1]))
        else:
            told = self._session.get_modelmeta().custom_metadata_map.get(ROWS_OF_A_RUN, ROWS_AT_A_TIME)
            self._at_a_time = min(max(1, int(told)), ROWS_AT_A_TIME)
            if self._threads > 1:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="cortx")  # starts them when needed

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self._outputs)

    @property
    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """What the graph says of its inputs and outputs: their shapes, whose first axis is mostly that of rows."""
        return {item.name: tuple(item.shape) for item in (*self._session.get_inputs(), *self._session.get_outputs())}

    def run(self, names: Sequence[str], feeds: Feeds) -> list[npt.NDArray[Any]]:
        """The named outputs for all rows; nothing else is computed."""
        if self._process != os.getpid():
            self._open()  # threads do not survive a fork
        count, size = len(feeds["rows"]), self._at_a_time
        if count <= size:
            whole: list[npt.NDArray[Any]] = self._session.run(names, feeds, self._needed)
            return whole
        made = [self._outputs[name] for name in names]
        results = [np.empty((count, *output.shape[1:]), dtype=DTYPES[output.type]) for output in made]

        def fill(start: int) -> None:
            part = slice(start, start + size)
            some = {name: array[part] if name in PER_ROW else array for name, array in feeds.items()}
            for result, answer in zip(results, self._session.run(names, some, self._needed), strict=True):
                result[part] = answer

        starts = range(0, count, size)
        for _ in map(fill, starts) if self._pool is None else self._pool.map(fill, starts):
            pass
        return results
