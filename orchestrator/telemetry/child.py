"""The instruments of prometheus_client, with the shortest way to a number. With metrics.py its only importers.

Every transition touches six series, every turn forty. `inc`, `set` and `observe` of the library ask at each call
whether the instrument has its labels, and a histogram walks through its buckets. `add` and `take` are there where it
has them; what is left is the library's own value with its lock, in one process or in files for many.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry

from orchestrator.telemetry.instrument import Maker
from orchestrator.telemetry.metric import PREFIX, Kind, Metric


class _Counter(prometheus_client.Counter):
    def _metric_init(self) -> None:
        super()._metric_init()
        self.add = self._value.inc


class _Gauge(prometheus_client.Gauge):
    def set(self, value: float) -> None:
        self._value.set(value, timestamp=time.time())


class _Histogram(prometheus_client.Histogram):
    def _metric_init(self) -> None:
        super()._metric_init()
        add, bounds = self._sum.inc, self._upper_bounds
        counts = [bucket.inc for bucket in self._buckets]

        def take(amount: float) -> None:
            add(amount)
            counts[bisect_left(bounds, amount)](1)

        self.take = take


def maker(registry: CollectorRegistry) -> Maker:
    """Return what makes the instrument of a row on a registry."""

    def make(metric: Metric) -> Any:
        name, text = PREFIX + metric.name, metric.help
        if metric.kind is Kind.COUNTER:
            return _Counter(name, text, metric.labels, registry=registry)
        if metric.kind is Kind.GAUGE:
            return _Gauge(name, text, metric.labels, registry=registry, multiprocess_mode="mostrecent")
        return _Histogram(name, text, metric.labels, registry=registry, buckets=metric.buckets)

    return make
