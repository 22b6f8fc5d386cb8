"""A run from its records: the run itself, ready to be driven on, and the path that it has taken."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrator.errors import EventError, GraphError, OtherGraph
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import Transition
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Record
from orchestrator.kernel.machine import CompiledTransition, Machine
from orchestrator.kernel.run import Cursor, Run
from orchestrator.kernel.writer import restored_failure
from orchestrator.runtime.service.arguments import stored_data


def rebuilt(
    stored: StoredRun, machine: Machine, ctx: Any, deps: Any, codec: ContextCodec[Any]
) -> Run[Any, Any]:
    """Return a run with this context as of its last record, ready for `drive`. Changes nothing outside."""
    above = stored.created.get("parent_run_id")
    data = stored_data(stored.created) or None
    run: Run[Any, Any] = Run(machine, stored.run_id, ctx, deps, parent_run_id=above, data=data)
    codec.adopt(run)
    now, graph = deps.clock.monotonic(), run.graph
    state = stored.state or run.cursor.state
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
    run.set_branches(stored.branches)
    # A pause is read at once, an answer or a message only when a hook reads it, so a pause may have overtaken
    # earlier ones. The whole inbox is read again; requests that the run has read are known by their ids.
    run.mailbox.forget(stored.handled)
    return run


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


@dataclass(frozen=True, slots=True, eq=False)
class RecordedPath:
    """The transitions in the records of a run. Facts are made when they are asked for: a resumed run seldom needs them.

    Args:
        run_id: The run.
        graph: Name of its graph.
        records: Its records, from the first.
        laps: Events that count an iteration.
    """

    run_id: str
    graph: str
    records: Iterable[Record]
    laps: Container[str] = ()

    def __iter__(self) -> Iterator[Transition]:
        return iter(path_of(self.run_id, self.graph, self.records, laps=self.laps))


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
