"""What the tests of approval share: a project, a plan of five steps for it, and a planner that says it."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.machines.approval.fault import Fault, GateRefused
from orchestrator.machines.approval.plan import (
    Extraction,
    FileChange,
    Intent,
    IntentKind,
    PlanDraft,
    PlanRequest,
    PlanStep,
    StepKind,
)
from orchestrator.runtime.approval.approval import Approval
from orchestrator.testing.clock import FakeClock
from tests.with_runtime import with_runtime

Tree = dict[str, tuple[int, bytes]]

FILES = {
    "src/main.py": b"import util\n\nprint(1)\n",
    "README.md": "# Töpfe\n\nOld text.\n".encode(),
    "old.txt": b"gone soon\r\n",
    "empty": b"",
}

EDIT_MAIN = "--- a/src/main.py\n+++ b/src/main.py\n@@ -1,3 +1,3 @@\n import util\n \n-print(1)\n+print(2)\n"
EDIT_AGAIN = "--- a/src/main.py\n+++ b/src/main.py\n@@ -1,3 +1,4 @@\n import util\n \n print(2)\n+print(3)\n"
EDIT_README = "--- a/README.md\n+++ b/README.md\n@@ -1,3 +1,3 @@\n # Töpfe\n \n-Old text.\n+New text.\n"

DRAFT = PlanDraft(
    goal="Tidy up",
    steps=(
        PlanStep(
            id="1", kind=StepKind.CREATE, files=(FileChange(path="docs/guide/new.md", content="# New\n"),)
        ),
        PlanStep(id="2", kind=StepKind.EDIT, files=(FileChange(path="src/main.py", diff=EDIT_MAIN),)),
        PlanStep(id="3", kind=StepKind.DELETE, files=(FileChange(path="old.txt"),)),
        PlanStep(id="4", kind=StepKind.CREATE, files=(FileChange(path="src/util.py", content="A = 1\n"),)),
        PlanStep(
            id="5",
            kind=StepKind.EDIT,
            files=(
                FileChange(path="README.md", diff=EDIT_README),
                FileChange(path="src/main.py", diff=EDIT_AGAIN),
            ),
        ),
    ),
)
"""Creates, edits and deletes; one file is edited twice."""

DONE = {
    "docs/guide/new.md": b"# New\n",
    "src/main.py": b"import util\n\nprint(2)\nprint(3)\n",
    "README.md": "# Töpfe\n\nNew text.\n".encode(),
    "src/util.py": b"A = 1\n",
    "empty": b"",
}
"""The files of the project after all five."""


def planted(root: Path) -> Path:
    """Make the project."""
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "src/main.py").chmod(0o755)
    return root


def tree(root: Path) -> Tree:
    """Every path of a project with its mode and content, the orchestrator's own folder left out."""
    found: Tree = {}
    for folder, folders, files in os.walk(root):
        if ".orchestrator" in folders and folder == str(root):
            folders.remove(".orchestrator")
        for name in (*folders, *files):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            found[path.as_posix()[len(str(root)) + 1 :]] = (
                mode,
                path.read_bytes() if stat.S_ISREG(mode) else b"",
            )
    return found


def contents(root: Path) -> dict[str, bytes]:
    """Every regular file of a project with its content."""
    return {name: content for name, (mode, content) in tree(root).items() if stat.S_ISREG(mode)}


def intent(confidence: float = 0.95, summary: str = "Tidy up", **more: Any) -> Intent:
    return Intent(kind=IntentKind.ADD_FEATURE, summary=summary, confidence=confidence, **more)


class Script:
    """A planner that gives these answers, in order, the last one again and again; an exception is raised."""

    regenerates = True

    def __init__(
        self,
        drafts: Iterable[PlanDraft | BaseException] = (DRAFT,),
        intents: Iterable[Iterable[Intent] | BaseException] = ((intent(),),),
        reachable: Callable[[], Fault | None] = lambda: None,
    ) -> None:
        self._drafts = list(drafts)
        self._intents: list[Any] = [one if isinstance(one, BaseException) else tuple(one) for one in intents]
        self._reachable = reachable
        self.requests: list[PlanRequest] = []

    async def extract(self, text: str) -> Extraction:
        said = self._intents.pop(0) if len(self._intents) > 1 else self._intents[0]
        if isinstance(said, BaseException):
            raise said
        return Extraction(intents=said)

    async def plan(self, request: PlanRequest) -> PlanDraft:
        self.requests.append(request)
        said = self._drafts.pop(0) if len(self._drafts) > 1 else self._drafts[0]
        if isinstance(said, BaseException):
            raise said
        return said

    async def reachable(self) -> Fault | None:
        return self._reachable()


def clock() -> FakeClock:
    """A clock that moves by itself where somebody waits."""
    return FakeClock(auto=True)


@asynccontextmanager
async def project(root: Path, planner: Any = None, **options: Any) -> Any:
    """Open a project, as every command of a person does."""
    options.setdefault("clock", clock())
    options.setdefault("by", "ann")
    options.setdefault("observers", ())
    async with Approval(root, planner or Script(), **with_runtime(**options)) as approval:
        yield approval


async def waiting(approval: Approval, text: str = "Please tidy up.") -> Any:
    """Submit, and look at the plan."""
    status = await approval.run(text)
    assert status.state == "AwaitingApproval", status.error
    return await approval.show()


async def refused(action: Awaitable[object], gate: str, code: str = "") -> GateRefused:
    """Carry out an action that a gate refuses, and return the refusal."""
    with pytest.raises(GateRefused) as caught:
        await action
    assert caught.value.gate == gate, caught.value
    assert caught.value.code == code or not code
    assert caught.value.reason
    return caught.value
