"""What the tests of the pages share: a registry with something on it, and ways to ask without a library's help."""

from __future__ import annotations

import gzip
import http.client
from collections.abc import Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from orchestrator.kernel.fact import RunStarted
from orchestrator.telemetry.live import LiveRun
from orchestrator.telemetry.metrics import Metrics
from tests.telemetry.loop import CANARY, LOOP

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - a test's
SAMPLE = "orchestrator_runs_started_total"


class Got(NamedTuple):
    """An answer, unpacked."""

    status: int
    headers: Mapping[str, str]
    text: str


def counted(runs: int = 3) -> CollectorRegistry:
    """A registry on which so many runs began."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.declare(LOOP)
    for number in range(runs):
        metrics.observe(RunStarted("loop", f"r{number}", 0.0))
    return registry


def live_runs() -> list[LiveRun]:
    return [
        LiveRun("loop", "young", "think", 995.0, 990.0),
        LiveRun("loop", "old", "act", 700.0, 600.0),
        LiveRun("loop", "asks", "ask", 900.0, 800.0, "approval"),
    ]


def ask(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> Got:
    """Ask a server on this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return got(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()


def got(status: int, headers: Mapping[str, str], body: bytes) -> Got:
    lower = {name.lower(): value for name, value in headers.items()}
    if lower.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    return Got(status, lower, body.decode())


def bearer(token: str = TOKEN) -> dict[str, Any]:
    return {"Authorization": f"Bearer {token}"}


def hides_a_secret() -> str:
    """Hold a secret in a variable while somebody looks at the stack."""
    secret = CANARY
    return secret.upper()
