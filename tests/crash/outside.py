"""What is outside of a run: a model, tools of all four effects, a memory. Each says what happened when it happens.

What they say is the truth that no crash of a run can reach: lines of JSON, appended and synced one by one. The script
is the same in every run, so the messages of a run that was interrupted must be those of one that was not.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import orjson
from pydantic import BaseModel

from orchestrator.journal.codec import encoded
from orchestrator.kernel.fact import Fact, RunCompleted, RunParked, Transition
from orchestrator.kernel.journal import Draft, Lease
from orchestrator.llm.message import Message, Request, Response, ToolCall, Usage
from orchestrator.llm.port import FailureEpisode
from orchestrator.llm.retry import RetryPolicy
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.tools.spec import ToolContext, ToolSpec, tool
from tests.with_runtime import with_runtime

Line: TypeAlias = Mapping[str, Any]
Point: TypeAlias = Callable[[str], Awaitable[None]]
"""Called at each boundary of an effect, with its name: where a fault may strike."""

USAGE = Usage(10, 5)
KNOWN = Message("system", "you have met before")
CALLS = {
    1: ("look",),
    2: ("save", "book", "look"),
    3: ("send",),
    4: ("pay", "save"),
}
"""Turn -> the tools it calls, by position."""
EFFECTS = {
    "look": "pure",
    "save": "idempotent",
    "book": "compensable",
    "send": "irreversible",
    "pay": "irreversible",
}
SCRIPT = (
    *(
        Response(None, tuple(ToolCall("x", name, f'{{"n": {turn}}}') for name in names), usage=USAGE)
        for turn, names in CALLS.items()
    ),
    Response("the total is 7", usage=USAGE),  # no JSON: a completion retry
    Response('{"total": 7}', usage=USAGE),
)


class Report(BaseModel):
    """What the agent is to answer."""

    total: int


async def passing(_: str) -> None:
    """Let everything happen."""


@dataclass(frozen=True, slots=True)
class History:
    """What happened outside, in order."""

    lines: Sequence[Line]

    def of(self, what: str, run: str) -> list[Line]:
        return [line for line in self.lines if (line["what"], line["run"]) == (what, run)]

    def effects(self, tool: str, run: str) -> Counter[str]:
        """How often each call of a tool had its effect, by key."""
        return Counter(line["key"] for line in self.of("effect", run) if line["tool"] == tool)

    def outstanding(self, tool: str, run: str) -> Counter[str]:
        """Effects that were not taken back."""
        undone = (line for line in self.of("undone", run) if line["tool"] == tool and line["found"])
        return self.effects(tool, run) - Counter(line["key"] for line in undone)


def happened(lines: Sequence[Line], tool: str, key: str) -> int:
    """How often an effect is there now."""
    run = key.partition(":")[0]
    return History(lines).outstanding(tool, run)[key]


def said_by(tool: str, turn: int) -> str:
    """Return what a tool answers: the same whenever it is asked."""
    return f"{tool} {turn}"


class Outside:
    """The world of any number of runs and agents; `path` keeps it in a file, which several processes may share."""

    def __init__(
        self, path: Path | None = None, *, lines: list[Line] | None = None, point: Point = passing
    ) -> None:
        self._lines: list[Line] = [] if lines is None else lines
        self._path = path
        self.point = point
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        self._file = None if path is None else os.open(path, flags, 0o600)

    @property
    def lines(self) -> list[Line]:
        if self._path is None:
            return self._lines
        return [orjson.loads(line) for line in self._path.read_bytes().splitlines()]

    @property
    def history(self) -> History:
        return History(self.lines)

    def say(self, what: str, run: str, **more: Any) -> None:
        """Write a line; it is on disk when this returns."""
        line = {"what": what, "run": run, **more}
        if self._file is None:
            self._lines.append(line)
            return
        os.write(self._file, orjson.dumps(line) + b"\n")
        os.fsync(self._file)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)

    # ---- the model ----

    async def model(self, request: Request) -> Response:
        await self.point("before model")
        turn = sum(message.role == "assistant" for message in request.messages)
        known, asked = request.messages[:2]
        assert (known, asked.role) == (KNOWN, "user"), f"the model is shown {request.messages}"
        prompt = asked.text
        response = SCRIPT[min(turn, len(SCRIPT) - 1)]
        usage = response.usage or Usage()
        self.say("served", prompt.split()[-1], tokens=usage.input_tokens + usage.output_tokens)
        await self.point("after model")
        return response

    # ---- tools ----

    async def effect(self, tool: str, context: ToolContext, turn: int) -> str:
        """Do it once for each call of it; a service that knows the key does not do it twice."""
        key = context.idempotency_key
        await self.point(f"before {tool}")
        again = EFFECTS[tool] == "idempotent" and happened(self.lines, tool, key)
        self.say("repeat" if again else "effect", context.run_id, tool=tool, key=key)
        await self.point(f"after {tool}")
        return said_by(tool, turn)

    async def undo(self, tool: str, context: ToolContext) -> str:
        """Take back what a call did, if it did anything."""
        key = context.idempotency_key
        await self.point(f"before undo {tool}")
        found = bool(happened(self.lines, tool, key))
        self.say("undone", context.run_id, tool=tool, key=key, found=found)
        await self.point(f"after undo {tool}")
        return "taken back"

    # ---- memory ----

    async def prepare(self, key: str, messages: Sequence[Message]) -> Sequence[Message]:
        await self.point("before prepare")
        return (KNOWN,)

    async def store(self, key: str, messages: Sequence[Message]) -> None:
        await self.point("before store")
        self.say("stored", key, messages=len(messages))
        await self.point("after store")

    async def store_failure(self, key: str, episode: FailureEpisode) -> None:
        self.say("episode", key, reason=episode.reason)

    async def compact(self, key: str, summary: Message) -> None:
        raise AssertionError("these runs are short")

    # ---- observers ----

    def observe(self, fact: Fact) -> None:
        """Keep what the host was told: it must be durable."""
        if isinstance(fact, Transition):
            edge = [fact.source, fact.event, fact.dest]
            self.say("told", fact.run_id, seq=fact.seq, edge=edge)
        elif isinstance(fact, RunParked):
            self.say("parked", fact.run_id, reason=fact.reason)
        elif isinstance(fact, RunCompleted):
            self.say("completed", fact.run_id, outcome=str(fact.outcome), reason=fact.reason)


class Tap:
    """A journal whose appends are logged outside: when they are tried, and when they are acknowledged."""

    def __init__(self, inner: Any, outside: Outside) -> None:
        self.inner = inner
        self._outside = outside

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def append(self, lease: Lease, drafts: Sequence[Draft], blobs: Any = None) -> Awaitable[None] | None:
        first, run, epoch = lease.seq + 1, lease.run_id, lease.epoch
        bodies = [[kind, encoded(kind, body).decode()] for kind, body in drafts]
        self._outside.say("try", run, first=first, epoch=epoch, bodies=bodies)
        waiting = self.inner.append(lease, drafts, blobs)
        if waiting is None:
            self._outside.say("ack", run, first=first, epoch=epoch)
            return None
        return self._told(waiting, run, first, epoch)

    async def _told(self, waiting: Awaitable[None], run: str, first: int, epoch: int) -> None:
        await waiting
        self._outside.say("ack", run, first=first, epoch=epoch)


def _world(context: ToolContext) -> Outside:
    outside: Outside = context.deps
    return outside


@tool(effect="pure")
async def look(context: ToolContext, n: int) -> str:
    return await _world(context).effect("look", context, n)


@tool(effect="idempotent")
async def save(context: ToolContext, n: int) -> str:
    return await _world(context).effect("save", context, n)


async def _unbook(context: ToolContext, n: int) -> str:
    return await _world(context).undo("book", context)


@tool(effect="compensable", undo=_unbook)
async def book(context: ToolContext, n: int) -> str:
    return await _world(context).effect("book", context, n)


@tool
async def send(context: ToolContext, n: int) -> str:
    return await _world(context).effect("send", context, n)


@tool(approval=True)
async def pay(context: ToolContext, n: int) -> str:
    return await _world(context).effect("pay", context, n)


TOOLS: tuple[ToolSpec, ...] = (look, save, book, send, pay)
"""Made once: that is dear, and agents are made again and again. Their world comes with the call."""
NO_WAIT = RetryPolicy(base=0.0, jitter=0.0)


def agent(outside: Outside, journal: Any, **options: Any) -> Agent:
    """Return an agent of this world. Its runs are prompted with `go RUN_ID`."""
    options = {"observers": (outside,), "memory": outside, "retry": NO_WAIT, "output_type": Report, **options}
    return Agent(
        FunctionLLM(outside.model), tools=TOOLS, deps=outside, **with_runtime(journal=journal, **options)
    )
