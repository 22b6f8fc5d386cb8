"""The Alertmanager example: who hears of what."""

from __future__ import annotations

import subprocess

import pytest

from orchestrator.ops.alert import ALERTS
from orchestrator.ops.rule import AlertSeverity
from tests.dashboards.monitoring import ROOT

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
