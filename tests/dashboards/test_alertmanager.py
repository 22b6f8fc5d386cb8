"""The Alertmanager example: who hears of what."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.ops.alert import ALERTS
from orchestrator.ops.rule import AlertSeverity
from tests.dashboards.monitoring import ROOT, Process, fetch, reachable, until
from tests.ports import free_port

pytestmark = pytest.mark.system("amtool", "promtool")

EXAMPLE = ROOT / "dashboards" / "alertmanager" / "example.yml"
RECEIVERS = {
    AlertSeverity.CRITICAL: "page",
    AlertSeverity.WARNING: "ticket",
    AlertSeverity.INFO: "null",
    AlertSeverity.NONE: "deadman",
}


def amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["amtool", *arguments], check=False, capture_output=True, text=True, timeout=60)


def test_the_example_is_valid() -> None:
    done = amtool("check-config", str(EXAMPLE))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("severity", RECEIVERS)
def test_an_alert_goes_where_its_severity_says(severity: AlertSeverity) -> None:
    name = next(alert.full_name for alert in ALERTS if alert.severity is severity)
    done = amtool(
        *(
            "config",
            "routes",
            "test",
            f"--config.file={EXAMPLE}",
            f"--verify.receivers={RECEIVERS[severity]}",
        ),
        *(f"alertname={name}", f"severity={severity.value}", "component=orchestrator"),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_scrape_example_is_valid() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", ROOT / "dashboards" / "prometheus" / "scrape-example.yml"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Alertmanager with the example."""
    folder, address = tmp_path_factory.mktemp("alertmanager"), f"127.0.0.1:{free_port()}"
    process = Process(
        "alertmanager",
        [
            "prometheus-alertmanager",
            f"--config.file={EXAMPLE}",
            f"--storage.path={folder / 'am'}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",
        ],
        folder,
    )
    process.start()
    try:
        until(lambda: reachable(f"http://{address}/-/ready"), 60, "Alertmanager")
        yield f"http://{address}/api/v2/alerts"
    finally:
        process.stop()


LLM, STORM = "OrchestratorLLMErrorRatioHigh", "OrchestratorRetryStorm"
WRITES, SLOW = "OrchestratorJournalWritesFailing", "OrchestratorJournalSlow"
SHARED, LOOP = "OrchestratorDuplicateInstance", "OrchestratorRecoveryLoop"
BURN, DOWN = "OrchestratorRunErrorBudgetBurn", "OrchestratorTargetDown"
INHIBITIONS: dict[str, tuple[dict[str, str], dict[str, str], bool]] = {
    "the retries of the agent whose model fails": (
        {"alertname": LLM, "agent": "a", "model": "m"},
        {"alertname": STORM, "agent": "a", "machine": "llm_loop", "operation": "llm"},
        True,
    ),
    "the retries of another agent": (
        {"alertname": LLM, "agent": "a", "model": "m"},
        {"alertname": STORM, "agent": "b", "machine": "llm_loop", "operation": "llm"},
        False,
    ),
    "the tools of the same agent": (
        {"alertname": LLM, "agent": "a", "model": "m"},
        {"alertname": STORM, "agent": "a", "machine": "llm_loop", "operation": "tool"},
        False,
    ),
    "slow writes of the process that cannot write": (
        {"alertname": WRITES, "instance": "a:1", "backend": "sqlite", "severity": "critical"},
        {"alertname": SLOW, "instance": "a:1", "backend": "sqlite"},
        True,
    ),
    "slow writes of another process": (
        {"alertname": WRITES, "instance": "a:1", "backend": "sqlite", "severity": "critical"},
        {"alertname": SLOW, "instance": "b:1", "backend": "sqlite"},
        False,
    ),
    "restarts under a label that two processes share": (
        {"alertname": SHARED, "instance": "a:1"},
        {"alertname": LOOP, "instance": "a:1", "agent": "a"},
        True,
    ),
    "the ticket of the agent that has the page": (
        {"alertname": BURN, "agent": "a", "machine": "llm_loop", "severity": "critical", "long": "1h"},
        {"alertname": BURN, "agent": "a", "machine": "llm_loop", "long": "3d"},
        True,
    ),
    "the ticket of another agent": (
        {"alertname": BURN, "agent": "a", "machine": "llm_loop", "severity": "critical", "long": "1h"},
        {"alertname": BURN, "agent": "b", "machine": "llm_loop", "long": "3d"},
        False,
    ),
    "an agent of the process that does not answer": (
        {"alertname": DOWN, "instance": "a:1", "severity": "critical"},
        {"alertname": "OrchestratorAbandonedWork", "instance": "a:1", "agent": "a"},
        True,
    ),
    "the same agent of another process": (
        {"alertname": DOWN, "instance": "a:1", "severity": "critical"},
        {"alertname": "OrchestratorAbandonedWork", "instance": "b:1", "agent": "a"},
        False,
    ),
    "restarts of another process": (
        {"alertname": SHARED, "instance": "a:1"},
        {"alertname": LOOP, "instance": "b:1", "agent": "a"},
        False,
    ),
}
"""Title -> the alert that explains, the other one, and whether it is suppressed."""


@pytest.mark.parametrize("title", INHIBITIONS)
def test_an_alert_suppresses_what_it_explains_and_nothing_else(alertmanager: str, title: str) -> None:
    source, target, suppressed = INHIBITIONS[title]
    posted = [_alert(source, title), _alert(target, title)]
    request = urllib.request.Request(  # noqa: S310 - our own, on loopback
        alertmanager, json.dumps(posted).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=10).close()  # noqa: S310

    def processed() -> dict[str, Any] | None:
        """Return the state of the target as soon as Alertmanager has decided."""
        found = [one for one in fetch(alertmanager) if one["labels"]["job"] == title]
        if len(found) < len(posted) or any(one["status"]["state"] == "unprocessed" for one in found):
            return None
        (wanted,) = [one for one in found if one["labels"] == posted[1]["labels"]]
        return dict(wanted)

    found = until(processed, 60, "both alerts")
    assert bool(found["status"]["inhibitedBy"]) is suppressed


def _alert(labels: dict[str, str], job: str) -> dict[str, Any]:
    """Return an alert of a job of its own, so that the cases do not meet."""
    now = dt.datetime.now(dt.UTC)
    whole = {"severity": "warning", "component": "orchestrator", "job": job, **labels}
    return {"labels": whole, "startsAt": now.isoformat(), "endsAt": (now + dt.timedelta(1)).isoformat()}
