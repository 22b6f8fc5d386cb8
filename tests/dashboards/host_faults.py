"""What happens to a host from outside: somebody else holds its journal, and the journal grows."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import apsw

LARGE = 2_000_000_000
"""Bytes of the journal to begin with."""
GROWTH = 30_000_000
"""Bytes a second, while it grows."""


class Rival:
    """Another writer on the journal, as a backup is: takes its lock again and again, now shorter, now longer.

    `holds` are the seconds of one time after the other, over and over; none leaves the journal alone. Runs in a thread
    of its own until `stop`.
    """

    def __init__(self, path: Path) -> None:
        self.holds: tuple[float, ...] = ()
        self._path = path
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, name="rival", daemon=True)

    def start(self) -> None:
        """Begin; the journal must be there."""
        self._thread.start()

    def stop(self) -> None:
        """Let go for good."""
        self._stopping.set()
        self._thread.join()

    def _write(self) -> None:
        connection = apsw.Connection(str(self._path))
        connection.set_busy_timeout(5000)
        for number in itertools.count():
            if self._stopping.wait(0.05):
                break
            if holds := self.holds:
                connection.execute("BEGIN IMMEDIATE")
                self._stopping.wait(holds[number % len(holds)])
                connection.execute("ROLLBACK")
        connection.close()


class Ballast:
    """A sparse file beside a journal: what is measured is its real size, and nothing is written."""

    def __init__(self, journal: Path) -> None:
        folder = journal.with_name(f"{journal.name}-blobs")
        folder.mkdir(exist_ok=True)
        self._file = folder / "ballast"
        self._since: float | None = None
        self._set(LARGE)

    def grow(self, *, growing: bool) -> None:
        """Be as large as it must be by now."""
        if not growing:
            self._since = None
            return
        now = time.monotonic()
        self._since = self._since or now
        self._set(LARGE + int(GROWTH * (now - self._since)))

    def _set(self, size: int) -> None:
        with self._file.open("ab") as file:
            os.truncate(file.fileno(), size)
