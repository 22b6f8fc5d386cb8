"""The resources of one run of a mode: model, REPL or tools, event source, and the broker of its queries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from orchestrator.errors import ConfigError, RunError
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.record import ToolExecution
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.llm.port import LLM, Clock, Price
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.code_mode.ports import Repl
from orchestrator.machines.rlm.limits import RlmLimits
from orchestrator.machines.rlm.policy import ContextCompressor, NestedCallPolicy, StoppingPolicy
from orchestrator.repl import ReplLimits, WorkerRepl
from orchestrator.runtime.llm_loop.composition import model_name
from orchestrator.runtime.rlm import codec as rlm_record
from orchestrator.runtime.rlm.context_tools import context_tools
from orchestrator.runtime.rlm.result import RlmResult
from orchestrator.runtime.rlm.subcall import SubCalls
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.tools.result import ToolResult
from orchestrator.tools.spec import ToolContext, ToolSpec, as_tool
from orchestrator.tools.tool_set import Around, ToolSet
from orchestrator_callbacks.code_mode.source import CodeModeSource
from orchestrator_callbacks.llm_loop.call_scope import tool_scope
from orchestrator_callbacks.llm_loop.request_usage import Pricing, refuse_unpriced
from orchestrator_callbacks.rlm import prompt
from orchestrator_callbacks.rlm.budget_account import RunBudget
from orchestrator_callbacks.rlm.deps import ModeRun, Source, allowed
from orchestrator_callbacks.rlm.model_call import OwnModel, check_cost, paid, request_answer
from orchestrator_callbacks.tools_mode.source import ToolsModeSource

_SHOWN = 4_000
"""Maximum characters of a query in the prompt of its child run; a longer query is in its `context`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResources:
    """The resources of all runs of one Rlm."""

    mode: Literal["code", "tools"]
    llm: LLM
    sub_llm: LLM
    tools: tuple[ToolSpec, ...]
    retry: RetryPolicy
    instructions: str | None
    stopping: StoppingPolicy | None
    compressor: ContextCompressor | None
    nested: NestedCallPolicy | None
    repl: Callable[..., Repl] | None
    clock: Clock
    price: Price | None
    params: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any], runtime: Runtime) -> RunResources:
        """Return the resources from the checked arguments of Rlm. Raises ConfigError for invalid combinations."""
        mode, clock = given["mode"], runtime.clock
        tools = ToolSet(given["tools"], clock=clock).offers
        if tools and mode == "code":
            raise ConfigError("tools are for mode 'tools'; in mode 'code' the model has a REPL")
        if with_approval := [spec.name for spec in tools if spec.approval]:
            raise ConfigError(
                f"{', '.join(with_approval)}: mode 'tools' does not ask a person about calls; give tools with approval "
                "to an Agent"
            )
        names = ("instructions", "stopping", "compressor", "nested", "repl")
        made = cls(
            mode=mode,
            llm=given["model"],
            sub_llm=given["model"] if given["sub_model"] is None else given["sub_model"],
            tools=tools,
            retry=given["retry"] or RetryPolicy(),
            clock=clock,
            price=runtime.price,
            params=dict(given["params"] or {}),
            **{name: given[name] for name in names},
        )
        if given["limits"] is not None:
            refuse_unpriced(given["limits"], made.pricing)
        return made

    @property
    def models(self) -> tuple[str, str]:
        """The configured names of the model of a run and of the model of its queries."""
        return model_name(self.llm), model_name(self.sub_llm)

    @property
    def pricing(self) -> tuple[Pricing, Pricing]:
        """The cost information about both models."""
        own, sub = self.models
        return Pricing(self.price, self.llm, own), Pricing(self.price, self.sub_llm, sub)

    def offered(self) -> list[tuple[str, tuple[ToolSpec, ...]]]:
        """Return mode and tools of a run, and of its child runs if the policy gives them."""
        offered: list[tuple[str, tuple[ToolSpec, ...]]] = [(self.mode, self.tools)]
        with suppress(Exception):  # an operator command must not fail because of a host's policy
            for_child = self.for_child()
            offered.append((for_child.mode, for_child.tools))
        return offered

    def for_child(self) -> RunResources:
        """Return the resources of a child run by the policy."""
        if self.nested is None:
            return replace(self, llm=self.sub_llm)
        config = self.nested.get_nested_config()
        tools = tuple(as_tool(one) for one in config.tools)
        if config.agent_mode == "code":
            tools = ()
        return replace(self, llm=self.sub_llm, mode=config.agent_mode, tools=tools)

    def limits_of(self, limits: RlmLimits) -> RlmLimits:
        """Return the limits of a child run; its budget is part of its parent's."""
        if self.nested is None:
            return limits
        config = self.nested.get_nested_config()
        depth = limits.max_depth if config.max_depth is None else min(config.max_depth, limits.max_depth)
        return replace(limits, max_iterations=config.max_iterations, max_depth=depth)

    def question_of(self, question: str) -> tuple[str, str | None]:
        """Return prompt and context of the child run for a query.

        A long query becomes data, with its start and end shown.
        """
        if len(question) <= _SHOWN:
            return question, None
        half = _SHOWN // 2
        shown = f"{question[:half]}\n[…]\n{question[-half:]}"
        return f"Your task is the text in `context`; its beginning and its end are:\n\n{shown}", question


NestedRun: TypeAlias = Callable[[ModeRun, str, int, RunBudget, RunResources], Awaitable[RlmResult]]


@asynccontextmanager
async def equipped(given: RunResources, run: ModeRun, nested_run: NestedRun) -> AsyncIterator[None]:
    """Give a run its event source while it is driven, and close its resources afterwards."""
    deps, broker = run.deps, _broker(given, run, nested_run)

    async def announce() -> None:
        run.note("reserved", rlm_record.reserved(deps.budget))
        await run.settle()

    deps.budget.announce = announce
    deps.budget.record = run.attach_guards
    if given.mode == "tools":
        deps.source = _tools_source(given, run, broker)
        yield
        return
    try:
        repl = _repl(given, run, broker)
    except Exception as error:  # noqa: BLE001 - a host's error fails the run, like a worker that cannot start
        deps.source = _raising(error)
        yield
        return
    deps.source = CodeModeSource(
        OwnModel(run),
        repl,
        stopping=given.stopping,
        compressor=given.compressor,
        params=given.params,
        instructions=given.instructions,
    )
    try:
        yield
    finally:
        await _closed(repl, run.run_id)


def _broker(given: RunResources, run: ModeRun, nested_run: NestedRun) -> SubCalls:
    """Return the broker of the queries of a run's code or tools."""
    _, pricing = given.pricing

    async def ask(request: Request) -> Response:
        return await request_answer(run, given.sub_llm, pricing, request)

    async def nested(question: str, depth: int, budget: RunBudget) -> str:
        done = await nested_run(run, question, depth, budget, given.for_child())
        if done.outcome in (Outcome.COMPLETED, Outcome.PARTIAL) and done.output is not None:
            return done.output
        raise RunError(f"a run below this one ended as {done.outcome.value} ({done.reason})")

    return SubCalls(
        ask,
        depth=run.ctx.depth,
        limits=run.ctx.limits,
        budget=run.deps.budget,
        policy=given.nested,
        nested=nested,
        params=given.params,
        pay=lambda request: paid(run, pricing, request),
        check=lambda response: check_cost(run, response),
        admit=lambda: allowed(run, given.models[1]),
    )


async def _closed(repl: Repl, run_id: str) -> None:
    """Close a REPL. An error of a host's own REPL is logged, because the run has its result already."""
    try:
        await asyncio.shield(repl.close())
    except Exception as error:  # noqa: BLE001 - an error of a host's REPL
        logging.getLogger("orchestrator").warning(
            "run %s: its REPL could not be closed (%s: %s)", run_id, type(error).__name__, error
        )


def _raising(error: Exception) -> Source:
    async def source(_state: object, _ctx: object) -> None:
        raise error

    return source


_REPL = ("run", "variable", "close")


def _repl(given: RunResources, run: ModeRun, broker: SubCalls) -> Repl:
    ctx = run.ctx
    if given.repl is not None:
        made = given.repl(ctx.context, broker=broker, depth=ctx.depth, correlation_id=run.run_id)
        if lacks := [name for name in _REPL if not callable(getattr(made, name, None))]:
            raise ConfigError(f"repl made {type(made).__name__}, which has no {', '.join(lacks)}")
        return made
    limits = ReplLimits(seconds=ctx.limits.code_seconds) if ctx.limits.code_seconds else ReplLimits()
    return WorkerRepl(ctx.context, broker=broker, depth=ctx.depth, correlation_id=run.run_id, limits=limits)


def _tools_source(given: RunResources, run: ModeRun, broker: SubCalls) -> ToolsModeSource:
    own = context_tools(run.ctx.context, broker)
    tools = ToolSet((*given.tools, *own), clock=given.clock)
    words = prompt.TOOLS + (prompt.TOOLS_CONTEXT if own else "")

    def context_for(_call: ToolCall, position: int) -> ToolContext:
        key = f"{run.run_id}:{run.ctx.iteration + 1}:{position}"
        return ToolContext(run.run_id, key, None, run.expires_at, clock=given.clock)

    async def before(call: ToolCall) -> ToolResult | None:
        host = run.deps.hosted.host
        return None if host is None else await host.before_tool_execution(run, call)

    return ToolsModeSource(
        OwnModel(run),
        tools,
        stopping=given.stopping,
        compressor=given.compressor,
        params=given.params,
        instructions=words if given.instructions is None else given.instructions,
        context_for=context_for,
        before=before,
        around=_tool_scope(run),
        on_result=lambda result: _publish_execution(run, tools, result),
    )


def _tool_scope(run: ModeRun) -> Around:
    """Return the context manager of a tool. The source is made before the run is driven, so it is looked up late."""

    def scope(spec: ToolSpec, position: int) -> AbstractContextManager[object]:
        found = tool_scope(run, ahead=1)
        return nullcontext() if found is None else found(spec, position)

    return scope


def _publish_execution(run: ModeRun, tools: ToolSet, result: ToolResult) -> None:
    spec = tools.find(result.call.name)
    run.emit(
        ToolExecution(
            run.graph.name,
            run.run_id,
            run.ctx.iteration + 1,
            result.position,
            spec.name if spec else "_unregistered",
            result.outcome,
            result.seconds,
            result.queued,
            len(result.content),
            result.cut,
            result.at,
        )
    )
