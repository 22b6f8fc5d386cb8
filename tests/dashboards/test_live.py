"""Every alert on a real path: application → Prometheus → rules → Alertmanager → webhook, many times as fast.

The waits are those of the rules: the longest is an hour. Divided by thirty (`make soak`, `make dashboards`) that is two
minutes, by fifty (`make test`) 72 seconds; nothing else differs.

Tables are printed: what fired, resolved and was inhibited; after what time the incidents that hide alerted; and for six
alerts the times from the fault to the run that was found with the runbook and stopped. The pictures are kept where
ORCHESTRATOR_PICTURES names a folder (`make dashboards`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.ops.alert import ALERTS, NAMES
from orchestrator.ops.pack import dashboards
from orchestrator.ops.panel import PanelKind
from orchestrator.ops.render import Prometheus
from orchestrator.ops.rule import AlertSeverity
from tests.crash.mount import mount, unmount
from tests.crash.test_full_disk import DISK, Disk
from tests.dashboards.hidden_host import SHOWN
from tests.dashboards.history import office_hours
from tests.dashboards.lint import fields_of, scraped_names
from tests.dashboards.monitoring import AgentHost, JournalWatch, Monitoring, running, until
from tests.dashboards.on_call import OnCall
from tests.dashboards.quiet_host import OFFICE
from tests.dashboards.story import Story, value
from tests.dashboards.telling import ENDS, EXPLAINED, PICTURES, WITHHELD, Hosts, calls, tell

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.system("prometheus", "prometheus-alertmanager", "chromium"),
]

NOT_SHOWN = dict.fromkeys(SHOWN, "test_live_hidden.py has its story") | {
    "OrchestratorTransitionOverheadHigh": "the kernel cannot be made slow without touching it",
}
"""Alerts that this run does not make fire, each with its reason; promtool's tests have them all."""
WATCHED = ("--alone", "--attempts", "*=1000", "--success-within", "patient=1000d")
"""Options of the process that watches a journal: all of its metrics exist, and its alerts do not fire."""
ELSEWHERE = "orchestrator_abandoned_work"
"""A metric of the other story: here no work is abandoned."""
OF_THE_MACHINE = {"TargetDown", "JournalSlow"}
"""Alerts that are true of every process on a machine with much to do: it misses scrapes, and its disk is slow."""
LARGEST = 100_000
"""Bytes of a picture that is committed."""


class Seen(NamedTuple):
    """The story, and with whom it was told."""

    story: Story
    monitoring: Monitoring
    on_call: OnCall
    hosts: Hosts


@pytest.fixture(scope="module")
def small_disk() -> Iterator[Disk | None]:
    """A disk that can be filled, None where nothing can be mounted."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "disk"
        made.mkdir()
        try:
            mount(made, "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs")
        except OSError:
            yield None
            return
        yield Disk(made)
        unmount(made)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, small_disk: Disk | None) -> Iterator[Seen]:
    """One story, told once: faults, recovery, crashes, silence."""
    folder = tmp_path_factory.mktemp("live")
    hosts = Hosts(
        AgentHost("sick", folder),
        AgentHost("dying", folder, "standing"),
        AgentHost("lost", folder, "standing"),
        AgentHost("calm", folder, "calm", program="quiet_host"),
        small_disk and AgentHost("disk", small_disk.folder, "disk", program="quiet_host"),
        JournalWatch("watch", folder, folder / "lost" / "standing.db", *WATCHED),
    )
    hosts.lost.start()
    past = office_hours(OFFICE)
    with running(folder, hosts.running(), [LLM_LOOP], [hosts.watch], past) as monitoring:
        story = Story()
        on_call = OnCall(monitoring.webhook, calls(folder, hosts.sick))
        try:
            until(
                lambda: 'state="process_tools"} 1.0' in hosts.lost.scrape(), 150, "the runs that will be lost"
            )
            hosts.lost.kill()
            hosts.watch.start()
            tell(story, monitoring, hosts, small_disk, on_call)
        finally:
            on_call.stop()
            hosts.lost.kill()
            seconds = time.time() - story.began
            for table in (story.table(monitoring), story.hidden_table(), on_call.table()):
                print(f"\n{table}")  # noqa: T201
            print(f"seconds: {seconds:.0f}, unseen: {story.missed}")  # noqa: T201
            for host in hosts.running():
                print(f"{host.name} said: {host.process.said()[-2000:]}")  # noqa: T201
        yield Seen(story, monitoring, on_call, hosts)


def test_every_critical_alert_reaches_whoever_is_paged(seen: Seen) -> None:
    _, monitoring, *_ = seen
    critical = {alert.full_name for alert in ALERTS if alert.severity is AlertSeverity.CRITICAL}
    assert (
        critical - SHOWN - monitoring.webhook.names("firing", "page") <= EXPLAINED
    )  # which may be said before what explains it


def test_every_alert_was_seen_to_fire_but_those_with_a_reason(seen: Seen) -> None:
    story, *_ = seen
    assert set(NAMES) - story.fired.keys() - NOT_SHOWN.keys() == set()


def test_alerts_that_another_one_explains_reach_nobody(seen: Seen) -> None:
    story, monitoring, *_ = seen
    assert story.inhibited.keys() >= EXPLAINED
    told = monitoring.webhook.names("firing") | WITHHELD | NOT_SHOWN.keys()
    assert set(NAMES) - told == set()
    assert "OrchestratorBudgetHeadroomLow" not in monitoring.webhook.names("firing")


def test_alerts_end_when_the_fault_ends(seen: Seen) -> None:
    story, monitoring, *_ = seen
    assert story.ended >= ENDS
    assert ENDS & monitoring.webhook.names("resolved")


def test_what_hides_alerts_by_itself(seen: Seen, absent: Callable[[str], NoReturn]) -> None:
    story, _, _, hosts = seen
    assert [one.title for one in story.hidden if one.subject not in story.subjects] == []
    assert value(story.figures["share of the rare agent"]) < 0.01
    if hosts.disk is None:
        absent("no disk can be mounted and filled")


def test_what_must_page_nobody_stays_silent(seen: Seen) -> None:
    story, _, _, hosts = seen
    calm = hosts.calm.instance
    stalls = {line.labels["instance"]: line.points[-1][1] for line in story.figures["stalls"]}
    assert stalls[calm] >= 1
    assert story.figures["unusual for a day"]
    silent = {one for one in story.calm if one.agent in {"big", "office"} or one.instance == calm}
    assert {one for one in silent if one.alert not in OF_THE_MACHINE} == set()


def test_the_runbooks_of_five_alerts_lead_to_the_guilty_run_and_stop_it(seen: Seen) -> None:
    _, _, on_call, _ = seen
    assert {call.alert for call in on_call.calls if call.began < call.received < call.found < call.stopped} == {
        "LLMLatencyHigh", "RunErrorBudgetBurn", "ApprovalWaiting", "EventLoopLagHigh", "RunAgingWithoutTimeout",
        "TokenBurnAnomaly",
    }  # fmt: skip


def test_every_panel_has_data(seen: Seen) -> None:
    story, monitoring, *_ = seen
    assert story.window is not None
    source, window = Prometheus(monitoring.prometheus), replace(story.window, step=4)
    empty = []
    for dashboard in dashboards([LLM_LOOP]):
        for panel in dashboard.panels:
            queries = () if panel.kind is PanelKind.TEXT else panel.queries
            for query in queries:
                if ELSEWHERE in query.whole:
                    continue
                lines = source.range(window.expression(query.whole), window)
                if not any(line.points for line in lines):
                    empty.append(f"{panel.title}: {query.expr}")
    assert empty == [], "\n".join(empty)


def test_every_metric_label_and_value_we_name_is_in_a_live_scrape(seen: Seen) -> None:
    story, *_ = seen
    live = scraped_names(story.scrape)
    absent = {
        f"{name}{{{label}}}"
        for name, labels in fields_of().items()
        for label in labels
        if name != ELSEWHERE and label not in live.get(name, ())
    }
    assert absent == set()


def test_the_page_and_the_console_show_what_fires(seen: Seen) -> None:
    _, monitoring, *_ = seen
    html = (monitoring.folder / "page.html").read_text()
    assert "OrchestratorRunStuck" in html
    assert html.count("<svg") > 40
    assert "OrchestratorRunStuck" in (monitoring.folder / "console.html").read_text()
    for name in PICTURES:
        picture = (monitoring.folder / name).read_bytes()
        assert picture.startswith(b"RIFF")
        assert len(picture) <= LARGEST
