"""Dependencies of the hooks of code mode and tools mode: live handles, some per run, never stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from orchestrator.kernel.run import Run
from orchestrator.kernel.typed_machine import TypedMachine
from orchestrator.llm.port import LLM, Clock, Price
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.rlm.model import ModeContext
from orchestrator_callbacks.llm_loop.deps import ServiceHost
from orchestrator_callbacks.rlm.budget_account import RunBudget

Source: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
"""(state, context) -> the next event."""


@dataclass(slots=True)
class HostReference:
    """The current engine of all runs of an Rlm and their child runs."""

    host: ServiceHost | None = None


@dataclass(slots=True, kw_only=True)
class ModeDeps:
    """Handles of one run."""

    llm: LLM
    model: str
    """The configured model name, for labels and logs."""
    retry: RetryPolicy
    clock: Clock
    budget: RunBudget
    price: Price | None = None
    unpriced: set[tuple[str, float]] = field(default_factory=set)
    params: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    """Returns the event that leaves each state."""
    hosted: HostReference = field(default_factory=HostReference)
    turnstile: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of several concurrent queries one waits for the engine, so that a run is parked once."""


ModeRun: TypeAlias = Run[ModeContext, ModeDeps]
_READS = "PROMPTING"
"""The state of both modes that calls no model: it parses the last reply."""


async def allowed(run: ModeRun, model: str) -> None:
    """Return when requests to a model are allowed in the middle of a state; the run is parked until then.

    It waits in this process even if runs are otherwise left for another process, because its work in this state is
    not stored.
    """
    host = run.deps.hosted.host
    if host is None:
        return
    async with run.deps.turnstile:
        stays = run.control.waits_in_place
        run.wait_in_place(enabled=True)
        try:
            await host.may_ask(run, model)
        finally:
            run.wait_in_place(enabled=stays)


async def next_event(run: ModeRun) -> Any:
    """Return the event of the run's source, under its name in the graph.

    Raises UnhandledEventError if the current state has no edge for the event, or the source returns none.
    """
    machine, deps = cast("TypedMachine", run.machine), run.deps
    if deps.source is None:
        raise RuntimeError("a run of a mode needs an event source")
    host = deps.hosted.host
    if not run.control.waits_in_place and host is not None and run.cursor.state != _READS:
        await host.may_ask(run, deps.model)  # no work is done yet that another process would have to repeat
    try:
        event = await deps.source(machine.objects[run.cursor.state], run.ctx)
    finally:
        run.ctx.usage, run.ctx.sub_calls = deps.budget.usage, deps.budget.calls
    name = machine.event_name(run.cursor.state, type(event))
    if not machine.candidates(run.cursor.state, type(event)):
        raise machine.unhandled(run.cursor.state, name)
    run.set_event_object(event)
    return name
