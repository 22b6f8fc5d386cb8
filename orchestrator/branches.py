"""Branches of a state, and the machines of a host: fan out into child runs, and join them by a pure decision."""

from __future__ import annotations

from orchestrator.kernel.branch import (
    ALL,
    ANY,
    BranchResult,
    BranchResults,
    Fan,
    Join,
    ended,
    first,
    joined,
    quorum,
)
from orchestrator.machines.map_reduce.graph import MapReduceContext
from orchestrator.runtime.branches.fan_out import Branch, fan_out
from orchestrator.runtime.branches.workflow import Workflow, WorkflowDeps, WorkflowResult
from orchestrator.runtime.map_reduce.map_reduce import map_reduce

__all__ = [
    "ALL",
    "ANY",
    "Branch",
    "BranchResult",
    "BranchResults",
    "Fan",
    "Join",
    "MapReduceContext",
    "Workflow",
    "WorkflowDeps",
    "WorkflowResult",
    "ended",
    "fan_out",
    "first",
    "joined",
    "map_reduce",
    "quorum",
]
