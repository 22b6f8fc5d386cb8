"""The benchmark of listings runs, and its rows are those of a journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.runtime.runs.listing import ORDERS
from tests.benchmarks import listing


async def test_every_listing_of_sqlite_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with SqliteJournal(tmp_path / "journal.db") as journal:
        listing.fill_file(tmp_path / "journal.db", 300)
        await listing.measure(journal, "sqlite", 1)
        assert len([head async for head in journal.runs()]) == 300, "their checksums are right"
    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(listing.CONDITIONS) * len(ORDERS) + 1


async def test_every_listing_of_postgres_is_printed(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with PostgresJournal(database) as journal:
        await journal.open()
        listing.fill_tables(database, 300)
        await listing.measure(journal, "postgres", 1)
    assert capsys.readouterr().out.splitlines()[-1].startswith("postgres: ")
