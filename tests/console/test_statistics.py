"""What the pages of machines and health state: windows, verdicts, and graphs that are too large for a drawing."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

import pytest

from orchestrator import Edge, Graph, MemoryJournal, Runs
from orchestrator.console import feed
from orchestrator.console.feed import MachineReader
from orchestrator.console.run_page import Way, state_list
from orchestrator.drawing.svg import GraphMarks
from orchestrator.errors import StoreDown
from orchestrator.kernel.journal import Record
from orchestrator.runtime.runs.listing import JournalCheck, record_check
from tests.console.client import Client, readable
from tests.console.stored import ASKS, agent, fill, said


async def test_the_page_of_health_shows_the_last_verdict_of_doctor(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    assert "No check of this journal is recorded." in (await client.get("/health")).text
    await record_check(journal, JournalCheck.made(5, 60, [f"run {n} is <b>damaged</b>" for n in range(25)]))
    page = (await client.get("/health")).text
    assert "25 problems" in page
    assert "run 19 is &lt;b&gt;damaged&lt;/b&gt;" in page
    assert "The first 20 are shown." in page
    assert "No engine runs on this journal." in page
    await record_check(journal, JournalCheck.made(5, 60, []))
    assert "Healthy" in (await client.get("/health")).text
    assert (await runs.count()).total == 4, "the verdict is no run"


async def test_the_page_of_machines_covers_a_window_and_says_what_was_read(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(journal)
    reader = MachineReader(runs, "llm_loop", {"machine": "llm_loop"}, most=3)
    window = await reader.window(None, patience=60)
    assert (window.read, len(window.heads), window.more, window.is_read) == (3, 3, True, True)
    assert window.outcomes == {"completed": 1, "budget_exceeded": 1}
    assert window.history.refused["iterations"] == 1
    newest = window.heads[0].created_at
    assert [head.run_id for head in (await reader.window(newest)).heads] == [ASKS]
    loaded: list[str] = []
    load = journal.load

    async def counted(run_id: str, since: int = 0) -> Sequence[Record]:
        loaded.append(run_id)
        return await load(run_id, since)

    monkeypatch.setattr(journal, "load", counted)
    monkeypatch.setattr(feed, "_LASTS", 0.0)
    await runs.approve(ASKS, by="ann")
    await agent(journal, said(text="Done.")).resume(ASKS)
    loaded.clear()
    assert (await reader.window(None, patience=60)).outcomes["completed"] == 2
    assert loaded == [ASKS], "a run that has not moved is not read again"
    pages: list[str] = []
    page_of = runs.page

    async def paged(**conditions: Any) -> Any:
        pages.append("read")
        return await page_of(**conditions)

    monkeypatch.setattr(Runs, "page", lambda _, **conditions: paged(**conditions))
    unchanged = [(await reader.window(None, patience=60)).history for _ in range(2)]
    assert pages == [], "the list of a journal that has not changed is not read again"
    assert unchanged[0] is unchanged[1], "and the histories of its runs are not merged again"
    assert (await reader.window(newest)).history is not unchanged[0]
    client = Client(readable(runs))
    for name in ("1h", "24h", "7d", "all", "nonsense"):
        page = (await client.get(f"/machines?window={name}")).text
        assert "4 runs that started since" in page
    old = time.time() + 90_000
    monkeypatch.setattr(time, "time", lambda: old)
    page = (await Client(readable(runs)).get("/machines?window=24h")).text
    assert "No run of this machine started in this window." in page


async def test_runs_that_are_not_listed_yet_are_not_taken_for_none(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(journal)
    page_of, listed = runs.page, asyncio.Event()

    async def slow(_: Runs, **conditions: Any) -> Any:
        await listed.wait()
        return await page_of(**conditions)

    monkeypatch.setattr(Runs, "page", slow)
    reader = MachineReader(runs, "llm_loop", {"machine": "llm_loop"})
    window = await reader.window(None, patience=0)
    assert (window.heads, window.is_listed, window.is_read) == ([], False, False)
    monkeypatch.setattr(MachineReader.window, "__defaults__", (0.0,))
    page = (await Client(readable(runs)).get("/machines?machine=llm_loop&window=all")).text
    assert "The runs of this machine are being read." in page
    assert "every 1s" in page, "the page asks until they are"
    listed.set()
    window = await reader.window(None, patience=60)
    assert (len(window.heads), window.is_listed, window.is_read) == (4, True, True)


async def test_a_journal_that_is_closed_while_a_machine_is_read_leaves_no_error_in_the_log(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(journal)
    closed, ended = asyncio.Event(), asyncio.Event()

    async def load(run_id: str, since: int = 0) -> Sequence[Record]:
        await closed.wait()
        ended.set()
        raise StoreDown("journal is closed")

    monkeypatch.setattr(journal, "load", load)
    reader = MachineReader(runs, "llm_loop", {"machine": "llm_loop"})
    assert (await reader.window(None, patience=0)).read == 0
    closed.set()
    await ended.wait()
    await asyncio.sleep(0)
    del reader
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_graph_of_many_states_is_a_list_around_the_present_state(
    journal: MemoryJournal, runs: Runs
) -> None:
    names = [f"s{number}" for number in range(50)]
    enum: Any = StrEnum  # its functional form, with names that mypy cannot read
    states, events = enum("Many", names), enum("Ways", ["next"])
    many = Graph(
        name="llm_loop",
        states=states,
        events=events,
        initial=states("s0"),
        edges=tuple(Edge("next", (one,), other) for one, other in pairwise(names)),
        terminal=frozenset((states("s49"),)),
        strict=False,
    )
    found = state_list(many, GraphMarks(taken={("s19", "next", "s20"): 7}), "s20")
    assert [state.name for state in found.near] == ["s18", "s19", "s20", "s21", "s22"]
    assert found.near[1].ways == [Way("next", "s20", 7)]
    assert len(found.others) == 45
    await fill(journal)
    client = Client(readable(runs, graphs={"llm_loop": many}))
    for page in ("/runs/first", "/machines"):
        text = (await client.get(page)).text
        assert "too many states for a drawing" in text
        assert "47 more states" in text, "an unknown state is replaced by the initial one"
        assert 'class="fsm-graph' not in text
