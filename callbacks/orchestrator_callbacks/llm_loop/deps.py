"""What the hooks of the loop may touch: live handles, built by the runtime, never stored."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from orchestrator.completion import OutputSpec
from orchestrator.errors import GraphError
from orchestrator.kernel.hooks import Hook, Hooks
from orchestrator.kernel.lint import Problem, Rule
from orchestrator.kernel.run import Run
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.messages import ToolCall
from orchestrator.ports import LLM, Clock, Memory, Price
from orchestrator.retry import RetryPolicy
from orchestrator.toolresult import ToolResult
from orchestrator.toolspec import ToolContext, ToolSpec
from orchestrator_callbacks.llm_loop.allowance import Account

Point: TypeAlias = Callable[..., Awaitable[Any]]
"""A host's hook at one of the POINTS. What it returns replaces what it was given; None leaves it."""

POINTS = {
    "before_llm_request": "request",
    "after_llm_response": "response",
    "before_tool_execution": "call",
    "after_tool_execution": "result",
    "before_finalize": "output",
}
"""The five places inside the loop's states where a host's hooks may look and change.

`before_llm_request(run, request)`, `after_llm_response(run, response)`, `before_tool_execution(run, call)`,
`after_tool_execution(run, result)`, `before_finalize(run, output)`. An error in any of them fails the run.
"""


def split(bound: Hooks) -> tuple[Hooks, Mapping[str, tuple[Point, ...]]]:
    """Part what was bound into the machine's hooks and the hosts' points.

    `after_llm_response` is the name of both: the hook of the event takes (run), the point (run, response).
    Raises GraphError for a hook at a point that takes anything else: it would never run.
    """
    hooks: dict[str, tuple[Hook, ...]] = dict(bound.by_name)
    points: dict[str, tuple[Point, ...]] = {}
    problems: list[Problem] = []
    for name, value in POINTS.items():
        named = hooks.pop(name, ())
        if here := tuple(hook for hook in named if _takes(hook, 2)):
            points[name] = here
        rest = tuple(hook for hook in named if not _takes(hook, 2))
        if name == "after_llm_response" and all(_takes(hook, 1) for hook in rest):
            hooks |= {name: rest} if rest else {}
        elif rest:
            problems.append(Problem(Rule.STRAY_HOOK, f"{name} must take (run, {value})"))
    if problems:
        raise GraphError("llm_loop", problems)
    return Hooks(hooks, bound.hosted & hooks.keys()), points


def _takes(hook: Hook, arguments: int) -> bool:
    try:
        inspect.signature(hook).bind(*[None] * arguments)
    except TypeError:
        return False
    return True


class Tools(Protocol):
    """The tools of an agent; `ToolSet` is one, `ReplayTools` another."""

    @property
    def offers(self) -> tuple[ToolSpec, ...]:
        """What the model is told of."""
        ...

    def find(self, name: str) -> ToolSpec | None:
        """Return a tool by name, or None."""
        ...

    async def execute_all(
        self,
        calls: Sequence[ToolCall],
        context_for: Callable[[ToolCall, int], ToolContext],
        *,
        max_concurrent: int = 0,
        done: list[ToolResult | None] | None = None,
        before: Callable[[ToolCall], Awaitable[ToolCall | ToolResult | None]] | None = None,
        after: Callable[[ToolResult], Awaitable[ToolResult | None]] | None = None,
    ) -> list[ToolResult]:
        """Run the calls that have no result in `done` yet; fill it in place and return it, in call order."""
        ...

    async def take_back(
        self, call: ToolCall, position: int, context_for: Callable[[ToolCall, int], ToolContext]
    ) -> None:
        """Undo a call that may have run, with its tool's `undo`. Raises what that raises."""
        ...


@dataclass(slots=True, kw_only=True)
class LoopDeps:
    """Handles of an agent, shared by its runs but for those with an account."""

    llm: LLM
    tools: Tools
    retry: RetryPolicy
    clock: Clock
    model: str
    """The configured model name, as labels and logs show it."""
    memory: Memory | None = None
    output: OutputSpec | None = None
    price: Price | None = None
    points: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    on_delta: Callable[[str], None] | None = None
    host: Any = None
    """The host's own handles: `ToolContext.deps`."""
    account: Account | None = None
    """Of one run, which then has these handles to itself: it runs below another, or others run below it."""


LoopRun: TypeAlias = Run[LoopContext, LoopDeps]


async def through(run: LoopRun, point: str, value: Any) -> Any:
    """Pass a value through the host's hooks at a point, each seeing what the one before made of it."""
    for hook in run.deps.points.get(point, ()):
        run.hook = point
        changed = await hook(run, value)
        if run.halted:  # somebody stopped the run meanwhile, the hook itself perhaps: go no further
            await asyncio.sleep(0)
        if changed is not None:
            value = changed
    return value
