"""A journal outside of the process: its handle is opened at the first use and belongs to one process.

Opening and reading use one thread beside the event loop, so two first callers do not open a store twice. A handle that
was opened before a fork refuses everything in the child.

One thread of a store writes: it takes all queued jobs, writes them together, then reports each outcome. An event loop
wakes it once per turn of the loop, not once per job. Woken by the first job of a turn, the thread would compete with
the loop for the interpreter's lock, and commit a hundred runs four at a time. Each store defines its jobs and how it
writes a batch (`_commit`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar, Unpack
from weakref import WeakSet

from orchestrator.errors import Corrupt, JournalError, StoreDown
from orchestrator.journal.run_query import RunQuery
from orchestrator.kernel.clock import running_loop
from orchestrator.kernel.journal import Pending, RunConditions, RunHead

T = TypeVar("T")
S = TypeVar("S")
"""The argument of a job's work: a store's transaction or session."""

ENOUGH = 64
"""Jobs that justify their own sync while the loop still adds more."""
_GO, _END = True, False
"""Messages of the bell: there are jobs; write them and end."""


class WriterJob(Generic[S, T]):
    """A unit of writing, its preparation before the transaction, and the future of its caller."""

    __slots__ = ("first", "loop", "pending", "work")

    def __init__(self, work: Callable[[S], T], first: Callable[[], None] | None) -> None:
        self.work = work
        self.first = first
        self.loop = asyncio.get_running_loop()
        self.pending: Pending[T] = Pending(loop=self.loop)


class DeferredWork(ABC):
    """The work of a job that runs later if the store cannot be reached now: the release of a run."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, written_through: Any, /) -> None:
        """Do the work."""


Outcome: TypeAlias = tuple[WriterJob[Any, Any], Any, BaseException | None]
"""A job, and its result or its error."""


class WriterThread(ABC, Generic[S]):
    """A thread that owns the writing connection, from `start` on.

    `limit` bounds a batch, and the queue for all jobs but appends. `submit` and `call` belong to event loops, each
    job to its caller's loop. `stop` and `refuse_if_down` may be called from any thread. Only the thread uses the
    connection.
    """

    def __init__(self, *, limit: int, name: str, noun: str = "journal") -> None:
        self.down: JournalError | None = None
        """The reason why nothing is written; None while the thread writes."""
        self.suspended = False
        """Whether the reason may pass: then the thread lives and tries again, else it ends."""
        self.commits = 0
        """Transactions committed, each with one sync."""
        self._limit = limit
        self._noun = noun
        self._jobs: deque[WriterJob[S, Any]] = deque()
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._ringing: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        """Loops that will wake the thread at the end of their present turn."""
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        """Callers that wait for room in the queue."""
        self._owed: list[WriterJob[S, Any]] = []
        """Runs that were reported as released although the store could not be reached then."""
        self._thread = threading.Thread(target=self._serve, name=f"{noun} {name}", daemon=True)

    def start(self) -> None:
        """Start to write."""
        self._thread.start()

    # ---- from event loops ----

    def submit(self, work: Callable[[S], T], first: Callable[[], None] | None = None) -> Pending[T]:
        """Queue a job and return its outcome to await. Raises StoreDown."""
        if not (self.suspended and isinstance(work, DeferredWork)):
            self.refuse_if_down()
        job = WriterJob(work, first)
        self._jobs.append(job)
        if self.down is not None and not self.suspended:  # the thread ended after the check
            self._fail_queued(self.down)
        if len(self._jobs) == ENOUGH:
            self._bell.put(_GO)
        if job.loop not in self._ringing:
            self._ringing.add(job.loop)
            job.loop.call_soon(self._ring, job.loop)
        return job.pending

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the thread after every ready task has run, so that one sync serves them all."""
        self._ringing.discard(loop)
        self._bell.put(_GO)

    async def call(self, work: Callable[[S], T], first: Callable[[], None] | None = None) -> T:
        """Wait for room in the queue, then for the job. Raises StoreDown, and the errors of the job."""
        while len(self._jobs) >= self._limit and self.down is None:
            loop = asyncio.get_running_loop()
            room = loop.create_future()
            self._waiting.append((loop, room))
            if len(self._jobs) >= self._limit and self.down is None:
                await room
        return await self.submit(work, first)

    def refuse_if_down(self) -> None:
        """Raise the error that took the writer down."""
        if self.down is not None:
            raise down(self.down) from self.down

    def stop(self, timeout: float | None = None) -> None:
        """Write what is queued, then end the thread and wait for it."""
        self._end()
        self._thread.join(timeout)

    def _end(self) -> None:
        """Ask the thread, which may be waiting, to end."""
        self._bell.put(_END)

    # ---- in the thread ----

    @abstractmethod
    def _commit(self, jobs: Sequence[WriterJob[S, Any]]) -> None:
        """Write some jobs and report their outcomes."""

    @abstractmethod
    def _close(self) -> None:
        """Release the writing connection."""

    def _idle(self) -> float | None:
        """Do the due work, and return the seconds until the next; None for never."""
        return None

    def _serve(self) -> None:
        try:
            while self._serve_batch():
                pass
        finally:
            self.down = self.down or StoreDown(f"the {self._noun} is closed")
            self._fail_queued(self.down)
            self._close()

    def _serve_batch(self) -> bool:
        jobs: list[WriterJob[S, Any]] = []
        more = True
        try:
            jobs, more = self._take(self._idle())
            self._wake_waiting()
            if self.down is not None:
                self._put_off(jobs, down(self.down))
            elif jobs:
                self._commit(jobs)
        except BaseException as death:  # noqa: BLE001  no caller may wait for ever when this thread ends
            self.suspended = False
            self.down = StoreDown(f"the {self._noun}'s writer thread died: {type(death).__name__}: {death}")
            self._fail(jobs, self.down)
        return more and (self.down is None or self.suspended)

    def _take(self, patience: float | None) -> tuple[list[WriterJob[S, Any]], bool]:
        """Wait for the bell; return the jobs of one batch, and whether to continue after it."""
        try:
            more = self._bell.get(timeout=patience)
        except queue.Empty:
            return [], True
        jobs: list[WriterJob[S, Any]] = []
        with contextlib.suppress(IndexError):
            while len(jobs) < self._limit:
                jobs.append(self._jobs.popleft())
        if self._jobs:
            self._bell.put(more)
            return jobs, True
        return jobs, more

    def _owe(self, job: WriterJob[S, Any]) -> None:
        """Report a run as released, and release it when the store can be reached.

        Otherwise it would be held by a living process that does not drive it, for the life of that process.
        """
        self._owed.append(job)
        self._deliver([(job, None, None)])

    def _put_off(self, jobs: Sequence[WriterJob[S, Any]], error: BaseException) -> None:
        """Fail jobs that cannot be done now, except those that can be done later."""
        for job in jobs:
            if isinstance(job.work, DeferredWork):
                self._owe(job)
            else:
                self._fail((job,), error)

    def _one_by_one(self, jobs: Sequence[WriterJob[S, Any]], error: Exception) -> None:
        """Run the jobs singly after a failed batch, of which nothing took effect, to find the one at fault."""
        if len(jobs) == 1:
            self._fail(jobs, error)
            return
        for job in jobs:
            if self.down is None:
                self._commit((job,))
            else:
                self._fail((job,), down(self.down))

    # ---- delivery ----

    def _fail(self, jobs: Sequence[WriterJob[S, Any]], error: BaseException) -> None:
        self._deliver([(job, None, _copy(error)) for job in jobs])

    def _fail_queued(self, reason: JournalError) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._fail((self._jobs.popleft(),), down(reason))
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for loop, room in waiting:
            _call_soon(loop, _give_room, room)

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        """Give each loop its outcomes in one call: waking a loop costs more than a future."""
        loops: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
        for outcome in outcomes:
            loops.setdefault(outcome[0].loop, []).append(outcome)
        for loop, of_loop in loops.items():
            _call_soon(loop, _resolve, of_loop)


def down(reason: JournalError) -> StoreDown:
    """Return an error with the reason and the kind of the failure that took the writer down."""
    return StoreDown(str(reason), reason.kind)


def _copy(error: BaseException) -> BaseException:
    """Return a separate error for each caller: a traceback belongs to one."""
    if not isinstance(error, StoreDown | Corrupt):
        return error
    copied = down(error) if isinstance(error, StoreDown) else Corrupt(str(error))
    copied.__cause__ = error.__cause__
    return copied


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[Any], None], argument: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, so it has no callers any more
        loop.call_soon_threadsafe(callback, argument)


def _give_room(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


def _resolve(outcomes: Sequence[Outcome]) -> None:
    for job, result, error in outcomes:
        if job.pending.done():  # the thread died while it delivered outcomes
            continue
        if error is None:
            job.pending.set_result(result)
        else:
            job.pending.set_exception(error)


# ---- the handle ----


class StoreHandle(Protocol):
    """An open store: its connections, its writer and the runs that it owns."""

    def close(self) -> None:
        """Write the queued jobs, then release everything."""

    def abandon(self) -> None:
        """Drop everything without touching it, because it belongs to the parent process."""


H = TypeVar("H", bound=StoreHandle)


class DurableJournal(ABC, Generic[H]):
    """A journal that outlives its process. `address` is its place, `reader` the name of the thread for its reads."""

    shared = True

    def __init__(self, address: Any, reader: str) -> None:
        self.address: Any = address
        self._handle: H | None = None
        self._closed = False
        self._pid = os.getpid()
        self._reader = reader
        self._aside = ThreadPoolExecutor(1, thread_name_prefix=reader)

    async def open(self) -> None:
        """Open the journal now instead of at the first use. Raises StoreDown, Corrupt or TooNew."""
        await self._opened()

    async def reopen(self) -> None:
        """Release everything, also a poisoned handle, and open a new one; its runs may be claimed meanwhile."""
        await self.close()
        self._closed = False
        self._start_aside()
        await self._opened()

    async def close(self) -> None:
        """Write the queued jobs, then release the store and every run."""
        handle, self._handle, self._closed = self._handle, None, True
        if self._pid != os.getpid():  # everything belongs to the parent process
            if handle is not None:
                handle.abandon()
            return
        try:
            if handle is not None:
                await asyncio.get_running_loop().run_in_executor(self._aside, handle.close)
        finally:
            self._aside.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def runs(self, **conditions: Unpack[RunConditions]) -> AsyncIterator[RunHead]:
        """Yield the runs that meet every given condition. Raises ConfigError or RunUnknown.

        Damaged runs among them are reported at the end by one Corrupt: each run with a damaged row. A run is found by
        its columns: one whose damaged columns do not meet the conditions is reported only by a listing without
        conditions and by `check`.
        """
        query, before, more, left = RunQuery.of(conditions), None, True, conditions.get("limit")
        problems: list[Corrupt] = []
        while more and left != 0:
            heads, damaged, before = await self._page(query, before)
            problems += damaged
            more = before is not None
            for head in heads[:left]:
                yield head
            left = None if left is None else max(0, left - len(heads))
        if problems:
            raise Corrupt("; ".join(map(str, problems)))

    @abstractmethod
    async def _page(self, query: RunQuery, before: Any) -> tuple[list[RunHead], list[Corrupt], Any]:
        """Return a page of a listing, its damaged runs, and the position before the next page; None after the last."""

    def _here(self) -> H | None:
        """Return the handle if it is open. Raises StoreDown if it must not be used."""
        handle = self._handle
        if handle is not None and self._pid != os.getpid():
            raise StoreDown(
                f"journal {self.address} was opened before this process was forked: open another in the child"
            )
        if handle is None and self._closed:
            raise StoreDown(f"journal {self.address} is closed")
        return handle

    async def _opened(self) -> H:
        handle = self._here()
        if handle is None:
            if (
                self._pid != os.getpid()
            ):  # never opened, and forked since: the pool's thread belongs to the parent
                self._start_aside()
            handle = await self._open_aside()
        return handle

    def _start_aside(self) -> None:
        self._pid, self._aside = os.getpid(), ThreadPoolExecutor(1, thread_name_prefix=self._reader)

    @abstractmethod
    async def _open_aside(self) -> H:
        """Open the journal in the thread beside the event loop, by `_open_once`."""

    def _open_once(self, make: Callable[[], H]) -> H:
        if self._handle is None:
            self._handle = make()
            weakref.finalize(self, self._handle.close)
        return self._handle

    async def _run_aside(self, work: Callable[..., T], *arguments: Any) -> T:
        try:
            answer = running_loop().run_in_executor(self._aside, work, *arguments)
        except RuntimeError:  # another task closed it meanwhile
            raise StoreDown(f"journal {self.address} is closed") from None
        return await answer
