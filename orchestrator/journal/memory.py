"""Keep records in memory, for tests and for runs without a journal. They are lost with the process.

The store keeps every promise of `kernel.journal.Journal` except durability. An append is complete when it returns:
without a thread, an await or a hash. The chain is computed on load, so `Lease.head` does not change.

Records are encoded when they are appended. To keep their bodies until somebody reads them was measured: a turn took
6 % fewer instructions, and left 8.8 instead of 3.5 KB and 35 instead of 6 objects for the garbage collector. It would
also need a copy of each value of a host, which may change it, and a way to fail a run whose record turns out to have no
JSON form.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Unpack

from orchestrator.errors import Fenced, Held, RunExists, RunUnknown
from orchestrator.journal.codec import (
    ENDED,
    OPEN,
    SEPARATOR,
    UNCHANGED,
    HeadChange,
    Identity,
    Row,
    chained,
    check_blob,
    drafts_of,
    encoded,
    encoded_append,
    excerpts_of,
    head_change,
    only_claims,
    records_of,
    status_after,
    verified_blob,
)
from orchestrator.journal.run_query import RunQuery, agents_of
from orchestrator.kernel.journal import (
    ENDING_KINDS,
    ENGINE,
    EXCERPT,
    EXCERPT_BYTES,
    NO_HASH,
    PARKING_KINDS,
    AgentStatistics,
    Draft,
    HeadCounts,
    HeadRow,
    Lease,
    Posted,
    Record,
    RunConditions,
    RunCounts,
    RunHead,
    merged_counts,
    process_identity,
)

NO_TAGS: Final[Mapping[str, str]] = {}
_CHEAP: Final = ("status", "graph", "parent_run_id", "agent")
"""Conditions that are compared before the head of a run is derived."""


@dataclass(slots=True)
class _Run:
    """One run. `rows` are (epoch, kinds, bodies) of each append."""

    run_id: str
    owner: str | None
    graph: str
    fingerprint: str
    created_at: float
    updated_at: float
    parent_run_id: str | None
    conversation_id: str | None
    agent: str
    agent_version: str
    tags: Mapping[str, str]
    currency: str
    rows: list[tuple[int, str, bytes]] = field(default_factory=list)
    count: int = 1
    """Number of records in all rows."""
    epoch: int = 1
    progress: int = 1
    """Epoch of the last append that was more than a claim."""
    status: str = OPEN
    reason: str = ""
    known: int = 0
    """Number of rows that `change` covers: it is derived when a head is asked for, not at each append."""
    change: HeadChange = UNCHANGED
    # Dicts, which are small while they are empty.
    inbox: dict[str, Posted] = field(default_factory=dict)
    """Id -> request, in their order."""
    blobs: dict[str, None] = field(default_factory=dict)
    """Digests of the blobs that its records name."""

    def head(self) -> RunHead:
        """Return the head; rows since the last call are decoded for it."""
        if self.known < len(self.rows):
            for _, kinds, body in self.rows[self.known :]:
                self.change = self.change.then(head_change(drafts_of(kinds, body)))
            self.known = len(self.rows)
            self.take(self.change.identity)
        state, since = self.change.state or ("", None)
        tokens, cost = self.change.total
        return RunHead(
            run_id=self.run_id,
            graph=self.graph,
            fingerprint=self.fingerprint,
            status=self.status,
            seq=self.count - 1,
            epoch=self.epoch,
            owner=self.owner,
            created_at=self.created_at,
            updated_at=self.updated_at,
            reason=self.reason,
            parent_run_id=self.parent_run_id,
            conversation_id=self.conversation_id,
            stuck_claims=self.epoch - self.progress,
            agent=self.agent,
            agent_version=self.agent_version,
            tags=self.tags,
            state=state,
            state_since=since,
            outcome=self.change.status.outcome,
            waiting=self.change.status.waiting,
            tokens=tokens,
            cost_micros=cost,
            currency=self.currency,
        )

    def counted(self) -> HeadRow:
        """Return the run as one group."""
        is_owned = self.owner is not None
        return HeadRow(self.graph, self.agent, self.status, self.reason, is_owned, 1, self.updated_at)

    def take(self, identity: Identity | None) -> None:
        """Apply another graph or agent."""
        fingerprint, agent, version = identity or Identity()
        self.fingerprint = self.fingerprint if fingerprint is None else fingerprint
        self.agent = self.agent if agent is None else agent
        self.agent_version = self.agent_version if version is None else version

    def chain(self) -> list[Row]:
        """Return the rows with their hashes."""
        found: list[Row] = []
        before, seq = NO_HASH, -1
        for epoch, kinds, body in self.rows:
            seq += kinds.count(SEPARATOR) + 1
            before = chained(before, self.run_id, seq, epoch, kinds, body)
            found.append((seq, epoch, kinds, body, before))
        return found


class MemoryJournal:
    """A journal in memory: it keeps every open or parked run, and the last `ended` runs that have ended or retired.

    Args:
        ended: Number of ended runs to keep.
        now: Clock of the timestamps.

    Example:
        >>> journal = MemoryJournal()
        >>> journal.at_once
        True
    """

    backend = "memory"
    shared = False
    durable = False

    def __init__(self, *, ended: int = 1_000, now: Callable[[], float] = time.time) -> None:
        self._runs: dict[str, _Run] = {}
        self._blobs: dict[str, bytes] = {}
        self._over: dict[str, None] = {}
        self._most_over = ended
        self._talks: dict[str, dict[str, None]] = {}
        self._news: dict[str, int] = {}
        self._posts = 0
        self._now = now

    @property
    def at_once(self) -> bool:
        """Whether create and release never wait; False if a subclass overrides them."""
        kind = type(self)
        return (kind.create, kind.release) == (MemoryJournal.create, MemoryJournal.release)

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        """Create a run and claim it. Raises RunExists."""
        if run_id in self._runs:
            raise RunExists(run_id)
        kinds, line = encoded_append((Draft("created", body),))
        now = self._now()
        self._runs[run_id] = _Run(
            run_id,
            owner,
            graph=str(body.get("graph", "")),
            fingerprint=str(body.get("fingerprint", "")),
            created_at=float(body.get("at", now)),
            updated_at=now,
            parent_run_id=body.get("parent_run_id"),
            conversation_id=body.get("conversation_id"),
            agent=str(body.get("agent") or ""),
            agent_version=str(body.get("agent_version") or ""),
            tags=dict(body.get("tags") or {}) or NO_TAGS,
            currency=str(body.get("currency") or ""),
            rows=[(1, kinds, b"".join((line, b"")))],
        )
        if (talk := body.get("conversation_id")) is not None:
            self._talks.setdefault(talk, {})[run_id] = None
        return Lease(run_id, owner, 1, 0, NO_HASH)

    async def claim(self, run_id: str, owner: str, *, steal: bool = False) -> Lease:
        """Claim an existing run. Raises RunUnknown or Held."""
        run = self._known(run_id)
        if run.owner not in (None, owner) and not steal:
            raise Held(run_id, str(run.owner))
        run.epoch += 1
        run.owner = owner
        self._over.pop(run_id, None)
        return Lease(run_id, owner, run.epoch, run.count - 1, NO_HASH)

    def append(self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None) -> None:
        """Add records. Raises Fenced if the lease is out of date."""
        run = self._runs.get(lease.run_id)
        if run is None or run.epoch != lease.epoch or run.count != lease.seq + 1:
            raise Fenced(lease.run_id, lease.epoch)
        if not drafts:
            return
        kinds, body = encoded_append(drafts)
        if blobs:
            for digest, content in blobs.items():
                check_blob(digest, content)
            self._blobs.update(blobs)
            run.blobs.update(dict.fromkeys(blobs))
        # A copy of the needed size: orjson shortens a bigger buffer and keeps the rest allocated.
        run.rows.append((lease.epoch, kinds, b"".join((body, b""))))
        count = len(drafts)
        run.count += count
        lease.seq += count
        run.updated_at = self._now()
        if run.progress != lease.epoch and not only_claims(kinds):
            run.progress = lease.epoch
        if "resumed" in kinds or "migrated" in kinds:
            run.take(head_change(drafts).identity)
        was, (kind, last) = run.status, drafts[-1]
        if was != OPEN or kind in ENDING_KINDS or kind in PARKING_KINDS:
            run.status, run.reason, _, _ = status_after(kind, last)
            if run.status == ENDED:
                self._let_go(run)
            elif was == ENDED:
                self._over.pop(run.run_id, None)

    async def release(self, lease: Lease) -> None:
        """Release the run."""
        run = self._runs.get(lease.run_id)
        if run is not None and run.epoch == lease.epoch:
            run.owner = None
            if run.status == ENDED:  # a claim may have removed it from the list
                self._let_go(run)

    def retire(self, run_id: str) -> None:
        """Release a run that has no driver any more, with any holder: it is kept like an ended run.

        It can be loaded and claimed until `ended` further runs have ended. An unknown run is ignored.
        """
        run = self._runs.get(run_id)
        if run is not None:
            run.owner = None
            self._let_go(run)

    def bury(self, owner: str) -> None:
        """Mark an owner as dead, so that its runs may be claimed. For tests and simulations."""
        for run in self._runs.values():
            if run.owner == owner:
                run.owner = None

    async def load(self, run_id: str, since: int = 0) -> Sequence[Record]:
        """Return the records from `since` on. Raises RunUnknown."""
        run = self._known(run_id)
        rows = run.chain()
        return records_of(run_id, rows, run.head(), rows[-1][-1], since)

    async def blob(self, digest: str) -> bytes:
        """Return a blob. Raises Corrupt."""
        return verified_blob(digest, self._blobs.get(digest))

    async def head(self, run_id: str) -> RunHead:
        """Return the head of a run. Raises RunUnknown."""
        return self._known(run_id).head()

    async def runs(self, **conditions: Unpack[RunConditions]) -> AsyncIterator[RunHead]:
        """Yield the runs that meet every given condition. Raises ConfigError or RunUnknown."""
        query = RunQuery.of(conditions)
        last = None if query.after is None else self._known(query.after)
        first = [(name, query.equal[name]) for name in _CHEAP if name in query.equal]
        among = [
            run
            for run in self._among(query.equal.get("conversation_id"))
            if run is last or all(getattr(run, name) == value for name, value in first)
        ]
        for head in query.selected([run.head() for run in among]):
            yield head

    async def excerpts(self, run_ids: Sequence[str]) -> dict[str, list[Draft]]:
        """Return the records of the first and the last appends of several runs."""
        runs = [self._runs[run_id] for run_id in run_ids if run_id in self._runs]
        return excerpts_of(
            (run.run_id, kinds, body)
            for run in runs
            for _, kinds, body in (*run.rows[:1], *run.rows[1:][-EXCERPT:])
            if len(body) <= EXCERPT_BYTES
        )

    async def count(self, **conditions: Unpack[RunConditions]) -> RunCounts:
        """Count the runs that meet every given condition, without those of engines. Raises ConfigError."""
        return RunQuery.counting(conditions).count([run.head() for run in self._runs.values()])

    def head_counts(self) -> HeadCounts:
        """Count the runs that have not ended or retired. Thread-safe."""
        runs = [run for run in self._runs.copy().values() if run.status != ENDED and run.graph != ENGINE]
        counted = [run.counted() for run in runs if run.run_id not in self._over]
        return HeadCounts(process_identity(), merged_counts(counted))

    async def names(self) -> list[tuple[str, str]]:
        """Return each pair of a machine and an agent that runs of the journal have, without those of engines."""
        return sorted({(run.graph, run.agent) for run in self._runs.values() if run.graph != ENGINE})

    async def agents(
        self, *, by_version: bool = False, **conditions: Unpack[RunConditions]
    ) -> list[AgentStatistics]:
        """Return the statistics of each agent, or of each version of each. Raises ConfigError, StoreDown."""
        query = RunQuery.counting(conditions)
        rows = [(run.head(), *(run.change.usage or (None, None))) for run in self._runs.values()]
        chosen = [row for row in rows if query.fits(row[0])]
        return agents_of(chosen, query, by_version=by_version)

    async def version(self) -> str:
        """Return a text that is another one after each change."""
        runs = self._runs.values()
        owned = sum(run.owner is not None for run in runs)
        return f"{len(runs)} {owned} {sum(run.count + run.epoch for run in runs)} {self._posts}"

    async def newest(self, conversation_id: str) -> RunHead | None:
        """Return the newest run of a conversation."""
        talk = self._talks.get(conversation_id)
        return self._runs[next(reversed(talk))].head() if talk else None

    async def post(self, run_id: str, request: Posted) -> bool:
        """Post a request to a run; return False if its id was posted before. Raises RunUnknown."""
        run = self._known(run_id)
        if request.id in run.inbox:
            return False
        encoded(request.kind, request.body)
        run.inbox[request.id] = replace(request, at=request.at or self._now(), number=len(run.inbox) + 1)
        self._posts += 1
        self._news.pop(run_id, None)  # moves it to the end
        self._news[run_id] = self._posts
        return True

    async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
        """Return the requests posted after number `since`. Raises RunUnknown."""
        return list(self._known(run_id).inbox.values())[since:]

    async def news(self, since: int) -> tuple[int, list[str]]:
        """Return the runs with requests after position `since`, and the current position."""
        found: list[str] = []
        for run_id, position in reversed(self._news.items()):
            if not 0 <= since < position:
                break
            found.append(run_id)
        return self._posts, found[::-1]

    async def prune(self, *, older_than: float | None = None, keep_last: int | None = None) -> int:
        """Remove ended, released runs that meet every given condition; without a condition, none."""
        if older_than is None and keep_last is None:
            return 0
        ended = sorted(
            (run for run in self._runs.values() if run.status == ENDED),
            key=lambda run: run.updated_at,
            reverse=True,
        )
        doomed = [
            run
            for run in ended[keep_last or 0 :]
            if run.owner is None and (older_than is None or run.updated_at < older_than)
        ]
        for run in doomed:
            self._drop(run)
        return len(doomed)

    async def erase(self, run_id: str) -> None:
        """Remove a run and the blobs that only it names. Raises RunUnknown or Held."""
        run = self._known(run_id)
        if run.owner is not None:
            raise Held(run_id, run.owner)
        self._drop(run)

    async def close(self) -> None:
        """Do nothing: there is no resource to release."""

    def _known(self, run_id: str) -> _Run:
        run = self._runs.get(run_id)
        if run is None:
            raise RunUnknown(run_id)
        return run

    def _among(self, conversation_id: str | None) -> list[_Run]:
        if conversation_id is None:
            return list(self._runs.values())
        return [self._runs[run_id] for run_id in self._talks.get(conversation_id, ())]

    def _let_go(self, run: _Run) -> None:
        """Record that a run is probably finished; drop the oldest finished run."""
        self._over.setdefault(run.run_id)
        if len(self._over) > self._most_over:
            self._drop(self._runs[next(iter(self._over))])

    def _drop(self, run: _Run) -> None:
        del self._runs[run.run_id]
        self._over.pop(run.run_id, None)
        self._news.pop(run.run_id, None)
        if run.conversation_id is not None:
            talk = self._talks[run.conversation_id]
            del talk[run.run_id]
            if not talk:
                del self._talks[run.conversation_id]
        if run.blobs:
            named = {digest for other in self._runs.values() for digest in other.blobs}
            for digest in run.blobs.keys() - named:
                del self._blobs[digest]
