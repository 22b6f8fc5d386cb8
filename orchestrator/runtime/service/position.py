"""Restoration of a run from its records, the same for every graph."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from orchestrator.errors import EventError, GraphError, OtherGraph
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.codec import restored_failure
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.kernel.run_parts import Cursor
from orchestrator.kernel.table import CompiledTransition
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
    graph, state = run.graph, stored.state or run.cursor.state
    following, step = _in_table(run.machine, graph, stored, state)
    cursor = Cursor(
        state,
        entry_pending=stored.next is None,
        pending_event=following,
        step=step,
        seq=stored.seq,
        started_at=now - stored.elapsed,
        entered_at=now,
        parked=True,
        is_new=not stored.begun,
    )
    if stored.failure is not None:
        cursor.error, cursor.failure = restored_failure(stored.failure, graph.name, run.run_id)
    run.restore(cursor)
    # A pause is read at once, an answer or a message only when a hook reads it, so a pause may have overtaken
    # earlier ones. The whole inbox is read again; requests that the run has read are known by their ids.
    run.mailbox.forget(stored.handled)


def _in_table(
    machine: Machine, graph: Graph, stored: StoredRun, state: str
) -> tuple[StrEnum | None, CompiledTransition | None]:
    """Return the next event and the last step of a stored run in the table here; of an ended run, what is there.

    Raises OtherGraph if the table does not have its position: records of an earlier version do not say that the table
    was changed while the run was active.
    """
    try:
        graph.states(state)
        following = None if stored.next is None else graph.events(stored.next)
        taken = machine.steps(stored.step["source"], stored.step["event"]) if stored.step else ()
    except (EventError, GraphError, ValueError) as error:
        if stored.ended is not None:
            return None, None
        if isinstance(error, GraphError):
            raise
        event = stored.next or stored.step.get("event")
        missing = f"the table here has no state {state!r}, or no event {event!r} on its path"
        raise OtherGraph(stored.run_id, graph.name, stored.fingerprint, graph.fingerprint, missing) from error
    return following, next((step for step in taken if step.dest.value == stored.state), None)
