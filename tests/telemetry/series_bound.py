"""The maximum number of series of a definition."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod

from orchestrator.kernel.graph import Graph
from orchestrator.kernel.outcome import REASONS
from orchestrator.telemetry.catalogue import CATALOGUE, PARKINGS, Metric, MetricKind, MetricSource
from orchestrator.telemetry.instrument import CAPS, FOLDED, MOST_DEFINITIONS


def most_series(
    graph: Graph, *, tools: int = 0, models: int = 0, guards: int = CAPS["guard"], backends: int = 3
) -> int:
    """Return an upper bound of the series of one machine, for any facts, without `_created`.

    `tools`, `models` and `backends` are declared numbers; `guards` is the maximum number. Every label has one value
    more than is known, for folded names; facts of undeclared machines count as a second machine.
    """
    sizes = {
        "machine": 2,
        "agent": 2,
        "to": 2,
        "state": len(graph.states) + 1,
        "from_state": len(graph.states) + 1,
        "event": len(graph.events) + 1,
        "guard": guards + 1,
        "tool": tools + 2,
        "provider": 1,  # a model has one
        "model": models + 2,
        "backend": backends + 1,
        "version": 1,
        "python": 1,
        "identity": 1,
        "currency": 1,
        "name": tools + 1,
        "definition": MOST_DEFINITIONS,
        "journal": 1,
        "path": 1,
    }
    live = (row for row in CATALOGUE if row.made in {MetricSource.OBSERVED, MetricSource.SCRAPED})
    return sum(_combinations(row, graph, sizes) * _samples(row) for row in live)


def _combinations(row: Metric, graph: Graph, sizes: dict[str, int]) -> int:
    special: dict[str, int] = {
        "transitions_total": 2 * len(graph.rows)
        + 4,  # for each agent: declared edges, one for all others, one of all other machines
        "runs_completed_total": 4 * (sum(map(len, REASONS.values())) + len(REASONS) + 1),
        "label_overflow_total": len(FOLDED),
        # running and orphaned runs have no reason
        "journal_runs": 4 * (2 + len(PARKINGS) + 1),
        "journal_oldest_update_timestamp_seconds": 4 * (2 + len(PARKINGS) + 1),
    }
    return special.get(row.name) or prod(_axes(row.labels, row, sizes))


def _axes(labels: Collection[str], row: Metric, sizes: dict[str, int]) -> Iterator[int]:
    for label in labels:
        yield len(row.values[label]) + 1 if label in row.values else sizes[label]


def _samples(row: Metric) -> int:
    return len(row.buckets) + 3 if row.kind is MetricKind.HISTOGRAM else 1
