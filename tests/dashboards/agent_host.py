"""An application as an SRE meets it: agents with traffic, /metrics, and switches on standard input that break things.

    python -m tests.dashboards.agent_host NAME FOLDER PORT

serves /metrics there and reads `on FAULT` and `off FAULT`, one a line, until end of file.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator import FunctionLLM, Limits, MemoryJournal, Orchestrator, SqliteJournal, TransitionLog, tool
from orchestrator.errors import LLMError, OrchestratorError
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Draft, Lease
from orchestrator.kernel.record import RolledBack, RunAdmitted, RunRecovered, RunRejected
from orchestrator.kernel.run import Run
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.messages import Request, Response, Usage
from orchestrator.providers.scripted import call
from orchestrator.retry import RetryPolicy
from orchestrator.telemetry.engine import Load
from orchestrator.telemetry.exposition import serve_metrics
from orchestrator.telemetry.metrics import Metrics
from orchestrator.telemetry.watchdog import Watchdog
from tests.dashboards.host_graphs import ODD, PATIENT, STUCK, OddContext, odd_machine

SPENDING = Usage(1200, 300, cached_input_tokens=400, reasoning_tokens=60)
BINGE = Usage(90_000, 20_000)
SLOTS = 4
QUEUE = 25
PAUSE = 0.2
"""Seconds between two rounds of traffic."""
MOST_RUNS = 100
RHYTHM = {"asking": (40, 1), "limits": (5, 2), "llm": (5, 2), "tools": (10, 1), "journal": (10, 1)}
"""Fault -> every how many rounds it begins how many runs; the others one in five."""


@tool(effect="pure")
async def search(query: str) -> str:
    """Look something up."""
    if "broken" in query:
        raise RuntimeError("the index is gone")
    return f"found {query}"


@tool(effect="irreversible", approval=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


class SlowJournal(MemoryJournal):
    """Takes its time to append."""

    async def append(  # type: ignore[override]
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> None:
        await asyncio.sleep(0.2)
        super().append(lease, drafts, blobs)


def steady(request: Request) -> object:
    return call("search", query="moon") if request.messages[-1].role == "user" else "Two moons."


def fails(request: Request) -> object:
    raise LLMError("no answer", kind="server_error", status=500)


def fumbles(request: Request) -> object:
    turns = sum(message.role == "assistant" for message in request.messages)
    if turns >= 3:
        return "I give up."
    return [call("search", query=f"broken {turns}"), call("no_such_tool", n=turns)]


def circles(request: Request) -> object:
    return call("search", query=f"moon {len(request.messages)}")


async def ponders(request: Request) -> object:
    await asyncio.sleep(7)
    return "At last."


def asks(request: Request) -> object:
    return call("pay", amount=1)


def binges(request: Request) -> object:
    return Response("Much.", usage=BINGE)


async def hangs(request: Request) -> object:
    await asyncio.sleep(3600)
    return "never"


async def deaf(request: Request) -> object:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


class Slots:
    """So many runs at a time, the others wait; what `Metrics.watch` and the facts of an engine are made of."""

    def __init__(self, metrics: Metrics, number: int) -> None:
        self.metrics = metrics
        self.number = number
        self.waiting = 0
        self._seats = asyncio.Semaphore(number)

    def load(self) -> Load:
        return Load((LLM_LOOP.name,), self.number, {LLM_LOOP.name: self.waiting})

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        if self.waiting >= QUEUE:
            self.metrics.observe(RunRejected(LLM_LOOP.name, secrets.token_hex(4), "queue_full", time.time()))
            return
        began = time.monotonic()
        self.waiting += 1
        try:
            await self._seats.acquire()
        finally:
            self.waiting -= 1
        waited = time.monotonic() - began
        self.metrics.observe(RunAdmitted(LLM_LOOP.name, secrets.token_hex(4), waited, time.time()))
        try:
            await work()
        finally:
            self._seats.release()


class Host:
    """The agents of one process."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.faults: set[str] = set()
        self.metrics = Metrics()
        self.log = TransitionLog((folder / f"{name}.log").open("ab", buffering=0))
        self.metrics.count_lines(*self.log.tallies)
        self.observers = (self.metrics, self.log)
        self.folder = folder
        self.tasks: set[asyncio.Task[None]] = set()
        self.slots = Slots(self.metrics, SLOTS)
        self.metrics.watch(self.slots)
        self.began = time.time()
        self.odd = odd_machine()

    def agent(
        self, answer: Callable[[Request], Any], model: str, *, graph: Graph = LLM_LOOP, **options: Any
    ) -> Orchestrator:
        seconds = options.pop("run_seconds", None)
        llm = FunctionLLM(answer, model=model, usage=SPENDING, latency=options.pop("latency", 0.02))
        llm.context_window = 8000  # type: ignore[attr-defined]
        self.metrics.declare(graph, run_seconds=seconds)
        options.setdefault("tools", [search, pay])
        options.setdefault("retry", RetryPolicy(attempts=3, base=0.01, max_delay=0.02))
        return Orchestrator(llm, graph=graph, observers=self.observers, **options)

    def start(self, work: Awaitable[object]) -> None:
        async def quietly() -> None:
            with contextlib.suppress(OrchestratorError, RuntimeError):
                await work

        task = asyncio.ensure_future(quietly())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def traffic(self) -> None:
        """Healthy runs all the time, and sick ones while a fault is on."""
        limits = Limits(max_iterations=10, max_input_tokens=100_000, max_seconds=300)
        healthy = self.agent(steady, "steady", limits=limits)
        makers = {fault: make() for fault, make in self._sick().items()}
        for round_ in itertools.count():
            if round_ % 3 == 0:
                self.start(self.slots.run(lambda: healthy.run("go on")))
            for number, (fault, make) in enumerate(makers.items()):
                often, times = RHYTHM.get(fault, (5, 1))
                if fault in self.faults and round_ % often == number % often and len(self.tasks) < MOST_RUNS:
                    for _ in range(times):
                        self.start(make())
            if "rollback" in self.faults:
                self.metrics.observe(RolledBack(LLM_LOOP.name, "r", "failed", time.time()))
                self.faults.discard("rollback")
            if "block" in self.faults:
                time.sleep(0.8)  # noqa: ASYNC251 - that is the fault
            await asyncio.sleep(PAUSE)

    def _sick(self) -> dict[str, Callable[[], Callable[[], Awaitable[object]]]]:
        """Return fault -> make, once, what begins one sick run."""

        def plain(answer: Callable[[Request], Any], model: str, **options: Any) -> Callable[[], Any]:
            def make() -> Callable[[], Awaitable[object]]:
                agent = self.agent(answer, model, **options)
                return lambda: agent.run("go on")

            return make

        def pondering() -> Callable[[], Awaitable[object]]:
            agent = self.agent(ponders, "slow")
            return lambda: self.slots.run(lambda: agent.run("go on"))

        few = Limits(max_iterations=2, max_input_tokens=2500)
        return {
            "llm": plain(fails, "flaky", retry=RetryPolicy(attempts=6, base=0.01, max_delay=0.02)),
            "tools": plain(fumbles, "fumbling"),
            "limits": plain(circles, "circling", limits=few),
            "slow": pondering,
            "tokens": plain(binges, "hungry"),
            "journal": lambda: self._loses,
            "slow_journal": plain(steady, "steady", journal=SlowJournal(), tools=[search]),
            "asking": plain(asks, "asking"),
            "stray": lambda: lambda: self._odd("stray"),
            "guard": lambda: lambda: self._odd("guard"),
        }

    async def _loses(self) -> None:
        journal = CrashingJournal(MemoryJournal(), at=3)
        await self.agent(steady, "steady", journal=journal, tools=[search]).run("go on")

    async def _odd(self, does: str) -> None:
        driver = Driver(self.odd, observers=self.observers)
        await driver.drive(Run(self.odd, secrets.token_hex(8), OddContext(does), None))

    def stand_still(self) -> None:
        """Begin runs that hang, wait, or are asked about; they last as long as the process."""

        stuck = self.agent(deaf, "deaf", graph=STUCK, run_seconds=4)
        patient = self.agent(hangs, "patient", graph=PATIENT)
        asking = self.agent(asks, "asking")
        self.start(stuck.run("go on"))
        self.start(patient.run("go on"))
        self.start(asking.run("go on"))

    async def recover(self) -> None:
        """Take up what a former life of this process left open, and leave something for the next one."""

        file = self.folder / f"{self.name}.db"
        agent = self.agent(hangs, "hanging", journal=SqliteJournal(file), tools=[search])
        for run in await agent.open_runs():
            self.metrics.observe(RunRecovered(LLM_LOOP.name, run.run_id, "resumed", time.time()))
            self.start(agent.resume(run.run_id))
        self.start(agent.run("go on"))

    def journal_size(self) -> int:
        if "telemetry" in self.faults:
            raise OSError("the journal's size cannot be told")
        grows = "growth" in self.faults
        if not grows:
            self.began = time.time()
        return int(2e9 + (3e7 * (time.time() - self.began) if grows else 0))


async def _commands(host: Host) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async for line in reader:
        word, _, fault = line.decode().strip().partition(" ")
        if fault == "stuck":
            host.stand_still()
        elif word == "on":
            host.faults.add(fault)
        else:
            host.faults.discard(fault)


async def main(name: str, folder: str, port: str) -> None:
    host = Host(name, Path(folder))
    host.metrics.declare(ODD)
    host.metrics.measure_store("sqlite", "live", host.journal_size)
    async with Watchdog(host.metrics, blocked_after=0.5, stream=(host.folder / "stacks").open("a")):
        with serve_metrics(port=int(port)):
            await host.recover()
            traffic = asyncio.create_task(host.traffic())
            await _commands(host)
            traffic.cancel()
    raise SystemExit(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
