"""Series, bytes and processor time of a scrape, for 3, 32, 100 and 500 agents with three tools each.

    python -m tests.benchmarks.scrape

Each agent has series of its own: `Metrics(agents=…)`. The time is the least of several scrapes by a Prometheus, in
OpenMetrics and compressed; beside it that of the encoder of prometheus_client alone, for the same series.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from orchestrator import Agent, tool
from orchestrator.telemetry.exposition.page import rendered
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing import FunctionLLM

AGENTS = (3, 32, 100, 500)
SCRAPES = 5
ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
"""Header of Prometheus 2.42."""


class Scrape(NamedTuple):
    """What a scrape costs."""

    series: int
    zero: int
    """Series that are 0."""
    bytes: int
    """Before compression."""
    seconds: float
    """Of the processor."""
    library_seconds: float


@tool(effect="pure")
async def search(text: str) -> str:
    """Search for a text."""
    return text


@tool(effect="pure")
async def read(page: int) -> str:
    """Read a page."""
    return str(page)


@tool(effect="irreversible", approval=True)
async def send(text: str) -> str:
    """Send a text."""
    return text


def measured(agents: int) -> Scrape:
    """Return the cost of a scrape of a process with so many agents, before their first run."""
    metrics = Metrics(CollectorRegistry(), agents=max(1, agents))
    made = [
        Agent(
            FunctionLLM(lambda _: "Yes.", model="m"),
            name=f"agent-{number}",
            tools=[search, read, send],
            observers=[metrics],
        )
        for number in range(agents)
    ]
    took = _least(lambda: rendered(metrics.registry, ACCEPT, "gzip"))
    encode, _ = choose_encoder(ACCEPT)
    library = _least(lambda: encode(metrics.registry))
    page = rendered(metrics.registry, ACCEPT).body
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    assert len(made) == agents
    return Scrape(len(lines), sum(line.endswith(" 0.0") for line in lines), len(page), took, library)


def _least(scrape: Callable[[], object]) -> float:
    times = []
    for _ in range(SCRAPES):
        began = time.process_time()
        scrape()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    empty = measured(0)
    print("| agents | series | of them 0 | for each agent | kB | ms | library, ms |")
    print("|---|---|---|---|---|---|---|")
    for agents in AGENTS:
        found = measured(agents)
        each = (found.series - empty.series) / agents
        took = f"{found.seconds * 1000:.0f} | {found.library_seconds * 1000:.0f}"
        size = f"{found.bytes / 1000:,.0f}"
        print(f"| {agents} | {found.series:,} | {found.zero:,} | {each:.0f} | {size} | {took} |")


if __name__ == "__main__":
    main()
