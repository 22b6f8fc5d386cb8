"""Count transitions: they are noted when they happen, and added when the series are read.

Every transition touches six series, each addition costs a call and a lock, and scrapes are seconds apart. So a
transition appends its numbers to a list, which is atomic, and the series are added up before a read. In
prometheus_client's files, which other processes read, they are added at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

Noted: TypeAlias = tuple[float | None, float | None, float]
"""(seconds in the source, None: counted already; seconds of overhead, None: not measured; Unix time)."""

MOST_NOTED = 500
"""Maximum pending transitions of one edge."""


class DurationHistogram(Protocol):
    """A histogram of seconds."""

    def take_all(self, amounts: Sequence[float]) -> None:
        """Observe many."""
        ...

    def observe(self, amount: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Observe one."""
        ...


class LatestGauge:
    """The gauge of the last transition of a machine. Edges are added up in any order, but it never decreases."""

    __slots__ = ("_at", "_set")

    def __init__(self, set_time: Callable[[float], None]) -> None:
        self._set = set_time
        self._at = float("-inf")

    def note(self, at: float) -> None:
        """Set Unix time `at`, if it is the latest."""
        if at >= self._at:
            self._at = at
            self._set(at)


class EdgeMeters:
    """The series of one edge. `noted` has the pending transitions.

    `begins`: the edge leaves the first state of a loop. `ends`: it returns to that state, or completes the run.
    """

    __slots__ = (
        "_enter",
        "_latest",
        "_lock",
        "_move",
        "_overhead",
        "begins",
        "ends",
        "lap",
        "most",
        "noted",
        "stay",
    )

    def __init__(
        self,
        move: Callable[[float], None],
        enter: Callable[[float], None],
        latest: LatestGauge,
        *,
        stay: DurationHistogram,
        overhead: DurationHistogram,
        lap: Callable[[float], None],
        at_once: bool,
    ) -> None:
        self._move = move
        self._enter = enter
        self._latest = latest
        self._overhead = overhead
        self.stay = stay
        self.lap = lap
        self.begins = self.ends = False
        self.noted: list[Noted] = []
        self.most = 1 if at_once else MOST_NOTED
        """Number of pending transitions that triggers `settle`."""
        self._lock = threading.Lock()

    def settle(self) -> None:
        """Add up the pending transitions. Thread-safe; they are counted when it returns."""
        with self._lock:
            noted = self.noted[:]
            del self.noted[: len(noted)]  # transitions that arrived meanwhile stay
            if noted:
                self._enter(len(noted))
                self._count(noted)

    def stayed(self, overhead: float | None, at: float) -> None:
        """Count a transition that stayed in its state."""
        self._count([(None, overhead, at)])

    def _count(self, noted: Sequence[Noted]) -> None:
        self._move(len(noted))
        self.stay.take_all([stay for stay, _, _ in noted if stay is not None])
        self._overhead.take_all([overhead for _, overhead, _ in noted if overhead is not None])
        self._latest.note(noted[-1][2])
