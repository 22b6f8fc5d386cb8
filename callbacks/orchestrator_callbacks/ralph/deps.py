"""What the hooks of the ralph loop may touch: live handles, built by the runtime, never stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from orchestrator.kernel.run import Run
from orchestrator.llm.port import Clock
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.ralph.contract import Role
from orchestrator.machines.ralph.model import RalphContext
from orchestrator.machines.ralph.ports import AgentPort, AnswerPort, RalphSession

Asks: TypeAlias = AnswerPort | Literal["wait", "park"] | None
"""Who answers questions: a callable; whoever posts an answer, waited for in place (`wait`) or by a run that is left
parked (`park`); None: nobody, planning goes on with them open."""


@dataclass(slots=True, kw_only=True)
class RalphDeps:
    """Handles of one run."""

    session: RalphSession
    agents: Mapping[Role, AgentPort]
    """Role -> who does its work. Planner, executor and reviewer are always there."""
    clock: Clock
    retry: RetryPolicy
    """For what the network breaks: the state stays as it is (R11)."""
    look: Callable[[str], Awaitable[object]]
    """Hands a run, by its id, what was posted to it and what nobody has handed to it yet. Raises JournalError."""
    answer: Asks = None
    host: Any = None
    """The host's own handles: `AgentRequest.deps`."""


RalphRun: TypeAlias = Run[RalphContext, RalphDeps]
