"""Connect the observers of one agent with each other and with its journal, when the agent is constructed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, cast

from orchestrator.telemetry.log import TransitionLog

if TYPE_CHECKING:
    from orchestrator.kernel.journal import CountableJournal
    from orchestrator.telemetry.metrics import Metrics


def is_metrics(observer: object) -> TypeGuard[Metrics]:
    """Return whether an observer is a Metrics, without importing the metrics module."""
    loaded = sys.modules.get("orchestrator.telemetry.metrics")
    return loaded is not None and isinstance(observer, loaded.Metrics)


def connect(observers: Iterable[object], journal: object = None) -> None:
    """Make each Metrics among `observers` count the lines of the logs among them, and the runs of the agent's journal.

    Only a journal with a `path` has a size: that of the file and the files beside it. Only one with `head_counts` is
    counted. A repeated call changes nothing.
    """
    known = list(observers)
    path = getattr(journal, "path", None)
    for metrics in known:
        if not is_metrics(metrics):
            continue
        for log in known:
            if isinstance(log, TransitionLog):
                metrics.count_lines(*log.tallies)
        if journal is not None and callable(getattr(journal, "head_counts", None)):
            metrics.count_runs(cast("CountableJournal", journal))
        if isinstance(path, Path):
            from orchestrator.telemetry.instrument import file_bytes  # loaded with the metrics

            backend = str(getattr(journal, "backend", "other"))
            metrics.measure_store(backend, str(path), functools.partial(file_bytes, path))
