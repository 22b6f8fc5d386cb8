"""Recorded expressions, for alerts over days, for several panels, and for statistics of one graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.kernel.graph import Graph
from orchestrator.machines.ralph.graph import RALPH
from orchestrator.ops.rule import RecordingRule
from orchestrator.ops.run_flow import RALPH_RECORDINGS, returns, waits

BURN_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")

_COMPLETED = "sum without (instance, outcome, reason) (rate(orchestrator_runs_completed_total{{{0}}}[{1}]))"
_REFUSED = "sum without (instance, reason) (rate(orchestrator_runs_rejected_total[{0}]))"


def _counted(window: str) -> str:
    """Return the rate of runs that ended, without those that people stopped (cancelled, rejected)."""
    return _COMPLETED.format('outcome!~"cancelled|rejected"', window)


def _failed_per_runs(window: str) -> str:
    """Return the share of bad runs: failed, without progress, refused, and cut off by a limit beyond the usual share.

    A journal that is served alone has no refusals, hence `or 0 * …`.
    """
    ended, refused = _counted(window), f"({_REFUSED.format(window)}\n  or 0 * {_counted(window)})"
    failed = _COMPLETED.format('outcome=~"failed|no_progress"', window)
    exceeded = _COMPLETED.format('outcome="budget_exceeded"', window)
    cut_off = f"clamp_min({exceeded} - <cut_off> * {ended}, 0)"
    return f"({failed}\n  + ({cut_off}\n  or 0 * {ended})\n  + {refused})\n/\n({ended} + {refused})"


SLO = tuple(
    RecordingRule(
        f"machine_agent:orchestrator_runs_failed_per_runs:ratio_rate{window}", _failed_per_runs(window)
    )
    for window in BURN_WINDOWS
) + tuple(
    RecordingRule(
        f"machine_agent:orchestrator_runs_slow_per_runs:ratio_rate{window}",
        f"sum without (instance) (rate(orchestrator_runs_slow_total[{window}]))\n/\n"
        + _COMPLETED.format('outcome=~"completed|partial"', window),
    )
    for window in BURN_WINDOWS
)
"""The two objectives: the share of runs that failed, and the share of answers slower than the agent's objective."""

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
    """Return the recorded expressions of all these graphs, each name once."""
    found: dict[str, list[str]] = {}
    for graph in graphs:
        for rule in of_graph(graph):
            found.setdefault(rule.name, []).append(rule.expr)
    return tuple(RecordingRule(name, "\nor\n".join(parts)) for name, parts in found.items())
