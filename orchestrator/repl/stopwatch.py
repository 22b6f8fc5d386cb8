"""Time that does not pass while the code waits for somebody else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Stopwatch:
    """Runs from the start, up to a limit in seconds that somebody else enforces."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._began = time.monotonic()
        self._before = 0.0
        self._running = True

    @property
    def seconds(self) -> float:
        """Return how long it has run."""
        return self._before + (time.monotonic() - self._began if self._running else 0.0)

    @property
    def left(self) -> float:
        """Return how long it may still run."""
        return self.limit - self.seconds

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it stand still."""
        self._before, self._running = self.seconds, False
        try:
            yield
        finally:
            self._began, self._running = time.monotonic(), True
