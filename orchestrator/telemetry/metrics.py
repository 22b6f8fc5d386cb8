"""Facts become Prometheus counters and histograms. The only importer of prometheus_client.

Nothing is created at import. Instruments exist once for each registry, however many Metrics are on it, and
series exist at 0 from `declare` on: a counter born with its first increment hides it from increase().
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import prometheus_client
from prometheus_client import CollectorRegistry

from orchestrator.errors import DeadlineExceeded, LimitReached
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.kernel.record import (
    FAILURES,
    OPERATIONS,
    Attempt,
    BudgetChecked,
    EventFailed,
    Fact,
    GuardEvaluated,
    JournalWrite,
    LLMCall,
    RunCompleted,
    RunParked,
    RunStarted,
    ToolCall,
    Transition,
)
from orchestrator.telemetry.catalogue import (
    BUDGET_OF,
    BUDGETS,
    NO_BUDGETS,
    PREFIX,
    RETRY_REASONS,
    ROWS,
    Kind,
    Metric,
)
from orchestrator.telemetry.instrument import Instruments
from orchestrator.telemetry.labels import OTHER, UNKNOWN

_MOST_LAPS = 20_000
"""Runs whose present loop is timed. Events fired by hand never tell that a run is over: the oldest go."""

_instruments: WeakKeyDictionary[CollectorRegistry, Instruments] = WeakKeyDictionary()
_lock = threading.Lock()


def _instruments_of(registry: CollectorRegistry) -> Instruments:
    def make(metric: Metric) -> Any:
        name, text = PREFIX + metric.name, metric.help
        match metric.kind:
            case Kind.COUNTER:
                return prometheus_client.Counter(name, text, metric.labels, registry=registry)
            case Kind.GAUGE:
                return prometheus_client.Gauge(
                    name, text, metric.labels, registry=registry, multiprocess_mode="mostrecent"
                )
            case Kind.HISTOGRAM:
                return prometheus_client.Histogram(
                    name, text, metric.labels, registry=registry, buckets=metric.buckets
                )

    with _lock:
        found = _instruments.get(registry)
        if found is None:
            found = _instruments[registry] = Instruments(make)
        return found


class Metrics:
    """Counts facts on a registry; None is the default one. Any number of these may share a registry.

    What was not declared is counted under `_other`, `_unknown` or `_unregistered`.

    Example:
        >>> registry = CollectorRegistry()
        >>> Metrics(registry).observe(RunStarted("loop", "1", 0.0))
        >>> where = {"machine": "_other", "origin": "new"}
        >>> registry.get_sample_value("orchestrator_runs_started_total", where)
        1.0
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else prometheus_client.REGISTRY
        self._use = _instruments_of(self.registry)
        self._count = self._use.counters
        self._edges = self._use.edges
        self._laps: dict[tuple[str, str], float] = {}
        """(machine, run) -> seconds of its present loop."""
        self._by_type: dict[type[Any], Callable[[Any], None]] = {
            Transition: self._transition,
            GuardEvaluated: self._guard,
            LLMCall: self._llm,
            ToolCall: self._tool,
            JournalWrite: self._journal,
            BudgetChecked: self._budgets,
            Attempt: self._attempt,
            EventFailed: self._failed,
            RunStarted: self._started,
            RunParked: self._parked,
            RunCompleted: self._completed,
        }

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
    ) -> None:
        """Name what facts will name, so that every series exists at 0.

        `models` is model -> provider, for more than one; `guards` are names that verdicts carry, beside those
        of the graph's edges. May be called again to add. Names beyond `labels.CAPS` become `_other`.
        """
        pairs = [(other, name) for name, other in (models or {}).items()]
        if model:
            pairs.append((provider, model))
        with _lock:
            self._use.declare(graph, tools, pairs, guards, backends)

    def observe(self, fact: Fact, /) -> None:
        """Count a fact. What goes wrong here is counted too, then raised for the driver to name."""
        count = self._by_type.get(type(fact))
        if count is None:
            return
        try:
            count(fact)
        except Exception:
            self.telemetry_error("metrics")
            raise

    def telemetry_error(self, component: str) -> None:
        """Count an exception inside telemetry: `metrics`, `logs`, `tracing` or `collector`."""
        allowed = ROWS["telemetry_errors_total"].values["component"]
        self._count["telemetry_errors_total", component if component in allowed else "collector"].inc()

    def _transition(self, fact: Transition) -> None:
        edge = (fact.graph, fact.source, fact.event, fact.dest)
        meters = self._edges.get(edge) or self._use.edge(*edge)
        increment, set_time, stay, enter, begins, ends, lap = meters
        increment()
        set_time(fact.at)
        if fact.internal:
            return
        dwell = fact.dwell
        stay(dwell)
        enter()
        run = (fact.graph, fact.run_id)
        seconds = 0.0 if begins else self._laps.get(run)
        if seconds is None:
            return
        if ends:
            self._laps.pop(run, None)
            lap(seconds + dwell)
            return
        if begins and len(self._laps) >= _MOST_LAPS:
            del self._laps[next(iter(self._laps))]
        self._laps[run] = seconds + dwell

    def _started(self, fact: RunStarted) -> None:
        names = self._use.machine(fact.graph)
        resumed = fact.origin == "resumed"
        self._count["runs_started_total", names.name, "resumed" if resumed else "new"].inc()
        if names.initial is not None and not resumed:
            self._count["state_entries_total", names.name, names.initial].inc()

    def _parked(self, fact: RunParked) -> None:
        self._laps.pop((fact.graph, fact.run_id), None)

    def _completed(self, fact: RunCompleted) -> None:
        self._laps.pop((fact.graph, fact.run_id), None)
        machine = self._use.machine(fact.graph).name
        outcome = closed(fact.outcome, REASONS, OTHER)
        reason = closed(fact.reason, REASONS.get(Outcome(outcome), ()) if outcome != OTHER else (), OTHER)
        if reason == OTHER:
            self._use.fold("outcome")
        self._count["runs_completed_total", machine, outcome, reason].inc()
        self._use.histograms["run_duration_seconds", machine, outcome].observe(fact.seconds)
        self._use.histograms["run_iterations", machine].observe(fact.iterations)
        if isinstance(fact.summary, Mapping):
            self._totals(machine, fact.summary)

    def _totals(self, machine: str, summary: Mapping[str, Any]) -> None:
        restarts = summary.get("restarts")
        if restarts:
            self._count["restarts_total", machine].inc(restarts)
        for name, share in (summary.get("budget_used") or {}).items():
            if budget := self._budget(name):
                self._use.histograms["budget_consumed_ratio", machine, budget].observe(share)

    def _failed(self, fact: EventFailed) -> None:
        names = self._use.machine(fact.graph)
        reason = closed(fact.reason, FAILURES, "callback_error")
        state, event = names.state(fact.state), names.event(fact.event)
        self._count["transition_failures_total", names.name, state, event, reason].inc()
        if isinstance(fact.error, LimitReached):
            self._exceeded(names.name, fact.error.verdict.guard)
        elif isinstance(fact.error, DeadlineExceeded):
            self._exceeded(names.name, "time")

    def _guard(self, fact: GuardEvaluated) -> None:
        names = self._use.machine(fact.graph)
        result = closed(fact.result, ("allow", "deny"), "error")
        self._count["guard_evaluations_total", names.name, names.guards.of(fact.guard), result].inc()

    def _budgets(self, fact: BudgetChecked) -> None:
        names = self._use.machine(fact.graph)
        refusal = None
        for verdict in fact.verdicts:
            result = "allow" if verdict.ok else "deny"
            self._count["guard_evaluations_total", names.name, names.guards.of(verdict.guard), result].inc()
            if refusal is None and not verdict.ok:
                refusal = verdict
        if refusal is not None:
            self._exceeded(names.name, refusal.guard)

    def _exceeded(self, machine: str, guard: str) -> None:
        if budget := self._budget(guard):
            self._count["budget_exceeded_total", machine, budget].inc()

    def _budget(self, name: str) -> str | None:
        """Return the budget that a guard watches; None for a guard that ends runs for another reason."""
        budget = BUDGET_OF.get(name, name)
        if budget in BUDGETS:
            return budget
        if name in NO_BUDGETS:
            return None
        self._use.fold("budget")
        return OTHER

    def _attempt(self, fact: Attempt) -> None:
        machine = self._use.machine(fact.graph).name
        operation = closed(fact.operation, OPERATIONS, OTHER)
        if operation not in ("llm", "tool"):  # each try of those has a fact of its own
            self._count["attempts_total", machine, operation].inc()
        if fact.outcome == "retry":
            reason = closed(fact.reason, RETRY_REASONS, "other")
            self._count["retries_total", machine, operation, reason].inc()
            return
        if fact.outcome == "exhausted":
            self._count["retries_exhausted_total", machine, operation].inc()
        if operation == "compaction":
            outcome = "ok" if fact.outcome == "ok" else "error"
            self._count["compactions_total", machine, outcome].inc()

    def _llm(self, fact: LLMCall) -> None:
        names, count = self._use.machine(fact.graph), self._count
        model = self._use.model(fact.model)
        outcome = closed(fact.outcome, ROWS["llm_requests_total"].values["outcome"], "other")
        count["attempts_total", names.name, "llm"].inc()
        count["llm_requests_total", *model, outcome].inc()
        self._use.histograms["llm_request_duration_seconds", *model].observe(fact.seconds)
        state = names.state(fact.state)
        for direction, tokens in (("input", fact.input_tokens), ("output", fact.output_tokens)):
            if tokens:
                count["llm_tokens_total", names.name, *model, direction].inc(tokens)
                count["state_tokens_total", names.name, state, direction].inc(tokens)
        if fact.cached_input_tokens:
            count["llm_cached_input_tokens_total", *model].inc(fact.cached_input_tokens)
        if fact.reasoning_tokens:
            count["llm_reasoning_output_tokens_total", *model].inc(fact.reasoning_tokens)

    def _tool(self, fact: ToolCall) -> None:
        tool = self._use.tool(fact.tool)
        outcome = closed(fact.outcome, ROWS["tool_calls_total"].values["outcome"], "error")
        self._count["attempts_total", self._use.machine(fact.graph).name, "tool"].inc()
        self._count["tool_calls_total", tool, outcome].inc()
        if outcome not in ("denied", "invalid_args"):  # those never ran
            self._use.histograms["tool_call_duration_seconds", tool].observe(fact.seconds)

    def _journal(self, fact: JournalWrite) -> None:
        backend = self._use.backend(fact.backend)
        if fact.outcome != "ok":
            reason = closed(fact.outcome, ROWS["journal_write_failures_total"].values["reason"], "other")
            self._count["journal_write_failures_total", backend, reason].inc()
            return
        # Creating a run appends its first record.
        operation = closed(fact.operation, ("append", "snapshot"), "append")
        self._use.histograms["journal_write_duration_seconds", backend, operation].observe(fact.seconds)
        self._use.gauges["journal_last_success_timestamp_seconds", backend].set(time.time())


def closed(value: str | None, allowed: Container[str], rest: str) -> str:
    """Return the value if it is one of those allowed, else `rest`."""
    return value if value is not None and value in allowed else rest
