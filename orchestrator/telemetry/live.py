"""Track the runs of this process from facts, for live gauges, /debug/runs and stack dumps, and dump the stacks.

One dict maps each run to an immutable stay. Facts replace stays on the event loop. Readers in other threads copy the
dict in one step, which the interpreter does not interrupt, so the hot path takes no lock. Additions and removals of
runs take one.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

from orchestrator.kernel.cancellation import driven_by
from orchestrator.kernel.fact import Fact, RunCompleted, RunParked, RunStarted, Transition

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


_DEEPEST = 60
"""Maximum frames of one stack."""
_NAMED = 5
"""Maximum names of tasks with the same stack."""


def stacks(loop: asyncio.AbstractEventLoop | None) -> str:
    """Return the stack of each thread, and of each task of an event loop, outermost call first.

    Tasks with the same stack are listed together. Frames have file, line and function: no values of variables, no
    source.
    """
    blocks = [f"stacks at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}", *_threads()]
    blocks += ["tasks: no event loop is known here"] if loop is None else _tasks(loop)
    return "\n\n".join(blocks) + "\n"


def _threads() -> Iterator[str]:
    frames = sys._current_frames()  # noqa: SLF001 - documented, and there is no other way
    for thread in sorted(threading.enumerate(), key=lambda one: one.name):
        lines = _called(frames[thread.ident]) if thread.ident in frames else []
        yield "\n".join([f"thread {thread.name!r}{' (daemon)' if thread.daemon else ''}", *lines])


def _called(frame: FrameType | None) -> list[str]:
    lines: list[str] = []
    while frame is not None and len(lines) < _DEEPEST:
        lines.append(_line(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return lines[::-1]


def _tasks(loop: asyncio.AbstractEventLoop) -> list[str]:
    places: dict[tuple[str, ...], list[str]] = {}
    for task in _all_tasks(loop):
        places.setdefault(tuple(_awaited(task.get_coro())), []).append(task.get_name())
    return ["\n".join([_heading(names), *place]) for place, names in sorted(places.items(), key=_most)]


def _most(group: tuple[tuple[str, ...], list[str]]) -> int:
    return -len(group[1])


def _all_tasks(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
    with contextlib.suppress(RuntimeError):  # the loop's thread created a task each time asyncio counted them
        return asyncio.all_tasks(loop)
    return set()


def _heading(names: list[str]) -> str:
    shown = ", ".join(map(repr, sorted(names)[:_NAMED]))
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"task {shown}{more}" if len(names) == 1 else f"{len(names):,} tasks: {shown}{more}"


def _awaited(waiting: object) -> list[str]:
    """Follow a suspended coroutine to the object that it awaits."""
    lines: list[str] = []
    while waiting is not None and len(lines) < _DEEPEST:
        frame, waiting = _suspended(waiting)
        if frame is None:
            break
        lines.append(_line(frame.f_code, frame.f_lineno))
    return lines or ["  (running, or finished)"]


def _suspended(waiting: object) -> tuple[FrameType | None, object]:
    """Return the frame of a coroutine, generator or async generator, and the object that it awaits."""
    for kind, inner in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
        frame = getattr(waiting, f"{kind}_frame", None)
        if frame is not None:
            return frame, getattr(waiting, inner, None) or driven_by(frame)
    return None, None


def _line(code: CodeType, number: int | None) -> str:
    return f"  {code.co_filename}:{number} {code.co_qualname}"
