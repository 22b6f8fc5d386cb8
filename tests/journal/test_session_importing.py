"""Lists of tasks of others: only read, taken whole, or refused with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.machines.ralph.foreign_list import read_foreign_list, read_log, read_prd
from orchestrator.machines.ralph.outline import outline
from orchestrator.machines.ralph.tasklist import Marker, SessionFileError, read_tasks
from orchestrator.runtime.ralph.session import ImportedTasks, SessionDirectory
from tests.tiers import examples

REAL = Path(__file__).parents[1] / "data" / "task_lists"
WALLET = REAL / "xrpl-cli-ng--2026-03-04-wallet-commands--prd.json"
WALLET_LOG = REAL / "xrpl-cli-ng--2026-03-04-wallet-commands--progress.txt"


def taken(tmp_path: Path, *files: Path) -> SessionDirectory:
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}
    session = ImportedTasks(files).into(tmp_path / ".ralph-sessions", "", "260304-093711")
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files} == before
    return session


@pytest.mark.parametrize("file", sorted(REAL.glob("*prd.json*")), ids=lambda file: file.name)
def test_a_real_prd_becomes_a_session_with_each_of_its_stories(tmp_path: Path, file: Path) -> None:
    stories = json.loads(file.read_text(encoding="utf-8"))["userStories"]
    session = taken(tmp_path, file)
    ordered = sorted(stories, key=lambda story: story["priority"])
    assert [task.id for task in session.tasks()] == [story["id"] for story in ordered]
    for task, story in zip(session.tasks(), ordered, strict=True):
        assert task.title == " ".join(story["title"].split())
        assert task.marker is (Marker.DONE if story["passes"] else Marker.OPEN)
        assert len(task.criteria) == len(story["acceptanceCriteria"])
    assert [task.id for task in SessionDirectory.open(session.path).tasks()] == [
        task.id for task in session.tasks()
    ]


def test_what_was_learnt_goes_into_the_plan(tmp_path: Path) -> None:
    plan = (taken(tmp_path, WALLET, WALLET_LOG).path / "plan.md").read_text(encoding="utf-8")
    assert "### Codebase Patterns\n\n> - Node.js built-in `crypto` module used for AES-256-GCM" in plan


@pytest.mark.parametrize("file", sorted(REAL.glob("*progress.txt")), ids=lambda file: file.name)
def test_the_entries_of_a_real_log_are_read(file: Path) -> None:
    found = read_log(file.read_text(encoding="utf-8"), file.name)
    counts = {
        "vue-lynx--progress.txt": 7,
        WALLET_LOG.name: 13,
        "xrpl-cli-ng--2026-03-05-payment--progress.txt": 0,
    }
    assert len(found.entries) == counts[file.name]
    lines = file.read_text(encoding="utf-8").splitlines()
    assert all(one.story in lines[one.line - 1] and one.date in lines[one.line - 1] for one in found.entries)


@pytest.mark.parametrize(
    "name", ["brighter--0011-redis-dead-letter-queue--tasks.md", "ralph-claude-code--rest-api--fix_plan.md"]
)
def test_a_real_list_in_markdown_is_taken_byte_for_byte(tmp_path: Path, name: str) -> None:
    session = taken(tmp_path, REAL / name)
    assert (session.path / "tasks.md").read_bytes() == (REAL / name).read_bytes()
    progress = (session.path / "progress.md").read_text(encoding="utf-8")
    assert all(f"- [{task.marker.value}] {task.id}: " in progress for task in session.tasks())


def test_taking_it_again_after_a_crash_makes_no_second_session(tmp_path: Path) -> None:
    session = taken(tmp_path, WALLET)
    (session.path / "tasks.md").unlink()
    assert len(taken(tmp_path, WALLET).tasks()) == 13
    session.mark(next(task.id for task in session.tasks() if task.marker is Marker.DONE), Marker.DONE)
    assert len(taken(tmp_path, WALLET).tasks()) == 13


BAD_PRD = [
    ('{"userStories": [\n{"id": "a-1",}]}', ":2: is not JSON"),
    (
        '{"userStories": {}}',
        ":1: is not a list of stories; it must be an array, or an object with one of these",
    ),
    ("{}", ":1: is not a list of stories"),
    ("[]", ": has no story: the list is empty"),
    ('{"userStories": [], "items": []}', ": has no story: the list is empty"),
    ("[1]", ": has no story: line 1: '1': a story must be an object or a text"),
    ('{"userStories": [\n{"id": "a-1", "title": " "}]}', ": has no story: line 2: "),
]


@pytest.mark.parametrize(("text", "fault"), BAD_PRD)
def test_a_prd_that_is_not_as_it_must_be_is_refused_with_its_line(
    tmp_path: Path, text: str, fault: str
) -> None:
    file = tmp_path / "prd.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SessionFileError) as raised:
        taken(tmp_path, file)
    assert str(raised.value).startswith(f"{file}{fault}")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["prd.json"]


def test_a_log_about_no_story_or_without_a_form_is_refused_with_its_line(tmp_path: Path) -> None:
    log = tmp_path / "progress.txt"
    log.write_text("# Log\n\n## [2026-03-04] - US-999\n- what\n", encoding="utf-8")
    with pytest.raises(
        SessionFileError, match=r"progress\.txt:3: is about the unknown story US-999; known: US-001"
    ):
        taken(tmp_path, WALLET, log)
    log.write_text("# Log\n## [2026-03-04] US-001\n", encoding="utf-8")
    with pytest.raises(SessionFileError, match=r"progress\.txt:2: is not an entry"):
        taken(tmp_path, WALLET, log)
    assert not (tmp_path / ".ralph-sessions").exists()


def test_what_goes_together_is_said(tmp_path: Path) -> None:
    for files in ((), (WALLET, WALLET), (WALLET_LOG,), (REAL / "README.md", WALLET)):
        with pytest.raises(SessionFileError, match="give one list"):
            ImportedTasks(files)
    with pytest.raises(SessionFileError, match=r"has no task: `- \[ \] task-1: what` is one"):
        ImportedTasks([REAL / "README.md"])
    bad = tmp_path / "tasks.md"
    bad.write_text("# Tasks\n- [ ] what\n```\n", encoding="utf-8")
    with pytest.raises(SessionFileError, match=r"tasks\.md:3: a code fence starts here and never ends"):
        ImportedTasks([bad])


def test_a_number_of_stories_keeps_its_order_by_priority() -> None:
    text = json.dumps({"userStories": [{"id": f"s-{n}", "title": "t", "priority": 9 - n} for n in range(5)]})
    assert [story.id for story in read_prd(text, "x").stories] == ["s-4", "s-3", "s-2", "s-1", "s-0"]


# ---- what other people write ----


def imported(tmp_path: Path, text: str, name: str = "tasks.md") -> tuple[ImportedTasks, SessionDirectory]:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    taken = ImportedTasks([file])
    session = taken.into(tmp_path / ".ralph-sessions", "", "260304-093711")
    assert session.tasks() == taken.tasks(), "the session has the tasks of the summary"
    return taken, session


def markers(taken: ImportedTasks) -> dict[str, str]:
    return {task.id: task.marker.value for task in taken.tasks()}


HEADINGS = """# Plan

## Overview

- [ ] fast
- [x] small

### Task 5: Write the parser

- [ ] read
- [x] write

### Task 6: Ship it

Some words.

- [x] tag
- [x] upload
  - [X] both

### Task 7: Tell people ✅

### Task 8: Rest (done)

### Task 9: Sleep

- **Status**: Completed
- [ ] left

### [x] Task 10: Wake

### ✅ Task 11: Eat

## Success Criteria

### Functional

- [ ] Users can log in

## Remaining Tasks

- [ ] Clean up
"""


def test_a_task_whose_boxes_are_all_done_is_done_and_boxes_about_the_whole_are_no_tasks(
    tmp_path: Path,
) -> None:
    taken, session = imported(tmp_path, HEADINGS)
    assert markers(taken) == {
        "task-5": " ",
        "task-6": "x",
        "task-7": "x",
        "task-8": "x",
        "task-9": "x",
        "task-10": "x",
        "task-11": "x",
        "clean-up": " ",
    }
    assert [(note.line, note.text) for note in taken.left_out] == [
        (5, "fast"),
        (6, "small"),
        (38, "Users can log in"),
    ]
    assert taken.summary() == [
        "tasks.md: 8 tasks, 6 of them done; 3 left out",
        "  left out, line 5: 'fast': a box under 'Overview' describes the whole and is no task",
        "  left out, line 6: 'small': a box under 'Overview' describes the whole and is no task",
        "  left out, line 38: 'Users can log in': a box under 'Success Criteria' describes the whole and is no task",
        "  changed, line 8: 'Task 5: Write the parser': 1 of its 2 boxes are done; imported as open",
    ]
    assert not taken.doubtful
    kept = (session.path / "tasks.md").read_text(encoding="utf-8")
    assert kept == HEADINGS.replace("- [ ] fast", "- fast").replace("- [x] small", "- small").replace(
        "- [ ] Users", "- Users"
    )


@pytest.mark.parametrize(
    ("mark", "becomes"), [("~", " "), ("-", " "), ("?", " "), ("✓", "x"), ("done", "x"), ("WIP", " ")]
)
def test_a_marker_that_is_not_ours_does_not_refuse_the_file(tmp_path: Path, mark: str, becomes: str) -> None:
    taken, _ = imported(tmp_path, f"# Tasks\n\n- [{mark}] one-1: First\n- [x] two-2: Second\n")
    assert markers(taken) == {"one-1": becomes, "two-2": "x"}
    assert [str(note) for note in taken.changed] == [
        f"line 3: 'one-1: First': the marker [{mark}] is imported as [{becomes}]"
    ]


def test_an_id_that_occurs_twice_gets_another_one(tmp_path: Path) -> None:
    text = "# Plan\n\n## A\n\n### Task 1: First\n\n## B\n\n### Task 1: Second\n"
    taken, _ = imported(tmp_path, text)
    assert [(task.id, task.title) for task in taken.tasks()] == [("task-1", "First"), ("task-1-2", "Second")]
    assert "task-1 occurs twice, first in line 5; imported as task-1-2" in taken.summary()[1]


def test_items_of_a_list_that_cannot_be_tasks_are_named_and_most_of_them_are_doubtful(tmp_path: Path) -> None:
    taken, _ = imported(tmp_path, "# Tasks\n\n- [ ] what-1: One\n- Two\n- Three\n")
    assert [(note.line, note.why) for note in taken.left_out] == [
        (4, "it has neither a box nor an id"),
        (5, "it has neither a box nor an id"),
    ]
    assert taken.doubtful


@pytest.mark.parametrize("file", sorted(REAL.glob("*.md")), ids=lambda file: file.name)
def test_nothing_of_a_real_list_is_left_out(file: Path) -> None:
    if file.name in {"README.md", "LICENSES.md", "ralph-claude-code--simple-cli-tool--prompt.md"}:
        return
    taken = ImportedTasks([file])
    boxes = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("- [")]
    assert len(taken.tasks()) == len(boxes)
    assert [task.marker.value for task in taken.tasks()] == [line[3] for line in boxes]
    assert (taken.left_out, taken.changed) == ((), ())


STORIES: list[tuple[object, dict[str, str], list[str]]] = [
    (
        [{"id": "a-1", "title": "t", "passes": True}, {"id": "a-2", "title": "u"}],
        {"a-1": "x", "a-2": " "},
        [],
    ),
    ({"items": [{"id": "a-1", "title": "t", "done": True}]}, {"a-1": "x"}, []),
    ({"userStories": [], "tasks": [{"id": "a-1", "name": "t", "status": "completed"}]}, {"a-1": "x"}, []),
    ([{"id": "a-1", "title": "t", "subtasks": [{"title": "s", "status": "done"}]}], {"a-1": "x"}, []),
    (["Do this", "Do that"], {"do-this": " ", "do-that": " "}, []),
    ([{"id": 7, "title": "t", "passes": "yes"}], {"7": "x"}, []),
    (
        [{"title": "Do this", "passes": "maybe"}],
        {"do-this": " "},
        ["its passes maybe is unknown; imported as open"],
    ),
    (
        [{"id": "../x", "title": "Do this"}],
        {"do-this": " "},
        ["the id ../x is imported as do-this; an id has letters, digits, - _ ."],
    ),
    (
        [{"id": "a-1", "title": "t"}, {"id": "a-1", "title": "u"}],
        {"a-1": " ", "a-1-2": " "},
        ["a-1 occurs twice, first in line 1; imported as a-1-2"],
    ),
    (
        [
            {
                "id": "a-1",
                "title": "t",
                "acceptanceCriteria": [{"text": "c", "met": True}, {"text": "d", "met": True}],
            }
        ],
        {"a-1": "x"},
        [],
    ),
    (
        [{"id": "a-1", "title": "t", "priority": "soon"}],
        {"a-1": " "},
        ["its priority soon is unknown; it keeps its place"],
    ),
    (
        [{"id": "b-2", "title": "u", "priority": "low"}, {"id": "a-1", "title": "t", "priority": "high"}],
        {"a-1": " ", "b-2": " "},
        [],
    ),
]


@pytest.mark.parametrize(("data", "found", "changed"), STORIES)
def test_relatives_of_prd_json_are_read(
    tmp_path: Path, data: object, found: dict[str, str], changed: list[str]
) -> None:
    taken, _ = imported(tmp_path, json.dumps(data), "prd.json")
    assert markers(taken) == found
    assert list(markers(taken)) == list(found)
    assert [note.why for note in taken.changed] == changed
    assert taken.left_out == ()


@pytest.mark.parametrize(
    ("given", "criteria"),
    [
        ([{"description": "it works", "passes": False}, "and fast"], ("it works", "and fast")),
        ([{"given": "a", "then": "b"}], ('{"given": "a", "then": "b"}',)),
        ("it works\n- and fast", ("it works", "and fast")),
        ({"text": "it works"}, ("it works",)),
        (None, ()),
    ],
)
def test_criteria_are_texts_objects_or_lines(
    tmp_path: Path, given: object, criteria: tuple[str, ...]
) -> None:
    story = {"id": "a-1", "title": "t", "acceptanceCriteria": given}
    taken, _ = imported(tmp_path, json.dumps({"userStories": [story]}), "prd.json")
    (task,) = taken.tasks()
    assert task.criteria == criteria
    assert task.marker is Marker.OPEN


def test_an_entry_that_is_no_story_is_left_out_with_its_line(tmp_path: Path) -> None:
    text = '{"userStories": [\n {"id": "a-1", "title": "t"},\n 7,\n {"id": "a-2"}], "items": [1]}'
    taken, _ = imported(tmp_path, text, "prd.json")
    assert markers(taken) == {"a-1": " "}
    assert [str(note) for note in taken.left_out] == [
        "line 3: '7': a story must be an object or a text",
        'line 4: \'{"id": "a-2"}\': a story has no title',
        "'items': 1 entries; the stories are in 'userStories'",
    ]
    assert taken.doubtful


_LINES = st.sampled_from(
    [
        *("# Plan", "## Tasks", "## Overview", "## Success Criteria", "### Functional", "## Phase 1"),
        *("### Task 1: a", "### Task 1: b", "### [x] Task 2: c", "### Task 3: d ✅", "- **Status**: Done"),
        *(
            "- [ ] a",
            "- [x] a-1: a",
            "- [~] a-1: b",
            "  - [x] inner",
            "- [WIP] w",
            "- plain",
            "1. [ ] n",
            "",
            "text",
        ),
        *("    - Success Criteria:", "<!-- note -->", "* [X] star", "- [ ]", "- task-1: named"),
    ]
)


@given(st.lists(_LINES, max_size=25), st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=examples(200))
def test_every_list_is_imported_with_a_marker_for_each_task_or_refused(
    lines: list[str], newline: str
) -> None:
    given_text = newline.join(lines)
    found = read_foreign_list(given_text)
    copy = read_tasks(outline(found.text))
    assert copy.problems == ()
    assert [entry.id for entry in copy.entries] == list(found.markers)
    assert read_foreign_list(found.text).left_out == tuple(one for one in found.left_out if not one.known)
    assert len(found.text.splitlines()) == len(given_text.splitlines())
    if not found.left_out and not any(
        "imported as" in one.why and "boxes" not in one.why for one in found.changed
    ):
        assert found.text == given_text
