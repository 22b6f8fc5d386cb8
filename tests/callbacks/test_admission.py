"""Which calls of a turn may run, what the others are told, and how a turn is closed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.kernel.fact import ToolExecution
from orchestrator.llm.message import ToolCall
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator.machines.llm_loop.model import RepeatedSuccess
from orchestrator.providers.scripted import call
from orchestrator.tools.result import ToolResult
from orchestrator.tools.spec import tool
from orchestrator_callbacks.llm_loop import admission, tool_work
from orchestrator_guards import ObservedCall, call_key, fingerprint
from tests.callbacks.stand import answered, facts, loop_run


def echo(n: int) -> str:
    return f"echo {n}"


def outcomes(results: list[ToolResult | None]) -> list[str]:
    return [result.outcome if result else "open" for result in results]


async def test_every_call_is_answered_in_order_and_counted() -> None:
    run = answered(loop_run(tools=[echo]), call("echo", n=1), call("ECHO", n=2), call("nothing"))
    await tool_work.run_calls(run)
    assert [result.content for result in run.ctx.results[:2]] == ["echo 1", "echo 2"]
    assert outcomes(run.ctx.results) == ["ok", "ok", "error"]
    assert (run.ctx.spent.tool_calls, run.ctx.spent.by_tool) == (3, {"echo": 2, "nothing": 1})
    told = [(fact.position, fact.tool, fact.outcome) for fact in facts(run, ToolExecution)]
    assert told == [(0, "echo", "ok"), (1, "echo", "ok"), (2, "_unregistered", "error")]


@pytest.mark.parametrize(("used", "ok"), [(0, 2), (1, 1), (2, 0), (3, 0)])
async def test_of_two_allowed_calls_in_all_those_run_that_are_left(used: int, ok: int) -> None:
    run = answered(
        loop_run(tools=[echo], limits=replace(OFF, max_tool_calls=2)), call("echo", n=1), call("echo", n=2)
    )
    run.ctx.spent.tool_calls = used
    await tool_work.run_calls(run)
    assert outcomes(run.ctx.results) == ["ok"] * ok + ["denied"] * (2 - ok)
    assert (run.ctx.verdict is None) is (ok == 2)


async def test_the_first_refusal_stands() -> None:
    limits = replace(OFF, max_tool_calls=1, tool_caps={"echo": 1})
    run = answered(loop_run(tools=[echo], limits=limits), *(call("echo", n=n) for n in range(3)))
    await tool_work.run_calls(run)
    assert run.ctx.verdict is not None
    assert run.ctx.verdict.guard == "tool_calls"
    assert '"error":"not run: tool_calls: 1 of 1 used"' in run.ctx.results[2].content


@pytest.mark.parametrize(
    ("policy", "times", "ok"), [("strict", 3, False), ("poll", 29, True), ("cumulative", 99, True)]
)
async def test_a_tool_says_what_repeating_it_means(policy: str, times: int, ok: bool) -> None:
    spec = tool(name="watch", progress=policy)(lambda: "same")  # type: ignore[call-overload]
    run = answered(loop_run(tools=[spec], limits=replace(OFF, max_repeated_success=3)), call("watch"))
    run.ctx.progress.successes["watch"] = RepeatedSuccess(call_key("watch", "{}"), "same", times)
    await tool_work.run_calls(run)
    assert outcomes(run.ctx.results) == ["ok" if ok else "denied"]


async def test_a_turn_that_was_expected_to_repeat_is_not_run() -> None:
    run = answered(loop_run(tools=[echo]), call("echo", n=2), call("echo", n=1))
    run.ctx.progress.expected = fingerprint([ObservedCall("echo", f'{{"n": {n}}}', "") for n in (1, 2)])
    await tool_work.run_calls(run)
    assert outcomes(run.ctx.results) == ["denied", "denied"]
    assert run.ctx.spent.tool_calls == 0
    assert run.ctx.verdict is None


async def test_while_wrapping_up_no_tool_runs() -> None:
    run = answered(loop_run(tools=[echo]), call("echo", n=2))
    run.ctx.wrapping_up = True
    await tool_work.run_calls(run)
    assert "this is the last turn" in run.ctx.results[0].content


def test_a_turn_is_closed_with_one_result_for_each_call_once() -> None:
    calls = (ToolCall("", "echo"), ToolCall("", "echo"))
    run = answered(loop_run(), *calls)
    run.ctx.results = [None, ToolResult(calls[1], 1, "echo 2")]
    admission.close_turn(run.ctx)
    admission.close_turn(run.ctx)
    assert [m.role for m in run.ctx.messages] == ["user", "assistant", "tool", "tool"]
    assert [m.is_error for m in run.ctx.messages[2:]] == [True, False]
    assert "stopped before this call finished" in run.ctx.messages[2].text


def test_a_turn_that_never_began_is_closed_too() -> None:
    run = answered(loop_run(), call("echo", n=1))
    admission.close_turn(run.ctx)
    assert run.ctx.messages[-1].is_error


def test_an_answer_without_calls_needs_no_closing() -> None:
    run = answered(loop_run(), text="done")
    admission.close_turn(run.ctx)
    assert run.ctx.messages[-1].text == "done"
    fresh = loop_run()
    admission.close_turn(fresh.ctx)
    assert len(fresh.ctx.messages) == 1
