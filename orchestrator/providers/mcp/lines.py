"""Lines of a program, in time that grows with their bytes and up to a limit.

The SDK joins each piece that it reads with the unfinished line and parts the whole again, without a limit. It asks for
the name of an encoding: this one gives it whole lines only, so that nothing is left for it to join. The limit and the
name of the server come with the context in which the SDK starts its reader.
"""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

ENCODING = "orchestrator-mcp-lines"
"""UTF-8 by whole lines; bytes that are no UTF-8 are replaced."""

_log = logging.getLogger("orchestrator.mcp")


class LineSource(NamedTuple):
    """The server that is read, how many bytes a line of it may have (0 is no limit), and what ends its session."""

    name: str = ""
    limit: int = 0
    end: Callable[[], None] = lambda: None


SOURCE: ContextVar[LineSource] = ContextVar("orchestrator_mcp_source")


class LineTooLong(ConnectionError):
    """A line has more bytes than the limit. The SDK takes it for a failed connection, and drops what follows."""


class LineDecoder(codecs.IncrementalDecoder):
    """Gives the lines that are whole by now. Raises LineTooLong."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._line = bytearray()
        self._source = SOURCE.get(LineSource())

    def decode(self, data: bytes, final: bool = False) -> str:  # type: ignore[override]  # noqa: FBT001, FBT002
        """Return the text up to the last line end in `data`, and the rest as well if `final`."""
        first, last = data.find(b"\n"), data.rfind(b"\n")
        self._check(len(self._line) + (len(data) if first < 0 else first))
        if last < 0 and not final:
            self._line += data
            return ""
        end = len(data) if final else last + 1
        self._line += data[:end]
        text = self._line.decode(errors="replace")
        self._line[:] = data[end:]
        return text

    def reset(self) -> None:
        self._line.clear()

    def _check(self, size: int) -> None:
        name, limit, end = self._source
        if 0 < limit < size:
            _log.warning(
                "MCP server %r wrote a message of more than %d bytes; its session is closed (max_message_bytes, 0 = no "
                "limit)",
                name,
                limit,
            )
            end()
            raise LineTooLong(f"a line has more than {limit:,} bytes")


def _codec(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING.replace("-", "_"):
        return None
    utf8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(utf8.encode, utf8.decode, incrementaldecoder=LineDecoder, name=ENCODING)


codecs.register(_codec)
