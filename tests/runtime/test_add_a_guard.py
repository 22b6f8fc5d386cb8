"""CONTRIBUTING's recipes for hosts: a guard and a hook of one's own, without touching our files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator import LLM_LOOP, Agent, Edge, Limits, Outcome, Response, ToolCall, tool
from orchestrator.kernel import Run
from orchestrator.kernel.graph import bounding
from orchestrator.machines.llm_loop.graph import may_continue
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.testing import ScriptedLLM
from orchestrator_guards import Verdict

MOST = 3


def words(observed: int, limit: int, name: str = "words") -> Verdict:
    """May another turn start? What the model has said, in words; 0 is unlimited."""
    return Verdict(not limit or observed < limit, name, observed, limit)


def said(ctx: LoopContext) -> int:
    return sum(len(message.text.split()) for message in ctx.messages if message.role == "assistant")


@bounding
def may_talk_on(ctx: LoopContext) -> Verdict:
    """The loop's own guard first: without it the cycle would have no budget."""
    asked = may_continue(ctx)
    return asked if not asked else words(said(ctx), MOST)


ON_AN_EDGE = LLM_LOOP.extend(
    name="brief_loop",
    without=[("update_budgets", "budget_ok")],
    edges=[Edge("budget_ok", ("update_budgets",), "await_llm", may_talk_on)],
)


class InAHook:
    """Puts its refusal where the loop looks for one: then a wrap-up turn is given, and the outcome is a budget's."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def leave_process_tools(self, run: Run[Any, Any]) -> None:
        asked = words(said(run.ctx), MOST, self._name)
        if not asked and run.ctx.verdict is None:
            run.ctx.verdict = asked


@tool(effect="pure")
async def look(query: str) -> str:
    """Look."""
    return f"seen: {query}"


def talks(*answers: str) -> Iterator[Response | str]:
    for number, answer in enumerate(answers):
        yield Response(answer, (ToolCall(str(number), "look", f'{{"query": "{number}"}}'),))
    yield "the end"


async def test_a_guard_of_ones_own_stands_on_an_edge_and_a_refusal_says_its_numbers() -> None:
    llm = ScriptedLLM([*talks("one two", "three four")][:2])
    result = await Agent(llm, tools=[look], graph=ON_AN_EDGE, observers=()).run("go")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "policy_stop")
    assert "words: 4 of 3 used" in str(result.error)
    assert [t.guard for t in result.transitions if t.guard] == ["may_talk_on"]
    llm.assert_complete()


async def test_the_budgets_of_the_loop_hold_beside_it() -> None:
    llm = ScriptedLLM([*talks("one")][:1])
    agent = Agent(llm, tools=[look], graph=ON_AN_EDGE, observers=(), limits=Limits(max_iterations=1))
    result = await agent.run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "max_iterations")


@pytest.mark.parametrize(
    ("name", "wrap_up", "outcome", "reason"),
    [
        ("output_tokens", 0, Outcome.BUDGET_EXCEEDED, "output_tokens"),
        ("output_tokens", 1, Outcome.PARTIAL, "output_tokens"),
        ("words", 0, Outcome.FAILED, "policy_stop"),
        ("words", 1, Outcome.FAILED, "policy_stop"),
    ],
)
async def test_a_verdict_given_to_the_loop_ends_the_run_as_the_guard_of_that_name(
    name: str, wrap_up: int, outcome: Outcome, reason: str
) -> None:
    script = [*talks("one two", "three four")]
    agent = Agent(
        ScriptedLLM(script),
        tools=[look],
        hooks=[InAHook(name)],
        observers=(),
        limits=Limits(wrap_up_turns=wrap_up),
    )
    result = await agent.run("go")
    assert (result.outcome, result.reason) == (outcome, reason)
    assert result.verdict is not None
    assert result.verdict.explain() == f"{name}: 4 of 3 used"
