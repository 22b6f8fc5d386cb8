"""`orchestrator chat`: in a pseudo-terminal as a person uses it, and with lines of a pipe."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tools.tool_error import ON_TOOL_ERROR
from tests.cli.test_terminal import Terminal

Cli = Callable[..., Any]
Start = Callable[..., Any]

MODELS = '''
import asyncio, json
from orchestrator import Agent, ToolCall, tool
from orchestrator.testing import FunctionLLM


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    with open("paid", "a") as ledger:
        ledger.write(f"{amount}\\n")
    return "paid"


async def talker(request):
    """Answer with the number of prompts so far; pay, wait and fail when asked to."""
    last = request.messages[-1]
    prompts = [message.text for message in request.messages if message.role == "user"]
    if last.role == "tool":
        return f"told: {last.text}"
    if last.text == "pay":
        return ToolCall("1", "pay", '{"amount": 3}')
    if last.text == "wait":
        if request.on_delta is not None:
            request.on_delta("half an ans")
        open("waiting", "w").close()
        await asyncio.sleep(600)
    if last.text == "fail":
        raise ValueError("no answer today")
    return f"{len(prompts)}: {last.text}"


def mine(journal):
    return Agent(FunctionLLM(talker), tools=[pay], journal=journal, observers=(), name="mine")


def watched(journal, observers):
    return Agent(FunctionLLM(talker), journal=journal, observers=observers, name="watched")


@tool(effect="pure")
def price(item: str) -> int:
    """Return the price of an item."""
    return {}[item]


async def shopper(request):
    """Ask for a price, and say what came back."""
    last = request.messages[-1]
    return f"told: {last.text}" if last.role == "tool" else ToolCall("1", "price", '{"item": "A1"}')


def shop(journal):
    return Agent(FunctionLLM(shopper), tools=[price], journal=journal, observers=(), name="shop")


def pipeline(journal):
    return object()
'''


@pytest.fixture
def talking(folder: Path) -> Path:
    (folder / "mine.py").write_text(MODELS)
    return folder


CHAT = ("chat", "--agent", "mine:mine")


def typed(terminal: Terminal, *keys: str) -> None:
    for one in keys:
        os.write(terminal.ours, one.encode())


def answered(terminal: Terminal, prompt: str, answer: str) -> None:
    """Type a prompt when the chat waits for one, and wait for its answer."""
    ready(terminal)
    typed(terminal, prompt, "\r")
    terminal.until(f"{answer}\r\n")


def ready(terminal: Terminal) -> None:
    """Wait until the next line can be typed, and forget what was shown before."""
    terminal.until("\x1b[?2004h")  # the editor reads
    terminal.raw = terminal.raw.rpartition("\x1b[?2004h")[2]


@pytest.mark.canary
def test_a_conversation_with_history_approval_interruption_and_an_end(start: Start, talking: Path) -> None:
    terminal = Terminal(start, *CHAT, "--conversation", "one")
    terminal.until("conversation one, journal ")
    answered(terminal, "hello", "1: hello")
    answered(terminal, "again", "2: again")

    ready(terminal)
    typed(terminal, "\x1b[A", "\x1b[A", "\r")  # the prompt before the last one
    terminal.until("3: hello\r\n")

    ready(terminal)
    typed(terminal, "pay\r")
    terminal.until("run pay? type y or n")
    assert not (talking / "paid").exists()
    typed(terminal, "y\n")
    terminal.until("told: paid\r\n")
    assert (talking / "paid").read_text() == "3\n"

    ready(terminal)
    typed(terminal, "wait\r")
    terminal.until("half an ans")
    terminal.process.send_signal(signal.SIGINT)  # as Ctrl-C does; the run ends, the chat does not
    answered(terminal, "more", "6: more")

    ready(terminal)
    typed(terminal, "\x03")
    terminal.until("Ctrl-D or /quit leaves the chat")
    ready(terminal)
    typed(terminal, "\x04")
    code, err = terminal.end()
    assert code == 0
    assert [line.partition(":")[0] for line in err.splitlines()] == ["orchestrator"]
    assert "cancelled" in err


def test_another_chat_continues_the_conversation_and_recalls_its_prompts(start: Start, talking: Path) -> None:
    first = Terminal(start, *CHAT, "--conversation", "one")
    answered(first, "hello", "1: hello")
    ready(first)
    typed(first, "/quit\r")
    assert first.end() == (0, "")

    second = Terminal(start, *CHAT, "--conversation", "one")
    ready(second)
    typed(second, "\x1b[A", "\r")
    second.until("2: hello\r\n")
    ready(second)
    typed(second, "/new\r")
    second.until("conversation ")
    answered(second, "hello", "1: hello")
    ready(second)
    typed(second, "\x04")
    assert second.end() == (0, "")


def test_no_is_an_answer_and_an_answer_from_elsewhere_ends_the_question(
    start: Start, talking: Path, cli: Cli
) -> None:
    terminal = Terminal(start, *CHAT)
    ready(terminal)
    typed(terminal, "pay\r")
    terminal.until("run pay? type y or n")
    typed(terminal, "n\n")
    terminal.until("told: ")
    ready(terminal)
    typed(terminal, "pay\r")
    terminal.until("run pay? type y or n")
    (line,) = cli("runs", "list", "--waiting", "--json").out.splitlines()
    run = json.loads(line)
    assert cli("runs", "approve", run["run_id"], "--by", "ann").code == 0
    terminal.until("told: paid\r\n")
    ready(terminal)
    typed(terminal, "\x04")
    assert terminal.end()[0] == 0
    assert (talking / "paid").read_text() == "3\n"


@pytest.mark.parametrize("during", ["prompt", "run"])
def test_sigterm_ends_the_chat_with_a_tidy_terminal_and_leaves_the_run_open(
    start: Start, talking: Path, cli: Cli, during: str
) -> None:
    terminal = Terminal(start, *CHAT)
    ready(terminal)
    if during == "run":
        typed(terminal, "wait\r")
        terminal.until("half an ans")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end()[0] == 6
    assert "\x1b[?2004l" in terminal.raw  # the terminal is no longer in the mode of the editor
    runs = [json.loads(line) for line in cli("runs", "list", "--json").out.splitlines()]
    assert [run["status"] for run in runs] == ["parked"] * (during == "run")


# ---- from a pipe ----


def piped(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_errors_of_tools_are_printed_after_the_answer(
    cli: Cli, talking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ON_TOOL_ERROR, raising=False)
    at = next(number for number, line in enumerate(MODELS.splitlines(), 1) if "{}[item]" in line)
    piped(monkeypatch, "one\ntwo")
    done = cli("chat", "--agent", "mine:shop")
    assert (done.code, done.out.count("told: ")) == (0, 2)
    assert done.err == f"orchestrator: tool price raised KeyError: 'A1' (mine.py:{at})\n" * 2


def test_each_line_of_a_pipe_is_a_prompt(cli: Cli, talking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, "hello\n\n/new\nagain\nlast")
    done = cli(*CHAT)
    lines = done.out.splitlines()
    assert (done.code, done.err, lines[0], lines[2:]) == (0, "", "1: hello", ["1: again", "2: last"])
    assert lines[1].startswith("conversation ")


HOSTILE = {
    b"\x1b[31mred\x1b]0;title\x07": r"1: \x1b[31mred\x1b]0;title\x07",
    b"nul\x00byte": r"2: nul\x00byte",
    b"\xff\xfe no text": None,
    "\u202eturned\u200b".encode(): r"3: \u202eturned\u200b",
    b"x" * 1_000_000: f"4: {'x' * 1_000_000}",
    b"/unknown": "5: /unknown",
    b"{" * 100_000: f"6: {'{' * 100_000}",
    b"last": "7: last",
}


def test_hostile_lines_are_prompts_that_cannot_control_the_terminal(
    cli: Cli, talking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = io.BytesIO(b"\n".join(HOSTILE))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(lines, "utf-8", "surrogateescape"))
    done = cli(*CHAT)
    assert done.code == 0
    assert done.out.splitlines() == [answer for answer in HOSTILE.values() if answer is not None]
    assert done.err == (
        "orchestrator: the prompt is not text: it contains half a character (a lone surrogate)\n"
    )


def test_the_exit_code_is_that_of_the_last_run(
    cli: Cli, talking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, "hello\nfail\n")
    done = cli(*CHAT)
    assert (done.code, done.out) == (1, "1: hello\n")
    assert "no answer today" in done.err


def test_an_agent_of_the_command_line_talks_too(
    cli: Cli, talking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, "hello\n")
    done = cli("chat", "--model", "python:mine:talker", "--log", "log")
    assert (done.code, done.out, done.err) == (0, "1: hello\n", "")
    assert '"await_llm"' in (talking / "log").read_text()


def test_observers_are_given_to_a_function_that_takes_them(
    cli: Cli, talking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, "hello\n")
    done = cli("chat", "--agent", "mine:watched", "--log", "log")
    assert (done.code, done.out) == (0, "1: hello\n")
    assert '"watched"' in (talking / "log").read_text()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--agent", "mine:nobody"), "mine has no 'nobody'"),
        (("--agent", "mine:pipeline"), "the agent is a object; chat talks to an Agent"),
        (("--agent", "mine:mine", "--model", "python:mine:talker"), "model: these describe an agent"),
        (("--agent", "mine:mine", "--limit", "max_iterations=3"), "limits: these describe an agent"),
        ((), "no model: give --model"),
        (("--agent", "mine:mine", "--conversation", " "), "conversation_id is ' ', which no route"),
    ],
)
def test_bad_input_is_one_sentence(
    cli: Cli,
    one_sentence: Callable[[Any], str],
    talking: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    problem: str,
) -> None:
    piped(monkeypatch, "hello\n")
    done = cli("chat", *arguments)
    assert done.code == 2
    assert problem in one_sentence(done)
