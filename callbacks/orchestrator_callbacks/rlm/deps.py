"""What the hooks of code mode and tools mode may touch: live handles, those of one run among them, never stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from orchestrator.kernel.run import Run
from orchestrator.kernel.typed_error import UnhandledEventError
from orchestrator.kernel.typed_table import TypedMachine
from orchestrator.machines.rlm.model import ModeContext
from orchestrator.ports import LLM, Clock, Price
from orchestrator.retry import RetryPolicy
from orchestrator_callbacks.rlm.purse import Purse

Source: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
"""(state, context) -> the next event."""


@dataclass(slots=True, kw_only=True)
class ModeDeps:
    """Handles of one run."""

    llm: LLM
    model: str
    """The configured model name, as labels and logs show it."""
    retry: RetryPolicy
    clock: Clock
    purse: Purse
    price: Price | None = None
    unpriced: set[tuple[str, float]] = field(default_factory=set)
    params: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    """Asked for the event that leaves each state."""


ModeRun: TypeAlias = Run[ModeContext, ModeDeps]


async def next_event(run: ModeRun) -> Any:
    """Ask the run's source for its event, and return the name that the table has for it.

    Raises UnhandledEventError for an event that leads nowhere from the present state, or none.
    """
    machine, deps = cast("TypedMachine", run.machine), run.deps
    if deps.source is None:
        raise RuntimeError("a run of a mode needs an event source")
    try:
        event = await deps.source(machine.objects[run.cursor], run.ctx)
    finally:
        run.ctx.usage, run.ctx.sub_calls = deps.purse.usage, deps.purse.calls
    steps = machine.candidates(run.cursor, type(event))
    if not steps:
        handled = [one.value for one in machine.events_from(run.cursor)]
        name = type(event).__name__
        raise UnhandledEventError(graph=run.graph.name, state=run.cursor, event=name, handled=handled)
    run.given = event
    return steps[0].event
