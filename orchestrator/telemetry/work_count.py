"""Convert facts about the parts of a run to counters: failures, guards, budgets, models, tools, the journal."""

from __future__ import annotations

import time
from typing import TypeAlias

from orchestrator.errors import DeadlineExceeded, LimitReached
from orchestrator.kernel.record import (
    FAILURES,
    OPERATIONS,
    BudgetChecked,
    EventFailed,
    GuardEvaluated,
    JournalWrite,
    LLMCall,
    OperationAttempt,
    ToolExecution,
)
from orchestrator.llm.finish_reason import finish_word
from orchestrator.telemetry.catalogue import BUDGET_OF, BUDGETS, INVALID, NO_BUDGETS, RETRY_REASONS, ROWS
from orchestrator.telemetry.edge import DurationHistogram
from orchestrator.telemetry.instrument import Histogram, Instruments
from orchestrator.telemetry.labels import OTHER, closed
from orchestrator.telemetry.span import Trace, span_of

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
            self._count_guard(fact.graph, agent, fact.guard, allowed=fact.result == "allow")
            return
        guard = self._use.machine(fact.graph).guards.of(fact.guard)
        self._count["guard_evaluations_total", *self._run(fact), guard, "error"].inc()

    def _count_guard(self, machine: str, agent: str, guard: str, *, allowed: bool) -> None:
        count = self._meters.guards.get((machine, agent, guard, allowed))
        (count or self._meters.ask(machine, agent, guard, allowed=allowed))(1)

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
        operation = closed(fact.operation, ("append", "snapshot"), "append")
        self._use.histograms["journal_write_duration_seconds", backend, operation].take(fact.seconds)
        self._use.gauges["journal_last_success_timestamp_seconds", backend].set(time.time())
