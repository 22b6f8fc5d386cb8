"""Encode a run's context as records: complete in `created`, then only the changes of each transition.

Growing values are written once. For messages, a record has the new ones, and the number of first messages that were
kept if a restart, a compaction or a retry removed some. For a window (a deque, or one of `windows`) it has the new
items and the number of last items that were kept. Of a field that is a dataclass whose instances have a dict, the
changed parts are written under their paths (`spent.seconds`). Every other field is written again when it changes, so a
host's hook may change any field. The comparison uses a copy, which is then written: a JSON text of each field at each
append took three times as long.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import compress
from operator import is_not
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import Corrupt
from orchestrator.journal.snapshot import (
    WAYS,
    DequeSnapshot,
    FieldPart,
    getter,
    lasting_fields,
    parts_of,
    taken,
    views,
)
from orchestrator.kernel.run import Run

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
    """A `kernel.codec.Codec` for contexts of one dataclass.

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
        seen, changed = saved.seen, {}
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
            return _moved(before, now)
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
            kept = _common(items, saved.items, kept)
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


def _common(items: list[Any], before: list[Any], count: int) -> int:
    """Return the number of leading items that are identical objects."""
    if items is before:  # an item was removed from the list itself, at an unknown position
        return 0
    most = min(len(items), count, len(before))
    return next((at for at in range(most) if items[at] is not before[at]), most)


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


def _moved(before: tuple[Any, ...], now: tuple[Any, ...]) -> dict[str, Any]:
    """Return the change of a window: the number of last items that stayed, and the new items."""
    size, kept = len(before), len(now)
    kept = kept - 1 if kept == size else min(kept, size)  # a window of the same size lost an item at least
    while kept and not (now[kept - 1] == before[-1] and now[:kept] == before[size - kept :]):
        kept -= 1
    return {"last": kept, "add": now[kept:]}
