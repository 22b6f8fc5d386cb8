"""Restoration of a run from its records, the same for every graph."""

from __future__ import annotations

from typing import Any

from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.codec import restored_failure
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.kernel.run_parts import Cursor
from orchestrator.runtime.service.run_data import stored_data


def rebuilt(
    stored: StoredRun, machine: Machine, ctx: Any, deps: Any, codec: ContextCodec[Any]
) -> Run[Any, Any]:
    """Return a run with this context as of its last record, ready for `drive`. Changes nothing outside."""
    above = stored.created.get("parent_run_id")
    data = stored_data(stored.created) or None
    run: Run[Any, Any] = Run(machine, stored.run_id, ctx, deps, parent_run_id=above, data=data)
    codec.adopt(run)
    _restore_cursor(run, stored, deps.clock.monotonic())
    return run


def _restore_cursor(run: Run[Any, Any], stored: StoredRun, now: float) -> None:
    """Set a new run to the last record of a stored one. `now` is monotonic."""
    machine = run.machine
    cursor = Cursor(
        stored.state or run.cursor.state,
        entry_pending=stored.next is None,
        pending_event=None if stored.next is None else machine.graph.events(stored.next),
        seq=stored.seq,
        started_at=now - stored.elapsed,
        entered_at=now,
        parked=True,
        is_new=not stored.begun,
    )
    if stored.step:
        taken = machine.steps(stored.step["source"], stored.step["event"])
        cursor.step = next((step for step in taken if step.dest.value == stored.state), None)
    if stored.failure is not None:
        cursor.error, cursor.failure = restored_failure(stored.failure, machine.graph.name, run.run_id)
    run.restore(cursor)
    # A pause is read at once, an answer or a message only when a hook reads it, so a pause may have overtaken
    # earlier ones. The whole inbox is read again; requests that the run has read are known by their ids.
    run.mailbox.forget(stored.handled)
