"""Model calls of other machines. Each call is a child run of `llm_loop`.

The child run is in the journal of its parent under its own key. Therefore it is resumed after a crash, it is stopped
with its parent, and its facts go to the same observers.
"""

# ruff: noqa: SLF001 - joins the live runs of its owner

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.agent_tool import drive_child
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.service.agent_identity import joining
from orchestrator.runtime.service.child_run_guard import ChildRunGuard, joined
from orchestrator.runtime.service.run_scope import ChildWaitObserver, here
from orchestrator.runtime.service.run_service import RunService
from orchestrator.runtime.service.runtime import Runtime


def child_agent(owner: RunService[Any], output_type: Any, options: Mapping[str, Any]) -> Agent:
    """Return an agent whose runs use the journal, observers and live runs of `owner`.

    `options` are for Agent.
    """
    runtime = Runtime(
        journal=owner._journal, observers=owner._observers, clock=owner._clock, price=owner._runtime.price
    )
    with joining():
        agent: Agent = Agent(runtime=runtime, output_type=output_type, **options)
    agent._live, agent._control = owner._live, owner._control
    agent._wire(ChildWaitObserver())
    return agent


async def run_child(
    agent: Agent,
    parent_id: str,
    key: str,
    prompt: str,
    *,
    lender: Callable[[Limits], Limits] = lambda limits: limits,
    follower: Callable[[Result], None] = lambda _: None,
) -> Result:
    """Start or resume the child run `key` of the run `parent_id`, and return its result.

    `follower` is called with the result even if the parent run was stopped meanwhile. Raises ConfigError if that run is
    not the current one.
    """
    above = here()
    if above is None or above.run.run_id != parent_id:
        raise ConfigError("a model as a port works only inside a run of its graph")
    leash = ChildRunGuard(parent_id)
    work = asyncio.ensure_future(drive_child(agent, above.run, key, prompt, lender, leash.claim_child))
    try:
        return await joined(work, leash, above)
    finally:
        if work.done() and not work.cancelled() and work.exception() is None:
            follower(work.result())
