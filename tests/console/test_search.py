"""The search of the console: which words find a run, for whom, and what happens to the texts."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import re
import string
import time
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import apsw
import pytest

from orchestrator import MemoryJournal, RetryPolicy, Runs, SqliteJournal
from orchestrator.console import Actor, console_app
from orchestrator.console.search_index import SearchEntry, SearchIndex
from orchestrator.errors import LLMError, RunUnknown, StoreDown
from orchestrator.kernel.journal import Draft
from orchestrator.providers.scripted import call
from orchestrator.runtime.runs.listing import ORDERS
from tests.console.client import Answer, Client
from tests.console.stored import agent, fill, said
from tests.console.test_pages import listed


async def fill_texts(journal: Any) -> None:
    """Write runs that differ in their texts only: a tool, an error, a message of several lines, a secret."""
    await agent(journal, said(call("look")), said(text="Done.")).run("Where is parcel 4711?", run_id="a-1")
    down = LLMError("upstream said teapot", kind="server_error", status=503)
    await agent(journal, down, retry=RetryPolicy(attempts=1)).run("Hello\nNürnberg calls.", run_id="a-2")
    invented = agent(journal, said(call("fly_away")), said(text="Done."))
    await invented.run("My key is sk-live-0123456789abcdefghijklmn.", run_id="a-3")


def console(runs: Runs, **rights: Any) -> Client:
    content = rights.pop("content", "ask")
    return Client(console_app(runs, actor=lambda _: Actor("ann", **rights), content=content, hosts=["*"]))


async def searched(client: Client, words: str) -> Answer:
    """Return the page of a search when the index has every run."""
    while "Search again" in (answer := await client.get("/?q=" + quote_plus(words))).text:
        pass
    return answer


COUNTED = re.compile(
    r'<a href="[^"]*" class="[^"]*"[^>]*><b>(\d+)</b><span[^>]*>(?:<svg.*?</svg>)?<span>(\w+)</span>'
)
STORES = ("memory", "sqlite", "read-only", "postgres")


@asynccontextmanager
async def stored(store: str, tmp_path: Path, database: Callable[[], str]) -> Any:
    """Yield the runs of a journal with the texts, as a console opens it."""
    if store == "memory":
        journal: Any = MemoryJournal()
    elif store == "postgres":
        from orchestrator.journal.postgres import PostgresJournal

        journal = PostgresJournal(database())
    else:
        journal = SqliteJournal(tmp_path / "journal.db")
    await fill_texts(journal)
    if store == "read-only":
        await journal.close()
        journal = SqliteJournal(tmp_path / "journal.db", only_reads=True)
    yield Runs(journal)
    await journal.close()


NAMES = [
    ("look", ["a-1"]),
    ("503", ["a-2"]),
    ("server_err", ["a-2"]),
    ("LLMERROR", ["a-2"]),
    ("scripted", ["a-3", "a-2", "a-1"]),
    ("a-1 scripted", ["a-1"]),
    ("503 look", []),
    ("50", ["a-2"]),
    ("4%", []),
]
CONTENTS = [
    ("4711", ["a-1"]),
    ("parcel where", ["a-1"]),
    ("NÜRNBERG", ["a-2"]),
    ("teapot 503", ["a-2"]),
    ("is parcel ?", ["a-1"]),
    ("is", ["a-3", "a-1"]),
    ("fly_", ["a-3"]),
    ('"teapot"', []),
    ("0123456789", []),
]


@pytest.mark.parametrize("store", STORES)
async def test_a_word_of_a_text_finds_its_runs_and_one_of_a_content_only_for_who_may_read_it(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def database() -> str:
        found: str = request.getfixturevalue("database")
        return found

    async with stored(store, tmp_path, database) as runs:
        ann, eve = console(runs), console(runs, may_read_content=False)
        never = console(runs, content="never")
        for words, found in NAMES:
            for client in (ann, eve, never):
                assert listed(await searched(client, words)) == found, words
        for words, found in CONTENTS:
            assert listed(await searched(ann, words)) == found, words
            for client in (eve, never):
                answer = await searched(client, words)
                assert listed(answer) == [], words
                assert "Words of messages and errors are not searched" in answer.text
    assert sorted(path.name for path in tmp_path.iterdir() if "search" in path.name) == []


async def test_a_search_of_contents_is_logged_without_its_words(
    journal: MemoryJournal, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    await fill_texts(journal)
    with caplog.at_level(logging.INFO, "orchestrator.console"):
        await console(runs).get("/?q=teapot")
        await console(runs, may_read_content=False).get("/?q=teapot")
    assert [record.message for record in caplog.records] == [
        "console: contents of runs were searched for ann"
    ]


async def test_the_words_choose_the_same_runs_on_every_page_with_filters(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    await fill_texts(journal)
    client = console(runs, may_operate=True)
    assert listed(await client.get("/?q=pay+tool")) == []
    page = await client.get("/?q=503&order=cost")
    assert listed(page) == ["a-2"]
    assert re.search(r'href="/\?show=failed&amp;q=503[^"]*"[^>]*><b>1</b>', page.text)
    assert listed(await client.get("/?q=503&show=completed")) == []
    assert "Test on 1 run<" in (await client.get("/backtest?q=4711")).text
    assert listed(await client.get("/rows?q=4711&newest=a-1&shown=a-1")) == ["a-1"]
    preview = await client.get("/several?kind=cancel&q=Go.&show=waiting")
    assert "Cancel 1 run?" not in preview.text  # the run waits with another message
    assert "Cancel 1 run?" in (await client.get("/several?kind=cancel&q=Pay+it&show=waiting")).text


async def test_a_run_that_changed_is_read_again_and_one_that_was_erased_leaves_nothing(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.console.search_index._LASTS", 0.0)
    await fill_texts(journal)
    index = SearchIndex(runs)

    async def ids(word: str) -> list[str]:
        return [*((await index.find([word], content=True)).conditions["run_ids"] or ())]

    assert await ids("parcel") == ["a-1"]
    await agent(journal, said(text="Done.")).run("Another parcel.", run_id="a-4")
    assert await ids("parcel") == ["a-4", "a-1"]
    await journal.erase("a-1")
    await journal.erase("a-4")
    assert await ids("parcel") == []
    await agent(journal, said(text="Done.")).run("Nothing.", run_id="a-1")
    assert (await ids("parcel"), await ids("nothing.")) == ([], ["a-1"])
    assert index.read == 3
    await index.close()


async def test_a_page_says_how_much_of_a_big_journal_was_searched(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.console.search_index._CHUNK", 1)
    await fill_texts(journal)
    index = SearchIndex(runs)
    first = await index.find(["parcel"], content=True, patience=0.0)
    assert not first.is_read
    assert first.read < 3
    await index.refresh(30.0)
    last = await index.find(["parcel"], content=True)
    assert (last.is_read, last.read, last.conditions) == (True, 3, {"run_ids": ["a-1"]})
    await index.close()


async def test_of_too_many_runs_the_newest_are_counted_and_sorted_and_the_page_says_so(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill_texts(journal)
    client = console(runs)
    assert "or more match" not in (await client.get("/?q=scripted")).text
    for module in ("search_index", "runs_page"):
        monkeypatch.setattr(f"orchestrator.console.{module}.MOST_HITS", 2)
    answer = await client.get("/?q=scripted")
    assert listed(answer) == ["a-3", "a-2", "a-1"], "the newest page needs no count"
    assert "2 runs or more match: only the newest 2 are counted and sorted." in answer.text
    assert listed(await client.get("/?q=scripted&order=age")) == ["a-2", "a-3"]
    assert listed(await client.get("/?q=scripted&order=age&show=completed")) == ["a-1", "a-3"]
    assert listed(await client.get("/?q=scripted+4711")) == ["a-1"]


async def test_a_search_while_texts_are_read_compares_only_heads_with_a_word_of_too_many_runs(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.console.search_index.MOST_HITS", 1)
    await fill_texts(journal)
    index = SearchIndex(runs)
    await index.refresh(30.0)
    index._began = None
    hits = await index.find(["scripted", "4711"], content=True)
    assert (hits.is_read, hits.too_common) == (False, ["scripted", "4711"])
    await index.close()


@pytest.mark.parametrize(
    "words", [["a-"], ["a-", "scripted"], ["3"], ["up", "on"], ["is"], ["o"], ["a", "look"]]
)
async def test_the_index_lists_and_counts_the_runs_of_a_search_as_the_journal_does(
    words: list[str], journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    await fill_texts(journal)
    index = SearchIndex(runs)
    await index.refresh(30.0)
    hits = await index.find(words, content=True)
    assert hits.listing is not None
    chosen = hits.conditions["run_ids"] or ()
    texts = {entry[0]: "".join(entry[1:]).lower() for entry in index._connection().execute(EVERY_TEXT)}
    assert sorted(chosen) == sorted(one for one in texts if all(word in texts[one] for word in words))
    filters: list[Any] = [{"status": "ended", "outcome": "failed"}, {"agent": "sales"}, {"waiting": "pay"}]
    filters += [
        {},
        {"waiting": False},
        {"machine": "llm_loop"},
        {"started_before": 1e12},
        {"state": "finalize"},
    ]
    for conditions in filters:
        assert await hits.listing.count(**conditions) == await runs.count(run_ids=chosen, **conditions)
        for order in ORDERS:
            after: str | None = None
            while True:
                page = await hits.listing.page(order_by=order, limit=2, after=after, **conditions)
                expected = await runs.page(order_by=order, limit=2, after=after, run_ids=chosen, **conditions)
                assert page == expected, (conditions, order, after)
                if not page.more:
                    break
                after = page.runs[-1].run_id
    with pytest.raises(RunUnknown):
        await hits.listing.page(limit=2, after="nobody")
    await index.close()


EVERY_TEXT = "SELECT run_id, heads, names, contents FROM entry JOIN run ON run.id = entry.rowid"


async def test_a_search_of_a_whole_index_compares_no_heads(journal: MemoryJournal, runs: Runs) -> None:
    await fill_texts(journal)
    index = SearchIndex(runs)
    hits = await index.find(["503", "support", "LLM_ERROR"], content=False)
    assert (hits.conditions, hits.is_read) == ({"run_ids": ["a-2"]}, True)
    hits = await index.find(["a-2", "nobody"], content=True)
    assert hits.conditions == {"run_ids": []}
    await index.close()


async def test_a_search_while_the_index_is_built_finds_every_run_by_its_head(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.console.search_index._CHUNK", 1)
    await fill_texts(journal)
    index = SearchIndex(runs)
    hits = await index.find(["support", "a-"], content=True, patience=0.0)
    assert not hits.is_read
    page = await runs.page(**hits.conditions)
    assert [head.run_id for head in page.runs] == ["a-3", "a-2", "a-1"]
    await index.close()


async def test_a_page_with_every_run_that_matches_is_counted_without_the_journal(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(journal)
    await fill_texts(journal)
    counted: list[Any] = []
    count = journal.count

    async def noted(**conditions: Any) -> Any:
        counted.append(conditions)
        return await count(**conditions)

    monkeypatch.setattr(journal, "count", noted)
    client = console(runs)
    for address in ("/?q=support", "/?q=support&show=failed", "/?agent=sales", "/?agent=sales&show=failed"):
        every = {word: int(amount) for amount, word in re.findall(COUNTED, (await client.get(address)).text)}
        filters: Any = {"agent": "sales"} if "sales" in address else {"search": "support"}
        told = await count(**filters)
        assert every["All"] == told.total
        assert every["Completed"] == told.outcomes["completed"]
    asked = [one for one in counted if one.get("run_ids") or one.get("search") or one.get("agent")]
    assert len(asked) == 1, (
        "with a tile, the page has not every run that is counted; the index counts its own"
    )


async def test_the_index_finds_what_a_comparison_of_the_texts_finds(seed: int) -> None:
    chance = random.Random(seed)
    letters = string.ascii_letters[:6] + '"%_!* ÄäßİЖж'
    journal = MemoryJournal()
    runs = Runs(journal)
    texts = ["".join(chance.choices(letters, k=chance.randrange(3, 30))) for _ in range(60)]
    for number, text in enumerate(texts):
        body = {"graph": "g", "context": {"messages": [{"role": "user", "content": text}]}}
        await journal.release(await journal.create(f"r{number}", "me", body))
    index = SearchIndex(runs)
    await index.refresh(30.0)
    for _ in range(200):
        word = "".join(chance.choice(texts)[:20].split()[:1] or ["abc"])[chance.randrange(2) :]
        if len(word) < 3:
            continue
        found = await index.find([word], content=True)
        exact = {f"r{number}" for number, text in enumerate(texts) if word in text}
        ids = {*(found.conditions["run_ids"] or ())}
        assert exact <= ids, word
        loose = {f"r{number}" for number, text in enumerate(texts) if word.casefold() in text.casefold()}
        assert ids <= loose | exact, word
    await index.close()


async def test_a_journal_that_fails_while_it_is_read_is_reported_by_the_next_search_only(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await fill_texts(journal)
    failing, excerpts = asyncio.Event(), journal.excerpts

    async def fail(run_ids: Sequence[str]) -> Any:
        await failing.wait()
        raise StoreDown("journal is closed")

    monkeypatch.setattr(journal, "excerpts", fail)
    index = SearchIndex(runs)
    assert not (await index.find(["parcel"], content=True, patience=0.0)).is_read
    failing.set()
    with pytest.raises(StoreDown):
        await index.find(["parcel"], content=True)
    monkeypatch.setattr(journal, "excerpts", excerpts)
    found = await index.find(["parcel"], content=True)
    assert (found.is_read, found.conditions) == (True, {"run_ids": ["a-1"]})
    failing.clear()
    monkeypatch.setattr(journal, "excerpts", fail)
    left = SearchIndex(runs)
    assert not (await left.find(["parcel"], content=True, patience=0.0)).is_read
    assert left._task is not None
    failing.set()
    await asyncio.wait((left._task,))
    del left
    gc.collect()
    assert "never retrieved" not in caplog.text


async def fill_disk(index: SearchIndex) -> None:
    """Let the database of the index have no more than its present pages."""
    await index.call(lambda db: db.execute(f"PRAGMA max_page_count = {db.pragma('page_count')}"))


@pytest.mark.parametrize("is_read", [False, True], ids=["unread", "read"])
async def test_an_index_whose_disk_is_full_says_so_and_starts_again_with_the_next_search(
    journal: MemoryJournal, runs: Runs, *, is_read: bool
) -> None:
    await fill_texts(journal)
    index = SearchIndex(runs)
    if is_read:
        await index.refresh(patience=60.0)
    await fill_disk(index)
    for number in range(40):
        await agent(journal, said(text="Done.")).run("parcels " * 100 + str(number), run_id=f"b-{number}")
    index._ended = 0.0
    with pytest.raises(StoreDown, match=r"has no index: FullError: .*full\. Free .*SQLITE_TMPDIR"):
        await index.find(["parcel"], content=True, patience=60.0)
    assert index.read == 0, "what was in it is gone with it"
    found = await index.find(["parcel"], content=True, patience=60.0)
    assert found.is_read
    assert set(found.conditions["run_ids"] or ()) == {"a-1", *(f"b-{number}" for number in range(40))}
    await index.close()


async def test_what_changed_after_the_clock_was_set_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time() + 3_600.0
    journal = MemoryJournal(now=lambda: now)
    for number in range(250):  # more than one page of changes
        await agent(journal, said(text="Done.")).run("parcel", run_id=f"b-{number}")
    index = SearchIndex(Runs(journal))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 3_600.0)
        await index.refresh(patience=60.0)
    now -= 3_600.0
    await agent(journal, said(text="Done.")).run("parcel", run_id="later")
    index._ended = 0.0
    found = await index.find(["parcel"], content=True, patience=60.0)
    assert "later" in (found.conditions["run_ids"] or ())
    await index.close()


async def test_an_index_that_is_lost_while_the_journal_is_read_is_not_taken_for_complete(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(250):  # more than one read of the journal
        await agent(journal, said(text="Done.")).run("parcel", run_id=f"b-{number}")
    index = SearchIndex(runs)
    page = runs.page

    async def failing(**conditions: Any) -> Any:
        if conditions.get("after"):  # the first runs are in the index
            monkeypatch.undo()
            with pytest.raises(StoreDown):
                await index.call(lambda db: db.execute("SELECT * FROM nothing"))
        return await page(**conditions)

    monkeypatch.setattr(runs, "page", failing)
    await index.refresh(patience=60.0)
    assert 0 < index.read < 250
    found = await index.find(["parcel"], content=True, patience=60.0)
    assert (found.is_read, len(found.conditions["run_ids"] or ())) == (True, 250)
    await index.close()


async def test_a_search_whose_disk_is_full_is_answered_with_what_to_do(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> Any:
        raise apsw.FullError("database or disk is full")

    await fill_texts(journal)
    client = console(runs)
    monkeypatch.setattr("orchestrator.console.search_index._version", full)
    answer = await client.get("/?q=parcel")
    assert (answer.status, "SQLITE_TMPDIR" in answer.text) == (503, True)
    assert (await client.get("/")).status == 200, "the list needs no index"
    monkeypatch.undo()
    assert "a-1" in listed(await searched(client, "parcel"))


def test_the_texts_of_a_run_are_bounded_and_have_no_secret() -> None:
    message = {"role": "user", "content": "word " * 40_000}
    body = {"context": {"messages": [message]}, "definition": {"look": "1"}}
    last = Draft("context", {"spent.by_tool": {"look": 1, "made_up": 2}})
    names, contents = SearchEntry.of([Draft("created", body), last])
    assert (names, contents) == ("look", "word " * 400 + "\nmade_up")
