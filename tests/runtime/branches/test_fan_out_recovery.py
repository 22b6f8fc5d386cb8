"""A process ends at any write of a tree of branches: nothing is lost, no effect happens twice, the decision stands."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import Agent, MemoryJournal, Outcome, Response, ToolContext, Usage, tool
from orchestrator.branches import ALL, ANY, Branch, Fan, Join, Workflow, ended, fan_out, quorum
from orchestrator.errors import OrchestratorError, StoreDown
from orchestrator.llm.message import Request
from orchestrator.testing import CrashingJournal, FunctionLLM, ScriptedLLM
from tests.runtime.branches.machine import Hooks, SpreadContext, spread
from tests.runtime.branches.test_fan_out import REVIEWED


class World:
    """What survives the process: the journal, and the effects of the tools."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.done, self.undone = Counter[str](), Counter[str]()
        self.requests = 0

    def machine(self, fan: Fan, journal: Any) -> tuple[Hooks, Workflow[SpreadContext, Any]]:
        def undo(context: ToolContext, number: int) -> None:
            self.undone[context.idempotency_key] += 1

        def tools(effect: Any) -> Any:
            @tool(effect=effect, undo=undo if effect == "compensable" else None)
            async def work(context: ToolContext, number: int) -> int:
                """Work."""
                self.done[context.idempotency_key] += 1
                return number

            return work

        def model(request: Request) -> Response:
            self.requests += 1
            return Response(str(request.messages[-1].text), usage=Usage(10, 1))

        made = {effect: tools(effect) for effect in ("pure", "idempotent", "compensable", "irreversible")}
        reader = Agent(FunctionLLM(model), name="reader", observers=())

        def branch(item: list[Any]) -> Branch[Any]:
            kind, number = item
            return Branch(reader, str(number)) if kind == "agent" else Branch(made[kind], {"number": number})

        hooks = Hooks(branch)
        return hooks, Workflow(
            spread(fan),
            [hooks],
            output=lambda ctx: ctx.values,
            name="spreader",
            journal=journal,
            observers=(),
        )


ITEMS = [["irreversible", 1], ["compensable", 1], ["agent", 1], ["idempotent", 2], ["pure", 1]]
JOINS = [(ALL, 5), (ANY, 1), (quorum(2), 2), (ended(), 5)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("join", "least"), JOINS, ids=str)
async def test_after_a_crash_at_any_write_the_decision_stands_and_no_effect_happens_twice(
    join: Join, least: int, when: Any, campaign: Callable[[int, int], int]
) -> None:
    fan = Fan(max=5, concurrency=2, join=join)
    for at in itertools.count(1, campaign(3, 1)):
        world = World()
        broken = CrashingJournal(world.journal, at=at, when=when, on=("create", "append"))
        _, first = world.machine(fan, broken)
        with contextlib.suppress(StoreDown):
            await first.run(SpreadContext(ITEMS), run_id="p1")
        if not broken.crashed:
            break
        if not [head async for head in world.journal.runs()]:
            continue
        for owner in {head.owner async for head in world.journal.runs() if head.owner}:
            world.journal.bury(owner)
        before = await told(world, "p1")
        hooks, later = world.machine(fan, world.journal)
        result = await resumed(later)
        after = await told(world, "p1")
        assert result.outcome is Outcome.COMPLETED, (at, result.error)
        if "joined" in before:
            assert after["joined"] == before["joined"], at
        if "fan" in before:
            assert after["fan"] == before["fan"], at
        (left,) = [one.body for one in await world.journal.load("p1") if one.kind == "transition"]
        decision = after["joined"]
        row = [decision["ok"], "joined", decision["observed"], decision["limit"]]
        assert [list(one) for one in left["guards"]] == [row], at
        assert sum(one.outcome is Outcome.COMPLETED for one in result_of(hooks, result)) >= least, at
        irreversible = {key: count for key, count in world.done.items() if key.startswith("p1:spread.0:0")}
        assert all(count == 1 for count in irreversible.values()), (at, irreversible)
        await consistent(world, at)
        spent = [head async for head in world.journal.runs(parent_run_id="p1") if head.agent == "reader"]
        assert result.usage.input_tokens == sum([await used(world, head.run_id) for head in spent]), at
    assert at > 10


async def resumed(machine: Workflow[Any, Any]) -> Any:
    """Resume, and answer each question whether an interrupted call has happened: it has."""
    result = await machine.resume("p1", wait="never")
    while result.waiting:
        answers = {one.id: "1" for one in result.questions}
        assert answers
        result = await machine.resume("p1", answers=answers, wait="never")
    return result


def result_of(hooks: Hooks, result: Any) -> Any:
    return hooks.results[-1] if hooks.results else [result] * 5  # the state was left before the crash


async def told(world: World, run_id: str) -> dict[str, Any]:
    records = await world.journal.load(run_id)
    kinds = Counter(one.kind for one in records)
    assert kinds["fan"] <= 1
    assert kinds["joined"] <= 1
    return {one.kind: one.body for one in records if one.kind in {"fan", "joined"}}


async def used(world: World, run_id: str) -> int:
    ends = [one.body for one in await world.journal.load(run_id) if one.kind == "answer"]
    lost = [one.body for one in await world.journal.load(run_id) if one.kind == "resumed"]
    charged = [one["context"].get("spent.usage", {}).get("input_tokens", 0) for one in lost]
    return int(sum(one["usage"]["input_tokens"] for one in ends) + sum(charged))


async def consistent(world: World, at: int) -> None:
    """Every branch has ended, those that the decision counted have their results, and undone effects happened."""
    children = {head.run_id: head async for head in world.journal.runs(parent_run_id="p1")}
    assert {head.status for head in children.values()} <= {"ended"}, at
    for key, count in world.undone.items():
        assert key == "p1:spread.0:1:1:0", at
        assert count >= 1
    decided = (await told(world, "p1"))["joined"]
    for index in decided["ended"]:
        assert f"p1:spread.0:{index}" in children, at


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_agent_with_branches_counts_each_answer_of_them_once_after_a_crash_at_any_write(
    when: Any,
) -> None:
    for at in itertools.count(1):
        inner = MemoryJournal()
        broken = CrashingJournal(inner, at=at, when=when, on=("create", "append"))
        with contextlib.suppress(OrchestratorError):
            await reviewed(broken).run("How many moons?", run_id="p1")
        if not broken.crashed:
            break
        if not [head async for head in inner.runs()]:
            continue
        for owner in {head.owner async for head in inner.runs() if head.owner}:
            inner.bury(owner)
        result = await reviewed(inner).resume("p1")
        assert result.outcome is Outcome.COMPLETED, at
        assert result.output.startswith("Two moons."), at
        answers = 0
        for run_id in [head.run_id async for head in inner.runs()]:
            answers += sum(one.kind == "answer" for one in await inner.load(run_id))
        assert answers == 3
        assert result.usage.input_tokens - result.usage.estimated_input_tokens == 3, at
    assert at > 10


def reviewed(journal: Any) -> Agent[Any, str]:
    checker = Agent(FunctionLLM(lambda _: "fine"), name="checker", observers=())

    class Check:
        async def enter_check(self, run: Any) -> str:
            results = await fan_out(run, [Branch(checker, "a"), Branch(checker, "b")])
            run.ctx.output += f" ({', '.join(results.values)})"
            return "checked"

    llm = FunctionLLM(lambda _: "Two moons.")
    return Agent(llm, name="asker", graph=REVIEWED, hooks=[Check()], journal=journal, observers=())


async def test_other_branches_than_before_a_crash_are_refused() -> None:
    journal = MemoryJournal()
    broken = CrashingJournal(journal, at=2, on=("append",))
    world = World()
    with contextlib.suppress(StoreDown):
        await world.machine(Fan(max=5), broken)[1].run(SpreadContext(ITEMS), run_id="p1")
    for owner in {head.owner async for head in journal.runs() if head.owner}:
        journal.bury(owner)
    other = Agent(ScriptedLLM(["a"] * 5), name="other", observers=())
    hooks = Hooks(lambda item: Branch(other, str(item)))
    graph = spread(Fan(max=5))
    machine: Workflow[SpreadContext, None] = Workflow(
        graph, [hooks], name="spreader", journal=journal, observers=()
    )
    result = await machine.resume("p1")
    assert "the branches of 'spread' differ from those in the journal" in str(result.error)
