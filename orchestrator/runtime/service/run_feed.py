"""The feed of a live run: it passes durable records and the pieces of answers to readers, which never delay the run.

Unread items are buffered: up to FINE individually; beyond that the pieces of one answer are merged into one delta, so
that text gets coarser but is not lost; beyond KEPT the oldest are dropped, and an `EventsDropped` says how many. A
bounded queue that blocks the run was rejected, because one stalled browser would hold a slot, a lease and a provider
connection. An unbounded queue was rejected too. The feed keeps the pieces of the present answer, for a reader that
arrives in the middle of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import StringIO
from typing import Any, TypeAlias

from orchestrator.kernel.fact import Follower, RecordsWritten
from orchestrator.llm.live_event import EventsDropped, ReasoningDelta, TextDelta, ToolArgumentsDelta

Delta: TypeAlias = TextDelta | ReasoningDelta | ToolArgumentsDelta

FINE = 256
"""Unread entries above which pieces of an answer are merged."""
KEPT = 10_000
"""Maximum unread entries: some 800 turns, as many as the transitions in a Result."""


class StreamBuffer:
    """Unread items of one run and its child runs. For one event loop."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._entries: deque[Any] = deque()
        self._growing: dict[str, _Piece] = {}
        """Run -> the piece that its next delta may join: its last entry, if unread."""
        self._dropped = 0
        self._news = asyncio.Event()
        self._ended = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, item: Any) -> None:
        """Add an item with a `run_id`, unless the stream has ended. Never waits."""
        if self._ended:
            return
        if isinstance(item, Delta):
            last = self._growing.get(item.run_id)
            if last is not None and len(self._entries) >= FINE and last.takes(item):
                return
            piece = self._growing[item.run_id] = _Piece(item)
            self._entries.append(piece)
        else:
            self._growing.pop(item.run_id, None)
            self._entries.append(item)
        if len(self._entries) > KEPT:
            self._take()
            self._dropped += 1
        self._news.set()

    def end(self) -> None:
        """Mark the end of the items."""
        self._ended = True
        self._news.set()

    async def next(self) -> Any:
        """Return the oldest item, waiting if necessary; None when all were read and no more will come."""
        while not self._entries:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        if self._dropped:
            missed, self._dropped = self._dropped, 0
            return EventsDropped(run_id=self._run_id, count=missed)
        return self._take()

    def _take(self) -> Any:
        entry = self._entries.popleft()
        if not isinstance(entry, _Piece):
            return entry
        if self._growing.get(entry.delta.run_id) is entry:
            del self._growing[entry.delta.run_id]
        return entry.whole()


class _Piece:
    """A delta that may still grow. Uses a buffer, because joining strings takes quadratic time."""

    __slots__ = ("_more", "delta")

    def __init__(self, delta: Delta) -> None:
        self.delta = delta
        self._more: StringIO | None = None

    def takes(self, piece: Delta) -> bool:
        """Append a piece of the same kind, attempt and call; return False for another one."""
        if _answer_of(piece) != _answer_of(self.delta):
            return False
        if self._more is None:
            self._more = StringIO(newline="")
        self._more.write(piece.text)
        return True

    def whole(self) -> Delta:
        """Return the delta with the pieces that it took."""
        return (
            self.delta
            if self._more is None
            else replace(self.delta, text=self.delta.text + self._more.getvalue())
        )


def _answer_of(delta: Delta) -> tuple[Any, ...]:
    return type(delta), delta.iteration, delta.attempt, getattr(delta, "position", 0)


_ANSWERED = frozenset(("answer", "transition", "ended"))
"""Kinds of records after which there is no present answer."""


class RunFeed:
    """The follower of one run. `readers` also receive what its child runs pass on."""

    def __init__(self, run_id: str, readers: Iterable[Follower] = ()) -> None:
        self.run_id = run_id
        self._readers = list(readers)
        self._taps: set[StreamBuffer] = set()
        self._attempt: tuple[int, int] | None = None
        self._pieces: dict[tuple[type, int], tuple[Delta, StringIO]] = {}
        """Kind and position -> its first delta, and its text so far."""

    def __call__(self, item: Any) -> None:
        """Receive an item of the run or of a child run."""
        if item.run_id == self.run_id:
            if isinstance(item, RecordsWritten):
                if any(record.kind in _ANSWERED for record in item.records):
                    self._pieces.clear()
            elif isinstance(item, Delta):
                if (item.iteration, item.attempt) != self._attempt:
                    self._attempt = item.iteration, item.attempt
                    self._pieces.clear()
                key = type(item), getattr(item, "position", 0)
                if key not in self._pieces:
                    self._pieces[key] = item, StringIO(newline="")
                self._pieces[key][1].write(item.text)
            else:  # the attempt failed
                self._pieces.clear()
            for tap in self._taps:
                tap.put(item)
        for reader in self._readers:
            reader(item)

    @contextlib.contextmanager
    def tap(self) -> Iterator[StreamBuffer]:
        """Yield a buffer with the pieces so far of the present answer, which then receives each item of the run."""
        buffer = StreamBuffer(self.run_id)
        for delta, text in self._pieces.values():
            buffer.put(replace(delta, text=text.getvalue()))
        self._taps.add(buffer)
        try:
            yield buffer
        finally:
            self._taps.discard(buffer)

    def close(self) -> None:
        """End the buffers: the run is no longer live here."""
        for tap in self._taps:
            tap.end()
