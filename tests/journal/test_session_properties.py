"""People and the loop write into the same files, in any order: no bytes are lost, no marker moves by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.machines.ralph.tasklist import MOVES, IllegalMove, Marker, OutsideEdit
from orchestrator.runtime.ralph.session import PROGRESS, TASKS, SessionDirectory
from tests.tiers import examples

IDS = ("task-1", "task-2", "task-3")
LISTS = (
    "# Task List\n\n## Implementation Tasks\n- task-1: one\n- task-2: two\n    - **Files**: [a]\n- task-3: three\n",
    "# Fix\r\n\r\n- [ ] task-1: one\r\n- [ ] task-2: two\r\n- [ ] task-3: three",
    "# Tasks\n\n### Task 1: one\n\ntext\n\n### Task 2: two\n### Task 3: three\n",
)
_WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=12)
_STEP = st.one_of(
    st.tuples(st.just("mark"), st.sampled_from(IDS), st.sampled_from(Marker)),
    st.tuples(st.just("write"), st.sampled_from((TASKS, PROGRESS)), _WORD),
    st.tuples(st.just("add"), st.sampled_from(("task-8", "cleanup", "US-1")), _WORD.filter(str.strip)),
    st.tuples(st.just("refresh"), st.just(""), st.just("")),
    st.tuples(st.just("open"), st.just(""), st.just("")),
)


class Both:
    """A session that people and the loop write into, and what should be in it."""

    def __init__(self, session: SessionDirectory) -> None:
        self.session = session
        self.stands = dict.fromkeys(IDS, Marker.OPEN)
        self.said: list[tuple[str, bytes]] = []

    def write(self, name: str, word: str) -> None:
        line = f"\n> people say {len(self.said)}: {word}\n".encode()
        with (self.session.path / name).open("ab") as file:
            file.write(line)
        self.said.append((name, line))

    def mark(self, task: str, to: Marker) -> None:
        if _done(lambda: self.session.mark(task, to)):
            assert to is self.stands[task] or to in MOVES[self.stands[task]]
            self.stands[task] = to

    def add(self, task: str, what: str) -> None:
        found = {"id": task, "description": what, "rationale": ""}
        if _done(lambda: self.session.add_tasks([found])):
            self.stands.setdefault(task, Marker.OPEN)

    def refresh(self, *_: str) -> None:
        self.session.refresh()

    def open(self, *_: str) -> None:
        self.session = SessionDirectory.open(self.session.path)


@settings(max_examples=examples(30))
@given(st.sampled_from(LISTS), st.lists(_STEP, max_size=15))
def test_no_bytes_are_lost_and_no_marker_moves_by_itself(
    text: str, steps: list[tuple[str, str, str]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        both = Both(SessionDirectory.create(Path(folder), "x", "s"))
        (both.session.path / TASKS).write_bytes(text.encode())
        both.refresh()
        for kind, what, how in steps:
            getattr(both, kind)(what, how)
        both.refresh()
        known = {task.id: task.marker for task in both.session.tasks()}
        assert {name: known[name] for name in both.stands} == both.stands
        for name, line in both.said:
            assert line.strip() in (both.session.path / name).read_bytes()
        after = (both.session.path / TASKS).read_bytes()
        assert [line for line in text.encode().splitlines() if b"[" not in line and line not in after] == []


def _done(act: Callable[[], object]) -> bool:
    """Tell whether something was written; a refusal leaves everything as it is."""
    try:
        act()
    except (OutsideEdit, IllegalMove):
        return False
    return True
