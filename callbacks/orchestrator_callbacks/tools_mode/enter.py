"""`enter_<state>`: each hook gets the event that leaves its state from the run's event source."""

from __future__ import annotations

from typing import Any

from orchestrator_callbacks.rlm.deps import ModeRun, next_event


async def enter_init(run: ModeRun) -> Any:
    """Call the model with the tools."""
    return await next_event(run)


async def enter_prompting(run: ModeRun) -> Any:
    """Check the model's reply for calls."""
    return await next_event(run)


async def enter_executing_tools(run: ModeRun) -> Any:
    """Run the calls, and call the model with the results."""
    return await next_event(run)
