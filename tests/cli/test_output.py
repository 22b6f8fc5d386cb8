"""The streams of the command line, as other code uses them."""

from __future__ import annotations

import io

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
