"""A session directory: read with hashes, changed in one place at a time, never written over."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.machines.ralph.model import Task
from orchestrator.machines.ralph.tasklist import IllegalMove, Marker, OutsideEdit, SessionFileError
from orchestrator.runtime.ralph.session import SessionDirectory, session_id_for

TASKS = """# Task List

## Implementation Tasks
- task-1: Add two numbers
    - **Type**: Sequential
    - **Files**: [add.py, `test_add.py`]
    - **Objective**: A function that adds
    - **Success Criteria**:
        - add(1, 2) is 3
        - its test passes

- task-2: Multiply two numbers
    - **Type**: Parallelizable (depends on task-1)
    - **Files**: mul.py
    - **Success Criteria**: mul(2, 3) is 6
"""
QUESTIONS = """# Q&A Discovery: numbers

## Q&A Cycles

### Cycle 1
**Objective**: first look

#### Generated Questions
1. **[High Priority]** Which numbers?
    - **Category**: Requirements
    - **Priority**: High
    - **Status**: Unanswered
    - **Answer**: [To be filled]
    - **Source**: [Research source]

2. **[Low Priority]** How fast?
    - **Category**: Technical
    - **Status**: Answered
    - **Answer**: As fast as Python is
"""


def begun(tmp_path: Path, tasks: str = TASKS) -> SessionDirectory:
    session = SessionDirectory.create(
        tmp_path / ".ralph-sessions", "Numbers, please\n# Not a heading", "260131-144400"
    )
    (session.path / "tasks.md").write_text(tasks, encoding="utf-8")
    session.refresh()
    return session


def markers(session: SessionDirectory) -> dict[str, Marker]:
    return {task.id: task.marker for task in session.tasks()}


def test_a_new_session_has_its_progress_and_its_instructions(tmp_path: Path) -> None:
    session = begun(tmp_path)
    assert sorted(file.name for file in session.path.iterdir()) == [
        "260131-144400.instructions.md",
        "progress.md",
        "tasks.md",
    ]
    front, text = session.instructions()
    assert front["applyTo"] == ".ralph-sessions/260131-144400/**"
    assert front["max_parallel_executors"] == "1"
    assert "> # Not a heading" in text


def test_making_the_same_session_twice_changes_nothing_and_another_one_is_refused(tmp_path: Path) -> None:
    session = begun(tmp_path)
    before = {file.name: file.read_bytes() for file in session.path.iterdir()}
    root = tmp_path / ".ralph-sessions"
    assert (
        SessionDirectory.create(root, "Numbers, please\n# Not a heading", "260131-144400").path
        == session.path
    )
    with pytest.raises(SessionFileError, match="directory of another session"):
        SessionDirectory.create(root, "Something else", "260131-144400")
    with pytest.raises(ConfigError, match="cannot name a folder"):
        SessionDirectory.create(root, "x", "../elsewhere")
    assert {file.name: file.read_bytes() for file in session.path.iterdir()} == before


def test_a_session_is_named_by_the_second_it_begins_in_or_the_next_that_is_free(tmp_path: Path) -> None:
    now = datetime(2026, 1, 31, 14, 44, 59, tzinfo=UTC)
    assert session_id_for(now, tmp_path) == "260131-144459"
    (tmp_path / "260131-144459").mkdir()
    assert session_id_for(now, tmp_path) == "260131-144500"


def test_a_task_has_all_that_tasks_md_says_of_it(tmp_path: Path) -> None:
    assert begun(tmp_path).tasks() == (
        Task(
            id="task-1",
            title="Add two numbers",
            files=("add.py", "test_add.py"),
            objective="A function that adds",
            criteria=("add(1, 2) is 3", "its test passes"),
        ),
        Task(
            id="task-2",
            title="Multiply two numbers",
            type="Parallelizable",
            files=("mul.py",),
            criteria=("mul(2, 3) is 6",),
            inherits_from=("task-1",),
        ),
    )


def test_the_first_move_of_a_task_gives_it_its_line_in_progress_md(tmp_path: Path) -> None:
    session = begun(tmp_path)
    session.mark("task-1", Marker.ACTIVE)
    session.mark("task-1", Marker.REVIEW)
    text = (session.path / "progress.md").read_text(encoding="utf-8")
    assert text.endswith("## Implementation Progress\n\n- [P] task-1: Add two numbers\n")
    assert (session.path / "tasks.md").read_text(encoding="utf-8") == TASKS
    assert markers(SessionDirectory.open(session.path)) == {"task-1": Marker.REVIEW, "task-2": Marker.OPEN}


def test_a_marker_that_stands_there_already_is_not_written_again(tmp_path: Path) -> None:
    session = begun(tmp_path)
    session.mark("task-1", Marker.ACTIVE)
    inode = (session.path / "progress.md").stat().st_ino
    session.mark("task-1", Marker.ACTIVE)
    assert (session.path / "progress.md").stat().st_ino == inode


@pytest.mark.parametrize("before", Marker)
@pytest.mark.parametrize("after", Marker)
def test_only_the_moves_of_the_table_are_made(tmp_path: Path, before: Marker, after: Marker) -> None:
    allowed = {" /", " C", "/P", "/ ", "/F", "Px", "P ", "PF", "F "} | {2 * marker for marker in Marker}
    session = begun(tmp_path)
    progress = session.path / "progress.md"
    progress.write_text(f"- [{before}] task-1 keeps this\n", encoding="utf-8")
    session.refresh()
    if before + after in allowed:
        session.mark("task-1", after)
        assert progress.read_text(encoding="utf-8") == f"- [{after}] task-1 keeps this\n"
    else:
        with pytest.raises(IllegalMove, match="cannot move from"):
            session.mark("task-1", after)
        assert progress.read_text(encoding="utf-8") == f"- [{before}] task-1 keeps this\n"


def test_a_box_in_tasks_md_is_moved_along_and_progress_md_counts(tmp_path: Path) -> None:
    session = begun(tmp_path, "- [ ] task-1: Add\r\n- [x] task-2: Multiply\r\n")
    assert markers(session) == {"task-1": Marker.OPEN, "task-2": Marker.DONE}
    session.mark("task-1", Marker.ACTIVE)
    assert (session.path / "tasks.md").read_bytes() == b"- [/] task-1: Add\r\n- [x] task-2: Multiply\r\n"
    progress = session.path / "progress.md"
    progress.write_text("- [x] task-1\n- [ ] task-2\n", encoding="utf-8")
    session.refresh()
    assert markers(session) == {"task-1": Marker.DONE, "task-2": Marker.OPEN}


def test_an_edit_from_outside_is_refused_and_left_alone(tmp_path: Path) -> None:
    session = begun(tmp_path)
    progress = session.path / "progress.md"
    theirs = "# Mine now\n\n- [C] task-1: not wanted any more\n"
    progress.write_text(theirs, encoding="utf-8")
    with pytest.raises(OutsideEdit, match=r"progress\.md was changed outside"):
        session.mark("task-2", Marker.ACTIVE)
    assert progress.read_text(encoding="utf-8") == theirs
    (session.path / "tasks.md").write_text("- [ ] task-7: other\n", encoding="utf-8")
    with pytest.raises(OutsideEdit, match=r"tasks\.md was changed"):
        session.add_tasks([{"id": "task-9", "description": "more", "rationale": ""}])
    assert (session.path / "tasks.md").read_text(encoding="utf-8") == "- [ ] task-7: other\n"
    session.refresh()
    assert markers(session) == {"task-7": Marker.OPEN, "task-1": Marker.CANCELLED}


def test_an_executor_that_moves_its_own_marker_is_no_stranger(tmp_path: Path) -> None:
    session = begun(tmp_path)
    session.mark("task-1", Marker.ACTIVE)
    progress = session.path / "progress.md"
    progress.write_text(progress.read_text(encoding="utf-8").replace("[/]", "[P]"), encoding="utf-8")
    session.mark("task-1", Marker.REVIEW)
    session.mark("task-1", Marker.DONE)
    assert markers(session)["task-1"] is Marker.DONE


def test_found_tasks_are_added_once_and_as_the_others_are_written(tmp_path: Path) -> None:
    session = begun(tmp_path)
    found = {"id": "task-3", "description": "Divide\ntwo numbers", "rationale": "nobody thought of it"}
    assert session.add_tasks([found, {"id": "task-1", "description": "again", "rationale": ""}]) == (
        "task-3",
    )
    assert session.add_tasks([found]) == ()
    text = (session.path / "tasks.md").read_text(encoding="utf-8")
    added = "\n- task-3: Divide two numbers\n    - **Type**: Sequential\n    - **Objective**: nobody thought of it\n"
    assert text == TASKS + added
    assert "- [ ] task-3: Divide two numbers\n" in (session.path / "progress.md").read_text(encoding="utf-8")
    with pytest.raises(SessionFileError, match="cannot be the id of a task"):
        session.add_tasks([{"id": "../../etc/passwd", "description": "x", "rationale": ""}])


def test_planning_is_an_item_of_progress_md_that_is_open_while_it_lasts(tmp_path: Path) -> None:
    session = begun(tmp_path)
    assert session.open_planning("Plan the work") == "plan-1"
    assert session.open_planning("Plan the work") == "plan-1"
    assert [(task.id, task.marker) for task in session.tasks() if task.planning] == [("plan-1", Marker.OPEN)]
    session.close_planning()
    session.close_planning()
    assert session.open_planning("Plan again") == "plan-2"
    progress = (session.path / "progress.md").read_text(encoding="utf-8")
    assert "- [x] plan-1: Plan the work\n- [ ] plan-2: Plan again\n" in progress


BAD = [
    (
        "tasks.md",
        "- [?] task-1: what\n",
        "tasks.md:1: unknown marker [?]; allowed: [ ], [/], [P], [x], [F], [C]",
    ),
    ("progress.md", "# P\n\n- [done] task-1\n", "progress.md:3: unknown marker [done]; allowed"),
    ("progress.md", "- [] task-1\n", "progress.md:1: unknown marker []; allowed"),
    (
        "tasks.md",
        "# T\n- [ ] task-1: a\n\n- [x] task-1: b\n",
        "tasks.md:4: task task-1 occurs twice; first in line 2",
    ),
    (
        "tasks.md",
        "# Tasks\n\n```\n- task-1: in here\n",
        "tasks.md:3: a code fence starts here and never ends",
    ),
    (
        "tasks.md",
        "# Tasks\n<!-- note\n- task-1: in here\n",
        "tasks.md:2: a comment starts here and never ends",
    ),
    (
        "tasks.md",
        "- [ ] task-1: a\n  - Depends on: task-9\n",
        "tasks.md:1: task-1 depends on task-9, which is not a task",
    ),
    (
        "tasks.md",
        "- [ ] task-1: a\n  - Depends on: task-2\n- [ ] task-2: b\n  - Depends on: task-1\n",
        "tasks.md:1: these tasks depend on each other: task-1, task-2",
    ),
]


@pytest.mark.parametrize(("name", "text", "fault"), BAD)
def test_what_nobody_can_read_is_named_with_its_line_and_left_as_it_is(
    tmp_path: Path, name: str, text: str, fault: str
) -> None:
    session = begun(tmp_path)
    (session.path / name).write_text(text, encoding="utf-8")
    before = {file.name: file.read_bytes() for file in session.path.iterdir()}
    with pytest.raises(SessionFileError) as raised:
        session.refresh()
    assert str(raised.value).removeprefix(f"{session.path}/").startswith(fault)
    with pytest.raises(SessionFileError):
        SessionDirectory.open(session.path)
    assert {file.name: file.read_bytes() for file in session.path.iterdir()} == before


def test_what_is_no_file_and_what_is_not_there_are_said(tmp_path: Path) -> None:
    session = begun(tmp_path)
    (session.path / "progress.md").unlink()
    with pytest.raises(
        SessionFileError, match=r"progress\.md: is missing, and only it says which tasks are done"
    ):
        session.refresh()
    (session.path / "progress.md").symlink_to(session.path / "tasks.md")
    with pytest.raises(SessionFileError, match="is a symlink, not a file"):
        session.refresh()
    with pytest.raises(SessionFileError, match="the session directory does not exist"):
        SessionDirectory.open(tmp_path / "nowhere")


# ---- reports ----


def test_the_last_report_of_a_task_has_the_number_of_its_attempts(tmp_path: Path) -> None:
    session = begun(tmp_path)
    names = [session.report_path("task-1", attempt).name for attempt in (1, 2, 10)]
    assert names == ["tasks.task-1-report.md", "tasks.task-1-report-r2.md", "tasks.task-1-report-r10.md"]
    for name in names:
        (session.path / name).write_text("# Report\n", encoding="utf-8")
    assert session.attempts("task-1") == 10
    assert session.attempts("task-2") == 0
    assert session.report("task-1", 2) == session.path / names[1]
    (session.path / names[1]).write_text(" \n", encoding="utf-8")
    assert session.report("task-1", 2) is None
    assert session.report("task-1", 3) is None


def test_a_report_that_was_written_over_is_noticed_and_one_that_grew_or_is_gone_is_not(
    tmp_path: Path,
) -> None:
    session = begun(tmp_path)
    report = session.report_path("task-1", 1)
    report.write_text("# Part 1\n", encoding="utf-8")
    session.refresh()
    with report.open("a", encoding="utf-8") as more:
        more.write("## PART 2: REVIEW REPORT\nfine\n")
    session.refresh()
    report.write_text("# Something else altogether, longer than before\n", encoding="utf-8")
    with pytest.raises(SessionFileError, match="was overwritten; a report may only be appended to"):
        session.refresh()
    report.unlink()
    session.refresh()
    assert (session.report("task-1", 1), session.attempts("task-1")) == (None, 0)


def test_the_review_is_the_second_part_of_the_report_once(tmp_path: Path) -> None:
    session = begun(tmp_path)
    report = session.report_path("task-1", 1)
    report.write_text("# Task Report: task-1", encoding="utf-8")
    review = {
        "status": "completed",
        "verdict": "Failed",
        "criteria_results": [
            {"criterion": "adds", "met": False, "evidence": "ran it", "finding": "1 + 2 was 4"}
        ],
        "issues": ["off by one"],
        "feedback": "add, do not\nguess",
    }
    session.append_review("task-1", 1, review)
    text = report.read_text(encoding="utf-8")
    assert text.startswith("# Task Report: task-1\n")
    assert "- ❌ **adds**: Not Met\n  - **Evidence Reviewed**: ran it\n  - **Finding**: 1 + 2 was 4\n" in text
    assert "**Status**: Failed\n" in text
    assert "add, do not guess\n" in text
    session.append_review("task-1", 1, {**review, "verdict": "Qualified"})
    assert report.read_text(encoding="utf-8") == text
    with pytest.raises(SessionFileError, match=r"report-r2\.md: is missing"):
        session.append_review("task-1", 2, review)


def test_the_report_of_an_attempt_that_was_cut_short_is_kept_and_counts_for_nothing(tmp_path: Path) -> None:
    session = begun(tmp_path)
    assert session.set_aside("task-1", 1) is None
    for text in ("half", "half again"):
        session.report_path("task-1", 1).write_text(text, encoding="utf-8")
        session.refresh()
        assert session.set_aside("task-1", 1) is not None
    session.refresh()
    assert session.attempts("task-1") == 0
    kept = [(session.path / f"tasks.task-1-report.interrupted-{number}.md").read_text() for number in (1, 2)]
    assert kept == ["half", "half again"]


def test_each_check_of_the_whole_has_a_file_of_its_own(tmp_path: Path) -> None:
    session = begun(tmp_path)
    missing = {"id": "task-3", "description": "Divide", "rationale": "asked for"}
    failed = {"passed": False, "missing_tasks": [missing], "summary": "no division"}
    assert session.write_check(failed) == "progress.review1.md"
    assert session.write_check(failed) == "progress.review1.md"
    assert session.write_check({"passed": True, "summary": "all there"}) == "progress.review2.md"
    text = (session.path / "progress.review1.md").read_text(encoding="utf-8")
    assert "**Goal met**: No\n" in text
    assert "- task-3: Divide\n    - **Rationale**: asked for\n" in text


# ---- questions ----


def test_no_answer_hides_the_questions_below_it(tmp_path: Path) -> None:
    session = begun(tmp_path)
    (session.path / "plan.questions.md").write_text(QUESTIONS, encoding="utf-8")
    asked = [one.id for one in session.questions()]
    session.answer({"1.1": "use <!-- like this"})
    assert [one.id for one in session.questions()] == asked
    assert len(asked) > 1


def test_questions_are_read_and_answered_in_their_place(tmp_path: Path) -> None:
    session = begun(tmp_path)
    paper = session.path / "plan.questions.md"
    paper.write_text(QUESTIONS, encoding="utf-8")
    asked = [(one.id, one.text, one.category, one.answer) for one in session.questions()]
    assert asked == [
        ("1.1", "Which numbers?", "Requirements", None),
        ("1.2", "How fast?", "Technical", "As fast as Python is"),
    ]
    assert session.cycles() == 1
    session.answer({"1.1": "Whole\nones", "1.2": "faster"}, "Ada")
    assert paper.read_text(encoding="utf-8") == (
        QUESTIONS.replace("Unanswered", "Answered")
        .replace("[To be filled]", "Whole ones")
        .replace("[Research source]", "Ada")
    )
    with pytest.raises(SessionFileError, match=r"unknown question '2\.1'; known: 1\.1, 1\.2"):
        session.answer({"2.1": "?"})


def test_a_file_of_questions_for_each_category_is_read_too(tmp_path: Path) -> None:
    session = begun(tmp_path)
    text = "### Cycle 2\n#### Generated Questions\n1. How?\n    - **Status**: Unanswered\n2. And why?\n"
    (session.path / "plan.questions.technical.md").write_text(text, encoding="utf-8")
    session.answer({"technical:2.1": "Like this"})
    assert [(one.id, one.answer) for one in session.questions()] == [
        ("technical:2.1", "Like this"),
        ("technical:2.2", None),
    ]
    assert session.cycles() == 1
    assert session.questions()[1].text == "And why?"


def test_the_log_of_transitions_is_added_to(tmp_path: Path) -> None:
    session = begun(tmp_path)
    session.log('{"a": 1}')
    session.log('{"b": 2}\n')
    assert (session.path / "transitions.jsonl").read_text(encoding="utf-8") == '{"a": 1}\n{"b": 2}\n'


# ---- what a process that was killed left ----


def test_a_temporary_file_that_was_left_is_no_file_of_the_session_and_goes_when_it_is_held(
    tmp_path: Path,
) -> None:
    root, left = tmp_path / ".ralph-sessions", ".260131-144400.instructions.md.0123456789abcdef.tmp"
    (root / "260131-144400").mkdir(parents=True)
    (root / "260131-144400" / left).write_text("half of")
    session = begun(tmp_path)
    assert left in {path.name for path in session.path.iterdir()}
    with session.locked():
        assert left not in {path.name for path in session.path.iterdir()}
