"""Hooks by name: `enter_<state>`, `leave_<state>`, `before_<event>`, `after_<event>`, and four general ones.

`collect` finds the hooks of modules; `resolve` and `awaitable` convert any callback of a table to an async function.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

from orchestrator.errors import GraphError
from orchestrator.kernel.cancellation import host_function
from orchestrator.kernel.lint import LintProblem, LintRule, is_async

if TYPE_CHECKING:
    from orchestrator.kernel.graph import Graph

Hook: TypeAlias = Callable[..., Awaitable[StrEnum | None]]
"""(run) -> the event that leaves the state (enter_ hooks), or None."""

PREFIXES = ("enter_", "leave_", "before_", "after_")
GENERAL = ("before_event", "leave_state", "enter_state", "after_event")
_OURS = ("orchestrator_callbacks.", "orchestrator.kernel.")
"""Modules of our hooks: they are async, pass a cancellation on, and mark the host code that they call."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Name -> the hooks of that name: those of this package first, then those of the host in the given order."""

    by_name: Mapping[str, tuple[Hook, ...]]
    hosted: frozenset[str] = frozenset()
    """Names with a hook of the host. Its effects are unknown, so records of its states are never merged."""
    modules: tuple[object, ...] = ()
    """Modules in which callbacks and conditions are looked up by name."""

    def __contains__(self, name: str) -> bool:
        return name in self.by_name


def collect(
    graph: Graph,
    *modules: object,
    extra: Iterable[object] = (),
    points: Mapping[str, str] | None = None,
) -> Hooks:
    """Collect the hooks of `modules` (of this package) and `extra` (of the host) for a graph.

    Args:
        graph: The graph.
        extra: Modules or objects of the host.
        points: Further hooks that the caller runs itself: name -> name of their second argument.
        *modules: Modules, or objects with such methods.

    Raises:
        GraphError: Lists every stray, misspelt, synchronous, duplicate or missing hook, those that cannot be called,
            and every module of the host without a hook.
    """
    points, extra = points or {}, tuple(extra)
    allowed = _arguments(graph, points)
    problems: list[LintProblem] = []
    found: dict[str, list[Hook]] = {}
    hosted: set[str] = set()
    for module, own in [*((module, True) for module in modules), *((module, False) for module in extra)]:
        candidates = list(_candidates(module))
        if not candidates and not own:
            problems.append(_no_hook(module, points))
        for name, hook in candidates:
            problem = _misfit(name, hook, module, allowed)
            if problem is None and own and name in found:
                problem = LintProblem(LintRule.DUPLICATE_HOOK, f"{_where(module, name)} is defined twice")
            if problem is not None:
                problems.append(problem)
                continue
            found.setdefault(name, []).append(hook)
            if not own:
                hosted.add(name)
    problems += _missing(graph, found)
    if problems:
        raise GraphError(graph.name, problems)
    by_name = {name: tuple(hooks) for name, hooks in found.items()}
    return Hooks(by_name, frozenset(hosted), (*modules, *extra))


def _arguments(graph: Graph, points: Mapping[str, str]) -> dict[str, list[tuple[str, ...]]]:
    """Return hook name -> the allowed arguments of its hooks; a name that is also a point allows two forms."""
    allowed: dict[str, list[tuple[str, ...]]] = {name: [("run",)] for name in expected(graph)}
    for name, value in points.items():
        allowed.setdefault(name, []).append(("run", value))
    return allowed


def _no_hook(module: object, points: Iterable[str]) -> LintProblem:
    name = str(getattr(module, "__name__", None) or repr(module)[:80])
    wanted = ", ".join(("enter_<state>", "leave_<state>", "before_<event>", "after_<event>", *points))
    give = f"give the module or an object with methods named {wanted}"
    return LintProblem(LintRule.NO_HOOK, f"{name} ({type(module).__name__}) has no hook; {give}")


def where(hook: object, name: str) -> str:
    """Return the name of a bound hook with its class or module, for a person who looks for it."""
    hook = inspect.unwrap(hook) if callable(hook) else hook
    holder = getattr(hook, "__self__", None)
    home = getattr(hook, "__module__", "") if holder is None else type(holder).__name__
    return f"{home}.{name}" if home else name


def _misfit(
    name: str, hook: object, module: object, allowed: Mapping[str, Sequence[tuple[str, ...]]]
) -> LintProblem | None:
    if inspect.isclass(module):
        return LintProblem(LintRule.STRAY_HOOK, f"{_where(module, name)}: give an instance of the class")
    if name not in allowed:
        return _stray(name, module, allowed)
    if not is_async(hook):
        return LintProblem(LintRule.SYNC_HOOK, f"{_where(module, name)} is not an async function")
    if not any(takes(hook, len(arguments)) for arguments in allowed[name]):
        wanted = " or ".join(f"({', '.join(arguments)})" for arguments in allowed[name])
        return LintProblem(LintRule.HOOK_ARGUMENTS, f"{_where(module, name)} must take {wanted}")
    return None


def takes(hook: object, arguments: int) -> bool:
    """Return whether a hook can be called with this many arguments; True if its signature cannot be read."""
    if type(hook) is FunctionType and not vars(hook):  # no attribute names another signature
        # Each new agent asks this about all its hooks, and `inspect.signature` takes 20 times as long.
        code, defaults = hook.__code__, hook.__defaults__ or ()
        return (
            code.co_argcount - len(defaults) <= arguments
            and (arguments <= code.co_argcount or bool(code.co_flags & inspect.CO_VARARGS))
            and code.co_kwonlyargcount == len(hook.__kwdefaults__ or ())
        )
    try:
        signature = inspect.signature(hook)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def expected(graph: Graph) -> Iterator[str]:
    """Yield every hook name of a graph."""
    yield from GENERAL
    for state in graph.states:
        yield f"enter_{state.name.lower()}"
        yield f"leave_{state.name.lower()}"
    for event in graph.events:
        yield f"before_{event.name.lower()}"
        yield f"after_{event.name.lower()}"


def _candidates(module: object) -> Iterator[tuple[str, Any]]:
    """Yield the public functions of a module, without its imports, or the methods of an object."""
    for name in sorted(dir(module)):
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        if not callable(value) or inspect.isclass(value):
            continue
        if inspect.ismodule(module) and _is_imported(value, name, module.__name__):
            continue
        if name.startswith(PREFIXES) or is_async(value):
            yield name, value


def _is_imported(value: object, name: str, module: str) -> bool:
    """Return whether a function was imported. A hook that another module's decorator has replaced has lost its name."""
    home = getattr(value, "__module__", module)
    return inspect.isfunction(value) and home != module and value.__name__ == name


def _where(module: object, name: str) -> str:
    return f"{getattr(module, '__name__', type(module).__name__)}.{name}"


def _stray(name: str, module: object, allowed: Iterable[str]) -> LintProblem:
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    alike = [one for one in allowed if one.startswith(prefix)]
    close = difflib.get_close_matches(name, alike, n=2, cutoff=0.7) or difflib.get_close_matches(
        name, alike, n=1
    )
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    if not prefix:  # a public async method of an object with other purposes
        hint += " Prefix it with _ if it is not a hook" if close else "; prefix it with _ if it is not a hook"
    return LintProblem(LintRule.STRAY_HOOK, f"{_where(module, name)} fits no state or event{hint}")


def _missing(graph: Graph, found: Mapping[str, object]) -> Iterator[LintProblem]:
    for state in graph.states:
        name = f"enter_{state.name.lower()}"
        if graph.is_working(state) and name not in found:
            yield LintProblem(
                LintRule.MISSING_ENTER, f"no {name} hook, so nothing would leave {state.value!r}", state
            )
        ends = state in graph.terminal and name in found
        if ends and graph.failure is not None and graph.failure_event(state) is None:
            message = f"terminal state {state.value!r} has an enter hook but no failure edge for its errors"
            yield LintProblem(LintRule.TERMINAL_WITHOUT_FAILURE, message, state)


# ---- callbacks of a table, as the executor runs them ----


def resolve(callback: Any, modules: Iterable[object]) -> Any:
    """Return the function that a callback names: from a hook module, else from its dotted path.

    A function is returned unchanged. Raises LookupError for an unknown name.
    """
    if not isinstance(callback, str):
        return callback
    for module in modules:
        found = getattr(module, callback, None)
        if callable(found):
            return found
    folder, _, name = callback.rpartition(".")
    try:
        return getattr(importlib.import_module(folder), name)
    except (ImportError, AttributeError, ValueError):
        text = f"callback {callback!r} is in no hook module; give a function, a name in one, or a dotted path"
        raise LookupError(text) from None


def awaitable(callback: Any) -> Hook:
    """Return the callback as an async function. Raises TypeError if it does not take the run.

    Code of the host can be abandoned if it ignores a cancellation.
    """
    if not callable(callback):
        raise TypeError(f"callback {callback!r} is a {type(callback).__name__}; give a function of the run")
    if not takes(callback, 1):
        raise TypeError(f"callback {callback_name(callback)!r} must take one argument, the run")
    if str(getattr(callback, "__module__", "")).startswith(_OURS):
        hook: Hook = callback
        return hook
    return host_function(_asynchronous(callback), "hook", callback_name(callback))


def _asynchronous(callback: Callable[..., Any]) -> Hook:
    if is_async(callback):
        return callback

    @functools.wraps(callback)
    async def run_callback(run: Any) -> Any:
        answer = callback(run)
        return await answer if inspect.isawaitable(answer) else answer

    return run_callback


def callback_name(callback: Any) -> str:
    """Return the name of a callback in logs and fingerprints."""
    return str(
        callback if isinstance(callback, str) else getattr(callback, "__name__", type(callback).__name__)
    )
