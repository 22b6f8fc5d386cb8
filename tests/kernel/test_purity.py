"""A guard that changes its context: refused by name and field, where the build option is on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.errors import GraphError
from orchestrator.kernel.graph import Edge, bounding
from orchestrator.kernel.machine import bind
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.purity import CHECK_PURITY, pure_guard
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.graph import LLM_LOOP, may_continue
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.providers.scripted import call
from orchestrator.testing import plugin
from orchestrator.tools.tool_error import ON_TOOL_ERROR
from orchestrator_guards import Verdict
from tests.runtime.stage import agent


def graph_with(guard: Any) -> Any:
    return LLM_LOOP.extend(
        name="greedy",
        without=[("update_budgets", "budget_ok")],
        edges=[Edge("budget_ok", ("update_budgets",), "await_llm", bounding(guard))],
    )


def context() -> LoopContext:
    marks: Any = set()
    return LoopContext([Message("user", "go")], Limits(), 1, output=deque(), remembered=marks)


def asked(guard: Any, ctx: Any) -> Any:
    return pure_guard(guard, "llm_loop")(ctx)


CHANGES: dict[str, Any] = {
    "context.spent.tool_calls from 0 to 1": lambda ctx: setattr(ctx.spent, "tool_calls", 1),
    "context.spent.by_tool['look'] from nothing to 1": lambda ctx: ctx.spent.by_tool.update(look=1),
    "context.wrapping_up from False to True": lambda ctx: setattr(ctx, "wrapping_up", True),
    "context.messages from list of 1 to list of 2": lambda ctx: ctx.messages.append(Message("user", "x")),
    "context.turns from () to ('turn',)": lambda ctx: setattr(ctx, "turns", ("turn",)),
    "context.output from deque of 0 to deque of 1": lambda ctx: ctx.output.append("turn"),
    "context.ledger.asked[1] from nothing to 'x'": lambda ctx: ctx.ledger.asked.update({1: "x"}),
    "context.remembered from set of 0 to set of 1": lambda ctx: ctx.remembered.add(1),
}


@pytest.mark.parametrize("said", CHANGES)
def test_a_guard_that_changes_its_context_is_named_with_the_field(said: str) -> None:
    def greedy(ctx: LoopContext) -> Verdict:
        CHANGES[said](ctx)
        return may_continue(ctx)

    with pytest.raises(GraphError) as refused:
        asked(greedy, context())
    assert f"guard greedy changed {said}; a guard only reads" in str(refused.value)


def test_a_guard_that_only_reads_gives_its_answer() -> None:
    assert asked(may_continue, context()) == may_continue(context())


def test_a_policy_that_is_bound_as_a_guard_is_named_by_its_class() -> None:
    class Counting:
        def __call__(self, ctx: LoopContext) -> bool:
            ctx.spent.retries += 1
            return True

    with pytest.raises(GraphError, match=r"guard Counting changed context\.spent\.retries from 0 to 1"):
        asked(Counting(), context())


def test_lists_of_changeable_things_and_attributes_of_any_context_are_looked_into() -> None:
    @dataclass
    class Item:
        count: int = 0

    class House:
        def __init__(self) -> None:
            self.items = deque([Item(), Item()])
            self.odd = float("nan")

    def push(house: House) -> bool:
        house.items[1].count += 1
        return True

    with pytest.raises(GraphError, match=r"context\.items\[1\]\.count from 0 to 1"):
        asked(push, House())
    assert asked(lambda house: len(house.items), House()) == 2


async def test_a_run_fails_by_such_a_guard_in_tests_unless_the_variable_says_no(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def greedy(ctx: LoopContext) -> Verdict:
        ctx.spent.restarts += 1
        return may_continue(ctx)

    def look() -> str:
        return "seen"

    async def run() -> Any:
        return await agent([call("look"), "done"], [look], graph=graph_with(greedy)).run("go")

    result = await run()
    assert (result.outcome, result.reason) == (Outcome.FAILED, "guard_error")
    assert isinstance(result.error, GraphError)
    assert "guard greedy changed context.spent.restarts from 0 to 1" in str(result.error)
    monkeypatch.setenv(CHECK_PURITY, "0")
    assert (await run()).outcome is Outcome.COMPLETED


def test_bind_takes_the_option() -> None:
    @dataclass
    class Context:
        seen: list[int] = field(default_factory=list)

    from orchestrator_callbacks.llm_loop import after, before, enter, leave

    machine = bind(LLM_LOOP, enter, leave, before, after, check_purity=True)
    assert machine.graph is LLM_LOOP
    (step,) = [one for one in machine.steps("update_budgets", "budget_ok") if one.conditions]
    guard: Any = step.conditions[0].func
    assert guard is may_continue
    assert step.conditions[0].function is not may_continue
    assert plugin.CHECK_PURITY == CHECK_PURITY
    assert plugin.ON_TOOL_ERROR == ON_TOOL_ERROR
