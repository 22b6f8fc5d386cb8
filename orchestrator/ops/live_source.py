"""Query a live Prometheus over its HTTP interface with the standard library."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.ops.panel import Panel, PanelKind


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """One series: labels, and (Unix time, value) without the gaps in Prometheus' data."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """A period of time in seconds, and its resolution."""

    end: float
    seconds: float
    step: float
    variables: Mapping[str, str]
    """job, instance, machine, agent: regular expressions."""
    rate: str = "5m"
    """The value of $__rate_interval."""

    def expression(self, text: str) -> str:
        """Return an expression with the values of its variables."""
        found = text.replace("$__rate_interval", self.rate)
        for name in ("job", "instance", "machine", "agent"):
            found = found.replace(f"${name}", self.variables.get(name, ".*"))
        return found


class Prometheus:
    """The server at `address`, such as http://127.0.0.1:9090. Raises ConfigError if it cannot be queried."""

    def __init__(self, address: str, timeout: float = 10) -> None:
        if not address.startswith(("http://", "https://")):
            raise ConfigError(f"{address!r} is no address of a Prometheus: http://HOST:PORT")
        self._address = address.rstrip("/")
        self._timeout = timeout

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer."""
        url = f"{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=self._timeout) as answer:  # noqa: S310 - the scheme is checked
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                said = json.loads(error.read() or b"{}").get("error", error.reason)
            raise ConfigError(f"Prometheus refuses {parameters.get('query', path)!r}: {said}") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"Prometheus at {self._address} does not answer: {error}") from error

    def instant(self, expression: str, at: float) -> list[TimeSeries]:
        """Return the values at one moment."""
        data = self.get("query", query=expression, time=f"{at:.3f}")
        return [_series(each["metric"], [each["value"]]) for each in data["result"]]

    def range(self, expression: str, window: TimeWindow) -> list[TimeSeries]:
        """Return series over a window."""
        start, end = f"{window.end - window.seconds:.3f}", f"{window.end:.3f}"
        data = self.get("query_range", query=expression, start=start, end=end, step=f"{window.step:g}")
        return [_series(each["metric"], each["values"]) for each in data["result"]]

    def lines(self, panel: Panel, window: TimeWindow) -> list[tuple[str, TimeSeries]]:
        """Return the content of a panel: legend and series, without series that have no number."""
        found: list[tuple[str, TimeSeries]] = []
        for query in panel.queries:
            expression = window.expression(query.whole)
            if panel.kind in (PanelKind.LINES, PanelKind.HEATMAP):
                answer = self.range(expression, window)
            else:
                answer = self.instant(expression, window.end)
            found += [(legend(query.legend, line.labels), line) for line in answer if line.points]
        return found


def legend(template: str, labels: Mapping[str, str]) -> str:
    """Return a legend with the values of its labels."""
    found = template
    for name, value in labels.items():
        found = found.replace("{{" + name + "}}", value)
    return found


def _series(labels: Mapping[str, str], values: list[tuple[float, str]]) -> TimeSeries:
    numbers = ((float(at), float(value)) for at, value in values)
    return TimeSeries(labels, tuple((at, value) for at, value in numbers if math.isfinite(value)))
