"""A visit of Planning: a round of questions if one was requested, answers of people, then the planner."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.errors import Refused
from orchestrator.kernel.thread import called
from orchestrator.machines.ralph import step
from orchestrator.machines.ralph.contract import (
    PlannerInput,
    PlannerOutput,
    PlannerStatus,
    QuestionerInput,
    QuestionerOutput,
    QuestionerStatus,
    Role,
)
from orchestrator.machines.ralph.fault import SessionFileError
from orchestrator.machines.ralph.graph import should_continue_qa
from orchestrator.machines.ralph.model import RalphEvent, count_tasks
from orchestrator.machines.ralph.ports import PlanQuestion
from orchestrator.machines.ralph.tasklist import EXAMPLE
from orchestrator_callbacks.ralph import signals
from orchestrator_callbacks.ralph.agent import StateCalls
from orchestrator_callbacks.ralph.deps import RalphRun
from orchestrator_guards import planning_retries
from orchestrator_guards.evaluation import row_of

NO_MORE_QUESTIONS = (
    "the rounds of questions are used up: plan with what is known, and write down what you assume"
)


async def plan(run: RalphRun) -> RalphEvent:
    """Make the plan, and return the next event. Raises Refused if the planner asks further questions than allowed."""
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
        await signals.poll(run)
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
        await signals.poll(run)
        await asyncio.to_thread(session.refresh)
        asked = _open(await asyncio.to_thread(session.questions))


def _open(questions: tuple[PlanQuestion, ...]) -> tuple[PlanQuestion, ...]:
    return tuple(one for one in questions if one.answer is None)
