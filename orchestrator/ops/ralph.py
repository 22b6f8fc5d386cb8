"""Panels and recorded expressions for a ralph loop, from its transitions: each outcome of a task is an event there.

Time in each state and the duration of a session are the same for every graph: see `recording.SHARED`.
"""

from __future__ import annotations

from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.model import RalphEvent
from orchestrator.ops.panel import Panel, PanelUnit, Query
from orchestrator.ops.rule import RecordingRule


def _rate(*events: RalphEvent) -> str:
    """Return the rate of these events, over all states."""
    named = "|".join(event.value for event in events)
    return (
        "sum without (instance, from_state, event, to_state) "
        f'(rate(orchestrator_transitions_total{{machine="{RALPH.name}", event=~"{named}"}}[1h]))'
    )


_RUNS = (
    "sum without (instance, outcome, reason) "
    f'(rate(orchestrator_runs_completed_total{{machine="{RALPH.name}"}}[1h]))'
)
_ENDED = _rate(RalphEvent.QUALIFIED, RalphEvent.ATTEMPTS_EXHAUSTED)

TASKS_QUALIFIED = "machine_agent:orchestrator_ralph_tasks_qualified_per_tasks:ratio_rate1h"
TASKS_FAILED = "machine_agent:orchestrator_ralph_tasks_failed_per_tasks:ratio_rate1h"
REWORKS = "machine_agent:orchestrator_ralph_reworks_per_tasks:ratio_rate1h"
QA_CYCLES = "machine_agent:orchestrator_ralph_qa_cycles_per_runs:ratio_rate1h"

RALPH_RECORDINGS = (
    RecordingRule(TASKS_QUALIFIED, f"{_rate(RalphEvent.QUALIFIED)}\n/\n{_ENDED}"),
    RecordingRule(TASKS_FAILED, f"{_rate(RalphEvent.ATTEMPTS_EXHAUSTED)}\n/\n{_ENDED}"),
    RecordingRule(REWORKS, f"{_rate(RalphEvent.REWORK, RalphEvent.EXECUTOR_FAILED)}\n/\n{_ENDED}"),
    RecordingRule(QA_CYCLES, f"{_rate(RalphEvent.QA_NEEDED)}\n/\n{_RUNS}"),
)
"""The share of ended tasks that qualified and the share that failed too often; the repetitions of a task; rounds of
questions per finished run."""


def ralph_panels() -> tuple[Panel, ...]:
    """Return the panels about tasks."""
    where = f'{{job=~"$job", machine="{RALPH.name}", agent=~"$agent"}}'
    return (
        Panel(
            title="Tasks that qualified, and that failed",
            description="Share of ended tasks. If the qualified share falls, read the reviews of the failed tasks.",
            queries=(
                Query(f"{TASKS_QUALIFIED}{where}", "qualified: {{agent}}"),
                Query(f"{TASKS_FAILED}{where}", "failed: {{agent}}"),
            ),
            unit=PanelUnit.SHARE,
        ),
        Panel(
            title="Rework per task, questions per run",
            description="Rework rises with unclear criteria or a weak executor, questions with unclear requests.",
            queries=(
                Query(f"{REWORKS}{where}", "rework per task: {{agent}}"),
                Query(f"{QA_CYCLES}{where}", "rounds of questions per run: {{agent}}"),
            ),
        ),
    )
