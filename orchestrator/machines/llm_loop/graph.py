"""The graph of the LLM loop: states, events, edges, the guards that read the context, and the endings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from orchestrator.errors import (
    CancelRequested,
    DeadlineExceeded,
    GuardrailRefused,
    LimitReached,
    Refused,
    RejectRequested,
)
from orchestrator.kernel.graph import Edge, Graph, bounding
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.failing import completed, reason_of
from orchestrator.machines.llm_loop.model import LoopContext, LoopEvent, LoopState, TurnDecision
from orchestrator_guards import (
    Verdict,
    cost,
    elapsed,
    first_refusal,
    input_tokens,
    iterations,
    output_tokens,
    progress,
    reserve,
    restarts,
    tool_errors,
)

if TYPE_CHECKING:
    from orchestrator.machines.team.model import TeamContext  # it imports the model of the loop

E = LoopEvent
S = LoopState


def verdicts(ctx: LoopContext, moved: Verdict | None = None) -> list[Verdict]:
    """Evaluate every budget and progress guard for another turn. Disabled limits are not evaluated.

    The guards about the run's behaviour come first and iterations last. If a wrap-up turn is reserved, the guards get
    the limit minus its share, so that the turn still fits. `moved` is the verdict of the progress guard if it was
    evaluated already.
    """
    limits, spent = ctx.limits, ctx.spent
    share = limits.wrap_up_share if limits.wrap_up_turns else 0.0
    turns = limits.max_iterations
    seen = ctx.progress
    asked: list[Verdict] = []
    if seen.error_streaks and limits.max_tool_errors:
        tool, streak = max(seen.error_streaks.items(), key=lambda item: item[1])
        asked.append(tool_errors(tool, streak, limits.max_tool_errors))
    if limits.max_no_progress and ctx.turns:
        asked.append(progress(ctx.turns, limits.max_no_progress) if moved is None else moved)
    if limits.max_input_tokens:
        asked.append(input_tokens(spent.total.input_tokens, reserve(limits.max_input_tokens, share)))
    if limits.max_output_tokens:
        asked.append(output_tokens(spent.total.output_tokens, reserve(limits.max_output_tokens, share)))
    if limits.max_cost:
        asked.append(cost(spent.total.cost_for_limits, reserve(limits.max_cost_micros, share)))
    if limits.max_seconds:
        asked.append(elapsed(spent.seconds, reserve(limits.max_seconds, share)))
    asked.append(iterations(ctx.iteration, turns - limits.wrap_up_turns if turns > 1 else turns))
    return asked


def whole_budgets(ctx: LoopContext | TeamContext) -> list[Verdict]:
    """Evaluate the full budgets, iterations last. If one is completely used, not even a wrap-up turn fits."""
    limits, spent = ctx.limits, ctx.spent
    asked: list[Verdict] = []
    if limits.max_input_tokens:
        asked.append(input_tokens(spent.total.input_tokens, limits.max_input_tokens))
    if limits.max_output_tokens:
        asked.append(output_tokens(spent.total.output_tokens, limits.max_output_tokens))
    if limits.max_cost:
        asked.append(cost(spent.total.cost_for_limits, limits.max_cost_micros))
    if limits.max_seconds:
        asked.append(elapsed(spent.seconds, limits.max_seconds))
    asked.append(iterations(ctx.iteration, limits.max_iterations))
    return asked


def decision_in_force(ctx: LoopContext) -> TurnDecision | None:
    """Return the decision that allowed another turn.

    None without a decision, and if the run has used more since then or has other limits.
    """
    made, spent = ctx.decision, ctx.spent
    if made is None or made.iteration != ctx.iteration or made.seconds != spent.seconds:
        return None
    used = spent.usage if spent.below is None else spent.total
    same = made.limits is ctx.limits and (made.used is used or made.used == used)
    return made if same else None


@bounding
def may_continue(ctx: LoopContext) -> Verdict:
    """Return the first refusal of any guard for another turn, or the verdict on iterations.

    If a hook has evaluated the guards already, its decision is returned.
    """
    if ctx.verdict is not None and not ctx.wrapping_up:
        return ctx.verdict
    made = decision_in_force(ctx)
    if made is not None and not made.restart:
        return made.verdict
    asked = whole_budgets(ctx) if ctx.wrapping_up else verdicts(ctx)
    refusal = first_refusal(asked)
    return asked[-1] if refusal is None else refusal  # a refusal is falsy, so `or` would be wrong here


@bounding
def may_restart(ctx: LoopContext) -> Verdict:
    """Return the verdict on a restart of the loop. Restarts have their own limit and give no iterations back.

    If a hook has evaluated these guards already, its decision is returned.
    """
    made = decision_in_force(ctx)
    return made.verdict if made is not None and made.restart else restart_budgets(ctx)[-1]


def restart_budgets(ctx: LoopContext) -> list[Verdict]:
    """Evaluate the limits of a restart: restarts and then iterations, up to the first refusal."""
    limits = ctx.limits
    # 0 is unlimited for the guard, but off here
    asked = [restarts(ctx.spent.restarts, limits.max_restarts or _NONE)]
    if asked[0]:
        asked.append(iterations(ctx.iteration, limits.max_iterations))
    return asked


_NONE = -1
"""A limit that refuses everything."""


_WORKING = (S.INIT, S.AWAIT_LLM, S.EVALUATE_RESPONSE, S.PROCESS_TOOLS, S.UPDATE_BUDGETS, S.HANDLE_COMPLETION)

LLM_LOOP = Graph(
    name="llm_loop",
    states=LoopState,
    events=LoopEvent,
    initial=S.INIT,
    terminal=frozenset((S.FINALIZE, S.TERMINATE_ERROR)),
    failure=E.FAILURE,
    pure=frozenset((S.EVALUATE_RESPONSE, S.UPDATE_BUDGETS, S.HANDLE_COMPLETION)),
    context=LoopContext,
    dwell={
        S.INIT: (60.0, E.FAILURE),
        S.AWAIT_LLM: (600.0, E.FAILURE),
        S.EVALUATE_RESPONSE: (60.0, E.FAILURE),
        S.PROCESS_TOOLS: (1800.0, E.FAILURE),
        S.UPDATE_BUDGETS: (60.0, E.FAILURE),
        S.HANDLE_COMPLETION: (60.0, E.FAILURE),
        S.FINALIZE: (120.0, E.FAILURE),
    },
    edges=(
        #    event                   from                     to                    only when
        Edge(E.START_LOOP,          (S.INIT,),               S.AWAIT_LLM),
        Edge(E.LLM_RESPONSE,        (S.AWAIT_LLM,),          S.EVALUATE_RESPONSE),
        Edge(E.RESPONSE_NO_TOOL,    (S.EVALUATE_RESPONSE,),  S.HANDLE_COMPLETION),
        Edge(E.RESPONSE_WITH_TOOLS, (S.EVALUATE_RESPONSE,),  S.PROCESS_TOOLS),
        Edge(E.TOOLS_EXECUTED,      (S.PROCESS_TOOLS,),      S.UPDATE_BUDGETS),
        Edge(E.BUDGET_OK,           (S.UPDATE_BUDGETS,),     S.AWAIT_LLM,          may_continue),
        Edge(E.RESTART_LOOP,        (S.UPDATE_BUDGETS,),     S.AWAIT_LLM,          may_restart),
        Edge(E.BUDGET_EXCEEDED,     (S.UPDATE_BUDGETS,),     S.TERMINATE_ERROR),
        Edge(E.COMPLETION_RETRY,    (S.HANDLE_COMPLETION,),  S.AWAIT_LLM,          may_continue),
        Edge(E.COMPLETION_SUCCESS,  (S.HANDLE_COMPLETION,),  S.FINALIZE),
        Edge(E.FAILURE,             (*_WORKING, S.FINALIZE), S.TERMINATE_ERROR),
    ),
)  # fmt: skip
"""The graph of the loop. `failure` also leaves init and finalize, so that no error is lost."""


# ---- endings ----


BUDGET_OF = {
    "iterations": "max_iterations",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cost": "cost",
    "cost_unknown": "cost_unknown",
    "elapsed": "time",
    "tool_calls": "tool_calls",
    "tool_cap": "tool_calls",
    "tool_errors": "tool_errors",
    "retries": "retries",
    "handoffs": "handoffs",
}
"""Guard -> reason of `budget_exceeded`."""

STALL_OF = {"no_progress": "stalled", "repeated_success": "repeated_success"}
"""Guard -> reason of `no_progress`."""


def ending(run: Run[LoopContext, Any]) -> Ending:
    """Return outcome and reason of a run in a terminal state."""
    ctx, error = run.ctx, run.error
    if run.state == LoopState.FINALIZE and error is None:
        handed_over = run.cursor.step is not None and run.cursor.step.event == "hand_over"
        return Ending(Outcome.COMPLETED, "handed_over") if handed_over else _answered(ctx)
    if isinstance(error, RejectRequested):
        return Ending(Outcome.REJECTED, "operator")
    if isinstance(error, CancelRequested):
        return Ending(Outcome.CANCELLED, error.reason)
    if isinstance(error, DeadlineExceeded):
        return Ending(Outcome.BUDGET_EXCEEDED, "time")
    if isinstance(error, GuardrailRefused):
        return Ending(Outcome.REJECTED if error.action == "refuse" else Outcome.FAILED, "guardrail")
    verdict = refusal(run)
    return Ending(Outcome.FAILED, reason_of(run, error)) if verdict is None else _of_verdict(verdict)


def _answered(ctx: LoopContext) -> Ending:
    if ctx.wrapping_up and ctx.verdict is not None:
        end = _of_verdict(ctx.verdict)
        return end if end.outcome is Outcome.FAILED else Ending(Outcome.PARTIAL, end.reason)
    if ctx.completion.incomplete:
        return Ending(Outcome.PARTIAL, ctx.completion.incomplete)
    return completed(ctx.output, "memory_degraded" if ctx.degraded else "none")


def refusal(run: Run[LoopContext, Any]) -> Verdict | None:
    """Return the refusal that ended a run early, if any. Guards on a host's own edges count too.

    A run that failed during wrap-up ended by the limit that started the wrap-up. A hook that fails after the end
    changes nothing.
    """
    ctx, error = run.ctx, run.error
    if isinstance(error, LimitReached | Refused) and _is_limit(error.verdict):
        return error.verdict
    ran_out = run.failure is None or run.failure.state == LoopState.TERMINATE_ERROR
    return ctx.verdict if ctx.wrapping_up or ran_out else None


def _is_limit(verdict: object) -> TypeGuard[Verdict]:
    return isinstance(verdict, Verdict) and verdict.guard in (*BUDGET_OF, *STALL_OF)


def _of_verdict(verdict: Verdict) -> Ending:
    if verdict.guard in STALL_OF:
        return Ending(Outcome.NO_PROGRESS, STALL_OF[verdict.guard])
    if verdict.guard in BUDGET_OF:
        return Ending(Outcome.BUDGET_EXCEEDED, BUDGET_OF[verdict.guard])
    return Ending(Outcome.FAILED, "policy_stop")  # a host's own guard with its own name
