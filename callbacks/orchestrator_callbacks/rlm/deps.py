"""What the hooks of code mode and tools mode may touch: live handles, those of one run among them, never stored."""

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
    """Who is asked by all runs of an Rlm and those below them, now."""

    host: ServiceHost | None = None


@dataclass(slots=True, kw_only=True)
class ModeDeps:
    """Handles of one run."""

    llm: LLM
    model: str
    """The configured model name, as labels and logs show it."""
    retry: RetryPolicy
    clock: Clock
    purse: RunBudget
    price: Price | None = None
    unpriced: set[tuple[str, float]] = field(default_factory=set)
    params: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    """Asked for the event that leaves each state."""
    hosted: HostReference = field(default_factory=HostReference)
    turnstile: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of several questions at once one asks the host; a run is parked once."""


ModeRun: TypeAlias = Run[ModeContext, ModeDeps]
_READS = "PROMPTING"
"""The state of both modes that asks no model: it reads what was said."""


async def allowed(run: ModeRun, model: str) -> None:
    """Return when a model may be asked halfway through a state; the run is parked until then.

    In place also where a run would be left for another process: what it did in this state is only here.
    """
    host = run.deps.hosted.host
    if host is None:
        return
    async with run.deps.turnstile:
        stays = run.control.waits_in_place
        run.wait_in_place(wanted=True)
        try:
            await host.may_ask(run, model)
        finally:
            run.wait_in_place(wanted=stays)


async def next_event(run: ModeRun) -> Any:
    """Ask the run's source for its event, and return the name that the table has for it.

    Raises UnhandledEventError for an event that leads nowhere from the present state, or none.
    """
    machine, deps = cast("TypedMachine", run.machine), run.deps
    if deps.source is None:
        raise RuntimeError("a run of a mode needs an event source")
    host = deps.hosted.host
    if not run.control.waits_in_place and host is not None and run.cursor.state != _READS:
        await host.may_ask(run, deps.model)  # nothing is done yet that another process would have to do again
    try:
        event = await deps.source(machine.objects[run.cursor.state], run.ctx)
    finally:
        run.ctx.usage, run.ctx.sub_calls = deps.purse.usage, deps.purse.calls
    name = machine.event_name(run.cursor.state, type(event))
    if not machine.candidates(run.cursor.state, type(event)):
        raise machine.unhandled(run.cursor.state, name)
    run.set_event_object(event)
    return name
