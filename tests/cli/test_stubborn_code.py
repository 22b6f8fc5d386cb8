"""A command ends within its grace period, whatever the code of tools and models does with its cancellation."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.parked import stored

Start = Callable[..., subprocess.Popen[str]]

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
