"""One project in this process: its journal, its current run, and the driver of the run.

No plan is resumed automatically: an executing plan becomes Paused, and a person resumes or cancels it.

    Executing          Paused; the open step undone, the completed ones kept, a running command ended
    Paused             Paused
    Cancelling         continues
    Completed          continues to Idle
    ExtractingIntent   Idle
    Planning           Idle; the intent is kept and can be confirmed
    AwaitingApproval   unchanged if the plan's targets are unchanged and it has not expired, else Idle
    Failed, Idle       unchanged
    any damage         Failed: a projection differs from the journal, or a person's command is missing

A crash may interrupt a recovery too: the next one repeats it.

The journal keeps the first valid answer to a plan, so no command of the project may decide differently after it. A
process with the project's folder carries the answer out: `wait`.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.errors import Corrupt, JournalError, OtherAgent, OtherGraph, RunExists, TooNew
from orchestrator.files.atomic import Hook, silent
from orchestrator.files.rollback import Change
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.clock import micros
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import Follower, RunCompleted, RunRecovered
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.journal import Journal, Posted, RunHead, claimed, let_go
from orchestrator.kernel.machine import Machine, missing_changes
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.run import Run
from orchestrator.machines.approval.fault import ApprovalError, Fault, GateRefused
from orchestrator.machines.approval.graph import APPROVAL, ending
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.machines.approval.model import ApprovalContext, ApprovalEvent, ApprovalState, PlanStatus
from orchestrator.machines.approval.plan import ApprovalPlanner
from orchestrator.machines.approval.rules import is_never_allowed
from orchestrator.runtime.approval import project_journal
from orchestrator.runtime.approval import project_journal as store
from orchestrator.runtime.approval import status as listener
from orchestrator.runtime.approval.plan_executor import PlanExecutor
from orchestrator.runtime.approval.project_journal import Projection, ProjectJournal, ProjectLog
from orchestrator.runtime.approval.status import CommandLost, RecoveryNote
from orchestrator.runtime.service.answer import DECISIONS
from orchestrator.runtime.service.restored_run import rebuilt
from orchestrator.runtime.service.runtime import Runtime
from orchestrator_callbacks.approval import before, control_request, enter
from orchestrator_callbacks.approval.deps import ApprovalDeps, ApprovalRun, settled
from orchestrator_guards import BlockedGate, Refusal, describe_answer, judge_answer

GRAPH = "approval"
_OWN_ID = re.compile(rf"{GRAPH}-(\d{{4,}})")


def codec(launch: Callable[[], Mapping[str, Any]]) -> ContextCodec[ApprovalContext]:
    """Return the codec of approval; `launch` is stored with a request: how to make its planner, never a key."""
    return ContextCodec(ApprovalContext, about=lambda _: {"launch": dict(launch())} if launch() else {})


def request_id(number: int) -> str:
    """Return the id of a project's n-th request."""
    return f"{GRAPH}-{number:04d}"


async def newest(journal: Journal) -> RunHead | None:
    """Return the current request of a project, the one that was started last. Raises Corrupt."""
    requests = await numbered(journal)
    return max(requests, key=lambda one: one[0])[1] if requests else None


async def numbered(journal: Journal) -> list[tuple[int, RunHead]]:
    """Return the requests of a project with their numbers. Raises Corrupt.

    The id of a run has its number, unless the host chose the id.
    """
    heads = [head async for head in journal.runs(graph=GRAPH)]
    found = []
    for head in heads:
        if (own := _OWN_ID.fullmatch(head.run_id)) is not None:
            number = int(own[1])
        else:
            stored = StoredRun.of(head.run_id, await journal.load(head.run_id))
            number = int(stored.context.get("number", 0))
        found.append((number, head))
    return found


def restored(
    stored: StoredRun, machine: Machine, deps: ApprovalDeps, codec: ContextCodec[ApprovalContext]
) -> ApprovalRun:
    """Return the run as of its last record, ready for `drive`. Raises Corrupt; changes nothing."""
    run: ApprovalRun = rebuilt(stored, machine, codec.decoded(stored.context), deps, codec)
    run.acknowledge(stored.inbox)  # messages missing before it were reported as lost
    if (
        run.cursor.state != ApprovalState.FAILED
    ):  # it has continued since, so the next error is the first again
        run.clear_error()
    return run


class PostedAnswers:
    """The posted answers to the plan that waits: each call reads only those that were posted since the last one."""

    def __init__(self, run: ApprovalRun, journal: ProjectJournal) -> None:
        self._run = run
        self._journal = journal
        self._since = 0

    async def next(self, now: float) -> Posted | None:
        """Return the answer that counts, or None. `now` is epoch seconds. Raises StoreDown."""
        posted = await _posted(self._run, self._journal, self._since)
        self._since = max((one.number for one in posted), default=self._since)
        unread = _unread(self._journal, posted)
        return next((one for one in unread if _counts(self._journal, one, now)), None)


async def _posted(run: ApprovalRun, journal: ProjectJournal, since: int = 0) -> list[Posted]:
    try:
        return await journal.inbox(run.run_id, since)
    except Corrupt:  # a missing message was reported when the project was opened: read those after it
        return await journal.inbox(run.run_id, max(since, run.control.inbox))


def _unread(journal: ProjectJournal, posted: Iterable[Posted]) -> list[Posted]:
    handled = journal.projection.stored.handled
    return [one for one in posted if one.kind in DECISIONS and one.id not in handled]


def _counts(journal: ProjectJournal, posted: Posted, now: float) -> bool:
    """Return whether an answer is about the plan that waits in the journal, as every other process reads it."""
    asked = journal.projection.stored.questions.values()
    return not isinstance(judge_answer(asked, {}, posted.body, now=now), Refusal)


def refuse_second(answer: Posted | None) -> None:
    """Raise GateRefused if another process has answered before."""
    if answer is not None:
        said = describe_answer({"by": answer.by, "decision": answer.kind, "at": answer.at})
        reason = f"{said}; the first answer counts"
        raise GateRefused(BlockedGate("state", reason, ("wait",), code="ST-001"))


def note_answer(run: ApprovalRun, answer: Posted, refused: str = "") -> None:
    """Record an answer with its actor and reason, and why it was not carried out."""
    body = {
        "key": str(answer.body.get("call", "")),
        "digest": str(answer.body.get("digest", "")),
        "by": answer.by,
        "why": str(answer.body.get("why") or ""),
        "at": answer.at,
        "id": answer.id,
        "number": answer.number,
    }
    if refused:
        run.note("control", {**body, "kind": answer.kind, "refused": refused})
    else:
        run.note("approval", {**body, "decision": answer.kind})


class ApprovalSession:
    """Open the store, claim the current run and drive it; release both at the end.

    `damage` is set if the stored data cannot be trusted at all: then there is no run, and nothing is changed.
    """

    def __init__(  # noqa: PLR0917 - the arguments of Approval
        self,
        project: Path | str,
        planner: ApprovalPlanner | None,
        limits: ApprovalLimits,
        runtime: Runtime,
        hooks: Iterable[object],
        launch: Mapping[str, Any],
        journal: Journal | None,
        hook: Hook = silent,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = store.folder_of(project)
        self.clock = runtime.clock
        self.limits = limits
        self.machine = Machine(APPROVAL, collect(APPROVAL, enter, before, extra=tuple(hooks)))
        self.damage: JournalError | None = None
        self.run: ApprovalRun | None = None
        self.launch = dict(launch)
        self._observers = runtime.observers
        self._planner = planner
        self._inner = journal
        self._own = journal is None
        self._hook = hook
        self._data = data or {}
        self._codec = codec(lambda: self.launch)
        self.is_open = False
        self._requests = 0
        self.up_to_date = True
        """Whether the projections agree with the journal."""

    @property
    def agent(self) -> str:
        """Name of the agent; empty if it has none."""
        return str(self._data.get("agent", ""))

    @property
    def version(self) -> str:
        """Version of the agent; empty if it has none."""
        return str(self._data.get("agent_version", ""))

    @property
    def has_planner(self) -> bool:
        """Whether it can make plans."""
        return self._planner is not None

    @property
    def store(self) -> Journal | None:
        """The journal that was given, or the project's own while it is open."""
        return self._inner or (self.journal.inner if self.is_open else None)

    # ---- open and close ----

    async def open(self) -> None:
        """Create or open the store and claim the current run. Raises RunError, ApprovalError, StoreDown."""
        self.run, self.damage = None, None
        self._project_id = store.prepare(self.folder)
        self.log = ProjectLog(self.folder / "logs", self.limits, self.clock)
        inner = self._inner or SqliteJournal(self.folder / "journal.db")
        self.journal = store.ProjectJournal(inner, self.folder, Projection(self._project_id), self._hook)
        self.executor = PlanExecutor(
            self.folder.parent,
            self.journal,
            self._planner,
            self.limits,
            self.clock,
            self.log,
            self._hook,
        )
        self.deps = ApprovalDeps(actions=self.executor, clock=self.clock, limits=self.limits)
        self.driver = Driver(
            self.machine,
            observers=(self.log, *self._observers),
            journal=self.journal,
            clock=self.clock,
            codec=self._codec,
            agent=self.agent,
            declare=self._declare,
        )
        self.is_open = True
        self._declare()
        try:
            # Looked at before the journal is read, because it is written later.
            begun = (self.folder / project_journal.STATE).exists()
            head = await newest(self.journal)
            if head is not None:
                await self._claim(head)
            elif begun:
                raise Corrupt(store.EMPTY)  # noqa: TRY301 - the damage is kept
        except (Corrupt, TooNew) as damage:
            self.damage = damage
        except BaseException:
            await self.close()
            raise

    def _declare(self) -> None:
        """Declare the names of the table to the observers."""
        for observer in self._observers:
            declare = getattr(observer, "declare", None)
            if declare is not None:
                declare(self.machine.valid_graph, backends=[self.journal.backend])

    async def _claim(self, head: RunHead) -> None:
        if head.agent != (here := str(self._data.get("agent", ""))):
            raise OtherAgent(head.run_id, head.agent, here)
        lease = await claimed(self.journal, head.run_id, self.driver.owner)
        try:
            records = await self.journal.load(head.run_id)
            stored, table = StoredRun.of(head.run_id, records), self.machine.graph
            if stored.fingerprint != table.fingerprint:
                difference = missing_changes(stored.table_changes, self.machine.changes)
                raise OtherGraph(  # noqa: TRY301 - the lease is released below
                    stored.run_id, table.name, stored.fingerprint, table.fingerprint, difference
                )
            run = restored(stored, self.machine, self.deps, self._codec)
            run.set_lease(lease)
            run.restore(replace(run.cursor, parked=stored.parked is not None))
            self.launch = dict(stored.created.get("launch") or {})
            self.journal.projection.begin(head.run_id)
            for one in records:
                self.journal.projection.take(one.kind, one.body)
            _refuse_strange(self.journal.projection.changes)
            self.damage = await listener.lost(run, self.journal)
            self.run = run
            store.tidy(self.folder)
            self.up_to_date = project_journal.verify(self.folder, self._project_id, head.run_id, records)
        except Corrupt as damage:
            if self.run is None:
                await let_go(self.journal, lease)
                raise
            self.damage = damage  # only a projection or a command is damaged: the journal can still be read
        except BaseException:
            await let_go(self.journal, lease)
            raise

    async def close(self) -> None:
        """Release the run, and close the store if this session opened it."""
        try:
            if self.run is not None:
                await self.driver.release(self.run)
        finally:
            self.is_open = False
            if self._own:
                await self.journal.close()

    # ---- drive ----

    async def begin(
        self,
        ctx: ApprovalContext,
        launch: Mapping[str, Any],
        run_id: str | None = None,
        data: Mapping[str, Any] | None = None,
        follower: Follower | None = None,
    ) -> None:
        """End the previous request and start another one; expired requests are removed.

        The previous run is released after the start of the new one, so that one run is always owned and no other
        process can take the project. Only without a previous run another process can be faster. Raises GateRefused
        then.
        """
        before = self.run
        if before is not None:
            outcome, reason = ending(before.ctx)
            now = self.clock.time()
            body = {"outcome": outcome.value, "reason": reason, "at": now, "t": self._active(before)}
            await self.driver.announce(before, "ended", body)
            seconds = before.elapsed(self.clock.monotonic())
            name, facts = APPROVAL.name, (before.seq, before.ctx.iteration)
            self.driver.publish(
                RunCompleted(
                    name, before.run_id, before.cursor.state, outcome.value, reason, now, seconds, *facts
                )
            )
        self.launch = dict(launch)
        name, own = run_id or request_id(ctx.number), {**self._data, **(data or {})}
        run = self.run = Run(self.machine, name, ctx, self.deps, data=own or None)
        run.follow(follower)
        try:
            await self.driver.start(run)
        except RunExists:
            self.run = None
            if run_id is not None:
                raise
            reason = "another process started to work on this project just now"
            raise GateRefused(
                BlockedGate("state", reason, ("status",), retryable_now=True, code="FS-005")
            ) from None
        finally:
            if before is not None:
                await self.driver.release(before)
        last = ctx.number - self.limits.keep_plans
        for number, head in await numbered(
            self.journal
        ):  # no run of another graph, which may share the journal
            if number <= last and head.owner is None:
                await self.journal.erase(head.run_id)
        store.forget_plans(self.folder, last)

    async def drive(
        self, run: ApprovalRun, event: ApprovalEvent | None = None, answer: Posted | None = None
    ) -> None:
        """Fire an event and drive the run until it waits for a person. Raises the refusal of the event.

        `answer` is the posted answer that the event carries out; one append has both.
        """
        self.deps.refusal = None
        await self.refuse_posted(run)
        if answer is not None:
            note_answer(run, answer)
        state, before = run.cursor.state, run.seq
        try:
            async with listener.listening(run, self.journal):
                await self.driver.drive(run, event)
        finally:
            if self.deps.operation is not None:  # Cancelling was not entered: wait for the step
                await settled(self.deps.operation)
                self.deps.operation = None
        if self.deps.refusal is not None:
            raise self.deps.refusal
        if run.control.detached:
            raise run.error or JournalError(f"run {run.run_id!r} lost its journal")
        if event is not None and run.seq == before:
            blocked = BlockedGate("state", f"{event.value!r} is not possible in {state}", code="ST-001")
            raise GateRefused(blocked, state=state, event=event.value)
        await self.refuse_posted(run)

    def request(self, run_id: str, action: str, *, by: str, why: str) -> bool:
        """Request `pause` or `cancel` of the run that is driven here; return False if it is not."""
        run = self.run
        if run is None or run.run_id != run_id or not run.control.driving:
            return False
        self._requests += 1
        number = f"{action}-{run.seq}-{self._requests}"
        run.mailbox.post(Signal(kind="decision", id=number, by=by, why=why, payload={"wish": action}))
        return True

    async def refuse_posted(self, run: ApprovalRun) -> None:
        """Refuse control requests that came while no process worked or too late, also in the journal."""
        await listener.deliver(run, self.journal)
        control_request.taken(run)
        for posted in _unread(self.journal, await _posted(run, self.journal)):
            if not _counts(self.journal, posted, 0.0):
                note_answer(run, posted, refused=f"the plan does not wait any more: {run.ctx.plan_status}")
        if run.writes.drafts:
            await self._park(run)

    async def remember(self, run: ApprovalRun) -> None:
        """Make the changed context of a waiting run durable."""
        body = self._codec.changes(run)
        if body:
            run.note("context", body)
            await self._park(run)

    async def jump(self, run: ApprovalRun, to: ApprovalState, why: str, *, corrupt: bool = False) -> None:
        """Set a run to a state without an edge: only for recovery, with its own record."""
        body = {
            "from": run.cursor.state,
            "to": to.value,
            "state": to.value,
            "why": why,
            "at": self.clock.time(),
            "context": self._codec.changes(run),
        }
        await self.driver.announce(run, "recovered", body)
        moved = replace(run.cursor, state=to.value, entry_pending=False, pending_event=None)
        run.restore(replace(moved, entered_at=self.clock.monotonic()))
        await self._park(run)
        outcome = "corrupt" if corrupt else "resumed"
        self.driver.publish(RunRecovered(APPROVAL.name, run.run_id, outcome, self.clock.time(), run.agent))

    async def _park(self, run: ApprovalRun) -> None:
        body = {"reason": "waiting", "at": self.clock.time(), "t": self._active(run)}
        await self.driver.announce(run, "parked", body)

    def _active(self, run: ApprovalRun) -> float:
        return micros(run.elapsed(self.clock.monotonic()))


def _refuse_strange(changes: Iterable[Change]) -> None:
    """Raise Corrupt for a change that no plan could have made: a project from elsewhere may contain a store.

    The undo at the start writes without asking a person, so it must not reach a file that a plan could not.
    """
    for change in changes:
        if is_never_allowed(change.path):
            raise Corrupt(f"the journal contains a change of {change.path!r}, which no plan may touch")
        if (change.mode or 0) & (stat.S_ISUID | stat.S_ISGID):  # of the user who starts us, perhaps root
            said = f"the journal contains set-id bits of {change.path!r}, and no plan may change such a file"
            raise Corrupt(said)


DISCARD = "acknowledge --discard"
"""The action that sets aside an unreadable store."""

CRASHED = "the process that worked on it ended before its work did"
MANUAL = (
    "look at the project and at .orchestrator/",
    "acknowledge, and continue with the files as they are",
    "retry, which makes a new plan for the same intent",
    "rollback, where steps of the plan had been carried out",
)
"""Actions of a person if the state cannot be trusted."""


async def recover(session: ApprovalSession) -> RecoveryNote | None:
    """Recover a project, and return the findings and actions; None if no recovery was needed."""
    run = session.run
    if run is None:
        return None
    if session.damage is not None:
        # No step is undone or resumed before a person has checked.
        why = str(session.damage)
        code = "IPC-007" if isinstance(session.damage, CommandLost) else "ST-002"
        run.ctx.fault, run.ctx.shown = Fault(code, why).plain(), False
        found = RecoveryNote("corrupt", ApprovalState.FAILED.value, why, session.clock.time(), options=MANUAL)
        session.journal.projection.forget()
        await _jumped(session, run, ApprovalState.FAILED, found, corrupt=True)
        session.damage = None
        return found
    if not session.up_to_date and run.lease is not None:
        await session.journal.refresh(run.lease.seq)
    await session.refuse_posted(run)
    way = _WAYS.get(ApprovalState(run.cursor.state))
    return None if way is None else await way(session, run)


async def _executing(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote:
    """Undo the open step and wait for a person."""
    undone = await session.executor.undo_open(run)
    work, why = await session.executor.work(run), await _crashed(session, run)
    unknown = [f"resume --again, if the command of step {one} may run again" for one in work.unknown]
    found = RecoveryNote(
        run.cursor.state,
        ApprovalState.PAUSED.value,
        why,
        session.clock.time(),
        kept=await session.executor.done(run),
        undone=tuple(change.path for change in undone.changes),
        conflicts=tuple({"path": one.path, "why": str(one)} for one in undone.conflicts),
        options=(*unknown, *(() if unknown else ("resume",)), "cancel"),
    )
    run.ctx.conflicts = [dict(one) for one in found.conflicts]
    await _jumped(session, run, ApprovalState.PAUSED, found)
    return found


async def _crashed(session: ApprovalSession, run: ApprovalRun) -> str:
    """Return the cause of the recovery, with the commands that were still running."""
    ended = (await session.executor.work(run)).ended
    return f"{CRASHED}; the command of step {', '.join(ended)} still ran and was ended" if ended else CRASHED


async def _going_on(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote:
    """Continue in a state that needs no person."""
    state = run.cursor.state
    await session.drive(run)
    failed = run.cursor.state == ApprovalState.FAILED
    found = RecoveryNote(
        state,
        run.cursor.state,
        await _crashed(session, run),
        session.clock.time(),
        undone=tuple(run.ctx.undone),
        conflicts=tuple(run.ctx.conflicts),
        options=MANUAL if failed else ("submit",),
    )
    run.ctx.recovery = found.plain()
    await session.remember(run)
    return found


async def _extracting(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote:
    """Drop the request to the planner: it is unknown whether it was sent."""
    found = RecoveryNote(
        run.cursor.state, ApprovalState.IDLE.value, CRASHED, session.clock.time(), options=("submit",)
    )
    await _jumped(session, run, ApprovalState.IDLE, found)
    return found


async def _planning(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote:
    """Keep the intent: when the person confirms it, it is planned for again."""
    ctx = run.ctx
    ctx.kept, ctx.intent = ctx.intent, None
    ctx.question = f"Plan again for: {(ctx.kept or {}).get('summary', ctx.request)}"
    found = RecoveryNote(
        run.cursor.state,
        ApprovalState.IDLE.value,
        CRASHED,
        session.clock.time(),
        options=("confirm", "submit"),
    )
    await _jumped(session, run, ApprovalState.IDLE, found)
    return found


async def _awaiting(session: ApprovalSession, run: ApprovalRun) -> RecoveryNote | None:
    """Expire a plan that cannot be executed as shown any more."""
    why, shut = "", before.expired(run)
    if shut is not None:
        why = "it waited for too long" if shut.reason == before.EXPIRED else shut.reason
    else:
        try:
            blocked = await session.executor.outdated(run)
            why = "" if blocked is None else blocked.reason
        except ApprovalError as error:
            why = str(error)
    if not why:
        return None
    run.ctx.plan_status = PlanStatus.EXPIRED.value
    found = RecoveryNote(
        run.cursor.state,
        ApprovalState.IDLE.value,
        f"the plan expired: {why}",
        session.clock.time(),
        options=("submit",),
    )
    run.ctx.recovery = found.plain()
    await session.drive(run, ApprovalEvent.REJECT)
    return found


async def _jumped(
    session: ApprovalSession,
    run: ApprovalRun,
    to: ApprovalState,
    found: RecoveryNote,
    *,
    corrupt: bool = False,
) -> None:
    run.ctx.recovery = found.plain()
    await session.jump(run, to, found.why, corrupt=corrupt)


_WAYS: Mapping[ApprovalState, Callable[[ApprovalSession, ApprovalRun], Awaitable[RecoveryNote | None]]] = {
    ApprovalState.EXECUTING: _executing,
    ApprovalState.CANCELLING: _going_on,
    ApprovalState.COMPLETED: _going_on,
    ApprovalState.EXTRACTING_INTENT: _extracting,
    ApprovalState.PLANNING: _planning,
    ApprovalState.AWAITING_APPROVAL: _awaiting,
}


def damaged(why: str, now: float) -> tuple[dict[str, Any], RecoveryNote]:
    """Return error and recovery note of a project whose journal cannot be read."""
    options = ("look at .orchestrator/", f"{DISCARD}, which sets it aside and starts anew")
    error = {**Fault("ST-002", why).plain(), "shown": False}
    return error, RecoveryNote("corrupt", ApprovalState.FAILED.value, why, now, options=options)
