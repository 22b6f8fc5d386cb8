"""The story of the live test: which faults come when, what a person on call does, and what must be seen in between."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from orchestrator.journal.sqlite.place import SIZE
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.ops.pack import dashboards
from orchestrator.ops.render import Prometheus, TimeWindow, page
from tests.crash.test_full_disk import Disk
from tests.dashboards.history import UNUSUAL
from tests.dashboards.monitoring import (
    AgentHost,
    JournalWatch,
    Monitoring,
    reachable,
    screenshot,
    text_of,
    until,
)
from tests.dashboards.on_call import Call, OnCall
from tests.dashboards.story import Hidden, Story, Subject

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
ENDS = {
    f"Orchestrator{name}"
    for name in ("LLMErrorRatioHigh", "ToolErrorRatioHigh", "GuardErrors", "JournalWritesFailing")
}
"""Alerts whose faults are taken away."""
EXPLAINED = {
    "OrchestratorRetryStorm",
    "OrchestratorRetriesExhausted",
    "OrchestratorJournalSlow",
    "OrchestratorMetricsAbsent",
}
"""Inhibited here: another alert says why."""
WITHHELD = EXPLAINED | {"OrchestratorBudgetHeadroomLow", "OrchestratorTransitionFailureRatioHigh"}
"""They may fire and reach nobody: for information only, or explained by another alert."""
PICTURES = ("rendered.webp", "console.webp")
PATIENCE = 150
"""Seconds for a group of alerts: a machine that has too much to do misses scrapes, and waits of rules begin anew."""


def calls(folder: Path, sick: AgentHost) -> tuple[Call, ...]:
    """Return the alerts that a person on call answers with the runbook."""
    calm = folder / "calm.db"
    front, alone, standing = (folder / "sick" / f"{name}.db" for name in ("front", "alone", "standing"))
    cancel, block = "runs cancel RUN", "operate block-model MODEL"
    patient = {"agent": "patient", "state": "await_llm", "instance": sick.instance}

    def since(line: str) -> Callable[[], float]:
        return lambda: sick.told[line]

    return (
        Call("LLMLatencyHigh", {"agent": "slow"}, front, "guilty-slow", cancel, since("on slow")),
        Call("RunErrorBudgetBurn", {"agent": "rare"}, calm, "", block, since("on stuck"), {"MODEL": "rare"}),
        Call(
            "ApprovalWaiting", {"agent": "asking"}, front, "guilty-asking", "runs approve", since("on stuck")
        ),
        Call(
            "EventLoopLagHigh", {"instance": sick.instance}, alone, "guilty-block", cancel, since("on block")
        ),
        Call("RunAgingWithoutTimeout", patient, standing, "think", cancel, since("on stuck")),
        Call("TokenBurnAnomaly", {"agent": "tokens"}, front, "guilty-tokens", cancel, since("on tokens")),
    )


HIDDEN = (
    Hidden(
        "an agent fails all of its runs at 0.9 % of the traffic", Subject("RunErrorBudgetBurn", "rare"), 60
    ),
    Hidden("one run a minute, and all fail", Subject("RunErrorBudgetBurn", "seldom"), 60),
    Hidden("one request a minute, and all fail", Subject("LLMErrorRatioHigh", "seldom"), 60),
    Hidden("a full disk refuses submissions", Subject("RunErrorBudgetBurn", "writer"), 60),
)


class Hosts(NamedTuple):
    """The processes that are watched."""

    sick: AgentHost
    dying: AgentHost
    lost: AgentHost
    calm: AgentHost
    disk: AgentHost | None
    """None where nothing can be mounted."""
    watch: JournalWatch

    def running(self) -> list[AgentHost]:
        """Return those that start at once."""
        return [host for host in (self.sick, self.dying, self.calm, self.disk) if host is not None]


def tell(story: Story, monitoring: Monitoring, hosts: Hosts, disk: Disk | None, on_call: OnCall) -> None:
    sick, dying = hosts.sick, hosts.dying

    def expect(*names: str) -> None:
        _expect(story, monitoring, set(names))

    def answered(alert: str) -> None:
        on_call.finish(alert, PATIENCE, lambda: story.look(monitoring))

    served = [f"http://{host.instance}/metrics" for host in hosts.running()]
    until(lambda: all(map(reachable, served)), PATIENCE, "the hosts serve")
    story.began = time.time()
    story.hidden = _hidden(story.began, disk)
    sick.tell("on stuck")
    for fault in FAULTS:
        sick.tell(f"on {fault}")
    on_call.start()
    expect("TelemetryDegraded")
    sick.tell("off telemetry")
    _crash_loop(story, monitoring, dying)
    hosts.calm.tell("on stall")
    expect("RecoveryLoop", "RollbackFailed", "RunStuck", "RunOverdue", "EngineStalled")
    expect(
        "RunErrorBudgetBurn", "TransitionFailureRatioHigh", "UndeclaredTransition", "GuardErrors", "RetryStorm",
        "RetriesExhausted", "LLMErrorRatioHigh", "ToolErrorRatioHigh", "UnregisteredToolCalls", "LLMLatencyHigh",
        "BudgetExceededHigh", "JournalWritesFailing", "JournalSlow", "TelemetryDegraded", "QueueSaturated",
        "QueueWaitHigh", "RunsOrphaned", "RunLatencyBudgetBurn",
    )  # fmt: skip
    source = Prometheus(monitoring.prometheus)
    story.figures["unusual for a day"] = until(
        lambda: source.instant(UNUSUAL, time.time()), PATIENCE, "a Monday that is unusual for a day"
    )
    story.scrape = "".join(text_of(f"http://127.0.0.1:{host.port}/metrics") for host in (sick, hosts.watch))
    for fault in FAULTS:
        if fault not in {"growth", "limits"}:
            sick.tell(f"off {fault}")
    answered("LLMLatencyHigh")
    sick.tell("on block")
    answered("EventLoopLagHigh")  # its run is ended by the command of the runbook
    sick.tell("on freeze")
    expect("EventLoopBlocked")
    sick.thaw()
    sick.tell("on tokens")
    expect("JournalGrowing", "BudgetHeadroomLow")
    _keep_pictures(monitoring, story)
    expect("RunAgingWithoutTimeout", "ApprovalWaiting", "TokenBurnAnomaly")
    until(lambda: story.look(monitoring).ended >= ENDS, PATIENCE, "the end of alerts")
    _see_what_hides(story, monitoring, disk)
    for call in on_call.calls:
        answered(call.alert)
    story.window, story.missed = _window(story), _missed(monitoring, sick)
    story.calm = frozenset(story.subjects)
    others: list[AgentHost | JournalWatch] = [hosts.watch, *hosts.running()]
    others.remove(sick)
    _go_silent(story, monitoring, sick, others)


def _expect(story: Story, monitoring: Monitoring, names: set[str]) -> None:
    """Wait until alerts have fired and have reached whom they are for: one that ends before reaches nobody."""

    def missing() -> set[str]:
        fired, told = story.look(monitoring).fired.keys(), monitoring.webhook.names("firing") | WITHHELD
        return names - {name.removeprefix("Orchestrator") for name in fired & told}

    try:
        until(lambda: not missing(), PATIENCE, "alerts")
    except AssertionError:
        raise AssertionError(f"did not fire or arrive within {PATIENCE:g} s: {sorted(missing())}") from None


def _hidden(began: float, disk: Disk | None) -> tuple[Hidden, ...]:
    """Return the incidents that hide, with their start; fill the disk."""
    found = [replace(one, began=began) for one in HIDDEN]
    if disk is None:
        return tuple(one for one in found if one.subject.agent != "writer")
    until(lambda: disk.reserve.exists() and disk.reserve.stat().st_size == SIZE, PATIENCE, "the reserve")
    disk.fill()
    return tuple(found)


def _see_what_hides(story: Story, monitoring: Monitoring, disk: Disk | None) -> None:
    """Wait for the alerts of what hides, free the disk, and ask for the figures of what must page nobody."""
    wanted = {one.subject for one in story.hidden}
    until(lambda: wanted <= story.look(monitoring).subjects.keys(), PATIENCE, "the hidden incidents")
    source = Prometheus(monitoring.prometheus)
    ended = "orchestrator_runs_completed_total"
    if disk is not None:
        disk.free()
        works = f'increase({ended}{{agent="writer", outcome="completed"}}[10s]) > 0'
        until(lambda: source.instant(works, time.time()), PATIENCE, "runs on the disk that has room again")
    for name, query in {
        "share of the rare agent": f'sum({ended}{{agent="rare"}}) / sum({ended}{{agent=~"big|rare"}})',
        "stalls": "sum by (instance) (orchestrator_event_loop_blocked_total)",
    }.items():
        story.figures[name] = source.instant(query, time.time())


def _go_silent(
    story: Story, monitoring: Monitoring, sick: AgentHost, others: Sequence[AgentHost | JournalWatch]
) -> None:
    """Kill everything that is scraped, and let one process come back."""
    silence = time.time()
    for host in (sick, *others):
        host.kill()

    def said(status: str) -> set[str]:
        return monitoring.webhook.names(status, "page", since=silence)

    def explained() -> bool:
        return "OrchestratorMetricsAbsent" in story.look(monitoring).inhibited

    until(
        lambda: "OrchestratorTargetDown" in said("firing"), PATIENCE, "the page about processes that are gone"
    )
    until(explained, PATIENCE, "MetricsAbsent, which the page explains")
    assert "OrchestratorMetricsAbsent" not in said("firing")
    sick.start()
    until(
        lambda: "OrchestratorMetricsAbsent" not in monitoring.firing(), PATIENCE, "the end of MetricsAbsent"
    )


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

        until(under_way, PATIENCE, f"life {life} is scraped")
        if life < 3:
            dying.kill()
            until(lambda: not source.instant(gone, time.time()), PATIENCE, "the scrape that fails")
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
    until(lambda: "OrchestratorRunStuck" in monitoring.firing(), PATIENCE, "the alert that the pictures show")
    html = monitoring.folder / "page.html"
    made = page(dashboards([LLM_LOOP]), Prometheus(monitoring.prometheus), _window(story))
    html.write_text(made, encoding="utf-8")
    screenshot(html.as_uri(), monitoring.folder / PICTURES[0], 1060, 720, monitoring.folder)
    address = f"{monitoring.prometheus}/consoles/orchestrator.html"
    console = until(
        lambda: "<td>stuck</td>" in (text := text_of(address)) and "OrchestratorRunStuck" in text and text,
        PATIENCE,
        "the console",
    )
    file = monitoring.folder / "console.html"
    file.write_text(console, encoding="utf-8")
    screenshot(file.as_uri(), monitoring.folder / PICTURES[1], 1000, 1000, monitoring.folder)
    if pictures := os.environ.get("ORCHESTRATOR_PICTURES"):
        for name in PICTURES:
            shutil.copy(monitoring.folder / name, Path(pictures) / name)
