"""Tool guidance: what the model is reminded of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.llm.message import Message, ToolCall
from orchestrator.machines.llm_loop.limits import OFF
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator_callbacks.llm_loop.guidance import guidance
from tests.callbacks.stand import USER


def context(*calls: tuple[str, bool], limit: int = 3, batch: bool = False) -> LoopContext:
    """A context in which these calls were made, each with whether it failed."""
    asked = [ToolCall("", name, "{}") for name, _ in calls]
    results = [Message("tool", f"said {name}", (), "", name, is_error=failed) for name, failed in calls]
    said = (
        [Message("assistant", None, tuple(asked)), *results]
        if batch
        else [
            m
            for call, result in zip(asked, results, strict=True)
            for m in (Message("assistant", None, (call,)), result)
        ]
    )
    return LoopContext([USER, *said], replace(OFF, guidance=limit), 1)


def lines(ctx: LoopContext) -> list[str]:
    return [line for message in guidance(ctx) for line in message.text.splitlines()]


def test_without_a_failure_there_is_nothing_to_say() -> None:
    assert not lines(context(("a", False)))
    assert not lines(context())


@pytest.mark.parametrize("batch", [False, True])
def test_failed_calls_come_first_then_as_many_that_worked_newest_last(batch: bool) -> None:
    calls = [("a", True), ("b", False), ("c", True), ("d", False), ("e", True), ("f", False)]
    assert lines(context(*calls, limit=2, batch=batch)) == [
        "Calls that failed:",
        "- c({}) failed: said c",
        "- e({}) failed: said e",
        "Calls that worked:",
        "- d({}) worked",
        "- f({}) worked",
    ]


def test_where_nothing_worked_nothing_is_held_up_as_an_example() -> None:
    assert lines(context(("a", True))) == ["Calls that failed:", "- a({}) failed: said a"]


def test_long_texts_are_cut_and_the_cut_is_marked() -> None:
    ctx = context(("a", True))
    ctx.messages[-1] = replace(ctx.messages[-1], content="x" * 500)
    assert lines(ctx)[1] == f"- a({{}}) failed: {'x' * 239}…"


def test_a_result_without_a_call_is_not_mentioned() -> None:
    ctx = context(("a", True))
    ctx.messages.append(Message("tool", "said b", (), "", "b", is_error=True))
    assert lines(ctx) == ["Calls that failed:", "- a({}) failed: said a"]


def test_what_was_said_before_the_run_is_not_looked_at() -> None:
    ctx = context(("a", True))
    ctx.base = len(ctx.messages)
    assert not lines(ctx)
