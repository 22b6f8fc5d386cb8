"""The rollback stack: what it records, what it undoes, what it keeps, what it refuses, and whom it obeys."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Fenced
from orchestrator.files import atomic as files
from orchestrator.files.path_safety import FileRefused
from orchestrator.files.rollback import (
    Change,
    ChangeKind,
    Conflict,
    ExternalEdit,
    RollbackStack,
    UndoOutcome,
    judge,
    plan_undo,
)
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Draft, Journal, Lease

RUN = "run"
BODY = {"graph": "approval", "fingerprint": "f", "at": 0.0}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tree(root: Path) -> dict[str, object]:
    """Everything below a folder: kind, mode, content."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        target = str(path.readlink()) if path.is_symlink() else ""
        found[str(path.relative_to(root))] = (status.st_mode, content, target)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "ünï.py").write_bytes(b"print(1)\n")
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o750)
    (root / "empty").write_bytes(b"")
    (root / "locked").write_bytes(b"read-only")
    (root / "locked").chmod(0o444)
    return root


@asynccontextmanager
async def begun(root: Path, hook: Callable[[str], None] = lambda _: None) -> AsyncIterator[RollbackStack]:
    journal = MemoryJournal()
    yield RollbackStack(journal, await journal.create(RUN, "me", BODY), root, hook=hook)


def store(stack: RollbackStack) -> Journal:
    return stack._journal


async def taken_over(stack: RollbackStack, root: Path) -> RollbackStack:
    """The stack of the next owner."""
    lease = await store(stack).claim(RUN, "next", steal=True)
    return RollbackStack.recover(await store(stack).load(RUN), store(stack), lease, root)


async def told(stack: RollbackStack) -> list[tuple[str, dict[str, Any]]]:
    return [(record.kind, dict(record.body)) for record in (await store(stack).load(RUN))[1:]]


async def edited_everywhere(stack: RollbackStack) -> None:
    await stack.create("docs/ä/new.md", b"new", step="1")
    await stack.create("docs/tool", b"#!/bin/sh\n", step="1", mode=0o755)
    await stack.edit("src/ünï.py", b"print(2)\n" * 200_000, step="2")
    await stack.edit("empty", b"no more", step="2")
    await stack.edit("run.sh", b"", step="3")
    await stack.edit("src/ünï.py", b"print(3)\n", step="3")
    await stack.delete("run.sh", step="4")
    await stack.create("run.sh", b"other", step="4")
    await stack.delete("locked", step="5")
    await stack.delete("docs/ä/new.md", step="5")


# ---- there and back ----


async def test_every_kind_of_change_undone_leaves_the_tree_as_it_was(root: Path) -> None:
    before = tree(root)
    async with begun(root) as stack:
        await edited_everywhere(stack)
        assert tree(root) != before
        undone = await stack.undo()
        assert [change.kind for change in undone.changes] == ["delete"] * 2 + ["create", "delete"] + [
            "edit"
        ] * 4 + ["create"] * 2
        assert undone.conflicts == ()
        assert stack.changes == ()
        assert tree(root) == before
        assert await stack.undo() == type(undone)((), ())


async def test_an_edit_keeps_the_mode_and_a_create_has_the_one_asked_for(root: Path) -> None:
    async with begun(root) as stack:
        await stack.edit("locked", b"new")
        await stack.edit("run.sh", b"new")
        await stack.create("tool", b"", mode=0o700)
    assert [stat.S_IMODE((root / name).stat().st_mode) for name in ("locked", "run.sh", "tool")] == [
        0o444,
        0o750,
        0o700,
    ]


async def test_a_large_file_is_restored_from_the_sqlite_store_after_a_reopen(
    root: Path, tmp_path: Path
) -> None:
    content = os.urandom(3 << 20)
    (root / "large").write_bytes(content)
    before = tree(root)
    journal = SqliteJournal(tmp_path / "journal.db")
    stack = RollbackStack(journal, await journal.create(RUN, "me", BODY), root)
    await stack.edit("large", b"small")
    await stack.delete("large")
    await journal.close()
    journal = SqliteJournal(tmp_path / "journal.db")
    lease = await journal.claim(RUN, "next", steal=True)
    stack = RollbackStack.recover(await journal.load(RUN), journal, lease, root)
    assert not (await stack.undo()).conflicts
    assert tree(root) == before
    await journal.close()


async def test_the_steps_of_a_plan_are_undone_one_by_one_from_the_last(root: Path) -> None:
    async with begun(root) as stack:
        states = {"0": tree(root)}
        for step in "12345":
            await stack.edit("empty", step.encode(), step=step)
            await stack.create(f"made/{step}/x", b"", step=step)
            states[step] = tree(root)
        for step in "54321":
            assert tree(root) == states[step]
            assert len((await stack.undo(step=step)).changes) == 2
        assert tree(root) == states["0"]


async def test_a_step_hidden_by_a_later_one_is_not_undone_alone(root: Path) -> None:
    async with begun(root) as stack:
        await stack.edit("empty", b"1", step="1")
        await stack.edit("empty", b"2", step="2")
        with pytest.raises(FileRefused, match="changed again in step '2'"):
            await stack.undo(step="1")
        assert (root / "empty").read_bytes() == b"2"


async def test_folders_go_only_when_they_were_made_here_and_are_empty(root: Path) -> None:
    (root / "mine").mkdir()
    async with begun(root) as stack:
        await stack.create("mine/a", b"")
        await stack.create("ours/b/c", b"")
        (root / "ours" / "guest").write_bytes(b"guest")
        await stack.undo()
    assert tree(root).keys() >= {"mine", "ours", "ours/guest"}
    assert not (root / "ours" / "b").exists()


async def test_a_folder_that_somebody_else_made_after_the_intent_stays(root: Path) -> None:
    def interfere(step: str) -> None:
        if step == "intent":
            (root / "made").mkdir(exist_ok=True)

    async with begun(root, interfere) as stack:
        change = await stack.create("made/here/x", b"")
        assert change.folders == ("made/here",)
        await stack.undo()
    assert (root / "made").is_dir()
    assert not (root / "made" / "here").exists()


async def test_a_folder_removed_from_outside_comes_back_with_a_deleted_file(root: Path) -> None:
    before = tree(root)
    async with begun(root) as stack:
        await stack.delete("src/ünï.py")
        (root / "src").rmdir()
        assert not (await stack.undo()).conflicts
    assert tree(root) == before


# ---- what is recorded ----


async def test_the_bodies_are_these_and_the_same_every_time(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    bodies = []
    for folder in (root, tmp_path / "copy"):
        async with begun(folder) as stack:
            await stack.create("a/b", b"x", step="1", mode=0o600)
            await stack.edit("run.sh", b"y", step="2")
            await stack.delete("run.sh", step="2")
            await stack.undo(step="2")
            bodies.append(json.dumps(await told(stack)))
    assert bodies[0] == bodies[1]
    create, done, edit, edited, delete, deleted, *back = json.loads(bodies[0])
    status = root.stat()
    ours = {"owner": [status.st_uid, status.st_gid]}
    x, y, old = digest(b"x"), digest(b"y"), digest(b"#!/bin/sh\n")
    intent: dict[str, Any] = {
        "effect": "file",
        "key": "file-0",
        "step": "1",
        "change": "create",
        "path": "a/b",
    }
    nobodys = {"before": None, "after": x, "mode": 0o600, "owner": None, "folders": ["a"]}
    assert create == ["intent", intent | nobodys]
    assert done == ["done", {"effect": "file", "key": "file-0", "after": x, "folders": ["a"]}]
    intent |= {"key": "file-1", "step": "2", "change": "edit", "path": "run.sh"}
    assert edit == ["intent", intent | ours | {"before": old, "after": y, "mode": 0o750, "folders": []}]
    assert edited == ["done", {"effect": "file", "key": "file-1", "after": y, "folders": []}]
    intent |= {"key": "file-2", "change": "delete"}
    assert delete == ["intent", intent | ours | {"before": y, "after": None, "mode": 0o750, "folders": []}]
    assert deleted == ["done", {"effect": "file", "key": "file-2", "after": None, "folders": []}]
    assert back == [
        ["rolled_back", {"effect": "file", "key": "file-2", "outcome": "restored"}],
        ["rolled_back", {"effect": "file", "key": "file-1", "outcome": "restored"}],
    ]


async def test_the_prior_content_is_in_the_journal_before_the_file_is_touched(root: Path) -> None:
    before = tree(root)
    seen = []

    def look(step: str) -> None:
        if step == "intent":
            seen.append(tree(root) == before)

    async with begun(root, look) as stack:
        await stack.edit("run.sh", b"")
        assert seen == [True]
        assert await store(stack).blob(digest(b"#!/bin/sh\n")) == b"#!/bin/sh\n"


async def test_the_plan_is_what_the_records_say_whoever_wrote_others_between(root: Path) -> None:
    async with begun(root) as stack:
        await stack.edit("run.sh", b"", step="1")
        other = {"effect": "tool", "key": "file-0"}
        store(stack).append(
            stack._lease, [Draft("intent", other), Draft("rolled_back", other), Draft("note", {})]
        )
        await stack.edit("empty", b"1", step="2")
        await stack.create("new", b"1", step="2")
        await stack.undo(step="2")
        records = await store(stack).load(RUN)
        assert plan_undo(records) == list(stack.changes)
        assert [change.key for change in plan_undo(records[:-1])] == ["file-1", "file-0"]
        assert plan_undo(records, step="2") == []
        again = await taken_over(stack, root)
        assert again.changes == stack.changes
        assert (await again.create("new", b"2")).key == "file-3"


@pytest.mark.parametrize(
    ("before", "after", "found", "outcome"),
    [
        ("1", "2", "2", UndoOutcome.RESTORED),
        ("1", "2", "1", UndoOutcome.ALREADY),
        ("1", "2", "3", UndoOutcome.KEPT),
        ("1", "2", None, UndoOutcome.KEPT),
        ("1", "2", "directory", UndoOutcome.KEPT),
        ("1", "1", "1", UndoOutcome.ALREADY),
        (None, "2", "2", UndoOutcome.RESTORED),
        (None, "2", None, UndoOutcome.ALREADY),
        ("1", None, None, UndoOutcome.RESTORED),
        ("1", None, "symlink", UndoOutcome.KEPT),
    ],
)
@pytest.mark.parametrize("done", [True, False])
def test_an_undo_is_judged_by_what_is_found(
    before: str | None, after: str | None, found: str | None, outcome: UndoOutcome, done: bool
) -> None:
    change = Change(
        key="k", step="s", kind=ChangeKind.EDIT, path="p", before=before, after=after, mode=None, done=done
    )
    assert judge(change, found) is outcome


# ---- edits from outside ----


def overwrite(path: Path) -> None:
    path.write_bytes(b"from outside")


def remove(path: Path) -> None:
    path.unlink()


def make_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "inner").write_bytes(b"from outside")


def make_symlink(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("empty")


@pytest.mark.parametrize("edit", [overwrite, remove, make_directory, make_symlink])
@pytest.mark.parametrize("name", ["new", "run.sh", "locked"])
async def test_what_others_made_of_a_file_is_kept_and_reported_and_the_rest_undone(
    root: Path, name: str, edit: Callable[[Path], None]
) -> None:
    before = tree(root)
    async with begun(root) as stack:
        await stack.edit("src/ünï.py", b"1")
        await stack.create("new", b"1")
        await stack.edit("run.sh", b"1")
        await stack.edit("run.sh", b"2")
        await stack.delete("locked")
        await stack.edit("empty", b"1")
        if edit is remove and name == "locked":
            return  # it is gone already
        edit(root / name)
        theirs = {path: what for path, what in tree(root).items() if path.split("/")[0] == name}
        undone = await stack.undo()
        if edit is remove and name == "new":
            assert not undone.conflicts
        else:
            (conflict,) = undone.conflicts
            assert conflict.path == name
            assert f"{name!r} was changed from outside" in str(conflict)
            assert {change.path for change in stack.changes} == {name}
        assert tree(root) == {path: what for path, what in before.items() if path != name} | theirs
        assert (await stack.undo()).conflicts == undone.conflicts
        await stack.keep(name)
        assert stack.changes == ()
        assert tree(root) == {path: what for path, what in before.items() if path != name} | theirs


async def test_an_older_state_of_ours_put_back_by_hand_is_not_undone_any_further(root: Path) -> None:
    async with begun(root) as stack:
        for content in (b"1", b"2", b"3"):
            await stack.edit("empty", content)
        (root / "empty").write_bytes(b"1")
        (conflict,) = (await stack.undo()).conflicts
        assert conflict == Conflict(
            path="empty", expected=digest(b"3"), found=digest(b"1"), key="file-2", step=""
        )
        assert (root / "empty").read_bytes() == b"1"


async def test_prior_content_put_back_by_hand_is_as_good_as_an_undo(root: Path) -> None:
    before = tree(root)
    async with begun(root) as stack:
        await stack.edit("run.sh", b"1")
        (root / "run.sh").write_bytes(b"#!/bin/sh\n")
        assert not (await stack.undo()).conflicts
        assert (await told(stack))[-1][1]["outcome"] == "already"
    assert tree(root) == before


async def test_a_folder_replaced_by_a_file_or_symlink_makes_its_files_conflicts(root: Path) -> None:
    async with begun(root) as stack:
        await stack.delete("src/ünï.py")
        await stack.create("made/x", b"1")
        (root / "src").rmdir()
        (root / "src").write_bytes(b"theirs")
        (root / "made").rename(root / "moved")
        (root / "made").symlink_to("moved")
        undone = await stack.undo()
        assert [(conflict.path, conflict.found) for conflict in undone.conflicts] == [
            ("made/x", "unreachable"),
            ("src/ünï.py", "unreachable"),
        ]
    assert (root / "src").read_bytes() == b"theirs"
    assert (root / "moved" / "x").read_bytes() == b"1"


async def test_drift_names_each_file_that_is_not_as_we_left_it(root: Path) -> None:
    async with begun(root) as stack:
        await stack.edit("empty", b"1")
        await stack.edit("empty", b"2")
        await stack.create("new", b"1")
        await stack.delete("locked")
        assert await stack.drift() == ()
        (root / "empty").write_bytes(b"1")
        (root / "locked").write_bytes(b"back")
        drift = await stack.drift()
        assert [(conflict.path, conflict.expected, conflict.found) for conflict in drift] == [
            ("empty", digest(b"2"), digest(b"1")),
            ("locked", None, digest(b"back")),
        ]


async def test_the_last_change_must_stand_before_the_next_is_made(root: Path) -> None:
    async with begun(root) as stack:
        await stack.edit("empty", b"1")
        (root / "empty").write_bytes(b"theirs")
        records = await told(stack)
        with pytest.raises(ExternalEdit) as error:
            await stack.edit("run.sh", b"1")
        assert error.value.conflict.path == "empty"
        assert await told(stack) == records
        await stack.keep("empty")
        await stack.edit("run.sh", b"1")


async def test_an_edit_from_outside_after_the_intent_is_kept_and_the_change_is_off_the_stack(
    root: Path,
) -> None:
    def interfere(step: str) -> None:
        if step == "owned" and (root / "run.sh").read_bytes() != b"theirs":
            (root / "run.sh").write_bytes(b"theirs")

    for change in ("edit", "delete"):
        async with begun(root, interfere) as stack:
            with pytest.raises(ExternalEdit):
                await (stack.edit("run.sh", b"1") if change == "edit" else stack.delete("run.sh"))
            assert stack.changes == ()
            assert [kind for kind, _ in await told(stack)] == ["intent", "rolled_back"]
        assert (root / "run.sh").read_bytes() == b"theirs"
        (root / "run.sh").write_bytes(b"mine")
    assert not list(root.glob(".*"))


async def test_a_file_that_comes_between_check_and_create_is_kept(root: Path) -> None:
    def interfere(step: str) -> None:
        if step == "verified":
            (root / "made" / "x").write_bytes(b"theirs")

    async with begun(root, interfere) as stack:
        with pytest.raises(ExternalEdit):
            await stack.create("made/x", b"1")
    assert tree(root)["made/x"] == (0o100644, b"theirs", "")


# ---- what is refused ----


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda stack: stack.create("../x", b""), "leads out"),
        (lambda stack: stack.edit("/etc/passwd", b""), "leads out"),
        (lambda stack: stack.delete("src/../../x"), "leads out"),
        (lambda stack: stack.create("link/x", b""), "unreachable"),
        (lambda stack: stack.edit("outside/x", b""), "unreachable"),
        (lambda stack: stack.edit("symlink", b""), "symlink"),
        (lambda stack: stack.delete("symlink"), "symlink"),
        (lambda stack: stack.create("symlink", b""), "symlink"),
        (lambda stack: stack.create("src", b""), "directory"),
        (lambda stack: stack.delete("src"), "directory"),
        (lambda stack: stack.edit("fifo", b""), "special"),
        (lambda stack: stack.create("run.sh/x", b""), "unreachable"),
        (lambda stack: stack.create("empty", b""), "changed from outside"),
        (lambda stack: stack.edit("none", b""), "does not exist: nothing to edit"),
        (lambda stack: stack.delete("no/ne"), "does not exist: nothing to delete"),
        (lambda stack: stack.edit("empty", b"", expected="0" * 64), "changed from outside"),
        (lambda stack: stack.delete("none", expected="0" * 64), "changed from outside"),
    ],
)
async def test_a_change_that_cannot_be_made_is_refused_with_nothing_touched_nor_recorded(
    root: Path, tmp_path: Path, change: Callable[[RollbackStack], Awaitable[Any]], why: str
) -> None:
    (tmp_path / "x").write_bytes(b"outside")
    (root / "outside").symlink_to(tmp_path)
    (root / "link").symlink_to("src")
    (root / "symlink").symlink_to("run.sh")
    os.mkfifo(root / "fifo")
    before = tree(root)
    async with begun(root) as stack:
        with pytest.raises(FileRefused, match=why) as error:
            await change(stack)
        assert "\n" not in str(error.value)
        assert await told(stack) == []
    assert tree(root) == before
    assert (tmp_path / "x").read_bytes() == b"outside"


async def test_one_spelling_of_a_path_is_recorded_and_a_symlinked_root_is_fine(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "alias").symlink_to(root)
    async with begun(tmp_path / "alias") as stack:
        assert (await stack.edit("./src//ünï.py", b"")).path == "src/ünï.py"
        await stack.keep("src/./ünï.py")
        assert stack.changes == ()


# ---- errors, cancellation, owners ----


async def test_an_error_of_the_file_system_takes_the_change_back_and_is_raised(root: Path) -> None:
    before = tree(root)
    for at in ("folder made", "written", "owned", "renamed", "folder synced"):
        failed: list[str] = []

        def fail(step: str, at: str = at, failed: list[str] = failed) -> None:
            if step == at and not failed:
                failed.append(step)
                raise OSError(28, "No space left on device")

        async with begun(root, fail) as stack:
            with pytest.raises(OSError, match="No space left"):
                await stack.create("a/b/c", b"1")
            assert stack.changes == ()
            assert [kind for kind, _ in await told(stack)] == ["intent", "rolled_back"]
            await stack.create("a/b/c", b"1")
            await stack.undo()
        assert tree(root) == before


async def test_while_a_change_is_in_doubt_no_other_is_made(root: Path) -> None:
    async with begun(root) as stack:
        await stack.edit("empty", b"1")
        records = [record for record in await store(stack).load(RUN) if record.kind != "done"]
        doubtful = RollbackStack.recover(records, store(stack), stack._lease, root)
        with pytest.raises(FileRefused, match="in doubt"):
            await doubtful.edit("run.sh", b"1")
        assert await doubtful.drift() == ()
        await doubtful.undo()
        await doubtful.edit("run.sh", b"1")


async def test_a_cancelled_change_is_made_to_its_end_before_the_cancellation_is_raised(root: Path) -> None:
    before = tree(root)
    steps: list[str] = []
    for at in range(100):
        loop = asyncio.get_running_loop()
        steps.clear()
        tasks: list[asyncio.Task[Any]] = []

        def cancel(step: str, at: int = at, loop: Any = loop, tasks: list[asyncio.Task[Any]] = tasks) -> None:
            steps.append(step)
            if len(steps) == at + 1:
                loop.call_soon_threadsafe(tasks[0].cancel)

        async with begun(root, cancel) as stack:

            async def work(stack: RollbackStack = stack) -> None:
                await stack.create("a/b", b"1")
                await asyncio.sleep(0)
                await stack.undo()

            tasks.append(asyncio.create_task(work()))
            await asyncio.wait(tasks)
            changed = [change.done for change in stack.changes]
            assert changed in ([], [True])
            assert tree(root) == before or changed == [True]
            assert plan_undo(await store(stack).load(RUN)) == list(stack.changes)
            if not tasks[0].cancelled():
                break
            await stack.undo()
            assert tree(root) == before
    assert len(steps) == at > 15


async def test_changes_asked_for_at_once_are_made_one_after_the_other(root: Path) -> None:
    before = tree(root)
    async with begun(root) as stack:
        await asyncio.gather(*(stack.create(f"d/{number}", b"") for number in range(20)))
        kinds = [kind for kind, _ in await told(stack)]
        assert kinds == ["intent", "done"] * 20
        await stack.undo()
    assert tree(root) == before


def in_another_thread(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    thread.join()


CHANGES: dict[str, Callable[[RollbackStack], Awaitable[Any]]] = {
    "create": lambda stack: stack.create("made/here/x", b"zombie"),
    "edit": lambda stack: stack.edit("run.sh", b"zombie"),
    "delete": lambda stack: stack.delete("run.sh"),
    "undo": lambda stack: stack.undo(),
}


class Takeover:
    """A next owner that takes the run over while the old one is frozen at one of its steps."""

    def __init__(self, root: Path, at: int, *, goes_on: bool) -> None:
        self.root = root
        self.at = at
        self.goes_on = goes_on
        self.pristine = tree(root)
        self.steps: list[str] = []
        self.left: dict[str, object] = {}

    def watch(self, stack: RollbackStack) -> None:
        self.stack = stack
        stack._hook = stack._files._hook = self.hook

    def hook(self, step: str) -> None:
        self.steps.append(step)
        if len(self.steps) == self.at:
            in_another_thread(self.happen)

    async def happen(self) -> None:
        successor = await taken_over(self.stack, self.root)
        assert not (await successor.undo()).conflicts
        assert tree(self.root) == self.pristine
        if self.goes_on:
            await successor.create("made/here/x", b"next")
            await successor.edit("run.sh", b"next")
            await successor.edit("empty", b"next")
        self.left = tree(self.root)


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("name", CHANGES)
async def test_an_owner_that_wakes_up_at_any_point_after_it_lost_the_run_changes_nothing(
    root: Path, name: str, goes_on: bool
) -> None:
    for at in range(1, 60):
        takeover = Takeover(root, at, goes_on=goes_on)
        async with begun(root) as stack:
            if name == "undo":
                await stack.create("made/here/x", b"1")
                await stack.delete("run.sh")
            takeover.watch(stack)
            fenced = False
            try:
                await CHANGES[name](stack)
            except Fenced:
                fenced = True
            if not takeover.left:
                break
            # Its very last append may have been durable before it lost the run.
            assert fenced or takeover.steps[-1] in {"done", "rolled_back"}
            assert tree(root) == takeover.left
            await (await taken_over(stack, root)).undo()
            assert tree(root) == takeover.pristine
    assert len(takeover.steps) == at - 1 >= 6


async def test_a_lease_that_is_out_of_date_touches_nothing_at_all(root: Path) -> None:
    before = tree(root)
    async with begun(root) as stack:
        await stack.edit("empty", b"1")
        await taken_over(stack, root)
        files.stage(root / "empty", b"in flight")  # by the next owner
        during = tree(root)
        for change in CHANGES.values():
            with pytest.raises(Fenced):
                await change(stack)
        assert tree(root) == during
        await (await taken_over(stack, root)).undo()
    assert tree(root) == before


async def test_a_prior_content_that_is_not_what_was_stored_is_never_written(root: Path) -> None:
    async with begun(root) as stack:
        await stack.edit("run.sh", b"1")
        lease = Lease(RUN, "me", 1, stack._lease.seq, stack._lease.head)
        empty = MemoryJournal()
        await empty.create(RUN, "me", BODY)
        other = RollbackStack.recover(await store(stack).load(RUN), empty, lease, root)
        with pytest.raises(Exception, match=digest(b"#!/bin/sh\n")[:8]):
            await other.undo()
    assert (root / "run.sh").read_bytes() == b"1"
