"""`orchestrator runs export`: a run as a file to share, or as a conversation that `orchestrator replay` reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Any

from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json, shown
from orchestrator.cli.runs.events import as_json
from orchestrator.cli.runs.phrase import many, words
from orchestrator.cli.runs.store import OpenStore, at_journal, head_json
from orchestrator.errors import ConfigError
from orchestrator.journal.address import Address
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.llm.message import Usage
from orchestrator.runtime.backtest.trace_reader import trace_of
from orchestrator.runtime.runs.story import Story, TranscriptEntry

FORMAT = "orchestrator-run/1"
"""The format of an export without content."""


def export_run(name: str, *, content: bool, output: Path | None, json: bool, journal: Address | None) -> int:
    """Print a run as one line of JSON, or write it to a file that must not exist (mode 0600)."""

    async def work(store: OpenStore) -> tuple[str, dict[str, Any]]:
        head = await store.run(name)
        records = await store.journal.load(head.run_id)
        return head.run_id, conversation(head, Story.of(head.run_id, records)) if content else metadata(
            head, records
        )

    run_id, data = at_journal(journal, work, only_reads=True)
    if output is None:
        say_json(data)
        return Exit.COMPLETED
    write_new(output, dumps(data))
    what = "messages" if content else "records"
    if json:
        say_json({"run_id": run_id, "output": str(output.absolute()), what: len(data[what])})
    elif content:
        say(f"{output}: {many(len(data[what]), 'message')} of run {shown(run_id)}; to see them happen again:")
        say(f"  {words('replay', str(output), '--live')}")
    else:
        say(f"{output}: {many(len(data[what]), 'record')} of run {shown(run_id)}, without any texts")
    return Exit.COMPLETED


def metadata(head: RunHead, records: Sequence[Record]) -> dict[str, Any]:
    """Return data that may be shared: names, numbers and times, no texts. `orchestrator backtest` reads the trace."""
    return {
        "format": FORMAT,
        "run": head_json(head),
        "records": [as_json(record, content=False) for record in records],
        "trace": trace_of(head.run_id, records).as_json(),
    }


def conversation(head: RunHead, story: Story) -> dict[str, Any]:
    """Return a run as a recorded conversation (see `providers.recording`). Raises ConfigError for an empty run."""
    spoken = story.conversation
    if not spoken:
        raise ConfigError(f"run {head.run_id!r} has no messages yet: there is no conversation to export")
    seconds = {
        str(one.message["tool_call_id"]): float(one.done.get("seconds") or 0.0)
        for one in spoken
        if one.done is not None and one.message.get("tool_call_id")
    }
    ended = story.ended or {}
    return {
        "id": head.run_id,
        "model": next(iter(story.models), None),
        "messages": [dict(one.message) for one in spoken],
        "turns": [_turn(index, one) for index, one in enumerate(spoken) if one.answer is not None],
        "tool_seconds": seconds,
        "run": {
            **head_json(head),
            "state": story.state,
            "outcome": ended.get("outcome"),
            "output": ended.get("output"),
        },
    }


def _turn(index: int, spoken: TranscriptEntry) -> dict[str, Any]:
    """Return the record of one reply without its message."""
    answer: Mapping[str, Any] = spoken.answer or {}
    usage = Usage.of(answer.get("usage") or {})
    return {
        "message": index,
        "finish_reason": answer.get("finish_reason"),
        "latency_s": float(answer.get("seconds") or 0.0),
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
            "reasoning_tokens": usage.reasoning_tokens,
            **({} if usage.cost is None else {"cost": usage.cost}),
        },
    }


def write_new(file: Path, text: str) -> None:
    """Write a new file that only its owner can read. Raises ConfigError when it exists, or OSError."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise ConfigError(f"{file} exists and was not overwritten") from None
    with open(descriptor, "w", encoding="utf-8") as out:  # noqa: PTH123 - a descriptor, for its mode
        out.write(f"{text}\n")
