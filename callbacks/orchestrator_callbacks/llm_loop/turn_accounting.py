"""Accounting after a turn: its results, its repetitions, the decision about another turn, and the rows of guards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from orchestrator.kernel.clock import WHOLE
from orchestrator.machines.llm_loop.graph import restart_budgets, whole_budgets
from orchestrator.machines.llm_loop.model import (
    Completion,
    LoopContext,
    LoopEvent,
    Progress,
    RepeatedSuccess,
    TurnDecision,
)
from orchestrator.tools.result import RETURNED, ToolResult
from orchestrator_callbacks.llm_loop.deps import AgentRun, LoopRun
from orchestrator_guards import (
    Escalation,
    ObservedCall,
    TurnFingerprint,
    Verdict,
    call_key,
    escalation,
    expected,
    failed_result,
    fingerprint,
    next_streak,
    progress,
    stall,
    tool_key,
    window_size,
)
from orchestrator_guards.evaluation import STANDARD, Row, row_of
from orchestrator_guards.progress import digest

WINDOW = "turns"
"""The field of the context that holds the window of the progress guard."""


def record_guards(run: LoopRun, verdicts: Sequence[Verdict]) -> None:
    """Record the evaluations of guards on `run.ctx`. The last one may be the decision for the next edge."""
    rows: list[Row] = []
    for verdict in verdicts:
        if verdict.guard in STANDARD:
            rows.append(verdict[:4])
        elif verdict.guard == "no_progress":
            rows.append((*verdict[:4], _PROGRESS, WINDOW, run.ctx.limits.max_no_progress))
        else:
            rows.append(row_of(verdict))
    run.attach_guards(rows, verdicts[-1])


def keep_window(run: LoopRun) -> None:
    """Put the window itself into the rows of this turn, because the context will not have it any more.

    Tools are named by digests there: the model may have invented a name.
    """
    window = [turn._replace(tools=frozenset(map(digest, turn.tools))) for turn in run.ctx.turns]
    run.replace_in_guards(WINDOW, window)


_PROGRESS = progress.__name__


REPEATING = "You are repeating yourself ({what}). Do something different, or give your final answer."


def account(run: LoopRun) -> Verdict | None:
    """Count errors and successes of each tool, add the turn's fingerprint, and prepare the reaction to a stall.

    Returns the verdict of the progress guard, if it is enabled.
    """
    ctx = run.ctx
    note_time(run)
    seen: list[ObservedCall] = []
    retried = False
    for position, result in enumerate(ctx.results):
        if result is None:
            continue
        call, admitted = result.call, ctx.ledger.admitted.get(position)
        if admitted is not None and admitted.call.name == call.name:
            spec = admitted.spec
        else:
            spec = run.deps.tools.find(call.name)
        failed = result.outcome not in RETURNED or failed_result(
            result.content, declared_plain_text=spec is not None and spec.plain_text
        )
        policy = "strict" if spec is None else spec.progress
        seen.append(_observed((call.name, call.arguments, result.content, failed, policy)))
        if result.outcome == "retry":  # the tool asked the model to try again: neither an error nor a success
            retried = True
        elif (
            result.outcome != "denied"
        ):  # it did not run, so it is neither an error nor a success of the tool
            _count(ctx.progress, seen[-1])
    if retried or ctx.progress.model_retries:
        _count_model_retries(ctx.progress, ctx.results)
    if ctx.limits.max_no_progress or ctx.limits.max_restarts:
        return add_turn(ctx, fingerprint(seen))
    return None


_observed: Callable[[tuple[Any, ...]], ObservedCall] = partial(tuple.__new__, ObservedCall)
_success: Callable[[tuple[Any, ...]], RepeatedSuccess] = partial(tuple.__new__, RepeatedSuccess)


def _count_model_retries(state: Progress, results: Iterable[ToolResult | None]) -> None:
    """Count for each tool the consecutive turns with a ModelRetry, until a call of it succeeds.

    A turn counts once: the model could not read one result before it made the other calls.
    """
    done = [result for result in results if result is not None]
    asked = {tool_key(result.call.name) for result in done if result.outcome == "retry"}
    for tool in asked:
        state.model_retries[tool] = state.model_retries.get(tool, 0) + 1
    for tool in {tool_key(result.call.name) for result in done if result.outcome in RETURNED} - asked:
        state.model_retries.pop(tool, None)


def note_time(run: AgentRun) -> None:
    """Store the duration of the run at the entry of the current state."""
    cursor = run.cursor
    if cursor.started_at is not None:
        seconds = cursor.entered_at - cursor.started_at
        run.ctx.spent.seconds = (seconds * 1e6 + WHOLE - WHOLE) / 1e6  # `micros`, inline


def _count(seen: Progress, call: ObservedCall) -> None:
    tool = tool_key(call.tool)
    if call.failed:
        seen.error_streaks[tool] = next_streak(seen.error_streaks.get(tool, 0), failed=True)
        seen.successes.pop(tool, None)
        return
    seen.error_streaks.pop(tool, None)  # `next_streak` of a success
    key, before = call_key(call.tool, call.arguments), seen.successes.get(tool)
    result = call.result if len(call.result) <= _LONGEST_KEPT else digest(call.result)
    same = before is not None and before.call == key and before.result in (result, call.result)
    seen.successes[tool] = _success((key, result, before.times + 1 if same and before else 1))


_LONGEST_KEPT = 32
"""A longer result is kept as its digest, because its record has the text. Older records have the text here, too."""


def add_turn(ctx: LoopContext, turn: TurnFingerprint) -> Verdict | None:
    """Add a turn to the window; warn the model, or block the next repetition, as the guard's escalation requires.

    Returns the verdict of the progress guard, if it is enabled.
    """
    state, limits = ctx.progress, ctx.limits
    if state.expected is not None and turn.calls == state.expected.calls:
        # It was blocked and has no result of its own; it counts as the repetition.
        turn = state.expected
    size = window_size(limits.max_no_progress or limits.restart_stall_threshold)
    ctx.turns = ctx.turns[1 - size :] + (turn,)  # noqa: RUF005 - half the instructions
    state.expected, state.warning = None, ""
    if not limits.max_no_progress:
        return None
    verdict = progress(ctx.turns, limits.max_no_progress)
    reaction = escalation(verdict.observed, verdict.limit)
    if reaction is _NONE:
        return verdict
    if reaction is Escalation.WARN or reaction is Escalation.BLOCK:
        state.warning = REPEATING.format(what=verdict.detail)
    if reaction is Escalation.BLOCK:
        state.expected = expected(ctx.turns, stall(ctx.turns, limits.max_no_progress))
    return verdict


_NONE, _BUDGET_OK = Escalation.NONE, LoopEvent.BUDGET_OK
"""For each turn: in Python 3.11 a member that is read from its class is a call of the metaclass."""


def decide_turn(run: LoopRun, asked: Sequence[Verdict]) -> LoopEvent:
    """Return the event that leaves `update_budgets`, from the verdicts about another turn."""
    ctx = run.ctx
    if ctx.limits.max_restarts and grant_restart(run, asked):
        return LoopEvent.RESTART_LOOP
    verdict = decide(ctx, asked)
    ctx.verdict = None if verdict.ok else verdict
    return _BUDGET_OK if verdict.ok or grant_turn(run) else LoopEvent.BUDGET_EXCEEDED


def decide(ctx: LoopContext, verdicts: Sequence[Verdict]) -> Verdict:
    """Return the first refusal, else the last verdict, which is stored as the decision for the edge's guard."""
    for verdict in verdicts:
        if not verdict.ok:
            return verdict
    _keep(ctx, verdicts[-1])
    return verdicts[-1]


def _keep(ctx: LoopContext, verdict: Verdict, *, restart: bool = False) -> None:
    spent = ctx.spent
    used = spent.usage if spent.below is None else spent.total
    ctx.decision = TurnDecision(verdict, ctx.limits, ctx.iteration, used, spent.seconds, restart)


def grant_restart(run: LoopRun, verdicts: Iterable[Verdict]) -> bool:
    """Return whether to restart: the run is stuck, a restart is left, and no other guard refuses a turn.

    The guards of a restart go into the journal, and a restart that they allow becomes `ctx.decision`.
    """
    ctx = run.ctx
    if ctx.wrapping_up or not is_stuck(ctx):
        return False
    if not all(verdict.ok or verdict.guard == "no_progress" for verdict in verdicts):
        return False
    asked = restart_budgets(ctx)
    record_guards(run, asked)
    if verdict := asked[-1]:
        _keep(ctx, verdict, restart=True)
    return verdict.ok


def is_stuck(ctx: LoopContext) -> bool:
    """Return whether the run repeats itself enough for a restart; checked before the no-progress guard."""
    limits = ctx.limits
    if not limits.max_restarts or not limits.restart_stall_threshold or not ctx.turns:
        return False
    threshold = limits.restart_stall_threshold
    if limits.max_no_progress:
        threshold = min(threshold, limits.max_no_progress)  # above it the guard would refuse first
    found = stall(ctx.turns, threshold)
    return found.repeats >= threshold * found.patience


def grant_turn(run: LoopRun) -> bool:
    """Return whether another turn starts: a normal one, or after a refusal the reserved wrap-up turn.

    Before a wrap-up turn its guards go into the journal; one that they allow becomes `ctx.decision`, and sets
    `ctx.wrapping_up`. A normal turn changes nothing here.
    """
    ctx = run.ctx
    if ctx.verdict is None:
        return True
    if not ctx.limits.wrap_up_turns or ctx.wrapping_up:
        return False
    asked = whole_budgets(ctx)
    record_guards(run, asked)
    if not decide(ctx, asked):
        return False
    ctx.wrapping_up = True
    return True


def start_over(ctx: LoopContext) -> None:
    """Restart: restore the first messages, clear the progress state, and reset the count of completion retries."""
    ctx.spent.restarts += 1
    ctx.messages = ctx.messages[: ctx.base]
    ctx.response, ctx.results, ctx.verdict = None, [], None
    ctx.progress = Progress()
    ctx.turns = ()
    ctx.completion = Completion()
    ctx.context.warned, ctx.context.compacted_at, ctx.context.tokens = 0, ctx.iteration, 0
