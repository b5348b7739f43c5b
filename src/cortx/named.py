"""Models by name, for the command line and for workers on other machines."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from cortx.errors import InputError


def load_model(name: str, folder: str | None = None) -> Any:
    """The object named ``package.module:object``, or the path of an ONNX file as it is.

    Modules are looked for in `folder` too, by default the current one.
    """
    if name.lower().endswith(".onnx"):
        if not Path(name).is_file():
            raise InputError(f"there is no ONNX file {name!r}")
        return name
    module, colon, attributes = name.partition(":")
    if not (module and colon and attributes):
        raise InputError(
            f"MODEL must be package.module:object or the path of an .onnx file, got {name!r}; "
            "for example scoring:model is the object 'model' in scoring.py"
        )
    folder = str(Path.cwd()) if folder is None else folder
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise  # a library that the user's module needs: its traceback says where
        raise InputError(
            f"there is no module {error.name!r} (of MODEL {name!r}) in {folder} or among the installed packages"
        ) from error
    for part in attributes.split("."):
        if not hasattr(found, part):
            names = [known for known in dir(found) if not known.startswith("_")]
            raise InputError(f"MODEL {name!r}: there is no {part!r}; there is {', '.join(names[:20]) or 'nothing'}")
        found = getattr(found, part)
    return found
