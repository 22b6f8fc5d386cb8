"""`orchestrator init` and `orchestrator add`: a project from templates, and its additions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say
from orchestrator.errors import ConfigError
from orchestrator.project.addition import Project
from orchestrator.project.creation import create_project
from orchestrator.project.origin import wheel_command


def init(name: str) -> int:
    """Make a project in a new folder of the working directory."""
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
    return Exit.COMPLETED


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


def add(kind: str, name: str, *, machine: str | None = None) -> int:
    """Add a part to the project in the working directory, and print the changed files."""
    project = Project.at(Path.cwd())
    if kind == "state":
        changed = project.add_state(name, machine)
    else:
        changed = {"machine": project.add_machine, "tool": project.add_tool, "guard": project.add_guard}[
            kind
        ](name)
    for file in changed:
        say(f"{file}")
    say("`make test` runs the tests, with those of the addition")
    return Exit.COMPLETED
