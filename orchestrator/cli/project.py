"""`orchestrator init` and `orchestrator add`: a project from templates, and its additions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say
from orchestrator.errors import ConfigError
from orchestrator.project.addition import Project
from orchestrator.project.creation import create_project, wheel_command

group = typer.Typer(help="Add a state, machine, tool or guard to a project of `init`.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: lower-case letters, digits and _.")]
Machine = Annotated[
    str | None,
    typer.Option(
        "--machine", "-m", metavar="NAME", help="The machine that gets the state. Default: the only one."
    ),
]


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the project and of its folder.")],
) -> None:
    """Make a project: an agent with tools, a machine, with tests.

    It has a web service, a Dockerfile, a compose file, dashboards and alerts. `orchestrator add` extends it.
    """
    folder = create_project(name, Path.cwd(), _export_pack)
    count = sum(file.is_file() for file in folder.rglob("*"))
    say(f"{folder.name}: {count} files")
    if command := wheel_command():
        say(f"  cd {folder.name} && {command}    # this installation is from no package index")
        say("  make test    # set up, then run its tests")
    else:
        say(f"  cd {folder.name} && make test    # set up, then run its tests")
    say(
        f"  {folder.name}/README.md describes it; {folder.name}/.env has the token of its service, for you alone"
    )
    raise typer.Exit(Exit.COMPLETED)


def _export_pack(folder: Path) -> None:
    """Write the operations pack of the project, as its `make ops` does: in a process that can import the project."""
    project = Project.at(folder)
    graphs = [
        part for one in project.machines for part in ("--graph", f"{project.package}.machines.{one}:GRAPH")
    ]
    command = [sys.executable, "-B", "-m", "orchestrator", "ops", "export", "ops", *graphs]
    done = subprocess.run(  # noqa: S603 - our own command
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ConfigError(f"the operations pack cannot be written: {done.stderr.strip()}")


@group.callback()
def add_group() -> None:
    """Add a state, a machine, a tool or a guard, each with its tests, to the project in this folder."""


@group.command()
def state(name: Name, *, machine: Machine = None) -> None:
    """Add a state before the end of a machine, with a hook."""
    _print(Project.at(Path.cwd()).add_state(name, machine))


@group.command()
def machine(name: Name) -> None:
    """Add a machine: its table, its hooks, and a function that runs it."""
    _print(Project.at(Path.cwd()).add_machine(name))


@group.command()
def tool(name: Name) -> None:
    """Add a tool of the agent."""
    _print(Project.at(Path.cwd()).add_tool(name))


@group.command()
def guard(name: Name) -> None:
    """Add a guard: a pure function from two numbers to a verdict."""
    _print(Project.at(Path.cwd()).add_guard(name))


def _print(changed: Iterable[Path | str]) -> None:
    for file in changed:
        say(f"{file}")
    say("`make test` runs the tests, with those of the addition")
