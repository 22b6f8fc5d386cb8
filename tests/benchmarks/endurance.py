"""Whether a long run and many runs cost the same at their end as at their start; part of `make bench`.

One run of 5,000 turns with compaction, and 50,000 runs one after the other, 100 at a time, all in one process with log,
metrics and a journal. For each block: processor time of a turn, memory of the process, bytes of the journal.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import apsw
from prometheus_client import CollectorRegistry

from orchestrator.engines.process import tune_garbage_collection
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator.tools.spec import tool
from tests.benchmarks.child import resident_bytes

NAME: Final = "endurance"
CONTEXT: Final = 20_000
"""Tokens of the model's context: a compaction each hundred turns or so."""
AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Block:
    """The costs of some turns or runs of the whole."""

    until: int
    """Number of the last turn or run."""
    us: float
    """Processor microseconds of each."""
    resident_mb: float
    journal_bytes: float = 0.0
    """Bytes of the records that each added, with key and hash; 0 for runs in memory."""


class TalkativeLLM:
    """Calls a tool in each of `turns` turns, and reports the length of the request as its tokens."""

    model = "talkative"

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self.asked = 0

    async def complete(self, request: Request) -> Response:
        """Answer with the next call, or with text at the end."""
        self.asked += 1
        usage = Usage(sum(len(message.text) + 40 for message in request.messages) // 4, 60)
        if self.asked > self._turns:
            return Response("done", usage=usage)
        arguments = f'{{"path": "src/module_{self.asked % 100:03}.py", "line": {10_000 + self.asked}}}'
        call = ToolCall(f"call_{self.asked}", "read", arguments)
        return Response(f"Looking at part {self.asked:06}.", (call,), "tool_calls", usage)


@tool(effect="pure")
async def read(path: str, line: int) -> str:
    """Read a part of a file."""
    return f"{path}:{line}: " + "x" * 300


def agent(model: Any, journal: Any, log: Any) -> Agent:
    """Return an agent with log and metrics, whose runs are compacted."""
    limits = Limits(max_iterations=0, max_repeated_success=0, context_limit=CONTEXT, compaction_threshold=0.8)
    observers = (TransitionLog(log), Metrics(CollectorRegistry()))
    return Agent(model, tools=[read], limits=limits, journal=journal, observers=observers)


async def long_run(folder: Path, turns: int, block: int) -> list[Block]:
    """Return the blocks of one long run in a file."""
    blocks: list[Block] = []
    model = TalkativeLLM(turns)
    with tempfile.TemporaryFile(buffering=0) as log:
        async with SqliteJournal(folder / "journal.db") as journal:
            running = asyncio.create_task(agent(model, journal, log).run("go"))
            for until in range(block, turns + 1, block):
                spent = time.process_time()
                while model.asked < until and not running.done():  # noqa: ASYNC110 - the model is told nothing
                    await asyncio.sleep(0.005)
                blocks.append(_block(until, block, spent))
            result = await running
    if result.output != "done":
        raise RuntimeError(f"the workload ended as {result.outcome}: {result.reason}")
    stored = _bytes_of_blocks(folder / "journal.db", block)
    return [replace(one, journal_bytes=each) for one, each in zip(blocks, stored, strict=False)]


def _bytes_of_blocks(journal: Path, block: int) -> list[float]:
    """Return the bytes of the records of a turn, for each block of turns."""
    sums: list[float] = []
    turn = 0
    db = apsw.Connection(str(journal), flags=apsw.SQLITE_OPEN_READONLY)
    for kinds, length in db.execute("SELECT kind, length(kind) + length(body) + 48 FROM record ORDER BY key"):
        sums += [0.0] * (turn // block + 1 - len(sums))
        sums[turn // block] += length / block
        turn += kinds.split(",").count("answer")
    db.close()
    return sums


async def many_runs(runs: int, block: int) -> list[Block]:
    """Return the blocks of many short runs in one process, with the journal in memory."""
    blocks: list[Block] = []
    numbers = itertools.count()
    with tempfile.TemporaryFile(buffering=0) as log:
        shared = agent(ShortLLM(), MemoryJournal(ended=1_000), log)
        for until in range(block, runs + 1, block):
            spent = time.process_time()
            for _ in range(block // AT_ONCE):
                ends = await asyncio.gather(
                    *(shared.run("go", run_id=str(next(numbers))) for _ in range(AT_ONCE))
                )
                if any(end.output != "done" for end in ends):
                    raise RuntimeError(f"the workload ended as {ends[0].outcome}: {ends[0].reason}")
            log.truncate(0)
            blocks.append(_block(until, block, spent))
    return blocks


class ShortLLM:
    """Calls a tool, then answers."""

    model = "short"

    async def complete(self, request: Request) -> Response:
        """Answer the second request of a run."""
        if len(request.messages) > 1:
            return Response("done", usage=Usage(900, 60))
        return Response(
            None, (ToolCall("1", "read", '{"path": "a", "line": 1}'),), "tool_calls", Usage(900, 60)
        )


def _block(until: int, number: int, spent: float) -> Block:
    seconds = time.process_time() - spent
    return Block(until, seconds / number * 1e6, resident_bytes() / 1e6)


def measure(turns: int = 5_000, runs: int = 50_000) -> tuple[list[Block], list[Block]]:
    """Measure both, in blocks of a fifth."""
    tune_garbage_collection()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        one = asyncio.run(long_run(Path(folder), turns, turns // 5))
    return one, asyncio.run(many_runs(runs, runs // 5))


def lines(one: Sequence[Block], many: Sequence[Block]) -> Iterator[str]:
    """Yield the two tables."""
    yield "one run with compaction, SQLite, log and metrics on"
    yield f"{'until turn':>12} {'cpu µs':>8} {'MB':>7} {'bytes a turn':>13}"
    for block in one:
        yield f"{block.until:12,} {block.us:8,.0f} {block.resident_mb:7.1f} {block.journal_bytes:13,.0f}"
    yield f"runs of 2 turns in one process, {AT_ONCE} at a time, log and metrics on"
    yield f"{'until run':>12} {'cpu µs':>8} {'MB':>7}"
    for block in many:
        yield f"{block.until:12,} {block.us:8,.0f} {block.resident_mb:7.1f}"
