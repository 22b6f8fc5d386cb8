"""The usage of a restored run's child runs: those of its agents as tools, and the sampling requests of its tools."""

# ruff: noqa: SLF001 - one class with agent.py

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from orchestrator.errors import RunUnknown
from orchestrator.journal.stored_run import StoredRun
from orchestrator.llm.message import NO_USAGE, Usage
from orchestrator.machines.llm_loop.model import ChildUsage, LoopState
from orchestrator.runtime.llm_loop.agent_tool import AgentTool, member
from orchestrator.runtime.llm_loop.codec import restored
from orchestrator.runtime.llm_loop.sampling import sampling_agent
from orchestrator_callbacks.llm_loop import request_usage
from orchestrator_callbacks.llm_loop.deps import LoopRun

if TYPE_CHECKING:
    from orchestrator.runtime.llm_loop.loop_service import LoopService


async def recount(agent: LoopService, run: LoopRun, stored: StoredRun) -> dict[str, Usage]:
    """Count the usage of a restored run's child runs again, and return it for each direct child run.

    Earlier turns count as in the run's own records. The last turn counts as in the records of the child runs, which
    may be newer. An answer that may have been lost is counted by `request_usage.lost`.
    """
    found: dict[str, Usage] = {}
    async for owner, run_id in _children(agent, run, stored):
        used = await _used(owner, run_id)
        if used is not None:
            found[run_id] = used
    below = run.ctx.spent.below
    if found or below is not None:
        below = below or ChildUsage()
        usage = sum(found.values(), below.before)
        # Not less than before: ended runs may have been pruned.
        run.ctx.spent.below = ChildUsage(usage.combined(below.usage, max), below.before)
    return found


async def _children(
    agent: LoopService, run: LoopRun, stored: StoredRun
) -> AsyncIterator[tuple[LoopService, str]]:
    """Yield the agent and the id of each child run that the calls of the last turn may have started."""
    may_sample = []
    for entry in stored.ledger.of_turn(run.ctx.iteration):
        spec = run.deps.tools.find(entry.tool)
        if spec is not None and isinstance(spec.call, AgentTool):
            yield member(agent, spec.call.child), f"{run.run_id}:{entry.key}"
        elif spec is None or spec.takes_context:
            may_sample.append(f"{run.run_id}:{entry.key}:")
    if may_sample:
        async for head in agent._journal.runs(parent_run_id=run.run_id):
            if head.run_id.startswith(tuple(may_sample)):
                yield sampling_agent(agent), head.run_id


async def _used(agent: LoopService, run_id: str) -> Usage | None:
    """Return the actual and possible usage of a stored run with its child runs; None if it did not start."""
    try:
        stored, _ = await agent._recovery.read(run_id)
    except RunUnknown:
        return None
    if stored.ended is not None or stored.fingerprint != agent._machine.valid_graph.fingerprint:
        spent: Usage = agent._codec.decoded(stored.context | {"messages": []}).spent.total
        return spent
    run = restored(stored, agent._machine, agent._deps, agent._codec)
    await recount(agent, run, stored)
    return run.ctx.spent.total + (request_usage.lost(run) if asks(run, stored) else NO_USAGE)


def asks(run: LoopRun, stored: StoredRun) -> bool:
    """Return whether a restored run may have sent a request whose answer is lost."""
    return run.state == LoopState.AWAIT_LLM and stored.asks_the_model
