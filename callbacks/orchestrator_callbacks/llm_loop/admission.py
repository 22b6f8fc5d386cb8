"""Which calls of a turn may run; caps are checked before a tool runs, never after (D16).

It is decided before the turn's intent is written, so that after a crash the journal tells what may have begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.kernel.clock import micros
from orchestrator.machines.llm_loop.model import Ledger, LoopContext, Question
from orchestrator.messages import ToolCall
from orchestrator.toolresult import ToolResult
from orchestrator.toolspec import ToolSpec
from orchestrator_callbacks.llm_loop.deps import LoopRun
from orchestrator_guards import (
    Verdict,
    approval_digest,
    call_key,
    call_keys,
    first_refusal,
    repeated_success,
    tool_calls,
    tool_cap,
    tool_key,
)

UNFINISHED = "the run was stopped before this call finished"
UNDECIDED = "the run was stopped before anybody approved this call"


def admit(run: LoopRun) -> None:
    """Decide on every call of the answer: refused, to be asked about, or to run; the journal hears of each."""
    ctx = run.ctx
    calls = ctx.response.tool_calls if ctx.response else ()
    ctx.ledger = Ledger()
    ctx.results = [None] * len(calls)
    repeats = ctx.progress.expected is not None and _keys(calls) == ctx.progress.expected.calls
    to_run: list[int] = []
    for position, call in enumerate(calls):
        spec = run.deps.tools.find(call.name)
        why = _blocked(ctx, repeats=repeats) or _over_limit(ctx, call, spec)
        if why:
            note_result(run, ToolResult.failure(call, position, "denied", why, kind="Denied"))
            continue
        key = tool_key(call.name)
        ctx.spent.tool_calls += 1
        ctx.spent.by_tool[key] = ctx.spent.by_tool.get(key, 0) + 1
        if spec is not None and spec.approval:
            put_question(run, position, "approval")
        else:
            to_run.append(position)
    note_intent(run, to_run)


def put_question(run: LoopRun, position: int, why: str) -> None:
    """Ask a person about a call. Until it is answered the call has a provisional result."""
    ctx = run.ctx
    call = asked_call(ctx, position)
    key = key_of(ctx, position)
    # An answer to one question must not count for another about the same call: it may have been given before.
    about = key if why == "approval" else f"{key} {why} {run.lease.epoch if run.lease else 0}"
    digest = approval_digest(
        call.name, call.arguments, run=run.run_id, call=about, fingerprint=run.graph.fingerprint
    )
    patience = ctx.limits.approval_seconds
    expires = run.deps.clock.time() + patience if patience else 0.0
    question = Question(key, call.name, call.arguments, digest, why, expires)
    ctx.ledger.asked[position] = question
    ctx.results[position] = ToolResult.failure(call, position, "cancelled", UNDECIDED, kind="Undecided")
    run.note("asked", question.record(_asked_of(ctx)[position].arguments))


def note_intent(run: LoopRun, positions: Sequence[int]) -> None:
    """Announce calls to the journal: after this nobody can say that they did not run."""
    if not positions:
        return
    ctx = run.ctx
    announced = [_announced(run, position, asked_call(ctx, position)) for position in positions]
    run.note("intent", {"effect": "tool", "turn": ctx.iteration, "calls": announced})


def _announced(run: LoopRun, position: int, call: ToolCall) -> dict[str, Any]:
    spec = run.deps.tools.find(call.name)
    about: dict[str, Any] = {
        "key": key_of(run.ctx, position),
        "position": position,
        "tool": call.name,
        "effect": effect_of(spec),
    }
    return about if spec else about | _INVENTED


_INVENTED = {"registered": False}
"""Marks a tool that nobody registered: its name is the model's word, and no name to show."""


def effect_of(spec: ToolSpec | None) -> str:
    """Return the effect of a tool. One that does not exist does nothing."""
    return spec.effect if spec else "pure"


def note_result(run: LoopRun, result: ToolResult) -> None:
    """Take a call's result, and announce it to the journal."""
    ctx, position = run.ctx, result.position
    ctx.results[position] = result
    ctx.ledger.noted.add(position)
    body: dict[str, Any] = {
        "effect": "tool",
        "key": key_of(ctx, position),
        "tool": result.call.name,
        "outcome": result.outcome,
        "content": result.content,
        "seconds": micros(result.seconds),
    }
    if run.deps.tools.find(result.call.name) is None:
        body |= _INVENTED
    if result.queued:
        body["queued"] = micros(result.queued)
    if result.cut:
        body["cut"] = True
    asked = _asked_of(ctx)[position]
    if result.call is not asked and result.call != asked:
        body["call"] = result.call
    run.note("done", body)


def key_of(ctx: LoopContext, position: int) -> str:
    """Return what names a call in records: (turn, position) and not its id, for ids repeat and can be empty."""
    return f"{ctx.iteration}:{position}"


def asked_call(ctx: LoopContext, position: int) -> ToolCall:
    """Return a call as it is to run: the model's, or what a person made of it."""
    return ctx.ledger.edited.get(position) or _asked_of(ctx)[position]


def _asked_of(ctx: LoopContext) -> tuple[ToolCall, ...]:
    return ctx.response.tool_calls if ctx.response else ()


def close_turn(ctx: LoopContext) -> None:
    """Append the results of the turn in call order, once; calls without one are answered as cancelled."""
    calls = ctx.response.tool_calls if ctx.response else ()
    if not calls or ctx.messages[-1].role != "assistant":
        return
    results = ctx.results or [None] * len(calls)
    for position, (call, result) in enumerate(zip(calls, results, strict=True)):
        ctx.messages.append((result or unfinished(call, position)).message())


def unfinished(call: ToolCall, position: int) -> ToolResult:
    """Return the result of a call that was cut short."""
    return ToolResult.failure(call, position, "cancelled", UNFINISHED, kind="Cancelled")


def _keys(calls: Sequence[ToolCall]) -> tuple[str, ...]:
    return call_keys((call.name, call.arguments) for call in calls)


def _blocked(ctx: LoopContext, *, repeats: bool) -> str | None:
    if ctx.wrapping_up:
        return "this is the last turn of the run: no tool runs any more; answer from what you have"
    if repeats:
        return "not run: this repeats earlier calls that brought no progress; do something else or answer"
    return None


def _over_limit(ctx: LoopContext, call: ToolCall, spec: ToolSpec | None) -> str | None:
    """Ask the guards that look at one call; the first refusal ends the run after this turn."""
    refusal = first_refusal(_asked(ctx, call, spec))
    if refusal is None:
        return None
    if ctx.verdict is None:
        ctx.verdict = refusal
    return f"not run: {refusal.explain()}"


def _asked(ctx: LoopContext, call: ToolCall, spec: ToolSpec | None) -> list[Verdict]:
    limits, spent, key = ctx.limits, ctx.spent, tool_key(call.name)
    asked = []
    if limits.max_tool_calls:
        asked.append(tool_calls(spent.tool_calls, limits.max_tool_calls))
    cap = limits.tool_caps.get(key, 0)
    if cap:
        asked.append(tool_cap(call.name, spent.by_tool.get(key, 0), cap))
    if limits.max_repeated_success and key in ctx.progress.successes:
        seen = ctx.progress.successes[key]
        if seen.call == call_key(call.name, call.arguments):
            policy = spec.progress if spec else "strict"
            asked.append(repeated_success(seen.times, limits.max_repeated_success, policy))
    return asked
