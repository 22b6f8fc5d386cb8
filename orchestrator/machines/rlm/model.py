"""The context of a run of code mode or tools mode, and their common events. Plain data.

Events are frozen and contain tuples, so that an event cannot change on its way into the context. Only the actions of
the machines apply events to the context, so their changes are durable with the transition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.llm.message import NO_USAGE, Message, ToolCall, Usage
from orchestrator.machines.rlm.limits import RlmLimits
from orchestrator_guards import Verdict

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
