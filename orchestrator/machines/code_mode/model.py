"""States, events and context of code mode. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from orchestrator.machines.rlm.model import (
    LLMResponseReceived,
    MaxIterationsReached,
    ModeContext,
    PolicyStop,
    frozen,
)


class CodeModeState(Enum):
    """The five states."""

    INIT = auto()
    SHALLOW_CALL = auto()
    PROMPTING = auto()
    EXECUTING = auto()
    DONE = auto()


@dataclass(slots=True, frozen=True)
class DepthExceeded:
    """The run has reached the maximum depth: the model is called once."""

    depth: int = 0
    max_depth: int = 0


@dataclass(slots=True, frozen=True)
class CodeBlocksFound:
    """Code blocks of the model's reply. Empty if the reply has neither code nor an answer; the turn still counts."""

    blocks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        frozen(self, "blocks", self.blocks)


@dataclass(slots=True, frozen=True)
class FinalAnswerFound:
    """The final answer."""

    answer: str
    is_value: bool = False
    """The answer is the value of a variable, so it is complete even if the response that names it is not."""


@dataclass(slots=True, frozen=True)
class CodeExecuted:
    """The blocks ran, and the model responded to their results."""

    results: tuple[str, ...] = ()
    """Text about each block as added to the history."""
    response: str = ""
    incomplete: str = ""
    """As in LLMResponseReceived."""

    def __post_init__(self) -> None:
        frozen(self, "results", self.results)


CodeModeEvent: TypeAlias = (
    DepthExceeded
    | LLMResponseReceived
    | CodeBlocksFound
    | FinalAnswerFound
    | CodeExecuted
    | MaxIterationsReached
    | PolicyStop
)
"""The six events of code mode, and PolicyStop, which a StoppingPolicy may cause in any machine."""


@dataclass
class CodeModeContext(ModeContext):
    """The context of a run of code mode."""

    blocks: tuple[str, ...] = ()
    """Code to run."""
