"""The page of a backtest: fields, filters, faults, reports, sweeps and bounds."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import Message

from orchestrator import Limits, MemoryJournal, Runs
from orchestrator.console import backtest_page
from orchestrator.providers.scripted import call
from orchestrator.runtime.backtest.comparison import compare
from tests.console.client import Answer, Client, readable
from tests.console.stored import agent, fill, said


def differences(answer: Answer) -> dict[str, list[str]]:
    """Return the table of runs with a difference: run -> change, effect, guard, turn."""
    rows = re.findall(r"<tr><td class=\"c-i\"><a.*?>(\S+?)</a></td>(.*?)</tr>", answer.text, re.DOTALL)
    return {
        run: [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)][1:5]
        for run, row in rows
    }


def faults(answer: Answer) -> dict[str, str]:
    """Return the sentences beside the fields."""
    found = re.findall(r'<p class="fault" id="f-(\w+)">(.*?)</p>', answer.text)
    described = re.findall(r'aria-invalid="true" aria-describedby="f-(\w+)"', answer.text)
    assert sorted(described) == sorted(name for name, _ in found)
    return dict(found)


async def test_limits_are_tested_on_the_runs_and_each_difference_leads_to_its_run(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    form = await client.get("/backtest")
    assert "Test on 4 runs" in form.text
    assert "evaluated" not in form.text
    answer = await client.get("/backtest?max_iterations=1")
    assert "4 runs evaluated" in answer.text
    assert differences(answer) == {"first": ["stops earlier", "harm", "iterations", "1"]}
    assert '<a class="id" href="/runs/first"' in answer.text
    assert "<svg" in answer.text.partition('aria-label="Benefit against harm"')[2]
    assert re.search(r'name="max_iterations" value="1"', answer.text)


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ("agent=sales", "1 run evaluated"),
        ("q=team%3Dops", "2 runs evaluated"),
        ("show=completed", "2 runs evaluated"),
        ("reason=max_iterations", "1 run evaluated"),
        ("since=1h", "4 runs evaluated"),
        ("since=nonsense", "4 runs evaluated"),
        ("show=failed", "No run was evaluated."),
    ],
)
async def test_the_filters_are_those_of_the_page_of_runs(
    journal: MemoryJournal, runs: Runs, filters: str, count: str
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    assert count in (await client.get(f"/backtest?max_iterations=1&{filters}")).text
    assert 'href="/backtest?show=completed"' in (await client.get("/?show=completed")).text


@pytest.mark.parametrize(
    ("query", "name", "sentence"),
    [
        ("max_iterations=-1", "max_iterations", "it must be 0 (off) or more"),
        ("max_no_progress=many", "max_no_progress", "max_no_progress: Input should be a valid integer"),
        ("max_cost=1e999", "max_cost", "must be 0 (off) or at most"),
        ("tool_caps=%7B1", "tool_caps", "tool_caps is not JSON"),
        ("tool_caps=3", "tool_caps", "tool_caps"),
        ("on_unknown_cost=perhaps", "on_unknown_cost", "Input should be &#39;stop&#39; or &#39;ignore&#39;"),
        ("completion_retries=0", "completion_retries", "give 1 or more"),
        ("sweep=max_iterations", "sweep", "is not of the form NAME=A..B"),
        ("sweep=max_iterations%3D9..2", "sweep", "must go up, over at most 100 values"),
        ("sweep=max_turns%3D1..2", "sweep", "unknown limit &#39;max_turns&#39;"),
        ("sweep=%3Cb%3E%3D1..2", "sweep", "&lt;b&gt;"),
    ],
)
async def test_an_invalid_limit_is_one_sentence_beside_its_field_and_nothing_is_read(
    journal: MemoryJournal, runs: Runs, query: str, name: str, sentence: str
) -> None:
    await fill(journal)
    answer = await Client(readable(runs)).get(f"/backtest?{query}")
    assert answer.status == 200
    [found] = faults(answer).items()
    assert found[0] == name
    assert sentence in found[1]
    assert "evaluated" not in answer.text


async def test_runs_of_another_machine_and_unreadable_ones_are_named(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    other = await client.get("/backtest?max_iterations=1&machine=pipeline")
    assert "a backtest evaluates runs of llm_loop, not of &#39;pipeline&#39;" in other.text
    agents = agent(journal, said(call("look")), said(text="Done."), limits=Limits(max_no_progress=0))
    await agents.run("Go.", run_id="without")
    left = await client.get("/backtest?max_no_progress=2")
    assert "4 runs evaluated" in left.text
    assert "1 run left out" in left.text
    [reason] = re.findall(r"<li>Left out: 1 run \((.*?)\): (.*?)</li>", left.text)
    assert "/runs/without" in reason[0]
    assert "recorded with max_no_progress 0" in reason[1]


async def test_a_sweep_has_a_row_for_each_value_that_leads_to_its_report(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    answer = await client.get("/backtest?sweep=max_iterations%3D1..3&agent=support")
    links = re.findall(r'<a class="link" href="(/backtest\?[^"]*)">(\d)</a>', answer.text)
    assert [value for _, value in links] == ["1", "2", "3"]
    assert "max_iterations=1..3" in answer.text
    one = await client.get(links[0][0].replace("&amp;", "&"))
    assert differences(one) == {"first": ["stops earlier", "harm", "iterations", "1"]}
    assert 'name="sweep" value=""' in one.text


async def test_a_bound_stops_a_backtest_and_the_page_says_so(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(journal)
    monkeypatch.setattr(backtest_page, "MOST_RUNS", 2)
    answer = await Client(readable(runs)).get("/backtest?max_iterations=1")
    assert "Test on the newest 2 of 4 runs" in answer.text
    assert "2 runs evaluated" in answer.text
    assert "the bound of 2 runs was reached, so older runs were not read" in answer.text


async def test_a_page_of_another_site_starts_no_backtest(journal: MemoryJournal, runs: Runs) -> None:
    await fill(journal)
    client = Client(readable(runs))
    answer = await client.get("/backtest?max_iterations=1", sec_fetch_site="cross-site")
    assert "evaluated" not in answer.text
    assert 'name="max_iterations" value="1"' in answer.text


@dataclass(slots=True)
class LeavingClient(Client):
    """A browser that leaves when it is told to."""

    leaves: asyncio.Event = field(default_factory=asyncio.Event)

    async def left(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}


async def test_a_backtest_ends_when_the_browser_leaves_and_others_are_answered_meanwhile(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        await agent(journal, said(call("look")), said(text="Done.")).run("Go.", run_id=f"run-{number}")
    at_work, go_on = threading.Event(), threading.Event()
    evaluated: list[str] = []

    def slow(trace: Any, *arguments: Any) -> Any:
        evaluated.append(trace.run_id)
        at_work.set()
        assert go_on.wait(60)
        return compare(trace, *arguments)

    monkeypatch.setattr("orchestrator.runtime.backtest.backtest.compare", slow)
    app = readable(runs)
    leaving = LeavingClient(app)
    asked = asyncio.create_task(leaving.get("/backtest?max_iterations=1"))
    await asyncio.to_thread(at_work.wait, 60)
    assert (await Client(app).get("/")).status == 200
    second = asyncio.create_task(Client(app).get("/backtest?max_iterations=1"))
    leaving.leaves.set()
    assert (await asked).status == 499
    go_on.set()
    assert "4 runs evaluated" in (await second).text, "the next one starts after it"
    assert evaluated == ["run-3", "run-3", "run-2", "run-1", "run-0"]
