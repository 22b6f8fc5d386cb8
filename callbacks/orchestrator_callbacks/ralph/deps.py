"""Dependencies of the ralph loop's hooks: live handles that the runtime builds, never stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from orchestrator.kernel.run import Run
from orchestrator.llm.port import Clock, Price
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.model import AgentPort, AnswerPort, RalphContext, RalphSession

Asks: TypeAlias = AnswerPort | Literal["wait", "park"] | None
"""Source of answers to questions: a callable; posted answers, waited for in this process (`wait`) or with the run
parked (`park`); None: planning continues with open questions."""


@dataclass(slots=True, kw_only=True)
class RalphDeps:
    """Handles of one run."""

    session: RalphSession
    agents: Mapping[Role, AgentPort]
    """Role -> its agent. Planner, executor and reviewer are always present."""
    clock: Clock
    retry: RetryPolicy
    """Policy for network errors; the state does not change."""
    look: Callable[[str], Awaitable[object]]
    """Passes posted messages that a run, given by its id, has not received yet to its mailbox. Raises JournalError."""
    answer: Asks = None
    price: Price | None = None
    """Prices of models, for calls whose agents report no cost."""
    host: Any = None
    """The host's own handles: `AgentRequest.deps`."""


RalphRun: TypeAlias = Run[RalphContext, RalphDeps]
