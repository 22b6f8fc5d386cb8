"""Callers that wait for a person in one process: memory with every run evicted, and the time from an answer on.

    python -m tests.benchmarks.evicted_runs                       # 100,000 callers, 1,000 answers: some minutes
    python -m tests.benchmarks.evicted_runs --runs 2000 --answers 50

Each run makes one turn (a request and a tool call), then its next call needs an approval. With `evict_after` the run is
released, and its caller still awaits `agent.run(...)`. When all runs are evicted, random ones are approved, one after
the other. The time of an answer is that from before `approve` until the approved tool runs, which is the next step.
The callers of the answered runs get their results.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.telemetry.metrics import Metrics
from orchestrator.tools.spec import tool
from tests.benchmarks.child import percentile, resident_bytes

AT_ONCE = 200
"""Runs that work at the same time at the start; the others are evicted or have not started."""
EVICT_AFTER = 0.01


class Figures(NamedTuple):
    """What one measurement shows."""

    runs: int
    evicted: int
    """Runs that only the journal has when the memory is measured."""
    resident_mb: float
    """Resident memory of the process, all callers waiting."""
    kib_per_run: float
    """Resident memory that each caller adds."""
    answered: int
    p50_ms: float
    """Milliseconds from an answer to the next step."""
    p95_ms: float
    cpu_ms: float
    """Milliseconds of the processor for each answer, until its caller has the result."""


class Payer:
    """A model that asks for a look-up, then for a payment, then says what happened. It keeps no request."""

    model = "payer"

    async def complete(self, request: Request) -> Response:
        """Answer."""
        turn = sum(message.role == "assistant" for message in request.messages)
        if turn == 0:
            return Response(None, (ToolCall("c0", "look_up", '{"key": "a"}'),), "tool_calls")
        if turn == 1:
            return Response(None, (ToolCall("c1", "pay", '{"to": "ann"}'),), "tool_calls")
        return Response("It is paid.")


async def measured(runs: int, answers: int, seed: int) -> Figures:
    """Start the runs on SQLite with metrics, answer some of them, and return the figures."""
    paid: asyncio.Queue[float] = asyncio.Queue()

    @tool(effect="pure")
    async def look_up(key: str) -> str:
        """Look something up."""
        return key

    @tool(effect="irreversible", approval=True)
    async def pay(to: str) -> str:
        """Pay somebody."""
        paid.put_nowait(time.perf_counter())
        return to

    with tempfile.TemporaryDirectory() as folder:
        async with SqliteJournal(Path(folder) / "journal.db") as journal:
            runtime = Runtime(
                journal=journal, observers=[Metrics(CollectorRegistry())], evict_after=EVICT_AFTER
            )
            agent = Agent(Payer(), name="payer", tools=[look_up, pay], runtime=runtime)
            gc.collect()
            before = resident_bytes()
            callers = await _started(agent, runs)
            gc.collect()
            held, evicted = resident_bytes(), runs - sum(1 for _ in agent._service.live)
            chosen = random.Random(seed).sample(range(runs), answers)
            spans, cpu = list[float](), time.process_time()
            for number in chosen:
                asked = time.perf_counter()
                await agent.approve(f"run-{number}")
                spans.append(await paid.get() - asked)
                result: Result = await callers[number]
                if result.output != "It is paid.":
                    raise RuntimeError(f"run-{number} ended with {result.output!r}")
            cpu = time.process_time() - cpu
            waiting = sum(1 for one in callers if not one.done())
            if waiting != runs - answers:
                raise RuntimeError(f"{waiting} callers wait, and {runs - answers} runs are unanswered")
            for one in callers:
                one.cancel()
            await asyncio.wait(callers)
    return Figures(
        runs,
        evicted,
        held / 1e6,
        (held - before) / runs / 1024,
        answers,
        percentile(spans, 50) * 1e3 if spans else 0.0,
        percentile(spans, 95) * 1e3 if spans else 0.0,
        cpu / max(1, answers) * 1e3,
    )


async def _started(agent: Agent, runs: int) -> list[asyncio.Task[Result]]:
    """Start the runs, AT_ONCE at a time, and return their callers when every run is evicted."""
    callers, quiet = list[asyncio.Task[Result]](), 0
    evicted = agent._service.evicted
    while len(callers) < runs or quiet < runs:
        room = min(runs - len(callers), AT_ONCE - (len(callers) - quiet))
        for _ in range(room):
            name = f"run-{len(callers)}"
            callers.append(asyncio.create_task(agent.run("Pay Ann.", run_id=name)))
        await asyncio.sleep(0.01)
        quiet = sum(1 for run in evicted if run.is_quiet)
        if callers and any(one.done() for one in callers[-AT_ONCE:]):
            raise RuntimeError(f"a run ended before it was answered: {callers[-1]!r}")
    return callers


def main(arguments: Iterable[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100_000, help="callers that wait at once")
    parser.add_argument("--answers", type=int, default=1_000, help="random runs that are approved")
    parser.add_argument("--seed", type=int, default=1, help="seed of their choice")
    given = parser.parse_args(None if arguments is None else list(arguments))
    found = asyncio.run(measured(given.runs, given.answers, given.seed))
    print(f"{found.runs:,} callers wait, {found.evicted:,} runs are evicted")
    print(f"resident memory {found.resident_mb:,.0f} MB, {found.kib_per_run:.1f} KiB for each caller")
    print(
        f"{found.answered:,} answers, to the next step: p50 {found.p50_ms:.0f} ms, p95 {found.p95_ms:.0f} ms"
    )
    print(f"processor time for each answered run: {found.cpu_ms:.1f} ms")


if __name__ == "__main__":
    main()
