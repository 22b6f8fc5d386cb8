"""What the pages show, and what their actions write into the journal."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator import (
    LLM_LOOP,
    Agent,
    Limits,
    LocalEngine,
    MemoryJournal,
    Response,
    RetryPolicy,
    Runs,
    Usage,
    tool,
)
from orchestrator.console import Actor, console_app
from orchestrator.console.feed import Feed
from orchestrator.console.pages import money, query
from orchestrator.errors import Corrupt, LLMError
from orchestrator.kernel.journal import Draft, write_records
from orchestrator.machines.question import Question
from orchestrator.providers import price_table
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.tools.spec import ToolSpec
from tests.console.client import Answer, Client, readable
from tests.console.stored import ASKS, TOKEN, agent, fill, leave_asking, look, pay, said


async def operator(runs: Runs) -> Client:
    client = Client(console_app(runs, token=TOKEN, operate=True))
    await client.post("/sign-in", {"token": TOKEN})
    return client


def listed(answer: Answer) -> list[str]:
    return re.findall(r'<tr id="run-([^"]+)"', answer.text)


def displayed(answer: Answer) -> list[str]:
    """Return the versions of the runs that a preview displays."""
    return re.findall(r'name="version" value="([^"]+)"', answer.text)


def tiles(answer: Answer) -> dict[str, int]:
    found = re.findall(r'href="/\?([^"]*)"[^>]*><b>([\d,]+)</b>', answer.text)
    return {
        dict(part.partition("=")[::2] for part in name.split("&amp;")).get("show", ""): int(n)
        for name, n in found
    }


# ---- runs ----


async def test_the_runs_are_listed_with_a_count_for_each_status(journal: MemoryJournal, runs: Runs) -> None:
    await fill(journal)
    page = await Client(readable(runs)).get("/")
    assert listed(page) == [ASKS, "third", "second", "first"]
    assert tiles(page) == {
        "": 4, "open": 0, "waiting": 1, "parked": 0, "completed": 2, "budget_exceeded": 1, "failed": 0,
    }  # fmt: skip
    assert "Waiting for a person" in page.text
    assert "Over budget" in page.text


async def test_the_counts_of_a_filter_are_kept_until_the_journal_changes(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(journal)
    counted: list[Any] = []
    count = journal.count

    async def noted(**conditions: Any) -> Any:
        counted.append(conditions.get("agent"))
        return await count(**conditions)

    monkeypatch.setattr(journal, "count", noted)
    client = Client(readable(runs))
    for rest in ("show=completed", "show=failed", "show=completed&order=cost"):
        assert tiles(await client.get(f"/?agent=sales&{rest}"))["completed"] == 1
    assert counted.count("sales") == 1
    feed = Feed(runs)
    assert (await feed.counts(0.0, agent="sales")).total == 1
    await agent(journal, said(text="Done."), name="sales").run("Go.", run_id="later")
    assert (await feed.counts(60.0, agent="sales")).total == 1, "at most a minute old"
    assert (await feed.counts(0.0, agent="sales")).total == 2


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("/?show=completed", ["second", "first"]),
        ("/?show=waiting", [ASKS]),
        ("/?agent=sales", ["second"]),
        ("/?q=team%3Dops", [ASKS, "first"]),
        ("/?state=finalize&show=completed", ["second", "first"]),
        ("/?reason=max_iterations", ["third"]),
        ("/?waiting=pay", [ASKS]),
        ("/?order=age", ["first", "second", "third", ASKS]),
        ("/?order=tokens", ["first", "third", "second", ASKS]),
        ("/?after=third", ["second", "first"]),
        ("/?machine=pipeline", []),
        ("/?q=seco", ["second"]),
        ("/?q=SALES", ["second"]),
        ("/?q=ops+asks", [ASKS]),
        ("/?q=max_iter", ["third"]),
        ("/?q=nobody", []),
        ("/?window=1h", [ASKS, "third", "second", "first"]),
        ("/?window=never", [ASKS, "third", "second", "first"]),
        ("/?to=2020-01-01", []),
        ("/?from=2020-01-01&to=2020-01-02&window=1h", []),
        ("/?from=2020-01-01&to=9999-12-31", [ASKS, "third", "second", "first"]),
        ("/?from=tomorrow", [ASKS, "third", "second", "first"]),
        ("/?show=nonsense&order=nonsense", [ASKS, "third", "second", "first"]),
    ],
)
async def test_each_filter_and_order_of_a_listing_is_a_part_of_the_address(
    journal: MemoryJournal, runs: Runs, address: str, found: list[str]
) -> None:
    await fill(journal)
    answer = await Client(readable(runs)).get(address)
    if "tokens" in address:
        assert set(listed(answer)) == set(found)
    else:
        assert listed(answer) == found


async def test_the_search_leads_to_a_whole_id_and_stays_on_the_page_without_a_hit(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    answer = await client.get("/?q=second")
    assert (answer.status, answer.headers["location"]) == (303, "/runs/second")
    missed = await client.get("/?q=nobody%3Cb%3E&agent=sales&window=24h")
    assert missed.status == 200
    assert "No run matches <b>nobody&lt;b&gt;</b>" in missed.text
    assert 'name="q" type="search" maxlength="200" value="nobody&lt;b&gt;"' in missed.text
    for kept in ('<option selected value="sales">', '<option selected value="24h">'):
        assert kept in missed.text
    assert (await client.get("/?q=" + "long+" * 300)).status == 200
    assert (await client.get("/?after=nobody")).status == 404


async def test_a_column_sorts_by_a_click_and_the_address_keeps_the_filters(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    page = (await client.get("/?q=o&agent=support&order=tokens&from=2020-01-01")).text
    heads = dict(re.findall(r'aria-sort="(\w+)"><a href="[^"]*">([\w ]+)', page))
    assert heads["descending"].strip() == "Tokens"
    filters = "q=o&amp;from=2020-01-01&amp;agent=support"
    assert f'<a href="/?{filters}&amp;order=cost">Cost' in page
    assert f'<a href="/?{filters}">Started' in page
    newest = (await client.get("/")).text
    assert 'aria-sort="descending"><a href="/?order=age">Started' in newest
    assert 'aria-sort="ascending"><a href="/?">Started' in (await client.get("/?order=age")).text


async def test_an_empty_journal_says_how_to_start_a_run(runs: Runs) -> None:
    client = Client(readable(runs))
    assert "orchestrator run" in (await client.get("/")).text
    assert "No run waits for a person." in (await client.get("/inbox")).text


async def test_a_page_without_anything_to_show_says_so(journal: MemoryJournal, runs: Runs) -> None:
    await fill(journal)
    client = await operator(runs)
    for page, text in (
        ("/?q=nothing", "No run matches"),
        ("/inbox?agent=nobody", "No run matches"),
        ("/agents?tag=team%3Dnone", "No agent has started a run with this tag in this window."),
        ("/machines?machine=llm_loop&tag=team%3Dnone", "No state of these runs has been left."),
        ("/several?kind=cancel&run=first", "No run to cancel"),
        (f"/answers?kind=approve&run={ASKS}", "No call to approve"),
    ):
        assert text in (await client.get(page)).text, page
    assert "Backtest these runs" not in (await client.get("/?q=nothing")).text


async def test_an_unknown_address_is_a_page_with_the_way_back(runs: Runs) -> None:
    client = await operator(runs)
    answer = await client.get("/run/first")
    assert (answer.status, "The console has no page" in answer.text) == (404, True)
    assert '<a class="link" href="/">Runs</a>' in answer.text
    stranger = Client(console_app(runs, token=TOKEN))
    assert (await stranger.get("/run/first")).headers["location"] == "/sign-in"


async def test_new_rows_keep_the_order_of_a_page_and_count_newer_runs(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    await agent(journal, said(text="Done.")).run("Go.", run_id="newer")
    answer = await client.get("/rows?newest=asks&shown=first&shown=asks&shown=gone")
    assert listed(answer) == ["first", ASKS]
    assert "1 new run" in answer.text


async def test_a_request_to_several_runs_is_previewed_then_posted_with_actor_and_reason(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = await operator(runs)
    preview = await client.get("/several?kind=cancel&run=asks&run=first")
    assert "Cancel 1 run?" in preview.text
    assert "1 run of the selection is left out: ended already." in preview.text
    assert (await runs.get(ASKS)).unread == []
    form = {
        "form_token": preview.form_token(),
        "kind": "cancel",
        "run": [ASKS, "first", "gone"],
        "version": [*displayed(preview), "ended 9", "open"],
        "why": "no use",
    }
    done = await client.post("/several", form)
    assert done.text.count("was asked") == 1
    [posted] = (await runs.get(ASKS)).unread
    assert (posted.kind, posted.body["why"]) == ("cancel", "no use")
    page = await client.get(f"/runs/{ASKS}")
    assert "has not read it yet" in page.text


async def test_all_runs_of_a_filter_are_previewed(journal: MemoryJournal, runs: Runs) -> None:
    await fill(journal)
    client = await operator(runs)
    assert "Cancel 1 run?" in (await client.get("/several?kind=cancel&show=waiting")).text
    assert (await client.get("/several?kind=cancel")).status == 400
    assert (await client.get("/several?kind=erase&run=asks")).status == 400
    form = {"form_token": (await client.get("/several?kind=cancel&run=asks")).form_token(), "kind": "cancel"}
    assert (await client.post("/several", form)).status == 400, "no run is named"


async def test_a_request_to_a_run_that_changed_since_it_was_displayed_is_refused_with_the_change(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = await operator(runs)
    preview, before = await client.get("/several?kind=cancel&run=asks"), await runs.head(ASKS)
    form = {"form_token": preview.form_token(), "kind": "cancel", "run": ASKS}
    await runs.approve(ASKS, by="ann")
    await agent(journal, said(text="Done.")).resume(ASKS)
    seq = (await runs.head(ASKS)).seq
    late = await client.post("/several", {**form, "version": displayed(preview)})
    assert f"the run has changed from parked, record {before.seq} to completed, record {seq}" in late.text
    assert (await client.post("/several", form)).status == 400, "the form has no version"
    unknown = await client.post("/several", {**form, "version": "<b>"})
    assert "the run has changed from unknown to completed" in unknown.text
    assert [one.kind for one in await journal.inbox(ASKS)] == ["approve"]


# ---- a run ----


async def test_the_page_of_a_run_shows_state_budgets_guards_and_why_it_stopped(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    page = (await client.get("/runs/third")).text
    assert "Guard iterations refused: 1 of 1." in page
    assert 'class="fsm-graph"' not in page, "an unknown graph is not drawn"
    assert "Guards by turn" in page
    asking = (await client.get(f"/runs/{ASKS}")).text
    assert "Read the question" in asking
    assert "nobody while it waits" in asking


def tree_of(page: Answer) -> list[tuple[int, str, str, bool]]:
    """Return depth, name, agent and whether it is the page of the run, of each row of the tree."""
    part = page.text.partition('<ul class="runs-tree"')[2].partition("</ul>")[0]
    found = []
    for depth, row in re.findall(r'<li class="d(\d)[^"]*">(.*?)</li>', part, re.DOTALL):
        name = re.search(r'(<b class="mono" aria-current="page"|<a class="id link")[^>]*>([^<]*)<', row)
        if name is not None:
            who = row.partition(name[0])[2].partition("<span>")[2].partition("</span>")[0]
            found.append((int(depth), name[2], who, "aria-current" in name[1]))
    return found


async def test_each_run_of_a_tree_has_the_whole_tree_with_states_and_costs(
    journal: MemoryJournal, runs: Runs
) -> None:
    scholar = agent(journal, said(text="Answer."), name="scholar", tools=[])
    ask = scholar.as_tool("ask_scholar", "Ask.")
    clerk = agent(
        journal, said(call("ask_scholar", task="Why?")), said(text="Done."), name="clerk", tools=[ask]
    )
    parent = agent(
        journal, said(call("brief", task="Go")), said(text="Done."), tools=[clerk.as_tool("brief", "Brief.")]
    )
    await parent.run("Go.", run_id="parent")
    client = Client(readable(runs))
    for place, run_id in enumerate(("parent", "parent:1:0", "parent:1:0:1:0")):
        page = await client.get(f"/runs/{run_id}")
        assert tree_of(page) == [
            (0, "parent", "support", place == 0),
            (1, "1:0", "clerk", place == 1),
            (2, "1:0", "scholar", place == 2),
        ]
        part = page.text.partition('<ul class="runs-tree"')[2].partition("</ul>")[0]
        assert part.count("Completed") == part.count("finalize") == 3
        assert re.findall(r"tokens, ([\d.]+)", part) == ["0.5000", "0.3000", "0.1000"], "with the runs below"
    assert tree_of(await client.get("/runs/parent"))
    alone = agent(journal, said(text="Done."), name="alone")
    await alone.run("Go.", run_id="alone")
    assert 'class="runs-tree"' not in (await client.get("/runs/alone")).text


async def branches(journal: MemoryJournal, count: int) -> None:
    """Write a run with so many branches, of which some failed, and a run below the last one."""
    opening = {"schema": 1, "graph": "llm_loop", "at": 1.0, "parent_run_id": None, "agent": "front"}
    ended = Draft("ended", {"outcome": "completed", "reason": "none", "at": 2.0, "t": 1.0})
    await journal.create("root", "me", opening)
    for place in range(count):
        name = f"root:reading.1:{place}"
        body = {**opening, "parent_run_id": "root", "agent": "reader"}
        lease = await journal.create(name, "me", body)
        outcome = "failed" if place % 100 == 50 else "completed"
        await write_records(journal, lease, Draft("ended", {**ended.body, "outcome": outcome}))
    last = f"root:reading.1:{count - 1}"
    lease = await journal.create(f"{last}:1:0", "me", {**opening, "parent_run_id": last, "agent": "scholar"})
    await write_records(journal, lease, ended)


async def test_a_tree_of_a_thousand_branches_is_folded_around_the_run_of_the_page() -> None:
    journal = MemoryJournal(ended=2_000)
    await branches(journal, 1_000)
    client = Client(readable(Runs(journal)))
    for run_id in ("root", "root:reading.1:700", "root:reading.1:999:1:0"):
        page = await client.get(f"/runs/{run_id}")
        rows = tree_of(page)
        assert len(page.body) < 100_000
        assert [row for row in rows if row[3]] == [row for row in rows if row[3]][:1]
        assert sum(row[0] == 1 for row in rows) == 50
        assert page.text.count("Failed") >= 10, "those that need attention come first"
        assert "950 more: 950 completed" in page.text
        assert "branch, " in page.text
    assert (1, "reading.1:999", "reader", False) in rows, "the path to the run is there"
    assert (2, "1:0", "scholar", True) in rows


async def test_a_tree_whose_parents_are_in_a_circle_or_whose_root_is_gone_is_shown(
    journal: MemoryJournal, runs: Runs
) -> None:
    opening = {"schema": 1, "graph": "llm_loop", "at": 1.0, "agent": "front"}
    for run_id, above in (("one", "two"), ("two", "one"), ("left", "erased"), ("below", "left")):
        await journal.create(run_id, "me", {**opening, "parent_run_id": above})
    client = Client(readable(runs))
    assert [row[1:] for row in tree_of(await client.get("/runs/one"))] == [
        ("two", "front", False),
        ("one", "front", True),
    ]
    assert [row[1] for row in tree_of(await client.get("/runs/below"))] == ["left", "below"]


async def test_the_page_of_an_unchanged_run_is_not_built_again(journal: MemoryJournal, runs: Runs) -> None:
    await fill(journal)
    client = Client(readable(runs))
    [address] = re.findall(r'hx-get="(/runs/asks[^"]*)"', (await client.get("/runs/asks")).text)
    same = await client.get(address)
    assert (same.status, same.body) == (204, b"")
    await runs.cancel(ASKS, by="ann")
    changed = await client.get(address)
    assert changed.status == 200
    assert "has not read it yet" in changed.text


async def test_the_graph_of_a_known_machine_has_the_path_of_the_run(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs, graphs={LLM_LOOP.name: LLM_LOOP}))
    for page in ("/runs/first", "/machines"):
        text = (await client.get(page)).text
        assert 'class="fsm-graph' in text or "fsm-graph" in text
        assert "<style" not in text


async def test_the_page_of_machines_shows_times_endings_and_refusals(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    page = (await client.get("/machines?machine=llm_loop")).text
    assert re.search(r"4 runs that started since <time [^>]*>[^<]*</time>\.", page)
    assert "67%" in page, "two of three ended runs are completed"
    assert re.search(r"<td>iterations</td><td class=\"num\">\d+</td>.*?<td class=\"num\">1</td>", page)
    assert (await client.get("/machines?machine=nothing")).status == 404
    assert "No runs yet" in (await Client(readable(Runs(MemoryJournal()))).get("/machines")).text


async def test_the_page_of_health_names_engines_owners_and_the_oldest_question(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = Client(readable(runs))
    assert "No engine runs on this journal." in (await client.get("/health")).text
    async with LocalEngine({"support": agent(journal)}, name="desk-engine"):
        page = (await client.get("/health")).text
    assert "desk-engine" in page
    assert "Alive" in page
    assert "in memory" in page
    assert 'href="/inbox?run=asks"' in page


async def test_an_error_of_a_tool_is_shown_with_type_file_and_line_and_with_content_its_message(
    journal: MemoryJournal, runs: Runs
) -> None:
    @tool(effect="pure", errors="return")
    def amount(order: str) -> int:
        """Return the amount of an order."""
        return {"A2": 500}[order]  # the fault

    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(source, 1) if text.endswith("# the fault"))
    await agent(journal, said(call("amount", order="A1")), said(text="No."), tools=[amount]).run(
        "?", run_id="r1"
    )
    client = Client(readable(runs))
    bare, whole = [
        html.unescape((await client.get(f"/runs/r1{more}")).text) for more in ("", "?content=shown")
    ]
    for page in (bare, whole):
        assert re.search(rf"error KeyError test_pages\.py:{line}, \d+ ms", page)
    assert ("'A1'" in bare, "'A1'" in whole) == (False, True)


async def test_the_page_of_a_failed_run_leads_with_the_error_and_its_place(
    journal: MemoryJournal, runs: Runs
) -> None:
    down = LLMError("server <said> no", kind="server_error", status=503)
    await agent(journal, said(call("look")), *[down] * 9).run("?", run_id="r1")
    client = Client(readable(runs))
    page = html.unescape((await client.get("/runs/r1")).text)
    place = f"in await_llm, turn 2, attempt {RetryPolicy().attempts}."
    assert page.index("LLMError (server_error, HTTP 503") < page.index(place) < page.index("Timeline")
    assert f"currency unknown, {RetryPolicy().attempts - 1} repeated" in page, "they have no answer"
    assert "server <said> no" not in page, "the message is content"
    assert 'href="/runs/r1?content=shown">Show the message</a>' in page
    shown = await client.get("/runs/r1?content=shown")
    assert '<q class="why">server &lt;said&gt; no</q>' in shown.text
    assert "Show the message" not in shown.text


async def test_records_are_shown_without_content_and_page_by_page(journal: MemoryJournal, runs: Runs) -> None:
    await fill(journal)
    client = Client(readable(runs))
    page = (await client.get("/records/first?until=3")).text
    assert re.findall(r'<span class="num mut">(\d+)</span>', page) == ["2", "1", "0"]
    assert "Go." not in page
    assert "Go." in (await client.get("/records/first?content=shown")).text


def turns_of(page: str) -> dict[int, int]:
    """Return the turns on the page of a run, and the number of messages that each shows."""
    parts = re.split(r'<section class="turn" id="turn-(\d+)"', page.split('id="transcript"')[1])[1:]
    return {
        int(number): part.count('class="msg"') for number, part in zip(parts[::2], parts[1::2], strict=True)
    }


async def test_a_long_run_has_a_line_for_each_turn_and_a_turn_is_opened_on_demand(
    journal: MemoryJournal, runs: Runs
) -> None:
    answers = [said(call("look", where=f"place {turn}"), call("look", where="b")) for turn in range(1, 121)]
    limits = Limits(max_iterations=0)
    await agent(journal, *answers, said(text="Done."), limits=limits).run("Go.", run_id="long")
    client = Client(readable(runs))
    page = (await client.get("/runs/long")).text
    assert turns_of(page) == {**dict.fromkeys(range(22, 121), 0), 121: 1}, "the last one is open"
    line = html.unescape(
        re.sub(r"<[^>]+>", " ", page.split('id="turn-50"')[1].split("</p>")[0].partition(">")[2])
    )
    assert re.fullmatch(
        r"50 : open this turn look ×2 await_llm → evaluate_response → process_tools → update_budgets "
        r"10 in, 1 out 0\.1000 [\d.]+ (µs|ms|s) , turn 50 in the timeline",
        " ".join(line.split()),
    ), line
    assert 'href="/runs/long?turns=50-50#timeline"' in page
    opened = (await client.get("/runs/long?turn=50&content=shown")).text
    assert turns_of(opened) == {**dict.fromkeys(range(1, 101), 0), 50: 3}
    assert "place 50" in opened
    assert "place 49" not in opened
    assert 'href="/runs/long?until=200&amp;content=shown#transcript">21 later turns' in opened
    first = (await client.get("/runs/long?until=21")).text
    assert turns_of(first) == {0: 1, **dict.fromkeys(range(1, 22), 0)}
    assert turns_of((await client.get("/runs/long?turns=30-31")).text) == {
        0: 1,
        **dict.fromkeys(range(1, 32), 0),
    }
    for odd in ("turn=0", "turn=999999", "until=0", "until=x", "turn=%00", "until=99999999999"):
        answer = await client.get(f"/runs/long?{odd}")
        assert answer.status == 200, odd


async def test_every_turn_of_a_short_run_is_open_and_a_long_text_is_folded(
    journal: MemoryJournal, runs: Runs
) -> None:
    await agent(journal, said(call("look", where="x" * 2_000)), said(text="Done.")).run("Go.", run_id="short")
    page = (await Client(readable(runs)).get("/runs/short?content=shown")).text
    assert turns_of(page) == {0: 1, 1: 2, 2: 1}
    assert page.count('<details><summary class="tw"><span class="fold">') == 2, "the call and its result"
    assert "turn=" not in page.split('id="transcript"')[1].split("</section>")[0]


async def test_a_turn_of_many_calls_shows_its_first_messages_and_says_how_many_it_leaves_out(
    journal: MemoryJournal, runs: Runs
) -> None:
    calls = [call("look", where=str(place)) for place in range(80)]
    await agent(journal, said(*calls), said(text="Done.")).run("Go.", run_id="wide")
    page = (await Client(readable(runs)).get("/runs/wide")).text
    assert turns_of(page) == {0: 1, 1: 60, 2: 1}
    assert "21 messages of this turn are not shown" in page


# ---- inbox ----


async def leave_below(journal: MemoryJournal, calls: int = 1) -> None:
    """Leave a tree of three agents; so many runs at its end wait for a person."""
    clerk = agent(MemoryJournal(), *[said(call("pay", amount=7))] * calls, name="clerk")
    asks = [call("pay_it", task=str(number)) for number in range(calls)]
    desk = agent(
        MemoryJournal(),
        said(*asks),
        name="desk",
        limits=Limits(max_concurrent_tools=0),
        tools=[clerk.as_tool("pay_it", "Pay.")],
    )
    front = agent(journal, said(call("bill", task="7")), name="front", tools=[desk.as_tool("bill", "Bill.")])
    await front.run("go", run_id="p", wait="never")


ABOVE = ("p", "p:1:0", "p:1:0:1:0")


@pytest.mark.parametrize("run_id", ABOVE)
async def test_a_question_of_a_child_run_is_read_and_answered_on_the_page_of_each_run_above_it(
    journal: MemoryJournal, runs: Runs, run_id: str
) -> None:
    await leave_below(journal)
    client = await operator(runs)
    page = html.unescape((await client.get(f"/runs/{run_id}")).text)
    assert "Read and answer" in page
    [question] = await runs.pending(run_id)
    if run_id != ABOVE[-1]:
        path = " > ".join(("front", "desk", "clerk")[ABOVE.index(run_id) :])
        assert f"{path}, " in page
        assert f"/inbox{query({'run': run_id})}#call-p:1:0:1:0-1:0" in page
    text = (await client.get(f"/inbox{query({'run': run_id})}")).text
    assert question.digest in text
    assert "no question that this page can answer" not in text
    path = (
        '<a class="link" href="/runs/p">front</a> &gt; <a class="link" href="/runs/p:1:0">desk</a> &gt; clerk'
    )
    assert path in text
    form = {"kind": "reject", "call": "1:0", "digest": question.digest, "text": "no"}
    [action] = set(re.findall(r'action="(/answer/[^"]+)"', text))
    assert action == "/answer/p:1:0:1:0", "the form answers the run that asks"
    token = Answer(200, {}, text.encode(), "").form_token()
    assert (await client.post(action, {**form, "form_token": token, "digest": "0" * 64})).status == 409
    assert (
        await client.post(action, {**form, "form_token": token, "digest": question.digest[:12]})
    ).status == 400
    assert [len(await journal.inbox(one)) for one in ABOVE] == [0, 0, 0]
    assert (await client.post(action, {**form, "form_token": token})).status == 303
    assert [len(await journal.inbox(one)) for one in ABOVE] == [0, 0, 1]


async def test_a_run_above_many_questions_shows_the_first_complete_and_names_the_others(
    journal: MemoryJournal, runs: Runs
) -> None:
    await leave_below(journal, 12)
    client = await operator(runs)
    page = (await client.get("/runs/p")).text
    assert (page.count("A child run waits for a person"), "9 more questions of child runs" in page) == (
        3,
        True,
    )
    text = (await client.get("/inbox?run=p")).text
    assert len(re.findall(r'<article class="card" id="call-p:1:0:1:\d+-1:0"', text)) == 10
    assert (
        len(re.findall(r'href="/inbox\?run=p%3A1%3A0%3A1%3A\d+"', text.partition("More child runs")[2])) == 2
    )


async def test_a_reader_of_a_run_above_sees_the_question_and_no_form(
    journal: MemoryJournal, runs: Runs
) -> None:
    await leave_below(journal)
    app = console_app(runs, actor=lambda _: Actor("ann", may_read_content=False), content="ask")
    text = (await Client(app).get("/inbox?run=p")).text
    assert "May <span" in text
    assert "/answer/" not in text
    assert "&#34;amount&#34;" not in text, "arguments are content"


async def test_the_inbox_lists_the_longest_wait_first_and_shows_one_call_completely(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    await leave_asking(journal, "later")
    client = await operator(runs)
    page = await client.get("/inbox")
    assert re.findall(r'class="q" href="/inbox\?run=(\w+)"', page.text) == [ASKS, "later"]
    [question] = await runs.pending(ASKS)
    assert question.digest in page.text
    assert "&#34;amount&#34;: 7" in page.text
    assert "It cannot be taken back." in page.text
    assert '<span class="tag hard">irreversible</span>' in page.text
    later = await client.get("/inbox?run=later")
    assert 'href="/runs/later">later</a>, turn 1' in later.text


@pytest.mark.parametrize(
    ("effect", "tag", "warning"), [("idempotent", "idempotent", False), ("", "not recorded", True)]
)
async def test_a_question_shows_the_declared_effect_of_its_tool(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch, effect: str, tag: str, warning: bool
) -> None:
    """A question of an earlier version has no effect: the page says that it must be assumed irreversible."""

    @tool(effect="idempotent", approval=True)
    async def reserve() -> str:
        """Reserve a seat."""
        return "reserved"

    write = Question.record

    def of_an_earlier_version(question: Question, said: str) -> dict[str, object]:
        return {name: value for name, value in write(question, said).items() if name != "effect"}

    if not effect:
        monkeypatch.setattr(Question, "record", of_an_earlier_version)
    await leave_asking(journal, "seat", tools=[reserve], tool="reserve")
    [question] = await runs.pending("seat")
    assert question.effect == effect
    page = await (await operator(runs)).get("/inbox?run=seat")
    assert tag in page.text
    assert ("It cannot be taken back." in page.text) is warning
    assert ('class="btn danger"' in page.text) is warning


async def test_the_second_of_two_answers_is_refused_names_the_first_and_keeps_the_typed_text(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    [question] = await runs.pending(ASKS)
    first, second = await operator(runs), await operator(runs)
    forms = [await client.get("/inbox?run=asks") for client in (first, second)]
    answer = {"call": question.key, "digest": question.digest}
    await runs.approve(ASKS, question.key, by="ann", why="ok")
    late = await second.post(
        f"/answer/{ASKS}",
        {**answer, "form_token": forms[1].form_token(), "kind": "reject", "text": "too dear"},
    )
    assert late.status == 409
    assert "ann" in late.text
    assert "Answered: approve by ann" in late.text


async def test_an_answer_for_other_arguments_than_displayed_is_refused(
    journal: MemoryJournal, runs: Runs
) -> None:
    await fill(journal)
    client = await operator(runs)
    form = {
        "form_token": (await client.get("/inbox")).form_token(),
        "kind": "approve",
        "call": "1:0",
        "text": "",
    }
    refused = await client.post(f"/answer/{ASKS}", {**form, "digest": "0" * 64})
    assert refused.status == 409
    assert (await client.post(f"/answer/{ASKS}", {**form, "digest": ""})).status == 400
    assert (
        await client.post(f"/answer/{ASKS}", {**form, "kind": "respond", "digest": "0" * 64})
    ).status == 409
    assert len(await runs.pending(ASKS)) == 1


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (None, "–"),
        (0, "0.0000"),
        (12, "0.000012"),
        (9_999, "0.009999"),
        (10_000, "0.0100"),
        (1_234_567, "1.2346"),
        (99_999_999, "100.0000"),
        (100_000_000, "100.00"),
        (1_234_567_890_123, "1,234,567.89"),
    ],
)
def test_a_cost_has_the_digits_of_its_size(micros: int | None, text: str) -> None:
    assert money(micros) == text


async def test_a_cost_is_shown_with_its_currency_and_never_summed_with_another_one(
    journal: MemoryJournal, runs: Runs
) -> None:
    for currency, run_id in (("EUR", "euros"), ("USD", "dollars")):
        runtime = Runtime(
            journal=journal, price=price_table({"main": (1.0, 2.0)}, currency=currency), observers=()
        )
        model = ScriptedLLM([Response("Done.", usage=Usage(1_000_000, 250_000))], model="main")
        await Agent(model, name="support", version=currency, runtime=runtime).run("?", run_id=run_id)
    await agent(journal, said(text="Done."), name="support").run("?", run_id="unknown")
    client = Client(readable(runs))
    listed = (await client.get("/")).text
    assert re.findall(r'c-p num">([^<]+)<', listed) == ["0.1000", "1.5000 USD", "1.5000 EUR"]
    assert "<dd>1.5000 EUR</dd>" in (await client.get("/runs/euros")).text
    assert "currency unknown</dd>" in (await client.get("/runs/unknown")).text
    agents = (await client.get("/agents")).text
    assert "0.1000 of an unknown currency + 1.5000 EUR + 1.5000 USD" in agents
    one = (await client.get("/agents/support")).text
    assert "0.1000 of an unknown currency + 1.5000 EUR + 1.5000 USD in all" in one
    assert re.findall(r"<td class=.num.>1.5000 (...)</td>", one) == ["USD", "EUR"], "one for each version"
    compared = (await client.get("/compare?run=euros&run=dollars")).text
    assert "1.5000 EUR" in compared
    assert "1.5000 USD" in compared


# ---- what the model reads ----


@tool(effect="idempotent", approval=lambda _: False)
async def book(flight: str, seats: int = 1) -> str:
    """Book seats <on> a flight."""
    return f"{seats} on {flight}"


async def test_the_system_prompt_and_the_schemas_of_the_tools_are_on_the_page_of_a_run_once(
    journal: MemoryJournal, runs: Runs
) -> None:
    asking = agent(
        journal,
        *[said(call("book", flight="HAT1")), said(text="Done.")] * 2,
        tools=[book, look],
        instructions="Be brief & exact.",
    )
    await asking.run("Go.", run_id="r1")
    await asking.run("Go.", run_id="r2")
    client = Client(readable(runs))
    bare = (await client.get("/runs/r1")).text
    part = bare.partition('id="reads"')[2].partition("</section>")[0]
    assert ("System prompt" in part, "17 characters" in part) == (True, True)
    assert "idempotent, may ask a person" in part
    assert "Be brief" not in bare
    assert "Book seats" not in bare, "a schema is content"
    page = (await client.get("/runs/r1?content=shown")).text
    part = page.partition('id="reads"')[2].partition("</section>")[0]
    assert (page.count("Be brief &amp; exact."), page.count("Book seats &lt;on&gt; a flight.")) == (1, 1)
    assert "&#34;flight&#34;: {" in part
    assert "&#34;seats&#34;: {" in part
    answers = [record.body for record in await journal.load("r1") if record.kind == "answer"]
    assert ["offered" in body for body in answers] == [True, False], "each run names them once"
    [again] = [body["offered"] for body in (r.body for r in await journal.load("r2")) if "offered" in body]
    assert again == answers[0]["offered"], "and the journal has them once"


async def test_a_run_whose_schemas_are_not_in_the_journal_shows_the_names_of_its_tools(
    journal: MemoryJournal, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_asking(journal, ASKS)
    client = Client(readable(runs))

    async def damaged(digest: str) -> bytes:
        raise Corrupt(f"blob {digest} is damaged")

    monkeypatch.setattr(journal, "blob", damaged)
    page = (await client.get(f"/runs/{ASKS}?content=shown")).text
    part = page.partition('id="reads"')[2].partition("</section>")[0]
    assert ('<b class="mono">pay</b>' in part, "The journal has no schemas of these tools" in part) == (
        True,
        True,
    )


async def test_the_members_of_a_team_are_not_shown_as_its_tools(journal: MemoryJournal, runs: Runs) -> None:
    billing = agent(None, said(text="Paid."), name="billing")
    triage = agent(journal, said(call("transfer_to_billing")), name="triage", handoffs=[billing])
    await triage.run("Is it paid?", run_id="p1")
    client = Client(readable(runs))
    assert 'id="reads"' not in (await client.get("/runs/p1")).text
    assert '<b class="mono">look</b>' in (await client.get("/runs/p1:s1")).text


async def test_many_long_schemas_stay_within_the_size_of_a_page(journal: MemoryJournal, runs: Runs) -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(300)}}
    tools = [ToolSpec(f"tool_{n}", "x" * 3_000, schema, look) for n in range(60)]
    await agent(journal, said(text="Done."), tools=tools).run("Go.", run_id="big")
    page = await Client(readable(runs)).get("/runs/big?content=shown")
    assert len(page.body) < 200_000
    assert page.text.count('<b class="mono">tool_') == 60
    left_out = re.search(r"schemas of (\d+) tools are not shown: the page has no room", page.text)
    assert left_out is not None
    assert 0 < page.text.count('aria-label="Parameters of tool_') == 60 - int(left_out[1])


async def test_the_turn_after_a_resumption_with_other_tools_says_what_changed(
    journal: MemoryJournal, runs: Runs
) -> None:
    await leave_asking(journal, ASKS, version="1")
    heir = agent(journal, said(text="Done."), tools=[pay, book], version="2")
    await heir.reject(ASKS, why="no")
    await heir.resume(ASKS)
    page = (await Client(readable(runs)).get(f"/runs/{ASKS}")).text
    turn = page.partition('id="turn-2"')[2].partition("</section>")[0]
    assert "The tools changed before this turn:" in turn
    assert "&#39;book&#39; is new, &#39;look&#39; is missing" in turn
    assert page.count("The tools changed before this turn:") == 1


# ---- the frame ----


@pytest.mark.parametrize(
    ("address", "entry"),
    [
        ("/", 'href="/" aria-current="page"'),
        ("/runs/first", 'href="/" aria-current="true"'),
        ("/records/first", 'href="/" aria-current="true"'),
        ("/compare?run=first&run=second", 'href="/" aria-current="true"'),
        ("/inbox", 'href="/inbox" aria-current="page"'),
        ("/agents", 'href="/agents" aria-current="page"'),
        ("/agents/support", 'href="/agents" aria-current="true"'),
        ("/runs/nobody", ""),
    ],
)
async def test_a_page_below_an_entry_of_the_navigation_marks_the_entry(
    journal: MemoryJournal, runs: Runs, address: str, entry: str
) -> None:
    await fill(journal)
    page = await Client(readable(runs)).get(address)
    nav = page.text.partition('<nav class="nav"')[2].partition("</nav>")[0]
    assert re.findall(r'href="[^"]+" aria-current="[^"]+"', nav) == ([entry] if entry else [])


async def test_dark_differs_in_colours_alone(runs: Runs) -> None:
    client = await operator(runs)
    sheets = [(await client.get(f"/static/{name}.css")).text for name in ("console", "drawing")]
    dark = re.findall(r"@media \(prefers-color-scheme:dark\)\{[^{}]*\{([^{}]*)\}\}", "".join(sheets))
    assert len(dark) == sum(sheet.count("prefers-color-scheme") for sheet in sheets)
    declared = [one.strip() for block in dark for one in block.split(";") if one.strip()]
    assert [one for one in declared if not re.match(r"--([\w-]+:#[0-9a-f]+$|shadow)", one)] == []
    assert "matchMedia" not in (await client.get("/static/console.js")).text
