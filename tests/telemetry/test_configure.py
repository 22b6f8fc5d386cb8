from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.telemetry.log import BoundedWriter, LineHandler, TransitionLog, configure_logging
from tests.telemetry.loop import CANARY, Rig
from tests.telemetry.test_log import VALIDATOR, edge, lines_of

SPAN = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"}


@pytest.fixture(autouse=True)
def unchanged_root() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


# ---- the standard library's logging ----


def test_lines_of_libraries_have_the_same_schema_as_ours() -> None:
    stream = io.BytesIO()
    log = configure_logging(stream)
    logging.getLogger("some.library").warning("slow by %d ms", 250)
    log.observe(edge())
    first, second = lines_of(stream)
    assert (first["level"], first["msg"], first["logger"]) == ("warning", "slow by 250 ms", "some.library")
    assert second["msg"] == "fsm.transition"
    assert list(first)[:4] == list(second)[:4] == ["ts", "level", "msg", "schema"]


def test_an_exception_comes_as_type_fingerprint_and_frames_without_values() -> None:
    stream = io.BytesIO()
    configure_logging(stream)

    def work(secret: str) -> None:
        raise ValueError(f"no answer from https://bob:{secret}@host")

    try:
        work(CANARY)
    except ValueError:
        logging.getLogger("x").exception("it broke with key=%s", CANARY)
    (line,) = lines_of(stream)
    assert (line["level"], line["error_type"]) == ("error", "ValueError")
    assert [frame.rpartition(" ")[2].rpartition(".")[2] for frame in line["stack"]][-1] == "work"
    assert CANARY not in stream.getvalue().decode()


def test_extra_fields_are_kept_where_the_schema_has_them() -> None:
    stream = io.BytesIO()
    configure_logging(stream)
    extra = {"run_id": "r1", "prompt": CANARY, "ts": "no", "schema": "no", "task_id": f"token={CANARY}"}
    logging.getLogger("x").info("fine", extra=extra)
    (line,) = lines_of(stream)
    assert (line["run_id"], line["prompt"], line["schema"]) == ("r1", "[redacted]", "orchestrator.log/1")
    assert CANARY not in stream.getvalue().decode()


def test_a_record_that_cannot_be_put_together_or_written_fails_nobody_and_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            raise OSError("no space left on device")

    logging.getLogger().handlers.clear()  # pytest's raise where logging's do not
    stream = io.BytesIO()
    configure_logging(stream)
    logging.getLogger("x").info("%d", CANARY)
    (line,) = lines_of(stream)
    assert line["msg"] == "[a line of x that cannot be formatted]"
    log = configure_logging(Full())
    logging.getLogger("x").info("lost %s", CANARY)
    assert log.tallies[0].dropped == 1
    assert capfd.readouterr().err == ""


def test_setting_up_again_replaces_our_handler_and_leaves_the_hosts() -> None:
    root = logging.getLogger()
    own = logging.NullHandler()
    root.addHandler(own)
    configure_logging(io.BytesIO())
    stream = io.BytesIO()
    configure_logging(stream, level="warning")
    assert own in root.handlers
    assert len([one for one in root.handlers if isinstance(one, LineHandler)]) == 1
    logging.getLogger("x").info("not this")
    logging.getLogger("x").critical("this")
    assert [line["msg"] for line in lines_of(stream)] == ["this"]


@pytest.mark.parametrize(
    ("number", "level"),
    [(5, "debug"), (10, "debug"), (25, "info"), (35, "warning"), (40, "error"), (60, "critical")],
)
def test_levels_of_ones_own_are_rounded_down(number: int, level: str) -> None:
    stream = io.BytesIO()
    configure_logging(stream, level="debug")
    logging.getLogger().setLevel(1)
    logging.getLogger("x").log(number, "x")
    assert [line["level"] for line in lines_of(stream)] == [level]


def test_nothing_is_set_up_by_a_library_that_is_imported() -> None:
    program = (
        "import logging, orchestrator.telemetry.log, orchestrator.telemetry.log\n"
        "assert not logging.getLogger().handlers"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_lines_carry_the_span_they_belong_to() -> None:
    stream = io.BytesIO()
    await Rig([TransitionLog(stream, trace=lambda: SPAN)]).drive()
    lines = lines_of(stream)
    moves = [line for line in lines if line["msg"] in {"fsm.transition", "run.completed"}]
    assert {line["trace_id"] for line in moves} == {SPAN["trace_id"]}
    assert {line["span_id"] for line in moves} == {SPAN["span_id"]}


# ---- the bounded writer ----


class Stuck(io.RawIOBase):
    """Takes nothing until it is let go, as a pipe that nobody reads."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()
        self.taken: list[bytes] = []

    def write(self, data: Any, /) -> int:
        self.entered.set()
        self.go.wait(20)
        self.taken.append(bytes(data))
        return len(data)


def test_lines_come_out_whole_and_in_order() -> None:
    before = {*threading.enumerate()}
    stream = io.BytesIO()
    writer = BoundedWriter(stream)
    log = TransitionLog(writer)
    for seq in range(1, 601):
        log.observe(edge(seq=seq))
    assert writer.flush()
    assert [line["seq"] for line in lines_of(stream)] == list(range(1, 601))
    writer.close()
    assert "orchestrator log" not in {thread.name for thread in {*threading.enumerate()} - before}


def test_a_reader_that_stalls_costs_lines_that_are_counted_and_nobody_waits() -> None:
    stream = Stuck()
    writer = BoundedWriter(stream, most=10)  # type: ignore[arg-type]
    log = TransitionLog(writer)
    log.observe(edge(seq=1))
    assert stream.entered.wait(120)
    for seq in range(2, 102):
        log.observe(edge(seq=seq))
    assert writer.tally.dropped == 90
    assert writer.flush(0.01) is False
    stream.go.set()
    writer.close()
    lines = [json.loads(line) for line in b"".join(stream.taken).splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, 12))
    for line in lines:
        VALIDATOR.validate(line)


def test_closing_does_not_wait_for_a_reader_that_is_gone() -> None:
    stream = Stuck()
    writer = BoundedWriter(stream, most=10)  # type: ignore[arg-type]
    writer.write(b"1\n")
    assert stream.entered.wait(120)
    writer.write(b"2\n")
    writer.close(0.01)
    assert writer.tally.dropped == 1
    stream.go.set()


def test_lines_that_the_stream_refuses_are_counted_and_later_ones_are_written() -> None:
    class Refusing(io.BytesIO):
        full = True

        def write(self, data: Any, /) -> int:
            if self.full:
                raise OSError("no space left on device")
            return super().write(data)

    stream = Refusing()
    writer = BoundedWriter(stream)
    writer.write(b"1\n")
    assert writer.flush()
    stream.full = False
    writer.write(b"2\n")
    writer.close()
    assert (writer.tally.dropped, stream.getvalue()) == (1, b"2\n")


def test_a_writer_that_was_closed_begins_again_with_the_next_line() -> None:
    stream = io.BytesIO()
    writer = BoundedWriter(stream)
    for number in (b"1\n", b"2\n"):
        writer.write(number)
        writer.close()
    writer.close()
    assert stream.getvalue() == b"1\n2\n"


def test_a_writer_needs_room() -> None:
    with pytest.raises(ConfigError, match="room for 1 line"):
        BoundedWriter(most=0)


ENDING = """
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.log import BoundedWriter
from orchestrator.kernel.fact import Transition

log = TransitionLog(BoundedWriter())
for seq in range(1, 5001):
    log.observe(Transition("loop", "r1", seq, "go", "begin", "think", 0.0, 0.0, 0))
"""


def test_what_waits_is_written_when_the_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], check=True, capture_output=True, timeout=60)
    assert [json.loads(line)["seq"] for line in done.stdout.splitlines()] == list(range(1, 5001))


FORKING = """
import os, sys
from orchestrator.telemetry.log import BoundedWriter

writer = BoundedWriter()
writer.write(b"parent\\n")
writer.flush()
sys.stdout.flush()
child = os.fork()
if child == 0:
    writer.write(b"child\\n")
    writer.close()
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_after_a_fork_writes_its_own_lines_only() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    done = subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert sorted(done.stdout.splitlines()) == [b"child", b"parent"]
