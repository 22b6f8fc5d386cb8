"""A run of the loop that no driver drives: hooks and their helpers are called on it one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Message, Response, ToolCall
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import OFF, Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.providers.scripted import Item, ScriptedLLM
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.tool_set import ToolSet
from orchestrator_callbacks.llm_loop.deps import LoopDeps, LoopRun

MACHINE = Machine(LLM_LOOP, Hooks({}))
USER = Message("user", "go")
F = TypeVar("F")


def loop_run(
    *said: Message,
    script: Iterable[Item] = (),
    tools: Iterable[Any] = (),
    limits: Limits = OFF,
    conversation_id: str | None = None,
    **handles: Any,
) -> LoopRun:
    """A run that began with USER and in which `said` was said since."""
    clock = FakeClock(auto=True)
    deps = LoopDeps(
        tools=ToolSet(tools, clock=clock),
        clock=clock,
        model="scripted",
        **{"llm": ScriptedLLM(script), "retry": RetryPolicy(base=0.0, jitter=0.0), **handles},
    )
    ctx = LoopContext([USER, *said], limits, 1, conversation_id=conversation_id)
    run: LoopRun = Run(MACHINE, "r", ctx, deps)
    return run


def facts(run: LoopRun, kind: type[F]) -> list[F]:
    """What the run has reported; without a driver it is held back."""
    return [fact for fact in run.writes.unpublished if isinstance(fact, kind)]


def answered(run: LoopRun, *calls: ToolCall, text: str | None = None) -> LoopRun:
    """Let the model have answered this, as `turn.take` would have it."""
    run.ctx.response = Response(text, calls)
    run.ctx.results = []
    run.ctx.iteration += 1
    run.ctx.messages.append(run.ctx.response.message())
    return run
