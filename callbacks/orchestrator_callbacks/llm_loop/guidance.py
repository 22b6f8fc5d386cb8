"""Tool guidance: reminds the model of failed and of successful calls. Part of the request, never stored."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.model import LoopContext

_SHOWN = 240


def guidance(ctx: LoopContext) -> Iterator[Message]:
    """Yield at most one message: the last failed calls, then as many successful ones, newest last."""
    failed: list[str] = []
    worked: list[str] = []
    most = ctx.limits.guidance
    arguments = _arguments(ctx)
    for message, text in zip(reversed(ctx.messages[ctx.base :]), reversed(arguments), strict=True):
        if message.role != "tool" or text is None:
            continue
        if message.is_error and len(failed) < most:
            failed.append(f"- {text} failed: {_cut(message.text)}")
        elif not message.is_error and len(worked) < most:
            worked.append(f"- {text} worked")
        if len(failed) == most == len(worked):
            break
    if failed:
        lines = ["Calls that failed:", *reversed(failed)]
        lines += ["Calls that worked:", *reversed(worked)] if worked else []
        yield Message("user", "\n".join(lines))


def _arguments(ctx: LoopContext) -> list[str | None]:
    """Return for each message since the start the call that it answers, by position; None for other messages."""
    texts: list[str | None] = []
    pending: list[str] = []
    for message in ctx.messages[ctx.base :]:
        if message.role == "assistant":
            pending = [f"{call.name}({_cut(call.arguments)})" for call in message.tool_calls]
        texts.append(pending.pop(0) if message.role == "tool" and pending else None)
    return texts


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
