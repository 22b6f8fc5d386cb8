"""The Ralph loop: agents plan, execute and review the tasks of a session folder."""

from __future__ import annotations

from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.model import (
    AgentRequest,
    OrchestratorState,
    RalphEvent,
    RalphLimits,
    RalphState,
)
from orchestrator.machines.ralph.step import OrchestratorEvent, next_state
from orchestrator.runtime.ralph.coding_agent import (
    CodingAgent,
    CodingAnswer,
    CodingCall,
    CodingPreset,
    CommandAgent,
)
from orchestrator.runtime.ralph.prompt_agent import PromptAgent
from orchestrator.runtime.ralph.ralph import Ralph, RalphOrchestrator, RalphResult

__all__ = [
    "RALPH",
    "AgentRequest",
    "CodingAgent",
    "CodingAnswer",
    "CodingCall",
    "CodingPreset",
    "CommandAgent",
    "OrchestratorEvent",
    "OrchestratorState",
    "PromptAgent",
    "Ralph",
    "RalphEvent",
    "RalphLimits",
    "RalphOrchestrator",
    "RalphResult",
    "RalphState",
    "next_state",
]
