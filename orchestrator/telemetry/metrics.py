"""Convert facts to Prometheus counters and histograms.

An import creates nothing. Instruments exist once for each registry, shared by all Metrics on it. Series exist at 0
after `declare`: if a counter appears with its first increment, increase() does not see that increment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry

from orchestrator.errors import ConfigError
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.head_count import CountableJournal
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.kernel.record import (
    AdmissionRejected,
    BudgetChecked,
    EventFailed,
    Fact,
    GuardEvaluated,
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
from orchestrator.telemetry.catalogue import ROWS
from orchestrator.telemetry.child import LOCK, instruments_of, is_registered, register_again
from orchestrator.telemetry.engine import Engine
from orchestrator.telemetry.labels import OTHER, UNKNOWN, closed
from orchestrator.telemetry.scraped import PARKINGS
from orchestrator.telemetry.span import Trace
from orchestrator.telemetry.tally import LineCounts
from orchestrator.telemetry.work_count import WorkCounts

ANSWERED = frozenset((Outcome.COMPLETED.value, Outcome.PARTIAL.value))


def checked_objectives(objectives: Mapping[str, Any]) -> dict[str, float]:
    """Return objectives that are numbers above 0. Raises ConfigError."""
    for agent, seconds in objectives.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ConfigError(
                f"the objective of agent {agent!r} is {seconds!r}; give the seconds within which its runs should end, "
                "a number above 0"
            )
    return dict(objectives)


class Metrics:
    """An observer that counts facts on a registry; None is the default one. Several may share a registry.

    Undeclared names are counted under `_other`, `_unknown` or `_unregistered`. `exemplar` returns trace_id and
    span_id of the present span if it is sampled, else None; the durations of states, runs, requests and tools have it
    as exemplar. `objectives` is agent -> seconds within which its runs should end: the share of slower ones has an
    alert, RunLatencyBudgetBurn.

    Raises:
        ConfigError: An objective is not above 0.

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
    ) -> None:
        self.registry = registry if registry is not None else prometheus_client.REGISTRY
        self._use = instruments_of(self.registry)
        self._use.objectives |= checked_objectives(objectives or {})
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
    ) -> None:
        """Declare the names of later facts, so that every series exists at 0. A further call adds names.

        `models` is model -> provider, for several models. `guards` are guard names of verdicts in addition to those
        of the graph's edges. `agent` is the agent whose runs use the graph, "" for runs without one, and
        `run_seconds` the maximum of its runs. Names beyond `labels.CAPS` become `_other`.
        """
        pairs = [(other, name) for name, other in (models or {}).items()]
        if model:
            pairs.append((provider, model))
        with LOCK:
            register_again(self._use, self.registry)
            self._use.declare(graph, tools, pairs, guards, backends, agent=agent, run_seconds=run_seconds)

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
        self._work.timed(self._use.histograms["run_duration_seconds", *run, outcome], fact.seconds)
        self._use.histograms["run_iterations", *run].observe(fact.iterations)
        objective = self._use.objectives.get(run[1])
        if objective is not None and outcome in ANSWERED and fact.seconds > objective:
            self._count["runs_slow_total", *run].inc()
        if isinstance(fact.summary, Mapping):
            self._totals(run, fact.summary)

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

    def _abandoned(self, fact: WorkAbandoned) -> None:
        self._by_reason("work_abandoned_total", fact, fact.kind)

    def _by_reason(
        self, metric: str, fact: AdmissionRejected | RunRecovered | RolledBack | WorkAbandoned, word: str
    ) -> None:
        (allowed,) = ROWS[metric].values.values()
        run = self._use.run(fact.graph, fact.agent)
        self._count[metric, *run, closed(word, allowed, OTHER)].inc()

    def _totals(self, run: tuple[str, str], summary: Mapping[str, Any]) -> None:
        restarts = summary.get("restarts")
        if restarts:
            self._count["restarts_total", *run].inc(restarts)
        for name, share in (summary.get("budget_used") or {}).items():
            if budget := self._work.budget(name):
                self._use.histograms["budget_consumed_ratio", *run, budget].observe(share)
