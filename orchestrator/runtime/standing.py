"""Where a stored run stands: the same for every graph."""

from __future__ import annotations

from typing import Any

from orchestrator.journal.stored import StoredRun
from orchestrator.kernel.failure import restored_failure
from orchestrator.kernel.run import Run


def place(run: Run[Any, Any], stored: StoredRun, now: float) -> None:
    """Let a new run stand where a stored one stood at its last record. `now` is monotonic."""
    machine = run.machine
    run.cursor = stored.state or run.cursor
    run.seq = stored.seq
    run.parked, run.unheard = True, not stored.begun
    run.started_at, run.entered_at = now - stored.elapsed, now
    run.mailbox.forget(stored.handled)
    # A pause is read at once, an answer or a message when a hook comes to it: the first may have overtaken the second.
    # The whole inbox is read again; requests that the run has read are known by their ids.
    run.inbox = 0
    if stored.next is not None:
        run.fresh, run.pending = False, machine.graph.events(stored.next)
    if stored.step:
        taken = machine.steps(stored.step["source"], stored.step["event"])
        run.step = next((step for step in taken if step.dest.value == stored.state), None)
    if stored.failure is not None:
        run.error, run.failure = restored_failure(stored.failure, machine.graph.name, run.run_id)
