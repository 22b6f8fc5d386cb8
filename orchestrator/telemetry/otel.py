"""Convert facts to OpenTelemetry spans: one for a run, with a child for each request to a model and each tool call.

They are an option for a host whose dashboards use these names. The metrics of `Metrics` have more labels and feed the
alerts and dashboards of this package.

A host's HTTP and SQL spans, and the runs that a tool starts, are therefore below it. The context is set in the task
of the call and directly around the host's code, so tasks and threads of that code inherit it. The span starts with
the call and ends with the fact about it, which has its result. A run that parks before the fact (other calls of the
turn wait for a person) ends the spans of its finished calls with what is known then.

    pip install 'fsm-orchestrator[otel]'

    spans = Spans()                                   # a tracer of the host's provider
    observers = [spans, TransitionLog(trace=spans.trace), Metrics(exemplar=spans.trace)]     # spans first
    agent = Agent(llm, tools=[search], observers=observers)

It uses only the API: the host decides where spans are sent, and without an SDK nothing is recorded. Transitions are
events of the run's span, because they take microseconds. `telemetry.semconv` has the names. No span has prompts,
arguments, results or the text of an error.

- The parent of a run's span is the span that is current at its start. For a child run, it is the span of the tool
  call that started it, else the parent run's span.
- While a model request or a tool runs, its span is the current one (`CallSpan`): spans that a host's HTTP
  client or database driver makes there are below it. The span of a run is never made current.
- A run that parks ends its span. A resumed run gets a new trace, with a link to the span before: an answer may take
  days, and a parent that ended long ago would be wrong. `links` stores the spans: a mapping from run id to W3C
  `traceparent`, by default in memory, so that a run that another process resumes has no link. A host that needs one
  passes a mapping that outlives the process; it must be fast, and an exception of it loses only the link.
- The span of a tool call starts when the tool does, after any wait for a slot. The span of a model request includes
  the wait for a rate limiter (`orchestrator.queued_seconds`). Calls that never ran (refused, invented, answered by a
  person) have no time of their own: their spans start with their turn.
- `meter` adds the GenAI metrics (`telemetry.client_metrics`).
- Several tries of one request are several spans.
- At most `most` spans of runs are open. The oldest one is then ended as `orchestrator.abandoned`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from orchestrator.errors import MissingExtra
from orchestrator.kernel.fact import (
    Call,
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
from orchestrator.llm.message import finish_word
from orchestrator.telemetry import semconv as ours
from orchestrator.telemetry.catalogue import INVALID
from orchestrator.telemetry.semconv import LINKED, Conventions

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, Meter
    from opentelemetry.trace import Span, SpanContext, Tracer

Attributes: TypeAlias = dict[str, Any]


def named(values: Mapping[str | None, Any]) -> Attributes:
    """Return the attributes that the version of the conventions has a name for, without unknown values."""
    return {name: value for name, value in values.items() if name is not None and value is not None}


def identity_attributes(fact: RunStarted, names: Conventions) -> Attributes:
    """Return the attributes that every span of a run has: its agent and its conversation."""
    known = {
        names.agent: fact.agent,
        names.agent_version: fact.agent_version,
        names.conversation: fact.conversation_id,
    }
    return {name: value for name, value in known.items() if value}


def llm_attributes(fact: LLMCall, names: Conventions, provider: str | None) -> Attributes:
    """Return the attributes of a request to a model, without unknown numbers."""
    optional = {
        **served_attributes(fact, names, provider),
        names.input_tokens: fact.input_tokens or None,
        names.output_tokens: fact.output_tokens or None,
        names.cached_tokens: fact.cached_input_tokens or None,
        names.reasoning_tokens: fact.reasoning_tokens or None,
        names.first_chunk: fact.first_token,
        ours.TOOL_CALLS: fact.tool_calls or None,
        ours.COST: fact.cost,
        ours.QUEUED: fact.queued or None,
        names.response_id: fact.response_id,
    }
    finish = finish_word(fact.finish_reason)
    return {
        names.operation: names.llm,
        names.model: fact.model,
        ours.STATE: fact.state,
        ours.ITERATION: fact.iteration,
        **named(optional),
        **({} if finish is None else {names.finish_reasons: (finish,)}),
    }


def served_attributes(fact: LLMCall, names: Conventions, provider: str | None) -> dict[str | None, Any]:
    """Return who answered a request: the values that its span and its metrics have."""
    host, port = fact.server or (None, None)
    return {
        names.provider: provider,
        names.response_model: fact.response_model,
        names.server_address: host,
        names.server_port: port,
    }


def tool_attributes(fact: ToolExecution, names: Conventions) -> Attributes:
    """Return the attributes of a tool call."""
    return {
        names.operation: names.tool,
        names.tool_name: fact.tool,
        names.tool_type: "function",
        ours.ITERATION: fact.iteration,
        ours.POSITION: fact.position,
        ours.RESULT_CHARS: fact.result_chars,
        **({ours.QUEUED: fact.queued} if fact.queued else {}),
        **({ours.CUT: True} if fact.cut else {}),
        **named({names.tool_call: fact.call_id or None}),
    }


def transition_attributes(fact: Transition) -> Attributes:
    """Return the attributes of the event of a transition."""
    return {
        ours.SEQ: fact.seq,
        ours.FROM_STATE: fact.source,
        ours.EVENT: fact.event,
        ours.TO_STATE: fact.dest,
        ours.ITERATION: fact.iteration,
        **({} if fact.guard is None else {ours.GUARD: fact.guard}),
    }


def failed_attributes(fact: EventFailed, names: Conventions) -> Attributes:
    """Return the attributes of the event of a failed event, without the text of its error."""
    return {
        ours.STATE: fact.state,
        ours.EVENT: fact.event,
        ours.REASON: fact.reason,
        **({ours.HOOK: fact.hook} if fact.hook else {}),
        **({} if fact.error is None else {names.error: type(fact.error).__name__}),
    }


def completed_attributes(fact: RunCompleted, names: Conventions) -> Attributes:
    """Return the attributes of the span of a run that ended."""
    attributes: Attributes = {
        ours.OUTCOME: fact.outcome,
        ours.REASON: fact.reason,
        ours.STATE: fact.state,
        ours.TRANSITIONS: fact.transitions,
        ours.ITERATIONS: fact.iterations,
    }
    return attributes | named({names.error: _error_of(fact)})


def _error_of(fact: RunCompleted) -> str | None:
    """Return the error of a run that failed."""
    if fact.outcome != "failed":
        return None
    return type(fact.error).__name__ if fact.error else fact.reason


class RecentRuns(dict[str, str]):
    """The default of `links`: the last runs of this process."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, run_id: str, traceparent: str) -> None:
        """Store a run, and drop the oldest one beyond the limit."""
        self.pop(run_id, None)
        super().__setitem__(run_id, traceparent)
        while len(self) > self._most:
            self.pop(next(iter(self)), None)


class RunLinks:
    """The spans before of runs, in a mapping of the host. An exception of the mapping loses only the link."""

    def __init__(self, spans: MutableMapping[str, str], api: Any) -> None:
        self._spans = spans
        self._api = api

    def of(self, run_id: str) -> list[Any]:
        """Return the link to the span before of a run; empty without one."""
        try:
            context = parsed(self._spans.get(run_id), self._api)
        except Exception:  # noqa: BLE001 - the host's mapping may raise anything; a link is not worth an error
            return []
        return [] if context is None else [self._api.Link(context, {LINKED: "resumed"})]

    def remember(self, run_id: str, context: SpanContext) -> None:
        """Store the span of a run."""
        if context.is_valid:
            with suppress(Exception):
                self._spans[run_id] = written(context)

    def forget(self, run_id: str) -> None:
        """Drop the span of a run that is not resumed any more."""
        with suppress(Exception):
            self._spans.pop(run_id, None)


def written(context: SpanContext) -> str:
    """Return a span context as a traceparent."""
    flags = "01" if context.trace_flags.sampled else "00"
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags}"


def parsed(traceparent: str | None, api: Any) -> SpanContext | None:
    """Return the span context of a W3C traceparent, or None. Raises ValueError for an invalid one."""
    if traceparent is None:
        return None
    version, trace_id, span_id, flags = traceparent.split("-")
    if version != "00":
        return None
    context: SpanContext = api.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=api.TraceFlags(int(flags, 16))
    )
    return context if context.is_valid else None


_TOKENS = tuple(4**power for power in range(14))
_SECONDS = tuple(0.01 * 2**power for power in range(14))
_AGENT_SECONDS = tuple(0.1 * 2**power for power in range(13))
"""Boundaries of the buckets as the conventions advise."""


class ClientMetrics:
    """Records the facts about calls with a meter."""

    def __init__(self, meter: Meter, names: Conventions) -> None:
        self._names = names
        self._tokens = meter.create_histogram(
            names.token_usage,
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )

        def seconds(name: str | None, text: str, bounds: tuple[float, ...] = _SECONDS) -> Histogram | None:
            if name is None:
                return None
            return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=bounds)

        self._duration = seconds(names.duration, "GenAI operation duration.")
        self._first_chunk = seconds(
            names.first_chunk_time, "Time to receive the first chunk of a streamed answer."
        )
        self._tool = seconds(names.tool_duration, "The duration of a single tool execution.")
        self._agent = seconds(
            names.agent_duration, "The duration of a single agent invocation.", _AGENT_SECONDS
        )

    def request(self, fact: LLMCall, provider: str | None, error: str | None) -> None:
        """Record one attempt of a request to a model."""
        names = self._names
        labels = {
            names.operation: names.llm,
            names.model: fact.model,
            **named(served_attributes(fact, names, provider or _UNKNOWN)),
        }
        self._record(self._duration, labels, fact.seconds, error)
        for kind, tokens in (("input", fact.input_tokens), ("output", fact.output_tokens)):
            if tokens:
                self._tokens.record(tokens, {**labels, names.token_type: kind})
        if fact.first_token is not None:
            self._record(self._first_chunk, labels, fact.first_token)

    def tool(self, fact: ToolExecution, identity: Attributes, error: str | None) -> None:
        """Record one tool call of the run with these attributes."""
        names = self._names
        labels = {names.tool_name: fact.tool}
        if names.tool_duration is None:
            self._record(self._duration, {names.operation: names.tool, **labels}, fact.seconds, error)
        else:
            labels |= named({names.tool_type: "function", names.agent: identity.get(names.agent)})
            self._record(self._tool, labels, fact.seconds, error)

    def run(self, agent: str, seconds: float, error: str | None) -> None:
        """Record a run that ended."""
        if agent:
            self._record(self._agent, {self._names.agent: agent}, seconds, error)

    def _record(
        self, instrument: Histogram | None, labels: Attributes, seconds: float, error: str | None = None
    ) -> None:
        if instrument is not None:
            instrument.record(seconds, {**labels, **named({self._names.error: error})})


CallKey: TypeAlias = tuple[int, int]
"""(iteration, position) of a tool call in its run"""

PRESENT: ContextVar[SpanContext | None] = ContextVar("orchestrator_span", default=None)
"""The span of the running call, or of the last fact in this context: facts of a run are published in its own task."""
_CURRENT: ContextVar[CallSpan | None] = ContextVar("orchestrator_call_span", default=None)
"""The running call."""
_LAST_REQUEST: ContextVar[CallSpan | None] = ContextVar("orchestrator_request_span", default=None)
"""The model request that ended last in this context; the fact about it follows in the same context."""


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
        # Make the outer span the current one again. The code may be in another context by now: in a copy, if its task
        # was abandoned, or in an unrelated one, if a coroutine that was never finished is collected. The first gets
        # the outer values, the second is not changed.
        from opentelemetry import context

        if self._tokens is not None and _CURRENT.get() is self:
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


_UNKNOWN = "_unknown"
_BAD_TOOL = frozenset(("error", "timeout", *INVALID))
_NANO = 1_000_000_000

Key: TypeAlias = tuple[str, str]
"""(machine, run id)"""


@dataclass(slots=True)
class _Open:
    """The span of an active run.

    `started` is the start of its present session, `since` that of its present state (epoch seconds).
    """

    span: Span
    started: float
    since: float
    identity: Attributes
    """Agent and conversation, for the spans of the run's calls."""
    invoked: bool = False
    """The span is that of an agent, which names its first model; False once it has one."""
    calls: dict[CallKey, CallSpan] = field(default_factory=dict)
    """Tool calls that run, or whose fact has not been published."""
    reported: set[CallKey] = field(default_factory=set)
    """Calls whose spans ended before their facts, because the run was parked."""


class Spans:
    """An observer that creates OpenTelemetry spans.

    Args:
        tracer: The tracer; None takes one from the global provider, which may be configured later.
        meter: Records the GenAI metrics too; None records none.
        conventions: A version of `semconv.VERSIONS`; None takes `genai-main` if OTEL_SEMCONV_STABILITY_OPT_IN has
            `gen_ai_latest_experimental`, else 1.41.
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
        meter: Meter | None = None,
        conventions: str | None = None,
        links: MutableMapping[str, str] | None = None,
        most: int = 10_000,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._names = ours.chosen(conventions, os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", ""))
        self._api = _api()
        self._tracer = tracer or self._api.get_tracer("orchestrator", schema_url=self._names.schema_url)
        self._metrics = None if meter is None else ClientMetrics(meter, self._names)
        self._links = RunLinks(RecentRuns(most) if links is None else links, self._api)
        self._most = most
        self._now = now
        self._providers: dict[str, str] = {}
        self._open: dict[Key, _Open] = {}
        self._reported: dict[Key, set[CallKey]] = {}
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
        PRESENT.set(None if run is None else run.span.get_span_context())
        make = self._by_type.get(type(fact))
        if make is not None:
            make(fact)

    def around(self, call: Call, /) -> AbstractContextManager[object]:
        """Return the context manager of a call that starts: its span is the current one inside."""
        run = self._open.get((call.graph, call.run_id))
        if run is None:  # its span was ended to make room
            return nullcontext()
        names, is_model = self._names, call.kind == "model"
        attributes = {
            names.operation: names.llm if is_model else names.tool,
            names.model if is_model else names.tool_name: call.name,
            **run.identity,
        }
        name = f"{attributes[names.operation]} {call.name}"
        scope = CallSpan(self._start(run, name, attributes, call.at, client=is_model), call)
        if not is_model:
            before = run.calls.pop((call.iteration, call.position), None)
            if before is not None:  # it was abandoned, and runs again with the consent of a person
                before.end_early(self._names.error, self._now())
            run.calls[call.iteration, call.position] = scope
        return scope

    @staticmethod
    def trace() -> Mapping[str, str] | None:
        """Return trace_id and span_id of the present span, None if it is not sampled.

        For an observer after this one it is the span of the same fact; for code of a run, that of the running call,
        else the run's.
        """
        context = PRESENT.get()
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
        names = self._names
        invoked = names.agent_run is not None and bool(fact.agent)
        operation, subject = (names.agent_run, fact.agent) if invoked else (names.run, fact.graph)
        attributes = {
            names.operation: operation,
            **({} if invoked else {names.workflow: fact.graph}),
            ours.MACHINE: fact.graph,
            ours.RUN_ID: fact.run_id,
            ours.ORIGIN: "resumed" if resumed else "new",
        }
        if fact.parent_run_id is not None:
            attributes[ours.PARENT_RUN_ID] = fact.parent_run_id
        identity = identity_attributes(fact, names)
        span = self._tracer.start_span(
            f"{operation} {subject}",
            context=self._context_of(fact, resumed=resumed),
            attributes={**attributes, **identity},
            links=self._links.of(fact.run_id) if resumed else None,
            start_time=_nano(fact.at),
        )
        PRESENT.set(span.get_span_context())
        self._links.remember(fact.run_id, span.get_span_context())
        key = (fact.graph, fact.run_id)
        run = _Open(span, fact.at, fact.at, identity, invoked, reported=self._reported.pop(key, set()))
        with self._lock:
            late = [self._open.pop(next(iter(self._open))) for _ in range(len(self._open) - self._most + 1)]
            self._open[key] = run
        for one in late:
            self._abandon(one)

    def _context_of(self, fact: RunStarted, *, resumed: bool) -> Any:
        """Return the parent of the run's span: none for a resumed run, its parent run, or the current one (None)."""
        from opentelemetry.context import Context

        scope = _CURRENT.get()
        call = None if scope is None else scope.call
        if call is not None and call.run_id == fact.parent_run_id:
            return None  # below the call that started it
        if resumed:
            return Context()
        parent = None
        if fact.parent_run_id is not None:
            with self._lock:
                found = [run for (_, run_id), run in self._open.items() if run_id == fact.parent_run_id]
            parent = found[0] if found else None
        return None if parent is None else self._api.set_span_in_context(parent.span)

    def _pop(self, fact: RunStarted | RunParked | RunCompleted) -> _Open | None:
        with self._lock:
            return self._open.pop((fact.graph, fact.run_id), None)

    def _abandon(self, run: _Open) -> None:
        self._end_calls(run)
        run.span.set_attribute(ours.ABANDONED, True)  # noqa: FBT003 - OpenTelemetry's signature
        run.span.end(_nano(max(self._now(), run.since)))

    def _parked(self, fact: RunParked) -> None:
        run = self._pop(fact)
        if run is None:
            return
        if done := run.reported | self._end_calls(run):
            self._reported[fact.graph, fact.run_id] = done
            while len(self._reported) > self._most:
                del self._reported[next(iter(self._reported))]
        run.span.set_attributes({ours.PARKED: fact.reason, ours.STATE: fact.state})
        run.span.end(_nano(max(fact.at, run.since)))

    def _completed(self, fact: RunCompleted) -> None:
        run = self._pop(fact)
        if self._metrics is not None:
            seconds = fact.seconds if run is None else fact.at - run.started
            self._metrics.run(fact.agent, seconds, _error_of(fact))
        if fact.outcome == "completed":  # any other end may be resumed with other limits
            self._links.forget(fact.run_id)
        if run is None:
            return
        self._end_calls(run)
        if fact.outcome == "failed":
            self._set_error(run.span, fact.reason)
        run.span.set_attributes(completed_attributes(fact, self._names))
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
        run.span.add_event(ours.TRANSITION_EVENT, transition_attributes(fact), _nano(fact.at))

    def _failed(self, fact: EventFailed) -> None:
        run = self._recording(fact)
        if run is not None:
            run.span.add_event(ours.FAILED_EVENT, failed_attributes(fact, self._names), _nano(fact.at))

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
        provider = self._providers.get(fact.model)
        error = None if fact.outcome in {"ok", "cancelled"} else fact.outcome
        if self._metrics is not None:
            self._metrics.request(fact, provider, error)
        run, request = self._open.get((fact.graph, fact.run_id)), take_request(fact.run_id)
        if run is None:  # its span was ended to make room
            return
        name, start = f"{self._names.llm} {fact.model}", fact.at or self._now() - fact.seconds
        span = self._start(run, name, run.identity, start, client=True) if request is None else request.span
        span.update_name(name)
        span.set_attributes(llm_attributes(fact, self._names, provider))
        if run.invoked:
            run.span.set_attributes(named({self._names.model: fact.model, self._names.provider: provider}))
            run.invoked = False
        self._end(span, fact, error, start + fact.seconds)

    def _tool(self, fact: ToolExecution) -> None:
        error = fact.outcome if fact.outcome in _BAD_TOOL else None
        run, key = self._open.get((fact.graph, fact.run_id)), (fact.iteration, fact.position)
        if self._metrics is not None:
            self._metrics.tool(fact, {} if run is None else run.identity, error)
        if run is None or key in run.reported:
            return
        call, start = run.calls.pop(key, None), fact.at or run.since
        name = f"{self._names.tool} {fact.tool}"
        span = self._start(run, name, run.identity, start, client=False) if call is None else call.span
        span.set_attributes(tool_attributes(fact, self._names))
        self._end(span, fact, error, start + fact.seconds)

    def _start(self, run: _Open, name: str, attributes: Attributes, at: float, *, client: bool) -> Span:
        return self._tracer.start_span(
            name,
            context=self._api.set_span_in_context(run.span),
            kind=self._api.SpanKind.CLIENT if client else self._api.SpanKind.INTERNAL,
            attributes=attributes,
            start_time=_nano(at),
        )

    def _end(self, span: Span, fact: LLMCall | ToolExecution, error: str | None, at: float) -> None:
        span.set_attribute(ours.OUTCOME, fact.outcome)
        if error is not None:
            span.set_attribute(self._names.error, error)
            self._set_error(span, error)
        PRESENT.set(span.get_span_context())
        span.end(_nano(at))

    def _end_calls(self, run: _Open) -> set[CallKey]:
        """End the spans of calls before their facts, and return which. Calls that still run are abandoned."""
        calls, run.calls = run.calls, {}
        for call in calls.values():
            call.end_early(self._names.error, self._now())
        return set(calls)

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
