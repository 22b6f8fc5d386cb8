"""Runs of a team as records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import RunUnknown
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import Message
from orchestrator.machines.team.model import TeamContext, TeamState
from orchestrator.runtime.llm_loop.run_record import context_of, loop_codec, output_record
from orchestrator_callbacks.llm_loop import memory


def team_codec(launch: Mapping[str, Any] | None = None) -> ContextCodec[TeamContext]:
    """Return the codec of a team. The output is in the last message or in the last record."""
    return ContextCodec(
        TeamContext,
        growing="messages",
        item=lambda _, messages: [message.to_openai() for message in messages],
        apart=("output", "remembered", "tool_errors"),
        output=output_record,  # type: ignore[arg-type]  # it reads the output and the messages
        about=lambda ctx: {"conversation_id": ctx.conversation_id} | ({"launch": launch} if launch else {}),
    )


def team_context_of(stored: StoredRun) -> TeamContext:
    """Return the context of a stored run of a team."""
    messages = [Message.from_openai(item) for item in stored.messages]
    ctx = team_codec().decoded(stored.context | {"messages": messages})
    ctx.remembered = stored.remembered
    return ctx


async def conversation_of(journal: Journal, stored: StoredRun) -> list[Message]:
    """Return the messages of a stored run of a team, with those of a segment that is open. Raises JournalError."""
    ctx = team_context_of(stored)
    messages = memory.conversation(ctx)
    if stored.state != TeamState.WORKING or stored.next is not None:
        return messages
    run_id = ctx.segment_id(stored.run_id)
    try:
        records = await journal.load(run_id)
    except RunUnknown:
        return messages
    last = context_of(StoredRun.of(run_id, records), loop_codec())
    return [*messages, *last.messages[last.base :]]
