"""Which calls of a turn may run; caps are checked before a tool runs, never after (D16). Then: run them."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.kernel.record import ToolCall as ToolCalled
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.messages import ToolCall
from orchestrator.toolset import ToolResult
from orchestrator.toolspec import ToolContext, ToolSpec
from orchestrator_callbacks.llm_loop.deps import LoopRun, through
from orchestrator_guards import Verdict, call_key, call_keys, repeated_success, tool_calls, tool_cap, tool_key

UNFINISHED = "the run was stopped before this call finished"


async def run_calls(run: LoopRun) -> None:
    """Answer every call of the response: refused ones at once, the others by their tools."""
    ctx, deps = run.ctx, run.deps
    calls = ctx.response.tool_calls if ctx.response else ()
    ctx.results = _admit(run, calls)
    points = deps.points
    try:
        await deps.tools.execute_all(
            calls,
            lambda _, position: _context(run, position),
            max_concurrent=ctx.limits.max_concurrent_tools,
            done=ctx.results,
            before=(lambda call: through(run, "before_tool_execution", call))
            if "before_tool_execution" in points
            else None,
            after=(lambda result: through(run, "after_tool_execution", result))
            if "after_tool_execution" in points
            else None,
        )
    finally:
        _report(run, calls)


def close_turn(ctx: LoopContext) -> None:
    """Append the results of the turn in call order, once; calls without one are answered as cancelled."""
    calls = ctx.response.tool_calls if ctx.response else ()
    if not calls or ctx.messages[-1].role != "assistant":
        return
    results = ctx.results or [None] * len(calls)
    ctx.messages.extend(
        (result or unfinished(call, position)).message()
        for position, (call, result) in enumerate(zip(calls, results, strict=True))
    )


def unfinished(call: ToolCall, position: int) -> ToolResult:
    """Return the result of a call that was cut short."""
    return ToolResult.failure(call, position, "cancelled", UNFINISHED, kind="Cancelled")


def _admit(run: LoopRun, calls: Sequence[ToolCall]) -> list[ToolResult | None]:
    """Return one place for each call: a refusal, or None for a call that is to run. Counts those."""
    ctx = run.ctx
    results: list[ToolResult | None] = []
    repeats = ctx.progress.expected is not None and _keys(calls) == ctx.progress.expected.calls
    for position, call in enumerate(calls):
        spec = run.deps.tools.find(call.name)
        why = _blocked(ctx, repeats=repeats) or _over_limit(ctx, call, spec)
        if why:
            results.append(ToolResult.failure(call, position, "denied", why, kind="Denied"))
            continue
        results.append(None)
        key = tool_key(call.name)
        ctx.spent.tool_calls += 1
        ctx.spent.by_tool[key] = ctx.spent.by_tool.get(key, 0) + 1
    return results


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
    refusal = next((verdict for verdict in _asked(ctx, call, spec) if not verdict), None)
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


def _context(run: LoopRun, position: int) -> ToolContext:
    # (turn, position) and not the call's id: ids repeat and can be empty
    key = f"{run.run_id}:{run.ctx.iteration}:{position}"
    return ToolContext(run.run_id, key, run.deps.host, run.expires_at, clock=run.deps.clock)


def _report(run: LoopRun, calls: Sequence[ToolCall]) -> None:
    for position, (call, result) in enumerate(zip(calls, run.ctx.results, strict=True)):
        spec = run.deps.tools.find(call.name)
        done = result or unfinished(call, position)
        run.emit(
            ToolCalled(
                run.graph.name,
                run.run_id,
                run.ctx.iteration,
                position,
                spec.name if spec else "_unregistered",
                done.outcome,
                done.seconds,
                done.queued,
                len(done.content),
                done.cut,
            )
        )
