"""Log lines are written to a stream at once, after earlier output of the host."""

from __future__ import annotations

import importlib.util
import io
import threading
from typing import Any

import pytest

from orchestrator.telemetry import log
from orchestrator.telemetry.log import BoundedWriter, write_rest, writer_to


class TextOnly:
    """A stream of the host without a binary buffer."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def write(self, text: str) -> None:
        self.did.append(text)

    def flush(self) -> None:
        self.did.append("flush")


class Binary(io.BytesIO):
    def __init__(self) -> None:
        super().__init__()
        self.did: list[str] = []

    def write(self, content: Any) -> int:
        self.did.append(bytes(content).decode())
        return super().write(content)

    def flush(self) -> None:
        self.did.append("flush")


def test_a_line_to_a_text_stream_is_flushed_before_the_next() -> None:
    stream = TextOnly()
    write = writer_to(stream)
    assert (write(b"one\n"), write("zwölf\n".encode())) == (4, 7)
    assert stream.did == ["one\n", "flush", "zwölf\n", "flush"]


def test_a_line_to_a_binary_stream_follows_what_was_written_before_and_is_flushed() -> None:
    stream = Binary()
    assert writer_to(stream)(b"one\n") == 4
    assert stream.did == ["flush", "one\n", "flush"]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5])
def test_the_rest_of_a_line_is_written_in_as_many_parts_as_the_stream_takes(most: int) -> None:
    taken: list[bytes] = []

    def write(part: bytes) -> int:
        taken.append(part[:most])
        return min(most, len(part))

    write_rest(write, b"abcd", write(b"abcd"))
    assert b"".join(taken) == b"abcd"
    assert len(taken) == -(-4 // most)


def test_a_stream_that_takes_no_more_raises() -> None:
    with pytest.raises(BlockingIOError):
        write_rest(lambda _: None, b"abcd", 2)
    with pytest.raises(BlockingIOError):
        write_rest(len, b"abcd", None)


def test_the_first_stamp_of_a_process_is_right_at_the_start_of_the_epoch_too() -> None:
    spec = importlib.util.find_spec(log.__name__)
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert fresh.second(0.25) == (b"1970-01-01T00:00:00", 250_000)
    assert fresh.second(0.999999) == (b"1970-01-01T00:00:00", 999_999)
    assert fresh.second(1.0) == (b"1970-01-01T00:00:01", 0)
    assert fresh.second(0.5) == (b"1970-01-01T00:00:00", 500_000)


def test_a_bounded_writer_writes_with_one_thread_until_it_is_closed() -> None:
    stream = io.BytesIO()
    writer = BoundedWriter(stream)
    threads = set()
    for line_ in (b"1\n", b"2\n", b"3\n"):
        assert writer.write(line_) == 2
        assert writer.flush()
        threads.add(writer._thread)
    (thread,) = threads
    assert thread is not None
    assert thread.is_alive()
    writer.close()
    assert not thread.is_alive()
    assert (stream.getvalue(), writer.tally.dropped) == (b"1\n2\n3\n", 0)
    writer.write(b"4\n")  # a later line starts another one
    writer.close()
    assert stream.getvalue() == b"1\n2\n3\n4\n"


class Stuck(io.BytesIO):
    """A stream whose reader does not read until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def write(self, content: Any) -> int:
        self.begun.set()
        self.go.wait(60)
        return super().write(content)


def test_a_bounded_writer_holds_exactly_so_many_lines_and_counts_the_others() -> None:
    stream = Stuck()
    writer = BoundedWriter(stream, most=2)
    writer.write(b"0\n")
    assert stream.begun.wait(60)
    for number in range(1, 5):
        assert writer.write(f"{number}\n".encode()) == 2
    assert writer.tally.dropped == 2
    assert not writer.flush(0.01)
    stream.go.set()
    assert writer.flush(60)
    assert stream.getvalue() == b"0\n1\n2\n"
    writer.close()
