"""Model calls of other machines. Each call is a child run of `llm_loop`.

The child run is in the journal of its parent under its own key. Therefore it is resumed after a crash, it is stopped
with its parent, and its facts go to the same observers.
"""

# ruff: noqa: SLF001 - drives the run in the same way as child runs of an agent

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
    """Return an agent whose runs use the journal, observers and live runs of `owner`.

    `options` are for Orchestrator.
    """
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
    """Start or resume the child run `key` of the run `above_id`, and return its result.

    `heard` is called with the result even if the parent run was stopped meanwhile. Raises ConfigError if that run is
    not the current one.
    """
    above = here()
    if above is None or above.run.run_id != above_id:
        raise ConfigError("a model as a port works only inside a run of its graph")
    leash = ChildRunGuard(above_id)
    work = asyncio.ensure_future(agent._run_below(above.run, key, prompt, lent, leash.hold))
    try:
        return await joined(work, leash, above)
    finally:
        if work.done() and not work.cancelled() and work.exception() is None:
            heard(work.result())
