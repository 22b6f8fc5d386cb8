"""The gauges that are computed at a scrape from the present state, so that no exception can separate two increments.

Like metrics.py and child.py it imports prometheus_client.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import core

from orchestrator.telemetry.catalogue import PREFIX, ROWS, MetricKind
from orchestrator.telemetry.engine import Load, phase
from orchestrator.telemetry.head_gauge import Values
from orchestrator.telemetry.instrument import Instruments
from orchestrator.telemetry.scraped import LEVELS, PHASES, SCRAPED
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
            yield from self._guarded(section)
        yield family("collector_duration_seconds", {(): time.perf_counter() - began})

    def _guarded(self, section: Callable[[], dict[str, Values]]) -> Iterable[core.Metric]:
        try:
            return [family(name, values) for name, values in section().items()]
        except Exception:  # noqa: BLE001 - the error of one store must not fail the whole scrape
            self._use.counters["telemetry_errors_total", "collector"].inc()
            return ()

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
