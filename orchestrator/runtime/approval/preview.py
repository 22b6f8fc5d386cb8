"""The changes of a plan for the person who approves it, computed from the files and not taken from the model.

Diffs compare the current files with the future ones. A step that depends on another one is shown on top of it.
"""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from pathlib import Path

from orchestrator.machines.approval import patch
from orchestrator.machines.approval.caps import PlanCaps
from orchestrator.machines.approval.fault import ApprovalError
from orchestrator.machines.approval.plan import ApprovalPlan, FileChange, Fingerprint, PlanStep, StepKind
from orchestrator.runtime.approval.file_inspection import FileContent, encoded, fingerprint
from orchestrator.runtime.approval.workspace import Workspace, changed

NO_UNDO = "cannot be undone"


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One file of a step, or its command (with an empty `path` and the command line as `text`)."""

    step_id: str
    kind: str
    path: str
    text: str
    added: int = 0
    removed: int = 0
    note: str = ""
    """Additional information for the person."""


async def preview(
    plan: ApprovalPlan, root: Path | str, caps: PlanCaps | None = None, seconds: float = 0.0
) -> tuple[FileDiff, ...]:
    """Return all actions of a plan in order. The note of a file says if it changed meanwhile.

    Raises ApprovalError FS-012 if a file takes longer than `seconds`, because its changes are unknown then.
    """
    workspace = Workspace(root, caps, seconds)
    now = {target.path: await _unchanged(target, workspace) for target in plan.targets}
    return await asyncio.to_thread(_all, plan, now)


async def _unchanged(target: Fingerprint, workspace: Workspace) -> FileContent | None:
    """Return the file at a path; None if it differs from the file that the plan was made for."""
    try:
        found = await workspace.found(target.path)
    except ApprovalError as fault:
        if fault.code == "FS-012":
            raise
        return None
    return found if found.fingerprint == target else None


def _all(plan: ApprovalPlan, now: dict[str, FileContent | None]) -> tuple[FileDiff, ...]:
    shown: list[FileDiff] = []
    for step in plan.steps:
        if step.kind is StepKind.RUN:
            shown.append(FileDiff(step.id, step.kind.value, "", shlex.join(step.argv), note=NO_UNDO))
        shown += [_one(step, file, now) for file in step.files]
    return tuple(shown)


def _one(step: PlanStep, file: FileChange, now: dict[str, FileContent | None]) -> FileDiff:
    found = now.get(file.path)
    if found is None:  # not the file of the plan: show the plan's own text
        text = file.diff if file.diff is not None else patch.make(file.path, None, file.content)
        note = "the file is not as it was when the plan was made"
        return FileDiff(step.id, step.kind.value, file.path, text, *_counted(text), note=note)
    before, after = found.text, changed(step.kind, file, found)
    text = patch.make(file.path, before, after)
    content = None if after is None else encoded(after, found.fingerprint.encoding)
    made = Fingerprint(path=file.path) if content is None else fingerprint(file.path, content)
    now[file.path] = FileContent(made, after)
    return FileDiff(step.id, step.kind.value, file.path, text, *_counted(text))


def _counted(text: str) -> tuple[int, int]:
    """Return the number of added and removed lines of a diff, without its header lines, which may be missing."""
    lines = patch.split(text)
    marks = [line[:1] for line in lines[2 if text.startswith("--- ") else 0 :]]
    return marks.count("+"), marks.count("-")
