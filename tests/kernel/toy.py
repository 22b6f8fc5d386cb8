"""What the tests of the kernel share: a small graph with every kind of state, its hooks, journals, a run."""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

from orchestrator.errors import JournalError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.cancellation import AbandonableTask
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import Fact, Transition
from orchestrator.kernel.graph import Edge, Graph, bounding
from orchestrator.kernel.hooks import collect
from orchestrator.kernel.journal import Draft, Lease, Pending
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.testing.clock import FakeClock

F = TypeVar("F")
T = TypeVar("T")


class State(StrEnum):
    INIT = "init"
    WORK = "work"
    CHECK = "check"
    ASK = "ask"
    DONE = "done"
    LOST = "lost"


class Event(StrEnum):
    START = "start"
    DID = "did"
    AGAIN = "again"
    ASKED = "asked"
    ANSWER = "answer"
    NOTE = "note"
    LATE = "late"
    FINISH = "finish"
    FAIL = "fail"


S = State
E = Event


@dataclass(slots=True)
class Context:
    """`plan` is what enter_check answers, in order; then it finishes."""

    iteration: int = 0
    plan: list[Event] = field(default_factory=list)
    turns: int = 100
    chosen: dict[int, Event] = field(default_factory=dict)


@bounding
def may_work(ctx: Context) -> bool:
    return ctx.iteration < ctx.turns


TOY = Graph(
    name="toy",
    states=State,
    events=Event,
    initial=S.INIT,
    terminal=frozenset((S.DONE, S.LOST)),
    waiting=frozenset((S.ASK,)),
    failure=E.FAIL,
    pure=frozenset((S.CHECK,)),
    dwell={S.WORK: (10.0, E.FAIL), S.ASK: (60.0, E.LATE)},
    context=Context,
    edges=(
        Edge(E.START, (S.INIT,), S.WORK),
        Edge(E.DID, (S.WORK,), S.CHECK),
        Edge(E.AGAIN, (S.CHECK,), S.WORK, may_work),
        Edge(E.ASKED, (S.CHECK,), S.ASK),
        Edge(E.ANSWER, (S.ASK,), S.WORK),
        Edge(E.NOTE, (S.ASK,), S.ASK),
        Edge(E.LATE, (S.ASK,), S.LOST),
        Edge(E.FINISH, (S.CHECK,), S.DONE),
        Edge(E.FAIL, (S.INIT, S.WORK, S.CHECK, S.ASK, S.DONE), S.LOST),
    ),
)

Hook: TypeAlias = Callable[[Any], Awaitable[StrEnum | None]]
ToyRun: TypeAlias = Run[Context, None]


async def _init(run: ToyRun) -> Event:
    await asyncio.sleep(0)
    return E.START


async def _work(run: ToyRun) -> Event:
    run.ctx.iteration += 1
    await asyncio.sleep(0)
    return E.DID


async def _check(run: ToyRun) -> Event:
    """Answers the same when it is run again after an interruption."""
    if run.seq not in run.ctx.chosen:
        run.ctx.chosen[run.cursor.seq] = run.ctx.plan.pop(0) if run.ctx.plan else E.FINISH
    return run.ctx.chosen[run.seq]


async def nothing(run: ToyRun) -> None:
    await asyncio.sleep(0)


def raises(error: Exception) -> Hook:
    """A hook that waits a little and raises."""

    async def hook(run: ToyRun) -> None:
        await asyncio.sleep(0)
        raise error

    return hook


def hooks(**own: Hook) -> SimpleNamespace:
    """The toy's hooks, some replaced or added."""
    return SimpleNamespace(**{"enter_init": _init, "enter_work": _work, "enter_check": _check, **own})


def machine(graph: Graph = TOY, extra: Iterable[object] = (), **own: Hook) -> Machine:
    return Machine(graph, collect(graph, hooks(**own), extra=extra))


def new_run(of: Machine, *plan: Event, turns: int = 100, run_id: str = "r1") -> ToyRun:
    return Run(of, run_id, Context(plan=list(plan), turns=turns), None)


class Facts:
    """An observer that keeps everything it is told."""

    def __init__(self) -> None:
        self.all: list[Fact] = []

    def observe(self, fact: Fact) -> None:
        self.all.append(fact)

    def of(self, kind: type[F]) -> list[F]:
        return [fact for fact in self.all if isinstance(fact, kind)]

    @property
    def path(self) -> list[str]:
        """Event of each transition told."""
        return [fact.event for fact in self.of(Transition)]


class CountingJournal(MemoryJournal):
    """Keeps what each append was given."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[list[str]] = []

    def append(self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None) -> None:
        super().append(lease, drafts, blobs)
        self.appends.append([str(draft.body.get("event", draft.kind)) for draft in drafts])


def moves(journal: MemoryJournal, run_id: str = "r1") -> list[Mapping[str, Any]]:
    """Body of each transition that is in a journal."""
    return [record.body for record in at_once(journal.load(run_id)) if record.kind == "transition"]


def at_once(inner: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing, such as a call of MemoryJournal."""
    try:
        inner.send(None)
    except StopIteration as stop:
        done: T = stop.value
        return done
    raise AssertionError("it waited")


class SlowJournal:
    """Durable only after two turns of the event loop, as a writer thread would be."""

    backend = "slow"

    def __init__(self) -> None:
        self.kept = MemoryJournal()
        self.broken_at = 0
        """The number of the append that fails, from 1."""
        self.appends = 0

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        await asyncio.sleep(0)
        lease = await self.kept.create(run_id, owner, body)
        await asyncio.sleep(0)
        return lease

    async def release(self, lease: Lease) -> None:
        await self.kept.release(lease)

    async def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> None:
        await asyncio.sleep(0)
        self.appends += 1
        if self.appends == self.broken_at:
            raise JournalError("disk full")
        self.kept.append(lease, drafts, blobs)
        await asyncio.sleep(0)

    def path(self, run_id: str = "r1") -> list[Mapping[str, Any]]:
        """Body of each transition that is durable."""
        return moves(self.kept, run_id)


class PendingJournal(SlowJournal):
    """The same, and an append is a `Pending`, as in the stores that have a writer thread."""

    def append(  # type: ignore[override]
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> Pending[None]:
        pending: Pending[None] = Pending()
        writing = asyncio.ensure_future(super().append(lease, drafts, blobs))

        def written(_: object) -> None:
            error = writing.exception()
            pending.set_result(None) if error is None else pending.set_exception(error)

        writing.add_done_callback(written)
        return pending


@dataclass
class Rig:
    """A machine with a driver, one run, and what was observed."""

    run: ToyRun
    driver: Driver
    facts: Facts
    clock: FakeClock


def rig(
    *plan: Event,
    graph: Graph = TOY,
    journal: Any = None,
    extra: Iterable[object] = (),
    turns: int = 100,
    strict: bool = False,
    **own: Hook,
) -> Rig:
    clock, facts = FakeClock(), Facts()
    made = machine(graph, extra, **own)
    driver = Driver(made, observers=(facts,), journal=journal, clock=clock, strict=strict)
    return Rig(new_run(made, *plan, turns=turns), driver, facts, clock)


async def suspended_at(number: int, inner: Coroutine[Any, Any, T], act: Callable[[], object]) -> T:
    """Await `inner` and call `act` when it, or the task of a run's work, is suspended for the `number`-th time."""
    counted = itertools.count(1)

    def suspended() -> None:
        if next(counted) == number:
            act()

    async def watched(work: Coroutine[Any, Any, Any]) -> Any:
        return await _watched(work, suspended)  # from 3.12 on a task must be a native coroutine

    def task(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
        if work.__qualname__ != AbandonableTask._run.__qualname__:  # what the journal's writer shields
            return asyncio.Task(work, loop=loop, **named)
        made = asyncio.Task(watched(work), loop=loop, **named)
        made.add_done_callback(lambda _: work.close())  # one cancelled before its first step never began
        return made

    loop = asyncio.get_running_loop()
    loop.set_task_factory(task)
    try:
        done: T = await watched(inner)
        return done
    finally:
        loop.set_task_factory(None)


@types.coroutine
def _watched(inner: Coroutine[Any, Any, T], suspended: Callable[[], None]) -> Generator[Any, Any, T]:
    error: BaseException | None = None
    while True:
        try:
            waiting = inner.send(None) if error is None else inner.throw(error)
        except StopIteration as stop:
            done: T = stop.value
            return done
        suspended()
        error = None
        try:
            yield waiting
        except BaseException as thrown:  # noqa: BLE001 - handed on to where it belongs
            error = thrown
