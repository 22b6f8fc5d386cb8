"""Every number of an alert that the application does not export, in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

LEAST_SECONDS = 5
"""Minimum of a scaled window, wait or age: a scrape takes a second."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_WINDOW = re.compile(r"(?<=\[)\d+[smhdw](?=[\]:])|(?<=:)\d+[smhdw](?=\])|(?<=offset )\d+[smhdw]\b")
_NAME = re.compile(r"<([a-z_]+)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Defaults that suit most; change them with `dataclasses.replace` and generate the pack again.

    Names that end in `_s` are ages and waits in seconds; the time scale of the smoke profile shortens them.
    """

    error_budget: float = 0.01
    """1 minus the objective: this share of runs may fail."""
    least_runs: int = 10
    """Minimum runs in a window for a page about their share."""
    stuck_factor: float = 1.5
    """Factor on a state's declared limit: the engine's own limit must act first."""
    overdue_factor: float = 1.2
    stalled_factor: float = 2
    run_age_s: float = 3600
    approval_age_s: float = 3600
    failed_events: float = 0.05
    retries: float = 0.3
    given_up: float = 0.05
    cut_off: float = 0.1
    near_limit: float = 0.25
    least_tokens: float = 100
    """Minimum tokens per second for a ticket about a rise."""
    token_rise: float = 3
    tool_errors: float = 0.25
    invented_tools: float = 0.05
    llm_errors: float = 0.2
    least_calls: float = 5
    """Minimum calls within ten minutes for a ticket about their share."""
    llm_slow_after: float = 40.96
    """Seconds, the bound of a bucket of the histogram."""
    llm_slow: float = 0.05
    slow_budget: float = 0.05
    """1 minus the objective of latency: this share of the answers may take longer than the objective of their agent."""
    loop_blocked_s: float = 5
    """The watchdog writes the stacks, and /healthz fails, from the same age on."""
    blocks: float = 2.5
    """Times within half an hour that the event loop may be blocked without a ticket."""
    queue_wait_s: float = 60
    journal_append: float = 0.1
    """Seconds; a disk is not faster at another time scale, so this and the next two are not scaled."""
    loop_lag: float = 0.5
    overhead: float = 0.0025
    least_rate: float = 0.02
    """Minimum operations per second for a ticket about their share."""
    restarts: float = 3
    """Starts of one process within an hour."""
    journal_size: float = 1_000_000_000
    """Minimum bytes for a ticket about growth."""
    journal_growth: float = 1.5
    journal_horizon_s: float = 86400

    def scaled(self, by: float) -> Thresholds:
        """Return the same with every age and wait divided by `by`."""
        aged = {item.name: getattr(self, item.name) for item in fields(self) if item.name.endswith("_s")}
        changes: dict[str, Any] = {name: max(LEAST_SECONDS, value / by) for name, value in aged.items()}
        return replace(self, **changes)

    def put_into(self, expression: str) -> str:
        """Return an expression with each `<name>` replaced by its number. Raises AttributeError for an unknown one."""
        return _NAME.sub(lambda found: number(getattr(self, found[1])), expression)


def number(value: float) -> str:
    """Return a number as PromQL and people write it."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:g}"


def seconds(duration: str) -> float:
    """Return the seconds of a duration such as 5m."""
    return float(duration[:-1]) * _UNITS[duration[-1]]


def shortened(duration: str, by: float) -> str:
    """Return a duration divided by `by`, at least LEAST_SECONDS."""
    return duration if by == 1 else f"{max(LEAST_SECONDS, round(seconds(duration) / by))}s"


def shortened_windows(expression: str, by: float) -> str:
    """Return an expression with every window and offset divided by `by`."""
    return _WINDOW.sub(lambda found: shortened(found[0], by), expression)
