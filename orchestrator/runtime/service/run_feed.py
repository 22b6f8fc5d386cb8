"""The feed of a live run: what its process knows of it at once, for any number of readers.

The run passes its durable records and the pieces of its model's answers to the feed, and the feed passes them to its
readers. It keeps the pieces of the present answer, for a reader that arrives in the middle of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import StringIO
from typing import Any, TypeAlias

from orchestrator.kernel.record import Follower, RecordsWritten
from orchestrator.llm.run_event import ReasoningDelta, TextDelta, ToolArgumentsDelta
from orchestrator.runtime.service.stream_buffer import StreamBuffer

Delta: TypeAlias = TextDelta | ReasoningDelta | ToolArgumentsDelta

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
            self._keep(item)
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

    def _keep(self, item: Any) -> None:
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
