"""States, events and context of code mode, in seed 004's names. Plain data."""

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
    """Seed 004's five states."""

    INIT = auto()
    SHALLOW_CALL = auto()
    PROMPTING = auto()
    EXECUTING = auto()
    DONE = auto()


@dataclass(slots=True, frozen=True)
class DepthExceeded:
    """The run is as deep as runs may be: the model is asked once."""

    depth: int = 0
    max_depth: int = 0


@dataclass(slots=True, frozen=True)
class CodeBlocksFound:
    """Code blocks of the model's reply. None at all where it had neither code nor an answer: the turn counts."""

    blocks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        frozen(self, "blocks", self.blocks)


@dataclass(slots=True, frozen=True)
class FinalAnswerFound:
    """The answer."""

    answer: str


@dataclass(slots=True, frozen=True)
class CodeExecuted:
    """The blocks ran, and the model said something to that."""

    results: tuple[str, ...] = ()
    """What the model was told of each, as it goes into the history."""
    response: str = ""

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
"""Seed 004's six events, and PolicyStop: a StoppingPolicy may end any machine (L10)."""


@dataclass
class CodeModeContext(ModeContext):
    """What a run of code mode knows."""

    blocks: tuple[str, ...] = ()
    """Code that is to run."""
