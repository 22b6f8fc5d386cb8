"""The runs of an agent with handoffs: one run that keeps the conversation, and one child run for each segment.

The run has the id, the tags, the metadata, the memory and the conversation. A segment is an ordinary run of a member:
its own agent name, tools, instructions, limits and fingerprint. So a question, an approval digest and a log line of
a segment name the agent that has the conversation, and identity rules hold as for every other child run.

What a segment ended with is read from its records, also in the process that drove it: a process that dies before
`hand_over` is durable is replaced by one that reads the same records and decides the same. The id of a segment follows
from the number of handoffs, so it is created once.
"""

# ruff: noqa: SLF001 - one class with agent.py

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.errors import ConfigError, GraphError, RunError, RunUnknown
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.fact import Fact, Transition
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import Ending
from orchestrator.llm.message import Message, Usage
from orchestrator.llm.structured_output import OutputSpec, UnusableAnswer
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import ChildUsage, LoopContext
from orchestrator.machines.team.graph import LLM_LOOP_WITH_HANDOFFS, TEAM, ending, refusal, with_handoffs
from orchestrator.machines.team.model import HANDED_OVER, HandoffRecord, TeamContext, TeamEvent
from orchestrator.runtime.llm_loop.agent_tool import ChildCall, member, used_by, with_stored_children
from orchestrator.runtime.llm_loop.composition import labels, machine
from orchestrator.runtime.llm_loop.result import ANSWERED, Result, children_of
from orchestrator.runtime.llm_loop.run_options import Prompt, RunSettings, opening, run_deps
from orchestrator.runtime.llm_loop.run_record import (
    context_of,
    enabled_budgets,
    summary,
)
from orchestrator.runtime.service.arguments import OPTIONS
from orchestrator.runtime.service.child_run import current_scope
from orchestrator.runtime.service.ownership import own_tools
from orchestrator.runtime.service.recovery import Migration
from orchestrator.runtime.service.restored_run import rebuilt
from orchestrator.runtime.service.run_service import RunKind, RunService
from orchestrator.runtime.team.handoff import Handoff, Transfer, filtered, transfer_tool
from orchestrator.runtime.team.run_record import team_context_of
from orchestrator.tools.tool_set import ToolSet
from orchestrator_callbacks.llm_loop import memory
from orchestrator_callbacks.llm_loop.admission import definition_of
from orchestrator_callbacks.llm_loop.deps import LoopDeps, Point, open_account
from orchestrator_callbacks.team import after, before, enter, segment
from orchestrator_callbacks.team.deps import SegmentEnd, TeamDeps, TeamRun
from orchestrator_guards.progress import digest

if TYPE_CHECKING:
    from orchestrator.runtime.llm_loop.agent import Agent


# ---- the agents ----


@dataclass(frozen=True, slots=True)
class Team:
    """What an agent has that can hand over."""

    handoffs: tuple[Handoff[Any], ...]
    plain: Agent
    """The agent without its handoffs: continues the runs from before it had any."""
    loop: Agent
    """Drives its segments."""
    members: Mapping[str, Agent]
    """The agents that can get the conversation of its runs, by name; it is the first of them."""
    definition: Mapping[str, str]
    """The members as the runs store them: name -> digest of version and tools."""

    @classmethod
    def of(cls, agent: Agent, plain: Agent, handoffs: tuple[Handoff[Any], ...]) -> Team:
        """Return the team of an agent. Raises ConfigError if its members do not fit each other."""
        if not agent.name:
            raise ConfigError("an agent with handoffs has no name; give it one: Agent(..., name='triage')")
        if any(item.agent == agent.name for item in handoffs):
            raise ConfigError(
                f"agent {agent.name!r} hands over to itself; name another agent in its handoffs"
            )
        loop = _segment_driver(plain, handoffs)
        members = _members_of(agent, handoffs)
        definition = {name: _digest(loop if one is agent else loop_of(one)) for name, one in members.items()}
        return cls(handoffs, plain, loop, members, definition)

    @property
    def pairs(self) -> Iterator[tuple[str, str]]:
        """The handoffs that the members declare: (agent, to)."""
        yield from ((next(iter(self.members)), item.to) for item in self.handoffs)
        others = [*self.members.items()][1:]
        yield from ((name, item.to) for name, agent in others for item in handoffs_from(agent))

    def check(self, agent: Agent, *, deps: bool) -> None:
        """Raise ConfigError if a run cannot reach a member, or a tool of one reads deps and there are none.

        `deps`: the run has some.
        """
        for name, to in self.pairs:
            if to not in self.members:
                raise ConfigError(
                    f"agent {name!r} hands over to {to!r}, which is no member of the team of {agent.name!r} (its "
                    f"members: {', '.join(self.members)}); give the agent itself instead of its name, or run an agent "
                    "that hands over to it"
                )
        if not (deps or has_deps(agent)):
            for one in self.members.values():
                one._source.require(loop_of(one)._deps.tools.offers)

    def kind(self, agent: Agent, bound: Machine) -> RunKind[Result[Any]]:
        """Return what the runs of the agent are to the service."""
        return RunKind(
            machine=bound,
            codec=agent._codec,
            declare=partial(self._declare, agent),
            ending=ending,
            summary=summary,
            result=team_result,
            complete=partial(with_stored_children, agent),
            restore=lambda stored, _: restored_team(agent, stored),
            update=partial(self._update, agent),
            check_limits=agent._check_limits,
            check_resume=agent._check_resume,
            over=lambda run: agent._conversations.keep(
                run.ctx.conversation_id, run.run_id, memory.conversation(run.ctx)
            ),
            lacks_deps=agent._source.lacks,
            lacks_agent=self.lacks,
            keeps_state=agent._source.keeps,
        )

    def _declare(self, agent: Agent, service: RunService[Any]) -> None:
        """Declare the runs of the team, and the handoffs between its members."""
        names = labels(agent._deps.llm, agent._deps.tools.offers)
        service.announce(
            agent._limits.max_seconds,
            budgets=enabled_budgets(agent._limits),
            handoffs=tuple(self.pairs),
            **names,
        )

    async def _update(self, agent: Agent, run: TeamRun, *_: object) -> Iterable[Fact]:
        """Make the deps of a restored run, and count the usage of its present segment."""
        await agent._source.restore(run)
        below = await self.recount(agent, run)
        if below:
            open_account(run, dormant=below)
        return ()

    async def context(
        self,
        agent: Agent,
        prompt: Prompt,
        history: Sequence[Message],
        conversation_id: str | None,
        start: str,
    ) -> TeamContext:
        """Return the context of a new run; its limits are those of the agent."""
        instructed = any(one._instructions is not None for one in self.members.values())
        if instructed and history and history[0].role == "system":
            history = history[1:]  # the instructions of an earlier run; each segment has its own
        messages = opening(prompt, history, None)
        first = await self._last_agent(agent, conversation_id) if start == "last" else agent.name
        return TeamContext(
            messages, agent._limits, len(messages), first, first=agent.name, conversation_id=conversation_id
        )

    async def _last_agent(self, agent: Agent, conversation_id: str | None) -> str:
        """Return the name of the member that had the conversation last; the first one if it was none of them."""
        journal = agent._service.journal
        newest = None if conversation_id is None else await journal.newest(conversation_id)
        if newest is None:
            return agent.name
        last = newest.agent
        if newest.graph == TEAM.name:
            stored = StoredRun.of(newest.run_id, await journal.load(newest.run_id))
            last = str(stored.context["agent"])
        return last if last in self.members else agent.name

    def lacks(self, stored: StoredRun) -> str:
        """Return the name of the agent that a stored run needs next and that is no member here; "" if it is one."""
        proposed = stored.context.get("proposed") or {}
        needed = (str(stored.context["agent"]), str(proposed.get("to", "")))
        return next((name for name in needed if name and name not in self.members), "")

    async def recount(self, agent: Agent, run: TeamRun) -> dict[str, Usage]:
        """Count the usage of the present segment of a restored run again; the run's own records have the others."""
        run_id, name = run.ctx.segment_id(run.run_id), run.ctx.agent
        if not run.ctx.in_segment or name not in self.members:
            return {}
        used = await used_by(self.segment_agent(agent, name), run_id)
        if used is None:
            return {}
        below = run.ctx.spent.below or ChildUsage()
        run.ctx.spent.below = ChildUsage((below.before + used).combined(below.usage, max), below.before)
        return {run_id: used}

    def segment_agent(self, agent: Agent, name: str) -> Agent:
        """Return the agent of a member's segments: without memory, which is that of the whole run."""
        loop = self.loop if name == agent.name else loop_of(self.members[name])
        key = loop, "segment"
        if key not in agent._members:
            bare = copy.copy(loop)
            bare._deps = replace(loop._deps, memory=None)
            agent._members[key] = member(agent, bare)
        return agent._members[key]


def loop_of(agent: Agent) -> Agent:
    """Return the agent that drives the segments of an agent."""
    return agent if agent._team is None else agent._team.loop


def handoffs_from(agent: Agent) -> tuple[Handoff[Any], ...]:
    """Return the handoffs of an agent."""
    return () if agent._team is None else agent._team.handoffs


def has_deps(agent: Agent) -> bool:
    """Return whether an agent has deps of its own, or a factory."""
    return agent._source.host is not None or agent._source.factory is not None


def _members_of(first: Agent, handoffs: Iterable[Handoff[Any]]) -> dict[str, Agent]:
    """Return the agents that can be reached from an agent with these handoffs, itself first."""
    members, level = {first.name: first}, [item.agent for item in handoffs]
    while level:
        agent = level.pop(0)
        if isinstance(agent, str):
            continue
        known = members.setdefault(agent.name, agent)
        if known is not agent:
            raise ConfigError(
                f"two agents of the team of {first.name!r} are named {agent.name!r}; give each its own name=, or name "
                "the first one in the handoffs of the other: handoffs=['NAME']"
            )
        level += [item.agent for item in handoffs_from(agent) if item.to not in members]
    for agent in members.values():
        if _schema(agent._deps.output) != _schema(first._deps.output):
            raise ConfigError(
                f"the agents {first.name!r} and {agent.name!r} of one team answer with different types; give both "
                "the same output_type, for example a union"
            )
    return members


def _schema(output: OutputSpec | None) -> object:
    return None if output is None else output.schema


def _digest(agent: Agent) -> str:
    tools = own_tools(definition_of(agent._deps.tools.offers))
    text = orjson.dumps([agent.version, tools], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:12]


def _segment_driver(plain: Agent, handoffs: Iterable[Handoff[Any]]) -> Agent:
    """Return the agent with the tools and the graph of its handoffs. Raises ConfigError, GraphError."""
    tools = plain._deps.tools
    if not isinstance(tools, ToolSet):
        raise ConfigError(
            f"{type(tools).__name__} takes no further tools; give the tools of an agent with handoffs as a list"
        )
    loop = plain.replace(tools=tools.extended(map(transfer_tool, handoffs)))
    loop._deps.points = plain.hosting.own_points
    service = loop._service
    bound, _ = member_machine(plain._parts["graph"], plain._parts["hooks"])
    loop._serve(
        service.runtime,
        bound,
        service.data,
        live=service.live,
        control=service.control,
        watching=(plain._asking,),
    )
    loop.hosting = loop._make_hosting()
    return loop


def member_machine(graph: Graph, hooks: Iterable[object]) -> tuple[Machine, Mapping[str, tuple[Point, ...]]]:
    """Return the machine of an agent that can hand over, as `composition.machine`. Raises GraphError."""
    graph = LLM_LOOP_WITH_HANDOFFS if graph is LLM_LOOP else with_handoffs(graph)
    return machine(graph, hooks, segment.ENTER)


def loop_migrations(graph: Graph) -> Iterator[Migration]:
    """Yield the migrations between a graph and the same with handoffs, for an agent that gets or loses them."""
    try:
        both = graph, with_handoffs(graph)
    except GraphError:  # the graph of the host has no place for handoffs, so no run had any
        return
    yield from (Migration(one.fingerprint, _without_pending_handoff) for one in both)


def _without_pending_handoff(stored: StoredRun) -> StoredRun:
    """Return a run that decides again in `update_budgets`, where it would have handed over."""
    if stored.next == TeamEvent.HAND_OVER:
        stored.next = None
    return stored


# ---- a run ----


def team_machine() -> Machine:
    """Return the machine of a team with its hooks."""
    return Machine(TEAM, collect(TEAM, enter, before, after))


def team_deps(deps: LoopDeps) -> TeamDeps:
    """Return the handles of a team from those of its first agent."""
    own = {item.name: getattr(deps, item.name) for item in fields(LoopDeps)}
    return TeamDeps(**own, segment=drive_segment, last_segment=read_segment, history=next_history)


def restored_team(agent: Agent, stored: StoredRun) -> TeamRun:
    """Return a run of a team as of its last record, ready for `drive`. Changes nothing outside."""
    model = agent._source.models.get(stored.run_id)
    handles = run_deps(agent._deps, stored.created.get(OPTIONS) or {}, model=model)
    ctx = team_context_of(stored)
    if stored.ended is not None and stored.ended["outcome"] in ANSWERED:
        ctx.output = _stored_output(stored.ended, ctx.messages, handles.output)
    return rebuilt(stored, agent._service.machine, ctx, handles, agent._codec)


def _stored_output(ended: Mapping[str, Any], messages: Sequence[Message], spec: OutputSpec | None) -> Any:
    """Return the output of an ended run; the last message has it unless its last record does."""
    said = "output" in ended
    value = ended["output"] if said else messages[-1].text
    if spec is None or value is None:
        return value
    try:
        return spec.read(value) if said else spec.parse(value)
    except UnusableAnswer:  # a validator changed it to a value of another type
        return value if said else None


def team_result(run: TeamRun, path: Iterable[Transition], end: Ending) -> Result[Any]:
    """Return the Result of a run of a team that ended, in this process or restored."""
    ctx = run.ctx
    return Result(
        run_id=run.run_id,
        outcome=end.outcome,
        reason=end.reason,
        output=ctx.output if end.outcome in ANSWERED else None,
        messages=tuple(memory.conversation(ctx)),
        usage=ctx.spent.total,
        transitions=tuple(path),
        verdict=refusal(run),
        error=run.error,
        tool_errors=ctx.tool_errors,
        finish_reason=ctx.finish_reason,
        vendor_finish_reason=ctx.vendor_finish_reason,
        agent=ctx.agent,
        handoffs=ctx.handoffs,
        children=children_of(run),
    )


# ---- a segment ----


async def drive_segment(run: TeamRun) -> SegmentEnd:
    """Start, resume or read the present segment of the current run, and return its end."""
    scope = current_scope()
    assert scope is not None  # noqa: S101 - a hook of the run
    ctx, run_id = run.ctx, run.ctx.segment_id(run.run_id)
    agent = scope.agent._team.segment_agent(scope.agent, ctx.agent)
    messages = ctx.messages if ctx.opening is None else [Message.from_openai(item) for item in ctx.opening]
    settings = _settings(run, agent)
    with agent._source.given(run_id, settings.deps, settings.model):
        call = ChildCall(run_id, scope)
        result = await call.result(agent, tuple(messages), lambda own: _limits(ctx, own), settings)
    return await _end_of(run, agent, result)


async def read_segment(run: TeamRun) -> SegmentEnd | None:
    """Return the end of the present segment of the current run from its records; None if it has not ended."""
    scope = current_scope()
    assert scope is not None  # noqa: S101 - a hook of the run
    if run.ctx.agent not in scope.agent._team.members:
        return None
    agent = scope.agent._team.segment_agent(scope.agent, run.ctx.agent)
    run_id = run.ctx.segment_id(run.run_id)
    try:
        head = await agent._service.journal.head(run_id)
    except RunUnknown:
        return None
    if head.status != "ended":
        return None
    return await _end_of(run, agent, await agent._service.ended_result(run_id))


async def _end_of(run: TeamRun, agent: Agent, result: Result[Any]) -> SegmentEnd:
    stored, _ = await agent._service.recovery.read(result.run_id)
    end = context_of(stored, agent._codec)
    handoff = _handoff(agent, run, result.run_id, end) if result.reason == HANDED_OVER else None
    return SegmentEnd(
        run_id=result.run_id,
        ending=Ending(result.outcome, result.reason),
        messages=[*run.ctx.messages, *end.messages[end.base :]],
        iterations=end.iteration,
        spent=end.spent,
        output=result.output,
        handoff=handoff,
        verdict=result.verdict,
        error=result.error,
        tool_errors=result.tool_errors,
        finish_reason=result.finish_reason,
        vendor_finish_reason=result.vendor_finish_reason,
    )


def next_history(run: TeamRun, made: HandoffRecord) -> list[dict[str, Any]] | None:
    """Return the messages with which the next segment begins; None for the whole conversation. Raises RunError."""
    scope = current_scope()
    assert scope is not None  # noqa: S101 - a hook of the run
    team = scope.agent._team
    handoffs = team.handoffs if made.agent == scope.agent.name else handoffs_from(team.members[made.agent])
    declared = next((item for item in handoffs if item.to == made.to), None)
    if declared is None or declared.history is None:
        return None
    return filtered(declared, run.ctx.messages)


def _settings(run: TeamRun, agent: Agent) -> RunSettings:
    """Return the options of a segment: those of the run, as far as they apply to its agent.

    Live deps and a live model are given to the segment again by this run, so its own record does not require them. An
    agent without deps has those of the run.
    """
    ctx, options = run.ctx, dict((run.data or {}).get(OPTIONS, {}))
    deps = run.deps.host if options.get("deps") or not has_deps(agent) else None
    shared = {name: options[name] for name in ("output_type",) if name in options}
    output = run.deps.output if "output_type" in options else None
    if ctx.agent != ctx.first:
        return RunSettings({OPTIONS: shared} if shared else {}, deps, None, output)
    shared |= {name: options[name] for name in ("tools", "params") if name in options}
    model = run.deps.llm if "model" in options else None
    if isinstance(options.get("model"), str):
        shared["model"] = options["model"]
    return RunSettings({OPTIONS: shared} if shared else {}, deps, ctx.instructions, output, model)


def _limits(ctx: TeamContext, own: Limits) -> Limits:
    """Return the limits of a segment: those of its agent, within the rest of the run's.

    Tokens and cost are bounded by the account of the run; time by its end.
    """
    if ctx.agent == ctx.first:
        own = ctx.limits

    def least(limit: int, used: int, own: int) -> int:
        rest = max(1, limit - used) if limit else 0  # `may_hand_over` has refused a run with nothing left
        return min(own, rest) if own and rest else own or rest  # 0 means no limit

    spent = ctx.spent
    return replace(
        own,
        max_iterations=least(ctx.limits.max_iterations, ctx.iteration, own.max_iterations),
        max_tool_calls=least(ctx.limits.max_tool_calls, spent.tool_calls, own.max_tool_calls),
        max_retries=least(ctx.limits.max_retries, spent.retries, own.max_retries),
    )


def _handoff(agent: Agent, run: TeamRun, run_id: str, end: LoopContext) -> HandoffRecord:
    """Return the handoff that a segment ended with: the accepted call of its last turn. Raises RunError."""

    def handoff_of(name: str | None) -> Handoff[Any] | None:
        spec = agent._deps.tools.find(name or "")
        return spec.call.handoff if spec is not None and isinstance(spec.call, Transfer) else None

    accepted = (
        result.call for result in end.results if result.outcome == "ok" and handoff_of(result.call.name)
    )
    call = next(accepted, None)
    made = None if call is None else handoff_of(call.name)
    if call is None or made is None:
        raise RunError(
            f"segment {run_id!r} handed over by {', '.join(result.call.name for result in end.results)}, and agent "
            f"{agent.name!r} has no such handoff any more; run it with a version of the agent that has it"
        )
    value = None if made.input is None else orjson.loads(call.arguments).get("input")
    said = end.messages[end.base :]
    results = [
        message.text for message in said if message.role == "tool" and handoff_of(message.name) is None
    ]
    facts = [run.ctx.agent, made.to, value, *results[-1:]]
    progress = digest(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS).decode())
    return HandoffRecord(run.ctx.agent, made.to, run_id, value, progress)
