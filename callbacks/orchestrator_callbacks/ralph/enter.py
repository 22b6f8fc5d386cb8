"""The work of each state: read signals, read the files, call agents, return the event that leaves the state."""

from __future__ import annotations

import asyncio

from orchestrator.machines.ralph import step
from orchestrator.machines.ralph.contract import (
    CheckerInput,
    CheckerOutput,
    ExecutorInput,
    ExecutorOutput,
    ExecutorStatus,
    ReviewerInput,
    ReviewerOutput,
    ReviewerStatus,
    Role,
)
from orchestrator.machines.ralph.marker import Marker
from orchestrator.machines.ralph.model import RalphContext, RalphEvent, Task, count_tasks, next_task
from orchestrator.machines.ralph.ports import RalphSession
from orchestrator_callbacks.ralph import planning, signals
from orchestrator_callbacks.ralph.agent import StateCalls
from orchestrator_callbacks.ralph.deps import RalphRun


async def enter_initializing(run: RalphRun) -> RalphEvent:
    """Find out the state of the session. Failed tasks are reopened, because a person started another run of it."""
    await signals.poll(run)
    ctx = run.ctx
    await _read(run)
    tasks = await asyncio.to_thread(_reopened, run.deps.session, failed=True)
    ctx.is_new = ctx.is_new or not tasks  # nothing was planned yet, so planning starts again
    event = step.resolved(ctx, count_tasks(tasks))
    if event is RalphEvent.REVIEW_RESUMED:
        await _review_first(run, tasks)
    return event


async def enter_planning(run: RalphRun) -> RalphEvent:
    """Run a round of questions if one was requested, then make or change the plan."""
    await signals.poll(run)
    return await planning.plan(run)


async def enter_executing(run: RalphRun) -> RalphEvent:
    """Select a task, or execute the selected one."""
    await signals.poll(run)
    await _read(run)
    if run.ctx.selected:
        return await _execute(run)
    return RalphEvent.NEW_REQUIREMENTS if run.ctx.requirements else await _select(run)


async def enter_reviewing(run: RalphRun) -> RalphEvent:
    """Review the work of the current task. Without a report, also a lost one, the task is executed again."""
    await signals.poll(run)
    await _read(run)
    ctx, session = run.ctx, run.deps.session
    task, attempt = _current(ctx)
    report = await asyncio.to_thread(session.report, task, attempt)
    if report is None:
        return step.reviewed(ctx, None)
    request = ReviewerInput(
        session_path=ctx.session_path,
        task_id=task,
        report_path=str(report),
        context={"notes": ctx.notes, "attempt_number": attempt},
    )
    output = await StateCalls(run).ask(ReviewerOutput, Role.REVIEWER, request, usable=_reviewable)
    lost = await asyncio.to_thread(session.report, task, attempt) is None
    return step.reviewed(ctx, None if lost else output)


async def enter_complete(run: RalphRun) -> RalphEvent:
    """Check all work against the goal. Without a checker, all settled tasks are enough."""
    await signals.poll(run)
    ctx = run.ctx
    tasks = await _read(run)
    if ctx.requirements:
        return RalphEvent.NEW_REQUIREMENTS
    if not count_tasks(tasks).complete:  # the files were changed meanwhile
        output = CheckerOutput(passed=False, summary="not every task is settled")
    elif Role.CHECKER in run.deps.agents:
        request = CheckerInput(
            session_path=ctx.session_path, user_request=ctx.request, context={"notes": ctx.notes}
        )
        output = await StateCalls(run).ask(CheckerOutput, Role.CHECKER, request)
        await signals.poll(run)
    else:
        output = CheckerOutput(passed=True, summary="every task is settled")
    return step.checked(ctx, output)


# ---- tasks ----


async def _read(run: RalphRun) -> tuple[Task, ...]:
    await asyncio.to_thread(run.deps.session.refresh)
    return await asyncio.to_thread(run.deps.session.tasks)


def _reopened(session: RalphSession, *, failed: bool = False) -> tuple[Task, ...]:
    """Reopen tasks that wait for a review without a report, and with `failed` also failed tasks."""
    tasks, changed = session.tasks(), False
    for task in tasks:
        waits = task.marker is Marker.REVIEW and not task.planning
        bare = waits and session.report(task.id, max(1, session.attempts(task.id))) is None
        if bare or (failed and task.marker is Marker.FAILED):
            session.mark(task.id, Marker.OPEN)
            changed = True
    return session.tasks() if changed else tasks


async def _select(run: RalphRun) -> RalphEvent:
    """Select the current task again after rework, else the next one. Durable with the event, before the task starts."""
    ctx, session = run.ctx, run.deps.session
    tasks = await asyncio.to_thread(_reopened, session)
    kept = next((task for task in tasks if task.id == ctx.current_task_id), None)
    again = kept is not None and kept.marker in {Marker.OPEN, Marker.ACTIVE}
    task = kept if again else next_task(tasks)
    if task is not None:
        step.select(ctx, task.id, await asyncio.to_thread(session.attempts, task.id))
        return RalphEvent.TASK_SELECTED
    event = step.next_work(count_tasks(tasks))
    if event is RalphEvent.REVIEW_PENDING:
        await _review_first(run, tasks)
    elif event is RalphEvent.EXECUTOR_BLOCKED:
        ctx.current_task_id = None
        ctx.blockers = tuple(map(_waits, (task for task in tasks if task.marker is Marker.OPEN))) or (
            "no task is left to be done, and none is done",
        )
    return event


def _waits(task: Task) -> str:
    return f"{task.id} waits for {', '.join(task.inherits_from) or 'planning'}"


async def _review_first(run: RalphRun, tasks: tuple[Task, ...]) -> None:
    """Make the first task that waits for a review the current one."""
    task = next(task for task in tasks if task.marker is Marker.REVIEW and not task.planning)
    run.ctx.current_task_id = task.id
    run.ctx.attempt = max(1, await asyncio.to_thread(run.deps.session.attempts, task.id))


async def _execute(run: RalphRun) -> RalphEvent:
    """Execute the current task. The report of an interrupted attempt is set aside, not overwritten."""
    ctx, session = run.ctx, run.deps.session
    task, attempt = _current(ctx)
    report = await asyncio.to_thread(session.report_path, task, attempt)
    request = ExecutorInput(
        session_path=ctx.session_path,
        task_id=task,
        attempt_number=attempt,
        context={"report_path": str(report), "feedback": ctx.feedback, "notes": ctx.notes},
    )

    def usable(output: ExecutorOutput) -> str | None:
        done = output.status is ExecutorStatus.COMPLETED
        if done and session.report(task, attempt) is None:
            return f"it says completed, and there is no report {report}"
        return None

    output = await StateCalls(run).ask(
        ExecutorOutput,
        Role.EXECUTOR,
        request,
        usable=usable,
        before=lambda: session.set_aside(task, attempt),
    )
    return step.executed(ctx, output)


def _current(ctx: RalphContext) -> tuple[str, int]:
    """Return the current task and its attempt; only called in states that have one."""
    return ctx.current_task_id or "", ctx.attempt


def _reviewable(output: ReviewerOutput) -> str | None:
    """Return why a review does not count, or None."""
    if output.status is ReviewerStatus.COMPLETED:
        return None
    return f"no review could be made: {'; '.join(output.issues) or output.feedback or 'it does not say why'}"
