"""Fast paths around the instruments of prometheus_client. Only this module and metrics.py import that library.

Every turn updates some forty series. The library's `inc`, `set` and `observe` check the labels of the instrument at
each call, and a histogram searches its buckets. `add` and `take` do that work once; what remains is the library's own
value with its lock, in one process or in files for several. Pending amounts (see `edge`) are added before anything is
read.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import prometheus_client
from prometheus_client import CollectorRegistry, values

from orchestrator.errors import ConfigError
from orchestrator.telemetry.collector import LiveCollector
from orchestrator.telemetry.instrument import Instruments, Maker
from orchestrator.telemetry.metric import PREFIX, Metric, MetricKind
from orchestrator.telemetry.shared_gauge import SharedGauges


class _Settled:
    before: Callable[[], None] = staticmethod(lambda: None)

    def collect(self) -> Iterable[Any]:
        self.before()
        found: Iterable[Any] = super().collect()  # type: ignore[misc]
        return found


class _Noting(_Settled):
    """Amounts wait in a list until a read; in files, which another process may read, they are added at once."""

    def _metric_init(self) -> None:
        super()._metric_init()  # type: ignore[misc]
        self.noted: list[float] = []
        self._adding = threading.Lock()

    def take_all(self, amounts: Sequence[float]) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        with self._adding:
            amounts = self.noted[:]
            del self.noted[: len(amounts)]  # amounts that arrived meanwhile stay
            if amounts:
                self.take_all(amounts)

    def _child_samples(self) -> Iterable[Any]:
        self.settle()
        found: Iterable[Any] = super()._child_samples()  # type: ignore[misc]
        # Each counter and histogram has a series of its creation, which doubles their number; no rule needs it.
        return [sample for sample in found if sample[0] != "_created"]


class _Counter(_Noting, prometheus_client.Counter):
    def _metric_init(self) -> None:
        super()._metric_init()
        self.add: Callable[[float], None] = self._value.inc if _in_files() else self.noted.append

    def take_all(self, amounts: Sequence[float]) -> None:
        self._value.inc(sum(amounts))


class _Gauge(_Settled, prometheus_client.Gauge):
    def _metric_init(self) -> None:
        super()._metric_init()
        self.set = self._timed if _in_files() else self._value.set  # type: ignore[method-assign]

    def _timed(self, value: float) -> None:
        self._value.set(value, timestamp=time.time())


class _Histogram(_Noting, prometheus_client.Histogram):
    def _metric_init(self) -> None:
        super()._metric_init()
        self.take: Callable[[float], None] = self._take if _in_files() else self.noted.append

    def _take(self, amount: float) -> None:
        self.take_all((amount,))

    def take_all(self, amounts: Sequence[float]) -> None:
        total = sum(amounts)
        self._sum.inc(total)
        for place, count in _spread(amounts, self._upper_bounds, is_ordered=not math.isnan(total)):
            self._buckets[place].inc(count)


def _spread(
    amounts: Sequence[float], bounds: Sequence[float], *, is_ordered: bool
) -> Iterable[tuple[int, int]]:
    """Yield (bucket, number of amounts in it). Many amounts are sorted first, which takes a third of the time."""
    if len(amounts) < len(bounds) or not is_ordered:
        yield from Counter([bisect_left(bounds, amount) for amount in amounts]).items()
        return
    ordered, below = sorted(amounts), 0
    for place, bound in enumerate(bounds):
        upto = bisect_right(ordered, bound, below)
        if upto > below:
            yield place, upto - below
        below = upto


LOCK = threading.Lock()
"""Lock for the creation of instruments and the declaration of names."""
_instruments: WeakKeyDictionary[CollectorRegistry, Instruments] = WeakKeyDictionary()


def instruments_of(registry: CollectorRegistry) -> Instruments:
    """Return the instruments of a registry; create them at the first call."""
    with LOCK:
        found = _instruments.get(registry)
        if found is not None:
            register_again(found, registry)
        else:
            if _in_files():
                check_multiprocess_folder()
            made: Instruments
            collectors: list[Any] = []

            def settle() -> None:
                made.meters.settle()

            made = Instruments(maker(registry, settle, collectors), at_once=_in_files())
            found = _instruments[registry] = made
            live = LiveCollector(found)
            if _in_files():
                SharedGauges(live, registry)
            else:
                registry.register(live)
                collectors.append(live)
            made.collectors = collectors
        return found


def is_registered(use: Instruments, registry: CollectorRegistry) -> bool:
    """Return whether the registry has the instruments. The first one stands for all: who removes one removes all."""
    return use.collectors[0] in registry._collector_to_names  # noqa: SLF001 - there is no public question


def register_again(use: Instruments, registry: CollectorRegistry) -> None:
    """Register the instruments that were removed from the registry, and log that. Call it with LOCK.

    Test suites remove every collector between two tests. The metrics would be empty from then on.
    """
    removed = [one for one in use.collectors if one not in registry._collector_to_names]  # noqa: SLF001
    if not removed:
        return
    for one in removed:
        registry.register(one)
    logging.getLogger("orchestrator").warning(
        "%d metrics of this package had been removed from their registry, for example by a test fixture, and were "
        "registered again; give such tests a registry of their own: Metrics(CollectorRegistry())",
        len(removed),
    )


MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


def check_multiprocess_folder() -> None:
    """Raise ConfigError unless the folder of the multiprocess mode exists."""
    folder = os.environ.get(MULTIPROCESS) or os.environ.get(MULTIPROCESS.lower(), "")
    if not os.path.isdir(folder):  # noqa: PTH112 - as the library reads it
        raise ConfigError(
            f"{MULTIPROCESS} is {folder!r}, which is not a folder; create it, empty, before the processes start, or "
            "unset the variable"
        )


def _in_files() -> bool:
    """Return whether values are in files, which another process may read at any time."""
    return bool(getattr(values.ValueClass, "_multiprocess", True))


def maker(registry: CollectorRegistry, settle: Callable[[], None], collectors: list[Any]) -> Maker:
    """Return a function that creates the instrument of a row on a registry, and adds it to `collectors`.

    `settle` is called before reads.
    """

    def make(metric: Metric) -> Any:
        made = _made(metric, registry)
        made.before = settle
        collectors.append(made)
        return made

    return make


def _made(metric: Metric, registry: CollectorRegistry) -> Any:
    name, text = PREFIX + metric.name, metric.help
    if metric.kind is MetricKind.COUNTER:
        return _Counter(name, text, metric.labels, registry=registry)
    if metric.kind is MetricKind.GAUGE:
        return _Gauge(name, text, metric.labels, registry=registry, multiprocess_mode="mostrecent")
    return _Histogram(name, text, metric.labels, registry=registry, buckets=metric.buckets)
