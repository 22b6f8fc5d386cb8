"""Commands of a plan as the person at the project sees them: what they said, that they failed; nothing is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.machines.approval.plan import FileChange, PlanDraft, PlanStep, StepKind
from orchestrator.runtime.approval.status import StepFact
from tests.runtime.approval.stand import FILES, Script, contents, planted, project, waiting

SAID = "what-the-command-said"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def planner(code: str) -> Script:
    steps = (
        PlanStep(id="1", kind=StepKind.CREATE, files=(FileChange(path="new.md", content="# New\n"),)),
        PlanStep(id="2", kind=StepKind.RUN, argv=("python3", "-c", code)),
    )
    return Script(drafts=(PlanDraft(goal="Build", steps=steps),))


async def carried_out(root: Path, code: str, facts: list[StepFact]) -> Any:
    async with project(root, planner(code), on_step=facts.append) as approval:
        await waiting(approval)
        return await approval.approve()


def kept(root: Path) -> bytes:
    """Every byte that the run wrote beside the project's own files."""
    return b"".join(path.read_bytes() for path in (root / ".orchestrator").rglob("*") if path.is_file())


async def test_what_a_command_said_is_told_and_stored_nowhere(tmp_path: Path) -> None:
    facts: list[StepFact] = []
    root = planted(tmp_path)
    status = await carried_out(root, f"print('{SAID}'[::-1])", facts)
    assert (status.state, status.plan_status) == ("Idle", "completed")
    assert [(one.index, one.phase, one.status) for one in facts] == [
        (1, "begins", "running"),
        (1, "ends", "done"),
        (2, "begins", "running"),
        (2, "ends", "done"),
    ]
    assert facts[3].output == f"{SAID[::-1]}\n"
    assert SAID[::-1].encode() not in kept(root)


async def test_a_command_that_fails_is_told_with_what_it_said_and_shown_as_failed_by_every_later_process(
    tmp_path: Path,
) -> None:
    facts: list[StepFact] = []
    root = planted(tmp_path)
    status = await carried_out(root, f"print('{SAID}'[::-1]); raise SystemExit(3)", facts)
    assert (status.state, status.error["code"]) == ("Failed", "BLD-002")
    assert (facts[-1].phase, facts[-1].status) == ("ends", "failed")
    assert SAID[::-1] in facts[-1].output
    assert SAID[::-1].encode() not in kept(root)
    async with project(root) as approval:
        status = await approval.status()
        assert [one.status for one in status.steps] == ["done", "failed"]
        await approval.rollback()
        await approval.shown()
        await approval.acknowledge()
    assert contents(root) == FILES


async def test_a_file_step_that_took_itself_back_is_shown_as_failed(tmp_path: Path) -> None:
    facts: list[StepFact] = []
    root = planted(tmp_path)

    def on_step(fact: StepFact) -> None:
        facts.append(fact)
        if fact.phase == "begins":
            (root / "new.md").write_text("from outside\n")

    async with project(root, planner("pass"), on_step=on_step) as approval:
        await waiting(approval)
        status = await approval.approve()
    assert (status.state, status.error["code"]) == ("Failed", "FS-006")
    assert [one.status for one in status.steps] == ["failed", "pending"]
    assert [(one.phase, one.status) for one in facts] == [("begins", "running"), ("ends", "failed")]
    assert (root / "new.md").read_text() == "from outside\n"
