"""One run: a cursor in a machine, its plain-data context, its handles, and its mailbox."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from orchestrator.errors import CancelRequested, InvalidEvent, UnknownEvent

if TYPE_CHECKING:
    from orchestrator.kernel.clock import Alarm
    from orchestrator.kernel.graph import Graph
    from orchestrator.kernel.journal import Draft, Lease
    from orchestrator.kernel.machine import Machine, Step
    from orchestrator.kernel.record import EventFailed, Fact


class Context(Protocol):
    """What the kernel asks of `run.ctx`: a loop counter for logs. Everything else is the graph's own."""

    iteration: int


Ctx = TypeVar("Ctx", bound=Context)
Deps = TypeVar("Deps")


@dataclass(frozen=True, slots=True)
class Signal:
    """A request from outside. `event` is for the next waiting state; None asks the run to stop, at once."""

    event: StrEnum | None = None
    id: str = ""
    """Two signals with the same id are one."""
    by: str = "caller"
    why: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)


class Mailbox:
    """Signals for one run, each id once. The driver that owns the run reads it; nobody else does."""

    __slots__ = ("_listener", "_news", "_seen", "_signals", "_stop")

    def __init__(self) -> None:
        self._signals: deque[Signal] = deque()
        self._seen: set[str] = set()
        self._stop: Signal | None = None
        self._news: asyncio.Event | None = None
        self._listener: Callable[[Signal], None] | None = None

    def post(self, signal: Signal) -> bool:
        """Leave a signal; one that asks to stop overtakes the others. Returns False for a known id."""
        if signal.id:
            if signal.id in self._seen:
                return False
            self._seen.add(signal.id)
        if signal.event is not None:
            self._signals.append(signal)
            if self._news is not None:
                self._news.set()
        elif self._listener is not None:
            self._listener(signal)
        elif self._stop is None:
            self._stop = signal
        return True

    def take(self) -> Signal | None:
        """Return the oldest signal that names an event, or None."""
        return self._signals.popleft() if self._signals else None

    async def wait(self) -> None:
        """Return once `take` has something to return."""
        if not self._signals:
            self._news = asyncio.Event()
            try:
                await self._news.wait()
            finally:
                self._news = None

    def listen(self, listener: Callable[[Signal], None] | None) -> None:
        """Hand signals that ask to stop to `listener`, at once when they are posted; None: keep the first."""
        self._listener = listener
        if listener is not None and self._stop is not None:
            signal, self._stop = self._stop, None
            listener(signal)

    def __len__(self) -> int:
        return len(self._signals) + (self._stop is not None)


@dataclass(slots=True, eq=False, repr=False)
class Run(Generic[Ctx, Deps]):
    """`ctx` is plain data that can be stored and replayed; `deps` are live handles that cannot.

    Where a run stands is `cursor` with `fresh` and `pending`: a driver that takes it up runs the enter
    hooks of the present state if they have not completed, else fires the pending event. To resume a stored
    run, make one with `cursor`, `seq`, `started_at` and `entered_at` set, and `parked` if observers are to
    hear of it.
    """

    machine: Machine
    run_id: str
    ctx: Ctx
    deps: Deps
    parent_run_id: str | None = field(default=None, kw_only=True)

    cursor: str = field(default="", init=False)
    """The present state's value; only `transitions` moves it."""
    fresh: bool = field(default=True, init=False)
    """The enter hooks of the present state have not completed."""
    pending: StrEnum | None = field(default=None, init=False)
    """The event to fire next."""
    step: Step | None = field(default=None, init=False)
    """The edge in flight, or taken last: event, source, dest, guard_name. For the general hooks."""
    committed: bool = field(default=False, init=False)
    """That edge has been committed."""
    seq: int = field(default=0, init=False)
    """Transitions committed so far."""
    started_at: float | None = field(default=None, init=False)
    """Monotonic seconds at which the run was created."""
    entered_at: float = field(default=0.0, init=False)
    """Monotonic seconds at which the present state was entered."""
    expires_at: float | None = field(default=None, init=False)
    """Monotonic seconds at which the whole run must have ended; None once that has been said."""
    overdue: Exception | None = field(default=None, init=False)
    """The StateTimeout of this stay in the present state; a dwell limit fires once a stay."""

    error: Exception | None = field(default=None, init=False)
    """The first error that made the run fail."""
    failure: EventFailed | None = field(default=None, init=False)
    """The fact about that error."""
    hook: str = field(default="", init=False)
    """The hook or guard (`when:<name>`) that runs now, or ran last."""
    signal: Signal | None = field(default=None, init=False)
    """The request from outside that was read last."""

    ended: bool = field(default=False, init=False)
    parked: bool = field(default=False, init=False)
    """Observers were told that it is parked; the next driver tells them that it is resumed."""
    lease: Lease | None = field(default=None, init=False)
    """Proof that this process owns the run; set where there is a journal, until the run has ended."""
    detached: bool = field(default=False, init=False)
    """The journal was lost: the run can only fail, in memory."""
    driving: bool = field(default=False, init=False)
    """A driver has this run in its hands."""
    mailbox: Mailbox = field(default_factory=Mailbox, init=False)

    interruption: Exception | None = field(default=None, init=False)
    """Why the run is to be stopped."""
    halted: bool = field(default=False, init=False)
    """The driver is to look at `interruption` before it does anything else."""
    interrupt: Callable[[], None] | None = field(default=None, init=False)
    """Cancel the hook in flight; set while a driver drives."""
    alarm: Alarm | None = field(default=None, init=False)
    """Rings when a time limit passes; set while a driver drives."""

    drafts: list[Draft] = field(default_factory=list, init=False)
    """Records folded but not yet durable."""
    unsent: list[Fact] = field(default_factory=list, init=False)
    """Facts that wait for those records."""
    tell: Callable[[Fact], None] = field(init=False)
    """Hand a fact to the observers; set by the driver."""

    def __post_init__(self) -> None:
        self.cursor = self.machine.graph.initial.value
        self.tell = self.unsent.append

    @property
    def graph(self) -> Graph:
        """The graph this run is in."""
        return self.machine.graph

    @property
    def state(self) -> StrEnum:
        """The present state."""
        return self.machine.states[self.cursor]

    current = state

    def emit(self, fact: Fact) -> None:
        """Report a fact. It is held back while the transition it follows is not durable yet."""
        if self.unsent:
            self.unsent.append(fact)
        else:
            self.tell(fact)

    def cancel(self, reason: str = "caller", why: str = "") -> None:
        """Ask the run to stop: acknowledged at once, carried out before the driver's next step."""
        self.stop(CancelRequested(reason, why))

    def stop(self, cause: Exception) -> None:
        """Interrupt the run with `cause`; ignored after the end and while an earlier cause is open.

        A time limit of the state is no such cause: it may turn out to have passed too late.
        The hook in flight is cancelled; then `cause` becomes the run's error as if the hook had raised it.
        """
        if self.ended or (self.interruption is not None and self.interruption is not self.overdue):
            return
        if isinstance(cause, CancelRequested) and isinstance(self.error, CancelRequested):
            return  # it is on its way out for that already; a second request must not stop the clean-up
        self.interruption = cause
        self.halted = True
        if self.interrupt is not None:
            self.interrupt()

    def can(self, event: str) -> bool:
        """Tell whether `event` has an edge here that its guard allows, and nothing is in flight.

        Raises what a guard raises.
        """
        if self.driving or self.ended:
            return False
        try:
            steps = self.machine.steps(self.cursor, event)
        except (InvalidEvent, UnknownEvent):
            return False
        return any(step.guard is None or bool(step.guard(self.ctx)) for step in steps)

    def cannot(self, event: str) -> bool:
        """Tell whether `event` would be refused now."""
        return not self.can(event)

    def available_events(self) -> tuple[StrEnum, ...]:
        """Return the events that have an edge from the present state, sorted; none once the run has ended."""
        return () if self.ended else self.machine.events_from(self.cursor)
