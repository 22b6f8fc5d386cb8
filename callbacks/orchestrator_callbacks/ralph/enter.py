"""The work of each state: read signals, read the files, call agents, return the event that leaves the state."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from orchestrator.errors import CancelRequested, JournalError, Refused
from orchestrator.kernel.cancellation import called
from orchestrator.kernel.mailbox import Signal
from orchestrator.machines.ralph import step
from orchestrator.machines.ralph.contract import (
    CheckerInput,
    CheckerOutput,
    ExecutorInput,
    ExecutorOutput,
    ExecutorStatus,
    PlannerInput,
    PlannerOutput,
    PlannerStatus,
    QuestionerInput,
    QuestionerOutput,
    QuestionerStatus,
    ReviewerInput,
    ReviewerOutput,
    ReviewerStatus,
    Role,
)
from orchestrator.machines.ralph.graph import should_continue_qa
from orchestrator.machines.ralph.model import (
    PlanQuestion,
    RalphContext,
    RalphEvent,
    RalphSession,
    Task,
    count_tasks,
    next_task,
)
from orchestrator.machines.ralph.tasklist import EXAMPLE, Marker, SessionFileError
from orchestrator_callbacks.ralph.agent import StateCalls
from orchestrator_callbacks.ralph.deps import RalphRun
from orchestrator_guards import planning_retries
from orchestrator_guards.evaluation import row_of

# ---- states ----


async def enter_initializing(run: RalphRun) -> RalphEvent:
    """Find out the state of the session. Failed tasks are reopened, because a person started another run of it."""
    await _poll(run)
    ctx = run.ctx
    await _read(run)
    tasks = await asyncio.to_thread(_reopened, run.deps.session, failed=True)
    ctx.is_new = ctx.is_new or not tasks  # nothing was planned yet, so planning starts again
    event = step.resolved(ctx, count_tasks(tasks))
    if event is RalphEvent.REVIEW_RESUMED:
        await _review_first(run, tasks)
    return event


async def enter_planning(run: RalphRun) -> RalphEvent:
    """Run a round of questions if one was requested, then make or change the plan.

    Raises Refused if the planner asks further questions than allowed.
    """
    await _poll(run)
    ctx, session = run.ctx, run.deps.session
    await asyncio.to_thread(session.refresh)
    stay = StateCalls(run)
    if not stay.known:  # otherwise it was opened before a crash, and may be closed by now
        await asyncio.to_thread(session.open_planning, ctx.mode.value)
    if ctx.asking:
        await _ask_around(run, stay)
    insisted = 0
    while True:
        output = await _planned(run, stay, insist=insisted > 0)
        await _poll(run)
        event = step.planned(ctx, output)
        if event is not None:
            return event
        allowed = planning_retries(insisted, ctx.limits.max_planning_retries)
        run.attach_guards((row_of(allowed),))
        if not allowed:
            verdict = should_continue_qa(ctx)
            run.attach_guards((row_of(verdict),))
            raise Refused(f"the planner asks further questions: {verdict.explain()}", verdict=verdict)
        insisted += 1


async def enter_executing(run: RalphRun) -> RalphEvent:
    """Select a task, or execute the selected one."""
    await _poll(run)
    await _read(run)
    if run.ctx.selected:
        # Execute the current task. The report of an interrupted attempt is set aside, not overwritten.
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
    return RalphEvent.NEW_REQUIREMENTS if run.ctx.requirements else await _select(run)


async def enter_reviewing(run: RalphRun) -> RalphEvent:
    """Review the work of the current task. Without a report, also a lost one, the task is executed again."""
    await _poll(run)
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
    await _poll(run)
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
        await _poll(run)
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


def _current(ctx: RalphContext) -> tuple[str, int]:
    """Return the current task and its attempt; only called in states that have one."""
    return ctx.current_task_id or "", ctx.attempt


def _reviewable(output: ReviewerOutput) -> str | None:
    """Return why a review does not count, or None."""
    if output.status is ReviewerStatus.COMPLETED:
        return None
    return f"no review could be made: {'; '.join(output.issues) or output.feedback or 'it does not say why'}"


# ---- messages to the run ----


async def _poll(run: RalphRun) -> None:
    """Read all messages posted so far. Raises CancelRequested at a stop; later messages are not read."""
    # If the store is down, the listener retries, and the next write reports the error.
    with contextlib.suppress(JournalError):
        await run.deps.look(run.run_id)
    stop: Signal | None = None
    read = False
    while stop is None and (signal := run.mailbox.message()) is not None:
        read = True
        says = str(signal.payload.get("says", ""))
        body = {"id": signal.id, "kind": says, "by": signal.by, "why": signal.why, "number": signal.number}
        ctx = run.ctx
        if says == "answer":
            # Write answers to the file; return a note for the record about answers to unknown questions.
            session = run.deps.session
            answers = {str(one): str(text) for one, text in dict(signal.payload.get("answers") or {}).items()}
            known = {one.id for one in await asyncio.to_thread(session.questions)}
            strange = sorted(answers.keys() - known)
            await asyncio.to_thread(session.answer, {one: answers[one] for one in answers.keys() & known})
            body |= {"refused": f"there is no question {', '.join(strange)}"} if strange else {}
        run.note("control", body | {"at": run.deps.clock.time()})
        match says:
            case "steer":
                ctx.requirements = (*ctx.requirements, signal.why)
            case "inform":
                ctx.notes = (*ctx.notes, signal.why)
        if signal.payload.get("says") == "stop":
            stop = signal
    if read:
        await run.keep()
    if stop is not None:
        raise CancelRequested("caller", stop.why)


# ---- planning ----


NO_MORE_QUESTIONS = (
    "the rounds of questions are used up: plan with what is known, and write down what you assume"
)


async def _planned(run: RalphRun, stay: StateCalls, *, insist: bool) -> PlannerOutput:
    """Call the planner with all information that is not in the files."""
    ctx, session = run.ctx, run.deps.session
    told = len(ctx.requirements)
    context: dict[str, Any] = {
        "requirements": ctx.requirements,
        "notes": ctx.notes,
        "blockers": ctx.blockers,
        "summary": ctx.summary,
        "missing_tasks": [{"id": one, "description": what, "rationale": why} for one, what, why in ctx.found],
        "open_questions": [{"id": one.id, "text": one.text} for one in _open(session.questions())],
    }
    if insist:
        context["instruction"] = NO_MORE_QUESTIONS
    request = PlannerInput(
        session_path=ctx.session_path, mode=ctx.mode, user_request=ctx.request, context=context
    )

    def usable(output: PlannerOutput) -> str | None:
        try:
            session.refresh()  # only the planner may write tasks.md
        except SessionFileError as error:
            return str(error)
        stands = count_tasks(session.tasks())
        work = stands.open + stands.active + stands.review + stands.done
        if output.status is PlannerStatus.COMPLETED and not work:
            return f"it says completed, and there is no task in tasks.md: {EXAMPLE}"
        return None

    def check(_: PlannerOutput) -> None:
        ctx.told = told

    return await stay.ask(PlannerOutput, Role.PLANNER, request, usable=usable, check=check)


# ---- questions ----


async def _ask_around(run: RalphRun, stay: StateCalls) -> None:
    """Run the questioner, then ask people for answers to open questions."""
    ctx, session = run.ctx, run.deps.session
    if Role.QUESTIONER in run.deps.agents:
        for mode in ctx.qa_modes:
            request = QuestionerInput(
                session_path=ctx.session_path,
                mode=mode,
                cycle_number=max(1, ctx.cycle),
                context={"user_request": ctx.request, "notes": ctx.notes},
            )
            await stay.ask(QuestionerOutput, Role.QUESTIONER, request, usable=_answerable)
    await asyncio.to_thread(session.refresh)
    await _ask_person(run)


def _answerable(output: QuestionerOutput) -> str | None:
    if output.status is QuestionerStatus.COMPLETED:
        return None
    return f"no questions could be asked: {'; '.join(output.recommendations) or 'it does not say why'}"


async def _ask_person(run: RalphRun) -> None:
    """Ask people for answers to open questions. Without an answer port, planning continues with open questions."""
    asks, session = run.deps.answer, run.deps.session
    asked = _open(await asyncio.to_thread(session.questions))
    if asks is None or not asked:
        return
    if callable(asks):
        answers = await called(asks, asked, "answer")
        known = {one.id for one in asked}
        told = {str(one): str(text) for one, text in dict(answers or {}).items() if str(one) in known}
        await asyncio.to_thread(session.answer, told)
        return
    while asked:
        if not run.mailbox.unread:
            run.wait_in_place(enabled=run.control.waits_in_place and asks == "wait")
            await run.await_message("questions", questions=[one.id for one in asked])
        await _poll(run)
        await asyncio.to_thread(session.refresh)
        asked = _open(await asyncio.to_thread(session.questions))


def _open(questions: tuple[PlanQuestion, ...]) -> tuple[PlanQuestion, ...]:
    return tuple(one for one in questions if one.answer is None)
