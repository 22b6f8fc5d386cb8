"""Recovery of stored runs: who may resume them, from where, and with which effect."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from orchestrator.errors import (
    ConfigError,
    Corrupt,
    Fenced,
    GraphError,
    Held,
    OtherAgent,
    OtherGraph,
    RunError,
    RunUnknown,
    Suspended,
    TooNew,
)
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.difference import heads
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import RunCompleted, RunParked
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import (
    Draft,
    Journal,
    Lease,
    Posted,
    Record,
    RunHead,
    claimed,
    let_go,
    write_records,
)
from orchestrator.kernel.machine import Machine, missing_changes
from orchestrator.runtime.service import program
from orchestrator.runtime.service.ownership import AgentIdentity, OtherDefinition
from orchestrator.runtime.service.resume_plan import expiry, plan, unattended

DEPS_REASON: Final = "deps_required"
"""Reason of a parked run."""
DEPS_WHY: Final = (
    "it was started with live deps, and its agent has no factory for them, or with a live model: resume it with an "
    "agent that has Agent(deps=factory), or with resume(run_id, deps=..., model=...)"
)


class DepsRequired(Suspended):
    """The run needs deps, which cannot be stored."""

    def __init__(self, run_id: str, *, parked: bool = False) -> None:
        super().__init__(run_id, DEPS_REASON)
        self.parked = parked
        """Whether the run was parked for this now; False if it was parked before."""
        self.args = (f"run {run_id!r} waits for deps: {DEPS_WHY}",)


def waits_for_deps(stored: StoredRun) -> bool:
    """Return whether a run is parked because it needs deps."""
    return stored.parked is not None and stored.parked.get("reason") == DEPS_REASON


MOST_CLAIMS = 5
"""A run that was claimed this many times without a step is poison: it is parked for a person."""
OTHER_GRAPH = "other_graph"
"""Reason of a parked run that waits for a process with its graph, or for a migration."""
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
    migrates: bool = False
    """Whether it is migrated when it is resumed here: it was made with another version of the graph."""
    foreign: bool = False
    """Whether only its agent or graph, which is not here, keeps it from being resumed unattended."""


class ClaimedRun(NamedTuple):
    """A claimed run at its last record."""

    stored: StoredRun
    records: Sequence[Record]
    lease: Lease
    ended: Sequence[str]
    """Names of the last owner's programs that were still running and were ended."""


class RunAlreadyEnded(RunError):
    """Another process ended the run between the check and the claim: there is nothing to resume."""


RepeatedWork: TypeAlias = Callable[[StoredRun, Mapping[str, str]], Iterable[str]]
"""Describes what a resumed run does with its interrupted work; the tools here are given with their digests."""


class Recovery:
    """The stored runs of one graph and one agent.

    Args:
        journal: Stores the runs.
        graph: Their graph, or the machine whose present table they follow.
        codec: Encodes their contexts.
        owner: Name of the driver that will drive them.
        migrations: Functions that migrate runs of older graphs.
        agent: The agent; None for one without a name. Runs of other agents are listed and not resumed.
        now: Clock, in epoch seconds.
        lacks_deps: Whether a run needs live deps that cannot be made here.
        lacks_agent: Returns the name of an agent that a run needs and that is not here, or "".
        own_migrations: Returns further migrations to the graph as it is declared, not to a table changed since.
        repeated: Says how the graph repeats interrupted work.
    """

    def __init__(
        self,
        journal: Journal,
        graph: Graph | Machine,
        codec: ContextCodec[Any],
        owner: str,
        migrations: Iterable[Migration] = (),
        *,
        agent: AgentIdentity | None = None,
        now: Callable[[], float] = time.time,
        lacks_deps: Callable[[StoredRun], bool] | None = None,
        lacks_agent: Callable[[StoredRun], str] | None = None,
        own_migrations: Callable[[], Iterable[Migration]] = tuple,
        repeated: RepeatedWork | None = None,
    ) -> None:
        self._journal = journal
        self._table = graph
        self._codec = codec
        self._owner = owner
        self._migrations = tuple(migrations)
        self.identity = agent or AgentIdentity(self._valid.name)
        """Name, version and tools of the agent."""
        self._now = now
        self._lacks_deps = lacks_deps or (lambda _: False)
        self._lacks_agent = lacks_agent or (lambda _: "")
        self._own_migrations = own_migrations
        self._repeated = repeated or (lambda _, __: ())

    @property
    def _graph(self) -> Graph:
        """The present table. Raises GraphError if a change left an invalid one."""
        return self._table.graph if isinstance(self._table, Machine) else self._table

    @property
    def _valid(self) -> Graph:
        """The present table; while that is invalid, the last valid one."""
        return self._table.valid_graph if isinstance(self._table, Machine) else self._table

    @property
    def _changes(self) -> tuple[str, ...]:
        """The changes of that table since its graph was bound."""
        return self._table.changes if isinstance(self._table, Machine) else ()

    async def read(self, run_id: str) -> tuple[StoredRun, Sequence[Record]]:
        """Return a stored run with its records. Raises RunUnknown, Corrupt."""
        records = await self._journal.load(run_id)
        return StoredRun.of(run_id, records), records

    def refuse_foreign(self, head: RunHead, from_agent: str | None) -> None:
        """Refuse a run that does not belong to this agent, whether it has ended or not.

        Raises OtherAgent, unless `from_agent` names its agent, and RunError for a run of another graph.
        """
        if head.agent != (self.identity.name if from_agent is None else from_agent):
            raise OtherAgent(head.run_id, head.agent, self.identity.name)
        if head.graph != self._valid.name:
            raise RunError(
                f"run {head.run_id!r} belongs to graph {head.graph!r}, not to {self._valid.name!r}"
            )

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
            ConfigError: Its cost is in another currency than the prices of this agent.
            OtherGraph: The run has another version of the graph and there is no migration.
            GraphError: A change left an invalid table.
            Suspended: The run is poison.
            ProgramsUnknown: A person has to check programs of the run.
            DepsRequired: The run needs live deps, and its agent cannot make them.
            RunAlreadyEnded: Another process ended the run meanwhile.
        """
        head = await self._journal.head(run_id)
        stored, records = await self._checked(head, from_agent)
        if not again and (why := program.programs_question(stored)):
            # Check before the claim, because a claim counts as an attempt.
            if not program.programs_answered(stored, await stored.unread(self._journal)):
                raise program.ProgramsUnknown(run_id, why)
            again = True
        if waits_for_deps(stored) and self._lacks_deps(stored):
            raise DepsRequired(run_id)
        lease = await claimed(self._journal, run_id, self._owner)
        try:
            if lease.seq != records[-1].seq:  # another owner has made progress meanwhile
                stored, records = await self.read(run_id)
            if stored.ended is not None:
                raise RunAlreadyEnded(run_id)  # noqa: TRY301 - the lease is released below
            if lease.seq != head.seq or head.stuck_claims + lease.epoch - head.epoch >= MOST_CLAIMS:
                await self._refuse_poison(stored, lease)
            if self._lacks_deps(stored):
                body = {"reason": DEPS_REASON, "at": self._now(), "t": stored.elapsed}
                if stored.parked is not None:  # what it waited for then
                    body["before"] = stored.parked.get("reason")
                await write_records(self._journal, lease, Draft("parked", body))
                raise DepsRequired(run_id, parked=True)  # noqa: TRY301 - the lease is released below
            ended = await self._end_programs(stored, lease, again=again)
            if stored.fingerprint != self._graph.fingerprint:
                stored = await self._migrate(stored, lease)
            return ClaimedRun(stored, records, lease, ended)
        except BaseException:
            await let_go(self._journal, lease)
            raise

    async def _checked(self, head: RunHead, from_agent: str | None) -> tuple[StoredRun, Sequence[Record]]:
        """Return a run that this agent may claim. It is read first: an unreadable run must not be changed."""
        self.refuse_foreign(head, from_agent)
        graph = self._graph
        stored, records = await self.read(head.run_id)
        if stored.fingerprint != graph.fingerprint and self._migration(stored) is None:
            raise self._other_graph(stored)
        if from_agent is None and (changes := self._other_tools(stored)):
            raise OtherDefinition(head.run_id, self.identity, changes)
        if missing := self._lacks_agent(stored):
            raise OtherAgent(head.run_id, missing, self.identity.name)
        if other := self.identity.other_currency(head.run_id, head.currency):
            raise ConfigError(other)
        return stored, records

    async def open_runs(self) -> list[OpenRun]:
        """List the runs of this graph that have not ended, oldest first."""
        found, damage = await heads(self._journal, graph=self._valid.name)
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
        now, state = self._now(), stored.state or self._valid.initial.value
        other = self._foreign(stored, head)
        stuck = other  # whatever people answer
        if stuck is None and waits_for_deps(stored) and self._lacks_deps(stored):
            stuck = f"waits for deps: {DEPS_WHY}"
        elif stuck is None and head.stuck_claims + 1 >= MOST_CLAIMS:
            stuck = f"parked as poison: taken up {head.stuck_claims} times without a step"
        will = stuck or "; ".join(
            plan(stored, unread, state, now, self._repeated(stored, self.identity.definition or {}))
        )
        free = head.owner is None and head.reason != "poison"
        by_itself = free and stuck is None
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
            migrates=by_itself and stored.fingerprint != self._valid.fingerprint,
            foreign=free and other is not None and unattended(stored, unread, now),
        )

    async def park_for_graph(self, head: RunHead) -> RunParked | None:
        """Park an open run that no process can continue, because none has its graph; None if it has moved meanwhile.

        Raises Held, RunUnknown, Fenced.
        """
        lease = await claimed(self._journal, head.run_id, self._owner)
        try:
            now = await self._journal.head(head.run_id)
            if (now.seq, now.status) != (head.seq, "open"):
                return None
            stored, _ = await self.read(head.run_id)
            at, state = self._now(), stored.state or self._valid.initial.value
            await write_records(
                self._journal, lease, Draft("parked", {"reason": OTHER_GRAPH, "at": at, "t": stored.elapsed})
            )
            return RunParked(self._valid.name, head.run_id, state, OTHER_GRAPH, at, head.agent)
        finally:
            await let_go(self._journal, lease)

    async def end_descendants(self, run_id: str) -> AsyncIterator[RunCompleted]:
        """End as cancelled what a run that has ended after its resumption left open: nothing resumes it any more.

        Each one that ended here is yielded, to be published. Their agents may be unknown here, so no hook is called, no
        call is undone, and the totals of their graphs are left out. A descendant with another living owner gets the
        request to stop instead; one with programs that only a person can check is parked.

        Raises RunUnknown, Corrupt, StoreDown.
        """
        from orchestrator.runtime.service.descendant import descendants

        root = await self._journal.head(run_id)
        below = [head async for head, _ in descendants(self._journal, root, ended=True)]
        for head in reversed(below):  # the deepest first: what a killed process leaves is below an open run
            if head.status == "ended":
                continue
            why = f"run {run_id!r} above it has ended"
            stop = Posted(f"cancel {run_id}", "cancel", {"why": why}, f"run {run_id}", self._now())
            await self._journal.post(head.run_id, stop)
            with contextlib.suppress(Held, Fenced, RunUnknown, program.ProgramsUnknown):
                if (ended := await self._end(head, stop)) is not None:
                    yield ended

    async def _end(self, head: RunHead, stop: Posted) -> RunCompleted | None:
        """Claim a run and end it as cancelled; None if it has ended meanwhile.

        Raises Held, Fenced, RunUnknown, ProgramsUnknown, Corrupt, StoreDown.
        """
        lease = await claimed(self._journal, head.run_id, self._owner)
        try:
            stored, _ = await self.read(head.run_id)
            if stored.ended is not None:
                return None
            await self._end_programs(stored, lease, again=False)
            number = max((one.number for one in await stored.unread(self._journal)), default=stored.inbox)
            control = {"id": stop.id, "kind": stop.kind, "by": stop.by, "why": stop.body["why"]}
            end = RunCompleted(
                head.graph,
                head.run_id,
                stored.state,
                "cancelled",
                "caller",
                self._now(),
                stored.elapsed,
                stored.seq,
                int(stored.context.get("iteration", 0)),
                agent=head.agent,
            )
            control |= {"number": number, "at": end.at}
            body = {"outcome": end.outcome, "reason": end.reason, "at": end.at, "t": end.seconds}
            await write_records(self._journal, lease, Draft("control", control), Draft("ended", body))
            return end
        finally:
            await let_go(self._journal, lease)

    async def parked(self, run_id: str) -> RunParked:
        """Return the fact that a run waits for a person, who has to check its programs or to give it deps."""
        stored, _ = await self.read(run_id)
        state = stored.state or self._valid.initial.value
        reason = str((stored.parked or {}).get("reason", ""))
        return RunParked(self._valid.name, run_id, state, reason, self._now(), self.identity.name)

    def _foreign(self, stored: StoredRun, head: RunHead) -> str | None:
        """Return a sentence if another agent, or a process with another table, continues a run; None if this may."""
        if head.agent != self.identity.name:
            return f"nothing here: it belongs to agent {head.agent!r}" if head.agent else _UNNAMED
        if changes := self._other_tools(stored):
            return f"nothing here: its agent has other tools ({changes}), and this one has no `version=` of its own"
        if missing := self._lacks_agent(stored):
            return f"waits for its agent {missing!r}, which is no member of the team here"
        if stored.fingerprint != self._valid.fingerprint and self._migration(stored) is None:
            here, difference = (
                self._valid.fingerprint[:12],
                missing_changes(stored.table_changes, self._changes),
            )
            return (
                f"waits for its graph version {stored.fingerprint[:12]}, or for a migration to {here}, which is here"
                f"{difference and f' ({difference})'}"
            )
        try:
            self._graph  # noqa: B018 - reading it lints the table
        except GraphError as error:
            return f"waits until the table of its graph is valid again: {error.problems[0]}"
        other = self.identity.other_currency(head.run_id, head.currency)
        return f"nothing here: {other}" if other else None

    def _other_tools(self, stored: StoredRun) -> str:
        """Return how the tools of this agent differ from those of another agent of its name and version; "" if not.

        A child run is part of its parent run.
        """
        if stored.created.get("parent_run_id") is not None:
            return ""
        return self.identity.changes(stored.agent_version, stored.definition)

    async def _refuse_poison(self, stored: StoredRun, lease: Lease) -> None:
        head = await self._journal.head(lease.run_id)
        if head.stuck_claims < MOST_CLAIMS or stored.ended is not None:
            return
        body = {"reason": "poison", "at": head.updated_at, "t": stored.elapsed, "claims": head.stuck_claims}
        await write_records(self._journal, lease, Draft("parked", body))
        raise Suspended(
            lease.run_id,
            f"poison: taken up {head.stuck_claims} times without a step; check its work in "
            f"{stored.state or 'its initial state'}, then resume it once more",
        )

    async def _end_programs(self, stored: StoredRun, lease: Lease, *, again: bool) -> Sequence[str]:
        """End the remaining programs of a run; park the run if only a person can know whether they have ended."""
        if not stored.programs:
            return ()
        ended, why = await program.end_programs(stored)
        if why and not again:
            unread = await stored.unread(self._journal)
            if not program.programs_answered(stored, unread):
                body = {
                    "reason": program.PROGRAMS_REASON,
                    "at": self._now(),
                    "t": stored.elapsed,
                    "why": why,
                    "programs": list(stored.programs),
                    "inbox": max((one.number for one in unread), default=stored.inbox),
                }
                await write_records(self._journal, lease, Draft("parked", body))
                raise program.ProgramsUnknown(stored.run_id, why, parked=True)
        return ended

    async def _migrate(self, stored: StoredRun, lease: Lease) -> StoredRun:
        """Apply a migration to a stored run, and journal the whole result."""
        migration = self._migration(stored)
        if migration is None:
            raise self._other_graph(stored)
        made = stored.fingerprint
        changed = migration.migrate(stored)
        self._codec.decoded(changed.context | {"messages": []})  # checked before it is written
        body = {
            "from": made,
            "to": self._graph.fingerprint,
            **({"table_changes": list(self._changes)} if self._changes else {}),
            "at": self._now(),
            "by": self._owner,
            "state": changed.state,
            "next": changed.next,
            "context": changed.context | {"messages": changed.messages},
        }
        await write_records(self._journal, lease, Draft("migrated", body))
        changed.fingerprint = self._graph.fingerprint
        changed.table_changes = self._changes
        return changed

    def _other_graph(self, stored: StoredRun) -> OtherGraph:
        """Return the error for a run of another version of the graph, for which there is no migration."""
        return OtherGraph(
            stored.run_id,
            self._graph.name,
            stored.fingerprint,
            self._graph.fingerprint,
            missing_changes(stored.table_changes, self._changes),
        )

    def _migration(self, stored: StoredRun) -> Migration | None:
        made = stored.fingerprint
        if made == self._valid.fingerprint:
            return None
        own = () if self._changes else self._own_migrations()  # they lead to the table as it is declared
        known = (*self._migrations, *own)
        return next((one for one in known if one.made and made.startswith(one.made)), None)
