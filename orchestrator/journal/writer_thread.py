"""The one thread that a store writes with: it takes whatever waits, writes it together, then tells each who asked.

An event loop rings for it once a turn, and not once a job: woken by the first job of a turn, the thread would race
the loop for the interpreter's lock, and commit a hundred runs four at a time. What a job is and how a batch is
written is each store's own (`_commit`); here are the queue, the room in it, and the telling.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakSet

from orchestrator.errors import Corrupt, JournalError, StoreDown

T = TypeVar("T")
S = TypeVar("S")
"""What the work of a job is given: a store's transaction or session."""

ENOUGH = 64
"""Jobs that are worth a sync of their own while the loop goes on finding more."""
_GO, _END = True, False
"""What the bell says: there are jobs; write them and end."""


class Pending(asyncio.Future[T]):
    """The outcome of a write that is under way. It cannot be cancelled.

    A task cancelled while it awaits one gets its CancelledError when the outcome is known, so it never has to
    guess whether its records are there.
    """

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  asyncio's signature
        """Nothing takes a write back."""
        return False


class WriterJob(Generic[S, T]):
    """A unit of writing, what it has to do before the transaction, and who waits for it."""

    __slots__ = ("first", "loop", "pending", "work")

    def __init__(self, work: Callable[[S], T], first: Callable[[], None] | None) -> None:
        self.work = work
        self.first = first
        self.loop = asyncio.get_running_loop()
        self.pending: Pending[T] = Pending(loop=self.loop)


class DeferredWork(ABC):
    """The work of a job that is done later where the store cannot be reached now: to give a run back."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, written_through: Any, /) -> None:
        """Do it."""


Outcome: TypeAlias = tuple[WriterJob[Any, Any], Any, BaseException | None]
"""A job, and what it returned or why it failed."""


class WriterThread(ABC, Generic[S]):
    """A thread that owns what is written through, from `start` on.

    `limit` bounds a batch, and the queue for all but appends. `submit` and `call` belong to event loops, each job to
    that of its caller; `stop` and `refuse_if_down` to any thread; what is written through to the thread alone.
    """

    def __init__(self, *, limit: int, name: str, noun: str = "journal") -> None:
        self.down: JournalError | None = None
        """Why nothing is written any more; None while it is."""
        self.commits = 0
        """Transactions committed, each with one sync."""
        self._limit = limit
        self._noun = noun
        self._jobs: deque[WriterJob[S, Any]] = deque()
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._ringing: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        """Loops that will ring at the end of their present turn."""
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        """Who waits for room in the queue."""
        self._owed: list[WriterJob[S, Any]] = []
        """Runs to give back whose owners were told that they are, though the store could not be reached then."""
        self._thread = threading.Thread(target=self._serve, name=f"{noun} {name}", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    # ---- from event loops ----

    def submit(self, work: Callable[[S], T], first: Callable[[], None] | None = None) -> Pending[T]:
        """Queue a job and return its outcome to await. Raises StoreDown."""
        self.refuse_if_down()
        job = WriterJob(work, first)
        self._jobs.append(job)
        if self.down is not None:  # it went down since we looked: nobody else would answer
            self._fail_queued(self.down)
        if len(self._jobs) == ENOUGH:
            self._bell.put(_GO)
        if job.loop not in self._ringing:
            self._ringing.add(job.loop)
            job.loop.call_soon(self._ring, job.loop)
        return job.pending

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the thread when every task that was ready has had its say, so that one sync serves them all."""
        self._ringing.discard(loop)
        self._bell.put(_GO)

    async def call(self, work: Callable[[S], T], first: Callable[[], None] | None = None) -> T:
        """Wait for room in the queue, then for the job. Raises StoreDown, and what the job raises."""
        while len(self._jobs) >= self._limit and self.down is None:
            loop = asyncio.get_running_loop()
            room = loop.create_future()
            self._waiting.append((loop, room))
            if len(self._jobs) >= self._limit and self.down is None:
                await room
        return await self.submit(work, first)

    def refuse_if_down(self) -> None:
        """Raise what took the writer down."""
        if self.down is not None:
            raise down(self.down) from self.down

    def stop(self, timeout: float | None = None) -> None:
        """Write what is queued, then end the thread and wait for it."""
        self._end()
        self._thread.join(timeout)

    def _end(self) -> None:
        """Tell the thread to end, which may be waiting."""
        self._bell.put(_END)

    # ---- in the thread ----

    @abstractmethod
    def _commit(self, jobs: Sequence[WriterJob[S, Any]]) -> None:
        """Write some jobs and tell their outcomes."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of what was written through."""

    def _idle(self) -> float | None:
        """Do what is due, and return after how many seconds more will be; None for never."""
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
                self._fail(jobs, down(self.down))
            elif jobs:
                self._commit(jobs)
        except BaseException as death:  # noqa: BLE001  whatever ends this thread, nobody may wait for ever
            self.down = StoreDown(f"the {self._noun}'s writer thread died: {type(death).__name__}: {death}")
            self._fail(jobs, self.down)
        return more and self.down is None

    def _take(self, patience: float | None) -> tuple[list[WriterJob[S, Any]], bool]:
        """Wait for the bell; return what waits, as much as goes into one batch, and whether to go on after it."""
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
        """Say that a run is given back, and do it when the store can be reached.

        Else it would be held by a process that lives and does not carry it, for as long as that lives.
        """
        self._owed.append(job)
        self._deliver([(job, None, None)])

    def _one_by_one(self, jobs: Sequence[WriterJob[S, Any]], error: Exception) -> None:
        """Nothing of the batch took effect: find out whose fault it was."""
        if len(jobs) == 1:
            self._fail(jobs, error)
            return
        for job in jobs:
            if self.down is None:
                self._commit((job,))
            else:
                self._fail((job,), down(self.down))

    # ---- telling ----

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
            _tell(loop, _give_room, room)

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        """Hand each loop its outcomes in one call: waking a loop costs more than a future."""
        loops: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
        for outcome in outcomes:
            loops.setdefault(outcome[0].loop, []).append(outcome)
        for loop, of_loop in loops.items():
            _tell(loop, _resolve, of_loop)


def down(reason: JournalError) -> StoreDown:
    """Return an error that says why the writer is down, and of what kind that is."""
    return StoreDown(str(reason), reason.kind)


def _copy(error: BaseException) -> BaseException:
    """Return an error of its own for each who waits: a traceback belongs to one."""
    if not isinstance(error, StoreDown | Corrupt):
        return error
    copied = down(error) if isinstance(error, StoreDown) else Corrupt(str(error))
    copied.__cause__ = error.__cause__
    return copied


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[Any], None], argument: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(callback, argument)


def _give_room(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


def _resolve(outcomes: Sequence[Outcome]) -> None:
    for job, result, error in outcomes:
        if job.pending.done():  # the thread died halfway through telling
            continue
        if error is None:
            job.pending.set_result(result)
        else:
            job.pending.set_exception(error)
