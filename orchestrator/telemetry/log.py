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

The keys have our names, those of the Elastic Common Schema, or those of OpenTelemetry. Runbooks, the schema and
`orchestrator report` use ours. The other forms are for a log store that expects its own names;
keys without a name there get the prefix `orchestrator.`, and fields of the host keep theirs.

It uses structlog without its global configuration. Each step of the chain is the cheapest correct one: structlog's
own add_log_level, EventRenamer, JSONRenderer and BytesLogger cost about 2 µs more per line, and the lock table of
BytesLogger keeps every stream alive for ever. A line is one write and a flush, so a killed process loses none.

The common parts of the transitions of a run or of an edge are rendered once, as a template: a turn has four of these
lines, and it saves a third of the time of a full rendering.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Literal, Self, TypeAlias, Union, cast

import orjson

from orchestrator.errors import ConfigError
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
    ToolError,
    ToolExecution,
    Transition,
    WorkAbandoned,
)
from orchestrator.kernel.redaction import REDACTED, scrub
from orchestrator.kernel.writer import raised_at
from orchestrator.llm.message import finish_word

if TYPE_CHECKING:
    from structlog.typing import BindableLogger, FilteringBoundLogger


LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


@dataclass(slots=True, eq=False)
class LineCounts:
    """Counts of one log, or of one writer."""

    lines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0))
    """Level -> lines."""
    dropped: int = 0


FieldNames: TypeAlias = Literal["orchestrator", "ecs", "otel"]

_SEVERITY = {"debug": 5, "info": 9, "warning": 13, "error": 17, "critical": 21}

_ECS = {
    "ts": "@timestamp",
    "level": "log.level",
    "msg": "message",
    "logger": "log.logger",
    "service": "service.name",
    "pid": "process.pid",
    "trace_id": "trace.id",
    "span_id": "span.id",
    "error_type": "error.type",
    "error_code": "error.code",
}
_OTEL = {
    "ts": "timestamp",
    "level": "severity_text",
    "msg": "body",
    "logger": "otel.scope.name",
    "service": "service.name",
    "pid": "process.pid",
    "trace_id": "trace_id",
    "span_id": "span_id",
    "agent": "gen_ai.agent.name",
    "model": "gen_ai.request.model",
    "provider": "gen_ai.provider.name",
    "tool": "gen_ai.tool.name",
    "tokens_in": "gen_ai.usage.input_tokens",
    "tokens_out": "gen_ai.usage.output_tokens",
    "error_type": "error.type",
}


@dataclass(frozen=True, slots=True)
class Renamer:
    """Renames the keys of a line."""

    names: Mapping[str, str]
    ours: frozenset[str]
    constant: Mapping[str, Any] = field(default_factory=dict)
    severity: bool = False

    def __call__(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the line under other names."""
        found = {
            self.names.get(key) or (f"orchestrator.{key}" if key in self.ours else key): value
            for key, value in line.items()
        } | dict(self.constant)
        if self.severity:
            found["severity_number"] = _SEVERITY.get(str(line.get("level")), 0)
        return found


def renamer(names: FieldNames, ours: frozenset[str]) -> Renamer | None:
    """Return what renames the keys of a line; None for our own names. Raises ConfigError for an unknown form."""
    match names:
        case "orchestrator":
            return None
        case "ecs":
            return Renamer(_ECS, ours, {"ecs.version": "8.11.0"})
        case "otel":
            return Renamer(_OTEL, ours, severity=True)
    raise ConfigError(f"names is {names!r}; it must be 'orchestrator', 'ecs' or 'otel'")


_BATCH = 1_000
"""Maximum lines of one write."""
_LOOK = 0.005


class BoundedWriter:
    """Accepts lines at once and writes them from a thread, so that a slow reader of the log delays no run.

    If `most` lines wait, further ones are dropped and counted in `tally`, and so are lines that the stream refuses.
    Queued lines are written at `close` and at the end of the process; a killed process loses them, in contrast to
    direct writes. The thread starts with the first line.

    Args:
        stream: A text or binary file; None is the sys.stdout of each line.
        most: Maximum queued lines.

    Raises:
        ConfigError: `most` is below 1.

    Example:
        log = TransitionLog(BoundedWriter())
    """

    def __init__(self, stream: IO[str] | IO[bytes] | None = None, *, most: int = 10_000) -> None:
        if most < 1:
            raise ConfigError(f"most is {most!r}; a bounded writer needs room for 1 line or more")
        self.tally = LineCounts()
        self._follows = stream is None
        self._stream: Any = stream
        self._put = writer_to(stream)
        self._most = most
        self._lines: deque[bytes] = deque()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._idle = True
        self._pid = 0

    def write(self, line: bytes) -> int:
        """Queue one line, or drop it; return its length."""
        if len(self._lines) >= self._most:
            self.tally.dropped += 1
            return len(line)
        if self._thread is None or not self._thread.is_alive():
            if self._pid != os.getpid():  # a child after a fork: the queued lines belong to the parent
                self._lines.clear()
                self._pid = os.getpid()
            self._closing, self._news = False, threading.Event()
            self._thread = threading.Thread(target=self._deliver, name="orchestrator log", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        self._lines.append(line)
        if not self._news.is_set():
            self._news.set()
        return len(line)

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all queued lines are written; return False if that takes longer than `timeout` seconds."""
        until = time.monotonic() + timeout
        while (self._lines or not self._idle) and self._thread is not None and self._thread.is_alive():
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK)
        return not self._lines

    def close(self, timeout: float = 5.0) -> None:
        """Write the queued lines and end the thread; after `timeout` seconds drop the rest."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        self._closing = True
        self._news.set()
        thread.join(timeout)
        if thread.is_alive():  # the reader has stopped reading
            self.tally.dropped += len(self._lines)
            self._lines.clear()
        atexit.unregister(self.close)

    def _deliver(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            self._idle = False
            while self._lines:
                batch = [self._lines.popleft() for _ in range(min(len(self._lines), _BATCH))]
                try:
                    if self._follows and self._stream is not sys.stdout:
                        self._stream = sys.stdout
                        self._put = writer_to(self._stream)
                    lines = b"".join(batch)
                    write_rest(self._put, lines, self._put(lines))
                except Exception:  # noqa: BLE001 - a full disk, a closed stream: counted, and later lines are tried
                    self.tally.dropped += len(batch)
            self._idle = True
            if self._closing:
                return


Stream: TypeAlias = IO[str] | IO[bytes] | BoundedWriter
"""Destinations of a log."""


Write: TypeAlias = Callable[[bytes], int | None]
"""Writes bytes to a stream at once; returns the number written, or None if the stream accepts no more."""


def writer_to(stream: Any) -> Write:
    """Return a function that writes bytes to a stream. None, no standard output, discards them. Raises ConfigError.

    An unbuffered file may accept only a part: then `write_rest` writes the rest.
    """
    if stream is None:
        return len
    if not (callable(getattr(stream, "write", None)) and callable(getattr(stream, "flush", None))):
        raise ConfigError(f"stream is {stream!r:.60}; give an open file, as in open('runs.jsonl', 'a')")
    if isinstance(stream, BoundedWriter | io.RawIOBase):
        return stream.write
    binary: Any = stream if isinstance(stream, io.BufferedIOBase) else getattr(stream, "buffer", None)
    flush = stream.flush

    def to_binary(line: bytes) -> int:
        flush()  # earlier output of the host comes first
        binary.write(line)
        flush()
        return len(line)

    def to_text(line: bytes) -> int:
        stream.write(line.decode())
        flush()
        return len(line)

    return to_text if binary is None else to_binary


def write_rest(write: Write, line: bytes, taken: int | None) -> None:
    """Write the rest of a line after the accepted bytes. Raises BlockingIOError if the stream accepts no more."""
    while taken is not None and taken < len(line):
        line = line[taken:]
        taken = write(line)
    if taken is None:
        raise BlockingIOError("the log stream accepts no more")


SCHEMA = "orchestrator.log/1"

KEYS = frozenset(
    """
    ts level msg schema service pid run_id parent_run_id machine seq iteration state from_state fsm_event to_state
    internal committed problems outcome reason hook guard guard_result observed limit state_duration_s run_duration_s
    duration_s queued_s
    model finish_reason tokens tokens_in tokens_out tokens_cached tokens_reasoning cost tool position tool_calls
    result_chars cut operation attempt retry_in_s retries restarts compactions blockers budget_used backend
    journal records error_type error_code error_fingerprint error_text http_status request_id where engine by runs
    agent task_id trace_id span_id overhead_s provider tool_call_id replayed logger stack
    """.split()  # noqa: SIM905 - sixty quoted words are no easier to read
)
"""Every key of a line, as in log_schema.json. Under any other key a line keeps numbers and booleans, and the fields
that the host declared; other values become "[redacted]"."""

_CHAIN_KEYS = KEYS | {"event"}  # structlog's name for the key that the chain writes as `msg`

_TOTALS = ("tokens_in", "tokens_out", "cost", "tool_calls", "retries", "restarts", "compactions", "blockers")

Line: TypeAlias = MutableMapping[str, Any]


def service_name(given: str | None) -> str:
    """Return the name of the service: as given, else OpenTelemetry's OTEL_SERVICE_NAME, else `orchestrator`."""
    return given or os.environ.get("OTEL_SERVICE_NAME") or "orchestrator"


def level_number(level: str) -> int:
    """Return the number of a level name. Raises ConfigError for any other."""
    number = LEVELS.get(level.lower())
    if number is None:
        raise ConfigError(f"unknown log level {level!r}; known: {', '.join(LEVELS)}")
    return number


def build(
    writer: LineWriter | SafeLogger,
    level: int,
    service: str = "orchestrator",
    declared: frozenset[str] = frozenset(),
    rename: Renamer | None = None,
) -> FilteringBoundLogger:
    """Return a logger of JSON lines from `level` up. `declared` are the host's own fields whose text is kept."""
    # Imported late: it loads traceback and colour modules, a sixth of the start of a command without a log.
    import structlog

    wrapped: FilteringBoundLogger = structlog.wrap_logger(
        writer,
        processors=[_complete, partial(_allow, _CHAIN_KEYS | declared), partial(_render, rename)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    # Bound first, so that these keys come first in each line at no cost.
    frame = {"ts": None, "level": None, "msg": None, "schema": SCHEMA, "service": service, "pid": 0}
    return wrapped.bind(**frame)


_SECOND = 1_000_000
_second = (0, b"1970-01-01T00:00:00")


def second(at: float) -> tuple[bytes, int]:
    """Return the whole second of epoch seconds as text in UTC, and the remaining microseconds."""
    global _second  # noqa: PLW0603 - the present second: formatting it costs 2 µs a line
    now = round(at * 1e6)
    begun, text = _second
    micros = now - begun
    if not 0 <= micros < _SECOND:
        whole, micros = divmod(now, _SECOND)
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)).encode()
        _second = (now - micros, text)
    return text, micros


def stamp(at: float) -> str:
    """Return epoch seconds as RFC 3339 in UTC with microseconds.

    Example:
        >>> stamp(1_700_000_000.25)
        '2023-11-14T22:13:20.250000Z'
    """
    return (b"%b.%06dZ" % second(at)).decode()


def verdict_fields(verdict: Any) -> dict[str, Any]:
    """Return the fields of a refusal: guard and numbers, never its words. Empty if it is not a refusal."""
    if getattr(verdict, "ok", None) is not False:
        return {}
    return {
        "guard": str(getattr(verdict, "guard", "guard")),
        "guard_result": "deny",
        "observed": number(getattr(verdict, "observed", None)),
        "limit": number(getattr(verdict, "limit", None)),
    }


def totals(summary: object) -> dict[str, Any]:
    """Return the numbers of a run's summary that a line may have; empty if the summary is not a mapping."""
    if not isinstance(summary, Mapping):
        return {}
    found: dict[str, Any] = {key: value for key in _TOTALS if (value := number(summary.get(key))) is not None}
    used = summary.get("budget_used")
    if isinstance(used, Mapping):
        found["budget_used"] = {str(kind): number(share) for kind, share in used.items()}
    return found


def number(value: object) -> float | None:
    """Return a number unchanged and None for anything else."""
    return value if isinstance(value, (int, float)) else None


def _complete(_logger: object, method: str, line: Line) -> Line:
    line["level"], line["pid"] = method, os.getpid()
    if line.get("ts") is None:  # a host's own line
        line["ts"] = stamp(time.time())
    return line


def _allow(allowed: frozenset[str], _logger: object, _method: str, line: Line) -> Line:
    """Keep the allowed keys, and numbers and booleans under any other one. Unexpected text is never printed."""
    if not line.keys() <= allowed:
        for key in line.keys() - allowed:
            if not isinstance(line[key], bool | int | float | None):
                line[key] = REDACTED
    return line


def _render(rename: Renamer | None, _logger: object, _method: str, line: Line) -> bytes:
    line["msg"] = line.pop("event", "")
    return rendered(line if rename is None else rename(line))


def rendered(line: Mapping[str, Any]) -> bytes:
    """Return a complete line as JSON. For lines whose keys are known to be in the schema."""
    return orjson.dumps(line, default=_opaque, option=orjson.OPT_APPEND_NEWLINE)


def _opaque(value: object) -> str:
    """Replace a value without a JSON form; its text might contain anything."""
    return f"[{type(value).__name__}]"


def _at(level: str) -> Callable[[LineWriter, bytes], None]:
    def write(self: LineWriter, line: bytes) -> None:
        """Write one whole line and pass it to the operating system."""
        if self.follows and self.stream is not sys.stdout:
            self.stream = sys.stdout
            self.write = writer_to(self.stream)
        taken = self.write(line)
        if taken != len(line):
            write_rest(self.write, line, taken)
        self.lines[level] += 1

    return write


class LineWriter:
    """Writes finished lines to a stream, text or binary, and counts them; the innermost logger of the chain."""

    __slots__ = ("follows", "lines", "stream", "tally", "write")

    def __init__(self, stream: Stream | None = None) -> None:
        self.tally = LineCounts()
        self.lines = self.tally.lines
        self.follows = stream is None
        self.stream: Any = stream
        self.write = writer_to(stream)

    debug = _at("debug")
    info = _at("info")
    warning = _at("warning")
    error = _at("error")
    critical = _at("critical")


def _kept(level: str) -> Callable[[SafeLogger, bytes], None]:
    def write(self: SafeLogger, line: bytes) -> None:
        """Write one line, or count it as dropped."""
        try:
            getattr(self.writer, level)(line)
        except Exception:  # noqa: BLE001 - a full disk, a closed stream
            self.writer.tally.dropped += 1

    return write


class SafeLogger:
    """Writes the lines of code inside a run: an error of the log must not fail a tool or a hook.

    Facts do not use it: there the driver counts the exceptions of an observer.
    """

    __slots__ = ("writer",)

    def __init__(self, writer: LineWriter) -> None:
        self.writer = writer

    debug = _kept("debug")
    info = _kept("info")
    warning = _kept("warning")
    error = _kept("error")
    critical = _kept("critical")


_TIME = b'{"ts":"%b.%06dZ",%b,"seq":%d,"iteration":%d,'
_SECONDS = b',"state_duration_s":%b'
_OVERHEAD = b',"overhead_s":%b}\n'
_MOST_EDGES = 1_000
"""Maximum edges with a stored template; the graphs of a process have some hundred."""

Edge: TypeAlias = tuple[str, str, str, str | None]
"""(source, event, dest, guard)"""


class TransitionLines:
    """Writes plain transitions from templates, of at most `most` runs; other transitions from all their `fields`.

    `common` returns the fields that all transitions of a run have, (machine, run id). With `rename` there is no
    template.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        fields: Callable[[Transition], dict[str, Any]],
        common: Callable[[tuple[str, str]], dict[str, Any]],
        most: int,
        rename: Renamer | None = None,
    ) -> None:
        self._write = write
        self._fields = fields
        self._common = common
        self._rename = rename
        self._most = most
        self._runs: dict[tuple[str, str], bytes] = {}
        self._edges: dict[Edge, bytes] = {}

    def write(self, fact: Transition) -> None:
        """Write the line of a transition: the same bytes as its fields rendered as JSON."""
        overhead, seq, iteration = fact.overhead, fact.seq, fact.iteration
        if (
            fact.verdict is not None
            or fact.internal
            or fact.tokens
            or fact.reason
            or overhead is None
            or type(seq) is not int
            or type(iteration) is not int
        ):
            self.write_fields(fact)
            return
        key = (fact.graph, fact.run_id)
        run = self._runs.get(key) or self._run(key)
        edge = (fact.source, fact.event, fact.dest, fact.guard)
        template = self._edges.get(edge) or self._edge(edge)
        text, micros = second(fact.at)
        dwell = orjson.dumps((fact.dwell * 1e6 + WHOLE - WHOLE) / 1e6)  # `micros`, inline
        cost = orjson.dumps((overhead * 1e9 + WHOLE - WHOLE) / 1e9)  # `micros`, inline, but nanoseconds
        self._write(template % (text, micros, run, seq, iteration, dwell, cost))

    def write_fields(self, fact: Transition) -> None:
        """Write the line of a transition from all its fields."""
        fields = self._fields(fact)
        self._write(rendered(fields if self._rename is None else self._rename(fields)))

    def forget(self, key: tuple[str, str]) -> None:
        """Drop the template of a run, (machine, run id)."""
        self._runs.pop(key, None)

    def _run(self, key: tuple[str, str]) -> bytes:
        while len(self._runs) >= self._most:
            del self._runs[next(iter(self._runs))]
        found = self._runs[key] = _inner(self._common(key))
        return found

    def _edge(self, edge: Edge) -> bytes:
        if len(self._edges) >= _MOST_EDGES:
            self._edges.clear()
        source, event, dest, guard = edge
        names = _inner({"from_state": source, "fsm_event": event, "to_state": dest, "outcome": "ok"})
        allowed = b"" if guard is None else b"," + _inner({"guard": guard, "guard_result": "allow"})
        names, allowed = names.replace(b"%", b"%%"), allowed.replace(b"%", b"%%")
        found = self._edges[edge] = _TIME + names + _SECONDS + allowed + _OVERHEAD
        return found


def _inner(fields: dict[str, Any]) -> bytes:
    """Return fields as JSON without the braces."""
    return rendered(fields)[1:-2]


# ---- the open span, for exemplars and log lines, by a callable and without a tracing library ----

Trace: TypeAlias = Callable[[], Mapping[str, str] | None]
"""Returns trace_id (32 hex digits) and span_id (16) of the present span, None if none is sampled."""

_WIDTH = {"trace_id": 32, "span_id": 16}
_HEX = re.compile(r"[0-9a-f]+")


def span_of(trace: Trace) -> dict[str, str] | None:
    """Return trace_id and span_id, or None if they are invalid.

    Other members are dropped: an exemplar over 128 characters would raise after it was counted.
    """
    told = trace()
    if not told:
        return None
    span = {name: str(told.get(name, "")) for name in _WIDTH}
    fits = all(len(value) == _WIDTH[name] and _HEX.fullmatch(value) for name, value in span.items())
    return span if fits else None


_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def fingerprint(error: BaseException) -> str:
    """Return 12 hex digits, equal for errors of one type whose texts differ only in numbers and secrets."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not cost the log line
        text = ""
    return text_fingerprint(type(error).__name__, text)


def text_fingerprint(kind: str, text: str) -> str:
    """Return `fingerprint` of an error of which only class and text are known."""
    text = _NUMBER.sub("0", scrub(text))
    return hashlib.sha256(f"{kind}:{text}".encode(errors="replace")).hexdigest()[:12]


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
            # `micros`, inline, but nanoseconds
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
            **({} if fact.error is None else self._tool_error(fact.error)),
            **self._span(),
        )

    def _tool_error(self, error: ToolError) -> dict[str, Any]:
        return {
            "error_type": error.type,
            "error_fingerprint": text_fingerprint(error.type, error.message),
            **({"where": error.where} if error.where else {}),
            **({"error_text": error.message} if self.error_text else {}),
        }

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
        key = {"tool": "tool", "mcp": "tool", "model": "model"}.get(fact.kind, "hook")
        self._now(fact).warning("work.abandoned", state=fact.state, operation=fact.kind, **{key: fact.name})

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


# ---- the logging of a whole process, for applications: a library never calls this ----

MOST_FRAMES = 10
_LONGEST = 1_000
_OURS = frozenset(("ts", "level", "msg", "schema", "logger", "stack", "event"))
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(
    stream: Stream | None = None,
    *,
    level: str = "info",
    trace: Trace | None = None,
    service: str | None = None,
    fields: Iterable[str] = (),
    names: FieldNames = "orchestrator",
    error_text: bool = False,
) -> TransitionLog:
    """Send all records of the standard library's logging to `stream`, as lines of the schema of the transition log.

    Other handlers of the root logger stay; a second call replaces the first configuration.

    Args:
        stream: A text or binary file, or a BoundedWriter; None is the sys.stdout of each line.
        level: Lowest level of a line.
        trace: Returns trace_id and span_id of the present span, or None.
        service, fields, names, error_text: As for TransitionLog.

    Returns:
        The observer that writes to the same stream.

    Raises:
        ConfigError: The level is unknown.

    Example:
        log = configure_logging(level="warning")
        agent = Agent(llm, observers=[log, Metrics()])
    """
    log = TransitionLog(
        stream,
        level=level,
        trace=trace,
        service=service,
        fields=fields,
        names=names,
        error_text=error_text,
    )
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, LineHandler)]:
        root.removeHandler(handler)
    root.addHandler(LineHandler(log))
    root.setLevel(level_number(level))
    return log


class LineHandler(logging.Handler):
    """Writes records as JSON lines. The text is scrubbed; an error gives type, code, fingerprint and frames.

    Fields of `extra` are kept if the schema has them, and become "[redacted]" otherwise.
    """

    def __init__(self, log: TransitionLog) -> None:
        super().__init__()
        self._logger = log.logger
        self._tallies = log.tallies
        self._error_text = log.error_text

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record. A record that cannot be written is counted as dropped."""
        try:
            getattr(self._logger, level_of(record.levelno))(
                _text(record),
                ts=stamp(record.created),
                logger=record.name,
                **_fields(record, error_text=self._error_text),
            )
        except Exception:  # noqa: BLE001 - logging must not fail its caller
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's name
        """Count the error. The standard message would contain the arguments."""
        for tally in self._tallies[-1:]:
            tally.dropped += 1


def level_of(number: int) -> str:
    """Return the name of the level for one of logging's numbers."""
    for least, name in ((50, "critical"), (40, "error"), (30, "warning"), (20, "info")):
        if number >= least:
            return name
    return "debug"


def _text(record: logging.LogRecord) -> str:
    try:
        return scrub(record.getMessage())[:_LONGEST]
    except Exception:  # noqa: BLE001 - wrong arguments, or unprintable ones
        return f"[a line of {record.name} that cannot be formatted]"


def _fields(record: logging.LogRecord, *, error_text: bool) -> dict[str, Any]:
    extra = {key: value for key, value in vars(record).items() if key not in _STANDARD and key not in _OURS}
    fields = {
        key: scrub(value) if isinstance(value, str) and key in KEYS else value for key, value in extra.items()
    }
    if record.exc_info and record.exc_info[1] is not None:
        fields |= error_fields(record.exc_info[1], text=error_text)
        trace = record.exc_info[2]
        found: list[str] = []
        while trace is not None:
            code = trace.tb_frame.f_code
            found.append(f"{code.co_filename}:{trace.tb_lineno} {code.co_qualname}")
            trace = trace.tb_next
        fields["stack"] = found[-MOST_FRAMES:]
    return fields
