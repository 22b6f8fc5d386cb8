"""The table of the ralph loop: seed 002's rows, and the edges that its tables imply and its diagram lacks (R1–R14).

Where diagram and tables differ the tables win (R3). Ours are: the exit (R1), Reviewing and Executing → Failed at the
limit of attempts (R4), Initializing → Reviewing and Complete (R5), Executing → Executing for an attempt that failed
without a review (R7), Executing → Reviewing for what a crash left in review (R12), and an error from every state.
"""

from __future__ import annotations

from orchestrator.kernel.graph import Edge, Graph, bounding
from orchestrator.machines.ralph.model import RalphContext, RalphEvent, RalphState
from orchestrator_guards import Verdict, iterations, qa_cycles, replans, task_attempts

E = RalphEvent
S = RalphState


@bounding
def should_retry_task(ctx: RalphContext) -> Verdict:
    """May the current task be executed once more? Its present attempt was not good enough."""
    return task_attempts(ctx.attempt, ctx.limits.max_task_attempts)


@bounding
def should_continue_qa(ctx: RalphContext) -> Verdict:
    """May there be another round of questions and answers? Asked before it."""
    return qa_cycles(ctx.qa_cycle_count, ctx.limits.max_qa_cycles)


@bounding
def may_replan(ctx: RalphContext) -> Verdict:
    """May the run go back to planning once more? People who ask for something new are not counted."""
    return replans(ctx.replans, ctx.limits.max_replans)


@bounding
def may_execute(ctx: RalphContext) -> Verdict:
    """May another execution be begun? Asked when a task is selected."""
    return iterations(ctx.iteration, ctx.limits.max_executions)


@bounding
def within_executions(ctx: RalphContext) -> Verdict:
    """Was the execution that was reviewed one that may be? Always so after `may_execute`: it bounds this cycle too."""
    return iterations(ctx.iteration - 1, ctx.limits.max_executions)


@bounding
def somebody_asks(ctx: RalphContext) -> bool:
    """Is there a request of a person that no planner has heard? People set the pace here; each is heard once."""
    return bool(ctx.requirements)


_ASKED = (S.PLANNING, S.EXECUTING, S.COMPLETE)
"""States that a new requirement leads out of; a review under way is ended first (R14)."""

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
        Edge(E.NEW_REQUIREMENTS,      _ASKED,                        S.PLANNING,     somebody_asks, reenter=True),
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
"""Seed 002's machine. A guard that says no sends the run to Failed: the driver fires the error event then."""
