"""kill -9 of the owner while one of its programs works: two programs of a run never work at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "surviving_program.py"
STAGES = ("planner", "validator", "implementer", "judge")
AGENTS = ("planner", "executor", "reviewer")

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shows whose process it is"),
    pytest.mark.timeout(1800),
]


class Round:
    """One run in a folder of its own, whose owner is killed in the middle of the work of `role`."""

    def __init__(self, folder: Path, environment: dict[str, str], how: str, role: str) -> None:
        folder.mkdir()
        self.survivors: list[int] = []
        self._folder = folder
        ours = {"HOME": folder, "XDG_STATE_HOME": folder / "state", "ORCHESTRATOR_TRUST": folder}
        self._environment = {**environment, **{name: str(path) for name, path in ours.items()}}
        (folder / "hang").write_text(f"{how} {role}")
        os.mkfifo(folder / "there")

    def write(self, name: str, section: str, roles: dict[str, str], more: str = "") -> None:
        """Write a file that names the program for each of the roles."""
        text = more
        for role, argument in roles.items():
            words = ["{python}", "-I", "-S", str(PROGRAM), argument]
            text += f"[{section}.{role}]\ncommand = {json.dumps(words)}\n"
        (self._folder / name).write_text(text)

    def kill(self, *arguments: str) -> None:
        """Start a command, and kill it with -9 once its program works; the program and its child survive it."""
        there = os.open(self._folder / "there", os.O_RDONLY | os.O_NONBLOCK)
        with self._started(*arguments) as owner, os.fdopen(there) as pipe:
            waiting = select.poll()
            waiting.register(there, select.POLLIN)
            while not waiting.poll(50):
                assert owner.poll() is None, owner.communicate()
            os.set_blocking(there, True)
            self.survivors = [int(one) for one in pipe.read().split()]
            owner.kill()
        assert not self.nobody_works()

    def resumed(self, *arguments: str) -> tuple[int, str]:
        """Return exit code and standard error of a command."""
        with self._started(*arguments) as process:
            _, err = process.communicate(timeout=300)
        return process.returncode, err

    def _started(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "orchestrator", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self._folder, env=self._environment, **pipes)  # type: ignore[call-overload,no-any-return]

    def nobody_works(self) -> bool:
        """Tell whether no program of the run lives: each holds the lock, and so does all that it started."""
        with (self._folder / "lock").open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    @property
    def session(self) -> str:
        """Name of the only session."""
        (found,) = (self._folder / ".ralph-sessions").iterdir()
        return found.name

    def check(self, role: str, done: tuple[int, str]) -> None:
        """Check that the killed work was repeated once, after all of it had ended."""
        code, err = done
        log = (self._folder / "log").read_text().splitlines()
        assert not [line for line in log if line.startswith("overlap")]
        assert code == 0, err
        assert "was still running and was ended" in err
        assert log.count(f"start {role}") == 2
        again = len(log) - 1 - log[::-1].index(f"start {role}")
        assert f"works {role}" in log[:again]
        assert f"works {role}" not in log[again:]
        assert self.nobody_works()

    def clean(self) -> None:
        """Leave nothing behind, also after a failure."""
        for pid in self.survivors:
            with contextlib.suppress(OSError):  # it has ended
                if PROGRAM.name in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._folder)


@pytest.fixture
def rounds(
    tmp_path: Path, environment: dict[str, str], seed: int, campaign: Callable[[int, int], int]
) -> Callable[[Sequence[str]], Iterator[tuple[Round, str]]]:
    """Yield rounds, each for one of the roles; a survivor that ignores SIGTERM is rarer, for it takes the grace."""
    chance = random.Random(seed)

    def each(roles: Sequence[str]) -> Iterator[tuple[Round, str]]:
        for number in range(campaign(2, 50)):
            how, role = "deaf" if chance.random() < 0.1 else "polite", chance.choice(roles)
            one = Round(tmp_path / str(number), environment, how, role)
            try:
                yield one, role
            finally:
                one.clean()

    return each


def test_a_killed_ralph_run_and_its_resume_never_have_two_programs_at_work(
    rounds: Callable[[Sequence[str]], Iterator[tuple[Round, str]]],
) -> None:
    for one, role in rounds([f"agent-{role}" for role in AGENTS]):
        one.write("ralph.toml", "agents", {role: f"agent-{role}" for role in AGENTS})
        one.kill("ralph", "run", "a page", "--agents", "ralph.toml")
        one.check(role, one.resumed("ralph", "resume", one.session))


def test_a_killed_pipeline_and_its_resume_never_have_two_programs_at_work(
    rounds: Callable[[Sequence[str]], Iterator[tuple[Round, str]]],
) -> None:
    for one, role in rounds(STAGES):
        one.write("spec.toml", "stages", {role: role for role in STAGES}, 'spec = "a page"\n')
        one.kill("pipeline", "run", "spec.toml", "--run-id", "r1")
        one.check(role, one.resumed("pipeline", "resume", "r1"))
