"""Convert facts to OpenTelemetry spans: one for a run, with a child for each request to a model and each tool call.

    pip install 'fsm-orchestrator[otel]'

    spans = Spans()                                   # a tracer of the host's provider
    observers = [spans, TransitionLog(trace=spans.trace), Metrics(exemplar=spans.trace)]     # spans first
    agent = Agent(llm, tools=[search], observers=observers)

It uses only the API: the host decides where spans are sent, and without an SDK nothing is recorded. Transitions are
events of the run's span, because they take microseconds. `telemetry.semconv` has the names. No span has prompts,
arguments, results or the text of an error.

- The parent of a run's span is the span that is current at its start; for a child run, it is the parent run's span.
  The spans are not made current: facts report completed actions.
- A run that parks ends its span. A resumed run gets a new trace, with a link to the span before: an answer may take
  days, and a parent that ended long ago would be wrong. `links` stores the spans: a mapping from run id to W3C
  `traceparent`, by default in memory, so that a run that another process resumes has no link. A host that needs one
  passes a mapping that outlives the process; it must be fast, and an exception of it loses only the link.
- The span of a call has the start and the duration of the call, from its fact. Calls that never ran (refused,
  invented, answered by a person) have no such time: their spans start with their turn.
- Several tries of one request are several spans.
- At most `most` spans of runs are open. The oldest one is then ended as `orchestrator.abandoned`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from orchestrator.errors import ConfigError, MissingExtra
from orchestrator.kernel.record import (
    EventFailed,
    Fact,
    LLMCall,
    OperationAttempt,
    RunCompleted,
    RunParked,
    RunStarted,
    ToolExecution,
    Transition,
)
from orchestrator.telemetry import semconv as ours
from orchestrator.telemetry.attribute import Attributes, llm_attributes, tool_attributes
from orchestrator.telemetry.catalogue import INVALID
from orchestrator.telemetry.traceparent import RecentRuns, parsed, written

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

_UNKNOWN = "_unknown"
_BAD_TOOL = frozenset(("error", "timeout", *INVALID))
_NANO = 1_000_000_000

Key: TypeAlias = tuple[str, str]
"""(machine, run id)"""

_PRESENT: ContextVar[SpanContext | None] = ContextVar("orchestrator_span", default=None)
"""The span of the last fact in this context: facts of a run are published in its own task."""


@dataclass(slots=True)
class _Open:
    """The span of an active run.

    `since` is the start of its present state, or of its present session (epoch seconds).
    """

    span: Span
    since: float


class Spans:
    """An observer that creates OpenTelemetry spans.

    Args:
        tracer: The tracer; None takes one from the global provider, which may be configured later.
        conventions: A version of `semconv.VERSIONS`.
        links: Run id -> W3C `traceparent` of its last span; None keeps them in memory.
        most: Maximum open spans of runs.

    Raises:
        ImportError: The extra `otel` is not installed.
        ConfigError: The version is unknown.

    Example:
        spans = Spans()
        agent = Agent(llm, observers=[spans, TransitionLog(trace=spans.trace)])
    """

    component = "tracing"
    """Name under which Metrics counts its exceptions."""

    def __init__(
        self,
        tracer: Tracer | None = None,
        *,
        conventions: str = ours.LATEST,
        links: MutableMapping[str, str] | None = None,
        most: int = 10_000,
        now: Callable[[], float] = time.time,
    ) -> None:
        if conventions not in ours.VERSIONS:
            known = ", ".join(ours.VERSIONS)
            raise ConfigError(f"unknown version {conventions!r} of the conventions; known: {known}")
        self._names = ours.VERSIONS[conventions]
        self._api = _api()
        self._tracer = tracer or self._api.get_tracer("orchestrator", schema_url=self._names.schema_url)
        self._links = RecentRuns(most) if links is None else links
        self._most = most
        self._now = now
        self._providers: dict[str, str] = {}
        self._open: dict[Key, _Open] = {}
        self._lock = threading.Lock()
        self._by_type: dict[type[Any], Callable[[Any], None]] = {
            Transition: self._transition,
            LLMCall: self._llm,
            ToolExecution: self._tool,
            EventFailed: self._failed,
            OperationAttempt: self._attempt,
            RunStarted: self._started,
            RunParked: self._parked,
            RunCompleted: self._completed,
        }

    def declare(
        self,
        graph: object,
        tools: Iterable[str] = (),
        model: str | None = None,
        *,
        provider: str = _UNKNOWN,
        **_: Any,
    ) -> None:
        """Store the provider of each model."""
        del graph, tools
        if model is not None and provider != _UNKNOWN:
            self._providers[model] = provider

    def observe(self, fact: Fact, /) -> None:
        """Create the span, or the event, of a fact."""
        run = self._open.get((fact.graph, fact.run_id))
        _PRESENT.set(None if run is None else run.span.get_span_context())
        make = self._by_type.get(type(fact))
        if make is not None:
            make(fact)

    @staticmethod
    def trace() -> Mapping[str, str] | None:
        """Return trace_id and span_id of the present span, None if it is not sampled.

        For an observer after this one it is the span of the same fact; for code of a run, the run's.
        """
        context = _PRESENT.get()
        if context is None or not context.trace_flags.sampled:
            return None
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    def close(self) -> None:
        """End the spans of runs without a reported end."""
        with self._lock:
            left = list(self._open.values())
            self._open.clear()
        for run in left:
            self._abandon(run)

    # ---- runs ----

    def _started(self, fact: RunStarted) -> None:
        resumed = fact.origin == "resumed"
        before = self._pop(fact)
        if before is not None:  # the run was continued elsewhere, and its end was never reported here
            self._abandon(before)
        attributes = {
            self._names.operation: self._names.run,
            self._names.workflow: fact.graph,
            ours.MACHINE: fact.graph,
            ours.RUN_ID: fact.run_id,
            ours.ORIGIN: "resumed" if resumed else "new",
        }
        if fact.parent_run_id is not None:
            attributes[ours.PARENT_RUN_ID] = fact.parent_run_id
        span = self._tracer.start_span(
            f"{self._names.run} {fact.graph}",
            context=self._context_of(fact, resumed=resumed),
            attributes=attributes,
            links=self._link_of(fact.run_id) if resumed else None,
            start_time=_nano(fact.at),
        )
        _PRESENT.set(span.get_span_context())
        self._remember(fact.run_id, span)
        self._keep((fact.graph, fact.run_id), _Open(span, fact.at))

    def _context_of(self, fact: RunStarted, *, resumed: bool) -> Any:
        """Return the parent of the run's span: none for a resumed run, its parent run, or the current one (None)."""
        from opentelemetry.context import Context

        if resumed:
            return Context()
        parent = None
        if fact.parent_run_id is not None:
            with self._lock:
                found = [run for (_, run_id), run in self._open.items() if run_id == fact.parent_run_id]
            parent = found[0] if found else None
        return None if parent is None else self._api.set_span_in_context(parent.span)

    def _link_of(self, run_id: str) -> list[Any]:
        try:
            context = parsed(self._links.get(run_id), self._api)
        except Exception:  # noqa: BLE001 - the host's mapping may raise anything; a link is not worth an error
            return []
        return [] if context is None else [self._api.Link(context, {ours.LINKED: "resumed"})]

    def _remember(self, run_id: str, span: Span) -> None:
        context = span.get_span_context()
        if context.is_valid:
            with suppress(Exception):
                self._links[run_id] = written(context)

    def _keep(self, key: Key, run: _Open) -> None:
        with self._lock:
            late = [self._open.pop(next(iter(self._open))) for _ in range(len(self._open) - self._most + 1)]
            self._open[key] = run
        for one in late:
            self._abandon(one)

    def _pop(self, fact: RunStarted | RunParked | RunCompleted) -> _Open | None:
        with self._lock:
            return self._open.pop((fact.graph, fact.run_id), None)

    def _abandon(self, run: _Open) -> None:
        run.span.set_attribute(ours.ABANDONED, True)  # noqa: FBT003 - OpenTelemetry's signature
        run.span.end(_nano(max(self._now(), run.since)))

    def _parked(self, fact: RunParked) -> None:
        run = self._pop(fact)
        if run is None:
            return
        run.span.set_attributes({ours.PARKED: fact.reason, ours.STATE: fact.state})
        run.span.end(_nano(max(fact.at, run.since)))

    def _completed(self, fact: RunCompleted) -> None:
        run = self._pop(fact)
        if fact.outcome == "completed":  # any other end may be resumed with other limits
            with suppress(Exception):
                self._links.pop(fact.run_id, None)
        if run is None:
            return
        attributes: Attributes = {
            ours.OUTCOME: fact.outcome,
            ours.REASON: fact.reason,
            ours.STATE: fact.state,
            ours.TRANSITIONS: fact.transitions,
            ours.ITERATIONS: fact.iterations,
        }
        if fact.outcome == "failed":
            attributes[self._names.error] = type(fact.error).__name__ if fact.error else fact.reason
            self._set_error(run.span, fact.reason)
        run.span.set_attributes(attributes)
        run.span.end(_nano(max(fact.at, run.since)))

    # ---- events of the run's span ----

    def _transition(self, fact: Transition) -> None:
        run = self._open.get((fact.graph, fact.run_id))
        if run is None:
            return
        if not fact.internal:
            run.since = fact.at
        if not run.span.is_recording():
            return
        attributes: Attributes = {
            ours.SEQ: fact.seq,
            ours.FROM_STATE: fact.source,
            ours.EVENT: fact.event,
            ours.TO_STATE: fact.dest,
            ours.ITERATION: fact.iteration,
        }
        if fact.guard is not None:
            attributes[ours.GUARD] = fact.guard
        run.span.add_event(ours.TRANSITION_EVENT, attributes, _nano(fact.at))

    def _failed(self, fact: EventFailed) -> None:
        run = self._recording(fact)
        if run is None:
            return
        attributes: Attributes = {ours.STATE: fact.state, ours.EVENT: fact.event, ours.REASON: fact.reason}
        if fact.hook:
            attributes[ours.HOOK] = fact.hook
        if fact.error is not None:
            attributes[self._names.error] = type(fact.error).__name__
        run.span.add_event(ours.FAILED_EVENT, attributes, _nano(fact.at))

    def _attempt(self, fact: OperationAttempt) -> None:
        run = self._recording(fact) if fact.outcome == "retry" else None
        if run is not None:
            attributes: Attributes = {
                ours.OPERATION: fact.operation,
                ours.REASON: fact.reason or "other",
                ours.DELAY: fact.delay,
            }
            run.span.add_event(ours.RETRY_EVENT, attributes, _nano(self._now()))

    def _recording(self, fact: Fact) -> _Open | None:
        run = self._open.get((fact.graph, fact.run_id))
        return run if run is not None and run.span.is_recording() else None

    # ---- spans of calls ----

    def _llm(self, fact: LLMCall) -> None:
        attributes = llm_attributes(fact, self._names, self._providers.get(fact.model))
        start = fact.at or self._now() - fact.seconds
        bad = fact.outcome not in {"ok", "cancelled"}
        self._call(fact, f"{self._names.llm} {fact.model}", attributes, start, client=True, bad=bad)

    def _tool(self, fact: ToolExecution) -> None:
        attributes = tool_attributes(fact, self._names)
        run = self._open.get((fact.graph, fact.run_id))
        start = fact.at or (self._now() if run is None else run.since)
        bad = fact.outcome in _BAD_TOOL
        self._call(fact, f"{self._names.tool} {fact.tool}", attributes, start, client=False, bad=bad)

    def _call(
        self,
        fact: LLMCall | ToolExecution,
        name: str,
        attributes: Attributes,
        start: float,
        *,
        client: bool,
        bad: bool,
    ) -> None:
        run = self._open.get((fact.graph, fact.run_id))
        if run is None:  # its span was ended to make room
            return
        attributes[ours.OUTCOME] = fact.outcome
        if bad:
            attributes[self._names.error] = fact.outcome
        span = self._tracer.start_span(
            name,
            context=self._api.set_span_in_context(run.span),
            kind=self._api.SpanKind.CLIENT if client else self._api.SpanKind.INTERNAL,
            attributes=attributes,
            start_time=_nano(start),
        )
        if bad:
            self._set_error(span, fact.outcome)
        _PRESENT.set(span.get_span_context())
        span.end(_nano(start + fact.seconds))

    def _set_error(self, span: Span, why: str) -> None:
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, why))


def _nano(seconds: float) -> int:
    return round(seconds * _NANO)


def _api() -> Any:
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise MissingExtra("opentelemetry-api", "otel", "operations") from error
    return trace
