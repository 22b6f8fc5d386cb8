"""Write lines with a logger of the host: one of structlog or of the standard library.

Every line has all keys of the schema as its own, `ts`, `level` and `msg` included, so that queries hold under any key
that the host's chain gives to the event. The message of a record of the standard library is a mapping, which prints
as the JSON line: a plain formatter writes the line itself, and JSON formatters (python-json-logger, ecs-logging,
OpenTelemetry's handler) merge its keys. A chain of structlog that ends in the arguments of such a record
(`render_to_log_kwargs`) gets the same mapping, because a record refuses an extra field named `msg`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias

from orchestrator.telemetry.field_name import Renamer
from orchestrator.telemetry.line import LEVELS, rendered, stamp

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
