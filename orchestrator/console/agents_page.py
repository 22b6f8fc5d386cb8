"""The pages of agents: a list, and each agent with its versions side by side and its tools.

Counts, tokens, cost and durations are of all runs of a window, from their heads. Tools are in records: a task reads
those of the newest runs, and the page says how many it has read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from orchestrator.console.access import Actor
from orchestrator.console.feed import MOST
from orchestrator.console.machines_page import WINDOWS, tag_of
from orchestrator.console.pages import OUTCOMES, Console, PageFault, tag_condition
from orchestrator.drawing.stylesheet import STATUSES, StatusStyle
from orchestrator.kernel.journal import AgentStatistics
from orchestrator.runtime.runs.listing import MachineHistory, RunFilter, VisitTimes

_USUAL: Final = "7d"
_KEPT: Final = 16
"""Most answers that are kept."""


class AgentRow(NamedTuple):
    """An agent, or a version of it, in a table."""

    found: AgentStatistics

    @property
    def ended(self) -> int:
        """Its ended runs."""
        return sum(self.found.counts.outcomes.values())

    @property
    def completed(self) -> float | None:
        """Share of its ended runs that completed."""
        return self._share("completed")

    @property
    def failed(self) -> float | None:
        """Share of its ended runs that failed."""
        return self._share("failed")

    @property
    def tokens(self) -> float | None:
        """Tokens of a run, on average over those that count them."""
        return None if self.found.tokens is None else round(self.found.tokens / self.found.counted)

    @property
    def cost(self) -> dict[str, int]:
        """Cost of a run in each currency, on average over those whose price is known."""
        return {one.currency: round(one.micros / one.runs) for one in self.found.costs}

    @property
    def whole_cost(self) -> dict[str, int]:
        """Cost of all runs in each currency."""
        return {one.currency: one.micros for one in self.found.costs}

    @property
    def priced(self) -> int:
        """Runs with a known price."""
        return sum(one.runs for one in self.found.costs)

    @property
    def ends(self) -> list[tuple[StatusStyle, int, float, float]]:
        """Each outcome: its status, its runs, start and width of its part of a bar in percents."""
        rows, start = [], 0.0
        for outcome in OUTCOMES:
            if runs := self.found.counts.outcomes.get(outcome, 0):
                width = 100 * runs / self.ended
                rows.append((STATUSES[outcome], runs, start, width))
                start += width
        return rows

    def _share(self, outcome: str) -> float | None:
        return self.found.counts.outcomes.get(outcome, 0) / self.ended if self.ended else None


class ToolRow(NamedTuple):
    """A tool in the table."""

    name: str
    calls: int
    failed: float
    """Share of the calls that did not return."""
    p50: float
    p95: float


async def agents(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the list of agents."""
    span, tag = _window(request), tag_of(request)
    found = await _statistics(console, "", span, tag)
    rows = sorted(map(AgentRow, found), key=lambda row: (-row.found.counts.total, row.found.agent))
    return await console.page(
        request, actor, "agents", rows=rows, span=span, spans=WINDOWS, usual=_USUAL, tag=tag
    )


async def agent(console: Console, request: Request, actor: Actor) -> Response:
    """Answer with the page of one agent. Raises PageFault."""
    name = request.path_params["agent"]
    if name not in {agent for _, agent in await console.names()}:
        raise PageFault(404, "No run of this agent is in the journal.")
    span, tag = _window(request), tag_of(request)
    seconds = WINDOWS[span][1]
    # A page waits a little for the task that reads records: the heads are counted meanwhile.
    window, whole, versions = await asyncio.gather(
        console.reader("agent", name, tag).window(time.time() - seconds if seconds else None),
        _statistics(console, name, span, tag, by_version=False),
        _statistics(console, name, span, tag, by_version=True),
    )
    return await console.page(
        request,
        actor,
        "agent",
        agent=name,
        whole=AgentRow(whole[0]) if whole else None,
        versions=sorted(map(AgentRow, versions), key=lambda row: -row.found.first),
        window=window,
        tools=_tools(window.history),
        most=MOST,
        span=span,
        spans=WINDOWS,
        usual=_USUAL,
        tag=tag,
    )


def _window(request: Request) -> str:
    span = request.query_params.get("window", _USUAL)
    return span if span in WINDOWS else _USUAL


async def _statistics(
    console: Console, agent: str, span: str, tag: str, *, by_version: bool = False
) -> Sequence[AgentStatistics]:
    """Return the statistics of a window, those of the last look if the journal has not changed since."""
    key = (agent, span, tag, by_version)
    version = await console.runs.version()
    seen, kept = console.statistics.pop(key, ("", ()))
    if seen != version:
        conditions: RunFilter = {**tag_condition(tag), "agent": agent or None}
        if seconds := WINDOWS[span][1]:
            conditions["started_since"] = time.time() - seconds
        kept = await console.runs.agents(by_version=by_version, **conditions)
    while len(console.statistics) >= _KEPT:
        del console.statistics[next(iter(console.statistics))]
    console.statistics[key] = (version, kept)
    return kept


def _tools(history: MachineHistory) -> list[ToolRow]:
    rows = []
    for name, tool in history.tools.items():
        times = VisitTimes(tool.seconds)
        rows.append(
            ToolRow(name, tool.calls, tool.failed / tool.calls, times.percentile(0.5), times.percentile(0.95))
        )
    return sorted(rows, key=lambda row: (-row.calls, row.name))
