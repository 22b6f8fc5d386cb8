"""Groups of commands that import only the module of the command that is typed.

The options of a command stand beside its body, whose module imports what the body needs. The list of a group, for its
help and for completion, comes from a table.

typer converts each value with pydantic, which takes longer to import than most commands take to run. A value that this
conversion would not change is not converted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from orchestrator.cli.output import TextColor, coloured, joined, painted, say


class CommandEntry(NamedTuple):
    """A command in the table of its group."""

    target: str
    """MODULE:NAME, in this package: a function, whose parameters are the options, or a group."""
    line: str
    """The first sentence of its help, for the list of the group."""
    epilog: str | None = None
    """The last part of its help, such as the exit codes."""


class LazyGroup(TyperGroup):
    """A group of commands."""

    def __init__(self, table: Mapping[str, CommandEntry], **options: Any) -> None:
        options = {"rich_markup_mode": None, **options}  # plain help: quick, and the same in a pipe
        options["commands"] = {name: TyperCommand(name, help=one.line) for name, one in table.items()}
        super().__init__(**options)
        self.table = table
        self._loaded: set[str] = set()

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name of the typed command, the command, and the further arguments."""
        if args and args[0] not in self.table and (elsewhere := self.elsewhere(args[0])):
            ctx.fail(f"No such command '{args[0]}': it is `{elsewhere}`")
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else self.load(name), rest

    def elsewhere(self, name: str) -> str:
        """Return the whole name of a command of another group; "" if no group has it."""
        del name
        return ""

    def load(self, name: str) -> Any:
        """Import the module of a command, once, and return the command."""
        if name not in self._loaded:
            entry = self.table[name]
            found = resolve_name(f"orchestrator.cli.{entry.target}")
            if isinstance(found, typer.Typer):
                found = get_group(found)
            elif not isinstance(found, TyperGroup):
                holder = typer.Typer(rich_markup_mode=None, add_completion=False)
                holder.command(name, epilog=entry.epilog)(found)
                found = get_command(holder)
            self.commands[name] = convert_late(found)
            self._loaded.add(name)
        return self.commands[name]


@dataclass(frozen=True, slots=True)
class LateConversion:
    """The conversion of the values of one parameter."""

    conversion: Callable[[], Any]
    """Returns the conversion by typer, and imports pydantic."""

    def __call__(self) -> LateConversion:
        """Return itself, in place of the method of typer that returns a conversion."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value that the command receives. Raises typer.BadParameter."""
        about, several = param.type_descriptor, param.multiple or param.nargs == -1
        parse, kind = about.parameter_info.parser, type(value)
        if value is None:
            return () if several else None
        if ctx.get_parameter_source(param.name).name == "DEFAULT":
            if kind is about.annotation or value in (about.choices or ()):
                return value
        elif parse is not None and not several:
            with suppress(ValueError):  # typer reports it
                return parse(value)
        elif parse is None and kind is str and value.isascii():
            choices = [one for one in about.choices or () if type(one) is str]
            if about.annotation is str or value in choices:
                return value
        return self.conversion().coerce(value, param=param, ctx=ctx)


_HEADS = ("Usage:", "Arguments:", "Options:", "Commands:")
_TERM = re.compile(r"  (\S.*?)(?=  |$)")


def print_help(context: Any, _option: Any, value: Any) -> None:
    """Print the help of a command, on a terminal with the names of options and commands in colour, and end it."""
    if not value or context.resilient_parsing:
        return
    section = ""
    for line in context.get_help().splitlines():
        head = next((one for one in _HEADS if line.startswith(one)), "")
        section = head or ("" if line[:1].strip() else section)
        term = None if section in ("", "Usage:") else _TERM.match(line)
        if head or term is None:
            say(joined(painted(head, TextColor.HEAD, colour=coloured()), line[len(head) :]))
        else:
            name = painted(term[1], TextColor.PLACE, colour=coloured())
            say(joined("  ", name, line[term.end() :]))
    context.exit()


def convert_late(command: Any) -> Any:
    """Return a command, or a group with its commands, whose parameters convert only the values that need it.

    Its help has colour on a terminal.
    """
    parameters = command.get_params

    def get_params(context: Any) -> list[Any]:
        found: list[Any] = parameters(context)
        for parameter in found:
            if not isinstance(parameter.get_runtime_param, LateConversion):
                parameter.get_runtime_param = LateConversion(parameter.get_runtime_param)
        return found

    help_option = command.get_help_option

    def get_help_option(context: Any) -> Any:
        option = help_option(context)
        if option is not None:
            option.callback = print_help
        return option

    command.get_params, command.get_help_option = get_params, get_help_option
    for one in getattr(command, "commands", {}).values():
        convert_late(one)
    return command
