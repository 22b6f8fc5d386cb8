"""The load of an engine at a scrape, as a protocol: any object that queues runs can be watched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.telemetry.scraped import PHASES


@dataclass(frozen=True, slots=True)
class Load:
    """The load of an engine."""

    machines: tuple[str, ...]
    """Machines whose runs it takes."""
    slots: int
    """Maximum active runs, over all machines."""
    queued: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(machine, agent) -> runs that wait for their start or their continuation."""
    phase: str = "running"
    """One of scraped.PHASES."""


class Engine(Protocol):
    """The argument of `Metrics.watch`."""

    def load(self) -> Load:
        """Return the present load without waiting. Called from the thread of the scrape: copy before counting."""
        ...


def phase(loads: Iterable[Load]) -> str:
    """Return the phase of a process from those of its engines.

    A draining engine has precedence. A process without engines is running.
    """
    found = {load.phase for load in loads}
    return next((each for each in ("draining", "starting", "running", "stopped") if each in found), PHASES[1])
