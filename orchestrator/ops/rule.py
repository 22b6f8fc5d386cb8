"""Rules as values and as the data of a rule file, and every number of an alert that the application does not export."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
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
    token_ceiling: float = 2000
    """Tokens per second of one agent above which a ticket needs no baseline."""
    release_rise: float = 1.5
    """Factor on the tokens of a run with which a new version makes a ticket."""
    no_answers: float = 0.2
    """Share of the endings with an answer that may be empty, cut, filtered or refused."""
    abandoned: float = 10
    """Calls of one tool that ignored their cancellation and still run."""
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
    clock_skew: float = 30
    """Seconds between the clocks of a process and of Prometheus; not scaled, like the next ones."""
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


PROCESS_TIME = "max by (job, instance) (orchestrator_process_time_seconds)"
"""The clock of each target, which also wrote its timestamps: it may differ from the clock of Prometheus."""


def age_of(selector: str) -> str:
    """Return the age of a timestamp by the clock of the process that exports it.

    Example:
        >>> age_of("orchestrator_last_transition_timestamp_seconds").removeprefix(PROCESS_TIME)
        ' - on (job, instance) group_right () orchestrator_last_transition_timestamp_seconds'
    """
    return f"{PROCESS_TIME} - on (job, instance) group_right () {selector}"


ALERT_PREFIX = "Orchestrator"
_NAMED = "{{ range %s | query }}{{ .Labels.backend }} {{ .Labels.path }} {{ else }}unknown {{ end }}"
_PLACES = "max by (backend, path) (orchestrator_journal_info{%s} == 1)"
JOURNAL = _NAMED % f"printf `{_PLACES % 'journal=%q'}` $labels.journal"
"""Text of an alert that names the engine and the path of the journal in its labels."""
JOURNALS = _NAMED % f"printf `{_PLACES % 'instance=%q, backend=%q'}` $labels.instance $labels.backend"
"""The same for every journal of a process with one engine."""
DASHBOARD = "/d/orchestrator-operations"
RUNS_OF_AGENT = '{{ with $labels.agent }}{{ if match "^[^_]" . }}?agent={{ urlquery . }}{{ end }}{{ end }}'
"""Query of the console's list of runs. `_other` and `_none` are labels and no agents: every run is listed."""


class AlertSeverity(StrEnum):
    """The recipient of an alert."""

    CRITICAL = "critical"
    """A page: users are affected now."""
    WARNING = "warning"
    """A ticket: handled within a working day."""
    INFO = "info"
    """Seen on the dashboard only."""
    NONE = "none"
    """The watchdog, which alerts by its absence."""


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """One recorded expression; `name` is level:metric:operations."""

    name: str
    expr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert rule. `<name>` in `expr` is a member of Thresholds; several rules may share a name."""

    name: str
    """Name without ALERT_PREFIX."""
    severity: AlertSeverity
    expr: str
    summary: str
    description: str
    wait: str | None = None
    """`for`. None: a single event is never noise."""
    keep: str | None = None
    """`keep_firing_for`."""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """The name in Prometheus."""
        return ALERT_PREFIX + self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Parameters of the written rules: their numbers, their time scale, and the place of runbooks."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    time_scale: float = 1
    """Divisor of every duration: 1 in production, more to see alerts fire within a test."""
    interval: str = "30s"
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of every alert, for routing: `{"team": "agents"}`."""
    runbooks: str = "runbooks"
    """A folder or an address; `/<AlertName>.md` is added."""
    console: str = ""
    """Address of the console, for links to the runs of an agent; empty: no links."""

    def expression(self, expr: str) -> str:
        """Return an expression in its final form."""
        numbers = self.thresholds if self.time_scale == 1 else self.thresholds.scaled(self.time_scale)
        return numbers.put_into(shortened_windows(expr, self.time_scale))


def smoke(time_scale: float = 30) -> Profile:
    """Return the profile of the live test: the same expressions, shorter durations. A request is slow after 5 s."""
    return Profile(thresholds=Thresholds(llm_slow_after=5.12), time_scale=time_scale, interval="1s")


def recording_data(rule: RecordingRule, profile: Profile) -> dict[str, Any]:
    """Return one entry of a rule file."""
    return {"record": rule.name, "expr": profile.expression(rule.expr)}


def alert_data(alert: Alert, profile: Profile) -> dict[str, Any]:
    """Return one entry of a rule file."""
    entry: dict[str, Any] = {"alert": alert.full_name, "expr": profile.expression(alert.expr)}
    if alert.wait:
        entry["for"] = shortened(alert.wait, profile.time_scale)
    if alert.keep:
        entry["keep_firing_for"] = shortened(alert.keep, profile.time_scale)
    entry["labels"] = {
        "severity": alert.severity.value,
        "component": "orchestrator",
        **profile.labels,
        **alert.labels,
    }
    entry["annotations"] = said_by(alert, profile)
    return entry


def said_by(alert: Alert, profile: Profile) -> dict[str, str]:
    """Return the texts of an alert for people."""
    return {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": f"{profile.runbooks}/{alert.full_name}.md",
        "dashboard": DASHBOARD,
        **({"console": f"{profile.console}/{RUNS_OF_AGENT}"} if profile.console else {}),
    }


def group(name: str, rules: Iterable[Mapping[str, Any]], interval: str) -> dict[str, Any]:
    """Return a group of a rule file."""
    return {"name": name, "interval": interval, "rules": [dict(rule) for rule in rules]}
