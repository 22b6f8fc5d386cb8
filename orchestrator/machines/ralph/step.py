"""The decisions and context changes of each event, which the hooks and `next_state` share. Pure.

`planned`, `executed`, `reviewed`, `checked` and `resolved` choose the event; `take` changes the context for it.
`next_state(state, event)` has the same graph, guards and context changes as a run. Side effects (calling agents,
writing progress.md) are the work of the hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from orchestrator.errors import InvalidEvent, UnknownEvent
from orchestrator.machines.ralph.contract import (
    AgentOutput,
    CheckerOutput,
    DiscoveredTask,
    ExecutorOutput,
    ExecutorStatus,
    NextAction,
    PlannerMode,
    PlannerOutput,
    PlannerStatus,
    QuestionerMode,
    ReviewerOutput,
    ReviewerStatus,
    ReviewVerdict,
)
from orchestrator.machines.ralph.graph import RALPH, should_continue_qa, should_retry_task
from orchestrator.machines.ralph.model import (
    TRIGGERS,
    MissingTask,
    OrchestratorState,
    RalphContext,
    RalphEvent,
    RalphLimits,
    RalphState,
    TaskCounts,
)

E = RalphEvent

# ---- choice of the event ----


def resolved(ctx: RalphContext, stands: TaskCounts) -> RalphEvent:
    """Return the event with which a session continues: new or resumed.

    A pending review comes first, then a started task, then planning. A request to an old session is planned.
    """
    if stands.review:
        return E.REVIEW_RESUMED
    if stands.active:
        return E.EXECUTION_RESUMED
    if ctx.is_new or ctx.requirements or stands.planning:
        return E.SESSION_RESOLVED
    if stands.open:
        return E.EXECUTION_RESUMED
    return E.COMPLETION_RESUMED if stands.complete else E.SESSION_RESOLVED


def planned(ctx: RalphContext, output: PlannerOutput) -> RalphEvent | None:
    """Return the event after a planner's answer; new requests of people are planned first.

    None if the planner asks questions, no round is left, and it has to plan anyway.
    """
    if output.status is PlannerStatus.BLOCKED:
        return E.PLANNER_BLOCKED
    if output.status is PlannerStatus.COMPLETED:
        return E.NEW_REQUIREMENTS if len(ctx.requirements) > ctx.told else E.PLANNER_COMPLETED
    if should_continue_qa(ctx).ok or ctx.fail_on_open_questions:
        return E.QA_NEEDED  # the guard of its edge refuses when no round is left
    return None


def next_work(stands: TaskCounts) -> RalphEvent:
    """Return the event when no task is left to execute: complete only if all are done."""
    if stands.review:
        return E.REVIEW_PENDING
    return E.NO_TASKS_REMAINING if stands.complete else E.EXECUTOR_BLOCKED


def executed(ctx: RalphContext, output: ExecutorOutput) -> RalphEvent:
    """Return the event after an execution. A failed one is repeated without a review, up to the limit."""
    if output.status is ExecutorStatus.COMPLETED:
        return E.EXECUTOR_COMPLETED
    if output.status is ExecutorStatus.BLOCKED:
        return E.EXECUTOR_BLOCKED
    return E.EXECUTOR_FAILED if should_retry_task(ctx).ok else E.ATTEMPTS_EXHAUSTED


def reviewed(ctx: RalphContext, output: ReviewerOutput | None) -> RalphEvent:
    """Return the event after a review, or without a report (None): rework up to the limit of attempts."""
    if output is not None and output.verdict is ReviewVerdict.QUALIFIED:
        return E.QUALIFIED
    return E.REWORK if should_retry_task(ctx).ok else E.ATTEMPTS_EXHAUSTED


def checked(ctx: RalphContext, output: CheckerOutput) -> RalphEvent:
    """Return the event after the holistic check. A pass does not cover requests that came after it."""
    if ctx.requirements:
        return E.NEW_REQUIREMENTS
    return E.HOLISTIC_CHECK_PASSED if output.passed else E.HOLISTIC_CHECK_FAILED


# ---- context changes ----


def take(ctx: RalphContext, event: RalphEvent, output: AgentOutput | None = None) -> None:
    """Change the context for `event`; `output` is the agent's answer that led to it."""
    ctx.about = (ctx.current_task_id, ctx.attempt)
    change = _CHANGES.get(event)
    if change is not None:
        change(ctx, output)
    ctx.answers = ()


def select(ctx: RalphContext, task_id: str, reports: int) -> None:
    """Select the next task to execute.

    The attempt follows from the reports, and is at least the one that rework counted.
    """
    kept = ctx.attempt if task_id == ctx.current_task_id else 0
    if task_id != ctx.current_task_id:
        ctx.feedback = ""
    ctx.current_task_id, ctx.attempt = task_id, max(1, kept, reports + 1)


def _qa(ctx: RalphContext, output: AgentOutput | None) -> None:
    ctx.qa_cycle_count += 1
    ctx.asking, ctx.mode = True, PlannerMode.DISCOVERY
    wished = (_QA_MODES.get(action) for action in getattr(output, "next_actions", ()))
    ctx.qa_modes = tuple(mode for mode in wished if mode is not None) or (QuestionerMode.BRAINSTORM,)


def _resolved(ctx: RalphContext, _: AgentOutput | None) -> None:
    ctx.mode = PlannerMode.INITIALIZE if ctx.is_new else PlannerMode.UPDATE


def _planned(ctx: RalphContext, _: AgentOutput | None) -> None:
    ctx.blockers, ctx.summary, ctx.found, ctx.asking = (), "", (), False
    ctx.requirements, ctx.told = ctx.requirements[ctx.told :], 0
    _put_down(ctx)


def _blocked_plan(ctx: RalphContext, output: AgentOutput | None) -> None:
    ctx.blockers = getattr(output, "blockers", ()) or ("the planner is blocked and does not say by what",)


def _selected(ctx: RalphContext, _: AgentOutput | None) -> None:
    ctx.iteration += 1
    ctx.selected = True
    ctx.about = (ctx.current_task_id, ctx.attempt)


def _executed(ctx: RalphContext, output: AgentOutput | None) -> None:
    ctx.selected = False
    ctx.found = _with(ctx.found, getattr(output, "discovered_tasks", ()))


def _execution_failed(ctx: RalphContext, output: AgentOutput | None) -> None:
    blockers: tuple[str, ...] = getattr(output, "blockers", ())
    _again(ctx, "; ".join(blockers) or "the executor said that it failed, and not why")


def _execution_blocked(ctx: RalphContext, output: AgentOutput | None) -> None:
    ctx.blockers = getattr(output, "blockers", ()) or ctx.blockers
    _replan(ctx)


def _qualified(ctx: RalphContext, _: AgentOutput | None) -> None:
    ctx.qualified += 1
    ctx.feedback, ctx.found = "", ()
    _put_down(ctx)


def _rework(ctx: RalphContext, output: AgentOutput | None) -> None:
    _again(ctx, _complaint(output))


def _exhausted(ctx: RalphContext, output: AgentOutput | None) -> None:
    said = (
        _complaint(output)
        if output is None or isinstance(output, ReviewerOutput)
        else "; ".join(getattr(output, "blockers", ()))
    )
    ctx.blockers = (f"{ctx.current_task_id} failed {ctx.attempt} times: {said or 'nobody says why'}",)
    ctx.verdict = should_retry_task(ctx)
    ctx.selected, ctx.found = False, ()


def _unfinished(ctx: RalphContext, output: AgentOutput | None) -> None:
    ctx.summary = getattr(output, "summary", "")
    ctx.found = _with((), getattr(output, "missing_tasks", ()))
    _replan(ctx)


def _finished(ctx: RalphContext, output: AgentOutput | None) -> None:
    ctx.summary = getattr(output, "summary", "")


def _questions_answered(ctx: RalphContext, _: AgentOutput | None) -> None:
    ctx.mode, ctx.told = PlannerMode.UPDATE, 0
    _put_down(ctx)


def _again(ctx: RalphContext, feedback: str) -> None:
    """Schedule another execution of the current task with the next attempt number."""
    ctx.reworks += 1
    ctx.attempt += ctx.current_task_id is not None
    ctx.selected, ctx.feedback, ctx.found = False, feedback, ()


def _replan(ctx: RalphContext) -> None:
    ctx.replans += 1
    ctx.mode = PlannerMode.UPDATE
    _put_down(ctx)


def _put_down(ctx: RalphContext) -> None:
    """Clear the current task, so that the next one is selected."""
    ctx.current_task_id, ctx.attempt, ctx.selected = None, 0, False


def _complaint(output: AgentOutput | None) -> str:
    """Return the findings of a review as text for the executor."""
    if not isinstance(output, ReviewerOutput):
        return "its report was missing when it was to be reviewed"
    unmet = [
        f"not met: {one.criterion}{f' ({one.finding})' if one.finding else ''}"
        for one in output.criteria_results
        if not one.met
    ]
    said = [one for one in (output.feedback, *output.issues, *unmet) if one]
    return "\n".join(said) or "the review failed it, and does not say why"


def _with(found: tuple[MissingTask, ...], more: Sequence[DiscoveredTask]) -> tuple[MissingTask, ...]:
    return (*found, *((one.id, one.description, one.rationale) for one in more))


_QA_MODES: Mapping[NextAction, QuestionerMode] = {
    NextAction.QA_BRAINSTORM: QuestionerMode.BRAINSTORM,
    NextAction.QA_RESEARCH: QuestionerMode.RESEARCH,
}

_CHANGES: Mapping[RalphEvent, Callable[[RalphContext, AgentOutput | None], None]] = {
    E.SESSION_RESOLVED: _resolved,
    E.QA_NEEDED: _qa,
    E.PLANNER_COMPLETED: _planned,
    E.PLANNER_BLOCKED: _blocked_plan,
    E.NEW_REQUIREMENTS: _questions_answered,
    E.TASK_SELECTED: _selected,
    E.EXECUTOR_COMPLETED: _executed,
    E.EXECUTOR_FAILED: _execution_failed,
    E.EXECUTOR_BLOCKED: _execution_blocked,
    E.NO_TASKS_REMAINING: lambda ctx, _: _put_down(ctx),
    E.QUALIFIED: _qualified,
    E.REWORK: _rework,
    E.ATTEMPTS_EXHAUSTED: _exhausted,
    E.HOLISTIC_CHECK_PASSED: _finished,
    E.HOLISTIC_CHECK_FAILED: _unfinished,
}


# ---- next_state ----


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
    ctx = RalphContext(
        session_id=state.session_id,
        session_path=state.session_path,
        is_new=given.is_new_session,
        limits=limits or RalphLimits(),
        current_task_id=state.current_task_id,
        attempt=state.current_attempt_number,
        blockers=state.blockers,
        qa_cycle_count=state.qa_cycle_count,
        replans=state.replans,
        requirements=(given.text or "new requirements",) if given.type == "new_requirements" else (),
    )
    ctx.fail_on_open_questions = fail_on_open_questions
    chosen = _chosen(ctx, state.current_state, given)
    if chosen is None:  # a review that could not be made is requested again: the state does not change
        return state
    source = state.current_state
    edge = next((edge for at, one, _, edge in RALPH.rows if at is source and one is chosen), None)
    if edge is None:
        allowed = tuple(sorted(one.value for at, one, _, _ in RALPH.rows if at is source))
        raise InvalidEvent(graph=RALPH.name, state=source.value, event=given.type, allowed=allowed)
    verdict = edge.when(ctx) if edge.when is not None else True
    if not verdict:
        explain = getattr(verdict, "explain", None)
        why = "there is no new request" if explain is None else str(explain())
        ctx.blockers = (*ctx.blockers, why)
        return _state(RalphState.FAILED, ctx)
    take(ctx, chosen, given.output)
    if chosen is RalphEvent.ERROR and given.text:
        ctx.blockers = (*ctx.blockers, given.text)
    return _state(RalphState(edge.dest), ctx)


def _chosen(ctx: RalphContext, state: RalphState, given: OrchestratorEvent) -> RalphEvent | None:
    match given.type, given.output:
        case "session_resolved", _:
            return _in_review(ctx, given, resolved(ctx, given.progress))
        case "planner_completed", PlannerOutput() as output:
            return planned(ctx, output) or RalphEvent.PLANNER_COMPLETED
        case "no_tasks_remaining", _:
            return _in_review(ctx, given, next_work(given.progress))
        case "task_selected", _:
            select(ctx, given.task_id or "", given.reports)
        case "executor_completed", ExecutorOutput() as output:
            return executed(ctx, output)
        case "reviewer_completed", ReviewerOutput() as output:
            return None if output.status is ReviewerStatus.ERROR else reviewed(ctx, output)
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
