"""Restoration of a stored run of the loop in this process, beyond the steps of all graphs."""

# ruff: noqa: SLF001 - one class with agent.py

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Lease, Record
from orchestrator.kernel.record import Transition
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop import agent_tool as subagent
from orchestrator.runtime.llm_loop.codec import restored
from orchestrator.runtime.service.recovery import path_of
from orchestrator_callbacks.llm_loop import request_usage
from orchestrator_callbacks.llm_loop.deps import LoopRun, open_account

if TYPE_CHECKING:
    from orchestrator.runtime.llm_loop.agent import Orchestrator


async def restore(
    agent: Orchestrator, run_id: str, limits: Limits | None, by: str
) -> tuple[LoopRun, Iterable[Transition]]:
    """Claim a run of the journal and record its resumption; return the run with its path."""

    async def again(stored: StoredRun, _: list[Record], lease: Lease) -> LoopRun:
        return await _restored(agent, stored, lease, limits)

    run, records = await agent._take_up(run_id, by, again)
    return run, path_of(run_id, agent._machine.graph.name, records)


async def _restored(agent: Orchestrator, stored: StoredRun, lease: Lease, limits: Limits | None) -> LoopRun:
    """Return the run with its child runs' usage, the new limits, and the charge for a lost answer."""
    run = restored(stored, agent._machine, agent._deps, agent._codec, lease)
    below = await subagent.recount(agent, run, stored)
    if below:
        open_account(run, dormant=below)
    if limits is not None:
        run.ctx.limits = limits
        run.ctx.context.limit = agent._context_limit(limits)
    if subagent.asks(run, stored):
        run.ctx.spent.usage = run.ctx.spent.usage + request_usage.lost(run)
    return run
