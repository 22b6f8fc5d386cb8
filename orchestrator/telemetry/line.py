"""Build and write one JSON line with allowed keys only: names of fields, streams, counts and templates.

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
import io
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

import orjson

from orchestrator.errors import ConfigError
from orchestrator.kernel.clock import WHOLE
from orchestrator.kernel.fact import Transition
from orchestrator.kernel.redaction import REDACTED

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


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
        # Rounded as `micros` does, without the call.
        dwell = orjson.dumps((fact.dwell * 1e6 + WHOLE - WHOLE) / 1e6)
        cost = orjson.dumps((overhead * 1e9 + WHOLE - WHOLE) / 1e9)
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
