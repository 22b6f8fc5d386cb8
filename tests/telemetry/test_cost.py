"""What requests cost, in metrics: whole numbers, each request once, one currency; and agents by version."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator import Agent, Limits, MemoryJournal, Runtime, tool
from orchestrator.errors import ConfigError
from orchestrator.kernel.fact import LLMCall, RunStarted
from orchestrator.llm.message import Request, Response, Usage
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from orchestrator.providers.price import price_table
from orchestrator.providers.scripted import FunctionLLM, call
from orchestrator.telemetry.metrics import Metrics
from tests.dashboards.monitoring import until
from tests.telemetry.sampling import sampled

PRICE = price_table({"m": (2.0, 8.0)}, currency="EUR")
MICROS = 2 * 100 + 8 * 10
"""Of a request with 100 tokens in and 10 out."""
RUN = {"machine": "llm_loop", "agent": "support", "provider": "scripted", "model": "m"}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def agent(metrics: Metrics, answer: Callable[[Request], Any] = lambda _: "Done.", **options: Any) -> Agent:
    model = FunctionLLM(answer, model=options.pop("model", "m"), usage=options.pop("usage", Usage(100, 10)))
    runtime = Runtime(
        price=options.pop("price", PRICE), observers=[metrics], journal=options.pop("journal", None)
    )
    return Agent(model, **{"name": "support", "runtime": runtime, **options})


def summed(metrics: Metrics, name: str, **labels: str) -> float:
    """Return the sum of a metric over all other labels."""
    return sum(
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"orchestrator_{name}" and labels.items() <= sample.labels.items()
    )


def cost(metrics: Metrics, **labels: str) -> float:
    return summed(metrics, "llm_cost_micros_total", **labels)


def labels_of(metrics: Metrics, name: str) -> list[dict[str, str]]:
    found = (sample for family in metrics.registry.collect() for sample in family.samples)
    return [dict(sample.labels) for sample in found if sample.name == f"orchestrator_{name}"]


def test_the_series_of_an_agent_with_prices_exist_at_0_and_those_of_others_do_not(metrics: Metrics) -> None:
    agent(metrics)
    agent(metrics, name="free", price=None)
    assert {one["agent"] for one in labels_of(metrics, "llm_cost_micros_total")} == {"support"}
    assert {one["agent"] for one in labels_of(metrics, "llm_requests_unpriced_total")} == {"support"}
    assert cost(metrics) == 0
    assert labels_of(metrics, "llm_currency_info") == [
        {"machine": "llm_loop", "agent": "support", "currency": "EUR"}
    ]


async def test_each_request_costs_a_whole_number_once_and_a_child_run_counts_for_its_own_agent(
    metrics: Metrics,
) -> None:
    child = agent(metrics, name="helper")

    def asks(request: Request) -> object:
        return call("helper", task="help") if request.messages[-1].role == "user" else "Done."

    parent = agent(metrics, asks, tools=[child.as_tool("helper", "Help.")])
    result = await parent.run("go")
    assert cost(metrics, agent="support") == 2 * MICROS
    assert cost(metrics, agent="helper") == MICROS
    assert result.usage.cost_micros == cost(metrics) == 3 * MICROS


def test_a_thousand_fractions_of_a_cent_add_up_exactly(metrics: Metrics) -> None:
    metrics.declare(LLM_LOOP, model="m", agent="support", currency="EUR")
    metrics.observe(RunStarted("llm_loop", "r", 0.0, agent="support"))
    for _ in range(1000):
        metrics.observe(LLMCall("llm_loop", "r", "await_llm", 1, "m", "ok", 1.0, 1, 1, cost=0.000001))
    assert cost(metrics) == 1000


async def test_a_request_that_timed_out_counts_its_least_cost_once(metrics: Metrics) -> None:
    async def hangs(request: Request) -> object:
        return await asyncio.Event().wait()

    stuck = agent(metrics, hangs, limits=Limits(max_seconds=0.2))
    result = await stuck.run("Tell me something long. " * 50)
    assert result.usage.cost_micros
    assert cost(metrics) == result.usage.cost_micros


@pytest.mark.parametrize("crashes", [1, 3])
async def test_each_answer_that_a_crash_lost_counts_its_charge_once(metrics: Metrics, crashes: int) -> None:
    asked, ends = asyncio.Event(), False

    async def answers(request: Request) -> object:
        asked.set()
        return "Done." if ends else await asyncio.Event().wait()

    journal = MemoryJournal()
    for life in range(crashes):
        asked.clear()
        one = agent(metrics, answers, journal=journal)
        work = asyncio.create_task(one.resume("r") if life else one.run("go", run_id="r"))
        await asked.wait()
        work.cancel()
        await asyncio.wait((work,))
    ends = True
    result = await agent(metrics, answers, journal=journal).resume("r")
    assert result.usage.estimated_cost_micros
    assert cost(metrics, agent="support", model="m") == cost(metrics) == result.usage.cost_micros


async def test_an_answer_that_a_child_run_lost_counts_for_its_agent_and_not_for_its_parent(
    metrics: Metrics,
) -> None:
    asked, ends, journal = asyncio.Event(), False, MemoryJournal()

    async def answers(request: Request) -> object:
        asked.set()
        return "Done." if ends else await asyncio.Event().wait()

    def asks(request: Request) -> object:
        return call("helper", task="help") if request.messages[-1].role == "user" else "Done."

    def parent() -> Agent:
        child = agent(metrics, answers, name="helper", journal=journal)
        return agent(metrics, asks, tools=[child.as_tool("helper", "Help.")], journal=journal)

    work = asyncio.create_task(parent().run("go", run_id="r"))
    await asked.wait()
    work.cancel()
    await asyncio.wait((work,))
    ends = True
    result = await parent().resume("r")
    assert result.usage.estimated_cost_micros
    assert cost(metrics, agent="helper") == MICROS + result.usage.estimated_cost_micros
    assert cost(metrics) == result.usage.cost_micros


async def test_an_answer_without_usage_counts_its_estimate_and_is_not_unpriced(metrics: Metrics) -> None:
    class Silent:
        model, provider = "m", "scripted"

        async def complete(self, request: Request) -> Response:
            return Response("Some text of the model.", usage=None)

    silent = Agent(Silent(), name="support", runtime=Runtime(price=PRICE, observers=[metrics]))
    result = await silent.run("go")
    assert result.usage.estimated_cost_micros
    assert cost(metrics) == result.usage.cost_micros
    assert summed(metrics, "llm_unreported_usage_total") == 1
    assert summed(metrics, "llm_requests_unpriced_total") == 0


async def test_an_answer_that_the_table_does_not_know_is_unpriced_if_there_is_a_table(
    metrics: Metrics,
) -> None:
    await agent(metrics, model="new").run("go")
    await agent(metrics, name="free", price=None).run("go")
    assert summed(metrics, "llm_requests_unpriced_total", agent="support", model="new") == 1
    assert summed(metrics, "llm_requests_unpriced_total") == 1
    assert cost(metrics) == 0


async def test_a_cost_that_the_provider_reports_counts_in_an_unknown_currency(metrics: Metrics) -> None:
    await agent(metrics, price=None, usage=Usage(1, 1, cost=0.25)).run("go")
    assert cost(metrics) == 250_000
    assert [one["currency"] for one in labels_of(metrics, "llm_currency_info")] == ["_unknown"]


@pytest.mark.parametrize("currency", ["", "US dollars", "E" * 13, 5])
def test_a_currency_has_a_short_name(currency: Any) -> None:
    with pytest.raises(ConfigError, match="currency is"):
        price_table({"m": (1.0, 1.0)}, currency=currency)


def test_a_ceiling_is_shown_for_its_agent_and_is_a_number_above_0() -> None:
    metrics = Metrics(CollectorRegistry(), cost_ceilings={"support": 2.5})
    assert sampled(metrics.registry, "cost_ceiling_per_hour", agent="support") == 2.5
    for wrong in (0, -1, float("nan"), True, "5"):
        with pytest.raises(ConfigError, match="the cost ceiling of agent 'support' is"):
            Metrics(CollectorRegistry(), cost_ceilings={"support": wrong})  # type: ignore[dict-item]


# ---- agents by version ----


def test_an_agent_has_one_row_with_its_version_and_the_fingerprint_of_its_graph(metrics: Metrics) -> None:
    agent(metrics, version="7")
    agent(metrics, name="plain")
    agent(metrics, name=None)
    short = LLM_LOOP.fingerprint[:12]
    assert labels_of(metrics, "agent_info") == [
        {"agent": "plain", "version": "_none", "definition": short},
        {"agent": "support", "version": "7", "definition": short},
    ]


def test_an_agent_with_two_versions_in_a_process_has_neither(metrics: Metrics) -> None:
    for version in ("1", "2"):
        metrics.declare(LLM_LOOP, agent="support", version=version)
    assert [one["version"] for one in labels_of(metrics, "agent_info")] == ["_several"]


def test_agents_beyond_the_cap_have_no_row(metrics: Metrics) -> None:
    for number in range(40):
        metrics.declare(LLM_LOOP, agent=f"agent-{number}", version="1")
    assert len(labels_of(metrics, "agent_info")) == 32


# ---- abandoned work ----


async def test_abandoned_calls_are_shown_by_tool_until_they_end(metrics: Metrics) -> None:
    release = threading.Event()

    @tool(effect="pure")
    def crawl(page: int) -> str:
        """Crawl a page."""
        release.wait(60)
        return str(page)

    def calls(request: Request) -> object:
        return call("crawl", page=1)

    limits = Limits(max_seconds=0.2, cancel_seconds=0.05)
    await agent(metrics, calls, tools=[crawl], limits=limits).run("go")
    where = {"machine": "llm_loop", "agent": "support", "kind": "tool", "name": "crawl"}
    assert sampled(metrics.registry, "abandoned_work", **where) == 1
    release.set()
    await asyncio.to_thread(
        until, lambda: sampled(metrics.registry, "abandoned_work", **where) is None, 30, "its end"
    )
