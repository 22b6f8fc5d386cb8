"""Rules as values, and as the data of a rule file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.ops.threshold import Thresholds, shortened, shortened_windows

ALERT_PREFIX = "Orchestrator"
_NAMED = "{{ range %s | query }}{{ .Labels.backend }} {{ .Labels.path }} {{ else }}unknown {{ end }}"
_PLACES = "max by (backend, path) (orchestrator_journal_info{%s} == 1)"
JOURNAL = _NAMED % f"printf `{_PLACES % 'journal=%q'}` $labels.journal"
"""Text of an alert that names the engine and the path of the journal in its labels."""
JOURNALS = _NAMED % f"printf `{_PLACES % 'instance=%q, backend=%q'}` $labels.instance $labels.backend"
"""The same for every journal of a process with one engine."""
DASHBOARD = "/d/orchestrator-operations"


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
    }


def group(name: str, rules: Iterable[Mapping[str, Any]], interval: str) -> dict[str, Any]:
    """Return a group of a rule file."""
    return {"name": name, "interval": interval, "rules": [dict(rule) for rule in rules]}
