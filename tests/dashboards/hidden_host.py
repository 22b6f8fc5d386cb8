"""Hosts whose agents go wrong without a failed run, and hosts that Prometheus misreads.

    python -m tests.dashboards.hidden_host NAME FOLDER PORT hidden|twin|slow|skewed

`hidden` has agents with one fault each, beside `steady`, which has none; `on FAULT` starts the fault of the agent
of that name. The others have only `steady`: two `twin` have one label, `slow` gets a slow disk by its environment, and
the clock of `skewed` is two hours behind: of the functions that read a clock only `time.time` is replaced, because the
clock of the machine is that of everybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from orchestrator import Agent, Limits, LocalEngine, Runtime, SqliteJournal, tool
from orchestrator.errors import LLMError, OrchestratorError
from orchestrator.llm.message import Request, Usage
from orchestrator.llm.retry import RetryPolicy
from orchestrator.providers.price import price_table
from orchestrator.providers.scripted import call
from orchestrator.telemetry import TransitionLog
from orchestrator.telemetry.exposition import serve_metrics
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing import FunctionLLM
from tests.dashboards.agent_host import commands

SHOWN = frozenset(
    f"Orchestrator{name}"
    for name in (
        "AbandonedWork",
        "AgentNotSucceeding",
        "AgentsFolded",
        "ClockSkew",
        "CostCeilingExceeded",
        "DuplicateInstance",
        "LLMRequestsUnpriced",
        "NoAnswerRatioHigh",
        "ReleaseUsesMoreTokens",
        "RunsWaitingForAgent",
        "TokenRateHigh",
    )
)
"""The alerts of this story."""
PAUSE = 0.2
BEHIND = 7200
BEFORE = 100.0
"""Tokens of a run of `release` before its new version."""
LEAKS = 15
NIGHTS = 3
PRICES = price_table({"dear": (100.0, 100.0), "known": (1.0, 1.0)}, currency="EUR")
CEILING = 5.0
"""Euros an hour."""


@tool(effect="pure")
async def crawl(page: int) -> str:
    """Crawl a page; it catches its cancellation."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@tool(effect="pure")
async def look(at: int) -> str:
    """Look at something."""
    return str(at)


def _answers(request: Request) -> Any:
    return "Yes."


def _says_nothing(request: Request) -> Any:
    return ""


def _fails(request: Request) -> Any:
    raise LLMError("no answer", kind="server_error", status=500)


def _crawls(request: Request) -> Any:
    return call("crawl", page=1)


async def _circles(request: Request) -> Any:
    await asyncio.sleep(0.1)
    return call("look", at=len(request.messages))


class Host:
    """The agents of one process."""

    def __init__(self, folder: Path, name: str, role: str) -> None:
        self.folder, self.role = folder, role
        self.faults: set[str] = set()
        self.metrics = Metrics(cost_ceilings={"dear": CEILING}, agents=7)
        self._observers = (self.metrics, TransitionLog((folder / f"{name}.log").open("ab", buffering=0)))
        self._path = folder / f"{name}.db"
        self._tasks: set[asyncio.Task[None]] = set()

    def agents(self, journal: SqliteJournal) -> dict[str, Agent]:
        """Return the agents; the last one has no series of its own."""
        endless = Limits(max_iterations=0)
        made = {"steady": self._agent(journal, "steady", _answers)}
        if self.role != "hidden":
            return made
        brief = Limits(max_seconds=0.2, cancel_seconds=0.05)
        return made | {
            "empty": self._agent(journal, "empty", _says_nothing),
            "dear": self._agent(journal, "dear", _circles, usage=Usage(900, 100), limits=endless),
            "binge": self._agent(journal, "binge", _circles, usage=Usage(900, 100), limits=endless),
            "unpriced": self._agent(journal, "unpriced", _answers),
            "leaky": self._agent(journal, "leaky", _crawls, limits=brief),
            "release": self._agent(journal, "release", _answers, usage=Usage(250, 50), version="2"),
            "extra": self._agent(journal, "extra", _answers),
        }

    def _agent(
        self,
        journal: SqliteJournal,
        name: str,
        answer: Callable[[Request], Any],
        *,
        usage: Usage | None = None,
        **options: Any,
    ) -> Agent:
        runtime = Runtime(
            journal=journal, observers=self._observers, price=PRICES if name in {"dear", "unpriced"} else None
        )
        llm = FunctionLLM(answer, model=name, usage=usage or Usage(10, 5), latency=0.01)
        tools = [look, crawl]
        return Agent(llm, name=name, runtime=runtime, tools=tools, retry=RetryPolicy(attempts=1), **options)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the engines and the traffic."""
        async with contextlib.AsyncExitStack() as stack:
            journal = await stack.enter_async_context(SqliteJournal(self._path))
            engine = LocalEngine(self.agents(journal), name="front", slots=30, queue=200)
            self._engine = await stack.enter_async_context(engine)
            if self.role == "hidden":
                seldom = await stack.enter_async_context(SqliteJournal(self.folder / "seldom.db"))
                nightly = {"nightly": self._agent(seldom, "nightly", _fails)}
                self._nights = await stack.enter_async_context(LocalEngine(nightly, name="nights"))
            self.start(self._traffic())
            yield

    def start(self, work: Any) -> None:
        """Let something go on by itself."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def begin(self, fault: str) -> None:
        """Start the fault of an agent."""
        self.faults.add(fault)
        if fault in {"dear", "binge"}:
            self.start(self._run(fault, f"guilty-{fault}"))
        if fault == "nightly":
            self.start(self._fail_at_night())

    def stand_still(self) -> None:
        """Have no run that hangs."""

    async def _traffic(self) -> None:
        leaks = 0
        for round_ in itertools.count():
            self.start(self._run("steady"))
            for agent in self.faults & {"empty", "unpriced", "release", "extra"}:
                self.start(self._run(agent))
            if "leaky" in self.faults and leaks < LEAKS:
                leaks += 1
                self.start(self._run("leaky", f"leaky-{round_}"))
            await asyncio.sleep(PAUSE)

    async def _fail_at_night(self) -> None:
        for _ in range(NIGHTS):
            with contextlib.suppress(OrchestratorError):
                await (await self._nights.submit("go on", agent="nightly"))

    async def _run(self, agent: str, run_id: str | None = None) -> None:
        with contextlib.suppress(OrchestratorError):
            await (await self._engine.submit("go on", agent=agent, run_id=run_id))


async def main(name: str, folder: str, port: str, role: str) -> None:
    if role == "skewed":
        right = time.time
        time.time = lambda: right() - BEHIND
    host = Host(Path(folder), name, role)
    with serve_metrics(port=int(port)):
        async with host.running():
            await commands(host)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
