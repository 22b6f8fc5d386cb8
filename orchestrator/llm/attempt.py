"""Attempts of requests as a journal keeps them: start, duration, kind of the error, wait, model. No texts.

A row is `[start, seconds, kind, wait, model]` without empty values at its end, so `[start, seconds]` is an attempt that
succeeded. `start` is epoch seconds; `kind` is "" for an answer, else `cancelled` or one of `errors.ERROR_KINDS`; `wait`
is the seconds until the next attempt; `model` is the configured name, if there are several.
"""

from __future__ import annotations

from typing import Any, Final

from orchestrator.kernel.clock import WHOLE, micros
from orchestrator.llm.port import Clock

ATTEMPTS: Final = "attempts"
"""Member of a record that has the rows of the attempts that led to it."""


def attempt_row(
    clock: Clock, seconds: float, kind: str = "", wait: float = 0.0, model: str | None = None
) -> tuple[Any, ...]:
    """Return the row of an attempt that ends now, after so many seconds. The kind `ok` counts as none."""
    kind = "" if kind == "ok" else kind
    start = ((clock.time() - seconds) * 1e6 + WHOLE - WHOLE) / 1e6  # `micros`, inline
    seconds = (seconds * 1e6 + WHOLE - WHOLE) / 1e6  # `micros`, inline
    if model:
        return start, seconds, kind, micros(wait), model
    if wait:
        return start, seconds, kind, micros(wait)
    return (start, seconds, kind) if kind else (start, seconds)
