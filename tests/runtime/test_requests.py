"""Requests to runs: of those that are over, and of callers that do not wait until they are posted."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import AnswerRefused, RunOver, RunUnknown
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.message import ToolCall
from tests.runtime.stage import agent, until
from tests.runtime.test_people import Office, waiting

DEEP = '{"a":' * 30_000 + "1" + "}" * 30_000
"""JSON that is nested deeper than any stack."""


async def journal_of(kind: str, path: Path) -> Any:
    return MemoryJournal() if kind == "memory" else SqliteJournal(path / "journal.db")


REQUESTS = ("cancel", "pause", "approve", "reject")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_run_that_is_over_refuses_every_request_with_one_sentence(kind: str, tmp_path: Path) -> None:
    journal = await journal_of(kind, tmp_path)
    try:
        runner = agent(["done"], journal=journal)
        await runner.run("go", run_id="e")
        for request in REQUESTS:
            with pytest.raises(RunOver) as caught:
                await getattr(runner, request)("e")
            assert str(caught.value) == "run 'e' has ended: completed", request
            assert (caught.value.run_id, caught.value.outcome) == ("e", "completed")
            assert isinstance(caught.value, AnswerRefused)
        assert (await runner.resume("e")).outcome is Outcome.COMPLETED
    finally:
        if kind == "sqlite":
            await journal.close()


async def test_without_a_journal_to_share_a_refusal_comes_at_once_awaited_or_not() -> None:
    runner = agent(["done"])
    await runner.run("go", run_id="e")
    with pytest.raises(RunOver):
        runner.cancel("e")
    with pytest.raises(RunUnknown):
        runner.pause("other")


def test_without_an_event_loop_too() -> None:
    runner = agent(["done"])
    runner.run_sync("go", run_id="e")
    with pytest.raises(RunOver, match="run 'e' has ended: completed"):
        runner.cancel("e")


async def test_a_cancel_that_nobody_awaits_reaches_a_run_of_another_process(tmp_path: Path) -> None:
    office = Office()
    async with (
        SqliteJournal(tmp_path / "journal.db") as mine,
        SqliteJournal(tmp_path / "journal.db") as theirs,
    ):
        runner, other = office.agent(mine), Office().agent(theirs)
        async with waiting(runner) as (task, _):
            other.cancel("r", by="eve")
            result = await task
    assert (result.outcome, office.paid) == (Outcome.CANCELLED, [])


async def test_what_goes_wrong_with_a_request_that_nobody_awaits_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        runner = agent([], journal=journal)
        with caplog.at_level(logging.ERROR, "asyncio"):
            runner.cancel("nobody")
            # Garbage of earlier tests may be logged, too.
            said = "orchestrator cancel nobody"
            [record] = await until(
                lambda: (
                    gc.collect() is not None and [one for one in caplog.records if said in one.getMessage()]
                )
            )
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RunUnknown)


async def test_a_request_that_is_given_up_before_it_is_posted_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        runner = agent(["done"], journal=journal)
        await runner.run("go", run_id="r")
        posting = runner.cancel("r")
        assert isinstance(posting, asyncio.Task)
        posting.cancel()
        await asyncio.wait((posting,))
    assert [record.getMessage() for record in caplog.records] == [
        "orchestrator cancel r: cancelled before it was posted"
    ]


# ---- arguments nobody can read ----


async def test_arguments_nested_too_deeply_are_answered_with_an_error_and_fail_no_run() -> None:
    office = Office(ToolCall("a", "pay", DEEP), ToolCall("b", "look", "{}"))
    result = await office.agent(MemoryJournal()).run("pay")
    assert (result.outcome, office.paid) == (Outcome.COMPLETED, [])
    assert "the arguments are nested too deeply" in result.output


async def test_an_edit_nested_too_deeply_is_refused() -> None:
    office = Office()
    runner = office.agent(MemoryJournal())
    async with waiting(runner):
        with pytest.raises(AnswerRefused, match="arguments are nested too deeply"):
            await runner.approve("r", arguments=DEEP)
    assert office.paid == []
