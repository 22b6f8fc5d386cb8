"""What an operator sees of a run of a team: one conversation, its segments, its graph and its timeline."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Agent, MemoryJournal, Runs, tool
from orchestrator.cli.shipped import SHIPPED
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.providers.scripted import call
from orchestrator.testing import ScriptedLLM
from tests.cli.recorded import JOURNAL
from tests.console.client import Client, readable

Cli = Callable[..., Any]
AT = ("--journal", JOURNAL)
SAID = ["pay me", "", "order 7", "billing takes over the conversation", "", "order 7", "paid"]


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "order 7"


async def handed_over(journal: Journal) -> Agent[Any, Any]:
    """Run `paid-run`, in which triage looks and hands over, and billing looks and answers."""
    billing = Agent(ScriptedLLM([call("look"), "paid"]), name="billing", tools=[look], observers=())
    handing = [[call("look"), call("transfer_to_billing")]]
    triage: Agent[Any, Any] = Agent(
        ScriptedLLM(handing), name="triage", tools=[look], handoffs=[billing], journal=journal, observers=()
    )
    await triage.run("pay me", run_id="paid-run")
    return triage


@pytest.fixture
def recorded(folder: Path) -> None:
    async def record() -> None:
        async with SqliteJournal(folder / JOURNAL) as journal:
            await handed_over(journal)

    asyncio.run(record())


@pytest.mark.usefixtures("recorded")
def test_a_run_of_a_team_lists_its_segments_with_the_agents_that_took_over(cli: Cli) -> None:
    done = cli("runs", "show", "paid-run", *AT)
    path = done.out.partition("path (4 transitions)\n")[2].partition("\n")[0]
    assert re.sub(r" \d\S* s\b", "", path) == "  init → working → handing_over → working → finalize"
    assert done.out.partition("sub-agents\n")[2].startswith(
        "  ├─ paid-run:s1  llm_loop  ended (handed_over)\n  └─ paid-run:s2  llm_loop  billing  ended\n"
    )
    children = json.loads(cli("runs", "show", "paid-run", "--json", *AT).out)["children"]
    assert [(one["run_id"], one["agent"]) for one in children] == [
        ("paid-run:s1", "triage"),
        ("paid-run:s2", "billing"),
    ]


@pytest.mark.usefixtures("recorded")
def test_the_graph_and_the_timeline_of_a_run_of_a_team_are_drawn(cli: Cli, folder: Path) -> None:
    assert "handing_over --> working: take_over" in cli("graph", "team").out
    assert cli("graph", "call").code == 0
    assert cli("graph", "team", "--run", "paid-run", "-o", "path.svg", *AT).code == 0
    drawn = (folder / "path.svg").read_text()
    assert "<title>working: hand_over → handing_over" in drawn
    assert cli("runs", "show", "paid-run", "--timeline", "time.svg", *AT).code == 0
    titles = re.findall("<title>([^<,]*)", (folder / "time.svg").read_text())
    assert [title for title in titles if title.startswith("s")] == ["s1", "s2 billing"]


@pytest.mark.usefixtures("recorded")
def test_the_export_of_a_team_is_one_conversation_and_a_segment_is_forked(cli: Cli) -> None:
    exported = json.loads(cli("runs", "export", "paid-run", "--content", *AT).out)
    assert [message["content"] or "" for message in exported["messages"]] == SAID
    segment = json.loads(cli("runs", "export", "paid-run:s2", "--content", *AT).out)
    assert [message["content"] or "" for message in segment["messages"]] == SAID, "it began with all of it"
    refused = cli("runs", "fork", "paid-run", *AT)
    assert refused.code != 0
    assert "fork one of its child runs of llm_loop" in refused.err


async def test_the_page_of_a_team_has_its_graph_its_conversation_and_its_segments() -> None:
    journal = MemoryJournal()
    await handed_over(journal)
    client = Client(readable(Runs(journal), graphs=SHIPPED))
    text = (await client.get("/runs/paid-run")).text
    assert "<title>handing_over: take_over → working" in text, "its graph is known"
    tree, _, transcript = (
        re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", part))
        for part in text.partition('id="tree"')[2].partition("Transcript")
    )
    assert "Completed paid-run triage finalize" in tree
    assert "Completed s1 triage segment, finalize" in tree
    assert "Completed s2 billing segment, finalize" in tree
    assert "transfer_to_billing" in transcript
    assert transcript.count("look") == 4, "two calls and two results: both segments joined"


async def test_the_library_joins_the_segments_too() -> None:
    journal = MemoryJournal()
    await handed_over(journal)
    runs = Runs(journal)
    result = await runs.result("paid-run")
    assert [message.text for message in result.messages] == SAID
    story = await runs.story(await runs.head("paid-run"))
    assert [str(entry.message["content"] or "") for entry in story.conversation] == SAID
    timeline = await runs.timeline("paid-run")
    children = [span for span in timeline.spans if span.lane == "Child run"]
    assert [(span.name, span.note) for span in children] == [("s1", "completed"), ("s2 billing", "completed")]
    first, second = children
    assert first.end is not None
    assert first.end <= second.start
