"""The currency of costs: recorded once for each run, and never mixed with another one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, MemoryJournal, Runs, SqliteJournal
from orchestrator.errors import ConfigError
from orchestrator.journal.redacted import parted
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import Usage
from orchestrator.llm.port import common_currency
from orchestrator.providers import Fallback, price_table
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.ralph import CodingAgent, Ralph
from orchestrator.runtime.backtest.backtest import backtest
from orchestrator.runtime.backtest.policy import Policy
from orchestrator.runtime.evaluation.report import CaseUsage
from orchestrator.runtime.service.runtime import Runtime
from orchestrator_guards.money import amounts
from tests.console.stored import Parking, pay

MODEL = "gpt-main"


def prices(currency: str) -> Any:
    return price_table({MODEL: (2.0, 8.0)}, currency=currency)


def unnamed(_: str | None, tokens: Mapping[str, int]) -> float:
    return tokens["output_tokens"] / 1e6


def agent(journal: Any, price: Any, *script: Any, **options: Any) -> Agent[Any, Any]:
    runtime = Runtime(journal=journal, price=price, observers=options.pop("observers", ()))
    return Agent(ScriptedLLM(list(script), model=MODEL), runtime=runtime, **options)


async def currency_of(journal: Any, run_id: str) -> tuple[str, bool]:
    """Return the currency of a run, and whether its cost is known."""
    head = await journal.head(run_id)
    return head.currency, head.cost_micros is not None


async def test_a_run_records_the_currency_of_its_prices_once() -> None:
    journal = MemoryJournal()
    await agent(journal, prices("EUR"), call("look"), "Done.", tools=[], name="euros").run("?", run_id="eur")
    await agent(journal, unnamed, "Done.", name="unnamed").run("?", run_id="unnamed")
    await agent(journal, None, "Done.", name="free").run("?", run_id="free")
    named = [record.kind for record in await journal.load("eur") if "currency" in record.body]
    assert named == ["created"]
    assert await currency_of(journal, "eur") == ("EUR", True)
    assert await currency_of(journal, "unnamed") == ("", True)
    assert await currency_of(journal, "free") == ("", False)
    [created] = [one for one in await journal.load("eur") if one.kind == "created"]
    assert parted("created", created.body).shown["currency"] == "EUR", "it is no content"


async def test_the_statistics_of_an_agent_have_an_amount_for_each_currency() -> None:
    journal = MemoryJournal()
    for number, price in enumerate((prices("EUR"), prices("EUR"), prices("USD"), unnamed)):
        await agent(journal, price, "Done.", name="support", version=str(number)).run("?")
    [found] = await Runs(journal).agents()
    assert [(one.currency, one.runs) for one in found.costs] == [("", 1), ("EUR", 2), ("USD", 1)]
    assert found.costs[1].micros == 2 * found.costs[2].micros


@pytest.mark.parametrize("other", [prices("USD"), unnamed])
def test_an_agent_whose_tools_are_agents_with_prices_in_another_currency_is_refused(other: Any) -> None:
    helper = agent(None, other, name="helper")
    with pytest.raises(ConfigError, match=r"several currencies \(.*EUR.*\).*give every agent prices in one"):
        agent(None, prices("EUR"), name="lead", tools=[helper.as_tool("ask_helper", "Ask it.")])
    lead = agent(None, prices("EUR"), name="lead")
    with pytest.raises(ConfigError, match="several currencies"):
        lead.replace(tools=[helper.as_tool("ask_helper", "Ask it.")])
    with pytest.raises(ConfigError, match="several currencies"):
        agent(None, prices("EUR"), name="lead", handoffs=[helper])
    agent(None, None, name="lead", tools=[helper.as_tool("ask_helper", "Ask it.")])


async def test_a_child_run_in_another_currency_is_refused_when_it_starts() -> None:
    journal = MemoryJournal()
    helper = agent(None, prices("USD"), "Helped.", name="helper")
    lead = agent(journal, prices("EUR"), name="lead")
    parent = agent(journal, prices("EUR"), name="lead")._service.new_run("above", None, None, {})
    with pytest.raises(
        ConfigError, match=r"run 'above' counts its cost in EUR, and the prices of agent 'helper'"
    ):
        await helper._service.drive_child(parent, "below", asyncio.Future, lambda _: None)
    assert (lead._service.currency, helper._service.currency) == ("EUR", "USD")
    assert [head.run_id async for head in journal.runs()] == []


async def left_waiting(journal: Any, price: Any) -> None:
    """Leave a run that waits for a person, without a process."""
    parking = Parking()
    asking = agent(journal, price, call("pay", amount=7), name="support", tools=[pay], observers=[parking])
    going = asyncio.create_task(asking.run("Pay it.", run_id="r1"))
    await parking.parked.wait()
    going.cancel()
    await asyncio.wait((going,))


@pytest.mark.parametrize(
    ("made", "here", "fault"),
    [
        (prices("EUR"), prices("USD"), "in EUR, and the prices of agent 'support' are in USD"),
        (prices("EUR"), unnamed, "are in a currency without a name"),
        (prices("EUR"), prices("EUR"), ""),
        (prices("EUR"), None, ""),
        (unnamed, prices("USD"), ""),
        (None, prices("USD"), ""),
    ],
)
async def test_a_run_is_not_resumed_with_prices_in_another_currency(
    tmp_path: Path, made: Any, here: Any, fault: str
) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        await left_waiting(journal, made)
        before = await currency_of(journal, "r1")
        records = len(await journal.load("r1"))
        heir = agent(journal, here, "Paid.", name="support", tools=[pay])
        await heir.approve("r1", (await heir.pending("r1"))[0].key)
        [listed] = await heir.hosting.open_runs()
        assert listed.unattended == (not fault)
        if fault:
            assert fault in listed.will
            with pytest.raises(ConfigError, match=fault):
                await heir.resume("r1")
            assert len(await journal.load("r1")) == records, "it is not claimed"
        else:
            assert (await heir.resume("r1")).outcome is Outcome.COMPLETED
            assert (await currency_of(journal, "r1"))[0] == before[0], (
                "what was spent before stays what it was"
            )


async def test_a_variant_keeps_the_currency_of_its_prices() -> None:
    journal = MemoryJournal()
    first = agent(journal, prices("EUR"), "Done.", name="support")
    await first.replace(name="other", limits=None).run("?", run_id="variant")
    assert await currency_of(journal, "variant") == ("EUR", True)


def test_a_model_that_reports_its_cost_names_the_currency() -> None:
    class Reporting(ScriptedLLM):
        currency = "USD"

    model = Reporting(["Done."], model=MODEL)
    assert Agent(model, name="a")._service.currency == "USD"
    assert Fallback([model, ScriptedLLM([], model="other")]).currency == "USD"
    with pytest.raises(ConfigError, match=r"several currencies \(EUR, USD\)"):
        Agent(model, name="a", runtime=Runtime(price=prices("EUR")))
    assert common_currency([None, unnamed]) == "_unknown"


def test_coding_agents_report_us_dollars() -> None:
    coder = CodingAgent("claude")
    assert Ralph(coder, coder, coder)._service.currency == "USD"
    with pytest.raises(ConfigError, match=r"several currencies \(EUR, USD\)"):
        Ralph(coder, coder, coder, runtime=Runtime(price=prices("EUR")))


# ---- sums ----


def test_the_usage_of_cases_in_two_currencies_has_no_cost() -> None:
    euro, dollar = (CaseUsage(requests=1, cost_micros=5, currency=name) for name in ("EUR", "USD"))
    both = CaseUsage.sum([euro, euro, CaseUsage(requests=1)])
    assert (both.requests, both.cost_micros, both.currency) == (3, 10, "EUR")
    mixed = CaseUsage.sum([euro, dollar])
    assert (mixed.requests, mixed.cost_micros, mixed.currency) == (2, None, "")


async def test_a_backtest_counts_what_is_saved_in_each_currency() -> None:
    journal = MemoryJournal()
    for name, price in (("e", prices("EUR")), ("d", prices("USD"))):
        script = [call("look", n=1), call("look", n=2), "Done."]
        await agent(journal, price, *script, name=name).run("?")
    report = await backtest(Runs(journal), Policy(limits={"max_iterations": 1}))
    saved = report.stops["harm"].saved.costs
    assert sorted(saved) == ["EUR", "USD"]
    assert saved["EUR"] == saved["USD"] > 0
    assert amounts(saved).count("EUR + ") == 1
    assert sorted(report.stops["harm"].as_json()["costs"]) == ["EUR", "USD"]


async def test_two_runs_are_compared_with_the_currency_of_each() -> None:
    journal = MemoryJournal()
    await agent(journal, prices("EUR"), "Done.", name="e").run("?", run_id="e")
    await agent(journal, unnamed, "Done.", name="d").run("?", run_id="d")
    pair = await Runs(journal).compare("e", "d")
    [cost] = [row for row in pair.rows() if row.name == "cost"]
    assert cost.currencies == ("EUR", "")
    assert Usage(1, 1, cost=0.5).cost == 0.5
