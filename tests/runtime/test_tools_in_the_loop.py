"""Tools inside a run: unknown ones, bad arguments, order, ids that repeat, concurrency, guidance, restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import ToolExecution
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Request, ToolCall
from orchestrator.machines.llm_loop.limits import OFF, Limits
from orchestrator.providers.scripted import FunctionLLM, Item, ScriptedLLM, call
from orchestrator.tools.spec import ToolContext, tool
from tests.runtime.stage import Facts, agent, faults, path


def add(a: int, b: int) -> int:
    return a + b


async def test_an_unknown_tool_is_answered_with_names_like_it() -> None:
    facts = Facts()
    result = await agent([call("addd", a=1, b=2), "done"], [add], observers=[facts]).run("go")
    assert result.messages[2].is_error
    assert "did you mean 'add'" in result.messages[2].text
    assert [(fact.tool, fact.outcome) for fact in facts.of(ToolExecution)] == [("_unregistered", "error")]
    assert result.outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    "arguments", ['{"a": 1}', '{"a": 1, "b": "x"}', '{"a": 1, "b": ', "[1, 2]", "no json"]
)
async def test_bad_arguments_are_answered_so_that_the_model_can_correct_them(arguments: str) -> None:
    script = [ToolCall("1", "add", arguments), call("add", a=1, b=2), "3"]
    result = await agent(script, [add]).run("go")
    assert '"type":"BadArguments"' in result.messages[2].text
    assert result.messages[4].text == "3"
    assert not faults(result.messages)


async def test_one_failing_tool_does_not_hurt_its_siblings() -> None:
    def broken() -> str:
        raise RuntimeError("disk full")

    result = await agent([[call("broken"), call("add", a=1, b=2)], "done"], [add, broken]).run("go")
    assert [m.text for m in result.messages[2:4]] == ['{"error":"disk full","type":"RuntimeError"}', "3"]


@pytest.mark.parametrize("ids", [("1", "2", "3"), ("", "", ""), ("same", "same", "same")])
async def test_results_stand_in_call_order_whatever_the_ids_and_whoever_is_ready_first(
    ids: tuple[str, ...],
) -> None:
    ready = [asyncio.Event() for _ in range(3)]

    async def wait(n: int) -> str:
        if n < 2:
            await ready[n].wait()
        if n:
            ready[n - 1].set()
        return f"result {n}"

    calls = [ToolCall(name, "wait", f'{{"n": {n}}}') for n, name in enumerate(ids)]
    result = await agent([calls, "done"], [wait]).run("go")
    answers = [m for m in result.messages if m.role == "tool"]
    assert [m.text for m in answers] == ["result 0", "result 1", "result 2"]
    assert [m.tool_call_id for m in answers] == list(ids)
    assert not faults(result.messages)


async def test_each_call_of_a_run_has_a_key_of_its_own() -> None:
    keys = []

    @tool
    def note(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        assert ctx.deps == "the host's"
        return "noted"

    script = [[ToolCall("", "note"), ToolCall("", "note")], ToolCall("", "note"), "done"]
    await agent(script, [note], deps="the host's").run("go", run_id="r")
    assert keys == ["r:1:0", "r:1:1", "r:2:0"]


async def test_sequential_tools_run_alone_in_their_place() -> None:
    running: set[str] = set()
    met: list[set[str]] = []

    async def meet(name: str) -> str:
        running.add(name)
        for _ in range(5):
            await asyncio.sleep(0)
        met.append(set(running))
        running.discard(name)
        return name

    @tool(sequential=True)
    async def alone() -> str:
        return await meet("alone")

    script = [[call("meet", name="a"), call("alone"), call("meet", name="b"), call("meet", name="c")], "done"]
    await agent(script, [meet, alone]).run("go")
    assert met == [{"a"}, {"alone"}, {"b", "c"}, {"c"}]


@pytest.mark.parametrize(("cap", "most"), [(1, 1), (2, 2), (0, 5)])
async def test_no_more_tools_than_the_cap_run_at_once(cap: int, most: int) -> None:
    running, peak = 0, 0

    async def work(n: int) -> str:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return str(n)

    script = [[call("work", n=n) for n in range(5)], "done"]
    await agent(script, [work], limits=Limits(max_concurrent_tools=cap)).run("go")
    assert peak == most


async def test_guidance_reminds_of_what_failed_and_worked_and_is_never_history() -> None:
    def divide(a: int, b: int) -> str:
        if b == 0:
            raise ZeroDivisionError("division by zero")
        return str(a // b)

    script: list[Item] = [call("divide", a=4, b=2), *(call("divide", a=n, b=0) for n in (1, 2, 3)), "done"]
    llm = ScriptedLLM(script)
    limits = Limits(guidance=2, max_no_progress=0, on_tool_error="return")
    result = await agent(llm, [divide], limits=limits).run("go")
    assert [len(request.messages) % 2 for request in llm.requests] == [1, 1, 0, 0, 0]
    assert llm.requests[-1].messages[-1].text.splitlines() == [
        "Calls that failed:",
        *(
            f'- divide({{"a": {n}, "b": 0}}) failed: '
            '{"error":"division by zero","type":"ZeroDivisionError"}'
            for n in (2, 3)
        ),
        "Calls that worked:",
        '- divide({"a": 4, "b": 2}) worked',
    ]
    assert not any("Calls that failed" in m.text for m in result.messages)


async def test_a_success_clears_the_errors_of_its_tool_so_that_only_consecutive_ones_count() -> None:
    def flaky(n: int) -> str:
        if n % 3:
            raise ValueError(str(n))
        return str(n)

    script = [*(call("flaky", n=n) for n in range(1, 12)), "done"]
    result = await agent(script, [flaky], limits=Limits(max_tool_errors=3, max_no_progress=0)).run("go")
    assert result.outcome is Outcome.COMPLETED


async def test_plain_text_results_count_as_errors_only_where_the_tool_declares_them() -> None:
    @tool(plain_text=True)
    def shell(n: int) -> str:
        return f"{n}: command not found"

    def notes(n: int) -> str:
        return f"{n}: command not found"

    for name, outcome in (("shell", Outcome.BUDGET_EXCEEDED), ("notes", Outcome.COMPLETED)):
        script = [*(call(name, n=n) for n in range(3)), "done"]
        limits = Limits(max_tool_errors=3, max_no_progress=0)
        assert (await agent(script, [shell, notes], limits=limits).run("go")).outcome is outcome


# ---- restarts ----


def stuck(request: Request) -> object:
    return call("add", a=1, b=1)


STUCK = Limits(max_restarts=1, restart_stall_threshold=2, max_repeated_success=0)


async def test_a_stuck_run_starts_over_once_with_the_messages_of_its_beginning() -> None:
    llm = FunctionLLM(stuck)  # type: ignore[arg-type]
    result = await agent(llm, [add], limits=STUCK, instructions="Be brief.").run("go")
    assert path(result.transitions).count("restart_loop") == 1
    assert [m.role for m in llm.requests[3].messages] == ["system", "user"]
    assert (result.outcome, result.reason) == (Outcome.NO_PROGRESS, "stalled")
    assert len(llm.requests) == 3 + 4, "three turns until the restart, four until the guard"
    assert not faults(result.messages)


async def test_a_restart_gives_no_iteration_back() -> None:
    llm = FunctionLLM(stuck)  # type: ignore[arg-type]
    limits = Limits(max_restarts=100, restart_stall_threshold=1, max_repeated_success=0, max_iterations=9)
    result = await agent(llm, [add], limits=limits).run("go")
    assert (result.outcome, result.reason, len(llm.requests)) == (
        Outcome.BUDGET_EXCEEDED,
        "max_iterations",
        9,
    )


async def test_a_run_that_finds_its_way_after_a_restart_completes() -> None:
    llm = ScriptedLLM([call("add", a=1, b=1)] * 3 + ["done"])
    result = await agent(llm, [add], limits=STUCK).run("go")
    assert (result.outcome, [m.text for m in result.messages]) == (Outcome.COMPLETED, ["go", "done"])
    assert result.usage.input_tokens == 4, "what was spent before a restart stays spent"


async def test_a_restart_threshold_above_the_limit_of_the_guard_is_that_limit() -> None:
    llm = FunctionLLM(stuck)  # type: ignore[arg-type]
    limits = Limits(max_restarts=1, restart_stall_threshold=50, max_no_progress=2, max_repeated_success=0)
    result = await agent(llm, [add], limits=limits).run("go")
    assert path(result.transitions).count("restart_loop") == 1
    assert len(llm.requests) == 3 + 3


async def test_restarts_work_with_the_no_progress_guard_off() -> None:
    llm = FunctionLLM(stuck)  # type: ignore[arg-type]
    limits = Limits(max_restarts=2, max_no_progress=0, max_repeated_success=0, max_iterations=12)
    result = await agent(llm, [add], limits=limits).run("go")
    assert path(result.transitions).count("restart_loop") == 2
    assert result.reason == "max_iterations"


async def test_a_refused_cap_ends_the_run_also_where_it_could_restart() -> None:
    llm = FunctionLLM(stuck)  # type: ignore[arg-type]
    limits = Limits(max_restarts=5, restart_stall_threshold=2, max_repeated_success=0, max_tool_calls=2)
    result = await agent(llm, [add], limits=limits).run("go")
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, "tool_calls")
    assert "restart_loop" not in path(result.transitions)


async def test_without_restarts_the_event_never_happens() -> None:
    llm = FunctionLLM(stuck)  # type: ignore[arg-type]
    result = await agent(llm, [add]).run("go")
    assert "restart_loop" not in path(result.transitions)


async def test_with_limits_off_a_run_may_repeat_itself_as_often_as_it_likes() -> None:
    llm = ScriptedLLM([call("add", a=1, b=1)] * 150 + ["done"])
    assert (await agent(llm, [add], limits=OFF).run("go")).outcome is Outcome.COMPLETED


@pytest.mark.parametrize("effect", ["pure", "irreversible"])
async def test_a_hundred_calls_of_one_turn_run_at_once_and_are_stored_in_order(effect: Any) -> None:
    together = asyncio.Barrier(100)

    @tool(effect=effect)
    async def step(n: int) -> str:
        """Wait for all others."""
        await together.wait()
        return f"step {n}"

    journal = MemoryJournal()
    limits = Limits(max_concurrent_tools=100)
    calls = [call("step", n=n) for n in range(100)]
    result = await agent([calls, "done"], [step], journal=journal, limits=limits).run("go", run_id="wide")
    assert result.output == "done"
    assert [message.text for message in result.messages[2:102]] == [f"step {n}" for n in range(100)]
    records = await journal.load("wide")
    done = [record.body["key"] for record in records if record.kind == "done"]
    assert sorted(done, key=lambda key: int(key.partition(":")[2])) == [f"1:{n}" for n in range(100)]
    [intent] = [record.body for record in records if record.kind == "intent"]
    assert len(intent["calls"]) == 100
    appends = {record.hash for record in records}
    if effect == "pure":
        assert len(appends) <= 6, "results of calls that may run again need no append of their own"
    assert len(records) < 130
