"""`before_<event>`: the conversation of a run that is stopped."""

from __future__ import annotations

from orchestrator_callbacks.team.deps import TeamRun
from orchestrator_callbacks.team.enter import add_segment


async def before_failure(run: TeamRun) -> None:
    """Add a segment that was stopped with the run to the conversation, so that the record of the failure has it."""
    if run.ctx.in_segment and (end := await run.deps.last_segment(run)) is not None:
        add_segment(run, end)
