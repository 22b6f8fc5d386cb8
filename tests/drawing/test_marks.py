"""The marks of a stored run on the drawing of its graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.drawing.element import duration
from orchestrator.drawing.stylesheet import stylesheet
from orchestrator.drawing.svg import svg
from orchestrator.kernel.journal import Record, RunHead
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.runtime.runs.story import Story, path_marks, run_marks, status_name
from tests.cli.recorded import Call, Tape
from tests.drawing.test_svg import box


def story_of(tape: Tape) -> Story:
    drafts = [one for append in tape.appends for one in append]
    records = [Record(0, 1, "created", tape.created, "")]
    records += [Record(at, 1, one.kind, one.body, "") for at, one in enumerate(drafts, 1)]
    return Story.of(tape.run_id, records)


def head(status: str, owner: str | None = None, outcome: str = "") -> RunHead:
    return RunHead("r", "llm_loop", "", status, 0, 1, owner, 0.0, 0.0, outcome=outcome)


def test_an_edge_has_its_visits_and_the_time_before_it() -> None:
    story = story_of(
        Tape("r", began=100.0).begin().calls(Call("look")).calls(Call("look"), seconds=3.0).completes()
    )
    marks = run_marks(head("ended", outcome="completed"), story, 200.0)
    edge = ("await_llm", "llm_response", "evaluate_response")
    assert (marks.taken or {})[edge] == 3
    assert marks.seconds[edge] == pytest.approx(5.0)
    assert marks.label(*edge) == "llm_response ×3 · 5 s"
    assert marks.notes["await_llm"] == "3 visits · 5 s"
    drawn = svg(LLM_LOOP, marks)
    assert 'llm_response <tspan class="times">×3</tspan> · 5 s</text>' in drawn
    assert {"current", "completed"} <= box(drawn, "finalize")


def test_heat_is_the_share_of_the_time_or_of_the_visits() -> None:
    history = story_of(Tape("r").begin().calls(Call("look")).completes()).history
    time, visits = path_marks(history).share, path_marks(history, heat="visits").share
    assert sum(time.values()) == pytest.approx(1.0)
    assert sum(visits.values()) == pytest.approx(1.0)
    assert time["await_llm"] > 0.6
    assert visits["await_llm"] == visits["evaluate_response"]


def test_a_run_that_waits_for_a_person_is_lit_with_the_time_since() -> None:
    tape = Tape("r", began=100.0).begin().calls(Call("look")).asks(Call("pay"))
    story = story_of(tape)
    marks = run_marks(replace(head("parked"), waiting="pay"), story, tape.at + 192)
    assert (marks.current, marks.status) == ("process_tools", "waiting")
    assert marks.notes["process_tools"] == "visit 2, waiting 3 m 12 s"


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (head("open", "worker"), "running"),
        (head("open"), "orphaned"),
        (head("parked"), "paused"),
        (replace(head("parked"), waiting="pay"), "waiting"),
        (head("ended", outcome="no_progress"), "no_progress"),
    ],
)
def test_the_status_of_a_run_is_a_colour(found: RunHead, status: str) -> None:
    assert status_name(found) == status
    assert f"--fsm-{status}:" in stylesheet()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.74, "740 ms"),
        (2.34, "2.3 s"),
        (41.4, "41 s"),
        (59.7, "1 m"),
        (192, "3 m 12 s"),
        (3600, "1 h"),
        (7500, "2 h 5 m"),
        (90000, "1 d 1 h"),
        (-1, "0 s"),
    ],
)
def test_a_length_of_time_has_one_or_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
