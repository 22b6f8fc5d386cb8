"""Convert facts to Prometheus counters and histograms.

An import creates nothing. Instruments exist once for each registry, shared by all Metrics on it. Series exist at 0
after `declare`: if a counter appears with its first increment, increase() does not see that increment.

Only this module and exposition/ import prometheus_client.

Gauges are computed at a scrape from the present state. A thread in each process writes the figures of its collector
into gauges of the library, each with the mode by which processes are combined. A process without a thread, right after
a fork, starts one. `mark_process_dead` in the server's hook removes the figures of a dead worker.

Every turn updates some forty series. The library's `inc`, `set` and `observe` check the labels of the instrument at
each call, and a histogram searches its buckets. `add` and `take` do that work once; what remains is the library's own
value with its lock, in one process or in files for several. Pending amounts (`instrument.EdgeMeters`) are added before
anything is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import platform
import re
import secrets
import socket
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import prometheus_client
from prometheus_client import CollectorRegistry, core, values
from prometheus_client.utils import floatToGoString

from orchestrator.errors import ConfigError, DeadlineExceeded, LimitReached
from orchestrator.kernel.cancellation import abandoned_work
from orchestrator.kernel.fact import (
    BRANCHES,
    FAILURES,
    OPERATIONS,
    AdmissionRejected,
    AnswerLost,
    BranchEnded,
    BudgetChecked,
    EventFailed,
    Fact,
    GuardEvaluated,
    HandedOver,
    JournalWrite,
    LLMCall,
    OperationAttempt,
    RolledBack,
    RunAdmitted,
    RunCompleted,
    RunParked,
    RunRecovered,
    RunStarted,
    TableRejected,
    ToolExecution,
    Transition,
    WorkAbandoned,
)
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.journal import CountableJournal
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.llm.message import finish_word
from orchestrator.telemetry.catalogue import (
    BUDGET_OF,
    BUDGETS,
    INVALID,
    LEVELS,
    NO_BUDGETS,
    PARKINGS,
    PHASES,
    PREFIX,
    RETRY_REASONS,
    ROWS,
    SCRAPED,
    Metric,
    MetricKind,
)
from orchestrator.telemetry.instrument import (
    OTHER,
    SEVERAL,
    UNKNOWN,
    DurationHistogram,
    Engine,
    Histogram,
    Instruments,
    Load,
    Maker,
    Values,
    closed,
    phase,
)
from orchestrator.telemetry.log import LineCounts, Trace, span_of
from orchestrator.version import __version__
from orchestrator_guards.money import MICRO_UNITS

# ---- gauges at a scrape ----


class LiveCollector:
    """Reads the live runs, engines, stores and logs of one registry's Metrics, in the thread of the scrape."""

    def __init__(self, use: Instruments) -> None:
        self._use = use

    def describe(self) -> Iterator[core.Metric]:
        """Yield every metric without values, so that the registry knows the names."""
        for row in SCRAPED:
            yield family(row.name, {})

    def collect(self) -> Iterator[core.Metric]:
        """Yield every metric with its present values.

        An exception of one section is counted, and the other sections are yielded.
        """
        began = time.perf_counter()
        sections = (
            process_identity,
            self._runs,
            self._engines,
            self._declared,
            self._stores,
            self._logs,
            self._loops,
        )
        for section in (*sections, self._use.heads.collect):
            try:
                guarded = [family(name, values) for name, values in section().items()]
            except Exception:  # noqa: BLE001 - the error of one store must not fail the whole scrape
                self._use.counters["telemetry_errors_total", "collector"].inc()
                guarded = []
            yield from guarded
        yield family("collector_duration_seconds", {(): time.perf_counter() - began})

    def _runs(self) -> dict[str, Values]:
        use = self._use
        active: Values = {}
        for names in use.machines():
            for agent in names.agents:
                active |= dict.fromkeys(((names.name, agent, state) for state in names.working), 0)
        entered, began = _Least(), _Least()
        for (machine, _), (state, entered_at, started_at, _, agent) in use.live.runs.copy().items():
            names, who = use.known(machine), use.known_agent(agent)
            labels = (names.name, who, names.state(state))
            active[labels] = active.get(labels, 0) + 1
            entered.take(labels, entered_at)
            began.take((names.name, who), started_at)
        left: Counter[tuple[str, ...]] = Counter(
            (use.known(fact.graph).name, use.known_agent(fact.agent), fact.kind, use.known_tool(fact.name))
            for fact in abandoned_work()
        )
        return {
            "abandoned_work": dict(left),
            "runs_active": active,
            "oldest_run_state_entered_timestamp_seconds": entered.values,
            "oldest_run_started_timestamp_seconds": began.values,
        }

    def _engines(self) -> dict[str, Values]:
        use = self._use
        loads: list[Load] = [engine.load() for engine in use.watched()]
        queued: Values = {(names.name, agent): 0 for names in use.machines() for agent in names.agents}
        slots: Values = {}
        for load in loads:
            for machine in {use.known(name).name for name in load.machines}:
                slots[machine,] = slots.get((machine,), 0) + load.slots
            for (name, agent), number in load.queued.items():
                labels = (use.known(name).name, use.known_agent(agent))
                queued[labels] = queued.get(labels, 0) + number
        now = phase(loads)
        return {
            "runs_queued": queued,
            "run_slots": slots,
            "runtime_state": {(each,): float(each == now) for each in PHASES},
        }

    def _declared(self) -> dict[str, Values]:
        whole: Values = {}
        objectives: Values = {}
        currencies: Values = {}
        limits: Values = {}
        definitions: Values = {}
        for names in self._use.machines():
            whole |= {(names.name, agent): seconds for agent, seconds in sorted(names.run_seconds.items())}
            objectives |= {
                (names.name, agent): self._use.objectives[agent]
                for agent in names.agents
                if agent in self._use.objectives
            }
            currencies |= {
                (names.name, agent, currency): 1 for agent, currency in sorted(names.currencies.items())
            }
            limits |= {(names.name, *where): seconds for where, seconds in sorted(names.dwell.items())}
            definitions |= {(names.name, __version__, one): 1 for one in names.definitions}
        return {
            "state_timeout_seconds": limits,
            "run_timeout_seconds": whole,
            "run_objective_seconds": objectives,
            "agent_info": {
                (agent, next(iter(found)) if len(found) == 1 else SEVERAL, [*found.values()][-1]): 1
                for agent, found in sorted(self._use.versions.items())
            },
            "llm_currency_info": currencies,
            "cost_ceiling_per_hour": {(agent,): ceiling for agent, ceiling in self._use.ceilings.items()},
            "machine_info": definitions,
        }

    def _stores(self) -> dict[str, Values]:
        sizes: Counter[tuple[str, ...]] = Counter()
        for (backend, _), size in list(self._use.stores.items()):
            sizes[backend,] += size()
        return {"journal_bytes": dict(sizes)}

    def _loops(self) -> dict[str, Values]:
        ages = [age for watched in list(self._use.loops) if (age := watched()) is not None]
        return {"event_loop_age_seconds": {(): max(ages)} if ages else {}}

    def _logs(self) -> dict[str, Values]:
        tallies = list(self._use.tallies)
        lines: Values = {(level,): float(sum(tally.lines[level] for tally in tallies)) for level in LEVELS}
        return {
            "log_records_total": lines,
            "log_records_dropped_total": {(): float(sum(tally.dropped for tally in tallies))},
        }


_TOKEN = secrets.token_hex(8)
"""Of this process and its forks."""


def process_identity() -> dict[str, Values]:
    """Return the clock, the identity and the versions of this process.

    Workers that share a folder of the multiprocess mode are one target, also when one of them is replaced.
    """
    who = f"{_TOKEN} {os.getpid()}"
    if _in_files():
        folder = os.path.realpath(_shared_folder())
        who = f"{socket.gethostname()} {folder} {os.stat(folder).st_ino}"  # noqa: PTH116 - as the library reads it
    return {
        "process_time_seconds": {(): time.time()},
        "target_info": {(hashlib.sha256(who.encode()).hexdigest()[:8],): 1},
        "build_info": {(__version__, platform.python_version()): 1},
    }


class _Least:
    """The smallest value of each combination of labels."""

    def __init__(self) -> None:
        self.values: Values = {}

    def take(self, labels: tuple[str, ...], value: float) -> None:
        self.values[labels] = min(value, self.values.get(labels, value))


def family(name: str, values: Mapping[Any, float]) -> core.Metric:
    """Return a metric of the catalogue: label values -> value, in the order of the labels in its row."""
    row = ROWS[name]
    if row.kind is MetricKind.INFO:
        info = core.InfoMetricFamily(PREFIX + name.removesuffix("_info"), row.help, labels=())
        for labels in values:
            info.add_metric((), dict(zip(row.labels, labels, strict=True)))
        return info
    make: Any = core.CounterMetricFamily if row.kind is MetricKind.COUNTER else core.GaugeMetricFamily
    family: core.Metric = make(PREFIX + name, row.help, labels=row.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)  # type: ignore[attr-defined]
    return family


PERIOD = 1.0
"""Seconds between two writes."""

_SUMS = {"abandoned_work", "runs_active", "runs_queued", "run_slots"}
_ABSENT = {"livemin": math.inf, "livesum": 0.0, "livemax": 0.0}
"""Value of a series that a process has no more: a series cannot be removed from a file."""


def mode_of(row: Metric) -> Literal["livesum", "livemin", "livemax"]:
    """Return how the values of several processes become one."""
    if row.name in _SUMS:
        return "livesum"
    return "livemin" if "oldest_" in row.name else "livemax"


class SharedGauges:
    """Writes the figures of a collector into files until the process ends."""

    def __init__(self, collector: LiveCollector, registry: CollectorRegistry) -> None:
        self._collector = collector
        self.writing = threading.Lock()
        self._made: dict[str, Any] = {row.name: _instrument(row, registry) for row in SCRAPED}
        self._seen: dict[tuple[str, tuple[str, ...]], float] = {}
        _all.append(self)
        self.start()

    def start(self) -> None:
        """Start the thread of this process."""
        self.writing = threading.Lock()
        threading.Thread(target=self._run, name="orchestrator shared gauges", daemon=True).start()

    def forked(self) -> None:
        """Start anew in a forked child, which has no thread and files of its own."""
        self._seen.clear()
        self.start()

    def write(self) -> None:
        """Write the present figures."""
        with self.writing:
            left = set(self._seen)
            for family in self._collector.collect():
                for sample in family.samples:
                    name = sample.name.removeprefix(PREFIX)
                    key = (name, tuple(sample.labels[label] for label in _ROWS[name].labels))
                    if _ROWS[name].kind is MetricKind.COUNTER:
                        self._child(*key).inc(sample.value - self._seen.get(key, 0.0))
                        self._seen[key] = sample.value
                    else:
                        self._put(*key, sample.value)
                    left.discard(key)
            for name, labels in left:
                row = _ROWS[name]
                if row.kind is not MetricKind.COUNTER:
                    self._put(name, labels, _ABSENT[mode_of(row)])

    def _put(self, name: str, labels: tuple[str, ...], value: float) -> None:
        self._seen[name, labels] = value
        self._child(name, labels).set(value)

    def _child(self, name: str, labels: tuple[str, ...]) -> Any:
        made = self._made[name]
        return made.labels(*labels) if labels else made

    def _run(self) -> None:
        pause, writing = threading.Event(), self.writing
        while writing is self.writing:  # else a fork or a restart replaced this thread
            with contextlib.suppress(Exception):  # a figure that cannot be read is counted by the collector
                self.write()
            pause.wait(PERIOD)


_ROWS = {row.name: row for row in SCRAPED}
_all: list[SharedGauges] = []


def _instrument(row: Metric, registry: CollectorRegistry) -> Any:
    name = PREFIX + row.name
    if row.kind is MetricKind.COUNTER:
        return prometheus_client.Counter(name, row.help, row.labels, registry=registry)
    return prometheus_client.Gauge(
        name, row.help, row.labels, registry=registry, multiprocess_mode=mode_of(row)
    )


def _hold() -> None:
    """Let no thread write while a process forks: the child would inherit a lock that nobody releases."""
    for each in _all:
        each.writing.acquire()


def _release() -> None:
    for each in _all:
        each.writing.release()


def _restart() -> None:
    for each in _all:
        each.forked()


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_restart)


# ---- fast paths around instruments of the library ----


Encoder: TypeAlias = Callable[[Any], bytes]
"""Encodes the families that `collect` of its argument returns, as `generate_latest` of the library does."""


def encoded(registry: CollectorRegistry, encode: Encoder) -> bytes:
    """Return `encode(registry)`, in a third of its time if most series are of our instruments."""
    end = encode(_Families())
    parts = [
        family.encoded(encode, end)
        if isinstance(family, InstrumentFamily)
        else encode(_Families(family)).removesuffix(end)
        for family in registry.collect()
    ]
    return b"".join((*parts, end))


class _Families:
    """A collector of some families."""

    def __init__(self, *families: core.Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[core.Metric]:
        return self._families


class InstrumentFamily(core.Metric):
    """The family of one of our instruments.

    At each scrape the library sorts, checks and escapes the labels of every series, which never change. `encoded` has
    it do so once for each child, and fills the values in. Other encoders read `samples`.
    """

    def __init__(self, instrument: Any) -> None:
        super().__init__(instrument._name, instrument._documentation, instrument._type)  # noqa: SLF001
        del self.samples  # until they are read
        self._instrument = instrument

    @cached_property
    def samples(self) -> list[core.Sample]:  # type: ignore[override]
        """The samples of every child."""
        return [core.Sample(self.name + suffix, *rest) for suffix, *rest in self._instrument._samples()]  # noqa: SLF001

    def encoded(self, encode: Encoder, end: bytes) -> bytes:
        """Return what `encode` returns for this family, without the `end` of a page."""
        parent = self._instrument
        children = parent._metrics.copy().values() if parent._labelnames else (parent,)  # noqa: SLF001
        head = encode(_Families(core.Metric(self.name, self.documentation, self.type))).removesuffix(end)
        return head + "".join([self._lines(child, encode) for child in children]).encode()

    def _lines(self, child: Any, encode: Encoder) -> str:
        samples: Sequence[core.Sample] = child._child_samples()  # noqa: SLF001
        if any(sample[3] or sample[4] for sample in samples):  # its timestamp or exemplar
            return self._encoded(child, samples, encode)
        if not child.template:
            lines = self._encoded(child, samples, prometheus_client.generate_latest).replace("%", "%%")
            child.template = re.sub(r" [^ ]+\n", " %s\n", lines)
        filled: str = child.template % tuple(
            [floatToGoString(sample[2]) for sample in samples]  # type: ignore[no-untyped-call]
        )
        return filled

    def _encoded(self, child: Any, samples: Iterable[core.Sample], encode: Encoder) -> str:
        family = core.Metric(self.name, self.documentation, self.type)
        labels = dict(zip(child._labelnames, child._labelvalues, strict=True))  # noqa: SLF001
        family.samples = [
            sample._replace(name=self.name + sample.name, labels=labels | sample.labels) for sample in samples
        ]
        lines = encode(_Families(family)).decode().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("#"))


class _Settled:
    before: Callable[[], None] = staticmethod(lambda: None)
    template = ""
    """The lines of a child with `%s` for each value; empty before its first scrape."""

    def collect(self) -> Iterable[core.Metric]:
        self.before()
        return (InstrumentFamily(self),)


class _Noting(_Settled):
    """Amounts wait in a list until a read; in files, which another process may read, they are added at once."""

    def _metric_init(self) -> None:
        super()._metric_init()  # type: ignore[misc]
        self.noted: list[float] = []
        self._adding = threading.Lock()

    def take_all(self, amounts: Sequence[float]) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        with self._adding:
            if self.noted:
                amounts = self.noted[:]
                del self.noted[: len(amounts)]  # amounts that arrived meanwhile stay
                self.take_all(amounts)

    def _child_samples(self) -> Iterable[Any]:
        self.settle()
        found: Iterable[Any] = super()._child_samples()  # type: ignore[misc]
        # Each counter and histogram has a series of its creation, which doubles their number; no rule needs it.
        return [sample for sample in found if sample[0] != "_created"]


class _Counter(_Noting, prometheus_client.Counter):
    def _metric_init(self) -> None:
        super()._metric_init()
        self.add: Callable[[float], None] = self._value.inc if _in_files() else self.noted.append

    def take_all(self, amounts: Sequence[float]) -> None:
        self._value.inc(sum(amounts))


class _Gauge(_Settled, prometheus_client.Gauge):
    def _metric_init(self) -> None:
        super()._metric_init()
        self.set = self._timed if _in_files() else self._value.set  # type: ignore[method-assign]

    def _timed(self, value: float) -> None:
        self._value.set(value, timestamp=time.time())


class _Histogram(_Noting, prometheus_client.Histogram):
    def _metric_init(self) -> None:
        super()._metric_init()
        self.take: Callable[[float], None] = self._take if _in_files() else self.noted.append

    def _take(self, amount: float) -> None:
        self.take_all((amount,))

    def take_all(self, amounts: Sequence[float]) -> None:
        total = sum(amounts)
        self._sum.inc(total)
        for place, count in _spread(amounts, self._upper_bounds, is_ordered=not math.isnan(total)):
            self._buckets[place].inc(count)


def _spread(
    amounts: Sequence[float], bounds: Sequence[float], *, is_ordered: bool
) -> Iterable[tuple[int, int]]:
    """Yield (bucket, number of amounts in it). Many amounts are sorted first, which takes a third of the time."""
    if len(amounts) < len(bounds) or not is_ordered:
        yield from Counter([bisect_left(bounds, amount) for amount in amounts]).items()
        return
    ordered, below = sorted(amounts), 0
    for place, bound in enumerate(bounds):
        upto = bisect_right(ordered, bound, below)
        if upto > below:
            yield place, upto - below
        below = upto


LOCK = threading.Lock()
"""Lock for the creation of instruments and the declaration of names."""
_instruments: WeakKeyDictionary[CollectorRegistry, Instruments] = WeakKeyDictionary()


def instruments_of(registry: CollectorRegistry) -> Instruments:
    """Return the instruments of a registry; create them at the first call."""
    with LOCK:
        found = _instruments.get(registry)
        if found is not None:
            register_again(found, registry)
        else:
            if _in_files():
                check_multiprocess_folder()
            made: Instruments
            collectors: list[Any] = []

            def settle() -> None:
                made.meters.settle()

            made = Instruments(maker(registry, settle, collectors), at_once=_in_files())
            found = _instruments[registry] = made
            live = LiveCollector(found)
            if _in_files():
                SharedGauges(live, registry)
            else:
                registry.register(live)
                collectors.append(live)
            made.collectors = collectors
        return found


def is_registered(use: Instruments, registry: CollectorRegistry) -> bool:
    """Return whether the registry has the instruments. The first one stands for all: who removes one removes all."""
    return use.collectors[0] in registry._collector_to_names  # noqa: SLF001 - there is no public question


def register_again(use: Instruments, registry: CollectorRegistry) -> None:
    """Register the instruments that were removed from the registry, and log that. Call it with LOCK.

    Test suites remove every collector between two tests. The metrics would be empty from then on.
    """
    removed = [one for one in use.collectors if one not in registry._collector_to_names]  # noqa: SLF001
    if not removed:
        return
    for one in removed:
        registry.register(one)
    logging.getLogger("orchestrator").warning(
        "%d metrics of this package had been removed from their registry, for example by a test fixture, and were "
        "registered again; give such tests a registry of their own: Metrics(CollectorRegistry())",
        len(removed),
    )


MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


def check_multiprocess_folder() -> None:
    """Raise ConfigError unless the folder of the multiprocess mode exists."""
    folder = _shared_folder()
    if not os.path.isdir(folder):  # noqa: PTH112 - as the library reads it
        raise ConfigError(
            f"{MULTIPROCESS} is {folder!r}, which is not a folder; create it, empty, before the processes start, or "
            "unset the variable"
        )


def _shared_folder() -> str:
    return os.environ.get(MULTIPROCESS) or os.environ.get(MULTIPROCESS.lower(), "")


def _in_files() -> bool:
    """Return whether values are in files, which another process may read at any time."""
    return bool(getattr(values.ValueClass, "_multiprocess", True))


def maker(registry: CollectorRegistry, settle: Callable[[], None], collectors: list[Any]) -> Maker:
    """Return a function that creates the instrument of a row on a registry, and adds it to `collectors`.

    `settle` is called before reads.
    """

    def make(metric: Metric) -> Any:
        made = _made(metric, registry)
        made.before = settle
        collectors.append(made)
        return made

    return make


def _made(metric: Metric, registry: CollectorRegistry) -> Any:
    name, text = PREFIX + metric.name, metric.help
    if metric.kind is MetricKind.COUNTER:
        return _Counter(name, text, metric.labels, registry=registry)
    if metric.kind is MetricKind.GAUGE:
        return _Gauge(name, text, metric.labels, registry=registry, multiprocess_mode="mostrecent")
    return _Histogram(name, text, metric.labels, registry=registry, buckets=metric.buckets)


# ---- facts ----

_RunFact: TypeAlias = (
    BudgetChecked | EventFailed | GuardEvaluated | LLMCall | OperationAttempt | ToolExecution
)


class WorkCounts:
    """Counts on the instruments of a registry, under the machine and the agent of the run of each fact."""

    def __init__(self, use: Instruments, exemplar: Trace | None) -> None:
        self._use = use
        self._meters = use.meters
        self._count = use.counters
        self._live = use.live.runs
        self.exemplar = exemplar

    # ---- durations ----

    def timed(self, histogram: Histogram, seconds: float) -> None:
        """Observe a duration, with the present span if there are exemplars."""
        if self.exemplar is None:
            histogram.take(seconds)
        else:
            self.with_span(histogram, seconds)

    def with_span(self, histogram: DurationHistogram, seconds: float) -> float | None:
        """Observe a duration with the present span; return None: nothing is left to note."""
        histogram.observe(seconds, None if self.exemplar is None else span_of(self.exemplar))
        return None

    def _agent(self, fact: _RunFact) -> str:
        """Return the agent of the run of a fact, as RunStarted named it."""
        return self._use.agent_of((fact.graph, fact.run_id))

    def _run(self, fact: _RunFact) -> tuple[str, str]:
        """Return (machine, agent) as label values."""
        return self._use.run(fact.graph, self._agent(fact))

    # ---- failures, guards and budgets ----

    def failed(self, fact: EventFailed) -> None:
        """Count a failed event, and the budget that it found used up."""
        names, run = self._use.machine(fact.graph), self._run(fact)
        reason = closed(fact.reason, FAILURES, "callback_error")
        state, event = names.state(fact.state), names.event(fact.event)
        self._count["transition_failures_total", *run, state, event, reason].inc()
        if isinstance(fact.error, LimitReached):
            self._exceeded(run, fact.error.verdict.guard)
        elif isinstance(fact.error, DeadlineExceeded):
            self._exceeded(run, "time")

    def guard(self, fact: GuardEvaluated) -> None:
        """Count an evaluation of the guard of an edge."""
        if fact.result in ("allow", "deny"):
            run = self._live.get((fact.graph, fact.run_id))  # not a call: every turn is here several times
            agent = self._agent(fact) if run is None else run[4]
            allowed = fact.result == "allow"
            count = self._meters.guards.get((fact.graph, agent, fact.guard, allowed))
            (count or self._meters.ask(fact.graph, agent, fact.guard, allowed=allowed))(1)
            return
        guard = self._use.machine(fact.graph).guards.of(fact.guard)
        self._count["guard_evaluations_total", *self._run(fact), guard, "error"].inc()

    def budgets(self, fact: BudgetChecked) -> None:
        """Count the evaluations of a turn, and the first budget that is used up."""
        refusal, graph, guards = None, fact.graph, self._meters.guards
        run = self._live.get((graph, fact.run_id))
        agent = self._agent(fact) if run is None else run[4]
        for verdict in fact.verdicts:
            count = guards.get((graph, agent, verdict.guard, verdict.ok))
            (count or self._meters.ask(graph, agent, verdict.guard, allowed=verdict.ok))(1)
            if refusal is None and not verdict.ok:
                refusal = verdict
        if refusal is not None:
            self._exceeded(self._run(fact), refusal.guard)

    def _exceeded(self, run: tuple[str, str], guard: str) -> None:
        if budget := self.budget(guard):
            self._count["budget_exceeded_total", *run, budget].inc()

    def budget(self, name: str) -> str | None:
        """Return the budget of a guard; None for a guard that ends runs for another reason."""
        budget = BUDGET_OF.get(name, name)
        if budget in BUDGETS:
            return budget
        if name in NO_BUDGETS:
            return None
        self._use.fold("budget")
        return OTHER

    # ---- operations of a run ----

    def attempt(self, fact: OperationAttempt) -> None:
        """Count an attempt, its retry or its end."""
        run = self._run(fact)
        operation = closed(fact.operation, OPERATIONS, OTHER)
        if operation not in ("llm", "tool"):  # each try of those has a fact of its own
            self._count["attempts_total", *run, operation].inc()
        if fact.outcome == "retry":
            reason = closed(fact.reason, RETRY_REASONS, "other")
            self._count["retries_total", *run, operation, reason].inc()
            return
        if fact.outcome == "exhausted":
            self._count["retries_exhausted_total", *run, operation].inc()
        if operation == "compaction":
            outcome = "ok" if fact.outcome == "ok" else "error"
            self._count["compactions_total", *run, outcome].inc()

    def llm(self, fact: LLMCall) -> None:
        """Count a request to a model."""
        if fact.outcome != "ok":
            self._unanswered(fact)
            return
        run = self._live.get((fact.graph, fact.run_id))
        agent = self._agent(fact) if run is None else run[4]
        where = (fact.graph, agent, fact.state, fact.model)
        meters = self._meters.answers.get(where) or self._meters.answer(*where)
        meters.attempt(1)
        meters.request(1)
        self.timed(meters.seconds, fact.seconds)
        if fact.input_tokens:
            of_model, of_state = meters.input
            of_model(fact.input_tokens)
            of_state(fact.input_tokens)
        if fact.output_tokens:
            of_model, of_state = meters.output
            of_model(fact.output_tokens)
            of_state(fact.output_tokens)
        self._seldom(fact, meters.run, meters.model)

    def _seldom(self, fact: LLMCall, run: tuple[str, str], model: tuple[str, str, str]) -> None:
        """Count the values that few answers have."""
        count, observe = self._count, self._use.histograms
        if fact.cost is not None:
            count["llm_cost_micros_total", run[0], *model].inc(round(fact.cost * MICRO_UNITS))
            self._use.learn_currency(run)
        elif fact.estimated_cost_micros:
            count["llm_cost_micros_total", run[0], *model].inc(fact.estimated_cost_micros)
        elif fact.outcome == "ok" and not fact.usage_unreported and self._use.has_prices(run):
            count["llm_requests_unpriced_total", *model].inc()
        if fact.usage_unreported:
            count["llm_unreported_usage_total", *model].inc()
        if fact.first_token is not None:
            observe["llm_time_to_first_token_seconds", *model].observe(fact.first_token)
        if fact.queued is not None:
            observe["llm_rate_limit_wait_seconds", *model].observe(fact.queued)
        if finish_word(fact.finish_reason) == OTHER:
            count["llm_unknown_finish_reasons_total", *model].inc()
        if fact.context_used is not None:
            observe["context_used_ratio", *run].observe(fact.context_used)
        if fact.cached_input_tokens:
            count["llm_cached_input_tokens_total", *model].inc(fact.cached_input_tokens)
        if fact.reasoning_tokens:
            count["llm_reasoning_output_tokens_total", *model].inc(fact.reasoning_tokens)

    def lost(self, fact: AnswerLost) -> None:
        """Count the cost of a request of which the process that sent it counted nothing."""
        if fact.cost_micros:
            run = self._use.run(fact.graph, fact.agent)
            self._count["llm_cost_micros_total", *run, *self._use.model(fact.model)].inc(fact.cost_micros)

    def handed_over(self, fact: HandedOver) -> None:
        """Count a handoff."""
        self._count["handoffs_total", self._use.agent(fact.source), self._use.agent(fact.to)].inc()

    def _unanswered(self, fact: LLMCall) -> None:
        run = self._run(fact)
        model = (run[1], *self._use.model(fact.model))
        outcome = closed(fact.outcome, ROWS["llm_requests_total"].values["outcome"], "other")
        self._count["attempts_total", *run, "llm"].inc()
        self._count["llm_requests_total", *model, outcome].inc()
        self.timed(self._use.histograms["llm_request_duration_seconds", *model], fact.seconds)
        self._seldom(fact, run, model)

    def tool(self, fact: ToolExecution) -> None:
        """Count a tool call."""
        run = self._live.get((fact.graph, fact.run_id))
        agent = self._agent(fact) if run is None else run[4]
        meters = self._meters.calls.get((fact.graph, agent, fact.tool, fact.outcome))
        if meters is None:
            outcome = closed(fact.outcome, ROWS["tool_calls_total"].values["outcome"], "error")
            meters = self._meters.call(fact.graph, agent, fact.tool, outcome)
        meters.attempt(1)
        meters.call(1)
        if fact.outcome != "denied" and fact.outcome not in INVALID:  # those never ran
            self.timed(meters.seconds, fact.seconds)

    # ---- the journal ----

    def journal(self, fact: JournalWrite) -> None:
        """Count a write to the journal."""
        if fact.outcome == "ok" and fact.operation == "append":
            meters = self._meters.appends.get(fact.backend) or self._meters.append(fact.backend)
            meters.seconds(fact.seconds)
            meters.set_time(time.time())
            return
        backend = self._use.backend(fact.backend)
        if fact.outcome != "ok":
            reason = closed(fact.outcome, ROWS["journal_write_failures_total"].values["reason"], "other")
            self._count["journal_write_failures_total", backend, reason].inc()
            return
        # The creation of a run appends its first record.
        self._use.histograms["journal_write_duration_seconds", backend, "append"].take(fact.seconds)
        self._use.gauges["journal_last_success_timestamp_seconds", backend].set(time.time())


ANSWERED = frozenset((Outcome.COMPLETED.value, Outcome.PARTIAL.value))


def checked_numbers(what: str, meaning: str, numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return agent -> number above 0. Raises ConfigError, which calls the number `what` and says its `meaning`."""
    for agent, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise ConfigError(
                f"the {what} of agent {agent!r} is {number!r}; give {meaning}, a number above 0"
            )
    return dict(numbers)


class Metrics:
    """An observer that counts facts on a registry; None is the default one. Several may share a registry.

    Undeclared names are counted under `_other`, `_unknown` or `_unregistered`. `exemplar` returns trace_id and
    span_id of the present span if it is sampled, else None; the durations of states, runs, requests and tools have it
    as exemplar. `objectives` is agent -> seconds within which its runs should end: the share of slower ones has an
    alert, RunLatencyBudgetBurn. `cost_ceilings` is agent -> cost of an hour, of all processes together and in the
    currency of its price table, above which CostCeilingExceeded fires. `agents` is the maximum number of agents with
    series of their own, 32 unless it is given; further ones share `_other`.

    Raises:
        ConfigError: An objective or a ceiling is not above 0, or `agents` is below 1.

    Example:
        >>> registry = CollectorRegistry()
        >>> Metrics(registry).observe(RunStarted("loop", "1", 0.0))
        >>> labels = {"machine": "_other", "agent": "_none", "origin": "new"}
        >>> registry.get_sample_value("orchestrator_runs_started_total", labels)
        1.0
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        exemplar: Trace | None = None,
        objectives: Mapping[str, float] | None = None,
        cost_ceilings: Mapping[str, float] | None = None,
        agents: int | None = None,
    ) -> None:
        self.registry = registry if registry is not None else prometheus_client.REGISTRY
        self._use = instruments_of(self.registry)
        if agents is not None:
            if type(agents) is not int or agents < 1:
                raise ConfigError(
                    f"agents is {agents!r}; give the number of agents with series of their own, 1 or more"
                )
            self._use.admit_agents(agents)
        within = "the seconds within which its runs should end"
        self._use.objectives |= checked_numbers("objective", within, objectives or {})
        per_hour = "the cost of an hour in the currency of its prices"
        self._use.ceilings |= checked_numbers("cost ceiling", per_hour, cost_ceilings or {})
        self.live = self._use.live
        """The runs of this process, including those of other Metrics on this registry."""
        work = WorkCounts(self._use, exemplar)
        self._work = work
        self._is_plain = type(self).observe is Metrics.observe  # else a subclass of a host adds to it
        self._count = self._use.counters
        self._edges = self._use.meters.edges
        self._runs = self.live.runs
        self._by_type: dict[type[Any], Callable[[Any], None]] = {
            Transition: self._transition,
            GuardEvaluated: work.guard,
            LLMCall: work.llm,
            AnswerLost: work.lost,
            HandedOver: work.handed_over,
            ToolExecution: work.tool,
            JournalWrite: work.journal,
            BudgetChecked: work.budgets,
            OperationAttempt: work.attempt,
            EventFailed: work.failed,
            RunStarted: self._started,
            RunParked: self._parked,
            RunCompleted: self._completed,
            RunAdmitted: self._admitted,
            AdmissionRejected: self._rejected,
            TableRejected: self._table_rejected,
            RunRecovered: self._found,
            RolledBack: self._found,
            BranchEnded: self._branch_ended,
            WorkAbandoned: self._abandoned,
        }

    # ---- declarations and sources ----

    def declare(
        self,
        graph: Graph,
        tools: Iterable[str] = (),
        model: str | None = None,
        *,
        provider: str = UNKNOWN,
        models: Mapping[str, str] | None = None,
        guards: Iterable[str] = (),
        backends: Iterable[str] = (),
        agent: str = "",
        run_seconds: float | None = None,
        version: str = "",
        currency: str | None = None,
        budgets: Iterable[str] | None = None,
        handoffs: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Declare the names of later facts, so that every series exists at 0. A further call adds names.

        `models` is model -> provider, for several models. `guards` are guard names of verdicts in addition to those
        of the graph's edges. `agent` is the agent whose runs use the graph, "" for runs without one, and
        `run_seconds` the maximum of its runs, `version` its version, and `currency` that of its prices, None without
        prices. `budgets` are the limits that are set, None for any, and `handoffs` the pairs of agents (agent, to) that
        hand conversations over. Names beyond `labels.CAPS` become `_other`.
        """
        pairs = [(other, name) for name, other in (models or {}).items()]
        if model:
            pairs.append((provider, model))
        with LOCK:
            register_again(self._use, self.registry)
            self._use.declare(
                graph,
                tools,
                pairs,
                guards,
                backends,
                agent=agent,
                run_seconds=run_seconds,
                version=version,
                currency=currency,
                budgets=budgets,
                handoffs=handoffs,
            )

    def watch(self, engine: Engine) -> None:
        """Report the load of an engine at each scrape, until `unwatch` or until the engine is gone."""
        self._use.watch(engine)

    def unwatch(self, engine: Engine) -> None:
        self._use.unwatch(engine)

    def count_lines(self, *tallies: LineCounts) -> None:
        """Report the counts of a log (`TransitionLog.tallies`) at each scrape, each once even if it is added twice."""
        for tally in tallies:
            if not any(tally is known for known in self._use.tallies):
                self._use.tallies.append(tally)

    def measure_store(self, backend: str, name: str, size: Callable[[], int]) -> None:
        """Report the bytes that `size` returns at each scrape; a repeated name is not counted twice."""
        self._use.stores[self._use.backend(backend), name] = size

    def count_runs(self, journal: CountableJournal) -> None:
        """Report the runs of a journal that have not ended at each scrape, while the journal exists.

        Several calls for one store count its runs once.
        """
        self._use.heads.add(journal)

    def watch_loop(self, age: Callable[[], float | None]) -> None:
        """Report the age of an event loop at each scrape, until `unwatch_loop`. For the watchdog."""
        self._use.loops.append(age)

    def unwatch_loop(self, age: Callable[[], float | None]) -> None:
        if age in self._use.loops:
            self._use.loops.remove(age)

    def loop_lag(self, seconds: float) -> None:
        """Observe the lag of the event loop. For the watchdog."""
        self._use.histograms["event_loop_lag_seconds",].observe(seconds)

    def notified(self, channel: str, outcome: str) -> None:
        """Count an attempt to notify a person. For the notifier."""
        kind = channel if channel in {"webhook", "command", "function"} else "other"
        self._count["notifications_total", kind, outcome].inc()

    def loop_blocked(self) -> None:
        self._count["event_loop_blocked_total",].inc()

    # ---- facts ----

    def hears(self, kind: type[Fact]) -> Callable[[Any], None] | None:
        """Return the counter for facts of a kind. Its caller reports an exception by `observer_failed`."""
        return self._by_type.get(kind) if self._is_plain else self.observe

    def observe(self, fact: Fact, /) -> None:
        """Count a fact. An exception here is counted too, then raised for the driver to report."""
        count = self._by_type.get(type(fact))
        if count is None:
            return
        try:
            count(fact)
        except Exception:
            self.telemetry_error("metrics")
            raise

    def observer_failed(self, observer: object) -> None:
        """Count an exception of an observer: this one, called without `observe`, or one that counts nothing."""
        if observer is self:
            if self._is_plain:
                self.telemetry_error("metrics")
        elif not isinstance(observer, Metrics):
            self.telemetry_error(str(getattr(observer, "component", "observer")))

    def telemetry_error(self, component: str) -> None:
        """Count an exception inside telemetry: `metrics`, `logs`, `tracing`, `collector`, or a host's `observer`."""
        allowed = ROWS["telemetry_errors_total"].values["component"]
        self._count["telemetry_errors_total", closed(component, allowed, "collector")].inc()

    def _transition(self, fact: Transition) -> None:
        at, dwell, graph = fact.at, fact.dwell, fact.graph
        key = (graph, fact.run_id)
        run = self._runs.get(key)
        agent = self._use.left.get(key, "") if run is None else run[4]
        edge = (graph, agent, fact.source, fact.event, fact.dest)
        meters = self._edges.get(edge) or self._use.meters.edge(*edge)
        if fact.tokens:
            names = self._use.machine(graph)
            labels = (names.name, self._use.agent(agent), names.state(fact.source))
            self._count["stage_tokens_total", *labels].inc(fact.tokens)
        if fact.internal:
            meters.stayed(fact.overhead, at)
            return
        noted, work = meters.noted, self._work
        noted.append(
            (dwell if work.exemplar is None else work.with_span(meters.stay, dwell), fact.overhead, at)
        )
        if len(noted) >= meters.most:
            self._use.meters.make_room(meters)
        if run is None:  # the run has ended
            return
        _, _, started_at, seconds, _ = run
        if meters.begins:
            seconds = dwell
        elif seconds is not None:
            seconds += dwell
        if meters.ends and seconds is not None:
            meters.lap(seconds)
            seconds = None
        self._runs[key] = (fact.dest, at, started_at, seconds, agent)

    def _started(self, fact: RunStarted) -> None:
        if not is_registered(self._use, self.registry):
            with LOCK:
                register_again(self._use, self.registry)
        self.live.started(fact)
        names, agent = self._use.machine(fact.graph), self._use.agent(fact.agent)
        resumed = fact.origin == "resumed"
        self._count["runs_started_total", names.name, agent, "resumed" if resumed else "new"].inc()
        if names.initial is not None and not resumed:
            self._count["state_entries_total", names.name, agent, names.initial].inc()

    def _parked(self, fact: RunParked) -> None:
        run = self._use.leave(fact)
        self.live.parked(fact)
        reason = closed(fact.reason, PARKINGS, OTHER)
        if reason == OTHER:
            self._use.fold("reason")
        self._count["runs_suspended_total", *run, reason].inc()

    def _completed(self, fact: RunCompleted) -> None:
        run = self._use.leave(fact)
        self.live.ended(fact)
        outcome = closed(fact.outcome, REASONS, OTHER)
        reason = closed(fact.reason, REASONS.get(Outcome(outcome), ()) if outcome != OTHER else (), OTHER)
        if reason == OTHER:
            self._use.fold("outcome")
        self._count["runs_completed_total", *run, outcome, reason].inc()
        self._work.timed(self._use.histograms["run_duration_seconds", *run], fact.seconds)
        self._use.histograms["run_iterations", *run].observe(fact.iterations)
        objective = self._use.objectives.get(run[1])
        if objective is not None and outcome in ANSWERED and fact.seconds > objective:
            self._count["runs_slow_total", *run].inc()
        if isinstance(fact.summary, Mapping):
            summary = fact.summary
            restarts = summary.get("restarts")
            if restarts:
                self._count["restarts_total", *run].inc(restarts)
            for name, share in (summary.get("budget_used") or {}).items():
                if budget := self._work.budget(name):
                    self._use.histograms["budget_consumed_ratio", *run, budget].observe(share)

    def _admitted(self, fact: RunAdmitted) -> None:
        run = self._use.run(fact.graph, fact.agent)
        self._use.histograms["run_queue_wait_seconds", *run].observe(fact.waited)

    def _rejected(self, fact: AdmissionRejected) -> None:
        self._by_reason("runs_rejected_total", fact, fact.reason)

    def _table_rejected(self, fact: TableRejected) -> None:
        self._count["tables_rejected_total", *self._use.run(fact.graph, fact.agent)].inc()

    def _found(self, fact: RunRecovered | RolledBack) -> None:
        metric = "rollbacks_total" if isinstance(fact, RolledBack) else "recoveries_total"
        self._by_reason(metric, fact, fact.outcome)

    def _branch_ended(self, fact: BranchEnded) -> None:
        agent = self._use.run(fact.graph, fact.agent)[1]
        state = self._use.machine(fact.graph).state(fact.state)
        self._count["branches_total", agent, state, closed(fact.outcome, BRANCHES, OTHER)].inc()

    def _abandoned(self, fact: WorkAbandoned) -> None:
        self._by_reason("work_abandoned_total", fact, fact.kind)

    def _by_reason(
        self, metric: str, fact: AdmissionRejected | RunRecovered | RolledBack | WorkAbandoned, word: str
    ) -> None:
        (allowed,) = ROWS[metric].values.values()
        run = self._use.run(fact.graph, fact.agent)
        self._count[metric, *run, closed(word, allowed, OTHER)].inc()
