"""How a task may be written, what it says of itself, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.machines.ralph import tasklist
from orchestrator.machines.ralph.outline import Outline, decoded, encoded, outline
from orchestrator.machines.ralph.questions import answered, cycles, question_entries
from orchestrator.machines.ralph.tasklist import SAFE_ID, Marker, TaskList, made_id, read_progress, read_tasks

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


# ---- every byte kept ----


REAL = Path(__file__).parents[1] / "data" / "task_lists"
TASKS_IN = {
    "brighter--0002-backstop-error-handler--tasks.md": 9,
    "brighter--0011-redis-dead-letter-queue--tasks.md": 9,
    "ralph-claude-code--rest-api--fix_plan.md": 19,
    "ralph-claude-code--simple-cli-tool--fix_plan.md": 12,
}
"""Real file -> its tasks, counted by hand."""


def test_a_file_of_every_kind_is_among_the_real_ones() -> None:
    assert len(list(REAL.iterdir())) == 13


@pytest.mark.parametrize("file", sorted(REAL.iterdir()), ids=lambda file: file.name)
def test_a_real_file_comes_out_byte_for_byte(file: Path) -> None:
    content = file.read_bytes()
    assert encoded(outline(decoded(content)).text()) == content
    assert encoded(read_tasks(outline(decoded(content))).outline.text()) == content


@pytest.mark.parametrize(("name", "count"), TASKS_IN.items())
def test_the_tasks_of_a_real_list_are_found(name: str, count: int) -> None:
    found = read_tasks(outline(decoded((REAL / name).read_bytes())))
    assert found.problems == ()
    assert len(found.entries) == count
    assert len({entry.id for entry in found.entries}) == count


@pytest.mark.parametrize("name", TASKS_IN)
def test_moving_each_marker_of_a_real_list_changes_one_byte_of_it(name: str) -> None:
    content = (REAL / name).read_bytes()
    found = read_tasks(outline(decoded(content)))
    for entry in found.entries:
        changed = encoded(tasklist.moved(found, entry, Marker.REVIEW))
        assert len(changed) == len(content)
        assert [new for old, new in zip(content, changed, strict=True) if old != new] == [ord("P")]
        again = read_tasks(outline(decoded(changed)))
        assert [one.id for one in again.entries if one.mark is Marker.REVIEW] == [entry.id]


# ---- generated ----

_TEXT = st.text(st.characters(exclude_characters="\r\n"), max_size=30)
_LINE = st.one_of(
    _TEXT,
    st.builds(
        "{}{} [{}] {}".format,
        st.sampled_from(("", "  ", "\t", "    ")),
        st.sampled_from(("-", "*", "+", "1.", "12)")),
        st.sampled_from((" ", "/", "P", "x", "X", "F", "C", "?", "", "done")),
        _TEXT,
    ),
    st.builds("{} {}".format, st.sampled_from(("#", "##", "######", "#######")), _TEXT),
    st.sampled_from(("```", "~~~~", "```python", "<!--", "-->", "---", "", "    - **Type**: Sequential")),
)
_FILE = st.lists(st.tuples(_LINE, st.sampled_from(("\n", "\r\n", "\r", "\n\n")))).map(
    lambda lines: "".join(text + end for text, end in lines)
)


@given(st.binary())
@example(b"\xef\xbb\xbf- [ ] a\r\n- [x] \xff\xfe")
def test_any_bytes_come_out_as_they_went_in(content: bytes) -> None:
    assert encoded(outline(decoded(content)).text()) == content


@given(_FILE)
def test_any_generated_list_comes_out_as_it_went_in_and_can_be_read(text: str) -> None:
    found = outline(text)
    assert found.text() == text
    for read in (read_tasks, read_progress):
        entries = read(found).entries
        assert len({entry.id for entry in entries}) == len(entries)
        assert all(entry.node.line < entry.node.end <= len(found.lines) for entry in entries)


@given(_FILE, st.data())
def test_moving_a_marker_changes_its_line_and_no_other_task(text: str, data: st.DataObject) -> None:
    found = read_progress(outline(text))
    if not found.entries:
        return
    entry = data.draw(st.sampled_from(found.entries))
    to = data.draw(st.sampled_from(Marker))
    after = read_progress(outline(tasklist.moved(found, entry, to)))
    assert _others(after, entry.node.line) == _others(found, entry.node.line)
    assert [one.mark for one in after.entries if one.node.line == entry.node.line] == [to]
    assert [(one.id, one.mark) for one in after.entries if one.id != entry.id] == [
        (one.id, one.mark) for one in found.entries if one.id != entry.id
    ]


@given(_FILE)
@example("- [ ] \ud800\n")
@example("- [ ] \udc80\n")
@example("- [ ]\n~~~\n\n~~~\n")
@example("- [ ] task-1: a\n```\nfirst\n\nsecond\n```\n")
@example("- [ ] task-1: a\n<!-- first\n\nsecond -->\n")
def test_a_task_that_is_added_is_there_and_the_others_are_as_they_were(text: str) -> None:
    found = read_progress(outline(text))
    if found.problems:
        return
    after = read_progress(outline(tasklist.with_status(found, "task-900", "Do more", Marker.OPEN)))
    assert [one.id for one in after.entries if one.id == "task-900"] == ["task-900"]
    assert {(one.id, one.mark) for one in after.entries} >= {(one.id, one.mark) for one in found.entries}
    kept = after.outline.text()
    for line in found.outline.lines:
        assert line.rstrip("\r\n") in kept


def _others(found: TaskList, line: int) -> list[str]:
    return [text for index, text in enumerate(found.outline.lines) if index != line]


_LISTS = {
    "as the template": "# Task List\n\n## Implementation Tasks\n- task-1: a\n    - **Type**: Sequential\n",
    "with boxes": "# Fix\n\n- [ ] task-1: a\n- [x] Something else\n",
    "with headings": "# Tasks\n\n### Task 1: a\n\n- [ ] not a task\n",
    "with a place for it": "# Fix\n\n- [ ] task-1: a\n\n## Discovered\n<!-- here -->\n",
    "empty": "",
    "without an end": "# Tasks\n- [ ] task-1: a",
}


@pytest.mark.parametrize("text", _LISTS.values(), ids=_LISTS)
@given(task_id=st.from_regex(SAFE_ID, fullmatch=True), description=st.text(min_size=1, max_size=40))
@example(task_id="cleanup", description="tidy up")
@example(task_id="US-1", description="- [x] task-1: not this")
@example(task_id="9", description="``` # <!--")
@example(task_id="task-9", description="<!-- open")
def test_whatever_an_agent_calls_a_task_it_is_found_again(text: str, task_id: str, description: str) -> None:
    before = read_tasks(outline(text))
    if before.get(task_id) is not None:
        return
    after = read_tasks(outline(tasklist.with_task(before, task_id, description, "because")))
    assert [one.id for one in after.entries] == [*(one.id for one in before.entries), task_id]
    assert after.problems == ()
    status = read_progress(
        outline(tasklist.with_status(read_progress(outline("")), task_id, description, Marker.DONE))
    )
    assert [(one.id, one.mark) for one in status.entries] == [(task_id, Marker.DONE)]
