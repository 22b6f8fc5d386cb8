"""The instruments of one registry, the meters of what happens in every turn, and the sources of its live gauges.

Every transition touches six series, each addition costs a call and a lock, and scrapes are seconds apart. So a
transition appends its numbers to a list, which is atomic, and the series are added up before a read. In
prometheus_client's files, which other processes read, they are added at once.

A lookup of `labels()` costs more than what it counts. Names that are not declared are not cached: each of their uses
counts as a fold.

Label values are closed: an undeclared name folds, so no text from outside ever becomes a series.

Every process that serves a journal reports the same runs under the same labels. So the labels of its gauges depend on
nothing but the content of the journal: its own identity, and the names in it, of which the first ones in alphabetical
order are kept. A rule takes the maximum for each journal and never adds processes up. A scrape waits for a store at
most for the time that the store allows itself. A slow read is not repeated before twenty times its duration has
passed, so a store that hangs neither blocks each scrape nor gets more load.

It imports no metrics library.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

from orchestrator.kernel.fact import BRANCHES, RunCompleted, RunParked
from orchestrator.kernel.graph import Graph, guard_name
from orchestrator.kernel.journal import PARKED, CountableJournal, HeadCount, HeadCounts
from orchestrator.kernel.outcome import REASONS
from orchestrator.telemetry.catalogue import (
    BACKENDS,
    BUDGETS,
    CATALOGUE,
    NOT_PARKED,
    PARKINGS,
    PHASES,
    RETRIED,
    Metric,
    MetricKind,
    MetricSource,
)
from orchestrator.telemetry.live import Key, LiveRuns
from orchestrator.telemetry.log import LineCounts

# ---- label values ----

OTHER = "_other"
UNREGISTERED = "_unregistered"
UNKNOWN = "_unknown"
NO_AGENT = "_none"
"""Label value of runs without an agent, and of agents without a version."""
SEVERAL = "_several"
"""Label value of the version of an agent that has more than one in a process."""

CAPS = {"machine": 16, "agent": 32, "tool": 64, "model": 16, "guard": 32, "backend": 8, "journal": 8}

FOLDED = {
    "machine": "transitions_total",
    "agent": "runs_started_total",
    "tool": "tool_calls_total",
    "model": "llm_requests_total",
    "guard": "guard_evaluations_total",
    "backend": "journal_write_duration_seconds",
    "budget": "budget_exceeded_total",
    "outcome": "runs_completed_total",
    "reason": "runs_suspended_total",
}
"""Label -> the metric that counts its folds: one count per fact, not one per series."""

EXHAUSTED = ("llm", "completion", "compaction", "memory")
"""Operations that can fail after their last try, of a machine with models."""
GUARDRAIL = "guardrail"
"""A reason of endings and retries that only an agent with guards of its own can have."""
HAND_OVER = "hand_over"
"""The event of the graphs of teams and of their members."""
OF_HANDOFFS = frozenset(("handed_over", "handoffs"))
"""Reasons of the ends of runs whose graph has the event HAND_OVER."""
OF_STAGES = frozenset(("max_task_attempts", "max_qa_cycles", "planner_blocked", "stage_error"))
"""Reasons of the ends of machines whose stages ask models by child runs, and not of a machine with models."""
OF_INVENTED = ("error", "denied")
"""Outcomes of a call of a tool that the model invented: it never runs."""

MOST_DEFINITIONS = 4
"""Maximum graphs of one name that machine_info distinguishes."""

_LONGEST = 120


class LabelValues:
    """The values that one label may take, at most `cap`. `fold` is called for each value that becomes `_other`.

    Undeclared names become `rest`. With `admits` the first use declares a name: for names that only code can define.
    """

    __slots__ = ("_admits", "_fold", "_full", "_known", "_rest", "cap")

    def __init__(
        self, cap: int, fold: Callable[[], None], *, rest: str = OTHER, admits: bool = False
    ) -> None:
        self.cap = cap
        self._fold = fold
        self._rest = rest
        self._admits = admits
        self._known: dict[str, str] = {}
        self._full = False

    def declare(self, name: str) -> str:
        """Add a name and return its label value."""
        name = str(name)
        if name not in self._known:
            if len(self._known) >= self.cap or not is_label(name):
                self._full = True
                return OTHER
            self._known[name] = name
        return name

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def of(self, name: str) -> str:
        """Return the label value of a name."""
        value = self._known.get(name)
        if value is not None:
            return value
        if self._admits:
            value = self.declare(name)
        else:
            value = name if name == self._rest else OTHER if self._full else self._rest
        if value == OTHER:
            self._fold()
        return value


def is_label(name: str) -> bool:
    """Return whether a name may be a label value: short, printable, no URL."""
    return 0 < len(name) <= _LONGEST and name.isprintable() and "://" not in name


@dataclass(slots=True)
class MachineNames:
    """The names that facts of one machine may have. Graphs with the same name (one extends the other) share it."""

    name: str
    guards: LabelValues
    states: set[str] = field(default_factory=set)
    events: set[str] = field(default_factory=set)
    edges: set[tuple[str, str, str]] = field(default_factory=set)
    """(source, event, dest)"""
    terminal: set[str] = field(default_factory=set)
    failures: set[tuple[str, str]] = field(default_factory=set)
    """(state, its failure event)"""
    initial: str | None = None
    head: str | None = None
    """The first state of a loop."""
    agents: list[str] = field(default_factory=list)
    """Agents whose runs use it, as label values."""
    dwell: dict[tuple[str, str], float] = field(default_factory=dict)
    """(agent, state) -> its dwell limit in seconds."""
    run_seconds: dict[str, float] = field(default_factory=dict)
    """Agent -> maximum seconds of a run; the largest, if variants of an agent differ."""
    currencies: dict[str, str] = field(default_factory=dict)
    """Agent -> currency of its prices; without prices it is not here."""
    definitions: list[str] = field(default_factory=list)
    """Short fingerprints of the graphs of this name, at most MOST_DEFINITIONS, newest last."""

    def learn(self, graph: Graph, agent: str, run_seconds: float | None = None) -> None:
        """Add the names of an agent's graph; its limits of states replace earlier ones of that agent."""
        if agent not in self.agents:
            self.agents.append(agent)
        if run_seconds:
            self.run_seconds[agent] = max(run_seconds, self.run_seconds.get(agent, 0.0))
        self.dwell |= {
            (agent, state.value): limit[0] for state in graph.states if (limit := graph.dwell_of(state))
        }
        definition = graph.fingerprint[:12]
        self.definitions = [one for one in self.definitions if one != definition][1 - MOST_DEFINITIONS :]
        self.definitions.append(definition)
        self.states |= {state.value for state in graph.states}
        self.events |= {event.value for event in graph.events}
        self.edges |= {(source.value, event.value, dest.value) for source, event, dest, _ in graph.rows}
        self.terminal |= {state.value for state in graph.terminal}
        self.failures |= {
            (state.value, event.value) for state in graph.states if (event := graph.failure_event(state))
        }
        self.initial = graph.initial.value
        self.head = loop_head(graph)

    @property
    def working(self) -> list[str]:
        """The states of an active run, sorted: all but the terminal ones."""
        return sorted(self.states - self.terminal)

    def state(self, name: str) -> str:
        """Return the label value of a state."""
        return name if name in self.states else UNKNOWN

    def event(self, name: str) -> str:
        """Return the label value of an event."""
        return name if name in self.events else UNKNOWN


def guard_names(graph: Graph) -> Iterator[str]:
    """Yield the names of the guards on the edges of a graph, and of the one that joins branches."""
    for edge in graph.edges:
        name = guard_name(edge.when)
        if name is not None:
            yield name
    if graph.branches:
        yield "joined"


def likely_failures(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield the possible failures of a graph as (state, event, reason), so that their series exist early.

    A hook fails in the state that it leaves or, for enter_ and after_, in the state that was entered.
    """
    for source, event, dest, edge in graph.rows:
        yield source.value, event.value, "callback_error"
        yield dest.value, event.value, "callback_error"
        if edge.when is not None:
            yield source.value, event.value, "guard_error"
    for state in graph.states:
        failure = graph.failure_event(state)
        if failure is None:
            continue
        yield state.value, failure.value, "callback_error"
        yield state.value, failure.value, "cancelled"
        yield state.value, failure.value, "timeout"
        if limit := graph.dwell_of(state):
            yield state.value, limit[1].value, "timeout"


def loop_head(graph: Graph) -> str | None:
    """Return the first state, from the initial one on, that a run can return to; None without a cycle."""
    following: dict[str, list[str]] = {}
    for source, _, dest, edge in graph.rows:
        if not edge.internal_in(source):
            following.setdefault(source.value, []).append(dest.value)
    initial = graph.initial.value
    for state in (initial, *_reachable(following, following.get(initial, ()))):
        if state in _reachable(following, following.get(state, ())):
            return state
    return None


def _reachable(following: dict[str, list[str]], start: Iterable[str]) -> list[str]:
    """Return every state that can be reached from `start`, including `start`, nearest first."""
    found: list[str] = []
    ahead = list(start)
    while ahead:
        state = ahead.pop(0)
        if state not in found:
            found.append(state)
            ahead += following.get(state, ())
    return found


def closed(value: str | None, allowed: Container[str], rest: str) -> str:
    """Return the value if it is allowed, else `rest`."""
    return value if value is not None and value in allowed else rest


# ---- gauges of journals: the runs that they hold, also those of dead processes, and the size of their files ----

_BESIDE = ("", "-wal", "-shm")
_BLOBS = "-blobs"


def file_bytes(path: Path) -> int:
    """Return the bytes of an SQLite journal with the files beside it; 0 for missing files.

    It never opens the journal, so a store that hangs does not block a scrape.
    """
    total = sum(_size(f"{path}{end}") for end in _BESIDE)
    try:
        with os.scandir(f"{path}{_BLOBS}") as entries:
            return total + sum(_size(entry.path) for entry in entries)
    except OSError:
        return total


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


Values: TypeAlias = dict[tuple[str, ...], float]
"""Label values -> value."""

HEAD_NAMES: Final = (
    "journal_runs",
    "journal_oldest_update_timestamp_seconds",
    "journal_info",
    "journal_read_failures_total",
)
"""Metrics of `HeadGauges`."""
_SLOW: Final = 0.1
"""Seconds from which on a read is slow."""
_SHARE: Final = 20
"""Seconds without a read, for each second that a slow read took."""


class JournalReader:
    """The last read of one journal. It does not keep the journal alive."""

    def __init__(self, journal: CountableJournal, now: Callable[[], float] = time.monotonic) -> None:
        self._journal = weakref.ref(journal)
        self._now = now
        self._next = -1.0
        self._last: HeadCounts | None = None
        self.backend = journal.backend
        self.path = str(getattr(journal, "address", ""))
        self.identity = ""
        """Identity of the store as far as it was ever read."""
        self.failures = 0

    def read(self) -> HeadCounts | None:
        """Return the runs of the journal; None if it cannot be read, or does not exist any more."""
        journal, began = self._journal(), self._now()
        if journal is None:
            return None
        if began < self._next:
            return self._last
        try:
            self._last = journal.head_counts()
            self.identity = self._last.journal or self.identity
        except Exception:  # noqa: BLE001 - a store may raise anything, and must not fail the scrape
            self._last = None
            self.failures += 1
        took = self._now() - began
        self._next = self._now() + _SHARE * took if took >= _SLOW else -1.0
        return self._last

    @property
    def is_gone(self) -> bool:
        """Whether the journal does not exist any more."""
        return self._journal() is None


class HeadGauges:
    """The gauges of the journals that one registry's Metrics serve, one reader for each store."""

    def __init__(self, most_agents: Callable[[], int] = lambda: CAPS["agent"]) -> None:
        self._most_agents = most_agents
        self._readers: dict[tuple[str, str, int], JournalReader] = {}
        self._failures = 0
        """Of journals that do not exist any more: a counter never decreases."""

    def add(self, journal: CountableJournal) -> None:
        """Count the runs of a journal at each scrape, while it exists; several journals of one store count once."""
        reader = JournalReader(journal)
        # A journal in memory has no place that another one could share.
        key = (reader.backend, reader.path, 0 if reader.path else id(journal))
        known = self._readers.get(key)
        if known is None or known.is_gone:
            self._readers[key] = reader
            self._failures += 0 if known is None else known.failures

    def collect(self) -> dict[str, Values]:
        """Return the values of each metric."""
        runs: Values = {}
        oldest: Values = {}
        info: Values = {}
        seen: set[str] = set()
        for key, reader in list(self._readers.items()):
            counts = reader.read()
            if reader.is_gone:
                gone = self._readers.pop(key, None)
                self._failures += 0 if gone is None else gone.failures
                continue
            stores = sorted({one.identity for one in list(self._readers.values()) if one.identity})
            if not reader.identity:
                journal = UNKNOWN
            else:
                journal = reader.identity if reader.identity in stores[: CAPS["journal"]] else OTHER
            if reader.path:
                info[journal, reader.backend, reader.path] = 1
            if counts is None or (reader.path and journal in seen and journal != OTHER):
                continue  # two addresses of one store
            seen.add(journal)
            for labels, one in labelled(journal, counts.counts, self._most_agents()):
                runs[labels] = runs.get(labels, 0) + one.runs
                oldest[labels] = min(one.oldest, oldest.get(labels, one.oldest))
        failures = self._failures + sum(reader.failures for reader in list(self._readers.values()))
        return dict(zip(HEAD_NAMES, (runs, oldest, info, {(): float(failures)}), strict=True))


def labelled(
    journal: str, counts: Iterable[HeadCount], most_agents: int = CAPS["agent"]
) -> list[tuple[tuple[str, ...], HeadCount]]:
    """Return each count with its label values: journal, machine, agent, status, reason."""
    found = list(counts)
    machines = _kept((one.machine for one in found), CAPS["machine"])
    agents = _kept((one.agent for one in found), most_agents)
    return [
        (
            (
                journal,
                one.machine if one.machine in machines else OTHER,
                (one.agent if one.agent in agents else OTHER) if one.agent else NO_AGENT,
                one.status,
                _reason(one),
            ),
            one,
        )
        for one in found
    ]


def _kept(names: Iterable[str], most: int) -> frozenset[str]:
    return frozenset(sorted({name for name in names if is_label(name)})[:most])


def _reason(one: HeadCount) -> str:
    if one.status != PARKED:
        return NOT_PARKED
    return one.reason if one.reason in PARKINGS else OTHER


# ---- what happens in every turn, and the load of engines ----


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
    """The gauge of the last transition of a machine, although edges are added up in any order.

    It decreases only if it is in the future: then the clock was set back.
    """

    __slots__ = ("_at", "_set")

    def __init__(self, set_time: Callable[[float], None]) -> None:
        self._set = set_time
        self._at = float("-inf")

    def note(self, at: float) -> None:
        """Set Unix time `at`, if it is the latest."""
        if at >= self._at or self._at > time.time():
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
        self._most_agents = 0
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
        self.ceilings: dict[str, float] = {}
        """Agent -> cost of an hour that the host accepts."""
        self.versions: dict[str, dict[str, str]] = {}
        """Agent -> version -> short fingerprint of its graph, newest last; not for agents beyond the cap."""
        self.heads = HeadGauges(lambda: self._agents.cap)
        self.stores: dict[tuple[str, str], Callable[[], int]] = {}
        """(backend, name of the store) -> its size in bytes."""
        for backend in BACKENDS:
            self._backends.declare(backend)
        for label, metric in FOLDED.items():
            self.counters["label_overflow_total", metric, label]
        self._precreate({})

    def admit_agents(self, most: int) -> None:
        """Set the maximum of agents. Several Metrics may share a registry: of several numbers the largest counts."""
        self._most_agents = max(self._most_agents, most)
        self._agents.cap = self._most_agents

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

    def has_prices(self, run: tuple[str, str]) -> bool:
        """Return whether the agent of (machine, agent), as label values, has prices."""
        names = self._machines.get(run[0])
        return names is not None and run[1] in names.currencies

    def learn_currency(self, run: tuple[str, str]) -> None:
        """Note that requests of (machine, agent) have a cost: of an agent without prices the provider reports it."""
        names = self._machines.get(run[0])
        if names is not None:
            names.currencies.setdefault(run[1], UNKNOWN)

    def known_tool(self, name: str) -> str:
        """Return the label value of a tool, or of other host code: only declared names are values."""
        return name if name in self._tools else OTHER

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
        version: str = "",
        currency: str | None = None,
        budgets: Iterable[str] | None = None,
        handoffs: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Create every series of these names at 0. `models` are (provider, model), `handoffs` (agent, to)."""
        guards = tuple(guards)
        names = self._machines.get(graph.name)
        if names is None:
            if len(self._machines) >= CAPS["machine"]:
                self.fold("machine")
                return
            names = self._machines[graph.name] = MachineNames(graph.name, self._guards(CAPS["guard"]))
        label = self._agents.declare(agent) if agent else NO_AGENT
        names.learn(graph, label, run_seconds)
        if agent and label != OTHER:
            known_as = version if is_label(version) else NO_AGENT
            found = self.versions.setdefault(label, {})
            found.pop(known_as, None)
            found[known_as] = graph.fingerprint[:12]
        if currency is not None:
            names.currencies[label] = currency
        self.meters.names_changed(names)
        pairs = [(provider, self._models.declare(model)) for provider, model in models]
        self._providers.update((model, provider) for provider, model in pairs if model != OTHER)
        chosen = frozenset(BUDGETS if budgets is None else budgets)
        known = {
            "machine": [names.name],
            "agent": [label],
            "state": sorted(names.states),
            "budget": [name for name in BUDGETS if name in chosen],
            "guard": [names.guards.declare(guard) for guard in (*guard_names(graph), *guards)],
            "tool": [UNREGISTERED, *(self._tools.declare(tool) for tool in tools)],
            "backend": [self._backends.declare(backend) for backend in backends],
        }
        for provider, model in pairs or [("", "")]:
            models_too = {"provider": [provider], "model": [model]} if model else {}
            self._precreate(known | models_too)
        for pair in handoffs:
            self.counters["handoffs_total", *map(self._agents.declare, pair)]
        unlikely: frozenset[str] = OF_STAGES if pairs else frozenset()
        if not guards:
            unlikely |= {GUARDRAIL}
        if all(event.value != HAND_OVER for event in graph.events):
            unlikely |= OF_HANDOFFS
        self._create_chosen(graph, (names.name, label), pairs, unlikely, is_priced=currency is not None)

    def _create_chosen(
        self,
        graph: Graph,
        run: tuple[str, str],
        models: Sequence[tuple[str, str]],
        unlikely: frozenset[str],
        *,
        is_priced: bool,
    ) -> None:
        """Create the series of rows of which not every combination can occur.

        `models` are (provider, model), and `unlikely` the reasons that these runs cannot have.
        """
        names, count = self._machines[graph.name], self.counters
        for provider, model in models if is_priced else ():
            count["llm_cost_micros_total", *run, provider, model]
            count["llm_requests_unpriced_total", run[1], provider, model]
        for source, event, dest in sorted(names.edges):
            count["transitions_total", *run, source, event, dest]
        for outcome, reasons in REASONS.items():
            for reason in sorted(reasons - unlikely):
                count["runs_completed_total", *run, outcome.value, reason]
        if run[1] in self.objectives:
            count["runs_slow_total", *run]
        for operation, failures in RETRIED.items():
            for reason in sorted(set(failures) - unlikely):
                count["retries_total", *run, operation, reason]
        for state in sorted(graph.branches):
            for word in BRANCHES:
                count["branches_total", run[1], names.state(state), word]
        for failure in likely_failures(graph):
            count["transition_failures_total", *run, *failure]

    def _guards(self, cap: int) -> LabelValues:
        return LabelValues(cap, lambda: self.fold("guard"), admits=True)

    def _precreate(self, known: dict[str, list[str]]) -> None:
        """Create the children of every row whose labels are all known here or closed in the row itself."""
        for metric in CATALOGUE:
            if not metric.zero or metric.made is not MetricSource.OBSERVED:
                continue
            axes = [known.get(label, metric.values.get(label, ())) for label in metric.labels]
            family: Children[Any] = self.counters if metric.kind is MetricKind.COUNTER else self.histograms
            for values in product(*axes):
                if self._can_occur(metric.name, dict(zip(metric.labels, values, strict=True)), known):
                    family[metric.name, *values]

    def _can_occur(self, metric: str, labels: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> bool:
        """Return whether a series of an agent can ever have another value than 0."""
        has_models, tool = "model" in known, labels.get("tool")
        match metric:
            case "state_duration_seconds" | "state_tokens_total":  # no run leaves a terminal state
                occurs = labels["state"] not in self._machines[labels["machine"]].terminal
            case (
                "stage_tokens_total"
            ):  # stages report tokens, and requests count those of a machine with models
                occurs = not has_models
            case "tool_call_duration_seconds":  # a tool that the model invented never runs
                occurs = tool != UNREGISTERED
            case "tool_calls_total":
                occurs = tool != UNREGISTERED or labels["outcome"] in OF_INVENTED
            case "attempts_total" if has_models:
                occurs = labels["operation"] != "journal"
            case "retries_exhausted_total" if has_models:
                occurs = labels["operation"] in EXHAUSTED
            case "runs_suspended_total" if has_models:
                occurs = labels["reason"] != "questions"
            case _:
                occurs = True
        return occurs
