"""The dashboard for the engineer on call: seven questions, the most important first; then the parts of runs."""

from __future__ import annotations

from orchestrator.ops.panel import (
    Dashboard,
    Panel,
    PanelKind,
    PanelRow,
    PanelUnit,
    Query,
    age,
    in_journals,
    increase,
    lately,
    quantile,
    rate,
    ratio,
    some,
    total,
)
from orchestrator.ops.rule import Thresholds, age_of

_LIMITS = Thresholds()

GUARDS = PanelRow(
    "Guards, retries, budgets",
    (
        Panel(
            title="Guards that refuse",
            description="Share of evaluations that refused or raised. A rise names the limit that runs reach.",
            queries=(
                Query(
                    some(
                        ratio(
                            rate("guard_evaluations_total", "machine, guard", '%m, result!="allow"'),
                            rate("guard_evaluations_total", "machine, guard"),
                        )
                    ),
                    "{{machine}} {{guard}}",
                ),
            ),
            unit=PanelUnit.SHARE,
            empty_ok="no guard refused anything",
        ),
        Panel(
            title="Retries per attempt",
            description="Above 0.3 retries add to the load that causes them, and RetryStorm fires.",
            queries=(
                Query(
                    ratio(
                        rate("retries_total", "machine, operation"),
                        rate("attempts_total", "machine, operation"),
                    ),
                    "{{machine}} {{operation}}",
                ),
            ),
            unit=PanelUnit.SHARE,
            line=_LIMITS.retries,
        ),
        Panel(
            title="Failed after the last attempt",
            description="By operation, within the last hour.",
            queries=(
                Query(increase("retries_exhausted_total", "machine, operation"), "{{machine}} {{operation}}"),
            ),
        ),
        Panel(
            title="Use of budgets, p95",
            description="1 is the limit. Runs near it will be cut off next.",
            queries=(
                Query(quantile(0.95, "budget_consumed_ratio", "machine, budget"), "{{machine}} {{budget}}"),
            ),
            unit=PanelUnit.SHARE,
            line=0.9,
        ),
        Panel(
            title="Budgets exhausted",
            description="Checks that found a budget exhausted, by budget.",
            queries=(Query(increase("budget_exceeded_total", "machine, budget"), "{{machine}} {{budget}}"),),
        ),
        Panel(
            title="Loops per run, p95",
            description="Rises when agents repeat work, before a limit ends them.",
            queries=(Query(quantile(0.95, "run_iterations", "machine"), "{{machine}}"),),
        ),
        Panel(
            title="Use of the model's context, p95",
            description="Near 1, the history is compacted or the request fails.",
            queries=(Query(quantile(0.95, "context_used_ratio", "machine"), "{{machine}}"),),
            unit=PanelUnit.SHARE,
            line=0.9,
            empty_ok="no model reports the size of its context",
        ),
        Panel(
            title="Restarts and compactions",
            description="Restarted loops, and histories replaced by a summary, within the last hour.",
            queries=(
                Query(increase("restarts_total", "machine"), "{{machine}} restarts"),
                Query(
                    increase("compactions_total", "machine, outcome"), "{{machine}} compactions {{outcome}}"
                ),
            ),
        ),
    ),
)

MODELS = PanelRow(
    "Models and tokens",
    (
        Panel(
            title="Requests by outcome",
            description="rate_limited, auth and server_error need different actions: runbook LLMErrorRatioHigh.",
            queries=(
                Query(some(rate("llm_requests_total", "model, outcome", "%a")), "{{model}} {{outcome}}"),
            ),
            unit=PanelUnit.RATE,
            stacked=True,
        ),
        Panel(
            title="Time of a request, p95",
            description="By model.",
            queries=(Query(quantile(0.95, "llm_request_duration_seconds", "model", "%a"), "{{model}}"),),
            unit=PanelUnit.SECONDS,
        ),
        Panel(
            title="Wait for the rate limiter, p95",
            description="By model, before a request is sent. If it grows, runs need more than RateLimit allows:"
            " run fewer at once, or raise the limit.",
            queries=(Query(quantile(0.95, "llm_rate_limit_wait_seconds", "model", "%a"), "{{model}}"),),
            unit=PanelUnit.SECONDS,
            empty_ok="no model has a rate limiter",
        ),
        Panel(
            title="Time to first token, p95",
            description="Of streamed requests. If it grows and the duration does not, the provider queues requests; if"
            " both grow, prompts have become longer.",
            queries=(Query(quantile(0.95, "llm_time_to_first_token_seconds", "model", "%a"), "{{model}}"),),
            unit=PanelUnit.SECONDS,
            empty_ok="no answer was streamed",
        ),
        Panel(
            title="Tokens",
            description="Billable tokens by direction.",
            queries=(
                Query(
                    rate("llm_tokens_total", "machine, model, direction"),
                    "{{machine}} {{model}} {{direction}}",
                ),
            ),
            unit=PanelUnit.RATE,
            stacked=True,
        ),
        Panel(
            title="Cost per hour",
            description="Of each agent in its currency, and the ceiling that the host has set: CostCeilingExceeded.",
            queries=(
                Query(
                    "3600 * machine_agent_currency:orchestrator_llm_cost:rate15m{%r}",
                    "{{machine}} {{agent}} {{currency}}",
                ),
                Query("max by (agent) (orchestrator_cost_ceiling_per_hour{%a})", "{{agent}} ceiling"),
            ),
            empty_ok="no agent has prices",
        ),
        Panel(
            title="Cost of a run",
            description="Cost of an hour for each run that completed within it. Child runs count for their own agent.",
            queries=(
                Query(
                    "machine_agent_currency:orchestrator_llm_cost_per_runs:ratio_rate1h{%r}",
                    "{{machine}} {{agent}} {{currency}}",
                ),
            ),
            empty_ok="no agent has prices",
        ),
        Panel(
            title="Cost that is not known",
            description="Answers without a price, and answers without usage, within an hour: LLMRequestsUnpriced.",
            queries=(
                Query(
                    increase("llm_requests_unpriced_total", "agent, model", "%a"),
                    "{{agent}} {{model}} price",
                ),
                Query(
                    increase("llm_unreported_usage_total", "agent, model", "%a"),
                    "{{agent}} {{model}} usage",
                ),
            ),
            empty_ok="every answer has usage and a price",
        ),
        Panel(
            title="Tokens of a run, by version",
            description="Of runs that completed within an hour. A new version that uses more: ReleaseUsesMoreTokens.",
            queries=(
                Query(
                    "machine_agent_version:orchestrator_llm_tokens_per_runs:ratio_rate1h{%r}",
                    "{{machine}} {{agent}} {{version}}",
                ),
            ),
            empty_ok="no agent has a name",
        ),
        Panel(
            title="Tokens by state",
            description="The states that use the tokens.",
            queries=(Query(some(rate("state_tokens_total", "machine, state")), "{{machine}} {{state}}"),),
            unit=PanelUnit.RATE,
        ),
        Panel(
            title="Tokens by stage",
            description="As reported by the stages of pipelines, including their child runs, which count in the panels"
            " above too. If one stage grows alone, it is repeated: see the transitions back to it.",
            queries=(Query(rate("stage_tokens_total", "machine, state"), "{{machine}} {{state}}"),),
            unit=PanelUnit.RATE,
            empty_ok="no stage used any",
        ),
        Panel(
            title="Cached input, hidden reasoning",
            description="Shares of input tokens from the provider's cache, and of output tokens as hidden reasoning.",
            queries=(
                Query(
                    ratio(
                        rate("llm_cached_input_tokens_total", "model", "%a"),
                        rate("llm_tokens_total", "model", '%a, direction="input"'),
                    ),
                    "{{model}} cached",
                ),
                Query(
                    ratio(
                        rate("llm_reasoning_output_tokens_total", "model", "%a"),
                        rate("llm_tokens_total", "model", '%a, direction="output"'),
                    ),
                    "{{model}} reasoning",
                ),
            ),
            unit=PanelUnit.SHARE,
        ),
        Panel(
            title="Answers without usage",
            description="Share of answers whose server reported no usage: limits count estimates, and the tokens here "
            "are too few. Have the server report it, or set stream_usage=False only where it refuses the option.",
            queries=(
                Query(
                    ratio(
                        rate("llm_unreported_usage_total", "model", "%a"),
                        rate("llm_requests_total", "model", '%a, outcome="ok"'),
                    ),
                    "{{model}}",
                ),
            ),
            unit=PanelUnit.SHARE,
        ),
    ),
)

TOOLS = PanelRow(
    "Tools",
    (
        Panel(
            title="Calls that fail",
            description="Share of calls with outcome error or timeout, by tool. Above 25 %: ToolErrorRatioHigh.",
            queries=(
                Query(
                    ratio(
                        rate("tool_calls_total", "agent, tool", '%a, outcome=~"error|timeout"'),
                        rate("tool_calls_total", "agent, tool", "%a"),
                    ),
                    "{{agent}} {{tool}}",
                ),
            ),
            unit=PanelUnit.SHARE,
            line=_LIMITS.tool_errors,
        ),
        Panel(
            title="Time of a call, p95",
            description="By tool.",
            queries=(
                Query(
                    quantile(0.95, "tool_call_duration_seconds", "agent, tool", "%a"), "{{agent}} {{tool}}"
                ),
            ),
            unit=PanelUnit.SECONDS,
        ),
        Panel(
            title="Calls of tools that do not exist",
            description="The model invents names. Make the prompt and the list of tools agree.",
            queries=(
                Query(increase("tool_calls_total", "outcome", '%a, tool="_unregistered"'), "{{outcome}}"),
            ),
        ),
    ),
)

RUNTIME = PanelRow(
    "Durability and runtime",
    (
        Panel(
            title="Journal writes, p99",
            description="Every step of a run waits for such a write.",
            queries=(
                Query(
                    quantile(0.99, "journal_write_duration_seconds", "backend, operation", "%i"),
                    "{{backend}} {{operation}}",
                ),
            ),
            unit=PanelUnit.SECONDS,
            line=_LIMITS.journal_append,
        ),
        Panel(
            title="Journal writes that failed",
            description="Each one pages: JournalWritesFailing.",
            queries=(
                Query(
                    lately("journal_write_failures_total", "backend, reason", "%i"), "{{backend}} {{reason}}"
                ),
            ),
        ),
        Panel(
            title="Since the last durable write",
            description="Normal without active runs. With active runs it must not grow.",
            queries=(
                Query(
                    age("journal_last_success_timestamp_seconds", "instance, backend", "%i"),
                    "{{instance}} {{backend}}",
                ),
            ),
            unit=PanelUnit.SECONDS,
        ),
        Panel(
            title="Size of the journal",
            description="`orchestrator runs prune` removes ended runs.",
            queries=(Query(total("journal_bytes", "instance, backend", "%i"), "{{instance}} {{backend}}"),),
            unit=PanelUnit.BYTES,
            empty_ok="journals in memory have no size",
        ),
        Panel(
            title="Runs in the journal",
            description="Runs that have not ended: running, parked, or without a living owner (RunsOrphaned). Runs that"
            " cannot be read: of a journal that `orchestrator metrics serve` watches.",
            queries=(
                Query(in_journals("machine, status"), "{{machine}} {{status}}"),
                Query("sum(orchestrator_journal_unreadable_runs{%i})", "not readable"),
            ),
            empty_ok="every run has ended",
        ),
        Panel(
            title="Since the journal was last read",
            description="Age of the figures of `orchestrator metrics serve`, and the time that one reading takes.",
            queries=(
                Query(age("journal_last_read_timestamp_seconds", "instance", "%i"), "{{instance}}"),
                Query(
                    "max by (instance) (orchestrator_journal_read_duration_seconds{%i})",
                    "{{instance}} one reading",
                ),
            ),
            unit=PanelUnit.SECONDS,
            empty_ok="no journal is watched",
        ),
        Panel(
            title="Event loop lag, p99",
            description="Delay of the watchdog's wake-ups. blocked counts the times that it printed all stacks.",
            queries=(
                Query(quantile(0.99, "event_loop_lag_seconds", "instance", "%i"), "{{instance}}"),
                Query(
                    "max by (instance) (orchestrator_event_loop_age_seconds{%i})",
                    "{{instance}} since it moved",
                ),
                Query(increase("event_loop_blocked_total", "instance", "%i"), "{{instance}} blocked"),
            ),
            unit=PanelUnit.SECONDS,
            line=_LIMITS.loop_lag,
        ),
        Panel(
            title="Wait for a slot, p95",
            description="From submitting a run until its start.",
            queries=(Query(quantile(0.95, "run_queue_wait_seconds", "machine"), "{{machine}}"),),
            unit=PanelUnit.SECONDS,
            line=_LIMITS.queue_wait_s,
            empty_ok="no engine with a queue is used",
        ),
        Panel(
            title="Since the last transition",
            description="Of a machine on an instance. If it is long with active runs, EngineStalled fires.",
            queries=(
                Query(
                    age("last_transition_timestamp_seconds", "instance, machine"), "{{instance}} {{machine}}"
                ),
            ),
            unit=PanelUnit.SECONDS,
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
            unit=PanelUnit.BYTES,
        ),
        Panel(
            title="Time of a scrape",
            description="Time of the whole scrape, and of the collector that counts live runs.",
            queries=(
                Query("scrape_duration_seconds{%i}", "{{instance}} scrape"),
                Query("orchestrator_collector_duration_seconds{%i}", "{{instance}} collector"),
            ),
            unit=PanelUnit.SECONDS,
        ),
        Panel(
            title="Series per scrape",
            description="Bounded by the definitions. A rise means new machines, tools or models.",
            queries=(Query("scrape_samples_scraped{%i}", "{{instance}}"),),
        ),
        Panel(
            title="Lost telemetry",
            description="Telemetry exceptions, dropped log lines, label values replaced by _other: TelemetryDegraded.",
            queries=(
                Query(increase("telemetry_errors_total", "component", "%i"), "errors: {{component}}"),
                Query("sum(increase(orchestrator_log_records_dropped_total{%i}[1h]))", "log lines dropped"),
                Query(increase("label_overflow_total", "label", "%i"), "replaced: {{label}}"),
                Query("sum(increase(orchestrator_journal_read_failures_total{%i}[1h]))", "journal not read"),
            ),
        ),
        Panel(
            title="Log lines",
            description="By level. Transitions are info, failed ones warning, failed runs error.",
            queries=(Query(rate("log_records_total", "level", "%i"), "{{level}}"),),
            unit=PanelUnit.RATE,
        ),
        Panel(
            title="Clock difference",
            description="Seconds between the clock of a process and that of Prometheus at a scrape: ClockSkew.",
            queries=(
                Query(
                    "orchestrator_process_time_seconds{%i} - timestamp(orchestrator_process_time_seconds{%i})",
                    "{{instance}}",
                ),
            ),
            unit=PanelUnit.SECONDS,
        ),
        Panel(
            title="Identities behind an instance",
            description="1 if one process, or the workers of one folder, answer under a label. More after a restart;"
            " more for longer than twenty minutes: DuplicateInstance.",
            queries=(
                Query(
                    "count by (instance) (last_over_time(orchestrator_target_info{%i}[10m]))", "{{instance}}"
                ),
            ),
        ),
        Panel(
            title="Processes",
            description="1 for the state of each process.",
            queries=(Query("orchestrator_runtime_state{%i} == 1", "{{instance}} {{state}}"),),
            kind=PanelKind.TABLE,
        ),
        Panel(
            title="Versions",
            description="The version of the library and the fingerprint of each machine, by process.",
            queries=(
                Query("orchestrator_build_info{%i}", "{{instance}} {{version}} Python {{python}}"),
                Query(
                    "orchestrator_agent_info{%i} == 1", "{{instance}} {{agent}} {{version}} {{definition}}"
                ),
                Query(
                    'orchestrator_machine_info{%i, machine=~"$machine"}',
                    "{{instance}} {{machine}} {{definition}}",
                ),
            ),
            kind=PanelKind.TABLE,
        ),
    ),
)

WORK_ROWS = (GUARDS, MODELS, TOOLS, RUNTIME)


_GOOD = 1 - _LIMITS.error_budget

HEALTH = PanelRow(
    "Is it healthy?",
    (
        Panel(
            title="Runs that did not fail (1 h)",
            description="Share of finished runs. The objective is 99 %. Cancelled and rejected runs do not count.",
            queries=(
                Query(
                    "1 - machine_agent:orchestrator_runs_failed_per_runs:ratio_rate1h{%r}",
                    "{{machine}} {{agent}}",
                ),
            ),
            unit=PanelUnit.SHARE,
            kind=PanelKind.STAT,
            steps=((0, "red"), (_GOOD - 0.02, "orange"), (_GOOD, "green")),
            width=4,
        ),
        Panel(
            title="Error budget left (3 d)",
            description="Share of the failures that the objective allows within three days and that are left.",
            queries=(
                Query(
                    "1 - machine_agent:orchestrator_runs_failed_per_runs:ratio_rate3d{%r}"
                    f" / {_LIMITS.error_budget:g}",
                    "{{machine}} {{agent}}",
                ),
            ),
            unit=PanelUnit.SHARE,
            kind=PanelKind.STAT,
            steps=((-1000, "red"), (0, "orange"), (0.5, "green")),
            width=4,
        ),
        Panel(
            title="Firing alerts",
            description="By severity, without the watchdog, which always fires.",
            queries=(
                Query(
                    'count by (severity) (ALERTS{alertstate="firing", component="orchestrator", severity!="none"})'
                    ' or label_replace(vector(0), "severity", "all", "", "")',
                    "{{severity}}",
                ),
            ),
            kind=PanelKind.STAT,
            steps=((0, "green"), (1, "orange")),
            colours={"critical": "red", "warning": "orange", "info": "blue"},
            width=4,
        ),
        Panel(
            title="Active, queued, slots",
            description="If all slots are in use and the queue is not empty, runs wait for capacity.",
            queries=(
                Query("sum(orchestrator_runs_active{%m})", "active"),
                Query("sum(orchestrator_runs_queued{%m})", "queued"),
                Query(
                    'max by (instance) (orchestrator_run_slots{%i, machine=~"$machine"})',
                    "slots {{instance}}",
                ),
            ),
            width=6,
        ),
        Panel(
            title="Oldest run against the limit of its state",
            description="1 is the limit of the state. From 1.5 on the engine failed to end it, and RunStuck fires.",
            queries=(
                Query(
                    "max by (machine, agent, state) (("
                    + age_of("orchestrator_oldest_run_state_entered_timestamp_seconds{%m}")
                    + ") / on (job, instance, machine, agent, state) orchestrator_state_timeout_seconds{%m})",
                    "{{machine}} {{agent}} {{state}}",
                ),
            ),
            unit=PanelUnit.SHARE,
            kind=PanelKind.BARS,
            steps=((0, "green"), (1, "orange"), (_LIMITS.stuck_factor, "red")),
            width=6,
        ),
        Panel(
            title="Waiting for people",
            description="By reason. approval, unknown_effect, undo_failed, input and questions wait for an answer.",
            queries=(
                Query(
                    in_journals("machine, agent, reason", '%m, status="parked"'),
                    "{{machine}} {{agent}} {{reason}}",
                ),
            ),
            width=8,
            empty_ok="nothing is parked",
        ),
        Panel(
            title="Since the last success",
            description="Of each agent, by its journal (metrics serve), and the time that was set: AgentNotSucceeding.",
            queries=(
                Query(age("agent_last_success_timestamp_seconds", "agent", "%a"), "{{agent}}"),
                Query("max by (agent) (orchestrator_agent_success_within_seconds{%a})", "{{agent}} set"),
            ),
            unit=PanelUnit.SECONDS,
            width=8,
            empty_ok="no metrics serve is scraped",
        ),
        Panel(
            title="Runs since the last success",
            description="Runs of each agent that ended without an answer since then, and the number that was set.",
            queries=(
                Query("max by (agent) (orchestrator_agent_attempts_since_success{%a})", "{{agent}}"),
                Query("max by (agent) (orchestrator_agent_attempts_limit{%a})", "{{agent}} set"),
            ),
            width=8,
            empty_ok="no metrics serve is scraped",
        ),
        Panel(
            title="Waiting for their agent",
            description="Runs with an answer that no live engine reads: none has their agent. RunsWaitingForAgent.",
            queries=(
                Query(
                    "max by (machine, agent) (orchestrator_journal_runs_waiting_for_agent{%m})",
                    "{{machine}} {{agent}}",
                ),
            ),
            width=8,
            empty_ok="every answer is read",
        ),
        Panel(
            title="Oldest open question",
            description="Age of the oldest question without an answer.",
            queries=(
                Query(
                    age(
                        "journal_oldest_update_timestamp_seconds",
                        "machine, agent, reason",
                        '%m, status="parked"',
                    ),
                    "{{machine}} {{agent}} {{reason}}",
                ),
            ),
            unit=PanelUnit.SECONDS,
            line=_LIMITS.approval_age_s,
            empty_ok="nothing is parked",
        ),
        Panel(
            title="Oldest run",
            description="Age of the oldest active run, and the deadline of runs if there is one.",
            queries=(
                Query(age("oldest_run_started_timestamp_seconds", "machine, agent"), "{{machine}} {{agent}}"),
                Query(
                    "max by (machine, agent) (orchestrator_run_timeout_seconds{%m})",
                    "{{machine}} {{agent}} deadline",
                ),
            ),
            unit=PanelUnit.SECONDS,
            empty_ok="no run is active",
        ),
    ),
)

RUNS = PanelRow(
    "What are runs doing?",
    (
        Panel(
            title="Active runs by state",
            description="The state in which runs accumulate.",
            queries=(Query(total("runs_active", "machine, state"), "{{machine}} {{state}}"),),
            stacked=True,
        ),
        Panel(
            title="Runs started",
            description="New runs, and runs resumed after a stop or a crash.",
            queries=(
                Query(
                    rate("runs_started_total", "machine, agent, origin"), "{{machine}} {{agent}} {{origin}}"
                ),
            ),
            unit=PanelUnit.RATE,
        ),
        Panel(
            title="Runs ended, by outcome and reason",
            description="Within the last hour.",
            queries=(
                Query(
                    some(increase("runs_completed_total", "machine, agent, outcome, reason")),
                    "{{machine}} {{agent}} {{outcome}} {{reason}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            title="Transitions",
            description="By edge. 0 while runs are active means that a machine makes no progress.",
            queries=(
                Query(
                    some(rate("transitions_total", "machine, from_state, event")), "{{from_state}} {{event}}"
                ),
            ),
            unit=PanelUnit.RATE,
        ),
        Panel(
            title="Failed events",
            description="Events that were not committed, and hooks that raised: state, event and reason.",
            queries=(
                Query(
                    some(lately("transition_failures_total", "machine, from_state, event, reason")),
                    "{{from_state}} {{event}} {{reason}}",
                ),
            ),
            empty_ok="no event failed",
        ),
        Panel(
            title="Run duration",
            description="50 %, 95 % and 99 % of the runs are faster.",
            queries=tuple(
                Query(quantile(q, "run_duration_seconds", "machine"), f"{{{{machine}}}} p{name}")
                for q, name in ((0.5, 50), (0.95, 95), (0.99, 99))
            ),
            unit=PanelUnit.SECONDS,
        ),
        Panel(
            title="Endings without an answer",
            description="Runs within an hour whose answer is empty, cut, filtered or a refusal. More than"
            " a fifth of an agent's answers: NoAnswerRatioHigh.",
            queries=(
                Query(
                    increase(
                        "runs_completed_total",
                        "machine, agent, reason",
                        '%m, reason=~"empty_answer|truncated|filtered|refused"',
                    ),
                    "{{machine}} {{agent}} {{reason}}",
                ),
            ),
            empty_ok="every answer has text",
        ),
        Panel(
            title="Answers slower than the objective",
            description="Share of an agent's answers, and its objective in seconds. RunLatencyBudgetBurn: above 5 %.",
            queries=(
                Query(
                    "machine_agent:orchestrator_runs_slow_per_runs:ratio_rate1h{%r}",
                    "{{machine}} {{agent}} slow",
                ),
                Query(
                    "max by (machine, agent) (orchestrator_run_objective_seconds{%m})",
                    "{{machine}} {{agent}} objective",
                ),
            ),
            empty_ok="no agent has an objective",
        ),
        Panel(
            title="Suspended, recovered, refused",
            description="Runs that a process released before their end, open runs that a process found and their"
            " recovery, and runs that an engine did not accept. An invalid table suspends the runs of its machine and"
            " refuses new ones: the log line table.rejected names its problems.",
            queries=(
                Query(some(increase("runs_suspended_total", "machine, reason")), "suspended {{reason}}"),
                Query(
                    some(total("recoveries_total", "machine, outcome")),
                    "recovered since the start: {{outcome}}",
                ),
                Query(some(increase("runs_rejected_total", "machine, reason")), "refused: {{reason}}"),
                Query(increase("tables_rejected_total", "machine"), "invalid table of {{machine}}"),
            ),
            empty_ok="none within the last hour",
        ),
        Panel(
            title="Abandoned work",
            description="Tools, models and other host code that ignored a cancellation. /debug/runs lists the code that"
            " still runs: repair it, or restart the process.",
            queries=(
                Query(
                    increase("work_abandoned_total", "machine, kind"), "{{machine}} {{kind}} within an hour"
                ),
                Query(total("abandoned_work", "agent, kind, name"), "{{agent}} {{kind}} {{name}} still runs"),
            ),
        ),
        Panel(
            title="Rollbacks",
            description="Effects that were undone. failed means that files are not as they were.",
            queries=(Query(increase("rollbacks_total", "machine, outcome"), "{{machine}} {{outcome}}"),),
        ),
    ),
)

TIME = PanelRow(
    "Where does time go?",
    (
        Panel(
            title="Time in state, p95",
            description="The bottleneck: the state with the longest visits.",
            queries=(
                Query(
                    "machine_agent_state:orchestrator_state_duration_seconds:p95_rate5m{%r}",
                    "{{machine}} {{agent}} {{state}}",
                ),
            ),
            unit=PanelUnit.SECONDS,
        ),
        Panel(
            title="Share of run time by state",
            description="Share of the time of all runs together.",
            queries=(
                Query(
                    "sum by (machine, state) (rate(orchestrator_state_duration_seconds_sum{%m}[$__rate_interval]))"
                    " / on (machine) group_left () sum by (machine)"
                    " (rate(orchestrator_state_duration_seconds_sum{%m}[$__rate_interval]))",
                    "{{machine}} {{state}}",
                ),
            ),
            unit=PanelUnit.SHARE,
            stacked=True,
        ),
        Panel(
            title="Time in state, spread",
            description="All states of the selected machines.",
            queries=(Query(lately("state_duration_seconds_bucket", "le"), "{{le}}"),),
            unit=PanelUnit.SECONDS,
            kind=PanelKind.HEATMAP,
        ),
        Panel(
            title="One loop, p95",
            description="From entering the first state of a loop until it is entered again. The objective is at most"
            " 2 % more than a hand-written loop.",
            queries=(Query(quantile(0.95, "iteration_duration_seconds", "machine"), "{{machine}}"),),
            unit=PanelUnit.SECONDS,
        ),
        Panel(
            title="Overhead of a transition, p99",
            description="Time of the kernel, without hooks and journal.",
            queries=(Query(quantile(0.99, "transition_overhead_seconds", "machine"), "{{machine}}"),),
            unit=PanelUnit.SECONDS,
            line=_LIMITS.overhead,
        ),
        Panel(
            title="Mean run duration (1 h)",
            description="From start to end, of finished runs.",
            queries=(
                Query(
                    "machine_agent:orchestrator_run_duration_seconds:mean_rate1h{%r}", "{{machine}} {{agent}}"
                ),
            ),
            unit=PanelUnit.SECONDS,
        ),
    ),
)

OPERATIONS = Dashboard(
    uid="orchestrator-operations",
    title="Orchestrator / Operations",
    description="For the engineer on call: health, work and waits of runs.",
    rows=(HEALTH, RUNS, TIME, *WORK_ROWS),
    links={"Run flow": "orchestrator-run-flow"},
)
