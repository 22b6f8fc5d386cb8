"""Every alert on a real path: application → Prometheus → rules → Alertmanager → webhook, thirty times as fast.

The table of what fired, resolved and was inhibited is printed, and kept with the pictures where
ORCHESTRATOR_PICTURES names a folder (`make dashboards`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.ops.alert import ALERTS, NAMES
from orchestrator.ops.live_source import Prometheus, Window
from orchestrator.ops.pack import dashboards
from orchestrator.ops.panel import Kind
from orchestrator.ops.render import page
from orchestrator.ops.rule import Severity
from tests.dashboards.lint import fields_of, scraped_names
from tests.dashboards.monitoring import AgentHost, Monitoring, reachable, running, screenshot, text_of, until

pytestmark = [
    pytest.mark.system("prometheus", "prometheus-alertmanager", "chromium"),
    pytest.mark.timeout(400),
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
EXPLAINED = {"OrchestratorRetryStorm", "OrchestratorRetriesExhausted", "OrchestratorJournalSlow"}
"""Inhibited here: another alert says why."""
WITHHELD = EXPLAINED | {"OrchestratorBudgetHeadroomLow", "OrchestratorTransitionFailureRatioHigh"}
"""They may fire and reach nobody: for information only, or explained by another alert."""
PICTURES = ("rendered.webp", "console.webp")
LARGEST = 100_000
"""Bytes of a picture that is committed."""
EMPTY = {
    "What a transition costs, p99": "no fact carries it yet",
    "Time to first token, p95": "no model of this host streams",
    "Use of the model's context, p95": "no fact carries it yet",
}


@dataclass
class Story:
    """What was seen, and when, in seconds since the start."""

    began: float = field(default_factory=time.time)
    fired: dict[str, float] = field(default_factory=dict)
    inhibited: dict[str, float] = field(default_factory=dict)
    scrape: str = ""
    window: Window | None = None

    def look(self, monitoring: Monitoring) -> None:
        now = time.time() - self.began
        for name in monitoring.firing():
            self.fired.setdefault(name, now)
        for name in monitoring.inhibited():
            self.inhibited.setdefault(name, now)

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
    sick, dying = AgentHost("sick", folder), AgentHost("dying", folder)
    with running(folder, [sick, dying], [LLM_LOOP]) as monitoring:
        story = Story()
        try:
            _tell(story, monitoring, sick, dying)
        finally:
            print(f"\n{story.table(monitoring)}\nseconds: {time.time() - story.began:.0f}")  # noqa: T201
        yield story, monitoring


def _tell(story: Story, monitoring: Monitoring, sick: AgentHost, dying: AgentHost) -> None:
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
    expect({"TelemetryDegraded"}, 20)
    sick.tell("off telemetry")
    _crash_loop(story, monitoring, dying)
    sick.tell("on rollback")
    expect({"RecoveryLoop", "RollbackFailed", "RunStuck", "RunOverdue", "EngineStalled"}, 40)
    expect(
        {
            "RunErrorBudgetBurn", "TransitionFailureRatioHigh", "UndeclaredTransition", "GuardErrors", "RetryStorm",
            "RetriesExhausted", "LLMErrorRatioHigh", "ToolErrorRatioHigh", "UnregisteredToolCalls", "LLMLatencyHigh",
            "BudgetExceededHigh", "JournalWritesFailing", "JournalSlow", "TelemetryDegraded", "QueueSaturated",
            "QueueWaitHigh",
        },
        100,
    )  # fmt: skip
    story.scrape = text_of(f"http://127.0.0.1:{sick.port}/metrics")
    for fault in FAULTS:
        if fault not in {"growth", "limits"}:
            sick.tell(f"off {fault}")
    sick.tell("on block")
    expect({"EventLoopLagHigh"}, 40)
    sick.tell("off block")
    sick.tell("on tokens")
    expect({"JournalGrowing", "BudgetHeadroomLow"}, 60)
    _keep_pictures(monitoring, story)
    expect({"RunAgingWithoutTimeout", "ApprovalWaiting", "TokenBurnAnomaly"}, 120)
    story.window = _window(story)
    sick.kill()
    dying.kill()
    expect({"TargetDown", "MetricsAbsent"}, 30)
    gone = {"OrchestratorTargetDown", "OrchestratorMetricsAbsent"}
    until(lambda: gone <= monitoring.webhook.names("firing"), 15, "the pages about processes that are gone")
    sick.start()
    until(
        lambda: "OrchestratorMetricsAbsent" in monitoring.webhook.names("resolved"),
        30,
        "the end of MetricsAbsent",
    )


def _crash_loop(story: Story, monitoring: Monitoring, dying: AgentHost) -> None:
    """Kill a process that takes up its runs each time, until it has started four times."""
    there = f'{{instance="127.0.0.1:{dying.port}"}}'
    query = f"sum(orchestrator_recoveries_total{there}) and sum(orchestrator_runs_active{there}) > 0"
    source = Prometheus(monitoring.prometheus)
    for life in range(4):
        want = 0 if life == 0 else 1

        def took_up(want: int = want) -> bool:
            story.look(monitoring)
            if not reachable(f"http://127.0.0.1:{dying.port}/metrics"):
                return False
            found = source.instant(query, time.time())
            return bool(found) and found[0].points[0][1] >= want

        until(took_up, 40, f"life {life} is scraped")
        if life < 3:
            dying.kill()
            until(lambda: not source.instant(query, time.time()), 20, "the scrape that fails")
            dying.start()


def _window(story: Story) -> Window:
    now = time.time()
    return Window(end=now, seconds=now - story.began, step=1, variables={}, rate="10s")


def _keep_pictures(monitoring: Monitoring, story: Story) -> None:
    """Draw the dashboards and the console while things are bad."""
    html = monitoring.folder / "page.html"
    made = page(dashboards([LLM_LOOP]), Prometheus(monitoring.prometheus), _window(story))
    html.write_text(made, encoding="utf-8")
    screenshot(html.as_uri(), monitoring.folder / PICTURES[0], 1200, 860, monitoring.folder)
    address = f"{monitoring.prometheus}/consoles/orchestrator.html"
    console = until(
        lambda: (text := text_of(address)) and "<td>stuck</td>" in text and text, 20, "the console"
    )
    file = monitoring.folder / "console.html"
    file.write_text(console, encoding="utf-8")
    screenshot(file.as_uri(), monitoring.folder / PICTURES[1], 1000, 1000, monitoring.folder)
    if pictures := os.environ.get("ORCHESTRATOR_PICTURES"):
        for name in PICTURES:
            shutil.copy(monitoring.folder / name, Path(pictures) / name)


def test_every_critical_alert_reaches_whoever_is_paged(seen: tuple[Story, Monitoring]) -> None:
    _, monitoring = seen
    critical = {alert.full_name for alert in ALERTS if alert.severity is Severity.CRITICAL}
    assert critical - monitoring.webhook.names("firing", "page") == set()


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
    _, monitoring = seen
    resolved = {name.removeprefix("Orchestrator") for name in monitoring.webhook.names("resolved")}
    assert {"LLMErrorRatioHigh", "ToolErrorRatioHigh", "GuardErrors", "JournalWritesFailing"} <= resolved


def test_every_panel_has_data(seen: tuple[Story, Monitoring]) -> None:
    story, monitoring = seen
    assert story.window is not None
    source = Prometheus(monitoring.prometheus)
    empty = []
    for dashboard in dashboards([LLM_LOOP]):
        for panel in dashboard.panels:
            queries = () if panel.kind is Kind.TEXT or panel.title in EMPTY else panel.queries
            for query in queries:
                lines = source.range(story.window.expression(query.whole), story.window)
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
