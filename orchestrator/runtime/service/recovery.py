"""Recovery of stored runs: who may resume them, from where, and with which effect."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from orchestrator.errors import Corrupt, OtherAgent, OtherGraph, RunError, Suspended, TooNew
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.heads import heads
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Draft, Journal, Lease, Record, RunHead, let_go
from orchestrator.kernel.record import Transition
from orchestrator.runtime.service import program_recovery
from orchestrator.runtime.service.resume_plan import expiry, plan, unattended

MOST_CLAIMS = 5
"""A run that was claimed this many times without a step is poison: it is parked for a person."""
_UNNAMED = "nothing here: it belongs to an agent without a name"


@dataclass(frozen=True, slots=True)
class Migration:
    """Migrates runs of an older graph: `migrate` changes state, next, context or messages."""

    made: str
    """Fingerprint of the old graph, or its first characters."""
    migrate: Callable[[StoredRun], StoredRun]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that has not ended, and the effect of `resume`."""

    run_id: str
    status: str
    """`open` or `parked`."""
    state: str
    reason: str
    """Reason of a parked run."""
    will: str
    """Description of the next steps."""
    owner: str | None = None
    """The live owner, if any: then the run cannot be resumed here."""
    fingerprint: str = ""
    updated_at: float = 0.0
    seq: int = -1
    """Number of its last record; -1 if the records cannot be read."""
    unattended: bool = False
    """Whether an engine may resume it now, without any action of a person."""
    expires_at: float = 0.0
    """When a question expires (epoch seconds), which allows the run to continue; 0 means never."""
    launched: bool = False
    """Whether it was started with a `launch`, which says how its agent is made."""
    tenant: str = ""
    """Tenant of a deposited run."""
    agent: str = ""
    """Name of the agent that the run belongs to; empty if it has none."""


class ClaimedRun(NamedTuple):
    """A claimed run at its last record."""

    stored: StoredRun
    records: list[Record]
    lease: Lease
    ended: Sequence[str]
    """Names of the last owner's programs that were still running and were ended."""


class RunAlreadyEnded(RunError):
    """Another process ended the run between the check and the claim: there is nothing to resume."""


class Recovery:
    """The stored runs of one graph and one agent.

    Args:
        journal: Stores the runs.
        graph: Their graph.
        codec: Encodes their contexts.
        owner: Name of the driver that will drive them.
        migrations: Functions that migrate runs of older graphs.
        agent: Name of the agent; empty if it has none. Runs of other agents are listed and not resumed.
        now: Clock, in epoch seconds.
    """

    def __init__(
        self,
        journal: Journal,
        graph: Graph,
        codec: ContextCodec[Any],
        owner: str,
        migrations: Iterable[Migration] = (),
        *,
        agent: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal
        self._graph = graph
        self._codec = codec
        self._owner = owner
        self._migrations = tuple(migrations)
        self.agent = agent
        """Name of the agent; empty if it has none."""
        self._now = now

    async def read(self, run_id: str) -> tuple[StoredRun, list[Record]]:
        """Return a stored run with its records. Raises RunUnknown, Corrupt."""
        records = await self._journal.load(run_id)
        return StoredRun.of(run_id, records), records

    async def claim(self, run_id: str, *, again: bool = False, from_agent: str | None = None) -> ClaimedRun:
        """Claim a run, migrate it if necessary, and return it at its last record.

        Programs that its last owner left running are ended. If an error is raised, the run is released.

        Args:
            run_id: Id of the run.
            again: A person has checked the programs that cannot be ended here.
            from_agent: Name of the agent that the run is taken from; None means the agent of this recovery.

        Raises:
            Held: Another owner lives.
            OtherAgent: The run belongs to another agent.
            OtherGraph: The run has another version of the graph and there is no migration.
            Suspended: The run is poison.
            ProgramsUnknown: A person has to check programs of the run.
            RunAlreadyEnded: Another process ended the run meanwhile.
        """
        head = await self._journal.head(run_id)
        if head.agent != (self.agent if from_agent is None else from_agent):
            raise OtherAgent(run_id, head.agent, self.agent)
        await self._refuse_other(head)
        stored, records = await self.read(run_id)  # read first: an unreadable run must not be changed
        if not again and (why := program_recovery.question(stored)):
            # Check before the claim, because a claim counts as an attempt.
            if not program_recovery.is_answered(stored, await stored.unread(self._journal)):
                raise program_recovery.ProgramsUnknown(run_id, why)
            again = True
        lease = await self._journal.claim(run_id, self._owner)
        try:
            if lease.seq != records[-1].seq:  # another owner has made progress meanwhile
                stored, records = await self.read(run_id)
            if stored.ended is not None:
                raise RunAlreadyEnded(run_id)  # noqa: TRY301 - the lease is released below
            await self._refuse_poison(stored, lease)
            ended = await self._end_programs(stored, lease, again=again)
            if stored.fingerprint != self._graph.fingerprint:
                stored = await self._migrate(stored, lease)
            return ClaimedRun(stored, records, lease, ended)
        except BaseException:
            await let_go(self._journal, lease)
            raise

    async def open_runs(self) -> list[OpenRun]:
        """List the runs of this graph that have not ended, oldest first."""
        found, damage = await heads(self._journal, graph=self._graph.name)
        damaged = [OpenRun("?", "corrupt", "?", "", f"nothing: {damage}")] if damage else []
        return [await self.described(head) for head in found if head.status != "ended"] + damaged

    async def described(self, head: RunHead) -> OpenRun:
        """Return the effect of `resume` on a run. Raises RunUnknown, StoreDown."""
        try:
            stored = (await self.read(head.run_id))[0]
            unread = await stored.unread(self._journal)
        except (Corrupt, TooNew) as error:
            will = f"nothing: {error}"
            return OpenRun(head.run_id, head.status, "?", head.reason, will, head.owner, agent=head.agent)
        now = self._now()
        stuck, state = self._stuck(stored, head), stored.state or self._graph.initial.value
        will = stuck or "; ".join(plan(stored, unread, state, now))
        by_itself = head.owner is None and stuck is None and head.reason != "poison"
        by_itself &= stored.fingerprint == self._graph.fingerprint
        return OpenRun(
            head.run_id,
            head.status,
            state,
            head.reason,
            f"nothing here: {head.owner} has it" if head.owner else will,
            head.owner,
            stored.fingerprint,
            head.updated_at,
            seq=head.seq,
            unattended=by_itself and unattended(stored, unread, now),
            expires_at=expiry(stored) if by_itself else 0.0,
            launched=bool(stored.created.get("launch")),
            tenant=stored.tenant,
            agent=head.agent,
        )

    def _stuck(self, stored: StoredRun, head: RunHead) -> str | None:
        """Return why a run cannot be resumed here, whatever people answer; None if it can."""
        if head.agent != self.agent:
            return f"nothing here: it belongs to agent {head.agent!r}" if head.agent else _UNNAMED
        if stored.fingerprint != self._graph.fingerprint and self._migration(stored) is None:
            here = self._graph.fingerprint[:12]
            return f"refused: made with graph version {stored.fingerprint[:12]}, here is {here}"
        if head.stuck_claims + 1 >= MOST_CLAIMS:
            return f"parked as poison: taken up {head.stuck_claims} times without a step"
        return None

    async def _refuse_other(self, head: RunHead) -> None:
        """Raise RunError for a run of another graph, OtherGraph for another version, before the run is claimed."""
        if head.graph != self._graph.name:
            raise RunError(
                f"run {head.run_id!r} belongs to graph {head.graph!r}, not to {self._graph.name!r}"
            )
        if head.fingerprint != self._graph.fingerprint:
            self._way((await self.read(head.run_id))[0])

    async def _refuse_poison(self, stored: StoredRun, lease: Lease) -> None:
        head = await self._journal.head(lease.run_id)
        if head.stuck_claims < MOST_CLAIMS or stored.ended is not None:
            return
        body = {"reason": "poison", "at": head.updated_at, "t": stored.elapsed, "claims": head.stuck_claims}
        await self._append(lease, Draft("parked", body))
        raise Suspended(
            lease.run_id,
            f"poison: taken up {head.stuck_claims} times without a step; check its work in "
            f"{stored.state or 'its initial state'}, then resume it once more",
        )

    async def _end_programs(self, stored: StoredRun, lease: Lease, *, again: bool) -> Sequence[str]:
        """End the remaining programs of a run; park the run if only a person can know whether they have ended."""
        if not stored.programs:
            return ()
        ended, why = await program_recovery.end_programs(stored)
        if why and not again:
            unread = await stored.unread(self._journal)
            if not program_recovery.is_answered(stored, unread):
                body = program_recovery.parked_body(stored, why, unread, self._now())
                await self._append(lease, Draft("parked", body))
                raise program_recovery.ProgramsUnknown(stored.run_id, why, parked=True)
        return ended

    async def _migrate(self, stored: StoredRun, lease: Lease) -> StoredRun:
        """Apply a migration to a stored run, and journal the whole result."""
        way = self._way(stored)
        if way is None:
            return stored
        made = stored.fingerprint
        changed = way.migrate(stored)
        self._codec.decoded(changed.context | {"messages": []})  # checked before it is written
        body = {
            "from": made,
            "to": self._graph.fingerprint,
            "at": self._now(),
            "by": self._owner,
            "state": changed.state,
            "next": changed.next,
            "context": changed.context | {"messages": changed.messages},
        }
        await self._append(lease, Draft("migrated", body))
        changed.fingerprint = self._graph.fingerprint
        return changed

    def _way(self, stored: StoredRun) -> Migration | None:
        """Return the migration of a run to this graph; None if it needs none. Raises OtherGraph if there is none."""
        if stored.fingerprint == self._graph.fingerprint:
            return None
        migration = self._migration(stored)
        if migration is None:
            raise OtherGraph(stored.run_id, self._graph.name, stored.fingerprint, self._graph.fingerprint)
        return migration

    async def _append(self, lease: Lease, draft: Draft) -> None:
        waiting = self._journal.append(lease, [draft])
        if waiting is not None:
            await waiting

    def _migration(self, stored: StoredRun) -> Migration | None:
        made = stored.fingerprint
        return next((one for one in self._migrations if one.made and made.startswith(one.made)), None)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedPath:
    """The transitions in the records of a run. Facts are made when they are asked for: a resumed run seldom needs them.

    Args:
        run_id: The run.
        graph: Name of its graph.
        records: Its records, from the first; only those of the path are kept.
        laps: Events that count an iteration.
    """

    run_id: str
    graph: str
    records: Sequence[Record]
    laps: Container[str] = ()

    @classmethod
    def of(
        cls, run_id: str, graph: str, records: Iterable[Record], laps: Container[str] = ()
    ) -> RecordedPath:
        """Return the path of a run with all its records."""
        return cls(run_id, graph, [record for record in records if record.kind in _PATH_KINDS], laps)

    def __iter__(self) -> Iterator[Transition]:
        return iter(path_of(self.run_id, self.graph, self.records, laps=self.laps))


_PATH_KINDS = frozenset(("transition", "answer"))


def path_of(
    run_id: str, graph: str, records: Iterable[Record], *, laps: Container[str] = ()
) -> list[Transition]:
    """Return the transitions of a run as facts. Events in `laps` count an iteration."""
    path: list[Transition] = []
    before = 0.0
    iteration = 0
    for record in records:
        body: Mapping[str, Any] = record.body
        if record.kind == "answer":
            iteration = body["iteration"]
        elif record.kind == "transition":
            elapsed = float(body.get("t", before))
            iteration += body["event"] in laps
            path.append(
                Transition(
                    graph,
                    run_id,
                    body["seq"],
                    body["event"],
                    body["source"],
                    body["dest"],
                    float(body.get("dwell", elapsed - before)),
                    body["at"],
                    iteration,
                    internal=bool(body.get("internal")),
                    tokens=body.get("tokens", 0),
                    reason=body.get("reason", ""),
                )
            )
            before = elapsed
    return path
