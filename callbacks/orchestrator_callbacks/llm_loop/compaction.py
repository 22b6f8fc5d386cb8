"""Compaction: log that the context fills up, and replace older messages by a summary before a request is too long."""

from __future__ import annotations

import re

from orchestrator.kernel.fact import OperationAttempt
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.telemetry.scope import logger_from_context
from orchestrator_callbacks.llm_loop import memory
from orchestrator_callbacks.llm_loop.deps import LoopRun

HEADING = "Summary of the conversation so far:"
_SNIPPET = 240
_TOOL_RESULTS = 3
_LEAST_CHARS = 2_000
"""Characters that a summary may always have."""
_LEFT_OUT = re.compile(r"- ([0-9]+) earlier lines are left out")


def is_due(ctx: LoopContext) -> bool:
    """Return whether to compact before the next request. Checked in each turn, with a cooldown."""
    limits, state = ctx.limits, ctx.context
    if not limits.compaction_threshold or not state.limit or len(ctx.messages) <= ctx.base:
        return False
    cool = ctx.iteration - state.compacted_at >= limits.compaction_cooldown
    return cool and state.tokens >= limits.compaction_threshold * state.limit


def warn(run: LoopRun) -> None:
    """Log the highest threshold that the last reply passed, each one once until compaction or restart."""
    ctx, state = run.ctx, run.ctx.context
    if not state.limit:
        return
    passed = sum(state.tokens >= share * state.limit for share in ctx.limits.context_warnings)
    if passed > state.warned:
        state.warned = passed
        logger_from_context().warning(
            "context.filling",
            iteration=ctx.iteration,
            state=run.cursor.state,
            observed=state.tokens,
            limit=state.limit,
        )


async def compact(run: LoopRun) -> None:
    """Replace every message since the start by one summary. A memory that cannot store it is only counted."""
    ctx = run.ctx
    summary = Message("system", _summary(ctx))
    ctx.messages = [*ctx.messages[: ctx.base], summary]
    ctx.completion.mark = -1
    ctx.context.compacted_at, ctx.context.warned, ctx.context.tokens = ctx.iteration, 0, 0
    ctx.spent.compactions += 1
    kept = await memory.keep_summary(run, summary)
    outcome = "ok" if kept else "exhausted"
    run.emit(OperationAttempt(run.graph.name, run.run_id, "compaction", ctx.spent.compactions, outcome))


def _summary(ctx: LoopContext) -> str:
    """Return earlier summary lines, then one line for each assistant and user text and the last tool results.

    The oldest lines are left out where the whole had more characters than the threshold has tokens, which is about a
    quarter of it: a summary that grew with each compaction would fill the context in the end.
    """
    lines: list[str] = []
    results = 0
    for message in reversed(ctx.messages[ctx.base :]):
        if message.role == "system" and message.text.startswith(HEADING):
            lines += reversed(message.text.splitlines()[1:])
        elif message.role == "tool":
            results += 1
            if results <= _TOOL_RESULTS:
                lines.append(f"- result of {message.name}: {_snippet(message.text)}")
        elif message.tool_calls:
            names = ", ".join(call.name for call in message.tool_calls)
            lines.append(f"- {message.role} called {names}. {_snippet(message.text)}".rstrip())
        elif message.text:
            lines.append(f"- {message.role}: {_snippet(message.text)}")
    most = max(_LEAST_CHARS, int(ctx.limits.compaction_threshold * ctx.context.limit))
    return "\n".join([HEADING, *_newest(lines[::-1], most)])


def _newest(lines: list[str], most: int) -> list[str]:
    """Return the newest lines of at most so many characters, below the number of those that are left out."""
    left_out, first = 0, _LEFT_OUT.fullmatch(lines[0]) if lines else None
    if first:
        left_out, lines = int(first[1]), lines[1:]
    kept, length = len(lines), 0
    while kept and length + len(lines[kept - 1]) < most:
        kept -= 1
        length += len(lines[kept]) + 1
    left_out += kept
    return [f"- {left_out} earlier lines are left out", *lines[kept:]] if left_out else lines


def _snippet(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SNIPPET else f"{flat[: _SNIPPET - 1]}…"
