"""Groups of commands that import only the module of the command that is typed.

The options of a command stand beside its body, whose module imports what the body needs. The list of a group, for its
help and for completion, comes from a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group


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
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else self.load(name), rest

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
            self.commands[name] = found
            self._loaded.add(name)
        return self.commands[name]
