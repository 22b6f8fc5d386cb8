"""Calls of Python functions that one further turn of `Agent.run` takes, by file: an exact figure, without a time.

A turn is one model request with one tool call. Calls in the package and in code that was generated for it (constructors
of dataclasses and named tuples) count, and so does each resumption of a coroutine. The standard library and the model
of the test do not. `python -m tests.benchmarks.turn_calls` prints the figures, and those of the approval of a call and
of the resumption of a run after ten turns, with the number of times that the next call is in another file (switches).
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from prometheus_client import CollectorRegistry

from orchestrator.errors import RunUnknown
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing import FunctionLLM
from orchestrator.tools.spec import tool
from tests.benchmarks.measure import DIFFERENT
from tests.benchmarks.workload import look_up

ROOT = Path(__file__).parents[2]
GENERATED = "generated code"

LIMITS = {"bare": (171, 34), "full": (300, 42)}
"""The most calls of a turn, and the most files that they are in, by contestant. Lower them with each improvement.

With a journal on disk some calls depend on which thread is first: 292 to 300 are counted."""

SHORT, LONG = 20, 40
"""Turns of the two runs whose difference is counted."""

_APART = (sysconfig.get_path("stdlib"), str(ROOT / "tests"), "<frozen")
_PACKAGES = sysconfig.get_path("purelib")


@dataclass(slots=True)
class ReadyLLM:
    """A scripted model whose answers exist before the run, so that making them is no part of a turn."""

    answers: list[Response]
    model: str = "ready"
    asked: int = 0

    async def complete(self, request: Request) -> Response:
        """Return the next answer."""
        del request
        self.asked += 1
        return self.answers[self.asked - 1]


def script(turns: int) -> ReadyLLM:
    """Return a model that calls one tool in each of `turns` turns and then answers."""
    usage = Usage(900, 60)
    calls = [
        ToolCall(f"call_{turn}", "look_up", f'{{"key": "{turn}", "depth": {turn}}}') for turn in range(turns)
    ]
    answers = [Response(None, (call,), "tool_calls", usage) for call in calls]
    return ReadyLLM([*answers, Response("done", usage=usage)])


@dataclass(slots=True)
class Count:
    """The calls by file, relative to the repository."""

    files: Counter[str] = field(default_factory=Counter)
    switches: int = 0
    """Calls that are in another file than the call before."""
    _last: str = ""

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call: a function for `sys.setprofile`."""
        if event != "call":
            return
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGES):
            name = name[len(_PACKAGES) + 1 :]
        elif name.startswith(_APART):
            return
        file = GENERATED if name[0] == "<" else name.removeprefix(f"{ROOT}/")
        self.files[file] += 1
        self.switches += file != self._last
        self._last = file

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls of the body, in this thread."""
        note: Callable[[FrameType, str, object], None] = self.note
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)


@asynccontextmanager
async def bare(llm: ReadyLLM) -> AsyncIterator[Agent]:
    """An agent with its journal in memory and without observers."""
    yield Agent(llm, tools=[look_up], limits=DIFFERENT, observers=())


@asynccontextmanager
async def full(llm: ReadyLLM) -> AsyncIterator[Agent]:
    """An agent with a SQLite journal, the log in JSON lines and every metric."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile(buffering=0) as log:
        observers = TransitionLog(log), Metrics(CollectorRegistry())
        async with SqliteJournal(Path(folder) / "journal.db") as journal:
            yield Agent(llm, tools=[look_up], limits=DIFFERENT, observers=observers, journal=journal)


CONTESTANTS = {"bare": bare, "full": full}


async def _counted(contestant: str, turns: int) -> Count:
    count, llm = Count(), script(turns)
    async with CONTESTANTS[contestant](llm) as agent:
        with count.counting():
            result = await agent.run("go")
    result.raise_for_outcome()
    return count


def turn_calls(contestant: str) -> dict[str, int]:
    """Return the calls of one further turn by file, the file with the most calls first.

    What happens once in many turns, as the pause in which other tasks run, does not count.
    """
    asyncio.run(_counted(contestant, 2))  # fills the caches of the package
    short, long = (asyncio.run(_counted(contestant, turns)) for turns in (SHORT, LONG))
    counted = {name: int((calls - short.files[name]) / (LONG - SHORT)) for name, calls in long.files.items()}
    return dict(sorted(((name, n) for name, n in counted.items() if n), key=lambda pair: -pair[1]))


def table(calls: dict[str, int]) -> str:
    """Return the figures as lines of text."""
    lines = [f"{n:5}  {name}" for name, n in calls.items()]
    return "\n".join([*lines, f"{sum(calls.values()):5}  calls in {len(calls)} files"])


@tool(effect="irreversible", approval=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


async def approval() -> Count:
    """Count from the approval of a call by a person, in another process as it were, to the end of its run."""
    pays = ToolCall("call_1", "pay", '{"amount": 1}')
    usage = Usage(900, 60)
    script = [Response(None, (pays,), "tool_calls", usage), Response("Paid.", usage=usage)]
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteJournal(Path(folder) / "journal.db") as journal:
            agent = Agent(ReadyLLM(script), tools=[pay], journal=journal, observers=())
            run = asyncio.create_task(agent.run("go", run_id="r"))
            await _waits(journal)
            await _interrupted(run)
            count = Count()
            with count.counting():
                await agent.approve("r")
                result = await agent.resume("r")
    result.raise_for_outcome()
    return count


async def resumption(turns: int = 10) -> Count:
    """Count the resumption of a run that was interrupted after some turns, and its last answer."""
    reached = asyncio.Event()

    async def hang(_: Request) -> Response:
        reached.set()
        await asyncio.sleep(3600)
        raise AssertionError

    with tempfile.TemporaryDirectory() as folder:
        async with SqliteJournal(Path(folder) / "journal.db") as journal:
            answers = script(turns).answers[:-1]
            llm = FunctionLLM(lambda request: answers.pop(0) if answers else hang(request))
            agent = Agent(llm, tools=[look_up], limits=DIFFERENT, journal=journal, observers=())
            run = asyncio.create_task(agent.run("go", run_id="r"))
            await reached.wait()
            await _interrupted(run)
            count, last = Count(), ReadyLLM([Response("done", usage=Usage(900, 60))])
            agent = Agent(last, tools=[look_up], limits=DIFFERENT, journal=journal, observers=())
            with count.counting():
                result = await agent.resume("r")
    result.raise_for_outcome()
    return count


async def _waits(journal: SqliteJournal) -> None:
    while True:
        with suppress(RunUnknown):
            if (await journal.head("r")).status == "parked":
                return
        await asyncio.sleep(0.01)


async def _interrupted(run: asyncio.Task[Any]) -> None:
    run.cancel()
    await asyncio.wait([run])


if __name__ == "__main__":
    for one in CONTESTANTS:
        print(one, table(turn_calls(one)), sep="\n")
    for story in (approval, resumption):
        asyncio.run(story())  # fills the caches
        found = asyncio.run(story())
        print(
            f"{story.__name__}: {found.files.total()} calls, {len(found.files)} files, {found.switches} switches"
        )
