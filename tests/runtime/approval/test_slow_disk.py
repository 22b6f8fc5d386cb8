"""A file system that does not answer: no operation on a file is waited for longer than its limit (systems.md 5.2)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from orchestrator.journal.memory import MemoryJournal
from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.approval.limits import ApprovalLimits
from orchestrator.runtime.approval.workspace import ListingProgress, Workspace, preview
from tests.passing_time import pass_time
from tests.runtime.approval.stand import planted, waiting
from tests.runtime.approval.stand import project as opened
from tests.runtime.approval.work_stage import STEPS, Stage, project, refused, tree
from tests.runtime.stage import until

T = TypeVar("T")

LIMIT = 60.0
"""Seconds; more than anything takes that does not hang. They pass when it hangs."""
AT_ONCE = 0.05
"""Seconds; the limit where every file hangs."""


class Disk:
    """Hangs the thread that comes to a boundary for the first time, until it is let go."""

    def __init__(self, boundary: str) -> None:
        self._boundary = boundary
        self.answers = threading.Event()
        self.went_on = threading.Event()
        self.hung = False

    def __call__(self, name: str) -> None:
        if name == self._boundary and not self.hung:
            self.hung = True
            self.answers.wait(100)
            self.went_on.set()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return project(tmp_path / "project")


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    made = Disk(request.param)
    yield made
    made.answers.set()


async def too_slow(
    work: Coroutine[Any, Any, T], hangs: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> T:
    """Begin some work, let its limit pass once the disk hangs, and wait for its end."""
    task = asyncio.create_task(work)
    await until(lambda: hangs() or task.done())
    pass_time(monkeypatch, LIMIT)
    return await task


async def tidy(root: Path) -> None:
    """Wait until the thread that hung has taken away what it had prepared."""
    await until(lambda: not [path for path in root.rglob("*") if path.suffix == ".tmp"])


@pytest.mark.parametrize("step", ["1", "2"])
@pytest.mark.parametrize("disk", ["written", "renamed"], indirect=True)
async def test_a_write_that_hangs_fails_its_step_which_is_taken_back_and_stays_so(
    root: Path, step: str, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(root)
    stage = Stage(root, STEPS[int(step) - 1])
    work = await stage.begin(hook=disk, seconds=LIMIT)
    error = await too_slow(refused(work, stage.plan, step), lambda: disk.hung, monkeypatch)
    assert (error.code, error.retryable, work.done) == ("FS-012", False, ())
    assert "does not answer" in str(error)
    disk.answers.set()
    assert await asyncio.to_thread(disk.went_on.wait, 60)
    await tidy(root)
    assert tree(root) == before
    assert not await work.drift()


@pytest.mark.parametrize("disk", ["written"], indirect=True)
async def test_an_undo_that_hangs_says_so_and_can_be_asked_for_again(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(root)
    stage = Stage(root, STEPS[1])
    work = await stage.begin()
    await work.perform(stage.plan.steps[0])
    work = await stage.again(hook=disk, seconds=LIMIT)
    with pytest.raises(ApprovalError, match="FS-012: step 2: 'a\\.py' is on a file system"):
        await too_slow(work.undo_plan(), lambda: disk.hung, monkeypatch)
    disk.answers.set()
    assert (await work.undo_plan()).conflicts == ()
    await tidy(root)
    assert tree(root) == before


async def test_looking_at_a_project_that_does_not_answer_is_given_up(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(root, STEPS[1])
    work = await stage.begin(seconds=AT_ONCE)
    answers, opening = threading.Event(), os.open
    monkeypatch.setattr(os, "open", lambda *args, **more: answers.wait(30) and opening(*args, **more))
    try:
        assert (await refused(work, stage.plan, "2")).code == "FS-012"
        with pytest.raises(ApprovalError, match="FS-012"):
            await Workspace(root, seconds=AT_ONCE).validated(stage.draft, plan_id="plan-2", version=1)
        with pytest.raises(ApprovalError, match="FS-012"):
            await preview(stage.plan, root, seconds=AT_ONCE)
    finally:
        answers.set()


@pytest.mark.parametrize("disk", ["verified"], indirect=True)
async def test_a_plan_on_such_a_disk_ends_in_failed_with_every_file_as_it_was(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = planted(tmp_path / "project")
    before = tree(root)
    options = {"journal": MemoryJournal(), "limits": ApprovalLimits(file_seconds=LIMIT)}
    async with opened(root, hook=disk, **options) as approval:
        await waiting(approval)
        status = await too_slow(approval.approve(), lambda: disk.hung, monkeypatch)
        assert (status.state, status.error["code"], status.error["step"]) == ("Failed", "FS-012", "1")
        disk.answers.set()
        assert await asyncio.to_thread(disk.went_on.wait, 60)
    await tidy(root)
    assert {name: what for name, what in tree(root).items() if not name.startswith(".orchestrator")} == before


class Lists:
    """Holds a thread wherever the project's `stuck.py` is read, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        self.read: list[str] = []
        opening = os.open

        def hung(path: Any, *args: Any, **named: Any) -> int:
            self.read.append(str(path))
            if path == "stuck.py":
                self.answers.wait(100)
            return opening(path, *args, **named)

        monkeypatch.setattr(os, "open", hung)

    def hang(self) -> bool:
        """Tell whether a thread is held."""
        return "stuck.py" in self.read


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lists]:
    made = Lists(monkeypatch)
    yield made
    made.answers.set()


async def test_a_file_that_is_too_slow_to_be_listed_is_named_and_nothing_after_it_is_read(
    root: Path, lists: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "stuck.py").write_text("x = 1\n")
    (root / "zz.py").write_text("z = 1\n")
    with pytest.raises(ApprovalError, match=r"FS-012: 'stuck\.py' is on a file system that does not answer"):
        await too_slow(Workspace(root, index_seconds=LIMIT).tree(), lists.hang, monkeypatch)
    lists.answers.set()
    await until(lambda: not any(one.name == "file" for one in threading.enumerate()))
    assert "a.py" in lists.read
    assert "zz.py" not in lists.read, "nobody waits for the rest"
    assert "zz.py" in [one.path for one in await Workspace(root).tree()]


def test_the_limit_of_a_listing_begins_anew_with_each_file() -> None:
    progress = ListingProgress()
    progress.turns_to("a.py")
    path, since = progress.at
    while time.monotonic() <= since:
        pass
    progress.turns_to("b.py")
    assert (path, progress.at[0]) == ("a.py", "b.py")
    assert progress.at[1] > since


async def test_a_project_that_cannot_be_listed_is_not_planned_for_and_that_is_said(
    tmp_path: Path, lists: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = planted(tmp_path / "project")
    (root / "stuck.py").write_text("x = 1\n")
    before = tree(root)
    options = {"journal": MemoryJournal(), "limits": ApprovalLimits(index_seconds=LIMIT)}
    async with opened(root, **options) as approval:
        status = await too_slow(approval.run("Please tidy up."), lists.hang, monkeypatch)
        assert (status.state, status.error["code"]) == ("Failed", "FS-012")
        assert "'stuck.py'" in status.error["message"]
    assert {name: what for name, what in tree(root).items() if not name.startswith(".orchestrator")} == before


ENDS = """
import asyncio, os, sys, threading
from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.runtime.approval.workspace import Workspace

opening = os.open
os.open = lambda path, *args, **named: (
    threading.Event().wait() if path == "a.py" else opening(path, *args, **named)
)

async def main():
    ground = Workspace(sys.argv[1], None, 0.05, 0.05)
    for look in (ground.found("a.py"), ground.tree()):
        try:
            await look
        except ApprovalError as fault:
            print(fault.code)

asyncio.run(main())
"""


def test_a_disk_that_never_answers_does_not_keep_the_process(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(root)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["FS-012", "FS-012"], "")


def test_the_limits_are_those_of_the_knowledge_base() -> None:
    assert (ApprovalLimits().file_seconds, ApprovalLimits().index_seconds) == (30.0, 5.0)
