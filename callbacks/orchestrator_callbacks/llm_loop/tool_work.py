"""The work of `process_tools`: run the admitted calls, resolve calls that a crash left open, wait for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import orjson

from orchestrator.errors import RunError
from orchestrator.kernel.fact import RolledBack, ToolExecution
from orchestrator.llm.message import ToolCall, encodable
from orchestrator.tools.input_request import CallInput, EffectUnknown, InputRequired
from orchestrator.tools.result import ToolResult, cut, explain, mark_of
from orchestrator.tools.spec import ToolContext
from orchestrator.tools.tool_error import raise_tool_error
from orchestrator.tools.tool_set import ReadArguments
from orchestrator_callbacks.llm_loop import human_input
from orchestrator_callbacks.llm_loop.admission import (
    admit,
    admit_again,
    canonical_form,
    effective_call,
    key_of,
    note_intent,
    note_result,
    put_question,
    readmit,
    renew_question,
    replacement,
    set_form,
    unfinished,
)
from orchestrator_callbacks.llm_loop.deps import LoopRun, through, tool_context
from orchestrator_callbacks.llm_loop.turn import tool_scope
from orchestrator_guards import tool_key


async def run_calls(run: LoopRun) -> None:
    """Answer every call of the response: refused ones at once, the others by their tools or by a person."""
    ctx = run.ctx
    calls = ctx.response.tool_calls if ctx.response else ()
    if len(ctx.results) != len(calls):  # another graph came here by its own event
        admit(run)
        await run.settle()
    try:
        if ctx.ledger.asked or ctx.ledger.started:
            await _recover(run)
        while True:
            await _execute(run)
            if ctx.tool_errors:  # before a person is asked about the other calls
                raise_tool_error(ctx.results, run.deps.tools.find, ctx.limits.on_tool_error)
            if not ctx.ledger.asked:
                break
            await human_input.await_answers(run)
    finally:
        _report(run)


def may_overlap(run: LoopRun) -> bool:
    """Return whether the calls of the turn may begin beside the append of the answer that made them.

    Only if all are pure. The key of another call names its turn and position: if the append were lost, another answer
    could use it for other arguments. A tool that takes a context may start child runs or report progress under that
    key. Nothing overlaps with a hook of the host or with a question.
    """
    ledger, points = run.ctx.ledger, run.deps.points
    if ledger.asked or "before_tool_execution" in points or "after_tool_execution" in points:
        return False
    for admitted in ledger.admitted.values():
        spec = admitted.spec
        if spec is not None and (spec.effect != "pure" or spec.takes_context):
            return False
    return True


def close_ledger(run: LoopRun) -> None:
    """Record a result for each call that has none: the run was stopped, so no call stays open."""
    ctx = run.ctx
    ctx.ledger.asked.clear()
    for position, result in enumerate(ctx.results):
        if position not in ctx.ledger.noted:
            note_result(run, result or _interrupted(run, position))
    if len(ctx.ledger.told) < len(ctx.results):
        _report(run)


def _interrupted(run: LoopRun, position: int) -> ToolResult:
    """Return the result of a call that the end of the run interrupted, with its times."""
    ledger, now = run.ctx.ledger, run.deps.clock.time()
    started = ledger.began.get(position, 0.0)
    if position in ledger.started and len(run.ctx.results) == 1:
        started = now - (run.deps.clock.monotonic() - run.cursor.entered_at)
    return unfinished(effective_call(run.ctx, position), position, started, now)


def _position(calls: Sequence[ToolCall], call: ToolCall) -> int:
    """Return the position of a call: two calls may be equal."""
    return next(at for at, one in enumerate(calls) if one is call)


async def _execute(run: LoopRun) -> None:
    ctx, deps = run.ctx, run.deps
    if all(ctx.results):
        return
    # The calls of the turn as they will run; those without a result count as started.
    ledger, calls = ctx.ledger, []
    read: dict[int, ReadArguments] = {}
    for position, result in enumerate(ctx.results):
        admitted = ledger.admitted.get(position) or admit_again(run, position)
        calls.append(admitted.call)
        if result is None:
            ledger.started[position] = "pure" if admitted.spec is None else admitted.spec.effect
            if admitted.read is not None:
                read[position], admitted.read = admitted.read, None
    is_hooked = False

    async def finished(result: ToolResult) -> ToolResult | None:
        needs = result.needs is not None or result.abandoned
        if needs and (provisional := await _put_to_person(run, result)) is not None:
            return provisional
        hooked = "after_tool_execution" in deps.points
        changed = await through(run, "after_tool_execution", result) if hooked else result
        if hooked or is_hooked:
            changed = _storable(changed)
        if changed.whole is not None:
            changed = _with_handle(run, changed, shown=result.content)
        note_result(run, changed)
        if ledger.started[result.position] != "pure" and not all(ctx.results):
            await run.settle()  # the others may take long; the last result is written with the transition
        return run.ctx.results[result.position] if changed is not result else None

    async def before(call: ToolCall) -> ToolCall | ToolResult | None:
        nonlocal is_hooked
        if len(calls) > 1:  # a single call starts when the run enters the state
            ledger.began[_position(calls, call)] = deps.clock.time()
        chosen: ToolCall | ToolResult | None = None
        if "before_tool_execution" in deps.points:  # an engine may add a hook there while a call waits
            is_hooked = True
            chosen = await through(run, "before_tool_execution", call)
            if isinstance(chosen, ToolCall) and chosen != call:
                chosen = replacement(run, _position(calls, call), chosen)
        services = run.control.services
        if not isinstance(chosen, ToolResult) and services is not None and services.doubts_lease(run):
            await services.confirm_lease(run)  # the effect comes next
        return chosen

    await deps.tools.execute_all(
        calls,
        CallContexts(run),
        max_concurrent=ctx.limits.max_concurrent_tools,
        done=ctx.results,
        before=before,
        after=finished,
        exact=read,
        around=tool_scope(run),
    )


def _storable(result: ToolResult) -> ToolResult:
    """Return a result that a hook may have made, with text that can be stored. Raises RunError for another content.

    The result of the tool itself is recorded then, because the run has it already.
    """
    try:
        content = str.__str__(encodable(result.content))
        parts = tuple(encodable(dict(part)) for part in result.parts)
        orjson.dumps(parts)
    except Exception as error:
        why = f"a hook returned a ToolResult that cannot be stored ({explain(error)})"
        raise RunError(f"{why}; content must be text, parts must be JSON data") from error
    return (
        result if content == result.content and not parts else replace(result, content=content, parts=parts)
    )


def _with_handle(run: LoopRun, result: ToolResult, shown: str) -> ToolResult:
    """Return a cut result with the handle of its whole text in the mark.

    A hook that changed the `shown` content may have removed text that must not be stored, so then the rest is dropped.
    """
    spec = run.deps.tools.find(result.call.name)
    if result.content != shown or result.whole is None or spec is None:
        return replace(result, whole=None)
    content, _ = cut(result.whole, spec.max_result_chars, mark_of(key_of(run.ctx, result.position)))
    return replace(result, content=content)


async def _put_to_person(run: LoopRun, result: ToolResult) -> ToolResult | None:
    """Ask about a call that needs a person, and return its provisional result; None if it needs no person.

    An abandoned call may still be running, so nothing is undone.
    """
    position = result.position
    if isinstance(result.needs, InputRequired):
        put_question(run, position, "input", request=result.needs.record())
    elif isinstance(result.needs, EffectUnknown) or after_crash(run.ctx.ledger.started[position]) != "again":
        put_question(run, position, "unknown_effect")
    else:
        return None
    await run.settle()
    provisional: ToolResult | None = run.ctx.results[position]
    return provisional


async def _recover(run: LoopRun) -> None:
    """Resolve calls that may have started and have no result, by the effect declared when each was announced."""
    ctx, ledger = run.ctx, run.ctx.ledger
    for position, question in sorted(ledger.asked.items()):
        renew_question(run, position, question)
    for position, effect in sorted(ledger.started.items()):
        if ctx.results[position] is not None:
            continue
        changed = position in ledger.changed  # then the undo is another one too
        match "ask" if changed and effect == "compensable" else after_crash(effect):
            case "undo":
                await _take_back(run, position)
            case "ask":
                _ask_about(run, position, "unknown_effect")
            case "again":
                readmit(run, position)  # with the same key, like a call that has not started
    if ledger.started:
        ledger.started.clear()
        await run.settle()  # new announcements are durable before the calls run


def _ask_about(run: LoopRun, position: int, why: str) -> None:
    """Ask about an interrupted call, in the form in which it would run again if that is still possible."""
    form = canonical_form(run, effective_call(run.ctx, position), position)
    if isinstance(form, ToolCall):
        set_form(run.ctx, position, form)
    put_question(run, position, why)


def after_crash(effect: str) -> Literal["again", "undo", "ask"]:
    """Return the handling of a call that may have started and has no result.

    It runs again with the same key ("again"), is undone first ("undo"), or a person decides ("ask").
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
    call = effective_call(ctx, position)
    try:
        await run.deps.tools.take_back(call, position, lambda _, at: context(run, at))
    except Exception:  # noqa: BLE001 - for any error a person has to decide
        _publish_rollback(run, "failed")
        _ask_about(run, position, "undo_failed")
        return
    _publish_rollback(run, "undone")
    run.note("rolled_back", {"effect": "tool", "key": key_of(ctx, position)})
    if readmit(run, position):
        note_intent(run, [position])
    await run.settle()


def _publish_rollback(run: LoopRun, outcome: str) -> None:
    run.emit(RolledBack(run.graph.name, run.run_id, outcome, run.deps.clock.time(), run.agent))


class CallContexts:
    """Makes the contexts of the calls of a turn."""

    __slots__ = ("_run",)

    def __init__(self, run: LoopRun) -> None:
        self._run = run

    def __call__(self, _: ToolCall, position: int) -> ToolContext:
        """Return the context of a call."""
        return context(self._run, position)

    def call_seconds(self) -> float | None:
        """Return the seconds that a call may take in all if its tool has no `total_timeout`; None for no limit."""
        run = self._run
        return run.call_seconds(run.deps.clock.monotonic())


def context(run: LoopRun, position: int) -> ToolContext:
    """Return the context of a call for its tool. The key is the same for every attempt, also after a crash."""
    retries = run.ctx.progress.model_retries
    tool = effective_call(run.ctx, position).name
    retry = retries.get(tool_key(tool), 0) if retries else 0
    given = CallInput.of(run.ctx.ledger.inputs.get(position, ()))
    return tool_context(run, key_of(run.ctx, position), retry, tool, given)


def _report(run: LoopRun) -> None:
    """Publish each call to observers once, in the order of the calls."""
    ctx, ledger = run.ctx, run.ctx.ledger
    if len(ledger.told) == len(ctx.results):
        return
    is_observed = ToolExecution in run.writes.observed_kinds
    for position, result in enumerate(ctx.results):
        if position in ledger.told or position in ledger.asked:
            continue
        ledger.told |= {position}
        if not is_observed:
            continue
        done = result or _interrupted(run, position)
        admitted = ledger.admitted.get(position) or admit_again(run, position)
        is_same = done.call.name == admitted.call.name
        spec = admitted.spec if is_same else run.deps.tools.find(done.call.name)
        run.emit(
            ToolExecution(
                run.graph.name,
                run.run_id,
                ctx.iteration,
                position,
                spec.name if spec else "_unregistered",
                done.outcome,
                done.seconds,
                done.queued,
                len(done.content),
                done.cut,
                done.at,
                done.error,
                done.call.id,
            )
        )
