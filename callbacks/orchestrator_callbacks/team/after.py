"""`after_<event>`: memory of failed runs."""

from __future__ import annotations

from orchestrator_callbacks.llm_loop import memory
from orchestrator_callbacks.team.deps import TeamRun


async def after_failure(run: TeamRun) -> None:
    """Store a failure episode."""
    await memory.store_failure(run)
