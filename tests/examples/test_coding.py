"""The example of a coding loop, as a process: the repository has the commits, and the list is done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.test_guides import of_language
from tests.examples.process import command_of_guide, environment


def run(folder: Path, *command: str) -> str:
    """Run a command to its end and return its output."""
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


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
