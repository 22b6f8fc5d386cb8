"""The page of two runs side by side."""

from __future__ import annotations

import logging
import re

import pytest

from orchestrator import MemoryJournal, Runs
from orchestrator.providers.scripted import call
from tests.console.client import Answer, Client, readable
from tests.console.stored import ASKS, agent, fill, said

BOTH = "/compare?run=first&run=third"


def cells(answer: Answer) -> dict[str, list[str]]:
    """Return the table of numbers: name -> the texts of both runs."""
    rows = re.findall(r'<tr><th scope="row" class="rh">(.*?)</th>(.*?)</tr>', answer.text, re.DOTALL)
    return {
        name: [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in re.findall(r"<td>(.*?)</td>", row)]
        for name, row in rows
    }


async def test_two_runs_are_side_by_side_with_the_place_where_they_diverge(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    answer = await Client(readable(runs)).get(BOTH)
    found = cells(answer)
    assert found["status"] == ["Completed", "Over budget max iterations"]
    assert found["agent"] == ["support", "support"]
    assert found["turns"] == ["2", "1"]
    assert found["calls of look"] == ["1", "1"]
    assert found["input tokens"] == ["20", "10"]
    assert {"in await_llm", "in process_tools", "time"} <= found.keys()
    assert "4 transitions equal, then the runs diverge." in answer.text
    [row] = re.findall(r'<tr class="differs">(.*?)</tr>', answer.text, re.DOTALL)
    assert re.findall(r'<span class="sub">(\w+)</span>', row) == ["differs", "budget_ok", "budget_exceeded"]


@pytest.mark.parametrize(
    ("first", "second", "said_of_them"),
    [
        ("first", "second", "The outputs are equal."),
        ("first", "other", "The outputs differ."),
        ("first", ASKS, "Only one run has an output."),
        (ASKS, ASKS, "Neither run has an output."),
    ],
)
async def test_missing_outputs_are_not_called_equal(
    journal: MemoryJournal, runs: Runs, first: str, second: str, said_of_them: str
) -> None:
    await fill(journal)
    await agent(journal, said(text="Else."), name="other").run("Go.", run_id="other")
    page = (await Client(readable(runs)).get(f"/compare?run={first}&run={second}")).text
    verdict = page.split('id="verdict"')[1].split("</div>")[0]
    assert said_of_them in verdict


async def test_outputs_are_shown_on_request_and_each_view_is_logged(
    journal: MemoryJournal, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(journal)
    caplog.clear()
    client = Client(readable(runs))
    caplog.set_level(logging.INFO, "orchestrator.console")
    assert "Done." not in (await client.get(BOTH)).text
    assert caplog.messages == []
    assert '<pre tabindex="0">Done.</pre>' in (await client.get(f"{BOTH}&content=shown")).text
    assert "outputs of runs first and third were shown to" in caplog.text
    never = Client(readable(runs, content="never"))
    assert "Done." not in (await never.get(f"{BOTH}&content=shown")).text


async def test_equal_runs_and_a_run_that_has_not_ended_are_compared(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    same = await client.get("/compare?run=second&run=second")
    assert "All 4 transitions are equal." in same.text
    assert "The outputs are equal." in same.text
    open_run = await client.get(f"/compare?run=first&run={ASKS}")
    assert cells(open_run)["status"] == ["Completed", "Waiting for a person pay"]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", "Give the ids of two runs, or select two in the"),
        ("?run=first", "Give the ids of two runs"),
        (
            "?run=first&run=nobody",
            "no run &#39;nobody&#39; in this process",
        ),
        ("?run=first&run=second&run=third", "3 runs are selected. Two runs can be compared"),
        ("?run=%3Cscript%3E&run=first", "&lt;script&gt;"),
    ],
)
async def test_other_than_two_known_runs_are_one_sentence(
    journal: MemoryJournal, runs: Runs, query: str, text: str
) -> None:
    await fill(journal)
    answer = await Client(readable(runs)).get(f"/compare{query}")
    assert answer.status == 200
    assert text in answer.text
    assert "<script>" not in answer.text
    assert cells(answer) == {}


async def test_hostile_text_of_a_run_stays_text(journal: MemoryJournal, runs: Runs) -> None:
    hostile = "<img src=x onerror=alert(1)>\u202e\x07"
    for run_id in ("one", "two<b>"):
        await agent(journal, said(call("look")), said(text=hostile), name="x").run("Go.", run_id=run_id)
    answer = await Client(readable(runs)).get("/compare?run=one&run=two%3Cb%3E&content=shown")
    for text in ("<img", "two<b>", "\u202e", "\x07"):
        assert text not in answer.text
    assert "&lt;img" in answer.text


async def test_a_run_links_to_the_comparison_and_two_runs_are_chosen_in_the_table(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    assert 'href="/compare?run=first">with another run' in (await client.get("/runs/first")).text
    table = await client.get("/")
    assert '<form id="several" class="bulk" method="get" action="/compare"' in table.text
    assert table.text.count('type="checkbox" name="run"') == 4
    assert "/several" not in table.text, "a reader sees no action"
