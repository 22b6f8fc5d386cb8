"""The seam to whoever places runs on machines: it is told of runs, and calls `drive` for each, at least once.

A dispatcher knows nothing but (run, slice), where the slice is the number of the run's last record: told the same
twice it does one thing, and a run that got further is something new. All else is in the journal. So it may lose what
it was told (a sweep of any worker tells it again), do it twice or in two places at once (the journal gives a run to
one owner, and every append says by which claim it is made), and it never waits for a person: `drive` returns when the
run has to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from orchestrator.errors import ConfigError

Drive: TypeAlias = Callable[[str, int], Awaitable[None]]
"""Carry a run, of whose slice one was told, as far as it goes now. Raises nothing but CancelledError."""


@runtime_checkable
class Scheduler(Protocol):
    """Takes runs that somebody is to carry."""

    async def submit(self, run_id: str, slice: int, *, tenant: str = "") -> None:  # noqa: A002 - the seam's word
        """Let a worker drive this slice of a run. Again for one that is known: nothing, or once more if it is over.

        Raises StoreDown.
        """
        ...


@runtime_checkable
class Dispatcher(Scheduler, Protocol):
    """Places runs on workers; one for each worker process."""

    async def start(self, drive: Drive, name: str, slots: int) -> None:
        """Begin to call `drive`, in the running event loop, at most `slots` times at once here.

        `name` is this worker's among all that live. Raises ConfigError, StoreDown.
        """
        ...

    async def reap(self, living: frozenset[str]) -> int:
        """Give the slices of workers that are not among the living to others; return how many. Raises StoreDown.

        Called by one worker at a time, usually.
        """
        ...

    async def cease(self) -> None:
        """Take nothing more, and let others have it; `drive` that is under way goes on to its end."""
        ...

    async def stop(self) -> None:
        """Cease, and let go of everything. What is under way has ended before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What all workers together keep to. 0 is no limit."""

    concurrency: int = 0
    """Runs that are driven at once."""
    tenant_concurrency: int = 0
    """Runs of one tenant that are driven at once."""
    rate: int = 0
    """Runs that are begun, or taken up again, within any `period`."""
    period: float = 1.0
    """Seconds."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "tenant_concurrency", "rate"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number, 0 (no limit) or more")
        if not 0 < self.period < float("inf"):
            raise ConfigError(f"period is {self.period!r}; it must be a number of seconds, more than 0")
