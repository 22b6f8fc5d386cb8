"""The console in a real browser: live pages, answers, two people, a crash, sizes, keys, accessibility.

`CONSOLE_PICTURES=1` writes the pictures of the guide anew, into orchestrator/console/pictures.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from orchestrator import Runs, SqliteJournal
from orchestrator.examples.console_demo import agents, fill
from tests.console.browsing import ROOT, SECONDS, Person, Processes, in_a_loop, overflow, violations
from tests.console.gated import GATE
from tests.console.stored import leave_asking, leave_planned

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.system("chromium")]
PICTURES = ROOT / "orchestrator" / "console" / "pictures" if os.environ.get("CONSOLE_PICTURES") else None
PAGES = {
    "runs": "/",
    "run": "/runs/downgrade-omar",
    "inbox": "/inbox?run=downgrade-omar",
    "plan": "/inbox?run=prices-in-one-file",
    "agents": "/agents",
    "agent": "/agents/fare-rules",
    "machines": "/machines?machine=llm_loop",
    "health": "/health",
    "records": "/records/downgrade-omar",
    "compare": "/compare?run=question-1&run=question-2&content=shown",
    "backtest": "/backtest?max_no_progress=2&max_iterations=2",
    "sweep": "/backtest?sweep=max_iterations%3D1..4",
    "limits": "/backtest?max_iterations=-1&guidance=many&sweep=max_iterations",
    "several": "/several?kind=cancel&run=downgrade-omar",
    "start": "/start?agent=support",
    "fault": "/runs/nobody",
}


def until(condition: Callable[[], bool]) -> None:
    for _ in range(SECONDS // 50):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("the condition was not met")


def decisions(journal: Path, run_id: str) -> list[tuple[str, str]]:
    async def read() -> list[tuple[str, str]]:
        async with SqliteJournal(journal, only_reads=True) as opened:
            story = (await Runs(opened).get(run_id)).story
            return [
                (str(body.get("decision")), str(body.get("why")))
                for kind, body in story.decisions
                if kind == "approval"
            ]

    return in_a_loop(read())


def fill_file(path: Path) -> None:
    """Write the runs of the demonstration, one that waits for a person, and one whose plan does."""

    async def write() -> None:
        async with SqliteJournal(path) as journal:
            team = agents(journal)
            await fill(team)
            going = asyncio.create_task(
                team["travel-desk"].run(
                    "Please downgrade my flights to economy.",
                    run_id="downgrade-omar",
                    tags={"tenant": "acme"},
                )
            )
            while not (await journal.count()).waiting:  # noqa: ASYNC110 - a run reports nothing to us
                await asyncio.sleep(0.05)
            going.cancel()
            await asyncio.wait((going,))
            await leave_planned(journal, path.parent / "shop", "prices-in-one-file")

    in_a_loop(write())


# ---- live ----


@pytest.mark.campaign
def test_a_run_is_watched_live_answered_reloaded_killed_and_resumed(
    browser: Browser, processes: Processes
) -> None:
    host = processes.host("live")
    until(processes.journal.exists)
    until((processes.folder / "started").exists)
    ann = Person.at(browser, processes.console("--operate"))
    page = ann.page("/")
    row = page.locator("#rows tr", has_text="live")
    row.get_by_text("Running").wait_for()
    page = ann.page("/runs/live")
    page.locator(".kpi dd.word", has_text="await_llm").wait_for()
    processes.open(0)
    page.locator(".kpi", has_text="1 answer of the model").wait_for()  # without a reload
    host.kill()
    host.wait()
    page.get_by_text("No process owns this run.").wait_for()
    processes.host()
    page.locator("#decisions", has_text="resumed").wait_for()
    for mark in (".sign.crash", ".process.down", ".sign.resumed"):  # its end, no process, the resume
        page.locator(f"#timeline svg {mark}").first.wait_for(state="attached")
    crash = page.locator("#timeline svg .sign.crash title").first
    assert crash.evaluate("one => one.textContent") == "the process ended here or later"
    processes.open(1)
    page.get_by_role("link", name="Read and answer").wait_for()
    page.reload()
    page.get_by_role("link", name="Read and answer").click()
    page.get_by_role("textbox", name="Reason, kept with the decision").fill("checked")
    page.get_by_role("button", name="Approve and run once").click()
    page.locator("#decisions", has_text="checked").wait_for()
    processes.open(2)
    page.locator(".chip", has_text="Completed").wait_for()
    assert decisions(processes.journal, "live") == [("approve", "checked")]
    assert ann.said == []


@pytest.mark.campaign
def test_pages_show_by_themselves_what_the_console_reads_in_the_background(
    browser: Browser, processes: Processes
) -> None:
    async def write() -> None:
        async with SqliteJournal(processes.journal) as journal:
            await leave_asking(journal, "asks")

    in_a_loop(write())
    ann = Person.at(browser, processes.console(shared=True, module="tests.console.gated"))
    for path, unread in (
        ("/?q=scripted", "The index of the search is being built."),
        ("/machines?machine=llm_loop", "0 of them were read so far"),
        ("/agents/support", "0 of 1 run were read so far"),
    ):
        gate = processes.folder / GATE
        gate.unlink(missing_ok=True)
        page = ann.page(path)
        page.get_by_text(unread).wait_for()
        for _ in range(2):  # the page asks until it is read, not once
            with page.expect_response(re.compile(re.escape(ann.base + path)), timeout=SECONDS):
                pass
        if "q=" in path:
            page.get_by_text("No run matches scripted so far.").wait_for()
            page.locator("#search").fill("the next word")
        gate.touch()
        page.get_by_text(unread).wait_for(state="detached")
        if "q=" in path:
            page.locator("#rows").get_by_text("asks").wait_for()
            assert page.locator("#search").input_value() == "the next word"
            assert page.locator("#counts a", has_text="All").inner_text().startswith("1")
            page.locator("#several").wait_for()
            assert violations(page) == overflow(page) == []
    assert ann.said == []


@pytest.mark.campaign
def test_of_two_people_the_first_answer_counts_and_the_second_keeps_the_typed_text(
    browser: Browser, processes: Processes
) -> None:
    async def write() -> None:
        async with SqliteJournal(processes.journal) as journal:
            await leave_asking(journal, "asks")

    in_a_loop(write())
    address = processes.console("--operate", shared=True)
    ann, bob = Person.at(browser, address), Person.at(browser, address)
    first, second = ann.page("/inbox"), bob.page("/inbox")
    second.get_by_role("textbox", name="Reason, required; the model reads it").fill("too dear")
    first.get_by_role("button", name="Approve and run once").click()
    first.get_by_text("The run has not read it yet").wait_for()
    second.get_by_role("button", name="Reject the call").click()
    second.get_by_text("Not posted.").wait_for()
    assert "approve" in second.locator(".note.bad").inner_text()
    assert "Answered" in second.locator("article").inner_text()


@pytest.mark.canary
def test_the_pages_of_a_read_only_console_are_live_and_accessible_and_complete_without_scripts(
    browser: Browser, processes: Processes
) -> None:
    async def write(run_id: str) -> None:
        async with SqliteJournal(processes.journal) as journal:
            await leave_asking(journal, run_id)

    in_a_loop(write("asks"))
    address = processes.console(shared=True)
    ann = Person.at(browser, address)
    page = ann.page("/")
    assert violations(page) == []
    in_a_loop(write("newer"))
    page.get_by_role("link", name="1 new run").wait_for()
    assert page.locator("#rows tr").count() == 1, "the order under a pointer does not change"
    plain = Person.at(browser, address, java_script_enabled=False)
    plain.sign_in_without_script()
    [blind] = plain.context.pages
    for path, text in (
        ("/", "asks"),
        ("/runs/asks", "process_tools"),
        ("/inbox", "amount"),
        ("/records/asks", "asked"),
        ("/compare?run=asks&run=newer", "transitions are equal"),
        ("/backtest?max_iterations=1", "evaluated"),
    ):
        blind.goto(plain.base + path)
        assert text in blind.locator("main").inner_text()
        assert not blind.locator("main").get_by_text("Approve").count()
    assert ann.said == plain.said == []


@pytest.mark.campaign
def test_the_printed_address_signs_in_one_browser_once(browser: Browser, processes: Processes) -> None:
    async def write() -> None:
        async with SqliteJournal(processes.journal) as journal:
            await leave_asking(journal, "asks")

    in_a_loop(write())
    address = processes.console()
    ann, bob = Person.at(browser, address), Person.at(browser, address, width=390)
    ann.page("/")
    page = bob.context.new_page()
    page.goto(address)
    page.get_by_role("alert").get_by_text("This address was used").wait_for()
    assert page.url == f"{bob.base}/sign-in", "the code leaves the history"
    assert violations(page) == overflow(page) == []
    page.goto(f"{bob.base}/runs/asks")
    assert page.url == f"{bob.base}/sign-in"
    assert "asks" in ann.page("/runs/asks").locator("main").inner_text()
    assert ann.said == []


# ---- appearance ----


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    processes = Processes(tmp_path_factory.mktemp("console"))
    fill_file(processes.journal)
    processes.host()
    until((processes.folder / "started").exists)
    yield processes.console("--operate", shared=True)
    processes.stop()


@pytest.mark.campaign
@pytest.mark.parametrize("width", [1280, 800, 390])
def test_every_page_fits_its_window_is_accessible_and_reports_no_error(
    browser: Browser, demonstration: str, width: int
) -> None:
    ann = Person.at(browser, demonstration, width=width)
    for name, path in PAGES.items():
        page = ann.page(path)
        assert overflow(page) == [], name
        assert page.locator(".nav").evaluate("one => one.scrollWidth <= one.clientWidth"), name
        assert violations(page) == [], name
        _picture(page, name, width)
    expected = "Failed to load resource: the server responded with a status of 404 (Not Found)"
    assert [one for one in ann.said if expected not in one] == []


SHOWN: dict[tuple[str, int], Literal["light", "dark"]] = {
    ("runs", 1280): "light",
    ("run", 1280): "light",
    ("inbox", 1280): "dark",
    ("plan", 1280): "light",
    ("machines", 1280): "light",
    ("health", 800): "dark",
    ("runs", 390): "light",
    ("compare", 1280): "light",
    ("sweep", 1280): "dark",
    ("start", 1280): "light",
}
"""The pictures of the guide: each page once, and the widths and schemes between them."""


def _picture(page: Page, name: str, width: int) -> None:
    scheme = SHOWN.get((name, width))
    if PICTURES is not None and scheme is not None:
        PICTURES.mkdir(exist_ok=True)
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=PICTURES / f"{name}-{width}-{scheme}.png")
        page.emulate_media(color_scheme="light")


def reach(page: Page, role: str, name: str) -> None:
    """Press Tab until this element has the focus."""
    wanted = page.get_by_role(role, name=name, exact=True).first  # type: ignore[arg-type]
    for _ in range(80):
        if wanted.evaluate("one => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{name} was not reached")


@pytest.mark.campaign
def test_a_question_is_answered_and_a_run_is_cancelled_with_the_keyboard_alone(
    browser: Browser, processes: Processes
) -> None:
    async def write() -> None:
        async with SqliteJournal(processes.journal) as journal:
            await leave_asking(journal, "asks")
            await leave_asking(journal, "other")

    in_a_loop(write())
    ann = Person.at(browser, processes.console("--operate"))
    page = ann.page("/")
    page.keyboard.press("j")  # the newest run
    page.keyboard.press("x")
    page.get_by_text("1 selected").wait_for()
    reach(page, "button", "Cancel…")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Cancel 1 run?").wait_for()
    reach(page, "textbox", "Reason, kept with the request")
    page.keyboard.type("not needed")
    reach(page, "button", "Cancel 1 run")
    page.keyboard.press("Enter")
    page.get_by_text("was asked").wait_for()
    page.wait_for_load_state()  # a page that is shown has no keys yet
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.get_by_role("heading", name="Inbox").wait_for()
    page.wait_for_load_state()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/inbox?run=asks")
    for key in ("a", "y", "Enter", "1"):
        page.keyboard.press(key)
    reach(page, "textbox", "Reason, kept with the decision")
    page.keyboard.type("checked by hand")
    assert decisions_of(processes.journal, "asks") == [], "no key approves"
    reach(page, "button", "Approve and run once")
    page.keyboard.press("Enter")
    page.get_by_text("The run has not read it yet").wait_for()
    assert decisions_of(processes.journal, "asks") == [("approve", "checked by hand")]
    assert decisions_of(processes.journal, "other") == [("cancel", "not needed")]
    assert ann.said == []


@pytest.mark.campaign
def test_two_runs_are_compared_and_a_limit_is_tested_with_the_keyboard_alone(
    browser: Browser, demonstration: str
) -> None:
    ann = Person.at(browser, demonstration)
    page = ann.page("/?agent=travel-desk&show=completed")
    for _ in range(2):
        page.keyboard.press("j")
        page.keyboard.press("x")
    page.get_by_text("2 selected").wait_for()
    page.get_by_role("button", name="Compare two").focus()
    page.keyboard.press("Enter")
    page.locator("#verdict", has_text="transitions").wait_for()
    page.wait_for_load_state()  # a page that is shown has no keys yet
    page.keyboard.press("g")
    page.keyboard.press("b")
    page.get_by_role("heading", name="Backtest").wait_for()
    field = page.get_by_role("textbox", name="max_iterations")
    for text, answer in (("-1", "it must be 0 (off) or more"), ("1", "runs evaluated")):
        field.focus()
        page.keyboard.press("Control+a")
        page.keyboard.type(text)
        page.keyboard.press("Enter")
        page.get_by_text(answer).wait_for()
    page.wait_for_load_state()
    page.keyboard.press("Escape")
    page.locator("main").focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")
    assert ann.said == []


def decisions_of(journal: Path, run_id: str) -> list[tuple[str, str]]:
    """Return the requests to a run that it has not read."""

    async def read() -> list[tuple[str, str]]:
        async with SqliteJournal(journal, only_reads=True) as opened:
            return [(one.kind, str(one.body.get("why"))) for one in (await Runs(opened).get(run_id)).unread]

    return in_a_loop(read())
