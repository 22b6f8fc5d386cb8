"""`make demo-plan`: a plan is inspected, approved, killed midway, recovered, resumed, stopped and undone.

Each step is a command in its own process, in a temporary folder; the plan comes from a file. At the end every byte of
the folder is as before.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from orchestrator.examples.plan import PLAN, SHOP
from orchestrator.examples.terminal import Failed, complain, interrupt, kill, run, run_and_stop, say

OURS = ".orchestrator"
_PACE = ("--pace", "3")
"""Seconds before each step: long enough to see it, and to end the process before it changes a file."""
_KILLED, _PAUSED = 9, 3


def demonstrate(folder: Path) -> None:
    """Run the demonstration. Raises Failed."""
    before = _tree(folder)
    say("\n# The request, and the planner: here a file, otherwise --model. Nothing is written yet.")
    run(folder, "approval", "submit", "Keep the prices in one file.", "--plan", PLAN.name)
    say("\n# What would it do?")
    run(folder, "approval", "diff")
    say("\n# Nothing happens without approval.")
    run(folder, "approval", "execute", code=2)
    run(folder, "approval", "approve", "--by", "ann")
    say("\n# Step by step. At the third step its process is killed.")
    if interrupt(folder, ("approval", "execute", *_PACE), at="step 3 of 5", act=kill) != -_KILLED:
        raise Failed("it was not ended by the kill")
    say("\n# The next start reports the state. Complete steps are kept, the interrupted step is undone.")
    run(folder, "approval", "status", code=_PAUSED)
    say("\n# It continues only when a person resumes it. Ctrl-C pauses it between steps.")
    run_and_stop(folder, "approval", "resume", *_PACE, at="step 4 of 5", code=_PAUSED)
    changed = _tree(folder)
    say("\n# Undo everything.")
    run(folder, "approval", "cancel")
    after = _tree(folder)
    if changed == before or after != before:
        raise Failed("the folder is not as it was before")
    say("\n# The folder has its original bytes.")


def _tree(folder: Path) -> str:
    """Show and return the digest of the user's files in the folder: names, kinds, modes and contents."""
    digest, files = hashlib.sha256(), 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] == OURS:
            continue
        content = path.read_bytes() if path.is_file() else b""
        files += path.is_file()
        digest.update(f"{name.as_posix()}\0{path.stat().st_mode:o}\0{len(content)}\0".encode() + content)
    say(f"# the folder: {files} files, sha256 {digest.hexdigest()}")
    return digest.hexdigest()


def main() -> int:
    """Run the demonstration in a temporary folder; return the exit code."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "shop"
        shutil.copytree(SHOP, folder)
        shutil.copy(PLAN, folder)
        try:
            demonstrate(folder)
        except Failed as error:
            complain(f"demo-plan: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
