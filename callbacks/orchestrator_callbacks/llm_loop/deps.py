"""What the hooks of the loop may touch: live handles, built by the runtime, never stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from orchestrator.errors import RunError
from orchestrator.kernel.abandonment import host_call, host_function
from orchestrator.kernel.hooks import Hook, Hooks, takes, where
from orchestrator.kernel.run import Run
from orchestrator.llm.message import Request, Response, ToolCall, Usage
from orchestrator.llm.port import LLM, Clock, Memory, Price
from orchestrator.llm.retry import RetryPolicy
from orchestrator.llm.structured_output import OutputSpec
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.tools.result import ToolResult
from orchestrator.tools.spec import ToolContext, ToolSpec
from orchestrator_callbacks.llm_loop.budget_account import BudgetAccount

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

`before_llm_request(run, request)` may return another Request, `after_llm_response(run, response)` a Response,
`before_tool_execution(run, call)` another ToolCall or a ToolResult that stands for the call, so that it does not run,
`after_tool_execution(run, result)` a ToolResult, `before_finalize(run, output)` any output. An error in any of them
fails the run, another kind of value is one. To refuse a call and let the model read why, or to change what it reads:

    async def before_tool_execution(self, run, call):
        return ToolResult.denied(call, "not on Sundays") if call.name == "pay" else None

    async def after_tool_execution(self, run, result):
        return dataclasses.replace(result, content="withheld") if "secret" in result.content else None
"""


def split(bound: Hooks) -> tuple[Hooks, Mapping[str, tuple[Point, ...]]]:
    """Part what was bound, with POINTS as points, into the machine's hooks and the hosts' points.

    `after_llm_response` is the name of both: the hook of the event takes (run), the point (run, response).
    """
    hooks: dict[str, tuple[Hook, ...]] = dict(bound.by_name)
    points: dict[str, tuple[Point, ...]] = {}
    for name in POINTS:
        named = hooks.pop(name, ())
        if here := tuple(host_function(hook, "hook", name) for hook in named if takes(hook, 2)):
            points[name] = here
        if rest := tuple(hook for hook in named if not takes(hook, 2)):
            hooks[name] = rest
    return Hooks(hooks, bound.hosted & hooks.keys(), bound.modules), points


class ServiceHost(Protocol):
    """Who runs the runs of any graph, and keeps to what was ordered about models and tools."""

    async def may_ask(self, run: Run[Any, Any], model: str, /) -> None:
        """Return when a model may be asked, by its configured name."""
        ...

    async def before_tool_execution(self, run: Run[Any, Any], call: ToolCall, /) -> ToolResult | None:
        """Return the result of a call that may not run, or None."""
        ...


class ToolProvider(Protocol):
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
        exact: bool = False,
    ) -> list[ToolResult]:
        """Run the calls that have no result in `done` yet; fill it in place and return it, in call order.

        With `exact` arguments are in canonical form, and a call that its tool reads otherwise does not run.
        """
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
    tools: ToolProvider
    retry: RetryPolicy
    clock: Clock
    model: str
    """The configured model name, as labels and logs show it."""
    memory: Memory | None = None
    output: OutputSpec | None = None
    price: Price | None = None
    unpriced: set[tuple[str, float]] = field(default_factory=set)
    """(model, max_cost) that the log has named: a price was wanted and nobody had one."""
    points: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    host: Any = None
    """The host's own handles: `ToolContext.deps`."""
    account: BudgetAccount | None = None
    """Of one run, which then has these handles to itself: it runs below another, or others run below it."""


LoopRun: TypeAlias = Run[LoopContext, LoopDeps]


def ask_model(run: LoopRun, request: Request) -> Awaitable[Response]:
    """Ask the model once. Where it ignores a cancellation it is abandoned."""
    return host_call(run.deps.llm.complete(request), "model", run.deps.model)


def open_account(
    run: LoopRun, lender: BudgetAccount | None = None, dormant: dict[str, Usage] | None = None
) -> BudgetAccount:
    """Give a run an account, in handles of its own; what sleeps in one that it has stays, unless `dormant` is given.

    The only place where the handles of a run are replaced.
    """
    if dormant is None:
        dormant = run.deps.account.dormant if run.deps.account else {}
    account = BudgetAccount(run, lender, dormant)
    run.deps = replace(run.deps, account=account)
    return account


_GIVES: Mapping[str, tuple[type, ...]] = {
    "before_llm_request": (Request,),
    "after_llm_response": (Response,),
    "before_tool_execution": (ToolCall, ToolResult),
    "after_tool_execution": (ToolResult,),
    "before_finalize": (object,),
}
"""Point -> what its hooks may return beside None."""


async def through(run: LoopRun, point: str, value: Any) -> Any:
    """Pass a value through the host's hooks at a point, each seeing what the one before made of it.

    A result that stands for a call ends that: there is no call any more that the next hook could look at. Raises
    RunError for a hook that returns something else than its point takes.
    """
    for hook in run.deps.points.get(point, ()):
        run.set_hook(point)
        changed = await hook(run, value)
        if run.control.halted:  # somebody stopped the run meanwhile, the hook itself perhaps: go no further
            await asyncio.sleep(0)
        if changed is None:
            continue
        if not isinstance(changed, _GIVES[point]):
            wanted = " or ".join(kind.__name__ for kind in _GIVES[point])
            raise RunError(f"{where(hook, point)} returned {type(changed).__name__}, not {wanted}")
        value = changed
        if point == "before_tool_execution" and isinstance(value, ToolResult):
            break
    return value
