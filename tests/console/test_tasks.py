"""Tasks of a person in a real browser, with clicks and keys counted, on a desk in light and on a phone in dark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator import Limits, RetryPolicy, SqliteJournal
from orchestrator.errors import LLMError
from orchestrator.evaluation import load_cases
from orchestrator.providers.scripted import call
from tests.console.browsing import Person, Processes, Task, in_a_loop, overflow, violations
from tests.console.stored import agent, leave_asking, said

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.system("chromium"), pytest.mark.campaign]
VIEWS = pytest.mark.parametrize(
    ("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")]
)


def await_file(path: Path) -> None:
    """Wait until another process has written a file."""
    while not path.exists():
        time.sleep(0.02)


async def leave_failed(path: Path, run_id: str = "failed") -> None:
    """Leave a run whose model failed in its second turn."""
    down = LLMError("upstream connect error", kind="server_error", status=503)
    async with SqliteJournal(path) as journal:
        failing = agent(journal, said(call("look")), down, retry=RetryPolicy(attempts=1))
        await failing.run("Look.", run_id=run_id)


@VIEWS
def test_why_a_run_failed_is_read_with_a_click_and_its_message_and_its_place_with_one_more_each(
    browser: Browser, processes: Processes, width: int, scheme: str
) -> None:
    in_a_loop(leave_failed(processes.journal))
    ann = Person.at(browser, processes.console(), width=width, scheme=scheme)
    page = ann.page("/")
    task = Task(page)
    task.click(page.get_by_role("link", name="failed", exact=True))
    page.get_by_text("LLMError (server_error, HTTP 503").wait_for()
    page.get_by_text("in await_llm, turn 2, attempt 1.").wait_for()
    assert task.effort == (1, 0)
    assert overflow(page) == violations(page) == []
    task.click(page.get_by_role("link", name="Show the message"))
    page.locator(".note.bad", has_text="upstream connect error").wait_for()
    assert overflow(page) == violations(page) == []
    task.click(page.get_by_role("link", name="What came before"))
    page.wait_for_url("**/runs/failed?turn=1&content=shown#turn-1")
    assert page.get_by_role("heading", name="Transcript").evaluate(
        "one => one.getBoundingClientRect().top < innerHeight"
    )
    assert task.effort == (3, 0)
    assert ann.said == []


async def leave_listed(path: Path) -> None:
    """Leave a failed run, and one under an id that nobody chose."""
    await leave_failed(path)
    async with SqliteJournal(path) as journal:
        done = agent(journal, said(call("look")), said(text="Done."), name="billing-reconciliation")
        await done.run("Refund invoice 4711.\nTell the customer.", run_id="a" * 32)


@VIEWS
def test_the_list_says_what_each_run_is_about_after_one_click(
    browser: Browser, processes: Processes, width: int, scheme: str
) -> None:
    in_a_loop(leave_listed(processes.journal))
    ann = Person.at(browser, processes.console(), width=width, scheme=scheme)
    page = ann.page("/")
    task = Task(page)
    newest, failed = page.locator("#rows tr").all()
    assert newest.locator(".c-i").inner_text() == "a" * 12
    assert "billing-reconciliation" in newest.inner_text()
    assert "server_error, HTTP 503" in failed.inner_text()
    assert "upstream" not in page.content(), "the message is content"
    assert overflow(page) == violations(page) == []
    task.click(page.get_by_role("link", name="Show tasks"))
    page.get_by_role("link", name="Refund invoice 4711.").wait_for()
    assert "Tell the customer" not in page.content()
    assert "upstream connect error" in failed.inner_text()
    for cell in (newest.locator(".c-a"), newest.locator(".c-s"), newest.locator(".c-p")):
        assert cell.is_visible()
    turns = newest.locator("td").nth(6)
    assert turns.inner_text() == "2"
    assert turns.is_visible() == (width > 640)
    assert overflow(page) == violations(page) == []
    in_a_loop(leave_failed(processes.journal, "again"))
    page.get_by_role("link", name="1 new run").wait_for()
    assert page.get_by_role("link", name="Refund invoice 4711.").is_visible(), "rows keep their tasks"
    task.click(page.get_by_role("link", name="Hide tasks"))
    page.get_by_role("link", name="Show tasks").wait_for()
    assert "Refund" not in page.content()
    assert task.effort == (2, 0)
    assert ann.said == []


async def leave_many(path: Path) -> None:
    """Leave more waiting runs than a page of the inbox has."""
    async with SqliteJournal(path) as journal:
        for number in range(52):
            await leave_asking(journal, f"asks-{number:02}", note=f"invoice {number}")


@VIEWS
def test_two_calls_of_the_second_page_of_the_inbox_are_rejected_with_six_clicks_and_a_reason(
    browser: Browser, processes: Processes, width: int, scheme: str
) -> None:
    in_a_loop(leave_many(processes.journal))
    ann = Person.at(browser, processes.console("--operate"), width=width, scheme=scheme)
    page = ann.page("/inbox")
    task = Task(page)
    page.get_by_text("52 runs wait for a person").wait_for()
    assert overflow(page) == violations(page) == []
    task.click(page.get_by_role("link", name="Next", exact=True))
    page.get_by_text("51 to 52 of 52").wait_for()
    for name in ("asks-50", "asks-51"):
        assert f"invoice {name[-2:]}" in page.locator(f"#asks-{name}").inner_text()
        task.click(page.get_by_role("checkbox", name=f"Select {name}"))
    page.get_by_text("2 selected").wait_for()
    assert overflow(page) == violations(page) == []
    task.click(page.get_by_role("button", name="Reject…"))
    page.get_by_role("heading", name="Reject 2 calls?").wait_for()
    assert overflow(page) == violations(page) == []
    task.click(page.get_by_role("textbox"))
    task.type("too dear")
    task.click(page.get_by_role("button", name="Reject 2 calls"))
    page.get_by_role("heading", name="Reject: 2 answers").wait_for()
    assert overflow(page) == violations(page) == []
    assert page.get_by_role("cell", name="rejected", exact=True).count() == 2
    assert task.effort == (6, len("too dear"))
    assert ann.said == []


async def leave_tree(path: Path) -> None:
    """Leave a tree of three agents whose last run waits for a person."""
    async with SqliteJournal(path) as journal:
        clerk = agent(None, said(call("pay", amount=7)), name="clerk")
        desk = agent(
            None, said(call("pay_it", task="7")), name="desk", tools=[clerk.as_tool("pay_it", "Pay.")]
        )
        bill = desk.as_tool("bill", "Bill.")
        front = agent(journal, said(call("bill", task="7")), name="front", tools=[bill])
        await front.run("go", run_id="p", wait="never")


@VIEWS
def test_a_question_of_a_grandchild_is_answered_from_the_root_and_each_run_of_the_tree_is_a_click_away(
    browser: Browser, processes: Processes, width: int, scheme: str
) -> None:
    in_a_loop(leave_tree(processes.journal))
    ann = Person.at(browser, processes.console("--operate"), width=width, scheme=scheme)
    page = ann.page("/runs/p")
    assert overflow(page) == violations(page) == []
    task = Task(page)
    page.get_by_text("front > desk > clerk").wait_for()
    tree = page.locator(".runs-tree")
    task.click(tree.get_by_role("link", name="1:0", exact=True).last)
    page.wait_for_url("**/runs/p:1:0:1:0")
    assert tree.locator("li").count() == 3
    assert "11 tokens, 0.1000" in tree.locator("li.here").inner_text()
    assert overflow(page) == violations(page) == []
    task.click(tree.get_by_role("link", name="p", exact=True))
    page.wait_for_url("**/runs/p")
    task.click(page.get_by_role("link", name="Read and answer"))
    article = page.locator("article.card")
    assert article.get_by_text("7", exact=False).first.is_visible()
    assert overflow(page) == violations(page) == []
    task.click(article.get_by_placeholder("Reason, required; the model reads it"))
    task.type("too dear")
    task.click(article.get_by_role("button", name="Reject the call"))
    page.wait_for_url("**/runs/p:1:0:1:0")
    page.get_by_text("The run has not read it yet").wait_for()
    assert task.effort == (5, len("too dear"))
    assert ann.said == []


async def leave_instructed(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await agent(journal, said(text="Done."), instructions="Be brief. " * 400).run("Go.", run_id="r1")


@VIEWS
def test_the_system_prompt_and_the_schema_of_a_tool_are_read_with_a_click_each(
    browser: Browser, processes: Processes, width: int, scheme: str
) -> None:
    in_a_loop(leave_instructed(processes.journal))
    ann = Person.at(browser, processes.console(), width=width, scheme=scheme)
    page = ann.page("/runs/r1")
    reads, task = page.locator("#reads"), Task(page)
    assert "Be brief" not in page.content()
    assert overflow(page) == violations(page) == []
    task.click(reads.get_by_role("link", name="Show content"))
    page.wait_for_url("**/runs/r1?content=shown#reads")
    task.click(reads.get_by_text("System prompt, 4,000 characters"))
    assert reads.get_by_role("region", name="System prompt").inner_text().startswith("Be brief. Be brief.")
    task.click(reads.get_by_text("irreversible, asks a person"))
    assert '"amount": {' in reads.get_by_role("region", name="Parameters of pay").inner_text()
    assert overflow(page) == violations(page) == []
    assert task.effort == (3, 0)
    assert ann.said == []


@VIEWS
def test_the_address_of_a_filtered_page_has_the_filters_that_were_filled_in_and_no_empty_ones(
    browser: Browser, processes: Processes, width: int, scheme: str
) -> None:
    in_a_loop(leave_listed(processes.journal))
    ann = Person.at(browser, processes.console(), width=width, scheme=scheme)
    page = ann.page("/")
    task = Task(page)
    task.press("/")
    task.type("503")
    task.press("Enter")
    page.wait_for_url("**/?q=503")
    page.goto(f"{ann.base}/compare")
    page.get_by_label("Second run").fill("failed")
    task.press("Enter")
    page.wait_for_url("**/compare?run=failed")
    page.goto(f"{ann.base}/agents?window=1h")
    page.get_by_label("Tag").fill("team=ops")
    task.press("Enter")
    page.wait_for_url("**/agents?window=1h&tag=team%3Dops")
    page.get_by_label("Tag").fill("")
    task.press("Enter")
    page.wait_for_url("**/agents?window=1h")
    assert overflow(page) == violations(page) == []
    assert ann.said == []


@VIEWS
def test_a_question_mark_shows_the_keys_and_escape_hides_them(
    browser: Browser, processes: Processes, width: int, scheme: str
) -> None:
    in_a_loop(leave_failed(processes.journal))
    ann = Person.at(browser, processes.console(), width=width, scheme=scheme)
    page = ann.page("/")
    task = Task(page)
    task.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    keys.get_by_text("next and previous run or question").wait_for()
    assert overflow(page) == violations(page) == []
    task.press("Escape")
    keys.wait_for(state="hidden")
    task.press("/")
    task.type("?")
    assert page.locator("#search").input_value() == "?", "a key in a field is text"
    assert keys.is_hidden()
    assert ann.said == []


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The console of a run of 2,000 turns."""
    processes = Processes(tmp_path_factory.mktemp("long"))

    async def write() -> None:
        async with SqliteJournal(processes.journal) as journal:
            answers = [said(call("look", where=f"part {turn} " * 100)) for turn in range(1, 2_000)]
            reading = agent(journal, *answers, said(text="Done."), limits=Limits(max_iterations=0))
            await reading.run("Read everything.", run_id="long")

    in_a_loop(write())
    yield processes.console(shared=True)
    processes.stop()


@VIEWS
def test_a_turn_of_two_thousand_is_reached_with_two_clicks_and_its_number_and_its_timeline_with_one(
    browser: Browser, long_run: str, width: int, scheme: str
) -> None:
    ann = Person.at(browser, long_run, width=width, scheme=scheme)
    page = ann.page("/runs/long?content=shown")
    assert len(page.request.get(page.url).body()) <= 200_000
    assert overflow(page) == violations(page) == []
    task = Task(page)
    task.click(page.get_by_role("textbox", name="Turn", exact=True))
    task.type("700")
    task.click(page.get_by_role("button", name="Go", exact=True))
    turn = page.locator("#turn-700")
    turn.get_by_text("part 700 part 700").first.wait_for()
    assert "part 699" not in page.locator("#transcript").inner_text(), "the others are closed"
    assert len(page.request.get(page.url).body()) <= 200_000
    assert overflow(page) == violations(page) == []
    assert task.effort == (2, 3)
    task.click(turn.get_by_role("link", name=", turn 700 in the timeline"))
    page.wait_for_url("**/runs/long?turns=700-700#timeline")
    page.get_by_text("turns 700-700", exact=True).wait_for()
    assert page.locator("#turn-700").count() == 1, "the transcript follows the timeline"
    assert ann.said == []


async def leave_done(path: Path) -> None:
    """Leave an ended run of two turns of the agent that `tests.console.host` has."""
    async with SqliteJournal(path) as journal:
        done = agent(journal, said(call("look", where="here")), said(text="Done."))
        await done.run("Look.", run_id="done", tags={"team": "ops"})


@VIEWS
def test_a_run_is_started_with_two_clicks_and_its_message_and_a_second_click_starts_no_second_run(
    browser: Browser, processes: Processes, width: int, scheme: str
) -> None:
    in_a_loop(leave_done(processes.journal))
    ann = Person.at(browser, processes.console("--operate"), width=width, scheme=scheme)
    page = ann.page("/start")
    page.get_by_text("No live engine on this journal starts runs for a console.").wait_for()
    assert overflow(page) == violations(page) == []
    processes.host()
    await_file(processes.folder / "started")
    page = ann.page("/")
    task = Task(page)
    task.click(page.get_by_role("link", name="Start a run…"))
    page.get_by_role("heading", name="Start a run").wait_for()
    assert overflow(page) == violations(page) == []
    page.get_by_label("Message").focus()
    task.type("Look, then pay.")
    page.get_by_label("Tags, one name=value on each line").fill("nonsense")
    page.get_by_role("button", name="Start the run").click()
    page.get_by_text("Write each tag once").wait_for()
    assert page.get_by_label("Message").input_value() == "Look, then pay."
    assert page.get_by_label("Tags, one name=value on each line").get_attribute("aria-invalid") == "true"
    assert overflow(page) == violations(page) == []
    page.get_by_label("Tags, one name=value on each line").fill("team=ops")
    page.get_by_role("button", name="Start the run").dblclick()
    task.clicks += 1
    page.wait_for_url("**/runs/*")
    page.locator(".facts", has_text="support").wait_for()
    assert task.effort == (2, len("Look, then pay."))
    page = ann.page("/")
    assert page.locator("#rows tr").count() == 2
    assert [one for one in ann.said if "status of 422" not in one] == [], "of the wrong tags"


@VIEWS
def test_an_ended_run_is_forked_after_a_turn_and_compared_with_its_fork_with_three_clicks(
    browser: Browser, processes: Processes, width: int, scheme: str
) -> None:
    in_a_loop(leave_done(processes.journal))
    processes.host()
    await_file(processes.folder / "started")
    ann = Person.at(browser, processes.console("--operate"), width=width, scheme=scheme)
    page = ann.page("/runs/done")
    assert overflow(page) == violations(page) == []
    task = Task(page)
    task.click(page.locator("#turn-1").get_by_role("link", name="Fork… after turn 1"))
    page.get_by_role("heading", name="Fork after turn 1").wait_for()
    assert overflow(page) == violations(page) == []
    task.click(page.get_by_role("button", name="Start the fork"))
    page.get_by_text("after turn 1", exact=False).first.wait_for()
    assert overflow(page) == violations(page) == []
    fork = page.url.rpartition("/")[2]
    task.click(page.get_by_role("link", name="with that run"))
    page.get_by_text("was forked after turn 1 of the first").wait_for()
    assert task.effort == (3, 0)
    page = ann.page("/runs/done")
    page.locator("#forks").get_by_role("link", name=fork[:12], exact=True).click()
    page.wait_for_url(f"**/runs/{fork}")
    assert ann.said == []


@VIEWS
def test_an_ended_run_is_run_again_with_two_clicks_and_becomes_a_case_with_one(
    browser: Browser, processes: Processes, width: int, scheme: str
) -> None:
    in_a_loop(leave_done(processes.journal))
    processes.host()
    await_file(processes.folder / "started")
    ann = Person.at(browser, processes.console("--operate"), width=width, scheme=scheme)
    page = ann.page("/runs/done")
    task = Task(page)
    with page.expect_download() as download:
        task.click(page.get_by_role("link", name="Case for an evaluation"))
    assert download.value.suggested_filename == "case-done.jsonl"
    [case] = load_cases(Path(download.value.path()).rename(processes.folder / "case.jsonl"))
    assert (case.name, case.input) == ("done", "Look.")
    assert task.effort == (1, 0)
    task.click(page.get_by_role("link", name="Run again…"))
    page.get_by_role("heading", name="Run again").wait_for()
    assert overflow(page) == violations(page) == []
    task.click(page.get_by_role("button", name="Run again"))
    page.get_by_text("Started again from").wait_for()
    assert task.effort == (3, 0)
    assert overflow(page) == violations(page) == []
    assert ann.said == []
