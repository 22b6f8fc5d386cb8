"""Both tables of seed 004 pair by pair, as events of the typed machines, and what each event changes in the context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from orchestrator import (
    CodeBlocksFound,
    CodeExecuted,
    CodeModeContext,
    CodeModeState,
    DepthExceeded,
    FinalAnswerFound,
    LLMResponseReceived,
    MaxIterationsReached,
    Message,
    NoToolCalls,
    PolicyStop,
    StateMachine,
    ToolCall,
    ToolCallsFound,
    ToolsExecuted,
    ToolsModeContext,
    build_code_mode_machine,
)
from orchestrator.kernel import UnhandledEventError
from orchestrator.kernel.outcome import Outcome
from orchestrator.rlm import ToolsModeState, build_tools_mode_machine

C: TypeAlias = CodeModeState
T: TypeAlias = ToolsModeState
CALL = ToolCall("c1", "look", "{}")

CODE: dict[tuple[C, type], C] = {
    (C.INIT, DepthExceeded): C.SHALLOW_CALL,
    (C.INIT, LLMResponseReceived): C.PROMPTING,
    (C.PROMPTING, FinalAnswerFound): C.DONE,
    (C.PROMPTING, CodeBlocksFound): C.EXECUTING,
    (C.EXECUTING, FinalAnswerFound): C.DONE,
    (C.EXECUTING, MaxIterationsReached): C.DONE,
    (C.EXECUTING, CodeExecuted): C.PROMPTING,
    (C.SHALLOW_CALL, LLMResponseReceived): C.DONE,
    # a policy may end any machine (L10)
    (C.PROMPTING, PolicyStop): C.DONE,
    (C.EXECUTING, PolicyStop): C.DONE,
}

TOOLS: dict[tuple[T, type], T] = {
    (T.INIT, LLMResponseReceived): T.PROMPTING,
    (T.PROMPTING, NoToolCalls): T.DONE,
    (T.PROMPTING, PolicyStop): T.DONE,
    (T.PROMPTING, ToolCallsFound): T.EXECUTING_TOOLS,
    (T.EXECUTING_TOOLS, ToolsExecuted): T.PROMPTING,
    (T.EXECUTING_TOOLS, MaxIterationsReached): T.DONE,
    (T.EXECUTING_TOOLS, PolicyStop): T.DONE,
}

EVENTS: dict[type, Any] = {
    DepthExceeded: DepthExceeded(1, 1),
    LLMResponseReceived: LLMResponseReceived("hello"),
    CodeBlocksFound: CodeBlocksFound(("a = 1",)),
    FinalAnswerFound: FinalAnswerFound("42"),
    CodeExecuted: CodeExecuted(("1",), "next"),
    MaxIterationsReached: MaxIterationsReached("all I have"),
    PolicyStop: PolicyStop(),
    ToolCallsFound: ToolCallsFound((CALL,)),
    ToolsExecuted: ToolsExecuted((Message("tool", "1", tool_call_id="c1"),), "next"),
    NoToolCalls: NoToolCalls("42"),
}
ALL = sorted(EVENTS, key=lambda kind: kind.__name__)
MODES: list[tuple[str, Any, Any, dict[Any, Any], Any]] = [
    ("code", build_code_mode_machine, CodeModeContext, CODE, C),
    ("tools", build_tools_mode_machine, ToolsModeContext, TOOLS, T),
]
PAIRS = [
    pytest.param(build, context, table, state, event, id=f"{name}-{state.name}-{event.__name__}")
    for name, build, context, table, states in MODES
    for state in states
    if state.name != "DONE"
    for event in ALL
]


def step(machine: StateMachine[Any, Any, Any], state: Any, ctx: Any, event: Any) -> Any:
    """Where one event leads."""
    events = [event]
    return machine.run(state, ctx, lambda _state, _ctx: events.pop() if events else None)


@pytest.mark.parametrize(("build", "context", "table", "state", "event"), PAIRS)
def test_each_pair_leads_where_the_table_says_or_is_unhandled(
    build: Callable[[], Any], context: Callable[[], Any], table: dict[Any, Any], state: Any, event: type
) -> None:
    dest = table.get((state, event))
    if dest is not None:
        done = step(build(), state, context(), EVENTS[event])
        assert (done[0], done.transitions) == (dest, 1)
        return
    ctx = context()
    before = context()
    with pytest.raises(UnhandledEventError) as caught:
        step(build(), state, ctx, EVENTS[event])
    error = caught.value
    assert (error.state, error.event) == (state.name, event.__name__)
    assert error.handled == tuple(sorted(kind.__name__ for source, kind in table if source is state))
    assert ctx == before, "an event that leads nowhere changes nothing"


@pytest.mark.parametrize(
    ("build", "done"), [(build_code_mode_machine, C.DONE), (build_tools_mode_machine, T.DONE)]
)
def test_done_is_the_only_terminal_state_and_asks_for_nothing(build: Callable[[], Any], done: Any) -> None:
    machine = build()
    assert machine.graph.terminal == {"DONE"}
    assert machine.graph.initial == "INIT"
    ended = machine.run(done, CodeModeContext(), lambda _s, _c: pytest.fail("asked"))
    assert (ended[0], ended.outcome) == (done, Outcome.COMPLETED)


@pytest.mark.parametrize("build", [build_code_mode_machine, build_tools_mode_machine])
def test_the_machines_have_no_problem_but_the_bound_that_is_a_guard(build: Callable[[], Any]) -> None:
    rules = [str(problem.rule) for problem in build().lint()]
    assert rules == ["guard_gap"], "the limit of turns refuses, and there is no other way: that is an error"


def test_every_build_is_a_machine_of_its_own() -> None:
    one, other = build_code_mode_machine(), build_code_mode_machine()
    one.state(C.INIT, on_enter=lambda ctx: setattr(ctx, "prompt", "seen"))
    ctx = CodeModeContext()
    step(other, C.INIT, ctx, DepthExceeded())
    assert ctx.prompt == ""
    assert one.graph.fingerprint == other.graph.fingerprint


# ---- what events change: code mode ----


def test_a_response_goes_into_the_history_and_is_the_last_one() -> None:
    ctx = CodeModeContext(prompt="p")
    step(build_code_mode_machine(), C.INIT, ctx, LLMResponseReceived("hello"))
    assert ctx.message_history == [{"role": "assistant", "content": "hello"}]
    assert (ctx.last_response, ctx.final_answer, ctx.iteration) == ("hello", None, 0)


def test_the_response_of_a_shallow_call_is_the_answer() -> None:
    ctx = CodeModeContext(depth=1)
    step(build_code_mode_machine(), C.SHALLOW_CALL, ctx, LLMResponseReceived("42"))
    assert (ctx.final_answer, ctx.finish_reason) == ("42", "stop")


def test_code_that_was_found_waits_to_be_run() -> None:
    ctx = CodeModeContext()
    step(build_code_mode_machine(), C.PROMPTING, ctx, CodeBlocksFound(["a = 1", "b = 2"]))  # type: ignore[arg-type]
    assert ctx.blocks == ("a = 1", "b = 2")


@pytest.mark.parametrize(("state", "turns"), [(C.PROMPTING, 0), (C.EXECUTING, 1)])
def test_an_answer_is_kept_and_closes_the_turn_in_which_code_ran(state: C, turns: int) -> None:
    ctx = CodeModeContext()
    step(build_code_mode_machine(), state, ctx, FinalAnswerFound("42"))
    assert (ctx.final_answer, ctx.iteration) == ("42", turns)


def test_code_that_ran_closes_a_turn_with_its_results_and_what_was_said_to_them() -> None:
    ctx = CodeModeContext(blocks=("a",), notice="anew")
    step(build_code_mode_machine(), C.EXECUTING, ctx, CodeExecuted(("one", "two"), "and then"))
    assert ctx.message_history == [
        {"role": "user", "content": "one\n\ntwo"},
        {"role": "assistant", "content": "and then"},
    ]
    assert (ctx.iteration, ctx.blocks, ctx.notice, ctx.last_response) == (1, (), "", "and then")


def test_a_turn_without_results_adds_no_empty_message() -> None:
    ctx = CodeModeContext()
    step(build_code_mode_machine(), C.EXECUTING, ctx, CodeExecuted((), "and then"))
    assert [message["role"] for message in ctx.message_history] == ["assistant"]


@pytest.mark.parametrize(
    ("iteration", "limit", "allowed"), [(0, 2, True), (1, 2, False), (0, 1, False), (99, 0, True)]
)
@pytest.mark.parametrize("mode", ["code", "tools"])
def test_the_last_turn_may_not_be_followed_by_another(
    mode: str, iteration: int, limit: int, allowed: bool
) -> None:
    machine: Any = build_code_mode_machine() if mode == "code" else build_tools_mode_machine()
    kind: Any = CodeModeContext if mode == "code" else ToolsModeContext
    state, event = (C.EXECUTING, CodeExecuted()) if mode == "code" else (T.EXECUTING_TOOLS, ToolsExecuted())
    ctx = kind(iteration=iteration, max_iterations=limit)
    if allowed:
        assert step(machine, state, ctx, event)[0].name == "PROMPTING"
        return
    with pytest.raises(UnhandledEventError) as caught:
        step(machine, state, ctx, event)
    assert (caught.value.verdict.observed, caught.value.verdict.limit) == (iteration + 1, limit)


@pytest.mark.parametrize(
    ("build", "state"),
    [(build_code_mode_machine, C.EXECUTING), (build_tools_mode_machine, T.EXECUTING_TOOLS)],
)
@pytest.mark.parametrize("answer", ["what I have", None])
def test_the_limit_keeps_what_was_said_when_the_model_was_asked_once_more(
    build: Any, state: Any, answer: str | None
) -> None:
    ctx = CodeModeContext() if state is C.EXECUTING else ToolsModeContext()
    step(build(), state, ctx, MaxIterationsReached(answer))
    assert (ctx.final_answer, ctx.max_iterations_reached, ctx.iteration) == (answer, True, 1)
    assert ctx.finish_reason == "max_iterations"


@pytest.mark.parametrize(
    ("build", "state"),
    [
        (build_code_mode_machine, C.PROMPTING),
        (build_code_mode_machine, C.EXECUTING),
        (build_tools_mode_machine, T.PROMPTING),
        (build_tools_mode_machine, T.EXECUTING_TOOLS),
    ],
)
def test_a_policy_that_stops_marks_the_context(build: Any, state: Any) -> None:
    ctx = CodeModeContext(last_response="so far") if state in C else ToolsModeContext(last_response="so far")
    step(build(), state, ctx, PolicyStop("enough"))
    assert (ctx.policy_stop, ctx.last_response, ctx.finish_reason) == (True, "so far", "policy_stop")


def test_a_policy_is_looked_at_before_the_limit() -> None:
    ctx = ToolsModeContext(policy_stop=True, max_iterations_reached=True)
    assert ctx.finish_reason == "policy_stop"


# ---- what events change: tools mode ----


def test_calls_of_a_response_wait_to_be_run() -> None:
    ctx = ToolsModeContext()
    step(build_tools_mode_machine(), T.INIT, ctx, LLMResponseReceived("", (CALL,)))
    assert ctx.calls == (CALL,)
    assert ctx.message_history[0]["tool_calls"][0]["function"]["name"] == "look"


def test_a_response_without_calls_is_the_answer() -> None:
    ctx = ToolsModeContext()
    step(build_tools_mode_machine(), T.PROMPTING, ctx, NoToolCalls("42"))
    assert (ctx.final_answer, ctx.finish_reason) == ("42", "stop")


def test_tools_that_ran_close_a_turn_with_their_results_and_the_next_response() -> None:
    ctx = ToolsModeContext(calls=(CALL,))
    results = (Message("tool", "1", tool_call_id="c1"), Message("tool", "2", tool_call_id="c2"))
    step(build_tools_mode_machine(), T.EXECUTING_TOOLS, ctx, ToolsExecuted(results, "next", (CALL,)))
    assert [message["role"] for message in ctx.message_history] == ["tool", "tool", "assistant"]
    assert (ctx.iteration, ctx.last_response, ctx.calls) == (1, "next", (CALL,))


# ---- whole ways ----


def test_two_turns_of_code_and_an_answer() -> None:
    events: list[Any] = [
        LLMResponseReceived("1"),
        CodeBlocksFound(("a",)),
        CodeExecuted(("r1",), "2"),
        CodeBlocksFound(("b",)),
        FinalAnswerFound("42"),
    ]
    machine = build_code_mode_machine()
    ctx = CodeModeContext(prompt="p")
    done = machine.run(C.INIT, ctx, lambda _s, _c: events.pop(0))
    assert (done[0], ctx.iteration, ctx.final_answer) == (C.DONE, 2, "42")


async def test_the_machines_run_async_as_well_and_many_at_once() -> None:
    machine = build_tools_mode_machine()

    async def source(state: T, ctx: ToolsModeContext) -> Any:
        await asyncio.sleep(0)
        if state is T.INIT:
            return LLMResponseReceived(ctx.prompt, (CALL,))
        if state is T.EXECUTING_TOOLS:
            return ToolsExecuted((Message("tool", "1", tool_call_id="c1"),), "done")
        return ToolCallsFound(ctx.calls) if ctx.calls else NoToolCalls(ctx.prompt)

    contexts = [ToolsModeContext(prompt=str(number)) for number in range(20)]
    await asyncio.gather(*[machine.arun(T.INIT, ctx, source) for ctx in contexts])
    assert [ctx.final_answer for ctx in contexts] == [str(number) for number in range(20)]
