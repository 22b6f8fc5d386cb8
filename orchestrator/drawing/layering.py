"""The rank and the column of each state, and what becomes of each edge, from the table alone.

A rank is the longest path from the start over edges that are not back edges. The longest such path is the spine, in
column 0; every other state takes the free column of its rank that is nearest to its neighbours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from orchestrator.kernel.graph import Graph

Row: TypeAlias = tuple[str, str, str]
"""Source, event, destination."""
Pair: TypeAlias = tuple[str, str]
"""Source and destination."""

_FEWEST = 3
"""Edges of the failure event into one state from which on they are drawn as one bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The position of each state in the grid of a drawing."""

    initial: str
    terminal: frozenset[str]
    rank: Mapping[str, int]
    column: Mapping[str, int]
    edges: Mapping[Pair, tuple[str, ...]]
    """Events between two states; edges to their own state and failure edges are not here."""
    loops: Mapping[str, tuple[str, ...]]
    """Events that stay in a state."""
    failures: tuple[Row, ...]
    """Failure edges, which share one line."""

    @property
    def cells(self) -> frozenset[tuple[int, int]]:
        """The occupied cells, by rank and column."""
        return frozenset((self.rank[state], self.column[state]) for state in self.rank)


def layers(graph: Graph) -> Layers:
    """Return the grid of a graph. The same table always gives the same grid."""
    rows = list(dict.fromkeys((s.value, e.value, d.value) for s, e, d, _ in graph.rows))
    failures = _failures(graph, rows)
    kept = [row for row in rows if row not in set(failures)]
    edges = _grouped((pair, event) for *pair, event in ((s, d, e) for s, e, d in kept if s != d))
    loops = _grouped(((s, s), event) for s, event, d in kept if s == d)
    start = graph.initial.value
    order, back = _depth_first(start, [state.value for state in graph.states], edges)
    forward = [pair for pair in edges if pair not in back]
    rank = _ranks(order, forward)
    bus = failures[0][2] if failures else None
    if bus is not None and not any(d == bus for _, d in edges):
        rank[bus] = max(found for state, found in rank.items() if state != bus) + 1
    return Layers(
        initial=start,
        terminal=frozenset(state.value for state in graph.terminal),
        rank=rank,
        column=_columns(order, rank, _spine(start, rank, forward), edges, bus),
        edges=edges,
        loops={state: events for (state, _), events in loops.items()},
        failures=tuple(failures),
    )


def _failures(graph: Graph, rows: Sequence[Row]) -> list[Row]:
    """Return the edges of failure events into the state that most of them lead to, if there are enough."""
    events = {state: event.value for state, event in graph.failure_events.items() if event is not None}
    found = [(s, e, d) for s, e, d in rows if events.get(s) == e and s != d]
    into = Counter(dest for _, _, dest in found).most_common(1)
    if not into or into[0][1] < _FEWEST:
        return []
    return [row for row in found if row[2] == into[0][0]]


def _grouped(found: Iterable[tuple[Sequence[str], str]]) -> dict[Pair, tuple[str, ...]]:
    pairs: dict[Pair, list[str]] = defaultdict(list)
    for (source, dest), event in found:
        pairs[source, dest].append(event)
    return {pair: tuple(events) for pair, events in pairs.items()}


def _successors(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for source, dest in pairs:
        found[source].append(dest)
    return found


def _depth_first(start: str, states: Sequence[str], edges: Iterable[Pair]) -> tuple[list[str], set[Pair]]:
    """Return the states in the order of a depth-first search, and the edges to an ancestor."""
    after = _successors(edges)
    order: list[str] = []
    back: set[Pair] = set()
    open_: set[str] = set()
    seen: set[str] = set()
    for root in (start, *states):
        if root in seen:
            continue
        seen.add(root)
        open_.add(root)
        order.append(root)
        stack: list[tuple[str, Iterator[str]]] = [(root, iter(after[root]))]
        while stack:
            state, rest = stack[-1]
            if (dest := next(rest, None)) is None:
                open_.discard(stack.pop()[0])
            elif dest in open_:
                back.add((state, dest))
            elif dest not in seen:
                seen.add(dest)
                open_.add(dest)
                order.append(dest)
                stack.append((dest, iter(after[dest])))
    return order, back


def _ranks(order: Sequence[str], forward: Sequence[Pair]) -> dict[str, int]:
    """Return the longest path to each state: states in topological order, each after all that lead to it."""
    after, waits = _successors(forward), Counter(dest for _, dest in forward)
    rank = dict.fromkeys(order, 0)
    ready = [state for state in order if not waits[state]]
    for state in ready:  # grows
        for dest in after[state]:
            rank[dest] = max(rank[dest], rank[state] + 1)
            waits[dest] -= 1
            if not waits[dest]:
                ready.append(dest)
    return rank


def _spine(start: str, rank: Mapping[str, int], forward: Sequence[Pair]) -> list[str]:
    """Return the longest forward path from the start; of equal ones the first of the table."""
    after = _successors(forward)
    far = dict.fromkeys(rank, 0)
    for state in sorted(rank, key=rank.__getitem__, reverse=True):
        far[state] = max((far[dest] + 1 for dest in after[state]), default=0)
    path = [start]
    while after[path[-1]]:
        path.append(max(after[path[-1]], key=far.__getitem__))
    return path


def _columns(
    order: Sequence[str],
    rank: Mapping[str, int],
    spine: Sequence[str],
    edges: Iterable[Pair],
    bus: str | None,
) -> dict[str, int]:
    column = dict.fromkeys(spine, 0)
    used = {(rank[state], 0) for state in column}
    if bus is not None and (rank[bus], 0) not in used:
        column[bus] = 0
        used.add((rank[bus], 0))
    near: dict[str, list[str]] = defaultdict(list)
    for source, dest in edges:
        near[source].append(dest)
        near[dest].append(source)
    for state in sorted((one for one in order if one not in column), key=rank.__getitem__):
        found = [column[other] for other in near[state] if other in column]
        best = max(1, round(sum(found) / len(found))) if found else 1
        column[state] = _nearest(best, rank[state], used)
        used.add((rank[state], column[state]))
    return column


def _nearest(best: int, rank: int, used: set[tuple[int, int]]) -> int:
    """Return the free column from 1 on that is nearest to `best`, the right one of two."""
    distance = 0
    while True:
        for column in (best + distance, best - distance):
            if column >= 1 and (rank, column) not in used:
                return column
        distance += 1
