"""A run's context as records: whole in `created`, then with each transition only what changed.

What grows is written once: of the messages only those that came, and how many of the first were kept where a restart,
a compaction or a retry took some away; of a window (a deque, or one of `windows`) those that came and how many of the
last were kept. Every other field is written anew when it is another than it was, so a host's hook may change what it
likes. It is compared with a copy, which is what is then written: a JSON text of each field at each append took three
times as long. All fields are compared in two passes in C; Python code runs for the fields that differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from itertools import compress
from operator import is_not, ne
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import Corrupt
from orchestrator.journal.snapshot import WAYS, DequeSnapshot, getter, lasting_fields, taken, views
from orchestrator.kernel.run import Run

C = TypeVar("C")


@dataclass(slots=True)
class _Saved:
    """What the journal has: the list of messages that was there, how many of it, and each other field."""

    items: list[Any]
    count: int
    last: Any
    """The last of these: another in its place means that somebody put something in between."""
    plain: tuple[Any, ...]
    """The fields that nobody can change in place."""
    deep: list[Any]
    """The others, as they were seen."""


class ContextCodec(Generic[C]):
    """A `kernel.codec.Codec` for contexts of one dataclass.

    `growing` names the field that holds the list of messages, where there is one, and `item` makes some of them plain;
    `windows` are tuples that grow at their end and forget at their start, and are written as a deque is;
    `apart` are fields that are not written: they follow from others, or from other records. `output` says what the
    `ended` record tells of the result, `about` gives further plain data for the `created` one.
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
        self._plain = [name for name in self._names if name in lasting]
        self._places = range(len(self._plain))
        self._parts = getter(self._plain)
        self._deep = [name for name in self._names if name not in lasting]
        self._deep_places = range(len(self._deep))
        self._views = views(kind, self._deep)

    def opening(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return the whole context."""
        ctx = run.ctx
        copies = {name: taken(getattr(ctx, name)) for name in self._names}
        saved = self._save(run, [copies[name][1] for name in self._deep])
        whole = {name: copy for name, (copy, _) in copies.items()}
        if self._growing is not None:
            whole = {self._growing: self._item(ctx, saved.items), **whole}
        return {"context": whole, **self._about(ctx)}

    def adopt(self, run: Run[Any, Any]) -> None:
        """Take the context as it is for what the journal has: after a restore."""
        self._save(run, [taken(getattr(run.ctx, name))[1] for name in self._deep])

    def _save(self, run: Run[Any, Any], deep: list[Any]) -> _Saved:
        items = [] if self._growing is None else getattr(run.ctx, self._growing)
        saved = run.saved = _Saved(
            items, len(items), items[-1] if items else None, self._parts(run.ctx), deep
        )
        return saved

    def changes(self, run: Run[Any, Any]) -> dict[str, Any]:
        """Return what is other than at the last call."""
        ctx, saved = run.ctx, run.saved
        changed: dict[str, Any] = {}
        plain, before = self._parts(ctx), saved.plain
        if plain != before:
            for at in compress(self._places, map(is_not, plain, before)):
                if plain[at] != before[at]:  # a dataclass compares itself field by field
                    changed[self._plain[at]] = plain[at]
            saved.plain = plain
        deep = saved.deep
        for at in compress(self._deep_places, map(ne, self._views(ctx), deep)):
            name, before = self._deep[at], deep[at]
            value = getattr(ctx, name)
            snapshot, written = WAYS[type(value)]
            deep[at] = now = snapshot(value)
            if now != before:
                is_window = name in self._windows or type(now) is DequeSnapshot is type(before)
                changed[name] = _moved(before, now) if is_window else written(now)
        if self._growing is not None and (grown := self._grown(getattr(ctx, self._growing), ctx, saved)):
            changed[self._growing] = grown
        return changed

    def closing(self, run: Run[Any, Any]) -> Mapping[str, Any]:
        """Return what the last record tells of the output."""
        return self._output(run.ctx)

    def decoded(self, merged: Mapping[str, Any]) -> C:
        """Make a context of its plain form. Raises Corrupt for one that does not fit the dataclass."""
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
    """Return what reads a context; it takes tens of milliseconds to build, and agents come and go."""
    return TypeAdapter(kind)


def _common(items: list[Any], before: list[Any], count: int) -> int:
    """Return how many of the first items are the very same."""
    if items is before:  # something was taken out of the list itself: nobody knows where
        return 0
    most = min(len(items), count, len(before))
    return next((at for at in range(most) if items[at] is not before[at]), most)


def _moved(before: tuple[Any, ...], now: tuple[Any, ...]) -> dict[str, Any]:
    """Return how a window moved on: how many of its last items stayed, and what came after them."""
    kept = min(len(before), len(now))
    while kept and not (now[kept - 1] == before[-1] and now[:kept] == before[-kept:]):
        kept -= 1
    return {"last": kept, "add": now[kept:]}
