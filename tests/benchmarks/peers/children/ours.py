"""Ours: `Agent`, bare or, with the argument `full`, with its JSON log to a file and every metric."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
from prometheus_client import CollectorRegistry

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, Journal, Lease
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator.tools.spec import tool
from tests.benchmarks import child
from tests.benchmarks.script import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, PROMPT, TOOL, Script

_FILE = "journal.db"
_LIMITS = Limits(max_iterations=1_000_000)
"""Every guard on at its default; only the cap is out of the way of long runs."""
_USAGE = Usage(INPUT_TOKENS, OUTPUT_TOKENS)


class ScriptedLLM:
    """Says what the script says."""

    model = "scripted"

    def __init__(self, script: Script) -> None:
        self._script = script

    async def complete(self, request: Request) -> Response:
        """Answer. A turn is the model's message and one message of each tool."""
        calls = await self._script.calls(len(request.messages) // (1 + self._script.tools))
        if not calls:
            return Response(ANSWER, usage=_USAGE)
        return Response(
            None, tuple(ToolCall(call.id, TOOL, call.text) for call in calls), "tool_calls", _USAGE
        )


class Ours:
    """The agent under test; its tool is of the worst kind, which is never run twice."""

    def __init__(self, script: Script, journal: Journal | None = None, *, full: bool) -> None:
        @tool(effect="irreversible")
        async def look_up(key: str, depth: int = 1) -> str:
            """Look something up."""
            return script.look_up(key, depth)

        self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  as long as the agent
        observers = (TransitionLog(self._log), Metrics(CollectorRegistry())) if full else ()
        self._agent = Agent(
            ScriptedLLM(script), tools=[look_up], limits=_LIMITS, journal=journal, observers=observers
        )

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    async def run(self, name: str) -> str:
        """Run a conversation to its end."""
        result = await self._agent.run(PROMPT, run_id=name)
        return result.output if result.outcome is Outcome.COMPLETED else f"{result.outcome}: {result.reason}"

    async def resume(self, name: str) -> str:
        """Go on with a conversation."""
        result = await self._agent.resume(name)
        return result.output if result.outcome is Outcome.COMPLETED else f"{result.outcome}: {result.reason}"


class TimedJournal(SqliteJournal):
    """Notes the seconds from each append until it is durable, waiting for the writer's thread included."""

    def __init__(self, path: Path, spans: list[float]) -> None:
        super().__init__(path)
        self._spans = spans

    def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None] | None:
        """Append, and note when it is done."""
        started = time.perf_counter()
        pending = super().append(lease, drafts, blobs)
        if isinstance(pending, asyncio.Future):
            pending.add_done_callback(lambda _: self._spans.append(time.perf_counter() - started))
        return pending


@asynccontextmanager
async def opened(folder: str, spans: list[float]) -> AsyncIterator[TimedJournal]:
    """Open the journal."""
    async with TimedJournal(Path(folder) / _FILE, spans) as journal:
        yield journal


async def told(journal: TimedJournal) -> str:
    """Say what the store is set to."""
    health = await journal.check()
    set_to = ", ".join(f"{name}={health.pragmas[name]}" for name in ("journal_mode", "synchronous"))
    return f"SQLite {apsw.sqlite_lib_version()} ({set_to})"


if __name__ == "__main__":
    FULL = "full" in sys.argv[1:]
    child.serve(
        child.Side(
            ("fsm-orchestrator", "transitions"),
            lambda script: Ours(script, full=FULL),
            opened,
            lambda script, journal: Ours(script, journal, full=FULL),
            told,
        )
    )
