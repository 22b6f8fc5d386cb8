"""The event source of tools mode: what it asks, which calls it runs, what it takes for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from orchestrator import (
    LLMResponseReceived,
    Message,
    NoToolCalls,
    ToolCall,
    ToolCallsFound,
    ToolContext,
    ToolResult,
    ToolsExecuted,
    ToolsModeContext,
    Verdict,
    tool,
)
from orchestrator.errors import ConfigError, LimitReached, ToolRaised
from orchestrator.machines.rlm.model import MaxIterationsReached
from orchestrator.providers.scripted import call
from orchestrator.rlm import KeepEnds, RlmLimits, ToolsModeSource, ToolsModeState, build_tools_mode_machine
from orchestrator.testing import ScriptedLLM
from orchestrator.tools.tool_error import ENDED, ON_TOOL_ERROR
from orchestrator.tools.tool_set import ToolSet

S = ToolsModeState


@tool(effect="pure")
def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


@tool(effect="pure")
def fail() -> str:
    """Never work."""
    raise ValueError("broken")


async def ran(llm: ScriptedLLM, ctx: ToolsModeContext, tools: Any = (add, fail), **options: Any) -> Any:
    return await build_tools_mode_machine().arun(S.INIT, ctx, ToolsModeSource(llm, tools, **options))


def results(ctx: ToolsModeContext) -> list[str]:
    return [str(message["content"]) for message in ctx.message_history if message["role"] == "tool"]


# ---- asking ----


async def test_the_model_is_told_the_tools_and_the_prompt() -> None:
    llm = ScriptedLLM(["42"])
    await ran(llm, ToolsModeContext(prompt="What is 6 * 7?"), params={"seed": 1})
    request = llm.requests[0]
    assert [offer.name for offer in request.tools] == ["add", "fail"]
    assert (request.messages[0].role, request.messages[1].text) == ("system", "What is 6 * 7?")
    assert (request.tool_choice, request.params) == ("auto", {"seed": 1})


async def test_instructions_of_the_callers_own_stand_in_place_of_ours() -> None:
    llm = ScriptedLLM(["42"])
    await ran(llm, ToolsModeContext(prompt="p"), instructions="Be brief.")
    assert llm.requests[0].messages[0].text == "Be brief."


async def test_an_answer_without_a_call_ends_the_run() -> None:
    llm, ctx = ScriptedLLM(["42"]), ToolsModeContext(prompt="p")
    done = await ran(llm, ctx)
    assert (done[0], ctx.final_answer, ctx.iteration, done.transitions) == (S.DONE, "42", 0, 2)


async def test_a_refusal_is_the_answer_where_nothing_else_was_said() -> None:
    llm, ctx = ScriptedLLM([Message("assistant", None, refusal="No.")]), ToolsModeContext(prompt="p")
    await ran(llm, ctx)
    assert ctx.final_answer == "No."


# ---- reading ----


async def test_prompting_tells_calls_from_an_answer() -> None:
    source, one = ToolsModeSource(ScriptedLLM([])), ToolCall("1", "add", "{}")
    assert await source(S.PROMPTING, ToolsModeContext(calls=(one,), last_response="x")) == ToolCallsFound(
        (one,)
    )
    assert await source(S.PROMPTING, ToolsModeContext(last_response="x")) == NoToolCalls("x")
    assert await source(S.PROMPTING, ToolsModeContext()) == NoToolCalls("")
    assert await source(S.DONE, ToolsModeContext()) is None


# ---- executing ----


async def test_calls_run_and_the_model_reads_their_results() -> None:
    llm, ctx = ScriptedLLM([call("add", one=1, other=2), "3"]), ToolsModeContext(prompt="p")
    await ran(llm, ctx)
    assert (results(ctx), ctx.final_answer, ctx.iteration) == (["3"], "3", 1)
    assert llm.requests[1].messages[-1].tool_call_id == "call_1_0"
    assert [message["role"] for message in ctx.message_history] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


async def test_several_calls_of_a_turn_run_at_once_and_their_results_keep_the_order() -> None:
    inside, both = [0], asyncio.Event()

    @tool(effect="pure")
    async def meet(name: str) -> str:
        """Wait for the other one."""
        inside[0] += 1
        if inside[0] == 2:
            both.set()
        await both.wait()
        return name

    llm, ctx = (
        ScriptedLLM([[call("meet", name="a"), call("meet", name="b")], "x"]),
        ToolsModeContext(prompt="p"),
    )
    await ran(llm, ctx, [meet])
    assert results(ctx) == ["a", "b"]


async def test_no_more_calls_run_at_once_than_the_limit_allows() -> None:
    now, most = [0], [0]

    @tool(effect="pure")
    async def count() -> str:
        """Count who is inside."""
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0)
        now[0] -= 1
        return "x"

    llm = ScriptedLLM([[call("count") for _ in range(6)], "x"])
    await ran(llm, ToolsModeContext(prompt="p", limits=RlmLimits(max_concurrent_tools=2)), [count])
    assert most == [2]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (call("fail"), "broken"),
        (call("nobody"), "there is no tool 'nobody'"),
        (call("add", one=1), "other"),
        (ToolCall("1", "add", "{"), "error"),
    ],
)
async def test_a_call_that_goes_wrong_is_a_result_that_the_model_reads_and_no_end(
    made: ToolCall, words: str
) -> None:
    llm, ctx = ScriptedLLM([made, "gave up"]), ToolsModeContext(prompt="p")
    await ran(llm, ctx)
    assert words in results(ctx)[0]
    assert llm.requests[1].messages[-1].is_error
    assert ctx.final_answer == "gave up"


@pytest.mark.parametrize(
    ("errors", "raised", "of_process", "ends"),
    [
        (None, KeyError, None, False),
        ("return", KeyError, "raise_bugs", False),
        ("raise_bugs", KeyError, None, True),
        ("raise_bugs", OSError, None, False),
        ("raise", OSError, None, True),
        (None, KeyError, "raise_bugs", True),
    ],
)
async def test_an_exception_ends_the_run_if_the_tool_says_so_once_the_other_calls_have_results(
    monkeypatch: pytest.MonkeyPatch, errors: Any, raised: type[Exception], of_process: str | None, ends: bool
) -> None:
    monkeypatch.delenv(ON_TOOL_ERROR, raising=False)
    if of_process is not None:
        monkeypatch.setenv(ON_TOOL_ERROR, of_process)

    @tool(effect="pure", errors=errors)
    def breaks() -> None:
        """Break."""
        raise raised("A1")

    told: list[ToolResult] = []
    llm, ctx = (
        ScriptedLLM([[call("breaks"), call("add", one=1, other=2)], "gave up"]),
        ToolsModeContext(prompt="p"),
    )
    if ends:
        with pytest.raises(
            ToolRaised, match=rf"tool breaks raised {raised.__name__}: .*A1.* \(test_tools_source.py:\d+\)"
        ):
            await ran(llm, ctx, (add, breaks), on_result=told.append)
    else:
        await ran(llm, ctx, (add, breaks), on_result=told.append)
    ENDED.clear()  # the plugin would fail this test
    assert sorted(one.content for one in told if one.outcome == "ok") == ["3"]
    assert len(told) == 2
    assert (ctx.final_answer, len(llm.requests)) == ((None, 1) if ends else ("gave up", 2))


async def test_a_tool_knows_its_call_by_the_context_that_it_is_given() -> None:
    seen: list[tuple[str, str]] = []

    @tool(effect="pure")
    async def look(ctx: ToolContext) -> str:
        """Look at the context."""
        seen.append((ctx.run_id, ctx.idempotency_key))
        return "x"

    def context_for(made: ToolCall, position: int) -> ToolContext:
        return ToolContext("r1", f"r1:{made.id}:{position}")

    told: list[ToolResult] = []
    llm = ScriptedLLM([call("look"), "x"])
    await ran(
        llm, ToolsModeContext(prompt="p"), ToolSet([look]), context_for=context_for, on_result=told.append
    )
    assert seen == [("r1", "r1:call_1_0:0")]
    assert [(one.call.name, one.outcome) for one in told] == [("look", "ok")]


# ---- the limit of turns, and policies ----


async def test_after_the_last_turn_the_model_is_asked_once_more_with_tools_out_of_reach() -> None:
    calls = [call("add", one=number, other=1) for number in range(2)]
    llm, ctx = ScriptedLLM([*calls, "all I have"]), ToolsModeContext(prompt="p", max_iterations=2)
    await ran(llm, ctx)
    assert llm.requests[-1].tool_choice == "none"
    assert "last turn" in llm.requests[-1].messages[-1].text
    assert (ctx.iteration, ctx.final_answer, ctx.finish_reason) == (2, "all I have", "max_iterations")


async def test_ten_turns_is_the_limit_unless_somebody_says_otherwise() -> None:
    llm = ScriptedLLM([*[call("add", one=1, other=1)] * 10, "x"])
    ctx = ToolsModeContext(prompt="p")
    await ran(llm, ctx)
    assert (ctx.iteration, len(llm.requests)) == (10, 11)


async def test_a_budget_that_refuses_the_extra_request_leaves_a_run_without_an_answer() -> None:
    refused = LimitReached(Verdict(False, "cost", 1, 1))
    ctx = ToolsModeContext(prompt="p", max_iterations=1, calls=(call("add", one=1, other=1),))
    source = ToolsModeSource(ScriptedLLM([refused]), [add])
    assert await source(S.EXECUTING_TOOLS, ctx) == MaxIterationsReached(None)


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_policy_is_asked_in_prompting_and_after_tools_before_the_next_request(at: int) -> None:
    asked: list[tuple[int, str]] = []

    class Policy:
        def should_stop(self, context: MutableMapping[str, Any], /) -> bool:
            asked.append((context["iteration"], context["agent_mode"]))
            return len(asked) == at

        def on_iteration_complete(self, context: MutableMapping[str, Any], /) -> None:
            context["results"] = context["last_result"]

    llm, ctx = ScriptedLLM([call("add", one=1, other=2), "3"]), ToolsModeContext(prompt="p")
    await ran(llm, ctx, stopping=Policy())
    assert ctx.policy_stop
    assert asked == [(0, "tools"), (1, "tools"), (1, "tools")][:at]
    assert len(llm.requests) == (2 if at == 3 else 1)
    assert ctx.kept.get("results") == (None if at == 1 else "3")


async def test_a_compressor_never_parts_results_from_their_calls() -> None:
    @tool(effect="pure")
    def much() -> str:
        """Say much."""
        return "x" * 1_000

    llm = ScriptedLLM([*[[call("much"), call("much")]] * 6, "done"])
    ctx = ToolsModeContext(prompt="p", limits=RlmLimits(history_tokens=1_500))
    await ran(llm, ctx, [much], compressor=KeepEnds(last=3, least=4))
    for request in llm.requests:
        known = {made.id for message in request.messages for made in message.tool_calls}
        assert {message.tool_call_id for message in request.messages if message.role == "tool"} <= known
    assert ctx.final_answer == "done"


async def test_what_the_model_is_to_be_told_comes_after_the_results() -> None:
    ctx = ToolsModeContext(prompt="p", notice="Mind the gap.", calls=(call("add", one=1, other=2),))
    llm = ScriptedLLM(["x"])
    event = await ToolsModeSource(llm, [add])(S.EXECUTING_TOOLS, ctx)
    assert isinstance(event, ToolsExecuted)
    assert [message.role for message in event.results] == ["tool", "user"]
    assert llm.requests[0].messages[-1].text == "Mind the gap."


# ---- the source itself ----


def test_the_sync_source_drives_the_sync_machine() -> None:
    llm, ctx = ScriptedLLM([call("add", one=1, other=2), "3"]), ToolsModeContext(prompt="p")
    with ToolsModeSource(llm, [add]).blocking() as source:
        done = build_tools_mode_machine().run(S.INIT, ctx, source)
    assert (done[0], ctx.final_answer) == (S.DONE, "3")
    with pytest.raises(ConfigError, match="closed"):
        source(S.INIT, ctx)


async def test_init_asked_again_after_a_crash_says_the_prompt_once() -> None:
    ctx, source = ToolsModeContext(prompt="p"), ToolsModeSource(ScriptedLLM(["a", "b"]))
    assert await source(S.INIT, ctx) == LLMResponseReceived("a")
    assert await source(S.INIT, ctx) == LLMResponseReceived("b")
    assert [message["role"] for message in ctx.message_history] == ["system", "user"]


def test_tools_that_cannot_work_are_refused_when_the_source_is_made() -> None:
    @tool(effect="pure", name="add")
    def other() -> str:
        """Add nothing."""
        return ""

    with pytest.raises(ConfigError, match="two tools are named 'add'"):
        ToolsModeSource(ScriptedLLM([]), [add, other])
