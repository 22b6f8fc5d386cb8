"""Give code deep inside a run access to the run's config and logger without arguments.

Only the facades of runtime/ set them, through a context variable: tasks and threads of a run inherit it, another run
in the same process never sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol, Self


class Logger(Protocol):
    """The used interface of a run's logger; structlog's bound loggers have it."""

    def debug(self, event: str, /, *args: object, **fields: object) -> object: ...

    def info(self, event: str, /, *args: object, **fields: object) -> object: ...

    def warning(self, event: str, /, *args: object, **fields: object) -> object: ...

    def error(self, event: str, /, *args: object, **fields: object) -> object: ...


class SilentLogger:
    """The logger of a run without a log."""

    __slots__ = ()

    def debug(self, event: str, /, *args: object, **fields: object) -> None:
        """Drop the line."""

    info = warning = error = debug


_CURRENT: ContextVar[scope] = ContextVar("orchestrator_scope")
_SILENT = SilentLogger()


class scope:  # noqa: N801 - used as a function: `with scope(config, logger):`
    """Set `config` and `logger` for the code inside the `with` block. A logger of None is silent.

    `make_logger` returns the logger when it is asked for first: most runs write no line of their own.
    """

    __slots__ = ("_logger", "_make_logger", "_token", "config")

    def __init__(
        self,
        config: object,
        logger: Logger | None = None,
        *,
        make_logger: Callable[[], Logger] | None = None,
    ) -> None:
        self.config: Any = config
        self._logger, self._make_logger = logger, make_logger
        self._token: Token[scope] | None = None

    @property
    def logger(self) -> Logger:
        """The logger of the run."""
        if self._logger is None:
            self._logger = self._make_logger() if self._make_logger else _SILENT
        return self._logger

    def __enter__(self) -> Self:
        self._token = _CURRENT.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is None:
            return
        # An abandoned async generator is closed in another context, without these values.
        with suppress(ValueError):
            _CURRENT.reset(self._token)
        self._token = None


def config_from_context() -> Any:
    """Return the config of the current run. Raises LookupError outside a run.

    Example:
        >>> with scope({"retries": 2}):
        ...     config_from_context()["retries"]
        2
    """
    return _current("config_from_context").config


def logger_from_context() -> Logger:
    """Return the logger of the current run, with run_id, machine and agent bound. Raises LookupError outside a run.

    Under keys that are not in the log schema, numbers, booleans and the fields declared with `TransitionLog(fields=…)`
    are kept; other values become "[redacted]". A logger of the host receives everything.

    Example:
        logger_from_context().info("search.done", result_chars=120)
    """
    return _current("logger_from_context").logger


def _current(function: str) -> scope:
    try:
        return _CURRENT.get()
    except LookupError:
        raise LookupError(
            f"{function}() works inside a run only: in its hooks, tools and model calls"
        ) from None
