"""Server-sent events: bytes in, events out, whatever the network made of them on the way.

The SDK has a decoder as well, but it does not tell the end of a stream (`[DONE]`) from a connection that closed
without an error, and it raises error objects itself, without their status. Lines are split on bytes: text has more
line ends than the format knows, and they may stand inside JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event. `name` is empty where the stream does not name it."""

    name: str
    data: str


class EventDecoder:
    """Feed it bytes as they come; each call gives the events that are whole by now. Raises UnicodeDecodeError."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that end in this chunk."""
        text = self._rest + chunk
        if not self._begun:
            if len(text) < len(_BYTE_ORDER_MARK):
                self._rest = text
                return
            text, self._begun = text.removeprefix(_BYTE_ORDER_MARK), True
        held = b"\r" if text.endswith(b"\r") else b""  # half a line end, perhaps
        *lines, last = _LINE_END.split(text[: len(text) - len(held)])
        self._rest = last + held
        for line in lines:
            yield from self._line(line)

    def finish(self) -> Iterator[Event]:
        """Yield what was whole but for the empty line behind it. Half a line is lost: the connection was cut in it."""
        whole = self._rest.endswith(b"\r") or self._rest.removeprefix(b"data:").strip() == b"[DONE]"
        if whole:
            yield from self._line(self._rest.removesuffix(b"\r"))
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[Event]:
        if not line:
            if self._data:
                yield Event(self._name, "\n".join(self._data))
            self._name, self._data = "", []
            return
        field, _, value = line.decode().partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
