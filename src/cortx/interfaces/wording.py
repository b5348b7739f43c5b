"""Errors of the library in the words of the command line: options where it speaks of Python's arguments."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from cortx.errors import CortxError, CortxWarning

ALIASES = {
    "categorical": "--categorical",
    "columns": "--drop",
    "labels": "--labels-from",
    "n_labels": "--labels",
    "players": "--group",
    "slices": "--slice",
}
"""Arguments whose options go by another name, or by one that means something else."""
PYTHON = {
    "explainer.set_params(unseen='ignore')": "cortx fit --unseen ignore",
    "explainer.evaluate(X)": "cortx evaluate",
    "categorical=[...]": "--categorical",
    "categorical=()": "--categorical none",
    "Calls(retries=...)": "--retries",
}
"""What is written otherwise for a command."""

# Not in quotes, paths or longer names: those are the user's own words.
ARGUMENT = re.compile(r"(?<![\w\"'/=.-])([A-Za-z]\w*)=(\.\.\.)?(?=(.?))", re.DOTALL)


class Group(TyperGroup):
    """Commands whose errors name options."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            self._show_hints(ctx)
            return self._invoke(ctx)

    def _show_hints(self, ctx: Any) -> None:
        """Our own warnings are shown in one line, in the words of the command line and without a line of code."""
        show = warnings.showwarning

        def shown(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, CortxWarning):
                show(message, category, *where, **more)
                return
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            typer.echo(f"hint: {in_options(str(message), options_of(command, self))}", err=True)

        warnings.showwarning = shown

    def _invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CortxError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            options = options_of(command, self)
            # Part by part: an error may be made of several (`RowError`).
            error.args = tuple(in_options(part, options) if isinstance(part, str) else part for part in error.args)
            raise


def options_of(command: Any, group: TyperGroup) -> dict[str, str]:
    """The option of each argument: the command's own, or else that of whichever command has one."""
    every = [each for each in _commands(group) if each is not command]
    found: dict[str, str] = {}
    for each in [*every, *([] if command is None else [command])]:
        for parameter in each.params:
            option = parameter.param_type_name == "option"
            found[parameter.name] = (
                max(parameter.opts, key=len) if option else parameter.metavar or parameter.name.upper()
            )
    return found | ALIASES


def _commands(group: TyperGroup) -> Iterator[Any]:
    for command in group.commands.values():
        if isinstance(command, TyperGroup):
            yield from _commands(command)
        else:
            yield command


def in_options(text: str, options: dict[str, str]) -> str:
    """The text with ``name=`` as the option of that name; one that has no option keeps its plain name."""

    def written(match: re.Match[str]) -> str:
        name, dots, after = match.groups()
        if name not in options:
            return match.group() if after.isalnum() and not dots else name
        # A value that follows stands apart from its option.
        return options[name] + (" " if not dots and (after.isalnum() or after in "'\"[({-") and after else "")

    for call, instead in PYTHON.items():
        text = text.replace(call, instead)
    return ARGUMENT.sub(written, text)
