"""Execution of the steps of one approved plan on the project: each is done completely or reverted completely.

Files are changed through the rollback stack: their prior content is durable before a change. A command is announced
before it runs and cannot be reverted; an interrupted one is `unknown`, and a person decides. In addition to the
records of the stack:

    intent  {effect: "command", key, step, argv}        done  {effect: "command", key, step, exit}
    rolled_back {effect: "command", key, step, outcome: "not started"}
    done    {effect: "step", step, after: {path: sha256 or None}}        the last record of a complete step

`step` is the label of a step, which includes its plan: a run may execute several plans, one after the other. A
command that changes a file of the plan does so outside of the plan: a later step of that file is refused, and an undo
keeps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from orchestrator.errors import JournalError
from orchestrator.files.atomic import Hook, silent
from orchestrator.files.change import AnyRecord, Change, Conflict, ExternalEdit, UndoReport
from orchestrator.files.path_safety import FileRefused
from orchestrator.files.rollback import RollbackStack
from orchestrator.kernel.journal import Draft, Journal, Lease, write_records
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.machines.approval.caps import PlanCaps
from orchestrator.machines.approval.drift import DriftReport
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.plan import ApprovalPlan, FileChange, Fingerprint, PlanStep, StepKind
from orchestrator.runtime.approval import command
from orchestrator.runtime.approval.file_inspection import encoded, fault_of, fingerprint
from orchestrator.runtime.approval.retry_policy import RETRIES
from orchestrator.runtime.approval.workspace import Workspace, changed
from orchestrator.runtime.service import surviving_program

T = TypeVar("T")

COMMAND, STEP = "command", "step"


@dataclass(frozen=True, slots=True)
class StepReport:
    """A complete step."""

    step: str
    files: tuple[Fingerprint, ...] = ()
    """The files after the step."""
    exit_code: int | None = None
    output: str = ""
    """Last part of a command's output. No record contains it."""


@dataclass(frozen=True, slots=True)
class StepProgress:
    """The progress of a plan according to its records: ids of steps in order of execution."""

    completed: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """Steps whose command has ended, successfully or not."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Incomplete steps whose command started and is not known to have succeeded: id -> key of the last attempt. Such a
    command runs again only on request."""
    cut_short: Mapping[str, str] = field(default_factory=dict)
    """Steps whose command started and is not known to have ended: id -> key."""
    begun: int = 0
    """Number of commands of all plans of the run."""


def completed(records: Iterable[AnyRecord], plan: ApprovalPlan) -> tuple[str, ...]:
    """Return the ids of the complete steps of a plan that were not undone since. Pure."""
    return step_progress(records, plan).completed


def step_progress(records: Iterable[AnyRecord], plan: ApprovalPlan) -> StepProgress:
    """Return the progress of a plan. Pure."""
    steps: dict[str, None] = {}
    commands = _Commands()
    changes: dict[str, str] = {}
    for record in records:
        kind, body = record.kind, record.body
        effect, label, key = body.get("effect"), str(body.get("step", "")), str(body.get("key", ""))
        commands.begun += effect == COMMAND and kind == "intent"
        if kind == "rolled_back" and key in changes:
            steps.pop(changes[key], None)
        elif not label.startswith(plan.label):
            continue
        elif effect == COMMAND:
            commands.fold(kind, key, label, body.get("exit"))
        elif effect == STEP and kind == "done":
            steps[label] = None
        elif kind == "intent":
            changes[key] = label
    unknown = {label: key for label, key in commands.unsettled.items() if label not in steps}
    return StepProgress(
        plan.ids(steps),
        plan.ids(commands.ended),
        dict(zip(plan.ids(unknown), unknown.values(), strict=True)),
        dict(zip(plan.ids(commands.open), commands.open.values(), strict=True)),
        commands.begun,
    )


@dataclass(slots=True)
class _Commands:
    """The commands in the records, by the label of their step."""

    unsettled: dict[str, str] = field(default_factory=dict)
    """Keys of commands that started and did not succeed."""
    open: dict[str, str] = field(default_factory=dict)
    """Keys of commands that are not known to have ended."""
    ended: dict[str, None] = field(default_factory=dict)
    begun: int = 0

    def fold(self, kind: str, key: str, label: str, exit_code: int | None) -> None:
        if kind == "intent":
            self.unsettled[label] = self.open[label] = key
            return
        self.open.pop(label, None)
        if kind == "done":
            self.ended[label] = None
        if kind == "rolled_back" or (kind == "done" and exit_code == 0):
            self.unsettled.pop(label, None)


class StepWork:
    """Execute and undo the steps of a plan, for the owner of a run.

    `records` are all records of the run so far; `seconds` limits each file operation (0: no limit). Raises
    ApprovalError with nothing half done, and the errors of the journal, after which this object is unusable. A
    cancellation takes effect only after the current step or undo.
    """

    def __init__(
        self,
        journal: Journal,
        lease: Lease,
        root: Path | str,
        plan: ApprovalPlan,
        *,
        records: Iterable[AnyRecord] = (),
        hook: Hook = silent,
        clock: Clock | None = None,
        caps: PlanCaps | None = None,
        seconds: float = 0.0,
    ) -> None:
        records = tuple(records)
        self._journal, self._lease, self._plan, self._hook = journal, lease, plan, hook
        self._clock = clock or SystemClock()
        self._workspace = Workspace(root, caps, seconds)
        self._stack = RollbackStack.recover(
            records,
            journal,
            lease,
            self._workspace.root,
            hook=hook,
            seconds=seconds,
            steps=lambda one: one.startswith(plan.label),
        )
        told = step_progress(records, plan)
        self._done = list(told.completed)
        self._ran = list(told.commands)
        self._begun = told.begun
        self.unknown = dict(told.unknown)
        """Steps whose command may have run: id -> key of the last attempt. Performing such a step runs it once more."""
        self._cut_short = dict(told.cut_short)
        self.ended: tuple[str, ...] = ()
        """Steps whose abandoned command was still running and was ended before an undo."""

    @property
    def done(self) -> tuple[str, ...]:
        """Ids of the complete steps."""
        return tuple(self._done)

    @property
    def commands_run(self) -> tuple[str, ...]:
        """Ids of the steps whose command has run, which no undo reverts."""
        return tuple(self._ran)

    async def perform(self, step: PlanStep) -> StepReport:
        """Execute one step after all steps before it. Raises ApprovalError with the step reverted."""
        return await _to_its_end(self._perform(step))

    async def undo_open(self) -> UndoReport:
        """Revert the remains of an incomplete step after a crash."""
        return await _to_its_end(self._undone_alone(self._open))

    async def undo_plan(self) -> UndoReport:
        """Revert every step of the plan, newest first. Changes from outside are kept and reported."""
        return await _to_its_end(self._undone_alone({change.step for change in self._stack.changes}))

    async def drift(self) -> DriftReport:
        """Compare every file of the plan with its expected state."""
        return await self._workspace.drift(self._plan, self._done)

    @property
    def _open(self) -> set[str]:
        """Incomplete steps that have changed files, or may have."""
        return {change.step for change in self._stack.changes} - set(map(self._plan.step_label, self._done))

    # ---- execute ----

    async def _perform(self, step: PlanStep) -> StepReport:
        if self._plan.step(step.id) != step:
            raise ApprovalError(
                Fault("ST-003", f"step {step.id!r} differs from the step in the plan", step=step.id)
            )
        if step.id in self._done:
            raise ApprovalError(Fault("ST-001", f"step {step.id!r} is complete already", step=step.id))
        first = next(one.id for one in self._plan.steps if one.id not in self._done)
        if first != step.id:
            raise ApprovalError(
                Fault("ST-001", f"step {first!r} comes before step {step.id!r}", step=step.id)
            )
        left = await self._undone(self._open)
        if left.conflicts:
            raise ApprovalError(
                [Fault("ST-005", str(one), path=one.path, step=step.id) for one in left.conflicts]
            )
        report = await RETRIES.call(self._tried, step, clock=self._clock)
        self._done.append(step.id)
        self._hook("step done")
        return report

    async def _tried(self, step: PlanStep) -> StepReport:
        if step.kind is StepKind.RUN:
            return await self._run(step)
        try:
            files = tuple([await self._change(step, file) for file in step.files])
        except JournalError:
            raise
        except Exception as error:
            fault = _faulted(error, step)
            undone = await self._undone({self._plan.step_label(step)})
            if undone.conflicts:
                kept = [Fault("ST-007", str(one), path=one.path, step=step.id) for one in undone.conflicts]
                raise ApprovalError([*fault.faults, *kept], code="ST-007") from error
            raise fault from error
        await self._append(self._complete(step, files))
        return StepReport(step.id, files)

    def _complete(self, step: PlanStep, files: tuple[Fingerprint, ...] = ()) -> Draft:
        after = {file.path: file.sha256 for file in files}
        return Draft("done", {"effect": STEP, "step": self._plan.step_label(step), "after": after})

    async def _change(self, step: PlanStep, file: FileChange) -> Fingerprint:
        path, label = file.path, self._plan.step_label(step)
        found = await self._workspace.found(path)
        expected = self._plan.expected(self._done)[path]
        if found.fingerprint != expected:
            raise ApprovalError(
                Fault("FS-006", f"{path!r} is not as it was when the plan was made", path=path)
            )
        text = changed(step.kind, file, found)
        content = None if text is None else encoded(text, found.fingerprint.encoding)
        made = fingerprint(path, content)
        if made != self._plan.expected([*self._done, step.id])[path]:
            raise ApprovalError(
                Fault("ST-002", f"{path!r} would differ from the approved content", path=path)
            )
        if step.kind is StepKind.CREATE:
            await self._stack.create(path, content or b"", step=label)
        elif step.kind is StepKind.EDIT:
            await self._stack.edit(path, content or b"", step=label, expected=expected.sha256)
        else:
            await self._stack.delete(path, step=label, expected=expected.sha256)
        return made

    async def _run(self, step: PlanStep) -> StepReport:
        label = self._plan.step_label(step)
        key = f"{COMMAND}-{self._begun}"
        self._begun += 1
        about = {"effect": COMMAND, "key": key, "step": label}
        await self._append(Draft("intent", {**about, "argv": list(step.argv)}))
        self.unknown[step.id] = key
        self._hook("command begins")
        try:
            ran = await command.run(
                step.argv, root=self._workspace.root, seconds=step.timeout, mark=self._mark(key)
            )
        except ApprovalError as fault:
            await self._append(Draft("rolled_back", {**about, "outcome": "not started"}))
            del self.unknown[step.id]
            raise ApprovalError([one.at(step.id) for one in fault.faults], code=fault.code) from None
        self._hook("command ended")
        ended = Draft("done", {**about, "exit": ran.exit_code})
        # In one append, so that a successful command never runs again because of a crash before its step was complete.
        await self._append(ended, *([self._complete(step)] if ran.exit_code == 0 else []))
        self._ran.append(step.id)
        if ran.exit_code != 0:
            raise ApprovalError(_failed(step, ran)).saying(ran.output)
        del self.unknown[step.id]
        return StepReport(step.id, (), ran.exit_code, ran.output)

    # ---- revert ----

    def _mark(self, key: str) -> str:
        return surviving_program.mark_of(str(self._workspace.root), self._lease.run_id, key)

    async def _undone_alone(self, labels: set[str]) -> UndoReport:
        """Undo steps, after programs that a previous owner left running were ended."""
        if self._cut_short:
            steps = {self._mark(key): step for step, key in self._cut_short.items()}
            found = await asyncio.to_thread(surviving_program.end, steps)
            self.ended = tuple(step for mark, step in steps.items() if mark in found.marks)
            self._cut_short.clear()
        return await self._undone(labels)

    async def _undone(self, labels: set[str]) -> UndoReport:
        changes: list[Change] = []
        conflicts: list[Conflict] = []
        newest = list(dict.fromkeys(change.step for change in reversed(self._stack.changes)))
        for label in newest:
            if label in labels and not _hidden(self._stack.changes, label, conflicts):
                part = await self._put_back(label)
                changes += part.changes
                conflicts += part.conflicts
                if not part.conflicts:
                    self._forget(label.removeprefix(self._plan.label))
        return UndoReport(tuple(changes), tuple(conflicts))

    async def _put_back(self, label: str) -> UndoReport:
        try:
            return await self._stack.undo(step=label)
        except OSError as error:
            path = next(change.path for change in reversed(self._stack.changes) if change.step == label)
            fault = fault_of(error, path).at(label.removeprefix(self._plan.label))
            raise ApprovalError(fault) from error

    def _forget(self, step_id: str) -> None:
        if step_id in self._done:
            self._done.remove(step_id)

    async def _append(self, *drafts: Draft) -> None:
        await write_records(self._journal, self._lease, *drafts)
        self._hook(drafts[0].kind)


def _hidden(changes: Iterable[Change], label: str, conflicts: list[Conflict]) -> bool:
    """Return whether a file of a step could not be restored in a later step, so that this step is kept as well."""
    kept = {conflict.path for conflict in conflicts}
    return any(change.path in kept for change in changes if change.step == label)


def _faulted(error: Exception, step: PlanStep) -> ApprovalError:
    """Return the error of a step as one of the error table."""
    if isinstance(error, ApprovalError):
        return ApprovalError([one.at(step.id) for one in error.faults], code=error.code)
    if isinstance(error, ExternalEdit):
        path = error.conflict.path
        return ApprovalError(
            Fault("FS-006", f"{path!r} was changed outside meanwhile", path=path, step=step.id)
        )
    if isinstance(error, FileRefused):
        return ApprovalError(Fault("SEC-011", str(error), path=error.path, step=step.id))
    if isinstance(error, OSError):
        path = next(iter(step.paths), "")
        return ApprovalError(fault_of(error, path).at(step.id))
    return ApprovalError(Fault("ST-008", f"the step failed: {type(error).__name__}", step=step.id))


def _failed(step: PlanStep, ran: command.CommandResult) -> Fault:
    if ran.exit_code is None:
        said = f"{step.argv[0]!r} took longer than {step.timeout:g} s and was stopped"
        return Fault("BLD-003", said, step=step.id)
    how = f"ended with {ran.exit_code}" if ran.exit_code > 0 else f"was stopped by signal {-ran.exit_code}"
    return Fault("BLD-002", f"{step.argv[0]!r} {how}", step=step.id)


async def _to_its_end(work: Awaitable[T]) -> T:
    """Complete work that must not be left half done; a cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    late: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as cancelled:
            late = cancelled
    if late is not None:
        raise late from (None if task.cancelled() else task.exception())
    return task.result()
