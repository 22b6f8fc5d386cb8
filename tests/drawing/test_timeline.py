"""The timeline of a run: what its records say, and a drawing in which nothing covers anything else."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.drawing.element import Rectangle
from orchestrator.drawing.timeline import (
    CUT_WIDTH,
    LEAST,
    MOST_TURNS,
    LanesLayout,
    TimeAxis,
    lay_out,
    timeline_svg,
)
from orchestrator.machines.timeline import WARNINGS, Kind, Lane, Timeline, TimeSpan
from orchestrator.runtime.runs.timeline import read_timeline
from tests.drawing.recording import Recording, many_turns, support
from tests.drawing.test_svg import _SVG, groups, root_of
from tests.tiers import examples


def read(run: Recording, status: str = "ended", owner: str | None = None, later: float = 0.0) -> Timeline:
    return read_timeline(run.records, head=run.head(status, owner), now=run.at + later)


def spans(line: Timeline, lane: Lane) -> list[tuple[str, float, float | None, str, str]]:
    """Return kind, start from the start of the run, length, name and note."""
    found = [one for one in line.spans if one.lane is lane]
    rounded = [(round(one.start - line.start, 3), one.end and round(one.end - one.start, 3)) for one in found]
    return [(one.kind.value, *times, one.name, one.note) for one, times in zip(found, rounded, strict=True)]


# ---- reading ----


def test_attempts_and_waits_have_the_times_of_their_records() -> None:
    line = read(Recording().start().ask((1.4, "rate_limited", 2.0), (0.5,)).ends())
    assert spans(line, Lane.MODEL) == [
        ("failed", 0.01, 1.4, "gpt-4o", "rate_limited"),
        ("wait", 1.41, 2.0, "waits", ""),
        ("model", 3.41, 0.5, "gpt-4o", ""),
    ]
    assert [(turn.turn, round(turn.at - line.start, 3)) for turn in line.turns] == [(1, 0.01)]


def test_states_end_where_the_next_one_starts_and_have_the_colour_of_their_work() -> None:
    line = read(Recording().start().ask((1.0,)).tools(("look", 2.0)).ask((1.0,)).ends())
    found = [one for one in spans(line, Lane.STATE) if one[3] in {"await_llm", "process_tools"}]
    assert [(kind, start, length, name) for kind, start, length, name, _ in found] == [
        ("model", 0.01, 1.0, "await_llm"),
        ("tool", 1.01, 2.0, "process_tools"),
        ("model", 3.01, 1.0, "await_llm"),
    ]


def test_calls_of_one_turn_are_side_by_side_and_a_failed_one_says_how() -> None:
    line = read(Recording().start().ask((1.0,)).tools(("look", 2.0), ("find", 1.0), outcome="timeout").ends())
    assert spans(line, Lane.TOOLS) == [
        ("failed", 1.01, 2.0, "look", "timeout"),
        ("failed", 1.01, 1.0, "find", "timeout"),
    ]


def test_a_call_of_an_agent_is_a_child_run() -> None:
    line = read(Recording().start().ask((1.0,)).tools(("ask", 2.0), agent="rules").ends())
    assert spans(line, Lane.CHILD) == [("child", 1.01, 2.0, "rules", "")]
    assert spans(line, Lane.TOOLS) == []


def test_a_child_run_is_shown_once_whether_a_call_or_only_its_head_tells_of_it() -> None:
    run = Recording().start().ask((1.0,)).tools(("ask", 2.0), agent="rules").ends()
    head = replace(run.head(), created_at=run.begun + 3.0, updated_at=run.begun + 4.0, outcome="failed")
    children = [
        replace(head, run_id="run-1:1:0", agent="rules"),
        replace(head, run_id="run-1:aside", agent="clerk"),
        replace(head, run_id="run-1:again"),
    ]
    line = read_timeline(run.records, head=run.head(), now=run.at, children=children)
    assert spans(line, Lane.CHILD) == [
        ("child", 1.01, 2.0, "rules", ""),
        ("failed", 3.0, 1.0, "aside clerk", "failed"),
        ("failed", 3.0, 1.0, "again", "failed"),
    ]


def test_a_question_lasts_until_its_answer_and_the_answer_has_its_author() -> None:
    line = read(
        Recording().start().ask((1.0,)).parks("pay").approved("ann", 6.6).done("pay", 1.0).wait(1.0).ends()
    )
    assert spans(line, Lane.PERSON) == [("people", 1.01, 6.6, "pay", "")]
    assert [mark.name for mark in line.marks] == ["ann approves 1:0"]
    assert ("people", 1.01, 6.6, "process_tools", "") in spans(line, Lane.STATE)
    assert [kind for kind, *_ in spans(line, Lane.PROCESS)] == ["work", "idle", "work"]


def test_an_open_question_of_a_parked_run_lasts_until_now() -> None:
    line = read(Recording().start().ask((1.0,)).parks("pay"), "parked", later=60.0)
    assert spans(line, Lane.PERSON) == [("people", 1.01, None, "pay", "")]
    assert line.live
    assert line.end - line.start == pytest.approx(61.01)
    assert not any(one.kind is Kind.CRASH for one in line.marks)


def test_a_crash_loses_the_answer_that_was_under_way_and_shows_its_charge() -> None:
    line = read(Recording().start().crashes(8.6, charged=7_911).ask((1.0,)).ends())
    assert spans(line, Lane.MODEL)[0] == ("lost", 0.01, 8.6, "answer lost", "charged 7,911 tokens")
    assert spans(line, Lane.PROCESS) == [
        ("work", 0.0, 0.01, "process 1", ""),
        ("down", 0.01, 8.6, "no process", ""),
        ("work", 8.61, 1.0, "process 2", ""),
    ]
    assert [(mark.kind.value, mark.name, round(mark.at - line.start, 3)) for mark in line.marks] == [
        ("crash", "the process ended here or later", 0.01),
        ("resumed", "worker-b resumes", 8.61),
    ]


@pytest.mark.parametrize("kind", ["resumed", "recovered"])
def test_no_state_lasts_while_no_process_has_the_run(kind: str) -> None:
    run = Recording().start().wait(8.6)
    run.epoch += 1
    line = read(run.add(kind, at=run.at, state="await_llm").ask((1.0,)).ends())
    assert spans(line, Lane.STATE)[:3] == [
        ("work", 0.0, 0.01, "init", ""),
        ("model", 8.61, 1.0, "await_llm", ""),
    ]


def test_a_call_without_a_result_at_a_crash_is_not_known() -> None:
    run = (
        Recording().start().ask((1.0,)).intend("pay").to("process_tools", "response_with_tools").crashes(3.0)
    )
    line = read(run.done("pay", 1.0).wait(1.0).ends())
    assert spans(line, Lane.TOOLS) == [
        ("lost", 1.01, 3.0, "pay", "result not known"),
        ("tool", 4.01, 1.0, "pay", ""),
    ]


def test_a_run_that_nobody_has_shows_no_process_until_now_and_one_with_an_owner_works() -> None:
    run = Recording().start()
    orphaned, live = read(run, "open", later=30.0), read(run, "open", "worker", later=30.0)
    assert spans(orphaned, Lane.PROCESS)[-1] == ("down", 0.01, 30.0, "no process", "")
    assert spans(live, Lane.PROCESS) == [("work", 0.0, None, "process 1", "")]
    assert spans(live, Lane.MODEL) == [("model", 0.01, None, "", "")]


def test_an_answer_without_recorded_attempts_says_so() -> None:
    run = Recording().start().wait(2.0).add("answer", iteration=1, model="old", retries=2)
    line = read(run.to("evaluate_response", "llm_response").ends())
    assert spans(line, Lane.MODEL) == [("unknown", 0.01, 2.0, "old", "3 attempts, times not recorded")]


def test_a_guard_that_refuses_is_a_warning_and_budgets_are_read() -> None:
    guards = [[False, "iterations", 12, 12], [True, "no_progress", 0, 3], ["damaged"]]
    line = read(Recording().start().ask((1.0,), guards=guards).ends())
    assert [mark.name for mark in line.marks if mark.kind is Kind.WARNING] == ["iterations 12 of 12"]
    assert [(use.guard, use.share) for use in line.budgets] == [("iterations", 1.0)]


ODD: list[dict[str, Any]] = [
    {"at": "yesterday"},
    {"at": float("nan")},
    {"at": 1e300},
    {"at": -5.0},
    {"attempts": [["x", None]]},
    {"attempts": [[]]},
]


@pytest.mark.parametrize("body", ODD)
def test_odd_times_in_a_record_give_a_drawing_all_the_same(body: dict[str, Any]) -> None:
    run = Recording().start().add("answer", iteration=1, model="m", **body)
    line = read(run.to("evaluate_response", "llm_response").ends())
    assert all(one.end is None or one.end >= one.start >= line.start for one in line.spans)
    root_of(timeline_svg(line))


# ---- drawing ----


def covered(found: LanesLayout) -> list[str]:
    """Return labels on one another, bars of a row on one another, and what leaves the drawing."""
    faults = [
        f"{one.text!r} is on {other.text!r}"
        for one, other in itertools.combinations(found.labels, 2)
        if one.area.meets(other.area)
    ]
    rows: dict[tuple[Lane, int], list[Rectangle]] = defaultdict(list)
    for bar in found.bars:
        rows[bar.span.lane, bar.row].append(bar.area)
        if (
            bar.area.x < found.left - 0.01
            or bar.area.right > found.right + 0.01
            or bar.area.width < LEAST - 0.01
        ):
            faults.append(f"{bar.span} has the place {bar.area}")
    for areas in rows.values():
        faults += [
            f"{a} covers {b}"
            for a, b in itertools.pairwise(areas)
            if b.x < a.right - 0.01 and b.x < found.right - LEAST
        ]
    faults += [
        f"{one.text!r} leaves"
        for one in found.labels
        if one.area.right > found.right + 0.01 or one.area.x < 0
    ]
    return faults


def drawn(line: Timeline, width: float = 1200.0) -> LanesLayout:
    return lay_out(line, width, 0.0)


@pytest.mark.parametrize("width", [1200.0, 800.0, 390.0])
def test_no_label_of_a_timeline_covers_another_and_bars_of_a_row_are_in_order(width: float) -> None:
    assert covered(drawn(read(support(), "parked", later=192.0), width)) == []
    assert covered(drawn(read(many_turns(90)), width)) == []


def test_lanes_are_in_order_and_empty_ones_are_left_out() -> None:
    full = [lane.name for lane in drawn(read(support(), "parked", later=192.0)).lanes]
    assert full == ["Turn", "State", "Model", "Tools", "Child run", "People", "Process"]
    assert [lane.name for lane in drawn(read(Recording().start().ask((1.0,)).ends())).lanes] == [
        "Turn",
        "State",
        "Model",
        "Process",
    ]


def test_a_long_wait_is_cut_and_its_length_is_written() -> None:
    line = read(
        Recording()
        .start()
        .ask((1.0,))
        .parks("pay")
        .approved("ann", 86_400.0)
        .done("pay", 1.0)
        .wait(1.0)
        .ends()
    )
    found = drawn(line)
    [cut] = found.axis.cuts
    assert cut.right - cut.left == CUT_WIDTH
    assert "1 d" in {label.text for label in found.labels}
    model = next(bar for bar in found.bars if bar.span.lane is Lane.MODEL)
    assert model.area.width > 400


def test_the_axis_never_goes_back() -> None:
    line = read(support(), "parked", later=192.0)
    axis = TimeAxis.of(line, 0.0, 1000.0)
    places = [axis.x(line.start + (line.end - line.start) * at / 997) for at in range(-5, 1_005)]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0.0, 1000.0)


def test_more_parallel_calls_than_rows_are_counted() -> None:
    calls = [(f"tool_{number}", 1.0) for number in range(10)]
    text = timeline_svg(read(Recording().start().ask((1.0,)).tools(*calls).ends()))
    assert '<tspan class="hidden">+4</tspan>' in text


def test_a_part_of_a_timeline_has_only_its_turns() -> None:
    part = read(many_turns(60)).between(20, 22)
    assert [turn.turn for turn in part.turns] == [20, 21, 22]
    assert {one.turn for one in part.spans if one.lane is Lane.MODEL} <= {20, 21, 22}
    assert all(part.start <= one.start <= part.until(one) <= part.end for one in part.spans)
    assert covered(drawn(part)) == []


def test_a_timeline_of_more_turns_has_columns_and_keeps_every_exception() -> None:
    line = read(many_turns(MOST_TURNS + 20))
    text = timeline_svg(line)
    classes = [found for found, _ in groups(text)]
    names = {one.text for one in root_of(text).iter(f"{_SVG}text") if one.get("class") == "lane"}
    assert {"Turn", "Mean turn", "Repeated", "Budgets", "Process"} == {str(name).strip() for name in names}
    assert sum({"budget"} <= found for found in classes) == 200
    repeated = sum(one.kind in WARNINGS and one.lane is Lane.MODEL for one in line.spans)
    counted = [one.findtext(f"{_SVG}title") for found, one in groups(text) if "repeated" in found]
    assert sum(int(str(title).split()[0]) for title in counted) == repeated > 0
    assert sum({"crash"} <= found for found in classes) == 1


def calls(work: Callable[[], object]) -> int:
    count = 0

    def seen(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_work_grows_with_the_turns_and_the_drawing_does_not() -> None:
    runs = [many_turns(400), many_turns(1_600)]
    lines = [read(run) for run in runs]
    reading = [calls(lambda run=run: read(run)) for run in runs]  # type: ignore[misc]
    drawing = [calls(lambda line=line: timeline_svg(line)) for line in lines]  # type: ignore[misc]
    assert reading[1] < 4.4 * reading[0]
    assert drawing[1] < 4.4 * drawing[0]
    assert len(timeline_svg(lines[1])) < 1.3 * len(timeline_svg(lines[0]))


def test_the_drawing_has_its_content_in_words_and_as_a_table() -> None:
    line = read(Recording().start().crashes(8.6).ask((1.0,)).ends())
    root = root_of(timeline_svg(line))
    assert root.findtext(f"{_SVG}title") == "Timeline of run run-1"
    assert (
        root.findtext(f"{_SVG}desc")
        == "9.6 s in all, 1 turns; 1 s model; 8.6 s without a process; 1 crashes."
    )
    rows = line.as_json()
    assert [row["at_s"] for row in rows] == sorted(row["at_s"] for row in rows)
    assert {
        "at_s": pytest.approx(0.01),
        "lane": "Process",
        "kind": "down",
        "text": "no process",
        "seconds": 8.6,
    } in [{**row, "seconds": row["seconds"] and round(row["seconds"], 3)} for row in rows]


def test_a_strict_content_security_policy_allows_a_timeline_and_its_texts_are_escaped() -> None:
    run = Recording("<script>").start().ask((1.0, "</title><script>", 1.0), (1.0,)).parks("\u202epay<b>")
    text = timeline_svg(read(run, "parked", later=9.0), styled=False)
    for one in root_of(text).iter():
        assert one.tag.removeprefix(_SVG) in {"svg", "title", "desc", "rect", "g", "path", "text", "tspan"}
        assert not [name for name in one.attrib if name == "style" or name.startswith("on") or "href" in name]
    assert "<script" not in text
    assert "\u202e" not in text


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Any spans in any lane."""
    start = 1e9
    count = draw(st.integers(0, 40))
    made = []
    for _ in range(count):
        begin = start + draw(st.floats(0, 1e5))
        length = draw(st.none() | st.floats(0, 1e4) | st.floats(0, 1e-3))
        made.append(
            TimeSpan(
                lane=draw(st.sampled_from(Lane)),
                kind=draw(st.sampled_from(Kind)),
                start=begin,
                end=None if length is None else begin + length,
                name=draw(st.sampled_from(["", "look", "a_tool_with_a_long_name"])),
                note=draw(st.sampled_from(["", "rate_limited"])),
                turn=draw(st.integers(0, 3)),
            )
        )
    end = start + draw(st.floats(0, 2e5))
    return Timeline(name="any", start=start, end=end, spans=tuple(sorted(made, key=lambda one: one.start)))


@given(timelines())
@settings(max_examples=examples(100), deadline=None)
def test_in_the_drawing_of_any_timeline_no_label_covers_another(line: Timeline) -> None:
    assert covered(drawn(line)) == []
    root_of(timeline_svg(line))
