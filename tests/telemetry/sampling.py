"""Read one sample of a registry."""

from __future__ import annotations

import re
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from orchestrator.telemetry.catalogue import PREFIX, ROWS
from orchestrator.telemetry.instrument import NO_AGENT


def of_agent(name: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels with the agent of runs that have none, for a metric with that label."""
    row = ROWS.get(name) or ROWS.get(re.sub(r"_(bucket|sum|count)$", "", name))
    return {"agent": NO_AGENT, **labels} if row is not None and "agent" in row.labels else dict(labels)


def sampled(registry: CollectorRegistry, name: str, /, **labels: str) -> float | None:
    """Return the value of a sample; without `agent` that of runs without an agent. `name` may lack the prefix."""
    short = name.removeprefix(PREFIX)
    return registry.get_sample_value(PREFIX + short, of_agent(short, labels))
