"""Decode server-sent events from bytes, in time that is linear in the bytes, for every division into chunks.

The SDK has a decoder too, but it does not distinguish the end of a stream (`[DONE]`) from a connection that closed
without an error, and it raises error objects itself, without their status. Lines are split on bytes: text has more
line ends than the format, and they may occur inside JSON.

Two lines that the format does not know are read, because servers report errors in them: a field `error` is an event
of that name, and JSON without a field name (a line that begins with a brace or a bracket, up to the empty line) is the
data of an event. An event without data is a keep-alive and is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_FIELDS = frozenset(("data", "event", "error", "id", "retry", ""))
"""The names of fields; the empty one is that of a comment."""
_JSON = (b"{", b"[")
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
        self._unframed = False
        """The lines of the event are JSON without field names."""
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
        """Yield an event that lacks only its empty line. Half a line is lost: the connection was cut in it.

        The end mark and JSON without a field name need no line end; JSON that was cut is invalid.
        """
        if (
            self._unframed
            or self._line[:1] in _JSON
            or self._line.removeprefix(b"data:").strip() == b"[DONE]"
        ):
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
            yield from self._ended_event()
            return
        field, _, value = line.partition(":")
        if field not in _FIELDS and (self._unframed or line[0] in "{["):
            if not self._unframed:
                yield from self._ended_event(size)
                self._unframed = True
            self._data.append(line)
            return
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "error":
            yield from self._ended_event(size)
            self._name = field
            self._data.append(value)
        else:
            self._size -= size  # a comment or an id: ignored

    def _ended_event(self, size: int = 0) -> Iterator[ServerSentEvent]:
        """Yield the event unless it has no data; `size` is the bytes of the line that begins another one."""
        data = "\n".join(self._data)
        if data.strip():
            yield ServerSentEvent(self._name, data)
        self._name, self._data, self._size, self._unframed = "", [], size, False
