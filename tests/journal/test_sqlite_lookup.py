"""The SQLite store beyond the contract: what looking up costs, and what it says of damage."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Unpack

import apsw
import pytest

from orchestrator.errors import Corrupt
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Posted, RunConditions
from orchestrator.testing.journal_contract import BODY, ended


async def listed(
    journal: SqliteJournal, seen: list[str] | None = None, **asked: Unpack[RunConditions]
) -> list[str]:
    seen = [] if seen is None else seen
    async for head in journal.runs(**asked):
        seen.append(head.run_id)
    return seen


async def filled(journal: SqliteJournal, runs: int) -> None:
    """Runs that all have requests, each of a conversation and a parent of its own."""
    for number in range(runs):
        own = {"conversation_id": f"talk {number}", "parent_run_id": f"parent {number}"}
        await journal.create(f"run {number}", "me", {**BODY, **own})
        await journal.post(f"run {number}", Posted("a", "pause"))


Question = Callable[[SqliteJournal], Awaitable[object]]

QUESTIONS: dict[str, Question] = {
    "news, nothing new": lambda journal: journal.news(10_000),
    "news from now": lambda journal: journal.news(-1),
    "newest": lambda journal: journal.newest("talk 3"),
    "newest of none": lambda journal: journal.newest("nobody's"),
    "excerpts": lambda journal: journal.excerpts(["run 3", "nobody's"]),
    "of a conversation": lambda journal: listed(journal, conversation_id="talk 3"),
    "of a parent": lambda journal: listed(journal, parent_run_id="parent 3"),
    "of both": lambda journal: listed(journal, parent_run_id="parent 3", conversation_id="talk 3"),
}


async def steps(journal: SqliteJournal, question: Question) -> int:
    """How many instructions SQLite runs for a question."""
    handle = journal._handle
    assert handle is not None
    counted = 0

    def one() -> bool:
        nonlocal counted
        counted += 1
        return False

    handle.reader.set_progress_handler(one, 1)
    await question(journal)
    handle.reader.set_progress_handler(None)
    return counted


async def test_a_look_up_costs_the_same_however_many_runs_there_are(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "few.db") as few, SqliteJournal(tmp_path / "many.db") as many:
        await filled(few, 10)
        await filled(many, 500)
        expected = {name: await steps(few, question) for name, question in QUESTIONS.items()}
        assert all(expected.values())
        assert {name: await steps(many, question) for name, question in QUESTIONS.items()} == expected


async def test_news_of_one_run_costs_the_same_however_many_runs_there_are(tmp_path: Path) -> None:
    counts = []
    for runs in (10, 500):
        async with SqliteJournal(tmp_path / f"{runs}.db") as journal:
            await filled(journal, runs)
            position, _ = await journal.news(-1)
            await journal.post("run 5", Posted("b", "resume"))
            assert await journal.news(position) == (position + 1, ["run 5"])
            counts.append(await steps(journal, functools.partial(SqliteJournal.news, since=position)))
    assert counts[0] == counts[1] > 0


async def test_a_run_has_one_row_of_news_and_none_when_it_is_gone(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        await ended(journal, "run")
        await journal.create("other", "me", BODY)
        for name in range(20):
            await journal.post("run", Posted(str(name), "pause"))
            await journal.post("other", Posted(str(name), "pause"))
        db = apsw.Connection(str(tmp_path / "journal.db"))
        assert db.execute("SELECT position, run FROM news").fetchall() == [(39, 1), (40, 2)]
        assert await journal.prune(keep_last=0) == 1
        assert db.execute("SELECT position, run FROM news").fetchall() == [(40, 2)]
        db.close()
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        assert await journal.news(0) == (40, ["other"])
        assert await journal.news(1_000) == (40, [])


async def test_a_damaged_run_is_named_by_every_look_up_that_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        await filled(journal, 4)
        await journal.create("again", "me", {**BODY, "conversation_id": "talk 1"})
        db = apsw.Connection(str(path))
        db.execute("UPDATE run SET status = 'ended' WHERE run_id IN ('run 1', 'again')")
        db.execute("UPDATE run SET parent_run_id = 'parent 3' WHERE run_id = 'run 2'")
        db.close()
        with pytest.raises(Corrupt, match="again"):
            await journal.newest("talk 1")
        for listing in (
            listed(journal, conversation_id="talk 1"),
            listed(journal, conversation_id="talk 1", status="ended"),
            listed(journal, parent_run_id="parent 1"),
            listed(journal),
        ):
            with pytest.raises(Corrupt, match="run 1"):
                await listing
        assert await listed(journal, parent_run_id="parent 1", status="open") == [], (
            "it is found by its columns"
        )
        seen: list[str] = []
        with pytest.raises(Corrupt, match="run 2"):
            await listed(journal, seen, parent_run_id="parent 3")
        assert seen == ["run 3"]
        assert await listed(journal, conversation_id="talk 3", status="open") == ["run 3"]
        assert await listed(journal, conversation_id="talk 0") == ["run 0"]
        assert len((await journal.news(0))[1]) == 4


async def test_a_check_finds_a_run_that_an_index_has_lost(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqliteJournal(path) as journal:
        await filled(journal, 2)
    db = apsw.Connection(str(path))
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    db.pragma("writable_schema", 1)
    db.execute("UPDATE sqlite_schema SET sql = replace(sql, 'IS NOT NULL', '= 1') WHERE name='run_of_parent'")
    db.execute("REINDEX")
    db.close()
    db = apsw.Connection(str(path))
    db.execute("REINDEX")
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    db.pragma("writable_schema", 1)
    db.execute("UPDATE sqlite_schema SET sql = replace(sql, '= 1', 'IS NOT NULL') WHERE name='run_of_parent'")
    db.close()
    async with SqliteJournal(path) as journal:
        assert await listed(journal) == ["run 0", "run 1"]
        (problem, *_) = (await journal.check()).problems
        assert "run_of_parent" in problem


POSTER = """
import asyncio, sys
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Posted

async def main():
    async with SqliteJournal(sys.argv[1]) as journal:
        await journal.post("run", Posted("a", "cancel"))

asyncio.run(main())
"""


def post_elsewhere(path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", POSTER, path],
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


async def test_a_request_of_another_process_is_news(tmp_path: Path) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        assert journal.shared
        await journal.create("run", "me", BODY)
        position, _ = await journal.news(-1)
        await asyncio.to_thread(post_elsewhere, tmp_path / "journal.db")
        assert await journal.news(position) == (position + 1, ["run"])
