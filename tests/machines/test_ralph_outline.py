"""Lists of tasks come out as they went in, whatever people and models wrote; a change changes what it is about."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.machines.ralph import tasklist
from orchestrator.machines.ralph.outline import decoded, encoded, outline
from orchestrator.machines.ralph.tasklist import SAFE_ID, Marker, TaskList, read_progress, read_tasks

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
