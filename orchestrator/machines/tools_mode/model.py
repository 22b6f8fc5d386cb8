"""States, events and context of tools mode. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from orchestrator.llm.message import Message, ToolCall
from orchestrator.machines.rlm.model import (
    LLMResponseReceived,
    MaxIterationsReached,
    ModeContext,
    PolicyStop,
    frozen,
)


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
