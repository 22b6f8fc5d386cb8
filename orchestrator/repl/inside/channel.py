"""Frames between the program and its worker: four bytes of length, then that much JSON.

Text may hold halves of surrogate pairs (Python's strings can); they go through as they are.
"""

from __future__ import annotations

import json
import os
from typing import Any

HEADER = 4
MEMORY_EXIT = 77
"""Exit status of a worker whose memory is used up."""
CPU_EXIT = 78
"""Exit status of one that used all the CPU time of its life."""


def packed(frame: dict[str, Any]) -> bytes:
    """Return a frame as bytes."""
    body = json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return len(body).to_bytes(HEADER, "big") + body


def unpacked(body: bytes | bytearray) -> Any:
    """Return what a frame's body holds. Raises ValueError or RecursionError for what is none."""
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
        """Read a frame. Raises EOFError when the program has gone."""
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
        """Let go of both ends."""
        os.close(self._reading)
        os.close(self._writing)
