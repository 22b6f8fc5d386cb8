"""A stream of a run's events, for a reader who may be slow, late or gone.

async for event in agent.stream("Summarise the open incidents."):        # the loop is the run's caller
        match event:
            case TextDelta(text=text):
                print(text, end="")
            case ToolFinished(tool=name, outcome=outcome):
                print(f"[{name}: {outcome}]")

    async with agent.stream("Summarise the open incidents.") as stream:     # the block is
        async for event in stream:
            ...
        result = await stream.result()

**Its events are those of the journal**, converted by the same function (`EventReader`), with the same ids, and the
deltas between them. An event is yielded when its record is durable.

**A slow reader does not delay the run.** The run has its own task and never waits for its reader. Unread entries are
buffered: up to FINE entries individually; beyond that the pieces of one answer are merged into one delta, so that
text gets coarser but is not lost; beyond KEPT entries the oldest are dropped, and an `EventsDropped` says how many. So
a run of any length uses bounded memory and ends in the same way without a reader. A bounded queue that blocks the run
was rejected, because one stalled browser would hold a slot, a lease and a provider connection. An unbounded queue was
rejected too.

**If the reader leaves, the run is left where it is** and can be resumed, as with a cancelled caller of `run`. `async
with` stops the run when the block is left in any way. So does a bare `async for` whose task is cancelled while it
waits for the next event. A loop that is left from its body (break, return, an exception) cannot await anything: Python
then finalises its iterator on the event loop, and the run has stopped some iterations of the event loop later. To let
an unread run continue, await `result()`. To end it, call `agent.cancel(stream.run_id)`; the stream then includes the
end of the run.

The run passes its durable records and the pieces of its model's answers to the feed, and the feed passes them to its
readers. It keeps the pieces of the present answer, for a reader that arrives in the middle of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from io import StringIO
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias

from orchestrator.errors import RunError, Suspended
from orchestrator.kernel.record import Follower, RecordsWritten
from orchestrator.kernel.thread import running_loop
from orchestrator.llm.run_event import (
    EventsDropped,
    ReasoningDelta,
    RunEvent,
    RunFinished,
    TextDelta,
    ToolArgumentsDelta,
)
from orchestrator.runtime.llm_loop.result import OutputT_co, ResultT_co
from orchestrator.runtime.runs.event_reader import EventReader, as_stored

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


class RunStream(Generic[OutputT_co, ResultT_co]):
    """A stream of one run: yields its events (`orchestrator.events`) in their order.

    `RunStream[Report]` ends with a `Result[Report]`. The second parameter is another class of results, as in `Handle`.

    Events of child runs (the agents among its tools) are included with their own `run_id`; its own have
    `stream.run_id`. The stream ends after the run's RunFinished and raises the errors of `Agent.run`. The
    outcome is `(await stream.result()).outcome`. The run starts when the first event is requested, or with `async
    with`. Several loops, consecutive or concurrent, share the events: each event is read once.
    """

    def __init__(
        self,
        run_id: str,
        work: Callable[[Follower], Coroutine[Any, Any, ResultT_co]],
        gone: RunError | None = None,
    ) -> None:
        self.run_id = run_id
        """Known before the run starts."""
        self._work = work
        self._gone = gone or Suspended(run_id, "interrupted")
        self._backlog = StreamBuffer(run_id)
        self._readers: dict[str, EventReader] = {}
        self._task: asyncio.Task[ResultT_co] | None = None
        self._left = False
        self._finished = False

    def __aiter__(self) -> AsyncIterator[RunEvent]:
        return self._events()

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def result(self) -> ResultT_co:
        """Return the Result when the run has ended, whether or not its events are read.

        Raises the errors of `Agent.run`, and Suspended if the run was left before its end. If the caller is
        cancelled, the run is left if this call started it; otherwise only the waiting ends.
        """
        task, begun = self._begin()
        try:
            await asyncio.wait((task,))
        finally:
            if begun:
                await self.aclose()
        return self._outcome(task)

    async def aclose(self) -> None:
        """Leave the run where it is, unless it is over, and return when none of its work is active here."""
        self._left = True
        late: asyncio.CancelledError | None = None
        if self._task is not None:
            self._task.cancel()
            while not self._task.done():
                try:
                    await asyncio.wait((self._task,))
                except asyncio.CancelledError as cancelled:
                    late = cancelled
        if late is not None:
            raise late

    async def _events(self) -> AsyncGenerator[RunEvent, None]:
        task, begun = self._begin()
        try:
            while (event := await self._backlog.next()) is not None:
                yield event
            self._outcome(task)
        finally:
            if begun:
                await self.aclose()

    def _begin(self) -> tuple[asyncio.Task[ResultT_co], bool]:
        """Return the task that drives the run, and whether this call started it: then the caller has to end it."""
        if self._task is not None:
            return self._task, False
        if self._left:
            raise RunError(f"the stream of run {self.run_id!r} was closed before the run started")
        loop = running_loop()
        task = self._task = loop.create_task(
            self._work(self._receive), name=f"orchestrator stream {self.run_id}"
        )
        task.add_done_callback(self._end)
        return task, True

    def _receive(self, item: Any) -> None:
        """Receive an item of the run or of a child run: its durable records, or an event that no record has."""
        if isinstance(item, RecordsWritten):
            reader = self._readers.setdefault(item.run_id, EventReader(item.run_id))
            for event in reader.read(as_stored(item.records)):
                self._put(event)
        else:
            self._put(item)

    def _put(self, event: RunEvent) -> None:
        self._finished |= isinstance(event, RunFinished) and event.run_id == self.run_id
        self._backlog.put(event)

    def _end(self, task: asyncio.Task[ResultT_co]) -> None:
        """End the events. A run that lost its journal has no last record, so its end is made from its result."""
        if not task.cancelled() and task.exception() is None and not self._finished:
            result: Any = task.result()
            if hasattr(result, "outcome"):  # not the status of an approval, which waits for a person
                self._backlog.put(
                    RunFinished(run_id=self.run_id, outcome=str(result.outcome), reason=str(result.reason))
                )
        self._backlog.end()

    def _outcome(self, task: asyncio.Task[ResultT_co]) -> ResultT_co:
        if task.cancelled():
            raise self._gone
        return task.result()


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
