"""Handoffs of a conversation from one agent to another, and the graph of their runs."""

from __future__ import annotations

from orchestrator.machines.team.graph import LLM_LOOP_WITH_HANDOFFS, TEAM
from orchestrator.machines.team.model import HandoffRecord, TeamEvent, TeamState
from orchestrator.runtime.team.handoff import Handoff, handoff

__all__ = [
    "LLM_LOOP_WITH_HANDOFFS",
    "TEAM",
    "Handoff",
    "HandoffRecord",
    "TeamEvent",
    "TeamState",
    "handoff",
]
