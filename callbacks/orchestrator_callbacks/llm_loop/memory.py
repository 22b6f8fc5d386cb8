"""The memory port: what is put before a conversation and what is kept of it. Every call has a deadline."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable
from typing import TypeVar

from orchestrator.kernel.abandonment import TimeLimitPassed, host_call, limited
from orchestrator.kernel.record import OperationAttempt
from orchestrator.llm.message import Message
from orchestrator.llm.port import FailureEpisode, SystemClock
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator_callbacks.llm_loop.deps import LoopRun

T = TypeVar("T")

_SYSTEM_CLOCK = SystemClock()
"""A fake clock that stands still must not make a memory wait for ever."""
_EPISODE_CHARS = 2048
_EPISODE_CALLS = 4


async def prepare(run: LoopRun) -> None:
    """Put what memory knows after the leading system messages and before the rest. An error fails the run."""
    ctx, memory = run.ctx, run.deps.memory
    if memory is None:
        return
    try:
        known = await _within(ctx, memory.prepare(key(run), tuple(ctx.messages)))
    except Exception:
        ctx.fault = "memory_error"
        raise
    place = next((i for i, message in enumerate(ctx.messages) if message.role != "system"), len(ctx.messages))
    # A new list: what stood in the old one is with the journal, which is told only of what came at its end.
    ctx.messages = [*ctx.messages[:place], *known, *ctx.messages[place:]]
    ctx.base += len(known)
    ctx.recalled = (place, place + len(known))


async def store(run: LoopRun) -> None:
    """Keep the last exchange. A store that fails leaves the output and marks the run as degraded (P12)."""
    ctx, memory = run.ctx, run.deps.memory
    if memory is None or ctx.remembered:
        return
    asked = (message for message in reversed(ctx.messages[: ctx.base]) if message.role == "user")
    exchange = (*itertools.islice(asked, 1), ctx.messages[-1])
    ctx.remembered = await _kept(run, memory.store(key(run), exchange))
    ctx.degraded = not ctx.remembered
    run.note("memory", {"stored": ctx.remembered})


def conversation(ctx: LoopContext) -> list[Message]:
    """Return what was said, without what memory put in: each run of a conversation asks memory anew."""
    start, end = ctx.recalled
    return [*ctx.messages[:start], *ctx.messages[end:]]


async def keep_summary(run: LoopRun, summary: Message) -> bool:
    """Keep a compaction's summary; False when memory could not."""
    memory = run.deps.memory
    return memory is None or await _kept(run, memory.compact(key(run), summary))


async def store_failure(run: LoopRun) -> None:
    """Keep a failure episode. Nothing can go wrong here that would hide the failure itself."""
    memory = run.deps.memory
    if memory is not None:
        await _kept(run, memory.store_failure(key(run), _episode(run)))


def key(run: LoopRun) -> str:
    """Return the key under which memory files this run: its conversation, else the run itself."""
    return run.ctx.conversation_id or run.run_id


async def _within(ctx: LoopContext, asked: Awaitable[T]) -> T:
    """Return what a call of the memory gives. Raises TimeoutError after `memory_seconds`."""
    call = host_call(asked, "memory", "memory")
    if not ctx.limits.memory_seconds:
        return await call
    try:
        return await limited(lambda: call, ctx.limits.memory_seconds, _SYSTEM_CLOCK)
    except TimeLimitPassed as error:
        raise TimeoutError(f"the memory gave {error}") from error


async def _kept(run: LoopRun, storing: Awaitable[None]) -> bool:
    try:
        await _within(run.ctx, storing)
    except Exception:  # noqa: BLE001  whatever a host's store raises: the run's own end stands
        run.emit(OperationAttempt(run.graph.name, run.run_id, "memory", 1, "exhausted", "other"))
        return False
    return True


def _episode(run: LoopRun) -> FailureEpisode:
    ctx = run.ctx
    calls = [
        (call.name, call.arguments[:_EPISODE_CHARS])
        for message in reversed(ctx.messages[ctx.base :])
        for call in reversed(message.tool_calls)
    ]
    why = (
        run.error if ctx.verdict is None else ctx.verdict.explain()
    )  # a refusal is falsy: no `if ctx.verdict`
    text = "" if why is None else str(why)
    reason = (ctx.fault or "failure") if ctx.verdict is None else ctx.verdict.guard
    return FailureEpisode(
        run.run_id, reason, text[:_EPISODE_CHARS], ctx.iteration, tuple(reversed(calls[:_EPISODE_CALLS]))
    )
