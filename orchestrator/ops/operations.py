"""The dashboard for the engineer on call: seven questions, the most important first."""

from __future__ import annotations

from orchestrator.ops.panel import Dashboard, Panel, PanelKind, PanelRow, PanelUnit, Query
from orchestrator.ops.promql import age, in_journals, increase, lately, quantile, rate, some, total
from orchestrator.ops.threshold import Thresholds
from orchestrator.ops.work_rows import WORK_ROWS

_LIMITS = Thresholds()
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
                    "max by (machine, agent, state) ((time()"
                    " - orchestrator_oldest_run_state_entered_timestamp_seconds{%m})"
                    " / on (job, instance, machine, agent, state) orchestrator_state_timeout_seconds{%m})",
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
            queries=(Query(increase("work_abandoned_total", "machine, kind"), "{{machine}} {{kind}}"),),
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
