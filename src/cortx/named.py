"""Models by name, for the command line and for workers on other machines."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from cortx.errors import InputError
from cortx.storage import is_address, local_path


def module_folder() -> str | None:
    """Where modules of a model are looked for besides the installed ones: the working directory.

    None under Python's safe path (``-P`` or the variable PYTHONSAFEPATH), which asks for nothing to be imported from
    there.
    """
    return None if sys.flags.safe_path else str(Path.cwd())


def load_model(name: str) -> Any:
    """The object named ``package.module:object``, or the path of an ONNX file as it is; see `load_model_from`."""
    return load_model_from(module_folder(), name)


def load_model_from(folder: str | None, name: str) -> Any:
    """The same, with modules looked for among the installed ones first and then in `folder` (None: nowhere else).

    The folder comes last, so that a file there cannot take the place of a library.
    """
    if is_address(name):
        name = str(local_path(name, "MODEL"))
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
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise  # a library that the user's module needs: its traceback says where
        raise InputError(
            f"there is no module {error.name!r} (of MODEL {name!r}) among the installed packages{_nor_in(folder)}"
        ) from error
    for part in attributes.split("."):
        if not hasattr(found, part):
            names = [known for known in dir(found) if not known.startswith("_")]
            file = getattr(sys.modules[module], "__file__", None) or "a module without a file"
            raise InputError(
                f"MODEL {name!r}: there is no {part!r} in {file}; there is {', '.join(names[:20]) or 'nothing'}"
            )
        found = getattr(found, part)
    return found


def _nor_in(folder: str | None) -> str:
    if folder is not None:
        return f" or in {folder}"
    return (
        "; the working directory is not searched, because Python runs with a safe path (-P or PYTHONSAFEPATH): name "
        "the module's folder in PYTHONPATH"
    )
