"""An agent as a tool of another: one run below another, in one journal, begun once, stopped and resumed together."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.errors import ConfigError, StoreDown
from orchestrator.journal.crashing import CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.fact import RunStarted
from orchestrator.kernel.journal import Lease, Posted
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, Response, Usage
from orchestrator.llm.message import ToolCall as Call
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, ScriptedLLM, call
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.agent_tool import agent_tool
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.telemetry.log import TransitionLog
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import ToolContext, tool
from tests.runtime.stage import NO_WAIT, Facts, faults
from tests.tiers import SOAK
from tests.with_runtime import with_runtime

USAGE = Usage(10, 5)
SILENT: dict[str, Any] = {"observers": (), "retry": NO_WAIT}


class Report(BaseModel):
    total: int


@tool(effect="pure", name="look")
def look_around() -> str:
    """Look."""
    return "nothing"


def told(result: Result) -> str:
    """The result of the only call, as the parent's model read it."""
    return next(message.text for message in result.messages if message.role == "tool")


def parent_of(child: Agent, *, calls: int = 1, **options: Any) -> Agent:
    """An agent that calls `child` (as `dig`), then answers."""
    script: list[Any] = [[call("dig", task=f"dig {number}") for number in range(calls)], "done"]
    return Agent(
        ScriptedLLM(script), tools=[child.as_tool("dig", "Dig.")], **with_runtime(**{**SILENT, **options})
    )


async def asked_about(agent: Agent, *run_ids: str) -> None:
    """Return once people are asked something about each of these runs, which live here."""
    async with asyncio.timeout(20):
        for run_id in run_ids:
            while agent.hosting.live(run_id) is None or not await agent.pending(run_id):  # noqa: ASYNC110
                await asyncio.sleep(0)


# ---- what the parent's model reads ----


async def test_the_parent_reads_the_output_of_a_run_of_its_own() -> None:
    journal = MemoryJournal()
    llm = ScriptedLLM(["gold"], usage=USAGE)
    result = await parent_of(Agent(llm, **SILENT), journal=journal).run("go", run_id="p")

    assert (result.outcome, told(result)) == (Outcome.COMPLETED, "gold")
    assert [message.text for message in llm.requests[0].messages] == ["dig 0"], "nothing else of the talk"
    head = await journal.head("p:1:0")
    assert (head.parent_run_id, head.conversation_id, head.status) == ("p", None, "ended")


async def test_structured_output_is_read_as_json() -> None:
    child = Agent(ScriptedLLM(['{"total": 7}']), output_type=Report, **SILENT)
    assert json.loads(told(await parent_of(child).run("go"))) == {"total": 7}


@pytest.mark.parametrize("at", range(1, 12))
async def test_a_function_maps_the_typed_output_to_what_the_model_reads_also_after_a_crash(at: int) -> None:
    mapped: list[Report] = []

    def total_of(report: Report) -> dict[str, int]:
        mapped.append(report)
        return {"doubled": 2 * report.total}

    def parent(on: Any) -> Agent:
        child = Agent(FunctionLLM(lambda _: '{"total": 7}'), output_type=Report, **SILENT)
        model = FunctionLLM(
            lambda request: "done" if request.messages[-1].role == "tool" else call("dig", task="x")
        )
        return Agent(model, tools=[child.as_tool("dig", "Dig.", output=total_of)], journal=on, **SILENT)

    journal = MemoryJournal()
    with contextlib.suppress(StoreDown):
        await parent(CrashingJournal(journal, at=at, on=("create", "append"))).run("go", run_id="p")
    mapped.clear()
    heads = [head async for head in journal.runs()]
    if not heads:
        return  # the first write was lost: there is no run
    for owner in {head.owner for head in heads if head.owner}:
        journal.bury(owner)
    result = await parent(journal).resume("p")
    assert result.outcome is Outcome.COMPLETED
    assert told(result) == '{"doubled":14}'
    assert {type(one) for one in mapped} <= {Report}


async def test_a_function_of_the_output_maps_only_completed_runs() -> None:
    child = Agent(
        ScriptedLLM([call("look"), "late"]), tools=[look_around], limits=Limits(max_iterations=1), **SILENT
    )
    spec = child.as_tool("dig", "Dig.", output=lambda _: "never")
    parent = Agent(ScriptedLLM([call("dig", task="x"), "done"]), tools=[spec], **SILENT)
    read = json.loads(told(await parent.run("go", run_id="p")))
    assert read["type"] == "BudgetExceeded"
    assert "run p:1:0 ended as budget_exceeded (max_iterations)" in read["error"]


@pytest.mark.parametrize(
    ("options", "script", "kind", "says"),
    [
        ({"limits": Limits(max_iterations=1)}, [call("look"), "late"], "BudgetExceeded", "max_iterations"),
        ({"limits": Limits(max_iterations=2, wrap_up_turns=1)}, [call("look"), "half"], "RunPartial", "half"),
        ({}, [RuntimeError("broken")], "RunFailed", "broken"),
    ],
    ids=["budget", "partial", "failed"],
)
async def test_a_child_that_did_not_complete_is_an_error_that_names_outcome_and_reason(
    options: dict[str, Any], script: list[Any], kind: str, says: str
) -> None:
    @tool(effect="pure")
    def look() -> str:
        return "nothing"

    child = Agent(ScriptedLLM(script), tools=[look], **{**SILENT, **options})
    result = await parent_of(child).run("go", run_id="p")
    assert result.outcome is Outcome.COMPLETED
    read = json.loads(told(result))
    assert read["type"] == kind
    assert says in read["error"]
    assert "run p:1:0 ended as" in read["error"]


async def test_children_of_one_turn_run_at_once_and_answer_in_the_order_of_the_calls() -> None:
    together = asyncio.Barrier(3)

    async def model(request: Request) -> str:
        await together.wait()
        return request.messages[-1].text.upper()

    result = await parent_of(Agent(FunctionLLM(model), **SILENT), calls=3).run("go")
    read = [message.text for message in result.messages if message.role == "tool"]
    assert read == ["DIG 0", "DIG 1", "DIG 2"]


# ---- who is whose ----


async def test_journal_facts_and_log_name_the_parent() -> None:
    facts, stream = Facts(), io.StringIO()
    child = Agent(ScriptedLLM(["gold"]), observers=[facts, TransitionLog(stream)], retry=NO_WAIT)
    journal = MemoryJournal()
    await parent_of(child, journal=journal).run("go", run_id="p")

    (started,) = facts.of(RunStarted)
    assert (started.run_id, started.parent_run_id) == ("p:1:0", "p")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("parent_run_id") for line in lines if line["msg"] == "run.started"] == ["p"]
    assert {line["run_id"] for line in lines} == {"p:1:0"}
    assert [head.run_id async for head in journal.runs(parent_run_id="p")] == ["p:1:0"]


async def test_a_child_keeps_its_own_journal_for_runs_of_its_own() -> None:
    own, above = MemoryJournal(), MemoryJournal()
    child = Agent(ScriptedLLM(["one", "two"]), journal=own, **SILENT)
    await parent_of(child, journal=above).run("go", run_id="p")
    await child.run("go", run_id="alone")
    assert [head.run_id async for head in own.runs()] == ["alone"]
    assert [head.run_id async for head in above.runs()] == ["p", "p:1:0"]


async def test_agents_that_call_each_other_stop_at_the_depth_limit() -> None:
    agents: list[Agent] = []
    journal = MemoryJournal()

    def model(request: Request) -> Any:
        last = request.messages[-1]
        return f"I read: {last.text}" if last.role == "tool" else call("deeper", task="again")

    deeper = agent_tool(lambda: agents[0], "deeper", "Ask yourself.", max_depth=3)
    agents.append(Agent(FunctionLLM(model), tools=[deeper], journal=journal, **SILENT))
    result = await agents[0].run("go", run_id="p")
    assert "agents already call each other to the maximum depth of 3" in result.output
    assert [head.run_id async for head in journal.runs()] == ["p", "p:1:0", "p:1:0:1:0", "p:1:0:1:0:1:0"]


async def test_an_agent_that_has_taken_over_is_as_deep_as_the_one_before() -> None:
    teams: list[Agent] = []
    journal = MemoryJournal()

    def model(request: Request) -> Any:
        last = request.messages[-1]
        read = last.role == "tool" and last.name == "deeper"
        return f"I read: {last.text}" if read else call("deeper", task="again")

    deeper = agent_tool(lambda: teams[0], "deeper", "Ask the team.", max_depth=2)
    deepest = Agent(ScriptedLLM([], model="deepest"), **SILENT).as_tool("deepest", "Ask.", max_depth=1)
    billing = Agent(FunctionLLM(model), name="billing", tools=[deeper, deepest], **SILENT)
    handing = FunctionLLM(lambda _: call("transfer_to_billing"))
    teams.append(Agent(handing, name="triage", handoffs=[billing], journal=journal, **SILENT))
    result = await teams[0].run("go", run_id="p")
    assert "agents already call each other to the maximum depth of 2" in result.output
    heads = [head async for head in journal.runs()]
    assert [head.run_id for head in heads if head.graph == "team"] == ["p", "p:s2:1:0", "p:s2:1:0:s2:1:0"]
    models = [one.model for one in teams[0].hosting.tree()]
    assert "deepest" in models, "operator commands reach what a member may call"


@pytest.mark.parametrize(
    ("options", "says"),
    [({"share": 1.5}, "share is 1.5; it must be 0"), ({"max_depth": 0}, "max_depth is 0; it must be 1")],
)
def test_options_that_cannot_work_are_one_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Agent(ScriptedLLM([]), **SILENT).as_tool("dig", "Dig.", **options)


async def test_outside_a_run_an_agents_tool_says_what_is_missing() -> None:
    dig = Agent(ScriptedLLM([]), **SILENT).as_tool("dig", "Dig.")
    assert (dig.effect, list(dig.parameters["properties"])) == ("idempotent", ["task"])
    with pytest.raises(ConfigError, match="works only inside a run of another agent"):
        await dig(ToolContext("nobody", "nobody:1:0"), "dig")


# ---- stopping ----


class Slow:
    """A child whose model never answers; tells when it is asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.times = 0
        self.agent = Agent(FunctionLLM(self.model), **SILENT)

    async def model(self, _: Request) -> str:
        self.times += 1
        self.asked.set()
        await asyncio.Event().wait()
        return "never"


@pytest.mark.parametrize("reason", ["caller", "shutdown"])
async def test_cancelling_the_parent_cancels_the_child_and_waits_for_its_end(reason: str) -> None:
    slow, journal = Slow(), MemoryJournal()
    parent = parent_of(slow.agent, journal=journal)
    running = asyncio.create_task(parent.run("go", run_id="p"))
    await slow.asked.wait()
    parent.cancel("p", reason=reason, why="enough")
    result = await running

    assert (result.outcome, result.reason) == (Outcome.CANCELLED, reason)
    assert not faults(result.messages)
    (ended,) = [one.body for one in await journal.load("p:1:0") if one.kind == "ended"]
    assert (ended["outcome"], ended["reason"]) == ("cancelled", reason)
    (asked,) = [one.body for one in await journal.load("p:1:0") if one.kind == "control"]
    assert asked["by"] == ("shutdown" if reason == "shutdown" else "run p")
    assert "enough" in asked["why"]


async def test_a_child_that_cannot_be_created_while_its_parent_is_cancelled_leaves_no_error_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class ChildDown(MemoryJournal):
        def __init__(self) -> None:
            super().__init__()
            self.creating, self.answers = asyncio.Event(), asyncio.Event()

        async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
            if run_id == "p:1:0":
                self.creating.set()
                await self.answers.wait()
                raise StoreDown("the disk is full")
            return await super().create(run_id, owner, body)

    journal = ChildDown()
    parent = parent_of(Slow().agent, journal=journal)
    running = asyncio.create_task(parent.run("go", run_id="p"))
    await journal.creating.wait()
    parent.cancel("p")
    for _ in range(20):  # nothing shows when the call of the child is cancelled
        await asyncio.sleep(0)
    journal.answers.set()
    assert (await running).outcome is Outcome.CANCELLED
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_the_end_of_the_parents_time_ends_the_child() -> None:
    slow, clock, journal = Slow(), FakeClock(), MemoryJournal()
    parent = parent_of(slow.agent, journal=journal, clock=clock, limits=Limits(max_seconds=10))
    running = asyncio.create_task(parent.run("go", run_id="p"))
    await slow.asked.wait()
    await clock.advance(11)
    result = await running
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "time")
    child = await journal.head("p:1:0")
    assert (child.outcome, child.reason) == ("budget_exceeded", "time")


async def test_the_end_of_the_parents_time_ends_a_child_that_waits_for_a_person_beside_a_working_one() -> (
    None
):
    slow, clock, journal = Slow(), FakeClock(), MemoryJournal()
    tools = [slow.agent.as_tool("work", "Work."), careful(call("blow")).as_tool("dig", "Dig.")]
    calls = [call("work", task="a"), call("dig", task="b")]
    model = FunctionLLM(lambda request: calls)
    options = with_runtime(journal=journal, clock=clock, limits=Limits(max_seconds=10), **SILENT)
    parent = Agent(model, tools=tools, **options)
    running = asyncio.create_task(parent.run("go", run_id="p"))
    await slow.asked.wait()
    await asked_about(parent, "p:1:1")
    await clock.advance(11)
    result = await running
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "time")
    ended = [(head.outcome, head.reason) async for head in journal.runs(parent_run_id="p")]
    assert ended == [("budget_exceeded", "time")] * 2
    assert await parent.runs.pending("p:1:1") == []


async def test_a_child_that_somebody_cancels_is_an_error_and_the_parent_goes_on() -> None:
    slow = Slow()
    parent = parent_of(slow.agent)
    running = asyncio.create_task(parent.run("go", run_id="p"))
    await slow.asked.wait()
    parent.cancel("p:1:0", by="ann")
    result = await running
    assert result.outcome is Outcome.COMPLETED
    assert json.loads(told(result))["type"] == "RunCancelled"


async def test_a_cancelled_caller_leaves_the_whole_tree_for_resume() -> None:
    slow, journal = Slow(), MemoryJournal()
    running = asyncio.create_task(parent_of(slow.agent, journal=journal).run("go", run_id="p"))
    await slow.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    heads = {head.run_id: (head.status, head.owner) async for head in journal.runs()}
    assert heads == {"p": ("parked", None), "p:1:0": ("parked", None)}

    fast = Agent(ScriptedLLM(["gold"]), **SILENT)
    later = Agent(ScriptedLLM(["done"]), tools=[fast.as_tool("dig", "")], journal=journal, **SILENT)
    result = await later.resume("p")
    assert (result.outcome, told(result)) == (Outcome.COMPLETED, "gold")
    assert [head.run_id async for head in journal.runs()] == ["p", "p:1:0"]


async def test_a_tree_is_resumed_at_its_root() -> None:
    slow, journal = Slow(), MemoryJournal()
    running = asyncio.create_task(parent_of(slow.agent, journal=journal).run("go", run_id="p"))
    await slow.asked.wait()
    running.cancel()
    await asyncio.wait((running,))
    child = Agent(ScriptedLLM(["gold"]), journal=journal, name="child", **SILENT)
    before = await journal.load("p:1:0")
    with pytest.raises(ConfigError, match="run 'p:1:0' is part of run 'p', which resumes it"):
        await child.resume("p:1:0")
    assert await journal.load("p:1:0") == before


async def test_what_is_open_below_a_tree_that_has_ended_ends_as_cancelled() -> None:
    slow, journal = Slow(), MemoryJournal()
    running = asyncio.create_task(parent_of(slow.agent, journal=journal).run("go", run_id="p"))
    await slow.asked.wait()
    running.cancel()
    await asyncio.wait((running,))
    toolless = Agent(
        ScriptedLLM(["done"]), journal=journal, version="2", **SILENT
    )  # so it cannot go on with its child
    assert (await toolless.resume("p")).outcome is Outcome.COMPLETED
    head = await journal.head("p:1:0")
    assert (head.status, head.outcome, head.reason) == ("ended", "cancelled", "caller")
    child = Agent(ScriptedLLM([]), journal=journal, version="3", **SILENT)
    result = await child.resume("p:1:0")
    assert (result.outcome, result.reason) == (Outcome.CANCELLED, "caller")


class Full(MemoryJournal):
    """A journal that stores no request when it is full."""

    is_full = False

    async def post(self, run_id: str, request: Posted) -> bool:
        if self.is_full:
            raise StoreDown("the disk is full")
        return await super().post(run_id, request)


async def test_a_child_run_that_could_not_be_ended_with_its_tree_is_ended_when_it_is_resumed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow, journal = Slow(), Full()
    running = asyncio.create_task(parent_of(slow.agent, journal=journal).run("go", run_id="p"))
    await slow.asked.wait()
    running.cancel()
    await asyncio.wait((running,))
    toolless = Agent(ScriptedLLM(["done"]), journal=journal, version="2", **SILENT)
    journal.is_full = True
    assert (await toolless.resume("p")).outcome is Outcome.COMPLETED
    assert "run 'p': its open child runs could not be ended: the disk is full" in caplog.text
    assert (await journal.head("p:1:0")).status == "parked"
    journal.is_full = False
    child = Agent(ScriptedLLM([]), journal=journal, version="3", **SILENT)
    result = await child.resume("p:1:0")
    assert (result.outcome, result.reason) == (Outcome.CANCELLED, "caller")
    assert (await journal.head("p:1:0")).status == "ended"


# ---- crashes ----


class World:
    """Two levels of agents, with a tool at the bottom that counts its effects; what each model answers is fixed."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.asked = 0

    def agent(self, journal: Any) -> Agent:
        @tool(effect="idempotent")
        def save(context: ToolContext) -> str:
            self.effects[context.idempotency_key] += 1
            return "saved"

        bottom = self.llm([Call("a", "save", "{}")], "leaf")
        leaf = Agent(bottom, tools=[save], **SILENT)
        middle = self.llm([Call("a", "leaf", '{"task": "t"}')], "branch")
        branch = Agent(middle, tools=[leaf.as_tool("leaf", "")], **SILENT)
        two = [Call("a", "branch", '{"task": "t"}'), Call("b", "leaf", '{"task": "u"}')]
        tools = [branch.as_tool("branch", ""), leaf.as_tool("leaf", "")]
        return Agent(self.llm(two, "root"), tools=tools, journal=journal, **SILENT)

    def llm(self, calls: list[Call], answer: str) -> FunctionLLM:
        def model(request: Request) -> Response:
            self.asked += 1
            if request.messages[-1].role == "tool":
                return Response(answer, usage=USAGE)
            return Response(None, tuple(calls), usage=USAGE)

        return FunctionLLM(model, model="m")


TREE = ["p", "p:1:0", "p:1:0:1:0", "p:1:1"]


async def test_what_a_tree_used_is_the_usage_of_its_root() -> None:
    world, journal = World(), MemoryJournal()
    result = await world.agent(journal).run("go", run_id="p")
    assert world.asked == 8
    assert (result.usage.input_tokens, result.usage.output_tokens) == (80, 40)
    assert (await world.agent(journal).resume("p")).usage == result.usage, "also where it is only told"


async def crashed(at: int, when: Any) -> tuple[World, MemoryJournal, bool]:
    world, inner = World(), MemoryJournal()
    broken = CrashingJournal(inner, at=at, when=when, on=("create", "append"))
    with contextlib.suppress(StoreDown):
        await world.agent(broken).run("go", run_id="p")
    return world, inner, broken.crashed


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_at_any_write_of_the_tree_begins_no_second_child(
    when: Any, campaign: Callable[[int, int], int]
) -> None:
    for at in itertools.count(1, campaign(3, 1)):
        world, inner, died = await crashed(at, when)
        if not died:
            break
        heads = [head async for head in inner.runs()]
        if not heads:
            continue  # nothing was begun
        for owner in {head.owner for head in heads if head.owner}:
            inner.bury(owner)

        result = await world.agent(inner).resume("p")

        assert (result.outcome, result.output) == (Outcome.COMPLETED, "root"), at
        assert [message.text for message in result.messages if message.role == "tool"] == ["branch", "leaf"]
        assert sorted([head.run_id async for head in inner.runs(status="ended")]) == TREE, at
        assert set(world.effects) == {"p:1:0:1:0:1:0", "p:1:1:1:0"}
        assert result.usage.input_tokens >= 10 * world.asked, f"a lost answer is charged, at {at}"
        own = 0
        for run_id in TREE:
            answers = [one.body["usage"] for one in await inner.load(run_id) if one.kind == "answer"]
            charged = [one.body["context"] for one in await inner.load(run_id) if one.kind == "resumed"]
            own += sum(usage["input_tokens"] for usage in answers)
            own += 1_000_000 * any("spent.usage" in context for context in charged)
        if own < 1_000_000:  # nothing was lost: then nothing is counted twice either
            assert result.usage.input_tokens == own, at
    assert at > 20


async def test_a_child_that_ended_before_the_crash_is_told_and_not_run_again() -> None:
    journal = MemoryJournal()
    asked = 0

    def model(_: Request) -> Response:
        nonlocal asked
        asked += 1
        return Response("gold", usage=USAGE)

    def agent(store: Any) -> Agent:
        child = Agent(FunctionLLM(model), **SILENT)
        return parent_of(child, journal=store)

    whole = CrashingJournal(journal)
    await agent(whole).run("go", run_id="whole")
    asked = 0
    # The parent's record of the result comes after all of the child's, and before the parent's own last one.
    with contextlib.suppress(StoreDown):
        await agent(CrashingJournal(journal, at=len(whole.writes) - 1)).run("go", run_id="p")
    assert ((await journal.head("p:1:0")).status, (await journal.head("p")).status) == ("ended", "open")
    journal.bury((await journal.head("p")).owner or "")

    child = Agent(FunctionLLM(model), **SILENT)
    late = Agent(ScriptedLLM(["done"]), tools=[child.as_tool("dig", "")], journal=journal, **SILENT)
    result = await late.resume("p")
    assert (result.outcome, told(result), asked) == (Outcome.COMPLETED, "gold", 1)
    assert result.usage.input_tokens >= 10


# ---- people ----


@tool(effect="pure", approval=True)
def blow() -> str:
    """Blow it up."""
    return "boom"


def careful(*answers: Any) -> Agent:
    script = answers or (call("blow"), "gold")
    return Agent(ScriptedLLM(script), tools=[blow], **SILENT)


async def test_a_child_that_waits_for_a_person_is_parked_itself_and_answered_through_the_parents_agent() -> (
    None
):
    journal = MemoryJournal()
    parent = parent_of(careful(), journal=journal)
    running = asyncio.create_task(parent.run("go", run_id="p"))
    await asked_about(parent, "p:1:0")
    heads = {head.run_id: (head.status, head.reason) async for head in journal.runs()}
    assert heads == {"p": ("open", ""), "p:1:0": ("parked", "approval")}
    (question,) = await parent.pending("p:1:0")
    assert await parent.pending("p") == [replace(question, agents=("llm_loop", "llm_loop"))]
    parent.approve("p:1:0", digest=question.digest, by="ann")
    assert told(await running) == "gold"


async def test_no_time_of_the_parent_passes_while_all_its_children_wait_for_people() -> None:
    clock, journal = FakeClock(), MemoryJournal()
    child = careful(call("blow"), call("blow"), "gold", "gold")
    parent = parent_of(child, calls=2, journal=journal, clock=clock, limits=Limits(max_seconds=100))
    running = asyncio.create_task(parent.run("go", run_id="p"))
    await asked_about(parent, "p:1:0", "p:1:1")
    await clock.advance(1_000_000)  # beyond its own limit and that of process_tools
    parent.approve("p:1:0")
    parent.approve("p:1:1")
    result = await running
    assert result.outcome is Outcome.COMPLETED
    (ended,) = [one.body for one in await journal.load("p") if one.kind == "ended"]
    assert ended["t"] < 100


async def test_an_answer_given_while_nobody_runs_the_tree_counts_when_it_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        parent = parent_of(careful(), journal=journal)
        running = asyncio.create_task(parent.run("go", run_id="p"))
        await asked_about(parent, "p:1:0")
        running.cancel()
        await asyncio.wait((running,))

    async with SqliteJournal(path) as journal:
        await Agent(ScriptedLLM([]), journal=journal, **SILENT).approve("p:1:0", by="ann")
        child = careful("gold")
        later = Agent(ScriptedLLM(["done"]), tools=[child.as_tool("dig", "")], journal=journal, **SILENT)
        result = await later.resume("p")
        assert (result.outcome, told(result)) == (Outcome.COMPLETED, "gold")
        kinds = [record.kind for record in await journal.load("p:1:0")]
        assert kinds.count("approval") == 1


# ---- a process that dies ----

DIES = """
import asyncio, sys
from orchestrator import Agent, SqliteJournal
from orchestrator.testing import ScriptedLLM, FunctionLLM
from orchestrator.journal.crashing import CrashingJournal, kill
from orchestrator.providers.scripted import call

async def main(path, at):
    journal = CrashingJournal(SqliteJournal(path), at=at, crash=kill, on=("create", "append"))
    child = Agent(FunctionLLM(lambda request: "gold"), observers=())
    script = [[call("dig", task="a"), call("dig", task="b")], "done"]
    parent = Agent(ScriptedLLM(script), tools=[child.as_tool("dig", "")], journal=journal, observers=())
    await parent.run("go", run_id="p")

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.campaign
@pytest.mark.parametrize("at", [4, 6, 8, 10] if SOAK else [4, 10])
async def test_a_killed_process_leaves_a_tree_that_another_goes_on_with(tmp_path: Path, at: int) -> None:
    path = tmp_path / "journal.db"
    done = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
        [sys.executable, "-c", DIES, str(path), str(at)], check=False, capture_output=True, text=True
    )
    assert done.returncode == -9, done.stderr
    async with SqliteJournal(path) as journal:
        child = Agent(FunctionLLM(lambda _: "gold"), **SILENT)
        answers = FunctionLLM(
            lambda request: (
                "done"
                if request.messages[-1].role == "tool"
                else [call("dig", task="a"), call("dig", task="b")]
            )
        )
        later = Agent(answers, tools=[child.as_tool("dig", "")], journal=journal, **SILENT)
        result = await later.resume("p")
        assert (result.outcome, result.output) == (Outcome.COMPLETED, "done")
        assert sorted([head.run_id async for head in journal.runs(status="ended")]) == ["p", "p:1:0", "p:1:1"]
