"""The HTTP status of an error, in one place for every service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from orchestrator.errors import (
    ConfigError,
    Corrupt,
    JournalError,
    NotAdmitting,
    Overloaded,
    RunError,
    RunExists,
    RunUnknown,
)

_STATUS: Final[Mapping[type[Exception], int]] = {
    RunUnknown: 404,
    RunExists: 409,
    Overloaded: 503,
    NotAdmitting: 503,
    Corrupt: 500,
    JournalError: 503,
    RunError: 409,
    ConfigError: 422,
}
"""Class of an error -> status; the first one that fits."""


def status_of(error: Exception) -> int:
    """Return the status for an error of a request: 500 if it is none of ours.

    A run id that is in use is 409, so that a client that repeats a request after a lost answer knows that the run is
    stored. 503 is worth another attempt.

    Example:
        >>> from orchestrator.errors import RunExists
        >>> status_of(RunExists("monday"))
        409
    """
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
