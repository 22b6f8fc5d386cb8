"""Configure logging for a whole process. For applications: a library never calls this."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from orchestrator.kernel.redaction import scrub
from orchestrator.telemetry.line import KEYS, FieldNames, Stream, level_number, stamp
from orchestrator.telemetry.log import TransitionLog, error_fields
from orchestrator.telemetry.span import Trace

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
