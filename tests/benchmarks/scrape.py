"""Series, bytes and processor time of a scrape, for 3, 32, 100 and 500 agents with three tools each.

    python -m tests.benchmarks.scrape

Each agent has series of its own: `Metrics(agents=…)`. The time is the least of several scrapes.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest

from orchestrator import Agent, tool
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing import FunctionLLM

AGENTS = (3, 32, 100, 500)
SCRAPES = 5


class Scrape(NamedTuple):
    """What a scrape costs."""

    series: int
    zero: int
    """Series that are 0."""
    bytes: int
    seconds: float
    """Of the processor."""


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
    times = []
    for _ in range(SCRAPES):
        began = time.process_time()
        page = generate_latest(metrics.registry)
        times.append(time.process_time() - began)
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    assert len(made) == agents
    return Scrape(len(lines), sum(line.endswith(" 0.0") for line in lines), len(page), min(times))


def main() -> None:
    empty = measured(0)
    print("| agents | series | of them 0 | for each agent | kB | ms |\n|---|---|---|---|---|---|")
    for agents in AGENTS:
        found = measured(agents)
        each = (found.series - empty.series) / agents
        size, took = f"{found.bytes / 1000:,.0f}", f"{found.seconds * 1000:.0f}"
        print(f"| {agents} | {found.series:,} | {found.zero:,} | {each:.0f} | {size} | {took} |")


if __name__ == "__main__":
    main()
