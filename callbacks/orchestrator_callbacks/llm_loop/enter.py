"""`enter_<state>`: the work of each state of the LLM loop. Each returns the event that leaves its state."""

from __future__ import annotations

from orchestrator.errors import LimitReached
from orchestrator.kernel.record import BudgetChecked
from orchestrator.machines.llm_loop.graph import decided, hard_refusal, verdicts
from orchestrator.machines.llm_loop.model import Event
from orchestrator_callbacks.llm_loop import answer, compaction, memory, tool_work, turn, turn_accounting
from orchestrator_callbacks.llm_loop.deps import LoopRun, through


async def enter_init(run: LoopRun) -> Event:
    """Put what memory has to say before the conversation."""
    await memory.prepare(run)
    return Event.START_LOOP


async def enter_await_llm(run: LoopRun) -> Event:
    """Ask the model, with retries, and take its answer into the transcript."""
    # Where no guard was asked on the way here, the whole budgets are: nothing is spent beyond them.
    refusal = hard_refusal(run.ctx) if decided(run.ctx) is None else None
    if refusal is not None:
        run.ctx.verdict = refusal
        raise LimitReached(refusal)
    if compaction.is_due(run.ctx):
        await compaction.compact(run)
    response = await turn.ask(run, await turn.next_request(run))
    if "after_llm_response" in run.deps.points:
        response = await through(run, "after_llm_response", response)
    turn.take(run, response)
    compaction.warn(run)
    return Event.LLM_RESPONSE


async def enter_evaluate_response(run: LoopRun) -> Event:
    """Tell tool calls from a final answer."""
    response = run.ctx.response
    return Event.RESPONSE_WITH_TOOLS if response and response.tool_calls else Event.RESPONSE_NO_TOOL


async def enter_process_tools(run: LoopRun) -> Event:
    """Run the calls that are allowed, all at once within the caps; results keep the order of the calls."""
    await tool_work.run_calls(run)
    return Event.TOOLS_EXECUTED


async def enter_update_budgets(run: LoopRun) -> Event:
    """Count what the turn used and did, then ask every guard whether another may start."""
    ctx = run.ctx
    asked = verdicts(ctx, turn_accounting.account(run))
    if ctx.verdict is not None:
        asked.insert(0, ctx.verdict)
    run.emit(BudgetChecked(run.graph.name, run.run_id, run.cursor.state, ctx.iteration, asked))
    if turn_accounting.may_start_over(ctx, asked):
        return Event.RESTART_LOOP
    verdict = turn_accounting.decide(ctx, asked)
    ctx.verdict = None if verdict.ok else verdict
    return Event.BUDGET_OK if turn_accounting.may_go_on(ctx) else Event.BUDGET_EXCEEDED


async def enter_handle_completion(run: LoopRun) -> Event:
    """Accept the final answer, or ask for a better one while retries are left."""
    turn_accounting.note_time(run)
    issue = answer.read(run)
    if issue is None:
        return Event.COMPLETION_SUCCESS
    answer.request_another(run, issue)
    return Event.COMPLETION_RETRY


async def enter_finalize(run: LoopRun) -> None:
    """Let the host see the output, then keep the exchange in memory. A failing store costs no output."""
    run.ctx.output = await through(run, "before_finalize", run.ctx.output)
    await memory.store(run)
