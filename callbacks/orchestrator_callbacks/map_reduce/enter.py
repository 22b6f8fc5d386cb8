"""`enter_<state>`: the work of each state of `map_reduce`. Each hook returns the event that leaves its state."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from orchestrator.errors import RunError
from orchestrator.kernel.branch import BranchResults, joined
from orchestrator.kernel.run import Run
from orchestrator.machines.map_reduce.graph import MapReduceContext, MapReduceEvent
from orchestrator.machines.plain import plain_json


class MapReduceWork(Protocol):
    """The branches of both states."""

    def map(self, run: Run[MapReduceContext, Any], /) -> Awaitable[BranchResults[Any]]:
        """Read each document."""
        ...

    def reduce(self, run: Run[MapReduceContext, Any], /) -> Awaitable[BranchResults[Any]]:
        """Combine the parts, in one branch."""
        ...


async def enter_mapping(run: Run[MapReduceContext, Any]) -> MapReduceEvent:
    """Read each document; continue if enough branches completed."""
    work: MapReduceWork = run.deps.host
    results = await work.map(run)
    run.ctx.parts = [plain_json(one.value) for one in results]
    run.ctx.errors = [one.error for one in results]
    return MapReduceEvent.MAPPED if joined(results).ok else MapReduceEvent.TOO_FEW


async def enter_reducing(run: Run[MapReduceContext, Any]) -> MapReduceEvent:
    """Combine the parts."""
    work: MapReduceWork = run.deps.host
    results = await work.reduce(run)
    if not joined(results).ok:
        raise RunError(f"the parts were not combined: {results[0].error}")
    run.ctx.output = plain_json(results[0].value)
    return MapReduceEvent.COMBINED
