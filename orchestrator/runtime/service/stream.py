"""A run as it goes: its facts and the words of its model, for a reader who may be slow, late, or gone.

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

**Who reads slowly holds up nothing.** The run goes on in a task of its own and never waits for its reader. What is
not read yet is kept: up to FINE entries each as it came; beyond that the pieces of one answer grow together into one
delta, so that text gets coarser and none is lost; and of KEPT entries the oldest make room for the newest, whose
place a `FactsDropped` takes that says how many. So a run of any length ends in the same way without a reader, in
bounded memory. A queue that blocks the run when it is full was rejected: one
stalled browser would hold a slot, a lease and a place at the provider. One without bounds was rejected as well.

**Who leaves gives the run up**, as a cancelled caller of `run` does: it stops where it stands, `resume` goes on from
there. `async with` has it stopped when the block is left, however that is. So has a bare `async for` whose task is
cancelled while it waits for the next fact. One that is left from its body (break, return, an exception) cannot await
anything: there Python finalises the loop's iterator at once, on the event loop, and the run has stopped some turns of
that later. To let a run go on that nobody reads, await `result()`; to end it, `agent.cancel(stream.run_id)`, of which
the stream then tells to its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from io import StringIO
from types import TracebackType
from typing import Any, Self

from orchestrator.errors import RunError, Suspended
from orchestrator.kernel.record import FactsDropped, Follower, Streamed, TokenDelta
from orchestrator.runtime.llm_loop.result import Result

FINE = 256
"""Entries that wait to be read before the pieces of an answer grow together."""
KEPT = 10_000
"""Entries that wait to be read at most: some 800 turns. As many transitions as a Result has."""


class RunStream:
    """One run, told while it goes: yields its facts in the order in which observers hear them, and TokenDelta.

    With it come the facts and deltas of the runs below it (the agents among its tools), each with its own `run_id`;
    its own have `stream.run_id`. It ends after the run's RunCompleted, and raises what `Orchestrator.run` would: how
    the run ended is `(await stream.result()).outcome`. It begins with the first fact that is asked for, or with
    `async with`. Several loops, one after the other or at once, share what comes: each fact is read once.
    """

    def __init__(
        self,
        run_id: str,
        graph: str,
        work: Callable[[Follower], Coroutine[Any, Any, Result]],
        gone: RunError | None = None,
    ) -> None:
        self.run_id = run_id
        """Known before the run begins."""
        self._work = work
        self._gone = gone or Suspended(run_id, "interrupted")
        self._backlog = StreamBuffer(graph, run_id)
        self._task: asyncio.Task[Result] | None = None
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

    async def result(self) -> Result:
        """Return the Result once the run has ended, whether or not its facts are read.

        Raises what `Orchestrator.run` raises, and Suspended where the run was left before its end. Who is cancelled
        while waiting gives the run up if it was begun by this, else only the waiting.
        """
        task, begun = self._begin()
        try:
            await asyncio.wait((task,))
        finally:
            if begun:
                await self.aclose()
        return self._outcome(task)

    async def aclose(self) -> None:
        """Leave the run where it stands, unless it is over, and return when nothing of it goes on here any more."""
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

    def _begin(self) -> tuple[asyncio.Task[Result], bool]:
        """Return the task that drives the run, and whether it was begun by this: then it is the caller's to end."""
        if self._task is not None:
            return self._task, False
        if self._left:
            raise RunError(f"the stream of run {self.run_id!r} was closed before the run began")
        task = self._task = asyncio.create_task(
            self._work(self._backlog.put), name=f"orchestrator stream {self.run_id}"
        )
        task.add_done_callback(lambda _: self._backlog.end())
        return task, True

    def _outcome(self, task: asyncio.Task[Result]) -> Result:
        if task.cancelled():
            raise self._gone
        return task.result()


class StreamBuffer:
    """What nobody has read yet, within bounds. For one event loop."""

    def __init__(self, graph: str, run_id: str) -> None:
        self._graph = graph
        self._run_id = run_id
        self._entries: deque[Streamed | _Text] = deque()
        self._growing: dict[str, _Text] = {}
        """Run -> the text that its next delta may join: its last entry, still unread."""
        self._dropped = 0
        self._news = asyncio.Event()
        self._ended = False

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, fact: Streamed) -> None:
        """Add a fact, as long as there is somebody to read it. Never waits."""
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
        """Say that nothing more will come."""
        self._ended = True
        self._news.set()

    async def next(self) -> Streamed | None:
        """Return the oldest fact once there is one; None when all were read and no more will come."""
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
    """A delta that may still grow. Pieces go to a buffer: joining strings would cost the square of their number."""

    __slots__ = ("_more", "delta")

    def __init__(self, delta: TokenDelta) -> None:
        self.delta = delta
        self._more: StringIO | None = None

    def takes(self, piece: TokenDelta) -> bool:
        """Grow by a piece of the same attempt at the same answer; False for another one's."""
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
