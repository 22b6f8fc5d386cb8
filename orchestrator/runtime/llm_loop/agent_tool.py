"""Agents among the tools of agents: each call is a run of its own, below the run whose model made it.

Its id is that of the run above and the key of the call, so who runs the call again goes on with the same run. It is
in the journal of the run above, whichever its agent was given, and known to the agent of that run: one tree, one
journal, one handle. A tree is resumed at its root. What a run below has open when the tree ends without it is
ended as cancelled when somebody resumes it.
"""

# ruff: noqa: SLF001 - with llm_loop.py it is one class in two files

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, RunError, RunStopped, RunUnknown
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import NO_USAGE, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import ChildUsage, LoopContext, LoopState
from orchestrator.runtime.llm_loop.codec import restored
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.service.child_run_guard import ChildRunGuard, joined
from orchestrator.runtime.service.run_scope import ChildWaitObserver, here
from orchestrator.tools.spec import ToolContext, ToolSpec, tool
from orchestrator_callbacks.llm_loop import request_usage
from orchestrator_callbacks.llm_loop.budget_account import BudgetAccount, lent
from orchestrator_callbacks.llm_loop.deps import LoopRun, open_account
from orchestrator_callbacks.llm_loop.request_usage import Pricing

if TYPE_CHECKING:
    from orchestrator.runtime.llm_loop.agent import Orchestrator

MAX_DEPTH = 8
"""Runs below one another, the root not counted."""


def agent_tool(
    child: Orchestrator | Callable[[], Orchestrator],
    name: str,
    description: str,
    *,
    limits: Limits | None = None,
    share: float = 0.0,
    max_depth: int = MAX_DEPTH,
    **options: Any,
) -> ToolSpec:
    """Return a tool that runs another agent: the model gives it a `task` in words and reads its output.

    `limits` replace the agent's own for such a run; whatever they are, its tokens and cost count for every run above
    it as well. With a `share` (above 0, at most 1) it may use no more than that part of what the run above has left
    when it calls. `max_depth` bounds agents that call each other; a function that returns the agent lets one call
    itself. `options` are those of `tool`: approval, sequential, max_result_chars, max_concurrency, progress. Raises
    ConfigError for what cannot work.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"share is {share!r}; it must be 0 (off) to 1")
    if max_depth < 1:
        raise ConfigError(f"max_depth is {max_depth!r}; it must be 1 or more")
    build = tool(name=name, description=description, effect="idempotent", **options)
    return build(AgentTool(child, limits, share, max_depth))


class AgentTool:
    """What an agent's tool calls. Works inside a run of another agent only."""

    def __init__(
        self,
        child: Orchestrator | Callable[[], Orchestrator],
        limits: Limits | None,
        share: float,
        max_depth: int,
    ) -> None:
        self.source = child
        """The agent, or the function that returns it."""
        self._limits = limits
        self._share = share
        self.max_depth = max_depth
        """How many runs above one another may be above such a run."""

    @property
    def child(self) -> Orchestrator:
        """The agent."""
        return self.source() if callable(self.source) else self.source

    def limits_of(self, ctx: LoopContext, own: Limits) -> Limits:
        """Return the limits of a run for a call made by a run in `ctx`."""
        return lent(ctx, self._limits or own, self._share)

    async def __call__(self, context: ToolContext, task: str) -> str:
        """Run an agent.

        Args:
            task: What to do, with everything that has to be known for it: nothing else of this conversation is seen.
        """
        above = here()
        if above is None or above.run.run_id != context.run_id:
            raise ConfigError("an agent's tool works inside a run of another agent only")
        lender = above.account()
        if len(lender.above) >= self.max_depth:
            raise RunError(f"agents call each other {self.max_depth} deep already; go on without this one")
        call = AgentCall(self, context.idempotency_key, task, lender)
        work = asyncio.ensure_future(_carried(member(above.agent, self.child), call))
        return _answer(await joined(work, call.leash, above))


class AgentCall:
    """One call of an agent, on its way to a run."""

    def __init__(self, agent_tool: AgentTool, run_id: str, task: str, lender: BudgetAccount) -> None:
        self.tool = agent_tool
        self.run_id = run_id
        self.task = task
        self.lender = lender
        self.leash = ChildRunGuard(lender.run.run_id)
        self.adopted = False
        """There is a run under way for it."""

    def lent(self, own: Limits) -> Limits:
        """Return the limits of a run for it; `own` are those of the agent that runs."""
        return self.tool.limits_of(self.lender.run.ctx, own)

    def adopt(self, run: LoopRun) -> None:
        """Put a run into the tree, with what it has used already."""
        self.adopted = True
        open_account(run, self.lender)
        self.lender.found(run.run_id, run.ctx.spent.total)
        self.leash.hold(run)


def member(agent: Orchestrator, child: Orchestrator) -> Orchestrator:
    """Return an agent as one whose runs are in another's journal, live where that one's do, and obey its host."""
    found = agent._members.get(child)
    if found is None:
        found = agent._members[child] = copy.copy(child)
        found._journal, found._retire = agent._journal, agent._retire
        found._live, found._control, found._members = agent._live, agent._control, agent._members
        found.hosting = agent.hosting
        found._deps = replace(child._deps, points=agent.hosting.points_below(child.hosting))
        found._wire(ChildWaitObserver(), owner=agent._driver.owner)
    return found


def prices(agent: Orchestrator, seen: Collection[Orchestrator] = ()) -> Iterator[Pricing]:
    """Yield what is known of the cost of an agent's model, and of those of the agents among its tools.

    A function that returns an agent is not called for it: such an agent is asked for its price when it runs.
    """
    deps = agent._deps
    yield Pricing(deps.price, deps.llm, deps.model)
    for spec in deps.tools.offers:
        source = spec.call.source if isinstance(spec.call, AgentTool) else None
        if source is not None and not callable(source) and source not in seen:
            yield from prices(source, (*seen, agent))


async def _carried(agent: Orchestrator, call: AgentCall) -> Result:
    """Run, or go on with, or tell the run of a call."""
    result = await agent._run_below(call.lender.run, call.run_id, call.task, call.lent, call.adopt)
    if not call.adopted:  # it had ended before the run above was taken up again
        call.lender.found(call.run_id, result.usage)
    return result


def _answer(result: Result) -> str:
    """Return the output as text. Raises the RunStopped of a run that did not complete, for the model to read."""
    said = result.output
    if said is not None and not isinstance(said, str):
        from pydantic_core import to_json

        said = to_json(said, fallback=str).decode()
    if result.outcome is Outcome.COMPLETED:
        return said or ""
    try:
        result.raise_for_outcome()
    except RunStopped as stopped:
        if not said:
            raise
        raise type(stopped)(f"{stopped}; the last it said: {said}", result) from stopped
    raise AssertionError("unreachable")


# ---- after a crash ----


async def open_root(journal: Journal, head: RunHead) -> str | None:
    """Return the run that has to be resumed for a run below it to go on; None where a run above has ended."""
    while head.parent_run_id is not None:
        try:
            head = await journal.head(head.parent_run_id)
        except RunUnknown:
            return None
        if head.status == "ended":
            return None
    return head.run_id


async def recount(agent: Orchestrator, run: LoopRun, stored: StoredRun) -> dict[str, Usage]:
    """Count anew what the runs below a restored run have used, and return it for each run right below it.

    Earlier turns count as the run's own records say. For the last one the records of the runs below count: they
    know of what came after the last record up here. An answer that may have been lost counts as
    `request_usage.lost` says.
    """
    found: dict[str, Usage] = {}
    for entry in stored.ledger.of_turn(run.ctx.iteration):
        spec = run.deps.tools.find(entry.tool)
        if spec is not None and isinstance(spec.call, AgentTool):
            run_id = f"{run.run_id}:{entry.key}"
            used = await _used(member(agent, spec.call.child), run_id)
            if used is not None:
                found[run_id] = used
    below = run.ctx.spent.below
    if found or below is not None:
        below = below or ChildUsage()
        usage = sum(found.values(), below.before)
        # Not less than was known: runs that have ended may have been pruned.
        run.ctx.spent.below = ChildUsage(usage.combined(below.usage, max), below.before)
    return found


async def _used(agent: Orchestrator, run_id: str) -> Usage | None:
    """Return what a stored run and those below it have used, and may have; None for one that did not begin."""
    try:
        stored, _ = await agent._recovery.read(run_id)
    except RunUnknown:
        return None
    if stored.ended is not None or stored.fingerprint != agent._machine.graph.fingerprint:
        return agent._codec.decoded(stored.context | {"messages": []}).spent.total
    run = restored(stored, agent._machine, agent._deps, agent._codec)
    await recount(agent, run, stored)
    return run.ctx.spent.total + (request_usage.lost(run) if asks(run, stored) else NO_USAGE)


def asks(run: LoopRun, stored: StoredRun) -> bool:
    """Tell whether a restored run may have asked the model for an answer that nobody has."""
    return run.state == LoopState.AWAIT_LLM and stored.asks_the_model
