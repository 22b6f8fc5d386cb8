"""Every alert on a real path: application → Prometheus → rules → Alertmanager → webhook, many times as fast.

The waits are those of the rules: the longest is an hour. Divided by thirty (`make soak`, `make dashboards`) that is two
minutes, by fifty (`make test`) 72 seconds; nothing else differs.

The table of what fired, resolved and was inhibited is printed, and kept with the pictures where
ORCHESTRATOR_PICTURES names a folder (`make dashboards`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.ops.alert import ALERTS, NAMES
from orchestrator.ops.live_source import Prometheus, TimeWindow
from orchestrator.ops.pack import dashboards
from orchestrator.ops.panel import PanelKind
from orchestrator.ops.render import page
from orchestrator.ops.rule import AlertSeverity
from tests.dashboards.lint import fields_of, scraped_names
from tests.dashboards.monitoring import (
    AgentHost,
    JournalWatch,
    Monitoring,
    reachable,
    running,
    screenshot,
    text_of,
    until,
)

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.system("prometheus", "prometheus-alertmanager", "chromium"),
    pytest.mark.timeout(600),
]

FAULTS = (
    "llm",
    "tools",
    "limits",
    "slow",
    "journal",
    "slow_journal",
    "stray",
    "guard",
    "telemetry",
    "growth",
    "asking",
)
NOT_SHOWN = {
    "OrchestratorTransitionOverheadHigh": "the kernel cannot be made slow without touching it",
}
"""Alerts that this run does not make fire, each with its reason; promtool's tests have them all."""
EXPLAINED = {
    "OrchestratorRetryStorm",
    "OrchestratorRetriesExhausted",
    "OrchestratorJournalSlow",
    "OrchestratorMetricsAbsent",
}
"""Inhibited here: another alert says why."""
WITHHELD = EXPLAINED | {"OrchestratorBudgetHeadroomLow", "OrchestratorTransitionFailureRatioHigh"}
"""They may fire and reach nobody: for information only, or explained by another alert."""
ENDS = {
    f"Orchestrator{name}"
    for name in ("LLMErrorRatioHigh", "ToolErrorRatioHigh", "GuardErrors", "JournalWritesFailing")
}
"""Alerts whose faults are taken away."""
PICTURES = ("rendered.webp", "console.webp")
LARGEST = 100_000
"""Bytes of a picture that is committed."""
PATIENCE = 150
"""Seconds for a group of alerts: a machine that has too much to do misses scrapes, and waits of rules begin anew."""


@dataclass
class Story:
    """What was seen, and when, in seconds since the start."""

    began: float = field(default_factory=time.time)
    fired: dict[str, float] = field(default_factory=dict)
    inhibited: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    """Alerts that fired and did not later, by Prometheus; whom another one explains nobody hears of."""
    scrape: str = ""
    window: TimeWindow | None = None
    missed: int = 0
    """Seconds in which the host was up and could not be scraped."""

    def look(self, monitoring: Monitoring) -> Story:
        """Take note of what fires now."""
        now = time.time() - self.began
        firing = monitoring.firing()
        inhibited = monitoring.inhibited()  # by Alertmanager, to which an alert may have come since
        for name in firing | inhibited:
            self.fired.setdefault(name, now)
        self.ended |= self.fired.keys() - firing - inhibited
        for name in inhibited:
            self.inhibited.setdefault(name, now)
        return self

    def table(self, monitoring: Monitoring) -> str:
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


def _after(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f} s"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Story, Monitoring]]:
    """One story, told once: faults, recovery, crashes, silence."""
    folder = tmp_path_factory.mktemp("live")
    sick, dying = AgentHost("sick", folder), AgentHost("dying", folder, serves=False)
    lost = AgentHost("lost", folder, serves=False)
    watch = JournalWatch("watch", folder, folder / "lost" / "standing.db")
    lost.start()
    with running(folder, [sick, dying], [LLM_LOOP], [watch]) as monitoring:
        story = Story()
        try:
            until(lambda: 'state="process_tools"} 1.0' in lost.scrape(), 60, "the runs that will be lost")
            lost.kill()
            watch.start()
            _tell(story, monitoring, sick, dying, watch)
        finally:
            lost.kill()
            seconds = time.time() - story.began
            print(f"\n{story.table(monitoring)}\nseconds: {seconds:.0f}, unseen: {story.missed}")  # noqa: T201
        yield story, monitoring


def _tell(
    story: Story, monitoring: Monitoring, sick: AgentHost, dying: AgentHost, watch: JournalWatch
) -> None:
    def expect(names: set[str], seconds: float) -> None:
        def there() -> bool:
            story.look(monitoring)
            return names <= {name.removeprefix("Orchestrator") for name in story.fired}

        try:
            until(there, seconds, "alerts")
        except AssertionError:
            missing = names - {name.removeprefix("Orchestrator") for name in story.fired}
            raise AssertionError(f"did not fire within {seconds:g} s: {sorted(missing)}") from None

    until(lambda: reachable(f"http://127.0.0.1:{sick.port}/metrics"), 60, "the host serves")
    story.began = time.time()
    sick.tell("on stuck")
    for fault in FAULTS:
        sick.tell(f"on {fault}")
    expect({"TelemetryDegraded"}, PATIENCE)
    sick.tell("off telemetry")
    _crash_loop(story, monitoring, dying)
    expect({"RecoveryLoop", "RollbackFailed", "RunStuck", "RunOverdue", "EngineStalled"}, PATIENCE)
    expect(
        {
            "RunErrorBudgetBurn", "TransitionFailureRatioHigh", "UndeclaredTransition", "GuardErrors", "RetryStorm",
            "RetriesExhausted", "LLMErrorRatioHigh", "ToolErrorRatioHigh", "UnregisteredToolCalls", "LLMLatencyHigh",
            "BudgetExceededHigh", "JournalWritesFailing", "JournalSlow", "TelemetryDegraded", "QueueSaturated",
            "QueueWaitHigh", "RunsOrphaned", "RunLatencyBudgetBurn",
        },
        PATIENCE,
    )  # fmt: skip
    story.scrape = "".join(text_of(f"http://127.0.0.1:{host.port}/metrics") for host in (sick, watch))
    for fault in FAULTS:
        if fault not in {"growth", "limits"}:
            sick.tell(f"off {fault}")
    sick.tell("on block")
    expect({"EventLoopLagHigh"}, PATIENCE)
    sick.tell("off block")
    sick.tell("on freeze")
    expect({"EventLoopBlocked"}, PATIENCE)
    sick.tell("on tokens")
    expect({"JournalGrowing", "BudgetHeadroomLow"}, PATIENCE)
    _keep_pictures(monitoring, story)
    expect({"RunAgingWithoutTimeout", "ApprovalWaiting", "TokenBurnAnomaly"}, PATIENCE)
    until(lambda: story.look(monitoring).ended >= ENDS, PATIENCE, "the end of alerts")
    story.window, story.missed = _window(story), _missed(monitoring, sick)
    _go_silent(story, monitoring, sick, (dying, watch))


def _go_silent(
    story: Story, monitoring: Monitoring, sick: AgentHost, others: tuple[AgentHost | JournalWatch, ...]
) -> None:
    """Kill everything that is scraped, and let one process come back."""
    silence = time.time()
    for host in (sick, *others):
        host.kill()

    def said(status: str) -> set[str]:
        return monitoring.webhook.names(status, "page", since=silence)

    def explained() -> bool:
        return "OrchestratorMetricsAbsent" in story.look(monitoring).inhibited

    until(lambda: "OrchestratorTargetDown" in said("firing"), 60, "the page about processes that are gone")
    until(explained, 60, "MetricsAbsent, which the page explains")
    assert "OrchestratorMetricsAbsent" not in said("firing")
    sick.start()
    until(lambda: "OrchestratorMetricsAbsent" not in monitoring.firing(), 60, "the end of MetricsAbsent")


def _crash_loop(story: Story, monitoring: Monitoring, dying: AgentHost) -> None:
    """Kill a process in the middle of a booking; it takes up its runs each time, until it has started four times."""
    there = f'instance="127.0.0.1:{dying.port}"'
    begun = f'sum(orchestrator_runs_active{{{there}, state="process_tools"}}) > 0'
    again = f"sum(orchestrator_recoveries_total{{{there}}}) > 0"
    gone = f"sum(orchestrator_runs_active{{{there}}})"
    source = Prometheus(monitoring.prometheus)
    for life in range(4):

        def under_way(query: str = begun if life == 0 else again) -> bool:
            story.look(monitoring)
            return bool(source.instant(query, time.time()))

        until(under_way, 60, f"life {life} is scraped")
        if life < 3:
            dying.kill()
            until(lambda: not source.instant(gone, time.time()), 20, "the scrape that fails")
            dying.start()


def _missed(monitoring: Monitoring, host: AgentHost) -> int:
    """Return for how many seconds a host could not be scraped: a machine that has too much to do shows here."""
    query = f'count_over_time((up{{instance="127.0.0.1:{host.port}"}} == 0)[10m:1s])'
    found = Prometheus(monitoring.prometheus).instant(query, time.time())
    return int(found[0].points[0][1]) if found else 0


def _window(story: Story) -> TimeWindow:
    now = time.time()
    return TimeWindow(end=now, seconds=now - story.began, step=1, variables={}, rate="10s")


def _keep_pictures(monitoring: Monitoring, story: Story) -> None:
    """Draw the dashboards and the console while things are bad."""
    until(lambda: "OrchestratorRunStuck" in monitoring.firing(), 60, "the alert that the pictures show")
    html = monitoring.folder / "page.html"
    made = page(dashboards([LLM_LOOP]), Prometheus(monitoring.prometheus), _window(story))
    html.write_text(made, encoding="utf-8")
    screenshot(html.as_uri(), monitoring.folder / PICTURES[0], 1060, 720, monitoring.folder)
    address = f"{monitoring.prometheus}/consoles/orchestrator.html"
    console = until(
        lambda: "<td>stuck</td>" in (text := text_of(address)) and "OrchestratorRunStuck" in text and text,
        60,
        "the console",
    )
    file = monitoring.folder / "console.html"
    file.write_text(console, encoding="utf-8")
    screenshot(file.as_uri(), monitoring.folder / PICTURES[1], 1000, 1000, monitoring.folder)
    if pictures := os.environ.get("ORCHESTRATOR_PICTURES"):
        for name in PICTURES:
            shutil.copy(monitoring.folder / name, Path(pictures) / name)


def test_every_critical_alert_reaches_whoever_is_paged(seen: tuple[Story, Monitoring]) -> None:
    _, monitoring = seen
    critical = {alert.full_name for alert in ALERTS if alert.severity is AlertSeverity.CRITICAL}
    assert (
        critical - monitoring.webhook.names("firing", "page") <= EXPLAINED
    )  # which may be said before what explains it


def test_every_alert_was_seen_to_fire_but_those_with_a_reason(seen: tuple[Story, Monitoring]) -> None:
    story, _ = seen
    assert set(NAMES) - story.fired.keys() - NOT_SHOWN.keys() == set()


def test_alerts_that_another_one_explains_reach_nobody(seen: tuple[Story, Monitoring]) -> None:
    story, monitoring = seen
    assert story.inhibited.keys() >= EXPLAINED
    told = monitoring.webhook.names("firing") | WITHHELD | NOT_SHOWN.keys()
    assert set(NAMES) - told == set()
    assert "OrchestratorBudgetHeadroomLow" not in monitoring.webhook.names("firing")


def test_alerts_end_when_the_fault_ends(seen: tuple[Story, Monitoring]) -> None:
    story, monitoring = seen
    assert story.ended >= ENDS
    assert ENDS & monitoring.webhook.names("resolved")


def test_every_panel_has_data(seen: tuple[Story, Monitoring]) -> None:
    story, monitoring = seen
    assert story.window is not None
    source, window = Prometheus(monitoring.prometheus), replace(story.window, step=4)
    empty = []
    for dashboard in dashboards([LLM_LOOP]):
        for panel in dashboard.panels:
            queries = () if panel.kind is PanelKind.TEXT else panel.queries
            for query in queries:
                lines = source.range(window.expression(query.whole), window)
                if not any(line.points for line in lines):
                    empty.append(f"{panel.title}: {query.expr}")
    assert empty == [], "\n".join(empty)


def test_every_metric_label_and_value_we_name_is_in_a_live_scrape(seen: tuple[Story, Monitoring]) -> None:
    story, _ = seen
    live = scraped_names(story.scrape)
    absent = {
        f"{name}{{{label}}}"
        for name, labels in fields_of().items()
        for label in labels
        if label not in live.get(name, ())
    }
    assert absent == set()


def test_the_page_and_the_console_show_what_fires(seen: tuple[Story, Monitoring]) -> None:
    _, monitoring = seen
    html = (monitoring.folder / "page.html").read_text()
    assert "OrchestratorRunStuck" in html
    assert html.count("<svg") > 40
    assert "OrchestratorRunStuck" in (monitoring.folder / "console.html").read_text()
    for name in PICTURES:
        picture = (monitoring.folder / name).read_bytes()
        assert picture.startswith(b"RIFF")
        assert len(picture) <= LARGEST
