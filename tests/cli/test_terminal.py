"""On a terminal: a pseudo-terminal is one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, RunUnknown, StoreDown
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.sqlite.owner import TTL
from orchestrator.kernel.journal import RunHead
from tests.cli.recorded import silence
from tests.tiers import SOAK

Start = Callable[..., subprocess.Popen[str]]

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Terminal:
    """A process on a pseudo-terminal, and what it has shown so far."""

    def __init__(self, start: Start, *arguments: str, term: str = "xterm") -> None:
        self.ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": term, "COLUMNS": "100", "LINES": "40"}
        self.process = start(*arguments, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment)
        os.close(theirs)
        self.raw = ""

    def until(self, text: str) -> None:
        while text not in self.raw:
            assert self._more(), f"no {text!r} in {self.raw!r}"

    def end(self) -> tuple[int, str]:
        """Read to the end: the exit code, and what stood on stderr."""
        while self._more():
            pass
        os.close(self.ours)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err

    @property
    def text(self) -> str:
        return ESCAPE.sub("", self.raw).replace("\r", "")

    def _more(self) -> bool:
        try:
            data = os.read(self.ours, 65536)
        except OSError:  # how Linux says that nobody holds the other end any more
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)


@pytest.mark.canary
def test_a_run_is_a_table_that_moves(start: Start) -> None:
    terminal = Terminal(start, "run", "hi", "--model", "python:models:answers", "--tool", "models:look")
    assert terminal.end() == (0, "")
    final = terminal.text[terminal.text.rindex("state  ") :]
    assert re.search(r"await_llm +2 ", final)
    assert re.search(r"▶ +finalize +1 ", final)
    assert "tools: look ok ×1" in final
    assert "Two moons." in final
    assert terminal.raw.index(HIDE) < terminal.raw.rindex(SHOW)


def test_a_replay_to_watch_shows_prompt_states_answer_and_report(start: Start) -> None:
    terminal = Terminal(start, "replay", "--bundled", "--live", "--speed", "0.05")
    assert terminal.end() == (0, "")
    for expected in (
        "=== 5 of 5",
        "user: ",
        "assistant: ",
        "▶",
        "bottleneck: ",
        "5 reproduced",
        "my_agent.py",
    ):
        assert expected in terminal.text


def test_a_dumb_terminal_gets_plain_lines(start: Start) -> None:
    terminal = Terminal(start, "run", "hi", "--model", "python:models:answers", term="dumb")
    assert terminal.end() == (0, "")
    assert "init -> await_llm" in terminal.text
    assert "\x1b" not in terminal.raw


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM] if SOAK else [signal.SIGINT])
def test_a_signal_leaves_a_tidy_terminal(start: Start, number: int) -> None:
    terminal = Terminal(start, "run", "hi", "--model", "python:models:hangs")
    terminal.until("await_llm")
    terminal.process.send_signal(number)
    code, err = terminal.end()
    assert (code, len(err.splitlines())) == (6, 1)
    assert terminal.raw.rindex(SHOW) > terminal.raw.rindex(HIDE)
    assert "outcome: cancelled (caller)" in terminal.text


def test_ending_it_by_force_shows_the_cursor_again(start: Start) -> None:
    terminal = Terminal(start, "run", "hi", "--model", "python:models:blocks")
    terminal.until(HIDE)
    while terminal.process.poll() is None:
        terminal.process.send_signal(signal.SIGTERM)
    code, _ = terminal.end()
    assert code == -signal.SIGTERM
    assert terminal.raw.rindex(SHOW) > terminal.raw.rindex(HIDE)


def test_json_stays_json_on_a_terminal(start: Start) -> None:
    terminal = Terminal(start, "run", "hi", "--model", "python:models:answers", "--json")
    assert terminal.end() == (0, "")
    result: dict[str, Any] = json.loads(terminal.raw)
    assert result["outcome"] == "completed"


PAYING = (
    *("run", "pay", "--run-id", "bill", "--model", "python:models:pays", "--approve"),
    *("--tool", "models:look", "--tool", "models:pay"),
)


@pytest.mark.canary
def test_who_looks_on_says_yes_at_the_terminal_and_the_call_runs(start: Start, folder: Path) -> None:
    terminal = Terminal(start, *PAYING)
    terminal.until("run pay? type y or n")
    assert not (folder / "paid").exists()
    os.write(terminal.ours, b"perhaps\n")
    terminal.until("perhaps")
    terminal.raw = terminal.raw.rpartition("perhaps")[2]
    terminal.until("run pay? type y or n")
    os.write(terminal.ours, b"y\n")
    assert terminal.end() == (0, "")
    assert (folder / "paid").read_text() == "3\n"
    assert "run look?" not in terminal.text


@pytest.mark.parametrize("command", [PAYING, ("chat", *PAYING[4:])], ids=["run", "chat"])
def test_commands_that_answer_are_printed_only_where_no_terminal_can(
    start: Start, folder: Path, command: tuple[str, ...]
) -> None:
    terminal = Terminal(start, *command)
    if command[0] == "chat":
        terminal.until("\x1b[?2004h")  # the editor reads
        os.write(terminal.ours, b"pay\r")
    terminal.until("run pay? type y or n, or answer from another terminal:")
    assert re.search(r"\n      elsewhere  orchestrator runs show \S+\n", terminal.text)
    assert not re.search(r"orchestrator runs (approve|reject|respond)", terminal.text)
    os.write(terminal.ours, b"y\n")
    terminal.until("Done.")
    assert (folder / "paid").read_text() == "3\n"


def test_who_looks_on_says_no_at_the_terminal_and_the_model_reads_that(start: Start, folder: Path) -> None:
    terminal = Terminal(start, *PAYING)
    terminal.until("run pay? type y or n")
    os.write(terminal.ours, b"n\n")
    assert terminal.end() == (0, "")
    assert not (folder / "paid").exists()
    assert "outcome: completed" in terminal.text


def test_an_answer_from_another_terminal_ends_the_question_here(
    start: Start, folder: Path, cli: Callable[..., Any]
) -> None:
    terminal = Terminal(start, *PAYING)
    terminal.until("run pay? type y or n")
    assert cli("runs", "approve", "bill", "--by", "ann").code == 0
    assert terminal.end() == (0, "")
    assert (folder / "paid").read_text() == "3\n"


def test_a_terminal_that_says_no_more_leaves_the_question_to_others(
    start: Start, folder: Path, cli: Callable[..., Any]
) -> None:
    terminal = Terminal(start, *PAYING)
    terminal.until("run pay? type y or n")
    os.write(terminal.ours, b"\x04")  # Ctrl-D
    assert cli("runs", "reject", "bill", "--by", "ann").code == 0
    assert terminal.end() == (0, "")
    assert not (folder / "paid").exists()


WAITS = """
import asyncio
from pathlib import Path


async def answers(request):
    while not Path("repaired").exists():
        await asyncio.sleep(0.01)
    return "Done."
"""


@pytest.mark.parametrize(
    ("options", "answer", "outcome"),
    [((), "y\n", "completed"), ((), "\n", ""), (("--take-over",), None, "completed")],
    ids=["yes", "no", "take-over"],
)
def test_a_run_of_a_stopped_process_is_taken_over_if_a_person_agrees(
    start: Start, folder: Path, options: tuple[str, ...], answer: str | None, outcome: str
) -> None:
    (folder / "waits.py").write_text(WAITS)
    path = folder / "runs.db"
    at = ("--journal", str(path))
    owner = start("run", "hi", "--model", "python:waits:answers", "--run-id", "taken", *at)
    while not path.exists() or head_of(path).state != "await_llm":
        assert owner.poll() is None, owner.communicate()
    owner.send_signal(signal.SIGSTOP)
    silence(TTL + 1, path)
    (folder / "repaired").touch()
    terminal = Terminal(start, "runs", "resume", "taken", *options, *at)
    if answer is not None:
        terminal.until("Take the run over? [y/N]")
        assert head_of(path).expired_owner is not None
        os.write(terminal.ours, answer.encode())
    code, err = terminal.end()
    assert head_of(path).outcome == outcome
    assert (code == 0) is bool(outcome), err
    assert ("nothing was resumed" in err) is not bool(outcome)
    assert ("[y/N]" in terminal.text) is (answer is not None)


def head_of(path: Path) -> RunHead:
    """Return the head of the run `taken`; one without a state as long as there is none."""

    async def read() -> RunHead:
        async with SqliteJournal(path, only_reads=True) as journal:
            return await journal.head("taken")

    with contextlib.suppress(RunUnknown, StoreDown, ConfigError):
        return asyncio.run(read())
    return RunHead("taken", "", "", "open", 0, 0, None, 0.0, 0.0)


SPEAKS = '''
import asyncio
from pathlib import Path

from orchestrator import Response, ToolCall, tool


@tool(effect="pure")
def look(query: str) -> str:
    """Look it up."""
    return "seen"


class Speaker:
    """Says two pieces of text in each of two turns, each when it is allowed; a call stands between the turns."""

    model = "speaker"

    async def complete(self, request):
        turn = sum(message.role == "assistant" for message in request.messages)
        pieces = [f"part {turn}.{number}, " for number in range(2)]
        for number, piece in enumerate(pieces):
            if request.on_delta is not None:
                request.on_delta(piece)
                while not Path(f"read {turn}.{number}").exists():
                    await asyncio.sleep(0.005)
        calls = (ToolCall("1", "look", '{"query": "moon"}'),) if turn == 0 else ()
        return Response("".join(pieces), calls)


speaks = Speaker()
'''
SPEAKING = ("run", "Speak.", "--model", "python:speaks:speaks", "--tool", "speaks:look")


@pytest.mark.parametrize("options", [(), ("--stream",)], ids=["table", "stream"])
@pytest.mark.canary
def test_each_piece_of_an_answer_is_seen_before_the_model_says_the_next(
    start: Start, folder: Path, options: tuple[str, ...]
) -> None:
    (folder / "speaks.py").write_text(SPEAKS)
    terminal = Terminal(start, *SPEAKING, *options)
    for turn in range(2):
        for number in range(2):
            terminal.until(f"part {turn}.{number},")
            (folder / f"read {turn}.{number}").touch()
    assert terminal.end() == (0, "")
    after = terminal.text[terminal.text.rindex("state  ") if not options else 0 :]
    assert ("part 0.1" in after, after.count("part 1.0, part 1.1,")) == (bool(options), 1)


def test_each_piece_of_a_stream_reaches_a_pipe_before_the_model_says_the_next(
    start: Start, folder: Path
) -> None:
    (folder / "speaks.py").write_text(SPEAKS)
    running = start(*SPEAKING, "--stream", stderr=subprocess.DEVNULL)
    assert running.stdout is not None
    seen = b""
    for turn in range(2):
        for number in range(2):
            while f"part {turn}.{number},".encode() not in seen:
                more = os.read(running.stdout.fileno(), 65_536)
                assert more
                seen += more
            (folder / f"read {turn}.{number}").touch()
    assert running.wait(60) == 0
    assert seen.index(b"part 0.1") < seen.index(b"tool look: ok") < seen.index(b"part 1.0")


def test_neither_json_nor_a_pipe_asks_the_model_to_stream(cli: Callable[..., Any], folder: Path) -> None:
    (folder / "speaks.py").write_text(SPEAKS)
    assert (
        json.loads(cli(*SPEAKING, "--json").out)["output"] == "part 1.0, part 1.1, "
    )  # it would wait for a reader
    assert cli(*SPEAKING).out.count("part 1.0") == 1
