"""Runs of approval as records, and out of records again: every command of a person is another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.journal.context import ContextCodec
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.kernel.machine import Machine
from orchestrator.machines.approval.model import ApprovalContext, ApprovalState
from orchestrator.runtime.service.position import rebuilt
from orchestrator_callbacks.approval.deps import ApprovalDeps, ApprovalRun

GRAPH = "approval"


def codec(launch: Callable[[], Mapping[str, Any]]) -> ContextCodec[ApprovalContext]:
    """Return the codec of approval; `launch` is kept with a request: how its planner is made, never a key."""
    return ContextCodec(ApprovalContext, about=lambda _: {"launch": dict(launch())} if launch() else {})


def run_id(number: int) -> str:
    """Return the id of a project's n-th request."""
    return f"{GRAPH}-{number:04d}"


async def newest(journal: Journal) -> RunHead | None:
    """Return the present request of a project: the one that was begun last."""
    found: RunHead | None = None
    async for head in journal.runs(graph=GRAPH):
        if found is None or number_of(head) > number_of(found):
            found = head
    return found


def number_of(head: RunHead) -> int:
    """Return which request of the project a run is."""
    last = head.run_id.rpartition("-")[2]
    return int(last) if last.isdecimal() else 0


def restored(
    stored: StoredRun, machine: Machine, deps: ApprovalDeps, codec: ContextCodec[ApprovalContext]
) -> ApprovalRun:
    """Return the run as it stood at its last record, ready for `drive`. Raises Corrupt; touches nothing."""
    run: ApprovalRun = rebuilt(stored, machine, codec.decoded(stored.context), deps, codec)
    run.acknowledge(stored.inbox)  # what is missing before it was reported as lost
    if run.cursor.state != ApprovalState.FAILED:  # it has gone on since: the next error is the first again
        run.clear_error()
    return run
