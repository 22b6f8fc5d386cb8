"""The context of a run of code mode or tools mode, and the events that both have. Plain data.

Events are frozen and hold tuples (L5): what a source gave cannot change on its way into the context. The actions of the
machines are the only ones that fold an event into the context, so what they change is durable with the transition.
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
    """Keep a copy of what an event was given as a tuple."""
    object.__setattr__(event, name, tuple(items))


@dataclass(slots=True, frozen=True)
class LLMResponseReceived:
    """The model answered."""

    response: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        frozen(self, "tool_calls", self.tool_calls)


@dataclass(slots=True, frozen=True)
class MaxIterationsReached:
    """The last turn is over; what the model answered when it was asked once more, where it was."""

    answer: str | None = None


@dataclass(slots=True, frozen=True)
class PolicyStop:
    """A StoppingPolicy wants no further turn."""

    reason: str = ""


# ---- context ----


@dataclass
class ModeContext:
    """What a run knows in either mode."""

    prompt: str = ""
    max_iterations: int = 30
    depth: int = 0
    max_depth: int = 1
    iteration: int = 0
    """Turns that are over."""
    message_history: list[dict[str, Any]] = field(default_factory=list)
    """What was said, in OpenAI's chat form; it only grows, but where a compressor shortens it."""
    last_response: str | None = None
    final_answer: str | None = None
    policy_stop: bool = False
    """A policy ended the run; looked at before everything else that ends one (L6)."""
    max_iterations_reached: bool = False
    context: Any = None
    """What the prompt is about: text or JSON data of any length. The model is never shown all of it."""
    notice: str = ""
    """What the model is told with its next results, once."""
    earlier: int = 0
    """Messages that the history had before the run, without instructions."""
    begun: bool = False
    """The history has the prompt."""
    shared: dict[str, Any] = field(default_factory=dict)
    """What policies are told, and what they keep there: one mapping for the whole run. Not stored."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What policies keep there that is JSON: a run that is resumed has it again."""
    limits: RlmLimits = field(default_factory=RlmLimits)
    usage: Usage = NO_USAGE
    """Of all requests of the run and of those below it."""
    sub_calls: int = 0
    """Questions to a model that code or tools asked."""
    verdict: Verdict | None = None
    """The refusal that ended the run, where one did."""
    fault: str | None = None
    """Reason of a failure where the place it happened in knows better than the error's type."""
    deadline: float = 0.0
    """Seconds after its start by which the caller wants the run to have ended; 0 is none."""
    conversation_id: str | None = None
    largest_answer: int = field(default=0, metadata={"fingerprint": None})
    """Output tokens of the longest answer so far: those of an answer that is lost are estimated by it."""
    largest_cost: int = field(default=0, metadata={"fingerprint": None})
    """Cost of the dearest answer so far, in millionths of the currency."""

    def say(self, message: Message) -> None:
        """Append to the history."""
        self.message_history.append(message.to_openai())

    @property
    def messages(self) -> list[Message]:
        """The history as messages."""
        return [Message.from_openai(said) for said in self.message_history]

    @property
    def finish_reason(self) -> str:
        """Why the run is over: `policy_stop`, `max_iterations`, or `stop`; the policy comes first (L6)."""
        if self.policy_stop:
            return "policy_stop"
        return "max_iterations" if self.max_iterations_reached else "stop"


def take_response(event: LLMResponseReceived, ctx: ModeContext) -> None:
    """Take an answer of the model into the history."""
    ctx.last_response = event.response
    ctx.say(Message("assistant", event.response, event.tool_calls))


def reach_limit(event: MaxIterationsReached, ctx: ModeContext) -> None:
    """End at the limit of turns, with what the model said when it was asked once more."""
    ctx.iteration += 1
    ctx.max_iterations_reached = True
    ctx.final_answer = event.answer


def stop(_event: PolicyStop, ctx: ModeContext) -> None:
    """End because a policy said so; the last response is what there is."""
    ctx.policy_stop = True
