"""What a person reads on a terminal: colours of statuses and of help, and ids of runs in short form."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.machines.llm_loop.graph import LLM_LOOP
from tests.cli.conftest import whole_program
from tests.cli.recorded import JOURNAL, Call, Tape, record
from tests.cli.test_terminal import ESCAPE, Terminal

Cli = Callable[..., Any]
Start = Callable[..., subprocess.Popen[str]]

AT = ("--journal", JOURNAL)
FIRST, SECOND, OTHER = "abcd1" + 27 * "0", "abcd2" + 27 * "0", "ffff1" + 27 * "0"
LONG_NAME = "invoice-17-of-the-month-of-november"


@pytest.fixture(autouse=True)
def _runs(folder: Path) -> None:
    here: dict[str, Any] = {"fingerprint": LLM_LOOP.fingerprint}
    record(
        Tape(FIRST, **here).begin().completes(),
        Tape(SECOND, **here).begin().completes(outcome="failed", reason="llm_error"),
        Tape(OTHER, **here).begin().asks(Call("pay")),
        Tape(LONG_NAME, **here).begin().completes(outcome="cancelled", reason="caller"),
    )


def colours(text: str) -> dict[str, str]:
    """Return each coloured word with its code."""
    return {word.strip(): code for code, word in re.findall(r"\x1b\[([\d;]+)m([^\x1b]*)\x1b\[0m", text)}


# ---- colour ----


@pytest.mark.canary
def test_a_terminal_shows_each_outcome_in_its_colour(start: Start) -> None:
    terminal = Terminal(start, "runs", "list", *AT)
    assert terminal.end() == (0, "")
    found = colours(terminal.raw)
    assert (found["completed"], found["failed (llm_error)"]) == ("32", "31")
    assert (
        len({found[one] for one in ("completed", "failed (llm_error)", "cancelled (caller)", "parked")}) == 4
    )

    shown = Terminal(start, "runs", "show", SECOND, *AT)
    assert shown.end() == (0, "")
    assert colours(shown.raw)["ended: failed (llm_error)"] == "31"


@pytest.mark.parametrize("command", [("runs", "list", *AT), ("runs", "show", SECOND, *AT), ("--help",)])
def test_neither_no_color_nor_a_dumb_terminal_nor_a_pipe_has_a_colour(
    start: Start, cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    assert "\x1b" not in cli(*command).out
    dumb = Terminal(start, *command, term="dumb")
    assert dumb.end() == (0, "")
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal(start, *command)
    assert plain.end() == (0, "")
    assert "\x1b" not in dumb.raw + plain.raw


@pytest.mark.parametrize("command", [(), ("runs",), ("run",), ("runs", "resume")])
def test_help_has_the_same_text_in_colour(start: Start, cli: Cli, command: tuple[str, ...]) -> None:
    terminal = Terminal(start, *command, "--help")
    assert terminal.end() == (0, "")
    assert {"Usage:": "1", "Options:": "1", "-h, --help": "36"}.items() <= colours(terminal.raw).items()
    words = [ESCAPE.sub("", terminal.text).split(), cli(*command, "--help").out.split()]
    assert words[0] == words[1]  # a terminal has another width


# ---- ids ----


def test_a_terminal_shows_the_first_characters_of_a_generated_id_and_says_so(start: Start, cli: Cli) -> None:
    terminal = Terminal(start, "runs", "list", *AT)
    assert terminal.end() == (0, "")
    listed = re.findall(r"^  (\S+) +-  +llm_loop", terminal.text, re.MULTILINE)
    assert sorted(listed) == sorted([FIRST[:12], SECOND[:12], OTHER[:12], LONG_NAME])
    assert (
        "ids are cut here: every command takes the first characters of an id, at least 4\n" in terminal.text
    )
    piped = cli("runs", "list", *AT).out
    assert FIRST in piped
    assert "ids are cut" not in piped

    named = Terminal(start, "runs", "list", "--outcome", "cancelled", *AT)
    assert named.end() == (0, "")
    assert "ids are cut" not in named.text


COMMANDS = (
    ("runs", "show", "RUN"),
    ("runs", "events", "RUN"),
    ("runs", "export", "RUN"),
    ("runs", "replay", "RUN"),
    ("runs", "compare", "RUN", "RUN"),
    ("runs", "approve", "RUN", "--by", "ann"),
    ("runs", "reject", "RUN", "--by", "ann"),
    ("runs", "respond", "RUN", "text", "--by", "ann"),
    ("runs", "cancel", "RUN", "--by", "ann"),
    ("runs", "pause", "RUN", "--by", "ann"),
    ("runs", "resume", "RUN"),
    ("runs", "fork", "RUN", "--prompt", "more"),
    ("runs", "rollback", "RUN"),
    ("runs", "migrate", "--using", "agents:unchanged", "RUN"),
    ("runs", "erase", "RUN"),
    ("runs", "list", "--after", "RUN"),
    ("graph", "llm_loop", "--format", "svg", "--run", "RUN"),
    ("rlm", "resume", "RUN"),
    ("pipeline", "resume", "RUN"),
    ("pipeline", "report", "RUN"),
    ("ralph", "resume", "RUN"),
    ("ralph", "status", "RUN"),
    ("ralph", "tasks", "RUN"),
    ("ralph", "tell", "RUN", "text"),
    ("ralph", "answer", "RUN", "q1", "text"),
)


def test_the_table_has_every_command_that_takes_a_run() -> None:
    found = set()

    def walk(command: Any, *names: str) -> None:
        for name, one in getattr(command, "commands", {}).items():
            walk(one, *names, name)
        if any(parameter.metavar == "RUN" for parameter in getattr(command, "params", ())):
            found.add(names)

    walk(whole_program())
    assert found <= {tuple(one for one in command if one != "RUN")[:2] for command in COMMANDS} | {("graph",)}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_takes_a_unique_beginning_of_an_id_and_refuses_another_with_its_candidates(
    cli: Cli, folder: Path, command: tuple[str, ...]
) -> None:
    (folder / "agents.py").write_text("def unchanged(stored):\n    return stored\n")

    def done(name: str) -> Any:
        return cli(*(name if one == "RUN" else one for one in command), *AT)

    refused = done("abcd")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == (
        f"orchestrator: 'abcd' begins 2 run ids: {FIRST}, {SECOND}; give more of its characters\n"
    )
    for name in (OTHER[:12], OTHER[:4]):
        said = done(name)
        assert not re.search("no run|begins", said.out + said.err)
