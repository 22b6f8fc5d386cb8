"""Steps on a real folder: each kind of file step, wholly done or wholly taken back, also after a crash."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.machines.approval import patch
from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator.runtime.approval.plan_executor import StepWork, completed
from orchestrator.runtime.approval.workspace import Workspace
from tests.runtime.approval.work_stage import EDIT, STEPS, Crash, Stage, all_done, project, refused, tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


async def test_steps_create_edit_and_delete_and_each_is_complete_when_its_record_is(root: Path) -> None:
    stage = Stage(root, *STEPS)
    work = await stage.begin()
    await all_done(work, stage.plan)
    assert (root / "new/deep/n.py").read_text() == "n = 2\n"
    assert (root / "a.py").read_text() == "one = 1\ntwo = 3\n"
    assert stat.S_IMODE((root / "a.py").stat().st_mode) == 0o640
    assert not (root / "old.txt").exists()
    assert work.done == ("1", "2", "3", "4") == completed(await stage.journal.load("run"), stage.plan)
    assert not await work.drift()
    last = (await stage.bodies())[-1]
    after = {"new/deep/n.py": stage.plan.expected(work.done)["new/deep/n.py"].sha256}
    assert last == ("done", {"effect": "step", "step": "plan-1.1/4", "after": after})


async def test_undo_of_a_plan_leaves_every_byte_and_mode_as_it_was(root: Path) -> None:
    before = tree(root)
    stage = Stage(root, *STEPS)
    work = await stage.begin()
    await all_done(work, stage.plan)
    undone = await work.undo_plan()
    assert (len(undone.changes), undone.conflicts) == (4, ())
    assert tree(root) == before
    assert work.done == () == completed(await stage.journal.load("run"), stage.plan)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
async def test_line_ends_and_byte_order_mark_of_a_file_stay(root: Path, ending: str, mark: str) -> None:
    (root / "w.txt").write_bytes(f"{mark}one{ending}two".encode())
    diff = f"@@ -1,2 +1,2 @@\n one{ending}-two\n\\ No newline at end of file\n+three\n\\ No newline at end of file\n"
    stage = Stage(root, {"id": "1", "kind": "edit", "files": [{"path": "w.txt", "diff": diff}]})
    await all_done(await stage.begin(), stage.plan)
    assert (root / "w.txt").read_bytes() == f"{mark}one{ending}three".encode()


FILES = {
    "script.sh": (b"#!/bin/sh\ntwo\n", 0o755),
    "private": (b"two\n", 0o600),
    "read-only": (b"two\n", 0o444),
    "empty": (b"", 0o664),
    "not ended": (b"one\ntwo", 0o644),
    "windows": (b"one\r\ntwo\r\n", 0o644),
    "sticky": (b"two\n", 0o1644),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["edit", "delete"])
async def test_every_kind_of_file_comes_back_with_its_bytes_and_mode(
    root: Path, name: str, kind: str
) -> None:
    content, mode = FILES[name]
    (root / "src" / name).write_bytes(content)
    (root / "src" / name).chmod(mode)
    before = tree(root)
    file = {"path": f"src/{name}"}
    if kind == "edit":
        file["diff"] = patch.make(f"src/{name}", content.decode(), content.decode() + "more\n")
    stage = Stage(root, {"id": "1", "kind": kind, "files": [file]})
    work = await stage.begin()
    await all_done(work, stage.plan)
    if kind == "edit":
        assert tree(root)[f"src/{name}"] == (before[f"src/{name}"][0], content + b"more\n")
    else:
        assert not (root / "src" / name).exists()
    work = await stage.again()
    assert (await work.undo_plan()).conflicts == ()
    assert tree(root) == before


@pytest.mark.parametrize("kind", ["edit", "delete"])
@pytest.mark.parametrize("when", ["after the plan", "after the step"])
async def test_a_mode_that_somebody_else_sets_is_no_drift_and_is_kept_like_any_edit(
    root: Path, kind: str, when: str
) -> None:
    file = {"path": "a.py"} | ({"diff": EDIT} if kind == "edit" else {})
    stage = Stage(root, {"id": "1", "kind": kind, "files": [file]})
    work = await stage.begin()
    before = (root / "a.py").read_bytes()
    if when == "after the plan":
        (root / "a.py").chmod(0o755)
        assert not await work.drift()
    await all_done(work, stage.plan)
    if when == "after the step" and kind == "edit":
        (root / "a.py").chmod(0o755)
        assert not await work.drift()
    assert (await work.undo_plan()).conflicts == ()
    kept = when == "after the plan" or kind == "edit"
    assert (root / "a.py").read_bytes() == before
    assert stat.S_IMODE((root / "a.py").stat().st_mode) == (0o755 if kept else 0o640)


@pytest.mark.parametrize("bits", [0o4755, 0o2755])
async def test_a_file_with_the_rights_of_its_owner_is_changed_by_no_plan_and_by_no_step(
    root: Path, bits: int
) -> None:
    stage = Stage(root, STEPS[1])
    work = await stage.begin()
    (root / "a.py").chmod(bits)
    before = tree(root)
    assert (await refused(work, stage.plan, "2")).code == "SEC-013"
    with pytest.raises(ApprovalError, match="SEC-013"):
        await Workspace(root).validated(stage.draft, plan_id="plan-2", version=1)
    assert tree(root) == before


async def test_a_step_that_fails_at_its_second_file_takes_the_first_one_back(root: Path) -> None:
    files = [
        {"path": path, "diff": diff}
        for path, diff in (("a.py", EDIT), ("src/b.py", "@@ -1 +1 @@\n-b = 1\n+b = 2\n"))
    ]
    stage = Stage(root, {"id": "1", "kind": "edit", "files": files})
    work = await stage.begin()
    (root / "src" / "b.py").write_text("b = 7\n")
    before = tree(root)
    error = await refused(work, stage.plan, "1")
    assert (error.code, error.fault.path, error.fault.step) == ("FS-006", "src/b.py", "1")
    assert tree(root) == before
    assert work.done == ()


async def test_a_step_of_another_plan_is_not_done(root: Path) -> None:
    stage = Stage(root, *STEPS)
    work = await stage.begin()
    other = stage.plan.step("2").model_copy(update={"title": "another"})
    with pytest.raises(ApprovalError, match="ST-003"):
        await work.perform(other)
    assert await stage.bodies() == []


async def test_a_step_is_not_done_twice(root: Path) -> None:
    stage = Stage(root, *STEPS)
    work = await stage.begin()
    await work.perform(stage.plan.step("1"))
    assert (await refused(work, stage.plan, "1")).code == "ST-001"


async def test_steps_are_done_in_their_order_only(root: Path) -> None:
    stage = Stage(root, *STEPS)
    work = await stage.begin()
    error = await refused(work, stage.plan, "3")
    assert (error.code, error.fault.message) == ("ST-001", "step '1' comes before step '3'")
    assert await stage.bodies() == []


async def test_an_edit_from_outside_is_kept_by_an_undo_and_the_rest_put_back(root: Path) -> None:
    stage = Stage(root, *STEPS)
    work = await stage.begin()
    await all_done(work, stage.plan)
    (root / "a.py").write_text("mine\n")
    report = await work.drift()
    assert [entry.plain()["why"] for entry in report.entries] == ["was changed outside"]
    undone = await work.undo_plan()
    assert [conflict.path for conflict in undone.conflicts] == ["a.py"]
    assert (root / "a.py").read_text() == "mine\n"
    assert (root / "old.txt").read_bytes() == b"old\r\nnot ended"
    assert not (root / "new").exists()


async def test_what_a_plan_before_it_left_is_no_concern_of_a_plan(root: Path) -> None:
    stage = Stage(root, STEPS[1])
    await all_done(await stage.begin(), stage.plan)
    (root / "a.py").write_text("one = 1\ntwo = 2\n")
    second = await Workspace(root).validated(stage.draft, plan_id="plan-2", version=1)
    work = StepWork(stage.journal, stage.lease, root, second, records=await stage.journal.load("run"))
    assert work.done == ()
    await all_done(work, second)
    await work.undo_plan()
    assert (root / "a.py").read_text() == "one = 1\ntwo = 2\n"
    keys = [body["key"] for kind, body in await stage.bodies() if kind == "intent"]
    assert len(keys) == len(set(keys)) == 2


async def test_a_cancelled_step_goes_to_its_end_first(root: Path) -> None:
    stage = Stage(root, *STEPS)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    work = await stage.begin(hook=lambda _: loop.call_soon_threadsafe(begun.set))
    task = asyncio.ensure_future(work.perform(stage.plan.step("1")))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (root / "new/deep/n.py").read_text() == "n = 1\n"
    assert work.done == ("1",)


# ---- crashes ----


BOUNDARIES = 43
"""Names that a hook hears while all steps are done."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[int, bytes]]]:
    """The folder after each number of steps, as a run of the same plan without a crash leaves it."""
    root = project(tmp_path_factory.mktemp("reference") / "project")
    states = [tree(root)]

    async def carry_out() -> None:
        stage = Stage(root, *STEPS)
        await _each(await stage.begin(), stage.plan, lambda: states.append(tree(root)))

    asyncio.run(carry_out())
    return states


@pytest.mark.parametrize("number", range(BOUNDARIES))
async def test_after_a_crash_at_any_boundary_the_open_step_is_undone_and_the_others_stay(
    root: Path, reference: list[dict[str, tuple[int, bytes]]], number: int
) -> None:
    heard: list[str] = []
    loop = asyncio.get_running_loop()
    gone = loop.create_future()

    def hook(name: str) -> None:
        heard.append(name)
        if len(heard) == number + 1:
            loop.call_soon_threadsafe(gone.set_result, None)
            raise Crash(name)

    stage = Stage(root, *STEPS)
    work = await stage.begin(hook=hook)
    states = [tree(root)]
    task = asyncio.ensure_future(_each(work, stage.plan, lambda: states.append(tree(root))))
    await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    with suppress(Crash):
        await task
    assert len(heard) > number
    recovered = await stage.again()
    undone = await recovered.undo_open()
    assert undone.conflicts == ()
    assert recovered.done == completed(await stage.journal.load("run"), stage.plan)
    assert tree(root) == reference[len(recovered.done)]
    assert not await recovered.drift()
    await recovered.undo_plan()
    assert tree(root) == states[0]


async def test_an_edit_of_the_open_step_blocks_it_until_the_person_has_put_the_file_right(root: Path) -> None:
    def hook(name: str) -> None:
        if name == "folder synced":
            raise Crash

    stage = Stage(root, STEPS[1])
    before = (root / "a.py").read_bytes()
    work = await stage.begin(hook=hook)
    with suppress(Crash):
        await work.perform(stage.plan.steps[0])
    (root / "a.py").write_text("mine\n")
    recovered = await stage.again()
    assert [one.path for one in (await recovered.undo_open()).conflicts] == ["a.py"]
    assert (await refused(recovered, stage.plan, "2")).code == "ST-005"
    assert (root / "a.py").read_text() == "mine\n"
    (root / "a.py").write_bytes(before)
    await recovered.perform(stage.plan.steps[0])
    assert (root / "a.py").read_text() == "one = 1\ntwo = 3\n"
    await recovered.undo_plan()
    assert (root / "a.py").read_bytes() == before


async def _each(work: StepWork, plan: ApprovalPlan, then: Callable[[], None]) -> None:
    for step in plan.steps:
        await work.perform(step)
        then()
