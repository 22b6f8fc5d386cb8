"""Random tables, hooks and faults: whatever happens, a run ends, parks or raises, and its facts add up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import JournalError, Refused
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import Fact, RunCompleted, RunParked, RunStarted, Transition
from orchestrator.kernel.graph import Edge, Graph
from orchestrator.kernel.hooks import Hooks, collect
from orchestrator.kernel.journal import Draft, Lease
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.mailbox import Signal
from orchestrator.kernel.run import Run
from orchestrator.telemetry.history import History
from tests.kernel.toy import moves as journalled

ACTS = ("go", "go", "go", "nothing", "raise", "refuse", "wrong", "wait", "stop", "cancel")
"""What a hook may do. Twice as likely: to go on."""


@dataclass
class Context:
    """`acts` is what hooks will do, in order; when it is used up, the caller is cancelled."""

    acts: list[tuple[str, int]]
    iteration: int = 0
    verdicts: list[bool] = field(default_factory=list)


class FlakyJournal(MemoryJournal):
    def __init__(self, breaks_at: int) -> None:
        super().__init__()
        self.left = breaks_at

    def append(self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise JournalError("disk full")
        super().append(lease, drafts, blobs)


def guard(ctx: Context) -> bool:
    return not ctx.verdicts or ctx.verdicts.pop()


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A table whose states all can be reached, and that is otherwise anything."""
    count = draw(st.integers(2, 6))
    states: Any = StrEnum("State", [f"S{n}" for n in range(count)])  # type: ignore[misc]
    events: Any = StrEnum("Event", [f"E{n}" for n in range(draw(st.integers(1, 4)))])  # type: ignore[misc]
    listed, named = list(states), list(events)
    chain = [Edge(draw(st.sampled_from(named)), (a,), b) for a, b in pairwise(listed)]
    row = st.builds(
        Edge,
        st.sampled_from(named),
        st.lists(st.sampled_from(listed), min_size=1, max_size=3, unique=True).map(tuple),
        st.sampled_from(listed),
        st.sampled_from([None, None, guard]),
        st.booleans(),
    )
    some = st.frozensets(st.sampled_from(listed))
    terminal = draw(some) | {listed[-1]}
    return Graph(
        name="random",
        states=states,
        events=events,
        initial=listed[0],
        edges=(*draw(st.lists(row, max_size=10)), *chain),
        terminal=terminal,
        waiting=draw(some) - terminal,
        pure=draw(some),
        failure=draw(st.sampled_from([None, *named])),
        strict=False,
    )


async def act(run: Run[Context, None]) -> Any:
    run.ctx.iteration += 1
    kind, number = run.ctx.acts.pop() if run.ctx.acts else ("cancel", 0)
    match kind:
        case "raise":
            raise ValueError(number)
        case "refuse":
            raise Refused("no")
        case "wrong":
            return "nowhere"
        case "stop":
            run.stop(OSError("stopped"))
        case "wait":
            await asyncio.sleep(0)
        case "cancel":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        case "go":
            events = run.machine.events_from(run.cursor.state)
            return events[number % len(events)] if events else None
    return None


def bound(graph: Graph) -> Hooks:
    """Hooks in every slot; enter hooks in terminal states only where these can fail."""
    names = {"before_event", "leave_state", "after_event"}
    names |= {
        f"enter_{state.name.lower()}"
        for state in graph.states
        if state not in graph.terminal or graph.failure is None or graph.failure_event(state)
    }
    return collect(graph, SimpleNamespace(**dict.fromkeys(names, act)))


class Recorder:
    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def observe(self, fact: Fact) -> None:
        self.facts.append(fact)


async def carry(driver: Driver, run: Run[Context, None]) -> None:
    """Drive as an owner would who tries again a few times, whatever happens."""
    for _ in range(3):
        with contextlib.suppress(asyncio.CancelledError, Exception):  # anything may reach the caller
            await driver.drive(run)
        task = asyncio.current_task()
        assert task is not None
        while task.cancelling():
            task.uncancel()
        assert not run.control.driving
        assert run.control.interrupt is None
        if run.ended or run.started_at is None:
            return
        run.mailbox.post(
            Signal(run.machine.events_from(run.cursor.state)[0] if run.available_events() else None)
        )


def check(run: Run[Context, None], facts: list[Fact], journal: MemoryJournal | None) -> None:
    moves = [fact for fact in facts if isinstance(fact, Transition)]
    rows = {(source.value, event.value, dest.value) for source, event, dest, _ in run.graph.rows}
    assert [fact.seq for fact in moves] == list(range(1, len(moves) + 1))
    assert len(moves) == run.seq
    assert all((fact.source, fact.event, fact.dest) in rows for fact in moves)
    assert [fact.source for fact in moves[1:]] == [fact.dest for fact in moves[:-1]]
    if moves:
        assert moves[0].source == run.graph.initial.value
    if not run.control.detached:
        assert run.cursor.state == (moves[-1].dest if moves else run.graph.initial.value)
    assert (run.writes.unpublished, run.writes.drafts) == ([], [])
    kinds = Counter(type(fact) for fact in facts)
    assert kinds[RunCompleted] == int(run.ended)
    assert kinds[RunStarted] in (kinds[RunParked], kinds[RunParked] + 1)
    assert isinstance(facts[-1], RunCompleted | RunParked)
    assert run.ended == (kinds[RunStarted] == kinds[RunParked] + 1)
    if run.ended:
        assert run.state in run.graph.terminal
    if journal is not None:
        kept = journalled(journal, run.run_id)
        assert [(body["seq"], body["event"]) for body in kept] == [(fact.seq, fact.event) for fact in moves]


ACT_LISTS = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 9)), max_size=40)


@given(graphs(), ACT_LISTS, st.lists(st.booleans(), max_size=5), st.sampled_from([None, 0, 1, 2, 3, 5]))
def test_a_run_ends_parks_or_raises_and_its_facts_are_a_path_of_the_table(
    graph: Graph, acts: list[tuple[str, int]], verdicts: list[bool], breaks_at: int | None
) -> None:
    async def main() -> None:
        recorder, history = Recorder(), History()
        journal = None if breaks_at is None else FlakyJournal(breaks_at)
        machine = Machine(graph, bound(graph))
        run: Run[Context, None] = Run(machine, "r", Context(acts, verdicts=verdicts), None)
        driver = Driver(machine, observers=(recorder, history), journal=journal)
        await carry(driver, run)
        check(run, recorder.facts, journal)
        assert sum(history.edges.values()) == run.seq
        assert driver.observer_errors == {}
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@given(graphs())
def test_a_table_and_its_copy_have_one_fingerprint_and_the_same_findings(graph: Graph) -> None:
    copy = graph.extend()
    assert copy.fingerprint == graph.fingerprint
    assert copy.describe() == graph.describe()
    assert copy.lint() == graph.lint()


@given(graphs())
def test_what_the_lint_passes_has_a_way_to_an_end_from_every_state(graph: Graph) -> None:
    if graph.lint():
        return
    ends = set(graph.terminal | graph.rest)
    for _ in graph.states:
        ends |= {source for source, _, dest, _ in graph.rows if dest in ends}
    assert ends == set(graph.states)
