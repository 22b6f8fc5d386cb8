"""The graph of a team, the graph of its members, the guard of a handoff, and the endings.

A member is an agent of the LLM loop. If it can hand over, its loop has one edge more (`with_handoffs`): the event
`hand_over` leaves `update_budgets`, after all calls of the turn have their results, and ends the segment. The graph
`LLM_LOOP` itself stays as it is, so agents without handoffs pay nothing and their open runs continue.
"""

from __future__ import annotations

from typing import Any

from orchestrator.errors import CancelRequested, DeadlineExceeded, LimitReached, Refused, RejectRequested
from orchestrator.kernel.graph import Edge, Graph, bounding
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.failing import reason_of
from orchestrator.machines.llm_loop.graph import BUDGET_OF, LLM_LOOP, whole_budgets
from orchestrator.machines.llm_loop.model import LoopContext, LoopState
from orchestrator.machines.team.model import TEAM_GRAPH, TeamContext, TeamEvent, TeamState
from orchestrator_guards import Verdict, first_refusal, handoffs, repeated_handoff

E = TeamEvent
S = TeamState


@bounding
def may_hand_over(ctx: TeamContext) -> Verdict:
    """Return the first refusal of a further segment, or the verdict on the number of handoffs.

    The segments of a run share its budgets. A handoff that repeats an earlier one, with the same input and after the
    same last result, counts as a turn without progress does.
    """
    proposed = ctx.proposed
    repeats = sum(proposed is not None and one.digest == proposed.digest for one in ctx.handoffs)
    return handoff_verdict(ctx, len(ctx.handoffs), repeats)


def handoff_verdict(ctx: LoopContext | TeamContext, taken: int, repeats: int) -> Verdict:
    """Return the verdict of `may_hand_over` after so many handoffs, of which some equal the proposed one."""
    asked = [
        handoffs(taken, ctx.limits.max_handoffs),
        repeated_handoff(repeats, ctx.limits.max_no_progress),
        *whole_budgets(ctx),
    ]
    refusal = first_refusal(asked)
    return asked[0] if refusal is None else refusal


TEAM = Graph(
    name=TEAM_GRAPH,
    states=TeamState,
    events=TeamEvent,
    initial=S.INIT,
    terminal=frozenset((S.FINALIZE, S.TERMINATE_ERROR)),
    failure=E.FAILURE,
    context=TeamContext,
    dwell={
        S.INIT: (60.0, E.FAILURE),
        S.WORKING: None,  # a segment has limits of its own, and may wait for a person
        S.HANDING_OVER: (60.0, E.FAILURE),
        S.FINALIZE: (120.0, E.FAILURE),
    },
    edges=(
        #    event          from                                                 to                  only when
        Edge(E.START,      (S.INIT,),                                           S.WORKING),
        Edge(E.HAND_OVER,  (S.WORKING,),                                        S.HANDING_OVER,     may_hand_over),
        Edge(E.TAKE_OVER,  (S.HANDING_OVER,),                                   S.WORKING),
        Edge(E.ANSWERED,   (S.WORKING,),                                        S.FINALIZE),
        Edge(E.FAILURE,    (S.INIT, S.WORKING, S.HANDING_OVER, S.FINALIZE),     S.TERMINATE_ERROR),
    ),
)  # fmt: skip
"""The graph of a team. The work of `working` is one segment."""


def with_handoffs(graph: Graph) -> Graph:
    """Return the graph of an agent's loop with the event that ends a segment. Raises GraphError."""
    edge = Edge(E.HAND_OVER, (LoopState.UPDATE_BUDGETS,), LoopState.FINALIZE)
    return graph.extend(events=(E.HAND_OVER.value,), edges=(edge,))


LLM_LOOP_WITH_HANDOFFS = with_handoffs(LLM_LOOP)
"""The graph of an agent that can hand over."""


# ---- endings ----


def ending(run: Run[TeamContext, Any]) -> Ending:
    """Return outcome and reason of a run in a terminal state: those of its last segment, unless the run was stopped."""
    ctx, error = run.ctx, run.error
    if ctx.ended is not None and (error is None or ctx.ended.outcome is not Outcome.COMPLETED):
        degraded = ctx.degraded and ctx.ended == (Outcome.COMPLETED, "none")
        return Ending(Outcome.COMPLETED, "memory_degraded") if degraded else Ending(*ctx.ended)
    return _stopped(run)


def _stopped(run: Run[TeamContext, Any]) -> Ending:
    error = run.error
    if isinstance(error, RejectRequested):
        return Ending(Outcome.REJECTED, "operator")
    if isinstance(error, CancelRequested):
        return Ending(Outcome.CANCELLED, error.reason)
    if isinstance(error, DeadlineExceeded):
        return Ending(Outcome.BUDGET_EXCEEDED, "time")
    verdict = refusal(run)
    if verdict is None:
        return Ending(Outcome.FAILED, reason_of(run, error))
    if verdict.guard == "repeated_handoff":
        return Ending(Outcome.NO_PROGRESS, "stalled")
    return Ending(Outcome.BUDGET_EXCEEDED, BUDGET_OF[verdict.guard])


def refusal(run: Run[TeamContext, Any]) -> Verdict | None:
    """Return the refusal that ended a run, of a handoff or in its last segment, if any."""
    error = run.error
    if isinstance(error, LimitReached | Refused) and isinstance(error.verdict, Verdict):
        return error.verdict if error.verdict.guard in {*BUDGET_OF, "repeated_handoff"} else None
    return run.ctx.verdict
