"""`Rlm`, the facade of code mode and tools mode: graph, hooks, event sources, REPL and model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, Unpack

from orchestrator.argument_names import checks_names
from orchestrator.errors import ConfigError
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import Follower, Observer, Transition
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import Journal, Record, RunHead
from orchestrator.llm.message import Message
from orchestrator.llm.port import LLM, model_name
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.rlm.code_mode import Repl
from orchestrator.machines.rlm.model import RlmLimits, ending
from orchestrator.machines.rlm.policy import ContextCompressor, NestedCallPolicy, StoppingPolicy
from orchestrator.providers.model_guard import refuse_real
from orchestrator.runtime.facade import Facade
from orchestrator.runtime.llm_loop import composition as compose
from orchestrator.runtime.llm_loop.run_options import Conversations, Prompt, opening
from orchestrator.runtime.rlm import run_record
from orchestrator.runtime.rlm.run_record import RlmResult, result_of
from orchestrator.runtime.rlm.run_setup import (
    BatchOptions,
    RunResources,
    equipped,
    mode_of,
    questions_of,
    tool_names,
)
from orchestrator.runtime.run_stream import RunStream, new_stream
from orchestrator.runtime.service import arguments
from orchestrator.runtime.service.arguments import (
    SHARED,
    IfExists,
    agent_data,
    host_data,
    new_id,
    stored_data,
)
from orchestrator.runtime.service.hosting import BeginRun, CheckRun, Host, Hosting, RunInput
from orchestrator.runtime.service.ownership import LocalDefinition
from orchestrator.runtime.service.run_service import RunKind, RunService
from orchestrator.runtime.service.runtime import Runtime, outside_loop, runtime_of, with_arguments_of
from orchestrator.tools.spec import ToolSpec
from orchestrator.tools.tool_set import ToolSet
from orchestrator_callbacks.llm_loop.admission import definition_of
from orchestrator_callbacks.llm_loop.request_usage import refuse_unpriced
from orchestrator_callbacks.rlm.model_call import HostReference, ModeDeps, ModeRun, RunBudget

_INPUT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "title": "Question", "minLength": 1},
        "context": {"title": "Data"},
    },
    "required": ["prompt"],
    "additionalProperties": False,
}
"""Schema of a question and its data."""


class ModeHosting(Hosting):
    """Engine-only interface of an Rlm.

    `hosted` refers to the engine; `resources` has the models and the tools of the run and of its queries.
    """

    def __init__(
        self,
        *parts: Any,
        hosted: HostReference,
        resources: RunResources,
        check: CheckRun,
        begin: BeginRun,
    ) -> None:
        super().__init__(*parts, check=check, begin=begin)
        self._hosted = hosted
        self._models = tuple(dict.fromkeys(resources.models))
        self.model = self._models[0]
        self.tools = tuple(tool_names(resources.offered()))

    @property
    def models(self) -> tuple[str, ...]:
        """The configured names of all models of its runs."""
        return self._models

    def obey(self, host: Host | None) -> None:
        """Set the host that is asked before each model and tool call, or None."""
        self._hosted.host = host

    def tree(self) -> Sequence[Hosting]:
        """Return only this one: child runs use the same models."""
        return [self]


@checks_names
class Rlm(Facade[RlmResult]):
    """Answer prompts about data of any length: in mode `code` with code in a REPL, in mode `tools` with tool calls.

    The data (`context`) is a variable of the REPL, or is read with tools, and is never part of a request.

    Args:
        model: The model.
        mode: "code" or "tools".
        sub_model: The model for queries of the code; `model` by default.
        tools: Tools of mode "tools".
        limits: Default limits of a run.
        instructions: Replaces the instructions about the mode.
        stopping, compressor: Policies for the end of a run and for its history.
        nested: Decides which queries get a child run, while `limits.max_depth` allows one.
        repl: Makes the REPL of a run: `repl(context, broker=..., depth=..., correlation_id=...)`; None makes a
            WorkerRepl.
        retry, hooks, graph, params, runtime, journal, observers, launch, name, version: As for Agent.

    Example:
        result = await Rlm(llm).run("Which line has the error?", log_text)
    """

    _codec: run_record.ModeCodec

    def __init__(
        self,
        model: LLM,
        *,
        mode: Literal["code", "tools"] = "code",
        sub_model: LLM | None = None,
        tools: Iterable[ToolSpec | Callable[..., Any]] = (),
        limits: RlmLimits | None = None,
        retry: RetryPolicy | None = None,
        instructions: str | None = None,
        stopping: StoppingPolicy | None = None,
        compressor: ContextCompressor | None = None,
        nested: NestedCallPolicy | None = None,
        repl: Callable[..., Repl] | None = None,
        hooks: Iterable[object] = (),
        graph: Graph | None = None,
        params: Mapping[str, Any] | None = None,
        runtime: Runtime | None = None,
        journal: Journal | None = None,
        observers: Iterable[Observer] | None = None,
        launch: Mapping[str, Any] | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self._mode = mode_of(mode)
        graph = self._mode.graph if graph is None else graph
        arguments.check_agent(locals(), RlmLimits)
        runtime = runtime_of(runtime, journal, observers)
        self._equipment = given = RunResources.of(locals(), runtime)
        self._limits = limits or self._mode.limits
        self._conversations, self._hosted = Conversations(), HostReference()
        self._codec = run_record.codec(self._mode.context, launch)
        self._service = RunService(
            self,
            RunKind(
                machine=self._mode.machine(graph, hooks),
                codec=self._codec,
                declare=self._declare,
                ending=ending,
                summary=run_record.summary,
                result=result_of,
                restore=self._restore,
                update=self._update,
                check_limits=self._check_limits,
                check_resume=self._check_resume,
                over=self._over,
                keeps_state=lambda _: self._equipment.mode == "code",  # the variables of its REPL
                laps=self._mode.laps,
            ),
            runtime,
            agent_data(name, version),
            local=None if launch else LocalDefinition.of(definition_of(given.tools), instructions),
        )
        self.hosting = ModeHosting(
            self._service,
            launch,
            hosted=self._hosted,
            resources=given,
            check=self._check_run,
            begin=self._begin,
        )
        self.hosting.input = RunInput(_INPUT, self._deposit_input)
        """Engine-only interface of this agent."""

    # ---- run ----

    async def run(
        self,
        prompt: Prompt,
        context: Any = None,
        *,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        conversation_id: str | None = None,
        limits: RlmLimits | None = None,
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RlmResult:
        """Answer a prompt about `context` and return the result, whose `outcome` says how the run ended.

        Args:
            prompt: Text, a message, or a conversation that ends with a message of the user.
            context: The data: text or JSON types; None for no data.
            conversation_id: The model sees earlier prompts and answers of it. The REPL is always a new one.
            run_id, if_exists, limits, deadline, metadata, tags: As for `run` of an Agent, like the errors and a
                cancelled caller.
        """
        data = self._check_run(run_id, conversation_id, limits, deadline, metadata=metadata, tags=tags)
        arguments.check_if_exists(if_exists, run_id)
        about, name = (prompt, context), run_id or new_id()
        others = conversation_id, limits, deadline, data
        return await self._run_or_continue(if_exists, "always", about, name, *others)

    async def deposit(
        self,
        prompt: Prompt,
        context: Any = None,
        *,
        run_id: str | None = None,
        conversation_id: str | None = None,
        limits: RlmLimits | None = None,
        tenant: str = "",
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Store a run in the journal for a worker, and return its id; as `deposit` of an Agent."""
        data = self._check_run(run_id, conversation_id, limits, None, metadata=metadata, tags=tags)
        about, name = (prompt, context), run_id or new_id()
        return await self._service.deposit(
            await self._begun(about, name, conversation_id, limits, data), tenant
        )

    async def _deposit_input(self, value: Any, /, **options: Any) -> str:
        if not isinstance(value, Mapping) or "prompt" not in value or value.keys() - _INPUT["properties"]:
            raise ConfigError("the input of an Rlm has the members prompt and, if there are data, context")
        return await self.deposit(value["prompt"], value.get("context"), **options)

    @with_arguments_of(run)
    def run_sync(self, prompt: Prompt, context: Any = None, **options: Any) -> RlmResult:
        """Answer from code without an event loop; options as for `run`. Raises ConfigError inside one."""
        return outside_loop("run_sync", "rlm.run", lambda: self.run(prompt, context, **options))

    def stream(
        self,
        prompt: Prompt,
        context: Any = None,
        *,
        run_id: str | None = None,
        if_exists: IfExists = "raise",
        conversation_id: str | None = None,
        limits: RlmLimits | None = None,
        deadline: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RunStream[Any, RlmResult]:
        """Answer a prompt as `run` does and stream the facts of the run; otherwise as `Agent.stream`."""
        data = self._check_run(run_id, conversation_id, limits, deadline, metadata=metadata, tags=tags)
        new = new_stream(self._begin, (prompt, context), run_id, conversation_id, limits, deadline, data)
        return self._stream_or_continue(new, run_id, if_exists, partial(self.resume, new.run_id))

    async def batch(
        self,
        questions: Iterable[Prompt | tuple[Prompt, Any]],
        *,
        max_concurrent: int = 4,
        **options: Unpack[BatchOptions],
    ) -> list[RlmResult]:
        """Answer several prompts, each alone or with its context, and return the results in the same order.

        At most `max_concurrent` runs are active at once (0: all). An error ends the batch and cancels the active runs.
        """
        given = questions_of(questions, options.get("run_id"))
        arguments.check_concurrent(max_concurrent)
        slots = asyncio.Semaphore(max_concurrent or max(1, len(given)))

        async def answer(prompt: Prompt, context: Any) -> RlmResult:
            async with slots:
                return await self.run(prompt, context, **options)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(answer(prompt, context)) for prompt, context in given]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def resume(
        self,
        run_id: str,
        *,
        limits: RlmLimits | None = None,
        by: str = "",
        again: bool = False,
        from_agent: str | None = None,
    ) -> RlmResult:
        """Resume a run of the journal from its last record and return its result; of an ended run, only read it.

        Interrupted work is repeated: the model is called again, code runs again in a new REPL, and the model
        gets the note that its variables are gone. The possible cost of lost answers is charged.

        `again=True` says that a person has checked that interrupted calls of tools may run twice; it is required if
        such tools may have run. `limits` replace the run's own. Raises RunUnknown, Held, OtherGraph and Corrupt as
        `resume` of an Agent does, and Suspended if the run requires `again`.
        """
        arguments.check_run(limits=limits, kind=RlmLimits)
        return await self._service.resume(
            run_id, limits, by, again=again, from_agent=from_agent, drive=self._drive
        )

    # ---- called by the engine and the service ----

    def _check_run(
        self, run_id: object, conversation_id: object, limits: object, deadline: object, /, **options: Any
    ) -> Mapping[str, Any]:
        arguments.check_run(run_id, conversation_id, limits, deadline, kind=RlmLimits)
        return host_data("an Rlm", options)

    async def _start(  # noqa: PLR0917 - the arguments of a new run
        self,
        prompt: Prompt | tuple[Prompt, Any],
        run_id: str,
        conversation_id: str | None,
        limits: RlmLimits | None,
        deadline: float | None,
        settings: Mapping[str, Any],
        follower: Follower | None = None,
        /,
    ) -> RlmResult:
        run = await self._begun(prompt, run_id, conversation_id, limits, settings)
        run.follow(follower)
        self._service.limit_time(run, deadline)
        return await self._drive(run)

    def _declare(self, service: RunService[RlmResult]) -> None:
        labels = compose.labels(self._equipment.llm, self._mode.offers(self._equipment.tools))
        service.announce(self._limits.max_seconds, **labels)

    def _restore(self, stored: StoredRun, records: Iterable[Record]) -> ModeRun:  # noqa: ARG002 - the context has all
        return run_record.restored(
            stored, self._service.machine, self._deps(RunBudget(RlmLimits())), self._codec
        )

    def _check_limits(self, limits: RlmLimits | None) -> None:
        refuse_real(self._equipment.llm)
        if limits is not None:
            refuse_unpriced(limits, self._equipment.pricing)

    async def _check_resume(self, head: RunHead, again: bool) -> None:  # noqa: FBT001 - as RunKind
        if again:
            return
        stored, records = await self._service.recovery.read(head.run_id)
        if stored.fingerprint == self._service.machine.valid_graph.fingerprint and not stored.unbegun:
            tools = ToolSet(self._equipment.tools, clock=self._service.clock)
            run_record.refuse_unknown(self._restore(stored, records), tools)

    async def _update(
        self,
        run: ModeRun,
        stored: StoredRun,  # noqa: ARG002 - as RunKind
        records: Sequence[Record],
        limits: RlmLimits | None,
    ) -> tuple[()]:
        run_record.charge(run, records)
        if limits is not None:
            run.ctx.max_iterations, run.ctx.max_depth = limits.max_iterations, limits.max_depth
        run.deps.budget = RunBudget(run.ctx.limits, usage=run.ctx.usage, calls=run.ctx.sub_calls)
        return ()

    def _over(self, run: ModeRun) -> None:
        said = run_record.said_in(run.ctx, run.ctx.earlier)
        self._conversations.keep(run.ctx.conversation_id, run.run_id, said)

    # ---- private ----

    async def _begun(
        self,
        prompt: Prompt | tuple[Prompt, Any],
        run_id: str,
        conversation_id: str | None,
        limits: RlmLimits | None,
        data: Mapping[str, Any],
    ) -> ModeRun:
        """Return a new run with the earlier messages of its conversation."""
        asked, context = prompt if isinstance(prompt, tuple) else (prompt, None)
        said = opening(
            asked,
            await self._conversations.before(conversation_id, self._service.journal, self._said_in),
            None,
        )
        run = self._new(said, context, run_id, limits or self._limits, data)
        run.ctx.conversation_id = conversation_id
        return run

    async def _drive(self, run: ModeRun, path: Iterable[Transition] = ()) -> RlmResult:
        """Drive a run to its end with its resources, which are closed afterwards."""
        async with equipped(self._equipment, run, self._nested_run):
            return await self._service.drive(run, path, park=self.parks)

    async def _nested_run(
        self, parent: ModeRun, prompt: str, depth: int, budget: RunBudget, equipment: RunResources
    ) -> RlmResult:
        """Answer a query of a run with a child run in memory, which is repeated if the parent run repeats the query."""
        child = Rlm(
            equipment.llm,
            mode=equipment.mode,
            sub_model=equipment.sub_llm,
            tools=equipment.tools,
            limits=equipment.limits_of(parent.ctx.limits),
            retry=equipment.retry,
            instructions=None if equipment.mode != self._equipment.mode else equipment.instructions,
            stopping=equipment.stopping,
            compressor=equipment.compressor,
            nested=equipment.nested,
            repl=equipment.repl,
            params=equipment.params,
            runtime=Runtime(
                observers=self._service.runtime.observers, clock=self._service.clock, price=equipment.price
            ),
        )
        text, context = equipment.question_of(prompt)
        run = child._new(
            [Message("user", text)], context, new_id(), child._limits, stored_data(parent.data or {}, SHARED)
        )
        run.parent_run_id, run.ctx.depth = parent.run_id, depth
        run.deps.budget, run.deps.hosted = RunBudget(child._limits, lender=budget), parent.deps.hosted
        left = None if parent.expires_at is None else parent.expires_at - self._service.clock.monotonic()
        child._service.limit_time(run, left)
        return await child._drive(run)

    def _new(
        self,
        said: Sequence[Message],
        context: Any,
        run_id: str,
        limits: RlmLimits,
        data: Mapping[str, Any],
    ) -> ModeRun:
        self._check_limits(None if limits is self._limits else limits)
        *earlier, last = said
        if last.role != "user" or not last.text:
            raise ConfigError("the prompt must end with a non-empty message of the user")
        ctx = self._mode.context(
            prompt=last.text,
            max_iterations=limits.max_iterations,
            max_depth=limits.max_depth,
            message_history=[one.to_openai() for one in earlier],
            context=run_record.plain_context(context),
            limits=limits,
            earlier=sum(one.role != "system" for one in earlier),
        )
        return self._service.new_run(run_id, ctx, self._deps(RunBudget(limits)), data)

    def _deps(self, budget: RunBudget) -> ModeDeps:
        given = self._equipment
        return ModeDeps(
            llm=given.llm,
            model=model_name(given.llm),
            retry=given.retry,
            clock=self._service.clock,
            budget=budget,
            price=given.price,
            params=given.params,
            hosted=self._hosted,
        )

    async def _said_in(self, run_id: str) -> Sequence[Message]:
        """Return the messages of a stored run up to its end or its last record."""
        stored, _ = await self._service.recovery.read(run_id)
        ctx = self._codec.read(stored)
        return run_record.said_in(ctx, ctx.earlier)
