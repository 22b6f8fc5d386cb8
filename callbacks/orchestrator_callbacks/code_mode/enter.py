"""`enter_<state>`: each hook gets the event that leaves its state from the run's event source."""

from __future__ import annotations

from typing import Any

from orchestrator_callbacks.rlm.deps import ModeRun, next_event


async def enter_init(run: ModeRun) -> Any:
    """Call the model, or report that the run is too deep for turns."""
    return await next_event(run)


async def enter_shallow_call(run: ModeRun) -> Any:
    """Call the model once."""
    return await next_event(run)


async def enter_prompting(run: ModeRun) -> Any:
    """Parse the model's reply."""
    return await next_event(run)


async def enter_executing(run: ModeRun) -> Any:
    """Run the code, and call the model with the results."""
    return await next_event(run)
