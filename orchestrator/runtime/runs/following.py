"""Follow a run from its journal, and its deltas where this process owns it.

A journal has no notification, so a run of another process is read again every POLL seconds: first its head, which
costs one row, and its records only if there are new ones. The owner needs no poll: its writer reports each append.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import Journal
from orchestrator.llm.run_event import RunEvent
from orchestrator.runtime.runs.event_reader import EventReader

POLL = 0.1
"""Seconds between two reads of a run that another process owns."""

START = (-1, 0)
"""Position before the first event."""


def position_of(after: int | str | None) -> tuple[int, int]:
    """Return record and part of the last event that was received. Raises ConfigError."""
    if after is None:
        return START
    seq, _, part = str(after).partition(".")
    if isinstance(after, bool) or not (seq.isdecimal() and (part.isdecimal() or not part)):
        raise ConfigError(
            f"after is {after!r}; it must be the id of an event, the number of a record (0 or more), or None"
        )
    return int(seq), int(part) if part else 1_000_000


async def follow(
    journal: Journal, run_id: str, after: tuple[int, int], *, to_end: bool
) -> AsyncGenerator[RunEvent, None]:
    """Yield the events of a run after a position; with `to_end` until the run has ended."""
    reader = EventReader(run_id)
    while True:
        if (await journal.head(run_id)).seq >= reader.next:
            for event in reader.read(await journal.load(run_id, reader.next)):
                if (event.seq or 0, event.part) > after:
                    yield event
        if reader.ended or not to_end:
            return
        await asyncio.sleep(POLL)
