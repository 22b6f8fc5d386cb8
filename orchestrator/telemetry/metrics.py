"""Convert facts to Prometheus counters and histograms.

An import creates nothing. Instruments exist once for each registry, shared by all Metrics on it. Series exist at 0
after `declare`: if a counter appears with its first increment, increase() does not see that increment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry

from orchestrator.errors import DeadlineExceeded, LimitReached
from orchestrator.kernel.graph import Graph
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.kernel.record import (
    FAILURES,
    OPERATIONS,
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
    ToolExecution,
    Transition,
    WorkAbandoned,
)
from orchestrator.telemetry.catalogue import BUDGET_OF, BUDGETS, INVALID, NO_BUDGETS, RETRY_REASONS, ROWS
from orchestrator.telemetry.child import LOCK, instruments_of
from orchestrator.telemetry.edge import DurationHistogram
from orchestrator.telemetry.engine import Engine
from orchestrator.telemetry.instrument import Histogram
from orchestrator.telemetry.labels import OTHER, UNKNOWN, closed
from orchestrator.telemetry.scraped import PARKINGS
from orchestrator.telemetry.span import Trace, span_of
from orchestrator.telemetry.tally import LineCounts


class Metrics:
    """An observer that counts facts on a registry; None is the default one. Several may share a registry.

    Undeclared names are counted under `_other`, `_unknown` or `_unregistered`. `exemplar` returns trace_id and
    span_id of the present span if it is sampled, else None; the durations of states, runs, requests and tools have it
    as exemplar.

    Example:
        >>> registry = CollectorRegistry()
        >>> Metrics(registry).observe(RunStarted("loop", "1", 0.0))
        >>> registry.get_sample_value("orchestrator_runs_started_total", {"machine": "_other", "origin": "new"})
        1.0
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, exemplar: Trace | None = None) -> None:
        self.registry = registry if registry is not None else prometheus_client.REGISTRY
        self._use = instruments_of(self.registry)
        self.live = self._use.live
        """The runs of this process, including those of other Metrics on this registry."""
        self._exemplar = exemplar
        self._is_plain = type(self).observe is Metrics.observe  # else a subclass of a host adds to it
        self._count = self._use.counters
        self._edges = self._use.edges
        self._runs = self.live.runs
        self._by_type: dict[type[Any], Callable[[Any], None]] = {
            Transition: self._transition,
            GuardEvaluated: self._guard,
            LLMCall: self._llm,
            ToolExecution: self._tool,
            JournalWrite: self._journal,
            BudgetChecked: self._budgets,
            OperationAttempt: self._attempt,
            EventFailed: self._failed,
            RunStarted: self._started,
            RunParked: self._parked,
            RunCompleted: self._completed,
            RunAdmitted: self._admitted,
            AdmissionRejected: self._rejected,
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
        run_seconds: float | None = None,
    ) -> None:
        """Declare the names of later facts, so that every series exists at 0. A further call adds names.

        `models` is model -> provider, for several models. `guards` are guard names of verdicts in addition to those
        of the graph's edges. `run_seconds` is the maximum of a run. Names beyond `labels.CAPS` become `_other`.
        """
        pairs = [(other, name) for name, other in (models or {}).items()]
        if model:
            pairs.append((provider, model))
        with LOCK:
            self._use.declare(graph, tools, pairs, guards, backends, run_seconds=run_seconds)

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
        edge = (graph, fact.source, fact.event, fact.dest)
        meters = self._edges.get(edge) or self._use.edge(*edge)
        if fact.tokens:
            self._count["stage_tokens_total", *self._use.labels_of(graph, fact.source)].inc(fact.tokens)
        if fact.internal:
            meters.stayed(fact.overhead, at)
            return
        noted = meters.noted
        noted.append(
            (dwell if self._exemplar is None else self._with_span(meters.stay, dwell), fact.overhead, at)
        )
        if len(noted) >= meters.most:
            self._use.make_room(meters)
        key = (graph, fact.run_id)
        run = self._runs.get(key)
        if run is None:  # the run has ended
            return
        _, _, started_at, seconds = run
        if meters.begins:
            seconds = dwell
        elif seconds is not None:
            seconds += dwell
        if meters.ends and seconds is not None:
            meters.lap(seconds)
            seconds = None
        self._runs[key] = (fact.dest, at, started_at, seconds)

    def _started(self, fact: RunStarted) -> None:
        self.live.started(fact)
        names = self._use.machine(fact.graph)
        resumed = fact.origin == "resumed"
        self._count["runs_started_total", names.name, "resumed" if resumed else "new"].inc()
        if names.initial is not None and not resumed:
            self._count["state_entries_total", names.name, names.initial].inc()

    def _parked(self, fact: RunParked) -> None:
        self.live.parked(fact)
        reason = closed(fact.reason, PARKINGS, OTHER)
        if reason == OTHER:
            self._use.fold("reason")
        self._count["runs_suspended_total", self._use.machine(fact.graph).name, reason].inc()

    def _completed(self, fact: RunCompleted) -> None:
        self.live.ended(fact)
        machine = self._use.machine(fact.graph).name
        outcome = closed(fact.outcome, REASONS, OTHER)
        reason = closed(fact.reason, REASONS.get(Outcome(outcome), ()) if outcome != OTHER else (), OTHER)
        if reason == OTHER:
            self._use.fold("outcome")
        self._count["runs_completed_total", machine, outcome, reason].inc()
        self._timed(self._use.histograms["run_duration_seconds", machine, outcome], fact.seconds)
        self._use.histograms["run_iterations", machine].observe(fact.iterations)
        if isinstance(fact.summary, Mapping):
            self._totals(machine, fact.summary)

    def _admitted(self, fact: RunAdmitted) -> None:
        machine = self._use.machine(fact.graph).name
        self._use.histograms["run_queue_wait_seconds", machine].observe(fact.waited)

    def _rejected(self, fact: AdmissionRejected) -> None:
        self._by_reason("runs_rejected_total", fact.graph, fact.reason)

    def _found(self, fact: RunRecovered | RolledBack) -> None:
        metric = "rollbacks_total" if isinstance(fact, RolledBack) else "recoveries_total"
        self._by_reason(metric, fact.graph, fact.outcome)

    def _abandoned(self, fact: WorkAbandoned) -> None:
        self._by_reason("work_abandoned_total", fact.graph, fact.kind)

    def _by_reason(self, metric: str, graph: str, word: str) -> None:
        (allowed,) = ROWS[metric].values.values()
        self._count[metric, self._use.machine(graph).name, closed(word, allowed, OTHER)].inc()

    def _timed(self, histogram: Histogram, seconds: float) -> None:
        if self._exemplar is None:
            histogram.take(seconds)
        else:
            self._with_span(histogram, seconds)

    def _with_span(self, histogram: DurationHistogram, seconds: float) -> float | None:
        """Observe a duration with the present span; return None: nothing is left to note."""
        histogram.observe(seconds, None if self._exemplar is None else span_of(self._exemplar))
        return None

    def _totals(self, machine: str, summary: Mapping[str, Any]) -> None:
        restarts = summary.get("restarts")
        if restarts:
            self._count["restarts_total", machine].inc(restarts)
        for name, share in (summary.get("budget_used") or {}).items():
            if budget := self._budget(name):
                self._use.histograms["budget_consumed_ratio", machine, budget].observe(share)

    # ---- failures, guards and budgets ----

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
        if fact.result in ("allow", "deny"):
            self._count_guard(fact.graph, fact.guard, allowed=fact.result == "allow")
            return
        names = self._use.machine(fact.graph)
        self._count["guard_evaluations_total", names.name, names.guards.of(fact.guard), "error"].inc()

    def _count_guard(self, machine: str, guard: str, *, allowed: bool) -> None:
        count = self._use.guard_counters.get((machine, guard, allowed))
        (count or self._use.ask(machine, guard, allowed=allowed))(1)

    def _budgets(self, fact: BudgetChecked) -> None:
        refusal = None
        for verdict in fact.verdicts:
            self._count_guard(fact.graph, verdict.guard, allowed=verdict.ok)
            if refusal is None and not verdict.ok:
                refusal = verdict
        if refusal is not None:
            self._exceeded(self._use.machine(fact.graph).name, refusal.guard)

    def _exceeded(self, machine: str, guard: str) -> None:
        if budget := self._budget(guard):
            self._count["budget_exceeded_total", machine, budget].inc()

    def _budget(self, name: str) -> str | None:
        """Return the budget of a guard; None for a guard that ends runs for another reason."""
        budget = BUDGET_OF.get(name, name)
        if budget in BUDGETS:
            return budget
        if name in NO_BUDGETS:
            return None
        self._use.fold("budget")
        return OTHER

    # ---- operations of a run ----

    def _attempt(self, fact: OperationAttempt) -> None:
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
        if fact.outcome != "ok":
            self._unanswered(fact)
            return
        where = (fact.graph, fact.state, fact.model)
        meters = self._use.answers.get(where) or self._use.answer(*where)
        meters.attempt(1)
        meters.request(1)
        self._timed(meters.seconds, fact.seconds)
        if fact.input_tokens:
            of_model, of_state = meters.input
            of_model(fact.input_tokens)
            of_state(fact.input_tokens)
        if fact.output_tokens:
            of_model, of_state = meters.output
            of_model(fact.output_tokens)
            of_state(fact.output_tokens)
        self._seldom(fact, meters.machine, meters.model)

    def _seldom(self, fact: LLMCall, machine: str, model: tuple[str, str]) -> None:
        """Count the values that few answers have."""
        count, observe = self._count, self._use.histograms
        if fact.first_token is not None:
            observe["llm_time_to_first_token_seconds", *model].observe(fact.first_token)
        if fact.queued is not None:
            observe["llm_rate_limit_wait_seconds", *model].observe(fact.queued)
        if fact.context_used is not None:
            observe["context_used_ratio", machine].observe(fact.context_used)
        if fact.cached_input_tokens:
            count["llm_cached_input_tokens_total", *model].inc(fact.cached_input_tokens)
        if fact.reasoning_tokens:
            count["llm_reasoning_output_tokens_total", *model].inc(fact.reasoning_tokens)

    def _unanswered(self, fact: LLMCall) -> None:
        machine, model = self._use.machine(fact.graph).name, self._use.model(fact.model)
        outcome = closed(fact.outcome, ROWS["llm_requests_total"].values["outcome"], "other")
        self._count["attempts_total", machine, "llm"].inc()
        self._count["llm_requests_total", *model, outcome].inc()
        self._timed(self._use.histograms["llm_request_duration_seconds", *model], fact.seconds)
        self._seldom(fact, machine, model)

    def _tool(self, fact: ToolExecution) -> None:
        meters = self._use.calls.get((fact.graph, fact.tool, fact.outcome))
        if meters is None:
            outcome = closed(fact.outcome, ROWS["tool_calls_total"].values["outcome"], "error")
            meters = self._use.call(fact.graph, fact.tool, outcome)
        meters.attempt(1)
        meters.call(1)
        if fact.outcome != "denied" and fact.outcome not in INVALID:  # those never ran
            self._timed(meters.seconds, fact.seconds)

    def _journal(self, fact: JournalWrite) -> None:
        if fact.outcome == "ok" and fact.operation == "append":
            meters = self._use.appends.get(fact.backend) or self._use.append(fact.backend)
            meters.seconds(fact.seconds)
            meters.set_time(time.time())
            return
        backend = self._use.backend(fact.backend)
        if fact.outcome != "ok":
            reason = closed(fact.outcome, ROWS["journal_write_failures_total"].values["reason"], "other")
            self._count["journal_write_failures_total", backend, reason].inc()
            return
        # The creation of a run appends its first record.
        operation = closed(fact.operation, ("append", "snapshot"), "append")
        self._use.histograms["journal_write_duration_seconds", backend, operation].take(fact.seconds)
        self._use.gauges["journal_last_success_timestamp_seconds", backend].set(time.time())
