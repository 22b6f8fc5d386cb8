"""The option `check_purity`: a guard that changes its context raises GraphError, which names guard and field.

Off by default, because each guard then costs two scans of the whole context. The pytest plugin enables it with the
environment variable CHECK_PURITY, and `check_purity=True` enables it for one machine. The scan covers lists, deques,
dicts, sets, dataclasses and the attributes of the context itself; frozen objects and objects of other types are
compared by identity. `orchestrator.testing.check_guard` also finds clocks, files and random numbers.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple

from orchestrator.errors import GraphError
from orchestrator.kernel.graph import Guard, guard_name

CHECK_PURITY = "ORCHESTRATOR_CHECK_PURITY"
"""Environment variable for the default of the option: on, except for "", 0, false, no and off."""

_OFF = frozenset(("", "0", "false", "no", "off"))
_IMMUTABLE = (int, str, float, bool, bytes, type(None), Enum, tuple, frozenset)


def checks_purity(option: bool | None) -> bool:  # noqa: FBT001 - the option itself
    """Return whether guards are checked, by the option or else by the environment."""
    return os.environ.get(CHECK_PURITY, "").lower() not in _OFF if option is None else option


def pure_guard(guard: Guard, graph: str) -> Guard:
    """Return a guard that raises GraphError if it changes its context. `graph` is a name."""

    @functools.wraps(guard)
    def checked(*given: Any) -> Any:
        before = _view(given[-1], whole=True)
        answer = guard(*given)
        change = next(_changes("context", before, _view(given[-1], whole=True)), None)
        if change is not None:
            problem = f"guard {guard_name(guard)} changed {change}; a guard only reads; do that in a hook"
            raise GraphError(graph, [problem])
        return answer

    return checked


class _Parts(NamedTuple):
    """A value that can change in place: its parts by name."""

    kind: type
    parts: Mapping[Any, Any]
    form: str
    """Format of a part's name: `.{}` or `[{!r}]`."""


def _view(value: Any, *, whole: bool = False) -> Any:
    """Return a comparable view of a value: the value itself if it is immutable or not scanned."""
    kind: Any = type(value)
    if _lasts(kind):
        return value
    if isinstance(value, AbstractSet):
        return kind, frozenset(value)
    if isinstance(value, list | deque) and all(map(_lasts, set(map(type, value)))):
        return kind, tuple(value)
    parts, form = _parts(value, whole)
    return value if parts is None else _Parts(kind, {name: _view(one) for name, one in parts}, form)


def _parts(value: Any, whole: bool) -> tuple[Iterable[tuple[Any, Any]] | None, str]:  # noqa: FBT001
    """Return the parts of a value with their names, and the format of names; None if the value is not scanned."""
    if isinstance(value, list | deque):
        return enumerate(value), "[{!r}]"
    if isinstance(value, dict):
        return value.items(), "[{!r}]"
    if is_dataclass(value):
        return [(item.name, getattr(value, item.name, None)) for item in fields(value)], ".{}"
    return (vars(value).items() if whole and hasattr(value, "__dict__") else None), ".{}"


@functools.cache
def _lasts(kind: Any) -> bool:
    """Return whether values of a class are immutable."""
    params = getattr(kind, "__dataclass_params__", None)
    return issubclass(kind, _IMMUTABLE) or (params is not None and bool(params.frozen))


def is_immutable(value: object) -> bool:
    """Return whether nothing can change a value: it is a plain one, or has only such parts.

    Example:
        >>> is_immutable((1, "a")), is_immutable(([],))
        (True, False)
    """
    kind: Any = type(value)
    if not _lasts(kind):
        return False
    if isinstance(value, tuple | frozenset) and not all(map(is_immutable, value)):
        return False
    if is_dataclass(value):
        return all(is_immutable(getattr(value, item.name, None)) for item in fields(value))
    return isinstance(value, Enum) or not getattr(value, "__dict__", None)


def _changes(path: str, before: Any, after: Any) -> Iterator[str]:
    """Yield each change as text: the path, the old and the new value."""
    if before is after:
        return
    if isinstance(before, _Parts) and isinstance(after, _Parts) and before.kind is after.kind:
        for name in {**before.parts, **after.parts}:
            here = path + before.form.format(name)
            yield from _changes(here, before.parts.get(name, _NOTHING), after.parts.get(name, _NOTHING))
    elif not _same(before, after):
        yield f"{path} from {_shown(before)} to {_shown(after)}"


def _same(before: Any, after: Any) -> bool:
    """Return whether two views are equal; objects of other types are equal only to themselves."""
    kind: Any = type(before)
    after_kind: Any = type(after)
    if kind is not after_kind or not _lasts(kind):
        return False
    return bool(before == after) or before != before  # noqa: PLR0124 - NaN


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()
_LONGEST = 60


def _shown(view: Any) -> str:
    if isinstance(view, _Parts):
        return f"{view.kind.__name__} of {len(view.parts)}"
    if type(view) is tuple and view and isinstance(view[0], type):
        return f"{view[0].__name__} of {len(view[1])}"
    text = repr(view)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
