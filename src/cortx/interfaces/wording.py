"""Errors of the library in the words of the command line: options where it speaks of Python's arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup

from cortx.errors import CortxError

ALIASES = {
    "categorical": "--categorical",
    "columns": "--drop",
    "labels": "--labels-from",
    "n_labels": "--labels",
    "players": "--group",
    "slices": "--slice",
}
"""Arguments whose options go by another name, or by one that means something else."""

# Not in quotes, paths or longer names: those are the user's own words.
ARGUMENT = re.compile(r"(?<![\w\"'/=.-])([A-Za-z]\w*)=(\.\.\.)?(?=(.?))", re.DOTALL)


class Group(TyperGroup):
    """Commands whose errors name options."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CortxError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            error.args = (in_options(str(error), options_of(command, self)),)
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

    return ARGUMENT.sub(written, text)
