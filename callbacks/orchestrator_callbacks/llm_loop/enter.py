"""`enter_<state>`: the work of each state of the LLM loop. Each hook returns the event that leaves its state."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from orchestrator.errors import LimitReached
from orchestrator.kernel.fact import BudgetChecked
from orchestrator.machines.llm_loop.graph import decision_in_force, verdicts, whole_budgets
from orchestrator.machines.llm_loop.model import LoopEvent, LoopState
from orchestrator_callbacks.llm_loop import (
    answer,
    compaction,
    guardrail,
    memory,
    request_usage,
    tool_work,
    turn,
    turn_accounting,
)
from orchestrator_callbacks.llm_loop.deps import LoopRun, through
from orchestrator_callbacks.llm_loop.turn_accounting import record_guards
from orchestrator_guards import first_refusal

# The events of each turn: in Python 3.11 a member that is read from its class is a call of the metaclass.
LLM_RESPONSE = LoopEvent.LLM_RESPONSE
RESPONSE_WITH_TOOLS = LoopEvent.RESPONSE_WITH_TOOLS
TOOLS_EXECUTED = LoopEvent.TOOLS_EXECUTED


async def enter_init(run: LoopRun) -> LoopEvent:
    """Check the input, then insert messages of the memory before the conversation."""
    if run.deps.input_guards:
        guardrail.check_input(run)
    await memory.prepare(run)
    return LoopEvent.START_LOOP


async def enter_await_llm(run: LoopRun) -> LoopEvent:
    """Call the model, with retries, and add its answer to the transcript."""
    ledger = run.ctx.ledger  # the calls of the last turn are over: a waiting run need not keep them
    ledger.admitted, ledger.noted, ledger.told = {}, frozenset(), frozenset()
    if decision_in_force(run.ctx) is None:
        # No guard was evaluated on the way here, so check the full budgets: nothing is spent beyond them.
        asked = whole_budgets(run.ctx)
        record_guards(run, asked)
        refusal = first_refusal(asked)
        if refusal is not None:
            run.ctx.verdict = refusal
            raise LimitReached(refusal)
    if run.ctx.context.limit and compaction.is_due(run.ctx):
        await compaction.compact(run)
    response = await turn.ask(run, await turn.next_request(run))
    if run.writes.overlap is not None or run.control.detached:
        try:
            await run.landed()
        except asyncio.CancelledError:  # the answer is not used, and charged
            if run.interruption is not None:  # else another process resumes the run and charges it there
                run.ctx.spent.usage = run.ctx.spent.usage + request_usage.usage_with_cost(run, response)
            raise
    if "after_llm_response" in run.deps.points:
        response = await through(run, "after_llm_response", response)
    turn.take(run, response)
    if run.ctx.context.limit:
        compaction.warn(run)
    return LLM_RESPONSE


async def enter_evaluate_response(run: LoopRun) -> LoopEvent:
    """Distinguish tool calls from a final answer. In the wrap-up turn no tool runs, so text beside calls is one."""
    ctx = run.ctx
    response = ctx.response
    if response is None or not response.tool_calls:
        return LoopEvent.RESPONSE_NO_TOOL
    if not ctx.wrapping_up or not (text := response.message().text).strip():
        return RESPONSE_WITH_TOOLS
    # A call without a result makes the history invalid; parts that a provider keeps may contain the calls, too.
    ctx.response = replace(response, content=text, tool_calls=())
    ctx.messages = [*ctx.messages[:-1], ctx.response.message()]
    return LoopEvent.RESPONSE_NO_TOOL


async def enter_process_tools(run: LoopRun) -> LoopEvent:
    """Run the admitted calls concurrently within the caps; results keep the order of the calls."""
    await tool_work.run_calls(run)
    if run.writes.overlap is not None or run.control.detached:
        await run.landed()
    return TOOLS_EXECUTED


async def enter_update_budgets(run: LoopRun) -> LoopEvent:
    """Account for the turn, then evaluate every guard for another turn."""
    ctx = run.ctx
    asked = verdicts(ctx, turn_accounting.account(run))
    record_guards(run, asked)
    if ctx.verdict is not None:
        asked.insert(0, ctx.verdict)
    if BudgetChecked in run.writes.observed_kinds:
        run.emit(BudgetChecked(run.graph.name, run.run_id, run.cursor.state, ctx.iteration, asked))
    event, services = turn_accounting.decide_turn(run, asked), run.control.services
    if services is not None and services.overlaps and event is LoopEvent.BUDGET_OK and _may_overlap(run):
        run.overlap(enter_await_llm)
    return event


def _may_overlap(run: LoopRun) -> bool:
    """Return whether the next request may be sent beside the append of this turn.

    Not if something else acts before the request: a hook of the host, a server of tools, a compaction. Not if the
    append has the last answer, because recovery charges one lost request, not two: the calls of the turn were announced
    in an append of their own, which is durable by now.
    """
    step = run.cursor.step
    if step is None or step.source is not LoopState.PROCESS_TOOLS:
        return False
    if "before_llm_request" in run.deps.points or run.deps.tools.collections:
        return False
    if run.ctx.context.limit and compaction.is_due(run.ctx):
        return False
    for draft in run.writes.drafts:  # noqa: SIM110 - a generator costs a call for each
        if draft.kind == "answer":
            return False
    return True


async def enter_handle_completion(run: LoopRun) -> LoopEvent:
    """Accept the final answer, or request a better one while retries are left."""
    turn_accounting.note_time(run)
    issue = answer.read(run)
    if issue is not None and answer.request_another(run, issue):
        return LoopEvent.COMPLETION_RETRY
    issue = await answer.validate(run)
    if issue is None:
        if run.deps.output_guards and guardrail.requests_another(run):
            return LoopEvent.COMPLETION_RETRY
        return LoopEvent.COMPLETION_SUCCESS
    answer.request_another(run, issue)  # never False: `validate` returns no issue about an incomplete answer
    return LoopEvent.COMPLETION_RETRY


async def enter_finalize(run: LoopRun) -> None:
    """Pass the output to the host's hooks, then store the exchange in memory. A failing store keeps the output."""
    run.ctx.output = await through(run, "before_finalize", run.ctx.output)
    await memory.store(run)
