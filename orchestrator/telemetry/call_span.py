"""Spans of calls that run now: the span of a model request or a tool is the current one while the call runs.

A host's HTTP and SQL spans, and the runs that a tool starts, are therefore below it. The context is set in the task
of the call and directly around the host's code, so tasks and threads of that code inherit it. The span starts with
the call and ends with the fact about it, which has its result. A run that parks before the fact (other calls of the
turn wait for a person) ends the spans of its finished calls with what is known then.
"""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from orchestrator.kernel.call import Call
from orchestrator.telemetry import semconv as ours

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext

CallKey: TypeAlias = tuple[int, int]
"""(iteration, position) of a tool call in its run"""

PRESENT: ContextVar[SpanContext | None] = ContextVar("orchestrator_span", default=None)
"""The span of the running call, or of the last fact in this context: facts of a run are published in its own task."""
_CURRENT: ContextVar[CallSpan | None] = ContextVar("orchestrator_call_span", default=None)
"""The running call."""
_LAST_REQUEST: ContextVar[CallSpan | None] = ContextVar("orchestrator_request_span", default=None)
"""The model request that ended last in this context; the fact about it follows in the same context."""


def current_call() -> Call | None:
    """Return the call that this code is part of."""
    scope = _CURRENT.get()
    return None if scope is None else scope.call


def take_request(run_id: str) -> CallSpan | None:
    """Return the request of this run that ended last in this context, once."""
    found = _LAST_REQUEST.get()
    _LAST_REQUEST.set(None)
    return found if found is not None and found.call.run_id == run_id else None


@dataclass(slots=True, eq=False)
class CallSpan:
    """The context manager of a call: its span is the current one inside."""

    span: Span
    call: Call
    ended_at: float = 0.0
    """End of the call (epoch seconds); 0 while it runs."""
    error: str = ""
    """Class of the exception that the call raised."""
    _began: float = field(default_factory=time.monotonic, init=False)
    _outer: CallSpan | None = field(default=None, init=False)
    _outer_present: SpanContext | None = field(default=None, init=False)
    _outer_context: Context | None = field(default=None, init=False)
    _tokens: tuple[Token[Any], Any] | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        from opentelemetry import context, trace

        self._outer, self._outer_present = _CURRENT.get(), PRESENT.get()
        self._outer_context = context.get_current()
        mine = _CURRENT.set(self)
        PRESENT.set(self.span.get_span_context())
        self._tokens = mine, context.attach(trace.set_span_in_context(self.span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended_at = self.call.at + time.monotonic() - self._began
        self.error = "" if kind is None else kind.__name__
        self._leave()
        if self.call.kind == "model":
            _LAST_REQUEST.set(self)

    def end_early(self, error_type: str, now: float) -> None:
        """End the span before the fact about the call. `error_type` is the name of the attribute of an error."""
        from opentelemetry.trace import StatusCode

        if not self.ended_at:
            self.span.set_attribute(ours.ABANDONED, True)  # noqa: FBT003 - OpenTelemetry's signature
        elif self.error:
            self.span.set_attribute(error_type, self.error)
            self.span.set_status(StatusCode.ERROR, self.error)
        else:
            self.span.set_attribute(ours.OUTCOME, "ok")
        self.span.end(round((self.ended_at or max(now, self.call.at)) * 1_000_000_000))

    def _leave(self) -> None:
        """Make the outer span the current one again.

        The code may be in another context by now: in a copy, if its task was abandoned, or in an unrelated one, if a
        coroutine that was never finished is collected. The first gets the outer values, the second is not changed.
        """
        from opentelemetry import context

        if self._tokens is None or _CURRENT.get() is not self:
            return
        mine, token = self._tokens
        try:
            _CURRENT.reset(mine)
        except ValueError:
            _CURRENT.set(self._outer)
            if self._outer_context is not None:
                context.attach(self._outer_context)
        else:
            context.detach(token)
        PRESENT.set(self._outer_present)
