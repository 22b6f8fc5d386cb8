"""Signals, and readers that go away. Each test waits for what it sees, never for a time."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.parked import stored
from tests.conftest import crossed
from tests.ending import rest

Start = Callable[..., subprocess.Popen[str]]

SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
HANGUP = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this platform has no SIGHUP")
PLACES = [
    ("hangs", (), "await_llm", "-> await_llm"),
    ("calls_slow", ("--tool", "models:slow"), "process_tools", "-> process_tools"),
    ("calls_blocking", ("--tool", "models:blocking"), "process_tools", "-> process_tools"),
]


def until(running: subprocess.Popen[str], text: str) -> str:
    """Read its output up to the line with this text."""
    assert running.stdout is not None
    seen = ""
    for line in running.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"no {text!r} in {seen!r}")


@pytest.mark.parametrize(("number", "place"), crossed(SIGNALS, PLACES))
def test_a_signal_cancels_the_run_wherever_it_is(
    start: Start, number: int, place: tuple[str, tuple[str, ...], str, str]
) -> None:
    model, options, state, entered = place
    running = start("run", "hi", "--model", f"python:models:{model}", *options)
    until(running, entered)
    running.send_signal(number)
    out, err = rest(running)
    assert f"cancelled in {state}" in out
    assert f"{state} -> terminate_error" in out
    assert "outcome: cancelled (caller)" in out
    assert err == "orchestrator: the run ended as cancelled (caller): cancelled by caller: signal\n"
    assert running.returncode == 6


@pytest.mark.canary
def test_json_is_printed_of_a_cancelled_run_and_its_history_is_valid(start: Start) -> None:
    options = ("--json", "--log", "/dev/stderr", "--tool", "models:slow")
    running = start("run", "hi", "--model", "python:models:calls_slow", *options)
    assert running.stderr is not None
    for line in running.stderr:
        if '"to_state":"process_tools"' in line:
            break
    running.send_signal(signal.SIGTERM)
    out, _ = rest(running)
    result = json.loads(out)
    assert (running.returncode, result["outcome"]) == (6, "cancelled")
    assert [message["role"] for message in result["messages"]] == ["user", "assistant", "tool"]
    assert result["messages"][2]["is_error"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_the_process_even_while_it_is_blocked(start: Start, number: int) -> None:
    running = start("run", "hi", "--model", "python:models:blocks")
    until(running, "-> await_llm")
    while running.poll() is None:  # when the first was taken is not to be seen from here
        running.send_signal(number)
    _, err = rest(running)
    assert running.returncode == -number
    assert err == ""


@HANGUP
def test_a_hangup_that_is_ignored_stays_so_as_under_nohup(start: Start) -> None:
    options = ("--model", "python:models:endless", "--tool", "models:look", "--limit", "max_iterations=0")
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    running = start("run", "hi", *options, **ignoring)
    until(running, "-> process_tools")
    running.send_signal(signal.SIGHUP)
    for _ in range(20):
        until(running, "-> process_tools")
    running.send_signal(signal.SIGTERM)
    out, err = rest(running)
    assert (running.returncode, len(err.splitlines())) == (6, 1)
    assert "outcome: cancelled (caller)" in out


@HANGUP
@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_terminal_that_is_closed_cancels_the_run(start: Start, folder: Path, term: str) -> None:
    ours, theirs = pty.openpty()
    owning = {"start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
    ends = {"stdin": theirs, "stdout": theirs, "env": {**os.environ, "TERM": term}}
    running = start("run", "hi", "--run-id", "one", "--model", "python:models:hangs", **owning, **ends)
    os.close(theirs)
    seen = b""
    while b"await_llm" not in seen:
        seen += os.read(ours, 65_536)
    os.close(ours)
    running.wait(60)
    with start("runs", "list", "--json") as listing:
        (one,) = [json.loads(line) for line in rest(listing)[0].splitlines()]
    assert (one["run_id"], one["status"], one["outcome"]) == ("one", "ended", "cancelled")


@pytest.mark.parametrize(("number", "options"), crossed(SIGNALS, [("--json",), (), ("--live",)]))
def test_a_signal_stops_a_replay_and_what_there_is_gets_printed(
    start: Start, record: Any, number: int, options: tuple[str, ...]
) -> None:
    quick = record.conversation(record.user("hi"), record.says("there"), id="quick")
    slow = {**quick, "id": "slow", "turns": [{"message": 1, "latency_s": 600}]}
    Path("all.jsonl").write_text("\n".join(json.dumps(one) for one in (quick, slow, quick)))
    running = start("replay", "all.jsonl", "--speed", "1", *options)
    until(running, "quick")
    if options == ("--live",):
        until(running, "slow")
        until(running, "-> await_llm")
    running.send_signal(number)
    out, err = rest(running)
    assert (running.returncode, err) == (6, "orchestrator: cancelled by a signal\n")
    if options == ("--json",):
        (last,) = [json.loads(line) for line in out.splitlines()]
        assert (last["id"], last["result"]) == ("slow", "cancelled")
    else:
        assert "1 reproduced, 0 reproduced_to_open_end, 0 irregular, 0 unusable, 1 cancelled" in out


CLOSED = [
    ("run", "hi", "--model", "python:models:endless", "--tool", "models:look", "--limit", "max_iterations=0"),
    ("replay", "--bundled", "--bundled", "--json"),
    ("replay", "--bundled", "--live", "--speed", "0"),
]


@pytest.mark.canary(" ".join(CLOSED[1]))
@pytest.mark.parametrize("arguments", CLOSED, ids=" ".join)
def test_a_reader_that_goes_away_ends_the_command_quietly(start: Start, arguments: tuple[str, ...]) -> None:
    running = start(*arguments)
    assert running.stdout is not None
    os.read(running.stdout.fileno(), 10)
    running.stdout.close()
    assert running.stderr is not None
    assert not running.stderr.read()
    running.wait(timeout=60)
    assert running.returncode == 141


def test_a_reader_that_was_never_there_is_no_traceback(start: Start) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    running = start("graph", stdout=writing)
    os.close(writing)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (141, "")


CODE = """
import asyncio
import threading

from orchestrator import Response, ToolCall, tool


def model(request):
    return "done" if request.messages[-1].role == "tool" else [ToolCall("1", NAME, "{}")]


async def mute(request):
    await ignores()


async def ignores():
    print("reached", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            pass


def blocks():
    print("reached", flush=True)
    threading.Event().wait()


@tool(effect="pure")
async def task():
    await ignores()


@tool(effect="pure")
def thread():
    blocks()


@tool(effect="pure")
async def executor():
    "A thread of the event loop, for which the interpreter waits at its end."
    await asyncio.to_thread(blocks)


@tool(effect="pure")
async def children():
    "Tasks of its own that nobody cancels."
    await asyncio.gather(*[asyncio.create_task(ignores()) for _ in range(3)])
"""


@pytest.mark.canary("task")
@pytest.mark.parametrize("kind", ["task", "thread", "executor", "children", "model"])
def test_the_first_signal_ends_a_run_and_its_process(start: Start, folder: Path, kind: str) -> None:
    (folder / "stubborn.py").write_text(CODE.replace("NAME", repr(kind)), encoding="utf-8")
    (folder / "orchestrator.toml").write_text("[limits]\ncancel_seconds = 0.2\n", encoding="utf-8")
    model = "python:stubborn:mute" if kind == "model" else "python:stubborn:model"
    tools = () if kind == "model" else ("--tool", f"stubborn:{kind}")
    running = start("run", "Go.", "--model", model, *tools, "--run-id", "run-1", stdin=subprocess.DEVNULL)
    assert running.stdout is not None
    while "reached" not in (line := running.stdout.readline()):
        assert line, running.communicate()
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=60)  # else for ever
    assert (running.returncode, "outcome: cancelled (caller)" in out) == (6, True), (out, err)
    head, _ = stored("run-1", ".orchestrator/journal.db")
    assert (head.status, head.reason) == ("ended", "caller")
