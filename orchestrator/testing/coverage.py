"""Measure which states, transitions and guard results of a graph the runs have covered, from facts only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from orchestrator.kernel.fact import (
    EventFailed,
    Fact,
    GuardEvaluated,
    RunCompleted,
    RunParked,
    RunStarted,
    Transition,
)
from orchestrator.kernel.graph import Graph, guard_name


class StateItem(NamedTuple):
    """A state of the graph."""

    state: str

    def __str__(self) -> str:
        return f"state {self.state}"


class TransitionItem(NamedTuple):
    """An edge of the graph. Edges that differ only in their guard are one transition."""

    source: str
    event: str
    dest: str

    def __str__(self) -> str:
        return f"transition {self.source} --{self.event}--> {self.dest}"


class GuardItem(NamedTuple):
    """A possible result of an edge's guard: `allow` or `deny`."""

    source: str
    event: str
    dest: str
    guard: str
    result: str

    def __str__(self) -> str:
        return f"guard {self.guard} never says {self.result}: {self.source} --{self.event}--> {self.dest}"


Item: TypeAlias = StateItem | TransitionItem | GuardItem

_KINDS: Mapping[str, type[Item]] = {"state": StateItem, "transition": TransitionItem, "guard": GuardItem}
_RESULTS = ("allow", "deny")


class CoverageShare(NamedTuple):
    """The number of covered items among the declared ones."""

    taken: int
    total: int

    @property
    def percent(self) -> float:
        """0 to 100; 100 if no item is declared."""
        return 100.0 * self.taken / self.total if self.total else 100.0

    def __str__(self) -> str:
        return f"{self.taken}/{self.total} {int(self.percent)} %"  # rounded down: 100 % means all items


class CoverageTally:
    """How often each item of one graph was covered. It can be read, merged and sent to another process."""

    def __init__(self, graph: str, fingerprint: str, counts: dict[Item, int]) -> None:
        self.graph = graph
        self.fingerprint = fingerprint
        self.counts = counts
        """Every declared item, in the order of the graph -> how often it was covered."""

    @property
    def states(self) -> CoverageShare:
        """States that a run was in."""
        return self._share(StateItem)

    @property
    def transitions(self) -> CoverageShare:
        """Transitions that a run took."""
        return self._share(TransitionItem)

    @property
    def guards(self) -> CoverageShare:
        """Results of guards: an allow and a deny for each guarded edge."""
        return self._share(GuardItem)

    @property
    def total(self) -> CoverageShare:
        """All items together: the value that `--graph-coverage-fail-under` checks."""
        return self._share(tuple)

    def missing(self) -> tuple[Item, ...]:
        """Return the uncovered items, in the order of the graph; `str` of an item is a line for a report."""
        return tuple(item for item, count in self.counts.items() if not count)

    def merge(self, *others: CoverageTally) -> None:
        """Add the counts of others for the same graph. Raises ValueError for a graph with another fingerprint."""
        for other in others:
            if other.fingerprint != self.fingerprint:
                raise ValueError(
                    f"coverage of {other.graph!r} belongs to another graph than that of {self.graph!r}"
                )
        for other in others:
            for item, count in other.counts.items():
                self.counts[item] += count

    def to_data(self) -> dict[str, Any]:
        """Return everything as plain data."""
        kinds = {item: kind for kind, item in _KINDS.items()}
        counts = [[kinds[type(item)], *item, count] for item, count in self.counts.items()]
        return {"graph": self.graph, "fingerprint": self.fingerprint, "counts": counts}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> CoverageTally:
        """Return the tally for the data of `to_data`."""
        counts = {_KINDS[kind](*names): count for kind, *names, count in data["counts"]}
        return CoverageTally(data["graph"], data["fingerprint"], counts)

    def _share(self, kind: type[tuple[Any, ...]]) -> CoverageShare:
        counts = [count for item, count in self.counts.items() if isinstance(item, kind)]
        return CoverageShare(sum(1 for count in counts if count), len(counts))


class GraphCoverage(CoverageTally):
    """An observer that counts the covered items of a graph. It may watch many runs; it ignores other graphs.

    A guard is identified by its position in the graph, not by the name in its verdict: `may_continue` returns the
    verdict of the budget that refused.

    Example:
        >>> from orchestrator.machines.llm_loop.graph import LLM_LOOP
        >>> print(GraphCoverage(LLM_LOOP).states)
        0/8 0 %
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.name, graph.fingerprint, dict.fromkeys(_items(graph), 0))
        self._initial = StateItem(graph.initial.value)
        self._guarded: dict[tuple[str, str], list[tuple[str, str]]] = {}
        """(source, event) -> (dest, guard) of its guarded edges, in the order of evaluation."""
        self._last_guards: dict[str, tuple[str, str, int]] = {}
        """Run id -> the edge evaluated last, while its event is still undecided."""
        for source, event, dest, edge in graph.rows:
            if edge.when is not None:
                guarded = self._guarded.setdefault((source.value, event.value), [])
                guarded.append((dest.value, guard_name(edge.when) or ""))

    def observe(self, fact: Fact) -> None:
        """Count a fact."""
        if fact.graph != self.graph:
            return
        if isinstance(fact, GuardEvaluated):
            state, event, row = self._last_guards.get(fact.run_id, ("", "", -1))
            row = row + 1 if (state, event) == (fact.state, fact.event) else 0
            self._last_guards[fact.run_id] = (fact.state, fact.event, row)
            rows = self._guarded.get((fact.state, fact.event), [])
            if row < len(rows):
                self._see(GuardItem(fact.state, fact.event, *rows[row], fact.result))
        elif isinstance(fact, Transition | EventFailed | RunParked | RunCompleted):
            self._last_guards.pop(fact.run_id, None)  # every guard of the event is decided now
        if isinstance(fact, Transition):
            self._see(TransitionItem(fact.source, fact.event, fact.dest), StateItem(fact.dest))
        elif isinstance(fact, RunStarted) and fact.origin == "new":  # a resumed run may be in any state
            self._see(self._initial)

    def _see(self, *items: Item) -> None:
        for item in items:
            if item in self.counts:  # a run of an extended graph of the same name may have further items
                self.counts[item] += 1


def report(tallies: Iterable[CoverageTally]) -> list[str]:
    """Return the lines of a table over several graphs, with the missing items under each."""
    ordered = sorted(tallies, key=lambda tally: (tally.graph, tally.fingerprint))
    names = [tally.graph for tally in ordered]
    rows: list[tuple[str, ...]] = [("graph", "states", "transitions", "guards", "total")]
    for tally in ordered:
        twin = names.count(tally.graph) > 1  # the fingerprints distinguish two graphs of one name
        name = f"{tally.graph} {tally.fingerprint[:8]}" if twin else tally.graph
        rows.append((name, *map(str, (tally.states, tally.transitions, tally.guards, tally.total))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines = [head]
    for line, tally in zip(table, ordered, strict=True):
        lines += [line, *(f"  missing {item}" for item in tally.missing())]
    return lines


def _items(graph: Graph) -> Iterator[Item]:
    """Yield every declared item of a graph."""
    for state in graph.states:
        yield StateItem(state.value)
    for source, event, dest, _ in graph.rows:
        yield TransitionItem(source.value, event.value, dest.value)
    for source, event, dest, edge in graph.rows:
        if edge.when is not None:
            for result in _RESULTS:
                yield GuardItem(source.value, event.value, dest.value, guard_name(edge.when) or "", result)
