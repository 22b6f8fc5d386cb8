"""The interface of a dispatcher, which places runs on machines and calls `drive` at least once for each submitted run.

A dispatcher knows only (run, slice); the slice is the number of the run's last record. Submitting the same pair twice
drives it once; a run that has made progress is a new pair. Everything else is in the journal. Therefore a dispatcher
may:

- lose a submission: the next sweep of any worker submits the run again;
- call `drive` twice or in two places: the journal gives a run to one owner, and each append names its claim.

A dispatcher never waits for a person: `drive` returns when the run has to wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from orchestrator.errors import ConfigError

Drive: TypeAlias = Callable[[str, int], Awaitable[None]]
"""Drive the given slice of a run as far as possible. Raises only CancelledError."""


@runtime_checkable
class Scheduler(Protocol):
    """A queue of runs for workers."""

    async def submit(self, run_id: str, slice: int, *, tenant: str = "") -> None:  # noqa: A002 - the protocol's name
        """Queue this slice of a run for a worker. A known slice is ignored, or queued again if it has finished.

        Raises StoreDown.
        """
        ...


@runtime_checkable
class Dispatcher(Scheduler, Protocol):
    """Places runs on workers. Each worker process has its own instance."""

    async def start(self, drive: Drive, name: str, slots: int) -> None:
        """Start to call `drive` in the running event loop, for at most `slots` slices at once in this process.

        `name` is unique among the living workers. Raises ConfigError, StoreDown.
        """
        ...

    async def reap(self, living: frozenset[str]) -> int:
        """Return the slices of workers outside `living` to the queue; return how many. Raises StoreDown.

        Usually one worker at a time calls this method.
        """
        ...

    async def cease(self) -> None:
        """Stop taking slices, so that other workers take them. Running `drive` calls continue until they return."""
        ...

    async def stop(self) -> None:
        """Stop taking slices and release all resources. No `drive` call is running any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Limits for all workers together. 0 means unlimited.

    Raises ConfigError for a negative limit, a limit that is not a whole number, and a period of 0 or less.
    """

    concurrency: int = 0
    """Maximum number of runs that work at once."""
    tenant_concurrency: int = 0
    """Maximum number of runs of one tenant that work at once."""
    rate: int = 0
    """Maximum number of runs that are started or resumed within one `period`."""
    period: float = 1.0
    """Seconds over which `rate` is counted."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "tenant_concurrency", "rate"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number, 0 (no limit) or more")
        if not 0 < self.period < float("inf"):
            raise ConfigError(f"period is {self.period!r}; it must be a number of seconds, more than 0")
