"""The agents of the live host: models that are functions and misbehave as models do, tools, and their crews."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from orchestrator import Agent, Limits, Runtime, SqliteJournal, tool
from orchestrator.errors import LLMError
from orchestrator.kernel.fact import Observer
from orchestrator.kernel.graph import Graph
from orchestrator.llm.message import Request, Usage
from orchestrator.llm.retry import RetryPolicy
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.providers.limiter import RateLimit, RateLimitedModel
from orchestrator.providers.price import price_table
from orchestrator.providers.scripted import call
from orchestrator.telemetry import TransitionLog
from orchestrator.telemetry.log import BoundedWriter
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing import FunctionLLM
from tests.dashboards.host_graphs import PATIENT, SIDE, STUCK

SPENDING = Usage(1200, 300, cached_input_tokens=400, reasoning_tokens=60)
BINGE = Usage(900, 200)
"""Of each of many turns."""
FOR_HOURS = "for hours"
"""The prompt of a run that has the fault of its model until a person ends it."""
PRICES = price_table({"steady": (1.0, 4.0)})
ENDLESS = Limits(max_iterations=0)
CONTEXT = 8000
"""Tokens that these models read at once."""


@tool(effect="pure")
async def search(query: str) -> str:
    """Look something up."""
    if "broken" in query:
        raise RuntimeError("the index is gone")
    return f"found {query}"


@tool(effect="irreversible", approval=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


async def _unbook(seat: int) -> None:
    """Give a seat back."""
    raise RuntimeError(f"nobody answers about seat {seat}")


@tool(effect="compensable", undo=_unbook)
async def book(seat: int) -> str:
    """Book a seat; the office takes its time."""
    await asyncio.sleep(3600)
    return f"seat {seat}"


# ---- models ----


def steady(request: Request) -> object:
    return call("search", query="moon") if request.messages[-1].role == "user" else "Two moons."


def fails(request: Request) -> object:
    raise LLMError("no answer", kind="server_error", status=500)


def fumbles(request: Request) -> object:
    turns = sum(message.role == "assistant" for message in request.messages)
    if turns >= 5:  # of all searches enough fail, also where the others come quickly
        return "I give up."
    return [call("search", query=f"broken {turns}"), call("no_such_tool", n=turns)]


def circles(request: Request) -> object:
    return call("search", query=f"moon {len(request.messages)}")


async def ponders(request: Request) -> object:
    await asyncio.sleep(3600 if request.messages[-1].text == FOR_HOURS else 7)
    return "At last."


def asks(request: Request) -> object:
    return call("pay", amount=1) if request.messages[-1].role == "user" else "Paid."


async def binges(request: Request) -> object:
    await asyncio.sleep(0.2)
    return circles(request)


def blocks(request: Request) -> object:
    """Answer by a library that knows no event loop, again and again."""
    time.sleep(0.8)
    return circles(request)


async def hangs(request: Request) -> object:
    await asyncio.sleep(3600)
    return "never"


async def deaf(request: Request) -> object:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


async def books(request: Request) -> object:
    return call("book", seat=7) if request.messages[-1].text == "book" else await hangs(request)


# ---- crews: one for each engine ----


class Crews:
    """Makes the agents of four engines. Everything an agent tells goes to one Metrics and one log."""

    def __init__(self, metrics: Metrics, log: TransitionLog) -> None:
        self._metrics = metrics
        self._observers: tuple[Observer, ...] = (metrics, log)

    def front(self, journal: SqliteJournal) -> dict[str, Agent]:
        """Who serves users; all of them share few slots."""
        patient = RetryPolicy(attempts=6, base=0.01, max_delay=0.02)
        few = Limits(max_iterations=2, max_input_tokens=2500)
        usual = Limits(max_iterations=10, max_input_tokens=100_000, max_seconds=300)
        return {
            "steady": self._agent("steady", steady, LLM_LOOP, journal, limits=usual),
            "llm": self._agent("llm", fails, LLM_LOOP, journal, retry=patient),
            "tools": self._agent("tools", fumbles, LLM_LOOP, journal),
            "limits": self._agent("limits", circles, LLM_LOOP, journal, limits=few),
            "slow": self._agent("slow", ponders, LLM_LOOP, journal),
            "tokens": self._agent("tokens", binges, LLM_LOOP, journal, limits=ENDLESS, usage=BINGE),
            "asking": self._agent("asking", asks, LLM_LOOP, journal),
            "telemetry": self._agent("telemetry", steady, LLM_LOOP, journal, observers=self._unheard()),
        }

    def standing(self, journal: SqliteJournal) -> dict[str, Agent]:
        """Those whose runs last as long as the process; taken up again when it starts."""
        brief = Limits(max_seconds=4, cancel_seconds=0)  # its model is not abandoned, so the run is stuck
        return {
            "stuck": self._agent("stuck", deaf, STUCK, journal, limits=brief),
            "patient": self._agent("patient", books, PATIENT, journal, tools=[book]),
        }

    def side(self, journal: SqliteJournal) -> dict[str, Agent]:
        """Those with a journal that somebody else writes to as well."""
        return {"side": self._agent("side", steady, SIDE, journal, tools=[search])}

    def alone(self, journal: SqliteJournal) -> dict[str, Agent]:
        """Those with a model that blocks the event loop."""
        return {"block": self._agent("block", blocks, SIDE, journal, limits=ENDLESS)}

    def _unheard(self) -> tuple[Observer, ...]:
        """Observers whose log goes to a disk that is full."""
        full = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115 - as long as the process
        return (self._metrics, TransitionLog(BoundedWriter(full)))

    def _agent(
        self,
        name: str,
        answer: Callable[[Request], Any],
        graph: Graph,
        journal: SqliteJournal,
        *,
        observers: Iterable[Observer] | None = None,
        usage: Usage = SPENDING,
        **options: Any,
    ) -> Agent:
        llm = FunctionLLM(answer, model=answer.__name__, usage=usage, latency=0.02)
        llm.context_window = CONTEXT  # type: ignore[attr-defined]
        options.setdefault("tools", [search, pay])
        options.setdefault("retry", RetryPolicy(attempts=3, base=0.01, max_delay=0.02))
        told = self._observers if observers is None else tuple(observers)
        limited = RateLimitedModel(
            llm, RateLimit(concurrency=64)
        )  # more than ask at once: what waits here are runs
        price = PRICES if name in {"steady", "tools"} else None  # that of `tools` is not in the table
        runtime = Runtime(journal=journal, observers=told, price=price)
        return Agent(limited, name=name, graph=graph, runtime=runtime, **options)
