"""Training that survives a kill: named tensors and a little JSON, replaced as a whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cortx.errors import ArtifactError, StorageError
from cortx.storage import TEMPORARY, read_whole, write_whole


class Checkpoint:
    """A folder with one file for each stage of a fit. `key` says what the fit depends on.

    A file that belongs to another fit is an error, never silently used or overwritten. ``Checkpoint(None, ...)``
    keeps nothing. Of several processes with the same checkpoint one `writes`, and all of them load.
    """

    writes = True

    def __init__(self, folder: str | Path | None, key: str, every_seconds: float = 10.0) -> None:
        self.folder = None if folder is None else Path(folder)
        self.key = key
        self.every_seconds = every_seconds
        self._stages: set[str] = set()
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, stage: str, tensors: Mapping[str, Tensor], **facts: Any) -> None:
        if self.folder is None or not self.writes:
            return
        self._stages.add(stage)
        path = self.folder / f"{stage}.safetensors"
        metadata = {"cortx": json.dumps({"key": self.key, **facts})}
        copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        write_whole(path, save(copies, metadata))

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The tensors and facts of a stage, or None if it was never saved."""
        path = None if self.folder is None else self.folder / f"{stage}.safetensors"
        if path is None:
            return None
        try:
            content = read_whole(path)
            tensors, facts = load(content), json.loads(_metadata(content).get("cortx", "{}"))
        except FileNotFoundError:
            return None
        except (SafetensorError, ValueError, StorageError) as error:
            raise ArtifactError(
                f"the checkpoint {path} is damaged ({error}); delete it to start this stage again"
            ) from error
        if facts.get("key") != self.key:
            raise ArtifactError(
                f"the checkpoint {path} belongs to another fit (other data, model, labels, recipe or seed); "
                "give another checkpoint folder, or delete this one"
            )
        self._stages.add(stage)
        return tensors, facts

    def clear(self) -> None:
        """Removes what this fit has kept, once the explainer is finished, and nothing else."""
        if self.folder is None or not self.writes:
            return
        for stage in self._stages:
            name = f"{stage}.safetensors"
            for path in [self.folder / name, *self.folder.glob(f"{TEMPORARY}*-{name}")]:
                path.unlink(missing_ok=True)
        with suppress(OSError):  # another fit keeps something there, or has removed the folder
            self.folder.rmdir()


def _metadata(content: bytes) -> dict[str, str]:
    """The texts in the head of a safetensors file that was read without an error."""
    head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata: dict[str, str] = head.get("__metadata__", {})
    return metadata


def pack(prefix: str, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Tensor]:
    """A module's state and its optimizer's, as flat named tensors."""
    tensors = {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}
    if optimizer is not None:
        for index, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"{prefix}-optimizer.{index}.{name}"] = torch.as_tensor(value)
    return tensors


def unpack(
    prefix: str, tensors: Mapping[str, Tensor], module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """The opposite of `pack`."""
    module.load_state_dict(
        {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}
    )
    if optimizer is None:
        return
    state: dict[int, dict[str, Tensor]] = {}
    start = f"{prefix}-optimizer."
    for name, tensor in tensors.items():
        if name.startswith(start):
            index, _, field = name[len(start) :].partition(".")
            state.setdefault(int(index), {})[field] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, tensor in optimizer.state[parameter].items():
                if tensor.shape == parameter.shape:  # in the parameter's own order in memory, as optimizers need it
                    optimizer.state[parameter][name] = torch.empty_like(parameter).copy_(tensor)
