"""`next_state(state, event)`: a pure function with the same graph, guards and context changes as a run.

Side effects (calling agents, writing progress.md) are the work of the hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from orchestrator.errors import InvalidEvent, UnknownEvent
from orchestrator.kernel.graph import Edge
from orchestrator.machines.ralph import step
from orchestrator.machines.ralph.contract import (
    AgentOutput,
    CheckerOutput,
    ExecutorOutput,
    PlannerOutput,
    ReviewerOutput,
    ReviewerStatus,
)
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.limits import RalphLimits
from orchestrator.machines.ralph.model import (
    TRIGGERS,
    OrchestratorState,
    RalphContext,
    RalphEvent,
    RalphState,
    TaskCounts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorEvent:
    """An input event. `type` is one of the triggers: session_resolved, task_selected and so on."""

    type: str
    output: AgentOutput | None = None
    """Agent output for planner_completed, executor_completed, reviewer_completed and the holistic check."""
    is_new_session: bool = True
    """For session_resolved; give `progress` with an old session."""
    progress: TaskCounts = field(default_factory=TaskCounts)
    """Counts of progress.md, for session_resolved and no_tasks_remaining."""
    task_id: str | None = None
    """The task for task_selected; the task in review, if any, for session_resolved and no_tasks_remaining."""
    reports: int = 0
    """Number of reports of that task."""
    text: str = ""
    """Text of new_requirements and error."""


Given: TypeAlias = OrchestratorEvent | PlannerOutput | ExecutorOutput | ReviewerOutput | CheckerOutput


def next_state(
    state: OrchestratorState,
    event: Given,
    limits: RalphLimits | None = None,
    *,
    fail_on_open_questions: bool = False,
) -> OrchestratorState:
    """Return the next state of a session.

    A used-up limit leads to Failed, with the limit among the blockers.

    `event` may be the output of an agent in place of its event. `fail_on_open_questions` says whether to fail if no
    round of questions is left.

    Raises:
        UnknownEvent: The type of the event is unknown.
        InvalidEvent: The current state has no edge for the event.
    """
    given = (
        event
        if isinstance(event, OrchestratorEvent)
        else OrchestratorEvent(type=_TYPES[type(event)](event), output=event)
    )
    ctx = _context(state, limits or RalphLimits(), given)
    ctx.fail_on_open_questions = fail_on_open_questions
    chosen = _chosen(ctx, state.current_state, given)
    if chosen is None:  # a review that could not be made is requested again: the state does not change
        return state
    source = state.current_state
    edge = next((edge for at, one, _, edge in RALPH.rows if at is source and one is chosen), None)
    if edge is None:
        allowed = tuple(sorted(one.value for at, one, _, _ in RALPH.rows if at is source))
        raise InvalidEvent(graph=RALPH.name, state=source.value, event=given.type, allowed=allowed)
    if (refusal := _refusal(edge, ctx)) is not None:
        ctx.blockers = (*ctx.blockers, refusal)
        return _state(RalphState.FAILED, ctx)
    step.take(ctx, chosen, given.output)
    if chosen is RalphEvent.ERROR and given.text:
        ctx.blockers = (*ctx.blockers, given.text)
    return _state(RalphState(edge.dest), ctx)


def _chosen(ctx: RalphContext, state: RalphState, given: OrchestratorEvent) -> RalphEvent | None:
    match given.type, given.output:
        case "session_resolved", _:
            return _in_review(ctx, given, step.resolved(ctx, given.progress))
        case "planner_completed", PlannerOutput() as output:
            return step.planned(ctx, output) or RalphEvent.PLANNER_COMPLETED
        case "no_tasks_remaining", _:
            return _in_review(ctx, given, step.next_work(given.progress))
        case "task_selected", _:
            step.select(ctx, given.task_id or "", given.reports)
        case "executor_completed", ExecutorOutput() as output:
            return step.executed(ctx, output)
        case "reviewer_completed", ReviewerOutput() as output:
            return None if output.status is ReviewerStatus.ERROR else step.reviewed(ctx, output)
    try:
        return RalphEvent(given.type)
    except ValueError:
        raise UnknownEvent(
            graph=RALPH.name, state=state.value, event=given.type, known=sorted({*TRIGGERS.values()})
        ) from None


def _in_review(ctx: RalphContext, given: OrchestratorEvent, event: RalphEvent) -> RalphEvent:
    """Make the task that waits for its review the current one, if there is one."""
    if event in {RalphEvent.REVIEW_RESUMED, RalphEvent.REVIEW_PENDING} and given.task_id is not None:
        ctx.current_task_id, ctx.attempt = given.task_id, max(1, given.reports)
    return event


def _refusal(edge: Edge, ctx: RalphContext) -> str | None:
    verdict = edge.when(ctx) if edge.when is not None else True
    if verdict:
        return None
    explain = getattr(verdict, "explain", None)
    return str(explain()) if explain is not None else "there is no new request"


def _context(state: OrchestratorState, limits: RalphLimits, given: OrchestratorEvent) -> RalphContext:
    return RalphContext(
        session_id=state.session_id,
        session_path=state.session_path,
        is_new=given.is_new_session,
        limits=limits,
        current_task_id=state.current_task_id,
        attempt=state.current_attempt_number,
        blockers=state.blockers,
        qa_cycle_count=state.qa_cycle_count,
        replans=state.replans,
        requirements=(given.text or "new requirements",) if given.type == "new_requirements" else (),
    )


def _state(current: RalphState, ctx: RalphContext) -> OrchestratorState:
    return OrchestratorState(
        current_state=current,
        session_id=ctx.session_id,
        session_path=ctx.session_path,
        current_task_id=ctx.current_task_id,
        current_attempt_number=ctx.attempt,
        blockers=ctx.blockers,
        qa_cycle_count=ctx.qa_cycle_count,
        replans=ctx.replans,
    )


_TYPES: Mapping[type[AgentOutput], Callable[[Any], str]] = {
    PlannerOutput: lambda _: "planner_completed",
    ExecutorOutput: lambda _: "executor_completed",
    ReviewerOutput: lambda _: "reviewer_completed",
    CheckerOutput: lambda output: "holistic_check_passed" if output.passed else "holistic_check_failed",
}
"""Type of output -> its trigger."""
