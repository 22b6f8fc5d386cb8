"""The instruments of one registry, their allowed label values, and the sources of its live gauges.

It imports no metrics library.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

from orchestrator.kernel.graph import Graph
from orchestrator.kernel.outcome import REASONS
from orchestrator.telemetry.catalogue import BACKENDS, CATALOGUE, Metric, MetricKind, MetricSource
from orchestrator.telemetry.edge import MOST_NOTED, EdgeMeters, LatestGauge
from orchestrator.telemetry.engine import Engine
from orchestrator.telemetry.labels import (
    CAPS,
    FOLDED,
    OTHER,
    UNKNOWN,
    UNREGISTERED,
    LabelValues,
    MachineNames,
    guard_names,
    likely_failures,
)
from orchestrator.telemetry.live import LiveRuns
from orchestrator.telemetry.tally import LineCounts


class Counter(Protocol):
    """The used interface of a counter."""

    @property
    def add(self) -> Callable[[float], None]:
        """The fastest form of `inc`."""
        ...

    @property
    def noted(self) -> Sequence[float]:
        """Amounts that were added and not summed up yet."""
        ...

    def settle(self) -> None: ...

    def inc(self, amount: float = 1) -> None: ...


class Gauge(Protocol):
    """The used interface of a gauge."""

    def set(self, value: float) -> None: ...


class Histogram(Protocol):
    """The used interface of a histogram."""

    @property
    def take(self) -> Callable[[float], None]:
        """The fastest form of `observe`."""
        ...

    @property
    def noted(self) -> Sequence[float]:
        """Amounts that were observed and not added up yet."""
        ...

    def settle(self) -> None: ...

    def take_all(self, amounts: Sequence[float]) -> None: ...

    def observe(self, amount: float, exemplar: Mapping[str, str] | None = None) -> None: ...


M = TypeVar("M")
Maker = Callable[[Metric], Any]
"""Creates the instrument of a row: an object with labels(*values), or one that is its own child."""


class Children(dict[tuple[str, ...], M], Generic[M]):
    """(metric, *label values) -> the child, created at its first use.

    A dict lookup costs a quarter of the `labels()` call that it saves.
    """

    def __init__(self, kind: MetricKind, make: Maker) -> None:
        super().__init__()
        self._parents = {
            metric.name: make(metric)
            for metric in CATALOGUE
            if metric.kind is kind and metric.made is MetricSource.OBSERVED
        }

    def __missing__(self, key: tuple[str, ...]) -> M:
        parent = self._parents[key[0]]
        child: M = parent.labels(*key[1:]) if key[1:] else parent
        self[key] = child
        return child


Add: TypeAlias = Callable[[float], None]
"""Adds to a counter, observes in a histogram or sets a gauge."""


@dataclass(frozen=True, slots=True)
class ModelMeters:
    """The meters of one answered request to a model, looked up once for each (machine, state, model)."""

    machine: str
    model: tuple[str, str]
    """(provider, model): these two are label values."""
    attempt: Add
    request: Add
    seconds: Histogram
    input: tuple[Add, Add]
    """For the tokens of the model, and of the state."""
    output: tuple[Add, Add]


@dataclass(frozen=True, slots=True)
class ToolMeters:
    """The meters of one call of a tool that ran, looked up once for each (machine, tool, outcome)."""

    attempt: Add
    call: Add
    seconds: Histogram


@dataclass(frozen=True, slots=True)
class StoreMeters:
    """The meters of one append to a journal, looked up once for each backend."""

    seconds: Add
    set_time: Add


class Instruments:
    """The shared state of all observers on one registry. A second declaration adds names, and never counts anything."""

    def __init__(self, make: Maker, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self.counters: Children[Counter] = Children(MetricKind.COUNTER, make)
        self.gauges: Children[Gauge] = Children(MetricKind.GAUGE, make)
        self.histograms: Children[Histogram] = Children(MetricKind.HISTOGRAM, make)
        self.edges: dict[tuple[str, str, str, str], EdgeMeters] = {}
        self._latest: dict[str, LatestGauge] = {}
        self._singles = 0
        self.answers: dict[tuple[str, str, str], ModelMeters] = {}
        """(machine, state, model) -> meters of an answer, if all three were declared."""
        self.calls: dict[tuple[str, str, str], ToolMeters] = {}
        """(machine, tool, outcome) -> meters of a call, if the first two were declared."""
        self.guard_counters: dict[tuple[str, str, bool], Add] = {}
        """(machine, guard, allowed) -> counter of evaluations, if the first two were declared."""
        self.appends: dict[str, StoreMeters] = {}
        """Backend -> meters of an append, if it was declared."""
        self._tools = LabelValues(CAPS["tool"], lambda: self.fold("tool"), rest=UNREGISTERED)
        self._models = LabelValues(CAPS["model"], lambda: self.fold("model"))
        self._backends = LabelValues(CAPS["backend"], lambda: self.fold("backend"))
        self._machines: dict[str, MachineNames] = {}
        self._undeclared = MachineNames(OTHER, self._guards(0))
        self._providers: dict[str, str] = {}
        self.live = LiveRuns()
        self._engines: WeakSet[Engine] = WeakSet()
        self._lock = threading.Lock()
        self.tallies: list[LineCounts] = []
        """Counts of the watched logs and writers. Kept after their end: a counter never decreases."""
        self.stores: dict[tuple[str, str], Callable[[], int]] = {}
        """(backend, name of the store) -> its size in bytes."""
        for backend in BACKENDS:
            self._backends.declare(backend)
        for label, metric in FOLDED.items():
            self.counters["label_overflow_total", metric, label]
        self._precreate({})

    def fold(self, label: str) -> None:
        """Count one label value that became `_other`."""
        self.counters["label_overflow_total", FOLDED[label], label].inc()

    def machine(self, name: str) -> MachineNames:
        """Return the declared names of a machine; an undeclared one is `_other` with unknown states."""
        found = self._machines.get(name)
        if found is None:
            self.fold("machine")
            return self._undeclared
        return found

    def known(self, name: str) -> MachineNames:
        """Return the same without counting a fold: for scrapes, which add no information."""
        return self._machines.get(name, self._undeclared)

    def watch(self, engine: Engine) -> None:
        """Read the load of an engine at each scrape from now on."""
        with self._lock:
            self._engines.add(engine)

    def unwatch(self, engine: Engine) -> None:
        """Stop reading the load of an engine."""
        with self._lock:
            self._engines.discard(engine)

    def watched(self) -> list[Engine]:
        """Return the watched engines."""
        with self._lock:
            return list(self._engines)

    def machines(self) -> list[MachineNames]:
        """Return the declared machines, in the order of declaration."""
        return list(self._machines.values())

    def tool(self, name: str) -> str:
        """Return the label value of a tool."""
        return self._tools.of(name)

    def model(self, name: str) -> tuple[str, str]:
        """Return (provider, model) as label values."""
        value = self._models.of(name)
        return self._providers.get(value, UNKNOWN), value

    def backend(self, name: str) -> str:
        """Return the label value of a journal's backend."""
        return self._backends.of(name)

    def edge(self, machine: str, source: str, event: str, dest: str) -> EdgeMeters:
        """Return the meters of an edge. All undeclared edges share theirs."""
        names = self.machine(machine)
        known = (source, event, dest) in names.edges
        if not known:
            source, event, dest = UNKNOWN, UNKNOWN, UNKNOWN
        name = names.name
        if name not in self._latest:
            self._latest[name] = LatestGauge(self.gauges["last_transition_timestamp_seconds", name].set)
        meters = EdgeMeters(
            self.counters["transitions_total", name, source, event, dest].inc,
            self.counters["state_entries_total", name, dest].inc,
            self._latest[name],
            stay=self.histograms["state_duration_seconds", name, source],
            overhead=self.histograms["transition_overhead_seconds", name],
            lap=self.histograms["iteration_duration_seconds", name].take,
            at_once=self._at_once or not known,
        )
        _add_edge(meters, names, source, event, dest)
        return self.edges.setdefault((machine, source, event, dest), meters) if known else meters

    def settle(self) -> None:
        """Add up the pending transitions of all edges."""
        for meters in tuple(self.edges.values()):
            if meters.noted:
                meters.settle()

    def make_room(self, meters: EdgeMeters) -> None:
        """Add up this edge, which has enough pending transitions, and all others.

        If an edge is added up at each transition, the others follow only every MOST_NOTED times.
        """
        meters.settle()
        if meters.most == 1:
            self._singles += 1
            if self._singles % MOST_NOTED:
                return
        self.settle()
        children: tuple[Histogram | Counter, ...] = (*self.histograms.values(), *self.counters.values())
        for child in children:
            if child.noted:
                child.settle()

    def labels_of(self, machine: str, state: str) -> tuple[str, str]:
        """Return (machine, state) as label values."""
        names = self.machine(machine)
        return names.name, names.state(state)

    def answer(self, machine: str, state: str, model: str) -> ModelMeters:
        """Return the meters of an answered request."""
        names, about = self.machine(machine), self.model(model)
        name, state_label = names.name, names.state(state)
        count = self.counters

        def tokens(direction: str) -> tuple[Add, Add]:
            of_model = count["llm_tokens_total", name, *about, direction]
            return of_model.add, count["state_tokens_total", name, state_label, direction].add

        meters = ModelMeters(
            name,
            about,
            count["attempts_total", name, "llm"].add,
            count["llm_requests_total", *about, "ok"].add,
            self.histograms["llm_request_duration_seconds", *about],
            tokens("input"),
            tokens("output"),
        )
        if (name, state_label, about[1]) == (machine, state, model) and model != OTHER:
            self.answers[machine, state, model] = meters
        return meters

    def call(self, machine: str, tool: str, outcome: str) -> ToolMeters:
        """Return the meters of a call that ran. `outcome` is one of the catalogue."""
        name, label = self.machine(machine).name, self.tool(tool)
        meters = ToolMeters(
            self.counters["attempts_total", name, "tool"].add,
            self.counters["tool_calls_total", label, outcome].add,
            self.histograms["tool_call_duration_seconds", label],
        )
        if (name, label) == (machine, tool) and tool != OTHER:
            self.calls[machine, tool, outcome] = meters
        return meters

    def append(self, backend: str) -> StoreMeters:
        """Return the meters of an append."""
        label = self.backend(backend)
        meters = StoreMeters(
            self.histograms["journal_write_duration_seconds", label, "append"].take,
            self.gauges["journal_last_success_timestamp_seconds", label].set,
        )
        if label == backend != OTHER:
            self.appends[backend] = meters
        return meters

    def ask(self, machine: str, guard: str, *, allowed: bool) -> Add:
        """Return the counter of evaluations that a guard allowed or denied."""
        names = self.machine(machine)
        label = names.guards.of(guard)
        result = "allow" if allowed else "deny"
        count = self.counters["guard_evaluations_total", names.name, label, result].add
        if (names.name, label) == (machine, guard) and guard != OTHER:
            self.guard_counters[machine, guard, allowed] = count
        return count

    def declare(
        self,
        graph: Graph,
        tools: Iterable[str],
        models: Iterable[tuple[str, str]],
        guards: Iterable[str],
        backends: Iterable[str],
        *,
        run_seconds: float | None = None,
    ) -> None:
        """Create every series of these names at 0. `models` are (provider, model)."""
        names = self._machines.get(graph.name)
        if names is None:
            if len(self._machines) >= CAPS["machine"]:
                self.fold("machine")
                return
            names = self._machines[graph.name] = MachineNames(graph.name, self._guards(CAPS["guard"]))
        names.learn(graph, run_seconds)
        for (
            machine,
            *edge,
        ), meters in self.edges.items():  # they may be in use, so they get the names that are known now
            if machine == names.name:
                _add_edge(meters, names, *edge)
        for cached in (self.answers, self.calls, self.guard_counters, self.appends):
            cached.clear()
        known = {
            "machine": [names.name],
            "state": sorted(names.states),
            "guard": [names.guards.declare(guard) for guard in (*guard_names(graph), *guards)],
            "tool": [UNREGISTERED, *(self._tools.declare(tool) for tool in tools)],
            "backend": [self._backends.declare(backend) for backend in backends],
        }
        pairs = [(provider, self._models.declare(model)) for provider, model in models]
        self._providers.update((model, provider) for provider, model in pairs if model != OTHER)
        for provider, model in pairs or [("", "")]:
            self._precreate(known | ({"provider": [provider], "model": [model]} if model else {}))
        self._precreate_edges(names, graph)

    def _guards(self, cap: int) -> LabelValues:
        return LabelValues(cap, lambda: self.fold("guard"), admits=True)

    def _precreate(self, known: dict[str, list[str]]) -> None:
        """Create the children of every row whose labels are all known here or closed in the row itself."""
        for metric in CATALOGUE:
            if not metric.zero or metric.made is not MetricSource.OBSERVED:
                continue
            axes = [metric.values.get(label) or tuple(known.get(label, ())) for label in metric.labels]
            family: Children[Any] = self.counters if metric.kind is MetricKind.COUNTER else self.histograms
            for values in product(*axes):
                family[metric.name, *values]

    def _precreate_edges(self, names: MachineNames, graph: Graph) -> None:
        name = names.name
        for source, event, dest in sorted(names.edges):
            self.counters["transitions_total", name, source, event, dest]
        for outcome, reasons in REASONS.items():
            for reason in sorted(reasons):
                self.counters["runs_completed_total", name, outcome.value, reason]
        for failure in likely_failures(graph):
            self.counters["transition_failures_total", name, *failure]


def _add_edge(meters: EdgeMeters, names: MachineNames, source: str, event: str, dest: str) -> None:
    meters.begins = source == names.head
    meters.ends = dest == names.head or (dest in names.terminal and (source, event) not in names.failures)
