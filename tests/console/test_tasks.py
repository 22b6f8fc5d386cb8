"""Tasks of a person in a real browser, with clicks and keys counted, on a desk and on a phone, in light and dark."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Limits, RetryPolicy, SqliteJournal
from orchestrator.errors import LLMError
from orchestrator.evaluation import load_cases
from orchestrator.providers.scripted import call
from tests.console.browsing import Person, Processes, Task, in_a_loop, overflow, violations
from tests.console.stored import agent, leave_asking, said
from tests.console.tasks import TASKS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.system("chromium"), pytest.mark.campaign]


@dataclass(slots=True)
class Desk:
    """A browser of one width, and the processes behind its consoles, which must stay silent."""

    browser: Browser
    processes: Processes
    width: int
    people: list[Person] = field(default_factory=list)

    def sit(self, leave: Callable[[Path], Coroutine[Any, Any, None]], *options: str) -> Person:
        """Fill the journal, and sign in to its console."""
        in_a_loop(leave(self.processes.journal))
        return self.at(self.processes.console(*options))

    def at(self, address: str) -> Person:
        """Sign in to a console that is there."""
        self.people.append(Person.at(self.browser, address, width=self.width))
        return self.people[-1]


@pytest.fixture(params=[1440, 390])
def desk(request: pytest.FixtureRequest, browser: Browser, processes: Processes) -> Iterator[Desk]:
    found = Desk(browser, processes, request.param)
    yield found
    assert [said for ann in found.people for said in ann.said] == []


def faults(page: Page) -> list[str]:
    """Return what a page shows beyond its window, and what axe-core finds on it, light and dark."""
    return overflow(page) + violations(page)


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


def test_why_a_run_failed_is_read_with_a_click_and_its_message_and_its_place_with_one_more_each(
    desk: Desk,
) -> None:
    ann = desk.sit(leave_failed)
    page = ann.page("/")
    task = Task(page)
    task.click(page.get_by_role("link", name="failed", exact=True))
    page.get_by_text("LLMError (server_error, HTTP 503").wait_for()
    page.get_by_text("in await_llm, turn 2, attempt 1.").wait_for()
    assert (
        task.effort == TASKS["see why a run of the list failed: error, HTTP status, state, turn and attempt"]
    )
    assert faults(page) == []
    task.click(page.get_by_role("link", name="Show the message"))
    page.locator(".note.bad", has_text="upstream connect error").wait_for()
    assert faults(page) == []
    task.click(page.get_by_role("link", name="What came before"))
    page.wait_for_url("**/runs/failed?turn=1&content=shown#turn-1")
    assert page.get_by_role("heading", name="Transcript").evaluate(
        "one => one.getBoundingClientRect().top < innerHeight"
    )
    assert task.effort == TASKS["… and read its message and what came before"]


async def leave_listed(path: Path) -> None:
    """Leave a failed run, and one under an id that nobody chose."""
    await leave_failed(path)
    async with SqliteJournal(path) as journal:
        done = agent(journal, said(call("look")), said(text="Done."), name="billing-reconciliation")
        await done.run("Refund invoice 4711.\nTell the customer.", run_id="a" * 32)


def test_the_list_says_what_each_run_is_about_after_one_click(desk: Desk) -> None:
    ann = desk.sit(leave_listed)
    page = ann.page("/")
    task = Task(page)
    newest, failed = page.locator("#rows tr").all()
    assert newest.locator(".c-i").inner_text() == "a" * 12
    assert "billing-reconciliation" in newest.inner_text()
    assert "server_error, HTTP 503" in failed.inner_text()
    assert "upstream" not in page.content(), "the message is content"
    assert faults(page) == []
    task.click(page.get_by_role("link", name="Show tasks"))
    page.get_by_role("link", name="Refund invoice 4711.").wait_for()
    assert "Tell the customer" not in page.content()
    assert "upstream connect error" in failed.inner_text()
    assert task.effort == TASKS["see the task of each run of the list"]
    for cell in (newest.locator(".c-a"), newest.locator(".c-s"), newest.locator(".c-p")):
        assert cell.is_visible()
    turns = newest.locator("td").nth(6)
    assert turns.inner_text() == "2"
    assert turns.is_visible() == (desk.width > 640)
    assert faults(page) == []
    in_a_loop(leave_failed(desk.processes.journal, "again"))
    page.get_by_role("link", name="1 new run").wait_for()
    assert page.get_by_role("link", name="Refund invoice 4711.").is_visible(), "rows keep their tasks"
    task.click(page.get_by_role("link", name="Hide tasks"))
    page.get_by_role("link", name="Show tasks").wait_for()
    assert "Refund" not in page.content()


async def leave_many(path: Path) -> None:
    """Leave more waiting runs than a page of the inbox has."""
    async with SqliteJournal(path) as journal:
        for number in range(52):
            await leave_asking(journal, f"asks-{number:02}", note=f"invoice {number}")


def test_two_calls_of_the_second_page_of_the_inbox_are_rejected_with_six_clicks_and_a_reason(
    desk: Desk,
) -> None:
    ann = desk.sit(leave_many, "--operate")
    page = ann.page("/inbox")
    task = Task(page)
    page.get_by_text("52 runs wait for a person").wait_for()
    assert faults(page) == []
    task.click(page.get_by_role("link", name="Next", exact=True))
    page.get_by_text("51 to 52 of 52").wait_for()
    for name in ("asks-50", "asks-51"):
        assert f"invoice {name[-2:]}" in page.locator(f"#asks-{name}").inner_text()
        task.click(page.get_by_role("checkbox", name=f"Select {name}"))
    page.get_by_text("2 selected").wait_for()
    assert faults(page) == []
    task.click(page.get_by_role("button", name="Reject…"))
    page.get_by_role("heading", name="Reject 2 calls?").wait_for()
    assert faults(page) == []
    task.click(page.get_by_role("textbox"))
    task.type("too dear")
    task.click(page.get_by_role("button", name="Reject 2 calls"))
    page.get_by_role("heading", name="Reject: 2 answers").wait_for()
    assert faults(page) == []
    assert page.get_by_role("cell", name="rejected", exact=True).count() == 2
    assert task.effort == TASKS["reject two calls of the second page of the inbox for one reason"]


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


def test_a_question_of_a_grandchild_is_answered_from_the_root_and_each_run_of_the_tree_is_a_click_away(
    desk: Desk,
) -> None:
    ann = desk.sit(leave_tree, "--operate")
    page = ann.page("/runs/p")
    assert faults(page) == []
    task = Task(page)
    page.get_by_text("front > desk > clerk").wait_for()
    tree = page.locator(".runs-tree")
    task.click(tree.get_by_role("link", name="1:0", exact=True).last)
    page.wait_for_url("**/runs/p:1:0:1:0")
    assert tree.locator("li").count() == 3
    assert "11 tokens, 0.1000" in tree.locator("li.here").inner_text()
    assert faults(page) == []
    task.click(tree.get_by_role("link", name="p", exact=True))
    page.wait_for_url("**/runs/p")
    task.click(page.get_by_role("link", name="Read and answer"))
    article = page.locator("article.card")
    article.get_by_text("7", exact=False).first.wait_for()
    assert faults(page) == []
    task.click(article.get_by_placeholder("Reason, required; the model reads it"))
    task.type("too dear")
    task.click(article.get_by_role("button", name="Reject the call"))
    page.wait_for_url("**/runs/p:1:0:1:0")
    page.get_by_text("The run has not read it yet").wait_for()
    assert (
        task.effort == TASKS["walk a tree of three runs, and answer a question of the lowest from the root"]
    )


async def leave_instructed(path: Path) -> None:
    async with SqliteJournal(path) as journal:
        await agent(journal, said(text="Done."), instructions="Be brief. " * 400).run("Go.", run_id="r1")


def test_the_system_prompt_and_the_schema_of_a_tool_are_read_with_a_click_each(desk: Desk) -> None:
    ann = desk.sit(leave_instructed)
    page = ann.page("/runs/r1")
    reads, task = page.locator("#reads"), Task(page)
    assert "Be brief" not in page.content()
    assert faults(page) == []
    task.click(reads.get_by_role("link", name="Show content"))
    page.wait_for_url("**/runs/r1?content=shown#reads")
    task.click(reads.get_by_text("System prompt, 4,000 characters"))
    assert reads.get_by_role("region", name="System prompt").inner_text().startswith("Be brief. Be brief.")
    task.click(reads.get_by_text("irreversible, asks a person"))
    assert '"amount": {' in reads.get_by_role("region", name="Parameters of pay").inner_text()
    assert faults(page) == []
    assert task.effort == TASKS["read the system prompt and the schema of a tool"]


def test_a_run_is_found_by_a_word_and_an_address_has_the_filters_that_were_filled_in_and_no_empty_ones(
    desk: Desk,
) -> None:
    ann = desk.sit(leave_listed)
    page = ann.page("/?q=503")
    while not page.locator("#rows tr").count():
        page.reload()  # until the index has the texts of both runs
    page = ann.page("/")
    task = Task(page)
    task.press("/")
    task.type("503")
    task.press("Enter")
    page.wait_for_url("**/?q=503")
    page.locator("#rows tr").get_by_text("server_error, HTTP 503").wait_for()
    assert faults(page) == []
    for key in ("j", "Enter"):
        task.press(key)
    page.wait_for_url("**/runs/failed")
    assert task.effort == TASKS["find the runs with an HTTP status, and open the first"]
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
    assert faults(page) == []


def test_a_question_mark_shows_the_keys_and_escape_hides_them(desk: Desk) -> None:
    ann = desk.sit(leave_failed)
    page = ann.page("/")
    task = Task(page)
    task.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    keys.get_by_text("next and previous run or question").wait_for()
    assert task.effort == TASKS["see the keys"]
    assert faults(page) == []
    task.press("Escape")
    keys.wait_for(state="hidden")
    task.press("/")
    task.type("?")
    assert page.locator("#search").input_value() == "?", "a key in a field is text"
    task.press("Escape")
    task.press("/")
    task.type("x")
    assert page.locator("#search").input_value() == "x", "the key selects the words before"
    assert keys.is_hidden()


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


def test_a_turn_of_two_thousand_is_reached_with_two_clicks_and_its_number_and_its_timeline_with_one(
    desk: Desk, long_run: str
) -> None:
    ann = desk.at(long_run)
    page = ann.page("/runs/long?content=shown")
    assert len(page.request.get(page.url).body()) <= 200_000
    assert faults(page) == []
    task = Task(page)
    task.click(page.get_by_role("textbox", name="Turn", exact=True))
    task.type("700")
    task.click(page.get_by_role("button", name="Go", exact=True))
    turn = page.locator("#turn-700")
    turn.get_by_text("part 700 part 700").first.wait_for()
    assert "part 699" not in page.locator("#transcript").inner_text(), "the others are closed"
    assert len(page.request.get(page.url).body()) <= 200_000
    assert faults(page) == []
    assert task.effort == TASKS["open a turn of 2,000"]
    task.click(turn.get_by_role("link", name=", turn 700 in the timeline"))
    page.wait_for_url("**/runs/long?turns=700-700#timeline")
    page.get_by_text("turns 700-700", exact=True).wait_for()
    assert page.locator("#turn-700").count() == 1, "the transcript follows the timeline"


async def leave_done(path: Path) -> None:
    """Leave an ended run of two turns of the agent that `tests.console.host` has."""
    async with SqliteJournal(path) as journal:
        done = agent(journal, said(call("look", where="here")), said(text="Done."))
        await done.run("Look.", run_id="done", tags={"team": "ops"})


def test_a_run_is_started_with_two_clicks_and_its_message_and_a_second_click_starts_no_second_run(
    desk: Desk,
) -> None:
    ann = desk.sit(leave_done, "--operate")
    page = ann.page("/start")
    page.get_by_text("No live engine on this journal starts runs for a console.").wait_for()
    assert faults(page) == []
    desk.processes.host()
    await_file(desk.processes.folder / "started")
    page = ann.page("/")
    task = Task(page)
    task.click(page.get_by_role("link", name="Start a run…"))
    page.get_by_role("heading", name="Start a run").wait_for()
    assert faults(page) == []
    page.get_by_label("Message").focus()
    task.type("Look, then pay.")
    page.get_by_label("Tags, one name=value on each line").fill("nonsense")
    page.get_by_role("button", name="Start the run").click()
    page.get_by_text("Write each tag once").wait_for()
    assert page.get_by_label("Message").input_value() == "Look, then pay."
    assert page.get_by_label("Tags, one name=value on each line").get_attribute("aria-invalid") == "true"
    assert faults(page) == []
    page.get_by_label("Tags, one name=value on each line").fill("team=ops")
    page.get_by_role("button", name="Start the run").dblclick()
    task.clicks += 1
    page.wait_for_url("**/runs/*")
    page.locator(".facts", has_text="support").wait_for()
    assert task.effort == TASKS["start a run with a message"]
    page = ann.page("/")
    assert page.locator("#rows tr").count() == 2
    ann.said[:] = [one for one in ann.said if "status of 422" not in one]  # of the wrong tags


def test_an_ended_run_is_forked_after_a_turn_and_compared_with_its_fork_with_three_clicks(desk: Desk) -> None:
    ann = desk.sit(leave_done, "--operate")
    desk.processes.host()
    await_file(desk.processes.folder / "started")
    page = ann.page("/runs/done")
    assert faults(page) == []
    task = Task(page)
    task.click(page.locator("#turn-1").get_by_role("link", name="Fork… after turn 1"))
    page.get_by_role("heading", name="Fork after turn 1").wait_for()
    assert faults(page) == []
    task.click(page.get_by_role("button", name="Start the fork"))
    page.get_by_text("after turn 1", exact=False).first.wait_for()
    assert faults(page) == []
    fork = page.url.rpartition("/")[2]
    task.click(page.get_by_role("link", name="with that run"))
    page.get_by_text("was forked after turn 1 of the first").wait_for()
    assert task.effort == TASKS["fork an ended run after a turn, and compare both"]
    page = ann.page("/runs/done")
    page.locator("#forks").get_by_role("link", name=fork[:12], exact=True).click()
    page.wait_for_url(f"**/runs/{fork}")


def test_an_ended_run_is_run_again_with_two_clicks_and_becomes_a_case_with_one(desk: Desk) -> None:
    ann = desk.sit(leave_done, "--operate")
    desk.processes.host()
    await_file(desk.processes.folder / "started")
    page = ann.page("/runs/done")
    task = Task(page)
    with page.expect_download() as download:
        task.click(page.get_by_role("link", name="Case for an evaluation"))
    assert download.value.suggested_filename == "case-done.jsonl"
    [case] = load_cases(Path(download.value.path()).rename(desk.processes.folder / "case.jsonl"))
    assert (case.name, case.input) == ("done", "Look.")
    assert task.effort == TASKS["download an ended run as a case of an evaluation"]
    task = Task(page)
    task.click(page.get_by_role("link", name="Run again…"))
    page.get_by_role("heading", name="Run again").wait_for()
    assert faults(page) == []
    task.click(page.get_by_role("button", name="Run again"))
    page.get_by_text("Started again from").wait_for()
    assert task.effort == TASKS["run an ended run again"]
    assert faults(page) == []


async def leave_versions(path: Path) -> None:
    """Leave runs of two versions of an agent, of which the newer one fails."""
    down = LLMError("upstream connect error", kind="server_error", status=503)
    async with SqliteJournal(path) as journal:
        for version, answer in (("v1", said(text="Done.")), ("v2", down)):
            selling = agent(journal, answer, name="sales", version=version, retry=RetryPolicy(attempts=1))
            await selling.run("Sell.", run_id=version)


def test_a_failing_version_of_an_agent_is_seen_with_two_clicks_and_its_failed_runs_with_one_more(
    desk: Desk,
) -> None:
    page = desk.sit(leave_versions).page("/")
    task = Task(page)
    task.click(page.get_by_role("link", name="Agents", exact=True))
    page.get_by_role("heading", name="Agents").wait_for()
    assert faults(page) == []
    task.click(page.get_by_role("link", name="sales", exact=True))
    newer, older = page.locator("section", has_text="the newest first").locator("tbody tr").all()
    assert ("v2" in newer.inner_text(), "100%" in newer.locator(".s-failed").inner_text()) == (True, True)
    assert ("v1" in older.inner_text(), older.locator(".s-failed").count()) == (True, 0)
    assert faults(page) == []
    task.click(page.get_by_role("link", name="Failed runs"))
    page.wait_for_url("**/?agent=sales&show=failed")
    assert page.locator("#rows tr").count() == 1
    assert faults(page) == []
    assert task.effort == TASKS["see which version of an agent fails, and list its failed runs"]


async def leave_two_failed(path: Path) -> None:
    await leave_failed(path)
    await leave_failed(path, "again")


def test_two_runs_without_an_output_are_compared_with_four_keys_and_a_click(desk: Desk) -> None:
    page = desk.sit(leave_two_failed).page("/")
    task = Task(page)
    for key in ("j", "x", "j", "x"):
        task.press(key)
    page.get_by_text("2 selected").wait_for()
    assert faults(page) == []
    task.click(page.get_by_role("button", name="Compare two"))
    page.locator("#verdict", has_text="Neither run has an output.").wait_for()
    assert faults(page) == []
    assert task.effort == TASKS["compare the two newest runs"]
