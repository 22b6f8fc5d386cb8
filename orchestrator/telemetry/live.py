"""Where the runs of this process stand, kept from facts: for live gauges, /debug/runs and stack dumps.

One dict from run to an immutable stay. Facts replace stays on the event loop; readers in other threads copy the
dict in one step, which the interpreter does not interrupt, so the hot path takes no lock. Runs are added and removed
under one.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, TypeAlias

from orchestrator.kernel.record import Fact, RunCompleted, RunParked, RunStarted, Transition

Key: TypeAlias = tuple[str, str]
"""(machine, run id)"""

Stay: TypeAlias = tuple[str, float, float, float | None]
"""(state, Unix time it was entered, Unix time the run began, seconds of its present loop); plain, for speed."""


class LiveRun(NamedTuple):
    """Where one run stands. Times are Unix seconds; time in which a run waited for somebody is left out."""

    machine: str
    run_id: str
    state: str
    entered_at: float
    """For a parked run: when it was parked."""
    started_at: float
    parked: str | None = None
    """Why it is parked; None for a run under way."""


class LiveRuns:
    """The runs under way in this process, and those that it parked and that did not go on in it.

    An observer of its own, and what Metrics keeps. Beyond `most` runs the oldest are forgotten: events fired by hand
    never tell that their run is over. What another process made of a parked run is not known here.
    """

    def __init__(self, most: int = 100_000) -> None:
        self.runs: dict[Key, Stay] = {}
        self.parkings: dict[Key, LiveRun] = {}
        self._most = most
        self._lock = threading.Lock()

    def observe(self, fact: Fact, /) -> None:
        """Take note of where a run stands."""
        match fact:
            case Transition():
                stay = self.runs.get((fact.graph, fact.run_id))
                if stay is not None and not fact.internal:
                    self.runs[fact.graph, fact.run_id] = (fact.dest, fact.at, stay[2], None)
            case RunStarted():
                self.started(fact)
            case RunParked():
                self.parked(fact)
            case RunCompleted():
                self.ended(fact)

    def started(self, fact: RunStarted) -> None:
        """A run begins, or goes on."""
        key = (fact.graph, fact.run_id)
        with self._lock:
            self.parkings.pop(key, None)
            _make_room(self.runs, self._most)
            self.runs[key] = (fact.state, fact.at - fact.dwell, fact.at - fact.elapsed, None)

    def parked(self, fact: RunParked) -> None:
        """A run goes no further for now."""
        key = (fact.graph, fact.run_id)
        with self._lock:
            stay = self.runs.pop(key, None)
            started = fact.at if stay is None else stay[2]
            _make_room(self.parkings, self._most)
            self.parkings[key] = LiveRun(*key, fact.state, fact.at, started, fact.reason)

    def ended(self, fact: RunCompleted) -> None:
        """A run is over."""
        key = (fact.graph, fact.run_id)
        with self._lock:
            self.runs.pop(key, None)
            self.parkings.pop(key, None)

    def standing(self) -> list[LiveRun]:
        """Return the runs, those under way first, oldest first. From any thread."""
        under_way = [
            LiveRun(*key, state, entered, started)
            for key, (state, entered, started, _) in self.runs.copy().items()
        ]
        parked = list(self.parkings.copy().values())
        return sorted(under_way, key=_age) + sorted(parked, key=_age)


def _age(run: LiveRun) -> float:
    return run.started_at


def _make_room(runs: dict[Key, Stay] | dict[Key, LiveRun], most: int) -> None:
    while len(runs) >= most:
        runs.pop(next(iter(runs)), None)
