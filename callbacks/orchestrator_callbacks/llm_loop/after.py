"""`after_<event>`: what is remembered of a run that did not end well."""

from __future__ import annotations

from orchestrator_callbacks.llm_loop import memory
from orchestrator_callbacks.llm_loop.deps import LoopRun


async def after_failure(run: LoopRun) -> None:
    """Keep a failure episode."""
    await memory.store_failure(run)


async def after_budget_exceeded(run: LoopRun) -> None:
    """Keep a failure episode: running out is a failure too (D6)."""
    await memory.store_failure(run)
