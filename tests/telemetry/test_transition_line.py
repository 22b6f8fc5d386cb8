"""The template of a transition's line: the same bytes as structlog's chain, whatever a fact says."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.kernel.clock import micros
from orchestrator.kernel.fact import RunCompleted, Transition
from orchestrator.telemetry.log import LEVELS, LineWriter, TransitionLog, build
from orchestrator_guards import Verdict

LONG = 10.0**9
numbers = st.integers(-(2**63), 2**63) | st.floats() | st.none() | st.booleans() | st.text(max_size=3)
words = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ["100%", "%b %d", 'a "b"', "\n\\"]
)
seconds = st.floats(-LONG, LONG) | st.sampled_from([0.0, 1e-6, 4.2e-5, 5e-7, 1.5e-6, 1.0, 0.1])
verdicts = st.builds(Verdict, st.booleans(), words, numbers, numbers)
facts = st.builds(
    Transition,
    graph=words,
    run_id=words,
    seq=st.integers(0, 2**63),
    event=words,
    source=words,
    dest=words,
    dwell=seconds,
    at=st.floats(0, 4e9),
    iteration=st.integers(0, 2**63) | numbers,
    guard=st.none() | words,
    internal=st.sampled_from([False, False, False, True]),
    verdict=st.none() | verdicts,
    overhead=st.none() | seconds,
    tokens=st.sampled_from([0, 0, 0, 7]),
    reason=st.sampled_from(["", "", "", "a reason"]),
)


def written(log: TransitionLog, stream: io.BytesIO, fact: Transition) -> bytes | type[Exception]:
    """What a log writes of one fact, or the kind of error that it raises."""
    stream.seek(0)
    stream.truncate()
    try:
        log.observe(fact)
    except Exception as error:  # noqa: BLE001 - compared
        return type(error)
    return stream.getvalue()


class Logs:
    """One log with its own chain, and one that hands the same fields to that chain as to a host's."""

    def __init__(self, **options: Any) -> None:
        self.streams = (io.BytesIO(), io.BytesIO())
        chain = build(LineWriter(self.streams[1]), LEVELS["info"])
        self.logs = (TransitionLog(self.streams[0], **options), TransitionLog(logger=chain, **options))

    def lines(self, fact: Transition) -> list[bytes | type[Exception]]:
        return [written(log, stream, fact) for log, stream in zip(self.logs, self.streams, strict=True)]


@given(st.lists(facts, min_size=1, max_size=8))
def test_a_line_has_the_same_bytes_as_from_structlogs_chain(told: list[Transition]) -> None:
    logs = Logs()
    for fact in [*told, *told]:  # the second time from the parts that are kept
        own, chain = logs.lines(fact)
        assert own == chain


@given(facts)
def test_a_line_with_a_span_has_the_same_bytes_too(fact: Transition) -> None:
    own, chain = Logs(
        trace=lambda: {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"}
    ).lines(fact)
    assert own == chain


def plain(**changes: Any) -> Transition:
    values: dict[str, Any] = {
        "run_id": "r1",
        "seq": 1,
        "dwell": 0.5,
        "at": 1.0,
        "iteration": 1,
        "overhead": 1e-5,
    }
    names = {"graph": "loop", "event": "go", "source": "begin", "dest": "think"}
    return Transition(**names | values | changes)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_duration_that_is_no_number_is_null(odd: float) -> None:
    own, chain = Logs().lines(plain(dwell=odd, overhead=odd))
    assert own == chain
    assert isinstance(own, bytes)
    assert b'"state_duration_s":null,"overhead_s":null' in own


@given(st.floats(-LONG, LONG))
def test_microseconds_are_rounded_as_round_does_before_the_division(amount: float) -> None:
    assert micros(amount) == round(amount * 1e6) / 1e6
    assert math.copysign(1, micros(amount)) == math.copysign(1, round(amount * 1e6) / 1e6)


def test_parts_of_runs_and_edges_that_never_end_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.telemetry.log._MOST_RUNS", 10)
    monkeypatch.setattr("orchestrator.telemetry.log._MOST_EDGES", 10)
    stream = io.BytesIO()
    log = TransitionLog(stream)
    for number in range(100):
        log.observe(plain(run_id=str(number), source=str(number)))
    assert stream.getvalue().count(b"\n") == 100
    assert log._lines is not None
    assert len(log._lines._runs) == 10
    assert len(log._lines._edges) <= 10


def test_nothing_is_kept_of_a_run_that_is_over() -> None:
    log = TransitionLog(io.BytesIO())
    log.observe(plain())
    log.observe(RunCompleted("loop", "r1", "done", "completed", "none", 9.0, 8.5, 7, 3))
    assert log._lines is not None
    assert (log._lines._runs, log._runs) == ({}, {})
