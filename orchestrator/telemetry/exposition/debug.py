"""Debug pages of a live process: its runs with state and time, and its stacks.

They never show a prompt, an argument, a result or the value of a variable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from orchestrator.kernel.abandonment import abandoned_work
from orchestrator.kernel.record import WorkAbandoned
from orchestrator.telemetry.live import LiveRun
from orchestrator.telemetry.stack import stacks

__all__ = ["MOST_RUNS", "LiveSource", "runs", "stacks"]

MOST_RUNS = 1_000
"""Maximum runs on a page; the counts include all."""

LiveSource: TypeAlias = Callable[[], Iterable[LiveRun]]
"""Returns the present runs of this process, like `telemetry.live.LiveRuns.standing`. Called from any thread."""


def runs(source: LiveSource | None, now: float) -> dict[str, Any]:
    """Return the live runs as plain data, those longest in their state first, and the abandoned work."""
    left = [_left(fact, now) for fact in abandoned_work()]
    abandoned: dict[str, Any] = {"count": len(left), "work": left[:MOST_RUNS]}
    if source is None:
        return {"known": False, "count": 0, "parked": {}, "runs": [], "abandoned": abandoned}
    found = sorted(source(), key=lambda run: run.entered_at)
    return {
        "known": True,
        "count": len(found),
        "parked": Counter(run.parked for run in found if run.parked is not None),
        "runs": [_plain(run, now) for run in found[:MOST_RUNS]],
        "abandoned": abandoned,
    }


def _left(fact: WorkAbandoned, now: float) -> dict[str, Any]:
    return {
        "run_id": fact.run_id,
        "machine": fact.graph,
        "agent": fact.agent,
        "state": fact.state,
        "kind": fact.kind,
        "name": fact.name,
        "since": fact.at,
        "age_seconds": round(max(now - fact.at, 0.0), 3),
    }


def _plain(run: LiveRun, now: float) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "machine": run.machine,
        "agent": run.agent,
        "state": run.state,
        "age_seconds": round(max(now - run.entered_at, 0.0), 3),
        "run_age_seconds": round(max(now - run.started_at, 0.0), 3),
        "parked": run.parked,
    }
