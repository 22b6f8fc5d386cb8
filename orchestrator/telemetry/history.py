"""An observer that stores the path of a run, and visits and dwell times of each state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.kernel.fact import Fact, LLMCall, Transition


@dataclass(slots=True)
class StateStats:
    """Statistics of one state. Times are in seconds; `shortest` is 0 before the first completed visit."""

    visits: int = 0
    left: int = 0
    total: float = 0.0
    shortest: float = 0.0
    longest: float = 0.0
    tokens: int = 0

    @property
    def mean(self) -> float:
        """Mean seconds of a completed visit."""
        return self.total / self.left if self.left else 0.0

    def leave(self, seconds: float) -> None:
        """Count one completed visit."""
        self.shortest = seconds if not self.left else min(self.shortest, seconds)
        self.longest = max(self.longest, seconds)
        self.total += seconds
        self.left += 1

    def add(self, other: StateStats) -> None:
        """Add the visits of other runs."""
        if other.left:
            self.shortest = min(self.shortest, other.shortest) if self.left else other.shortest
        self.longest = max(self.longest, other.longest)
        self.visits += other.visits
        self.left += other.left
        self.total += other.total
        self.tokens += other.tokens


class History:
    """Keeps the last `limit` facts and the statistics of all facts. One History may observe many runs."""

    def __init__(self, limit: int = 10_000, facts: Iterable[Fact] = ()) -> None:
        self.facts: deque[Fact] = deque(maxlen=limit)
        self.states: dict[str, StateStats] = {}
        self.edges: dict[tuple[str, str, str], int] = {}
        self.edge_seconds: dict[tuple[str, str, str], float] = {}
        """Seconds in the source before the edge was taken, of all times together; not for edges that stay in it."""
        for fact in facts:
            self.observe(fact)

    def observe(self, fact: Fact) -> None:
        """Add a fact."""
        self.facts.append(fact)
        if isinstance(fact, Transition):
            edge = (fact.source, fact.event, fact.dest)
            self.count(edge, fact.dwell, is_first=fact.seq == 1, internal=fact.internal)
        elif isinstance(fact, LLMCall):
            self._stats(fact.state).tokens += fact.input_tokens + fact.output_tokens

    def add(self, other: History) -> None:
        """Add the statistics of another history."""
        for state, stats in other.states.items():
            self._stats(state).add(stats)
        for edge, count in other.edges.items():
            self.edges[edge] = self.edges.get(edge, 0) + count
        for edge, seconds in other.edge_seconds.items():
            self.edge_seconds[edge] = self.edge_seconds.get(edge, 0.0) + seconds

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """The stored transitions, oldest first."""
        return tuple(fact for fact in self.facts if isinstance(fact, Transition))

    @property
    def bottleneck(self) -> str | None:
        """The state with the longest total time, or None before the first transition."""
        timed = {name: stats.total for name, stats in self.states.items() if stats.left}
        return max(timed, key=lambda name: timed[name]) if timed else None

    @property
    def commonest(self) -> tuple[str, str, str] | None:
        """The most frequent (source, event, dest)."""
        return max(self.edges, key=lambda edge: self.edges[edge]) if self.edges else None

    def _stats(self, state: str) -> StateStats:
        found = self.states.get(state)
        if found is None:
            found = self.states[state] = StateStats()
        return found

    def count(self, edge: tuple[str, str, str], dwell: float, *, is_first: bool, internal: bool) -> None:
        """Add the statistics of a transition that is no fact: of a record, of which a long run has thousands.

        Args:
            edge: Source, event and destination.
            dwell: Seconds in the source.
            is_first: Whether it is the first of its run: no transition leads into the initial state.
            internal: Whether the run stays in the source.
        """
        source_name, _, dest = edge
        self.edges[edge] = self.edges.get(edge, 0) + 1
        source = self._stats(source_name)
        if is_first:
            source.visits += 1
        if internal:
            return
        source.visits = max(source.visits, source.left + 1)  # a History that was added later
        source.leave(dwell)
        self.edge_seconds[edge] = self.edge_seconds.get(edge, 0.0) + dwell
        self._stats(dest).visits += 1
