"""Models that work for another graph: each piece of work is a run of the LLM loop, below the run it is for.

It is in the same journal under a key of its own, so that after a crash it goes on where it stood; stopped with the run
above it; and told to the same observers.
"""

# ruff: noqa: SLF001 - what is below is driven as runs below an agent are

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent import Orchestrator
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.service.child_run_guard import ChildRunGuard, joined
from orchestrator.runtime.service.run_scope import ChildWaitObserver, here
from orchestrator.runtime.service.run_service import RunService


def agent_below(owner: RunService[Any], output_type: object, options: Mapping[str, Any]) -> Orchestrator:
    """Return an agent whose runs live with those of `owner`. `options` are those of Orchestrator."""
    agent = Orchestrator(
        journal=owner._journal,
        observers=owner._observers,
        clock=owner._control.clock,
        output_type=output_type,
        **options,
    )
    agent._live, agent._control = owner._live, owner._control
    agent._wire(ChildWaitObserver())
    return agent


async def run_below(
    agent: Orchestrator,
    above_id: str,
    key: str,
    prompt: str,
    *,
    lent: Callable[[Limits], Limits] = lambda limits: limits,
    heard: Callable[[Result], None] = lambda _: None,
) -> Result:
    """Begin the run `key` below the run `above_id`, or go on with it, and return its result.

    `heard` is called with the result also where the run above was stopped meanwhile. Raises ConfigError where that run
    is not the one under way here.
    """
    above = here()
    if above is None or above.run.run_id != above_id:
        raise ConfigError("a model in the place of a port works inside a run of that graph only")
    leash = ChildRunGuard(above_id)
    work = asyncio.ensure_future(agent._run_below(above.run, key, prompt, lent, leash.hold))
    try:
        return await joined(work, leash, above)
    finally:
        if work.done() and not work.cancelled() and work.exception() is None:
            heard(work.result())
