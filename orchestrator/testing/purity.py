"""Fail guards that are not pure functions of their context.

It uses one audit hook for the process, added at its first use: Python cannot remove one. Outside an observed call the
hook costs one read of a context variable.

Always detected: a changed context (lists, dicts, sets, deques, dataclasses and other objects, with or without slots),
a coroutine or other awaitable as the answer, different answers to equal contexts in a few tries. A change is found by
pictures of the data before and after the call.

Detected in the guard's own thread: opening files, sockets and processes (`sys.addaudithook`; the call is stopped);
reading a clock, sleeping, starting a thread, `random`'s own generator, the system's entropy, printing, `os.stat`,
asyncio (`sys.setprofile` during the call; another profiler is restored).

Not detected: reads of globals and `os.environ`, internal state of a guard as long as its answers agree, a clock
called by C code (`map(time.time, …)`), writes to files that were open already, effects of C extensions, and changes
inside objects without attributes (a lock, an array). Imports are allowed.
"""

from __future__ import annotations

import _thread
import asyncio
import copy
import functools
import gc
import inspect
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from datetime import date
from enum import Enum
from functools import cached_property
from types import FrameType, ModuleType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from orchestrator.kernel.graph import Graph, Guard, guard_name

# ---- pictures of data ----

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


# ---- calls that are watched ----

T = TypeVar("T")


class _Watch(NamedTuple):
    seen: list[str]
    refuse: Callable[[str], Exception]


_WATCH: ContextVar[_Watch | None] = ContextVar("orchestrator_watch", default=None)

_EVENTS = frozenset(("builtins.input", "open", "urllib.Request"))
_FAMILIES = frozenset(
    (
        "ftplib",
        "glob",
        "http",
        "imaplib",
        "os",
        "pathlib",
        "poplib",
        "shutil",
        "smtplib",
        "socket",
        "sqlite3",
        "subprocess",
        "tempfile",
    )
)

_CALLS = frozenset(
    (
        os.lstat,
        os.stat,
        os.urandom,
        print,
        _thread.start_new_thread,
        time.monotonic,
        time.monotonic_ns,
        time.perf_counter,
        time.perf_counter_ns,
        time.process_time,
        time.process_time_ns,
        time.sleep,
        time.thread_time,
        time.thread_time_ns,
        time.time,
        time.time_ns,
        getattr(_thread, "start_joinable_thread", _thread.start_new_thread),  # used by threading since 3.13
    )
)
_METHODS = frozenset(("now", "today", "utcnow"))
_CHANCE = getattr(random.random, "__self__", None)
"""The generator behind the functions of `random`; a generator in a context is plain data."""
_ASYNCIO = asyncio.__name__


def call(
    function: Callable[[Any], T], argument: object, seen: list[str], refuse: Callable[[str], Exception]
) -> T:
    """Return `function(argument)`; descriptions of its outside access are added to `seen`.

    Files, sockets and processes are not even opened: the function gets the error that `refuse(why)` returns.
    """
    _listen()
    collecting, earlier = gc.isenabled(), sys.getprofile()
    # finalizers and gc.callbacks (one of hypothesis reads a clock) do not belong to the function
    gc.disable()
    token = _WATCH.set(_Watch(seen, refuse))
    sys.setprofile(functools.partial(_profile, seen))
    try:
        return function(argument)
    finally:
        sys.setprofile(earlier)
        _WATCH.reset(token)
        if collecting:
            gc.enable()


@functools.cache
def _listen() -> None:
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    watch = _WATCH.get()
    if watch is None or not (event in _EVENTS or event.partition(".")[0] in _FAMILIES):
        return
    if _importing(sys._getframe(1)):  # noqa: SLF001 - the only way to find the caller
        return
    detail = f" ({arguments[0]!r})" if event == "open" and arguments else ""
    watch.seen.append(f"it reached outside: {event}{detail}")
    raise watch.refuse(watch.seen[-1])  # `seen` still reveals a guard that swallows this


def _profile(seen: list[str], frame: FrameType, event: str, called: Any) -> None:
    if event == "c_call":
        why = _reached(called)
    elif event == "call" and str(frame.f_globals.get("__name__")).partition(".")[0] == _ASYNCIO:
        why = f"it used the event loop: {frame.f_code.co_qualname}"
    else:
        return
    if why is not None and not _importing(frame):
        seen.append(why)


def _reached(called: Any) -> str | None:
    """Return the outside access of a builtin in words, or None for a harmless one."""
    owner = getattr(called, "__self__", None)
    name = getattr(called, "__qualname__", "")
    if owner is not None and owner is _CHANCE:
        return f"it used random numbers: {name}"
    if isinstance(owner, type) and issubclass(owner, date) and called.__name__ in _METHODS:
        return f"it read a clock: {owner.__name__}.{called.__name__}"
    if called in _CALLS:
        return f"it called {called.__module__}.{name}"
    return None


def _importing(frame: FrameType | None) -> bool:
    """Return whether an import lies between this frame and `call`."""
    while frame is not None and frame.f_globals is not globals():
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


_TRIES = 5


class GuardImpure(AssertionError):
    """A guard has a side effect. `guard` is its name, `why` the effect."""

    def __init__(self, guard: str, why: str) -> None:
        super().__init__(f"guard {guard} is impure: {why}")
        self.guard = guard
        self.why = why


def check_guard(guard: Guard, ctx: Any) -> Any:
    """Evaluate a guard several times with copies of `ctx` and return its answer. Raises GuardImpure.

    Example:
        >>> from orchestrator_guards import iterations
        >>> check_guard(lambda turn: iterations(turn, 20), 19).ok
        True
    """
    answer = _ask(guard, copy.deepcopy(ctx))
    shown = picture(answer, "answer")
    for _ in range(_TRIES - 1):
        _same(guard, shown, _ask(guard, copy.deepcopy(ctx)))
    return answer


def pure(guard: Guard) -> Guard:
    """Return the guard, wrapped: each evaluation runs twice, and raises GuardImpure if the guard is not pure.

    Example:
        >>> from orchestrator_guards import iterations
        >>> pure(lambda turn: iterations(turn, 20))(19).ok
        True
    """

    def checked(ctx: object) -> object:
        answer = _ask(guard, ctx)
        _same(guard, picture(answer, "answer"), _ask(guard, ctx))
        return answer

    return stand_in(guard, checked)


def strict_guards(graph: Graph) -> Graph:
    """Return the same graph, with the same fingerprint, and every guard wrapped by `pure`.

    In a graph with a failure event an impure guard fails the run, with GuardImpure as `run.error`.

    Example:
        agent = Agent(llm, graph=strict_guards(LLM_LOOP))
    """
    wrapped: dict[int, Guard] = {}  # one wrapper for each guard: the lint compares guards by identity
    for edge in graph.edges:
        if edge.when is not None and id(edge.when) not in wrapped:
            wrapped[id(edge.when)] = pure(edge.when)
    edges = (replace(edge, when=wrapped.get(id(edge.when))) for edge in graph.edges)
    return replace(graph, edges=tuple(edges))


def stand_in(guard: Guard, function: Callable[[Any], Any]) -> Guard:
    """Return `function` with the name and the marks of `guard`: graph and lint see no difference."""
    functools.update_wrapper(function, guard)
    function.__name__ = guard_name(guard) or ""
    if hasattr(guard, "bounding"):  # a class may have it for its instances
        function.bounding = guard.bounding  # type: ignore[attr-defined]
    return function


def _ask(guard: Guard, ctx: object) -> Any:
    """Evaluate once under observation."""
    name = guard_name(guard) or ""
    before = picture(ctx)
    seen: list[str] = []
    try:
        answer = call(guard, ctx, seen, lambda why: GuardImpure(name, why))
    except Exception as error:
        if seen and not isinstance(error, GuardImpure):
            raise GuardImpure(name, seen[0]) from error
        raise
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()  # else Python warns that it was never awaited
        raise GuardImpure(name, "it returned an awaitable; a guard may not await")
    if seen:
        raise GuardImpure(name, seen[0])
    change = difference(before, picture(ctx))
    if change is not None:
        raise GuardImpure(name, f"it changed its context: {change}")
    return answer


def _same(guard: Guard, shown: Picture, answer: object) -> None:
    change = difference(shown, picture(answer, "answer"))
    if change is not None:
        raise GuardImpure(guard_name(guard) or "", f"it answered equal contexts differently: {change}")
