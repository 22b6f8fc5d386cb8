"""Recovery of runs with live deps: they wait as `deps_required` until a process can give them deps again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.errors import Suspended
from orchestrator.journal.stored_run import StoredRun

REASON: Final = "deps_required"
"""Reason of a parked run."""
WHY: Final = (
    "it was started with live deps, and its agent has no factory for them: resume it with an agent that has "
    "Agent(deps=factory), or with resume(run_id, deps=...)"
)


class DepsRequired(Suspended):
    """The run needs deps, which cannot be stored."""

    def __init__(self, run_id: str, *, parked: bool = False) -> None:
        super().__init__(run_id, REASON)
        self.parked = parked
        """Whether the run was parked for this now; False if it was parked before."""
        self.args = (f"run {run_id!r} waits for deps: {WHY}",)


def waits(stored: StoredRun) -> bool:
    """Return whether a run is parked because it needs deps."""
    return stored.parked is not None and stored.parked.get("reason") == REASON


def parked_body(stored: StoredRun, at: float) -> Mapping[str, Any]:
    """Return the record that parks a run. `before` is the reason for which it was parked before."""
    before = {} if stored.parked is None else {"before": stored.parked.get("reason")}
    return {"reason": REASON, "at": at, "t": stored.elapsed, **before}
