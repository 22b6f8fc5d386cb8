"""Dependencies of the loop's hooks: live handles that the runtime builds, never stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

from orchestrator.errors import RunError
from orchestrator.kernel.cancellation import host_function
from orchestrator.kernel.hooks import Hook, Hooks, takes, where
from orchestrator.kernel.run import Run
from orchestrator.llm.live_event import ToolProgress
from orchestrator.llm.message import KINDS, Request, Response, ToolCall, Usage, encodable
from orchestrator.llm.port import LLM, Clock, Memory, Price
from orchestrator.llm.retry import RetryPolicy
from orchestrator.llm.structured_output import OutputSpec
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.tools.input_request import NO_INPUT, CallInput
from orchestrator.tools.result import ToolResult
from orchestrator.tools.sampling import Sampler
from orchestrator.tools.spec import ToolContext, ToolSpec
from orchestrator.tools.tool_set import Around, ReadArguments, ToolCollection
from orchestrator_callbacks.llm_loop.budget_account import BudgetAccount
from orchestrator_guards import Guardrail

Point: TypeAlias = Callable[..., Awaitable[Any]]
"""A host's hook at one of the POINTS. Its result replaces its argument; None keeps the argument."""

OutputValidator: TypeAlias = Callable[[Any, ToolContext], Awaitable[Any]]
"""Checks a final answer: returns a changed output, or None to keep it, or raises ModelRetry."""

POINTS = {
    "before_llm_request": "request",
    "after_llm_response": "response",
    "before_tool_execution": "call",
    "after_tool_execution": "result",
    "before_finalize": "output",
}
"""The five points inside the loop's states where a host's hooks may read and change values.

`before_llm_request(run, request)` may return another Request, `after_llm_response(run, response)` a Response,
`before_tool_execution(run, call)` another ToolCall, or a ToolResult that replaces the call so that it does not run,
`after_tool_execution(run, result)` a ToolResult, and `before_finalize(run, output)` any output. An error or a value
of another type fails the run. To deny a call with a reason for the model, or to change a result:

    async def before_tool_execution(self, run, call):
        return ToolResult.denied(call, "not on Sundays") if call.name == "pay" else None

    async def after_tool_execution(self, run, result):
        return dataclasses.replace(result, content="withheld") if "secret" in result.content else None
"""


def split(bound: Hooks) -> tuple[Hooks, Mapping[str, tuple[Point, ...]]]:
    """Split the bound hooks into the machine's hooks and the host's hooks at POINTS.

    `after_llm_response` is a name of both: the hook of the event takes (run), the hook of the point takes (run,
    response).
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
    """An engine that executes runs of any graph, and applies the operator commands about models and tools."""

    async def may_ask(self, run: Run[Any, Any], model: str, /) -> None:
        """Return when requests to a model are allowed, by its configured name."""
        ...

    async def before_tool_execution(self, run: Run[Any, Any], call: ToolCall, /) -> ToolResult | None:
        """Return the result of a call that may not run, or None."""
        ...


class ToolProvider(Protocol):
    """The tools of an agent, such as `ToolSet` or `ReplayTools`."""

    @property
    def offers(self) -> tuple[ToolSpec, ...]:
        """The tools that are offered to the model."""
        ...

    @property
    def collections(self) -> Sequence[ToolCollection]:
        """The sources whose tools may change while a run is active; empty if none can."""
        ...

    async def refresh(self) -> None:
        """Read the tools of the collections again."""
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
        exact: dict[int, ReadArguments] | None = None,
        around: Around | None = None,
    ) -> list[ToolResult]:
        """Run the calls that have no result in `done` yet; fill `done` in place and return it, in call order.

        With `exact` the arguments are in canonical form, and a call that its tool parses differently does not run. It
        has, by position, the arguments that were read already; each is used once.
        `around` makes the context manager around the function of each tool that runs.
        """
        ...

    async def take_back(
        self, call: ToolCall, position: int, context_for: Callable[[ToolCall, int], ToolContext]
    ) -> None:
        """Undo a call that may have run with its tool's `undo`. Raises the errors of `undo`."""
        ...


@dataclass(slots=True, kw_only=True)
class LoopDeps:
    """Handles of an agent, shared by its runs, except runs with a budget account."""

    llm: LLM
    tools: ToolProvider
    retry: RetryPolicy
    clock: Clock
    model: str
    """The configured model name, for labels and logs."""
    agent: str = ""
    """Name of the agent; empty if it has none."""
    memory: Memory | None = None
    output: OutputSpec | None = None
    price: Price | None = None
    unpriced: set[tuple[str, float]] = field(default_factory=set)
    """(model, max_cost) pairs whose unknown price was logged already."""
    points: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    validators: tuple[OutputValidator, ...] = ()
    input_guards: tuple[Guardrail, ...] = ()
    output_guards: tuple[Guardrail, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    host: Any = None
    """The host's own handles: `ToolContext.deps`."""
    stored_result: Callable[[str, str], Awaitable[str]] | None = None
    """Returns the whole text of a stored result, by run id and handle."""
    sampler: Callable[[str, str], Sampler] | None = None
    """Makes `ToolContext.sample` of a call, from the id of the run and the key of the call."""
    account: BudgetAccount | None = None
    """Account of one run, which then has its own copy of these handles because it has a parent or child runs."""


LoopRun: TypeAlias = Run[LoopContext, LoopDeps]
AgentRun: TypeAlias = Run[Any, Any]
"""A run of an agent: of the loop, or of a team, whose context and handles have the same names for the same things."""


def open_account(
    run: AgentRun, lender: BudgetAccount | None = None, dormant: dict[str, Usage] | None = None
) -> BudgetAccount:
    """Give a run an account in its own handles; existing dormant usage is kept unless `dormant` is given.

    Only this function replaces the handles of a run that is driven.
    """
    if dormant is None:
        dormant = run.deps.account.dormant if run.deps.account else {}
    account = BudgetAccount(run, lender, dormant)
    run.deps = replace(run.deps, account=account)
    return account


def tool_context(
    run: LoopRun, key: str, retry: int = 0, tool: str = "", given: CallInput = NO_INPUT
) -> ToolContext:
    """Return the context of a call of `tool` or of an output validator; `key` identifies it within the run."""
    deps, run_id = run.deps, run.run_id
    stored = None if deps.stored_result is None else partial(deps.stored_result, run_id)
    loop = asyncio.get_running_loop()

    def progress(text: str) -> None:
        follower = run.control.follower
        if follower is not None:
            event = ToolProgress(
                run_id=run_id, at=deps.clock.time(), key=key, tool=tool, text=encodable(text)
            )
            loop.call_soon_threadsafe(follower, event)  # a sync tool runs in a thread

    return ToolContext(
        run_id,
        f"{run_id}:{key}",
        deps.host,
        run.expires_at,
        progress=progress,
        clock=deps.clock,
        stored_result=stored,
        metadata=run.metadata,
        tags=run.tags,
        reads=getattr(deps.llm, "reads", KINDS),
        retry=retry,
        input=given,
        sample=None if deps.sampler is None else deps.sampler(run_id, key),
    )


_GIVES: Mapping[str, tuple[type, ...]] = {
    "before_llm_request": (Request,),
    "after_llm_response": (Response,),
    "before_tool_execution": (ToolCall, ToolResult),
    "after_tool_execution": (ToolResult,),
    "before_finalize": (object,),
}
"""Point -> types that its hooks may return besides None."""


async def through(run: LoopRun, point: str, value: Any) -> Any:
    """Pass a value through the host's hooks at a point, each with the result of the previous one.

    A result that replaces a call stops this, because no call is left for the next hook. Raises RunError for a hook
    that returns a wrong type.
    """
    for hook in run.deps.points.get(point, ()):
        run.set_hook(point)
        changed = await hook(run, value)
        if run.control.halted:  # the run was stopped meanwhile, perhaps by the hook itself: stop here
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
