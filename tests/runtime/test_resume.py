"""A run goes on where its journal says it stands: in another agent, after a crash at any append, with nothing twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.errors import Held, OtherGraph, RunUnknown, StoreDown, Suspended
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import LLMCall, RunCompleted, RunStarted, ToolExecution, Transition
from orchestrator.kernel.graph import Edge
from orchestrator.kernel.journal import Lease
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Request, Response, ToolCall, Usage
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.service.recovery import MOST_CLAIMS, Migration
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import ToolContext, tool
from tests.runtime.stage import NO_WAIT, Facts, Notebook, faults
from tests.with_runtime import with_runtime

USAGE = Usage(10, 5)
THREE = (
    ToolCall("b", "look", '{"n": 2}'),
    ToolCall("b", "save", '{"n": 2}'),  # ids repeat in real data
    ToolCall("", "nobody", '{"n": 1}'),
)


class Report(BaseModel):
    total: int


class World:
    """What happens outside: each tool counts its effects, the model answers by how often it has answered."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.keys: dict[str, set[str]] = {}
        self.asked = 0

    def model(self, request: Request) -> Response:
        self.asked += 1
        turn = sum(message.role == "assistant" for message in request.messages)
        script = [
            Response(None, (ToolCall("a", "look", '{"n": 1}'),), usage=USAGE),
            Response("both", THREE, usage=USAGE),
            Response("the total is 7", usage=USAGE),  # no JSON: a completion retry
            Response('{"total": 7}', usage=USAGE),
        ]
        return script[min(turn, 3)]

    def tools(self) -> list[Any]:
        @tool(effect="pure")
        def look(n: int) -> str:
            self.effects["look"] += 1
            return f"seen {n}"

        @tool(effect="idempotent")
        def save(context: ToolContext, n: int) -> str:
            self.effects["save"] += 1
            self.keys.setdefault("save", set()).add(context.idempotency_key)
            return f"saved {n}"

        return [look, save]


def agent(world: World, journal: Any, **options: Any) -> Agent:
    options = {"observers": (), "retry": NO_WAIT, "output_type": Report, **options}
    return Agent(FunctionLLM(world.model), tools=world.tools(), **with_runtime(journal=journal, **options))


async def crashed_at(journal: CrashingJournal, **options: Any) -> tuple[World, Result | None]:
    world = World()
    try:
        result = await agent(world, journal, **options).run("go", run_id="r")
    except StoreDown:
        return world, None
    return world, result


async def whole_run() -> tuple[Result, int]:
    journal = CrashingJournal(MemoryJournal())
    _, result = await crashed_at(journal)
    assert result is not None
    return result, len(journal.writes)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_at_any_append_changes_nothing_of_what_is_said_and_done(when: Any) -> None:
    expected, appends = await whole_run()
    assert expected.outcome is Outcome.COMPLETED
    for at in range(1, appends + 1):
        inner = MemoryJournal()
        world, first = await crashed_at(CrashingJournal(inner, at=at, when=when))
        assert first is None or first.outcome is Outcome.FAILED
        head = await inner.head("r")
        if head.status == "ended":  # the crash came after the very last append
            assert at == appends
            assert when == "after"
        inner.bury(head.owner or "")

        result = await agent(world, inner).resume("r")

        assert (result.outcome, result.output) == (expected.outcome, expected.output), at
        assert result.messages == expected.messages, at
        assert [one.event for one in result.transitions] == [one.event for one in expected.transitions], at
        assert [one.seq for one in result.transitions] == list(range(1, len(result.transitions) + 1))
        assert not faults(result.messages)
        assert len(world.keys["save"]) == 1, "the same key for every try"
        spent = result.usage.input_tokens + result.usage.output_tokens
        assert spent >= 15 * world.asked, f"I9 at {at}: a lost answer is charged"


async def test_what_was_spent_counts_on_and_limits_can_be_raised() -> None:
    inner = MemoryJournal()
    world = World()
    first = await agent(world, inner, limits=Limits(max_iterations=2)).run("go", run_id="a")
    assert first.outcome is Outcome.BUDGET_EXCEEDED
    stopped = World()
    asked = asyncio.Event()

    async def model(request: Request) -> Response:
        if stopped.asked == 2 and not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return stopped.model(request)

    options: dict[str, Any] = {"observers": (), "journal": inner, "output_type": Report}
    one = Agent(
        FunctionLLM(model), tools=stopped.tools(), limits=Limits(max_iterations=3), **with_runtime(**options)
    )
    task = asyncio.create_task(one.run("go", run_id="b"))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await inner.head("b")).status == "parked"

    result = await agent(stopped, inner).resume("b", limits=Limits(max_iterations=4))

    assert result.outcome is Outcome.COMPLETED
    assert len([m for m in result.messages if m.role == "assistant"]) == 4
    assert result.usage.input_tokens > 40  # four answers, and what the one that was cut off may have cost


async def test_a_resumed_run_tells_only_that_it_is_resumed_and_what_is_new() -> None:
    inner = MemoryJournal()
    world, _ = await crashed_at(CrashingJournal(inner, at=3))
    inner.bury((await inner.head("r")).owner or "")
    stored = [record for record in await inner.load("r") if record.kind == "transition"]
    facts = Facts()

    await agent(world, inner, observers=[facts]).resume("r")

    assert [fact.origin for fact in facts.of(RunStarted)] == ["resumed"]
    told = [fact.seq for fact in facts.of(Transition)]
    assert told[0] == stored[-1].body["seq"] + 1
    assert told == list(range(told[0], told[0] + len(told)))
    assert len(facts.of(RunCompleted)) == 1
    done = {(fact.iteration, fact.position) for fact in facts.of(ToolExecution)}
    assert len(done) == len(facts.of(ToolExecution))
    assert len(facts.of(LLMCall)) < 4


async def test_memory_is_kept_exactly_when_the_journal_says_so() -> None:
    appends = 8
    for at in range(1, appends + 1):
        inner, memory = MemoryJournal(), Notebook(Message("system", "you know this"))
        world, _ = await crashed_at(CrashingJournal(inner, at=at), memory=memory)
        inner.bury((await inner.head("r")).owner or "")
        result = await agent(world, inner, memory=memory).resume("r")
        stored = [record.body for record in await inner.load("r") if record.kind == "memory"]
        assert stored == [{"stored": True}]
        assert memory.stored
        assert result.messages[0].role == "user"  # what memory knew is shown, not part of the conversation


async def test_an_unknown_run_is_one_sentence() -> None:
    with pytest.raises(RunUnknown, match="there is no run 'nope' in this process or in its journal"):
        await agent(World(), MemoryJournal()).resume("nope")


async def test_a_run_that_another_process_has_is_refused() -> None:
    inner = MemoryJournal()
    await crashed_at(CrashingJournal(inner, at=3))  # its owner still counts as alive
    with pytest.raises(Held, match="run 'r' is held by"):
        await agent(World(), inner).resume("r")
    assert (await inner.head("r")).epoch == 1


async def test_another_version_of_the_graph_is_refused_or_migrated() -> None:
    inner = MemoryJournal()
    world, _ = await crashed_at(CrashingJournal(inner, at=3))
    inner.bury((await inner.head("r")).owner or "")
    newer = LLM_LOOP.extend(edges=[Edge("budget_exceeded", ("handle_completion",), "terminate_error")])
    before = await inner.load("r")

    with pytest.raises(OtherGraph, match="register a migration"):
        await agent(world, inner, graph=newer).resume("r")
    assert [record.kind for record in await inner.load("r")] == [record.kind for record in before]

    ways = [Migration(LLM_LOOP.fingerprint, lambda stored: stored)]
    clock = FakeClock(86_400.0, auto=True)
    result = await agent(world, inner, graph=newer, migrations=ways, clock=clock).resume("r")
    assert result.outcome is Outcome.COMPLETED
    (migrated,) = [record for record in await inner.load("r") if record.kind == "migrated"]
    assert migrated.body["at"] == 86_400.0, "by the clock of the agent, not of the machine"


async def test_a_run_that_kills_whoever_takes_it_up_is_parked_as_poison() -> None:
    inner = MemoryJournal()
    world, _ = await crashed_at(CrashingJournal(inner, at=2))

    class Death(BaseException):
        pass

    def deadly(request: Request) -> Response:
        raise Death

    for _ in range(MOST_CLAIMS - 1):
        inner.bury((await inner.head("r")).owner or "")
        killed = CrashingJournal(inner)
        with pytest.raises(Death):
            await Agent(FunctionLLM(deadly), journal=killed, observers=(), version="2").resume("r")
    inner.bury((await inner.head("r")).owner or "")
    others = Agent(FunctionLLM(deadly), name="clerk", journal=inner, observers=())
    listed = [await one.hosting.open_runs() for one in (agent(world, inner), others)]
    assert [(plan.will, plan.unattended) for (plan,) in listed] == [
        (f"parked as poison: taken up {MOST_CLAIMS - 1} times without a step", False),
        ("nothing here: it belongs to an agent without a name", False),
    ]
    with pytest.raises(Suspended, match=r"poison: taken up \d+ times without a step"):
        await agent(world, inner).resume("r")
    head = await inner.head("r")
    assert (head.status, head.reason, head.owner) == ("parked", "poison", None)
    plans = await agent(world, inner).hosting.open_runs()
    assert [(plan.run_id, plan.reason) for plan in plans] == [("r", "poison")]

    assert (await agent(world, inner).resume("r")).outcome is Outcome.COMPLETED  # a person has looked at it


async def test_what_is_wrong_with_a_run_is_said_though_it_cannot_be_given_back_either() -> None:
    class Full(MemoryJournal):
        async def release(self, lease: Lease) -> None:
            await super().release(lease)
            raise StoreDown("the disk is full")

    journal = Full()
    await agent(World(), journal).deposit("go", run_id="r")
    for _ in range(MOST_CLAIMS):
        journal.bury((await journal.claim("r", "somebody")).owner)
    with pytest.raises(Suspended, match="poison"):
        await agent(World(), journal).resume("r")
