"""The resources of one run of a mode: model, REPL or tools, event source, and the broker of its queries.

A query that cannot be answered raises an error in the code and never ends the run: a used-up limit, a failing model,
a child run that does not complete. Cancellation passes through.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias, TypedDict

from orchestrator import around
from orchestrator.errors import ConfigError, LLMError, OrchestratorError, RunError
from orchestrator.kernel.fact import ToolExecution
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.typed import StateMachine, TypedMachine
from orchestrator.llm.message import NO_USAGE, Message, Request, Response, Route, ToolCall
from orchestrator.llm.port import LLM, Clock, Price, model_name
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.rlm.code_mode import (
    CODE_MODE,
    Answer,
    CodeModeContext,
    Repl,
    build_code_mode_machine,
)
from orchestrator.machines.rlm.model import CODE_LIMITS, TOOLS_LIMITS, ModeContext, RlmLimits
from orchestrator.machines.rlm.policy import ContextCompressor, NestedCallPolicy, StoppingPolicy
from orchestrator.machines.rlm.tools_mode import TOOLS_MODE, ToolsModeContext, build_tools_mode_machine
from orchestrator.runtime.llm_loop.run_options import Prompt
from orchestrator.runtime.rlm import run_record
from orchestrator.runtime.rlm.run_record import RlmResult
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.tools.result import ToolResult
from orchestrator.tools.spec import ToolContext, ToolSpec, as_tool, tool
from orchestrator.tools.tool_set import ToolSet
from orchestrator_callbacks.llm_loop.request_usage import Pricing, refuse_unpriced
from orchestrator_callbacks.llm_loop.turn import tool_scope
from orchestrator_callbacks.rlm import code_mode, conversation, tools_mode
from orchestrator_callbacks.rlm.code_mode import CodeModeSource
from orchestrator_callbacks.rlm.model_call import (
    ModeRun,
    OwnModel,
    RequestUsage,
    RunBudget,
    allowed,
    check_cost,
    estimated,
    paid,
    request_answer,
)
from orchestrator_callbacks.rlm.tools_mode import ToolsModeSource

_PIECE = 10_000
"""Maximum characters of one read."""
_AROUND = 80
"""Characters on each side of a search hit."""
_PLACES = 20
_LONGEST_QUERY = 200_000
"""Maximum characters of the data in one query to a model."""

AskAll = Callable[[tuple[str, ...]], Awaitable[Sequence[Answer]]]


def context_tools(context: Any, ask: AskAll) -> list[ToolSpec]:
    """Return the tools for some data: read, search, and query a model about a part of it; none without data."""
    if context is None:
        return []
    text = context if isinstance(context, str) else json.dumps(context, ensure_ascii=False, indent=1)

    @tool(effect="pure")
    def context_read(start: int = 0, length: int = 2_000) -> str:
        """Read a piece of the data, by position in characters; at most 10,000 characters at once."""
        start = max(0, start)
        end = min(len(text), start + max(0, min(length, _PIECE)))
        return f"[{start:,} to {end:,} of {len(text):,} characters]\n{text[start:end]}"

    @tool(effect="pure")
    def context_search(words: str, start: int = 0) -> str:
        """Find words in the data, capitals apart: the first 20 places from `start` on, each with its position."""
        if not words:
            return "give the words to look for"
        places = [
            found.start() for found in re.finditer(re.escape(words), text[max(0, start) :], re.IGNORECASE)
        ]
        shown = []
        for place in places[:_PLACES]:
            at = max(0, start) + place
            excerpt = text[max(0, at - _AROUND) : min(len(text), at + len(words) + _AROUND)]
            shown.append(f"{at:,}: …{' '.join(excerpt.split())}…")
        more = f"\n{len(places) - _PLACES:,} more places" if len(places) > _PLACES else ""
        return ("\n".join(shown) + more) or "not found"

    @tool(effect="idempotent")
    async def context_query(question: str, start: int = 0, length: int = 50_000) -> str:
        """Ask another model a question about a piece of the data (at most 200,000 characters); it sees nothing else."""
        start = max(0, start)
        piece = text[start : start + max(0, min(length, _LONGEST_QUERY))]
        (answer,) = await ask((f"{question}\n\n{piece}",))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return [context_read, context_search, context_query]


Ask: TypeAlias = Callable[[Request], Awaitable[Response]]
"""Calls a model with retries, prices and telemetry; the usage of the response includes its cost."""

Nested: TypeAlias = Callable[[str, int, RunBudget], Awaitable[str]]
"""(prompt, depth, budget of the parent) -> the answer of a child run, which counts its own usage."""


class SubCalls:
    """The broker of one run. `depth` is the depth of that run; queries are one level deeper.

    A query is passed to `nested` while its depth is below `limits.max_depth` and the policy agrees; without a policy
    all are. Otherwise, and without `nested`, `ask` calls a model once with `params`. `pay` reserves the cost of that
    request, `check` checks its answer after it was counted, `admit` returns when it may be sent.
    """

    def __init__(
        self,
        ask: Ask,
        *,
        depth: int,
        limits: RlmLimits,
        budget: RunBudget,
        policy: NestedCallPolicy | None = None,
        nested: Nested | None = None,
        params: Mapping[str, Any] | None = None,
        pay: Callable[[Request], AbstractAsyncContextManager[RequestUsage]] | None = None,
        check: Callable[[Response], None] | None = None,
        admit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._ask = ask
        self._pay = pay
        self._check = check
        self._admit = admit
        self._depth = depth + 1
        self._max_depth = limits.max_depth
        self._budget = budget
        self._policy = policy
        self._nested = nested
        self._params = dict(params or {})
        self._slots = asyncio.Semaphore(limits.max_concurrent_subcalls or 1_000_000)

    async def __call__(self, prompts: Sequence[str]) -> list[Answer]:
        """Answer all prompts concurrently within the limits; answers are in the same order."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._answer(prompt)) for prompt in prompts]
        return [task.result() for task in tasks]

    async def _answer(self, prompt: str) -> Answer:
        try:
            async with self._slots:
                self._budget.count_call()
                if self._nested is not None and self._depth < self._max_depth:
                    deeper = (
                        True if self._policy is None else self._policy.should_orchestrate(prompt, self._depth)
                    )
                    if await deeper if inspect.isawaitable(deeper) else deeper:
                        return await self._nested(prompt, self._depth, self._budget)
                return await self._ask_model(prompt)
        except OrchestratorError as error:
            return error
        except Exception as error:  # noqa: BLE001 - an error of a model or a policy: the code gets it
            return RuntimeError(f"{type(error).__name__}: {error}")

    async def _ask_model(self, prompt: str) -> str:
        request = Request(messages=(Message("user", prompt),), params=self._params, route=Route())
        if self._admit is not None:
            await self._admit()
        paid = self._pay(request) if self._pay else self._budget.request(estimated(request.messages))
        async with paid as bill:
            response = await self._ask(request)
            bill.usage = response.usage or NO_USAGE
        if self._check is not None:
            self._check(response)
        if response.refusal:
            raise LLMError(f"the model refused to answer: {response.refusal}", kind="content_filter")
        return response.message().text


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
        run.note("reserved", run_record.reserved(deps.budget))
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
        failure = error

        async def raising(_state: object, _ctx: object) -> None:
            raise failure

        deps.source = raising
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
        try:
            await asyncio.shield(repl.close())
        except Exception as error:  # noqa: BLE001 - of a host's own REPL; the run has its result already
            logging.getLogger("orchestrator").warning(
                "run %s: its REPL could not be closed (%s: %s)", run.run_id, type(error).__name__, error
            )


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


_REPL = ("run", "variable", "close")


def _repl(given: RunResources, run: ModeRun, broker: SubCalls) -> Repl:
    ctx = run.ctx
    if given.repl is not None:
        made = given.repl(ctx.context, broker=broker, depth=ctx.depth, correlation_id=run.run_id)
        if lacks := [name for name in _REPL if not callable(getattr(made, name, None))]:
            raise ConfigError(f"repl made {type(made).__name__}, which has no {', '.join(lacks)}")
        return made
    limits = (
        around.ReplLimits(seconds=ctx.limits.code_seconds) if ctx.limits.code_seconds else around.ReplLimits()
    )
    return around.WorkerRepl(
        ctx.context, broker=broker, depth=ctx.depth, correlation_id=run.run_id, limits=limits
    )


def _tools_source(given: RunResources, run: ModeRun, broker: SubCalls) -> ToolsModeSource:
    own = context_tools(run.ctx.context, broker)
    tools = ToolSet((*given.tools, *own), clock=given.clock)
    words = conversation.TOOLS + (conversation.TOOLS_CONTEXT if own else "")

    def context_for(_call: ToolCall, position: int) -> ToolContext:
        key = f"{run.run_id}:{run.ctx.iteration + 1}:{position}"
        return ToolContext(run.run_id, key, None, run.expires_at, clock=given.clock)

    async def before(call: ToolCall) -> ToolResult | None:
        host = run.deps.hosted.host
        return None if host is None else await host.before_tool_execution(run, call)

    def scope(spec: ToolSpec, position: int) -> AbstractContextManager[object]:
        found = tool_scope(run, ahead=1)  # looked up late: the source is made before the run is driven
        return nullcontext() if found is None else found(spec, position)

    def publish(result: ToolResult) -> None:
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
                result.error,
                result.call.id,
            )
        )

    return ToolsModeSource(
        OwnModel(run),
        tools,
        stopping=given.stopping,
        compressor=given.compressor,
        params=given.params,
        instructions=words if given.instructions is None else given.instructions,
        context_for=context_for,
        before=before,
        around=scope,
        on_result=publish,
    )


@dataclass(frozen=True, slots=True)
class Mode:
    """One mode."""

    graph: Graph
    build: Callable[[], StateMachine[Any, Any, Any]]
    hooks: object
    context: type[ModeContext]
    limits: RlmLimits
    laps: tuple[str, ...]
    """Events that complete a turn."""
    own_tools: tuple[str, ...] = ()

    def machine(self, graph: Graph, hooks: Iterable[object]) -> TypedMachine:
        """Return the compiled machine with our hooks and then the host's. Raises GraphError."""
        return self.build().machine(graph, hooks=collect(graph, self.hooks, extra=tuple(hooks)))

    def offers(self, tools: Sequence[ToolSpec]) -> list[Any]:
        """Return the tools to declare to metrics, including those that a run adds for its data."""
        return [*tools, *(SimpleNamespace(name=name) for name in self.own_tools)]


MODES: Mapping[str, Mode] = {
    "code": Mode(
        CODE_MODE,
        build_code_mode_machine,
        code_mode,
        CodeModeContext,
        CODE_LIMITS,
        ("CodeExecuted", "MaxIterationsReached"),
    ),
    "tools": Mode(
        TOOLS_MODE,
        build_tools_mode_machine,
        tools_mode,
        ToolsModeContext,
        TOOLS_LIMITS,
        ("ToolsExecuted", "MaxIterationsReached"),
        ("context_read", "context_search", "context_query"),
    ),
}


def tool_names(offered: Iterable[tuple[str, Sequence[ToolSpec]]]) -> list[str]:
    """Return the names of all tools of runs of these modes."""
    known = [(MODES[mode], tools) for mode, tools in offered if mode in MODES]
    return sorted({one.name for mode, tools in known for one in mode.offers(tools)})


def mode_of(name: object) -> Mode:
    """Return the mode of this name. Raises ConfigError."""
    if not isinstance(name, str) or name not in MODES:
        raise ConfigError(f"mode is {name!r}; allowed: {', '.join(MODES)}")
    return MODES[name]


class BatchOptions(TypedDict, total=False):
    """Options of every run of a batch, as for `Rlm.run`."""

    run_id: str | None
    conversation_id: str | None
    limits: RlmLimits | None
    deadline: float | None
    metadata: Mapping[str, Any] | None
    tags: Mapping[str, str] | None


def questions_of(questions: object, run_id: object) -> list[tuple[Prompt, Any]]:
    """Return prompt and context of each question of a batch. Raises ConfigError for an invalid question."""
    if isinstance(questions, str | bytes) or not isinstance(questions, Iterable):
        kind = type(questions).__name__
        raise ConfigError(f"the questions are {kind}; give a list of prompts, or of (prompt, context)")
    found: list[Any] = [one if isinstance(one, tuple) else (one, None) for one in questions]
    for number, one in enumerate(found, 1):
        if len(one) != 2:  # noqa: PLR2004 - prompt and context
            raise ConfigError(
                f"question {number} is a tuple of {len(one)}; give a prompt, or (prompt, context)"
            )
    if run_id is not None and len(found) > 1:
        raise ConfigError(f"run_id is {run_id!r}, but a batch of {len(found)} has as many runs; omit it")
    return found
