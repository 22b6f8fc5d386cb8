"""Values as they were: cheap to compare with what they are now, and plain enough to be written.

Nothing is copied while nothing has changed: of a dataclass its fields are read at once and compared with those of the
copy, which is one pass in C.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import orjson

from orchestrator.journal.codec import plain

_IMMUTABLE = (int, str, float, bool, type(None), Enum, tuple, frozenset)
"""Classes whose values stay what they are; what is in a tuple is taken to be of such, too."""


class Window(tuple[Any, ...]):
    """The items of a deque as they were."""

    __slots__ = ()


def taken(value: Any) -> tuple[Any, Any]:
    """Return a copy of a value in JSON's types (immutable ones are in it as they are), and what to compare it by."""
    kind: Any = type(value)
    way = _way(kind)
    copy = way.copy(value)
    return copy, tuple(copy.values()) if way.of_fields else copy


def shows(seen: Any, value: Any) -> bool:
    """Tell whether a value is as it was seen. False may be wrong where a changeable one is inside another."""
    kind: Any = type(value)
    same: bool = _way(kind).view(value) == seen
    return same


def lasting_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass whose values nobody can change in place, by their types."""
    return frozenset(name for name, hint in _hints(kind).items() if _lasts(hint))


def getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what reads so many attributes at once."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


class _Way(NamedTuple):
    """How values of one class are looked at and copied."""

    view: Callable[[Any], Any]
    copy: Callable[[Any], Any]
    of_fields: bool = False


def _copied(value: Any) -> Any:
    kind: Any = type(value)
    return _way(kind).copy(value)


@functools.cache
def _way(kind: Any) -> _Way:
    if _never_changes(kind):
        return _Way(_itself, _itself)
    if issubclass(kind, dict):
        return _Way(_itself, lambda value: {name: _copied(one) for name, one in value.items()})
    if issubclass(kind, list):
        return _Way(_itself, lambda value: [_copied(one) for one in value])
    if issubclass(kind, deque):
        return _Way(tuple, Window)
    if is_dataclass(kind):
        return _way_of_fields(kind)
    return _Way(_reread, _reread)  # somebody's own


def _way_of_fields(kind: Any) -> _Way:
    names = [one.name for one in fields(kind) if not one.name.startswith("_")]  # what orjson writes of it
    view, lasting, flat = getter(names), lasting_fields(kind), _flat_fields(kind)
    deep = [(name, name in flat) for name in names if name not in lasting]

    def copy(value: Any) -> dict[str, Any]:
        copied = dict(zip(names, view(value), strict=True))
        for name, is_flat in deep:
            one = copied[name]
            copied[name] = one.copy() if is_flat and type(one) is dict else _copied(one)
        return copied

    return _Way(view, copy, of_fields=True)


def _flat_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass that hold a dict of values which nobody can change in place."""
    return frozenset(
        name
        for name, hint in _hints(kind).items()
        if get_origin(hint) is dict and all(map(_lasts, get_args(hint)))
    )


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError:  # it names what only type checkers import
        return {}


def _itself(value: Any) -> Any:
    return value


def _reread(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, default=plain))


def _lasts(hint: Any) -> bool:
    parts = get_args(hint)
    if isinstance(hint, UnionType) or get_origin(hint) in (Union, tuple):
        return all(part is ... or _lasts(part) for part in parts)
    return get_origin(hint) is Literal or (isinstance(hint, type) and not parts and _never_changes(hint))


def _never_changes(kind: Any) -> bool:
    params: Any = getattr(kind, "__dataclass_params__", None)
    return issubclass(kind, _IMMUTABLE) or (params is not None and bool(params.frozen))
