"""`enter_<state>`: each asks the run's event source for the event that leaves its state."""

from __future__ import annotations

from typing import Any

from orchestrator_callbacks.rlm.deps import ModeRun, next_event


async def enter_init(run: ModeRun) -> Any:
    """Begin: ask the model, or say that the run is too deep for turns of its own."""
    return await next_event(run)


async def enter_shallow_call(run: ModeRun) -> Any:
    """Ask the model once."""
    return await next_event(run)


async def enter_prompting(run: ModeRun) -> Any:
    """Read what the model said."""
    return await next_event(run)


async def enter_executing(run: ModeRun) -> Any:
    """Run the code, and ask the model what it says to that."""
    return await next_event(run)
