"""Fail guards that are not pure functions of their context.

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

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator.kernel.graph import Graph, Guard, guard_name
from orchestrator.testing import watch
from orchestrator.testing.picture import Picture, difference, picture

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
        answer = watch.call(guard, ctx, seen, lambda why: GuardImpure(name, why))
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
