"""Agents that a command line can name, and runs of theirs that wait for a person with nobody holding them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.cli.launch import Launch, LoadedParts
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.fact import Fact, RunParked
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.machines.llm_loop.limits import Limits
from tests.cli.recorded import JOURNAL

AGENTS = '''
from pathlib import Path

from orchestrator import tool
from orchestrator.testing import FunctionLLM
from orchestrator.providers.scripted import call


def teller():
    """Pays once for each thing the user says, then tells; from the messages alone."""
    def answer(request):
        last = request.messages[-1]
        if last.role == "user":
            return call("pay", euros=len(last.text))
        return f"{sum(one.role == 'tool' for one in request.messages)} paid: {last.text}"

    return FunctionLLM(answer, model="teller")


def looker():
    """Looks three times, then tells."""
    def answer(request):
        looked = sum(one.role == "tool" for one in request.messages)
        return call("look", number=looked + 1) if looked < 3 else f"looked {looked} times"

    return FunctionLLM(answer, model="looker")


def counter():
    """Tells how many messages it was shown."""
    return FunctionLLM(lambda request: f"{len(request.messages)} messages", model="counter")


@tool(approval=True)
def pay(euros: int) -> str:
    """Pay."""
    with Path("paid.txt").open("a") as file:
        file.write(f"{euros}\\n")
    return f"{euros} euros"


@tool(effect="pure")
def look(number: int) -> str:
    """Look."""
    return f"seen {number}"


def unchanged(stored):
    return stored


def breaks(stored):
    raise KeyError("no such state")


def nothing(stored):
    return None
'''

TELLER: dict[str, Any] = {"model": "python:agents:teller", "tools": ("agents:pay",)}
LOOKER: dict[str, Any] = {"model": "python:agents:looker", "tools": ("agents:look",)}


class _Parked:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    def observe(self, fact: Fact) -> None:
        if isinstance(fact, RunParked) and fact.reason == "approval":
            self.event.set()


async def _until_parked(launch: Launch, run_id: str, prompt: str, limits: Limits | None) -> None:
    seen = _Parked()
    async with (
        SqliteJournal(JOURNAL) as journal,
        launch.agent(LoadedParts.of(launch), journal=journal, observers=[seen], limits=limits) as agent,
    ):
        running = asyncio.create_task(agent.run(prompt, run_id=run_id))
        waiting = asyncio.create_task(seen.event.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        running.cancel()
        await asyncio.wait((running,))


def agents(folder: Path) -> None:
    (folder / "agents.py").write_text(AGENTS)


def parked(
    folder: Path, run_id: str = "run-1", prompt: str = "Pay.", limits: Limits | None = None, **launch: Any
) -> None:
    """Start a run as the command line does and let go of it where it waits, or after its end."""
    agents(folder)
    made = Launch(**{"cwd": str(folder), **TELLER, **launch})
    asyncio.run(_until_parked(made, run_id, prompt, limits))


def stored(run_id: str = "run-1", journal: str = JOURNAL) -> tuple[RunHead, Sequence[Record]]:
    """Return what the journal has of a run."""

    async def read() -> tuple[RunHead, Sequence[Record]]:
        async with SqliteJournal(journal) as opened:
            return await opened.head(run_id), await opened.load(run_id)

    return asyncio.run(read())


def bodies(kind: str, run_id: str = "run-1", journal: str = JOURNAL) -> list[Mapping[str, Any]]:
    """Return the bodies of one kind of record."""
    return [record.body for record in stored(run_id, journal)[1] if record.kind == kind]


def claimed(times: int, run_id: str = "run-1") -> None:
    """Let so many owners take a run up and get nowhere."""

    async def again() -> None:
        async with SqliteJournal(JOURNAL) as journal:
            for _ in range(times):
                await journal.release(await journal.claim(run_id, "somebody"))

    asyncio.run(again())


def said(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]
