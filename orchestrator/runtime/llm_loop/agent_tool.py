"""Agents as tools of other agents, and the other child runs of the loop: each is a child run of the run that called it.

The id of the child run is the id of its parent and the key of the call, so a repeated call resumes the same run. The
child run is stored in the journal of its parent, whichever journal its agent has, and the parent's agent can access
it: one tree, one journal, one handle. A tree is resumed at its root. A resumed run that ends without its open child
runs, because it was cancelled, for example, ends them as cancelled, too.

The hooks of the agent see the request as they see every other one, and its limits on tokens and cost apply to both
runs. The child run asks once: a tool that wants a better answer samples again.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from orchestrator.errors import ConfigError, RunError, RunStopped, RunUnknown
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.run import Run
from orchestrator.llm.message import NO_USAGE, OUTPUT_LIMITS, Response, Usage, output_limit
from orchestrator.llm.port import check_params
from orchestrator.llm.structured_output import UnusableAnswer
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import ChildUsage, LoopContext
from orchestrator.runtime.branches.tree_usage import usage_of_children
from orchestrator.runtime.llm_loop.result import ANSWERED, Result, as_child, in_call_order, stopped
from orchestrator.runtime.llm_loop.run_options import NO_OPTIONS, Prompt, RunSettings
from orchestrator.runtime.llm_loop.run_record import may_have_sent_request
from orchestrator.runtime.service.arguments import OPTIONS, SHARED, stored_data
from orchestrator.runtime.service.child_run import (
    ChildRunGuard,
    ChildWaitObserver,
    RunScope,
    child_result,
    current_scope,
)
from orchestrator.tools.result import output_text
from orchestrator.tools.sampling import SamplingRequest
from orchestrator.tools.spec import ApprovalRule, Progress, ToolContext, ToolSpec, tool
from orchestrator_callbacks.llm_loop import request_usage
from orchestrator_callbacks.llm_loop.budget_account import BudgetAccount, lend_limits
from orchestrator_callbacks.llm_loop.deps import AgentRun, LoopDeps, LoopRun, open_account
from orchestrator_callbacks.llm_loop.request_usage import Pricing

if TYPE_CHECKING:
    from orchestrator.runtime.facade import HumanInput
    from orchestrator.runtime.llm_loop.agent import Agent

# ruff: noqa: SLF001 - one class with agent.py


MAX_DEPTH = 8
"""Maximum depth of agents that call each other, without the first one."""


class ToolOptions(TypedDict, total=False):
    """Options of `tool` that an agent as a tool can have."""

    approval: bool | ApprovalRule
    sequential: bool
    timeout: float | None
    total_timeout: float | None
    max_result_chars: int
    max_concurrency: int
    progress: Progress
    retries: int


class AgentToolOptions(ToolOptions, total=False):
    """Options of `agent_tool`."""

    limits: Limits | None
    share: float
    max_depth: int


def agent_tool(
    child: Agent | Callable[[], Agent],
    name: str,
    description: str,
    *,
    limits: Limits | None = None,
    share: float = 0.0,
    max_depth: int = MAX_DEPTH,
    output: Callable[[Any], object] | None = None,
    **options: Unpack[ToolOptions],
) -> ToolSpec:
    """Return a tool that runs another agent: the model passes a `task` as text and gets the agent's output.

    Args:
        child: The agent, or a function that returns it, with which an agent can call itself.
        name: Name of the tool.
        description: Description of the tool for the model.
        limits: Limits of a child run instead of the agent's own. In any case its tokens and cost also count for every
            run above it.
        share: Maximum part of the caller's remaining budget for the child run, above 0 and at most 1; 0 is off.
        max_depth: Maximum depth of agents that call each other. An agent that has taken over a conversation is as deep
            as the one that handed it over.
        output: A pure function from the output of a completed child run, a value of its output type, to the result
            of the tool. By default the output is the result. The model reads text as it is, and any other value as
            JSON; code that calls the tool gets the value.
        options: Options of `tool`, see `ToolOptions`.

    Raises:
        ConfigError: An argument is invalid, or a tool of the agent reads deps and it has none.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"share is {share!r}; it must be 0 (off) to 1")
    if max_depth < 1:
        raise ConfigError(f"max_depth is {max_depth!r}; it must be 1 or more")
    if not callable(child):
        child._source.require(child._deps.tools.offers)
    options.setdefault("total_timeout", 0)  # its run has limits of its own, and may wait for a person
    build = tool(name=name, description=description, effect="idempotent", **options)
    return build(AgentTool(child, limits, share, max_depth, output))


class AgentTool:
    """The function of an agent's tool. Works only inside a run of another agent."""

    def __init__(
        self,
        child: Agent | Callable[[], Agent],
        limits: Limits | None,
        share: float,
        max_depth: int,
        output: Callable[[Any], object] | None,
    ) -> None:
        self.source = child
        """The agent, or the function that returns it."""
        self._limits = limits
        self._share = share
        self._output = output
        self.max_depth = max_depth
        """Maximum number of agents that have called each other above such a run."""

    @property
    def child(self) -> Agent:
        """The agent."""
        return self.source() if callable(self.source) else self.source

    @property
    def agent_name(self) -> str:
        """Name of the agent; empty if it has none, or if a function returns the agent."""
        return "" if not hasattr(self.source, "name") else str(self.source.name)

    def limits_of(self, lender: BudgetAccount, own: Limits) -> Limits:
        """Return the limits of a child run, of which `lender` is the account above."""
        return lend_limits(lender, self._limits or own, self._share)

    async def __call__(self, context: ToolContext, task: str) -> object:
        """Run an agent.

        Args:
            task: What to do, with everything that has to be known for it: nothing else of this conversation is seen.
        """
        parent = current_scope()
        if parent is None or parent.run.run_id != context.run_id:
            raise ConfigError("an agent's tool works only inside a run of another agent")
        lender = _account(parent.run)
        # A team counts once: its segment is the agent that has called, and the run of the team is above it.
        depth = sum(isinstance(above.run.ctx, LoopContext) for above in lender.ancestors)
        if depth >= self.max_depth:
            raise RunError(
                f"agents already call each other to the maximum depth of {self.max_depth}; continue without this agent"
            )
        call = ChildCall(context.idempotency_key, parent, is_listed=True)
        child = member(parent.agent, self.child)
        result = await call.result(child, task, partial(self.limits_of, lender))
        if result.outcome is not Outcome.COMPLETED:
            raise _stopped(result) from result.error
        if self._output is not None:
            return self._output(result.output)
        return "" if result.output is None else result.output


def _account(run: LoopRun) -> BudgetAccount:
    """Return the account of a run, opened with its first call of an agent."""
    return open_account(run) if run.deps.account is None else run.deps.account


class ChildCall:
    """A call of a tool that is a child run of the run `parent`, before and during the child run.

    A listed one is among the `children` of the parent's result; of another one its own children are.
    """

    def __init__(self, run_id: str, parent: RunScope, *, is_listed: bool = False) -> None:
        self.run_id = run_id
        self._is_listed = is_listed
        self.lender = _account(parent.run)
        self._parent = parent
        self._guard = ChildRunGuard(parent.run.run_id)
        self._adopted = False
        """Whether its run is active."""

    async def result(
        self,
        agent: Agent,
        prompt: Prompt,
        lender: Callable[[Limits], Limits],
        settings: RunSettings = NO_OPTIONS,
    ) -> Result:
        """Start, resume or read the child run, and return its result. The arguments are those of `drive_child`."""
        parent = self.lender.run
        drive = drive_child(agent, parent, self.run_id, prompt, lender, self._adopt, settings)
        return await child_result(asyncio.ensure_future(self._counted(drive)), self._guard, self._parent)

    async def _counted(self, drive: Coroutine[Any, Any, Result]) -> Result:
        result = await drive
        if not self._adopted:  # it had ended before the parent run was resumed
            self.lender.found(self.run_id, result.usage)
        listed = (as_child(result),) if self._is_listed else result.children
        self.lender.children |= {one.run_id: one for one in listed}
        return result

    def _adopt(self, run: LoopRun) -> None:
        """Add a run to the tree, with its usage so far."""
        self._adopted = True
        open_account(run, self.lender)
        self.lender.found(run.run_id, run.ctx.spent.total)
        self._guard.claim_child(run)


def member(agent: HumanInput[Any], child: Agent) -> Agent:
    """Return a copy of `child` whose runs use the journal, the live runs and the engine of `agent`."""
    members: dict[object, Agent] = vars(agent).setdefault("_members", {})
    found = members.get(child)
    if found is None:
        found = members[child] = copy.copy(child)
        found._declared = set()
        own, above = child._service, agent._service
        asking: Any = getattr(agent, "_asking", None)  # only an agent has it
        answers = asking is not None and (asking.answers or not child._asking.answers)
        found._asking = asking if answers else child._asking.of(found)
        hosting: Any = agent.hosting
        points_of_child = getattr(hosting, "points_of_child", None)  # only an agent's has it
        if points_of_child is not None:
            found._members, found.hosting = members, hosting
            found._deps = replace(child._deps, points=points_of_child(child.hosting))
        else:
            found._members = {}
            found._deps = replace(child._deps, points=child.hosting.own_points)
        found._serve(
            own.runtime.on_journal_of(above.runtime),
            own.machine,
            own.data,
            live=above.live,
            control=above.control,
            watching=(ChildWaitObserver(), found._asking),
            owner=above.driver.owner,
        )
        if points_of_child is None:
            found.hosting = found._make_hosting()
            hosting.join(found.hosting)
    return found


def continuing(agent: Agent, graph: str) -> Agent:
    """Return what continues a child run of this graph, which may be older than the handoffs of its agent."""
    owner = agent._owner_of(graph)
    return owner if owner is agent else member(agent, owner)


def prices(agent: Agent, seen: Collection[Agent] = ()) -> Iterator[Pricing]:
    """Yield the cost information of an agent's model, and of the agents among its tools.

    A function that returns an agent is not called for this; its price is checked when it runs.
    """
    deps = agent._deps
    yield Pricing(deps.price, deps.llm, deps.model)
    for spec in deps.tools.offers:
        source = source_of(spec)
        if source is not None and not callable(source) and source not in seen:
            yield from prices(source, (*seen, agent))


def source_of(spec: ToolSpec) -> Agent | Callable[[], Agent] | None:
    """Return the agent that a tool runs or hands over to, or the function that returns it; None for another tool."""
    if isinstance(spec.call, AgentTool):
        return spec.call.source
    handoff = getattr(
        spec.call, "handoff", None
    )  # a `Transfer`, whose module only agents with handoffs import
    return None if handoff is None or isinstance(handoff.agent, str) else handoff.agent


async def drive_child(  # noqa: PLR0917 - the arguments of a child run
    agent: Agent,
    parent: Run[Any, Any],
    run_id: str,
    prompt: Prompt,
    lender: Callable[[Limits], Limits],
    adopt: Callable[[LoopRun], None],
    settings: RunSettings = NO_OPTIONS,
) -> Result:
    """Start or resume a child run and drive it to its end; for an ended one the Result is only read.

    `lender` makes the limits of a new run from the agent's own; `adopt` gets the run before it is driven; `settings`
    are options of a new run. Raises RunExists if `run_id` is not a child of `parent`.
    """

    async def make() -> LoopRun:
        options = replace(settings, data={**stored_data(parent.data or {}, SHARED), **settings.data})
        return await agent._new(prompt, (), run_id, None, lender(agent._limits), options)

    driver = agent
    if agent._team is not None:
        with suppress(RunUnknown):
            driver = continuing(agent, (await agent._service.journal.head(run_id)).graph)
    return await driver._service.drive_child(parent, run_id, make, adopt)


def _stopped(result: Result) -> RunStopped:
    """Return the exception for a child run that did not complete: its end, its usage, and what it has said."""
    used, why = result.usage, stopped(result)
    text = f"{why}; it used {used.input_tokens:,} input and {used.output_tokens:,} output tokens"
    if used.estimated_input_tokens or used.estimated_output_tokens:
        estimated = used.estimated_input_tokens, used.estimated_output_tokens
        text += ", of which {:,} and {:,} are estimated".format(*estimated)
    if result.output is not None:
        text += f"; its incomplete output: {output_text(result.output)}"
    return type(why)(text, result)


# ---- stored child runs ----


def child_of(agent: Agent | None, tool: str) -> Agent | None:
    """Return the agent that a tool of an agent runs; None if it is unknown."""
    spec = None if agent is None else agent._deps.tools.find(tool)
    return spec.call.child if spec is not None and isinstance(spec.call, AgentTool) else None


def segment_owner(agent: Agent | None, name: str) -> Agent | None:
    """Return the agent of a team that drives the segments of a member; None if it is unknown."""
    if agent is None or agent._team is None or name not in agent._team.members:
        return None
    found = agent._team.members[name]
    return found if found._team is None else found._team.loop


def output_value(agent: Agent | None, output: Any) -> Any:
    """Return the value of a stored output, of the type that the agent has; the output if it has none."""
    spec = None if agent is None else agent._deps.output
    if spec is None or output is None:
        return output
    try:
        return spec.read(output)
    except UnusableAnswer:  # a validator changed it to a value of another type
        return output


async def with_stored_children(agent: Agent, run: AgentRun, result: Result) -> Result:
    """Add the child runs that ended before a run was restored to its result."""
    if run.ctx.spent.below is None:
        return result
    from orchestrator.runtime.runs.result import recorded_children

    journal = agent._service.journal
    stored, _ = await agent._service.recovery.read(run.run_id)
    children = {one.run_id: one for one in await recorded_children(journal, stored, agent)}
    children |= {one.run_id: one for one in result.children}
    return replace(result, children=in_call_order(children.values()))


async def open_root(journal: Journal, head: RunHead) -> str | None:
    """Return the root run whose resumption resumes this run.

    None if a run above it has ended, or if the parents are in a circle, as only a damaged journal has them.
    """
    if head.parent_run_id is None:
        return head.run_id
    from orchestrator.runtime.service.descendant import open_ancestors

    above = await open_ancestors(journal, head)
    return above[0].run_id if above else None


# ruff: noqa: SLF001 - one class with agent.py


_DIGEST = 16
"""Characters of the digest in the id of a child run."""
_STOP = ("stop", "stop_sequences")


class RunSampler:
    """`ToolContext.sample` of one call."""

    __slots__ = ("_key", "_numbers", "_run_id")

    def __init__(self, run_id: str, key: str) -> None:
        self._run_id = run_id
        self._key = key
        self._numbers: dict[str, int] | None = None

    async def __call__(self, request: SamplingRequest, /) -> Response:
        """Run a sampling request, or read its recorded answer."""
        parent = current_scope()
        if parent is None or parent.run.run_id != self._run_id:
            raise ConfigError(
                "a tool samples only inside the run that calls it; await context.sample in the call"
            )
        # Equal requests of a call are numbered in their order.
        digest = request.digest[:_DIGEST]
        self._numbers = self._numbers or {}
        number = self._numbers[digest] = self._numbers.get(digest, 0) + 1
        child_id = f"{self._run_id}:{self._key}:{digest}" + (f".{number}" if number > 1 else "")
        agent, run = sampling_agent(parent.agent), parent.run
        params = dict((run.data or {}).get(OPTIONS, {}).get("params", {}))
        params |= sampling_params(run.deps, request)
        stored = {OPTIONS: {"params": params}} if params else {}
        settings = RunSettings(stored, run.deps.host, request.instructions)
        call, messages = ChildCall(child_id, parent), tuple(request.messages)
        result = await call.result(agent, messages, lambda _: _limits(run.ctx.limits), settings)
        if result.outcome not in ANSWERED:
            result.raise_for_outcome()
        records = await agent._service.journal.load(result.run_id)
        said: Mapping[str, Any] = next((one.body for one in reversed(records) if one.kind == "answer"), {})
        return Response(
            result.output,
            finish_reason=said.get("finish_reason"),
            usage=result.usage,
            model=said.get("model"),
        )


def sampling_agent(agent: Agent) -> Agent:
    """Return the agent of the sampling requests in the runs of `agent`."""
    key = agent, "sampling"
    if key not in agent._members:
        bare = agent.replace(tools=(), output_type=None, memory=None, instructions=None)
        agent._members[key] = member(agent, bare)
    return agent._members[key]


def _limits(limits: Limits) -> Limits:
    """Return the limits of a child run: one request with the limits of its parent on tokens, cost and time."""
    return replace(
        limits,
        max_iterations=1,
        completion_retries=0,
        wrap_up_turns=0,
        max_restarts=0,
        compaction_threshold=0.0,
    )


def sampling_params(deps: LoopDeps, request: SamplingRequest) -> dict[str, Any]:
    """Return the parameters of a request under the names that the model has, as far as the host sets no others."""
    own, found = deps.params, dict[str, Any]()
    most = min(request.max_tokens, output_limit(own) or request.max_tokens)
    set_by_host = [name for name in OUTPUT_LIMITS if own.get(name)]
    if most > 0 and (name := _known(deps.llm, set_by_host or OUTPUT_LIMITS, most, "max_tokens")):
        found[name] = most
    if request.temperature is not None and "temperature" not in own:
        found |= _checked(deps.llm, {"temperature": request.temperature})
    if request.stop and (name := _known(deps.llm, _STOP, list(request.stop), "stop")):
        found[name] = list(request.stop)
    return found


def _known(llm: object, names: Iterable[str], value: object, usual: str) -> str:
    """Return the first name of a parameter that a model has; `usual` if it cannot check names, else empty."""
    names = tuple(names)
    if not callable(getattr(llm, "check_params", None)):
        return usual if usual in names else names[0]
    return next((name for name in names if _checked(llm, {name: value})), "")


def _checked(llm: object, params: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        check_params(llm, params)
    except ConfigError:
        return {}
    return params


async def recount(agent: Agent, run: AgentRun, stored: StoredRun) -> dict[str, Usage]:
    """Count the usage of a restored run's child runs again, and return it for each direct child run.

    Earlier turns count as in the run's own records. The last turn counts as in the records of the child runs, which
    may be newer. An answer that may have been lost is counted by `request_usage.lost_answer_usage`.
    """
    if agent._team is not None:
        return await agent._team.recount(agent, run)
    found: dict[str, Usage] = {}
    fan = stored.branches.get("fan")
    if fan is not None and (fan["state"], fan["visit"]) == (stored.state, stored.seq):
        prefix = f"{run.run_id}:{stored.state}.{stored.seq}:"  # the calls of the last turn count as before
        found = await usage_of_children(agent._service.journal, run.run_id, prefix)
        return _counted(run, found)
    async for owner, run_id in _children(agent, run, stored):
        used = await used_by(owner, run_id)
        if used is not None:
            found[run_id] = used
    return _counted(run, found)


def _counted(run: LoopRun, found: dict[str, Usage]) -> dict[str, Usage]:
    below = run.ctx.spent.below
    if found or below is not None:
        below = below or ChildUsage()
        usage = sum(found.values(), below.before)
        # Not less than before: ended runs may have been pruned.
        run.ctx.spent.below = ChildUsage(usage.combined(below.usage, max), below.before)
    return found


async def _children(agent: Agent, run: LoopRun, stored: StoredRun) -> AsyncIterator[tuple[Agent, str]]:
    """Yield the agent and the id of each child run that the calls of the last turn may have started."""
    may_sample = []
    for entry in stored.ledger.of_turn(run.ctx.iteration):
        spec = run.deps.tools.find(entry.tool)
        if spec is not None and isinstance(spec.call, AgentTool):
            yield member(agent, spec.call.child), f"{run.run_id}:{entry.key}"
        elif spec is None or spec.takes_context:
            may_sample.append(f"{run.run_id}:{entry.key}:")
    if may_sample:
        async for head in agent._service.journal.runs(parent_run_id=run.run_id):
            if head.run_id.startswith(tuple(may_sample)):
                yield sampling_agent(agent), head.run_id


async def used_by(agent: Agent, run_id: str) -> Usage | None:
    """Return the actual and possible usage of a stored run with its child runs; None if it did not start."""
    try:
        stored, _ = await agent._service.recovery.read(run_id)
    except RunUnknown:
        return None
    agent = continuing(agent, stored.created["graph"])
    if stored.ended is not None or stored.fingerprint != agent.machine.valid_graph.fingerprint:
        spent: Usage = agent._codec.decoded(stored.context | {"messages": []}).spent.total
        return spent
    run = agent._restore(stored, ())
    await recount(agent, run, stored)
    return run.ctx.spent.total + (
        request_usage.lost_answer_usage(run) if may_have_sent_request(stored) else NO_USAGE
    )
