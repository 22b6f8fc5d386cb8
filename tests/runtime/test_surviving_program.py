"""Which processes are found by a mark and ended, and which are left alone. The processes are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.runtime.service import program
from orchestrator.runtime.service.program import ProgramEnd, end_processes, mark_variable
from orchestrator.settings import Settings

pytestmark = pytest.mark.skipif(not program.can_find(), reason="only Linux shows whose process it is")

WAITS = "import sys, time; print('up', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"
PARENT = """
import os, subprocess, sys, time
kept = dict(os.environ) if "env" not in sys.argv[1] else {}
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[2]], env=kept, stdout=subprocess.PIPE,
                         start_new_session="session" in sys.argv[1])
child.stdout.readline()
print(child.pid, flush=True)
if "dies" not in sys.argv[1]:
    time.sleep(600)
"""

A, B, C, NOBODY = (f"{name}{os.getpid()}" for name in ("a", "b", "c", "nobody"))
"""Marks of this process: the same tests in another clone must not end its programs."""

Started = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def started() -> Iterator[Started]:
    """Start Python with a mark; none outlives its test."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str, mark: str, **more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", "-S", "-c", *arguments]
        environment = {**os.environ, **mark_variable(mark), **more}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield start
    for one in running:
        one.kill()
        one.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def lives(pid: int) -> bool:
    """Tell whether a process runs; one that was adopted and not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_processes_are_ended_by_their_mark_and_no_other_one(started: Started) -> None:
    ours, deaf, other = started(WAITS, mark=A), started(DEAF, mark=B), started(WAITS, mark=C)
    assert [said(one) for one in (ours, deaf, other)] == ["up"] * 3
    assert end_processes([A, B, NOBODY], 0.1) == ProgramEnd(frozenset((A, B)), ())
    assert (ours.wait(), deaf.wait(), other.poll()) == (-signal.SIGTERM, -signal.SIGKILL, None)
    assert end_processes([A, B], 0.1) == ProgramEnd(frozenset(), ())


@pytest.mark.parametrize("how", ["plain", "session", "env", "session env", "session dies"])
def test_children_are_ended_too_that_left_the_session_or_dropped_the_variable(
    started: Started, how: str
) -> None:
    parent = started(PARENT, how, DEAF, mark=A)
    child = int(said(parent))
    if "dies" in how:
        parent.wait()
    assert lives(child)
    assert end_processes([A], 0.1) == ProgramEnd(frozenset((A,)), ())
    assert not lives(child)


def test_a_program_inside_a_program_carries_both_marks(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(program.MARK, A)
    inner = started(WAITS, mark=B)
    assert said(inner) == "up"
    assert mark_variable(B) == {program.MARK: f"{A} {B}"}
    assert end_processes([A], 0.1) == ProgramEnd(frozenset((A,)), ())
    assert inner.wait() == -signal.SIGTERM


def test_a_process_is_no_survivor_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        f"from orchestrator.runtime.service.program import end_processes\nprint(end_processes([{A!r}], 0.1))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **mark_variable(A)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "ProgramEnd(marks=frozenset(), left=())\n"


def test_a_mark_follows_from_its_parts_and_from_where_one_ends() -> None:
    marks = {program.mark_of(*parts) for parts in (("a", "b"), ("ab", ""), ("a", "b"), ("a", "b", ""))}
    assert len(marks) == 3


def test_a_program_that_runs_the_command_line_may_carry_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(program.MARK, "m")
    Settings.load()
