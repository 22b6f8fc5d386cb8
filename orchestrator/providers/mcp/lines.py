"""Split the output of a program into lines, in time that is linear in their bytes, up to a limit.

The SDK joins each piece that it reads with the unfinished line and splits the whole again, without a limit. It
accepts the name of an encoding: this one returns whole lines only, so that the SDK has nothing to join. The context
in which the SDK starts its reader holds the limit and the name of the server.
"""

from __future__ import annotations

import codecs
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

ENCODING = "orchestrator_mcp_lines"
"""UTF-8 by whole lines; invalid bytes are replaced."""

_log = logging.getLogger("orchestrator.mcp")


class LineSource(NamedTuple):
    """The server of the stream, the maximum bytes of a line (0 is no limit), and the function that ends its session."""

    name: Callable[[], str] = str
    limit: int = 0
    end: Callable[[], None] = lambda: None


SOURCE: ContextVar[LineSource] = ContextVar("orchestrator_mcp_source")


class LineTooLong(ConnectionError):
    """A line exceeds the limit. The SDK treats it as a failed connection, and drops the rest."""


class LineDecoder(codecs.IncrementalDecoder):
    """Returns the complete lines. Raises LineTooLong."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._line = bytearray()
        self._source = SOURCE.get(LineSource())

    def decode(self, data: bytes, final: bool = False) -> str:  # type: ignore[override]  # noqa: FBT001, FBT002
        """Return the text up to the last line end in `data`; with `final`, also the rest."""
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
                name(),
                limit,
            )
            end()
            raise LineTooLong(f"a line has more than {limit:,} bytes")


def _codec(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    utf8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(utf8.encode, utf8.decode, incrementaldecoder=LineDecoder, name=ENCODING)


codecs.register(_codec)
