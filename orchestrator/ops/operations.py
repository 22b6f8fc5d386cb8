"""The dashboard for the engineer on call: seven questions, the most important first."""

from __future__ import annotations

from orchestrator.ops.panel import Dashboard, Panel, PanelKind, PanelRow, PanelUnit, Query
from orchestrator.ops.promql import age, increase, lately, quantile, rate, some, total
from orchestrator.ops.threshold import Thresholds
from orchestrator.ops.work_rows import WORK_ROWS

_LIMITS = Thresholds()
_GOOD = 1 - _LIMITS.error_budget

HEALTH = PanelRow(
    "Is it healthy?",
    (
        Panel(
            title="Runs that did not fail (1 h)",
            description="Share of finished runs. The objective is 99 %; what people cancelled or rejected is left out.",
            queries=(Query("1 - machine:orchestrator_runs_failed_per_runs:ratio_rate1h{%r}", "{{machine}}"),),
            unit=PanelUnit.SHARE,
            kind=PanelKind.STAT,
            steps=((0, "red"), (_GOOD - 0.02, "orange"), (_GOOD, "green")),
            width=4,
        ),
        Panel(
            title="Error budget left (3 d)",
            description="1 is untouched, 0 is used up: of the failures that the objective allows within three days.",
            queries=(
                Query(
                    f"1 - machine:orchestrator_runs_failed_per_runs:ratio_rate3d{{%r}} / {_LIMITS.error_budget:g}",
                    "{{machine}}",
                ),
            ),
            unit=PanelUnit.SHARE,
            kind=PanelKind.STAT,
            steps=((-1000, "red"), (0, "orange"), (0.5, "green")),
            width=4,
        ),
        Panel(
            title="Firing alerts",
            description="By severity. The watchdog always fires and is left out.",
            queries=(
                Query(
                    'count by (severity) (ALERTS{alertstate="firing", component="orchestrator", severity!="none"})'
                    ' or label_replace(vector(0), "severity", "all", "", "")',
                    "{{severity}}",
                ),
            ),
            kind=PanelKind.STAT,
            steps=((0, "green"), (1, "orange")),
            width=4,
        ),
        Panel(
            title="Active, queued, slots",
            description="Active near slots with a queue means that runs wait for capacity.",
            queries=(
                Query("sum(orchestrator_runs_active{%m})", "active"),
                Query("sum(orchestrator_runs_queued{%m})", "queued"),
                Query("max by (instance) (orchestrator_run_slots{%m})", "slots {{instance}}"),
            ),
            width=6,
        ),
        Panel(
            title="Oldest run against the limit of its state",
            description="1 is the limit that the state declares. From 1.5 on the engine failed to end it: RunStuck.",
            queries=(
                Query(
                    "max by (machine, state) ((time()"
                    " - orchestrator_oldest_run_state_entered_timestamp_seconds{%m})"
                    " / on (job, instance, machine, state) orchestrator_state_timeout_seconds{%m})",
                    "{{machine}} {{state}}",
                ),
            ),
            unit=PanelUnit.SHARE,
            kind=PanelKind.BARS,
            steps=((0, "green"), (1, "orange"), (_LIMITS.stuck_factor, "red")),
            width=6,
        ),
        Panel(
            title="Waiting for people",
            description="Parked runs by why. approval, unknown_effect, undo_failed and questions wait for an answer.",
            queries=(Query(total("runs_parked", "machine, reason"), "{{machine}} {{reason}}"),),
            width=8,
        ),
        Panel(
            title="Oldest open question",
            description="How long the person who is asked has been waited for.",
            queries=(
                Query(age("oldest_parked_timestamp_seconds", "machine, reason"), "{{machine}} {{reason}}"),
            ),
            unit=PanelUnit.SECONDS,
            line=_LIMITS.approval_age_s,
            empty_ok="nothing is parked",
        ),
        Panel(
            title="Oldest run",
            description="Age of the oldest run under way, and the deadline of runs where one is declared.",
            queries=(
                Query(age("oldest_run_started_timestamp_seconds", "machine"), "{{machine}}"),
                Query("max by (machine) (orchestrator_run_timeout_seconds{%m})", "{{machine}} deadline"),
            ),
            unit=PanelUnit.SECONDS,
            empty_ok="no run is under way",
        ),
    ),
)

RUNS = PanelRow(
    "What are runs doing?",
    (
        Panel(
            title="Active runs by state",
            description="Where everything piles up.",
            queries=(Query(total("runs_active", "machine, state"), "{{machine}} {{state}}"),),
            stacked=True,
        ),
        Panel(
            title="Runs begun",
            description="New ones, and those taken up again after a stop or a crash.",
            queries=(Query(rate("runs_started_total", "machine, origin"), "{{machine}} {{origin}}"),),
            unit=PanelUnit.RATE,
        ),
        Panel(
            title="Runs ended, by outcome and reason",
            description="Only what happened within the last hour.",
            queries=(
                Query(
                    some(increase("runs_completed_total", "machine, outcome, reason")),
                    "{{machine}} {{outcome}} {{reason}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            title="Transitions",
            description="By edge. A graph that stands still shows here first.",
            queries=(
                Query(
                    some(rate("transitions_total", "machine, from_state, event")), "{{from_state}} {{event}}"
                ),
            ),
            unit=PanelUnit.RATE,
        ),
        Panel(
            title="Failed events",
            description="Events that did not commit, and hooks that raised: state, event and why.",
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
            description="Half, nineteen in twenty, and ninety-nine in a hundred runs are quicker.",
            queries=tuple(
                Query(quantile(q, "run_duration_seconds", "machine"), f"{{{{machine}}}} p{name}")
                for q, name in ((0.5, 50), (0.95, 95), (0.99, 99))
            ),
            unit=PanelUnit.SECONDS,
        ),
        Panel(
            title="Suspended, taken up, refused",
            description="Runs that left a process without an end, runs found open and what became of them, and runs"
            " that an engine did not take in.",
            queries=(
                Query(some(increase("runs_suspended_total", "machine, reason")), "suspended {{reason}}"),
                Query(
                    some(total("recoveries_total", "machine, outcome")),
                    "taken up since the start: {{outcome}}",
                ),
                Query(some(increase("runs_rejected_total", "machine, reason")), "refused: {{reason}}"),
            ),
            empty_ok="nothing of the kind happened",
        ),
        Panel(
            title="Abandoned work",
            description="Tools, models and other host code that ignored a cancellation. /debug/runs lists what still"
            " runs; repair it, or restart the process.",
            queries=(Query(increase("work_abandoned_total", "machine, kind"), "{{machine}} {{kind}}"),),
        ),
        Panel(
            title="Rollbacks",
            description="Effects that were taken back; failed means that files are not as they were.",
            queries=(Query(increase("rollbacks_total", "machine, outcome"), "{{machine}} {{outcome}}"),),
        ),
    ),
)

TIME = PanelRow(
    "Where does time go?",
    (
        Panel(
            title="Time in state, p95",
            description="The bottleneck, as seed 000 asks for it.",
            queries=(
                Query(
                    "machine_state:orchestrator_state_duration_seconds:p95_rate5m{%r}",
                    "{{machine}} {{state}}",
                ),
            ),
            unit=PanelUnit.SECONDS,
        ),
        Panel(
            title="Share of run time by state",
            description="What all runs together spent their time on.",
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
            description="All states of the machines chosen above.",
            queries=(Query(lately("state_duration_seconds_bucket", "le"), "{{le}}"),),
            unit=PanelUnit.SECONDS,
            kind=PanelKind.HEATMAP,
        ),
        Panel(
            title="One loop, p95",
            description="From the first state of a loop until it comes round. The PRD allows 2 % above a hand-written"
            " loop.",
            queries=(Query(quantile(0.95, "iteration_duration_seconds", "machine"), "{{machine}}"),),
            unit=PanelUnit.SECONDS,
        ),
        Panel(
            title="What a transition costs, p99",
            description="The kernel's own time, without hooks and journal.",
            queries=(Query(quantile(0.99, "transition_overhead_seconds", "machine"), "{{machine}}"),),
            unit=PanelUnit.SECONDS,
            line=_LIMITS.overhead,
        ),
        Panel(
            title="Mean run duration (1 h)",
            description="The session duration of seed 002.",
            queries=(Query("machine:orchestrator_run_duration_seconds:mean_rate1h{%r}", "{{machine}}"),),
            unit=PanelUnit.SECONDS,
        ),
    ),
)

OPERATIONS = Dashboard(
    uid="orchestrator-operations",
    title="Orchestrator / Operations",
    description="For whoever is on call: is it healthy, what are runs doing, what are they waiting for.",
    rows=(HEALTH, RUNS, TIME, *WORK_ROWS),
    links={"Run flow": "orchestrator-run-flow"},
)
