"""kill -9 at durable boundaries of a plan of five steps, of its rollback, and of the recoveries after both.

The tests start this file as a program of one thread, which forks a process for each life: no import is paid twice. A
life is one command of a person. It gets the number of the boundary at which it kills itself; 0 is never. Boundaries are
each append, each projection, and each step of every change to a file. At least one of each kind has its kill, by the
seed; all of them in `make soak`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.machines.approval.fault import GateRefused
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.status import Status, StepFact
from tests.crash.kill_points import every, some_of_each
from tests.runtime.approval.stand import DONE, FILES, Script, contents, planted, tree

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(
    900
)  # each boundary is two or three processes; all of them with ORCHESTRATOR_SOAK
Life = Callable[[Approval], Awaitable[Status]]
EDIT = b"from outside\n"
ALL = 1_000
"""More boundaries than there are."""


class World:
    """A project in which one command follows the other."""

    def __init__(self, folder: Path, template: Path | None = None) -> None:
        self.folder = folder
        self.root = folder / "project"
        shutil.rmtree(folder, ignore_errors=True)
        if template is None:
            self.root.mkdir(parents=True)
            planted(self.root)
        else:
            shutil.copytree(template, folder)

    def live(self, life: Life, kill_at: int = 0) -> Status | None:
        """Fork a process for one command; what it told in the end, None where it was killed."""
        child = os.fork()
        if child == 0:
            self._child(life, kill_at)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return None
        assert os.WEXITSTATUS(status) == 0, "see above"
        self.said: dict[str, Any] = json.loads((self.folder / "said").read_text())
        return asyncio.run(Approval.look(self.root))

    def _child(self, life: Life, kill_at: int) -> None:
        self.points: list[str] = []

        def hook(name: str) -> None:
            self.points.append(name)
            if len(self.points) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            asyncio.run(self._run(life, hook))
        except BaseException:  # noqa: BLE001  a forked child must never come back
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    async def _run(self, life: Life, hook: Callable[[str], None]) -> None:
        def on_step(fact: StepFact) -> None:
            states = self.folder.parent / "states" / str(fact.index - 1)
            if self.folder.name == "rehearsal" and fact.phase == "begins":
                shutil.copytree(self.root, states, ignore=shutil.ignore_patterns(".orchestrator"))

        said: dict[str, Any] = {"refused": None}
        async with Approval(
            self.root, Script(), observers=(), by="ann", hook=hook, on_step=on_step
        ) as approval:
            said["recovered"] = approval.recovered.plain() if approval.recovered else None
            try:
                await life(approval)
            except GateRefused as error:
                said["refused"] = [error.gate, error.reason]
        (self.folder / "said").write_text(json.dumps({**said, "points": self.points}))

    @property
    def files(self) -> dict[str, bytes]:
        return contents(self.root)

    def is_tidy(self) -> None:
        """Nothing of ours is left lying about: not in the project, not in its folder."""
        names = [path.name for path in self.root.rglob("*") if ".orch-" in path.name or path.suffix == ".tmp"]
        assert not names, names


# ---- lives: commands of a person ----


async def prepare(approval: Approval) -> Status:
    await approval.run("Please tidy up.")
    await approval.show()
    return await approval.approve(start=False)


async def approve_later(approval: Approval) -> Status:
    await approval.show()
    return await approval.approve(start=False)


async def execute(approval: Approval) -> Status:
    return await approval.execute()


async def pause_after_four(approval: Approval) -> Status:
    def on_step(step: Any, index: int, *_: Any) -> None:
        if index == 4:
            approval.ask_pause()

    approval._session.deps.on_step = on_step
    return await approval.execute()


async def look(approval: Approval) -> Status:
    return await approval.status()


async def go_on(approval: Approval) -> Status:
    """Whatever is left to be done."""
    state = (await approval.status()).state
    if state == "Paused":
        return await approval.resume()
    return await approval.execute() if state == "AwaitingApproval" else await approval.status()


async def cancel(approval: Approval) -> Status:
    state = (await approval.status()).state
    return await approval.cancel() if state in ("Paused", "AwaitingApproval") else await approval.status()


# ---- campaigns ----


def prepared(folder: Path) -> tuple[Path, dict[str, Any], list[str]]:
    """A world whose plan is approved, the tree as it was, and the boundaries of an execution.

    `states` has the trees between the steps.
    """
    fresh, rehearsal = World(folder / "fresh"), World(folder / "rehearsal")
    before = tree(fresh.root)
    status = fresh.live(prepare)
    assert status is not None
    assert (status.state, status.plan_status) == ("AwaitingApproval", "approved")
    rehearsal.live(prepare)
    status = rehearsal.live(execute)
    assert status is not None
    assert status.plan_status == "completed"
    assert rehearsal.files == DONE
    shutil.copytree(rehearsal.root, folder / "states" / "5", ignore=shutil.ignore_patterns(".orchestrator"))
    return fresh.folder, before, rehearsal.said["points"]


def is_recovered(world: World, states: Path) -> int:
    """After a kill in the execution: the completed steps stay, the open one is undone. How many are done."""
    status = world.live(look)
    assert status is not None
    done = [step.status for step in status.steps].count("done")
    assert [step.status for step in status.steps][:done] == ["done"] * done
    assert tree(world.root) == tree(states / str(done)), (done, status.state)
    world.is_tidy()
    match status.state:
        case "Paused":
            found = world.said["recovered"] or status.recovery.plain()  # type: ignore[union-attr]
            assert (found["found"], found["now"]) == ("Executing", "Paused")
            assert len(found["kept"]) == done
            assert found["options"]
        case "AwaitingApproval":
            assert done == 0
        case _:
            assert (status.state, status.plan_status, done) == ("Idle", "completed", 5)
    return done


def in_the_execution(folder: Path, most: int, seed: int) -> None:
    """Kill an execution at boundaries, the recovery after it too; then go on, or take all back."""
    fresh, before, points = prepared(folder)
    killed = again = 0
    for number in some_of_each(points, most, seed):
        world = World(folder / "world", fresh)
        assert world.live(execute, kill_at=number) is None, number
        killed += 1
        again += world.live(look, kill_at=1 + killed % 12) is None
        done = is_recovered(world, folder / "states")
        if killed % 2:
            status = world.live(go_on)
            assert world.files == DONE, number
        else:
            status = world.live(cancel)
            assert status is not None
            expected = (
                tree(folder / "states" / "5") if done == 5 and status.plan_status == "completed" else before
            )
            assert tree(world.root) == expected, number
        assert status is not None
        assert status.state == "Idle", (number, world.said)
        world.is_tidy()
    sys.stdout.write(f"{len(points)} {killed} {again}\n")


def in_the_rollback(folder: Path, most: int, seed: int) -> None:
    """Cancel after four steps and kill that at boundaries, and the recovery too: all is as it was."""
    fresh, before, _ = prepared(folder)
    paused = World(folder / "paused", fresh)
    status = paused.live(pause_after_four)
    assert status is not None
    assert status.state == "Paused"
    whole = World(folder / "whole", paused.folder)
    assert whole.live(cancel)
    points = whole.said["points"]
    killed = again = 0
    for number in some_of_each(points, most, seed):
        world = World(folder / "world", paused.folder)
        assert world.live(cancel, kill_at=number) is None, number
        killed += 1
        again += world.live(look, kill_at=1 + killed % 20) is None
        status = world.live(cancel)
        assert status is not None
        assert (status.state, status.plan_status) == ("Idle", "cancelled"), (number, world.said)
        assert tree(world.root) == before, number
        world.is_tidy()
    sys.stdout.write(f"{len(points)} {killed} {again}\n")


def with_an_edit(folder: Path, most: int, seed: int) -> None:
    """Kill an execution, edit a file from outside: it is found, named and kept, and the rest comes back."""
    fresh, _, points = prepared(folder)
    killed = 0
    for number in every(len(points) // most + 1, len(points), seed):
        world = World(folder / "world", fresh)
        assert world.live(execute, kill_at=number) is None, number
        killed += 1
        (world.root / "src/main.py").write_bytes(EDIT)
        status = world.live(look)
        assert status is not None
        if status.state == "Paused":
            world.live(go_on)
            assert world.said["refused"], number
            assert "src/main.py" in world.said["refused"][1]
        status = world.live(cancel)
        assert status is not None
        assert (world.root / "src/main.py").read_bytes() == EDIT, number
        if status.plan_status != "completed":
            assert world.files == FILES | {"src/main.py": EDIT}, (number, status.state)
            assert status.state == "Idle" or [one["path"] for one in status.conflicts] == ["src/main.py"]
    sys.stdout.write(f"{len(points)} {killed} 0\n")


def before_the_execution(folder: Path, most: int, seed: int) -> None:
    """Kill a submission and its approval at boundaries: nothing is written, and one more submission works."""
    whole = World(folder / "whole")
    assert whole.live(prepare)
    points = whole.said["points"]
    killed = 0
    for number in some_of_each(points, most, seed):
        world = World(folder / "world")
        before = tree(world.root)
        assert world.live(prepare, kill_at=number) is None, number
        killed += 1
        world.live(look, kill_at=1 + number % 7)
        status = world.live(look)
        assert status is not None
        assert status.state in ("Idle", "AwaitingApproval"), number
        assert tree(world.root) == before, number
        if status.state == "Idle":
            assert status.plan is None, number
            assert world.live(prepare), number
        elif status.plan_status == "pending":
            assert world.live(approve_later), number
        assert world.live(execute), number
        assert world.files == DONE, number
        world.is_tidy()
    sys.stdout.write(f"{len(points)} {killed} 0\n")


def driven(folder: Path, campaign: str, most: int, seed: int) -> tuple[int, int, int]:
    """Return how many boundaries there are, how often a life was killed, and how often one of its recoveries."""
    paths = os.pathsep.join(str(ROOT / each) for each in ("", "callbacks", "guards"))
    command = [sys.executable, __file__, campaign, str(folder), str(most), str(seed)]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    points, killed, again = map(int, done.stdout.split())
    return points, killed, again


def test_killed_in_the_execution_completed_steps_stay_and_the_open_one_is_undone(
    tmp_path: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    points, killed, again = driven(tmp_path, "in_the_execution", campaign(1, ALL), seed)
    assert points >= 130
    assert killed >= 8
    assert again >= 2


def test_killed_in_the_rollback_all_is_as_it_was_before_the_plan(
    tmp_path: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    points, killed, again = driven(tmp_path, "in_the_rollback", campaign(1, ALL), seed)
    assert points >= 60
    assert killed >= 8
    assert again >= 2


def test_killed_with_an_edit_from_outside_the_edit_is_named_and_kept(
    tmp_path: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    points, killed, _ = driven(tmp_path, "with_an_edit", campaign(8, ALL), seed)
    assert points >= 130
    assert killed >= 7


def test_killed_before_the_execution_nothing_is_written_and_the_next_request_is_carried_out(
    tmp_path: Path, seed: int, campaign: Callable[[int, int], int]
) -> None:
    points, killed, _ = driven(tmp_path, "before_the_execution", campaign(2, ALL), seed)
    assert points >= 20
    assert killed >= 5


if __name__ == "__main__":
    assert threading.active_count() == 1, "a fork copies one thread only"
    campaigns = {
        "before_the_execution": before_the_execution,
        "in_the_execution": in_the_execution,
        "in_the_rollback": in_the_rollback,
        "with_an_edit": with_an_edit,
    }
    campaigns[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
