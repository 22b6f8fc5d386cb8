"""Build and write one JSON line with allowed keys only.

It uses structlog without its global configuration. Each step of the chain is the cheapest correct one: structlog's
own add_log_level, EventRenamer, JSONRenderer and BytesLogger cost about 2 µs more per line, and the lock table of
BytesLogger keeps every stream alive for ever. A line is one write and a flush, so a killed process loses none.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from orchestrator.errors import ConfigError
from orchestrator.kernel.redaction import REDACTED
from orchestrator.telemetry.field_name import Renamer
from orchestrator.telemetry.sink import Stream, write_rest, writer_to
from orchestrator.telemetry.tally import LineCounts

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

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

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

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
