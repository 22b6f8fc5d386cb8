"""The pages of agents, and the tag filter that the page of machines shares with them."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from orchestrator import MemoryJournal, RetryPolicy, Runs, tool
from orchestrator.errors import LLMError
from orchestrator.providers.scripted import call
from tests.console.client import Client, readable
from tests.console.stored import agent, fill, said


@tool(effect="pure", errors="return")
async def look_up(part: str) -> str:
    """Look it up."""
    if part == "none":
        raise KeyError(part)
    return part


async def fill_agents(journal: Any) -> None:
    """Write runs of two versions of an agent, of which one failed, and one of another agent."""
    tools = {"tools": [look_up], "name": "parts"}
    old = agent(journal, said(call("look_up", part="a")), said(text="Done."), version="1", **tools)
    await old.run("Go.", run_id="old", tags={"team": "ops"})
    bad = said(call("look_up", part="none"))
    new = agent(journal, bad, said(text="Done."), version="2", **tools)
    await new.run("Go.", run_id="new")
    down = LLMError("down", kind="server_error", status=503)
    failing = agent(journal, down, version="2", retry=RetryPolicy(attempts=1), **tools)
    await failing.run("Go.", run_id="broken")
    await agent(journal, said(text="Done."), name="R+D.team").run("Go.", run_id="other")


def table(text: str) -> list[list[str]]:
    """Return the texts of the cells of each row of the page."""
    rows = re.findall(r'<tr><th scope="row" class="rh">(.*?)</tr>', text, re.DOTALL)
    return [
        [
            html.unescape(re.sub(r"<[^>]+>", "", cell)).strip()
            for cell in re.split(r"</t[hd]>", row)
            if cell.strip()
        ]
        for row in rows
    ]


async def test_the_list_has_each_agent_with_its_outcomes_and_averages(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill_agents(journal)
    client = Client(readable(runs))
    page = await client.get("/agents")
    rows = {row[0]: row for row in table(page.text)}
    assert list(rows) == ["parts", "R+D.team"]
    assert rows["parts"][1:7] == ["3", "", "67%", "33%", "15", "0.2000"]
    assert rows["R+D.team"][1:7] == ["1", "", "100%", "0%", "11", "0.1000"]
    assert 'href="/agents/R%2BD.team"' in page.text
    assert [row[0] for row in table((await client.get("/agents?tag=team%3Dops")).text)] == ["parts"]
    nothing = await client.get("/agents?tag=team%3Dsales&window=1h")
    assert "No agent has started a run with this tag" in nothing.text
    assert (await client.get("/agents?tag=ops")).status == 400


async def test_the_page_of_an_agent_has_its_versions_side_by_side_and_its_tools(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill_agents(journal)
    client = Client(readable(runs))
    page = await client.get("/agents/parts?window=all")
    newest, oldest, tools = table(page.text)
    assert (newest[:2], newest[3:5]) == (["2", "2"], ["50%", "50%"])
    assert (oldest[:2], oldest[3:5]) == (["1", "1"], ["100%", "0%"])
    assert tools[:3] == ["look_up", "2", "50%"]
    assert "of 3 runs" in page.text
    assert 'href="/?agent=parts&amp;show=failed"' in page.text
    [version, only] = table((await client.get("/agents/parts?tag=team%3Dops")).text)
    assert (version[:2], only[:3]) == (["1", "1"], ["look_up", "1", "0"])
    assert "R+D.team" in (await client.get("/agents/R+D.team")).text
    assert "No tool was called" in (await client.get("/agents/R+D.team")).text
    assert (await client.get("/agents/nobody")).status == 404


async def test_an_unchanged_journal_is_not_asked_again_and_a_changed_one_is(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_agents(journal)
    asked: list[bool] = []
    agents = journal.agents

    async def counted(*, by_version: bool = False, **conditions: Any) -> Any:
        asked.append(by_version)
        return await agents(by_version=by_version, **conditions)

    monkeypatch.setattr(journal, "agents", counted)
    client = Client(readable(runs))
    for _ in range(3):
        await client.get("/agents")
    assert asked == [False]
    await agent(journal, said(text="Done."), name="parts", version="3").run("Go.")
    assert table((await client.get("/agents")).text)[0][:2] == ["parts", "4"]
    assert asked == [False, False]
    for number in range(40):
        await client.get(f"/agents?tag=n%3D{number}")
        await client.get(f"/agents/parts?tag=n%3D{number}")
    text = (await client.get("/agents/parts")).text
    assert [row[0] for row in table(text)] == ["3", "2", "1", "look_up"]


async def test_the_page_of_machines_filters_by_a_tag(journal: MemoryJournal, runs: Runs) -> None:
    await fill(journal)
    client = Client(readable(runs))
    every = (await client.get("/machines?machine=llm_loop")).text
    assert "Covers 4 runs" in every
    tagged = (await client.get("/machines?machine=llm_loop&tag=team%3Dops&window=24h")).text
    assert "Covers 2 runs" in tagged
    assert 'value="team=ops"' in tagged
    assert "tag=team%3Dops" in re.findall(r'href="(/machines[^"]*)"', tagged)[1]
    assert (await client.get("/machines?machine=llm_loop&tag=%3D")).status == 400
