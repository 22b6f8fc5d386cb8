"""kill -9 before, in and after a command of a plan: nobody runs it again unasked, and the files come back all the same.

As in test_approval_kill: this file is a program of one thread as well, which forks a process for each life.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.machines.approval.fault import GateRefused
from orchestrator.machines.approval.plan import FileChange, PlanDraft, PlanStep, StepKind
from orchestrator.runtime.approval.approval import Approval
from orchestrator.runtime.approval.status import Status
from tests.crash.test_approval_kill import ROOT, World, cancel, look, prepare
from tests.runtime.approval.stand import EDIT_MAIN, Script, tree

COUNT = "open('../ran', 'a').write('x')"
"""What a command does: one letter a time, beside the project."""
KILLS = (
    f"{COUNT}; import os; os.path.exists('../killed') or (open('../killed', 'w'), os.kill(os.getppid(), 9))"
)
"""Another one: at its first time it ends the process that started it."""

LIVES_ON = (
    "import os, subprocess, sys, time; "
    "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True, "
    "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
    "open('../pids', 'w').write(f'{os.getpid()} {other.pid}'); open('late', 'a').write('x'); "
    "os.kill(os.getppid(), 9)\n"
    "for _ in range(6000): open('late', 'a').write('x'); time.sleep(0.01)"
)
"""One that ends its owner and goes on writing into the project."""


def draft(code: str) -> PlanDraft:
    return PlanDraft(
        goal="Tidy up",
        steps=(
            PlanStep(id="1", kind=StepKind.CREATE, files=(FileChange(path="new.md", content="# New\n"),)),
            PlanStep(id="2", kind=StepKind.RUN, argv=("python3", "-c", code)),
            PlanStep(id="3", kind=StepKind.EDIT, files=(FileChange(path="src/main.py", diff=EDIT_MAIN),)),
        ),
    )


class CommandWorld(World):
    """A project whose plan has a command. A life ends where the hook hears a name for the first time."""

    code = COUNT
    kill_on = ""

    async def _run(self, life: Callable[[Approval], Awaitable[Status]], hook: Callable[[str], None]) -> None:
        def named(name: str) -> None:
            if name == self.kill_on:
                os.kill(os.getpid(), signal.SIGKILL)
            hook(name)

        said: dict[str, Any] = {"refused": None}
        planner = Script(drafts=(draft(self.code),))
        async with Approval(self.root, planner, observers=(), by="ann", hook=named) as approval:
            said["recovered"] = approval.recovered.plain() if approval.recovered else None
            try:
                await life(approval)
            except GateRefused as error:
                said["refused"] = [error.gate, error.code]
        (self.folder / "said").write_text(json.dumps(said))

    @property
    def ran(self) -> int:
        """How often the command has run."""
        file = self.folder / "ran"
        return len(file.read_text()) if file.exists() else 0


async def execute(approval: Approval) -> Status:
    return await approval.execute()


async def resume(approval: Approval) -> Status:
    return await approval.resume()


async def resume_again(approval: Approval) -> Status:
    return await approval.resume(again=True)


def begun(folder: Path, code: str, kill_on: str) -> tuple[CommandWorld, Any]:
    """A project whose execution was killed; and its tree before the plan."""
    world = CommandWorld(folder)
    world.code = code
    before = tree(world.root)
    status = world.live(prepare)
    assert status is not None
    assert status.state == "AwaitingApproval"
    world.kill_on = kill_on
    assert world.live(execute) is None, "it was not killed"
    world.kill_on = ""
    status = world.live(look)
    assert status is not None
    assert (status.state, status.steps[0].status) == ("Paused", "done")
    assert status.actions[:2] == ("resume --again", "cancel")
    return world, before


def unknown(folder: Path, code: str, kill_on: str, ran: int) -> None:
    """The command may have run: a resume is refused until a person says that it may run again; and a cancel works."""
    world, before = begun(folder / "resumed", code, kill_on)
    assert world.ran == ran
    world.live(resume)
    assert world.said["refused"] == ["plan", "ST-006"]
    assert world.ran == ran
    if code == COUNT:
        world.kill_on = kill_on  # the word counts once: after the next crash somebody has to say it again
        assert world.live(resume_again) is None
        world.kill_on = ""
        world.live(resume)
        assert world.said["refused"] == ["plan", "ST-006"]
    tries = world.ran
    status = world.live(resume_again)
    assert status is not None
    assert (status.state, status.plan_status) == ("Idle", "completed"), world.said
    assert world.ran == tries + 1
    world, before = begun(folder / "cancelled", code, kill_on)
    status = world.live(cancel)
    assert status is not None
    assert (status.state, status.plan_status) == ("Idle", "cancelled"), world.said
    assert tree(world.root) == before
    assert world.ran == ran


def outlived(folder: Path) -> None:
    """The command, and what it started in a session of its own, go on after their owner: the next one ends both."""
    world, before = begun(folder, LIVES_ON, "")
    assert world.said["recovered"]["why"].endswith("the command of step 2 still ran and was ended")
    for pid in (folder / "pids").read_text().split():
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
    late = tree(world.root)
    assert late["late"][1] == b"x" * len(late["late"][1])
    status = world.live(cancel)
    assert status is not None
    assert (status.state, status.plan_status) == ("Idle", "cancelled"), world.said
    assert {name: what for name, what in tree(world.root).items() if name != "late"} == before


def durable_end(folder: Path, stride: int) -> int:
    """Kill an execution at every boundary: where step 2 counts as done it has run once, and is never run again."""
    number = 1
    while True:
        world = CommandWorld(folder / f"world-{number}")
        before = tree(world.root)
        world.live(prepare)
        if world.live(execute, kill_at=number) is not None:
            return number
        status = world.live(look)
        assert status is not None
        if any(step.id == "2" and step.status == "done" for step in status.steps):
            status = world.live(resume) if status.state == "Paused" else status
            assert status is not None
            assert (status.state, status.plan_status) == ("Idle", "completed"), (number, world.said)
            assert world.ran == 1, number
        elif status.state == "Paused":
            world.live(cancel)
            assert tree(world.root) == before, number
        number += stride


CASES = {
    "before": (COUNT, "command begins", 0),
    "in the middle": (KILLS, "", 1),
    "after": (COUNT, "command ended", 1),
}


def driven(folder: Path, case: str, stride: int = 1) -> int:
    paths = os.pathsep.join(str(ROOT / each) for each in ("", "callbacks", "guards"))
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": paths, "PATH": programs}
    done = subprocess.run(
        [sys.executable, __file__, case, str(folder), str(stride)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout or 0)


@pytest.mark.canary("in the middle")
@pytest.mark.parametrize("case", CASES)
def test_a_command_that_was_killed_is_run_again_only_on_a_persons_word(tmp_path: Path, case: str) -> None:
    driven(tmp_path, case)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells whose process it is")
def test_a_command_that_goes_on_after_its_owner_is_ended_before_anything_is_taken_back(
    tmp_path: Path,
) -> None:
    driven(tmp_path, "lives on")


def test_a_command_whose_end_is_durable_is_never_run_again(
    tmp_path: Path, campaign: Callable[[int, int], int]
) -> None:
    assert driven(tmp_path, "durable end", campaign(9, 1)) >= 60


if __name__ == "__main__":
    assert threading.active_count() == 1, "a fork copies one thread only"
    case, folder = sys.argv[1], Path(sys.argv[2])
    if case == "durable end":
        sys.stdout.write(str(durable_end(folder, int(sys.argv[3]))))
    elif case == "lives on":
        outlived(folder / "world")
    else:
        unknown(folder, *CASES[case])
