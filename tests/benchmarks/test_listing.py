"""The benchmark of listings runs, and its rows and records are those of a journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import Runs
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal
from orchestrator.runtime.runs.listing import ORDERS
from tests.benchmarks import listing


async def assert_every_page_is_measured(journal: Journal, name: str) -> None:
    """Assert that the records are right, and that each group of pages has its figures."""
    for number in (1, 2, 7, 10):
        assert (await journal.load(f"{number:032x}"))[0].kind == "created"
    assert (await Runs(journal).count(waiting=True)).total == 3
    found = await listing.measure_pages(journal, name, 1)
    for pages in listing.PAGES:
        assert found[pages.name].page in pages.addresses
        assert found[pages.name].bytes < (pages.bytes or 200_000)


async def test_every_listing_and_page_of_sqlite_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stories = await listing.read_stories(tmp_path)
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        listing.fill_file(tmp_path / "journal.db", 300, stories)
        await listing.measure(journal, "sqlite", 1)
        told = capsys.readouterr().out.splitlines()
        assert len(told) == len(listing.CONDITIONS) * len(ORDERS) + 1
        assert len([head async for head in journal.runs()]) == 300, "their checksums are right"
        await assert_every_page_is_measured(journal, "sqlite")
    told = capsys.readouterr().out.splitlines()
    assert len(told) == sum(len(pages.addresses) for pages in listing.PAGES) + 1


@pytest.mark.campaign
async def test_every_listing_and_page_of_postgres_is_printed(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with PostgresJournal(database) as journal:
        await journal.open()
        listing.fill_tables(database, 300, await listing.read_stories(tmp_path))
        await listing.measure(journal, "postgres", 1)
        assert capsys.readouterr().out.splitlines()[-1].startswith("postgres: ")
        await assert_every_page_is_measured(journal, "postgres")
