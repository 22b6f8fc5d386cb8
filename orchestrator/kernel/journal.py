"""Interface of the journal: the guarantees of a store of records, and its values. No engine, no SQL.

Each run has one append-only, hash-chained, totally ordered journal, which is the source of truth. One owner at a time
holds the lease of a run. Every append carries the epoch of the lease, and the store itself refuses an old epoch.
Every store guarantees:

- `append` is atomic. It is durable when it returns None or when the returned awaitable has completed. The store
  resolves an unknown outcome (a lost connection) itself: the records are either written or not.
- Records of a run are numbered 0, 1, 2 … without a gap. The records of one append have one hash, which covers them
  and the append before. `load` verifies all of them.
- After an I/O error a store in a file is poisoned: every further call raises StoreDown until the store is opened
  again. A store on a server is not: a lost connection says nothing about the store, and the server handles its disk.
- `post` needs no lease and keeps the first request of each id, whichever process posts it. The id of an answer names
  its question, so the store itself decides which answer counts.

A journal that can be counted has a method `head_counts()`. It is synchronous, because a scrape has no event loop,
and reads the heads of the runs alone, on a separate connection: it needs neither an open journal nor its threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypedDict, TypeVar, Unpack

from orchestrator.errors import JournalError

RECORD_SCHEMA = 1
"""Version of the record bodies, written into each `created` record. A store refuses a newer version."""

NO_HASH = "0" * 64
"""Hash before the first record."""

ENDING_KINDS = frozenset(("ended",))
"""Kinds of records after which a run is no longer open."""

PARKING_KINDS = frozenset(("parked",))
"""Kinds of records of a run that waits; `reason` in the body says why."""

NOTIFIED = "notified"
"""Kind of the requests that are no requests: they mark that a person was notified of a question of the run."""

EXCERPT = 4
"""Most of the last appends of a run in an excerpt: those with its last answer, question, error and end."""
EXCERPT_BYTES = 100_000
"""Most bytes of an append in an excerpt: a listing reads many runs, and a longer append is not in it."""

ENGINE = "engine"
"""Graph of the runs that represent engines."""


class Draft(NamedTuple):
    """A record that is not written yet: `kind` and a body of plain data (JSON types only)."""

    kind: str
    body: Mapping[str, Any]


draft: Callable[[tuple[str, Mapping[str, Any]]], Draft] = partial(tuple.__new__, Draft)
"""Makes a Draft of its two values, in C: a turn makes seven."""


class Record(NamedTuple):
    """One durable record. `hash` is that of its append, chained to the append before (`orchestrator.journal.codec`)."""

    seq: int
    epoch: int
    kind: str
    body: Mapping[str, Any]
    hash: str


@dataclass(slots=True)
class Lease:
    """Proof that an owner holds a run. Every append takes it and updates it."""

    run_id: str
    owner: str
    epoch: int
    """Fencing token: each claim adds one, and no value is reused. A lower one is refused for ever."""
    seq: int
    """Number of the last durable record, -1 before the first."""
    head: str
    """Hash of the append of that record."""
    proved_at: float = field(default=0.0, compare=False)
    """Time of the last append that the store accepted (monotonic seconds): the lease was valid after that."""


@dataclass(frozen=True, slots=True)
class RunHead:
    """Data of a run that a store has without reading its records."""

    run_id: str
    graph: str
    fingerprint: str
    status: str
    """`open`, `parked` or `ended`."""
    seq: int
    epoch: int
    owner: str | None
    """Owner of the lease; None if no living process holds it."""
    created_at: float
    updated_at: float
    reason: str = ""
    """Reason in the body of the `parked` or `ended` record."""
    parent_run_id: str | None = None
    conversation_id: str | None = None
    stuck_claims: int = 0
    """Number of claims since the run last appended a record that is not a claim; at a limit the run is poison."""
    lease_expires_in: float | None = None
    """Seconds until another process can claim the run, if its owner missed heartbeats; None if it missed none or the
    store does not say.
    """
    lease_renewed_at: float | None = field(default=None, compare=False)
    """Time of the last renewal of the lease (epoch seconds); None without an owner, or if the store does not say."""
    expired_owner: str | None = field(default=None, compare=False)
    """Owner whose lease has expired although its process still exists: it is stopped or hangs. None for any other run,
    or if the store does not say.
    """
    agent: str = ""
    """Name of the agent that the run belongs to; empty if it has none. A transfer changes it."""
    agent_version: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    state: str = ""
    """Empty before the first transition: the graph's initial state."""
    state_since: float | None = None
    """Time of the entry into that state (epoch seconds); None before the first transition."""
    outcome: str = ""
    """Outcome of an ended run."""
    waiting: str = ""
    """Tools or questions that a parked run waits for, separated by ", "; at most 200 characters."""
    tokens: int | None = None
    """Input and output tokens as the limits count them: with child runs and estimates. None if the run counts none."""
    cost_micros: int | None = None
    """Cost in millionths of the currency, counted in the same way; None if no price is known."""
    currency: str = ""
    """Currency of its prices, which its records name; empty if they name none, as those of earlier versions."""


class RunConditions(TypedDict, total=False):
    """Conditions of a listing; a run must meet each. None is no condition."""

    status: str | None
    graph: str | None
    conversation_id: str | None
    parent_run_id: str | None
    agent: str | None
    state: str | None
    outcome: str | None
    reason: str | None
    tags: Mapping[str, str] | None
    waiting: str | bool | None
    """True for every run that waits for a person, or one name of `RunHead.waiting`."""
    older_than: float | None
    """The last record is older than this time (epoch seconds)."""
    started_since: float | None
    """The run started at this time (epoch seconds) or later."""
    started_before: float | None
    search: str | None
    """Words that the run has, each in any case and at any place: in its id, machine, agent, tags, outcome, reason, or
    in the tools that it waits for.
    """
    hits: Mapping[str, Sequence[str]] | None
    """Word of the search -> ids of further runs that have it, from an index of what a head does not have."""
    run_ids: Sequence[str] | None
    """The run has one of these ids."""
    offset: int | None
    """Runs to skip before the first; a count ignores it."""
    order_by: str
    """`created` (default), `updated`, `state_since`, `tokens` or `cost`. An unknown number is the least."""
    descending: bool
    limit: int | None
    """Most runs to yield."""
    after: str | None
    """Id of a run: only runs after it in this order, by its position at the time of the call."""


@dataclass(frozen=True, slots=True)
class RunCounts:
    """How many runs meet the conditions of a listing, without the runs that represent engines."""

    total: int = 0
    open: int = 0
    parked: int = 0
    """Every parked run, also those that wait for a person."""
    waiting: int = 0
    """Parked runs that wait for a person."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Outcome -> ended runs."""


class CurrencyCost(NamedTuple):
    """What runs cost in one currency. Costs in two currencies are never summed."""

    currency: str
    """Empty for runs whose records name none."""
    micros: int
    """In millionths of the currency."""
    runs: int
    """The runs with a known cost in this currency."""


@dataclass(frozen=True, slots=True)
class AgentStatistics:
    """What the heads of the runs of an agent, or of a version of it, have together."""

    agent: str
    version: str
    """Version of the agent; empty for all versions together, and for an agent without one."""
    counts: RunCounts
    tokens: int | None
    """Of its own runs, without their child runs, which have agents of their own. None if no run counts tokens."""
    counted: int
    """Runs that count tokens."""
    costs: tuple[CurrencyCost, ...]
    """The same for the cost, once for each currency, in their order; empty if no run has a known price."""
    p50: float | None
    """Seconds from start to end, with all waits, that half of the ended runs did not exceed; None without one. It is
    interpolated between two runs.
    """
    p95: float | None
    first: float
    """Start of its first run (epoch seconds)."""
    last: float
    """Start of its last run."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A request for a run from outside: approve, reject, respond, pause, resume, cancel."""

    id: str
    """Two posts with the same id count as one."""
    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    at: float = 0.0
    number: int = 0
    """Position in the inbox of the run, from 1; set by the store."""


T = TypeVar("T")


class Pending(asyncio.Future[T]):
    """The outcome of a write in flight. It cannot be cancelled.

    A task that is cancelled while it awaits one gets its CancelledError when the outcome is known, so it never has to
    guess whether its records are stored.
    """

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002  asyncio's signature
        """Return False: a write cannot be cancelled."""
        return False


class JournalWriter(Protocol):
    """The part of a journal that a driver writes to.

    A journal whose `create` and `release` never wait may set `at_once = True`. Then no cancellation can interrupt them,
    and the driver makes no task to shield them. A journal that makes nothing durable sets `durable = False`: its writes
    are not timed, and only those that fail are published (`JournalWrite`). Methods raise the subclasses of
    `JournalError` in `errors` (Held, Fenced, StoreDown, Corrupt, TooNew), RunExists and RunUnknown.
    """

    backend: str
    """Value of metric labels: `memory`, `sqlite` or `postgres`."""

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        """Create a run with its `created` record and claim it at once (epoch 1). Raises RunExists.

        The store indexes `graph`, `fingerprint`, `at`, `parent_run_id`, `conversation_id`, `agent`, `agent_version`,
        `tags` and `currency` of the body.
        """
        ...

    def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None] | None:
        """Make all records durable or none, together with the blobs they name (SHA-256 hex -> content).

        Returns None if they are durable already, else an awaitable that completes when they are, even if a caller is
        cancelled; a `Pending` costs the least, because a driver awaits it without a task between. Updates the lease.
        Raises Fenced if the lease is out of date, StoreDown if that is unknown.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Return the run to the journal. A lease that is out of date is ignored."""
        ...


class Journal(JournalWriter, Protocol):
    """A whole store: the writer of a driver, and operations for recovery, operators and other processes."""

    shared: bool
    """Whether other processes can post. The owner must then ask for `news`, because nothing notifies it."""

    async def claim(self, run_id: str, owner: str, *, steal: bool = False) -> Lease:
        """Claim a run: epoch + 1. Raises RunUnknown, or Held while another owner lives, unless `steal`."""
        ...

    async def load(self, run_id: str, since: int = 0) -> Sequence[Record]:
        """Return the records from number `since`, with the whole chain verified. Raises RunUnknown or Corrupt."""
        ...

    async def blob(self, digest: str) -> bytes:
        """Return a blob after its verification. Raises Corrupt."""
        ...

    async def head(self, run_id: str) -> RunHead:
        """Return the RunHead of a run. Raises RunUnknown."""
        ...

    def runs(self, **conditions: Unpack[RunConditions]) -> AsyncIterator[RunHead]:
        """Yield the runs that meet every given condition, in the order of their creation if no other is given.

        No record is read. Runs that do not meet the conditions are not verified. Raises ConfigError for an invalid
        condition, RunUnknown for an unknown run in `after`.
        """
        ...

    async def excerpts(self, run_ids: Sequence[str]) -> dict[str, list[Draft]]:
        """Return the records of the first append and of the last EXCERPT appends of several runs, in their order.

        An append of more than EXCERPT_BYTES is left out. A listing shows the records, so they are not verified: `load`
        verifies a run before anything depends on them. An unknown run has none, and a run with an append that cannot be
        decoded is left out.
        """
        ...

    async def count(self, **conditions: Unpack[RunConditions]) -> RunCounts:
        """Count the runs that meet every given condition, without those of engines; order and limit are ignored."""
        ...

    async def names(self) -> list[tuple[str, str]]:
        """Return each pair of a machine and an agent that runs of the journal have, without those of engines."""
        ...

    async def agents(
        self, *, by_version: bool = False, **conditions: Unpack[RunConditions]
    ) -> list[AgentStatistics]:
        """Return the statistics of each agent, or of each version of each, of the runs that meet every condition.

        Only heads are read; order and limit are ignored. Runs without an agent are left out.
        """
        ...

    async def version(self) -> str:
        """Return a text that is another one after each commit of any process. It may also change without a commit.

        The call is cheap enough for several times a second with any number of runs. The store does not report what
        changed, nor that an owner died.
        """
        ...

    async def newest(self, conversation_id: str) -> RunHead | None:
        """Return the newest run of a conversation, with any status; None if there is none."""
        ...

    async def post(self, run_id: str, request: Posted) -> bool:
        """Leave a request for a run, from any process, without a lease. Returns False if its id was posted before.

        If several requests with one id are posted at the same moment, exactly one is kept. After False, `inbox`
        returns that one.
        """
        ...

    async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
        """Return the requests posted after number `since`, in order."""
        ...

    async def news(self, since: int) -> tuple[int, list[str]]:
        """Return the runs with requests after position `since` of the whole store, and the present position.

        Each run is named once, in the order of its last request. A position below 0 means "from now": the result has
        the present position and no run. The call is cheap enough for several times a second with any number of runs.
        The result is a hint; `inbox` is the proof of posted requests.
        """
        ...

    async def prune(self, *, older_than: float | None = None, keep_last: int | None = None) -> int:
        """Remove whole ended runs: updated before `older_than` (epoch seconds), beyond the newest `keep_last`."""
        ...

    async def erase(self, run_id: str) -> None:
        """Remove a run without a lease, with its inbox and the blobs that only it names. Raises RunUnknown or Held."""
        ...

    async def close(self) -> None:
        """Write the queued records and close the store."""
        ...


def owner_name() -> str:
    """Return a unique name of an owner in this process, for operators who look up the owner of a run."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


async def write_records(
    journal: JournalWriter, lease: Lease, *drafts: Draft, blobs: Mapping[str, bytes] | None = None
) -> None:
    """Append records and wait until they are durable. Raises the errors of `append`."""
    written = journal.append(lease, drafts, blobs)
    if written is not None:
        await written


async def waited(write: asyncio.Future[None]) -> asyncio.CancelledError | None:
    """Wait until a write is done, with any result; return a cancellation that came meanwhile."""
    late: asyncio.CancelledError | None = None
    while not write.done():
        try:
            if isinstance(write, Pending):
                await write  # `asyncio.wait` would take one more turn of the loop
            else:
                await asyncio.wait((write,))
        except asyncio.CancelledError as cancelled:
            late = cancelled
        except Exception:  # noqa: BLE001, S110 - `write` has it, for the caller
            pass
    return late


async def done(waiting: Awaitable[Any]) -> asyncio.CancelledError | None:
    """Wait until a write is done, even if the caller is cancelled; return that cancellation.

    Raises the error of the write, or the cancellation if there was one.
    """
    write = asyncio.ensure_future(waiting)
    late = await waited(write)
    try:
        write.result()
    except Exception as error:
        if late is not None:
            raise late from error
        raise
    return late


async def claimed(journal: Journal, run_id: str, owner: str) -> Lease:
    """Claim a run and return its lease. If the caller is cancelled meanwhile, the run is released again.

    Raises the errors of `claim`.
    """
    claiming = asyncio.ensure_future(journal.claim(run_id, owner))
    if (late := await done(claiming)) is not None:
        await let_go(journal, claiming.result())
        raise late
    return claiming.result()


async def let_go(journal: JournalWriter, lease: Lease) -> None:
    """Release a run after a success, or after an error that another error must not hide.

    A store that fails here has all records of the run. An unreachable store releases the run later. A caller that is
    cancelled meanwhile gets its CancelledError afterwards.
    """
    late = None
    with contextlib.suppress(JournalError):
        late = await done(journal.release(lease))
    if late is not None:
        raise late


RUNNING = "running"
ORPHANED = "orphaned"
PARKED = "parked"
"""States of a journal's run that has not ended: running (a living owner holds it), orphaned (it has no living owner
and waits for `runs resume`), or parked (it waits for a person or an event)."""


class HeadCount(NamedTuple):
    """The runs of a journal that have these values in common."""

    machine: str
    agent: str
    """Empty for runs without an agent."""
    status: str
    """RUNNING, ORPHANED or PARKED."""
    reason: str
    """Reason of the parking; empty for other runs."""
    runs: int
    oldest: float
    """Epoch seconds of the last record of the run that has been without a new one for the longest time."""


class HeadCounts(NamedTuple):
    """The runs of a journal that have not ended, at one moment."""

    journal: str
    """Identity of the store, the same in every process that reads it; empty if it has none yet."""
    counts: tuple[HeadCount, ...] = ()


class CountableJournal(Protocol):
    """The part of a journal that metrics use."""

    @property
    def backend(self) -> str:
        """`memory`, `sqlite` or `postgres`."""
        ...

    def head_counts(self) -> HeadCounts:
        """Count the runs that have not ended. It may block for some seconds. Raises any error of the store."""
        ...


class HeadRow(NamedTuple):
    """Runs as a store groups them."""

    machine: str
    agent: str
    status: str
    """`open` or `parked`."""
    reason: str
    is_owned: bool
    """Whether a living owner holds them."""
    runs: int
    oldest: float


def merged_counts(rows: Iterable[HeadRow]) -> tuple[HeadCount, ...]:
    """Return the counts of some groups, one for each combination of values."""
    found: dict[tuple[str, str, str, str], tuple[int, float]] = {}
    for row in rows:
        status = PARKED if row.status == PARKED else RUNNING if row.is_owned else ORPHANED
        key = (row.machine, row.agent, status, row.reason if status == PARKED else "")
        runs, oldest = found.get(key, (0, row.oldest))
        found[key] = (runs + row.runs, min(oldest, row.oldest))
    return tuple(HeadCount(*key, *found[key]) for key in sorted(found))


def process_identity() -> str:
    """Return the identity of what exists in this process alone: a new one in each process, also after a fork."""
    pid = os.getpid()
    if pid not in _identities:
        _identities.clear()
        _identities[pid] = secrets.token_hex(4)
    return _identities[pid]


_identities: dict[int, str] = {}
