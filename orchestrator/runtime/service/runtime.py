"""How agents run: the journal, the observers, the clock, the migrations and the prices that agents share.

An agent without a `runtime` has one of its own. It is immutable, so agents that share it cannot disagree about the
journal or the observers of their runs.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from orchestrator.argument_names import checks_names
from orchestrator.errors import ConfigError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.fact import Observer
from orchestrator.kernel.journal import Journal
from orchestrator.llm.port import Clock, Price, SystemClock
from orchestrator.runtime.service import arguments
from orchestrator.runtime.service.recovery import Migration


def in_notebook() -> bool:
    """Return whether this is a notebook or another shell of IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return shell is not None and shell() is not None


@checks_names
@dataclass(frozen=True, slots=True, init=False, eq=False)
class Runtime:
    """How agents run; agents can share one.

    Args:
        journal: Stores the records of the runs; in memory if None.
        observers: Observers of all runs. None means `TransitionLog()` and `Metrics()` on the default registry, in
            notebooks only the latter; `()` means none.
        clock: Clock, for tests; the clock of the system if None.
        migrations: Functions that migrate runs of older graphs to the graph of their agent.
        price: Price table of the models: `price(model, usage)`, in one currency (`price_table(…, currency="USD")`).
        evict_after: Seconds that a run waits for a person in memory; then it is evicted, which requires a durable
            journal. 0 never evicts a run. An evicted run is only in its journal, as parked, without task, context, deps
            and lease. Its caller still waits: `run`, `stream` or the handle of an engine returns the result, whichever
            process ends the run. A run that the answer or the expiry of its question lets continue is resumed here
            unless another process resumes it. Child runs, runs with active child runs, runs with `deps` that no
            factory can make again, and runs of an Rlm with a REPL stay in memory.

    Raises:
        ConfigError: An argument is invalid, or `evict_after` is given with a journal in memory.

    Example:
        runtime = Runtime(journal=SqliteJournal("runs.db"))
        support = Agent(model, name="support", runtime=runtime)
        billing = Agent(model, name="billing", runtime=runtime)

        patient = Runtime(journal=SqliteJournal("runs.db"), evict_after=60)  # questions may wait for days
    """

    journal: Journal
    observers: tuple[Observer, ...]
    clock: Clock
    migrations: tuple[Migration, ...]
    price: Price | None
    evict_after: float
    own_journal: MemoryJournal | None = field(init=False, repr=False)
    """The journal in memory that this Runtime made, if none was given."""

    def __init__(
        self,
        *,
        journal: Journal | None = None,
        observers: Iterable[Observer] | None = None,
        clock: Clock | None = None,
        migrations: Iterable[Migration] = (),
        price: Price | None = None,
        evict_after: float = 0.0,
    ) -> None:
        arguments.check_runtime(locals())
        own = MemoryJournal() if journal is None else None
        if observers is None:
            from orchestrator.telemetry.log import TransitionLog  # imported only if needed
            from orchestrator.telemetry.metrics import Metrics

            # In a notebook, lines of JSON would hide the output of the cell.
            observers = (Metrics(),) if in_notebook() else (TransitionLog(), Metrics())
        values = {
            "journal": journal if own is None else own,
            "own_journal": own,
            "observers": tuple(observers or ()),
            "clock": clock or SystemClock(),
            "migrations": tuple(migrations),
            "price": price,
            "evict_after": float(evict_after),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def replaced(self, **changes: Any) -> Runtime:
        """Return this with another `journal`, or other `observers`, or both. Raises ConfigError."""
        names = ("journal", "observers", "clock", "migrations", "price", "evict_after")
        found = Runtime(**{name: getattr(self, name) for name in names} | changes)
        if "journal" not in changes:
            object.__setattr__(found, "own_journal", self.own_journal)
        return found

    def on_journal_of(self, other: Runtime) -> Runtime:
        """Return this with the journal of another one."""
        found = copy.copy(self)
        object.__setattr__(found, "journal", other.journal)
        object.__setattr__(found, "own_journal", other.own_journal)
        return found

    def retire(self, run_id: str) -> None:
        """Drop an abandoned run from a journal that this Runtime made, where no other process could resume it."""
        if self.own_journal is not None:
            self.own_journal.retire(run_id)


def runtime_of(
    runtime: Runtime | None, journal: Journal | None, observers: Iterable[Observer] | None
) -> Runtime:
    """Return the runtime of an agent: the given one, or its own with this journal and these observers.

    Raises ConfigError if both were given.
    """
    if runtime is None:
        return Runtime(journal=journal, observers=observers)
    for name, value in (("journal", journal), ("observers", observers)):
        if value is not None:
            raise ConfigError(
                f"runtime= and {name}= were both given; write Runtime({name}=...) and leave {name}= out"
            )
    return runtime


R = TypeVar("R")
S = TypeVar("S")
P = ParamSpec("P")


def with_arguments_of(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[[Callable[..., R]], Callable[Concatenate[S, P], R]]:
    """Give a method that passes its arguments on to the coroutine `method` the same signature."""

    def decorate(function: Callable[..., R]) -> Callable[Concatenate[S, P], R]:
        function.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
        return function

    return decorate


def outside_loop(called: str, instead: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run `work` to its end outside an event loop.

    Raises ConfigError, which names the coroutine to await, inside one.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # the work runs after this block: else each exception of it would have this one as its context
    else:
        raise ConfigError(
            f"{called} was called inside a running event loop; use `await {instead}(...)` there"
        )
    return asyncio.run(work())
