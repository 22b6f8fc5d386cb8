"""Write the log: one JSON line for every transition and other fact that an operator needs.

Every line has all keys of the schema as its own, `ts`, `level` and `msg` included, so that queries hold under any key
that the host's chain gives to the event. The message of a record of the standard library is a mapping, which prints
as the JSON line: a plain formatter writes the line itself, and JSON formatters (python-json-logger, ecs-logging,
OpenTelemetry's handler) merge its keys. A chain of structlog that ends in the arguments of such a record
(`render_to_log_kwargs`) gets the same mapping, because a record refuses an extra field named `msg`.

Levels are a contract: transitions, starts and ends of runs are INFO, failures are WARNING, a failed run is ERROR. No
alert or runbook depends on a DEBUG line. No line has prompts, arguments or results.

A line is written when its transition is durable, before the run's next action. A killed process may lack, for each of
its runs, the lines of one commit, its last append (three transitions of the loop at most). It never has a line that
is not in the journal. Missing lines are not written later: the journal has them (`orchestrator runs events`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Union, cast

from orchestrator.kernel.clock import WHOLE, micros
from orchestrator.kernel.fact import (
    BudgetChecked,
    EventFailed,
    Fact,
    GuardEvaluated,
    JournalWrite,
    LLMCall,
    OperationAttempt,
    RunCompleted,
    RunParked,
    RunStarted,
    TableRejected,
    ToolExecution,
    Transition,
    WorkAbandoned,
)
from orchestrator.kernel.redaction import scrub
from orchestrator.kernel.writer import raised_at
from orchestrator.llm.message import finish_word
from orchestrator.telemetry.line import (
    KEYS,
    LEVELS,
    SCHEMA,
    BoundedWriter,
    FieldNames,
    LineCounts,
    LineWriter,
    Renamer,
    SafeLogger,
    Stream,
    TransitionLines,
    build,
    level_number,
    number,
    renamer,
    rendered,
    service_name,
    stamp,
    totals,
    verdict_fields,
)
from orchestrator.telemetry.span import Trace, span_of

if TYPE_CHECKING:
    from structlog.typing import BindableLogger, FilteringBoundLogger

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def fingerprint(error: BaseException) -> str:
    """Return 12 hex digits, equal for errors of one type whose texts differ only in numbers and secrets."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not cost the log line
        text = ""
    text = _NUMBER.sub("0", scrub(text))
    return hashlib.sha256(f"{type(error).__name__}:{text}".encode(errors="replace")).hexdigest()[:12]


def error_code(error: BaseException) -> str | None:
    """Return the error's own code (`kind`, `code` or `status`) if it has a short and plain one."""
    for name in ("kind", "code", "status"):
        value = getattr(error, name, None)
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            code = plain(str(value))
            if code is not None:
                return code
    return None


def plain(text: str | None) -> str | None:
    """Return a short word unchanged, and None for a longer, unusual or secret-like text."""
    return text if text is not None and _CODE.fullmatch(text) and scrub(text) == text else None


def error_fields(error: BaseException | None, *, text: bool = False) -> dict[str, Any]:
    """Return the log fields of an error: type and fingerprint, and code, HTTP status and request id if it has them.

    `text` adds its scrubbed text, which can contain contents.
    """
    if error is None:
        return {}
    fields: dict[str, Any] = {"error_type": type(error).__name__, "error_fingerprint": fingerprint(error)}
    code, status, request_id = (
        error_code(error),
        getattr(error, "status", None),
        getattr(error, "request_id", None),
    )
    if code is not None:
        fields["error_code"] = code
    if isinstance(status, int) and not isinstance(status, bool):
        fields["http_status"] = status
    if isinstance(request_id, str) and _REQUEST_ID.fullmatch(request_id):
        fields["request_id"] = request_id
    if text:
        fields["error_text"] = scrub(str(error))
    return fields


Deliver: TypeAlias = Callable[[str, dict[str, Any], dict[str, Any]], None]
"""Receives the level, the line, and the arguments of the call that are for the logger itself."""

_FOR_LOGGER = ("exc_info", "stack_info", "stacklevel")


class LineMessage(dict[str, Any]):
    """A line as the message of a record."""

    def __str__(self) -> str:
        return rendered(self).decode().removesuffix("\n")


class HostLogger:
    """Has the used interface of structlog's bound loggers.

    The logger is not bound before the first line, so a host may configure structlog after its agents were made.
    """

    __slots__ = ("_bound", "_deliver", "_rename")

    def __init__(self, deliver: Deliver, bound: Mapping[str, Any], rename: Renamer | None) -> None:
        self._deliver, self._bound, self._rename = deliver, dict(bound), rename

    def bind(self, **fields: Any) -> Self:
        """Return a logger with more fields in each line."""
        return type(self)(self._deliver, self._bound | fields, self._rename)

    def debug(self, event: str, /, *args: object, **fields: Any) -> None:
        """Write a line at level debug."""
        self._write("debug", event, args, fields)

    def info(self, event: str, /, *args: object, **fields: Any) -> None:
        """Write a line at level info."""
        self._write("info", event, args, fields)

    def warning(self, event: str, /, *args: object, **fields: Any) -> None:
        """Write a line at level warning."""
        self._write("warning", event, args, fields)

    def error(self, event: str, /, *args: object, **fields: Any) -> None:
        """Write a line at level error."""
        self._write("error", event, args, fields)

    def critical(self, event: str, /, *args: object, **fields: Any) -> None:
        """Write a line at level critical."""
        self._write("critical", event, args, fields)

    def _write(self, level: str, event: str, args: tuple[object, ...], fields: dict[str, Any]) -> None:
        extra = {name: fields.pop(name) for name in _FOR_LOGGER if name in fields}
        ts = fields.pop("ts", None) or stamp(time.time())
        msg = event % args if args else event
        line = {"ts": ts, "level": level, "msg": msg, **self._bound, "pid": os.getpid(), **fields}
        self._deliver(level, line if self._rename is None else self._rename(line), extra)


def host_logger(logger: Any, bound: Mapping[str, Any], rename: Renamer | None) -> HostLogger:
    """Return what writes lines with a logger of structlog or of the standard library."""
    is_plain = isinstance(logger, logging.Logger | logging.LoggerAdapter)
    event = "msg" if rename is None else rename.names["msg"]
    return HostLogger(_plain(logger) if is_plain else _Structlog(logger, event), bound, rename)


def _plain(logger: logging.Logger | logging.LoggerAdapter[Any]) -> Deliver:
    def deliver(level: str, line: dict[str, Any], extra: dict[str, Any]) -> None:
        if logger.isEnabledFor(LEVELS[level]):
            logger.log(LEVELS[level], LineMessage(line), **extra)

    return deliver


class _Structlog:
    """Delivers to a logger of structlog; `event` is the key of the line with the event."""

    def __init__(self, logger: Any, event: str) -> None:
        self._logger, self._event = logger, event
        self._as_record = False

    def __call__(self, level: str, line: dict[str, Any], extra: dict[str, Any]) -> None:
        say = getattr(self._logger, level)
        if not self._as_record:
            try:
                say(line[self._event], **line, **extra)
            except KeyError as error:
                if "LogRecord" not in str(error):
                    raise
                self._as_record = True
            else:
                return
        say(LineMessage(line), **extra)


HostsLogger: TypeAlias = Union[
    "FilteringBoundLogger", "BindableLogger", logging.Logger, "logging.LoggerAdapter[Any]"
]
"""Loggers of a host."""
TRANSITION = "fsm.transition"
_BOUND = {"level", "schema", "service", "pid", "run_id", "machine", "agent"}
"""Keys that a host's logger has bound, or adds."""
_MOST_RUNS = 20_000
"""Maximum bound loggers. The oldest are dropped, because a run with events fired by hand may never report its end."""


class TransitionLog:
    """An observer that writes facts as JSON lines in the schema of log_schema.json.

    Args:
        stream: A text or binary file, or a BoundedWriter; None is the sys.stdout of each line.
        logger: A logger of the host, of structlog or of the standard library, used instead of the stream.
        level: Lowest level of a line. Lower ones are not even rendered.
        trace: Returns trace_id and span_id of the present span, or None.
        service: Name of the service in each line; None takes OTEL_SERVICE_NAME, else `orchestrator`.
        fields: Names of the host's own fields whose text is written; numbers and booleans always are.
        names: Names of the keys: `orchestrator`, `ecs` (Elastic Common Schema) or `otel` (OpenTelemetry).
        error_text: Lines of errors have their scrubbed text, too, which can contain contents of requests.

    Raises:
        ConfigError: The level or the names are unknown, or the stream cannot be written.

    Example:
        >>> TransitionLog(level="warning").level
        'warning'
    """

    component = "logs"
    """Name under which Metrics counts its exceptions."""

    def __init__(
        self,
        stream: Stream | None = None,
        *,
        logger: HostsLogger | None = None,
        level: str = "info",
        trace: Trace | None = None,
        service: str | None = None,
        fields: Iterable[str] = (),
        names: FieldNames = "orchestrator",
        error_text: bool = False,
    ) -> None:
        threshold = level_number(level)
        self.level, self.error_text = level.lower(), error_text
        self._debug = threshold <= LEVELS["debug"]
        self._trace = trace
        self._lines: TransitionLines | None = None
        self._service, self._rename = service_name(service), renamer(names, KEYS)
        self._agents: dict[tuple[str, str], str] = {}
        self._root: FilteringBoundLogger
        self._safe_root: FilteringBoundLogger
        if logger is None:
            writer = LineWriter(stream)
            form = threshold, self._service, frozenset(fields), self._rename
            self._root, self._safe_root = build(writer, *form), build(SafeLogger(writer), *form)
            bounded = (stream.tally,) if isinstance(stream, BoundedWriter) else ()
            self.tallies: tuple[LineCounts, ...] = (writer.tally, *bounded)
            """Numbers of written and dropped lines; empty if the host's logger writes."""
            # Without structlog's chain, which would double the cost and change nothing.
            self._lines = TransitionLines(writer.info, self._fields, self._common, _MOST_RUNS, self._rename)
        else:
            bound = {"schema": SCHEMA, "service": self._service}
            self._root = self._safe_root = cast(
                "FilteringBoundLogger", host_logger(logger, bound, self._rename)
            )
            self.tallies = ()
        self._runs: dict[tuple[str, str], FilteringBoundLogger] = {}
        found: dict[type[Any], Callable[[Any], None]] = {
            RunCompleted: self._completed,
            RunParked: self._parked,
            EventFailed: self._failed,
            BudgetChecked: self._budgets,
            OperationAttempt: self._attempt,
            GuardEvaluated: self._guard,
            LLMCall: self._llm,
            ToolExecution: self._tool,
            JournalWrite: self._journal,
            WorkAbandoned: self._abandoned,
            TableRejected: self._table_rejected,
            RunStarted: self._remember_agent,
        }
        if threshold <= LEVELS["info"]:
            # What writes the line of a transition: from a template, unless each line has a span of its own.
            transition = self._log_with_host
            if self._lines is not None:
                plain = self._trace is None and self._rename is None
                transition = self._lines.write if plain else self._lines.write_fields
            found |= {Transition: transition, RunStarted: self._started}
        self._by_type = found

    def hears(self, kind: type[Fact]) -> Callable[[Any], None] | None:
        """Return the writer for facts of a kind; None if the kind has no line at this level."""
        is_plain = type(self).observe is TransitionLog.observe  # else a subclass of a host adds to it
        return self._by_type.get(kind) if is_plain else self.observe

    def observe(self, fact: Fact, /) -> None:
        """Write the line of a fact, if it has one at this level. Raises the OSError of the stream."""
        write = self._by_type.get(type(fact))
        if write is not None:
            write(fact)

    @property
    def logger(self) -> FilteringBoundLogger:
        """The logger of lines without a run."""
        return self._root

    def bound(self, run_id: str, machine: str) -> FilteringBoundLogger:
        """Return the logger of a run, with run_id and machine bound. It raises the errors of the stream."""
        key = (machine, run_id)
        found = self._runs.get(key)
        if found is None:
            while len(self._runs) >= _MOST_RUNS:
                del self._runs[next(iter(self._runs))]
            found = self._runs[key] = self._root.bind(**self._identity(key))
        return found

    def _identity(self, key: tuple[str, str]) -> dict[str, Any]:
        """Return the fields of every line of a run."""
        machine, run_id = key
        agent = self._agents.get(key)
        return {"run_id": run_id, "machine": machine, **({"agent": agent} if agent else {})}

    def _common(self, key: tuple[str, str]) -> dict[str, Any]:
        """Return the fields of every transition of a run."""
        frame = {"schema": SCHEMA, "service": self._service, "pid": os.getpid()}
        return {"level": "info", "msg": TRANSITION, **frame, **self._identity(key)}

    def _remember_agent(self, fact: RunStarted) -> None:
        """Store the agent of a run, also beyond its end: a few facts follow that."""
        if not fact.agent:
            return
        self._agents[fact.graph, fact.run_id] = fact.agent
        while len(self._agents) > _MOST_RUNS:
            del self._agents[next(iter(self._agents))]

    def logger_for(self, run_id: str, machine: str) -> FilteringBoundLogger:
        """Return the logger for `logger_from_context()` inside a run: a line that cannot be written is counted."""
        return self._safe_root.bind(**self._identity((machine, run_id)))

    def _drop(self, fact: RunCompleted | RunParked) -> FilteringBoundLogger:
        logger = self.bound(fact.run_id, fact.graph)
        del self._runs[fact.graph, fact.run_id]
        if self._lines is not None:
            self._lines.forget((fact.graph, fact.run_id))
        return logger

    def _log_with_host(self, fact: Transition) -> None:
        """Give the fields of a transition to the host's logger."""
        fields = self._fields(fact)
        run = self.bound(fact.run_id, fact.graph)
        run.info(fields.pop("msg"), **{key: fields[key] for key in fields if key not in _BOUND})

    def _fields(self, fact: Transition) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "ts": stamp(fact.at),
            **self._common((fact.graph, fact.run_id)),
            "seq": fact.seq,
            "iteration": fact.iteration,
            "from_state": fact.source,
            "fsm_event": fact.event,
            "to_state": fact.dest,
            "outcome": "ok",
            "state_duration_s": micros(fact.dwell),
        }
        if fact.guard is not None:
            fields["guard"] = fact.guard
            fields["guard_result"] = "allow"
        if fact.verdict is not None or fact.internal or fact.tokens or fact.reason:
            fields |= _seldom(fact)
        if fact.overhead is not None:
            fields["overhead_s"] = (fact.overhead * 1e9 + WHOLE - WHOLE) / 1e9
        if self._trace is not None:
            fields |= self._span()
        return fields

    def _started(self, fact: RunStarted) -> None:
        self._remember_agent(fact)
        parent = {"parent_run_id": fact.parent_run_id} if fact.parent_run_id else {}
        message = "run.resumed" if fact.origin == "resumed" else "run.started"
        self.bound(fact.run_id, fact.graph).info(message, ts=stamp(fact.at), **parent)

    def _failed(self, fact: EventFailed) -> None:
        self._now(fact).warning(
            "fsm.transition_failed",
            ts=stamp(fact.at),
            iteration=fact.iteration,
            from_state=fact.state,
            fsm_event=fact.event,
            reason=fact.reason,
            **({"hook": fact.hook} if fact.hook else {}),
            **({"committed": True} if fact.committed else {}),
            **({"where": where} if (where := raised_at(fact.error)) else {}),
            **error_fields(fact.error, text=self.error_text),
            **self._span(),
        )

    def _completed(self, fact: RunCompleted) -> None:
        logger = self._drop(fact)
        say = logger.error if fact.outcome == "failed" else logger.info
        say(
            "run.completed",
            ts=stamp(fact.at),
            seq=fact.transitions,
            iteration=fact.iterations,
            state=fact.state,
            outcome=fact.outcome,
            reason=fact.reason,
            run_duration_s=micros(fact.seconds),
            **totals(fact.summary),
            **verdict_fields(fact.verdict),
            **error_fields(fact.error, text=self.error_text),
            **self._span(),
        )

    def _parked(self, fact: RunParked) -> None:
        self._drop(fact).info("run.parked", ts=stamp(fact.at), state=fact.state, reason=fact.reason)

    def _budgets(self, fact: BudgetChecked) -> None:
        for verdict in fact.verdicts:
            if not verdict.ok:
                used = {v.guard: round(v.observed / v.limit, 4) for v in fact.verdicts if v.limit}
                self._now(fact).warning(
                    "budget.exceeded",
                    iteration=fact.iteration,
                    state=fact.state,
                    budget_used=used,
                    **verdict_fields(verdict),
                )
                return

    def _guard(self, fact: GuardEvaluated) -> None:
        if fact.result == "allow" and not self._debug:
            return
        logger = self._now(fact)
        say = {"allow": logger.debug, "deny": logger.info}.get(fact.result, logger.warning)
        say(
            "fsm.guard",
            from_state=fact.state,
            fsm_event=fact.event,
            guard=fact.guard,
            guard_result=fact.result,
            observed=number(fact.observed),
            limit=number(fact.limit),
        )

    def _attempt(self, fact: OperationAttempt) -> None:
        if fact.outcome == "ok":
            return
        again = fact.outcome == "retry"
        self._now(fact).warning(
            "retry.scheduled" if again else "retry.exhausted",
            operation=fact.operation,
            attempt=fact.number,
            reason=fact.reason or "other",
            **({"retry_in_s": micros(fact.delay)} if again else {}),
        )

    def _llm(self, fact: LLMCall) -> None:
        if fact.outcome == "ok" and not self._debug:
            return
        logger = self._now(fact)
        say = logger.debug if fact.outcome == "ok" else logger.warning
        say(
            "llm.request",
            iteration=fact.iteration,
            state=fact.state,
            model=fact.model,
            outcome=fact.outcome,
            duration_s=micros(fact.seconds),
            **({"queued_s": micros(fact.queued)} if fact.queued else {}),
            **({} if fact.usage_unreported else _tokens(fact)),
            finish_reason=finish_word(fact.finish_reason),
            tool_calls=fact.tool_calls,
            **error_fields(fact.error, text=self.error_text),
            **self._span(),
        )

    def _tool(self, fact: ToolExecution) -> None:
        if fact.outcome == "ok" and not self._debug:
            return
        logger = self._now(fact)
        say = logger.debug if fact.outcome == "ok" else logger.warning
        say(
            "tool.call",
            iteration=fact.iteration,
            position=fact.position,
            tool=fact.tool,
            outcome=fact.outcome,
            duration_s=micros(fact.seconds),
            queued_s=micros(fact.queued),
            result_chars=fact.result_chars,
            cut=fact.cut,
            **self._span(),
        )

    def _journal(self, fact: JournalWrite) -> None:
        if fact.outcome != "ok":
            self._now(fact).error(
                "journal.failed",
                backend=fact.backend,
                **({"journal": fact.journal} if fact.journal else {}),
                operation=fact.operation,
                records=fact.records,
                reason=fact.outcome,
                duration_s=micros(fact.seconds),
            )

    def _abandoned(self, fact: WorkAbandoned) -> None:
        self._now(fact).warning("work.abandoned", state=fact.state, kind=fact.kind, name=fact.name)

    def _table_rejected(self, fact: TableRejected) -> None:
        agent = {"agent": fact.agent} if fact.agent else {}
        self._root.error("table.rejected", machine=fact.graph, **agent, problems=list(fact.problems))

    def _span(self) -> dict[str, str]:
        return {} if self._trace is None else span_of(self._trace) or {}

    def _now(self, fact: Fact) -> FilteringBoundLogger:
        """Return the run's logger, without storing one for a run that has ended."""
        found = self._runs.get((fact.graph, fact.run_id))
        return found or self._root.bind(**self._identity((fact.graph, fact.run_id)))


def _tokens(fact: LLMCall) -> dict[str, Any]:
    return {
        "tokens_in": fact.input_tokens,
        "tokens_out": fact.output_tokens,
        "tokens_cached": fact.cached_input_tokens,
        "tokens_reasoning": fact.reasoning_tokens,
        "cost": fact.cost,
    }


def _seldom(fact: Transition) -> dict[str, Any]:
    """Return the fields that few transitions have."""
    fields = {} if fact.verdict is None else verdict_fields(fact.verdict)
    if fact.internal:
        fields["internal"] = True
    if fact.tokens:
        fields["tokens"] = fact.tokens
    if fact.reason:
        fields["reason"] = fact.reason
    return fields
