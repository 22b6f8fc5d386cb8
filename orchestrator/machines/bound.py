"""Common checks of all limits: they are given by name, and each number is 0 (off) or more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from orchestrator.argument_names import refuse_unknown
from orchestrator.errors import ConfigError

T = TypeVar("T")

_MOST = 2**63 - 1
"""The greatest number that every journal can store; JSON has no infinity."""


def by_name(kind: type[T]) -> type[T]:
    """Make a limits class reject positional values and unknown names with a clear message."""
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    made: Callable[..., None] = kind.__init__

    @functools.wraps(made)
    def init(self: T, *unnamed: Any, **given: Any) -> None:
        if unnamed:
            raise ConfigError(f"give limits by name, as {kind.__name__}({known[0]}={unnamed[0]!r})")
        refuse_unknown("unknown limit", given, known)
        made(self, **given)

    kind.__init__ = init  # type: ignore[assignment,method-assign]
    return kind


ON_UNKNOWN_COST = ("stop", "ignore")
"""Handling of an answer of unknown cost by a cost limit: end the run, or count the answer as 0."""


ON_TRUNCATED = ("accept", "retry")
"""Handling of free text that the output limit cut: end the run with it, or ask for a shorter answer."""


ON_TOOL_ERROR = ("return", "raise_bugs", "raise")
"""Handling of an exception of a tool: the model reads it; it also ends the run if it is a bug; it always does."""


def unknown_word(name: str, value: object, words: Sequence[str]) -> str | None:
    """Return an error text if a setting is not one of the allowed words, else None."""
    return None if value in words else f"{name} is {value!r}; it must be one of: {', '.join(words)}"


def out_of_range(name: str, value: object, *, whole: bool) -> str | None:
    """Return an error text for an invalid limit, else None.

    A limit that a journal cannot store would block a resume.
    """
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return f"{name} is {value!r}; it must be a {'whole ' if whole else ''}number"
    if not value >= 0:  # `not >=` because NaN compares as false
        return f"{name} is {value}; it must be 0 (off) or more"
    if value > _MOST:
        return f"{name} is more than a journal can keep; it must be 0 (off) or at most {_MOST}"
    return None
