"""The three parts of a run: its cursor, its control, and its pending writes.

Only the kernel writes them. Hosts and hooks may read them; `Run` has properties for the parts that they read often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from orchestrator.kernel.clock import GRACE
from orchestrator.kernel.journal import Draft
from orchestrator.kernel.mailbox import Mailbox, Signal
from orchestrator.kernel.record import FACTS

if TYPE_CHECKING:
    from orchestrator.kernel.clock import Alarm
    from orchestrator.kernel.journal import Lease
    from orchestrator.kernel.outcome import Ending
    from orchestrator.kernel.record import EventFailed, Fact, Follower, TransitionNote
    from orchestrator.kernel.suspension import HookServices
    from orchestrator.kernel.table import CompiledTransition
    from orchestrator.kernel.transition_executor import TransitionExecutor


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
    unpublished: list[Fact] = field(default_factory=list)
    """Facts that wait for those records."""
    note: TransitionNote | None = None
    """Describes the stay in the state that the next transition leaves."""
    guards: Sequence[Any] | None = None
    """Rows of the guards that led to the next transition; its record has them."""
    decided: object = None
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
        self.guards = self.decided = self.attempts = self.table_members = None
        return {name: rows for name, rows in taken.items() if rows}
