"""One run: its machine, its plain-data context, its handles, and the three parts that the kernel writes.

Hosts and hooks may read the parts; `Run` has properties for those that they read often.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from orchestrator.errors import CancelRequested, InvalidEvent, UnknownEvent
from orchestrator.kernel.clock import CALL_SHARE, GRACE
from orchestrator.kernel.fact import FACTS
from orchestrator.kernel.journal import Draft, draft
from orchestrator.kernel.mailbox import Mailbox, Signal

if TYPE_CHECKING:
    from orchestrator.kernel.clock import Alarm
    from orchestrator.kernel.fact import EventFailed, Fact, Follower, TransitionNote
    from orchestrator.kernel.graph import Graph
    from orchestrator.kernel.hooks import Hook
    from orchestrator.kernel.journal import Lease
    from orchestrator.kernel.machine import CompiledTable, CompiledTransition, Machine
    from orchestrator.kernel.outcome import Ending
    from orchestrator.kernel.suspension import HookServices
    from orchestrator.kernel.transition_executor import TransitionExecutor
    from orchestrator.kernel.writer import OverlappedAppend


@dataclass(slots=True, eq=False)
class Cursor:
    """Position of a run in its graph. The records of a run restore it.

    A driver that resumes the run runs the enter hooks of the present state if they have not completed
    (`entry_pending`), else it fires the pending event.
    """

    state: str
    """Value of the present state."""
    entry_pending: bool = True
    """Whether the enter hooks of the present state have not completed."""
    pending_event: StrEnum | None = None
    """The event to fire next."""
    event_object: Any = None
    """Object of the event, in a machine whose events are objects: guards and actions receive it."""
    guard_answers: dict[object, Any] | None = None
    """Async guards of a transition and their answers, which their conditions read."""
    step: CompiledTransition | None = None
    """The edge in flight, or the last one: event, source, dest, guard_name."""
    committed: bool = False
    """Whether that edge has been committed."""
    hook: str = ""
    """The hook or guard (`when:<name>`) that runs now or ran last."""
    seq: int = 0
    """Number of committed transitions."""
    started_at: float | None = None
    """Monotonic seconds at which the run was created."""
    entered_at: float = 0.0
    """Monotonic seconds at which the present state was entered."""
    error: Exception | None = None
    """The first error that made the run fail."""
    failure: EventFailed | None = None
    """The fact about that error."""
    is_new: bool = False
    """Whether no observer in any process has received a fact of the run."""
    parked: bool = False
    """Whether observers know the run as parked; the next driver publishes that it is resumed."""
    parked_for: str = ""
    """Why a driver parked the run last."""
    ended: bool = False
    ending: Ending | None = None
    """Outcome and reason of the end, as in the facts and in the journal."""


@dataclass(slots=True, eq=False)
class Control:
    """Controls a run: requests, interruption, time limits, its owner, and its driver while one drives it."""

    mailbox: Mailbox = field(default_factory=Mailbox)
    inbox: int = 0
    """Number of the last request of another process that was put into the mailbox."""
    signal: Signal | None = None
    """The last request that was read."""
    pause_request: Signal | None = None
    """The request to pause: the driver parks the run before its next step."""
    interruption: Exception | None = None
    """The cause for which the run is to be stopped."""
    halted: bool = False
    """Whether the driver must check `interruption` before anything else."""
    interrupt: Callable[[], None] | None = None
    """Cancels the hook in flight; set while a driver drives the run."""
    expires_at: float | None = None
    """Monotonic seconds at which the whole run must have ended; None once that was reported."""
    overdue: Exception | None = None
    """The StateTimeout of this stay in the present state; a dwell limit fires once per stay."""
    alarm: Alarm | None = None
    """The timer of the time limits; set while a driver drives the run."""
    cancel_seconds: float = GRACE
    """Seconds after which cancelled host code that still runs is abandoned; 0 waits for it without a limit."""
    folds: bool = False
    """Whether the record of a pure state may be written together with the next one."""
    waits_in_place: bool = True
    """Whether the driver waits for an answer in place, instead of returning with the run parked."""
    evict_after: float = 0.0
    """Seconds of a wait in place after which the run is evicted; 0: never."""
    evict: Callable[[], bool] | None = None
    """Detaches the waiting run from this process, or returns False if it has to stay; set with `evict_after`."""
    evicted: bool = False
    """Whether the run was detached: it stays parked, and its driver returns."""
    branches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The `fan` and the `joined` record of the last visit of a state with branches."""
    lease: Lease | None = None
    """Proof that this process owns the run; set if there is a journal, until the run has ended."""
    detached: bool = False
    """Whether the journal was lost: the run can then only fail, in memory."""
    driving: bool = False
    """Whether a driver drives this run."""
    executor: TransitionExecutor | None = None
    """Carries out the transitions; set by the driver."""
    services: HookServices | None = None
    """Services of the driver for hooks; set while a driver drives the run."""
    follower: Follower | None = None
    """Receives durable records and the answer of the model as it arrives; None without a follower."""


@dataclass(slots=True, eq=False)
class PendingWrites:
    """Records that are not durable yet, and facts that wait for them."""

    drafts: list[Draft] = field(default_factory=list)
    """Records to write."""
    has_transition: bool = False
    """Whether there is a transition among them."""
    append: asyncio.Future[None] | None = None
    """The append in progress."""
    beside: Hook | None = None
    """The enter hook that may run beside the next append, if that enters its state."""
    overlap: OverlappedAppend | None = None
    """The append in progress, if an enter hook runs beside it."""
    unpublished: list[Fact] = field(default_factory=list)
    """Facts that wait for those records."""
    stay: TransitionNote | None = None
    """Describes the stay in the state that the next transition leaves."""
    guards: Sequence[Any] | None = None
    """Rows of the guards that led to the next transition; its record has them."""
    guard_verdict: object = None
    """The verdict of the last of these rows, if a hook evaluated it for an edge."""
    table_members: Mapping[str, Any] | None = None
    """Members about a table that was changed while the run is active; the next record of a position has them."""
    attempts: list[Any] | None = None
    """Rows of the attempts of requests, likewise, unless another record takes them."""
    blobs: dict[str, bytes] | None = None
    """Contents that the drafts name: SHA-256 (hex) -> content."""
    seconds: float = 0.0
    """Seconds that the journal took for the transition in flight."""
    publish: Callable[[Fact], None] = field(init=False)
    """Sends a fact to the observers; set by the driver."""
    observed_kinds: frozenset[type] = FACTS
    """The kinds of facts that an observer receives; others need not be made. Set by the driver."""

    def __post_init__(self) -> None:
        self.publish = self.unpublished.append

    def take_attached(self) -> dict[str, Any]:
        """Return the rows and the changed table as members of a record, and forget them."""
        taken = {"guards": self.guards, "attempts": self.attempts, **(self.table_members or {})}
        self.guards = self.guard_verdict = self.attempts = self.table_members = None
        return {name: rows for name, rows in taken.items() if rows}


class Context(Protocol):
    """Required of `run.ctx`: a loop counter for logs. All other fields belong to the graph."""

    iteration: int


Ctx = TypeVar("Ctx", bound=Context)
Deps = TypeVar("Deps")


@dataclass(slots=True, eq=False, repr=False)
class Run(Generic[Ctx, Deps]):
    """A run of a machine. `cursor`, `control` and `writes` belong to the kernel.

    To resume a stored run, create a run and call `restore`.

    Args:
        machine: The machine, which any number of runs share.
        run_id: Unique name of the run.
        ctx: Plain data that can be stored and replayed.
        deps: Live handles that cannot be stored.
        parent_run_id: The run that started this one.
        data: Plain data of the host for the `created` record; None for none.

    Example:
        run = Run(machine, "run-1", context, handles)
        await Driver(machine).drive(run)
    """

    machine: Machine
    run_id: str
    ctx: Ctx
    deps: Deps
    parent_run_id: str | None = field(default=None, kw_only=True)
    data: Mapping[str, Any] | None = field(default=None, kw_only=True)

    graph: Graph = field(init=False)
    """The graph of this run."""
    table: CompiledTable = field(init=False)
    """The compiled table of the machine."""
    cursor: Cursor = field(init=False)
    """Position in the graph."""
    control: Control = field(default_factory=Control, init=False)
    """Requests, interruption, time limits, owner and driver."""
    writes: PendingWrites = field(default_factory=PendingWrites, init=False)
    """Records and facts that are not written yet."""
    saved: Any = field(default=None, init=False)
    """The state of `ctx` that the journal has; for the codec only."""

    def __post_init__(self) -> None:
        self.graph = self.machine.valid_graph
        self.table = self.machine.compiled
        self.cursor = Cursor(self.graph.initial.value)

    def __repr__(self) -> str:
        return f"<run {self.run_id!r} of {self.graph.name}, in {self.cursor.state!r}>"

    # ---- what hosts and hooks read ----

    @property
    def state(self) -> StrEnum:
        """The present state."""
        return self.graph.states(self.cursor.state)

    current = state

    @property
    def step(self) -> CompiledTransition | None:
        """The edge in flight, or the last one: event, source, dest, guard_name."""
        return self.cursor.step

    @property
    def hook(self) -> str:
        """The hook or guard (`when:<name>`) that runs now or ran last."""
        return self.cursor.hook

    @property
    def seq(self) -> int:
        """Number of committed transitions."""
        return self.cursor.seq

    @property
    def started_at(self) -> float | None:
        """Monotonic seconds at which the run was created."""
        return self.cursor.started_at

    @property
    def entered_at(self) -> float:
        """Monotonic seconds at which the present state was entered."""
        return self.cursor.entered_at

    @property
    def expires_at(self) -> float | None:
        """Monotonic seconds at which the whole run must have ended."""
        return self.control.expires_at

    @property
    def error(self) -> Exception | None:
        """The first error that made the run fail."""
        return self.cursor.error

    @property
    def failure(self) -> EventFailed | None:
        """The fact about that error."""
        return self.cursor.failure

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.cursor.ended

    @property
    def ending(self) -> Ending | None:
        """Outcome and reason of the end, as in the facts and in the journal."""
        return self.cursor.ending

    @property
    def parked(self) -> bool:
        """Whether observers know the run as parked."""
        return self.cursor.parked

    @property
    def mailbox(self) -> Mailbox:
        """The requests from outside for this run."""
        return self.control.mailbox

    @property
    def lease(self) -> Lease | None:
        """Proof that this process owns the run, if there is a journal."""
        return self.control.lease

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The JSON data that the host gave the run; empty without any. Not to be changed."""
        found: Mapping[str, Any] = (self.data or {}).get("metadata", {})
        return found

    @property
    def agent(self) -> str:
        """Name of the agent of this run; empty if it has none."""
        return str((self.data or {}).get("agent", ""))

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags that the host gave the run."""
        found: Mapping[str, str] = (self.data or {}).get("tags", {})
        return found

    @property
    def interruption(self) -> Exception | None:
        """The cause for which the run is to be stopped."""
        return self.control.interruption

    # ---- what a composition or a hook sets ----

    def restore(self, cursor: Cursor) -> None:
        """Set the run to the position in its records, before a driver resumes it.

        The fields are copied: the cursor object of a run never changes.
        """
        for field_ in fields(cursor):
            setattr(self.cursor, field_.name, getattr(cursor, field_.name))

    def set_lease(self, lease: Lease | None) -> None:
        """Set the proof that this process owns the run."""
        self.control.lease = lease

    def call_seconds(self, now: float) -> float | None:
        """Return the seconds that one call may take in all: nine tenths of the time that its state has left.

        So the call ends before its state does, which would end the run. None if the state has no limit.
        """
        limit = self.graph.time_limits.get(self.cursor.state)
        if limit is None or self.control.overdue is not None:
            return None
        left = self.cursor.entered_at + limit - now
        return CALL_SHARE * left if left > 0 else None

    def limit_time(self, expires_at: float | None, cancel_seconds: float) -> None:
        """Set when the run must have ended (monotonic seconds), and the seconds for cancelled host code to end."""
        self.control.expires_at, self.control.cancel_seconds = expires_at, cancel_seconds

    def acknowledge(self, number: int) -> None:
        """Note that the mailbox has the requests of other processes up to this number."""
        self.control.inbox = max(self.control.inbox, number)

    def follow(self, follower: Follower | None) -> None:
        """Send durable records, and the answer of the model as it arrives, to `follower`; None for none."""
        self.control.follower = follower

    @property
    def branches(self) -> Mapping[str, Mapping[str, Any]]:
        """The `fan` record of the last visit of a state with branches, and its `joined` record if it is decided."""
        return self.control.branches

    def set_branches(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Set these records, which the journal has."""
        self.control.branches = records

    def set_hook(self, name: str) -> None:
        """Name the hook that runs now, for facts about its errors. For code that runs its own hooks."""
        self.cursor.hook = name

    def wait_in_place(self, *, enabled: bool) -> None:
        """Set whether the driver waits for an answer in place, instead of returning with the run parked."""
        self.control.waits_in_place = enabled

    def evict_when_waiting(self, seconds: float, detach: Callable[[], bool]) -> None:
        """Evict the run when it has waited in place for `seconds`: it stays parked, and its driver returns.

        `detach` is called then. It detaches the run from this process, or returns False if the run has to stay.
        """
        self.control.evict_after, self.control.evict = seconds, detach

    def annotate(self, note: TransitionNote) -> None:
        """Describe the stay in the present state, for the next transition. For leave_ and before_ hooks."""
        self.writes.stay = note

    def clear_error(self) -> None:
        """Remove the error of a run that continues after it: its next error counts as the first. For hooks."""
        self.cursor.error = self.cursor.failure = None

    def set_event_object(self, event: object) -> None:
        """Set the object of the next event. For enter hooks of machines whose events are objects."""
        self.cursor.event_object = event

    # ---- records and facts ----

    def emit(self, fact: Fact) -> None:
        """Publish a fact. It is held back until the records that it may depend on are durable."""
        writes = self.writes
        if writes.unpublished or writes.drafts:
            writes.unpublished.append(fact)
        else:
            writes.publish(fact)

    def follow_table(self) -> None:
        """Take the present table of the machine; the next record of a position says which. Raises GraphError.

        For drivers: a change takes effect at the next step of the run.
        """
        graph, before = self.machine.graph, self.graph
        self.graph = graph
        if graph.fingerprint != before.fingerprint:
            self.writes.table_members = self.machine.recorded_table()

    def note(self, kind: str, body: Mapping[str, Any]) -> None:
        """Draft a record.

        It becomes durable with the next transition or with `settle`. Without a journal, do nothing.
        """
        control = self.control
        if control.lease is not None and not control.detached:
            self.writes.drafts.append(draft((kind, body)))

    def attach_guards(self, rows: Sequence[Any], decided: object = None) -> None:
        """Add the rows of guards to the record of the next transition, which they led to.

        If the run is parked before that, the `parked` record has them. Without a journal, do nothing. `decided` is the
        verdict of the last row, if the guard of the next edge returns it again.
        """
        writes, control = self.writes, self.control
        if control.lease is not None and not control.detached:
            writes.guards = rows if writes.guards is None else [*writes.guards, *rows]
            writes.guard_verdict = decided

    def replace_in_guards(self, reference: object, value: Any) -> None:
        """Replace a reference to the context in those rows by its value, if the context will lose it."""
        writes = self.writes
        if writes.guards is not None:
            writes.guards = [
                tuple(value if one == reference else one for one in row) for row in writes.guards
            ]

    def take_attempts(self) -> Sequence[Any] | None:
        """Return the rows of attempts for another record than the next transition's; None if there are none."""
        taken, self.writes.attempts = self.writes.attempts, None
        return taken

    def attach_attempt(self, row: Sequence[Any]) -> None:
        """Add the row of an attempt of a request, as `attach_guards` does."""
        writes, control = self.writes, self.control
        if control.lease is not None and not control.detached:
            if writes.attempts is None:
                writes.attempts = [row]
            else:
                writes.attempts.append(row)

    def store(self, content: bytes) -> str:
        """Store content beside the records, written together with the next draft, which names it.

        Without a journal, only return the name.

        Args:
            content: The content. It is stored once, however often it is named.

        Returns:
            The SHA-256 (hex) under which the journal has it: `await journal.blob(digest)`.
        """
        digest = hashlib.sha256(content).hexdigest()
        control, writes = self.control, self.writes
        if control.lease is not None and not control.detached:
            writes.blobs = {**(writes.blobs or {}), digest: content}
        return digest

    def overlap(self, hook: Hook) -> None:
        """Let an enter hook begin beside the append of the transition into its state. For hooks.

        The hook begins nothing that the run could not repeat, and awaits `landed` before anything that depends on the
        record, before it returns, and before it writes. If the append fails, the hook is cancelled.
        """
        self.writes.beside = hook

    async def landed(self) -> None:
        """Return when the append in progress is durable. For hooks that began beside it. Raises its error."""
        if (overlap := self.writes.overlap) is not None:
            if (late := await overlap.land()) is not None:
                raise late
        elif self.control.detached:
            await asyncio.sleep(0)  # the append has just failed: the hook is cancelled here

    async def settle(self) -> None:
        """Make the drafted records durable. For hooks, before an effect. Raises the errors of the journal."""
        if self.control.services is not None:
            await self.control.services.settle(self)

    async def keep(self) -> None:
        """Make drafted records and changes of `ctx` durable: finished work of a state that has more to do. For hooks.

        After a crash the hook of the state runs again with this context. Raises the errors of the journal.
        """
        if self.control.services is not None:
            await self.control.services.keep(self)

    async def await_decision(self, reason: str, **detail: Any) -> None:
        """Park here until the mailbox has a decision; time limits do not count the wait. For hooks.

        If the driver does not wait in place, this raises, and the hook runs again when there is a decision.
        """
        if self.control.services is not None:
            await self.control.services.wait(
                self, reason, detail, lambda: bool(self.control.mailbox.unread_answers)
            )

    async def await_message(self, reason: str, **detail: Any) -> None:
        """Park here as `await_decision` does, until the mailbox has a message. For hooks."""
        if self.control.services is not None:
            await self.control.services.wait(self, reason, detail, lambda: self.control.mailbox.unread)

    def elapsed(self, now: float) -> float:
        """Return the seconds that the run was active until monotonic time `now`. Waiting for people does not count."""
        return 0.0 if self.cursor.started_at is None else now - self.cursor.started_at

    @property
    def loses(self) -> bool:
        """Whether the run would lose its pending event: the event is an object, which only its transition records."""
        return (
            self.cursor.event_object is not None
            and self.cursor.pending_event is not None
            and not self.cursor.entry_pending
            and self.cursor.error is None
        )

    @property
    def stopping(self) -> bool:
        """Whether the run was asked to stop and has not ended yet."""
        return isinstance(self.control.interruption, CancelRequested) or isinstance(
            self.cursor.error, CancelRequested
        )

    def cancel(self, reason: str = "caller", why: str = "") -> None:
        """Ask the run to stop. The request counts at once; the driver stops before its next step, paused or not."""
        self.control.pause_request = None
        self.stop(CancelRequested(reason, why))

    def stop(self, cause: Exception) -> None:
        """Interrupt the run with `cause`. Ignored after the end and while an earlier cause is open.

        The time limit of a state is no such earlier cause: it may turn out to have passed too late. The hook in
        flight is cancelled; then `cause` becomes the error of the run as if the hook had raised it.
        """
        if self.cursor.ended or (
            self.control.interruption is not None and self.control.interruption is not self.control.overdue
        ):
            return
        if isinstance(cause, CancelRequested) and isinstance(self.cursor.error, CancelRequested):
            return  # it is on its way out for that already; a second request must not stop the clean-up
        self.control.interruption = cause
        self.control.halted = True
        if self.control.interrupt is not None:
            self.control.interrupt()

    def can(self, event: str) -> bool:
        """Return whether `event` has an edge here that its guard allows, and no event is in flight.

        Raises the errors of guards.
        """
        return not (self.control.driving or self.cursor.ended) and self.may(event)

    def may(self, event: str) -> bool:
        """Return whether `event` has a transition from the present state whose conditions hold.

        `run.may_<event>()` is the same for one event. The guards are evaluated and not counted. Raises the errors of
        guards.
        """
        try:
            steps = self.machine.steps(self.cursor.state, event)
        except (InvalidEvent, UnknownEvent):
            return False
        return any(all(condition.check(self) for condition in step.conditions) for step in steps)

    def cannot(self, event: str) -> bool:
        """Return whether `event` would be refused now."""
        return not self.can(event)

    def available_events(self) -> tuple[StrEnum, ...]:
        """Return the events that have an edge from the present state, sorted; none after the end of the run."""
        return () if self.cursor.ended else self.machine.events_from(self.cursor.state)


def add_may_method(event: str) -> None:
    """Give every run the method `may_<event>`.

    It is a method of the class. With `__getattr__` instead, Python would read every attribute of a run by a slow
    path, which takes 6 % of a turn.
    """

    def may(run: Run[Any, Any]) -> bool:
        return run.may(event)

    setattr(Run, f"may_{event}", may)
