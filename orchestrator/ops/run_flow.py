"""The dashboard for developers of a graph: the flow of runs through each graph, generated from the graphs.

Time in each state and the duration of a session are the same for every graph: see `pack.SHARED`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from orchestrator.kernel.graph import Graph, guard_name
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.machines.ralph.model import RalphEvent
from orchestrator.ops.panel import (
    Dashboard,
    Panel,
    PanelKind,
    PanelRow,
    PanelUnit,
    Query,
    increase,
    lately,
    quantile,
    rate,
    ratio,
    text,
)
from orchestrator.ops.rule import RecordingRule


class FlowRow(NamedTuple):
    """One edge that changes the state."""

    source: str
    event: str
    dest: str


def depth(graph: Graph) -> dict[str, int]:
    """Return for each state its distance from the initial one in steps, without failures."""
    found = {graph.initial.value: 0}
    ahead = [graph.initial.value]
    while ahead:
        state = ahead.pop(0)
        for step in steps(graph):
            if step.source == state and step.dest not in found:
                found[step.dest] = found[state] + 1
                ahead.append(step.dest)
    return found


def steps(graph: Graph) -> list[FlowRow]:
    """Return the edges that change the state and are not failures, in the order of the graph."""
    return [
        FlowRow(source.value, event.value, dest.value)
        for source, event, dest, edge in graph.rows
        if not edge.internal_in(source) and graph.failure_event(source) != event
    ]


def returns(graph: Graph) -> list[FlowRow]:
    """Return the edges back to an earlier state, or to one at the same distance from the start: laps and rework."""
    far = depth(graph)
    return [
        step
        for step in steps(graph)
        if step.source in far and far[step.dest] <= far[step.source] and step.dest not in graph.terminal
    ]


def waits(graph: Graph) -> list[str]:
    """Return the states that park a run until a person answers."""
    return [state.value for state in graph.states if state in graph.waiting]


def in_order(graph: Graph) -> list[str]:
    """Return the states in the order in which a run reaches them, terminal ones last."""
    far = depth(graph)
    last = len(graph.states)
    return sorted(
        (state.value for state in graph.states),
        key=lambda name: (name in graph.terminal, far.get(name, last)),
    )


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


def run_flow(graphs: Iterable[Graph]) -> Dashboard:
    """Return one row for each graph."""
    return Dashboard(
        uid="orchestrator-run-flow",
        title="Orchestrator / Run flow",
        description="For developers of a graph: edges that are taken, returns to earlier states, costs of states.",
        rows=tuple(_row(graph) for graph in graphs),
        links={"Operations": "orchestrator-operations"},
    )


def _row(graph: Graph) -> PanelRow:
    here = f'job=~"$job", instance=~"$instance", machine="{graph.name}", agent=~"$agent"'
    lines = ["| from | event | to | only when |", "|---|---|---|---|"]
    lines += [
        f"| {source.value} | {event.value} | {dest.value} | {guard_name(edge.when) or ''} |"
        for source, event, dest, edge in graph.rows
    ]
    states = " → ".join(f"**{name}**" if name in graph.terminal else name for name in in_order(graph))
    table = f"{states}\n\n" + "\n".join(lines)
    return PanelRow(
        f"How do runs move through {graph.name}?",
        (
            text(f"The table of {graph.name}", table, 8),
            _edges(here),
            _entries(graph, here),
            *_returns(graph),
            *_waits(graph),
            _success(graph),
            *(ralph_panels() if graph.name == RALPH.name else ()),
            _dwell(here),
            _tokens(here),
            _budgets(here),
            _loops(here),
        ),
    )


def _edges(here: str) -> Panel:
    return Panel(
        title="Edges taken within an hour",
        description="The matrix of states and events. An edge that is never taken is unused, or a defect.",
        queries=(
            Query(
                increase("transitions_total", "from_state, event, to_state", here),
                "{{from_state}} · {{event}} · {{to_state}}",
            ),
        ),
        kind=PanelKind.TABLE,
        width=8,
    )


def _entries(graph: Graph, here: str) -> Panel:
    return Panel(
        title="Visits of states",
        description=f"In the order of the table: {', '.join(in_order(graph))}.",
        queries=(Query(rate("state_entries_total", "state", here), "{{state}}"),),
        unit=PanelUnit.RATE,
    )


def _returns(graph: Graph) -> Iterable[Panel]:
    if edges := returns(graph):
        named = ", ".join(f"{edge.event} ({edge.source} to {edge.dest})" for edge in edges)
        yield Panel(
            title="Returns to earlier states, per run",
            description=f"Repetition and rework: {named}.",
            queries=(
                Query(
                    'machine_agent:orchestrator_returns_per_runs:ratio_rate1h{job=~"$job", '
                    f'machine="{graph.name}", agent=~"$agent"}}',
                    "returns {{agent}}",
                ),
            ),
        )


def _waits(graph: Graph) -> Iterable[Panel]:
    if states := waits(graph):
        yield Panel(
            title="Questions to people, per run",
            description=f"Entries of the states that wait for a person: {', '.join(states)}.",
            queries=(
                Query(
                    'machine_agent:orchestrator_waits_per_runs:ratio_rate1h{job=~"$job", '
                    f'machine="{graph.name}", agent=~"$agent"}}',
                    "questions {{agent}}",
                ),
            ),
        )


def _success(graph: Graph) -> Panel:
    where = f'{{job=~"$job", machine="{graph.name}", agent=~"$agent"}}'
    return Panel(
        title="Runs with an answer",
        description="Share of finished runs that ended as completed or partial.",
        queries=(
            Query(
                f"machine_agent:orchestrator_runs_completed_per_runs:ratio_rate1h{where}", "with an answer"
            ),
            Query(
                f"machine_agent:orchestrator_transitions:rate5m{where}", "transitions per second: {{agent}}"
            ),
        ),
    )


def _dwell(here: str) -> Panel:
    return Panel(
        title="Mean time in a state",
        description="For each visit.",
        queries=(
            Query(
                ratio(
                    rate("state_duration_seconds_sum", "state", here),
                    rate("state_duration_seconds_count", "state", here),
                ),
                "{{state}}",
            ),
        ),
        unit=PanelUnit.SECONDS,
    )


def _tokens(here: str) -> Panel:
    return Panel(
        title="Tokens per finished run",
        description="By direction.",
        queries=(
            Query(
                f"{rate('llm_tokens_total', 'direction', here)}"
                f" / on () group_left () sum"
                f" (rate(orchestrator_runs_completed_total{{{here}}}[$__rate_interval]))",
                "{{direction}}",
            ),
        ),
    )


def _budgets(here: str) -> Panel:
    return Panel(
        title="Budgets at the end of runs",
        description="Used share of each budget: median and 95th percentile of the runs.",
        queries=tuple(
            Query(
                quantile(q, "budget_consumed_ratio", "budget", here),
                f"{{{{budget}}}} p{name}",
            )
            for q, name in ((0.5, 50), (0.95, 95))
        ),
        unit=PanelUnit.SHARE,
    )


def _loops(here: str) -> Panel:
    return Panel(
        title="Loops per run, spread",
        description="Number of runs by their number of loops.",
        queries=(Query(lately("run_iterations_bucket", "le", here), "{{le}}"),),
        kind=PanelKind.HEATMAP,
    )
