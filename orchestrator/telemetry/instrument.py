"""The instruments of one registry, the meters of what happens in every turn, and the sources of its live gauges.

Every transition touches six series, each addition costs a call and a lock, and scrapes are seconds apart. So a
transition appends its numbers to a list, which is atomic, and the series are added up before a read. In
prometheus_client's files, which other processes read, they are added at once.

A lookup of `labels()` costs more than what it counts. Names that are not declared are not cached: each of their uses
counts as a fold.

It imports no metrics library.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

from orchestrator.kernel.fact import RunCompleted, RunParked
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.outcome import REASONS
from orchestrator.telemetry.catalogue import BACKENDS, CATALOGUE, PHASES, Metric, MetricKind, MetricSource
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
from orchestrator.telemetry.line import LineCounts
from orchestrator.telemetry.live import Key, LiveRuns


@dataclass(frozen=True, slots=True)
class Load:
    """The load of an engine."""

    machines: tuple[str, ...]
    """Machines whose runs it takes."""
    slots: int
    """Maximum active runs, over all machines."""
    queued: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(machine, agent) -> runs that wait for their start or their continuation."""
    phase: str = "running"
    """One of scraped.PHASES."""


class Engine(Protocol):
    """The argument of `Metrics.watch`."""

    def load(self) -> Load:
        """Return the present load without waiting. Called from the thread of the scrape: copy before counting."""
        ...


def phase(loads: Iterable[Load]) -> str:
    """Return the phase of a process from those of its engines.

    A draining engine has precedence. A process without engines is running.
    """
    found = {load.phase for load in loads}
    return next((each for each in ("draining", "starting", "running", "stopped") if each in found), PHASES[1])


Noted: TypeAlias = tuple[float | None, float | None, float]
"""(seconds in the source, None: counted already; seconds of overhead, None: not measured; Unix time)."""

MOST_NOTED = 500
"""Maximum pending transitions of one edge."""


class DurationHistogram(Protocol):
    """A histogram of seconds."""

    def take_all(self, amounts: Sequence[float]) -> None:
        """Observe many."""
        ...

    def observe(self, amount: float, exemplar: Mapping[str, str] | None = None) -> None:
        """Observe one."""
        ...


class LatestGauge:
    """The gauge of the last transition of a machine. Edges are added up in any order, but it never decreases."""

    __slots__ = ("_at", "_set")

    def __init__(self, set_time: Callable[[float], None]) -> None:
        self._set = set_time
        self._at = float("-inf")

    def note(self, at: float) -> None:
        """Set Unix time `at`, if it is the latest."""
        if at >= self._at:
            self._at = at
            self._set(at)


class EdgeMeters:
    """The series of one edge. `noted` has the pending transitions.

    `begins`: the edge leaves the first state of a loop. `ends`: it returns to that state, or completes the run.
    """

    __slots__ = (
        "_enter",
        "_latest",
        "_lock",
        "_move",
        "_overhead",
        "begins",
        "ends",
        "lap",
        "most",
        "noted",
        "stay",
    )

    def __init__(
        self,
        move: Callable[[float], None],
        enter: Callable[[float], None],
        latest: LatestGauge,
        *,
        stay: DurationHistogram,
        overhead: DurationHistogram,
        lap: Callable[[float], None],
        at_once: bool,
    ) -> None:
        self._move = move
        self._enter = enter
        self._latest = latest
        self._overhead = overhead
        self.stay = stay
        self.lap = lap
        self.begins = self.ends = False
        self.noted: list[Noted] = []
        self.most = 1 if at_once else MOST_NOTED
        """Number of pending transitions that triggers `settle`."""
        self._lock = threading.Lock()

    def settle(self) -> None:
        """Add up the pending transitions. Thread-safe; they are counted when it returns."""
        with self._lock:
            noted = self.noted[:]
            del self.noted[: len(noted)]  # transitions that arrived meanwhile stay
            if noted:
                self._enter(len(noted))
                self._count(noted)

    def stayed(self, overhead: float | None, at: float) -> None:
        """Count a transition that stayed in its state."""
        self._count([(None, overhead, at)])

    def _count(self, noted: Sequence[Noted]) -> None:
        self._move(len(noted))
        self.stay.take_all([stay for stay, _, _ in noted if stay is not None])
        self._overhead.take_all([overhead for _, overhead, _ in noted if overhead is not None])
        self._latest.note(noted[-1][2])


Add: TypeAlias = Callable[[float], None]
"""Adds to a counter, observes in a histogram or sets a gauge."""


@dataclass(frozen=True, slots=True)
class ModelMeters:
    """The meters of one answered request to a model, looked up once for each (machine, agent, state, model)."""

    run: tuple[str, str]
    """(machine, agent): these two are label values, like those of `model`."""
    model: tuple[str, str, str]
    """(agent, provider, model)."""
    attempt: Add
    request: Add
    seconds: Histogram
    input: tuple[Add, Add]
    """For the tokens of the model, and of the state."""
    output: tuple[Add, Add]


@dataclass(frozen=True, slots=True)
class ToolMeters:
    """The meters of one call of a tool that ran, looked up once for each (machine, agent, tool, outcome)."""

    attempt: Add
    call: Add
    seconds: Histogram


@dataclass(frozen=True, slots=True)
class StoreMeters:
    """The meters of one append to a journal, looked up once for each backend."""

    seconds: Add
    set_time: Add


class MeterCache:
    """The meters of one registry. Agents are keyed as facts name them: an empty name for a run without an agent."""

    def __init__(self, use: Instruments, *, at_once: bool = False) -> None:
        self._use = use
        self._at_once = at_once
        self.edges: dict[tuple[str, str, str, str, str], EdgeMeters] = {}
        """(machine, agent, source, event, dest) -> meters of a transition, if all five were declared."""
        self._latest: dict[tuple[str, str], LatestGauge] = {}
        self._singles = 0
        self.answers: dict[tuple[str, str, str, str], ModelMeters] = {}
        """(machine, agent, state, model) -> meters of an answer, if all four were declared."""
        self.calls: dict[tuple[str, str, str, str], ToolMeters] = {}
        """(machine, agent, tool, outcome) -> meters of a call, if the first three were declared."""
        self.guards: dict[tuple[str, str, str, bool], Add] = {}
        """(machine, agent, guard, allowed) -> counter of evaluations, if the first three were declared."""
        self.appends: dict[str, StoreMeters] = {}
        """Backend -> meters of an append, if it was declared."""

    def names_changed(self, names: MachineNames) -> None:
        """Use the names that a machine has now."""
        for (machine, _, *edge), meters in self.edges.items():  # they may be in use
            if machine == names.name:
                _learn(meters, names, *edge)
        for cached in (self.answers, self.calls, self.guards, self.appends):
            cached.clear()

    # ---- transitions ----

    def edge(self, machine: str, agent: str, source: str, event: str, dest: str) -> EdgeMeters:
        """Return the meters of an edge. In an undeclared one each name that was not declared is `_unknown`."""
        names, use = self._use.machine(machine), self._use
        run = (names.name, use.agent(agent))
        known = (source, event, dest) in names.edges and run == (machine, agent or NO_AGENT)
        key = (machine, agent, source, event, dest)
        source, event, dest = names.state(source), names.event(event), names.state(dest)
        if run not in self._latest:
            self._latest[run] = LatestGauge(use.gauges["last_transition_timestamp_seconds", *run].set)
        meters = EdgeMeters(
            use.counters["transitions_total", *run, source, event, dest].inc,
            use.counters["state_entries_total", *run, dest].inc,
            self._latest[run],
            stay=use.histograms["state_duration_seconds", *run, source],
            overhead=use.histograms["transition_overhead_seconds", *run],
            lap=use.histograms["iteration_duration_seconds", *run].take,
            at_once=self._at_once or not known,
        )
        _learn(meters, names, source, event, dest)
        return self.edges.setdefault(key, meters) if known else meters

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
        use = self._use
        children: tuple[Histogram | Counter, ...] = (*use.histograms.values(), *use.counters.values())
        for child in children:
            if child.noted:
                child.settle()

    # ---- calls, guards and the journal ----

    def answer(self, machine: str, agent: str, state: str, model: str) -> ModelMeters:
        """Return the meters of an answered request."""
        use = self._use
        names, about = use.machine(machine), use.model(model)
        run, state_label, count = (names.name, use.agent(agent)), names.state(state), use.counters
        of_agent = (run[1], *about)

        def tokens(direction: str) -> tuple[Add, Add]:
            of_model = count["llm_tokens_total", *run, *about, direction]
            return of_model.add, count["state_tokens_total", *run, state_label, direction].add

        meters = ModelMeters(
            run,
            of_agent,
            count["attempts_total", *run, "llm"].add,
            count["llm_requests_total", *of_agent, "ok"].add,
            use.histograms["llm_request_duration_seconds", *of_agent],
            tokens("input"),
            tokens("output"),
        )
        if (*run, state_label, about[1]) == (machine, agent or NO_AGENT, state, model) and model != OTHER:
            self.answers[machine, agent, state, model] = meters
        return meters

    def call(self, machine: str, agent: str, tool: str, outcome: str) -> ToolMeters:
        """Return the meters of a call that ran. `outcome` is one of the catalogue."""
        use = self._use
        run, label = use.run(machine, agent), use.tool(tool)
        meters = ToolMeters(
            use.counters["attempts_total", *run, "tool"].add,
            use.counters["tool_calls_total", run[1], label, outcome].add,
            use.histograms["tool_call_duration_seconds", run[1], label],
        )
        if (*run, label) == (machine, agent or NO_AGENT, tool) and tool != OTHER:
            self.calls[machine, agent, tool, outcome] = meters
        return meters

    def append(self, backend: str) -> StoreMeters:
        """Return the meters of an append."""
        use = self._use
        label = use.backend(backend)
        meters = StoreMeters(
            use.histograms["journal_write_duration_seconds", label, "append"].take,
            use.gauges["journal_last_success_timestamp_seconds", label].set,
        )
        if label == backend != OTHER:
            self.appends[backend] = meters
        return meters

    def ask(self, machine: str, agent: str, guard: str, *, allowed: bool) -> Add:
        """Return the counter of evaluations that a guard allowed or denied."""
        use = self._use
        names = use.machine(machine)
        run, label = (names.name, use.agent(agent)), names.guards.of(guard)
        count = use.counters["guard_evaluations_total", *run, label, "allow" if allowed else "deny"].add
        if (*run, label) == (machine, agent or NO_AGENT, guard) and guard != OTHER:
            self.guards[machine, agent, guard, allowed] = count
        return count


def _learn(meters: EdgeMeters, names: MachineNames, source: str, event: str, dest: str) -> None:
    meters.begins = source == names.head
    meters.ends = dest == names.head or (dest in names.terminal and (source, event) not in names.failures)


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
        run = (names.name, label)
        for source, event, dest in sorted(names.edges):
            self.counters["transitions_total", *run, source, event, dest]
        for outcome, reasons in REASONS.items():
            for reason in sorted(reasons):
                self.counters["runs_completed_total", *run, outcome.value, reason]
        if label in self.objectives:
            self.counters["runs_slow_total", *run]
        for failure in likely_failures(graph):
            self.counters["transition_failures_total", *run, *failure]

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
