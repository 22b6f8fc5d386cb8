"""Encode a run's context as records: complete in `created`, then only the changes of each transition.

Nothing is copied while nothing has changed. The fields of a dataclass are read at once and compared with those of the
copy, in one pass in C.

Growing values are written once. For messages, a record has the new ones, and the number of first messages that were
kept if a restart, a compaction or a retry removed some. For a window (a deque, or one of `windows`) it has the new
items and the number of last items that were kept. Of a field that is a dataclass whose instances have a dict, the
changed parts are written under their paths (`spent.seconds`). Every other field is written again when it changes, so a
host's hook may change any field. The comparison uses a copy, which is then written: a JSON text of each field at each
append took three times as long.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from itertools import compress
from operator import attrgetter, is_not
from types import UnionType
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson
from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import Corrupt
from orchestrator.journal.codec import plain
from orchestrator.kernel.run import Run

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


C = TypeVar("C")


@dataclass(slots=True)
class _Saved:
    """The content of the journal: the list of messages at that time, its length, and each other field."""

    items: list[Any]
    count: int
    last: Any
    """The last of these messages: another one in its place shows that a message was inserted."""
    lasting: tuple[Any, ...]
    """The values of the fields whose values cannot change in place."""
    seen: list[Any]
    """The snapshot of each other field."""


class ContextCodec(Generic[C]):
    """A `kernel.writer.Codec` for contexts of one dataclass.

    Args:
        kind: The dataclass.
        growing: Name of the field with the list of messages, if there is one.
        item: Makes one of these messages plain.
        windows: Tuples that grow at their end and shrink at their start; they are written as a deque is.
        apart: Fields that are not written, because they follow from others or from other records.
        output: Returns the part of the `ended` record about the result.
        about: Returns further plain data for the `created` record.
    """

    def __init__(
        self,
        kind: type[C],
        *,
        growing: str | None = None,
        item: Callable[[C, list[Any]], list[Any]] = lambda _, items: items,
        windows: Collection[str] = (),
        apart: Collection[str] = (),
        output: Callable[[C], Mapping[str, Any]] = lambda _: {},
        about: Callable[[C], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        self._kind = kind
        self._growing = growing
        self._windows = frozenset(windows)
        self._item = item
        self._output = output
        self._about = about
        self._names = [one.name for one in fields(kind) if one.name not in {growing, *apart}]  # type: ignore[arg-type]
        lasting = lasting_fields(kind).difference(windows)
        self._lasting = [name for name in self._names if name in lasting]
        self._lasting_of = getter(self._lasting)
        self._watched = [name for name in self._names if name not in lasting]
        self._views = views(kind, self._watched)
        self._parts = parts_of(kind, self._watched)
        """For each watched field its parts, if it has any."""

    def opening(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the whole context."""
        ctx = run.ctx
        copies = {name: taken(getattr(ctx, name)) for name in self._names}
        saved = self._save(run, {name: seen for name, (_, seen) in copies.items()})
        whole = {name: copy for name, (copy, _) in copies.items()}
        if self._growing is not None:
            whole = {self._growing: self._item(ctx, saved.items), **whole}
        return {"context": whole, **self._about(ctx)}

    def adopt(self, run: Run[Any, Any]) -> None:
        """Take the present context as the content of the journal, after a restore."""
        self._save(run, {name: taken(getattr(run.ctx, name))[1] for name in self._watched})

    def _save(self, run: Run[Any, Any], seen: Mapping[str, Any]) -> _Saved:
        items = [] if self._growing is None else getattr(run.ctx, self._growing)
        last, watched = items[-1] if items else None, [seen[name] for name in self._watched]
        saved = run.saved = _Saved(items, len(items), last, self._lasting_of(run.ctx), watched)
        return saved

    def changes(self, run: Run[Any, Any]) -> dict[str, Any]:
        """Return the changes since the last call."""
        ctx, saved = run.ctx, run.saved
        seen: list[Any] = saved.seen
        changed: dict[str, Any] = {}
        lasting = self._lasting_of(ctx)
        if lasting != saved.lasting:  # one comparison in C
            pairs = zip(self._lasting, lasting, saved.lasting, strict=True)
            changed = {name: now for name, now, before in pairs if now is not before and now != before}
            saved.lasting = lasting
        for at, view in enumerate(self._views(ctx)):
            before = seen[at]
            if view == before:
                continue
            name = self._watched[at]
            parts = self._parts[at]
            if (
                parts is not None
                and type(before) is type(view) is dict
                and [*view] == parts.names == [*before]
            ):
                _write_parts(parts.parts, view, before, changed)
                continue
            value = getattr(ctx, name)
            snapshot, written = WAYS[type(value)]
            seen[at] = now = snapshot(value)
            if now != before:
                changed[name] = self._changed(name, before, now, written)
        if self._growing is not None and (grown := self._grown(getattr(ctx, self._growing), ctx, saved)):
            changed[self._growing] = grown
        return changed

    def _changed(self, name: str, before: Any, now: Any, written: Callable[[Any], Any]) -> Any:
        """Return the form in which a changed field is written."""
        if name in self._windows or type(now) is DequeSnapshot is type(before):
            # The change of a window: the number of last items that stayed, and the new items.
            size, kept = len(before), len(now)
            # A window of the same size lost an item at least.
            kept = kept - 1 if kept == size else min(kept, size)
            while kept and not (now[kept - 1] == before[-1] and now[:kept] == before[size - kept :]):
                kept -= 1
            return {"last": kept, "add": now[kept:]}
        # The snapshot of a field with parts changes in place, perhaps before the record is encoded.
        return now.copy() if type(now) is dict else written(now)

    def closing(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the output for the last record."""
        return self._output(run.ctx)

    def decoded(self, merged: Mapping[str, Any]) -> C:
        """Build a context from its plain form. Raises Corrupt if it does not fit the dataclass."""
        known = {self._growing, *self._names}
        kind: Any = self._kind
        try:
            read: C = _adapter(kind).validate_python({name: merged[name] for name in merged if name in known})
            return read
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            raise Corrupt(f"a stored context cannot be read: {where}: {fault['msg']}") from None

    def _grown(self, items: list[Any], ctx: C, saved: _Saved) -> dict[str, Any] | None:
        kept = saved.count
        moved = len(items) < kept or (kept and items[kept - 1] is not saved.last)
        if items is not saved.items or moved:
            # The number of leading items that are identical objects.
            if items is saved.items:  # an item was removed from the list itself, at an unknown position
                kept = 0
            else:
                most = min(len(items), kept, len(saved.items))
                kept = next((at for at in range(most) if items[at] is not saved.items[at]), most)
        new = items[kept:]
        cut = kept < saved.count
        saved.items, saved.count, saved.last = items, len(items), items[-1] if items else None
        if not (new or cut):
            return None
        grown: dict[str, Any] = {"add": self._item(ctx, new)}
        if cut:
            grown["keep"] = kept
        return grown


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the reader of a context; it is cached, because it takes tens of milliseconds to build."""
    return TypeAdapter(kind)


def _write_parts(
    parts: Iterable[FieldPart], view: Mapping[str, Any], before: dict[str, Any], changed: dict[str, Any]
) -> None:
    """Add the changed parts of a field to a record and to its snapshot. Few parts are other objects than before."""
    for name, path, copied, short in compress(parts, map(is_not, view.values(), before.values())):
        one, known = view[name], before[name]
        if one == known:
            continue
        now = one if copied is None else copied(one)
        if copied is None or now != known:
            before[name] = now
            changed[path] = now if short is None else short(now)
