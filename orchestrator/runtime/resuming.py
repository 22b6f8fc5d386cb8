"""Taking a stored run up in this process: claimed, restored, announced, and told to observers."""

# ruff: noqa: SLF001 - with llm_loop.py it is one class in two files

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.journal.stored import StoredRun
from orchestrator.kernel.record import Transition
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime import subagent
from orchestrator.runtime.recovery import path_of
from orchestrator.runtime.restore import restored
from orchestrator_callbacks.llm_loop import turn
from orchestrator_callbacks.llm_loop.deps import LoopRun, open_account

if TYPE_CHECKING:
    from orchestrator.runtime.llm_loop import Orchestrator


async def restore(
    agent: Orchestrator, run_id: str, limits: Limits | None, by: str
) -> tuple[LoopRun, Iterable[Transition]]:
    """Claim a run of the journal and announce that it goes on; return it with the path it has taken."""
    stored, records, lease = await agent._claimed(run_id)
    try:
        run = restored(stored, agent._machine, agent._deps, agent._codec, lease)
        below = await subagent.recount(agent, run, stored)
        if below:
            open_account(run, dormant=below)
        await _take_up(agent, run, stored, limits, by)
    except BaseException:
        await agent._journal.release(lease)
        raise
    return run, path_of(run_id, agent._machine.graph.name, records)


async def _take_up(
    agent: Orchestrator, run: LoopRun, stored: StoredRun, limits: Limits | None, by: str
) -> None:
    """Announce that the run goes on, with what changes by that."""
    if limits is not None:
        run.ctx.limits = limits
        run.ctx.context.limit = agent._context_limit(limits)
    if subagent.asks(run, stored):
        run.ctx.spent.usage = run.ctx.spent.usage + turn.lost(run)
    changes = agent._codec.changes(run)
    agent._set_end(run, run.started_at or 0.0)
    await agent._driver.announce(
        run, "resumed", {"at": agent._deps.clock.time(), "by": by, "context": changes}
    )
