"""Find paths through a graph, for a test of each edge without writing one, and walk along them.

The search does not evaluate guards: a path shows the edges of the graph, a walk the decisions of the guards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import Fact, Observer, Transition
from orchestrator.kernel.graph import Edge, Graph, guard_name
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.run import Run
from orchestrator.testing.clock import FakeClock
from orchestrator.testing.purity import stand_in

if TYPE_CHECKING:
    import pytest


class Hop(NamedTuple):
    """One step along an edge."""

    source: StrEnum
    event: StrEnum
    dest: StrEnum
    edge: Edge


Path: TypeAlias = tuple[Hop, ...]
"""Hops that start in the graph's initial state; each starts where the one before ended."""


def shortest_paths(graph: Graph) -> dict[StrEnum, Path]:
    """Return a shortest path to every state; among equally short ones the first in the order of the graph.

    Example:
        >>> from orchestrator.machines.llm_loop.graph import LLM_LOOP
        >>> {state.value: len(path) for state, path in shortest_paths(LLM_LOOP).items()}["finalize"]
        4
    """
    found: dict[StrEnum, Path] = {graph.initial: ()}
    ahead = deque((graph.initial,))
    while ahead:
        state = ahead.popleft()
        for hop in _from(graph, state):
            if hop.dest not in found:
                found[hop.dest] = (*found[state], hop)
                ahead.append(hop.dest)
    return found


def edge_paths(graph: Graph) -> tuple[Path, ...]:
    """Return, for each edge of the graph and in its order, a shortest path that ends with it.

    Example:
        >>> from orchestrator.machines.llm_loop.graph import LLM_LOOP
        >>> path_id(edge_paths(LLM_LOOP)[0])
        'start_loop->await_llm'
    """
    reached = shortest_paths(graph)
    return tuple((*reached[hop.source], hop) for hop in map(Hop._make, graph.rows))


def simple_paths(graph: Graph, *, to: StrEnum | Collection[StrEnum] | None = None) -> Iterator[Path]:
    """Yield every path that visits no state twice and ends in `to`: one state, several, or any end.

    Their number may grow exponentially with the graph, so they are generated lazily.
    """
    ends = graph.terminal | graph.rest if to is None else {to} if isinstance(to, str) else set(to)
    ahead: list[Path] = [()]
    while ahead:
        path = ahead.pop()
        state = path[-1].dest if path else graph.initial
        if state in ends:
            yield path
        visited = {graph.initial, *(hop.dest for hop in path)}
        ahead += [(*path, hop) for hop in reversed(_from(graph, state)) if hop.dest not in visited]


def path_id(path: Path) -> str:
    """Return a readable name for a path: its events, then its last state.

    Example:
        >>> from orchestrator.machines.llm_loop.graph import LLM_LOOP
        >>> path_id(edge_paths(LLM_LOOP)[1])
        'start_loop.llm_response->evaluate_response'
    """
    if not path:
        return "start"
    return f"{'.'.join(hop.event.value for hop in path)}->{path[-1].dest.value}"


def parametrize_paths(
    graph: Graph, paths: Callable[[Graph], Iterable[Path]] = edge_paths, *, argname: str = "path"
) -> pytest.MarkDecorator:
    """Return a decorator that runs a test once for each path, by default once for each edge of the graph.

    Example:
        @parametrize_paths(LLM_LOOP)
        async def test_every_edge_can_be_taken(path):
            await walk(LLM_LOOP, path, force=True)
    """
    import pytest

    chosen = list(paths(graph))
    return pytest.mark.parametrize(argname, chosen, ids=[path_id(path) for path in chosen])


class WalkDiverged(AssertionError):
    """A guard led the run along another edge than that of the path. `hop` is the expected one."""

    def __init__(self, hop: Hop, arrived: StrEnum) -> None:
        taken = f"{hop.event.value!r} in {hop.source.value!r} led to {arrived.value!r}"
        super().__init__(f"{taken}, the path says {hop.dest.value!r}")
        self.hop = hop
        self.arrived = arrived


@dataclass(frozen=True, slots=True)
class Walk:
    """A run along a path, with all facts that it published."""

    run: Run[Any, Any]
    facts: tuple[Fact, ...]

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """The transitions of the run."""
        return tuple(fact for fact in self.facts if isinstance(fact, Transition))


async def walk(
    graph: Graph,
    path: Path,
    ctx: Any = None,
    *,
    force: bool = False,
    observers: Iterable[Observer] = (),
) -> Walk:
    """Drive a run along a path with the real driver; each enter hook only returns the next event.

    A path that ends in a terminal, rest or waiting state is driven to its end there.

    Args:
        graph: The graph.
        path: The path.
        ctx: Context for the guards.
        force: Do not evaluate the guards: the path's edge is allowed, the edges before it are not.
        observers: Observers of the run.

    Raises:
        Refused: A guard refused the event.
        WalkDiverged: A guard selected another edge.
        ValueError: A guard needs a `ctx`.

    Example:
        done = await walk(LLM_LOOP, edge_paths(LLM_LOOP)[1], force=True)
        assert done.run.state == "evaluate_response"
    """
    if ctx is None and not force and any(hop.edge.when is not None for hop in path):
        raise ValueError(f"{path_id(path)}: a guard is evaluated on the way; give it a ctx, or force=True")
    trail = _Trail(path)
    facts = _Facts()
    machine = Machine(trail.forced(graph) if force else graph, trail.hooks(graph))
    driver = Driver(machine, observers=(facts, *observers), clock=FakeClock())
    trail.run = run = Run(machine, f"walk-{path_id(path)}", _Bare() if ctx is None else ctx, None)
    event = await driver.start(run)
    for hop in path:
        event = await driver.fire(run, event or hop.event)  # no enter hook runs after an internal edge
        if run.state != hop.dest:
            raise WalkDiverged(hop, run.state)
    if not graph.is_working(run.state):
        await driver.drive(run)
    return Walk(run, tuple(facts.seen))


@dataclass(slots=True)
class _Bare:
    """The minimal context that the kernel accepts."""

    iteration: int = 0


class _Facts:
    def __init__(self) -> None:
        self.seen: list[Fact] = []

    def observe(self, fact: Fact) -> None:
        self.seen.append(fact)


class _Trail:
    """A path on which a run finds its next edge by the number of its transitions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run: Run[Any, Any] | None = None

    async def follow(self, run: Run[Any, Any]) -> StrEnum | None:
        return self.path[run.seq].event if run.seq < len(self.path) else None

    def hooks(self, graph: Graph) -> Hooks:
        return Hooks({f"enter_{state.name.lower()}": (self.follow,) for state in graph.states})

    def forced(self, graph: Graph) -> Graph:
        """Return the graph with guards that follow the path. The guards' marks are kept for the lint."""
        return replace(graph, edges=tuple(self._force(edge) for edge in graph.edges))

    def _force(self, edge: Edge) -> Edge:
        if edge.when is None:
            return edge

        def on_the_path(_: object) -> bool:
            return self.run is not None and _is_row(self.path[self.run.seq].edge, edge)

        return replace(edge, when=stand_in(edge.when, on_the_path))


def _is_row(one: Edge, other: Edge) -> bool:
    """Compare guards by name only: a path of a graph also fits `strict_guards(graph)`."""
    same_guard = guard_name(one.when) == guard_name(other.when)
    return same_guard and replace(one, when=None) == replace(other, when=None)


def _from(graph: Graph, state: StrEnum) -> list[Hop]:
    return [Hop._make(row) for row in graph.rows if row[0] == state]
