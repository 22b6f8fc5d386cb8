"""The lower rows of the operations dashboard: guards and budgets, models, tools, durability and runtime."""

from __future__ import annotations

from orchestrator.ops.panel import Kind, Panel, Query, Row, Unit
from orchestrator.ops.threshold import Thresholds

_LIMITS = Thresholds()


def _quantile(q: float, metric: str, by: str, matchers: str, legend: str) -> Query:
    return Query(
        f"histogram_quantile({q}, sum by ({by}, le)"
        f" (rate(orchestrator_{metric}_bucket{{{matchers}}}[$__rate_interval])))",
        legend,
    )


GUARDS = Row(
    "Guards, retries, budgets",
    (
        Panel(
            title="Guards that say no",
            description="Share of evaluations that refused or raised. A rise in one guard says which limit is met.",
            queries=(
                Query(
                    'sum by (machine, guard) (rate(orchestrator_guard_evaluations_total{%m, result!="allow"}'
                    "[$__rate_interval])) / sum by (machine, guard)"
                    " (rate(orchestrator_guard_evaluations_total{%m}[$__rate_interval])) > 0",
                    "{{machine}} {{guard}}",
                ),
            ),
            unit=Unit.SHARE,
            empty_ok="no guard refused anything",
        ),
        Panel(
            title="Retries per attempt",
            description="Above 0.3 the load feeds itself: RetryStorm.",
            queries=(
                Query(
                    "sum by (machine, operation) (rate(orchestrator_retries_total{%m}[$__rate_interval]))"
                    " / sum by (machine, operation) (rate(orchestrator_attempts_total{%m}[$__rate_interval]))",
                    "{{machine}} {{operation}}",
                ),
            ),
            unit=Unit.SHARE,
            line=_LIMITS.retries,
        ),
        Panel(
            title="Given up after the last try",
            description="By operation, within the last hour.",
            queries=(
                Query(
                    "sum by (machine, operation) (increase(orchestrator_retries_exhausted_total{%m}[1h]))",
                    "{{machine}} {{operation}}",
                ),
            ),
        ),
        Panel(
            title="Use of budgets, p95",
            description="1 is the limit. What comes near it will be cut off next.",
            queries=(
                _quantile(0.95, "budget_consumed_ratio", "machine, budget", "%m", "{{machine}} {{budget}}"),
            ),
            unit=Unit.SHARE,
            line=0.9,
        ),
        Panel(
            title="Budgets used up",
            description="Checks that found a budget used up, by which.",
            queries=(
                Query(
                    "sum by (machine, budget) (increase(orchestrator_budget_exceeded_total{%m}[1h]))",
                    "{{machine}} {{budget}}",
                ),
            ),
        ),
        Panel(
            title="Loops per run, p95",
            description="Agents that go round in circles show here before a limit ends them.",
            queries=(_quantile(0.95, "run_iterations", "machine", "%m", "{{machine}}"),),
        ),
        Panel(
            title="Use of the model's context, p95",
            description="What comes near 1 is compacted or fails.",
            queries=(_quantile(0.95, "context_used_ratio", "machine", "%m", "{{machine}}"),),
            unit=Unit.SHARE,
            line=0.9,
            empty_ok="no model tells the size of its context",
        ),
        Panel(
            title="Restarts and compactions",
            description="Loops that were started over, and messages replaced by a summary, within the last hour.",
            queries=(
                Query(
                    "sum by (machine) (increase(orchestrator_restarts_total{%m}[1h]))", "{{machine}} restarts"
                ),
                Query(
                    "sum by (machine, outcome) (increase(orchestrator_compactions_total{%m}[1h]))",
                    "{{machine}} compactions {{outcome}}",
                ),
            ),
        ),
    ),
)

MODELS = Row(
    "Models and tokens",
    (
        Panel(
            title="Requests by outcome",
            description="rate_limited, auth and server_error each call for something else: see the runbook.",
            queries=(
                Query(
                    "sum by (model, outcome) (rate(orchestrator_llm_requests_total{%i}[$__rate_interval])) > 0",
                    "{{model}} {{outcome}}",
                ),
            ),
            unit=Unit.RATE,
            stacked=True,
        ),
        Panel(
            title="Time of a request, p95",
            description="By model.",
            queries=(_quantile(0.95, "llm_request_duration_seconds", "model", "%i", "{{model}}"),),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Time to first token, p95",
            description="Of streamed answers.",
            queries=(_quantile(0.95, "llm_time_to_first_token_seconds", "model", "%i", "{{model}}"),),
            unit=Unit.SECONDS,
            empty_ok="no answer was streamed",
        ),
        Panel(
            title="Tokens",
            description="Billable ones, by direction. Multiply by the price for the cost.",
            queries=(
                Query(
                    "sum by (machine, model, direction)"
                    " (rate(orchestrator_llm_tokens_total{%m}[$__rate_interval]))",
                    "{{machine}} {{model}} {{direction}}",
                ),
            ),
            unit=Unit.RATE,
            stacked=True,
        ),
        Panel(
            title="Tokens by state",
            description="Which state of the graph spends them.",
            queries=(
                Query(
                    "sum by (machine, state) (rate(orchestrator_state_tokens_total{%m}[$__rate_interval])) > 0",
                    "{{machine}} {{state}}",
                ),
            ),
            unit=Unit.RATE,
        ),
        Panel(
            title="From the cache, and thought in silence",
            description="Share of input tokens read from the provider's cache, and of output tokens that nobody reads.",
            queries=(
                Query(
                    "sum by (model) (rate(orchestrator_llm_cached_input_tokens_total{%i}[$__rate_interval]))"
                    " / sum by (model)"
                    ' (rate(orchestrator_llm_tokens_total{%i, direction="input"}[$__rate_interval]))',
                    "{{model}} cached",
                ),
                Query(
                    "sum by (model) (rate(orchestrator_llm_reasoning_output_tokens_total{%i}[$__rate_interval]))"
                    " / sum by (model)"
                    ' (rate(orchestrator_llm_tokens_total{%i, direction="output"}[$__rate_interval]))',
                    "{{model}} reasoning",
                ),
            ),
            unit=Unit.SHARE,
        ),
    ),
)

TOOLS = Row(
    "Tools",
    (
        Panel(
            title="Calls that fail",
            description="Share of calls with outcome error or timeout, by tool. Above a quarter: ToolErrorRatioHigh.",
            queries=(
                Query(
                    'sum by (tool) (rate(orchestrator_tool_calls_total{%i, outcome=~"error|timeout"}'
                    "[$__rate_interval]))"
                    " / sum by (tool) (rate(orchestrator_tool_calls_total{%i}[$__rate_interval]))",
                    "{{tool}}",
                ),
            ),
            unit=Unit.SHARE,
            line=_LIMITS.tool_errors,
        ),
        Panel(
            title="Time of a call, p95",
            description="By tool.",
            queries=(_quantile(0.95, "tool_call_duration_seconds", "tool", "%i", "{{tool}}"),),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Calls of tools that do not exist",
            description="The model makes names up: prompt and tool list disagree.",
            queries=(
                Query(
                    'sum by (outcome) (increase(orchestrator_tool_calls_total{%i, tool="_unregistered"}[1h]))',
                    "{{outcome}}",
                ),
            ),
        ),
    ),
)

RUNTIME = Row(
    "Durability and runtime",
    (
        Panel(
            title="Journal writes, p99",
            description="Every step of a run waits for such a write.",
            queries=(
                _quantile(
                    0.99,
                    "journal_write_duration_seconds",
                    "backend, operation",
                    "%i",
                    "{{backend}} {{operation}}",
                ),
            ),
            unit=Unit.SECONDS,
            line=_LIMITS.journal_append,
        ),
        Panel(
            title="Journal writes that failed",
            description="Any is a page: JournalWritesFailing.",
            queries=(
                Query(
                    "sum by (backend, reason)"
                    " (increase(orchestrator_journal_write_failures_total{%i}[$__rate_interval]))",
                    "{{backend}} {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Since the last durable write",
            description="Grows while nothing happens; growing while runs are active is trouble.",
            queries=(
                Query(
                    "max by (instance, backend) (time() - orchestrator_journal_last_success_timestamp_seconds{%i})",
                    "{{instance}} {{backend}}",
                ),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Size of the journal",
            description="`orchestrator runs prune` removes ended runs.",
            queries=(
                Query(
                    "sum by (instance, backend) (orchestrator_journal_bytes{%i})", "{{instance}} {{backend}}"
                ),
            ),
            unit=Unit.BYTES,
            empty_ok="journals in memory have no size",
        ),
        Panel(
            title="Event loop lag, p99",
            description="How late the watchdog wakes up; blocked counts the times it printed all stacks.",
            queries=(
                _quantile(0.99, "event_loop_lag_seconds", "instance", "%i", "{{instance}}"),
                Query(
                    "sum by (instance) (increase(orchestrator_event_loop_blocked_total{%i}[1h]))",
                    "{{instance}} blocked",
                ),
            ),
            unit=Unit.SECONDS,
            line=_LIMITS.loop_lag,
        ),
        Panel(
            title="Wait for a slot, p95",
            description="From submitting a run until it begins.",
            queries=(_quantile(0.95, "run_queue_wait_seconds", "machine", "%m", "{{machine}}"),),
            unit=Unit.SECONDS,
            line=_LIMITS.queue_wait_s,
            empty_ok="no engine with a queue is used",
        ),
        Panel(
            title="Since the last transition",
            description="Of a machine on an instance. With active runs it should be short: EngineStalled.",
            queries=(
                Query(
                    "max by (instance, machine)"
                    " (time() - orchestrator_last_transition_timestamp_seconds{%m})",
                    "{{instance}} {{machine}}",
                ),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="CPU",
            description="Cores in use by each process.",
            queries=(Query("rate(process_cpu_seconds_total{%i}[$__rate_interval])", "{{instance}}"),),
        ),
        Panel(
            title="Memory",
            description="Resident, by process.",
            queries=(Query("process_resident_memory_bytes{%i}", "{{instance}}"),),
            unit=Unit.BYTES,
        ),
        Panel(
            title="What a scrape costs",
            description="Time of the whole scrape, and of the collector that counts live runs.",
            queries=(
                Query("scrape_duration_seconds{%i}", "{{instance}} scrape"),
                Query("orchestrator_collector_duration_seconds{%i}", "{{instance}} collector"),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Series per scrape",
            description="Bounded by the definitions; a rise means new machines, tools or models.",
            queries=(Query("scrape_samples_scraped{%i}", "{{instance}}"),),
        ),
        Panel(
            title="Lost telemetry",
            description="Exceptions inside telemetry, log lines dropped, label values folded: TelemetryDegraded.",
            queries=(
                Query(
                    "sum by (component) (increase(orchestrator_telemetry_errors_total{%i}[1h]))",
                    "errors: {{component}}",
                ),
                Query("sum(increase(orchestrator_log_records_dropped_total{%i}[1h]))", "log lines dropped"),
                Query(
                    "sum by (label) (increase(orchestrator_label_overflow_total{%i}[1h]))",
                    "folded: {{label}}",
                ),
            ),
        ),
        Panel(
            title="Log lines",
            description="By level. Transitions are info, failed ones warning, failed runs error.",
            queries=(
                Query(
                    "sum by (level) (rate(orchestrator_log_records_total{%i}[$__rate_interval]))", "{{level}}"
                ),
            ),
            unit=Unit.RATE,
        ),
        Panel(
            title="Processes",
            description="1 for the state each process is in.",
            queries=(Query("orchestrator_runtime_state{%i} == 1", "{{instance}} {{state}}"),),
            kind=Kind.TABLE,
        ),
        Panel(
            title="Versions",
            description="What runs where: the library, and the definition of each machine.",
            queries=(
                Query("orchestrator_build_info{%i}", "{{instance}} {{version}} Python {{python}}"),
                Query("orchestrator_machine_info{%m}", "{{instance}} {{machine}} {{definition}}"),
            ),
            kind=Kind.TABLE,
        ),
    ),
)

WORK_ROWS = (GUARDS, MODELS, TOOLS, RUNTIME)
