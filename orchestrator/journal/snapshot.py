"""Snapshots of values: cheap to compare with the present value, and plain enough to be written.

Nothing is copied while nothing has changed. The fields of a dataclass are read at once and compared with those of the
copy, in one pass in C.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import orjson

from orchestrator.journal.codec import plain

_IMMUTABLE = (int, str, float, bool, type(None), Enum, tuple, frozenset)
"""Classes whose values never change; the items of a tuple are assumed to be immutable too."""


_KINDS = 256
"""Dataclasses whose type hints are kept: evaluating them takes half of the time in which an agent is made."""


class DequeSnapshot(tuple[Any, ...]):
    """The items of a deque at the time of the snapshot."""

    __slots__ = ()


def taken(value: Any) -> tuple[Any, Any]:
    """Return a copy of a value in JSON's types (immutable values are shared), and its snapshot."""
    snapshot, written = WAYS[type(value)]
    seen = snapshot(value)
    return written(seen), seen


def lasting_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass whose values cannot be changed in place, by their types."""
    return _lasting_fields(kind)  # apart, because mypy takes a dataclass for unhashable


@lru_cache(_KINDS)
def _lasting_fields(kind: Any) -> frozenset[str]:
    return frozenset(name for name, hint in _hints(kind).items() if _lasts(hint))


def getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads these attributes at once."""
    if not names:
        return lambda _: ()
    read = attrgetter(*names)
    return read if len(names) > 1 else lambda value: (read(value),)


def views(kind: Any, names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads fields of a dataclass, each comparable with its snapshot at a small cost.

    Of a field that is itself a dataclass whose instances have a dict, it reads that dict.
    """
    wholes, hints = getter(names), _hints(kind)
    inside = getter([f"{name}.__dict__" if _has_dict(hints.get(name)) else name for name in names])

    def view(value: Any) -> tuple[Any, ...]:
        try:
            return inside(value)
        except AttributeError:  # a value of another class
            return wholes(value)

    return view


Step: TypeAlias = Callable[[Any], Any]
FieldPart: TypeAlias = tuple[str, str, Step | None, Step | None]
"""One part of a field that is a dataclass, as a plain tuple, which is faster to unpack than a named one.

- Its name, and its path in records: `spent.seconds`.
- A function that copies a value that can be changed in place; None if none can.
- A function that returns the short form of a value for records; None if there is none.
"""


class FieldParts(NamedTuple):
    """The parts of a field, in the order of the dataclass."""

    names: list[str]
    parts: list[FieldPart]


def parts_of(kind: Any, names: Sequence[str]) -> list[FieldParts | None]:
    """Return for each field of a dataclass its parts; None for a field that is written as a whole.

    Only a field that is itself a dataclass whose instances have a dict has parts.
    """
    hints = _hints(kind)
    return [_parts(name, hints[name]) if _has_dict(hints.get(name)) else None for name in names]


def _parts(name: str, kind: Any) -> FieldParts:
    hints, lasting, flat = _hints(kind), lasting_fields(kind), _flat_fields(kind)
    names = [one.name for one in fields(kind)]

    def copier(part: str) -> Callable[[Any], Any] | None:
        if part in lasting:
            return None
        return _copied_flat if part in flat else _copied

    return FieldParts(
        names,
        [(one, f"{name}.{one}", copier(one), getattr(hints.get(one), "short", None)) for one in names],
    )


def _copied_flat(value: Any) -> Any:
    return value.copy() if type(value) is dict else _copied(value)


Way: TypeAlias = tuple[Step, Step]
"""How values of one class are copied, in two steps.

- The snapshot: value -> a form to compare the value with later. It shares no mutable part with the value.
- The written form: snapshot -> JSON's types.
"""


class _Ways(dict[Any, Way]):
    """Class -> the steps for its values. A cached function would cost more than the comparison with a snapshot."""

    def __missing__(self, kind: Any) -> Way:
        self[kind] = way = _way(kind)
        return way


WAYS: Mapping[Any, Way] = _Ways()


def _copied(value: Any) -> Any:
    snapshot, written = WAYS[type(value)]
    return written(snapshot(value))


def _way(kind: Any) -> Way:
    if _never_changes(kind):
        return _itself, _itself
    if issubclass(kind, dict):
        return lambda value: {name: _copied(one) for name, one in value.items()}, _itself
    if issubclass(kind, list):
        return lambda value: [_copied(one) for one in value], _itself
    if issubclass(kind, deque):
        return DequeSnapshot, _itself
    if is_dataclass(kind):
        return _way_of_fields(kind)
    return _reread, _itself  # a host's own class


def _has_dict(kind: Any) -> bool:
    """Return whether instances of a dataclass have a dict of their fields, which costs a third of slots to copy."""
    params = getattr(kind, "__dataclass_params__", None)
    return bool(params and kind.__dictoffset__ and params.init and all(one.init for one in fields(kind)))


def _way_of_fields(kind: Any) -> Way:
    names = [one.name for one in fields(kind) if not one.name.startswith("_")]  # as orjson does
    lasting, flat = lasting_fields(kind), _flat_fields(kind)
    deep = [(name, name in flat) for name in names if name not in lasting]
    if _has_dict(kind):

        def of_dict(value: Any) -> dict[str, Any]:
            view = value.__dict__
            as_declared = [*view] == names  # else there is a private attribute, or one that is not a field
            parts = view.copy() if as_declared else {name: view[name] for name in names}
            _detach(parts, deep)
            return parts

        return of_dict, _itself
    places = [(names.index(name), is_flat) for name, is_flat in deep]
    view_of = getter(names)

    def of_slots(value: Any) -> tuple[Any, ...]:
        parts = list(view_of(value))
        _detach(parts, places)
        return tuple(parts)

    def written(seen: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(names, seen, strict=True))

    return of_slots, written


def _detach(parts: Any, deep: Iterable[tuple[Any, bool]]) -> None:
    """Copy the parts that can be changed in place: a dict of immutable values, or any other value."""
    for at, is_flat in deep:
        one = parts[at]
        if one is not None:
            parts[at] = one.copy() if is_flat and type(one) is dict else _copied(one)


@lru_cache(_KINDS)
def _flat_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass that hold a dict of immutable values."""
    return frozenset(
        name
        for name, hint in _hints(kind).items()
        if get_origin(hint) is dict and all(map(_lasts, get_args(hint)))
    )


@lru_cache(_KINDS)
def _hints(kind: Any) -> Mapping[str, Any]:
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
