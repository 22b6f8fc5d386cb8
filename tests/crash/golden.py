"""Runs of the loop for the golden journal: `python -m tests.crash.golden FOLDER` writes `loop_v1.db` and its `.json`.

Run by hand when the records of a new version are released, for new files; those of a released version are never
written again. Between them the runs have every kind of record that the loop writes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.graph import Edge
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.service.recovery import Migration
from orchestrator.testing.clock import FakeClock
from tests.crash.outside import Outside, agent

NEWER = LLM_LOOP.extend(edges=[Edge("budget_exceeded", ("handle_completion",), "terminate_error")])
RUNS = ("approval", "ended", "midturn", "migrated", "paused", "rolled")
KINDS = {
    *("created", "transition", "context", "answer", "intent", "done", "rolled_back", "asked", "approval"),
    *("control", "parked", "unparked", "resumed", "migrated", "memory", "ended"),
}


class Death(BaseException):
    """The end of a process."""


def dying(where: str) -> Callable[[str], Any]:
    """Return what ends a process at a boundary."""

    async def point(name: str) -> None:
        if name == where:
            raise Death

    return point


class Writer:
    """Writes the runs into one journal."""

    def __init__(self, journal: SqliteJournal) -> None:
        self._journal = journal
        self._clock = FakeClock()

    def agent(self, *, dies: str = "", **options: Any) -> Agent:
        outside = Outside(point=dying(dies))
        return agent(outside, self._journal, clock=self._clock, observers=(), **options)

    async def asked(self, one: Agent, run: str, *, new: bool = True) -> asyncio.Task[Any]:
        """Drive a run to its question."""
        going = asyncio.create_task(one.run(f"go {run}", run_id=run) if new else one.resume(run, by="ann"))
        await self.stands(one, run, "approval")
        return going

    async def stands(self, one: Agent, run: str, reason: str) -> None:
        """Wait until a run is parked for a reason, and its driver knows it."""
        while True:
            live = one._service.live.find(run)
            if live is not None and live.parked and (await self._journal.head(run)).reason == reason:
                return
            await asyncio.sleep(0.001)

    async def killed(self, run: str, where: str, **options: Any) -> None:
        try:
            await self.agent(dies=where, **options).run(f"go {run}", run_id=run)
        except BaseException as error:  # noqa: BLE001  of several calls at once, in a group
            assert "Death" in repr(error), error  # noqa: PT017

    async def ended(self, run: str, one: Agent, *, new: bool = True) -> None:
        going = await self.asked(one, run, new=new)
        one.approve(run, by="ann", why="it is due")
        await going

    async def left(self, run: str, one: Agent, *, new: bool = True) -> None:
        going = await self.asked(one, run, new=new)
        going.cancel()
        await asyncio.wait((going,))

    async def write(self) -> None:
        await self.ended("ended", self.agent())
        await self.left("approval", self.agent())
        await self.killed("midturn", "after book")
        await self.killed("rolled", "after book")
        await self.ended("rolled", self.agent(), new=False)
        await self.killed("migrated", "before save", graph=NEWER)
        ways = [Migration(NEWER.fingerprint, lambda stored: stored)]
        await self.left("migrated", self.agent(migrations=ways), new=False)
        one = self.agent()
        going = await self.asked(one, "paused")
        one.pause("paused", by="bob", why="not before noon")
        one.respond("paused", "pay 4", by="ann")
        await self.stands(one, "paused", "paused")
        going.cancel()
        await asyncio.wait((going,))


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        async with SqliteJournal(Path(scratch) / "journal.db") as journal:
            await Writer(journal).write()
            told: dict[str, Any] = {}
            kinds: set[str] = set()
            async for head in journal.runs():
                records = await journal.load(head.run_id)
                kinds |= {record.kind for record in records}
                names = [record.kind for record in records]
                told[head.run_id] = [head.status, head.reason, head.fingerprint, records[-1].hash, names]
            assert kinds == KINDS, kinds ^ KINDS
            (folder / "loop_v1.db").unlink(missing_ok=True)
            await journal.backup(folder / "loop_v1.db")
            (folder / "loop_v1.json").write_bytes(orjson.dumps(told, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
