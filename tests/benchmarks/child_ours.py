"""Our side of the journalled cases: `Orchestrator` with `SqliteJournal`, no observers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import apsw

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, Lease
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.messages import Request, Response, ToolCall, Usage
from orchestrator.runtime.llm_loop import Orchestrator
from orchestrator.toolspec import tool
from tests.benchmarks import child
from tests.benchmarks.script import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, PROMPT, RUN_ID, Script, arguments

_FILE = "journal.db"
_LIMITS = Limits(max_iterations=1_000_000)
_USAGE = Usage(INPUT_TOKENS, OUTPUT_TOKENS)


class TimedJournal(SqliteJournal):
    """Notes the seconds from each append until it is durable, waiting for the writer's thread included."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.spans: list[float] = []

    def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None] | None:
        started = time.perf_counter()
        pending = super().append(lease, drafts, blobs)
        if isinstance(pending, asyncio.Future):
            pending.add_done_callback(lambda _: self.spans.append(time.perf_counter() - started))
        return pending


class ScriptedLLM:
    """Says what the script says."""

    model = "scripted"

    def __init__(self, script: Script) -> None:
        self._script = script

    async def complete(self, request: Request) -> Response:
        turn = await self._script.turn(len(request.messages))
        if turn is None:
            return Response(ANSWER, usage=_USAGE)
        call = ToolCall(f"call_{turn}", "look_up", json.dumps(arguments(turn)))
        return Response(None, (call,), "tool_calls", _USAGE)


def agent(script: Script, journal: SqliteJournal) -> Orchestrator:
    """Return the agent under test; its tool is of the worst kind, which is never run twice."""

    @tool(effect="irreversible")
    async def look_up(key: str, depth: int = 1) -> str:
        """Look something up."""
        return script.look_up(key, depth)

    return Orchestrator(ScriptedLLM(script), tools=[look_up], limits=_LIMITS, journal=journal, observers=())


async def about(folder: str) -> child.Answer:
    """Name what is measured."""
    async with SqliteJournal(Path(folder) / _FILE) as journal:
        health = await journal.check()
    set_to = ", ".join(f"{name}={health.pragmas[name]}" for name in ("journal_mode", "synchronous"))
    return {
        "about": f"fsm-orchestrator {version('fsm-orchestrator')}, SQLite {apsw.sqlite_lib_version()} ({set_to})"
    }


async def journalled(folder: str, runs: int, turns: int) -> child.Answer:
    """Measure `runs` runs at once."""
    script = Script(turns)
    journal = TimedJournal(Path(folder) / _FILE)
    await journal.open()
    orchestrator = agent(script, journal)
    started = time.perf_counter()
    results = await asyncio.gather(*(orchestrator.run(PROMPT) for _ in range(runs)))
    seconds = time.perf_counter() - started
    await journal.close()
    script.proved(effects=runs * turns, asked=runs * (turns + 1))
    if bad := [result.reason for result in results if result.output != ANSWER]:
        raise RuntimeError(f"{len(bad)} runs ended as {bad[0]}")
    return child.journalled(seconds, runs * turns, journal.spans, folder)


async def prepare(folder: str, turns: int) -> child.Answer:
    """Leave a run of `turns` turns in the folder, stopped while the model was asked once more."""
    script = Script(turns, blocks=True)
    async with SqliteJournal(Path(folder) / _FILE) as journal:
        await script.stop(agent(script, journal).run(PROMPT, run_id=RUN_ID))
    script.proved(effects=turns, asked=turns + 1)
    return {"bytes_per_turn": child.size(folder) / turns}


async def resume(folder: str, turns: int) -> child.Answer:
    """Measure from the call of `resume` until the model is asked, then let the run end."""
    script = Script(turns)
    async with SqliteJournal(Path(folder) / _FILE) as journal:
        orchestrator = agent(script, journal)
        started = time.perf_counter()
        result = await orchestrator.resume(RUN_ID)
    script.proved(effects=0, asked=1)
    if result.output != ANSWER:
        raise RuntimeError(f"the resumed run ended as {result.reason}")
    return {"resume_ms": (script.asked_at[0] - started) * 1e3}


if __name__ == "__main__":
    child.serve({"about": about, "journalled": journalled, "prepare": prepare, "resume": resume})
