"""One row of the catalogue of metrics: its name, its labels, and the source of its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

PREFIX = "orchestrator_"


class MetricKind(StrEnum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class MetricSource(StrEnum):
    """The source of a metric's values."""

    OBSERVED = "observed"
    """An instrument, updated by facts."""
    SCRAPED = "scraped"
    """The collector, from the state at a scrape."""
    STORED = "stored"
    """`orchestrator metrics serve`, from a journal; no process with agents has it."""
    PUSHED = "pushed"
    """A batch job, which pushes it at its end; no scrape has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row. `name` is without PREFIX."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str
    fed_by: tuple[type, ...] = ()
    """The facts that update it; empty if code counts directly."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without +Inf."""
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Label -> its closed values, for labels that no graph, tool list or model name defines."""
    zero: bool = True
    """Whether the series of every combination of declared values exist, at 0, from the declaration on."""
    made: MetricSource = MetricSource.OBSERVED


def counter(
    name: str,
    labels: str,
    text: str,
    *fed_by: type,
    zero: bool = True,
    made: MetricSource = MetricSource.OBSERVED,
    **values: Iterable[str],
) -> Metric:
    """Return the row of a counter; `labels` are separated by blanks, `values` closes some of them."""
    return Metric(
        name=name,
        kind=MetricKind.COUNTER,
        labels=tuple(labels.split()),
        help=text,
        fed_by=fed_by,
        values=closed_sets(values),
        zero=zero,
        made=made,
    )


def gauge(
    name: str,
    labels: str,
    text: str,
    *fed_by: type,
    zero: bool = False,
    made: MetricSource = MetricSource.OBSERVED,
    **values: Iterable[str],
) -> Metric:
    """Return the row of a gauge. It is absent until it has a value.

    A timestamp that started at 0 would read as "half a century ago" and fire an alert.
    """
    return Metric(
        name=name,
        kind=MetricKind.GAUGE,
        labels=tuple(labels.split()),
        help=text,
        fed_by=fed_by,
        values=closed_sets(values),
        zero=zero,
        made=made,
    )


def histogram(
    name: str, labels: str, buckets: tuple[float, ...], text: str, *fed_by: type, **values: Iterable[str]
) -> Metric:
    """Return the row of a histogram."""
    return Metric(
        name=name,
        kind=MetricKind.HISTOGRAM,
        labels=tuple(labels.split()),
        help=text,
        fed_by=fed_by,
        buckets=buckets,
        values=closed_sets(values),
    )


def closed_sets(values: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Return label -> values as plain text."""
    return {label: tuple(str(value) for value in closed) for label, closed in values.items()}
