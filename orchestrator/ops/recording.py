"""Recorded expressions, for alerts over days, for several panels, and for statistics of one graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.kernel.graph import Graph
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.ops.flow import returns, waits
from orchestrator.ops.ralph import RALPH_RECORDINGS
from orchestrator.ops.rule import RecordingRule

BURN_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")

_FAILED = 'sum without (instance, outcome, reason) (rate(orchestrator_runs_completed_total{{outcome="failed"}}[{0}]))'
_COUNTED = (
    "sum without (instance, outcome, reason)"
    ' (rate(orchestrator_runs_completed_total{{outcome!~"cancelled|rejected"}}[{0}]))'
)

SLO = tuple(
    RecordingRule(
        f"machine_agent:orchestrator_runs_failed_per_runs:ratio_rate{window}",
        f"{_FAILED.format(window)}\n/\n{_COUNTED.format(window)}",
    )
    for window in BURN_WINDOWS
)
"""Share of finished runs that failed. Runs that people stopped (cancelled, rejected) do not count."""

SHARED = (
    RecordingRule(
        "machine_agent:orchestrator_llm_tokens:rate15m",
        "sum without (instance, provider, model, direction) (rate(orchestrator_llm_tokens_total[15m]))",
    ),
    RecordingRule(
        "machine_agent_state:orchestrator_state_duration_seconds:p95_rate5m",
        "histogram_quantile(0.95, sum without (instance) (rate(orchestrator_state_duration_seconds_bucket[5m])))",
    ),
    RecordingRule(
        "machine_agent:orchestrator_transitions:rate5m",
        "sum without (instance, from_state, event, to_state) (rate(orchestrator_transitions_total[5m]))",
    ),
    RecordingRule(
        "machine_agent:orchestrator_runs_completed_per_runs:ratio_rate1h",
        "sum without (instance, outcome, reason)"
        ' (rate(orchestrator_runs_completed_total{outcome=~"completed|partial"}[1h]))\n/\n'
        "sum without (instance, outcome, reason) (rate(orchestrator_runs_completed_total[1h]))",
    ),
    RecordingRule(
        "machine_agent:orchestrator_run_duration_seconds:mean_rate1h",
        "sum without (instance, outcome) (rate(orchestrator_run_duration_seconds_sum[1h]))\n/\n"
        "sum without (instance, outcome) (rate(orchestrator_run_duration_seconds_count[1h]))",
    ),
)


def of_graph(graph: Graph) -> tuple[RecordingRule, ...]:
    """Return the repetitions of states and the waits for people of one graph's runs, per finished run.

    The graph defines which edges return, so a graph without such edges has no such series.
    """
    found = []
    finished = (
        "sum without (instance, outcome, reason)"
        f' (rate(orchestrator_runs_completed_total{{machine="{graph.name}"}}[1h]))'
    )
    if edges := returns(graph):
        rates = (
            f'rate(orchestrator_transitions_total{{machine="{graph.name}", from_state="{edge.source}", '
            f'event="{edge.event}"}}[1h])'
            for edge in edges
        )
        went = "\n  or ".join(rates)
        found.append(
            RecordingRule(
                "machine_agent:orchestrator_returns_per_runs:ratio_rate1h",
                f"sum without (instance, from_state, event, to_state) (\n  {went}\n)\n/\n{finished}",
            )
        )
    if states := waits(graph):
        selector = f'machine="{graph.name}", state=~"{"|".join(states)}"'
        found.append(
            RecordingRule(
                "machine_agent:orchestrator_waits_per_runs:ratio_rate1h",
                f"sum without (instance, state) (rate(orchestrator_state_entries_total{{{selector}}}[1h]))\n/\n"
                f"{finished}",
            )
        )
    return (*found, *_OWN.get(graph.name, ()))


_OWN: Mapping[str, tuple[RecordingRule, ...]] = {RALPH.name: RALPH_RECORDINGS}
"""Graph -> its additional expressions."""


def of_graphs(graphs: Iterable[Graph]) -> tuple[RecordingRule, ...]:
    """Return the recorded expressions of all these graphs."""
    return tuple(rule for graph in graphs for rule in of_graph(graph))
