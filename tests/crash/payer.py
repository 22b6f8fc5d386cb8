"""A process that pays, then waits to be killed: `python -m tests.crash.payer JOURNAL LEDGER RUN` says `ready`.

Each payment is a line in the ledger, and the records of all of them are durable before it says so: the request to the
model overlaps with their append. The last payment of a run is left to whoever resumes it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Request, Response
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import ToolSpec, tool

PAYMENTS = 5


class Buyer:
    """A model that makes so many payments, one in each turn. Before the last one it says `ready`, and never answers."""

    model = "buyer"

    def __init__(self, journal: SqliteJournal, run: str, *, stops: bool) -> None:
        self._journal = journal
        self._run = run
        self._stops = stops

    async def complete(self, request: Request) -> Response:
        """Answer, or wait to be killed."""
        paid = sum(message.role == "tool" for message in request.messages)
        if paid == PAYMENTS - 1 and self._stops:
            while sum(record.kind == "done" for record in await self._journal.load(self._run)) < paid:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            print("ready", flush=True)  # noqa: T201
            await asyncio.Event().wait()
        if paid == PAYMENTS:
            return Response("paid")
        return Response(tool_calls=(call("pay", to=f"{self._run} {paid}"),))


def paying(ledger: Path) -> ToolSpec:
    """Return the tool, which is irreversible."""

    @tool(effect="irreversible")
    async def pay(to: str) -> str:
        """Pay."""
        descriptor = os.open(ledger, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.write(descriptor, f"{to}\n".encode())
        os.close(descriptor)
        return f"paid {to}"

    return pay


def agent(journal: SqliteJournal, ledger: Path, run: str, *, stops: bool = False) -> Agent:
    """Return an agent that pays for a run."""
    return Agent(
        Buyer(journal, run, stops=stops),
        tools=[paying(ledger)],
        limits=Limits(max_iterations=0),
        journal=journal,
        observers=(),
    )


async def main(path: str, ledger: str, run: str) -> None:
    """Pay for a run until it is killed."""
    async with SqliteJournal(path) as journal:
        await agent(journal, Path(ledger), run, stops=True).run("pay", run_id=run)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
