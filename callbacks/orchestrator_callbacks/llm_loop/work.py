"""The work of `process_tools`: run what may run, find out what a crash left open, wait for people."""

from __future__ import annotations

from functools import partial
from typing import Literal

from orchestrator.kernel.record import RolledBack
from orchestrator.kernel.record import ToolCall as ToolCalled
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.messages import ToolCall
from orchestrator.toolresult import ToolResult
from orchestrator.toolspec import ToolContext
from orchestrator_callbacks.llm_loop import people
from orchestrator_callbacks.llm_loop.admission import (
    admit,
    asked_call,
    effect_of,
    key_of,
    note_intent,
    note_result,
    put_question,
    unfinished,
)
from orchestrator_callbacks.llm_loop.deps import LoopRun, through


async def run_calls(run: LoopRun) -> None:
    """Answer every call of the response: refused ones at once, the others by their tools or by a person."""
    ctx = run.ctx
    calls = ctx.response.tool_calls if ctx.response else ()
    if len(ctx.results) != len(calls):  # another graph came here by an event of its own
        admit(run)
        await run.settle()
    try:
        await _recover(run)
        await _execute(run)
        while ctx.ledger.asked:
            await people.await_answers(run)
            await _execute(run)
    finally:
        _report(run)


def close_ledger(run: LoopRun) -> None:
    """Note a result for each call that has none: the run was stopped, so nothing is open any more."""
    ctx = run.ctx
    ctx.ledger.asked.clear()
    for position, result in enumerate(ctx.results):
        if position not in ctx.ledger.noted:
            note_result(run, result or unfinished(asked_call(ctx, position), position))
    _report(run)


async def _execute(run: LoopRun) -> None:
    ctx, deps = run.ctx, run.deps
    if all(ctx.results):
        return
    calls = [asked_call(ctx, position) for position in range(len(ctx.results))]
    for position, (call, result) in enumerate(zip(calls, ctx.results, strict=True)):
        if result is None:
            ctx.ledger.started[position] = effect_of(deps.tools.find(call.name))

    async def finished(result: ToolResult) -> ToolResult | None:
        changed = await through(run, "after_tool_execution", result) if hooked else result
        note_result(run, changed)
        if ctx.ledger.started[result.position] != "pure" and not all(ctx.results):
            await run.settle()  # the others may take long; the last one goes with the transition
        return changed if changed is not result else None

    hooked = "after_tool_execution" in deps.points
    await deps.tools.execute_all(
        calls,
        lambda _, position: context(run, position),
        max_concurrent=ctx.limits.max_concurrent_tools,
        done=ctx.results,
        before=partial(_before, run),
        after=finished,
    )


async def _before(run: LoopRun, call: ToolCall) -> ToolCall | ToolResult | None:
    """Ask the host's hooks about a call, then prove that the run still has its owner: the effect comes next."""
    changed: ToolCall | ToolResult | None = None
    if "before_tool_execution" in run.deps.points:
        changed = await through(run, "before_tool_execution", call)
    if not isinstance(changed, ToolResult):
        await run.confirm_lease()
    return changed


async def _recover(run: LoopRun) -> None:
    """Deal with calls that may have begun and have no result. What counts is the effect declared when each began."""
    ctx, ledger = run.ctx, run.ctx.ledger
    for position, effect in sorted(ledger.started.items()):
        if ctx.results[position] is not None:
            continue
        match after_crash(effect):
            case "undo":
                await _take_back(run, position)
            case "ask":
                put_question(run, position, "unknown_effect")
            case "again":
                pass  # with the same key, as one that has not begun
    ledger.started.clear()


def after_crash(effect: str) -> Literal["again", "undo", "ask"]:
    """Return what becomes of a call that may have begun and has no result.

    It runs again with the same key, is taken back first, or is for a person to look at.
    """
    match effect:
        case "pure" | "idempotent":
            return "again"
        case "compensable":
            return "undo"
        case _:
            return "ask"


async def _take_back(run: LoopRun, position: int) -> None:
    ctx = run.ctx
    call = asked_call(ctx, position)
    try:
        await run.deps.tools.take_back(call, position, lambda _, at: context(run, at))
    except Exception:  # noqa: BLE001 - whatever it is: a person has to look
        _tell_rollback(run, "failed")
        put_question(run, position, "undo_failed")
        return
    _tell_rollback(run, "undone")
    run.note("rolled_back", {"effect": "tool", "key": key_of(ctx, position)})
    note_intent(run, [position])
    await run.settle()


def _tell_rollback(run: LoopRun, outcome: str) -> None:
    run.emit(RolledBack(run.graph.name, run.run_id, outcome, run.deps.clock.time()))


def context(run: LoopRun, position: int) -> ToolContext:
    """Return what a tool may know of its call. The key is the same for every try of the call, also after a crash."""
    key = f"{run.run_id}:{key_of(run.ctx, position)}"
    return ToolContext(run.run_id, key, run.deps.host, run.expires_at, clock=run.deps.clock)


def _report(run: LoopRun) -> None:
    """Tell observers of each call once, in the order of the calls."""
    ctx = run.ctx
    for position, result in enumerate(ctx.results):
        if position in ctx.ledger.told or position in ctx.ledger.asked:
            continue
        ctx.ledger.told.add(position)
        _tell(run, ctx, result or unfinished(asked_call(ctx, position), position))


def _tell(run: LoopRun, ctx: LoopContext, done: ToolResult) -> None:
    spec = run.deps.tools.find(done.call.name)
    run.emit(
        ToolCalled(
            run.graph.name,
            run.run_id,
            ctx.iteration,
            done.position,
            spec.name if spec else "_unregistered",
            done.outcome,
            done.seconds,
            done.queued,
            len(done.content),
            done.cut,
            done.at,
        )
    )
