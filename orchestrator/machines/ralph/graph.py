"""The graph of the ralph loop and its endings.

Beyond plan, execute, review and complete it has these edges:

- Complete → Done, the exit.
- Executing and Reviewing → Failed at the limit of attempts.
- Initializing → Reviewing and Complete, for a resumed session.
- Executing → Executing after a failed attempt without a review.
- Executing → Reviewing for a task that a crash left in review.
- An error edge from every state.

A blocked planner and a task that failed too often lead to Failed by their own edges, with the blockers kept. Every
other failure comes with an error.
"""

from __future__ import annotations

from typing import Any

from orchestrator.errors import (
    CancelRequested,
    DeadlineExceeded,
    JournalError,
    LimitReached,
    LLMError,
    Refused,
    RejectRequested,
    StateTimeout,
)
from orchestrator.kernel.graph import Edge, Graph, bounding
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.ralph.contract import AgentFailed, AgentOutputInvalid
from orchestrator.machines.ralph.model import RalphContext, RalphEvent, RalphState
from orchestrator_guards import Verdict, iterations, present, qa_cycles, replans, task_attempts

E = RalphEvent
S = RalphState


@bounding
def should_retry_task(ctx: RalphContext) -> Verdict:
    """Return the verdict on another execution of the current task after an unsuccessful attempt."""
    return task_attempts(ctx.attempt, ctx.limits.max_task_attempts)


@bounding
def should_continue_qa(ctx: RalphContext) -> Verdict:
    """Return the verdict on another round of questions and answers. Evaluated before the round."""
    return qa_cycles(ctx.qa_cycle_count, ctx.limits.max_qa_cycles)


@bounding
def may_replan(ctx: RalphContext) -> Verdict:
    """Return the verdict on a return to planning. New requests of people do not count."""
    return replans(ctx.replans, ctx.limits.max_replans)


@bounding
def may_execute(ctx: RalphContext) -> Verdict:
    """Return the verdict on another execution. Evaluated when a task is selected."""
    return iterations(ctx.iteration, ctx.limits.max_executions)


@bounding
def within_executions(ctx: RalphContext) -> Verdict:
    """Return whether the reviewed execution was within the limit.

    Always true after `may_execute`, but bounds this cycle.
    """
    return iterations(ctx.iteration - 1, ctx.limits.max_executions)


@bounding
def somebody_asks(ctx: RalphContext) -> Verdict:
    """Return whether a person's request was not passed to a planner yet.

    Each request is passed once, so this is bounded.
    """
    verdict = present(len(ctx.requirements))
    return verdict if verdict.ok else verdict._replace(detail="there is no new request")


_ACTIVE = (S.PLANNING, S.EXECUTING, S.COMPLETE)
"""States that a new requirement leads out of. A running review is completed first."""

RALPH = Graph(
    name="ralph",
    states=RalphState,
    events=RalphEvent,
    initial=S.INITIALIZING,
    terminal=frozenset((S.DONE, S.FAILED)),
    failure=E.ERROR,
    context=RalphContext,
    dwell={
        S.INITIALIZING: (60.0, E.ERROR),
        S.PLANNING: (7200.0, E.ERROR),
        S.EXECUTING: (7200.0, E.ERROR),
        S.REVIEWING: (7200.0, E.ERROR),
        S.COMPLETE: (7200.0, E.ERROR),
    },
    edges=(
        #    event                    from                           to              only when
        Edge(E.SESSION_RESOLVED,      (S.INITIALIZING,),             S.PLANNING),
        Edge(E.EXECUTION_RESUMED,     (S.INITIALIZING,),             S.EXECUTING),
        Edge(E.REVIEW_RESUMED,        (S.INITIALIZING,),             S.REVIEWING),
        Edge(E.COMPLETION_RESUMED,    (S.INITIALIZING,),             S.COMPLETE),
        Edge(E.QA_NEEDED,             (S.PLANNING,),                 S.PLANNING,     should_continue_qa, reenter=True),
        Edge(E.NEW_REQUIREMENTS,      _ACTIVE,                      S.PLANNING,     somebody_asks, reenter=True),
        Edge(E.PLANNER_COMPLETED,     (S.PLANNING,),                 S.EXECUTING),
        Edge(E.PLANNER_BLOCKED,       (S.PLANNING,),                 S.FAILED),
        Edge(E.TASK_SELECTED,         (S.EXECUTING,),                S.EXECUTING,    may_execute, reenter=True),
        Edge(E.EXECUTOR_COMPLETED,    (S.EXECUTING,),                S.REVIEWING),
        Edge(E.EXECUTOR_FAILED,       (S.EXECUTING,),                S.EXECUTING,    should_retry_task, reenter=True),
        Edge(E.EXECUTOR_BLOCKED,      (S.EXECUTING,),                S.PLANNING,     may_replan),
        Edge(E.REVIEW_PENDING,        (S.EXECUTING,),                S.REVIEWING),
        Edge(E.NO_TASKS_REMAINING,    (S.EXECUTING,),                S.COMPLETE),
        Edge(E.QUALIFIED,             (S.REVIEWING,),                S.EXECUTING,    within_executions),
        Edge(E.REWORK,                (S.REVIEWING,),                S.EXECUTING,    should_retry_task),
        Edge(E.ATTEMPTS_EXHAUSTED,    (S.EXECUTING, S.REVIEWING),    S.FAILED),
        Edge(E.HOLISTIC_CHECK_PASSED, (S.COMPLETE,),                 S.DONE),
        Edge(E.HOLISTIC_CHECK_FAILED, (S.COMPLETE,),                 S.PLANNING,     may_replan),
        Edge(E.ERROR,                 (S.INITIALIZING, S.PLANNING, S.EXECUTING, S.REVIEWING, S.COMPLETE), S.FAILED),
    ),
)  # fmt: skip
"""The graph of the ralph loop. If a guard refuses, the driver fires the error event and the run ends in Failed."""


# ---- endings ----


LIMITS = {
    "iterations": "max_iterations",
    "replans": "max_iterations",
    "task_attempts": "max_task_attempts",
    "qa_cycles": "max_qa_cycles",
}
"""Guards whose refusal ends a run as failed -> its reason."""

BUDGETS = ("tokens", "cost", "cost_unknown")
"""Guards whose refusal ends a run as budget_exceeded, with the name of the guard as its reason."""

_FAILURES: tuple[tuple[type[Exception], str], ...] = (
    (StateTimeout, "state_timeout"),
    (JournalError, "journal_error"),
    (LLMError, "llm_error"),
    (AgentOutputInvalid, "completion_invalid"),
    (AgentFailed, "stage_error"),
)

_EVENT_REASONS = {
    "guard_error": "guard_error",
    "undeclared_edge": "invalid_transition",
    "unknown_event": "invalid_transition",
    "refused": "policy_stop",
    "callback_error": "callback_error",
}
"""Reason of the first failed event -> reason of `failed`, if the type of the error gives none."""


def ending(run: Run[RalphContext, Any]) -> Ending:
    """Return outcome and reason of a run in a terminal state."""
    error = run.error
    if run.state == RalphState.DONE:
        return Ending(Outcome.COMPLETED, "none")
    if isinstance(error, RejectRequested):
        return Ending(Outcome.REJECTED, "operator")
    if isinstance(error, CancelRequested):
        return Ending(Outcome.CANCELLED, error.reason)
    if isinstance(error, DeadlineExceeded):
        return Ending(Outcome.BUDGET_EXCEEDED, "time")
    verdict = limit_of(error)
    if verdict is not None and verdict.guard in BUDGETS:
        return Ending(Outcome.BUDGET_EXCEEDED, verdict.guard)
    return Ending(Outcome.FAILED, _reason(run, error))


def limit_of(error: Exception | None) -> Verdict | None:
    """Return the refusal of one of the loop's guards in an error, or None."""
    verdict = error.verdict if isinstance(error, Refused | LimitReached) else None
    return verdict if isinstance(verdict, Verdict) and verdict.guard in {*LIMITS, *BUDGETS} else None


def _reason(run: Run[RalphContext, Any], error: Exception | None) -> str:
    if error is None:  # by its own edge: too many attempts, or a blocked planner
        return "planner_blocked" if run.ctx.verdict is None else LIMITS[run.ctx.verdict.guard]
    verdict = limit_of(error)
    if verdict is not None:
        return LIMITS[verdict.guard]
    for kind, reason in _FAILURES:
        if isinstance(error, kind):
            return reason
    if run.ctx.fault is not None:
        return run.ctx.fault
    if run.failure is None:
        return "internal"
    return _EVENT_REASONS.get(run.failure.reason, "internal")
