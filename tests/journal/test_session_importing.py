"""Lists of tasks of others: only read, taken whole, or refused with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.machines.ralph.fault import SessionFileError
from orchestrator.machines.ralph.marker import Marker
from orchestrator.machines.ralph.prd import read_log, read_prd
from orchestrator.runtime.ralph.session.directory import SessionDirectory
from orchestrator.runtime.ralph.session.task_import import ImportedTasks

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
    ("[1]", ':1: is not a list of stories; it must be an object with "userStories"'),
    ('{"userStories": {}}', ":1: is not a list of stories"),
    ('{"userStories": [\n {"id": "a-1", "title": "t"},\n 7]}', ":3: a story must be an object"),
    ('{"userStories": [\n\n {"id": "../x", "title": "t"}]}', ":3: the id of a story is '../x'"),
    ('{"userStories": [{"id": "a-1", "title": " "}]}', ":1: story a-1 has no title"),
    (
        '{"userStories": [{"id": "a-1", "title": "t", "passes": "yes"}]}',
        ":1: passes of a-1 is 'yes'; it must be true or",
    ),
    ('{"userStories": [{"id": "a-1", "title": "t", "priority": "high"}]}', ":1: priority of a-1 is 'high'"),
    (
        '{"userStories": [{"id": "a-1", "title": "t", "acceptanceCriteria": "x"}]}',
        ":1: acceptanceCriteria of a-1",
    ),
    (
        '{"userStories": [{"id": "a-1", "title": "t"},\n {"id": "a-1", "title": "u"}]}',
        ":2: story a-1 occurs twice; first in line 1",
    ),
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
    bad.write_text("# Tasks\n- [?] what\n", encoding="utf-8")
    with pytest.raises(SessionFileError, match=r"tasks\.md:2: unknown marker \[\?\]"):
        ImportedTasks([bad])


def test_a_number_of_stories_keeps_its_order_by_priority() -> None:
    text = json.dumps({"userStories": [{"id": f"s-{n}", "title": "t", "priority": 9 - n} for n in range(5)]})
    assert [story.id for story in read_prd(text, "x").stories] == ["s-4", "s-3", "s-2", "s-1", "s-0"]
