"""The gauges that are computed at a scrape from the present state, and fast paths around instruments of the library.

Only this module, metrics.py and exposition/ import prometheus_client.

A thread in each process writes the figures of its collector into gauges of the library, each with the mode by which
processes are combined. A process without a thread, right after a fork, starts one. `mark_process_dead` in the server's
hook removes the figures of a dead worker.

Every turn updates some forty series. The library's `inc`, `set` and `observe` check the labels of the instrument at
each call, and a histogram searches its buckets. `add` and `take` do that work once; what remains is the library's own
value with its lock, in one process or in files for several. Pending amounts (`instrument.EdgeMeters`) are added before
anything is read.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary

import prometheus_client
from prometheus_client import CollectorRegistry, core, values

from orchestrator.errors import ConfigError
from orchestrator.telemetry.catalogue import LEVELS, PHASES, PREFIX, ROWS, SCRAPED, Metric, MetricKind
from orchestrator.telemetry.instrument import Instruments, Load, Maker, Values, phase
from orchestrator.version import __version__


class LiveCollector:
    """Reads the live runs, engines, stores and logs of one registry's Metrics, in the thread of the scrape."""

    def __init__(self, use: Instruments) -> None:
        self._use = use
        self._version = __version__

    def describe(self) -> Iterator[core.Metric]:
        """Yield every metric without values, so that the registry knows the names."""
        for row in SCRAPED:
            yield family(row.name, {})

    def collect(self) -> Iterator[core.Metric]:
        """Yield every metric with its present values.

        An exception of one section is counted, and the other sections are yielded.
        """
        began = time.perf_counter()
        sections = (self._runs, self._engines, self._declared, self._stores, self._logs, self._loops)
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
        return {
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
        limits: Values = {}
        definitions: Values = {}
        for names in self._use.machines():
            whole |= {(names.name, agent): seconds for agent, seconds in sorted(names.run_seconds.items())}
            objectives |= {
                (names.name, agent): self._use.objectives[agent]
                for agent in names.agents
                if agent in self._use.objectives
            }
            limits |= {(names.name, *where): seconds for where, seconds in sorted(names.dwell.items())}
            definitions |= {(names.name, self._version, one): 1 for one in names.definitions}
        return {
            "state_timeout_seconds": limits,
            "run_timeout_seconds": whole,
            "run_objective_seconds": objectives,
            "build_info": {(self._version, platform.python_version()): 1},
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

_SUMS = {"runs_active", "runs_queued", "run_slots"}
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


class _Settled:
    before: Callable[[], None] = staticmethod(lambda: None)

    def collect(self) -> Iterable[Any]:
        self.before()
        found: Iterable[Any] = super().collect()  # type: ignore[misc]
        return found


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
            amounts = self.noted[:]
            del self.noted[: len(amounts)]  # amounts that arrived meanwhile stay
            if amounts:
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
    folder = os.environ.get(MULTIPROCESS) or os.environ.get(MULTIPROCESS.lower(), "")
    if not os.path.isdir(folder):  # noqa: PTH112 - as the library reads it
        raise ConfigError(
            f"{MULTIPROCESS} is {folder!r}, which is not a folder; create it, empty, before the processes start, or "
            "unset the variable"
        )


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
