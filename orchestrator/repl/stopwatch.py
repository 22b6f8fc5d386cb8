"""Measure time, except while the code waits for an answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Stopwatch:
    """Runs from the start. Its caller enforces the limit in seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._began = time.monotonic()
        self._before = 0.0
        self._running = True

    @property
    def seconds(self) -> float:
        """Return the elapsed seconds."""
        return self._before + (time.monotonic() - self._began if self._running else 0.0)

    @property
    def left(self) -> float:
        """Return the remaining seconds."""
        return self.limit - self.seconds

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock for a while."""
        self._before, self._running = self.seconds, False
        try:
            yield
        finally:
            self._began, self._running = time.monotonic(), True
