"""The one thread that writes: it takes whatever waits, commits it together, then tells each who asked.

An event loop rings for it once a turn, and not once a job: woken by the first job of a turn, the thread would race
the loop for the interpreter's lock, and commit a hundred runs four at a time.

One sync makes all of a batch durable (group commit), which is what makes synchronous=FULL cheap. A job that is
refused (Fenced, Held, RunExists, RunUnknown) has changed nothing, so its batch goes on. Anything that makes the
connection doubtful poisons the writer for good: `down` says why, nothing is tried again, least of all a sync,
which may report success for pages that the kernel has dropped already.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakSet

import apsw

from orchestrator.errors import Corrupt, JournalError, RunError, StoreDown
from orchestrator.journal.sqlite.trouble import FAULTS, TRANSIENT
from orchestrator.kernel.journal import Lease

T = TypeVar("T")

ENOUGH = 64
"""Jobs that are worth a sync of their own while the loop goes on finding more."""
_GO, _END = True, False
"""What the bell says: there are jobs; write them and end."""
CHECKPOINT_PAGES = 1000
"""Length of the write-ahead log from which it is copied back. By us and not by SQLite, which would swallow errors."""


class Pending(asyncio.Future[T]):
    """The outcome of a write that is under way. It cannot be cancelled.

    A task cancelled while it awaits one gets its CancelledError when the outcome is known, so it never has to
    guess whether its records are there.
    """

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  asyncio's signature
        """Nothing takes a write back."""
        return False


class Transaction:
    """What a job works with: a cursor, and where each lease stands within this batch."""

    __slots__ = ("_moved", "cursor")

    def __init__(self, cursor: apsw.Cursor) -> None:
        self.cursor = cursor
        self._moved: dict[int, tuple[Lease, int, str]] = {}

    def position(self, lease: Lease) -> tuple[int, str]:
        """Return seq and head of a lease, earlier appends of this batch included."""
        moved = self._moved.get(id(lease))
        return (lease.seq, lease.head) if moved is None else moved[1:]

    def move(self, lease: Lease, seq: int, head: str) -> None:
        """Move a lease on, once this is committed."""
        self._moved[id(lease)] = lease, seq, head

    def landed(self) -> None:
        """It is committed."""
        for lease, seq, head in self._moved.values():
            lease.seq, lease.head = seq, head


class Job(Generic[T]):
    """A unit of writing, what it has to do before the transaction, and who waits for it."""

    __slots__ = ("first", "loop", "pending", "work")

    def __init__(self, work: Callable[[Transaction], T], first: Callable[[], None] | None) -> None:
        self.work = work
        self.first = first
        self.loop = asyncio.get_running_loop()
        self.pending: Pending[T] = Pending(loop=self.loop)


_Outcome: TypeAlias = tuple[Job[Any], Any, BaseException | None]
"""A job, and what it returned or why it failed."""


class Writer:
    """Owns the writing connection from its start on.

    `limit` bounds a batch, and the queue for all but appends. `submit` and `call` belong to event loops, each job to
    that of its caller; `poison`, `stop` and `refuse_if_down` to any thread; the connection to the thread alone.
    """

    def __init__(
        self,
        db: apsw.Connection,
        *,
        limit: int,
        explain: Callable[[BaseException], JournalError],
        name: str,
        noun: str = "journal",
    ) -> None:
        self.down: JournalError | None = None
        """Why nothing is written any more; None while it is."""
        self.commits = 0
        """Transactions committed, each with one sync."""
        self.poisoned = False
        """The connection is doubtful: it is not synced again, not even when it is closed."""
        self._db = db
        self._limit = limit
        self._noun = noun
        self._explain = explain
        self._jobs: deque[Job[Any]] = deque()
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._ringing: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        """Loops that will ring at the end of their present turn."""
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        """Who waits for room in the queue."""
        self._pages = 0
        """In the write-ahead log, as SQLite told after the last commit."""
        db.set_wal_hook(self._note_pages)
        self._thread = threading.Thread(target=self._serve, name=f"{noun} {name}", daemon=True)
        self._thread.start()

    # ---- from event loops ----

    def submit(self, work: Callable[[Transaction], T], first: Callable[[], None] | None = None) -> Pending[T]:
        """Queue a job and return its outcome to await. Raises StoreDown."""
        self.refuse_if_down()
        job = Job(work, first)
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

    async def call(self, work: Callable[[Transaction], T], first: Callable[[], None] | None = None) -> T:
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
            raise _down(self.down) from self.down

    def poison(self, why: BaseException) -> JournalError:
        """Refuse everything from now on; from any thread. Return the reason."""
        if self.down is None:
            self.down = self._explain(why)
            self.poisoned = True
            self._bell.put(_END)  # the thread may be waiting
        return self.down

    def stop(self, timeout: float | None = None) -> None:
        """Write what is queued, then end the thread and wait for it."""
        self._bell.put(_END)
        self._thread.join(timeout)

    # ---- in the thread ----

    def _serve(self) -> None:
        try:
            while self._serve_batch():
                pass
        finally:
            self.down = self.down or StoreDown(f"the {self._noun} is closed")
            self._fail_queued(self.down)
            self._close()

    def _serve_batch(self) -> bool:
        jobs, more = self._take()
        self._wake_waiting()
        try:
            if self.down is not None:
                self._fail(jobs, _down(self.down))
            elif jobs:
                self._commit(jobs)
        except BaseException as death:  # noqa: BLE001  whatever ends this thread, nobody may wait for ever
            self.down = StoreDown(f"the {self._noun}'s writer thread died: {type(death).__name__}: {death}")
            self._fail(jobs, self.down)
        return more and self.down is None

    def _take(self) -> tuple[list[Job[Any]], bool]:
        """Wait for the bell; return what waits, as much as goes into one batch, and whether to go on after it."""
        more = self._bell.get()
        jobs: list[Job[Any]] = []
        with contextlib.suppress(IndexError):
            while len(jobs) < self._limit:
                jobs.append(self._jobs.popleft())
        if self._jobs:
            self._bell.put(more)
            return jobs, True
        return jobs, more

    def _commit(self, jobs: Sequence[Job[Any]]) -> None:
        try:
            outcomes = self._transact(jobs)
        except TRANSIENT as error:
            self._fail(jobs, self._explain(error))
        except FAULTS as error:
            self._fail(jobs, self.poison(error))
        except Exception as error:  # noqa: BLE001  a job that cannot be carried out must not take others with it
            self._one_by_one(jobs, error)
        else:
            self._deliver(outcomes)
            self._checkpoint()

    def _one_by_one(self, jobs: Sequence[Job[Any]], error: Exception) -> None:
        """Nothing of the batch took effect: find out whose fault it was."""
        if len(jobs) == 1:
            self._fail(jobs, error)
            return
        for job in jobs:
            if self.down is None:
                self._commit((job,))
            else:
                self._fail((job,), _down(self.down))

    def _transact(self, jobs: Sequence[Job[Any]]) -> list[_Outcome]:
        for job in jobs:
            if job.first is not None:
                job.first()
        transaction = Transaction(self._db.cursor())
        transaction.cursor.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [_attempt(job, transaction) for job in jobs]
            transaction.cursor.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(apsw.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            raise
        transaction.landed()
        self.commits += 1
        return outcomes

    def _note_pages(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        if self._pages < CHECKPOINT_PAGES:
            return
        try:
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except TRANSIENT:
            pass  # another process does it
        except FAULTS as error:
            self.poison(error)

    # ---- telling ----

    def _fail(self, jobs: Sequence[Job[Any]], error: BaseException) -> None:
        self._deliver([(job, None, _copy(error)) for job in jobs])

    def _fail_queued(self, reason: JournalError) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._fail((self._jobs.popleft(),), _down(reason))
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for loop, room in waiting:
            _tell(loop, _give_room, room)

    def _deliver(self, outcomes: Sequence[_Outcome]) -> None:
        """Hand each loop its outcomes in one call: waking a loop costs more than a future."""
        loops: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
        for outcome in outcomes:
            loops.setdefault(outcome[0].loop, []).append(outcome)
        for loop, of_loop in loops.items():
            _tell(loop, _resolve, of_loop)

    def _close(self) -> None:
        with contextlib.suppress(apsw.Error):
            self._db.set_wal_hook(None)
            if self.poisoned:  # the last connection to close would checkpoint, that is: sync once more
                self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._db.close(force=True)


def _attempt(job: Job[Any], transaction: Transaction) -> _Outcome:
    try:
        return job, job.work(transaction), None
    except RunError as refused:
        return job, None, refused


def _down(reason: JournalError) -> StoreDown:
    """Return an error that says why the writer is down, and of what kind that is."""
    return StoreDown(str(reason), reason.kind)


def _copy(error: BaseException) -> BaseException:
    """Return an error of its own for each who waits: a traceback belongs to one."""
    if not isinstance(error, StoreDown | Corrupt):
        return error
    copied = _down(error) if isinstance(error, StoreDown) else Corrupt(str(error))
    copied.__cause__ = error.__cause__
    return copied


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[Any], None], argument: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(callback, argument)


def _give_room(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


def _resolve(outcomes: Sequence[_Outcome]) -> None:
    for job, result, error in outcomes:
        if job.pending.done():  # the thread died halfway through telling
            continue
        if error is None:
            job.pending.set_result(result)
        else:
            job.pending.set_exception(error)
