"""`fan_out`: the branches of a state as child runs, and the decision of its join.

The order is what makes it survive a crash. The `fan` record has the digests of the items and is durable before the
first branch starts. The `joined` record has the decision and is durable before any branch that is not needed is
cancelled. The enter hook of an interrupted state runs again and calls `fan_out` with the same items: branches that
have ended are read, open ones are continued, and missing ones are started unless the decision is there. So the
results, their order and the decision are the same, however often the hook runs.

A branch that is not needed is cancelled at once unless it has called a tool whose effect is irreversible or
compensable: such a call finishes, because its effect would be unknown. A compensable call of a branch that was
not needed is undone afterwards, under the key of the call; an undo that fails asks a person.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Generic, cast, overload
from weakref import WeakKeyDictionary

from typing_extensions import TypeVar

from orchestrator.errors import ConfigError, RunError, RunUnknown
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.branch import BranchResult, BranchResults, Fan, Tally, value_digest
from orchestrator.kernel.cancellation import grace_for_children
from orchestrator.kernel.fact import BranchEnded, GuardEvaluated
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.run import Run
from orchestrator.machines.call.graph import CALL
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.llm_loop.model import LoopContext
from orchestrator.machines.plain import plain_json
from orchestrator.runtime.branches.call_run import CALL_KEY, CallRuns, undo_tool, value_tool
from orchestrator.runtime.branches.workflow import Workflow
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.agent_tool import AgentTool, drive_child, member
from orchestrator.runtime.llm_loop.result import ended_as
from orchestrator.runtime.llm_loop.run_options import Prompt, opening
from orchestrator.runtime.service.arguments import SHARED, new_id, stored_data
from orchestrator.runtime.service.child_run import ChildRunGuard, RunScope, current_scope
from orchestrator.runtime.service.run_service import RunService
from orchestrator.tools.spec import ToolSpec
from orchestrator_callbacks.llm_loop.budget_account import BudgetAccount, ChildBudget, lend_limits
from orchestrator_callbacks.llm_loop.deps import open_account
from orchestrator_guards import Verdict
from orchestrator_guards.evaluation import row_of

T = TypeVar("T", default=Any)
_LASTING: Final = frozenset(("irreversible", "compensable"))
"""Effects of calls that are not interrupted because a branch is not needed."""
_NOT_NEEDED: Final = "the join was decided without this branch"


class Branch(Generic[T]):
    """One branch: an agent with a prompt, a workflow with a context, or a tool with arguments. T is its value.

    Args:
        target: An Agent, a Workflow, or a tool made with `@tool`, whose `effect` decides about a crash.
        item: The prompt, the context, or the arguments by name.
        limits: For an agent, its limits in this branch instead of its own. Its share of the budget bounds them.

    Raises:
        ConfigError: The target is none of these, or is the tool of an agent.

    Example:
        branches = [Branch(reader, f"Summarise {name}") for name in run.ctx.documents]
    """

    __slots__ = ("item", "limits", "target")

    @overload
    def __init__(self, target: Agent[Any, T], item: Prompt, *, limits: Limits | None = None) -> None: ...
    @overload
    def __init__(self, target: Workflow[Any, T], item: Any) -> None: ...
    @overload
    def __init__(self: Branch[Any], target: ToolSpec[Any], item: Mapping[str, Any]) -> None: ...
    def __init__(self, target: Any, item: Any, *, limits: Limits | None = None) -> None:
        if isinstance(target, ToolSpec) and isinstance(target.call, AgentTool):
            raise ConfigError(f"{target.name} is the tool of an agent; give Branch(agent, prompt)")
        if not isinstance(target, Agent | Workflow | ToolSpec):
            raise ConfigError(
                f"the target of a branch is a {type(target).__name__}; give an Agent, a Workflow, or a tool made with "
                '@tool(effect="…")'
            )
        if limits is not None and not (isinstance(target, Agent) and isinstance(limits, Limits)):
            raise ConfigError(
                "limits are Limits for an Agent; the limits of a Workflow or a tool are its own"
            )
        self.target, self.item, self.limits = target, item, limits

    @property
    def digest(self) -> str:
        """Digest of kind, name and item. Raises ConfigError for an item without a JSON form."""
        target, item = self.target, self.item
        if isinstance(target, Agent):
            item = [message.to_openai() for message in opening(item, (), None)]
        name = target.name
        try:
            return value_digest([type(target).__name__, name, plain_json(item)])[:16]
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"the item of a branch of {name or target!r} has no JSON form: {error}"
            ) from None


async def fan_out(
    run: Run[Any, Any],
    branches: Iterable[Branch[T]],
    *,
    on_end: Callable[[BranchResult[T]], object] = lambda _: None,
) -> BranchResults[T]:
    """Run branches concurrently until their join is decided, and return their results in the order of the branches.

    For the enter hook of a state in `Graph(branches={state: Fan(...)})`, once for each visit. The hook may run again
    after a crash, so the branches follow from `run.ctx`. Then ask `joined(results)`, and return an event:

        results = await fan_out(run, [Branch(reader, text) for text in run.ctx.documents])
        return E.REDUCE if joined(results).ok else E.GIVE_UP

    Args:
        run: The run of the hook.
        branches: At most `Fan.max`. None at all is decided at once.
        on_end: Called with each result as soon as there is one, also if the run is stopped meanwhile.

    Returns:
        A result for each branch; a failure is a value. `results.decided` is the decision.

    Raises:
        RunError: The state has no branches in the graph, there are too many, or they differ from those before a crash.
        ConfigError: This is not the enter hook of a run of a facade, or a branch cannot be started.
        OrchestratorError: A branch cannot be continued: its agent, graph or store is missing. The others are stopped.
    """
    fan = run.graph.branches.get(run.state)
    if fan is None:
        raise RunError(
            f"state {run.state.value!r} of graph {run.graph.name!r} has no branches; declare "
            f"Graph(branches={{{run.state.value!r}: Fan(max=…)}})"
        )
    scope = current_scope()
    if scope is None or scope.run is not run:
        raise ConfigError(
            "fan_out works only in the enter hook of a run of an Agent, a Workflow or a Pipeline"
        )
    return await _FanOut(run, fan, tuple(branches), scope, on_end).results()


class _Active:
    """A branch while its run is driven."""

    __slots__ = ("guard", "run", "task")

    def __init__(self, parent: str) -> None:
        self.guard, self.run = ChildRunGuard(parent), cast("Run[Any, Any] | None", None)
        self.task: asyncio.Task[BranchResult[Any]]


class _FanOut:
    """The branches of one visit of a state."""

    def __init__(
        self,
        run: Run[Any, Any],
        fan: Fan,
        branches: tuple[Branch[Any], ...],
        scope: RunScope,
        on_end: Callable[[BranchResult[Any]], object],
    ) -> None:
        self._on_end = on_end
        self._run, self._fan, self._branches, self._scope = run, fan, branches, scope
        self._service: RunService[Any] = scope.agent._service  # noqa: SLF001 - a facade
        self._visit = run.seq
        """Number of the transition that began the visit."""
        self._prefix = f"{run.run_id}:{run.cursor.state}.{self._visit}:"
        self._results: list[BranchResult[Any] | None] = [None] * len(branches)
        self._waiting = deque(range(len(branches)))
        """Branches that have not started."""
        self._active: dict[int, _Active] = {}
        self._tally = Tally(fan.join, len(branches))
        self._ended: list[int] = []
        self._decided: Verdict | None = None
        self._news = asyncio.Event()

    async def results(self) -> BranchResults[Any]:
        await self._announce()
        if self._decided is None and self._tally.decision is not None:  # without branches, or none needed
            await self._decide(self._tally.decision)
        self._scope.on_change = self._news.set
        try:
            with grace_for_children():
                await self._drive()
                await self._undo()
        finally:
            self._scope.on_change, self._scope.queued = None, 0
        found: BranchResults[Any] = BranchResults(cast("Iterable[BranchResult[Any]]", self._results))
        found.join, found.decided = self._fan.join, cast("Verdict", self._decided)
        return found

    # ---- records ----

    async def _announce(self) -> None:
        """Make the `fan` record durable, or compare the branches with the one that is there."""
        run, fan, count = self._run, self._fan, len(self._branches)
        if count > fan.max:
            raise RunError(
                f"there are {count} branches in {run.cursor.state!r}; its Fan allows at most {fan.max}"
            )
        digests = [branch.digest for branch in self._branches]
        told = run.branches
        fanned = told.get("fan")
        if fanned is not None and fanned["visit"] == self._visit:
            if list(fanned["items"]) != digests:
                raise RunError(
                    f"the branches of {run.cursor.state!r} differ from those in the journal; make them from run.ctx "
                    "alone, in the same order, and call fan_out once for each visit"
                )
            if (decision := told.get("joined")) is not None:
                self._decided = Verdict(
                    decision["ok"], "joined", decision["observed"], decision["limit"], decision["detail"]
                )
                run.attach_guards([row_of(self._decided)])
                self._waiting = deque()
                await self._read(decision["ended"])
            return
        if (below := getattr(getattr(run.ctx, "spent", None), "below", None)) is not None:
            below.before = below.usage  # after a crash, only these branches are counted again
        body = {
            "state": run.cursor.state,
            "visit": self._visit,
            "items": digests,
            "join": str(fan.join),
            "concurrency": fan.concurrency,
            "at": self._service.clock.time(),
        }
        run.note("fan", body)
        await run.keep()
        run.set_branches({"fan": body})

    async def _decide(self, verdict: Verdict) -> None:
        """Make the decision durable. Nothing is cancelled before."""
        run, tally = self._run, self._tally
        body = {
            "state": run.cursor.state,
            "visit": self._visit,
            **{name: getattr(verdict, name) for name in ("ok", "observed", "limit", "detail")},
            "branches": tally.branches,
            "completed": tally.completed,
            "agree": tally.counted,
            "ended": list(self._ended),
            "at": self._service.clock.time(),
        }
        run.note("joined", body)
        run.attach_guards([row_of(verdict)])
        await run.keep()
        run.set_branches({**run.branches, "joined": body})
        self._decided = verdict
        if GuardEvaluated in run.writes.observed_kinds:
            result = "allow" if verdict.ok else "deny"
            run.emit(
                GuardEvaluated(
                    run.graph.name,
                    run.run_id,
                    run.cursor.state,
                    "",
                    verdict.guard,
                    result,
                    verdict.observed,
                    verdict.limit,
                )
            )

    # ---- branches ----

    async def _drive(self) -> None:
        """Start branches as slots become free, until each has a result. If that fails, none is left running."""
        try:
            self._start_or_cancel()
            while self._active:
                await self._news.wait()
                self._news.clear()
                await self._take_ended()
                self._start_or_cancel()
        except BaseException:
            self._stop_all()
            await self._ended_all()
            raise

    def _start_or_cancel(self) -> None:
        if self._decided is None:
            self._start()
        else:
            self._cancel_rest()

    async def _ended_all(self) -> None:
        """Return when no branch is active. A second cancellation changes nothing: they are stopped already."""
        while running := [one.task for one in self._active.values() if not one.task.done()]:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(running)
        for active in self._active.values():
            if not active.task.cancelled() and active.task.exception() is None:
                self._count(active.task.result(), is_new=active.run is not None)

    def _start(self) -> None:
        """Start as many branches as may work at the same time; one that waits for a person does not count."""
        most = self._fan.concurrency or len(self._branches)
        while self._waiting and len(self._active) - self._scope.waiting_children < most:
            index = self._waiting.popleft()
            self._begin(index)
        self._scope.queued = len(self._waiting)

    def _begin(self, index: int, *, stop: bool = False) -> None:
        active = self._active[index] = _Active(self._run.run_id)
        if stop:
            active.guard.stop(None, _NOT_NEEDED)
        active.task = asyncio.ensure_future(self._branch(index, active))
        active.task.add_done_callback(lambda _: self._news.set())

    async def _take_ended(self) -> None:
        """Count the branches that have ended, in their order, and decide. Raises the first error of a branch."""
        for index in sorted(index for index, one in self._active.items() if one.task.done()):
            active = self._active.pop(index)
            task = active.task
            if task.cancelled():
                continue
            self._count(task.result(), is_new=active.run is not None)
            if self._decided is None and (verdict := self._tally.decision) is not None:
                await self._decide(verdict)

    def _count(self, result: BranchResult[Any], *, is_new: bool) -> None:
        """Add a result. Only an end that this process saw is published."""
        self._results[result.index] = result
        self._on_end(result)
        self._ended.append(result.index)
        if self._decided is None:
            self._tally.add(result)
        run = self._run
        if not is_new:
            return
        run.emit(
            BranchEnded(
                run.graph.name,
                run.run_id,
                run.cursor.state,
                result.index,
                result.run_id,
                result.outcome.value if result.started else "not_started",
                self._service.clock.time(),
                run.agent,
            )
        )

    def _cancel_rest(self) -> None:
        """Cancel the branches that are not needed; one that must finish a call is paused after it, then cancelled."""
        while self._waiting:
            self._count(self._not_started(self._waiting.popleft()), is_new=True)
        self._scope.queued = 0
        for active in self._active.values():
            busy = self._busy(active)
            for run in busy:
                if run.graph.name != CALL.name and run.control.pause_request is None:  # a call ends by itself
                    pause = Signal(kind="pause", id=new_id(), by=f"run {self._run.run_id}", why=_NOT_NEEDED)
                    run.mailbox.post(pause)
            if not busy:
                active.guard.stop(None, _NOT_NEEDED)

    def _not_started(self, index: int) -> BranchResult[Any]:
        run_id = f"{self._prefix}{index}"
        return BranchResult(index, run_id, Outcome.CANCELLED, "caller", error=_NOT_NEEDED, started=False)

    def _busy(self, active: _Active) -> list[Run[Any, Any]]:
        """Return the runs of a branch, with its child runs, in which a call has to finish."""
        if active.run is None:
            return []
        live, name = self._service.live, active.run.run_id
        below = (live.find(other) for other in live if other == name or other.startswith(f"{name}:"))
        return [run for run in below if run is not None and _runs_lasting_call(run)]

    def _stop_all(self) -> None:
        """Stop every branch because the run is stopped, or leave each because the run is left for another process."""
        for active in self._active.values():
            if self._scope.is_left:
                active.task.cancel()
            else:
                active.guard.stop(self._run.interruption)

    async def _read(self, counted: Iterable[int]) -> None:
        """After a crash: read the branches that the decision counted, and end the others that had started."""
        counted = set(counted)
        for index in range(len(self._branches)):
            if index in counted:
                self._begin(index)
            elif await self._exists(index):
                self._begin(index, stop=True)
            else:
                self._count(self._not_started(index), is_new=False)

    async def _exists(self, index: int) -> bool:
        try:
            await self._service.journal.head(f"{self._prefix}{index}")
        except RunUnknown:
            return False
        return True

    async def _branch(self, index: int, active: _Active) -> BranchResult[Any]:
        branch, run_id = self._branches[index], f"{self._prefix}{index}"
        left = len(self._branches) - len(self._ended)
        result = await self._child(branch, run_id, active, 1 / max(1, left))
        account = _account(self._run)
        if active.run is None and account is not None and hasattr(result, "usage"):
            account.found(run_id, result.usage)  # it had ended before this run was resumed
        completed, usage = result.outcome is Outcome.COMPLETED, getattr(result, "usage", None)
        return BranchResult(
            index,
            run_id,
            result.outcome,
            result.reason,
            result.output if completed else None,
            "" if completed else ended_as(result),
            tokens=0 if usage is None else usage.input_tokens + usage.output_tokens,
        )

    async def _child(self, branch: Branch[Any], run_id: str, active: _Active, share: float) -> Any:
        """Start, resume or read the run of a branch, and return its result."""
        run, owner, target = self._run, self._scope.agent, branch.target
        account = _account(run)
        adopt = partial(self._adopt, active, account)
        if isinstance(target, Agent):

            def lender(limits: Limits) -> Limits:
                own = branch.limits or limits
                return own if account is None else lend_limits(account, own, share)

            return await drive_child(member(owner, target), run, run_id, branch.item, lender, adopt)
        if isinstance(target, Workflow):
            return await self._workflow(target, branch.item, run_id, adopt)
        return await self._calls().run(
            run, run_id, value_tool(target), json.dumps(plain_json(branch.item)), adopt
        )

    async def _workflow(
        self, target: Workflow[Any, Any], item: Any, run_id: str, adopt: Callable[[Run[Any, Any]], None]
    ) -> Any:
        members = vars(self._scope.agent).setdefault("_members", {})
        if target not in members:
            members[target] = target.as_child_of(self._scope.agent)
        child: Workflow[Any, Any] = members[target]

        async def make() -> Run[Any, Any]:
            return child.new_run(item, run_id, stored_data(self._run.data or {}, SHARED))

        return await child._service.drive_child(self._run, run_id, make, adopt)  # noqa: SLF001 - a facade

    def _calls(self) -> CallRuns:
        calls = _CALLS.get(self._service)
        if calls is None:
            calls = _CALLS[self._service] = CallRuns(self._service, self._scope.agent.hosting)
        return calls

    @staticmethod
    def _adopt(active: _Active, account: BudgetAccount | None, run: Run[Any, Any]) -> None:
        """Add a run to the tree, with its usage so far."""
        active.run = run
        if isinstance(run.ctx, LoopContext):
            open_account(run, account)
            used = run.ctx.spent.total
        else:
            own: ChildBudget = run.deps.account
            own.lend_from(account)
            used = own.used
        if account is not None:
            account.found(run.run_id, used)
        active.guard.claim_child(run)

    # ---- undo ----

    async def _undo(self) -> None:
        """Undo the compensable calls of branches that ended after the decision."""
        counted = set(self._run.branches.get("joined", {}).get("ended", ()))
        for index, branch in enumerate(self._branches):
            result = self._results[index]
            tool = branch.target
            if index in counted or result is None or not result.started or not isinstance(tool, ToolSpec):
                continue
            if tool.effect == "compensable" and await self._may_have_happened(result.run_id):
                await self._undo_call(tool, branch, result)

    async def _may_have_happened(self, run_id: str) -> bool:
        stored = StoredRun.of(run_id, await self._service.journal.load(run_id))
        entry = stored.ledger.entries.get(CALL_KEY)
        return entry is not None and bool(
            entry.open or (entry.done or {}).get("outcome") in {"ok", "unfinished", "abandoned", "cancelled"}
        )

    async def _undo_call(self, tool: ToolSpec[Any], branch: Branch[Any], result: BranchResult[Any]) -> None:
        active = _Active(self._run.run_id)
        undo = undo_tool(tool, result.run_id, CALL_KEY)
        adopt = partial(self._adopt, active, _account(self._run))
        work = asyncio.ensure_future(
            self._calls().run(
                self._run, f"{result.run_id}.undo", undo, json.dumps(plain_json(branch.item)), adopt
            )
        )
        late: asyncio.CancelledError | None = None
        while not work.done():
            try:
                await asyncio.wait((work,))
            except asyncio.CancelledError as error:
                late = error
                if self._scope.is_left:
                    work.cancel()
                else:
                    active.guard.stop(self._run.interruption)
        if late is not None:
            if not work.cancelled():
                work.exception()
            raise late
        work.result()


_CALLS: WeakKeyDictionary[RunService[Any], CallRuns] = WeakKeyDictionary()


def _account(run: Run[Any, Any]) -> BudgetAccount | None:
    """Return the account of a run that pays for its child runs, opened with its first one; None for a pipeline."""
    if isinstance(run.ctx, LoopContext):
        return open_account(run) if run.deps.account is None else run.deps.account
    return getattr(run.deps, "account", None)


def _runs_lasting_call(run: Run[Any, Any]) -> bool:
    """Return whether a run executes a call now whose effect lasts. One that waits for a person does not."""
    ctx = run.ctx
    if not isinstance(ctx, LoopContext) or run.parked:
        return False
    return any(
        effect in _LASTING and position < len(ctx.results) and ctx.results[position] is None
        for position, effect in ctx.ledger.started.items()
    )
