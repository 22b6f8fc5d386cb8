"""A person gives the input that a tool or an MCP server asks for, at the prompt of a run or a chat."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.hostile import controls
from tests.cli.test_chat import answered, ready, typed
from tests.cli.test_terminal import PAYING, Terminal
from tests.providers.mcp_official import Official

Cli = Callable[..., Any]
Start = Callable[..., Any]

MODELS = '''
from orchestrator import Agent, ToolCall, ToolContext, tool
from orchestrator.testing import FunctionLLM
from orchestrator.tools.input_request import InputRequest, InputRequired

SEAT = {
    "type": "object",
    "properties": {
        "seat": {"title": "Your seat", "oneOf": [{"const": "w", "title": "Window"}, {"const": "a", "title": "Aisle"}]},
        "bags": {"type": "integer", "minimum": 0, "maximum": 3, "default": 1},
        "meals": {"type": "array", "items": {"enum": ["fish", "rice"]}, "minItems": 1},
        "window": {"type": "boolean"},
        "note": {"type": "string", "maxLength": 5},
    },
    "required": ["seat", "meals", "window"],
}
REQUESTS = {
    "form": InputRequest("Which seat?", SEAT),
    "yes": InputRequest("Is that right?"),
    "url": InputRequest("Pay there.", url="https://pay.example/7"),
    "hostile": InputRequest("\\x1b[2J\\u202e" + "z" * 30_000, {
        "type": "object", "properties": {"a\\x1b[31m": {"type": "string", "description": "y" * 30_000}},
    }),
    "pair": InputRequest("From and to?", {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "minProperties": 1,
    }),
}


@tool(effect="irreversible")
def book(context: ToolContext, kind: str) -> str:
    """Book a flight."""
    if not context.input.answers:
        raise InputRequired({kind: REQUESTS[kind]})
    [answer] = context.input.answers.values()
    return f"{answer.action} {dict(answer.content)}"


async def model(request):
    last = request.messages[-1]
    return f"told: {last.text}" if last.role == "tool" else ToolCall("1", "book", '{"kind": "%s"}' % last.text)


def asker(request):
    last = request.messages[-1]
    return f"told: {last.text}" if last.role == "tool" else ToolCall("1", "asker_book", "{}")


def mine(journal):
    return Agent(FunctionLLM(model), tools=[book], journal=journal, observers=(), name="mine")
'''


@pytest.fixture
def asking(folder: Path) -> Path:
    (folder / "asks.py").write_text(MODELS)
    return folder


def run(kind: str) -> tuple[str, ...]:
    return ("run", kind, "--run-id", "r", "--model", "python:asks:model", "--tool", "asks:book")


def type_after(terminal: Terminal, prompt: str, text: str) -> None:
    """Type a line once the prompt is shown, and forget what was shown before."""
    terminal.until(f"{prompt}:\r\n")
    terminal.raw = terminal.raw.rpartition(f"{prompt}:\r\n")[2]
    os.write(terminal.ours, f"{text}\n".encode())


FIELDS = (
    "seat (Your seat; one of w (Window), a (Aisle))",
    "bags (integer; optional; default 1)",
    "meals (array; one of fish, rice)",
    "window (boolean)",
    "note (string; optional)",
)


@pytest.mark.canary
def test_a_form_is_filled_in_field_by_field_and_a_wrong_value_gets_a_second_chance(
    start: Start, asking: Path
) -> None:
    terminal = Terminal(start, *run("form"))
    terminal.until("input for book: a value for each field;")
    seat, bags, meals, window, note = FIELDS
    type_after(terminal, seat, "sofa")
    terminal.until('this does not fit: seat: "sofa"')
    type_after(terminal, seat, "")
    terminal.until("this does not fit: seat: a value is required")
    type_after(terminal, seat, "Aisle")
    for wrong in ("many", "9", "1e999", "NaN"):
        type_after(terminal, bags, wrong)
        terminal.until("this does not fit: bags: ")
    type_after(terminal, bags, "")
    type_after(terminal, meals, "fish, meat")
    terminal.until("this does not fit: meals.1: ")
    type_after(terminal, meals, "fish, rice")
    type_after(terminal, window, "perhaps")
    type_after(terminal, window, "yes")
    type_after(terminal, note, "too long")
    type_after(terminal, note, "")
    assert terminal.end() == (0, "")
    told = {"seat": "a", "bags": 1, "meals": ["fish", "rice"], "window": True}
    assert f"told: accept {told}" in terminal.text


@pytest.mark.parametrize(
    ("kind", "prompt", "text", "said"),
    [
        ("form", FIELDS[0], "/decline", "decline {}"),
        ("yes", "continue book? type y or n, or answer from another terminal", "y", "accept {}"),
        ("yes", "continue book? type y or n, or answer from another terminal", "n", "decline {}"),
        (
            "url",
            "open the address yourself; continue book? type y or n, or answer from another terminal",
            "y",
            "accept {}",
        ),
    ],
)
def test_a_question_is_declined_or_confirmed(
    start: Start, asking: Path, kind: str, prompt: str, text: str, said: str
) -> None:
    terminal = Terminal(start, *run(kind))
    terminal.until(prompt)
    if kind == "url":
        assert "address    https://pay.example/7" in terminal.text
    type_after(terminal, prompt, text)
    assert terminal.end() == (0, "")
    assert f"told: {said}" in terminal.text


def test_a_form_that_is_refused_as_a_whole_is_asked_again(start: Start, asking: Path) -> None:
    terminal = Terminal(start, *run("pair"))
    for text in ("", "5"):
        type_after(terminal, "a (integer; optional)", text)
        type_after(terminal, "b (integer; optional)", "")
    code, err = terminal.end()
    assert code == 0
    assert err.count("\n") == 1
    assert "the answer does not fit the form: {} has less than 1 property" in err
    assert "told: accept {'a': 5}" in terminal.text


def test_ctrl_c_leaves_the_run_parked_and_says_how_to_continue(start: Start, asking: Path, cli: Cli) -> None:
    terminal = Terminal(start, *run("form"))
    type_after(terminal, FIELDS[0], "w")
    terminal.until(FIELDS[1])
    terminal.process.send_signal(signal.SIGINT)
    code, err = terminal.end()
    assert code == 6
    assert err == (
        "orchestrator: run r stays parked with its question; `orchestrator runs resume r` continues it\n"
    )
    assert json.loads(cli("runs", "show", "r", "--json").out)["status"] == "parked"
    values = {"seat": "w", "meals": ["rice"], "window": False}
    assert cli("runs", "respond", "r", json.dumps(values), "--by", "ann").code == 0
    assert f"told: accept {values}" in cli("runs", "resume", "r").out


def test_ctrl_c_at_an_approval_leaves_the_run_parked_too(start: Start, folder: Path, cli: Cli) -> None:
    terminal = Terminal(start, *PAYING)
    terminal.until("run pay? type y or n")
    os.write(terminal.ours, b"\x04")  # Ctrl-D: the question stays open for others
    terminal.process.send_signal(signal.SIGINT)
    code, err = terminal.end()
    assert (code, err.count("`orchestrator runs resume bill` continues it")) == (6, 1)
    assert json.loads(cli("runs", "show", "bill", "--json").out)["reason"] == "approval"


def test_an_answer_from_another_terminal_ends_the_form(start: Start, asking: Path, cli: Cli) -> None:
    terminal = Terminal(start, *run("form"))
    type_after(terminal, FIELDS[0], "w")
    terminal.until(FIELDS[1])
    assert cli("runs", "reject", "r", "--by", "ann").code == 0
    assert terminal.end() == (0, "")
    assert "told: decline {}" in terminal.text


def test_hostile_text_of_a_question_is_shown_in_part_with_visible_characters(
    start: Start, asking: Path, cli: Cli
) -> None:
    terminal = Terminal(start, *run("hostile"))
    terminal.until("answer from another terminal\r\n")
    assert terminal.text.count("z") < 2_500
    assert r"asks       \x1b[2J\u202e" + "z" * 100 in terminal.text
    prompt = "a\\x1b[31m (string; optional; " + "y" * 300
    terminal.until(f"\r\n{prompt}")
    assert cli("runs", "show", "r", "--full").out.count("z") >= 30_000
    os.write(terminal.ours, b"x\n")
    assert terminal.end() == (0, "")
    assert "told: accept" in terminal.text
    assert controls(terminal.raw, terminal=True) == []


def test_without_a_terminal_the_run_is_parked_and_the_answering_command_is_printed(
    start: Start, asking: Path, cli: Cli
) -> None:
    with start(*run("form")) as running:
        for line in running.stdout:
            if "orchestrator runs respond r" in line:
                break
        words = shlex.split(line)
        assert words[:5] == ["orchestrator", "runs", "respond", "r", "--call"]
        assert json.loads(words[-1]).keys() == {"seat", "bags", "meals", "window", "note"}
        assert cli("runs", "reject", "r", "--by", "ann").code == 0
        assert "told: decline {}" in running.stdout.read()


def test_the_questions_of_an_mcp_server_are_asked_one_after_the_other(
    start: Start, asking: Path, tmp_path: Path
) -> None:
    server = f"asker={shlex.join(Official('asker', tmp_path).command)}"
    terminal = Terminal(start, "run", "x", "--model", "python:asks:asker", "--mcp", server)
    terminal.until("asks       asker asks: Which seat?")
    type_after(terminal, "seat (string; one of window, aisle)", "aisle")
    type_after(terminal, "name (string)", "/decline")
    terminal.until("address    https://pay.example/7")
    type_after(terminal, "type y or n, or answer from another terminal", "y")
    assert terminal.end() == (0, "")
    assert "told: seat: accept [('seat', 'aisle')]; name: decline []; pay: accept []" in terminal.text


def test_a_chat_asks_for_the_input_and_ctrl_c_leaves_its_run_parked(
    start: Start, asking: Path, cli: Cli
) -> None:
    terminal = Terminal(start, "chat", "--agent", "asks:mine", "--conversation", "one")
    terminal.until("conversation one, journal ")
    ready(terminal)
    typed(terminal, "pair\r")
    type_after(terminal, "a (integer; optional)", "5")
    type_after(terminal, "b (integer; optional)", "no")
    terminal.until("this does not fit: b: ")
    type_after(terminal, "b (integer; optional)", "6")
    terminal.until("told: accept {'a': 5, 'b': 6}\r\n")
    ready(terminal)
    typed(terminal, "yes\r")
    terminal.until("continue book? type y or n")
    terminal.process.send_signal(signal.SIGINT)
    answered(terminal, "/resume", "")
    type_after(terminal, "continue book? type y or n, or answer from another terminal", "y")
    terminal.until("told: accept {}\r\n")
    answered(terminal, "/resume", "no run was left at its question")
    ready(terminal)
    typed(terminal, "yes\r")
    terminal.until("continue book? type y or n")
    terminal.process.send_signal(signal.SIGINT)
    answered(terminal, "/new", "")
    ready(terminal)
    typed(terminal, "\x04")
    code, err = terminal.end()
    assert code == 0
    first, second = err.splitlines()
    assert re.fullmatch(
        r"orchestrator: run (\w+) stays parked with its question; /resume continues it; "
        r"`orchestrator runs show \1` shows it",
        second,
    )
    assert first != second
