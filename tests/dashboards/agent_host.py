"""An application as an SRE meets it: four engines with traffic, /metrics, and switches that break things.

    python -m tests.dashboards.agent_host NAME FOLDER PORT serving|standing

serves /metrics there (`standing`: only the engine whose runs last) and reads `on FAULT` and `off FAULT` from standard
input, one a line, until end of file.

The runs that a person on call looks for have fixed ids: `guilty-FAULT`, and `think` of the patient agent.

Engines, runs, journals (SQLite, on disk), retries, recoveries, rollbacks and refusals are the real ones: no fact
and no figure is made here. What is provoked, and why so:

| switch | what is done | why not the usual cause |
|---|---|---|
| llm, tools, limits, slow, tokens, asking | functions stand for models; they fail, fumble, circle … | no network |
| stuck | a model ignores its cancellation, in a state with a limit of 2 s | shipped limits are minutes |
| (with it) | a model never answers, in a state whose limit was taken away | every shipped state has one |
| journal, slow_journal | a thread holds the lock of one journal, beyond its patience or less | a backup would |
| growth | a sparse file beside the journal grows; it is measured as ever | gigabytes need not be written |
| telemetry | the log of one agent goes to /dev/full | it is the usual cause: a full disk |
| freeze | the event loop sleeps until NAME.thaw exists | it is the usual cause |
| block | a model sleeps without the event loop | it is the usual cause |
| stray, guard | a small table: an event without an edge, a guard that raises | shipped tables have neither |
| (kill -9) | the test kills the process while a seat is booked; giving it back fails | it is the usual cause |
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import sys
import time
import traceback
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, Protocol

from orchestrator import LocalEngine, SqliteJournal
from orchestrator.errors import OrchestratorError, Overloaded
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.run import Run
from orchestrator.telemetry import TransitionLog
from orchestrator.telemetry.exposition import serve_metrics
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.watchdog import Watchdog
from tests.dashboards.host_agents import FOR_HOURS, Crews
from tests.dashboards.host_faults import Ballast, Rival
from tests.dashboards.host_graphs import ODD, OddContext, odd_machine

SLOTS = 6
QUEUE = 50
PAUSE = 0.2
"""Seconds between two rounds of traffic."""
RHYTHM = {
    "steady": 4,
    "llm": 5,
    "limits": 5,
    "slow": 5,
    "tools": 10,
    "telemetry": 10,
    "asking": 40,
}
"""Agent of the front engine -> every how many rounds it is asked. Together more than its slots can do: runs queue."""
GUILTY = {"slow": "front", "tokens": "front", "block": "alone"}
"""Fault -> engine of the run that has it for hours, which starts with the fault."""
CROWD = 4
"""Runs that the side engine is given at once now and then: one more than it has slots and places in its queue."""


class Host:
    """The engines of one process."""

    def __init__(self, name: str, folder: Path, *, serves: bool) -> None:
        self._serves = serves
        self.faults: set[str] = set()
        self.metrics = Metrics(objectives={"slow": 1.0}, cost_ceilings={"steady": 1e9})
        self.log = TransitionLog((folder / f"{name}.log").open("ab", buffering=0))
        self.crews = Crews(self.metrics, self.log)
        self.engines: dict[str, LocalEngine] = {}
        self._thaw = folder / f"{name}.thaw"
        self._journals = folder / name
        self._journals.mkdir(exist_ok=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._odd = odd_machine()
        if serves:
            self.metrics.declare(ODD)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the journals and start the engines; what a former life left open is taken up, or begun."""
        async with contextlib.AsyncExitStack() as stack:
            if self._serves:
                await self._serve(stack)
            journal = await stack.enter_async_context(SqliteJournal(self._journals / "standing.db"))
            crew = self.crews.standing(journal)
            self.standing = LocalEngine(crew, slots=SLOTS, name="standing", recover="resume")
            await stack.enter_async_context(self.standing)
            if not self.standing.found:
                for prompt in ("book", "think"):
                    self.start(self._run(self.standing, "patient", prompt, prompt))
            yield

    async def _serve(self, stack: contextlib.AsyncExitStack) -> None:
        """Start the engines for users, and their traffic."""
        front = await stack.enter_async_context(SqliteJournal(self._journals / "front.db"))
        side = await stack.enter_async_context(SqliteJournal(self._journals / "side.db", busy=0.3))
        self.ballast = Ballast(front.path)
        self.rival = Rival(side.path)
        self.rival.start()
        stack.callback(self.rival.stop)
        self.front = LocalEngine(self.crews.front(front), slots=SLOTS, queue=QUEUE, name="front")
        self.side = LocalEngine(self.crews.side(side), slots=2, queue=1, name="side")
        # The rival would end a run that lasts for minutes: the run that blocks has a journal of its own.
        private = await stack.enter_async_context(SqliteJournal(self._journals / "alone.db"))
        alone = LocalEngine(self.crews.alone(private), slots=1, name="alone")
        for engine in (self.front, self.side, alone):
            await stack.enter_async_context(engine)
        self.engines = {"front": self.front, "side": self.side, "alone": alone}
        self.start(self._traffic())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something go on by itself."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            traceback.print_exception(error)  # the story prints it when it waits in vain

    def begin(self, fault: str) -> None:
        """Turn a fault on."""
        while fault == "freeze" and not self._thaw.exists():
            time.sleep(0.1)  # this is the fault
        self.faults.add(fault)
        if engine := self.engines.get(GUILTY.get(fault, "")):
            self.start(self._insist(engine, fault))

    async def _insist(self, engine: LocalEngine, agent: str) -> None:
        """Start the guilty run of an agent as soon as the engine has a place for it."""
        while True:
            with contextlib.suppress(Overloaded):
                await engine.submit(FOR_HOURS, agent=agent, run_id=f"guilty-{agent}")
                return
            await asyncio.sleep(PAUSE)

    async def _run(
        self, engine: LocalEngine, agent: str, prompt: str = "go on", run_id: str | None = None
    ) -> None:
        with contextlib.suppress(OrchestratorError):  # refused, or left: the engine has told of it
            if agent == "steady":  # somebody follows what it says
                await engine.stream(prompt, agent=agent).result()
            else:
                await (await engine.submit(prompt, agent=agent, run_id=run_id))

    async def _traffic(self) -> None:
        """Healthy runs all the time, and sick ones while a fault is on."""
        for round_ in itertools.count():
            asked = {"steady"} | self.faults
            for number, (agent, often) in enumerate(RHYTHM.items()):
                if agent in asked and round_ % often == number % often:
                    self.start(self._run(self.front, agent))
            for fault in self.faults & {"stray", "guard"}:
                if round_ % 10 == 0:
                    self.start(self._take_odd_way(fault))
            self._from_outside(round_)
            await asyncio.sleep(PAUSE)

    def _from_outside(self, round_: int) -> None:
        on = self.faults
        slow = (0.2, 0.2, 0.2, 0.2) if "slow_journal" in on else ()
        self.rival.holds = (*slow, 0.8) if "journal" in on else slow
        self.ballast.grow(growing="growth" in on)
        if on & {"journal", "slow_journal"} and round_ % 2 == 0:
            for _ in range(CROWD if round_ % 10 == 0 else 1):
                self.start(self._run(self.side, "side"))

    async def _take_odd_way(self, does: str) -> None:
        driver = Driver(self._odd, observers=(self.metrics, self.log))
        with contextlib.suppress(OrchestratorError, ValueError):
            await driver.drive(Run(self._odd, secrets.token_hex(8), OddContext(does), None))

    def stand_still(self) -> None:
        """Begin runs that hang, wait, or are asked about; they last as long as the process."""
        for engine, agent in ((self.standing, "stuck"), (self.front, "asking")):
            self.start(self._run(engine, agent, run_id=f"guilty-{agent}"))


class Switched(Protocol):
    """A host with switches."""

    faults: set[str]

    def begin(self, fault: str) -> None:
        """Turn a fault on."""
        ...

    def stand_still(self) -> None:
        """Begin runs that hang."""
        ...


async def commands(host: Switched) -> None:
    """Obey the lines of standard input until its end."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async for line in reader:
        word, _, fault = line.decode().strip().partition(" ")
        if fault == "stuck":
            host.stand_still()
        elif word == "on":
            host.begin(fault)
        else:
            host.faults.discard(fault)


async def main(name: str, folder: str, port: str, role: str) -> None:
    host = Host(name, Path(folder), serves=role == "serving")
    stacks = (Path(folder) / f"{name}.stacks").open("a")
    with serve_metrics(port=int(port)):
        async with Watchdog(host.metrics, blocked_after=0.5, stream=stacks), host.running():
            await commands(host)
            os._exit(0)  # whoever ignores its cancellation cannot be waited for


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
