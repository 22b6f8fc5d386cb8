"""Fail guards that are not pure functions of their context.

It uses one audit hook for the process, added at its first use: Python cannot remove one. Outside an observed call the
hook costs one read of a context variable.

Always detected: a changed context (lists, dicts, sets, deques, dataclasses and other objects, with or without slots),
a coroutine or other awaitable as the answer, different answers to equal contexts in a few tries.

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
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from datetime import date
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from orchestrator.kernel.graph import Graph, Guard, guard_name
from orchestrator.testing.picture import Picture, difference, picture

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
