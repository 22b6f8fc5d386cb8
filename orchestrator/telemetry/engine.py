"""What an engine says of itself at a scrape. Knows no engine: whoever queues runs can be watched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.telemetry.scraped import PHASES


@dataclass(frozen=True, slots=True)
class Load:
    """How busy an engine is."""

    machines: tuple[str, ...]
    """Graphs of the runs that it takes."""
    slots: int
    """How many of them may go on at once, all machines together."""
    queued: Mapping[str, int] = field(default_factory=dict)
    """Machine -> runs that wait to begin, or to go on."""
    phase: str = "running"
    """One of scraped.PHASES."""


class Engine(Protocol):
    """What `Metrics.watch` takes."""

    def load(self) -> Load:
        """Return how busy the engine is, at once. Called from the thread that scrapes: copy before counting."""
        ...


def phase(loads: Iterable[Load]) -> str:
    """Return the state of a process by those of its engines: one that drains counts most. Without any it runs."""
    found = {load.phase for load in loads}
    return next((each for each in ("draining", "starting", "running", "stopped") if each in found), PHASES[1])
