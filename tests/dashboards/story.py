"""What a live test saw: which alerts fired, when, for whom, and which of them reached nobody."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.ops.alert import NAMES
from orchestrator.ops.render import TimeSeries, TimeWindow
from tests.dashboards.monitoring import SCALE, Monitoring

OVERLAP = 5.0
"""Seconds before the last look that are looked at again: what was evaluated then may have been stored since."""


class Subject(NamedTuple):
    """What an alert is about."""

    alert: str
    """Name without the prefix."""
    agent: str = ""
    instance: str = ""

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Subject:
        """Return the subject of an alert."""
        name = labels["alertname"].removeprefix("Orchestrator")
        return cls(name, labels.get("agent", ""), labels.get("instance", ""))


@dataclass
class Hidden:
    """An incident that is easily overlooked: the alert that must find it, and within what time."""

    title: str
    subject: Subject
    within: float
    """Minutes in production."""
    began: float = 0.0
    """Time of its first fault (epoch seconds)."""


@dataclass
class Story:
    """What was seen, and when, in seconds since the start."""

    began: float = field(default_factory=time.time)
    looked: float = 0.0
    fired: dict[str, float] = field(default_factory=dict)
    subjects: dict[Subject, float] = field(default_factory=dict)
    inhibited: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    """Alerts that fired about something and did not later, by Prometheus."""
    scrape: str = ""
    window: TimeWindow | None = None
    missed: int = 0
    """Seconds in which the host was up and could not be scraped."""
    hidden: tuple[Hidden, ...] = ()
    calm: frozenset[Subject] = frozenset()
    """What fired before everything was killed."""
    figures: dict[str, list[TimeSeries]] = field(default_factory=dict)
    """Answers of Prometheus about what must page nobody."""

    def look(self, monitoring: Monitoring) -> Story:
        """Take note of what fires now, and of what has fired since the start and ended before anybody looked."""
        now = time.time() - self.began
        inhibited = monitoring.inhibited()
        for at, labels in monitoring.fired(now - self.looked + OVERLAP):
            self.fired.setdefault(labels["alertname"], at - self.began)
            self.subjects.setdefault(Subject.of(labels), at - self.began)
        firing = {Subject.of(labels) for labels in monitoring.alerts()}
        self.ended |= {f"Orchestrator{subject.alert}" for subject in self.subjects.keys() - firing}
        for name in inhibited:
            self.inhibited.setdefault(name, now)
        self.looked = now
        return self

    def table(self, monitoring: Monitoring) -> str:
        """Return a row for each alert."""
        notes = monitoring.webhook.notes
        lines = ["| alert | fired | delivered to | resolved | inhibited |", "|---|---|---|---|---|"]
        for name in NAMES:
            told = [(at, path, alert) for at, path, alert in notes if alert["labels"]["alertname"] == name]
            paths = ", ".join(sorted({path for _, path, alert in told if alert["status"] == "firing"}))
            resolved = min((at for at, _, alert in told if alert["status"] == "resolved"), default=None)
            cells = (
                _after(self.fired.get(name)),
                paths or "–",
                _after(None if resolved is None else resolved - self.began),
                _after(self.inhibited.get(name)),
            )
            lines.append(f"| {name.removeprefix('Orchestrator')} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def hidden_table(self) -> str:
        """Return a row for each incident that hides: the time until its alert, here and in production."""
        lines = ["| hidden incident | alert | after | in production | allowed |", "|---|---|---|---|---|"]
        for one in self.hidden:
            if (at := self.subjects.get(one.subject)) is not None:
                after = at + self.began - one.began
                times = f"{after:.0f} s | {after * SCALE / 60:.0f} min | {one.within:g} min"
                lines.append(f"| {one.title} | {one.subject.alert} | {times} |")
        return "\n".join(lines)


def _after(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f} s"


def value(lines: list[TimeSeries]) -> float:
    """Return the last number of the only line."""
    ((*_, (_, number)),) = (line.points for line in lines)
    return number
