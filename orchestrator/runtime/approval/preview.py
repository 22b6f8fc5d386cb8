"""What a plan would change, for the eyes of the person who approves it: the truth, not what the model drew.

Diffs are made of the files as they are and as they will be. A step that was rehearsed after another one is shown on top
of it.
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
    """One file of a step, or its command (`path` is empty then, `text` the command line)."""

    step_id: str
    kind: str
    path: str
    text: str
    added: int = 0
    removed: int = 0
    note: str = ""
    """What else the person has to know."""


async def preview(
    plan: ApprovalPlan, root: Path | str, caps: PlanCaps | None = None, seconds: float = 0.0
) -> tuple[FileDiff, ...]:
    """Return everything that a plan would do, in order. Where a file changed meanwhile, its note says so.

    Raises Faulted FS-012 where one takes longer than `seconds`: nobody knows then whether it changed.
    """
    ground = Workspace(root, caps, seconds)
    now = {target.path: await _unchanged(target, ground) for target in plan.targets}
    return await asyncio.to_thread(_all, plan, now)


async def _unchanged(target: Fingerprint, ground: Workspace) -> FileContent | None:
    """Return what is at a path; None where that is not what the plan was made for."""
    try:
        found = await ground.found(target.path)
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
    if found is None:  # not the file that the plan is of: what the plan says of it is all there is to show
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
    """Return how many lines a diff adds and removes. Its two head lines may be missing: those are no such lines."""
    lines = patch.split(text)
    marks = [line[:1] for line in lines[2 if text.startswith("--- ") else 0 :]]
    return marks.count("+"), marks.count("-")
