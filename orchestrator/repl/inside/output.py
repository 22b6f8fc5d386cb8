"""Capture the output of the code: stored up to a limit, counted beyond it."""

from __future__ import annotations

import io

_MOST_PARTS = 10_000
"""Many short prints must not cost a list entry each."""


class Capture(io.TextIOBase):
    """Replaces both streams, so that their lines stay in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[str] = []
        self._kept = 0
        self.dropped = 0
        """Characters beyond the limit."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str, /) -> int:
        """Store text up to the limit."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        fits = text[: self._limit - self._kept]
        if fits:
            self._parts.append(fits)
            self._kept += len(fits)
            if len(self._parts) > _MOST_PARTS:
                self._parts = ["".join(self._parts)]
        self.dropped += len(text) - len(fits)
        return len(text)

    def text(self) -> str:
        """Return the stored text."""
        return "".join(self._parts)
