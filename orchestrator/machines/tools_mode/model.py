"""States, events and context of tools mode, in seed 004's names. Plain data."""

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
    """Seed 004's four states."""

    INIT = auto()
    PROMPTING = auto()
    EXECUTING_TOOLS = auto()
    DONE = auto()


@dataclass(slots=True, frozen=True)
class ToolCallsFound:
    """The model wants tools to be called."""

    calls: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        frozen(self, "calls", self.calls)


@dataclass(slots=True, frozen=True)
class ToolsExecuted:
    """All calls have a result, and the model said something to that."""

    results: tuple[Message, ...] = ()
    response: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        frozen(self, "results", self.results)
        frozen(self, "tool_calls", self.tool_calls)


@dataclass(slots=True, frozen=True)
class NoToolCalls:
    """The model answered without a call: that is the answer."""

    answer: str = ""


ToolsModeEvent: TypeAlias = (
    LLMResponseReceived | ToolCallsFound | ToolsExecuted | NoToolCalls | PolicyStop | MaxIterationsReached
)


@dataclass
class ToolsModeContext(ModeContext):
    """What a run of tools mode knows."""

    max_iterations: int = 10
    calls: tuple[ToolCall, ...] = ()
    """The calls of the last response."""
