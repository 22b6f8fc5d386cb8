"""An engine whose tools ignore their cancellation: the first SIGTERM ends its process all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio
import signal
import sys
import threading

from orchestrator import Limits, LocalEngine, Agent, SqliteJournal, tool
from orchestrator.providers.scripted import FunctionLLM, call

reached = 0


def arrived():
    global reached
    reached += 1
    if reached == 20:
        print("reached", flush=True)


@tool(effect="idempotent")
async def task():
    arrived()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


@tool(effect="idempotent")
def thread():
    loop.call_soon_threadsafe(arrived)
    threading.Event().wait()


async def main():
    global loop
    loop = asyncio.get_running_loop()
    journal = SqliteJournal(sys.argv[1])
    agent = Agent(
        FunctionLLM(lambda request: call(sys.argv[2])),
        tools=[task, thread],
        journal=journal,
        observers=(),
        limits=Limits(cancel_seconds=0.2),
    )
    async with journal, LocalEngine(agent, slots=20, grace=0.0) as engine:
        handles = [await engine.submit("Go.", run_id=f"run-{number}") for number in range(20)]
        drained = await engine.run_until_signal()
        print("interrupted", len(drained.interrupted), flush=True)


asyncio.run(main())
"""


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["task", "thread"])
def test_twenty_runs_in_stubborn_tools_are_left_in_the_journal(tmp_path: Path, kind: str) -> None:
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("", "callbacks", "guards"))
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "journal.db"), kind],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "reached\n", running.communicate()
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=60)  # else for ever
    finally:
        running.kill()
        running.wait()
    assert (running.returncode, out, err) == (0, "interrupted 20\n", "")
