"""The graph of the ralph loop.

Beyond plan, execute, review and complete it has these edges:

- Complete → Done, the exit.
- Executing and Reviewing → Failed at the limit of attempts.
- Initializing → Reviewing and Complete, for a resumed session.
- Executing → Executing after a failed attempt without a review.
- Executing → Reviewing for a task that a crash left in review.
- An error edge from every state.
"""

from __future__ import annotations

from orchestrator.kernel.graph import Edge, Graph, bounding
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
