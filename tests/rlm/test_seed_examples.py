"""Seed 004's own examples, as they are written there but for the import line; models are ScriptedLLM."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias

import pytest

from orchestrator import (
    CodeBlocksFound,
    CodeExecuted,
    CodeModeContext,
    CodeModeEvent,
    CodeModeState,
    FinalAnswerFound,
    LLMResponseReceived,
    Message,
    Request,
    StateMachine,
    build_code_mode_machine,
)
from orchestrator.kernel.cancellation import at_once
from orchestrator.machines.rlm.reply import code_blocks, final_answer
from orchestrator.testing import ScriptedLLM

# ---- writing custom state machines, in six steps ----


class MyState(Enum):
    START = auto()
    PROCESSING = auto()
    FINISHED = auto()


@dataclass(slots=True, frozen=True)
class ProcessingComplete:
    result: str


@dataclass(slots=True, frozen=True)
class ErrorOccurred:
    error: str


MyEvent: TypeAlias = ProcessingComplete | ErrorOccurred


@dataclass
class MyContext:
    input_data: str
    results: list[str] = field(default_factory=list)
    error: str | None = None
    token_budget: int = 3


def build_my_machine() -> StateMachine[MyState, MyEvent, MyContext]:
    machine: StateMachine[MyState, MyEvent, MyContext] = StateMachine()

    # Register states
    machine.state(MyState.START)
    machine.state(MyState.PROCESSING)
    machine.state(MyState.FINISHED)

    # Mark terminal states
    machine.terminal(MyState.FINISHED)

    # Define transitions
    machine.transition(MyState.START, ProcessingComplete, MyState.PROCESSING)
    machine.transition(MyState.PROCESSING, ProcessingComplete, MyState.FINISHED)
    machine.transition(MyState.PROCESSING, ErrorOccurred, MyState.FINISHED)

    return machine


def process(data: str) -> str:
    if not data:
        raise ValueError("no data")
    return data.upper()


def my_event_source(state: MyState, ctx: MyContext) -> MyEvent | None:
    if state == MyState.START:
        return ProcessingComplete(result="started")

    if state == MyState.PROCESSING:
        try:
            result = process(ctx.input_data)
            ctx.results.append(result)
            return ProcessingComplete(result=result)
        except ValueError as e:
            ctx.error = str(e)
            return ErrorOccurred(error=str(e))

    return None


def test_the_custom_machine_of_six_steps_runs() -> None:
    machine = build_my_machine()
    ctx = MyContext(input_data="hello")
    final_state, final_ctx = machine.run(MyState.START, ctx, my_event_source)
    assert final_state is MyState.FINISHED
    assert final_ctx is ctx
    assert (ctx.results, ctx.error) == (["HELLO"], None)


def test_the_custom_machine_takes_its_error_edge() -> None:
    final_state, ctx = build_my_machine().run(MyState.START, MyContext(input_data=""), my_event_source)
    assert (final_state, ctx.results, ctx.error) == (MyState.FINISHED, [], "no data")


# ---- the factorial ----

FACTORIAL = "```repl\nimport math\nresult = math.factorial(10)\nprint(result)\n```"


def test_the_factorial_of_ten_is_calculated() -> None:
    llm = ScriptedLLM([FACTORIAL, "FINAL(3628800)"])

    def my_event_source(state: CodeModeState, ctx: CodeModeContext) -> CodeModeEvent | None:
        if state is CodeModeState.INIT:
            return LLMResponseReceived(said(llm, ctx.prompt))
        if state is CodeModeState.PROMPTING:
            response = ctx.last_response or ""
            answer = final_answer(response)
            if answer is not None:
                return FinalAnswerFound(answer=answer.value)
            return CodeBlocksFound(blocks=code_blocks(response))
        if state is CodeModeState.EXECUTING:
            printed: list[str] = []
            for block in ctx.blocks:
                exec(block, {"print": lambda value: printed.append(str(value))})  # noqa: S102 - the test wrote it
            return CodeExecuted(results=tuple(printed), response=said(llm, "\n".join(printed)))
        return None

    # Build the machine (do this once at startup)
    machine = build_code_mode_machine()

    # Create context for this run
    ctx = CodeModeContext(
        prompt="Calculate the factorial of 10",
        max_iterations=30,
        depth=0,
    )

    # Run with an event source
    final_state, final_ctx = machine.run(
        initial_state=CodeModeState.INIT,
        context=ctx,
        event_source=my_event_source,
    )

    assert final_state is CodeModeState.DONE
    assert final_ctx.final_answer == "3628800"
    assert [message["content"] for message in final_ctx.message_history] == [
        FACTORIAL,
        "3628800",
        "FINAL(3628800)",
    ]
    llm.assert_complete()


def said(llm: ScriptedLLM, text: str) -> str:
    return at_once(llm.complete(Request((Message("user", text),)))).message().text


# ---- async support ----


@dataclass(slots=True, frozen=True)
class SomeEvent:
    data: str


async def test_the_async_example_runs() -> None:
    llm = ScriptedLLM(["first", "second"])
    machine: StateMachine[MyState, SomeEvent, MyContext] = StateMachine()
    machine.state(MyState.START).state(MyState.FINISHED).terminal(MyState.FINISHED)
    machine.transition(
        MyState.START,
        SomeEvent,
        MyState.START,
        guard=lambda event, _ctx: event.data == "first",
        action=lambda event, ctx: ctx.results.append(event.data),
    )
    machine.transition(MyState.START, SomeEvent, MyState.FINISHED)

    async def async_event_source(state: MyState, ctx: MyContext) -> SomeEvent | None:
        await asyncio.sleep(0)
        response = await llm.complete(Request((Message("user", ctx.input_data),)))
        return SomeEvent(data=response.message().text)

    final_state, ctx = await machine.arun(MyState.START, MyContext("hello"), async_event_source)
    assert (final_state, ctx.results) == (MyState.FINISHED, ["first"])
    llm.assert_complete()


# ---- guards and actions ----


def has_remaining_budget(event: MyEvent, ctx: MyContext) -> bool:
    return ctx.token_budget > 0


def spend(event: MyEvent, ctx: MyContext) -> None:
    ctx.token_budget -= 1


def test_the_budget_guard_of_the_seed_ends_in_an_error_and_not_in_a_loop_for_ever() -> None:
    machine: StateMachine[MyState, MyEvent, MyContext] = StateMachine()
    machine.state(MyState.PROCESSING).state(MyState.FINISHED).terminal(MyState.FINISHED)
    machine.transition(
        MyState.PROCESSING,
        ProcessingComplete,
        MyState.PROCESSING,
        guard=has_remaining_budget,  # Only continue if budget remains
        action=spend,
    )
    machine.transition(MyState.PROCESSING, ErrorOccurred, MyState.FINISHED)
    ctx = MyContext("x")
    with pytest.raises(Exception, match="refused by every guard"):
        machine.run(MyState.PROCESSING, ctx, lambda _state, _ctx: ProcessingComplete("again"))
    assert ctx.token_budget == 0


def test_the_guard_of_the_seed_takes_an_answer_that_is_not_empty() -> None:
    machine: StateMachine[CodeModeState, CodeModeEvent, CodeModeContext] = StateMachine()
    machine.state(CodeModeState.PROMPTING).state(CodeModeState.DONE).terminal(CodeModeState.DONE)

    def store_final_answer(event: FinalAnswerFound, ctx: CodeModeContext) -> None:
        ctx.final_answer = event.answer

    machine.transition(
        from_state=CodeModeState.PROMPTING,
        event_type=FinalAnswerFound,
        to_state=CodeModeState.DONE,
        guard=lambda e, c: len(e.answer) > 0,  # Optional predicate
        action=store_final_answer,  # Optional side effect
    )
    _, ctx = machine.run(CodeModeState.PROMPTING, CodeModeContext(), lambda s, c: FinalAnswerFound("42"))
    assert ctx.final_answer == "42"


def test_the_hooks_of_the_seed_print_what_is_left_and_entered(capsys: pytest.CaptureFixture[str]) -> None:
    def log_transition(event: MyEvent, ctx: MyContext) -> None:
        print(f"Transitioning with event: {event}")  # noqa: T201 - the seed's

    machine: StateMachine[MyState, Any, MyContext] = StateMachine()
    machine.state(MyState.START).terminal(MyState.FINISHED).state(MyState.FINISHED)
    machine.state(
        MyState.PROCESSING,
        on_enter=lambda ctx: print("Entering PROCESSING"),  # noqa: T201 - the seed's
        on_exit=lambda ctx: print("Exiting PROCESSING"),  # noqa: T201 - the seed's
    )
    machine.transition(MyState.START, ProcessingComplete, MyState.PROCESSING, action=log_transition)
    machine.transition(MyState.PROCESSING, ErrorOccurred, MyState.FINISHED, action=log_transition)
    events: list[Any] = [ProcessingComplete("a"), ErrorOccurred("b")]
    machine.run(MyState.START, MyContext("x"), lambda s, c: events.pop(0))
    assert capsys.readouterr().out.splitlines() == [
        "Transitioning with event: ProcessingComplete(result='a')",
        "Entering PROCESSING",
        "Exiting PROCESSING",
        "Transitioning with event: ErrorOccurred(error='b')",
    ]
