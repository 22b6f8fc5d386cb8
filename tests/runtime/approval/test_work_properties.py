"""Any plan that is valid, on any project: what was rehearsed is what is written, and an undo leaves no trace."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.machines.approval import patch
from orchestrator.machines.approval.plan import part, selection
from orchestrator.runtime.approval.workspace import Workspace, preview
from tests.runtime.approval.work_stage import Crash, Stage, all_done, tree
from tests.tiers import examples

NAMES = ("a.txt", "d/b.txt", "d/e/c.txt", "x.md", "d/y.md")
LINES = st.lists(st.sampled_from(["one", "two", "", "é", "three\r", "\u2028"]), max_size=6)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, LINES, st.sampled_from(["", "\n"]))
Files = dict[str, str]


@st.composite
def works(draw: st.DrawFn) -> tuple[Files, list[dict[str, Any]], list[Files]]:
    """A project, the steps of a valid plan for it, and the files after each number of steps."""
    now: Files = draw(st.dictionaries(st.sampled_from(NAMES), TEXTS, max_size=4))
    before, steps, states, deleted = dict(now), [], [dict(now)], False
    for number in range(draw(st.integers(1, 6))):
        path = draw(st.sampled_from(NAMES))
        text = draw(TEXTS)
        step: dict[str, Any] = {"id": str(number)}
        if path not in now:
            step |= {"kind": "create", "files": [{"path": path, "content": text}]}
            now[path] = text
        elif not deleted and draw(st.integers(0, 3)) == 0:
            step |= {"kind": "delete", "files": [{"path": path}]}
            deleted = True
            del now[path]
        elif text != now[path]:
            diff = patch.make(path, now[path], text, context=draw(st.integers(0, 3)))
            step |= {"kind": "edit", "files": [{"path": path, "diff": diff}]}
            now[path] = text
        else:
            continue
        steps.append(step)
        states.append(dict(now))
    return before, steps, states


def has_steps(work: tuple[Files, list[dict[str, Any]], list[Files]]) -> bool:
    return bool(work[1])


def written(root: Path, files: Files) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())


def read(root: Path) -> Files:
    return {
        path.relative_to(root).as_posix(): path.read_bytes().decode()
        for path in root.rglob("*")
        if path.is_file()
    }


async def checked(root: Path, work: tuple[Files, list[dict[str, Any]], list[Files]], crash_at: int) -> None:
    before, steps, states = work
    written(root, before)
    start = tree(root)
    stage = Stage(root, *steps)
    heard = 0

    def hook(_: str) -> None:
        nonlocal heard
        heard += 1
        if heard == crash_at:
            raise Crash

    doing = await stage.begin(hook=hook)
    assert tree(root) == start, "to validate a plan touches nothing"
    shown = await preview(stage.plan, root)
    assert [(one.step_id, one.note) for one in shown] == [(step["id"], "") for step in steps]
    with suppress(Crash):
        await all_done(doing, stage.plan)
    recovered = await stage.again()
    assert (await recovered.undo_open()).conflicts == ()
    assert read(root) == states[len(recovered.done)]
    assert not await recovered.drift()
    await all_done_from(recovered, stage)
    assert read(root) == states[-1]
    assert (await recovered.undo_plan()).conflicts == ()
    assert tree(root) == start


async def all_done_from(work: Any, stage: Stage) -> None:
    for step in stage.plan.steps:
        if step.id not in work.done:
            await work.perform(step)


@settings(max_examples=examples(25, 400))
@given(work=works().filter(has_steps), crash_at=st.integers(1, 60))
def test_a_plan_does_what_was_rehearsed_survives_a_crash_anywhere_and_leaves_no_trace(
    tmp_path_factory: pytest.TempPathFactory,
    work: tuple[Files, list[dict[str, Any]], list[Files]],
    crash_at: int,
) -> None:
    root = tmp_path_factory.mktemp("project")
    try:
        asyncio.run(checked(root, work, crash_at))
    finally:
        shutil.rmtree(root)


@settings(max_examples=examples(25, 400))
@given(work=works().filter(has_steps), data=st.data())
def test_any_part_of_a_plan_that_a_person_chooses_is_a_valid_plan(
    tmp_path_factory: pytest.TempPathFactory,
    work: tuple[Files, list[dict[str, Any]], list[Files]],
    data: st.DataObject,
) -> None:
    before, steps, _ = work
    root = tmp_path_factory.mktemp("project")
    try:
        written(root, before)
        stage = Stage(root, *steps)
        whole = asyncio.run(Workspace(root).validated(stage.draft, plan_id="plan-1", version=1))
        chosen = data.draw(st.lists(st.sampled_from([one["id"] for one in steps]), min_size=1, unique=True))
        draft = part(whole, selection(whole, chosen))
        derived = asyncio.run(Workspace(root).validated(draft, plan_id="plan-2", version=1))
        wanted = whole.expected([step.id for step in draft.steps])
        assert {one.path: one for one in derived.results} == {
            one.path: wanted[one.path] for one in derived.results
        }
    finally:
        shutil.rmtree(root)
