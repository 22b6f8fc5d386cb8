"""Snapshots of values: cheap to compare with the present value, and plain enough to be written.

Nothing is copied while nothing has changed. The fields of a dataclass are read at once and compared with those of the
copy, in one pass in C.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from types import UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import orjson

from orchestrator.journal.codec import plain

_IMMUTABLE = (int, str, float, bool, type(None), Enum, tuple, frozenset)
"""Classes whose values never change; the items of a tuple are assumed to be immutable too."""


class DequeSnapshot(tuple[Any, ...]):
    """The items of a deque at the time of the snapshot."""

    __slots__ = ()


def taken(value: Any) -> tuple[Any, Any]:
    """Return a copy of a value in JSON's types (immutable values are shared), and a value to compare it by."""
    view, kept, written = WAYS[type(value)]
    seen = kept(view(value))
    return written(seen), seen


def lasting_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass whose values cannot be changed in place, by their types."""
    return frozenset(name for name, hint in _hints(kind).items() if _lasts(hint))


def getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads these attributes at once."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


Step: TypeAlias = Callable[[Any], Any]
Way: TypeAlias = tuple[Step, Step, Step]
"""How values of one class are viewed and copied, in three steps. Most comparisons end with the first.

- The view: value -> a form to compare with the last one. It may share mutable parts with the value.
- The last view: view -> the same without such parts.
- The copy: last view -> JSON's types.
"""


class _Ways(dict[Any, Way]):
    """Class -> the steps for its values. A cached function costs more than the comparison of an unchanged value."""

    def __missing__(self, kind: Any) -> Way:
        self[kind] = way = _way(kind)
        return way


WAYS: Mapping[Any, Way] = _Ways()


def _copied(value: Any) -> Any:
    view, kept, written = WAYS[type(value)]
    return written(kept(view(value)))


def _way(kind: Any) -> Way:
    if _never_changes(kind):
        return _itself, _itself, _itself
    if issubclass(kind, dict):
        return _itself, lambda value: {name: _copied(one) for name, one in value.items()}, _itself
    if issubclass(kind, list):
        return _itself, lambda value: [_copied(one) for one in value], _itself
    if issubclass(kind, deque):
        return tuple, DequeSnapshot, _itself
    if is_dataclass(kind):
        return _way_of_fields(kind)
    return _reread, _itself, _itself  # a class of the host


def _way_of_fields(kind: Any) -> Way:
    """Return the steps of a dataclass: by the dict of an instance if it has one, at a third of the cost of slots."""
    # the fields that orjson writes
    names = [one.name for one in fields(kind) if not one.name.startswith("_")]
    lasting, flat = lasting_fields(kind), _flat_fields(kind)
    deep = [(name, name in flat) for name in names if name not in lasting]
    if kind.__dictoffset__ and kind.__dataclass_params__.init and all(one.init for one in fields(kind)):

        def of_dict(view: dict[str, Any]) -> Any:
            # else there is an attribute that is not a field, or a private one
            as_declared = list(view) == names
            return _detached(view.copy() if as_declared else {name: view[name] for name in names}, deep)

        return attrgetter("__dict__"), of_dict, _itself
    places = [(names.index(name), is_flat) for name, is_flat in deep]

    def of_slots(view: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_detached(list(view), places))

    def written(seen: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(names, seen, strict=True))

    return getter(names), of_slots if deep else _itself, written


def _detached(parts: Any, deep: Iterable[tuple[Any, bool]]) -> Any:
    """Copy the parts that can be changed in place: a dict of immutable values, or any other value."""
    for at, is_flat in deep:
        one = parts[at]
        if one is not None:
            parts[at] = one.copy() if is_flat and type(one) is dict else _copied(one)
    return parts


def _flat_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass that hold a dict of immutable values."""
    return frozenset(
        name
        for name, hint in _hints(kind).items()
        if get_origin(hint) is dict and all(map(_lasts, get_args(hint)))
    )


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError:  # it names a type that only type checkers import
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
