"""One run: a cursor in a machine, its plain-data context, its handles, and its mailbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from orchestrator.errors import CancelRequested, InvalidEvent, UnknownEvent
from orchestrator.kernel.clock import GRACE
from orchestrator.kernel.journal import Draft

if TYPE_CHECKING:
    from orchestrator.kernel.clock import Alarm
    from orchestrator.kernel.graph import Graph
    from orchestrator.kernel.journal import Lease
    from orchestrator.kernel.machine import Machine
    from orchestrator.kernel.outcome import Ending
    from orchestrator.kernel.record import EventFailed, Fact, Follower, Remark
    from orchestrator.kernel.table import Step
    from orchestrator.kernel.transition_executor import TransitionExecutor


class Context(Protocol):
    """What the kernel asks of `run.ctx`: a loop counter for logs. Everything else is the graph's own."""

    iteration: int


class Keeper(Protocol):
    """What the hooks of a run may ask of its driver, through the run."""

    async def settle(self, run: Run[Any, Any]) -> None:
        """Make the run's drafts durable."""
        ...

    async def keep(self, run: Run[Any, Any]) -> None:
        """Make the run's drafts durable, and its context as it is."""
        ...

    async def confirm_lease(self, run: Run[Any, Any]) -> None:
        """Raise Fenced where the run has another owner by now. For hooks, right before an effect."""
        ...

    async def wait(
        self, run: Run[Any, Any], reason: str, detail: Mapping[str, Any], ready: Callable[[], bool]
    ) -> None:
        """Park the run until `ready`."""
        ...

    def fence(self, run: Run[Any, Any]) -> None:
        """Let a run that waits know that somebody else has it now."""
        ...

    def pass_over(self, run: Run[Any, Any], seconds: float) -> None:
        """Move the run's times on: what it waited was nobody's time."""
        ...


Ctx = TypeVar("Ctx", bound=Context)
Deps = TypeVar("Deps")


Kind: TypeAlias = Literal["event", "cancel", "pause", "resume", "decision", "message"]
"""What a signal asks for."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A request from outside. One with an `event` is for the next waiting state; without, it asks to stop, at once."""

    event: StrEnum | None = None
    id: str = ""
    """Two signals with the same id are one."""
    by: str = "caller"
    why: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind = "event"
    """`event` without an event is `cancel`. `pause` holds the run before its next step, `resume` lets it go on,
    `decision` answers a question that a hook of the run asked, `message` tells the run something that its hooks read
    when they come to it."""
    number: int = 0
    """Position in the run's inbox, when it came through the journal."""

    @property
    def asks(self) -> Kind:
        """What it asks for."""
        return "cancel" if self.kind == "event" and self.event is None else self.kind


class Mailbox:
    """Signals for one run, each id once. The driver that owns the run reads it; nobody else does."""

    __slots__ = ("_decisions", "_early", "_listener", "_messages", "_news", "_seen", "_signals")

    def __init__(self) -> None:
        self._signals: list[Signal] = []  # most runs never get any, and an empty deque takes 600 bytes
        self._decisions: list[Signal] = []
        self._messages: list[Signal] = []
        self._seen: dict[str, None] = {}
        self._early: list[Signal] = []
        self._news: asyncio.Event | None = None
        self._listener: Callable[[Signal], None] | None = None

    def post(self, signal: Signal) -> bool:
        """Leave a signal; one that asks to stop or pause overtakes the others. Returns False for a known id."""
        if signal.id:
            if signal.id in self._seen:
                return False
            self._seen[signal.id] = None
        if signal.asks == "event":
            self._signals.append(signal)
        elif signal.asks == "decision":
            self._decisions.append(signal)
        elif signal.asks == "message":
            self._messages.append(signal)
        elif self._listener is not None:
            self._listener(signal)
        else:
            self._early.append(signal)
        if self._news is not None:
            self._news.set()
        return True

    def forget(self, ids: Iterable[str]) -> None:
        """Take these ids for known: their signals were handled before the run came to this process."""
        self._seen.update(dict.fromkeys(ids))

    def take(self) -> Signal | None:
        """Return the oldest signal that names an event, or None."""
        return self._signals.pop(0) if self._signals else None

    def decision(self) -> Signal | None:
        """Return the oldest answer to a question, or None."""
        return self._decisions.pop(0) if self._decisions else None

    def message(self) -> Signal | None:
        """Return the oldest message that no hook has read, or None."""
        return self._messages.pop(0) if self._messages else None

    @property
    def unread(self) -> bool:
        """There are messages that no hook has read."""
        return bool(self._messages)

    @property
    def decided(self) -> tuple[Signal, ...]:
        """The answers that nobody has read yet."""
        return tuple(self._decisions)

    async def wait(self) -> None:
        """Return once `take` has something to return."""
        await self.until(lambda: bool(self._signals))

    async def until(self, ready: Callable[[], bool]) -> None:
        """Return once `ready` says so; it is asked now and whenever something is posted."""
        while not ready():
            self._news = asyncio.Event()
            try:
                await self._news.wait()
            finally:
                self._news = None

    def listen(self, listener: Callable[[Signal], None] | None) -> None:
        """Hand signals to stop, pause and resume to `listener`, at once when they are posted; None: keep them."""
        self._listener = listener
        if listener is not None:
            early, self._early = self._early, []
            for signal in early:
                listener(signal)

    def __len__(self) -> int:
        return len(self._signals) + len(self._early) + len(self._decisions) + len(self._messages)


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
    given: Any = field(default=None, init=False)
    """The object that the event stands for, in a machine whose events are objects: guards and actions take it."""
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
    cancel_seconds: float = field(default=GRACE, init=False)
    """How long cancelled host code may take to end before it is abandoned; 0 waits for it without a limit."""
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
    ending: Ending | None = field(default=None, init=False)
    """How it ended, as observers were told and the journal has it."""
    unheard: bool = field(default=False, init=False)
    """It is new: no observer anywhere has heard of it."""
    parked: bool = field(default=False, init=False)
    """Observers were told that it is parked; the next driver tells them that it is resumed."""
    lease: Lease | None = field(default=None, init=False)
    """Proof that this process owns the run; set where there is a journal, until the run has ended."""
    detached: bool = field(default=False, init=False)
    """The journal was lost: the run can only fail, in memory."""
    driving: bool = field(default=False, init=False)
    """A driver has this run in its hands."""
    mailbox: Mailbox = field(default_factory=Mailbox, init=False)
    inbox: int = field(default=0, init=False)
    """Number of the last request of another process that was put into the mailbox."""

    interruption: Exception | None = field(default=None, init=False)
    """Why the run is to be stopped."""
    halted: bool = field(default=False, init=False)
    """The driver is to look at `interruption` before it does anything else."""
    interrupt: Callable[[], None] | None = field(default=None, init=False)
    """Cancel the hook in flight; set while a driver drives."""
    alarm: Alarm | None = field(default=None, init=False)
    """Rings when a time limit passes; set while a driver drives."""

    stays: bool = field(default=True, init=False)
    """The driver waits in place for somebody's answer, instead of returning with the run parked."""
    held: Signal | None = field(default=None, init=False)
    """Who asked for a pause: the driver parks the run before its next step."""
    drafts: list[Draft] = field(default_factory=list, init=False)
    """Records noted or folded but not yet durable."""
    folded: bool = field(default=False, init=False)
    """There is a transition among them."""
    writing: asyncio.Future[None] | None = field(default=None, init=False)
    """An append that is under way."""
    saved: Any = field(default=None, init=False)
    """What the journal has of `ctx`; the codec's own."""
    unsent: list[Fact] = field(default_factory=list, init=False)
    """Facts that wait for those records."""
    remark: Remark | None = field(default=None, init=False)
    """What the next transition says of the state it leaves; set by leave_ and before_ hooks, void after it."""
    tell: Callable[[Fact], None] = field(init=False)
    """Hand a fact to the observers; set by the driver."""
    executor: TransitionExecutor | None = field(default=None, init=False)
    """What carries out its transitions; set by the driver."""
    keeper: Keeper | None = field(default=None, init=False)
    """What a hook may ask of the driver; set while one drives."""
    follower: Follower | None = field(default=None, init=False)
    """Who follows this run as it goes, if anybody: only then is there something to tell beside the facts."""

    graph: Graph = field(init=False)
    """The graph this run is in."""

    def __post_init__(self) -> None:
        self.graph = self.machine.graph
        self.cursor = self.graph.initial.value
        self.tell = self.unsent.append

    def __repr__(self) -> str:
        return f"<run {self.run_id!r} of {self.graph.name}, in {self.cursor!r}>"

    @property
    def state(self) -> StrEnum:
        """The present state."""
        return self.graph.states(self.cursor)

    current = state

    def emit(self, fact: Fact) -> None:
        """Report a fact. It is held back while a record it may depend on is not durable yet."""
        if self.unsent or self.drafts:
            self.unsent.append(fact)
        else:
            self.tell(fact)

    def note(self, kind: str, body: Mapping[str, Any]) -> None:
        """Draft a record: durable with the next transition, or with `settle`. Without a journal, nothing."""
        if self.lease is not None and not self.detached:
            self.drafts.append(Draft(kind, body))

    async def settle(self) -> None:
        """Make durable what was noted. For hooks, before an effect. Raises what the journal raises."""
        if self.keeper is not None:
            await self.keeper.settle(self)

    async def keep(self) -> None:
        """Make durable what was noted and what changed of `ctx`: done work of a state that has more to do. For hooks.

        After a crash the state's hook is run again, and finds the context so. Raises what the journal raises.
        """
        if self.keeper is not None:
            await self.keeper.keep(self)

    async def await_decision(self, reason: str, **detail: Any) -> None:
        """Park here, at no cost of time limits, until the mailbox holds a decision. For hooks.

        Where the driver does not wait in place, this raises and the hook is run again when there is one.
        """
        if self.keeper is not None:
            await self.keeper.wait(self, reason, detail, lambda: bool(self.mailbox.decided))

    async def await_message(self, reason: str, **detail: Any) -> None:
        """Park here as `await_decision` does, until the mailbox holds a message. For hooks."""
        if self.keeper is not None:
            await self.keeper.wait(self, reason, detail, lambda: self.mailbox.unread)

    def elapsed(self, now: float) -> float:
        """Seconds the run has been active at monotonic time `now`; waiting for people is not counted."""
        return 0.0 if self.started_at is None else now - self.started_at

    @property
    def loses(self) -> bool:
        """The event that the state's work came to is an object: no record has it, only its transition keeps it."""
        return self.given is not None and self.pending is not None and not self.fresh and self.error is None

    @property
    def stopping(self) -> bool:
        """Somebody has asked the run to stop, and it is on its way to its end."""
        return isinstance(self.interruption, CancelRequested) or isinstance(self.error, CancelRequested)

    def cancel(self, reason: str = "caller", why: str = "") -> None:
        """Ask the run to stop: acknowledged at once, carried out before the driver's next step, paused or not."""
        self.held = None
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
        return not (self.driving or self.ended) and self.may(event)

    def may(self, event: str) -> bool:
        """Return whether `event` has a transition from the present state whose conditions hold.

        `run.may_<event>()` is the same for the events of every table. The guards are evaluated and not counted.
        Raises what a guard raises.
        """
        try:
            steps = self.machine.steps(self.cursor, event)
        except (InvalidEvent, UnknownEvent):
            return False
        return any(all(condition.check(self) for condition in step.conditions) for step in steps)

    def cannot(self, event: str) -> bool:
        """Tell whether `event` would be refused now."""
        return not self.can(event)

    def available_events(self) -> tuple[StrEnum, ...]:
        """Return the events that have an edge from the present state, sorted; none once the run has ended."""
        return () if self.ended else self.machine.events_from(self.cursor)


def add_may_method(event: str) -> None:
    """Give every run the method `may_<event>`.

    It is a method of the class: with `__getattr__` in its place Python reads each attribute of a run by a slow path,
    which takes 6 % of a turn.
    """

    def may(run: Run[Any, Any]) -> bool:
        return run.may(event)

    setattr(Run, f"may_{event}", may)
