"""One plan of a run on a real folder, as its owner has it: what the tests of its steps share."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from orchestrator.journal.memory import MemoryJournal
from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.approval.plan import ApprovalPlan, PlanDraft
from orchestrator.runtime.approval.plan_executor import StepWork
from orchestrator.runtime.approval.workspace import Workspace
from orchestrator.testing.clock import FakeClock

BODY = {"graph": "approval", "fingerprint": "f", "at": 0.0}
EDIT = "@@ -1,2 +1,2 @@\n one = 1\n-two = 2\n+two = 3\n"
STEPS = (
    {"id": "1", "kind": "create", "files": [{"path": "new/deep/n.py", "content": "n = 1\n"}]},
    {"id": "2", "kind": "edit", "files": [{"path": "a.py", "diff": EDIT}]},
    {"id": "3", "kind": "delete", "files": [{"path": "old.txt"}]},
    {
        "id": "4",
        "kind": "edit",
        "files": [{"path": "new/deep/n.py", "diff": "@@ -1 +1 @@\n-n = 1\n+n = 2\n"}],
    },
)


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder with its mode and bytes."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path.relative_to(root))] = (status.st_mode, content)
    return found


def project(root: Path) -> Path:
    """A small project."""
    (root / "src").mkdir(parents=True)
    (root / "a.py").write_text("one = 1\ntwo = 2\n")
    (root / "a.py").chmod(0o640)
    (root / "src" / "b.py").write_text("b = 1\n")
    (root / "old.txt").write_bytes(b"old\r\nnot ended")
    return root


class Stage:
    """One plan of a run, as its owner has it."""

    def __init__(self, root: Path, *steps: Any) -> None:
        self.root = root
        self.draft = PlanDraft.read({"goal": "g", "steps": list(steps)})
        self.journal = MemoryJournal()

    async def begin(self, **options: Any) -> StepWork:
        self.plan: ApprovalPlan = await Workspace(self.root).validated(
            self.draft, plan_id="plan-1", version=1
        )
        self.lease = await self.journal.create("run", "me", BODY)
        return StepWork(self.journal, self.lease, self.root, self.plan, clock=FakeClock(auto=True), **options)

    async def again(self, **options: Any) -> StepWork:
        """The work of the next owner."""
        lease = await self.journal.claim("run", "next", steal=True)
        records = await self.journal.load("run")
        return StepWork(self.journal, lease, self.root, self.plan, records=records, **options)

    async def bodies(self) -> list[tuple[str, dict[str, Any]]]:
        return [(one.kind, dict(one.body)) for one in (await self.journal.load("run"))[1:]]


async def all_done(work: StepWork, plan: ApprovalPlan) -> None:
    for step in plan.steps:
        await work.perform(step)


async def refused(work: StepWork, plan: ApprovalPlan, step: str) -> ApprovalError:
    with pytest.raises(ApprovalError) as error:
        await work.perform(plan.step(step))
    return error.value


class Crash(BaseException):
    """The process is gone: nothing after it runs."""
