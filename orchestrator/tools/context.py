"""The context of a tool call: run, idempotency key, the host's handles, deadline and cancellation."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, cast

from typing_extensions import TypeVar  # with a default, which `typing` has since Python 3.13

from orchestrator.llm.content_part import KINDS, PartKind
from orchestrator.llm.port import Clock, SystemClock
from orchestrator.tools.input_request import NO_INPUT, CallInput
from orchestrator.tools.sampling import Sampler

DepsT = TypeVar("DepsT", default=Any)
DepsT_co = TypeVar("DepsT_co", default=Any, covariant=True)
DepsT_contra = TypeVar("DepsT_contra", default=Any, contravariant=True)

_SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True)  # with slots `ToolContext[Bank](...)` is a TypeError on Python 3.11
class ToolContext(Generic[DepsT_co]):
    """The context of one call, for a tool whose first parameter has this type, and for an output validator.

    `ToolContext[Bank]` says that `deps` is a Bank. A type checker then accepts the tool only in an `Agent[Bank, ...]`.

    Example:
        @tool(effect="idempotent")
        def pay(context: ToolContext, invoice: int) -> str:
            "Pay an invoice."
            return bank.pay(invoice, key=context.idempotency_key, timeout=context.remaining())
    """

    run_id: str
    idempotency_key: str
    """The same for every try of this call, also after a crash; pass it to the service that the tool calls."""
    deps: DepsT_co = cast("Any", None)  # noqa: RUF009 - `cast` returns None here
    """The handles that the host gave the agent or the run."""
    deadline: float | None = None
    """The time at which the call is given up, in seconds of `clock.monotonic()`; None means never."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when no caller waits for the result any more. A thread cannot be stopped from outside, so it must check
    this."""
    progress: Callable[[str], None] = lambda _: None
    """Reports progress in a sentence, as the event ToolProgress of the run's stream."""
    restart_timeout: Callable[[], None] = lambda: None
    """Gives the call the whole `timeout` of its tool again, from now on; `deadline` is not changed. Its total timeout
    and the limits of the run still apply. To be called in the event loop."""
    stored_result: Callable[[str], Awaitable[str]] | None = None
    """Returns the whole text of an earlier result of the run that was cut, by its handle. None: nothing is stored."""
    clock: Clock = _SYSTEM_CLOCK
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON data that the host gave the run."""
    tags: Mapping[str, str] = field(default_factory=dict)
    reads: Collection[PartKind] = KINDS
    """Kinds of content parts that the model reads, so that a tool can return text in place of others."""
    retry: int = 0
    """How often the model was asked to try again so far: by this tool in consecutive turns, or for its final answer."""
    input: CallInput = NO_INPUT
    """The answers of people to an InputRequired of this call."""
    sample: Sampler | None = None
    """Asks the model of the run within the budgets of the run: `await context.sample(SamplingRequest(...))`. None
    outside a run of the LLM loop."""

    def remaining(self) -> float | None:
        """Return the seconds until the deadline, never below 0; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - self.clock.monotonic())
