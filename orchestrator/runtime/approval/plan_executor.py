"""The planner and the project as the hooks of approval use them: all effects outside the machine.

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
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

from orchestrator.errors import JournalError
from orchestrator.files.atomic import Hook, silent
from orchestrator.files.path_safety import FileRefused
from orchestrator.files.rollback import AnyRecord, Change, Conflict, ExternalEdit, RollbackStack, UndoReport
from orchestrator.kernel.cancellation import host_call, host_function
from orchestrator.kernel.journal import Draft, Journal, Lease, write_records
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.llm.retry import RetryAttempt, RetryPolicy, RetryTable
from orchestrator.machines.approval import rules
from orchestrator.machines.approval.fault import RULES, ApprovalError, Fault, FaultRule
from orchestrator.machines.approval.limits import ApprovalLimits, PlanCaps
from orchestrator.machines.approval.plan import (
    LONGEST_REQUEST,
    ApprovalPlan,
    ApprovalPlanner,
    DriftReport,
    Extraction,
    FileChange,
    Fingerprint,
    Intent,
    PlanDraft,
    PlanRequest,
    PlanStep,
    StepKind,
    digest_of,
    part,
)
from orchestrator.runtime.approval import workspace
from orchestrator.runtime.approval.project_journal import ProjectLog
from orchestrator.runtime.approval.rate_limiter import OperationRateLimiter
from orchestrator.runtime.approval.workspace import Workspace, changed, encoded, fault_of, fingerprint
from orchestrator.runtime.service import program
from orchestrator_callbacks.approval.deps import ApprovalRun
from orchestrator_guards import BlockedGate, first_blocked


def policy(row: FaultRule) -> RetryPolicy:
    """Return the policy of a row. Delays are exact: two runs of one plan wait equally long."""
    return RetryPolicy(
        attempts=row.retries + 1, base=row.base, max_delay=row.most or row.base, jitter=0.0, deadline=0.0
    )


RETRIES = RetryTable({row.code: policy(row) for row in RULES.values() if row.retries})
"""The policies of all codes with retries."""


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
            ran = await workspace.run(
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
            code, how = "BLD-002", f"ended with {ran.exit_code}"
            if ran.exit_code is None:
                code, how = "BLD-003", f"took longer than {step.timeout:g} s and was stopped"
            elif ran.exit_code < 0:
                how = f"was stopped by signal {-ran.exit_code}"
            raise ApprovalError(Fault(code, f"{step.argv[0]!r} {how}", step=step.id)).saying(ran.output)
        del self.unknown[step.id]
        return StepReport(step.id, (), ran.exit_code, ran.output)

    # ---- revert ----

    def _mark(self, key: str) -> str:
        return program.mark_of(str(self._workspace.root), self._lease.run_id, key)

    async def _undone_alone(self, labels: set[str]) -> UndoReport:
        """Undo steps, after programs that a previous owner left running were ended."""
        if self._cut_short:
            steps = {self._mark(key): step for step, key in self._cut_short.items()}
            found = await asyncio.to_thread(program.end_processes, steps)
            self.ended = tuple(step for mark, step in steps.items() if mark in found.marks)
            self._cut_short.clear()
        return await self._undone(labels)

    async def _undone(self, labels: set[str]) -> UndoReport:
        changes: list[Change] = []
        conflicts: list[Conflict] = []
        newest = list(dict.fromkeys(change.step for change in reversed(self._stack.changes)))
        for label in newest:
            # A file that could not be restored in a later step keeps this step as well.
            kept = {conflict.path for conflict in conflicts}
            hidden = any(change.path in kept for change in self._stack.changes if change.step == label)
            if label in labels and not hidden:
                try:
                    part = await self._stack.undo(step=label)
                except OSError as error:
                    path = next(one.path for one in reversed(self._stack.changes) if one.step == label)
                    fault = fault_of(error, path).at(label.removeprefix(self._plan.label))
                    raise ApprovalError(fault) from error
                changes += part.changes
                conflicts += part.conflicts
                if not part.conflicts:
                    step_id = label.removeprefix(self._plan.label)
                    if step_id in self._done:
                        self._done.remove(step_id)
        return UndoReport(tuple(changes), tuple(conflicts))

    async def _append(self, *drafts: Draft) -> None:
        await write_records(self._journal, self._lease, *drafts)
        self._hook(drafts[0].kind)


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


OnAttempt: TypeAlias = Callable[[RetryAttempt], None]


async def extracted(
    planner: ApprovalPlanner, text: str, *, on_attempt: OnAttempt | None = None, clock: Clock | None = None
) -> Extraction:
    """Return the intents of a person. Raises ApprovalError after the retries of its code."""
    if not text.strip():
        raise ApprovalError(Fault("VAL-001", "the request is empty; describe the change"))
    if len(text) > LONGEST_REQUEST:
        said = f"the request has {len(text)} characters, at most {LONGEST_REQUEST} are allowed"
        raise ApprovalError(Fault("VAL-001", said))
    extract = host_function(planner.extract, "stage", "planner")
    return await RETRIES.call(extract, text, on_attempt=on_attempt, clock=clock or SystemClock())


async def drafted(
    planner: ApprovalPlanner,
    workspace: Workspace,
    request: PlanRequest,
    *,
    plan_id: str,
    version: int,
    on_attempt: OnAttempt | None = None,
    clock: Clock | None = None,
) -> ApprovalPlan:
    """Return a valid plan. A planner that can make another plan receives the faults of the last one.

    Raises ApprovalError after the retries of its code.
    """
    asked = request

    async def attempt() -> ApprovalPlan:
        nonlocal asked
        draft = await host_call(planner.plan(asked), "stage", "planner")
        try:
            return await workspace.validated(draft, plan_id=plan_id, version=version, intent=request.intent)
        except ApprovalError as fault:
            asked = replace(asked, faults=fault.faults)
            fault.retryable = fault.retryable and planner.regenerates
            raise

    return await RETRIES.call(attempt, on_attempt=on_attempt, clock=clock or SystemClock())


_RESOLVE = (
    "resume, once the files are as the plan expects them",
    "cancel, which undoes the plan and keeps changes from outside; then submit for a new plan",
)
"""Actions of a person about a conflict."""


class PlanExecutor:
    """Implement `PlanActions` for one project. `hook` is called at each point where a crash can happen."""

    def __init__(  # noqa: PLR0917 - the parts of one project
        self,
        root: Path,
        journal: Journal,
        planner: ApprovalPlanner | None,
        limits: ApprovalLimits,
        clock: Clock,
        log: ProjectLog,
        hook: Hook = silent,
    ) -> None:
        self._root = root
        self._journal = journal
        self._limits = limits
        self._clock = clock
        self._log = log
        self._hook = hook
        self._rate_limiter = OperationRateLimiter(
            {
                "ai": limits.ai_per_minute,
                "writes": limits.writes_per_minute,
                "builds": limits.builds_per_minute,
            },
            clock,
        )
        self._planner = None if planner is None else _InTime(planner, self._rate_limiter, limits.ai_seconds)
        self._workspace = Workspace(root, limits.caps, limits.file_seconds, limits.index_seconds)
        self._work: tuple[str, StepWork] | None = None
        """The work on the plan of that digest, under the lease of the run."""

    # ---- the planner ----

    async def extract(self, run: ApprovalRun) -> Extraction:
        """Request the person's intent from the planner."""
        return await extracted(
            self._require_planner(), run.ctx.request, clock=self._clock, on_attempt=self._attempts_of(run)
        )

    async def draft(self, run: ApprovalRun, plan_id: str, version: int) -> ApprovalPlan:
        """Request a valid plan from the planner."""
        ctx = run.ctx
        request = PlanRequest(
            intent=Intent.read(ctx.intent or {}),
            changes=ctx.changes,
            previous=ApprovalPlan.read(ctx.plan) if ctx.changes and ctx.plan else None,
            tree=await self._workspace.tree(),
        )
        return await drafted(
            self._require_planner(),
            self._workspace,
            request,
            plan_id=plan_id,
            version=version,
            clock=self._clock,
            on_attempt=self._attempts_of(run),
        )

    def _require_planner(self) -> ApprovalPlanner:
        if self._planner is None:
            raise ApprovalError(Fault("CFG-001", "no planner is configured; give a plan file or a model"))
        return self._planner

    def _attempts_of(self, run: ApprovalRun) -> OnAttempt:
        def publish(tried: RetryAttempt) -> None:
            """Log code, attempt and delay of a retry."""
            code = str(getattr(tried.error, "code", ""))
            with suppress(OSError):  # a gate reports it before the plan starts
                self._log.write(
                    "Retry",
                    run_id=run.run_id,
                    code=code,
                    attempt=tried.number,
                    delay=tried.delay,
                    outcome=tried.outcome,
                )

        return publish

    # ---- gates ----

    async def ready(self, run: ApprovalRun, *, provider: bool) -> BlockedGate | None:
        """Return the gate that blocks the execution or the resumption of the plan, or None.

        The execution of an approved plan needs no provider; a resume requires one.
        """
        work = await self.work(run)
        asked = [await self.outdated(run)]
        fault = await self._planner.reachable() if provider and self._planner is not None else None
        if fault is not None:
            then = "resume", "cancel"
            asked.append(BlockedGate("ai", fault.message, then, retryable_now=True, code=fault.code))
        open_commands = [step for step, key in work.unknown.items() if key not in run.ctx.again]
        if open_commands:
            reason = f"the command of step {', '.join(open_commands)} was interrupted; it is unknown whether it has run"
            asked.append(BlockedGate("plan", reason, ("resume --again", "cancel"), code="ST-006"))
        if not self._log.is_ready():
            asked.append(
                BlockedGate(
                    "logging_ready",
                    "the log cannot be written",
                    ("status",),
                    retryable_now=True,
                    code="FS-003",
                )
            )
        return first_blocked(asked)

    async def outdated(self, run: ApprovalRun) -> BlockedGate | None:
        """Return the gate of an outdated plan: a target or the settings changed."""
        plan = ApprovalPlan.read(run.ctx.plan or {})
        gates: list[BlockedGate | None] = []
        if plan.caps_digest != digest_of(asdict(self._limits.caps)):
            reason = "the settings changed since the plan was made"
            gates.append(BlockedGate("plan", reason, ("changes", "cancel"), code="CFG-004"))
        elif found := rules.faults(plan, self._limits.caps):
            # A stored plan was valid, but a plan in a copied folder may not be.
            gates.append(BlockedGate("plan", str(found[0]), ("cancel",), code=found[0].code))
        if drift := await self.drifted(run):
            reason = f"differs from the plan: {'; '.join(map(str, drift.entries))}"
            gates.append(BlockedGate("drift", reason, _RESOLVE, code="ST-005"))
        return first_blocked(gates)

    def affordable(self) -> BlockedGate | None:
        """Return the gate of a used-up token budget, which blocks another plan, or None."""
        fault = None if self._planner is None else self._planner.budget()
        if fault is None:
            return None
        return BlockedGate("token_budget", fault.message, ("reject", "acknowledge"), code=fault.code)

    async def drifted(self, run: ApprovalRun) -> DriftReport:
        """Return the targets that differ from the plan and its finished steps."""
        return await self._workspace.drift(ApprovalPlan.read(run.ctx.plan or {}), await self.done(run))

    async def done(self, run: ApprovalRun) -> tuple[str, ...]:
        """Return the ids of the finished steps."""
        plan = ApprovalPlan.read(run.ctx.plan or {})
        return tuple(completed(await self._journal.load(run.run_id), plan))

    # ---- the project ----

    async def work(self, run: ApprovalRun) -> StepWork:
        """Return the work on the current plan, restored from the records of the run."""
        plan = ApprovalPlan.read(run.ctx.plan or {})
        if run.lease is None:
            raise ApprovalError(Fault("ST-001", "this process does not hold the project"))
        if self._work is None or self._work[0] != plan.digest:
            self._work = (plan.digest, await self._work_on(plan, run, run.lease))
        return self._work[1]

    async def _work_on(self, plan: ApprovalPlan, run: ApprovalRun, lease: Lease) -> StepWork:
        return StepWork(
            self._journal,
            lease,
            self._root,
            plan,
            records=await self._journal.load(run.run_id),
            hook=self._hook,
            clock=self._clock,
            caps=self._limits.caps,
            seconds=self._limits.file_seconds,
        )

    async def left(self, run: ApprovalRun) -> tuple[PlanStep, ...]:
        """Return the remaining steps."""
        plan = ApprovalPlan.read(run.ctx.plan or {})
        done = await self.done(run)
        return tuple(step for step in plan.steps if step.id not in done)

    async def turn(self, step: PlanStep) -> None:
        """Wait until the rate limits allow a step."""
        if step.kind is StepKind.RUN:
            await self._rate_limiter.turn("builds")
        else:
            await self._rate_limiter.turn("writes", len(step.files))

    async def perform(self, run: ApprovalRun, step: PlanStep) -> StepReport:
        """Execute one step."""
        work = await self.work(run)
        return await work.perform(step)

    async def undo(self, run: ApprovalRun) -> UndoReport:
        """Revert the changes of the plan, and those of failed earlier plans of this request."""
        changes: list[Change] = []
        conflicts: dict[str, Conflict] = {}
        for one in reversed(run.ctx.versions):
            plan = ApprovalPlan.read(one["plan"])
            if run.lease is None or plan.label in run.ctx.completed:
                continue
            present = run.ctx.plan is not None and plan.digest == ApprovalPlan.read(run.ctx.plan).digest
            work = await self.work(run) if present else await self._work_on(plan, run, run.lease)
            undone = await work.undo_plan()
            changes += undone.changes
            conflicts = {conflict.path: conflict for conflict in undone.conflicts} | conflicts
        return UndoReport(tuple(changes), tuple(conflicts.values()))

    async def derived(self, plan: ApprovalPlan, chosen: Collection[str], plan_id: str) -> ApprovalPlan:
        """Return a new validated plan for some of the steps of another one."""
        draft = part(plan, chosen)
        return await self._workspace.validated(draft, plan_id=plan_id, version=1, derived_from=plan.digest)

    async def undo_open(self, run: ApprovalRun) -> UndoReport:
        """Revert a step that a crash left incomplete."""
        work = await self.work(run)
        return await work.undo_open()


class _InTime:
    """A planner with a time limit for its answers and a rate limit."""

    def __init__(self, planner: ApprovalPlanner, rate_limiter: OperationRateLimiter, seconds: float) -> None:
        self._planner = planner
        self._rate_limiter = rate_limiter
        self._seconds = 0.0 if getattr(planner, "bounds_itself", False) else seconds

    @property
    def regenerates(self) -> bool:
        return self._planner.regenerates

    async def extract(self, text: str) -> Extraction:
        return await self._timed(self._planner.extract(text))

    async def plan(self, request: PlanRequest) -> PlanDraft:
        return await self._timed(self._planner.plan(request))

    def budget(self) -> Fault | None:
        asked = getattr(self._planner, "budget", None)
        fault: Fault | None = None if asked is None else asked()
        return fault

    async def reachable(self) -> Fault | None:
        return await self._timed(self._planner.reachable(), counts=False)

    async def _timed(self, answer: Awaitable[T], *, counts: bool = True) -> T:
        if counts:
            await self._rate_limiter.turn("ai")
        try:
            async with asyncio.timeout(self._seconds or None):
                return await answer
        except TimeoutError:
            message = f"the planner did not answer within {self._seconds:g} s"
            raise ApprovalError(Fault("AI-002", message)) from None
