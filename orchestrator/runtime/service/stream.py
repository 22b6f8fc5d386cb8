"""A stream of a run's facts and its model's text, for a reader who may be slow, late or gone.

    async for fact in agent.stream("Summarise the open incidents."):        # the loop is the run's caller
        match fact:
            case TokenDelta(text=text):
                print(text, end="")
            case ToolCall(tool=name, outcome=outcome):
                print(f"[{name}: {outcome}]")

    async with agent.stream("Summarise the open incidents.") as stream:     # the block is
        async for fact in stream:
            ...
        result = await stream.result()

**A slow reader does not delay the run.** The run has its own task and never waits for its reader. Unread entries are
buffered: up to FINE entries individually; beyond that the chunks of one answer are merged into one delta, so that
text gets coarser but is not lost; beyond KEPT entries the oldest are dropped, and a `FactsDropped` says how many. So
a run of any length uses bounded memory and ends in the same way without a reader. A bounded queue that blocks the run
was rejected, because one stalled browser would hold a slot, a lease and a provider connection. An unbounded queue was
rejected too.

**If the reader leaves, the run is left where it is** and can be resumed, as with a cancelled caller of `run`. `async
with` stops the run when the block is left in any way. So does a bare `async for` whose task is cancelled while it
waits for the next fact. A loop that is left from its body (break, return, an exception) cannot await anything: Python
then finalises its iterator on the event loop, and the run has stopped some iterations of the event loop later. To let
an unread run continue, await `result()`. To end it, call `agent.cancel(stream.run_id)`; the stream then includes the
end of the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from io import StringIO
from types import TracebackType
from typing import Any, Generic, Self

from orchestrator.errors import RunError, Suspended
from orchestrator.kernel.record import FactsDropped, Follower, Streamed, TokenDelta
from orchestrator.runtime.llm_loop.result import OutputT_co, ResultT_co

FINE = 256
"""Unread entries above which chunks of an answer are merged."""
KEPT = 10_000
"""Maximum unread entries: some 800 turns, as many as the transitions in a Result."""


class RunStream(Generic[OutputT_co, ResultT_co]):
    """A stream of one run: yields its facts in the order of publication, and TokenDelta.

    `RunStream[Report]` ends with a `Result[Report]`. The second parameter is another class of results, as in `Handle`.

    Facts and deltas of child runs (the agents among its tools) are included with their own `run_id`; its own have
    `stream.run_id`. The stream ends after the run's RunCompleted and raises the errors of `Agent.run`. The
    outcome is `(await stream.result()).outcome`. The run starts when the first fact is requested, or with `async
    with`. Several loops, consecutive or concurrent, share the facts: each fact is read once.
    """

    def __init__(
        self,
        run_id: str,
        graph: str,
        work: Callable[[Follower], Coroutine[Any, Any, ResultT_co]],
        gone: RunError | None = None,
    ) -> None:
        self.run_id = run_id
        """Known before the run starts."""
        self._work = work
        self._gone = gone or Suspended(run_id, "interrupted")
        self._backlog = StreamBuffer(graph, run_id)
        self._task: asyncio.Task[ResultT_co] | None = None
        self._left = False

    def __aiter__(self) -> AsyncIterator[Streamed]:
        return self._facts()

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def result(self) -> ResultT_co:
        """Return the Result when the run has ended, whether or not its facts are read.

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

    async def _facts(self) -> AsyncGenerator[Streamed, None]:
        task, begun = self._begin()
        try:
            while (fact := await self._backlog.next()) is not None:
                yield fact
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
        task = self._task = asyncio.create_task(
            self._work(self._backlog.put), name=f"orchestrator stream {self.run_id}"
        )
        task.add_done_callback(lambda _: self._backlog.end())
        return task, True

    def _outcome(self, task: asyncio.Task[ResultT_co]) -> ResultT_co:
        if task.cancelled():
            raise self._gone
        return task.result()


class StreamBuffer:
    """Unread facts within bounds. For one event loop."""

    def __init__(self, graph: str, run_id: str) -> None:
        self._graph = graph
        self._run_id = run_id
        self._entries: deque[Streamed | _Text] = deque()
        self._growing: dict[str, _Text] = {}
        """Run -> the text that its next delta may join: its last entry, if unread."""
        self._dropped = 0
        self._news = asyncio.Event()
        self._ended = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, fact: Streamed) -> None:
        """Add a fact, unless the stream has ended. Never waits."""
        if self._ended:
            return
        if type(fact) is TokenDelta:
            text = self._growing.get(fact.run_id)
            if text is not None and len(self._entries) >= FINE and text.takes(fact):
                return
            text = self._growing[fact.run_id] = _Text(fact)
            self._entries.append(text)
        else:
            self._growing.pop(fact.run_id, None)
            self._entries.append(fact)
        if len(self._entries) > KEPT:
            self._take()
            self._dropped += 1
        self._news.set()

    def end(self) -> None:
        """Mark the end of the facts."""
        self._ended = True
        self._news.set()

    async def next(self) -> Streamed | None:
        """Return the oldest fact, waiting if necessary; None when all were read and no more will come."""
        while not self._entries:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        if self._dropped:
            missed, self._dropped = self._dropped, 0
            return FactsDropped(self._graph, self._run_id, missed)
        return self._take()

    def _take(self) -> Streamed:
        entry = self._entries.popleft()
        if not isinstance(entry, _Text):
            return entry
        if self._growing.get(entry.delta.run_id) is entry:
            del self._growing[entry.delta.run_id]
        return entry.whole()


class _Text:
    """A delta that may still grow. Uses a buffer, because joining strings takes quadratic time."""

    __slots__ = ("_more", "delta")

    def __init__(self, delta: TokenDelta) -> None:
        self.delta = delta
        self._more: StringIO | None = None

    def takes(self, piece: TokenDelta) -> bool:
        """Append a chunk of the same attempt at the same answer; return False for another one's."""
        ours = self.delta
        if (piece.iteration, piece.attempt) != (ours.iteration, ours.attempt):
            return False
        if self._more is None:
            self._more = StringIO(newline="")
        self._more.write(piece.text)
        return True

    def whole(self) -> TokenDelta:
        ours, more = self.delta, self._more
        if more is None:
            return ours
        text = ours.text + more.getvalue()
        return TokenDelta(ours.graph, ours.run_id, ours.iteration, ours.attempt, text)
