"""Store the results of a batch job: the time of its last success, and the duration of its last run.

A job that ends before a scrape cannot serve its metrics. These two outlive it: in a file that node_exporter's
textfile collector reads, in a Pushgateway, or both.

The series have the label `batch`, because node_exporter refuses two files with one series. Only these two are sent,
never the counters of runs: pushed data stays for ever, and has no `up` that would show its end. `forget` removes a
retired job from the gateway.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.errors import ConfigError
from orchestrator.telemetry.catalogue import PREFIX, PUSHED, Metric

_WENT_WELL, _TOOK = PUSHED
SUCCESS, DURATION = PREFIX + _WENT_WELL.name, PREFIX + _TOOK.name

_TIMEOUT = 10.0


class Batch:
    """One job, measured in a `with` block. An exception in the block is a failure, and so is setting `failed`.

    A failed job keeps the time of its last success. An error of the file or gateway is logged and never fails the
    job; it is in `problems`.

    Args:
        name: Value of the label `batch`.
        textfile: File to write; its name must end in .prom.
        gateway: Address of a Pushgateway.

    Raises:
        ConfigError: The name or a destination is invalid.

    Example:
        with Batch("nightly-report", textfile="/var/lib/node_exporter/nightly-report.prom") as batch:
            result = agent.run_sync(prompt)
            batch.failed = result.outcome != "completed"
    """

    def __init__(
        self,
        name: str,
        *,
        textfile: str | Path | None = None,
        gateway: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.time,
    ) -> None:
        if not name.strip():
            raise ConfigError("a batch job needs a name, which distinguishes its series")
        if textfile is not None and Path(textfile).suffix != ".prom":
            raise ConfigError(f"{str(textfile)!r} must end in .prom, or node_exporter does not read it")
        if gateway is not None and not urlsplit(gateway if "://" in gateway else f"http://{gateway}").netloc:
            raise ConfigError(
                f"{gateway!r} is not the address of a Pushgateway; write for example http://127.0.0.1:9091"
            )
        self.name = name
        self.failed = False
        self.problems: list[str] = []
        """Errors of file and gateway, one sentence each."""
        self._textfile = None if textfile is None else Path(textfile)
        self._gateway = gateway
        self._clock = clock
        self._now = now
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = self._clock() - self._began
        success = None if self.failed or kind is not None else self._now()
        if self._textfile is not None:
            self._push(lambda file: write(file, self.name, seconds, success), self._textfile)
        if self._gateway is not None:
            self._push(lambda gateway: push(gateway, self.name, seconds, success), self._gateway)

    def _push(self, push_to: Callable[[Any], None], target: object) -> None:
        try:
            push_to(target)
        except Exception as error:  # noqa: BLE001 - the job is complete even if its figures are lost
            why = getattr(error, "strerror", None) or getattr(error, "reason", None) or type(error).__name__
            self._complain(f"batch {self.name}: {target} did not receive the figures: {why}")

    def _complain(self, problem: str) -> None:
        self.problems.append(problem)
        logging.getLogger("orchestrator").error("%s", problem)


def write(textfile: str | Path, name: str, seconds: float, success: float | None) -> None:
    """Write the figures of a job to a file atomically: a reader finds the old file or the new one.

    `success` is the time of the success (epoch seconds), None after a failure: then the time in the file stays. The
    file is readable for all users, because node_exporter is another user. Raises OSError.
    """
    file = Path(textfile)
    kept = success if success is not None else _last_success(file, name)
    prometheus_client.write_to_textfile(str(file), _figures(name, seconds, kept))
    file.chmod(0o644)


def push(gateway: str, name: str, seconds: float, success: float | None) -> None:
    """Push the figures of a job to a Pushgateway, in the group of the job's name. Raises OSError.

    A success replaces the group; a failure replaces only the duration, so the last success stays.
    """
    send = prometheus_client.pushadd_to_gateway if success is None else prometheus_client.push_to_gateway
    send(gateway, job=name, registry=_figures(name, seconds, success), timeout=_TIMEOUT)


def forget(gateway: str, name: str) -> None:
    """Remove the group of a retired job. Raises OSError."""
    prometheus_client.delete_from_gateway(gateway, job=name, timeout=_TIMEOUT)


def _figures(name: str, seconds: float, success: float | None) -> CollectorRegistry:
    registry = CollectorRegistry()
    _gauge(_TOOK, registry).labels(name).set(seconds)
    if success is not None:  # never 0: "half a century ago" would fire an alert
        _gauge(_WENT_WELL, registry).labels(name).set(success)
    return registry


def _gauge(row: Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(PREFIX + row.name, row.help, row.labels, registry=registry)


def _last_success(file: Path, name: str) -> float | None:
    """Return the time in the file; None if there is no file, or it has another form."""
    with suppress(OSError, ValueError):
        for family in text_string_to_metric_families(file.read_text(encoding="utf-8")):
            for sample in family.samples:
                if sample.name == SUCCESS and sample.labels.get("batch") == name:
                    return float(sample.value)
    return None
