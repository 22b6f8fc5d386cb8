"""Track the runs of this process from facts, for live gauges, /debug/runs and stack dumps.

One dict maps each run to an immutable stay. Facts replace stays on the event loop. Readers in other threads copy the
dict in one step, which the interpreter does not interrupt, so the hot path takes no lock. Additions and removals of
runs take one.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, TypeAlias

from orchestrator.kernel.record import Fact, RunCompleted, RunParked, RunStarted, Transition

Key: TypeAlias = tuple[str, str]
"""(machine, run id)"""

Stay: TypeAlias = tuple[str, float, float, float | None, str]
"""(state, Unix time of its entry and of the run's start, seconds of its present loop, agent); plain, for speed."""


class LiveRun(NamedTuple):
    """The state of one run. Times are Unix seconds, without the time that the run was parked."""

    machine: str
    run_id: str
    state: str
    entered_at: float
    """For a parked run: the time of its parking."""
    started_at: float
    parked: str | None = None
    """Reason of its parking; None for an active run."""
    agent: str = ""
    """Name of its agent; empty if it has none."""


class LiveRuns:
    """The active runs of this process, and its parked runs that were not resumed in it.

    Hosts may use it as an observer; Metrics contains one. Beyond `most` runs the oldest are dropped, because a run
    with events fired by hand may never report its end. It does not know whether another process resumed a parked run.
    """

    def __init__(self, most: int = 100_000) -> None:
        self.runs: dict[Key, Stay] = {}
        self.parkings: dict[Key, LiveRun] = {}
        self._most = most
        self._lock = threading.Lock()

    def observe(self, fact: Fact, /) -> None:
        """Update the state of a run."""
        match fact:
            case Transition():
                stay = self.runs.get((fact.graph, fact.run_id))
                if stay is not None and not fact.internal:
                    self.runs[fact.graph, fact.run_id] = (fact.dest, fact.at, stay[2], None, stay[4])
            case RunStarted():
                self.started(fact)
            case RunParked():
                self.parked(fact)
            case RunCompleted():
                self.ended(fact)

    def started(self, fact: RunStarted) -> None:
        """Add a run that starts or resumes."""
        key = (fact.graph, fact.run_id)
        with self._lock:
            self.parkings.pop(key, None)
            _make_room(self.runs, self._most)
            self.runs[key] = (fact.state, fact.at - fact.dwell, fact.at - fact.elapsed, None, fact.agent)

    def parked(self, fact: RunParked) -> None:
        """Mark a run as parked."""
        key = (fact.graph, fact.run_id)
        with self._lock:
            stay = self.runs.pop(key, None)
            started, agent = (fact.at, fact.agent) if stay is None else (stay[2], stay[4])
            _make_room(self.parkings, self._most)
            self.parkings[key] = LiveRun(*key, fact.state, fact.at, started, fact.reason, agent)

    def ended(self, fact: RunCompleted) -> None:
        """Remove a run that ended."""
        key = (fact.graph, fact.run_id)
        with self._lock:
            self.runs.pop(key, None)
            self.parkings.pop(key, None)

    def current_runs(self) -> list[LiveRun]:
        """Return the runs: active ones first, oldest first. Thread-safe."""
        under_way = [
            LiveRun(*key, state, entered, started, agent=agent)
            for key, (state, entered, started, _, agent) in self.runs.copy().items()
        ]
        parked = list(self.parkings.copy().values())
        return sorted(under_way, key=_age) + sorted(parked, key=_age)


def _age(run: LiveRun) -> float:
    return run.started_at


def _make_room(runs: dict[Key, Stay] | dict[Key, LiveRun], most: int) -> None:
    while len(runs) >= most:
        runs.pop(next(iter(runs)), None)
