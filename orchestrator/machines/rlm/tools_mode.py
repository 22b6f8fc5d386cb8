"""Tools mode: the model calls tools until it answers without a call."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from orchestrator.kernel.graph import Graph, bounding
from orchestrator.kernel.typed import StateMachine
from orchestrator.llm.message import Message, ToolCall
from orchestrator.machines.rlm.model import (
    LLMResponseReceived,
    MaxIterationsReached,
    ModeContext,
    PolicyStop,
    frozen,
    guarded,
    reach_limit,
    stop,
    take_response,
)
from orchestrator_guards import Verdict, iterations

# ---- states, events and context ----


class ToolsModeState(Enum):
    """The four states."""

    INIT = auto()
    PROMPTING = auto()
    EXECUTING_TOOLS = auto()
    DONE = auto()


@dataclass(slots=True, frozen=True)
class ToolCallsFound:
    """The model requested tool calls."""

    calls: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        frozen(self, "calls", self.calls)


@dataclass(slots=True, frozen=True)
class ToolsExecuted:
    """All calls have a result, and the model responded to the results."""

    results: tuple[Message, ...] = ()
    response: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    incomplete: str = ""
    """As in LLMResponseReceived."""

    def __post_init__(self) -> None:
        frozen(self, "results", self.results)
        frozen(self, "tool_calls", self.tool_calls)


@dataclass(slots=True, frozen=True)
class NoToolCalls:
    """The model answered without a call; this is the final answer."""

    answer: str = ""


ToolsModeEvent: TypeAlias = (
    LLMResponseReceived | ToolCallsFound | ToolsExecuted | NoToolCalls | PolicyStop | MaxIterationsReached
)


@dataclass
class ToolsModeContext(ModeContext):
    """The context of a run of tools mode."""

    max_iterations: int = 10
    calls: tuple[ToolCall, ...] = ()
    """The calls of the last response."""


# ---- the graph ----


S = ToolsModeState


@bounding
def may_continue(_event: ToolsExecuted, ctx: ToolsModeContext) -> Verdict:
    """Return whether there may be another turn after this one."""
    return iterations(ctx.iteration + 1, ctx.max_iterations)


def _take_first(event: LLMResponseReceived, ctx: ToolsModeContext) -> None:
    take_response(event, ctx)
    ctx.calls = event.tool_calls


def _take_calls(event: ToolCallsFound, ctx: ToolsModeContext) -> None:
    ctx.calls = event.calls


def _take_results(event: ToolsExecuted, ctx: ToolsModeContext) -> None:
    """Complete the turn: add the results of the calls and the model's response to them."""
    ctx.iteration += 1
    ctx.notice = ""
    for result in event.results:
        ctx.say(result)
    _take_first(LLMResponseReceived(event.response, event.tool_calls, event.incomplete), ctx)


def _keep_answer(event: NoToolCalls, ctx: ToolsModeContext) -> None:
    ctx.final_answer = event.answer


def build_tools_mode_machine() -> StateMachine[ToolsModeState, ToolsModeEvent, ToolsModeContext]:
    """Return the machine of tools mode. Build it once; run it with an event source and a context for each run."""
    machine: StateMachine[ToolsModeState, ToolsModeEvent, ToolsModeContext]
    machine = StateMachine("tools_mode", initial=S.INIT)
    for state in ToolsModeState:
        machine.state(state)
    machine.terminal(S.DONE)
    machine.transition(S.INIT, LLMResponseReceived, S.PROMPTING, action=_take_first)
    machine.transition(S.PROMPTING, NoToolCalls, S.DONE, action=_keep_answer)
    machine.transition(S.PROMPTING, PolicyStop, S.DONE, action=stop)
    machine.transition(S.PROMPTING, ToolCallsFound, S.EXECUTING_TOOLS, action=_take_calls)
    machine.transition(S.EXECUTING_TOOLS, ToolsExecuted, S.PROMPTING, may_continue, _take_results)
    machine.transition(S.EXECUTING_TOOLS, MaxIterationsReached, S.DONE, action=reach_limit)
    machine.transition(S.EXECUTING_TOOLS, PolicyStop, S.DONE, action=stop)
    return machine


TOOLS_MODE: Graph = guarded(
    build_tools_mode_machine(),
    {S.INIT: 600.0, S.PROMPTING: 60.0, S.EXECUTING_TOOLS: 3600.0},
    ToolsModeContext,
)
