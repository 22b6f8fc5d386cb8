"""Approval runs as records, and their restoration: each command of a person runs in its own process."""

from __future__ import annotations

import re
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
_OWN_ID = re.compile(rf"{GRAPH}-(\d{{4,}})")


def codec(launch: Callable[[], Mapping[str, Any]]) -> ContextCodec[ApprovalContext]:
    """Return the codec of approval; `launch` is stored with a request: how to make its planner, never a key."""
    return ContextCodec(ApprovalContext, about=lambda _: {"launch": dict(launch())} if launch() else {})


def run_id(number: int) -> str:
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
    return [(await _number(journal, head), head) for head in heads]


async def _number(journal: Journal, head: RunHead) -> int:
    if (found := _OWN_ID.fullmatch(head.run_id)) is not None:
        return int(found[1])
    stored = StoredRun.of(head.run_id, await journal.load(head.run_id))
    return int(stored.context.get("number", 0))


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
