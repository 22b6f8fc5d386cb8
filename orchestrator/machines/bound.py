"""What the limits of all machines have in common: they are given by name, and a number of them is 0 (off) or more."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from orchestrator.errors import ConfigError

T = TypeVar("T")

_MOST = 2**63 - 1
"""The greatest number that every journal keeps; JSON has no infinity."""


def by_name(kind: type[T]) -> type[T]:
    """Let a class refuse values without a name, and names that it has no field for, in a sentence."""
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    made: Callable[..., None] = kind.__init__

    @functools.wraps(made)
    def init(self: T, *unnamed: Any, **given: Any) -> None:
        if unnamed:
            raise ConfigError(f"limits are given by name, as {kind.__name__}({known[0]}={unnamed[0]!r})")
        for name in given.keys() - set(known):
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise ConfigError(f"there is no limit {name!r}; {hint}")
        made(self, **given)

    kind.__init__ = init  # type: ignore[assignment,method-assign]
    return kind


ON_UNKNOWN_COST = ("stop", "ignore")
"""What a limit on cost does where the cost of an answer is unknown: end the run, or count the answer as 0."""


def unknown_word(name: str, value: object, words: Sequence[str]) -> str | None:
    """Say what is wrong with a setting that is one of a few words, or None."""
    return None if value in words else f"{name} is {value!r}; it must be one of: {', '.join(words)}"


def out_of_range(name: str, value: object, *, whole: bool) -> str | None:
    """Say what is wrong with a limit, or None. What a journal could not keep is no limit: no run of it could go on."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return f"{name} is {value!r}; it must be a {'whole ' if whole else ''}number"
    if not value >= 0:  # `not >=` because NaN is nowhere
        return f"{name} is {value}; it must be 0 (off) or more"
    if value > _MOST:
        return f"{name} is more than a journal can keep; it must be 0 (off) or at most {_MOST}"
    return None
