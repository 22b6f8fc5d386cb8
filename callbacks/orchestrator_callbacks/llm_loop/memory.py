"""The memory port: messages before a conversation, and their storage after it. Every call has a deadline."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from orchestrator.kernel.cancellation import TimeLimitPassed, host_call, limited
from orchestrator.kernel.fact import OperationAttempt
from orchestrator.llm.message import Message
from orchestrator.llm.port import FailureEpisode, SystemClock
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator_callbacks.llm_loop.deps import AgentRun

if TYPE_CHECKING:
    from orchestrator.machines.team.model import TeamContext  # an agent without handoffs has no use for it

T = TypeVar("T")

_SYSTEM_CLOCK = SystemClock()
"""The real clock: a fake clock that stands still must not make a memory wait for ever."""
_EPISODE_CHARS = 2048
_EPISODE_CALLS = 4


async def prepare(run: AgentRun) -> None:
    """Insert the memory's messages after the leading system messages. An error fails the run."""
    ctx, memory = run.ctx, run.deps.memory
    if memory is None:
        return
    try:
        known = await _within(ctx, memory.prepare(key(run), tuple(ctx.messages)))
    except Exception:
        ctx.fault = "memory_error"
        raise
    place = next((i for i, message in enumerate(ctx.messages) if message.role != "system"), len(ctx.messages))
    # A new list: the journal has the old one and is told only of messages appended to it.
    ctx.messages = [*ctx.messages[:place], *known, *ctx.messages[place:]]
    ctx.base += len(known)
    ctx.recalled = (place, place + len(known))


async def store(run: AgentRun) -> None:
    """Store the last exchange. A failing store keeps the output and marks the run as degraded."""
    ctx, memory = run.ctx, run.deps.memory
    if memory is None or ctx.remembered:
        return
    work = (message for message in reversed(ctx.messages[: ctx.base]) if message.role == "user")
    exchange = (*itertools.islice(work, 1), ctx.messages[-1])
    ctx.remembered = await _kept(run, memory.store(key(run), exchange))
    ctx.degraded = not ctx.remembered
    run.note("memory", {"stored": ctx.remembered})


def conversation(ctx: LoopContext | TeamContext) -> list[Message]:
    """Return the conversation without the memory's messages: each run of a conversation asks memory again."""
    start, end = ctx.recalled
    return [*ctx.messages[:start], *ctx.messages[end:]]


async def keep_summary(run: AgentRun, summary: Message) -> bool:
    """Store a compaction's summary; return False if memory could not."""
    memory = run.deps.memory
    return memory is None or await _kept(run, memory.compact(key(run), summary))


async def store_failure(run: AgentRun) -> None:
    """Store a failure episode. An error of the store is ignored, so that it does not hide the failure itself."""
    memory = run.deps.memory
    if memory is not None:
        await _kept(run, memory.store_failure(key(run), _episode(run)))


def key(run: AgentRun) -> str:
    """Return the memory key of a run: its conversation, else the run itself."""
    return run.ctx.conversation_id or run.run_id


async def _within(ctx: LoopContext | TeamContext, work: Awaitable[T]) -> T:
    """Return the result of a memory call. Raises TimeoutError after `memory_seconds`."""
    call = host_call(work, "memory", "memory")
    if not ctx.limits.memory_seconds:
        return await call
    try:
        return await limited(lambda: call, ctx.limits.memory_seconds, _SYSTEM_CLOCK)
    except TimeLimitPassed as error:
        raise TimeoutError(f"the memory gave {error}") from error


async def _kept(run: AgentRun, storing: Awaitable[None]) -> bool:
    try:
        await _within(run.ctx, storing)
    except Exception:  # noqa: BLE001 - errors of a host's store do not change the end of the run
        run.emit(OperationAttempt(run.graph.name, run.run_id, "memory", 1, "exhausted", "other"))
        return False
    return True


def _episode(run: AgentRun) -> FailureEpisode:
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
