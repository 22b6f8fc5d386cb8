"""`enter_<state>`: the work of each state of a team. Each hook returns the event that leaves its state."""

from __future__ import annotations

from orchestrator.kernel.fact import HandedOver
from orchestrator.kernel.outcome import Outcome
from orchestrator.machines.team.model import TeamEvent
from orchestrator_callbacks.llm_loop import guardrail, memory, turn_accounting
from orchestrator_callbacks.llm_loop.admission import KEPT_ERRORS
from orchestrator_callbacks.team.deps import SegmentEnd, TeamRun


async def enter_init(run: TeamRun) -> TeamEvent:
    """Insert messages of the memory before the conversation."""
    await memory.prepare(run)
    return TeamEvent.START


async def enter_working(run: TeamRun) -> TeamEvent:
    """Drive the present segment to its end, or read it if it has ended, and add it to the conversation."""
    end = await run.deps.segment(run)
    add_segment(run, end)
    run.ctx.proposed = end.handoff
    if end.handoff is not None:
        return TeamEvent.HAND_OVER
    run.ctx.ended = end.ending
    if end.ending.outcome in {Outcome.COMPLETED, Outcome.PARTIAL}:
        run.ctx.output = end.output
        return TeamEvent.ANSWERED
    run.ctx.verdict = end.verdict
    if end.error is not None:
        raise end.error
    return TeamEvent.FAILURE


async def enter_handing_over(run: TeamRun) -> TeamEvent:
    """Fix who has the conversation next and what it reads, before its segment exists."""
    ctx, made = run.ctx, run.ctx.proposed
    assert made is not None  # noqa: S101 - `hand_over` is chosen for one
    ctx.opening = run.deps.history(run, made)
    ctx.handoffs, ctx.proposed, ctx.agent = (*ctx.handoffs, made), None, made.to
    run.emit(HandedOver(run.graph.name, run.run_id, made.agent, made.to, run.deps.clock.time(), run.agent))
    return TeamEvent.TAKE_OVER


async def enter_finalize(run: TeamRun) -> None:
    """Store the exchange in memory. A failing store keeps the output."""
    if run.ctx.output is None:  # restored here: only the segment has it
        end = await run.deps.last_segment(run)
        run.ctx.output = None if end is None else end.output
    await memory.store(run)


def add_segment(run: TeamRun, end: SegmentEnd) -> None:
    """Add a segment to the conversation and to what the run has used."""
    ctx, spent = run.ctx, run.ctx.spent
    turn_accounting.note_time(run)
    ctx.messages = [*end.messages]
    if (
        end.ending.reason == "guardrail" and not end.iterations
    ):  # no model has answered: the input was refused
        guardrail.drop_new_input(ctx)
    ctx.iteration += end.iterations
    spent.add_work(end.spent)
    if spent.below is not None:
        spent.below.before = spent.below.usage
    ctx.tool_errors = (*ctx.tool_errors, *end.tool_errors)[-KEPT_ERRORS:]
    ctx.finish_reason, ctx.vendor_finish_reason = end.finish_reason, end.vendor_finish_reason
