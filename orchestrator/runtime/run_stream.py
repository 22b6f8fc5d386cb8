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

**A slow reader does not delay the run.** The run has its own task and never waits for its reader. A run of any length
uses bounded memory and ends in the same way without a reader: see `runtime.service.run_feed`.

**If the reader leaves, the run is left where it is** and can be resumed, as with a cancelled caller of `run`. `async
with` stops the run when the block is left in any way. So does a bare `async for` whose task is cancelled while it
waits for the next event. A loop that is left from its body (break, return, an exception) cannot await anything: Python
then finalises its iterator on the event loop, and the run has stopped some iterations of the event loop later. To let
an unread run continue, await `result()`. To end it, call `agent.cancel(stream.run_id)`; the stream then includes the
end of the run.

A resumed run streams from the first event after the last record that the journal had when the stream started. The
events of earlier processes are not read again: their reader had them. Of an ended run there is the end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from orchestrator.errors import RunError, Suspended
from orchestrator.kernel.clock import running_loop
from orchestrator.kernel.fact import Follower, RecordsWritten
from orchestrator.kernel.journal import RunHead
from orchestrator.llm.live_event import EventsDropped, RunEvent, TextDelta
from orchestrator.llm.run_event import RunFinished
from orchestrator.llm.structured_output import OutputSpec, UnusableAnswer
from orchestrator.runtime.llm_loop.result import OutputT_co, ResultT_co
from orchestrator.runtime.runs.event_reader import EventReader, as_stored
from orchestrator.runtime.runs.runs import Runs
from orchestrator.runtime.service.arguments import new_id
from orchestrator.runtime.service.hosting import BeginRun
from orchestrator.runtime.service.run_feed import StreamBuffer

R = TypeVar("R")
OutputOf: TypeAlias = Callable[[], Awaitable[OutputSpec | None]]
"""Returns the form of the output of the stream's run; None for free text."""
_NOTHING: Any = object()
_OWN_OR_SEGMENT = re.compile(r"(:s\d+)?")
"""What follows the id of a run in its own id and in those of its segments, if it is a run of a team."""
_ENDS_PART = re.compile(r"[,\]}\"\[{]")
"""A piece of JSON without these ends no item, and begins none."""


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
        output: OutputOf | None = None,
    ) -> None:
        self.run_id = run_id
        """Known before the run starts."""
        self._work = work
        self._output = output
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

    async def partial(self) -> AsyncGenerator[OutputT_co, None]:
        """Yield the output of an agent as far as the model has written it, in the agent's output type.

        Each value has what has arrived completely: items of lists and dicts, members of objects. A pydantic model or a
        TypedDict appears when its required fields are there, and a member with a default has it until its own value
        arrives. Free text is yielded as it grows. The last value is the output of the Result, after validators; a run
        without an output ends without it. Values are no promise: a value that is no continuation of the one before
        belongs to another answer, after a retry, tool calls or a handoff. It reads the events of the stream, as a loop
        over it does. Raises as iterating does.

        Example:
            async with agent.stream("List the open incidents.") as stream:    # output_type=list[Incident]
                async for incidents in stream.partial():
                    show(incidents)
        """
        spec = None if self._output is None else await self._output()
        place, text, last = ("", 0, 0), "", _NOTHING
        dropped, broken = False, place
        async with aclosing(self._events()) as events:
            async for event in events:
                dropped |= isinstance(event, EventsDropped)
                if not isinstance(event, TextDelta) or not self._answers(event.run_id):
                    continue
                answer = (event.run_id, event.iteration, event.attempt)
                if dropped:  # the beginning of this answer may be among them: its end alone is no value
                    dropped, broken = False, answer
                if answer == broken:
                    continue
                if answer != place:
                    place, text = answer, ""
                text += event.text
                if spec is None:
                    value: Any = text
                elif _ENDS_PART.search(event.text):
                    try:
                        value = spec.parse_partial(text)
                    except UnusableAnswer:
                        continue
                else:  # no part of the answer has ended
                    continue
                if last is _NOTHING or value != last:
                    last = value
                    yield value
        result: Any = await self.result()
        output = getattr(result, "output", None)
        if output is not None and (last is _NOTHING or output != last):
            yield output

    def _answers(self, run_id: str) -> bool:
        """Return whether the answers of a run are those of the stream's run: its own, or those of a segment."""
        return (
            run_id.startswith(self.run_id) and _OWN_OR_SEGMENT.fullmatch(run_id, len(self.run_id)) is not None
        )

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


def new_stream(
    begin: BeginRun, prompt: Any, run_id: str | None, *others: Any, output: OutputOf | None = None
) -> RunStream[Any, Any]:
    """Return the stream of a new run, which `begin` starts with these arguments when the first event is requested."""
    name = run_id or new_id()
    return RunStream(name, partial(begin, prompt, name, *others), output=output)


def resumed_stream(
    run_id: str,
    runs: Runs,
    refuse: Callable[[RunHead], None],
    resume: Callable[[], Awaitable[R]],
    output: OutputOf | None = None,
) -> RunStream[Any, R]:
    """Return the stream of a run that `resume` resumes when the first event is requested.

    `refuse` raises for a run of another agent, whose events are not read then.
    """

    async def work(receive: Follower) -> R:
        head = await runs.journal.head(run_id)
        refuse(head)
        after: int | str = head.seq - (head.status == "ended")

        async def pass_on(*, until_end: bool) -> None:
            nonlocal after
            async for event in runs.events(run_id, after=after, follow=until_end):
                receive(event)
                after = event.id or after

        following = asyncio.create_task(pass_on(until_end=True))
        try:
            await asyncio.sleep(0)  # the follower waits for the run before the model is asked
            result = await resume()
            await following
        except RunError:  # the run has parked, for example: its last events are in the journal
            following.cancel()
            await asyncio.wait((following,))
            await pass_on(until_end=False)
            raise
        finally:
            following.cancel()
            await asyncio.wait((following,))
        return result

    return RunStream(run_id, work, output=output)


def either_stream(
    new: RunStream[Any, R], other: RunStream[Any, R], exists: Callable[[str], Awaitable[bool]]
) -> RunStream[Any, R]:
    """Return the stream of a new run, or the other one if the run exists when the first event is requested."""

    async def work(receive: Follower) -> R:
        chosen = other if await exists(new.run_id) else new
        return await chosen._work(receive)  # noqa: SLF001 - of this class

    async def output() -> OutputSpec | None:
        chosen = other if await exists(new.run_id) else new
        return None if chosen._output is None else await chosen._output()  # noqa: SLF001 - of this class

    return RunStream(new.run_id, work, output=output)
