"""Decode server-sent events from bytes, in time that is linear in the bytes, for every division into chunks.

The SDK has a decoder too, but it does not distinguish the end of a stream (`[DONE]`) from a connection that closed
without an error, and it raises error objects itself, without their status. Lines are split on bytes: text has more
line ends than the format, and they may occur inside JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One event. `name` is empty if the stream gives none."""

    name: str
    data: str


class EventTooLarge(ValueError):
    """One event has more bytes than the decoder accepts; `limit` is that number."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"one event of the stream has more than {limit:,} bytes")
        self.limit = limit


class EventDecoder:
    """Decodes bytes as they arrive; each call yields the complete events.

    `limit` is the maximum bytes of one event; 0 is no limit. Raises EventTooLarge and UnicodeDecodeError.
    """

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._line = bytearray()
        """The unfinished line. Each byte is scanned once, when it arrives, and copied into this buffer."""
        self._size = 0
        self._name = ""
        self._data: list[str] = []
        self._begun = False
        self._after_return = False

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events that end in this chunk."""
        if not self._begun:
            chunk = bytes(self._line) + chunk
            if _BYTE_ORDER_MARK.startswith(chunk):
                self._line[:] = chunk
                return
            self._line.clear()
            chunk, self._begun = chunk.removeprefix(_BYTE_ORDER_MARK), True
        if self._after_return and chunk:
            chunk, self._after_return = chunk.removeprefix(b"\n"), False  # the other half of a line end
        *lines, rest = _LINE_END.split(chunk)
        for line in lines:
            self._keep(line)
            yield from self._ended_line()
        self._keep(rest)
        self._after_return = self._after_return or chunk.endswith(b"\r")

    def finish(self) -> Iterator[ServerSentEvent]:
        """Yield an event that lacks only its empty line. Half a line is lost: the connection was cut in it."""
        if self._line.removeprefix(b"data:").strip() == b"[DONE]":
            yield from self._ended_line()
        self._line.clear()
        yield from self._ended_line()

    def _keep(self, piece: bytes) -> None:
        self._line += piece
        self._size += len(piece)
        if 0 < self._limit < self._size:
            raise EventTooLarge(self._limit)

    def _ended_line(self) -> Iterator[ServerSentEvent]:
        size, line = len(self._line), self._line.decode()
        self._line.clear()
        if not line:
            if self._data:
                yield ServerSentEvent(self._name, "\n".join(self._data))
            self._name, self._data, self._size = "", [], 0
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        else:
            self._size -= size  # a comment or an id: ignored
