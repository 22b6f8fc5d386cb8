"""The result of a run. Outcomes are values; `raise_for_outcome` converts them to exceptions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self

from typing_extensions import TypeVar

from orchestrator import around
from orchestrator.errors import (
    BudgetExceeded,
    GuardrailRefused,
    LLMError,
    NoProgress,
    RunCancelled,
    RunFailed,
    RunPartial,
    RunRejected,
    RunStopped,
)
from orchestrator.kernel.fact import ToolError, Transition
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.llm.message import FinishReason, Message, Response, Usage
from orchestrator.machines.llm_loop.graph import LLM_LOOP, refusal
from orchestrator.runtime.service.waiting_run import EndedResult
from orchestrator_callbacks.llm_loop import memory
from orchestrator_callbacks.llm_loop.deps import AgentRun, LoopRun
from orchestrator_guards import Verdict

if TYPE_CHECKING:
    from orchestrator.machines.team.model import HandoffRecord


class EndedRun(Protocol):
    """What the results of all machines have."""

    @property
    def run_id(self) -> str: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def reason(self) -> str: ...
    @property
    def transitions(self) -> tuple[Transition, ...]: ...
    @property
    def error(self) -> Exception | None: ...


def result_bundle(result: EndedRun, *graphs: Graph) -> dict[str, str]:
    """Return a result as text and as HTML, with its path on the first of the graphs that has all of its edges."""
    from orchestrator.runtime.runs.story import path_marks
    from orchestrator.telemetry.history import History

    end = (
        result.outcome.value if result.reason in {"", "none"} else f"{result.outcome.value} ({result.reason})"
    )
    facts = {
        "run": result.run_id,
        "outcome": end,
        "output": getattr(result, "output", None),
        "error": result.error and f"{type(result.error).__name__}: {result.error}",
        "usage": "",
    }
    usage: Usage | None = getattr(result, "usage", None)
    if usage is not None:
        cost = "" if usage.cost is None else f", cost {usage.cost:g}"
        cost += "" if usage.cost_max_micros is None else f" to {usage.cost_max:g}"
        facts["usage"] = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out{cost}"
    path = result.transitions
    taken = {(one.source, one.event, one.dest) for one in path}
    graph = None
    for one in graphs:
        rows = {(source.value, event.value, dest.value) for source, event, dest, _ in one.rows}
        if taken <= rows:
            graph = one
            break
    current = path[-1].dest if path else None
    marks = path_marks(History(limit=0, facts=path), current=current, status=result.outcome.value)
    return around.bundle(facts, graph, marks)


STOPPED: Mapping[Outcome, type[RunStopped]] = {
    Outcome.PARTIAL: RunPartial,
    Outcome.BUDGET_EXCEEDED: BudgetExceeded,
    Outcome.NO_PROGRESS: NoProgress,
    Outcome.CANCELLED: RunCancelled,
    Outcome.REJECTED: RunRejected,
    Outcome.FAILED: RunFailed,
}


ANSWERED = (Outcome.COMPLETED, Outcome.PARTIAL)
"""Outcomes of runs that have an output."""


OutputT_co = TypeVar("OutputT_co", default=Any, covariant=True)


class BaseResult(Protocol):
    """Common part of the results of all graphs."""

    @property
    def run_id(self) -> str: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def reason(self) -> str: ...
    @property
    def verdict(self) -> Verdict | None: ...
    @property
    def error(self) -> Exception | None: ...


def ended_as(ended: BaseResult, why: str = "") -> str:
    """Return the end of a run as one phrase. `why` is its verdict or its error by default.

    The kind of a model's error stands beside the reason: `llm_error` alone does not say what to do.
    """
    verdict = None if isinstance(ended.error, GuardrailRefused) else ended.verdict
    told = why or (str(ended.error or "") if verdict is None else verdict.explain())
    kind = f", {ended.error.kind}" if isinstance(ended.error, LLMError) else ""
    return f"ended as {ended.outcome.value} ({ended.reason}{kind})" + (f": {told}" if told else "")


def stopped(ended: BaseResult, why: str = "") -> RunStopped:
    """Return the exception for a run that did not complete; `why` as in `ended_as`."""
    return STOPPED[ended.outcome](f"run {ended.run_id} {ended_as(ended, why)}", ended)


@dataclass(frozen=True, kw_only=True)  # with slots `Result[Report](...)` is a TypeError on Python 3.11
class Result(EndedResult, Generic[OutputT_co]):
    """The end of a run, with its messages and its usage. `Result[Report]` has a Report as its output.

    Example:
        result = await agent.run("Summarise the open incidents.")
        print(result.raise_for_outcome().output)
    """

    run_id: str
    outcome: Outcome
    reason: str
    """One of REASONS[outcome]."""
    output: OutputT_co
    """The final answer: text, or a value of `output_type`. None unless the run is `completed` or `partial`.

    The last response of a stopped run is not an answer: it may be incomplete, of the wrong type, or rejected by a
    hook of the host. It stays in `messages`. A `partial` run with an `output_type` has a value of that type or None.
    """
    messages: tuple[Message, ...]
    """The whole conversation, valid as the history of a next run."""
    usage: Usage
    """Usage of the run and all its child runs."""
    transitions: tuple[Transition, ...]
    """The path of the run: the last 10,000 transitions."""
    verdict: Verdict | None = None
    """The refusal that ended the run, if any: ok, guard, observed, limit, detail."""
    error: Exception | None = None
    """The first error, also of a run that completed in spite of it."""
    tool_errors: tuple[ToolError, ...] = ()
    """The last 100 exceptions of its tools, in order: the model has read them as results."""
    finish_reason: FinishReason | None = None
    """Why the model ended its last answer; None without an answer, and if the vendor gave no reason."""
    vendor_finish_reason: str | None = None
    """The vendor's own word for it."""
    agent: str = field(default="", repr=False)
    """Name of the agent that had the conversation at the end; empty if it has none."""
    handoffs: tuple[HandoffRecord, ...] = field(default=(), repr=False)
    """The handoffs of the run, in order."""
    children: tuple[Result[Any], ...] = field(default=(), repr=False)
    """The ended runs of agents that its tools started, in the order of the calls, without messages and transitions.

    `output` is a value of the `output_type` of the child's agent, and JSON data in the results of `Runs`. A run of a
    team has the children of all its agents. `runs.result(child.run_id)` reads the whole result of one.
    """

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return result_bundle(self, LLM_LOOP)

    def raise_for_outcome(self) -> Self:
        """Return self if the run completed; else raise the RunStopped of its outcome, caused by the first error."""
        if self.outcome is Outcome.COMPLETED:
            return self
        raise stopped(self) from self.error


ResultT_co = TypeVar("ResultT_co", default=Result[OutputT_co], covariant=True)
"""Result of a run of any agent; a Result[Output] unless it is given."""


def result_of(run: LoopRun, path: Iterable[Transition], end: Ending) -> Result:
    """Return the Result of a run that ended, in this process or restored."""
    ctx = run.ctx
    answer = ctx.response or Response()
    return Result(
        run_id=run.run_id,
        outcome=end.outcome,
        reason=end.reason,
        output=ctx.output if end.outcome in ANSWERED and end.reason != "handed_over" else None,
        messages=tuple(memory.conversation(ctx)),
        usage=ctx.spent.total,
        transitions=tuple(path),
        verdict=refusal(run) if ctx.verdict is None else ctx.verdict,
        error=run.error,
        tool_errors=ctx.tool_errors,
        finish_reason=answer.finish,
        vendor_finish_reason=answer.finish_reason,
        agent=run.agent,
        children=children_of(run),
    )


def as_child(result: Result) -> Result:
    """Return the result of a child run as `Result.children` has it."""
    return replace(result, messages=(), transitions=())


def children_of(run: AgentRun) -> tuple[Result, ...]:
    """Return the results of the child runs that ended while the run was driven here."""
    account = run.deps.account
    return () if account is None else in_call_order(account.children.values())


def in_call_order(children: Iterable[Result]) -> tuple[Result, ...]:
    """Sort child runs by turn and position of their calls; those of the segments of a team by their segment."""
    return tuple(sorted(children, key=lambda child: [*map(int, re.findall(r"\d+", child.run_id))]))
