"""The project folder of a plan: its files, the effect of a plan on them, and changes since.

Only this module makes a plan from a draft: it checks the rules and every path, and rehearses all steps in memory. So
a person approves the exact bytes to write, and a step with any other result is refused later.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

from orchestrator.files.owned import within
from orchestrator.machines.approval import patch, rules
from orchestrator.machines.approval.caps import PlanCaps
from orchestrator.machines.approval.drift import DriftEntry, DriftReport
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.intent import Intent
from orchestrator.machines.approval.plan import (
    ApprovalPlan,
    FileChange,
    Fingerprint,
    PlanDraft,
    PlanStep,
    StepKind,
    StepOutcome,
    digest_of,
)
from orchestrator.runtime.approval import file_listing as listing
from orchestrator.runtime.approval.command import program
from orchestrator.runtime.approval.file_inspection import FileContent, encoded, fault_of, fingerprint, look
from orchestrator.runtime.approval.syntax import syntax_fault

T = TypeVar("T")


class Workspace:
    """A project folder. `seconds` and `index_seconds` of 0 mean no limit.

    Raises ApprovalError CFG-003 if the folder is invalid, and FS-012 if a file takes longer than `seconds`, or longer
    than `index_seconds` when all files are listed.
    """

    def __init__(
        self,
        root: Path | str,
        caps: PlanCaps | None = None,
        seconds: float = 0.0,
        index_seconds: float = 0.0,
    ) -> None:
        self.caps = caps or PlanCaps()
        self._seconds = seconds
        self._index_seconds = index_seconds
        try:
            self.root = Path(root).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise ApprovalError(Fault("CFG-003", f"the folder {str(root)!r} does not exist")) from None
        if not self.root.is_dir():
            raise ApprovalError(Fault("CFG-003", f"{str(root)!r} is not a folder"))

    async def validated(
        self,
        draft: PlanDraft,
        *,
        plan_id: str,
        version: int,
        intent: Intent | None = None,
        derived_from: str = "",
    ) -> ApprovalPlan:
        """Return the plan of a draft for the current files.

        Raises ApprovalError VAL-004 (-003, -005) with all faults.
        """
        if found := rules.faults(draft, self.caps):
            raise ApprovalError(found, code="VAL-004")
        files = sum(len(step.paths) for step in draft.steps)
        targets, outcomes = await self._in_time(partial(self._rehearsed, draft), files)
        return ApprovalPlan(
            goal=draft.goal,
            steps=draft.steps,
            id=plan_id,
            version=version,
            intent_digest="" if intent is None else intent.digest,
            caps_digest=digest_of(asdict(self.caps)),
            targets=targets,
            outcomes=outcomes,
            derived_from=derived_from,
        )

    async def drift(self, plan: ApprovalPlan, done: Collection[str] = ()) -> DriftReport:
        """Compare every file of a plan with its expected state after the steps `done`."""
        return await self._in_time(partial(self._drift, plan, frozenset(done)), len(plan.targets))

    async def found(self, path: str) -> FileContent:
        """Return the file at a path. Raises ApprovalError."""
        return await self._in_time(partial(self.look, path), 1, path)

    async def tree(self) -> tuple[Fingerprint, ...]:
        """Return the files of the project in order of their paths; see `file_listing` for the omitted ones.

        A slow file is an error and not omitted, because the planner would assume that it does not exist.
        """
        progress = listing.ListingProgress()
        listed = asyncio.ensure_future(within(0, partial(listing.files, self.root, self.caps, progress)))
        try:
            while not listed.done():
                await asyncio.wait((listed,), timeout=self._left(progress))
        finally:
            progress.given_up = True
            listed.cancel()
        return listed.result()

    def _left(self, progress: listing.ListingProgress) -> float | None:
        """Return the remaining seconds for the file in progress; None without a limit. Raises ApprovalError."""
        path, since = progress.at
        if not self._index_seconds:
            return None
        left = since + self._index_seconds - time.monotonic()
        if left <= 0:
            raise ApprovalError(fault_of(TimeoutError(errno.ETIMEDOUT, ""), path or str(self.root)))
        return left

    def look(self, path: str) -> FileContent:
        """Return the file at a path. Blocks. Raises ApprovalError."""
        return look(self.root, path, self.caps.file_bytes)

    async def _in_time(self, work: Callable[[], T], files: int, path: str = "") -> T:
        """Run work on several files in a thread. Abandoning it is safe: it writes nothing."""
        try:
            return await within(self._seconds * max(files, 1), work)
        except TimeoutError as error:
            raise ApprovalError(fault_of(error, path or str(self.root))) from None

    # ---- private, blocking ----

    def _drift(self, plan: ApprovalPlan, done: frozenset[str]) -> DriftReport:
        compared = (
            DriftEntry(expected=expected, found=listing.fingerprint_at(self.root, path))
            for path, expected in plan.expected(done).items()
        )
        return DriftReport(tuple(entry for entry in compared if entry.found != entry.expected))

    def _rehearsed(self, draft: PlanDraft) -> tuple[tuple[Fingerprint, ...], tuple[StepOutcome, ...]]:
        """Execute all steps in memory; return the files before and after each step. Raises ApprovalError."""
        faults: list[Fault] = []
        there: dict[str, FileContent] = {}
        for step in draft.steps:
            faults += [fault.at(step.id) for fault in self._missing(step, there)]
        now = dict(there)
        outcomes: list[StepOutcome] = []
        for step in draft.steps:
            for file in step.files:
                if file.path in now:  # otherwise it is among the faults
                    try:
                        now[file.path] = _done(step.kind, file, now[file.path], self.caps)
                    except ApprovalError as fault:
                        faults += [one.at(step.id) for one in fault.faults]
                        del now[file.path]
            made = tuple(now[path].fingerprint for path in sorted(step.paths) if path in now)
            outcomes.append(StepOutcome(step=step.id, files=made))
        if faults:
            raise ApprovalError(faults, code=_whole(faults))
        return tuple(there[path].fingerprint for path in sorted(there)), tuple(outcomes)

    def _missing(self, step: PlanStep, there: dict[str, FileContent]) -> Iterator[Fault]:
        """Inspect the files and programs of a step; yield the forbidden and the missing ones."""
        if step.kind is StepKind.RUN:
            if fault := program(step.argv[0], self.root)[1]:
                yield fault
            return
        for path in step.paths:
            if path not in there:
                try:
                    there[path] = self.look(path)
                except ApprovalError as fault:
                    yield from fault.faults


def changed(kind: StepKind, file: FileChange, found: FileContent) -> str | None:
    """Return the text of a file after a step; None if it is deleted. Pure. Raises ApprovalError."""
    path = file.path
    if file.sha256 is not None and file.sha256 != found.fingerprint.sha256:
        raise ApprovalError(
            Fault("FS-006", f"{path!r} differs from the file that the plan was made for", path=path)
        )
    if kind is StepKind.CREATE:
        if found.text is not None:
            raise ApprovalError(Fault("FS-002", f"{path!r} exists already; edit it instead", path=path))
        return file.content
    if found.text is None:
        raise ApprovalError(Fault("FS-001", f"{path!r} does not exist; {kind.value} needs a file", path=path))
    if kind is StepKind.DELETE:
        return None
    try:
        text = patch.parse(file.diff or "").apply(found.text)
    except patch.PatchMismatch as error:
        raise ApprovalError(Fault("VAL-003", f"{path!r}: {error}", path=path)) from None
    if text == found.text:
        raise ApprovalError(Fault("VAL-018", f"{path!r}: the diff changes nothing", path=path))
    return text


def _done(kind: StepKind, file: FileChange, found: FileContent, caps: PlanCaps) -> FileContent:
    """Return a file after a step, in memory. Raises ApprovalError."""
    text = changed(kind, file, found)
    if text is None:
        return FileContent(Fingerprint(path=file.path))
    content = encoded(text, found.fingerprint.encoding)
    if caps.file_bytes and len(content) > caps.file_bytes:
        said = f"{file.path!r} would have {len(content)} bytes, at most {caps.file_bytes} are allowed"
        raise ApprovalError(Fault("FS-008", said, path=file.path))
    if fault := syntax_fault(file.path, text):
        raise ApprovalError(fault)
    return FileContent(fingerprint(file.path, content), text)


def _whole(faults: list[Fault]) -> str:
    """Return the code of a plan with these faults: their common code if the table retries it, else VAL-004."""
    codes = {fault.code for fault in faults}
    return codes.pop() if codes in ({"VAL-003"}, {"VAL-005"}) else "VAL-004"
