"""`leave_state`: the note of each transition with the tokens of the stage and the reason of the transition."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.kernel.fact import TransitionNote
from orchestrator.machines.pipeline.graph import limit_of
from orchestrator.machines.pipeline.model import PipelineEvent
from orchestrator_callbacks.pipeline import stage
from orchestrator_callbacks.pipeline.stage import PipelineRun

REASONS: Mapping[str, str] = {
    PipelineEvent.PLAN_INVALID: "Validation failed, retrying with feedback",
    PipelineEvent.SOFT_FAILURE: "Soft failure, refining implementation",
    PipelineEvent.HARD_FAILURE: "Hard failure, replanning",
    PipelineEvent.BUDGET_EXHAUSTED: "Token budget exhausted",
}
"""Event -> reason."""


async def leave_state(run: PipelineRun) -> None:
    """Add the tokens of the stage to the transition. A visit without a stage used none."""
    done = stage.done_here(run)
    event = run.step.event if run.step else None
    reason = _why(run) if event == PipelineEvent.FAILURE else REASONS.get(str(event), "")
    run.annotate(TransitionNote(done.tokens if done else 0, reason))


def _why(run: PipelineRun) -> str:
    """Return the limit, or the type of the error: the text of an error may be confidential, and this is logged."""
    if limit_of(run.error) is not None:
        return "max_iterations"
    done = stage.done_here(run)
    name = done.error if done and done.error else type(run.error).__name__
    return f"{run.cursor.state} failed: {name}"
