"""Exchange frames between the program and its worker: four bytes of length, then that many bytes of JSON.

Text may hold lone surrogates, as Python's strings can; they pass unchanged.
"""

from __future__ import annotations

import json
import os
from typing import Any

HEADER = 4
MEMORY_EXIT = 77
"""Exit status of a worker whose memory is used up."""
CPU_EXIT = 78
"""Exit status of a worker that used up the CPU time of its life."""


def packed(frame: dict[str, Any]) -> bytes:
    """Return a frame as bytes."""
    body = json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return len(body).to_bytes(HEADER, "big") + body


def unpacked(body: bytes | bytearray) -> Any:
    """Return the content of a frame's body. Raises ValueError or RecursionError for an invalid body."""
    return json.loads(body.decode("utf-8", "surrogatepass"))


class Channel:
    """The worker's end: blocking, over two file descriptors."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing

    def send(self, frame: dict[str, Any]) -> None:
        """Write a frame."""
        left = memoryview(packed(frame))
        while left:
            left = left[os.write(self._writing, left) :]

    def receive(self) -> Any:
        """Read a frame. Raises EOFError if the program has ended."""
        return unpacked(self._exactly(int.from_bytes(self._exactly(HEADER), "big")))

    def _exactly(self, count: int) -> bytearray:
        found = bytearray(count)
        view, at = memoryview(found), 0
        while at < count:
            got = os.readv(self._reading, [view[at:]])
            if not got:
                raise EOFError
            at += got
        return found

    def close(self) -> None:
        """Close both ends."""
        os.close(self._reading)
        os.close(self._writing)
