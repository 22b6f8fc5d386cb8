"""What was wrong in the loop this one is modelled on, D1 to D19, and what holds here instead.

The numbers are those of the list in hand_loop.py, which still behaves as the original did.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest

from orchestrator.errors import CancelRequested
from orchestrator.kernel.fact import LLMCall, Transition
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Message, Request, Response, Usage
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.scripted import FunctionLLM, Item, ScriptedLLM, call
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import tool
from orchestrator_callbacks.llm_loop.deps import LoopRun
from tests.runtime.stage import Facts, Notebook, agent, path


def ok(n: int) -> str:
    return "ok"


def echo(n: int) -> str:
    return f"echo {n}"


def fail(n: int) -> str:
    raise ValueError(f"{n} is wrong")


async def outcome_of(script: Sequence[Item], **options: Any) -> tuple[Outcome, str]:
    result = await agent(script, [ok, echo, fail], **options).run("go")
    return result.outcome, result.reason


async def test_d01_a_failure_in_finalize_reaches_the_caller() -> None:
    error = RuntimeError("not that output")

    class Host:
        async def before_finalize(self, run: LoopRun, output: object) -> None:
            raise error

    result = await agent(["done"], hooks=[Host()]).run("go")
    assert (result.outcome, result.error) == (Outcome.FAILED, error)
    assert (result.transitions[-1].source, result.transitions[-1].dest) == ("finalize", "terminate_error")


async def test_d02_each_transition_has_a_clock_of_its_own_and_the_stack_does_not_grow() -> None:
    clock, facts = FakeClock(auto=True), Facts()
    depths = []

    def model(request: Request) -> object:
        frame, depth = sys._getframe(), 0
        while frame.f_back is not None:
            frame, depth = frame.f_back, depth + 1
        depths.append(depth)
        return call("echo", n=len(depths)) if len(depths) < 50 else "done"

    llm = FunctionLLM(model, latency=2, clock=clock)  # type: ignore[arg-type]
    await agent(llm, [echo], clock=clock, observers=[facts]).run("go")
    made = facts.of(Transition)
    assert {t.dwell for t in made if t.source == "await_llm"} == {2.0}
    assert {t.dwell for t in made if t.source != "await_llm"} == {0.0}
    assert [t.seq for t in made] == list(range(1, len(made) + 1))
    assert all(one.dest == other.source for one, other in pairwise(made))
    assert len(set(depths)) == 1


async def test_d03_the_initial_state_is_entered() -> None:
    entered = []

    class Host:
        async def enter_init(self, run: LoopRun) -> None:
            entered.append(run.cursor.state)

    await agent(["done"], hooks=[Host()]).run("go")
    assert entered == ["init"]


async def test_d04_restart_and_no_progress_are_reachable_with_tools_that_succeed() -> None:
    llm = ScriptedLLM([call("ok", n=1)] * 7)
    result = await agent(llm, [ok], limits=Limits(max_restarts=1)).run("go")
    assert "restart_loop" in path(result.transitions)
    assert (result.outcome, result.reason) == (Outcome.NO_PROGRESS, "stalled")


async def test_d05_other_arguments_are_progress_and_an_alternation_is_none() -> None:
    different: list[Item] = [call("ok", n=n) for n in range(9)]
    batch: list[Item] = [[call("ok", n=n) for n in range(9)]]
    assert await outcome_of([*different, "done"]) == (Outcome.COMPLETED, "none")
    assert await outcome_of([*batch, "done"]) == (Outcome.COMPLETED, "none")
    alternating: list[Item] = [call("ok", n=n % 2) for n in range(20)]
    swapped: list[Item] = [[call("echo", n=n % 2), call("echo", n=1 - n % 2)] for n in range(20)]
    assert await outcome_of(alternating) == (Outcome.NO_PROGRESS, "stalled")
    assert await outcome_of(swapped) == (Outcome.NO_PROGRESS, "stalled")


async def test_d06_an_exceeded_budget_stores_a_failure_episode() -> None:
    memory = Notebook()
    await outcome_of([call("ok", n=1)], memory=memory, limits=Limits(max_iterations=1))
    assert [episode.reason for _, episode in memory.episodes] == ["iterations"]


async def test_d07_the_longest_delay_bounds_each_delay_and_the_deadline_their_sum() -> None:
    for deadline, tries, slept in ((300.0, 6, [1.0, 2.0, 3.0, 3.0, 3.0]), (7.0, 4, [1.0, 2.0, 3.0])):
        clock = FakeClock(auto=True)
        llm = ScriptedLLM([ConnectionResetError()] * tries)
        retry = RetryPolicy(attempts=6, base=1.0, max_delay=3.0, deadline=deadline, jitter=0.0)
        await agent(llm, retry=retry, clock=clock).run("go")
        assert clock.slept == slept
        llm.assert_complete()


async def test_d08_what_is_worth_another_try_is_told_by_type_not_by_text() -> None:
    assert await outcome_of([ConnectionResetError("x"), "done"]) == (Outcome.COMPLETED, "none")
    assert await outcome_of([ConnectionRefusedError("x"), "done"]) == (Outcome.COMPLETED, "none")
    never = ValueError("temporarily unavailable, timeout, please try again")
    assert await outcome_of([never, "done"]) == (Outcome.FAILED, "llm_error")


async def test_d09_compaction_is_asked_for_in_every_turn_and_arms_the_warnings_again() -> None:
    def full(n: int) -> Response:
        return Response(None, (call("echo", n=n),), usage=Usage(95, 0))

    llm = ScriptedLLM([*(full(n) for n in range(8)), "done"])
    limits = Limits(context_limit=100, compaction_threshold=0.9, compaction_cooldown=2)
    await agent(llm, [echo], limits=limits).run("go")
    assert [number for number, request in enumerate(llm.requests) if len(request.messages) == 2] == [
        1,
        3,
        5,
        7,
    ]


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ('{"success": true, "error": null}', False),
        ("0 errors", False),
        ('The build: {"success": false}', True),
        ('{"error": "no such file"}', True),
        ("", False),
    ],
)
async def test_d10_a_result_fails_where_it_says_so_and_nowhere_else(text: str, failed: bool) -> None:
    def say(n: int) -> str:
        return text

    script = [*(call("say", n=n) for n in range(3)), "done"]
    limits = Limits(max_tool_errors=3, max_no_progress=0)
    result = await agent(script, [say], limits=limits).run("go")
    assert result.outcome is (Outcome.BUDGET_EXCEEDED if failed else Outcome.COMPLETED)


async def test_d11_completion_retries_have_a_limit_of_their_own_and_a_progress_guard() -> None:
    bad = '{"error": "x"}'
    assert await outcome_of([bad] * 3) == (Outcome.FAILED, "completion_invalid")
    assert await outcome_of([bad] * 4, limits=Limits(completion_retries=99)) == (
        Outcome.NO_PROGRESS,
        "stalled",
    )
    turns: list[Item] = [call("echo", n=n) for n in range(9)]
    limits = Limits(max_iterations=12, completion_retries=2)
    assert await outcome_of([*turns, bad, bad, "done"], limits=limits) == (Outcome.COMPLETED, "none")


async def test_d12_a_cancellation_is_never_labelled_timeout() -> None:
    facts, asked, never = Facts(), asyncio.Event(), asyncio.Event()

    async def model(request: Request) -> str:
        asked.set()
        await never.wait()
        return "never"

    runner = agent(FunctionLLM(model), observers=[facts])
    task = asyncio.create_task(runner.run("go", run_id="r"))
    await asked.wait()
    runner.cancel("r")
    result = await task
    assert (result.outcome, result.reason) == (Outcome.CANCELLED, "caller")
    assert isinstance(result.error, CancelRequested)
    assert [fact.outcome for fact in facts.of(LLMCall)] == ["cancelled"]


@pytest.mark.parametrize("by", ["limit of the run", "deadline", "limit of the state"])
async def test_d12_a_model_that_hangs_until_a_limit_cuts_it_off_timed_out(by: str) -> None:
    facts, clock, never = Facts(), FakeClock(), asyncio.Event()

    async def model(request: Request) -> str:
        await never.wait()
        return "never"

    options: dict[str, Any] = {"deadline": 10} if by == "deadline" else {}
    if by == "limit of the run":
        options = {"limits": Limits(max_seconds=10)}
    runner = agent(FunctionLLM(model), observers=[facts], clock=clock)
    task = asyncio.create_task(runner.run("go", **options))
    await clock.advance(10_000)
    await task
    assert [fact.outcome for fact in facts.of(LLMCall)] == ["timeout"]


async def test_d13_the_error_budget_counts_consecutive_errors() -> None:
    turns: list[Item] = [call("echo" if n % 3 == 0 else "fail", n=n) for n in range(1, 9)]

    @tool(name="fail")
    def flaky(n: int) -> str:
        if n % 3:
            raise ValueError(str(n))
        return str(n)

    limits = Limits(max_tool_errors=3, max_no_progress=0)
    script = [*(call("fail", n=n) for n in range(1, 30)), "done"]
    assert (await agent(script, [flaky], limits=limits).run("go")).outcome is Outcome.COMPLETED
    assert await outcome_of(turns, limits=limits) == (Outcome.BUDGET_EXCEEDED, "tool_errors")


async def test_d14_no_hint_is_put_in_unasked_and_jitter_is_a_setting() -> None:
    llm = ScriptedLLM([call("echo", n=1), "done"])
    result = await agent(llm, [echo]).run("go")
    assert list(llm.requests[1].messages) == list(result.messages[:3])
    clock = FakeClock(auto=True)
    script = [ConnectionResetError(), "done"]
    await agent(script, retry=RetryPolicy(base=1.0, jitter=0.0), clock=clock).run("go")
    assert clock.slept == [1.0]


def test_d15_limits_are_numbers_and_there_is_no_switch_beside_them() -> None:
    values = {item.name: getattr(Limits(), item.name) for item in fields(Limits)}
    assert not [name for name, value in values.items() if isinstance(value, bool)]
    assert not [name for name in values if name.startswith(("enable", "use_", "is_"))]


async def test_d16_calls_of_a_batch_that_are_over_the_cap_do_not_run() -> None:
    ran = []

    def send(n: int) -> str:
        ran.append(n)
        return "sent"

    result = await agent(
        [[call("send", n=n) for n in range(5)]], [send], limits=Limits(tool_caps={"send": 2})
    ).run("go")
    assert (ran, result.outcome) == ([0, 1], Outcome.BUDGET_EXCEEDED)


async def test_d17_every_counter_of_a_tool_takes_its_names_in_any_case_for_one() -> None:
    caps = Limits(tool_caps={"OK": 2})
    names: list[Item] = [call("ok", n=1), call("Ok", n=2), call("OK", n=3)]
    assert await outcome_of(names, limits=caps) == (Outcome.BUDGET_EXCEEDED, "tool_calls")
    errors: list[Item] = [call("fail", n=1), call("Fail", n=2), call("FAIL", n=3)]
    limits = Limits(max_tool_errors=3, max_no_progress=0)
    assert await outcome_of(errors, limits=limits) == (Outcome.BUDGET_EXCEEDED, "tool_errors")
    same: list[Item] = [call("ok", n=1), call("Ok", n=1), call("OK", n=1)]
    limits = Limits(max_repeated_success=2, max_no_progress=0)
    assert await outcome_of(same, limits=limits) == (Outcome.NO_PROGRESS, "repeated_success")


async def test_d18_the_turn_that_trips_a_budget_is_in_the_history_and_in_the_episode() -> None:
    memory = Notebook()
    runner = agent([call("fail", n=7)], [fail], memory=memory, limits=Limits(max_tool_errors=1))
    result = await runner.run("go")
    assert [m.role for m in result.messages] == ["user", "assistant", "tool"]
    assert "7 is wrong" in result.messages[-1].text
    assert memory.episodes[0][1].calls == (("fail", '{"n": 7}'),)


async def test_d19_a_restart_gives_no_iteration_back() -> None:
    llm = FunctionLLM(lambda request: Message("assistant", None, (call("ok", n=1),)))
    limits = Limits(max_iterations=10, max_restarts=50, restart_stall_threshold=1)
    result = await agent(llm, [ok], limits=limits).run("go")
    assert path(result.transitions).count("restart_loop") >= 4
    assert (result.reason, len(llm.requests)) == ("max_iterations", 10)
