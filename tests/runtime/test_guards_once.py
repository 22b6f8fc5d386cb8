"""In a turn each guard is evaluated once: the hook that chooses an event and the guard of its edge share a decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import Agent, Limits, MemoryJournal
from orchestrator.kernel.purity import CHECK_PURITY
from orchestrator.llm.message import Message, Usage
from orchestrator.machines.llm_loop import graph
from orchestrator.machines.llm_loop.graph import LLM_LOOP, may_continue, may_restart
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator.machines.llm_loop.model import LoopContext, RunUsage, TurnDecision
from orchestrator.providers.scripted import call
from orchestrator.testing import ScriptedLLM, check_guard, strict_guards
from orchestrator_callbacks.llm_loop import turn_accounting
from orchestrator_guards import Verdict, progress

FAULT = '{"error": "not found"}'
"""An answer that is no answer: the loop asks once more."""


def step(n: int) -> str:
    return f"step {n}"


def same(n: int) -> str:
    return f"the same, not {type(n).__name__}"


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each guard of the loop was evaluated, by name."""
    count: Counter[str] = Counter()

    def counting(name: str, guard: Callable[..., Verdict]) -> Callable[..., Verdict]:
        def counted(*given: Any, **options: Any) -> Verdict:
            count[name] += 1
            return guard(*given, **options)

        return counted

    names = (
        "cost",
        "elapsed",
        "input_tokens",
        "iterations",
        "output_tokens",
        "progress",
        "restarts",
        "tool_errors",
    )
    for name in names:
        monkeypatch.setattr(graph, name, counting(name, getattr(graph, name)))
    monkeypatch.setenv(CHECK_PURITY, "0")
    monkeypatch.setattr(turn_accounting, "progress", counting("progress", progress))
    return count


def agent(*script: Any, tool: Callable[..., Any] = step, table: Any = LLM_LOOP, **limits: Any) -> Agent:
    return Agent(
        ScriptedLLM(script),
        tools=[tool],
        graph=table,
        observers=(),
        limits=Limits(**limits),
    )


async def test_each_turn_evaluates_each_guard_once(evaluated: Counter[str]) -> None:
    turns = [call("step", n=n) for n in range(5)]
    result = await agent(*turns, "done", max_input_tokens=10**9, max_seconds=1e9).run("go")
    assert result.outcome == "completed"
    # The request that no guarded edge leads to is allowed by the whole budgets.
    assert evaluated == {"progress": 5, "input_tokens": 6, "elapsed": 6, "iterations": 6}


async def test_a_completion_retry_evaluates_each_guard_once(evaluated: Counter[str]) -> None:
    result = await agent(FAULT, "done", completion_retries=1).run("go")
    assert result.outcome == "completed"
    assert evaluated == {"progress": 1, "iterations": 2}


async def test_a_wrap_up_turn_is_allowed_by_one_look_at_the_whole_budgets(evaluated: Counter[str]) -> None:
    result = await agent(call("step", n=1), "done", max_iterations=2, wrap_up_turns=1).run("go")
    assert (result.outcome, result.reason) == ("partial", "max_iterations")
    assert (
        evaluated["iterations"] == 1 + 2
    )  # the first request; refused for a normal turn, allowed for the last one


async def test_a_restart_evaluates_the_guards_of_its_edge_once(evaluated: Counter[str]) -> None:
    turns = [call("same", n=1)] * 3
    limits = {"max_restarts": 1, "restart_stall_threshold": 1, "max_no_progress": 0}
    result = await agent(*turns[:2], "done", tool=same, **limits).run("go")
    assert result.outcome == "completed"
    assert [one.event for one in result.transitions].count("restart_loop") == 1
    assert evaluated["restarts"] == 1
    assert evaluated["iterations"] == 1 + 2 + 1  # the first request, two turns, the restart


async def test_a_table_with_strict_guards_runs_as_the_plain_one() -> None:
    turns = [call("step", n=n) for n in range(3)]
    runs = [
        await agent(*turns, FAULT, "done", table=table).run("go")
        for table in (LLM_LOOP, strict_guards(LLM_LOOP))
    ]
    plain, strict = ([(one.event, one.guard) for one in result.transitions] for result in runs)
    assert plain == strict
    assert runs[1].outcome == "completed"


async def test_no_record_has_a_decision() -> None:
    journal = MemoryJournal()
    runs = Agent(ScriptedLLM([call("step", n=1), "done"]), tools=[step], journal=journal, observers=())
    result = await runs.run("go")
    records = await journal.load(result.run_id)
    assert len(records) > 3
    assert not any("decision" in str(record.body) for record in records)


# ---- the decision as data ----


def context(limits: Limits = OFF, **others: Any) -> LoopContext:
    return LoopContext([Message("user", "go")], limits, 1, **others)


def test_a_decision_is_void_once_the_run_has_used_more_or_has_other_limits() -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"iteration": 2},
        {"spent": RunUsage(Usage(11))},
        {"spent": RunUsage(Usage(5), seconds=9.0)},
        {"limits": replace(OFF, max_input_tokens=5)},
    )
    for change in changes:
        ctx = context(replace(OFF, max_iterations=2, max_input_tokens=10, max_seconds=8.0), iteration=1)
        ctx.spent.usage = Usage(5)
        assert turn_accounting.decide(ctx, graph.verdicts(ctx))
        assert may_continue(ctx)
        assert not may_continue(replace(ctx, **change))


def test_a_refusal_made_after_the_decision_stands() -> None:
    ctx = context()
    assert turn_accounting.decide(ctx, graph.verdicts(ctx))
    ctx.verdict = Verdict(ok=False, guard="tool_cap", observed=2, limit=2)
    assert may_continue(ctx) is ctx.verdict


def test_a_decision_for_a_turn_does_not_allow_a_restart_and_the_other_way_round() -> None:
    ctx = context(replace(OFF, max_iterations=9), iteration=1)
    assert turn_accounting.decide(ctx, graph.verdicts(ctx))
    assert not may_restart(ctx)
    assert ctx.decision is not None
    ctx.limits = replace(OFF, max_iterations=1)
    ctx.decision = replace(ctx.decision, restart=True, limits=ctx.limits)
    assert may_restart(ctx)
    assert not may_continue(ctx)


number = st.integers(0, 3)


@given(asked=st.tuples(number, number, number), now=st.tuples(number, number, number), most=number)
def test_the_edge_answers_as_the_guards_would(
    asked: tuple[int, int, int], now: tuple[int, int, int], most: int
) -> None:
    """Whatever the decision was about, what it allows now is what the guards allow now."""
    limits = replace(OFF, max_iterations=most, max_input_tokens=most, max_seconds=float(most))

    def at(iteration: int, tokens: int, seconds: int) -> LoopContext:
        return context(limits, iteration=iteration, spent=RunUsage(Usage(tokens), seconds=float(seconds)))

    before, ctx = at(*asked), at(*now)
    if verdict := may_continue(before):
        ctx.decision = TurnDecision(
            verdict, limits, before.iteration, before.spent.total, before.spent.seconds
        )
    assert check_guard(may_continue, ctx) == may_continue(at(*now))
