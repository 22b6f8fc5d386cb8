"""`run --mcp`: tools of a server that is a process of its own."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
PROGRAM = Path(__file__).resolve().parents[1] / "providers" / "mcp_program.py"
MODEL = """
from orchestrator import Response, ToolCall, tool

SCRIPT = (
    Response(None, (ToolCall("1", "add", '{"a": 2, "b": 3}'), ToolCall("2", "look_up", '{"query": "x"}'))),
    Response(None, (ToolCall("3", "pay", '{"amount": 5}'),)),
    Response("Paid 5."),
)


async def shopper(request):
    return SCRIPT[sum(message.role == "assistant" for message in request.messages)]


@tool(effect="pure")
def look_up(query: str) -> str:
    '''Look it up.'''
    return query
"""


@pytest.fixture
def shopping(folder: Path) -> tuple[str, ...]:
    (folder / "shop.py").write_text(MODEL)
    server = shlex.join([sys.executable, str(PROGRAM), str(folder)])
    asked = ("run", "shop", "--run-id", "one", "--model", "python:shop:shopper", "--tool", "shop:look_up")
    return (*asked, "--mcp", server)


def test_the_model_calls_tools_of_a_server_beside_those_of_a_module(
    cli: Cli, folder: Path, shopping: tuple[str, ...]
) -> None:
    done = cli(*shopping, "--json")
    assert (done.code, done.err) == (0, "")
    said = [message["content"] for message in json.loads(done.out)["messages"] if message["role"] == "tool"]
    assert said[0] == "5"
    assert said[1] == "x"
    assert (folder / "pay").read_text() == "5.0\n"


def test_a_run_that_waits_for_approval_goes_on_elsewhere_with_a_server_of_its_own(
    start: Callable[..., Any], cli: Cli, folder: Path, shopping: tuple[str, ...]
) -> None:
    waits = start(*shopping, "--approve")
    while "runs respond" not in (line := waits.stdout.readline()):
        assert line, waits.stderr.read()
    waits.kill()
    waits.communicate()
    assert not (folder / "pay").exists()
    assert cli("runs", "approve", "one", "--by", "ann").code == 0
    done = cli("runs", "resume", "one", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["output"] == "Paid 5."
    assert (folder / "pay").read_text() == "5.0\n"


def test_a_server_that_cannot_be_started_is_one_sentence(
    cli: Cli, one_sentence: Callable[[Any], str], folder: Path
) -> None:
    done = cli("run", "hi", "--model", "python:models:answers", "--mcp", "no-such-program --serve")
    assert done.code == 2
    assert "no-such-program" in one_sentence(done)
    assert not (folder / ".orchestrator").exists()
