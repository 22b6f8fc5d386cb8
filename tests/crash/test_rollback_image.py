"""A crash at any step of any plan, another in the recovery: everything comes back, edits from outside stay.

An image is what a kill would leave: a copy of the tree and the records durable at that step. Nothing that the
dying process still does, as its cleaning up, is in it. Real kills are in test_rollback_kill.py.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.files.path_safety import FileRefused
from orchestrator.files.rollback import ChangeKind, RollbackStack, plan_undo
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.journal import Draft, Record

pytestmark = pytest.mark.canary

RUN = "run"
BODY = {"graph": "approval", "fingerprint": "f", "at": 0.0}
PATHS = ("a", "run.sh", "ü/b", "ü/ç ñ", "n/e/w/x", "n/e/y")
CONTENTS = (b"", b"1", b"2", b"3" * 70_000)
Tree = dict[str, tuple[int, bytes]]


class Op(NamedTuple):
    kind: ChangeKind
    path: str
    content: bytes
    new_step: bool


paths = st.sampled_from(PATHS)
contents = st.sampled_from(CONTENTS)
starts = st.dictionaries(paths, st.tuples(contents, st.sampled_from((0o644, 0o755, 0o400))))
plans = st.lists(
    st.builds(Op, st.sampled_from(ChangeKind), paths, contents, st.booleans()), min_size=1, max_size=7
)
steps = st.integers(0, 90)
fewer = settings(max_examples=settings().max_examples * 2 // 5)
"""Each example is some hundred synced writes."""


def tree(root: Path) -> Tree:
    found: Tree = {}
    for path in root.rglob("*"):
        status = path.lstat()
        found[str(path.relative_to(root))] = (
            status.st_mode,
            path.read_bytes() if stat.S_ISREG(status.st_mode) else b"",
        )
    return found


def planted(root: Path, start: dict[str, tuple[bytes, int]]) -> Tree:
    (root / "n").mkdir(parents=True)
    for name, (content, mode) in start.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
    return tree(root)


@dataclass
class World:
    """A tree and a journal, and a camera that takes their image at one step."""

    root: Path
    journal: MemoryJournal
    at: int
    seen: int = 0
    image: World | None = None
    stack: RollbackStack = field(init=False)

    def hook(self, _: str) -> None:
        if self.seen == self.at:
            self.shoot()
        self.seen += 1

    def shoot(self) -> None:
        copy = self.root.with_name(f"{self.root.name}x")
        shutil.copytree(self.root, copy, symlinks=True)
        self.image = World(copy, self.journal, -1)
        self.image.seen = self.stack._lease.seq + 1

    async def begin(self) -> RollbackStack:
        lease = await self.journal.create(RUN, "first", BODY)
        self.stack = RollbackStack(self.journal, lease, self.root, hook=self.hook)
        return self.stack

    async def crash(self, at: int) -> World:
        """Go on from the image, with another camera. Where none was taken, from the end."""
        if self.image is None:
            self.shoot()
        assert self.image is not None
        records = (await self.journal.load(RUN))[: self.image.seen]
        reborn = World(self.image.root, await rebuilt(self.journal, records), at)
        lease = await reborn.journal.claim(RUN, "next", steal=True)
        reborn.stack = RollbackStack.recover(records, reborn.journal, lease, reborn.root, hook=reborn.hook)
        return reborn


async def rebuilt(journal: MemoryJournal, records: Sequence[Record]) -> MemoryJournal:
    copy = MemoryJournal()
    lease = await copy.create(RUN, "first", records[0].body)
    for record in records[1:]:
        before = record.body.get("before") if record.kind == "intent" else None
        blobs = {before: await journal.blob(before)} if before else {}
        copy.append(lease, [Draft(record.kind, record.body)], blobs)
    return copy


@contextmanager
def world(start: dict[str, tuple[bytes, int]], at: int) -> Iterator[tuple[World, Tree]]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        before = planted(root, start)
        yield World(root, MemoryJournal(), at), before


async def carried_out(stack: RollbackStack, plan: Sequence[Op], root: Path) -> dict[str, Tree]:
    """Do what can be done of a plan; return the tree as it was at the start of each step."""
    number, states = 0, {"0": tree(root)}
    for op in plan:
        if op.new_step:
            number += 1
            states[str(number)] = tree(root)
        try:
            if op.kind is ChangeKind.CREATE:
                await stack.create(op.path, op.content, step=str(number), mode=0o700)
            elif op.kind is ChangeKind.EDIT:
                await stack.edit(op.path, op.content, step=str(number))
            else:
                await stack.delete(op.path, step=str(number))
        except FileRefused:
            continue
    return states


async def check(here: World) -> None:
    """I4, I5 and I6 of a run at rest: every key ends once, and nothing of ours lies around."""
    kinds = Counter((record.body.get("key"), record.kind) for record in await here.journal.load(RUN))
    assert set(kinds.values()) == {1}
    keys = {key for key, kind in kinds if kind == "intent"}
    assert all((key, "done") in kinds or (key, "rolled_back") in kinds for key in keys)
    assert not [name for name in tree(here.root) if name.endswith(".tmp")]


@fewer
@given(start=starts, plan=plans, first=steps, second=steps)
async def test_after_two_crashes_anywhere_an_undo_brings_the_tree_back(
    start: dict[str, tuple[bytes, int]], plan: list[Op], first: int, second: int
) -> None:
    with world(start, first) as (alive, before):
        await carried_out(await alive.begin(), plan, alive.root)
        once = await alive.crash(second)
        assert not (await once.stack.undo()).conflicts
        assert tree(once.root) == before
        await check(once)
        twice = await once.crash(-1)
        assert not (await twice.stack.undo()).conflicts
        assert tree(twice.root) == before
        await check(twice)
        assert plan_undo(await twice.journal.load(RUN)) == []
        assert not (await twice.stack.undo()).changes


@fewer
@given(start=starts, plan=plans, first=steps, second=steps, rest=plans)
async def test_the_open_step_is_undone_the_others_stay_and_the_plan_can_go_on(
    start: dict[str, tuple[bytes, int]], plan: list[Op], first: int, second: int, rest: list[Op]
) -> None:
    with world(start, first) as (alive, before):
        states = await carried_out(await alive.begin(), plan, alive.root)
        once = await alive.crash(second)
        if not once.stack.changes:
            return
        step = once.stack.changes[-1].step
        await once.stack.undo(step=step)
        twice = await once.crash(-1)
        await twice.stack.undo(step=step)
        assert tree(twice.root) == states[step]
        assert step not in {change.step for change in twice.stack.changes}
        assert all(change.done for change in twice.stack.changes)
        await carried_out(twice.stack, rest, twice.root)
        assert not (await twice.stack.undo()).conflicts
        assert tree(twice.root) == before
        await check(twice)


def overwritten(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(b"from outside")


def removed(path: Path) -> None:
    path.unlink(missing_ok=True)


def a_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)


def a_symlink(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to("somewhere")


edits = st.sampled_from((overwritten, removed, a_directory, a_symlink))


@fewer
@given(edit=edits, start=starts, plan=plans, first=steps, second=steps, path=paths)
async def test_an_edit_from_outside_at_any_crash_is_kept_and_reported_and_all_else_comes_back(
    edit: Callable[[Path], None],
    start: dict[str, tuple[bytes, int]],
    plan: list[Op],
    first: int,
    second: int,
    path: str,
) -> None:
    with world(start, first) as (alive, before):
        await carried_out(await alive.begin(), plan, alive.root)
        once = await alive.crash(second)
        edit(once.root / path)
        theirs = tree(once.root).get(path)
        touched = {change.path for change in once.stack.changes}
        await once.stack.undo()
        twice = await once.crash(-1)
        conflicts = [conflict.path for conflict in (await twice.stack.undo()).conflicts]
        after = tree(twice.root)
        if edit is removed:
            assert conflicts in ([], [path])
        else:
            assert conflicts == [path] * (path in touched)
        kept = conflicts or path not in touched
        assert after.get(path) == (theirs if kept else before.get(path))
        folders = {str(parent) for parent in Path(path).parents}
        for other in (before.keys() | after.keys()) - {path} - folders:
            assert after.get(other) == before.get(other)
        await check(twice) if not conflicts else None
        await twice.stack.keep(path)
        assert twice.stack.changes == ()
        assert tree(twice.root).get(path) == after.get(path)
