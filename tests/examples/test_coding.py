"""The example of a coding loop, as a process: the repository has the commits, and the list is done."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.test_guides import of_language
from tests.examples.process import command_of_guide, environment, until


def run(folder: Path, *command: str) -> str:
    """Run a command to its end and return its output."""
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


GIT = """#!/bin/sh
case "$*" in
commit*task-2*) touch "$FOLDER/committing"; exec sleep 600 ;;
esac
exec {git} "$@"
"""
"""A git that never ends the commit of the second task."""


@pytest.mark.campaign
def test_a_loop_that_was_killed_in_a_commit_asks_as_the_guide_says_and_then_ends_its_list(
    tmp_path: Path,
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").write_text(GIT.format(git=shutil.which("git")))
    (programs / "git").chmod(0o755)
    path = os.pathsep.join((str(programs), environment()["PATH"]))
    command = ["bash", "-e", "-c", command_of_guide("coding")]
    killed = subprocess.Popen(
        command, cwd=tmp_path, env=environment(PATH=path, FOLDER=str(tmp_path)), start_new_session=True
    )
    try:
        until(lambda: (tmp_path / "committing").exists() or killed.poll() is not None, "no commit of task-2")
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    commits = run(tmp_path / "project", "git", "log", "--format=%s").splitlines()
    assert commits == ["task-1: write slug", "List the tasks"]
    [show] = [one.text for one in of_language("sh", "streaming") if "runs show tasks:" in one.text]

    for _ in range(2):  # it asks as often as it is started
        asked = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert (asked.returncode, asked.stdout) == (1, "")
        assert "git commit -qm 'task-2: write title'" in asked.stderr
        assert show.replace("project", f"{tmp_path}/project") in asked.stderr
    answers = run(tmp_path, "bash", "-e", "-c", show)
    [approve] = re.findall(r"orchestrator runs approve .+", answers)
    run(tmp_path, "bash", "-e", "-c", approve)

    [shown] = [one.text for one in of_language("text", "streaming") if "task-1: write slug" in one.text]
    assert run(tmp_path, *command) == shown
    assert run(tmp_path / "project", "git", "status", "--porcelain") == ""


@pytest.mark.campaign
def test_the_command_of_the_guide_does_the_tasks_and_commits_each(tmp_path: Path) -> None:
    [shown] = [one.text for one in of_language("text", "streaming") if "task-1: write slug" in one.text]
    command = ["bash", "-e", "-c", command_of_guide("coding")]
    assert run(tmp_path, *command) == shown
    project = tmp_path / "project"
    assert run(project, "git", "status", "--porcelain") == ""
    assert run(project, "git", "show", "--format=", "--name-only", "HEAD") == "title.py\n"
    for test in ("test_task_1", "test_task_2"):
        tested = subprocess.run([sys.executable, "-m", "unittest", test], cwd=project, check=False)
        assert tested.returncode == 0
    [progress] = project.glob(".ralph-sessions/*/progress.md")
    assert progress.read_text().count("[x]") >= 2
    assert run(tmp_path, *command) == shown, "the run has ended, and nothing is done twice"
