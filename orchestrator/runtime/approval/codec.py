"""Approval runs as records, and their restoration: each command of a person runs in its own process."""

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
    """Return the codec of approval; `launch` is stored with a request: how to make its planner, never a key."""
    return ContextCodec(ApprovalContext, about=lambda _: {"launch": dict(launch())} if launch() else {})


def run_id(number: int) -> str:
    """Return the id of a project's n-th request."""
    return f"{GRAPH}-{number:04d}"


async def newest(journal: Journal) -> RunHead | None:
    """Return the current request of a project, the one that was started last."""
    found: RunHead | None = None
    async for head in journal.runs(graph=GRAPH):
        if found is None or number_of(head) > number_of(found):
            found = head
    return found


def number_of(head: RunHead) -> int:
    """Return the number of a run among the project's requests."""
    last = head.run_id.rpartition("-")[2]
    return int(last) if last.isdecimal() else 0


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
