"""States, events and context of a team: plain data, so that a run can be stored and resumed.

The run of a team keeps the conversation. The part of it that one agent drives is a segment: a child run with the id
`<run>:s<number>`, whose messages are added to the conversation when it has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from orchestrator.kernel.outcome import Ending
from orchestrator.llm.message import FinishReason, Message
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import RunUsage
from orchestrator_guards import Verdict


class TeamState(StrEnum):
    """The five states."""

    INIT = "init"
    WORKING = "working"
    HANDING_OVER = "handing_over"
    FINALIZE = "finalize"
    TERMINATE_ERROR = "terminate_error"


class TeamEvent(StrEnum):
    """The five events."""

    START = "start"
    HAND_OVER = "hand_over"
    TAKE_OVER = "take_over"
    ANSWERED = "answered"
    FAILURE = "failure"


TEAM_GRAPH: Final = "team"
"""Name of the graph."""
HANDOFF: Final = "handoff"
"""Kind of the tools with which a model hands the conversation over."""
HANDED_OVER: Final = "handed_over"
"""Reason of a segment that ended with a handoff."""


@dataclass(frozen=True, slots=True)
class HandoffRecord:
    """One handoff of a run."""

    agent: str
    """Name of the agent that handed the conversation over."""
    to: str
    """Name of the agent that took it over."""
    run_id: str
    """The segment that ended with it."""
    input: Any = None
    """The input of the handoff as JSON; None if it has none."""
    digest: str = ""
    """Digest of both agents, the input and the last result of a tool: equal for a repetition without progress."""


@dataclass(slots=True)
class TeamContext:
    """The data of a run of a team. The names that it shares with `LoopContext` mean the same."""

    messages: list[Message]
    """The conversation, without the instructions of the agents. It only grows."""
    limits: Limits
    base: int
    agent: str
    """Name of the agent that has the conversation."""
    instructions: str | None = None
    """Instructions of this run instead of those of the first agent."""
    first: str = ""
    """Name of the agent to which the options of the run apply: its own."""
    recalled: tuple[int, int] = (0, 0)
    handoffs: tuple[HandoffRecord, ...] = ()
    """The handoffs so far. The next segment has the number after theirs."""
    proposed: HandoffRecord | None = None
    """The handoff on which `may_hand_over` decides, until the agent has taken over."""
    opening: list[dict[str, Any]] | None = None
    """Messages with which the segment begins, in OpenAI form; None: with the whole conversation."""
    iteration: int = 0
    """Answers of the models so far, of all segments."""
    spent: RunUsage = field(default_factory=RunUsage)
    ended: Ending | None = None
    """Outcome and reason of the last segment, if it ended the run."""
    verdict: Verdict | None = None
    output: Any = None
    finish_reason: FinishReason | None = None
    vendor_finish_reason: str | None = None
    tool_errors: tuple[Any, ...] = ()
    """The last exceptions of tools of all segments, each a `ToolError`. The records of the segments have them."""
    fault: str | None = None
    degraded: bool = False
    remembered: bool = False
    conversation_id: str | None = None
    deadline: float = 0.0

    def segment_id(self, run_id: str) -> str:
        """Return the id of the present segment of the run `run_id`."""
        return f"{run_id}:s{len(self.handoffs) + 1}"

    @property
    def in_segment(self) -> bool:
        """Whether the present segment is not part of the conversation yet: it may run, or has not started."""
        return self.proposed is None and self.ended is None
