"""Follow a run from its journal, and the pieces of its answers where this process owns it.

A journal has no notification, so a run of another process is read again every POLL seconds: first its head, which
costs one row, and its records only if there are new ones. The owner needs no poll: its feed has each append.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from orchestrator.errors import ConfigError, RunUnknown
from orchestrator.kernel.journal import Journal, Record
from orchestrator.kernel.record import RecordsWritten
from orchestrator.llm.run_event import EventsDropped, RunEvent
from orchestrator.runtime.runs.event_reader import EventReader, as_stored
from orchestrator.runtime.service.live_run import RunRegistry
from orchestrator.runtime.service.stream_buffer import StreamBuffer

POLL = 0.1
"""Seconds between two reads of a run that another process owns."""

_START = (-1, 0)
_WHOLE = 1_000_000
"""More than the events of any record."""


def position_of(after: int | str | None) -> tuple[int, int]:
    """Return record and part of the last event that was received. Raises ConfigError."""
    if after is None:
        return _START
    seq, dot, part = str(after).partition(".")
    kind_is_wrong = isinstance(after, bool) or not isinstance(after, int | str)
    if kind_is_wrong or not seq.isdecimal() or (dot and not part.isdecimal()):
        raise ConfigError(
            f"after is {after!r}; it must be the id of an event, the number of a record (0 or more), or None"
        )
    return int(seq), int(part) if dot else _WHOLE


class RunFollower:
    """Reads the events of one run after a position."""

    def __init__(self, journal: Journal, live: RunRegistry, run_id: str, after: tuple[int, int]) -> None:
        self._journal = journal
        self._live = live
        self._run_id = run_id
        self._after = after
        self._reader = EventReader(run_id)

    async def stored(self) -> AsyncGenerator[RunEvent, None]:
        """Yield the events that the journal has and that were not read. Raises RunUnknown, Corrupt, StoreDown."""
        if (await self._journal.head(self._run_id)).seq >= self._reader.next:
            for event in self._read(await self._journal.load(self._run_id, self._reader.next)):
                yield event

    async def until_end(self) -> AsyncGenerator[RunEvent, None]:
        """Yield the events until the run has ended, from its feed while it is live here."""
        while not self._reader.ended:
            feed = self._live.feed_of(self._run_id)
            with contextlib.nullcontext() if feed is None else feed.tap() as tap:
                try:
                    async for event in self.stored():
                        yield event
                except RunUnknown:
                    if tap is None:
                        raise  # a live run may not be in the journal yet
                if tap is not None:
                    async for event in self._tapped(tap):
                        yield event
                    continue  # the rest is in the journal
            if not self._reader.ended:
                await self._live.wait_for(self._run_id, POLL)

    async def _tapped(self, tap: StreamBuffer) -> AsyncGenerator[RunEvent, None]:
        """Yield the events of a live run until it is no longer live here, or has ended."""
        while not self._reader.ended and (item := await tap.next()) is not None:
            if isinstance(item, RecordsWritten):
                for event in self._read(await self._without_gap(item)):
                    yield event
            elif not isinstance(item, EventsDropped) and item.iteration > self._reader.answered:
                yield item

    async def _without_gap(self, written: RecordsWritten) -> Sequence[Record]:
        """Return new records, and those before them that a slow reader lost."""
        if written.records[0].seq > self._reader.next:
            return await self._journal.load(self._run_id, self._reader.next)
        return as_stored(written.records)

    def _read(self, records: Sequence[Record]) -> Iterator[Any]:
        for event in self._reader.read(records):
            if (event.seq or 0, event.part) > self._after:
                yield event
