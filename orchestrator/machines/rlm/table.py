"""Conversion of a typed machine to the graph of a run, with failure edges and time limits."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.typed import StateMachine
from orchestrator.machines.rlm.model import ModeContext

FAILED = "Failed"
"""The event of an error, from every working state to the end."""


def guarded(
    machine: StateMachine[Any, Any, Any],
    seconds: Mapping[Hashable, float],
    context: type[ModeContext],
) -> Graph:
    """Return the machine's graph with failure edges and, for each working state, its maximum duration in seconds."""
    table = machine.graph
    (end,) = table.terminal
    names: Iterable[str] = [state.name for state in seconds]  # type: ignore[attr-defined]
    return table.extend(
        events=(FAILED,),
        edges=(Edge(FAILED, tuple(names), end),),
        failure=FAILED,
        dwell={state.name: (limit, FAILED) for state, limit in seconds.items()},  # type: ignore[attr-defined]
        context=context,
        strict=True,
    )
