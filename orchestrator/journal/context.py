"""Encode a run's context as records: complete in `created`, then only the changes of each transition.

Nothing is copied while nothing has changed. The comparison with the last record is straight-line code, which is
generated for each class of contexts from the names of its fields, as `dataclasses` generates a constructor: a loop over
the fields took twice as long.

Growing values are written once. For messages, a record has the new ones, and the number of first messages that were
kept if a restart, a compaction or a retry removed some. For a window (a deque, or one of `windows`) it has the new
items and the number of last items that were kept. Of a field that is a dataclass whose instances have a dict, the
changed parts are written under their paths (`spent.seconds`). Every other field is written again when it changes, so a
host's hook may change any field. What can be changed in place is compared with a copy, which is then written.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
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
from pydantic_core import ValidationError

from orchestrator.errors import Corrupt
from orchestrator.journal.codec import plain
from orchestrator.kernel.run import Run

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_IMMUTABLE = (int, str, float, bool, type(None), Enum, tuple, frozenset)
"""Classes whose values never change; the items of a tuple are assumed to be immutable too."""


_KINDS = 256
"""Dataclasses whose type hints are kept: evaluating them takes half of the time in which an agent is made."""


class DequeSnapshot(tuple[Any, ...]):
    """The items of a deque at the time of its copy."""

    __slots__ = ()


def lasting_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a dataclass whose values cannot be changed in place, by their types."""
    return _lasting_fields(kind)  # apart, because mypy takes a dataclass for unhashable


@lru_cache(_KINDS)
def _lasting_fields(kind: Any) -> frozenset[str]:
    return frozenset(name for name, hint in _hints(kind).items() if _lasts(hint))


Copy: TypeAlias = Callable[[Any], Any]
"""value -> its copy. It shares no part with the value that can be changed in place."""


class _Copies(dict[Any, Copy]):
    """Class -> the function that copies its values. A cached function would cost more than the comparison."""

    def __missing__(self, kind: Any) -> Copy:
        self[kind] = copy = _copy_of(kind)
        return copy


_COPIES: Mapping[Any, Copy] = _Copies()


def copied(value: Any) -> Any:
    """Return a copy of a value in JSON's types; immutable values are shared."""
    return _COPIES[type(value)](value)


def _copy_of(kind: Any) -> Copy:
    if _never_changes(kind):
        return _itself
    if issubclass(kind, dict):
        return lambda value: {name: copied(one) for name, one in value.items()}
    if issubclass(kind, list):
        return lambda value: [copied(one) for one in value]
    if issubclass(kind, deque):
        return DequeSnapshot
    if is_dataclass(kind):
        return _copy_of_fields(kind)
    return _reread  # a host's own class


def _copy_of_fields(kind: Any) -> Copy:
    names = [one.name for one in fields(kind) if not one.name.startswith("_")]  # as orjson does
    lasting = lasting_fields(kind)

    def copy(value: Any) -> dict[str, Any]:
        # Not by `__dict__`: Python reads the attributes of an instance whose dict exists three times as slowly.
        parts = ((name, getattr(value, name)) for name in names)
        return {name: one if name in lasting else copied(one) for name, one in parts}

    return copy


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


# ---- the comparison ----


class Comparison(NamedTuple):
    """The comparison of the contexts of one class with what the journal has. Both functions are generated.

    The list is what the journal has, in an order that only these functions know.
    """

    seen: Callable[[Any], list[Any]]
    """context -> the list."""
    changes: Callable[[Any, list[Any]], dict[str, Any]]
    """context, list -> the changed fields and parts in the form of a record. The list is brought up to date."""


def comparison(kind: Any, names: Iterable[str], windows: Collection[str]) -> Comparison:
    """Return the comparison of these fields of a dataclass. Those whose values cannot change in place come first.

    Args:
        kind: The dataclass.
        names: Its fields.
        windows: Those that are written as windows.
    """
    return _comparison(kind, tuple(names), frozenset(windows))


@lru_cache(_KINDS)
def _comparison(kind: Any, names: tuple[str, ...], windows: frozenset[str]) -> Comparison:
    hints, lasting = _hints(kind), lasting_fields(kind) - windows
    scope: dict[str, Any] = {
        "copied": copied,
        "add_whole": _add_whole,
        "add_window": _add_window,
    }
    seen: list[str] = []
    """Expressions of the list."""
    functions: list[str] = []
    lines: list[str] = []
    size = 0
    for name in sorted(names, key=lambda one: one not in lasting):
        at, size = size, size + 1
        if name in lasting:
            seen.append(f"ctx.{name}")
            lines += _if_changed(f"ctx.{name}", at, f"changed[{name!r}] = seen[{at}] = ctx.{name}")
        elif not _has_parts(hints.get(name)):
            seen.append(f"copied(ctx.{name})")
            add = "add_window" if name in windows else "add_whole"
            write = f"seen[{at}] = {add}(changed, {name!r}, ctx.{name}, was_{at})"
            lines += _if_changed(f"ctx.{name}", at, write)
        else:
            scope[f"class_{at}"] = part_kind = hints[name]
            parts, compared = [f"class_{at}"], []
            for part in fields(part_kind):
                expression, code = _part(part_kind, part.name, f"{name}.{part.name}", size, scope)
                parts.append(expression)
                compared += code
                size += 1
            nothing = ", None" * (len(parts) - 1)
            functions += [
                f"def seen_{at}(one):",
                f"    if type(one) is class_{at}:",
                f"        return [{', '.join(parts)}]",
                f"    return [copied(one){nothing}]",
            ]
            seen.append(f"*seen_{at}(ctx.{name})")
            lines += [
                f"one = ctx.{name}",
                f"if type(one) is class_{at} and was_{at} is class_{at}:",
                *(f"    {line}" for line in compared),
                "else:",  # a value of another class, now or before
                f"    add_whole(changed, {name!r}, one, was_{at})",
                f"    seen[{at}:{size}] = seen_{at}(one)",
            ]
    source = [
        *functions,
        f"def seen(ctx): return [{', '.join(seen)}]",
        "def changes(ctx, seen):",
        "    changed = {}",
        f"    [{', '.join(f'was_{at}' for at in range(size))}] = seen",
        *(f"    {line}" for line in lines),
        "    return changed",
    ]
    exec(compile("\n".join(source), f"<comparison of {kind.__name__}>", "exec"), scope)  # noqa: S102 - names of fields
    return Comparison(scope["seen"], scope["changes"])


def _if_changed(value: str, at: int, *then: str) -> list[str]:
    return [f"if {value} is not was_{at} and {value} != was_{at}:", *(f"    {line}" for line in then)]


def _part(kind: Any, name: str, path: str, at: int, scope: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the code that reads a part of a field, and the code that compares it.

    A part has a short form for records if its class has the method `short`.
    """
    short = getattr(_hints(kind).get(name), "short", None)
    scope[f"short_{at}"] = short
    value = f"one.{name}"
    write = f"changed[{path!r}] = " + ("now" if short is None else f"short_{at}(now)")
    if name in lasting_fields(kind):
        return value, _if_changed(value, at, f"now = seen[{at}] = {value}", write)
    copy = f"copied({value})"
    if name in _flat_fields(kind):
        copy = f"{value}.copy() if type({value}) is dict else {copy}"
    changed = (f"now = {copy}", f"if now != was_{at}:", f"    seen[{at}] = now", f"    {write}")
    return copy, _if_changed(value, at, *changed)


def _has_parts(kind: Any) -> bool:
    """Return whether the changed parts of a field of this class are written alone."""
    params = getattr(kind, "__dataclass_params__", None)
    parts = fields(kind) if params and params.init and kind.__dictoffset__ else ()
    return bool(parts) and all(one.init and not one.name.startswith("_") for one in parts)


def _add_whole(changed: dict[str, Any], name: str, value: Any, before: Any) -> Any:
    """Add a field to a record unless its value equals the copy `before`; return its copy."""
    now = copied(value)
    if now == before:
        return before
    if type(now) is DequeSnapshot is type(before):
        return _add_window(changed, name, now, before)
    changed[name] = now
    return now


def _add_window(changed: dict[str, Any], name: str, value: Any, before: Any) -> Any:
    """Add the change of a window to a record: the number of last items that stayed, and the new items."""
    now = value if isinstance(value, tuple) else copied(value)
    size, kept = len(before), len(now)
    # A window of the same size lost an item at least.
    kept = kept - 1 if kept == size else min(kept, size)
    while kept and not (now[kept - 1] == before[-1] and now[:kept] == before[size - kept :]):
        kept -= 1
    changed[name] = {"last": kept, "add": now[kept:]}
    return now


# ---- the codec ----

C = TypeVar("C")


@dataclass(slots=True)
class _Saved:
    """The content of the journal: the list of messages at that time, its length, and the other fields."""

    items: list[Any]
    count: int
    last: Any
    """The last of these messages: another one in its place shows that a message was inserted."""
    seen: list[Any]
    """The other fields, for the comparison."""


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
        self._item = item
        self._output = output
        self._about = about
        self._names = [one.name for one in fields(kind) if one.name not in {growing, *apart}]  # type: ignore[arg-type]
        self._comparison = comparison(kind, self._names, windows)

    def opening(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the whole context."""
        ctx = run.ctx
        saved = self._save(run)
        whole = {name: copied(getattr(ctx, name)) for name in self._names}
        if self._growing is not None:
            whole = {self._growing: self._item(ctx, saved.items), **whole}
        return {"context": whole, **self._about(ctx)}

    def adopt(self, run: Run[Any, Any]) -> None:
        """Take the present context as the content of the journal, after a restore."""
        self._save(run)

    def _save(self, run: Run[Any, Any]) -> _Saved:
        items = [] if self._growing is None else getattr(run.ctx, self._growing)
        last = items[-1] if items else None
        saved = run.saved = _Saved(items, len(items), last, self._comparison.seen(run.ctx))
        return saved

    def changes(self, run: Run[Any, Any]) -> dict[str, Any]:
        """Return the changes since the last call."""
        ctx, saved = run.ctx, run.saved
        changed = self._comparison.changes(ctx, saved.seen)
        if self._growing is None:
            return changed
        # The messages since the last record, and how many of those before were kept if some were removed.
        items: list[Any] = getattr(ctx, self._growing)
        count = kept = saved.count
        if items is not saved.items:
            kept = _identical(items, saved.items[:count])
            saved.items = items
        elif len(items) < count or (count and items[count - 1] is not saved.last):
            kept = 0  # an item was removed from the list itself, at an unknown position
        new = items[kept:]
        if new or kept < count:
            saved.count, saved.last = len(items), items[-1] if items else None
            added = self._item(ctx, new)
            changed[self._growing] = {"add": added} if kept == count else {"add": added, "keep": kept}
        return changed

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


def _identical(items: Sequence[Any], others: Sequence[Any]) -> int:
    """Return how many leading items are identical objects."""
    most = min(len(items), len(others))
    return next((at for at in range(most) if items[at] is not others[at]), most)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the reader of a context; it is cached, because it takes tens of milliseconds to build."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
