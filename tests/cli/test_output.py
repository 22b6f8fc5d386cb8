"""The streams of the command line, as other code uses them."""

from __future__ import annotations

import io
import os

from orchestrator.cli.output import EscapingStream


def test_bytes_are_escaped_and_their_stream_may_be_closed_before_their_writer_is() -> None:
    kept = io.BytesIO()
    stream = EscapingStream(io.TextIOWrapper(kept, encoding="utf-8"))
    writer = stream.buffer
    writer.write(b"a\x1b[31mb")
    writer.flush()
    assert kept.getvalue() == b"a\\x1b[31mb"
    stream.stream.close()
    writer.close()


class Wrapped(io.StringIO):
    """A stream as rich before 15 wraps it: it has the descriptor, and denies that it is a terminal."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


def test_a_wrapped_stream_is_a_terminal_if_its_descriptor_is_one() -> None:
    ours, theirs = os.openpty()
    reading, writing = os.pipe()
    try:
        assert not Wrapped(theirs).isatty()
        assert EscapingStream(Wrapped(theirs)).isatty()
        assert not EscapingStream(Wrapped(writing)).isatty()
    finally:
        for each in (ours, theirs, reading, writing):
            os.close(each)
    assert not EscapingStream(io.StringIO()).isatty()
