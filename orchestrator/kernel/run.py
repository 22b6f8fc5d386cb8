"""One run: its machine, its plain-data context, its handles, and the three parts that the kernel writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from orchestrator.errors import CancelRequested, InvalidEvent, UnknownEvent
from orchestrator.kernel.journal import draft
from orchestrator.kernel.run_parts import Control, Cursor, PendingWrites

if TYPE_CHECKING:
    from orchestrator.kernel.graph import Graph
    from orchestrator.kernel.journal import Lease
    from orchestrator.kernel.machine import Machine
    from orchestrator.kernel.mailbox import Mailbox
    from orchestrator.kernel.outcome import Ending
    from orchestrator.kernel.record import EventFailed, Fact, Follower, TransitionNote
    from orchestrator.kernel.table import CompiledTable, CompiledTransition


class Context(Protocol):
    """What the kernel asks of `run.ctx`: a loop counter for logs. Everything else is the graph's own."""

    iteration: int


Ctx = TypeVar("Ctx", bound=Context)
Deps = TypeVar("Deps")


@dataclass(slots=True, eq=False, repr=False)
class Run(Generic[Ctx, Deps]):
    """`ctx` is plain data that can be stored and replayed; `deps` are live handles that cannot.

    `cursor`, `control` and `writes` belong to the kernel. To resume a stored run, make one and call `restore`.
    """

    machine: Machine
    run_id: str
    ctx: Ctx
    deps: Deps
    parent_run_id: str | None = field(default=None, kw_only=True)

    graph: Graph = field(init=False)
    """The graph this run is in."""
    table: CompiledTable = field(init=False)
    """What the machine has compiled from its table."""
    cursor: Cursor = field(init=False)
    """Where it is in the graph."""
    control: Control = field(default_factory=Control, init=False)
    """Requests, interruption, time limits, owner and driver."""
    writes: PendingWrites = field(default_factory=PendingWrites, init=False)
    """Records and facts on their way."""
    saved: Any = field(default=None, init=False)
    """What the journal has of `ctx`; the codec's own."""

    def __post_init__(self) -> None:
        self.graph = self.machine.graph
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
        """The edge in flight, or taken last: event, source, dest, guard_name."""
        return self.cursor.step

    @property
    def hook(self) -> str:
        """The hook or guard (`when:<name>`) that runs now, or ran last."""
        return self.cursor.hook

    @property
    def seq(self) -> int:
        """Transitions committed so far."""
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
        """The run has ended."""
        return self.cursor.ended

    @property
    def ending(self) -> Ending | None:
        """How the run ended, as observers and the journal have it."""
        return self.cursor.ending

    @property
    def parked(self) -> bool:
        """Observers know the run as parked."""
        return self.cursor.parked

    @property
    def mailbox(self) -> Mailbox:
        """The requests from outside that wait for the run."""
        return self.control.mailbox

    @property
    def lease(self) -> Lease | None:
        """Proof that this process owns the run, where there is a journal."""
        return self.control.lease

    @property
    def interruption(self) -> Exception | None:
        """Why the run is to be stopped."""
        return self.control.interruption

    # ---- what a composition or a hook sets ----

    def restore(self, cursor: Cursor) -> None:
        """Put the run where its records say that it was, before a driver resumes it.

        The fields are copied: the kernel keeps no other cursor of a run than its first one.
        """
        for field_ in fields(cursor):
            setattr(self.cursor, field_.name, getattr(cursor, field_.name))

    def set_lease(self, lease: Lease | None) -> None:
        """Give the run the proof that this process owns it."""
        self.control.lease = lease

    def limit_time(self, expires_at: float | None, cancel_seconds: float) -> None:
        """Set when the run must have ended (monotonic seconds), and how long cancelled host code may take to end."""
        self.control.expires_at, self.control.cancel_seconds = expires_at, cancel_seconds

    def acknowledge(self, number: int) -> None:
        """Note that the requests of other processes up to this number are in the mailbox."""
        self.control.inbox = max(self.control.inbox, number)

    def follow(self, follower: Follower | None) -> None:
        """Give the text of the model to `follower` as it comes."""
        self.control.follower = follower

    def set_hook(self, name: str) -> None:
        """Name the hook that runs now, for facts about its errors. For code that runs hooks of its own."""
        self.cursor.hook = name

    def wait_in_place(self, *, wanted: bool) -> None:
        """Set whether the driver waits for an answer in place, instead of returning with the run parked."""
        self.control.waits_in_place = wanted

    def annotate(self, note: TransitionNote) -> None:
        """Set what the next transition says about the stay in the state it leaves. For leave_ and before_ hooks."""
        self.writes.note = note

    def clear_error(self) -> None:
        """Forget the error of a run that continues after it: its next error counts as the first. For hooks."""
        self.cursor.error = self.cursor.failure = None

    def set_event_object(self, event: object) -> None:
        """Set the object that the next event stands for. For enter hooks of machines whose events are objects."""
        self.cursor.event_object = event

    # ---- records and facts ----

    def emit(self, fact: Fact) -> None:
        """Report a fact. It is held back while a record it may depend on is not durable yet."""
        if self.writes.unpublished or self.writes.drafts:
            self.writes.unpublished.append(fact)
        else:
            self.writes.publish(fact)

    def note(self, kind: str, body: Mapping[str, Any]) -> None:
        """Draft a record: durable with the next transition, or with `settle`. Without a journal, nothing."""
        if self.control.lease is not None and not self.control.detached:
            self.writes.drafts.append(draft(kind, body))

    async def settle(self) -> None:
        """Make durable what was noted. For hooks, before an effect. Raises what the journal raises."""
        if self.control.services is not None:
            await self.control.services.settle(self)

    async def keep(self) -> None:
        """Make durable what was noted and what changed of `ctx`: done work of a state that has more to do. For hooks.

        After a crash the state's hook is run again, and finds the context so. Raises what the journal raises.
        """
        if self.control.services is not None:
            await self.control.services.keep(self)

    async def await_decision(self, reason: str, **detail: Any) -> None:
        """Park here, at no cost of time limits, until the mailbox holds a decision. For hooks.

        Where the driver does not wait in place, this raises and the hook is run again when there is one.
        """
        if self.control.services is not None:
            await self.control.services.wait(self, reason, detail, lambda: bool(self.control.mailbox.decided))

    async def await_message(self, reason: str, **detail: Any) -> None:
        """Park here as `await_decision` does, until the mailbox holds a message. For hooks."""
        if self.control.services is not None:
            await self.control.services.wait(self, reason, detail, lambda: self.control.mailbox.unread)

    def elapsed(self, now: float) -> float:
        """Seconds the run has been active at monotonic time `now`; waiting for people is not counted."""
        return 0.0 if self.cursor.started_at is None else now - self.cursor.started_at

    @property
    def loses(self) -> bool:
        """The event that the state's work came to is an object: no record has it, only its transition keeps it."""
        return (
            self.cursor.event_object is not None
            and self.cursor.pending_event is not None
            and not self.cursor.entry_pending
            and self.cursor.error is None
        )

    @property
    def stopping(self) -> bool:
        """Somebody has asked the run to stop, and it is on its way to its end."""
        return isinstance(self.control.interruption, CancelRequested) or isinstance(
            self.cursor.error, CancelRequested
        )

    def cancel(self, reason: str = "caller", why: str = "") -> None:
        """Ask the run to stop: acknowledged at once, carried out before the driver's next step, paused or not."""
        self.control.pause_request = None
        self.stop(CancelRequested(reason, why))

    def stop(self, cause: Exception) -> None:
        """Interrupt the run with `cause`; ignored after the end and while an earlier cause is open.

        A time limit of the state is no such cause: it may turn out to have passed too late.
        The hook in flight is cancelled; then `cause` becomes the run's error as if the hook had raised it.
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
        """Tell whether `event` has an edge here that its guard allows, and nothing is in flight.

        Raises what a guard raises.
        """
        return not (self.control.driving or self.cursor.ended) and self.may(event)

    def may(self, event: str) -> bool:
        """Return whether `event` has a transition from the present state whose conditions hold.

        `run.may_<event>()` is the same for the events of every table. The guards are evaluated and not counted.
        Raises what a guard raises.
        """
        try:
            steps = self.machine.steps(self.cursor.state, event)
        except (InvalidEvent, UnknownEvent):
            return False
        return any(all(condition.check(self) for condition in step.conditions) for step in steps)

    def cannot(self, event: str) -> bool:
        """Tell whether `event` would be refused now."""
        return not self.can(event)

    def available_events(self) -> tuple[StrEnum, ...]:
        """Return the events that have an edge from the present state, sorted; none once the run has ended."""
        return () if self.cursor.ended else self.machine.events_from(self.cursor.state)


def add_may_method(event: str) -> None:
    """Give every run the method `may_<event>`.

    It is a method of the class: with `__getattr__` in its place Python reads each attribute of a run by a slow path,
    which takes 6 % of a turn.
    """

    def may(run: Run[Any, Any]) -> bool:
        return run.may(event)

    setattr(Run, f"may_{event}", may)
