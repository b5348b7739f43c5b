"""Short names for classes that are imported only when somebody asks for them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from cortx.errors import InputError

T = TypeVar("T")


class Registry(Mapping[str, type[T]], Generic[T]):
    """Maps a short name to a class given as ``"package.module:Class"``; the module is imported on first use."""

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self._kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> type[T]:
        if name not in self._entries:
            known = ", ".join(repr(key) for key in self._entries)
            raise InputError(f"unknown {self._kind} {name!r}; expected one of {known}")
        module, _, attribute = self._entries[name].partition(":")
        loaded: type[T] = getattr(importlib.import_module(module), attribute)
        return loaded

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
