"""The commands of the group `add`. Their body is in `project`, imported when they run."""

from __future__ import annotations

from typing import Annotated

import typer

group = typer.Typer(help="Add a state, machine, tool or guard to a project of `init`.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: lower-case letters, digits and _.")]
Machine = Annotated[
    str | None,
    typer.Option(
        "--machine", "-m", metavar="NAME", help="The machine that gets the state. Default: the only one."
    ),
]


@group.callback()
def add_group() -> None:
    """Add a state, a machine, a tool or a guard, each with its tests, to the project in this folder."""


@group.command()
def state(name: Name, *, machine: Machine = None) -> None:
    """Add a state before the end of a machine, with a hook."""
    from orchestrator.cli.project import add

    raise typer.Exit(add("state", name, machine=machine))


@group.command()
def machine(name: Name) -> None:
    """Add a machine: its table, its hooks, and a function that runs it."""
    from orchestrator.cli.project import add

    raise typer.Exit(add("machine", name))


@group.command()
def tool(name: Name) -> None:
    """Add a tool of the agent."""
    from orchestrator.cli.project import add

    raise typer.Exit(add("tool", name))


@group.command()
def guard(name: Name) -> None:
    """Add a guard: a pure function from two numbers to a verdict."""
    from orchestrator.cli.project import add

    raise typer.Exit(add("guard", name))
