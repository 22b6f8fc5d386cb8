"""The command line and the demonstrations print through one door; nothing there writes past it.

The streams themselves escape whatever is written to them (`orchestrator.cli.output`). This test refuses the ways around
them: descriptors, the streams' originals, consoles of rich, control sequences, and text marked as styled elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.syntax import nodes

pytestmark = pytest.mark.check

ROOT = Path(__file__).resolve().parents[2] / "orchestrator"
DOOR = "cli/output.py"

CALLS = {
    *("print", "input", "StyledText", "EscapingStream", "_StyledFile"),
    *(
        "typer.echo",
        "typer.secho",
        "typer.confirm",
        "typer.prompt",
        "click.echo",
        "click.secho",
        "rich.print",
    ),
    *("os.write", "os.writev", "os.system", "getpass.getpass", "logging.StreamHandler"),
}
NAMES = {"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"}
IMPORTS = {
    "rich": {"Console", "Live", "Progress", "print"},
    "sys": {"stdout", "stderr"},
    "typer": {"echo", "secho"},
    "click": {"echo", "secho"},
    "orchestrator": {"StyledText", "EscapingStream"},
}
"""Library -> names that write, or that mark text as ours."""

ALLOWED = {
    ("cli/__init__.py", "sys.stdout"): "names the streams, flushes at the end",
    ("cli/__init__.py", "sys.stderr"): "names the streams",
    ("cli/__init__.py", "sys.__stdout__"): "replaces the descriptor of a stream whose reader is gone",
    ("cli/keyboard.py", "sys.stdout"): "asks whether it is a terminal",
    ("cli/screen.py", "Console"): "the console, which escapes what it renders",
    ("cli/screen.py", "Live"): "passes the door after its start",
    ("cli/approval/progress.py", "Progress"): "passes the door after its start",
    ("examples/terminal.py", "sys.stdout"): "the door of the demonstrations",
    ("examples/terminal.py", "sys.stderr"): "the door of the demonstrations",
    ("examples/pipeline/check.py", "sys.stdout"): "a program whose output is read by a stage",
    **{
        (f"examples/ralph/{name}.py", "sys.stdout"): "a program whose output is read by a machine"
        for name in ("executor", "reviewer", "questioner", "checker", "planner")
    },
}
"""(file, what it uses): why it may."""


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def uses(source: str) -> Iterator[tuple[int, str]]:
    """Return what a module uses to write past the door, with its lines."""
    for node in nodes(source):
        for name in used(node):
            yield getattr(node, "lineno", 0), name


def used(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call() if dotted(node.func) in CALLS:
            yield dotted(node.func)
        case ast.Attribute() if dotted(node) in NAMES:
            yield dotted(node)
        case ast.Attribute(attr="buffer") if dotted(node) != "sys.stdin.buffer":
            yield "buffer"
        case ast.ImportFrom():
            banned = IMPORTS.get((node.module or "").partition(".")[0], set())
            yield from (one.name for one in node.names if one.name in banned)
        case ast.Constant(value=str() | bytes()) if "\\x1b" in ascii(node.value):
            yield "a control sequence"


def modules() -> Iterator[tuple[str, str]]:
    for folder in ("cli", "examples"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")


def test_nothing_writes_past_the_door() -> None:
    found = {
        (name, what): line
        for name, source in modules()
        if name != DOOR
        for line, what in uses(source)
        if (name, what) not in ALLOWED
    }
    assert found == {}, "print with say, say_json or complain of orchestrator.cli.output"


def test_every_exception_is_still_needed() -> None:
    used = {(name, what) for name, source in modules() for _, what in uses(source)}
    assert set(ALLOWED) - used == set()


@pytest.mark.parametrize(
    "source",
    [
        "print(text)",
        "import typer\ntyper.echo(text)",
        "import sys\nsys.stdout.write(text)",
        "import sys\nprint_to = sys.__stderr__",
        "from sys import stdout",
        "stream.buffer.write(data)",
        "import os\nos.write(1, data)",
        "from rich.console import Console",
        "from rich.live import Live",
        "from orchestrator.cli.output import StyledText",
        "from typer import echo",
        "say('\\x1b[1mhead')",
        "import logging\nlogging.StreamHandler()",
    ],
)
def test_each_way_past_the_door_is_found(source: str) -> None:
    assert list(uses(source))
