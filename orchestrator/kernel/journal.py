"""The seam to durability: what a store of records promises, and the values that go through it. No engine, no SQL.

Truth is one append-only, hash-chained, totally ordered journal for each run. One owner at a time holds a run's lease;
every append carries its epoch, and the store itself refuses one that is out of date. What any store must keep:

- `append` is all or nothing, and durable when it returns None or when what it returned is done. An outcome that is
  unknown (a lost connection) is resolved inside: it either landed or it did not.
- Records of a run are numbered 0, 1, 2 … without a hole; each hash covers the one before it. `load` verifies them.
- After an I/O error a store in a file is poisoned: every further call raises StoreDown until it is opened anew. One
  behind a server is not: a connection that is lost says nothing of the store, and the server answers for its disk.
- `post` needs no lease and keeps the first request of each id, whichever process posts it. The id of an answer names
  its question, so that the store itself decides which one counts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from orchestrator.errors import JournalError

RECORD_SCHEMA = 1
"""Version of the record bodies; written into each `created` record. A store refuses a newer one."""

NO_HASH = "0" * 64
"""What the first record's hash is chained to."""

ENDING_KINDS = frozenset(("ended",))
"""Record kinds after which a run is no longer open."""

PARKING_KINDS = frozenset(("parked",))
"""Record kinds that say the run waits for somebody; the body's `reason` says for what."""


class Draft(NamedTuple):
    """A record on its way to the journal: `kind` and a plain-data body (JSON types only)."""

    kind: str
    body: Mapping[str, Any]


def draft(kind: str, body: Mapping[str, Any]) -> Draft:
    """Return a Draft. A turn makes seven; the constructor that NamedTuple writes takes three times as long."""
    return tuple.__new__(Draft, (kind, body))


class Record(NamedTuple):
    """One durable record. `hash` chains it to the record before (see `chained`)."""

    seq: int
    epoch: int
    kind: str
    body: Mapping[str, Any]
    hash: str


@dataclass(slots=True)
class Lease:
    """Proof that an owner holds a run; goes with every append, and is moved on by it."""

    run_id: str
    owner: str
    epoch: int
    """Fencing token: one more at each claim, never reused. A lower one is refused for ever."""
    seq: int
    """Number of the last durable record, -1 before the first."""
    head: str
    """Hash of that record."""
    proved_at: float = field(default=0.0, compare=False)
    """When the driver sent the last append that the store took (monotonic): the lease was valid after that."""


@dataclass(frozen=True, slots=True)
class RunHead:
    """What a store knows of a run without reading its records."""

    run_id: str
    graph: str
    fingerprint: str
    status: str
    """`open`, `parked` or `ended`."""
    seq: int
    epoch: int
    owner: str | None
    """Who holds the lease now, if anybody alive does."""
    created_at: float
    updated_at: float
    reason: str = ""
    """Of `parked` and `ended`: the reason in that record's body."""
    parent_run_id: str | None = None
    conversation_id: str | None = None
    stuck_claims: int = 0
    """How often the run was claimed since it last appended anything but claims: N of them is poison."""
    lease_expires_in: float | None = None
    """Seconds until another process can claim the run, where its owner has missed heartbeats; None where it has not,
    or the store does not say."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A request that somebody left for a run: approve, reject, respond, pause, resume, cancel."""

    id: str
    """Two posts with one id are one."""
    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    at: float = 0.0
    number: int = 0
    """Position in the run's inbox, from 1; set by the store."""


class JournalWriter(Protocol):
    """The part of a journal that a driver writes through.

    One whose `create` and `release` never wait may say so with `at_once = True`: no cancellation can come between, so
    no task is made to shield them. Raises the errors below `JournalError` in `errors` (Held, Fenced, StoreDown,
    Corrupt, TooNew), RunExists and RunUnknown.
    """

    backend: str
    """`memory`, `sqlite` or `postgres`: a label value."""

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        """Begin a run with its `created` record and claim it at once (epoch 1). Raises RunExists.

        The store files `graph`, `fingerprint`, `at`, `parent_run_id` and `conversation_id` from the body.
        """
        ...

    def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Awaitable[None] | None:
        """Make records durable, all or none, together with the blobs they name (SHA-256 hex -> content).

        Returns None when they already are, else something to await that ends when they are, whoever is cancelled
        meanwhile. Moves the lease on. Raises Fenced when the lease is out of date, StoreDown when it cannot be known.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give the run back; a lease that is out of date is ignored."""
        ...


class Journal(JournalWriter, Protocol):
    """A whole store: what a driver writes through, and what recovery, operators and other processes need."""

    shared: bool
    """Whether other processes can post: then an owner has to ask for `news`, nobody else tells it."""

    async def claim(self, run_id: str, owner: str, *, steal: bool = False) -> Lease:
        """Take a run over: epoch + 1. Raises RunUnknown, or Held while another owner lives, unless `steal`."""
        ...

    async def load(self, run_id: str, since: int = 0) -> list[Record]:
        """Return the records from number `since` on, the whole chain verified. Raises RunUnknown or Corrupt."""
        ...

    async def blob(self, digest: str) -> bytes:
        """Return a blob, verified. Raises Corrupt."""
        ...

    async def head(self, run_id: str) -> RunHead:
        """Return what is known of a run. Raises RunUnknown."""
        ...

    def runs(
        self,
        *,
        status: str | None = None,
        graph: str | None = None,
        conversation_id: str | None = None,
        parent_run_id: str | None = None,
    ) -> AsyncIterator[RunHead]:
        """Yield the runs that meet every condition given, oldest first.

        Those of one conversation, of one parent or of one status are found without proving the others.
        """
        ...

    async def newest(self, conversation_id: str) -> RunHead | None:
        """Return the run of a conversation that was created last, whatever its status; None where there is none."""
        ...

    async def post(self, run_id: str, request: Posted) -> bool:
        """Leave a request for a run, from any process, without a lease. False when its id was posted before.

        Of several requests with one id, posted at the same moment, exactly one is kept. After False, `inbox` returns
        that one.
        """
        ...

    async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
        """Return the requests posted after number `since`, in order."""
        ...

    async def news(self, since: int) -> tuple[int, list[str]]:
        """Return the runs that got requests after position `since` of the whole store, and the position now.

        Each run is named once, in the order of their last requests. A position below 0 means "from now": it
        returns the present one and no run. Cheap enough to be asked several times a second, however many runs
        there are. It is a hint where to look, no proof: what was posted is what `inbox` says.
        """
        ...

    async def prune(self, *, older_than: float | None = None, keep_last: int | None = None) -> int:
        """Remove whole ended runs: updated before `older_than` (epoch seconds), beyond the newest `keep_last`."""
        ...

    async def erase(self, run_id: str) -> None:
        """Remove a run that is not held, with its inbox and the blobs only it names. Raises RunUnknown or Held."""
        ...

    async def close(self) -> None:
        """Write what is queued and let go of the store."""
        ...


def chained(before: str, run_id: str, seq: int, epoch: int, kind: str, body: bytes) -> str:  # noqa: PLR0917
    """Return the hash (hex) of a record: SHA-256 over the hash before it and each of its parts, with their lengths."""
    number = b"%d" % seq
    parts = (_counted(run_id), len(number), number, _counted(epoch), _counted(kind), len(body), body)
    return hashlib.sha256(b"%s%s%d:%s%s%s%d:%s" % (before.encode(), *parts)).hexdigest()


@functools.lru_cache(maxsize=1_000)
def _counted(part: str | int) -> bytes:
    """Return what is the same in many records with its length before it."""
    text = str(part).encode()
    return b"%d:%s" % (len(text), text)


async def let_go(journal: JournalWriter, lease: Lease) -> None:
    """Give a run back behind something that ended well, or by an error that is not to be hidden by another.

    A store that fails here has all that it needs; where it cannot be reached it owes the release.
    """
    with contextlib.suppress(JournalError):
        await journal.release(lease)
