"""`before_event`: the changes of an event, first in the files of the session, then in the context.

Only this module moves markers. A crash between the files and the record repeats the change; a change that is done
already is skipped. The context is durable together with the transition, so a counter always agrees with the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.machines.ralph import contract, step
from orchestrator.machines.ralph.contract import AgentOutput, CheckerOutput, DiscoveredTask, ReviewerOutput
from orchestrator.machines.ralph.graph import limit_of
from orchestrator.machines.ralph.model import RalphEvent, RalphSession
from orchestrator.machines.ralph.tasklist import Marker, OutsideEdit
from orchestrator_callbacks.ralph.deps import RalphRun


async def before_event(run: RalphRun) -> None:
    """Apply the event in flight."""
    if run.step is None or run.step.event not in _OURS:  # an event of the host
        return
    event = RalphEvent(run.step.event)
    if event is RalphEvent.ERROR:
        verdict = run.ctx.verdict = limit_of(run.error)
        if verdict is not None and verdict.guard == "qa_cycles":
            asked = await asyncio.to_thread(run.deps.session.questions)
            run.ctx.blockers = tuple(f"question {one.id}: {one.text}" for one in asked if one.answer is None)
    # The output of this visit's last agent, or None.
    given = [answer for answer in run.ctx.answers if answer.seq == run.seq]
    output = contract.read(given[-1].role, given[-1].body) if given else None
    if (
        event in _REFUSALS
        and isinstance(output, ReviewerOutput)
        and await asyncio.to_thread(_unreported, run)
    ):
        output = None  # the report that this review belongs to is gone
    effect = _EFFECTS.get(event)
    if effect is not None:
        await asyncio.to_thread(effect, run, output)
    step.take(run.ctx, event, output)


def _unreported(run: RalphRun) -> bool:
    return run.deps.session.report(run.ctx.current_task_id or "", run.ctx.attempt) is None


# ---- files ----


def _began(run: RalphRun, _: AgentOutput | None) -> None:
    _mark(run, Marker.ACTIVE)


def _to_review(run: RalphRun, _: AgentOutput | None) -> None:
    _mark(run, Marker.REVIEW)


def _again(run: RalphRun, output: AgentOutput | None) -> None:
    """Reopen a task for another execution or a later selection, and add discovered tasks."""
    _reviewed(run, output)
    _mark(run, Marker.OPEN)
    _add(run, output)


def _done(run: RalphRun, output: AgentOutput | None) -> None:
    _reviewed(run, output)
    _mark(run, Marker.DONE)
    _add(run, output)


def _gave_up(run: RalphRun, output: AgentOutput | None) -> None:
    _reviewed(run, output)
    _mark(run, Marker.FAILED)


def _planned(run: RalphRun, _: AgentOutput | None) -> None:
    run.deps.session.close_planning()


def _next_cycle(run: RalphRun, _: AgentOutput | None) -> None:
    run.ctx.cycle = run.deps.session.cycles() + 1


def _checked(run: RalphRun, output: AgentOutput | None) -> None:
    if isinstance(output, CheckerOutput):
        run.deps.session.write_check(output.as_json())
        _added(run.deps.session, _plain(output.missing_tasks))


def _mark(run: RalphRun, to: Marker) -> None:
    """Move the current task's marker. Changes of people are read and kept, unless they moved this marker."""
    task, session = run.ctx.current_task_id, run.deps.session
    if task is None:
        return
    stood = _marker(session, task)
    try:
        session.mark(task, to)
    except OutsideEdit:
        session.refresh()
        if _marker(session, task) is not stood:
            raise
        session.mark(task, to)


def _marker(session: RalphSession, task: str) -> Marker | None:
    return next((one.marker for one in session.tasks() if one.id == task), None)


def _reviewed(run: RalphRun, output: AgentOutput | None) -> None:
    if isinstance(output, ReviewerOutput) and run.ctx.current_task_id is not None:
        run.deps.session.append_review(run.ctx.current_task_id, run.ctx.attempt, output.as_json())


def _add(run: RalphRun, output: AgentOutput | None) -> None:
    """Add the tasks that executor and reviewer discovered."""
    named = [{"id": one, "description": what, "rationale": why} for one, what, why in run.ctx.found]
    found = [*named, *_plain(getattr(output, "discovered_tasks", ()))]
    if found:
        _added(run.deps.session, found)


def _added(session: RalphSession, found: Sequence[Mapping[str, str]]) -> None:
    try:
        session.add_tasks(found)
    except OutsideEdit:
        session.refresh()  # text of people stays; the new tasks come after it
        session.add_tasks(found)


def _plain(found: Sequence[DiscoveredTask]) -> list[Mapping[str, str]]:
    return [{"id": one.id, "description": one.description, "rationale": one.rationale} for one in found]


_OURS = frozenset(RalphEvent)
_REFUSALS = frozenset((RalphEvent.REWORK, RalphEvent.ATTEMPTS_EXHAUSTED))

_EFFECTS: Mapping[RalphEvent, Callable[[RalphRun, AgentOutput | None], Any]] = {
    RalphEvent.QA_NEEDED: _next_cycle,
    RalphEvent.PLANNER_COMPLETED: _planned,
    RalphEvent.NEW_REQUIREMENTS: _checked,
    RalphEvent.TASK_SELECTED: _began,
    RalphEvent.EXECUTOR_COMPLETED: _to_review,
    RalphEvent.EXECUTOR_FAILED: _again,
    RalphEvent.EXECUTOR_BLOCKED: _again,
    RalphEvent.QUALIFIED: _done,
    RalphEvent.REWORK: _again,
    RalphEvent.ATTEMPTS_EXHAUSTED: _gave_up,
    RalphEvent.HOLISTIC_CHECK_PASSED: _checked,
    RalphEvent.HOLISTIC_CHECK_FAILED: _checked,
}
"""Event -> function that changes the files."""
