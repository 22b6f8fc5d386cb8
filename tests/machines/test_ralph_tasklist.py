"""How a task may be written, what it says of itself, and what is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.machines.ralph import tasklist
from orchestrator.machines.ralph.outline import Outline, decoded, outline
from orchestrator.machines.ralph.questions import answered, cycles, question_entries
from orchestrator.machines.ralph.tasklist import Marker, TaskList, made_id, read_progress, read_tasks

WAYS = [
    ("## Implementation Tasks\n- task-1: Do it\n", "task-1", "Do it"),
    ("# Task List\n* task-2.1: Do it\n", "task-2.1", "Do it"),
    ("## Tasks\n- **task-1**: Do it\n", "task-1", "Do it"),
    ("## Tasks\n- **task-1: Do it**\n", "task-1", "Do it"),
    ("## Tasks\n- `US-001`: Do it\n", "US-001", "Do it"),
    ("## Planning Tasks\n- qa-brainstorm: Ask\n", "qa-brainstorm", "Ask"),
    ("- [ ] task-1: Do it\n", "task-1", "Do it"),
    ("1. [x] task-1 — Do it\n", "task-1", "Do it"),
    ("- [ ] task-1 Do it\n", "task-1", "Do it"),
    ("- [ ] T012: Do it\n", "T012", "Do it"),
    ("- [ ] **Do it well**\n", "do-it-well", "Do it well"),
    ("- [ ] Ünïcode ïs fïne\n", "unicode-is-fine", "Ünïcode ïs fïne"),
    ("### Task 1: Do it\n\n- [ ] not a task of its own\n", "task-1", "Do it"),
    ("### task-3: Do it ###\n", "task-3", "Do it"),
]


@pytest.mark.parametrize(("text", "task_id", "title"), WAYS)
def test_a_task_is_found_however_it_is_written(text: str, task_id: str, title: str) -> None:
    (entry,) = read_tasks(outline(text)).entries
    assert (entry.id, entry.title) == (task_id, title)


NONE = [
    "# Plan\n- task-1: under a heading that is no list of tasks\n",
    "## Task Dependencies\n- task-1: comes first\n",
    "## Tasks\n- **Type**: Sequential\n- Note: nothing\n",
    "```\n- [ ] task-1: in code\n```\n",
    "<!--\n- [ ] task-1: in a comment\n-->\n",
    "---\ntitle: x\n- [ ] task-1: in front matter\n---\n",
    "- [link](https://example.com) and [x](y)\n",
    "## Phase 1: Foundation\n\ntext\n",
    "- item\n  - [ ] a box inside of an item is part of it\n",
]


@pytest.mark.parametrize("text", NONE)
def test_what_only_looks_like_a_task_is_none(text: str) -> None:
    assert read_tasks(outline(text)).entries == ()


def test_a_task_with_everything_says_everything() -> None:
    text = (
        "## Implementation Tasks\n- task-2: Do it\n    - **Type**: Parallelizable (depends on task-1)\n"
        "    - **Files**: [a.py, `b.py`]\n    - **Objective**: A thing\n    - **Success Criteria**:\n"
        "        - one\n            - deeper is not one\n        - two\n    - **Inherits From**: task-1, task-0\n"
        "    - Something else: stays\n"
    )
    (entry,) = read_tasks(outline(text)).entries
    assert entry.fields == {
        "type": ("Parallelizable (depends on task-1)",),
        "files": ("a.py", "b.py"),
        "objective": ("A thing",),
        "criteria": ("one", "two"),
        "inherits_from": ("task-1", "task-0"),
    }


@pytest.mark.parametrize(
    ("spelling", "marker"),
    [
        (" ", " "),
        ("/", "/"),
        ("P", "P"),
        ("p", "P"),
        ("x", "x"),
        ("X", "x"),
        ("F", "F"),
        ("C", "C"),
        ("c", "C"),
    ],
)
def test_spellings_of_markers_are_understood_and_kept_until_they_are_moved(
    spelling: str, marker: str
) -> None:
    text = f"- [{spelling}] task-1 (In Progress)\n"
    found = read_progress(outline(text))
    assert found.entries[0].mark is Marker(marker)
    assert found.outline.text() == text
    assert tasklist.moved(found, found.entries[0], Marker.REVIEW) == "- [P] task-1 (Review Pending)\n"


def test_items_of_planning_are_told_by_their_heading_or_their_id() -> None:
    text = "## Planning Progress\n- [x] think (Completed)\n## Implementation\n- [ ] task-1\n- [ ] plan-2: again\n"
    assert [entry.planning for entry in read_progress(outline(text)).entries] == [True, False, True]


def test_equal_titles_get_ids_of_their_own_that_stay() -> None:
    ids = [
        entry.id
        for entry in read_tasks(outline("- [ ] Write tests\n- [x] Write tests\n- [ ] 翻译\n")).entries
    ]
    assert ids == ["write-tests", "write-tests-2", made_id("翻译")]
    assert made_id("翻译").startswith("task-")


# ---- questions ----

_LINE = st.sampled_from(
    (
        "### Cycle 1",
        "### Cycle 2",
        "#### Generated Questions",
        "1. **[High Priority]** Which?",
        "2. And how?",
        "    - **Status**: Unanswered",
        "    - **Answer**: [To be filled]",
        "    - **Answer**: done",
        "    - **Source**: [who]",
        "prose",
        "",
    )
)


@given(st.lists(_LINE, max_size=25), st.text(max_size=20))
def test_an_answer_is_put_in_and_every_other_question_stays(lines: list[str], said: str) -> None:
    text = "".join(f"{line}\n" for line in lines)
    found = outline(text)
    before = {one.id: one.answer for one in question_entries(found)}
    for one in question_entries(found):
        after = outline(answered(found, one, said or "x", "me"))
        now = {other.id: other.answer for other in question_entries(after)}
        assert now.keys() == before.keys()
        assert {name: text for name, text in now.items() if name != one.id} == {
            name: text for name, text in before.items() if name != one.id
        }
        assert cycles(after) == cycles(found)
        if one.answer is not None:
            assert after.text() == text


@pytest.mark.parametrize("read", [read_tasks, read_progress])
def test_a_list_that_was_saved_as_utf_16_is_refused_and_not_read_as_empty(
    read: Callable[[Outline], TaskList],
) -> None:
    text = decoded("# Tasks\n\n- [ ] task-1: what\n".encode("utf-16"))
    (problem,) = read(outline(text)).problems
    assert (problem.line, problem.why) == (1, "contains a zero byte; save the file as UTF-8")
