"""Limits, context and endings of code mode and tools mode, and their common events. Plain data.

Events are frozen and contain tuples, so that an event cannot change on its way into the context. Only the actions of
the machines apply events to the context, so their changes are durable with the transition.

A run that a StoppingPolicy stopped is `partial`, with the model's last response as output. A run at its limit of
turns is also `partial` if the model answered the final request, and so is a run whose answer is incomplete.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from orchestrator.errors import CancelRequested, ConfigError, DeadlineExceeded, LimitReached
from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.outcome import Ending, Outcome
from orchestrator.kernel.run import Run
from orchestrator.kernel.typed import StateMachine
from orchestrator.llm.message import NO_USAGE, Message, ToolCall, Usage
from orchestrator.machines.bound import ON_UNKNOWN_COST, by_name, out_of_range, unknown_word
from orchestrator.machines.failing import completed, reason_of
from orchestrator.machines.llm_loop.graph import BUDGET_OF
from orchestrator_guards import Verdict
from orchestrator_guards.money import limit_micros

# ---- limits ----


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class RlmLimits:
    """Limits of one run. A limit of N allows exactly N; 0 means unlimited.

    The defaults are for code mode; TOOLS_LIMITS are for tools mode.

    Raises:
        ConfigError: A name is unknown, or a number is below 0.
    """

    max_iterations: int = 30
    """Turns. After the last one the model gets one more request for its answer, which does not count as a turn."""
    max_depth: int = 1
    """At this depth a run calls the model once and returns its answer. The outermost run has depth 0."""
    max_sub_calls: int = 1_000
    """Model queries of the code or of tools, over the whole run and its child runs.

    Limited by default: a block's clock stops while a model answers, so `while True: llm_query(...)` would cause
    requests and cost for days.
    """
    max_concurrent_subcalls: int = 4
    """Concurrent queries of one batch."""
    max_concurrent_tools: int = 10
    """Concurrent tools of one turn."""
    max_input_tokens: int = 0
    """Input tokens of the run and its child runs. Output tokens and cost work alike."""
    max_output_tokens: int = 0
    max_cost: float = 0.0
    on_unknown_cost: Literal["stop", "ignore"] = field(default="stop", metadata={"fingerprint": None})
    """Handling of an answer of unknown cost under `max_cost`: `stop` or `ignore`, as in `Limits`."""
    max_seconds: float = 0.0
    """Wall time of the run; work in flight is interrupted."""
    code_seconds: float = 300.0
    """Wall time of one block of code, without the time that it waits for answers. 0 uses the limit of the REPL."""
    result_chars: int = 20_000
    """Characters of one result in the history."""
    history_tokens: int = 0
    """Size of the model's history above which the compressor is called, at four characters per token. 0: it is never
    called."""

    @property
    def max_cost_micros(self) -> int:
        """`max_cost` in millionths of the currency."""
        return limit_micros(self.max_cost)

    def __post_init__(self) -> None:
        if fault := unknown_word("on_unknown_cost", self.on_unknown_cost, ON_UNKNOWN_COST):
            raise ConfigError(f"limit {fault}")
        for item in fields(self):
            if isinstance(item.default, str):
                continue
            whole = isinstance(item.default, int)
            if fault := out_of_range(item.name, getattr(self, item.name), whole=whole):
                raise ConfigError(f"limit {fault}")


CODE_LIMITS = RlmLimits()
TOOLS_LIMITS = RlmLimits(max_iterations=10)


# ---- events ----


# ---- events ----


def frozen(event: object, name: str, items: Iterable[Any]) -> None:
    """Store a copy of a field of an event as a tuple."""
    object.__setattr__(event, name, tuple(items))


@dataclass(slots=True, frozen=True)
class LLMResponseReceived:
    """The model answered."""

    response: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    incomplete: str = ""
    """`truncated`, `filtered` or `refused`; empty for a complete response."""

    def __post_init__(self) -> None:
        frozen(self, "tool_calls", self.tool_calls)


@dataclass(slots=True, frozen=True)
class MaxIterationsReached:
    """The last turn is over; `answer` is the model's response to the final request, if there was one."""

    answer: str | None = None


@dataclass(slots=True, frozen=True)
class PolicyStop:
    """A StoppingPolicy ended the run."""

    reason: str = ""


# ---- context ----


@dataclass
class ModeContext:
    """The context of a run in either mode."""

    prompt: str = ""
    max_iterations: int = 30
    depth: int = 0
    max_depth: int = 1
    iteration: int = 0
    """Completed turns."""
    message_history: list[dict[str, Any]] = field(default_factory=list)
    """The messages in OpenAI's chat form. The list shrinks only if a compressor shortens it."""
    last_response: str | None = None
    final_answer: str | None = None
    policy_stop: bool = False
    """A policy ended the run; checked before every other reason."""
    max_iterations_reached: bool = False
    context: Any = None
    """Data for the prompt: text or JSON of any length. The model never sees all of it."""
    notice: str = ""
    """Text that the model gets with its next results, once."""
    earlier: int = 0
    """Messages in the history before the run, without instructions."""
    begun: bool = False
    """The history contains the prompt."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Input of the policies and their own values: one mapping for the whole run. Not stored."""
    kept: dict[str, Any] = field(default_factory=dict)
    """The JSON values that policies stored there. A resumed run has them again."""
    limits: RlmLimits = field(default_factory=RlmLimits)
    usage: Usage = NO_USAGE
    """Usage of all requests of the run and its child runs."""
    sub_calls: int = 0
    """Model queries of code or tools."""
    verdict: Verdict | None = None
    """The refusal that ended the run, if any."""
    fault: str | None = None
    """Reason of a failure, set at the place of the error if that is more specific than the error's type."""
    incomplete: str = field(default="", metadata={"fingerprint": None})
    """`truncated`, `filtered` or `refused` if the last response, or the answer in it, is not complete."""
    deadline: float = 0.0
    """Seconds after the start by which the caller wants the run to end; 0 means none."""
    conversation_id: str | None = None
    largest_answer: int = field(default=0, metadata={"fingerprint": None})
    """Output tokens of the longest answer so far, used as an estimate for a lost answer."""
    largest_cost: int = field(default=0, metadata={"fingerprint": None})
    """Cost of the most expensive answer so far, in millionths of the currency."""
    fastest_rate: float = field(default=0.0, metadata={"fingerprint": None})
    """Output tokens a second of the fastest answer so far, used as an estimate for an interrupted request."""

    def say(self, message: Message) -> None:
        """Append a message to the history."""
        self.message_history.append(message.to_openai())

    @property
    def messages(self) -> list[Message]:
        """The history as messages."""
        return [Message.from_openai(said) for said in self.message_history]

    @property
    def finish_reason(self) -> str:
        """Why the run is over: `policy_stop`, `max_iterations` or `stop`; the policy comes first."""
        if self.policy_stop:
            return "policy_stop"
        return "max_iterations" if self.max_iterations_reached else "stop"


def take_response(event: LLMResponseReceived, ctx: ModeContext) -> None:
    """Add an answer of the model to the history."""
    ctx.last_response, ctx.incomplete = event.response, event.incomplete
    ctx.say(Message("assistant", event.response, event.tool_calls))


def reach_limit(event: MaxIterationsReached, ctx: ModeContext) -> None:
    """End at the limit of turns, with the model's response to the final request."""
    ctx.iteration += 1
    ctx.max_iterations_reached = True
    ctx.final_answer = event.answer


def stop(_event: PolicyStop, ctx: ModeContext) -> None:
    """End because of a policy; the last response is the output."""
    ctx.policy_stop = True


# ---- failure edges ----


FAILED = "Failed"
"""The event of an error, from every working state to the end."""


def guarded(
    machine: StateMachine[Any, Any, Any],
    seconds: Mapping[Hashable, float],
    context: type[ModeContext],
) -> Graph:
    """Return the machine's graph with failure edges and, for each working state, its maximum duration in seconds."""
    table = machine.graph
    (end,) = table.terminal
    names: Iterable[str] = [state.name for state in seconds]  # type: ignore[attr-defined]
    return table.extend(
        events=(FAILED,),
        edges=(Edge(FAILED, tuple(names), end),),
        failure=FAILED,
        dwell={state.name: (limit, FAILED) for state, limit in seconds.items()},  # type: ignore[attr-defined]
        context=context,
        strict=True,
    )


# ---- endings ----


def ending(run: Run[ModeContext, Any]) -> Ending:
    """Return outcome and reason of a finished run."""
    ctx, error = run.ctx, run.error
    if error is None:
        return _of_context(ctx)
    if isinstance(error, CancelRequested):
        return Ending(Outcome.CANCELLED, error.reason)
    if isinstance(error, DeadlineExceeded):
        return Ending(Outcome.BUDGET_EXCEEDED, "time")
    verdict = error.verdict if isinstance(error, LimitReached) else None
    if isinstance(verdict, Verdict) and verdict.guard in BUDGET_OF:
        return Ending(Outcome.BUDGET_EXCEEDED, BUDGET_OF[verdict.guard])
    return Ending(Outcome.FAILED, reason_of(run, error))


def _of_context(ctx: ModeContext) -> Ending:
    if ctx.policy_stop:
        return Ending(Outcome.PARTIAL if output_of(ctx) else Outcome.FAILED, "policy_stop")
    if ctx.max_iterations_reached:
        answered = ctx.final_answer is not None and ctx.final_answer.strip()
        return Ending(Outcome.PARTIAL if answered else Outcome.BUDGET_EXCEEDED, "max_iterations")
    if ctx.incomplete == "truncated" or (ctx.incomplete and (ctx.final_answer or "").strip()):
        return Ending(Outcome.PARTIAL, ctx.incomplete)
    return completed(ctx.final_answer, "none")


def output_of(ctx: ModeContext) -> str | None:
    """Return the answer of a run; for a run that a policy stopped, the model's last response."""
    if ctx.final_answer is None and ctx.policy_stop:
        return ctx.last_response
    return ctx.final_answer


def finish_reason(ctx: ModeContext, end: Ending) -> str:
    """Return the first that applies of `policy_stop`, `max_iterations` and `stop`; else the reason of the early end."""
    if end.outcome in (Outcome.COMPLETED, Outcome.PARTIAL) or ctx.policy_stop or ctx.max_iterations_reached:
        return ctx.finish_reason
    return end.reason
