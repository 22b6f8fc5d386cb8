"""Hosts with incidents that hide, and with what must page nobody.

    python -m tests.dashboards.quiet_host NAME FOLDER PORT calm
    python -m tests.dashboards.quiet_host NAME DISK PORT disk

`calm` has four agents: `big` answers, `rare` fails all of its runs at 0.9 % of the traffic of `big`, `seldom` fails its
one run a minute (of the time scale), and `office` uses as many tokens as in the office hours of its history. `on stall`
stops the event loop once for five seconds.

`disk` has one agent with traffic, on a journal of a disk that the test fills.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from orchestrator import Agent, LocalEngine, SqliteJournal
from orchestrator.errors import LLMError, OrchestratorError
from orchestrator.llm.message import Request, Usage
from orchestrator.llm.retry import RetryPolicy
from orchestrator.telemetry import TransitionLog
from orchestrator.telemetry.exposition import serve_metrics
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.watchdog import Watchdog
from orchestrator.testing import FunctionLLM
from tests.dashboards.agent_host import commands
from tests.dashboards.monitoring import SCALE

STALL = 5.0
"""Seconds."""
BATCH = 6
"""Runs of `big` at once, ten times a second."""
PER_FAILURE = 111
"""Runs of `big` for one of `rare`."""
OFFICE = 300
"""Tokens a second of `office`."""
BLOCKED = 2.0
"""Seconds without a heartbeat for which the loop of these hosts counts as blocked: not the pauses of a busy machine."""
HEARTBEAT = 0.005
"""Seconds. The windows of the rules are shorter here, and must have as many wake-ups as in production."""


class _Traffic:
    """Tasks that last as long as the host, and its metrics and log."""

    def __init__(self, log: Path) -> None:
        self.metrics = Metrics()
        self.faults: set[str] = set()
        self._observers = (self.metrics, TransitionLog(log.open("ab", buffering=0)))
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, fault: str) -> None:
        """Stop the event loop: the one fault that these hosts have by themselves."""
        if fault == "stall":
            time.sleep(STALL)

    def stand_still(self) -> None:
        """Have no run that hangs."""

    def _agent(self, name: str, answer: Any, journal: SqliteJournal | None = None, **options: Any) -> Agent:
        llm = FunctionLLM(
            answer, model=name, usage=options.pop("usage", Usage()), latency=options.pop("latency", 0)
        )
        return Agent(
            llm,
            name=name,
            journal=journal,
            observers=self._observers,
            retry=RetryPolicy(attempts=1),
            **options,
        )

    def _start(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))


class Calm(_Traffic):
    """Many agents that work, and two that fail and are easily overlooked."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder / f"{name}.log")
        self._journal = folder / f"{name}.db"
        self._big = self._agent("big", _answers)
        self._office = self._agent("office", _answers, usage=Usage(OFFICE // 4, OFFICE // 4))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the engine of the agents that fail, and all traffic."""
        async with SqliteJournal(self._journal) as journal:
            failing = {name: self._agent(name, _fails, journal) for name in ("rare", "seldom")}
            async with LocalEngine(failing, name="failing") as engine:
                self._start(self._much(engine))
                self._start(self._little(engine))
                self._start(self._steady())
                yield

    async def _much(self, engine: LocalEngine) -> None:
        due = PER_FAILURE
        while True:
            await asyncio.gather(*(self._big.run("go on") for _ in range(BATCH)))
            due -= BATCH
            if due <= 0:
                await _run(engine, "rare")
                due += PER_FAILURE
            await asyncio.sleep(0.1)

    async def _little(self, engine: LocalEngine) -> None:
        while True:
            await _run(engine, "seldom")
            await asyncio.sleep(60 / SCALE)

    async def _steady(self) -> None:
        while True:
            await self._office.run("go on")
            await asyncio.sleep(0.5)


class OnDisk(_Traffic):
    """One agent, and a journal on a small disk."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder.with_name(f"{name}.log"))
        self._folder = folder

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the engine and its traffic."""
        async with SqliteJournal(self._folder / "journal.db") as journal:
            agents = {"writer": self._agent("writer", _answers, journal, latency=0.3)}
            async with LocalEngine(agents, name="writing") as engine:
                self._start(self._write(engine))
                yield

    async def _write(self, engine: LocalEngine) -> None:
        running: set[asyncio.Task[None]] = set()
        while True:
            task = asyncio.create_task(_run(engine, "writer"))
            running.add(task)
            task.add_done_callback(running.discard)
            await asyncio.sleep(0.25)


def _answers(request: Request) -> object:
    return "Yes."


def _fails(request: Request) -> object:
    raise LLMError("no answer", kind="server_error", status=500)


async def _run(engine: LocalEngine, agent: str) -> None:
    with contextlib.suppress(OrchestratorError):  # refused: the engine counts it
        await (await engine.submit("go on", agent=agent))


async def main(name: str, folder: str, port: str, role: str) -> None:
    host = (Calm if role == "calm" else OnDisk)(Path(folder), name)
    with serve_metrics(port=int(port)):
        async with (
            Watchdog(host.metrics, interval=HEARTBEAT, blocked_after=BLOCKED, stream=sys.stderr),
            host.running(),
        ):
            await commands(host)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
