"""A picture of plain data that later shows whether any part of it has changed, and which one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from types import ModuleType
from typing import Any, TypeAlias

Picture: TypeAlias = dict[tuple[int, ...], tuple[str, object]]
"""Position in the data -> (readable path, value). Pictures of equal data are equal."""

_LONGEST = 80
_ATOMS = (str, bytes, int, complex, type(None), Enum)
_WHOLE = (*_ATOMS, float, bytearray, AbstractSet, ModuleType)

Parts: TypeAlias = list[tuple[str, object]]
"""(step of the path, value)."""


class _Opaque:
    """A value without visible parts: equal to itself, or to an equal value whose type has a hash of its own."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Opaque):
            return NotImplemented
        mine, its = self.value, other.value
        return mine is its or (type(mine) is type(its) and _is_value(mine) and mine == its)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.value)


def picture(value: object, name: str = "ctx") -> Picture:
    """Return a picture of dataclasses, objects, lists, tuples, deques, dicts and sets, each object once."""
    found: Picture = {}
    # keeps the objects alive, or an id could occur twice
    seen: dict[int, tuple[tuple[int, ...], object]] = {}
    ahead: list[tuple[tuple[int, ...], str, object]] = [((), name, value)]
    while ahead:
        place, label, one = ahead.pop()
        leaf, parts = _look(one)
        if parts is not None and not isinstance(one, tuple):
            if id(one) in seen:  # shared, or a cycle
                found[place] = (label, ("as at", seen[id(one)][0]))
                continue
            seen[id(one)] = (place, one)
        found[place] = (label, leaf)
        ahead += [((*place, number), label + step, part) for number, (step, part) in enumerate(parts or ())]
    return found


def difference(before: Picture, after: Picture) -> str | None:
    """Return the first difference of two pictures in words; None if they are equal."""
    for place in sorted({*before, *after}):
        old, new = before.get(place), after.get(place)
        if old != new:
            label = (old or new or ("", ""))[0]
            return f"{label}: {_said(old)} became {_said(new)}"
    return None


def _look(value: object) -> tuple[object, Parts | None]:
    """Return a form of the value itself, and its named parts; None for a value without parts."""
    kind = type(value).__name__
    if isinstance(value, Mapping):
        keys = tuple(value)
        return (kind, keys), [(f"[{key!r}]", value[key]) for key in keys]
    if isinstance(value, list | tuple | deque):
        names = getattr(value, "_fields", None)  # a named tuple
        steps = [f".{name}" for name in names] if names else [f"[{number}]" for number in range(len(value))]
        return f"{kind} of {len(value)}", list(zip(steps, value, strict=True))
    parts = _attributes(value)
    if parts is None:
        return _whole(value, kind), None
    return (kind, tuple(step for step, _ in parts)), parts


def _whole(value: object, kind: str) -> object:
    if isinstance(value, _ATOMS):
        return (kind, value)
    if isinstance(value, float):
        return (kind, repr(value))  # a NaN equals itself here
    if isinstance(value, bytearray):
        return (kind, bytes(value))
    return (kind, frozenset(value)) if isinstance(value, AbstractSet) else _Opaque(value)


def _attributes(value: object) -> Parts | None:
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{item.name}", getattr(value, item.name, None)) for item in fields(value)]
    if isinstance(value, _WHOLE) or callable(value) or _is_value(value):
        return None
    kind = type(value)
    parts = [(f".{name}", getattr(value, name)) for name in _slots(kind) if hasattr(value, name)]
    own = getattr(value, "__dict__", None)
    for name, part in (own or {}).items():
        if not isinstance(getattr(kind, name, None), cached_property):  # filling a cache changes nothing
            parts.append((f".{name}", part))
    return None if own is None and not parts else parts


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots: Any = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in {"__dict__", "__weakref__"}:
                private = name.startswith("__") and not name.endswith("__")
                yield f"_{base.__name__.lstrip('_')}{name}" if private else name


def _is_value(value: object) -> bool:
    """Return whether a type compares and hashes by value, as Path and Decimal do: such values do not change."""
    kind = type(value)
    return kind.__eq__ is not object.__eq__ and kind.__hash__ not in {None, object.__hash__}


def _said(leaf: tuple[str, object] | None) -> str:
    """Describe a leaf in a few words."""
    if leaf is None:
        return "nothing"
    standing = leaf[1]
    text = repr(standing[1]) if isinstance(standing, tuple) else str(standing)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
