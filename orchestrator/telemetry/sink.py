"""Write finished lines: directly to a stream, or through a thread with a bounded queue."""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any, TypeAlias

from orchestrator.errors import ConfigError
from orchestrator.telemetry.tally import LineCounts

_BATCH = 1_000
"""Maximum lines of one write."""
_LOOK = 0.005


class BoundedWriter:
    """Accepts lines at once and writes them from a thread, so that a slow reader of the log delays no run.

    If `most` lines wait, further ones are dropped and counted in `tally`, and so are lines that the stream refuses.
    Queued lines are written at `close` and at the end of the process; a killed process loses them, in contrast to
    direct writes. The thread starts with the first line.

    Args:
        stream: A text or binary file; None is the sys.stdout of each line.
        most: Maximum queued lines.

    Raises:
        ConfigError: `most` is below 1.

    Example:
        log = TransitionLog(BoundedWriter())
    """

    def __init__(self, stream: IO[str] | IO[bytes] | None = None, *, most: int = 10_000) -> None:
        if most < 1:
            raise ConfigError(f"most is {most!r}; a bounded writer needs room for 1 line or more")
        self.tally = LineCounts()
        self._follows = stream is None
        self._stream: Any = stream
        self._put = writer_to(stream)
        self._most = most
        self._lines: deque[bytes] = deque()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._idle = True
        self._pid = 0

    def write(self, line: bytes) -> int:
        """Queue one line, or drop it; return its length."""
        if len(self._lines) >= self._most:
            self.tally.dropped += 1
            return len(line)
        if self._thread is None or not self._thread.is_alive():
            self._start()
        self._lines.append(line)
        if not self._news.is_set():
            self._news.set()
        return len(line)

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all queued lines are written; return False if that takes longer than `timeout` seconds."""
        until = time.monotonic() + timeout
        while (self._lines or not self._idle) and self._thread is not None and self._thread.is_alive():
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK)
        return not self._lines

    def close(self, timeout: float = 5.0) -> None:
        """Write the queued lines and end the thread; after `timeout` seconds drop the rest."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        self._closing = True
        self._news.set()
        thread.join(timeout)
        if thread.is_alive():  # the reader has stopped reading
            self.tally.dropped += len(self._lines)
            self._lines.clear()
        atexit.unregister(self.close)

    def _start(self) -> None:
        if self._pid != os.getpid():  # a child after a fork: the queued lines belong to the parent
            self._lines.clear()
            self._pid = os.getpid()
        self._closing, self._news = False, threading.Event()
        self._thread = threading.Thread(target=self._deliver, name="orchestrator log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _deliver(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            self._idle = False
            while self._lines:
                self._write_some()
            self._idle = True
            if self._closing:
                return

    def _write_some(self) -> None:
        batch = [self._lines.popleft() for _ in range(min(len(self._lines), _BATCH))]
        try:
            if self._follows and self._stream is not sys.stdout:
                self._stream = sys.stdout
                self._put = writer_to(self._stream)
            lines = b"".join(batch)
            write_rest(self._put, lines, self._put(lines))
        except Exception:  # noqa: BLE001 - a full disk, a closed stream: counted, and later lines are tried
            self.tally.dropped += len(batch)


Stream: TypeAlias = IO[str] | IO[bytes] | BoundedWriter
"""Destinations of a log."""


Write: TypeAlias = Callable[[bytes], int | None]
"""Writes bytes to a stream at once; returns the number written, or None if the stream accepts no more."""


def writer_to(stream: Any) -> Write:
    """Return a function that writes bytes to a stream. None, no standard output, discards them. Raises ConfigError.

    An unbuffered file may accept only a part: then `write_rest` writes the rest.
    """
    if stream is None:
        return len
    if not (callable(getattr(stream, "write", None)) and callable(getattr(stream, "flush", None))):
        raise ConfigError(f"stream is {stream!r:.60}; give an open file, as in open('runs.jsonl', 'a')")
    if isinstance(stream, BoundedWriter | io.RawIOBase):
        return stream.write
    binary: Any = stream if isinstance(stream, io.BufferedIOBase) else getattr(stream, "buffer", None)
    flush = stream.flush

    def to_binary(line: bytes) -> int:
        flush()  # earlier output of the host comes first
        binary.write(line)
        flush()
        return len(line)

    def to_text(line: bytes) -> int:
        stream.write(line.decode())
        flush()
        return len(line)

    return to_text if binary is None else to_binary


def write_rest(write: Write, line: bytes, taken: int | None) -> None:
    """Write the rest of a line after the accepted bytes. Raises BlockingIOError if the stream accepts no more."""
    while taken is not None and taken < len(line):
        line = line[taken:]
        taken = write(line)
    if taken is None:
        raise BlockingIOError("the log stream accepts no more")
