"""Tasks of a person in a real browser, with clicks and keys counted, on a desk in light and on a phone in dark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator import RetryPolicy, SqliteJournal
from orchestrator.errors import LLMError
from orchestrator.providers.scripted import call
from tests.console.browsing import Person, Processes, Task, in_a_loop, overflow, violations
from tests.console.stored import agent, said

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.system("chromium"), pytest.mark.campaign]
VIEWS = pytest.mark.parametrize(
    ("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")]
)


async def leave_failed(path: Path) -> None:
    """Leave a run whose model failed in its second turn."""
    down = LLMError("upstream connect error", kind="server_error", status=503)
    async with SqliteJournal(path) as journal:
        failing = agent(journal, said(call("look")), down, retry=RetryPolicy(attempts=1))
        await failing.run("Look.", run_id="failed")


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
    page.wait_for_url("**/runs/failed?content=shown#transcript")
    assert page.get_by_role("heading", name="Transcript").evaluate(
        "one => one.getBoundingClientRect().top < innerHeight"
    )
    assert task.effort == (3, 0)
    assert ann.said == []
