"""The instruments of one registry, their allowed label values, and the sources of its live gauges.

It imports no metrics library.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from orchestrator.kernel.graph import Graph
from orchestrator.kernel.outcome import REASONS
from orchestrator.kernel.record import RunCompleted, RunParked
from orchestrator.telemetry.catalogue import BACKENDS, CATALOGUE, Metric, MetricKind, MetricSource
from orchestrator.telemetry.engine import Engine
from orchestrator.telemetry.head_gauge import HeadGauges
from orchestrator.telemetry.labels import (
    CAPS,
    FOLDED,
    NO_AGENT,
    OTHER,
    UNKNOWN,
    UNREGISTERED,
    LabelValues,
    MachineNames,
    guard_names,
    likely_failures,
)
from orchestrator.telemetry.live import Key, LiveRuns
from orchestrator.telemetry.meter_cache import MeterCache
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


MOST_LEFT = 1_000

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


class Instruments:
    """The shared state of all observers on one registry. A second declaration adds names, and never counts anything."""

    def __init__(self, make: Maker, *, at_once: bool = False) -> None:
        self.collectors: list[Any] = []
        """What the registry has of these."""
        self.counters: Children[Counter] = Children(MetricKind.COUNTER, make)
        self.gauges: Children[Gauge] = Children(MetricKind.GAUGE, make)
        self.histograms: Children[Histogram] = Children(MetricKind.HISTOGRAM, make)
        self.meters = MeterCache(self, at_once=at_once)
        self._agents = LabelValues(CAPS["agent"], lambda: self.fold("agent"), rest=OTHER)
        self._tools = LabelValues(CAPS["tool"], lambda: self.fold("tool"), rest=UNREGISTERED)
        self._models = LabelValues(CAPS["model"], lambda: self.fold("model"))
        self._backends = LabelValues(CAPS["backend"], lambda: self.fold("backend"))
        self._machines: dict[str, MachineNames] = {}
        self._undeclared = MachineNames(OTHER, self._guards(0))
        self._providers: dict[str, str] = {}
        self.live = LiveRuns()
        self.left: dict[Key, str] = {}
        """Run -> its agent, of the last MOST_LEFT runs that ended or were parked: work that they left reports later."""
        self._engines: WeakSet[Engine] = WeakSet()
        self._lock = threading.Lock()
        self.tallies: list[LineCounts] = []
        """Counts of the watched logs and writers. Kept after their end: a counter never decreases."""
        self.loops: list[Callable[[], float | None]] = []
        """Ages of the watched event loops in seconds; None for one that does not run."""
        self.objectives: dict[str, float] = {}
        """Agent -> seconds within which its runs should end."""
        self.heads = HeadGauges()
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

    def agent(self, name: str) -> str:
        """Return the label value of an agent; an empty name is that of a run without an agent."""
        return self._agents.of(name) if name else NO_AGENT

    def known_agent(self, name: str) -> str:
        """Return the same without counting a fold."""
        return name if name in self._agents else OTHER if name else NO_AGENT

    def run(self, machine: str, agent: str) -> tuple[str, str]:
        """Return (machine, agent) as label values."""
        return self.machine(machine).name, self.agent(agent)

    def agent_of(self, run: Key) -> str:
        """Return the agent of a run as RunStarted named it; "" if it has none, or if the run is unknown."""
        stay = self.live.runs.get(run)
        return stay[4] if stay is not None else self.left.get(run, "")

    def leave(self, fact: RunCompleted | RunParked) -> tuple[str, str]:
        """Return (machine, agent) of a run that leaves the process, and remember its agent for a while."""
        run = (fact.graph, fact.run_id)
        agent = self.left[run] = self.agent_of(run) or fact.agent
        while len(self.left) > MOST_LEFT:
            self.left.pop(next(iter(self.left)), None)
        return self.run(fact.graph, agent)

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

    def declare(
        self,
        graph: Graph,
        tools: Iterable[str],
        models: Iterable[tuple[str, str]],
        guards: Iterable[str],
        backends: Iterable[str],
        *,
        agent: str = "",
        run_seconds: float | None = None,
    ) -> None:
        """Create every series of these names at 0. `models` are (provider, model)."""
        names = self._machines.get(graph.name)
        if names is None:
            if len(self._machines) >= CAPS["machine"]:
                self.fold("machine")
                return
            names = self._machines[graph.name] = MachineNames(graph.name, self._guards(CAPS["guard"]))
        label = self._agents.declare(agent) if agent else NO_AGENT
        names.learn(graph, label, run_seconds)
        self.meters.names_changed(names)
        known = {
            "machine": [names.name],
            "agent": [label],
            "state": sorted(names.states),
            "guard": [names.guards.declare(guard) for guard in (*guard_names(graph), *guards)],
            "tool": [UNREGISTERED, *(self._tools.declare(tool) for tool in tools)],
            "backend": [self._backends.declare(backend) for backend in backends],
        }
        pairs = [(provider, self._models.declare(model)) for provider, model in models]
        self._providers.update((model, provider) for provider, model in pairs if model != OTHER)
        for provider, model in pairs or [("", "")]:
            self._precreate(known | ({"provider": [provider], "model": [model]} if model else {}))
        self._precreate_edges(names, label, graph)

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

    def _precreate_edges(self, names: MachineNames, agent: str, graph: Graph) -> None:
        run = (names.name, agent)
        for source, event, dest in sorted(names.edges):
            self.counters["transitions_total", *run, source, event, dest]
        for outcome, reasons in REASONS.items():
            for reason in sorted(reasons):
                self.counters["runs_completed_total", *run, outcome.value, reason]
        if agent in self.objectives:
            self.counters["runs_slow_total", *run]
        for failure in likely_failures(graph):
            self.counters["transition_failures_total", *run, *failure]
