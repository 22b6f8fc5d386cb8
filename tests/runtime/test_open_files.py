"""No run leaves a file or folder open: the number that a process may have is small."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.ralph.contract import Role
from orchestrator.providers.scripted import call
from orchestrator.runtime.approval.workspace import look
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.testing import ScriptedLLM
from orchestrator.tools.spec import tool
from tests.runtime.approval.stand import planted, project, waiting
from tests.runtime.ralph_stage import NOT_QUALIFIED, World


def open_below(folder: Path) -> list[str]:
    """Return the open files and folders of this process in a folder."""
    found = []
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - it changes while it is read
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115 - the text, not a path
        except OSError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


async def test_a_project_that_was_closed_has_no_open_files(tmp_path: Path) -> None:
    root = planted(tmp_path)
    async with project(root) as approval:
        await waiting(approval)
        await approval.approve()
        await approval.status()
    assert open_below(tmp_path) == []


@pytest.mark.parametrize(
    "path",
    [
        "a/b/c.py",
        "a/b/none.py",
        "a/none/none.py",
        "a/b/c.py/d.py",
        "a/b",
        "a/link/x",
        "a/b/C.py",
        "twice",
        "long",
    ],
)
def test_an_inspection_leaves_nothing_open_whatever_it_finds(tmp_path: Path, path: str) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c.py").write_text("x = 1\n")
    (tmp_path / "a/link").symlink_to(tmp_path)
    (tmp_path / "twice").write_text("2")
    (tmp_path / "also").hardlink_to(tmp_path / "twice")
    (tmp_path / "long").write_text("x" * 100)
    with contextlib.suppress(ApprovalError):
        look(tmp_path, path, 99)
    assert open_below(tmp_path) == []


async def test_ralph_has_no_open_files_at_its_end(tmp_path: Path) -> None:
    world = World(tmp_path, {Role.PLANNER: [{"status": "needs_qa_cycle"}], Role.REVIEWER: [NOT_QUALIFIED]})
    await world.ralph().run("x")
    assert open_below(tmp_path) == []


async def test_a_closed_journal_has_no_open_files(tmp_path: Path) -> None:
    @tool(effect="irreversible")
    def pay() -> str:
        return "paid"

    async with SqliteJournal(tmp_path / "journal.db") as journal:
        agent = Agent(ScriptedLLM([call("pay"), "done"]), tools=[pay], journal=journal, observers=())
        assert (await agent.run("go")).output == "done"
    assert open_below(tmp_path) == []
