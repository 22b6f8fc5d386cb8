"""kill -9 at every step of a plan that creates, edits and deletes, and again in the recovery, over SQLite.

The tests start this file as a program of one thread, which forks a process for each life: no import is paid
twice. A life gets the number of the step at which it kills itself; 0 is never. With ORCHESTRATOR_SOAK each step has
its kill, otherwise every fifth: 5 shares no factor with the numbers of the second kills, so all kinds of these meet.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from orchestrator.errors import RunUnknown
from orchestrator.files.rollback import Change, RollbackStack
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from tests.crash.effect_invariants import check_effects, check_files

ROOT = Path(__file__).resolve().parents[2]
MEMORY = Path("/dev/shm")  # noqa: S108  only a parent of temporary folders
"""A kill takes nothing from the page cache: no disk is needed, and without one this is thrice as fast."""
RUN = "run"
BODY = {"graph": "approval", "fingerprint": "f", "at": 0.0}
LARGE = random.Random(1).randbytes((1 << 20) + 1)
Tree = dict[str, tuple[int, bytes]]
Life = Callable[["World", RollbackStack], Awaitable[None]]

PLAN: tuple[tuple[Callable[[RollbackStack], Awaitable[Change]], ...], ...] = (
    (
        lambda stack: stack.create("docs/ä ö/new.md", b"new\n", step="0"),
        lambda stack: stack.create("docs/tool", b"", step="0", mode=0o755),
    ),
    (lambda stack: stack.edit("src/main.py", b"print(2)\n", step="1"),),
    (
        lambda stack: stack.edit("src/large.bin", LARGE[::-1], step="2"),
        lambda stack: stack.edit("src/main.py", b"print(3)\n", step="2"),
    ),
    (
        lambda stack: stack.delete("run.sh", step="3"),
        lambda stack: stack.create("run.sh", b"other\n", step="3"),
    ),
    (
        lambda stack: stack.delete("locked", step="4"),
        lambda stack: stack.delete("docs/ä ö/new.md", step="4"),
        lambda stack: stack.edit("empty", b"full\n", step="4"),
    ),
)


def planted(root: Path) -> None:
    (root / "src").mkdir(parents=True)
    for name, content, mode in (
        ("src/main.py", b"print(1)\n", 0o644),
        ("src/large.bin", LARGE, 0o600),
        ("run.sh", b"#!/bin/sh\n", 0o755),
        ("locked", b"read-only", 0o444),
        ("empty", b"", 0o664),
    ):
        (root / name).write_bytes(content)
        (root / name).chmod(mode)


def tree(root: Path) -> Tree:
    found: Tree = {}
    for path in root.rglob("*"):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path.relative_to(root))] = (status.st_mode, content)
    return found


class World:
    """A folder with a project and its journal, in which one life follows the other."""

    def __init__(self, folder: Path, template: Path | None = None) -> None:
        self.folder = folder
        self.root = folder / "project"
        shutil.rmtree(folder, ignore_errors=True)
        if template is None:
            planted(self.root)
        else:
            shutil.copytree(template, folder)

    def live(self, life: Life, kill_at: int = 0, kill_after: float | None = None) -> bool:
        """Fork a process that takes the run over. True when it came to its end, False when killed."""
        child = os.fork()
        if child == 0:
            self._child(life, kill_at)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return False
        assert os.WEXITSTATUS(status) == 0, "see above"
        return True

    def _child(self, life: Life, kill_at: int) -> None:
        seen = 0

        def hook(_: str) -> None:
            nonlocal seen
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            asyncio.run(self._run(life, hook))
        except BaseException:  # noqa: BLE001  a forked child must never come back
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    async def _run(self, life: Life, hook: Callable[[str], None]) -> None:
        journal: Journal = SqliteJournal(self.folder / "journal.db")
        try:
            lease = await journal.claim(RUN, "next", steal=True)
            records = await journal.load(RUN)
        except RunUnknown:
            lease, records = await journal.create(RUN, "first", BODY), []
        await life(self, RollbackStack.recover(records, journal, lease, self.root, hook=hook))
        records = await journal.load(RUN)
        check_effects(RUN, records, rest=False)
        if life in {carry_out, settle, undo_all}:  # the others meet a file that somebody else edited
            check_files(self.root, records, at_rest=life is not carry_out)
        await journal.close()


def open_step(stack: RollbackStack) -> str | None:
    """The step that was begun and not carried out to its end."""
    if not stack.changes:
        return None
    step = stack.changes[-1].step
    made = [change for change in stack.changes if change.step == step and change.done]
    return None if len(made) == len(PLAN[int(step)]) else step


async def nothing(world: World, stack: RollbackStack) -> None:
    """Begin the run and stop."""


async def carry_out(world: World, stack: RollbackStack) -> None:
    """Go on with the plan after what is on the stack."""
    first = int(stack.changes[-1].step) + 1 if stack.changes else 0
    for number, step in enumerate(PLAN[first:], first):
        if world.folder.name == "rehearsal":
            shutil.copytree(world.root, world.folder.parent / "states" / str(number))
        for change in step:
            await change(stack)


async def settle(world: World, stack: RollbackStack) -> None:
    """Undo the step that was open: the tree is as at its start."""
    step = open_step(stack)
    if step is not None:
        assert not (await stack.undo(step=step)).conflicts
        assert tree(world.root) == tree(world.folder.parent / "states" / step)
    assert all(change.done for change in stack.changes)
    assert await stack.drift() == ()


async def undo_all(world: World, stack: RollbackStack) -> None:
    assert not (await stack.undo()).conflicts
    assert stack.changes == ()


async def undo_around_an_edit(world: World, stack: RollbackStack) -> None:
    touched = {change.path for change in stack.changes}
    conflicts = [conflict.path for conflict in (await stack.undo()).conflicts]
    assert conflicts == ["src/main.py"] * ("src/main.py" in touched)


async def keep(world: World, stack: RollbackStack) -> None:
    await stack.keep("src/main.py")
    assert stack.changes == ()


def prepared(folder: Path) -> tuple[Path, Path, Tree]:
    """A world where the run has begun, one where the plan is carried out, and the tree as it was."""
    fresh, rehearsal = World(folder / "fresh"), World(folder / "rehearsal")
    before = tree(fresh.root)
    fresh.live(nothing)
    rehearsal.live(carry_out)
    return fresh.folder, rehearsal.folder, before


def at_every_step(folder: Path, stride: int) -> None:
    """Kill at each step of the plan, then in the recovery, in going on, and in undoing everything."""
    fresh, _, before = prepared(folder)
    killed = again = 0
    for at in itertools.count(1, stride):
        world = World(folder / "world", fresh)
        if world.live(carry_out, kill_at=at):
            break
        killed += 1
        again += not world.live(settle, kill_at=1 + at % 12)
        world.live(settle)
        if at % 4 == 0:
            world.live(carry_out, kill_at=5 + at % 40)
        again += not world.live(undo_all, kill_at=1 + at * 7 % 60)
        world.live(undo_all)
        assert tree(world.root) == before, at
    sys.stdout.write(f"{killed} {again}\n")


def in_the_undo(folder: Path, stride: int) -> None:
    """With the whole plan carried out, kill at each step of undoing all of it, each third time twice."""
    _, carried_out, before = prepared(folder)
    killed = 0
    for at in itertools.count(1, stride):
        world = World(folder / "world", carried_out)
        if world.live(undo_all, kill_at=at):
            break
        killed += 1
        if at % 3 == 0:
            world.live(undo_all, kill_at=1 + at % 20)
        world.live(undo_all)
        assert tree(world.root) == before, at
    sys.stdout.write(f"{killed} 0\n")


def with_an_edit(folder: Path, stride: int) -> None:
    """Kill at each step, edit a file from outside, undo with another kill: only the edit is left."""
    fresh, _, before = prepared(folder)
    killed = again = 0
    for at in itertools.count(1, stride):
        world = World(folder / "world", fresh)
        if world.live(carry_out, kill_at=at):
            break
        killed += 1
        (world.root / "src" / "main.py").write_bytes(b"from outside")
        again += not world.live(undo_around_an_edit, kill_at=1 + at % 15)
        world.live(undo_around_an_edit)
        expected = before | {"src/main.py": (before["src/main.py"][0], b"from outside")}
        assert tree(world.root) == expected, at
        if killed % 10 == 0:
            world.live(keep)
            assert tree(world.root) == expected, at
    sys.stdout.write(f"{killed} {again}\n")


def at_random(folder: Path, rounds: int, seed: int) -> None:
    """Kill after a random time, in a plan and in two recoveries."""
    fresh, _, before = prepared(folder)
    chance = random.Random(seed)
    killed = 0
    for number in range(rounds):
        world = World(folder / "world", fresh)
        for life in (carry_out, settle, undo_all):
            killed += not world.live(life, kill_after=chance.uniform(0, 0.15))
        world.live(undo_all)
        assert tree(world.root) == before, number
    sys.stdout.write(f"{killed} 0\n")


def driven(folder: Path, *arguments: str | int) -> tuple[int, int]:
    """Return how often a life was killed, and how often one of its recoveries."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else folder) as place:
        command = [sys.executable, __file__, place, *map(str, arguments)]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    killed, again = map(int, done.stdout.split())
    return killed, again


def test_killed_at_every_step_the_open_step_is_undone_the_rest_stays_and_all_comes_back(
    tmp_path: Path, campaign: Callable[[int, int], int]
) -> None:
    stride = campaign(5, 1)
    killed, again = driven(tmp_path, "at_every_step", stride)
    assert killed * stride >= 80
    assert again * stride >= 80


def test_killed_at_every_step_of_an_undo_the_next_one_finishes_it(
    tmp_path: Path, campaign: Callable[[int, int], int]
) -> None:
    stride = campaign(5, 1)
    killed, _ = driven(tmp_path, "in_the_undo", stride)
    assert killed * stride >= 80


def test_killed_at_every_step_with_an_edit_from_outside_the_edit_is_kept(
    tmp_path: Path, campaign: Callable[[int, int], int]
) -> None:
    stride = campaign(5, 1)
    killed, again = driven(tmp_path, "with_an_edit", stride)
    assert killed * stride >= 80
    assert again * stride >= 40


@pytest.mark.canary
def test_killed_at_random_times_nothing_is_lost(
    tmp_path: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    killed, _ = driven(tmp_path, "at_random", campaign(8, 200), seed)
    assert killed > 0


if __name__ == "__main__":
    assert threading.active_count() == 1, "a fork copies one thread only"
    scenarios: dict[str, Callable[..., None]] = {
        "at_every_step": at_every_step,
        "in_the_undo": in_the_undo,
        "with_an_edit": with_an_edit,
        "at_random": at_random,
    }
    scenarios[sys.argv[2]](Path(sys.argv[1]), *map(int, sys.argv[3:]))
