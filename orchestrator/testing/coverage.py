"""Which states, transitions and guard results of a graph the runs have shown. Knows facts, no runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from orchestrator.kernel.graph import Graph, guard_name
from orchestrator.kernel.record import (
    EventFailed,
    Fact,
    GuardEvaluated,
    RunCompleted,
    RunParked,
    RunStarted,
    Transition,
)


class StateItem(NamedTuple):
    """A state that a run may be in."""

    state: str

    def __str__(self) -> str:
        return f"state {self.state}"


class TransitionItem(NamedTuple):
    """An edge that a run may take. Rows that differ in their guard only are one transition."""

    source: str
    event: str
    dest: str

    def __str__(self) -> str:
        return f"transition {self.source} --{self.event}--> {self.dest}"


class GuardItem(NamedTuple):
    """An answer that the guard of an edge may give: `allow` or `deny`."""

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
    """How many of the declared items were seen."""

    taken: int
    total: int

    @property
    def percent(self) -> float:
        """0 to 100; where nothing is declared nothing is missing, so 100."""
        return 100.0 * self.taken / self.total if self.total else 100.0

    def __str__(self) -> str:
        return f"{self.taken}/{self.total} {int(self.percent)} %"  # rounded down: 100 % means every one


class CoverageTally:
    """How often each item of one table was seen. Can be read, added up and sent to another process."""

    def __init__(self, graph: str, fingerprint: str, counts: dict[Item, int]) -> None:
        self.graph = graph
        self.fingerprint = fingerprint
        self.counts = counts
        """Every declared item, in the order of the table -> how often it was seen."""

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
        """Answers of guards: an allow and a deny for each guarded edge."""
        return self._share(GuardItem)

    @property
    def total(self) -> CoverageShare:
        """All items together: what `--graph-coverage-fail-under` looks at."""
        return self._share(tuple)

    def missing(self) -> tuple[Item, ...]:
        """Return what was not seen, in the order of the table; `str` of an item is a line for a report."""
        return tuple(item for item, count in self.counts.items() if not count)

    def merge(self, *others: CoverageTally) -> None:
        """Add what others saw of the same table. Raises ValueError for a graph with another fingerprint."""
        for other in others:
            if other.fingerprint != self.fingerprint:
                raise ValueError(
                    f"coverage of {other.graph!r} is of another table than that of {self.graph!r}"
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
        """Return the tally that `to_data` described."""
        counts = {_KINDS[kind](*names): count for kind, *names, count in data["counts"]}
        return CoverageTally(data["graph"], data["fingerprint"], counts)

    def _share(self, kind: type[tuple[Any, ...]]) -> CoverageShare:
        counts = [count for item, count in self.counts.items() if isinstance(item, kind)]
        return CoverageShare(sum(1 for count in counts if count), len(counts))


class GraphCoverage(CoverageTally):
    """An observer that ticks off the items of a graph. It may watch many runs; other graphs' facts pass by.

    A guard is known by its place in the table, not by the name in its verdict: `may_continue` answers with
    the verdict of whichever budget refused.

    Example:
        >>> from orchestrator.machines.llm_loop.graph import LLM_LOOP
        >>> print(GraphCoverage(LLM_LOOP).states)
        0/8 0 %
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.name, graph.fingerprint, dict.fromkeys(_items(graph), 0))
        self._initial = StateItem(graph.initial.value)
        self._guarded: dict[tuple[str, str], list[tuple[str, str]]] = {}
        """(source, event) -> (dest, guard) of its guarded rows, in the order in which they are asked."""
        self._last_asked: dict[str, tuple[str, str, int]] = {}
        """Run id -> the row asked last, while its event is still being decided."""
        for source, event, dest, edge in graph.rows:
            if edge.when is not None:
                guarded = self._guarded.setdefault((source.value, event.value), [])
                guarded.append((dest.value, guard_name(edge.when) or ""))

    def observe(self, fact: Fact) -> None:
        """Take note of a fact."""
        if fact.graph != self.graph:
            return
        if isinstance(fact, GuardEvaluated):
            self._answered(fact)
        elif isinstance(fact, Transition | EventFailed | RunParked | RunCompleted):
            self._last_asked.pop(fact.run_id, None)  # whatever was asked is decided
        if isinstance(fact, Transition):
            self._see(TransitionItem(fact.source, fact.event, fact.dest), StateItem(fact.dest))
        elif isinstance(fact, RunStarted) and fact.origin == "new":  # a resumed run may be anywhere
            self._see(self._initial)

    def _answered(self, fact: GuardEvaluated) -> None:
        state, event, row = self._last_asked.get(fact.run_id, ("", "", -1))
        row = row + 1 if (state, event) == (fact.state, fact.event) else 0
        self._last_asked[fact.run_id] = (fact.state, fact.event, row)
        rows = self._guarded.get((fact.state, fact.event), [])
        if row < len(rows):
            self._see(GuardItem(fact.state, fact.event, *rows[row], fact.result))

    def _see(self, *items: Item) -> None:
        for item in items:
            if item in self.counts:  # a run of an extended graph of the same name may show more
                self.counts[item] += 1


def report(tallies: Iterable[CoverageTally]) -> list[str]:
    """Return the lines of a table over several graphs, what is missing listed under each."""
    ordered = sorted(tallies, key=lambda tally: (tally.graph, tally.fingerprint))
    names = [tally.graph for tally in ordered]
    rows: list[tuple[str, ...]] = [("graph", "states", "transitions", "guards", "total")]
    for tally in ordered:
        twin = names.count(tally.graph) > 1  # two tables of one name are told apart by their fingerprint
        name = f"{tally.graph} {tally.fingerprint[:8]}" if twin else tally.graph
        rows.append((name, *map(str, (tally.states, tally.transitions, tally.guards, tally.total))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *table = [_line(row, widths) for row in rows]
    lines = [head]
    for line, tally in zip(table, ordered, strict=True):
        lines += [line, *(f"  missing {item}" for item in tally.missing())]
    return lines


def _items(graph: Graph) -> Iterator[Item]:
    """Yield everything that a graph declares."""
    for state in graph.states:
        yield StateItem(state.value)
    for source, event, dest, _ in graph.rows:
        yield TransitionItem(source.value, event.value, dest.value)
    for source, event, dest, edge in graph.rows:
        if edge.when is not None:
            for result in _RESULTS:
                yield GuardItem(source.value, event.value, dest.value, guard_name(edge.when) or "", result)


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
