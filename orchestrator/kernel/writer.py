"""Makes the records of runs durable. A cancellation loses no record and no knowledge of one.

The context of a run is plain data: complete in the first record, then only its changes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from orchestrator import errors
from orchestrator.errors import Fenced, JournalError, RunExists, RunUnknown
from orchestrator.kernel.clock import Clock
from orchestrator.kernel.fact import (
    AdmissionRejected,
    EventFailed,
    Fact,
    JournalWrite,
    RecordsWritten,
    Transition,
)
from orchestrator.kernel.hooks import Hook
from orchestrator.kernel.journal import (
    RECORD_SCHEMA,
    Draft,
    JournalWriter,
    Lease,
    Record,
    RunHead,
    done,
    draft,
    waited,
)
from orchestrator.kernel.redaction import scrub
from orchestrator.kernel.report import Reporter
from orchestrator.kernel.run import Run
from orchestrator_guards.verdict import Verdict

_LONGEST = 2_000
"""Characters of each text of an error that are stored."""
_PLAIN = (str, int, float, bool, type(None))


class Codec(Protocol):
    """Converts `run.ctx` to record bodies. Without a codec a run is journalled but cannot be resumed."""

    def opening(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the codec's part of the `created` record: the whole context."""
        ...

    def changes(self, run: Run[Any, Any]) -> dict[str, Any]:
        """Return, in a new dict, the changes of the context since the last call or since the opening."""
        ...

    def closing(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the codec's part of the `ended` record: the output."""
        ...


# ---- the error of a failed run ----


def error_body(failure: EventFailed) -> dict[str, Any]:
    """Return the stored part of a failure: place, reason, and the fields of an error of this package.

    Texts are cut at 2,000 characters: servers repeat whole requests in their errors. The error of a server also loses
    probable secrets; ours do not, because ids of runs look like secrets.
    """
    error = failure.error
    # the most specific class of this library among the classes of the error
    ours = next((each for each in type(error).__mro__ if vars(errors).get(each.__name__) is each), None)
    fields = {} if ours is None else {name: _plain(value) for name, value in vars(error).items()}
    return {
        "type": type(error).__name__,
        "message": scrub(str(error)) if ours is errors.LLMError else str(error)[:_LONGEST],
        "is": None if ours is None else ours.__name__,
        "fields": {name: value for name, value in fields.items() if value is not _LOST},
        "reason": failure.reason,
        "state": failure.state,
        "event": failure.event,
        "hook": failure.hook,
        "at": failure.at,
        "iteration": failure.iteration,
        "committed": failure.committed,
        **({"where": where} if (where := raised_at(error)) else {}),
    }


def raised_at(error: BaseException | None) -> str | None:
    """Return file and line of the innermost frame of an error, or None if it was never raised."""
    if isinstance(error, errors.ToolRaised):
        return error.where or None
    trace = None if error is None else error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"  # noqa: PTH119 - no path is made


def restored_failure(body: Mapping[str, Any], graph: str, run_id: str) -> tuple[Exception, EventFailed]:
    """Return the error and its fact. An error that is not of this library is restored as a RunError."""
    kind = getattr(errors, str(body["is"]), None)
    error: Exception
    if isinstance(kind, type) and issubclass(kind, errors.OrchestratorError):
        error = kind.__new__(kind)
        error.args = (body["message"],)
        for name, value in body["fields"].items():
            vars(error)[name] = Verdict(**value["verdict"]) if isinstance(value, dict) else value
    else:
        error = errors.RunError(f"{body['type']}: {body['message']}")
    fact = EventFailed(
        graph,
        run_id,
        body["state"],
        body["event"],
        body["reason"],
        body["at"],
        body["iteration"],
        body["hook"],
        error,
        body["committed"],
    )
    return error, fact


_LOST = object()


def _plain(value: object) -> object:
    if isinstance(value, Verdict):
        return {"verdict": value._asdict()}
    if isinstance(value, str):
        return value[:_LONGEST]
    return value if isinstance(value, _PLAIN) else _LOST


Late: TypeAlias = Awaitable[asyncio.CancelledError | None]
"""An awaitable; its result is the cancellation that came meanwhile, if any."""

DOUBT = 0.5
"""Seconds after which a lease is proved again before an effect: a process frozen for a shorter time lost no lease."""


class Writer:
    """The journal of a driver. Methods return a CancelledError that came meanwhile; the caller raises it later."""

    def __init__(
        self, journal: JournalWriter, owner: str, report: Reporter, clock: Clock, codec: Codec | None = None
    ) -> None:
        self._journal = journal
        self.owner = owner
        self._report = report
        self._clock = clock
        self._codec = codec
        self._is_watched = JournalWrite in report.observed
        """Whether an observer receives the facts about writes."""
        self._is_timed = self._is_watched and getattr(journal, "durable", True)
        """Whether it also receives those about writes that succeed: only of a journal that makes records durable."""
        self.at_once = bool(getattr(journal, "at_once", False))
        """Whether writes never wait."""
        self._head: Callable[[str], Awaitable[RunHead]] | None = (
            None if self.at_once else getattr(journal, "head", None)
        )
        """Reads the epoch of a run; None if no other process can claim a run, or if the journal can only be written."""

    async def create(
        self, run: Run[Any, Any], at: float, *, deposited: Mapping[str, Any] | None = None
    ) -> asyncio.CancelledError | None:
        """Create a run. `deposited` names the place of another process that is to carry it.

        Raises RunExists if the journal knows its id, and the errors of the store, which are also published.
        """
        body = {
            "schema": RECORD_SCHEMA,
            "graph": run.graph.name,
            **run.machine.recorded_table(),
            "at": at,
            "parent_run_id": run.parent_run_id,
            **(run.data or {}),
            **(self._codec.opening(run) if self._codec else {}),
            **({} if deposited is None else {"deposited": dict(deposited)}),
        }
        began = self._clock.monotonic()
        try:
            if self.at_once:
                run.control.lease = await self._journal.create(run.run_id, self.owner, body)
                self._followed(run, run.control.lease, (draft(("created", body)),))
                return None
            creating = asyncio.ensure_future(self._journal.create(run.run_id, self.owner, body))
            late = await done(creating)
        except RunExists:
            raise
        except Exception as error:
            self._publish_write(run, 1, began, _kind(error), "create")
            at = self._clock.time()
            self._report.publish(
                AdmissionRejected(run.graph.name, run.run_id, "journal_error", at, run.agent)
            )
            raise
        run.control.lease = creating.result()
        self._followed(run, run.control.lease, (draft(("created", body)),))
        return late

    def context(self, run: Run[Any, Any], following: StrEnum | None = None) -> None:
        """Draft the changes of the context. `following` is the next event if the work of the present state is done."""
        if self._codec is None or run.control.detached:
            return
        body = self._codec.changes(run)
        if following is not None:
            body["next"] = following.value
            if run.cursor.failure is not None and following == run.graph.failure_event(run.state):
                # Another process may have to write its transition.
                body["error"] = error_body(run.cursor.failure)
        if body:
            run.writes.drafts.append(draft(("context", body)))

    def write(self, run: Run[Any, Any], enter: Sequence[tuple[str, Hook]] = ()) -> Late | None:
        """Make the drafts of the run durable. On failure, detach the run from its journal and raise.

        Returns None if they are durable already, else an awaitable that the caller awaits at once. A run has one
        append in progress; later drafts are written with the next one. The transitions of failed records are neither
        published nor counted, because no process can resume from them.

        Returns None also if the first of the `enter` hooks, which run next, may begin beside the append.
        """
        control, writes = run.control, run.writes
        beside, writes.beside = writes.beside, None
        if writes.append is not None:
            return self._write_next(run)
        lease = control.lease
        if not writes.drafts or control.detached or lease is None:
            return None
        drafts, writes.drafts, writes.has_transition = writes.drafts, [], False
        blobs, writes.blobs = writes.blobs, None
        began = lease.proved_at = self._clock.monotonic()
        try:
            waiting = self._journal.append(lease, drafts, blobs)
        except BaseException as error:
            self.lost(run, len(drafts), began, error)
            raise
        if waiting is not None:
            if beside is None or not enter or enter[0][1] is not beside or not control.folds:
                return self._appended(run, waiting, drafts, began)
            writes.append = write = asyncio.ensure_future(waiting)
            writes.overlap = OverlappedAppend(self, run, drafts, began, write)
            write.add_done_callback(writes.overlap)
            return None
        if self._is_timed:
            self._publish_write(run, len(drafts), began, "ok")
        if control.follower is not None:
            self._followed(run, lease, drafts)
        return None

    async def _write_next(self, run: Run[Any, Any]) -> asyncio.CancelledError | None:
        """Write after the append in progress."""
        overlap = run.writes.overlap
        late = None if overlap is None else await overlap.land()
        while (write := run.writes.append) is not None:
            late = await waited(write) or late
            if run.writes.append is write:  # woken before the task that made it
                run.writes.append = None
            if write.exception() is not None:
                raise JournalError(f"run {run.run_id!r} lost its journal")
        writing = self.write(run)
        return late if writing is None else await writing or late

    def landed(self, run: Run[Any, Any], drafts: Sequence[Draft], began: float, facts: int) -> None:
        """Publish what has waited for an append beside which a hook began.

        Only the first `facts` if there are drafts, on which later facts may depend.
        """
        if self._is_timed:
            self._publish_write(run, len(drafts), began, "ok")
        writes, lease = run.writes, run.control.lease
        if lease is not None and run.control.follower is not None:
            self._followed(run, lease, drafts)
        later: list[Fact] = []
        if writes.drafts:
            writes.unpublished, later = writes.unpublished[:facts], writes.unpublished[facts:]
        self._report.send(run)
        writes.unpublished += later

    async def _appended(
        self, run: Run[Any, Any], waiting: Awaitable[None], drafts: Sequence[Draft], began: float
    ) -> asyncio.CancelledError | None:
        lease = run.control.lease
        try:
            write = run.writes.append = asyncio.ensure_future(waiting)
            try:
                late = await done(write)
            finally:
                if run.writes.append is write:
                    run.writes.append = None
            if self.doubts_lease(run):
                late = await self.confirm_lease(run) or late
        except BaseException as error:
            self.lost(run, len(drafts), began, error)
            raise
        if self._is_timed:
            self._publish_write(run, len(drafts), began, "ok")
        if lease is not None and run.control.follower is not None:
            self._followed(run, lease, drafts)
        return late

    def _followed(self, run: Run[Any, Any], lease: Lease, drafts: Sequence[Draft]) -> None:
        """Send the records of the last append to the follower of the run."""
        if run.control.follower is not None:
            first = lease.seq - len(drafts) + 1
            records = [
                Record(seq, lease.epoch, kind, body, lease.head)
                for seq, (kind, body) in enumerate(drafts, first)
            ]
            self._report.follow(run, RecordsWritten(run.run_id, records))

    def lost(self, run: Run[Any, Any], records: int, began: float, error: BaseException) -> None:
        """Detach a run whose records could not be written, and drop the transitions of these records."""
        run.cursor.hook = "journal"
        run.control.detached = True
        kept: list[Fact] = [fact for fact in run.writes.unpublished if not isinstance(fact, Transition)]
        run.cursor.seq -= len(run.writes.unpublished) - len(kept)
        run.writes.unpublished = kept
        self._publish_write(run, records, began, _kind(error))
        self._report.send(run)

    def doubts_lease(self, run: Run[Any, Any]) -> bool:
        """Return whether the last proof of the lease is older than DOUBT, and the store can be asked."""
        lease = run.control.lease
        if self._head is None or lease is None or run.control.detached:
            return False
        return self._clock.monotonic() - lease.proved_at > DOUBT

    async def confirm_lease(self, run: Run[Any, Any]) -> asyncio.CancelledError | None:
        """Check the lease in the store if its last proof is older than DOUBT. Raises Fenced, StoreDown.

        A process that was frozen after an append does not know that another one took the run.
        """
        lease, now = run.control.lease, self._clock.monotonic()
        if lease is None or self._head is None or not self.doubts_lease(run):
            return None
        reading = asyncio.ensure_future(self._head(run.run_id))
        try:
            late = await done(reading)
        except RunUnknown:  # the other owner ended it, and it was removed
            raise Fenced(run.run_id, lease.epoch) from None
        if reading.result().epoch != lease.epoch:
            raise Fenced(run.run_id, lease.epoch)
        lease.proved_at = now
        return late

    async def release(self, run: Run[Any, Any]) -> asyncio.CancelledError | None:
        """Return a run to the journal, also a detached one: its next owner has all durable records.

        A store that fails here has all records of the run. The error that detached the run was published at that
        time.
        """
        lease, run.control.lease = run.control.lease, None
        if lease is None:
            return None
        try:
            if self.at_once:
                await self._journal.release(lease)
                return None
            return await done(asyncio.ensure_future(self._journal.release(lease)))
        except Exception as error:  # noqa: BLE001 - whatever a store raises: it is over with the run here
            if not run.control.detached:
                self._report.failed(run, None, error)
            return None

    def _publish_write(
        self, run: Run[Any, Any], records: int, began: float, outcome: str, operation: str = "append"
    ) -> None:
        if not self._is_watched:
            return
        seconds = self._clock.monotonic() - began
        backend = self._journal.backend
        where = "" if outcome == "ok" else str(getattr(self._journal, "address", ""))
        self._report.publish(
            JournalWrite(run.graph.name, run.run_id, backend, operation, records, seconds, outcome, where)
        )


class OverlappedAppend:
    """An append in progress beside which an enter hook has begun. Called when it is done, unless somebody awaits it."""

    __slots__ = ("_began", "_drafts", "_facts", "_run", "_writer", "error", "is_awaited", "then", "write")

    def __init__(
        self,
        writer: Writer,
        run: Run[Any, Any],
        drafts: Sequence[Draft],
        began: float,
        write: asyncio.Future[None],
    ) -> None:
        self._writer, self._run, self._drafts, self._began = writer, run, drafts, began
        self._facts = len(run.writes.unpublished)
        self.write = write
        self.error: BaseException | None = None
        self.is_awaited = False
        """Whether somebody awaits it, who raises its error."""
        self.then: list[Callable[[], None]] = []
        """Called when it is durable, after its facts are published."""

    def __call__(self, _: asyncio.Future[None]) -> None:
        """Stop the hook if its transition was lost. Nothing of what it has done is published then.

        If the process may have been frozen meanwhile, nothing is published before `land` has confirmed the lease.
        """
        if (
            self.write.cancelled()
            or self.write.exception() is not None
            or not self._writer.doubts_lease(self._run)
        ):
            self.finish()
        if not isinstance(self.error, Exception) or self.is_awaited:
            return
        if isinstance(self.error, Fenced):
            self._run.control.interruption = None  # another owner decides, whatever else was to stop the run
        self._run.stop(self.error)

    async def land(self) -> asyncio.CancelledError | None:
        """Wait until it is durable; return a cancellation that came meanwhile. Raises its error, and stops no hook."""
        self.is_awaited = True
        late = await waited(self.write)
        if self._run.writes.overlap is self and self._writer.doubts_lease(self._run):
            try:
                late = await self._writer.confirm_lease(self._run) or late
            except JournalError as error:
                self.finish(error)
        self.finish()
        if self.error is not None:
            raise self.error
        return late

    def finish(self, error: BaseException | None = None) -> None:
        """Publish what has waited for the append, or detach the run from its journal; only once."""
        writes = self._run.writes
        if writes.overlap is not self:
            return
        writes.append = writes.overlap = None
        cancelled = self.write.cancelled()
        self.error = (
            JournalError("the append was cancelled") if cancelled else self.write.exception() or error
        )
        if self.error is None:
            self._writer.landed(self._run, self._drafts, self._began, self._facts)
            for call in self.then:
                call()
        else:
            self._writer.lost(self._run, len(self._drafts), self._began, self.error)


def _kind(error: BaseException) -> str:
    return str(getattr(error, "kind", "other"))
