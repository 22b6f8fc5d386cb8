"""Access to a project that another process may hold: read its status without writing, and post control requests."""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator.errors import Corrupt, TooNew
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal, Posted, Record, RunHead
from orchestrator.machines.approval.model import ApprovalState
from orchestrator.machines.approval.refusal import GateRefused
from orchestrator.runtime.approval import codec as record
from orchestrator.runtime.approval import project_journal as store
from orchestrator.runtime.approval import projection, recovery
from orchestrator.runtime.approval.status import Status
from orchestrator.runtime.approval.status_view import WORKING, status_of
from orchestrator.runtime.approval.step_log import StepLog
from orchestrator_callbacks.approval.control_request import WISHES
from orchestrator_guards import BlockedGate

_FEW = 20
"""Number of last requests that are checked for a duplicate."""


async def look(project: Path | str) -> Status:
    """Return the status of a project, even if another process holds it."""
    folder = store.folder_of(project)
    begun = (folder / projection.STATE).exists()  # before the journal is read, because it is written later
    path = folder / "journal.db"
    if not path.exists():
        return _damaged(store.EMPTY) if begun else Status(state=ApprovalState.IDLE, actions=("submit",))
    journal = SqliteJournal(path, only_reads=True)
    try:
        head = await record.newest(journal)
        if head is None:
            return _damaged(store.EMPTY) if begun else Status(state=ApprovalState.IDLE, actions=("submit",))
        return _status_of(head, await journal.load(head.run_id))
    except (Corrupt, TooNew) as damage:
        return _damaged(str(damage))
    finally:
        await journal.close()


def _damaged(why: str) -> Status:
    error, found = recovery.damaged(why, time.time())
    return Status(state=ApprovalState.FAILED, error=error, recovery=found, actions=(recovery.DISCARD,))


def _status_of(head: RunHead, records: list[Record]) -> Status:
    stored = StoredRun.of(head.run_id, records)
    log = StepLog()
    for one in records:
        log.fold(one.kind, one.body)
    ctx = record.codec(dict).decoded(stored.context)
    state = ApprovalState(stored.state or ApprovalState.IDLE)
    launch = stored.created.get("launch") or {}
    return status_of(head.run_id, state, ctx, log, owner=head.owner, launch=launch)


async def ask(project: Path | str, action: str, by: str, why: str) -> None:
    """Post a control request to the process that works on a project. Raises GateRefused if there is none."""
    if action not in WISHES:
        raise GateRefused(
            BlockedGate("state", f"unknown control request {action!r}; allowed: {', '.join(WISHES)}")
        )
    path = store.folder_of(project) / "journal.db"
    journal = SqliteJournal(path) if path.exists() else None
    if journal is None:
        raise _nobody("Idle")
    try:
        await _posted(journal, action, by, why)
    finally:
        await journal.close()


async def _posted(journal: Journal, action: str, by: str, why: str) -> None:
    head = await record.newest(journal)
    if head is None:
        raise _nobody("Idle")
    stored = StoredRun.of(head.run_id, await journal.load(head.run_id))
    state = ApprovalState(stored.state or ApprovalState.IDLE)
    if head.owner is None or state not in WORKING:
        raise _nobody(state.value)
    if state is ApprovalState.CANCELLING:
        reason = "it is being cancelled already, which cannot be stopped"
        raise GateRefused(BlockedGate("not_cancelling", reason, ("status",), code="IPC-002"))
    if action == "pause" and state is not ApprovalState.EXECUTING:
        reason = f"pause is not possible in {state.value}; possible in Executing"
        raise GateRefused(BlockedGate("state", reason, ("cancel",), code="ST-001"))
    posted = await journal.inbox(head.run_id, stored.inbox)
    if any(one.kind == action and one.id not in stored.handled for one in posted[-_FEW:]):
        reason = f"a request to {action} is pending already and takes effect as soon as possible"
        raise GateRefused(BlockedGate("state", reason, ("status",), code="IPC-006"))
    await journal.post(
        head.run_id, Posted(f"{action}-{head.seq}-{len(posted) + 1}", action, {"why": why}, by)
    )


def _nobody(state: str) -> GateRefused:
    return GateRefused(
        BlockedGate(
            "state", f"no process works on the project now; it is {state}", ("status",), code="ST-001"
        )
    )
